//! Holds that the server renews while a connection lives, and releases when it closes.

use super::edit::LockKey;
use super::handover::Upkeep;
use super::state::LockKind;
use super::world::ServerWorld;
use super::{LockService, SERVICE};
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
pub(super) fn renew(ctx: Ctx<'_>, service: &mut LockService, now: Now, number: u64) {
    let LockService {
        handover, steps, ..
    } = service;
    let Some(watched) = steps.watches.get(number) else {
        return;
    };
    if !is_connected(watched.client) {
        handover.add_upkeep(Upkeep::Abandon(watched.client));
        return;
    }
    steps.watches.remove(number);
    cluster::act_on(ctx, &watched.key, |name| {
        if let Ok(mut key) = LockKey::open(ctx, steps, name, watched.kind, now) {
            if key.renew_watched(steps, &watched.owner, watched.client) {
                handover.counters.renewed += 1;
            }
            key.close(steps, renew_event(watched.kind));
        }
    });
}

/// Releases a hold whose connection has closed. Returns its key.
pub(super) fn abandon(world: &mut ServerWorld<'_>, number: u64) -> Option<Key> {
    let (ctx, now, steps) = (world.ctx, world.now, &mut *world.steps);
    let watched = steps.watches.get(number)?;
    steps.unwatch_number(number);
    cluster::act_on(ctx, &watched.key, |name| {
        if let Ok(mut key) = LockKey::open(ctx, steps, name, watched.kind, now) {
            if key.abandon(steps, &watched.owner, watched.client) {
                steps.watchdog_released += 1;
            }
            key.close(steps, release_event(watched.kind));
        }
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
