//! Waiting clients and leases over time: clients that begin to wait, replies to them, timeouts, and server events.

use super::breaker::{BreakerRequest, Breakers};
use super::edit::EntryEdit;
use super::lease::{LeaseOffer, LeaseRequest};
use super::native::CACHE;
use super::queue::{CacheWaiter, QueueDeadline};
use super::rebuilds::HeadStep;
use super::state::{CacheEntry, EntryKind, Freshness};
use super::step::{FetchReply, FetchState, RETRY_MS};
use super::{BLOCKED, COUNTERS, CacheState, Dismissal, MAX_BREAKERS, MAX_LEASES, STATE};
use crate::error::Error;
use crate::reply::{Answer, Fetched, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::hooks::deletions;
use crate::server::services::blocked::Departure;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::timer;
use crate::waiting::{InSlots, Key, ScanStep, Ticket};
use std::sync::Arc;

/// Counts a reply of `CACHE.FETCH`.
pub(super) fn count_reply(reply: FetchReply) {
    let counter = match reply.state {
        FetchState::Hit => &COUNTERS.hits,
        FetchState::Null => &COUNTERS.nulls,
        FetchState::Lease => &COUNTERS.leases,
        FetchState::Stale => &COUNTERS.stale,
        FetchState::Wait => &COUNTERS.waits,
        FetchState::Absent => &COUNTERS.absent,
        FetchState::Down => &COUNTERS.down,
        FetchState::Miss if reply.has_value => &COUNTERS.stale,
        FetchState::Miss => return, // counted already
    };
    counter.count();
}

/// Asks the table for a key's lease.
pub(super) fn offer_lease(
    ctx: Ctx<'_>,
    key: &[u8],
    length_ms: u64,
    breaker: Option<BreakerRequest<'_>>,
    now: Now,
) -> LeaseOffer {
    let request = LeaseRequest {
        breaker,
        ..lease_request(length_ms, now)
    };
    let db = ctx.db();
    let offer = STATE.get().rebuilds.offer(db, key, &request);
    if let LeaseOffer::Granted(_) = offer {
        watch_for_changes(ctx);
    }
    offer
}

fn lease_request(length_ms: u64, now: Now) -> LeaseRequest<'static> {
    LeaseRequest {
        length_ms,
        now_us: now.micros(),
        max_leases: MAX_LEASES.get() as usize,
        breaker: None,
        max_breakers: MAX_BREAKERS.get() as usize,
    }
}

/// While there are leases, the module must hear of each key that is removed, and of each hash slot that moves.
fn watch_for_changes(ctx: Ctx<'_>) {
    deletions::watch_removals(ctx);
    if ctx.is_cluster() && STATE.get().own_slots.is_none() {
        let own_slots = cluster::own_slots(ctx);
        STATE.get().own_slots = own_slots;
    }
}

/// Blocks the client of the running command, which waits for an entry. `block_ms`: the longest wait; 0: without limit.
/// `retry_ms`: when the key's queue is served again. Returns false if the server does not let the client block.
pub(super) fn wait(
    ctx: Ctx<'_>,
    key: &[u8],
    lease_ms: u64,
    breaker: Option<BreakerRequest<'_>>,
    block_ms: u64,
    retry_ms: u64,
    now: u64,
) -> bool {
    let Some(blocked) = BLOCKED.block(ctx) else {
        return false;
    };
    let waiter = CacheWaiter {
        key: (ctx.db(), key.into()),
        lease_ms,
        breaker: breaker.map(|breaker| (breaker.name.into(), breaker.failures, breaker.open_ms)),
        deadline: (block_ms > 0).then(|| now + block_ms),
    };
    let deadline = waiter.deadline;
    let ticket = STATE.get().rebuilds.wait(waiter, retry_ms, now);
    blocked.wait(ticket);
    if let Some(at) = deadline {
        timer::arm(ctx, at);
    }
    timer::arm(ctx, now + retry_ms);
    true
}

