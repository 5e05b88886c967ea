//! Cached values without cache stampede: `CACHE.*`.

use std::thread;
use std::time::Duration;

use redis::{ConnectionLike, ToRedisArgs, Value};

use crate::error::{Error, Result};
#[cfg(feature = "tokio-comp")]
pub use crate::near::Near;
use crate::request::{Info, Reply, Request, read};

/// What a caller of [`fetch`] has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fetched {
    /// The value, fresh for this time.
    Hit(Vec<u8>, Duration),
    /// The database has no value.
    Absent,
    /// The caller loads the value, then sends [`store`], [`store_absent`] or [`fail`] with this token. An older value may be there.
    Lease(u64, Option<Vec<u8>>),
    /// An older value; another caller loads the new one.
    Stale(Vec<u8>),
    /// Another caller loads the value; its lease ends after this time.
    Wait(Duration),
    /// The loader has failed; the next attempt is permitted after this time. An older value may be there.
    Down(Option<Vec<u8>>, Duration),
    /// The server is a replica and has no fresh value.
    Miss(Option<Vec<u8>>),
}

impl Reply for Fetched {
    fn read(value: Value) -> Result<Self> {
        let (state, value, number): (String, Option<Vec<u8>>, u64) = read(value)?;
        let time = Duration::from_millis(number);
        Ok(match state.as_str() {
            "HIT" => Self::Hit(value.unwrap_or_default(), time),
            "STALE" => Self::Stale(value.unwrap_or_default()),
            "LEASE" => Self::Lease(number, value),
            "WAIT" => Self::Wait(time),
            "DOWN" => Self::Down(value, time),
            "MISS" => Self::Miss(value),
            _ => Self::Absent, // NULL, ABSENT
        })
    }
}

/// The options of [`fetch`].
pub enum Fetch {}
/// The options of [`store`] and [`store_absent`].
pub enum Store {}
/// The options of [`invalidate`].
pub enum Invalidate {}

/// Reads a value, or gives this caller a lease of this length to load it.
pub fn fetch(key: impl ToRedisArgs, lease: Duration) -> Request<Fetched, Fetch> {
    Request::new("CACHE.FETCH").arg(key).time("LEASE", lease)
}

impl Request<Fetched, Fetch> {
    /// Waits while another caller loads the value, at most this long. The connection is occupied meanwhile.
    pub fn block(self, time: Duration) -> Self {
        self.time("BLOCK", time)
    }

    /// One caller loads the value already when less than this is left of its fresh time.
    pub fn early(self, time: Duration) -> Self {
        self.time("EARLY", time)
    }

    /// One caller loads the value before it expires. The probability rises as the expiry approaches. With a larger `beta`, loads start
    /// earlier; 1 suits most loaders. It replaces [`early`](Self::early).
    pub fn beta(self, beta: f64) -> Self {
        self.arg("BETA").arg(beta)
    }

    /// Each hit keeps the value fresh for this time.
    pub fn slide(self, time: Duration) -> Self {
        self.time("SLIDE", time)
    }

    /// Asks this filter before a load: an item that it does not contain is [`Fetched::Absent`].
    pub fn guard(self, filter: impl ToRedisArgs, item: impl ToRedisArgs) -> Self {
        self.arg("GUARD").arg(filter).arg(item)
    }

    /// A circuit breaker: after so many failures in a row, nobody loads for this time.
    pub fn breaker(self, name: impl ToRedisArgs, failures: u64, open: Duration) -> Self {
        let request = self.arg("BREAKER").arg(name).arg(failures);
        request.arg(open.as_millis() as u64)
    }
}

/// Reads a value, fresh or stale, without a lease; `None` if none is cached, or if the database has none.
pub fn peek(key: impl ToRedisArgs) -> Request<Option<Vec<u8>>> {
    Request::new("CACHE.GET").arg(key)
}

/// Stores a value that is fresh for this time. The reply is false if the token's lease has ended.
pub fn store(
    key: impl ToRedisArgs,
    value: impl ToRedisArgs,
    fresh: Duration,
) -> Request<bool, Store> {
    Request::new("CACHE.SET")
        .arg(key)
        .arg(value)
        .time("PX", fresh)
}

