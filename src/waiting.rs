//! What the lines of waiting clients have in common, whatever they wait for.

use std::collections::HashMap;

/// The database and the name of a key.
pub type Key = (i32, Box<[u8]>);

/// A waiter's number. Smaller ones are served first.
pub type Ticket = u64;

/// Tables of no more than so many entries keep their memory when a crowd has gone.
pub const SMALL: usize = 64;

/// The line of each key that somebody waits for.
#[derive(Debug)]
pub struct Lines<L> {
    by_db: HashMap<i32, HashMap<Box<[u8]>, L>>,
}

impl<L> Default for Lines<L> {
    fn default() -> Self {
        let by_db = HashMap::new();
        Self { by_db }
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
        if let Some(lines) = self.by_db.get_mut(&db) {
            lines.remove(key);
            if lines.is_empty() {
                self.by_db.remove(&db);
            }
        }
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
        lines.entry(key.clone()).or_default()
    }
}
