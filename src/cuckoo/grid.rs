//! The table of a layer: buckets of slots. A slot contains a fingerprint; 0 stands for a free slot.

use crate::filter::hash::{Hash, reduce};
use crate::server::services::cache_lines::{CacheLines, LINE_BYTES, is_zero};

/// The arrangement of fingerprints in the memory of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// The number of slots per bucket, 1 to 255.
    pub bucket_size: u64,
    /// The bytes of a fingerprint: 1, 2 or 4.
    pub width: u64,
    /// The number of buckets of the first layer.
    pub base: u64,
    /// This layer has 2^`fine` times as many buckets.
    pub fine: u32,
}

/// The buckets and the fingerprint of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CandidateBuckets {
    /// The fingerprint; never 0.
    pub fingerprint: u32,
    /// The two buckets, which may be the same.
    pub buckets: [u64; 2],
}

impl Grid {
    /// The number of buckets.
    pub fn buckets(self) -> u64 {
        self.base << self.fine
    }

    /// The number of slots.
    pub fn slots(self) -> u64 {
        self.buckets().saturating_mul(self.bucket_size)
    }

    /// The number of cache lines.
    pub fn lines(self) -> u64 {
        let bucket = self.bucket_size * self.width;
        let bytes = u128::from(bucket) * (u128::from(self.base) << self.fine);
        u64::try_from(bytes.div_ceil(LINE_BYTES as u128)).unwrap_or(u64::MAX)
    }

    /// The buckets and the fingerprint of an item: partial-key cuckoo hashing (Fan, Andersen, Kaminsky and Mitzenmacher,
    /// "Cuckoo Filter: Practically Better Than Bloom", 2014).
    ///
    /// The number of a bucket is a number below `base`, which need not be a power of two, followed by `fine` bits. Without the
    /// last bits, it is the number of the bucket in a smaller layer.
    #[inline]
    pub fn candidates(self, hash: Hash) -> CandidateBuckets {
        let mask = u32::MAX >> (32 - 8 * self.width as u32);
        let fingerprint = (hash.low as u32 & mask).max(1);
        let first = self.join(reduce(hash.high, self.base), self.top_bits(hash.low));
        CandidateBuckets {
            fingerprint,
            buckets: [first, self.other(first, fingerprint)],
        }
    }

    /// The other bucket of a fingerprint that is in this one. The function is its own inverse. The number below `base` is
    /// subtracted from a number that depends on the fingerprint; the `fine` bits are combined by exclusive or.
    #[inline]
    pub fn other(self, bucket: u64, fingerprint: u32) -> u64 {
        let mixed = mix(fingerprint.into());
        let sum = reduce(mixed, self.base);
        let coarse = bucket >> self.fine;
        let other = if sum >= coarse {
            sum - coarse
        } else {
            sum + self.base - coarse
        };
        let bits = bucket & ((1 << self.fine) - 1);
        self.join(other, bits ^ self.top_bits(mixed << 32))
    }

    #[inline]
    fn join(self, coarse: u64, bits: u64) -> u64 {
        coarse << self.fine | bits
    }

    /// The first `fine` bits of a number.
    #[inline]
    fn top_bits(self, number: u64) -> u64 {
        (number >> 32) >> (32 - self.fine)
    }

    /// Prefetches both buckets of an item.
    #[inline]
    pub fn prefetch(self, lines: &CacheLines, candidates: CandidateBuckets) {
        for bucket in candidates.buckets {
            let byte = bucket * self.bucket_size * self.width;
            lines.prefetch(byte as usize / LINE_BYTES);
        }
    }

    /// The bytes of a bucket, one slice per cache line.
    #[inline]
    fn pieces(self, lines: &CacheLines, bucket: u64) -> impl Iterator<Item = &[u8]> {
        let size = (self.bucket_size * self.width) as usize;
        let mut at = bucket as usize * size;
        let end = at + size;
        std::iter::from_fn(move || {
            let start = at % LINE_BYTES;
            let length = (LINE_BYTES - start).min(end - at);
            if length == 0 {
                return None;
            }
            let line = lines.line(at / LINE_BYTES);
            at += length;
            Some(&line[start..start + length])
        })
    }

