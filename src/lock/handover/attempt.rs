//! Attempts to serve waiting clients: the first of a queue, those whose owners hold the lock, and all at a key where a lock has
//! arrived.

use super::{Handover, HandoverTask, LockWorld, OpenLocks, OwnerTurn, end_wait};
use crate::error::Error;
use crate::lock::counters::LockCounters;
use crate::lock::queue::{LockWaiter, Want};
use crate::lock::state::{Acquire, Acquired, Admission, LockKind, Upgraded};
use crate::reply::{Answer, Reply};
use crate::waiting::{Key, Ticket};
use std::sync::Arc;

/// The result of an acquisition of one or several keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All are held; this is the reply.
    Acquired(Reply),
    /// None is; a hold may end after this time (Unix ms) without a command.
    Busy(Option<u64>),
    /// None is, and the client would wait for its own owner.
    Never,
}

/// Acquires one key. Appends the index 0 to `repeated` if the request repeats an acquisition.
#[inline]
pub fn acquire_one<L: OpenLocks + ?Sized>(
    locks: &mut L,
    counters: &mut LockCounters,
    request: &Acquire<'_>,
    repeated: &mut Vec<usize>,
) -> Result<Outcome, Error> {
    let acquired = locks.acquire(0, request)?;
    match acquired {
        Acquired::Busy => return Ok(Outcome::Busy(locks.next_end(0))),
        Acquired::Never => return Ok(Outcome::Never),
        Acquired::Repeated(_) => repeated.push(0),
        _ => {}
    }
    Ok(Outcome::Acquired(Reply::int(counters.count(acquired))))
}

/// Acquires all of several keys, or none. A request has the index of its key. Appends to `repeated` the indices of the requests that
/// repeat an acquisition.
pub fn acquire_all<L: OpenLocks + ?Sized>(
    locks: &mut L,
    counters: &mut LockCounters,
    requests: &[Acquire<'_>],
    repeated: &mut Vec<usize>,
) -> Result<Outcome, Error> {
    let mut is_busy = false;
    let mut first_end: Option<u64> = None;
    for (index, request) in requests.iter().enumerate() {
        match locks.admits(index, request) {
            Admission::Never => return Ok(Outcome::Never),
            Admission::Busy => {
                is_busy = true;
                first_end = first_end.into_iter().chain(locks.next_end(index)).min();
            }
            _ => {}
        }
    }
    if is_busy {
        return Ok(Outcome::Busy(first_end));
    }
    let mut fences = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        let acquired = locks.acquire(index, request)?;
        if matches!(acquired, Acquired::Repeated(_)) {
            repeated.push(index);
        }
        fences.push(Reply::int(counters.count(acquired)));
    }
    Ok(Outcome::Acquired(Reply::Array(fences)))
}

/// What became of an attempt to serve a waiting client.
enum Attempt {
    /// The client waits no more. It has left its queues and is to receive this answer.
    Granted(Arc<LockWaiter>, Answer),
    /// The client is to receive this answer and to leave its queues.
    Ends(Answer),
    /// The client waits on; a hold that it waits for may have ended at this time (Unix ms).
    Waits(Option<u64>),
    /// The client waits on, because the hash slot of this key is away.
    Away(Key),
    /// The connection of the client has closed.
    Leaves,
    /// The client had left its queues before the locks were open.
    Gone,
}

