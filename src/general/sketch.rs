//! A sketch of the keys with the largest counts: *Space-Saving* (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", 2005). It uses no server, clock or randomness.

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
/// sketch. The counts of databases that were cleared one by one belong to this sum.
#[derive(Debug, Default)]
pub struct SpaceSaving {
    keys: Vec<HotKey>,
    /// The largest count of a key that was displaced. No key outside the sketch has a larger true count, and no key in the sketch
    /// has a smaller count.
    floor: u64,
}

impl SpaceSaving {
    /// Adds to the count of a key. If the sketch is full, a new key displaces the key with the smallest count. A new key may be one
    /// that was displaced before, so it begins with the largest count that it can have had.
    pub fn add(&mut self, db: i32, name: &[u8], count: u64) {
        if name.len() > MAX_NAME_BYTES {
            return;
        }
        let is_key = |key: &&mut HotKey| key.db == db && *key.name == *name;
        if let Some(key) = self.keys.iter_mut().find(is_key) {
            key.count = key.count.saturating_add(count);
            return;
        }
        let new = |floor: u64| HotKey {
            db,
            name: name.into(),
            count: floor.saturating_add(count),
            error: floor,
        };
        if self.keys.len() < MAX_KEYS {
            // Other keys were displaced earlier if a database was cleared since.
            self.keys.push(new(self.floor));
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            self.floor = least.count;
            *least = new(self.floor);
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
            // The floor stays: it is also that of the keys of other databases.
            Some(db) => self.keys.retain(|key| key.db != db),
            None => *self = Self::default(),
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

    /// Exact counts.
    #[derive(Default)]
    struct ExactCounts {
        keys: BTreeMap<(i32, Vec<u8>), u64>,
        /// The sum of all counts, those of forgotten keys included.
        sum: u64,
    }

    impl ExactCounts {
        fn add(&mut self, db: i32, name: &[u8], count: u64) {
            *self.keys.entry((db, name.to_vec())).or_default() += count;
            self.sum += count;
        }

        fn clear(&mut self, db: Option<i32>) {
            self.keys.retain(|key, _| db.is_some_and(|db| key.0 != db));
            if db.is_none() {
                self.sum = 0;
            }
        }

        fn swap(&mut self, first: i32, second: i32) {
            let keys = std::mem::take(&mut self.keys).into_iter();
            let swapped = |db: i32| match db {
                db if db == first => second,
                db if db == second => first,
                db => db,
            };
            self.keys = keys
                .map(|((db, name), count)| ((swapped(db), name), count))
                .collect();
        }
    }

    /// Panics unless the sketch keeps its promises about these exact counts.
    fn check(sketch: &SpaceSaving, exact: &ExactCounts) {
        let keys = sketch.sorted();
        assert!(keys.len() <= MAX_KEYS && keys.is_sorted_by(|one, two| one.count >= two.count));
        assert!(keys.iter().map(|key| key.count).sum::<u64>() <= exact.sum);
        let most = exact.sum / MAX_KEYS as u64;
        for key in &keys {
            let real = exact.keys[&(key.db, key.name.to_vec())];
            assert!(
                key.count >= real && key.count - key.error <= real,
                "{key:?} {real}"
            );
            assert!(key.error <= most, "{key:?} {most}");
        }
        for ((db, name), real) in &exact.keys {
            let is_in = keys.iter().any(|key| key.db == *db && *key.name == **name);
            assert!(is_in || *real <= most, "{name:?} {real}");
        }
    }

    /// A change of a sketch.
    #[derive(Debug, Clone)]
    enum SketchStep {
        /// Counts of this database: each a name and a number.
        Add(i32, Vec<(u8, u64)>),
        Clear(Option<i32>),
        Swap(i32, i32),
    }

    fn step() -> impl Strategy<Value = SketchStep> {
        // Small names are frequent.
        let name = (0..200u8, 0..200u8).prop_map(|(one, other)| one.min(other));
        let counts = prop::collection::vec((name, 1..50u64), 1..200);
        prop_oneof![
            8 => (0..3i32, counts).prop_map(|(db, counts)| SketchStep::Add(db, counts)),
            3 => (0..3i32).prop_map(|db| SketchStep::Clear(Some(db))),
            1 => Just(SketchStep::Clear(None)),
            2 => (0..3i32, 0..3i32).prop_map(|(first, second)| SketchStep::Swap(first, second)),
        ]
    }

    proptest! {
        #[test]
        fn counts_differ_from_exact_counts_by_no_more_than_the_error(
            steps in prop::collection::vec(step(), 0..30)
        ) {
            let (mut sketch, mut exact) = (SpaceSaving::default(), ExactCounts::default());
            for step in steps {
                match step {
                    SketchStep::Add(db, counts) => for (name, count) in counts {
                        sketch.add(db, &[name], count);
                        exact.add(db, &[name], count);
                    },
                    SketchStep::Clear(db) => {
                        sketch.clear(db);
                        exact.clear(db);
                    }
                    SketchStep::Swap(first, second) => {
                        sketch.swap(first, second);
                        exact.swap(first, second);
                    }
                }
                check(&sketch, &exact);
            }
        }
    }

    #[test]
    fn the_counts_of_one_dataset_add_up_to_the_exact_sum() {
        let (mut sketch, mut exact) = (SpaceSaving::default(), ExactCounts::default());
        for round in 0..10_000_u64 {
            let name = ((round * round) as u16 % 1000).to_be_bytes();
            sketch.add(0, &name, 1 + round % 7);
            exact.add(0, &name, 1 + round % 7);
        }
        check(&sketch, &exact);
        let counts = sketch.sorted().into_iter().map(|key| key.count);
        assert_eq!(counts.sum::<u64>(), exact.sum);
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let (mut sketch, mut exact) = (SpaceSaving::default(), ExactCounts::default());
        for round in 0..1000_u64 {
            let name = [(round * round % 64) as u8];
            sketch.add(0, &name, 1);
            exact.add(0, &name, 1);
        }
        check(&sketch, &exact);
        assert!(sketch.sorted().iter().all(|key| key.error == 0));
    }

    #[test]
    fn a_key_that_returns_after_another_database_was_cleared_keeps_its_count() {
        let mut sketch = SpaceSaving::default();
        sketch.add(0, b"k", 10);
        for number in 0..MAX_KEYS as u8 {
            sketch.add(1, &[number], 11);
        }
        assert!(sketch.sorted().iter().all(|key| key.db == 1));
        sketch.clear(Some(1));
        sketch.add(0, b"k", 1);
        let found = sketch.sorted()[0];
        assert_eq!((found.count, found.error), (11, 10));
        sketch.clear(None);
        sketch.add(0, b"k", 1);
        let found = sketch.sorted()[0];
        assert_eq!((found.count, found.error), (1, 0));
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
