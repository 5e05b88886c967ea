//! Fencing tokens: one sequence for all keys of a server, of locks as of idempotency keys.

use crate::codec::{Reader, put_uint};
use crate::error::Error;
use crate::request::MAX_SAFE;
use crate::server::base::clock::Now;
use crate::server::handles::io::{RdbReader, RdbWriter};
use crate::server::handles::log;
use crate::server::services::memory::is_following;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last fence that was given by this server or its masters, as far as it knows.
static FENCE: AtomicU64 = AtomicU64::new(0);

/// The last fence that was given, as far as this server knows; 0: none.
pub fn last_fence() -> u64 {
    FENCE.load(Ordering::Relaxed)
}

/// The next fence: a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014), so that it rises also where the
/// last fences were never replicated, if the clocks are synchronized. Error: no fence is left.
pub fn next_fence(now: Now) -> Result<u64, Error> {
    let fence = (last_fence() + 1).max(now.micros());
    if fence > MAX_SAFE as u64 {
        log::warn_of_server("no further fencing token exists: the clock is beyond the year 2255");
        return Err(Error::Internal);
    }
    Ok(fence)
}

/// The largest fence that is believed if it comes from elsewhere: it leaves enough for 35 years, a million in a second.
const MOST_BELIEVED: u64 = MAX_SAFE as u64 - (1 << 50);

/// Whether this fence can have been given. Masters and files of this server are believed. A forged payload that a client
/// restores must not leave this server without fences.
pub fn is_plausible_fence(fence: u64) -> bool {
    is_following() || fence <= MOST_BELIEVED.max(last_fence())
}

/// Remembers a fence that was given here or elsewhere.
pub fn remember_fence(fence: u64) {
    FENCE.fetch_max(fence, Ordering::Relaxed);
}

/// Saves the last fence beside all keys.
pub fn save_fence(out: &mut RdbWriter<'_>) {
    let mut bytes = Vec::new();
    put_uint(&mut bytes, last_fence());
    out.bytes(&bytes);
}

/// Reads the bytes of [`save_fence`]. Returns whether they are that.
pub fn load_fence(input: &mut RdbReader<'_>) -> bool {
    let fence = input.bytes(|bytes| Reader::new(bytes).uint(0, MAX_SAFE as u64));
    let Some(Ok(fence)) = fence else {
        return false;
    };
    remember_fence(fence);
    true
}
