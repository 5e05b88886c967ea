//! Work right after the running command. Since Redis 7.2, a node of a cluster assigns each key that is opened during a command to
//! the hash slot of the command. Work on keys of other slots must wait until the command has ended.

use crate::server::base::api;
use crate::server::base::guard::guard;
use crate::server::handles::context::Ctx;
use crate::server::services::commit;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

type Job = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// `RM_AddPostNotificationJob`, of Redis since 7.2 and Valkey.
type AddJob = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    Job,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void)>,
) -> c_int;

fn add_job() -> Option<AddJob> {
    static ADD_JOB: OnceLock<Option<AddJob>> = OnceLock::new();
    *ADD_JOB.get_or_init(|| {
        let function = api::function(c"RedisModule_AddPostNotificationJob")?;
        // SAFETY: the server's function of this name has this type; it lives as long as the server.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, AddJob>(function) })
    })
}

/// Whether a command may open keys of all hash slots. This is true of Redis 7.0.
pub fn may_open_all_slots() -> bool {
    add_job().is_none()
}

/// Whether work waits for the end of the running command.
static IS_PENDING: AtomicBool = AtomicBool::new(false);

static WORK: OnceLock<fn(Ctx<'_>)> = OnceLock::new();

/// Runs `work`, always the same function, after the running command. In a transaction or a script it runs once, after the last
/// command.
pub fn run(ctx: Ctx<'_>, work: fn(Ctx<'_>)) {
    WORK.get_or_init(|| work);
    if let Some(add_job) = add_job()
        && !IS_PENDING.load(Ordering::Relaxed)
    {
        // SAFETY: the context is alive, and the callback expects no data.
        let status = unsafe { add_job(ctx.raw(), on_end, ptr::null_mut(), None) };
        IS_PENDING.store(status == raw::REDISMODULE_OK as c_int, Ordering::Relaxed);
    }
}

// SAFETY: the server passes a live context.
unsafe extern "C" fn on_end(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    IS_PENDING.store(false, Ordering::Relaxed);
    guard((), || {
        // SAFETY: see above.
        let ctx = unsafe { Ctx::new(ctx) };
        if let Some(work) = WORK.get() {
            work(ctx);
        }
        commit::emit_events(ctx);
    });
}
