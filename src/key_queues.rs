//! The queues of clients that each wait for one key, and their deadlines. A waiting client is a ticket here; its blocked client
//! is kept elsewhere under the same ticket. The queues use no server, clock or randomness. `R` is the request that a
//! client repeats when its turn comes. `O` is an outcome that all clients of a queue share.

use crate::error::Error;
use crate::reply::Answer;
use crate::waiting::{Key, Scan, ScanStep, Ticket, WaitQueues};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A client that waits for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWaiter<R> {
    /// The key.
    pub key: Key,
    /// Since when it waits (Unix us).
    pub since_us: u64,
    /// Until when it waits (Unix ms); `None`: without limit.
    pub deadline: Option<u64>,
    /// The request.
    pub request: R,
}

/// The decision about the first client of a queue. `A` is the kind of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadStep<A> {
    /// The queue is empty.
    Empty,
    /// The client waits on, and the queue is served again at this time (Unix ms) at the latest.
    Waits(u64),
    /// The client receives this answer, and has left the queue.
    Served(Ticket, A),
    /// It is the client's turn, but its time is up. It is still in the queue.
    TimedOut(Ticket),
}

/// The event at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueDeadline {
    /// A waiting client's time is up.
    Timeout(Ticket),
    /// A key's queue is to be served again: the lease or backoff that its clients wait for may have ended.
    Retry(Key),
}

/// The queue of one key.
#[derive(Debug)]
struct KeyQueue<O> {
    tickets: BTreeSet<Ticket>,
    retry_at: Option<u64>,
    /// Outcomes that not all of their clients have received, in the order of the queue, each with the last client that it is for.
    outcomes: VecDeque<(O, Ticket)>,
}

impl<O> Default for KeyQueue<O> {
    fn default() -> Self {
        Self {
            tickets: BTreeSet::new(),
            retry_at: None,
            outcomes: VecDeque::new(),
        }
    }
}

/// The waiting clients of a family.
#[derive(Debug)]
pub struct KeyQueues<R, O> {
    waiters: BTreeMap<Ticket, KeyWaiter<R>>,
    queues: WaitQueues<KeyQueue<O>>,
    /// The deadlines by time (Unix ms).
    deadlines: BTreeSet<(u64, QueueDeadline)>,
    /// The tokens of clients that were served and whose replies have not been sent yet.
    unsent: BTreeMap<Ticket, (Key, u64)>,
    /// The tokens of clients that left before their replies were sent. They are taken back.
    undelivered: VecDeque<(Key, u64)>,
    last: Ticket,
}

impl<R, O> Default for KeyQueues<R, O> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            queues: WaitQueues::default(),
            deadlines: BTreeSet::new(),
            unsent: BTreeMap::new(),
            undelivered: VecDeque::new(),
            last: 0,
        }
    }
}

impl<R, O> KeyQueues<R, O> {
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
    pub fn push(&mut self, waiter: KeyWaiter<R>) -> Ticket {
        self.last += 1;
        let (_, queue) = self.queues.get_or_create(&waiter.key);
        queue.tickets.insert(self.last);
        if let Some(at) = waiter.deadline {
            let timeout = QueueDeadline::Timeout(self.last);
            self.deadlines.insert((at, timeout));
        }
        self.waiters.insert(self.last, waiter);
        self.last
    }

