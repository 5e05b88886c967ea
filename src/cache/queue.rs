//! Who waits for which entry, in order. A waiter is a number here; its blocked client is kept elsewhere under the
//! same number.

use std::collections::{BTreeSet, HashMap};

/// The database and the name of a key.
pub type Key = (i32, Box<[u8]>);

/// A waiter's number. Smaller ones are served first.
pub type Ticket = u64;

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
struct Line {
    tickets: BTreeSet<Ticket>,
    retry_at: Option<u64>,
}

/// All lines of a server.
#[derive(Debug, Default)]
pub struct Queue {
    waiters: HashMap<Ticket, Waiter>,
    lines: HashMap<i32, HashMap<Box<[u8]>, Line>>,
    last: Ticket,
}

/// Tables of no more than so many entries keep their memory.
const SMALL: usize = 64;

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
        let (db, key) = &waiter.key;
        let line = self
            .lines
            .entry(*db)
            .or_default()
            .entry(key.clone())
            .or_default();
        line.tickets.insert(self.last);
        self.waiters.insert(self.last, waiter);
        self.last
    }

    /// Takes a waiter out. If it was the last in its line: also when that was to be looked at next.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(Waiter, Option<u64>)> {
        let waiter = self.waiters.remove(&ticket)?;
        let (db, key) = &waiter.key;
        let mut retry_at = None;
        if let Some(lines) = self.lines.get_mut(db)
            && let Some(line) = lines.get_mut(key)
        {
            line.tickets.remove(&ticket);
            if line.tickets.is_empty() {
                retry_at = line.retry_at;
                lines.remove(key);
            }
        }
        if self.waiters.is_empty() {
            self.waiters.shrink_to(SMALL); // the memory of a crowd that has gone
            self.lines.clear();
        }
        Some((waiter, retry_at))
    }

    /// A waiter.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    /// The first in a key's line.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.line(db, key)?.tickets.first().copied()
    }

    /// How many wait for a key.
    pub fn waiting(&self, db: i32, key: &[u8]) -> usize {
        self.line(db, key).map_or(0, |line| line.tickets.len())
    }

    /// The waiters of a key, in order.
    pub fn tickets(&self, db: i32, key: &[u8]) -> Vec<Ticket> {
        let line = self.line(db, key).into_iter();
        line.flat_map(|line| line.tickets.iter().copied()).collect()
    }

    /// When the line is looked at next (Unix ms), because something that it waits for ends then.
    pub fn retry_at(&self, db: i32, key: &[u8]) -> Option<u64> {
        self.line(db, key)?.retry_at
    }

    /// Notes when to look again at a line, if there is one. Returns what was noted before.
    pub fn set_retry(&mut self, db: i32, key: &[u8], at: Option<u64>) -> Option<u64> {
        let line = self.lines.get_mut(&db)?.get_mut(key)?;
        std::mem::replace(&mut line.retry_at, at)
    }

    /// The keys of a database that somebody waits for; `None`: of all of them.
    pub fn keys(&self, db: Option<i32>) -> Vec<Key> {
        let lines = self
            .lines
            .iter()
            .filter(|(of, _)| db.is_none_or(|db| **of == db));
        lines
            .flat_map(|(db, lines)| lines.keys().map(|key| (*db, key.clone())))
            .collect()
    }

    fn line(&self, db: i32, key: &[u8]) -> Option<&Line> {
        self.lines.get(&db)?.get(key)
    }
}
