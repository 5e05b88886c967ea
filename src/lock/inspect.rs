//! The commands that show a lock or a semaphore: who holds it, and which clients wait for it.

use super::SERVICE;
use super::holds::Hold;
use super::options::owner;
use super::persist;
use super::queue::{LockWaiter, Want};
use super::state::LockKind;
use super::state::{Lock, Mode, RequestedMode};
use crate::reply::{Answer, Reply};
use crate::request::MAX_SAFE;
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::key::TypedReadKey;

/// `LOCK.HELD key owner`
///
/// Replies with the fence if the owner holds the lock, else nil. Error: `WRONGTYPE`.
pub(super) fn held(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let name = call.name(0);
    let mut key = TypedReadKey::of(call.ctx.open_to_read(&name), LockKind::Lock.native())?;
    let lock = key.value();
    let hold = lock.and_then(|lock| lock.held_by(owner, Now::read().ms()).map(|hold| hold.fence));
    Ok(Reply::int_or_nil(hold))
}

/// `LOCK.INFO key`
///
/// Replies with a map: `mode` (exclusive | shared), `holders` (maps of owner, count, fence,
/// lease_ms, watchdog: 1 or 0) and `waiters` (maps of owner, mode, waiting_ms, timeout_ms: what
/// BLOCK named); nil if nobody holds the lock. Error: `WRONGTYPE`.
pub(super) fn lock_info(call: &Call<'_>) -> Answer {
    info(call, LockKind::Lock, |lock, _, _| {
        let mode = match lock.mode() {
            Mode::Shared => "shared",
            _ => "exclusive",
        };
        vec![("mode", Reply::Text(mode))]
    })
}

/// `SEM.INFO key`
///
/// Replies with a map: `limit` (the limit in force), `used`, `holders` and `waiters` as `LOCK.INFO`, where `count` is
/// the number of permits; nil if nobody holds a permit. Error: `WRONGTYPE`.
pub(super) fn sem_info(call: &Call<'_>) -> Answer {
    info(call, LockKind::Semaphore, |lock, used, in_force| {
        let limit = match (in_force, lock.mode()) {
            (Some(limit), _) | (None, Mode::Permits { limit }) => limit,
            _ => 0,
        };
        // Forged permits may be more than any limit.
        let used = used.min(MAX_SAFE as u64);
        vec![("limit", Reply::int(limit)), ("used", Reply::int(used))]
    })
}

fn info(
    call: &Call<'_>,
    kind: LockKind,
    head: impl FnOnce(&Lock, u64, Option<u64>) -> Vec<(&'static str, Reply)>,
) -> Answer {
    call.cursor().value()?;
    let (ctx, name, now) = (call.ctx, call.name(0), Now::read().ms());
    let mut key = TypedReadKey::of(ctx.open_to_read(&name), kind.native())?;
    let Some(lock) = key.value() else {
        return Ok(Reply::Nil);
    };
    let all = persist::by_fence(lock).into_iter();
    let holds: Vec<_> = all.filter(|(_, hold)| hold.until >= now).collect();
    if holds.is_empty() {
        return Ok(Reply::Nil);
    }
    let used = holds.iter().map(|(_, hold)| hold.count);
    let used = used.fold(0, u64::saturating_add);
    let service = SERVICE.get();
    let queues = &service.handover.queues;
    let in_force = queues.limit(ctx.db(), name.bytes());
    let mut fields = head(lock, used, in_force);
    let holders = holds
        .into_iter()
        .map(|(owner, hold)| holder(owner, hold, now));
    fields.push(("holders", Reply::Array(holders.collect())));
    let waiters = queues.waiters_of(ctx.db(), name.bytes());
    let waiters = waiters.map(|(_, waiter)| waiting(waiter, now)).collect();
    fields.push(("waiters", Reply::Array(waiters)));
    Ok(Reply::Map(fields))
}

fn holder(owner: &[u8], hold: &Hold, now: u64) -> Reply {
    let is_renewed = hold.watch.as_ref().is_some_and(|watch| watch.is_renewed());
    Reply::Map(vec![
        ("owner", Reply::Bytes(owner.into())),
        ("count", Reply::int(hold.count)),
        ("fence", Reply::int(hold.fence)),
        ("lease_ms", Reply::int(hold.until - now)),
        ("watchdog", Reply::int(is_renewed.into())),
    ])
}

fn waiting(waiter: &LockWaiter, now: u64) -> Reply {
    let mut fields = vec![("owner", Reply::Bytes(waiter.owner.clone()))];
    let mode = match waiter.want {
        Want::Acquire(RequestedMode::Exclusive) => "exclusive",
        Want::Acquire(RequestedMode::Shared) => "shared",
        Want::Acquire(RequestedMode::Permits { .. }) => "permits",
        Want::Upgrade => "upgrade",
    };
    fields.push(("mode", Reply::Text(mode)));
    if let Want::Acquire(RequestedMode::Permits { count, .. }) = waiter.want {
        fields.push(("count", Reply::int(count)));
    }
    fields.push(("waiting_ms", Reply::int(now.saturating_sub(waiter.since))));
    fields.push(("timeout_ms", Reply::int(waiter.timeout)));
    Reply::Map(fields)
}
