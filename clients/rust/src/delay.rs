//! Delayed messages, which the server appends to a stream at their time: `DELAY.*`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{ToRedisArgs, Value};

use crate::error::Result;
use crate::request::{Info, Repeatable, Reply, Request, read};

/// What has become of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The message is new.
    New,
    /// It has replaced a message with the same id that was not delivered.
    Replaced,
    /// Nothing has changed, because of [`if_missing`](Request::if_missing) or [`if_present`](Request::if_present).
    Refused,
}

impl Reply for Added {
    fn read(value: Value) -> Result<Self> {
        Ok(match read(value)? {
            Some(1) => Self::New,
            Some::<i64>(_) => Self::Replaced,
            None => Self::Refused,
        })
    }
}

/// The options of [`add`], before its values.
pub enum Add {}
/// Marks [`create`] and [`cancel`], which may be repeated.
pub enum Again {}

impl Repeatable for Again {}

/// Creates a queue whose messages go to this stream, or gives a queue another stream.
pub fn create(key: impl ToRedisArgs, stream: impl ToRedisArgs) -> Request<(), Again> {
    Request::new("DELAY.SET").arg(key).arg("STREAM").arg(stream)
}

impl Request<(), Again> {
    /// Trims the stream to about this many entries at each delivery. An option of [`create`].
    pub fn max_length(self, most: u64) -> Self {
        self.arg("MAXLEN").arg(most)
    }
}

/// Adds a message that is due after this time. [`values`](Request::values) are its fields.
pub fn add(key: impl ToRedisArgs, id: impl ToRedisArgs, delay: Duration) -> Request<Added, Add> {
    Request::new("DELAY.ADD").arg(key).arg(id).time("PX", delay)
}

/// The same as [`add`], but the message is due at this time of the server's clock.
pub fn add_at(key: impl ToRedisArgs, id: impl ToRedisArgs, at: SystemTime) -> Request<Added, Add> {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Request::new("DELAY.ADD")
        .arg(key)
        .arg(id)
        .time("PXAT", since)
}

impl Request<Added, Add> {
    /// Replaces a message with this id that was not delivered, and adds none.
    pub fn if_present(self) -> Self {
        self.arg("XX")
    }

    /// Replaces no message.
    pub fn if_missing(self) -> Self {
        self.arg("NX")
    }

    /// The fields of the message and their values.
    pub fn values<F: ToRedisArgs, V: ToRedisArgs>(self, values: &[(F, V)]) -> Request<Added> {
        let add = |request: Self, (field, value): &(F, V)| request.arg(field).arg(value);
        values.iter().fold(self.arg("VALUES"), add).with_options()
    }
}

/// Removes messages that were not delivered. The reply is their number.
pub fn cancel<I: ToRedisArgs>(key: impl ToRedisArgs, ids: &[I]) -> Request<u64, Again> {
    let request = Request::new("DELAY.CANCEL").arg(key);
    ids.iter().fold(request, Request::arg)
}

/// The milliseconds until a message is due, and its fields with their values; `None` if the queue has no such message.
pub fn get(key: impl ToRedisArgs, id: impl ToRedisArgs) -> Request<Option<Waiting>> {
    Request::new("DELAY.GET").arg(key).arg(id)
}

/// A message that is not delivered: the milliseconds until it is due, and its fields with their values.
pub type Waiting = (u64, Vec<(String, Vec<u8>)>);

/// The ids of the next messages and the milliseconds until they are due, the soonest first.
pub fn next(key: impl ToRedisArgs, count: u64) -> Request<Vec<(String, u64)>> {
    Request::new("DELAY.RANGE").arg(key).arg(count)
}

/// The stream and the number of messages of a queue. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("DELAY.INFO").arg(key)
}
