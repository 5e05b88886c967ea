//! The work that no command asks for: reservations end, old orders are forgotten, and the list of deadlines follows the stocks
//! through the keyspace.

use super::edit::{SLICE_ORDERS, StockEdit};
use super::native::{STOCK, list};
use super::{COUNTERS, DEADLINES};
use crate::deadlines::MAX_RETRY_MS;
use crate::error::Error;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::{KeyChange, ServerEvent};
use std::collections::BTreeSet;

/// The time until the next attempt if the changes of a stock cannot be announced.
const RETRY_MS: u64 = 100;
const _: () = assert!(RETRY_MS <= MAX_RETRY_MS);

/// Does due work until a slice is over. Returns when to continue (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    if DEADLINES.get().is_empty() || !ctx.may_act() {
        return None; // the cron event asks again
    }
    let slice = Slice::begin();
    loop {
        let (at, number) = DEADLINES.get().first()?;
        if at > now.ms() {
            return Some(at);
        }
        DEADLINES.visit(ctx, number, |name| process(ctx, name, number, now.ms()));
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
    }
}

/// Does one slice of the due work of the stock that is listed under this number, if it is at this key of the selected database.
/// Returns whether it is.
fn process(ctx: Ctx<'_>, name: &ServerString<'_>, number: u64, now: u64) -> bool {
    let Some(mut edit) = open_listed(ctx, name, number) else {
        return false;
    };
    let ended = edit.end_slice(now, SLICE_ORDERS);
    let forgotten = edit.forget_slice(now, SLICE_ORDERS);
    let done = ended.is_ok() && forgotten.is_ok();
    if ended == Err(Error::StreamFull) {
        warn_of_full_stream(ctx, &mut edit, number, now);
    }
    edit.relist(if done { now + 1 } else { now + RETRY_MS });
    edit.close(None);
    true
}

/// Logs that the reservations of a stock cannot end. The log gets one such line for each stock, and ten in all, within
/// [`WARNING_INTERVAL_MS`].
fn warn_of_full_stream(ctx: Ctx<'_>, edit: &mut StockEdit<'_>, number: u64, now: u64) {
    if !WARNINGS.get().may_warn(number, now) {
        return;
    }
    let (stock, stream) = edit.shown_names();
    let line = format!(
        "the reservations of the stock {stock} cannot end: its event stream {stream} has no ids left. Delete that stream"
    );
    log::warn_in(ctx, &line);
}

/// The stocks that the log has named of late.
#[derive(Default)]
struct Warnings {
    since_ms: u64,
    numbers: BTreeSet<u64>,
}

static WARNINGS: MainThread<Warnings> = MainThread::new();

/// The log names a stock again after this time.
const WARNING_INTERVAL_MS: u64 = 60_000;

/// The log names no more stocks than these within [`WARNING_INTERVAL_MS`].
const MAX_WARNINGS: usize = 10;

impl Warnings {
    /// Whether the log may name the stock that is listed under this number, at this time (Unix ms). If so, notes that it does.
    fn may_warn(&mut self, number: u64, now: u64) -> bool {
        if now.abs_diff(self.since_ms) >= WARNING_INTERVAL_MS {
            self.since_ms = now;
            self.numbers.clear();
        }
        self.numbers.len() < MAX_WARNINGS && self.numbers.insert(number)
    }
}

/// Opens the key, if it still holds the stock that was listed under this number.
fn open_listed<'k>(ctx: Ctx<'k>, name: &'k ServerString<'k>, number: u64) -> Option<StockEdit<'k>> {
    let mut edit = StockEdit::open(ctx, name).ok()?;
    let listed = edit.stock()?.listed;
    (listed.number == number).then_some(edit)
}

/// Lists a stock that has come to a key. A change of the key's expiry does not matter.
pub(super) fn on_key_change(ctx: Ctx<'_>, name: &ServerString<'_>, change: KeyChange) {
    if change == KeyChange::Expiry || STOCK.live() == 0 {
        return;
    }
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &STOCK)
        && let Some(stock) = key.value()
    {
        list(stock, ctx.db(), name.bytes());
    }
}

/// When hash slots arrive, what is due in them is done.
pub(super) fn on_server_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    if matches!(event, ServerEvent::SlotsMoved(_)) {
        DEADLINES.unpark(ctx);
    }
}

/// The section `stock` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    Some(vec![
        ("stock_deducted", COUNTERS.deducted.get()),
        ("stock_reserved", COUNTERS.reserved.get()),
        ("stock_confirmed", COUNTERS.confirmed.get()),
        ("stock_cancelled", COUNTERS.cancelled.get()),
        ("stock_expired", COUNTERS.expired.get()),
        ("stock_sold_out", COUNTERS.sold_out.get()),
        ("stock_user_limited", COUNTERS.user_limited.get()),
        ("stock_duplicates", COUNTERS.duplicates.get()),
        ("stock_conflicts", COUNTERS.conflicts.get()),
    ])
}

#[cfg(test)]
mod tests {
    use super::{MAX_WARNINGS, WARNING_INTERVAL_MS, Warnings};

    #[test]
    fn the_log_names_a_stock_once_an_interval_and_few_in_all() {
        let mut warnings = Warnings::default();
        let start = 1_700_000_000_000;
        assert!(warnings.may_warn(1, start));
        assert!(!warnings.may_warn(1, start + WARNING_INTERVAL_MS - 1));
        let others = (2..100).filter(|number| warnings.may_warn(*number, start + 1));
        assert_eq!(others.count(), MAX_WARNINGS - 1);
        assert!(warnings.may_warn(1, start + WARNING_INTERVAL_MS));
        assert!(!warnings.may_warn(1, start + WARNING_INTERVAL_MS + 1));
    }
}
