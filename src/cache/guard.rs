//! A Bloom or cuckoo filter in front of a miss.

use crate::bloom::{BLOOM, state::Bloom};
use crate::cuckoo::{CUCKOO, state::Cuckoo};
use crate::error::Error;
use crate::filter::state::FilterKind;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;

/// Has the filter never seen the item? Where there is no filter nobody knows. Error: `WRONGTYPE`, if it is something else.
pub(super) fn is_absent(
    ctx: Ctx<'_>,
    filter: &ServerString<'_>,
    item: &[u8],
) -> Result<bool, Error> {
    let key = ctx.open_to_read(filter);
    if key.holds(&CUCKOO) {
        let mut slot = TypedKey::of(key, &CUCKOO)?;
        let filter = slot.value();
        return Ok(filter.is_some_and(|filter| !Cuckoo::holds(filter, filter.hash(item))));
    }
    let mut slot = TypedKey::of(key, &BLOOM)?;
    let filter = slot.value();
    Ok(filter.is_some_and(|filter| !Bloom::holds(filter, filter.hash(item))))
}
