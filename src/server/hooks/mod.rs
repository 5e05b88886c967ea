//! Where the server calls the module outside of commands: server events, keyspace events, deleted keys.

pub mod deletions;
pub mod events;
pub mod lent;
pub(in crate::server) mod queued;
