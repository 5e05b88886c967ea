//! When the server has to look at which value: one list for all values of a family.
//!
//! A value is in it under a number that it carries along. A value that leaves its key is
//! taken out, and one that comes to a key is put in, by the callbacks of the value itself and, where
//! there is none, by the keyspace events of `RENAME` and `MOVE`: so the list follows them all. The list may look too early, and
//! whoever looks makes sure that the value at the key still has the number.

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

/// The database of a value that may be in any.
pub const ANY_DB: i32 = -1;

/// What the list takes for a value, about.
pub const BYTES_PER_VALUE: usize = 128;

/// So many values of a slot that has come are listed again in one go.
const UNPARK_BATCH: usize = 2000;

/// Where the list has a value. The value carries this; it is not part of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its number in the list; 0: none yet.
    pub number: u64,
    /// When the list looks at it (Unix ms), `u64::MAX`: never. Not later than its next deadline.
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
    /// What the list takes for it, about.
    pub fn memory(&self) -> usize {
        if self.at < u64::MAX {
            BYTES_PER_VALUE
        } else {
            0
        }
    }
}

/// The list of a family, and that of a dataset that is loaded beside the present one and takes its place when it is
/// complete. A number is in one of both.
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

    /// Lists a value at a time (Unix ms); at `u64::MAX` it is taken out.
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
            // Redis 7.0 and 7.2 say 0 of every database of such a dataset.
            let db = if db == 0 { ANY_DB } else { db };
            self.incoming.get().set(number, db, key, at);
        }
    }

    /// Takes a value out that leaves its key.
    pub fn unlinked(&self, listed: &Listed) {
        if listed.number != 0 {
            self.here.get().remove(listed.number);
            self.incoming.get().remove(listed.number);
        }
    }

    /// Whole databases went or moved, and their values with them.
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

    /// In a cluster, looks whether slots have come whose values were due before.
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

/// Where a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedKey {
    /// The database, or [`ANY_DB`].
    pub db: i32,
    /// The key.
    pub key: Box<[u8]>,
    at: u64,
    /// Its hash slot, in a cluster.
    slot: u16,
    is_parked: bool,
}

fn slot(key: &[u8]) -> u16 {
    if in_cluster() { slot_of(key) } else { 0 }
}

/// The values that have something to do by themselves.
#[derive(Debug, Default)]
pub struct Deadlines {
    last: u64,
    by_time: BTreeSet<(u64, u64)>,
    keys: BTreeMap<u64, ListedKey>,
    /// Values that are due, but in a hash slot that is not this node's, by that.
    parked: BTreeSet<(u16, u64)>,
}

impl Deadlines {
    /// How many values are listed.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Is none listed?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lists other values in place of these, under numbers that this list gave.
    pub fn replace(&mut self, others: Self) {
        let last = self.last;
        *self = Self { last, ..others };
    }

    /// A number that no value had before.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Lists a value at a time (Unix ms), or changes where and when it is listed.
    pub fn set(&mut self, number: u64, db: i32, key: &[u8], at: u64) {
        self.by_time.insert((at, number));
        match self.keys.get_mut(&number) {
            Some(place) => {
                if place.at != at {
                    self.by_time.remove(&(place.at, number));
                }
                if place.is_parked {
                    self.parked.remove(&(place.slot, number));
                    place.is_parked = false;
                }
                (place.db, place.at) = (db, at);
                if *place.key != *key {
                    (place.key, place.slot) = (key.into(), slot(key));
                }
            }
            None => {
                let place = ListedKey {
                    db,
                    key: key.into(),
                    at,
                    slot: slot(key),
                    is_parked: false,
                };
                self.keys.insert(number, place);
            }
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, number: u64) {
        if let Some(place) = self.keys.remove(&number) {
            self.by_time.remove(&(place.at, number));
            self.parked.remove(&(place.slot, number));
        }
    }

    /// Puts a value aside that is due, until its hash slot [is here](Self::unpark).
    pub fn park(&mut self, number: u64) {
        if let Some(place) = self.keys.get_mut(&number) {
            self.by_time.remove(&(place.at, number));
            self.parked.insert((place.slot, number));
            place.is_parked = true;
        }
    }

    /// The hash slots of the values that were put aside.
    pub fn parked_slots(&self) -> Vec<u16> {
        let after = |slot: u32| {
            let slot = u16::try_from(slot).ok()?;
            let (slot, _) = self.parked.range((slot, 0)..).next()?;
            Some(*slot)
        };
        let first = after(0);
        std::iter::successors(first, |slot| after(u32::from(*slot) + 1)).collect()
    }

    /// Lists values of a hash slot again that were put aside, each at its time; `most` of them.
    pub fn unpark(&mut self, slot: u16, most: usize) {
        let numbers = self.parked.range((slot, 0)..=(slot, u64::MAX));
        let numbers: Vec<u64> = numbers.map(|(_, number)| *number).take(most).collect();
        for number in numbers {
            self.parked.remove(&(slot, number));
            if let Some(place) = self.keys.get_mut(&number) {
                place.is_parked = false;
                self.by_time.insert((place.at, number));
            }
        }
    }

    /// What was in these hash slots is gone.
    pub fn dropped(&mut self, ranges: &[(u16, u16)]) {
        let (by_time, parked) = (&mut self.by_time, &mut self.parked);
        self.keys.retain(|number, place| {
            let stays = !contains(ranges, place.slot);
            if !stays {
                by_time.remove(&(place.at, *number));
                parked.remove(&(place.slot, *number));
            }
            stays
        });
    }

    /// The value that is to be looked at first, and when (Unix ms).
    pub fn first(&self) -> Option<(u64, u64)> {
        self.by_time.first().copied()
    }

    /// Where a value is.
    pub fn place(&self, number: u64) -> Option<&ListedKey> {
        self.keys.get(&number)
    }

    /// A database was emptied; `None`: all of them.
    pub fn flushed(&mut self, db: Option<i32>) {
        match db {
            None => {
                self.keys.clear();
                self.by_time.clear();
                self.parked.clear();
            }
            Some(db) => {
                let (by_time, parked) = (&mut self.by_time, &mut self.parked);
                self.keys.retain(|number, place| {
                    let stays = place.db != db;
                    if !stays {
                        by_time.remove(&(place.at, *number));
                        parked.remove(&(place.slot, *number));
                    }
                    stays
                });
            }
        }
    }

    /// Two databases were swapped.
    pub fn swapped(&mut self, first: i32, second: i32) {
        for place in self.keys.values_mut() {
            if place.db == first {
                place.db = second;
            } else if place.db == second {
                place.db = first;
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
            .map(|(at, place)| (*at, place.db, &*place.key))
            .collect();
        assert_eq!(list.by_time.len(), list.keys.len());
        shown
    }

    #[test]
    fn the_first_is_the_nearest_wherever_it_has_moved() {
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
