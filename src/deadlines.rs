//! The list of deadlines of a family: the times at which the timer has to visit values.
//!
//! Each listed value has a number, which it carries along when it moves. The callbacks of a native type remove a value that leaves
//! its key and add a value that arrives at a key. For `RENAME` and `MOVE`, which have no such callback, keyspace events do it. A
//! listed time may be too early, and a listed key may be outdated, so a visitor checks the number of the value at the key.

use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::slots::{Ranges, contains, is_in_cluster, slot_of};
use crate::server::services::timer;
use std::cell::RefMut;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Bound::{Excluded, Included};

/// Stands for an unknown database.
const ANY_DB: i32 = -1;

/// The approximate bytes of the list per value.
pub const BYTES_PER_VALUE: usize = 128;

/// The values that the list looks at before it reads the clock again.
const STEP_SIZE: usize = 64;

/// The longest time until the next attempt, if the due work of a value cannot be done.
pub const MAX_RETRY_MS: u64 = 1000;

/// The position of a value in the list. The value contains it. It is not part of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The number in the list; 0: none yet.
    pub number: u64,
    /// The listed time (Unix ms), which is not later than the next deadline of the value. `u64::MAX`: not listed.
    pub at: u64,
}

impl Default for Listed {
    fn default() -> Self {
        Self {
            number: 0,
            at: u64::MAX,
        }
    }
}

impl Listed {
    /// The approximate bytes that the list uses for the value.
    pub fn memory(&self) -> usize {
        if self.at < u64::MAX {
            BYTES_PER_VALUE
        } else {
            0
        }
    }
}

/// The list of a family, and the list of a dataset that is loaded beside the present one and replaces it when it is complete. A
/// number is in one of the two lists at most.
pub struct Listing {
    here: MainThread<Deadlines>,
    incoming: MainThread<Deadlines>,
}

