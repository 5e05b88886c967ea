//! Safe handles for what the server lends: its context, keys, streams, RDB and AOF files, replies, calls of its commands.

pub(in crate::server) mod call;
pub mod context;
pub mod io;
pub mod key;
pub mod log;
pub(in crate::server) mod native_type;
pub(in crate::server) mod open_value;
pub mod reply;
pub mod scan;
pub mod server_info;
pub mod string;
