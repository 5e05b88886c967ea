//! The cached entries in the order in which they were stored, for eviction by SIEVE: Zhang, Yang, Yue, Qiu, Vigfusson and
//! Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024. It knows no server.
//!
//! The server finds keys by name only, so the queue keeps the name of each key. Names stand in batches of 64, each name without
//! the beginning that it shares with the one before, so that an entry takes some ten bytes. An entry carries its [`Place`] in
//! the queue. A hit sets one bit by the place. The hand goes from the oldest entry to the newest, past entries with the bit,
//! which it clears, to the first entry without it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A database and, in a cluster, a hash slot of it.
pub type CountedSection = (i32, u16);

/// The place of an entry in the queue: 30 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(NonZeroU32);

impl Place {
    const LAST_BATCH: usize = (1 << 24) - 2;

    fn new(batch: u32, index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(batch << 6 | index))
    }

    fn batch(self) -> usize {
        ((self.0.get() - 1) >> 6) as usize
    }

    fn bit(self) -> u64 {
        1 << ((self.0.get() - 1) & 63)
    }

    /// The number of the place, 1 to 2^30 - 1.
    pub fn number(self) -> NonZeroU32 {
        self.0
    }

    /// The place of a number.
    pub fn numbered(number: NonZeroU32) -> Self {
        Self(number)
    }
}

/// An entry that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// The database.
    pub db: i32,
    /// The name of the key.
    pub key: Box<[u8]>,
    /// The place of the entry.
    pub place: Place,
}

/// The result of a search for an entry to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VictimSearch {
    /// This entry is to be evicted.
    Found(Victim),
    /// No entry can be evicted now.
    None,
    /// The search has taken as many steps as it may. It continues with the next call.
    Unfinished,
}

/// A move of the entries of two adjacent batches with few names into one.
#[derive(Debug)]
pub struct BatchMerge {
    target: u32,
    /// The last name in the target.
    last: Vec<u8>,
    /// The entries, the oldest first, each with its space.
    entries: Vec<(Victim, u32)>,
    /// If the hand is in one of the batches: how many of these entries are behind it.
    passed: Option<usize>,
    /// How many of those were moved.
    passed_moved: u32,
}

impl BatchMerge {
    /// One of the entries to move.
    pub fn entry(&self, index: usize) -> Option<&Victim> {
        self.entries.get(index).map(|(victim, _)| victim)
    }
}

/// Two adjacent batches merge if they have no more names than this. So after a pass, a batch has more than half as many on average.
const MERGED: u32 = 48;

/// No batch.
const NOWHERE: u32 = u32::MAX;

/// The number of names in a batch.
const BATCH: u32 = 64;

/// Up to 64 names.
#[derive(Debug, Default)]
struct Batch {
    /// The names, the oldest first: the length of the beginning that is that of the name before, the length of the rest, the
    /// number of the space, the rest.
    names: Vec<u8>,
    /// The indexes whose names are in `names`.
    kept: u64,
    /// The indexes of entries that are in the cache.
    live: u64,
    /// The indexes of entries that were used since the hand came by.
    used: u64,
    /// The number of indexes that were given away.
    count: u32,
    older: u32,
    newer: u32,
    /// The queue that the batch is in; a queue that was dropped is none of both.
    queue: u32,
}

/// The entries of a section that are in the cache.
#[derive(Debug, Default, Clone)]
struct Space {
    section: CountedSection,
    entries: u64,
    bytes: u64,
    is_dropped: bool,
}

#[derive(Debug)]
struct Queue {
    /// Its number. Each queue has another one.
    number: u32,
    oldest: u32,
    newest: u32,
    /// The batch and the index that the hand comes to next. Nowhere: the oldest entry.
    hand: (u32, u32),
    /// How often the hand has come to the end since it found an entry.
    laps: u32,
    spaces: Vec<Space>,
    unused_spaces: Vec<u32>,
    by_section: BTreeMap<CountedSection, u32>,
    /// The name that was added last, if it is in the newest batch.
    last: Vec<u8>,
    entries: u64,
    bytes: u64,
    /// The number of batches.
    batches: u32,
    /// The batch that the present pass of merges comes to next. Nowhere: there is no pass.
    merging: u32,
    /// How many entries were removed since the last pass of merges began.
    removed: u64,
}

