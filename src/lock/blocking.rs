//! How clients join the queues of locks that they cannot have yet, and how they leave.

use super::deadlock::{self, Check};
use super::handover::{LockWorld as _, Outcome};
use super::options::LockOptions;
use super::queue::{LockWaiter, Queues};
use super::search::{BEFORE_SEARCH_MS, plan_rechecks, read_lock};
use super::slices::{serve, serve_in};
use super::state::LockKind;
use super::world::{ServerClients, ServerWorld};
use super::{BLOCKED, HOT, LISTENING, MAX_WAITED_KEYS, MAX_WAITERS, SERVICE};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::blocked::Departure;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::waiting::{InSlots, Key, Ticket};
use std::sync::atomic::Ordering;

/// Answers an acquisition, or lets the client wait if it asked for that.
pub(super) fn answer_or_wait(
    ctx: Ctx<'_>,
    now: Now,
    outcome: Outcome,
    options: &LockOptions<'_>,
    waiter: impl FnOnce() -> LockWaiter,
) -> Answer {
    match outcome {
        Outcome::Acquired(reply) => Ok(reply),
        Outcome::Busy(_) if options.may_wait(ctx) => wait(ctx, now, waiter()),
        Outcome::Busy(_) | Outcome::Never => {
            SERVICE.get().handover.counters.refused += 1;
            Ok(Reply::Nil)
        }
    }
}

/// Counts a refusal of these keys for `SLUICE.HOT`, unless the client waits for them.
#[cold]
#[inline(never)]
pub(super) fn count_refusal<'k, 's: 'k>(
    ctx: Ctx<'_>,
    outcome: &Outcome,
    options: &LockOptions<'_>,
    keys: impl IntoIterator<Item = &'k ServerString<'s>>,
) {
    if *outcome == Outcome::Never || !options.may_wait(ctx) {
        keys.into_iter().for_each(|key| HOT.count_refusal(ctx, key));
    }
}

/// Lets the client wait, unless its wait would never end or too many clients wait.
pub(super) fn wait(ctx: Ctx<'_>, now: Now, waiter: LockWaiter) -> Answer {
    let first = SERVICE.get().handover.queues.repeated_by(&waiter);
    if let Some(first) = first {
        return wait_instead(ctx, now, first, waiter);
    }
    let is_notified = waiter.listener.is_some();
    let ticket = match join(ctx, now, waiter) {
        Ok(ticket) => ticket,
        Err(answer) => return answer,
    };
    let keys = keys_to_serve(&SERVICE.get().handover.queues, ticket);
    serve(ctx, now, keys); // finds out when to try again
    Ok(reply_to_waiter(is_notified))
}

/// The keys whose queues are served because this client has joined them.
fn keys_to_serve(queues: &Queues, ticket: Ticket) -> Vec<Key> {
    let Some(waiter) = queues.get(ticket) else {
        return Vec::new();
    };
    if waiter.kind() != LockKind::Lock {
        return waiter.keys.clone();
    }
    // One attempt checks all keys of the client. The clients ahead of it cannot get more than before, so at most one key is
    // served.
    let is_first = |(db, key): &&Key| queues.head(*db, key) == Some(ticket);
    waiter
        .keys
        .iter()
        .find(is_first)
        .cloned()
        .into_iter()
        .collect()
}

