//! The commands of the family: each reads its request, takes its step and answers.

use super::deadlock::{self, Check};
use super::edit::Edit;
use super::holds::Hold;
use super::native::{Kind, list_earlier};
use super::persist::{self, Effect};
use super::queue::{Waiter, Want};
use super::serve::{
    BEFORE_SEARCH_MS, Outcome, acquire_all, acquire_one, read_lock, search_soon, serve,
};
use super::state::{Acquire, Amount, Claim, Lock, Mode, Released, Upgraded};
use super::{
    BLOCKED, DEFAULT_LEASE, LISTENING, MAX_ID, MAX_OWNER, MAX_WAITED_KEYS, MAX_WAITERS, STATE,
    State, is_plausible_fence, remember_fence,
};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS, Word, option, parse_int};
use crate::server::base::clock::Now;
use crate::server::entry::{Call, apply, read, write, write_keyed};
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::command::{Command, CountedKeys, Keys, ONE_KEY, ONE_KEY_READ};
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::timer;
use crate::waiting::Ticket;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// All commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "LOCK.ACQUIRE",
        usage: "key owner [SHARED] [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]",
        summary: "Acquires a lock for an owner, waiting in line if asked to; replies with its fence.",
        complexity: "O(log N) with N holders and waiting clients; O(W) in slices with W waiting clients and keys they wait for, when it has to wait for owners that wait",
        arity: -3,
        flags: "write deny-oom fast blocking",
        categories: "write fast blocking",
        keys: ONE_KEY,
        run: write(acquire),
    },
    Command {
        name: "LOCK.RELEASE",
        usage: "key owner [ALL] [ID request-id]",
        summary: "Gives back one hold of a lock, or all of them; replies with the holds left.",
        complexity: "O(log N) with N holders, and O(1) for each waiting client that it serves",
        arity: -3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(release),
    },
    Command {
        name: "LOCK.RENEW",
        usage: "key owner [PX ms]",
        summary: "Sets the lease of an owner's hold anew; replies with its fence.",
        complexity: "O(log N) with N holders",
        arity: -3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(renew),
    },
    Command {
        name: "LOCK.UPGRADE",
        usage: "key owner [PX ms] [BLOCK ms]",
        summary: "Turns a shared hold into the exclusive one, ahead of all that wait.",
        complexity: "O(1); O(W) in slices with W waiting clients and keys they wait for, when it has to wait for owners that wait",
        arity: -3,
        flags: "write fast blocking",
        categories: "write fast blocking",
        keys: ONE_KEY,
        run: write(upgrade),
    },
    Command {
        name: "LOCK.DOWNGRADE",
        usage: "key owner",
        summary: "Turns an exclusive hold into a shared one and lets shared waiters in.",
        complexity: "O(log N) with N holders, and O(1) for each waiting client that it serves",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(downgrade),
    },
    Command {
        name: "LOCK.MACQUIRE",
        usage: "numkeys key [key ...] owner [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]",
        summary: "Acquires several locks at once, all or none; replies with their fences.",
        complexity: "O(K) with K keys; O(W) in slices with W waiting clients and keys they wait for, when it has to wait for owners that wait",
        arity: -4,
        flags: "write deny-oom blocking getkeys-api",
        categories: "write slow blocking",
        keys: CountedKeys::SPECS,
        run: write_keyed::<_, CountedKeys>(macquire),
    },
    Command {
        name: "LOCK.MRELEASE",
        usage: "numkeys key [key ...] owner [ALL] [ID request-id]",
        summary: "Gives back a hold of each of several locks; replies with the holds left of each.",
        complexity: "O(K) with K keys",
        arity: -4,
        flags: "write getkeys-api",
        categories: "write slow",
        keys: CountedKeys::SPECS,
        run: write_keyed::<_, CountedKeys>(mrelease),
    },
    Command {
        name: "LOCK.HELD",
        usage: "key owner",
        summary: "Tells whether an owner holds a lock; replies with the fence of its hold.",
        complexity: "O(1)",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(held),
    },
    Command {
        name: "LOCK.INFO",
        usage: "key",
        summary: "Shows the mode, the holders and the waiting clients of a lock.",
        complexity: "O(N) with N holders and waiting clients",
        arity: 2,
        flags: "readonly",
        categories: "read slow",
        keys: ONE_KEY_READ,
        run: read(lock_info),
    },
    Command {
        name: "LOCK.GUARD",
        usage: "key fence [PX ms]",
        summary: "Lets a fence pass if none larger has passed before; the check of a protected resource.",
        complexity: "O(1)",
        arity: -3,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(guard),
    },
    Command {
        name: "SEM.ACQUIRE",
        usage: "key owner LIMIT n [PERMITS k] [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]",
        summary: "Acquires permits of a semaphore for an owner, waiting in line if asked to.",
        complexity: "O(log N) with N holders and waiting clients; O(W) in slices with W waiting clients and keys they wait for, when it has to wait for owners that wait",
        arity: -5,
        flags: "write deny-oom fast blocking",
        categories: "write fast blocking",
        keys: ONE_KEY,
        run: write(sem_acquire),
    },
    Command {
        name: "SEM.RELEASE",
        usage: "key owner [PERMITS k | ALL] [ID request-id]",
        summary: "Gives back permits of a semaphore; replies with the permits that the owner has left.",
        complexity: "O(log N) with N holders, and O(1) for each waiting client that it serves",
        arity: -3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(sem_release),
    },
    Command {
        name: "SEM.RENEW",
        usage: "key owner [PX ms]",
        summary: "Sets the lease of an owner's permits anew; replies with their fence.",
        complexity: "O(log N) with N holders",
        arity: -3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(sem_renew),
    },
    Command {
        name: "SEM.INFO",
        usage: "key",
        summary: "Shows the capacity, the holders and the waiting clients of a semaphore.",
        complexity: "O(N) with N holders and waiting clients",
        arity: 2,
        flags: "readonly",
        categories: "read slow",
        keys: ONE_KEY_READ,
        run: read(sem_info),
    },
    Command {
        name: "LOCK.APPLY",
        usage: "key effects",
        summary: "Internal: what a master decided about a lock or a semaphore, for replicas and the AOF.",
        complexity: "O(N) with N changed holds",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effects),
    },
    Command {
        name: "LOCK.FENCE",
        usage: "fence",
        summary: "Internal: the last fence that a master gave, for replicas and the AOF.",
        complexity: "O(1)",
        arity: 2,
        flags: "write fast",
        categories: "write fast dangerous",
        keys: &[],
        run: apply(apply_fence),
    },
];

