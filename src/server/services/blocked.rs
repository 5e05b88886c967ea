//! Waiting clients. A family keeps its own queue of numbers. A [`BlockedClients`] maps each number to its blocked client, so
//! that a family can wake a client without a search.

use crate::reply::Answer;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::reply;
use crate::server::services::deferred;
use redis_module::raw;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

/// A family's waiting clients.
pub struct BlockedClients {
    /// Called when a client leaves before it is woken: its connection closes, or `CLIENT UNBLOCK` ends its wait, in which
    /// case the client receives the returned answer. The family must not wake the client afterwards.
    pub left: fn(Ctx<'_>, u64, Departure) -> Answer,
    /// Called when a woken client receives its answer.
    pub answered: fn(u64),
    clients: MainThread<BTreeMap<u64, Handle>>,
}

/// The reason why a client left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The connection closed, or the server ended the wait with an error.
    Gone,
    /// `CLIENT UNBLOCK`: the client receives the reply of a wait that timed out.
    Unblocked,
    /// The same as `Gone`, but the client was woken before and never received the answer.
    Unanswered,
}

/// A client that was just blocked and has no number yet. Dropping it unblocks the client, and the running command replies.
#[must_use]
pub struct Blocked {
    family: &'static BlockedClients,
    handle: Handle,
}

impl Blocked {
    /// Lets the client wait until the family wakes `number`.
    pub fn wait(self, number: u64) {
        let Self { family, handle } = *ManuallyDrop::new(self);
        family.clients.get().insert(number, handle);
        let wait = Wait {
            family,
            number,
            progress: Progress::Waiting,
        };
        WAITS.get().insert(handle, wait);
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and only `wait` gives it away, which keeps this from running.
        unsafe { api!(RedisModule_AbortBlock(self.handle.raw())) };
    }
}

/// A blocked client, owned by the server until it is unblocked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Handle(NonNull<raw::RedisModuleBlockedClient>);

/// The wait of one blocked client.
struct Wait {
    family: &'static BlockedClients,
    number: u64,
    progress: Progress,
}

/// The progress of a wait.
enum Progress {
    /// The client waits.
    Waiting,
    /// The client was woken, and receives this answer.
    Woken(Answer),
    /// The server has the answer and is about to send it.
    Delivered,
}

/// The wait of each blocked client.
static WAITS: MainThread<BTreeMap<Handle, Wait>> = MainThread::new();

/// The clients that were woken since the answers were last [delivered](deliver).
static WOKEN: MainThread<Vec<(Handle, u64)>> = MainThread::new();

/// Passes the answers of woken clients to the server. The module does this right before Redis sends the answers, not when it
/// wakes the clients: if `CLIENT UNBLOCK` arrived in between, Redis 7.0 would send neither answer.
pub(in crate::server) fn deliver() {
    let woken = std::mem::take(&mut *WOKEN.get());
    for (handle, number) in woken {
        if let Some(answer) = take_answer(handle, number) {
            handle.unblock(Some(answer));
        }
    }
}

/// The answer of a client that was woken under this number. `None`: the client has left.
fn take_answer(handle: Handle, number: u64) -> Option<Answer> {
    let mut waits = WAITS.get();
    let wait = waits.get_mut(&handle)?;
    if wait.number != number {
        return None;
    }
    match std::mem::replace(&mut wait.progress, Progress::Delivered) {
        Progress::Woken(answer) => Some(answer),
        _ => None,
    }
}

