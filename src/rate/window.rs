//! Counting per window of time: a fixed window, as `INCR` and `EXPIRE` make one, and a sliding one, which
//! weighs the requests of the window before by how much of it is still within reach.

use super::outcome::{Cost, Outcome, Verdict};
use crate::request::MAX_SAFE;

/// The largest time that a reply or an effect can have.
const MOST: u64 = MAX_SAFE as u64;

/// The requests of a window, and of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Does it slide?
    pub slides: bool,
    /// When it began (Unix ms).
    pub start: u64,
    /// How long it is, in milliseconds.
    pub length: u64,
    /// The requests in it.
    pub used: u64,
    /// The requests in the one before; 0 if it doesn't slide.
    pub before: u64,
}

impl Window {
    /// A window that begins now.
    pub fn starting(now: u64, length: u64, slides: bool) -> Self {
        Self {
            slides,
            start: now,
            length,
            used: 0,
            before: 0,
        }
    }

    /// The window that a later time is in, with another length perhaps: it began when it did. A clock
    /// that was set back stays in the window, until a call is counted.
    pub fn at(&self, now: u64, length: u64) -> Self {
        match now.saturating_sub(self.start) / length {
            0 => Self { length, ..*self },
            1 if self.slides && self.used > 0 => Self {
                start: self.start + length,
                length,
                used: 0,
                before: self.used,
                ..*self
            },
            _ => Self::starting(now, length, self.slides),
        }
    }

    /// Counts `cost` requests, if there is room for them. The window is the one that `now` is in. If it is said to begin
    /// later, since the clock was set back, it begins now: it shall not last longer by that.
    pub fn count(&mut self, limit: u64, Cost { cost, spends }: Cost, now: u64) -> Outcome {
        let verdict = match self.room_in(limit, cost, now) {
            None => Verdict::Never,
            Some(0) => Verdict::Allowed,
            Some(wait) => Verdict::Retry(wait.min(MOST)),
        };
        if verdict == Verdict::Allowed && spends && cost > 0 {
            self.used += cost;
            self.start = self.start.min(now); // on a clock that was set back it begins again
        }
        Outcome {
            verdict,
            limit,
            remaining: self.remaining(limit, now),
            reset: self.end().saturating_sub(now).min(MOST),
            tier: 0,
        }
    }

    /// Counts requests that were allowed, whenever that was.
    pub fn add(&mut self, cost: u64) {
        self.used = self.used.saturating_add(cost).min(MAX_SAFE as u64);
    }

    /// Gives requests back, at most all: those of this window first.
    pub fn refund(&mut self, count: u64) {
        let here = count.min(self.used);
        self.used -= here;
        self.before = self.before.saturating_sub(count - here);
    }

    /// When nothing of it matters any more (Unix ms).
    pub fn end(&self) -> u64 {
        let end = match (self.used, self.before) {
            (0, 0) => 0,
            (0, _) => self.start + self.length,
            _ if self.slides => self.start + 2 * self.length,
            _ => self.start + self.length,
        };
        end.min(MOST)
    }

    /// What of this window is still to come, in milliseconds; more than all of it on a clock that was set
    /// back.
    fn left(&self, now: u64) -> u64 {
        (self.start + self.length).saturating_sub(now)
    }

    /// How many more requests fit.
    fn remaining(&self, limit: u64, now: u64) -> u64 {
        let left = limit.saturating_sub(self.used);
        if self.before == 0 {
            return left;
        }
        let within_reach = self.left(now).min(self.length);
        let weight = u128::from(self.before) * u128::from(within_reach);
        let weight = weight.div_ceil(u128::from(self.length));
        u128::from(left).saturating_sub(weight) as u64
    }

    /// In how many milliseconds there is room for `cost` requests; 0: there is. `None`: never.
    fn room_in(&self, limit: u64, cost: u64, now: u64) -> Option<u64> {
        let next = limit.checked_sub(cost)?;
        let rest = self.left(now);
        Some(match next.checked_sub(self.used) {
            // As soon as the window before weighs no more than what is left of the limit.
            Some(left) if self.before > left => rest - rest.min(self.reach(left, self.before)),
            Some(_) => 0,
            None if !self.slides => rest,
            // In the next window, before which this one will be.
            None => rest + self.length - self.reach(next, self.used),
        })
    }

    /// How much of a window with `used` requests may be within reach for them to weigh no more than
    /// `left`, in milliseconds.
    fn reach(&self, left: u64, used: u64) -> u64 {
        if used <= left {
            return self.length; // all of it
        }
        (u128::from(left) * u128::from(self.length) / u128::from(used)) as u64
    }
}
