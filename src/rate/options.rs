//! The options of the family's commands.

use crate::options::{OptionArgument, OptionSet, OptionTable};
use crate::request::{MAX_SAFE, TEN_YEARS_MS};

pub(super) const COST: OptionSet = 1;
pub(super) const PEEK: OptionSet = 2;
pub(super) const SLIDING: OptionSet = 4;
pub(super) const PX: OptionSet = 8;
pub(super) const EXACT: OptionSet = 16;
pub(super) const AHEAD: OptionSet = 32;

/// The number of options of the family.
pub(super) const COUNT: usize = 6;

/// The options of the family.
pub(super) static OPTIONS: OptionTable<COUNT> = OptionTable::new([
    (COST, "COST", OptionArgument::Integer(0, MAX_SAFE)),
    (PEEK, "PEEK", OptionArgument::None),
    (SLIDING, "SLIDING", OptionArgument::None),
    (PX, "PX", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (EXACT, "EXACT", OptionArgument::None),
    (AHEAD, "AHEAD", OptionArgument::Integer(0, TEN_YEARS_MS)),
])
.exclusive(&[SLIDING | EXACT]);
