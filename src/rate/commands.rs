//! The commands of the family: each reads its request, takes a step and replies.

use super::decision::{RateDecision, RateVerdict, RequestCost};
use super::edit::LimitEdit;
use super::exact::MAX_EXACT;
use super::gcra::{Bucket, LeakRate, Tier};
use super::options::{AHEAD, COST, COUNT, EXACT, OPTIONS, PEEK, PX, SLIDING};
use super::state::{
    self, Limit, LimitChange, LimitRequest, OnceVerdict, WrongLimitKind, ask, ask_all, ask_once,
};
use super::{COUNTERS, HOT, MAX_TIERS, persist};
use crate::error::Error;
use crate::options::Options;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS, has_duplicates};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::memory;
use crate::server::services::native::open_together;
use std::ffi::CStr;

/// The cost of a request.
fn cost(options: &Options<'_, COUNT>) -> RequestCost {
    RequestCost {
        cost: options.number_or(COST, 1),
        is_counted: !options.has(PEEK),
        ahead_ms: options.number_or(AHEAD, 0),
    }
}

/// `burst count period-ms`
#[inline(always)] // the result is large: it stays where it is used
fn tier(cursor: &mut Cursor<'_>) -> Result<Tier, Error> {
    Ok(Tier {
        limit: cursor.uint("burst", 0..=MAX_SAFE - 1)? + 1,
        rate: LeakRate {
            count: cursor.uint("count", 1..=MAX_SAFE)?,
            period: cursor.uint("period-ms", 1..=TEN_YEARS_MS)? * 1000,
        },
    })
}

/// `RATE.GCRA key burst count period-ms [COST n] [PEEK] [AHEAD ms]`
///
/// `burst`: the number of requests that are allowed at once besides the first, 0 to 2^53 - 2. `count`: the number of
/// requests that are allowed in each period, 1 to 2^53 - 1. `period-ms`: 1 ms to 10 years. `COST`: the cost of this request,
/// 0 to 2^53 - 1, default 1. `AHEAD`: how long the caller would wait for the cost after an early decision, 0 ms to 10 years.
/// Replies with `[limited, limit, remaining, retry_ms, reset_ms]`. Errors: `WRONGTYPE`, `ERR key holds another kind of limit`.
///
/// The algorithm is ITU-T recommendation I.371 (1992), see [`super::gcra`].
pub(super) fn gcra(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let tier = tier(&mut cursor)?;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, COST | PEEK | AHEAD)?;
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
    let cost = RequestCost::counted(quantity);
    let decision = decide(call, LimitRequest::Gcra(tier), cost, c"cl.throttle")?;
    let [limited, limit, remaining, retry, reset] = in_ms(&decision);
    let seconds = |ms: i64| (ms as u64).div_ceil(1000) as i64;
    let retry = if retry < 0 { retry } else { seconds(retry) };
    Ok([limited, limit, remaining, retry, seconds(reset)].into())
}

/// `RATE.WINDOW key limit window-ms [COST n] [PEEK] [SLIDING | EXACT]`
///
/// `limit`: the number of requests that are allowed in each window, 0 to 2^53 - 1, with `EXACT` 0 to 100 000. `window-ms`: 1 ms
/// to 10 years. The other options, the reply and the errors are those of `RATE.GCRA`.
///
/// The weighting of two windows: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017.
pub(super) fn window(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let limit = cursor.uint("limit", 0..=MAX_SAFE)?;
    let length = cursor.uint("window-ms", 1..=TEN_YEARS_MS)?;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, COST | PEEK | SLIDING | EXACT)?;
    let request = if options.has(EXACT) {
        if limit > MAX_EXACT {
            return Err(Error::OutOfRange {
                argument: "limit",
                min: 0,
                max: MAX_EXACT as i64,
            });
        }
        LimitRequest::Exact { limit, length }
    } else {
        LimitRequest::Window {
            limit,
            length,
            is_sliding: options.has(SLIDING),
        }
    };
    let decision = decide(call, request, cost(&options), c"rate.window")?;
    Ok(call.ctx.send_ints(&in_ms(&decision)))
}

/// `RATE.TIERS key numtiers burst count period-ms [burst count period-ms ...] [COST n] [PEEK] [AHEAD ms]`
///
/// `numtiers`: 1 to 64. Replies as `RATE.GCRA` does, followed by the index of the binding tier (from 0). `limit` and
/// `remaining` are those of that tier, `reset_ms` is that of the whole key. The errors are those of `RATE.GCRA`.
pub(super) fn tiers(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("numtiers", 1..=MAX_TIERS as i64)?;
    let tiers = (0..count).map(|_| tier(&mut cursor));
    let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK | AHEAD)?;
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

/// `RATE.MGCRA numkeys key burst count period-ms [key burst count period-ms ...] [COST n] [PEEK] [AHEAD ms]`
///
/// `numkeys`: 1 to 1024. Replies as `RATE.GCRA` does, followed by the index of the binding key (from 0). `limit` and
/// `remaining` are those of that key, `reset_ms` is the longest of all keys. The errors are those of `RATE.GCRA`, for any key.
pub(super) fn mgcra(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let count = cursor.numkeys_of(4)?;
    let (mut keys, mut tiers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        keys.push(cursor.value()?);
        tiers.push(tier(&mut cursor)?);
    }
    if has_duplicates(&keys) {
        return Err(Error::Syntax);
    }
    let options = OPTIONS.read(&mut cursor, COST | PEEK | AHEAD)?;
    let cost = cost(&options);
    let names: Vec<_> = (0..count).map(|key| call.name(1 + key * 4)).collect();
    refuse_growth(call.ctx, &names[0], cost)?;
    let mut edits = open_together(|| {
        let open = |name| LimitEdit::open(call.ctx, name);
        names.iter().map(open).collect::<Result<Vec<_>, Error>>()
    })?;
    let mut before: Vec<Option<Bucket>> = Vec::with_capacity(count);
    for edit in &mut edits {
        before.push(match edit.limit() {
            None => None,
            Some(Limit::Gcra(bucket)) => Some(*bucket),
            Some(_) => return Err(Error::OtherLimit),
        });
    }
    let (decision, after) = ask_all(&before, &tiers, cost, Now::read().micros());
    let binding = names.get(decision.tier).unwrap_or(&names[0]);
    count_decision(call.ctx, binding, &decision, cost);
    for (edit, limit) in edits.iter_mut().zip(after.into_iter().flatten()) {
        edit.replace(limit, c"rate.mgcra");
    }
    let [limited, limit, remaining, retry, reset] = in_ms(&decision);
    Ok([
        limited,
        limit,
        remaining,
        retry,
        reset,
        decision.tier as i64,
    ]
    .into())
}

