//! The search for deadlocks over many clients, which goes on in slices.

use super::LockService;
use super::deadlock::{Budget, FinishedSearch, Search};
use super::handover::Handover;
use super::state::{Lock, LockKind};
use super::world::ServerClients;
use crate::error::Error;
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::timer;
use crate::waiting::{Key, Ticket};

/// How long after a wait that could not be checked at once a search begins, and how long at least after the last one.
pub(super) const BEFORE_SEARCH_MS: u64 = 10;

/// How long at most a search begins after the last one, however long that took.
const MAX_BETWEEN_SEARCHES_MS: u64 = 300;

/// How many steps a search takes before it reads the clock.
const STEPS_PER_READING: u64 = 256;

/// The present search for deadlocks, or the time of the next one.
#[derive(Default)]
pub(super) struct DeadlockSearch {
    /// The search, and when it began (Unix ms).
    current: Option<(Search, u64)>,
    /// The last search, whose memory is freed in slices, and when the next one may begin (Unix ms).
    finished: Option<(FinishedSearch, u64)>,
    /// When the next search begins (Unix ms), if that is known.
    next_at: Option<u64>,
    /// The steps that commands may take to check the clients that join a queue.
    pub(super) budget: Budget,
}

impl DeadlockSearch {
    /// When the next search begins (Unix ms), if that is known.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.next_at
    }

    /// Whether steps are to be taken.
    pub(super) fn has_work(&self) -> bool {
        self.current.is_some() || self.finished.is_some()
    }

    /// Plans a search, because a command could not find out whether a wait can end.
    pub(super) fn plan(&mut self, ctx: Ctx<'_>, at: u64) {
        if self.next_at.is_none() && !self.has_work() {
            self.next_at = Some(at);
            timer::arm(ctx, at);
        }
    }
}

/// Plans a search if clients are to be checked again.
pub(super) fn plan_rechecks(ctx: Ctx<'_>, service: &mut LockService, now: Now) {
    if service.handover.queues.has_unverified() {
        service.search.plan(ctx, now.ms() + BEFORE_SEARCH_MS);
    }
}

/// Begins the planned search.
pub(super) fn begin_search(service: &mut LockService, now: Now) {
    let LockService {
        handover, search, ..
    } = service;
    search.next_at = None;
    if handover.queues.has_unverified() && search.current.is_none() {
        let begun = Search::of_unverified(&mut handover.queues);
        search.current = Some((begun, now.ms()));
    }
}

/// Takes some steps of the search. Returns false if there is none.
pub(super) fn take_steps(ctx: Ctx<'_>, service: &mut LockService, now: Now) -> bool {
    let LockService {
        handover, search, ..
    } = service;
    let mut steps = STEPS_PER_READING;
    let read = &mut |key: &Key, visit: &mut dyn FnMut(&Lock)| {
        read_lock(ctx, key, visit);
        true
    };
    if let Some((finished, next_at)) = &mut search.finished {
        if finished.may_find() {
            if let Some(ticket) = finished.find(&mut handover.queues, &mut steps, read) {
                refuse(handover, ticket);
            }
        } else if finished.free(&mut handover.queues, &mut steps) {
            let next_at = *next_at;
            search.finished = None;
            if handover.queues.has_unverified() {
                search.plan(ctx, next_at);
            }
        }
        return true;
    }
    let Some((current, began)) = &mut search.current else {
        return false;
    };
    let Some(deadlocked) = current.go_on(&mut handover.queues, &mut steps, read) else {
        return true;
    };
    let pause_ms = match deadlocked {
        Some(_) => 0, // perhaps not the only one
        None => {
            let twice = 2 * now.ms().saturating_sub(*began);
            twice.clamp(BEFORE_SEARCH_MS, MAX_BETWEEN_SEARCHES_MS)
        }
    };
    if let Some((ended, _)) = search.current.take() {
        let finished = ended.conclude(&mut handover.queues, deadlocked);
        search.finished = Some((finished, now.ms() + pause_ms));
    }
    if let Some(ticket) = deadlocked {
        refuse(handover, ticket);
    }
    true
}

fn refuse(handover: &mut Handover, ticket: Ticket) {
    if handover.refuse(&mut ServerClients, ticket, Error::Deadlock) {
        handover.counters.deadlocks += 1;
    }
}

/// Calls `visit` with the lock or semaphore at a key of any database, if there is one. A key that has expired holds none.
///
/// The state of the family is borrowed meanwhile. So the key is opened without removing it if it has expired: the server would
/// emit an event. Redis 7.0 does so all the same: there a listener that then runs a command of this family gets an error.
pub(super) fn read_lock(ctx: Ctx<'_>, (db, key): &Key, visit: &mut dyn FnMut(&Lock)) {
    let now = Now::read().ms();
    ctx.in_db(*db, || {
        let name = ServerString::new(key);
        for kind in [LockKind::Lock, LockKind::Semaphore] {
            if let Ok(mut key) = TypedKey::of(ctx.peek(&name), kind.native())
                && key.expires().is_none_or(|at| at >= now)
                && let Some(lock) = key.value()
            {
                visit(lock);
            }
        }
    });
}
