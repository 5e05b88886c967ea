//! What memory costs, for `MEMORY USAGE`.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The distance of the smallest size classes: 16 in jemalloc as distributions have it, 8 in the one
/// that servers bring along.
static QUANTUM: AtomicUsize = AtomicUsize::new(16);

/// Learns the distance of the smallest size classes from what a request of 24 bytes was given.
pub fn learn_quantum(given_for_24: usize) {
    let quantum = if given_for_24 < 32 { 8 } else { 16 };
    QUANTUM.store(quantum, Ordering::Relaxed);
}

/// What the allocator takes for a request of `size` bytes.
pub fn block_size(size: usize) -> usize {
    size_class(size, QUANTUM.load(Ordering::Relaxed))
}

/// The size classes of jemalloc: a quantum apart up to eight of them, then four to each doubling.
/// <https://jemalloc.net/jemalloc.3.html#size_classes>
fn size_class(size: usize, quantum: usize) -> usize {
    match size {
        0 => 0,
        1..=8 => 8,
        _ if size <= 8 * quantum => size.next_multiple_of(quantum),
        _ => size.next_multiple_of(size.next_power_of_two() / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn size_classes_are_those_of_jemalloc() {
        for (size, class) in [
            (0, 0),
            (1, 8),
            (9, 16),
            (17, 32),
            (128, 128),
            (129, 160),
            (160, 160),
            (161, 192),
            (193, 224),
            (256, 256),
            (257, 320),
            (1025, 1280),
            (4096, 4096),
            (4097, 5120),
        ] {
            assert_eq!(size_class(size, 16), class, "{size}");
        }
        for (size, class) in [
            (8, 8),
            (9, 16),
            (17, 24),
            (41, 48),
            (64, 64),
            (65, 80),
            (129, 160),
        ] {
            assert_eq!(size_class(size, 8), class, "{size}");
        }
    }
}
