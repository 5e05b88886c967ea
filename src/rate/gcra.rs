//! GCRA, the generic cell rate algorithm (ITU-T I.371, 1992), as a leaky bucket: each request adds its cost to the bucket,
//! and the bucket leaks evenly.
//!
//! The content of a bucket is exact: a whole number of requests and a fraction whose denominator is the period, because
//! `count / period` of a request leaks out in each microsecond.

use super::decision::{RateDecision, RateVerdict, RequestCost, ceil_ms, div_ceil, div_rem};
use crate::request::MAX_SAFE;

/// The largest number of requests in a bucket.
const MOST: u64 = MAX_SAFE as u64;

/// The limit of one bucket: `limit` requests at once, and `count` more in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The size of the bucket in requests, 1 to 2^53 - 1.
    pub limit: u64,
    /// The rate at which the bucket leaks.
    pub rate: LeakRate,
}

/// A number of requests in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakRate {
    /// Requests, 1 to 2^53 - 1.
    pub count: u64,
    /// Microseconds, at least 1.
    pub period: u64,
}

impl LeakRate {
    fn is_faster_than(self, other: Self) -> bool {
        let parts = |count: u64, period: u64| u128::from(count) * u128::from(period);
        parts(self.count, other.period) > parts(other.count, self.period)
    }
}

/// A cost that comes within this time after the last one is added without regard to the time.
pub const MOMENT_US: u64 = 1000;

/// One bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The rate at which it leaks.
    pub rate: LeakRate,
    /// The whole requests in it.
    pub spent: u64,
    /// The fraction of another request in it, in parts. One request has `rate.period` parts.
    pub parts: u64,
    /// The time of this content (Unix us).
    pub at: u64,
}

impl Bucket {
    /// An empty bucket.
    pub fn empty(rate: LeakRate, now: u64) -> Self {
        Self {
            rate,
            spent: 0,
            parts: 0,
            at: now,
        }
    }

    /// The bucket at a later time. If the clock was set back, nothing leaks until it has caught up.
    pub fn leaked(&self, now: u64) -> Self {
        let leaked = u128::from(now.saturating_sub(self.at)) * u128::from(self.rate.count);
        let parts = self.content().saturating_sub(leaked);
        let at = now.max(self.at);
        Self { at, ..*self }.with_content(parts)
    }

    /// The bucket at a later time for a request with another rate. The content has leaked at the faster of both rates: a
    /// refused request changes nothing, and its caller was told to wait at its own rate. This holds from the end of the
    /// moment in which costs may have been added; before that, `at` is still to come.
    pub fn leaked_at(&self, rate: LeakRate, now: u64) -> Self {
        if !rate.is_faster_than(self.rate) {
            return self.leaked(now).at_rate(rate);
        }
        let moment = self.at + MOMENT_US; // a cost may have been added until then
        let mut since = self.leaked(now.min(moment)).at_rate(rate);
        since.at = moment;
        since.leaked(now)
    }

    /// The bucket with another rate and the same number of requests. The fraction is rounded up.
    pub fn at_rate(&self, rate: LeakRate) -> Self {
        if rate == self.rate {
            return *self;
        }
        let (old, new) = (u128::from(self.rate.period), u128::from(rate.period));
        let content = u128::from(self.spent) * new + (u128::from(self.parts) * new).div_ceil(old);
        Self { rate, ..*self }.with_content(content)
    }

    /// Whether a cost may be added to the stored content instead of the content that is `left` now. If the bucket has not run
    /// empty since, it makes no difference whether it leaks before or after the addition.
    pub fn can_add(&self, cost: u64, left: &Self, now: u64) -> bool {
        self.rate == left.rate
            && (self.at..self.at + MOMENT_US).contains(&now)
            && self.spent.saturating_add(cost) <= MOST
            && !left.is_empty()
    }

    /// Adds a cost to the stored content, which is at most 2^53 - 1 requests afterwards.
    pub fn add(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
        if self.spent >= MOST {
            (self.spent, self.parts) = (MOST, 0);
        }
    }

    /// Adds a cost now, whether or not there is room. If the clock was set back, nothing leaks until it has caught up.
    pub fn charge(&mut self, cost: u64, now: u64) {
        *self = self.leaked(now);
        self.add(cost);
    }

    /// Removes requests from the stored content, at most all.
    pub fn refund(&mut self, count: u64) {
        let refunded = u128::from(count) * u128::from(self.rate.period);
        *self = self.with_content(self.content().saturating_sub(refunded));
    }

    /// Whether nothing is in the bucket.
    pub fn is_empty(&self) -> bool {
        self.spent == 0 && self.parts == 0
    }

    /// When it will be empty (Unix us).
    pub fn empty_at(&self) -> u128 {
        u128::from(self.at) + div_ceil(self.content(), self.rate.count)
    }

    /// The time until it is empty, in microseconds.
    pub fn empty_in(&self, now: u64) -> u128 {
        if self.is_empty() {
            0
        } else {
            self.empty_at().saturating_sub(now.into())
        }
    }

    /// The content in parts.
    fn content(&self) -> u128 {
        u128::from(self.spent) * u128::from(self.rate.period) + u128::from(self.parts)
    }

