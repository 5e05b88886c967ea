//! Filters that another module has made. Such a filter answers as it did there: the same bits, the same hashes, the same false
//! positives. Nothing is added to it. New items go to layers of [`Filter`](super::state::Filter) on top of it.
//!
//! [`chain`] and [`tables`] have the formats of RedisBloom, [`murmur`] its hash functions, and [`sip_chain`] has the format of
//! valkey-bloom.

pub mod chain;
pub mod murmur;
pub mod sip_chain;
pub mod tables;

use crate::codec::{Corrupt, Reader, put_uint};
use crate::filter::state::MAX_ITEMS;
use crate::server::services::cache_lines::{CacheLines, LINE_BYTES};
use chain::{Chain, Link};
use sip_chain::{SipChain, SipLink};
use std::sync::atomic::{AtomicUsize, Ordering};
use tables::{Hashing, Tables};

/// A filter that does not grow gives its declared false positive rate, divided by this number, to the layer on top of it.
pub const FIXED_SHARE: f64 = 64.0;

/// The least bytes of a chunk that ends within an array: RedisBloom has chunks of 10 MiB up to version 2.2.0, later of 16 MiB.
const MIN_CHUNK_BYTES: u64 = 10 << 20;

/// The numbers of a foreign filter, without its arrays.
#[derive(Debug, Clone, PartialEq)]
pub enum ForeignShape {
    /// A Bloom filter of RedisBloom.
    Chain(Chain),
    /// A cuckoo filter of RedisBloom.
    Tables(Tables),
    /// A Bloom filter of valkey-bloom.
    SipChain(SipChain),
}

/// The header of a foreign filter.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignHeader {
    /// The numbers.
    pub shape: ForeignShape,
    /// Whether nothing was added or deleted since it came. Then the key has its original type.
    pub is_original: bool,
}

/// The layers of a foreign filter.
pub struct ForeignLayers {
    /// The numbers.
    pub shape: ForeignShape,
    /// Whether nothing was added or deleted since the filter came.
    pub is_original: bool,
    /// Where the next chunk begins, in bytes, if the filter comes in chunks. It is no part of the dataset.
    next_chunk: Option<u64>,
    arrays: Vec<CacheLines>,
    /// The position of each array in all bytes, for chunks.
    starts: Box<[u64]>,
}

/// The number of foreign filters in the server.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The number of foreign filters in the server.
pub fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

impl Drop for ForeignLayers {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of an array.
#[derive(Clone, Copy)]
pub struct ArrayBytes<'a>(&'a CacheLines);

impl ArrayBytes<'_> {
    #[inline]
    fn byte(self, index: u64) -> u8 {
        let (line, byte) = (index as usize / LINE_BYTES, index as usize % LINE_BYTES);
        self.0.line(line)[byte]
    }
}

impl ForeignShape {
    /// The bytes of each array.
    pub fn sizes(&self) -> Vec<u64> {
        match self {
            Self::Chain(chain) => chain.links.iter().map(|link| link.bytes).collect(),
            Self::Tables(tables) => tables.sizes().collect(),
            Self::SipChain(chain) => chain.links.iter().map(|link| link.bytes).collect(),
        }
    }

    /// The bytes of one array. `None`: there is no such array.
    pub fn size(&self, index: usize) -> Option<u64> {
        match self {
            Self::Chain(chain) => chain.links.get(index).map(|link| link.bytes),
            Self::Tables(tables) => tables.size(index),
            Self::SipChain(chain) => chain.links.get(index).map(|link| link.bytes),
        }
    }

    /// The number of arrays.
    pub fn count(&self) -> usize {
        match self {
            Self::Chain(chain) => chain.links.len(),
            Self::Tables(tables) => tables.tables.len(),
            Self::SipChain(chain) => chain.links.len(),
        }
    }

    /// The cache lines of all arrays.
    pub fn lines(&self) -> u64 {
        let lines = self.sizes().into_iter();
        let lines = lines.map(|size| size.div_ceil(LINE_BYTES as u64));
        lines.fold(0, u64::saturating_add)
    }

    /// The number of items.
    pub fn items(&self) -> u64 {
        match self {
            Self::Chain(chain) => chain.items(),
            Self::Tables(tables) => tables.items,
            Self::SipChain(chain) => chain.items(),
        }
    }

