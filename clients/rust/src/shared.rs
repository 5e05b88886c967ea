//! Locks of many tasks over one connection.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, PushInfo, PushKind, RedisError};
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
#[cfg(feature = "sentinel")]
use tokio::time::timeout;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

#[cfg(feature = "sentinel")]
use crate::connect::REPLY_LIMIT;
use crate::connect::{REPEAT_PAUSE, open_resp3, send_until_replied};
use crate::error::{Error, Result};
use crate::lock::unique_owner;
use crate::request::{Reply, Request};
use crate::resource::{Fences, Resource, WasHeld};

/// How long after the end of its wait a request waits for the message with its outcome, and then asks.
const GRACE: Duration = Duration::from_millis(500);

/// A waiting request is repeated after this time, because messages can be lost.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// The longest pause between two renewals.
const MAX_RENEWAL_PAUSE: Duration = Duration::from_secs(10);

/// All locks of a program, over one connection: a request that waits does not occupy it, because the server publishes its outcome
/// ([`NOTIFY`](crate::Request::notify)). The connection uses RESP3, and is opened at the first use and again after it broke.
///
/// A clone has the same connection. The methods are called within Tokio's runtime, with its timers enabled.
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

/// Where the server is.
enum Place {
    Server(Client),
    #[cfg(feature = "sentinel")]
    Master(tokio::sync::Mutex<redis::sentinel::SentinelClient>),
}

impl Place {
    /// A client of the server, or of the present master.
    async fn client(&self) -> Result<Client, RedisError> {
        match self {
            Self::Server(client) => Ok(client.clone()),
            #[cfg(feature = "sentinel")]
            Self::Master(sentinel) => {
                let found = async { sentinel.lock().await.async_get_client().await };
                let silent = |_| io::Error::from(io::ErrorKind::TimedOut);
                timeout(REPLY_LIMIT, found).await.map_err(silent)?
            }
        }
    }
}

struct Shared {
    place: Place,
    channel: String,
    session: Mutex<Session>,
    /// Held while a connection is opened.
    opening: tokio::sync::Mutex<()>,
    /// The attempts to open a connection.
    openings: AtomicU64,
    /// The receivers of the messages, by the ids of the requests and holds.
    receivers: Mutex<HashMap<String, UnboundedSender<Message>>>,
}

/// The connection, and how many were opened before.
#[derive(Default)]
struct Session {
    connection: Option<MultiplexedConnection>,
    number: u64,
}

/// What the server publishes of a request or a hold, or that the connection broke and messages may be lost.
enum Message {
    /// The fencing token is that of the first key.
    Granted(i64),
    TimedOut,
    WouldDeadlock,
    /// The hold with this fencing token is lost.
    Lost(i64),
    /// The request must be repeated.
    Repeat,
}

impl Locks {
    /// The locks on the server of this client. Nothing is sent before the first lock is acquired.
    pub fn new(client: Client) -> Self {
        Self::at(Place::Server(client))
    }

    /// The locks on the master that Sentinel names. After a failover they connect to the new master.
    #[cfg(feature = "sentinel")]
    pub fn under_sentinel(client: redis::sentinel::SentinelClient) -> Self {
        Self::at(Place::Master(tokio::sync::Mutex::new(client)))
    }

    fn at(place: Place) -> Self {
        Self {
            shared: Arc::new(Shared {
                place,
                channel: format!("sluice:{}", unique_owner()),
                session: Mutex::default(),
                opening: tokio::sync::Mutex::default(),
                openings: AtomicU64::new(0),
                receivers: Mutex::default(),
            }),
        }
    }

