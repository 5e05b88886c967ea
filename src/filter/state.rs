//! The state that Bloom and cuckoo filters share: a stack of layers, each of which is a cache-line array. The first layer has the
//! reserved capacity. A filter that is full gets another layer.

use super::foreign::{ForeignHeader, ForeignLayers, ForeignShape};
use super::hash::Hash;
use crate::codec::{Corrupt, Reader};
use crate::error::Error;
use crate::server::services::cache_lines::{CacheLines, LINE_BYTES};
use crate::server::services::native::NativeType;
use std::ffi::CStr;

/// The most items of a filter.
pub const MAX_ITEMS: u64 = 1 << 52;

/// The result of adding an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The item was added.
    New,
    /// The filter contained the item before, or this is a false positive.
    Known,
    /// The present layers have no space for the item.
    Full,
}

/// A kind of filter.
pub trait FilterKind: Sized + 'static {
    /// The parameters of the command that created the filter.
    type Parameters: std::fmt::Debug + Clone + PartialEq;
    /// The shape of a layer.
    type LayerShape: std::fmt::Debug + Copy + PartialEq;

    /// The first byte of a dump.
    const LETTER: u8;
    /// The internal command that applies the effects of a master.
    const APPLY: &'static CStr;
    /// The most layers that a filter has.
    const MAX_LAYERS: u64;
    /// The error of a command that needs a filter at a key without one.
    const MISSING: Error;

    /// The registration of the native type.
    fn native() -> &'static NativeType<Filter<Self>>;
    /// The registrations of the types of other modules.
    fn foreign_types() -> &'static [&'static NativeType<Filter<Self>>];
    /// The type of an original foreign filter with these numbers.
    fn type_of(shape: &ForeignShape) -> &'static NativeType<Filter<Self>>;
    /// Reads the first chunk of another module's `SCANDUMP`.
    fn read_foreign_dump(header: &[u8]) -> Result<ForeignShape, Corrupt>;
    /// The parameters of the layers on top of a foreign filter. `None`: it is a filter of another kind.
    fn parameters_on(shape: &ForeignShape) -> Option<Self::Parameters>;

    /// Appends the encoded parameters; [`super::persist`] has the format.
    fn put_parameters(parameters: &Self::Parameters, out: &mut Vec<u8>);
    /// Reads the parameters. Error: a value is out of range.
    fn read_parameters(reader: &mut Reader<'_>) -> Result<Self::Parameters, Corrupt>;
    /// Appends the encoded shape of a layer.
    fn put_shape(shape: &Self::LayerShape, out: &mut Vec<u8>);
    /// Reads the shape of a layer. `below`: the shape of the layer before it. Error: no filter with these parameters has such a layer.
    fn read_shape(
        reader: &mut Reader<'_>,
        parameters: &Self::Parameters,
        below: Option<&Self::LayerShape>,
    ) -> Result<Self::LayerShape, Corrupt>;
    /// The most items of a layer of this shape, for the check of a dump.
    fn most_items(parameters: &Self::Parameters, shape: &Self::LayerShape) -> u64;

    /// The shape of the first layer of a filter with these parameters.
    fn first_shape(parameters: &Self::Parameters) -> Result<Self::LayerShape, Error>;
    /// The shape of the next layer of a filter that is full for an item, or has no layer yet. Error: the filter must not grow.
    fn next_shape(filter: &Filter<Self>, item: Hash) -> Result<Self::LayerShape, Error>;
    /// The same where another module has accepted the item, and sent it as a master or in an AOF. Its filter can have more room.
    fn next_shape_elsewhere(filter: &Filter<Self>, item: Hash) -> Result<Self::LayerShape, Error>;
    /// The number of cache lines of a layer of this shape.
    fn lines(parameters: &Self::Parameters, shape: &Self::LayerShape) -> u64;

    /// Prefetches the cache lines of an item.
    fn prefetch(filter: &Filter<Self>, hash: Hash);
    /// Whether the filter contains an item. True may be a false positive; false is certain.
    fn holds(filter: &Filter<Self>, hash: Hash) -> bool;
    /// Adds an item to the present layers. `unique`: only if the filter does not contain it.
    fn add(filter: &mut Filter<Self>, hash: Hash, unique: bool) -> Added;
    /// Adds an item to a full filter that does not grow, if another module can have accepted the item. False: it cannot.
    fn add_beyond(filter: &mut Filter<Self>, hash: Hash) -> bool;
    /// Whether [`FilterKind::overlay`] of these bytes would keep all items of the filter.
    fn can_overlay(own: &[u8], loaded: &[u8]) -> bool;
    /// Adds the bytes of a dump to the bytes of a filter. False: nothing changed.
    fn overlay(own: &mut [u8], loaded: &[u8]) -> bool;
}

