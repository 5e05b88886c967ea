//! Server events: keys, databases, connections and roles that changed outside of the family's commands.

use super::handover::Upkeep;
use super::notices::NOTICES;
use super::persist;
use super::search;
use super::slices::stop_listening_if_idle;
use super::{DEADLINES, SERVICE};
use crate::fence::last_fence;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::services::cluster::{self, SlotParcel};
use crate::server::services::commit;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;

/// Handles a server event.
pub(super) fn on_event(ctx: Ctx<'_>, now: Now, event: &ServerEvent) {
    let service = &mut *SERVICE.get();
    let (handover, steps) = (&mut service.handover, &mut service.steps);
    match event {
        ServerEvent::Unlinked(db, key) => {
            let sweep = steps.watches.sweep_key(*db, key);
            handover.add_upkeep(Upkeep::Unwatch(sweep));
            // A watched lock may have been renamed to this key since. This task must run after the one above, so a task that
            // is already in the queue is not enough.
            handover.add_upkeep(Upkeep::Reconcile((*db, (**key).into())));
        }
        // No owner has gained a hold, so no new deadlock is possible.
        ServerEvent::Changed(db, key) => handover.reconcile_later((*db, (**key).into())),
        ServerEvent::Arrived(db, key) => {
            handover.queues.recheck(*db, key);
            handover.reconcile_later((*db, (**key).into()));
            handover.lock_arrived((*db, (**key).into()));
        }
        ServerEvent::Flushed(db) => {
            let sweep = steps.watches.sweep_db(*db);
            handover.add_upkeep(Upkeep::Unwatch(sweep));
            handover.serve_all(*db);
        }
        ServerEvent::Swapped(first, second) => {
            steps.watches.swap(*first, *second);
            for db in [*first, *second] {
                handover.queues.recheck_db(db);
                handover.serve_all(Some(db));
                handover.all_locks_arrived(Some(db));
            }
        }
        // Waiting clients are looked after slot by slot, and a hold that is renewed is looked at when that is due.
        ServerEvent::SlotsMayMove | ServerEvent::SlotsDropped(_) => {}
        ServerEvent::SlotsMoved(_) => DEADLINES.unpark(ctx),
        ServerEvent::Discarded => {}
        ServerEvent::Disconnected(client) => {
            handover.disconnect(*client);
            handover.add_upkeep(Upkeep::Abandon(*client));
        }
        ServerEvent::Loaded | ServerEvent::Replaced => {
            handover.queues.record_new_holds();
            handover.serve_all(None);
            handover.all_locks_arrived(None);
        }
        ServerEvent::Saving => save_fence(ctx),
        ServerEvent::Demoted => {
            handover.demote(steps.watches.sweep_db(None));
            NOTICES.get().clear();
        }
    }
    search::plan_rechecks(ctx, service, now);
    stop_listening_if_idle(service);
    deferred::ask_for_slices();
}

/// The dataset changed, without a word about each key.
pub(super) fn dataset_changed(event: &ServerEvent) {
    DEADLINES.moved(event); // the rest in its turn is early enough
    let mut notices = NOTICES.get();
    match event {
        ServerEvent::Flushed(db) => notices.lose_db(*db),
        ServerEvent::Swapped(first, second) => notices.swap(*first, *second),
        ServerEvent::SlotsDropped(slots) => notices.lose_slots(slots.clone()),
        _ => return,
    }
    deferred::ask_for_slices();
}

/// Appends the last fence to the AOF. An AOF that is rewritten without an RDB part has no other place for it.
fn save_fence(ctx: Ctx<'_>) {
    let fence = last_fence();
    // Valkey 9 may take a command without a key for one of two slots, and end the export.
    if !cluster::send_to_importers(ctx) && fence > 0 {
        commit::append_to_aof(ctx, c"LOCK.FENCE", fence);
    }
}

/// The last fence, for a node that receives a hash slot. A lock that is free leaves no other trace there, and all later fences
/// follow with the locks that have them.
pub(super) fn slot_parcel() -> Option<SlotParcel> {
    let fence = last_fence();
    let mut effects = Vec::new();
    persist::put_fence(&mut effects, fence);
    (fence > 0).then_some((c"LOCK.APPLY", effects))
}
