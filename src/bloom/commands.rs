//! The commands of Bloom filters: each reads its request, takes its step and answers.

use super::BLOOM;
use super::options::{EXPANSION, NOCREATE, NONSCALING, OPTIONS};
use super::shape::BloomShape;
use super::state::{Bloom, BloomFilter, BloomParameters};
use crate::error::Error;
use crate::filter::commands::{capacity, error_rate, loadchunk, read_filter};
use crate::filter::edit::{FilterEdit, MemoryLimits, build, put_layer};
use crate::filter::state::{FilterHeader, FilterKind};
use crate::filter::{BLOOM_CAPACITY, ERROR_RATE, EXPANSION as DEFAULT_EXPANSION};
use crate::options::OptionSet;
use crate::reply::{Answer, Reply};
use crate::request::is;
use crate::server::entry::Call;
use crate::server::handles::key::TypedReadKey;
use crate::server::handles::string::ServerString;
use std::collections::HashSet;
use std::ffi::CStr;

/// The properties of filters that `BF.ADD` creates.
fn default_parameters() -> BloomParameters {
    BloomParameters {
        error: ERROR_RATE.get(),
        capacity: BLOOM_CAPACITY.get() as u64,
        expansion: DEFAULT_EXPANSION.get() as u64,
    }
}

/// `BF.RESERVE key error capacity [EXPANSION n] [NONSCALING]`, `BF.RESERVE key LIKE other`
///
/// `error`: the false positive rate, greater than 0 and less than 1. `capacity`: the capacity of the first layer in items, 1 to
/// 2^30. `EXPANSION`: the ratio of the capacities of two successive layers, 0 to 32768, default `bloom-expansion`; 0 is
/// `NONSCALING`: the filter does not grow. `LIKE`: the properties and the seed of another filter, so that both can be merged.
/// Returns OK. Errors:
/// `WRONGTYPE`, `ERR item exists`, `ERR not found` (the other), `ERR filter would exceed
/// bloom-max-bytes`, `ERR not enough memory for the filter`, `OOM ...`, and those of bad arguments.
pub(super) fn reserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let is_compatible_with = cursor.clone().next().is_some_and(|word| is(word, "LIKE"));
    let parameters = if is_compatible_with {
        cursor.value()?;
        cursor.value()?;
        cursor.end()?;
        None
    } else {
        let error = error_rate(&mut cursor)?;
        let capacity = capacity(&mut cursor)?;
        let options = OPTIONS.read(&mut cursor, EXPANSION | NONSCALING)?;
        let expansion = options.reserved_expansion()?;
        let parameters = BloomParameters {
            error,
            capacity,
            expansion,
        };
        Some(parameters)
    };
    let name = call.name(0);
    let mut edit = FilterEdit::<Bloom>::open(call, &name)?;
    if edit.filter().is_some() {
        return Err(Error::ItemExists);
    }
    let header = match parameters {
        Some(parameters) => FilterHeader::new(edit.new_seed(), parameters)?,
        None => header_like(call)?,
    };
    edit.create(header)?;
    edit.close(c"bf.reserve");
    Ok(Reply::Ok)
}

/// The header of an empty filter that can be merged with the one at the third argument.
fn header_like(call: &Call<'_>) -> Result<FilterHeader<Bloom>, Error> {
    let name = call.name(2);
    let key = call.ctx.open_to_read(&name);
    let mut key = TypedReadKey::of_any(key, &BLOOM, Bloom::foreign_types())?;
    let other = key.value().ok_or(Error::NoBloom)?;
    let own = other.layers.first().filter(|_| other.foreign.is_none());
    let first = own.ok_or(Error::FiltersDiffer)?;
    Ok(FilterHeader {
        seed: other.seed,
        parameters: other.parameters.clone(),
        layers: vec![(first.shape, 0)],
        deleted: 0,
        foreign: None,
    })
}

