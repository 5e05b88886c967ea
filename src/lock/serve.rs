//! What happens without a command: locks are handed to waiting clients, waits end, watched holds
//! are renewed, and released when their connection closes.

use super::deadlock::Search;
use super::edit::Edit;
use super::native::Kind;
use super::persist;
use super::queue::{Waiter, Want};
use super::state::Lock;
use super::state::{Acquire, Acquired, Admission, Amount, Claim, Upgraded};
use super::{BLOCKED, DEADLINES, Due, EXPIRED_LEASES, FENCE, LISTENING, STATE, State, Task};
use crate::deadlines::ANY_DB;
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::{Ctx, is_connected};
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::blocked::Departure;
use crate::server::services::cluster;
use crate::server::services::commit::{self, Commit, Replicate};
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::replicas;
use crate::server::services::slots;
use crate::server::services::timer;
use crate::waiting::{InSlots, Key, Step, Ticket};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a look at a waiter's locks came to.
enum Look {
    /// It is answered and waits no more.
    Done(Answer),
    /// It goes on waiting; something may change at this time (Unix ms) by itself.
    Wait(Option<u64>),
}

/// With work left from earlier slices, a command looks at no more of its own queues than this.
const LOOKS_BESIDE_BACKLOG: usize = 4;

/// Looks at the queues of keys that have changed, and serves whoever can be served, in order; what would take longer goes on in
/// slices. Nobody overtakes in between: who comes to a key that somebody waits for waits as well.
pub(super) fn serve(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    keys: impl IntoIterator<Item = Key>,
) {
    let is_busy = !state.agenda.is_empty() || !state.tasks.is_empty();
    let mut looks = 0;
    for (db, key) in keys {
        if !state.queues.waits_for(db, &key) {
            continue;
        }
        state.queues.note_change(db, &key);
        looks += 1;
        if !is_busy || looks > LOOKS_BESIDE_BACKLOG {
            state.agenda.push((db, key));
        } else {
            serve_first(ctx, state, now, (db, key));
        }
    }
    if !is_busy && looks > 0 {
        let mut slice = Slice::begin();
        while !slice.is_over() && step(ctx, state, now, &mut slice) {}
    }
    if !state.agenda.is_empty() || !state.tasks.is_empty() {
        deferred::ask_for_slices();
    }
}

/// Takes a step of what is to be done. False if there is nothing.
fn step(ctx: Ctx<'_>, state: &mut State, now: Now, slice: &mut Slice) -> bool {
    let waiting = state.queues.len();
    let some_done = if let Some(task) = state.tasks.pop_front() {
        take(ctx, state, now, task);
        true
    } else if let Some(key) = state.agenda.pop() {
        serve_first(ctx, state, now, key);
        true
    } else if let Some(walk) = state.walks.front_mut() {
        match state.queues.step(walk) {
            Some(Step(key)) => {
                if let Some((db, key)) = key {
                    state.queues.note_change(db, &key);
                    state.agenda.push((db, key));
                }
            }
            None => drop(state.walks.pop_front()),
        }
        true
    } else {
        false
    };
    if state.queues.len() < waiting {
        slice.has_answered();
    }
    some_done
}

fn take(ctx: Ctx<'_>, state: &mut State, now: Now, task: Task) {
    match task {
        Task::Unwatch(mut sweep) => {
            if let Some(number) = state.watches.next_swept(&mut sweep) {
                if let Some(number) = number {
                    state.unwatch_number(number);
                }
                state.tasks.push_front(Task::Unwatch(sweep));
            }
        }
        Task::Reconcile(key) => {
            reconcile(ctx, state, now, &key);
            look_at(state, key);
        }
        Task::Abandon(client) => {
            if let Some(number) = state.watches.first_of(client) {
                abandon(ctx, state, now, number);
                state.tasks.push_front(Task::Abandon(client));
            }
        }
        Task::TakeBack => {
            if let Some((waiter, index)) = state.undelivered.pop_front() {
                take_back(ctx, state, now, &waiter, index);
                if index + 1 < waiter.keys.len() {
                    state.undelivered.push_front((waiter, index + 1));
                }
                state.tasks.push_front(Task::TakeBack);
            }
        }
        Task::Kin(served, index, after) => serve_kin(ctx, state, now, served, index, after),
        Task::Farewell(mut walk) => {
            if let Some(Step(key)) = state.queues.step(&mut walk) {
                state.tasks.push_front(Task::Farewell(walk));
                if let Some((db, key)) = key {
                    // Most servers have told the waiting clients already. Valkey 9.1 does not, in a cluster.
                    let farewell = cluster::farewell(ctx, &ServerString::new(&key));
                    state.tasks.push_front(Task::SendAway((db, key), farewell));
                }
            }
        }
        Task::SendAway((db, key), error) => {
            if let Some(ticket) = state.queues.head(db, &key) {
                dismiss(state, ticket, Err(error.clone()));
                state.tasks.push_front(Task::SendAway((db, key), error));
            }
        }
    }
}

