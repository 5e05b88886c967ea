//! Which holds are renewed for which connections: an index over the holds with a
//! [`super::holds::Watch`], from which it is derived and can be rebuilt.

use super::native::Kind;
use crate::waiting::Key;
use std::collections::{HashMap, HashSet};

/// A watched hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The connection's client id.
    pub client: u64,
    /// Where the hold is.
    pub key: Key,
    /// Lock or semaphore.
    pub kind: Kind,
    /// Whose it is.
    pub owner: Box<[u8]>,
    /// When it is renewed next (Unix ms); `u64::MAX`: not at all.
    pub next: u64,
}

/// All watched holds, by numbers of their own: a fence can be in two places, after a `COPY`.
#[derive(Debug, Default)]
pub struct Watches {
    last: u64,
    by_number: HashMap<u64, Watched>,
    by_client: HashMap<u64, HashSet<u64>>,
    by_key: HashMap<Key, HashSet<u64>>,
}

impl Watches {
    /// How many holds are watched.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Is none watched?
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Has this connection any?
    pub fn follows(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    /// A watched hold.
    pub fn get(&self, number: u64) -> Option<&Watched> {
        self.by_number.get(&number)
    }

    /// A number that no hold was watched under before.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Watches a hold, or changes how.
    pub fn insert(&mut self, number: u64, watched: Watched) {
        self.remove(number);
        self.by_client
            .entry(watched.client)
            .or_default()
            .insert(number);
        self.by_key
            .entry(watched.key.clone())
            .or_default()
            .insert(number);
        self.by_number.insert(number, watched);
    }

    /// Watches a hold no longer.
    pub fn remove(&mut self, number: u64) -> Option<Watched> {
        let watched = self.by_number.remove(&number)?;
        take_out(&mut self.by_client, &watched.client, number);
        take_out(&mut self.by_key, &watched.key, number);
        Some(watched)
    }

    /// The holds of a connection.
    pub fn of_client(&self, client: u64) -> Vec<u64> {
        self.by_client
            .get(&client)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// The holds of a key.
    pub fn of_key(&self, key: &Key) -> Vec<u64> {
        self.by_key
            .get(key)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// The holds in a database; `None`: in all of them.
    pub fn of_db(&self, db: Option<i32>) -> Vec<u64> {
        let within = |watched: &Watched| db.is_none_or(|db| watched.key.0 == db);
        let all = self.by_number.iter();
        all.filter(|(_, watched)| within(watched))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Two databases changed places.
    pub fn swap(&mut self, first: i32, second: i32) {
        let moved = [self.of_db(Some(first)), self.of_db(Some(second))];
        for (numbers, db) in moved.iter().zip([second, first]) {
            for number in numbers {
                if let Some(mut watched) = self.remove(*number) {
                    watched.key.0 = db;
                    self.insert(*number, watched);
                }
            }
        }
    }
}

fn take_out<K: std::hash::Hash + Eq>(index: &mut HashMap<K, HashSet<u64>>, key: &K, number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}
