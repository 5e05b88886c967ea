//! Locks for the `redis` crate: one that the server renews ([`Watched`]), and one that a thread renews ([`Renewed`]).
//!
//! Copy this file; `docs/clients.md` has the details.

#![allow(unreachable_pub)] // for copies in other modules

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult, cmd};

/// A lock that the server renews while this value exists. When its connection closes, the server releases it: after `drop`,
/// a panic, or the end of the process.
pub struct Watched {
    connection: Connection,
    key: String,
    owner: String,
    fence: i64,
}

impl Watched {
    /// Waits for the lock; `None` if it was not free in time. Only this lock uses the connection, because the hold is bound to it.
    pub fn acquire(
        client: &Client,
        key: &str,
        lease: Duration,
        wait: Duration,
    ) -> RedisResult<Option<Self>> {
        let mut connection = client.get_connection()?;
        let owner = unique();
        let fence: Option<i64> = acquire(key, &owner, lease, wait)
            .arg("WATCHDOG")
            .query(&mut connection)?;
        let key = key.to_owned();
        Ok(fence.map(|fence| Self {
            connection,
            key,
            owner,
            fence,
        }))
    }

    /// The fencing token: send it with each protected write.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Returns whether the lock is held. Call it before each protected step. An error means no: the connection is closed.
    pub fn check(&mut self) -> RedisResult<bool> {
        let mut held = cmd("LOCK.HELD");
        let fence: Option<i64> = held
            .arg(&self.key)
            .arg(&self.owner)
            .query(&mut self.connection)?;
        Ok(fence == Some(self.fence))
    }

    /// Releases the lock and returns whether it was held until now. `drop` only releases it.
    pub fn release(mut self) -> RedisResult<bool> {
        release(&self.key, &self.owner, &mut self.connection)
    }
}

/// A lock that a thread renews at a third of its lease, on any connection.
pub struct Renewed {
    hold: Arc<Hold>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewed {
    /// Waits for the lock; `None` if it was not free in time.
    pub fn acquire(
        client: &Client,
        key: &str,
        lease: Duration,
        wait: Duration,
    ) -> RedisResult<Option<Self>> {
        let owner = unique();
        let fence = acquire(key, &owner, lease, wait).query(&mut client.get_connection()?)?;
        let Some(fence) = fence else { return Ok(None) };
        let valid_until = Mutex::new(None);
        let hold = Arc::new(Hold {
            client: client.clone(),
            key: key.into(),
            owner,
            fence,
            lease,
            valid_until,
        });
        hold.renew()?; // the lease began when the request was served; after this, its end is known
        let (stop, stopped) = mpsc::channel();
        let renewed = Arc::clone(&hold);
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(lease / 3) == Err(RecvTimeoutError::Timeout) {
                let _ = renewed.renew(); // after a failure, the next attempt follows a third of the lease later
            }
        });
        Ok(Some(Self {
            hold,
            stop: Some(stop),
            thread: Some(thread),
        }))
    }

    /// The fencing token: send it with each protected write.
    pub fn fence(&self) -> i64 {
        self.hold.fence
    }

    /// The time in which no other owner can acquire the lock. Zero: it is lost, or no renewal succeeded in time.
    pub fn validity(&self) -> Duration {
        let end = *self
            .hold
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        end.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }
}

impl Drop for Renewed {
    /// Stops the thread and releases the lock. If that fails, the lease ends the hold.
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
        let connection = self.hold.connect();
        let _ = connection
            .and_then(|mut connection| release(&self.hold.key, &self.hold.owner, &mut connection));
    }
}

/// The hold that the thread renews.
struct Hold {
    client: Client,
    key: String,
    owner: String,
    fence: i64,
    lease: Duration,
    valid_until: Mutex<Option<Instant>>,
}

impl Hold {
    fn renew(&self) -> RedisResult<()> {
        let asked = Instant::now(); // before the request, so the local end is never later than the server's
        let mut renew = cmd("LOCK.RENEW");
        renew
            .arg(&self.key)
            .arg(&self.owner)
            .arg("PX")
            .arg(self.lease.as_millis());
        let fence: Option<i64> = renew.query(&mut self.connect()?)?;
        let end = (fence == Some(self.fence)).then(|| asked + self.lease);
        *self
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = end;
        Ok(())
    }

    /// The thread tries again although a server does not answer.
    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.lease / 3)?;
        connection.set_read_timeout(Some(self.lease / 3))?;
        Ok(connection)
    }
}

fn acquire(key: &str, owner: &str, lease: Duration, wait: Duration) -> redis::Cmd {
    let mut acquire = cmd("LOCK.ACQUIRE");
    acquire.arg(key).arg(owner).arg("PX").arg(lease.as_millis());
    acquire.arg("BLOCK").arg(wait.as_millis());
    acquire
}

fn release(key: &str, owner: &str, connection: &mut Connection) -> RedisResult<bool> {
    let left: Option<i64> = cmd("LOCK.RELEASE")
        .arg(key)
        .arg(owner)
        .arg("ALL")
        .query(connection)?;
    Ok(left.is_some())
}

/// The owner of one hold. With one owner for the process, all its threads would hold the lock together.
fn unique() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
