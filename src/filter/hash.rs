//! The hashes of items.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The hash of an item: XXH3 with the random seed of the filter. One half of its 128 bits selects the position in the filter, the
/// other half the bits or the fingerprint, so that both are independent.
/// <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash {
    /// The half that selects the position: a block or a bucket.
    pub high: u64,
    /// The half that selects the bits or the fingerprint.
    pub low: u64,
}

impl Hash {
    /// The hash of an item.
    #[inline]
    pub fn of(item: &[u8], seed: u64) -> Self {
        Self::from_bits(xxh3_128_with_seed(item, seed))
    }

    /// The hash with these bits.
    pub fn from_bits(bits: u128) -> Self {
        Self {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }

    /// The 128 bits.
    pub fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// A number below `range`, by multiplication and shift (Lemire, "Fast Random Integer Generation in an Interval", 2019). It grows
/// with the hash.
#[inline]
pub fn reduce(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_specification() {
        // Every processor must compute the same hashes, because servers exchange saved filters.
        let hash = |item: &[u8], seed| Hash::of(item, seed).bits();
        assert_eq!(hash(b"", 0), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_ne!(hash(b"a", 0), hash(b"a", 1));
        let hash = Hash::of(b"a", 1);
        assert_eq!(Hash::from_bits(hash.bits()), hash);
    }

    #[test]
    fn places_are_in_range() {
        for range in [1, 2, 3, 1000, u64::MAX] {
            assert_eq!(reduce(0, range), 0);
            assert_eq!(reduce(u64::MAX, range), range - 1);
        }
        assert_eq!(reduce(1 << 63, 10), 5);
    }
}
