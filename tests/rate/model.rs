//! Limits against exact models, without a server: random calls, whose every outcome must be the model's.
//!
//! The models know nothing of buckets. That of GCRA is the standard's other form, a theoretical arrival time, as a whole
//! number of 1/count microseconds; that of windows keeps every call in a list. Nothing in them is rounded.

use std::time::Instant;

use crate::support::Random;
use sluice::rate::decision::{RateDecision, RateVerdict, RequestCost};
use sluice::rate::exact::ExactWindow;
use sluice::rate::gcra::{Bucket, LeakRate, Tier};
use sluice::rate::state::{self, Limit, LimitChange, LimitRequest, WrongLimitKind};
use sluice::rate::window::Window;
use sluice::rate::{MAX_PERIOD_US, MAX_TIERS, persist};
use sluice::request::{MAX_SAFE, TEN_YEARS_MS};

/// The largest quantity.
const MOST: u64 = MAX_SAFE as u64;
const TEN_YEARS: u64 = TEN_YEARS_MS as u64;

/// A day in 2025, in microseconds.
const TODAY: u64 = 1_750_000_000_000_000;

/// In microseconds.
const HOUR_US: u64 = 3_600_000_000;

/// No test goes beyond: the year 2247, close to 2^53 microseconds, which is the last that a saved bucket can tell.
const END_OF_TIME: u64 = 5 * TODAY;

/// How many calls each model is compared with.
const CALLS: u64 = if cfg!(miri) { 1200 } else { 500_000 };

/// How many of them one key gets.
const CALLS_OF_A_KEY: u64 = 60;

/// A peek says the same of what is allowed, otherwise how it stands before, and changes nothing.
#[track_caller]
fn check_peek(
    limit: Option<&Limit>,
    request: LimitRequest<'_>,
    told: &RateDecision,
    spend: RequestCost,
    now: u64,
) {
    let peek = RequestCost {
        is_counted: false,
        ..spend
    };
    let nothing = RequestCost { cost: 0, ..peek };
    let (peeked, next) = state::ask(limit, request, peek, now).expect("the kind");
    let (before, _) = state::ask(limit, request, nothing, now).expect("the kind");
    assert_eq!(
        (peeked.verdict, next),
        (told.verdict, LimitChange::Unchanged)
    );
    assert_eq!(peeked.reset, before.reset);
    if peeked.tier == before.tier {
        assert_eq!(peeked.remaining, before.remaining);
    }
}

/// What comes of a request, and the limit afterwards; an empty one, if there is none.
fn ask(
    limit: Option<&Limit>,
    request: LimitRequest<'_>,
    cost: u64,
    now: u64,
) -> Result<(RateDecision, Limit), WrongLimitKind> {
    ask_ahead(limit, request, RequestCost::counted(cost), now)
}

/// The same, perhaps with `AHEAD`.
fn ask_ahead(
    limit: Option<&Limit>,
    request: LimitRequest<'_>,
    spend: RequestCost,
    now: u64,
) -> Result<(RateDecision, Limit), WrongLimitKind> {
    let cost = spend.cost;
    let (outcome, next) = state::ask(limit, request, spend, now)?;
    check_peek(limit, request, &outcome, spend, now);
    let counts = outcome.verdict.is_allowed() && cost > 0;
    assert_eq!(
        next == LimitChange::Unchanged,
        !counts,
        "a request that counts changes something"
    );
    let mut after = limit.cloned();
    match (next, request) {
        (LimitChange::AddCost, _) => {
            let limit = after.as_mut().expect("there is one");
            let end_before = limit.end();
            let new_end = limit.add(cost);
            assert_eq!(new_end, limit.end().filter(|end| end_before != Some(*end)));
        }
        (LimitChange::Record(call), LimitRequest::Exact { length, .. }) => {
            let empty = || Limit::Exact(Box::new(ExactWindow::new(1000 * length)));
            after.get_or_insert_with(empty).record(call);
        }
        (next, _) => after = changed(after, next),
    }
    let empty = match request {
        LimitRequest::Gcra(tier) => Limit::Gcra(Bucket::empty(tier.rate, now)),
        LimitRequest::Tiers(tiers) => {
            let buckets = tiers.iter().map(|tier| Bucket::empty(tier.rate, now));
            Limit::Tiers(buckets.collect())
        }
        LimitRequest::Window {
            length, is_sliding, ..
        } => Limit::Window(Window::starting(now / 1000, length, is_sliding)),
        LimitRequest::Exact { length, .. } => {
            Limit::Exact(Box::new(ExactWindow::new(1000 * length)))
        }
    };
    Ok((outcome, after.unwrap_or(empty)))
}

/// A limit after a change that does not depend on a request.
fn changed(limit: Option<Limit>, change: LimitChange) -> Option<Limit> {
    match (limit, change) {
        (limit, LimitChange::Unchanged) => limit,
        (_, LimitChange::Replace(after)) => Some(after),
        (Some(mut limit), LimitChange::Record(call)) => {
            limit.record(call);
            Some(limit)
        }
        (Some(mut limit), LimitChange::GiveBack(count)) => {
            limit.give_back(count);
            Some(limit)
        }
        (limit, change) => panic!("{change:?} of {limit:?}"),
    }
}

/// The limit after a refund.
fn refund(limit: &Limit, count: u64) -> Result<Limit, WrongLimitKind> {
    let change = state::refund(limit, count)?;
    Ok(changed(Some(limit.clone()), change).expect("a limit"))
}

/// The limit after a cost that was known too late.
fn charge(limit: &Limit, count: u64, now: u64) -> Limit {
    let change = state::charge(limit, count, now).expect("a limit that counts");
    changed(Some(limit.clone()), change).expect("a limit")
}

impl Random {
    /// A number of at most `most`, as often small as large: each length in bits is as likely.
    fn up_to(&mut self, most: u64) -> u64 {
        let bits = self.below(65 - u64::from(most.leading_zeros()));
        match self.below(8) {
            0 => most,
            1 => 1.min(most),
            _ => self
                .word()
                .checked_shr(64 - bits as u32)
                .unwrap_or(0)
                .min(most),
        }
    }

    /// Ordinary limits, whose calls meet, and any others.
    fn tier(&mut self) -> Tier {
        if self.below(3) > 0 {
            return Tier {
                limit: 1 + self.below(8),
                rate: LeakRate {
                    count: 1 + self.below(12),
                    period: *self.one(&[1000, 7000, 60_000, 1_000_000, 999_983, 60_000_000]),
                },
            };
        }
        Tier {
            limit: self.up_to(MOST).max(1),
            rate: LeakRate {
                count: self.up_to(MOST).max(1),
                period: 1000 * self.up_to(TEN_YEARS).max(1),
            },
        }
    }

    fn cost(&mut self, limit: u64) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => limit,
            2 => limit + 1,
            3 => self.up_to(MOST),
            4..=7 => self.below(limit.min(5) + 1),
            _ => 1,
        }
    }

    /// How long until the next call: often just as long as the last one was told to wait, or a little less.
    fn pause(&mut self, told: &RateDecision) -> u64 {
        let retry = match told.verdict {
            RateVerdict::Retry(ms) => ms.saturating_mul(1000),
            _ => 0,
        };
        let reset = told.reset.saturating_mul(1000);
        match self.below(12) {
            0 | 1 => 0,
            2 => retry,
            3 => retry.saturating_sub(1000),
            4 => reset,
            5 => reset.saturating_sub(1),
            6 => self.up_to(reset),
            7 => self.up_to(10 * MAX_PERIOD_US),
            8 => self.below(1000),
            _ => self.below(2_000_000),
        }
    }
}

/// A clock that goes forward, but for a few times when somebody sets it back.
struct Clock(u64);

impl Clock {
    fn next(&mut self, random: &mut Random, told: Option<&RateDecision>) {
        let pause = told.map_or(0, |told| random.pause(told));
        self.0 = match random.below(40) {
            0 => self.0 - random.up_to(self.0 / 2).min(self.0),
            _ => self.0.saturating_add(pause),
        };
        if self.0 > END_OF_TIME {
            self.0 = TODAY;
        }
    }
}

/// What a model says of a call.
#[derive(Debug, PartialEq)]
struct Said {
    allowed: bool,
    remaining: u64,
    reset: u64,
}

/// The same of the machine under test.
fn said(outcome: &RateDecision) -> Said {
    Said {
        allowed: outcome.verdict == RateVerdict::Allowed,
        remaining: outcome.remaining,
        reset: outcome.reset,
    }
}

/// Microseconds as milliseconds, as a reply has them.
fn told_ms(micros: i128) -> u64 {
    let ms = (micros + 999) / 1000;
    ms.min(i128::from(MAX_SAFE)) as u64
}

/// ceil(a * b / c) for any a: the long division of school, in base 2, since the product may have more than 128 bits.
fn scaled(a: i128, b: i128, c: i128) -> i128 {
    let (mut quotient, mut rest) = (0, 0);
    for place in (0..127).rev() {
        rest = 2 * rest + (a >> place & 1) * b;
        quotient = 2 * quotient + rest / c;
        rest %= c;
    }
    quotient + i128::from(rest > 0)
}

/// GCRA by its theoretical arrival time: a call may come at `now` if the time that it leads to is no more than a whole
/// limit ahead.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// The theoretical arrival time in 1/count us, at which all that was consumed is forgotten.
    time: i128,
    /// The first call of the moment in which it was last changed, in us. A clock that is set back behind that stands
    /// still until it is there again.
    moment: i128,
    /// Does the next call begin a moment, because this has just come to be, if only at another rate?
    is_new: bool,
    rate: LeakRate,
}

