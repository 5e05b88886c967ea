//! Miniature simulations of the cache: Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017. A sample of the keys is cached in two small queues whose hands move in different ways. The one with
//! fewer misses says how the hand of the cache is to move, as in set dueling: Qureshi, Jaleel, Patt, Steely and Emer, "Adaptive
//! Insertion Policies for High Performance Caching", ISCA 2007.
//!
//! The hand of SIEVE passes old entries once in a long time. That suits keys that stay popular. If other keys become popular, a hand
//! that [returns early](super::Sieve::set_early_return) removes the former ones soon, about as LRU does.
//!
//! A miniature stores a key at each miss, also if the client stores no entry. It ignores expiry, deletions, the sizes of entries, and
//! stores without a read.

use super::is_return_due;

/// The most entries of a miniature: a read looks at all of them.
const MOST_ENTRIES: u64 = 512;

/// Of a large cache, a miniature has at least this many entries.
const LEAST_ENTRIES: u64 = MOST_ENTRIES / 4;

/// At most one key in 2^3 = 8 is sampled: to simulate a read of a small cache takes longer than the read's other bookkeeping.
const LEAST_SAMPLING_BITS: u32 = 3;

/// The limit of the lead. When the load changes, the other miniature decides after it has had this many fewer misses.
const MOST_LEAD: i32 = 64;

/// Two miniatures of a cache.
#[derive(Debug)]
pub struct Miniatures {
    /// A key is sampled if this many low bits of its hash are 0.
    sampling_bits: u32,
    /// Its hand moves as that of SIEVE.
    plain: Miniature,
    /// Its hand returns early.
    early: Miniature,
    /// The misses of `plain` minus those of `early`, within [`MOST_LEAD`].
    lead: i32,
}

impl Default for Miniatures {
    fn default() -> Self {
        Self {
            sampling_bits: LEAST_SAMPLING_BITS,
            plain: Miniature::default(),
            early: Miniature::default(),
            lead: 0,
        }
    }
}

/// The hashes of sampled keys, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Miniature {
    hashes: Vec<u64>,
    used: Vec<bool>,
    /// The next index of the hand.
    hand: usize,
    /// How many entries were added since the last return of the hand.
    arrivals: u64,
}

impl Miniatures {
    /// Whether a key whose name has this hash can be sampled. [`Miniatures::read`] ignores the others.
    #[inline]
    pub fn may_sample(hash: u64) -> bool {
        hash & ((1 << LEAST_SAMPLING_BITS) - 1) == 0
    }

    /// A key was read whose name has this hash. `capacity`: how many entries the cache holds when it is full. Returns whether its hand
    /// is to return early.
    #[inline]
    pub fn read(&mut self, hash: u64, capacity: u64) -> bool {
        let share = capacity >> self.sampling_bits;
        let is_small = share < LEAST_ENTRIES && self.sampling_bits > LEAST_SAMPLING_BITS;
        if share > MOST_ENTRIES || is_small {
            self.resample(capacity);
        }
        if hash & ((1 << self.sampling_bits) - 1) == 0 {
            self.simulate(hash, (capacity >> self.sampling_bits) as usize);
        }
        self.lead > 0
    }

    /// Begins with empty miniatures of at most [`MOST_ENTRIES`], and at least half as many if the cache is large.
    #[cold]
    fn resample(&mut self, capacity: u64) {
        let sampling = capacity.div_ceil(MOST_ENTRIES).next_power_of_two();
        *self = Self {
            sampling_bits: sampling.ilog2().max(LEAST_SAMPLING_BITS),
            lead: self.lead,
            ..Self::default()
        };
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
        let is_due = is_return_due(self.arrivals, self.hashes.len() as u64);
        if self.hand == self.hashes.len() || returns_early && is_due {
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

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn hash(number: u64) -> u64 {
        xxh3_64(&number.to_le_bytes())
    }

    fn sizes(miniatures: &Miniatures) -> [usize; 2] {
        [&miniatures.plain, &miniatures.early].map(|miniature| miniature.hashes.len())
    }

    #[test]
    fn miniatures_have_a_share_of_the_capacity_that_is_small_and_not_tiny() {
        let mut miniatures = Miniatures::default();
        for capacity in [0, 1, 7, 100, 5000, 100_000, 1 << 40, 3000, 1 << 54, 2, 0] {
            for number in 0..200_000 {
                miniatures.read(hash(number) & !0_u64 << (number % 60), capacity);
                let share = (capacity >> miniatures.sampling_bits) as usize;
                assert!(sizes(&miniatures).iter().all(|size| *size <= share.max(1)));
            }
            let share = capacity >> miniatures.sampling_bits;
            assert!(share <= MOST_ENTRIES);
            assert!(share >= LEAST_ENTRIES || capacity < 8 * LEAST_ENTRIES);
        }
    }

    #[test]
    fn a_small_change_of_the_capacity_empties_no_miniature() {
        let mut miniatures = Miniatures::default();
        let mut read_all = |capacity: u64| {
            for number in 0..1 << 20 {
                miniatures.read(hash(number), capacity);
            }
            sizes(&miniatures)
        };
        let limit = 64 * MOST_ENTRIES;
        assert_eq!(read_all(limit), [512; 2]);
        assert_eq!(read_all(limit + 63), [512; 2]);
        assert_eq!(read_all(limit + 64), [256; 2]);
        assert_eq!(
            read_all(limit),
            [256; 2],
            "as many keys are sampled as before"
        );
        assert_eq!(read_all(limit / 2), [128; 2]);
        assert_eq!(read_all(limit / 2 - 1), [511; 2]);
    }

    #[test]
    fn the_hand_returns_early_as_soon_as_that_has_fewer_misses() {
        let mut miniatures = Miniatures::default();
        let read = |miniatures: &mut Miniatures, number: u64| miniatures.read(number << 3, 800);
        // Sixty keys stay popular, beside keys that are read once.
        for round in 0..50 {
            for number in (0..60).chain((0..20).map(|once| 1000 + round * 20 + once)) {
                assert!(!read(&mut miniatures, number));
            }
        }
        // Then sixty others are.
        let mut rounds = (0..50).filter(|round| {
            let keys = (100..160).chain((0..20).map(|once| 9000 + round * 20 + once));
            keys.fold(false, |_, number| read(&mut miniatures, number))
        });
        assert!(rounds.next().is_some());
    }
}
