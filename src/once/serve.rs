//! Waiting clients over time: clients that begin to wait, replies to them, timeouts, and server events.

use super::edit::{WorkEdit, limit_expiry};
use super::queue::{OnceWaiter, WorkWaitEnd};
use super::state::{BeginDecision, decide_begin, decide_fail};
use super::{BLOCKED, COUNTERS, EXPIRED_LEASES, OnceState, STATE, WAITING_CLIENTS, WorkDismissal};
use crate::error::Error;
use crate::reply::{Answer, Fetched, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::blocked::Departure;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::memory;
use crate::server::services::timer;
use crate::waiting::{InSlots, Key, ScanStep, Ticket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The time until a queue is served again if nothing may be changed now.
const RETRY_MS: u64 = 100;

fn reply(state: &'static str, value: Option<Arc<[u8]>>, n: u64) -> Reply {
    Reply::Fetched(Fetched { state, value, n })
}

/// Blocks the client of the running command, which waits for the end of work. `block_ms`: the longest wait; 0: without limit.
/// `lease_left`: the time until the worker's lease ends. Returns false if the server does not let the client block.
pub(super) fn wait(
    ctx: Ctx<'_>,
    key: &[u8],
    (lease_ms, fingerprint): (u64, &[u8]),
    block_ms: u64,
    lease_left: u64,
    now: u64,
) -> bool {
    let Some(blocked) = BLOCKED.block(ctx) else {
        return false;
    };
    let waiter = OnceWaiter {
        key: (ctx.db(), key.into()),
        lease_ms,
        fingerprint: fingerprint.into(),
        deadline: (block_ms > 0).then(|| now + block_ms),
    };
    let (key, deadline) = (waiter.key.clone(), waiter.deadline);
    let ticket = STATE.get().queue.push(waiter);
    blocked.wait(ticket);
    note_waiting_clients();
    if let Some(at) = deadline {
        timer::arm(ctx, at);
    }
    set_retry(ctx, &key, Some(now + lease_left));
    true
}

/// Notes how many clients wait.
fn note_waiting_clients() {
    let count = STATE.get().queue.len() as u64;
    WAITING_CLIENTS.store(count, Ordering::Relaxed);
}

/// Removes a client from its queue.
fn remove(ticket: Ticket) -> Option<OnceWaiter> {
    let waiter = STATE.get().queue.remove(ticket);
    note_waiting_clients();
    waiter
}

fn set_retry(ctx: Ctx<'_>, key: &Key, at: Option<u64>) {
    STATE.get().queue.set_retry(key.0, &key.1, at);
    if let Some(at) = at {
        timer::arm(ctx, at);
    }
}

/// Serves a key's queue in order, as far as there are replies for its clients. A long queue is served in slices.
pub(super) fn serve(ctx: Ctx<'_>, now: Now, key: &Key) {
    serve_in(ctx, now, key, &mut Slice::begin());
    ask_for_slices_if_needed();
}

fn ask_for_slices_if_needed() {
    if has_work(&STATE.get()) {
        deferred::ask_for_slices();
    }
}

fn serve_in(ctx: Ctx<'_>, now: Now, key: &Key, slice: &mut Slice) {
    if waiting(key) == 0 {
        return;
    }
    ctx.in_db(key.0, || {
        let name = ServerString::new(&key.1);
        if !cluster::serves(ctx, &name) {
            // The cron event redirects the clients to the node of their hash slot, or serves them once the slot is here
            // again. The work may have ended by then.
            return set_retry(ctx, key, None);
        }
        serve_queue(ctx, now, key, &name, slice);
    });
}

fn waiting(key: &Key) -> usize {
    STATE.get().queue.waiting(key.0, &key.1)
}

/// The first client of a queue.
fn head(key: &Key) -> Option<(Ticket, OnceWaiter)> {
    let queue = &STATE.get().queue;
    let ticket = queue.head(key.0, &key.1)?;
    Some((ticket, queue.get(ticket)?.clone()))
}

fn serve_queue(ctx: Ctx<'_>, now: Now, key: &Key, name: &ServerString<'_>, slice: &mut Slice) {
    // The result is copied once for all clients.
    let mut shared: Option<Arc<[u8]>> = None;
    while let Some((ticket, waiter)) = head(key) {
        if slice.is_over() {
            return STATE.get().agenda.push_front(key.clone());
        }
        slice.has_answered();
        let answer = match step(ctx, now, key, name, (ticket, &waiter), &mut shared) {
            WorkHeadStep::Answer(answer) => answer,
            WorkHeadStep::Waits(at) => return set_retry(ctx, key, Some(at)),
        };
        remove(ticket);
        BLOCKED.wake(ticket, answer);
    }
}

/// What becomes of the first client of a queue.
enum WorkHeadStep {
    /// It receives this answer.
    Answer(Answer),
    /// It waits, and is looked at again at this time (Unix ms).
    Waits(u64),
}

fn step(
    ctx: Ctx<'_>,
    now: Now,
    key: &Key,
    name: &ServerString<'_>,
    (ticket, waiter): (Ticket, &OnceWaiter),
    shared: &mut Option<Arc<[u8]>>,
) -> WorkHeadStep {
    let mut edit = match WorkEdit::open(ctx, name) {
        Ok(edit) => edit,
        Err(error) => return WorkHeadStep::Answer(Err(error)),
    };
    let may_act = ctx.may_act();
    if may_act {
        edit.remove_if_over(now.ms());
    }
    let answer = match decide_begin(edit.work().as_deref(), &waiter.fingerprint, now.ms()) {
        BeginDecision::Begin if !may_act => return WorkHeadStep::Waits(now.ms() + RETRY_MS),
        BeginDecision::Begin if memory::is_full() => Err(Error::OutOfMemory),
        BeginDecision::Begin => {
            let begun = edit.begin(waiter.lease_ms, &waiter.fingerprint, now);
            if let Ok(token) = begun {
                COUNTERS.begun.count();
                STATE.get().unsent.insert(ticket, (key.clone(), token));
            }
            begun.map(|token| reply("NEW", None, token))
        }
        BeginDecision::Conflict => {
            COUNTERS.conflicts.count();
            Err(Error::OtherFingerprint)
        }
        BeginDecision::Done(left) => {
            COUNTERS.replayed.count();
            let result = edit.work().and_then(|work| work.result.as_deref());
            let result = shared.get_or_insert_with(|| result.unwrap_or_default().into());
            Ok(reply("DONE", Some(result.clone()), left))
        }
        BeginDecision::Busy(left) => return WorkHeadStep::Waits(now.ms() + left),
    };
    WorkHeadStep::Answer(answer)
}

/// Ends the wait of the first client of a queue with an error. Returns whether there was one.
fn dismiss_head(key: &Key, error: Error) -> bool {
    let Some((ticket, _)) = head(key) else {
        return false;
    };
    remove(ticket);
    BLOCKED.wake(ticket, Err(error));
    true
}

/// The reply of a client that was served has been sent.
pub(super) fn reply_sent(ticket: Ticket) {
    STATE.get().unsent.remove(&ticket);
}

/// A client has left. Returns the reply for a client that `CLIENT UNBLOCK` has unblocked.
pub(super) fn client_left(ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    if departure == Departure::Unanswered {
        let lease = STATE.get().unsent.remove(&ticket);
        if lease.is_some() {
            STATE.get().undelivered.extend(lease);
            deferred::ask_for_slices_and_wake();
        }
        return Ok(Reply::Nil);
    }
    let waiter = remove(ticket);
    match waiter.filter(|_| departure == Departure::Unblocked) {
        Some(waiter) => Ok(time_out(ctx, &waiter, Now::read())),
        None => Ok(Reply::Nil),
    }
}

/// The reply of a client whose time is up: the time that is left of the worker's lease.
fn time_out(ctx: Ctx<'_>, waiter: &OnceWaiter, now: Now) -> Reply {
    COUNTERS.busy.count();
    let (db, key) = &waiter.key;
    let until = ctx.in_db(*db, || {
        let name = ServerString::new(key);
        let edit = WorkEdit::open(ctx, &name);
        edit.ok()
            .and_then(|mut edit| edit.work().map(|work| work.until))
    });
    // Nothing is at the key if the next client is about to be served.
    let left = until.flatten().unwrap_or(0).saturating_sub(now.ms());
    reply("BUSY", None, left)
}

/// Handles a server event.
pub(super) fn handle_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    if let ServerEvent::Touched(db, key) = event {
        cluster::act_on(ctx, &(*db, (**key).into()), |name| limit_expiry(ctx, name));
    }
    if WAITING_CLIENTS.load(Ordering::Relaxed) == 0 && *event != ServerEvent::Demoted {
        return;
    }
    let state = &mut *STATE.get();
    match event {
        ServerEvent::Unlinked(db, key) | ServerEvent::Touched(db, key) => {
            if state.queue.waiting(*db, key) == 0 {
                return;
            }
            state.agenda.push((*db, (**key).into()));
        }
        ServerEvent::Flushed(db) => state.scans.push_back(state.queue.scan(*db)),
        ServerEvent::Swapped(first, second) => {
            let scans = [*first, *second].map(|db| state.queue.scan(Some(db)));
            state.scans.extend(scans);
        }
        ServerEvent::Loaded | ServerEvent::Replaced => {
            state.scans.push_back(state.queue.scan(None));
        }
        ServerEvent::Demoted => demote(state),
        ServerEvent::SlotMayMove(_)
        | ServerEvent::SlotsMoved(_)
        | ServerEvent::SlotsDropped(_)
        | ServerEvent::Disconnected(_)
        | ServerEvent::Saving
        | ServerEvent::Discarded => return,
    }
    deferred::ask_for_slices();
}

/// The server has become a replica. Only masters have waiting clients.
fn demote(state: &mut OnceState) {
    state.agenda.clear();
    state.scans.clear();
    state.undelivered.clear();
    // Most servers have ended the waits already. Valkey 9.1 does not, in a cluster.
    let scan = state.queue.scan(None);
    state.dismissals.push_back(WorkDismissal::All(scan));
}

fn has_work(state: &OnceState) -> bool {
    !state.agenda.is_empty()
        || !state.scans.is_empty()
        || !state.dismissals.is_empty()
        || !state.undelivered.is_empty()
}

/// Continues the work in slices.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let now = Now::read();
    let may_act = ctx.may_act();
    while !slice.is_over() && (dismiss_next(ctx, slice) || may_act && take_step(ctx, now, slice)) {}
    let state = STATE.get();
    !state.dismissals.is_empty() || may_act && has_work(&state)
}

