//! Redlock: one lock over several servers that know nothing of each other, so that it can be had as long as a majority of
//! them answers. The algorithm is Salvatore Sanfilippo's (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>).
//!
//! On each server it is an ordinary `LOCK.ACQUIRE` with a lease. What it promises, and what it cannot, is told in
//! `docs/redlock.md`.

#![allow(unreachable_pub)] // meant to be copied to where it can be reached

use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, RedisResult, cmd};

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a lock is held unless it is renewed.
    pub lease: Duration,
    /// How long a server may take to answer. Far below the lease: what is waited for silent servers is lost of it.
    pub patience: Duration,
    /// The longest pause between two attempts. Each is drawn by chance, so that clients that got a server or two each,
    /// and none of them a majority, do not meet again and again.
    pub pause: Duration,
}

/// A client of all the servers.
pub struct Redlock {
    servers: Vec<Server>,
    settings: Settings,
}

/// A lock that is held, as far as this client can know.
#[derive(Debug)]
pub struct Held {
    key: String,
    owner: String,
    /// The fence of each server that granted it. They rise on each server, and cannot be compared with another server's:
    /// see [`Guard`].
    pub fences: Vec<Option<i64>>,
    valid_until: Instant,
}

impl Held {
    /// For how long nobody else can get it. After that, whatever is done under its protection must have been done.
    pub fn validity(&self) -> Duration {
        self.valid_until.saturating_duration_since(Instant::now())
    }
}

impl Redlock {
    /// A client of the servers at these addresses, such as `redis://10.0.0.1/`. An odd number of them; it connects when it
    /// has something to ask.
    pub fn new(addresses: &[String], settings: Settings) -> RedisResult<Self> {
        let server = |address: &String| {
            Ok(Server {
                client: Client::open(address.as_str())?,
                connection: None,
                patience: settings.patience,
            })
        };
        let servers = addresses.iter().map(server).collect::<RedisResult<_>>()?;
        Ok(Self { servers, settings })
    }

    /// Tries once. A lock that was granted by a minority, or too late, is given back.
    pub fn try_acquire(&mut self, key: &str) -> Option<Held> {
        // Another owner for each attempt: what a server grants late, to an earlier one, is not taken for this one's.
        let owner = format!("{:016x}{:016x}", random(), random());
        let asked = Instant::now();
        let mut acquire = cmd("LOCK.ACQUIRE");
        acquire.arg(key).arg(&owner).arg("PX").arg(self.lease_ms());
        let held = Held {
            fences: self.ask_all(&acquire),
            key: key.into(),
            owner,
            valid_until: self.valid_until(asked),
        };
        if self.is_majority(&held.fences) && !held.validity().is_zero() {
            return Some(held);
        }
        self.release(held);
        None
    }

    /// Tries until it is held, or `wait` is over.
    pub fn acquire(&mut self, key: &str, wait: Duration) -> Option<Held> {
        let start = Instant::now();
        loop {
            let held = self.try_acquire(key);
            if held.is_some() || start.elapsed() >= wait {
                return held;
            }
            thread::sleep(
                self.settings
                    .pause
                    .mul_f64(random() as f64 / u64::MAX as f64),
            );
        }
    }

    /// Begins the lease anew where it is still held. False: it is lost, or too few servers answered to know. Then stop what
    /// it protects, and release it.
    pub fn renew(&mut self, held: &mut Held) -> bool {
        let asked = Instant::now();
        let mut renew = cmd("LOCK.RENEW");
        renew.arg(&held.key).arg(&held.owner);
        let renewed = self.ask_all(renew.arg("PX").arg(self.lease_ms()));
        if self.is_majority(&renewed) {
            held.valid_until = self.valid_until(asked);
        }
        self.is_majority(&renewed) && !held.validity().is_zero()
    }

    /// Gives it back everywhere: also on servers that did not answer, since they may have granted it all the same.
    pub fn release(&mut self, held: Held) {
        let mut release = cmd("LOCK.RELEASE");
        self.ask_all(release.arg(&held.key).arg(&held.owner).arg("ALL"));
    }

    /// Counted from before the first server was asked, and less what clocks may differ by within a lease.
    fn valid_until(&self, asked: Instant) -> Instant {
        let drift = self.settings.lease / 100 + Duration::from_millis(2);
        asked + self.settings.lease.saturating_sub(drift)
    }

    fn is_majority(&self, granted: &[Option<i64>]) -> bool {
        granted.iter().flatten().count() > self.servers.len() / 2
    }

    fn lease_ms(&self) -> u128 {
        self.settings.lease.as_millis()
    }

    /// Asks all servers at the same time. `None`: a server has refused, or not answered.
    fn ask_all(&mut self, command: &Cmd) -> Vec<Option<i64>> {
        thread::scope(|scope| {
            let ask = |server| scope.spawn(|| Server::ask(server, command));
            let asked: Vec<_> = self.servers.iter_mut().map(ask).collect();
            let answer = asked.into_iter().map(|asked| asked.join());
            answer.map(Result::unwrap_or_default).collect()
        })
    }
}

/// One of the servers.
struct Server {
    client: Client,
    connection: Option<Connection>,
    patience: Duration,
}

impl Server {
    fn ask(&mut self, command: &Cmd) -> Option<i64> {
        if self.connection.is_none() {
            self.connection = self.connect().ok();
        }
        let reply = command.query(self.connection.as_mut()?);
        reply.unwrap_or_else(|error| {
            // After a time-out the connection stays: a release goes the same way as the acquisition that was not
            // answered, and so comes after it. The client drops replies that come too late.
            if !error.is_timeout() {
                self.connection = None;
            }
            None
        })
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.patience)?;
        connection.set_read_timeout(Some(self.patience))?;
        connection.set_write_timeout(Some(self.patience))?;
        Ok(connection)
    }
}

/// What a protected resource remembers, so that it obeys nobody who has lost the lock to somebody whom it has obeyed.
///
/// Two majorities have a server in common, and there the later holder has the larger fence. So the resource compares
/// server by server. No single number made of the fences, be it the largest or the sum, is sure to rise.
#[derive(Debug, Default)]
pub struct Guard {
    seen: Vec<i64>,
}

impl Guard {
    /// May somebody with these fences write? Compare and remember in one step, as in a transaction of the database.
    pub fn admits(&mut self, fences: &[Option<i64>]) -> bool {
        self.seen.resize(fences.len(), 0);
        let mut pairs = self.seen.iter().zip(fences);
        if pairs.any(|(seen, fence)| fence.is_some_and(|fence| fence < *seen)) {
            return false;
        }
        for (seen, fence) in self.seen.iter_mut().zip(fences) {
            *seen = fence.unwrap_or(*seen);
        }
        true
    }
}

/// A number that nobody can foresee: the standard library seeds its hash tables by the system's randomness.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
