//! The options of the family's commands.

use super::state::{EarlyRefresh, EntryVersion};
use crate::error::Error;
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS, parse_decimal};

pub(super) const LEASE: OptionSet = 1;
pub(super) const PX: OptionSet = 2;
pub(super) const TOKEN: OptionSet = 4;
pub(super) const BLOCK: OptionSet = 8;
pub(super) const STALE: OptionSet = 16;
const EARLY: OptionSet = 32;
const BETA: OptionSet = 64;
pub(super) const SLIDE: OptionSet = 128;
pub(super) const GUARD: OptionSet = 256;
pub(super) const JITTER: OptionSet = 512;
pub(super) const VER: OptionSet = 1024;
pub(super) const GRACE: OptionSet = 2048;
pub(super) const BACKOFF: OptionSet = 4096;
/// The options of an early refresh.
pub(super) const REFRESH: OptionSet = EARLY | BETA;

/// The words of the options of `CACHE.FETCH`, and the number of their arguments. The key after `GUARD` is found by them.
pub(super) const FETCH_OPTIONS: &[(&str, usize)] = &[
    ("LEASE", 1),
    ("EARLY", 1),
    ("BETA", 1),
    ("SLIDE", 1),
    ("GUARD", 2),
    ("BREAKER", 3),
    ("BLOCK", 1),
];

const TIME: OptionArgument = OptionArgument::Integer(0, TEN_YEARS_MS);
const TIME_FROM_1: OptionArgument = OptionArgument::Integer(1, TEN_YEARS_MS);
const NUMBER: OptionArgument = OptionArgument::Integer(0, MAX_SAFE);

/// The options of the family.
pub(super) static OPTIONS: OptionTable<13> = OptionTable::new([
    (LEASE, "LEASE", TIME_FROM_1),
    (PX, "PX", TIME_FROM_1),
    (TOKEN, "TOKEN", NUMBER),
    (BLOCK, "BLOCK", TIME),
    (STALE, "STALE", TIME),
    (EARLY, "EARLY", TIME),
    (BETA, "BETA", OptionArgument::Custom(beta)),
    (SLIDE, "SLIDE", TIME_FROM_1),
    (GUARD, "GUARD", OptionArgument::Bytes(2)), // a filter and an item
    (JITTER, "JITTER", OptionArgument::Integer(0, 100)),
    (VER, "VER", NUMBER),
    (GRACE, "GRACE", TIME),
    (BACKOFF, "BACKOFF", TIME),
])
.exclusive(&[EARLY | BETA]);

/// The options of one command.
pub(super) type CacheOptions<'a> = Options<'a, 13>;

impl CacheOptions<'_> {
    /// When a client rebuilds a fresh entry.
    pub(super) fn refresh(&self) -> EarlyRefresh {
        if let Some(early) = self.number(EARLY) {
            EarlyRefresh::Before(early)
        } else if let Some(beta) = self.number(BETA) {
            EarlyRefresh::Beta(f64::from_bits(beta))
        } else {
            EarlyRefresh::Off
        }
    }

    /// The version of the entry.
    pub(super) fn version(&self) -> Option<EntryVersion> {
        self.number(VER).map(EntryVersion::new)
    }
}

/// The largest factor of `BETA`.
const MAX_BETA: i64 = 1000;

/// The bits of a factor from 0 to [`MAX_BETA`].
fn beta(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    let beta = parse_decimal(cursor.value()?).ok_or(Error::NotFloat)?;
    if (0.0..=MAX_BETA as f64).contains(&beta) {
        return Ok(beta.to_bits());
    }
    Err(Error::OutOfRange {
        argument: "BETA",
        min: 0,
        max: MAX_BETA,
    })
}
