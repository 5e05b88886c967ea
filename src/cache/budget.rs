//! The budget of the cache, `cache-max-bytes`: counts the bytes of all entries, and evicts entries until they fit. The queue of
//! entries is [`super::sieve`]. These functions borrow it only while no function of the server runs: to open a key may run
//! callbacks that borrow it, too.

use super::edit::{EntryEdit, EntryKey};
use super::native::{CACHE, CacheEntryType};
use super::sieve::{CountedSection, EntryPosition, Miniatures, Sieve, Victim, VictimSearch};
use super::state::{CacheEntry, EntryKind};
use super::{COUNTERS, MAX_BYTES};
use crate::error::Error;
use crate::memory::block_size;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::base::random;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::scan::KeyScan;
use crate::server::handles::string::ServerString;
use crate::server::services::after_command;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::native::{key_usage, value_usage};
use crate::server::services::slots::{contains, is_in_cluster, slot_of};
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

static ENTRIES: MainThread<Sieve> = MainThread::new();

/// Simulations that say how the hand of [`ENTRIES`] is to move.
static SIMULATION: MainThread<Simulation> = MainThread::new();

struct Simulation {
    miniatures: Miniatures,
    /// The seed of the hashes of names: clients cannot choose which keys are sampled.
    seed: u64,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            miniatures: Miniatures::default(),
            seed: random::secret(),
        }
    }
}

/// The other work of the budget.
static WORK: MainThread<BudgetWork> = MainThread::new();

#[derive(Default)]
struct BudgetWork {
    /// The entry that a command has stored last. It is evicted after all others.
    last_stored: Option<EntryPosition>,
    /// Entries that are larger than the budget, which came by `RESTORE`, `COPY` or a file.
    oversized: Vec<Victim>,
    /// The bytes that were stored since the last slice without making room.
    owed: u64,
    /// The bytes that the running command of a cluster has stored without making room.
    stored: u64,
    /// Whether a search of this round of the event loop found no entry to evict. It looked for a whole slice, or at all entries. Later
    /// commands of the round do not search.
    is_fruitless: bool,
    /// The count of all entries after a dataset was loaded.
    count: Option<EntryCount>,
}

/// A count of all entries, database by database.
#[derive(Default)]
struct EntryCount {
    db: i32,
    scan: Option<KeyScan>,
}

/// Whether the last search found no entry that may be evicted. The cron event lets it search again.
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// The most batches that one search checks. The caller reads the clock between two searches.
const SEARCH_STEPS: usize = 100;

/// How long a slice of evictions takes, in microseconds. The reply to a command waits for one or two slices.
const EVICTION_SLICE_US: u64 = 500;

/// The most of the newest batches that a search for an entry of one hash slot checks.
const NEWEST_BATCHES: usize = 16;

/// The most entries whose names are kept because they are larger than the budget.
const MAX_OVERSIZED: usize = 1000;

fn section(db: i32, key: &[u8]) -> CountedSection {
    (db, if is_in_cluster() { slot_of(key) } else { 0 })
}

/// The bytes of an entry with a name of this length, as `MEMORY USAGE` counts them.
fn entry_bytes(entry: &CacheEntry, key_length: usize) -> u64 {
    value_bytes(entry) + key_usage(key_length) as u64
}

/// The bytes of an entry without its key.
pub(super) fn value_bytes(entry: &CacheEntry) -> u64 {
    value_usage::<CacheEntryType>(entry) as u64
}

/// The bytes that an entry counts; 0 if it is not counted.
fn counted_bytes(entry: &CacheEntry, key: &[u8]) -> u64 {
    match entry.tag.position() {
        Some(position) if ENTRIES.get().is_counted(position) => entry_bytes(entry, key.len()),
        _ => 0,
    }
}

/// Counts an entry that was stored, changed or invalidated. `before`: what [`value_bytes`] returned before the change.
pub(super) fn entry_has_changed(db: i32, key: &[u8], entry: &CacheEntry, before: u64) {
    let mut entries = ENTRIES.get();
    let position = entry
        .tag
        .position()
        .filter(|position| entries.is_counted(*position));
    match (position, entry.kind() != EntryKind::Tombstone) {
        (None, false) => entry.tag.set_position(None),
        (None, true) => {
            let bytes = entry_bytes(entry, key.len());
            entry
                .tag
                .set_position(entries.add(section(db, key), key, bytes, false));
        }
        (Some(position), true) => {
            let after = value_bytes(entry);
            if after != before {
                entries.resize(position, section(db, key), before, after); // only the difference counts: the key has not changed
            }
            entries.mark_used(position);
        }
        (Some(position), false) => {
            let bytes = before + key_usage(key.len()) as u64;
            entries.remove(position, section(db, key), key, bytes);
            entry.tag.set_position(None);
        }
    }
}

