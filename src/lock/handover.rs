//! Who is served next. The queues hand locks over against a [`LockWorld`], which has the locks: the server, or a simulation.
//! Nothing here knows a server, a clock or randomness.
//!
//! When the server opens or creates a key, listeners to keyspace events may run commands that use the hand-over. So a function
//! that opens keys takes the world alone, which lends the [`Handover`] for a moment. A client that is granted locks leaves its
//! queues in the same step, and a step looks whether its client still waits.

mod attempt;

use super::counters::LockCounters;
use super::queue::{Listener, LockWaiter, Queues, Want};
use super::state::{Acquire, Acquired, Admission, Amount, LockKind, Upgraded};
use super::watch::Sweep;
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::waiting::{Agenda, Key, Scan, ScanStep, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CStr;
use std::sync::Arc;

pub use attempt::{Outcome, acquire_all, acquire_one};

/// The locks at the keys of one request, open for a step. Holds whose lease ended are gone.
pub trait OpenLocks {
    /// Returns what this acquisition would meet at the key with this index.
    fn admits(&mut self, index: usize, request: &Acquire<'_>) -> Admission;

    /// Acquires the lock at the key with this index; a new hold gets the next fencing token.
    fn acquire(&mut self, index: usize, request: &Acquire<'_>) -> Result<Acquired, Error>;

    /// Turns the owner's shared hold at the first key into the exclusive one.
    fn upgrade(&mut self, owner: &[u8], lease: u64) -> Result<Upgraded, Error>;

    /// Returns the last millisecond (Unix time) in which no hold of the lock at this index ends; `None` without holds.
    fn next_end(&mut self, index: usize) -> Option<u64>;
}

/// The clients behind the tickets.
pub trait WaitingClients {
    /// Answers a blocked client. It does not wait any more.
    fn answer(&mut self, ticket: Ticket, answer: Answer);

    /// Tells the listener of a request how its wait ended.
    fn publish(&mut self, ticket: Ticket, listener: &Listener, id: &[u8], end: WaitEnd);

    /// A wait has ended that began at this time (Unix us).
    fn wait_ended(&mut self, _since_us: u64) {}
}

/// How the wait of a request ended whose client is not blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// All is held; this is the fencing token of the first key.
    Granted(u64),
    /// Its time is up, or it would wait for its own owner.
    TimedOut,
    /// The request can be repeated, perhaps elsewhere.
    Moved,
    /// The wait would never have ended.
    Deadlock,
}

impl WaitEnd {
    /// The end that a blocked client would be told by this answer.
    fn of(answer: &Answer) -> Self {
        match answer {
            Ok(Reply::Int(fence)) => WaitEnd::Granted(*fence as u64),
            Ok(Reply::Array(fences)) => match fences.first() {
                Some(Reply::Int(fence)) => WaitEnd::Granted(*fence as u64),
                _ => WaitEnd::Moved,
            },
            Ok(_) => WaitEnd::TimedOut,
            Err(Error::Deadlock) => WaitEnd::Deadlock,
            Err(_) => WaitEnd::Moved,
        }
    }
}

/// What the hand-over needs from the world around the queues. All its methods act at the time that the caller passes to the
/// [`Handover`].
pub trait LockWorld: WaitingClients {
    /// Returns whether locks may be granted to waiting clients now. If not, [`Handover::grants_again`] is called later.
    fn may_grant(&mut self) -> bool;

    /// Returns whether this connection lives, by its client id.
    fn is_connected(&mut self, client: u64) -> bool;

    /// Returns whether clients that wait for this key may be served here now. If not, its queue is served when its hash slot is
    /// here again.
    fn serves(&mut self, key: &Key) -> bool;

    /// Returns whether only keys of one hash slot may be opened now. On a node of a cluster, some servers (seen on
    /// Redis 8.6 and Valkey 9.1) assign each key that is opened during a command to the hash slot of the command.
    fn is_limited_to_a_slot(&mut self) -> bool {
        false
    }

    /// Calls a function with the hand-over and the waiting clients. The function opens no keys.
    fn with_handover<T>(
        &mut self,
        run: impl FnOnce(&mut Handover, &mut dyn WaitingClients) -> T,
    ) -> T;

    /// Opens the locks at keys of one database, takes `step`, and carries out what follows from it, with this keyspace event
    /// (empty: none). If the value at a key is no lock of this kind, it returns an error and `step` is not taken. Before and
    /// after the step, listeners to keyspace events may run commands, which change the hand-over.
    fn with_locks<T>(
        &mut self,
        keys: &[Key],
        kind: LockKind,
        event: &'static CStr,
        step: impl FnOnce(&mut Handover, &mut dyn OpenLocks) -> T,
    ) -> Result<T, Error>;

    /// Releases what an owner was granted, if this key is still the server's to change.
    fn take_back(&mut self, key: &Key, kind: LockKind, owner: &[u8], amount: Amount);

    /// Has [`Handover::end_first_wait`] and [`Handover::retry_first`] called at this time (Unix ms), at the latest.
    fn wake_at(&mut self, at: u64);

    /// Returns the error for clients that waited for a key of a server that became a replica.
    fn demotion_error(&mut self, key: &Key) -> Error;

    /// Takes a step of work on keys and watched holds.
    fn upkeep(&mut self, task: &mut Upkeep) -> UpkeepStep;
}

/// Work on keys and watched holds that is done in steps, in turn with the hand-over.
#[derive(Debug)]
pub enum Upkeep {
    /// Watch holds no more.
    Unwatch(Sweep),
    /// Make a lock fit an expiry that something else set, or a key that the lock came to.
    Reconcile(Key),
    /// Release the holds that were watched for a connection.
    Abandon(u64),
}

/// What a step of [`Upkeep`] did.
#[derive(Debug, Default)]
pub struct UpkeepStep {
    /// Whether another step is needed.
    pub is_unfinished: bool,
    /// A key whose queue may be served now.
    pub changed: Option<Key>,
}

/// What a step of the hand-over did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverProgress {
    /// Nothing: there is nothing to do.
    Idle,
    /// It did something.
    Stepped,
    /// It answered clients.
    Answered,
}

/// With work left from earlier slices, a command tries to serve no more of its own queues than this.
const QUEUES_BESIDE_BACKLOG: usize = 4;

/// Work that is done a step at a time, before queues are served.
#[derive(Debug)]
enum HandoverTask {
    /// Work on keys and watched holds.
    Upkeep(Upkeep),
    /// Take back what clients were granted that left before they were answered.
    TakeBack,
    /// Try to serve the other clients of an owner whose holds of these locks have changed.
    ServeOwner(OwnerTurn),
    /// A lock may have arrived at each key of a scan: see [`Handover::lock_arrived`].
    AllArrived(Scan),
    /// Take the requests of a connection out of the queues, which has closed.
    Disconnect(u64),
    /// Answer all clients of a server that became a replica.
    AnswerAll(Scan),
    /// Answer all clients that wait for a key with an error.
    Refuse(Key, Error),
    /// Try the clients of all postponed keys.
    RetryPostponed,
}

/// How far the clients of an owner have been tried.
#[derive(Debug)]
struct OwnerTurn {
    owner: Box<[u8]>,
    keys: Vec<Key>,
    /// The index of the key.
    index: usize,
    /// The clients up to this ticket were tried.
    after: Ticket,
}

impl OwnerTurn {
    fn new(owner: &[u8], keys: Vec<Key>) -> Self {
        Self {
            owner: owner.into(),
            keys,
            index: 0,
            after: 0,
        }
    }
}

/// The queues of all locks, and the work that hands locks over to waiting clients.
#[derive(Debug, Default)]
pub struct Handover {
    /// The queues of waiting clients.
    pub queues: Queues,
    /// The counters of the family.
    pub counters: LockCounters,
    /// Clients that were granted locks and have not received their answer yet.
    unanswered: BTreeMap<Ticket, Arc<LockWaiter>>,
    /// Clients that were granted locks and left before they received their answer. The locks from this index on are still to
    /// be taken back.
    undelivered: VecDeque<(Arc<LockWaiter>, usize)>,
    /// Whether a lock was not handed over because no lock might be granted.
    has_refused_grants: bool,
    /// When clients stop waiting (Unix ms).
    timeouts: BTreeSet<(u64, Ticket)>,
    /// When holds end that the first client of a queue waits for (Unix ms).
    retries: BTreeSet<(u64, Ticket)>,
    tasks: VecDeque<HandoverTask>,
    /// The keys where a lock has arrived, each with the last client that was tried because of that.
    arrived: BTreeMap<Key, Ticket>,
    /// Keys with waiting clients that were to be tried although they are not first: their owner was granted a lock, or a lock has
    /// arrived. They could not be tried, because no lock might be granted or the hash slot was away.
    postponed: BTreeSet<Key>,
    /// How many of these tasks make the lock at a key fit its expiry.
    reconciles: BTreeMap<Key, usize>,
    /// The keys whose queues are to be served.
    agenda: Agenda,
    /// Scans through queues that are to be served.
    scans: VecDeque<Scan>,
}

/// Clients join and leave the queues.
impl Handover {
    /// Starts the wait of a client that has joined the queues. The caller then serves its keys.
    pub fn begin_wait(&mut self, world: &mut impl LockWorld, ticket: Ticket) {
        self.counters.waited += 1;
        let deadline = self.queues.get(ticket).and_then(|waiter| waiter.deadline());
        self.limit_wait(world, ticket, deadline);
    }

    /// Puts a client in the position of the one whose request it repeats. The caller has answered that one, and then serves
    /// the keys.
    pub fn replace(&mut self, world: &mut impl LockWorld, ticket: Ticket, waiter: LockWaiter) {
        self.counters.waited += 1;
        let deadline = waiter.deadline();
        if let Some(first) = self.queues.replace(ticket, waiter) {
            world.wait_ended(first.since_us);
            if let Some(at) = first.deadline() {
                self.timeouts.remove(&(at, ticket));
            }
        }
        self.limit_wait(world, ticket, deadline);
    }

    fn limit_wait(&mut self, world: &mut impl LockWorld, ticket: Ticket, deadline: Option<u64>) {
        if let Some(at) = deadline {
            self.timeouts.insert((at, ticket));
            world.wake_at(at);
        }
    }

    /// A client that was served has received its answer.
    pub fn delivered(&mut self, ticket: Ticket) {
        self.unanswered.remove(&ticket);
    }

    /// A waiting client left, and is answered elsewhere if at all. Returns whether it waited.
    pub fn leave(&mut self, clients: &mut (impl WaitingClients + ?Sized), ticket: Ticket) -> bool {
        let left = self.give_up(ticket);
        if let Some(waiter) = &left {
            clients.wait_ended(waiter.since_us);
        }
        self.serve_behind(left.as_deref());
        left.is_some()
    }

    /// A client left that was answered but has not received the answer. Returns whether it was granted locks, which are then
    /// taken back.
    pub fn leave_undelivered(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.unanswered.remove(&ticket) else {
            return false;
        };
        self.serve_behind(Some(&waiter));
        self.undelivered.push_back((waiter, 0));
        self.tasks.push_back(HandoverTask::TakeBack);
        true
    }

    /// Takes the first request with this id out of the queue of a key, and out of all its queues. A blocked client receives
    /// nil. Returns the request. The caller then serves its keys.
    pub fn cancel(
        &mut self,
        clients: &mut (impl WaitingClients + ?Sized),
        key: &Key,
        kind: LockKind,
        id: &[u8],
    ) -> Option<Arc<LockWaiter>> {
        let ticket = self.queues.with_id(key, kind, id)?;
        let waiter = self.give_up(ticket)?;
        clients.wait_ended(waiter.since_us);
        self.counters.timeouts += 1;
        if waiter.listener.is_none() {
            clients.answer(ticket, Ok(Reply::Nil));
        }
        Some(waiter)
    }

    /// A connection has closed: its requests leave the queues that have no blocked client.
    pub fn disconnect(&mut self, client: u64) {
        if self.queues.first_of_listener(client).is_some() {
            self.tasks.push_front(HandoverTask::Disconnect(client));
        }
    }

    /// Answers a waiting client with an error, because its wait would never end. Returns whether it waited.
    pub fn refuse(
        &mut self,
        clients: &mut (impl WaitingClients + ?Sized),
        ticket: Ticket,
        error: Error,
    ) -> bool {
        let refused = self.dismiss(clients, ticket, Err(error));
        self.serve_behind(refused.as_deref());
        refused.is_some()
    }

    /// Ends the wait of the first client that waits for this key, with an error. Returns whether there was one.
    pub fn refuse_first(
        &mut self,
        clients: &mut (impl WaitingClients + ?Sized),
        (db, key): &Key,
        error: &Error,
    ) -> bool {
        let Some(ticket) = self.queues.head(*db, key) else {
            return false;
        };
        self.dismiss(clients, ticket, Err(error.clone()));
        true
    }

    /// Takes a client out of its queues and answers it.
    fn dismiss(
        &mut self,
        clients: &mut (impl WaitingClients + ?Sized),
        ticket: Ticket,
        answer: Answer,
    ) -> Option<Arc<LockWaiter>> {
        let waiter = self.give_up(ticket)?;
        end_wait(clients, ticket, &waiter, answer);
        Some(waiter)
    }

    /// Takes a client out of its queues that was granted locks. The caller answers it.
    /// `repeated`: see [`Queues::remove_granted`].
    fn grant(&mut self, ticket: Ticket, repeated: &[usize]) -> Option<Arc<LockWaiter>> {
        let retry_at = self.queues.retry_at(ticket);
        let waiter = self.queues.remove_granted(ticket, repeated)?;
        self.forget_times_and_keys(ticket, &waiter, retry_at);
        if waiter.listener.is_none() {
            self.unanswered.insert(ticket, waiter.clone());
        }
        if self.queues.owner_waits(&waiter.owner) {
            self.queues.record_new_holds();
            if waiter.wants_lock() {
                let turn = OwnerTurn::new(&waiter.owner, waiter.keys.clone());
                self.tasks.push_front(HandoverTask::ServeOwner(turn));
            }
        }
        Some(waiter)
    }

    /// Takes a client out of its queues that was granted nothing.
    fn give_up(&mut self, ticket: Ticket) -> Option<Arc<LockWaiter>> {
        self.queues.recheck_without(ticket);
        let retry_at = self.queues.retry_at(ticket);
        let waiter = self.queues.remove(ticket)?;
        self.forget_times_and_keys(ticket, &waiter, retry_at);
        Some(waiter)
    }

    /// Removes the times of a client that has left its queues, and those of its keys from the postponed ones that nobody waits for
    /// now. `retry_at`: when the client was to be tried again.
    fn forget_times_and_keys(
        &mut self,
        ticket: Ticket,
        waiter: &LockWaiter,
        retry_at: Option<u64>,
    ) {
        if let Some(at) = waiter.deadline() {
            self.timeouts.remove(&(at, ticket));
        }
        if let Some(at) = retry_at {
            self.retries.remove(&(at, ticket));
        }
        if !self.postponed.is_empty() {
            for key in &waiter.keys {
                if !self.queues.waits_for(key.0, &key.1) {
                    self.postponed.remove(key);
                }
            }
        }
    }

    /// The clients behind one that left may be next.
    fn serve_behind(&mut self, left: Option<&LockWaiter>) {
        for (db, key) in left.into_iter().flat_map(|waiter| &waiter.keys) {
            if self.queues.waits_for(*db, key) {
                self.agenda.push((*db, key.clone())); // the lock has not changed
            }
        }
    }
}

/// Work is noted, and done a step at a time.
impl Handover {
    /// Whether any work is left.
    pub fn has_work(&self) -> bool {
        self.has_urgent_work() || !self.scans.is_empty()
    }

    /// Whether any work is left that goes before scans.
    pub fn has_urgent_work(&self) -> bool {
        !self.tasks.is_empty() || !self.arrived.is_empty() || !self.agenda.is_empty()
    }

    /// The locks at these keys have changed. If there is work already, or only keys of one hash slot may be opened now, serves the first
    /// client of a few queues at once. Otherwise returns whether there is work now, which the caller does in a slice. No request
    /// overtakes in between: a client that comes to a key with a queue joins it.
    pub fn keys_changed(
        world: &mut impl LockWorld,
        now: u64,
        keys: impl IntoIterator<Item = Key>,
    ) -> bool {
        let is_limited = world.is_limited_to_a_slot();
        let is_busy = is_limited || world.with_handover(|handover, _| handover.has_urgent_work());
        let mut queues = 0;
        for (db, key) in keys {
            let is_served_now = world.with_handover(|handover, _| {
                if !handover.queues.waits_for(db, &key) {
                    return false;
                }
                handover.queues.record_change(db, &key);
                queues += 1;
                let is_later = !is_busy || queues > QUEUES_BESIDE_BACKLOG;
                if is_later {
                    handover.agenda.push((db, key.clone()));
                }
                !is_later
            });
            if is_served_now {
                Self::serve_first(world, now, (db, key));
            }
        }
        !is_busy && queues > 0
    }

    /// Notes that a queue is to be served.
    pub fn serve_later(&mut self, (db, key): Key) {
        if self.queues.waits_for(db, &key) {
            self.queues.record_change(db, &key);
            self.agenda.push((db, key));
        }
    }

    /// Notes that all queues of a database are to be served; `None`: those of all databases.
    pub fn serve_all(&mut self, db: Option<i32>) {
        self.scans.push_back(self.queues.scan(db));
    }

    /// Notes work on keys and watched holds.
    pub fn add_upkeep(&mut self, task: Upkeep) {
        if let Upkeep::Reconcile(key) = &task {
            *self.reconciles.entry(key.clone()).or_default() += 1;
        }
        self.tasks.push_back(HandoverTask::Upkeep(task));
    }

    /// Notes that all queues are to be served, if a lock was not handed over because none might be granted. Returns whether
    /// that was so.
    pub fn grants_again(&mut self) -> bool {
        let had_refused_grants = std::mem::take(&mut self.has_refused_grants);
        if had_refused_grants {
            self.tasks.push_back(HandoverTask::RetryPostponed);
            self.serve_all(None);
        }
        had_refused_grants
    }

    /// Notes that all clients of this key are to be tried, if it is postponed.
    pub fn retry_postponed(&mut self, key: &Key) {
        if let Some(key) = self.postponed.take(key) {
            self.lock_arrived(key);
        }
    }

    /// Notes that clients of this key are to be tried later, by [`Handover::retry_postponed`] or [`Handover::grants_again`].
    fn postpone(&mut self, key: Key) {
        if self.queues.waits_for(key.0, &key.1) {
            self.postponed.insert(key);
        }
    }

    /// Something other than a grant, such as `RENAME`, has put a lock at this key. Its holders may also have requests in the queue,
    /// which can re-enter the lock, and clients may wait for a value of another type. So all clients of the queue are tried.
    pub fn lock_arrived(&mut self, key: Key) {
        if self.queues.waits_for(key.0, &key.1) {
            self.arrived.insert(key, 0);
        }
    }

    /// The same for all keys of a database; `None`: of all databases.
    pub fn all_locks_arrived(&mut self, db: Option<i32>) {
        let scan = self.queues.scan(db);
        self.tasks.push_back(HandoverTask::AllArrived(scan));
    }

    /// An owner shares the lock at this key now, without a grant. Its clients that wait for the exclusive lock cannot get it. Returns
    /// whether there are any.
    pub fn begins_to_share(&mut self, db: i32, key: &[u8], owner: &[u8]) -> bool {
        if !self.queues.owner_waits(owner) {
            return false;
        }
        let key = (db, key.into());
        let is_waiting = self.queues.next_of_owner(&key, owner, 0).is_some();
        if is_waiting {
            let turn = OwnerTurn::new(owner, vec![key]);
            self.tasks.push_back(HandoverTask::ServeOwner(turn));
        }
        is_waiting
    }

    /// Whether a lock was not handed over because none might be granted.
    pub fn has_refused_grants(&self) -> bool {
        self.has_refused_grants
    }

    /// The server became a replica: the waiting clients are answered with errors. A client that was granted a lock at the last
    /// moment keeps it, because later its owner may hold it by another grant. The remaining leases end by themselves.
    pub fn demote(&mut self, watched: Sweep) {
        self.tasks
            .retain(|task| matches!(task, HandoverTask::Disconnect(_)));
        self.reconciles.clear();
        self.arrived.clear();
        self.agenda.clear();
        self.scans.clear();
        self.undelivered.clear();
        self.postponed.clear();
        self.add_upkeep(Upkeep::Unwatch(watched));
        let all = self.queues.scan(None);
        self.tasks.push_back(HandoverTask::AnswerAll(all));
    }

    /// Takes a step of what is to be done.
    pub fn step(world: &mut impl LockWorld, now: u64) -> HandoverProgress {
        let (waiting, next) =
            world.with_handover(|handover, _| (handover.queues.len(), handover.next_step()));
        match next {
            NextStep::None => return HandoverProgress::Idle,
            NextStep::Done => {}
            NextStep::Task(task) => Self::take(world, now, task),
            NextStep::Serve(key) => Self::serve_first(world, now, key),
            NextStep::TryBehind(key, after) => Self::try_behind(world, now, key, after),
        }
        if world.with_handover(|handover, _| handover.queues.len()) < waiting {
            HandoverProgress::Answered
        } else {
            HandoverProgress::Stepped
        }
    }

    /// Takes the next step off the list. A step of a scan is done at once.
    fn next_step(&mut self) -> NextStep {
        if let Some(task) = self.pop_task() {
            return NextStep::Task(task);
        }
        if let Some((key, after)) = self.arrived.pop_first() {
            return NextStep::TryBehind(key, after);
        }
        if let Some(key) = self.agenda.pop() {
            return NextStep::Serve(key);
        }
        let Some(scan) = self.scans.front_mut() else {
            return NextStep::None;
        };
        match self.queues.next_scanned(scan) {
            Some(ScanStep(Some(key))) => self.serve_later(key),
            Some(ScanStep(None)) => {}
            None => drop(self.scans.pop_front()),
        }
        NextStep::Done
    }

    /// The lock at a key is to be made to fit the key's expiry. If a task for this key is still waiting, it also covers this change.
    pub fn reconcile_later(&mut self, key: Key) {
        if !self.reconciles.contains_key(&key) {
            self.add_upkeep(Upkeep::Reconcile(key));
        }
    }

    /// Refuses the first client of a key with this error if it waits for this type, which the value at the key does not have. The key
    /// is opened again before the next client is refused.
    pub(super) fn refuse_first_of(
        &mut self,
        clients: &mut (impl WaitingClients + ?Sized),
        key: &Key,
        kind: LockKind,
        error: Error,
    ) {
        let first = self.queues.waiters_of(key.0, &key.1).next();
        if let Some((ticket, _)) = first.filter(|(_, waiter)| waiter.kind() == kind) {
            self.refuse(clients, ticket, error);
            self.reconcile_later(key.clone());
        }
    }

    fn pop_task(&mut self) -> Option<HandoverTask> {
        let task = self.tasks.pop_front()?;
        if let HandoverTask::Upkeep(Upkeep::Reconcile(key)) = &task
            && let Some(tasks) = self.reconciles.get_mut(key)
        {
            *tasks -= 1;
            if *tasks == 0 {
                self.reconciles.remove(key);
            }
        }
        Some(task)
    }

    /// Takes a step on a replica, which has no locks to hand over. Returns false if there is nothing to do.
    pub fn step_as_replica(world: &mut impl LockWorld, now: u64) -> bool {
        let next = world.with_handover(|handover, _| {
            while let Some(task) = handover.pop_task() {
                let is_for_replicas = matches!(
                    task,
                    HandoverTask::Upkeep(Upkeep::Unwatch(_))
                        | HandoverTask::Disconnect(_)
                        | HandoverTask::AnswerAll(_)
                        | HandoverTask::Refuse(..)
                );
                if is_for_replicas {
                    return Some(task);
                }
            }
            None
        });
        let Some(task) = next else {
            return false;
        };
        Self::take(world, now, task);
        true
    }

    /// Whether a replica has any work left.
    pub fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    fn take(world: &mut impl LockWorld, now: u64, task: HandoverTask) {
        match task {
            HandoverTask::Upkeep(mut task) => {
                let step = world.upkeep(&mut task);
                world.with_handover(|handover, _| {
                    if let Some(key) = step.changed {
                        handover.serve_later(key);
                    }
                    if step.is_unfinished {
                        handover.tasks.push_front(HandoverTask::Upkeep(task));
                    }
                });
            }
            HandoverTask::TakeBack => {
                let next = world.with_handover(|handover, _| handover.undelivered.pop_front());
                if let Some((waiter, index)) = next {
                    Self::take_back(world, &waiter, index);
                    world.with_handover(|handover, _| {
                        if index + 1 < waiter.keys.len() {
                            handover.undelivered.push_front((waiter, index + 1));
                        }
                        handover.tasks.push_front(HandoverTask::TakeBack);
                    });
                }
            }
            HandoverTask::ServeOwner(turn) => Self::serve_owner(world, now, turn),
            HandoverTask::AllArrived(mut scan) => world.with_handover(|handover, _| {
                if let Some(ScanStep(key)) = handover.queues.next_scanned(&mut scan) {
                    handover.tasks.push_front(HandoverTask::AllArrived(scan));
                    key.into_iter().for_each(|key| handover.lock_arrived(key));
                }
            }),
            HandoverTask::RetryPostponed => world.with_handover(|handover, _| {
                if let Some(key) = handover.postponed.pop_first() {
                    // Clients are tried after the last task, so a key is seldom added while this task runs.
                    handover.lock_arrived(key);
                    handover.tasks.push_front(HandoverTask::RetryPostponed);
                }
            }),
            HandoverTask::Disconnect(client) => world.with_handover(|handover, clients| {
                if let Some(ticket) = handover.queues.first_of_listener(client) {
                    handover.leave(clients, ticket);
                    handover.tasks.push_front(HandoverTask::Disconnect(client));
                }
            }),
            HandoverTask::AnswerAll(mut scan) => {
                let scanned =
                    world.with_handover(|handover, _| handover.queues.next_scanned(&mut scan));
                if let Some(ScanStep(key)) = scanned {
                    // Most servers have answered the waiting clients already. Valkey 9.1 does not, in a cluster.
                    let refusal = key.map(|key| {
                        let error = world.demotion_error(&key);
                        HandoverTask::Refuse(key, error)
                    });
                    world.with_handover(|handover, _| {
                        handover.tasks.push_front(HandoverTask::AnswerAll(scan));
                        if let Some(refusal) = refusal {
                            handover.tasks.push_front(refusal);
                        }
                    });
                }
            }
            HandoverTask::Refuse((db, key), error) => world.with_handover(|handover, clients| {
                if let Some(ticket) = handover.queues.head(db, &key) {
                    handover.dismiss(clients, ticket, Err(error.clone()));
                    let task = HandoverTask::Refuse((db, key), error);
                    handover.tasks.push_front(task);
                }
            }),
        }
    }

    /// Takes back one of the locks that a client was granted which left before it was answered.
    fn take_back(world: &mut impl LockWorld, waiter: &LockWaiter, index: usize) {
        if waiter.id.is_some() {
            return; // its repetition finds the hold, or has found it already
        }
        if waiter.want == Want::Upgrade {
            return; // it had a hold before, and keeps it
        }
        let amount = Amount::Count(waiter.permits().unwrap_or(1));
        let key = &waiter.keys[index];
        world.take_back(key, waiter.kind(), &waiter.owner, amount);
        world.with_handover(|handover, _| handover.serve_later(key.clone()));
    }
}

/// The next step of the hand-over.
enum NextStep {
    /// There is nothing to do.
    None,
    /// It has been done.
    Done,
    /// A task.
    Task(HandoverTask),
    /// The first client in the queue of this key is to be served.
    Serve(Key),
    /// The next client behind this ticket in the queue of this key is to be tried.
    TryBehind(Key, Ticket),
}

/// Tells a client that has left its queues how its wait ended.
fn end_wait(
    clients: &mut (impl WaitingClients + ?Sized),
    ticket: Ticket,
    waiter: &LockWaiter,
    answer: Answer,
) {
    clients.wait_ended(waiter.since_us);
    if let (Some(listener), Some(id)) = (&waiter.listener, &waiter.id) {
        clients.publish(ticket, listener, id, WaitEnd::of(&answer));
    } else {
        clients.answer(ticket, answer);
    }
}

/// Clients stop waiting at their deadlines, and are tried again when holds end.
impl Handover {
    /// When the next client stops waiting (Unix ms).
    pub fn next_timeout(&self) -> Option<u64> {
        self.timeouts.first().map(|(at, _)| *at)
    }

    /// Ends the wait of the client whose deadline is first.
    pub fn end_first_wait(&mut self, clients: &mut (impl WaitingClients + ?Sized)) {
        if let Some((_, ticket)) = self.timeouts.pop_first() {
            self.counters.timeouts += 1;
            let left = self.dismiss(clients, ticket, Ok(Reply::Nil));
            self.serve_behind(left.as_deref());
        }
    }

    /// When the next hold ends that the first client of a queue waits for (Unix ms).
    pub fn next_retry(&self) -> Option<u64> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Notes that the queue is to be served in which the client waits whose retry is first.
    pub fn retry_first(&mut self) {
        let Some((_, ticket)) = self.retries.pop_first() else {
            return;
        };
        self.queues.set_retry(ticket, None);
        let index = self.queues.blocked_on(ticket);
        if let Some(waiter) = self.queues.get(ticket).cloned() {
            self.serve_later(waiter.keys[index].clone());
        }
    }

    fn set_retry(world: &mut impl LockWorld, ticket: Ticket, at: Option<u64>) {
        let is_new = world.with_handover(|handover, _| {
            if handover.queues.get(ticket).is_none() {
                return false; // it has left
            }
            let before = handover.queues.set_retry(ticket, at);
            if before == at {
                return false;
            }
            if let Some(before) = before {
                handover.retries.remove(&(before, ticket));
            }
            handover.retries.extend(at.map(|at| (at, ticket)));
            true
        });
        if is_new && let Some(at) = at {
            world.wake_at(at);
        }
    }
}
