//! The native type: how limits are saved, copied and measured, and that no key outlives its limit.

use super::gcra::Bucket;
use super::persist;
use super::state::Limit;
use crate::memory::block_size;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::deferred::{KeyChange, ServerEvent, defer};
use crate::server::services::native::{Native, NativeType, Relocate, register};
use std::ffi::c_int;

/// Limits in the keyspace.
pub static RATE: NativeType<Limit> = NativeType::new("sluice-ra");

/// What registers it.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Limits>];

/// Notes that a limit came to a key that stays for longer than it matters, or that its key was made to.
pub(super) fn touched(ctx: Ctx<'_>, name: &ServerString<'_>, _touch: KeyChange) {
    if RATE.live() == 0 || ctx.is_replica() {
        return;
    }
    if let Ok(mut slot) = TypedKey::of(ctx.peek(name), &RATE)
        && end_before_expiry(&mut slot).is_some()
    {
        defer(ServerEvent::Touched(ctx.db(), name.bytes().into()));
    }
}

/// Lets such a key expire with its limit.
pub(super) fn happened(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    let ServerEvent::Touched(db, key) = event else {
        return;
    };
    cluster::act_on(ctx, &(*db, (**key).into()), |name| {
        if let Ok(mut slot) = TypedKey::of(ctx.peek(name), &RATE)
            && let Some(end) = end_before_expiry(&mut slot)
        {
            let commit = Commit {
                key: KeyFate::ExpireAt(end),
                replicate: Replicate::ExpireAt(end),
                is_modified: true,
                event: None,
            };
            slot.commit(ctx, name, &commit);
        }
    });
}

/// The end of a limit whose key expires later, or never.
fn end_before_expiry(slot: &mut TypedKey<'_, Limit>) -> Option<u64> {
    let end = slot.value()?.end()?;
    let stays = slot.expires().is_none_or(|at| at > end);
    stays.then_some(end)
}

struct Limits;

impl Native for Limits {
    type Value = Limit;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Limit> {
        &RATE
    }

    fn save(limit: &Limit, out: &mut RdbWriter<'_>) {
        let mut bytes = Vec::new();
        persist::put(&mut bytes, limit);
        out.bytes(&bytes);
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Limit> {
        input.bytes(persist::read)?.ok()
    }

    fn rewrite(limit: &Limit, out: &mut AofWriter<'_>) {
        let mut effect = Vec::new();
        persist::put_effect(&mut effect, limit, 0); // the server writes the expiry
        out.command(c"RATE.APPLY", &effect);
    }

    fn digest(limit: &Limit, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put(&mut element, limit);
        digest.element(&element);
    }

    fn memory(limit: &Limit) -> usize {
        match limit {
            Limit::Tiers(buckets) => block_size(size_of::<Bucket>() * buckets.len()),
            _ => 0,
        }
    }

    fn free_effort(_limit: &Limit) -> usize {
        1
    }

    fn copy(limit: &Limit) -> Option<Limit> {
        Some(limit.clone())
    }

    fn unlinked(_limit: &Limit, _db: i32, _key: &[u8]) {}

    fn defrag(_limit: &mut Limit, _relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        None // the tiers are small, and few have any
    }
}
