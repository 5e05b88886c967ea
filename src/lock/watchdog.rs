//! Holds that the server renews while a connection lives, and releases when it closes.

use super::SERVICE;
use super::edit::LockKey;
use super::handover::Upkeep;
use super::state::LockKind;
use super::world::ServerWorld;
use crate::server::base::clock::Now;
use crate::server::handles::context::{Ctx, is_connected};
use crate::server::services::cluster;
use crate::waiting::Key;
use std::ffi::CStr;

/// Whether any hold is renewed for this connection, or any request waits for as long as it lives.
pub(super) fn follows_client(client: u64) -> bool {
    let service = SERVICE.get();
    let waits = service.handover.queues.first_of_listener(client).is_some();
    waits || service.steps.watches.follows(client)
}

/// Renews a watched hold for its connection.
pub(super) fn renew(ctx: Ctx<'_>, now: Now, number: u64) {
    let mut service = SERVICE.get();
    let Some(watched) = service.steps.watches.get(number) else {
        return;
    };
    if !is_connected(watched.client) {
        let task = Upkeep::Abandon(watched.client);
        return service.handover.add_upkeep(task);
    }
    service.steps.watches.remove(number);
    drop(service);
    let (kind, event) = (watched.kind, renew_event(watched.kind));
    cluster::act_on(ctx, &watched.key, |name| {
        // Without a lock of this kind there is nothing to renew.
        let _ = LockKey::with(ctx, name, kind, now, event, |key, service| {
            if key.renew_watched(&mut service.steps, &watched.owner, watched.client) {
                service.handover.counters.renewed += 1;
            }
        });
    });
}

/// Releases a hold whose connection has closed. Returns its key.
pub(super) fn abandon(world: &mut ServerWorld<'_>, number: u64) -> Option<Key> {
    let (ctx, now) = (world.ctx, world.now);
    let mut service = SERVICE.get();
    let watched = service.steps.watches.get(number)?;
    service.steps.unwatch_number(number);
    drop(service);
    let (kind, event) = (watched.kind, release_event(watched.kind));
    cluster::act_on(ctx, &watched.key, |name| {
        // Without a lock of this kind there is nothing to release.
        let _ = LockKey::with(ctx, name, kind, now, event, |key, service| {
            let steps = &mut service.steps;
            if key.abandon(steps, &watched.owner, watched.client) {
                steps.watchdog_released += 1;
            }
        });
    });
    Some(watched.key)
}

/// The keyspace event of a release.
pub(super) fn release_event(kind: LockKind) -> &'static CStr {
    match kind {
        LockKind::Lock => c"lock.release",
        LockKind::Semaphore => c"sem.release",
    }
}

fn renew_event(kind: LockKind) -> &'static CStr {
    match kind {
        LockKind::Lock => c"lock.renew",
        LockKind::Semaphore => c"sem.renew",
    }
}
