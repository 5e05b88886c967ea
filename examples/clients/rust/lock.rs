//! Locks for the `redis` crate: one that the server renews ([`Watched`]), and one that a thread renews ([`Renewed`]).
//!
//! Copy this file; `docs/clients.md` says what to watch.

#![allow(unreachable_pub)] // meant to be copied to where it can be reached

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult, cmd};

/// A lock that the server renews for as long as this value lives: it is free as soon as its connection is closed, be it by
/// `drop`, by a panic, or by the end of the process.
pub struct Watched {
    connection: Connection,
    key: String,
    owner: String,
    fence: i64,
}

impl Watched {
    /// Waits for it; `None` if it was not free in time. The connection is this lock's alone: the hold is bound to it.
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

    /// For whatever the lock protects.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Is it still held? Ask before each step that only the holder may take. An error is a no: the connection is gone.
    pub fn check(&mut self) -> RedisResult<bool> {
        let mut held = cmd("LOCK.HELD");
        let fence: Option<i64> = held
            .arg(&self.key)
            .arg(&self.owner)
            .query(&mut self.connection)?;
        Ok(fence == Some(self.fence))
    }

    /// Gives it back, and says whether it was held until now. Dropping it does the same and says nothing.
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
    /// Waits for it; `None` if it was not free in time.
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
        hold.renew()?; // the lease began when we were served; from here on we know when it ends
        let (stop, stopped) = mpsc::channel();
        let renewed = Arc::clone(&hold);
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(lease / 3) == Err(RecvTimeoutError::Timeout) {
                let _ = renewed.renew(); // if it cannot: again, a third of the lease later
            }
        });
        Ok(Some(Self {
            hold,
            stop: Some(stop),
            thread: Some(thread),
        }))
    }

    /// For whatever the lock protects.
    pub fn fence(&self) -> i64 {
        self.hold.fence
    }

    /// For how long nobody else can get it. Zero: it is lost, or nobody could tell us in time that it is not.
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
    /// Stops the thread and gives the lock back. If that fails, the lease ends it.
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
        let connection = self.hold.connect();
        let _ = connection
            .and_then(|mut connection| release(&self.hold.key, &self.hold.owner, &mut connection));
    }
}

/// What the thread renews.
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
        let asked = Instant::now(); // before the request: our clock is never later than the server's
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

    /// A server that does not answer must not keep the thread from trying again.
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

/// The owner of one hold: not of this process, whose threads would all hold the lock together.
fn unique() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
