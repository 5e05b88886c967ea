//! Cached values in this process.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, PushInfo, PushKind, RedisError, Value, from_redis_value};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::cache::{Fetched, Policy, Step};
use crate::connect::{REPLY_LIMIT, open_resp3, send_until_replied};
use crate::error::{Error, Result};
use crate::request::{Reply, Request, read};

/// After this time without a message or a reply, the server must answer a `PING` before entries are used again.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// A caller yields to the runtime at least this often, so that the runtime reads messages that have arrived.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);

/// The longest pause before a caller asks again whether another caller has loaded the value.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// Cached values in this process: a hit needs no round trip. The server announces each change of an entry over the connection (`CLIENT
/// TRACKING`), and the entry is dropped. When the connection breaks, all entries are dropped. If the server is silent for a second, it
/// must answer a `PING` before an entry is used.
///
/// A clone has the same entries and the same connection, which uses RESP3. The methods are called within Tokio's runtime, with its timers
/// enabled.
#[derive(Clone)]
pub struct Near {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    size: usize,
    state: Mutex<State>,
    /// Held while a connection is opened, or proved.
    opening: tokio::sync::Mutex<()>,
    hits: AtomicU64,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// How many connections were opened before.
    number: u64,
    /// When the server last proved that its messages arrive.
    heard: Option<Instant>,
    /// When a caller last yielded to the runtime, which then read the messages that had arrived.
    yielded_at: Option<Instant>,
    entries: Entries,
    /// The requests whose replies have not arrived, by their keys.
    requests: HashMap<String, Vec<Arc<AtomicBool>>>,
}

struct Entry {
    /// `None`: the database has no value.
    value: Option<Vec<u8>>,
    until: Instant,
}

/// Entries in the order of their insertion.
#[derive(Default)]
struct Entries {
    /// The entries and their numbers, by their keys.
    by_key: HashMap<Arc<str>, (Entry, u64)>,
    /// The keys by the numbers of their entries. A later entry has a larger number.
    by_number: BTreeMap<u64, Arc<str>>,
    next_number: u64,
}

impl Entries {
    fn len(&self) -> usize {
        self.by_key.len()
    }

    fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn get(&self, key: &str) -> Option<&Entry> {
        self.by_key.get(key).map(|(entry, _)| entry)
    }

    /// Inserts an entry, or replaces the one with this key. Then removes the oldest entries until at most `most` remain.
    fn insert(&mut self, key: &str, entry: Entry, most: usize) {
        self.remove(key);
        let key = Arc::<str>::from(key);
        let number = self.next_number;
        self.next_number += 1;
        self.by_number.insert(number, Arc::clone(&key));
        self.by_key.insert(key, (entry, number));
        while self.len() > most {
            let Some((_, oldest)) = self.by_number.pop_first() else {
                break;
            };
            self.by_key.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some((_, number)) = self.by_key.remove(key) {
            self.by_number.remove(&number);
        }
    }

    fn clear(&mut self) {
        self.by_key.clear();
        self.by_number.clear();
    }
}

impl State {
    /// Drops an entry. A request of this key whose reply has not arrived may have read the old value.
    fn drop_entry(&mut self, key: &str) {
        self.entries.remove(key);
        for is_old in self.requests.get(key).into_iter().flatten() {
            is_old.store(true, Ordering::Relaxed);
        }
    }

    fn drop_all(&mut self) {
        self.entries.clear();
        for is_old in self.requests.values().flatten() {
            is_old.store(true, Ordering::Relaxed);
        }
    }
}

/// A reply of `CACHE.FETCH`.
struct NearReply {
    fetched: Fetched,
    /// The value that this process may keep for this time. `Some((None, _))`: the database has no value.
    kept: Option<(Option<Vec<u8>>, Duration)>,
}

impl Reply for NearReply {
    fn read(value: Value) -> Result<Self> {
        let (state, kept, number): (String, Option<Vec<u8>>, u64) = read(value.clone())?;
        Ok(Self {
            fetched: Fetched::read(value)?,
            // The other states change without a message.
            kept: matches!(state.as_str(), "HIT" | "NULL")
                .then_some((kept, Duration::from_millis(number))),
        })
    }
}

/// A request whose reply has not arrived.
struct Mark<'a> {
    shared: &'a Shared,
    key: &'a str,
    is_old: Arc<AtomicBool>,
}

