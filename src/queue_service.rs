//! Serves clients that each wait for one key: their queues over time, timeouts, server events, and the work in slices. A family
//! implements [`QueueService`], and the functions of this file are its callbacks.

use crate::error::Error;
use crate::general::HotKeys;
use crate::histogram::Histogram;
use crate::key_queues::{HeadStep, KeyQueues, KeyWaiter, QueueDeadline};
use crate::reply::{Answer, Reply};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::blocked::{BlockedClients, Departure};
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::timer;
use crate::waiting::{Agenda, InSlots, Key, Scan, ScanStep, Ticket};
use std::collections::VecDeque;
use std::sync::Arc;

/// A family whose clients wait for one key each.
pub trait QueueService: 'static {
    /// The request that a client repeats when its turn comes.
    type Request: 'static;

    /// An outcome that all clients of a queue share.
    type Outcome: 'static;

    /// The blocked clients.
    fn blocked() -> &'static BlockedClients;

    /// The keys with the most waits and refusals.
    fn hot() -> &'static HotKeys;

    /// How long clients waited: from the request until the client had an answer or left.
    fn wait_times() -> &'static Histogram;

    /// Calls a function with the queues and their remaining work. The function must not open keys: the callbacks of a key that
    /// the server finds expired may need both.
    fn with<T>(
        run: impl FnOnce(&mut KeyQueues<Self::Request, Self::Outcome>, &mut QueueWork) -> T,
    ) -> T;

    /// The answer for a client that has an outcome.
    fn outcome_answer(outcome: &Self::Outcome, request: &Self::Request, now: Now) -> Answer;

    /// Serves the first client of a key's queue, if there is an answer for it. The client is then not in the queue any more. A client
    /// whose time is up receives no work and no lease.
    /// `shared`: a copy of the value for all clients of the queue, once one of them needs it.
    fn serve_head(
        ctx: Ctx<'_>,
        now: Now,
        key: &Key,
        name: &ServerString<'_>,
        shared: &mut Option<Arc<[u8]>>,
    ) -> HeadStep<Answer>;

    /// The answer for a client whose time is up. It has left the queue.
    fn timeout_answer(ctx: Ctx<'_>, waiter: &KeyWaiter<Self::Request>, now: Now) -> Answer;

    /// Takes back the token of a client that left before its reply was sent.
    fn take_back(ctx: Ctx<'_>, now: Now, key: &Key, token: u64);

    /// Whether the family has other work in slices.
    fn has_more_work() -> bool {
        false
    }

    /// Takes the next step of the other work. Returns false if there is none.
    fn take_other_step(_ctx: Ctx<'_>) -> bool {
        false
    }
}

/// The remaining work for the queues, which is done in slices.
#[derive(Debug, Default)]
pub struct QueueWork {
    /// The keys whose queues are to be served.
    agenda: Agenda,
    /// The scans of queues that are to be served.
    scans: VecDeque<Scan>,
    /// The clients whose waits are to end with an error.
    dismissals: VecDeque<Dismissal>,
}

/// Clients whose waits end with an error.
#[derive(Debug)]
enum Dismissal {
    /// The clients of the queues of this scan: the server has become a replica.
    All(Scan),
    /// The clients that wait for a key receive this error.
    Key(Key, Error),
}

/// Blocks the client of the running command, which waits for a key. `block_ms`: the longest wait; 0: without limit. `retry_ms`:
/// the time until the key's queue is served again. Returns false if the server does not let the client block.
pub fn wait<F: QueueService>(
    ctx: Ctx<'_>,
    key: &[u8],
    request: F::Request,
    block_ms: u64,
    retry_ms: u64,
    now: Now,
) -> bool {
    let Some(blocked) = F::blocked().block(ctx) else {
        return false;
    };
    let key: Key = (ctx.db(), key.into());
    F::hot().count_wait(key.0, &key.1);
    let deadline = (block_ms > 0).then(|| now.ms() + block_ms);
    let waiter = KeyWaiter {
        key: key.clone(),
        since_us: now.micros(),
        deadline,
        request,
    };
    blocked.wait(F::with(|queues, _| queues.push(waiter)));
    if let Some(at) = deadline {
        timer::arm(ctx, at);
    }
    set_retry::<F>(ctx, &key, Some(now.ms() + retry_ms));
    true
}

fn set_retry<F: QueueService>(ctx: Ctx<'_>, (db, key): &Key, at: Option<u64>) {
    F::with(|queues, _| queues.set_retry(*db, key, at));
    if let Some(at) = at {
        timer::arm(ctx, at);
    }
}

/// Since when the first client of a key's queue waits (Unix us).
fn head_since<F: QueueService>((db, key): &Key) -> u64 {
    F::with(|queues, _| queues.head_since(*db, key)).unwrap_or(u64::MAX)
}

fn waiting<F: QueueService>(db: i32, key: &[u8]) -> usize {
    F::with(|queues, _| queues.waiting(db, key))
}

/// Whether clients wait for a key of the selected database.
pub fn has_queue<F: QueueService>(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    waiting::<F>(ctx.db(), name.bytes()) > 0
}

/// Serves the clients that wait for a key of the selected database, if there are any.
pub fn serve_name<F: QueueService>(ctx: Ctx<'_>, now: Now, name: &ServerString<'_>) {
    if has_queue::<F>(ctx, name) {
        serve::<F>(ctx, now, &(ctx.db(), name.bytes().into()));
    }
}

/// Serves a key's queue in order, as far as there are answers for its clients. A long queue is served in slices.
/// If this is a command of a module, the first slice is later, too: a listener may run it in the middle of another command.
fn serve<F: QueueService>(ctx: Ctx<'_>, now: Now, key: &Key) {
    if ctx.may_be_nested() {
        serve_later::<F>(key.clone());
        return deferred::ask_for_slices();
    }
    let _nodes = cluster::same_nodes();
    serve_in::<F>(ctx, now, key, &mut Slice::begin());
    ask_for_slices_if_needed::<F>();
}

/// Serves the queues of a database again, in slices; `None`: of all databases.
pub fn serve_all<F: QueueService>(db: Option<i32>) {
    F::with(|queues, work| work.scans.push_back(queues.scan(db)));
    deferred::ask_for_slices();
}

/// Serves the queue of a key again, in a slice.
pub fn serve_later<F: QueueService>(key: Key) {
    F::with(|_, work| work.agenda.push(key));
}

fn serve_in<F: QueueService>(ctx: Ctx<'_>, now: Now, key: &Key, slice: &mut Slice) {
    if waiting::<F>(key.0, &key.1) == 0 {
        return;
    }
    ctx.in_db(key.0, || {
        let name = ServerString::new(&key.1);
        if !cluster::serves(ctx, &name) {
            // The cron event redirects the clients to the node of their hash slot, or serves them once the slot is here
            // again. The lease that they wait for may have ended by then.
            return set_retry::<F>(ctx, key, None);
        }
        serve_queue::<F>(ctx, now, key, &name, slice);
    });
}

fn serve_queue<F: QueueService>(
    ctx: Ctx<'_>,
    now: Now,
    key: &Key,
    name: &ServerString<'_>,
    slice: &mut Slice,
) {
    let mut shared = None;
    while waiting::<F>(key.0, &key.1) > 0 {
        if slice.is_over() {
            return F::with(|_, work| work.agenda.push_front(key.clone()));
        }
        slice.has_answered();
        let head = F::with(|queues, _| queues.head(key.0, &key.1));
        if let Some(ticket) = head
            && let Some(answer) = outcome_answer::<F>(ticket, now)
        {
            finish::<F>(ticket, answer);
            continue;
        }
        let since_us = head_since::<F>(key);
        match F::serve_head(ctx, now, key, name, &mut shared) {
            HeadStep::Empty => return,
            HeadStep::Waits(at) => return set_retry::<F>(ctx, key, Some(at)),
            HeadStep::TimedOut(ticket) => time_out::<F>(ctx, ticket),
            HeadStep::Served(ticket, answer) => {
                F::wait_times().count_between(since_us, now.micros());
                F::blocked().wake(ticket, answer);
            }
        }
    }
}

/// The answer for a waiting client that has an outcome.
fn outcome_answer<F: QueueService>(ticket: Ticket, now: Now) -> Option<Answer> {
    F::with(|queues, _| {
        let outcome = queues.outcome_of(ticket)?;
        let request = &queues.get(ticket)?.request;
        Some(F::outcome_answer(outcome, request, now))
    })
}

/// Ends the wait of a client with an answer.
fn finish<F: QueueService>(ticket: Ticket, answer: Answer) {
    if let Some(waiter) = F::with(|queues, _| queues.remove(ticket)) {
        F::wait_times().count_between(waiter.since_us, Now::read().micros());
        F::blocked().wake(ticket, answer);
    }
}

/// Ends the wait of a client whose time is up.
fn time_out<F: QueueService>(ctx: Ctx<'_>, ticket: Ticket) {
    let now = Now::read();
    if let Some(answer) = outcome_answer::<F>(ticket, now) {
        return finish::<F>(ticket, answer);
    }
    let Some(waiter) = F::with(|queues, _| queues.remove(ticket)) else {
        return;
    };
    let answer = F::timeout_answer(ctx, &waiter, now);
    F::wait_times().count_between(waiter.since_us, now.micros());
    F::blocked().wake(ticket, answer);
}

/// Ends the wait of the first client of a queue with an error. Returns whether there was one.
fn dismiss_head<F: QueueService>(key: &Key, error: Error) -> bool {
    let since_us = head_since::<F>(key);
    let step = F::with(|queues, _| queues.dismiss_head(key, error));
    let HeadStep::Served(ticket, answer) = step else {
        return false;
    };
    F::wait_times().count_between(since_us, Now::read().micros());
    F::blocked().wake(ticket, answer);
    true
}

/// The reply of a client that was served has been sent.
pub fn reply_sent<F: QueueService>(ticket: Ticket) {
    F::with(|queues, _| queues.sent(ticket));
}

/// A client has left. Returns the reply for a client that `CLIENT UNBLOCK` has unblocked.
pub fn client_left<F: QueueService>(ctx: Ctx<'_>, ticket: Ticket, departure: Departure) -> Answer {
    if departure == Departure::Unanswered {
        if F::with(|queues, _| queues.not_sent(ticket)) {
            deferred::ask_for_slices_and_wake();
        }
        return Ok(Reply::Nil);
    }
    let now = Now::read();
    let is_unblocked = departure == Departure::Unblocked;
    let answer = is_unblocked
        .then(|| outcome_answer::<F>(ticket, now))
        .flatten();
    let waiter = F::with(|queues, _| queues.remove(ticket));
    if let Some(waiter) = &waiter {
        F::wait_times().count_between(waiter.since_us, now.micros());
    }
    match waiter.filter(|_| is_unblocked) {
        Some(waiter) => answer.unwrap_or_else(|| F::timeout_answer(ctx, &waiter, now)),
        None => Ok(Reply::Nil),
    }
}

/// Handles a server event.
pub fn handle_event<F: QueueService>(event: &ServerEvent) {
    match event {
        ServerEvent::Unlinked(db, key)
        | ServerEvent::Changed(db, key)
        | ServerEvent::Arrived(db, key) => {
            if waiting::<F>(*db, key) == 0 {
                return;
            }
            serve_later::<F>((*db, (**key).into()));
            deferred::ask_for_slices();
        }
        ServerEvent::Flushed(db) => serve_all::<F>(*db),
        ServerEvent::Swapped(first, second) => {
            serve_all::<F>(Some(*first));
            serve_all::<F>(Some(*second));
        }
        ServerEvent::Loaded | ServerEvent::Replaced => serve_all::<F>(None),
        ServerEvent::Demoted => dismiss_all::<F>(),
        // The waiting clients are redirected slot by slot.
        ServerEvent::SlotsMayMove | ServerEvent::SlotsMoved(_) | ServerEvent::SlotsDropped(_) => {}
        ServerEvent::Disconnected(_) | ServerEvent::Saving | ServerEvent::Discarded => {}
    }
}

/// The server has become a replica. Only masters have waiting clients.
fn dismiss_all<F: QueueService>() {
    F::with(|queues, work| {
        queues.forget_undelivered();
        *work = QueueWork::default();
        // Most servers have ended the waits already. Valkey 9.1 does not, in a cluster.
        work.dismissals.push_back(Dismissal::All(queues.scan(None)));
    });
    deferred::ask_for_slices();
}

fn has_work<F: QueueService>() -> bool {
    let has_queue_work = F::with(|queues, work| {
        !work.agenda.is_empty()
            || !work.scans.is_empty()
            || !work.dismissals.is_empty()
            || queues.has_undelivered()
    });
    has_queue_work || F::has_more_work()
}

/// Asks for slices if there is work for them.
pub fn ask_for_slices_if_needed<F: QueueService>() {
    if has_work::<F>() {
        deferred::ask_for_slices();
    }
}

/// Continues the work in slices.
pub fn go_on<F: QueueService>(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let now = Now::read();
    let may_act = ctx.may_act();
    while !slice.is_over()
        && (dismiss_next::<F>(ctx, slice) || may_act && take_step::<F>(ctx, now, slice))
    {}
    F::with(|_, work| !work.dismissals.is_empty()) || may_act && has_work::<F>()
}

/// Takes the next step of the work in slices. Returns false if there is none.
fn take_step<F: QueueService>(ctx: Ctx<'_>, now: Now, slice: &mut Slice) -> bool {
    if let Some((key, token)) = F::with(|queues, _| queues.next_undelivered()) {
        F::take_back(ctx, now, &key, token);
        serve_later::<F>(key);
        return true;
    }
    if let Some(key) = F::with(|_, work| work.agenda.pop()) {
        serve_in::<F>(ctx, now, &key, slice);
        return true;
    }
    let has_scanned = F::with(|queues, work| {
        let Some(scan) = work.scans.front_mut() else {
            return false;
        };
        match queues.next_scanned(scan) {
            Some(ScanStep(key)) => key.into_iter().for_each(|key| work.agenda.push(key)),
            None => drop(work.scans.pop_front()),
        }
        true
    });
    has_scanned || F::take_other_step(ctx)
}

/// Ends the next wait that is to end with an error. Returns false if there is none.
fn dismiss_next<F: QueueService>(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let again = |dismissal| F::with(|_, work| work.dismissals.push_front(dismissal));
    match F::with(|_, work| work.dismissals.pop_front()) {
        None => return false,
        Some(Dismissal::All(mut scan)) => {
            if let Some(ScanStep(key)) = F::with(|queues, _| queues.next_scanned(&mut scan)) {
                again(Dismissal::All(scan));
                if let Some(key) = key {
                    let error = cluster::demotion_error(ctx, &ServerString::new(&key.1));
                    again(Dismissal::Key(key, error));
                }
            }
        }
        Some(Dismissal::Key(key, error)) => {
            if dismiss_head::<F>(&key, error.clone()) {
                again(Dismissal::Key(key, error));
                slice.has_answered();
            }
        }
    }
    true
}

/// Handles the deadlines that have passed. Returns the next deadline (Unix ms).
pub fn due<F: QueueService>(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let mut slice = Slice::begin();
    loop {
        let at = F::with(|queues, _| queues.next_deadline())?;
        if at > now.ms() {
            return Some(at);
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        match F::with(|queues, _| queues.pop_deadline())? {
            QueueDeadline::Timeout(ticket) => {
                time_out::<F>(ctx, ticket);
                slice.has_answered();
            }
            QueueDeadline::Retry(key) => {
                serve_in::<F>(ctx, now, &key, &mut slice);
                ask_for_slices_if_needed::<F>();
            }
        }
    }
}

/// The functions for waiting clients in a cluster.
pub const fn in_slots<F: QueueService>() -> InSlots {
    InSlots {
        index: || F::with(|queues, _| queues.index_slots()),
        slots: || F::with(|queues, _| queues.slots()),
        queues: |slot, after, most| F::with(|queues, _| queues.of_slot(slot, after, most)),
        refuse: |key, error| dismiss_head::<F>(key, error.clone()),
        serve: |ctx, key, has_changed, slice| {
            let has_retry = F::with(|queues, _| queues.has_retry(key.0, &key.1));
            if has_changed || !has_retry {
                serve_in::<F>(ctx, Now::read(), key, slice);
                ask_for_slices_if_needed::<F>();
            }
        },
    }
}
