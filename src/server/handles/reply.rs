//! Puts replies on the wire.

use crate::error::Error;
use crate::reply::{Answer, Fetched, Reply};
use crate::server::handles::context::Ctx;
use std::ffi::{CString, c_long};

impl Ctx<'_> {
    /// Sends a value from where it is.
    pub fn send_value(self, value: &[u8]) -> Reply {
        send_bytes(self, value);
        Reply::Sent
    }

    /// Sends a list of integers from where it is.
    pub fn send_ints(self, ints: &[i64]) -> Reply {
        send_ints(self, ints);
        Reply::Sent
    }

    /// Sends a list of truth values from where it is.
    pub fn send_bools(self, values: &[bool]) -> Reply {
        // SAFETY: the context is alive; as many items follow.
        unsafe {
            api!(RedisModule_ReplyWithArray(
                self.raw(),
                values.len() as c_long
            ))
        };
        for value in values {
            send_bool(self, *value);
        }
        Reply::Sent
    }

    /// Sends what [`Fetched`] stands for, the value from where it is.
    pub fn send_fetched(self, state: &str, value: Option<&[u8]>, n: u64) -> Reply {
        // SAFETY: the context is alive; three items follow.
        unsafe { api!(RedisModule_ReplyWithArray(self.raw(), 3)) };
        send_bytes(self, state.as_bytes());
        match value {
            Some(value) => send_bytes(self, value),
            None => send_nil(self),
        }
        send_int(self, n as i64);
        Reply::Sent
    }
}

/// Whether an answer that was sent has memory to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum SentReply {
    /// It has none, which the compiler does not see.
    OwnsNothing,
    /// It may have some.
    MayOwn,
}

/// Sends a command's answer.
#[inline(always)]
pub(in crate::server) fn send(ctx: Ctx<'_>, answer: &Answer) -> SentReply {
    // The compiler makes a table of a `match`, which takes more instructions.
    if let Ok(Reply::Int(value)) = answer {
        send_int(ctx, *value);
    } else if let Ok(Reply::Sent) = answer {
    } else if let Ok(Reply::Bool(value)) = answer {
        send_bool(ctx, *value);
    } else if let Ok(Reply::Nil) = answer {
        send_nil(ctx);
    } else {
        send_any(ctx, answer);
        return SentReply::MayOwn;
    }
    SentReply::OwnsNothing
}

#[inline]
fn send_nil(ctx: Ctx<'_>) {
    // SAFETY: the context is alive.
    unsafe { api!(RedisModule_ReplyWithNull(ctx.raw())) };
}

#[inline]
fn send_bool(ctx: Ctx<'_>, value: bool) {
    // SAFETY: the context is alive.
    unsafe { api!(RedisModule_ReplyWithBool(ctx.raw(), value.into())) };
}

#[inline]
fn send_int(ctx: Ctx<'_>, value: i64) {
    // SAFETY: the context is alive.
    unsafe { api!(RedisModule_ReplyWithLongLong(ctx.raw(), value)) };
}

fn send_ints(ctx: Ctx<'_>, ints: &[i64]) {
    // SAFETY: the context is alive; as many items follow.
    unsafe { api!(RedisModule_ReplyWithArray(ctx.raw(), ints.len() as c_long)) };
    for value in ints {
        send_int(ctx, *value);
    }
}

/// Sends any answer.
#[inline(never)]
pub(in crate::server) fn send_any(ctx: Ctx<'_>, answer: &Answer) {
    match answer {
        Ok(reply) => send_reply(ctx, reply),
        Err(error) => send_error(ctx, error),
    }
}

fn send_error(ctx: Ctx<'_>, error: &Error) {
    let text = CString::new(error.to_string()).unwrap_or_default();
    // SAFETY: the context is alive and the text is NUL-terminated.
    unsafe { api!(RedisModule_ReplyWithError(ctx.raw(), text.as_ptr())) };
}

fn send_reply(ctx: Ctx<'_>, reply: &Reply) {
    let raw = ctx.raw();
    match reply {
        Reply::Later | Reply::Sent => {}
        Reply::Nil => send_nil(ctx),
        Reply::Ok => {
            // SAFETY: as above; the text is NUL-terminated.
            unsafe { api!(RedisModule_ReplyWithSimpleString(raw, c"OK".as_ptr())) };
        }
        Reply::Int(value) => send_int(ctx, *value),
        Reply::Bool(value) => send_bool(ctx, *value),
        Reply::Ints(ints) => send_ints(ctx, ints.as_slice()),
        Reply::Error(error) => send_error(ctx, error),
        Reply::Text(text) => send_bytes(ctx, text.as_bytes()),
        Reply::Bytes(bytes) => send_bytes(ctx, bytes),
        Reply::Fetched(Fetched { state, value, n }) => {
            ctx.send_fetched(state, value.as_deref(), *n);
        }
        Reply::Array(items) => {
            // SAFETY: as above; as many items follow.
            unsafe { api!(RedisModule_ReplyWithArray(raw, items.len() as c_long)) };
            for item in items {
                send_reply(ctx, item);
            }
        }
        Reply::Map(fields) => {
            // SAFETY: as above; as many pairs follow.
            unsafe { api!(RedisModule_ReplyWithMap(raw, fields.len() as c_long)) };
            for (name, value) in fields {
                send_bytes(ctx, name.as_bytes());
                send_reply(ctx, value);
            }
        }
        Reply::Field(name, value) => {
            if ctx.is_resp3() {
                // SAFETY: as above; one pair follows.
                unsafe { api!(RedisModule_ReplyWithMap(raw, 1)) };
                send_bytes(ctx, name.as_bytes());
            } else {
                // SAFETY: as above; one item follows.
                unsafe { api!(RedisModule_ReplyWithArray(raw, 1)) };
            }
            send_reply(ctx, value);
        }
    }
}

fn send_bytes(ctx: Ctx<'_>, bytes: &[u8]) {
    // SAFETY: the context is alive, the buffer is given with its length.
    unsafe {
        api!(RedisModule_ReplyWithStringBuffer(
            ctx.raw(),
            bytes.as_ptr().cast(),
            bytes.len()
        ));
    }
}
