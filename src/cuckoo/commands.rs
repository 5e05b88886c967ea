//! The commands of cuckoo filters: each reads its request, takes its step and answers.

use super::state::{Cuckoo, Filter, MAX_BUCKET_SIZE, MAX_ITERATIONS, Terms};
use crate::error::Error;
use crate::filter::CUCKOO_CAPACITY;
use crate::filter::commands::{
    apply_effects, capacity, exists, expansion, loadchunk, mexists, read_filter, scandump,
};
use crate::filter::edit::Edit;
use crate::filter::state::Head;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, Word, option};
use crate::server::base::random::secret;
use crate::server::entry::{Call, apply, read, write};
use crate::server::handles::string::ServerString;
use crate::server::services::command::{Command, ONE_KEY, ONE_KEY_READ};
use std::ffi::CStr;

/// All commands of cuckoo filters.
pub const TABLE: &[Command] = &[
    Command {
        name: "CF.RESERVE",
        usage: "key capacity [BUCKETSIZE size] [MAXITERATIONS iterations] [EXPANSION expansion] [BITS bits]",
        summary: "Creates an empty cuckoo filter.",
        complexity: "O(1)",
        arity: -3,
        flags: "write deny-oom fast",
        categories: "write fast cuckoo",
        keys: ONE_KEY,
        run: write(reserve),
    },
    Command {
        name: "CF.ADD",
        usage: "key item",
        summary: "Adds an item to a cuckoo filter, which is created if there is none.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "write deny-oom fast",
        categories: "write fast cuckoo",
        keys: ONE_KEY,
        run: write(add),
    },
    Command {
        name: "CF.ADDNX",
        usage: "key item",
        summary: "Adds an item to a cuckoo filter if it is not there.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "write deny-oom fast",
        categories: "write fast cuckoo",
        keys: ONE_KEY,
        run: write(addnx),
    },
    Command {
        name: "CF.INSERT",
        usage: "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]",
        summary: "Adds items to a cuckoo filter, which is created if there is none.",
        complexity: "O(N L) with N items and L layers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow cuckoo",
        keys: ONE_KEY,
        run: write(insert),
    },
    Command {
        name: "CF.INSERTNX",
        usage: "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]",
        summary: "Adds those items to a cuckoo filter that are not there.",
        complexity: "O(N L) with N items and L layers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow cuckoo",
        keys: ONE_KEY,
        run: write(insertnx),
    },
    Command {
        name: "CF.EXISTS",
        usage: "key item",
        summary: "Tells whether an item is in a cuckoo filter: certainly not, or probably.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast cuckoo",
        keys: ONE_KEY_READ,
        run: read(exists::<Cuckoo>),
    },
    Command {
        name: "CF.MEXISTS",
        usage: "key item [item ...]",
        summary: "Tells which items are in a cuckoo filter: certainly not, or probably.",
        complexity: "O(N L) with N items and L layers",
        arity: -3,
        flags: "readonly",
        categories: "read slow cuckoo",
        keys: ONE_KEY_READ,
        run: read(mexists::<Cuckoo>),
    },
    Command {
        name: "CF.COUNT",
        usage: "key item",
        summary: "Tells how often an item was probably added to a cuckoo filter, at most.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast cuckoo",
        keys: ONE_KEY_READ,
        run: read(count),
    },
    Command {
        name: "CF.DEL",
        usage: "key item",
        summary: "Deletes an item from a cuckoo filter, once. Only items that were added may be deleted.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "write fast",
        categories: "write fast cuckoo",
        keys: ONE_KEY,
        run: write(del),
    },
    Command {
        name: "CF.COMPACT",
        usage: "key",
        summary: "Moves items of a cuckoo filter to its first layers, and frees the others.",
        complexity: "O(B) with B bytes of the filter",
        arity: 2,
        flags: "write",
        categories: "write slow cuckoo",
        keys: ONE_KEY,
        run: write(compact),
    },
    Command {
        name: "CF.INFO",
        usage: "key",
        summary: "Shows the properties of a cuckoo filter.",
        complexity: "O(L) with L layers",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast cuckoo",
        keys: ONE_KEY_READ,
        run: read(info),
    },
    Command {
        name: "CF.SCANDUMP",
        usage: "key iterator",
        summary: "Gives a cuckoo filter in chunks.",
        complexity: "O(B) with B bytes of the filter",
        arity: 3,
        flags: "readonly",
        categories: "read slow cuckoo",
        keys: ONE_KEY_READ,
        run: read(scandump::<Cuckoo>),
    },
    Command {
        name: "CF.LOADCHUNK",
        usage: "key iterator data",
        summary: "Restores a cuckoo filter from the chunks of CF.SCANDUMP.",
        complexity: "O(B) with B bytes of the chunk",
        arity: 4,
        flags: "write deny-oom",
        categories: "write slow cuckoo",
        keys: ONE_KEY,
        run: write(load),
    },
    Command {
        name: "CF.APPLY",
        usage: "key effects",
        summary: "Internal: what a master decided about a cuckoo filter, for replicas and the AOF.",
        complexity: "O(N) with N effects",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effects::<Cuckoo>),
    },
];

