//! RedisBloom's cuckoo filter: tables of fingerprints of one byte, its type `MBbloomCF`. Layouts as in RedisBloom 2.2 to 8.8,
//! files `src/cuckoo.c`, `src/cf.c` and `src/rebloom.c`.
//!
//! ```text
//! RDB      = count buckets items deleted bucket-size max-iterations expansion table*       encoding 4
//! table    = buckets array
//! header   = items(8) buckets(8) deleted(8) count(8) bucket-size(2) max-iterations(2) expansion(2)
//! ```
//!
//! The header is the first chunk of `CF.SCANDUMP`, with little-endian numbers. There, the number of buckets of table i is
//! buckets · expansion^i. The other chunks are the arrays one after the other, as for a Bloom filter. RedisBloom 2.0 wrote
//! encoding 3 without a bucket size; newer versions read it with another hash function than 2.0 had, so its filters are refused.

use super::murmur::murmur64;
use super::{ArrayBytes, get_u16, get_u64};
use crate::codec::Corrupt;
use crate::filter::state::MAX_ITEMS;

/// The encoding version of the type in RDB files.
pub const ENCODING: i32 = 4;

/// The most tables. A query looks at all of them.
const MAX_TABLES: u64 = 4096;

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
}

/// The fingerprint of an item, and its two hashes.
struct Candidates {
    fingerprint: u8,
    hashes: [u64; 2],
}

impl Candidates {
    fn of(item: &[u8]) -> Self {
        let hash = murmur64(item, 0);
        let fingerprint = (hash % 255 + 1) as u8;
        let other = hash ^ u64::from(fingerprint).wrapping_mul(0x5bd1_e995);
        Self {
            fingerprint,
            hashes: [hash, other],
        }
    }
}

impl Tables {
    /// Error: no filter of RedisBloom has these numbers.
    pub fn check(self) -> Result<Self, Corrupt> {
        let count = self.tables.len() as u64;
        let are_buckets = |buckets: &u64| (1..=1 << 45).contains(buckets);
        let is_valid = (1..=MAX_TABLES).contains(&count)
            && (1..=255).contains(&self.bucket_size)
            && self.max_iterations <= u64::from(u16::MAX)
            && self.expansion <= u64::from(u16::MAX)
            && self.items.max(self.deleted) <= MAX_ITEMS
            && are_buckets(&self.buckets)
            && self.tables.iter().all(are_buckets);
        is_valid.then_some(self).ok_or(Corrupt)
    }

    /// Reads the first chunk of `CF.SCANDUMP`.
    pub fn read_dump(header: &[u8]) -> Result<Self, Corrupt> {
        const SIZE: usize = 38;
        if header.len() != SIZE {
            return Err(Corrupt);
        }
        let buckets = get_u64(header, 8)?;
        let count = get_u64(header, 24)?;
        let expansion = u64::from(get_u16(header, 36)?);
        if !(1..=MAX_TABLES).contains(&count) {
            return Err(Corrupt);
        }
        let mut next = buckets;
        let tables = (0..count).map(|_| {
            let now = next;
            next = next.saturating_mul(expansion);
            now
        });
        let tables = tables.collect();
        Self {
            buckets,
            items: get_u64(header, 0)?,
            deleted: get_u64(header, 16)?,
            bucket_size: get_u16(header, 32)?.into(),
            max_iterations: get_u16(header, 34)?.into(),
            expansion,
            tables,
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
        for number in [self.bucket_size, self.max_iterations, self.expansion] {
            out.extend((number as u16).to_le_bytes());
        }
        out
    }

    /// The bytes of each table.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().map(|buckets| buckets * self.bucket_size)
    }

    /// The number of slots.
    pub fn slots(&self) -> u64 {
        self.sizes().fold(0, u64::saturating_add)
    }

    /// The position of a bucket. RedisBloom keeps it in 32 bits, so that tables above 4 GiB are used in part only.
    fn position(&self, buckets: u64, hash: u64) -> u64 {
        u64::from((hash % buckets * self.bucket_size) as u32)
    }

    fn slots_of(&self, buckets: u64, hash: u64) -> impl Iterator<Item = u64> + use<> {
        let first = self.position(buckets, hash);
        first..first + self.bucket_size
    }

    /// How often the filter contains an item, or answers so. As RedisBloom does, counts twice where both buckets are the same.
    pub fn count<'a>(&self, item: &[u8], arrays: impl Iterator<Item = ArrayBytes<'a>>) -> u64 {
        let candidates = Candidates::of(item);
        let count = |(buckets, array): (&u64, ArrayBytes<'_>)| {
            let slots = candidates.hashes.into_iter();
            let slots = slots.flat_map(|hash| self.slots_of(*buckets, hash));
            slots
                .filter(|slot| array.byte(*slot) == candidates.fingerprint)
                .count() as u64
        };
        self.tables.iter().zip(arrays).map(count).sum()
    }

    /// Where the newest copy of an item is: the number of the table and the slot.
    pub fn find<'a>(
        &self,
        item: &[u8],
        arrays: impl DoubleEndedIterator<Item = ArrayBytes<'a>> + ExactSizeIterator,
    ) -> Option<(usize, u64)> {
        let candidates = Candidates::of(item);
        let mut tables = self.tables.iter().zip(arrays).enumerate().rev();
        tables.find_map(|(table, (buckets, array))| {
            let slots = candidates.hashes.into_iter();
            let mut slots = slots.flat_map(|hash| self.slots_of(*buckets, hash));
            let slot = slots.find(|slot| array.byte(*slot) == candidates.fingerprint)?;
            Some((table, slot))
        })
    }
}
