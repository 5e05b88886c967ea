//! RedisBloom's cuckoo filter: tables of fingerprints of one byte, its type `MBbloomCF`. Layouts as in RedisBloom 1.1 to 8.8,
//! files `src/cuckoo.c`, `src/cf.c` and `src/rebloom.c`.
//!
//! ```text
//! RDB      = count buckets items deleted bucket-size max-iterations expansion table*       encoding 4, since RedisBloom 2.2
//! table    = buckets array
//! RDB      = count buckets items array*                                     encoding 3, RedisBloom 1.1 and 2.0
//! RDB      = 0 buckets items deleted bucket-size max-iterations expansion count array*     encoding 4, of Sluice
//! header   = items(8) buckets(8) deleted(8) count(8) [bucket-size(2) max-iterations(2) expansion(2) [address(8)]]
//! ```
//!
//! The header is the first chunk of `CF.SCANDUMP`, with little-endian numbers. There, the number of buckets of table i is
//! buckets · expansion^i. The other chunks are the arrays one after the other, as for a Bloom filter. The header ends after
//! `count` in RedisBloom 1.1 and 2.0, and only the first versions of 2.2 wrote an address, which has no meaning.
//!
//! RedisBloom 1.1 and 2.0 have another hash function, two slots a bucket, and equal tables. They count the positions of chunks in
//! buckets. RedisBloom 2.2 to 8.8 load such a filter, but look for its items in wrong places. So Sluice saves it with a count of 0 in
//! the first place: RedisBloom 8.8 refuses this count, and in older versions the server refuses the rest of the value.

use super::murmur::{murmur32, murmur64};
use super::{ArrayBytes, get_u16, get_u64};
use crate::codec::Corrupt;
use crate::filter::state::MAX_ITEMS;

/// The encoding version of the type in RDB files that this module writes.
pub const ENCODING: i32 = 4;

/// The encoding version of RedisBloom 1.1 and 2.0, the oldest one.
pub const ENCODING_32: i32 = 3;

/// The slots of a bucket in RedisBloom 1.1 and 2.0.
const BUCKET_SIZE_32: u64 = 2;

/// The most tables, as in RedisBloom. A query looks at all of them.
const MAX_TABLES: u64 = 65_535;

/// The largest expansion, as in RedisBloom. It is a power of two in 16 bits.
const MAX_EXPANSION: u64 = 32_768;

/// The numbers of the tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Tables {
    /// The buckets of the first table.
    pub buckets: u64,
    /// The number of items.
    pub items: u64,
    /// The number of deleted items.
    pub deleted: u64,
    /// The slots of a bucket, 1 to 255.
    pub bucket_size: u64,
    /// The most fingerprints that RedisBloom moves for another one.
    pub max_iterations: u64,
    /// The ratio of the buckets of two successive tables; 0: there is one table.
    pub expansion: u64,
    /// The buckets of each table, the oldest first.
    pub tables: Vec<u64>,
    /// How the filter hashes items.
    pub hashing: Hashing,
}

/// The buckets of each table of a filter that RedisBloom has made, at most 2^64 - 1.
fn buckets_of(first: u64, expansion: u64, count: usize) -> impl Iterator<Item = u64> {
    let next = move |buckets: &u64| Some(buckets.saturating_mul(expansion));
    std::iter::successors(Some(first), next).take(count)
}

/// How a filter hashes items.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hashing {
    /// MurmurHash2, in RedisBloom 1.1 and 2.0.
    Bits32,
    /// MurmurHash64A, since RedisBloom 2.2.
    Bits64,
}

/// The fingerprint of an item, and its first hash.
struct Candidates {
    fingerprint: u8,
    hash: u64,
}

impl Candidates {
    fn of(item: &[u8], hashing: Hashing) -> Self {
        match hashing {
            Hashing::Bits32 => {
                let hash = murmur32(item, 0);
                let fingerprint = match (hash >> 24) as u8 {
                    0 => 7,
                    fingerprint => fingerprint,
                };
                Self {
                    fingerprint,
                    hash: hash.into(),
                }
            }
            Hashing::Bits64 => {
                let hash = murmur64(item, 0);
                Self {
                    fingerprint: (hash % 255 + 1) as u8,
                    hash,
                }
            }
        }
    }
}

impl Tables {
    /// Error: no filter of RedisBloom has these numbers.
    pub fn check(self) -> Result<Self, Corrupt> {
        let count = self.tables.len() as u64;
        let is_valid = (1..=MAX_TABLES).contains(&count)
            && (1..=255).contains(&self.bucket_size)
            && self.max_iterations <= u64::from(u16::MAX)
            && self.expansion <= MAX_EXPANSION
            && self.items.max(self.deleted) <= MAX_ITEMS
            && self.buckets.is_power_of_two()
            && self.tables.first() == Some(&self.buckets)
            && self
                .tables
                .iter()
                .all(|buckets| (1..=1 << 45).contains(buckets))
            && (self.hashing == Hashing::Bits64 || self.is_of_32_bits());
        is_valid.then_some(self).ok_or(Corrupt)
    }