impl BlockedClients {
    /// No waiting clients.
    pub const fn new(left: fn(Ctx<'_>, u64, Departure) -> Answer, answered: fn(u64)) -> Self {
        Self {
            left,
            answered,
            clients: MainThread::new(),
        }
    }

    /// Blocks the client that sent the running command; `None`: the server does not allow it. The command must not
    /// have changed anything before this call. The caller has checked [`Ctx::may_block`] before.
    pub fn block(&'static self, ctx: Ctx<'_>) -> Option<Blocked> {
        // SAFETY: the context is that of a command whose client may be blocked; without a timeout of the server, but
        // with the timeout callback, which CLIENT UNBLOCK needs. Valkey returns null for a client that it does not block.
        let handle = unsafe {
            api!(RedisModule_BlockClient(
                ctx.raw(),
                Some(on_reply),
                Some(on_unblock),
                Some(free_answer),
                0
            ))
        };
        let handle = NonNull::new(handle).map(Handle)?;
        // SAFETY: the server has just returned the handle.
        unsafe {
            api!(RedisModule_SetDisconnectCallback(
                handle.raw(),
                Some(on_leave)
            ));
        }
        Some(Blocked {
            family: self,
            handle,
        })
    }

    /// Wakes the client with this number, if it still waits: it receives the answer.
    pub fn wake(&self, number: u64, answer: Answer) {
        let Some(handle) = self.clients.get().remove(&number) else {
            return;
        };
        if let Some(wait) = WAITS.get().get_mut(&handle) {
            wait.progress = Progress::Woken(answer);
            WOKEN.get().push((handle, number));
            deferred::ask_for_a_round();
        }
    }
}

impl Handle {
    fn raw(self) -> *mut raw::RedisModuleBlockedClient {
        self.0.as_ptr()
    }

    fn unblock(self, answer: Option<Answer>) {
        let answer = answer.map_or(ptr::null_mut(), |answer| Box::into_raw(Box::new(answer)));
        // SAFETY: each handle is unblocked once, when its answer is delivered, or when it is taken out of
        // `WAITS` before that; `free_answer` takes the answer back.
        unsafe { api!(RedisModule_UnblockClient(self.raw(), answer.cast())) };
    }
}

/// Removes a client that leaves or receives its answer.
fn leave(handle: Handle) -> Option<Wait> {
    let wait = WAITS.get().remove(&handle)?;
    if matches!(wait.progress, Progress::Waiting) {
        wait.family.clients.get().remove(&wait.number);
    }
    Some(wait)
}

// SAFETY (for all callbacks below): the server calls them with a live context and its own handles.

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard((), || {
        // SAFETY: see above; the private data is the answer given to `unblock`.
        unsafe {
            let handle = NonNull::new(api!(RedisModule_GetBlockedClientHandle(ctx)));
            if let Some(wait) = handle.and_then(|handle| leave(Handle(handle))) {
                (wait.family.answered)(wait.number);
            }
            let answer = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Answer>();
            if let Some(answer) = answer.as_ref() {
                reply::send_any(Ctx::new(ctx), answer);
            }
        }
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard((), || {
        // SAFETY: see above.
        let (ctx, handle) = unsafe {
            let handle = NonNull::new(api!(RedisModule_GetBlockedClientHandle(ctx)));
            (Ctx::new(ctx), handle.map(Handle))
        };
        let Some((handle, wait)) = handle.and_then(|handle| Some((handle, leave(handle)?))) else {
            return;
        };
        let answer = match wait.progress {
            Progress::Waiting => (wait.family.left)(ctx, wait.number, Departure::Unblocked),
            Progress::Woken(answer) => {
                (wait.family.answered)(wait.number);
                answer
            }
            Progress::Delivered => return, // the server has unblocked it, and answers
        };
        reply::send_any(ctx, &answer);
        handle.unblock(None);
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_leave(
    ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    guard((), || {
        // SAFETY: see above.
        let ctx = unsafe { Ctx::new(ctx) };
        let handle = NonNull::new(handle).map(Handle);
        let Some((handle, wait)) = handle.and_then(|handle| Some((handle, leave(handle)?))) else {
            return;
        };
        let departure = match wait.progress {
            Progress::Waiting => Departure::Gone,
            _ => Departure::Unanswered,
        };
        let _gone = (wait.family.left)(ctx, wait.number, departure);
        if !matches!(wait.progress, Progress::Delivered) {
            handle.unblock(None);
        }
    });
}

unsafe extern "C" fn free_answer(_ctx: *mut raw::RedisModuleCtx, answer: *mut c_void) {
    guard((), || {
        // SAFETY: see above; `unblock` made the box and nobody else frees it.
        drop(unsafe { Box::from_raw(answer.cast::<Answer>()) });
    });
}
