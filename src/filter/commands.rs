//! The commands that Bloom and cuckoo filters have in common.

use super::edit::{FilterEdit, MemoryLimits, build, contains_all, put_layer};
use super::persist::{self, FilterEffect};
use super::state::{Added, Filter, FilterHeader, FilterKind};
use super::{COUNTERS, FOREIGN, MAX_CAPACITY, MAX_EXPANSION};
use crate::codec::Corrupt;
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, parse_decimal, parse_int};
use crate::server::entry::Call;
use crate::server::handles::key::TypedReadKey;
use std::ffi::CStr;

/// The capacity of a filter: 1 to 2^30.
pub fn capacity(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    let capacity = parse_int(cursor.value()?).ok_or(Error::BadCapacity)?;
    let fits = (1..=MAX_CAPACITY).contains(&capacity);
    fits.then_some(capacity as u64).ok_or(Error::CapacityRange)
}

/// The ratio of the capacities of two successive layers: 0 to 32768.
pub fn expansion(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    let expansion = parse_int(cursor.value()?).ok_or(Error::BadExpansion)?;
    let fits = (0..=MAX_EXPANSION).contains(&expansion);
    fits.then_some(expansion as u64)
        .ok_or(Error::ExpansionRange)
}

/// A false positive rate: greater than 0 and less than 1.
pub fn error_rate(cursor: &mut Cursor<'_>) -> Result<f64, Error> {
    let rate = parse_decimal(cursor.value()?).ok_or(Error::BadErrorRate)?;
    let fits = rate > 0.0 && rate < 1.0;
    fits.then_some(rate).ok_or(Error::ErrorRateRange)
}

/// Calls `work` with the filter at the first key. Returns `None` if there is no filter.
pub fn read_filter<K: FilterKind, T>(
    call: &Call<'_>,
    work: impl FnOnce(&mut Filter<K>) -> T,
) -> Result<Option<T>, Error> {
    let name = call.name(0);
    let key = call.ctx.open_to_read(&name);
    let mut key = TypedReadKey::of_any(key, K::native(), K::foreign_types())?;
    Ok(key.value().map(work))
}

/// `BF.EXISTS key item`, `CF.EXISTS key item`
///
/// Replies with 1 (RESP3: true) if the item is in the filter, probably, and 0 (false) if it is
/// certainly not, or there is no filter. Error: `WRONGTYPE`.
pub fn exists<K: FilterKind>(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let item = cursor.value()?;
    let holds = read_filter::<K, _>(call, |filter| filter.contains(item, filter.hash(item)))?;
    let holds = holds.unwrap_or(false);
    COUNTERS.lookups.count();
    COUNTERS.hits.add(holds.into());
    Ok(Reply::Bool(holds))
}

/// The replies for this number of items need no allocation.
const INLINE_REPLIES: usize = 128;

/// `BF.MEXISTS key item [item ...]`, `CF.MEXISTS key item [item ...]`
///
/// Replies with an array: for each item what `EXISTS` would reply. Error: `WRONGTYPE`.
pub fn mexists<K: FilterKind>(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let items = cursor.rest();
    let (mut inline, mut many) = ([false; INLINE_REPLIES], Vec::new());
    let replies = match inline.get_mut(..items.len()) {
        Some(replies) => replies,
        None => {
            many.resize(items.len(), false);
            &mut many
        }
    };
    let hits = read_filter::<K, _>(call, |filter| contains_all(filter, items, replies))?;
    COUNTERS.lookups.add(items.len() as u64);
    COUNTERS.hits.add(hits.unwrap_or(0));
    Ok(call.ctx.send_bools(replies))
}

/// `BF.SCANDUMP key iterator`, `CF.SCANDUMP key iterator`
///
/// `iterator`: 0 at first, then what the last reply said. Replies with the next iterator and a chunk
/// of at most 16 MiB, both of which `LOADCHUNK` takes; 0 and an empty chunk at the end. Errors:
/// `WRONGTYPE`, `ERR not found` (of a cuckoo filter: `ERR Not found`).
pub fn scandump<K: FilterKind>(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let iterator = cursor.uint("iterator", 0..=MAX_SAFE)?;
    let chunk = read_filter::<K, _>(call, |filter| {
        let foreign = filter.foreign.as_ref();
        let foreign = foreign.and_then(|foreign| Some((foreign, foreign.dump()?)));
        match (iterator.checked_sub(1), foreign) {
            (None, Some((_, header))) => (1, header),
            (Some(from), Some((foreign, _))) => {
                let chunk = foreign.chunk(from, persist::MAX_CHUNK_BYTES);
                chunk.map_or((0, Vec::new()), |(end, piece)| (end + 1, piece))
            }
            (None, _) => {
                let mut header = Vec::new();
                persist::put_header(&mut header, &persist::header_of(filter));
                (1, header)
            }
            (Some(from), _) => {
                let chunk = persist::chunk(filter, from);
                chunk.map_or((0, Vec::new()), |(end, piece)| (end + 1, piece))
            }
        }
    })?;
    let (next, bytes) = chunk.ok_or(K::MISSING)?;
    Ok(Reply::Array(vec![
        Reply::int(next),
        Reply::Bytes(bytes.into()),
    ]))
}