const SHARED: Word = 1;
const PX: Word = 2;
const BLOCK: Word = 4;
const WATCHDOG: Word = 8;
const ID: Word = 16;
const ALL: Word = 32;
const PERMITS: Word = 64;
const LIMIT: Word = 128;

const OPTIONS: &[(&str, Word)] = &[
    ("PX", PX),
    ("ID", ID),
    ("ALL", ALL),
    ("BLOCK", BLOCK),
    ("LIMIT", LIMIT),
    ("SHARED", SHARED),
    ("PERMITS", PERMITS),
    ("WATCHDOG", WATCHDOG),
];

/// The options that a command was given.
#[derive(Default)]
struct Options<'a> {
    given: Word,
    px: u64,
    block: u64,
    permits: u64,
    limit: u64,
    id: &'a [u8],
}

impl<'a> Options<'a> {
    /// Reads what is left of the arguments; other options than the allowed ones, and repeated ones,
    /// are syntax errors.
    fn read(cursor: &mut Cursor<'a>, allowed: Word) -> Result<Self, Error> {
        let mut options = Options::default();
        while let Some(word) = cursor.next() {
            let option = option(word, OPTIONS) & allowed & !options.given;
            options.given |= option;
            match option {
                SHARED | WATCHDOG | ALL => {}
                PX => options.px = cursor.uint("PX", 1..=TEN_YEARS_MS)?,
                BLOCK => options.block = cursor.uint("BLOCK", 0..=TEN_YEARS_MS)?,
                ID => options.id = cursor.name("ID", MAX_ID)?,
                PERMITS => options.permits = cursor.uint("PERMITS", 1..=MAX_SAFE)?,
                LIMIT => options.limit = cursor.uint("LIMIT", 1..=MAX_SAFE)?,
                _ => return Err(Error::Syntax),
            }
        }
        Ok(options)
    }

