//! `CF.*`: cuckoo filters, from which items can be deleted again.
//!
//! A filter is a key whose value is a [`state::CuckooFilter`]: layers, each a [`grid`] of fingerprints.
//! What it shares with the Bloom filter is in [`crate::filter`].

pub mod commands;
pub mod grid;
mod options;
pub mod state;
pub mod table;

use crate::server::services::native::NativeType;

/// Cuckoo filters in the keyspace.
pub static CUCKOO: NativeType<state::CuckooFilter> = NativeType::new("sluice-cf");