/// Notes that a queue is to be looked at.
fn look_at(state: &mut State, (db, key): Key) {
    if state.queues.waits_for(db, &key) {
        state.queues.note_change(db, &key);
        state.agenda.push((db, key));
    }
}

/// Serves the first in a key's queue, if that is possible.
fn serve_first(ctx: Ctx<'_>, state: &mut State, now: Now, (db, key): Key) {
    let Some(ticket) = state.queues.head(db, &key) else {
        return;
    };
    match look(ctx, state, now, ticket) {
        Look::Wait(retry_at) => set_retry(ctx, state, ticket, retry_at),
        Look::Done(answer) => {
            if let Some(waiter) = dismiss(state, ticket, answer) {
                let others = waiter.keys.iter().filter(|other| *other.1 != *key);
                for other in others {
                    look_at(state, other.clone());
                }
                state.agenda.push_front((db, key));
            }
        }
    }
}

/// Other connections of an owner that has just been served wait for a lock that it holds now. They need not wait until they
/// are first.
fn serve_kin(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    served: Arc<Waiter>,
    index: usize,
    after: Ticket,
) {
    let Some(key) = served.keys.get(index) else {
        return;
    };
    let Some(ticket) = state.queues.next_of_owner(key, &served.owner, after) else {
        state.tasks.push_front(Task::Kin(served, index + 1, 0));
        return;
    };
    let other = state.queues.get(ticket).cloned();
    state.tasks.push_front(Task::Kin(served, index, ticket));
    if let Some(other) = other
        && matches!(other.want, Want::Claim(Claim::Exclusive | Claim::Shared))
        && let Look::Done(answer) = look(ctx, state, now, ticket)
    {
        dismiss(state, ticket, answer);
        for key in &other.keys {
            look_at(state, key.clone());
        }
    }
}

/// Takes a waiter out of its queues and answers it.
fn dismiss(state: &mut State, ticket: Ticket, answer: Answer) -> Option<Arc<Waiter>> {
    let given = matches!(answer, Ok(Reply::Int(_) | Reply::Array(_)));
    BLOCKED.wake(ticket, answer);
    let waiter = forget(state, ticket)?;
    if given {
        state.unanswered.insert(ticket, waiter.clone());
        if state.queues.owner_waits(&waiter.owner) {
            state.queues.note_more_holds();
            if matches!(waiter.want, Want::Claim(Claim::Exclusive | Claim::Shared)) {
                state.tasks.push_front(Task::Kin(waiter.clone(), 0, 0));
            }
        }
    }
    Some(waiter)
}

/// A waiter that was served has got its answer.
pub(super) fn answered(ticket: Ticket) {
    STATE.get().unanswered.remove(&ticket);
}

/// Takes one of the locks back that a waiter was given who went before it could be told.
fn take_back(ctx: Ctx<'_>, state: &mut State, now: Now, waiter: &Waiter, index: usize) {
    if waiter.id.is_some() {
        return; // its retry finds the hold, or has been told of it already
    }
    let (kind, amount) = match waiter.want {
        Want::Claim(Claim::Permits { count, .. }) => (Kind::Sem, Amount::Count(count)),
        Want::Claim(_) => (Kind::Lock, Amount::Count(1)),
        Want::Upgrade => return, // it had a hold before, and keeps it
    };
    let key = &waiter.keys[index];
    cluster::act_on(ctx, key, |name| {
        if let Ok(mut edit) = Edit::open(ctx, state, name, kind, now) {
            edit.release(state, &waiter.owner, amount, None);
            edit.close(state, release_event(kind));
        }
    });
    look_at(state, key.clone());
}

