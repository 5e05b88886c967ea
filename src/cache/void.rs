//! Keys that change lose their leases, whoever changes them. All of this is called in the middle of the change: nothing
//! may be answered or opened, only noted.

use super::STATE;
use crate::server::context::{Ctx, Name};
use crate::server::events::{self, Happening};

/// A key has changed: its lease is void, and who waits is to be looked after.
pub(super) fn changed(db: i32, key: &[u8]) {
    let mut state = STATE.get();
    state.leases.void(db, key);
    if state.queue.waiting(db, key) > 0 {
        events::note(Happening::Unlinked(db, key.into()));
    }
}

/// A key went, of whatever type: one that came to be since its lease was given, or an entry.
pub(super) fn removed(ctx: Ctx<'_>, name: &Name<'_>) {
    changed(ctx.db(), name.bytes());
}

/// Somebody is about to delete a key, which need not be there.
pub(super) fn deleting(key: &[u8]) {
    let mut state = STATE.get();
    for db in state.leases.void_anywhere(key) {
        if state.queue.waiting(db, key) > 0 {
            events::note(Happening::Unlinked(db, key.into()));
        }
    }
}

/// Whole databases went, came or moved.
pub(super) fn moved(happening: &Happening) {
    let leases = &mut STATE.get().leases;
    match happening {
        Happening::Flushed(db) => leases.clear(*db),
        Happening::Loaded | Happening::Replaced => leases.clear(None),
        Happening::Swapped(first, second) => {
            leases.clear(Some(*first));
            leases.clear(Some(*second));
        }
        // What happens to keys on another node, this one does not hear.
        Happening::SlotsMoved(ranges) | Happening::SlotsDropped(ranges) => {
            leases.clear_slots(ranges);
        }
        _ => {}
    }
}
