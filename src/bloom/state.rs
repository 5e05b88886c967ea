//! The Bloom filter: layers of blocked Bloom filters. Each layer has a larger capacity than the one below.
//!
//! The algorithm is that of Almeida, Baquero, Preguiça and Hutchison, "Scalable Bloom Filters" (2007). [`super::shape`] divides the
//! false positive rate among the layers.

use super::block::{self, BLOCK_BITS, Block};
use super::shape::{BloomShape, MAX_LAYER_CAPACITY, MAX_PROBES, layer_error, shape};
use super::{BLOOM, REDISBLOOM, VALKEY_BLOOM};
use crate::codec::{Corrupt, Reader, put_uint};
use crate::error::Error;
use crate::filter::foreign::chain::Chain;
use crate::filter::foreign::{FIXED_SHARE, ForeignShape};
use crate::filter::hash::{Hash, reduce};
use crate::filter::state::{self, Added, FilterKind, Layer, MAX_ITEMS};
use crate::filter::{MAX_CAPACITY, MAX_EXPANSION};
use crate::server::services::cache_lines::{CacheLines, is_zero};
use crate::server::services::native::NativeType;
use std::ffi::CStr;

/// A Bloom filter.
pub type BloomFilter = state::Filter<Bloom>;

/// The parameters of the command that created a Bloom filter.
#[derive(Debug, Clone, PartialEq)]
pub struct BloomParameters {
    /// The declared false positive rate: greater than 0 and less than 1.
    pub error: f64,
    /// The capacity of the first layer, 1 to 2^30 items.
    pub capacity: u64,
    /// The ratio of the capacities of two successive layers, 0 to 32768; 0: the filter does not grow.
    pub expansion: u64,
}

/// From this number of layers on, each new layer has at least twice the capacity of the one below, because a query reads every
/// layer.
const MANY_LAYERS: usize = 64;

/// The lowest false positive rate of the layers on a foreign filter.
const MIN_ERROR: f64 = 1e-15;

/// The kind of filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bloom {}

impl FilterKind for Bloom {
    type Parameters = BloomParameters;
    type LayerShape = BloomShape;

    const LETTER: u8 = b'B';
    const APPLY: &'static CStr = c"BF.APPLY";
    const MAX_LAYERS: u64 = 128;
    const MISSING: Error = Error::NoBloom;

