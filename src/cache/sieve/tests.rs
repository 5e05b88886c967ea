use super::batch::{Batch, EntryPosition};
use super::merge::MERGED_NAMES;
use super::miniature::Miniature;
use super::*;
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_64;

struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// The queue as a list, the oldest first: the position, the section, the key, the bytes, whether it was used.
type List = Vec<(EntryPosition, CountedSection, Vec<u8>, u64, bool)>;

/// The hand as an index of the list, and the number of entries that were added since it was 0.
#[derive(Default)]
struct Hand {
    at: usize,
    arrivals: usize,
}

impl Hand {
    fn return_from_end(&mut self, length: usize) {
        if self.at >= length {
            *self = Hand::default();
        }
    }
}

/// The index of the entry to evict, by hand. `stays`: a database whose entries stay.
fn sieve_by_hand(
    list: &mut List,
    hand: &mut Hand,
    keep: Option<EntryPosition>,
    stays: i32,
) -> Option<usize> {
    for _ in 0..3 * list.len() {
        hand.return_from_end(list.len());
        let entry = &mut list[hand.at];
        if !entry.4 && Some(entry.0) != keep && entry.1.0 != stays {
            return Some(hand.at);
        }
        entry.4 = false;
        hand.at += 1;
    }
    None
}

/// Merges batches once, if there are two with few names. Returns whether there are.
fn merge_once(sieve: &mut Sieve, mut moved: impl FnMut(&Victim, EntryPosition)) -> bool {
    let Some(mut merge) = sieve.begin_merge(100) else {
        return false;
    };
    let mut index = 0;
    while let Some(victim) = merge.entry(index).cloned() {
        moved(&victim, sieve.relocate(&mut merge, index).unwrap());
        index += 1;
    }
    sieve.end_merge(merge);
    true
}

fn merge(sieve: &mut Sieve, list: &mut List) {
    let mut count = 0;
    while merge_once(sieve, |victim, position| {
        let entry = list.iter_mut().find(|entry| entry.0 == victim.position);
        let entry = entry.expect("an entry has this position");
        assert_eq!(entry.2, *victim.key);
        entry.0 = position;
    }) {
        count += 1;
        assert!(count < 100, "a pass ends");
    }
    let mut lives = Vec::new();
    let mut id = sieve.queues.here.oldest;
    while let Some(batch) = sieve.batch(id) {
        lives.push(batch.live.count_ones());
        id = batch.newer;
    }
    assert_eq!(lives.len(), sieve.queues.here.batches as usize);
    lives.pop(); // the newest batch is left alone
    assert!(
        lives
            .windows(2)
            .all(|pair| pair[0] + pair[1] > MERGED_NAMES),
        "{lives:?}"
    );
}

#[test]
fn the_queue_is_a_list_with_a_hand() {
    for seed in 1..400 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (mut sieve, mut list, mut hand) = (Sieve::default(), List::new(), Hand::default());
        let mut returns_early = false;
        for step in 0..600 {
            match random.below(20) {
                0..8 => {
                    let section = (random.below(3) as i32, 0);
                    let key = format!("user:{}:{}", random.below(30), step).into_bytes();
                    let bytes = 50 + random.below(100);
                    let position = sieve.add(section, &key, bytes, false).unwrap();
                    assert!(
                        list.iter().all(|(own, ..)| *own != position),
                        "a position is given once"
                    );
                    hand.arrivals += 1;
                    hand.return_from_end(list.len());
                    if returns_early && 10 * hand.arrivals as u64 > EARLY_TENTHS * list.len() as u64
                    {
                        hand = Hand::default();
                    }
                    list.push((position, section, key, bytes, false));
                }
                8..12 if !list.is_empty() => {
                    let index = random.below(list.len() as u64) as usize;
                    sieve.mark_used(list[index].0);
                    list[index].4 = true;
                }
                12..14 if !list.is_empty() => {
                    let index = random.below(list.len() as u64) as usize;
                    let (position, section, key, bytes, _) = list.remove(index);
                    if random.below(2) == 0 {
                        sieve.remove(position, section, &key, bytes);
                    } else {
                        sieve.remove_unknown(position, |length| {
                            assert_eq!(length, key.len());
                            bytes
                        });
                    }
                    hand.at -= usize::from(index < hand.at);
                }
                14 if !list.is_empty() => {
                    let entry = &mut list[0];
                    sieve.resize(entry.0, entry.1, entry.3, 70);
                    entry.3 = 70;
                }
                15..19 => {
                    let keep = (random.below(2) == 0)
                        .then(|| list.last().map(|last| last.0))
                        .flatten();
                    let stays = random.below(6) as i32; // there are three databases
                    let found = sieve.search(keep, |section| section.0 != stays, &mut 10_000);
                    match sieve_by_hand(&mut list, &mut hand, keep, stays) {
                        Some(index) => {
                            let (position, section, key, bytes, _) = list.remove(index);
                            let victim = Victim {
                                db: section.0,
                                key: key.clone().into(),
                                position,
                            };
                            assert_eq!(
                                found,
                                VictimSearch::Found(victim),
                                "seed {seed} step {step}"
                            );
                            sieve.remove(position, section, &key, bytes);
                        }
                        None => {
                            assert_eq!(found, VictimSearch::None);
                            hand = Hand::default();
                        }
                    }
                }
                19 => match random.below(12) {
                    0 => {
                        sieve.flush(None);
                        list.clear();
                        hand = Hand::default();
                    }
                    1 | 2 => {
                        let db = random.below(3) as i32;
                        sieve.flush(Some(db));
                        // Until then the hand may stop at entries that have gone.
                        while sieve.collect(3) {}
                        let before = list[..hand.at.min(list.len())]
                            .iter()
                            .filter(|entry| entry.1.0 == db)
                            .count();
                        hand.at -= before;
                        list.retain(|entry| entry.1.0 != db);
                        if list.is_empty() {
                            hand = Hand::default();
                        }
                    }
                    3 => {
                        sieve.swap(0, 1);
                        for entry in &mut list {
                            entry.1.0 = [1, 0, 2][entry.1.0 as usize];
                        }
                    }
                    4..8 => {
                        while sieve.collect(3) {}
                        merge(&mut sieve, &mut list);
                    }
                    8 => {
                        returns_early = !returns_early;
                        sieve.set_early_return(returns_early);
                    }
                    _ => drop(sieve.collect(3)),
                },
                _ => {}
            }
            assert_eq!(
                sieve.entries(),
                list.len() as u64,
                "seed {seed} step {step}"
            );
            assert_eq!(sieve.bytes(), list.iter().map(|entry| entry.3).sum::<u64>());
        }
    }
}

