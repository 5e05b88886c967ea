//! The size of memory blocks in the allocator, for `MEMORY USAGE`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The largest request whose block size is learned, in bytes.
const SMALL_BYTES: usize = 1024;

/// The distance of learned requests, in bytes: allocators round requests up to at least this.
const STEP_BYTES: usize = 8;

/// The block sizes for requests of 8, 16, 24... bytes. The size classes of a distribution's jemalloc are 16 bytes apart, those of
/// the jemalloc that Redis bundles are 8 bytes apart. The block sizes of glibc are 24, 24, 24, 40, 40...
static GIVEN: [AtomicUsize; SMALL_BYTES / STEP_BYTES] =
    [const { AtomicUsize::new(0) }; SMALL_BYTES / STEP_BYTES];

/// Whether the allocator has size classes for larger blocks, too, as jemalloc has.
static HAS_CLASSES: AtomicBool = AtomicBool::new(true);

/// Above this size, newer versions of jemalloc round requests to pages and not to size classes.
const LARGE_BYTES: usize = 32 * 1024;

/// The size of a page if the allocator rounds large requests to pages, otherwise 0.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Learns the block sizes of the allocator. `ask` returns the block size for a request, both in bytes.
pub fn learn(ask: impl Fn(usize) -> usize) {
    for (given, size) in GIVEN.iter().zip((STEP_BYTES..).step_by(STEP_BYTES)) {
        given.store(ask(size), Ordering::Relaxed);
    }
    let one_more = ask(SMALL_BYTES + 1);
    HAS_CLASSES.store(one_more == size_class(SMALL_BYTES + 1), Ordering::Relaxed);
    let page = match ask(LARGE_BYTES + 1) {
        large if large < size_class(LARGE_BYTES + 1) => large.saturating_sub(LARGE_BYTES),
        _ => 0,
    };
    PAGE.store(page, Ordering::Relaxed);
}

/// The block size for a request of `size` bytes, in bytes.
pub fn block_size(size: usize) -> usize {
    if size == 0 {
        return 0;
    }
    match GIVEN.get((size - 1) / STEP_BYTES) {
        Some(given) => given.load(Ordering::Relaxed).max(size),
        None if HAS_CLASSES.load(Ordering::Relaxed) => match PAGE.load(Ordering::Relaxed) {
            page if page > 0 && size > LARGE_BYTES => size.next_multiple_of(page),
            _ => size_class(size),
        },
        // The overhead of the allocator is negligible.
        None => size,
    }
}

/// The size class of jemalloc for a large request: there are four classes per doubling.
/// <https://jemalloc.net/jemalloc.3.html#size_classes>
fn size_class(size: usize) -> usize {
    size.next_multiple_of(size.next_power_of_two() / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the learned sizes are global.
    #[test]
    fn blocks_are_as_large_as_the_allocator_said() {
        // The chunks of glibc: 8 bytes of overhead, rounded up to a multiple of 16.
        learn(|size| ((size + 8).next_multiple_of(16) - 8).max(24));
        for (size, given) in [(0, 0), (1, 24), (24, 24), (25, 40), (40, 40), (41, 56)] {
            assert_eq!(block_size(size), given, "{size}");
        }
        assert_eq!(block_size(100_000), 100_000);
        let quantum = |size: usize| match size {
            1..=128 => size.next_multiple_of(16),
            _ => size_class(size),
        };
        learn(quantum);
        for (size, given) in [(0, 0), (1, 16), (17, 32), (129, 160), (1024, 1024)] {
            assert_eq!(block_size(size), given, "{size}");
        }
        for (size, given) in [(1025, 1280), (4096, 4096), (4097, 5120), (65_537, 81_920)] {
            assert_eq!(block_size(size), given, "{size}");
        }
        learn(|size| match size {
            ..=LARGE_BYTES => quantum(size),
            _ => size.next_multiple_of(4096),
        });
        for (size, given) in [
            (4097, 5120),
            (32_768, 32_768),
            (32_769, 36_864),
            (65_537, 69_632),
        ] {
            assert_eq!(block_size(size), given, "{size}");
        }
    }
}
