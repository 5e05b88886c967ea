//! One cache line as a small Bloom filter: an item sets a few of its 512 bits.
//!
//! Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007): a filter
//! of such blocks touches one cache line for each item, at the price of some bits, because blocks
//! get unequally many items; see [`super::shape`].

use crate::server::services::cache_lines::LINE_SIZE;
use bitvec::order::Lsb0;
use bitvec::view::BitView;

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

/// Does something with each of the `probes` bits of an item.
#[inline(always)]
fn for_each_bit(mut word: u64, probes: u32, mut each: impl FnMut(usize)) {
    let mut left = probes;
    while left > PER_WORD {
        for_each_bit_of(word, PER_WORD, &mut each);
        left -= PER_WORD;
        word = next_word(word);
    }
    for_each_bit_of(word, left, &mut each);
}

#[inline(always)]
fn for_each_bit_of(mut word: u64, probes: u32, each: &mut impl FnMut(usize)) {
    for _ in 0..probes {
        each(word as usize % BLOCK_BITS);
        word >>= 9;
    }
}

/// Are all bits of an item set? All are looked at: that is faster than to stop at the first that is
/// not, which no processor can foresee.
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

    /// The bits of an item, as the documentation says it.
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
            let mut block = [0; LINE_SIZE];
            let mut model = BTreeSet::new();
            for item in &items {
                set(&mut block, *item, probes);
                model.extend(bits(*item, probes));
            }
            // The same on every processor: bit 8 is the lowest one of the second byte.
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
