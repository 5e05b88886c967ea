//! Changes of whole datasets, without an event for each key: databases are emptied or change places, hash slots are dropped, and
//! a dataset takes the place of another one. The memory of the entries that have gone is freed in slices.

use super::batch::{BATCH_NAMES, EntryPosition, NO_BATCH};
use super::queue::Queue;
use super::{CountedSection, Sieve};

impl Sieve {
    /// Drops the sums and begins to count anew: the caller shows each entry, in whatever order, and adds those that are not
    /// [counted](Self::is_counted). The positions from before do not come back until the count has ended.
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

    /// The caller has checked that all entries are in database 0.
    pub fn confirm_database_0(&mut self) {
        self.may_misplace = false;
    }

    /// All keys of the hash slots for which `is_dropped` returns true were dropped.
    pub fn drop_slots(&mut self, is_dropped: impl Fn(u16) -> bool) {
        self.has_dropped_slots = true;
        self.drop_sections(|(_, slot)| is_dropped(slot));
    }

    /// A database was emptied; `None`: all of them.
    pub fn flush(&mut self, db: Option<i32>) {
        match db {
            None => self.drop_queue(),
            Some(db) => self.drop_sections(|section| section.0 == db),
        }
    }

    /// Everything in these sections has gone without an event for each key.
    fn drop_sections(&mut self, is_dropped: impl Fn(CountedSection) -> bool) {
        let sections: Vec<_> = self
            .queues
            .here
            .section_numbers
            .keys()
            .copied()
            .filter(|section| is_dropped(*section))
            .collect();
        for section in sections {
            self.queues.here.drop_section(section);
        }
        if self.queues.here.entries == 0 {
            self.drop_queue();
        } else {
            self.swept = self.queues.here.oldest;
        }
    }

    /// Two databases have changed places.
    pub fn swap(&mut self, first: i32, second: i32) {
        let queue = &mut self.queues.here;
        let swapped = |db| match db {
            db if db == first => second,
            db if db == second => first,
            db => db,
        };
        for totals in &mut queue.totals {
            totals.section.0 = swapped(totals.section.0);
        }
        let sections = std::mem::take(&mut queue.section_numbers).into_iter();
        queue.section_numbers = sections
            .map(|((db, slot), number)| ((swapped(db), slot), number))
            .collect();
    }

    /// The dataset that was loaded beside the present one has replaced it.
    pub fn replace(&mut self) {
        self.drop_queue();
        self.last_queue += 1;
        let next = Queue::new(self.last_queue);
        self.queues.here = std::mem::replace(&mut self.queues.incoming, next);
        let in_first = |section: &CountedSection| section.0 == 0;
        self.may_misplace =
            self.queues.here.entries > 0 && self.queues.here.section_numbers.keys().all(in_first);
    }

    /// The dataset that was loaded beside the present one is given up.
    pub fn discard(&mut self) {
        self.last_queue += 1;
        let dropped = std::mem::replace(&mut self.queues.incoming, Queue::new(self.last_queue));
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
                if newer == NO_BATCH {
                    self.queues.here.reuse_dropped_section_numbers();
                }
            } else {
                return false;
            }
        }
        self.has_leftovers()
    }

    /// Whether [`Self::collect`] has something to do.
    pub fn has_leftovers(&self) -> bool {
        !self.dropped.is_empty() || self.swept != NO_BATCH
    }

    fn sweep(&mut self, id: u32) {
        let Some(batch) = self.batch(id) else {
            return;
        };
        let totals = &self.queues.here.totals;
        let mut dead = 0;
        batch.each_name(|index, number, _| {
            if totals[number as usize].is_dropped {
                dead |= 1 << index;
            }
        });
        let dead = dead & batch.live;
        for index in (0..BATCH_NAMES).filter(|index| dead & 1 << index != 0) {
            self.take_out(EntryPosition::new(id, index));
        }
    }

    fn drop_queue(&mut self) {
        self.last_queue += 1;
        let dropped = std::mem::replace(&mut self.queues.here, Queue::new(self.last_queue));
        self.dropped.push(dropped.oldest);
        self.swept = NO_BATCH;
    }
}