impl Arrival {
    fn new(rate: LeakRate, now: i128) -> Self {
        Self::of(0, rate, now)
    }

    fn of(ahead: i128, rate: LeakRate, moment: i128) -> Self {
        let time = moment * i128::from(rate.count) + ahead;
        Self {
            time,
            moment,
            is_new: true,
            rate,
        }
    }

    /// How far ahead of `now` it is, in 1/count us.
    fn ahead(&self, now: i128) -> i128 {
        let now = now.max(self.moment);
        (self.time - now * i128::from(self.rate.count)).max(0)
    }

    /// As many requests ahead at another rate, a fraction of 1/count us rounded up.
    fn changed_to(&self, rate: LeakRate, now: i128) -> Self {
        let (new, old) = (i128::from(rate.period), i128::from(self.rate.period));
        Self::of(
            scaled(self.ahead(now), new, old),
            rate,
            now.max(self.moment),
        )
    }

    /// As a call with another rate sees it: whether that rate counts from now on or, if it is faster, since the moment of
    /// the last change. A refused call may not store that it came, and yet the wait that it was told is enough.
    /// Of calls within a moment only the first one's time is known: it has its own rate until it ends.
    fn seen(&self, rate: LeakRate, now: i128) -> Self {
        if rate == self.rate {
            return *self;
        }
        let from_now_on = self.changed_to(rate, now);
        let (new, old) = (i128::from(rate.period), i128::from(self.rate.period));
        let end = self.moment + 1000;
        let since_then = Self::of(scaled(self.ahead(now.min(end)), new, old), rate, end);
        let pace = |rate: LeakRate, over: i128| i128::from(rate.count) * over;
        match pace(rate, old) > pace(self.rate, new) {
            true => since_then,
            false => from_now_on,
        }
    }

    fn fits(&self, limit: u64, cost: u64, now: i128) -> bool {
        let period = i128::from(self.rate.period);
        self.ahead(now) + i128::from(cost) * period <= i128::from(limit) * period
    }

    /// Is a call part of the moment of the one before?
    fn goes_on(&self, cost: u64, now: i128) -> bool {
        let then = self.time - self.moment * i128::from(self.rate.count);
        !self.is_new
            && self.ahead(now) > 0
            && (self.moment..self.moment + 1000).contains(&now)
            && then / i128::from(self.rate.period) + i128::from(cost) <= i128::from(MOST)
    }

    /// Consumes, from when on the clock goes on again.
    fn consume(&mut self, cost: u64, now: i128, goes_on: bool) {
        if cost > 0 {
            let ahead = self.ahead(now) + i128::from(cost) * i128::from(self.rate.period);
            let moment = if goes_on { self.moment } else { now };
            *self = Self::of(ahead, self.rate, now);
            (self.moment, self.is_new) = (moment, false);
        }
    }

    /// At most all that was consumed.
    fn give_back(&mut self, count: u64) {
        let given = i128::from(count) * i128::from(self.rate.period);
        let last = self.moment * i128::from(self.rate.count);
        self.time = (self.time - given).max(last);
    }

    fn remaining(&self, limit: u64, now: i128) -> u64 {
        let period = i128::from(self.rate.period);
        let room = i128::from(limit) * period - self.ahead(now);
        room.max(0).div_euclid(period) as u64
    }

    /// In how many us it comes to be ahead by no more than `most`: the first of them.
    fn falls_to(&self, most: i128, now: i128) -> i128 {
        let over = self.ahead(now) - most;
        if over <= 0 {
            return 0;
        }
        let count = i128::from(self.rate.count);
        let wait = (self.moment - now).max(0) + (over + count - 1) / count;
        // As the definition has it.
        assert!(self.ahead(now + wait) <= most && self.ahead(now + wait - 1) > most);
        wait
    }

    /// In how many us nothing is left of it.
    fn empty_in(&self, now: i128) -> i128 {
        self.falls_to(0, now)
    }

    /// In how many us that fits. `None`: never.
    fn fits_in(&self, limit: u64, cost: u64, now: i128) -> Option<i128> {
        let room = limit.checked_sub(cost)?;
        let wait = self.falls_to(i128::from(room) * i128::from(self.rate.period), now);
        assert!(self.fits(limit, cost, now + wait));
        Some(wait)
    }
}

/// Whether the time may be asked for: the largest waits are as long as the universe is old.
fn is_reachable(now: u64, ms: u64) -> Option<u64> {
    let later = now.checked_add(ms.checked_mul(1000)?)?;
    (later < 1000 * END_OF_TIME).then_some(later)
}

/// To wait for as long as a refusal says is enough, and a millisecond less is not, unless the configuration has changed.
#[track_caller]
fn check_retry(
    limit: Option<&Limit>,
    (request, cost): (LimitRequest<'_>, u64),
    now: u64,
    ms: u64,
    is_exact: bool,
) {
    let allowed = |later| {
        let (outcome, _) = ask(limit, request, cost, later).expect("the kind");
        outcome.verdict == RateVerdict::Allowed
    };
    assert!(ms > 0, "a refusal that is none");
    if let Some(later) = is_reachable(now, ms) {
        assert!(allowed(later), "{ms} ms are not enough");
        assert!(!is_exact || !allowed(later - 1000), "{ms} ms are too much");
    }
}

/// After `reset` ms a key is as if it had never been used, and its own end says so: whoever loses it then, loses nothing.
#[track_caller]
fn check_reset(limit: &Limit, request: LimitRequest<'_>, outcome: &RateDecision, now: u64) {
    let Some(later) = is_reachable(now, outcome.reset) else {
        return;
    };
    for cost in [0, 1, outcome.limit] {
        let spend = RequestCost::counted(cost);
        let after = state::ask(Some(limit), request, spend, later).expect("the kind");
        let fresh = state::ask(None, request, spend, later).expect("the kind");
        assert_eq!(after, fresh, "{limit:?} at {later}");
    }
    let end = limit.end().expect("it ends");
    if let Some(end) = end.checked_mul(1000).filter(|end| *end >= now) {
        assert!(end < later + 1000, "the key stays longer than it matters");
        let after = ask(Some(limit), request, 1, end).expect("the kind");
        let fresh = ask(None, request, 1, end).expect("the kind");
        assert_eq!(after, fresh, "the key goes before it may");
    }
}

/// What is saved and loaded again goes on as it was.
#[track_caller]
fn check_bytes(limit: &Limit) {
    let mut bytes = Vec::new();
    persist::put(&mut bytes, limit);
    assert_eq!(persist::read(&bytes).as_ref(), Ok(limit));
}

// GCRA

#[test]
fn gcra_is_exact_over_random_calls() {
    let mut random = Random(0x6c7a_0001);
    let mut verdicts = [0; 3];
    for _ in 0..CALLS / CALLS_OF_A_KEY {
        let mut tier = random.tier();
        let mut clock = Clock(TODAY);
        let mut limit: Option<Limit> = None;
        let mut model: Option<Arrival> = None;
        let mut last = None;
        for _ in 0..CALLS_OF_A_KEY {
            clock.next(&mut random, last.as_ref());
            let now = clock.0;
            match random.below(20) {
                // Another configuration, or only another burst.
                0 => tier = random.tier(),
                1 => tier.limit = random.tier().limit,
                2 => {
                    if let (Some(old), Some(model)) = (&limit, &mut model) {
                        let count = random.cost(tier.limit).min(MOST);
                        let after = refund(old, count).expect("a GCRA");
                        model.give_back(count);
                        assert_eq!(after.is_unused(now), model.ahead(now.into()) == 0);
                        limit = Some(after);
                    }
                }
                _ => {}
            }
            let cost = random.cost(tier.limit);
            let request = LimitRequest::Gcra(tier);
            let (outcome, after) = ask(limit.as_ref(), request, cost, now).expect("a GCRA");

            let at = i128::from(now);
            let known = model.map(|model| model.seen(tier.rate, at));
            let mut next = known.unwrap_or(Arrival::new(tier.rate, at));
            let wait = next.fits_in(tier.limit, cost, at);
            if wait == Some(0) {
                next.consume(cost, at, next.goes_on(cost, at));
            }
            let expected = Said {
                allowed: wait == Some(0),
                remaining: next.remaining(tier.limit, at),
                reset: told_ms(next.empty_in(at)),
            };
            assert_eq!(said(&outcome), expected, "{limit:?} {tier:?} {cost} {now}");
            assert_eq!((outcome.limit, outcome.tier), (tier.limit, 0));
            match outcome.verdict {
                RateVerdict::Allowed => verdicts[0] += 1,
                RateVerdict::AllowedAfter(_) => panic!("{outcome:?}"),
                RateVerdict::Never => {
                    verdicts[1] += 1;
                    assert!(cost > tier.limit);
                }
                RateVerdict::Retry(ms) => {
                    verdicts[2] += 1;
                    assert_eq!(Some(ms), wait.map(told_ms));
                    let is_exact = model.is_none_or(|model| model.rate == tier.rate);
                    check_retry(limit.as_ref(), (request, cost), now, ms, is_exact);
                }
            }
            // PEEK is to ask and to forget the answer.
            let stores = outcome.verdict == RateVerdict::Allowed && cost > 0 && random.below(8) > 0;
            if stores {
                check_reset(&after, request, &outcome, now);
                check_bytes(&after);
                (limit, model) = (Some(after), Some(next));
            }
            last = Some(outcome);
        }
    }
    println!("{verdicts:?} were allowed, can never be, must wait");
    let [allowed, never, waits] = verdicts;
    assert!(allowed > CALLS / 4 && never > CALLS / 20 && waits > CALLS / 20);
}

/// A request every 333 1/3 microseconds: what rounding there were would add up.
#[test]
fn gcra_never_drifts() {
    let tier = Tier {
        limit: 2,
        rate: LeakRate {
            count: 3,
            period: 1000,
        },
    };
    let mut limit = None;
    let mut is_allowed = |now| {
        let (outcome, after) =
            ask(limit.as_ref(), LimitRequest::Gcra(tier), 1, now).expect("a GCRA");
        if outcome.verdict == RateVerdict::Allowed {
            limit = Some(after);
        }
        outcome.verdict == RateVerdict::Allowed
    };
    assert!(is_allowed(TODAY) && is_allowed(TODAY));
    for call in 1..=300_000u64 {
        let due = TODAY + (call * 1000).div_ceil(3);
        assert!(!is_allowed(due - 1), "call {call} comes too early");
        assert!(is_allowed(due), "call {call} comes too late");
    }
}

/// Over any stretch of time no more is allowed than the burst and what the rate gives in it.
#[test]
fn gcra_never_allows_more_than_burst_and_rate() {
    let mut random = Random(0x6c7a_0002);
    for _ in 0..200 {
        let tier = Tier {
            limit: 1 + random.below(20),
            rate: LeakRate {
                count: 1 + random.below(50),
                period: 1000 * (1 + random.below(1000)),
            },
        };
        let mut limit = None;
        let mut allowed: Vec<(u64, u64)> = Vec::new();
        let mut now = TODAY;
        for _ in 0..150 {
            now += random.below(3 * tier.rate.period / tier.rate.count + 2);
            let cost = random.below(tier.limit.min(4) + 1);
            let request = LimitRequest::Gcra(tier);
            let (outcome, after) = ask(limit.as_ref(), request, cost, now).expect("a GCRA");
            if outcome.verdict == RateVerdict::Allowed {
                allowed.push((now, cost));
                limit = Some(after);
            }
        }
        for (place, (from, _)) in allowed.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &allowed[place..] {
                sum += u128::from(*cost);
                let rate = tier.rate;
                let given = u128::from(at - from) * u128::from(rate.count);
                let most = u128::from(tier.limit) * u128::from(rate.period) + given;
                assert!(sum * u128::from(rate.period) <= most, "{tier:?}");
            }
        }
    }
}

