//! What Bloom and cuckoo filters have in common: layers, each an array of cache lines, of which the
//! first is as large as was reserved and others come when it is full.

use super::hash::Hash;
use crate::codec::{Corrupt, Reader};
use crate::error::Error;
use crate::server::services::cache_lines::{CacheLines, LINE_SIZE};
use crate::server::services::native::NativeType;
use std::ffi::CStr;

/// More items than any filter has.
pub const MAX_ITEMS: u64 = 1 << 52;

/// What became of an item that was to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is in the filter now.
    New,
    /// It was there, probably.
    Known,
    /// There is no place for it in the layers that there are.
    Full,
}

/// A kind of filter.
pub trait FilterKind: Sized + 'static {
    /// What was declared when the filter was reserved.
    type Parameters: std::fmt::Debug + Clone + PartialEq;
    /// The shape of a layer.
    type LayerShape: std::fmt::Debug + Copy + PartialEq;

    /// What dumps of this kind begin with.
    const LETTER: u8;
    /// The internal command that applies what a master decided.
    const APPLY: &'static CStr;
    /// The most layers that a filter has.
    const MAX_LAYERS: u64;
    /// There is none of this kind at a key.
    const MISSING: Error;

    /// Its registration with the server.
    fn native() -> &'static NativeType<Filter<Self>>;

    /// Appends the parameters.
    fn put_parameters(parameters: &Self::Parameters, out: &mut Vec<u8>);
    /// Reads them.
    fn read_parameters(reader: &mut Reader<'_>) -> Result<Self::Parameters, Corrupt>;
    /// Appends the shape of a layer.
    fn put_shape(shape: &Self::LayerShape, out: &mut Vec<u8>);
    /// Reads the shape of a layer of a filter with these parameters, and the layers below it.
    fn read_shape(
        reader: &mut Reader<'_>,
        parameters: &Self::Parameters,
        below: Option<&Self::LayerShape>,
    ) -> Result<Self::LayerShape, Corrupt>;
    /// The most items that a layer of this shape may say it has.
    fn most_items(parameters: &Self::Parameters, shape: &Self::LayerShape) -> u64;

    /// The shape of the first layer of a filter with these parameters.
    fn first_shape(parameters: &Self::Parameters) -> Result<Self::LayerShape, Error>;
    /// The shape of the layer that a filter gets on top of its others, in which there is no place for
    /// an item, if it may.
    fn next_shape(filter: &Filter<Self>, item: Hash) -> Result<Self::LayerShape, Error>;
    /// How many cache lines a layer of this shape has.
    fn lines(parameters: &Self::Parameters, shape: &Self::LayerShape) -> u64;

    /// Asks the processor for the memory of an item, which will be needed soon.
    fn prefetch(filter: &Filter<Self>, hash: Hash);
    /// Is an item in the filter, probably?
    fn holds(filter: &Filter<Self>, hash: Hash) -> bool;
    /// Adds an item to the layers that there are; a `unique` one only if it is not there.
    fn add(filter: &mut Filter<Self>, hash: Hash, unique: bool) -> Added;
    /// Can the bytes of a dump be added to those of a filter without losing what it holds?
    fn can_overlay(own: &[u8], loaded: &[u8]) -> bool;
    /// Adds them; false if they were there already.
    fn overlay(own: &mut [u8], loaded: &[u8]) -> bool;
}

/// A layer of a filter.
pub struct Layer<K: FilterKind> {
    /// Its shape.
    pub shape: K::LayerShape,
    /// How many items are in it.
    pub items: u64,
    /// Its memory.
    pub lines: CacheLines,
}

/// A filter.
pub struct Filter<K: FilterKind> {
    /// The seed of its items' hashes.
    pub seed: u64,
    /// What was declared when it was reserved.
    pub parameters: K::Parameters,
    /// Its layers, the oldest first; at least one.
    pub layers: Vec<Layer<K>>,
    /// How many items were taken out again.
    pub deleted: u64,
}

/// What a filter is before its memory is there.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterHeader<K: FilterKind> {
    /// The seed of its items' hashes.
    pub seed: u64,
    /// What was declared when it was reserved.
    pub parameters: K::Parameters,
    /// The shapes of its layers, and how many items are in each.
    pub layers: Vec<(K::LayerShape, u64)>,
    /// How many items were taken out again.
    pub deleted: u64,
}

impl<K: FilterKind> FilterHeader<K> {
    /// A new filter, without items.
    pub fn new(seed: u64, parameters: K::Parameters) -> Result<Self, Error> {
        let first = K::first_shape(&parameters)?;
        Ok(Self {
            seed,
            parameters,
            layers: vec![(first, 0)],
            deleted: 0,
        })
    }

    /// The bytes that its layers will take.
    pub fn size(&self) -> u64 {
        let lines = |(shape, _): &(K::LayerShape, u64)| K::lines(&self.parameters, shape);
        let sizes = self.layers.iter().map(lines);
        sizes.fold(0, |sum: u64, lines| {
            sum.saturating_add(lines.saturating_mul(LINE_SIZE as u64))
        })
    }

    /// The filter, full of zeros; `None` if there is no memory for it.
    pub fn build(self) -> Option<Filter<K>> {
        let mut filter = Filter {
            seed: self.seed,
            parameters: self.parameters,
            layers: Vec::with_capacity(self.layers.len()),
            deleted: self.deleted,
        };
        for (shape, items) in self.layers {
            filter.grow(shape)?.items = items;
        }
        Some(filter)
    }
}

impl<K: FilterKind> Filter<K> {
    /// The hash of an item.
    #[inline]
    pub fn hash(&self, item: &[u8]) -> Hash {
        Hash::of(item, self.seed)
    }

    /// How many items are in it.
    pub fn items(&self) -> u64 {
        let items = self.layers.iter().map(|layer| layer.items);
        items.fold(0, u64::saturating_add).min(MAX_ITEMS)
    }

    /// The bytes of its layers.
    pub fn size(&self) -> u64 {
        let layers = self.layers.iter();
        layers
            .map(|layer| (layer.lines.len() * LINE_SIZE) as u64)
            .sum()
    }

    /// The bytes of a layer of this shape.
    pub fn layer_size(&self, shape: &K::LayerShape) -> u64 {
        K::lines(&self.parameters, shape).saturating_mul(LINE_SIZE as u64)
    }

    /// Puts a layer on top; `None` if there is no memory for it.
    pub fn grow(&mut self, shape: K::LayerShape) -> Option<&mut Layer<K>> {
        let lines = usize::try_from(K::lines(&self.parameters, &shape)).ok()?;
        let lines = CacheLines::zeroed(lines)?;
        let items = 0;
        self.layers.push(Layer {
            shape,
            items,
            lines,
        });
        self.layers.last_mut()
    }

    /// A copy; `None` if there is no memory for it.
    pub fn try_clone(&self) -> Option<Self> {
        let copy = |layer: &Layer<K>| {
            Some(Layer {
                shape: layer.shape,
                items: layer.items,
                lines: layer.lines.try_clone()?,
            })
        };
        Some(Self {
            seed: self.seed,
            parameters: self.parameters.clone(),
            layers: self.layers.iter().map(copy).collect::<Option<_>>()?,
            deleted: self.deleted,
        })
    }

    /// The bytes that it takes from the allocator beside its own struct.
    pub fn memory(&self) -> usize {
        let layers = self.layers.iter().map(|layer| layer.lines.memory());
        let table = self.layers.capacity() * size_of::<Layer<K>>();
        layers.sum::<usize>() + crate::memory::block_size(table)
    }
}
