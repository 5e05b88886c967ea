//! What happens without a command: locks are handed to waiting clients, waits end, watched holds
//! are renewed, and released when their connection closes.

use super::edit::Edit;
use super::native::Kind;
use super::persist;
use super::queue::{Waiter, Want};
use super::state::{Acquire, Acquired, Admission, Amount, Claim, Upgraded};
use super::{Due, EXPIRED_LEASES, FENCE, LISTENING, ROOM, STATE, State};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::server::block::Departure;
use crate::server::clock::Now;
use crate::server::cluster;
use crate::server::context::{Ctx, Name, is_connected};
use crate::server::events::{self, Happening};
use crate::server::{replicas, slots, timer};
use crate::waiting::{InSlots, Key, SMALL, Ticket};
use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// What a look at a waiter's locks came to.
enum Look {
    /// It is answered and waits no more.
    Done(Answer),
    /// It goes on waiting; something may change at this time (Unix ms) by itself.
    Wait(Option<u64>),
}

/// Serves whoever can be served, in order, in the queues of these keys.
pub(super) fn serve(ctx: Ctx<'_>, state: &mut State, now: Now, mut keys: Vec<Key>) {
    // Who waits for many keys may be first on each of them: as long as nothing changes, one look is enough.
    let mut seen = HashSet::new();
    while let Some((db, key)) = keys.pop() {
        while let Some(ticket) = state.queues.head(db, &key) {
            if seen.contains(&ticket) {
                break;
            }
            match look(ctx, state, now, ticket) {
                Look::Wait(retry_at) => {
                    set_retry(ctx, state, ticket, retry_at);
                    if !keys.is_empty() {
                        seen.insert(ticket);
                    }
                    break;
                }
                Look::Done(answer) => {
                    seen.clear();
                    let holds_now = matches!(answer, Ok(Reply::Int(_)));
                    if let Some(waiter) = dismiss(state, ticket, answer) {
                        if holds_now {
                            serve_same_owner(ctx, state, now, &waiter);
                        }
                        keys.extend(waiter.keys.into_iter().filter(|other| *other.1 != *key));
                    }
                }
            }
        }
    }
}

/// Other connections of an owner that has just been served wait for what it holds now: a retry of
/// the same request, for instance. They need not wait until they are first.
fn serve_same_owner(ctx: Ctx<'_>, state: &mut State, now: Now, served: &Waiter) {
    let claims_lock = |waiter: &Waiter| {
        matches!(waiter.want, Want::Claim(Claim::Exclusive | Claim::Shared))
            && waiter.keys == served.keys
    };
    let others: Vec<Ticket> = state.queues.of_owner(&served.owner).to_vec();
    for ticket in others {
        if state.queues.get(ticket).is_some_and(claims_lock)
            && let Look::Done(answer) = look(ctx, state, now, ticket)
        {
            dismiss(state, ticket, answer);
        }
    }
}

/// Takes a waiter out of its queues and answers it.
fn dismiss(state: &mut State, ticket: Ticket, answer: Answer) -> Option<Waiter> {
    let given = matches!(answer, Ok(Reply::Int(_) | Reply::Array(_)));
    ROOM.wake(ticket, answer);
    let waiter = forget(state, ticket)?;
    if given {
        state.unanswered.insert(ticket, waiter.clone());
    }
    Some(waiter)
}

/// A waiter that was served has got its answer.
pub(super) fn answered(ticket: Ticket) {
    let state = &mut *STATE.get();
    state.unanswered.remove(&ticket);
    if state.unanswered.is_empty() {
        state.unanswered.shrink_to(SMALL); // the memory of a crowd
    }
}

/// Takes back what waiters were given who went before they could be told.
fn take_back_undelivered(ctx: Ctx<'_>, state: &mut State, now: Now) {
    for waiter in std::mem::take(&mut state.undelivered) {
        if waiter.id.is_some() {
            continue; // its retry finds the hold, or has been told of it already
        }
        let (kind, amount) = match waiter.want {
            Want::Claim(Claim::Permits { count, .. }) => (Kind::Sem, Amount::Count(count)),
            Want::Claim(_) => (Kind::Lock, Amount::Count(1)),
            Want::Upgrade => continue, // it had a hold before, and keeps it
        };
        for key in &waiter.keys {
            cluster::act_on(ctx, key, |name| {
                if let Ok(mut edit) = Edit::open(ctx, state, name, kind, now) {
                    edit.release(state, &waiter.owner, amount, None);
                    edit.close(state, release_event(kind));
                }
            });
        }
    }
}