/// A layer of a filter.
pub struct Layer<K: FilterKind> {
    /// The shape.
    pub shape: K::LayerShape,
    /// The number of items.
    pub items: u64,
    /// The memory.
    pub lines: CacheLines,
}

/// A filter.
pub struct Filter<K: FilterKind> {
    /// The seed of the hash function.
    pub seed: u64,
    /// The parameters of the command that created the filter.
    pub parameters: K::Parameters,
    /// The layers, the oldest first; at least one, unless the filter is foreign.
    pub layers: Vec<Layer<K>>,
    /// The number of deleted items, without those of the foreign layers.
    pub deleted: u64,
    /// The layers of another module, below the others.
    pub foreign: Option<Box<ForeignLayers>>,
}

/// The properties of a filter, without its memory.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterHeader<K: FilterKind> {
    /// The seed of the hash function.
    pub seed: u64,
    /// The parameters of the command that created the filter.
    pub parameters: K::Parameters,
    /// The shape of each layer, and its number of items.
    pub layers: Vec<(K::LayerShape, u64)>,
    /// The number of deleted items, without those of the foreign layers.
    pub deleted: u64,
    /// The header of the layers of another module.
    pub foreign: Option<ForeignHeader>,
}

impl<K: FilterKind> FilterHeader<K> {
    /// The header of an empty filter. Error: no layer can have these parameters.
    pub fn new(seed: u64, parameters: K::Parameters) -> Result<Self, Error> {
        let first = K::first_shape(&parameters)?;
        Ok(Self {
            seed,
            parameters,
            layers: vec![(first, 0)],
            deleted: 0,
            foreign: None,
        })
    }

    /// The header of a filter that has come from another module. Error: it is of another kind.
    pub fn of_foreign(shape: ForeignShape) -> Result<Self, Corrupt> {
        Ok(Self {
            seed: 0,
            parameters: K::parameters_on(&shape).ok_or(Corrupt)?,
            layers: Vec::new(),
            deleted: 0,
            foreign: Some(ForeignHeader {
                shape,
                is_original: true,
            }),
        })
    }

    /// The bytes of all layers. Each foreign one counts a cache line more, because there can be many tiny ones.
    pub fn size(&self) -> u64 {
        let lines = |(shape, _): &(K::LayerShape, u64)| K::lines(&self.parameters, shape);
        let foreign = self.foreign.iter().map(|foreign| &foreign.shape);
        let foreign = foreign.map(|shape| shape.lines().saturating_add(shape.count() as u64));
        let sizes = self.layers.iter().map(lines).chain(foreign);
        sizes.fold(0, |sum: u64, lines| {
            sum.saturating_add(lines.saturating_mul(LINE_BYTES as u64))
        })
    }

