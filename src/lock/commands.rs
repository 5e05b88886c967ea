//! The commands that change locks: each reads its request, takes its step and answers.

use super::blocking::{answer_or_wait, count_refusal, wait};
use super::edit::{LockKey, OpenKeys, with_open_keys};
use super::handover::{Outcome, acquire_all, acquire_one};
use super::options::{
    ALL, BLOCK, ID, LIMIT, LockOptions, NOTIFY, OPTIONS, PERMITS, PX, RENEWAL, SHARED, owner,
};
use super::queue::{LockWaiter, Want};
use super::search::plan_rechecks;
use super::slices::serve;
use super::state::{Acquire, LockKind, Released, RequestedMode, Upgraded};
use super::world::ServerClients;
use super::{HOT, LockService, MAX_REQUEST_ID_BYTES, SERVICE};
use crate::error::Error;
use crate::options::{OptionSet, Options};
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred;
use std::ffi::CStr;

/// `LOCK.ACQUIRE key owner [SHARED] [PX ms] [BLOCK ms] [WATCHDOG [MAXHOLD ms] [LINGER]] [ID request-id] [NOTIFY channel]`
///
/// `owner`: 1 to 1024 bytes. `PX`: the lease, 1 ms to 10 years, default `lock-default-lease`.
/// `BLOCK`: the longest wait, 0 (without limit) to 10 years. `ID`: 1 to 128 bytes.
/// Replies with the fence, or nil if others hold the lock. Errors: `WRONGTYPE`, `DEADLOCK`,
/// `ERR too many waiting clients`, `NOPERM` for the channel.
///
/// Why a lock with a lease needs a fence: Kleppmann, "How to do distributed locking", 2016.
pub(super) fn acquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let owner = owner(&mut cursor)?;
    let mut options = Options::NONE;
    let allowed = SHARED | PX | BLOCK | RENEWAL | ID | NOTIFY;
    OPTIONS.read_into(&mut options, &mut cursor, allowed)?;
    let mode = if options.has(SHARED) {
        RequestedMode::Shared
    } else {
        RequestedMode::Exclusive
    };
    acquire_key(call, owner, &options, mode, LockKind::Lock, c"lock.acquire")
}

/// `SEM.ACQUIRE key owner LIMIT n [PERMITS k] [PX ms] [BLOCK ms] [WATCHDOG [MAXHOLD ms] [LINGER]] [ID request-id] [NOTIFY channel]`
///
/// `LIMIT`: how many permits may be held together, 1 to 2^53 - 1. `PERMITS`: 1 to `LIMIT`, default 1. The others, the reply
/// and the errors as for `LOCK.ACQUIRE`.
pub(super) fn sem_acquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let allowed = LIMIT | PERMITS | PX | BLOCK | RENEWAL | ID | NOTIFY;
    let options = OPTIONS.read(&mut cursor, allowed)?.require(LIMIT)?;
    let (count, limit) = (options.permits(), options.number_or(LIMIT, 0));
    check_permits(count, limit)?;
    let mode = RequestedMode::Permits { count, limit };
    acquire_key(
        call,
        owner,
        &options,
        mode,
        LockKind::Semaphore,
        c"sem.acquire",
    )
}

fn acquire_key(
    call: &Call<'_>,
    owner: &[u8],
    options: &LockOptions<'_>,
    mode: RequestedMode,
    kind: LockKind,
    event: &'static CStr,
) -> Answer {
    let (ctx, name) = (call.ctx, call.name(0));
    options.check_channel(ctx)?;
    let mut lock_key = TypedKey::of(ctx.open(&name), kind.native())?;
    let now = Now::read();
    if !options.has(BLOCK)
        && lock_key
            .value()
            .is_some_and(|lock| lock.plainly_refuses(owner, now.ms()))
    {
        SERVICE.get().handover.counters.refused += 1;
        HOT.count_refusal(ctx, &name);
        return Ok(Reply::Nil);
    }
    let acquire = |key: &mut LockKey<'_>, service: &mut LockService| {
        let request = options.request(ctx, &service.handover, &name, owner, mode);
        let LockService {
            handover, steps, ..
        } = service;
        let mut locks = OpenKeys::one(key, steps);
        acquire_one(
            &mut locks,
            &mut handover.counters,
            &request,
            &mut Vec::new(),
        )
    };
    let outcome = LockKey::with_open(ctx, &name, lock_key, kind, now, event, acquire)?;
    if !matches!(outcome, Outcome::Acquired(_)) {
        count_refusal(ctx, &outcome, options, [&name]);
    }
    let waiter = || options.waiter(ctx, now, &[(name, mode)], owner, event);
    answer_or_wait(ctx, now, outcome, options, waiter)
}