    fn native() -> &'static NativeType<BloomFilter> {
        &BLOOM
    }

    fn foreign_types() -> &'static [&'static NativeType<BloomFilter>] {
        static TYPES: [&NativeType<BloomFilter>; 2] = [&REDISBLOOM, &VALKEY_BLOOM];
        &TYPES
    }

    fn type_of(shape: &ForeignShape) -> &'static NativeType<BloomFilter> {
        match shape {
            ForeignShape::SipChain(_) => &VALKEY_BLOOM,
            ForeignShape::Chain(_) | ForeignShape::Tables(_) => &REDISBLOOM,
        }
    }

    fn read_foreign_dump(header: &[u8]) -> Result<ForeignShape, Corrupt> {
        Chain::read_dump(header).map(ForeignShape::Chain)
    }

    fn parameters_on(shape: &ForeignShape) -> Option<BloomParameters> {
        let (error, last, growth) = match shape {
            ForeignShape::Chain(chain) => {
                let last = chain.links.last()?.entries;
                let growth = (!chain.is_fixed()).then_some(chain.growth);
                (chain.error_left(), last, growth)
            }
            ForeignShape::SipChain(chain) => {
                let last = chain.links.last()?.capacity;
                let growth = (!chain.is_fixed()).then_some(chain.expansion);
                (chain.error_left(), last, growth)
            }
            ForeignShape::Tables(_) => return None,
        };
        let capacity = growth.map_or(shape.room(), |_| last);
        Some(BloomParameters {
            error: error.max(MIN_ERROR),
            capacity: capacity.clamp(1, MAX_CAPACITY as u64),
            expansion: growth.map_or(0, |growth| growth.clamp(1, MAX_EXPANSION as u64)),
        })
    }

    fn put_parameters(parameters: &BloomParameters, out: &mut Vec<u8>) {
        out.extend(parameters.error.to_bits().to_le_bytes());
        put_uint(out, parameters.capacity);
        put_uint(out, parameters.expansion);
    }

    fn read_parameters(reader: &mut Reader<'_>) -> Result<BloomParameters, Corrupt> {
        let error = f64::from_bits(u64::from_le_bytes(reader.array()?));
        let is_rate = error > 0.0 && error < 1.0;
        Ok(BloomParameters {
            error: is_rate.then_some(error).ok_or(Corrupt)?,
            capacity: reader.uint(1, MAX_CAPACITY as u64)?,
            expansion: reader.uint(0, MAX_EXPANSION as u64)?,
        })
    }

    fn put_shape(shape: &BloomShape, out: &mut Vec<u8>) {
        put_uint(out, shape.capacity);
        put_uint(out, shape.blocks);
        put_uint(out, shape.probes.into());
    }

    fn read_shape(
        reader: &mut Reader<'_>,
        _parameters: &BloomParameters,
        below: Option<&BloomShape>,
    ) -> Result<BloomShape, Corrupt> {
        let least = below.map_or(1, |below| below.capacity);
        let shape = BloomShape {
            capacity: reader.uint(least, MAX_LAYER_CAPACITY)?,
            blocks: reader.uint(1, u64::MAX)?,
            probes: reader.uint(1, MAX_PROBES.into())? as u32,
        };
        // Even for the highest rate, a block has no more items than bits.
        let fits = shape.capacity <= shape.blocks.saturating_mul(BLOCK_BITS as u64);
        fits.then_some(shape).ok_or(Corrupt)
    }

    fn most_items(_parameters: &BloomParameters, _shape: &BloomShape) -> u64 {
        MAX_ITEMS // a merged filter may have more items than its capacity
    }

    fn first_shape(parameters: &BloomParameters) -> Result<BloomShape, Error> {
        let error = layer_error(parameters.error, 0);
        shape(error, parameters.capacity).ok_or(Error::FilterTooLarge)
    }

    fn next_shape(filter: &BloomFilter, _item: Hash) -> Result<BloomShape, Error> {
        let parameters = &filter.parameters;
        if let (Some(foreign), []) = (&filter.foreign, &filter.layers[..]) {
            return match foreign.shape.room() {
                0 if parameters.expansion == 0 => Err(Error::NonscalingFull),
                _ => Self::first_shape(parameters),
            };
        }
        if parameters.expansion == 0 {
            return Err(Error::NonscalingFull);
        }
        let below = filter.layers.last().map_or(0, |layer| layer.shape.capacity);
        let times = if filter.layers.len() < MANY_LAYERS {
            parameters.expansion
        } else {
            parameters.expansion.max(2)
        };
        let capacity = below.saturating_mul(times).min(MAX_LAYER_CAPACITY);
        let error = layer_error(parameters.error, filter.layers.len());
        shape(error, capacity).ok_or(Error::FilterTooLarge)
    }

    fn next_shape_elsewhere(filter: &BloomFilter, item: Hash) -> Result<BloomShape, Error> {
        Self::next_shape(filter, item)
    }

    fn lines(_parameters: &BloomParameters, shape: &BloomShape) -> u64 {
        shape.blocks
    }

    #[inline]
    fn prefetch(filter: &BloomFilter, hash: Hash) {
        for layer in &filter.layers {
            layer.lines.prefetch(index(&layer.lines, hash));
        }
    }

    #[inline(always)] // a call would save and restore more registers than it uses
    fn holds(filter: &BloomFilter, hash: Hash) -> bool {
        let Some((newest, older)) = filter.layers.split_last() else {
            return false;
        };
        newest.holds(hash) || !older.is_empty() && any_holds(older, hash)
    }

    #[inline(always)] // as above
    fn add(filter: &mut BloomFilter, hash: Hash, _unique: bool) -> Added {
        let Some((newest, older)) = filter.layers.split_last_mut() else {
            return Added::Full;
        };
        let shape = newest.shape;
        let index = index(&newest.lines, hash);
        let block = newest.lines.line_mut(index);
        if block::holds(block, hash.low, shape.probes)
            || !older.is_empty() && any_holds(older, hash)
        {
            return Added::Known;
        }
        if newest.items >= shape.capacity {
            return Added::Full;
        }
        block::set(block, hash.low, shape.probes);
        newest.items += 1;
        Added::New
    }

    /// Another module accepts false positives as known items, and does not count them. Here the same items are new, because the
    /// false positives are others.
    fn add_beyond(filter: &mut BloomFilter, hash: Hash) -> bool {
        let most = filter.capacity().saturating_add(filter.most_uncounted());
        if filter.parameters.expansion > 0 || filter.items() >= most {
            return false;
        }
        let Some(newest) = filter.layers.last_mut() else {
            return false;
        };
        let index = index(&newest.lines, hash);
        let block = newest.lines.line_mut(index);
        block::set(block, hash.low, newest.shape.probes);
        newest.items += 1;
        true
    }

    fn can_overlay(_own: &[u8], _loaded: &[u8]) -> bool {
        true
    }

    fn overlay(own: &mut [u8], loaded: &[u8]) -> bool {
        let mut new = 0;
        for (own, loaded) in own.chunks_mut(PAGE_BYTES).zip(loaded.chunks(PAGE_BYTES)) {
            if is_zero(loaded) {
                continue; // a page that was never written stays unallocated
            }
            for (own, loaded) in own.iter_mut().zip(loaded) {
                new |= loaded & !*own;
                *own |= loaded;
            }
        }
        new != 0
    }
}

