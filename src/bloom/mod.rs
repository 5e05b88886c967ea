//! `BF.*`: Bloom filters, which say "certainly not there" or "probably there".
//!
//! A filter is a key whose value is a [`state::BloomFilter`]: layers of [`block`]s, as large as [`shape`]
//! says. What it shares with the cuckoo filter is in [`crate::filter`].

pub mod block;
pub mod commands;
mod options;
pub mod shape;
pub mod state;
pub mod table;

use crate::server::services::native::NativeType;
use crate::{Family, cuckoo, filter};

/// Bloom filters in the keyspace.
pub static BLOOM: NativeType<state::BloomFilter> = NativeType::new("sluice-bf");

/// Bloom filters of RedisBloom.
pub static REDISBLOOM: NativeType<state::BloomFilter> = NativeType::new("MBbloom--");

/// Bloom filters of valkey-bloom.
pub static VALKEY_BLOOM: NativeType<state::BloomFilter> = NativeType::new("bloomfltr");

/// The registration of the family, to which cuckoo filters belong as well.
pub const FAMILY: Family = Family {
    name: "bloom",
    commands: &[table::TABLE, cuckoo::table::TABLE],
    acl_categories: &[c"bloom", c"cuckoo"], // as in RedisBloom
    types: &[
        filter::native::register::<state::Bloom>,
        filter::native::register::<cuckoo::state::Cuckoo>,
        filter::native::register_foreign,
    ],
    settings: filter::SETTINGS,
    info: || {
        let own = BLOOM.live() + cuckoo::CUCKOO.live();
        Some(filter::info(
            own + REDISBLOOM.live() + VALKEY_BLOOM.live() + cuckoo::REDISBLOOM.live(),
        ))
    },
    hot: Some(&filter::HOT),
    ..Family::PLAIN
};
