//! Who waits for which lock, in order. Like the locks themselves it knows no server: a waiter is
//! a number here, its blocked client is kept elsewhere under the same number.
//!
//! A waiter for several keys stands in the queue of each with the same ticket, so no one overtakes
//! it on any of them.

use super::state::{Claim, Lock, Mode};
use crate::waiting::{Key, Lines, SMALL, Ticket};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;

/// Tickets of ordinary waiters start here; below are those of upgrades, which go first.
const FIRST_ORDINARY: Ticket = 1 << 32;

/// What a waiter waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// An acquisition.
    Claim(Claim),
    /// To turn its shared hold into the exclusive one.
    Upgrade,
}

/// A client that waits.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The keys, all in one database; several only for exclusive claims.
    pub keys: Vec<Key>,
    /// Does it wait for all of several keys, and get an array of fences?
    pub takes_many: bool,
    /// On whose behalf it waits.
    pub owner: Box<[u8]>,
    /// What for.
    pub want: Want,
    /// The lease in milliseconds that starts when it is served.
    pub lease: u64,
    /// The request's id.
    pub id: Option<Box<[u8]>>,
    /// The client id if the hold is to be renewed for the connection.
    pub watch: Option<u64>,
    /// The keyspace event of its command.
    pub event: &'static CStr,
    /// Since when it waits (Unix ms).
    pub since: u64,
    /// For how many milliseconds it waits; 0: without limit.
    pub timeout: u64,
    /// When to look again, because something that it waits for ends then (Unix ms).
    pub retry_at: Option<u64>,
}

impl Waiter {
    /// Until when it waits (Unix ms); `None`: without limit.
    pub fn deadline(&self) -> Option<u64> {
        (self.timeout > 0).then(|| self.since + self.timeout)
    }

    /// Does it want to share a lock?
    pub fn is_shared(&self) -> bool {
        self.want == Want::Claim(Claim::Shared)
    }

    /// Would this waiter and a holder of `lock`, another owner, exclude each other?
    pub fn excludes_holders_of(&self, lock: &Lock) -> bool {
        !self.is_shared() || lock.mode() != Mode::Shared
    }

    /// Does what this owner holds keep the waiter waiting? A lock that the waiter's own owner holds
    /// is entered again, but its permits of a semaphore are as much taken as all others.
    pub fn is_blocked_by(&self, holder: &[u8]) -> bool {
        let permits = matches!(self.want, Want::Claim(Claim::Permits { .. }));
        permits || *self.owner != *holder
    }

    /// Would this waiter and one ahead of it, another owner's, exclude each other?
    pub fn excludes(&self, ahead: &Waiter) -> bool {
        !self.is_shared() || !ahead.is_shared()
    }
}

/// The queue of one key.
#[derive(Debug, Default)]
struct Line {
    tickets: BTreeSet<Ticket>,
    /// Those of them that want no shared lock.
    unshared: BTreeSet<Ticket>,
    /// The capacity that the last acquisition of a semaphore named.
    limit: Option<u64>,
}

/// All queues of a server.
#[derive(Debug)]
pub struct Queues {
    waiters: HashMap<Ticket, Waiter>,
    lines: Lines<Line>,
    owners: HashMap<Box<[u8]>, Vec<Ticket>>,
    /// The tickets of waiters that may be waited for on one key while they wait on another: of
    /// owners that wait more than once, and of waiters for several keys.
    entangled: BTreeSet<Ticket>,
    next_ordinary: Ticket,
    next_upgrade: Ticket,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            waiters: HashMap::new(),
            lines: Lines::default(),
            owners: HashMap::new(),
            entangled: BTreeSet::new(),
            next_ordinary: FIRST_ORDINARY,
            next_upgrade: 0,
        }
    }
}

impl Queues {
    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Puts a waiter at the end of its keys' queues, an upgrade in front.
    pub fn push(&mut self, waiter: Waiter) -> Ticket {
        let next = match waiter.want {
            Want::Upgrade => &mut self.next_upgrade,
            Want::Claim(_) => &mut self.next_ordinary,
        };
        let ticket = *next;
        *next += 1;
        for key in &waiter.keys {
            let line = self.lines.line(key);
            line.tickets.insert(ticket);
            if !waiter.is_shared() {
                line.unshared.insert(ticket);
            }
            if let Want::Claim(Claim::Permits { limit, .. }) = waiter.want {
                line.limit = Some(limit);
            }
        }
        let tickets = self.owners.entry(waiter.owner.clone()).or_default();
        tickets.push(ticket);
        if let [first, .., last] = tickets[..] {
            self.entangled.extend([first, last]); // those between are in already
        }
        if waiter.keys.len() > 1 {
            self.entangled.insert(ticket);
        }
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Takes a waiter out of all its queues.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        for (db, key) in &waiter.keys {
            self.leave(*db, key, ticket);
        }
        self.entangled.remove(&ticket);
        if let Some(tickets) = self.owners.get_mut(&waiter.owner) {
            tickets.retain(|other| *other != ticket);
            match **tickets {
                [] => drop(self.owners.remove(&waiter.owner)),
                [last] if self.waiters[&last].keys.len() == 1 => {
                    self.entangled.remove(&last);
                }
                _ => {}
            }
        }
        if self.waiters.is_empty() {
            self.waiters.shrink_to(SMALL); // the memory of a crowd that has gone
            self.owners.shrink_to(SMALL);
        }
        Some(waiter)
    }

