//! The shared part of Bloom filters (`BF.*`, [`crate::bloom`]) and cuckoo filters (`CF.*`, [`crate::cuckoo`]): a filter of either
//! kind is a stack of layers, each of which is a cache-line array.
//!
//! [`state`] contains the filter, [`persist`] its encoding, [`edit`] its changes in the keyspace, [`commands`] the commands that
//! both kinds share, [`native`] the native types.

pub mod commands;
pub mod edit;
pub mod foreign;
pub mod hash;
pub mod native;
pub mod persist;
pub mod state;

use crate::general::HotKeys;
use crate::server::services::cache_lines;
use crate::server::services::config::{Integer, Rate, Setting, Switch};
use crate::server::services::info::Counter;

/// The largest capacity of a new filter, in items.
pub const MAX_CAPACITY: i64 = 1 << 30;

/// The largest ratio of the capacities of two successive layers.
pub const MAX_EXPANSION: i64 = 32_768;

/// The load options of the family.
pub(crate) const SETTINGS: &[&dyn Setting] = &[
    &ERROR_RATE,
    &BLOOM_CAPACITY,
    &EXPANSION,
    &CUCKOO_CAPACITY,
    &MAX_BYTES,
    &FOREIGN,
];

/// The default properties of filters that an `ADD` or `INSERT` creates.
pub(crate) static ERROR_RATE: Rate = Rate::new("bloom-error-rate", "0.01");
pub(crate) static BLOOM_CAPACITY: Integer = Integer::new("bloom-capacity", 100, 1, MAX_CAPACITY);
pub(crate) static EXPANSION: Integer = Integer::new("bloom-expansion", 2, 0, MAX_EXPANSION);
pub(crate) static CUCKOO_CAPACITY: Integer = Integer::new("cuckoo-capacity", 1024, 1, MAX_CAPACITY);

/// The most bytes of one filter.
static MAX_BYTES: Integer = Integer::memory("bloom-max-bytes", 1 << 30, 1, 1 << 53);

/// Whether filters of RedisBloom are loaded.
pub(crate) static FOREIGN: Switch = Switch::new("bloom-foreign", true);

/// The counters of `INFO sluice`.
pub(crate) struct FilterCounters {
    pub(crate) items_added: Counter,
    pub(crate) lookups: Counter,
    pub(crate) hits: Counter,
    pub(crate) full: Counter,
    pub(crate) refused_memory: Counter,
}

/// The filters with the most refusals.
pub(crate) static HOT: HotKeys = HotKeys::new();

pub(crate) static COUNTERS: FilterCounters = FilterCounters {
    items_added: Counter::new(),
    lookups: Counter::new(),
    hits: Counter::new(),
    full: Counter::new(),
    refused_memory: Counter::new(),
};

/// The section of the family in `INFO sluice`. `keys`: the number of filters in the server.
pub(crate) fn info(filters: usize) -> Vec<(&'static str, u64)> {
    let (layers, bytes) = cache_lines::live();
    vec![
        ("filter_keys", filters as u64),
        ("filter_foreign", foreign::live() as u64),
        ("filter_layers", layers as u64),
        ("filter_items_added", COUNTERS.items_added.get()),
        ("filter_lookups", COUNTERS.lookups.get()),
        ("filter_hits", COUNTERS.hits.get()),
        ("filter_bytes", bytes as u64),
        ("filter_full", COUNTERS.full.get()),
        ("filter_refused_memory", COUNTERS.refused_memory.get()),
    ]
}
