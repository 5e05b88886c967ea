//! The commands of the family: each reads its request, takes its step and answers.

use super::gcra::{Rate, Tier};
use super::native::RATE;
use super::options::{COST, OPTIONS, PEEK, PX, SLIDING};
use super::outcome::{Cost, Outcome, Verdict};
use super::persist;
use super::state::{Limit, Next, OtherKind, Request, ask, refund as give_back};
use super::{MAX_TIERS, STATS};
use crate::error::Error;
use crate::options::Options;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::entry::{Call, apply, write};
use crate::server::handles::key::TypedKey;
use crate::server::services::command::{Command, ONE_KEY};
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use std::ffi::CStr;

/// All commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "RATE.GCRA",
        usage: "key burst count period-ms [COST n] [PEEK]",
        summary: "Allows so many requests per period, evenly, with a burst more at once.",
        complexity: "O(1)",
        arity: -5,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(gcra),
    },
    Command {
        name: "RATE.WINDOW",
        usage: "key limit window-ms [COST n] [PEEK] [SLIDING]",
        summary: "Allows so many requests in each window of time.",
        complexity: "O(1)",
        arity: -4,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(window),
    },
    Command {
        name: "RATE.TIERS",
        usage: "key numtiers burst count period-ms [burst count period-ms ...] [COST n] [PEEK]",
        summary: "Allows what several limits allow at once, all or nothing.",
        complexity: "O(T) with T tiers",
        arity: -6,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(tiers),
    },
    Command {
        name: "RATE.REFUND",
        usage: "key n",
        summary: "Gives back what requests cost that came to nothing.",
        complexity: "O(1); O(T) with T tiers",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(refund),
    },
    Command {
        name: "RATE.ONCE",
        usage: "key PX ms",
        summary: "Tells the first caller within a time from all others.",
        complexity: "O(1)",
        arity: -4,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(once),
    },
    Command {
        name: "CL.THROTTLE",
        usage: "key max_burst count period-s [quantity]",
        summary: "The same as RATE.GCRA with the arguments and the reply of redis-cell, in seconds.",
        complexity: "O(1)",
        arity: -5,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(throttle),
    },
    Command {
        name: "RATE.APPLY",
        usage: "key effect",
        summary: "Internal: what a master decided about a limit, for replicas and the AOF.",
        complexity: "O(1)",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effect),
    },
];

/// The cost that a command charges, or only asks for.
fn cost(options: &Options<'_, 4>) -> Cost {
    Cost {
        cost: options.number_or(COST, 1),
        spends: !options.has(PEEK),
    }
}

/// `burst count period-ms`
fn tier(cursor: &mut Cursor<'_>) -> Result<Tier, Error> {
    Ok(Tier {
        limit: cursor.uint("burst", 0..=MAX_SAFE - 1)? + 1,
        rate: Rate {
            count: cursor.uint("count", 1..=MAX_SAFE)?,
            period: cursor.uint("period-ms", 1..=TEN_YEARS_MS)? * 1000,
        },
    })
}

/// `RATE.GCRA key burst count period-ms [COST n] [PEEK]`
///
/// `burst`: how many more than one are allowed at once, 0 to 2^53 - 2. `count`: how many are allowed per period, 1 to
/// 2^53 - 1. `period-ms`: 1 ms to 10 years. `COST`: what this request counts for, 0 to 2^53 - 1, default 1. Replies with
/// `[limited, limit, remaining, retry_ms, reset_ms]`. Errors: `WRONGTYPE`, `ERR key holds another kind of limit`.
///
/// The algorithm is ITU-T recommendation I.371 (1992), see [`super::gcra`].
fn gcra(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let tier = tier(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK)?;
    let outcome = decide(call, Request::Gcra(tier), cost(&options), c"rate.gcra")?;
    Ok(in_ms(&outcome).into())
}

/// `CL.THROTTLE key max_burst count period-s [quantity]`
///
/// As `RATE.GCRA` with times in seconds, rounded up; `period-s`: 1 s to 10 years; `quantity`: 0 to 2^53 - 1, default 1.
/// The command of redis-cell: <https://github.com/brandur/redis-cell>
fn throttle(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let tier = Tier {
        limit: cursor.uint("max_burst", 0..=MAX_SAFE - 1)? + 1,
        rate: Rate {
            count: cursor.uint("count", 1..=MAX_SAFE)?,
            period: cursor.uint("period-s", 1..=TEN_YEARS_MS / 1000)? * 1_000_000,
        },
    };
    let quantity = match cursor.left() {
        0 => 1,
        1 => cursor.uint("quantity", 0..=MAX_SAFE)?,
        _ => return Err(Error::Arity("cl.throttle")),
    };
    let cost = Cost {
        cost: quantity,
        spends: true,
    };
    let outcome = decide(call, Request::Gcra(tier), cost, c"cl.throttle")?;
    let [limited, limit, remaining, retry, reset] = in_ms(&outcome);
    let seconds = |ms: i64| (ms as u64).div_ceil(1000) as i64;
    let retry = if retry < 0 { retry } else { seconds(retry) };
    Ok([limited, limit, remaining, retry, seconds(reset)].into())
}