/// Remembers for this time that the database has no value.
pub fn store_absent(key: impl ToRedisArgs, fresh: Duration) -> Request<bool, Store> {
    Request::new("CACHE.SETNULL").arg(key).time("PX", fresh)
}

impl Request<bool, Store> {
    /// The token of the lease. The value is stored only if nothing has invalidated the key since.
    pub fn token(self, token: u64) -> Self {
        self.arg("TOKEN").arg(token)
    }

    /// How long the value is served stale after its fresh time.
    pub fn stale(self, time: Duration) -> Self {
        self.time("STALE", time)
    }

    /// Up to so many percent more or less fresh time, from 0 to 100, so that values do not end together.
    pub fn jitter(self, percent: u8) -> Self {
        self.arg("JITTER").arg(percent)
    }

    /// The version of the value. A value with an older one is not stored.
    pub fn version(self, version: u64) -> Self {
        self.arg("VER").arg(version)
    }
}

/// Invalidates a value after the database was changed. The reply is false if there was none.
pub fn invalidate(key: impl ToRedisArgs) -> Request<bool, Invalidate> {
    Request::new("CACHE.DEL").arg(key)
}

impl Request<bool, Invalidate> {
    /// The old value is served stale for this time while one caller loads the new one.
    pub fn stale(self, time: Duration) -> Self {
        self.time("STALE", time)
    }

    /// For this time, nothing is stored with a lease: for databases whose replicas lag.
    pub fn grace(self, time: Duration) -> Self {
        self.time("GRACE", time)
    }

    /// The version of the change. Until the end of the [`grace`](Self::grace), values with an older version are not stored.
    pub fn version(self, version: u64) -> Self {
        self.arg("VER").arg(version)
    }
}

/// Gives a lease back after the loader failed. Nobody loads for this time.
pub fn fail(key: impl ToRedisArgs, token: u64, back_off: Duration) -> Request<bool> {
    Request::new("CACHE.FAIL")
        .arg(key)
        .arg(token)
        .time("BACKOFF", back_off)
}

/// The state of an entry. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("CACHE.INFO").arg(key)
}

/// The state of a circuit breaker; `None` if it has seen no failure.
pub fn breaker(name: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("CACHE.BREAKER").arg(name)
}

/// Closes a circuit breaker. The reply is false if there was none.
pub fn reset_breaker(name: impl ToRedisArgs) -> Request<bool> {
    Request::new("CACHE.BREAKER").arg(name).arg("RESET")
}

/// How [`get`] reads and stores values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How long a value is fresh.
    pub fresh: Duration,
    /// How long it is served stale after that, while one caller loads the new one.
    pub stale: Duration,
    /// How long it is remembered that the database has no value.
    pub absent: Duration,
    /// Longer than a load can take.
    pub lease: Duration,
    /// How long nobody loads after the loader failed.
    pub back_off: Duration,
}

impl Default for Policy {
    /// A minute, no stale values, five seconds for absent ones, a lease of three seconds, a pause of one second.
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(60),
            stale: Duration::ZERO,
            absent: Duration::from_secs(5),
            lease: Duration::from_secs(3),
            back_off: Duration::from_secs(1),
        }
    }
}

/// Callers that wait ask again after so long.
const WAIT: Duration = Duration::from_secs(2);

/// The longest pause between two requests. The server replies at once if it cannot let the caller wait, for example because
/// `cache-max-leases` leases exist.
const PAUSE: Duration = Duration::from_millis(20);

/// The next step of [`get`] after a reply.
pub(crate) enum Step {
    /// Loads the value. With the token of a lease, stores it. Without one, the server is a replica, and nothing is stored.
    Load(Option<u64>),
    Return(Option<Vec<u8>>),
    /// Sends the request again: another caller has a lease, which ends after this time.
    Again(Duration),
}

impl Policy {
    fn fetch(&self, key: &str) -> Request<Fetched, Fetch> {
        fetch(key, self.lease).block(WAIT)
    }

