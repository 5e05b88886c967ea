//! Numbers that look random and are the same in every run.

/// A generator with a seed, other than 0: a failure comes again. Xorshift with a multiplication (Marsaglia, "Xorshift
/// RNGs", 2003; Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016).
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        (self.word() >> 32) % sides
    }

    /// One of these.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Fewer than `most` bytes.
    pub fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most))
            .map(|_| self.below(256) as u8)
            .collect()
    }
}