/// `BF.ADD key item`
///
/// Replies with 1 (RESP3: true) if the item was added, 0 (false) if it was there already, probably.
/// Errors: `WRONGTYPE`, `ERR non scaling filter is full`, `ERR filter would exceed bloom-max-bytes`,
/// `ERR not enough memory for the filter`, `OOM ...`.
pub(super) fn add(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let item = cursor.value()?;
    let name = call.name(0);
    let mut edit = FilterEdit::<Bloom>::open(call, &name)?;
    create_missing(&mut edit, Some(default_parameters))?;
    let added = edit.add(item, true);
    edit.close(c"bf.add");
    added.map(Reply::Bool)
}

/// `BF.MADD key item [item ...]`
///
/// Replies with an array: for each item what `BF.ADD` would reply, or its error. Errors: those of
/// creating a filter, `WRONGTYPE`.
pub(super) fn madd(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    add_all(call, cursor.rest(), Some(default_parameters), c"bf.madd")
}

/// `BF.INSERT key [CAPACITY n] [ERROR e] [EXPANSION n] [NOCREATE] [NONSCALING] ITEMS item [item ...]`
///
/// The options are those of `BF.RESERVE`, for a filter that is created; `NOCREATE`: none is. `NONSCALING` prevails over `EXPANSION`.
/// Replies as `BF.MADD`. Errors: those of `BF.MADD`, `ERR not found` (`NOCREATE`), and those of bad options.
pub(super) fn insert(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, OptionSet::MAX)?;
    let parameters = options.parameters();
    let items = cursor.rest();
    if items.is_empty() {
        return Err(Error::Syntax);
    }
    let parameters = (!options.has(NOCREATE)).then_some(|| parameters);
    add_all(call, items, parameters, c"bf.insert")
}

fn add_all(
    call: &Call<'_>,
    items: &[&[u8]],
    parameters: Option<impl FnOnce() -> BloomParameters>,
    event: &'static CStr,
) -> Answer {
    let name = call.name(0);
    let mut edit = FilterEdit::<Bloom>::open(call, &name)?;
    create_missing(&mut edit, parameters)?;
    let mut replies = Vec::with_capacity(items.len());
    edit.add_all(items, true, |added| {
        replies.push(added.map_or_else(|error| Reply::Error(error.into()), Reply::Bool));
    })?;
    edit.close(event);
    Ok(Reply::Array(replies))
}

/// Creates the filter if there is none and there are parameters for it. Error: there is none.
#[inline]
fn create_missing(
    edit: &mut FilterEdit<'_, Bloom>,
    parameters: Option<impl FnOnce() -> BloomParameters>,
) -> Result<(), Error> {
    match (edit.filter(), parameters) {
        (Some(_), _) => Ok(()),
        (None, Some(parameters)) => create(edit, parameters()),
        (None, None) => Err(Error::NoBloom),
    }
}

#[cold]
fn create(edit: &mut FilterEdit<'_, Bloom>, parameters: BloomParameters) -> Result<(), Error> {
    edit.create(FilterHeader::new(edit.new_seed(), parameters)?)
}

/// `BF.CARD key`
///
/// Replies with the number of items that were added; 0 if there is no filter. Error: `WRONGTYPE`.
pub(super) fn card(call: &Call<'_>) -> Answer {
    let items = read_filter::<Bloom, _>(call, |filter| filter.items())?;
    Ok(Reply::int(items.unwrap_or(0)))
}

/// `BF.INFO key [CAPACITY | SIZE | FILTERS | ITEMS | EXPANSION]`
///
/// Replies with a map: the capacity of all layers, the bytes, the layers, the items, and the
/// expansion (nil if the filter does not scale); or with one of them. Errors: `WRONGTYPE`, `ERR not
/// found`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    const FIELDS: [&str; 5] = ["CAPACITY", "SIZE", "FILTERS", "ITEMS", "EXPANSION"];
    let mut cursor = call.cursor();
    cursor.value()?;
    let wanted = cursor.next();
    cursor.end()?;
    let index = |word| FIELDS.iter().position(|field| is(word, field));
    let wanted = wanted.map(|word| index(word).ok_or(Error::Syntax));
    let wanted = wanted.transpose()?;
    let mut fields =
        read_filter::<Bloom, _>(call, |filter| fields(filter))?.ok_or(Error::NoBloom)?;
    Ok(match wanted {
        None => Reply::Map(fields),
        Some(index) => {
            let (name, value) = fields.swap_remove(index);
            Reply::Field(name, value.into())
        }
    })
}