fn set_retry(ctx: Ctx<'_>, key: &Key, at: Option<u64>) {
    STATE.get().rebuilds.queue.set_retry(key.0, &key.1, at);
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
            // again. What they wait for may have ended by then.
            return set_retry(ctx, key, None);
        }
        serve_queue(ctx, now, key, &name, slice);
    });
}

fn waiting(key: &Key) -> usize {
    STATE.get().rebuilds.queue.waiting(key.0, &key.1)
}

fn serve_queue(ctx: Ctx<'_>, now: Now, key: &Key, name: &ServerString<'_>, slice: &mut Slice) {
    // The value is copied once for all clients.
    let mut shared: Option<Arc<[u8]>> = None;
    while waiting(key) > 0 {
        if slice.is_over() {
            return STATE.get().agenda.push_front(key.clone());
        }
        slice.has_answered();
        let mut edit = match EntryEdit::open(ctx, name) {
            Ok(edit) => edit,
            Err(error) => {
                dismiss_head(key, error);
                continue;
            }
        };
        let freshness = edit.freshness(now.ms());
        if freshness == Freshness::Missing {
            if edit.entry().is_some() && ctx.is_paused() {
                return set_retry(ctx, key, Some(now.ms() + RETRY_MS)); // nothing may be removed now
            }
            edit.remove_if_expired(now.ms());
        }
        let entry = edit.entry();
        let lease = lease_request(0, now);
        let step = STATE
            .get()
            .rebuilds
            .serve_head(key, entry.as_deref(), freshness, &lease);
        match step {
            HeadStep::Empty => return,
            HeadStep::Waits(at) => return timer::arm(ctx, at),
            HeadStep::Served(ticket, reply) => {
                let value = entry.as_deref().filter(|_| reply.has_value);
                let value = value.and_then(|entry| entry.value());
                let value = value.map(|value| shared.get_or_insert_with(|| value.into()).clone());
                count_reply(reply);
                BLOCKED.wake(ticket, Ok(fetched(reply, value)));
                if reply.token().is_some() {
                    watch_for_changes(ctx);
                }
            }
        }
    }
}

fn fetched(reply: FetchReply, value: Option<Arc<[u8]>>) -> Reply {
    Reply::Fetched(Fetched {
        state: reply.state.word(),
        value,
        n: reply.n,
    })
}

/// Ends the wait of the first client of a queue with an error. Returns whether there was one.
fn dismiss_head(key: &Key, error: Error) -> bool {
    let queue = &mut STATE.get().rebuilds.queue;
    let Some(ticket) = queue.head(key.0, &key.1) else {
        return false;
    };
    queue.remove(ticket);
    BLOCKED.wake(ticket, Err(error));
    true
}

/// The reply of a client that was served has been sent.
pub(super) fn reply_sent(ticket: Ticket) {
    STATE.get().rebuilds.sent(ticket);
}

/// A client has left. Returns the reply for a client that `CLIENT UNBLOCK` has unblocked.
pub(super) fn client_left(_ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    if departure == Departure::Unanswered {
        if STATE.get().rebuilds.not_sent(ticket) {
            deferred::ask_for_slices_and_wake();
        }
        return Ok(Reply::Nil);
    }
    let reply = time_out(ticket, Now::read());
    Ok(reply.map_or(Reply::Nil, |reply| fetched(reply, None)))
}

fn time_out(ticket: Ticket, now: Now) -> Option<FetchReply> {
    STATE.get().rebuilds.time_out(ticket, now.ms())
}

