//! The options of the commands of no family.

use super::sketch::MAX_KEYS;
use crate::options::{OptionArgument, OptionSet, OptionTable};

pub(super) const COUNT: OptionSet = 1;
pub(super) const RESET: OptionSet = 2;

/// All options.
pub(super) static OPTIONS: OptionTable<2> = OptionTable::new([
    (COUNT, "COUNT", OptionArgument::Integer(1, MAX_KEYS as i64)),
    (RESET, "RESET", OptionArgument::None),
])
.exclusive(&[COUNT | RESET]);
