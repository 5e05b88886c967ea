//! What memory costs, for `MEMORY USAGE`.

/// What the allocator takes for a request of `size` bytes: jemalloc's size classes, which are 16
/// bytes apart up to 128 and then four to each doubling.
pub fn block_size(size: usize) -> usize {
    match size {
        0 => 0,
        1..=8 => 8,
        9..=128 => size.next_multiple_of(16),
        _ => size.next_multiple_of(size.next_power_of_two() / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::block_size;

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
            assert_eq!(block_size(size), class, "{size}");
        }
    }
}
