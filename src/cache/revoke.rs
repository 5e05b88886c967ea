//! The revocation of leases: a key that changes loses its lease, no matter who changes it. These functions run in the middle
//! of the change. They may defer work, but must not reply and must not open keys.

use super::STATE;
use super::budget;
use super::lease::Leases;
use super::serve::CacheQueues;
use super::stale_ends;
use crate::queue_service;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;

fn now() -> u64 {
    Now::read().ms()
}

/// Revokes the lease of a key now.
pub(super) fn revoke(db: i32, key: &[u8]) {
    STATE.get().rebuilds.revoke(db, key, now);
}

/// Revokes leases of many keys now.
fn revoke_many(revoke: impl FnOnce(&mut Leases)) {
    STATE.get().rebuilds.revoke_many(now, revoke);
}

/// Revokes the lease of a key that has changed. The clients that wait for the key are served later.
pub(super) fn key_has_changed(db: i32, key: &[u8]) {
    revoke(db, key);
    if STATE.get().rebuilds.queue.waiting(db, key) > 0 {
        deferred::defer(ServerEvent::Unlinked(db, key.into()));
    }
}

/// A key of any type was removed: an entry, or a key that was created after its lease was granted.
pub(super) fn key_removed(ctx: Ctx<'_>, name: &ServerString<'_>) {
    key_has_changed(ctx.db(), name.bytes());
}

/// Whether there are leases, which a deletion would revoke.
pub(super) fn has_leases() -> bool {
    !STATE.get().rebuilds.leases.is_empty()
}

/// A client is about to delete a key, which may not exist; `None`: any keys.
pub(super) fn key_deleting(key: Option<&[u8]>) {
    let Some(key) = key else {
        if !has_leases() {
            return; // nothing changes for the clients that wait
        }
        revoke_many(Leases::revoke_all);
        queue_service::serve_all::<CacheQueues>(None);
        return;
    };
    let rebuilds = &mut STATE.get().rebuilds;
    let dbs = rebuilds.revoke_in_all_databases(key, now);
    for db in dbs {
        if rebuilds.queue.waiting(db, key) > 0 {
            deferred::defer(ServerEvent::Unlinked(db, key.into()));
        }
    }
}

/// Whole databases were flushed, loaded or swapped, or hash slots moved.
pub(super) fn dataset_changed(event: &ServerEvent) {
    budget::dataset_changed(event);
    stale_ends::dataset_changed(event);
    revoke_many(|leases| match event {
        ServerEvent::Flushed(db) => leases.clear(*db),
        ServerEvent::Loaded | ServerEvent::Replaced => leases.clear(None),
        ServerEvent::Swapped(first, second) => {
            leases.clear(Some(*first));
            leases.clear(Some(*second));
        }
        // This node does not hear of changes of keys on another node.
        ServerEvent::SlotsMoved(ranges) | ServerEvent::SlotsDropped(ranges) => {
            leases.clear_slots(ranges);
        }
        _ => {}
    });
}
