//! What the lines of waiting clients have in common, whatever they wait for.

use crate::error::Error;
use crate::server::context::Ctx;
use crate::server::slots::{in_cluster, slot_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// The database and the name of a key.
pub type Key = (i32, Box<[u8]>);

/// A waiter's number. Smaller ones are served first.
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
    /// Answers so many clients at most that wait for a key with an error.
    pub send_away: fn(&Key, &Error, usize),
    /// Serves the clients of a key whose slot was away, and is here again.
    pub serve: fn(Ctx<'_>, &Key),
}

/// The line of each key that somebody waits for.
#[derive(Debug)]
pub struct Lines<L> {
    by_db: HashMap<i32, HashMap<Box<[u8]>, L>>,
    /// In a cluster, the keys of each hash slot.
    by_slot: BTreeMap<u16, BTreeSet<Key>>,
}

impl<L> Default for Lines<L> {
    fn default() -> Self {
        let (by_db, by_slot) = (HashMap::new(), BTreeMap::new());
        Self { by_db, by_slot }
    }
}

impl<L> Lines<L> {
    /// How many lines there are.
    pub fn len(&self) -> usize {
        self.by_db.values().map(HashMap::len).sum()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.by_db.is_empty()
    }

    /// A key's line.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&L> {
        self.by_db.get(&db)?.get(key)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut L> {
        self.by_db.get_mut(&db)?.get_mut(key)
    }

    /// Takes a line out, of which nobody is left.
    pub fn remove(&mut self, db: i32, key: &[u8]) {
        if in_cluster() {
            self.leave_slot(db, key);
        }
        if let Some(lines) = self.by_db.get_mut(&db) {
            lines.remove(key);
            if lines.is_empty() {
                self.by_db.remove(&db);
            }
        }
    }

    fn leave_slot(&mut self, db: i32, key: &[u8]) {
        let slot = slot_of(key);
        if let Some(keys) = self.by_slot.get_mut(&slot) {
            keys.remove(&(db, key.into()));
            if keys.is_empty() {
                self.by_slot.remove(&slot);
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

    /// The keys of a database that somebody waits for; `None`: of all of them.
    pub fn keys(&self, db: Option<i32>) -> Vec<Key> {
        let asked_for = |of: &i32| db.is_none_or(|db| *of == db);
        let lines = self.by_db.iter().filter(|(of, _)| asked_for(of));
        lines
            .flat_map(|(db, lines)| lines.keys().map(|key| (*db, key.clone())))
            .collect()
    }
}

impl<L: Default> Lines<L> {
    /// A key's line, which begins if there is none.
    pub fn line(&mut self, (db, key): &Key) -> &mut L {
        let lines = self.by_db.entry(*db).or_default();
        if in_cluster() && !lines.contains_key(key) {
            let keys = self.by_slot.entry(slot_of(key)).or_default();
            keys.insert((*db, key.clone()));
        }
        lines.entry(key.clone()).or_default()
    }
}
