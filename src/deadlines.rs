//! The list of deadlines of a family: the times at which the timer has to visit values.
//!
//! Each listed value has a number, which it carries along when it moves. The callbacks of a native type remove a value that leaves
//! its key and add a value that arrives at a key. For `RENAME` and `MOVE`, which have no such callback, keyspace events do it. A
//! listed time may be too early, and a listed key may be outdated, so a visitor checks the number of the value at the key.

use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::slots::{contains, in_cluster, slot_of};
use crate::server::services::timer;
use std::cell::RefMut;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for an unknown database.
pub const ANY_DB: i32 = -1;

/// The approximate bytes of the list per value.
pub const BYTES_PER_VALUE: usize = 128;

/// The most values of a hash slot that return to the list in one step.
const UNPARK_BATCH: usize = 2000;

/// The position of a value in the list. The value contains it. It is not part of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The number in the list; 0: none yet.
    pub number: u64,
    /// The listed time (Unix ms), which is not later than the next deadline of the value. `u64::MAX`: not listed.
    pub at: u64,
}

impl Default for Listed {
    fn default() -> Self {
        Self {
            number: 0,
            at: u64::MAX,
        }
    }
}

impl Listed {
    /// The approximate bytes that the list uses for the value.
    pub fn memory(&self) -> usize {
        if self.at < u64::MAX {
            BYTES_PER_VALUE
        } else {
            0
        }
    }
}

/// The list of a family, and the list of a dataset that is loaded beside the present one and replaces it when it is complete. A
/// number is in one of the two lists at most.
pub struct Listing {
    here: MainThread<Deadlines>,
    incoming: MainThread<Deadlines>,
}

impl Listing {
    /// Two empty lists.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            here: MainThread::new(),
            incoming: MainThread::new(),
        }
    }

    /// The list of the present dataset.
    pub fn get(&self) -> RefMut<'_, Deadlines> {
        self.here.get()
    }

    /// Lists a value at a time (Unix ms). `u64::MAX`: removes it.
    pub fn list(&self, listed: &mut Listed, db: i32, key: &[u8], at: u64) {
        let mut here = self.here.get();
        listed.at = at;
        if at == u64::MAX {
            return here.remove(listed.number);
        }
        if listed.number == 0 {
            listed.number = here.next_number();
        }
        here.set(listed.number, db, key, at);
    }

    /// Lists a value that is loaded with a dataset.
    pub fn list_loaded(&self, listed: &mut Listed, db: i32, key: &[u8], at: u64) {
        if !deferred::loads_beside() {
            return self.list(listed, db, key, at);
        }
        if at < u64::MAX {
            let number = self.here.get().next_number();
            *listed = Listed { number, at };
            // Redis 7.0 and 7.2 report database 0 for all keys of such a dataset.
            let db = if db == 0 { ANY_DB } else { db };
            self.incoming.get().set(number, db, key, at);
        }
    }

    /// Removes a value that leaves its key.
    pub fn unlinked(&self, listed: &Listed) {
        if listed.number != 0 {
            self.here.get().remove(listed.number);
            self.incoming.get().remove(listed.number);
        }
    }

    /// Follows a server event that removes or moves whole databases or hash slots.
    pub fn moved(&self, event: &ServerEvent) {
        match event {
            ServerEvent::Flushed(db) => self.here.get().flushed(*db),
            ServerEvent::Swapped(first, second) => self.here.get().swapped(*first, *second),
            ServerEvent::Replaced => {
                let incoming = std::mem::take(&mut *self.incoming.get());
                self.here.get().replace(incoming);
            }
            ServerEvent::Discarded => *self.incoming.get() = Deadlines::default(),
            ServerEvent::SlotsDropped(ranges) => self.here.get().dropped(ranges),
            _ => {}
        }
    }

    /// In a cluster: returns parked values to the list whose hash slots this node owns now.
    pub fn unpark(&self, ctx: Ctx<'_>) {
        if !ctx.is_cluster() || !ctx.may_act() {
            return;
        }
        let slots = self.here.get().parked_slots();
        for slot in slots {
            if cluster::owns_slot(ctx, slot) {
                self.here.get().unpark(slot, UNPARK_BATCH);
                timer::arm(ctx, Now::read().ms());
            }
        }
    }
}

