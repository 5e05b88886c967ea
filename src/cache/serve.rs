//! What readers get: at once, or later, when they wait.

use super::edit::Edit;
use super::lease::{Lease, Rebuild};
use super::queue::Waiter;
use super::state::{Kind, Look};
use super::{BLOCKED, Due, Farewell, MAX_LEASES, RETRY, STATE, STATS, State};
use crate::error::Error;
use crate::reply::{Answer, Fetched, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::hooks::deletions;
use crate::server::services::blocked::Departure;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::timer;
use crate::waiting::{InSlots, Key, Step, Ticket};
use std::sync::Arc;

/// What a reader is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    /// Use the value.
    Hit,
    /// Know that there is none.
    Null,
    /// Rebuild it.
    Lease,
    /// Use what is out of date: somebody else is rebuilding it.
    Stale,
    /// Ask again: somebody else is rebuilding it.
    Wait,
    /// Know that there is none: its guard says so.
    Absent,
    /// Do without: the loader has failed.
    Down,
}

impl Advice {
    /// The word for it on the wire.
    pub(super) fn word(self) -> &'static str {
        match self {
            Advice::Hit => "HIT",
            Advice::Null => "NULL",
            Advice::Lease => "LEASE",
            Advice::Stale => "STALE",
            Advice::Wait => "WAIT",
            Advice::Absent => "ABSENT",
            Advice::Down => "DOWN",
        }
    }
}

/// What a reader of an entry gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// What it is to do.
    pub(super) advice: Advice,
    /// Is the value shown to it, if there is one?
    pub(super) shows: bool,
    /// A time in milliseconds, or a token.
    pub(super) n: u64,
}

impl Found {
    pub(super) fn new(advice: Advice, shows: bool, n: u64) -> Self {
        Self { advice, shows, n }
    }

    /// Might it have something if it waited?
    pub(super) fn must_wait(&self) -> bool {
        self.advice == Advice::Wait
    }

    pub(super) fn count(&self) {
        let counter = match self.advice {
            Advice::Hit => &STATS.hits,
            Advice::Null => &STATS.nulls,
            Advice::Lease => &STATS.leases,
            Advice::Stale => &STATS.stale,
            Advice::Wait => &STATS.waits,
            Advice::Absent => &STATS.absent,
            Advice::Down => &STATS.down,
        };
        counter.count();
    }
}

/// What a reader gets of a fresh entry.
pub(super) fn fresh(kind: Kind, left: u64) -> Found {
    let advice = if kind == Kind::Value {
        Advice::Hit
    } else {
        Advice::Null
    };
    Found::new(advice, true, left)
}

/// What a reader gets of an entry that is not fresh, or of none: the lease, if it is free.
pub(super) fn rebuild(
    ctx: Ctx<'_>,
    db: i32,
    key: &[u8],
    look: Look,
    lease: u64,
    now: Now,
) -> Found {
    let shows = look != Look::Missing;
    let busy = if shows { Advice::Stale } else { Advice::Wait };
    let rebuild = STATE.get().leases.look(db, key, now.ms());
    match rebuild {
        Rebuild::Out(left) => Found::new(busy, shows, left),
        Rebuild::Down(left) => Found::new(Advice::Down, shows, left),
        Rebuild::Free => match grant(ctx, db, key, lease, now) {
            Some(token) => Found::new(Advice::Lease, shows, token),
            None => Found::new(busy, shows, RETRY),
        },
    }
}

/// Gives a key's lease away, which is free. Returns its token; `None`: there are too many.
pub(super) fn grant(ctx: Ctx<'_>, db: i32, key: &[u8], lease: u64, now: Now) -> Option<u64> {
    deletions::all_that_goes(ctx);
    remember_slots(ctx);
    let slot = cluster::slot(ctx, key);
    let mut state = STATE.get();
    let lease = Lease {
        token: next_token(&mut state),
        since: now.micros(),
        until: now.ms() + lease,
        failed: false,
        slot,
    };
    let most = MAX_LEASES.get() as usize;
    let granted = state.leases.grant(db, key, lease, now.ms(), most);
    granted.then_some(lease.token)
}

/// Notes which slots this node has when the watch begins: whether they change is asked later.
fn remember_slots(ctx: Ctx<'_>) {
    if ctx.is_cluster() && STATE.get().own_slots.is_none() {
        let own = cluster::own_slots(ctx);
        STATE.get().own_slots = own;
    }
}

/// Tokens count up from where nobody knows: those that another server gave, or this one before a restart, are others.
/// All have the same length, and Lua and JavaScript read them exactly.
fn next_token(state: &mut State) -> u64 {
    const FIRST: u64 = 1 << 52;
    state.tokens = state.tokens.wrapping_add(1);
    FIRST + state.tokens % FIRST
}

