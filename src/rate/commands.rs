//! The commands of the family: each reads its request, takes a step and replies.

use super::decision::{RateDecision, RateVerdict, RequestCost};
use super::edit::LimitEdit;
use super::gcra::{LeakRate, Tier};
use super::options::{COST, OPTIONS, PEEK, PX, SLIDING};
use super::state::{
    Limit, LimitChange, LimitRequest, OnceVerdict, WrongLimitKind, ask, ask_once,
    refund as refunded,
};
use super::{COUNTERS, MAX_TIERS, persist};
use crate::error::Error;
use crate::options::Options;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use std::ffi::CStr;

/// The cost of a request.
fn cost(options: &Options<'_, 4>) -> RequestCost {
    RequestCost {
        cost: options.number_or(COST, 1),
        is_counted: !options.has(PEEK),
    }
}

/// `burst count period-ms`
fn tier(cursor: &mut Cursor<'_>) -> Result<Tier, Error> {
    Ok(Tier {
        limit: cursor.uint("burst", 0..=MAX_SAFE - 1)? + 1,
        rate: LeakRate {
            count: cursor.uint("count", 1..=MAX_SAFE)?,
            period: cursor.uint("period-ms", 1..=TEN_YEARS_MS)? * 1000,
        },
    })
}

/// `RATE.GCRA key burst count period-ms [COST n] [PEEK]`
///
/// `burst`: the number of requests that are allowed at once besides the first, 0 to 2^53 - 2. `count`: the number of
/// requests that are allowed in each period, 1 to 2^53 - 1. `period-ms`: 1 ms to 10 years. `COST`: the cost of this request,
/// 0 to 2^53 - 1, default 1. Replies with `[limited, limit, remaining, retry_ms, reset_ms]`. Errors: `WRONGTYPE`,
/// `ERR key holds another kind of limit`.
///
/// The algorithm is ITU-T recommendation I.371 (1992), see [`super::gcra`].
pub(super) fn gcra(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let tier = tier(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK)?;
    let decision = decide(call, LimitRequest::Gcra(tier), cost(&options), c"rate.gcra")?;
    Ok(call.ctx.send_ints(&in_ms(&decision)))
}

/// `CL.THROTTLE key max_burst count period-s [quantity]`
///
/// The same as `RATE.GCRA` with times in seconds, rounded up. `period-s`: 1 s to 10 years. `quantity`: 0 to 2^53 - 1,
/// default 1. The command of redis-cell: <https://github.com/brandur/redis-cell>
pub(super) fn throttle(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let tier = Tier {
        limit: cursor.uint("max_burst", 0..=MAX_SAFE - 1)? + 1,
        rate: LeakRate {
            count: cursor.uint("count", 1..=MAX_SAFE)?,
            period: cursor.uint("period-s", 1..=TEN_YEARS_MS / 1000)? * 1_000_000,
        },
    };
    let quantity = match cursor.left() {
        0 => 1,
        1 => cursor.uint("quantity", 0..=MAX_SAFE)?,
        _ => return Err(Error::Arity("cl.throttle")),
    };
    let cost = RequestCost {
        cost: quantity,
        is_counted: true,
    };
    let decision = decide(call, LimitRequest::Gcra(tier), cost, c"cl.throttle")?;
    let [limited, limit, remaining, retry, reset] = in_ms(&decision);
    let seconds = |ms: i64| (ms as u64).div_ceil(1000) as i64;
    let retry = if retry < 0 { retry } else { seconds(retry) };
    Ok([limited, limit, remaining, retry, seconds(reset)].into())
}

/// `RATE.WINDOW key limit window-ms [COST n] [PEEK] [SLIDING]`
///
/// `limit`: the number of requests that are allowed in each window, 0 to 2^53 - 1. `window-ms`: 1 ms to 10 years. The other
/// options, the reply and the errors are those of `RATE.GCRA`.
///
/// The weighting of two windows: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017.
pub(super) fn window(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let limit = cursor.uint("limit", 0..=MAX_SAFE)?;
    let length = cursor.uint("window-ms", 1..=TEN_YEARS_MS)?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK | SLIDING)?;
    let request = LimitRequest::Window {
        limit,
        length,
        is_sliding: options.has(SLIDING),
    };
    let decision = decide(call, request, cost(&options), c"rate.window")?;
    Ok(call.ctx.send_ints(&in_ms(&decision)))
}