/// Takes the next step of the work in slices. Returns false if there is none.
fn take_step(ctx: Ctx<'_>, now: Now, slice: &mut Slice) -> bool {
    let undelivered = STATE.get().undelivered.pop_front();
    if let Some((key, token)) = undelivered {
        take_back(ctx, now, &key, token);
        STATE.get().agenda.push(key);
        return true;
    }
    let next = STATE.get().agenda.pop();
    if let Some(key) = next {
        serve_in(ctx, now, &key, slice);
        return true;
    }
    let state = &mut *STATE.get();
    let Some(scan) = state.scans.front_mut() else {
        return false;
    };
    match state.queue.next_scanned(scan) {
        Some(ScanStep(key)) => key.into_iter().for_each(|key| state.agenda.push(key)),
        None => drop(state.scans.pop_front()),
    }
    true
}

/// Frees the key of a client that left before it received its token: it never began the work.
fn take_back(ctx: Ctx<'_>, now: Now, key: &Key, token: u64) {
    cluster::act_on(ctx, key, |name| {
        if let Ok(mut edit) = WorkEdit::open(ctx, name)
            && decide_fail(edit.work().as_deref(), token, now.ms())
        {
            edit.fail();
        }
    });
}

/// Ends the next wait that is to end with an error. Returns false if there is none.
fn dismiss_next(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let next = STATE.get().dismissals.pop_front();
    match next {
        None => return false,
        Some(WorkDismissal::All(mut scan)) => {
            let step = STATE.get().queue.next_scanned(&mut scan);
            if let Some(ScanStep(key)) = step {
                STATE.get().dismissals.push_front(WorkDismissal::All(scan));
                if let Some(key) = key {
                    let error = cluster::farewell(ctx, &ServerString::new(&key.1));
                    let dismissal = WorkDismissal::Key(key, error);
                    STATE.get().dismissals.push_front(dismissal);
                }
            }
        }
        Some(WorkDismissal::Key(key, error)) => {
            if dismiss_head(&key, error.clone()) {
                let dismissal = WorkDismissal::Key(key, error);
                STATE.get().dismissals.push_front(dismissal);
                slice.has_answered();
            }
        }
    }
    true
}

