//! The options of the family's commands.

use super::MAX_FINGERPRINT_BYTES;
use crate::options::{OptionArgument, OptionSet, OptionTable};
use crate::request::TEN_YEARS_MS;

pub(super) const LEASE: OptionSet = 1;
pub(super) const FINGERPRINT: OptionSet = 2;
pub(super) const BLOCK: OptionSet = 4;
pub(super) const PX: OptionSet = 8;

/// The options of the family.
pub(super) static OPTIONS: OptionTable<4> = OptionTable::new([
    (LEASE, "LEASE", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (
        FINGERPRINT,
        "FINGERPRINT",
        OptionArgument::Name(MAX_FINGERPRINT_BYTES),
    ),
    (BLOCK, "BLOCK", OptionArgument::Integer(0, TEN_YEARS_MS)),
    (PX, "PX", OptionArgument::Integer(1, TEN_YEARS_MS)),
]);