    fn has(&self, option: Word) -> bool {
        self.given & option != 0
    }

    fn id(&self) -> Option<&'a [u8]> {
        self.has(ID).then_some(self.id)
    }

    fn permits(&self) -> u64 {
        if self.has(PERMITS) { self.permits } else { 1 }
    }

    fn lease(&self) -> u64 {
        if self.has(PX) {
            self.px
        } else {
            DEFAULT_LEASE.get() as u64
        }
    }

    /// The connection that the hold is to be renewed for.
    fn watcher(&self, ctx: Ctx<'_>) -> Option<u64> {
        if self.has(WATCHDOG) {
            ctx.client()
        } else {
            None
        }
    }

    /// The acquisition that they ask for, of one key.
    fn request<'r>(
        &'r self,
        ctx: Ctx<'_>,
        state: &State,
        name: &ServerString<'_>,
        owner: &'r [u8],
        claim: Claim,
    ) -> Acquire<'r> {
        let queues = &state.queues;
        Acquire {
            owner,
            claim,
            lease: self.lease(),
            id: self.id(),
            watch: self.watcher(ctx),
            queued: !queues.is_empty() && queues.waits_for(ctx.db(), name.bytes()),
        }
    }

    /// The same as one that waits.
    fn waiter(
        &self,
        ctx: Ctx<'_>,
        now: Now,
        names: &[ServerString<'_>],
        owner: &[u8],
        claim: Claim,
        event: &'static CStr,
    ) -> Waiter {
        let db = ctx.db();
        Waiter {
            keys: names.iter().map(|name| (db, name.bytes().into())).collect(),
            takes_many: false,
            owner: owner.into(),
            want: Want::Claim(claim),
            lease: self.lease(),
            id: self.id().map(Into::into),
            watch: self.watcher(ctx),
            event,
            since: now.ms(),
            timeout: self.block,
        }
    }

    fn amount(&self) -> Result<Amount, Error> {
        match (self.has(ALL), self.has(PERMITS)) {
            (true, true) => Err(Error::Syntax),
            (true, false) => Ok(Amount::All),
            (false, _) => Ok(Amount::Count(self.permits())),
        }
    }
}

fn owner<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("owner", MAX_OWNER)
}

/// `LOCK.ACQUIRE key owner [SHARED] [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]`
///
/// `owner`: 1 to 1024 bytes. `PX`: the lease, 1 ms to 10 years, default `lock-default-lease`.
/// `BLOCK`: how long to wait in line, 0 (without limit) to 10 years. `ID`: 1 to 128 bytes.
/// Replies with the fence, or nil if others hold the lock. Errors: `WRONGTYPE`, `DEADLOCK`,
/// `ERR too many waiting clients`.
///
/// Why a lock with a lease needs a fence: Kleppmann, "How to do distributed locking", 2016.
fn acquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, SHARED | PX | BLOCK | WATCHDOG | ID)?;
    let claim = if options.has(SHARED) {
        Claim::Shared
    } else {
        Claim::Exclusive
    };
    acquire_key(call, owner, &options, claim, Kind::Lock, c"lock.acquire")
}

/// `SEM.ACQUIRE key owner LIMIT n [PERMITS k] [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]`
///
/// `LIMIT`: the capacity, 1 to 2^53 - 1. `PERMITS`: 1 to `LIMIT`, default 1. The others, the reply
/// and the errors as for `LOCK.ACQUIRE`.
fn sem_acquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let allowed = LIMIT | PERMITS | PX | BLOCK | WATCHDOG | ID;
    let options = Options::read(&mut cursor, allowed)?;
    if !options.has(LIMIT) {
        return Err(Error::Syntax);
    }
    let (count, limit) = (options.permits(), options.limit);
    if count > limit {
        return Err(Error::OutOfRange {
            argument: "PERMITS",
            min: 1,
            max: limit as i64,
        });
    }
    let claim = Claim::Permits { count, limit };
    acquire_key(call, owner, &options, claim, Kind::Sem, c"sem.acquire")
}

