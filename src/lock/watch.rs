//! The holds that are renewed for connections: an index over the holds with a
//! [`super::holds::Watch`], from which it is derived and can be rebuilt.

use super::state::LockKind;
use crate::waiting::Key;
use std::collections::{BTreeMap, BTreeSet};

/// A watched hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The connection's client id.
    pub client: u64,
    /// Where the hold is.
    pub key: Key,
    /// Lock or semaphore.
    pub kind: LockKind,
    /// Whose it is.
    pub owner: Box<[u8]>,
    /// When it is renewed next (Unix ms); `u64::MAX`: not at all.
    pub next: u64,
}

/// All watched holds, by numbers of their own: a fence can be in two places, after a `COPY`.
#[derive(Debug, Default)]
pub struct Watches {
    last: u64,
    /// Their keys have labels in place of databases, so that databases change places in one step.
    by_number: BTreeMap<u64, Watched>,
    by_client: BTreeSet<(u64, u64)>,
    by_key: BTreeSet<(Key, u64)>,
    labels: DbLabels,
}

/// The labels of databases that have changed places: those of others are their numbers.
#[derive(Debug, Default)]
pub(super) struct DbLabels {
    of_db: BTreeMap<i32, i32>,
    to_db: BTreeMap<i32, i32>,
}

impl DbLabels {
    pub(super) fn of(&self, db: i32) -> i32 {
        self.of_db.get(&db).copied().unwrap_or(db)
    }

    pub(super) fn db(&self, label: i32) -> i32 {
        self.to_db.get(&label).copied().unwrap_or(label)
    }

    pub(super) fn swap(&mut self, first: i32, second: i32) {
        let labels = (self.of(first), self.of(second));
        for (db, label) in [(first, labels.1), (second, labels.0)] {
            self.of_db.insert(db, label);
            self.to_db.insert(label, db);
        }
    }
}

/// Watched holds that are to be watched no more, one after the other.
#[derive(Debug)]
pub struct Sweep {
    of: Swept,
    /// Those with larger numbers came later, and stay.
    last: u64,
}

#[derive(Debug)]
enum Swept {
    Key(Key),
    /// Those after a number, of databases with this label, or of all.
    Db(Option<i32>, u64),
}

impl Watches {
    /// How many holds are watched.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether no hold is watched.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether any hold is watched for this connection.
    pub fn follows(&self, client: u64) -> bool {
        self.first_of(client).is_some()
    }

    /// The first hold of a connection.
    pub fn first_of(&self, client: u64) -> Option<u64> {
        let range = (client, 0)..=(client, u64::MAX);
        self.by_client
            .range(range)
            .next()
            .map(|(_, number)| *number)
    }

    /// A watched hold.
    pub fn get(&self, number: u64) -> Option<Watched> {
        let mut watched = self.by_number.get(&number)?.clone();
        watched.key.0 = self.labels.db(watched.key.0);
        Some(watched)
    }

    /// A number that no hold was watched under before.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Watches a hold, or changes how.
    pub fn insert(&mut self, number: u64, mut watched: Watched) {
        self.remove(number);
        watched.key.0 = self.labels.of(watched.key.0);
        self.by_client.insert((watched.client, number));
        self.by_key.insert((watched.key.clone(), number));
        self.by_number.insert(number, watched);
    }

    /// Watches a hold no longer. Returns when it was to be renewed next.
    pub fn remove(&mut self, number: u64) -> Option<u64> {
        let watched = self.by_number.remove(&number)?;
        self.by_client.remove(&(watched.client, number));
        self.by_key.remove(&(watched.key, number));
        Some(watched.next)
    }

    /// To watch the holds of a key no more.
    pub fn sweep_key(&self, db: i32, key: &[u8]) -> Sweep {
        Sweep {
            of: Swept::Key((self.labels.of(db), key.into())),
            last: self.last,
        }
    }

    /// To watch the holds in a database no more; `None`: in all of them.
    pub fn sweep_db(&self, db: Option<i32>) -> Sweep {
        Sweep {
            of: Swept::Db(db.map(|db| self.labels.of(db)), 0),
            last: self.last,
        }
    }

    /// The next hold to be watched no more; the caller removes it. `None`: there is no other. `Some(None)`: the next one stays.
    pub fn next_swept(&self, sweep: &mut Sweep) -> Option<Option<u64>> {
        match &mut sweep.of {
            Swept::Key(key) => {
                let range = (key.clone(), 0)..=(key.clone(), sweep.last);
                self.by_key
                    .range(range)
                    .next()
                    .map(|(_, number)| Some(*number))
            }
            Swept::Db(label, at) => {
                let mut range = self.by_number.range(*at + 1..=sweep.last.max(*at + 1));
                let (number, watched) =
                    range.next().filter(|(number, _)| **number <= sweep.last)?;
                *at = *number;
                let goes = label.is_none_or(|label| watched.key.0 == label);
                Some(goes.then_some(*number))
            }
        }
    }

    /// Two databases changed places.
    pub fn swap(&mut self, first: i32, second: i32) {
        self.labels.swap(first, second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(db: i32, key: &str) -> Watched {
        Watched {
            client: 1,
            key: (db, key.as_bytes().into()),
            kind: LockKind::Lock,
            owner: (*b"me").into(),
            next: 5,
        }
    }

    fn swept(watches: &mut Watches, mut sweep: Sweep) -> Vec<u64> {
        let mut gone = Vec::new();
        while let Some(number) = watches.next_swept(&mut sweep) {
            if let Some(number) = number {
                watches.remove(number);
                gone.push(number);
            }
        }
        gone
    }

    #[test]
    fn a_sweep_takes_what_was_there_when_it_began_wherever_databases_have_gone() {
        let mut watches = Watches::default();
        for (db, key) in [(0, "a"), (1, "b"), (0, "c"), (2, "d")] {
            let number = watches.next_number();
            watches.insert(number, watched(db, key));
        }
        watches.swap(0, 1);
        watches.swap(1, 2);
        let places: Vec<i32> = (1..=4)
            .filter_map(|number| Some(watches.get(number)?.key.0))
            .collect();
        assert_eq!(places, [2, 0, 2, 1]);
        let sweep = watches.sweep_db(Some(2));
        let late = watches.next_number();
        watches.insert(late, watched(2, "e"));
        assert_eq!(swept(&mut watches, sweep), [1, 3]);
        let sweep = watches.sweep_key(2, b"e");
        assert_eq!(swept(&mut watches, sweep), [late]);
        assert!(watches.follows(1) && !watches.follows(2));
        let sweep = watches.sweep_db(None);
        assert_eq!(swept(&mut watches, sweep), [2, 4]);
        assert!(watches.is_empty() && !watches.follows(1));
    }
}
