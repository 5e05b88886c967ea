//! Work that is done once, and whose result every caller gets (idempotency keys): `ONCE.*`.

use std::time::Duration;

use redis::{ToRedisArgs, Value};

use crate::error::Result;
use crate::request::{Repeatable, Reply, Request, read};

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Does the work, then sends [`done`] or [`fail`] with this token. The token is a fencing token.
    New(i64),
    /// Another caller does the work; its lease ends after this time.
    Busy(Duration),
    /// The work is done, and this is its result.
    Done(Vec<u8>),
}

impl Reply for Begun {
    fn read(value: Value) -> Result<Self> {
        let (state, result, number): (String, Option<Vec<u8>>, i64) = read(value)?;
        Ok(match state.as_str() {
            "NEW" => Self::New(number),
            "DONE" => Self::Done(result.unwrap_or_default()),
            _ => Self::Busy(Duration::from_millis(number.unsigned_abs())),
        })
    }
}

/// The options of [`begin`].
pub enum Begin {}
/// Marks [`done`], which may be repeated.
pub enum Done {}

impl Repeatable for Done {}

/// Begins the work, with a lease that is longer than the work can take.
pub fn begin(key: impl ToRedisArgs, lease: Duration) -> Request<Begun, Begin> {
    Request::new("ONCE.BEGIN").arg(key).time("LEASE", lease)
}

impl Request<Begun, Begin> {
    /// The digest of the request. A request with another one is [`Error::Conflict`](crate::Error::Conflict).
    pub fn fingerprint(self, fingerprint: impl ToRedisArgs) -> Self {
        self.arg("FINGERPRINT").arg(fingerprint)
    }

    /// Waits for the other caller's result, at most this long. The connection is occupied meanwhile.
    pub fn block(self, time: Duration) -> Self {
        self.time("BLOCK", time)
    }
}

/// Stores the result, to be remembered for this time. The reply is false if the token is not the current one.
pub fn done(
    key: impl ToRedisArgs,
    token: i64,
    result: impl ToRedisArgs,
    remembered: Duration,
) -> Request<bool, Done> {
    let request = Request::new("ONCE.DONE").arg(key).arg(token).arg(result);
    request.time("PX", remembered)
}

/// Gives the work back: the next caller does it. The reply is false if the token is not the current one.
pub fn fail(key: impl ToRedisArgs, token: i64) -> Request<bool> {
    Request::new("ONCE.FAIL").arg(key).arg(token)
}
