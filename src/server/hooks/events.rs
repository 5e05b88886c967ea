//! Events outside of the module's own commands: keys that are deleted, changed or moved, connections that close, a dataset that
//! is loaded, a change of role.
//!
//! The server reports these events when the dataset must not change. So the callbacks defer them ([`ServerEvent`]). In a pause of writes,
//! most of them wait for its end.

use crate::server::base::clock::Now;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::base::slice::Slice;
use crate::server::handles::context::{self, Ctx};
use crate::server::handles::log;
use crate::server::handles::native_type;
use crate::server::handles::open_value;
use crate::server::handles::string::ServerString;
use crate::server::hooks::deletions;
use crate::server::hooks::due;
use crate::server::services::blocked;
use crate::server::services::cluster;
use crate::server::services::commit;
use crate::server::services::deferred::{
    ABOUT_TO_SLEEP, ANY_DEFERRED, BACKLOG, DEFERRED, FRESH, IS_FLUSHING, KeyChange, LOADS_BESIDE,
    LOADS_FOR_REPLICA, NOTHING, ServerEvent, WORK, ask_for_a_round, defer, defer_and_wake,
    defer_slot_change, needs_round, tell_families, wake_event_loop,
};
use crate::server::services::import;
use crate::server::services::info;
use crate::server::services::memory;
use crate::server::services::publish;
use crate::server::services::replicas;
use crate::server::services::timer;
use crate::waiting::Key;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::sync::atomic::Ordering;

/// Lets the families do a slice of their work.
#[cold]
fn do_a_slice(ctx: Ctx<'_>) {
    WORK.store(NOTHING, Ordering::Relaxed);
    if ctx.is_loading() {
        return; // the cron event asks again
    }
    let _nodes = cluster::same_nodes();
    let mut slice = Slice::begin();
    let mut is_left = false;
    for family in crate::enabled_families() {
        is_left |= (family.go_on)(ctx, &mut slice);
        commit::emit_events(ctx);
    }
    if is_left {
        WORK.store(BACKLOG, Ordering::Relaxed);
        wake_event_loop();
    }
}

/// Whether [`run_deferred_before_command`] may have something to do.
#[inline]
pub(in crate::server) fn is_any_deferred() -> bool {
    ANY_DEFERRED.load(Ordering::Relaxed) || WORK.load(Ordering::Relaxed) == FRESH
}

/// Before a command: lets the families handle deferred events. Not in a cluster, where newer servers count every key that is
/// opened during a command as one of the command's slot. And not before a command of a module, which a listener may run in the middle of
/// another command.
#[inline]
pub(in crate::server) fn run_deferred_before_command(ctx: Ctx<'_>) {
    let is_deferred = ANY_DEFERRED.load(Ordering::Relaxed);
    // A backlog waits for the next round: commands do not take turns with it.
    let is_work = WORK.load(Ordering::Relaxed) == FRESH;
    if (is_deferred || is_work) && !ctx.is_cluster() && !ctx.may_be_nested() {
        if is_deferred {
            run_deferred(ctx);
        }
        if WORK.load(Ordering::Relaxed) == FRESH {
            do_a_slice(ctx);
        }
    }
}

/// Lets the families handle deferred events, as far as that is possible now.
#[cold]
fn run_deferred(ctx: Ctx<'_>) {
    if ctx.is_loading() {
        return;
    }
    let _nodes = cluster::same_nodes();
    report_late_changes(ctx);
    let (is_replica, is_paused) = (ctx.is_replica(), ctx.is_paused());
    let now = Now::read();
    // A handler may defer another event, for example of a key that has expired.
    loop {
        let mut events = mem::take(&mut *DEFERRED.get());
        if is_replica {
            // The master handles changes of keys. A replica handles only events of its own memory and its own AOF.
            events.retain(|event| matches!(event, ServerEvent::Demoted | ServerEvent::Saving));
        }
        // A pause delays neither of these: when it ends, the slot may already be back.
        let possible = |event: &ServerEvent| {
            !is_paused || matches!(event, ServerEvent::Demoted | ServerEvent::SlotsMayMove)
        };
        let (mut ready, later): (Vec<_>, Vec<_>) = events.into_iter().partition(possible);
        let is_any_deferred = !later.is_empty() || !LATE_CHANGES.get().is_empty();
        ANY_DEFERRED.store(is_any_deferred, Ordering::Relaxed);
        *DEFERRED.get() = later;
        if ready.is_empty() {
            return;
        }
        // The holds of a closed connection are searched where they are after all moves.
        ready.sort_by_key(|event| matches!(event, ServerEvent::Disconnected(_)));
        for event in &ready {
            for family in crate::enabled_families() {
                (family.on_event)(ctx, now, event);
                commit::emit_events(ctx);
            }
        }
    }
}

