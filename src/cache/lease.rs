//! The leases: at most one client at a time has the right to rebuild a key. The table is bounded, in memory only, and beside
//! the keyspace. If the table loses a lease, the server refuses its holder's store, and nothing else happens.
//!
//! The table has 128 bits of XXH3 with a secret seed for each key, so that a lease of a long key takes no more memory. Two
//! keys with the same bits would share a lease. The probability that a hundred thousand keys contain such a pair is 10^-29.

use crate::server::services::slots::contains;
use crate::waiting::SMALL;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A lease, or the backoff after a rebuild that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The token of its holder. Each lease has another one.
    pub token: u64,
    /// When it was granted (Unix us).
    pub since: u64,
    /// Until when no other client is granted one (Unix ms).
    pub until: u64,
    /// Whether its holder has failed, and this is the backoff.
    pub is_backoff: bool,
    /// The hash slot of its key, in a cluster.
    pub slot: u16,
}

/// The status of a key's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStatus {
    /// No client has a lease, and there is no backoff.
    Free,
    /// A client has the lease for this time in milliseconds.
    Leased(u64),
    /// The loader failed. The backoff lasts for this time in milliseconds.
    BackingOff(u64),
}

/// A request for a key's lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest {
    /// The length of the lease in milliseconds.
    pub length_ms: u64,
    /// The present time (Unix us).
    pub now_us: u64,
    /// The hash slot of the key, in a cluster.
    pub slot: u16,
    /// The highest number of leases.
    pub max_leases: usize,
}

/// The reply to a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOffer {
    /// The client is granted the lease with this token.
    Granted(u64),
    /// Another client has the lease for this time in milliseconds.
    Leased(u64),
    /// The loader failed. The backoff lasts for this time in milliseconds.
    BackingOff(u64),
    /// There are too many leases of other keys.
    TableFull,
}

/// The hash of a key.
type KeyHash = u128;

/// The leases of a server.
///
/// If many leases are cleared at once, their entries in the order of ends stay for a while: to find 100 000 entries there
/// takes 50 ms. Each grant and [`Leases::sweep`] remove some of these stale entries.
#[derive(Debug, Default)]
pub struct Leases {
    seed: u64,
    last_token: u64,
    by_key: BTreeMap<i32, HashMap<KeyHash, Lease>>,
    by_end: [ByEnd; 2],
}

/// The leases, or the backoffs, in the order of their ends.
#[derive(Debug, Default)]
struct ByEnd {
    /// The database and the key at each end and token. An entry is stale if the key's lease is another one or none.
    entries: BTreeMap<End, (i32, KeyHash)>,
    /// The number of entries that are not stale.
    live: usize,
    /// The search for stale entries continues behind this one.
    swept: End,
}

/// The end of a lease (Unix ms) and its token.
type End = (u64, u64);

/// The number of entries that each grant checks while there are stale ones.
const SWEPT_BY_GRANT: usize = 8;

impl ByEnd {
    fn insert(&mut self, lease: &Lease, key: (i32, KeyHash)) {
        self.entries.insert((lease.until, lease.token), key);
        self.live += 1;
    }

    fn remove(&mut self, lease: &Lease) {
        self.entries.remove(&(lease.until, lease.token));
        self.live -= 1;
    }

    fn has_stale(&self) -> bool {
        self.entries.len() > self.live
    }
}

impl Leases {
    /// An empty table. `seed`: the seed of the hashes of keys. `last_token`: the number from which tokens are counted.
    pub fn new(seed: u64, last_token: u64) -> Self {
        Self {
            seed,
            last_token,
            ..Self::default()
        }
    }

    /// The number of leases and backoffs, ended ones included.
    pub fn len(&self) -> usize {
        self.by_end.iter().map(|by_end| by_end.live).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        xxh3_128_with_seed(key, self.seed)
    }

    /// The number of leases that have not ended at this time (Unix ms). Takes time in proportion to that number.
    pub fn count_active(&self, now: u64) -> usize {
        let leases = self.by_key.values().flat_map(HashMap::values);
        leases
            .filter(|lease| !lease.is_backoff && lease.until > now)
            .count()
    }