fn fields(filter: &BloomFilter) -> Vec<(&'static str, Reply)> {
    let expansion = filter.parameters.expansion;
    let size = filter.size() + size_of::<BloomFilter>() as u64;
    vec![
        ("Capacity", Reply::int(filter.capacity())),
        ("Size", Reply::int(size)),
        ("Number of filters", Reply::int(filter.layer_count() as u64)),
        ("Number of items inserted", Reply::int(filter.items())),
        (
            "Expansion rate",
            Reply::int_or_nil((expansion > 0).then_some(expansion)),
        ),
    ]
}

/// `BF.LOADCHUNK key iterator data`: see [`loadchunk`].
pub(super) fn load(call: &Call<'_>) -> Answer {
    loadchunk::<Bloom>(call, c"bf.loadchunk")
}

/// `BF.MERGE destination numkeys key [key ...]`
///
/// Adds all items of the filters to the destination, which is created like the first of them if
/// there is none. All have the same error rate, capacity, expansion and seed. The number of items is
/// the sum, so an item that is in two of them counts twice; where the sum exceeds the capacity, the
/// error rate exceeds the declared one. Replies OK. Errors: `WRONGTYPE`, `ERR not
/// found`, `ERR filters differ in shape`, and those of memory.
pub(super) fn merge(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let sources = cursor.counted()?;
    cursor.end()?;
    let (ctx, destination) = (call.ctx, call.name(0));
    let mut seen = HashSet::from([destination.bytes()]);
    let others = (0..sources.len()).filter(|index| seen.insert(sources[*index]));
    let names: Vec<ServerString<'_>> = others.map(|index| call.name(2 + index)).collect();
    let mut edit = FilterEdit::<Bloom>::open(call, &destination)?;
    if edit.filter().is_none() && sources.contains(&destination.bytes()) {
        return Err(Error::NoBloom);
    }
    let open = |name| TypedReadKey::of_any(ctx.open_to_read(name), &BLOOM, Bloom::foreign_types());
    let mut keys = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let found = keys.iter_mut().map(|key| key.value().ok_or(Error::NoBloom));
    let others: Vec<&BloomFilter> = found
        .map(|filter| filter.map(|filter| &*filter))
        .collect::<Result<_, _>>()?;
    match merge_from(edit.filter(), &others, MemoryLimits::of(ctx))? {
        MergeResult::Unchanged => {}
        MergeResult::Changed => edit.mark_changed(),
        MergeResult::New(filter) => edit.put(filter),
    }
    edit.close(c"bf.merge");
    Ok(Reply::Ok)
}

/// The result of a merge for its destination.
enum MergeResult {
    Unchanged,
    Changed,
    New(BloomFilter),
}

/// Merges filters into an existing one, or into a new one.
fn merge_from(
    own: Option<&mut BloomFilter>,
    others: &[&BloomFilter],
    limits: MemoryLimits,
) -> Result<MergeResult, Error> {
    let all = own.as_deref().into_iter().chain(others.iter().copied());
    let most = all.clone().max_by_key(|filter| filter.layers.len());
    let most = most.ok_or(Error::NoBloom)?;
    if !all
        .into_iter()
        .all(|filter| filter.is_compatible_with(most))
    {
        return Err(Error::FiltersDiffer);
    }
    let shapes: Vec<BloomShape> = most.layers.iter().map(|layer| layer.shape).collect();
    let Some(own) = own else {
        let mut new = build(
            FilterHeader {
                seed: most.seed,
                parameters: most.parameters.clone(),
                layers: shapes.into_iter().map(|shape| (shape, 0)).collect(),
                deleted: 0,
                foreign: None,
            },
            limits,
        )?;
        for other in others {
            new.merge_from(other);
        }
        return Ok(MergeResult::New(new));
    };
    let before = own.layers.len();
    for shape in &shapes[before..] {
        put_layer(own, *shape, limits).inspect_err(|_| own.layers.truncate(before))?;
    }
    let mut changed = own.layers.len() > before;
    for other in others {
        changed |= own.merge_from(other);
    }
    Ok(if changed {
        MergeResult::Changed
    } else {
        MergeResult::Unchanged
    })
}
