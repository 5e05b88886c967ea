//! The cuckoo filter: a table of fingerprints, from which items can be deleted. A filter that is full gets another table.
//!
//! The algorithm is that of Fan, Andersen, Kaminsky and Mitzenmacher, "Cuckoo Filter: Practically Better Than Bloom" (2014).

use super::grid::{CandidateBuckets, Grid};
use super::{CUCKOO, REDISBLOOM};
use crate::codec::{Corrupt, Reader, put_uint};
use crate::error::Error;
use crate::filter::foreign::ForeignShape;
use crate::filter::foreign::tables::Tables;
use crate::filter::hash::{Hash, reduce};
use crate::filter::state::{self, Added, FilterKind, Layer, MAX_ITEMS};
use crate::filter::{MAX_CAPACITY, MAX_EXPANSION};
use crate::server::services::cache_lines::is_zero;
use crate::server::services::native::NativeType;
use std::ffi::CStr;

/// A cuckoo filter.
pub type CuckooFilter = state::Filter<Cuckoo>;

/// The parameters of the command that created a cuckoo filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CuckooParameters {
    /// The least number of distinct items that the first layer has space for, 1 to 2^30.
    pub capacity: u64,
    /// The number of slots per bucket, 1 to 255.
    pub bucket_size: u64,
    /// The bytes of a fingerprint: 1, 2 or 4.
    pub width: u64,
    /// The most fingerprints that are moved to make space for another one when the layer has reached its capacity, 1 to 65535.
    pub max_iterations: u64,
    /// The ratio of the sizes of two successive layers, a power of two up to 32768; 0: the filter does not grow.
    pub expansion: u64,
    /// The number of buckets of the first layer.
    pub base: u64,
}

/// The largest number of slots per bucket.
pub const MAX_BUCKET_SIZE: i64 = 255;

/// The largest number of iterations.
pub const MAX_ITERATIONS: i64 = 65_535;

/// The most layers, as in RedisBloom.
const MAX_LAYERS: usize = 32;

/// The most layers of a filter that does not grow. More than two are rare: with buckets of one slot, five items have the same two
/// buckets.
const MAX_FIXED_LAYERS: usize = 4;

/// The number of layers from which on the layers double, if another module adds the items.
const FEW_LAYERS: usize = 16;

/// The most bits of a bucket's number that come from the second half of the hash, and one more than the largest shape of a layer.
const MAX_FINE: u64 = 32;

/// The most fingerprints that are moved to make space for another one when the layer is below its capacity.
const PATIENCE: u64 = 2000;

impl CuckooParameters {
    /// The parameters with the number of buckets that follows from them. Rounds `expansion` up to a power of two.
    pub fn new(
        capacity: u64,
        bucket_size: u64,
        width: u64,
        max_iterations: u64,
        expansion: u64,
    ) -> Self {
        let expansion = match expansion {
            0 => 0,
            times => times.next_power_of_two(),
        };
        Self {
            capacity,
            bucket_size,
            width,
            max_iterations,
            expansion,
            base: buckets(capacity, bucket_size),
        }
    }

    fn grid(&self, fine: u32) -> Grid {
        Grid {
            bucket_size: self.bucket_size,
            width: self.width,
            base: self.base,
            fine,
        }
    }
}

/// The number of buckets for `capacity` distinct items. The possible load factor grows with the size of the buckets. The constants
/// are some percent below the measured load factors. Small tables get spare buckets, because their load factors vary.
fn buckets(capacity: u64, bucket_size: u64) -> u64 {
    let percent = match bucket_size {
        1 => 42,
        2 => 82,
        3 => 90,
        4..=7 => 94,
        _ => 96,
    };
    let full = (capacity * 100).div_ceil(percent);
    let spare = 3 * full.isqrt() / 2 + bucket_size.min(8);
    (full + spare).div_ceil(bucket_size)
}

/// The kind of filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cuckoo {}

impl FilterKind for Cuckoo {
    type Parameters = CuckooParameters;
    /// Log2 of the size of the layer divided by the size of the first layer.
    type LayerShape = u32;

    const LETTER: u8 = b'C';
    const APPLY: &'static CStr = c"CF.APPLY";
    const MAX_LAYERS: u64 = MAX_LAYERS as u64;
    const MISSING: Error = Error::NoCuckoo;

