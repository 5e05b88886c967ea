//! Time slices: long work runs in slices, between which the server serves its clients.

use crate::server::base::clock::Now;

/// The approximate length of a slice, in microseconds.
const SLICE_US: u64 = 1000;

/// The most clients that a slice answers. The server needs time for each of them after the slice.
const MOST_ANSWERS: u32 = 200;

/// The most clients that a slice redirects. After the slice, the server takes 20 us to answer each of them.
const MOST_REDIRECTIONS: u32 = 64;

/// A slice of the server's time.
#[derive(Debug)]
pub struct Slice {
    length_us: u64,
    until: u64,
    answers_left: u32,
}

impl Slice {
    /// A slice that begins now.
    pub fn begin() -> Self {
        Self::of_micros(SLICE_US)
    }

    /// A slice that begins now, in which clients are redirected to other nodes.
    pub fn of_redirections() -> Self {
        Self {
            answers_left: MOST_REDIRECTIONS,
            ..Self::begin()
        }
    }

    /// A slice of this many microseconds that begins now.
    pub fn of_micros(length_us: u64) -> Self {
        Self {
            length_us,
            until: Now::read().micros() + length_us,
            answers_left: MOST_ANSWERS,
        }
    }

    /// Counts a waiting client that was answered.
    pub fn has_answered(&mut self) {
        self.answers_left = self.answers_left.saturating_sub(1);
    }

    /// Whether the slice is over.
    pub fn is_over(&self) -> bool {
        let now = Now::read().micros();
        // A clock that was set back must not prolong the slice.
        self.answers_left == 0 || now >= self.until || now + self.length_us < self.until
    }
}
