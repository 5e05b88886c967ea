//! Exact windows: the time of each call is remembered, so that no span of a window's length has more calls than the limit (a
//! sliding log).
//!
//! An entry of the log takes twelve bytes. Entries lie in chunks, so that the log grows and shrinks without moving all of
//! them. Each entry has the sum of all costs up to it, so that a binary search finds what a span contains, and when there is
//! room for a cost.

use super::decision::{RateDecision, RateVerdict, RequestCost, ceil_ms};
use crate::request::MAX_SAFE;
use std::collections::VecDeque;

/// The highest limit of an exact window.
pub const MAX_EXACT: u64 = 100_000;

/// The highest number of entries. Older ones cannot matter to any limit as long as these are in the window.
const MAX_ENTRIES: usize = MAX_EXACT as usize + 1;

/// The largest time and sum.
const MOST: u64 = MAX_SAFE as u64;

/// The log of the calls of one key.
#[derive(Debug, Clone)]
pub struct ExactWindow {
    /// The length of the window in microseconds.
    length: u64,
    chunks: VecDeque<TimeChunk>,
    /// The number of entries.
    count: usize,
    /// The sum of the costs that have left the window. Sums wrap around; differences of two sums do not.
    gone: u64,
    /// The sum of all costs.
    total: u64,
}

/// A part of the log.
#[derive(Debug, Clone)]
struct TimeChunk {
    /// The time of its first entry (Unix us).
    time: u64,
    /// The sum of the costs before its first entry.
    sum: u64,
    /// The entries before this one have left the window.
    first: usize,
    entries: Vec<ConsumedEntry>,
}

/// The number of entries of a full chunk.
const CHUNK: usize = 128;

/// A time and a sum, relative to those of the chunk, in twelve bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConsumedEntry([u8; 12]);

/// The bits of a sum in an entry; the others have the time.
const SUM_BITS: u32 = 46;

impl ConsumedEntry {
    /// `None`: a number is too large.
    fn new(time: u64, sum: u64) -> Option<Self> {
        if time >> (96 - SUM_BITS) != 0 || sum >> SUM_BITS != 0 {
            return None;
        }
        let bytes = (u128::from(time) << SUM_BITS | u128::from(sum)).to_le_bytes();
        bytes.first_chunk().copied().map(Self)
    }

    fn bits(self) -> u128 {
        let mut bytes = [0; 16];
        bytes[..12].copy_from_slice(&self.0);
        u128::from_le_bytes(bytes)
    }

    fn time(self) -> u64 {
        (self.bits() >> SUM_BITS) as u64
    }

    fn sum(self) -> u64 {
        self.bits() as u64 & ((1 << SUM_BITS) - 1)
    }
}

impl TimeChunk {
    /// The time of an entry (Unix us).
    fn time_of(&self, entry: ConsumedEntry) -> u64 {
        self.time + entry.time()
    }

    /// The sum of the costs up to an entry.
    fn sum_of(&self, entry: ConsumedEntry) -> u64 {
        self.sum.wrapping_add(entry.sum())
    }

    fn last(&self) -> (u64, u64) {
        let last = self.entries.last().copied();
        last.map_or((self.time, self.sum), |entry| {
            (self.time_of(entry), self.sum_of(entry))
        })
    }

    /// The entries that have not left the window.
    fn live(&self) -> &[ConsumedEntry] {
        self.entries.get(self.first..).unwrap_or(&[])
    }
}

impl PartialEq for ExactWindow {
    /// Two logs of the same calls are equal, whatever chunks they have.
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.entries().eq(other.entries())
    }
}

impl Eq for ExactWindow {}

impl ExactWindow {
    /// A window without calls. `length`: in microseconds.
    pub fn new(length: u64) -> Self {
        Self {
            length,
            chunks: VecDeque::new(),
            count: 0,
            gone: 0,
            total: 0,
        }
    }

    /// The length of the window in microseconds.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The sum of the costs of all entries.
    pub fn used(&self) -> u64 {
        self.total.wrapping_sub(self.gone)
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The entries, oldest first: the time of a call (Unix us) and its cost.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let entries = self.chunks.iter().flat_map(|chunk| {
            let each = chunk.live().iter();
            each.map(|entry| (chunk.time_of(*entry), chunk.sum_of(*entry)))
        });
        entries.scan(self.gone, |before, (time, sum)| {
            let cost = sum.wrapping_sub(*before);
            *before = sum;
            Some((time, cost))
        })
    }