    /// Whether all slots of a bucket are free.
    pub fn is_empty(self, lines: &CacheLines, bucket: u64) -> bool {
        self.pieces(lines, bucket).all(is_zero)
    }

    fn slot(self, bucket: u64, slot: u64) -> (usize, usize) {
        let byte = ((bucket * self.bucket_size + slot) * self.width) as usize;
        (byte / LINE_BYTES, byte % LINE_BYTES)
    }

    /// The fingerprint in a slot; 0: the slot is free.
    #[inline]
    pub fn get(self, lines: &CacheLines, bucket: u64, slot: u64) -> u32 {
        let (line, start) = self.slot(bucket, slot);
        let bytes = &lines.line(line)[start..];
        match (self.width, bytes) {
            (1, [byte, ..]) => (*byte).into(),
            (2, [low, high, ..]) => u16::from_le_bytes([*low, *high]).into(),
            (_, [a, b, c, d, ..]) => u32::from_le_bytes([*a, *b, *c, *d]),
            _ => 0,
        }
    }

    /// Puts a fingerprint into a slot.
    #[inline]
    pub fn set(self, lines: &mut CacheLines, bucket: u64, slot: u64, fingerprint: u32) {
        let (line, start) = self.slot(bucket, slot);
        let bytes = &mut lines.line_mut(line)[start..];
        let new = fingerprint.to_le_bytes();
        // Each copy has a constant length, which takes one instruction.
        match self.width {
            1 => bytes[0] = new[0],
            2 => bytes[..2].copy_from_slice(&new[..2]),
            _ => bytes[..4].copy_from_slice(&new),
        }
    }

    /// Puts a fingerprint into a slot. Returns the one that was there.
    #[inline]
    pub fn swap(self, lines: &mut CacheLines, bucket: u64, slot: u64, fingerprint: u32) -> u32 {
        let before = self.get(lines, bucket, slot);
        self.set(lines, bucket, slot, fingerprint);
        before
    }

    /// The first slot of a bucket with this fingerprint.
    #[inline(always)] // a call would save and restore more registers than it uses
    pub fn find(self, lines: &CacheLines, bucket: u64, fingerprint: u32) -> Option<u64> {
        let size = self.bucket_size * self.width;
        if size != WORD_BYTES as u64 {
            return self.find_in_pieces(lines, bucket, fingerprint);
        }
        // The default size of buckets.
        let word = bucket as usize;
        let line = lines.line(word / (LINE_BYTES / WORD_BYTES));
        let word = line.as_chunks().0[word % (LINE_BYTES / WORD_BYTES)];
        let found = match self.width {
            1 => find_in_word::<1>(word, fingerprint),
            2 => find_in_word::<2>(word, fingerprint),
            _ => find_in_word::<4>(word, fingerprint),
        };
        found.map(|slot| slot as u64)
    }

    #[inline(never)]
    fn find_in_pieces(self, lines: &CacheLines, bucket: u64, fingerprint: u32) -> Option<u64> {
        let mut before = 0;
        for piece in self.pieces(lines, bucket) {
            let found = match self.width {
                1 => find::<1>(piece, fingerprint),
                2 => find::<2>(piece, fingerprint),
                _ => find::<4>(piece, fingerprint),
            };
            if let Some(slot) = found {
                return Some(before + slot as u64);
            }
            before += piece.len() as u64 / self.width;
        }
        None
    }

    /// Whether one of an item's buckets contains its fingerprint. Reads both, so that the processor fetches both cache lines
    /// at once.
    #[inline]
    pub fn holds(self, lines: &CacheLines, candidates: CandidateBuckets) -> bool {
        let [first, second] = candidates
            .buckets
            .map(|bucket| self.find(lines, bucket, candidates.fingerprint).is_some());
        first | second
    }

    /// The number of slots of a bucket with this fingerprint.
    pub fn count(self, lines: &CacheLines, bucket: u64, fingerprint: u32) -> u64 {
        let counts = self.pieces(lines, bucket).map(|piece| match self.width {
            1 => count(piece, (fingerprint as u8).to_le_bytes()),
            2 => count(piece, (fingerprint as u16).to_le_bytes()),
            _ => count(piece, fingerprint.to_le_bytes()),
        });
        counts.sum::<usize>() as u64
    }
}