    /// Allocates the filter. All its bytes are zero. `None`: there is not enough memory.
    pub fn build(self) -> Option<Filter<K>> {
        let mut filter = Filter {
            seed: self.seed,
            parameters: self.parameters,
            layers: Vec::with_capacity(self.layers.len()),
            deleted: self.deleted,
            foreign: match self.foreign {
                Some(foreign) => Some(Box::new(foreign.build()?)),
                None => None,
            },
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

    /// The number of items.
    pub fn items(&self) -> u64 {
        let items = self.layers.iter().map(|layer| layer.items);
        let foreign = self.foreign.iter().map(|foreign| foreign.shape.items());
        let items = items.chain(foreign);
        items.fold(0, u64::saturating_add).min(MAX_ITEMS)
    }

    /// The number of layers.
    pub fn layer_count(&self) -> usize {
        let foreign = self.foreign.iter().map(|foreign| foreign.arrays().count());
        self.layers.len() + foreign.sum::<usize>()
    }

    /// The memory of all layers, the oldest first.
    pub fn arrays(&self) -> impl Iterator<Item = &CacheLines> {
        let foreign = self.foreign.iter().flat_map(|foreign| foreign.arrays());
        foreign.chain(self.layers.iter().map(|layer| &layer.lines))
    }

    /// The memory of all layers, for changes.
    pub fn arrays_mut(&mut self) -> impl Iterator<Item = &mut CacheLines> {
        let foreign = self.foreign.iter_mut();
        let foreign = foreign.flat_map(|foreign| foreign.arrays_mut());
        foreign.chain(self.layers.iter_mut().map(|layer| &mut layer.lines))
    }

    /// The bytes of all layers.
    pub fn size(&self) -> u64 {
        let sizes = self.arrays().map(|lines| (lines.len() * LINE_BYTES) as u64);
        sizes.sum()
    }

    /// Whether another module has made the filter, and nothing was added or deleted since.
    pub fn is_original(&self) -> bool {
        let foreign = self.foreign.as_ref();
        foreign.is_some_and(|foreign| foreign.is_original)
    }

    /// Makes a foreign filter one of Sluice. Its layers stay.
    pub fn become_own(&mut self, seed: u64, parameters: K::Parameters) {
        (self.seed, self.parameters) = (seed, parameters);
        if let Some(foreign) = &mut self.foreign {
            foreign.is_original = false;
        }
    }

    /// Moves the filter out, and leaves one without layers.
    pub fn take(&mut self) -> Self {
        Self {
            seed: self.seed,
            parameters: self.parameters.clone(),
            layers: std::mem::take(&mut self.layers),
            deleted: self.deleted,
            foreign: self.foreign.take(),
        }
    }

    /// The type of the key of this filter.
    pub fn native(&self) -> &'static NativeType<Self> {
        match &self.foreign {
            Some(foreign) if foreign.is_original => K::type_of(&foreign.shape),
            _ => K::native(),
        }
    }

    /// Whether the foreign layers contain an item.
    #[inline]
    pub fn foreign_holds(&self, item: &[u8]) -> bool {
        let foreign = self.foreign.as_ref();
        foreign.is_some_and(|foreign| foreign.holds(item))
    }

    /// Whether the filter contains an item. True may be a false positive; false is certain.
    #[inline]
    pub fn contains(&self, item: &[u8], hash: Hash) -> bool {
        K::holds(self, hash) || self.foreign_holds(item)
    }

    /// The bytes of a layer of this shape.
    pub fn layer_size(&self, shape: &K::LayerShape) -> u64 {
        K::lines(&self.parameters, shape).saturating_mul(LINE_BYTES as u64)
    }

    /// Adds a layer. `None`: there is not enough memory, and nothing changes.
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

    /// A copy. `None`: there is not enough memory.
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
            foreign: match &self.foreign {
                Some(foreign) => Some(Box::new(foreign.try_clone()?)),
                None => None,
            },
        })
    }

    /// The bytes from the allocator, without the struct itself.
    pub fn memory(&self) -> usize {
        let layers = self.layers.iter().map(|layer| layer.lines.memory());
        let table = self.layers.capacity() * size_of::<Layer<K>>();
        let foreign = self.foreign.iter().map(|foreign| foreign.memory());
        layers.chain(foreign).sum::<usize>() + crate::memory::block_size(table)
    }
}
