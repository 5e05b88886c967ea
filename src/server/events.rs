//! What happens outside of the module's own commands: keys that go, change or move, connections
//! that close, a dataset that is loaded, a change of role.
//!
//! The server tells of these at moments when the dataset must not be changed. So they are only
//! noted, and the families deal with them as soon as that is safe: before the next command of the
//! module that writes, and at the latest in the next round of the server's event loop.

use super::clock::Now;
use super::context::{Ctx, Name};
use super::main_thread::MainThread;
use super::slice::Slice;
use super::slots::Ranges;
use super::{block, cluster, entry, import, info, lent, log, native, queued, timer, watch};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A value of the module left its key.
    Unlinked(i32, Box<[u8]>),
    /// A key of the module got another expiry, or came to be by `RESTORE`, `COPY`, `RENAME` or `MOVE`.
    Touched(i32, Box<[u8]>),
    /// A database was emptied; `None`: all of them.
    Flushed(Option<i32>),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// Somebody wants this hash slot of a cluster to come or go; `None`: several. Told only if some family
    /// [watches](super::watch).
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

static NOTED: MainThread<Vec<Happening>> = MainThread::new();
static ANY_NOTED: AtomicBool = AtomicBool::new(false);

/// Did the server ask us before it sleeps, and has not slept yet? Redis 7.0 runs commands even then.
static ABOUT_TO_SLEEP: AtomicBool = AtomicBool::new(false);

/// There is something to do in the event loop's next round: the server shall not sleep before that.
pub(super) fn ask_for_a_round() {
    if ABOUT_TO_SLEEP.swap(false, Ordering::Relaxed) {
        wake_event_loop();
    }
}

/// Notes a happening for the families.
pub fn note(happening: Happening) {
    NOTED.get().push(happening);
    ANY_NOTED.store(true, Ordering::Relaxed);
    ask_for_a_round();
}

/// Notes that whole databases went, came or moved, and tells the families at once.
pub(super) fn note_move(happening: Happening) {
    for family in crate::enabled_families() {
        (family.moved)(&happening);
    }
    note(happening);
}

/// The same as [`note`], and wakes the server's event loop: it frees connections after the moment at which we
/// are asked, and would then sleep.
pub fn note_and_wake(happening: Happening) {
    if !ANY_NOTED.load(Ordering::Relaxed) {
        wake_event_loop();
    }
    note(happening);
}

/// Have families work to do that is done in slices?
static WORK: AtomicU8 = AtomicU8::new(NOTHING);

const NOTHING: u8 = 0;
/// It came up since they were last asked.
const FRESH: u8 = 1;
/// It is more than a slice.
const BACKLOG: u8 = 2;

/// A family has work to do in slices, with the first of which it has not begun.
pub fn ask_for_slices() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        WORK.store(FRESH, Ordering::Relaxed);
    }
    ask_for_a_round();
}

/// The same, where a connection closes: see [`note_and_wake`].
pub fn ask_for_slices_and_wake() {
    if WORK.load(Ordering::Relaxed) == NOTHING {
        wake_event_loop();
    }
    ask_for_slices();
}

/// Lets the families do a slice of their work.
#[cold]
fn do_a_slice(ctx: Ctx<'_>) {
    WORK.store(NOTHING, Ordering::Relaxed);
    if ctx.is_loading() {
        return; // the cron event asks again
    }
    let mut slice = Slice::begin();
    let mut is_left = false;
    for family in crate::enabled_families() {
        is_left |= (family.go_on)(ctx, &mut slice);
    }
    if is_left {
        WORK.store(BACKLOG, Ordering::Relaxed);
        wake_event_loop();
    }
}

/// Lets the event loop go round once more before it sleeps.
fn wake_event_loop() {
    // SAFETY: the callback does nothing and expects no data.
    unsafe {
        api!(RedisModule_EventLoopAddOneShot(
            Some(on_wake),
            ptr::null_mut()
        ))
    };
}

unsafe extern "C" fn on_wake(_data: *mut c_void) {}

/// Before a command: lets the families deal with what was noted. Not in a cluster, where newer
/// servers take every key that is opened during a command for one of the command's slot.
#[inline]
pub(super) fn settle_before_command(ctx: Ctx<'_>) {
    let is_noted = ANY_NOTED.load(Ordering::Relaxed);
    // A backlog waits for the next round: commands do not take turns with it.
    let is_work = WORK.load(Ordering::Relaxed) == FRESH;
    if (is_noted || is_work) && !ctx.is_cluster() {
        if is_noted {
            settle(ctx);
        }
        if WORK.load(Ordering::Relaxed) == FRESH {
            do_a_slice(ctx);
        }
    }
}

