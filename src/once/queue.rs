//! The queues of clients that wait for the end of work, and their deadlines. A waiting client is a ticket here; its blocked client
//! is kept elsewhere under the same ticket.

use crate::waiting::{Key, Scan, ScanStep, Ticket, WaitQueues};
use std::collections::{BTreeMap, BTreeSet};

/// A client that waits for the end of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceWaiter {
    /// The key.
    pub key: Key,
    /// The length of the lease that it wants, in milliseconds.
    pub lease_ms: u64,
    /// The fingerprint of its request; empty: none.
    pub fingerprint: Box<[u8]>,
    /// Until when it waits (Unix ms); `None`: without limit.
    pub deadline: Option<u64>,
}

/// The event at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkWaitEnd {
    /// A waiting client's time is up.
    Timeout(Ticket),
    /// A key's queue is to be served again: the lease that its clients wait for has ended.
    Retry(Key),
}

/// The queue of one key.
#[derive(Debug, Default)]
struct WorkQueue {
    tickets: BTreeSet<Ticket>,
    retry_at: Option<u64>,
}

/// The waiting clients of a server.
#[derive(Debug, Default)]
pub struct OnceQueue {
    waiters: BTreeMap<Ticket, OnceWaiter>,
    queues: WaitQueues<WorkQueue>,
    /// The deadlines by time (Unix ms).
    deadlines: BTreeSet<(u64, WorkWaitEnd)>,
    last: Ticket,
}

impl OnceQueue {
    /// Begins to index the queues by hash slot.
    pub fn index_slots(&mut self) {
        self.queues.index_slots();
    }

    /// The number of waiting clients.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a client at the end of its key's queue.
    pub fn push(&mut self, waiter: OnceWaiter) -> Ticket {
        self.last += 1;
        let (_, queue) = self.queues.get_or_create(&waiter.key);
        queue.tickets.insert(self.last);
        if let Some(at) = waiter.deadline {
            let timeout = WorkWaitEnd::Timeout(self.last);
            self.deadlines.insert((at, timeout));
        }
        self.waiters.insert(self.last, waiter);
        self.last
    }

    /// Removes a client, and the deadlines that only it needs.
    pub fn remove(&mut self, ticket: Ticket) -> Option<OnceWaiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let (db, key) = &waiter.key;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, WorkWaitEnd::Timeout(ticket)));
        }
        if let Some(number) = self.queues.number(*db, key)
            && let Some(queue) = self.queues.numbered_mut(number)
        {
            queue.tickets.remove(&ticket);
            if queue.tickets.is_empty() {
                if let Some(at) = queue.retry_at {
                    let retry = WorkWaitEnd::Retry(waiter.key.clone());
                    self.deadlines.remove(&(at, retry));
                }
                self.queues.remove(number);
            }
        }
        Some(waiter)
    }

    /// A waiting client.
    pub fn get(&self, ticket: Ticket) -> Option<&OnceWaiter> {
        self.waiters.get(&ticket)
    }

    /// The first client of a key's queue.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.queues.get(db, key)?.tickets.first().copied()
    }

    /// The number of clients that wait for a key.
    pub fn waiting(&self, db: i32, key: &[u8]) -> usize {
        let queue = self.queues.get(db, key);
        queue.map_or(0, |queue| queue.tickets.len())
    }

    /// The clients of a key's queue, in order.
    pub fn tickets(&self, db: i32, key: &[u8]) -> impl Iterator<Item = Ticket> {
        let queue = self.queues.get(db, key).into_iter();
        queue.flat_map(|queue| queue.tickets.iter().copied())
    }

    /// Whether a time is set at which the key's queue is served again.
    pub fn has_retry(&self, db: i32, key: &[u8]) -> bool {
        let queue = self.queues.get(db, key);
        queue.is_some_and(|queue| queue.retry_at.is_some())
    }

    /// Sets when a key's queue is served again (Unix ms); `None`: only when something happens to the key. Without a queue,
    /// nothing is set.
    pub fn set_retry(&mut self, db: i32, key: &[u8], at: Option<u64>) {
        let Some(number) = self.queues.number(db, key) else {
            return;
        };
        let Some(queue) = self.queues.numbered_mut(number) else {
            return;
        };
        let before = std::mem::replace(&mut queue.retry_at, at);
        if before == at {
            return;
        }
        let Some((key, _)) = self.queues.numbered(number) else {
            return;
        };
        let retry = |at| (at, WorkWaitEnd::Retry(key.clone()));
        if let Some(before) = before {
            self.deadlines.remove(&retry(before));
        }
        self.deadlines.extend(at.map(retry));
    }

    /// The next deadline (Unix ms).
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Removes the next deadline. The client of a timeout stays in its queue.
    pub fn pop_deadline(&mut self) -> Option<WorkWaitEnd> {
        let (_, deadline) = self.deadlines.pop_first()?;
        if let WorkWaitEnd::Retry((db, key)) = &deadline
            && let Some(queue) = self.queues.get_mut(*db, key)
        {
            queue.retry_at = None;
        }
        Some(deadline)
    }

    /// In a cluster, the hash slots of the keys that clients wait for.
    pub fn slots(&self) -> Vec<u16> {
        self.queues.slots()
    }

    /// In a cluster, at most `most` keys of a hash slot that clients wait for, after the key `behind`.
    pub fn keys_of_slot(&self, slot: u16, behind: Option<&Key>, most: usize) -> Vec<Key> {
        self.queues.keys_of_slot(slot, behind, most)
    }

    /// A scan through the queues of a database; `None`: of all databases.
    pub fn scan(&self, db: Option<i32>) -> Scan {
        Scan::through(&self.queues, db)
    }

    /// The next key of a scan; see [`Scan::step`].
    pub fn next_scanned(&self, scan: &mut Scan) -> Option<ScanStep> {
        scan.step(&self.queues)
    }
}
