//! The queues of waiting clients, for all families whose commands block.

use crate::error::Error;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::services::slots::slot_of;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The database and the name of a key.
pub type Key = (i32, Arc<[u8]>);

/// The number of a waiting client. Within a queue, smaller numbers are served first.
pub type Ticket = u64;

/// The capacity that a collection keeps after many clients have waited and left.
pub const SMALL: usize = 64;

/// The functions of a family for its waiting clients in a cluster, where hash slots move between nodes.
#[derive(Debug, Clone, Copy)]
pub struct InSlots {
    /// Begins to index the queues by hash slot. Called once, when the module is loaded on a node of a cluster.
    pub index: fn(),
    /// The hash slots of the keys that clients wait for.
    pub slots: fn() -> Vec<u16>,
    /// The queues of a hash slot whose numbers are larger than the given one, in order, and their keys; at most this many.
    pub queues: fn(u16, u64, usize) -> Vec<(u64, Key)>,
    /// Answers the first client that waits for a key with an error. Returns whether there was one.
    pub refuse: fn(&Key, &Error) -> bool,
    /// Serves the queue of a key, if this node may serve the key now. What the slice has no time for is done later. A queue
    /// with a retry time is skipped, unless the slot `has_changed`: then the lease that its clients wait for may have been revoked.
    pub serve: fn(Ctx<'_>, &Key, has_changed: bool, &mut Slice),
}

/// The queue of each key that clients wait for. Each queue has a number above the numbers of all earlier queues, so that a
/// [`Scan`] can visit all queues in steps while queues begin and end. All maps are trees, because a hash table stops the server
/// when it grows.
#[derive(Debug)]
pub struct WaitQueues<Q> {
    numbers: BTreeMap<i32, BTreeMap<Arc<[u8]>, u64>>,
    queues: BTreeMap<u64, (Key, Q)>,
    /// The numbers of the queues of each hash slot; `None` outside a cluster, where nobody asks for them.
    by_slot: Option<BTreeMap<u16, BTreeSet<u64>>>,
    last: u64,
}

impl<Q> Default for WaitQueues<Q> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            queues: BTreeMap::new(),
            by_slot: None,
            last: 0,
        }
    }
}

impl<Q> WaitQueues<Q> {
    /// Begins to index the queues by hash slot.
    pub fn index_slots(&mut self) {
        let mut by_slot: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
        for (number, (key, _)) in &self.queues {
            by_slot.entry(slot_of(&key.1)).or_default().insert(*number);
        }
        self.by_slot = Some(by_slot);
    }

    /// The number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The number of a key's queue.
    pub fn number(&self, db: i32, key: &[u8]) -> Option<u64> {
        self.numbers.get(&db)?.get(key).copied()
    }

    /// A key's queue.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Q> {
        self.numbered(self.number(db, key)?).map(|(_, queue)| queue)
    }

    /// The same queue for a change.
    pub fn get_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut Q> {
        let number = self.number(db, key)?;
        self.numbered_mut(number)
    }

    /// The key and the queue with this number.
    pub fn numbered(&self, number: u64) -> Option<(&Key, &Q)> {
        let (key, queue) = self.queues.get(&number)?;
        Some((key, queue))
    }

    /// The queue with this number for a change.
    pub fn numbered_mut(&mut self, number: u64) -> Option<&mut Q> {
        self.queues.get_mut(&number).map(|(_, queue)| queue)
    }

    /// Removes a queue without clients.
    pub fn remove(&mut self, number: u64) {
        let Some(((db, key), _)) = self.queues.remove(&number) else {
            return;
        };
        if let Some(by_slot) = &mut self.by_slot {
            let slot = slot_of(&key);
            if let Some(numbers) = by_slot.get_mut(&slot) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    by_slot.remove(&slot);
                }
            }
        }
        if let Some(numbers) = self.numbers.get_mut(&db) {
            numbers.remove(&key);
            if numbers.is_empty() {
                self.numbers.remove(&db);
            }
        }
    }

    /// The hash slots of all keys, in ascending order; none without an [index](Self::index_slots).
    pub fn slots(&self) -> Vec<u16> {
        let slots = self.by_slot.iter().flat_map(BTreeMap::keys);
        slots.copied().collect()
    }

    /// The first queues of a hash slot whose numbers are larger than `after`, at most `most`, with their numbers and keys; none
    /// without an [index](Self::index_slots).
    pub fn of_slot(&self, slot: u16, after: u64, most: usize) -> Vec<(u64, Key)> {
        let numbers = self.by_slot.iter().filter_map(|slots| slots.get(&slot));
        let numbers = numbers.flat_map(|numbers| numbers.range(after + 1..));
        let with_key = |number: &u64| {
            self.numbered(*number)
                .map(|(key, _)| (*number, key.clone()))
        };
        numbers.filter_map(with_key).take(most).collect()
    }

    /// The number of the newest queue so far; 0: there was none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number and the key of the first queue with a larger number.
    pub fn after(&self, number: u64) -> Option<(u64, &Key)> {
        let (number, (key, _)) = self.queues.range(number + 1..).next()?;
        Some((*number, key))
    }

    /// The keys of all queues.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.queues.values().map(|(key, _)| key)
    }
}

