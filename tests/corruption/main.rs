//! Damage, of all families: values (`values.rs`) and files (`files.rs`).

#[path = "../support/mod.rs"]
mod support;

mod files;
mod values;