impl<'a> Mark<'a> {
    fn new(shared: &'a Shared, key: &'a str) -> Self {
        let is_old = Arc::default();
        let mut state = shared.state();
        let requests = state.requests.entry(key.into()).or_default();
        requests.push(Arc::clone(&is_old));
        Self {
            shared,
            key,
            is_old,
        }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(requests) = state.requests.get_mut(self.key) {
            requests.retain(|one| !Arc::ptr_eq(one, &self.is_old));
            if requests.is_empty() {
                state.requests.remove(self.key);
            }
        }
    }
}

impl Near {
    /// Creates a near cache with at most `size` entries. It connects to the server of `client` at the first read. If it is
    /// full, a new entry replaces the oldest one.
    pub fn new(client: Client, size: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                client,
                size: size.max(1),
                state: Mutex::default(),
                opening: tokio::sync::Mutex::default(),
                hits: AtomicU64::new(0),
            }),
        }
    }

    /// Returns a value from this process, from the server, or from the loader, as [`get`](crate::cache::get) does. Requests are repeated
    /// when the connection breaks.
    ///
    /// # Errors
    /// The loader failed, for this caller or a moment ago ([`Error::LoaderFailed`]), or the request failed.
    pub async fn get<E: From<Error>>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl AsyncFnOnce(&str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        self.shared.listen().await;
        let token = loop {
            if let Some(value) = self.shared.local_value(key) {
                return Ok(value);
            }
            match Policy::step(self.shared.fetch(key, policy).await?)? {
                Step::Load(token) => break token,
                Step::Return(value) => return Ok(value),
                Step::Again(time) => sleep(time.min(MAX_PAUSE)).await,
            }
        };
        match load(key).await {
            Ok(loaded) => {
                if let Some(token) = token {
                    let store = policy.store(key, loaded.as_deref(), token);
                    if let Err(error) = self.shared.send_until_replied(&store).await {
                        let fail = crate::cache::fail(key, token, Duration::ZERO);
                        let _ = self.shared.send(&fail).await;
                        if !error.is_refused_store() {
                            return Err(error.into());
                        }
                    }
                }
                Ok(loaded)
            }
            Err(error) => {
                if let Some(token) = token {
                    let fail = crate::cache::fail(key, token, policy.back_off);
                    let _ = self.shared.send(&fail).await;
                }
                Err(error)
            }
        }
    }

    /// Drops an entry of this process alone.
    pub fn forget(&self, key: &str) {
        self.shared.state().drop_entry(key);
    }

    /// The number of entries in this process.
    pub fn len(&self) -> usize {
        self.shared.state().entries.len()
    }

    /// Whether this process has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many reads needed no round trip.
    pub fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the runtime read the messages that have arrived, and closes a connection that is silent and does not answer.
    async fn listen(self: &Arc<Self>) {
        let is_silent = |state: &State| {
            let is_heard = |heard: Instant| heard.elapsed() < MAX_SILENCE;
            !state.entries.is_empty() && !state.heard.is_some_and(is_heard)
        };
        let (is_silent_now, must_yield) = {
            let mut state = self.state();
            let must_yield = state
                .yielded_at
                .is_none_or(|last| last.elapsed() > YIELD_INTERVAL);
            if must_yield {
                state.yielded_at = Some(Instant::now());
            }
            (is_silent(&state), must_yield)
        };
        if is_silent_now {
            let _opening = self.opening.lock().await;
            let (number, connection) = {
                let state = self.state();
                if !is_silent(&state) {
                    return; // another task has just proved it
                }
                (state.number, state.connection.clone())
            };
            let Some(mut connection) = connection else {
                self.state().drop_all();
                return;
            };
            let ping = redis::cmd("PING");
            let reply = timeout(MAX_SILENCE, ping.query_async::<Value>(&mut connection)).await;
            match reply {
                Ok(Ok(_)) => self.hear(number),
                _ => self.close(number),
            }
        } else if must_yield {
            yield_now().await;
        }
    }

    fn hear(&self, number: u64) {
        let mut state = self.state();
        if state.number == number {
            state.heard = Some(Instant::now());
        }
    }

    /// The value of an entry of this process.
    fn local_value(&self, key: &str) -> Option<Option<Vec<u8>>> {
        let state = self.state();
        let entry = state.entries.get(key)?;
        if entry.until <= Instant::now() {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry.value.clone())
    }

    /// Reads a value over the connection, and keeps it if the server announces its changes.
    async fn fetch(self: &Arc<Self>, key: &str, policy: &Policy) -> Result<Fetched> {
        let mark = Mark::new(self, key);
        let asked = Instant::now(); // before the request, so the local end is never later than the server's
        let request = crate::cache::fetch(key, policy.lease).with_reply::<NearReply>();
        let reply = self.send_until_replied(&request).await?;
        if let Some((value, time)) = reply.kept {
            let mut state = self.state();
            if !mark.is_old.load(Ordering::Relaxed) {
                let until = asked + time;
                let entry = Entry { value, until };
                state.entries.insert(key, entry, self.size);
            }
        }
        Ok(reply.fetched)
    }

    /// Sends a request over the connection.
    async fn send<R: Reply, O>(self: &Arc<Self>, request: &Request<R, O>) -> Result<R> {
        let (number, mut connection) = self.session().await?;
        let reply = request.query_async(&mut connection).await;
        match &reply {
            Ok(_) => self.hear(number), // the messages before it have arrived, too
            Err(error) if error.ends_connection() => self.close(number),
            Err(_) => {}
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
        let open = || {
            let state = self.state();
            Some((state.number, state.connection.clone()?))
        };
        if let Some(session) = open() {
            return Ok(session);
        }
        let _opening = self.opening.lock().await;
        if let Some(session) = open() {
            return Ok(session);
        }
        let number = self.state().number;
        let shared = Arc::downgrade(self);
        let receive = move |push| -> Result<(), ()> {
            shared.upgrade().ok_or(())?.receive(number, push);
            Ok(())
        };
        let mut connection = open_resp3(&self.client, receive).await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON");
        let tracked = tracking.query_async::<()>(&mut connection);
        let silent = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(REPLY_LIMIT, tracked).await.map_err(silent)??;
        let mut state = self.state();
        if state.number == number {
            state.connection = Some(connection.clone());
            state.heard = Some(Instant::now());
        }
        Ok((number, connection))
    }

    /// Closes the connection with this number, and drops all entries.
    fn close(&self, number: u64) {
        let mut state = self.state();
        if state.number == number {
            state.connection = None;
            state.heard = None;
            state.number += 1;
            state.drop_all();
        }
    }

    fn receive(&self, number: u64, push: PushInfo) {
        match push.kind {
            PushKind::Disconnection => self.close(number),
            PushKind::Invalidate => {
                let mut state = self.state();
                let keys = push.data.into_iter().next();
                match keys.and_then(|keys| from_redis_value::<Option<Vec<Vec<u8>>>>(keys).ok()) {
                    Some(Some(keys)) => {
                        for key in keys {
                            state.drop_entry(&String::from_utf8_lossy(&key));
                        }
                    }
                    _ => state.drop_all(), // FLUSHALL
                }
                if state.number == number {
                    state.heard = Some(Instant::now());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            value: None,
            until: Instant::now(),
        }
    }

    /// A cache of the 50 numbers from 50 to 99, after 0 to 99 were inserted.
    fn filled() -> Entries {
        let mut entries = Entries::default();
        for n in 0..100 {
            entries.insert(&n.to_string(), entry(), 50);
        }
        entries
    }

    fn has_exactly(entries: &Entries, keys: impl IntoIterator<Item = u32>) -> bool {
        let mut count = 0;
        let has_all = keys.into_iter().all(|key| {
            count += 1;
            entries.get(&key.to_string()).is_some()
        });
        has_all && entries.len() == count && entries.by_number.len() == count
    }

    #[test]
    fn a_new_entry_replaces_the_oldest() {
        let entries = filled();
        assert!(has_exactly(&entries, 50..100));
    }

    #[test]
    fn a_replaced_entry_is_new() {
        let mut entries = filled();
        entries.insert("50", entry(), 50);
        assert!(has_exactly(&entries, 50..100));
        entries.insert("100", entry(), 50);
        assert!(has_exactly(&entries, [50].into_iter().chain(52..101)));
    }

    #[test]
    fn a_dropped_entry_makes_room() {
        let mut entries = filled();
        entries.remove("70");
        entries.insert("100", entry(), 50);
        assert!(has_exactly(&entries, (50..70).chain(71..101)));
    }
}