/// `RATE.TIERS key numtiers burst count period-ms [burst count period-ms ...] [COST n] [PEEK]`
///
/// `numtiers`: 1 to 64. Replies as `RATE.GCRA` does, followed by the index of the binding tier (from 0). `limit` and
/// `remaining` are those of that tier, `reset_ms` is that of the whole key. The errors are those of `RATE.GCRA`.
pub(super) fn tiers(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("numtiers", 1..=MAX_TIERS as i64)?;
    let tiers = (0..count).map(|_| tier(&mut cursor));
    let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK)?;
    let decision = decide(
        call,
        LimitRequest::Tiers(&tiers),
        cost(&options),
        c"rate.tiers",
    )?;
    let [limited, limit, remaining, retry, reset] = in_ms(&decision);
    let tier = decision.tier as i64;
    Ok([limited, limit, remaining, retry, reset, tier].into())
}

/// Asks the limit at the first key, and carries out the change that the decision makes to it.
///
/// If a cost is added without regard to the time, the command is replicated as it came. Replicas and AOFs then add the cost
/// without a look at their clocks: the master has allowed the request.
#[inline(always)] // each command has requests of one kind
fn decide(
    call: &Call<'_>,
    request: LimitRequest<'_>,
    cost: RequestCost,
    event: &'static CStr,
) -> Result<RateDecision, Error> {
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = LimitEdit::open(ctx, &name)?;
    let now = Now::read().micros();
    let (decision, change) = ask(edit.limit().as_deref(), request, cost, now)?;
    if ctx.is_replay() {
        edit.add_cost(cost.cost, None)?;
        return Ok(decision);
    }
    match decision.verdict {
        _ if !cost.is_counted => COUNTERS.peeked.count(),
        RateVerdict::Allowed => COUNTERS.allowed.count(),
        RateVerdict::Retry(_) | RateVerdict::Never => COUNTERS.limited.count(),
    }
    match change {
        LimitChange::Unchanged => {}
        LimitChange::AddCost => edit.add_cost(cost.cost, Some(event))?,
        LimitChange::Replace(limit) => edit.replace(limit, event),
    }
    Ok(decision)
}

/// `[limited, limit, remaining, retry_ms, reset_ms]`
fn in_ms(decision: &RateDecision) -> [i64; 5] {
    let (limited, retry) = match decision.verdict {
        RateVerdict::Allowed => (0, -1),
        RateVerdict::Retry(wait) => (1, wait as i64),
        RateVerdict::Never => (1, -1),
    };
    let [limit, remaining, reset] =
        [decision.limit, decision.remaining, decision.reset].map(|value| value as i64);
    [limited, limit, remaining, retry, reset]
}

/// `RATE.REFUND key n`
///
/// `n`: 0 to 2^53 - 1. A refund never makes more requests available than the limit allows. Replies with 1, or with 0 if the
/// key does not exist. Errors: `WRONGTYPE`, `ERR key holds another kind of limit` (of `RATE.ONCE`).
pub(super) fn refund(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("n", 0..=MAX_SAFE)?;
    let name = call.name(0);
    let mut edit = LimitEdit::open(call.ctx, &name)?;
    let Some(limit) = edit.limit() else {
        return Ok(Reply::Int(0));
    };
    let limit = refunded(limit, count)?;
    COUNTERS.refunded.count();
    if count > 0 {
        if limit.is_unused(Now::read().micros()) {
            edit.delete(c"rate.refund");
        } else {
            edit.replace(limit, c"rate.refund");
        }
    }
    Ok(Reply::Int(1))
}

/// `RATE.ONCE key PX ms`
///
/// `PX`: the time in which only the first caller receives 1, 1 ms to 10 years. Replies with 1 to the first caller, and with
/// 0 to others. Errors: `WRONGTYPE`, `ERR key holds another kind of limit`.
pub(super) fn once(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, PX)?.require(PX)?;
    let name = call.name(0);
    let mut edit = LimitEdit::open(call.ctx, &name)?;
    let now = Now::read().ms();
    let expires = edit.limit().is_some().then(|| edit.expires()).flatten();
    match ask_once(edit.limit().as_deref(), expires, now)? {
        OnceVerdict::Duplicate => {
            COUNTERS.once_duplicate.count();
            Ok(Reply::Int(0))
        }
        OnceVerdict::First => {
            COUNTERS.once_first.count();
            edit.put(
                Limit::Once,
                Some(now + options.number_or(PX, 0)),
                c"rate.once",
            );
            Ok(Reply::Int(1))
        }
    }
}

/// `RATE.APPLY key effect`: applies an effect that a master has sent. See [`persist`].
pub(super) fn apply_effect(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let effect = persist::read_effect(cursor.value()?);
    let (limit, expires) = effect.map_err(|_| Error::BadEffect)?;
    let name = call.name(0);
    LimitEdit::open(call.ctx, &name)?.apply(limit, (expires > 0).then_some(expires));
    Ok(Reply::Ok)
}

impl From<WrongLimitKind> for Error {
    fn from(_: WrongLimitKind) -> Self {
        Error::OtherLimit
    }
}