/// What was consumed is kept as a number of requests when burst, count or period change.
#[test]
fn another_configuration_keeps_the_number_of_consumed_requests() {
    let tier = |limit, count, period_ms| Tier {
        limit,
        rate: LeakRate {
            count,
            period: 1000 * period_ms,
        },
    };
    let first = tier(10, 10, 60_000);
    let start = ask(None, LimitRequest::Gcra(first), 6, TODAY);
    let six = start.expect("a GCRA").1;
    let ask = |limit: &Limit, tier, cost| {
        ask(Some(limit), LimitRequest::Gcra(tier), cost, TODAY)
            .expect("a GCRA")
            .0
    };
    for (tier, remaining) in [
        (first, 4),
        (tier(10, 1, TEN_YEARS), 4),
        (tier(10, MOST, 1), 4),
        (tier(6, 10, 60_000), 0),
        (tier(7, 99, 1000), 1),
        (tier(3, 99, 1000), 0),
        (tier(1, 1, 1), 0),
        (tier(MOST, 1, 1), MOST - 6),
    ] {
        let outcome = ask(&six, tier, 0);
        assert_eq!(outcome.remaining, remaining, "{tier:?}");
        assert_eq!(outcome.limit, tier.limit);
    }
    // The new limit counts at once: even nothing must wait if more is consumed than there may be.
    let over = ask(&six, tier(3, 3, 1000), 0);
    assert_eq!(over.verdict, RateVerdict::Retry(1001));
    let one = ask(&six, tier(6, 1, 1000), 1);
    assert_eq!(one.verdict, RateVerdict::Retry(1001));
}

/// A refusal stores nothing, also not that somebody asked with another rate: the rate must count nevertheless.
#[test]
fn a_faster_rate_counts_for_refused_requests() {
    let tier = |period_ms: u64| Tier {
        limit: 1,
        rate: LeakRate {
            count: 1,
            period: 1000 * period_ms,
        },
    };
    let (slow, fast) = (
        LimitRequest::Gcra(tier(3_600_000)),
        LimitRequest::Gcra(tier(1000)),
    );
    let limit = ask(None, slow, 1, TODAY).expect("a GCRA").1;
    let verdict = |request, now| {
        ask(Some(&limit), request, 1, now)
            .expect("a GCRA")
            .0
            .verdict
    };
    assert_eq!(verdict(slow, TODAY), RateVerdict::Retry(3_600_000));
    // From the end of the millisecond on: within it, calls may have come at any time.
    assert_eq!(verdict(fast, TODAY), RateVerdict::Retry(1001));
    assert_eq!(verdict(fast, TODAY + 400_000), RateVerdict::Retry(601));
    assert_eq!(verdict(fast, TODAY + 1_001_000), RateVerdict::Allowed);
}

/// What is told on a clock that was set back is true as well.
#[test]
fn a_clock_that_was_set_back_makes_no_retry_too_short() {
    let tier = Tier {
        limit: 1,
        rate: LeakRate {
            count: 1,
            period: 1_000_000,
        },
    };
    let window = |is_sliding| LimitRequest::Window {
        limit: 1,
        length: 1000,
        is_sliding,
    };
    for (request, waits) in [
        (LimitRequest::Gcra(tier), 8000),
        (window(false), 8000),
        (window(true), 9000),
    ] {
        let limit = ask(None, request, 1, TODAY).expect("the kind").1;
        let set_back = TODAY - 7_000_000;
        let told = ask(Some(&limit), request, 1, set_back).expect("the kind").0;
        assert_eq!(told.verdict, RateVerdict::Retry(waits), "{request:?}");
        check_retry(Some(&limit), (request, 1), set_back, waits, true);
    }
}

/// Two configurations of a limit at work at once, as while a new one is rolled out: each change from one to the other
/// leaks as the slower would have, at least.
#[test]
fn configurations_that_alternate_allow_what_the_slower_one_does() {
    const SECOND: u64 = 1_000_000;
    let tier = |count| Tier {
        limit: 10,
        rate: LeakRate {
            count,
            period: SECOND,
        },
    };
    for (counts, every) in [
        ([1000, 1001], 50),
        ([1000, 1001], 300),
        ([1000, 1001], 900),
        ([1000, 1001], 1100),
        ([1000, 2000], 900),
        ([999, 100_000], 700),
        ([10, 11], 90_000),
    ] {
        let mut limit = None;
        let mut allowed = 0;
        let calls = 10 * SECOND / every;
        for call in 0..calls {
            let request = LimitRequest::Gcra(tier(counts[(call % 2) as usize]));
            let (outcome, after) =
                ask(limit.as_ref(), request, 1, TODAY + every * call).expect("it");
            if outcome.verdict == RateVerdict::Allowed {
                allowed += 1;
                limit = Some(after);
            }
        }
        let [slow, fast] = counts.map(|count| 10 * count);
        println!("{counts:?} every {every} us: {allowed} of {calls}");
        assert!(
            (slow.min(calls)..=10 + fast).contains(&allowed),
            "{counts:?}: {allowed}"
        );
    }
}

/// Whatever configurations one key is asked with: what a refused call is told to wait is enough, and nobody gets more than
/// the fastest and largest of them alone would allow.
#[test]
fn configurations_that_change_break_no_promise() {
    let mut random = Random(0x6c7a_0005);
    let mut refused = 0;
    for _ in 0..CALLS / 500 {
        let configs: Vec<_> = (0..3)
            .map(|_| Tier {
                limit: 1 + random.below(6),
                rate: LeakRate {
                    count: 1 + random.below(9),
                    period: *random.one(&[1000, 3000, 7000, 999_000]),
                },
            })
            .collect();
        let largest = configs.iter().map(|tier| tier.limit).max().expect("three");
        let pace = |tier: &&Tier| tier.rate.count * 1_000_000_000_000 / tier.rate.period;
        let fastest = configs.iter().max_by_key(pace).expect("three").rate;
        let mut limit: Option<Limit> = None;
        let mut now = TODAY;
        // What was allowed, and, below zero, what was given back.
        let mut spent: Vec<(u64, i128)> = Vec::new();
        // What those were told who were refused since the last call that was allowed.
        let mut told: Vec<(u64, Tier, u64)> = Vec::new();
        for _ in 0..40 {
            now += match random.below(4) {
                0 => random.below(100),
                1 => random.below(1500),
                2 => random.below(20_000),
                _ => told
                    .last()
                    .map_or(0, |(until, ..)| until.saturating_sub(now)),
            };
            if random.below(12) == 0
                && let Some(old) = &limit
            {
                let count = random.below(3);
                limit = Some(refund(old, count).expect("a GCRA"));
                spent.push((now, -i128::from(count)));
            }
            let (tier, cost) = (*random.one(&configs), 1 + random.below(3));
            let request = LimitRequest::Gcra(tier);
            let (outcome, after) = ask(limit.as_ref(), request, cost, now).expect("a GCRA");
            match outcome.verdict {
                RateVerdict::Allowed => {
                    spent.push((now, cost.into()));
                    (limit, told) = (Some(after), Vec::new());
                }
                RateVerdict::Retry(ms) => {
                    refused += 1;
                    check_retry(limit.as_ref(), (request, cost), now, ms, false);
                    told.push((now + 1000 * ms, tier, cost));
                }
                RateVerdict::AllowedAfter(_) => panic!("{outcome:?}"),
                RateVerdict::Never => {}
            }
            for (until, tier, cost) in &told {
                let (later, request) = (now.max(*until), LimitRequest::Gcra(*tier));
                let (outcome, _) = ask(limit.as_ref(), request, *cost, later).expect("a GCRA");
                assert_eq!(
                    outcome.verdict,
                    RateVerdict::Allowed,
                    "{limit:?} {tier:?} {cost}"
                );
            }
        }
        for (place, (from, _)) in spent.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &spent[place..] {
                sum += cost;
                let given = i128::from(at - from) * i128::from(fastest.count);
                let period = i128::from(fastest.period);
                assert!(
                    sum * period <= i128::from(largest) * period + given,
                    "{configs:?}"
                );
            }
        }
    }
    assert!(refused > CALLS / 100);
}