const CAPACITY: Word = 1;
const BUCKETSIZE: Word = 2;
const MAXITERATIONS: Word = 4;
const EXPANSION: Word = 8;
const BITS: Word = 16;
const NOCREATE: Word = 32;
const ITEMS: Word = 64;

const OPTIONS: &[(&str, Word)] = &[
    ("CAPACITY", CAPACITY),
    ("BUCKETSIZE", BUCKETSIZE),
    ("MAXITERATIONS", MAXITERATIONS),
    ("EXPANSION", EXPANSION),
    ("BITS", BITS),
    ("NOCREATE", NOCREATE),
    ("ITEMS", ITEMS),
];

/// The options that a command was given, or their defaults.
struct Options {
    given: Word,
    capacity: u64,
    bucket_size: u64,
    max_iterations: u64,
    expansion: u64,
    width: u64,
}

impl Options {
    fn new(capacity: u64) -> Self {
        Self {
            given: 0,
            capacity,
            bucket_size: 4,
            max_iterations: 20,
            expansion: 1,
            width: 2,
        }
    }

    /// Those of a filter that an `ADD` makes.
    fn default() -> Self {
        Self::new(CUCKOO_CAPACITY.get() as u64)
    }

    /// Reads options up to `ITEMS` or the end; others than the allowed ones, and repeated ones, are
    /// syntax errors.
    fn read(mut self, cursor: &mut Cursor<'_>, allowed: Word) -> Result<Self, Error> {
        while self.given & ITEMS == 0
            && let Some(word) = cursor.next()
        {
            let option = option(word, OPTIONS) & allowed & !self.given;
            self.given |= option;
            match option {
                CAPACITY => self.capacity = capacity(cursor)?,
                BUCKETSIZE => self.bucket_size = cursor.uint("BUCKETSIZE", 1..=MAX_BUCKET_SIZE)?,
                MAXITERATIONS => {
                    self.max_iterations = cursor.uint("MAXITERATIONS", 1..=MAX_ITERATIONS)?;
                }
                EXPANSION => self.expansion = expansion(cursor)?,
                BITS => self.width = width(cursor)?,
                NOCREATE | ITEMS => {}
                _ => return Err(Error::Syntax),
            }
        }
        Ok(self)
    }

    fn has(&self, option: Word) -> bool {
        self.given & option != 0
    }

    fn terms(&self) -> Terms {
        Terms::new(
            self.capacity,
            self.bucket_size,
            self.width,
            self.max_iterations,
            self.expansion,
        )
    }
}

/// The bytes of a fingerprint, which is given in bits: 8, 16 or 32.
fn width(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    match cursor.int("BITS", i64::MIN..=i64::MAX)? {
        8 => Ok(1),
        16 => Ok(2),
        32 => Ok(4),
        _ => Err(Error::BadBits),
    }
}

/// `CF.RESERVE key capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n] [BITS 8 | 16 | 32]`
///
/// `capacity`: how many different items the filter holds at least, 1 to 2^30. `BUCKETSIZE`: the slots
/// of a bucket, 1 to 255, default 4. `MAXITERATIONS`: how many items are moved to make room for one
/// beyond the capacity, 1 to 65535, default 20. `EXPANSION`: how many times as large each further
/// layer is, 0 (none comes) to 32768, default 1; rounded up to a power of two. `BITS`: the width of
/// fingerprints, default 16. Replies OK. Errors: `WRONGTYPE`, `ERR item exists`, `ERR filter would
/// exceed bloom-max-bytes`, `ERR not enough memory for the filter`, `OOM ...`, and those of bad
/// arguments.
fn reserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = Options::new(capacity(&mut cursor)?);
    let allowed = BUCKETSIZE | MAXITERATIONS | EXPANSION | BITS;
    let options = options.read(&mut cursor, allowed)?;
    let name = call.name(0);
    let mut edit = Edit::<Cuckoo>::open(call, &name)?;
    if edit.filter().is_some() {
        return Err(Error::ItemExists);
    }
    edit.create(Head::new(secret(), options.terms())?)?;
    edit.close(c"cf.reserve");
    Ok(Reply::Ok)
}

/// `CF.ADD key item`
///
/// Adds the item, also if it is there already: it can be added 2 `BUCKETSIZE` times to each layer.
/// Replies with 1 (RESP3: true). Errors: `WRONGTYPE`, `ERR Filter is full`, `ERR Maximum expansions
/// reached`, `ERR filter would exceed bloom-max-bytes`, `ERR not enough memory for the filter`,
/// `OOM ...`.
fn add(call: &Call<'_>) -> Answer {
    add_one(call, false, c"cf.add")
}

