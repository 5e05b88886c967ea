//! The options of the commands of cuckoo filters.

use super::state::{CuckooParameters, MAX_BUCKET_SIZE, MAX_ITERATIONS};
use crate::error::Error;
use crate::filter::CUCKOO_CAPACITY;
use crate::filter::commands::{capacity, expansion};
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::Cursor;

pub(super) const CAPACITY: OptionSet = 1;
pub(super) const BUCKETSIZE: OptionSet = 2;
pub(super) const MAXITERATIONS: OptionSet = 4;
pub(super) const EXPANSION: OptionSet = 8;
pub(super) const BITS: OptionSet = 16;
pub(super) const NOCREATE: OptionSet = 32;
pub(super) const ITEMS: OptionSet = 64;

/// All options of cuckoo filters.
pub(super) static OPTIONS: OptionTable<7> = OptionTable::new([
    (CAPACITY, "CAPACITY", OptionArgument::Custom(capacity)),
    (
        BUCKETSIZE,
        "BUCKETSIZE",
        OptionArgument::Integer(1, MAX_BUCKET_SIZE),
    ),
    (
        MAXITERATIONS,
        "MAXITERATIONS",
        OptionArgument::Integer(1, MAX_ITERATIONS),
    ),
    (EXPANSION, "EXPANSION", OptionArgument::Custom(expansion)),
    (BITS, "BITS", OptionArgument::Custom(width)),
    (NOCREATE, "NOCREATE", OptionArgument::None),
    (ITEMS, "ITEMS", OptionArgument::Items),
]);

/// The options of one command.
pub(super) type CuckooOptions<'a> = Options<'a, 7>;

impl CuckooOptions<'_> {
    /// The properties of a filter that the command creates.
    pub(super) fn parameters(&self) -> CuckooParameters {
        self.parameters_for(self.number_or(CAPACITY, CUCKOO_CAPACITY.get() as u64))
    }

    /// The same with a capacity that is not an option.
    pub(super) fn parameters_for(&self, capacity: u64) -> CuckooParameters {
        CuckooParameters::new(
            capacity,
            self.number_or(BUCKETSIZE, 4),
            self.number_or(BITS, 2),
            self.number_or(MAXITERATIONS, 20),
            self.number_or(EXPANSION, 1),
        )
    }
}

/// The bytes of a fingerprint, whose argument is in bits: 8, 16 or 32.
fn width(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    match cursor.int("BITS", i64::MIN..=i64::MAX)? {
        8 => Ok(1),
        16 => Ok(2),
        32 => Ok(4),
        _ => Err(Error::BadBits),
    }
}
