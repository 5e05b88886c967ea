//! Is there memory for something large? The server refuses commands that need more when too much is
//! in use already, but does not look at how much one of them wants.

use crate::error::Error;
use crate::server::handles::server_info::ServerInfo;
use redis_module::raw;
use std::ptr;

/// Smaller requests are not asked for: the server's own check, before each command, is enough.
const SMALL: usize = 256 * 1024;

/// Checks that `size` more bytes fit into `maxmemory` and into the machine.
pub fn check_room(size: usize) -> Result<(), Error> {
    if size < SMALL {
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

/// Does this server do what a master or its own dataset says, so that it refuses nothing?
pub fn is_following() -> bool {
    let follows = raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING;
    // SAFETY: a null context is allowed, which tells what is true of the whole server.
    let flags = unsafe { api!(RedisModule_GetContextFlags(ptr::null_mut())) };
    flags as u32 & follows != 0
}
