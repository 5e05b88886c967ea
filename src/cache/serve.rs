//! Waiting clients and leases over time: clients that begin to wait, replies to them, timeouts, and server events.

use super::breaker::BreakerRequest;
use super::budget;
use super::edit::{EntryEdit, EntryKey};
use super::lease::{LeaseOffer, LeaseRequest, LeaseStatus};
use super::native::CACHE;
use super::rebuilds::WaitingFetch;
use super::revoke::has_leases;
use super::stale_ends;
use super::state::{CacheEntry, EntryKind, Freshness};
use super::step::{FetchReply, FetchState, RETRY_MS};
use super::{BLOCKED, COUNTERS, HOT, MAX_BREAKERS, MAX_LEASES, STATE, WAIT_TIMES};
use crate::general::HotKeys;
use crate::histogram::Histogram;
use crate::key_queues::{HeadStep, KeyQueues, KeyWaiter};
use crate::queue_service::{self, QueueService, QueueWork};
use crate::reply::{Answer, Fetched, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::hooks::deletions;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::waiting::{Key, ScanStep};
use std::convert::Infallible;
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
    if ctx.is_cluster() && is_lease_free(db, key, now) {
        notice_slots(ctx, key);
    }
    let offer = STATE.get().rebuilds.offer(db, key, &request);
    if let LeaseOffer::Granted(_) = offer {
        deletions::watch_removals(ctx);
    }
    offer
}

fn is_lease_free(db: i32, key: &[u8], now: Now) -> bool {
    STATE.get().rebuilds.leases.status(db, key, now.ms()) == LeaseStatus::Free
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

/// Reports changes of hash slots to the families now. Called before a lease of this key is granted, because a later report would revoke
/// it.
fn notice_slots(ctx: Ctx<'_>, key: &[u8]) {
    if !cluster::is_known_as_own(key) {
        cluster::notice_changes_now(ctx);
    } else if !has_leases() {
        cluster::notice_changes(ctx); // the cron event does so only while there are leases
    }
}

/// The queues of clients that wait for entries.
pub(super) struct CacheQueues;

impl QueueService for CacheQueues {
    type Request = WaitingFetch;
    type Outcome = Infallible;

    fn blocked() -> &'static BlockedClients {
        &BLOCKED
    }

    fn hot() -> &'static HotKeys {
        &HOT
    }

    fn wait_times() -> &'static Histogram {
        &WAIT_TIMES
    }

    fn with<T>(
        run: impl FnOnce(&mut KeyQueues<WaitingFetch, Infallible>, &mut QueueWork) -> T,
    ) -> T {
        let state = &mut *STATE.get();
        run(&mut state.rebuilds.queue, &mut state.work)
    }

    fn outcome_answer(outcome: &Infallible, _: &WaitingFetch, _now: Now) -> Answer {
        match *outcome {}
    }

    fn serve_head(
        ctx: Ctx<'_>,
        now: Now,
        key: &Key,
        name: &ServerString<'_>,
        shared: &mut Option<Arc<[u8]>>,
    ) -> HeadStep<Answer> {
        notice_slots(ctx, name.bytes());
        let mut edit = match EntryEdit::open_to_serve(ctx, name) {
            Ok(edit) => edit,
            Err(error) => return Self::with(|queues, _| queues.dismiss_head(key, error)),
        };
        let freshness = edit.freshness(now.ms());
        if freshness == Freshness::Missing {
            if edit.entry().is_some() && !ctx.may_act() {
                return HeadStep::Waits(now.ms() + RETRY_MS); // nothing may be removed now
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
            HeadStep::Empty => HeadStep::Empty,
            HeadStep::Waits(at) => HeadStep::Waits(at),
            HeadStep::TimedOut(ticket) => HeadStep::TimedOut(ticket),
            HeadStep::Served(ticket, reply) => {
                let value = entry.as_deref().filter(|_| reply.has_value);
                if reply.is_read() {
                    budget::key_is_read(name, value);
                }
                let value = value.and_then(|entry| entry.value());
                let value = value.map(|value| shared.get_or_insert_with(|| value.into()).clone());
                count_reply(reply);
                if reply.token().is_some() {
                    deletions::watch_removals(ctx);
                }
                HeadStep::Served(ticket, Ok(fetched(reply, value)))
            }
        }
    }

    fn timeout_answer(_ctx: Ctx<'_>, waiter: &KeyWaiter<WaitingFetch>, now: Now) -> Answer {
        let reply = STATE.get().rebuilds.timeout_reply(&waiter.key, now.ms());
        Ok(fetched(reply, None))
    }

    fn take_back(_ctx: Ctx<'_>, _now: Now, key: &Key, token: u64) {
        STATE.get().rebuilds.take_back(key, token);
    }

    fn has_more_work() -> bool {
        STATE.get().key_check.is_some()
    }

    fn take_other_step(ctx: Ctx<'_>) -> bool {
        check_next_key(ctx)
    }
}