/// `RATE.WINDOW key limit window-ms [COST n] [PEEK] [SLIDING]`
///
/// `limit`: how many are allowed in each window, 0 to 2^53 - 1. `window-ms`: 1 ms to 10 years. The others, the reply and
/// the errors as for `RATE.GCRA`.
///
/// The weighing of two windows: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017.
fn window(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let limit = cursor.uint("limit", 0..=MAX_SAFE)?;
    let length = cursor.uint("window-ms", 1..=TEN_YEARS_MS)?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK | SLIDING)?;
    let request = Request::Window {
        limit,
        length,
        slides: options.has(SLIDING),
    };
    let outcome = decide(call, request, cost(&options), c"rate.window")?;
    Ok(in_ms(&outcome).into())
}

/// `RATE.TIERS key numtiers burst count period-ms [burst count period-ms ...] [COST n] [PEEK]`
///
/// `numtiers`: 1 to 64. Replies as `RATE.GCRA`, with the tier that binds (from 0) behind it: `limit` and `remaining` are
/// that tier's; `reset_ms` is the whole key's. Errors as for `RATE.GCRA`.
fn tiers(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("numtiers", 1..=MAX_TIERS as i64)?;
    let tiers = (0..count).map(|_| tier(&mut cursor));
    let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
    let options = OPTIONS.read(&mut cursor, COST | PEEK)?;
    let outcome = decide(call, Request::Tiers(&tiers), cost(&options), c"rate.tiers")?;
    let [limited, limit, remaining, retry, reset] = in_ms(&outcome);
    let tier = outcome.tier as i64;
    Ok([limited, limit, remaining, retry, reset, tier].into())
}

/// Asks the limit at the first key, and lets it remember what was allowed.
///
/// A cost that is added without regard to the time is replicated as the command that it came with. Replicas and AOFs add
/// it whatever their clock says of it: it was allowed, or they would not have been told.
fn decide(
    call: &Call<'_>,
    request: Request<'_>,
    cost: Cost,
    event: &'static CStr,
) -> Result<Outcome, Error> {
    let (ctx, name) = (call.ctx, call.name(0));
    let mut slot = TypedKey::of(ctx.open(&name), &RATE)?;
    let now = Now::read().micros();
    let (outcome, next) = ask(slot.value().as_deref(), request, cost, now)?;
    if ctx.is_replay() {
        add(call, &mut slot, cost.cost, None)?;
        return Ok(outcome);
    }
    match outcome.verdict {
        _ if !cost.spends => STATS.peeked.count(),
        Verdict::Allowed => STATS.allowed.count(),
        Verdict::Retry(_) | Verdict::Never => STATS.limited.count(),
    }
    match next {
        Next::Same => {}
        Next::Added => {
            add(call, &mut slot, cost.cost, Some(event))?;
        }
        Next::Set(limit) => keep(call, &mut slot, limit, event),
    }
    Ok(outcome)
}

/// Adds a cost to what the limit holds.
fn add(
    call: &Call<'_>,
    slot: &mut TypedKey<'_, Limit>,
    cost: u64,
    event: Option<&'static CStr>,
) -> Result<(), Error> {
    let limit = slot.value().ok_or(Error::BadEffect)?;
    let before = limit.end();
    limit.add(cost);
    let end = limit.end();
    // Most calls of a hot key leave its end in the same millisecond.
    let commit = Commit {
        key: fate(end.filter(|_| end != before)),
        replicate: Replicate::Verbatim,
        is_modified: true,
        event,
    };
    slot.commit(call.ctx, &call.name(0), &commit);
    Ok(())
}

/// `[limited, limit, remaining, retry_ms, reset_ms]`
fn in_ms(outcome: &Outcome) -> [i64; 5] {
    let (limited, retry) = match outcome.verdict {
        Verdict::Allowed => (0, -1),
        Verdict::Retry(wait) => (1, wait as i64),
        Verdict::Never => (1, -1),
    };
    let [limit, remaining, reset] =
        [outcome.limit, outcome.remaining, outcome.reset].map(|value| value as i64);
    [limited, limit, remaining, retry, reset]
}

