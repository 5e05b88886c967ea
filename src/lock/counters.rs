//! The counters of `INFO sluice`.

use super::state::Acquired;
use super::{EXPIRED_LEASES, SERVICE};
use std::sync::atomic::Ordering;

/// What the family has counted since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockCounters {
    /// New holds.
    pub acquired: u64,
    /// Acquisitions of locks that their owners held already.
    pub reentered: u64,
    /// Acquisitions that were refused at once, or that would have waited for their own owners.
    pub refused: u64,
    /// Clients that joined a queue.
    pub waited: u64,
    /// Clients whose wait ended by its deadline, by `CLIENT UNBLOCK` or by `CANCEL`.
    pub timeouts: u64,
    /// Clients that were served while they waited.
    pub handoffs: u64,
    /// Renewals, by commands and by the server.
    pub renewed: u64,
    /// Requests that were refused because their wait would never end.
    pub deadlocks: u64,
}

impl LockCounters {
    /// Counts an acquisition that succeeded, and returns its fencing token.
    pub fn count(&mut self, acquired: Acquired) -> u64 {
        match acquired {
            Acquired::Granted(fence) => {
                self.acquired += 1;
                fence
            }
            Acquired::Reentered(fence) => {
                self.reentered += 1;
                fence
            }
            Acquired::Repeated(fence) => fence,
            Acquired::Busy | Acquired::Never => unreachable!("it was admitted"),
        }
    }
}

/// The section `lock` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    let service = SERVICE.try_get()?;
    let (handover, steps) = (&service.handover, &service.steps);
    let counters = &handover.counters;
    Some(vec![
        ("lock_acquired", counters.acquired),
        ("lock_reentered", counters.reentered),
        ("lock_refused", counters.refused),
        ("lock_waited", counters.waited),
        ("lock_waiting", handover.queues.len() as u64),
        ("lock_timeouts", counters.timeouts),
        ("lock_handoffs", counters.handoffs),
        ("lock_renewed", counters.renewed),
        (
            "lock_expired_leases",
            EXPIRED_LEASES.load(Ordering::Relaxed),
        ),
        ("lock_watchdog_holds", steps.watches.len() as u64),
        ("lock_watchdog_released", steps.watchdog_released),
        ("lock_deadlocks", counters.deadlocks),
    ])
}