    fn leave(&mut self, db: i32, key: &[u8], ticket: Ticket) {
        let Some(line) = self.lines.get_mut(db, key) else {
            return;
        };
        line.tickets.remove(&ticket);
        line.unshared.remove(&ticket);
        if line.tickets.is_empty() {
            self.lines.remove(db, key);
        }
    }

    /// A waiter.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    /// Notes when to look again after a waiter; returns what was noted before.
    pub fn set_retry(&mut self, ticket: Ticket, at: Option<u64>) -> Option<u64> {
        let waiter = self.waiters.get_mut(&ticket)?;
        std::mem::replace(&mut waiter.retry_at, at)
    }

    /// Is it noted when to look again at a key's queue?
    pub fn knows_when(&self, db: i32, key: &[u8]) -> bool {
        let head = self.head(db, key).and_then(|head| self.get(head));
        head.is_some_and(|head| head.retry_at.is_some())
    }

    /// The first in a key's queue.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.lines.get(db, key)?.tickets.first().copied()
    }

    /// Does anybody wait for this key?
    pub fn waits_for(&self, db: i32, key: &[u8]) -> bool {
        !self.lines.is_empty() && self.lines.get(db, key).is_some()
    }

    /// The waiters of a key, in order.
    pub fn line_of(&self, db: i32, key: &[u8]) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let line = self.lines.get(db, key).into_iter();
        line.flat_map(|line| line.tickets.iter())
            .filter_map(|ticket| Some((*ticket, self.waiters.get(ticket)?)))
    }

    /// The capacity that the last acquisition in a semaphore's queue named, but never less than
    /// what `count` permits need: a lowered capacity must not make a waiter wait for ever.
    pub fn limit(&self, db: i32, key: &[u8], count: u64, own: u64) -> u64 {
        let named = self.lines.get(db, key).and_then(|line| line.limit);
        let limit = named.unwrap_or(own);
        if limit < count { own } else { limit }
    }

    /// The waiters on behalf of an owner, in the order in which they came.
    pub fn of_owner(&self, owner: &[u8]) -> &[Ticket] {
        self.owners.get(owner).map_or(&[], Vec::as_slice)
    }

    /// The waiters ahead of `ticket` in a key's queue that are in the way of `waiter`, but only as
    /// many as stand for all: those before an exclusive one are in its way as well. Of waiters that
    /// wait for nothing else none is told of; `also` are tickets that count as entangled.
    pub(super) fn in_the_way(
        &self,
        waiter: &Waiter,
        key: &Key,
        ticket: Ticket,
        also: &[Ticket],
    ) -> Vec<&Waiter> {
        let Some(line) = self.lines.get(key.0, &key.1) else {
            return Vec::new();
        };
        // A shared waiter is kept waiting by shared ones as well, if one that is not stands between.
        let barrier = line
            .unshared
            .range(..ticket)
            .next_back()
            .copied()
            .unwrap_or(0);
        let excludes = |other: &Ticket, ahead: &Waiter| {
            ahead.owner != waiter.owner && (*other < barrier || waiter.excludes(ahead))
        };
        let mut ahead: Vec<&Waiter> = Vec::new();
        let also = also
            .iter()
            .filter(|other| **other < ticket && line.tickets.contains(other));
        let also = also.filter_map(|other| Some((other, self.waiters.get(other)?)));
        ahead.extend(
            also.filter(|(other, ahead)| excludes(other, ahead))
                .map(|(_, ahead)| ahead),
        );
        let entangled = self.entangled.range(..ticket).rev();
        let entangled = entangled.filter(|other| line.tickets.contains(other));
        for (ticket, other) in entangled.filter_map(|other| Some((other, self.waiters.get(other)?)))
        {
            if excludes(ticket, other) {
                ahead.push(other);
                if !other.is_shared() {
                    break;
                }
            }
        }
        ahead
    }

    /// Does anybody ahead of `ticket` in a key's queue want more than to share?
    pub(super) fn is_behind_unshared(&self, key: &Key, ticket: Ticket) -> bool {
        let line = self.lines.get(key.0, &key.1);
        line.is_some_and(|line| line.unshared.range(..ticket).next().is_some())
    }

    /// Every key that somebody waits for, if there are no more than `most`.
    pub(super) fn keys_if_few(&self, most: usize) -> Option<Vec<Key>> {
        (self.lines.len() <= most).then(|| self.keys(None))
    }

    /// In a cluster, the hash slots that somebody waits in.
    pub fn slots(&self) -> Vec<u16> {
        self.lines.slots()
    }

    /// In a cluster, `most` keys of a slot that somebody waits for, behind one of them.
    pub fn keys_of_slot(&self, slot: u16, behind: Option<&Key>, most: usize) -> Vec<Key> {
        self.lines.keys_of_slot(slot, behind, most)
    }

    /// The keys of a database that somebody waits for; `None`: of all of them.
    pub fn keys(&self, db: Option<i32>) -> Vec<Key> {
        self.lines.keys(db)
    }
}
