//! The commands of the family: each reads its request, takes its step and answers.

use super::edit::Edit;
use super::guard::is_absent;
use super::lease::Rebuild;
use super::native::CACHE;
use super::options::{
    BACKOFF, BLOCK, CacheOptions, GRACE, GUARD, JITTER, LEASE, OPTIONS, PX, REFRESH, SLIDE, STALE,
    TOKEN, VER,
};
use super::revoke::changed;
use super::serve::{self, Advice, Found, fresh, grant, rebuild, serve as serve_waiters};
use super::state::{
    Claim, Kind, Look, Refusal, Remains, Terms, Version, admit, is_due_to_slide, jittered,
};
use super::{MAX_LEASES, STATE, STATS};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE};
use crate::server::base::clock::Now;
use crate::server::base::random;
use crate::server::entry::{Call, apply, read, write, write_keyed};
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::command::{
    Access, Command, KeySpec, Keys, ONE_KEY, ONE_KEY_READ, Place,
};
use std::ffi::CStr;

/// A key, and perhaps the filter that guards it.
struct KeyAndFilter;
impl Keys for KeyAndFilter {
    const SPECS: &'static [KeySpec] = &[
        KeySpec {
            place: Place::At(1),
            access: Access::Update,
        },
        KeySpec {
            place: Place::After(c"GUARD", 2),
            access: Access::Read,
        },
    ];
}

/// All commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "CACHE.GET",
        usage: "key",
        summary: "Reads a cached value, fresh or stale.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(get),
    },
    Command {
        name: "CACHE.FETCH",
        usage: "key LEASE ms [EARLY ms | BETA f] [SLIDE ms] [GUARD filter item] [BLOCK ms]",
        summary: "Reads a cached value, and tells the caller what to do: use it, rebuild it, or wait.",
        complexity: "O(1)",
        arity: -4,
        flags: "write fast blocking getkeys-api",
        categories: "write fast blocking",
        keys: KeyAndFilter::SPECS,
        run: write_keyed::<_, KeyAndFilter>(fetch),
    },
    Command {
        name: "CACHE.SET",
        usage: "key value PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches a value; with a token only if nothing has happened to the key since its lease.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -5,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(set),
    },
    Command {
        name: "CACHE.SETNULL",
        usage: "key PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches that there is no value.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(setnull),
    },
    Command {
        name: "CACHE.DEL",
        usage: "key [STALE ms] [GRACE ms] [VER version]",
        summary: "Invalidates a cached value, and voids every lease to rebuild it.",
        complexity: "O(1)",
        arity: -2,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(del),
    },
    Command {
        name: "CACHE.FAIL",
        usage: "key token [BACKOFF ms]",
        summary: "Gives a lease back because the loader failed; nobody else is to try for a while.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -3,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(fail),
    },
    Command {
        name: "CACHE.INFO",
        usage: "key",
        summary: "Shows what is known of a cached value, of its lease and of who waits for it.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(info),
    },
    Command {
        name: "CACHE.APPLY",
        usage: "key effect [value]",
        summary: "Internal: what a master decided about a cached value, for replicas and the AOF.",
        complexity: "O(1)",
        arity: -3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effect),
    },
];

/// A token: any that was ever given is in this range, and others are nobody's.
fn token(cursor: &mut Cursor<'_>, argument: &'static str) -> Result<u64, Error> {
    cursor.uint(argument, 0..=MAX_SAFE)
}

/// Opens a key. If it holds another type, it was changed since its lease was given.
fn open<'k>(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Edit<'k>, Error> {
    Edit::open(ctx, name).inspect_err(|_| changed(ctx.db(), name.bytes()))
}

/// `CACHE.GET key`
///
/// Replies with the value, fresh or stale, or nil: there is none, or it is a cached null. Error: `WRONGTYPE`.
fn get(call: &Call<'_>) -> Answer {
    let name = call.name(0);
    let mut slot = TypedKey::of(call.ctx.open_to_read(&name), &CACHE)?;
    let Some(entry) = slot.value() else {
        STATS.misses.count();
        return Ok(Reply::Nil);
    };
    // As long as the key is there the entry may be served, unless an invalidation has said until when.
    let is_served = entry.grace.is_none() || entry.look(Now::read().ms(), || None) != Look::Missing;
    match (is_served, entry.kind) {
        (true, Kind::Value) => STATS.hits.count(),
        (true, Kind::Null) => STATS.nulls.count(),
        _ => STATS.misses.count(),
    }
    let value = entry.value().filter(|_| is_served);
    Ok(value.map_or(Reply::Nil, |value| call.ctx.send_value(value)))
}

