//! The native type: saves, copies and measures work. No key outlives its work.

use super::persist;
use super::state::OnceWork;
use super::{EXPIRED_LEASES, HOLD_TIMES, WAITING_CLIENTS};
use crate::fence::{is_plausible_fence, remember_fence};
use crate::memory::block_size;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::{KeyChange, ServerEvent, defer};
use crate::server::services::native::{
    Native, NativeType, Relocate, TypeUsage, register, usage_of,
};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// The native type of work.
pub static ONCE: NativeType<OnceWork> = NativeType::new("sluice-on");

/// The functions that register the type.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<OnceWorkType>];

/// The memory of the values.
pub const USAGE: &[TypeUsage] = &[usage_of::<OnceWorkType>()];

/// Ends the work with its key, if somebody has set the key's expiry to an earlier time. Replicas and AOFs receive the expiry and
/// do the same. Defers an event for a key that would outlive its work, and for one that clients wait for.
pub(super) fn key_changed(ctx: Ctx<'_>, name: &ServerString<'_>, _change: KeyChange) {
    if ONCE.live() == 0 {
        return;
    }
    let Ok(mut key) = TypedKey::of(ctx.peek(name), &ONCE) else {
        return;
    };
    let expires = key.expires();
    let Some(work) = key.value() else {
        return;
    };
    let outlives = expires.is_none_or(|at| at > work.until);
    if let Some(at) = expires {
        work.until = work.until.min(at);
    }
    let has_waiting_clients = WAITING_CLIENTS.load(Ordering::Relaxed) > 0;
    if (outlives || has_waiting_clients) && !ctx.is_replica() {
        defer(ServerEvent::Changed(ctx.db(), name.bytes().into()));
    }
}

/// The callbacks of the type.
struct OnceWorkType;

/// Counts work whose lease has ended without a result.
pub(super) fn lease_ended(work: &OnceWork) {
    EXPIRED_LEASES.fetch_add(1, Ordering::Relaxed);
    HOLD_TIMES.count_between(work.token, work.until.saturating_mul(1000));
}

impl Native for OnceWorkType {
    type Value = OnceWork;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<OnceWork> {
        &ONCE
    }

    fn save(work: &OnceWork, out: &mut RdbWriter<'_>) {
        let mut head = Vec::new();
        persist::put_head(&mut head, work);
        out.bytes(&head);
        if let Some(result) = &work.result {
            out.bytes(result);
        }
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<OnceWork> {
        let mut work = input.bytes(persist::read_head)?.ok()?;
        if work.result.is_some() {
            work.result = Some(input.bytes(|result| result.into())?);
        }
        if !is_plausible_fence(work.token) {
            return None;
        }
        remember_fence(work.token);
        Some(work)
    }

    fn rewrite(work: &OnceWork, out: &mut AofWriter<'_>) {
        let mut effect = Vec::new();
        persist::put_head(&mut effect, work);
        match &work.result {
            Some(result) => out.command_with(c"ONCE.APPLY", &effect, result),
            None => out.command(c"ONCE.APPLY", &effect),
        }
    }

    fn digest(work: &OnceWork, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_head(&mut element, work);
        element.extend(work.result.iter().flatten());
        digest.element(&element);
    }

    fn memory(work: &OnceWork) -> usize {
        let result = work.result.as_ref().map_or(0, |result| result.len());
        block_size(work.fingerprint.len()) + block_size(result)
    }

    fn free_effort(_work: &OnceWork) -> usize {
        1
    }

    fn copy(work: &OnceWork) -> Option<OnceWork> {
        Some(work.clone())
    }

    fn unlinked(work: &OnceWork, db: i32, key: &[u8]) {
        // Redis 8.0 and later remove a key in the last millisecond of its life.
        if work.result.is_none() && work.is_over(Now::read().ms()) {
            lease_ended(work);
        }
        if WAITING_CLIENTS.load(Ordering::Relaxed) > 0 {
            defer(ServerEvent::Unlinked(db, key.into()));
        }
    }

    fn defrag(work: &mut OnceWork, relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        relocate.bytes(&mut work.fingerprint);
        if let Some(result) = &mut work.result {
            relocate.bytes(result);
        }
        None
    }
}