/// Lets the client that sent the running command wait for an entry. Does it? Not if the server does not allow it.
pub(super) fn wait(ctx: Ctx<'_>, key: &[u8], lease: u64, block: u64, retry: u64, now: u64) -> bool {
    let Some(blocked) = BLOCKED.block(ctx) else {
        return false;
    };
    let key: Key = (ctx.db(), key.into());
    let deadline = (block > 0).then(|| now + block);
    let waiter = Waiter {
        key: key.clone(),
        lease,
        deadline,
    };
    let ticket = STATE.get().queue.push(waiter);
    blocked.wait(ticket);
    if let Some(at) = deadline {
        STATE.get().deadlines.insert((at, Due::Timeout(ticket)));
        timer::arm(ctx, at);
    }
    set_retry(ctx, &key, Some(now + retry));
    true
}

/// Looks at a line again at this time (Unix ms); `None`: when something happens.
fn set_retry(ctx: Ctx<'_>, key: &Key, at: Option<u64>) {
    let state = &mut *STATE.get();
    let before = state.queue.set_retry(key.0, &key.1, at);
    if before == at {
        return;
    }
    if let Some(before) = before {
        state.deadlines.remove(&(before, Due::Retry(key.clone())));
    }
    if let Some(at) = at {
        state.deadlines.insert((at, Due::Retry(key.clone())));
        timer::arm(ctx, at);
    }
}

/// Answers whoever can be answered in a key's queue, in order; what would take longer goes on in slices.
pub(super) fn serve(ctx: Ctx<'_>, now: Now, key: &Key) {
    serve_in(ctx, now, key, &mut Slice::begin());
    if has_work(&STATE.get()) {
        deferred::ask_for_slices();
    }
}

fn serve_in(ctx: Ctx<'_>, now: Now, key: &Key, slice: &mut Slice) {
    if STATE.get().queue.head(key.0, &key.1).is_none() {
        return;
    }
    ctx.in_db(key.0, || {
        let name = ServerString::new(&key.1);
        if !cluster::serves(ctx, &name) {
            // The cron event sends the clients after their slot, or serves them once the key is here again: what they
            // waited for may have ended by then.
            return set_retry(ctx, key, None);
        }
        serve_line(ctx, now, key, &name, slice);
    });
}

fn serve_line(ctx: Ctx<'_>, now: Now, key: &Key, name: &ServerString<'_>, slice: &mut Slice) {
    // All get the same value: it is copied once, however many they are.
    let mut shared: Option<Arc<[u8]>> = None;
    while let Some((ticket, waiter)) = first(key) {
        if slice.is_over() {
            return STATE.get().agenda.push_front(key.clone());
        }
        slice.has_answered();
        let mut edit = match Edit::open(ctx, name) {
            Ok(edit) => edit,
            Err(error) => {
                dismiss(ticket, Err(error), None);
                continue;
            }
        };
        let look = edit.look(now.ms());
        if look == Look::Missing {
            if edit.entry().is_some() && ctx.is_paused() {
                return set_retry(ctx, key, Some(now.ms() + RETRY)); // nothing may be removed now
            }
            edit.remove_if_over(now.ms());
        }
        let entry = edit.entry();
        let found = match (look, &entry) {
            (Look::Fresh(left), Some(entry)) => fresh(entry.kind, left),
            _ => rebuild(ctx, key.0, &key.1, look, waiter.lease, now),
        };
        if found.must_wait() {
            return set_retry(ctx, key, Some(now.ms() + found.n));
        }
        let value = entry.as_deref().filter(|_| found.shows);
        let value = value.and_then(|entry| entry.value());
        let value = value.map(|value| shared.get_or_insert_with(|| value.into()).clone());
        found.count();
        let token = (found.advice == Advice::Lease).then_some(found.n);
        dismiss(ticket, Ok(reply(found, value)), token);
    }
}

fn first(key: &Key) -> Option<(Ticket, Waiter)> {
    let queue = &STATE.get().queue;
    let ticket = queue.head(key.0, &key.1)?;
    Some((ticket, queue.get(ticket)?.clone()))
}

fn reply(found: Found, value: Option<Arc<[u8]>>) -> Reply {
    Reply::Fetched(Fetched {
        state: found.advice.word(),
        value,
        n: found.n,
    })
}

/// Takes a waiter out of its line and answers it, with the token of a lease perhaps.
fn dismiss(ticket: Ticket, answer: Answer, token: Option<u64>) {
    BLOCKED.wake(ticket, answer);
    let state = &mut *STATE.get();
    if let Some(waiter) = forget(state, ticket)
        && let Some(token) = token
    {
        state.unanswered.insert(ticket, (waiter.key, token));
    }
}

