//! The native type: how entries are saved, copied and measured.

use super::persist;
use super::revoke::changed;
use super::state::{Entry, Grace, Kind};
use crate::memory::block_size;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::KeyChange;
use crate::server::services::native::{Native, NativeType, Relocate, register};
use std::ffi::c_int;

/// Entries in the keyspace.
pub static CACHE: NativeType<Entry> = NativeType::new("sluice-ca");

/// What registers it.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Entries>];

/// An entry is fresh no longer than its key lives, also if something else gave that another expiry. Replicas and AOFs
/// are told of the expiry, so it is the same there.
pub(super) fn touched(ctx: Ctx<'_>, name: &ServerString<'_>, _touch: KeyChange) {
    if CACHE.live() == 0 {
        return;
    }
    if let Ok(mut slot) = TypedKey::of(ctx.peek(name), &CACHE)
        && let Some(expires) = slot.expires()
        && let Some(entry) = slot.value()
    {
        entry.fresh_until = entry.fresh_until.min(expires);
    }
}

struct Entries;

impl Native for Entries {
    type Value = Entry;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Entry> {
        &CACHE
    }

    fn save(entry: &Entry, out: &mut RdbWriter<'_>) {
        let mut head = Vec::new();
        persist::put_head(&mut head, entry);
        out.bytes(&head);
        if let Some(value) = entry.value() {
            out.bytes(value);
        }
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Entry> {
        let mut entry = input.bytes(persist::read_head)?.ok()?;
        if entry.kind == Kind::Value {
            entry.bytes = input.bytes(|value| value.into())?;
        }
        Some(entry)
    }

    fn rewrite(entry: &Entry, out: &mut AofWriter<'_>) {
        let mut effect = Vec::new();
        persist::put_effect(&mut effect, entry, false, 0); // the server writes the expiry
        match entry.value() {
            Some(value) => out.command_with(c"CACHE.APPLY", &effect, value),
            None => out.command(c"CACHE.APPLY", &effect),
        }
    }

    fn digest(entry: &Entry, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_head(&mut element, entry);
        element.extend(&entry.bytes);
        digest.element(&element);
    }

    fn memory(entry: &Entry) -> usize {
        let grace = entry
            .grace
            .as_ref()
            .map_or(0, |_| block_size(size_of::<Grace>()));
        block_size(entry.bytes.len()) + grace
    }

    fn free_effort(_entry: &Entry) -> usize {
        1
    }

    fn copy(entry: &Entry) -> Option<Entry> {
        Some(entry.clone())
    }

    fn unlinked(_entry: &Entry, db: i32, key: &[u8]) {
        changed(db, key);
    }

    fn defrag(entry: &mut Entry, relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        relocate.bytes(&mut entry.bytes);
        None
    }
}
