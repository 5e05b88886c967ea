//! Clients that wait. A family keeps its own queue of numbers; a [`BlockedClients`] keeps the blocked client
//! behind each number, so that waking one does not go through all of them.

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
    /// Called when a client stops waiting of its own accord: its connection closed, or somebody
    /// ended its wait with `CLIENT UNBLOCK`, which it then gets this answer to. It must not be woken any more.
    pub left: fn(Ctx<'_>, u64, Departure) -> Answer,
    /// Called when a client that was woken gets its answer.
    pub answered: fn(u64),
    clients: MainThread<BTreeMap<u64, Handle>>,
}

/// Why a client left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// Its connection closed, or the server took it out of the wait with an error.
    Gone,
    /// `CLIENT UNBLOCK`: it gets the reply of a wait whose time is up.
    Unblocked,
    /// The same as `Gone`, but it was woken before, and never got the answer.
    Unanswered,
}

/// A client that was just blocked, and does not wait for anything yet. When it is dropped, the client is unblocked, and the
/// running command replies.
#[must_use]
pub struct Blocked {
    room: &'static BlockedClients,
    handle: Handle,
}

impl Blocked {
    /// Lets the client wait until `number` is woken.
    pub fn wait(self, number: u64) {
        let Self { room, handle } = *ManuallyDrop::new(self);
        room.clients.get().insert(number, handle);
        let place = Place {
            room,
            number,
            progress: Progress::Waiting,
        };
        PLACES.get().insert(handle, place);
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

/// Where the client behind a handle waits.
struct Place {
    room: &'static BlockedClients,
    number: u64,
    progress: Progress,
}

/// How far a waiting client is.
enum Progress {
    /// It waits.
    Waiting,
    /// It was woken, and gets this answer.
    Woken(Answer),
    /// The server has the answer, and hands it over in a moment.
    Delivered,
}

/// Where the client behind each handle waits.
static PLACES: MainThread<BTreeMap<Handle, Place>> = MainThread::new();

/// Who was woken since the answers were last [delivered](deliver).
static WOKEN: MainThread<Vec<(Handle, u64)>> = MainThread::new();

/// Hands the answers of woken clients to the server, on Redis right before it hands them to the clients. Not as soon as
/// they are woken: were `CLIENT UNBLOCK` to come in between, Redis 7.0 would send neither answer.
pub(in crate::server) fn deliver() {
    let woken = std::mem::take(&mut *WOKEN.get());
    for (handle, number) in woken {
        if let Some(answer) = take_answer(handle, number) {
            handle.unblock(Some(answer));
        }
    }
}

/// The answer of a client that was woken under this number, unless it has gone.
fn take_answer(handle: Handle, number: u64) -> Option<Answer> {
    let mut places = PLACES.get();
    let place = places.get_mut(&handle)?;
    if place.number != number {
        return None;
    }
    match std::mem::replace(&mut place.progress, Progress::Delivered) {
        Progress::Woken(answer) => Some(answer),
        _ => None,
    }
}

impl BlockedClients {
    /// An empty room.
    pub const fn new(left: fn(Ctx<'_>, u64, Departure) -> Answer, answered: fn(u64)) -> Self {
        Self {
            left,
            answered,
            clients: MainThread::new(),
        }
    }

    /// Blocks the client that sent the running command; `None`: the server does not allow it. Nothing may have changed by
    /// then. The caller has asked [`Ctx::may_block`] before.
    pub fn block(&'static self, ctx: Ctx<'_>) -> Option<Blocked> {
        // SAFETY: the context is that of a command whose client may be blocked; without a timeout of the server's own, but
        // with its callback, which CLIENT UNBLOCK needs. Valkey returns null for a client that it does not block.
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
        Some(Blocked { room: self, handle })
    }

    /// Answers a waiting client.
    pub fn wake(&self, number: u64, answer: Answer) {
        let Some(handle) = self.clients.get().remove(&number) else {
            return;
        };
        if let Some(place) = PLACES.get().get_mut(&handle) {
            place.progress = Progress::Woken(answer);
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
        // `PLACES` before that; `free_answer` takes the answer back.
        unsafe { api!(RedisModule_UnblockClient(self.raw(), answer.cast())) };
    }
}

/// Takes a client out that leaves or is answered.
fn leave(handle: Handle) -> Option<Place> {
    let place = PLACES.get().remove(&handle)?;
    if matches!(place.progress, Progress::Waiting) {
        place.room.clients.get().remove(&place.number);
    }
    Some(place)
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
            if let Some(place) = handle.and_then(|handle| leave(Handle(handle))) {
                (place.room.answered)(place.number);
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
        let Some((handle, place)) = handle.and_then(|handle| Some((handle, leave(handle)?))) else {
            return;
        };
        let answer = match place.progress {
            Progress::Waiting => (place.room.left)(ctx, place.number, Departure::Unblocked),
            Progress::Woken(answer) => {
                (place.room.answered)(place.number);
                answer
            }
            Progress::Delivered => return, // the server has unblocked it, and answers
        };
        reply::send(ctx, answer);
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
        let Some((handle, place)) = handle.and_then(|handle| Some((handle, leave(handle)?))) else {
            return;
        };
        let departure = match place.progress {
            Progress::Waiting => Departure::Gone,
            _ => Departure::Unanswered,
        };
        let _gone = (place.room.left)(ctx, place.number, departure);
        if !matches!(place.progress, Progress::Delivered) {
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
