//! Waiting for a condition, with a deadline.

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
