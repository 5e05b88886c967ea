//! Fixed windows, as `INCR` and `EXPIRE` make them, and sliding windows, which add a part of the previous window's requests:
//! the part of that window that is less than one window's length ago.

use super::decision::{RateDecision, RateVerdict, RequestCost};
use crate::request::MAX_SAFE;

/// The largest time in a reply or an effect.
const MOST: u64 = MAX_SAFE as u64;

/// The numbers of requests of a window and of the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Whether it slides.
    pub is_sliding: bool,
    /// Its start (Unix ms).
    pub start: u64,
    /// Its length in milliseconds.
    pub length: u64,
    /// The number of requests in it.
    pub used: u64,
    /// The number of requests in the previous window; 0 if the window does not slide.
    pub previous: u64,
}

impl Window {
    /// An empty window that starts now.
    pub fn starting(now: u64, length: u64, is_sliding: bool) -> Self {
        Self {
            is_sliding,
            start: now,
            length,
            used: 0,
            previous: 0,
        }
    }

    /// The window at a later time. Its length may be another one; its start stays. If the clock was set back, the window is
    /// the same until a request is counted.
    pub fn at(&self, now: u64, length: u64) -> Self {
        match now.saturating_sub(self.start) / length {
            0 => Self { length, ..*self },
            1 if self.is_sliding && self.used > 0 => Self {
                start: self.start + length,
                length,
                used: 0,
                previous: self.used,
                ..*self
            },
            _ => Self::starting(now, length, self.is_sliding),
        }
    }

    /// Counts `cost` requests if there is room for them. `now` is in this window. If the window starts later because the
    /// clock was set back, it starts now, so that it does not last longer.
    #[inline(always)] // each command has its own
    pub fn count(
        &mut self,
        limit: u64,
        RequestCost {
            cost, is_counted, ..
        }: RequestCost,
        now: u64,
    ) -> RateDecision {
        let verdict = match self.wait_for_room(limit, cost, now) {
            None => RateVerdict::Never,
            Some(0) => RateVerdict::Allowed,
            Some(wait) => RateVerdict::Retry(wait.min(MOST)),
        };
        if verdict == RateVerdict::Allowed && is_counted && cost > 0 {
            self.used += cost;
            self.start = self.start.min(now); // later only if the clock was set back
        }
        RateDecision {
            verdict,
            limit,
            remaining: self.remaining(limit, now),
            reset: self.end().saturating_sub(now).min(MOST),
            tier: 0,
        }
    }

    /// Adds requests now, whether or not there is room for them.
    pub fn charge(&mut self, cost: u64, now: u64) {
        *self = self.at(now, self.length);
        self.add(cost);
        self.start = self.start.min(now); // later only if the clock was set back
    }

    /// Adds requests that were allowed at whatever time.
    pub fn add(&mut self, cost: u64) {
        self.used = self.used.saturating_add(cost).min(MAX_SAFE as u64);
    }

    /// Removes requests, at most all: those of this window first.
    pub fn refund(&mut self, count: u64) {
        let here = count.min(self.used);
        self.used -= here;
        self.previous = self.previous.saturating_sub(count - here);
    }

    /// When the window will be unused (Unix ms).
    pub fn end(&self) -> u64 {
        let end = match (self.used, self.previous) {
            (0, 0) => 0,
            (0, _) => self.start + self.length,
            _ if self.is_sliding => self.start + 2 * self.length,
            _ => self.start + self.length,
        };
        end.min(MOST)
    }

    /// The remaining time of this window in milliseconds. It is longer than the window if the clock was set back.
    fn left(&self, now: u64) -> u64 {
        (self.start + self.length).saturating_sub(now)
    }

    /// The number of requests for which the window has room.
    #[inline]
    fn remaining(&self, limit: u64, now: u64) -> u64 {
        let left = limit.saturating_sub(self.used);
        if self.previous == 0 {
            return left;
        }
        let within_reach = self.left(now).min(self.length);
        let weight = u128::from(self.previous) * u128::from(within_reach);
        let weight = weight.div_ceil(u128::from(self.length));
        u128::from(left).saturating_sub(weight) as u64
    }

    /// The time until there is room for `cost` requests, in milliseconds. `None`: there never is.
    #[inline]
    fn wait_for_room(&self, limit: u64, cost: u64, now: u64) -> Option<u64> {
        let next = limit.checked_sub(cost)?;
        let rest = self.left(now);
        Some(match next.checked_sub(self.used) {
            // There is room as soon as the weight of the previous window is at most the rest of the limit.
            Some(left) if self.previous > left => rest - rest.min(self.reach(left, self.previous)),
            Some(_) => 0,
            None if !self.is_sliding => rest,
            // There is room in the next window, when this one is the previous window.
            None => rest + self.length - self.reach(next, self.used),
        })
    }

    /// The longest part of a window with `used` requests whose weight is at most `left`, in milliseconds.
    fn reach(&self, left: u64, used: u64) -> u64 {
        if used <= left {
            return self.length; // the whole window
        }
        (u128::from(left) * u128::from(self.length) / u128::from(used)) as u64
    }
}
