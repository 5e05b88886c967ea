//! The leases: at most one client at a time has the right to rebuild a key. The table is bounded, in memory only, and beside
//! the keyspace. If the table loses a lease, the server refuses its holder's store, and nothing else happens.
//!
//! The table has 128 bits of XXH3 with a secret seed for each key, so that a lease of a long key takes no more memory. Two
//! keys with the same bits would share a lease. The probability that a hundred thousand keys contain such a pair is 10^-29.

use super::breaker::{BreakerRequest, BreakerTerms};
use super::sieve::CountedSection;
use crate::linear_hash::{HashEntry, LinearHash};
use crate::server::services::slots::{is_in_cluster, slot_of};
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
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
    /// The breaker that counts how its load ends.
    pub breaker: Option<BreakerTerms>,
    /// Whether the breaker has counted that its time ran out.
    pub has_timed_out: bool,
}

impl Lease {
    /// Marks a lease whose time has run out. Returns it the first time, if it has a breaker.
    fn time_out(&mut self) -> Option<Self> {
        if self.breaker.is_none() || self.has_timed_out {
            return None;
        }
        self.has_timed_out = true;
        Some(*self)
    }
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
pub struct LeaseRequest<'a> {
    /// The length of the lease in milliseconds.
    pub length_ms: u64,
    /// The present time (Unix us).
    pub now_us: u64,
    /// The highest number of leases.
    pub max_leases: usize,
    /// The breaker that counts how the load ends.
    pub breaker: Option<BreakerRequest<'a>>,
    /// The highest number of breakers.
    pub max_breakers: usize,
}

/// The reply to a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOffer {
    /// The client is granted the lease with this token.
    Granted(u64),
    /// Another client has the lease for this time in milliseconds.
    Leased(u64),
    /// The loader failed. The backoff lasts for this time in milliseconds, or the breaker grants no lease for this time.
    BackingOff(u64),
    /// There are too many leases of other keys.
    TableFull,
}

/// The hash of a key.
type KeyHash = [u8; 16];

/// The leases of a server.
///
/// If many leases are cleared at once, their entries in the order of ends stay for a while: to find 100 000 entries there
/// takes 50 ms. Each grant and [`Leases::sweep`] remove some of these stale entries.
#[derive(Debug)]
pub struct Leases {
    seed: u64,
    last_token: u64,
    slot_of: fn(&[u8]) -> u16,
    leases: Table,
    /// The backoffs. A key is in at most one of the two tables.
    backoffs: Table,
    /// The leases that ended up to this one have been checked by [`Leases::next_timeout`].
    timed_out: End,
}

/// A key of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseKey(CountedSection, KeyHash);

/// The lease of a key.
#[derive(Debug)]
struct KeyLease {
    key: KeyHash,
    lease: Lease,
}

impl HashEntry for KeyLease {
    fn key(&self) -> &[u8] {
        &self.key
    }
    fn heap(&self) -> usize {
        0
    }
}

/// The leases, or the backoffs.
#[derive(Debug, Default)]
struct Table {
    by_key: BTreeMap<CountedSection, LinearHash<KeyLease>>,
    /// The key at each end and token. An entry is stale if the key's lease is another one or none.
    by_end: BTreeMap<End, (CountedSection, KeyHash)>,
    /// The number of leases.
    live: usize,
    /// The search for stale entries continues behind this one.
    swept: End,
}

/// The databases that have sections. Reads one section of each database.
fn databases<T>(sections: &BTreeMap<CountedSection, T>) -> impl Iterator<Item = i32> {
    let from = |first: Bound<CountedSection>| {
        let next = sections.range((first, Bound::Unbounded)).next();
        next.map(|((db, _), _)| *db)
    };
    let behind = move |db: &i32| from(Bound::Excluded((*db, u16::MAX)));
    std::iter::successors(from(Bound::Unbounded), behind)
}

/// The end of a lease (Unix ms) and its token.
type End = (u64, u64);

/// The number of entries that each grant checks while there are stale ones.
const SWEPT_BY_GRANT: usize = 8;

impl Table {
    fn get(&self, section: CountedSection, key: KeyHash) -> Option<&Lease> {
        let found = self.by_key.get(&section)?.get(&key)?;
        Some(&found.lease)
    }

    fn get_mut(&mut self, section: CountedSection, key: KeyHash) -> Option<&mut Lease> {
        let leases = self.by_key.get_mut(&section)?;
        let found = leases.at_mut(leases.find(&key)?)?;
        Some(&mut found.lease)
    }

    /// Adds the lease of a key that has none.
    fn insert(&mut self, section: CountedSection, key: KeyHash, lease: Lease) {
        self.by_end
            .insert((lease.until, lease.token), (section, key));
        let leases = self.by_key.entry(section).or_default();
        leases.insert(KeyLease { key, lease });
        self.live += 1;
    }

