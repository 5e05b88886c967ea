//! The two native types: how locks and semaphores are saved, copied, measured and moved.

use super::holds::Hold;
use super::notices::NOTICES;
use super::persist;
use super::state::{Lock, LockKind};
use super::{DEADLINES, EXPIRED_LEASES, HOLD_TIMES, LISTENING};
use crate::fence::{self, is_plausible_fence, remember_fence};
use crate::memory::block_size;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::{KeyChange, ServerEvent, ask_for_slices, defer};
use crate::server::services::native::{
    Native, NativeType, Relocate, TypeUsage, register, usage_of,
};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Locks in the keyspace.
pub static LOCK: NativeType<Lock> = NativeType::new("sluice-lk");

/// Semaphores in the keyspace.
pub static SEM: NativeType<Lock> = NativeType::new("sluice-sm");

/// What registers them.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Typed<Locks>>, register::<Typed<Sems>>];

/// The memory of the values.
pub const USAGE: &[TypeUsage] = &[usage_of::<Typed<Locks>>(), usage_of::<Typed<Sems>>()];

/// Notes that a lock or a semaphore came to this key, or that its expiry changed.
pub fn key_changed(ctx: Ctx<'_>, name: &ServerString<'_>, change: KeyChange) {
    if LOCK.live() + SEM.live() == 0 {
        return;
    }
    for kind in [LockKind::Lock, LockKind::Semaphore] {
        let key = ctx.peek(name);
        if !key.holds(kind.native()) {
            continue;
        }
        if change == KeyChange::Arrival
            && let Ok(mut key) = TypedKey::of(key, kind.native())
            && let Some(lock) = key.value()
        {
            list(lock, ctx.db(), name.bytes());
            for number in notices_of(lock) {
                let key = (ctx.db(), name.bytes().into());
                NOTICES.get().arrive(number, key);
            }
        }
        if !ctx.is_replica() {
            let (db, key) = (ctx.db(), name.bytes().into());
            defer(match change {
                KeyChange::Arrival => ServerEvent::Arrived(db, key),
                KeyChange::Expiry => ServerEvent::Changed(db, key),
            });
        }
    }
}

/// The numbers of the notices of a lock's holds.
fn notices_of(lock: &Lock) -> impl Iterator<Item = u64> {
    let holds = lock.holds().iter_with_ended();
    holds
        .map(|(_, hold)| hold.notice)
        .filter(|number| *number != 0)
}

/// Lists a lock by the next end among its holds, or takes it out if there is nothing to do at that end.
pub(super) fn list(lock: &mut Lock, db: i32, key: &[u8]) {
    let at = lock.holds().next_end();
    if let Some(listed) = lock.listed_mut() {
        DEADLINES.list(listed, db, key, at);
    }
}

/// The same, after a change at its key, if it is not listed early enough. Returns when it is listed then. It may be listed too
/// early: so most changes cost nothing.
#[inline(always)]
pub(super) fn list_earlier(lock: &mut Lock, ctx: Ctx<'_>, name: &ServerString<'_>) -> Option<u64> {
    let at = lock.holds().next_end();
    if at >= lock.holds().listed()?.at {
        return None;
    }
    list(lock, ctx.db(), name.bytes());
    Some(at)
}

/// Removes a lock from the list of deadlines, because the lock leaves its key.
pub(super) fn forget_deadline(lock: &Lock) {
    if let Some(listed) = lock.holds().listed() {
        DEADLINES.unlinked(listed);
    }
}

/// Counts the time of a hold whose lease has ended.
pub(super) fn lease_ended(hold: &Hold) {
    HOLD_TIMES.count_between(hold.fence, hold.until.saturating_mul(1000));
}

impl LockKind {
    /// The native type that stores locks of this kind.
    pub fn native(self) -> &'static NativeType<Lock> {
        match self {
            LockKind::Lock => &LOCK,
            LockKind::Semaphore => &SEM,
        }
    }
}

/// The behaviour that both types share.
struct Typed<K>(PhantomData<K>);

trait Which: 'static {
    const KIND: LockKind;
    /// The fence clock is saved with one of the types.
    const KEEPS_FENCE: bool;
}