/// Lets the families deal with what was noted, as far as that is possible now.
#[cold]
fn settle(ctx: Ctx<'_>) {
    if ctx.is_loading() {
        return;
    }
    let (is_replica, is_paused) = (ctx.is_replica(), ctx.is_paused());
    let now = Now::read();
    // Dealing with one thing may note another, such as a key that turned out to be expired.
    loop {
        let mut noted = std::mem::take(&mut *NOTED.get());
        if is_replica {
            // The master deals with what happens to keys; what is in our own memory and our own AOF
            // is our affair.
            noted.retain(|noted| matches!(noted, Happening::Demoted | Happening::Saving));
        }
        let possible = |noted: &Happening| !is_paused || matches!(noted, Happening::Demoted);
        let (mut ready, later): (Vec<_>, Vec<_>) = noted.into_iter().partition(possible);
        ANY_NOTED.store(!later.is_empty(), Ordering::Relaxed);
        *NOTED.get() = later;
        if ready.is_empty() {
            return;
        }
        // What a connection leaves behind is looked for where it is now, after all that moved.
        ready.sort_by_key(|happening| matches!(happening, Happening::Disconnected(_)));
        for happening in &ready {
            for family in crate::enabled_families() {
                (family.happened)(ctx, now, happening);
            }
        }
    }
}

/// May commands be handed down by a master or an AOF? Not while this server is a master that loads nothing, but in a cluster
/// always: newer servers hand a slot's commands to the master that gets it.
static MAY_REPLAY: AtomicBool = AtomicBool::new(true);

/// May the running command be one that a master or an AOF hands down?
pub(super) fn may_replay() -> bool {
    MAY_REPLAY.load(Ordering::Relaxed)
}

/// Looks again whether that may be. `is_loading`: whether a dataset is about to be loaded.
fn look_for_replays(ctx: Ctx<'_>, is_loading: bool) {
    let may_replay = is_loading || ctx.is_loading() || ctx.is_replica() || ctx.is_cluster();
    MAY_REPLAY.store(may_replay, Ordering::Relaxed);
}

/// Is a replica about to load a dataset that stands beside its old one?
static LOADS_BESIDE: AtomicBool = AtomicBool::new(false);

/// Is a dataset being loaded that stands beside the old one, which clients still read (`repl-diskless-load swapdb`)? Then
/// two values may have the same key, and what is loaded belongs to the new dataset.
pub fn loads_beside() -> bool {
    LOADS_BESIDE.load(Ordering::Relaxed)
}

/// Subscribes to everything. False if the server refuses.
pub(super) fn subscribe(ctx: Ctx<'_>) -> bool {
    look_for_replays(ctx, false);
    let server_events: [(u64, raw::RedisModuleEventCallback); 10] = [
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap)),
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(on_client)),
        (raw::REDISMODULE_EVENT_LOADING, Some(on_loading)),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, Some(on_load_beside)),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            Some(on_role),
        ),
        (raw::REDISMODULE_EVENT_EVENTLOOP, Some(on_event_loop)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(on_cron)),
        (raw::REDISMODULE_EVENT_FORK_CHILD, Some(on_fork)),
        (raw::REDISMODULE_EVENT_SHUTDOWN, Some(on_shutdown)),
    ];
    // SAFETY: the callbacks live as long as the module and know version 1 of each event's data.
    unsafe {
        let refused = server_events.into_iter().any(|(id, callback)| {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                callback
            )) != raw::REDISMODULE_OK as c_int
        });
        let keys = api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_GENERIC,
            Some(on_key)
        ));
        if refused || keys != raw::REDISMODULE_OK as c_int || !import::follow(ctx) {
            let line = "the server refuses a subscription to its events";
            log::warn(ctx.raw(), line);
            return false;
        }
    }
    cluster::subscribe(ctx);
    true
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It got another expiry, or none, that its value doesn't know of.
    Expiry,
    /// It came to be, by `RESTORE`, `COPY`, `RENAME` or `MOVE`, with whatever expiry.
    Arrival,
}

/// The generic keyspace events that tell of it.
const TOUCHING: [(&[u8], Touch); 6] = [
    (b"expire", Touch::Expiry),
    (b"persist", Touch::Expiry),
    (b"restore", Touch::Arrival),
    (b"rename_to", Touch::Arrival),
    (b"move_to", Touch::Arrival),
    (b"copy_to", Touch::Arrival),
];