    /// Waits for a lock; `None` if it was not free in time. With a `wait` of zero, it does not wait. If the connection breaks, the
    /// request is repeated with the same id.
    ///
    /// If the future is dropped, its request leaves the queue.
    ///
    /// # Errors
    /// The server replied with an error, or it could not be reached until the end of the wait.
    pub async fn acquire(
        &self,
        key: &str,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<HeldLock>> {
        self.begin(Resource::Lock(key.into()), lease, wait).await
    }

    /// The same for several locks: all or none.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub async fn acquire_all(
        &self,
        keys: &[&str],
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<HeldLock>> {
        let keys = keys.iter().map(|&key| key.into()).collect();
        self.begin(Resource::Locks(keys), lease, wait).await
    }

    /// The same for permits of a semaphore that has `limit` permits.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub async fn acquire_permits(
        &self,
        key: &str,
        limit: u64,
        permits: u64,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<HeldLock>> {
        let key = key.into();
        let resource = Resource::Permits {
            key,
            limit,
            permits,
        };
        self.begin(resource, lease, wait).await
    }

    async fn begin(
        &self,
        resource: Resource,
        lease: Duration,
        wait: Duration,
    ) -> Result<Option<HeldLock>> {
        let (sender, mut messages) = unbounded_channel();
        let mut claim = Claim {
            locks: self.clone(),
            resource,
            owner: unique_owner(),
            fences: Vec::new(),
            lease,
            runtime: Handle::current(),
            is_over: AtomicBool::new(false),
        };
        lock(&self.shared.receivers).insert(claim.owner.clone(), sender);
        let Some(valid_until) = claim.acquire(wait, &mut messages).await? else {
            return Ok(None);
        };
        let claim = Arc::new(claim);
        let (told, validity) = watch::channel(Some(valid_until));
        let renewal = tokio::spawn(renew(Arc::clone(&claim), messages, valid_until, told));
        Ok(Some(HeldLock {
            claim,
            validity,
            renewal,
        }))
    }
}

impl Shared {
    /// Sends a request over the connection.
    async fn send<R: Reply, O>(self: &Arc<Self>, request: &Request<R, O>) -> Result<R> {
        let (number, mut connection) = self.session().await?;
        let reply = request.query_async(&mut connection).await;
        if reply.as_ref().is_err_and(Error::ends_connection) {
            self.close(number);
        }
        reply
    }

    async fn send_until_replied<R: Reply, O>(
        self: &Arc<Self>,
        request: &Request<R, O>,
    ) -> Result<R> {
        send_until_replied(|| self.send(request)).await
    }

