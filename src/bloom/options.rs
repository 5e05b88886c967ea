//! The options of the commands of Bloom filters.

use super::state::BloomParameters;
use crate::error::Error;
use crate::filter::commands::{capacity, error_rate, expansion};
use crate::filter::{BLOOM_CAPACITY, ERROR_RATE, EXPANSION as DEFAULT_EXPANSION};
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};

const CAPACITY: OptionSet = 1;
const ERROR: OptionSet = 2;
pub(super) const EXPANSION: OptionSet = 4;
pub(super) const NOCREATE: OptionSet = 8;
pub(super) const NONSCALING: OptionSet = 16;
const ITEMS: OptionSet = 32;

/// All options of Bloom filters.
pub(super) static OPTIONS: OptionTable<6> = OptionTable::new([
    (CAPACITY, "CAPACITY", OptionArgument::Custom(capacity)),
    (
        ERROR,
        "ERROR",
        OptionArgument::Custom(|cursor| error_rate(cursor).map(f64::to_bits)),
    ),
    (EXPANSION, "EXPANSION", OptionArgument::Custom(expansion)),
    (NOCREATE, "NOCREATE", OptionArgument::None),
    (NONSCALING, "NONSCALING", OptionArgument::None),
    (ITEMS, "ITEMS", OptionArgument::Items),
]);

/// The options of one command.
pub(super) type BloomOptions<'a> = Options<'a, 6>;

impl BloomOptions<'_> {
    /// The properties of a filter that the command creates.
    pub(super) fn parameters(&self) -> BloomParameters {
        BloomParameters {
            error: self.number(ERROR).map_or(ERROR_RATE.get(), f64::from_bits),
            capacity: self.number_or(CAPACITY, BLOOM_CAPACITY.get() as u64),
            expansion: self.expansion(),
        }
    }

    /// How many times as large each further layer is; 0 if there is none, whatever `EXPANSION` is.
    fn expansion(&self) -> u64 {
        if self.has(NONSCALING) {
            0
        } else {
            self.number_or(EXPANSION, DEFAULT_EXPANSION.get() as u64)
        }
    }

    /// The same for `BF.RESERVE`, which as in RedisBloom is the only command to refuse both options together.
    pub(super) fn reserved_expansion(&self) -> Result<u64, Error> {
        if self.has(NONSCALING) && self.number(EXPANSION).is_some_and(|given| given > 0) {
            Err(Error::NonscalingExpands)
        } else {
            Ok(self.expansion())
        }
    }
}
