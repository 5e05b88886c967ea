//! `GUARD` of `CACHE.FETCH`: a Bloom or cuckoo filter against cache penetration.

use super::breaker::BreakerRequest;
use crate::bloom::{BLOOM, state::Bloom};
use crate::cuckoo::{self, CUCKOO, state::Cuckoo};
use crate::error::Error;
use crate::filter::state::FilterKind;
use crate::request;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedReadKey;
use crate::server::handles::string::ServerString;
use crate::server::services::permissions::ReadableKeys;

/// Refuses a filter that the user may not read. The server checks this itself, with one exception: Redis 8.4 and later with
/// `io-threads` searches for the word `GUARD`, and can find the name of the breaker.
pub(super) fn check_permission(
    ctx: Ctx<'_>,
    breaker: Option<BreakerRequest<'_>>,
    filter: &ServerString<'_>,
) -> Result<(), Error> {
    let hides_filter = breaker.is_some_and(|breaker| request::is(breaker.name, "GUARD"));
    if hides_filter && !ReadableKeys::of_caller(ctx).contains(filter.bytes()) {
        return Err(Error::NoKey);
    }
    Ok(())
}

/// Whether the filter says that it does not contain the item. A filter that does not exist says nothing. Error: `WRONGTYPE`.
pub(super) fn is_absent(
    ctx: Ctx<'_>,
    filter: &ServerString<'_>,
    item: &[u8],
) -> Result<bool, Error> {
    let key = ctx.open_to_read(filter);
    if key.holds(&CUCKOO) || key.holds(&cuckoo::REDISBLOOM) {
        let mut key = TypedReadKey::of_any(key, &CUCKOO, Cuckoo::foreign_types())?;
        let filter = key.value();
        return Ok(filter.is_some_and(|filter| !filter.contains(item, filter.hash(item))));
    }
    let mut key = TypedReadKey::of_any(key, &BLOOM, Bloom::foreign_types())?;
    let filter = key.value();
    Ok(filter.is_some_and(|filter| !filter.contains(item, filter.hash(item))))
}
