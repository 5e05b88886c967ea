//! Where the server calls the module outside of commands: server events, keyspace events, deleted keys.

pub mod deletions;
pub(in crate::server) mod due;
pub mod events;
pub(in crate::server) mod queued;
