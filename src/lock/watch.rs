//! Which holds are renewed for which connections: an index over the holds with a
//! [`super::holds::Watch`], from which it is derived and can be rebuilt.

use super::native::Kind;
use super::queue::Key;
use std::collections::HashMap;

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
    /// When it is renewed next (Unix ms).
    pub next: u64,
}

/// All watched holds, by their fences.
#[derive(Debug, Default)]
pub struct Watches {
    by_fence: HashMap<u64, Watched>,
    by_client: HashMap<u64, Vec<u64>>,
    by_key: HashMap<Key, Vec<u64>>,
}

impl Watches {
    /// How many holds are watched.
    pub fn len(&self) -> usize {
        self.by_fence.len()
    }

    /// Is none watched?
    pub fn is_empty(&self) -> bool {
        self.by_fence.is_empty()
    }

    /// Has this connection any?
    pub fn follows(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    /// A watched hold.
    pub fn get(&self, fence: u64) -> Option<&Watched> {
        self.by_fence.get(&fence)
    }

    /// Watches a hold, or changes how. Returns what there was before.
    pub fn insert(&mut self, fence: u64, watched: Watched) -> Option<Watched> {
        let before = self.remove(fence);
        self.by_client
            .entry(watched.client)
            .or_default()
            .push(fence);
        self.by_key
            .entry(watched.key.clone())
            .or_default()
            .push(fence);
        self.by_fence.insert(fence, watched);
        before
    }

    /// Watches a hold no longer.
    pub fn remove(&mut self, fence: u64) -> Option<Watched> {
        let watched = self.by_fence.remove(&fence)?;
        take_out(&mut self.by_client, &watched.client, fence);
        take_out(&mut self.by_key, &watched.key, fence);
        Some(watched)
    }

    /// The holds of a connection.
    pub fn of_client(&self, client: u64) -> Vec<u64> {
        self.by_client.get(&client).cloned().unwrap_or_default()
    }

    /// The holds of a key.
    pub fn of_key(&self, key: &Key) -> Vec<u64> {
        self.by_key.get(key).cloned().unwrap_or_default()
    }

    /// The holds in a database; `None`: in all of them.
    pub fn of_db(&self, db: Option<i32>) -> Vec<u64> {
        let within = |watched: &Watched| db.is_none_or(|db| watched.key.0 == db);
        let all = self.by_fence.iter();
        all.filter(|(_, watched)| within(watched))
            .map(|(fence, _)| *fence)
            .collect()
    }

    /// Two databases changed places.
    pub fn swap(&mut self, first: i32, second: i32) {
        let moved = [self.of_db(Some(first)), self.of_db(Some(second))];
        for (fences, db) in moved.iter().zip([second, first]) {
            for fence in fences {
                if let Some(mut watched) = self.remove(*fence) {
                    watched.key.0 = db;
                    self.insert(*fence, watched);
                }
            }
        }
    }
}

fn take_out<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<u64>>, key: &K, fence: u64) {
    if let Some(fences) = index.get_mut(key) {
        fences.retain(|other| *other != fence);
        if fences.is_empty() {
            index.remove(key);
        }
    }
}
