//! Who is served next, in simulated worlds against a naive model: clients that wait for locks and semaphores, blocked or with a
//! channel, cancel requests, leave and close their connections, holds that end or linger, keys that go, hash slots that are away,
//! and time.
//!
//! The world has real locks and real queues, but no server. The model has lists. It sees each answer of the hand-over and decides
//! whether this client may receive this answer now. When all work is done it looks for clients that could be served and were not.
//!
//! `SLUICE_WORLDS` sets the number of worlds, `SLUICE_WORLD` runs a single one.

use crate::support::Random;
use sluice::error::Error;
use sluice::lock::handover::{
    Handover, HandoverProgress, LockWorld, OpenLocks, Outcome, Upkeep, UpkeepStep, WaitEnd,
    WaitingClients, acquire_all, acquire_one,
};
use sluice::lock::queue::{Listener, LockWaiter, Want};
use sluice::lock::state::{
    Abandoned, Acquire, Acquired, Admission, Amount, Lock, LockKind, Mode, Released, RequestedMode,
    Upgraded, Watchdog,
};
use sluice::reply::{Answer, Reply};
use sluice::waiting::{Key, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;

const WORLDS: u64 = 100_000;
const OWNERS: u64 = 5;
/// The first keys are locks, the others semaphores.
const LOCKS: usize = 3;
const KEYS: usize = 5;
const START_MS: u64 = 1_000;
const MAX_LEASE_MS: u64 = 60;

type Verdict = Result<(), String>;

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}

/// Locks are in database 0, semaphores in database 1.
fn key(index: usize) -> Key {
    (i32::from(index >= LOCKS), vec![b'k', index as u8].into())
}

fn index_of(key: &Key) -> usize {
    usize::from(key.1[1])
}

fn kind_of(index: usize) -> LockKind {
    if index < LOCKS {
        LockKind::Lock
    } else {
        LockKind::Semaphore
    }
}

/// What a client asks for.
#[derive(Debug, Clone)]
struct Request {
    client: u64,
    owner: u8,
    keys: Vec<usize>,
    takes_many: bool,
    want: Want,
    /// The capacities of the semaphores that it names.
    limits: Vec<u64>,
    lease: u64,
    id: Option<u8>,
    watch: Option<Watchdog>,
    /// Whether its client is not blocked while it waits.
    is_notified: bool,
    /// For how long the client waits, in milliseconds; 0: without limit. `None`: it does not wait.
    block: Option<u64>,
}

impl Request {
    fn permits(&self) -> Option<u64> {
        match self.want {
            Want::Acquire(RequestedMode::Permits { count, .. }) => Some(count),
            _ => None,
        }
    }

    /// The limit that it names for one of its keys.
    fn limit_of(&self, index: usize) -> u64 {
        let place = self.keys.iter().position(|key| *key == index);
        place.map_or(0, |place| self.limits[place])
    }

    /// What it asks for at its key in this place.
    fn mode(&self, place: usize) -> RequestedMode {
        match self.want {
            Want::Acquire(RequestedMode::Permits { count, .. }) => RequestedMode::Permits {
                count,
                limit: self.limits[place],
            },
            Want::Acquire(mode) => mode,
            Want::Upgrade => RequestedMode::Exclusive,
        }
    }

    /// When the lease ends that it sets at `now`.
    fn until(&self, now: u64) -> u64 {
        let longest = self.watch.map_or(u64::MAX, |watch| watch.max_hold);
        now + self.lease.min(longest)
    }

    fn listener(&self) -> Option<Listener> {
        self.is_notified.then(|| Listener {
            channel: (*b"channel").into(),
            client: self.client,
        })
    }

    fn waiter(&self, now: u64) -> LockWaiter {
        LockWaiter {
            keys: self.keys.iter().map(|index| key(*index)).collect(),
            limits: match self.permits() {
                Some(_) if self.takes_many => self.limits.clone().into(),
                _ => Box::default(),
            },
            takes_many: self.takes_many,
            owner: [self.owner].into(),
            want: self.want,
            lease: self.lease,
            id: self.id.map(|id| [id].into()),
            watch: self.watch,
            listener: self.listener(),
            event: c"",
            since: now,
            since_us: now * 1000,
            timeout: self.block.unwrap_or(0),
        }
    }
}

// The model

/// A hold, as the model has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ModelHold {
    owner: u8,
    count: u64,
    fence: u64,
    until: u64,
    id: Option<(u8, u64)>,
    /// The connection that it is watched for, and whether it lingers.
    watched_for: Option<(u64, bool)>,
}

#[derive(Debug, Default)]
struct ModelLock {
    holds: Vec<ModelHold>,
    is_shared: bool,
    /// The capacities that clients named for a semaphore which wait, or were granted permits while others waited. The last one is in
    /// force.
    namings: Vec<Naming>,
    /// The limit of a semaphore for which no client waits.
    limit: u64,
}

/// A client has named a limit.
#[derive(Debug, Clone)]
struct Naming {
    ticket: Ticket,
    limit: u64,
    /// Whether it was granted permits.
    is_granted: bool,
}

impl ModelLock {
    fn hold_of(&mut self, owner: u8) -> Option<&mut ModelHold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    /// The limit that the waiting clients have named.
    fn named_limit(&self) -> Option<u64> {
        self.namings.last().map(|naming| naming.limit)
    }

    fn forget_naming(&mut self, ticket: Ticket) {
        self.namings.retain(|naming| naming.ticket != ticket);
        self.forget_granted();
    }

    /// What clients have named that were granted permits counts as long as others wait.
    fn forget_granted(&mut self) {
        if self.namings.iter().all(|naming| naming.is_granted) {
            self.namings.clear();
        }
    }

    /// A client was granted permits that named this limit, perhaps while it waited.
    fn keep_limit(&mut self, ticket: Option<Ticket>, limit: u64) {
        let is_it = |naming: &&mut Naming| Some(naming.ticket) == ticket;
        if let Some(naming) = self.namings.iter_mut().find(is_it) {
            naming.is_granted = true;
        }
        let mut namings = self.namings.iter().rev();
        let kept = namings.find(|naming| naming.is_granted);
        self.limit = kept.map_or(limit, |kept| kept.limit);
        self.forget_granted();
    }
}

#[derive(Debug)]
struct ModelWaiter {
    ticket: Ticket,
    request: Request,
    deadline: Option<u64>,
    /// It waits until it is first, even if its owner is served before.
    is_served_when_first: bool,
}

/// A client that was granted locks and has left before it received its answer.
#[derive(Debug)]
struct LostGrant {
    key: usize,
    owner: u8,
    count: u64,
    fence: u64,
}

/// What would become of a request at one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chance {
    Granted,
    Entered,
    Busy,
    WaitsForItself,
}

/// Lists, searched from the front, with every rule spelled out.
#[derive(Default)]
struct Model {
    locks: [ModelLock; KEYS],
    /// In the order in which they are served: upgrades first, then by arrival.
    waiting: Vec<ModelWaiter>,
    /// Clients that were granted locks and have not received their answer.
    unanswered: BTreeMap<Ticket, (Request, Vec<u64>)>,
    lost: Vec<LostGrant>,
    /// The connections that have closed.
    closed: BTreeSet<u64>,
    last_fence: u64,
    /// The fencing tokens of the last acquisition of several keys.
    last_fences: Vec<u64>,
    handoffs: u64,
}

