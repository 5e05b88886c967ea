//! Work that would take long is done in slices, between which the server serves its clients.

use crate::server::base::clock::Now;

/// How long a slice takes (in microseconds), about.
const SLICE_US: u64 = 1000;

/// In a slice no more clients than this are answered: the server takes its time for each of them later.
const MOST_ANSWERS: u32 = 200;

/// A slice of the server's time.
#[derive(Debug)]
pub struct Slice {
    until: u64,
    answers_left: u32,
}

impl Slice {
    /// A slice that begins now.
    pub fn begin() -> Self {
        Self {
            until: Now::read().micros() + SLICE_US,
            answers_left: MOST_ANSWERS,
        }
    }

    /// A waiting client was answered.
    pub fn has_answered(&mut self) {
        self.answers_left = self.answers_left.saturating_sub(1);
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        let now = Now::read().micros();
        // A clock that was set back does not prolong it.
        self.answers_left == 0 || now >= self.until || now + SLICE_US < self.until
    }
}