/// Handles the deadlines that have passed. Returns the next deadline (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let mut slice = Slice::begin();
    loop {
        let at = STATE.get().queue.next_deadline()?;
        if at > now.ms() {
            return Some(at);
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        let deadline = STATE.get().queue.pop_deadline();
        match deadline {
            Some(WorkWaitEnd::Timeout(ticket)) => {
                if let Some(waiter) = remove(ticket) {
                    let reply = time_out(ctx, &waiter, Now::read());
                    BLOCKED.wake(ticket, Ok(reply));
                    slice.has_answered();
                }
            }
            Some(WorkWaitEnd::Retry(key)) => {
                serve_in(ctx, now, &key, &mut slice);
                ask_for_slices_if_needed();
            }
            None => return None,
        }
    }
}

/// Continues work that had to wait.
pub(super) fn cron(_ctx: Ctx<'_>) {
    ask_for_slices_if_needed();
}

/// How waiting clients are handled in a cluster.
pub(super) const WAITING: InSlots = InSlots {
    index: || STATE.get().queue.index_slots(),
    slots: || STATE.get().queue.slots(),
    keys: |slot, behind, most| STATE.get().queue.keys_of_slot(slot, behind, most),
    send_away: dismiss,
    serve: |ctx, key| {
        let has_retry = STATE.get().queue.has_retry(key.0, &key.1);
        if !has_retry {
            serve(ctx, Now::read(), key);
        }
    },
};

/// Ends the waits of at most `most` clients of a key with an error. Returns the number of these clients.
fn dismiss(key: &Key, error: &Error, most: usize) -> usize {
    (0..most)
        .take_while(|_| dismiss_head(key, error.clone()))
        .count()
}

/// The section `once` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    Some(vec![
        ("once_begun", COUNTERS.begun.get()),
        ("once_done", COUNTERS.done.get()),
        ("once_failed", COUNTERS.failed.get()),
        ("once_replayed", COUNTERS.replayed.get()),
        ("once_busy", COUNTERS.busy.get()),
        ("once_conflicts", COUNTERS.conflicts.get()),
        ("once_expired", EXPIRED_LEASES.load(Ordering::Relaxed)),
        ("once_waiting", WAITING_CLIENTS.load(Ordering::Relaxed)),
    ])
}
