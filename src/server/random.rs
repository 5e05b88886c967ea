//! Randomness, from the server's generator.

/// A random number that nobody can predict.
pub fn secret() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is given with its length.
    unsafe { api!(RedisModule_GetRandomBytes(bytes.as_mut_ptr(), bytes.len())) };
    u64::from_ne_bytes(bytes)
}