/// `LOCK.MACQUIRE numkeys key [key ...] owner [PX ms] [BLOCK ms] [WATCHDOG [MAXHOLD ms] [LINGER]] [ID request-id] [NOTIFY channel]`
///
/// All keys are different and in one hash slot. Replies with an array of fences, one for each key, or
/// nil; the options and errors are those of `LOCK.ACQUIRE`.
pub(super) fn macquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let count = cursor.keys()?.len();
    let owner = owner(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, PX | BLOCK | RENEWAL | ID | NOTIFY)?;
    let wanted: Vec<_> = (1..=count)
        .map(|index| (call.name(index), RequestedMode::Exclusive))
        .collect();
    acquire_keys(
        call,
        owner,
        &options,
        &wanted,
        LockKind::Lock,
        c"lock.macquire",
    )
}

/// `SEM.MACQUIRE numkeys key limit [key limit ...] owner [PERMITS k] [PX ms] [BLOCK ms] [WATCHDOG [MAXHOLD ms] [LINGER]] [ID request-id] [NOTIFY channel]`
///
/// `limit`: how many permits of the semaphore at the key before it may be held together, 1 to 2^53 - 1. `PERMITS`: how many permits of each
/// semaphore, 1 to the smallest `limit`, default 1. All keys are different and in one hash slot. Replies with an array of
/// fences, one for each key, or nil; the other options and errors are those of `SEM.ACQUIRE`.
pub(super) fn sem_macquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let limits: Vec<u64> = cursor
        .pairs()?
        .map(|limit| Cursor::new(&[limit]).uint("limit", 1..=MAX_SAFE))
        .collect::<Result<_, _>>()?;
    let owner = owner(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, PERMITS | PX | BLOCK | RENEWAL | ID | NOTIFY)?;
    let count = options.permits();
    let most = limits.iter().copied().min().unwrap_or(1);
    check_permits(count, most)?;
    let wanted: Vec<_> = limits
        .into_iter()
        .enumerate()
        .map(|(index, limit)| {
            let mode = RequestedMode::Permits { count, limit };
            (call.name(1 + 2 * index), mode)
        })
        .collect();
    acquire_keys(
        call,
        owner,
        &options,
        &wanted,
        LockKind::Semaphore,
        c"sem.macquire",
    )
}

/// Acquires all or none of several keys, each in a mode.
fn acquire_keys<'c>(
    call: &Call<'c>,
    owner: &[u8],
    options: &LockOptions<'_>,
    wanted: &[(ServerString<'c>, RequestedMode)],
    kind: LockKind,
    event: &'static CStr,
) -> Answer {
    let (ctx, now) = (call.ctx, Now::read());
    options.check_channel(ctx)?;
    let names = wanted.iter().map(|(name, _)| name);
    let outcome = with_open_keys(ctx, now, names, kind, event, |handover, locks| {
        let requests = wanted
            .iter()
            .map(|(name, mode)| options.request(ctx, handover, name, owner, *mode));
        let requests: Vec<Acquire<'_>> = requests.collect();
        acquire_all(locks, &mut handover.counters, &requests, &mut Vec::new())
    });
    let outcome = outcome??;
    if !matches!(outcome, Outcome::Acquired(_)) {
        let keys = wanted.iter().map(|(name, _)| name);
        count_refusal(ctx, &outcome, options, keys);
    }
    let waiter = || LockWaiter {
        takes_many: true,
        ..options.waiter(ctx, now, wanted, owner, event)
    };
    answer_or_wait(ctx, now, outcome, options, waiter)
}

fn check_permits(count: u64, limit: u64) -> Result<(), Error> {
    if count <= limit {
        return Ok(());
    }
    Err(Error::OutOfRange {
        argument: "PERMITS",
        min: 1,
        max: limit as i64,
    })
}

/// `LOCK.RELEASE key owner [ALL] [ID request-id]`
///
/// Replies with the holds that the owner has left (0: gone), nil if it holds nothing. Error:
/// `WRONGTYPE`.
pub(super) fn release(call: &Call<'_>) -> Answer {
    release_key(call, ALL | ID, LockKind::Lock, c"lock.release")
}

/// `SEM.RELEASE key owner [PERMITS k | ALL] [ID request-id]`
///
/// `PERMITS`: 1 to what the owner has, default 1. Replies with the permits that the owner has left,
/// nil if it has none. Error: `WRONGTYPE`.
pub(super) fn sem_release(call: &Call<'_>) -> Answer {
    release_key(
        call,
        PERMITS | ALL | ID,
        LockKind::Semaphore,
        c"sem.release",
    )
}

fn release_key(
    call: &Call<'_>,
    allowed: OptionSet,
    kind: LockKind,
    event: &'static CStr,
) -> Answer {
    let mut cursor = call.cursor();
    let owner = owner(&mut cursor)?;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, allowed)?;
    let amount = options.amount();
    let (ctx, names) = (call.ctx, [call.name(0)]);
    let now = if ctx.is_replay() {
        Now::BEFORE_ALL
    } else {
        Now::read()
    };
    let released = LockKey::with(ctx, &names[0], kind, now, event, |key, service| {
        key.replicate_verbatim();
        key.release(&mut service.steps, owner, amount, options.id())
    })?;
    if now != Now::BEFORE_ALL {
        serve_queues(ctx, now, &names);
    }
    released_reply(released)
}

