//! Errors. A refusal, such as a sold-out stock, is a value and no error.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What a request of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request has failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server refused to wait, because the wait would never end.
    Deadlock,
    /// The server has as many waiting clients as `lock-max-waiters` permits.
    TooManyWaiting,
    /// An order id or an idempotency key was used before with other arguments.
    Conflict,
    /// The key holds a value of another type, or another kind of limit.
    WrongType,
    /// The loader failed a moment ago, and no older value exists.
    LoaderFailed,
    /// The lease of the work ended before its result was stored. Another caller may have done the work meanwhile.
    LeaseEnded,
    /// The delay queue does not exist.
    NoSuchQueue,
    /// The connection broke or the time was up before the reply arrived: it is unknown whether the server carried out the request.
    Lost(RedisError),
    /// Any other error reply, or a reply of another shape.
    Redis(RedisError),
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        if error.is_io_error() || is_without_reply(error.kind()) {
            return Self::Lost(error);
        }
        let text = error.to_string();
        match error.code() {
            Some("DEADLOCK") => Self::Deadlock,
            Some("CONFLICT") => Self::Conflict,
            Some("WRONGTYPE") => Self::WrongType,
            _ if text.contains("too many waiting clients") => Self::TooManyWaiting,
            _ if text.contains("another kind of limit") => Self::WrongType,
            _ if text.contains("no such delay queue") => Self::NoSuchQueue,
            _ => Self::Redis(error),
        }
    }
}

/// No node of the cluster, or no master behind Sentinel, was reached, or the connection broke in the middle of the reply.
fn is_without_reply(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::Parse
    )
}

impl Error {
    /// Whether the same request may succeed a moment later, at a promoted replica for example.
    pub(crate) fn may_pass(&self) -> bool {
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
        match self {
            Self::Lost(_) => true,
            Self::Redis(error) => matches!(
                error.kind(),
                ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain)
            ),
            _ => false,
        }
    }

    /// Whether the server cannot store a value now, or never this one: the memory is full, the value is larger than
    /// `cache-max-bytes`, replicas are missing, the last save failed, or the server is a replica by now.
    pub(crate) fn is_refused_store(&self) -> bool {
        let Self::Redis(error) = self else {
            return false;
        };
        matches!(
            error.code(),
            Some("OOM" | "NOREPLICAS" | "MISCONF" | "READONLY")
        ) || error.to_string().contains("larger than cache-max-bytes")
    }
}

#[cfg(feature = "tokio-comp")]
impl Error {
    /// Whether the connection is of no more use: it broke, or leads to a server that is a replica now.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Redis(error) => error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock => f.write_str("waiting for this lock would never end"),
            Self::TooManyWaiting => f.write_str("too many clients wait"),
            Self::Conflict => f.write_str("the id was used with other arguments"),
            Self::WrongType => f.write_str("the key holds a value of another type"),
            Self::LoaderFailed => f.write_str("the loader has failed"),
            Self::LeaseEnded => f.write_str("the lease ended before the result was stored"),
            Self::NoSuchQueue => f.write_str("the delay queue does not exist"),
            Self::Lost(error) | Self::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lost(error) | Self::Redis(error) => Some(error),
            _ => None,
        }
    }
}
