//! Histograms of times, for `INFO`. To count a time takes two additions, and no allocation.

use std::sync::atomic::{AtomicU64, Ordering};

/// The binary logarithm of the first bound, 64 us. Bound k is 2^(6+k) us.
const FIRST_BOUND_LOG2: u32 = 6;

/// The number of bounds. The last one is 2^35 us, which is 9.5 hours.
const BOUNDS: usize = 30;

/// How many times there were, by bounds that double. Only the main thread counts, so an addition need not be atomic.
#[derive(Debug)]
pub struct Histogram {
    /// The times up to each bound and above the one before it. The last bucket has the times above all bounds.
    buckets: [AtomicU64; BOUNDS + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// A histogram without times.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BOUNDS + 1],
            sum_us: AtomicU64::new(0),
        }
    }

    /// Counts the time between two moments (Unix us). If the clock was set back, the time is 0.
    #[inline(never)] // it is called where the surrounding code is inlined
    pub fn count_between(&self, since_us: u64, until_us: u64) {
        self.count(until_us.saturating_sub(since_us));
    }

    /// Counts a time in microseconds.
    #[inline]
    pub fn count(&self, time_us: u64) {
        // A time that equals a bound is in the bucket of this bound.
        let log2 = u64::BITS - time_us.saturating_sub(1).leading_zeros();
        let index = log2.saturating_sub(FIRST_BOUND_LOG2) as usize;
        add(&self.buckets[index.min(BOUNDS)], 1);
        add(&self.sum_us, time_us);
    }

    /// The number of all times.
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(get).sum()
    }

    /// The sum of all times in microseconds.
    pub fn sum_us(&self) -> u64 {
        get(&self.sum_us)
    }

    /// For each bound in microseconds, the number of times that do not exceed it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut sum = 0;
        let below = self.buckets[..BOUNDS].iter().enumerate();
        below.map(move |(index, bucket)| {
            sum += get(bucket);
            (1 << (index as u32 + FIRST_BOUND_LOG2), sum)
        })
    }
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn add(number: &AtomicU64, summand: u64) {
    number.store(get(number).wrapping_add(summand), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times up to a bound, counted one by one.
    fn up_to(times: &[u64], bound: u64) -> u64 {
        times.iter().filter(|time| **time <= bound).count() as u64
    }

    #[test]
    fn each_bound_has_the_times_that_do_not_exceed_it() {
        let histogram = Histogram::new();
        let mut times = vec![0, 1, 63, 64, 65, 128, 129, 1 << 35, (1 << 35) + 1, 1 << 40];
        times.extend((0..64).map(|log2| 3 << (log2 % 38)));
        for time in &times {
            histogram.count(*time);
        }
        let counted: Vec<_> = histogram.cumulative().collect();
        assert_eq!(counted.len(), 30);
        assert_eq!((counted[0].0, counted[29].0), (64, 1 << 35));
        for (bound, count) in counted {
            assert_eq!(count, up_to(&times, bound), "{bound}");
        }
        assert_eq!(histogram.total(), times.len() as u64);
        assert_eq!(histogram.sum_us(), times.iter().sum::<u64>());
    }

    #[test]
    fn a_clock_that_was_set_back_counts_as_no_time() {
        let histogram = Histogram::new();
        histogram.count_between(2000, 1000);
        histogram.count_between(1000, 2000);
        assert_eq!((histogram.total(), histogram.sum_us()), (2, 1000));
    }
}
