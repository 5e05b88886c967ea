//! The cached entries in the order in which they were stored, for eviction by SIEVE: Zhang, Yang, Yue, Qiu, Vigfusson and
//! Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024. It uses no server.
//!
//! The server finds keys by name only, so the queue keeps the name of each key. Names stand in batches of 64, each name without
//! the beginning that it shares with the one before, so that an entry takes about 10 bytes. An entry carries its [`EntryPosition`] in
//! the queue. A hit sets one bit by the position. The hand goes from the oldest entry to the newest, past entries with the bit,
//! which it clears, to the first entry without it. [`Miniatures`] say whether it returns to the oldest entry early.

mod batch;
mod datasets;
mod merge;
mod miniature;
mod queue;
#[cfg(test)]
mod tests;

use batch::{BATCH_NAMES, Batch, NO_BATCH, put_name};
use queue::{DatasetQueues, Queue};

pub use batch::EntryPosition;
pub use merge::BatchMerge;
pub use miniature::Miniatures;

/// A database and, in a cluster, a hash slot of it.
pub type CountedSection = (i32, u16);

/// An entry that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// The database.
    pub db: i32,
    /// The name of the key.
    pub key: Box<[u8]>,
    /// The position of the entry.
    pub position: EntryPosition,
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

/// The cached entries of a server, and those of a dataset that is being loaded beside them.
#[derive(Debug)]
pub struct Sieve {
    batches: Vec<Option<Box<Batch>>>,
    unused: Vec<u32>,
    queues: DatasetQueues,
    last_queue: u32,
    /// The first batches of queues that were dropped: their memory is freed in slices.
    dropped: Vec<u32>,
    /// The batch at which the search for names of dropped sections continues.
    swept: u32,
    /// Whether hash slots were dropped. The server may still remove their keys one by one, whose positions are perhaps those of other
    /// entries by now.
    has_dropped_slots: bool,
    /// The first batch of the present count, if it is [under way](Self::begin_count): positions in earlier batches are not counted.
    first_counted: u32,
    is_counting: bool,
    may_misplace: bool,
    returns_early: bool,
}

/// A hand that returns early does so when more entries were added since its last return than this many tenths of the queue.
const EARLY_TENTHS: u64 = 7;

fn is_return_due(arrivals: u64, entries: u64) -> bool {
    arrivals * 10 > entries * EARLY_TENTHS
}

impl Default for Sieve {
    fn default() -> Self {
        Self {
            batches: Vec::new(),
            unused: Vec::new(),
            queues: DatasetQueues {
                here: Queue::new(0),
                incoming: Queue::new(1),
            },
            last_queue: 1,
            dropped: Vec::new(),
            swept: NO_BATCH,
            has_dropped_slots: false,
            first_counted: 0,
            is_counting: false,
            may_misplace: false,
            returns_early: false,
        }
    }
}

impl Sieve {
    /// The number of entries.
    pub fn entries(&self) -> u64 {
        self.queues.here.entries
    }

