//! `RATE.*`, `CL.THROTTLE`: rate limits and idempotency keys.
//!
//! A limit is a key whose value is a [`state::Limit`]: one or more leaky buckets ([`gcra`]), a [`window`], or the log of an
//! [`exact`] window. The key expires
//! when the limit is as good as unused. [`commands`] reads requests, [`edit`] carries out their changes of a key.

pub mod commands;
pub mod decision;
pub mod edit;
pub mod exact;
pub mod gcra;
pub mod native;
mod options;
pub mod persist;
pub mod state;
pub mod table;
pub mod window;

use crate::Family;
use crate::general::HotKeys;
use crate::general::memory::FamilyMemory;
use crate::request::TEN_YEARS_MS;
use crate::server::services::info::Counter;

/// The highest number of tiers of one limit.
pub const MAX_TIERS: usize = 64;

/// The longest period in microseconds: ten years.
pub const MAX_PERIOD_US: u64 = TEN_YEARS_MS as u64 * 1000;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "rate",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[],
    key_changed: native::key_changed,
    on_event: native::handle_event,
    info,
    hot: Some(&HOT),
    memory: Some(FamilyMemory {
        keys: "memory_rate_keys",
        bytes: "memory_rate_bytes",
        types: native::USAGE,
    }),
    ..Family::PLAIN
};

/// The keys with the most refusals.
static HOT: HotKeys = HotKeys::new();

/// The counters of `INFO sluice`.
struct RateCounters {
    allowed: Counter,
    ahead: Counter,
    limited: Counter,
    peeked: Counter,
    charged: Counter,
    refunded: Counter,
    once_first: Counter,
    once_duplicate: Counter,
}

static COUNTERS: RateCounters = RateCounters {
    allowed: Counter::new(),
    ahead: Counter::new(),
    limited: Counter::new(),
    peeked: Counter::new(),
    charged: Counter::new(),
    refunded: Counter::new(),
    once_first: Counter::new(),
    once_duplicate: Counter::new(),
};

fn info() -> Option<Vec<(&'static str, u64)>> {
    Some(vec![
        ("rate_allowed", COUNTERS.allowed.get()),
        ("rate_ahead", COUNTERS.ahead.get()),
        ("rate_limited", COUNTERS.limited.get()),
        ("rate_peeked", COUNTERS.peeked.get()),
        ("rate_charged", COUNTERS.charged.get()),
        ("rate_refunded", COUNTERS.refunded.get()),
        ("rate_once_first", COUNTERS.once_first.get()),
        ("rate_once_duplicate", COUNTERS.once_duplicate.get()),
    ])
}
