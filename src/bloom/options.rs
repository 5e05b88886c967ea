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
    pub(super) fn parameters(&self) -> Result<BloomParameters, Error> {
        Ok(BloomParameters {
            error: self.number(ERROR).map_or(ERROR_RATE.get(), f64::from_bits),
            capacity: self.number_or(CAPACITY, BLOOM_CAPACITY.get() as u64),
            expansion: self.expansion()?,
        })
    }

    /// How many times as large each further layer is; 0 if there is none.
    pub(super) fn expansion(&self) -> Result<u64, Error> {
        match self.number(EXPANSION) {
            Some(expansion) if expansion > 0 && self.has(NONSCALING) => {
                Err(Error::NonscalingExpands)
            }
            _ if self.has(NONSCALING) => Ok(0),
            given => Ok(given.unwrap_or_else(|| DEFAULT_EXPANSION.get() as u64)),
        }
    }
}
