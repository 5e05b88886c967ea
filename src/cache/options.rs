//! The options of the family's commands.

use super::breaker::BreakerRequest;
use super::state::{EarlyRefresh, EntryVersion};
use crate::error::Error;
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS, parse_decimal, parse_int};

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
pub(super) const BREAKER: OptionSet = 8192;
pub(super) const RESET: OptionSet = 16384;
/// The options of an early refresh.
pub(super) const REFRESH: OptionSet = EARLY | BETA;

/// The words of the options of `CACHE.FETCH`, and the number of their arguments. The key after `GUARD` is found by them: an option
/// that is missing here would hide it. A test compares them with the usage line and with [`OPTIONS`].
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
pub(super) static OPTIONS: OptionTable<15> = OptionTable::new([
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
    (BREAKER, "BREAKER", OptionArgument::Custom(breaker)),
    (RESET, "RESET", OptionArgument::None),
])
.exclusive(&[EARLY | BETA]);

/// The options of one command.
pub(super) type CacheOptions<'a> = Options<'a, 15>;

impl<'a> CacheOptions<'a> {
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

    /// The breaker of the load.
    pub(super) fn breaker(&self) -> Option<BreakerRequest<'a>> {
        let [name, failures, open_ms] = self.all_bytes(BREAKER)?;
        let number = |word| parse_int(word).and_then(|number| u32::try_from(number).ok());
        Some(BreakerRequest {
            name,
            failures: number(failures)?,
            open_ms: number(open_ms)?,
        })
    }

    /// The version of the entry.
    pub(super) fn version(&self) -> Option<EntryVersion> {
        self.number(VER).map(EntryVersion::new)
    }
}

/// The longest name of a breaker, in bytes.
const MAX_BREAKER_NAME_BYTES: usize = 128;

/// The name of a breaker.
pub(super) fn breaker_name<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("name", MAX_BREAKER_NAME_BYTES)
}

/// The position of the arguments of `BREAKER`: a name, a number of failures and a time.
fn breaker(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    const DAY_MS: i64 = 24 * 3600 * 1000;
    let position = cursor.position();
    breaker_name(cursor)?;
    cursor.uint("failures", 1..=1_000_000)?;
    cursor.uint("open-ms", 1..=DAY_MS)?;
    Ok(position as u64)
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

#[cfg(test)]
mod tests {
    use super::super::table::TABLE;
    use super::*;

    #[test]
    fn the_key_after_guard_is_found_by_the_options_of_the_usage_line() {
        let fetch = TABLE.iter().find(|command| command.name == "CACHE.FETCH");
        let usage = fetch.unwrap().usage.replace(['[', ']', '|'], " ");
        let mut options: Vec<(&str, usize)> = Vec::new();
        for word in usage.split_whitespace() {
            if word.bytes().all(|byte| byte.is_ascii_uppercase()) {
                options.push((word, 0));
            } else if let Some((_, arguments)) = options.last_mut() {
                *arguments += 1;
            }
        }
        assert_eq!(options, FETCH_OPTIONS);
    }

    #[test]
    fn the_key_after_guard_is_found_by_the_arguments_that_are_read() {
        for (word, arguments) in FETCH_OPTIONS {
            let words = [&[word.as_bytes()][..], &vec![&b"1"[..]; *arguments]].concat();
            let mut cursor = Cursor::new(&words);
            assert!(OPTIONS.read(&mut cursor, OptionSet::MAX).is_ok(), "{word}");
            let mut cursor = Cursor::new(&words[..*arguments]);
            assert!(OPTIONS.read(&mut cursor, OptionSet::MAX).is_err(), "{word}");
        }
    }
}
