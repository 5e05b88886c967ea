//! Masters that die or freeze, clocks that are wrong: what fences promise when a replica takes over (`fences.rs`), clients
//! that are led by Sentinels (`sentinel.rs`), and one lock over five servers (`redlock.rs`).

#[path = "../support/mod.rs"]
mod support;

mod fences;
mod redlock;
mod sentinel;
