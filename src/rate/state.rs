//! The state machine of a limit: a request, a refund, and what they change. It knows no server and no clock.

use super::decision::{RateDecision, RateVerdict, RequestCost, ceil_ms};
use super::gcra::{Bucket, Tier, bucket_of, buckets_of, pour};
use super::window::Window;

/// The value of a key. The kind of a limit never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// The limit of `RATE.GCRA` and `CL.THROTTLE`.
    Gcra(Bucket),
    /// The limit of `RATE.TIERS`: a bucket for each tier.
    Tiers(Box<[Bucket]>),
    /// The limit of `RATE.WINDOW`. A fixed and a sliding window are two kinds.
    Window(Window),
    /// The limit of `RATE.ONCE`, which has no state besides the existence of its key.
    Once,
}

/// A request to a limit.
#[derive(Debug, Clone, Copy)]
pub enum LimitRequest<'a> {
    /// `RATE.GCRA`, `CL.THROTTLE`
    Gcra(Tier),
    /// `RATE.TIERS`
    Tiers(&'a [Tier]),
    /// `RATE.WINDOW`
    Window {
        /// The number of requests that a window allows.
        limit: u64,
        /// The length of the window in milliseconds, at least 1.
        length: u64,
        /// Whether the window slides.
        is_sliding: bool,
    },
}

/// The limit is of another kind than the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongLimitKind;

/// How a request changes the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitChange {
    /// It does not: the request is refused or not counted.
    Unchanged,
    /// The cost is [added](Limit::add). The result does not depend on the time.
    AddCost,
    /// This limit replaces it.
    Replace(Limit),
}

/// Decides a request: returns the reply and the change of the limit, `None` if the key does not exist. `now` is in Unix
/// microseconds. Error: the limit is of another kind.
#[inline(always)] // each command has requests of one kind
pub fn ask(
    limit: Option<&Limit>,
    request: LimitRequest<'_>,
    cost: RequestCost,
    now: u64,
) -> Result<(RateDecision, LimitChange), WrongLimitKind> {
    match (request, limit) {
        (LimitRequest::Gcra(tier), None | Some(Limit::Gcra(_))) => {
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
        (LimitRequest::Tiers(tiers), None | Some(Limit::Tiers(_))) => {
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
            LimitRequest::Window {
                limit: most,
                length,
                is_sliding,
            },
            None | Some(Limit::Window(_)),
        ) => {
            let now = now / 1000;
            let before = match limit {
                Some(Limit::Window(window)) if window.is_sliding != is_sliding => {
                    return Err(WrongLimitKind);
                }
                Some(Limit::Window(window)) => Some(window),
                _ => None,
            };
            let mut window = match before {
                Some(before) => before.at(now, length),
                None => Window::starting(now, length, is_sliding),
            };
            let adds = before == Some(&window) && window.start <= now;
            let outcome = window.count(most, cost, now);
            let next = || Limit::Window(window);
            Ok((outcome, after(outcome.verdict, cost, adds, next)))
        }
        _ => Err(WrongLimitKind),
    }
}

/// The change that follows from a verdict. `adds`: whether it is enough to add the cost to the limit as it was.
fn after(
    verdict: RateVerdict,
    cost: RequestCost,
    adds: bool,
    limit: impl FnOnce() -> Limit,
) -> LimitChange {
    match verdict {
        RateVerdict::Allowed if !cost.is_counted || cost.cost == 0 => LimitChange::Unchanged,
        RateVerdict::Allowed if adds => LimitChange::AddCost,
        RateVerdict::Allowed => LimitChange::Replace(limit()),
        RateVerdict::Retry(_) | RateVerdict::Never => LimitChange::Unchanged,
    }
}

/// The limit after a refund of `count` requests. The result does not depend on the time: how much has leaked since the last
/// change depends on the rate of the next request.
pub fn refund(limit: &Limit, count: u64) -> Result<Limit, WrongLimitKind> {
    let mut limit = limit.clone();
    match &mut limit {
        Limit::Gcra(bucket) => bucket.refund(count),
        Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.refund(count)),
        Limit::Window(window) => window.refund(count),
        Limit::Once => return Err(WrongLimitKind),
    }
    Ok(limit)
}

/// The decision of `RATE.ONCE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnceVerdict {
    /// The caller is the first.
    First,
    /// Another caller was the first.
    Duplicate,
}

/// Decides `RATE.ONCE`. `expires`: when the key expires; times are Unix ms. Error: the limit is of another kind.
pub fn ask_once(
    limit: Option<&Limit>,
    expires: Option<u64>,
    now: u64,
) -> Result<OnceVerdict, WrongLimitKind> {
    match limit {
        None => Ok(OnceVerdict::First),
        // The server keeps a key through the millisecond in which it expires, and for as long as a script runs.
        Some(Limit::Once) if expires.is_some_and(|at| at <= now) => Ok(OnceVerdict::First),
        Some(Limit::Once) => Ok(OnceVerdict::Duplicate),
        Some(_) => Err(WrongLimitKind),
    }
}

impl Limit {
    /// Adds the cost of a request that was allowed at whatever time.
    pub fn add(&mut self, cost: u64) {
        match self {
            Limit::Gcra(bucket) => bucket.add(cost),
            Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.add(cost)),
            Limit::Window(window) => window.add(cost),
            Limit::Once => {}
        }
    }

    /// Whether the limit allows as much as one that was never used. `now` is in Unix microseconds.
    pub fn is_unused(&self, now: u64) -> bool {
        match self {
            Limit::Gcra(bucket) => bucket.empty_in(now) == 0,
            Limit::Tiers(buckets) => buckets.iter().all(|bucket| bucket.empty_in(now) == 0),
            Limit::Window(window) => window.end() <= now / 1000,
            Limit::Once => false,
        }
    }

    /// When the limit will be unused (Unix ms). `None` for `RATE.ONCE`, where the expiry of the key is the end.
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