    /// The capacity, in items, at most [`MAX_ITEMS`].
    pub fn capacity(&self) -> u64 {
        let capacity = match self {
            Self::Chain(chain) => {
                let entries = chain.links.iter().map(|link| link.entries);
                entries.fold(0, u64::saturating_add)
            }
            Self::Tables(tables) => tables.slots(),
            Self::SipChain(chain) => {
                let capacities = chain.links.iter().map(|link| link.capacity);
                capacities.fold(0, u64::saturating_add)
            }
        };
        capacity.min(MAX_ITEMS)
    }

    /// Whether the numbers agree with each other. In the server's own dataset, those of some old filters do not.
    pub fn is_consistent(&self) -> bool {
        match self {
            Self::Tables(tables) => tables.is_consistent(),
            Self::Chain(_) | Self::SipChain(_) => true,
        }
    }

    /// How many items it could take where it came from without another layer, if it is one that never gets one.
    pub fn room(&self) -> u64 {
        self.capacity().saturating_sub(self.items())
    }

    /// Appends the encoded numbers.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Chain(chain) => {
                out.push(b'b');
                put_uint(out, chain.options);
                put_uint(out, chain.growth);
                put_uint(out, chain.links.len() as u64);
                for link in &chain.links {
                    for number in [link.entries, link.hashes, link.bits, link.n2] {
                        put_uint(out, number);
                    }
                    put_uint(out, link.bytes);
                    put_uint(out, link.items);
                    out.extend(link.error.to_le_bytes());
                    out.extend(link.bits_per_entry.to_le_bytes());
                }
            }
            Self::Tables(tables) if tables.hashing == Hashing::Bits32 => {
                out.push(b'd');
                put_uint(out, tables.tables.len() as u64);
                for number in [tables.buckets, tables.items, tables.deleted] {
                    put_uint(out, number);
                }
            }
            Self::Tables(tables) => {
                out.push(b'c');
                for number in [tables.buckets, tables.items, tables.deleted] {
                    put_uint(out, number);
                }
                for number in [tables.bucket_size, tables.max_iterations, tables.expansion] {
                    put_uint(out, number);
                }
                put_uint(out, tables.tables.len() as u64);
                for buckets in &tables.tables {
                    put_uint(out, *buckets);
                }
            }
            Self::SipChain(chain) => {
                out.push(b'v');
                put_uint(out, chain.expansion);
                out.extend(chain.error.to_le_bytes());
                out.extend(chain.tightening.to_le_bytes());
                out.push(chain.is_seed_random.into());
                out.extend(chain.seed);
                put_uint(out, chain.last_items);
                put_uint(out, chain.links.len() as u64);
                for link in &chain.links {
                    for number in [link.capacity, link.hashes, link.bytes] {
                        put_uint(out, number);
                    }
                }
            }
        }
    }

    /// Reads encoded numbers. Error: no filter has them.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let any = |reader: &mut Reader<'_>| reader.uint(0, u64::MAX);
        match reader.byte()? {
            b'b' => {
                let (options, growth) = (any(reader)?, any(reader)?);
                let count = any(reader)?;
                let mut links = Vec::new();
                for _ in 0..count {
                    links.push(Link {
                        entries: any(reader)?,
                        hashes: any(reader)?,
                        bits: any(reader)?,
                        n2: any(reader)?,
                        bytes: any(reader)?,
                        items: any(reader)?,
                        error: f64::from_le_bytes(reader.array()?),
                        bits_per_entry: f64::from_le_bytes(reader.array()?),
                    });
                }
                let chain = Chain {
                    options,
                    growth,
                    links,
                };
                Ok(Self::Chain(chain.check()?))
            }
            b'c' => {
                let (buckets, items, deleted) = (any(reader)?, any(reader)?, any(reader)?);
                let (bucket_size, max_iterations) = (any(reader)?, any(reader)?);
                let expansion = any(reader)?;
                let count = any(reader)?;
                let mut tables = Vec::new();
                for _ in 0..count {
                    tables.push(any(reader)?);
                }
                let tables = Tables {
                    buckets,
                    items,
                    deleted,
                    bucket_size,
                    max_iterations,
                    expansion,
                    tables,
                    hashing: Hashing::Bits64,
                };
                Ok(Self::Tables(tables.check()?))
            }
            b'd' => {
                let (count, buckets) = (any(reader)?, any(reader)?);
                let (items, deleted) = (any(reader)?, any(reader)?);
                let tables = Tables::of_32_bits(count, buckets, items, deleted)?;
                Ok(Self::Tables(tables))
            }
            b'v' => {
                let expansion = any(reader)?;
                let error = f64::from_le_bytes(reader.array()?);
                let tightening = f64::from_le_bytes(reader.array()?);
                let is_seed_random = reader.uint(0, 1)? == 1;
                let seed = reader.array()?;
                let last_items = any(reader)?;
                let count = any(reader)?;
                let mut links = Vec::new();
                for _ in 0..count {
                    links.push(SipLink {
                        capacity: any(reader)?,
                        hashes: any(reader)?,
                        bytes: any(reader)?,
                    });
                }
                let chain = SipChain {
                    expansion,
                    error,
                    tightening,
                    is_seed_random,
                    seed,
                    links,
                    last_items,
                };
                Ok(Self::SipChain(chain.check()?))
            }
            _ => Err(Corrupt),
        }
    }
}

