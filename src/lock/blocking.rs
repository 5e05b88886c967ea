//! How a client joins the queue of a lock that it cannot have yet.

use super::deadlock::{self, Check};
use super::options::{BLOCK, LockOptions};
use super::queue::Waiter;
use super::serve::{BEFORE_SEARCH_MS, Outcome, read_lock, search_soon, serve};
use super::{BLOCKED, LISTENING, MAX_WAITED_KEYS, MAX_WAITERS, State};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::services::timer;
use crate::waiting::Ticket;
use std::sync::atomic::Ordering;

pub(super) fn answer_or_wait(
    ctx: Ctx<'_>,
    state: &mut State,
    now: Now,
    outcome: Outcome,
    options: &LockOptions<'_>,
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
pub(super) fn wait(ctx: Ctx<'_>, state: &mut State, now: Now, waiter: Waiter) -> Answer {
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
