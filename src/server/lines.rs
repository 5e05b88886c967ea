//! Arrays of cache lines: the memory of filters.
//!
//! An array is made of segments, whole size classes of the allocator, so that it takes hardly more than
//! was asked for: classes are a quarter apart. It begins as zeros that nobody has touched: the system
//! gives the pages when they are used.

use super::alloc;
use super::native::Relocate;
use crate::memory::block_size;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of a cache line, on nearly every machine that servers run on.
pub const LINE_SIZE: usize = 64;

/// One cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u8; LINE_SIZE]);

/// The least and the most lines of a segment, as powers of two: 4 KiB and 4 MiB.
const MIN_SHIFT: u32 = 6;
const MAX_SHIFT: u32 = 16;

/// An array has about so many segments, as a power of two, as long as they have not the most lines:
/// then what the last one takes for nothing is a hundredth of the array.
const SEGMENTS_SHIFT: u32 = 4;

/// More than any machine has, and few enough to make a table of segments for.
const MAX_LINES: usize = 1 << 40;

/// How many arrays there are, and how many bytes of lines they have.
static ARRAYS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// How many arrays there are in the server, and how many bytes they have together.
pub fn live() -> (usize, usize) {
    (
        ARRAYS.load(Ordering::Relaxed),
        BYTES.load(Ordering::Relaxed),
    )
}

/// An array of cache lines.
pub struct Lines {
    /// Where each segment begins.
    starts: Box<[NonNull<Line>]>,
    /// The block that each was carved out of.
    blocks: Box<[alloc::Zeroed]>,
    len: usize,
    /// Log2 of the lines of a segment. The last one may have fewer.
    shift: u32,
}

// SAFETY: an array owns its memory, like a boxed slice.
unsafe impl Send for Lines {}
// SAFETY: shared access only reads.
unsafe impl Sync for Lines {}

impl Lines {
    /// An array of `len` lines of zeros; `None` if there is no memory for it.
    pub fn zeroed(len: usize) -> Option<Self> {
        if len > MAX_LINES {
            return None;
        }
        let shift = len.max(1).ilog2().saturating_sub(SEGMENTS_SHIFT);
        let shift = shift.clamp(MIN_SHIFT, MAX_SHIFT);
        let segments = len.div_ceil(1 << shift);
        let (mut starts, mut blocks) = (Vec::new(), Vec::new());
        starts.try_reserve_exact(segments).ok()?;
        blocks.try_reserve_exact(segments).ok()?;
        for segment in 0..segments {
            let lines = (len - (segment << shift)).min(1 << shift);
            let block = alloc::Zeroed::new(lines * LINE_SIZE, LINE_SIZE)?;
            starts.push(block.start().cast());
            blocks.push(block);
        }
        ARRAYS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(len * LINE_SIZE, Ordering::Relaxed);
        Some(Self {
            starts: starts.into(),
            blocks: blocks.into(),
            len,
            shift,
        })
    }

    /// A copy; `None` if there is no memory for it.
    pub fn try_clone(&self) -> Option<Self> {
        let mut copy = Self::zeroed(self.len)?;
        for segment in 0..self.segments() {
            let from = self.segment(segment);
            if !is_zero(from) {
                copy.segment_mut(segment).copy_from_slice(from);
            }
        }
        Some(copy)
    }

    /// How many lines it has.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes of every segment but the last, which may have fewer.
    pub fn segment_size(&self) -> usize {
        LINE_SIZE << self.shift
    }

    /// How many segments it has.
    pub fn segments(&self) -> usize {
        self.starts.len()
    }

    /// One line.
    #[inline]
    pub fn line(&self, index: usize) -> &[u8; LINE_SIZE] {
        let at = self.at(index);
        // SAFETY: `at` is a line of ours.
        unsafe { &(*at).0 }
    }

    /// One line, to be changed.
    #[inline]
    pub fn line_mut(&mut self, index: usize) -> &mut [u8; LINE_SIZE] {
        let at = self.at(index);
        // SAFETY: `at` is a line of ours, and we are borrowed for as long as it is.
        unsafe { &mut (*at).0 }
    }

    /// Asks the processor to fetch a line, which will be needed soon.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        let at = self.at(index);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: any address may be prefetched; every such processor can.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline]
    fn at(&self, index: usize) -> *mut Line {
        assert!(index < self.len);
        let within = index & ((1 << self.shift) - 1);
        // SAFETY: all segments but the last have this length, and the index is below the sum.
        unsafe { self.starts[index >> self.shift].as_ptr().add(within) }
    }

    /// The bytes of one segment.
    pub fn segment(&self, segment: usize) -> &[u8] {
        let size = self.blocks[segment].size();
        // SAFETY: a segment is one block of so many bytes, all of which were zeroed.
        unsafe { std::slice::from_raw_parts(self.starts[segment].as_ptr().cast(), size) }
    }

    /// The bytes of one segment, to be changed.
    pub fn segment_mut(&mut self, segment: usize) -> &mut [u8] {
        let size = self.blocks[segment].size();
        // SAFETY: as above, and we are borrowed for as long as the slice is.
        unsafe { std::slice::from_raw_parts_mut(self.starts[segment].as_ptr().cast(), size) }
    }

    /// The bytes that it takes from the allocator.
    pub fn memory(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| block_size(block.size()));
        let tables =
            block_size(size_of_val(&*self.starts)) + block_size(size_of_val(&*self.blocks));
        tables + blocks.sum::<usize>()
    }

    /// Moves one segment to a less fragmented place, if there is one.
    pub fn relocate(&mut self, segment: usize, relocate: &mut Relocate<'_>) {
        self.blocks[segment].relocate(relocate);
        self.starts[segment] = self.blocks[segment].start().cast();
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        ARRAYS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.len * LINE_SIZE, Ordering::Relaxed);
    }
}

/// Are all of these bytes zero?
pub fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<LINE_SIZE>();
    let or = |chunk: &[u8; LINE_SIZE]| chunk.iter().fold(0, |all, byte| all | byte);
    chunks.iter().all(|chunk| or(chunk) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zero_aligned_and_apart() {
        for len in [1, 2, 3, 64, 65, 1023, 1024, 5000, 70_001] {
            let mut lines = Lines::zeroed(len).expect("memory");
            assert!(lines.segments() <= 32);
            for index in 0..len {
                assert_eq!(*lines.line(index), [0; LINE_SIZE]);
                assert_eq!(lines.line(index).as_ptr().addr() % LINE_SIZE, 0);
                *lines.line_mut(index) = [index as u8 | 1; LINE_SIZE];
            }
            let copy = lines.try_clone().expect("memory");
            for index in 0..len {
                lines.prefetch(index);
                assert_eq!(*lines.line(index), [index as u8 | 1; LINE_SIZE]);
                assert_eq!(copy.line(index), lines.line(index));
            }
            let bytes: usize = (0..lines.segments())
                .map(|at| lines.segment(at).len())
                .sum();
            assert_eq!(bytes, len * LINE_SIZE);
        }
    }

    #[test]
    #[should_panic]
    fn a_line_that_is_not_there_panics() {
        Lines::zeroed(3).expect("memory").line(3);
    }

    #[test]
    fn zeros_are_told_from_others() {
        assert!(is_zero(&[]) && is_zero(&[0; 200]));
        for at in [0, 63, 64, 199] {
            let mut bytes = [0; 200];
            bytes[at] = 1;
            assert!(!is_zero(&bytes));
        }
    }
}
