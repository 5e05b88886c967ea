//! Work that is done once, and whose result every caller gets (idempotency keys): `ONCE.*`.

use std::time::Duration;

use redis::{ToRedisArgs, Value};

use crate::connect::{Connect, connect};
use crate::error::{Error, Result};
use crate::request::{Info, Repeatable, Reply, Request, read};

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

/// The state of the work. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("ONCE.INFO").arg(key)
}

/// How [`run`] does work once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Longer than the work can take.
    pub lease: Duration,
    /// How long the result is remembered.
    pub remembered: Duration,
    /// The digest of the request. A request with another one is [`Error::Conflict`].
    pub fingerprint: Option<String>,
}

impl Default for Policy {
    /// A lease of 30 seconds, results that are remembered for a day, no fingerprint.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            remembered: Duration::from_secs(24 * 60 * 60),
            fingerprint: None,
        }
    }
}

impl Policy {
    fn begin(&self, key: &str) -> Request<Begun, Begin> {
        let begin = begin(key, self.lease).block(WAIT);
        match &self.fingerprint {
            Some(fingerprint) => begin.fingerprint(fingerprint),
            None => begin,
        }
    }
}

/// Why the work of [`run`] has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure<E> {
    /// The work had no effect: the next caller does it at once.
    NoEffect(E),
    /// The work may have had its effect, for example because a payment provider did not answer. The key stays busy until the lease
    /// ends. The next worker finds out first whether the work was done.
    Unknown(E),
}

impl<E> From<E> for Failure<E> {
    /// The work had no effect.
    fn from(error: E) -> Self {
        Self::NoEffect(error)
    }
}

/// Callers that wait for a result ask again after this time.
const WAIT: Duration = Duration::from_secs(2);

/// Returns the result of the work with this key. One caller does the work, with its token, and the others wait for its result. If the
/// work panics, the key stays busy until the lease ends, as after [`Failure::Unknown`].
///
/// # Errors
/// The work failed; its lease ended before the result was stored ([`Error::LeaseEnded`]); or a request failed.
pub fn run<E: From<Error>>(
    client: &impl Connect,
    key: &str,
    policy: &Policy,
    work: impl FnOnce(i64) -> Result<Vec<u8>, Failure<E>>,
) -> Result<Vec<u8>, E> {
    let begin = policy.begin(key);
    let mut connection = connect(client, WAIT).map_err(Error::from)?;
    let token = loop {
        match begin.query(&mut connection)? {
            Begun::New(token) => break token,
            Begun::Done(result) => return Ok(result),
            Begun::Busy(_) => {}
        }
    };
    let result = match work(token) {
        Ok(result) => result,
        Err(Failure::Unknown(error)) => return Err(error),
        Err(Failure::NoEffect(error)) => {
            let _ = fail(key, token).query(&mut connection);
            return Err(error);
        }
    };
    let done = done(key, token, &result, policy.remembered);
    let is_stored = done.query_until_replied(|| connect(client, Duration::ZERO))?;
    stored(result, is_stored)
}

/// The same as [`run`] over an asynchronous connection. A connection that other tasks use, too, is occupied while the caller waits: use
/// one of its own, with a response timeout of more than two seconds. If the connection breaks before the result is stored, the
/// request is repeated once, which succeeds if the connection connects again by itself. If the future is dropped during the work, the key
/// stays busy until the lease ends.
///
/// # Errors
/// See [`run`].
#[cfg(feature = "aio")]
pub async fn run_async<E: From<Error>>(
    connection: &mut impl redis::aio::ConnectionLike,
    key: &str,
    policy: &Policy,
    work: impl AsyncFnOnce(i64) -> Result<Vec<u8>, Failure<E>>,
) -> Result<Vec<u8>, E> {
    let begin = policy.begin(key);
    let token = loop {
        match begin.query_async(connection).await? {
            Begun::New(token) => break token,
            Begun::Done(result) => return Ok(result),
            Begun::Busy(_) => {}
        }
    };
    let result = match work(token).await {
        Ok(result) => result,
        Err(Failure::Unknown(error)) => return Err(error),
        Err(Failure::NoEffect(error)) => {
            let _ = fail(key, token).query_async(connection).await;
            return Err(error);
        }
    };
    let done = done(key, token, &result, policy.remembered);
    let is_stored = match done.query_async(connection).await {
        Err(Error::Lost(_)) => done.query_async(connection).await?,
        reply => reply?,
    };
    stored(result, is_stored)
}

/// The result, unless another caller may have done the work, too.
fn stored<E: From<Error>>(result: Vec<u8>, is_stored: bool) -> Result<Vec<u8>, E> {
    if is_stored {
        Ok(result)
    } else {
        Err(Error::LeaseEnded.into())
    }
}
