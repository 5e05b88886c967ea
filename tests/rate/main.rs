//! Limits: what their commands reply (`commands.rs`), what servers do with them (`native.rs`, `persistence.rs`,
//! `replication.rs`), damaged bytes (`fuzz.rs`), and the pure state machines against exact models (`model.rs`).

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod fuzz;
mod model;
mod native;
mod persistence;
mod replication;
