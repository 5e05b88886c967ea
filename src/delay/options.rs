//! The options of the family's commands.

use crate::error::Error;
use crate::options::{OptionArgument, OptionSet, OptionTable};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;

pub(super) const PX: OptionSet = 1;
pub(super) const PXAT: OptionSet = 2;
pub(super) const NX: OptionSet = 4;
pub(super) const XX: OptionSet = 8;
pub(super) const VALUES: OptionSet = 16;
pub(super) const STREAM: OptionSet = 32;
pub(super) const MAXLEN: OptionSet = 64;

/// All options of the family.
pub(super) static OPTIONS: OptionTable<7> = OptionTable::new([
    (PX, "PX", OptionArgument::Integer(0, TEN_YEARS_MS)),
    (PXAT, "PXAT", OptionArgument::Custom(point_in_time)),
    (NX, "NX", OptionArgument::None),
    (XX, "XX", OptionArgument::None),
    (VALUES, "VALUES", OptionArgument::Items),
    (STREAM, "STREAM", OptionArgument::Bytes(1)),
    (MAXLEN, "MAXLEN", OptionArgument::Integer(1, MAX_SAFE)),
])
.exclusive(&[NX | XX, PX | PXAT]);

/// A point in time that is at most ten years away (Unix ms).
fn point_in_time(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    let last = Now::read().ms() as i64 + TEN_YEARS_MS;
    cursor.uint("PXAT", 0..=last)
}
