//! The commands of cuckoo filters: each reads its request, takes its step and answers.

use super::options::{
    BITS, BUCKETSIZE, CAPACITY, CuckooOptions, EXPANSION, ITEMS, MAXITERATIONS, NOCREATE, OPTIONS,
};
use super::state::{Cuckoo, CuckooFilter};
use crate::error::Error;
use crate::filter::commands::{capacity, loadchunk, read_filter};
use crate::filter::edit::FilterEdit;
use crate::filter::foreign::ForeignShape;
use crate::filter::state::{FilterHeader, MAX_ITEMS};
use crate::options::Options;
use crate::reply::{Answer, Reply};
use crate::server::entry::Call;
use std::ffi::CStr;

/// `CF.RESERVE key capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n] [BITS 8 | 16 | 32]`
///
/// `capacity`: how many different items the filter holds at least, 1 to 2^30. `BUCKETSIZE`: the slots
/// of a bucket, 1 to 255, default 4. `MAXITERATIONS`: how many items are moved to make room for one
/// beyond the capacity, 1 to 65535, default 20. `EXPANSION`: how many times as large each further
/// layer is, 0 (none comes) to 32768, default 1; rounded up to a power of two. `BITS`: the width of
/// fingerprints, default 16. Replies OK. Errors: `WRONGTYPE`, `ERR item exists`, `ERR filter would
/// exceed bloom-max-bytes`, `ERR not enough memory for the filter`, `OOM ...`, and those of bad
/// arguments.
pub(super) fn reserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let capacity = capacity(&mut cursor)?;
    let allowed = BUCKETSIZE | MAXITERATIONS | EXPANSION | BITS;
    let options = OPTIONS.read(&mut cursor, allowed)?;
    let name = call.name(0);
    let mut edit = FilterEdit::<Cuckoo>::open(call, &name)?;
    if edit.filter().is_some() {
        return Err(Error::ItemExists);
    }
    edit.create(FilterHeader::new(
        edit.new_seed(),
        options.parameters_for(capacity),
    )?)?;
    edit.close(c"cf.reserve");
    Ok(Reply::Ok)
}

/// `CF.ADD key item`
///
/// Adds the item, also if it is there already: it can be added 2 `BUCKETSIZE` times to each layer.
/// Replies with 1 (RESP3: true). Errors: `WRONGTYPE`, `ERR Filter is full`, `ERR Maximum expansions
/// reached`, `ERR filter would exceed bloom-max-bytes`, `ERR not enough memory for the filter`,
/// `OOM ...`.
pub(super) fn add(call: &Call<'_>) -> Answer {
    add_one(call, false, c"cf.add")
}

/// `CF.ADDNX key item`
///
/// Replies with 1 (RESP3: true) if the item was added, 0 (false) if it was there already, probably.
/// Errors: those of `CF.ADD`.
pub(super) fn addnx(call: &Call<'_>) -> Answer {
    add_one(call, true, c"cf.addnx")
}

fn add_one(call: &Call<'_>, unique: bool, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    let item = cursor.value()?;
    let name = call.name(0);
    let mut edit = FilterEdit::<Cuckoo>::open(call, &name)?;
    create_missing(&mut edit, Some(&Options::NONE))?;
    let added = edit.add(item, unique);
    edit.close(event);
    added.map(Reply::Bool)
}

/// `CF.INSERT key [CAPACITY n] [NOCREATE] ITEMS item [item ...]`
///
/// `CAPACITY`: that of a filter that is created, 1 to 2^30, default `cuckoo-capacity`. `NOCREATE`:
/// none is. Replies with an array: for each item 1 (RESP3: true) if it was added, -1 (false) if there
/// was no place for it. Errors: `WRONGTYPE`, `ERR Not found` (`NOCREATE`), those of creating a filter
/// and of bad options.
pub(super) fn insert(call: &Call<'_>) -> Answer {
    insert_all(call, false, c"cf.insert")
}

/// `CF.INSERTNX key [CAPACITY n] [NOCREATE] ITEMS item [item ...]`
///
/// As `CF.INSERT`, but replies with integers: 1 if the item was added, 0 if it was there already,
/// probably, -1 if there was no place for it.
pub(super) fn insertnx(call: &Call<'_>) -> Answer {
    insert_all(call, true, c"cf.insertnx")
}

fn insert_all(call: &Call<'_>, unique: bool, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, CAPACITY | NOCREATE | ITEMS)?;
    let items = cursor.rest();
    if items.is_empty() {
        return Err(Error::Syntax);
    }
    let name = call.name(0);
    let is_resp3 = call.ctx.is_resp3();
    let can_create = !options.has(NOCREATE);
    let mut edit = FilterEdit::<Cuckoo>::open(call, &name)?;
    create_missing(&mut edit, can_create.then_some(&options))?;
    let mut replies = Vec::with_capacity(items.len());
    edit.add_all(items, unique, |added| {
        replies.push(match added {
            Ok(added) if unique => Reply::Int(added.into()),
            Ok(added) => Reply::Bool(added),
            Err(_) if is_resp3 && !unique => Reply::Bool(false),
            Err(_) => Reply::Int(-1),
        });
    })?;
    edit.close(event);
    Ok(Reply::Array(replies))
}

