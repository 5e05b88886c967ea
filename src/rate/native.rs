//! The native type: saves, copies and measures limits. No key outlives its limit.

use super::edit::limit_expiry;
use super::exact::ExactWindow;
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
use crate::server::services::deferred::{KeyChange, ServerEvent, defer};
use crate::server::services::native::{
    Native, NativeType, Relocate, TypeUsage, register, usage_of,
};
use std::ffi::c_int;

/// The native type of a limit.
pub static RATE: NativeType<Limit> = NativeType::new("sluice-ra");

/// The functions that register the type.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<LimitType>];

/// The memory of the values.
pub const USAGE: &[TypeUsage] = &[usage_of::<LimitType>()];

/// Defers an event for a key that would outlive its limit: somebody has changed the key's expiry, or the limit has come to
/// the key from elsewhere.
pub(super) fn key_changed(ctx: Ctx<'_>, name: &ServerString<'_>, _change: KeyChange) {
    if RATE.live() == 0 || ctx.is_replica() {
        return;
    }
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &RATE)
        && let Some(end) = key.value().and_then(|limit| limit.end())
        && key.outlives(end)
    {
        defer(ServerEvent::Changed(ctx.db(), name.bytes().into()));
    }
}

/// Lets such a key expire at the limit's end.
pub(super) fn handle_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    if let ServerEvent::Changed(db, key) = event {
        cluster::act_on(ctx, &(*db, (**key).into()), |name| limit_expiry(ctx, name));
    }
}

/// The callbacks of the type.
struct LimitType;

impl Native for LimitType {
    type Value = Limit;
    const ENCODING: c_int = 1; // 0 knew no exact windows

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
            Limit::Exact(log) => block_size(size_of::<ExactWindow>()) + log.memory(&block_size),
            _ => 0,
        }
    }

    fn free_effort(limit: &Limit) -> usize {
        match limit {
            Limit::Exact(log) => 1 + log.chunks(),
            _ => 1,
        }
    }

    fn copy(limit: &Limit) -> Option<Limit> {
        Some(limit.clone())
    }

    fn unlinked(_limit: &Limit, _db: i32, _key: &[u8]) {}

    fn defrag(limit: &mut Limit, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        let Limit::Exact(log) = limit else {
            return None; // the tiers are small, and few limits have any
        };
        for (at, block) in log.blocks(from).enumerate() {
            relocate.vec(block);
            if relocate.should_stop() {
                return Some(from + at + 1);
            }
        }
        None
    }
}