fn acquire_key(
    call: &Call<'_>,
    owner: &[u8],
    options: &Options<'_>,
    claim: Claim,
    kind: Kind,
    event: &'static CStr,
) -> Answer {
    let (ctx, name) = (call.ctx, call.name(0));
    let state = &mut *STATE.get();
    let mut slot = TypedKey::of(ctx.open(&name), kind.native())?;
    let now = Now::read();
    if !options.has(BLOCK)
        && slot
            .value()
            .is_some_and(|lock| lock.plainly_refuses(owner, now.ms()))
    {
        state.stats.refused += 1;
        return Ok(Reply::Nil);
    }
    let request = options.request(ctx, state, &name, owner, claim);
    let edit = Edit::of(ctx, state, &name, slot, kind, now);
    let outcome = acquire_one(state, edit, &request, event)?;
    let waiter = || options.waiter(ctx, now, &[name], owner, claim, event);
    answer_or_wait(ctx, state, now, outcome, options, waiter)
}

/// `LOCK.MACQUIRE numkeys key [key ...] owner [PX ms] [BLOCK ms] [WATCHDOG] [ID request-id]`
///
/// All keys are different and in one slot. Replies with an array of fences, one for each key, or
/// nil; the options and errors are those of `LOCK.ACQUIRE`.
fn macquire(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let count = cursor.keys()?.len();
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, PX | BLOCK | WATCHDOG | ID)?;
    let names: Vec<ServerString<'_>> = (1..=count).map(|index| call.name(index)).collect();
    let (ctx, now) = (call.ctx, Now::read());
    let state = &mut *STATE.get();
    let (claim, event) = (Claim::Exclusive, c"lock.macquire");
    let requests = names
        .iter()
        .map(|name| options.request(ctx, state, name, owner, claim));
    let requests: Vec<Acquire<'_>> = requests.collect();
    let outcome = acquire_all(ctx, state, now, &names, &requests, event)?;
    let waiter = || Waiter {
        takes_many: true,
        ..options.waiter(ctx, now, &names, owner, claim, event)
    };
    answer_or_wait(ctx, state, now, outcome, &options, waiter)
}

fn answer_or_wait(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    outcome: Outcome,
    options: &Options<'_>,
    waiter: impl FnOnce() -> Waiter,
) -> Answer {
    match outcome {
        Outcome::Acquired(reply) => Ok(reply),
        Outcome::Busy(_) if options.has(BLOCK) && ctx.may_block() => {
            wait(ctx, state, now, waiter())
        }
        Outcome::Busy(_) | Outcome::Never => {
            state.stats.refused += 1;
            Ok(Reply::Nil)
        }
    }
}

/// Puts the client into the queue.
fn wait(ctx: Ctx<'_>, state: &mut State, now: Now, waiter: Waiter) -> Answer {
    if let Some(first) = state.queues.repeated_by(&waiter) {
        return wait_instead(ctx, state, now, first, waiter);
    }
    let waited_keys = state.queues.waited_keys() + waiter.keys.len();
    if state.queues.len() as i64 >= MAX_WAITERS.get() || waited_keys as i64 > MAX_WAITED_KEYS.get()
    {
        return Err(Error::TooManyWaiters);
    }
    let (keys, deadline) = (waiter.keys.clone(), waiter.deadline());
    let (ticket, limit_before) = state.queues.join(waiter);
    let queues = &state.queues;
    let check = state.search_budget.spend(now.ms(), |steps| {
        deadlock::check(queues, ticket, steps, &mut |key, visit| {
            read_lock(ctx, key, visit);
        })
    });
    if check == Check::Deadlock {
        state.queues.withdraw(ticket, limit_before);
        state.stats.deadlocks += 1;
        return Err(Error::Deadlock);
    }
    let Some(blocked) = BLOCKED.block(ctx) else {
        state.queues.withdraw(ticket, limit_before);
        state.stats.refused += 1;
        return Ok(Reply::Nil);
    };
    blocked.wait(ticket);
    state.stats.waited += 1;
    LISTENING.store(true, Ordering::Relaxed);
    if let Some(at) = deadline {
        state.timeouts.insert((at, ticket));
        timer::arm(ctx, at);
    }
    if check == Check::Unknown {
        state.queues.doubt(ticket);
        search_soon(ctx, state, now.ms() + BEFORE_SEARCH_MS);
    }
    serve(ctx, state, now, keys); // learns when to look again
    Ok(Reply::Later)
}