/// `CACHE.FETCH key LEASE ms [EARLY ms | BETA f] [SLIDE ms] [GUARD filter item] [BLOCK ms]`
///
/// `LEASE`: for how long the caller may rebuild alone, 1 ms to 10 years. `EARLY`: with less fresh time left one caller
/// rebuilds, 0 ms to 10 years; `BETA`: the same at random, with a factor of 0 to 1000. `SLIDE`: a hit keeps the entry fresh for so
/// long again, 1 ms to 10 years. `GUARD`: the filter that knows what there is. `BLOCK`: how long to wait, 0 (without
/// limit) to 10 years. Replies with `[state, value | nil, n]`. Errors: `WRONGTYPE`, of either key.
///
/// The states are those of Facebook's leases: Nishtala et al., "Scaling Memcache at Facebook", NSDI 2013.
fn fetch(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let allowed = LEASE | REFRESH | SLIDE | GUARD | BLOCK;
    let options = OPTIONS.read(&mut cursor, allowed)?.require(LEASE)?;
    let lease = options.number_or(LEASE, 0);
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = open(ctx, &name)?;
    let now = Now::read();
    let found = match edit.look(now.ms()) {
        Look::Fresh(left) => fetch_fresh(call, &mut edit, &options, left, now)?,
        Look::Missing => {
            edit.remove_if_over(now.ms());
            STATS.misses.count();
            if let Some([filter, item]) = options.all_bytes(GUARD)
                && let Some(filter) = call.argument(filter)
                && is_absent(ctx, &filter, item)?
            {
                Found::new(Advice::Absent, false, 0)
            } else {
                rebuild(ctx, ctx.db(), key, Look::Missing, lease, now)
            }
        }
        look => rebuild(ctx, ctx.db(), key, look, lease, now),
    };
    found.count();
    if found.must_wait()
        && let Some(timeout) = options.number(BLOCK)
        && ctx.may_block()
        && serve::wait(ctx, key, lease, timeout, found.n, now.ms())
    {
        return Ok(Reply::Later);
    }
    // Not looked at otherwise: the guard's key was opened meanwhile.
    let entry = if found.shows { edit.entry() } else { None };
    let value = entry.as_deref().and_then(|entry| entry.value());
    Ok(ctx.send_fetched(found.advice.word(), value, found.n))
}

/// A fresh entry is a hit, unless somebody has to rebuild it already.
fn fetch_fresh(
    call: &Call<'_>,
    edit: &mut Edit<'_>,
    options: &CacheOptions<'_>,
    left: u64,
    now: Now,
) -> Result<Found, Error> {
    let (ctx, name) = (call.ctx, call.name(0));
    let entry = edit.entry().ok_or(Error::Internal)?;
    let kind = entry.kind;
    if entry.wants_refresh(options.refresh(), left, random::draw) {
        let (db, key) = (ctx.db(), name.bytes());
        let rebuild = STATE.get().leases.look(db, key, now.ms());
        if rebuild == Rebuild::Free
            && let Some(token) = grant(ctx, db, key, options.number_or(LEASE, 0), now)
        {
            STATS.early.count();
            return Ok(Found::new(Advice::Lease, true, token));
        }
    }
    if let Some(slide) = options.number(SLIDE)
        && kind == Kind::Value
        && is_due_to_slide(slide, left)
    {
        edit.slide(slide, now.ms(), c"cache.fetch");
        return Ok(fresh(kind, slide));
    }
    Ok(fresh(kind, left))
}

/// `CACHE.SET key value PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]`
///
/// `PX`: for how long the value is fresh, 1 ms to 10 years; `JITTER`: give or take up to so many percent of that, 0 to 100.
/// `STALE`: for how long it may be served after that, 0 ms to 10 years. `TOKEN`: of the lease, as `CACHE.FETCH` gave it,
/// 0 to 2^53 - 1. `VER`: 0 to 2^53 - 1. Replies with 1, or 0 if it was not stored. Error: `WRONGTYPE`.
fn set(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    cursor.value()?;
    store(call, &mut cursor, Some(&call.name(1)), c"cache.set")
}