/// The key of a listed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedKey {
    /// The database, or [`ANY_DB`].
    pub db: i32,
    /// The key.
    pub key: Box<[u8]>,
    at: u64,
    /// The hash slot of the key; 0 outside a cluster.
    slot: u16,
    is_parked: bool,
}

fn slot(key: &[u8]) -> u16 {
    if in_cluster() { slot_of(key) } else { 0 }
}

/// The listed values, by time, number and parked hash slot.
#[derive(Debug, Default)]
pub struct Deadlines {
    last: u64,
    by_time: BTreeSet<(u64, u64)>,
    keys: BTreeMap<u64, ListedKey>,
    /// The hash slots and numbers of parked values: they are due, but this node does not own their hash slots.
    parked: BTreeSet<(u16, u64)>,
}

impl Deadlines {
    /// The number of values, parked values included.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Replaces all values by those of another list, whose numbers came from [`Deadlines::next_number`] of this one.
    pub fn replace(&mut self, others: Self) {
        let last = self.last;
        *self = Self { last, ..others };
    }

    /// A number that no value has had before.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Lists a value at a time (Unix ms), or changes its key and its time. A parked value returns to the list.
    pub fn set(&mut self, number: u64, db: i32, key: &[u8], at: u64) {
        self.by_time.insert((at, number));
        match self.keys.get_mut(&number) {
            Some(listed) => {
                if listed.at != at {
                    self.by_time.remove(&(listed.at, number));
                }
                if listed.is_parked {
                    self.parked.remove(&(listed.slot, number));
                    listed.is_parked = false;
                }
                (listed.db, listed.at) = (db, at);
                if *listed.key != *key {
                    (listed.key, listed.slot) = (key.into(), slot(key));
                }
            }
            None => {
                let listed = ListedKey {
                    db,
                    key: key.into(),
                    at,
                    slot: slot(key),
                    is_parked: false,
                };
                self.keys.insert(number, listed);
            }
        }
    }

    /// Removes a value.
    pub fn remove(&mut self, number: u64) {
        if let Some(listed) = self.keys.remove(&number) {
            self.by_time.remove(&(listed.at, number));
            self.parked.remove(&(listed.slot, number));
        }
    }

    /// Parks a value that is due, until this node [owns its hash slot](Self::unpark).
    pub fn park(&mut self, number: u64) {
        if let Some(listed) = self.keys.get_mut(&number) {
            self.by_time.remove(&(listed.at, number));
            self.parked.insert((listed.slot, number));
            listed.is_parked = true;
        }
    }

    /// The hash slots of all parked values, in ascending order.
    pub fn parked_slots(&self) -> Vec<u16> {
        let after = |slot: u32| {
            let slot = u16::try_from(slot).ok()?;
            let (slot, _) = self.parked.range((slot, 0)..).next()?;
            Some(*slot)
        };
        let first = after(0);
        std::iter::successors(first, |slot| after(u32::from(*slot) + 1)).collect()
    }

    /// Returns at most `most` parked values of a hash slot to the list, each with its time.
    pub fn unpark(&mut self, slot: u16, most: usize) {
        let numbers = self.parked.range((slot, 0)..=(slot, u64::MAX));
        let numbers: Vec<u64> = numbers.map(|(_, number)| *number).take(most).collect();
        for number in numbers {
            self.parked.remove(&(slot, number));
            if let Some(listed) = self.keys.get_mut(&number) {
                listed.is_parked = false;
                self.by_time.insert((listed.at, number));
            }
        }
    }

