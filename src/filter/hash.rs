//! Items as hashes.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// What a filter knows of an item: XXH3 with the filter's own random seed. Of its 128 bits one half
/// chooses the place and the other what is put there, so that neither tells anything of the other.
/// <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash {
    /// Chooses the place in the filter.
    pub high: u64,
    /// Chooses what is put there.
    pub low: u64,
}

impl Hash {
    /// The hash of an item.
    #[inline]
    pub fn of(item: &[u8], seed: u64) -> Self {
        Self::from_bits(xxh3_128_with_seed(item, seed))
    }

    /// A hash of its bits.
    pub fn from_bits(bits: u128) -> Self {
        Self {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }

    /// Its bits.
    pub fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// A number below `range`, by multiplication and shift: hashes in ascending order give places in
/// ascending order (Lemire, "Fast Random Integer Generation in an Interval", 2019).
#[inline]
pub fn reduce(hash: u64, range: u64) -> u64 {
    ((u128::from(hash) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_specification() {
        // The same on every processor: what is saved on one is read on another.
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
