//! The server's log. The message is always an argument of `"%s"`, never the format itself.

use redis_module::raw;
use std::ffi::{CStr, CString};
use std::ptr;

/// How loud a line is.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    /// What an operator wants to see.
    Notice,
    /// What an operator must see.
    Warning,
}

/// Writes a line. NUL bytes are left out.
pub fn write(level: Level, message: &str) {
    write_with(ptr::null_mut(), level, message);
}

pub(super) fn write_with(ctx: *mut raw::RedisModuleCtx, level: Level, message: &str) {
    let level: &CStr = match level {
        Level::Notice => c"notice",
        Level::Warning => c"warning",
    };
    let message = CString::new(message.replace('\0', "")).unwrap_or_default();
    // SAFETY: all three are NUL-terminated strings that live through the call; a null context is
    // allowed, the line then names no module.
    unsafe {
        api!(RedisModule_Log(
            ctx,
            level.as_ptr(),
            c"%s".as_ptr(),
            message.as_ptr()
        ));
    }
}

/// Sends the details of a panic to the log instead of standard error.
pub(super) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        write(Level::Warning, &format!("<sluice> internal error: {panic}"));
    }));
}