/// Takes a waiter out of its queues.
fn forget(state: &mut State, ticket: Ticket) -> Option<Arc<Waiter>> {
    let retry_at = state.queues.retry_at(ticket);
    let waiter = state.queues.remove(ticket)?;
    if let Some(at) = waiter.deadline() {
        state.timeouts.remove(&(at, ticket));
    }
    if let Some(at) = retry_at {
        state.deadlines.remove(&(at, Due::Retry(ticket)));
    }
    Some(waiter)
}

fn set_retry(ctx: Ctx<'_>, state: &mut State, ticket: Ticket, at: Option<u64>) {
    let before = state.queues.set_retry(ticket, at);
    if before == at {
        return;
    }
    if let Some(before) = before {
        state.deadlines.remove(&(before, Due::Retry(ticket)));
    }
    if let Some(at) = at {
        state.deadlines.insert((at, Due::Retry(ticket)));
        timer::arm(ctx, at);
    }
}

/// Can this waiter, who is first, be served?
fn look(ctx: Ctx<'_>, state: &mut State, now: Now, ticket: Ticket) -> Look {
    let Some(waiter) = state.queues.get(ticket) else {
        return Look::Done(Ok(Reply::Nil));
    };
    if waiter
        .deadline()
        .is_some_and(|deadline| deadline <= now.ms())
    {
        state.stats.timeouts += 1; // the server was too busy to tell it in time
        return Look::Done(Ok(Reply::Nil));
    }
    if !replicas::are_enough(ctx, now) {
        // A command would be refused: another master may give it away meanwhile. The cron event asks again.
        state.held_back = true;
        return Look::Wait(None);
    }
    let waiter = waiter.clone();
    let looked = ctx.in_db(waiter.keys[0].0, || {
        // Most looks find that one and the same of many keys is still busy.
        if waiter.takes_many
            && let Some(wait) = look_at_obstacle(ctx, state, now, ticket, &waiter)
        {
            return wait;
        }
        let names: Vec<ServerString<'_>> = waiter
            .keys
            .iter()
            .map(|(_, key)| ServerString::new(key))
            .collect();
        if !names.iter().all(|name| cluster::serves(ctx, name)) {
            return Look::Wait(None); // the cron event sends the client after its slot
        }
        match waiter.want {
            Want::Upgrade => look_at_upgrade(ctx, state, now, &waiter, &names[0]),
            Want::Claim(claim) => look_at_claim(ctx, state, now, ticket, &waiter, claim, &names),
        }
    });
    looked.unwrap_or(Look::Wait(None))
}

/// Looks for a key that keeps a waiter for several keys waiting, beginning with the one that did so last.
fn look_at_obstacle(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    ticket: Ticket,
    waiter: &Waiter,
) -> Option<Look> {
    let (first, count) = (state.queues.blocked_on(ticket), waiter.keys.len());
    for index in (first..count).chain(0..first) {
        let (db, key) = &waiter.keys[index];
        let name = ServerString::new(key);
        // All keys are in one hash slot. The caller asks for each key before it acquires them.
        if index == first && !cluster::serves(ctx, &name) {
            return Some(Look::Wait(None)); // the cron event sends the client after its slot
        }
        let is_first = state.queues.head(*db, key) == Some(ticket);
        let request = Acquire {
            owner: &waiter.owner,
            claim: Claim::Exclusive,
            lease: waiter.lease,
            id: waiter.id.as_deref(),
            watch: waiter.watch,
            queued: !is_first,
        };
        let mut edit = Edit::open(ctx, state, &name, Kind::Lock, now).ok()?;
        let (admission, end) = (edit.admits(&request), edit.next_end());
        edit.close(state, c"");
        match admission {
            Admission::Busy => {
                state.queues.set_blocked_on(ticket, index);
                return Some(Look::Wait(after(end.filter(|_| is_first))));
            }
            Admission::Never => return None,
            _ => {}
        }
    }
    None
}

fn look_at_upgrade(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    waiter: &Waiter,
    name: &ServerString<'_>,
) -> Look {
    let mut edit = match Edit::open(ctx, state, name, Kind::Lock, now) {
        Ok(edit) => edit,
        Err(error) => return Look::Done(Err(error)),
    };
    let upgraded = edit.upgrade(&waiter.owner, waiter.lease);
    let retry_at = edit.next_end();
    edit.close(state, waiter.event);
    match upgraded {
        Err(error) => Look::Done(Err(error)),
        Ok(Upgraded::NotHeld) => Look::Done(Ok(Reply::Nil)),
        Ok(Upgraded::Busy) => Look::Wait(after(retry_at)),
        Ok(Upgraded::Already(fence) | Upgraded::Upgraded(fence)) => {
            state.stats.handoffs += 1;
            Look::Done(Ok(Reply::int(fence)))
        }
    }
}

