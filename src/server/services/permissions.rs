//! The permissions of the caller beyond those that the server checks by the table of commands.

use crate::server::handles::call;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use redis_module::raw;
use std::ffi::c_int;

/// The keys that the caller of the running command may read.
pub enum ReadableKeys<'c> {
    /// All keys: another module calls the command, and the server checks nothing either.
    All,
    /// Those that the caller's user may read.
    OfUser(Ctx<'c>),
}

impl<'c> ReadableKeys<'c> {
    /// The keys that the caller may read.
    pub fn of_caller(ctx: Ctx<'c>) -> Self {
        if ctx.client().is_none() && !call::has_user(ctx) {
            ReadableKeys::All
        } else {
            ReadableKeys::OfUser(ctx)
        }
    }

    /// Whether a key of this name is one of them.
    pub fn contains(&self, name: &[u8]) -> bool {
        let ReadableKeys::OfUser(ctx) = self else {
            return true;
        };
        let name = ServerString::new(name);
        let access = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
        // SAFETY: the name lives through the call.
        ctx.check_user(|user| unsafe {
            api!(RedisModule_ACLCheckKeyPermissions(user, name.raw(), access))
        })
    }
}
