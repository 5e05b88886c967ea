//! The cost of a request and the decision about it, for all kinds of limits.

use crate::request::MAX_SAFE;

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestCost {
    /// The cost: the number of ordinary requests that this request counts for.
    pub cost: u64,
    /// Whether the limit counts the request, if it is allowed. `PEEK` is not counted: the decision then describes the limit
    /// before the request.
    pub is_counted: bool,
    /// How long the caller would wait after an early decision, in milliseconds (`AHEAD`); 0: it does not wait.
    pub ahead_ms: u64,
}

impl RequestCost {
    /// The cost of a request that is counted, without `AHEAD`.
    pub fn counted(cost: u64) -> Self {
        Self {
            cost,
            is_counted: true,
            ahead_ms: 0,
        }
    }
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDecision {
    /// Whether the request is allowed.
    pub verdict: RateVerdict,
    /// The number of requests that are allowed at once.
    pub limit: u64,
    /// The number of remaining requests.
    pub remaining: u64,
    /// The time until the limit is unused, in milliseconds.
    pub reset: u64,
    /// The index of the binding tier.
    pub tier: usize,
}

/// Whether a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateVerdict {
    /// The request is allowed.
    Allowed,
    /// The request is allowed, but its caller must wait for this time in milliseconds before it acts (`AHEAD`).
    AllowedAfter(u64),
    /// The request is limited, and is allowed after this time in milliseconds.
    Retry(u64),
    /// The request is never allowed: its cost is higher than the limit.
    Never,
}

impl RateVerdict {
    /// Whether the request is allowed, now or ahead of its time.
    pub fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::AllowedAfter(_))
    }
}

/// Microseconds as milliseconds, rounded up, so that a client that waits for this time waits long enough. The result is at
/// most 2^53 - 1.
pub fn ceil_ms(micros: u128) -> u64 {
    div_ceil(micros, 1000).min(MAX_SAFE as u128) as u64
}

/// The quotient and the remainder. A division of 64 bits, nearly always enough, takes a fraction of the time of one of 128
/// bits.
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
