//! Entries that an invalidation keeps longer than they may be served, because its `GRACE` is longer than its `STALE`. They are
//! listed by the end of the stale time. Then the master makes them tombstones.

use super::edit::{EntryEdit, EntryKey};
use super::state::{CacheEntry, EntryKind};
use crate::deadlines::{Listed, Listing};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::timer;

static ENDS: Listing = Listing::new();

/// When the entry may be served no longer although its key stays (Unix ms); `u64::MAX`: at no time. `outlives`: whether the key
/// stays after this time.
fn end(entry: &CacheEntry, outlives: impl FnOnce(u64) -> bool) -> u64 {
    match &entry.grace {
        Some(grace) if entry.kind() != EntryKind::Tombstone && outlives(grace.stale_until) => {
            grace.stale_until
        }
        _ => u64::MAX,
    }
}

/// Where the entry is listed. To be asked before a change of the entry.
pub(super) fn listed(entry: &CacheEntry) -> Listed {
    entry
        .grace
        .as_ref()
        .map_or(Listed::default(), |grace| grace.listed)
}

/// Lists an entry that was stored, changed or invalidated, until its key expires. `before`: what [`listed`] returned before.
pub(super) fn entry_has_changed(ctx: Ctx<'_>, key: &[u8], entry: &mut CacheEntry, before: Listed) {
    let until = entry.grace.as_ref().map_or(0, |grace| grace.until);
    let at = end(entry, |end| until > end);
    match &mut entry.grace {
        Some(grace) => {
            grace.listed = before;
            list(ctx, key, &mut grace.listed, at);
        }
        None => ENDS.unlinked(&before),
    }
}

/// Lists an entry that has come to a key, or whose key has another expiry (Unix ms).
pub(super) fn key_has_changed(
    ctx: Ctx<'_>,
    key: &[u8],
    entry: &mut CacheEntry,
    expires: Option<u64>,
) {
    let at = end(entry, |end| expires.is_none_or(|expires| expires > end));
    if let Some(grace) = &mut entry.grace {
        list(ctx, key, &mut grace.listed, at);
    }
}

fn list(ctx: Ctx<'_>, key: &[u8], listed: &mut Listed, at: u64) {
    if listed.number == 0 && at == u64::MAX {
        return;
    }
    ENDS.list(listed, ctx.db(), key, at);
    if at < u64::MAX {
        timer::arm(ctx, at);
    }
}

/// Lists an entry that is loaded with a dataset or by `RESTORE`. The expiry of its key is not set yet.
pub(super) fn entry_is_loaded(db: i32, key: &[u8], entry: &mut CacheEntry) {
    let at = end(entry, |_| true);
    if let Some(grace) = &mut entry.grace {
        ENDS.list_loaded(&mut grace.listed, db, key, at);
    }
}

/// An entry leaves its key.
pub(super) fn entry_leaves(entry: &CacheEntry) {
    ENDS.unlinked(&listed(entry));
}

/// Whole databases were flushed, loaded or swapped, or hash slots were dropped.
pub(super) fn dataset_changed(event: &ServerEvent) {
    ENDS.moved(event);
}

/// Lists the entries of hash slots that this node owns by now.
pub(super) fn unpark(ctx: Ctx<'_>) {
    ENDS.unpark(ctx);
}

/// Asks for slices if work is left. To be called about ten times a second.
pub(super) fn cron(ctx: Ctx<'_>) {
    ENDS.cron(ctx);
}

/// Does the work that events left, until the slice is over. Returns whether more work is possible.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &Slice) -> bool {
    ENDS.go_on(ctx, slice)
}

/// Makes entries tombstones whose stale time is over. Returns when the next one is due (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    if ENDS.get().is_empty() || !ctx.may_act() {
        return None; // the cron event asks again
    }
    let slice = Slice::begin();
    loop {
        let (at, number) = ENDS.get().first()?;
        if at > now.ms() {
            return Some(at);
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        ENDS.visit(ctx, number, |name| process(ctx, name, number, now.ms()));
    }
}

/// If this key of the selected database holds the entry that is listed under this number, ends its stale time or lists it again.
/// Returns whether the key holds it.
fn process(ctx: Ctx<'_>, name: &ServerString<'_>, number: u64, now: u64) -> bool {
    let Ok(mut edit) = EntryEdit::open(ctx, name) else {
        return false;
    };
    let expires = edit.key.expires();
    let Some(entry) = edit.entry().filter(|entry| listed(entry).number == number) else {
        return false;
    };
    if end(entry, |_| true) <= now {
        edit.end_stale_time(now);
    } else {
        key_has_changed(ctx, name.bytes(), entry, expires);
    }
    true
}