    fn remove(&mut self, section: CountedSection, key: KeyHash) -> Option<Lease> {
        let leases = self.by_key.get_mut(&section)?;
        let KeyLease { lease, .. } = leases.remove(leases.find(&key)?)?;
        // The sections of a cluster are many.
        if leases.is_empty() && section.1 != 0 {
            self.by_key.remove(&section);
        }
        self.by_end.remove(&(lease.until, lease.token));
        self.live -= 1;
        Some(lease)
    }

    fn has_stale(&self) -> bool {
        self.by_end.len() > self.live
    }

    /// Whether an entry in the order of ends is that of the key's lease.
    fn is_live(&self, end: End, section: CountedSection, key: KeyHash) -> bool {
        let lease = self.get(section, key);
        lease.is_some_and(|lease| (lease.until, lease.token) == end)
    }

    /// Forgets the lease that ended first, if one has ended.
    fn forget_first(&mut self, now: u64) -> bool {
        while let Some((end, (section, key))) = self.by_end.first_key_value() {
            let (end, section, key) = (*end, *section, *key);
            if self.is_live(end, section, key) {
                return end.0 <= now && self.remove(section, key).is_some();
            }
            self.by_end.pop_first();
        }
        false
    }

    fn sweep(&mut self, most: usize) {
        if !self.has_stale() {
            return;
        }
        let behind = (Bound::Excluded(self.swept), Bound::Unbounded);
        let entries = self.by_end.range(behind).take(most);
        let seen: Vec<_> = entries.map(|(end, key)| (*end, *key)).collect();
        // Behind the last entry, the search begins anew.
        self.swept = seen.last().map_or((0, 0), |(end, _)| *end);
        for (end, (section, key)) in seen {
            if !self.is_live(end, section, key) {
                self.by_end.remove(&end);
            }
        }
    }

    /// Forgets the leases of these sections: their entries in the order of ends are stale now.
    fn clear(&mut self, sections: impl RangeBounds<CountedSection>) {
        let cleared: Vec<CountedSection> = self.by_key.range(sections).map(|(at, _)| *at).collect();
        for section in cleared {
            let leases = self.by_key.remove(&section);
            self.live -= leases.map_or(0, |leases| leases.len());
        }
    }