/// Clients are served.
impl Handover {
    /// Serves the first client in a key's queue, if that is possible.
    pub(super) fn serve_first(world: &mut impl LockWorld, now: u64, (db, key): Key) {
        let head = world.with_handover(|handover, _| handover.queues.head(db, &key));
        let Some(ticket) = head else {
            return;
        };
        let ended = match Self::attempt(world, now, ticket, |handover| {
            handover.queues.head(db, &key) == Some(ticket)
        }) {
            Attempt::Waits(retry_at) => return Self::set_retry(world, ticket, retry_at),
            // `serves` has noted the slot: the queue is served when it is back.
            Attempt::Away(_) => return Self::set_retry(world, ticket, None),
            Attempt::Leaves => {
                world.with_handover(|handover, clients| handover.leave(clients, ticket));
                return;
            }
            Attempt::Gone => {
                world.with_handover(|handover, _| handover.serve_later((db, key)));
                return;
            }
            Attempt::Ends(answer) => {
                world.with_handover(|handover, clients| handover.dismiss(clients, ticket, answer))
            }
            Attempt::Granted(waiter, answer) => {
                world.with_handover(|_, clients| end_wait(clients, ticket, &waiter, answer));
                Some(waiter)
            }
        };
        if let Some(waiter) = ended {
            world.with_handover(|handover, _| {
                let others = waiter.keys.iter().filter(|other| *other.1 != *key);
                for other in others {
                    handover.serve_later(other.clone());
                }
                handover.agenda.push_front((db, key));
            });
        }
    }

    /// Tries another client of an owner whose hold has changed. A client whose owner holds the lock enters it again, and need not wait
    /// until it is first.
    pub(super) fn serve_owner(world: &mut impl LockWorld, now: u64, mut turn: OwnerTurn) {
        let Some(key) = turn.keys.get(turn.index).cloned() else {
            return;
        };
        let next = world.with_handover(|handover, _| {
            handover.queues.next_of_owner(&key, &turn.owner, turn.after)
        });
        let tried = next.filter(|next| !Self::must_postpone(world, &key, *next));
        match tried {
            Some(tried) => turn.after = tried,
            None => (turn.index, turn.after) = (turn.index + 1, 0),
        }
        world.with_handover(|handover, _| {
            handover.tasks.push_front(HandoverTask::ServeOwner(turn));
            if tried != next {
                handover.postpone(key.clone());
            }
        });
        if let Some(tried) = tried {
            Self::try_to_enter(world, now, &key, tried);
        }
    }

    /// Tries the next client behind `after` in the queue of a key where a lock has arrived.
    pub(super) fn try_behind(world: &mut impl LockWorld, now: u64, key: Key, after: Ticket) {
        let next = world.with_handover(|handover, _| handover.queues.next_behind(&key, after));
        let Some(next) = next else {
            return;
        };
        if Self::must_postpone(world, &key, next) {
            world.with_handover(|handover, _| handover.postpone(key));
        } else {
            world.with_handover(|handover, _| handover.arrived.insert(key.clone(), next));
            Self::try_to_enter(world, now, &key, next);
        }
    }

    /// Whether this client cannot be tried now, because the hash slot of the key is away, or because it wants a lock and none may be
    /// granted.
    fn must_postpone(world: &mut impl LockWorld, key: &Key, ticket: Ticket) -> bool {
        let wants_lock = world.with_handover(|handover, _| {
            let waiter = handover.queues.get(ticket);
            waiter.is_some_and(|waiter| waiter.wants_lock())
        });
        (wants_lock && !Self::may_grant(world)) || !world.serves(key)
    }

    /// Tries a client that need not be first in the queue of this key if its owner holds the lock.
    fn try_to_enter(world: &mut impl LockWorld, now: u64, key: &Key, ticket: Ticket) {
        let other = world.with_handover(|handover, _| handover.queues.get(ticket).cloned());
        let Some(other) = other else {
            return;
        };
        if !other.wants_lock() {
            // It cannot enter a lock again, and keeps its place in the queue.
            return Self::check_type(world, key, ticket, &other);
        }
        // If its owner shares the lock now, a request for the exclusive one has ended, whatever else it waits for.
        let at = other.keys.iter().position(|other| other == key);
        world.with_handover(|handover, _| {
            handover.queues.set_blocked_on(ticket, at.unwrap_or(0));
        });
        match Self::attempt(world, now, ticket, |handover| {
            handover.queues.head(key.0, &key.1) == Some(ticket)
        }) {
            Attempt::Ends(answer) => world.with_handover(|handover, clients| {
                handover.dismiss(clients, ticket, answer);
                handover.serve_behind(Some(&other));
            }),
            Attempt::Granted(waiter, answer) => world.with_handover(|handover, clients| {
                end_wait(clients, ticket, &waiter, answer);
                handover.serve_behind(Some(&other));
            }),
            // It is first in the queue of the key that it waits for now.
            Attempt::Waits(retry_at) if other.takes_many && retry_at.is_some() => {
                Self::set_retry(world, ticket, retry_at);
            }
            Attempt::Away(key) => world.with_handover(|handover, _| handover.postpone(key)),
            Attempt::Waits(_) | Attempt::Gone => {}
            Attempt::Leaves => {
                world.with_handover(|handover, clients| handover.leave(clients, ticket));
            }
        }
    }