/// A command has stored an entry.
pub(super) fn entry_is_stored(entry: &CacheEntry) {
    WORK.get().last_stored = entry.tag.position();
}

/// Counts an entry that is loaded with a dataset or by `RESTORE`.
pub(super) fn entry_is_loaded(db: i32, key: &[u8], entry: &CacheEntry) {
    count_arrival(db, key, entry, deferred::loads_for_replica());
}

/// Counts an entry that `RESTORE`, `COPY`, `RENAME` or `MOVE` has put at a key.
pub(super) fn entry_arrives(ctx: Ctx<'_>, key: &[u8], entry: &CacheEntry) {
    count_once(ctx.db(), key, entry);
    if ctx.may_act() && excess(0) > 0 {
        WORK.get().owed += counted_bytes(entry, key);
        deferred::ask_for_slices();
    }
}

/// Counts an entry unless it is counted already.
fn count_once(db: i32, key: &[u8], entry: &CacheEntry) {
    let is_counted = |position: EntryPosition| ENTRIES.get().is_counted(position);
    if !entry.tag.position().is_some_and(is_counted) {
        forget_position(entry); // `RESTORE` during a load has counted it as a part of the file
        count_arrival(db, key, entry, false);
    }
}

fn count_arrival(db: i32, key: &[u8], entry: &CacheEntry, is_incoming: bool) {
    if entry.kind() == EntryKind::Tombstone {
        return;
    }
    let bytes = entry_bytes(entry, key.len());
    let position = ENTRIES.get().add(section(db, key), key, bytes, is_incoming);
    entry.tag.set_position(position);
    if let Some(position) = position
        && budget().is_some_and(|max| bytes > max)
    {
        let oversized = &mut WORK.get().oversized;
        if oversized.len() < MAX_OVERSIZED {
            let key = key.into();
            oversized.push(Victim { db, key, position });
        }
    }
}

/// Takes an entry out of the sums that leaves its key.
pub(super) fn entry_leaves(db: i32, key: &[u8], entry: &CacheEntry) {
    if let Some(position) = entry.tag.take_position() {
        let bytes = entry_bytes(entry, key.len());
        ENTRIES.get().remove(position, section(db, key), key, bytes);
    }
}

/// An entry is freed. It is counted only if it was part of a file and never got its key, or if the server empties a database.
pub(super) fn entry_is_freed(entry: &CacheEntry) {
    if !deferred::is_flushing() {
        forget_position(entry);
    }
}

/// Takes an entry out of the sums whose key is not known.
fn forget_position(entry: &CacheEntry) {
    if let Some(position) = entry.tag.take_position() {
        let bytes = |key_length| entry_bytes(entry, key_length);
        ENTRIES.get().remove_unknown(position, bytes);
    }
}

/// Counts a read of a key. `entry`: the entry of the key; `None`: a miss, after which the client probably stores one.
#[inline]
pub(super) fn key_is_read(name: &ServerString<'_>, entry: Option<&CacheEntry>) {
    if let Some(position) = entry.and_then(|entry| entry.tag.position()) {
        ENTRIES.get().mark_used(position);
    }
    if let Some(max) = budget() {
        simulate_read(name, max);
    }
}

#[inline(never)] // most servers have no budget
fn simulate_read(name: &ServerString<'_>, max: u64) {
    let simulation = &mut *SIMULATION.get();
    let hash = xxh3_64_with_seed(name.bytes(), simulation.seed);
    if !Miniatures::may_sample(hash) {
        return;
    }
    let mut entries = ENTRIES.get();
    if let Some(average_bytes) = entries.bytes().checked_div(entries.entries()) {
        let capacity = max / average_bytes.max(1);
        entries.set_early_return(simulation.miniatures.read(hash, capacity));
    }
}

/// Whole databases were flushed, loaded or swapped, or hash slots were dropped.
pub(super) fn dataset_changed(event: &ServerEvent) {
    let entries = &mut *ENTRIES.get();
    match event {
        ServerEvent::Flushed(db) => entries.flush(*db),
        ServerEvent::Swapped(first, second) => {
            entries.swap(*first, *second);
            if let Some(count) = &mut WORK.get().count {
                *count = EntryCount::default(); // an entry may have moved to a database that was counted already
            }
        }
        ServerEvent::Replaced => entries.replace(),
        ServerEvent::Loaded if deferred::loads_for_replica() => entries.replace(),
        ServerEvent::Discarded => entries.discard(),
        ServerEvent::SlotsDropped(ranges) => entries.drop_slots(|slot| contains(ranges, slot)),
        _ => return,
    }
    deferred::ask_for_slices();
}