    fn native() -> &'static NativeType<CuckooFilter> {
        &CUCKOO
    }

    fn foreign_types() -> &'static [&'static NativeType<CuckooFilter>] {
        static TYPES: [&NativeType<CuckooFilter>; 1] = [&REDISBLOOM];
        &TYPES
    }

    fn type_of(_shape: &ForeignShape) -> &'static NativeType<CuckooFilter> {
        &REDISBLOOM
    }

    fn read_foreign_dump(header: &[u8]) -> Result<ForeignShape, Corrupt> {
        Tables::read_dump(header).map(ForeignShape::Tables)
    }

    fn parameters_on(shape: &ForeignShape) -> Option<CuckooParameters> {
        let ForeignShape::Tables(tables) = shape else {
            return None;
        };
        let capacity = match tables.sizes().last() {
            Some(last) if tables.expansion > 0 => last,
            _ => shape.room(),
        };
        Some(CuckooParameters::new(
            capacity.clamp(1, MAX_CAPACITY as u64),
            tables.bucket_size,
            2,
            tables.max_iterations.max(1),
            tables.expansion.min(MAX_EXPANSION as u64),
        ))
    }

    fn put_parameters(parameters: &CuckooParameters, out: &mut Vec<u8>) {
        put_uint(out, parameters.capacity);
        put_uint(out, parameters.bucket_size);
        put_uint(out, parameters.width);
        put_uint(out, parameters.max_iterations);
        put_uint(out, parameters.expansion);
        put_uint(out, parameters.base);
    }

    fn read_parameters(reader: &mut Reader<'_>) -> Result<CuckooParameters, Corrupt> {
        let parameters = CuckooParameters {
            capacity: reader.uint(1, MAX_CAPACITY as u64)?,
            bucket_size: reader.uint(1, MAX_BUCKET_SIZE as u64)?,
            width: reader.uint(1, 4)?,
            max_iterations: reader.uint(1, MAX_ITERATIONS as u64)?,
            expansion: reader.uint(0, MAX_EXPANSION as u64)?,
            base: reader.uint(1, 1 << 32)?,
        };
        let powers = [parameters.width, parameters.expansion.max(1)];
        if powers.iter().all(|number| number.is_power_of_two()) {
            Ok(parameters)
        } else {
            Err(Corrupt)
        }
    }

    fn put_shape(fine: &u32, out: &mut Vec<u8>) {
        put_uint(out, (*fine).into());
    }

    fn read_shape(
        reader: &mut Reader<'_>,
        _parameters: &CuckooParameters,
        below: Option<&u32>,
    ) -> Result<u32, Corrupt> {
        let (least, most) = match below {
            None => (0, 0),
            Some(below) => ((*below).into(), MAX_FINE - 1),
        };
        Ok(reader.uint(least, most)? as u32)
    }

    fn most_items(parameters: &CuckooParameters, fine: &u32) -> u64 {
        parameters.grid(*fine).slots()
    }

    fn first_shape(_parameters: &CuckooParameters) -> Result<u32, Error> {
        Ok(0)
    }

    fn next_shape(filter: &CuckooFilter, item: Hash) -> Result<u32, Error> {
        let (parameters, layers) = (&filter.parameters, &filter.layers);
        if let (Some(foreign), []) = (&filter.foreign, &layers[..]) {
            return match foreign.shape.room() {
                0 if parameters.expansion == 0 => Err(Error::CuckooFull),
                _ => Self::first_shape(parameters),
            };
        }
        let newest = layers.last().map_or(0, |layer| layer.shape);
        match parameters.expansion {
            0 if filter.is_full_below_capacity(item) => Ok(0),
            0 => Err(Error::CuckooFull),
            _ if layers.len() >= MAX_LAYERS => Err(Error::MaximumExpansions),
            times => {
                let fine = newest + times.ilog2();
                let fits = u64::from(fine) < MAX_FINE;
                fits.then_some(fine).ok_or(Error::MaximumExpansions)
            }
        }
    }

    /// RedisBloom rounds the size of a filter up to a power of two. A filter of its own that does not grow has room for less than
    /// twice the capacity, so it gets one more layer here. One that grows has room for less than twice as many items in as many
    /// layers, and a setting can allow more layers. So its later layers double, and it never has too many.
    fn next_shape_elsewhere(filter: &CuckooFilter, item: Hash) -> Result<u32, Error> {
        let layers = &filter.layers;
        let Some(newest) = layers.last() else {
            return Self::next_shape(filter, item);
        };
        let times = match filter.parameters.expansion {
            0 if layers.len() < 3 => return Ok(newest.shape),
            0 => return Err(Error::CuckooFull),
            times if layers.len() < FEW_LAYERS => times,
            times => times.max(2),
        };
        let fine = newest.shape + times.ilog2();
        let fits = layers.len() < MAX_LAYERS && u64::from(fine) < MAX_FINE;
        fits.then_some(fine).ok_or(Error::MaximumExpansions)
    }

    fn lines(parameters: &CuckooParameters, fine: &u32) -> u64 {
        parameters.grid(*fine).lines()
    }

    #[inline]
    fn prefetch(filter: &CuckooFilter, hash: Hash) {
        for layer in &filter.layers {
            let grid = filter.parameters.grid(layer.shape);
            grid.prefetch(&layer.lines, grid.candidates(hash));
        }
    }

    #[inline]
    fn holds(filter: &CuckooFilter, hash: Hash) -> bool {
        let mut layers = filter.layers.iter().rev();
        layers.any(|layer| {
            let grid = filter.parameters.grid(layer.shape);
            grid.holds(&layer.lines, grid.candidates(hash))
        })
    }

    #[inline(always)] // a call would save and restore more registers than it uses
    fn add(filter: &mut CuckooFilter, hash: Hash, unique: bool) -> Added {
        if unique && Self::holds(filter, hash) {
            return Added::Known;
        }
        let parameters = filter.parameters;
        for layer in filter.layers.iter_mut().rev() {
            let grid = parameters.grid(layer.shape);
            let candidates = grid.candidates(hash);
            grid.prefetch(&layer.lines, candidates);
            if layer.put(grid, candidates) {
                return Added::New;
            }
        }
        let newest = filter.layers.last_mut();
        if newest.is_some_and(|layer| layer.make_room(&parameters, hash)) {
            Added::New
        } else {
            Added::Full
        }
    }

    /// A slot has space for one fingerprint, so two different ones cannot be merged.
    fn add_beyond(_filter: &mut CuckooFilter, _hash: Hash) -> bool {
        false
    }

    fn can_overlay(own: &[u8], loaded: &[u8]) -> bool {
        is_zero(own) || own == loaded
    }

    fn overlay(own: &mut [u8], loaded: &[u8]) -> bool {
        let is_new = own != loaded;
        own.copy_from_slice(loaded);
        is_new
    }
}

