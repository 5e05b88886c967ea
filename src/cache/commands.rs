//! The commands of the family: each reads its request, takes a step and replies.

use super::breaker::BreakerState;
use super::budget;
use super::edit::{EntryEdit, EntryKey, EntryRead};
use super::guard::{check_permission, is_absent};
use super::lease::{Lease, LeaseStatus};
use super::native::CACHE;
use super::options::{
    BACKOFF, BLOCK, BREAKER, CacheOptions, GRACE, GUARD, JITTER, LEASE, OPTIONS, PX, REFRESH,
    RESET, SLIDE, STALE, TOKEN, VER, breaker_name,
};
use super::rebuilds::WaitingFetch;
use super::revoke::{key_has_changed, revoke};
use super::serve::{CacheQueues, count_reply, offer_lease};
use super::state::{EntryKind, EntryVersion, Freshness, Invalidation, is_due_to_slide};
use super::step::{FetchReply, FetchRequest, StoreRequest, decide_fetch, decide_store};
use super::{COUNTERS, HOLD_TIMES, HOT, MAX_BREAKERS, MAX_LEASES, STATE};
use crate::error::Error;
use crate::options::Options;
use crate::queue_service;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE};
use crate::server::base::clock::Now;
use crate::server::base::random;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedReadKey;
use crate::server::handles::string::ServerString;
use crate::server::hooks::deletions;
use crate::server::services::{cluster, scripts, writes};
use std::ffi::CStr;

/// A token. All tokens of leases are in this range.
fn token(cursor: &mut Cursor<'_>, argument: &'static str) -> Result<u64, Error> {
    cursor.uint(argument, 0..=MAX_SAFE)
}

/// Opens a key. A key of another type has changed since its lease was granted, so its lease is revoked.
#[inline(always)] // the result is large: it stays where it is used
fn open<'k>(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<EntryEdit<'k>, Error> {
    match EntryEdit::open(ctx, name) {
        Ok(edit) => Ok(edit),
        Err(error) => {
            key_has_changed(ctx.db(), name.bytes());
            Err(error)
        }
    }
}

/// The same, to read the key.
#[inline(always)] // the result is large: it stays where it is used
fn open_to_read<'k>(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<EntryRead<'k>, Error> {
    let key = EntryRead::of(ctx.open_to_read(name), &CACHE);
    key.inspect_err(|_| key_has_changed(ctx.db(), name.bytes()))
}

/// `CACHE.GET key`
///
/// Replies with the value, fresh or stale. The reply is nil if there is no value or a negative entry. Error: `WRONGTYPE`.
pub(super) fn get(call: &Call<'_>) -> Answer {
    let name = call.name(0);
    let mut key = TypedReadKey::of(call.ctx.open_to_read(&name), &CACHE)?;
    let entry = key.value();
    budget::key_is_read(&name, entry.as_deref());
    let Some(entry) = entry else {
        COUNTERS.misses.count();
        return Ok(Reply::Nil);
    };
    // An entry may be served as long as its key exists, unless an invalidation has set an earlier time.
    let is_served =
        entry.grace.is_none() || entry.freshness(Now::read().ms(), || None) != Freshness::Missing;
    match (is_served, entry.kind()) {
        (true, EntryKind::Value) => COUNTERS.hits.count(),
        (true, EntryKind::Negative) => COUNTERS.nulls.count(),
        _ => COUNTERS.misses.count(),
    }
    let value = entry.value().filter(|_| is_served);
    Ok(value.map_or(Reply::Nil, |value| call.ctx.send_value(value)))
}

