//! Cached entries: what their commands reply (`commands.rs`; `breaker.rs`; `reads.rs`: as commands that read; `sliding.rs`: hits that write; `near.rs`: a near cache with `CLIENT TRACKING`), how one waits for them (`waiting.rs`, `crowd.rs`), which
//! are evicted (`budget.rs`), what servers do with them (`native.rs`, `persistence.rs`, `replication.rs`), and the pure state machines against naive models
//! (`model.rs`; `histories.rs` has entries, leases and queues together).

#[path = "../support/mod.rs"]
mod support;

mod breaker;
mod budget;
mod commands;
mod crowd;
mod histories;
mod model;
mod native;
mod near;
mod persistence;
mod reads;
mod replication;
mod sliding;
mod waiting;