/// The limit gets faster and is asked, before something is given back: nobody has less for that, now or later.
#[test]
fn a_refund_takes_nothing_away_from_another_configuration() {
    let tier = |period_ms: u64| Tier {
        limit: 10,
        rate: LeakRate {
            count: 10,
            period: 1000 * period_ms,
        },
    };
    let (slow, fast) = (tier(3_600_000), tier(1000));
    let limit = ask(None, LimitRequest::Gcra(slow), 10, TODAY)
        .expect("a GCRA")
        .1;
    let later = TODAY + 900_000;
    let left = |limit: &Limit| {
        let asked = ask(Some(limit), LimitRequest::Gcra(fast), 0, later);
        asked.expect("a GCRA").0.remaining
    };
    assert_eq!(left(&limit), 8);
    let refunded = refund(&limit, 1).expect("a GCRA");
    assert_eq!(left(&refunded), 9);
    // A window that has gone over into the next one since.
    let window = |length| LimitRequest::Window {
        limit: 9,
        length,
        is_sliding: true,
    };
    let limit = ask(None, window(1000), 5, TODAY).expect("a window").1;
    let later = TODAY + 1_050_000;
    let refunded = refund(&limit, 1).expect("a window");
    for (limit, length, remaining) in [
        (&limit, 100, 9),
        (&refunded, 100, 9),
        (&limit, 1000, 4),
        (&refunded, 1000, 5),
    ] {
        let asked = ask(Some(limit), window(length), 0, later).expect("a window");
        assert_eq!(asked.0.remaining, remaining, "{limit:?} {length}");
    }
}

// Windows

/// All calls that were allowed, by the window that they came in.
#[derive(Debug, Clone, Default)]
struct Calls {
    /// When the window began (ms), and the calls in it.
    current: Option<(u64, Vec<u64>)>,
    /// The calls in the window before.
    previous: Vec<u64>,
}

fn sum(calls: &[u64]) -> i128 {
    calls.iter().map(|cost| i128::from(*cost)).sum()
}

impl Calls {
    /// The calls that a window of this length can reach at `now`.
    fn seen(&self, now: u64, length: u64, is_sliding: bool) -> Self {
        let mut seen = self.clone();
        // Window after window goes by.
        while let Some((start, calls)) = &mut seen.current {
            if now < *start + length {
                break;
            }
            let calls = std::mem::take(calls);
            let start = *start + length;
            let follows = is_sliding && sum(&calls) > 0 && now < start + length;
            seen.previous = if follows { calls } else { Vec::new() };
            seen.current = follows.then_some((start, Vec::new()));
        }
        seen
    }

    /// How much of the window before is still in reach, of `length` parts.
    fn reach(&self, now: u64, length: u64) -> i128 {
        let start = self.current.as_ref().map_or(now, |(start, _)| *start);
        let gone = now.saturating_sub(start);
        i128::from(length) - i128::from(gone.min(length))
    }

    /// What all calls weigh together, `length` times.
    fn weight(&self, now: u64, length: u64) -> i128 {
        let here = self.current.as_ref().map_or(0, |(_, calls)| sum(calls));
        here * i128::from(length) + sum(&self.previous) * self.reach(now, length)
    }

    /// used_now + before * reach + cost <= limit
    fn fits(&self, limit: u64, length: u64, cost: u64, now: u64) -> bool {
        let (limit, cost, parts) = (limit.into(), i128::from(cost), i128::from(length));
        self.weight(now, length) + cost * parts <= parts * i128::max(limit, 0)
    }

    /// A window cannot have begun in the future: there the clock was set back.
    fn count(&mut self, cost: u64, now: u64) {
        let (start, calls) = self.current.get_or_insert((now, Vec::new()));
        if cost > 0 {
            *start = now.min(*start);
            calls.push(cost);
        }
    }

    /// The latest calls are given back first.
    fn give_back(&mut self, mut count: u64) {
        let here = self.current.iter_mut().map(|(_, calls)| calls);
        for calls in here.chain([&mut self.previous]) {
            while let Some(last) = calls.last_mut() {
                let given = count.min(*last);
                *last -= given;
                count -= given;
                if *last > 0 {
                    return;
                }
                calls.pop();
            }
        }
    }
}

#[test]
fn windows_are_exact_over_random_calls() {
    for is_sliding in [false, true] {
        windows_are_the_models(is_sliding);
    }
}

fn windows_are_the_models(is_sliding: bool) {
    let mut random = Random(0x6c7a_0003 + u64::from(is_sliding));
    let mut verdicts = [0; 3];
    for _ in 0..CALLS / CALLS_OF_A_KEY {
        let config = |random: &mut Random| match random.below(4) {
            0 => (random.up_to(MOST), random.up_to(TEN_YEARS).max(1)),
            _ => (
                random.below(12),
                *random.one(&[1, 10, 999, 1000, 60_000, 86_400_000]),
            ),
        };
        let (mut most, mut length) = config(&mut random);
        let mut clock = Clock(TODAY);
        let mut limit: Option<Limit> = None;
        let mut model = Calls::default();
        let mut last = None;
        for _ in 0..CALLS_OF_A_KEY {
            clock.next(&mut random, last.as_ref());
            let (micros, now) = (clock.0, clock.0 / 1000);
            match random.below(24) {
                0 => (most, length) = config(&mut random),
                1 => most = config(&mut random).0,
                2 => {
                    if let Some(old @ Limit::Window(window)) = &limit {
                        let count = random.cost(most).min(MOST);
                        model.give_back(count);
                        let after = refund(old, count).expect("a window");
                        let seen = model.seen(now, window.length, is_sliding);
                        let left = seen.current.as_ref().map_or(0, |(_, calls)| sum(calls));
                        let is_unused = left + sum(&seen.previous) == 0;
                        assert_eq!(after.is_unused(micros), is_unused);
                        if is_unused {
                            (limit, model) = (None, Calls::default());
                        } else {
                            limit = Some(after);
                        }
                    }
                }
                _ => {}
            }
            let cost = random.cost(most);
            let request = LimitRequest::Window {
                limit: most,
                length,
                is_sliding,
            };
            let (outcome, after) = ask(limit.as_ref(), request, cost, micros).expect("a window");

            let seen = model.seen(now, length, is_sliding);
            let allowed = cost <= most && seen.fits(most, length, cost, now);
            let mut next = seen.clone();
            if allowed {
                next.count(cost, now);
            }
            assert_eq!(
                outcome.verdict == RateVerdict::Allowed,
                allowed,
                "{limit:?} {request:?} {cost} {now}"
            );
            // As much as is said to be left fits, and no more.
            let (left, at) = (outcome.remaining, |cost| next.fits(most, length, cost, now));
            assert!(left == 0 || at(left), "{limit:?} {request:?} {cost} {now}");
            assert!(!at(left + 1), "{limit:?} {request:?} {cost} {now}");
            assert_eq!((outcome.limit, outcome.tier), (most, 0));
            check_window_reset(&next, &outcome, (length, is_sliding), now);
            match outcome.verdict {
                RateVerdict::Allowed => verdicts[0] += 1,
                RateVerdict::AllowedAfter(_) => panic!("{outcome:?}"),
                RateVerdict::Never => {
                    verdicts[1] += 1;
                    assert!(cost > most);
                }
                RateVerdict::Retry(ms) => {
                    verdicts[2] += 1;
                    check_retry(limit.as_ref(), (request, cost), micros, ms, true);
                    // By the model as well.
                    let fits = |later: u64| {
                        let seen = model.seen(later, length, is_sliding);
                        seen.fits(most, length, cost, later)
                    };
                    assert!(fits(now + ms) && !fits(now + ms - 1), "{limit:?} {ms}");
                }
            }
            if allowed && cost > 0 && random.below(8) > 0 {
                assert!(next.weight(now, length) <= i128::from(most) * i128::from(length));
                check_reset(&after, request, &outcome, micros);
                check_bytes(&after);
                (limit, model) = (Some(after), next);
            }
            last = Some(outcome);
        }
    }
    println!("{verdicts:?} were allowed, can never be, must wait");
    let [allowed, never, waits] = verdicts;
    assert!(allowed > CALLS / 4 && never > CALLS / 20 && waits > CALLS / 20);
}

/// When the last call is out of reach, and not earlier.
#[track_caller]
fn check_window_reset(
    calls: &Calls,
    outcome: &RateDecision,
    (length, is_sliding): (u64, bool),
    now: u64,
) {
    let is_used = |later: u64| {
        let seen = calls.seen(later, length, is_sliding);
        let here = seen.current.as_ref().map_or(0, |(_, calls)| sum(calls));
        here + sum(&seen.previous) > 0
    };
    let end = now + outcome.reset;
    assert!(!is_used(end), "{calls:?} {outcome:?} at {now}");
    assert!(
        outcome.reset == 0 || is_used(end - 1),
        "{calls:?} {outcome:?} at {now}"
    );
}