/// `LOCK.MRELEASE numkeys key [key ...] owner [ALL] [ID request-id]`
///
/// Replies with an array: for each key the holds that the owner has left, or nil. Error:
/// `WRONGTYPE`, and then nothing is released.
pub(super) fn mrelease(call: &Call<'_>) -> Answer {
    release_keys(call, ALL | ID, LockKind::Lock, c"lock.mrelease")
}

/// `SEM.MRELEASE numkeys key [key ...] owner [PERMITS k | ALL] [ID request-id]`
///
/// `PERMITS`: 1 to what the owner has of each semaphore of which it has any, default 1. Replies with an array: for each key
/// the permits that the owner has left, or nil. Error: `WRONGTYPE`. After an error nothing is released.
pub(super) fn sem_mrelease(call: &Call<'_>) -> Answer {
    release_keys(
        call,
        PERMITS | ALL | ID,
        LockKind::Semaphore,
        c"sem.mrelease",
    )
}

fn release_keys(
    call: &Call<'_>,
    allowed: OptionSet,
    kind: LockKind,
    event: &'static CStr,
) -> Answer {
    let mut cursor = call.cursor();
    let count = cursor.keys()?.len();
    let owner = owner(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, allowed)?;
    let (amount, id) = (options.amount(), options.id());
    let names: Vec<ServerString<'_>> = (1..=count).map(|index| call.name(index)).collect();
    let (ctx, now) = (call.ctx, Now::read());
    for name in &names {
        // All keys are checked before anything changes.
        let mut key = TypedKey::of(ctx.open(name), kind.native())?;
        if let Some(lock) = key.value()
            && lock.held_by(owner, now.ms()).is_some()
        {
            released_reply(lock.releases(owner, amount, id))?;
        }
    }
    let mut replies = Vec::with_capacity(count);
    for name in &names {
        let released = LockKey::with(ctx, name, kind, now, event, |key, service| {
            key.release(&mut service.steps, owner, amount, id)
        })?;
        replies.push(released_reply(released)?);
    }
    serve_queues(ctx, now, &names);
    Ok(Reply::Array(replies))
}

/// `LOCK.CANCEL key request-id`
///
/// Returns 1 if any request with this id waited, else 0. Error: `WRONGTYPE`.
pub(super) fn cancel(call: &Call<'_>) -> Answer {
    cancel_requests(call, LockKind::Lock)
}

/// `SEM.CANCEL key request-id`: as `LOCK.CANCEL`.
pub(super) fn sem_cancel(call: &Call<'_>) -> Answer {
    cancel_requests(call, LockKind::Semaphore)
}

fn cancel_requests(call: &Call<'_>, kind: LockKind) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let id = cursor.name("request-id", MAX_REQUEST_ID_BYTES)?;
    let (ctx, now, name) = (call.ctx, Now::read(), call.name(0));
    TypedKey::of(ctx.open(&name), kind.native())?;
    let key = (ctx.db(), name.bytes().into());
    let mut changed = Vec::new();
    let mut service = SERVICE.get();
    while let Some(waiter) = service.handover.cancel(&mut ServerClients, &key, kind, id) {
        changed.extend(waiter.keys.iter().cloned());
    }
    drop(service);
    let has_cancelled = !changed.is_empty();
    serve(ctx, now, changed);
    Ok(Reply::int(has_cancelled.into()))
}

fn released_reply(released: Released) -> Answer {
    match released {
        Released::NotHeld => Ok(Reply::Nil),
        Released::Left(left) | Released::Repeated(left) => Ok(Reply::int(left)),
        Released::TooMany(most) => Err(Error::OutOfRange {
            argument: "PERMITS",
            min: 1,
            max: most as i64,
        }),
    }
}