    /// The open connection, or a new one.
    async fn session(self: &Arc<Self>) -> Result<(u64, MultiplexedConnection), RedisError> {
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        let openings = self.openings.load(Ordering::Relaxed);
        let _opening = self.opening.lock().await;
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        if openings != self.openings.load(Ordering::Relaxed) {
            // Another task has just tried: not every task waits for its own failure.
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        self.openings.fetch_add(1, Ordering::Relaxed);
        let number = lock(&self.session).number;
        let shared = Arc::downgrade(self);
        let receive = move |push| -> Result<(), ()> {
            let shared = shared.upgrade().ok_or(())?;
            shared.receive(number, push);
            Ok(())
        };
        let mut connection = open_resp3(&self.place.client().await?, receive).await?;
        connection.subscribe(&self.channel).await?;
        let mut session = lock(&self.session);
        if session.number == number {
            session.connection = Some(connection.clone());
        }
        Ok((number, connection))
    }

    fn open_session(&self) -> Option<(u64, MultiplexedConnection)> {
        let session = lock(&self.session);
        let connection = session.connection.clone()?;
        Some((session.number, connection))
    }

    /// Closes the connection with this number. The queues of the server have no requests of a closed connection: all are repeated.
    fn close(&self, number: u64) {
        let mut session = lock(&self.session);
        if session.number != number {
            return;
        }
        *session = Session {
            connection: None,
            number: number + 1,
        };
        drop(session);
        for receiver in lock(&self.receivers).values() {
            let _ = receiver.send(Message::Repeat);
        }
    }

    fn receive(&self, number: u64, push: PushInfo) {
        match push.kind {
            PushKind::Disconnection => self.close(number),
            PushKind::Message => {
                let text: Option<String> = push
                    .data
                    .into_iter()
                    .nth(1)
                    .and_then(|value| redis::from_redis_value(value).ok());
                let Some((message, id)) = text.as_deref().and_then(parse) else {
                    return;
                };
                if let Some(receiver) = lock(&self.receivers).get(id) {
                    let _ = receiver.send(message);
                }
            }
            _ => {}
        }
    }
}

/// Reads `<what> <fence> <request-id>`. The ids of this module have no spaces.
fn parse(text: &str) -> Option<(Message, &str)> {
    let mut words = text.splitn(3, ' ');
    let (what, fence, id) = (words.next()?, words.next()?, words.next()?);
    let message = match what {
        "granted" => Message::Granted(fence.parse().ok()?),
        "timeout" => Message::TimedOut,
        "deadlock" => Message::WouldDeadlock,
        "lost" => Message::Lost(fence.parse().ok()?),
        "moved" => Message::Repeat,
        _ => return None,
    };
    Some((message, id))
}

/// A request or a hold. When this value is dropped, the request leaves the queue and the hold is released.
struct Claim {
    locks: Locks,
    resource: Resource,
    /// Also the id of the request.
    owner: String,
    /// Empty until the request is granted.
    fences: Vec<i64>,
    lease: Duration,
    runtime: Handle,
    /// Whether the request is not queued and nothing is held.
    is_over: AtomicBool,
}

impl Claim {
    /// Asks for the hold until the end of the wait. The result is the time until which the hold is valid.
    async fn acquire(
        &mut self,
        wait: Duration,
        messages: &mut UnboundedReceiver<Message>,
    ) -> Result<Option<Instant>> {
        let begin = Instant::now();
        let mut is_first = true;
        loop {
            let left = wait.saturating_sub(begin.elapsed());
            let request = self.resource.acquire(&self.owner);
            let request = request.lease(self.lease).wait(left).id(&self.owner);
            let request = request.notify(&self.locks.shared.channel);
            match self.locks.shared.send(&request).await {
                Ok(Fences(Some(fences))) => {
                    self.fences = fences;
                    break;
                }
                Ok(Fences(None)) if left.is_zero() => {
                    self.is_over.store(is_first, Ordering::Relaxed);
                    return Ok(None);
                }
                Ok(Fences(None)) => {}
                Err(error) if error.may_pass() && !left.is_zero() => {
                    is_first = false;
                    sleep(REPEAT_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            is_first = false;
            let silence = Instant::now() + left.saturating_add(GRACE).min(MAX_SILENCE);
            match timeout_at(silence, messages.recv()).await {
                Ok(Some(Message::Granted(fence))) if self.resource.keys().len() == 1 => {
                    self.fences = vec![fence];
                    break;
                }
                Ok(Some(Message::TimedOut)) => return Ok(None),
                Ok(Some(Message::WouldDeadlock)) => return Err(Error::Deadlock),
                _ => {} // the repetition replies with the fencing tokens, or keeps its place in the queue
            }
        }
        if is_first {
            return Ok(Some(begin + self.lease));
        }
        // The lease began when the request was served. After a renewal, its end is known.
        self.renew().await
    }

    /// Renews the hold. The result is the time until which it is valid; `None`: it is lost.
    async fn renew(&self) -> Result<Option<Instant>> {
        let asked = Instant::now(); // before the requests, so the local end is never later than the server's
        for (key, fence) in self.resource.keys().iter().zip(&self.fences) {
            let request = self.resource.renew(key, &self.owner, self.lease);
            let held = self.locks.shared.send_until_replied(&request).await?;
            if held != Some(*fence) {
                return Ok(None);
            }
        }
        Ok(Some(asked + self.lease))
    }

    async fn check(&self) -> Result<bool> {
        for (key, fence) in self.resource.keys().iter().zip(&self.fences) {
            let request = self.resource.held(key, &self.owner);
            let request =
                request.unwrap_or_else(|| self.resource.renew(key, &self.owner, self.lease));
            let held = self.locks.shared.send_until_replied(&request).await?;
            if held != Some(*fence) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Releases the hold and returns whether it was held until now.
    async fn release(&self) -> Result<bool> {
        let request = self.resource.release(&self.owner);
        let reply = self.locks.shared.send(&request).await;
        let was_held = match reply {
            Ok(WasHeld(was_held)) => was_held,
            Err(error) if error.may_pass() => {
                // The first request may have been carried out: then this one finds nothing.
                sleep(REPEAT_PAUSE).await;
                self.locks.shared.send_until_replied(&request).await?;
                true
            }
            Err(error) => return Err(error),
        };
        self.is_over.store(true, Ordering::Relaxed);
        Ok(was_held)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.locks.shared);
        lock(&shared.receivers).remove(&self.owner);
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let cancel = self.resource.cancel(&self.owner);
        let release = self.resource.release(&self.owner);
        self.runtime.spawn(async move {
            let _ = shared.send(&cancel).await;
            let _ = shared.send(&release).await; // if that fails, the lease ends the hold
        });
    }
}

/// Renews a hold until it is lost, and tells until when it is valid; `None`: it is lost.
async fn renew(
    claim: Arc<Claim>,
    mut messages: UnboundedReceiver<Message>,
    mut valid_until: Instant,
    told: watch::Sender<Option<Instant>>,
) {
    let pause = (claim.lease / 3).min(MAX_RENEWAL_PAUSE);
    let mut due = Instant::now() + pause;
    loop {
        select! {
            () = sleep_until(valid_until) => break,
            message = messages.recv() => match message {
                Some(Message::Lost(fence)) if claim.fences.contains(&fence) => break,
                Some(Message::Repeat) => due = Instant::now() + REPEAT_PAUSE, // a message may be lost: ask soon
                _ => {}
            },
            () = sleep_until(due) => {
                due = Instant::now() + pause;
                match timeout_at(valid_until, claim.renew()).await {
                    Ok(Ok(Some(until))) => {
                        valid_until = until;
                        told.send_replace(Some(until));
                    }
                    Ok(Ok(None)) => break,
                    Ok(Err(_)) | Err(_) => {} // the next attempt follows after the same pause, or the time is over
                }
            }
        }
    }
    told.send_replace(None);
}

/// A lock, several locks, or permits of a semaphore, which [`Locks`] acquired. One of Tokio's tasks renews them at a third of their
/// lease, and at least every ten seconds. They outlive a broken connection.
///
/// When this value is dropped, a task releases them.
pub struct HeldLock {
    claim: Arc<Claim>,
    validity: watch::Receiver<Option<Instant>>,
    renewal: JoinHandle<()>,
}

impl HeldLock {
    /// The fencing token: send it with each protected write. Of several locks, that of the first key.
    pub fn fence(&self) -> i64 {
        self.claim.fences.first().copied().unwrap_or_default()
    }

    /// The fencing tokens of several locks, in the order of their keys.
    pub fn fences(&self) -> &[i64] {
        &self.claim.fences
    }

    /// The time in which the server does not give the hold to another owner. Zero: it is lost, or no renewal succeeded in time.
    pub fn validity(&self) -> Duration {
        let until = *self.validity.borrow();
        until.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }

    /// Waits until the hold is lost: somebody removed it, or no renewal succeeded in time.
    pub async fn lost(&self) {
        let mut validity = self.validity.clone();
        let _ = validity.wait_for(Option::is_none).await; // an error: the runtime ends
    }

    /// Whether the server still has the hold. Call it before each protected step.
    ///
    /// # Errors
    /// The server replied with an error, or could not be reached.
    pub async fn check(&self) -> Result<bool> {
        Ok(!self.validity().is_zero() && self.claim.check().await?)
    }

    /// Releases the hold and returns whether it was held until now.
    ///
    /// # Errors
    /// The server replied with an error, or could not be reached. The lease then ends the hold.
    pub async fn release(self) -> Result<bool> {
        let was_held = !self.validity().is_zero();
        self.renewal.abort();
        Ok(self.claim.release().await? && was_held)
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