impl Layer<Cuckoo> {
    /// Counts an item. A layer whose dump is being loaded may count more items than it contains.
    #[inline]
    fn gain(&mut self, grid: Grid) {
        self.items = (self.items + 1).min(grid.slots());
    }

    /// Stores a fingerprint in a free slot of its buckets. False: there is no free slot.
    #[inline]
    fn put(&mut self, grid: Grid, candidates: CandidateBuckets) -> bool {
        for bucket in candidates.buckets {
            if let Some(slot) = grid.find(&self.lines, bucket, 0) {
                grid.set(&mut self.lines, bucket, slot, candidates.fingerprint);
                self.gain(grid);
                return true;
            }
        }
        false
    }

    /// Whether all slots of an item's buckets contain its fingerprint.
    fn is_full_of(&self, grid: Grid, candidates: CandidateBuckets) -> bool {
        let count = |bucket: &u64| grid.count(&self.lines, *bucket, candidates.fingerprint);
        let mut buckets = candidates.buckets.iter();
        buckets.all(|bucket| count(bucket) == grid.bucket_size)
    }

    /// Moves fingerprints to their other buckets until there is space for another one. False: there is no space, and nothing
    /// changed.
    fn make_room(&mut self, parameters: &CuckooParameters, hash: Hash) -> bool {
        let grid = parameters.grid(self.shape);
        let candidates = grid.candidates(hash);
        if self.is_full_of(grid, candidates) {
            return false;
        }
        let CandidateBuckets {
            mut fingerprint,
            buckets,
        } = candidates;
        let below_capacity = self.items < parameters.capacity << self.shape;
        let patience = if below_capacity { PATIENCE } else { 0 };
        // The choice of fingerprints is arbitrary, but must be the same on every replica.
        let mut draw = hash.high ^ hash.low;
        let mut bucket = buckets[(draw & 1) as usize];
        let iterations = parameters.max_iterations.max(patience);
        for _ in 0..iterations {
            draw = next_draw(draw);
            let slot = reduce(draw, grid.bucket_size);
            fingerprint = grid.swap(&mut self.lines, bucket, slot, fingerprint);
            bucket = grid.other(bucket, fingerprint);
            if let Some(slot) = grid.find(&self.lines, bucket, 0) {
                grid.set(&mut self.lines, bucket, slot, fingerprint);
                self.gain(grid);
                return true;
            }
        }
        // The way back: each fingerprint returns to where it was taken from.
        for _ in 0..iterations {
            bucket = grid.other(bucket, fingerprint);
            let slot = reduce(draw, grid.bucket_size);
            fingerprint = grid.swap(&mut self.lines, bucket, slot, fingerprint);
            draw = previous_draw(draw);
        }
        false
    }