/// `BF.LOADCHUNK key iterator data`, `CF.LOADCHUNK key iterator data`
///
/// `iterator` and `data` are what a `SCANDUMP` replied, in its order; the first chunk makes the
/// filter. A chunk is checked to be whole and to belong to this very filter, and adds to it; one of a
/// layer that came after the first chunk was made is left out. Replies
/// OK. Errors: `WRONGTYPE`; `ERR received bad data`; `ERR item exists` (there is a filter before the
/// first chunk); `ERR not found` (there is none afterwards; of a cuckoo filter: `ERR Not found`);
/// `ERR filter would exceed bloom-max-bytes`.
pub fn loadchunk<K: FilterKind>(call: &Call<'_>, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    // In an AOF, the first chunk of RedisBloom 1.0 to 2.2.0 has the iterator 0.
    let least = if call.ctx.is_loading() { 0 } else { 1 };
    let iterator = cursor.uint("iterator", least..=MAX_SAFE)?;
    let data = cursor.value()?;
    let name = call.name(0);
    let is_replay = call.ctx.is_replay();
    let mut edit = FilterEdit::<K>::open(call, &name)?;
    match (edit.filter(), iterator.saturating_sub(1)) {
        (None, 0) => {
            let header = persist::read_header(data);
            let header = header.or_else(|_| read_foreign_header(data, is_replay));
            let header = as_registered(header.map_err(|_| Error::BadData)?);
            let mut filter = build(header, MemoryLimits::of(call.ctx))?;
            if let Some(foreign) = &mut filter.foreign
                && !is_replay
            {
                foreign.expect_chunks();
            }
            edit.put(filter);
        }
        (Some(_), 0) => return Err(Error::ItemExists),
        (None, _) => return Err(K::MISSING),
        (Some(filter), end) => {
            let start = persist::start_of(data, end);
            let loaded = start.and_then(|start| persist::load_piece(filter, start, data));
            // RedisBloom accepts chunks after the first new item.
            let is_foreign = filter.layers.is_empty() || is_replay;
            let loaded = loaded.or_else(|error| match &mut filter.foreign {
                Some(foreign) if is_foreign && foreign.has_chunks() => {
                    if is_replay {
                        foreign.expect_any_chunk();
                    }
                    foreign.load_chunk(end, data).map(|()| true)
                }
                _ => Err(error),
            });
            if loaded.map_err(|_| Error::BadData)? {
                edit.mark_changed();
            }
        }
    }
    edit.close(event);
    Ok(Reply::Ok)
}

/// Reads the first chunk of another module's `SCANDUMP`, unless the server must not load it. A master or an AOF decides what it
/// loads.
fn read_foreign_header<K: FilterKind>(
    data: &[u8],
    is_replay: bool,
) -> Result<FilterHeader<K>, Corrupt> {
    let shape = K::read_foreign_dump(data)?;
    if is_replay || FOREIGN.get() && shape.is_consistent() {
        FilterHeader::of_foreign(shape)
    } else {
        Err(Corrupt)
    }
}

/// The header of a filter that gets a type of Sluice, if the server does not know the original one.
fn as_registered<K: FilterKind>(mut header: FilterHeader<K>) -> FilterHeader<K> {
    if let Some(foreign) = &mut header.foreign {
        foreign.is_original &= K::type_of(&foreign.shape).is_registered();
    }
    header
}

/// `BF.APPLY key effects`, `CF.APPLY key effects`: applies the effects of a master or an AOF. See
/// [`persist`].
pub fn apply_effects<K: FilterKind>(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let input = cursor.value()?;
    let name = call.name(0);
    let limits = MemoryLimits::of(call.ctx);
    let mut edit = match input.first() {
        Some(b'H') => FilterEdit::<K>::over(call, &name),
        _ => FilterEdit::open(call, &name)?,
    };
    let effects = persist::effects::<K>(input, edit.filter().as_deref());
    let mut effects = effects
        .map_err(|_| Error::BadEffect)?
        .into_iter()
        .peekable();
    if let Some(FilterEffect::Header(header)) =
        effects.next_if(|effect| matches!(effect, FilterEffect::Header(_)))
    {
        let mut new = build(as_registered(header), limits)?;
        effects.try_for_each(|effect| apply_effect(&mut new, effect, limits))?;
        edit.replace(new);
        edit.close_applied();
        return Ok(Reply::Ok);
    }
    let filter = edit.filter().ok_or(Error::BadEffect)?;
    if limits == MemoryLimits::Hold {
        // The effects do not come from a master, so they may be invalid. A failure must not change the filter.
        let mut copy = filter.try_clone().ok_or(Error::NoMemory)?;
        effects.try_for_each(|effect| apply_effect(&mut copy, effect, limits))?;
        *filter = copy;
    } else {
        effects.try_for_each(|effect| apply_effect(filter, effect, limits))?;
    }
    edit.adopt_type();
    edit.close_applied();
    Ok(Reply::Ok)
}

fn apply_effect<K: FilterKind>(
    filter: &mut Filter<K>,
    effect: FilterEffect<'_, K>,
    limits: MemoryLimits,
) -> Result<(), Error> {
    let applied = match effect {
        FilterEffect::Header(_) => false,
        FilterEffect::Own(seed, parameters) => {
            let is_original = filter.is_original();
            if is_original {
                filter.become_own(seed, parameters);
            }
            is_original
        }
        FilterEffect::Delete(item) => {
            let foreign = filter
                .foreign
                .as_mut()
                .filter(|foreign| !foreign.is_original);
            foreign.is_some_and(|foreign| foreign.delete(item))
        }
        // An original filter does not change as such.
        _ if filter.is_original() && !matches!(effect, FilterEffect::Piece(_, _)) => false,
        FilterEffect::Piece(position, piece) => {
            persist::load_piece(filter, position, piece).is_ok()
        }
        FilterEffect::Layer(shape) => return put_layer(filter, shape, limits),
        FilterEffect::Item(hash) => {
            K::add(filter, hash, false) != Added::Full || K::add_beyond(filter, hash)
        }
    };
    applied.then_some(()).ok_or(Error::BadEffect)
}
