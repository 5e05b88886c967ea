//! Messages to the subscribers of channels. They are published right before the server goes through its clients, so that any
//! callback may leave one.

use crate::server::base::main_thread::MainThread;
use crate::server::base::slice::Slice;
use crate::server::handles::call;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred;
use redis_module::raw;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

/// A message and its channel.
type Message = (Arc<[u8]>, Vec<u8>);

static OUTBOX: MainThread<VecDeque<Message>> = MainThread::new();

/// The outbox keeps the memory of this many messages.
const KEPT_MESSAGES: usize = 64;

/// Returns whether the caller of the running command may publish on this channel. `ACL LOG` lists a refusal, as for `PUBLISH`.
pub fn is_permitted(ctx: Ctx<'_>, channel: &[u8]) -> bool {
    if ctx.client().is_none() && !call::has_user(ctx) {
        return true; // a module's own call, for which the server checks nothing either
    }
    let channel = ServerString::new(channel);
    // SAFETY: the context is alive, and the channel and the user live through the calls.
    ctx.check_user(|user| unsafe {
        let status = api!(RedisModule_ACLCheckChannelPermissions(
            user,
            channel.raw(),
            raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int
        ));
        if status != raw::REDISMODULE_OK as c_int {
            let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CHANNEL;
            api!(RedisModule_ACLAddLogEntry(
                ctx.raw(),
                user,
                channel.raw(),
                reason
            ));
        }
        status
    })
}

/// Publishes a message soon, in the order of the calls. Pub/Sub promises no delivery.
pub fn publish(channel: Arc<[u8]>, message: Vec<u8>) {
    OUTBOX.get().push_back((channel, message));
    deferred::ask_for_a_round();
}

/// Hands messages to the server for a slice of its time.
pub(in crate::server) fn deliver(ctx: Ctx<'_>) {
    if OUTBOX.get().is_empty() {
        return;
    }
    let mut slice = Slice::begin();
    loop {
        let next = OUTBOX.get().pop_front();
        let Some((channel, message)) = next else {
            break OUTBOX.get().shrink_to(KEPT_MESSAGES);
        };
        let (channel, message) = (ServerString::new(&channel), ServerString::new(&message));
        // SAFETY: the context is alive, and the strings live through the call. In a cluster the server sends the message to
        // the other nodes as well.
        unsafe {
            api!(RedisModule_PublishMessage(
                ctx.raw(),
                channel.raw(),
                message.raw()
            ))
        };
        slice.has_answered();
        if slice.is_over() {
            break deferred::wake_event_loop();
        }
    }
}
