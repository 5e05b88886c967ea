//! GCRA, the generic cell rate algorithm (ITU-T I.371, 1992), as a leaky bucket: each request pours
//! its cost in, and the bucket leaks evenly.
//!
//! Everything is an integer, and nothing is rounded: what is in the bucket is whole requests and a
//! fraction whose denominator is the period, since in each microsecond `count / period` of a request
//! leaks out.

use super::outcome::{Cost, Outcome, Verdict, ceil_ms, div_ceil, div_rem};
use crate::request::MAX_SAFE;

/// How fast and how far: `limit` requests at once, `count` of them again in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The size of the bucket in requests, 1 to 2^53 - 1.
    pub limit: u64,
    /// How fast it leaks.
    pub rate: Rate,
}

/// So many requests in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests, 1 to 2^53 - 1.
    pub count: u64,
    /// Microseconds, at least 1.
    pub period: u64,
}

impl Rate {
    fn is_faster_than(self, other: Self) -> bool {
        let parts = |count: u64, period: u64| u128::from(count) * u128::from(period);
        parts(self.count, other.period) > parts(other.count, self.period)
    }
}

/// Costs of the same moment, in microseconds, are added without regard to the time.
pub const MOMENT: u64 = 1000;

/// One bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// How fast it leaks.
    pub rate: Rate,
    /// Whole requests in it.
    pub spent: u64,
    /// And so many parts of one more, of which `rate.period` are one request.
    pub parts: u64,
    /// When that was so (Unix us).
    pub at: u64,
}

impl Bucket {
    /// An empty bucket.
    pub fn empty(rate: Rate, now: u64) -> Self {
        Self {
            rate,
            spent: 0,
            parts: 0,
            at: now,
        }
    }

    /// What is left in the bucket at a later time. A clock that was set back lets nothing out until it is
    /// there again.
    pub fn leaked(&self, now: u64) -> Self {
        let leaked = u128::from(now.saturating_sub(self.at)) * u128::from(self.rate.count);
        let parts = self.content().saturating_sub(leaked);
        let at = now.max(self.at);
        Self { at, ..*self }.with_content(parts)
    }

    /// The same for whoever asks with another rate. What is in it has leaked at the faster of both: since
    /// a refusal changes nothing, the rate that it was asked with must count for as long as it tells to
    /// wait. That counts from the end of the moment in which costs may have been added; before, `at` is still to come.
    pub fn leaked_at(&self, rate: Rate, now: u64) -> Self {
        if !rate.is_faster_than(self.rate) {
            return self.leaked(now).at_rate(rate);
        }
        let moment = self.at + MOMENT; // when the last cost may have been added
        let mut since = self.leaked(now.min(moment)).at_rate(rate);
        since.at = moment;
        since.leaked(now)
    }

    /// The same with another rate: as many requests are in it. A fraction is rounded up.
    pub fn at_rate(&self, rate: Rate) -> Self {
        if rate == self.rate {
            return *self;
        }
        let (old, new) = (u128::from(self.rate.period), u128::from(rate.period));
        let content = u128::from(self.spent) * new + (u128::from(self.parts) * new).div_ceil(old);
        Self { rate, ..*self }.with_content(content)
    }

    /// May a cost be added to what was in it a moment ago, rather than to what is `left` of it now? As long as it has not
    /// run empty since, it makes no difference whether it leaked before or leaks afterwards.
    pub fn can_add(&self, cost: u64, left: &Self, now: u64) -> bool {
        self.rate == left.rate
            && (self.at..self.at + MOMENT).contains(&now)
            && self.spent.saturating_add(cost) <= MAX_SAFE as u64
            && !left.is_empty()
    }