/// Puts the client in the place of the one whose request it repeats. That one is told what it is told when its time is up: its
/// client does not listen any more, or it would not have repeated the request.
fn wait_instead(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    ticket: Ticket,
    waiter: Waiter,
) -> Answer {
    let Some(blocked) = BLOCKED.block(ctx) else {
        state.stats.refused += 1;
        return Ok(Reply::Nil);
    };
    BLOCKED.wake(ticket, Ok(Reply::Nil));
    blocked.wait(ticket);
    state.stats.waited += 1;
    let (keys, deadline) = (waiter.keys.clone(), waiter.deadline());
    let first = state.queues.replace(ticket, waiter);
    if let Some(at) = first.and_then(|first| first.deadline()) {
        state.timeouts.remove(&(at, ticket));
    }
    if let Some(at) = deadline {
        state.timeouts.insert((at, ticket));
        timer::arm(ctx, at);
    }
    serve(ctx, state, now, keys);
    Ok(Reply::Later)
}

/// `LOCK.RELEASE key owner [ALL] [ID request-id]`
///
/// Replies with the holds that the owner has left (0: gone), nil if it holds nothing. Error:
/// `WRONGTYPE`.
fn release(call: &Call<'_>) -> Answer {
    release_key(call, ALL | ID, Kind::Lock, c"lock.release")
}

/// `SEM.RELEASE key owner [PERMITS k | ALL] [ID request-id]`
///
/// `PERMITS`: 1 to what the owner has, default 1. Replies with the permits that the owner has left,
/// nil if it has none. Error: `WRONGTYPE`.
fn sem_release(call: &Call<'_>) -> Answer {
    release_key(call, PERMITS | ALL | ID, Kind::Sem, c"sem.release")
}

fn release_key(call: &Call<'_>, allowed: Word, kind: Kind, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, allowed)?;
    let amount = options.amount()?;
    let (ctx, names) = (call.ctx, [call.name(0)]);
    let now = if ctx.is_replay() {
        Now::BEFORE_ALL
    } else {
        Now::read()
    };
    let state = &mut *STATE.get();
    let mut edit = Edit::open(ctx, state, &names[0], kind, now)?;
    edit.replicate_verbatim();
    let released = edit.release(state, owner, amount, options.id());
    edit.close(state, event);
    if now != Now::BEFORE_ALL {
        serve_queues(ctx, state, now, &names);
    }
    released_reply(released)
}

/// `LOCK.MRELEASE numkeys key [key ...] owner [ALL] [ID request-id]`
///
/// Replies with an array: for each key the holds that the owner has left, or nil. Error:
/// `WRONGTYPE`, and then nothing is released.
fn mrelease(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let count = cursor.keys()?.len();
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, ALL | ID)?;
    let amount = options.amount()?;
    let names: Vec<ServerString<'_>> = (1..=count).map(|index| call.name(index)).collect();
    let (ctx, now) = (call.ctx, Now::read());
    for name in &names {
        TypedKey::of(ctx.open(name), Kind::Lock.native())?; // all of them, before anything changes
    }
    let state = &mut *STATE.get();
    let mut replies = Vec::with_capacity(count);
    for name in &names {
        let mut edit = Edit::open(ctx, state, name, Kind::Lock, now)?;
        let released = edit.release(state, owner, amount, options.id());
        edit.close(state, c"lock.mrelease");
        replies.push(released_reply(released)?);
    }
    serve_queues(ctx, state, now, &names);
    Ok(Reply::Array(replies))
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
fn serve_queues(ctx: Ctx<'_>, state: &mut State, now: Now, names: &[ServerString<'_>]) {
    if state.queues.is_empty() {
        return;
    }
    let db = ctx.db();
    let keys = names.iter().map(|name| (db, name.bytes().into()));
    serve(ctx, state, now, keys);
}