impl ForeignHeader {
    /// Allocates the filter. All its bytes are zero. `None`: there is not enough memory.
    pub fn build(self) -> Option<ForeignLayers> {
        let sizes = self.shape.sizes().into_iter();
        let lines = sizes.map(|size| size.div_ceil(LINE_BYTES as u64));
        let arrays = lines.map(|lines| CacheLines::zeroed(usize::try_from(lines).ok()?));
        let arrays = arrays.collect::<Option<_>>()?;
        Some(ForeignLayers::new(self, arrays))
    }
}

impl ForeignLayers {
    fn new(header: ForeignHeader, arrays: Vec<CacheLines>) -> Self {
        LIVE.fetch_add(1, Ordering::Relaxed);
        let mut end = 0;
        let sizes = header.shape.sizes().into_iter();
        let starts = sizes.map(|size| {
            let start = end;
            end += size;
            start
        });
        let starts = starts.collect();
        Self {
            starts,
            shape: header.shape,
            is_original: header.is_original,
            next_chunk: None,
            arrays,
        }
    }

    /// From now on, each chunk must follow the one before.
    pub fn expect_chunks(&mut self) {
        self.next_chunk = Some(0);
    }

    /// From now on, a chunk that removes no items is accepted at any offset. A server decides so where it does not know which chunks
    /// came before: an AOF rewrite writes also those that are still missing, as zeros, and a replica can have been restarted.
    pub fn expect_any_chunk(&mut self) {
        self.next_chunk = None;
    }

    /// The header.
    pub fn header(&self) -> ForeignHeader {
        ForeignHeader {
            shape: self.shape.clone(),
            is_original: self.is_original,
        }
    }

    /// The arrays. The bytes behind the size of an array are zero.
    pub fn arrays(&self) -> impl Iterator<Item = &CacheLines> {
        self.arrays.iter()
    }

    /// The arrays, for changes.
    pub fn arrays_mut(&mut self) -> impl Iterator<Item = &mut CacheLines> {
        self.arrays.iter_mut()
    }

    /// The table of the arrays, in bytes of the allocator, and the arrays.
    pub fn memory(&self) -> usize {
        let table = self.arrays.capacity() * size_of::<CacheLines>();
        let starts = size_of_val(&*self.starts);
        let arrays = self.arrays.iter().map(CacheLines::memory);
        crate::memory::block_size(table)
            + crate::memory::block_size(starts)
            + crate::memory::block_size(size_of::<Self>())
            + arrays.sum::<usize>()
    }

    /// A copy. `None`: there is not enough memory.
    pub fn try_clone(&self) -> Option<Self> {
        let arrays = self.arrays.iter().map(CacheLines::try_clone);
        let arrays = arrays.collect::<Option<_>>()?;
        let mut clone = Self::new(self.header(), arrays);
        clone.next_chunk = self.next_chunk;
        Some(clone)
    }

