//! Holds that a thread of the process renews.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Client;

use crate::connect::{Connect, connect};
use crate::error::{Error, Result};
use crate::lock::unique_owner;
use crate::request::Request;
use crate::resource::{Fences, Resource, WasHeld};

/// A lock, several locks, or permits of a semaphore, which a thread renews at a third of their lease, and at least every ten seconds,
/// so that it also learns soon of a hold that was removed. They outlive a broken connection, and a failover under Sentinel.
///
/// The thread has a connection of its own. After an error it opens another one.
pub struct RenewedLock<C: Connect = Client> {
    hold: Arc<Hold<C>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The longest pause between two renewals.
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl<C> RenewedLock<C>
where
    C: Connect<Connection: Send> + Clone + Send + Sync + 'static,
{
    /// Waits for the lock; `None` if it was not free in time. With a `wait` of zero, it does not wait. If the connection breaks,
    /// the request is repeated with the same id, at most five times in all, and keeps its place in the queue.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    pub fn acquire(client: &C, key: &str, lease: Duration, wait: Duration) -> Result<Option<Self>> {
        Self::begin(client, Resource::Lock(key.into()), lease, wait)
    }

    /// The same for several locks: all or none. In a cluster the keys are in one slot.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub fn acquire_all(
        client: &C,
        keys: &[&str],
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Self>> {
        let keys = keys.iter().map(|&key| key.into()).collect();
        Self::begin(client, Resource::Locks(keys), lease, wait)
    }

    /// The same for permits of a semaphore that has `limit` permits.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub fn acquire_permits(
        client: &C,
        key: &str,
        limit: u64,
        permits: u64,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Self>> {
        let key = key.into();
        let resource = Resource::Permits {
            key,
            limit,
            permits,
        };
        Self::begin(client, resource, lease, wait)
    }

    fn begin(
        client: &C,
        resource: Resource,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<Self>> {
        let owner = unique_owner();
        let request = resource.acquire(&owner).lease(lease).wait(wait).id(&owner);
        let Fences(Some(fences)) = request.query_until_replied(|| connect(client, wait))? else {
            return Ok(None);
        };
        let hold = Arc::new(Hold {
            client: client.clone(),
            resource,
            owner,
            fences,
            lease,
            connection: Mutex::new(None),
            valid_until: Mutex::new(None),
        });
        let _ = hold.renew(); // the lease began when the request was served; after this, its end is known
        let (stop, stopped) = mpsc::channel();
        let renewed = Arc::clone(&hold);
        let thread = thread::spawn(move || {
            let pause = (lease / 3).min(MAX_PAUSE);
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let _ = renewed.renew(); // after a failure, the next attempt follows after the same pause
            }
        });
        Ok(Some(Self {
            hold,
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

impl<C: Connect> RenewedLock<C> {
    /// The fencing token: send it with each protected write. Of several locks, that of the first key.
    pub fn fence(&self) -> i64 {
        self.hold.fences.first().copied().unwrap_or_default()
    }

    /// The fencing tokens of several locks, in the order of their keys.
    pub fn fences(&self) -> &[i64] {
        &self.hold.fences
    }

    /// The time in which the server does not give the hold to another owner. Zero: it is lost, or no renewal succeeded in time.
    pub fn validity(&self) -> Duration {
        let until = *lock(&self.hold.valid_until);
        until.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }

    /// Whether the server still has the hold. Call it before each protected step.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke.
    pub fn check(&self) -> Result<bool> {
        self.hold.check()
    }

    /// Releases the hold and returns whether it was held until now. `drop` only releases it.
    ///
    /// # Errors
    /// The server replied with an error, or the connection broke. The lease then ends the hold.
    pub fn release(mut self) -> Result<bool> {
        self.end()
    }

    /// Stops the thread and releases the hold.
    fn end(&mut self) -> Result<bool> {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
        self.hold.release()
    }
}

impl<C: Connect> Drop for RenewedLock<C> {
    /// Stops the thread and releases the hold, unless it is released. If that fails, the lease ends it.
    fn drop(&mut self) {
        if self.stop.is_some() {
            let _ = self.end();
        }
    }
}

/// The hold that the thread renews.
struct Hold<C: Connect> {
    client: C,
    resource: Resource,
    owner: String,
    fences: Vec<i64>,
    lease: Duration,
    /// That of the last renewal, if it succeeded.
    connection: Mutex<Option<C::Connection>>,
    valid_until: Mutex<Option<Instant>>,
}

impl<C: Connect> Hold<C> {
    /// Renews the hold. The result is whether it was held.
    fn renew(&self) -> Result<bool> {
        self.send(|connection| self.renew_over(connection))
    }

    /// The result is whether it is held.
    fn check(&self) -> Result<bool> {
        self.send(|connection| {
            let held = |key: &String| self.resource.held(key, &self.owner);
            let requests: Option<Vec<_>> = self.resource.keys().iter().map(held).collect();
            match requests {
                Some(requests) => self.all_match(requests, connection),
                None => self.renew_over(connection),
            }
        })
    }

    /// Sends requests over the last connection, or over a new one if that has broken.
    fn send(&self, send: impl Fn(&mut C::Connection) -> Result<bool>) -> Result<bool> {
        let mut connection = lock(&self.connection);
        if let Some(mut last) = connection.take() {
            match send(&mut last) {
                Ok(is_held) => {
                    *connection = Some(last);
                    return Ok(is_held);
                }
                // A silent server would not reply over another connection, either.
                Err(Error::Lost(error)) if error.is_timeout() => return Err(error.into()),
                Err(_) => {}
            }
        }
        let mut new = self.connect()?;
        let is_held = send(&mut new)?;
        *connection = Some(new);
        Ok(is_held)
    }

    fn renew_over(&self, connection: &mut C::Connection) -> Result<bool> {
        let asked = Instant::now(); // before the requests, so the local end is never later than the server's
        let renewal = |key: &String| self.resource.renew(key, &self.owner, self.lease);
        let renewals = self.resource.keys().iter().map(renewal);
        let is_held = self.all_match(renewals, connection)?;
        *lock(&self.valid_until) = is_held.then(|| asked + self.lease);
        Ok(is_held)
    }

    /// Whether the reply for each key is the fencing token of its hold.
    fn all_match(
        &self,
        requests: impl IntoIterator<Item = Request<Option<i64>>>,
        connection: &mut C::Connection,
    ) -> Result<bool> {
        let mut all_match = true;
        for (request, fence) in requests.into_iter().zip(&self.fences) {
            all_match &= request.query(connection)? == Some(*fence);
        }
        Ok(all_match)
    }

    /// Releases the hold over a new connection: after a broken one, nobody knows whether it was held until now.
    fn release(&self) -> Result<bool> {
        *lock(&self.connection) = None;
        let released = self.resource.release(&self.owner);
        let WasHeld(was_held) = released.query(&mut self.connect()?)?;
        Ok(was_held)
    }

    /// The thread tries again although a server does not answer.
    fn connect(&self) -> Result<C::Connection> {
        let limit = (self.lease / 3).min(MAX_PAUSE);
        Ok(self.client.connect(limit, limit)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
