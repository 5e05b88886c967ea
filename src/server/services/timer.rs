//! The timer. There is one for all families, set to the earliest deadline. When it fires, each family checks its deadlines. Timers
//! of the server follow the wall clock, which can jump, so the cron event checks the deadlines, too.

use crate::server::base::clock::Now;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::services::deferred;
use redis_module::raw;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

#[derive(Default)]
struct Armed(Option<(u64, raw::RedisModuleTimerID)>);

impl Armed {
    fn stop(&mut self, ctx: Ctx<'_>) {
        if let Some((_, id)) = self.0.take() {
            // SAFETY: `arm` created the timer, and it has not fired.
            unsafe { api!(RedisModule_StopTimer(ctx.raw(), id, ptr::null_mut())) };
        }
    }
}

static ARMED: MainThread<Armed> = MainThread::new();

/// Called when the timer fires.
static ON_DUE: OnceLock<fn(Ctx<'_>)> = OnceLock::new();

/// Sets the function that is called when the timer fires.
pub(in crate::server) fn call_when_due(on_due: fn(Ctx<'_>)) {
    let _ = ON_DUE.set(on_due); // called once, when the module is loaded
}

/// The longest time of a timer, in milliseconds. Later deadlines are left to the cron event. Redis 7.0 computes the microseconds
/// of a timer in an `int`: with 36 minutes or more, its event loop never sleeps again.
const FARTHEST_MS: u64 = 60_000;

/// Sets the timer to this time (Unix ms), unless it is set to an earlier one.
pub fn arm(ctx: Ctx<'_>, at: u64) {
    let mut armed = ARMED.get();
    if armed.0.is_some_and(|(earlier, _)| earlier <= at) {
        return;
    }
    let wait = at.saturating_sub(Now::read().ms()).max(1);
    if wait > FARTHEST_MS {
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
    deferred::need_round();
}

/// Stops a timer that is further away than [`FARTHEST_MS`], because the clock was set back. Otherwise the event loop of Redis 7.0
/// would never sleep again.
pub(in crate::server) fn stop_if_too_far(ctx: Ctx<'_>) {
    let mut armed = ARMED.get();
    if armed
        .0
        .is_some_and(|(at, _)| at > Now::read().ms() + FARTHEST_MS)
    {
        armed.stop(ctx);
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard((), || {
        ARMED.get().0 = None;
        if let Some(on_due) = ON_DUE.get() {
            // SAFETY: the server passes a live context.
            on_due(unsafe { Ctx::new(ctx) });
        }
    });
}