/// `LOCK.RENEW key owner [PX ms]`
///
/// `PX`: the lease from now on, 1 ms to 10 years, default `lock-default-lease`. Replies with the
/// fence, nil if the owner holds nothing. Error: `WRONGTYPE`.
fn renew(call: &Call<'_>) -> Answer {
    renew_hold(call, Kind::Lock, c"lock.renew")
}

/// `SEM.RENEW key owner [PX ms]`: as `LOCK.RENEW`.
fn sem_renew(call: &Call<'_>) -> Answer {
    renew_hold(call, Kind::Sem, c"sem.renew")
}

fn renew_hold(call: &Call<'_>, kind: Kind, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, PX)?;
    let (ctx, now, names) = (call.ctx, Now::read(), [call.name(0)]);
    let state = &mut *STATE.get();
    let mut edit = Edit::open(ctx, state, &names[0], kind, now)?;
    let fence = edit.renew(state, owner, options.lease());
    edit.close(state, event);
    if fence.is_some() {
        state.stats.renewed += 1;
        serve_queues(ctx, state, now, &names); // a shorter lease is to be looked at sooner
    }
    Ok(Reply::int_or_nil(fence))
}

/// `LOCK.UPGRADE key owner [PX ms] [BLOCK ms]`
///
/// `PX`: the lease becomes the later of the old one and this, default `lock-default-lease`.
/// `BLOCK` as for `LOCK.ACQUIRE`. Replies with the new fence (the old one if it was exclusive), nil
/// if the owner holds nothing or others share the lock. Errors: `WRONGTYPE`, `DEADLOCK` (two
/// upgrades of one lock would wait for each other), `ERR too many waiting clients`.
fn upgrade(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let options = Options::read(&mut cursor, PX | BLOCK)?;
    let (ctx, now, name) = (call.ctx, Now::read(), call.name(0));
    let state = &mut *STATE.get();
    let mut edit = Edit::open(ctx, state, &name, Kind::Lock, now)?;
    let upgraded = edit.upgrade(owner, options.lease());
    let event = c"lock.upgrade";
    edit.close(state, event);
    match upgraded? {
        Upgraded::Already(fence) => return Ok(Reply::int(fence)),
        Upgraded::Upgraded(fence) => {
            state.queues.note_more_holds(); // it excludes waiting clients that could have shared the lock
            return Ok(Reply::int(fence));
        }
        Upgraded::Busy if options.has(BLOCK) && ctx.may_block() => {}
        Upgraded::Busy => {
            state.stats.refused += 1;
            return Ok(Reply::Nil);
        }
        Upgraded::NotHeld => return Ok(Reply::Nil),
    }
    let waiter = Waiter {
        keys: vec![(ctx.db(), name.bytes().into())],
        owner: owner.into(),
        want: Want::Upgrade,
        lease: options.lease(),
        id: None,
        watch: None,
        takes_many: false,
        event,
        since: now.ms(),
        timeout: options.block,
    };
    wait(ctx, state, now, waiter)
}

/// `LOCK.DOWNGRADE key owner`
///
/// Replies with the fence, unchanged; nil if the owner holds nothing. Error: `WRONGTYPE`.
fn downgrade(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let (ctx, now, names) = (call.ctx, Now::read(), [call.name(0)]);
    let state = &mut *STATE.get();
    let mut edit = Edit::open(ctx, state, &names[0], Kind::Lock, now)?;
    let fence = edit.downgrade(owner);
    edit.close(state, c"lock.downgrade");
    serve_queues(ctx, state, now, &names);
    Ok(Reply::int_or_nil(fence))
}

/// `LOCK.HELD key owner`
///
/// Replies with the fence if the owner holds the lock, else nil. Error: `WRONGTYPE`.
fn held(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let owner = owner(&mut cursor)?;
    let name = call.name(0);
    let mut slot = TypedKey::of(call.ctx.open_to_read(&name), Kind::Lock.native())?;
    let lock = slot.value();
    let hold = lock.and_then(|lock| lock.held_by(owner, Now::read().ms()).map(|hold| hold.fence));
    Ok(Reply::int_or_nil(hold))
}