fn fetched(reply: FetchReply, value: Option<Arc<[u8]>>) -> Reply {
    Reply::Fetched(Fetched {
        state: reply.state.word(),
        value,
        n: reply.n,
    })
}

/// Serves waiting clients and ends stale times that are due. Returns when the next one is due (Unix ms).
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let next = queue_service::due::<CacheQueues>(ctx, now);
    let end = stale_ends::due(ctx, now);
    next.into_iter().chain(end).min()
}

/// Continues the work in slices.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let is_left = queue_service::go_on::<CacheQueues>(ctx, slice);
    budget::go_on(ctx, slice) || is_left
}

/// Handles a server event.
pub(super) fn handle_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    match event {
        ServerEvent::SlotsMayMove => cluster::notice_possible_moves(ctx),
        ServerEvent::SlotsMoved(_) => stale_ends::unpark(ctx),
        ServerEvent::Demoted => demote(),
        _ => {}
    }
    queue_service::handle_event::<CacheQueues>(event);
}

/// The server has become a replica. Only masters have leases.
fn demote() {
    let state = &mut *STATE.get();
    state.rebuilds.clear_leases();
    state.rebuilds.breakers.clear();
    state.key_check = None;
}

/// Begins to search for keys of other types that were created while clients wait for an entry there: the server reports no event for a
/// new key unless the module asks for each of them.
fn begin_key_check() {
    let mut state = STATE.get();
    if state.key_check.is_none() && !state.rebuilds.queue.is_empty() {
        state.key_check = Some(state.rebuilds.queue.scan(None));
        deferred::ask_for_slices();
    }
}

/// Checks the key of one queue. Returns false if there is none left.
fn check_next_key(ctx: Ctx<'_>) -> bool {
    let key = {
        let state = &mut *STATE.get();
        let Some(scan) = &mut state.key_check else {
            return false;
        };
        let Some(ScanStep(key)) = state.rebuilds.queue.next_scanned(scan) else {
            state.key_check = None;
            return false;
        };
        key
    };
    if let Some(key) = key
        && ctx.in_db(key.0, || is_taken(ctx, &key)) == Some(true)
    {
        queue_service::serve_later::<CacheQueues>(key);
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
        entry.is_some_and(|entry| entry.kind() == EntryKind::Tombstone)
    };
    !is_empty && !TypedKey::of(key, &CACHE).is_ok_and(is_tombstone)
}

/// The number of entries of leases that each call of [`cron`] checks while there are stale ones.
const SWEPT_BY_CRON: usize = 2000;

/// Continues work that had to wait. In a cluster, searches for hash slots that moved without an event, and took leases along.
pub(super) fn cron(ctx: Ctx<'_>) {
    budget::cron();
    stale_ends::cron(ctx);
    queue_service::ask_for_slices_if_needed::<CacheQueues>();
    STATE.get().rebuilds.leases.sweep(SWEPT_BY_CRON);
    begin_key_check();
    STATE.get().rebuilds.count_timeouts(Now::read().ms());
    if has_leases() {
        cluster::notice_changes(ctx);
    }
}

/// The section `cache` of `INFO sluice`.
pub(super) fn info() -> Option<Vec<(&'static str, u64)>> {
    let rebuilds = &STATE.try_get()?.rebuilds;
    let (entries, bytes) = budget::sums()?;
    let leases = rebuilds.leases.count_active(Now::read().ms());
    Some(vec![
        ("cache_entries", entries),
        ("cache_bytes", bytes),
        ("cache_evicted", COUNTERS.evicted.get()),
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
