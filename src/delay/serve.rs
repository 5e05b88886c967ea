//! The work that no command asks for: due messages are delivered, and the list of deadlines follows the queues through the
//! keyspace.

use super::edit::DelayEdit;
use super::native::{self, DELAY, list};
use super::{COUNTERS, DEADLINES};
use crate::deadlines::MAX_RETRY_MS;
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::{KeyChange, ServerEvent, ask_for_slices};
use crate::server::services::timer;

/// The time until the next attempt of a queue that cannot deliver.
const RETRY_MS: u64 = 1000;
const _: () = assert!(RETRY_MS <= MAX_RETRY_MS);

/// Asks for slices if messages are due. Otherwise returns when the next message is due (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    if DEADLINES.get().is_empty() || !ctx.may_act() {
        return None; // the cron event asks again
    }
    let (at, _) = DEADLINES.get().first()?;
    if at > now.ms() {
        return Some(at);
    }
    ask_for_slices();
    None
}

/// Delivers due messages until the slice is over. Returns whether more messages are due.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    if DEADLINES.get().is_empty() || !ctx.may_act() {
        return false; // the cron event asks again
    }
    loop {
        let Some((at, number)) = DEADLINES.get().first() else {
            return false;
        };
        let now = Now::read().ms();
        if at > now {
            timer::arm(ctx, at);
            return false;
        }
        if slice.is_over() {
            return true;
        }
        DEADLINES.visit(ctx, number, |name| process(ctx, name, number, now, slice));
    }
}

/// Delivers due messages of the queue that is listed under this number, if it is at this key of the selected database. Returns whether
/// it is.
fn process(ctx: Ctx<'_>, name: &ServerString<'_>, number: u64, now: u64, slice: &Slice) -> bool {
    let Some(mut edit) = open_listed(ctx, name, number) else {
        return false;
    };
    let delivered = edit.deliver_due(now, slice);
    edit.set_stuck(delivered.is_err());
    // Queues that are due take turns.
    edit.relist(if delivered.is_ok() {
        now
    } else {
        now + RETRY_MS
    });
    edit.close(c"delay.deliver");
    true
}

/// Opens the key, if it still holds the queue that was listed under this number.
fn open_listed<'k>(ctx: Ctx<'k>, name: &'k ServerString<'k>, number: u64) -> Option<DelayEdit<'k>> {
    let mut edit = DelayEdit::open(ctx, name).ok()?;
    let listed = edit.value()?.listed;
    (listed.number == number).then_some(edit)
}

/// Lists a queue that has come to a key. A change of the key's expiry does not matter.
pub(super) fn on_key_change(ctx: Ctx<'_>, name: &ServerString<'_>, change: KeyChange) {
    if change == KeyChange::Expiry || DELAY.live() == 0 {
        return;
    }
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &DELAY)
        && let Some(value) = key.value()
    {
        list(value, ctx.db(), name.bytes());
    }
}

/// When hash slots arrive, due messages in them are delivered.
pub(super) fn on_server_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    if matches!(event, ServerEvent::SlotsMoved(_)) {
        DEADLINES.unpark(ctx);
    }
}

/// The section `delay` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    Some(vec![
        ("delay_queues", DELAY.live() as u64),
        ("delay_messages", native::all_messages()),
        ("delay_added", COUNTERS.added.get()),
        ("delay_replaced", COUNTERS.replaced.get()),
        ("delay_cancelled", COUNTERS.canceled.get()),
        ("delay_delivered", COUNTERS.delivered.get()),
        ("delay_stuck", native::stuck_queues()),
    ])
}
