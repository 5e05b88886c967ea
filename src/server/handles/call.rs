//! What the server replies to a command that the module calls.

use crate::server::base::api;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::slice_of;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A setting of the server, as `CONFIG GET` shows it.
pub(in crate::server) fn setting(ctx: Ctx<'_>, name: &CStr) -> Option<String> {
    // SAFETY: "cc" are NUL-terminated strings, which live through the call.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            name.as_ptr()
        )))
    };
    reply.part().element(1)?.text()
}

/// What the server says of its commands.
pub(in crate::server) fn commands(ctx: Ctx<'_>) -> CallReply {
    // SAFETY: an empty format takes no arguments.
    unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            c"COMMAND".as_ptr(),
            c"".as_ptr()
        )))
    }
}

/// The ids of all clients; none where `CLIENT` has another name.
pub(in crate::server) fn clients(ctx: Ctx<'_>) -> Vec<u64> {
    // SAFETY: "c" is a NUL-terminated string, which lives through the call.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            c"CLIENT".as_ptr(),
            c"c".as_ptr(),
            c"LIST".as_ptr()
        )))
    };
    let list = reply.part().text().unwrap_or_default();
    let ids = list.lines().filter_map(|line| {
        let id = line.strip_prefix("id=")?;
        id.split(' ').next()?.parse().ok()
    });
    ids.collect()
}

/// Whether the client of the running command has a user. A client that a script or another module created can have none. Redis 7
/// and Valkey 8.0 crash if a module asks for the name of this user.
pub(in crate::server) fn has_user(ctx: Ctx<'_>) -> bool {
    // SAFETY: the format has no arguments. "C" lets the server look for the user first, and "E" lets it reply with an error.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            c"PING".as_ptr(),
            c"CE".as_ptr()
        )))
    };
    let error = reply.part().error();
    reply.is_there() && !error.is_some_and(|error| error.contains("cannot run as user"))
}

/// `RM_ConfigGetNumeric`.
type GetNumber =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *const c_char, *mut c_longlong) -> c_int;

/// A setting of the server that is a number; `None`: the server tells it by `CONFIG` alone, and that has another name.
pub(in crate::server) fn number_setting(ctx: Ctx<'_>, name: &CStr) -> Option<u64> {
    static GET_NUMBER: OnceLock<Option<GetNumber>> = OnceLock::new();
    let get = *GET_NUMBER.get_or_init(|| {
        let function = api::function(c"RedisModule_ConfigGetNumeric")?;
        // SAFETY: the server's function of this name has this type; it lives as long as the server.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, GetNumber>(function) })
    });
    if let Some(get) = get {
        let mut value: c_longlong = 0;
        // SAFETY: context and name are alive, and the server fills in the number.
        let status = unsafe { get(ctx.raw(), name.as_ptr(), &mut value) };
        if status == raw::REDISMODULE_OK as c_int {
            return u64::try_from(value).ok();
        }
    }
    setting(ctx, name)?.parse().ok()
}

/// The reply of a call, freed when dropped.
pub(in crate::server) struct CallReply(pub(in crate::server) *mut raw::RedisModuleCallReply);

impl CallReply {
    /// Whether the command exists and accepts these arguments.
    pub(in crate::server) fn is_there(&self) -> bool {
        !self.0.is_null()
    }

    pub(in crate::server) fn part(&self) -> CallReplyPart<'_> {
        CallReplyPart(self.0, self)
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the reply belongs to this struct alone.
            unsafe { api!(RedisModule_FreeCallReply(self.0)) };
        }
    }
}

/// A reply, or a part of one.
#[derive(Clone, Copy)]
pub(in crate::server) struct CallReplyPart<'a>(*mut raw::RedisModuleCallReply, &'a CallReply);

impl<'a> CallReplyPart<'a> {
    fn is(self, kind: isize) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: the part lives as long as the reply, and is not null.
        let found = unsafe { api!(RedisModule_CallReplyType(self.0)) };
        found == kind as c_int
    }

    pub(in crate::server) fn len(self) -> usize {
        if !self.is(raw::REDISMODULE_REPLY_ARRAY) {
            return 0;
        }
        // SAFETY: as above.
        unsafe { api!(RedisModule_CallReplyLength(self.0)) }
    }

    pub(in crate::server) fn element(self, index: usize) -> Option<CallReplyPart<'a>> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: as above.
        let part = unsafe { api!(RedisModule_CallReplyArrayElement(self.0, index)) };
        Some(CallReplyPart(part, self.1))
    }

    pub(in crate::server) fn text(self) -> Option<String> {
        self.text_of(raw::REDISMODULE_REPLY_STRING)
    }

    /// The text of an error.
    pub(in crate::server) fn error(self) -> Option<String> {
        self.text_of(raw::REDISMODULE_REPLY_ERROR)
    }

    fn text_of(self, kind: isize) -> Option<String> {
        if !self.is(kind) {
            return None;
        }
        let mut length = 0;
        // SAFETY: as above; the server fills in the length of the buffer.
        let bytes = unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut length));
            slice_of(start.cast::<u8>(), length)
        };
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