/// `CACHE.FETCH key LEASE ms [EARLY ms | BETA f] [SLIDE ms] [GUARD filter item] [BREAKER name failures open-ms] [BLOCK ms]`
///
/// It reads. `SLIDE` alone writes, where the server accepts a command that writes. A replica grants no leases.
///
/// `LEASE`: how long only this client may rebuild the entry, 1 ms to 10 years. `EARLY`: one client rebuilds the entry when
/// less fresh time is left, 0 ms to 10 years. `BETA`: the same at random, with a factor of 0 to 1000. `SLIDE`: a hit keeps the
/// entry fresh for this time again, 1 ms to 10 years. `GUARD`: a filter that contains all items of the source. `BREAKER`: the
/// name of the data source that the loader queries, 1 to 128 bytes; after this many failures in a row, 1 to 1000000, no lease is
/// granted for this time, 1 ms to 1 day. `BLOCK`: how long the client waits, 0 (without limit) to 10 years. Replies with
/// `[state, value | nil, n]`. Errors: `WRONGTYPE`, of either key.
///
/// The states are those of Facebook's leases: Nishtala et al., "Scaling Memcache at Facebook", NSDI 2013.
pub(super) fn fetch(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let allowed = LEASE | REFRESH | SLIDE | GUARD | BREAKER | BLOCK;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, allowed)?;
    options.check(LEASE)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = open_to_read(ctx, &name)?;
    let now = Now::read();
    let freshness = edit.freshness(now.ms());
    // A hit, the common case, depends neither on other options nor on the role of the server.
    if let Freshness::Fresh(left) = freshness
        && !options.has(REFRESH | SLIDE)
        && let Some(entry) = edit.entry()
    {
        let reply = FetchReply::fresh(entry.kind(), left);
        count_reply(reply);
        budget::key_is_read(&name, Some(entry));
        return Ok(ctx.send_fetched(reply.state.word(), entry.value(), reply.n));
    }
    let mut request = FetchRequest {
        lease_ms: options.number_or(LEASE, 0),
        refresh: options.refresh(),
        slide_ms: options.number_or(SLIDE, 0),
        is_absent: false,
        is_replica: ctx.is_replica(),
    };
    if freshness == Freshness::Missing {
        edit = remove_expired(ctx, &name, edit, now)?;
        COUNTERS.misses.count();
        (edit, request.is_absent) = query_guard(call, &options, &name, edit)?;
    }
    if let Freshness::Fresh(left) = freshness
        && request.slide_ms > 0
        && is_due_to_slide(request.slide_ms, left)
        && !may_slide(ctx, &name)
    {
        request.slide_ms = 0;
    }
    let breaker = options.breaker();
    let offer = || offer_lease(ctx, name.bytes(), request.lease_ms, breaker, now);
    let entry = edit.entry();
    let step = decide_fetch(entry.as_deref(), freshness, &request, random::draw, offer);
    if step.is_early {
        COUNTERS.early.count();
    }
    let reply = step.reply;
    count_reply(reply);
    if reply.must_wait() {
        if block_client(ctx, &name, &options, reply, now) {
            return Ok(Reply::Later);
        }
        HOT.count_refusal(ctx, &name);
    }
    if step.slides {
        // Before the reply: after an error or a panic the client gets that, and nothing else.
        drop(edit);
        EntryEdit::open(ctx, &name)?.slide(request.slide_ms, now.ms(), c"cache.fetch");
        edit = open_to_read(ctx, &name)?;
    }
    let entry = if reply.has_value { edit.entry() } else { None };
    if reply.is_read() {
        budget::key_is_read(&name, entry.as_deref());
    }
    let value = entry.as_deref().and_then(|entry| entry.value());
    Ok(ctx.send_fetched(reply.state.word(), value, reply.n))
}

/// Removes the entry if it has expired. Returns the opened key.
fn remove_expired<'k>(
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    mut edit: EntryRead<'k>,
    now: Now,
) -> Result<EntryRead<'k>, Error> {
    if !edit.is_expired(now.ms()) || !ctx.may_decide() {
        return Ok(edit);
    }
    drop(edit);
    open(ctx, name)?.remove_if_expired(now.ms());
    open_to_read(ctx, name)
}