    pub(crate) fn step(fetched: Fetched) -> Result<Step> {
        Ok(match fetched {
            Fetched::Hit(value, _) | Fetched::Stale(value) => Step::Return(Some(value)),
            Fetched::Down(Some(value), _) | Fetched::Miss(Some(value)) => Step::Return(Some(value)),
            Fetched::Absent => Step::Return(None),
            Fetched::Miss(None) => Step::Load(None),
            Fetched::Lease(token, _) => Step::Load(Some(token)),
            Fetched::Wait(time) => Step::Again(time),
            Fetched::Down(None, _) => return Err(Error::LoaderFailed),
        })
    }

    pub(crate) fn store(
        &self,
        key: &str,
        value: Option<&[u8]>,
        token: u64,
    ) -> Request<bool, Store> {
        let request = match value {
            Some(value) => store(key, value, self.fresh).stale(self.stale),
            None => store_absent(key, self.absent),
        };
        request.jitter(10).token(token)
    }
}

/// Returns a value from the cache, or from the loader: one caller at a time loads, the others wait. `None`: there is no value. The
/// connection is occupied while the caller waits. A replica grants no leases: for an entry that it does not have, the caller loads and
/// does not store. The loaded value is also returned if the server refuses to store it, for example because its memory is full. The server
/// and a breaker then count a failed load.
///
/// # Errors
/// The loader failed, for this caller or a moment ago ([`Error::LoaderFailed`]), or the request failed.
pub fn get<E: From<Error>>(
    connection: &mut impl ConnectionLike,
    key: &str,
    policy: &Policy,
    load: impl FnOnce(&str) -> Result<Option<Vec<u8>>, E>,
) -> Result<Option<Vec<u8>>, E> {
    let token = loop {
        match Policy::step(policy.fetch(key).query(connection)?)? {
            Step::Load(token) => break token,
            Step::Return(value) => return Ok(value),
            Step::Again(time) => thread::sleep(time.min(PAUSE)),
        }
    };
    let loaded = load(key).inspect_err(|_| {
        if let Some(token) = token {
            let _ = fail(key, token, policy.back_off).query(connection);
        }
    })?;
    if let Some(token) = token {
        let store = policy.store(key, loaded.as_deref(), token);
        if let Err(error) = store.query(connection) {
            let _ = fail(key, token, Duration::ZERO).query(connection);
            if !error.is_refused_store() {
                return Err(error.into());
            }
        }
    }
    Ok(loaded)
}

/// The same as [`get`] over an asynchronous connection. A connection that other tasks use, too, is occupied while the caller waits:
/// use one of its own, with a response timeout of more than two seconds. Without the feature `tokio-comp`, the caller asks again
/// without a pause if the server cannot let it wait.
///
/// # Errors
/// See [`get`].
#[cfg(feature = "aio")]
pub async fn get_async<E: From<Error>>(
    connection: &mut impl redis::aio::ConnectionLike,
    key: &str,
    policy: &Policy,
    load: impl AsyncFnOnce(&str) -> Result<Option<Vec<u8>>, E>,
) -> Result<Option<Vec<u8>>, E> {
    let token = loop {
        match Policy::step(policy.fetch(key).query_async(connection).await?)? {
            Step::Load(token) => break token,
            Step::Return(value) => return Ok(value),
            #[cfg(feature = "tokio-comp")]
            Step::Again(time) => tokio::time::sleep(time.min(PAUSE)).await,
            #[cfg(not(feature = "tokio-comp"))]
            Step::Again(_) => {}
        }
    };
    let loaded = match load(key).await {
        Ok(loaded) => loaded,
        Err(error) => {
            if let Some(token) = token {
                let fail = fail(key, token, policy.back_off);
                let _ = fail.query_async(connection).await;
            }
            return Err(error);
        }
    };
    if let Some(token) = token {
        let store = policy.store(key, loaded.as_deref(), token);
        if let Err(error) = store.query_async(connection).await {
            let fail = fail(key, token, Duration::ZERO);
            let _ = fail.query_async(connection).await;
            if !error.is_refused_store() {
                return Err(error.into());
            }
        }
    }
    Ok(loaded)
}
