//! Has this master enough replicas to write? The server refuses commands that write when it has too few
//! (`min-replicas-to-write`). What the module does of its own accord passes no such check.

use crate::server::base::clock::Now;
use crate::server::handles::call::{CallReply, number_setting};
use crate::server::handles::context::Ctx;
use crate::server::handles::server_info::ServerInfo;
use crate::server::services::commit;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// For how long an answer is good, in milliseconds. The server itself counts its replicas once a second.
const FRESH: u64 = 100;

static ENOUGH: AtomicBool = AtomicBool::new(true);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// May something be given away that a replica should know of?
pub fn are_enough(ctx: Ctx<'_>, now: Now) -> bool {
    if now.ms().abs_diff(LOOKED_AT.load(Ordering::Relaxed)) >= FRESH {
        ENOUGH.store(count(ctx), Ordering::Relaxed);
        LOOKED_AT.store(now.ms(), Ordering::Relaxed);
    }
    ENOUGH.load(Ordering::Relaxed)
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
        // Where `CONFIG` has another name, older servers do not return the setting.
        None => !refuses_a_script(ctx),
    }
}

/// Does the server refuse a command that writes, as it would in a script, because too few replicas are there?
fn refuses_a_script(ctx: Ctx<'_>) -> bool {
    // "S" has the server check the replicas before anything else. With "D", Redis 7.2 and Valkey do not run the command. Redis 7.0
    // does not know "D" and replies nothing. There the command runs: without a change to make, it fails before it opens the key.
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