/// Queries the filter of `GUARD`, if there is one. Returns the opened key, and whether the source has no value.
fn query_guard<'k>(
    call: &Call<'k>,
    options: &CacheOptions<'_>,
    name: &'k ServerString<'k>,
    mut edit: EntryRead<'k>,
) -> Result<(EntryRead<'k>, bool), Error> {
    let guard = options.all_bytes(GUARD);
    let guard = guard.and_then(|[filter, item]| Some((call.argument(filter)?, item)));
    let Some((filter, item)) = guard else {
        return Ok((edit, false));
    };
    check_permission(call.ctx, options.breaker(), &filter)?;
    if edit.entry().is_none() {
        let is_absent = is_absent(call.ctx, &filter, item)?;
        return Ok((edit, is_absent));
    }
    // A tombstone, or an entry that a replica does not remove. A listener to the `keymiss` of a filter that does not exist may
    // remove it.
    drop(edit);
    let is_absent = is_absent(call.ctx, &filter, item)?;
    Ok((open_to_read(call.ctx, name)?, is_absent))
}

/// Blocks the client if the request has `BLOCK` and the server permits it. Returns whether the client is blocked.
fn block_client(
    ctx: Ctx<'_>,
    name: &ServerString<'_>,
    options: &CacheOptions<'_>,
    reply: FetchReply,
    now: Now,
) -> bool {
    let Some(block_ms) = options.number(BLOCK).filter(|_| ctx.may_block()) else {
        return false;
    };
    let waiting = WaitingFetch {
        lease_ms: options.number_or(LEASE, 0),
        breaker: options.breaker().map(Into::into),
    };
    queue_service::wait::<CacheQueues>(ctx, name.bytes(), waiting, block_ms, reply.n, now)
}

/// Whether the server would accept a command that writes this entry now.
fn may_slide(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    ctx.may_decide()
        && writes::are_accepted(ctx, name)
        && (!ctx.is_script() || may_script_slide(ctx))
}

#[cold]
fn may_script_slide(ctx: Ctx<'_>) -> bool {
    let may_slide = scripts::may_script_write(ctx);
    deletions::watch_removals(ctx); // notes the kinds of the next scripts
    may_slide
}

/// `CACHE.SET key value PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]`
///
/// `PX`: how long the value is fresh, 1 ms to 10 years. `JITTER`: by how many percent that time varies, 0 to 100. `STALE`: how
/// long the value may be served stale after that, 0 ms to 10 years. `TOKEN`: the token of a lease of `CACHE.FETCH`, 0 to
/// 2^53 - 1. `VER`: 0 to 2^53 - 1. Replies with 1, or with 0 if the value was not stored. Error: `WRONGTYPE`.
pub(super) fn set(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    cursor.value()?;
    store(call, &mut cursor, Some(&call.name(1)), c"cache.set")
}