/// `CF.ADDNX key item`
///
/// Replies with 1 (RESP3: true) if the item was added, 0 (false) if it was there already, probably.
/// Errors: those of `CF.ADD`.
fn addnx(call: &Call<'_>) -> Answer {
    add_one(call, true, c"cf.addnx")
}

fn add_one(call: &Call<'_>, unique: bool, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let item = cursor.value()?;
    let name = call.name(0);
    let mut edit = open(call, &name, Some(Options::default))?;
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
fn insert(call: &Call<'_>) -> Answer {
    insert_all(call, false, c"cf.insert")
}

/// `CF.INSERTNX key [CAPACITY n] [NOCREATE] ITEMS item [item ...]`
///
/// As `CF.INSERT`, but replies with integers: 1 if the item was added, 0 if it was there already,
/// probably, -1 if there was no place for it.
fn insertnx(call: &Call<'_>) -> Answer {
    insert_all(call, true, c"cf.insertnx")
}

fn insert_all(call: &Call<'_>, unique: bool, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = Options::default().read(&mut cursor, CAPACITY | NOCREATE | ITEMS)?;
    let items = cursor.rest();
    if items.is_empty() {
        return Err(Error::Syntax);
    }
    let name = call.name(0);
    let is_resp3 = call.ctx.is_resp3();
    let can_create = !options.has(NOCREATE);
    let mut edit = open(call, &name, can_create.then_some(|| options))?;
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

/// Opens the filter at a key, which is created if there are options for it.
fn open<'k>(
    call: &'k Call<'_>,
    name: &'k ServerString<'k>,
    options: Option<impl FnOnce() -> Options>,
) -> Result<Edit<'k, Cuckoo>, Error> {
    let mut edit = Edit::open(call, name)?;
    if edit.filter().is_none() {
        let options = options.ok_or(Error::NoCuckoo)?;
        edit.create(Head::new(secret(), options().terms())?)?;
    }
    Ok(edit)
}

/// `CF.COUNT key item`
///
/// Replies with how often the item was added and not deleted, or more; 0 if there is no filter.
/// Error: `WRONGTYPE`.
fn count(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let item = cursor.value()?;
    let count = read_filter::<Cuckoo, _>(call, |filter| filter.count(filter.hash(item)))?;
    Ok(Reply::int(count.unwrap_or(0)))
}

/// `CF.DEL key item`
///
/// Deletes the item once. **Only items that were added may be deleted**: of one that was not, another
/// may be deleted that looks like it, and is then denied. Replies with 1 (RESP3: true) if it was
/// there, 0 (false) if not. Errors: `WRONGTYPE`, `ERR Not found`.
fn del(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let item = cursor.value()?;
    let deleted = change(call, c"cf.del", |filter| filter.delete(filter.hash(item)))?;
    Ok(Reply::Bool(deleted))
}

/// `CF.COMPACT key`
///
/// Moves items from later layers to earlier ones, as far as there is room for them, and frees layers
/// that are empty then. Replies OK. Errors: `WRONGTYPE`, `ERR Not found`.
fn compact(call: &Call<'_>) -> Answer {
    change(call, c"cf.compact", Filter::compact)?;
    Ok(Reply::Ok)
}

/// Changes the filter at the first key; everybody is told if it has changed.
fn change(
    call: &Call<'_>,
    event: &'static CStr,
    work: impl FnOnce(&mut Filter) -> bool,
) -> Result<bool, Error> {
    let name = call.name(0);
    let mut edit = Edit::<Cuckoo>::open(call, &name)?;
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
fn info(call: &Call<'_>) -> Answer {
    let fields = read_filter::<Cuckoo, _>(call, |filter| {
        let terms = &filter.terms;
        let size = filter.size() + size_of::<Filter>() as u64;
        vec![
            ("Size", Reply::int(size)),
            ("Number of buckets", Reply::int(terms.base)),
            ("Number of filters", Reply::int(filter.layers.len() as u64)),
            ("Number of items inserted", Reply::int(filter.items())),
            ("Number of items deleted", Reply::int(filter.deleted)),
            ("Bucket size", Reply::int(terms.bucket_size)),
            ("Expansion rate", Reply::int(terms.expansion)),
            ("Max iterations", Reply::int(terms.max_iterations)),
        ]
    })?;
    fields.map(Reply::Map).ok_or(Error::NoCuckoo)
}

/// `CF.LOADCHUNK key iterator data`: see [`loadchunk`].
fn load(call: &Call<'_>) -> Answer {
    loadchunk::<Cuckoo>(call, c"cf.loadchunk")
}