    /// Removes a client, and the deadlines that only it needs.
    pub fn remove(&mut self, ticket: Ticket) -> Option<KeyWaiter<R>> {
        let waiter = self.waiters.remove(&ticket)?;
        let (db, key) = &waiter.key;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, QueueDeadline::Timeout(ticket)));
        }
        if let Some(number) = self.queues.number(*db, key)
            && let Some(queue) = self.queues.numbered_mut(number)
        {
            queue.tickets.remove(&ticket);
            let first = queue.tickets.first().copied().unwrap_or(Ticket::MAX);
            while queue
                .outcomes
                .front()
                .is_some_and(|(_, last)| *last < first)
            {
                queue.outcomes.pop_front();
            }
            if queue.tickets.is_empty() {
                if let Some(at) = queue.retry_at {
                    let retry = QueueDeadline::Retry(waiter.key.clone());
                    self.deadlines.remove(&(at, retry));
                }
                self.queues.remove(number);
            }
        }
        Some(waiter)
    }

    /// A waiting client.
    pub fn get(&self, ticket: Ticket) -> Option<&KeyWaiter<R>> {
        self.waiters.get(&ticket)
    }

    /// The first client of a key's queue.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.queues.get(db, key)?.tickets.first().copied()
    }

    /// Whether the time of a waiting client is up. `now` is in Unix ms.
    pub fn is_late(&self, ticket: Ticket, now: u64) -> bool {
        let deadline = self.get(ticket).and_then(|waiter| waiter.deadline);
        deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Sets the outcome of all clients that wait for a key now and have none.
    pub fn set_outcome(&mut self, db: i32, key: &[u8], outcome: O) {
        if let Some(queue) = self.queues.get_mut(db, key)
            && let Some(last) = queue.tickets.last()
            && queue.outcomes.back().is_none_or(|(_, other)| other < last)
        {
            queue.outcomes.push_back((outcome, *last));
        }
    }

    /// The outcome of a waiting client.
    pub fn outcome_of(&self, ticket: Ticket) -> Option<&O> {
        let (db, key) = &self.get(ticket)?.key;
        let outcomes = &self.queues.get(*db, key)?.outcomes;
        let index = outcomes.partition_point(|(_, last)| *last < ticket);
        outcomes.get(index).map(|(outcome, _)| outcome)
    }

    /// Removes the first client of a key's queue, which receives an error.
    pub fn dismiss_head(&mut self, (db, key): &Key, error: Error) -> HeadStep<Answer> {
        match self.head(*db, key) {
            Some(ticket) => {
                self.remove(ticket);
                HeadStep::Served(ticket, Err(error))
            }
            None => HeadStep::Empty,
        }
    }

    /// Since when the first client of a key's queue waits (Unix us).
    pub fn head_since(&self, db: i32, key: &[u8]) -> Option<u64> {
        Some(self.get(self.head(db, key)?)?.since_us)
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
        let retry = |at| (at, QueueDeadline::Retry(key.clone()));
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
    pub fn pop_deadline(&mut self) -> Option<QueueDeadline> {
        let (_, deadline) = self.deadlines.pop_first()?;
        if let QueueDeadline::Retry((db, key)) = &deadline
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

    /// In a cluster, queues of a slot; see [`WaitQueues::of_slot`].
    pub fn of_slot(&self, slot: u16, after: u64, most: usize) -> Vec<(u64, Key)> {
        self.queues.of_slot(slot, after, most)
    }

    /// A scan of the queues of a database; `None`: of all databases.
    pub fn scan(&self, db: Option<i32>) -> Scan {
        Scan::through(&self.queues, db)
    }

    /// The next key of a scan; see [`Scan::step`].
    pub fn next_scanned(&self, scan: &mut Scan) -> Option<ScanStep> {
        scan.step(&self.queues)
    }

    /// A served client is granted a token of a key: [`Self::sent`] or [`Self::not_sent`] follows.
    pub fn granted(&mut self, ticket: Ticket, key: &Key, token: u64) {
        self.unsent.insert(ticket, (key.clone(), token));
    }

    /// The reply of a client that was served has been sent.
    pub fn sent(&mut self, ticket: Ticket) {
        self.unsent.remove(&ticket);
    }

    /// A client that was served left before its reply was sent. Returns whether it was granted a token, which is to be taken back.
    pub fn not_sent(&mut self, ticket: Ticket) -> bool {
        let grant = self.unsent.remove(&ticket);
        let has_token = grant.is_some();
        self.undelivered.extend(grant);
        has_token
    }

    /// Whether tokens are to be taken back.
    pub fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Removes the next token that is to be taken back, and returns it with its key.
    pub fn next_undelivered(&mut self) -> Option<(Key, u64)> {
        self.undelivered.pop_front()
    }

    /// Forgets the tokens that are to be taken back.
    pub fn forget_undelivered(&mut self) {
        self.undelivered.clear();
    }
}
