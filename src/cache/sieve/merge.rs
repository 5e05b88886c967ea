//! Moves the entries of batches with few names into one batch, so that the queue takes less memory.

use super::batch::{EntryPosition, NO_BATCH, put_name};
use super::{Sieve, Victim};

/// A move of the entries of two adjacent batches with few names into one.
#[derive(Debug)]
pub struct BatchMerge {
    target: u32,
    /// The last name in the target.
    last: Vec<u8>,
    /// The entries, the oldest first, each with the number of its section.
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
pub(super) const MERGED_NAMES: u32 = 48;

impl Sieve {
    /// Whether entries are to be moved out of batches with few names. Entries that are used for long remain alone in their batches.
    pub fn wants_merges(&self) -> bool {
        let queue = &self.queues.here;
        let is_sparse =
            u64::from(queue.batches) * u64::from(MERGED_NAMES / 2) > queue.entries + 512;
        let is_due = queue.removed > queue.entries / 8 + 64;
        let are_positions_known = self.swept == NO_BATCH && !self.may_misplace && !self.is_counting;
        are_positions_known && (queue.merging != NO_BATCH || is_sparse && is_due)
    }

    /// Begins to move the entries of the next two batches, if they have few names. Looks at so many batches. The caller
    /// [moves](Self::relocate) each entry, [ends](Self::end_merge) the merge, and does nothing else meanwhile.
    pub fn begin_merge(&mut self, steps: usize) -> Option<BatchMerge> {
        if self.queues.here.merging == NO_BATCH {
            self.queues.here.removed = 0;
            self.queues.here.merging = self.queues.here.oldest;
        }
        for _ in 0..steps {
            let first = self.queues.here.merging;
            let second = self.batch(first)?.newer;
            let (Some(one), Some(other)) = (self.batch(first), self.batch(second)) else {
                self.queues.here.merging = NO_BATCH;
                return None;
            };
            // The next name of the newest batch refers to its last one.
            if other.newer == NO_BATCH {
                self.queues.here.merging = NO_BATCH;
                return None;
            }
            if one.live.count_ones() + other.live.count_ones() <= MERGED_NAMES {
                return self.begin_merge_of(first, second);
            }
            self.queues.here.merging = second;
        }
        None
    }

    fn begin_merge_of(&mut self, first: u32, second: u32) -> Option<BatchMerge> {
        let (mut entries, mut passed) = (Vec::new(), None);
        for id in [first, second] {
            let batch = self.batch(id)?;
            let (hand, index_of_hand) = self.queues.here.hand;
            let mut behind = 0;
            batch.each_name(|index, number, key| {
                let position = EntryPosition::new(id, index);
                if batch.live & position.bit() != 0 {
                    behind += usize::from(index < index_of_hand);
                    let db = self.queues.here.totals[number as usize].section.0;
                    let key = key.into();
                    entries.push((Victim { db, key, position }, number));
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

    /// Moves one of the entries, the oldest first. Returns its new position.
    pub fn relocate(&mut self, merge: &mut BatchMerge, index: usize) -> Option<EntryPosition> {
        let (victim, number) = merge.entries.get(index)?;
        if !self.is_counted(victim.position) {
            return None;
        }
        let old = self.batch(victim.position.batch() as u32)?;
        let is_used = old.used & victim.position.bit() != 0;
        let batch = self.batches.get_mut(merge.target as usize)?.as_mut()?;
        put_name(&mut batch.names, &merge.last, &victim.key, *number);
        merge.last.clear();
        merge.last.extend_from_slice(&victim.key);
        let position = EntryPosition::new(merge.target, batch.count);
        batch.count += 1;
        batch.kept |= position.bit();
        batch.live |= position.bit();
        batch.used |= if is_used { position.bit() } else { 0 };
        if merge.passed.is_some_and(|passed| index < passed) {
            merge.passed_moved += 1;
        }
        self.take_out(victim.position);
        Some(position)
    }

    /// All entries were moved, or have gone.
    pub fn end_merge(&mut self, merge: BatchMerge) {
        let Some(Some(batch)) = self.batches.get_mut(merge.target as usize) else {
            return;
        };
        batch.names.shrink_to_fit();
        let next = batch.newer;
        // It takes no more names, and may merge with the next batch.
        self.queues.here.merging = merge.target;
        if merge.passed.is_some() {
            self.queues.here.hand = (merge.target, merge.passed_moved);
        }
        if batch.live == 0 {
            self.unlink(merge.target, false);
            self.queues.here.merging = next;
        }
    }
}