    /// The bytes of the log in blocks of the allocator, each of which `block` measures.
    pub fn memory(&self, block: &impl Fn(usize) -> usize) -> usize {
        let chunks = self.chunks.iter();
        let entries =
            chunks.map(|chunk| block(size_of::<ConsumedEntry>() * chunk.entries.capacity()));
        block(size_of::<TimeChunk>() * self.chunks.capacity()) + entries.sum::<usize>()
    }

    /// When the last call leaves the window (Unix us); 0: there is none.
    pub fn end(&self) -> u64 {
        self.newest().map_or(0, |time| time + self.length)
    }

    fn newest(&self) -> Option<u64> {
        self.chunks.back().map(|chunk| chunk.last().0)
    }

    /// Decides a request. It changes nothing: an allowed request is recorded afterwards. `length` is in microseconds.
    pub fn decide(
        &self,
        limit: u64,
        length: u64,
        RequestCost {
            cost, is_counted, ..
        }: RequestCost,
        now: u64,
    ) -> RateDecision {
        let before = self.sum_until(now, length);
        let used = self.total.wrapping_sub(before);
        let wait = limit.checked_sub(cost).map(|room| {
            let over = used.saturating_sub(room);
            let leaves = (over > 0).then(|| self.time_of_sum(before.wrapping_add(over)));
            leaves.map_or(0, |time| time + length - now.min(time + length))
        });
        let verdict = match wait {
            None => RateVerdict::Never,
            Some(0) => RateVerdict::Allowed,
            Some(wait) => RateVerdict::Retry(ceil_ms(wait.into())),
        };
        let takes = if verdict == RateVerdict::Allowed && is_counted {
            cost
        } else {
            0
        };
        let newest = self.newest().filter(|_| used > 0);
        let end = match takes {
            0 => newest.map_or(now, |time| time + length),
            _ => now + length,
        };
        RateDecision {
            verdict,
            limit,
            remaining: limit.saturating_sub(used.saturating_add(takes)),
            reset: ceil_ms(end.saturating_sub(now).into()),
            tier: 0,
        }
    }

    /// Remembers a call. `length`: of the window that allowed it, in microseconds. If the clock was set back, later calls
    /// count as calls of now.
    pub fn record(&mut self, now: u64, cost: u64, length: u64) {
        let now = now.min(MOST);
        // Two configurations may be in use at once.
        self.remove_until(now, length.max(self.length));
        self.length = length;
        if cost == 0 {
            return;
        }
        let mut cost = cost.min(MOST);
        if self.newest().is_some_and(|newest| newest >= now) {
            let before = self.sum_before(now);
            cost = cost
                .saturating_add(self.total.wrapping_sub(before))
                .min(MOST);
            self.truncate(before);
        }
        // What is consumed is at most `MOST`: the oldest calls are forgotten.
        let over = (self.used() + cost).saturating_sub(MOST);
        if over > 0 {
            self.forget(self.gone.wrapping_add(over));
        }
        self.push(now, cost);
        if self.count > MAX_ENTRIES {
            self.merge_oldest();
        }
    }

    /// Gives back costs, at most all, those of the newest calls first.
    pub fn give_back(&mut self, count: u64) {
        self.truncate(self.total.wrapping_sub(count.min(self.used())));
    }