/// Looks at the queues of keys that a command has changed.
#[inline(always)]
fn serve_queues(ctx: Ctx<'_>, now: Now, names: &[ServerString<'_>]) {
    if !SERVICE.get().handover.queues.is_empty() {
        serve_queues_of(ctx, now, names);
    }
}

#[inline(never)]
fn serve_queues_of(ctx: Ctx<'_>, now: Now, names: &[ServerString<'_>]) {
    let db = ctx.db();
    let keys = names.iter().map(|name| (db, name.bytes().into()));
    serve(ctx, now, keys);
}

/// `LOCK.RENEW key owner [PX ms]`
///
/// `PX`: the lease from now on, 1 ms to 10 years, default `lock-default-lease`. Replies with the
/// fence, nil if the owner holds nothing. Error: `WRONGTYPE`.
pub(super) fn renew(call: &Call<'_>) -> Answer {
    renew_hold(call, LockKind::Lock, c"lock.renew")
}

/// `SEM.RENEW key owner [PX ms]`: as `LOCK.RENEW`.
pub(super) fn sem_renew(call: &Call<'_>) -> Answer {
    renew_hold(call, LockKind::Semaphore, c"sem.renew")
}

fn renew_hold(call: &Call<'_>, kind: LockKind, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    let owner = owner(&mut cursor)?;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, PX)?;
    let (ctx, now, names) = (call.ctx, Now::read(), [call.name(0)]);
    let fence = LockKey::with(ctx, &names[0], kind, now, event, |key, service| {
        let fence = key.renew(&mut service.steps, owner, options.lease());
        service.handover.counters.renewed += u64::from(fence.is_some());
        fence
    })?;
    if fence.is_some() {
        serve_queues(ctx, now, &names); // a shorter lease is to be looked at sooner
    }
    Ok(Reply::int_or_nil(fence))
}

/// `LOCK.UPGRADE key owner [PX ms] [BLOCK ms]`
///
/// `PX`: the lease becomes the later of the old one and this, default `lock-default-lease`.
/// `BLOCK` as for `LOCK.ACQUIRE`. Replies with the new fence (the old one if it was exclusive), nil
/// if the owner holds nothing or others share the lock. Errors: `WRONGTYPE`, `DEADLOCK` (two
/// upgrades of one lock would wait for each other), `ERR too many waiting clients`.
pub(super) fn upgrade(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, PX | BLOCK)?;
    let (ctx, now, name) = (call.ctx, Now::read(), call.name(0));
    let (kind, event) = (LockKind::Lock, c"lock.upgrade");
    let upgraded = LockKey::with(ctx, &name, kind, now, event, |key, service| {
        let upgraded = key.upgrade(owner, options.lease());
        if matches!(upgraded, Ok(Upgraded::Upgraded(_))) {
            service
                .handover
                .queues
                .record_upgrade(ctx.db(), name.bytes(), owner);
            plan_rechecks(ctx, service, now);
        }
        upgraded
    })?;
    match upgraded? {
        Upgraded::Already(fence) | Upgraded::Upgraded(fence) => return Ok(Reply::int(fence)),
        Upgraded::Busy if options.has(BLOCK) && ctx.may_block() => {}
        Upgraded::Busy => {
            SERVICE.get().handover.counters.refused += 1;
            HOT.count_refusal(ctx, &name);
            return Ok(Reply::Nil);
        }
        Upgraded::NotHeld => return Ok(Reply::Nil),
    }
    let waiter = LockWaiter {
        keys: vec![(ctx.db(), name.bytes().into())],
        limits: Box::default(),
        owner: owner.into(),
        want: Want::Upgrade,
        lease: options.lease(),
        id: None,
        watch: None,
        listener: None,
        takes_many: false,
        event,
        since: now.ms(),
        since_us: now.micros(),
        timeout: options.number_or(BLOCK, 0),
    };
    wait(ctx, now, waiter)
}

/// `LOCK.DOWNGRADE key owner`
///
/// Replies with the fence, unchanged; nil if the owner holds nothing. Error: `WRONGTYPE`.
pub(super) fn downgrade(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let (ctx, now, names) = (call.ctx, Now::read(), [call.name(0)]);
    let (kind, event) = (LockKind::Lock, c"lock.downgrade");
    let fence = LockKey::with(ctx, &names[0], kind, now, event, |key, _| {
        key.downgrade(owner)
    })?;
    serve_queues(ctx, now, &names);
    let key = names[0].bytes();
    if fence.is_some() && SERVICE.get().handover.begins_to_share(ctx.db(), key, owner) {
        deferred::ask_for_slices_and_wake();
    }
    Ok(Reply::int_or_nil(fence))
}
