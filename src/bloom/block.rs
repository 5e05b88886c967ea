//! One cache line as a small Bloom filter: an item sets a few of its 512 bits.
//!
//! Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007): a filter
//! of such blocks touches one cache line for each item, at the price of some bits, because blocks
//! get unequally many items; see [`super::shape`].

use crate::server::lines::LINE_SIZE;

/// The bits of a block.
pub const BLOCK_BITS: usize = LINE_SIZE * 8;

/// A block.
pub type Block = [u8; LINE_SIZE];

/// How many bits of a block one 64-bit word chooses, nine bits of the word for each.
const PER_WORD: u32 = 7;

/// The next word of an item, which is as good as random: the step of SplitMix64 (Steele, Lea and
/// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn next_word(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Does something with each of the `probes` bits of an item: with the byte that it is in, and its
/// number there.
#[inline]
fn for_each_bit(mut word: u64, probes: u32, mut each: impl FnMut(usize, u32)) {
    let mut left = probes;
    loop {
        let mut bits = word;
        for _ in 0..left.min(PER_WORD) {
            let bit = bits as usize % BLOCK_BITS;
            each(bit / 8, bit as u32 % 8);
            bits >>= 9;
        }
        if left <= PER_WORD {
            return;
        }
        left -= PER_WORD;
        word = next_word(word);
    }
}

/// Are all bits of an item set? All are looked at: that is faster than to stop at the first that is
/// not, which no processor can foresee.
#[inline]
pub fn holds(block: &Block, word: u64, probes: u32) -> bool {
    let mut all = 1;
    for_each_bit(word, probes, |byte, bit| all &= block[byte] >> bit);
    all & 1 != 0
}

/// Sets all bits of an item.
#[inline]
pub fn set(block: &mut Block, word: u64, probes: u32) {
    for_each_bit(word, probes, |byte, bit| block[byte] |= 1 << bit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The bits of an item, as the documentation says it.
    fn bits(mut word: u64, probes: u32) -> BTreeSet<u64> {
        let mut bits = BTreeSet::new();
        for probe in 0..probes {
            if probe > 0 && probe % 7 == 0 {
                word = next_word(word);
            }
            bits.insert(word >> (9 * (probe % 7)) & 511);
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
            let mut block = [0; LINE_SIZE];
            let mut model = BTreeSet::new();
            for item in &items {
                set(&mut block, *item, probes);
                model.extend(bits(*item, probes));
            }
            let ones: u32 = block.iter().map(|byte| byte.count_ones()).sum();
            prop_assert_eq!(ones as usize, model.len());
            for item in items.iter().chain(&others) {
                let held = bits(*item, probes).is_subset(&model);
                prop_assert_eq!(holds(&block, *item, probes), held);
            }
        }
    }
}
