//! valkey-bloom's Bloom filter: a chain of classic Bloom filters with SipHash, its type `bloomfltr`. Layouts as in valkey-bloom
//! 1.0, files `src/wrapper/bloom_callback.rs` and `src/bloom/data_type.rs`, and in the crate bloomfilter 3.0 that it uses.
//!
//! ```text
//! RDB      = count expansion error tightening is-seed-random link* items         encoding 1
//! link     = bitmap capacity
//! bitmap   = version(1) bytes(8) hashes(4) seed(32) bits(bytes)
//! ```
//!
//! In RDB, numbers are the server's unsigned integers and doubles, and a bitmap is one string, whose numbers are little-endian.
//! `items` are those of the last link; the links before it are full. All links have the same seed.
//!
//! valkey-bloom checks the version and length of a bitmap, the rate of each link, and the seed of a filter whose seed is not random.
//! Here, the number of hashes must also follow from the other numbers. Otherwise a filter could deny its items.

use super::{ArrayBytes, FIXED_SHARE, get, get_u32, get_u64};
use crate::codec::Corrupt;
use crate::filter::state::MAX_ITEMS;
use siphasher::sip::SipHasher13;
use std::f64::consts::LN_2;
use std::hash::{Hash, Hasher};

/// The encoding version of the type in RDB files: that of valkey-bloom 1.0.
pub const ENCODING: i32 = 1;

/// The version of a bitmap.
const BITMAP_VERSION: u8 = 1;

/// The bytes of a bitmap before the bits.
pub const BITMAP_HEADER_BYTES: usize = 45;

/// The seed of filters without a random seed.
const FIXED_SEED: [u8; 32] = [
    89, 15, 245, 34, 234, 120, 17, 218, 167, 20, 216, 9, 59, 62, 123, 217, 29, 137, 138, 115, 62,
    152, 136, 135, 48, 127, 151, 205, 40, 7, 51, 131,
];

/// The most links of a chain. A query looks at all of them.
const MAX_LINKS: u64 = 4096;

/// The largest prime below 2^64.
const PRIME: u64 = 0xffff_ffff_ffff_ffc5;

/// The numbers of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct SipChain {
    /// The ratio of the capacities of two successive links; 0: the filter does not grow.
    pub expansion: u64,
    /// The false positive rate of the first link.
    pub error: f64,
    /// The ratio of the false positive rates of two successive links.
    pub tightening: f64,
    /// Whether the seed was drawn for this filter.
    pub is_seed_random: bool,
    /// The keys of the two hash functions.
    pub seed: [u8; 32],
    /// The filters, the oldest first.
    pub links: Vec<SipLink>,
    /// The number of items of the last link.
    pub last_items: u64,
}

/// The numbers of one filter of a chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SipLink {
    /// The capacity, in items.
    pub capacity: u64,
    /// The number of bits of an item.
    pub hashes: u64,
    /// The bytes of the bits.
    pub bytes: u64,
}

/// The maximum number of hashes. The lowest false positive rate, [`f64::MIN_POSITIVE`], needs 1022 hashes (-log2 of the rate). The
/// number of bits is rounded up to whole bytes, which can add a few hashes.
const MAX_HASHES: u64 = 1100;

impl SipLink {
    /// Error: no filter of valkey-bloom has these numbers.
    fn check(&self) -> Result<(), Corrupt> {
        let is_valid = (1..=MAX_ITEMS).contains(&self.capacity)
            && (1..=1 << 53).contains(&self.bytes)
            && self.hashes == self.best_hashes()
            && self.hashes <= MAX_HASHES;
        is_valid.then_some(()).ok_or(Corrupt)
    }

    /// The number of hashes for the fewest false positives, in the order of operations of the crate bloomfilter 3.0.
    fn best_hashes(&self) -> u64 {
        let bits = (self.bytes * 8) as f64;
        let hashes = (bits / self.capacity as f64 * LN_2).round();
        (hashes as u64).clamp(1, u64::from(u32::MAX))
    }

    /// Reads the part of a bitmap before the bits. Returns the link, and the seed.
    pub fn read(bitmap: &[u8], capacity: u64) -> Result<(Self, [u8; 32]), Corrupt> {
        let [version] = get(bitmap, 0)?;
        let link = Self {
            capacity,
            bytes: get_u64(bitmap, 1)?,
            hashes: get_u32(bitmap, 9)?.into(),
        };
        let seed = get(bitmap, 13)?;
        let bits = (bitmap.len() - BITMAP_HEADER_BYTES) as u64;
        let is_valid = version == BITMAP_VERSION && link.bytes == bits;
        is_valid.then_some((link, seed)).ok_or(Corrupt)
    }

    fn holds(&self, array: ArrayBytes<'_>, [first, second]: [u64; 2]) -> bool {
        let bits = self.bytes * 8;
        (0..self.hashes).all(|index| {
            let hash = match index {
                0 => first,
                1 => second,
                _ => first.wrapping_add(index.wrapping_mul(second)) % PRIME,
            };
            let bit = hash % bits;
            array.byte(bit / 8) & 1 << (bit % 8) != 0
        })
    }
}

impl SipChain {
    /// Error: no filter of valkey-bloom has these numbers.
    pub fn check(self) -> Result<Self, Corrupt> {
        let is_rate = |rate: f64| rate > 0.0 && rate < 1.0;
        let last = self.links.last().ok_or(Corrupt)?;
        let is_valid = self.links.len() as u64 <= MAX_LINKS
            && self.expansion <= u64::from(u32::MAX)
            && is_rate(self.error)
            && is_rate(self.tightening)
            && self.last_error() > f64::MIN_POSITIVE
            && (self.is_seed_random || self.seed == FIXED_SEED)
            && self.last_items <= last.capacity
            && self.items() <= MAX_ITEMS;
        self.links.iter().try_for_each(SipLink::check)?;
        is_valid.then_some(self).ok_or(Corrupt)
    }