    /// Removes all values in these ranges of hash slots.
    pub fn dropped(&mut self, ranges: &[(u16, u16)]) {
        let (by_time, parked) = (&mut self.by_time, &mut self.parked);
        self.keys.retain(|number, listed| {
            let stays = !contains(ranges, listed.slot);
            if !stays {
                by_time.remove(&(listed.at, *number));
                parked.remove(&(listed.slot, *number));
            }
            stays
        });
    }

    /// The first time (Unix ms), and the number of its value.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.by_time.first().copied()
    }

    /// The key of a value.
    pub fn key(&self, number: u64) -> Option<&ListedKey> {
        self.keys.get(&number)
    }

    /// Removes all values of a database; `None`: of all databases.
    pub fn flushed(&mut self, db: Option<i32>) {
        match db {
            None => {
                self.keys.clear();
                self.by_time.clear();
                self.parked.clear();
            }
            Some(db) => {
                let (by_time, parked) = (&mut self.by_time, &mut self.parked);
                self.keys.retain(|number, listed| {
                    let stays = listed.db != db;
                    if !stays {
                        by_time.remove(&(listed.at, *number));
                        parked.remove(&(listed.slot, *number));
                    }
                    stays
                });
            }
        }
    }

    /// Exchanges two databases.
    pub fn swapped(&mut self, first: i32, second: i32) {
        for listed in self.keys.values_mut() {
            if listed.db == first {
                listed.db = second;
            } else if listed.db == second {
                listed.db = first;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &Deadlines) -> Vec<(u64, i32, &[u8])> {
        let keys = list
            .by_time
            .iter()
            .map(|(at, number)| (at, &list.keys[number]));
        let shown = keys
            .map(|(at, listed)| (*at, listed.db, &*listed.key))
            .collect();
        assert_eq!(list.by_time.len(), list.keys.len());
        shown
    }

    #[test]
    fn the_first_value_has_the_earliest_time_after_every_change() {
        let mut list = Deadlines::default();
        let [a, b, c] = [(); 3].map(|()| list.next_number());
        list.set(a, 0, b"a", 30);
        list.set(b, 0, b"b", 10);
        list.set(c, 1, b"c", 20);
        assert_eq!(list.first(), Some((10, b)));
        list.set(b, 0, b"renamed", 40);
        assert_eq!(
            all(&list),
            [(20, 1, &b"c"[..]), (30, 0, b"a"), (40, 0, b"renamed")]
        );
        list.swapped(0, 1);
        assert_eq!(
            all(&list),
            [(20, 0, &b"c"[..]), (30, 1, b"a"), (40, 1, b"renamed")]
        );
        list.remove(a);
        list.flushed(Some(0));
        assert_eq!(all(&list), [(40, 1, &b"renamed"[..])]);
        list.remove(b);
        list.set(c, 1, b"c", 20);
        list.set(a, 1, b"a", 30);
        list.park(c);
        list.set(c, 1, b"c", 50);
        assert!(list.parked_slots().is_empty());
        list.park(a);
        assert_eq!(
            (list.first(), list.parked_slots()),
            (Some((50, c)), vec![0])
        );
        list.unpark(0, 9);
        assert_eq!(list.first(), Some((30, a)));
        list.park(a);
        list.dropped(&[(1, 16383)]);
        assert_eq!(list.len(), 2);
        list.dropped(&[(0, 0)]);
        assert!(list.is_empty() && list.first().is_none() && list.parked_slots().is_empty());
        list.set(b, 0, b"b", 1);
        list.flushed(None);
        assert!(list.is_empty() && list.first().is_none());
        list.set(a, 0, b"old", 5);
        let (d, mut others) = (list.next_number(), Deadlines::default());
        others.set(d, 3, b"new", 7);
        list.replace(others);
        assert_eq!(all(&list), [(7, 3, &b"new"[..])]);
        assert!(list.next_number() > d);
    }
}