/// What a fixed window lets through at its boundary, a sliding one does not.
#[test]
fn a_sliding_window_has_no_double_burst_at_its_boundary() {
    let burst = |is_sliding| {
        let request = LimitRequest::Window {
            limit: 100,
            length: 1000,
            is_sliding,
        };
        let mut limit = None;
        let mut allowed = 0;
        // The window begins with one call; then comes as much as possible just before and just after its end.
        for (at, calls) in [(0, 1), (999, 200), (1000, 200)] {
            for _ in 0..calls {
                let now = TODAY + 1000 * at;
                let (outcome, after) = ask(limit.as_ref(), request, 1, now).expect("a window");
                if outcome.verdict == RateVerdict::Allowed {
                    allowed += 1;
                    limit = Some(after);
                }
            }
        }
        allowed
    };
    assert_eq!(burst(false), 200);
    assert_eq!(burst(true), 100);
}

/// A clock that was wrong by an hour, and was set right: the first call that is allowed begins the window anew, with what
/// was used.
#[test]
fn a_window_on_a_clock_that_was_set_back_ends_in_time() {
    let set_back = TODAY - HOUR_US;
    for is_sliding in [false, true] {
        let request = LimitRequest::Window {
            limit: 3,
            length: 1000,
            is_sliding,
        };
        let ask = |limit: &Limit, cost, now| ask(Some(limit), request, cost, now).expect("it");
        let full = self::ask(None, request, 2, TODAY).expect("a window").1;
        // Nothing moves for whoever is refused, or counts for nothing.
        let (refused, same) = ask(&full, 2, set_back);
        let RateVerdict::Retry(told) = refused.verdict else {
            panic!("{refused:?}");
        };
        assert_eq!(
            (same, ask(&full, 0, set_back).1),
            (full.clone(), full.clone())
        );
        let (allowed, moved) = ask(&full, 1, set_back);
        assert_eq!(
            (allowed.verdict, allowed.remaining),
            (RateVerdict::Allowed, 0)
        );
        assert_eq!(allowed.reset, if is_sliding { 2000 } else { 1000 });
        let ends = moved.end().map(|end| 1000 * end);
        assert_eq!(ends, Some(set_back + 1000 * allowed.reset));
        assert_eq!(ask(&moved, 1, set_back + 999_000).0.remaining, 0);
        assert_eq!(ask(&moved, 0, set_back + 2_000_000).0.remaining, 3);
        // What the one before was told is still enough.
        let later = set_back + 1000 * told;
        assert_eq!(ask(&moved, 2, later).0.verdict, RateVerdict::Allowed);
        // It is no addition to what replicas have.
        let spend = RequestCost::counted(1);
        let next = state::ask(Some(&full), request, spend, set_back)
            .expect("it")
            .1;
        assert_eq!(next, LimitChange::Replace(moved));
    }
}

// Tiers

/// The buckets that tiers go on with: rule by rule, those that have none yet look for one. All may share one of their own
/// rate; no other serves two.
fn before_of(before: &[Arrival], tiers: &[Tier]) -> Vec<Option<Arrival>> {
    let mut found: Vec<Option<usize>> = vec![None; tiers.len()];
    for rule in 0..5 {
        for (place, tier) in tiers.iter().enumerate() {
            let mut places = (0..before.len()).filter(|old| {
                let (is_here, rate) = (*old == place, before[*old].rate);
                let is_free = || !found.contains(&Some(*old));
                match rule {
                    0 => rate == tier.rate && is_here,
                    1 => rate == tier.rate,
                    2 => rate.period == tier.rate.period && is_here && is_free(),
                    3 => rate.period == tier.rate.period && is_free(),
                    _ => is_here && is_free(),
                }
            });
            if found[place].is_none() {
                found[place] = places.next();
            }
        }
    }
    let found = found.iter();
    found
        .map(|place| place.map(|place| before[place]))
        .collect()
}

#[test]
fn tiers_are_several_limits_at_once_all_or_nothing() {
    let mut random = Random(0x6c7a_0004);
    let (mut allowed, mut refused, mut tiers_that_bound) = (0, 0, [0u64; 3]);
    for _ in 0..CALLS / CALLS_OF_A_KEY {
        let draw = |random: &mut Random| -> Vec<Tier> {
            let count = match random.below(20) {
                0 => MAX_TIERS as u64,
                _ => 1 + random.below(4),
            };
            (0..count).map(|_| random.tier()).collect()
        };
        let mut tiers = draw(&mut random);
        let mut clock = Clock(TODAY);
        let mut limit: Option<Limit> = None;
        let mut models: Vec<Arrival> = Vec::new();
        let mut last = None;
        for _ in 0..CALLS_OF_A_KEY {
            clock.next(&mut random, last.as_ref());
            let now = clock.0;
            match random.below(24) {
                0 => tiers = draw(&mut random),
                1 => tiers.rotate_left(1),
                2 => {
                    let place = random.below(tiers.len() as u64) as usize;
                    tiers[place] = random.tier();
                }
                3 => {
                    if let Some(old) = &limit {
                        let count = random.cost(9);
                        let after = refund(old, count).expect("tiers");
                        let each = models.iter_mut();
                        each.for_each(|old| old.give_back(count));
                        let mut each = models.iter();
                        let is_empty = each.all(|model| model.ahead(now.into()) == 0);
                        assert_eq!(after.is_unused(now), is_empty);
                        limit = Some(after);
                    }
                }
                // Some counts change, and perhaps a tier goes or comes as well.
                4 => {
                    for tier in &mut tiers {
                        let other = random.tier().rate.count;
                        tier.rate.count = *random.one(&[tier.rate.count, other]);
                    }
                    let place = random.below(tiers.len() as u64) as usize;
                    match random.below(3) {
                        0 if tiers.len() > 1 => drop(tiers.remove(place)),
                        1 if tiers.len() < MAX_TIERS => tiers.insert(place, random.tier()),
                        _ => {}
                    }
                }
                _ => {}
            }
            let least = tiers.iter().map(|tier| tier.limit).min().unwrap_or(1);
            let cost = random.cost(least);
            let request = LimitRequest::Tiers(&tiers);
            let (outcome, after) = ask(limit.as_ref(), request, cost, now).expect("tiers");

            let at = i128::from(now);
            let before = before_of(&models, &tiers);
            let known = before.iter().zip(&tiers);
            let mut next: Vec<_> = known
                .map(|(old, tier)| match old {
                    Some(old) => old.seen(tier.rate, at),
                    None => Arrival::new(tier.rate, at),
                })
                .collect();
            let asked = next.iter().zip(&tiers);
            let waits: Vec<_> = asked
                .map(|(model, tier)| model.fits_in(tier.limit, cost, at))
                .collect();
            // Never is longer than any wait.
            let longest = waits.iter().map(|wait| wait.unwrap_or(i128::MAX)).max();
            let fits = longest == Some(0);
            if fits {
                // All or none begin a moment; other tiers do.
                let is_same = |(old, tier): (&Arrival, &Tier)| old.rate == tier.rate;
                let goes_on = models.len() == tiers.len()
                    && models.iter().zip(&tiers).all(is_same)
                    && next.iter().all(|model| model.goes_on(cost, at));
                let each = next.iter_mut();
                each.for_each(|model| model.consume(cost, at, goes_on));
            }
            let left: Vec<_> = next
                .iter()
                .zip(&tiers)
                .map(|(model, tier)| model.remaining(tier.limit, at))
                .collect();
            let binds = if fits {
                let least = left.iter().min();
                left.iter().position(|left| Some(left) == least)
            } else {
                let wait = |wait: &Option<i128>| Some(wait.unwrap_or(i128::MAX)) == longest;
                waits.iter().position(wait)
            };
            let binds = binds.expect("one of them");
            let reset = next.iter().map(|model| model.empty_in(at)).max();
            let expected = Said {
                allowed: fits,
                remaining: left[binds],
                reset: told_ms(reset.expect("one of them")),
            };
            assert_eq!(said(&outcome), expected, "{limit:?} {tiers:?} {cost} {now}");
            assert_eq!(outcome.tier, binds, "{limit:?} {tiers:?} {cost} {now}");
            assert_eq!(outcome.limit, tiers[binds].limit);
            match outcome.verdict {
                RateVerdict::Allowed => allowed += 1,
                RateVerdict::AllowedAfter(_) => panic!("{outcome:?}"),
                RateVerdict::Never => assert_eq!(longest, Some(i128::MAX)),
                RateVerdict::Retry(ms) => {
                    refused += 1;
                    assert_eq!(Some(ms), longest.map(told_ms));
                    let mut pairs = before.iter().zip(&tiers);
                    let is_exact =
                        pairs.all(|(old, tier)| old.is_none_or(|old| old.rate == tier.rate));
                    check_retry(limit.as_ref(), (request, cost), now, ms, is_exact);
                }
            }
            tiers_that_bound[binds.min(2)] += 1;
            if fits && cost > 0 && random.below(8) > 0 {
                check_reset(&after, request, &outcome, now);
                check_bytes(&after);
                (limit, models) = (Some(after), next);
            }
            last = Some(outcome);
        }
    }
    println!("{allowed} allowed, {refused} refused, by tier {tiers_that_bound:?}");
    assert!(allowed > CALLS / 5 && refused > CALLS / 20);
    assert!(tiers_that_bound.iter().all(|count| *count > CALLS / 50));
}