/// `CACHE.SETNULL key PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]`
///
/// Options, reply and error are those of `CACHE.SET`.
pub(super) fn setnull(call: &Call<'_>) -> Answer {
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
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, cursor, allowed)?;
    options.check(PX)?;
    let (ctx, name) = (call.ctx, call.name(0));
    if options.number(TOKEN).is_some() {
        cluster::notice_possible_moves(ctx);
    }
    let mut edit = open(ctx, &name)?;
    let (now, db) = (Now::read(), ctx.db());
    budget::check_size(ctx, name.bytes(), value)?;
    edit.remove_if_expired(now.ms());
    let request = StoreRequest {
        kind: match value {
            Some(_) => EntryKind::Value,
            None => EntryKind::Negative,
        },
        fresh_ms: options.number_or(PX, 0),
        stale_ms: options.number_or(STALE, 0),
        jitter_percent: options.number_or(JITTER, 0),
        token: options.number(TOKEN),
        version: options.version(),
    };
    let current_lease = || STATE.get().rebuilds.leases.get(db, name.bytes()).copied();
    let decide = |edit: &mut EntryEdit<'_>, lease: Option<&Lease>| {
        let entry = edit.entry();
        decide_store(
            entry.as_deref(),
            lease,
            &request,
            now.micros(),
            random::draw,
        )
    };
    let mut lease = current_lease();
    if let Some(lease) = &lease
        && !lease.is_backoff
        && request.token == Some(lease.token)
    {
        let rebuilds = &mut STATE.get().rebuilds;
        rebuilds.succeeded(db, name.bytes(), lease, now.ms());
        HOLD_TIMES.count_between(lease.since, now.micros());
    }
    let mut step = decide(&mut edit, lease.as_ref());
    let entry = edit.entry().filter(|_| step.admitted.is_ok());
    if step.admitted.is_ok()
        && let Some(more) = budget::bytes_without_room(name.bytes(), value, entry.as_deref())
    {
        let replaced = entry.and_then(|entry| entry.tag.position());
        drop(edit); // another key is opened
        budget::make_room(ctx, name.bytes(), replaced, more);
        edit = open(ctx, &name)?;
        // A listener to the expiry of the other key may have invalidated the entry.
        lease = current_lease();
        step = decide(&mut edit, lease.as_ref());
    }
    match &step.admitted {
        Ok(new) => edit.store(new, value, now.ms(), event),
        Err(_) => COUNTERS.refused_sets.count(),
    }
    drop(edit);
    if step.ends_lease {
        if lease.is_some() {
            let rebuilds = &mut STATE.get().rebuilds;
            rebuilds.remove(db, name.bytes(), now.ms()); // no effect if the store has already ended the lease
        }
        serve_first_key(call, now);
    }
    Ok(Reply::Int(step.admitted.is_ok().into()))
}

/// Serves the clients that wait for the first key.
fn serve_first_key(call: &Call<'_>, now: Now) {
    queue_service::serve_name::<CacheQueues>(call.ctx, now, &call.name(0));
}

/// `CACHE.DEL key [STALE ms] [GRACE ms] [VER version]`
///
/// `STALE`: how long the value may be served stale while a client rebuilds it. `GRACE`: for this time nothing is stored with
/// a token, nor later with a token of this time. Both are 0 ms to 10 years. `VER`: the lowest version that is stored
/// meanwhile, 0 to 2^53 - 1. Replies with 1 if there was an entry, otherwise with 0. Error: `WRONGTYPE`.
pub(super) fn del(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS.read(&mut cursor, STALE | GRACE | VER)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = open(ctx, &name)?;
    let now = Now::read();
    edit.remove_if_expired(now.ms());
    let request = Invalidation {
        stale_ms: options.number_or(STALE, 0),
        grace_ms: options.number_or(GRACE, 0),
        version: options.version(),
    };
    let existed = edit.invalidate(&request, now.ms(), c"cache.del");
    drop(edit);
    let db = ctx.db();
    revoke(db, name.bytes());
    serve_first_key(call, now);
    Ok(Reply::Int(existed.into()))
}

/// `CACHE.FAIL key token [BACKOFF ms]`
///
/// `token`: the token of a lease of `CACHE.FETCH`, 0 to 2^53 - 1. `BACKOFF`: how long no client rebuilds the entry, 0 ms to
/// 10 years. Replies with 1, or with 0 if the lease is not the key's current lease. Error: `WRONGTYPE`.
pub(super) fn fail(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let token = token(&mut cursor, "token")?;
    let options = OPTIONS.read(&mut cursor, BACKOFF)?;
    let backoff_ms = options.number_or(BACKOFF, 0);
    let (ctx, name) = (call.ctx, call.name(0));
    drop(open_to_read(ctx, &name)?);
    if ctx.is_replica() {
        return Ok(Reply::Int(0));
    }
    let (now, db) = (Now::read(), ctx.db());
    let max_leases = MAX_LEASES.get() as usize;
    let (since_us, was_current) = {
        let rebuilds = &mut STATE.get().rebuilds;
        let since_us = rebuilds.leases.get(db, key).map(|lease| lease.since);
        let was_current = rebuilds.fail((db, key), token, backoff_ms, now.ms(), max_leases);
        (since_us, was_current)
    };
    if was_current {
        HOLD_TIMES.count_between(since_us.unwrap_or(u64::MAX), now.micros());
        serve_first_key(call, now);
    }
    Ok(Reply::Int(was_current.into()))
}

