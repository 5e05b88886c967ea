//! Who may rebuild what: at most one lease for each key is out. The table is bounded, in memory only, and beside the
//! keyspace: what it loses, late writes lose, and nothing else.
//!
//! A key is known by 128 bits of XXH3 with a secret seed, so that a lease takes as much memory for a long one as for a
//! short one. Two keys of the same bits would share a lease; of a hundred thousand there are such with a probability of
//! 10^-29.

use crate::server::services::slots::contains;
use crate::waiting::SMALL;
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A lease that is out, or the pause after a rebuild that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// What its holder proves itself with; no other lease has the same.
    pub token: u64,
    /// When it was given (Unix us).
    pub since: u64,
    /// Until when nobody else gets one (Unix ms).
    pub until: u64,
    /// Has its holder failed? Then this is the time until the next try.
    pub failed: bool,
    /// The hash slot of its key, in a cluster.
    pub slot: u16,
}

/// May somebody rebuild a key?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    /// Yes.
    Free,
    /// Somebody does, for at most so many milliseconds.
    Out(u64),
    /// Not yet: the loader failed, and is not to be tried for so many milliseconds.
    Down(u64),
}

/// What a key is known by.
type Known = u128;

/// The leases of a server.
#[derive(Debug, Default)]
pub struct Leases {
    seed: u64,
    by_key: BTreeMap<i32, HashMap<Known, Lease>>,
    by_end: ByEnd,
}

/// The database and the key of each lease, in the order of their ends; those that are out, and pauses.
#[derive(Debug, Default)]
struct ByEnd([BTreeMap<(u64, u64), (i32, Known)>; 2]);

impl ByEnd {
    fn of(&self, failed: bool) -> &BTreeMap<(u64, u64), (i32, Known)> {
        &self.0[usize::from(failed)]
    }

    fn insert(&mut self, lease: &Lease, place: (i32, Known)) {
        self.0[usize::from(lease.failed)].insert((lease.until, lease.token), place);
    }

    fn remove(&mut self, lease: &Lease) {
        self.0[usize::from(lease.failed)].remove(&(lease.until, lease.token));
    }
}

impl Leases {
    /// An empty table, whose keys are known by this seed.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// How many there are, with those whose time is up.
    pub fn len(&self) -> usize {
        self.by_end.of(false).len() + self.by_end.of(true).len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn known(&self, key: &[u8]) -> Known {
        xxh3_128_with_seed(key, self.seed)
    }

    /// How many are out at this time (Unix ms). It goes through all of them.
    pub fn out(&self, now: u64) -> usize {
        self.by_end.of(false).range((now + 1, 0)..).count()
    }

    /// A key's lease or pause, also if its time is up.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Lease> {
        let leases = self.by_key.get(&db).filter(|leases| !leases.is_empty())?;
        leases.get(&self.known(key))
    }

    /// May somebody rebuild the key at this time (Unix ms)?
    pub fn look(&self, db: i32, key: &[u8], now: u64) -> Rebuild {
        match self.get(db, key) {
            Some(lease) if now < lease.until => {
                let left = lease.until - now;
                if lease.failed {
                    Rebuild::Down(left)
                } else {
                    Rebuild::Out(left)
                }
            }
            _ => Rebuild::Free,
        }
    }

    /// Is this the token of the key's current lease? Also of one whose time is up, as long as nobody else got one.
    pub fn is_current(&self, db: i32, key: &[u8], token: u64) -> bool {
        self.get(db, key)
            .is_some_and(|lease| !lease.failed && lease.token == token)
    }

    /// Gives a key's lease away, in place of one whose time is up. False if there are `most` others, none of which has
    /// come to its end (Unix ms).
    pub fn grant(&mut self, db: i32, key: &[u8], lease: Lease, now: u64, most: usize) -> bool {
        let is_same = |own: &&Lease| own.failed == lease.failed;
        while self.by_end.of(lease.failed).len()
            - usize::from(self.get(db, key).filter(is_same).is_some())
            >= most
        {
            if !self.forget_first(lease.failed, now) {
                return false;
            }
        }
        self.remove(db, key);
        self.insert(db, self.known(key), lease);
        true
    }

