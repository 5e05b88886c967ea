//! Valkey's import mode (the setting `import-mode`, since 8.1): while it is on, a tool copies another server's dataset to this
//! one, and that server decides when keys end.

use crate::server::base::guard::guard;
use crate::server::handles::call::{self, CallReply};
use crate::server::handles::context::{self, Ctx};
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};

const SETTING: &CStr = c"import-mode";

/// Reads the setting, and again whenever it changes. False if the server refuses the subscription. Redis has no such setting.
pub(in crate::server) fn follow(ctx: Ctx<'_>) -> bool {
    if !Version::running().is_valkey() {
        return true;
    }
    refresh(ctx);
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_CONFIG,
        dataver: 1,
    };
    // SAFETY: the callback lives as long as the module and reads nothing of the event's data.
    let status = unsafe {
        api!(RedisModule_SubscribeToServerEvent(
            ctx.raw(),
            event,
            Some(on_config_change)
        ))
    };
    status == raw::REDISMODULE_OK as c_int
}

fn refresh(ctx: Ctx<'_>) {
    let is_on = match call::setting(ctx, SETTING) {
        Some(value) => value == "yes",
        // Valkey 8.0 has no such setting; of newer ones `CONFIG` has another name.
        None => accepts_import_source(ctx),
    };
    if context::set_import_mode(is_on) != is_on {
        let line = if is_on {
            "import-mode is on: no hold, lease or reservation ends until it is off"
        } else {
            "import-mode is off: overdue holds, leases and reservations end now"
        };
        log::warn(ctx.raw(), line);
    }
}

/// Would the server accept an import source? It does in import mode only. The client that asks is the module's own for this one
/// call, and is reset after it.
fn accepts_import_source(ctx: Ctx<'_>) -> bool {
    // SAFETY: "cc" are NUL-terminated strings, which live through the call.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            c"CLIENT".as_ptr(),
            c"cc".as_ptr(),
            c"IMPORT-SOURCE".as_ptr(),
            c"ON".as_ptr()
        )))
    };
    reply.is_there() && reply.part().error().is_none()
}

unsafe extern "C" fn on_config_change(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server calls with a live context.
    guard((), || refresh(unsafe { Ctx::new(ctx) }));
}