/// Creates the filter if there is none and there are options for it. Error: there is none.
#[inline]
fn create_missing(
    edit: &mut FilterEdit<'_, Cuckoo>,
    options: Option<&CuckooOptions<'_>>,
) -> Result<(), Error> {
    match (edit.filter(), options) {
        (Some(_), _) => Ok(()),
        (None, Some(options)) => create(edit, options),
        (None, None) => Err(Error::NoCuckoo),
    }
}

#[cold]
fn create(edit: &mut FilterEdit<'_, Cuckoo>, options: &CuckooOptions<'_>) -> Result<(), Error> {
    edit.create(FilterHeader::new(edit.new_seed(), options.parameters())?)
}

/// `CF.COUNT key item`
///
/// Replies with how often the item was added and not deleted, or more; 0 if there is no filter.
/// Error: `WRONGTYPE`.
pub(super) fn count(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let item = cursor.value()?;
    let count = read_filter::<Cuckoo, _>(call, |filter| {
        let foreign = filter.foreign.as_ref();
        filter.count(filter.hash(item)) + foreign.map_or(0, |foreign| foreign.count(item))
    })?;
    Ok(Reply::int(count.unwrap_or(0)))
}

/// `CF.DEL key item`
///
/// Deletes the item once. **Only items that were added may be deleted**: of one that was not, another
/// may be deleted that looks like it, and is then denied. Replies with 1 (RESP3: true) if it was
/// there, 0 (false) if not. Errors: `WRONGTYPE`, `ERR Not found`.
pub(super) fn del(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let item = cursor.value()?;
    let name = call.name(0);
    let mut edit = FilterEdit::<Cuckoo>::open(call, &name)?;
    let filter = edit.filter().ok_or(Error::NoCuckoo)?;
    let deleted = if filter.delete(filter.hash(item)) {
        edit.mark_changed();
        true
    } else {
        edit.delete_foreign(item)
    };
    edit.close(c"cf.del");
    Ok(Reply::Bool(deleted))
}

/// `CF.COMPACT key`
///
/// Moves items from later layers to earlier ones, as far as there is room for them, and frees layers
/// that are empty then. Replies OK. Errors: `WRONGTYPE`, `ERR Not found`.
pub(super) fn compact(call: &Call<'_>) -> Answer {
    change(call, c"cf.compact", CuckooFilter::compact)?;
    Ok(Reply::Ok)
}

/// Changes the filter at the first key; everybody is told if it has changed.
fn change(
    call: &Call<'_>,
    event: &'static CStr,
    work: impl FnOnce(&mut CuckooFilter) -> bool,
) -> Result<bool, Error> {
    let name = call.name(0);
    let mut edit = FilterEdit::<Cuckoo>::open(call, &name)?;
    let changed = work(edit.filter().ok_or(Error::NoCuckoo)?);
    if changed {
        edit.mark_changed();
    }
    edit.close(event);
    Ok(changed)
}

/// `CF.INFO key`
///
/// Replies with a map: the bytes, the buckets of the first layer, the layers, the items, how many were
/// deleted, the bucket size, the expansion (0: no further layer) and the iterations. Errors:
/// `WRONGTYPE`, `ERR Not found`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    let fields = read_filter::<Cuckoo, _>(call, |filter| {
        let parameters = &filter.parameters;
        let foreign = filter.foreign.as_ref().map(|foreign| &foreign.shape);
        let (buckets, deleted) = match foreign {
            Some(ForeignShape::Tables(tables)) => (tables.buckets, tables.deleted),
            _ => (parameters.base, 0),
        };
        let size = filter.size() + size_of::<CuckooFilter>() as u64;
        vec![
            ("Size", Reply::int(size)),
            ("Number of buckets", Reply::int(buckets)),
            ("Number of filters", Reply::int(filter.layer_count() as u64)),
            ("Number of items inserted", Reply::int(filter.items())),
            (
                "Number of items deleted",
                Reply::int((filter.deleted + deleted).min(MAX_ITEMS)),
            ),
            ("Bucket size", Reply::int(parameters.bucket_size)),
            ("Expansion rate", Reply::int(parameters.expansion)),
            ("Max iterations", Reply::int(parameters.max_iterations)),
        ]
    })?;
    fields.map(Reply::Map).ok_or(Error::NoCuckoo)
}

/// `CF.LOADCHUNK key iterator data`: see [`loadchunk`].
pub(super) fn load(call: &Call<'_>) -> Answer {
    loadchunk::<Cuckoo>(call, c"cf.loadchunk")
}
