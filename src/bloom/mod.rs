//! `BF.*`: Bloom filters, which say "certainly not there" or "probably there".
//!
//! A filter is a key whose value is a [`state::Filter`]: layers of [`block`]s, as large as [`shape`]
//! says. What it shares with the cuckoo filter is in [`crate::filter`].

pub mod block;
pub mod commands;
pub mod shape;
pub mod state;

use crate::server::native::NativeType;

/// Bloom filters in the keyspace.
pub static BLOOM: NativeType<state::Filter> = NativeType::new("sluice-bf");