/// Updates whether a master or an AOF can send commands to this server. `is_loading`: a dataset is about to be loaded.
fn update_may_replay(ctx: Ctx<'_>, is_loading: bool) {
    let may_replay = is_loading || ctx.is_loading() || ctx.is_replica() || ctx.is_cluster();
    context::set_may_replay(may_replay);
}

/// Subscribes to everything. False if the server refuses.
pub(in crate::server) fn subscribe(ctx: Ctx<'_>) -> bool {
    update_may_replay(ctx, false);
    timer::call_when_due(due::on_due);
    let server_events: [(u64, raw::RedisModuleEventCallback); 11] = [
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
        (raw::REDISMODULE_EVENT_CONFIG, Some(on_config_change)),
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
        if refused || keys != raw::REDISMODULE_OK as c_int {
            let line = "cannot subscribe to server events";
            log::warn(ctx.raw(), line);
            return false;
        }
    }
    import::refresh(ctx);
    memory::learn_limit();
    cluster::subscribe(ctx);
    true
}

/// The generic keyspace events of a change of a key, with the kind of the change.
const KEY_CHANGES: [(&[u8], KeyChange); 6] = [
    (b"expire", KeyChange::Expiry),
    (b"persist", KeyChange::Expiry),
    (b"restore", KeyChange::Arrival),
    (b"rename_to", KeyChange::Arrival),
    (b"move_to", KeyChange::Arrival),
    (b"copy_to", KeyChange::Arrival),
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
    guard((), || {
        // SAFETY: see above.
        let (ctx, event, name) = unsafe {
            (
                Ctx::new(ctx),
                CStr::from_ptr(event),
                ServerString::borrowed(key),
            )
        };
        let found = KEY_CHANGES
            .iter()
            .find(|(name, _)| *name == event.to_bytes());
        let change = found.map(|(_, change)| *change);
        if change == Some(KeyChange::Arrival) || REMOVING.contains(&event.to_bytes()) {
            for family in crate::enabled_families() {
                (family.key_removed)(ctx, &name);
            }
        }
        if let Some(change) = change
            && native_type::has_live_values()
        {
            report_change(ctx, &name, change);
        }
    });
    raw::REDISMODULE_OK as c_int
}

/// Reports a change of a key to the families, if the key holds a value of a module.
fn report_change(ctx: Ctx<'_>, name: &ServerString<'_>, change: KeyChange) {
    let key = ctx.peek(name);
    if !key.is_native() {
        return;
    }
    if key.holds_open_value() {
        let key = (ctx.db(), name.bytes().into());
        LATE_CHANGES.get().push((key, change));
        ANY_DEFERRED.store(true, Ordering::Relaxed);
        return ask_for_a_round();
    }
    drop(key);
    for family in crate::enabled_families() {
        (family.key_changed)(ctx, name, change);
    }
}

/// The changes that a listener to keyspace events has made to keys whose values are open. They are reported when no value is open any
/// more, also on replicas and in pauses.
static LATE_CHANGES: MainThread<Vec<(Key, KeyChange)>> = MainThread::new();

fn report_late_changes(ctx: Ctx<'_>) {
    if open_value::is_any_value_open() {
        return;
    }
    // The list is taken before the loop, so that it is not borrowed during the loop. Redis 7.0 may remove an expired key there and call
    // listeners, which can add to the list.
    let late = mem::take(&mut *LATE_CHANGES.get());
    for ((db, key), change) in late {
        let name = ServerString::new(&key);
        ctx.in_db(db, || report_change(ctx, &name, change));
    }
}

unsafe extern "C" fn on_flush(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    guard((), || {
        IS_FLUSHING.store(
            subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_START,
            Ordering::Relaxed,
        );
        if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            // SAFETY: see above.
            let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
            defer_slot_change(ServerEvent::Flushed(
                (info.dbnum >= 0).then_some(info.dbnum),
            ));
        }
    });
}

