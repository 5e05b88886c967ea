//! A block: one cache line as a small Bloom filter, in which an item sets some of 512 bits.
//!
//! The algorithm is that of Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007). A filter of
//! blocks reads one cache line per item. It needs more bits than a classic Bloom filter, because the loads of its blocks differ;
//! see [`super::shape`].

use crate::server::services::cache_lines::LINE_BYTES;
use bitvec::order::Lsb0;
use bitvec::view::BitView;

/// The number of bits of a block.
pub const BLOCK_BITS: usize = LINE_BYTES * 8;

/// A block.
pub type Block = [u8; LINE_BYTES];

/// The number of probes that one 64-bit word provides, at nine bits per probe.
const PER_WORD: u32 = 7;

/// The next pseudorandom word of an item: the step of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014).
fn next_word(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Calls `each` with the index in the block of each of the `probes` bits of an item.
#[inline(always)]
fn for_each_bit(mut word: u64, probes: u32, mut each: impl FnMut(usize)) {
    let mut left = probes;
    while left > PER_WORD {
        for_each_bit_of(word, PER_WORD, &mut each);
        left -= PER_WORD;
        word = next_word(word);
    }
    if left == PER_WORD {
        // The number of a rate of 1 %, the default. A loop of constant length is unrolled.
        for_each_bit_of(word, PER_WORD, &mut each);
    } else {
        for_each_bit_of(word, left, &mut each);
    }
}

#[inline(always)]
fn for_each_bit_of(mut word: u64, probes: u32, each: &mut impl FnMut(usize)) {
    for _ in 0..probes {
        each(word as usize % BLOCK_BITS);
        word >>= 9;
    }
}

/// Whether all bits of an item are set. The function reads all of them: a branch at the first bit that is not set would be
/// mispredicted and slower.
#[inline]
pub fn holds(block: &Block, word: u64, probes: u32) -> bool {
    let bits = block.view_bits::<Lsb0>();
    let mut all = true;
    for_each_bit(word, probes, |bit| all &= bits[bit]);
    all
}

/// Sets all bits of an item.
#[inline]
pub fn set(block: &mut Block, word: u64, probes: u32) {
    let bits = block.view_bits_mut::<Lsb0>();
    for_each_bit(word, probes, |bit| bits.set(bit, true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The bits of an item, computed as the documentation describes it.
    fn bits(mut word: u64, probes: u32) -> Vec<usize> {
        let mut bits = Vec::new();
        for probe in 0..probes {
            if probe > 0 && probe % 7 == 0 {
                word = next_word(word);
            }
            bits.push((word >> (9 * (probe % 7))) as usize & 511);
        }
        bits
    }

    proptest! {
        #[test]
        fn a_block_holds_the_bits_of_its_items(
            items in prop::collection::vec(any::<u64>(), 0..40),
            others in prop::collection::vec(any::<u64>(), 100),
            probes in 1u32..50,
        ) {
            let mut block = [0; LINE_BYTES];
            let mut model = BTreeSet::new();
            for item in &items {
                set(&mut block, *item, probes);
                model.extend(bits(*item, probes));
            }
            // Every processor must use the same bits: bit 8 is the lowest bit of the second byte.
            for bit in 0..BLOCK_BITS {
                prop_assert_eq!(block[bit / 8] >> (bit % 8) & 1 == 1, model.contains(&bit));
            }
            for item in items.iter().chain(&others) {
                let held = bits(*item, probes).into_iter().all(|bit| model.contains(&bit));
                prop_assert_eq!(holds(&block, *item, probes), held);
            }
        }
    }
}