fn look_at_claim(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    ticket: Ticket,
    waiter: &Waiter,
    claim: Claim,
    names: &[ServerString<'_>],
) -> Look {
    let (kind, claim) = match claim {
        Claim::Permits { count, limit } => {
            let (db, key) = &waiter.keys[0];
            let limit = state.queues.limit(*db, key, count, limit);
            (Kind::Sem, Claim::Permits { count, limit })
        }
        _ => (Kind::Lock, claim),
    };
    let request = |(db, key): &Key| Acquire {
        owner: &waiter.owner,
        claim,
        lease: waiter.lease,
        id: waiter.id.as_deref(),
        watch: waiter.watch,
        // The first in one queue may be behind others in another.
        queued: waiter.takes_many && state.queues.head(*db, key) != Some(ticket),
    };
    let outcome = if waiter.takes_many {
        let requests: Vec<Acquire<'_>> = waiter.keys.iter().map(request).collect();
        acquire_all(ctx, state, now, names, &requests, waiter.event)
    } else {
        let request = request(&waiter.keys[0]);
        Edit::open(ctx, state, &names[0], kind, now)
            .and_then(|edit| acquire_one(state, edit, &request, waiter.event))
    };
    match outcome {
        Err(error) => Look::Done(Err(error)),
        Ok(Outcome::Busy(retry_at)) => Look::Wait(after(retry_at)),
        Ok(Outcome::Never) => {
            state.stats.refused += 1;
            Look::Done(Ok(Reply::Nil))
        }
        Ok(Outcome::Acquired(reply)) => {
            state.stats.handoffs += 1;
            Look::Done(Ok(reply))
        }
    }
}

/// A hold lasts to the end of its last millisecond.
fn after(end: Option<u64>) -> Option<u64> {
    end.map(|end| end + 1)
}

/// What became of an acquisition of one or several keys.
pub(super) enum Outcome {
    /// All are held; this is the reply.
    Acquired(Reply),
    /// None is; something about them may end by itself at this time (Unix ms).
    Busy(Option<u64>),
    /// None is, and waiting would be for its own owner.
    Never,
}

/// Acquires one key.
pub(super) fn acquire_one(
    state: &mut State,
    mut edit: Edit<'_>,
    request: &Acquire<'_>,
    event: &'static CStr,
) -> Result<Outcome, Error> {
    let acquired = edit.acquire(state, request);
    let outcome = match acquired {
        Err(error) => Err(error),
        Ok(Acquired::Busy) => Ok(Outcome::Busy(edit.next_end())),
        Ok(Acquired::Never) => Ok(Outcome::Never),
        Ok(acquired) => Ok(Outcome::Acquired(Reply::int(count(state, acquired)))),
    };
    edit.close(state, event);
    outcome
}

/// Acquires all or none of several keys, whose requests stand at the same places.
pub(super) fn acquire_all<'k>(
    ctx: Ctx<'k>,
    state: &mut State,
    now: Now,
    names: &'k [ServerString<'k>],
    requests: &[Acquire<'_>],
    event: &'static CStr,
) -> Result<Outcome, Error> {
    let mut edits = Vec::with_capacity(names.len());
    let outcome = open_all(ctx, state, now, names, &mut edits)
        .and_then(|()| step_all(state, &mut edits, requests));
    for edit in edits {
        edit.close(state, event);
    }
    outcome
}

fn open_all<'k>(
    ctx: Ctx<'k>,
    state: &mut State,
    now: Now,
    names: &'k [ServerString<'k>],
    edits: &mut Vec<Edit<'k>>,
) -> Result<(), Error> {
    for name in names {
        edits.push(Edit::open(ctx, state, name, Kind::Lock, now)?);
    }
    Ok(())
}

