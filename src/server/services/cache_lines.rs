//! Cache-line arrays: the memory of filters.
//!
//! An array consists of segments whose sizes are size classes of the allocator. Size classes are up to a quarter apart, so one
//! block of any other size would waste memory. A new array is zeroed, and the system provides its pages at the first access.

use crate::memory::block_size;
use crate::server::base::alloc::{Carving, release_block, zeroed_block};
use crate::server::services::native::Relocate;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of a cache line on nearly all servers.
pub const LINE_BYTES: usize = 64;

/// One cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u8; LINE_BYTES]);

/// Log2 of the smallest and of the largest number of lines in a segment: 4 KiB and 4 MiB.
const MIN_SHIFT: u32 = 6;
const MAX_SHIFT: u32 = 16;

/// Log2 of the approximate number of segments of an array whose segments have less than the largest size. With this number, the
/// unused part of the last segment is about 1 % of the array.
const SEGMENTS_SHIFT: u32 = 4;

/// The most lines of an array: more than any machine has memory for, and few enough for a table of segments.
const MAX_LINES: usize = 1 << 40;

/// The number of arrays in the server, and the bytes of their lines.
static ARRAYS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The number of arrays in the server, and the bytes of their lines.
pub fn live() -> (usize, usize) {
    (
        ARRAYS.load(Ordering::Relaxed),
        BYTES.load(Ordering::Relaxed),
    )
}

/// A cache-line array.
pub struct CacheLines {
    /// The address of each segment.
    segments: Box<[NonNull<CacheLine>]>,
    len: usize,
    /// Log2 of the lines of a segment. The last one may have fewer.
    shift: u32,
    /// The lines of a segment, less one.
    mask: usize,
    carving: Carving,
}

// SAFETY: an array owns its memory, like a boxed slice.
unsafe impl Send for CacheLines {}
// SAFETY: shared access only reads.
unsafe impl Sync for CacheLines {}

impl CacheLines {
    /// A zeroed array of `len` lines. `None`: there is not enough memory, or `len` is 0.
    pub fn zeroed(len: usize) -> Option<Self> {
        if !(1..=MAX_LINES).contains(&len) {
            return None;
        }
        let shift = len.ilog2().saturating_sub(SEGMENTS_SHIFT);
        let shift = shift.clamp(MIN_SHIFT, MAX_SHIFT);
        let made = Segments::new(len, shift, Carving::Whole);
        let made = made.or_else(|| Segments::new(len, shift, Carving::Carved))?;
        ARRAYS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(len * LINE_BYTES, Ordering::Relaxed);
        Some(made.finish())
    }

    /// A copy. `None`: there is not enough memory.
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

    /// The number of lines, at least 1.
    #[allow(clippy::len_without_is_empty)] // an array is never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a segment. The last segment may have fewer.
    pub fn segment_size(&self) -> usize {
        LINE_BYTES << self.shift
    }

    /// The number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The line with this index. Panics if there is none.
    #[inline]
    pub fn line(&self, index: usize) -> &[u8; LINE_BYTES] {
        let at = self.at(index);
        // SAFETY: `at` is a line of this array.
        unsafe { &(*at).0 }
    }

    /// The same line for a change.
    #[inline]
    pub fn line_mut(&mut self, index: usize) -> &mut [u8; LINE_BYTES] {
        let at = self.at(index);
        // SAFETY: `at` is a line of this array, which stays borrowed as long as the line.
        unsafe { &mut (*at).0 }
    }

    /// Prefetches the line with this index. Panics if there is none.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        let at = self.at(index);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every address may be prefetched, and every x86-64 processor has the instruction.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline]
    fn at(&self, index: usize) -> *mut CacheLine {
        assert!(index < self.len);
        // SAFETY: all segments but the last have `mask + 1` lines, and the index is less than the sum of all lengths. So there is
        // such a segment, and such a line in it.
        unsafe {
            let segment = self.segments.get_unchecked(index >> self.shift);
            segment.as_ptr().add(index & self.mask)
        }
    }

    /// The bytes of one segment.
    pub fn segment(&self, segment: usize) -> &[u8] {
        let size = self.layout(segment).size();
        // SAFETY: a segment is one block of `size` bytes, all of which are initialized.
        unsafe { std::slice::from_raw_parts(self.segments[segment].as_ptr().cast(), size) }
    }

    /// The same bytes for a change.
    pub fn segment_mut(&mut self, segment: usize) -> &mut [u8] {
        let size = self.layout(segment).size();
        // SAFETY: as above; the array stays borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.segments[segment].as_ptr().cast(), size) }
    }