    /// Forgets the lease, or the pause, that ended first, if one has.
    fn forget_first(&mut self, failed: bool, now: u64) -> bool {
        let ended = self.by_end.of(failed).first_key_value();
        let ended = ended.filter(|((until, _), _)| *until <= now);
        match ended.map(|(_, place)| *place) {
            Some((db, key)) => self.take_out(db, key).is_some(),
            None => false,
        }
    }

    fn insert(&mut self, db: i32, key: Known, lease: Lease) {
        self.by_end.insert(&lease, (db, key));
        self.by_key.entry(db).or_default().insert(key, lease);
    }

    fn take_out(&mut self, db: i32, key: Known) -> Option<Lease> {
        let leases = self.by_key.get_mut(&db)?;
        let lease = leases.remove(&key)?;
        if leases.is_empty() {
            leases.shrink_to(SMALL); // the memory of a crowd that has gone
        }
        self.by_end.remove(&lease);
        Some(lease)
    }

    /// Takes a key's lease or pause away.
    pub fn remove(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        self.get(db, key)?;
        self.take_out(db, self.known(key))
    }

    /// Takes a key's lease away, because the key has changed. A pause goes on: the loader is no better for it.
    pub fn revoke(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        match self.get(db, key) {
            Some(lease) if !lease.failed => self.remove(db, key),
            _ => None,
        }
    }

    /// The same for a key of any database. Returns the databases.
    pub fn revoke_in_all_databases(&mut self, key: &[u8]) -> Vec<i32> {
        if self.is_empty() {
            return Vec::new();
        }
        let known = self.known(key);
        let holds =
            |leases: &HashMap<Known, Lease>| leases.get(&known).is_some_and(|lease| !lease.failed);
        let dbs = self.by_key.iter().filter(|(_, leases)| holds(leases));
        let dbs: Vec<i32> = dbs.map(|(db, _)| *db).collect();
        for db in &dbs {
            self.take_out(*db, known);
        }
        dbs
    }

    /// Takes all leases away, because any keys may have changed. Pauses go on.
    pub fn revoke_all(&mut self) {
        for leases in self.by_key.values_mut() {
            leases.retain(|_, lease| lease.failed);
        }
        self.by_end.0[usize::from(false)].clear();
    }

    /// Turns a key's lease into a pause until then (Unix ms), unless there are `most` others that go on.
    pub fn fail(&mut self, db: i32, key: &[u8], until: u64, now: u64, most: usize) {
        if let Some(lease) = self.remove(db, key) {
            let failed = true;
            let pause = Lease {
                until,
                failed,
                ..lease
            };
            self.grant(db, key, pause, now, most);
        }
    }

    /// Forgets all of a hash slot, in whatever database: Valkey 9 has several in a cluster.
    pub fn clear_slot(&mut self, slot: u16) {
        self.clear_slots(&[(slot, slot)]);
    }

    /// Forgets all of these ranges of hash slots.
    pub fn clear_slots(&mut self, ranges: &[(u16, u16)]) {
        for leases in self.by_key.values_mut() {
            for (_, lease) in leases.extract_if(|_, lease| contains(ranges, lease.slot)) {
                self.by_end.remove(&lease);
            }
        }
    }

    /// Forgets all of a database; `None`: of all of them.
    pub fn clear(&mut self, db: Option<i32>) {
        match db {
            None => *self = Self::seeded(self.seed),
            Some(db) => {
                let leases = self.by_key.remove(&db).into_iter().flatten();
                for (_, lease) in leases {
                    self.by_end.remove(&lease);
                }
            }
        }
    }
}