/// Lets the client join the queues of its keys. Error: the answer for a client that does not wait.
fn join(ctx: Ctx<'_>, now: Now, waiter: LockWaiter) -> Result<Ticket, Answer> {
    let service = &mut *SERVICE.get();
    let handover = &mut service.handover;
    let waited_keys = handover.queues.waited_keys() + waiter.keys.len();
    if handover.queues.len() as i64 >= MAX_WAITERS.get()
        || waited_keys as i64 > MAX_WAITED_KEYS.get()
    {
        return Err(Err(Error::TooManyWaiters));
    }
    let is_notified = waiter.listener.is_some();
    for (db, key) in &waiter.keys {
        HOT.count_wait(*db, key);
    }
    let ticket = handover.queues.push(waiter);
    let queues = &mut handover.queues;
    let first = queues.get(ticket).and_then(|waiter| waiter.keys.first());
    let slot = first.map(|(_, key)| cluster::slot(ctx, key));
    let check = service.search.budget.spend(now.ms(), |steps| {
        deadlock::check(queues, ticket, steps, &mut |key, visit| {
            // The command finds no keys of other slots. The search finds them.
            let can_read = slot == Some(cluster::slot(ctx, &key.1));
            if can_read {
                read_lock(ctx, key, visit);
            }
            can_read
        })
    });
    if check == Check::Deadlock {
        handover.queues.withdraw(ticket);
        handover.counters.deadlocks += 1;
        return Err(Err(Error::Deadlock));
    }
    if !is_notified {
        let Some(blocked) = BLOCKED.block(ctx) else {
            handover.queues.withdraw(ticket);
            handover.counters.refused += 1;
            return Err(Ok(Reply::Nil));
        };
        blocked.wait(ticket);
    }
    LISTENING.store(true, Ordering::Relaxed);
    handover.begin_wait(&mut ServerWorld { ctx, now }, ticket);
    if check == Check::Unknown {
        handover.queues.mark_unverified(ticket);
        service.search.plan(ctx, now.ms() + BEFORE_SEARCH_MS);
    }
    Ok(ticket)
}

/// A client that is not blocked is replied nil, and told of the rest by its channel.
fn reply_to_waiter(is_notified: bool) -> Reply {
    match is_notified {
        true => Reply::Nil,
        false => Reply::Later,
    }
}

/// Lets the client wait in the position of the one whose request it repeats. That one receives the reply of a wait that ended:
/// it does not listen any more, or it would not have repeated the request.
fn wait_instead(ctx: Ctx<'_>, now: Now, ticket: Ticket, waiter: LockWaiter) -> Answer {
    let is_notified = waiter.listener.is_some();
    let blocked = match is_notified {
        true => None,
        false => BLOCKED.block(ctx),
    };
    if !is_notified && blocked.is_none() {
        SERVICE.get().handover.counters.refused += 1;
        return Ok(Reply::Nil);
    }
    BLOCKED.wake(ticket, Ok(Reply::Nil));
    if let Some(blocked) = blocked {
        blocked.wait(ticket);
    }
    let keys = waiter.keys.clone();
    SERVICE
        .get()
        .handover
        .replace(&mut ServerWorld { ctx, now }, ticket, waiter);
    plan_rechecks(ctx, &mut SERVICE.get(), now); // it may have named another limit
    serve(ctx, now, keys);
    Ok(reply_to_waiter(is_notified))
}

/// A client that was served has received its answer.
pub(super) fn answered(ticket: Ticket) {
    SERVICE.get().handover.delivered(ticket);
}

/// A waiting client left, or somebody ended its wait: then it receives this answer.
pub(super) fn left(_ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    let handover = &mut SERVICE.get().handover;
    let has_left = match departure {
        Departure::Gone => handover.leave(&mut ServerClients, ticket),
        Departure::Unblocked => {
            handover.counters.timeouts += 1;
            handover.leave(&mut ServerClients, ticket)
        }
        Departure::Unanswered => handover.leave_undelivered(ticket),
    };
    if has_left {
        deferred::ask_for_slices_and_wake();
    }
    Ok(Reply::Nil)
}

/// The functions for waiting clients in a cluster.
pub(super) const WAITING: InSlots = InSlots {
    index: || SERVICE.get().handover.queues.index_slots(),
    slots: || SERVICE.get().handover.queues.slots(),
    queues: |slot, after, most| SERVICE.get().handover.queues.of_slot(slot, after, most),
    refuse: |key, error| {
        let handover = &mut SERVICE.get().handover;
        handover.refuse_first(&mut ServerClients, key, error)
    },
    serve: |ctx, key, has_changed, slice| {
        let now = Now::read();
        let mut world = ServerWorld { ctx, now };
        if !world.serves(key) {
            return;
        }
        let has_retry = {
            let handover = &mut SERVICE.get().handover;
            handover.retry_postponed(key);
            handover.queues.has_retry(key.0, &key.1)
        };
        // A first client with a retry time is tried at that time.
        let is_tried = has_changed || !has_retry;
        serve_in(ctx, now, is_tried.then(|| key.clone()), slice);
    },
};