    /// Whether the numbers agree, so that the header of a dump contains all of them. Those of some old filters do not agree. Up to
    /// version 2.2.6, a filter could lose a table and still count its items. Versions 2.2.0 to 2.2.17 accept `MAXITERATIONS 0`. Version 8
    /// sets the configured expansion on a filter of version 2.0.
    pub fn is_consistent(&self) -> bool {
        let buckets = buckets_of(self.buckets, self.expansion, self.tables.len());
        self.max_iterations > 0
            && self.items <= self.slots()
            && buckets.eq(self.tables.iter().copied())
    }

    /// A filter of RedisBloom 1.1 or 2.0. Error: none has these numbers.
    pub fn of_32_bits(count: u64, buckets: u64, items: u64, deleted: u64) -> Result<Self, Corrupt> {
        if count > MAX_TABLES {
            return Err(Corrupt);
        }
        Self {
            buckets,
            items,
            deleted,
            bucket_size: BUCKET_SIZE_32,
            max_iterations: 500,
            expansion: 1,
            tables: vec![buckets; count as usize],
            hashing: Hashing::Bits32,
        }
        .check()
    }

    fn is_of_32_bits(&self) -> bool {
        let are_equal = self.tables.iter().all(|buckets| *buckets == self.buckets);
        are_equal && self.bucket_size == BUCKET_SIZE_32 && self.expansion == 1
    }

    /// The bytes of one step of the iterator of `CF.SCANDUMP`.
    pub fn bytes_per_step(&self) -> u64 {
        match self.hashing {
            Hashing::Bits32 => self.bucket_size,
            Hashing::Bits64 => 1,
        }
    }

    /// Reads the first chunk of `CF.SCANDUMP`, of any version of RedisBloom.
    pub fn read_dump(header: &[u8]) -> Result<Self, Corrupt> {
        const HEADER_BYTES: usize = 38;
        const HEADER_BYTES_OF_32_BITS: usize = 32;
        const HEADER_BYTES_WITH_ADDRESS: usize = 46;
        let items = get_u64(header, 0)?;
        let buckets = get_u64(header, 8)?;
        let deleted = get_u64(header, 16)?;
        let count = get_u64(header, 24)?;
        match header.len() {
            HEADER_BYTES_OF_32_BITS => return Self::of_32_bits(count, buckets, items, deleted),
            HEADER_BYTES | HEADER_BYTES_WITH_ADDRESS => {}
            _ => return Err(Corrupt),
        }
        let expansion = u64::from(get_u16(header, 36)?);
        if !(1..=MAX_TABLES).contains(&count) {
            return Err(Corrupt);
        }
        let tables = buckets_of(buckets, expansion, count as usize).collect();
        Self {
            buckets,
            items,
            deleted,
            bucket_size: get_u16(header, 32)?.into(),
            max_iterations: get_u16(header, 34)?.into(),
            expansion,
            tables,
            hashing: Hashing::Bits64,
        }
        .check()
    }

    /// The first chunk of `CF.SCANDUMP`.
    pub fn dump(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let count = self.tables.len() as u64;
        for number in [self.items, self.buckets, self.deleted, count] {
            out.extend(number.to_le_bytes());
        }
        if self.hashing == Hashing::Bits64 {
            for number in [self.bucket_size, self.max_iterations, self.expansion] {
                out.extend((number as u16).to_le_bytes());
            }
        }
        out
    }