/// Handles a server event.
pub(super) fn handle_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    let own_slots = match event {
        ServerEvent::SlotMayMove(_) => cluster::own_slots(ctx),
        _ => None,
    };
    let state = &mut *STATE.get();
    let (rebuilds, scans) = (&mut state.rebuilds, &mut state.scans);
    match event {
        ServerEvent::Unlinked(db, key) | ServerEvent::Touched(db, key) => {
            if rebuilds.queue.waiting(*db, key) == 0 {
                return;
            }
            state.agenda.push((*db, (**key).into()));
        }
        ServerEvent::Flushed(db) => scans.push_back(rebuilds.queue.scan(*db)),
        ServerEvent::Swapped(first, second) => {
            scans.extend([*first, *second].map(|db| rebuilds.queue.scan(Some(db))));
        }
        ServerEvent::Loaded | ServerEvent::Replaced => scans.push_back(rebuilds.queue.scan(None)),
        ServerEvent::Demoted => demote(state),
        ServerEvent::SlotMayMove(slot) => {
            if state.own_slots == own_slots && own_slots.is_some() {
                return; // the slots are the same: a client without the permission has tried to move one
            }
            // This node does not hear of changes of keys on another node.
            match slot {
                Some(slot) => rebuilds.leases.clear_slot(*slot),
                None => rebuilds.leases.clear(None),
            }
            scans.push_back(rebuilds.queue.scan(None));
            state.own_slots = own_slots;
        }
        // The leases are revoked at once, and the waiting clients are redirected slot by slot.
        ServerEvent::SlotsMoved(_) | ServerEvent::SlotsDropped(_) => return,
        ServerEvent::Disconnected(_) | ServerEvent::Saving | ServerEvent::Discarded => return,
    }
    deferred::ask_for_slices();
}

/// The server has become a replica. Only masters have leases and waiting clients.
fn demote(state: &mut CacheState) {
    state.rebuilds.clear_leases();
    state.rebuilds.breakers = Breakers::default();
    state.agenda.clear();
    state.scans.clear();
    state.look = None;
    state.own_slots = None; // to be read again with the next lease
    // Most servers have ended the waits already. Valkey 9.1 does not, in a cluster.
    let scan = state.rebuilds.queue.scan(None);
    state.dismissals.push_back(Dismissal::All(scan));
}

fn has_work(state: &CacheState) -> bool {
    !state.agenda.is_empty()
        || !state.scans.is_empty()
        || !state.dismissals.is_empty()
        || state.rebuilds.has_undelivered()
        || state.look.is_some()
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
    let mut state = STATE.get();
    if let Some(key) = state.rebuilds.take_back() {
        state.agenda.push(key);
        return true;
    }
    if let Some(key) = state.agenda.pop() {
        drop(state);
        serve_in(ctx, now, &key, slice);
        return true;
    }
    if state.scans.is_empty() {
        drop(state);
        return look_at_next_key(ctx);
    }
    let state = &mut *state;
    let Some(scan) = state.scans.front_mut() else {
        return false;
    };
    match state.rebuilds.queue.next_scanned(scan) {
        Some(ScanStep(key)) => key.into_iter().for_each(|key| state.agenda.push(key)),
        None => drop(state.scans.pop_front()),
    }
    true
}