/// The generic keyspace events that tell of a key that went.
const REMOVING: [&[u8]; 3] = [b"del", b"rename_from", b"move_from"];

// SAFETY (for all callbacks below): the server calls them with a live context, and with data of the
// type that belongs to the event.

unsafe extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    entry::guard((), || {
        // SAFETY: see above.
        let (ctx, event, name) =
            unsafe { (Ctx::new(ctx), CStr::from_ptr(event), Name::borrowed(key)) };
        let found = TOUCHING.iter().find(|(name, _)| *name == event.to_bytes());
        let touch = found.map(|(_, touch)| *touch);
        if touch == Some(Touch::Arrival) || REMOVING.contains(&event.to_bytes()) {
            for family in crate::enabled_families() {
                (family.removed)(ctx, &name);
            }
        }
        if let Some(touch) = touch
            && native::any_live()
            && ctx.peek(&name).is_native()
        {
            for family in crate::enabled_families() {
                (family.touched)(ctx, &name, touch);
            }
        }
        lent::give_back(ctx, event.to_bytes(), &name);
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_flush(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    entry::guard((), || {
        if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            // SAFETY: see above.
            let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
            note_move(Happening::Flushed((info.dbnum >= 0).then_some(info.dbnum)));
        }
    });
}

unsafe extern "C" fn on_swap(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    entry::guard((), || {
        // SAFETY: see above.
        let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
        note_move(Happening::Swapped(info.dbnum_first, info.dbnum_second));
    });
}

unsafe extern "C" fn on_client(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    entry::guard((), || {
        if subevent == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
            // SAFETY: see above.
            let client = unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id };
            lent::forget(client);
            queued::transaction_ends(); // perhaps it had one
            if crate::enabled_families().any(|family| (family.follows_client)(client)) {
                note_and_wake(Happening::Disconnected(client));
            }
        }
    });
}

unsafe extern "C" fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::guard((), || {
        let has_ended = matches!(
            subevent,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED
        );
        // SAFETY: see above.
        look_for_replays(unsafe { Ctx::new(ctx) }, !has_ended);
        if has_ended {
            note_move(Happening::Loaded);
        }
    });
}

unsafe extern "C" fn on_load_beside(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::guard((), || {
        let begins = subevent == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED;
        LOADS_BESIDE.store(begins, Ordering::Relaxed);
        match subevent {
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => note_move(Happening::Replaced),
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED => note_move(Happening::Discarded),
            _ => {}
        }
    });
}

unsafe extern "C" fn on_role(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::guard((), || {
        let is_replica = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA;
        // SAFETY: see above.
        look_for_replays(unsafe { Ctx::new(ctx) }, is_replica);
        cluster::role_changes();
        if is_replica {
            note(Happening::Demoted);
        }
    });
}

unsafe extern "C" fn on_fork(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::guard((), || {
        if subevent == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
            note(Happening::Saving);
        }
    });
}

unsafe extern "C" fn on_event_loop(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    ABOUT_TO_SLEEP.store(false, Ordering::Relaxed);
    if subevent != raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        return;
    }
    entry::guard((), watch::settle); // before anybody is served
    if ANY_NOTED.load(Ordering::Relaxed) || WORK.load(Ordering::Relaxed) != NOTHING {
        timer::was_armed(); // before, by commands and timers, of which the server knows
        entry::guard((), || {
            // SAFETY: see above.
            let ctx = unsafe { Ctx::new(ctx) };
            if ANY_NOTED.load(Ordering::Relaxed) {
                settle(ctx);
            }
            if WORK.load(Ordering::Relaxed) != NOTHING {
                do_a_slice(ctx);
            }
            // The server may have computed for how long it sleeps before it asked us.
            if timer::was_armed() {
                wake_event_loop();
            }
        });
    }
    // SAFETY: see above.
    entry::guard((), || cluster::look_if_changed(unsafe { Ctx::new(ctx) }));
    entry::guard((), block::deliver);
    ABOUT_TO_SLEEP.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::guard((), || {
        // SAFETY: see above.
        let ctx = unsafe { Ctx::new(ctx) };
        timer::stop_if_too_far(ctx);
        timer::ask_families(ctx);
        info::log_eviction(ctx);
        cluster::look_after(ctx);
        for family in crate::enabled_families() {
            (family.cron)(ctx);
        }
    });
}

unsafe extern "C" fn on_shutdown(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // The process ends; nothing may be decided any more.
    entry::guard((), || {
        NOTED.get().clear();
        ANY_NOTED.store(false, Ordering::Relaxed);
    });
}