impl Model {
    fn expire(&mut self, now: u64) {
        for lock in &mut self.locks {
            lock.holds.retain(|hold| hold.until >= now);
        }
    }

    /// What would become of a request at one of its keys, behind so many waiting clients. `sees_closed`: those of closed
    /// connections have not left yet.
    fn chance(
        &mut self,
        request: &Request,
        index: usize,
        ahead: usize,
        sees_closed: bool,
    ) -> Chance {
        let is_first = !self.waiting[..ahead].iter().any(|other| {
            other.request.keys.contains(&index) && (sees_closed || !self.is_closed(&other.request))
        });
        let lock = &mut self.locks[index];
        let others = lock.holds.iter().any(|hold| hold.owner != request.owner);
        let used: u64 = lock.holds.iter().map(|hold| hold.count).sum();
        let (is_shared, named) = (lock.is_shared, lock.named_limit());
        let own = lock.hold_of(request.owner);
        let is_repeated = own
            .as_ref()
            .is_some_and(|hold| request.id.is_some() && hold.id.map(|(id, _)| id) == request.id);
        let is_held = own.is_some();
        match request.want {
            Want::Upgrade if !is_held => Chance::WaitsForItself,
            Want::Upgrade if others || !is_first => Chance::Busy,
            Want::Upgrade => Chance::Granted,
            _ if is_repeated => Chance::Entered,
            Want::Acquire(RequestedMode::Permits { count, .. }) => {
                let limit = request.limit_of(index);
                let limit = named.filter(|named| *named >= count).unwrap_or(limit);
                if is_first && used + count <= limit {
                    Chance::Granted
                } else {
                    Chance::Busy
                }
            }
            Want::Acquire(RequestedMode::Exclusive) if is_held && is_shared => {
                Chance::WaitsForItself
            }
            Want::Acquire(_) if is_held => Chance::Entered,
            Want::Acquire(RequestedMode::Shared) if is_first && (is_shared || !others) => {
                Chance::Granted
            }
            Want::Acquire(_) if is_first && !others => Chance::Granted,
            Want::Acquire(_) => Chance::Busy,
        }
    }

    fn chances(&mut self, request: &Request, ahead: usize, sees_closed: bool) -> Vec<Chance> {
        let keys = request.keys.iter();
        keys.map(|index| self.chance(request, *index, ahead, sees_closed))
            .collect()
    }

    /// Whether the request leaves, because nobody is there to be told of its end.
    fn is_closed(&self, request: &Request) -> bool {
        request.is_notified && self.closed.contains(&request.client)
    }

    /// A client was granted all that it asked for, with these fences; so many clients waited longer. `ticket`: its own, if it waited.
    fn grant(
        &mut self,
        ticket: Option<Ticket>,
        request: &Request,
        fences: &[u64],
        ahead: usize,
        now: u64,
    ) -> Verdict {
        self.expire(now);
        ensure!(
            fences.len() == request.keys.len(),
            "{fences:?} for {request:?}"
        );
        let chances = self.chances(request, ahead, false);
        let may_be = |chance: &Chance| matches!(chance, Chance::Granted | Chance::Entered);
        ensure!(
            chances.iter().all(may_be),
            "{request:?} was granted, but {chances:?}"
        );
        for (index, fence) in request.keys.iter().zip(fences) {
            self.grant_key(ticket, request, *index, *fence, now)?;
        }
        Ok(())
    }

    fn grant_key(
        &mut self,
        ticket: Option<Ticket>,
        request: &Request,
        index: usize,
        fence: u64,
        now: u64,
    ) -> Verdict {
        let last_fence = self.last_fence;
        let lock = &mut self.locks[index];
        let was_shared = lock.is_shared;
        let watched_for = request.watch.map(|watch| (watch.client, watch.lingers));
        let until = request.until(now);
        let count = request.permits().unwrap_or(1);
        if request.want == Want::Upgrade {
            lock.is_shared = false;
        }
        let Some(hold) = lock.hold_of(request.owner) else {
            ensure!(fence > last_fence, "fence {fence} after {last_fence}");
            self.last_fence = fence;
            if lock.holds.is_empty() {
                lock.is_shared = request.want == Want::Acquire(RequestedMode::Shared);
            }
            lock.holds.push(ModelHold {
                owner: request.owner,
                count,
                fence,
                until,
                id: request.id.map(|id| (id, fence)),
                watched_for,
            });
            if request.permits().is_some() {
                lock.keep_limit(ticket, request.limit_of(index));
            }
            return Ok(());
        };
        if let (Some((id, first)), Some(repeated)) = (hold.id, request.id)
            && id == repeated
        {
            ensure!(fence == first, "{fence} in place of {first}");
            hold.watched_for = watched_for.or(hold.watched_for);
            ticket
                .into_iter()
                .for_each(|ticket| lock.forget_naming(ticket));
            return Ok(());
        }
        hold.until = hold.until.max(until);
        if request.want == Want::Upgrade {
            if was_shared {
                ensure!(fence > last_fence, "fence {fence} after {last_fence}");
                hold.fence = fence;
                self.last_fence = fence;
            } else {
                ensure!(fence == hold.fence, "{fence} is not that of {hold:?}");
            }
            return Ok(());
        }
        ensure!(fence == hold.fence, "{fence} is not that of {hold:?}");
        hold.count += count;
        hold.id = request.id.map(|id| (id, fence));
        hold.watched_for = watched_for.or(hold.watched_for);
        if request.permits().is_some() {
            lock.keep_limit(ticket, request.limit_of(index));
        }
        Ok(())
    }

    /// A client begins to wait.
    fn join(&mut self, ticket: Ticket, request: &Request, now: u64) {
        let is_upgrade = |waiter: &ModelWaiter| waiter.request.want == Want::Upgrade;
        let place = match request.want {
            Want::Upgrade => self.waiting.iter().filter(|w| is_upgrade(w)).count(),
            Want::Acquire(_) => self.waiting.len(),
        };
        self.name_limits(ticket, request);
        let block = request.block.unwrap_or(0);
        let waiter = ModelWaiter {
            ticket,
            request: request.clone(),
            deadline: (block > 0).then_some(now + block),
            is_served_when_first: request.permits().is_some(),
        };
        self.waiting.insert(place, waiter);
    }

    fn name_limits(&mut self, ticket: Ticket, request: &Request) {
        if request.permits().is_some() {
            for (index, limit) in request.keys.iter().zip(&request.limits) {
                let namings = &mut self.locks[*index].namings;
                namings.retain(|naming| naming.ticket != ticket);
                namings.push(Naming {
                    ticket,
                    limit: *limit,
                    is_granted: false,
                });
            }
        }
    }

    /// The client that waits with the same request and ID.
    fn repeated_by(&self, request: &Request) -> Option<Ticket> {
        let count = |request: &Request| request.permits();
        let is_same = |other: &Request| {
            other.id == request.id
                && other.owner == request.owner
                && other.keys == request.keys
                && other.takes_many == request.takes_many
                && count(other) == count(request)
                && (count(request).is_some() || other.want == request.want)
        };
        let mut waiting = self.waiting.iter().filter(|_| request.id.is_some());
        let first = waiting.find(|waiter| is_same(&waiter.request))?;
        Some(first.ticket)
    }