    /// Appends an entry. Its time is not before the others'.
    fn push(&mut self, time: u64, cost: u64) {
        self.total = self.total.wrapping_add(cost);
        self.count += 1;
        if let Some(chunk) = self.chunks.back_mut()
            && chunk.entries.len() < CHUNK
            && let Some(entry) =
                ConsumedEntry::new(time - chunk.time, self.total.wrapping_sub(chunk.sum))
        {
            if chunk.entries.len() == chunk.entries.capacity() {
                let more = chunk.entries.len() / 4 + 1; // a quarter of the memory is unused at most
                let most = CHUNK - chunk.entries.len();
                chunk.entries.reserve_exact(more.min(most));
            }
            return chunk.entries.push(entry);
        }
        // A cost that no entry can have is the part of a chunk: its sum is the one before, as far as possible.
        let sum = self.total.wrapping_sub(cost.min((1 << SUM_BITS) - 1));
        let entry = ConsumedEntry::new(0, self.total.wrapping_sub(sum));
        let is_small = self.chunks.is_empty();
        let mut entries = Vec::new();
        entries.reserve_exact(if is_small { 1 } else { 16 });
        entries.extend(entry);
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact(self.chunks.len() / 4 + 1);
        }
        self.chunks.push_back(TimeChunk {
            time,
            sum,
            first: 0,
            entries,
        });
    }

    /// The sum of the costs that have left a window of this length.
    fn sum_until(&self, now: u64, length: u64) -> u64 {
        match now.checked_sub(length) {
            Some(cutoff) => self.sum_before(cutoff + 1),
            None => self.gone,
        }
    }

    /// The sum of the costs of the calls before a time.
    fn sum_before(&self, time: u64) -> u64 {
        // The last chunk that begins earlier.
        let behind = self.chunks.partition_point(|chunk| chunk.time < time);
        let Some(chunk) = behind.checked_sub(1).and_then(|at| self.chunks.get(at)) else {
            return self.gone;
        };
        let live = chunk.live();
        let earlier = live.partition_point(|entry| chunk.time_of(*entry) < time);
        match earlier.checked_sub(1).and_then(|at| live.get(at)) {
            Some(entry) => chunk.sum_of(*entry),
            None => self.gone, // only the first chunk has entries that left
        }
    }

    /// The number of costs from the oldest one up to a sum.
    fn used_until(&self, sum: u64) -> i64 {
        sum.wrapping_sub(self.gone) as i64
    }

    /// The time of the call with which the sum of the costs reaches this one.
    fn time_of_sum(&self, sum: u64) -> u64 {
        let target = self.used_until(sum);
        let at = self
            .chunks
            .partition_point(|chunk| self.used_until(chunk.last().1) < target);
        let Some(chunk) = self.chunks.get(at) else {
            return 0;
        };
        let live = chunk.live();
        let at = live.partition_point(|entry| self.used_until(chunk.sum_of(*entry)) < target);
        live.get(at).map_or(0, |entry| chunk.time_of(*entry))
    }

    /// Removes the calls that have left a window of this length.
    fn remove_until(&mut self, now: u64, length: u64) {
        self.forget(self.sum_until(now, length));
    }

    /// Forgets the oldest costs up to a sum.
    fn forget(&mut self, sum: u64) {
        let target = self.used_until(sum);
        if target <= 0 {
            return;
        }
        while let Some(chunk) = self.chunks.front()
            && self.used_until(chunk.last().1) <= target
        {
            self.count -= chunk.live().len();
            self.chunks.pop_front();
        }
        let gone = self.gone;
        if let Some(chunk) = self.chunks.front_mut() {
            let base = chunk.sum;
            let used =
                |entry: &ConsumedEntry| base.wrapping_add(entry.sum()).wrapping_sub(gone) as i64;
            let left = chunk.live().partition_point(|entry| used(entry) <= target);
            chunk.first += left;
            self.count -= left;
        }
        self.gone = sum;
        self.shrink();
    }

    /// Removes the newest costs down to a sum.
    fn truncate(&mut self, sum: u64) {
        let target = self.used_until(sum);
        // The call that has the last of the remaining costs.
        let time = self.time_of_sum(sum);
        while let Some(chunk) = self.chunks.back() {
            let live = chunk.live();
            let keeps =
                live.partition_point(|entry| self.used_until(chunk.sum_of(*entry)) < target);
            self.count -= live.len() - keeps;
            if keeps == 0 {
                self.chunks.pop_back();
            } else if let Some(chunk) = self.chunks.back_mut() {
                chunk.entries.truncate(chunk.first + keeps);
                break;
            }
        }
        let last = self.chunks.back().map(|chunk| chunk.last().1);
        self.total = last.unwrap_or(self.gone);
        let rest = sum.wrapping_sub(self.total);
        if target > 0 && rest > 0 {
            self.push(time, rest);
        }
        self.shrink();
    }

    /// Makes the oldest two calls one, at the time of the second.
    fn merge_oldest(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.first += 1;
            self.count -= 1;
            if chunk.live().is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Returns unused memory to the allocator.
    fn shrink(&mut self) {
        if self.chunks.capacity() > 8 && self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }

    /// Appends an entry that [`ExactWindow::entries`] has returned. `None`: no log can have it there.
    pub fn load(&mut self, time: u64, cost: u64) -> Option<()> {
        let is_later = self.newest().is_none_or(|newest| newest < time);
        let fits = self.total.checked_add(cost).is_some_and(|sum| sum <= MOST);
        if !is_later || !fits || cost == 0 || time > MOST || self.count == MAX_ENTRIES {
            return None;
        }
        self.push(time, cost);
        Some(())
    }

    /// The blocks of the chunks from this one on.
    pub(super) fn blocks(&mut self, from: usize) -> impl Iterator<Item = &mut Vec<ConsumedEntry>> {
        let chunks = self.chunks.iter_mut().skip(from);
        chunks.map(|chunk| &mut chunk.entries)
    }

    /// Adds a cost to the newest call, or at the time 0 if there is none.
    pub fn add(&mut self, cost: u64) {
        self.record(self.newest().unwrap_or(0), cost, self.length);
    }
}
