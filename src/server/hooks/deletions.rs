//! A closer look at keys that go: those that expire or are evicted, of whatever type; `DEL` of keys that need not be
//! there, and the slots of a cluster that come and go, of which no event tells. It costs every command of the server a
//! little, so it begins when a family first asks for it. What other commands remove is told by the events that
//! [`super::events`] subscribes to anyway.

use crate::request::{is, parse_int};
use crate::server::base::guard::guard;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use crate::server::hooks::queued;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::{ServerEvent, defer_and_wake};
use crate::server::services::deleters;
use redis_module::raw;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

/// From now on families are told of all keys that go, and of all that are deleted by name, before they are.
#[inline]
pub fn all_that_goes(ctx: Ctx<'_>) {
    if !deferred::tells_of_removals() {
        begin(ctx);
    }
}

#[cold]
fn begin(ctx: Ctx<'_>) {
    deferred::TELLS_OF_REMOVALS.store(true, Ordering::Relaxed);
    deleters::learn(ctx);
    // SAFETY: the context is alive, the callbacks live as long as the module.
    let refused = unsafe {
        let filter = api!(RedisModule_RegisterCommandFilter(
            ctx.raw(),
            Some(on_command),
            0
        ));
        let subscribed = api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED,
            Some(on_removal)
        ));
        filter.is_null() || subscribed != raw::REDISMODULE_OK as c_int
    };
    if refused {
        log::warn_in(ctx, "the server refuses to tell of all keys that go");
    }
}

// SAFETY (for both callbacks): the server calls them with live pointers.

unsafe extern "C" fn on_removal(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guard((), || {
        // SAFETY: see above.
        let (ctx, name) = unsafe { (Ctx::new(ctx), ServerString::borrowed(key)) };
        deferred::key_removed(ctx, &name);
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    guard((), || {
        queued::run_deferred(deleting);
        // SAFETY: see above.
        let argument = |index| unsafe {
            ServerString::borrowed(api!(RedisModule_CommandFilterArgGet(command, index)))
        };
        let command_name = argument(0);
        // Every command of the server passes here, so its name is all that most are asked for.
        let told = match command_name.bytes() {
            name if deleters::is_plain(name) => names_arrive,
            name if ["exec", "discard", "reset"].iter().any(|end| is(name, end)) => {
                return queued::transaction_ends();
            }
            name if is(name, "cluster") => slots_may_move,
            name if deleters::is_other(name) => {
                // SAFETY: see above.
                let count = unsafe { api!(RedisModule_CommandFilterArgsCount(command)) };
                return keys_arrive((0..count).map(argument).collect());
            }
            _ if cluster::is_renamed() => slots_may_move,
            _ => return,
        };
        // SAFETY: see above.
        let count = unsafe { api!(RedisModule_CommandFilterArgsCount(command)) };
        told(&mut (1..count).map(argument));
    });
}

/// The arguments of a command that arrives.
type Arguments<'a, 'n> = &'a mut dyn Iterator<Item = ServerString<'n>>;

/// `DEL`, or a command like it: it runs now, or when its transaction does.
fn names_arrive(names: Arguments<'_, '_>) {
    queued::arrived(names.inspect(|name| deleting(name.bytes())));
}

/// A command that deletes keys among other arguments. One with a condition deletes them perhaps; it is taken for one that
/// does.
fn keys_arrive(command: Vec<ServerString<'_>>) {
    let places = deleters::places_of_keys(&command);
    let is_key = |(place, name)| places.contains(&place).then_some(name);
    names_arrive(&mut command.into_iter().enumerate().filter_map(is_key));
}

/// What was queued may have run, or been given up: to be called also before a command of the module, and before the server
/// sleeps.
#[inline]
pub(in crate::server) fn run_deferred() {
    queued::run_deferred(deleting);
}

/// A key of this name is about to be deleted.
fn deleting(key: &[u8]) {
    for family in crate::enabled_families() {
        (family.key_deleting)(key);
    }
}

/// `CLUSTER`, by which hash slots may come to this node, or go.
fn slots_may_move(arguments: Arguments<'_, '_>) {
    // Of atomic migration there are events.
    const MOVING: [&str; 6] = [
        "setslot",
        "addslots",
        "addslotsrange",
        "delslots",
        "delslotsrange",
        "flushslots",
    ];
    let Some(what) = arguments.next() else {
        return;
    };
    if MOVING.iter().any(|word| is(what.bytes(), word)) {
        let slot = arguments.next().filter(|_| is(what.bytes(), "setslot"));
        let slot = slot.and_then(|slot| parse_int(slot.bytes()));
        let slot = slot.and_then(|slot| u16::try_from(slot).ok());
        defer_and_wake(ServerEvent::SlotMayMove(slot));
    }
}
