//! The commands of no family.

use super::options::{COUNT, OPTIONS, RESET};
use super::sketch::HotKey;
use crate::Family;
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, is};
use crate::server::entry::Call;
use crate::server::services::permissions::ReadableKeys;

/// The default of `COUNT`.
const DEFAULT_COUNT: u64 = 10;

/// `SLUICE.HOT [family] [COUNT n | RESET]`
///
/// `COUNT`: how many keys by each measure, 1 to 64, default 10. Replies with an array of maps, and with `OK` to `RESET`. Error:
/// `ERR unknown family`.
pub(super) fn hot(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let named = family_of(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, COUNT | RESET)?;
    let count = options.number_or(COUNT, DEFAULT_COUNT) as usize;
    let families =
        crate::enabled_families().filter(|family| named.is_none_or(|name| name == family.name));
    if options.has(RESET) {
        families
            .filter_map(|family| family.hot)
            .for_each(|hot| hot.reset());
        return Ok(Reply::Ok);
    }
    let readable = ReadableKeys::of_caller(call.ctx);
    let mut rows = Vec::new();
    for family in families {
        let Some(hot) = family.hot else {
            continue;
        };
        let sketches = hot.sketches.get();
        let measures = [
            ("waits", &sketches.waits),
            ("refusals", &sketches.refusals),
            ("bytes", &sketches.bytes),
        ];
        for (measure, sketch) in measures {
            let keys = sketch.sorted().into_iter();
            let shown = keys.filter(|key| readable.contains(&key.name)).take(count);
            rows.extend(shown.map(|key| row(family.name, measure, key)));
        }
    }
    Ok(Reply::Array(rows))
}

/// The name of the family in the first argument, unless that is an option.
fn family_of(cursor: &mut Cursor<'_>) -> Result<Option<&'static str>, Error> {
    let first = cursor.arguments().first().copied();
    let is_option = |word: &[u8]| is(word, "COUNT") || is(word, "RESET");
    let Some(name) = first.filter(|word| !is_option(word)) else {
        return Ok(None);
    };
    cursor.next();
    let is_named = |family: &&Family| is(name, family.name);
    let family = crate::enabled_families().find(is_named);
    Ok(Some(family.ok_or(Error::UnknownFamily)?.name))
}

fn row(family: &'static str, measure: &'static str, key: &HotKey) -> Reply {
    let number = |number: u64| Reply::int(number.min(MAX_SAFE as u64));
    Reply::Map(vec![
        ("family", Reply::Text(family)),
        ("by", Reply::Text(measure)),
        ("db", Reply::Int(key.db.into())),
        ("key", Reply::Bytes(key.name.clone())),
        ("count", number(key.count)),
        ("error", number(key.error)),
    ])
}