#[test]
fn of_tiers_that_bind_alike_the_first_is_named() {
    let rate = LeakRate {
        count: 1,
        period: 1_000_000,
    };
    let tiers = [3, 2, 2].map(|limit| Tier { limit, rate });
    let mut limit = None;
    for (cost, verdict) in [
        (1, RateVerdict::Allowed),
        (1, RateVerdict::Allowed),
        (1, RateVerdict::Retry(1000)),
        (2, RateVerdict::Retry(2000)),
        (3, RateVerdict::Never),
    ] {
        let asked = ask(limit.as_ref(), LimitRequest::Tiers(&tiers), cost, TODAY);
        let (outcome, after) = asked.expect("tiers");
        assert_eq!((outcome.verdict, outcome.tier), (verdict, 1), "{cost}");
        if verdict == RateVerdict::Allowed {
            limit = Some(after);
        }
    }
}

/// What was consumed stays, though tiers come, go and change places, and their counts and periods change, too.
#[test]
fn tiers_that_change_keep_what_was_consumed() {
    let second = |limit, count| tier_of(limit, count, 1_000_000);
    let minute = |limit, count| tier_of(limit, count, 60_000_000);
    let hour = |limit, count| tier_of(limit, count, HOUR_US);
    let day = |limit, count| tier_of(limit, count, 24 * HOUR_US);
    // Ten are consumed a second before, so that those of a second have leaked: how many are left of each tier then.
    for (before, after, left) in [
        // The same.
        (
            vec![second(20, 20), hour(10, 10)],
            vec![(second(20, 20), 20), (hour(10, 10), 0)],
        ),
        // A tier is removed, and the count of another changes.
        (
            vec![second(100, 100), hour(10, 10)],
            vec![(hour(11, 11), 1)],
        ),
        // A tier is added before it.
        (
            vec![hour(10, 10)],
            vec![(second(5, 10), 5), (hour(10, 11), 0)],
        ),
        // And behind it.
        (
            vec![hour(10, 10)],
            vec![(hour(10, 11), 0), (day(50, 50), 50)],
        ),
        // They change places.
        (
            vec![second(20, 20), hour(20, 20)],
            vec![(hour(21, 21), 11), (second(21, 21), 21)],
        ),
        // The same rate goes before the same period, wherever it is; several tiers may have it.
        (
            vec![second(20, 20), hour(20, 10)],
            vec![(hour(20, 10), 10), (second(9, 9), 9), (hour(12, 10), 2)],
        ),
        // Another period has what is in the same place and nobody else's.
        (
            vec![second(20, 20), hour(20, 20)],
            vec![(second(20, 21), 20), (day(20, 20), 10)],
        ),
        (
            vec![hour(20, 20), day(20, 20)],
            vec![(minute(20, 20), 20), (hour(20, 9), 10), (day(20, 9), 10)],
        ),
        // Of several with the same period it is the one in the same place, if there is one.
        (
            vec![second(90, 9), second(20, 20)],
            vec![(minute(90, 90), 89), (second(20, 21), 20)],
        ),
    ]
    .map(|(before, after)| {
        let (tiers, left): (Vec<_>, Vec<_>) = after.into_iter().unzip();
        (before, tiers, left)
    }) {
        let limit = ask(None, LimitRequest::Tiers(&before), 10, TODAY)
            .expect("tiers")
            .1;
        let now = TODAY + 1_000_000;
        for place in 0..after.len() {
            // The one that is looked at is the one that binds: it has less room than the others.
            let mut tiers: Vec<_> = after
                .iter()
                .map(|tier| Tier {
                    limit: MOST,
                    ..*tier
                })
                .collect();
            tiers[place] = after[place];
            let outcome = ask(Some(&limit), LimitRequest::Tiers(&tiers), 0, now)
                .expect("tiers")
                .0;
            let found = (outcome.tier, outcome.remaining);
            assert_eq!(found, (place, left[place]), "{before:?} {after:?}");
        }
    }
}

fn tier_of(limit: u64, count: u64, period: u64) -> Tier {
    Tier {
        limit,
        rate: LeakRate { count, period },
    }
}

// Kinds

#[test]
fn no_kind_of_limit_answers_for_another() {
    let tier = Tier {
        limit: 5,
        rate: LeakRate {
            count: 5,
            period: 1000,
        },
    };
    let window = |is_sliding| LimitRequest::Window {
        limit: 5,
        length: 5,
        is_sliding,
    };
    let tiers = [tier];
    let requests = [
        LimitRequest::Gcra(tier),
        LimitRequest::Tiers(&tiers),
        window(false),
        window(true),
    ];
    let made = |request: &LimitRequest<'_>| ask(None, *request, 1, TODAY).expect("the kind").1;
    let mut limits: Vec<_> = requests.iter().map(made).collect();
    limits.push(Limit::Once);
    for (kind, limit) in limits.iter().enumerate() {
        for (asked, request) in requests.iter().enumerate() {
            let answer = ask(Some(limit), *request, 1, TODAY);
            assert_eq!(answer.is_ok(), kind == asked, "{limit:?} {request:?}");
        }
    }
    assert_eq!(refund(&Limit::Once, 1), Err(WrongLimitKind));
    assert_eq!(Limit::Once.end(), None);
    assert!(!Limit::Once.is_unused(u64::MAX));
}

// Extremes

const TIMES: [u64; 9] = [
    0,
    1,
    999,
    TODAY,
    MOST - 1,
    MOST,
    1 << 53,
    u64::MAX - 1,
    u64::MAX,
];
const QUANTITIES: [u64; 7] = [0, 1, 2, MOST - 1, MOST, i64::MAX as u64, u64::MAX];
const PERIODS_MS: [u64; 5] = [1, 2, 1000, TEN_YEARS - 1, TEN_YEARS];

/// Whatever a key can hold, also one that was forged, is asked, refunded and saved at any time, without a panic or an
/// overflow.
#[test]
fn no_extremes_make_it_panic() {
    let mut limits = vec![None, Some(Limit::Once)];
    let ends = [1, MOST];
    for (count, period, spent, at) in
        combined(&ends, &[1, MAX_PERIOD_US], &[0, 1, MOST], &[0, MOST])
    {
        for parts in [0, period - 1] {
            let bucket = Bucket {
                rate: LeakRate { count, period },
                spent,
                parts,
                at,
            };
            limits.push(Some(Limit::Gcra(bucket)));
            limits.push(Some(Limit::Tiers(vec![bucket; 2].into())));
        }
    }
    for (start, length, used, before) in
        combined(&[0, MOST], &[1, TEN_YEARS], &[0, 1, MOST], &[0, 1, MOST])
    {
        for is_sliding in [false, true] {
            limits.push(Some(Limit::Window(Window {
                is_sliding,
                start,
                length,
                used,
                previous: if is_sliding { before } else { 0 },
            })));
        }
    }
    let begin = Instant::now();
    for limit in limits.iter().map(Option::as_ref) {
        // What is added without a look at the limit is still something that can be saved.
        for cost in [1, MOST] {
            let added = limit.cloned().into_iter();
            added.for_each(|mut limit| {
                let end_before = limit.end();
                let new_end = limit.add(cost);
                assert_eq!(new_end, limit.end().filter(|end| end_before != Some(*end)));
                check_bytes(&limit);
            });
        }
        for (now, cost) in TIMES
            .iter()
            .flat_map(|now| QUANTITIES.map(|cost| (*now, cost)))
        {
            limit.inspect(|limit| drop(refund(limit, cost)));
            for (most, period) in [1, MOST]
                .iter()
                .flat_map(|most| PERIODS_MS.map(|ms| (*most, ms)))
            {
                exercise(limit, (most, period), cost, now);
            }
        }
    }
    println!("{} limits, {:?}", limits.len(), begin.elapsed());
}

fn exercise(limit: Option<&Limit>, (most, period_ms): (u64, u64), cost: u64, now: u64) {
    let tier = Tier {
        limit: most,
        rate: LeakRate {
            count: most,
            period: 1000 * period_ms,
        },
    };
    let tiers = [
        tier,
        Tier {
            rate: LeakRate {
                count: 1,
                ..tier.rate
            },
            ..tier
        },
    ];
    for request in [
        LimitRequest::Gcra(tier),
        LimitRequest::Gcra(tiers[1]),
        LimitRequest::Tiers(&tiers),
        LimitRequest::Window {
            limit: most,
            length: period_ms,
            is_sliding: false,
        },
        LimitRequest::Window {
            limit: most,
            length: period_ms,
            is_sliding: true,
        },
    ] {
        let Ok((outcome, after)) = ask(limit, request, cost, now) else {
            continue;
        };
        // All of it can be told to Lua.
        for number in [outcome.limit, outcome.remaining, outcome.reset] {
            assert!(
                number <= MOST,
                "{limit:?} {request:?} {cost} {now} {outcome:?}"
            );
        }
        if let RateVerdict::Retry(ms) = outcome.verdict {
            assert!(ms > 0 && ms <= MOST, "{limit:?} {request:?} {cost} {now}");
        }
        assert!(after.end().is_some());
        // What the server can come to hold is read back as it was: its clock is no further than that.
        if outcome.verdict == RateVerdict::Allowed && now <= MOST {
            check_bytes(&after);
        }
    }
}

fn combined(
    a: &[u64],
    b: &[u64],
    c: &[u64],
    d: &[u64],
) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let mut all = Vec::new();
    for a in a {
        for b in b {
            for c in c {
                all.extend(d.iter().map(|d| (*a, *b, *c, *d)));
            }
        }
    }
    all.into_iter()
}

// AHEAD

