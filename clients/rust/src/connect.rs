//! Connections that this crate opens by itself.

use std::time::Duration;

use redis::{Client, Connection, ConnectionLike, RedisError};

/// Opens connections: a [`Client`], with the feature `cluster` a `redis::cluster::ClusterClient`, and with the feature `sentinel` a
/// `redis::sentinel::SentinelClient` in an `Arc<Mutex<_>>`.
///
/// A connection of a cluster repeats each request whose connection broke, as often as its client is configured to.
pub trait Connect {
    /// A connection to a server or to a cluster.
    type Connection: ConnectionLike;

    /// Opens a connection within `limit`. It waits at most `reply_limit` for each reply.
    ///
    /// # Errors
    /// No server was reached in time, or it refused the connection.
    fn connect(
        &self,
        limit: Duration,
        reply_limit: Duration,
    ) -> Result<Self::Connection, RedisError>;
}

impl Connect for Client {
    type Connection = Connection;

    fn connect(&self, limit: Duration, reply_limit: Duration) -> Result<Connection, RedisError> {
        let connection = self.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(reply_limit))?;
        Ok(connection)
    }
}

#[cfg(feature = "cluster")]
impl Connect for redis::cluster::ClusterClient {
    type Connection = redis::cluster::ClusterConnection;

    fn connect(
        &self,
        limit: Duration,
        reply_limit: Duration,
    ) -> Result<Self::Connection, RedisError> {
        let config = redis::cluster::ClusterConfig::new()
            .set_connection_timeout(limit)
            .set_response_timeout(reply_limit);
        self.get_connection_with_config(config)
    }
}

#[cfg(feature = "sentinel")]
impl Connect for std::sync::Arc<std::sync::Mutex<redis::sentinel::SentinelClient>> {
    type Connection = Connection;

    /// A connection to the present master. The limits do not apply to the requests to Sentinel.
    fn connect(&self, limit: Duration, reply_limit: Duration) -> Result<Connection, RedisError> {
        let client = self
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .get_client()?;
        client.connect(limit, reply_limit)
    }
}

/// The maximum number of attempts for a request that is repeated if no reply arrives.
#[cfg(feature = "tokio-comp")]
const ATTEMPTS: usize = 5;

/// The pause before a request is repeated.
#[cfg(feature = "tokio-comp")]
pub(crate) const REPEAT_PAUSE: Duration = Duration::from_millis(50);

/// Sends a request, and repeats it if no reply arrives or the server cannot write at the moment.
#[cfg(feature = "tokio-comp")]
pub(crate) async fn send_until_replied<T, F>(send: impl Fn() -> F) -> crate::error::Result<T>
where
    F: Future<Output = crate::error::Result<T>>,
{
    for _ in 1..ATTEMPTS {
        match send().await {
            Err(error) if error.may_pass() => tokio::time::sleep(REPEAT_PAUSE).await,
            reply => return reply,
        }
    }
    send().await
}

/// How long a server may take to connect or to reply, beside the time for which a request waits.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(2);

/// A connection for a request that waits at most this long.
pub(crate) fn connect<C: Connect>(client: &C, wait: Duration) -> Result<C::Connection, RedisError> {
    client.connect(REPLY_LIMIT, wait.saturating_add(REPLY_LIMIT))
}

/// A connection of Tokio that uses RESP3 and passes the messages of the server to `receive`.
#[cfg(feature = "tokio-comp")]
pub(crate) async fn open_resp3(
    client: &Client,
    receive: impl Fn(redis::PushInfo) -> Result<(), ()> + Send + Sync + 'static,
) -> Result<redis::aio::MultiplexedConnection, RedisError> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(REPLY_LIMIT))
        .set_response_timeout(Some(REPLY_LIMIT))
        .set_push_sender(receive);
    let info = client.get_connection_info().clone();
    let settings = info.redis_settings().clone();
    let resp3 = settings.set_protocol(redis::ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(resp3))?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