/// The number of bytes that are compared in one step.
const WORD_BYTES: usize = 8;

/// The first slot of `WIDTH` bytes with this fingerprint. Exclusive or turns such a slot into zeros. Then a subtraction of one from
/// each slot sets the highest bit of the first zero slot, which was not set (Mycroft's test; Warren, "Hacker's Delight", 6-1).
#[inline]
fn find_in_word<const WIDTH: usize>(word: [u8; WORD_BYTES], wanted: u32) -> Option<usize> {
    let ones = u64::MAX / (u64::MAX >> (64 - 8 * WIDTH));
    let highest = ones << (8 * WIDTH - 1);
    let apart = u64::from_le_bytes(word) ^ ones.wrapping_mul(wanted.into());
    let zeros = apart.wrapping_sub(ones) & !apart & highest;
    (zeros != 0).then_some(zeros.trailing_zeros() as usize / 8 / WIDTH)
}

fn find<const WIDTH: usize>(piece: &[u8], wanted: u32) -> Option<usize> {
    let (words, rest) = piece.as_chunks();
    for (index, word) in words.iter().enumerate() {
        if let Some(slot) = find_in_word::<WIDTH>(*word, wanted) {
            return Some(index * WORD_BYTES / WIDTH + slot);
        }
    }
    let before = words.len() * WORD_BYTES / WIDTH;
    let wanted = wanted.to_le_bytes();
    let mut slots = rest.chunks_exact(WIDTH);
    let found = slots.position(|slot| *slot == wanted[..WIDTH]);
    found.map(|slot| before + slot)
}

#[inline]
fn count<const WIDTH: usize>(piece: &[u8], wanted: [u8; WIDTH]) -> usize {
    let (slots, _) = piece.as_chunks();
    slots.iter().filter(|slot| **slot == wanted).count()
}

/// Mixes the bits of a number: the finalizer of MurmurHash3.
#[inline]
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grids() -> impl Strategy<Value = Grid> {
        let widths = prop_oneof![Just(1), Just(2), Just(4)];
        (1u64..=255, widths, 1u64..500, 0u32..5).prop_map(|(bucket_size, width, base, fine)| Grid {
            bucket_size,
            width,
            base,
            fine,
        })
    }

    proptest! {
        #[test]
        fn the_other_of_the_other_bucket_is_the_first(grid in grids(), bits: u128) {
            let candidates = grid.candidates(Hash::from_bits(bits));
            let [first, second] = candidates.buckets;
            prop_assert!(candidates.fingerprint > 0);
            prop_assert!(first < grid.buckets() && second < grid.buckets());
            prop_assert_eq!(grid.other(second, candidates.fingerprint), first);
        }

        #[test]
        fn buckets_of_smaller_layers_are_those_of_larger_ones_without_bits(grid in grids(), bits: u128) {
            let large = grid.candidates(Hash::from_bits(bits));
            for fine in 0..=grid.fine {
                let small = Grid { fine, ..grid }.candidates(Hash::from_bits(bits));
                prop_assert_eq!(small.fingerprint, large.fingerprint);
                prop_assert_eq!(small.buckets, large.buckets.map(|bucket| bucket >> (grid.fine - fine)));
            }
        }

        #[test]
        fn slots_keep_what_is_put_there(
            grid in grids(),
            puts in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 1..50),
        ) {
            let mut lines = CacheLines::zeroed(grid.lines() as usize).expect("memory");
            let mut model = std::collections::HashMap::new();
            let mask = u32::MAX >> (32 - 8 * grid.width);
            for (bucket, slot, value) in puts {
                let at = (bucket % grid.buckets(), slot % grid.bucket_size);
                grid.set(&mut lines, at.0, at.1, value & mask);
                model.insert(at, value & mask);
            }
            for ((bucket, slot), value) in &model {
                prop_assert_eq!(grid.get(&lines, *bucket, *slot), *value);
                let all = (0..grid.bucket_size)
                    .filter(|slot| model.get(&(*bucket, *slot)).copied().unwrap_or(0) == *value);
                let all: Vec<u64> = all.collect();
                prop_assert_eq!(grid.find(&lines, *bucket, *value), all.first().copied());
                prop_assert_eq!(grid.count(&lines, *bucket, *value), all.len() as u64);
            }
        }
    }
}