impl Queue {
    fn new(number: u32) -> Self {
        Self {
            number,
            oldest: NOWHERE,
            newest: NOWHERE,
            hand: (NOWHERE, 0),
            laps: 0,
            spaces: Vec::new(),
            unused_spaces: Vec::new(),
            by_section: BTreeMap::new(),
            last: Vec::new(),
            entries: 0,
            bytes: 0,
            batches: 0,
            merging: NOWHERE,
            removed: 0,
        }
    }

    fn space(&mut self, section: CountedSection) -> u32 {
        *self.by_section.entry(section).or_insert_with(|| {
            let space = Space {
                section,
                ..Space::default()
            };
            match self.unused_spaces.pop() {
                Some(number) => {
                    self.spaces[number as usize] = space;
                    number
                }
                None => {
                    self.spaces.push(space);
                    self.spaces.len() as u32 - 1
                }
            }
        })
    }

    /// No name of a dropped space is left.
    fn reuse_dropped_spaces(&mut self) {
        for (space, number) in self.spaces.iter_mut().zip(0..) {
            if std::mem::take(&mut space.is_dropped) {
                self.unused_spaces.push(number);
            }
        }
    }

    /// Takes a space out of the sums.
    fn drop_space(&mut self, section: CountedSection) {
        if let Some(space) = self.by_section.remove(&section) {
            let space = &mut self.spaces[space as usize];
            space.is_dropped = true;
            self.entries -= space.entries;
            self.bytes -= space.bytes;
        }
    }
}

/// The cached entries of a server, and those of a dataset that is being loaded beside them.
#[derive(Debug)]
pub struct Sieve {
    batches: Vec<Option<Box<Batch>>>,
    unused: Vec<u32>,
    here: Queue,
    incoming: Queue,
    last_queue: u32,
    /// The first batches of queues that were dropped: their memory is freed in slices.
    dropped: Vec<u32>,
    /// The batch at which the search for names of dropped spaces continues.
    swept: u32,
    /// Whether hash slots were dropped. The server may still remove their keys one by one, whose places are perhaps those of other
    /// entries by now.
    has_dropped_slots: bool,
    /// The first batch of the present count, if it is [under way](Self::begin_count): places in earlier batches are not counted.
    first_counted: u32,
    is_counting: bool,
    may_misplace: bool,
}

impl Default for Sieve {
    fn default() -> Self {
        Self {
            batches: Vec::new(),
            unused: Vec::new(),
            here: Queue::new(0),
            incoming: Queue::new(1),
            last_queue: 1,
            dropped: Vec::new(),
            swept: NOWHERE,
            has_dropped_slots: false,
            first_counted: 0,
            is_counting: false,
            may_misplace: false,
        }
    }
}

impl Sieve {
    /// The number of entries.
    pub fn entries(&self) -> u64 {
        self.here.entries
    }

