//! Miniature simulations of the cache: Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017. A sample of the keys is cached in two small queues whose hands move in different ways. The one with
//! fewer misses says how the hand of the cache is to move, as in set dueling: Qureshi, Jaleel, Patt, Steely and Emer, "Adaptive
//! Insertion Policies for High Performance Caching", ISCA 2007.
//!
//! The hand of SIEVE passes old entries once in a long time. That suits keys that stay popular. If other keys become popular, a hand
//! that [returns early](super::Sieve::set_early_return) removes the former ones soon, about as LRU does.

use super::EARLY_TENTHS;

/// The most entries of a miniature: a read looks at all of them.
const MOST_ENTRIES: u64 = 512;

/// The least number of keys of which one is sampled.
const LEAST_SAMPLING: u64 = 8;

/// By how many misses one way can be ahead. After a change of the load, the other way needs so many misses less to be preferred.
const MOST_LEAD: i32 = 64;

/// Two miniatures of a cache.
#[derive(Debug, Default)]
pub struct Miniatures {
    /// Its hand moves as that of SIEVE.
    plain: Miniature,
    /// Its hand returns early.
    early: Miniature,
    /// The misses of `plain` less those of `early`, within [`MOST_LEAD`].
    lead: i32,
}

/// The hashes of sampled keys, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Miniature {
    hashes: Vec<u64>,
    used: Vec<bool>,
    /// The index that the hand comes to next.
    hand: usize,
    /// How many entries were added since the hand was at the oldest one.
    arrivals: u64,
}

impl Miniatures {
    /// A key was read whose name has this hash. `capacity`: how many entries the cache holds when it is full. Returns whether its hand
    /// is to return early.
    #[inline]
    pub fn read(&mut self, hash: u64, capacity: u64) -> bool {
        let sampling = capacity.div_ceil(MOST_ENTRIES).next_power_of_two();
        let sampling = sampling.max(LEAST_SAMPLING);
        if hash & (sampling - 1) == 0 {
            self.simulate(hash, (capacity / sampling) as usize);
        }
        self.lead > 0
    }

    fn simulate(&mut self, hash: u64, capacity: usize) {
        let plain = i32::from(!self.plain.read(hash, capacity, false));
        let early = i32::from(!self.early.read(hash, capacity, true));
        self.lead = (self.lead + plain - early).clamp(-MOST_LEAD, MOST_LEAD);
    }
}

impl Miniature {
    /// Reads a key, and stores it after a miss. Returns whether it was a hit.
    pub(super) fn read(&mut self, hash: u64, capacity: usize, returns_early: bool) -> bool {
        if let Some(index) = self.hashes.iter().position(|own| *own == hash) {
            self.used[index] = true;
            return true;
        }
        while !self.hashes.is_empty() && self.hashes.len() >= capacity {
            self.evict();
        }
        self.arrivals += 1;
        let is_early = self.arrivals * 10 > self.hashes.len() as u64 * EARLY_TENTHS;
        if self.hand == self.hashes.len() || returns_early && is_early {
            self.put_hand_at_oldest();
        }
        self.hashes.push(hash);
        self.used.push(false);
        false
    }

    fn evict(&mut self) {
        loop {
            if self.hand == self.hashes.len() {
                self.put_hand_at_oldest();
            }
            if !self.used[self.hand] {
                self.hashes.remove(self.hand);
                self.used.remove(self.hand);
                return;
            }
            self.used[self.hand] = false;
            self.hand += 1;
        }
    }

    fn put_hand_at_oldest(&mut self) {
        self.hand = 0;
        self.arrivals = 0;
    }
}
