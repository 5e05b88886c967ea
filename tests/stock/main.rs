//! Stocks: what their commands reply (`commands.rs`), the stream of events (`events.rs`), buyers in great number
//! (`crowd.rs`), what servers do with stocks (`native.rs`, `persistence.rs`, `replication.rs`, `cluster.rs`), and the pure
//! state machine against a naive model (`model.rs`).

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod commands;
mod crowd;
mod events;
mod model;
mod native;
mod persistence;
mod replication;