/// The size of a memory page on most machines.
const PAGE_BYTES: usize = 4096;

/// The block of an item.
#[inline]
fn index(lines: &CacheLines, hash: Hash) -> usize {
    reduce(hash.high, lines.len() as u64) as usize
}

/// Whether one of these layers contains an item. The newest of them have the most items.
#[inline(never)] // most filters have one layer
fn any_holds(layers: &[Layer<Bloom>], hash: Hash) -> bool {
    layers.iter().rev().any(|layer| layer.holds(hash))
}

impl Layer<Bloom> {
    #[inline(always)]
    fn holds(&self, hash: Hash) -> bool {
        let block: &Block = self.lines.line(index(&self.lines, hash));
        block::holds(block, hash.low, self.shape.probes)
    }
}

impl BloomFilter {
    /// The capacity of all layers, in items, at most [`MAX_ITEMS`]. If the filter does not grow, its own layer takes the rest of the capacity of the
    /// foreign layers.
    pub fn capacity(&self) -> u64 {
        let takes_the_rest = !self.layers.is_empty() && self.parameters.expansion == 0;
        let capacities = self.layers.iter().map(|layer| layer.shape.capacity);
        let foreign = self.foreign.iter().map(|foreign| match takes_the_rest {
            true => foreign.shape.items(),
            false => foreign.shape.capacity(),
        });
        let capacities = capacities.chain(foreign);
        capacities.fold(0, u64::saturating_add).min(MAX_ITEMS)
    }

    /// The most false positives among the items that fill a filter of another module that does not grow: their expected number at
    /// the rate of the full filter, and four standard deviations.
    fn most_uncounted(&self) -> u64 {
        let rate = match &self.foreign {
            Some(_) => self.parameters.error * FIXED_SHARE,
            None => self.parameters.error,
        };
        let mean = self.capacity() as f64 * rate / (1.0 - rate.min(0.99));
        (mean + 4.0 * mean.sqrt() + 4.0) as u64
    }

    /// Whether the bits of both filters have the same meaning, so that they can be merged.
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        let mut layers = self.layers.iter().zip(&other.layers);
        let are_own = self.foreign.is_none() && other.foreign.is_none();
        are_own
            && self.seed == other.seed
            && self.parameters == other.parameters
            && layers.all(|(layer, other)| layer.shape == other.shape)
    }

    /// Adds all items of a filter that [is compatible](Self::is_compatible_with) and has no more layers than this one. False:
    /// nothing changed.
    pub fn merge_from(&mut self, other: &Self) -> bool {
        let mut room = MAX_ITEMS.saturating_sub(self.items());
        let mut changed = false;
        for (layer, other) in self.layers.iter_mut().zip(&other.layers) {
            for segment in 0..layer.lines.segments() {
                let own = layer.lines.segment_mut(segment);
                changed |= Bloom::overlay(own, other.lines.segment(segment));
            }
            let items = other.items.min(room);
            layer.items += items;
            room -= items;
            changed |= items > 0;
        }
        changed
    }
}
