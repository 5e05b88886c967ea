//! The server's log. The message is always an argument of `"%s"`, never the format itself.

use crate::server::handles::context::Ctx;
use redis_module::raw;
use std::ffi::CString;
use std::ptr;

/// Writes a line that an operator must see. NUL bytes are left out. The context names the module;
/// it may be null.
pub(in crate::server) fn warn(ctx: *mut raw::RedisModuleCtx, message: &str) {
    let message = CString::new(message.replace('\0', "")).unwrap_or_default();
    // SAFETY: all three are NUL-terminated strings that live through the call; a null context is
    // allowed, the line then names no module.
    unsafe {
        api!(RedisModule_Log(
            ctx,
            c"warning".as_ptr(),
            c"%s".as_ptr(),
            message.as_ptr()
        ));
    }
}

/// The same for the families.
pub fn warn_in(ctx: Ctx<'_>, message: &str) {
    warn(ctx.raw(), message);
}

/// The same where there is no context.
pub fn warn_of_server(message: &str) {
    warn(ptr::null_mut(), &format!("<sluice> {message}"));
}

/// Sends the details of a panic to the log instead of standard error.
pub(in crate::server) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        warn_of_server(&format!("internal error: {panic}"));
    }));
}