/// The budget in bytes; `None`: there is none.
fn budget() -> Option<u64> {
    u64::try_from(MAX_BYTES.get()).ok().filter(|max| *max > 0)
}

/// The bytes by which the entries exceed the budget, if `more` bytes are added.
fn excess(more: u64) -> u64 {
    budget().map_or(0, |max| (ENTRIES.get().bytes() + more).saturating_sub(max))
}

/// The bytes that a new entry counts.
fn bytes_of_new(key: &[u8], value: Option<&ServerString<'_>>) -> u64 {
    let length = value.map_or(0, |value| value.bytes().len());
    entry_bytes(&CacheEntry::tombstone(), key.len()) + block_size(length) as u64
}

/// Checks that a value fits into the budget at all. A replica refuses nothing.
pub(super) fn check_size(
    ctx: Ctx<'_>,
    key: &[u8],
    value: Option<&ServerString<'_>>,
) -> Result<(), Error> {
    match budget() {
        Some(max) if bytes_of_new(key, value) > max && !ctx.is_replica() => {
            Err(Error::ValueTooLarge)
        }
        _ => Ok(()),
    }
}

/// The bytes that an entry adds to the sum when it is stored, if entries must be evicted before.
pub(super) fn bytes_without_room(
    key: &[u8],
    value: Option<&ServerString<'_>>,
    old: Option<&CacheEntry>,
) -> Option<u64> {
    budget()?;
    let before = old.map_or(0, |entry| counted_bytes(entry, key));
    let more = bytes_of_new(key, value).saturating_sub(before);
    (excess(more) > 0).then_some(more)
}

/// Makes room for `more` bytes before a command stores an entry at this key. `keep`: the entry that it replaces. In a cluster, a
/// command must not open keys of other hash slots. There room is made right after the command; a transaction or a script that
/// stores more than that allows evicts what it has stored itself.
pub(super) fn make_room(ctx: Ctx<'_>, key: &[u8], keep: Option<EntryPosition>, more: u64) {
    deferred::ask_for_slices();
    if !ctx.may_act() {
        return;
    }
    let may_search = !ctx.is_cluster() || after_command::may_open_all_slots();
    if may_search && !WORK.get().is_fruitless {
        make_room_for(more, more, || evict_next(ctx, keep));
        return;
    }
    if !may_search {
        WORK.get().stored += more;
        after_command::run(ctx, make_room_after_command);
    }
    // In a transaction or a script, earlier commands have used up the allowance.
    if (may_search || WORK.get().stored > more) && excess(more) > tenth() {
        make_room_for(more, more, || {
            evict_newest(ctx, section(ctx.db(), key), keep)
        });
    }
}

fn make_room_after_command(ctx: Ctx<'_>) {
    let (stored, keep) = {
        let work = &mut *WORK.get();
        (std::mem::take(&mut work.stored), work.last_stored)
    };
    if WORK.get().is_fruitless {
        WORK.get().owed += stored;
    } else if ctx.may_act() {
        make_room_for(0, stored, || evict_next(ctx, keep));
    }
}

/// Evicts entries until `more` bytes fit into the budget. `stored`: the bytes of the command that needs the room. `evict_next`
/// returns false if there is nothing to evict.
fn make_room_for(more: u64, stored: u64, evict_next: impl Fn() -> bool) {
    let (slice, mut evicted) = (Slice::begin(), 0);
    let allowance = tenth().max(stored);
    let mut is_fruitful = true;
    while excess(more) > 0 {
        // An entry that takes the place of thousands may exceed the budget for a moment. Entries that exceed it for another
        // reason, such as a lower budget, are evicted in the rounds of the event loop, and a command evicts twice its own bytes.
        let is_bounded = excess(more) <= allowance || evicted >= 2 * stored;
        let is_enough = excess(more) > allowance && evicted >= 2 * stored;
        if is_enough || is_bounded && slice.is_over() {
            return;
        }
        if !is_fruitful && slice.is_over() {
            let work = &mut *WORK.get();
            work.is_fruitless = true;
            work.owed += more.max(stored); // later rounds of the event loop evict them
            return;
        }
        let before = ENTRIES.get().bytes();
        if !evict_next() {
            return;
        }
        let freed = before.saturating_sub(ENTRIES.get().bytes());
        is_fruitful = freed > 0; // see `evict_in_slice`
        evicted += freed;
    }
}

