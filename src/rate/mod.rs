//! `RATE.*`, `CL.THROTTLE`: limits on how often something may happen, and keys that let only the first pass.
//!
//! A limit is a key whose value is a [`state::Limit`]: a leaky bucket ([`gcra`]) or several, or a [`window`]. It expires
//! when it is as if it had never been used.

pub mod commands;
pub mod gcra;
pub mod native;
mod options;
pub mod outcome;
pub mod persist;
pub mod state;
pub mod window;

use crate::Family;
use crate::request::TEN_YEARS_MS;
use crate::server::services::info::Counter;

/// The most tiers of one limit.
pub const MAX_TIERS: usize = 64;

/// The longest period, ten years, in microseconds.
pub const MAX_US: u64 = TEN_YEARS_MS as u64 * 1000;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "rate",
    commands: &[commands::TABLE],
    types: native::TYPES,
    settings: &[],
    key_changed: native::touched,
    on_event: native::happened,
    info,
    ..Family::PLAIN
};

/// The counters of `INFO sluice`.
struct Stats {
    allowed: Counter,
    limited: Counter,
    peeked: Counter,
    refunded: Counter,
    once_first: Counter,
    once_duplicate: Counter,
}

static STATS: Stats = Stats {
    allowed: Counter::new(),
    limited: Counter::new(),
    peeked: Counter::new(),
    refunded: Counter::new(),
    once_first: Counter::new(),
    once_duplicate: Counter::new(),
};

fn info() -> Option<Vec<(&'static str, u64)>> {
    Some(vec![
        ("rate_allowed", STATS.allowed.get()),
        ("rate_limited", STATS.limited.get()),
        ("rate_peeked", STATS.peeked.get()),
        ("rate_refunded", STATS.refunded.get()),
        ("rate_once_first", STATS.once_first.get()),
        ("rate_once_duplicate", STATS.once_duplicate.get()),
    ])
}
