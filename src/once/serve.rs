//! Waiting clients over time: clients that begin to wait, replies to them, timeouts, and server events.

use super::edit::{WorkEdit, limit_expiry};
use super::state::{BeginDecision, DoneWork, decide_begin, decide_fail, decide_outcome};
use super::{BLOCKED, COUNTERS, EXPIRED_LEASES, HOT, STATE, WAIT_TIMES, WAITING_CLIENTS};
use crate::error::Error;
use crate::general::HotKeys;
use crate::histogram::Histogram;
use crate::key_queues::{HeadStep, KeyQueues, KeyWaiter};
use crate::queue_service::{self, QueueService, QueueWork};
use crate::reply::{Answer, Fetched, Reply};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::cluster;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::memory;
use crate::server::services::replicas;
use crate::waiting::Key;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The time until a queue is served again if nothing may be changed now.
const RETRY_MS: u64 = 100;

/// The same if the master has too few replicas. The server counts them once a second.
const REPLICAS_RETRY_MS: u64 = 1000;

fn reply(state: &'static str, value: Option<Arc<[u8]>>, n: u64) -> Reply {
    Reply::Fetched(Fetched { state, value, n })
}

/// The request of a client that waits for the end of work.
#[derive(Debug, Clone)]
pub(super) struct WaitingBegin {
    /// The length of the lease that it wants, in milliseconds.
    pub(super) lease_ms: u64,
    /// The fingerprint of its request; empty: none.
    pub(super) fingerprint: Box<[u8]>,
}

/// The queues of clients that wait for the end of work.
pub(super) struct OnceQueues;

impl QueueService for OnceQueues {
    type Request = WaitingBegin;
    type Outcome = DoneWork;

    fn blocked() -> &'static BlockedClients {
        &BLOCKED
    }

    fn hot() -> &'static HotKeys {
        &HOT
    }

    fn wait_times() -> &'static Histogram {
        &WAIT_TIMES
    }

    fn with<T>(run: impl FnOnce(&mut KeyQueues<WaitingBegin, DoneWork>, &mut QueueWork) -> T) -> T {
        let state = &mut *STATE.get();
        let result = run(&mut state.queue, &mut state.work);
        WAITING_CLIENTS.store(state.queue.len() as u64, Ordering::Relaxed);
        result
    }

    fn outcome_answer(work: &DoneWork, request: &WaitingBegin, now: Now) -> Answer {
        let BeginDecision::Done(left) = decide_outcome(work, &request.fingerprint, now.ms()) else {
            COUNTERS.conflicts.count();
            return Err(Error::OtherFingerprint);
        };
        COUNTERS.replayed.count();
        Ok(reply("DONE", Some(work.result.clone()), left))
    }

    fn serve_head(
        ctx: Ctx<'_>,
        now: Now,
        key: &Key,
        name: &ServerString<'_>,
        _shared: &mut Option<Arc<[u8]>>,
    ) -> HeadStep<Answer> {
        let dismiss = |error| Self::with(|queues, _| queues.dismiss_head(key, error));
        let mut edit = match WorkEdit::open_to_serve(ctx, name) {
            Ok(edit) => edit,
            Err(error) => return dismiss(error),
        };
        // Only now: to open a key that has expired lets listeners run commands, which may serve the queue.
        let head = Self::with(|queues, _| {
            let ticket = queues.head(key.0, &key.1)?;
            let is_late = queues.is_late(ticket, now.ms());
            Some((ticket, is_late, queues.get(ticket)?.request.clone()))
        });
        let Some((ticket, is_late, request)) = head else {
            return HeadStep::Empty;
        };
        let may_act = ctx.may_act();
        if may_act {
            edit.remove_if_over(now.ms());
        }
        let reply = match decide_begin(edit.work().as_deref(), &request.fingerprint, now.ms()) {
            BeginDecision::Busy(left) => return HeadStep::Waits(now.ms() + left),
            BeginDecision::Begin if !may_act => return HeadStep::Waits(now.ms() + RETRY_MS),
            BeginDecision::Begin if is_late => return HeadStep::TimedOut(ticket),
            BeginDecision::Begin if !replicas::are_enough(ctx, now) => {
                return HeadStep::Waits(now.ms() + REPLICAS_RETRY_MS);
            }
            BeginDecision::Begin if memory::is_full() => return dismiss(Error::OutOfMemory),
            BeginDecision::Begin => {
                let token = match edit.begin(request.lease_ms, &request.fingerprint, now) {
                    Ok(token) => token,
                    Err(error) => return dismiss(error),
                };
                COUNTERS.begun.count();
                Self::with(|queues, _| queues.granted(ticket, key, token));
                reply("NEW", None, token)
            }
            BeginDecision::Conflict => {
                COUNTERS.conflicts.count();
                return dismiss(Error::OtherFingerprint);
            }
            BeginDecision::Done(_) => {
                let Some(work) = edit.work().as_deref().and_then(DoneWork::of) else {
                    return dismiss(Error::Internal);
                };
                let answer = Self::outcome_answer(&work, &request, now);
                Self::with(|queues, _| {
                    queues.set_outcome(key.0, &key.1, work);
                    queues.remove(ticket);
                });
                return HeadStep::Served(ticket, answer);
            }
        };
        Self::with(|queues, _| queues.remove(ticket));
        HeadStep::Served(ticket, Ok(reply))
    }

    /// The answer of a `ONCE.BEGIN` that cannot begin: the result, or the remaining time of the worker's lease. It is 0 if the next
    /// client is about to be served.
    fn timeout_answer(ctx: Ctx<'_>, waiter: &KeyWaiter<WaitingBegin>, now: Now) -> Answer {
        let ((db, key), request) = (&waiter.key, &waiter.request);
        let in_db = ctx.in_db(*db, || {
            let name = ServerString::new(key);
            let mut edit = WorkEdit::open_to_serve(ctx, &name)?;
            let work = edit.work();
            let work = work.as_deref();
            if let Some(done) = work
                .filter(|work| !work.is_over(now.ms()))
                .and_then(DoneWork::of)
            {
                return Self::outcome_answer(&done, request, now);
            }
            COUNTERS.busy.count();
            let until = work.map_or(0, |work| work.until);
            Ok(reply("BUSY", None, until.saturating_sub(now.ms())))
        });
        in_db.unwrap_or_else(|| Ok(reply("BUSY", None, 0)))
    }

    /// Frees the key: the client never began the work.
    fn take_back(ctx: Ctx<'_>, now: Now, key: &Key, token: u64) {
        cluster::act_on(ctx, key, |name| {
            if let Ok(mut edit) = WorkEdit::open(ctx, name)
                && decide_fail(edit.work().as_deref(), token, now.ms())
            {
                edit.fail();
            }
        });
    }
}

/// Handles a server event.
pub(super) fn handle_event(ctx: Ctx<'_>, _now: Now, event: &ServerEvent) {
    if let ServerEvent::Changed(db, key) = event {
        cluster::act_on(ctx, &(*db, (**key).into()), |name| limit_expiry(ctx, name));
    }
    if WAITING_CLIENTS.load(Ordering::Relaxed) > 0 || *event == ServerEvent::Demoted {
        queue_service::handle_event::<OnceQueues>(event);
    }
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