/// Evicts an entry of this section, one of those that were stored last. Returns false if there is none among the last.
fn evict_newest(ctx: Ctx<'_>, section: CountedSection, keep: Option<EntryPosition>) -> bool {
    let found = ENTRIES.get().newest_of(section, keep, NEWEST_BATCHES);
    found.is_some_and(|victim| evict(ctx, &victim, |_| true))
}

/// A tenth of the budget.
fn tenth() -> u64 {
    budget().map_or(u64::MAX, |max| max / 10)
}

/// Evicts entries, frees memory of entries that have gone and counts entries, in slices. Returns whether work is left.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &Slice) -> bool {
    let may_act = ctx.may_act();
    WORK.get().is_fruitless = false;
    if may_act {
        evict_in_slice(ctx);
    }
    keep_up(ctx, slice);
    may_act && has_evictions() || has_upkeep()
}

/// Whether entries are to be evicted.
fn has_evictions() -> bool {
    budget().is_some()
        && (excess(0) > 0 && !IS_STUCK.load(Ordering::Relaxed) || !WORK.get().oversized.is_empty())
}

/// Evicts entries until the slice is over. If commands have stored more meanwhile than a slice evicts, takes longer.
fn evict_in_slice(ctx: Ctx<'_>) {
    let slice = Slice::of_micros(EVICTION_SLICE_US);
    let owed = std::mem::take(&mut WORK.get().owed);
    let mut evicted = 0;
    let mut is_fruitful = true;
    while has_evictions() {
        if slice.is_over() && (excess(0) <= tenth() || evicted >= owed) {
            return;
        }
        if slice.is_over() && !is_fruitful {
            WORK.get().owed += owed - evicted;
            return;
        }
        let before = ENTRIES.get().bytes();
        evict_one(ctx);
        let freed = before.saturating_sub(ENTRIES.get().bytes());
        is_fruitful = freed > 0; // not, for example, if all entries are in hash slots that are still being imported
        evicted += freed;
    }
}