/// Ends the next wait that is to end with an error. Returns false if there is none.
fn dismiss_next(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let mut state = STATE.get();
    let Some(dismissal) = state.dismissals.pop_front() else {
        return false;
    };
    match dismissal {
        Dismissal::All(mut scan) => {
            if let Some(ScanStep(key)) = state.rebuilds.queue.next_scanned(&mut scan) {
                state.dismissals.push_front(Dismissal::All(scan));
                drop(state);
                if let Some(key) = key {
                    let error = cluster::farewell(ctx, &ServerString::new(&key.1));
                    let dismissal = Dismissal::Key(key, error);
                    STATE.get().dismissals.push_front(dismissal);
                }
            }
        }
        Dismissal::Key(key, error) => {
            drop(state);
            if dismiss_head(&key, error.clone()) {
                let dismissal = Dismissal::Key(key, error);
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
    while let Some(at) = next_deadline() {
        if at > now.ms() {
            return Some(at);
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        match pop_deadline() {
            Some(QueueDeadline::Timeout(ticket)) => {
                if let Some(reply) = time_out(ticket, Now::read()) {
                    BLOCKED.wake(ticket, Ok(fetched(reply, None)));
                    slice.has_answered();
                }
            }
            Some(QueueDeadline::Retry(key)) => {
                serve_in(ctx, now, &key, &mut slice);
                ask_for_slices_if_needed();
            }
            None => break,
        }
    }
    None
}

fn next_deadline() -> Option<u64> {
    STATE.get().rebuilds.queue.next_deadline()
}

fn pop_deadline() -> Option<QueueDeadline> {
    STATE.get().rebuilds.queue.pop_deadline()
}

/// Looks for keys of other types that have come to be while clients wait for an entry there: the server reports no event for a
/// new key unless the module asks for each of them.
fn look_at_keys() {
    let mut state = STATE.get();
    if state.look.is_none() && !state.rebuilds.queue.is_empty() {
        state.look = Some(state.rebuilds.queue.scan(None));
        deferred::ask_for_slices();
    }
}

/// Looks at the key of one queue. Returns false if there is none left.
fn look_at_next_key(ctx: Ctx<'_>) -> bool {
    let key = {
        let state = &mut *STATE.get();
        let Some(scan) = &mut state.look else {
            return false;
        };
        let Some(ScanStep(key)) = state.rebuilds.queue.next_scanned(scan) else {
            state.look = None;
            return false;
        };
        key
    };
    if let Some(key) = key
        && ctx.in_db(key.0, || is_taken(ctx, &key)) == Some(true)
    {
        STATE.get().agenda.push(key);
    }
    true
}

/// Whether the key holds an entry, or a value of another type.
fn is_taken(ctx: Ctx<'_>, key: &Key) -> bool {
    let name = ServerString::new(&key.1);
    let key = ctx.peek(&name);
    let is_empty = key.is_empty();
    let is_tombstone = |mut key: TypedKey<'_, CacheEntry>| {
        let entry = key.value();
        entry.is_some_and(|entry| entry.kind == EntryKind::Tombstone)
    };
    !is_empty && !TypedKey::of(key, &CACHE).is_ok_and(is_tombstone)
}

/// The number of entries of leases that each call of [`cron`] checks while there are stale ones.
const SWEPT_BY_CRON: usize = 2000;

/// Continues work that had to wait. In a cluster, looks for hash slots that moved without an event, and took leases along.
pub(super) fn cron(ctx: Ctx<'_>) {
    ask_for_slices_if_needed();
    STATE.get().rebuilds.leases.sweep(SWEPT_BY_CRON);
    look_at_keys();
    STATE.get().rebuilds.count_timeouts(Now::read().ms());
    if ctx.is_cluster() && !STATE.get().rebuilds.leases.is_empty() {
        cluster::notice_changes(ctx);
    }
}

/// How waiting clients are handled in a cluster.
pub(super) const WAITING: InSlots = InSlots {
    index: || STATE.get().rebuilds.queue.index_slots(),
    slots: || STATE.get().rebuilds.queue.slots(),
    keys: |slot, behind, most| {
        let rebuilds = &STATE.get().rebuilds;
        rebuilds.queue.keys_of_slot(slot, behind, most)
    },
    send_away: dismiss,
    serve: |ctx, key| {
        let has_retry = STATE.get().rebuilds.queue.has_retry(key.0, &key.1);
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

/// The section `cache` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    let rebuilds = &STATE.try_get()?.rebuilds;
    let leases = rebuilds.leases.count_active(Now::read().ms());
    Some(vec![
        ("cache_hits", COUNTERS.hits.get()),
        ("cache_nulls", COUNTERS.nulls.get()),
        ("cache_misses", COUNTERS.misses.get()),
        ("cache_stale", COUNTERS.stale.get()),
        ("cache_leases", COUNTERS.leases.get()),
        ("cache_waits", COUNTERS.waits.get()),
        ("cache_absent", COUNTERS.absent.get()),
        ("cache_down", COUNTERS.down.get()),
        ("cache_refused_sets", COUNTERS.refused_sets.get()),
        ("cache_early", COUNTERS.early.get()),
        ("cache_breaker_trips", rebuilds.breakers.trips()),
        ("cache_leases_now", leases as u64),
        ("cache_waiters_now", rebuilds.queue.len() as u64),
    ])
}