    /// Removes a fingerprint from one of its buckets. False: it is in none.
    fn take(&mut self, grid: Grid, candidates: CandidateBuckets) -> bool {
        for bucket in candidates.buckets {
            if let Some(slot) = grid.find(&self.lines, bucket, candidates.fingerprint) {
                grid.set(&mut self.lines, bucket, slot, 0);
                self.items = self.items.saturating_sub(1);
                return true;
            }
        }
        false
    }
}

/// The multiplier and the increment of a linear congruential generator (Knuth, MMIX), and the inverse of the multiplier.
const MULTIPLIER: u64 = 0x5851_f42d_4c95_7f2d;
const INCREMENT: u64 = 0x1405_7b7e_f767_814f;
const INVERSE: u64 = 0xc097_ef87_329e_28a5;

fn next_draw(draw: u64) -> u64 {
    draw.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT)
}

fn previous_draw(draw: u64) -> u64 {
    draw.wrapping_sub(INCREMENT).wrapping_mul(INVERSE)
}

impl CuckooFilter {
    /// Whether a filter that does not grow is full for an item before its capacity is reached. Then it gets another layer, because
    /// a few items can fill the same buckets of a small table, or of a table with small buckets. An item that fills its buckets
    /// alone is no reason for a layer, unless the buckets are so small that other items may have its fingerprint.
    fn is_full_below_capacity(&self, item: Hash) -> bool {
        let may_have_others = self.layers.last().is_some_and(|newest| {
            let grid = self.parameters.grid(newest.shape);
            grid.bucket_size == 1 || !newest.is_full_of(grid, grid.candidates(item))
        });
        let items: u64 = self.layers.iter().map(|layer| layer.items).sum();
        items < self.parameters.capacity && self.layers.len() < MAX_FIXED_LAYERS && may_have_others
    }

    /// The number of times that an item was added. Other items with the same fingerprint and buckets count as this one.
    pub fn count(&self, hash: Hash) -> u64 {
        let counts = self.layers.iter().map(|layer| {
            let grid = self.parameters.grid(layer.shape);
            let CandidateBuckets {
                fingerprint,
                buckets: [first, second],
            } = grid.candidates(hash);
            let count = |bucket| grid.count(&layer.lines, bucket, fingerprint);
            count(first) + if second == first { 0 } else { count(second) }
        });
        counts.sum()
    }

    /// Deletes the newest copy of an item from the layers of Sluice. False: they do not contain the item.
    pub fn delete(&mut self, hash: Hash) -> bool {
        let parameters = self.parameters;
        let mut layers = self.layers.iter_mut().rev();
        let taken = layers.any(|layer| {
            let grid = parameters.grid(layer.shape);
            layer.take(grid, grid.candidates(hash))
        });
        self.deleted = (self.deleted + u64::from(taken)).min(MAX_ITEMS);
        taken
    }

    /// Moves items from later layers to free slots of earlier layers, and removes layers that become empty. Returns whether the
    /// filter changed.
    pub fn compact(&mut self) -> bool {
        let parameters = self.parameters;
        let mut changed = false;
        for from in (1..self.layers.len()).rev() {
            let (earlier, later) = self.layers.split_at_mut(from);
            changed |= later[0].move_down(earlier, &parameters);
        }
        let layers = self.layers.len();
        let mut first = true;
        self.layers
            .retain(|layer| std::mem::take(&mut first) || layer.items > 0);
        changed || self.layers.len() < layers
    }
}