    fn replace(&mut self, ticket: Ticket, request: &Request, now: u64) {
        self.name_limits(ticket, request);
        let block = request.block.unwrap_or(0);
        for waiter in &mut self.waiting {
            if waiter.ticket == ticket {
                waiter.request = request.clone();
                waiter.deadline = (block > 0).then_some(now + block);
            }
        }
    }

    /// A client waits no more, and was granted nothing. Returns it, and how many clients waited longer.
    fn leave(&mut self, ticket: Ticket) -> Option<(ModelWaiter, usize)> {
        let place = self.waiting.iter().position(|w| w.ticket == ticket)?;
        let left = self.waiting.remove(place);
        for index in &left.request.keys {
            self.locks[*index].forget_naming(ticket);
        }
        Some((left, place))
    }

    /// The hand-over publishes how the wait of a request ended.
    fn published(&mut self, ticket: Ticket, end: WaitEnd, now: u64) -> Verdict {
        let waiting = self.waiting.iter().find(|waiter| waiter.ticket == ticket);
        let request = waiting.map(|waiter| waiter.request.clone());
        let request = request.ok_or(format!("{ticket} does not wait, and is told {end:?}"))?;
        ensure!(request.is_notified, "{request:?} is told {end:?}");
        let answer = match end {
            WaitEnd::TimedOut => Ok(Reply::Nil),
            WaitEnd::Granted(fence) if !request.takes_many => Ok(Reply::int(fence)),
            WaitEnd::Granted(fence) => {
                // The world tells the fencing tokens of all keys, of which the message has the first.
                let fences = std::mem::take(&mut self.last_fences);
                ensure!(
                    fences.first() == Some(&fence),
                    "{fence} is not of {fences:?}"
                );
                Ok(Reply::Array(fences.into_iter().map(Reply::int).collect()))
            }
            WaitEnd::Deadlock | WaitEnd::Moved => {
                self.leave(ticket);
                return Ok(());
            }
        };
        self.ended(ticket, &answer, now)?;
        self.unanswered.remove(&ticket); // nobody waits for an answer
        Ok(())
    }

    /// The hand-over answers a blocked client.
    fn answered(&mut self, ticket: Ticket, answer: &Answer, now: u64) -> Verdict {
        let waiting = self.waiting.iter().find(|waiter| waiter.ticket == ticket);
        let is_notified = waiting.is_some_and(|waiter| waiter.request.is_notified);
        ensure!(!is_notified, "{ticket} is not blocked, and got {answer:?}");
        self.ended(ticket, answer, now)
    }

    fn ended(&mut self, ticket: Ticket, answer: &Answer, now: u64) -> Verdict {
        self.expire(now);
        let namings = self.locks.each_ref().map(|lock| lock.namings.clone());
        let left = self.leave(ticket);
        let (waiter, ahead) = left.ok_or(format!("{ticket} does not wait, and got {answer:?}"))?;
        let request = waiter.request;
        let is_closed = self.is_closed(&request);
        let is_late = waiter.deadline.is_some_and(|deadline| deadline <= now);
        let fences: Vec<u64> = match answer {
            Ok(Reply::Nil) => {
                let chances = self.chances(&request, ahead, true);
                let is_refused = chances.contains(&Chance::WaitsForItself);
                ensure!(
                    is_late || is_refused,
                    "{request:?} got nil, but {chances:?}"
                );
                return Ok(());
            }
            Ok(Reply::Int(fence)) if !request.takes_many => vec![*fence as u64],
            Ok(Reply::Array(fences)) if request.takes_many => fences
                .iter()
                .map(|fence| match fence {
                    Reply::Int(fence) => *fence as u64,
                    _ => 0,
                })
                .collect(),
            other => return Err(format!("{request:?} got {other:?}")),
        };
        ensure!(!is_late, "{request:?} was granted when its time was up");
        ensure!(!is_closed, "{request:?} was granted without a connection");
        for (lock, namings) in self.locks.iter_mut().zip(namings) {
            lock.namings = namings;
        }
        self.grant(Some(ticket), &request, &fences, ahead, now)?;
        self.handoffs += 1;
        self.unanswered.insert(ticket, (request, fences));
        Ok(())
    }

    /// A client has left that was granted locks, and does not know it.
    fn lose_answer(&mut self, ticket: Ticket) {
        let Some((request, fences)) = self.unanswered.remove(&ticket) else {
            return;
        };
        if request.id.is_some() || request.want == Want::Upgrade {
            return; // its repetition finds the hold; it had a hold before
        }
        for (index, fence) in request.keys.iter().zip(fences) {
            self.lost.push(LostGrant {
                key: *index,
                owner: request.owner,
                count: request.permits().unwrap_or(1),
                fence,
            });
        }
    }

    fn take_back(&mut self, index: usize, owner: u8, amount: Amount, now: u64) -> Verdict {
        self.expire(now);
        let is_it = |lost: &LostGrant| {
            lost.key == index && lost.owner == owner && Amount::Count(lost.count) == amount
        };
        let lost = self.lost.iter().position(is_it);
        let lost = lost.ok_or(format!("{amount:?} of {owner} at {index} was not lost"))?;
        let lost = self.lost.remove(lost);
        if let Some(hold) = self.locks[index].hold_of(owner) {
            ensure!(
                hold.fence == lost.fence || hold.count > 0,
                "another hold than {lost:?} was taken back"
            );
        }
        self.release(index, owner, amount);
        Ok(())
    }

    fn release(&mut self, index: usize, owner: u8, amount: Amount) {
        let lock = &mut self.locks[index];
        if let Some(hold) = lock.hold_of(owner) {
            match amount {
                Amount::All => hold.count = 0,
                Amount::Count(count) if count <= hold.count => hold.count -= count,
                Amount::Count(_) => {}
            }
        }
        lock.holds.retain(|hold| hold.count > 0);
    }

    /// Nothing is left to do: is any client waiting that could be served?
    fn check_idle(&mut self, now: u64, excused: impl Fn(&Request) -> bool) -> Verdict {
        self.expire(now);
        ensure!(self.lost.is_empty(), "{:?} were not taken back", self.lost);
        for place in 0..self.waiting.len() {
            let (request, deadline) = (
                self.waiting[place].request.clone(),
                self.waiting[place].deadline,
            );
            ensure!(
                deadline.is_none_or(|deadline| deadline > now),
                "{request:?} waits beyond its time"
            );
            let has_first = |index: &usize| {
                let mut waiting = self.waiting.iter();
                let first = waiting.find(|waiter| waiter.request.keys.contains(index));
                first.is_some_and(|first| first.ticket == self.waiting[place].ticket)
            };
            // Another request of the same owner and ID may have been granted permits that this one asks for.
            let is_first = match request.permits() {
                Some(_) => request.keys.iter().all(has_first),
                None => request.keys.iter().any(has_first),
            };
            let is_closed = self.is_closed(&request);
            ensure!(!is_closed, "{request:?} waits without a connection");
            // An upgrade whose hold has ended is refused when it is first.
            let waits_to_be_first =
                self.waiting[place].is_served_when_first || request.want == Want::Upgrade;
            if excused(&request) || !is_first && waits_to_be_first {
                continue;
            }
            let chances = self.chances(&request, place, true);
            let is_busy = chances.contains(&Chance::Busy);
            ensure!(is_busy, "{request:?} waits, but {chances:?}");
        }
        Ok(())
    }
}

// The world

