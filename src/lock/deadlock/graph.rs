//! What a search for deadlocks works on: its copy of the waiting clients, their owners and keys, and the steps that it has to take.

use crate::lock::limits::PossibleLimits;
use crate::lock::queue::Want;
use crate::lock::state::RequestedMode;
use crate::waiting::Ticket;
use std::collections::{BTreeMap, BTreeSet};

/// A key, with the clients that wait for it and that the search looks at.
#[derive(Debug)]
pub(super) struct KeyNode {
    pub(super) queue: u64,
    /// The last entangled waiter that was found.
    pub(super) found: Option<Ticket>,
    pub(super) is_semaphore: bool,
    pub(super) is_shared: bool,
    /// The holders that wait, with what they hold, and with what they were served here.
    pub(super) held: BTreeMap<usize, Held>,
    /// For each waiting holder, the permits or holds that it had at the last read.
    pub(super) known: BTreeMap<usize, u64>,
    /// The sum of the counts in `held`.
    pub(super) total: u64,
    /// The clients that are not served yet, in order.
    pub(super) waiting: BTreeMap<Ticket, QueuePosition>,
    /// The last served client. The clients before it are served, too.
    pub(super) passed: Option<Ticket>,
    /// How far the search has looked at the queue in front of the first client of `waiting`.
    pub(super) ahead: Option<Ahead>,
    /// Limits with smaller numbers count. The others are those of suspects, or came later than the search, and count only if they are
    /// in force and larger.
    pub(super) limit_bound: u64,
    /// The last client that waited when the search suspected a deadlock, and that the search has since removed.
    pub(super) last_suspected: Option<Ticket>,
    /// The clients of `waiting` by owner.
    pub(super) of_owners: BTreeSet<(usize, Ticket)>,
    pub(super) is_listed: bool,
}

impl KeyNode {
    /// Whether the waiter wants the exclusive lock, although its owner has just received a shared hold of this lock. Such a waiter
    /// receives nil, whatever other keys it waits for.
    pub(super) fn ends_at_once(&self, waiter: &WaiterNode) -> bool {
        let held = self.held.get(&waiter.owner);
        self.is_shared
            && waiter.want == Want::Acquire(RequestedMode::Exclusive)
            && held.is_some_and(|held| held.really == 0)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) really: u64,
    pub(super) served: u64,
}

/// A waiter's position in the queue of one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePosition {
    pub(super) waiter: usize,
    /// Whether it could be served, if it waited for this key alone.
    pub(super) is_ready: bool,
    /// Whether it enters the lock again, past those ahead.
    pub(super) reenters: bool,
}

/// What the waiters in front of the first one that matters leave to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    pub(super) first: Ticket,
    /// The last one in front of it that was looked at.
    pub(super) at: Option<Ticket>,
    /// The permits that may stay taken forever, so that those looked at are served nevertheless.
    pub(super) spare: u64,
    /// The limits for which `spare` was computed.
    pub(super) limits: PossibleLimits,
}

#[derive(Debug)]
pub(super) struct OwnerNode {
    pub(super) number: u64,
    /// How many of its waiters have not been served.
    pub(super) waiting: usize,
    /// The keys that it holds.
    pub(super) holds: Vec<usize>,
    /// Whether it released its holds before a deadlock was suspected.
    pub(super) is_live: bool,
}

#[derive(Debug)]
pub(super) struct WaiterNode {
    pub(super) ticket: Ticket,
    pub(super) owner: usize,
    pub(super) want: Want,
    pub(super) keys: Vec<usize>,
    /// How many of its keys could not be had yet.
    pub(super) missing: usize,
    /// Whether it waits no more.
    pub(super) is_done: bool,
    /// Whether it waited no more before a deadlock was suspected.
    pub(super) was_done: bool,
}

/// A step that is still to be taken.
#[derive(Debug, Clone, Copy)]
pub(super) enum SearchTask {
    /// Find the unverified waiters that arrived after this one.
    Unverified(u64),
    /// Find an owner's waiters from this ticket on.
    Owner(usize, Ticket),
    /// Find a waiter's keys from this index on.
    Keys(usize, usize),
    /// Find the entangled waiters of a key up to this ticket.
    Queue(usize, Ticket),
    /// Find the holders of a key among the waiting owners after this one; 0: among all holders.
    Holders(usize, u64),
    /// All have been found. See who can be served, of the keys from this one on.
    Start(usize),
    /// Let the holders of a lock after this one enter it again.
    EnterAll(usize, Option<usize>),
    /// Let an owner's waiters after this ticket enter a lock again that it holds.
    Enter(usize, usize, Option<Ticket>),
    /// Release the holds of all owners that wait for nothing, from this owner on.
    StartOwners(usize),
    /// Serve the first client of a key, if it can be served.
    ServeNext(usize),
    /// Serve a waiter.
    Serve(usize),
    /// Release the holds of an owner, from this index on.
    Release(usize, usize),
    /// See whether holders of a key have gone, after this one.
    Reread(usize, Option<usize>),
}