impl Layer<Cuckoo> {
    /// Moves items to free slots of earlier layers, and counts the remaining items. The stored count is wrong if the filter changed while
    /// it was dumped. Returns whether the layer changed.
    fn move_down(&mut self, earlier: &mut [Layer<Cuckoo>], parameters: &CuckooParameters) -> bool {
        let grid = parameters.grid(self.shape);
        let (mut moved, mut left) = (false, 0);
        for bucket in 0..grid.buckets() {
            if grid.is_empty(&self.lines, bucket) {
                continue;
            }
            for slot in 0..grid.bucket_size {
                let fingerprint = grid.get(&self.lines, bucket, slot);
                if fingerprint == 0 {
                    continue;
                }
                if put_earlier(earlier, parameters, grid, bucket, fingerprint) {
                    grid.set(&mut self.lines, bucket, slot, 0);
                    moved = true;
                } else {
                    left += 1;
                }
            }
        }
        moved | (std::mem::replace(&mut self.items, left) != left)
    }
}

/// Puts a fingerprint of a larger layer's bucket into the first smaller one that has room for it.
fn put_earlier(
    earlier: &mut [Layer<Cuckoo>],
    parameters: &CuckooParameters,
    grid: Grid,
    bucket: u64,
    fingerprint: u32,
) -> bool {
    let slots = |layer: &Layer<Cuckoo>| Cuckoo::most_items(parameters, &layer.shape);
    let mut earlier = earlier
        .iter_mut()
        .filter(|layer| layer.items < slots(layer));
    earlier.any(|layer| {
        let smaller = parameters.grid(layer.shape);
        let first = bucket >> (grid.fine - smaller.fine);
        let buckets = [first, smaller.other(first, fingerprint)];
        let candidates = CandidateBuckets {
            fingerprint,
            buckets,
        };
        layer.put(smaller, candidates)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::state::FilterHeader;

    #[test]
    fn a_draw_can_be_taken_back() {
        for draw in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(previous_draw(next_draw(draw)), draw);
        }
    }

    #[test]
    fn items_with_the_same_buckets_have_room_below_the_capacity() {
        let parameters = CuckooParameters::new(16, 1, 1, 500, 0);
        let header = FilterHeader::<Cuckoo>::new(7, parameters).unwrap();
        let mut filter = header.build().unwrap();
        let grid = parameters.grid(0);
        let buckets = |hash| {
            let [one, other] = grid.candidates(hash).buckets;
            [one.min(other), one.max(other)]
        };
        let hashes = (0..100_000u32).map(|item| filter.hash(&item.to_le_bytes()));
        let together: Vec<Hash> = hashes
            .filter(|hash| buckets(*hash) == [3, 7])
            .take(6)
            .collect();
        assert_eq!(together.len(), 6);
        for hash in together {
            if Cuckoo::add(&mut filter, hash, false) == Added::Full {
                let shape = Cuckoo::next_shape(&filter, hash).expect("room below the capacity");
                filter.grow(shape).unwrap();
                assert_eq!(Cuckoo::add(&mut filter, hash, false), Added::New);
            }
        }
        assert_eq!((filter.layer_count(), filter.items()), (3, 6));
        // One item that is added again and again gets no more than four layers.
        let same = filter.hash(b"same");
        while let Ok(shape) = Cuckoo::next_shape(&filter, same) {
            if Cuckoo::add(&mut filter, same, false) == Added::Full {
                filter.grow(shape).unwrap();
            }
        }
        assert_eq!(filter.layer_count(), 4);
    }

    #[test]
    fn an_item_without_room_changes_nothing() {
        for (bucket_size, width) in [(1, 4), (2, 2), (4, 2), (3, 1), (8, 1)] {
            let parameters = CuckooParameters::new(100, bucket_size, width, 500, 0);
            let header = FilterHeader::<Cuckoo>::new(7, parameters).unwrap();
            let mut filter = header.build().unwrap();
            let bytes = |filter: &CuckooFilter| filter.layers[0].lines.segment(0).to_vec();
            let mut refused = 0;
            for item in 0..1000u32 {
                let before = bytes(&filter);
                let hash = filter.hash(&item.to_le_bytes());
                if Cuckoo::add(&mut filter, hash, false) == Added::Full {
                    refused += 1;
                    assert_eq!(bytes(&filter), before);
                }
            }
            assert!(refused > 700, "{refused}");
        }
    }
}
