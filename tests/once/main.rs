//! Work that is done once: what its commands reply (`commands.rs`), clients that wait (`waiting.rs`), what servers do with it
//! (`native.rs`, `persistence.rs`, `replication.rs`), and the pure state machine against a model (`model.rs`).

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod crowd;
mod model;
mod native;
mod persistence;
mod replication;
mod waiting;
