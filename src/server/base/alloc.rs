//! The allocator: the server's own, so that `INFO memory` and `maxmemory` see every byte.

#![cfg_attr(miri, allow(dead_code))]

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;

/// The server's allocator; the system's where there is no server, as in tests of the pure parts.
///
/// Nothing is allocated between the start of the process and the moment when the server hands over
/// its API, so no block is taken from one allocator and returned to the other.
struct ServerAlloc;

// Miri, which tries the pure parts, knows no variables of C, such as those that hold the server's functions.
#[cfg_attr(not(miri), global_allocator)]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// So many blocks of a size are asked for at once, to learn it: one or two may be remnants that are larger, because what is
/// left of them would be too small for a block.
const SAMPLES: usize = 16;

/// Learns how large the blocks are that the server's allocator gives.
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

/// What the server's allocator guarantees: where it keeps each block's size in front of the block,
/// as builds without jemalloc may do, no more than this.
pub(in crate::server) const GUARANTEED_ALIGN: usize = size_of::<usize>();

/// The request of which an aligned block of `layout` can be carved out, with room in front of it for
/// the address of the whole.
fn padded(layout: Layout) -> usize {
    layout.size() + layout.align()
}

/// Carves an aligned block out of a whole one.
///
/// # Safety
/// `whole` is null or a block of [`padded`] bytes with the guaranteed alignment.
unsafe fn carve(whole: *mut u8, layout: Layout) -> *mut u8 {
    if whole.is_null() {
        return whole;
    }
    // Alignments are powers of two, and larger than that of `whole`: there is room for an address.
    let offset = layout.align() - whole.addr() % layout.align();
    // SAFETY: the offset is at most the alignment, and at least the size of an address.
    unsafe {
        let block = whole.add(offset);
        block.cast::<*mut u8>().sub(1).write(whole);
        block
    }
}

/// The whole block that an aligned one was carved out of.
///
/// # Safety
/// [`carve`] returned `block`.
unsafe fn whole(block: *mut u8) -> *mut u8 {
    // SAFETY: `carve` wrote it there.
    unsafe { block.cast::<*mut u8>().sub(1).read() }
}

// SAFETY: the server's functions keep the contract of malloc, calloc, realloc and free for blocks of
// the guaranteed alignment, and others are carved out of those; all calls go to the same family (see
// `ServerAlloc`).
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

/// From this size on a zeroed block is asked for in a way that may be refused, and is not touched.
const LARGE: usize = 64 * 1024;

/// How aligned blocks of zeros are had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Carving {
    /// Allocators of servers align well enough by themselves, so that exactly what is needed can be
    /// asked for.
    Whole,
    /// They are carved out of larger blocks.
    Carved,
}

/// An aligned block of zeros; `None` if there is no memory for it, or if it cannot be had like this.
///
/// # Safety
/// The layout has a size.
pub(in crate::server) unsafe fn zeroed_block(
    layout: Layout,
    carving: Carving,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; what is not aligned is given back at once.
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
/// It was had for this layout and in this way, and is used no more.
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

/// A block of zeros with whatever alignment; null if there is no memory for it.
///
/// # Safety
/// The layout has a size.
unsafe fn zeroed(layout: Layout) -> *mut u8 {
    let size = layout.size();
    if cfg!(miri) {
        // SAFETY: the caller's promise.
        return unsafe { System.alloc_zeroed(layout) };
    }
    // SAFETY: the caller's promise. A block of `try_alloc` has `size` bytes.
    unsafe {
        match (raw::RedisModule_TryCalloc, raw::RedisModule_TryAlloc) {
            (Some(try_calloc), _) => try_calloc(1, size).cast(),
            (None, Some(try_alloc)) if size >= LARGE => {
                let block = try_alloc(size).cast::<u8>();
                if !block.is_null() {
                    clear(block, size);
                }
                block
            }
            _ => match raw::RedisModule_Calloc {
                Some(calloc) => calloc(1, size).cast(),
                None => System.alloc_zeroed(layout),
            },
        }
    }
}

/// Returns a block of [`zeroed`].
///
/// # Safety
/// `zeroed` returned it for this layout.
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

/// Zeroes a block. Where the system can, whole pages are given back to it, which gives others, full
/// of zeros, when they are used: a block that was never used is not touched.
///
/// # Safety
/// There are `size` bytes at `block`, which nobody else uses.
unsafe fn clear(block: *mut u8, size: usize) {
    // SAFETY: the caller's promise. Pages of private memory without a file, as all allocators use,
    // read as zeros after MADV_DONTNEED (madvise(2)). Where that fails they are written to.
    unsafe {
        #[cfg(all(target_os = "linux", not(miri)))] // which cannot give pages back
        {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            let front = block.align_offset(page).min(size);
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
    fn blocks_are_aligned_wherever_the_whole_one_begins() {
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