    /// The bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.queues.here.bytes
    }

    /// Adds an entry as the newest. `None`: there is no position left.
    pub fn add(
        &mut self,
        section: CountedSection,
        key: &[u8],
        bytes: u64,
        is_incoming: bool,
    ) -> Option<EntryPosition> {
        if !is_incoming {
            self.move_hand_before_add();
        }
        let newest = self.queues.of(is_incoming).newest;
        let is_full = |batch: &Batch| batch.count == BATCH_NAMES;
        let id = match self.batch(newest) {
            Some(batch) if !is_full(batch) => newest,
            _ => self.begin_batch(is_incoming)?,
        };
        let queue = self.queues.of_mut(is_incoming);
        let number = queue.section_number(section);
        let batch = self.batches.get_mut(id as usize)?.as_mut()?;
        put_name(&mut batch.names, &queue.last, key, number);
        queue.last.clear();
        queue.last.extend_from_slice(key);
        let index = batch.count;
        batch.count += 1;
        batch.kept |= 1 << index;
        batch.live |= 1 << index;
        if batch.count == BATCH_NAMES {
            batch.names.shrink_to_fit();
        }
        let totals = &mut queue.totals[number as usize];
        totals.entries += 1;
        totals.bytes += bytes;
        queue.entries += 1;
        queue.bytes += bytes;
        Some(EntryPosition::new(id, index))
    }

    /// Counts the entry that is about to be added. Returns the hand to the oldest entry if it is behind the newest one, where it would
    /// come to each new entry first, or if it is to return early.
    fn move_hand_before_add(&mut self) {
        let (mut id, mut index) = self.queues.here.hand;
        while let Some(batch) = self.batch(id) {
            if batch.live & u64::MAX.checked_shl(index).unwrap_or(0) != 0 {
                break;
            }
            (id, index) = (batch.newer, 0);
        }
        let returns_early = self.returns_early;
        let queue = &mut self.queues.here;
        queue.hand = (id, index);
        queue.arrivals += 1;
        if id == NO_BATCH || returns_early && is_return_due(queue.arrivals, queue.entries) {
            queue.put_hand_at_oldest();
        }
    }

    /// Sets whether the hand returns to the oldest entry early, so that entries go soon that are not used any more: see
    /// `EARLY_TENTHS`. Otherwise it returns from the newest entry.
    pub fn set_early_return(&mut self, returns_early: bool) {
        self.returns_early = returns_early;
    }

    /// Whether the entry at this position is counted.
    pub fn is_counted(&self, position: EntryPosition) -> bool {
        self.is_incoming(position) == Some(false)
    }

    /// Removes an entry that counted so many bytes.
    pub fn remove(
        &mut self,
        position: EntryPosition,
        section: CountedSection,
        key: &[u8],
        bytes: u64,
    ) {
        if !self.are_positions_certain() {
            let is_same = self.read(position).is_some_and(|(.., name)| name == key);
            if is_same {
                self.remove_unknown(position, |_| bytes);
            }
        } else if let Some(is_incoming) = self.take_out(position) {
            self.count_out(is_incoming, section, bytes);
        }
    }

    /// The same for an entry whose key is not known. `bytes` computes its bytes from the length of the name.
    pub fn remove_unknown(&mut self, position: EntryPosition, bytes: impl FnOnce(usize) -> u64) {
        let Some((is_incoming, number, key)) = self.read(position) else {
            return;
        };
        let totals = &self.queues.of(is_incoming).totals[number as usize];
        let (section, is_dropped) = (totals.section, totals.is_dropped);
        self.take_out(position);
        if !is_dropped {
            self.count_out(is_incoming, section, bytes(key.len()));
        }
    }

    /// Whether each position is that of the entry that has it, and in the section of the entry's key.
    fn are_positions_certain(&self) -> bool {
        self.swept == NO_BATCH && !self.has_dropped_slots && !self.may_misplace
    }

    /// The bytes of an entry have changed.
    pub fn resize(
        &mut self,
        position: EntryPosition,
        section: CountedSection,
        before: u64,
        after: u64,
    ) {
        let number = match self.is_counted(position) {
            false => return,
            true if self.are_positions_certain() => self.queues.here.section_number(section),
            true => match self.read(position) {
                Some((_, number, _)) => number,
                None => return,
            },
        };
        let totals = &mut self.queues.here.totals[number as usize];
        totals.bytes = totals.bytes - before + after;
        self.queues.here.bytes = self.queues.here.bytes - before + after;
    }

    /// An entry was used.
    #[inline]
    pub fn mark_used(&mut self, position: EntryPosition) {
        if let Some(Some(batch)) = self.batches.get_mut(position.batch()) {
            batch.used |= position.bit();
        }
    }

    /// Moves the hand to the next entry to evict. `keep`: an entry that stays. `may_evict`: whether keys of a section may be
    /// evicted. `steps`: the most batches that may be checked.
    pub fn search(
        &mut self,
        keep: Option<EntryPosition>,
        mut may_evict: impl FnMut(CountedSection) -> bool,
        steps: &mut usize,
    ) -> VictimSearch {
        loop {
            if *steps == 0 {
                return VictimSearch::Unfinished;
            }
            *steps -= 1;
            if self.batch(self.queues.here.hand.0).is_none() {
                self.queues.here.laps += 1;
                self.queues.here.put_hand_at_oldest();
                if self.queues.here.laps > 2 || self.queues.here.oldest == NO_BATCH {
                    self.queues.here.laps = 0;
                    return VictimSearch::None;
                }
            }
            let (id, index) = self.queues.here.hand;
            let Some(batch) = self.batches.get_mut(id as usize).and_then(Option::as_mut) else {
                continue;
            };
            let ahead = u64::MAX.checked_shl(index).unwrap_or(0);
            let kept = keep
                .filter(|position| position.batch() == id as usize)
                .map_or(0, EntryPosition::bit);
            let candidates = batch.live & !batch.used & !kept & ahead;
            let (mut found, mut dropped) = (None, 0_u64);
            if candidates != 0 {
                batch.each_name(|index, number, key| {
                    let totals = &self.queues.here.totals[number as usize];
                    if found.is_some() || candidates & 1 << index == 0 {
                        // The entry stays.
                    } else if totals.is_dropped {
                        dropped |= 1 << index;
                    } else if may_evict(totals.section) {
                        let (db, position) = (totals.section.0, EntryPosition::new(id, index));
                        let key = key.into();
                        found = Some((index, Victim { db, key, position }));
                    }
                });
            }
            let passed = match &found {
                Some((index, _)) => ahead & ((1 << index) - 1),
                None => ahead,
            };
            batch.used &= !passed;
            self.queues.here.hand = match &found {
                Some((index, _)) => (id, index + 1),
                None => (batch.newer, 0),
            };
            for index in (0..BATCH_NAMES).filter(|index| dropped & 1 << index != 0) {
                self.take_out(EntryPosition::new(id, index));
            }
            if let Some((_, victim)) = found {
                self.queues.here.laps = 0;
                return VictimSearch::Found(victim);
            }
        }
    }

    /// An entry of this section among the newest `batches`, which does not obey the hand: one that was not used, if there is one in
    /// its batch. `keep`: an entry that stays.
    pub fn newest_of(
        &self,
        section: CountedSection,
        keep: Option<EntryPosition>,
        batches: usize,
    ) -> Option<Victim> {
        let number = *self.queues.here.section_numbers.get(&section)?;
        let mut id = self.queues.here.newest;
        for _ in 0..batches {
            let batch = self.batch(id)?;
            let (mut used, mut unused) = (None, None);
            batch.each_name(|index, own, key| {
                let position = EntryPosition::new(id, index);
                if own != number || batch.live & position.bit() == 0 || Some(position) == keep {
                    return;
                }
                let found = match batch.used & position.bit() {
                    0 => &mut unused,
                    _ => &mut used,
                };
                found.get_or_insert_with(|| (position, key.into()));
            });
            if let Some((position, key)) = unused.or(used) {
                let db = section.0;
                return Some(Victim { db, key, position });
            }
            id = batch.older;
        }
        None
    }

    fn batch(&self, id: u32) -> Option<&Batch> {
        self.batches.get(id as usize)?.as_deref()
    }

    /// Whether the position is in the queue of the dataset that is being loaded; `None`: it is in no queue.
    fn is_incoming(&self, position: EntryPosition) -> Option<bool> {
        let id = position.batch() as u32;
        let batch = self.batch(id).filter(|_| id >= self.first_counted)?;
        match batch.queue {
            _ if batch.live & position.bit() == 0 => None,
            queue if queue == self.queues.here.number => Some(false),
            queue if queue == self.queues.incoming.number => Some(true),
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
            None if self.batches.len() > EntryPosition::LAST_BATCH => None,
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
            queue: self.queues.here.number,
            ..Batch::default()
        };
        self.batches[id as usize] = Some(Box::new(batch));
        if let Some(Some(older)) = self.batches.get_mut(older as usize) {
            older.newer = id;
        }
        if let Some(Some(newer)) = self.batches.get_mut(newer as usize) {
            newer.older = id;
        }
        self.queues.here.batches += 1;
        Some(id)
    }

    fn begin_batch(&mut self, is_incoming: bool) -> Option<u32> {
        let id = self.unused_id()?;
        let queue = self.queues.of_mut(is_incoming);
        queue.batches += 1;
        let older = std::mem::replace(&mut queue.newest, id);
        queue.last.clear();
        let batch = Batch {
            older,
            newer: NO_BATCH,
            queue: queue.number,
            ..Batch::default()
        };
        if older == NO_BATCH {
            queue.oldest = id;
            queue.hand = (id, 0);
        }
        self.batches[id as usize] = Some(Box::new(batch));
        if let Some(Some(before)) = self.batches.get_mut(older as usize) {
            before.newer = id;
        }
        self.tidy(older, is_incoming);
        Some(id)
    }

    fn count_out(&mut self, is_incoming: bool, section: CountedSection, bytes: u64) {
        let queue = self.queues.of_mut(is_incoming);
        let number = queue.section_number(section);
        let totals = &mut queue.totals[number as usize];
        totals.entries -= 1;
        totals.bytes -= bytes;
        queue.entries -= 1;
        queue.bytes -= bytes;
        queue.removed += 1;
    }

    /// Takes a name out of its batch. Returns whether that is in the queue of the dataset that is being loaded.
    fn take_out(&mut self, position: EntryPosition) -> Option<bool> {
        let is_incoming = self.is_incoming(position)?;
        let id = position.batch();
        let newest = self.queues.of(is_incoming).newest;
        let batch = self.batches[id].as_mut()?;
        batch.live &= !position.bit();
        batch.used &= !position.bit();
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
            batch.compact();
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
        let queue = self.queues.of_mut(is_incoming);
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
            if newer == NO_BATCH {
                self.queues.here.reuse_dropped_section_numbers();
            }
        }
    }

    /// Whether the entry at a position is in the incoming dataset, the number of its section, and its name.
    fn read(&self, position: EntryPosition) -> Option<(bool, u32, Vec<u8>)> {
        let is_incoming = self.is_incoming(position)?;
        let mut found = None;
        self.batch(position.batch() as u32)?
            .each_name(|index, number, key| {
                if 1 << index == position.bit() {
                    found = Some((is_incoming, number, key.to_vec()));
                }
            });
        found
    }
}
