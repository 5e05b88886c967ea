//! What a lock holds, and the requests for it.

use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::lock::{self, Acquire};
use crate::request::{Reply, Request};
use crate::semaphore;

/// A lock, several locks, or permits of a semaphore.
pub(crate) enum Resource {
    Lock(String),
    Locks(Vec<String>),
    Permits {
        key: String,
        limit: u64,
        permits: u64,
    },
}

/// The fencing token of each key; `None` if it was not free.
pub(crate) struct Fences(pub(crate) Option<Vec<i64>>);

impl Reply for Fences {
    fn read(value: Value) -> Result<Self> {
        Ok(Self(match value {
            Value::Int(fence) => Some(vec![fence]),
            value => Option::read(value)?,
        }))
    }
}

/// Whether all keys were held until their release.
pub(crate) struct WasHeld(pub(crate) bool);

impl Reply for WasHeld {
    fn read(value: Value) -> Result<Self> {
        let left = match value {
            Value::Nil => return Ok(Self(false)),
            Value::Int(_) => return Ok(Self(true)),
            value => Vec::<Option<i64>>::read(value)?,
        };
        Ok(Self(left.iter().all(Option::is_some)))
    }
}

impl Resource {
    pub(crate) fn keys(&self) -> &[String] {
        match self {
            Self::Lock(key) | Self::Permits { key, .. } => std::slice::from_ref(key),
            Self::Locks(keys) => keys,
        }
    }

    pub(crate) fn acquire(&self, owner: &str) -> Request<Fences, Acquire> {
        match self {
            Self::Lock(key) => lock::acquire(key, owner).with_reply(),
            Self::Locks(keys) => lock::acquire_all(keys, owner).with_reply(),
            Self::Permits {
                key,
                limit,
                permits,
            } => semaphore::acquire_permits(key, owner, *limit, *permits).with_reply(),
        }
    }

    /// Renews the hold of one of the keys.
    pub(crate) fn renew(&self, key: &str, owner: &str, lease: Duration) -> Request<Option<i64>> {
        match self {
            Self::Permits { .. } => semaphore::renew(key, owner, lease),
            _ => lock::renew(key, owner, lease),
        }
    }

    /// Asks for the fencing token of one of the keys; `None`: no command asks without a renewal.
    pub(crate) fn held(&self, key: &str, owner: &str) -> Option<Request<Option<i64>>> {
        match self {
            Self::Permits { .. } => None,
            _ => Some(lock::held(key, owner)),
        }
    }

    pub(crate) fn release(&self, owner: &str) -> Request<WasHeld> {
        match self {
            Self::Lock(key) => lock::release_all(key, owner).with_reply(),
            Self::Locks(keys) => lock::release_each(keys, owner).with_reply(),
            Self::Permits { key, .. } => semaphore::release_all(key, owner).with_reply(),
        }
    }

    /// Removes a queued request.
    #[cfg(feature = "tokio-comp")]
    pub(crate) fn cancel(&self, id: &str) -> Request<bool> {
        let key = self.keys().first();
        let key = key.map_or("", String::as_str);
        match self {
            Self::Permits { .. } => semaphore::cancel(key, id),
            _ => lock::cancel(key, id),
        }
    }
}
