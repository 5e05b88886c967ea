//! Requests: a command whose options and reply have types.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::thread::sleep;
use std::time::Duration;

use redis::{Cmd, ConnectionLike, RedisError, ToRedisArgs, Value, from_redis_value};

use crate::error::{Error, Result};

/// A command. `R` is the type of the reply, `O` says which options the command takes.
///
/// A request can be sent more than once, and over any connection of the redis crate.
#[must_use = "a request does nothing until it is sent by `query`"]
pub struct Request<R, O = ()> {
    #[cfg(feature = "tracing")]
    name: &'static str,
    command: Cmd,
    types: PhantomData<fn() -> (R, O)>,
}

/// The reply to a request.
pub trait Reply: Sized {
    /// Reads a reply of the server.
    ///
    /// # Errors
    /// The reply has another shape.
    fn read(value: Value) -> Result<Self>;
}

/// What an `INFO` command reports: its fields by their names.
pub type Info = HashMap<String, Value>;

/// The pauses between the attempts of a request that is repeated.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// Marks requests that may be repeated after a lost reply: the server carries them out once.
pub trait Repeatable {}

impl<R: Reply, O> Request<R, O> {
    /// Sends the request and waits for its reply.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    pub fn query(&self, connection: &mut impl ConnectionLike) -> Result<R> {
        #[cfg(feature = "tracing")]
        let _span = self.span().entered();
        R::read(self.command.query(connection)?)
    }

    /// The same over an asynchronous connection.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    #[cfg(feature = "aio")]
    pub async fn query_async(&self, connection: &mut impl redis::aio::ConnectionLike) -> Result<R> {
        let reply = self.command.query_async(connection);
        #[cfg(feature = "tracing")]
        let reply = tracing::Instrument::instrument(reply, self.span());
        R::read(reply.await?)
    }
}

#[cfg(feature = "tracing")]
impl<R, O> Request<R, O> {
    /// A span of one attempt. It records neither keys nor values.
    fn span(&self) -> tracing::Span {
        tracing::info_span!(
            "sluice",
            otel.name = self.name,
            otel.kind = "client",
            db.system.name = "redis",
            db.operation.name = self.name
        )
    }
}

impl<R: Reply, O: Repeatable> Request<R, O> {
    /// Sends the request, and repeats it over new connections if no reply arrives or the server cannot write at the moment, at most
    /// five times in all, with pauses from 50 ms to 400 ms.
    ///
    /// # Errors
    /// The server replied with an error, or five attempts brought no reply.
    pub fn query_until_replied<C: ConnectionLike>(
        &self,
        mut connect: impl FnMut() -> Result<C, RedisError>,
    ) -> Result<R> {
        for pause in PAUSES {
            let reply = connect()
                .map_err(Error::from)
                .and_then(|mut connection| self.query(&mut connection));
            match reply {
                Err(error) if error.may_pass() => sleep(pause),
                reply => return reply,
            }
        }
        self.query(&mut connect()?)
    }

    /// The same over asynchronous connections of Tokio.
    ///
    /// # Errors
    /// The server replied with an error, or five attempts brought no reply.
    #[cfg(feature = "tokio-comp")]
    pub async fn query_until_replied_async<C: redis::aio::ConnectionLike>(
        &self,
        mut connect: impl AsyncFnMut() -> Result<C, RedisError>,
    ) -> Result<R> {
        for pause in PAUSES {
            let reply = match connect().await {
                Ok(mut connection) => self.query_async(&mut connection).await,
                Err(error) => Err(error.into()),
            };
            match reply {
                Err(error) if error.may_pass() => tokio::time::sleep(pause).await,
                reply => return reply,
            }
        }
        self.query_async(&mut connect().await?).await
    }
}