    /// A key's lease or backoff, even if it has ended.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Lease> {
        let leases = self.by_key.get(&db).filter(|leases| !leases.is_empty())?;
        leases.get(&self.hash(key))
    }

    /// The status of the key's lease at this time (Unix ms).
    pub fn status(&self, db: i32, key: &[u8], now: u64) -> LeaseStatus {
        match self.get(db, key) {
            Some(lease) if now < lease.until => {
                let left = lease.until - now;
                if lease.is_backoff {
                    LeaseStatus::BackingOff(left)
                } else {
                    LeaseStatus::Leased(left)
                }
            }
            _ => LeaseStatus::Free,
        }
    }

    /// Whether this is the token of the key's current lease. A lease that has ended is current until another client is granted
    /// one.
    pub fn is_current(&self, db: i32, key: &[u8], token: u64) -> bool {
        self.get(db, key)
            .is_some_and(|lease| !lease.is_backoff && lease.token == token)
    }

    /// Grants a key's lease if it is free.
    pub fn offer(&mut self, db: i32, key: &[u8], request: &LeaseRequest) -> LeaseOffer {
        let now = request.now_us / 1000;
        match self.status(db, key, now) {
            LeaseStatus::Leased(left) => return LeaseOffer::Leased(left),
            LeaseStatus::BackingOff(left) => return LeaseOffer::BackingOff(left),
            LeaseStatus::Free => {}
        }
        let lease = Lease {
            token: self.next_token(),
            since: request.now_us,
            until: now + request.length_ms,
            is_backoff: false,
            slot: request.slot,
        };
        match self.grant(db, key, lease, now, request.max_leases) {
            true => LeaseOffer::Granted(lease.token),
            false => LeaseOffer::TableFull,
        }
    }

    /// Tokens are counted from a secret number, so that those of another server, or of this one before a restart, differ.
    /// All have the same length, and Lua and JavaScript read them exactly.
    fn next_token(&mut self) -> u64 {
        const FIRST: u64 = 1 << 52;
        self.last_token = self.last_token.wrapping_add(1);
        FIRST + self.last_token % FIRST
    }

    /// Adds a key's lease or backoff, in place of an ended one. Returns false if there are `most` others, none of which has
    /// ended (Unix ms).
    pub fn grant(&mut self, db: i32, key: &[u8], lease: Lease, now: u64, most: usize) -> bool {
        let is_same = |own: &&Lease| own.is_backoff == lease.is_backoff;
        self.sweep(SWEPT_BY_GRANT);
        while self.by_end(lease.is_backoff).live
            - usize::from(self.get(db, key).filter(is_same).is_some())
            >= most
        {
            if !self.forget_first(lease.is_backoff, now) {
                return false;
            }
        }
        self.remove(db, key);
        self.insert(db, self.hash(key), lease);
        true
    }

    /// Forgets the lease, or the backoff, that ended first, if one has ended.
    fn forget_first(&mut self, is_backoff: bool, now: u64) -> bool {
        loop {
            let first = self.by_end(is_backoff).entries.first_key_value();
            let Some((end, (db, key))) = first.map(|(end, key)| (*end, *key)) else {
                return false;
            };
            if self.is_live(end, db, key, is_backoff) {
                return end.0 <= now && self.take_out(db, key).is_some();
            }
            self.by_end_mut(is_backoff).entries.pop_first();
        }
    }

    fn by_end(&self, is_backoff: bool) -> &ByEnd {
        &self.by_end[usize::from(is_backoff)]
    }

    fn by_end_mut(&mut self, is_backoff: bool) -> &mut ByEnd {
        &mut self.by_end[usize::from(is_backoff)]
    }

    /// Whether an entry in the order of ends is that of the key's lease.
    fn is_live(&self, end: End, db: i32, key: KeyHash, is_backoff: bool) -> bool {
        let lease = self.by_key.get(&db).and_then(|leases| leases.get(&key));
        lease.is_some_and(|lease| {
            ((lease.until, lease.token), lease.is_backoff) == (end, is_backoff)
        })
    }

    /// Checks `most` entries in the order of ends if there are stale ones, and removes the stale ones among them. Returns
    /// whether stale entries remain.
    pub fn sweep(&mut self, most: usize) -> bool {
        for is_backoff in [false, true] {
            let by_end = self.by_end(is_backoff);
            if !by_end.has_stale() {
                continue;
            }
            let behind = (Bound::Excluded(by_end.swept), Bound::Unbounded);
            let entries = by_end.entries.range(behind).take(most);
            let seen: Vec<_> = entries.map(|(end, key)| (*end, *key)).collect();
            // Behind the last entry, the search begins anew.
            let swept = seen.last().map_or((0, 0), |(end, _)| *end);
            self.by_end_mut(is_backoff).swept = swept;
            for (end, (db, key)) in seen {
                if !self.is_live(end, db, key, is_backoff) {
                    self.by_end_mut(is_backoff).entries.remove(&end);
                }
            }
        }
        self.by_end.iter().any(ByEnd::has_stale)
    }

    fn insert(&mut self, db: i32, key: KeyHash, lease: Lease) {
        self.by_end_mut(lease.is_backoff).insert(&lease, (db, key));
        self.by_key.entry(db).or_default().insert(key, lease);
    }

    fn take_out(&mut self, db: i32, key: KeyHash) -> Option<Lease> {
        let leases = self.by_key.get_mut(&db)?;
        let lease = leases.remove(&key)?;
        if leases.is_empty() {
            leases.shrink_to(SMALL); // frees the memory of many leases that ended
        }
        self.by_end_mut(lease.is_backoff).remove(&lease);
        Some(lease)
    }

    /// Removes a key's lease or backoff.
    pub fn remove(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        self.get(db, key)?;
        self.take_out(db, self.hash(key))
    }

    /// Revokes a key's lease because the key has changed. A backoff goes on: the change says nothing about the loader.
    pub fn revoke(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        match self.get(db, key) {
            Some(lease) if !lease.is_backoff => self.remove(db, key),
            _ => None,
        }
    }

    /// Revokes the leases of a key in all databases. Returns the databases.
    pub fn revoke_in_all_databases(&mut self, key: &[u8]) -> Vec<i32> {
        if self.is_empty() {
            return Vec::new();
        }
        let hash = self.hash(key);
        let holds = |leases: &HashMap<KeyHash, Lease>| {
            leases.get(&hash).is_some_and(|lease| !lease.is_backoff)
        };
        let dbs = self.by_key.iter().filter(|(_, leases)| holds(leases));
        let dbs: Vec<i32> = dbs.map(|(db, _)| *db).collect();
        for db in &dbs {
            self.take_out(*db, hash);
        }
        dbs
    }

    /// Revokes the leases of all keys, because any of them may have changed. Backoffs go on.
    pub fn revoke_all(&mut self) {
        for leases in self.by_key.values_mut() {
            leases.retain(|_, lease| lease.is_backoff);
        }
        self.by_end_mut(false).live = 0; // all entries are stale now
    }

    /// Replaces a key's lease by a backoff until this time (Unix ms), unless there are `most` others that have not ended.
    pub fn fail(&mut self, db: i32, key: &[u8], until: u64, now: u64, most: usize) {
        if let Some(lease) = self.remove(db, key) {
            let backoff = Lease {
                until,
                is_backoff: true,
                ..lease
            };
            self.grant(db, key, backoff, now, most);
        }
    }

    /// Forgets all leases and backoffs of a hash slot, in all databases: Valkey 9 has several in a cluster.
    pub fn clear_slot(&mut self, slot: u16) {
        self.clear_slots(&[(slot, slot)]);
    }

    /// Forgets all leases and backoffs of these ranges of hash slots.
    pub fn clear_slots(&mut self, ranges: &[(u16, u16)]) {
        for leases in self.by_key.values_mut() {
            for (_, lease) in leases.extract_if(|_, lease| contains(ranges, lease.slot)) {
                self.by_end[usize::from(lease.is_backoff)].live -= 1; // the entry is stale now
            }
        }
    }

    /// Forgets all leases and backoffs of a database; `None`: of all databases.
    pub fn clear(&mut self, db: Option<i32>) {
        let cleared = match db {
            None => std::mem::take(&mut self.by_key),
            Some(db) => self.by_key.remove_entry(&db).into_iter().collect(),
        };
        let leases = || cleared.values().flat_map(HashMap::values);
        let backoffs = match self.by_end(true).live {
            0 => 0,
            _ => leases().filter(|lease| lease.is_backoff).count(),
        };
        self.by_end_mut(true).live -= backoffs;
        self.by_end_mut(false).live -= cleared.values().map(HashMap::len).sum::<usize>() - backoffs;
    }
}