    fn clear_all(&mut self) {
        self.by_key.clear();
        self.live = 0;
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Leases {
    /// An empty table. `seed`: the seed of the hashes of keys. `last_token`: the number from which tokens are counted.
    pub fn new(seed: u64, last_token: u64) -> Self {
        Self::with_slots(seed, last_token, |key| match is_in_cluster() {
            true => slot_of(key),
            false => 0,
        })
    }

    /// The same with a function that returns the hash slot of a key.
    pub fn with_slots(seed: u64, last_token: u64, slot_of: fn(&[u8]) -> u16) -> Self {
        Self {
            seed,
            last_token,
            slot_of,
            leases: Table::default(),
            backoffs: Table::default(),
            timed_out: (0, 0),
        }
    }

    /// The number of leases and backoffs, ended ones included.
    pub fn len(&self) -> usize {
        self.leases.live + self.backoffs.live
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        xxh3_128_with_seed(key, self.seed).to_ne_bytes()
    }

    fn section(&self, db: i32, key: &[u8]) -> CountedSection {
        (db, (self.slot_of)(key))
    }

    /// The number of leases that have not ended at this time (Unix ms). Takes time in proportion to the number of leases in the table,
    /// ended ones included.
    pub fn count_active(&self, now: u64) -> usize {
        let leases = self.leases.by_key.values();
        let leases = leases.flat_map(LinearHash::iter);
        leases.filter(|found| found.lease.until > now).count()
    }

    /// A key's lease or backoff, even if it has ended.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Lease> {
        if self.is_empty() {
            return None;
        }
        let (section, hash) = (self.section(db, key), self.hash(key));
        let lease = self.leases.get(section, hash);
        lease.or_else(|| self.backoffs.get(section, hash))
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

    /// The key in the table.
    pub fn locate(&self, db: i32, key: &[u8]) -> LeaseKey {
        LeaseKey(self.section(db, key), self.hash(key))
    }

    /// The same as [`Leases::is_current`] for a key of the table.
    pub fn is_current_at(&self, LeaseKey(section, hash): LeaseKey, token: u64) -> bool {
        let lease = self.leases.get(section, hash);
        lease.is_some_and(|lease| lease.token == token)
    }

    /// Sets or removes the breaker of a key's lease.
    pub fn set_breaker(&mut self, LeaseKey(section, hash): LeaseKey, terms: Option<BreakerTerms>) {
        if let Some(lease) = self.leases.get_mut(section, hash) {
            lease.breaker = terms;
        }
    }

    /// The lease of a key, if it has a breaker, its time has run out (Unix ms), and it was not returned before.
    pub fn time_out(&mut self, db: i32, key: &[u8], now: u64) -> Option<Lease> {
        if self.leases.live == 0 {
            return None;
        }
        let LeaseKey(section, hash) = self.locate(db, key);
        let lease = self.leases.get_mut(section, hash)?;
        (lease.until <= now).then(|| lease.time_out()).flatten()
    }

    /// [`next_timeout`](Self::next_timeout) returns none of the leases whose time has run out (Unix ms).
    pub fn skip_timeouts(&mut self, now: u64) {
        self.timed_out = self.timed_out.max((now, u64::MAX));
    }

    /// The next lease with a breaker whose time has run out (Unix ms). Each lease is returned once. `steps`: how many leases are
    /// checked.
    pub fn next_timeout(&mut self, now: u64, steps: &mut usize) -> Option<Lease> {
        while *steps > 0 {
            *steps -= 1;
            let behind = (Bound::Excluded(self.timed_out), Bound::Unbounded);
            let next = self.leases.by_end.range(behind).next();
            // No range up to `now`, which can be before the last one: a command's time is that at which it began.
            let (end, (section, hash)) = next.filter(|((until, _), _)| *until <= now)?;
            let (end, section, hash) = (*end, *section, *hash);
            self.timed_out = end;
            if let Some(lease) = self.leases.get_mut(section, hash)
                && (lease.until, lease.token) == end
                && let Some(lease) = lease.time_out()
            {
                return Some(lease);
            }
        }
        None
    }

    /// Grants a key's lease if it is free.
    pub fn offer(&mut self, db: i32, key: &[u8], request: &LeaseRequest<'_>) -> LeaseOffer {
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
            breaker: None,
            has_timed_out: false,
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
        loop {
            let own = usize::from(self.get(db, key).filter(is_same).is_some());
            let table = self.table_of(&lease);
            if table.live - own < most {
                break;
            }
            if !table.forget_first(now) {
                return false;
            }
        }
        self.remove(db, key);
        // After a step back of the clock, a lease can end before others that have ended.
        self.timed_out = self.timed_out.min((lease.until, 0));
        let (section, hash) = (self.section(db, key), self.hash(key));
        self.table_of(&lease).insert(section, hash, lease);
        true
    }

    /// The table for a lease or a backoff.
    fn table_of(&mut self, lease: &Lease) -> &mut Table {
        if lease.is_backoff {
            &mut self.backoffs
        } else {
            &mut self.leases
        }
    }

    fn tables_mut(&mut self) -> [&mut Table; 2] {
        [&mut self.leases, &mut self.backoffs]
    }

    /// Checks `most` entries in the order of ends if there are stale ones, and removes the stale ones among them. Returns
    /// whether stale entries remain.
    pub fn sweep(&mut self, most: usize) -> bool {
        self.leases.sweep(most);
        self.backoffs.sweep(most);
        self.leases.has_stale() || self.backoffs.has_stale()
    }

    /// Removes a key's lease or backoff.
    pub fn remove(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        if self.is_empty() {
            return None;
        }
        let (section, hash) = (self.section(db, key), self.hash(key));
        let lease = self.leases.remove(section, hash);
        lease.or_else(|| self.backoffs.remove(section, hash))
    }

    /// Revokes a key's lease because the key has changed. A backoff stays: the change says nothing about the loader.
    pub fn revoke(&mut self, db: i32, key: &[u8]) -> Option<Lease> {
        match self.get(db, key) {
            Some(lease) if !lease.is_backoff => self.remove(db, key),
            _ => None,
        }
    }

    /// The databases in which a key has a lease.
    pub fn databases_of(&self, key: &[u8]) -> Vec<i32> {
        if self.leases.live == 0 {
            return Vec::new();
        }
        let (hash, slot) = (self.hash(key), (self.slot_of)(key));
        let sections = &self.leases.by_key;
        let holds = |db: &i32| {
            let leases = sections.get(&(*db, slot));
            leases.is_some_and(|leases| leases.find(&hash).is_some())
        };
        databases(sections).filter(holds).collect()
    }

    /// Revokes the leases of all keys, because any of them may have changed. Backoffs stay.
    pub fn revoke_all(&mut self) {
        self.leases.clear_all();
    }

    /// Replaces a key's lease by a backoff until this time (Unix ms), unless there are `most` others that have not ended.
    pub fn fail(&mut self, db: i32, key: &[u8], until: u64, now: u64, most: usize) {
        if let Some(lease) = self.remove(db, key) {
            let backoff = Lease {
                until,
                is_backoff: true,
                breaker: None,
                ..lease
            };
            self.grant(db, key, backoff, now, most);
        }
    }

    /// Forgets all leases and backoffs of these ranges of hash slots, in all databases: Valkey 9 has several in a cluster. The time does not
    /// depend on the number of leases.
    pub fn clear_slots(&mut self, ranges: &[(u16, u16)]) {
        for table in self.tables_mut() {
            let dbs: Vec<i32> = databases(&table.by_key).collect();
            for db in dbs {
                for (first, last) in ranges {
                    table.clear((db, *first)..=(db, *last));
                }
            }
        }
    }

    /// Forgets all leases and backoffs of a database; `None`: of all databases.
    pub fn clear(&mut self, db: Option<i32>) {
        for table in self.tables_mut() {
            match db {
                None => table.clear_all(),
                Some(db) => table.clear((db, 0)..=(db, u16::MAX)),
            }
        }
    }
}