impl<R, O> Request<R, O> {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            name,
            command: redis::cmd(name),
            types: PhantomData,
        }
    }

    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// An option in milliseconds.
    pub(crate) fn time(self, option: &str, time: Duration) -> Self {
        self.arg(option).arg(milliseconds(time))
    }

    /// The same command, which takes other options from now on.
    pub(crate) fn with_options<P>(self) -> Request<R, P> {
        Request {
            #[cfg(feature = "tracing")]
            name: self.name,
            command: self.command,
            types: PhantomData,
        }
    }

    /// The same command, whose reply is read as another type.
    pub(crate) fn with_reply<S>(self) -> Request<S, O> {
        Request {
            #[cfg(feature = "tracing")]
            name: self.name,
            command: self.command,
            types: PhantomData,
        }
    }

    /// The command itself, for pipelines and transactions of the redis crate.
    pub fn as_cmd(&self) -> &Cmd {
        &self.command
    }
}

/// Whole milliseconds, rounded up, so that no time becomes zero.
fn milliseconds(time: Duration) -> u64 {
    time.as_nanos()
        .div_ceil(1_000_000)
        .try_into()
        .unwrap_or(u64::MAX)
}

macro_rules! replies {
    ($($type:ty),*) => {$(
        impl Reply for $type {
            fn read(value: Value) -> Result<Self> {
                read(value)
            }
        }
    )*};
}

replies!(
    (),
    bool,
    i64,
    u64,
    Option<bool>,
    Option<i64>,
    Option<u64>,
    Option<Vec<u8>>,
    Option<String>,
    Vec<bool>,
    Vec<u64>,
    Vec<Option<i64>>,
    Vec<Option<u64>>,
    Option<Vec<i64>>,
    Vec<(String, u64)>,
    Option<(u64, Vec<(String, Vec<u8>)>)>,
    Option<Info>
);

/// Reads a reply of the server into a type of the redis crate.
pub(crate) fn read<T: redis::FromRedisValue>(value: Value) -> Result<T> {
    from_redis_value(value).map_err(|error| Error::Redis(error.into()))
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use std::sync::Mutex;

    use redis::{Cmd, ConnectionLike, RedisResult, Value};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::Request;

    /// Records the fields of spans, and when they are entered and left.
    #[derive(Default)]
    struct Recorder(std::sync::Arc<Mutex<Vec<String>>>);

    impl Recorder {
        fn push(&self, text: impl Into<String>) {
            self.0.lock().expect("no panic").push(text.into());
        }
    }

    struct Fields<'a>(&'a Recorder);

    impl Visit for Fields<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Recorder {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut Fields(self));
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {}

        fn enter(&self, _: &Id) {
            self.push("enter");
        }

        fn exit(&self, _: &Id) {
            self.push("exit");
        }
    }

    /// A server that replies 1.
    struct One<'a>(&'a Recorder);

    impl ConnectionLike for One<'_> {
        fn req_packed_command(&mut self, _: &[u8]) -> RedisResult<Value> {
            self.0.push("request");
            Ok(Value::Int(1))
        }

        fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> RedisResult<Vec<Value>> {
            unreachable!("no pipeline")
        }

        fn req_command(&mut self, _: &Cmd) -> RedisResult<Value> {
            self.0.push("request");
            Ok(Value::Int(1))
        }

        fn get_db(&self) -> i64 {
            0
        }

        fn check_connection(&mut self) -> bool {
            true
        }

        fn is_open(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_request_has_a_span_with_its_command_and_without_its_key() {
        let seen = Recorder::default();
        let subscriber = Recorder(seen.0.clone());
        let request = Request::<bool>::new("RATE.ONCE").arg("key");
        let reply =
            tracing::subscriber::with_default(subscriber, || request.query(&mut One(&seen)));
        assert!(reply.expect("a reply"));
        let seen = seen.0.lock().expect("no panic").join(" ");
        assert!(seen.contains("db.operation.name=\"RATE.ONCE\""), "{seen}");
        assert!(seen.ends_with("enter request exit"), "{seen}");
        assert!(!seen.contains("key"), "{seen}");
    }
}
