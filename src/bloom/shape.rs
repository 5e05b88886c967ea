//! The size of a layer.
//!
//! A layer is an array of blocks, and each item uses one block. The load of a block (its number of items) is nearly Poisson
//! distributed. The false positive rate of the layer is the mean of the rates of blocks of all loads (Putze, Sanders and Singler,
//! "Cache-, Hash- and Space-Efficient Bloom Filters", 2007). There is no closed form. [`shape`] searches for the smallest number
//! of blocks that keeps the rate, and for the best number of probes.

use super::block::BLOCK_BITS;
use std::cell::RefCell;

/// The largest capacity of a layer. It exceeds any memory, and the capacities of all layers together stay below 2^53.
pub const MAX_LAYER_CAPACITY: u64 = 1 << 45;

/// The shape of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloomShape {
    /// The capacity in items, at least 1.
    pub capacity: u64,
    /// The number of blocks of [`BLOCK_BITS`] bits, at least 1.
    pub blocks: u64,
    /// The number of bits that an item sets in its block, 1 to [`MAX_PROBES`].
    pub probes: u32,
}

/// The largest number of bits that an item sets.
pub const MAX_PROBES: u32 = 64;

/// The largest mean load of a block: one item per bit.
const MAX_LOAD: f64 = BLOCK_BITS as f64;

/// The share of a filter's false positive rate for its first layer, and for all later layers together. The rest is a margin,
/// because the rates of two filters of one size differ by chance.
const FIRST_SHARE: f64 = 0.8;
const LATER_SHARE: f64 = 0.125;

/// The false positive rate of layer `index` of a filter with the rate `error`. The sum over any number of layers stays below
/// `error`, because 1/(1·2) + 1/(2·3) + ... = 1.
pub fn layer_error(error: f64, index: usize) -> f64 {
    match index as f64 {
        0.0 => error * FIRST_SHARE,
        index => error * LATER_SHARE / (index * (index + 1.0)),
    }
}

/// The number of cached shapes.
const REMEMBERED: usize = 16;

thread_local! {
    /// The shapes that were computed last, each with the bits of its rate. A search takes some hundred thousand instructions, and
    /// most filters have the same shape. The cache does not change a result.
    static LAST: RefCell<Vec<(u64, BloomShape)>> = const { RefCell::new(Vec::new()) };
}

/// The smallest layer with at most the false positive rate `error` (between 0 and 1) at `capacity` items (1 or more). `None`: the
/// layer would have more than 2^63 blocks.
pub fn shape(error: f64, capacity: u64) -> Option<BloomShape> {
    let same =
        |(bits, shape): &&(u64, BloomShape)| *bits == error.to_bits() && shape.capacity == capacity;
    LAST.with_borrow_mut(|last| {
        if let Some((_, shape)) = last.iter().find(same) {
            return Some(*shape);
        }
        let shape = search(error, capacity)?;
        if last.len() == REMEMBERED {
            last.remove(0);
        }
        last.push((error.to_bits(), shape));
        Some(shape)
    })
}

/// Searches from the number of probes of a classic Bloom filter in both directions, as long as the number of blocks falls. Then
/// chooses the number of probes with the lowest rate for this number of blocks.
fn search(error: f64, capacity: u64) -> Option<BloomShape> {
    let guess = (-error.log2()).ceil().clamp(1.0, f64::from(MAX_PROBES)) as u32;
    let mut best = with_probes(error, capacity, guess)?;
    for step in [-1, 1] {
        let mut probes = guess;
        while let Some(next) = probes.checked_add_signed(step)
            && (1..=MAX_PROBES).contains(&next)
            && let Some(shape) = with_probes(error, capacity, next)
            && shape.blocks < best.blocks
        {
            best = shape;
            probes = next;
        }
    }
    let blocks = best.blocks as f64;
    let rate = |probes: &u32| worst_rate(capacity as f64 / blocks, *probes, blocks);
    let all = 1..=best.probes.max(guess);
    let probes = all.min_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    Some(BloomShape { probes, ..best })
}

/// The smallest number of blocks that keeps a false positive rate with this number of probes: a binary search for the load.
fn with_probes(error: f64, capacity: u64, probes: u32) -> Option<BloomShape> {
    let items = capacity as f64;
    let keeps = |load: f64| worst_rate(load, probes, items / load) <= error;
    let (mut low, mut high) = (0.0, MAX_LOAD.min(items));
    if !keeps(high) {
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if keeps(middle) {
                low = middle;
            } else {
                high = middle;
            }
            if high - low < low * 1e-4 {
                break;
            }
        }
    } else {
        low = high;
    }
    let blocks = (items / low).ceil();
    (blocks < u64::MAX as f64 / 2.0).then_some(BloomShape {
        capacity,
        blocks: blocks as u64,
        probes,
    })
}

/// The margin for chance, in standard deviations of the false positive rate among filters of one shape. It matters for small
/// filters.
const DEVIATIONS: f64 = 2.0;

