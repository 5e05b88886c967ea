//! The lowest layer, which uses no other: allocator, clock, random numbers, guards, the main thread, time slices.

pub mod alloc;
pub(in crate::server) mod api;
pub mod clock;
pub mod guard;
pub mod main_thread;
pub mod random;
pub mod slice;
