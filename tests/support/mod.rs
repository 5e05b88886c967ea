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
mod client;
mod clock;
mod crowd;
mod events;
mod home;
mod library;
mod port;
mod process;
mod random;
mod server;
mod setting;
mod swarm;
mod talk;
mod value;
mod wait;

pub use builder::{Builder, Fsync};
pub use client::{Raw, encode};
pub use crowd::Crowd;
pub use events::KeyspaceEvents;
pub use library::compile;
pub use process::{allow_open_files, is_running, largest_child};
pub use random::Random;
pub use server::{Server, Shutdown, wait_for_replica_sync};
pub use setting::number_from;
pub use swarm::Swarm;
pub use talk::{
    Lines, NOT_AN_INTEGER, SEPARATE, SOON, SYNTAX, UNSAFE_INTEGER, WRONGTYPE, field_of, now_ms,
    now_us, until_pong,
};
pub use value::Value;
pub use wait::eventually;