/// `CACHE.SETNULL key PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]`
///
/// Options, reply and error as for `CACHE.SET`.
fn setnull(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    store(call, &mut cursor, None, c"cache.setnull")
}

fn store(
    call: &Call<'_>,
    cursor: &mut Cursor<'_>,
    value: Option<&ServerString<'_>>,
    event: &'static CStr,
) -> Answer {
    let allowed = PX | STALE | JITTER | TOKEN | VER;
    let options = OPTIONS.read(cursor, allowed)?.require(PX)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = open(ctx, &name)?;
    let (now, key) = (Now::read(), (ctx.db(), name.bytes()));
    edit.remove_if_over(now.ms());
    let found = STATE.get().leases.get(key.0, key.1).copied();
    let lease = found.filter(|lease| !lease.failed);
    let claim = match lease {
        _ if !options.has(TOKEN) => Claim::None,
        Some(lease) if options.number(TOKEN) == Some(lease.token) => {
            Claim::Current(now.ms().min(lease.since / 1000))
        }
        _ => Claim::Ended,
    };
    let entry = edit.entry();
    let admitted = admit(entry.as_deref(), claim, options.version());
    if admitted.is_ok() {
        let fresh = options.number_or(PX, 0);
        let terms = Terms {
            fresh: match options.number_or(JITTER, 0) {
                0 => fresh,
                jitter => jittered(fresh, jitter, random::draw()),
            },
            stale: options.number_or(STALE, 0),
            version: options.version(),
        };
        let took = lease.filter(|_| options.has(TOKEN)).map(|lease| {
            let took = now.micros().saturating_sub(lease.since);
            u32::try_from(took.max(1)).unwrap_or(u32::MAX)
        });
        edit.store(value, terms, took, now.ms(), event);
    } else {
        STATS.refused_sets.count();
    }
    // Whoever tried with the current token has no more to do, and a store ends every lease.
    let ends = match admitted {
        Ok(()) => true,
        Err(Refusal::NotCurrent) => false,
        Err(_) => options.has(TOKEN),
    };
    drop(edit);
    if ends {
        if found.is_some() {
            STATE.get().leases.remove(key.0, key.1); // to look for one costs as much as to remove it
        }
        answer_waiters(call, now);
    }
    Ok(Reply::Int(admitted.is_ok().into()))
}

/// Something has happened to the first key that those who wait for it may have waited for.
fn answer_waiters(call: &Call<'_>, now: Now) {
    let key = (call.ctx.db(), call.name(0));
    if STATE.get().queue.waiting(key.0, key.1.bytes()) > 0 {
        serve_waiters(call.ctx, now, &(key.0, key.1.bytes().into()));
    }
}

/// `CACHE.DEL key [STALE ms] [GRACE ms] [VER version]`
///
/// `STALE`: for how long the value may still be served while somebody rebuilds it; `GRACE`: for how long nothing is stored
/// with a token, nor later with one from that time; both 0 ms to 10 years. `VER`: nothing older than it is stored
/// meanwhile, 0 to 2^53 - 1. Replies with 1 if there was an entry, or else 0. Error: `WRONGTYPE`.
fn del(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, STALE | GRACE | VER)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = open(ctx, &name)?;
    let now = Now::read();
    edit.remove_if_over(now.ms());
    let remains = Remains {
        stale: options.number_or(STALE, 0),
        grace: options.number_or(GRACE, 0),
        version: options.version(),
    };
    let existed = edit.invalidate(remains, now.ms(), c"cache.del");
    drop(edit);
    STATE.get().leases.revoke(ctx.db(), name.bytes());
    answer_waiters(call, now);
    Ok(Reply::Int(existed.into()))
}

