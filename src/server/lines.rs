//! Arrays of cache lines: the memory of filters.
//!
//! An array is made of segments, so that it takes hardly more than was asked for (an allocator's
//! large size classes are a quarter apart), and so that it is saved, sent and moved in pieces. It
//! begins as zeros that nobody has touched: the system gives the pages when they are used.

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

/// The lines of a segment, 256 KiB: the last segment of an array may have fewer.
pub const SEGMENT_LINES: usize = 4096;

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
}

// SAFETY: an array owns its memory, like a boxed slice.
unsafe impl Send for Lines {}
// SAFETY: shared access only reads.
unsafe impl Sync for Lines {}

impl Lines {
    /// An array of `len` lines of zeros; `None` if there is no memory for it.
    pub fn zeroed(len: usize) -> Option<Self> {
        let segments = len.div_ceil(SEGMENT_LINES);
        let (mut starts, mut blocks) = (Vec::new(), Vec::new());
        starts.try_reserve_exact(segments).ok()?;
        blocks.try_reserve_exact(segments).ok()?;
        for segment in 0..segments {
            let lines = lines_of_segment(len, segment);
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
        // SAFETY: all segments but the last have this length, and the index is below the sum.
        unsafe {
            self.starts[index / SEGMENT_LINES]
                .as_ptr()
                .add(index % SEGMENT_LINES)
        }
    }

    /// The bytes of one segment.
    pub fn segment(&self, segment: usize) -> &[u8] {
        let size = lines_of_segment(self.len, segment) * LINE_SIZE;
        // SAFETY: a segment is one block of so many bytes, all of which were zeroed.
        unsafe { std::slice::from_raw_parts(self.starts[segment].as_ptr().cast(), size) }
    }

    /// The bytes of one segment, to be changed.
    pub fn segment_mut(&mut self, segment: usize) -> &mut [u8] {
        let size = lines_of_segment(self.len, segment) * LINE_SIZE;
        // SAFETY: as above, and we are borrowed for as long as the slice is.
        unsafe { std::slice::from_raw_parts_mut(self.starts[segment].as_ptr().cast(), size) }
    }

    /// The bytes that it takes from the allocator.
    pub fn memory(&self) -> usize {
        let segment = |index| block_size(lines_of_segment(self.len, index) * LINE_SIZE);
        let full = self.segments().saturating_sub(1);
        let tables =
            block_size(size_of_val(&*self.starts)) + block_size(size_of_val(&*self.blocks));
        tables + full * block_size(SEGMENT_LINES * LINE_SIZE) + segment(full)
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

fn lines_of_segment(len: usize, segment: usize) -> usize {
    (len - segment * SEGMENT_LINES).min(SEGMENT_LINES)
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
        for len in [
            1,
            2,
            3,
            SEGMENT_LINES,
            SEGMENT_LINES + 1,
            3 * SEGMENT_LINES - 1,
        ] {
            let mut lines = Lines::zeroed(len).expect("memory");
            assert_eq!(lines.segments(), len.div_ceil(SEGMENT_LINES));
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
