//! Locks and semaphores: what their commands reply (`commands.rs`, `semaphores.rs`), how one waits for them (`waiting.rs`,
//! `notify.rs`, `watchdog.rs`, `crowd.rs`, `history.rs`), what servers do with them (`native.rs`, `ends.rs`, `persistence.rs`, `replication.rs`,
//! `cluster.rs`), and the pure parts against naive models (`model.rs`, `deadlock.rs`, `handover.rs`).

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod commands;
mod crowd;
mod deadlock;
mod ends;
mod handover;
mod history;
mod model;
mod native;
mod notify;
mod persistence;
mod replication;
mod semaphores;
mod waiting;
mod watchdog;