unsafe extern "C" fn on_swap(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    guard((), || {
        // SAFETY: see above.
        let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
        let (first, second) = (info.dbnum_first, info.dbnum_second);
        for ((db, _), _) in LATE_CHANGES.get().iter_mut() {
            *db = match *db {
                db if db == first => second,
                db if db == second => first,
                db => db,
            };
        }
        defer_slot_change(ServerEvent::Swapped(first, second));
    });
}

unsafe extern "C" fn on_client(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    guard((), || {
        // SAFETY: see above.
        let client = unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id };
        if subevent == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_CONNECTED {
            deletions::connects(client);
        } else if subevent == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
            deletions::disconnects(client);
            if crate::enabled_families().any(|family| (family.follows_client)(client)) {
                defer_and_wake(ServerEvent::Disconnected(client));
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
    guard((), || {
        let has_ended = matches!(
            subevent,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED
        );
        // SAFETY: see above.
        update_may_replay(unsafe { Ctx::new(ctx) }, !has_ended);
        match subevent {
            raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => {
                LOADS_FOR_REPLICA.store(true, Ordering::Relaxed);
            }
            raw::REDISMODULE_SUBEVENT_LOADING_FAILED
                if LOADS_FOR_REPLICA.swap(false, Ordering::Relaxed) =>
            {
                tell_families(&ServerEvent::Discarded);
            }
            _ => {}
        }
        if has_ended {
            defer_slot_change(ServerEvent::Loaded);
            LOADS_FOR_REPLICA.store(false, Ordering::Relaxed);
        }
    });
}

unsafe extern "C" fn on_load_beside(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    guard((), || {
        let begins = subevent == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED;
        LOADS_BESIDE.store(begins, Ordering::Relaxed);
        match subevent {
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => {
                LOADS_FOR_REPLICA.store(false, Ordering::Relaxed);
                defer_slot_change(ServerEvent::Replaced);
            }
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED => {
                defer_slot_change(ServerEvent::Discarded);
            }
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
    guard((), || {
        let is_replica = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA;
        // SAFETY: see above.
        update_may_replay(unsafe { Ctx::new(ctx) }, is_replica);
        memory::learn_limit(); // a replica may ignore `maxmemory`
        cluster::role_changes();
        if is_replica {
            defer(ServerEvent::Demoted);
        }
    });
}

unsafe extern "C" fn on_fork(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    guard((), || {
        if subevent == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
            defer(ServerEvent::Saving);
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
    guard((), deletions::ends_round); // before anybody is served
    if ANY_DEFERRED.load(Ordering::Relaxed) || WORK.load(Ordering::Relaxed) != NOTHING {
        needs_round(); // before, by commands and timers, of which the server knows
        guard((), || {
            // SAFETY: see above.
            let ctx = unsafe { Ctx::new(ctx) };
            if ANY_DEFERRED.load(Ordering::Relaxed) {
                run_deferred(ctx);
            }
            if WORK.load(Ordering::Relaxed) != NOTHING {
                do_a_slice(ctx);
            }
            // The server may have computed for how long it sleeps, and served blocked clients, before it asked us. A listener to an
            // event of this work may have left some more.
            if needs_round() || WORK.load(Ordering::Relaxed) == FRESH {
                wake_event_loop();
            }
        });
    }
    // SAFETY: see above.
    let ctx = unsafe { Ctx::new(ctx) };
    guard((), || cluster::check_waiting_clients_if_changed(ctx));
    guard((), || commit::emit_events(ctx));
    guard((), blocked::deliver);
    guard((), || publish::deliver(ctx));
    ABOUT_TO_SLEEP.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guard((), || {
        // SAFETY: see above.
        let ctx = unsafe { Ctx::new(ctx) };
        timer::stop_if_too_far(ctx);
        due::ask_families(ctx);
        info::log_eviction(ctx);
        cluster::check_waiting_clients_regularly(ctx);
        deletions::tick(ctx);
        for family in crate::enabled_families() {
            (family.cron)(ctx);
        }
        crate::general::cron(ctx);
        commit::emit_events(ctx);
    });
}

unsafe extern "C" fn on_config_change(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guard((), || {
        memory::learn_limit();
        replicas::forget();
        // SAFETY: see above.
        import::refresh(unsafe { Ctx::new(ctx) });
    });
}

unsafe extern "C" fn on_shutdown(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // The process ends; nothing may be decided any more.
    guard((), || {
        DEFERRED.get().clear();
        ANY_DEFERRED.store(false, Ordering::Relaxed);
    });
}
