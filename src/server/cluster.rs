//! Which node serves a key, in a cluster.

use super::context::{Ctx, Name};
use crate::error::Error;
use redis_module::raw;
use std::ffi::c_int;

/// Does this node serve the key now, without sending the client elsewhere? Not while the slot is
/// being moved away and the key is gone already, and not while the cluster is down.
pub fn serves(ctx: Ctx<'_>, name: &Name<'_>) -> bool {
    // SAFETY: "s" is a key's name, which lives through the call.
    let reply = unsafe {
        Reply(api!(RedisModule_Call(
            ctx.raw(),
            c"EXISTS".as_ptr(),
            c"s".as_ptr(),
            name.raw()
        )))
    };
    !reply.0.is_null() // the server refuses keys of other nodes without running the command
}

/// Where a client has to go with this key; `None` if the slot is still this node's.
pub fn redirect(ctx: Ctx<'_>, name: &Name<'_>) -> Option<Error> {
    // SAFETY: "cs" is a NUL-terminated string and a key's name, "c" such a string.
    let (slot, slots) = unsafe {
        (
            Reply(api!(RedisModule_Call(
                ctx.raw(),
                c"CLUSTER".as_ptr(),
                c"cs".as_ptr(),
                c"KEYSLOT".as_ptr(),
                name.raw()
            ))),
            Reply(api!(RedisModule_Call(
                ctx.raw(),
                c"CLUSTER".as_ptr(),
                c"c".as_ptr(),
                c"SLOTS".as_ptr()
            ))),
        )
    };
    let slot = slot.integer()?;
    // Each entry: first slot, last slot, then the nodes, the master first: [host, port, id, ...].
    let range = slots.elements().find(|range| {
        let bound = |index| range.element(index).and_then(|bound| bound.integer());
        bound(0) <= Some(slot) && Some(slot) <= bound(1)
    })?;
    let master = range.element(2)?;
    let host = master.element(0)?.text()?;
    let port = master.element(1)?.integer()?;
    let id = master.element(2)?.text()?;
    if id == my_id()? {
        return None;
    }
    Some(Error::Moved {
        slot: slot as u16,
        address: format!("{host}:{port}"),
    })
}

fn my_id() -> Option<String> {
    // SAFETY: the function takes no argument; its result, if there is one, is an id of 40 bytes.
    unsafe {
        let id = api!(RedisModule_GetMyClusterID());
        if id.is_null() {
            return None;
        }
        let bytes =
            std::slice::from_raw_parts(id.cast::<u8>(), raw::REDISMODULE_NODE_ID_LEN as usize);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// The reply of a call, freed when dropped.
struct Reply(*mut raw::RedisModuleCallReply);

impl Reply {
    fn part(&self) -> Part<'_> {
        Part(self.0, self)
    }

    fn integer(&self) -> Option<i64> {
        self.part().integer()
    }

    fn elements(&self) -> impl Iterator<Item = Part<'_>> {
        let part = self.part();
        (0..part.len()).filter_map(move |index| part.element(index))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the reply belongs to this struct alone.
            unsafe { api!(RedisModule_FreeCallReply(self.0)) };
        }
    }
}

/// A reply, or a part of one.
#[derive(Clone, Copy)]
struct Part<'a>(*mut raw::RedisModuleCallReply, &'a Reply);

impl<'a> Part<'a> {
    fn is(self, kind: isize) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: the part lives as long as the reply, and is not null.
        let found = unsafe { api!(RedisModule_CallReplyType(self.0)) };
        found == kind as c_int
    }

    fn len(self) -> usize {
        if !self.is(raw::REDISMODULE_REPLY_ARRAY) {
            return 0;
        }
        // SAFETY: as above.
        unsafe { api!(RedisModule_CallReplyLength(self.0)) }
    }

    fn element(self, index: usize) -> Option<Part<'a>> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: as above.
        let part = unsafe { api!(RedisModule_CallReplyArrayElement(self.0, index)) };
        Some(Part(part, self.1))
    }

    fn integer(self) -> Option<i64> {
        // SAFETY: as above.
        self.is(raw::REDISMODULE_REPLY_INTEGER)
            .then(|| unsafe { api!(RedisModule_CallReplyInteger(self.0)) })
    }

    fn text(self) -> Option<String> {
        if !self.is(raw::REDISMODULE_REPLY_STRING) {
            return None;
        }
        let mut length = 0;
        // SAFETY: as above; the server fills in the length of the buffer.
        let bytes = unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut length));
            std::slice::from_raw_parts(start.cast::<u8>(), length)
        };
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
