//! What memory costs, for `MEMORY USAGE`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Requests of more bytes than this are not asked about.
const SMALL: usize = 1024;

/// No allocator tells requests apart that are nearer to each other.
const STEP: usize = 8;

/// What the allocator gives for 8, 16, 24... bytes: in the jemalloc of distributions classes are 16 bytes apart, in the
/// one that servers bring along 8, and glibc gives 24, 24, 24, 40, 40...
static GIVEN: [AtomicUsize; SMALL / STEP] = [const { AtomicUsize::new(0) }; SMALL / STEP];

/// Has it classes for larger blocks, too, each a quarter or less above the one before?
static HAS_CLASSES: AtomicBool = AtomicBool::new(true);

/// Learns what the allocator gives, which `ask` tells of a request of some bytes.
pub fn learn(ask: impl Fn(usize) -> usize) {
    for (given, size) in GIVEN.iter().zip((STEP..).step_by(STEP)) {
        given.store(ask(size), Ordering::Relaxed);
    }
    let one_more = ask(SMALL + 1);
    HAS_CLASSES.store(one_more == size_class(SMALL + 1), Ordering::Relaxed);
}

/// What the allocator takes for a request of `size` bytes.
pub fn block_size(size: usize) -> usize {
    if size == 0 {
        return 0;
    }
    match GIVEN.get((size - 1) / STEP) {
        Some(given) => given.load(Ordering::Relaxed).max(size),
        None if HAS_CLASSES.load(Ordering::Relaxed) => size_class(size),
        // What it takes for itself is next to nothing.
        None => size,
    }
}

/// The size classes of jemalloc, where they are many quanta apart: four to each doubling.
/// <https://jemalloc.net/jemalloc.3.html#size_classes>
fn size_class(size: usize) -> usize {
    size.next_multiple_of(size.next_power_of_two() / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because what is learned is learned for all.
    #[test]
    fn blocks_are_as_large_as_the_allocator_said() {
        // The chunks of glibc: 8 bytes more, then whole 16s, of which 8 are its own.
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
        for (size, given) in [(1025, 1280), (4096, 4096), (4097, 5120)] {
            assert_eq!(block_size(size), given, "{size}");
        }
    }
}
