//! Filters: what their commands reply (`bloom.rs`, `cuckoo.rs`), what servers do with them (`native.rs`, `persistence.rs`,
//! `replication.rs`), the commands of RedisBloom as it replicates them (`verbatim.rs`), damaged bytes (`fuzz.rs`, `forged.rs`), clusters (`cluster.rs`), and the pure state machines against naive models (`model.rs`).

#[path = "../support/mod.rs"]
mod support;

mod bloom;
mod cluster;
mod cuckoo;
mod foreign;
mod forged;
mod fuzz;
mod model;
mod moving;
mod native;
mod persistence;
mod replication;
mod verbatim;
