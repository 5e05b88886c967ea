//! The allocator of the server as the global allocator, so that `INFO memory` and `maxmemory` count every byte.

#![cfg_attr(miri, allow(dead_code))]

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;

/// The allocator of the server. In unit tests, which have no server, the allocator of the system.
///
/// The module allocates nothing before the server passes its API to the module. So no block comes from one allocator and returns
/// to the other.
struct ServerAlloc;

// Miri runs the pure parts. It does not support variables of C, such as those of the server's functions.
#[cfg_attr(not(miri), global_allocator)]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The number of blocks that are allocated to learn a block size. One or two of them may be larger than usual, because the
/// allocator does not split off a rest that is too small for a block.
const SAMPLES: usize = 16;

/// Learns the block sizes of the server's allocator.
pub(in crate::server) fn learn_sizes() {
    crate::memory::learn(|size| {
        // SAFETY: the blocks are measured and freed at once.
        unsafe {
            let blocks: [_; SAMPLES] = std::array::from_fn(|_| api!(RedisModule_Alloc(size)));
            let given = blocks.map(|block| api!(RedisModule_MallocSize(block)));
            for block in blocks {
                api!(RedisModule_Free(block));
            }
            given.into_iter().min().unwrap_or(size)
        }
    });
}

/// The alignment that the server's allocator guarantees, in bytes. A build without jemalloc may store the size of each block in
/// front of the block, and guarantees no more than this.
pub(in crate::server) const GUARANTEED_ALIGN: usize = size_of::<usize>();

/// The bytes of a block that has space for an aligned block of `layout`, and in front of that for the address of the whole block.
fn padded(layout: Layout) -> usize {
    layout.size() + layout.align()
}

/// Returns an aligned block inside a larger one, whose address it stores in front of the aligned block.
///
/// # Safety
/// `whole` is null or a block of [`padded`] bytes with the guaranteed alignment.
unsafe fn carve(whole: *mut u8, layout: Layout) -> *mut u8 {
    if whole.is_null() {
        return whole;
    }
    // The alignment is a power of two above that of `whole`, so there is space for an address.
    let offset = layout.align() - whole.addr() % layout.align();
    // SAFETY: the offset is at most the alignment, and at least the size of an address.
    unsafe {
        let block = whole.add(offset);
        block.cast::<*mut u8>().sub(1).write(whole);
        block
    }
}

/// The larger block that contains an aligned one.
///
/// # Safety
/// [`carve`] returned `block`.
unsafe fn whole(block: *mut u8) -> *mut u8 {
    // SAFETY: `carve` wrote the address there.
    unsafe { block.cast::<*mut u8>().sub(1).read() }
}

// SAFETY: the functions of the server keep the contract of malloc, calloc, realloc and free for blocks of the guaranteed
// alignment. Blocks of a larger alignment are parts of such blocks. All calls use one allocator (see `ServerAlloc`).
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) if layout.align() <= GUARANTEED_ALIGN => alloc(layout.size()).cast(),
                Some(alloc) => carve(alloc(padded(layout)).cast(), layout),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Calloc {
                Some(calloc) if layout.align() <= GUARANTEED_ALIGN => {
                    calloc(1, layout.size()).cast()
                }
                Some(calloc) => carve(calloc(1, padded(layout)).cast(), layout),
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Realloc {
                Some(realloc) if layout.align() <= GUARANTEED_ALIGN => {
                    realloc(ptr.cast(), new_size).cast()
                }
                Some(_) => {
                    let new =
                        self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                    if !new.is_null() {
                        new.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                        self.dealloc(ptr, layout);
                    }
                    new
                }
                None => System.realloc(ptr, layout, new_size),
            }
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Free {
                Some(free) if layout.align() <= GUARANTEED_ALIGN => free(ptr.cast()),
                Some(free) => free(whole(ptr).cast()),
                None => System.dealloc(ptr, layout),
            }
        }
    }
}

/// The smallest zeroed block whose pages stay untouched. On every server, its allocation can fail without ending the process. For this
/// size, returning the pages to the system takes as long as writing zeros.
const LARGE_BYTES: usize = 64 * 1024;

/// The way to allocate aligned zeroed blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Carving {
    /// As a block of the allocator: the allocators of servers align large blocks well enough.
    Whole,
    /// As a part of a larger block.
    Carved,
}

/// An aligned zeroed block. `None`: there is not enough memory, or [`Carving::Whole`] returned a block that is not aligned.
///
/// # Safety
/// The size of the layout is not 0.
pub(in crate::server) unsafe fn zeroed_block(
    layout: Layout,
    carving: Carving,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; a block that is not aligned is freed at once.
    unsafe {
        if carving == Carving::Carved {
            return NonNull::new(carve(zeroed(padded_layout(layout)), layout));
        }
        let block = NonNull::new(zeroed(layout))?;
        if block.addr().get() % layout.align() == 0 {
            return Some(block);
        }
        release(block.as_ptr(), layout);
        None
    }
}