/// Refuses a request that may be counted if the server is out of memory. The server cannot do so: it would refuse `PEEK` as
/// well. Replicas and AOFs refuse nothing.
fn refuse_growth(ctx: Ctx<'_>, name: &ServerString<'_>, cost: RequestCost) -> Result<(), Error> {
    if cost.is_counted && memory::refuses_growth(ctx, c"RATE.ONCE", name) && !ctx.is_replay() {
        return Err(Error::OutOfMemory);
    }
    Ok(())
}

/// `name`: the key whose limit decided.
fn count_decision(
    ctx: Ctx<'_>,
    name: &ServerString<'_>,
    decision: &RateDecision,
    cost: RequestCost,
) {
    match decision.verdict {
        _ if !cost.is_counted => COUNTERS.peeked.count(),
        RateVerdict::Allowed => COUNTERS.allowed.count(),
        RateVerdict::AllowedAfter(_) => COUNTERS.ahead.count(),
        RateVerdict::Retry(_) | RateVerdict::Never => {
            COUNTERS.limited.count();
            HOT.count_refusal(ctx, name);
        }
    }
}

/// Asks the limit at the first key, and carries out the change that the decision makes to it.
///
/// If a cost is added without regard to the time, the command is replicated as it came. The cost that replicas
/// and AOFs then add does not depend on their clocks: the master has allowed the request.
#[inline(always)] // each command has requests of one kind
fn decide(
    call: &Call<'_>,
    request: LimitRequest<'_>,
    cost: RequestCost,
    event: &'static CStr,
) -> Result<RateDecision, Error> {
    let (ctx, name) = (call.ctx, call.name(0));
    refuse_growth(ctx, &name, cost)?;
    let mut edit = LimitEdit::open(ctx, &name)?;
    let now = Now::read().micros();
    let (decision, change) = ask(edit.limit().as_deref(), request, cost, now)?;
    if ctx.is_replay() {
        edit.add_cost(cost.cost, None)?;
        return Ok(decision);
    }
    count_decision(ctx, &name, &decision, cost);
    match change {
        LimitChange::AddCost => edit.add_cost(cost.cost, Some(event))?, // nearly all requests to a hot key
        change => edit.change(change, cost.cost, event)?,
    }
    Ok(decision)
}

/// `[limited, limit, remaining, retry_ms, reset_ms]`
fn in_ms(decision: &RateDecision) -> [i64; 5] {
    let (limited, retry) = match decision.verdict {
        RateVerdict::Allowed => (0, -1),
        RateVerdict::AllowedAfter(wait) => (0, wait as i64),
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
    adjust(call, |edit, count| {
        let limit = edit.limit().ok_or(Error::Internal)?;
        let change = state::refund(limit, count)?;
        COUNTERS.refunded.count();
        let is_unused = match &change {
            LimitChange::Replace(limit) => limit.is_unused(Now::read().micros()),
            LimitChange::GiveBack(count) => limit.is_used_up_by(*count),
            _ => false,
        };
        if is_unused {
            edit.delete(c"rate.refund");
            return Ok(());
        }
        edit.change(change, 0, c"rate.refund")
    })
}

/// `RATE.CHARGE key n`
///
/// `n`: 0 to 2^53 - 1. Adds a cost that is known only after the request, whether or not there is room for it. Replies with 1,
/// or with 0 if the key does not exist. Errors: `WRONGTYPE`, `ERR key holds another kind of limit` (of `RATE.ONCE`).
pub(super) fn charge(call: &Call<'_>) -> Answer {
    adjust(call, |edit, count| {
        let limit = edit.limit().ok_or(Error::Internal)?;
        let change = state::charge(limit, count, Now::read().micros())?;
        COUNTERS.charged.count();
        edit.change(change, 0, c"rate.charge")
    })
}

/// Reads `key n` and changes the used part of the limit. Replies with 1, or with 0 if the key does not exist.
fn adjust(
    call: &Call<'_>,
    change: impl FnOnce(&mut LimitEdit<'_>, u64) -> Result<(), Error>,
) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("n", 0..=MAX_SAFE)?;
    let name = call.name(0);
    let mut edit = LimitEdit::open(call.ctx, &name)?;
    if edit.limit().is_none() {
        return Ok(Reply::Int(0));
    }
    change(&mut edit, count)?;
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
    let (effect, expires) = effect.map_err(|_| Error::BadEffect)?;
    let name = call.name(0);
    LimitEdit::open(call.ctx, &name)?.apply(effect, (expires > 0).then_some(expires))?;
    Ok(Reply::Ok)
}

impl From<WrongLimitKind> for Error {
    fn from(_: WrongLimitKind) -> Self {
        Error::OtherLimit
    }
}