    /// The bytes of each table.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().map(|buckets| buckets * self.bucket_size)
    }

    /// The bytes of one table. `None`: there is no such table.
    pub fn size(&self, index: usize) -> Option<u64> {
        let buckets = self.tables.get(index)?;
        Some(buckets * self.bucket_size)
    }

    /// The number of slots.
    pub fn slots(&self) -> u64 {
        self.sizes().fold(0, u64::saturating_add)
    }

    /// The first slots of the two buckets of an item. RedisBloom 2.2 and later keep a position in 32 bits, so that they use
    /// tables above 4 GiB only in part.
    fn positions(&self, buckets: u64, candidates: &Candidates) -> [u64; 2] {
        const FACTOR: u64 = 0x5bd1_e995;
        let difference = u64::from(candidates.fingerprint) * FACTOR;
        let first = candidates.hash % buckets;
        match self.hashing {
            Hashing::Bits32 => {
                let second = u64::from((first ^ difference) as u32) % buckets;
                [first, second].map(|bucket| bucket * self.bucket_size)
            }
            Hashing::Bits64 => {
                let second = (candidates.hash ^ difference) % buckets;
                [first, second].map(|bucket| (bucket * self.bucket_size) as u32 as u64)
            }
        }
    }

    fn slots_of(&self, position: u64) -> impl Iterator<Item = u64> + use<> {
        position..position + self.bucket_size
    }

    /// How often the filter contains an item, or answers so. If both buckets are the same, RedisBloom 2.2 and later count twice.
    pub fn count<'a>(&self, item: &[u8], arrays: impl Iterator<Item = ArrayBytes<'a>>) -> u64 {
        let candidates = Candidates::of(item, self.hashing);
        let count = |(buckets, array): (&u64, ArrayBytes<'_>)| {
            let count_in = |position| {
                let slots = self.slots_of(position);
                slots
                    .filter(|slot| array.byte(*slot) == candidates.fingerprint)
                    .count() as u64
            };
            let [first, second] = self.positions(*buckets, &candidates);
            let is_counted_once = self.hashing == Hashing::Bits32 && first == second;
            count_in(first) + if is_counted_once { 0 } else { count_in(second) }
        };
        self.tables.iter().zip(arrays).map(count).sum()
    }

    /// Where the newest copy of an item is: the number of the table and the slot.
    pub fn find<'a>(
        &self,
        item: &[u8],
        arrays: impl DoubleEndedIterator<Item = ArrayBytes<'a>> + ExactSizeIterator,
    ) -> Option<(usize, u64)> {
        let candidates = Candidates::of(item, self.hashing);
        let mut tables = self.tables.iter().zip(arrays).enumerate().rev();
        tables.find_map(|(table, (buckets, array))| {
            let positions = self.positions(*buckets, &candidates).into_iter();
            let mut slots = positions.flat_map(|position| self.slots_of(position));
            let slot = slots.find(|slot| array.byte(*slot) == candidates.fingerprint)?;
            Some((table, slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunks of a filter as RedisBloom 2.2.19 made them.
    const DUMPED: &[u8] = include_bytes!("../../../tests/data/foreign/cf-four.chunks");

    /// The first versions of 2.2 wrote an address behind the numbers.
    #[test]
    fn an_address_in_the_first_chunk_has_no_meaning() {
        let header = &DUMPED[16..16 + 38];
        assert_eq!(get_u64(DUMPED, 8), Ok(38));
        let tables = Tables::read_dump(header).expect("tables");
        assert_eq!(tables.dump(), header);
        for address in [0, 0x7f12_3456_789a, u64::MAX] {
            let with_address = [header, &address.to_le_bytes()].concat();
            assert_eq!(Tables::read_dump(&with_address), Ok(tables.clone()));
            for length in 39..46 {
                assert_eq!(Tables::read_dump(&with_address[..length]), Err(Corrupt));
            }
        }
    }

    #[test]
    fn numbers_that_disagree_are_corrupt_or_of_an_old_filter() {
        let tables = || Tables::read_dump(&DUMPED[16..16 + 38]).expect("tables");
        assert_eq!((tables().buckets, tables().expansion), (256, 2));
        assert!(tables().is_consistent());
        let corrupt: [fn(&mut Tables); 10] = [
            |tables| tables.buckets = 255,
            |tables| tables.buckets = 0,
            |tables| tables.buckets = 512,
            |tables| tables.tables[0] = 512,
            |tables| tables.tables[1] = 0,
            |tables| tables.bucket_size = 0,
            |tables| tables.bucket_size = 256,
            |tables| tables.max_iterations = 65_536,
            |tables| tables.expansion = 32_769,
            |tables| tables.items = 1 << 60,
        ];
        for (number, change) in corrupt.iter().enumerate() {
            let mut changed = tables();
            change(&mut changed);
            assert!(changed.check().is_err(), "{number}");
        }
        let inconsistent: [fn(&mut Tables); 5] = [
            |tables| tables.max_iterations = 0,
            |tables| tables.items = tables.slots() + 1,
            |tables| tables.expansion = 0,
            |tables| tables.expansion = 4,
            |tables| tables.tables[1] = 256,
        ];
        for (number, change) in inconsistent.iter().enumerate() {
            let mut changed = tables();
            change(&mut changed);
            let checked = changed.check().map(|tables| tables.is_consistent());
            assert_eq!(checked, Ok(false), "{number}");
        }
    }

    #[test]
    fn a_filter_has_as_many_tables_as_in_redisbloom() {
        let tables = |count: usize| Tables {
            buckets: 1,
            items: 0,
            deleted: 0,
            bucket_size: 2,
            max_iterations: 20,
            expansion: 1,
            tables: vec![1; count],
            hashing: Hashing::Bits64,
        };
        assert!(tables(0).check().is_err());
        let most = tables(65_535).check().expect("tables");
        assert_eq!(Tables::read_dump(&most.dump()), Ok(most));
        assert!(tables(65_536).check().is_err());
        assert!(Tables::read_dump(&tables(65_536).dump()).is_err());
    }
}