fn evict_one(ctx: Ctx<'_>) {
    let (oversized, keep) = {
        let work = &mut *WORK.get();
        (work.oversized.pop(), work.last_stored)
    };
    match oversized {
        Some(victim) => {
            let has_bytes = |bytes| budget().is_some_and(|max| bytes > max);
            if owned_sections(ctx)(section(victim.db, &victim.key)) {
                evict(ctx, &victim, has_bytes);
            }
        }
        None => {
            if !evict_next(ctx, keep) && keep.is_some() {
                WORK.get().last_stored = None;
                IS_STUCK.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Whether this node may delete keys of a section. The returned function asks nobody.
fn owned_sections(ctx: Ctx<'_>) -> impl Fn(CountedSection) -> bool + use<> {
    let is_owned = ctx.is_cluster().then(|| cluster::owned_slots(ctx));
    move |(_, slot)| is_owned.as_ref().is_none_or(|is_owned| is_owned(slot))
}

/// Evicts the next entry, or continues the search for it. Returns false if there is none that may be evicted.
fn evict_next(ctx: Ctx<'_>, keep: Option<EntryPosition>) -> bool {
    let mut steps = SEARCH_STEPS;
    let is_owned = owned_sections(ctx);
    let found = ENTRIES.get().search(keep, is_owned, &mut steps);
    match found {
        VictimSearch::Unfinished => true,
        VictimSearch::None => {
            IS_STUCK.store(true, Ordering::Relaxed);
            WORK.get().is_fruitless = true;
            false
        }
        VictimSearch::Found(victim) => {
            if !evict(ctx, &victim, |_| true) {
                // The entry has gone without an event.
                ENTRIES.get().remove_unknown(victim.position, |_| 0);
            }
            true
        }
    }
}

/// Evicts this entry, if it is still at its position and `wanted` accepts its bytes.
fn evict(ctx: Ctx<'_>, victim: &Victim, wanted: impl FnOnce(u64) -> bool) -> bool {
    let evict = || {
        let name = ServerString::new(&victim.key);
        // The server removes the key now if it has expired.
        let mut edit = EntryEdit::open(ctx, &name).ok()?;
        let entry = edit.entry()?;
        let is_same = entry.tag.position() == Some(victim.position);
        if is_same && wanted(entry_bytes(entry, victim.key.len())) {
            edit.evict(Now::read().ms());
            COUNTERS.evicted.count();
        }
        is_same.then_some(())
    };
    let is_same = ctx.in_db(victim.db, evict).flatten().is_some();
    is_same || !ENTRIES.get().is_counted(victim.position)
}

/// Whether memory of entries that have gone is to be freed, or entries are to be counted. Replicas do that, too.
fn has_upkeep() -> bool {
    let has_work = |entries: &Sieve| {
        entries.has_leftovers() || entries.may_misplace() || entries.wants_merges()
    };
    has_work(&ENTRIES.get()) || WORK.get().count.is_some()
}

/// Frees memory of entries that have gone, and counts entries, until the slice is over.
fn keep_up(ctx: Ctx<'_>, slice: &Slice) {
    if ENTRIES.get().may_misplace() && WORK.get().count.is_none() {
        recount_if_misplaced(ctx);
    }
    while !slice.is_over() && ENTRIES.get().collect(8) {}
    while !slice.is_over() && count_some(ctx) {}
    while !slice.is_over() && merge_some(ctx) {}
}

/// The most batches that a search for batches to merge checks before it reads the clock again.
const MERGE_STEPS: usize = 64;

/// Moves the entries of two batches with few names into one, so that the queue takes less memory. Returns whether work is left.
fn merge_some(ctx: Ctx<'_>) -> bool {
    if !ENTRIES.get().wants_merges() {
        return false;
    }
    let Some(mut merge) = ENTRIES.get().begin_merge(MERGE_STEPS) else {
        return true;
    };
    for index in 0.. {
        let Some(entry) = merge.entry(index).cloned() else {
            break;
        };
        let name = ServerString::new(&entry.key);
        ctx.in_db(entry.db, || {
            if let Ok(mut key) = TypedKey::of(ctx.peek(&name), &CACHE)
                && let Some(value) = key.value()
                && value.tag.position() == Some(entry.position)
                && let Some(position) = ENTRIES.get().relocate(&mut merge, index)
            {
                value.tag.set_position(Some(position));
                position_has_changed(entry.position, position);
            }
        });
    }
    ENTRIES.get().end_merge(merge);
    true
}

fn position_has_changed(before: EntryPosition, position: EntryPosition) {
    let work = &mut *WORK.get();
    if work.last_stored == Some(before) {
        work.last_stored = Some(position);
    }
    for victim in &mut work.oversized {
        if victim.position == before {
            victim.position = position;
        }
    }
}

/// Redis before 7.4 names database 0 for each key of a dataset that is loaded beside another one. If there are other databases, all
/// entries are counted anew.
fn recount_if_misplaced(ctx: Ctx<'_>) {
    let is_used = |db| ctx.in_db(db, || ctx.count_keys() > 0);
    let mut others = (1..).map_while(is_used);
    let is_any = others.any(|is_used| is_used);
    let entries = &mut *ENTRIES.get();
    if is_any {
        entries.begin_count();
        WORK.get().count = Some(EntryCount::default());
    } else {
        entries.confirm_database_0();
    }
}

/// Counts the entries among the next keys. Returns whether keys are left.
fn count_some(ctx: Ctx<'_>) -> bool {
    let Some(mut count) = WORK.get().count.take() else {
        return false;
    };
    let db = count.db;
    let is_left = ctx.in_db(db, || {
        let mut names = Vec::new();
        let is_left = count
            .scan
            .get_or_insert_with(KeyScan::new)
            .step(ctx, &mut names);
        for name in names {
            let name = ServerString::new(&name);
            if let Ok(mut key) = TypedKey::of(ctx.peek(&name), &CACHE)
                && let Some(entry) = key.value()
            {
                count_once(db, name.bytes(), entry);
            }
        }
        is_left
    });
    match is_left {
        Some(true) => {}
        Some(false) => {
            count.db += 1;
            count.scan = None;
        }
        None => {
            ENTRIES.get().end_count();
            return false;
        }
    }
    WORK.get().count = Some(count);
    true
}

/// Continues work that had to wait, and searches that found nothing.
pub(super) fn cron() {
    IS_STUCK.store(false, Ordering::Relaxed);
    if has_evictions() || has_upkeep() {
        deferred::ask_for_slices();
    }
}

/// The number and the bytes of all entries. `None`: they are in use.
pub(super) fn sums() -> Option<(u64, u64)> {
    let entries = ENTRIES.try_get()?;
    Some((entries.entries(), entries.bytes()))
}
