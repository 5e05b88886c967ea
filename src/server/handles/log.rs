//! The log of the server. A message is always an argument of the format `"%s"`, never the format.

use crate::server::handles::context::Ctx;
use crate::server::handles::key;
use redis_module::raw;
use std::ffi::CString;
use std::ptr;

/// Writes a warning to the log, without its NUL bytes. The context names the module. It may be null.
pub(in crate::server) fn warn(ctx: *mut raw::RedisModuleCtx, message: &str) {
    let message = CString::new(message.replace('\0', "")).unwrap_or_default();
    // SAFETY: all three are NUL-terminated strings that live through the call. A null context is allowed; the line names no module
    // then.
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

/// The same without a context.
pub fn warn_of_server(message: &str) {
    warn(ptr::null_mut(), &format!("<sluice> {message}"));
}

/// Writes the details of a panic to the log instead of standard error.
pub(in crate::server) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut line = format!("internal error: {panic}");
        if let Some(name) = key::opened_name() {
            let name = quoted(&name);
            line += &format!("\nthe key {name} is open, and its value may be partly changed");
        }
        warn_of_server(&line);
    }));
}

/// The most bytes of a name in a log line.
const MAX_LOGGED_BYTES: usize = 128;

/// The name of a key for the log: escaped, cut and in quotation marks.
pub fn quoted(name: &[u8]) -> String {
    let end = match name.len() > MAX_LOGGED_BYTES {
        true => "...",
        false => "",
    };
    let name = name[..name.len().min(MAX_LOGGED_BYTES)].escape_ascii();
    format!("\"{name}\"{end}")
}
