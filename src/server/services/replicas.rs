//! Has this master enough replicas to write? The server refuses commands that write when it has too few
//! (`min-replicas-to-write`). What the module does of its own accord passes no such check.

use crate::server::base::clock::Now;
use crate::server::handles::call::number_setting;
use crate::server::handles::context::Ctx;
use crate::server::services::info::ServerInfo;
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
    // Where `CONFIG` has another name, older servers do not tell how many are wanted.
    let wanted = number_setting(ctx, c"min-replicas-to-write");
    info.number(field) >= wanted.unwrap_or(1)
}
