//! What the tests and the benchmark share: real servers, raw connections, crowds of them, and waiting without sleeping.
//!
//! Every test spawns the servers it needs and shares them with nobody, so that tests run in parallel and may kill, stop
//! and restart as they like. Linux only: processes and limits are handled through `/proc`, `prctl` and `poll`.
//!
//! Environment: `SLUICE_MODULE` is the module to load (else the one that cargo built next to the test), `SERVER` is the
//! server to test on (else `redis-server` from `PATH`).

// Each test file compiles this module for itself and uses a part of it.
#![allow(dead_code, unused_imports, unreachable_pub)]

mod builder;
pub mod cache;
mod client;
mod clock;
pub mod cluster;
pub mod corruption;
mod crowd;
pub mod delay;
mod events;
mod files;
pub mod filter;
mod home;
mod library;
pub mod lock;
pub mod once;
mod port;
mod process;
mod random;
pub mod rate;
mod replica;
mod server;
mod setting;
pub mod stock;
mod swarm;
mod talk;
mod value;
mod wait;
mod waiters;
pub mod ways;

pub use builder::{Builder, Fsync, module_path};
pub use client::{Raw, encode};
pub use crowd::Crowd;
pub use events::KeyspaceEvents;
pub use library::compile;
pub use process::{allow_open_files, is_running, largest_child};
pub use random::Random;
pub use replica::{
    Written, assert_identical, await_failover, await_role, differences, follow, pair, quiet,
    random_load, stop_before,
};
pub use server::{Server, Shutdown, program, wait_for_replica_sync};
pub use setting::number_from;
pub use swarm::Swarm;
pub use talk::{
    Lines, NOT_AN_INTEGER, SEPARATE, SOON, SYNTAX, UNSAFE_INTEGER, WRONGTYPE, ask, await_gone,
    field_of, ints, now_ms, now_us, reads_keys_in_threads, run_delayed, server_and_client,
    settled_memory, unix_ms, unix_us, until_pong, used_memory,
};
pub use value::Value;
pub use wait::{EndOnDrop, eventually, not_before, with_growing_lease, without_cron};
pub use waiters::{
    NOW, await_waiting, late_and_next_answer, served, still_waits, waiter, waiting, waits,
};
