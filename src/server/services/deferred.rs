//! Server events, deferred until they can be handled. The server reports them at moments at which the dataset must not
//! change. The families handle them before the next command of the module that writes, and at the latest in the next round of
//! the event loop. Work in slices is asked for here, too.

use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::slots::Ranges;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A value of the module left its key.
    Unlinked(i32, Box<[u8]>),
    /// A key of the module got another expiry, or came to be by `RESTORE`, `COPY`, `RENAME` or `MOVE`.
    Touched(i32, Box<[u8]>),
    /// A database was emptied; `None`: all of them.
    Flushed(Option<i32>),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// Somebody wants this hash slot of a cluster to come or go; `None`: several. Told only if some family
    /// [watches](crate::server::hooks::deletions).
    SlotMayMove(Option<u16>),
    /// These hash slots of a cluster came to this node, or left it.
    SlotsMoved(Ranges),
    /// What was here of these hash slots is gone, without a word about each key. They are not this node's.
    SlotsDropped(Ranges),
    /// A connection closed.
    Disconnected(u64),
    /// A dataset was loaded.
    Loaded,
    /// The dataset that was [loaded beside](loads_beside) the old one has taken its place.
    Replaced,
    /// The dataset that was being loaded beside another one was given up.
    Discarded,
    /// The server forked a child to save the dataset, perhaps into a new AOF.
    Saving,
    /// This server became a replica.
    Demoted,
}

pub(in crate::server) static DEFERRED: MainThread<Vec<ServerEvent>> = MainThread::new();
pub(in crate::server) static ANY_DEFERRED: AtomicBool = AtomicBool::new(false);

/// Did the server ask us before it sleeps, and has not slept yet? Redis 7.0 runs commands even then.
pub(in crate::server) static ABOUT_TO_SLEEP: AtomicBool = AtomicBool::new(false);

/// There is something to do in the event loop's next round: the server shall not sleep before that.
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

/// Notes that whole databases went, came or moved, and tells the families at once.
pub(in crate::server) fn defer_slot_change(event: ServerEvent) {
    for family in crate::enabled_families() {
        (family.dataset_changed)(&event);
    }
    defer(event);
}

/// The same as [`defer`], and wakes the server's event loop: it frees connections after the moment at which we
/// are asked, and would then sleep.
pub fn defer_and_wake(event: ServerEvent) {
    if !ANY_DEFERRED.load(Ordering::Relaxed) {
        wake_event_loop();
    }
    defer(event);
}

/// Have families work to do that is done in slices?
pub(in crate::server) static WORK: AtomicU8 = AtomicU8::new(NOTHING);

pub(in crate::server) const NOTHING: u8 = 0;
/// It came up since they were last asked.
pub(in crate::server) const FRESH: u8 = 1;
/// It is more than a slice.
pub(in crate::server) const BACKLOG: u8 = 2;

/// A family has work to do in slices, with the first of which it has not begun.
pub fn ask_for_slices() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        WORK.store(FRESH, Ordering::Relaxed);
    }
    ask_for_a_round();
}

/// The same, where a connection closes: see [`defer_and_wake`].
pub fn ask_for_slices_and_wake() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        wake_event_loop();
    }
    ask_for_slices();
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// It got another expiry, or none, that its value doesn't know of.
    Expiry,
    /// It came to be, by `RESTORE`, `COPY`, `RENAME` or `MOVE`, with whatever expiry.
    Arrival,
}

/// Is a replica about to load a dataset that stands beside its old one?
pub(in crate::server) static LOADS_BESIDE: AtomicBool = AtomicBool::new(false);

/// Is a dataset being loaded that stands beside the old one, which clients still read (`repl-diskless-load swapdb`)? Then
/// two values may have the same key, and what is loaded belongs to the new dataset.
pub fn loads_beside() -> bool {
    LOADS_BESIDE.load(Ordering::Relaxed)
}

/// Lets the event loop go round once more before it sleeps.
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

/// Has a family asked to be told of every key that is removed?
pub(in crate::server) static TELLS_OF_REMOVALS: AtomicBool = AtomicBool::new(false);

/// Has a family asked to be told of every key that is removed?
#[inline]
pub(in crate::server) fn tells_of_removals() -> bool {
    TELLS_OF_REMOVALS.load(Ordering::Relaxed)
}

/// Tells the families of a key that was removed.
#[inline]
pub(in crate::server) fn key_removed(ctx: Ctx<'_>, name: &ServerString<'_>) {
    if tells_of_removals() {
        for family in crate::enabled_families() {
            (family.key_removed)(ctx, name);
        }
    }
}
