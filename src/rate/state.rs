//! The state machine of a limit: a request, a refund, and what they change. It uses no server and no clock.

use super::decision::{RateDecision, RateVerdict, RequestCost, ceil_ms};
use super::exact::ExactWindow;
use super::gcra::{Bucket, Tier, bucket_of, buckets_of, pour};
use super::window::Window;

/// The value of a key. The kind of a limit never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// The limit of `RATE.GCRA`, `RATE.MGCRA` and `CL.THROTTLE`.
    Gcra(Bucket),
    /// The limit of `RATE.TIERS`: a bucket for each tier.
    Tiers(Box<[Bucket]>),
    /// The limit of `RATE.WINDOW`. A fixed and a sliding window are two kinds.
    Window(Window),
    /// The limit of `RATE.WINDOW ... EXACT`.
    Exact(Box<ExactWindow>),
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
    /// `RATE.WINDOW ... EXACT`
    Exact {
        /// The number of requests that any span of the window's length allows.
        limit: u64,
        /// The length of the window in milliseconds, at least 1.
        length: u64,
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
    /// The log of an exact window gets a [call](ExactWindow::record).
    Record(WindowCall),
    /// The log of an exact window [gives back](ExactWindow::give_back) this cost.
    GiveBack(u64),
}

/// A call that an exact window remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCall {
    /// Its time (Unix us).
    pub at: u64,
    /// Its cost.
    pub cost: u64,
    /// The length of the window in microseconds.
    pub length: u64,
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
        (
            LimitRequest::Exact {
                limit: most,
                length,
            },
            None | Some(Limit::Exact(_)),
        ) => {
            let length = length * 1000;
            let empty;
            let log = match limit {
                Some(Limit::Exact(log)) => &**log,
                _ => {
                    empty = ExactWindow::new(length);
                    &empty
                }
            };
            let outcome = log.decide(most, length, cost, now);
            let records = outcome.verdict == RateVerdict::Allowed && cost.is_counted;
            let change = match cost.cost {
                cost if records && cost > 0 => LimitChange::Record(WindowCall {
                    at: now,
                    cost,
                    length,
                }),
                _ => LimitChange::Unchanged,
            };
            Ok((outcome, change))
        }
        _ => Err(WrongLimitKind),
    }
}

/// Decides one request to the GCRA limits of several keys, all or nothing. `before`: the limits, `None` where the key does not
/// exist. Returns the reply and, if the limits change, all of them. `now` is in Unix microseconds.
pub fn ask_all(
    before: &[Option<Bucket>],
    tiers: &[Tier],
    cost: RequestCost,
    now: u64,
) -> (RateDecision, Option<Vec<Limit>>) {
    let pairs = before.iter().zip(tiers);
    let buckets = pairs.map(|(before, tier)| bucket_of(before.as_ref(), tier.rate, now));
    let mut buckets: Vec<_> = buckets.collect();
    let outcome = pour(&mut buckets, tiers, cost, now);
    let changes = outcome.verdict.is_allowed() && cost.is_counted && cost.cost > 0;
    let after = || buckets.into_iter().map(Limit::Gcra).collect();
    (outcome, changes.then(after))
}

/// The change that follows from a verdict. `adds`: whether it is enough to add the cost to the limit as it was.
fn after(
    verdict: RateVerdict,
    cost: RequestCost,
    adds: bool,
    limit: impl FnOnce() -> Limit,
) -> LimitChange {
    match verdict {
        RateVerdict::Retry(_) | RateVerdict::Never => LimitChange::Unchanged,
        _ if !cost.is_counted || cost.cost == 0 => LimitChange::Unchanged,
        _ if adds => LimitChange::AddCost,
        _ => LimitChange::Replace(limit()),
    }
}

/// The change by a refund of `count` requests. The result does not depend on the time: how much has leaked since the last
/// change depends on the rate of the next request.
pub fn refund(limit: &Limit, count: u64) -> Result<LimitChange, WrongLimitKind> {
    let mut after = match limit {
        Limit::Once => return Err(WrongLimitKind),
        _ if count == 0 => return Ok(LimitChange::Unchanged),
        Limit::Exact(_) => return Ok(LimitChange::GiveBack(count)),
        _ => limit.clone(),
    };
    match &mut after {
        Limit::Gcra(bucket) => bucket.refund(count),
        Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.refund(count)),
        Limit::Window(window) => window.refund(count),
        Limit::Exact(_) | Limit::Once => {}
    }
    Ok(LimitChange::Replace(after))
}