    /// Refuses a client if this key has a value of another type now.
    fn check_type(world: &mut impl LockWorld, key: &Key, ticket: Ticket, waiter: &LockWaiter) {
        let keys = std::slice::from_ref(key);
        if let Err(error) = world.with_locks(keys, waiter.kind(), c"", |_, _| ()) {
            world.with_handover(|handover, clients| handover.refuse(clients, ticket, error));
        }
    }

    /// Tries to serve a client, which is first in a queue (`is_first`) or waits on behalf of an owner who was served. That owner
    /// may have released the lock meanwhile: then the client is not ahead of the others.
    fn attempt(
        world: &mut impl LockWorld,
        now: u64,
        ticket: Ticket,
        is_first: impl Fn(&Handover) -> bool,
    ) -> Attempt {
        let waiting = world.with_handover(|handover, _| {
            let waiter = handover.queues.get(ticket)?;
            let is_late = waiter.deadline().is_some_and(|deadline| deadline <= now);
            handover.counters.timeouts += u64::from(is_late); // the server was too busy to end the wait in time
            Some((waiter.clone(), is_late))
        });
        let Some((waiter, is_late)) = waiting else {
            return Attempt::Gone;
        };
        if is_late {
            return Attempt::Ends(Ok(Reply::Nil));
        }
        if let Some(listener) = &waiter.listener
            && !world.is_connected(listener.client)
        {
            return Attempt::Leaves;
        }
        if !Self::may_grant(world) {
            return Attempt::Waits(None);
        }
        // Most attempts find that one and the same of many keys is still busy.
        if waiter.takes_many
            && let Some(waits) = Self::find_busy_key(world, ticket, &waiter)
        {
            return waits;
        }
        if let Some(away) = waiter.keys.iter().find(|key| !world.serves(key)) {
            return Attempt::Away(away.clone());
        }
        match waiter.want {
            Want::Upgrade => Self::attempt_upgrade(world, ticket, &waiter),
            Want::Acquire(_) => Self::attempt_acquire(world, ticket, is_first, &waiter),
        }
    }

    /// Whether locks may be granted now. If not, a command would be refused, and another master may grant the lock meanwhile.
    fn may_grant(world: &mut impl LockWorld) -> bool {
        let may_grant = world.may_grant();
        if !may_grant {
            world.with_handover(|handover, _| handover.has_refused_grants = true);
        }
        may_grant
    }

    /// Finds a key that a client for several keys has to wait for, beginning with the one that it waited for last.
    fn find_busy_key(
        world: &mut impl LockWorld,
        ticket: Ticket,
        waiter: &LockWaiter,
    ) -> Option<Attempt> {
        let first = world.with_handover(|handover, _| {
            handover.queues.get(ticket)?;
            Some(handover.queues.blocked_on(ticket))
        });
        let Some(first) = first else {
            return Some(Attempt::Gone);
        };
        let count = waiter.keys.len();
        // All keys are in one hash slot. The caller asks for each key before it acquires them.
        if !world.serves(&waiter.keys[first]) {
            return Some(Attempt::Away(waiter.keys[first].clone()));
        }
        for index in (first..count).chain(0..first) {
            let key = &waiter.keys[index];
            let look = |handover: &mut Handover, locks: &mut dyn OpenLocks| {
                handover.queues.get(ticket)?;
                let is_first = handover.queues.head(key.0, &key.1) == Some(ticket);
                let request = handover.queues.request(ticket, waiter, index, !is_first);
                let admission = locks.admits(0, &request);
                if admission == Admission::Busy {
                    handover.queues.set_blocked_on(ticket, index);
                }
                Some((admission, locks.next_end(0).filter(|_| is_first)))
            };
            let keys = std::slice::from_ref(key);
            match world.with_locks(keys, waiter.kind(), c"", look).ok()? {
                None => return Some(Attempt::Gone),
                Some((Admission::Busy, end)) => return Some(Attempt::Waits(after(end))),
                Some((Admission::Never, _)) => return None,
                Some(_) => {}
            }
        }
        None
    }

