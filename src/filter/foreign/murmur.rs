//! MurmurHash2 in its 32-bit form and in its 64-bit form "64A", by Austin Appleby, in the public domain:
//! <https://github.com/aappleby/smhasher/blob/master/src/MurmurHash2.cpp>. RedisBloom hashes items with them. Numbers are
//! little-endian on every processor.

/// MurmurHash2.
pub fn murmur32(bytes: &[u8], seed: u32) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = seed ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(M) ^ mixed.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

/// MurmurHash64A.
pub fn murmur64(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> 47;
        hash = (hash ^ mixed.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 47;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 47
}

#[cfg(test)]
mod tests {
    use super::{murmur32, murmur64};

    /// What the reference implementation in C returns.
    #[test]
    fn hashes_are_those_of_the_reference() {
        let items: [&[u8]; 5] = [b"", b"a", b"abcd", b"abcdefgh", b"the quick brown fox"];
        let seed = 0x9747_b28c;
        assert_eq!(items.map(|item| murmur32(item, seed)), EXPECTED_32);
        assert_eq!(items.map(|item| murmur64(item, seed.into())), EXPECTED_64);
    }

    const EXPECTED_32: [u32; 5] = [0x106e08d9, 0xa2d0b27c, 0xb11ab5f4, 0xc70d55dd, 0x7f5162c1];
    const EXPECTED_64: [u64; 5] = [
        0x8397626cd6895052,
        0xe96b6245652273ae,
        0xbb245b4802d79fa0,
        0x617b517726694eba,
        0x12a8a4b87e641c29,
    ];
}
