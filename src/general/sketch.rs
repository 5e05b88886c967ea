//! A sketch of the keys with the largest counts: *Space-Saving* (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", 2005). It knows no server, no clock and no randomness.

/// The number of keys in a sketch.
pub const MAX_KEYS: usize = 64;

/// The longest name of a key in a sketch, in bytes. Keys with longer names are not counted.
pub const MAX_NAME_BYTES: usize = 512;

/// A key with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKey {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: Box<[u8]>,
    /// The count. It is never below the true count.
    pub count: u64,
    /// How much of the count may belong to other keys: the true count is at least `count - error`.
    pub error: u64,
}

/// The keys with the largest counts, at most [`MAX_KEYS`]. A key whose true count is above 1/64 of the sum of all counts is in the
/// sketch.
#[derive(Debug, Default)]
pub struct SpaceSaving {
    keys: Vec<HotKey>,
}

impl SpaceSaving {
    /// Adds to the count of a key. If the sketch is full, a new key takes the place and the count of the key with the smallest
    /// count.
    pub fn add(&mut self, db: i32, name: &[u8], count: u64) {
        if name.len() > MAX_NAME_BYTES {
            return;
        }
        let is_key = |key: &&mut HotKey| key.db == db && *key.name == *name;
        if let Some(key) = self.keys.iter_mut().find(is_key) {
            key.count = key.count.saturating_add(count);
            return;
        }
        let new = |error: u64| HotKey {
            db,
            name: name.into(),
            count: error.saturating_add(count),
            error,
        };
        if self.keys.len() < MAX_KEYS {
            self.keys.push(new(0));
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            *least = new(least.count);
        }
    }

    /// The keys, the largest counts first.
    pub fn sorted(&self) -> Vec<&HotKey> {
        let mut keys: Vec<&HotKey> = self.keys.iter().collect();
        keys.sort_by(|one, other| other.count.cmp(&one.count).then(one.name.cmp(&other.name)));
        keys
    }

    /// Forgets the keys of a database; `None`: of all databases.
    pub fn clear(&mut self, db: Option<i32>) {
        match db {
            Some(db) => self.keys.retain(|key| key.db != db),
            None => self.keys.clear(),
        }
    }

    /// Two databases were swapped.
    pub fn swap(&mut self, first: i32, second: i32) {
        for key in &mut self.keys {
            if key.db == first {
                key.db = second;
            } else if key.db == second {
                key.db = first;
            }
        }
    }
}

/// Chooses the events that a sketch looks at: the first ones all, later about one of 64. Each chosen event counts for all events
/// since the one before it. So the sum of the counts is exact, and no pattern of events hides a key.
#[derive(Debug)]
pub struct Sampler {
    /// The number of events that were chosen so far.
    chosen: u64,
    /// The state of the pseudo-random numbers, Marsaglia's xorshift.
    random: u64,
    /// The number of events for which the next chosen one counts.
    gap: u32,
}

/// The number of events of which all are chosen.
const CHOSEN_FIRST: u64 = 256;

/// Between two chosen events are at most so many, itself included; on average, 64.
const MAX_GAP: u64 = 127;

impl Default for Sampler {
    fn default() -> Self {
        Self {
            chosen: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            gap: 1,
        }
    }
}

impl Sampler {
    /// An event was chosen. Returns for how many events it counts, and how many events later the next one is chosen.
    pub fn choose(&mut self) -> (u64, u32) {
        let count = u64::from(self.gap);
        self.chosen += 1;
        self.gap = 1;
        if self.chosen >= CHOSEN_FIRST {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.gap = 1 + (self.random % MAX_GAP) as u32;
        }
        (count, self.gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Counts = BTreeMap<(i32, Vec<u8>), u64>;

    /// Panics unless the sketch keeps its promises about these exact counts.
    fn check(sketch: &SpaceSaving, exact: &Counts) {
        let keys = sketch.sorted();
        assert!(keys.len() <= MAX_KEYS && keys.is_sorted_by(|one, two| one.count >= two.count));
        let total: u64 = exact.values().sum();
        assert_eq!(keys.iter().map(|key| key.count).sum::<u64>(), total);
        for key in &keys {
            let real = exact[&(key.db, key.name.to_vec())];
            assert!(
                key.count >= real && key.count - key.error <= real,
                "{key:?} {real}"
            );
            assert!(key.error <= total / MAX_KEYS as u64);
        }
        for ((db, name), real) in exact {
            let is_in = keys.iter().any(|key| key.db == *db && *key.name == **name);
            assert!(is_in || *real <= total / MAX_KEYS as u64, "{name:?} {real}");
        }
    }

    proptest! {
        #[test]
        fn counts_differ_from_exact_counts_by_no_more_than_the_error(
            events in proptest::collection::vec((0..2i32, 0..200u8, 0..200u8, 1..50u64), 0..2000)
        ) {
            let (mut sketch, mut exact) = (SpaceSaving::default(), Counts::new());
            for (db, one, other, count) in events {
                let name = [one.min(other)]; // small numbers are frequent
                sketch.add(db, &name, count);
                *exact.entry((db, name.to_vec())).or_default() += count;
            }
            check(&sketch, &exact);
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let (mut sketch, mut exact) = (SpaceSaving::default(), Counts::new());
        for round in 0..1000_u64 {
            let name = [(round * round % 64) as u8];
            sketch.add(0, &name, 1);
            *exact.entry((0, name.to_vec())).or_default() += 1;
        }
        check(&sketch, &exact);
        assert!(sketch.sorted().iter().all(|key| key.error == 0));
    }

    #[test]
    fn names_that_are_too_long_are_not_counted() {
        let mut sketch = SpaceSaving::default();
        sketch.add(0, &[0; MAX_NAME_BYTES + 1], 1);
        assert!(sketch.sorted().is_empty());
        sketch.add(0, &[0; MAX_NAME_BYTES], 1);
        assert_eq!(sketch.sorted().len(), 1);
    }

    #[test]
    fn databases_are_forgotten_and_swapped() {
        let mut sketch = SpaceSaving::default();
        for db in 0..3 {
            sketch.add(db, b"k", db as u64 + 1);
        }
        sketch.swap(1, 2);
        let dbs = |sketch: &SpaceSaving| -> Vec<i32> {
            sketch.sorted().iter().map(|key| key.db).collect()
        };
        assert_eq!(dbs(&sketch), [1, 2, 0]);
        sketch.clear(Some(1));
        assert_eq!(dbs(&sketch), [2, 0]);
        sketch.clear(None);
        assert_eq!(dbs(&sketch), []);
    }

    #[test]
    fn the_chosen_events_count_for_all_and_for_each_key_in_proportion() {
        let mut sampler = Sampler::default();
        let (mut left, mut counts) = (1_u32, [0_u64; 2]);
        for event in 0..1_000_000_u64 {
            left -= 1;
            if left == 0 {
                let (count, next) = sampler.choose();
                counts[(event % 64 == 0) as usize] += count; // a pattern with the mean distance
                left = next;
            }
            if event + 1 == CHOSEN_FIRST {
                assert_eq!(counts, [252, 4]); // exact so far
            }
        }
        let total = counts[0] + counts[1];
        assert!(1_000_000 - total < MAX_GAP, "{total}");
        assert!((12_000..20_000).contains(&counts[1]), "{counts:?}"); // 15 625
    }
}
