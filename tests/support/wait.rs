//! Waiting for a condition, with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long to leave the processor to others between two looks: two cores run all tests.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns as soon as `condition` holds; panics when it does not within `limit`.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    assert!(
        holds_within(limit, &mut condition),
        "the condition did not hold within {limit:?}"
    );
}

/// Sets the flag that ends the threads of a scope when it is dropped, so also when the scope's own function panics. Otherwise the
/// threads would go on, and the scope would wait for them forever.
pub struct EndOnDrop<'a>(pub &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// By how much a server's deadline may come too early for its clients: the server counts whole milliseconds, and reads its clock
/// before the requests that it finds.
const CLOCK_SLACK: Duration = Duration::from_millis(10);

/// Panics unless `duration` has passed since `begun`, as precisely as a client can tell from a server's deadline.
#[track_caller]
pub fn not_before(begun: Instant, duration: Duration) {
    let passed = begun.elapsed();
    assert!(
        passed + CLOCK_SLACK >= duration,
        "{passed:?} have passed, not {duration:?}"
    );
}

/// Calls `attempt` with longer and longer leases (ms) until it returns a value. `attempt` returns `None` if the lease ended before the
/// test was ready. Panics if that happened before the lease had passed.
#[track_caller]
pub fn with_growing_lease<T>(shortest: i64, mut attempt: impl FnMut(i64) -> Option<T>) -> T {
    for lease in [shortest, 10_000, 30_000] {
        let begun = Instant::now();
        if let Some(done) = attempt(lease) {
            return done;
        }
        not_before(begun, Duration::from_millis(lease.unsigned_abs()));
    }
    panic!("no lease is long enough");
}

/// A server with `hz 1` makes up in its cron, once a second, for a step that it has missed.
const MADE_UP: Duration = Duration::from_millis(500);

/// Runs a round several times, each of which returns how long the server took for a step, and panics if the server, which
/// has `hz 1`, took the step in its cron only. Then every round takes nearly a second: it begins where the cron has ended
/// the one before. On a busy machine one round or the other may take long, too, so the fastest counts.
#[track_caller]
pub fn without_cron(mut round: impl FnMut() -> Duration) {
    round(); // begins at any time
    let mut took = Vec::new();
    while took.len() < 8 {
        took.push(round());
        if took.iter().any(|took| *took < MADE_UP) {
            return;
        }
    }
    panic!("the server's cron has done it: {took:?}");
}

/// Whether `condition` comes to hold within `limit`; looks at least once, and a last time at the deadline.
pub(super) fn holds_within(limit: Duration, condition: &mut dyn FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let last_look = Instant::now() >= deadline;
        if condition() {
            return true;
        }
        if last_look {
            return false;
        }
        sleep(PAUSE);
    }
}
