//! A limit: what was consumed of it, and what comes of a request. It knows no server and no clock.

use super::gcra::{Bucket, Tier, bucket_of, buckets_of, pour};
use super::outcome::{Cost, Outcome, Verdict, ceil_ms};
use super::window::Window;

/// What a key holds. Which kind it is never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// `RATE.GCRA`, `CL.THROTTLE`.
    Gcra(Bucket),
    /// `RATE.TIERS`: all of them at once.
    Tiers(Box<[Bucket]>),
    /// `RATE.WINDOW`, with `SLIDING` or without, which are two kinds.
    Window(Window),
    /// `RATE.ONCE`: that there is a key is all that it says.
    Once,
}

/// What a request asks of a limit.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Of a GCRA.
    Gcra(Tier),
    /// Of several at once.
    Tiers(&'a [Tier]),
    /// Of a window.
    Window {
        /// How many requests it allows.
        limit: u64,
        /// Its length in milliseconds, at least 1.
        length: u64,
        /// Does it slide?
        slides: bool,
    },
}

/// The limit is of another kind than the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherKind;

/// What becomes of a limit that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It stays as it is: the request was refused, or is not counted.
    Same,
    /// The cost is [added](Limit::add), which has nothing to do with the time.
    Added,
    /// It is this.
    Set(Limit),
}

/// What comes of a request, and what becomes of the limit. `now` is in Unix microseconds.
pub fn ask(
    limit: Option<&Limit>,
    request: Request<'_>,
    cost: Cost,
    now: u64,
) -> Result<(Outcome, Next), OtherKind> {
    match (request, limit) {
        (Request::Gcra(tier), None | Some(Limit::Gcra(_))) => {
            let before = match limit {
                Some(Limit::Gcra(bucket)) => Some(bucket),
                _ => None,
            };
            let mut bucket = bucket_of(before, tier.rate, now);
            let adds = before.is_some_and(|before| before.can_add(cost.cost, &bucket, now));
            let outcome = pour(std::slice::from_mut(&mut bucket), &[tier], cost, now);
            let next = || Limit::Gcra(bucket);
            Ok((outcome, after(outcome.verdict, cost, adds, next)))
        }
        (Request::Tiers(tiers), None | Some(Limit::Tiers(_))) => {
            let before: &[Bucket] = match limit {
                Some(Limit::Tiers(buckets)) => buckets,
                _ => &[],
            };
            let mut buckets = buckets_of(before, tiers, now);
            let mut pairs = before.iter().zip(&buckets);
            let adds = before.len() == buckets.len()
                && pairs.all(|(before, bucket)| before.can_add(cost.cost, bucket, now));
            let outcome = pour(&mut buckets, tiers, cost, now);
            let next = || Limit::Tiers(buckets);
            Ok((outcome, after(outcome.verdict, cost, adds, next)))
        }
        (
            Request::Window {
                limit: most,
                length,
                slides,
            },
            None | Some(Limit::Window(_)),
        ) => {
            let now = now / 1000;
            let before = match limit {
                Some(Limit::Window(window)) if window.slides != slides => return Err(OtherKind),
                Some(Limit::Window(window)) => Some(window),
                _ => None,
            };
            let mut window = match before {
                Some(before) => before.at(now, length),
                None => Window::starting(now, length, slides),
            };
            let adds = before == Some(&window) && window.start <= now;
            let outcome = window.count(most, cost, now);
            let next = || Limit::Window(window);
            Ok((outcome, after(outcome.verdict, cost, adds, next)))
        }
        _ => Err(OtherKind),
    }
}

/// What becomes of a limit after a verdict; `adds`: is it enough to add the cost to what it was?
fn after(verdict: Verdict, cost: Cost, adds: bool, limit: impl FnOnce() -> Limit) -> Next {
    match verdict {
        Verdict::Allowed if !cost.spends || cost.cost == 0 => Next::Same,
        Verdict::Allowed if adds => Next::Added,
        Verdict::Allowed => Next::Set(limit()),
        Verdict::Retry(_) | Verdict::Never => Next::Same,
    }
}

/// The limit after `count` requests were given back. That has nothing to do with the time: what has leaked since the last
/// change is known only when it is asked again, at the rate that it is asked with then.
pub fn refund(limit: &Limit, count: u64) -> Result<Limit, OtherKind> {
    let mut limit = limit.clone();
    match &mut limit {
        Limit::Gcra(bucket) => bucket.refund(count),
        Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.refund(count)),
        Limit::Window(window) => window.refund(count),
        Limit::Once => return Err(OtherKind),
    }
    Ok(limit)
}

impl Limit {
    /// Counts the cost of a request that was allowed, whenever that was.
    pub fn add(&mut self, cost: u64) {
        match self {
            Limit::Gcra(bucket) => bucket.add(cost),
            Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.add(cost)),
            Limit::Window(window) => window.add(cost),
            Limit::Once => {}
        }
    }

    /// Is it as if it had never been used? `now` is in Unix microseconds.
    pub fn is_over(&self, now: u64) -> bool {
        match self {
            Limit::Gcra(bucket) => bucket.empty_in(now) == 0,
            Limit::Tiers(buckets) => buckets.iter().all(|bucket| bucket.empty_in(now) == 0),
            Limit::Window(window) => window.end() <= now / 1000,
            Limit::Once => false,
        }
    }

    /// When nothing of it matters any more (Unix ms); of one that is asked once, the key alone knows.
    pub fn end(&self) -> Option<u64> {
        let end = |bucket: &Bucket| ceil_ms(bucket.empty_at());
        match self {
            Limit::Gcra(bucket) => Some(end(bucket)),
            Limit::Tiers(buckets) => buckets.iter().map(end).max(),
            Limit::Window(window) => Some(window.end()),
            Limit::Once => None,
        }
    }
}