/// `CACHE.FAIL key token [BACKOFF ms]`
///
/// `token`: of the lease, as `CACHE.FETCH` gave it, 0 to 2^53 - 1. `BACKOFF`: for how long nobody is to try again, 0 ms to 10 years.
/// Replies with 1, or 0 if the lease was not the key's current one. Error: `WRONGTYPE`.
fn fail(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let token = token(&mut cursor, "token")?;
    let options = OPTIONS.read(&mut cursor, BACKOFF)?;
    let backoff = options.number_or(BACKOFF, 0);
    let (ctx, name) = (call.ctx, call.name(0));
    drop(open(ctx, &name)?);
    let now = Now::read();
    let gave_back = give_back(ctx.db(), key, token, backoff, now);
    if gave_back {
        answer_waiters(call, now);
    }
    Ok(Reply::Int(gave_back.into()))
}

fn give_back(db: i32, key: &[u8], token: u64, backoff: u64, now: Now) -> bool {
    let leases = &mut STATE.get().leases;
    let is_current = leases.is_current(db, key, token);
    if is_current && backoff > 0 {
        let most = MAX_LEASES.get() as usize;
        leases.fail(db, key, now.ms() + backoff, now.ms(), most);
    } else if is_current {
        leases.remove(db, key);
    }
    is_current
}

/// `CACHE.INFO key`
///
/// Replies with a map, or nil if nothing is known of the key. `kind` is `value` or `null`, nil while there is none to
/// serve. Error: `WRONGTYPE`.
fn info(call: &Call<'_>) -> Answer {
    let (ctx, name) = (call.ctx, call.name(0));
    let mut slot = TypedKey::of(ctx.open_to_read(&name), &CACHE)?;
    let expires = slot.expires();
    let now = Now::read().ms();
    let db = ctx.db(); // it may open a key, and that run callbacks that want the state
    let state = STATE.get();
    let rebuild = state.leases.look(db, name.bytes(), now);
    let waiters = state.queue.waiting(db, name.bytes()) as u64;
    let entry = slot.value();
    if entry.is_none() && rebuild == Rebuild::Free && waiters == 0 {
        return Ok(Reply::Nil);
    }
    let look = entry
        .as_ref()
        .map_or(Look::Missing, |entry| entry.look(now, || expires));
    let entry = entry.as_deref();
    let shown = entry.filter(|_| look != Look::Missing);
    let kind = shown.map_or(Reply::Nil, |entry| match entry.kind {
        Kind::Value => Reply::Text("value"),
        _ => Reply::Text("null"),
    });
    let (fresh, stale) = match look {
        Look::Fresh(left) => (left, shown.map_or(0, |entry| entry.stale_time(expires))),
        Look::Stale(left) => (0, left),
        Look::Missing => (0, 0),
    };
    let (lease, backoff) = match rebuild {
        Rebuild::Free => (0, 0),
        Rebuild::Out(left) => (left, 0),
        Rebuild::Down(left) => (0, left),
    };
    let grace = entry.and_then(|entry| entry.grace_until(now));
    let version = entry.and_then(|entry| entry.version);
    let rebuild_us = entry.map_or(0, |entry| entry.rebuild_us);
    Ok(Reply::Map(vec![
        ("kind", kind),
        (
            "bytes",
            Reply::int(shown.map_or(0, |entry| entry.bytes.len() as u64)),
        ),
        ("fresh_ms", Reply::int(fresh)),
        (
            "stale_ms",
            Reply::int_or_nil((stale < u64::MAX).then_some(stale.min(MAX_SAFE as u64))),
        ),
        ("ver", Reply::int_or_nil(version.map(Version::number))),
        ("lease_ms", Reply::int(lease)),
        ("waiters", Reply::int(waiters)),
        (
            "rebuild_ms",
            Reply::int(u64::from(rebuild_us).div_ceil(1000)),
        ),
        ("backoff_ms", Reply::int(backoff)),
        ("grace_ms", Reply::int(grace.map_or(0, |until| until - now))),
    ]))
}

/// `CACHE.APPLY key effect [value]`: makes an entry what a master says it is. See [`super::persist`].
fn apply_effect(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let effect = cursor.value()?;
    let value = cursor.next();
    cursor.end()?;
    let (ctx, name) = (call.ctx, call.name(0));
    Edit::open(ctx, &name)?.apply(effect, value)?;
    changed(ctx.db(), key);
    Ok(Reply::Ok)
}