/// A shaper as the definition has it: each call is served at a time, in the order of the calls, and the bucket is full at no
/// time. The model keeps the theoretical arrival time in 1/count us and nothing else.
#[test]
fn ahead_is_exact_over_random_calls() {
    let mut random = Random(0x6c7a_0011);
    let mut verdicts = [0; 4];
    for _ in 0..CALLS / CALLS_OF_A_KEY {
        let tier = Tier {
            limit: 1 + random.below(8),
            rate: LeakRate {
                count: 1 + random.below(12),
                period: *random.one(&[1000, 7000, 999_983, 60_000_000]),
            },
        };
        let (count, period) = (i128::from(tier.rate.count), i128::from(tier.rate.period));
        let mut now = TODAY;
        let mut limit: Option<Limit> = None;
        let mut arrival = i128::MIN; // in 1/count us
        for _ in 0..CALLS_OF_A_KEY {
            now += match random.below(4) {
                0 => 0,
                1 => random.below(100),
                _ => random.below(2 * tier.rate.period / tier.rate.count + 2),
            };
            let at = i128::from(now) * count;
            if random.below(12) == 0
                && let Some(old) = &limit
            {
                let cost = random.below(20);
                limit = Some(charge(old, cost, now));
                arrival = arrival.max(at) + i128::from(cost) * period;
            }
            let cost = random.below(tier.limit + 2);
            let ahead_ms = *random.one(&[0, 1, 5, 1000, 60_000, TEN_YEARS]);
            let spend = RequestCost {
                ahead_ms,
                ..RequestCost::counted(cost)
            };
            let (outcome, after) =
                ask_ahead(limit.as_ref(), LimitRequest::Gcra(tier), spend, now).expect("a GCRA");
            // Room there is from this time on.
            let full = i128::from(tier.limit) * period;
            let from = arrival.max(at) + i128::from(cost) * period - full;
            let wait = (from - at).max(0);
            let wait_ms = told_ms((wait + count - 1) / count);
            let expected = match wait_ms {
                _ if cost > tier.limit => RateVerdict::Never,
                0 => RateVerdict::Allowed,
                wait if wait <= ahead_ms => RateVerdict::AllowedAfter(wait),
                wait => RateVerdict::Retry(wait),
            };
            assert_eq!(outcome.verdict, expected, "{limit:?} {spend:?} {now}");
            if outcome.verdict.is_allowed() && cost > 0 {
                arrival = arrival.max(at) + i128::from(cost) * period;
                limit = Some(after);
            }
            let left = (full - (arrival.max(at) - at)).max(0) / period;
            assert_eq!(outcome.remaining, left as u64, "{limit:?} {spend:?} {now}");
            let reset = (arrival.max(at) - at + count - 1) / count;
            assert_eq!(outcome.reset, told_ms(reset));
            verdicts[match outcome.verdict {
                RateVerdict::Allowed => 0,
                RateVerdict::AllowedAfter(_) => 1,
                RateVerdict::Retry(_) => 2,
                RateVerdict::Never => 3,
            }] += 1;
        }
    }
    println!("{verdicts:?}");
    assert!(verdicts.iter().all(|count| *count > CALLS / 50));
}

/// Callers that wait as long as they are told act in the order of their calls, and never more than the burst and the rate
/// allow in any span; nobody is refused who would be allowed within the horizon. Also while the clock is set back.
#[test]
fn callers_ahead_of_their_time_act_in_order_and_evenly() {
    let mut random = Random(0x6c7a_0012);
    for round in 0..100 {
        let tier = Tier {
            limit: 1 + random.below(20),
            rate: LeakRate {
                count: 100,
                period: 1_000_000,
            },
        };
        let mut now = TODAY;
        let mut limit: Option<Limit> = None;
        let mut acts: Vec<u64> = Vec::new();
        let mut refused = 0;
        for _ in 0..1000 {
            now += random.below(9000);
            if round % 4 == 3 && random.below(100) == 0 {
                now -= random.below(1_000_000); // the clock is set back
            }
            let spend = RequestCost {
                ahead_ms: 2000,
                ..RequestCost::counted(1)
            };
            let request = LimitRequest::Gcra(tier);
            let (outcome, after) = ask_ahead(limit.as_ref(), request, spend, now).expect("it");
            match outcome.verdict {
                RateVerdict::Allowed => acts.push(now),
                RateVerdict::AllowedAfter(wait) => acts.push(now + 1000 * wait),
                RateVerdict::Retry(wait) => {
                    assert!(wait > 2000);
                    refused += 1;
                    continue;
                }
                RateVerdict::Never => panic!("{outcome:?}"),
            }
            limit = Some(after);
        }
        assert!(refused > 0);
        if round % 4 != 3 {
            assert!(acts.is_sorted(), "{acts:?}");
            let burst = tier.limit as usize;
            for (place, from) in acts.iter().enumerate() {
                // A wait is rounded up to a millisecond, so two calls may act that much nearer to each other.
                let until = from + 100_000 - 1000;
                let count = acts[place..].iter().take_while(|at| **at <= until).count();
                assert!(count <= burst + 10, "{count} in a tenth of a second");
            }
        }
    }
}

/// All or none of several keys, each of which is a limit like any other: the same as the tiers of one.
#[test]
fn several_keys_are_exact_over_random_calls() {
    let mut random = Random(0x6c7a_0013);
    let (mut allowed, mut refused, mut ahead) = (0, 0, 0);
    for _ in 0..CALLS / CALLS_OF_A_KEY / 2 {
        let tiers: Vec<Tier> = (0..1 + random.below(4)).map(|_| random.tier()).collect();
        let mut keys: Vec<Option<Bucket>> = vec![None; tiers.len()];
        let mut models: Vec<Option<Arrival>> = vec![None; tiers.len()];
        let mut now = TODAY;
        for _ in 0..CALLS_OF_A_KEY {
            now += random.below(1_000_000);
            let at = i128::from(now);
            // Somebody uses one of the keys alone.
            if random.below(3) == 0 {
                let place = random.below(tiers.len() as u64) as usize;
                let (tier, before) = (tiers[place], keys[place].map(Limit::Gcra));
                let (outcome, after) =
                    ask(before.as_ref(), LimitRequest::Gcra(tier), 1, now).expect("a GCRA");
                let mut model = models[place].unwrap_or(Arrival::new(tier.rate, at));
                let wait = model.fits_in(tier.limit, 1, at);
                assert_eq!(outcome.verdict == RateVerdict::Allowed, wait == Some(0));
                if let (Some(0), Limit::Gcra(bucket)) = (wait, after) {
                    model.consume(1, at, model.goes_on(1, at));
                    (keys[place], models[place]) = (Some(bucket), Some(model));
                }
            }
            let least = tiers.iter().map(|tier| tier.limit).min().unwrap_or(1);
            let ahead_ms = *random.one(&[0, 0, 10, 1000, TEN_YEARS]);
            let spend = RequestCost {
                ahead_ms,
                ..RequestCost::counted(random.cost(least))
            };
            let (outcome, after) = state::ask_all(&keys, &tiers, spend, now);
            let mut next: Vec<_> = models
                .iter()
                .zip(&tiers)
                .map(|(model, tier)| model.unwrap_or(Arrival::new(tier.rate, at)))
                .collect();
            let waits: Vec<_> = next
                .iter()
                .zip(&tiers)
                .map(|(model, tier)| {
                    let fits = spend.cost <= tier.limit;
                    let room = i128::from(tier.limit.saturating_sub(spend.cost));
                    let wait = model.falls_to(room * i128::from(tier.rate.period), at);
                    if fits { wait } else { i128::MAX }
                })
                .collect();
            let longest = *waits.iter().max().expect("a key");
            let verdict = match longest {
                0 => RateVerdict::Allowed,
                i128::MAX => RateVerdict::Never,
                wait if told_ms(wait) <= ahead_ms => RateVerdict::AllowedAfter(told_ms(wait)),
                wait => RateVerdict::Retry(told_ms(wait)),
            };
            assert_eq!(outcome.verdict, verdict, "{keys:?} {tiers:?} {spend:?}");
            let changes = verdict.is_allowed() && spend.cost > 0;
            assert_eq!(after.is_some(), changes);
            if changes {
                let is_full = |model: &Arrival| {
                    let (ahead, period) = (model.ahead(at), i128::from(model.rate.period));
                    ahead + i128::from(spend.cost) * period > i128::from(MOST) * period
                };
                if next.iter().any(is_full) {
                    break; // what is consumed saturates, which the model does not
                }
                next.iter_mut()
                    .for_each(|model| model.consume(spend.cost, at, false));
            }
            let left = next.iter().zip(&tiers);
            let left: Vec<_> = left
                .map(|(model, tier)| model.remaining(tier.limit, at))
                .collect();
            let binds = match verdict {
                RateVerdict::Allowed => {
                    let least = left.iter().min();
                    left.iter().position(|left| Some(left) == least)
                }
                _ => waits.iter().position(|wait| *wait == longest),
            };
            let binds = binds.expect("a key");
            assert_eq!((outcome.tier, outcome.remaining), (binds, left[binds]));
            assert_eq!(outcome.limit, tiers[binds].limit);
            let reset = next.iter().map(|model| model.empty_in(at)).max();
            assert_eq!(outcome.reset, told_ms(reset.expect("a key")));
            match verdict {
                RateVerdict::Allowed => allowed += 1,
                RateVerdict::AllowedAfter(_) => ahead += 1,
                _ => refused += 1,
            }
            if let Some(after) = after {
                let bucket = |limit: &Limit| match limit {
                    Limit::Gcra(bucket) => Some(*bucket),
                    other => panic!("{other:?}"),
                };
                keys = after.iter().map(bucket).collect();
                models = next.into_iter().map(Some).collect();
            }
        }
    }
    println!("{allowed} allowed, {ahead} ahead, {refused} refused");
    assert!(allowed > CALLS / 20 && ahead > CALLS / 50 && refused > CALLS / 20);
}

// CHARGE

