//! Who waits for which entry, in order. A waiter is a number here; its blocked client is kept elsewhere under the
//! same number.

use crate::waiting::{Key, Step, Ticket, WaitQueues, Walk};
use std::collections::{BTreeMap, BTreeSet};

/// A client that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// For what.
    pub key: Key,
    /// The lease that it wants, in milliseconds, if it is to rebuild.
    pub lease: u64,
    /// Until when it waits (Unix ms); `None`: without limit.
    pub deadline: Option<u64>,
}

#[derive(Debug, Default)]
struct WaitQueue {
    tickets: BTreeSet<Ticket>,
    retry_at: Option<u64>,
}

/// All lines of a server.
#[derive(Debug, Default)]
pub struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
    lines: WaitQueues<WaitQueue>,
    last: Ticket,
}

impl Queue {
    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Puts a waiter at the end of its key's line.
    pub fn push(&mut self, waiter: Waiter) -> Ticket {
        self.last += 1;
        let (_, line) = self.lines.line(&waiter.key);
        line.tickets.insert(self.last);
        self.waiters.insert(self.last, waiter);
        self.last
    }

    /// Takes a waiter out. If it was the last in its line: also when that was to be looked at next.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(Waiter, Option<u64>)> {
        let waiter = self.waiters.remove(&ticket)?;
        let (db, key) = &waiter.key;
        let mut retry_at = None;
        if let Some(number) = self.lines.number(*db, key)
            && let Some(line) = self.lines.numbered_mut(number)
        {
            line.tickets.remove(&ticket);
            if line.tickets.is_empty() {
                retry_at = line.retry_at;
                self.lines.remove(number);
            }
        }
        Some((waiter, retry_at))
    }

    /// A waiter.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    /// The first in a key's line.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.lines.get(db, key)?.tickets.first().copied()
    }

    /// How many wait for a key.
    pub fn waiting(&self, db: i32, key: &[u8]) -> usize {
        self.lines.get(db, key).map_or(0, |line| line.tickets.len())
    }

    /// The waiters of a key, in order.
    pub fn tickets(&self, db: i32, key: &[u8]) -> impl Iterator<Item = Ticket> {
        let line = self.lines.get(db, key).into_iter();
        line.flat_map(|line| line.tickets.iter().copied())
    }

    /// Is it noted when to look again at a key's line?
    pub fn knows_when(&self, db: i32, key: &[u8]) -> bool {
        let line = self.lines.get(db, key);
        line.is_some_and(|line| line.retry_at.is_some())
    }

    /// Notes when to look again at a line, if there is one. Returns what was noted before.
    pub fn set_retry(&mut self, db: i32, key: &[u8], at: Option<u64>) -> Option<u64> {
        let line = self.lines.get_mut(db, key)?;
        std::mem::replace(&mut line.retry_at, at)
    }

    /// In a cluster, the hash slots that somebody waits in.
    pub fn slots(&self) -> Vec<u16> {
        self.lines.slots()
    }

    /// In a cluster, `most` keys of a slot that somebody waits for, behind one of them.
    pub fn keys_of_slot(&self, slot: u16, behind: Option<&Key>, most: usize) -> Vec<Key> {
        self.lines.keys_of_slot(slot, behind, most)
    }

    /// A walk through the queues of a database; `None`: of all of them.
    pub fn walk(&self, db: Option<i32>) -> Walk {
        Walk::through(&self.lines, db)
    }

    /// The next key of a walk; see [`Walk::step`].
    pub fn step(&self, walk: &mut Walk) -> Option<Step> {
        walk.step(&self.lines)
    }
}