/// `LOCK.INFO key`
///
/// Replies with a map: `mode` (exclusive | shared), `holders` (maps of owner, count, fence,
/// lease_ms, watchdog: 1 or 0) and `waiters` (maps of owner, mode, waiting_ms, timeout_ms: what
/// BLOCK named); nil if nobody holds the lock. Error: `WRONGTYPE`.
fn lock_info(call: &Call<'_>) -> Answer {
    info(call, Kind::Lock, |lock, _| {
        let mode = match lock.mode() {
            Mode::Shared => "shared",
            _ => "exclusive",
        };
        vec![("mode", Reply::Text(mode))]
    })
}

/// `SEM.INFO key`
///
/// Replies with a map: `limit`, `used`, `holders` and `waiters` as `LOCK.INFO`, where `count` is
/// the number of permits; nil if nobody holds a permit. Error: `WRONGTYPE`.
fn sem_info(call: &Call<'_>) -> Answer {
    info(call, Kind::Sem, |lock, used| {
        let limit = match lock.mode() {
            Mode::Permits { limit } => limit,
            _ => 0,
        };
        // Forged permits may be more than any limit.
        let used = used.min(MAX_SAFE as u64);
        vec![("limit", Reply::int(limit)), ("used", Reply::int(used))]
    })
}