impl Listing {
    /// Two empty lists.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            here: MainThread::new(),
            incoming: MainThread::new(),
        }
    }

    /// The list of the present dataset.
    pub fn get(&self) -> RefMut<'_, Deadlines> {
        self.here.get()
    }

    /// Lists a value at a time (Unix ms). `u64::MAX`: removes it.
    pub fn list(&self, listed: &mut Listed, db: i32, key: &[u8], at: u64) {
        let mut here = self.here.get();
        listed.at = at;
        if at == u64::MAX {
            return here.remove(listed.number);
        }
        if listed.number == 0 {
            listed.number = here.next_number();
        }
        here.set(listed.number, db, key, at);
    }

    /// Lists a value that is loaded with a dataset.
    pub fn list_loaded(&self, listed: &mut Listed, db: i32, key: &[u8], at: u64) {
        if !deferred::loads_beside() {
            return self.list(listed, db, key, at);
        }
        if at < u64::MAX {
            let number = self.here.get().next_number();
            *listed = Listed { number, at };
            // Redis 7.0 and 7.2 report database 0 for all keys of such a dataset.
            let db = if db == 0 { ANY_DB } else { db };
            self.incoming.get().set(number, db, key, at);
        }
    }

    /// Removes a value that leaves its key.
    pub fn unlinked(&self, listed: &Listed) {
        if listed.number != 0 {
            self.here.get().remove(listed.number);
            self.incoming.get().remove(listed.number);
        }
    }

    /// Follows a server event that removes or moves whole databases or hash slots. This takes a few steps, however many values
    /// there are: [`Listing::go_on`] does the rest.
    pub fn moved(&self, event: &ServerEvent) {
        let mut here = self.here.get();
        match event {
            ServerEvent::Flushed(db) => here.flushed(*db),
            ServerEvent::Swapped(first, second) => here.swapped(*first, *second),
            ServerEvent::Replaced => here.replace(mem::take(&mut *self.incoming.get())),
            ServerEvent::Discarded => here.discard(mem::take(&mut *self.incoming.get())),
            ServerEvent::SlotsDropped(ranges) => here.dropped(ranges.clone()),
            _ => return,
        }
        if here.has_remains() {
            deferred::ask_for_slices();
        }
    }

    /// In a cluster: asks for slices in which parked values return to the list if this node owns their hash slots now.
    pub fn unpark(&self, ctx: Ctx<'_>) {
        if ctx.is_cluster() && self.here.get().begin_to_unpark() {
            deferred::ask_for_slices();
        }
    }

    /// Visits the value that is listed under this number. `visit` runs in the database of the value, with the name of its key. It
    /// compares the number, and returns whether the key holds the value. If the database is unknown, it runs in each one until it
    /// returns true. If no key holds the value, the value leaves the list. If this node does not own the hash slot, the value is
    /// parked, and `visit` does not run.
    pub fn visit(
        &self,
        ctx: Ctx<'_>,
        number: u64,
        mut visit: impl FnMut(&ServerString<'_>) -> bool,
    ) {
        let mut here = self.get();
        here.record_visit(Now::read().ms());
        let Some(listed) = here.key(number) else {
            return;
        };
        drop(here);
        let name = ServerString::new(&listed.key);
        if !cluster::owns(ctx, &name) {
            return self.get().park(number);
        }
        let mut visit_in = |db| ctx.in_db(db, || visit(&name));
        let is_found = match listed.db {
            ANY_DB => (0..).map_while(visit_in).any(|is_found| is_found),
            db => visit_in(db) == Some(true),
        };
        if !is_found {
            self.get().remove(number);
        }
    }

    /// Asks for slices if work is left. To be called about ten times a second.
    pub fn cron(&self, ctx: Ctx<'_>) {
        self.unpark(ctx);
        let here = &mut *self.here.get();
        here.follow_clock(Now::read().ms());
        if here.has_remains() || here.is_bringing_forward() {
            deferred::ask_for_slices();
        }
    }

    /// Does the work that events left, until the slice is over, but at least a step of it. Returns whether more work is possible.
    pub fn go_on(&self, ctx: Ctx<'_>, slice: &Slice) -> bool {
        while self.here.get().remove_remains(STEP_SIZE) {
            if slice.is_over() {
                return true;
            }
        }
        if !ctx.may_act() {
            return false; // the cron event asks again
        }
        while self.here.get().is_bringing_forward() {
            let now = Now::read().ms();
            self.here.get().bring_forward(now, STEP_SIZE);
            timer::arm(ctx, now);
            if slice.is_over() {
                return true;
            }
        }
        if !self.here.get().is_unparking() {
            return false;
        }
        let owns = cluster::owned_slots(ctx);
        let mut returned = 0;
        let is_left = loop {
            let (count, is_left) = self.here.get().unpark_some(&owns, STEP_SIZE);
            returned += count;
            if !is_left || slice.is_over() {
                break is_left;
            }
        };
        if returned > 0 {
            timer::arm(ctx, Now::read().ms());
        }
        is_left
    }
}

/// The key of a listed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedKey {
    /// The database; -1: unknown.
    pub db: i32,
    /// The key.
    pub key: Box<[u8]>,
}

/// A listed value.
#[derive(Debug)]
struct ListedValue {
    key: Box<[u8]>,
    at: u64,
    /// The [label](FlushLabels) of its database.
    label: u32,
    /// The hash slot of the key; 0 outside a cluster.
    slot: u16,
    is_parked: bool,
}

fn slot(key: &[u8]) -> u16 {
    if is_in_cluster() { slot_of(key) } else { 0 }
}

/// The values have the labels of their databases, so that databases are exchanged or emptied in one step. The label of a database
/// is its number, until the database is exchanged or emptied.
#[derive(Debug, Default)]
struct FlushLabels {
    of_db: BTreeMap<i32, u32>,
    /// `None`: the database of this label was emptied.
    to_db: BTreeMap<u32, Option<i32>>,
    last: u32,
}

impl FlushLabels {
    /// Labels from here on are not the number of a database. [`ANY_DB`] has the last one.
    const FIRST: u32 = 1 << 31;

    fn of(&self, db: i32) -> u32 {
        let label = self.of_db.get(&db).copied();
        label.unwrap_or(db.cast_unsigned())
    }

