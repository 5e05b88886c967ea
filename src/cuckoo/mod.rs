//! `CF.*`: cuckoo filters, from which items can be deleted again.
//!
//! A filter is a key whose value is a [`state::CuckooFilter`]: a stack of layers, each of which is a [`grid`] of fingerprints.
//! [`crate::filter`] contains the part that Bloom filters share.

pub mod commands;
pub mod grid;
mod options;
pub mod state;
pub mod table;

use crate::server::services::native::NativeType;

/// The native type of cuckoo filters.
pub static CUCKOO: NativeType<state::CuckooFilter> = NativeType::new("sluice-cf");

/// Cuckoo filters of RedisBloom.
pub static REDISBLOOM: NativeType<state::CuckooFilter> = NativeType::new("MBbloomCF");
