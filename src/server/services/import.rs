//! Valkey's import mode (the setting `import-mode`, since 8.1): while it is on, a tool copies another server's dataset to this
//! one, and that server decides when keys end.

use crate::server::handles::call::{self, CallReply};
use crate::server::handles::context::{self, Ctx};
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use std::ffi::CStr;

const SETTING: &CStr = c"import-mode";

/// Reads the setting. Redis has no such setting.
pub(in crate::server) fn refresh(ctx: Ctx<'_>) {
    if Version::running().is_valkey() {
        read_setting(ctx);
    }
}

fn read_setting(ctx: Ctx<'_>) {
    let is_on = match call::setting(ctx, SETTING) {
        Some(value) => value == "yes",
        // Valkey 8.0 has no such setting; of newer ones `CONFIG` has another name.
        None => accepts_import_source(ctx),
    };
    if context::set_import_mode(is_on) != is_on {
        let line = if is_on {
            "import-mode is on: until it is off, holds, leases and reservations end only when a command uses their keys"
        } else {
            "import-mode is off: overdue holds, leases and reservations end now"
        };
        log::warn(ctx.raw(), line);
    }
}

/// Whether the server accepts an import source. It does so in import mode only. The query runs as a temporary client of the module,
/// which is reset after the call.
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