    /// The database with this label. `None`: it was emptied.
    fn db(&self, label: u32) -> Option<i32> {
        let db = self.to_db.get(&label).copied();
        db.unwrap_or(Some(label.cast_signed()))
    }

    fn give(&mut self, db: i32, label: u32) {
        self.of_db.insert(db, label);
        self.to_db.insert(label, Some(db));
    }

    fn swap(&mut self, first: i32, second: i32) {
        let labels = (self.of(first), self.of(second));
        self.give(first, labels.1);
        self.give(second, labels.0);
    }

    fn flush(&mut self, db: i32) {
        self.to_db.insert(self.of(db), None);
        loop {
            self.last = self.last.wrapping_add(1) % (ANY_DB.cast_unsigned() - Self::FIRST);
            if !self.to_db.contains_key(&(Self::FIRST + self.last)) {
                break;
            }
        }
        self.give(db, Self::FIRST + self.last);
    }

    /// Forgets the labels of emptied databases. No value has them any more.
    fn forget_flushed(&mut self) {
        self.to_db.retain(|_, db| db.is_some());
    }
}

/// The values of a list.
#[derive(Debug, Default)]
struct ListedValues {
    by_time: BTreeSet<(u64, u64)>,
    by_number: BTreeMap<u64, ListedValue>,
    /// The hash slots and numbers of parked values: they are due, but this node does not own their hash slots.
    parked: BTreeSet<(u16, u64)>,
}

impl ListedValues {
    fn is_empty(&self) -> bool {
        self.by_number.is_empty() && self.by_time.is_empty() && self.parked.is_empty()
    }

    fn remove(&mut self, number: u64) {
        if let Some(value) = self.by_number.remove(&number) {
            self.by_time.remove(&(value.at, number));
            self.parked.remove(&(value.slot, number));
        }
    }

    /// Frees `most` entries.
    fn free(&mut self, most: usize) {
        for _ in 0..most {
            let is_over = self.by_time.pop_first().is_none() & self.parked.pop_first().is_none();
            if self.by_number.pop_first().is_none() && is_over {
                return;
            }
        }
    }
}

/// The search for the values of emptied databases and dropped hash slots, in the order of their numbers.
#[derive(Debug, Default)]
struct RemainsSweep {
    /// The next number to look at. `None`: there is nothing to search for.
    next: Option<u64>,
    /// Whether there is more to search for since the search began.
    begins_again: bool,
    /// The dropped hash slots. Values with a number up to this one may have been in them.
    dropped: Vec<(Ranges, u64)>,
    /// The values that were listed again meanwhile, each with the length of `dropped` at that time.
    listed_again: BTreeMap<u64, usize>,
}

impl RemainsSweep {
    fn begin(&mut self) {
        self.begins_again = self.next.is_some();
        self.next.get_or_insert(0);
    }
}

/// The listed values, by time, number and parked hash slot. Values that an event removed all at once stay in the list until
/// [`Deadlines::remove_remains`] or [`Deadlines::key`] meets them.
#[derive(Debug, Default)]
pub struct Deadlines {
    last: u64,
    values: ListedValues,
    labels: FlushLabels,
    sweep: RemainsSweep,
    /// The values of former lists, which are to be freed.
    former: VecDeque<ListedValues>,
    /// The parked values of hash slots from this one on return to the list if this node owns them. `None`: none do now.
    unparks_from: Option<u16>,
    /// The time (Unix ms) of the last visit, or that of [`Deadlines::follow_clock`] since.
    clock: u64,
    /// The values from here on, up to a time (Unix ms), are [brought forward](Deadlines::bring_forward). `None`: no value is.
    brings_forward: Option<((u64, u64), u64)>,
}

impl Deadlines {
    /// The number of values, with parked values and values that are still to be removed.
    pub fn len(&self) -> usize {
        self.values.by_number.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.values.by_number.is_empty()
    }

    /// Replaces all values by those of another list, whose numbers came from [`Deadlines::next_number`] of this one.
    pub fn replace(&mut self, others: Self) {
        let others = Self {
            last: self.last,
            clock: self.clock,
            ..others
        };
        let former = mem::replace(self, others);
        self.discard(former);
    }