fn step_all(
    state: &mut State,
    edits: &mut [Edit<'_>],
    requests: &[Acquire<'_>],
) -> Result<Outcome, Error> {
    let mut busy = false;
    let mut ends: Option<u64> = None;
    for (edit, request) in edits.iter_mut().zip(requests) {
        match edit.admits(request) {
            Admission::Never => return Ok(Outcome::Never),
            Admission::Busy => {
                busy = true;
                ends = ends.into_iter().chain(edit.next_end()).min();
            }
            _ => {}
        }
    }
    if busy {
        return Ok(Outcome::Busy(ends));
    }
    let mut fences = Vec::with_capacity(edits.len());
    for (edit, request) in edits.iter_mut().zip(requests) {
        let acquired = edit.acquire(state, request)?;
        fences.push(Reply::int(count(state, acquired)));
    }
    Ok(Outcome::Acquired(Reply::Array(fences)))
}

/// Counts an acquisition that succeeded, and returns its fence.
fn count(state: &mut State, acquired: Acquired) -> u64 {
    match acquired {
        Acquired::Granted(fence) => {
            state.stats.acquired += 1;
            fence
        }
        Acquired::Reentered(fence) => {
            state.stats.reentered += 1;
            fence
        }
        Acquired::Repeated(fence) => fence,
        Acquired::Busy | Acquired::Never => unreachable!("it was admitted"),
    }
}

/// A waiting client is gone, or was unblocked by an operator, who wants it to have this answer.
pub(super) fn left(_ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    let state = &mut *STATE.get();
    if departure == Departure::Unblocked {
        state.stats.timeouts += 1;
    }
    let gone = match departure {
        Departure::Unanswered => state.unanswered.remove(&ticket),
        _ => forget(state, ticket),
    };
    if let Some(waiter) = gone {
        look_behind(state, &waiter);
        if departure == Departure::Unanswered {
            state.undelivered.push_back((waiter, 0));
            state.tasks.push_back(Task::TakeBack);
        }
        deferred::ask_for_slices_and_wake();
    }
    Ok(Reply::Nil)
}

/// Is any hold renewed for this connection?
pub(super) fn follows_client(client: u64) -> bool {
    STATE.get().watches.follows(client)
}

/// Deals with something that happened outside of the family's commands.
pub(super) fn happened(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    let state = &mut *STATE.get();
    match event {
        ServerEvent::Unlinked(db, key) => {
            let sweep = state.watches.sweep_key(*db, key);
            state.tasks.push_back(Task::Unwatch(sweep));
            // The same key may hold a watched lock again, that has been renamed to it.
            let key = (*db, (**key).into());
            state.tasks.push_back(Task::Reconcile(key));
        }
        ServerEvent::Touched(db, key) => {
            state.queues.note_more_holds();
            let key = (*db, (**key).into());
            state.tasks.push_back(Task::Reconcile(key));
        }
        ServerEvent::Flushed(db) => {
            let sweep = state.watches.sweep_db(*db);
            state.tasks.push_back(Task::Unwatch(sweep));
            state.walks.push_back(state.queues.walk(*db));
        }
        ServerEvent::Swapped(first, second) => {
            state.watches.swap(*first, *second);
            state.queues.note_more_holds();
            for db in [*first, *second] {
                state.walks.push_back(state.queues.walk(Some(db)));
            }
        }
        // Waiting clients are looked after slot by slot, and a hold that is renewed is looked at when that is due.
        ServerEvent::SlotMayMove(_) | ServerEvent::SlotsDropped(_) => {}
        ServerEvent::SlotsMoved(_) => DEADLINES.unpark(ctx),
        ServerEvent::Discarded => {}
        ServerEvent::Disconnected(client) => state.tasks.push_back(Task::Abandon(*client)),
        ServerEvent::Loaded | ServerEvent::Replaced => {
            state.queues.note_more_holds();
            state.walks.push_back(state.queues.walk(None));
        }
        ServerEvent::Saving => {
            // An AOF that is rewritten without an RDB part has no other place for it.
            let fence = FENCE.load(Ordering::Relaxed);
            if fence > 0 {
                // Valkey 9 may take a command without a key for one of two slots, and end the export.
                if !tell_importers(ctx, fence) {
                    commit::append_to_aof(ctx, c"LOCK.FENCE", fence);
                }
            }
        }
        ServerEvent::Demoted => {
            state.tasks.clear();
            state.agenda.clear();
            state.walks.clear();
            // Who was served at the last moment keeps what it got: later its owner may hold by another grant.
            state.undelivered.clear();
            // What is left of the leases runs down.
            let sweep = state.watches.sweep_db(None);
            state.tasks.push_back(Task::Unwatch(sweep));
            let farewell = state.queues.walk(None);
            state.tasks.push_back(Task::Farewell(farewell));
        }
    }
    listen_or_not(state);
    deferred::ask_for_slices();
}

fn listen_or_not(state: &State) {
    if state.queues.is_empty() && state.watches.is_empty() {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// Makes a lock fit an expiry that something else gave its key, or a key that it came to.
fn reconcile(ctx: Ctx<'_>, state: &mut State, now: Now, key: &Key) {
    cluster::act_on(ctx, key, |name| {
        for kind in [Kind::Lock, Kind::Sem] {
            // The key may be anybody's, and it is not used now: it keeps its idle time.
            if let Ok(slot) = TypedKey::of(ctx.peek(name), kind.native()) {
                let mut edit = Edit::of(ctx, state, name, slot, kind, now);
                edit.reconcile(state);
                edit.close(state, c"");
            }
        }
    });
}

/// Releases a hold whose connection has gone.
fn abandon(ctx: Ctx<'_>, state: &mut State, now: Now, number: u64) {
    let Some(watched) = state.watches.get(number) else {
        return;
    };
    state.unwatch_number(number);
    cluster::act_on(ctx, &watched.key, |name| {
        if let Ok(mut edit) = Edit::open(ctx, state, name, watched.kind, now) {
            if edit.abandon(state, &watched.owner, watched.client) {
                state.stats.watchdog_released += 1;
            }
            edit.close(state, release_event(watched.kind));
        }
    });
    look_at(state, watched.key);
}

fn release_event(kind: Kind) -> &'static CStr {
    match kind {
        Kind::Lock => c"lock.release",
        Kind::Sem => c"sem.release",
    }
}

fn renew_event(kind: Kind) -> &'static CStr {
    match kind {
        Kind::Lock => c"lock.renew",
        Kind::Sem => c"sem.renew",
    }
}

/// Does what is due, in slices. While writes are paused only waits can end: nothing may change then.
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let state = &mut *STATE.get();
    let may_act = ctx.may_act();
    let mut slice = Slice::begin();
    let mut next = None;
    while let Some((at, ticket)) = state.timeouts.first().copied() {
        if at > now.ms() {
            next = Some(at);
            break;
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        state.timeouts.pop_first();
        state.stats.timeouts += 1;
        if let Some(waiter) = dismiss(state, ticket, Ok(Reply::Nil)) {
            slice.has_answered();
            look_behind(state, &waiter);
        }
    }
    if !may_act {
        return next; // the cron event asks again
    }
    while let Some((at, due)) = state.deadlines.first().copied() {
        if at > now.ms() {
            next = Some(next.map_or(at, |next| next.min(at)));
            break;
        }
        if slice.is_over() {
            next = Some(now.ms() + 1);
            break;
        }
        state.deadlines.pop_first();
        match due {
            Due::Retry(ticket) => {
                state.queues.set_retry(ticket, None);
                let index = state.queues.blocked_on(ticket);
                if let Some(waiter) = state.queues.get(ticket).cloned() {
                    look_at(state, waiter.keys[index].clone());
                }
            }
            Due::Renew(number) => renew(ctx, state, now, number),
            Due::Search => begin_search(state, now),
        }
    }
    loop {
        let Some((at, number)) = DEADLINES.get().first() else {
            break;
        };
        if at > now.ms() {
            next = Some(next.map_or(at, |next| next.min(at)));
            break;
        }
        if slice.is_over() {
            next = Some(now.ms() + 1);
            break;
        }
        end_holds(ctx, state, now, number);
    }
    while !slice.is_over() && step(ctx, state, now, &mut slice) {}
    if has_work(state) {
        deferred::ask_for_slices();
    }
    next
}

/// So many holds of a lock end in one go.
const MOST_ENDS: usize = 256;

/// Ends some of the holds whose time is up, of the lock that is listed under this number.
fn end_holds(ctx: Ctx<'_>, state: &mut State, now: Now, number: u64) {
    let Some(place) = DEADLINES.get().place(number).cloned() else {
        return;
    };
    let name = ServerString::new(&place.key);
    if !cluster::owns(ctx, &name) {
        return DEADLINES.get().park(number);
    }
    let mut end = |db| ctx.in_db(db, || end_holds_at(ctx, state, now, &name, number));
    let found = match place.db {
        ANY_DB => (0..).map_while(&mut end).any(|found| found),
        db => end(db) == Some(true),
    };
    if !found {
        DEADLINES.get().remove(number);
    }
}

/// The same, if it is at this key of the selected database. Is it?
fn end_holds_at(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    name: &ServerString<'_>,
    number: u64,
) -> bool {
    for kind in [Kind::Lock, Kind::Sem] {
        if let Ok(mut edit) = Edit::open_to_end(ctx, state, name, kind, now, MOST_ENDS) {
            let (is_it, some_ended) = (edit.number() == number, edit.has_ended_some());
            edit.list_again();
            edit.close(state, c"");
            if some_ended {
                look_at(state, (ctx.db(), name.bytes().into()));
            }
            if is_it {
                return true;
            }
        }
    }
    false
}

/// Who stood behind a waiter that has gone may be next.
fn look_behind(state: &mut State, gone: &Waiter) {
    for key in &gone.keys {
        look_at(state, key.clone());
    }
}

fn has_work(state: &State) -> bool {
    !state.tasks.is_empty()
        || !state.agenda.is_empty()
        || !state.walks.is_empty()
        || state.search.is_some()
        || state.remains.is_some()
}

/// Goes on with what is done in slices.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let state = &mut *STATE.get();
    let now = Now::read();
    if !ctx.may_act() {
        return go_on_as_replica(ctx, state, now, slice);
    }
    while !slice.is_over() {
        if !step(ctx, state, now, slice) && !search(ctx, state, now) {
            break;
        }
    }
    listen_or_not(state);
    has_work(state)
}

/// The same on a replica, which has only itself to look after. While writes are paused nothing is done: the cron event asks
/// again.
fn go_on_as_replica(ctx: Ctx<'_>, state: &mut State, now: Now, slice: &mut Slice) -> bool {
    if !ctx.is_replica() {
        return false;
    }
    while !slice.is_over() {
        match state.tasks.pop_front() {
            Some(task @ (Task::Unwatch(_) | Task::Farewell(_) | Task::SendAway(..))) => {
                take(ctx, state, now, task);
                slice.has_answered();
            }
            Some(_) => {} // it was the master's affair
            None => break,
        }
    }
    listen_or_not(state);
    !state.tasks.is_empty()
}

/// How long after a wait that could not be checked at once a search begins, and how long at least after the last one.
pub(super) const BEFORE_SEARCH_MS: u64 = 10;

/// How long at most after the last one, however long that took.
const BETWEEN_SEARCHES_MS: u64 = 300;

/// How many steps a search takes before it looks at the clock.
const SEARCH_STEPS: u64 = 256;

/// Has deadlocks looked for soon, because it could not be found out at once whether somebody waits in vain.
pub(super) fn search_soon(ctx: Ctx<'_>, state: &mut State, at: u64) {
    if !state.will_search && state.search.is_none() && state.remains.is_none() {
        state.will_search = true;
        state.deadlines.insert((at, Due::Search));
        timer::arm(ctx, at);
    }
}

fn begin_search(state: &mut State, now: Now) {
    state.will_search = false;
    if state.queues.has_doubts() && state.search.is_none() {
        let search = Search::of_doubts(&mut state.queues);
        state.search = Some((search, now.ms()));
    }
}

/// Takes some steps of the search for deadlocks. False if there is none.
fn search(ctx: Ctx<'_>, state: &mut State, now: Now) -> bool {
    let mut steps = SEARCH_STEPS;
    if let Some((remains, next_at)) = &mut state.remains {
        if remains.forget(&mut state.queues, &mut steps) {
            let next_at = *next_at;
            state.remains = None;
            if state.queues.has_doubts() {
                search_soon(ctx, state, next_at);
            }
        }
        return true;
    }
    let Some((search, began)) = &mut state.search else {
        return false;
    };
    let read = &mut |key: &Key, visit: &mut dyn FnMut(&Lock)| read_lock(ctx, key, visit);
    let Some(in_vain) = search.go_on(&mut state.queues, &mut steps, read) else {
        return true;
    };
    let pause = match in_vain {
        Some(_) => 0, // perhaps not the only one
        None => (2 * now.ms().saturating_sub(*began)).clamp(BEFORE_SEARCH_MS, BETWEEN_SEARCHES_MS),
    };
    if let Some((search, _)) = state.search.take() {
        let remains = search.conclude(&mut state.queues, in_vain);
        state.remains = Some((remains, now.ms() + pause));
    }
    if let Some(ticket) = in_vain
        && let Some(waiter) = dismiss(state, ticket, Err(Error::Deadlock))
    {
        state.stats.deadlocks += 1;
        look_behind(state, &waiter);
    }
    true
}

/// Calls `visit` with the lock or semaphore at a key of any database, if there is one.
pub(super) fn read_lock(ctx: Ctx<'_>, (db, key): &Key, visit: &mut dyn FnMut(&Lock)) {
    ctx.in_db(*db, || {
        let name = ServerString::new(key);
        for kind in [Kind::Lock, Kind::Sem] {
            if let Ok(mut slot) = TypedKey::of(ctx.open(&name), kind.native())
                && let Some(lock) = slot.value()
            {
                visit(lock);
            }
        }
    });
}

/// Renews a watched hold for its connection.
fn renew(ctx: Ctx<'_>, state: &mut State, now: Now, number: u64) {
    let Some(watched) = state.watches.get(number) else {
        return;
    };
    if !is_connected(watched.client) {
        state.tasks.push_back(Task::Abandon(watched.client));
        return;
    }
    state.watches.remove(number);
    cluster::act_on(ctx, &watched.key, |name| {
        if let Ok(mut edit) = Edit::open(ctx, state, name, watched.kind, now) {
            if edit.renew_watched(state, &watched.owner, watched.client) {
                state.stats.renewed += 1;
            }
            edit.close(state, renew_event(watched.kind));
        }
    });
}

/// Serves those that had to wait until the master has enough replicas.
pub(super) fn cron(ctx: Ctx<'_>) {
    DEADLINES.unpark(ctx);
    let state = &mut *STATE.get();
    if has_work(state) {
        deferred::ask_for_slices(); // which may have had to wait
    }
    if state.queues.is_empty() || !ctx.may_act() {
        return;
    }
    let now = Now::read();
    if state.held_back && replicas::are_enough(ctx, now) {
        state.held_back = false;
        state.walks.push_back(state.queues.walk(None));
        deferred::ask_for_slices();
    }
}

/// How waiting clients are looked after in a cluster.
pub(super) const WAITING: InSlots = InSlots {
    slots: || STATE.get().queues.slots(),
    keys: |slot, behind, most| STATE.get().queues.keys_of_slot(slot, behind, most),
    send_away: |(db, key), error, most| send_away(&mut STATE.get(), *db, key, error, most),
    serve: |ctx, key| {
        let state = &mut *STATE.get();
        if !state.queues.knows_when(key.0, &key.1) {
            serve(ctx, state, Now::read(), [key.clone()]);
        }
    },
};

/// Answers clients that wait for a key with an error, so many at most. Returns how many there were.
fn send_away(state: &mut State, db: i32, key: &[u8], error: &Error, most: usize) -> usize {
    let line = state.queues.line_of(db, key);
    let tickets: Vec<Ticket> = line.map(|(ticket, _)| ticket).take(most).collect();
    for ticket in &tickets {
        dismiss(state, *ticket, Err(error.clone()));
    }
    tickets.len()
}

/// Tells the nodes that slots are copied to which fence was the last: of a lock that is free by now, nothing else goes there.
/// The server has just begun to copy, so all later fences follow with the locks that have them. The AOF has it then, too.
/// False if there is no such node.
fn tell_importers(ctx: Ctx<'_>, fence: u64) -> bool {
    let slots = cluster::exported_slots();
    for slot in &slots {
        let mut effects = Vec::new();
        persist::put_fence(&mut effects, fence);
        // A server passes on only what has a key in the slot. This one is not opened, and need not be there.
        let name = ServerString::new(&slots::key_in(*slot));
        let commit = Commit {
            replicate: Replicate::Effect(c"LOCK.APPLY", &effects),
            ..Commit::default()
        };
        commit.carry_out_without_key(ctx, &name);
    }
    !slots.is_empty()
}

/// The section `lock` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    let state = STATE.try_get()?;
    let stats = &state.stats;
    Some(vec![
        ("lock_acquired", stats.acquired),
        ("lock_reentered", stats.reentered),
        ("lock_refused", stats.refused),
        ("lock_waited", stats.waited),
        ("lock_waiting", state.queues.len() as u64),
        ("lock_timeouts", stats.timeouts),
        ("lock_handoffs", stats.handoffs),
        ("lock_renewed", stats.renewed),
        (
            "lock_expired_leases",
            EXPIRED_LEASES.load(Ordering::Relaxed),
        ),
        ("lock_watchdog_holds", state.watches.len() as u64),
        ("lock_watchdog_released", stats.watchdog_released),
        ("lock_deadlocks", stats.deadlocks),
    ])
}
