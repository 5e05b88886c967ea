//! Batches of names: each name without the beginning that it shares with the name before it, so that an entry takes some ten bytes.

use crate::codec::{Reader, put_bytes, put_uint};
use std::num::NonZeroU32;

/// The position of an entry in the queue: 30 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryPosition(NonZeroU32);

impl EntryPosition {
    pub(super) const LAST_BATCH: usize = (1 << 24) - 2;

    pub(super) fn new(batch: u32, index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(batch << 6 | index))
    }

    pub(super) fn batch(self) -> usize {
        ((self.0.get() - 1) >> 6) as usize
    }

    pub(super) fn bit(self) -> u64 {
        1 << ((self.0.get() - 1) & 63)
    }

    /// The number of the position, 1 to 2^30 - 1.
    pub fn number(self) -> NonZeroU32 {
        self.0
    }

    /// The position of a number.
    pub fn numbered(number: NonZeroU32) -> Self {
        Self(number)
    }
}

/// No batch.
pub(super) const NO_BATCH: u32 = u32::MAX;

/// The number of names in a batch.
pub(super) const BATCH_NAMES: u32 = 64;

/// Up to 64 names.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The names, the oldest first: the length of the beginning that is that of the name before, the number of the section, and
    /// the rest as a byte string, all in the encoding of [`crate::codec`].
    pub(super) names: Vec<u8>,
    /// The indexes whose names are in `names`.
    pub(super) kept: u64,
    /// The indexes of entries that are in the cache.
    pub(super) live: u64,
    /// The indexes of entries that were used since the hand came by.
    pub(super) used: u64,
    /// The number of indexes that were assigned. Removed names keep theirs.
    pub(super) count: u32,
    pub(super) older: u32,
    pub(super) newer: u32,
    /// The number of the batch's queue. If neither queue has it, the queue was dropped.
    pub(super) queue: u32,
}

impl Batch {
    /// Removes the names that are not live.
    pub(super) fn compact(&mut self) {
        let (mut names, mut last) = (Vec::with_capacity(self.names.len() / 2), Vec::new());
        let live = self.live;
        self.each_name(|index, number, key| {
            if live & 1 << index != 0 {
                put_name(&mut names, &last, key, number);
                last.clear();
                last.extend_from_slice(key);
            }
        });
        names.shrink_to_fit();
        (self.names, self.kept) = (names, live);
    }

    /// Calls `see` with index, number of the section and name of each name, in order.
    pub(super) fn each_name(&self, mut see: impl FnMut(u32, u32, &[u8])) {
        let (mut names, mut key, mut kept) = (Reader::new(&self.names), Vec::new(), self.kept);
        while kept != 0 {
            let index = kept.trailing_zeros();
            kept &= kept - 1;
            let mut number = || names.uint(0, u32::MAX.into());
            let (Ok(shared), Ok(section)) = (number(), number()) else {
                return; // never: `names` has the name of each index in `kept`
            };
            let Ok(rest) = names.bytes(0, usize::MAX) else {
                return;
            };
            key.truncate(shared as usize);
            key.extend_from_slice(rest);
            see(index, section as u32, &key);
        }
    }
}

pub(super) fn put_name(out: &mut Vec<u8>, last: &[u8], key: &[u8], section: u32) {
    let shared = last
        .iter()
        .zip(key)
        .take_while(|(one, other)| one == other)
        .count();
    put_uint(out, shared as u64);
    put_uint(out, section.into());
    put_bytes(out, &key[shared..]);
}
