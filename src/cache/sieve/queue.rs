//! The queue of the batches of one dataset, and the sums of its entries.

use super::CountedSection;
use super::batch::NO_BATCH;
use std::collections::BTreeMap;

/// The sums of the entries of a section.
#[derive(Debug, Default, Clone)]
pub(super) struct SectionTotals {
    pub(super) section: CountedSection,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) is_dropped: bool,
}

/// The batches of one dataset, from the oldest entry to the newest.
#[derive(Debug)]
pub(super) struct Queue {
    /// Its number, which no other queue has.
    pub(super) number: u32,
    pub(super) oldest: u32,
    pub(super) newest: u32,
    /// The batch and the index of the next position of the hand. `NO_BATCH`: behind the newest entry.
    pub(super) hand: (u32, u32),
    /// How many entries were added since the last return of the hand.
    pub(super) arrivals: u64,
    /// How often the hand has passed the newest entry since it found an entry to evict.
    pub(super) laps: u32,
    /// The sections by their numbers, which are in the batches.
    pub(super) totals: Vec<SectionTotals>,
    pub(super) unused_section_numbers: Vec<u32>,
    pub(super) section_numbers: BTreeMap<CountedSection, u32>,
    /// The name that was added last, if it is in the newest batch.
    pub(super) last: Vec<u8>,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// The number of batches.
    pub(super) batches: u32,
    /// The batch that the present pass of merges comes to next. `NO_BATCH`: there is no pass.
    pub(super) merging: u32,
    /// How many entries were removed since the last pass of merges began.
    pub(super) removed: u64,
}

/// The queue of the dataset, and that of a dataset that is being loaded beside it.
#[derive(Debug)]
pub(super) struct DatasetQueues {
    pub(super) here: Queue,
    pub(super) incoming: Queue,
}

impl DatasetQueues {
    pub(super) fn of(&self, is_incoming: bool) -> &Queue {
        match is_incoming {
            false => &self.here,
            true => &self.incoming,
        }
    }

    pub(super) fn of_mut(&mut self, is_incoming: bool) -> &mut Queue {
        match is_incoming {
            false => &mut self.here,
            true => &mut self.incoming,
        }
    }
}

impl Queue {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            oldest: NO_BATCH,
            newest: NO_BATCH,
            hand: (NO_BATCH, 0),
            arrivals: 0,
            laps: 0,
            totals: Vec::new(),
            unused_section_numbers: Vec::new(),
            section_numbers: BTreeMap::new(),
            last: Vec::new(),
            entries: 0,
            bytes: 0,
            batches: 0,
            merging: NO_BATCH,
            removed: 0,
        }
    }

    pub(super) fn put_hand_at_oldest(&mut self) {
        self.hand = (self.oldest, 0);
        self.arrivals = 0;
    }

    /// The number of a section, which is a new one if the section has none.
    pub(super) fn section_number(&mut self, section: CountedSection) -> u32 {
        *self.section_numbers.entry(section).or_insert_with(|| {
            let totals = SectionTotals {
                section,
                ..SectionTotals::default()
            };
            match self.unused_section_numbers.pop() {
                Some(number) => {
                    self.totals[number as usize] = totals;
                    number
                }
                None => {
                    self.totals.push(totals);
                    self.totals.len() as u32 - 1
                }
            }
        })
    }

    /// No name of a dropped section is left: its number is free.
    pub(super) fn reuse_dropped_section_numbers(&mut self) {
        for (totals, number) in self.totals.iter_mut().zip(0..) {
            if std::mem::take(&mut totals.is_dropped) {
                self.unused_section_numbers.push(number);
            }
        }
    }

    /// Takes a section out of the sums.
    pub(super) fn drop_section(&mut self, section: CountedSection) {
        if let Some(number) = self.section_numbers.remove(&section) {
            let totals = &mut self.totals[number as usize];
            totals.is_dropped = true;
            self.entries -= totals.entries;
            self.bytes -= totals.bytes;
        }
    }
}
