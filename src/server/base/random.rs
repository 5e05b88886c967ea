//! Random numbers from the generator of the server.

use std::sync::atomic::{AtomicU64, Ordering};

/// A random number that cannot be predicted.
pub fn secret() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the function receives the buffer with its length.
    unsafe { api!(RedisModule_GetRandomBytes(bytes.as_mut_ptr(), bytes.len())) };
    u64::from_ne_bytes(bytes)
}

/// A pseudorandom number that may be predictable, at a hundredth of the cost of [`secret`]. The generator is SplitMix64: Steele,
/// Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
pub fn draw() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let last = match STATE.load(Ordering::Relaxed) {
        0 => secret(),
        last => last,
    };
    let state = last.wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.store(state, Ordering::Relaxed);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