/// The false positive rate of `blocks` blocks with a mean of `load` items, plus [`DEVIATIONS`].
fn worst_rate(load: f64, probes: u32, blocks: f64) -> f64 {
    let (mut mean, mut square) = (0.0, 0.0);
    let mut chance = (-load).exp(); // the probability of this number of items in a block
    let last = (load + 10.0 * load.sqrt() + 20.0) as u64;
    let empty = (1.0 - 1.0 / BLOCK_BITS as f64).powi(probes as i32);
    let two_empty = (1.0 - 2.0 / BLOCK_BITS as f64).powi(probes as i32);
    let (mut stays_empty, mut stay_two_empty) = (1.0, 1.0);
    for items in 1..=last {
        chance *= load / items as f64;
        stays_empty *= empty;
        stay_two_empty *= two_empty;
        let rate = block_rate(stays_empty, stay_two_empty, probes);
        mean += chance * rate;
        square += chance * rate * rate;
    }
    let variance = (square - mean * mean).max(0.0);
    mean + DEVIATIONS * (variance / blocks).sqrt()
}

/// The false positive rate of one block: the probability that all probes of a query hit set bits. `empty` is the probability that
/// a bit is not set, `two_empty` that two given bits are not set. The variance of the number of set bits is that of the occupancy
/// problem (Johnson and Kotz, "Urn Models", 1977). The mean of its power is approximated by a log-normal distribution, which is
/// at most 1 % too high.
fn block_rate(empty: f64, two_empty: f64, probes: u32) -> f64 {
    let bits = BLOCK_BITS as f64;
    let probes = f64::from(probes);
    let set = 1.0 - empty;
    let variance = (1.0 - 1.0 / bits) * two_empty + empty / bits - empty * empty;
    let spread = variance.max(0.0) / (set * set);
    let exponent = probes * set.ln() + probes * (probes - 1.0) / 2.0 * spread;
    exponent.exp().min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact false positive rate of a block, from the distribution of the number of set bits after each probe.
    fn exact_block_rate(items: u32, probes: u32) -> f64 {
        let bits = BLOCK_BITS;
        let mut chances = vec![0.0; bits + 1];
        chances[0] = 1.0;
        for _ in 0..items * probes {
            for set in (1..=bits).rev() {
                let (stay, come) = (set as f64, (bits - set + 1) as f64);
                chances[set] = (chances[set] * stay + chances[set - 1] * come) / bits as f64;
            }
            chances[0] = 0.0;
        }
        let rate = |set: usize| (set as f64 / bits as f64).powi(probes as i32);
        (0..=bits).map(|set| chances[set] * rate(set)).sum()
    }

    #[test]
    fn the_rate_of_a_block_is_at_most_one_percent_too_high_and_never_too_low() {
        for (items, probes) in [
            (1, 6),
            (5, 6),
            (20, 6),
            (50, 7),
            (80, 7),
            (45, 10),
            (20, 16),
            (6, 24),
        ] {
            let empty = |gone: f64| (1.0 - gone / BLOCK_BITS as f64).powi((items * probes) as i32);
            let rate = block_rate(empty(1.0), empty(2.0), probes);
            let exact = exact_block_rate(items, probes);
            assert!(
                rate >= exact * (1.0 - 1e-9),
                "{items} {probes}: {rate} {exact}"
            );
            assert!(rate <= exact * 1.01, "{items} {probes}: {rate} {exact}");
        }
    }

    #[test]
    fn the_number_of_bits_per_item_stays_below_a_limit() {
        for (error, capacity, most) in [
            (0.01, 1_000_000, 10.8),
            (0.01, 10_000, 11.0),
            (0.001, 100_000, 16.5),
            (0.001, 10_000, 16.6),
            (0.0001, 1_000_000, 23.3),
            (0.25, 1_000_000, 3.7),
            (0.000_001, 1_000_000, 40.5), // docs/filters.md names about this number
            (1e-9, 1_000_000, 84.5),
        ] {
            let shape = shape(layer_error(error, 0), capacity).expect("a shape");
            let bits = (shape.blocks * BLOCK_BITS as u64) as f64 / capacity as f64;
            assert!(bits <= most, "{error} {capacity}: {bits} bits, {shape:?}");
        }
    }

    #[test]
    fn small_layers_have_few_probes() {
        for (capacity, most) in [(1, 9), (10, 12), (100, 10), (400, 10), (12_800, 8)] {
            let shape = shape(layer_error(0.01, 0), capacity).expect("a shape");
            assert!(shape.probes <= most, "{shape:?}");
        }
    }

    #[test]
    fn every_shape_is_in_its_ranges() {
        for capacity in [1, 2, 7, 100, 1 << 20, 1 << 30, 1 << 45, u64::MAX / 2] {
            for error in [
                0.999_999,
                0.9,
                0.5,
                0.01,
                1e-6,
                1e-12,
                1e-30,
                1e-300,
                f64::MIN_POSITIVE,
                5e-324,
                0.0,
            ] {
                if let Some(shape) = shape(error, capacity) {
                    assert!(shape.blocks >= 1 && (1..=MAX_PROBES).contains(&shape.probes));
                    assert_eq!(shape.capacity, capacity);
                    assert!(error > 0.0);
                }
            }
        }
        assert!(shape(1e-9, 1 << 30).is_some());
    }

    #[test]
    fn lower_rates_need_more_blocks() {
        for capacity in [100, 10_000, 1_000_000] {
            let blocks = |index: i32| shape(0.5f64.powi(index), capacity).expect("a shape").blocks;
            for index in 1..40 {
                assert!(blocks(index) <= blocks(index + 1), "{index}");
            }
        }
    }

    #[test]
    fn all_layers_together_keep_the_declared_rate() {
        let sum: f64 = (0..1_000_000).map(|index| layer_error(0.01, index)).sum();
        assert!(sum < 0.00926, "{sum}");
    }
}