struct Locks;
impl Which for Locks {
    const KIND: LockKind = LockKind::Lock;
    const KEEPS_FENCE: bool = true;
}

struct Sems;
impl Which for Sems {
    const KIND: LockKind = LockKind::Semaphore;
    const KEEPS_FENCE: bool = false;
}

/// An AOF is rewritten in commands of at most so many holds, never in one giant one.
const HOLDS_PER_COMMAND: usize = 64;

impl<K: Which> Native for Typed<K> {
    type Value = Lock;
    const ENCODING: c_int = 0;
    const SAVES_MODULE: bool = K::KEEPS_FENCE;

    fn native() -> &'static NativeType<Lock> {
        K::KIND.native()
    }

    fn save(lock: &Lock, out: &mut RdbWriter<'_>) {
        let mut bytes = Vec::new();
        persist::encode(lock, &mut bytes);
        out.bytes(&bytes);
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Lock> {
        let mut lock = input.bytes(persist::decode)?.ok()?;
        if LockKind::of(lock.mode()) != K::KIND
            || !lock
                .holds()
                .iter()
                .all(|(_, hold)| is_plausible_fence(hold.fence))
        {
            return None;
        }
        for (_, hold) in lock.holds().iter() {
            remember_fence(hold.fence);
        }
        let at = lock.holds().next_end();
        if let Some((db, key)) = input.key()
            && let Some(listed) = lock.listed_mut()
        {
            DEADLINES.list_loaded(listed, db, key, at);
        }
        Some(lock)
    }

    fn rewrite(lock: &Lock, out: &mut AofWriter<'_>) {
        for some in persist::by_fence(lock).chunks(HOLDS_PER_COMMAND) {
            let mut effects = Vec::new();
            for (owner, hold) in some {
                persist::put_held(&mut effects, lock.mode(), owner, hold);
            }
            out.command(c"LOCK.APPLY", &effects);
        }
    }

    fn digest(lock: &Lock, digest: &mut Digest<'_>) {
        for (owner, hold) in lock.holds().iter() {
            let mut element = Vec::new();
            persist::put_held(&mut element, lock.mode(), owner, hold);
            digest.element(&element);
        }
    }

    fn memory(lock: &Lock) -> usize {
        lock.holds().memory(&block_size)
    }

    fn free_effort(lock: &Lock) -> usize {
        lock.holds().len_with_ended()
    }

    fn copy(lock: &Lock) -> Option<Lock> {
        Some(lock.copy())
    }

    fn unlinked(lock: &Lock, db: i32, key: &[u8]) {
        left_key(lock, db, key);
    }

    fn defrag(lock: &mut Lock, relocate: &mut Relocate<'_>, _from: usize) -> Option<usize> {
        lock.visit_mut(&mut |hold| {
            for receipt in [&mut hold.acquired, &mut hold.released]
                .into_iter()
                .flatten()
            {
                relocate.bytes(&mut receipt.id);
            }
        });
        None
    }

    fn save_module(out: &mut RdbWriter<'_>) {
        fence::save_fence(out);
    }

    fn has_module_data() -> bool {
        fence::last_fence() > 0
    }

    fn load_module(input: &mut RdbReader<'_>, _encoding: c_int) -> bool {
        fence::load_fence(input)
    }
}

/// A lock leaves its key, perhaps with holds that have ended and were not removed yet: counts these, and has the others who know the
/// holds forget them.
pub(super) fn left_key(lock: &Lock, db: i32, key: &[u8]) {
    let now = Now::read().ms();
    // Redis 8.0 and later remove a key in the last millisecond of its life.
    if lock.holds().has_due(now + 1) {
        let ended = |(_, hold): &(&[u8], &Hold)| hold.until <= now;
        for (_, hold) in lock.holds().iter_with_ended().filter(ended) {
            EXPIRED_LEASES.fetch_add(1, Ordering::Relaxed);
            lease_ended(hold);
        }
    }
    forget_deadline(lock);
    if !NOTICES.get().is_empty() && notices_of(lock).next().is_some() {
        NOTICES.get().leave(notices_of(lock));
        ask_for_slices();
    }
    if LISTENING.load(Ordering::Relaxed) {
        defer(ServerEvent::Unlinked(db, key.into()));
    }
}
