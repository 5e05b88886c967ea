//! Deferred server events. The server reports events at moments when the dataset must not change. The families handle them before
//! the next writing command of the module, and at the latest in the next round of the event loop. Families also request work in
//! slices here.

use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::slots::Ranges;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// An event that the families handle later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A value of the module left its key.
    Unlinked(i32, Box<[u8]>),
    /// The expiry of a key of the module changed, or a command such as `RESTORE` created or changed the key. For locks and
    /// semaphores: no owner has gained a hold. If one may have, the event is [`ServerEvent::Arrived`].
    Changed(i32, Box<[u8]>),
    /// `RESTORE`, `COPY`, `RENAME` or `MOVE` brought a lock or a semaphore to the key, or a client gave it holds by `LOCK.APPLY`.
    Arrived(i32, Box<[u8]>),
    /// A database was flushed; `None`: all databases.
    Flushed(Option<i32>),
    /// Two databases were swapped.
    Swapped(i32, i32),
    /// A command that may move hash slots of a cluster has arrived. Reported only while the
    /// [command filter](crate::server::hooks::deletions) is registered.
    SlotsMayMove,
    /// These hash slots of a cluster moved to this node or away from it, or began or ended to do so key by key, or may have left
    /// and come back.
    SlotsMoved(Ranges),
    /// The server dropped all keys of these hash slots, which this node does not own, without an event for each key.
    SlotsDropped(Ranges),
    /// A connection closed.
    Disconnected(u64),
    /// A dataset was loaded.
    Loaded,
    /// The dataset that was [loaded beside](loads_beside) the old one has replaced it.
    Replaced,
    /// The load of a dataset beside another one was aborted.
    Discarded,
    /// The server forked a child to save the dataset, perhaps into a new AOF.
    Saving,
    /// This server became a replica.
    Demoted,
}

pub(in crate::server) static DEFERRED: MainThread<Vec<ServerEvent>> = MainThread::new();
pub(in crate::server) static ANY_DEFERRED: AtomicBool = AtomicBool::new(false);

/// Whether the server has reported that its event loop is about to sleep, and has not slept yet. Redis 7.0 runs commands even
/// then.
pub(in crate::server) static ABOUT_TO_SLEEP: AtomicBool = AtomicBool::new(false);

/// Requests a round of the event loop before the server sleeps.
pub(in crate::server) fn ask_for_a_round() {
    if ABOUT_TO_SLEEP.swap(false, Ordering::Relaxed) {
        wake_event_loop();
    }
}

/// Defers an event until the families can handle it.
pub fn defer(event: ServerEvent) {
    DEFERRED.get().push(event);
    ANY_DEFERRED.store(true, Ordering::Relaxed);
    ask_for_a_round();
}

/// Reports a change of hash slots to the families at once, and defers the event.
pub(in crate::server) fn defer_slot_change(event: ServerEvent) {
    tell_families(&event);
    defer(event);
}

/// Reports a change of the dataset to the families at once.
pub(in crate::server) fn tell_families(event: &ServerEvent) {
    for family in crate::enabled_families() {
        (family.dataset_changed)(event);
    }
    crate::general::dataset_changed(event);
}

/// The same as [`defer`], and wakes the event loop. The server frees connections after it has called the module before its sleep,
/// and would sleep then.
pub fn defer_and_wake(event: ServerEvent) {
    if !ANY_DEFERRED.load(Ordering::Relaxed) {
        wake_event_loop();
    }
    defer(event);
}

/// The state of the work in slices: [`NOTHING`], [`FRESH`] or [`BACKLOG`].
pub(in crate::server) static WORK: AtomicU8 = AtomicU8::new(NOTHING);

pub(in crate::server) const NOTHING: u8 = 0;
/// A family has requested work since the last slice.
pub(in crate::server) const FRESH: u8 = 1;
/// The work takes more than one slice.
pub(in crate::server) const BACKLOG: u8 = 2;

/// Requests slices for new work of a family.
pub fn ask_for_slices() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        WORK.store(FRESH, Ordering::Relaxed);
    }
    ask_for_a_round();
}

/// The same when a connection closes; see [`defer_and_wake`].
pub fn ask_for_slices_and_wake() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        wake_event_loop();
    }
    ask_for_slices();
}

/// A change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// The expiry changed or was removed, and the value does not contain the change.
    Expiry,
    /// `RESTORE`, `COPY`, `RENAME` or `MOVE` created the key.
    Arrival,
}

/// Whether this replica loads a dataset beside its old one.
pub(in crate::server) static LOADS_BESIDE: AtomicBool = AtomicBool::new(false);

/// Whether the server loads a dataset beside the old one, which clients still read (`repl-diskless-load swapdb`). Then two values
/// may have the same key, and loaded values belong to the new dataset.
pub fn loads_beside() -> bool {
    LOADS_BESIDE.load(Ordering::Relaxed)
}

/// Whether this replica loads the dataset of its master.
pub(in crate::server) static LOADS_FOR_REPLICA: AtomicBool = AtomicBool::new(false);

/// Whether this replica loads the dataset of its master, beside an old dataset or after the old one was flushed. It stays true while
/// the families receive the event that ends the load.
pub fn loads_for_replica() -> bool {
    LOADS_FOR_REPLICA.load(Ordering::Relaxed)
}

/// Whether the server empties databases now.
pub(in crate::server) static IS_FLUSHING: AtomicBool = AtomicBool::new(false);

/// Whether the server empties databases now, of which [`ServerEvent::Flushed`] tells at the end.
pub fn is_flushing() -> bool {
    IS_FLUSHING.load(Ordering::Relaxed)
}

/// Whether something happened that the server looks at only at the beginning of a round; see [`need_round`].
static NEEDS_ROUND: AtomicBool = AtomicBool::new(false);

/// Notes a change that the server looks at only at the beginning of a round of its event loop: the timer was set, or an entry was
/// appended to a stream, for which clients may wait.
#[inline]
pub(in crate::server) fn need_round() {
    NEEDS_ROUND.store(true, Ordering::Relaxed);
}

/// Whether there was such a change since the last call.
pub(in crate::server) fn needs_round() -> bool {
    NEEDS_ROUND.swap(false, Ordering::Relaxed)
}

/// Makes the event loop run another round before it sleeps.
pub(in crate::server) fn wake_event_loop() {
    // SAFETY: the callback does nothing and expects no data.
    unsafe {
        api!(RedisModule_EventLoopAddOneShot(
            Some(on_wake),
            ptr::null_mut()
        ))
    };
}

unsafe extern "C" fn on_wake(_data: *mut c_void) {}

/// Whether a family has requested the names of all removed keys.
pub(in crate::server) static TELLS_OF_REMOVALS: AtomicBool = AtomicBool::new(false);

/// Whether a family has requested the names of all removed keys.
#[inline]
pub(in crate::server) fn tells_of_removals() -> bool {
    TELLS_OF_REMOVALS.load(Ordering::Relaxed)
}

/// Reports a removed key to the families.
#[inline]
pub(in crate::server) fn key_removed(ctx: Ctx<'_>, name: &ServerString<'_>) {
    if tells_of_removals() {
        for family in crate::enabled_families() {
            (family.key_removed)(ctx, name);
        }
    }
}