/// Frees a block of [`zeroed_block`].
///
/// # Safety
/// [`zeroed_block`] returned the block for this layout and this way, and nobody uses it afterwards.
pub(in crate::server) unsafe fn release_block(
    block: NonNull<u8>,
    layout: Layout,
    carving: Carving,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match carving {
            Carving::Whole => release(block.as_ptr(), layout),
            Carving::Carved => release(whole(block.as_ptr()), padded_layout(layout)),
        }
    }
}

fn padded_layout(layout: Layout) -> Layout {
    Layout::from_size_align(padded(layout), layout.align()).unwrap_or(layout)
}

/// A zeroed block of any alignment; null if there is not enough memory.
///
/// # Safety
/// The size of the layout is not 0.
unsafe fn zeroed(layout: Layout) -> *mut u8 {
    let size = layout.size();
    if cfg!(miri) {
        // SAFETY: the caller's promise.
        return unsafe { System.alloc_zeroed(layout) };
    }
    // SAFETY: the caller's promise. A block of `try_alloc` has `size` bytes.
    unsafe {
        if let Some(try_alloc) = raw::RedisModule_TryAlloc
            && size >= LARGE_BYTES
        {
            // Not TryCalloc: jemalloc 5.3.1 and the C library write zeros to a block that was in use before.
            let block = try_alloc(size).cast::<u8>();
            if !block.is_null() {
                clear(block, size);
            }
            return block;
        }
        match (raw::RedisModule_TryCalloc, raw::RedisModule_Calloc) {
            (Some(try_calloc), _) => try_calloc(1, size).cast(),
            (None, Some(calloc)) => calloc(1, size).cast(),
            (None, None) => System.alloc_zeroed(layout),
        }
    }
}

/// Frees a block of [`zeroed`].
///
/// # Safety
/// `zeroed` returned the block for this layout.
unsafe fn release(block: *mut u8, layout: Layout) {
    if cfg!(miri) {
        // SAFETY: the caller's promise.
        return unsafe { System.dealloc(block, layout) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match raw::RedisModule_Free {
            Some(free) => free(block.cast()),
            None => System.dealloc(block, layout),
        }
    }
}

/// Zeroes a block. On Linux, whole pages return to the system, which provides zeroed pages at the next access. So a block that is
/// never used has no pages.
///
/// # Safety
/// There are `size` bytes at `block`, which nobody else uses.
unsafe fn clear(block: *mut u8, size: usize) {
    // SAFETY: the caller's promise. All allocators use private anonymous memory, whose pages read as zeros after
    // MADV_DONTNEED (madvise(2)). If that fails, the zeros are written.
    unsafe {
        #[cfg(all(target_os = "linux", not(miri)))] // Miri does not support madvise
        {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            // On memory of hugetlbfs, madvise fails if the address is not the start of a huge page. At the start of one it can succeed
            // and zero too little. So `middle` is never a multiple of two pages.
            let front = block.wrapping_sub(page).align_offset(2 * page);
            let front = front.min(size);
            let pages = (size - front) / page * page;
            let middle = block.add(front);
            if libc::madvise(middle.cast(), pages, libc::MADV_DONTNEED) == 0 {
                block.write_bytes(0, front);
                middle.add(pages).write_bytes(0, size - front - pages);
                return;
            }
        }
        block.write_bytes(0, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_for_every_start_of_the_larger_block() {
        for align in [16, 32, 64, 4096] {
            let layout = Layout::from_size_align(100, align).expect("a layout");
            let mut memory = vec![0u64; (padded(layout) + align) / 8 + 1];
            for shift in 0..align / 8 {
                let begin = memory[shift..].as_mut_ptr().cast::<u8>();
                // SAFETY: there is room for the padded block at `begin`, which is aligned to 8.
                unsafe {
                    let block = carve(begin, layout);
                    assert_eq!(block.addr() % align, 0);
                    assert!(block.addr() + 100 <= begin.addr() + padded(layout));
                    assert_eq!(whole(block), begin);
                }
            }
        }
        let layout = Layout::from_size_align(1, 16).expect("a layout");
        // SAFETY: null is allowed.
        assert!(unsafe { carve(std::ptr::null_mut(), layout) }.is_null());
    }

    /// The system keeps locked pages, so the zeros are written.
    #[cfg(target_os = "linux")]
    #[test]
    fn locked_pages_are_zeroed() {
        let size = 40_000;
        let mut memory = vec![7u8; size];
        let start = memory.as_mut_ptr();
        // SAFETY: the vector has this memory. If mlock fails, the test passes without testing this.
        unsafe {
            libc::mlock(start.cast(), size);
            clear(start, size);
            libc::munlock(start.cast(), size);
        }
        assert!(memory.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_cleared_is_zero_and_the_rest_stays() {
        for (from, size) in [(0, 1), (1, 5000), (4096, 8192), (100, 100_000)] {
            let mut memory = vec![7u8; 120_000];
            // SAFETY: the range is inside of the vector.
            unsafe { clear(memory.as_mut_ptr().add(from), size) };
            let expected = |at| if at >= from && at < from + size { 0 } else { 7 };
            assert!(
                memory
                    .iter()
                    .enumerate()
                    .all(|(at, byte)| *byte == expected(at))
            );
        }
    }
}