#[test]
fn a_dataset_that_is_loaded_beside_takes_the_place_of_the_other_one() {
    let mut sieve = Sieve::default();
    let old = sieve.add((0, 0), b"old", 10, false).unwrap();
    let new = sieve.add((0, 0), b"new", 20, true).unwrap();
    assert_eq!((sieve.entries(), sieve.bytes()), (1, 10));
    sieve.replace();
    sieve.remove_unknown(old, |_| 10); // it is freed later
    assert_eq!((sieve.entries(), sieve.bytes()), (1, 20));
    let gone = sieve.add((0, 0), b"gone", 20, true).unwrap();
    sieve.discard();
    sieve.remove_unknown(gone, |_| 20);
    sieve.remove(new, (0, 0), b"new", 20);
    assert_eq!((sieve.entries(), sieve.bytes()), (0, 0));
    while sieve.collect(1) {}
}

#[test]
fn the_newest_entry_of_a_section_is_one_that_nobody_used() {
    let mut sieve = Sieve::default();
    let mut add = |slot: u16, name: &str| sieve.add((0, slot), name.as_bytes(), 1, false).unwrap();
    let old = add(1, "old");
    for number in 0..200 {
        add(2, &number.to_string());
    }
    let (used, kept, unused) = (add(1, "used"), add(1, "kept"), add(1, "unused"));
    let last = add(2, "last");
    sieve.mark_used(used);
    let found = |sieve: &Sieve, batches| {
        let victim = sieve.newest_of((0, 1), Some(kept), batches);
        victim.map(|victim| victim.position)
    };
    assert_eq!(found(&sieve, 1), Some(unused));
    sieve.remove(unused, (0, 1), b"unused", 1);
    assert_eq!(found(&sieve, 1), Some(used));
    sieve.remove(used, (0, 1), b"used", 1);
    assert_eq!(found(&sieve, 1), None);
    assert_eq!(found(&sieve, 16), Some(old));
    sieve.remove(old, (0, 1), b"old", 1);
    assert_eq!(found(&sieve, 16), None);
    assert_eq!(sieve.newest_of((0, 3), None, 16), None);
    assert!(
        sieve
            .newest_of((0, 2), None, 16)
            .is_some_and(|victim| victim.position != last)
    );
}

#[test]
fn an_entry_takes_few_bytes() {
    let mut sieve = Sieve::default();
    for number in 0..100_000 {
        sieve.add(
            (0, 0),
            format!("session:user:{number}").as_bytes(),
            100,
            false,
        );
    }
    let bytes = memory(&sieve);
    assert!(bytes / 100_000 < 10, "{bytes}");
}

/// The bytes of all batches.
fn memory(sieve: &Sieve) -> usize {
    let of_batch = |batch: &Option<Box<Batch>>| {
        batch
            .as_ref()
            .map_or(0, |batch| size_of::<Batch>() + batch.names.capacity())
    };
    sieve.batches.iter().map(of_batch).sum::<usize>() + sieve.batches.capacity() * 8
}

