//! The native type: saves, copies and measures entries.

use super::budget;
use super::persist;
use super::revoke::key_has_changed;
use super::stale_ends;
use super::state::{CacheEntry, EntryGrace, EntryKind};
use crate::memory::block_size;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::KeyChange;
use crate::server::services::native::{Native, NativeType, Relocate, register};
use std::ffi::c_int;

/// Cached entries in the keyspace.
pub static CACHE: NativeType<CacheEntry> = NativeType::new("sluice-ca");

/// The functions that register the type.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<CacheEntryType>];

/// Ends the fresh time of an entry with its key, if somebody has set the key's expiry to an earlier time. Replicas and AOFs
/// receive the expiry and do the same.
pub(super) fn key_changed(ctx: Ctx<'_>, name: &ServerString<'_>, change: KeyChange) {
    if CACHE.live() == 0 {
        return;
    }
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &CACHE) {
        let expires = key.expires();
        let Some(entry) = key.value() else {
            return;
        };
        entry.fresh_until = expires.map_or(entry.fresh_until, |at| entry.fresh_until.min(at));
        stale_ends::key_has_changed(ctx, name.bytes(), entry, expires);
        if change == KeyChange::Arrival {
            budget::entry_arrives(ctx, name.bytes(), entry);
        }
    }
}

/// The callbacks of the type.
pub(super) struct CacheEntryType;

impl Native for CacheEntryType {
    type Value = CacheEntry;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<CacheEntry> {
        &CACHE
    }

    fn save(entry: &CacheEntry, out: &mut RdbWriter<'_>) {
        let mut head = Vec::new();
        persist::put_head(&mut head, entry);
        out.bytes(&head);
        if let Some(value) = entry.value() {
            out.bytes(value);
        }
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<CacheEntry> {
        let mut entry = input.bytes(persist::read_head)?.ok()?;
        if entry.kind() == EntryKind::Value {
            entry.bytes = input.bytes(|value| value.into())?;
        }
        if let Some((db, key)) = input.key() {
            budget::entry_is_loaded(db, key, &entry);
            stale_ends::entry_is_loaded(db, key, &mut entry);
        }
        Some(entry)
    }

    fn rewrite(entry: &CacheEntry, out: &mut AofWriter<'_>) {
        let mut effect = Vec::new();
        persist::put_effect(&mut effect, entry, false, 0); // the server writes the expiry
        match entry.value() {
            Some(value) => out.command_with(c"CACHE.APPLY", &effect, value),
            None => out.command(c"CACHE.APPLY", &effect),
        }
    }

    fn digest(entry: &CacheEntry, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_head(&mut element, entry);
        element.extend(&entry.bytes);
        digest.element(&element);
    }

    fn memory(entry: &CacheEntry) -> usize {
        let grace = entry
            .grace
            .as_ref()
            .map_or(0, |_| block_size(size_of::<EntryGrace>()));
        block_size(entry.bytes.len()) + grace
    }

    fn free_effort(_entry: &CacheEntry) -> usize {
        1
    }

    fn copy(entry: &CacheEntry) -> Option<CacheEntry> {
        Some(entry.clone())
    }

    fn unlinked(entry: &CacheEntry, db: i32, key: &[u8]) {
        budget::entry_leaves(db, key, entry);
        stale_ends::entry_leaves(entry);
        key_has_changed(db, key);
    }

    const FOLLOWS_FREES: bool = true;

    fn freed(entry: &CacheEntry) {
        budget::entry_is_freed(entry);
    }

    fn defrag(entry: &mut CacheEntry, relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        relocate.bytes(&mut entry.bytes);
        None
    }
}