/// Whatever was charged, those who come later wait for it, in every kind, and no longer; a refund of the same amount undoes
/// it at the same moment.
#[test]
fn a_charge_is_a_cost_without_a_refusal() {
    let mut random = Random(0x6c7a_0014);
    let tiers = [
        tier_of(5, 3, 1_000_000),
        tier_of(9, 7, 60_000_000),
        tier_of(3, 1, 100_000),
    ];
    let requests = [
        LimitRequest::Gcra(tiers[0]),
        LimitRequest::Tiers(&tiers),
        LimitRequest::Window {
            limit: 7,
            length: 1000,
            is_sliding: false,
        },
        LimitRequest::Exact {
            limit: 7,
            length: 1000,
        },
    ];
    for request in requests {
        for _ in 0..CALLS / 100 {
            let mut now = TODAY;
            let mut limit: Option<Limit> = None;
            for _ in 0..20 {
                now += random.below(400_000);
                let (outcome, after) = ask(limit.as_ref(), request, 1, now).expect("the kind");
                if outcome.verdict == RateVerdict::Allowed {
                    limit = Some(after);
                }
                let Some(before) = &limit else { continue };
                if random.below(3) == 0 {
                    let count = random.below(12);
                    let charged = charge(before, count, now);
                    check_bytes(&charged);
                    let left = |limit: &Limit| {
                        ask(Some(limit), request, 0, now)
                            .expect("the kind")
                            .0
                            .remaining
                    };
                    let undone = refund(&charged, count).expect("the kind");
                    assert_eq!(left(&undone), left(before), "{before:?} {count}");
                    if !matches!(request, LimitRequest::Tiers(_)) {
                        let expected = left(before).saturating_sub(count);
                        assert_eq!(left(&charged), expected, "{before:?} {count}");
                    }
                    let (told, _) = ask(Some(&charged), request, 1, now).expect("the kind");
                    if let RateVerdict::Retry(ms) = told.verdict {
                        check_retry(Some(&charged), (request, 1), now, ms, true);
                    }
                    limit = Some(charged);
                }
            }
        }
    }
}

#[test]
fn what_is_charged_saturates() {
    let requests = [
        LimitRequest::Gcra(tier_of(5, 1, MAX_PERIOD_US)),
        LimitRequest::Window {
            limit: 5,
            length: 1000,
            is_sliding: true,
        },
        LimitRequest::Exact {
            limit: 5,
            length: TEN_YEARS,
        },
    ];
    for request in requests {
        let mut limit = ask(None, request, 2, TODAY).expect("the kind").1;
        for later in 1..10 {
            limit = charge(&limit, MOST, TODAY + later);
            check_bytes(&limit);
        }
        let (told, _) = ask(Some(&limit), request, 1, TODAY + 10).expect("the kind");
        assert!(matches!(told.verdict, RateVerdict::Retry(_)), "{told:?}");
        let empty = refund(&limit, MOST).expect("the kind");
        let (told, _) = ask(Some(&empty), request, 5, TODAY + 10).expect("the kind");
        assert_eq!(told.verdict, RateVerdict::Allowed, "{empty:?}");
    }
    assert_eq!(state::charge(&Limit::Once, 1, TODAY), Err(WrongLimitKind));
}

// EXACT

/// The model keeps each call in a list, and looks at all of them each time.
#[test]
fn exact_windows_are_exact_over_random_calls() {
    let mut random = Random(0x6c7a_0015);
    let mut verdicts = [0; 3];
    for _ in 0..CALLS / CALLS_OF_A_KEY / 4 {
        let most = random.below(60);
        let length_ms = *random.one(&[1, 10, 999, 60_000, TEN_YEARS]);
        let length = 1000 * length_ms;
        let request = LimitRequest::Exact {
            limit: most,
            length: length_ms,
        };
        let mut now = TODAY;
        let mut limit: Option<Limit> = None;
        let mut calls: Vec<(u64, u64)> = Vec::new();
        for _ in 0..4 * CALLS_OF_A_KEY {
            now += match random.below(6) {
                0 => 0,
                1 => random.below(3),
                2 => random.below(length),
                _ => random.below(length / 20 + 2),
            };
            if random.below(200) == 0 {
                let back = random.below(2 * length);
                now -= back.min(TODAY / 2);
            }
            let live = |calls: &[(u64, u64)], now: u64| -> u64 {
                let in_reach = calls.iter().filter(|(at, _)| at + length > now);
                in_reach.map(|(_, cost)| cost).sum()
            };
            let record = |calls: &mut Vec<(u64, u64)>, cost: u64| {
                calls.retain(|(at, _)| at + length > now);
                // A clock that was set back: later calls count as calls of now.
                calls.iter_mut().for_each(|(at, _)| *at = now.min(*at));
                calls.push((now, cost));
            };
            if let Some(old) = &limit {
                match random.below(20) {
                    0 => {
                        let mut count = random.below(30);
                        limit = Some(refund(old, count).expect("it"));
                        while let Some((_, cost)) = calls.last_mut() {
                            let back = count.min(*cost);
                            *cost -= back;
                            count -= back;
                            if *cost > 0 {
                                break;
                            }
                            calls.pop();
                        }
                    }
                    1 => {
                        let count = 1 + random.below(20);
                        limit = Some(charge(old, count, now));
                        record(&mut calls, count);
                    }
                    _ => {}
                }
            }
            let cost = random.below(most.min(9) + 2);
            let (outcome, after) = ask(limit.as_ref(), request, cost, now).expect("it");
            let fits = |now| live(&calls, now) + cost <= most;
            match outcome.verdict {
                RateVerdict::Allowed => {
                    assert!(fits(now), "{limit:?}");
                    verdicts[0] += 1;
                }
                RateVerdict::Never => {
                    assert!(cost > most);
                    verdicts[1] += 1;
                }
                RateVerdict::Retry(ms) => {
                    assert!(cost <= most && !fits(now) && ms > 0);
                    assert!(fits(now + 1000 * ms) && !fits(now + 1000 * (ms - 1)));
                    check_retry(limit.as_ref(), (request, cost), now, ms, true);
                    verdicts[2] += 1;
                }
                RateVerdict::AllowedAfter(_) => panic!("{outcome:?}"),
            }
            if outcome.verdict == RateVerdict::Allowed && cost > 0 {
                record(&mut calls, cost);
                limit = Some(after);
            }
            assert_eq!(outcome.remaining, most.saturating_sub(live(&calls, now)));
            let newest = calls.last().map_or(0, |(at, _)| at + length);
            let reset = newest.saturating_sub(now);
            assert_eq!(outcome.reset, told_ms(reset.into()), "{limit:?} {now}");
            if let Some(limit) = &limit
                && random.below(20) == 0
            {
                check_bytes(limit);
            }
        }
    }
    println!("{verdicts:?} were allowed, can never be, must wait");
    assert!(verdicts.iter().all(|count| *count > CALLS / 100));
}

/// No span of the window's length has more calls than the limit, even if the limit and the length change.
#[test]
fn an_exact_window_never_lets_more_than_its_limit_through() {
    let mut random = Random(0x6c7a_0016);
    for _ in 0..20 {
        let (most, length_ms) = (1 + random.below(300), 1 + random.below(50));
        let request = LimitRequest::Exact {
            limit: most,
            length: length_ms,
        };
        let mut limit: Option<Limit> = None;
        let mut allowed: Vec<u64> = Vec::new();
        let mut now = TODAY;
        for _ in 0..20_000 {
            now += random.below(1 + 1500 * length_ms / most);
            let (outcome, after) = match limit.take() {
                None => ask(None, request, 1, now).expect("it"),
                Some(mut limit) => {
                    let spend = RequestCost::counted(1);
                    let (outcome, change) =
                        state::ask(Some(&limit), request, spend, now).expect("it");
                    if let LimitChange::Record(call) = change {
                        limit.record(call);
                    }
                    (outcome, limit)
                }
            };
            if outcome.verdict == RateVerdict::Allowed {
                allowed.push(now);
            }
            limit = Some(after);
        }
        for pair in allowed.windows(most as usize + 1) {
            assert!(pair[most as usize] - pair[0] >= 1000 * length_ms);
        }
        assert!(allowed.len() < 20_000);
    }
}

/// At most 16 bytes for each call that is remembered, of few and of many, near to each other and far apart.
#[test]
fn a_remembered_call_takes_at_most_16_bytes() {
    for (count, apart) in [(100u64, 1), (1000, 60_000_000), (100_000, 3_000_000_000)] {
        let mut log = ExactWindow::new(MAX_PERIOD_US);
        for call in 0..count {
            log.record(TODAY + call * apart, 1, MAX_PERIOD_US);
            let bytes = log.memory(&|size: usize| size.next_multiple_of(16));
            let calls = log.len().max(16); // a few bytes more for the first of them
            assert!(bytes <= 16 * calls + 256, "{bytes} of {}", log.len());
        }
        assert_eq!(log.len() as u64, count);
        // What has left the window takes nothing.
        let later = TODAY + count * apart + MAX_PERIOD_US;
        log.record(later, 1, MAX_PERIOD_US);
        assert_eq!(log.len(), 1);
        assert!(log.memory(&|size: usize| size) < 1000);
    }
}

/// However often a key is charged, its log does not grow without bounds, and allows nothing before its time.
#[test]
fn an_endless_number_of_charges_takes_bounded_memory() {
    let mut log = ExactWindow::new(MAX_PERIOD_US);
    for call in 0..250_000 {
        log.record(TODAY + call, 1, MAX_PERIOD_US);
    }
    assert_eq!(log.len(), 100_001);
    assert_eq!(log.used(), 250_000);
    log.give_back(240_000);
    assert_eq!(log.used(), 10_000);
}