/// The change by a cost of `count` requests that is known only after they were allowed. `now` is in Unix microseconds.
pub fn charge(limit: &Limit, count: u64, now: u64) -> Result<LimitChange, WrongLimitKind> {
    let mut after = match limit {
        Limit::Once => return Err(WrongLimitKind),
        _ if count == 0 => return Ok(LimitChange::Unchanged),
        Limit::Exact(log) => {
            return Ok(LimitChange::Record(WindowCall {
                at: now,
                cost: count,
                length: log.length(),
            }));
        }
        _ => limit.clone(),
    };
    match &mut after {
        Limit::Gcra(bucket) => bucket.charge(count, now),
        Limit::Tiers(buckets) => {
            let each = buckets.iter_mut();
            each.for_each(|bucket| bucket.charge(count, now));
        }
        Limit::Window(window) => window.charge(count, now / 1000),
        Limit::Exact(_) | Limit::Once => {}
    }
    Ok(LimitChange::Replace(after))
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
    /// Adds the cost of a request that was allowed at whatever time. Returns the [end](Self::end) if it has changed. Most
    /// requests to a hot key do not move it to another millisecond.
    #[inline]
    pub fn add(&mut self, cost: u64) -> Option<u64> {
        match self {
            Limit::Window(window) if window.used > 0 => {
                window.add(cost);
                None // the end depends on whether the window is used
            }
            Limit::Gcra(bucket) => {
                let end_before = end_of(bucket);
                bucket.add(cost);
                let end = end_of(bucket);
                (end != end_before).then_some(end)
            }
            _ => self.add_rarely(cost),
        }
    }

    /// The same for the other kinds of limits, and for unused ones.
    #[inline(never)]
    fn add_rarely(&mut self, cost: u64) -> Option<u64> {
        let end_before = self.end();
        match self {
            Limit::Gcra(bucket) => bucket.add(cost),
            Limit::Tiers(buckets) => buckets.iter_mut().for_each(|bucket| bucket.add(cost)),
            Limit::Window(window) => window.add(cost),
            Limit::Exact(log) => log.add(cost),
            Limit::Once => {}
        }
        self.end().filter(|end| end_before != Some(*end))
    }

    /// Remembers a call in the log of an exact window.
    pub fn record(&mut self, call: WindowCall) {
        if let Limit::Exact(log) = self {
            log.record(call.at, call.cost, call.length);
        }
    }

    /// Whether nothing is left of the log of an exact window after a refund of `count`.
    pub fn is_used_up_by(&self, count: u64) -> bool {
        matches!(self, Limit::Exact(log) if log.used() <= count)
    }

    /// Gives a cost back to the log of an exact window.
    pub fn give_back(&mut self, count: u64) {
        if let Limit::Exact(log) = self {
            log.give_back(count);
        }
    }

    /// Whether the limit allows as much as one that was never used. `now` is in Unix microseconds.
    pub fn is_unused(&self, now: u64) -> bool {
        match self {
            Limit::Gcra(bucket) => bucket.empty_in(now) == 0,
            Limit::Tiers(buckets) => buckets.iter().all(|bucket| bucket.empty_in(now) == 0),
            Limit::Window(window) => window.end() <= now / 1000,
            Limit::Exact(log) => log.end() <= now,
            Limit::Once => false,
        }
    }

    /// When the limit will be unused (Unix ms). `None` for `RATE.ONCE`, where the expiry of the key is the end.
    pub fn end(&self) -> Option<u64> {
        match self {
            Limit::Gcra(bucket) => Some(end_of(bucket)),
            Limit::Tiers(buckets) => buckets.iter().map(end_of).max(),
            Limit::Window(window) => Some(window.end()),
            Limit::Exact(log) => Some(ceil_ms(log.end().into())),
            Limit::Once => None,
        }
    }
}

/// When a bucket will be empty (Unix ms).
#[inline]
fn end_of(bucket: &Bucket) -> u64 {
    ceil_ms(bucket.empty_at())
}
