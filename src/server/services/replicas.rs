//! The check of `min-replicas-to-write`. The server refuses writing commands when it has too few replicas. It does not check
//! writes of the module without a command, so the module asks the server.

use crate::server::base::clock::Now;
use crate::server::handles::call::{CallReply, number_setting};
use crate::server::handles::context::Ctx;
use crate::server::handles::server_info::ServerInfo;
use crate::server::services::commit;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The time for which an answer is valid. The server counts its replicas once a second.
const FRESH_MS: u64 = 100;

static ENOUGH: AtomicBool = AtomicBool::new(true);
static ASKED_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Whether this master has enough replicas to write.
pub fn are_enough(ctx: Ctx<'_>, now: Now) -> bool {
    if now.ms().abs_diff(ASKED_AT_MS.load(Ordering::Relaxed)) >= FRESH_MS {
        ENOUGH.store(count(ctx), Ordering::Relaxed);
        ASKED_AT_MS.store(now.ms(), Ordering::Relaxed);
    }
    ENOUGH.load(Ordering::Relaxed)
}

/// The settings have changed: the next question asks the server again.
pub fn forget() {
    ASKED_AT_MS.store(0, Ordering::Relaxed);
}

fn count(ctx: Ctx<'_>) -> bool {
    let info = ServerInfo::read(c"replication");
    // There only if both `min-replicas-to-write` and `min-replicas-max-lag` are set.
    let field = c"min_slaves_good_slaves";
    if info.text(field).is_empty() {
        return true;
    }
    match number_setting(ctx, c"min-replicas-to-write") {
        Some(wanted) => info.number(field) >= wanted,
        // If `CONFIG` is renamed, older servers do not return the setting.
        None => !refuses_a_script(ctx),
    }
}

/// Whether the server refuses a writing command because it has too few replicas.
fn refuses_a_script(ctx: Ctx<'_>) -> bool {
    // With "S", the server checks the replicas first. With "D", Redis 7.2 and Valkey do not run the command. Redis 7.0 does not
    // support "D" and returns no reply. There the command runs: it has no change to make and fails before it opens the key.
    // SAFETY: "cc" are NUL-terminated strings, which live through the call.
    let call = |format: &CStr| unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            commit::APPLY.as_ptr(),
            format.as_ptr(),
            c"sluice".as_ptr(),
            c"".as_ptr()
        )))
    };
    let mut reply = call(c"DScc");
    if !reply.is_there() {
        reply = call(c"EScc");
    }
    let error = reply.part().error();
    error.is_some_and(|error| error.starts_with("NOREPLICAS"))
}