    /// Frees another list, step by step.
    pub fn discard(&mut self, other: Self) {
        let values = other.former.into_iter().chain([other.values]);
        self.former
            .extend(values.filter(|values| !values.is_empty()));
    }

    /// A number that no value has had before.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Lists a value at a time (Unix ms), or changes its key and its time. A parked value returns to the list.
    pub fn set(&mut self, number: u64, db: i32, key: &[u8], at: u64) {
        self.set_in(number, db, key, at, slot);
    }

    fn set_in(&mut self, number: u64, db: i32, key: &[u8], at: u64, slot: impl Fn(&[u8]) -> u16) {
        let (label, values) = (self.labels.of(db), &mut self.values);
        values.by_time.insert((at, number));
        match values.by_number.get_mut(&number) {
            Some(value) => {
                if value.at != at {
                    values.by_time.remove(&(value.at, number));
                }
                if value.is_parked {
                    values.parked.remove(&(value.slot, number));
                    value.is_parked = false;
                }
                (value.label, value.at) = (label, at);
                if !self.sweep.dropped.is_empty() {
                    let dropped = self.sweep.dropped.len();
                    self.sweep.listed_again.insert(number, dropped);
                }
                if *value.key != *key {
                    (value.key, value.slot) = (key.into(), slot(key));
                }
            }
            None => {
                let value = ListedValue {
                    key: key.into(),
                    at,
                    label,
                    slot: slot(key),
                    is_parked: false,
                };
                values.by_number.insert(number, value);
            }
        }
    }

    /// Removes a value.
    pub fn remove(&mut self, number: u64) {
        self.values.remove(number);
    }

    /// Parks a value that is due, until this node [owns its hash slot](Self::unpark_some).
    pub fn park(&mut self, number: u64) {
        if let Some(value) = self.values.by_number.get_mut(&number) {
            self.values.by_time.remove(&(value.at, number));
            self.values.parked.insert((value.slot, number));
            value.is_parked = true;
        }
    }

    /// Begins to return parked values to the list. Returns whether there are any.
    pub fn begin_to_unpark(&mut self) -> bool {
        let is_any = !self.values.parked.is_empty();
        self.unparks_from = is_any.then_some(0);
        is_any
    }

    /// Whether parked values are to return to the list.
    pub fn is_unparking(&self) -> bool {
        self.unparks_from.is_some()
    }

    /// Looks at `most` parked values and hash slots, and returns the values to the list whose hash slots this node owns. Returns
    /// how many have returned, and whether there are more to look at.
    pub fn unpark_some(&mut self, owns: impl Fn(u16) -> bool, most: usize) -> (usize, bool) {
        let mut returned = 0;
        for _ in 0..most {
            let first = self.unparks_from.and_then(|from| {
                let mut parked = self.values.parked.range((from, 0)..);
                parked.next().copied()
            });
            let Some((slot, number)) = first else {
                self.unparks_from = None;
                return (returned, false);
            };
            if !owns(slot) {
                self.unparks_from = Some(slot + 1);
                continue;
            }
            self.values.parked.remove(&(slot, number));
            if let Some(value) = self.values.by_number.get_mut(&number) {
                value.is_parked = false;
                self.values.by_time.insert((value.at, number));
            }
            returned += 1;
        }
        (returned, true)
    }

    /// Notes a time (Unix ms) at which a value is visited, and perhaps listed again for a later attempt.
    pub fn record_visit(&mut self, now: u64) {
        self.clock = self.clock.max(now);
    }

    /// Notes the time. If the clock was set back, the times of next attempts are still those of the old clock, perhaps hours away. So all
    /// values with times up to the old clock plus [`MAX_RETRY_MS`] are brought forward.
    pub fn follow_clock(&mut self, now: u64) {
        let before = mem::replace(&mut self.clock, now);
        if now < before {
            let pending = self.brings_forward.map_or(0, |(_, until)| until);
            let until = pending.max(before + MAX_RETRY_MS);
            self.brings_forward = Some(((now, u64::MAX), until));
        }
    }

