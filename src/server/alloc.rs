//! The allocator: the server's own, so that `INFO memory` and `maxmemory` see every byte.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};

/// The server's allocator; the system's where there is no server, as in tests of the pure parts.
///
/// Nothing is allocated between the start of the process and the moment when the server hands over
/// its API, so no block is taken from one allocator and returned to the other.
struct ServerAlloc;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// What the server's allocator guarantees for every block, whatever its size class.
const GUARANTEED_ALIGN: usize = 16;

/// The request that gives a block of which an aligned part of `layout` can be used.
fn padded(layout: Layout) -> usize {
    debug_assert!(
        layout.align() <= GUARANTEED_ALIGN,
        "over-aligned memory is carved out of a larger block by its user"
    );
    layout.size()
}

// SAFETY: the server's functions keep the contract of malloc, calloc, realloc and free, with
// blocks aligned to 16 bytes; all calls go to the same family (see `ServerAlloc`).
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) => alloc(padded(layout)).cast(),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Calloc {
                Some(calloc) => calloc(1, padded(layout)).cast(),
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Realloc {
                Some(realloc) => realloc(ptr.cast(), new_size).cast(),
                None => System.realloc(ptr, layout, new_size),
            }
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as for the whole implementation.
        unsafe {
            match raw::RedisModule_Free {
                Some(free) => free(ptr.cast()),
                None => System.dealloc(ptr, layout),
            }
        }
    }
}
