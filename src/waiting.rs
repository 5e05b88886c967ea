//! What the queues of waiting clients have in common, whatever the clients wait for.

use crate::error::Error;
use crate::server::handles::context::Ctx;
use crate::server::services::slots::{in_cluster, slot_of};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The database and the name of a key.
pub type Key = (i32, Arc<[u8]>);

/// A waiting client's number. Smaller ones are served first.
pub type Ticket = u64;

/// Tables of no more than so many entries keep their memory when a crowd has gone.
pub const SMALL: usize = 64;

/// How a family's waiting clients are looked after in a cluster, where they wait for keys of hash slots that come and go.
#[derive(Debug, Clone, Copy)]
pub struct InSlots {
    /// The slots of the keys that clients wait for.
    pub slots: fn() -> Vec<u16>,
    /// Keys of a slot that clients wait for, in order, behind one of them, and so many at most.
    pub keys: fn(u16, Option<&Key>, usize) -> Vec<Key>,
    /// Answers so many clients at most that wait for a key with an error; how many there were.
    pub send_away: fn(&Key, &Error, usize) -> usize,
    /// Serves the clients of a key whose slot was away, and is here again.
    pub serve: fn(Ctx<'_>, &Key),
}

/// The queue of each key that somebody waits for. A queue has a number, larger than those of the queues that began before,
/// so that one can go through all queues in steps while queues come and go. The maps are trees: a hash table would stop the
/// server while it grows.
#[derive(Debug)]
pub struct WaitQueues<L> {
    numbers: BTreeMap<i32, BTreeMap<Arc<[u8]>, u64>>,
    lines: BTreeMap<u64, (Key, L)>,
    /// In a cluster, the keys of each hash slot.
    by_slot: BTreeMap<u16, BTreeSet<Key>>,
    last: u64,
}

impl<L> Default for WaitQueues<L> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            lines: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<L> WaitQueues<L> {
    /// How many queues there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Is there no queue?
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The number of a key's queue.
    pub fn number(&self, db: i32, key: &[u8]) -> Option<u64> {
        self.numbers.get(&db)?.get(key).copied()
    }

    /// A key's queue.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&L> {
        self.numbered(self.number(db, key)?).map(|(_, line)| line)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut L> {
        let number = self.number(db, key)?;
        self.numbered_mut(number)
    }

    /// The key and the queue of this number.
    pub fn numbered(&self, number: u64) -> Option<(&Key, &L)> {
        let (key, line) = self.lines.get(&number)?;
        Some((key, line))
    }

    /// The same queue, to be changed.
    pub fn numbered_mut(&mut self, number: u64) -> Option<&mut L> {
        self.lines.get_mut(&number).map(|(_, line)| line)
    }

    /// Removes a queue in which nobody is left.
    pub fn remove(&mut self, number: u64) {
        let Some(((db, key), _)) = self.lines.remove(&number) else {
            return;
        };
        if in_cluster() {
            let slot = slot_of(&key);
            if let Some(keys) = self.by_slot.get_mut(&slot) {
                keys.remove(&(db, key.clone()));
                if keys.is_empty() {
                    self.by_slot.remove(&slot);
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

    /// In a cluster, the hash slots that somebody waits in.
    pub fn slots(&self) -> Vec<u16> {
        self.by_slot.keys().copied().collect()
    }

    /// In a cluster, `most` keys of a slot behind one of them.
    pub fn keys_of_slot(&self, slot: u16, behind: Option<&Key>, most: usize) -> Vec<Key> {
        let start = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.by_slot.get(&slot).into_iter();
        let keys = keys.flat_map(|keys| keys.range::<Key, _>((start, Bound::Unbounded)));
        keys.take(most).cloned().collect()
    }

    /// The number of the queue that began last; 0: there was none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The first queue whose number is larger, with its key.
    pub fn after(&self, number: u64) -> Option<(u64, &Key)> {
        let (number, (key, _)) = self.lines.range(number + 1..).next()?;
        Some((*number, key))
    }

    /// All keys that somebody waits for.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.lines.values().map(|(key, _)| key)
    }
}

impl<L: Default> WaitQueues<L> {
    /// A key's queue, which begins if there is none, and its number.
    pub fn line(&mut self, key: &Key) -> (u64, &mut L) {
        let numbers = self.numbers.entry(key.0).or_default();
        let number = *numbers.entry(key.1.clone()).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let line = self.lines.entry(number);
        let (_, line) = line.or_insert_with(|| {
            if in_cluster() {
                let keys = self.by_slot.entry(slot_of(&key.1)).or_default();
                keys.insert(key.clone());
            }
            (key.clone(), L::default())
        });
        (number, line)
    }
}

/// A walk through the queues that there were when it began.
#[derive(Debug, Clone)]
pub struct Walk {
    /// Only through queues of this database; `None`: of all of them.
    db: Option<i32>,
    at: u64,
    last: u64,
}

impl Walk {
    /// A walk through the queues of a database; `None`: of all of them.
    pub fn through<L>(lines: &WaitQueues<L>, db: Option<i32>) -> Self {
        let last = lines.last();
        Self { db, at: 0, last }
    }

    /// The next queue. `None`: there is no other.
    pub fn step<L>(&mut self, lines: &WaitQueues<L>) -> Option<Step> {
        let (number, key) = lines.after(self.at)?;
        if number > self.last {
            return None;
        }
        self.at = number;
        let is_asked_for = self.db.is_none_or(|db| key.0 == db);
        Some(Step(is_asked_for.then(|| key.clone())))
    }
}

/// A step of a [`Walk`]: the key of a queue, unless it is one of another database.
#[derive(Debug)]
pub struct Step(pub Option<Key>);

/// Keys whose queues are to be looked at, each once, in the order in which they came.
#[derive(Debug, Default)]
pub struct Agenda {
    order: VecDeque<Key>,
    listed: BTreeSet<Key>,
}

impl Agenda {
    /// Is nothing to be looked at?
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Puts a key at the end, unless it is listed.
    pub fn push(&mut self, key: Key) {
        if self.listed.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    /// Puts a key in front, to be looked at next.
    pub fn push_front(&mut self, key: Key) {
        if self.listed.insert(key.clone()) {
            self.order.push_front(key);
        }
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the first key out.
    pub fn pop(&mut self) -> Option<Key> {
        let key = self.order.pop_front()?;
        self.listed.remove(&key);
        if self.order.is_empty() {
            self.order.shrink_to(SMALL); // the memory of a crowd that has gone
        }
        Some(key)
    }
}