fn forget(state: &mut State, ticket: Ticket) -> Option<Waiter> {
    let (waiter, retry_at) = state.queue.remove(ticket)?;
    if let Some(at) = waiter.deadline {
        state.deadlines.remove(&(at, Due::Timeout(ticket)));
    }
    if let Some(at) = retry_at {
        let retry = Due::Retry(waiter.key.clone());
        state.deadlines.remove(&(at, retry));
    }
    Some(waiter)
}

/// A waiter that was woken has got its answer.
pub(super) fn answered(ticket: Ticket) {
    STATE.get().unanswered.remove(&ticket);
}

/// A waiter is gone, or was unblocked by an operator, who wants it to have this answer.
pub(super) fn left(_ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    let state = &mut *STATE.get();
    if departure == Departure::Unanswered {
        if let Some((key, token)) = state.unanswered.remove(&ticket) {
            state.undelivered.push_back((key, token));
            deferred::ask_for_slices_and_wake();
        }
        return Ok(Reply::Nil);
    }
    let waiter = forget(state, ticket);
    Ok(waiter.map_or(Reply::Nil, |waiter| timed_out(state, &waiter.key)))
}

/// What a waiter is told whose time is up.
fn timed_out(state: &State, key: &Key) -> Reply {
    let left = match state.leases.look(key.0, &key.1, Now::read().ms()) {
        Rebuild::Out(left) | Rebuild::Down(left) => left,
        Rebuild::Free => RETRY, // there are too many others
    };
    reply(Found::new(Advice::Wait, false, left), None)
}

/// Takes a lease back whose holder will never know of it.
fn take_back(state: &mut State, (db, key): Key, token: u64) {
    if state.leases.is_current(db, &key, token) {
        state.leases.remove(db, &key);
    }
    state.agenda.push((db, key));
}

/// Deals with something that happened outside of the family's commands.
pub(super) fn happened(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    let own_slots = match event {
        ServerEvent::SlotMayMove(_) => cluster::own_slots(ctx),
        _ => None,
    };
    let state = &mut *STATE.get();
    match event {
        ServerEvent::Unlinked(db, key) | ServerEvent::Touched(db, key) => {
            if state.queue.waiting(*db, key) == 0 {
                return;
            }
            state.agenda.push((*db, (**key).into()));
        }
        ServerEvent::Flushed(db) => state.walks.push_back(state.queue.walk(*db)),
        ServerEvent::Swapped(first, second) => {
            for db in [*first, *second] {
                state.walks.push_back(state.queue.walk(Some(db)));
            }
        }
        ServerEvent::Loaded | ServerEvent::Replaced => {
            state.walks.push_back(state.queue.walk(None))
        }
        ServerEvent::Demoted => demoted(state),
        ServerEvent::SlotMayMove(slot) => {
            if state.own_slots == own_slots && own_slots.is_some() {
                return; // somebody who may not do that has tried
            }
            // What happens to keys elsewhere, nobody will tell us when they come back.
            match slot {
                Some(slot) => state.leases.clear_slot(*slot),
                None => state.leases.clear(None),
            }
            state.own_slots = own_slots;
            state.walks.push_back(state.queue.walk(None));
        }
        // Leases are taken away at once, and waiting clients are looked after slot by slot.
        ServerEvent::SlotsMoved(_) | ServerEvent::SlotsDropped(_) => return,
        ServerEvent::Disconnected(_) | ServerEvent::Saving | ServerEvent::Discarded => return,
    }
    deferred::ask_for_slices();
}

/// Leases are the master's affair, and so is waiting.
fn demoted(state: &mut State) {
    state.leases.clear(None);
    state.undelivered.clear();
    state.agenda.clear();
    state.walks.clear();
    state.own_slots = None; // to be asked again with the next lease
    // Most servers have told the waiting clients already. Valkey 9.1 does not, in a cluster.
    let farewell = Farewell::All(state.queue.walk(None));
    state.farewells.push_back(farewell);
}

fn has_work(state: &State) -> bool {
    !state.agenda.is_empty()
        || !state.walks.is_empty()
        || !state.farewells.is_empty()
        || !state.undelivered.is_empty()
}

/// Goes on with what is done in slices.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let now = Now::read();
    let may_act = ctx.may_act();
    while !slice.is_over() && (say_farewell(ctx, slice) || may_act && step(ctx, now, slice)) {}
    let state = STATE.get();
    !state.farewells.is_empty() || may_act && has_work(&state)
}