/// Takes a waiter out of its queues.
fn forget(state: &mut State, ticket: Ticket) -> Option<Waiter> {
    let waiter = state.queues.remove(ticket)?;
    if let Some(at) = waiter.deadline() {
        state.deadlines.remove(&(at, Due::Timeout(ticket)));
    }
    if let Some(at) = waiter.retry_at {
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
        let names: Vec<Name<'_>> = waiter.keys.iter().map(|(_, key)| Name::new(key)).collect();
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

fn look_at_upgrade(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    waiter: &Waiter,
    name: &Name<'_>,
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
    names: &[Name<'_>],
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
    event: &CStr,
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
    names: &'k [Name<'k>],
    requests: &[Acquire<'_>],
    event: &CStr,
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
    names: &'k [Name<'k>],
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
        if departure == Departure::Unanswered {
            state.undelivered.push(waiter.clone());
        }
        look_again(waiter);
    }
    Ok(Reply::Nil)
}

/// Is any hold renewed for this connection?
pub(super) fn follows_client(client: u64) -> bool {
    STATE.get().watches.follows(client)
}

/// Deals with something that happened outside of the family's commands.
pub(super) fn happened(ctx: Ctx<'_>, now: Now, happening: &Happening) {
    let state = &mut *STATE.get();
    match happening {
        Happening::Unlinked(db, key) => {
            let place = (*db, key.clone());
            for number in state.watches.of_key(&place) {
                state.unwatch_number(number);
            }
            // The same key may hold a watched lock again, that has been renamed to it.
            reconcile(ctx, state, now, &place);
            serve(ctx, state, now, vec![place]);
        }
        Happening::Touched(db, key) => {
            reconcile(ctx, state, now, &(*db, key.clone()));
            serve(ctx, state, now, vec![(*db, key.clone())]);
        }
        Happening::Left(db, key) => {
            take_back_undelivered(ctx, state, now);
            serve(ctx, state, now, vec![(*db, key.clone())]);
        }
        Happening::Flushed(db) => {
            for number in state.watches.of_db(*db) {
                state.unwatch_number(number);
            }
            let keys = state.queues.keys(*db);
            serve(ctx, state, now, keys);
        }
        Happening::Swapped(first, second) => {
            state.watches.swap(*first, *second);
            let keys = [*first, *second].map(|db| state.queues.keys(Some(db)));
            serve(ctx, state, now, keys.concat());
        }
        // Waiting clients are looked after slot by slot, and a hold that is renewed is looked at when that is due.
        Happening::SlotMayMove(_) | Happening::SlotsMoved(_) | Happening::SlotsDropped(_) => {}
        Happening::Discarded => {}
        Happening::Disconnected(client) => abandon(ctx, state, now, *client),
        Happening::Loaded | Happening::Replaced => {
            let keys = state.queues.keys(None);
            serve(ctx, state, now, keys);
        }
        Happening::Saving => {
            // An AOF that is rewritten without an RDB part has no other place for it.
            let fence = FENCE.load(Ordering::Relaxed);
            if fence > 0 {
                ctx.append_number(c"LOCK.FENCE", fence);
                tell_importers(ctx, fence);
            }
        }
        Happening::Demoted => {
            // What is left of the leases runs down.
            for number in state.watches.of_db(None) {
                state.unwatch_number(number);
            }
            // Who was served at the last moment keeps what it got: later its owner may hold by another grant.
            state.undelivered.clear();
            // Most servers have told the waiting clients already. Valkey 9.1 does not, in a cluster.
            for (db, key) in state.queues.keys(None) {
                let farewell = cluster::farewell(ctx, &Name::new(&key));
                send_away(state, db, &key, &farewell, usize::MAX);
            }
        }
    }
    if state.queues.is_empty() && state.watches.is_empty() {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// Makes a lock fit an expiry that something else gave its key, or a key that it came to.
fn reconcile(ctx: Ctx<'_>, state: &mut State, now: Now, key: &Key) {
    cluster::act_on(ctx, key, |name| {
        for kind in [Kind::Lock, Kind::Sem] {
            if let Ok(mut edit) = Edit::open(ctx, state, name, kind, now) {
                edit.reconcile(state);
                edit.close(state, c"");
            }
        }
    });
}

/// Releases what was watched for a connection.
fn abandon(ctx: Ctx<'_>, state: &mut State, now: Now, client: u64) {
    for number in state.watches.of_client(client) {
        let Some(watched) = state.watches.get(number).cloned() else {
            continue;
        };
        state.unwatch_number(number);
        cluster::act_on(ctx, &watched.key, |name| {
            if let Ok(mut edit) = Edit::open(ctx, state, name, watched.kind, now) {
                if edit.abandon(state, &watched.owner, client) {
                    state.stats.watchdog_released += 1;
                }
                edit.close(state, release_event(watched.kind));
            }
        });
        serve(ctx, state, now, vec![watched.key]);
    }
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

/// Does what is due. While writes are paused only waits can end: nothing may change then.
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let state = &mut *STATE.get();
    let may_act = ctx.may_act();
    let possible = |(_, due): &&(u64, Due)| may_act || matches!(due, Due::Timeout(_));
    while let Some((at, due)) = state.deadlines.iter().find(possible).copied() {
        if at > now.ms() {
            return Some(at);
        }
        state.deadlines.remove(&(at, due));
        match due {
            Due::Timeout(ticket) => {
                state.stats.timeouts += 1;
                if let Some(waiter) = dismiss(state, ticket, Ok(Reply::Nil)) {
                    look_again(waiter);
                }
            }
            Due::Retry(ticket) => {
                state.queues.set_retry(ticket, None);
                if let Some(keys) = state.queues.get(ticket).map(|waiter| waiter.keys.clone()) {
                    serve(ctx, state, now, keys);
                }
            }
            Due::Renew(number) => renew(ctx, state, now, number),
        }
    }
    None
}

/// Who stood behind a waiter that has gone may be next.
fn look_again(gone: Waiter) {
    for (db, key) in gone.keys {
        events::note_and_wake(Happening::Left(db, key));
    }
}

/// Renews a watched hold for its connection.
fn renew(ctx: Ctx<'_>, state: &mut State, now: Now, number: u64) {
    let Some(watched) = state.watches.get(number).cloned() else {
        return;
    };
    if !is_connected(watched.client) {
        return abandon(ctx, state, now, watched.client);
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
    let state = &mut *STATE.get();
    if state.queues.is_empty() || !ctx.may_act() {
        return;
    }
    let now = Now::read();
    if state.held_back && replicas::are_enough(ctx, now) {
        state.held_back = false;
        let keys = state.queues.keys(None);
        serve(ctx, state, now, keys);
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
            serve(ctx, state, Now::read(), vec![key.clone()]);
        }
    },
};

/// Answers clients that wait for a key with an error, so many at most.
fn send_away(state: &mut State, db: i32, key: &[u8], error: &Error, most: usize) {
    let line = state.queues.line_of(db, key);
    let tickets: Vec<Ticket> = line.map(|(ticket, _)| ticket).take(most).collect();
    for ticket in tickets {
        dismiss(state, ticket, Err(error.clone()));
    }
}

/// Tells the nodes that slots are copied to which fence was the last: of a lock that is free by now, nothing else goes there.
/// The server has just begun to copy, so all later fences follow with the locks that have them.
fn tell_importers(ctx: Ctx<'_>, fence: u64) {
    for slot in cluster::exported_slots() {
        let mut effects = Vec::new();
        persist::put_fence(&mut effects, fence);
        // A server passes on only what has a key in the slot. This one is not opened, and need not be there.
        let name = Name::new(&slots::key_in(slot));
        ctx.replicate(c"LOCK.APPLY", &name, &effects);
    }
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