/// `RATE.REFUND key n`
///
/// `n`: 0 to 2^53 - 1; what goes beyond a full limit is lost. Replies with 1, or 0 if there is no such key. Errors:
/// `WRONGTYPE`, `ERR key holds another kind of limit` (of `RATE.ONCE`).
fn refund(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("n", 0..=MAX_SAFE)?;
    let name = call.name(0);
    let mut slot = TypedKey::of(call.ctx.open(&name), &RATE)?;
    let Some(limit) = slot.value() else {
        return Ok(Reply::Int(0));
    };
    let limit = give_back(limit, count)?;
    STATS.refunded.count();
    if count == 0 {
        return Ok(Reply::Int(1));
    }
    if !limit.is_over(Now::read().micros()) {
        keep(call, &mut slot, limit, c"rate.refund");
        return Ok(Reply::Int(1));
    }
    let commit = Commit {
        key: KeyFate::Delete,
        replicate: Replicate::Del,
        is_modified: true,
        event: Some(c"rate.refund"),
    };
    slot.commit(call.ctx, &name, &commit);
    Ok(Reply::Int(1))
}

/// `RATE.ONCE key PX ms`
///
/// `PX`: for how long there is no second, 1 ms to 10 years. Replies with 1 to the first, 0 to others. Errors:
/// `WRONGTYPE`, `ERR key holds another kind of limit`.
fn once(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, PX)?.require(PX)?;
    let name = call.name(0);
    let mut slot = TypedKey::of(call.ctx.open(&name), &RATE)?;
    let now = Now::read().ms();
    match slot.value().map(|limit| *limit == Limit::Once) {
        None => {}
        Some(false) => return Err(Error::OtherLimit),
        // The server keeps a key through the very millisecond in which it expires, and for as long as a script runs.
        Some(true) if slot.expires().is_some_and(|at| at <= now) => {}
        Some(true) => {
            STATS.once_duplicate.count();
            return Ok(Reply::Int(0));
        }
    }
    STATS.once_first.count();
    set(
        call,
        &mut slot,
        Limit::Once,
        Some(now + options.number_or(PX, 0)),
        c"rate.once",
    );
    Ok(Reply::Int(1))
}

/// Puts a limit at its key, which expires with it. An expiry that was set by hand stays for as long as the limit's end
/// does.
fn keep(call: &Call<'_>, slot: &mut TypedKey<'_, Limit>, limit: Limit, event: &'static CStr) {
    let before = slot.value().and_then(|limit| limit.end());
    let expires = limit.end().filter(|end| before != Some(*end));
    set(call, slot, limit, expires, event);
}

/// Puts a limit at its key; `expires` is in Unix ms, and none leaves the key's expiry as it is.
fn set(
    call: &Call<'_>,
    key: &mut TypedKey<'_, Limit>,
    limit: Limit,
    expires: Option<u64>,
    event: &'static CStr,
) {
    let mut effect = EFFECT.get();
    effect.clear();
    persist::put_effect(&mut effect, &limit, expires.unwrap_or(0));
    put(key, limit);
    let commit = Commit {
        key: fate(expires),
        replicate: Replicate::Effect(c"RATE.APPLY", &effect),
        is_modified: true,
        event: Some(event),
    };
    key.commit(call.ctx, &call.name(0), &commit);
}

fn put(key: &mut TypedKey<'_, Limit>, limit: Limit) {
    match key.value() {
        Some(before) => *before = limit,
        None => key.create(limit),
    }
}

/// `expires`: Unix ms; none leaves the key's expiry as it is.
fn fate(expires: Option<u64>) -> KeyFate {
    expires.map_or(KeyFate::Keep, KeyFate::ExpireAt)
}

/// A buffer for effects, kept to be used again.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// `RATE.APPLY key effect`: makes a limit what a master says it is. See [`persist`].
fn apply_effect(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let effect = persist::read_effect(cursor.value()?);
    let (limit, expires) = effect.map_err(|_| Error::BadEffect)?;
    let name = call.name(0);
    let mut slot = TypedKey::of(call.ctx.open(&name), &RATE)?;
    put(&mut slot, limit);
    let commit = Commit {
        key: fate((expires > 0).then_some(expires)),
        replicate: Replicate::Verbatim,
        is_modified: true,
        event: None,
    };
    slot.commit(call.ctx, &name, &commit);
    Ok(Reply::Ok)
}

impl From<OtherKind> for Error {
    fn from(_: OtherKind) -> Self {
        Error::OtherLimit
    }
}