/// The locks and the clients of a simulated server.
#[derive(Default)]
struct World {
    now: u64,
    handover: Handover,
    locks: BTreeMap<Key, Lock>,
    last_fence: u64,
    may_not_grant: bool,
    away: BTreeSet<usize>,
    /// Whether a command runs that may open only keys of its own hash slot.
    is_limited: bool,
    /// When the hand-over wants to be called (Unix ms).
    timer: Option<u64>,
    model: Model,
    verdict: Option<String>,
    /// The key and the id of the requests that are being canceled.
    cancels: Option<(usize, u8)>,
}

impl World {
    /// Calls a function with the hand-over and with the world.
    fn apart<T>(&mut self, run: impl FnOnce(&mut Handover, &mut World) -> T) -> T {
        let mut handover = std::mem::take(&mut self.handover);
        let result = run(&mut handover, self);
        self.handover = handover;
        result
    }

    /// Nobody is told when the requests of closed connections leave.
    fn note_left(&mut self) {
        let (model, queues) = (&self.model, &self.handover.queues);
        let has_left = |waiter: &&ModelWaiter| {
            model.is_closed(&waiter.request) && queues.get(waiter.ticket).is_none()
        };
        let left = model.waiting.iter().filter(has_left);
        let left: Vec<Ticket> = left.map(|waiter| waiter.ticket).collect();
        for ticket in left {
            self.model.leave(ticket);
        }
    }

    fn note(&mut self, verdict: Verdict) {
        if let Err(message) = verdict {
            self.verdict.get_or_insert(message);
        }
    }

    /// Takes locks out of the world, without the holds that have ended.
    fn open(&mut self, keys: &[Key]) -> OpenWorld<'_> {
        let now = self.now;
        let locks = keys.iter().map(|key| {
            let lock = self.locks.remove(key);
            let mut lock = lock.unwrap_or_else(|| Lock::new(Mode::Exclusive));
            lock.expire(now);
            lock
        });
        OpenWorld {
            locks: locks.collect(),
            keys: keys.to_vec(),
            fences: Vec::new(),
            world: self,
        }
    }
}

/// Locks that are open. They go back into the world when this is dropped.
struct OpenWorld<'a> {
    locks: Vec<Lock>,
    keys: Vec<Key>,
    fences: Vec<u64>,
    world: &'a mut World,
}

impl Drop for OpenWorld<'_> {
    fn drop(&mut self) {
        if !self.fences.is_empty() {
            self.world.model.last_fences = std::mem::take(&mut self.fences);
        }
        for (key, lock) in self.keys.drain(..).zip(self.locks.drain(..)) {
            if !lock.holds().is_empty() {
                self.world.locks.insert(key, lock);
            }
        }
    }
}

impl OpenLocks for OpenWorld<'_> {
    fn admits(&mut self, index: usize, request: &Acquire<'_>) -> Admission {
        self.locks[index].admits(request)
    }

    fn acquire(&mut self, index: usize, request: &Acquire<'_>) -> Result<Acquired, Error> {
        let fence = self.world.last_fence + 1;
        let acquired = self.locks[index].acquire(request, self.world.now, fence);
        if let Acquired::Granted(fence) = acquired {
            self.world.last_fence = fence;
        }
        if let Acquired::Granted(fence) | Acquired::Reentered(fence) | Acquired::Repeated(fence) =
            acquired
        {
            self.fences.push(fence);
        }
        Ok(acquired)
    }

    fn upgrade(&mut self, owner: &[u8], lease: u64) -> Result<Upgraded, Error> {
        let fence = self.world.last_fence + 1;
        let upgraded = self.locks[0].upgrade(owner, lease, self.world.now, fence);
        if let Upgraded::Upgraded(fence) = upgraded {
            self.world.last_fence = fence;
        }
        Ok(upgraded)
    }

    fn next_end(&mut self, index: usize) -> Option<u64> {
        let holds = self.locks[index].holds();
        (!holds.is_empty()).then(|| holds.soonest())
    }
}

impl WaitingClients for World {
    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let verdict = match &answer {
            Err(Error::Deadlock | Error::Demoted) => {
                self.model.leave(ticket);
                Ok(())
            }
            Ok(Reply::Nil) if let Some((index, id)) = self.cancels => {
                let left = self.model.leave(ticket);
                let request = left.map(|(waiter, _)| waiter.request);
                let is_it = request.as_ref().is_some_and(|request| {
                    request.keys.contains(&index) && request.id == Some(id) && !request.is_notified
                });
                match is_it {
                    true => Ok(()),
                    false => Err(format!("{request:?} was canceled")),
                }
            }
            answer => self.model.answered(ticket, answer, self.now),
        };
        self.note(verdict);
    }

    fn publish(&mut self, ticket: Ticket, _listener: &Listener, _id: &[u8], end: WaitEnd) {
        let verdict = self.model.published(ticket, end, self.now);
        self.note(verdict);
    }
}

impl LockWorld for World {
    fn may_grant(&mut self) -> bool {
        !self.may_not_grant
    }

    fn is_limited_to_a_slot(&mut self) -> bool {
        self.is_limited
    }

    fn is_connected(&mut self, client: u64) -> bool {
        !self.model.closed.contains(&client)
    }

    fn serves(&mut self, key: &Key) -> bool {
        !self.away.contains(&index_of(key))
    }

    fn with_handover<T>(
        &mut self,
        run: impl FnOnce(&mut Handover, &mut dyn WaitingClients) -> T,
    ) -> T {
        self.note_left();
        self.apart(|handover, world| run(handover, world))
    }

    fn with_locks<T>(
        &mut self,
        keys: &[Key],
        kind: LockKind,
        _event: &'static CStr,
        step: impl FnOnce(&mut Handover, &mut dyn OpenLocks) -> T,
    ) -> Result<T, Error> {
        assert!(keys.iter().all(|key| kind_of(index_of(key)) == kind));
        self.note_left();
        Ok(self.apart(|handover, world| step(handover, &mut world.open(keys))))
    }

    fn take_back(&mut self, key: &Key, _kind: LockKind, owner: &[u8], amount: Amount) {
        let (now, index) = (self.now, index_of(key));
        self.open(std::slice::from_ref(key)).locks[0].release(owner, amount, None);
        let verdict = self.model.take_back(index, owner[0], amount, now);
        self.note(verdict);
    }

    fn wake_at(&mut self, at: u64) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    fn demotion_error(&mut self, _key: &Key) -> Error {
        Error::Demoted
    }

    fn upkeep(&mut self, task: &mut Upkeep) -> UpkeepStep {
        let now = self.now;
        match task {
            Upkeep::Unwatch(_) => UpkeepStep::default(),
            Upkeep::Reconcile(key) => UpkeepStep {
                is_unfinished: false,
                changed: Some(key.clone()),
            },
            Upkeep::Abandon(client) => {
                let is_watched = |lock: &Lock| {
                    let mut holds = lock.holds().iter();
                    let watched = holds.find(|(_, hold)| {
                        let watch = hold.watch.as_ref();
                        watch.is_some_and(|watch| watch.client == *client)
                    });
                    watched.map(|(owner, _)| owner.to_vec())
                };
                let found = self
                    .locks
                    .iter()
                    .find_map(|(key, lock)| Some((key.clone(), is_watched(lock)?)));
                let Some((key, owner)) = found else {
                    return UpkeepStep::default();
                };
                let keys = std::slice::from_ref(&key);
                let abandoned = self.open(keys).locks[0].abandon(&owner, *client);
                self.model.expire(now);
                let hold = self.model.locks[index_of(&key)].hold_of(owner[0]);
                let lingers = match hold {
                    Some(hold) => hold.watched_for.take().is_some_and(|(_, lingers)| lingers),
                    None => false, // it has just expired
                };
                if !lingers {
                    self.model.release(index_of(&key), owner[0], Amount::All);
                }
                let verdict = match (abandoned == Abandoned::Lingers) == lingers {
                    true => Ok(()),
                    false => Err(format!("{abandoned:?}, but it lingers: {lingers}")),
                };
                self.note(verdict);
                UpkeepStep {
                    is_unfinished: true,
                    changed: Some(key),
                }
            }
        }
    }
}

