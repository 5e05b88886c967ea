//! Locks: `LOCK.*`.
//!
//! [`Lock`] is renewed by the server, [`RenewedLock`] by a thread of this process, and the locks of `Locks` (feature `tokio-comp`) by
//! Tokio's tasks over one connection. The functions are the single commands.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use redis::{Connection, ConnectionLike, ToRedisArgs};

use crate::connect::{Connect, connect};
use crate::error::Result;
use crate::request::{Info, Repeatable, Request};

pub use crate::renewed::RenewedLock;
#[cfg(feature = "tokio-comp")]
pub use crate::shared::{HeldLock, Locks};

/// The options of [`acquire`].
pub enum Acquire {}
/// The options of an acquisition that has a request id.
pub enum AcquireOnce {}

impl Repeatable for AcquireOnce {}

/// Marks the options of acquisitions.
pub trait Acquisition {}
impl Acquisition for Acquire {}
impl Acquisition for AcquireOnce {}

/// Asks for a lock. The reply is the fencing token; `None` if another owner holds the lock.
///
/// An owner that holds the lock already gets it once more, with the same fencing token.
pub fn acquire(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>, Acquire> {
    Request::new("LOCK.ACQUIRE").arg(key).arg(owner)
}

/// Asks for several locks, all or none. The reply is their fencing tokens. In a cluster the keys are in one slot.
pub fn acquire_all<K: ToRedisArgs>(keys: &[K], owner: &str) -> Request<Option<Vec<i64>>, Acquire> {
    let request = Request::new("LOCK.MACQUIRE").arg(keys.len());
    keys.iter().fold(request, Request::arg).arg(owner)
}

impl Request<Option<i64>, Acquire> {
    /// Asks for a shared lock, which several owners may hold.
    pub fn shared(self) -> Self {
        self.arg("SHARED")
    }
}

impl<R, O: Acquisition> Request<R, O> {
    /// Waits at most this long; with zero, it does not wait.
    pub(crate) fn wait(self, time: Duration) -> Self {
        if time.is_zero() {
            self
        } else {
            self.block(time)
        }
    }

    /// How long the hold lasts if nobody renews it. The default is the server's `lock-default-lease`.
    pub fn lease(self, lease: Duration) -> Self {
        self.time("PX", lease)
    }

    /// Waits for the lock, at most this long; zero: without limit. The connection is occupied meanwhile.
    pub fn block(self, time: Duration) -> Self {
        self.time("BLOCK", time)
    }

    /// The server renews the hold while the connection lives, and releases it when the connection closes.
    pub fn watchdog(self) -> Self {
        self.arg("WATCHDOG")
    }

    /// The same as [`watchdog`](Self::watchdog), at most this long.
    pub fn watchdog_at_most(self, hold: Duration) -> Self {
        self.arg("WATCHDOG").time("MAXHOLD", hold)
    }

    /// The same as [`watchdog`](Self::watchdog), but a closed connection releases nothing: the hold ends with its lease, unless the
    /// owner repeats the request with its id over another connection.
    pub fn watchdog_lingering(self) -> Self {
        self.arg("WATCHDOG").arg("LINGER")
    }

    /// The channel on which the server publishes when a queued request is served, and when the hold is lost. The connection is not
    /// occupied then.
    pub fn notify(self, channel: impl ToRedisArgs) -> Self {
        self.arg("NOTIFY").arg(channel)
    }
}

impl<R> Request<R, Acquire> {
    /// An id of this request, so that a repetition after a lost reply does not acquire once more.
    pub fn id(self, id: impl ToRedisArgs) -> Request<R, AcquireOnce> {
        self.arg("ID").arg(id).with_options()
    }
}

/// Releases one hold. The reply is the number of holds that are left; `None` if the owner has none.
pub fn release(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>> {
    Request::new("LOCK.RELEASE").arg(key).arg(owner)
}

/// Releases all holds of the owner.
pub fn release_all(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>> {
    release(key, owner).arg("ALL")
}

/// Releases all holds of the owner on several locks, in one step. The reply has `Some(0)` for each lock that it held.
pub fn release_each<K: ToRedisArgs>(keys: &[K], owner: &str) -> Request<Vec<Option<i64>>> {
    let request = Request::new("LOCK.MRELEASE").arg(keys.len());
    let request = keys.iter().fold(request, Request::arg);
    request.arg(owner).arg("ALL")
}

/// Gives the hold another lease. The reply is the fencing token; `None` if the owner does not hold the lock.
pub fn renew(key: impl ToRedisArgs, owner: &str, lease: Duration) -> Request<Option<i64>> {
    Request::new("LOCK.RENEW")
        .arg(key)
        .arg(owner)
        .time("PX", lease)
}

/// The options of [`upgrade`].
pub enum Upgrade {}

/// Makes the owner's shared hold exclusive. The reply is the fencing token; `None` if the owner has no hold, or others have shared holds.
pub fn upgrade(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>, Upgrade> {
    Request::new("LOCK.UPGRADE").arg(key).arg(owner)
}

impl Request<Option<i64>, Upgrade> {
    /// How long the hold lasts if nobody renews it.
    pub fn lease(self, lease: Duration) -> Self {
        self.time("PX", lease)
    }

    /// Waits until the other shared holds end, at most this long; zero: without limit. The connection is occupied meanwhile.
    pub fn block(self, time: Duration) -> Self {
        self.time("BLOCK", time)
    }
}

/// Makes the owner's exclusive hold shared. The reply is the fencing token; `None` if the owner has no hold.
pub fn downgrade(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>> {
    Request::new("LOCK.DOWNGRADE").arg(key).arg(owner)
}

/// The fencing token of the owner's hold; `None` if it does not hold the lock.
pub fn held(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>> {
    Request::new("LOCK.HELD").arg(key).arg(owner)
}

/// Admits a fencing token at a protected resource. The reply is false if a larger token was admitted before.
pub fn guard(key: impl ToRedisArgs, fence: i64) -> Request<bool> {
    Request::new("LOCK.GUARD").arg(key).arg(fence)
}

/// The holders and the queue of a lock. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("LOCK.INFO").arg(key)
}

/// Removes a queued request. The reply is false if no such request is queued.
pub fn cancel(key: impl ToRedisArgs, id: impl ToRedisArgs) -> Request<bool> {
    Request::new("LOCK.CANCEL").arg(key).arg(id)
}

/// An owner that no other hold has. With one owner for the process, all its threads would hold a lock together.
pub fn unique_owner() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// A lock that the server renews while this value exists. When its connection closes, the server releases the lock: after `drop`,
/// a panic, or the end of the process.
pub struct Lock<C: ConnectionLike = Connection> {
    connection: C,
    key: String,
    owner: String,
    fence: i64,
}

impl<C: ConnectionLike> Lock<C> {
    /// Waits for the lock; `None` if it was not free in time. With a `wait` of zero, it does not wait. Only this lock uses the
    /// connection, because the hold is bound to it.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    pub fn acquire(
        client: &impl Connect<Connection = C>,
        key: &str,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Self>> {
        let mut connection = connect(client, wait)?;
        let owner = unique_owner();
        let request = acquire(key, &owner).lease(lease).wait(wait).watchdog();
        let fence = request.query(&mut connection)?;
        Ok(fence.map(|fence| Self {
            connection,
            key: key.into(),
            owner,
            fence,
        }))
    }

    /// The fencing token: send it with each protected write.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Whether the lock is held. Call it before each protected step.
    ///
    /// # Errors
    /// The connection is closed, so the lock is not held.
    pub fn check(&mut self) -> Result<bool> {
        let fence = held(&self.key, &self.owner).query(&mut self.connection)?;
        Ok(fence == Some(self.fence))
    }

    /// Releases the lock and returns whether it was held until now. `drop` only releases it.
    ///
    /// # Errors
    /// The connection is closed, so the lock was lost.
    pub fn release(mut self) -> Result<bool> {
        let left = release_all(&self.key, &self.owner).query(&mut self.connection)?;
        Ok(left.is_some())
    }
}

/// The same as [`Lock`] for asynchronous connections.
#[cfg(feature = "aio")]
pub struct AsyncLock<C> {
    connection: C,
    key: String,
    owner: String,
    fence: i64,
}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike> AsyncLock<C> {
    /// Waits for the lock; `None` if it was not free in time. With a `wait` of zero, it does not wait. The lock owns the
    /// connection, because the hold is bound to it: give it one whose response timeout is longer than `wait`. The server releases
    /// the lock when the connection closes.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    pub async fn acquire(
        mut connection: C,
        key: &str,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Self>> {
        let owner = unique_owner();
        let request = acquire(key, &owner).lease(lease).wait(wait).watchdog();
        let fence = request.query_async(&mut connection).await?;
        Ok(fence.map(|fence| Self {
            connection,
            key: key.into(),
            owner,
            fence,
        }))
    }

    /// The fencing token: send it with each protected write.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Whether the lock is held. Call it before each protected step.
    ///
    /// # Errors
    /// The connection is closed, so the lock is not held.
    pub async fn check(&mut self) -> Result<bool> {
        let request = held(&self.key, &self.owner);
        let fence = request.query_async(&mut self.connection).await?;
        Ok(fence == Some(self.fence))
    }

    /// Releases the lock and returns whether it was held until now.
    ///
    /// # Errors
    /// The connection is closed, so the lock was lost.
    pub async fn release(mut self) -> Result<bool> {
        let request = release_all(&self.key, &self.owner);
        let left = request.query_async(&mut self.connection).await?;
        Ok(left.is_some())
    }
}