fn info(
    call: &Call<'_>,
    kind: Kind,
    head: impl FnOnce(&Lock, u64) -> Vec<(&'static str, Reply)>,
) -> Answer {
    call.cursor().value()?;
    let (ctx, name, now) = (call.ctx, call.name(0), Now::read().ms());
    let mut slot = TypedKey::of(ctx.open_to_read(&name), kind.native())?;
    let Some(lock) = slot.value() else {
        return Ok(Reply::Nil);
    };
    let all = persist::by_fence(lock).into_iter();
    let holds: Vec<_> = all.filter(|(_, hold)| hold.until >= now).collect();
    if holds.is_empty() {
        return Ok(Reply::Nil);
    }
    let used = holds.iter().map(|(_, hold)| hold.count);
    let used = used.fold(0, u64::saturating_add);
    let mut fields = head(lock, used);
    let holders = holds
        .into_iter()
        .map(|(owner, hold)| holder(owner, hold, now));
    fields.push(("holders", Reply::Array(holders.collect())));
    let state = STATE.get();
    let waiters = state.queues.line_of(ctx.db(), name.bytes());
    let waiters = waiters.map(|(_, waiter)| waiting(waiter, now)).collect();
    fields.push(("waiters", Reply::Array(waiters)));
    Ok(Reply::Map(fields))
}

fn holder(owner: &[u8], hold: &Hold, now: u64) -> Reply {
    let is_renewed = hold.watch.as_ref().is_some_and(|watch| watch.lease > 0);
    Reply::Map(vec![
        ("owner", Reply::Bytes(owner.into())),
        ("count", Reply::int(hold.count)),
        ("fence", Reply::int(hold.fence)),
        ("lease_ms", Reply::int(hold.until - now)),
        ("watchdog", Reply::int(is_renewed.into())),
    ])
}

fn waiting(waiter: &Waiter, now: u64) -> Reply {
    let mut fields = vec![("owner", Reply::Bytes(waiter.owner.clone()))];
    let mode = match waiter.want {
        Want::Claim(Claim::Exclusive) => "exclusive",
        Want::Claim(Claim::Shared) => "shared",
        Want::Claim(Claim::Permits { .. }) => "permits",
        Want::Upgrade => "upgrade",
    };
    fields.push(("mode", Reply::Text(mode)));
    if let Want::Claim(Claim::Permits { count, .. }) = waiter.want {
        fields.push(("count", Reply::int(count)));
    }
    fields.push(("waiting_ms", Reply::int(now.saturating_sub(waiter.since))));
    fields.push(("timeout_ms", Reply::int(waiter.timeout)));
    Reply::Map(fields)
}

/// `LOCK.GUARD key fence [PX ms]`
///
/// `fence`: 1 to 2^53 - 1. `PX`: the key expires after 1 ms to 10 years; without it, it keeps the
/// expiry that it has. Replies 1 if no larger fence was seen, which is remembered, else 0. Errors:
/// `WRONGTYPE`; `ERR value is not an integer or out of range` if the string at the key is none.
fn guard(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let text = cursor.clone().value()?;
    let fence = cursor.int("fence", 1..=MAX_SAFE)?;
    let options = Options::read(&mut cursor, PX)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut key = ctx.open(&name);
    let largest = match key.string()? {
        Some(seen) => Some(parse_int(seen).ok_or(Error::NotInteger)?),
        None => None,
    };
    if largest > Some(fence) {
        return Ok(Reply::Int(0));
    }
    let expires = options.has(PX).then(|| Now::read().ms() + options.px);
    if largest == Some(fence) && expires.is_none() {
        return Ok(Reply::Int(1)); // nothing changes
    }
    key.set_string(text);
    let commit = Commit {
        key: expires.map_or(KeyFate::Keep, KeyFate::ExpireAt),
        replicate: Replicate::Set(text, expires),
        is_modified: true,
        event: Some(c"lock.guard"),
    };
    key.commit(ctx, &name, &commit);
    Ok(Reply::Int(1))
}

/// `LOCK.APPLY key effects`: makes a lock what a master says it is. See [`persist`].
fn apply_effects(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let effects = persist::effects(cursor.value()?).map_err(|_| Error::BadEffect)?;
    if effects.is_empty() {
        verbatim(call); // of a repeated request, which changed nothing
        return Ok(Reply::Ok);
    }
    let fence = |effect: &Effect<'_>| match effect {
        Effect::Held(_, _, hold) => hold.fence,
        Effect::Fence(fence) => *fence,
        _ => 0,
    };
    if !effects.iter().map(fence).all(is_plausible_fence) {
        return Err(Error::BadEffect);
    }
    let (ctx, name) = (call.ctx, call.name(0));
    if let [Effect::Fence(fence)] = effects[..] {
        remember_fence(fence);
        verbatim(call);
        return Ok(Reply::Ok); // this is about no key
    }
    let open = |kind: Kind| TypedKey::of(ctx.open(&name), kind.native());
    let mut slot = match kind_of(&effects)? {
        Some(kind) => open(kind)?,
        None => open(Kind::Lock).or_else(|_| open(Kind::Sem))?, // whatever is there
    };
    if slot.value().is_none() {
        slot.create(Lock::new(Mode::Exclusive));
    }
    let Some(lock) = slot.value() else {
        return Err(Error::Internal);
    };
    remember_fence(persist::apply(lock, effects));
    lock.key_expires = lock.holds().longest();
    let commit = Commit {
        key: match lock.key_expires {
            0 => KeyFate::Remove,
            at => KeyFate::ExpireAt(at),
        },
        replicate: Replicate::Verbatim,
        is_modified: true,
        event: None,
    };
    slot.commit(ctx, &name, &commit);
    if let Some(lock) = slot.value() {
        list_earlier(lock, ctx.db(), name.bytes()); // the cron event asks, should this server become a master
    }
    if LISTENING.load(Ordering::Relaxed) {
        deferred::defer(ServerEvent::Touched(ctx.db(), name.bytes().into()));
    }
    Ok(Reply::Ok)
}

/// Hands on a command that changes no key.
fn verbatim(call: &Call<'_>) {
    let commit = Commit {
        replicate: Replicate::Verbatim,
        ..Commit::default()
    };
    commit.carry_out_without_key(call.ctx, &call.name(0));
}

/// Which type the effects are about, if they tell; both at once is nonsense.
fn kind_of(effects: &[Effect<'_>]) -> Result<Option<Kind>, Error> {
    let mut kinds = effects.iter().filter_map(|effect| match effect {
        Effect::Held(mode, ..) => Some(Kind::of(*mode)),
        _ => None,
    });
    let first = kinds.next();
    if kinds.any(|kind| Some(kind) != first) {
        return Err(Error::BadEffect);
    }
    Ok(first)
}

/// `LOCK.FENCE fence`: remembers the last fence that a master gave.
fn apply_fence(call: &Call<'_>) -> Answer {
    let fence = call.cursor().uint("fence", 1..=MAX_SAFE)?;
    if !is_plausible_fence(fence) {
        return Err(Error::BadEffect);
    }
    remember_fence(fence);
    verbatim(call);
    Ok(Reply::Ok)
}