    /// Adds a cost to what was in it when it was last looked at.
    pub fn add(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost).min(MAX_SAFE as u64);
    }

    /// Takes requests out again, at most all, of what was in it when it was last looked at.
    pub fn refund(&mut self, count: u64) {
        let refunded = u128::from(count) * u128::from(self.rate.period);
        *self = self.with_content(self.content().saturating_sub(refunded));
    }

    /// Is it as if it had never been used?
    pub fn is_empty(&self) -> bool {
        self.spent == 0 && self.parts == 0
    }

    /// When it will be empty (Unix us).
    pub fn empty_at(&self) -> u128 {
        u128::from(self.at) + div_ceil(self.content(), self.rate.count)
    }

    /// In how many microseconds it will be empty.
    pub fn empty_in(&self, now: u64) -> u128 {
        if self.is_empty() {
            0
        } else {
            self.empty_at().saturating_sub(now.into())
        }
    }

    /// What is in it, in parts.
    fn content(&self) -> u128 {
        u128::from(self.spent) * u128::from(self.rate.period) + u128::from(self.parts)
    }

    fn with_content(self, parts: u128) -> Self {
        let (spent, parts) = div_rem(parts, self.rate.period);
        let spent = spent as u64;
        Self {
            spent,
            parts,
            ..self
        }
    }

    /// How many more requests fit.
    fn remaining(&self, limit: u64) -> u64 {
        let begun = u64::from(self.parts > 0);
        limit.saturating_sub(self.spent + begun)
    }

    /// In how many microseconds there is room for `cost` requests; 0: there is. `None`: never.
    fn room_in(&self, limit: u64, cost: u64, now: u64) -> Option<u128> {
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

/// The buckets of these tiers as they are now, out of those that there were.
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

/// How the bucket of a tier is recognized, by the old and the new rate and whether the place is the same. First those
/// that say the most.
const RULES: [fn(Rate, Rate, bool) -> bool; 5] = [
    |old, new, is_here| is_here && old == new,
    |old, new, _| old == new,
    |old, new, is_here| is_here && old.period == new.period,
    |old, new, _| old.period == new.period,
    |_, _, is_here| is_here,
];

/// The bucket that each tier goes on with. One of the same rate has what each of several such tiers would have in it;
/// otherwise no bucket serves two of them.
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

/// The bucket as it is now, at this rate.
pub fn bucket_of(before: Option<&Bucket>, rate: Rate, now: u64) -> Bucket {
    match before {
        Some(bucket) => bucket.leaked_at(rate, now),
        None => Bucket::empty(rate, now),
    }
}

/// Pours `cost` requests into all buckets, or into none if one has no room. The buckets are those of
/// the tiers, as they are now.
#[inline(always)] // for one bucket, the most frequent case, that leaves no loops
pub fn pour(
    buckets: &mut [Bucket],
    tiers: &[Tier],
    Cost { cost, spends }: Cost,
    now: u64,
) -> Outcome {
    let waits = buckets.iter().zip(tiers).enumerate();
    let waits = waits.map(|(place, (bucket, tier))| {
        let wait = bucket.room_in(tier.limit, cost, now);
        (wait.unwrap_or(u128::MAX), place)
    });
    // Of tiers that keep it waiting for as long, the first.
    let (wait, longest) = waits.fold(
        (0, 0),
        |most, next| if next.0 > most.0 { next } else { most },
    );
    let verdict = match wait {
        0 => Verdict::Allowed,
        u128::MAX => Verdict::Never,
        wait => Verdict::Retry(ceil_ms(wait)),
    };
    if verdict == Verdict::Allowed && spends && cost > 0 {
        for bucket in buckets.iter_mut() {
            bucket.spent += cost;
            bucket.at = now; // also on a clock that was set back
        }
    }
    let left = |place: usize| buckets[place].remaining(tiers[place].limit);
    let tier = match verdict {
        Verdict::Allowed => (0..tiers.len())
            .min_by_key(|place| left(*place))
            .unwrap_or(0),
        _ => longest,
    };
    let reset = buckets.iter().map(|bucket| bucket.empty_in(now)).max();
    Outcome {
        verdict,
        limit: tiers[tier].limit,
        remaining: left(tier),
        reset: ceil_ms(reset.unwrap_or(0)),
        tier,
    }
}