impl<Q: Default> WaitQueues<Q> {
    /// A key's queue and its number. The queue begins if there is none.
    pub fn get_or_create(&mut self, key: &Key) -> (u64, &mut Q) {
        let numbers = self.numbers.entry(key.0).or_default();
        let number = *numbers.entry(key.1.clone()).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let queue = self.queues.entry(number);
        let (_, queue) = queue.or_insert_with(|| {
            if let Some(by_slot) = &mut self.by_slot {
                let numbers = by_slot.entry(slot_of(&key.1)).or_default();
                numbers.insert(number);
            }
            (key.clone(), Q::default())
        });
        (number, queue)
    }
}

/// A scan of the queues that existed when it began.
#[derive(Debug, Clone)]
pub struct Scan {
    /// The database whose queues are scanned; `None`: all databases.
    db: Option<i32>,
    at: u64,
    last: u64,
}

impl Scan {
    /// A scan of the queues of a database; `None`: of all databases.
    pub fn through<Q>(queues: &WaitQueues<Q>, db: Option<i32>) -> Self {
        let last = queues.last();
        Self { db, at: 0, last }
    }

    /// Advances to the next queue. `None`: the scan is complete.
    pub fn step<Q>(&mut self, queues: &WaitQueues<Q>) -> Option<ScanStep> {
        let (number, key) = queues.after(self.at)?;
        if number > self.last {
            return None;
        }
        self.at = number;
        let is_in_db = self.db.is_none_or(|db| key.0 == db);
        Some(ScanStep(is_in_db.then(|| key.clone())))
    }
}

/// A step of a [`Scan`]: the key of a queue; `None`: the queue is in another database.
#[derive(Debug)]
pub struct ScanStep(pub Option<Key>);

/// The keys whose queues are to be served, each once, in the order of their arrival.
#[derive(Debug, Default)]
pub struct Agenda {
    order: VecDeque<Key>,
    listed: BTreeSet<Key>,
}

impl Agenda {
    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds a key at the end, unless it is listed.
    pub fn push(&mut self, key: Key) {
        if self.listed.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    /// Adds a key at the front, unless it is listed.
    pub fn push_front(&mut self, key: Key) {
        if self.listed.insert(key.clone()) {
            self.order.push_front(key);
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes the first key and returns it.
    pub fn pop(&mut self) -> Option<Key> {
        let key = self.order.pop_front()?;
        self.listed.remove(&key);
        if self.order.is_empty() {
            self.order.shrink_to(SMALL); // releases the memory of a long list
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    fn key(db: i32, name: &str) -> Key {
        (db, name.as_bytes().into())
    }

    #[test]
    fn the_index_contains_the_keys_of_all_present_queues() {
        let mut queues = WaitQueues::<()>::default();
        let [a, b, c] = [key(0, "{tag}a"), key(0, "{tag}b"), key(1, "{other}c")];
        let (first, ()) = queues.get_or_create(&a);
        let keys_of = |queues: &WaitQueues<()>, slot, after, most| -> Vec<Key> {
            let of_slot = queues.of_slot(slot, after, most).into_iter();
            of_slot.map(|(_, key)| key).collect()
        };
        assert!(queues.slots().is_empty());
        queues.index_slots();
        let (tag, other) = (slot_of(b"tag"), slot_of(b"other"));
        assert_eq!(queues.slots(), [tag]);
        for key in [&b, &c] {
            queues.get_or_create(key);
        }
        assert_eq!(queues.slots(), [tag.min(other), tag.max(other)]);
        assert_eq!(keys_of(&queues, tag, 0, 9), [a.clone(), b.clone()]);
        assert_eq!(keys_of(&queues, tag, first, 9), slice::from_ref(&b));
        assert_eq!(keys_of(&queues, tag, 0, 1), slice::from_ref(&a));
        queues.remove(first);
        assert_eq!(keys_of(&queues, tag, 0, 9), slice::from_ref(&b));
        queues.get_or_create(&a);
        assert_eq!(keys_of(&queues, tag, 0, 9), [b.clone(), a.clone()]);
        if let Some(number) = queues.number(0, &a.1) {
            queues.remove(number);
        }
        if let Some(number) = queues.number(0, &b.1) {
            queues.remove(number);
        }
        assert_eq!(queues.slots(), [other]);
    }

    #[test]
    fn a_scan_visits_the_queues_of_a_database_that_existed_when_it_began() {
        let mut queues = WaitQueues::<()>::default();
        let keys = [key(0, "a"), key(1, "b"), key(0, "c"), key(0, "d")];
        for key in &keys[..3] {
            queues.get_or_create(key);
        }
        let mut scan = Scan::through(&queues, Some(0));
        queues.get_or_create(&keys[3]);
        let visited = std::iter::from_fn(|| scan.step(&queues));
        let visited: Vec<Option<Key>> = visited.map(|ScanStep(key)| key).collect();
        assert_eq!(
            visited,
            [Some(keys[0].clone()), None, Some(keys[2].clone())]
        );
    }
}