    /// The bytes from the allocator, without the struct itself.
    pub fn memory(&self) -> usize {
        let carved = match self.carving {
            Carving::Whole => 0,
            Carving::Carved => LINE_BYTES,
        };
        let segments = (0..self.segments()).map(|at| block_size(self.layout(at).size() + carved));
        block_size(size_of_val(&*self.segments)) + segments.sum::<usize>()
    }

    /// Lets the server move one segment, to reduce fragmentation.
    pub fn relocate(&mut self, segment: usize, relocate: &mut Relocate<'_>) {
        if self.carving == Carving::Carved {
            return; // servers with active defragmentation have allocators that align
        }
        // SAFETY: a segment is one whole block, and no reference points into it while the array is mutably borrowed.
        let moved = unsafe { relocate.block(self.segments[segment].as_ptr().cast()) };
        if let Some(moved) = NonNull::new(moved) {
            self.segments[segment] = moved.cast();
            assert_eq!(moved.addr().get() % LINE_BYTES, 0);
        }
    }

    fn layout(&self, segment: usize) -> Layout {
        layout(self.len, self.shift, segment)
    }
}

impl Drop for CacheLines {
    fn drop(&mut self) {
        ARRAYS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.len * LINE_BYTES, Ordering::Relaxed);
        for segment in 0..self.segments() {
            let block = self.segments[segment].cast();
            // SAFETY: the block was allocated with this layout and in this way, and only this array owns it.
            unsafe { release_block(block, self.layout(segment), self.carving) };
        }
    }
}

/// The layout of a segment in an array of `len` lines.
fn layout(len: usize, shift: u32, segment: usize) -> Layout {
    let lines = (len - (segment << shift)).min(1 << shift);
    Layout::array::<CacheLine>(lines).expect("a segment is small")
}

/// An incomplete array. Dropping it frees its segments.
struct Segments {
    done: Vec<NonNull<CacheLine>>,
    len: usize,
    shift: u32,
    carving: Carving,
}

impl Segments {
    fn new(len: usize, shift: u32, carving: Carving) -> Option<Self> {
        let mut making = Self {
            done: Vec::new(),
            len,
            shift,
            carving,
        };
        let segments = len.div_ceil(1 << shift);
        making.done.try_reserve_exact(segments).ok()?;
        for segment in 0..segments {
            // SAFETY: a segment has at least one line.
            let block = unsafe { zeroed_block(layout(len, shift, segment), carving) };
            making.done.push(block?.cast());
        }
        Some(making)
    }

    fn finish(mut self) -> CacheLines {
        CacheLines {
            segments: std::mem::take(&mut self.done).into(),
            len: self.len,
            shift: self.shift,
            mask: (1 << self.shift) - 1,
            carving: self.carving,
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        for (segment, block) in self.done.iter().enumerate() {
            let layout = layout(self.len, self.shift, segment);
            // SAFETY: the block was allocated with this layout and in this way, and only this struct owns it.
            unsafe { release_block(block.cast(), layout, self.carving) };
        }
    }
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<LINE_BYTES>();
    let or = |chunk: &[u8; LINE_BYTES]| chunk.iter().fold(0, |all, byte| all | byte);
    chunks.iter().all(|chunk| or(chunk) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zero_aligned_and_apart() {
        for len in [1, 2, 3, 64, 65, 1023, 1024, 5000, 70_001] {
            let mut lines = CacheLines::zeroed(len).expect("memory");
            assert!(lines.segments() <= 32);
            for index in 0..len {
                assert_eq!(*lines.line(index), [0; LINE_BYTES]);
                assert_eq!(lines.line(index).as_ptr().addr() % LINE_BYTES, 0);
                *lines.line_mut(index) = [index as u8 | 1; LINE_BYTES];
            }
            let copy = lines.try_clone().expect("memory");
            for index in 0..len {
                lines.prefetch(index);
                assert_eq!(*lines.line(index), [index as u8 | 1; LINE_BYTES]);
                assert_eq!(copy.line(index), lines.line(index));
            }
            let bytes: usize = (0..lines.segments())
                .map(|at| lines.segment(at).len())
                .sum();
            assert_eq!(bytes, len * LINE_BYTES);
        }
    }

    #[test]
    fn segments_are_aligned_also_where_they_are_carved() {
        for carving in [Carving::Whole, Carving::Carved] {
            let mut lines = Segments::new(200, MIN_SHIFT, carving)
                .expect("memory")
                .finish();
            ARRAYS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(200 * LINE_BYTES, Ordering::Relaxed);
            for index in 0..200 {
                assert_eq!(*lines.line(index), [0; LINE_BYTES]);
                assert_eq!(lines.line(index).as_ptr().addr() % LINE_BYTES, 0);
                *lines.line_mut(index) = [1; LINE_BYTES];
            }
        }
    }

    #[test]
    #[should_panic]
    fn a_line_that_is_not_there_panics() {
        CacheLines::zeroed(3).expect("memory").line(3);
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
