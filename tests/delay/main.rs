//! Delay queues: the replies of their commands (`commands.rs`), the delivery of messages (`delivery.rs`), the server's own
//! commands and events that meet queues (`native.rs`, `persistence.rs`, `replication.rs`, `cluster.rs`), clients that lose
//! connections (`lost_replies.rs`), and the pure state machine against a naive model (`model.rs`).

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod commands;
mod delivery;
mod lost_replies;
mod model;
mod native;
mod persistence;
mod replication;