    /// The bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.here.bytes
    }

    /// Adds an entry as the newest. `None`: there is no place left.
    pub fn add(
        &mut self,
        section: CountedSection,
        key: &[u8],
        bytes: u64,
        is_incoming: bool,
    ) -> Option<Place> {
        if !is_incoming {
            self.return_hand();
        }
        let newest = self.queue(is_incoming).newest;
        let is_full = |batch: &Batch| batch.count == BATCH;
        let id = match self.batch(newest) {
            Some(batch) if !is_full(batch) => newest,
            _ => self.begin_batch(is_incoming)?,
        };
        let queue = match is_incoming {
            false => &mut self.here,
            true => &mut self.incoming,
        };
        let space = queue.space(section);
        let batch = self.batches.get_mut(id as usize)?.as_mut()?;
        put_name(&mut batch.names, &queue.last, key, space);
        queue.last.clear();
        queue.last.extend_from_slice(key);
        let index = batch.count;
        batch.count += 1;
        batch.kept |= 1 << index;
        batch.live |= 1 << index;
        if batch.count == BATCH {
            batch.names.shrink_to_fit();
        }
        let space = &mut queue.spaces[space as usize];
        space.entries += 1;
        space.bytes += bytes;
        queue.entries += 1;
        queue.bytes += bytes;
        Some(Place::new(id, index))
    }

    /// Returns the hand to the oldest entry if it is behind the newest one. Otherwise it would come to each new entry first.
    fn return_hand(&mut self) {
        let (mut id, mut index) = self.here.hand;
        while let Some(batch) = self.batch(id) {
            if batch.live & u64::MAX.checked_shl(index).unwrap_or(0) != 0 {
                break;
            }
            (id, index) = (batch.newer, 0);
        }
        self.here.hand = (id, index);
    }

    /// Whether the entry at this place is counted.
    pub fn is_counted(&self, place: Place) -> bool {
        self.is_incoming(place) == Some(false)
    }

    /// Removes an entry that counted so many bytes.
    pub fn remove(&mut self, place: Place, section: CountedSection, key: &[u8], bytes: u64) {
        if !self.are_places_certain() {
            let is_same = self.read(place).is_some_and(|(.., name)| name == key);
            if is_same {
                self.remove_unknown(place, |_| bytes);
            }
        } else if let Some(is_incoming) = self.take_out(place) {
            self.count_out(is_incoming, section, bytes);
        }
    }

    /// The same for an entry whose key is not known. `bytes` computes its bytes from the length of the name.
    pub fn remove_unknown(&mut self, place: Place, bytes: impl FnOnce(usize) -> u64) {
        let Some((is_incoming, space, key)) = self.read(place) else {
            return;
        };
        let space = &self.queue(is_incoming).spaces[space as usize];
        let (section, is_dropped) = (space.section, space.is_dropped);
        self.take_out(place);
        if !is_dropped {
            self.count_out(is_incoming, section, bytes(key.len()));
        }
    }

    /// Whether each place is that of the entry that has it, and in the section of the entry's key.
    fn are_places_certain(&self) -> bool {
        self.swept == NOWHERE && !self.has_dropped_slots && !self.may_misplace
    }

    /// The bytes of an entry have changed.
    pub fn resize(&mut self, place: Place, section: CountedSection, before: u64, after: u64) {
        let space = match self.is_counted(place) {
            false => return,
            true if self.are_places_certain() => self.here.space(section),
            true => match self.read(place) {
                Some((_, space, _)) => space,
                None => return,
            },
        };
        let space = &mut self.here.spaces[space as usize];
        space.bytes = space.bytes - before + after;
        self.here.bytes = self.here.bytes - before + after;
    }

    /// An entry was used.
    #[inline]
    pub fn touch(&mut self, place: Place) {
        if let Some(Some(batch)) = self.batches.get_mut(place.batch()) {
            batch.used |= place.bit();
        }
    }

    /// Moves the hand to the next entry to evict. `keep`: an entry that stays. `may_evict`: whether keys of a section may be
    /// evicted. `steps`: the most batches that may be checked.
    pub fn search(
        &mut self,
        keep: Option<Place>,
        mut may_evict: impl FnMut(CountedSection) -> bool,
        steps: &mut usize,
    ) -> VictimSearch {
        loop {
            if *steps == 0 {
                return VictimSearch::Unfinished;
            }
            *steps -= 1;
            if self.batch(self.here.hand.0).is_none() {
                self.here.laps += 1;
                self.here.hand = (self.here.oldest, 0);
                if self.here.laps > 2 || self.here.oldest == NOWHERE {
                    self.here.laps = 0;
                    return VictimSearch::None;
                }
            }
            let (id, index) = self.here.hand;
            let Some(batch) = self.batches.get_mut(id as usize).and_then(Option::as_mut) else {
                continue;
            };
            let ahead = u64::MAX.checked_shl(index).unwrap_or(0);
            let kept = keep
                .filter(|place| place.batch() == id as usize)
                .map_or(0, Place::bit);
            let candidates = batch.live & !batch.used & !kept & ahead;
            if candidates == 0 {
                batch.used &= !ahead;
                self.here.hand = (batch.newer, 0);
                continue;
            }
            let found = candidates.trailing_zeros();
            let passed = ahead & ((1 << found) - 1);
            batch.used &= !passed;
            self.here.hand = (id, found + 1);
            let place = Place::new(id, found);
            let Some((_, space, key)) = self.read(place) else {
                continue;
            };
            let space = &self.here.spaces[space as usize];
            if space.is_dropped {
                self.take_out(place);
            } else if may_evict(space.section) {
                let (db, key) = (space.section.0, key.into());
                self.here.laps = 0;
                return VictimSearch::Found(Victim { db, key, place });
            }
        }
    }

    /// An entry of this section among the newest `batches`, which does not obey the hand: one that was not used, if there is one in
    /// its batch. `keep`: an entry that stays.
    pub fn newest_of(
        &self,
        section: CountedSection,
        keep: Option<Place>,
        batches: usize,
    ) -> Option<Victim> {
        let space = *self.here.by_section.get(&section)?;
        let mut id = self.here.newest;
        for _ in 0..batches {
            let batch = self.batch(id)?;
            let (mut used, mut unused) = (None, None);
            each_name(batch, |index, own, key| {
                let place = Place::new(id, index);
                if own != space || batch.live & place.bit() == 0 || Some(place) == keep {
                    return;
                }
                let found = match batch.used & place.bit() {
                    0 => &mut unused,
                    _ => &mut used,
                };
                found.get_or_insert_with(|| (place, key.into()));
            });
            if let Some((place, key)) = unused.or(used) {
                let db = section.0;
                return Some(Victim { db, key, place });
            }
            id = batch.older;
        }
        None
    }

    /// Whether entries are to be moved out of batches with few names. Entries that are used for long remain alone in their batches.
    pub fn wants_merges(&self) -> bool {
        let queue = &self.here;
        let is_sparse = u64::from(queue.batches) * u64::from(MERGED / 2) > queue.entries + 512;
        let is_due = queue.removed > queue.entries / 8 + 64;
        let are_places_known = self.swept == NOWHERE && !self.may_misplace && !self.is_counting;
        are_places_known && (queue.merging != NOWHERE || is_sparse && is_due)
    }

    /// Begins to move the entries of the next two batches, if they have few names. Looks at so many batches. The caller
    /// [moves](Self::relocate) each entry, [ends](Self::end_merge) the merge, and does nothing else meanwhile.
    pub fn begin_merge(&mut self, steps: usize) -> Option<BatchMerge> {
        if self.here.merging == NOWHERE {
            self.here.removed = 0;
            self.here.merging = self.here.oldest;
        }
        for _ in 0..steps {
            let first = self.here.merging;
            let second = self.batch(first)?.newer;
            let (Some(one), Some(other)) = (self.batch(first), self.batch(second)) else {
                self.here.merging = NOWHERE;
                return None;
            };
            // The next name of the newest batch refers to its last one.
            if other.newer == NOWHERE {
                self.here.merging = NOWHERE;
                return None;
            }
            if one.live.count_ones() + other.live.count_ones() <= MERGED {
                return self.begin_merge_of(first, second);
            }
            self.here.merging = second;
        }
        None
    }

    fn begin_merge_of(&mut self, first: u32, second: u32) -> Option<BatchMerge> {
        let (mut entries, mut passed) = (Vec::new(), None);
        for id in [first, second] {
            let batch = self.batch(id)?;
            let (hand, index_of_hand) = self.here.hand;
            let mut behind = 0;
            each_name(batch, |index, space, key| {
                let place = Place::new(id, index);
                if batch.live & place.bit() != 0 {
                    behind += usize::from(index < index_of_hand);
                    let db = self.here.spaces[space as usize].section.0;
                    let key = key.into();
                    entries.push((Victim { db, key, place }, space));
                }
            });
            if hand == id {
                let of_batch = batch.live.count_ones() as usize;
                passed = Some(entries.len() - of_batch + behind);
            }
        }
        let target = self.insert_batch_behind(second)?;
        Some(BatchMerge {
            target,
            last: Vec::new(),
            entries,
            passed,
            passed_moved: 0,
        })
    }

    /// Moves one of the entries, the oldest first. Returns its new place.
    pub fn relocate(&mut self, merge: &mut BatchMerge, index: usize) -> Option<Place> {
        let (victim, space) = merge.entries.get(index)?;
        if !self.is_counted(victim.place) {
            return None;
        }
        let old = self.batch(victim.place.batch() as u32)?;
        let is_used = old.used & victim.place.bit() != 0;
        let batch = self.batches.get_mut(merge.target as usize)?.as_mut()?;
        put_name(&mut batch.names, &merge.last, &victim.key, *space);
        merge.last.clear();
        merge.last.extend_from_slice(&victim.key);
        let place = Place::new(merge.target, batch.count);
        batch.count += 1;
        batch.kept |= place.bit();
        batch.live |= place.bit();
        batch.used |= if is_used { place.bit() } else { 0 };
        if merge.passed.is_some_and(|passed| index < passed) {
            merge.passed_moved += 1;
        }
        self.take_out(victim.place);
        Some(place)
    }

    /// All entries were moved, or have gone.
    pub fn end_merge(&mut self, merge: BatchMerge) {
        let Some(Some(batch)) = self.batches.get_mut(merge.target as usize) else {
            return;
        };
        batch.names.shrink_to_fit();
        let next = batch.newer;
        // It takes no more names, and may merge with the next batch.
        self.here.merging = merge.target;
        if merge.passed.is_some() {
            self.here.hand = (merge.target, merge.passed_moved);
        }
        if batch.live == 0 {
            self.unlink(merge.target, false);
            self.here.merging = next;
        }
    }

    /// Drops the sums and begins to count anew: the caller shows each entry, in whatever order, and adds those that are not
    /// [counted](Self::is_counted). The places from before do not come back until the count has ended.
    pub fn begin_count(&mut self) {
        self.drop_queue();
        self.first_counted = self.batches.len() as u32;
        self.is_counting = true;
    }

    /// All entries have been shown.
    pub fn end_count(&mut self) {
        self.first_counted = 0;
        self.is_counting = false;
        self.may_misplace = false;
    }

    /// Whether all entries of the last dataset that was loaded beside another one were in database 0, so that perhaps the server
    /// named no other database.
    pub fn may_misplace(&self) -> bool {
        self.may_misplace
    }

    /// All entries are in database 0 indeed.
    pub fn is_well_placed(&mut self) {
        self.may_misplace = false;
    }

    /// All keys of the hash slots for which `goes` returns true were dropped.
    pub fn drop_slots(&mut self, goes: impl Fn(u16) -> bool) {
        self.has_dropped_slots = true;
        self.drop_sections(|(_, slot)| goes(slot));
    }

    /// A database was emptied; `None`: all of them.
    pub fn flush(&mut self, db: Option<i32>) {
        match db {
            None => self.drop_queue(),
            Some(db) => self.drop_sections(|section| section.0 == db),
        }
    }

    /// Everything in these sections has gone without an event for each key.
    fn drop_sections(&mut self, goes: impl Fn(CountedSection) -> bool) {
        let sections: Vec<_> = self
            .here
            .by_section
            .keys()
            .copied()
            .filter(|section| goes(*section))
            .collect();
        for section in sections {
            self.here.drop_space(section);
        }
        if self.here.entries == 0 {
            self.drop_queue();
        } else {
            self.swept = self.here.oldest;
        }
    }

    /// Two databases have changed places.
    pub fn swap(&mut self, first: i32, second: i32) {
        let queue = &mut self.here;
        let swapped = |db| match db {
            db if db == first => second,
            db if db == second => first,
            db => db,
        };
        for space in &mut queue.spaces {
            space.section.0 = swapped(space.section.0);
        }
        let sections = std::mem::take(&mut queue.by_section).into_iter();
        queue.by_section = sections
            .map(|((db, slot), space)| ((swapped(db), slot), space))
            .collect();
    }

    /// The dataset that was loaded beside the present one has taken its place.
    pub fn replace(&mut self) {
        self.drop_queue();
        self.last_queue += 1;
        let next = Queue::new(self.last_queue);
        self.here = std::mem::replace(&mut self.incoming, next);
        let in_first = |section: &CountedSection| section.0 == 0;
        self.may_misplace = self.here.entries > 0 && self.here.by_section.keys().all(in_first);
    }

    /// The dataset that was loaded beside the present one is given up.
    pub fn discard(&mut self) {
        self.last_queue += 1;
        let dropped = std::mem::replace(&mut self.incoming, Queue::new(self.last_queue));
        self.dropped.push(dropped.oldest);
    }

    /// Frees memory of what has gone, at most so many batches. Returns whether something is left to do.
    pub fn collect(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if let Some(first) = self.dropped.pop() {
                if let Some(batch) = self.batches.get_mut(first as usize).and_then(Option::take) {
                    self.unused.push(first);
                    self.dropped.push(batch.newer);
                }
            } else if let Some(batch) = self.batch(self.swept) {
                let (id, newer) = (self.swept, batch.newer);
                self.sweep(id);
                self.swept = newer;
                if newer == NOWHERE {
                    self.here.reuse_dropped_spaces();
                }
            } else {
                return false;
            }
        }
        self.has_leftovers()
    }

    /// Whether [`Self::collect`] has something to do.
    pub fn has_leftovers(&self) -> bool {
        !self.dropped.is_empty() || self.swept != NOWHERE
    }

    fn sweep(&mut self, id: u32) {
        let Some(batch) = self.batch(id) else {
            return;
        };
        let spaces = &self.here.spaces;
        let mut dead = 0;
        each_name(batch, |index, space, _| {
            if spaces[space as usize].is_dropped {
                dead |= 1 << index;
            }
        });
        let dead = dead & batch.live;
        for index in (0..BATCH).filter(|index| dead & 1 << index != 0) {
            self.take_out(Place::new(id, index));
        }
    }

    fn queue(&self, is_incoming: bool) -> &Queue {
        if is_incoming {
            &self.incoming
        } else {
            &self.here
        }
    }

    fn batch(&self, id: u32) -> Option<&Batch> {
        self.batches.get(id as usize)?.as_deref()
    }

    /// Whether the place is in the queue of the dataset that is being loaded; `None`: it is in no queue.
    fn is_incoming(&self, place: Place) -> Option<bool> {
        let id = place.batch() as u32;
        let batch = self.batch(id).filter(|_| id >= self.first_counted)?;
        match batch.queue {
            _ if batch.live & place.bit() == 0 => None,
            queue if queue == self.here.number => Some(false),
            queue if queue == self.incoming.number => Some(true),
            _ => None,
        }
    }

    fn unused_id(&mut self) -> Option<u32> {
        let unused = match self.is_counting {
            true => None,
            false => self.unused.pop(),
        };
        match unused {
            Some(id) => Some(id),
            None if self.batches.len() > Place::LAST_BATCH => None,
            None => {
                self.batches.push(None);
                Some(self.batches.len() as u32 - 1)
            }
        }
    }

    /// Inserts an empty batch behind one that is not the newest.
    fn insert_batch_behind(&mut self, older: u32) -> Option<u32> {
        let newer = self.batch(older)?.newer;
        let id = self.unused_id()?;
        let batch = Batch {
            older,
            newer,
            queue: self.here.number,
            ..Batch::default()
        };
        self.batches[id as usize] = Some(Box::new(batch));
        if let Some(Some(older)) = self.batches.get_mut(older as usize) {
            older.newer = id;
        }
        if let Some(Some(newer)) = self.batches.get_mut(newer as usize) {
            newer.older = id;
        }
        self.here.batches += 1;
        Some(id)
    }

    fn begin_batch(&mut self, is_incoming: bool) -> Option<u32> {
        let id = self.unused_id()?;
        let queue = match is_incoming {
            false => &mut self.here,
            true => &mut self.incoming,
        };
        queue.batches += 1;
        let older = std::mem::replace(&mut queue.newest, id);
        queue.last.clear();
        let batch = Batch {
            older,
            newer: NOWHERE,
            queue: queue.number,
            ..Batch::default()
        };
        if older == NOWHERE {
            queue.oldest = id;
        }
        self.batches[id as usize] = Some(Box::new(batch));
        if let Some(Some(before)) = self.batches.get_mut(older as usize) {
            before.newer = id;
        }
        self.tidy(older, is_incoming);
        Some(id)
    }

    fn count_out(&mut self, is_incoming: bool, section: CountedSection, bytes: u64) {
        let queue = match is_incoming {
            false => &mut self.here,
            true => &mut self.incoming,
        };
        let space = queue.space(section);
        let space = &mut queue.spaces[space as usize];
        space.entries -= 1;
        space.bytes -= bytes;
        queue.entries -= 1;
        queue.bytes -= bytes;
        queue.removed += 1;
    }

    /// Takes a name out of its batch. Returns whether that is in the queue of the dataset that is being loaded.
    fn take_out(&mut self, place: Place) -> Option<bool> {
        let is_incoming = self.is_incoming(place)?;
        let id = place.batch();
        let newest = self.queue(is_incoming).newest;
        let batch = self.batches[id].as_mut()?;
        batch.live &= !place.bit();
        batch.used &= !place.bit();
        // The next name of the newest batch refers to its last one.
        if id as u32 != newest {
            self.tidy(id as u32, is_incoming);
        }
        Some(is_incoming)
    }

    /// Frees the memory of names that have gone.
    fn tidy(&mut self, id: u32, is_incoming: bool) {
        let Some(Some(batch)) = self.batches.get_mut(id as usize) else {
            return;
        };
        if batch.live == 0 {
            self.unlink(id, is_incoming);
        } else if batch.live.count_ones() * 2 < batch.kept.count_ones() {
            compact(batch);
        }
    }

    fn unlink(&mut self, id: u32, is_incoming: bool) {
        let Some(batch) = self.batches[id as usize].take() else {
            return;
        };
        self.unused.push(id);
        let (older, newer) = (batch.older, batch.newer);
        if let Some(Some(older)) = self.batches.get_mut(older as usize) {
            older.newer = newer;
        }
        if let Some(Some(newer)) = self.batches.get_mut(newer as usize) {
            newer.older = older;
        }
        let queue = match is_incoming {
            false => &mut self.here,
            true => &mut self.incoming,
        };
        if queue.oldest == id {
            queue.oldest = newer;
        }
        queue.batches -= 1;
        if queue.hand.0 == id {
            queue.hand = (newer, 0);
        }
        if queue.merging == id {
            queue.merging = newer;
        }
        if self.swept == id {
            self.swept = newer;
            if newer == NOWHERE {
                self.here.reuse_dropped_spaces();
            }
        }
    }

    fn drop_queue(&mut self) {
        self.last_queue += 1;
        let dropped = std::mem::replace(&mut self.here, Queue::new(self.last_queue));
        self.dropped.push(dropped.oldest);
        self.swept = NOWHERE;
    }

    /// The space and the name at a place.
    fn read(&self, place: Place) -> Option<(bool, u32, Vec<u8>)> {
        let is_incoming = self.is_incoming(place)?;
        let mut found = None;
        each_name(self.batch(place.batch() as u32)?, |index, space, key| {
            if 1 << index == place.bit() {
                found = Some((is_incoming, space, key.to_vec()));
            }
        });
        found
    }
}