/// Takes a step of what is to be done. False if there is nothing.
fn step(ctx: Ctx<'_>, now: Now, slice: &mut Slice) -> bool {
    let mut state = STATE.get();
    if let Some((key, token)) = state.undelivered.pop_front() {
        take_back(&mut state, key, token);
        return true;
    }
    if let Some(key) = state.agenda.pop() {
        drop(state);
        serve_in(ctx, now, &key, slice);
        return true;
    }
    let state = &mut *state;
    let Some(walk) = state.walks.front_mut() else {
        return false;
    };
    match state.queue.step(walk) {
        Some(Step(key)) => key.into_iter().for_each(|key| state.agenda.push(key)),
        None => drop(state.walks.pop_front()),
    }
    true
}

/// Sends the next one away who is to be. False if nobody is.
fn say_farewell(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let mut state = STATE.get();
    let Some(farewell) = state.farewells.pop_front() else {
        return false;
    };
    match farewell {
        Farewell::All(mut walk) => {
            if let Some(Step(key)) = state.queue.step(&mut walk) {
                state.farewells.push_front(Farewell::All(walk));
                drop(state);
                if let Some(key) = key {
                    let error = cluster::farewell(ctx, &ServerString::new(&key.1));
                    let farewell = Farewell::Key(key, error);
                    STATE.get().farewells.push_front(farewell);
                }
            }
        }
        Farewell::Key(key, error) => {
            if let Some(ticket) = state.queue.head(key.0, &key.1) {
                let answer = Err(error.clone());
                state.farewells.push_front(Farewell::Key(key, error));
                drop(state);
                dismiss(ticket, answer, None);
                slice.has_answered();
            }
        }
    }
    true
}

/// Does what is due, and says when something is next due (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let mut slice = Slice::begin();
    while let Some((at, due)) = next_due() {
        if at > now.ms() {
            return Some(at);
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        STATE.get().deadlines.remove(&(at, due.clone()));
        match due {
            Due::Timeout(ticket) => {
                let state = STATE.get();
                let waiter = state.queue.get(ticket);
                let answer = waiter.map(|waiter| timed_out(&state, &waiter.key));
                drop(state);
                if let Some(answer) = answer {
                    dismiss(ticket, Ok(answer), None);
                    slice.has_answered();
                }
            }
            Due::Retry(key) => {
                STATE.get().queue.set_retry(key.0, &key.1, None);
                serve_in(ctx, now, &key, &mut slice);
                if has_work(&STATE.get()) {
                    deferred::ask_for_slices();
                }
            }
        }
    }
    None
}

fn next_due() -> Option<(u64, Due)> {
    STATE.get().deadlines.first().cloned()
}

/// In a cluster, slots can come and go without an event, and leases with them.
pub(super) fn cron(ctx: Ctx<'_>) {
    if has_work(&STATE.get()) {
        deferred::ask_for_slices(); // which may have had to wait
    }
    if ctx.is_cluster() && !STATE.get().leases.is_empty() {
        cluster::notice_changes(ctx);
    }
}

/// How waiting clients are looked after in a cluster.
pub(super) const WAITING: InSlots = InSlots {
    slots: || STATE.get().queue.slots(),
    keys: |slot, behind, most| STATE.get().queue.keys_of_slot(slot, behind, most),
    send_away,
    serve: |ctx, key| {
        let knows_when = STATE.get().queue.knows_when(key.0, &key.1);
        if !knows_when {
            serve(ctx, Now::read(), key);
        }
    },
};

/// Answers clients that wait for a key with an error, so many at most. Returns how many there were.
fn send_away(key: &Key, error: &Error, most: usize) -> usize {
    let tickets: Vec<Ticket> = STATE
        .get()
        .queue
        .tickets(key.0, &key.1)
        .take(most)
        .collect();
    for ticket in &tickets {
        dismiss(*ticket, Err(error.clone()), None);
    }
    tickets.len()
}

/// The section `cache` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    let state = STATE.try_get()?;
    Some(vec![
        ("cache_hits", STATS.hits.get()),
        ("cache_nulls", STATS.nulls.get()),
        ("cache_misses", STATS.misses.get()),
        ("cache_stale", STATS.stale.get()),
        ("cache_leases", STATS.leases.get()),
        ("cache_waits", STATS.waits.get()),
        ("cache_absent", STATS.absent.get()),
        ("cache_down", STATS.down.get()),
        ("cache_refused_sets", STATS.refused_sets.get()),
        ("cache_early", STATS.early.get()),
        (
            "cache_leases_now",
            state.leases.out(Now::read().ms()) as u64,
        ),
        ("cache_waiters_now", state.queue.len() as u64),
    ])
}