    fn bytes(&self) -> impl DoubleEndedIterator<Item = ArrayBytes<'_>> + ExactSizeIterator {
        self.arrays.iter().map(ArrayBytes)
    }

    /// Whether the filter contains an item. True may be a false positive.
    pub fn holds(&self, item: &[u8]) -> bool {
        match &self.shape {
            ForeignShape::Chain(chain) => chain.holds(item, self.bytes()),
            ForeignShape::Tables(tables) => tables.count(item, self.bytes()) > 0,
            ForeignShape::SipChain(chain) => chain.holds(item, self.bytes()),
        }
    }

    /// How often a cuckoo filter contains an item; for a Bloom filter 0 or 1.
    pub fn count(&self, item: &[u8]) -> u64 {
        match &self.shape {
            ForeignShape::Chain(chain) => chain.holds(item, self.bytes()).into(),
            ForeignShape::Tables(tables) => tables.count(item, self.bytes()),
            ForeignShape::SipChain(chain) => chain.holds(item, self.bytes()).into(),
        }
    }

    /// Deletes the newest copy of an item from a cuckoo filter. False: it contains none.
    pub fn delete(&mut self, item: &[u8]) -> bool {
        let ForeignShape::Tables(tables) = &mut self.shape else {
            return false;
        };
        let arrays = self.arrays.iter().map(ArrayBytes);
        let Some((table, slot)) = tables.find(item, arrays) else {
            return false;
        };
        let (line, byte) = (slot as usize / LINE_BYTES, slot as usize % LINE_BYTES);
        self.arrays[table].line_mut(line)[byte] = 0;
        tables.items = tables.items.saturating_sub(1);
        tables.deleted = (tables.deleted + 1).min(MAX_ITEMS);
        self.is_original = false;
        true
    }

    /// All bytes of an array.
    pub fn array(&self, index: usize) -> Vec<u8> {
        self.range(index, 0, self.shape.size(index).unwrap_or(0) as usize)
    }

    /// `length` bytes of an array, from an offset on.
    fn range(&self, index: usize, from: usize, length: usize) -> Vec<u8> {
        let array = &self.arrays[index];
        let size = array.segment_size();
        let mut bytes = Vec::with_capacity(length);
        let mut skipped = from % size;
        for segment in from / size..array.segments() {
            let own = &array.segment(segment)[std::mem::take(&mut skipped)..];
            bytes.extend(&own[..own.len().min(length - bytes.len())]);
            if bytes.len() == length {
                break;
            }
        }
        bytes
    }

    /// Sets all bytes of an array, as it was saved. Error: the length is another one.
    pub fn set_array(&mut self, index: usize, bytes: &[u8]) -> Result<(), Corrupt> {
        if self.shape.size(index) != Some(bytes.len() as u64) {
            return Err(Corrupt);
        }
        self.copy_to(index, 0, bytes);
        Ok(())
    }

    /// Whether an array has these bytes at this offset.
    fn contains(&self, index: usize, from: u64, mut bytes: &[u8]) -> bool {
        let array = &self.arrays[index];
        let size = array.segment_size() as u64;
        let mut skipped = (from % size) as usize;
        for segment in (from / size) as usize..array.segments() {
            let own = &array.segment(segment)[std::mem::take(&mut skipped)..];
            let (now, later) = bytes.split_at(bytes.len().min(own.len()));
            if own[..now.len()] != *now {
                return false;
            }
            bytes = later;
        }
        bytes.is_empty()
    }

    /// Whether an array that gets these bytes at this offset contains all its items afterwards.
    fn is_kept_by(&self, index: usize, from: u64, bytes: &[u8]) -> bool {
        let own = self.range(index, from as usize, bytes.len());
        let mut pairs = own.iter().zip(bytes);
        match &self.shape {
            ForeignShape::Tables(_) => pairs.all(|(own, new)| *own == 0 || own == new),
            ForeignShape::Chain(_) | ForeignShape::SipChain(_) => {
                pairs.all(|(own, new)| own & !new == 0)
            }
        }
    }

    fn copy_to(&mut self, index: usize, from: u64, mut bytes: &[u8]) {
        let array = &mut self.arrays[index];
        let size = array.segment_size() as u64;
        let mut skipped = (from % size) as usize;
        for segment in (from / size) as usize..array.segments() {
            let own = &mut array.segment_mut(segment)[std::mem::take(&mut skipped)..];
            let (now, later) = bytes.split_at(bytes.len().min(own.len()));
            own[..now.len()].copy_from_slice(now);
            bytes = later;
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// The first chunk of the other module's `SCANDUMP`. `None`: it has no such command or would not load the chunk, or the filter
    /// has changed since it came.
    pub fn dump(&self) -> Option<Vec<u8>> {
        let header = match &self.shape {
            ForeignShape::Chain(chain) => chain.dump(),
            ForeignShape::Tables(tables) if tables.is_consistent() => tables.dump(),
            ForeignShape::Tables(_) | ForeignShape::SipChain(_) => return None,
        };
        self.is_original.then_some(header)
    }

    /// Whether the other module dumps such filters in chunks of its own format.
    pub fn has_chunks(&self) -> bool {
        !matches!(self.shape, ForeignShape::SipChain(_))
    }

    /// The bytes of one step of the iterator of `SCANDUMP`.
    fn bytes_per_step(&self) -> u64 {
        match &self.shape {
            ForeignShape::Tables(tables) => tables.bytes_per_step(),
            ForeignShape::Chain(_) | ForeignShape::SipChain(_) => 1,
        }
    }

    /// The next chunk of `SCANDUMP` from a step on, of at most `most` bytes, and the step at its end. `None`: there is none.
    pub fn chunk(&self, from: u64, most: usize) -> Option<(u64, Vec<u8>)> {
        let step = self.bytes_per_step();
        let from = from.checked_mul(step)?;
        let (index, skipped, size) = self.offset_of(from)?;
        let length = (size - skipped).min(most as u64);
        let bytes = self.range(index, skipped as usize, length as usize);
        Some(((from + length) / step, bytes))
    }

    /// The array that has the byte at a position, the offset of the byte in it, and its size.
    fn offset_of(&self, position: u64) -> Option<(usize, u64, u64)> {
        let later = self.starts.partition_point(|start| *start <= position);
        let index = later.checked_sub(1)?;
        let size = self.shape.size(index)?;
        let offset = position - self.starts[index];
        (offset < size).then_some((index, offset, size))
    }

    /// All chunks of `SCANDUMP` of at most `most` bytes, each with the step at its end.
    pub fn chunks(&self, most: usize) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let sizes = self.shape.sizes().into_iter().enumerate();
        let pieces = sizes.flat_map(move |(index, size)| {
            let starts = (0..size as usize).step_by(most);
            starts.map(move |from| (index, from, most.min(size as usize - from)))
        });
        let mut end = 0;
        pieces.map(move |(index, from, length)| {
            end += length as u64;
            (end / self.bytes_per_step(), self.range(index, from, length))
        })
    }

    /// Sets the bytes of a chunk that ends at this step. Error: it does not lie within one array, or does not follow the chunk
    /// before, or is too short for its offset, or would remove items of a filter that did not come in chunks.
    /// The beginning of a chunk is known from its length alone, so the bytes of a chunk that was cut would come to a wrong offset.
    pub fn load_chunk(&mut self, end: u64, bytes: &[u8]) -> Result<(), Corrupt> {
        let end = end.checked_mul(self.bytes_per_step()).ok_or(Corrupt)?;
        let from = end.checked_sub(bytes.len() as u64).ok_or(Corrupt)?;
        let (index, offset, size) = self.offset_of(from).ok_or(Corrupt)?;
        if bytes.is_empty() || end - from > size - offset {
            return Err(Corrupt);
        }
        match self.next_chunk {
            Some(next) if end <= next => {
                // A repetition changes nothing.
                let is_same = self.contains(index, offset, bytes);
                return is_same.then_some(()).ok_or(Corrupt);
            }
            Some(next) if from != next => return Err(Corrupt),
            // Only the end of an array has so short a chunk, so the header's array is larger than that of the dumped filter.
            Some(_) if end - from < (size - offset).min(MIN_CHUNK_BYTES) => return Err(Corrupt),
            // The rest of a filter that was saved after some of its chunks.
            None if !self.is_kept_by(index, offset, bytes) => return Err(Corrupt),
            _ => {}
        }
        self.copy_to(index, offset, bytes);
        self.next_chunk = self.next_chunk.map(|_| end);
        Ok(())
    }
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Corrupt> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(Corrupt)
}

fn get_u16(bytes: &[u8], at: usize) -> Result<u16, Corrupt> {
    Ok(u16::from_le_bytes(get(bytes, at)?))
}

fn get_u32(bytes: &[u8], at: usize) -> Result<u32, Corrupt> {
    Ok(u32::from_le_bytes(get(bytes, at)?))
}

fn get_u64(bytes: &[u8], at: usize) -> Result<u64, Corrupt> {
    Ok(u64::from_le_bytes(get(bytes, at)?))
}

fn get_f64(bytes: &[u8], at: usize) -> Result<f64, Corrupt> {
    Ok(f64::from_le_bytes(get(bytes, at)?))
}
