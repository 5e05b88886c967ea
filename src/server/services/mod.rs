//! What the module keeps for the families: data types, blocked clients, the timer, knowledge of the cluster, the replicas,
//! the memory and the configuration, the command table, the permissions of callers.

pub mod after_command;
pub mod blocked;
pub mod cache_lines;
pub mod cluster;
pub mod command;
pub mod commit;
pub mod config;
pub mod deferred;
pub(in crate::server) mod deleters;
pub(in crate::server) mod import;
pub mod info;
pub mod memory;
pub mod native;
pub mod permissions;
pub mod publish;
pub mod replicas;
pub mod scripts;
pub mod slots;
pub mod stream;
pub mod timer;
pub mod writes;
