//! Checks that a large allocation fits into `maxmemory` and into the machine. The server refuses commands with the flag
//! `deny-oom` if too much memory is in use already, but it does not check how much memory one command needs.

use crate::error::Error;
use crate::server::handles::call::CallReply;
use crate::server::handles::context::{Ctx, has_server_flags, server_flags};
use crate::server::handles::server_info::ServerInfo;
use crate::server::handles::string::ServerString;
use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smaller requests are not asked for: the server's own check, before each command, is enough.
const SMALL_BYTES: usize = 256 * 1024;

/// Checks that `size` more bytes fit into `maxmemory` and into the machine.
pub fn check_room(size: usize) -> Result<(), Error> {
    if size < SMALL_BYTES {
        return Ok(());
    }
    let memory = ServerInfo::read(c"memory");
    let (used, most) = (memory.number(c"used_memory"), memory.number(c"maxmemory"));
    let wanted = if memory.text(c"maxmemory_policy").starts_with(b"allkeys") {
        size as u64 // other keys are evicted to make room
    } else {
        used.saturating_add(size as u64)
    };
    if most > 0 && wanted > most {
        return Err(Error::OutOfMemory);
    }
    let machine = memory.number(c"total_system_memory");
    if machine > 0 && used.saturating_add(size as u64) > machine {
        return Err(Error::NoMemory);
    }
    Ok(())
}

/// Whether this server applies the changes of a master or loads its own dataset, so that it must not refuse a command.
pub fn is_following() -> bool {
    let follows = raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING;
    has_server_flags(follows)
}

/// Whether `maxmemory` limits this server.
static IS_LIMITED: AtomicBool = AtomicBool::new(true);

/// Learns whether `maxmemory` limits this server. To be called when the settings or the role of the server have changed.
pub(in crate::server) fn learn_limit() {
    let is_limited = has_server_flags(raw::REDISMODULE_CTX_FLAGS_MAXMEMORY);
    IS_LIMITED.store(is_limited, Ordering::Relaxed);
}

/// Whether the memory in use is more than `maxmemory` allows, and the server evicts no keys or cannot evict enough of them. The
/// server itself refuses a command with the flag `deny-oom` then. This is for commands that need no memory with some of their
/// arguments. Most calls ask the server nothing.
///
/// `check`: a command with the flag `deny-oom` that fails if it is called with the key and two empty strings. `name`: a key of the
/// running command.
#[inline]
pub fn refuses_growth(ctx: Ctx<'_>, check: &CStr, name: &ServerString<'_>) -> bool {
    IS_LIMITED.load(Ordering::Relaxed)
        && exceeds_limit()
        && (!may_evict() || has_failed_to_evict(ctx, check, name))
}

/// Whether the server evicted too little before the running command. While it goes on to evict in the background, it refuses
/// nothing.
#[cold]
fn has_failed_to_evict(ctx: Ctx<'_>, check: &CStr, name: &ServerString<'_>) -> bool {
    // SAFETY: "scc" are a key's name and NUL-terminated strings, which live through the call. "M" lets the server refuse the
    // command as if a client sent it, and "E" lets it reply with its reason.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            check.as_ptr(),
            c"EMscc".as_ptr(),
            name.raw(),
            c"".as_ptr(),
            c"".as_ptr()
        )))
    };
    let error = reply.part().error();
    error.is_some_and(|error| error.starts_with("OOM "))
}

/// Whether the memory in use is more than `maxmemory` allows, whether or not the server evicts keys.
#[inline]
pub fn is_full() -> bool {
    IS_LIMITED.load(Ordering::Relaxed) && exceeds_limit()
}

#[cold]
fn exceeds_limit() -> bool {
    let full = raw::REDISMODULE_CTX_FLAGS_MAXMEMORY | raw::REDISMODULE_CTX_FLAGS_OOM;
    server_flags() & full == full
}

/// Whether the server may evict keys: `maxmemory` is set, and `maxmemory-policy` is not `noeviction`. A replica that ignores
/// `maxmemory` evicts no keys.
pub(in crate::server) fn may_evict() -> bool {
    has_server_flags(raw::REDISMODULE_CTX_FLAGS_EVICT)
}