/// A cache of the sieve that counts its hits.
#[derive(Default)]
struct SimulatedCache {
    sieve: Sieve,
    positions: HashMap<u64, EntryPosition>,
    hits: u64,
    moved: u64,
    evicted: u64,
}

impl SimulatedCache {
    /// Reads a key, and stores it after a miss.
    fn read(&mut self, key: u64, capacity: usize) {
        if let Some(position) = self.positions.get(&key) {
            self.sieve.mark_used(*position);
            self.hits += 1;
            return;
        }
        if self.positions.len() == capacity {
            let found = self.sieve.search(None, |_| true, &mut 1_000_000);
            let VictimSearch::Found(victim) = found else {
                panic!("a victim");
            };
            let bytes = victim.key.len() as u64;
            self.sieve
                .remove(victim.position, (0, 0), &victim.key, bytes);
            self.positions.remove(&number(&victim.key));
            self.evicted += 1;
        }
        let position = self.sieve.add((0, 0), &key.to_le_bytes(), 8, false);
        self.positions.insert(key, position.unwrap());
    }

    /// Merges batches once. Returns false if there is nothing to merge.
    fn merge(&mut self) -> bool {
        self.sieve.wants_merges() && {
            merge_once(&mut self.sieve, |victim, position| {
                let before = self.positions.insert(number(&victim.key), position);
                assert_eq!(before, Some(victim.position));
                self.moved += 1;
            });
            true
        }
    }
}

fn number(key: &[u8]) -> u64 {
    u64::from_le_bytes(key.try_into().unwrap())
}

#[test]
fn a_miniature_caches_as_the_cache_does() {
    for returns_early in [false, true] {
        let mut random = Random(88172645463325252);
        let (mut cache, mut miniature) = (SimulatedCache::default(), Miniature::default());
        cache.sieve.set_early_return(returns_early);
        for step in 0..20_000 {
            let key = random.below(40).min(random.below(200)) + step / 5000 * 17;
            let before = cache.hits;
            cache.read(key, 50);
            let is_hit = miniature.read(key, 50, returns_early);
            assert_eq!(is_hit, cache.hits > before, "{returns_early} {step}");
        }
    }
}

/// A cache of the keys that were used last, which counts its hits.
#[derive(Default)]
struct Lru {
    used: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    hits: u64,
}

impl Lru {
    fn read(&mut self, key: u64, step: u64, capacity: usize) {
        if let Some(used) = self.used.insert(key, step) {
            self.by_use.remove(&used);
            self.hits += 1;
        } else if self.used.len() > capacity {
            let (_, oldest) = self.by_use.pop_first().unwrap();
            self.used.remove(&oldest);
        }
        self.by_use.insert(step, key);
    }
}

#[test]
fn the_hits_are_within_2_percent_of_lru_and_more_if_the_same_keys_stay_popular() {
    let (keys, capacity, steps) = (20_000_u64, 2000, 300_000);
    // A Zipf distribution by rejection-free inversion of a table.
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=keys {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let load = |key_of: fn(step: u64, rank: u64) -> u64| {
        let mut random = Random(88172645463325252);
        let (mut cache, mut lru, mut most) = (SimulatedCache::default(), Lru::default(), 0);
        let mut miniatures = Miniatures::default();
        for step in 0..steps {
            let at = random.below(1 << 50) as f64 / (1_u64 << 50) as f64 * sum;
            let key = key_of(step, sums.partition_point(|own| *own < at) as u64);
            let hash = xxh3_64(&key.to_le_bytes());
            let returns_early = miniatures.read(hash, capacity as u64);
            cache.sieve.set_early_return(returns_early);
            cache.read(key, capacity);
            lru.read(key, step, capacity);
            if !cache.merge() && step > 50_000 {
                most = most.max(memory(&cache.sieve) / capacity);
            }
        }
        // Entries that are used for long do not stay in batches with few names.
        assert!(most <= 24, "{most} bytes an entry");
        assert!(
            cache.moved <= cache.evicted,
            "moves are rarer than evictions"
        );
        println!("{most} bytes an entry");
        cache.hits as f64 / lru.hits as f64
    };
    let zipf = load(|_, rank| rank);
    let scans = load(|step, rank| if step % 3 == 0 { 20_000 + step } else { rank });
    let changing = load(|step, rank| (rank + step / 30_000 * 10_007) % 20_000);
    let shifting = load(|step, rank| (rank + step / 100) % 20_000);
    println!("hits of SIEVE for each hit of LRU: {zipf} {scans} {changing} {shifting}");
    assert!(zipf > 1.05 && scans > 1.05, "{zipf} {scans}");
    assert!(changing > 0.98 && shifting > 0.98, "{changing} {shifting}");
}
