//! Rate limits: `RATE.*`.

use std::time::Duration;

use redis::{ToRedisArgs, Value};

use crate::error::Result;
use crate::request::{Reply, Request, read};

/// The decision of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call is allowed. A refused call consumes nothing.
    pub allowed: bool,
    /// The most that can be consumed at once.
    pub limit: u64,
    /// What can be consumed now.
    pub remaining: u64,
    /// When allowed with [`ahead`](Request::ahead): how long to wait before acting. When refused: how long to wait before the next
    /// attempt; `None` if the cost never fits.
    pub wait: Option<Duration>,
    /// After this time the limit is as if it had never been used.
    pub reset: Duration,
    /// The place of the limit that decided, from 0, for [`gcra_all`] and [`tiers`]; 0 otherwise.
    pub index: u64,
}

impl Reply for Decision {
    fn read(value: Value) -> Result<Self> {
        let numbers: Vec<i64> = read(value)?;
        let number = |at: usize| numbers.get(at).copied().unwrap_or_default();
        let count = |at| u64::try_from(number(at)).unwrap_or_default();
        Ok(Self {
            allowed: number(0) == 0,
            limit: count(1),
            remaining: count(2),
            wait: u64::try_from(number(3)).ok().map(Duration::from_millis),
            reset: Duration::from_millis(count(4)),
            index: count(5),
        })
    }
}

/// The options of a limit by GCRA.
pub enum Gcra {}
/// The options of a limit by window.
pub enum Window {}

/// Allows `count` calls in each `period`, evenly spread, and `burst` more at once. Algorithm: GCRA (ITU-T I.371).
pub fn gcra(
    key: impl ToRedisArgs,
    burst: u64,
    count: u64,
    period: Duration,
) -> Request<Decision, Gcra> {
    let request = Request::new("RATE.GCRA").arg(key).arg(burst).arg(count);
    request.arg(period.as_millis() as u64)
}

/// One of the limits of [`gcra_all`]: key, burst, count and period as those of [`gcra`].
pub type Limit<K> = (K, u64, u64, Duration);

/// Asks several limits at once: all of them allow the call, or none consumes anything.
pub fn gcra_all<K: ToRedisArgs>(limits: &[Limit<K>]) -> Request<Decision, Gcra> {
    let request = Request::new("RATE.MGCRA").arg(limits.len());
    let add = |request: Request<_, _>, (key, burst, count, period): &Limit<K>| {
        let request = request.arg(key).arg(*burst).arg(*count);
        request.arg(period.as_millis() as u64)
    };
    limits.iter().fold(request, add)
}

/// Asks several limits of one key at once, each with burst, count and period as those of [`gcra`].
pub fn tiers(key: impl ToRedisArgs, tiers: &[(u64, u64, Duration)]) -> Request<Decision, Gcra> {
    let request = Request::new("RATE.TIERS").arg(key).arg(tiers.len());
    let add = |request: Request<_, _>, (burst, count, period): &(u64, u64, Duration)| {
        let request = request.arg(*burst).arg(*count);
        request.arg(period.as_millis() as u64)
    };
    tiers.iter().fold(request, add)
}

/// Allows `limit` calls in each window of this length, which begins with the first call.
pub fn window(key: impl ToRedisArgs, limit: u64, window: Duration) -> Request<Decision, Window> {
    let request = Request::new("RATE.WINDOW").arg(key).arg(limit);
    request.arg(window.as_millis() as u64)
}

impl<O: Cost> Request<Decision, O> {
    /// How much the call consumes. The default is 1.
    pub fn cost(self, cost: u64) -> Self {
        self.arg("COST").arg(cost)
    }

    /// Only asks: nothing is consumed.
    pub fn peek(self) -> Self {
        self.arg("PEEK")
    }
}

/// Marks the options of limits whose calls have a cost.
pub trait Cost {}
impl Cost for Gcra {}
impl Cost for Window {}

impl Request<Decision, Gcra> {
    /// Also allows a call that would be allowed within this time. The caller waits for [`Decision::wait`] before it acts.
    pub fn ahead(self, time: Duration) -> Self {
        self.time("AHEAD", time)
    }
}

impl Request<Decision, Window> {
    /// A sliding window, estimated from this window and the one before.
    pub fn sliding(self) -> Self {
        self.arg("SLIDING")
    }

    /// A sliding window that remembers the time of each call.
    pub fn exact(self) -> Self {
        self.arg("EXACT")
    }
}

/// Consumes more afterwards, whether or not there is room. The reply is false if the key does not exist.
pub fn charge(key: impl ToRedisArgs, cost: u64) -> Request<bool> {
    Request::new("RATE.CHARGE").arg(key).arg(cost)
}

/// Gives back what was consumed. The reply is false if the key does not exist.
pub fn refund(key: impl ToRedisArgs, cost: u64) -> Request<bool> {
    Request::new("RATE.REFUND").arg(key).arg(cost)
}

/// True for the first caller within this time, false for the others.
pub fn first(key: impl ToRedisArgs, time: Duration) -> Request<bool> {
    Request::new("RATE.ONCE").arg(key).time("PX", time)
}