/// Removes the names that are not live.
fn compact(batch: &mut Batch) {
    let (mut names, mut last) = (Vec::with_capacity(batch.names.len() / 2), Vec::new());
    let live = batch.live;
    each_name(batch, |index, space, key| {
        if live & 1 << index != 0 {
            put_name(&mut names, &last, key, space);
            last.clear();
            last.extend_from_slice(key);
        }
    });
    names.shrink_to_fit();
    (batch.names, batch.kept) = (names, live);
}

/// Calls `see` with index, space and name of each name of a batch, in order.
fn each_name(batch: &Batch, mut see: impl FnMut(u32, u32, &[u8])) {
    let (mut input, mut key, mut kept) = (&batch.names[..], Vec::new(), batch.kept);
    while kept != 0 {
        let index = kept.trailing_zeros();
        kept &= kept - 1;
        let [shared, rest, space] = [(); 3].map(|()| take_number(&mut input));
        key.truncate(shared as usize);
        let (bytes, others) = input.split_at(rest as usize);
        key.extend_from_slice(bytes);
        input = others;
        see(index, space, &key);
    }
}

fn put_name(out: &mut Vec<u8>, last: &[u8], key: &[u8], space: u32) {
    let shared = last
        .iter()
        .zip(key)
        .take_while(|(one, other)| one == other)
        .count();
    for number in [shared as u32, (key.len() - shared) as u32, space] {
        put_number(out, number);
    }
    out.extend_from_slice(&key[shared..]);
}

