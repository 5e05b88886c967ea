//! The state machine of work that is done once: busy, then done. It uses no server, clock or randomness.

use std::sync::Arc;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceWork {
    /// The fencing token of the lease under which the work is or was done.
    pub token: u64,
    /// The fingerprint of the request; empty: none.
    pub fingerprint: Box<[u8]>,
    /// When the lease ends, or when the result is forgotten (Unix ms).
    pub until: u64,
    /// The result; `None`: a worker has the lease.
    pub result: Option<Box<[u8]>>,
}

/// Work that was done while clients waited for it. They receive its result even if the key is deleted before they are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoneWork {
    /// The fingerprint of the request; empty: none.
    pub fingerprint: Box<[u8]>,
    /// When the result is forgotten (Unix ms).
    pub until: u64,
    /// The result.
    pub result: Arc<[u8]>,
}

/// The decision about `ONCE.BEGIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginDecision {
    /// The caller begins the work.
    Begin,
    /// Another worker has the lease, for so many milliseconds at most.
    Busy(u64),
    /// There is a result, which is remembered for so many milliseconds.
    Done(u64),
    /// The key was used for another request.
    Conflict,
}

/// The decision about `ONCE.DONE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneDecision {
    /// The result is stored.
    Store,
    /// The same result is stored already.
    Repeated,
    /// The token is not the current one, or another result is stored.
    Refused,
}

impl OnceWork {
    /// Whether the lease or the memory of the result has ended. `now` is in Unix ms.
    pub fn is_over(&self, now: u64) -> bool {
        self.until <= now
    }
}

impl DoneWork {
    /// The outcome of work; `None`: it is not done.
    pub fn of(work: &OnceWork) -> Option<Self> {
        Some(Self {
            fingerprint: work.fingerprint.clone(),
            until: work.until,
            result: work.result.as_deref()?.into(),
        })
    }
}

/// Whether requests with these fingerprints are the same request; empty: none.
fn is_same_request(fingerprint: &[u8], other: &[u8]) -> bool {
    fingerprint.is_empty() || other.is_empty() || fingerprint == other
}

/// The work at a key, if it is not over. The server keeps a key through the millisecond in which it expires, and for as long as
/// a script runs.
fn current(work: Option<&OnceWork>, now: u64) -> Option<&OnceWork> {
    work.filter(|work| !work.is_over(now))
}

/// Decides `ONCE.BEGIN`. `fingerprint`: that of the request; empty: none. `now` is in Unix ms.
pub fn decide_begin(work: Option<&OnceWork>, fingerprint: &[u8], now: u64) -> BeginDecision {
    match current(work, now) {
        None => BeginDecision::Begin,
        Some(work) if !is_same_request(&work.fingerprint, fingerprint) => BeginDecision::Conflict,
        Some(work) if work.result.is_some() => BeginDecision::Done(work.until - now),
        Some(work) => BeginDecision::Busy(work.until - now),
    }
}

/// Decides about a client that waited when the work was done. `now` is in Unix ms.
pub fn decide_outcome(work: &DoneWork, fingerprint: &[u8], now: u64) -> BeginDecision {
    if is_same_request(&work.fingerprint, fingerprint) {
        BeginDecision::Done(work.until.saturating_sub(now))
    } else {
        BeginDecision::Conflict
    }
}

/// Decides `ONCE.DONE`. `now` is in Unix ms.
pub fn decide_done(work: Option<&OnceWork>, token: u64, result: &[u8], now: u64) -> DoneDecision {
    match current(work, now).filter(|work| work.token == token) {
        None => DoneDecision::Refused,
        Some(work) => match &work.result {
            None => DoneDecision::Store,
            Some(stored) if **stored == *result => DoneDecision::Repeated,
            Some(_) => DoneDecision::Refused,
        },
    }
}

/// Decides `ONCE.FAIL`: whether the key is freed. `now` is in Unix ms.
pub fn decide_fail(work: Option<&OnceWork>, token: u64, now: u64) -> bool {
    current(work, now).is_some_and(|work| work.token == token && work.result.is_none())
}
