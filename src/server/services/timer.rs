//! The one timer. It is set for the nearest deadline of all families; when it fires, each family
//! looks at its own deadlines again. The server's timers follow the wall clock, which can jump:
//! so the cron event looks too.

use crate::server::base::clock::Now;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use redis_module::raw;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct Armed(Option<(u64, raw::RedisModuleTimerID)>);

impl Armed {
    fn stop(&mut self, ctx: Ctx<'_>) {
        if let Some((_, id)) = self.0.take() {
            // SAFETY: the timer was made by `arm` and has not fired.
            unsafe { api!(RedisModule_StopTimer(ctx.raw(), id, ptr::null_mut())) };
        }
    }
}

/// Was the timer set since it was last asked?
static WAS_ARMED: AtomicBool = AtomicBool::new(false);

/// Was the timer set since this was last asked?
pub(in crate::server) fn was_armed() -> bool {
    WAS_ARMED.swap(false, Ordering::Relaxed)
}

static ARMED: MainThread<Armed> = MainThread::new();

/// Called when the timer fires.
static ON_DUE: OnceLock<fn(Ctx<'_>)> = OnceLock::new();

/// Sets the function that is called when the timer fires.
pub(in crate::server) fn call_when_due(on_due: fn(Ctx<'_>)) {
    let _ = ON_DUE.set(on_due); // set once, when the module is loaded
}

/// For what is further away (in milliseconds) no timer is set: the cron event asks in time. Redis
/// 7.0 computes the microseconds of a timer in an int, and with 36 minutes or more never sleeps
/// again.
const FARTHEST: u64 = 60_000;

/// Makes sure that the families are asked at this time (Unix ms), or before.
pub fn arm(ctx: Ctx<'_>, at: u64) {
    let mut armed = ARMED.get();
    if armed.0.is_some_and(|(earlier, _)| earlier <= at) {
        return;
    }
    let wait = at.saturating_sub(Now::read().ms()).max(1);
    if wait > FARTHEST {
        return;
    }
    armed.stop(ctx);
    // SAFETY: the callback expects no data.
    let id = unsafe {
        api!(RedisModule_CreateTimer(
            ctx.raw(),
            wait as i64,
            Some(on_timer),
            ptr::null_mut()
        ))
    };
    armed.0 = Some((at, id));
    WAS_ARMED.store(true, Ordering::Relaxed);
}

/// Stops a timer that was set for later than is possible: the clock was set back since. If the server
/// looked at it, it would never sleep again.
pub(in crate::server) fn stop_if_too_far(ctx: Ctx<'_>) {
    let mut armed = ARMED.get();
    if armed
        .0
        .is_some_and(|(at, _)| at > Now::read().ms() + FARTHEST)
    {
        armed.stop(ctx);
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard((), || {
        ARMED.get().0 = None;
        if let Some(on_due) = ON_DUE.get() {
            // SAFETY: the server gives a live context.
            on_due(unsafe { Ctx::new(ctx) });
        }
    });
}