    fn attempt_upgrade(world: &mut impl LockWorld, ticket: Ticket, waiter: &LockWaiter) -> Attempt {
        let upgrade = |handover: &mut Handover, locks: &mut dyn OpenLocks| {
            if handover.queues.get(ticket).is_none() {
                return Attempt::Gone;
            }
            match locks.upgrade(&waiter.owner, waiter.lease) {
                Err(error) => Attempt::Ends(Err(error)),
                Ok(Upgraded::NotHeld) => Attempt::Ends(Ok(Reply::Nil)),
                Ok(Upgraded::Busy) => Attempt::Waits(after(locks.next_end(0))),
                Ok(Upgraded::Already(fence) | Upgraded::Upgraded(fence)) => {
                    handover.hand_over(ticket, &[], Reply::int(fence))
                }
            }
        };
        let upgraded = world.with_locks(&waiter.keys, LockKind::Lock, waiter.event, upgrade);
        upgraded.unwrap_or_else(|error| Attempt::Ends(Err(error)))
    }

    fn attempt_acquire(
        world: &mut impl LockWorld,
        ticket: Ticket,
        is_first: impl Fn(&Handover) -> bool,
        waiter: &LockWaiter,
    ) -> Attempt {
        let acquire = |handover: &mut Handover, locks: &mut dyn OpenLocks| {
            if handover.queues.get(ticket).is_none() {
                return Attempt::Gone;
            }
            let is_first = is_first(handover);
            let (queues, counters) = (&handover.queues, &mut handover.counters);
            let mut repeated = Vec::new();
            let outcome = if waiter.takes_many {
                // The first client of one queue may be behind others in another.
                let is_behind = |(db, key): &Key| queues.head(*db, key) != Some(ticket);
                let requests = waiter.keys.iter().enumerate();
                let requests: Vec<Acquire<'_>> = requests
                    .map(|(index, key)| queues.request(ticket, waiter, index, is_behind(key)))
                    .collect();
                acquire_all(locks, counters, &requests, &mut repeated)
            } else {
                let request = queues.request(ticket, waiter, 0, !is_first);
                acquire_one(locks, counters, &request, &mut repeated)
            };
            match outcome {
                Err(error) => Attempt::Ends(Err(error)),
                Ok(Outcome::Busy(end)) => Attempt::Waits(after(end)),
                Ok(Outcome::Never) => {
                    counters.refused += 1;
                    Attempt::Ends(Ok(Reply::Nil))
                }
                Ok(Outcome::Acquired(reply)) => handover.hand_over(ticket, &repeated, reply),
            }
        };
        let attempt = world.with_locks(&waiter.keys, waiter.kind(), waiter.event, acquire);
        attempt.unwrap_or_else(|error| Attempt::Ends(Err(error)))
    }

    /// A waiting client was granted its locks: it leaves its queues before the locks are closed.
    fn hand_over(&mut self, ticket: Ticket, repeated: &[usize], reply: Reply) -> Attempt {
        self.counters.handoffs += 1;
        match self.grant(ticket, repeated) {
            Some(waiter) => Attempt::Granted(waiter, Ok(reply)),
            None => Attempt::Gone,
        }
    }
}

/// A hold lasts to the end of its last millisecond.
fn after(end: Option<u64>) -> Option<u64> {
    end.map(|end| end + 1)
}