    /// Whether values are to be brought forward.
    pub fn is_bringing_forward(&self) -> bool {
        self.brings_forward.is_some()
    }

    /// Brings `most` values forward to `now` (Unix ms). Each is visited once, and listed again.
    pub fn bring_forward(&mut self, now: u64, most: usize) {
        let Some((from, until)) = self.brings_forward else {
            return;
        };
        let later = (Excluded(from), Included((until, u64::MAX)));
        let brought: Vec<_> = self
            .values
            .by_time
            .range(later)
            .take(most)
            .copied()
            .collect();
        self.brings_forward = match brought.last() {
            Some(last) if brought.len() == most => Some((*last, until)),
            _ => None,
        };
        for (at, number) in brought {
            if let Some(value) = self.values.by_number.get_mut(&number) {
                self.values.by_time.remove(&(at, number));
                self.values.by_time.insert((now, number));
                value.at = now;
            }
        }
    }

    /// The first time (Unix ms), and the number of its value, which [`Deadlines::key`] may find removed.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.values.by_time.first().copied()
    }

    /// The key of a value. `None`: there is no such value. If an event removed it, this removes it from the list.
    pub fn key(&mut self, number: u64) -> Option<ListedKey> {
        let value = self.values.by_number.get(&number)?;
        if self.is_gone(number, value) {
            self.remove(number);
            return None;
        }
        Some(ListedKey {
            db: self.labels.db(value.label)?,
            key: value.key.clone(),
        })
    }

    /// Removes all values in these ranges of hash slots.
    pub fn dropped(&mut self, ranges: Ranges) {
        if !self.is_empty() {
            self.sweep.dropped.push((ranges, self.last));
            self.sweep.begin();
        }
    }

    /// Removes all values of a database; `None`: of all databases.
    pub fn flushed(&mut self, db: Option<i32>) {
        match db {
            None => self.replace(Self::default()),
            Some(_) if self.is_empty() => {}
            Some(db) => {
                self.labels.flush(db);
                self.sweep.begin();
            }
        }
    }

    /// Exchanges two databases.
    pub fn swapped(&mut self, first: i32, second: i32) {
        if !self.is_empty() {
            self.labels.swap(first, second);
        }
    }

    /// Whether an event removed the value.
    fn is_gone(&self, number: u64, value: &ListedValue) -> bool {
        let since = self.sweep.listed_again.get(&number);
        let mut dropped = self.sweep.dropped.iter().skip(since.copied().unwrap_or(0));
        self.labels.db(value.label).is_none()
            || dropped.any(|(ranges, last)| number <= *last && contains(ranges, value.slot))
    }

    /// Whether values that an event removed may still be in the list.
    pub fn has_remains(&self) -> bool {
        self.sweep.next.is_some() || !self.former.is_empty()
    }

    /// Looks at `most` values and frees those that an event removed. Returns whether there are more to look at.
    pub fn remove_remains(&mut self, most: usize) -> bool {
        if let Some(values) = self.former.front_mut() {
            values.free(most);
            if values.is_empty() {
                self.former.pop_front();
            }
            return self.has_remains();
        }
        let Some(from) = self.sweep.next else {
            return false;
        };
        let values = self.values.by_number.range(from..).take(most);
        let values: Vec<_> = values
            .map(|(number, value)| (*number, self.is_gone(*number, value)))
            .collect();
        for (number, _) in values.iter().filter(|(_, is_gone)| *is_gone) {
            self.remove(*number);
        }
        self.sweep.next = match values.last() {
            Some((last, _)) if values.len() == most => Some(last + 1),
            _ if mem::take(&mut self.sweep.begins_again) => Some(0),
            _ => {
                self.labels.forget_flushed();
                self.sweep.dropped.clear();
                self.sweep.listed_again.clear();
                None
            }
        };
        self.has_remains()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(list: &Deadlines) -> Vec<(u64, i32, &[u8])> {
        let values = &list.values;
        let numbers = values.by_time.iter();
        let numbers = numbers.map(|(at, number)| (at, number, &values.by_number[number]));
        let shown = numbers.filter(|(_, number, value)| !list.is_gone(**number, value));
        let shown = shown.map(|(at, _, value)| {
            let db = list.labels.db(value.label).expect("it has a database");
            (*at, db, &*value.key)
        });
        shown.collect()
    }

    #[test]
    fn values_are_visited_early_if_the_clock_was_set_back() {
        let mut list = Deadlines::default();
        list.follow_clock(1_000_000);
        let times = [900_000, 950_000, 1_000_500, 1_001_000, 1_001_101, 5_000_000];
        for at in times {
            let number = list.next_number();
            list.set(number, 0, b"k", at);
        }
        list.follow_clock(1_000_100);
        assert!(!list.is_bringing_forward());
        list.follow_clock(950_000);
        list.follow_clock(900_000);
        let mut steps = 0;
        while list.is_bringing_forward() {
            list.bring_forward(900_000, 2);
            // The first value is visited and listed at its own time again.
            list.set(2, 0, b"k", 950_000);
            steps += 1;
        }
        let listed: Vec<u64> = list.values.by_time.iter().map(|(at, _)| *at).collect();
        assert_eq!(
            listed,
            [900_000, 900_000, 900_000, 950_000, 1_001_101, 5_000_000]
        );
        assert!(steps <= 3);
    }

    fn slots(ranges: &[(u16, u16)]) -> Ranges {
        ranges.into()
    }

    #[test]
    fn the_first_value_has_the_earliest_time_after_every_change() {
        let mut list = Deadlines::default();
        let [a, b, c] = [(); 3].map(|()| list.next_number());
        list.set(a, 0, b"a", 30);
        list.set(b, 0, b"b", 10);
        list.set(c, 1, b"c", 20);
        assert_eq!(list.first(), Some((10, b)));
        list.set(b, 0, b"renamed", 40);
        assert_eq!(
            all(&list),
            [(20, 1, &b"c"[..]), (30, 0, b"a"), (40, 0, b"renamed")]
        );
        list.swapped(0, 1);
        assert_eq!(
            all(&list),
            [(20, 0, &b"c"[..]), (30, 1, b"a"), (40, 1, b"renamed")]
        );
        list.remove(a);
        list.flushed(Some(0));
        assert_eq!(all(&list), [(40, 1, &b"renamed"[..])]);
        assert_eq!((list.first(), list.key(c)), (Some((20, c)), None));
        assert_eq!(list.first(), Some((40, b)));
        list.remove(b);
        list.set(c, 1, b"c", 20);
        list.set(a, 1, b"a", 30);
        list.park(c);
        list.set(c, 1, b"c", 50);
        assert!(!list.begin_to_unpark());
        list.park(a);
        assert_eq!(list.first(), Some((50, c)));
        assert!(list.begin_to_unpark());
        assert_eq!(list.unpark_some(|_| true, 9), (1, false));
        assert_eq!(list.first(), Some((30, a)));
        list.park(a);
        list.dropped(slots(&[(1, 16383)]));
        while list.remove_remains(1) {}
        assert_eq!(list.len(), 2);
        list.dropped(slots(&[(0, 0)]));
        while list.remove_remains(1) {}
        assert!(list.is_empty() && list.first().is_none() && !list.begin_to_unpark());
        list.set(b, 0, b"b", 1);
        list.flushed(None);
        assert!(list.is_empty() && list.first().is_none());
        list.set(a, 0, b"old", 5);
        let (d, mut others) = (list.next_number(), Deadlines::default());
        others.set(d, 3, b"new", 7);
        list.replace(others);
        assert_eq!(all(&list), [(7, 3, &b"new"[..])]);
        assert!(list.next_number() > d);
    }

    const MANY: u64 = 10_000;

    /// A list of values in databases 0 and 1, in hash slots 0 to 9.
    fn many() -> Deadlines {
        let mut list = Deadlines::default();
        for _ in 0..MANY {
            let number = list.next_number();
            let db = i32::from(number % 2 == 0);
            list.set_in(number, db, b"key", number, |_| (number % 10) as u16);
        }
        list
    }

    fn entries(list: &Deadlines) -> usize {
        let former = list.former.iter();
        former
            .chain([&list.values])
            .map(|values| values.by_number.len() + values.by_time.len() + values.parked.len())
            .sum()
    }

    /// Panics if the event removes values at once, or if a step removes or looks at more of them than it may. Returns the number
    /// of values in the end.
    #[track_caller]
    fn remove_in_steps(mut list: Deadlines, event: impl FnOnce(&mut Deadlines)) -> usize {
        const STEP: usize = 100;
        let before = entries(&list);
        event(&mut list);
        assert_eq!(entries(&list), before, "the event itself removed values");
        for steps in 1.. {
            let before = entries(&list);
            let is_left = list.remove_remains(STEP);
            assert!(before - entries(&list) <= 2 * STEP);
            if !is_left {
                // An empty step may show the end.
                let expected = MANY as usize / STEP;
                assert!((expected..=expected + 1).contains(&steps), "{steps} steps");
                break;
            }
        }
        assert!(!list.has_remains());
        list.len()
    }

    #[test]
    fn however_many_values_an_event_removes_it_takes_small_steps() {
        let half = MANY as usize / 2;
        assert_eq!(remove_in_steps(many(), |list| list.flushed(Some(1))), half);
        assert_eq!(remove_in_steps(many(), |list| list.flushed(None)), 0);
        assert_eq!(
            remove_in_steps(many(), |list| list.replace(Deadlines::default())),
            0
        );
        assert_eq!(
            remove_in_steps(many(), |list| list.dropped(slots(&[(5, 9)]))),
            half
        );
        let mut list = many();
        list.swapped(0, 1);
        assert!(!list.has_remains());
        assert_eq!(list.key(1).map(|listed| listed.db), Some(1));
    }

    #[test]
    fn all_hash_slots_together_return_no_more_values_in_a_step_than_one() {
        let mut list = many();
        (1..=MANY).for_each(|number| list.park(number));
        assert!(list.begin_to_unpark() && list.first().is_none());
        let mut returned = 0;
        for steps in 1.. {
            let (count, is_left) = list.unpark_some(|slot| slot % 2 == 0, 100);
            returned += count;
            assert!(count <= 100);
            if !is_left {
                assert!(steps <= MANY / 2 / 100 + 1, "{steps} steps");
                break;
            }
        }
        assert_eq!(returned as u64, MANY / 2);
        assert_eq!(list.values.by_time.len(), returned);
        assert!(!list.is_unparking());
    }

    /// A value as a naive list has it: database, key, time, whether it is parked. Its hash slot is the first byte of its key.
    type NaiveValue = (i32, Vec<u8>, u64, bool);

    fn naive_slot(key: &[u8]) -> u16 {
        u16::from(key[0])
    }

    #[derive(Debug, Clone)]
    enum ListStep {
        /// Lists a new value, or changes one.
        Set(Option<u8>, i32, u8, u64),
        Remove(u8),
        Park(u8),
        /// Parked values return whose hash slots have this remainder.
        Unpark(u16),
        Flush(Option<i32>),
        Swap(i32, i32),
        Drop(u16, u16),
        /// A dataset of so many values replaces this one.
        Replace(u8),
        /// Values that events removed are looked for, so many at most.
        Clean(usize),
        /// The first value is visited.
        Visit,
    }

    fn list_step() -> impl Strategy<Value = ListStep> {
        let (db, number) = (-1..3, any::<u8>());
        prop_oneof![
            30 => (prop::option::of(any::<u8>()), db.clone(), 0..6u8, 0..100u64)
                .prop_map(|(which, db, key, at)| ListStep::Set(which, db, key, at)),
            5 => number.prop_map(ListStep::Remove),
            5 => number.prop_map(ListStep::Park),
            2 => (0..2u16).prop_map(ListStep::Unpark),
            2 => (0..3).prop_map(|db| ListStep::Flush(Some(db))),
            1 => Just(ListStep::Flush(None)),
            3 => (0..3, 0..3).prop_map(|(first, second)| ListStep::Swap(first, second)),
            2 => (0..6u16, 0..3u16).prop_map(|(first, more)| ListStep::Drop(first, first + more)),
            1 => (0..9u8).prop_map(ListStep::Replace),
            10 => (1..6usize).prop_map(ListStep::Clean),
            5 => Just(ListStep::Visit),
        ]
    }

    fn take(list: &mut Deadlines, naive: &mut BTreeMap<u64, NaiveValue>, step: &ListStep) {
        let some = |naive: &BTreeMap<u64, NaiveValue>, which: u8| {
            let which = usize::from(which) % naive.len().max(1);
            naive.keys().nth(which).copied()
        };
        match *step {
            ListStep::Set(which, db, key, at) => {
                let known = which.and_then(|which| some(naive, which));
                let number = known.unwrap_or_else(|| list.next_number());
                list.set_in(number, db, &[key], at, naive_slot);
                naive.insert(number, (db, vec![key], at, false));
            }
            ListStep::Remove(which) => {
                if let Some(number) = some(naive, which) {
                    list.remove(number);
                    naive.remove(&number);
                }
            }
            ListStep::Park(which) => {
                if let Some(number) = some(naive, which) {
                    list.park(number);
                    naive.entry(number).and_modify(|value| value.3 = true);
                }
            }
            ListStep::Unpark(rest) => {
                list.begin_to_unpark();
                while list.unpark_some(|slot| slot % 2 == rest, 3).1 {}
                let owned = naive.values_mut();
                owned
                    .filter(|value| naive_slot(&value.1) % 2 == rest)
                    .for_each(|value| value.3 = false);
            }
            ListStep::Flush(db) => {
                list.flushed(db);
                naive.retain(|_, value| db.is_some_and(|db| value.0 != db));
            }
            ListStep::Swap(first, second) => {
                list.swapped(first, second);
                for value in naive.values_mut() {
                    value.0 = match value.0 {
                        db if db == first => second,
                        db if db == second => first,
                        db => db,
                    };
                }
            }
            ListStep::Drop(first, last) => {
                list.dropped(slots(&[(first, last)]));
                naive.retain(|_, value| !(first..=last).contains(&naive_slot(&value.1)));
            }
            ListStep::Replace(count) => {
                let mut others = Deadlines::default();
                naive.clear();
                for key in 0..count {
                    let number = list.next_number();
                    others.set_in(number, 1, &[key], 5, naive_slot);
                    naive.insert(number, (1, vec![key], 5, false));
                }
                list.replace(others);
            }
            ListStep::Clean(most) => {
                list.remove_remains(most);
            }
            ListStep::Visit => {
                if let Some((_, number)) = list.first() {
                    let listed = list.key(number).map(|listed| (listed.db, listed.key));
                    let expected = naive.get(&number);
                    let expected = expected.map(|value| (value.0, value.1.clone().into()));
                    assert_eq!(listed, expected);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_list_is_that_of_a_naive_list_which_does_everything_at_once(
            steps in prop::collection::vec(list_step(), 0..80)
        ) {
            let (mut list, mut naive) = (Deadlines::default(), BTreeMap::new());
            for step in &steps {
                take(&mut list, &mut naive, step);
                let here = list.values.by_number.iter();
                let here = here.filter(|(number, value)| !list.is_gone(**number, value));
                let here: Vec<_> = here
                    .map(|(number, value)| {
                        let db = list.labels.db(value.label).expect("it has a database");
                        (*number, (db, value.key.to_vec(), value.at, value.is_parked))
                    })
                    .collect();
                let expected: Vec<_> = naive.iter().map(|(number, value)| (*number, value.clone())).collect();
                prop_assert_eq!(here, expected);
                let values = &list.values;
                prop_assert_eq!(values.by_time.len() + values.parked.len(), values.by_number.len());
            }
            while list.remove_remains(3) {}
            prop_assert_eq!(entries(&list), 2 * naive.len());
            let listed = naive.iter().filter(|(_, value)| !value.3);
            let first = listed.map(|(number, value)| (value.2, *number)).min();
            prop_assert_eq!(list.first(), first);
        }
    }
}