    /// The false positive rate of the last link.
    fn last_error(&self) -> f64 {
        let before = self.links.len() as i32 - 1; // at most `MAX_LINKS`
        self.error * self.tightening.powi(before)
    }

    /// The part of a link's bitmap before the bits.
    pub fn bitmap_header(&self, link: &SipLink) -> Vec<u8> {
        let mut out = vec![BITMAP_VERSION];
        out.extend(link.bytes.to_le_bytes());
        out.extend((link.hashes as u32).to_le_bytes());
        out.extend(self.seed);
        out
    }

    /// The number of items.
    pub fn items(&self) -> u64 {
        let full = self.links.iter().rev().skip(1).map(|link| link.capacity);
        full.fold(self.last_items, u64::saturating_add)
    }

    /// Whether the filter contains an item, or answers so.
    pub fn holds<'a>(&self, item: &[u8], arrays: impl Iterator<Item = ArrayBytes<'a>>) -> bool {
        let keys: &[[u8; 16]] = self.seed.as_chunks().0;
        let hash = |key: &[u8; 16]| {
            // As the standard library hashes a slice: with its length before it.
            let mut hasher = SipHasher13::new_with_key(key);
            item.hash(&mut hasher);
            hasher.finish()
        };
        let hashes = [hash(&keys[0]), hash(&keys[1])];
        let mut links = self.links.iter().zip(arrays);
        links.any(|(link, array)| link.holds(array, hashes))
    }

    /// Whether the filter never gets another link.
    pub fn is_fixed(&self) -> bool {
        self.expansion == 0
    }

    /// The false positive rate of layers behind the chain: that of its next link.
    pub fn error_left(&self) -> f64 {
        if self.is_fixed() {
            return self.error / FIXED_SHARE; // the link before is not full as long as items come
        }
        let links = self.links.len().min(64) as i32;
        self.error * self.tightening.powi(links)
    }
}

#[cfg(test)]
mod tests {
    use super::{BITMAP_HEADER_BYTES, SipChain, SipLink};

    fn chain() -> SipChain {
        let link = |capacity| SipLink {
            capacity,
            hashes: 7,
            bytes: capacity + capacity / 5,
        };
        SipChain {
            expansion: 2,
            error: 0.01,
            tightening: 0.5,
            is_seed_random: true,
            seed: [7; 32],
            links: vec![link(100), link(200)],
            last_items: 3,
        }
    }

    #[test]
    fn a_bitmap_is_read_as_it_was_written() {
        let chain = chain();
        let mut bitmap = chain.bitmap_header(&chain.links[1]);
        assert_eq!(bitmap.len(), BITMAP_HEADER_BYTES);
        assert!(SipLink::read(&bitmap, 200).is_err());
        bitmap.resize(BITMAP_HEADER_BYTES + 240, 0);
        let read = SipLink::read(&bitmap, 200).expect("a bitmap");
        assert_eq!(read, (chain.links[1], chain.seed));
        for length in 0..bitmap.len() {
            assert!(SipLink::read(&bitmap[..length], 200).is_err(), "{length}");
        }
        bitmap[0] = 2;
        assert!(SipLink::read(&bitmap, 200).is_err());
    }

    #[test]
    fn impossible_numbers_are_corrupt() {
        assert_eq!(chain().items(), 103);
        assert!(chain().check().is_ok());
        let changes: [fn(&mut SipChain); 16] = [
            |chain| {
                // 64 MiB for one item, with the hashes that fit them best
                (chain.links[1].capacity, chain.links[1].bytes) = (1, 1 << 26);
                (chain.links[1].hashes, chain.last_items) = (372_130_559, 1);
            },
            |chain| chain.links.clear(),
            |chain| chain.error = 0.0,
            |chain| chain.error = f64::NAN,
            |chain| chain.tightening = 1.0,
            |chain| chain.last_items = 201,
            |chain| chain.expansion = 1 << 32,
            |chain| chain.error = 2.0 * f64::MIN_POSITIVE,
            |chain| chain.is_seed_random = false,
            |chain| chain.links[0].hashes = 0,
            |chain| chain.links[1].hashes = 6,
            |chain| chain.links[1].hashes = 8,
            |chain| chain.links[0].hashes += 1 << 32,
            |chain| chain.links[0].bytes = 0,
            |chain| chain.links[1].capacity = 0,
            |chain| chain.links[0].capacity = u64::MAX,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut changed = chain();
            change(&mut changed);
            assert!(changed.check().is_err(), "{number}");
        }
    }

    #[test]
    fn the_fixed_seed_and_a_single_hash_are_valid() {
        let mut chain = chain();
        chain.seed = super::FIXED_SEED;
        chain.is_seed_random = false;
        chain.links[0] = SipLink {
            capacity: 100,
            hashes: 1,
            bytes: 1,
        };
        assert!(chain.clone().check().is_ok());
        chain.seed[31] ^= 1;
        assert!(chain.check().is_err());
    }

    #[test]
    fn layers_behind_a_chain_have_the_rate_of_its_next_link() {
        let mut chain = chain();
        assert_eq!(chain.error_left(), 0.0025);
        chain.expansion = 0;
        assert_eq!(chain.error_left(), 0.01 / 64.0);
    }
}