/// A world with its queues.
struct Simulation {
    random: Random,
    world: World,
    clients: u64,
    trace: Option<Vec<String>>,
}

impl Simulation {
    fn new(seed: u64, is_traced: bool) -> Self {
        let world = World {
            now: START_MS,
            ..World::default()
        };
        Self {
            random: Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            world,
            clients: 0,
            trace: is_traced.then(Vec::new),
        }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:5} {}", self.world.now, what()));
        }
    }

    fn verdict(&mut self) -> Verdict {
        self.world.note_left();
        self.world.verdict.take().map_or(Ok(()), Err)
    }

    /// Takes so many steps of the work that is left. Returns whether none is left.
    fn work(&mut self, steps: u64) -> Result<bool, String> {
        for _ in 0..steps {
            let now = self.world.now;
            let progress = Handover::step(&mut self.world, now);
            self.verdict()?;
            if progress == HandoverProgress::Idle {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does all that is due and all work that is left, and looks for clients that could be served.
    fn settle(&mut self) -> Verdict {
        const MANY: u64 = 10_000;
        self.fire()?;
        ensure!(self.work(MANY)?, "the work never ends");
        self.fire()?;
        ensure!(self.work(MANY)?, "the work never ends");
        let World {
            model,
            away,
            may_not_grant,
            now,
            ..
        } = &mut self.world;
        let is_excused = |request: &Request| {
            *may_not_grant || request.keys.iter().any(|index| away.contains(index))
        };
        model.check_idle(*now, is_excused)?;
        self.compare()
    }

    /// The server's timer calls, if the hand-over asked for it.
    fn fire(&mut self) -> Verdict {
        let now = self.world.now;
        while self.world.timer.is_some_and(|at| at <= now) {
            self.world.timer = None;
            while self
                .world
                .handover
                .next_timeout()
                .is_some_and(|at| at <= now)
            {
                self.world
                    .apart(|handover, world| handover.end_first_wait(world));
            }
            while self.world.handover.next_retry().is_some_and(|at| at <= now) {
                self.world.handover.retry_first();
            }
            let next = [
                self.world.handover.next_timeout(),
                self.world.handover.next_retry(),
            ];
            for at in next.into_iter().flatten() {
                self.world.wake_at(at);
            }
            self.verdict()?;
        }
        Ok(())
    }

    /// Are the locks what the model has?
    fn compare(&mut self) -> Verdict {
        let now = self.world.now;
        for index in 0..KEYS {
            let held = &self.world.model.locks[index];
            let mut expected = held.holds.clone();
            expected.sort();
            let lock = self.world.locks.get(&key(index));
            let holds = lock.into_iter().flat_map(|lock| lock.holds().iter());
            let holds = holds.filter(|(_, hold)| hold.until >= now);
            let mut found: Vec<ModelHold> = holds
                .map(|(owner, hold)| ModelHold {
                    owner: owner[0],
                    count: hold.count,
                    fence: hold.fence,
                    until: hold.until,
                    id: hold.acquired.as_ref().map(|a| (a.id[0], a.reply)),
                    watched_for: hold
                        .watch
                        .as_ref()
                        .filter(|watch| watch.client != 0)
                        .map(|watch| (watch.client, watch.lingers)),
                })
                .collect();
            found.sort();
            ensure!(found == expected, "{found:?} in place of {expected:?}");
            if let Some(lock) = lock.filter(|_| !found.is_empty() && index < LOCKS) {
                let is_shared = lock.mode() == Mode::Shared;
                ensure!(is_shared == held.is_shared, "{:?} at {index}", lock.mode());
                let is_alone = found.len() == 1;
                ensure!(is_shared || is_alone, "{found:?} exclude each other");
            }
            if let Some(lock) = lock.filter(|_| !found.is_empty() && index >= LOCKS) {
                let mode = Mode::Permits { limit: held.limit };
                ensure!(
                    lock.mode() == mode,
                    "{:?} in place of {mode:?}",
                    lock.mode()
                );
            }
            let (db, name) = key(index);
            let in_force = self.world.handover.queues.limit(db, &name);
            let named = held.named_limit();
            ensure!(in_force == named, "{in_force:?} in place of {named:?}");
        }
        let (counters, model) = (&self.world.handover.counters, &self.world.model);
        ensure!(
            counters.handoffs == model.handoffs,
            "{counters:?} in place of {} hand-overs",
            model.handoffs
        );
        let waiting = (self.world.handover.queues.len(), model.waiting.len());
        ensure!(waiting.0 == waiting.1, "{waiting:?} clients wait");
        Ok(())
    }

    fn any_request(&mut self) -> Request {
        self.clients += 1;
        let random = &mut self.random;
        let takes_many = random.below(4) == 0;
        let keys = if takes_many && random.below(3) == 0 {
            let mut keys: Vec<usize> = (LOCKS..KEYS).collect();
            keys.swap(0, random.below(2) as usize);
            keys.truncate(1 + random.below(2) as usize);
            keys
        } else if takes_many {
            let mut keys: Vec<usize> = (0..LOCKS).collect();
            let (first, second) = (random.below(3) as usize, random.below(2) as usize);
            keys.swap(0, first);
            keys.swap(1, 1 + second);
            keys.truncate(1 + random.below(3) as usize);
            keys
        } else {
            vec![random.below(KEYS as u64) as usize]
        };
        let count = 1 + random.below(3);
        let limits: Vec<u64> = keys.iter().map(|_| count + random.below(3)).collect();
        let want = if keys[0] >= LOCKS {
            let limit = limits[0];
            Want::Acquire(RequestedMode::Permits { count, limit })
        } else if takes_many {
            Want::Acquire(RequestedMode::Exclusive)
        } else {
            match random.below(8) {
                0 => Want::Upgrade,
                1..=3 => Want::Acquire(RequestedMode::Shared),
                _ => Want::Acquire(RequestedMode::Exclusive),
            }
        };
        let is_upgrade = want == Want::Upgrade;
        let id = (!is_upgrade && random.below(4) == 0).then(|| random.below(2) as u8);
        // Some requests share a connection.
        let is_notified = id.is_some() && random.below(2) == 0;
        let closed = &self.world.model.closed;
        let shared = (random.below(3) == 0 && is_notified)
            .then(|| 1 + random.below(self.clients))
            .filter(|client| !closed.contains(client));
        let client = shared.unwrap_or(self.clients);
        let watch = (!is_upgrade && random.below(5) == 0).then(|| Watchdog {
            client,
            max_hold: match random.below(3) {
                0 => 1 + random.below(MAX_LEASE_MS),
                _ => u64::MAX,
            },
            lingers: random.below(3) == 0,
        });
        Request {
            client,
            owner: b'a' + random.below(OWNERS) as u8,
            keys,
            takes_many,
            want,
            limits,
            lease: 1 + random.below(MAX_LEASE_MS),
            id,
            watch,
            is_notified,
            block: match random.below(8) {
                0 => None,
                1..=4 => Some(0),
                _ => Some(1 + random.below(80)),
            },
        }
    }

    /// A client asks again for what it waits for, perhaps with other capacities.
    fn any_repetition(&mut self) -> Option<Request> {
        let waiting = self.world.model.waiting.iter();
        let with_id = waiting.filter(|waiter| waiter.request.id.is_some());
        let requests: Vec<Request> = with_id.map(|waiter| waiter.request.clone()).collect();
        if requests.is_empty() {
            return None;
        }
        self.clients += 1;
        let mut request = self.random.one(&requests).clone();
        if !request.is_notified || self.world.model.closed.contains(&request.client) {
            request.client = self.clients;
        }
        if let Want::Acquire(RequestedMode::Permits { count, limit }) = &mut request.want {
            for named in &mut request.limits {
                *named = *count + self.random.below(3);
            }
            *limit = request.limits[0];
        }
        Some(request)
    }

    /// A command comes. It is answered, or its client waits.
    fn request(&mut self, request: &Request) -> Verdict {
        let (now, owner, id) = (self.world.now, [request.owner], request.id.map(|id| [id]));
        let keys: Vec<Key> = request.keys.iter().map(|index| key(*index)).collect();
        let queues = &self.world.handover.queues;
        let acquire = |(place, (db, name)): (usize, &Key)| Acquire {
            owner: &owner,
            mode: request.mode(place),
            kept_limit: None,
            lease: request.lease,
            id: id.as_ref().map(|id| &id[..]),
            watch: request.watch,
            channel: request.is_notified.then_some(b"channel"),
            queued: queues.waits_for(*db, name),
        };
        let acquires: Vec<Acquire<'_>> = keys.iter().enumerate().map(acquire).collect();
        let outcome = self.world.apart(|handover, world| {
            let counters = &mut handover.counters;
            let mut open = world.open(&keys);
            match request.want {
                Want::Upgrade => match open.upgrade(&owner, request.lease) {
                    Ok(Upgraded::NotHeld) => Ok(Outcome::Never),
                    Ok(Upgraded::Busy) => Ok(Outcome::Busy(None)),
                    Ok(Upgraded::Already(fence) | Upgraded::Upgraded(fence)) => {
                        Ok(Outcome::Acquired(Reply::int(fence)))
                    }
                    Err(error) => Err(error),
                },
                _ if request.takes_many => {
                    acquire_all(&mut open, counters, &acquires, &mut Vec::new())
                }
                _ => acquire_one(&mut open, counters, &acquires[0], &mut Vec::new()),
            }
        });
        let outcome = outcome.map_err(|error| error.to_string())?;
        self.say(|| format!("{request:?}: {outcome:?}"));
        let model = &mut self.world.model;
        model.expire(now);
        // An upgrade goes ahead of all; others go behind all.
        let ahead = match request.want {
            Want::Upgrade => 0,
            Want::Acquire(_) => model.waiting.len(),
        };
        let chances = model.chances(request, ahead, true);
        let fences = match outcome {
            Outcome::Acquired(Reply::Int(fence)) => vec![fence as u64],
            Outcome::Acquired(Reply::Array(fences)) => fences
                .into_iter()
                .map(|fence| match fence {
                    Reply::Int(fence) => fence as u64,
                    _ => 0,
                })
                .collect(),
            Outcome::Acquired(other) => return Err(format!("{other:?}")),
            Outcome::Never => {
                let is_refused = chances.contains(&Chance::WaitsForItself);
                ensure!(is_refused, "{request:?} was refused, but {chances:?}");
                return Ok(());
            }
            Outcome::Busy(_) => {
                let is_busy = chances.contains(&Chance::Busy);
                ensure!(is_busy, "{request:?} has to wait, but {chances:?}");
                return self.wait(request);
            }
        };
        self.world.model.grant(None, request, &fences, ahead, now)
    }

    fn wait(&mut self, request: &Request) -> Verdict {
        if request.block.is_none() {
            return Ok(());
        }
        let now = self.world.now;
        let waiter = request.waiter(now);
        let keys = waiter.keys.clone();
        let first = self.world.handover.queues.repeated_by(&waiter);
        let expected = self.world.model.repeated_by(request);
        ensure!(first == expected, "{first:?} in place of {expected:?}");
        if let Some(first) = first {
            self.world.model.replace(first, request, now);
            self.world
                .apart(|handover, world| handover.replace(world, first, waiter));
        } else {
            let ticket = self.world.handover.queues.push(waiter);
            self.world.model.join(ticket, request, now);
            self.world
                .apart(|handover, world| handover.begin_wait(world, ticket));
        }
        self.changed(keys)
    }

    /// A command has changed the locks at these keys.
    fn changed(&mut self, keys: impl IntoIterator<Item = Key>) -> Verdict {
        let now = self.world.now;
        self.world.is_limited = self.random.below(2) == 0;
        Handover::keys_changed(&mut self.world, now, keys);
        self.world.is_limited = false;
        self.verdict()
    }

    fn any_lock(&mut self) -> (usize, u8) {
        let random = &mut self.random;
        let any = (
            random.below(KEYS as u64) as usize,
            b'a' + random.below(OWNERS) as u8,
        );
        let now = self.world.now;
        self.world.model.expire(now);
        let held: Vec<(usize, u8)> = (0..KEYS)
            .flat_map(|index| {
                let holds = self.world.model.locks[index].holds.iter();
                holds.map(move |hold| (index, hold.owner))
            })
            .collect();
        if held.is_empty() || self.random.below(10) == 0 {
            any
        } else {
            *self.random.one(&held)
        }
    }

    fn release(&mut self) -> Verdict {
        let (index, owner) = self.any_lock();
        let amount = match self.random.below(3) {
            0 => Amount::All,
            _ => Amount::Count(1 + self.random.below(2)),
        };
        self.release_of(index, owner, amount)
    }

    fn release_of(&mut self, index: usize, owner: u8, amount: Amount) -> Verdict {
        let keys = [key(index)];
        let released = self.world.open(&keys).locks[0].release(&[owner], amount, None);
        self.say(|| format!("release {amount:?} of {owner} at {index}: {released:?}"));
        if let Released::Left(_) = released {
            self.world.model.release(index, owner, amount);
        }
        self.changed(keys)
    }

    fn renew(&mut self) -> Verdict {
        let (index, owner) = self.any_lock();
        let (now, lease) = (self.world.now, 1 + self.random.below(MAX_LEASE_MS));
        let keys = [key(index)];
        let renewed = self.world.open(&keys).locks[0].renew(&[owner], lease, now);
        self.say(|| format!("renew {owner} at {index} for {lease}: {renewed:?}"));
        let hold = self.world.model.locks[index].hold_of(owner);
        ensure!(hold.is_some() == renewed.is_some(), "{hold:?}: {renewed:?}");
        if let Some(hold) = hold {
            hold.until = now + lease;
        }
        self.changed(keys)
    }

    fn downgrade(&mut self) -> Verdict {
        let (index, owner) = self.any_lock();
        if index >= LOCKS {
            return Ok(());
        }
        let keys = [key(index)];
        let downgraded = self.world.open(&keys).locks[0].downgrade(&[owner]);
        self.say(|| format!("downgrade {owner} at {index}: {downgraded:?}"));
        if downgraded.is_some() {
            self.world.model.locks[index].is_shared = true;
        }
        self.changed(keys)
    }

    /// Something else than a command of the family deletes keys, or sets their expiry.
    fn touch(&mut self) -> Verdict {
        let index = self.random.below(KEYS as u64) as usize;
        let now = self.world.now;
        match self.random.below(3) {
            0 => {
                self.say(|| format!("delete {index}"));
                self.world.locks.remove(&key(index));
                self.world.model.locks[index].holds.clear();
                self.world
                    .handover
                    .add_upkeep(Upkeep::Reconcile(key(index)));
            }
            1 => {
                let limit = now + self.random.below(MAX_LEASE_MS);
                self.say(|| format!("expire {index} at {limit}"));
                self.world.open(&[key(index)]).locks[0].clamp(limit);
                for hold in &mut self.world.model.locks[index].holds {
                    hold.until = hold.until.min(limit);
                }
                self.world
                    .handover
                    .add_upkeep(Upkeep::Reconcile(key(index)));
            }
            _ => {
                let db = key(index).0;
                self.say(|| format!("flush database {db}"));
                self.world.locks.retain(|(other, _), _| *other != db);
                for other in (0..KEYS).filter(|other| key(*other).0 == db) {
                    self.world.model.locks[other].holds.clear();
                }
                self.world.handover.serve_all(Some(db));
            }
        }
        Ok(())
    }

    /// A client leaves: its connection closes, or somebody ends its wait.
    fn leave(&mut self) -> Verdict {
        let model = &self.world.model;
        let waiting = model.waiting.iter().map(|w| (w.ticket, w.request.client));
        let unanswered = model.unanswered.iter();
        let unanswered = unanswered.map(|(ticket, (request, _))| (*ticket, request.client));
        let clients: Vec<(Ticket, u64)> = waiting.chain(unanswered).collect();
        if clients.is_empty() {
            return Ok(());
        }
        let (ticket, client) = *self.random.one(&clients);
        let is_unanswered = model.unanswered.contains_key(&ticket);
        let is_it = |waiter: &&ModelWaiter| waiter.ticket == ticket;
        let waiter = model.waiting.iter().find(is_it);
        let is_notified = waiter.is_some_and(|waiter| waiter.request.is_notified);
        match self.random.below(4) {
            0 if is_unanswered => {} // it has its answer in a moment
            0 if !is_notified => {
                self.say(|| format!("unblock {client} ({ticket})"));
                ensure!(
                    self.world
                        .apart(|handover, world| handover.leave(world, ticket)),
                    "{ticket} did not wait"
                );
                self.world.model.leave(ticket);
            }
            _ if is_notified => {
                self.say(|| format!("disconnect {client} ({ticket})"));
                self.close(client);
            }
            1 if !is_unanswered => {
                self.say(|| format!("refuse {client} ({ticket})"));
                self.world.apart(|handover, world| {
                    handover.refuse(world, ticket, Error::Deadlock);
                });
            }
            _ => {
                self.say(|| format!("disconnect {client} ({ticket})"));
                if is_unanswered {
                    ensure!(
                        self.world.handover.leave_undelivered(ticket),
                        "{ticket} had none"
                    );
                    self.world.model.lose_answer(ticket);
                } else {
                    ensure!(
                        self.world
                            .apart(|handover, world| handover.leave(world, ticket)),
                        "{ticket} did not wait"
                    );
                    self.world.model.leave(ticket);
                }
                self.close(client);
            }
        }
        self.verdict()
    }

    /// A connection closes, that of a blocked client having left.
    fn close(&mut self, client: u64) {
        self.world.model.closed.insert(client);
        // Nobody is told of the end of its requests. They leave before anything is granted to them.
        self.world.handover.disconnect(client);
        self.world.handover.add_upkeep(Upkeep::Abandon(client));
    }

    /// A client cancels all requests of an id that wait for a key.
    fn cancel(&mut self) -> Verdict {
        let index = self.random.below(KEYS as u64) as usize;
        let id = self.random.below(2) as u8;
        self.say(|| format!("cancel {id} at {index}"));
        let (kind, name) = (kind_of(index), key(index));
        let mut changed = Vec::new();
        self.world.cancels = Some((index, id));
        while let Some(waiter) = self
            .world
            .apart(|handover, world| handover.cancel(world, &name, kind, &[id]))
        {
            changed.extend(waiter.keys.iter().cloned());
        }
        self.world.cancels = None;
        let model = &mut self.world.model;
        let is_cancelled = |request: &Request| {
            request.id == Some(id) && request.keys.contains(&index) && request.is_notified
        };
        let cancelled = model.waiting.iter().filter(|w| is_cancelled(&w.request));
        let tickets: Vec<Ticket> = cancelled.map(|waiter| waiter.ticket).collect();
        for ticket in tickets {
            model.leave(ticket); // nobody is told
        }
        self.changed(changed)
    }

    /// The connection of a hold closes.
    fn disconnect(&mut self) {
        let holds = self.world.model.locks.iter().flat_map(|lock| &lock.holds);
        let watched = holds.filter_map(|hold| Some(hold.watched_for?.0));
        let watched: Vec<u64> = watched.collect();
        if !watched.is_empty() {
            let client = *self.random.one(&watched);
            let waits = |request: &Request| request.client == client && !request.is_notified;
            let model = &self.world.model;
            let is_elsewhere = model.waiting.iter().any(|w| waits(&w.request))
                || model.unanswered.values().any(|(request, _)| waits(request));
            if !is_elsewhere {
                self.say(|| format!("disconnect {client}, which holds"));
                self.close(client);
            }
        }
    }

    fn deliver(&mut self) {
        let tickets: Vec<Ticket> = self.world.model.unanswered.keys().copied().collect();
        for ticket in tickets {
            if self.random.below(3) > 0 {
                self.say(|| format!("deliver to {ticket}"));
                self.world.handover.delivered(ticket);
                self.world.model.unanswered.remove(&ticket);
            }
        }
    }

    fn change_surroundings(&mut self) -> Verdict {
        if self.random.below(2) == 0 {
            let may_grant = self.world.may_not_grant;
            self.say(|| format!("locks may be granted: {may_grant}"));
            self.world.may_not_grant = !may_grant;
            if may_grant {
                self.world.handover.grants_again();
            }
            return Ok(());
        }
        let index = self.random.below(KEYS as u64) as usize;
        self.say(|| format!("the hash slot of {index} moves"));
        // All keys of one request are in one hash slot. A slot moves as a whole, or one key at a time.
        let slot: Vec<usize> = (0..KEYS)
            .filter(|other| (*other < LOCKS) == (index < LOCKS))
            .collect();
        let moved = match self.random.below(2) {
            0 => vec![index],
            _ => slot.clone(),
        };
        if self.world.away.contains(&index) {
            self.world.away.retain(|other| !moved.contains(other));
            for other in slot {
                self.serve_if_back(other)?;
            }
        } else {
            self.world.away.extend(moved);
        }
        Ok(())
    }

    /// Does what the server does for a key of a slot that may be back. It looks at all keys of the slot with waiting clients.
    fn serve_if_back(&mut self, index: usize) -> Verdict {
        let key = key(index);
        let is_waited_for = self.world.handover.queues.waits_for(key.0, &key.1);
        if !is_waited_for || self.world.away.contains(&index) {
            return Ok(());
        }
        self.world.handover.retry_postponed(&key);
        if !self.world.handover.queues.has_retry(key.0, &key.1) {
            self.changed([key])?;
        }
        Ok(())
    }

    /// The server becomes a replica, and a master again.
    fn demote(&mut self) -> Verdict {
        self.say(|| "demote".to_owned());
        let watched = sluice::lock::watch::Watches::default().sweep_db(None);
        self.world.handover.demote(watched);
        self.world.model.lost.clear(); // their clients keep what they were granted
        let now = self.world.now;
        while Handover::step_as_replica(&mut self.world, now) {}
        self.verdict()?;
        let left = self.world.model.waiting.len();
        ensure!(left == 0, "{left} clients wait for a replica");
        Ok(())
    }

    /// Time passes, and all is done in time.
    fn sleep(&mut self, ms: u64) -> Verdict {
        self.settle()?;
        let target = self.world.now + ms;
        while let Some(at) = self.world.timer.filter(|at| *at <= target) {
            self.world.now = self.world.now.max(at);
            self.settle()?;
        }
        self.world.now = target;
        self.settle()
    }

    fn event(&mut self) -> Verdict {
        match self.random.below(44) {
            0..=15 => {
                let repetition = match self.random.below(8) {
                    0 => self.any_repetition(),
                    _ => None,
                };
                let request = repetition.unwrap_or_else(|| self.any_request());
                self.request(&request)?;
            }
            16..=23 => self.release()?,
            24..=25 => self.renew()?,
            26 => self.downgrade()?,
            39 => self.cancel()?,
            27..=28 => self.touch()?,
            29..=31 => self.leave()?,
            32 => self.disconnect(),
            33..=35 => self.deliver(),
            36 => self.change_surroundings()?,
            37 if self.random.below(4) == 0 => self.demote()?,
            37..=38 => {
                // The server is busy with something else.
                let ms = self.random.below(20);
                self.say(|| format!("{ms} ms are lost"));
                self.world.now += ms;
            }
            _ => {
                let ms = self.random.below(30);
                self.say(|| format!("sleep {ms} ms"));
                self.sleep(ms)?;
            }
        }
        self.verdict()?;
        match self.random.below(3) {
            0 => self.settle(),
            1 => Ok(()),
            _ => {
                let steps = self.random.below(4);
                self.work(steps).map(|_| ())
            }
        }
    }

    /// No request comes any more: everybody is served in the end.
    fn end(&mut self) -> Verdict {
        self.say(|| "no request comes any more".to_owned());
        if std::mem::take(&mut self.world.may_not_grant) {
            self.world.handover.grants_again();
        }
        if !std::mem::take(&mut self.world.away).is_empty() {
            for index in 0..KEYS {
                self.serve_if_back(index)?;
            }
        }
        self.settle()?;
        for _ in 0..1_000 {
            let Some(at) = self.world.timer else {
                break;
            };
            self.world.now = self.world.now.max(at);
            self.settle()?;
        }
        let waiting = &self.world.model.waiting;
        ensure!(waiting.is_empty(), "{waiting:?} are never served");
        ensure!(!self.world.handover.has_work(), "work is left");
        Ok(())
    }

    fn run(&mut self) -> Verdict {
        for _ in 0..4 + self.random.below(50) {
            self.event()?;
        }
        self.end()
    }
}

fn check_world(seed: u64) {
    if Simulation::new(seed, false).run().is_ok() {
        return;
    }
    let mut simulation = Simulation::new(seed, true);
    let verdict = simulation.run();
    let trace = simulation.trace.unwrap_or_default().join("\n");
    panic!("world {seed}: {verdict:?}\n{trace}");
}

#[test]
fn whoever_can_be_served_is_served_in_order_and_nobody_else() {
    let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
    if let Some(seed) = variable("SLUICE_WORLD") {
        return check_world(seed);
    }
    let usual = if cfg!(miri) { 100 } else { WORLDS };
    for seed in 0..variable("SLUICE_WORLDS").unwrap_or(usual) {
        check_world(seed);
    }
}

fn exclusive(client: u64, owner: u8, keys: &[usize]) -> Request {
    Request {
        client,
        owner,
        keys: keys.to_vec(),
        takes_many: keys.len() > 1,
        want: Want::Acquire(RequestedMode::Exclusive),
        limits: vec![0; keys.len()],
        lease: MAX_LEASE_MS,
        id: None,
        watch: None,
        is_notified: false,
        block: Some(0),
    }
}

impl Simulation {
    fn request_all(&mut self, requests: &[Request]) -> Verdict {
        for request in requests {
            self.request(request)?;
        }
        self.settle()
    }

    fn waits(&self, client: u64) -> bool {
        let mut waiting = self.world.model.waiting.iter();
        waiting.any(|waiter| waiter.request.client == client)
    }
}

/// An owner is granted two locks, and the key of the first one leaves. The owner's client at the second key re-enters the lock.
#[test]
fn clients_reenter_a_lock_although_another_key_of_their_owner_is_away() -> Verdict {
    let mut simulation = Simulation::new(0, false);
    simulation.request_all(&[
        exclusive(1, b'h', &[0]),
        exclusive(2, b'h', &[1]),
        exclusive(3, b'a', &[0, 1]),
        exclusive(4, b'a', &[0]),
        exclusive(5, b'b', &[1]),
        exclusive(6, b'a', &[1]),
    ])?;
    for index in [0, 1] {
        simulation.release_of(index, b'h', Amount::All)?;
    }
    while simulation.waits(3) {
        ensure!(!simulation.work(1)?, "client 3 is not served");
    }
    simulation.world.away.insert(0);
    simulation.settle()?;
    ensure!(simulation.waits(4), "client 4 does not wait");
    ensure!(!simulation.waits(6), "client 6 waits");
    simulation.world.away.clear();
    simulation.serve_if_back(0)?;
    simulation.settle()?;
    ensure!(!simulation.waits(4), "client 4 waits");
    Ok(())
}

/// An owner holds key 1, which is away, and is granted key 0. Its client for both keys re-enters when key 1 is back.
#[test]
fn a_client_for_several_keys_reenters_when_the_key_that_is_away_is_back() -> Verdict {
    let mut simulation = Simulation::new(0, false);
    simulation.request_all(&[
        exclusive(1, b'h', &[0]),
        exclusive(2, b'a', &[1]),
        exclusive(3, b'a', &[0]),
        exclusive(4, b'b', &[1]),
        exclusive(5, b'a', &[0, 1]),
    ])?;
    simulation.world.away.insert(1);
    simulation.release_of(0, b'h', Amount::All)?;
    simulation.settle()?;
    ensure!(!simulation.waits(3), "client 3 waits");
    ensure!(simulation.waits(5), "client 5 does not wait");
    simulation.world.away.clear();
    simulation.serve_if_back(1)?;
    simulation.settle()?;
    ensure!(!simulation.waits(5), "client 5 waits");
    ensure!(simulation.waits(4), "client 4 does not wait");
    Ok(())
}
