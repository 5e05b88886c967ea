//! Holds that end among others at their time, also when no command looks at the lock.

use super::edit::LockKey;
use super::state::LockKind;
use super::{DEADLINES, SERVICE};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;

/// So many holds of a lock end in one step.
const MAX_ENDS_PER_STEP: usize = 256;

/// Ends some of the holds whose leases ended, of the lock that is listed under this number.
pub(super) fn end_holds(ctx: Ctx<'_>, now: Now, number: u64) {
    DEADLINES.visit(ctx, number, |name| end_holds_at(ctx, now, name, number));
}

/// Ends some of the holds at a key of the selected database. Returns whether the lock there has this number.
fn end_holds_at(ctx: Ctx<'_>, now: Now, name: &ServerString<'_>, number: u64) -> bool {
    for kind in [LockKind::Lock, LockKind::Semaphore] {
        if let Ok(key) = TypedKey::of(ctx.open(name), kind.native()) {
            let mut service = SERVICE.get();
            let (steps, most) = (&mut service.steps, MAX_ENDS_PER_STEP);
            let mut key = LockKey::of(ctx, steps, name, key, kind, now, most);
            drop(service);
            let (is_it, has_ended_some) = (key.number() == number, key.has_ended_some());
            key.list_again();
            key.close(c"");
            if has_ended_some {
                let handover = &mut SERVICE.get().handover;
                handover.serve_later((ctx.db(), name.bytes().into()));
            }
            if is_it {
                return true;
            }
        }
    }
    false
}
