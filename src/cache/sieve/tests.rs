use super::batch::{Batch, EntryPosition};
use super::merge::MERGED_NAMES;
use super::*;
use std::collections::{BTreeMap, HashMap};

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

/// The index of the entry to evict, by hand. `stays`: a database whose entries stay.
fn sieve_by_hand(
    list: &mut List,
    hand: &mut usize,
    keep: Option<EntryPosition>,
    stays: i32,
) -> Option<usize> {
    for _ in 0..3 * list.len() {
        if *hand >= list.len() {
            *hand = 0;
        }
        let entry = &mut list[*hand];
        if !entry.4 && Some(entry.0) != keep && entry.1.0 != stays {
            return Some(*hand);
        }
        entry.4 = false;
        *hand += 1;
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
        let (mut sieve, mut list, mut hand) = (Sieve::default(), List::new(), 0_usize);
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
                    if hand >= list.len() {
                        hand = 0;
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
                    hand -= usize::from(index < hand);
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
                            hand = 0;
                        }
                    }
                }
                19 => match random.below(12) {
                    0 => {
                        sieve.flush(None);
                        list.clear();
                        hand = 0;
                    }
                    1 | 2 => {
                        let db = random.below(3) as i32;
                        sieve.flush(Some(db));
                        // Until then the hand may stop at entries that have gone.
                        while sieve.collect(3) {}
                        let before = list[..hand.min(list.len())]
                            .iter()
                            .filter(|entry| entry.1.0 == db)
                            .count();
                        hand -= before;
                        list.retain(|entry| entry.1.0 != db);
                        if list.is_empty() {
                            hand = 0;
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

#[test]
fn sieve_is_no_worse_than_lru_and_better_under_scans() {
    let mut random = Random(88172645463325252);
    let (keys, capacity) = (20_000_u64, 4000);
    // A Zipf distribution by rejection-free inversion of a table.
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=keys {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let zipf = |random: &mut Random| {
        let at = random.below(1 << 50) as f64 / (1_u64 << 50) as f64 * sum;
        sums.partition_point(|own| *own < at) as u64
    };
    for scans in [false, true] {
        let mut sieve = Sieve::default();
        let mut positions: HashMap<u64, EntryPosition> = HashMap::new();
        let (mut lru, mut by_use): (HashMap<u64, u64>, BTreeMap<u64, u64>) = Default::default();
        let (mut hits, mut lru_hits) = (0, 0);
        let (mut most, mut all_moved, mut evicted) = (0, 0, 0_u64);
        for step in 0..300_000_u64 {
            if sieve.wants_merges() {
                merge_once(&mut sieve, |victim, position| {
                    let key = u64::from_le_bytes(victim.key.as_ref().try_into().unwrap());
                    assert_eq!(positions.insert(key, position), Some(victim.position));
                    all_moved += 1;
                });
            } else if step > 50_000 {
                most = most.max(memory(&sieve) / capacity);
            }
            let key = if scans && step % 3 == 0 {
                keys + step
            } else {
                zipf(&mut random)
            };
            if let Some(position) = positions.get(&key) {
                sieve.mark_used(*position);
                hits += 1;
            } else {
                if positions.len() == capacity {
                    let VictimSearch::Found(victim) = sieve.search(None, |_| true, &mut 1_000_000)
                    else {
                        panic!("a victim");
                    };
                    sieve.remove(victim.position, (0, 0), &victim.key, 1);
                    evicted += 1;
                    let key = u64::from_le_bytes(victim.key.as_ref().try_into().unwrap());
                    positions.remove(&key);
                }
                positions.insert(
                    key,
                    sieve.add((0, 0), &key.to_le_bytes(), 1, false).unwrap(),
                );
            }
            if let Some(used) = lru.insert(key, step) {
                by_use.remove(&used);
                lru_hits += 1;
            } else if lru.len() > capacity {
                let (_, oldest) = by_use.pop_first().unwrap();
                lru.remove(&oldest);
            }
            by_use.insert(step, key);
        }
        assert!(hits > lru_hits, "{hits} {lru_hits}");
        // Entries that are used for long do not stay in batches with few names.
        assert!(most <= 24, "{most} bytes an entry");
        assert!(
            all_moved <= evicted,
            "{all_moved} moves for {evicted} evictions"
        );
        println!(
            "scans {scans}, {most} bytes: SIEVE {hits}, LRU {lru_hits} of 300000; {all_moved} moves, {evicted} evictions"
        );
    }
}