/// `CACHE.BREAKER name [RESET]`
///
/// Replies with a map, or with nil if the breaker is not known. With `RESET`, closes the breaker and replies with 1, or with 0.
pub(super) fn breaker(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let name = breaker_name(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, RESET)?;
    let now = Now::read().ms();
    let rebuilds = &mut STATE.get().rebuilds;
    rebuilds.count_timeouts(now);
    let has_names = MAX_BREAKERS.get() > 0; // otherwise breakers have no effect
    if options.has(RESET) {
        let is_known = has_names && rebuilds.breakers.reset(name);
        return Ok(Reply::Int(is_known.into()));
    }
    let Some(breaker) = rebuilds.breakers.get(name).filter(|_| has_names) else {
        return Ok(Reply::Nil);
    };
    let state = match breaker.state(now) {
        BreakerState::Closed => "closed",
        BreakerState::Open(_) => "open",
        BreakerState::HalfOpen => "half-open",
    };
    let retry_ms = rebuilds.breaker_delay(name, None, now);
    Ok(Reply::Map(vec![
        ("state", Reply::Text(state)),
        ("failures", Reply::int(breaker.failures)),
        ("retry_ms", Reply::int(retry_ms)),
        ("trips", Reply::int(breaker.trips)),
    ]))
}

/// `CACHE.INFO key`
///
/// Replies with a map. The reply is nil if there is no entry, lease, backoff or waiting client. `kind` is `value` or `null`,
/// and nil if there is no entry to serve. Error: `WRONGTYPE`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    let (ctx, name) = (call.ctx, call.name(0));
    let mut key = TypedReadKey::of(ctx.open_to_read(&name), &CACHE)?;
    let expires = key.expires();
    let now = Now::read().ms();
    let db = ctx.db(); // may open a key, whose callbacks borrow the state
    let rebuilds = &STATE.get().rebuilds;
    let lease = rebuilds.leases.status(db, name.bytes(), now);
    let waiters = rebuilds.queue.waiting(db, name.bytes()) as u64;
    let entry = key.value();
    if entry.is_none() && lease == LeaseStatus::Free && waiters == 0 {
        return Ok(Reply::Nil);
    }
    let freshness = entry
        .as_ref()
        .map_or(Freshness::Missing, |entry| entry.freshness(now, || expires));
    let entry = entry.as_deref();
    let shown = entry.filter(|_| freshness != Freshness::Missing);
    let kind = shown.map_or(Reply::Nil, |entry| match entry.kind() {
        EntryKind::Value => Reply::Text("value"),
        _ => Reply::Text("null"),
    });
    let (fresh, stale) = match freshness {
        Freshness::Fresh(left) => (left, shown.map_or(0, |entry| entry.stale_time(expires))),
        Freshness::Stale(left) => (0, left),
        Freshness::Missing => (0, 0),
    };
    let (lease, backoff) = match lease {
        LeaseStatus::Free => (0, 0),
        LeaseStatus::Leased(left) => (left, 0),
        LeaseStatus::BackingOff(left) => (0, left),
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
        ("ver", Reply::int_or_nil(version.map(EntryVersion::number))),
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

/// `CACHE.APPLY key effect [value]`: applies an effect that a master has sent. See [`super::persist`].
pub(super) fn apply_effect(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let effect = cursor.value()?;
    let value = cursor.next();
    cursor.end()?;
    let (ctx, name) = (call.ctx, call.name(0));
    EntryEdit::open(ctx, &name)?.apply(effect, value)?;
    key_has_changed(ctx.db(), key);
    Ok(Reply::Ok)
}