    /// The content is at most 2^53 - 1 requests.
    fn with_content(self, parts: u128) -> Self {
        let (spent, parts) = match div_rem(parts, self.rate.period) {
            (spent, parts) if spent < u128::from(MOST) => (spent as u64, parts),
            _ => (MOST, 0),
        };
        Self {
            spent,
            parts,
            ..self
        }
    }

    /// The number of requests for which the bucket has room.
    fn remaining(&self, limit: u64) -> u64 {
        let begun = u64::from(self.parts > 0);
        limit.saturating_sub(self.spent + begun)
    }

    /// The time until there is room for `cost` requests, in microseconds. `None`: there never is.
    fn wait_for_room(&self, limit: u64, cost: u64, now: u64) -> Option<u128> {
        if cost > limit {
            return None;
        }
        let room = u128::from(limit - cost) * u128::from(self.rate.period);
        let over = self.content().saturating_sub(room);
        Some(match over {
            0 => 0,
            _ => u128::from(self.at.saturating_sub(now)) + div_ceil(over, self.rate.count),
        })
    }
}

/// The present buckets of these tiers, made from the stored buckets.
pub fn buckets_of(before: &[Bucket], tiers: &[Tier], now: u64) -> Box<[Bucket]> {
    let mut pairs = before.iter().zip(tiers);
    let is_same = before.len() == tiers.len() && pairs.all(|(old, tier)| old.rate == tier.rate);
    if is_same {
        return before.iter().map(|old| old.leaked(now)).collect();
    }
    let pairs = tiers.iter().zip(tiers_before(before, tiers));
    let buckets = pairs.map(|(tier, old)| bucket_of(old, tier.rate, now));
    buckets.collect()
}

/// The rules by which a tier finds its stored bucket: by the old rate, the new rate and whether the index is the same. The
/// most specific rule comes first.
const RULES: [fn(LeakRate, LeakRate, bool) -> bool; 5] = [
    |old, new, is_here| is_here && old == new,
    |old, new, _| old == new,
    |old, new, is_here| is_here && old.period == new.period,
    |old, new, _| old.period == new.period,
    |_, _, is_here| is_here,
];

/// The stored bucket of each tier. Several tiers may share a bucket only if its rate is theirs.
#[cold]
fn tiers_before<'b>(before: &'b [Bucket], tiers: &[Tier]) -> Vec<Option<&'b Bucket>> {
    let mut found = vec![None; tiers.len()];
    let mut is_taken = vec![false; before.len()];
    for rule in RULES {
        for (place, (found, tier)) in found.iter_mut().zip(tiers).enumerate() {
            let goes_on = |old: &usize| {
                let rate = before[*old].rate;
                let may_share = rate == tier.rate;
                (may_share || !is_taken[*old]) && rule(rate, tier.rate, *old == place)
            };
            if found.is_none()
                && let Some(old) = (0..before.len()).find(goes_on)
            {
                *found = Some(&before[old]);
                is_taken[old] = true;
            }
        }
    }
    found
}

/// The present bucket at this rate.
#[inline]
pub fn bucket_of(before: Option<&Bucket>, rate: LeakRate, now: u64) -> Bucket {
    match before {
        Some(bucket) => bucket.leaked_at(rate, now),
        None => Bucket::empty(rate, now),
    }
}

/// Adds the cost to all buckets, or to none if one of them has no room. `buckets`: the present buckets of the tiers.
#[inline(always)] // no loop is left for one bucket, the most frequent case
pub fn pour(
    buckets: &mut [Bucket],
    tiers: &[Tier],
    RequestCost {
        cost,
        is_counted,
        ahead_ms,
    }: RequestCost,
    now: u64,
) -> RateDecision {
    // The first of the tiers with the longest wait.
    let (mut wait, mut longest) = (0, 0);
    for (place, (bucket, tier)) in buckets.iter().zip(tiers).enumerate() {
        let next = bucket.wait_for_room(tier.limit, cost, now);
        let next = next.unwrap_or(u128::MAX);
        if next > wait {
            (wait, longest) = (next, place);
        }
    }
    let verdict = match wait {
        0 => RateVerdict::Allowed,
        u128::MAX => RateVerdict::Never,
        wait => match ceil_ms(wait) {
            wait if wait <= ahead_ms => RateVerdict::AllowedAfter(wait),
            wait => RateVerdict::Retry(wait),
        },
    };
    if verdict.is_allowed() && is_counted && cost > 0 {
        for bucket in buckets.iter_mut() {
            bucket.add(cost);
            if verdict == RateVerdict::Allowed {
                bucket.at = now; // even if the clock was set back; a wait was computed from the bucket's time
            }
        }
    }
    let left = |place: usize| buckets[place].remaining(tiers[place].limit);
    let tier = match verdict {
        RateVerdict::Allowed if tiers.len() == 1 => 0, // what follows is not made for one
        RateVerdict::Allowed => (0..tiers.len())
            .min_by_key(|place| left(*place))
            .unwrap_or(0),
        _ => longest,
    };
    let mut reset = 0;
    for bucket in buckets.iter() {
        reset = bucket.empty_in(now).max(reset);
    }
    RateDecision {
        verdict,
        limit: tiers[tier].limit,
        remaining: left(tier),
        reset: ceil_ms(reset),
        tier,
    }
}
