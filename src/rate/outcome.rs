//! What a request costs, and what comes of it, whatever the kind of limit.

use crate::request::MAX_SAFE;

/// What a request costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// So many ordinary requests.
    pub cost: u64,
    /// Is it counted, if it is allowed? Otherwise what is told is how it stands before.
    pub spends: bool,
}

/// What comes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Is it allowed?
    pub verdict: Verdict,
    /// How many requests are allowed at once.
    pub limit: u64,
    /// How many are left of them.
    pub remaining: u64,
    /// In how many milliseconds the key will be as if it had never been used.
    pub reset: u64,
    /// The tier that binds.
    pub tier: usize,
}

/// Whether a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Allowed,
    /// It isn't, but would be after so many milliseconds.
    Retry(u64),
    /// It never will be: it costs more than the limit.
    Never,
}

/// Microseconds as milliseconds, rounded up: to wait for so long is enough. Never more than a reply
/// can tell, which is 285 000 years.
pub fn ceil_ms(micros: u128) -> u64 {
    div_ceil(micros, 1000).min(MAX_SAFE as u128) as u64
}

/// Quotient and remainder. The processor divides 64 bits, which is nearly always enough, in a fraction of the time that
/// 128 take.
pub fn div_rem(dividend: u128, divisor: u64) -> (u128, u64) {
    if let Ok(small) = u64::try_from(dividend) {
        return (u128::from(small / divisor), small % divisor);
    }
    let divisor = u128::from(divisor);
    (dividend / divisor, (dividend % divisor) as u64)
}

/// The quotient, rounded up.
pub fn div_ceil(dividend: u128, divisor: u64) -> u128 {
    let (quotient, rest) = div_rem(dividend, divisor);
    quotient + u128::from(rest > 0)
}
