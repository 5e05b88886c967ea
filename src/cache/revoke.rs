//! Keys that change lose their leases, whoever changes them. All of this is called in the middle of the change: nothing
//! may be answered or opened, only noted.

use super::STATE;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;

/// A key has changed: its lease is void, and who waits is to be looked after.
pub(super) fn changed(db: i32, key: &[u8]) {
    let mut state = STATE.get();
    state.leases.revoke(db, key);
    if state.queue.waiting(db, key) > 0 {
        deferred::defer(ServerEvent::Unlinked(db, key.into()));
    }
}

/// A key went, of whatever type: one that came to be since its lease was given, or an entry.
pub(super) fn removed(ctx: Ctx<'_>, name: &ServerString<'_>) {
    changed(ctx.db(), name.bytes());
}

/// Is any lease out, which a deletion would revoke?
pub(super) fn has_leases() -> bool {
    !STATE.get().leases.is_empty()
}

/// Somebody is about to delete a key, which need not be there; `None`: any keys.
pub(super) fn deleting(key: Option<&[u8]>) {
    let state = &mut *STATE.get();
    let Some(key) = key else {
        state.leases.revoke_all();
        state.walks.push_back(state.queue.walk(None));
        deferred::ask_for_slices();
        return;
    };
    for db in state.leases.revoke_in_all_databases(key) {
        if state.queue.waiting(db, key) > 0 {
            deferred::defer(ServerEvent::Unlinked(db, key.into()));
        }
    }
}

/// Whole databases went, came or moved.
pub(super) fn moved(event: &ServerEvent) {
    let leases = &mut STATE.get().leases;
    match event {
        ServerEvent::Flushed(db) => leases.clear(*db),
        ServerEvent::Loaded | ServerEvent::Replaced => leases.clear(None),
        ServerEvent::Swapped(first, second) => {
            leases.clear(Some(*first));
            leases.clear(Some(*second));
        }
        // What happens to keys on another node, this one does not hear.
        ServerEvent::SlotsMoved(ranges) | ServerEvent::SlotsDropped(ranges) => {
            leases.clear_slots(ranges);
        }
        _ => {}
    }
}