/// LEB128.
fn put_number(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(input: &mut &[u8]) -> u32 {
    let (mut number, mut shift) = (0, 0);
    while let [byte, rest @ ..] = *input {
        *input = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Random(u64);
    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % n
        }
    }

    /// The queue as a list, the oldest first: the place, the section, the key, the bytes, whether it was used.
    type List = Vec<(Place, CountedSection, Vec<u8>, u64, bool)>;

    /// The index of the entry to evict, by hand.
    fn sieve_by_hand(list: &mut List, hand: &mut usize, keep: Option<Place>) -> Option<usize> {
        for _ in 0..3 * list.len() {
            if *hand >= list.len() {
                *hand = 0;
            }
            let entry = &mut list[*hand];
            if !entry.4 && Some(entry.0) != keep {
                return Some(*hand);
            }
            entry.4 = false;
            *hand += 1;
        }
        None
    }

    /// Merges batches once, if there are two with few names. Returns whether there are.
    fn merge_once(sieve: &mut Sieve, mut moved: impl FnMut(&Victim, Place)) -> bool {
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
        while merge_once(sieve, |victim, place| {
            let entry = list.iter_mut().find(|entry| entry.0 == victim.place);
            let entry = entry.expect("an entry has this place");
            assert_eq!(entry.2, *victim.key);
            entry.0 = place;
        }) {
            count += 1;
            assert!(count < 100, "a pass ends");
        }
        let mut lives = Vec::new();
        let mut id = sieve.here.oldest;
        while let Some(batch) = sieve.batch(id) {
            lives.push(batch.live.count_ones());
            id = batch.newer;
        }
        assert_eq!(lives.len(), sieve.here.batches as usize);
        lives.pop(); // the newest batch is left alone
        assert!(
            lives.windows(2).all(|pair| pair[0] + pair[1] > MERGED),
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
                        let place = sieve.add(section, &key, bytes, false).unwrap();
                        assert!(
                            list.iter().all(|(own, ..)| *own != place),
                            "a place is given once"
                        );
                        if hand >= list.len() {
                            hand = 0;
                        }
                        list.push((place, section, key, bytes, false));
                    }
                    8..12 if !list.is_empty() => {
                        let index = random.below(list.len() as u64) as usize;
                        sieve.touch(list[index].0);
                        list[index].4 = true;
                    }
                    12..14 if !list.is_empty() => {
                        let index = random.below(list.len() as u64) as usize;
                        let (place, section, key, bytes, _) = list.remove(index);
                        if random.below(2) == 0 {
                            sieve.remove(place, section, &key, bytes);
                        } else {
                            sieve.remove_unknown(place, |length| {
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
                        let found = sieve.search(keep, |_| true, &mut 10_000);
                        match sieve_by_hand(&mut list, &mut hand, keep) {
                            Some(index) => {
                                let (place, section, key, bytes, _) = list.remove(index);
                                let victim = Victim {
                                    db: section.0,
                                    key: key.clone().into(),
                                    place,
                                };
                                assert_eq!(
                                    found,
                                    VictimSearch::Found(victim),
                                    "seed {seed} step {step}"
                                );
                                sieve.remove(place, section, &key, bytes);
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
        let mut add =
            |slot: u16, name: &str| sieve.add((0, slot), name.as_bytes(), 1, false).unwrap();
        let old = add(1, "old");
        for number in 0..200 {
            add(2, &number.to_string());
        }
        let (used, kept, unused) = (add(1, "used"), add(1, "kept"), add(1, "unused"));
        let last = add(2, "last");
        sieve.touch(used);
        let found = |sieve: &Sieve, batches| {
            let victim = sieve.newest_of((0, 1), Some(kept), batches);
            victim.map(|victim| victim.place)
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
                .is_some_and(|victim| victim.place != last)
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
            let mut places: HashMap<u64, Place> = HashMap::new();
            let (mut lru, mut by_use): (HashMap<u64, u64>, BTreeMap<u64, u64>) = Default::default();
            let (mut hits, mut lru_hits) = (0, 0);
            let (mut most, mut all_moved, mut evicted) = (0, 0, 0_u64);
            for step in 0..300_000_u64 {
                if sieve.wants_merges() {
                    merge_once(&mut sieve, |victim, place| {
                        let key = u64::from_le_bytes(victim.key.as_ref().try_into().unwrap());
                        assert_eq!(places.insert(key, place), Some(victim.place));
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
                if let Some(place) = places.get(&key) {
                    sieve.touch(*place);
                    hits += 1;
                } else {
                    if places.len() == capacity {
                        let VictimSearch::Found(victim) =
                            sieve.search(None, |_| true, &mut 1_000_000)
                        else {
                            panic!("a victim");
                        };
                        sieve.remove(victim.place, (0, 0), &victim.key, 1);
                        evicted += 1;
                        let key = u64::from_le_bytes(victim.key.as_ref().try_into().unwrap());
                        places.remove(&key);
                    }
                    places.insert(
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
}
