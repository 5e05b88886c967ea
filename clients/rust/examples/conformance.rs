//! The runner of the conformance suite, `clients/conformance`. The last argument is the version of the protocol, 2 or 3. With `tokio`
//! before it, the connections are asynchronous, and all locks share one connection, which uses RESP3 in any case.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ProtocolVersion, RedisError};
use serde_json::{Map, Value, json};
use sluice_client::cache;
use sluice_client::lock::{AsyncLock, HeldLock, Lock, Locks, RenewedLock};
use sluice_client::stock::{Answer, Refusal};
use sluice_client::{
    Connect, Error, Repeatable, Reply, Request, delay, filter, limit, once, stock,
};
use tokio::runtime::{Builder, Runtime};

/// How long the client waits for a connection or a reply.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The same for a request that waits for other clients.
const LONG: Duration = Duration::from_secs(60);

/// What the client can do. `bound`: a lock that ends with its connection. `linger`: one that survives a broken connection. `follow`:
/// and moves with its hash slot. `local-loss`: its holder counts it as lost without the server. `notify`: waiting requests share one
/// connection.
const OPERATIONS: [&str; 22] = [
    "lock.acquire",
    "lock.acquire_many",
    "semaphore.acquire",
    "lock.release",
    "lock.check",
    "lock.lost",
    "stock.deduct",
    "stock.deduct_many",
    "stock.reserve",
    "stock.confirm",
    "stock.cancel",
    "stock.add",
    "once.run",
    "cache.get",
    "cache.delete",
    "delay.add",
    "delay.cancel",
    "limit.gcra",
    "limit.first",
    "bloom.add",
    "bloom.exists",
    "bound",
];

const FEATURES: [&str; 3] = ["linger", "local-loss", "follow"];

const TOKIO_FEATURES: [&str; 3] = ["linger", "local-loss", "notify"];

/// Those of the program.
#[derive(Clone, Copy)]
struct Arguments {
    is_asynchronous: bool,
    protocol: ProtocolVersion,
}

/// Why an operation did not succeed.
enum Failure {
    Refused(String),
    Failed(Error),
    /// There is no lock with this name, or it was released.
    NoLock,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Failed(error.into())
    }
}

type Outcome<T = Value> = Result<T, Failure>;

fn refused(reason: &str) -> Failure {
    Failure::Refused(reason.into())
}

/// The arguments of an operation.
struct Words(Map<String, Value>);

impl Words {
    fn text(&self, name: &str) -> String {
        self.optional_text(name).unwrap_or_default()
    }

    fn optional_text(&self, name: &str) -> Option<String> {
        self.0.get(name)?.as_str().map(String::from)
    }

    fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or_default()
    }

    fn limits(&self) -> Limits {
        Limits {
            lease: self.time("lease", 10_000),
            wait: self.time("wait", 0),
        }
    }

    fn time(&self, name: &str, otherwise_ms: u64) -> Duration {
        let ms = self.0.get(name).and_then(Value::as_u64);
        Duration::from_millis(ms.unwrap_or(otherwise_ms))
    }
}

/// What differs between the connections of the crate.
trait Crate: Send + Sync + 'static {
    type Hold: Send;

    /// Sends a request once.
    fn query<R: Reply, O>(&self, request: &Request<R, O>) -> Result<R, Error>;
    /// Sends a request until it is replied.
    fn repeat<R: Reply, O: Repeatable>(&self, request: &Request<R, O>) -> Result<R, Error>;

    fn acquire(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error>;
    /// A lock that ends with its connection.
    fn acquire_bound(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error>;
    fn acquire_all(&self, keys: &[&str], limits: Limits) -> Result<Option<Self::Hold>, Error>;
    fn acquire_permits(
        &self,
        key: &str,
        limit: u64,
        permits: u64,
        limits: Limits,
    ) -> Result<Option<Self::Hold>, Error>;
    fn fences(&self, hold: &Self::Hold) -> Vec<i64>;
    fn check(&self, hold: &mut Self::Hold) -> Result<bool, Error>;
    fn is_lost(&self, hold: &mut Self::Hold) -> bool;
    fn release(&self, hold: Self::Hold) -> Result<bool, Error>;

    fn run_once(&self, key: &str, policy: &once::Policy, work: impl Work) -> Outcome<Vec<u8>>;
    fn cached(
        &self,
        key: &str,
        policy: &cache::Policy,
        load: impl Work,
    ) -> Outcome<Option<Vec<u8>>>;
}

/// Work whose result is stored.
trait Work: FnOnce() -> Vec<u8> {}
impl<F: FnOnce() -> Vec<u8>> Work for F {}

/// The lease of a hold, and how long its client waits for it.
#[derive(Clone, Copy)]
struct Limits {
    lease: Duration,
    wait: Duration,
}

/// Synchronous connections.
struct Synchronous<C: Connect> {
    client: C,
}

enum SynchronousLock<C: Connect> {
    Bound(Lock<C::Connection>),
    Renewed(RenewedLock<C>),
}

impl<C: Connect> Synchronous<C> {
    fn connection(&self) -> Result<C::Connection, RedisError> {
        self.client.connect(TIMEOUT, TIMEOUT)
    }
}

impl<C> Crate for Synchronous<C>
where
    C: Connect<Connection: Send> + Clone + Send + Sync + 'static,
{
    type Hold = SynchronousLock<C>;

    fn query<R: Reply, O>(&self, request: &Request<R, O>) -> Result<R, Error> {
        request.query(&mut self.connection()?)
    }

    fn repeat<R: Reply, O: Repeatable>(&self, request: &Request<R, O>) -> Result<R, Error> {
        request.query_until_replied(|| self.connection())
    }

    fn acquire(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let lock = RenewedLock::acquire(&self.client, key, limits.lease, limits.wait)?;
        Ok(lock.map(SynchronousLock::Renewed))
    }

    fn acquire_bound(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let lock = Lock::acquire(&self.client, key, limits.lease, limits.wait)?;
        Ok(lock.map(SynchronousLock::Bound))
    }

    fn acquire_all(&self, keys: &[&str], limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let locks = RenewedLock::acquire_all(&self.client, keys, limits.lease, limits.wait)?;
        Ok(locks.map(SynchronousLock::Renewed))
    }

    fn acquire_permits(
        &self,
        key: &str,
        limit: u64,
        permits: u64,
        Limits { lease, wait }: Limits,
    ) -> Result<Option<Self::Hold>, Error> {
        let hold = RenewedLock::acquire_permits(&self.client, key, limit, permits, lease, wait)?;
        Ok(hold.map(SynchronousLock::Renewed))
    }

    fn fences(&self, hold: &Self::Hold) -> Vec<i64> {
        match hold {
            SynchronousLock::Bound(lock) => vec![lock.fence()],
            SynchronousLock::Renewed(lock) => lock.fences().to_vec(),
        }
    }

    fn check(&self, hold: &mut Self::Hold) -> Result<bool, Error> {
        match hold {
            SynchronousLock::Bound(lock) => lock.check(),
            SynchronousLock::Renewed(lock) => lock.check(),
        }
    }

    fn is_lost(&self, hold: &mut Self::Hold) -> bool {
        match hold {
            SynchronousLock::Bound(lock) => !lock.check().unwrap_or(false),
            SynchronousLock::Renewed(lock) => lock.validity().is_zero(),
        }
    }

    fn release(&self, hold: Self::Hold) -> Result<bool, Error> {
        match hold {
            SynchronousLock::Bound(lock) => lock.release(),
            SynchronousLock::Renewed(lock) => lock.release(),
        }
    }

    fn run_once(&self, key: &str, policy: &once::Policy, work: impl Work) -> Outcome<Vec<u8>> {
        once::run(&self.client, key, policy, |_| Ok(work()))
    }

    fn cached(
        &self,
        key: &str,
        policy: &cache::Policy,
        load: impl Work,
    ) -> Outcome<Option<Vec<u8>>> {
        let mut connection = self.client.connect(TIMEOUT, LONG)?;
        cache::get(&mut connection, key, policy, |_| Ok(Some(load())))
    }
}

/// Asynchronous connections of Tokio to a server, or to the master behind Sentinel. All locks share one connection.
struct Tokio {
    place: Place,
    locks: Locks,
    runtime: Runtime,
}

enum TokioLock {
    Bound(AsyncLock<MultiplexedConnection>),
    Shared(HeldLock),
}

enum Place {
    Server(Client),
    Master(tokio::sync::Mutex<SentinelClient>),
}

impl Tokio {
    fn new(place: Place, locks: Locks) -> Self {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        Self {
            place,
            locks,
            runtime,
        }
    }

    async fn client(&self) -> Result<Client, RedisError> {
        match &self.place {
            Place::Server(client) => Ok(client.clone()),
            Place::Master(sentinel) => sentinel.lock().await.async_get_client().await,
        }
    }

    async fn connection(&self, limit: Duration) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(limit));
        let client = self.client().await?;
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// A connection that connects again by itself.
    async fn lasting_connection(&self) -> Result<ConnectionManager, RedisError> {
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(LONG));
        let client = self.client().await?;
        client.get_connection_manager_with_config(config).await
    }
}

impl Crate for Tokio {
    type Hold = TokioLock;

    fn query<R: Reply, O>(&self, request: &Request<R, O>) -> Result<R, Error> {
        self.runtime.block_on(async {
            let mut connection = self.connection(TIMEOUT).await?;
            request.query_async(&mut connection).await
        })
    }

    fn repeat<R: Reply, O: Repeatable>(&self, request: &Request<R, O>) -> Result<R, Error> {
        let connect = async || self.connection(TIMEOUT).await;
        self.runtime
            .block_on(request.query_until_replied_async(connect))
    }

    fn acquire(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let lock = self.locks.acquire(key, limits.lease, limits.wait);
        Ok(self.runtime.block_on(lock)?.map(TokioLock::Shared))
    }

    fn acquire_bound(&self, key: &str, limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let lock = async {
            let connection = self.connection(limits.wait + TIMEOUT).await?;
            AsyncLock::acquire(connection, key, limits.lease, limits.wait).await
        };
        Ok(self.runtime.block_on(lock)?.map(TokioLock::Bound))
    }

    fn acquire_all(&self, keys: &[&str], limits: Limits) -> Result<Option<Self::Hold>, Error> {
        let locks = self.locks.acquire_all(keys, limits.lease, limits.wait);
        Ok(self.runtime.block_on(locks)?.map(TokioLock::Shared))
    }

    fn acquire_permits(
        &self,
        key: &str,
        limit: u64,
        permits: u64,
        Limits { lease, wait }: Limits,
    ) -> Result<Option<Self::Hold>, Error> {
        let hold = self.locks.acquire_permits(key, limit, permits, lease, wait);
        Ok(self.runtime.block_on(hold)?.map(TokioLock::Shared))
    }

    fn fences(&self, hold: &Self::Hold) -> Vec<i64> {
        match hold {
            TokioLock::Bound(lock) => vec![lock.fence()],
            TokioLock::Shared(lock) => lock.fences().to_vec(),
        }
    }

    fn check(&self, hold: &mut Self::Hold) -> Result<bool, Error> {
        match hold {
            TokioLock::Bound(lock) => self.runtime.block_on(lock.check()),
            TokioLock::Shared(lock) => self.runtime.block_on(lock.check()),
        }
    }

    fn is_lost(&self, hold: &mut Self::Hold) -> bool {
        match hold {
            TokioLock::Bound(lock) => !self.runtime.block_on(lock.check()).unwrap_or(false),
            TokioLock::Shared(lock) => lock.validity().is_zero(),
        }
    }

    fn release(&self, hold: Self::Hold) -> Result<bool, Error> {
        match hold {
            TokioLock::Bound(lock) => self.runtime.block_on(lock.release()),
            TokioLock::Shared(lock) => self.runtime.block_on(lock.release()),
        }
    }

    fn run_once(&self, key: &str, policy: &once::Policy, work: impl Work) -> Outcome<Vec<u8>> {
        self.runtime.block_on(async {
            let mut connection = self.lasting_connection().await?;
            once::run_async(&mut connection, key, policy, async |_| Ok(work())).await
        })
    }

    fn cached(
        &self,
        key: &str,
        policy: &cache::Policy,
        load: impl Work,
    ) -> Outcome<Option<Vec<u8>>> {
        self.runtime.block_on(async {
            let mut connection = self.lasting_connection().await?;
            cache::get_async(&mut connection, key, policy, async |_| Ok(Some(load()))).await
        })
    }
}

/// A lock until it is released.
type SharedHold<H> = Arc<Mutex<Option<H>>>;

struct Runner<C: Crate> {
    requests: C,
    holds: Mutex<HashMap<String, SharedHold<C::Hold>>>,
}

/// A runner for a server, a cluster or a master behind Sentinel.
trait AnyRunner: Send + Sync {
    fn carry_out(&self, operation: &str, words: &Words) -> Outcome;
}

fn open(words: &Words, arguments: Arguments) -> Result<Arc<dyn AnyRunner>, RedisError> {
    let (host, port) = (words.text("host"), words.number("port"));
    let protocol = arguments.protocol;
    let number = u8::from(protocol == ProtocolVersion::RESP3) + 2;
    let url = format!("redis://{host}:{port}/?protocol=resp{number}");
    Ok(match words.text("topology").as_str() {
        "cluster" => {
            let builder = ClusterClientBuilder::new([url]).use_protocol(protocol);
            let client = builder.build()?;
            Runner::start(Synchronous { client })
        }
        "sentinel" => {
            let port = u16::try_from(port).unwrap_or_default();
            let (sentinel, master) = (ConnectionAddr::Tcp(host, port), words.text("master"));
            let open = || {
                let sentinels = [sentinel.clone()];
                let role = SentinelServerType::Master;
                let builder = SentinelClientBuilder::new(sentinels, master.clone(), role)?;
                builder.set_client_to_redis_protocol(protocol).build()
            };
            if arguments.is_asynchronous {
                let place = Place::Master(tokio::sync::Mutex::new(open()?));
                Runner::start(Tokio::new(place, Locks::under_sentinel(open()?)))
            } else {
                let client = Arc::new(Mutex::new(open()?));
                Runner::start(Synchronous { client })
            }
        }
        _ if arguments.is_asynchronous => {
            let client = Client::open(url)?;
            let locks = Locks::new(client.clone());
            Runner::start(Tokio::new(Place::Server(client), locks))
        }
        _ => {
            let client = Client::open(url)?;
            Runner::start(Synchronous { client })
        }
    })
}

impl<C: Crate> Runner<C> {
    fn start(requests: C) -> Arc<dyn AnyRunner> {
        Arc::new(Self {
            requests,
            holds: Mutex::default(),
        })
    }

    fn change<O: Repeatable>(&self, request: &Request<Answer, O>) -> Outcome {
        changed(self.requests.repeat(request)?)
    }

    // Locks

    fn acquire(&self, key: &str, words: &Words) -> Outcome {
        let lingers = words.0.get("linger").and_then(Value::as_bool);
        let acquired = match lingers.unwrap_or(true) {
            true => self.requests.acquire(key, words.limits())?,
            false => self.requests.acquire_bound(key, words.limits())?,
        };
        Ok(self.keep(acquired, words)?[0].into())
    }

    fn acquire_many(&self, words: &Words) -> Outcome {
        let keys = words.0.get("keys").and_then(Value::as_array);
        let keys: Vec<&str> = keys.into_iter().flatten().flat_map(Value::as_str).collect();
        let acquired = self.requests.acquire_all(&keys, words.limits())?;
        Ok(self.keep(acquired, words)?.into())
    }

    fn acquire_permits(&self, key: &str, words: &Words) -> Outcome {
        let (limit, permits) = (words.number("limit"), words.number("permits").max(1));
        let requests = &self.requests;
        let acquired = requests.acquire_permits(key, limit, permits, words.limits())?;
        Ok(self.keep(acquired, words)?[0].into())
    }

    /// Returns the fencing tokens.
    fn keep(&self, acquired: Option<C::Hold>, words: &Words) -> Result<Vec<i64>, Failure> {
        let hold = acquired.ok_or_else(|| refused("timeout"))?;
        let fences = self.requests.fences(&hold);
        let shared = Arc::new(Mutex::new(Some(hold)));
        lock(&self.holds).insert(lock_name(words), shared);
        Ok(fences)
    }

    fn hold(&self, words: &Words) -> Result<SharedHold<C::Hold>, Failure> {
        let holds = lock(&self.holds);
        let shared = holds.get(&lock_name(words));
        shared.cloned().ok_or(Failure::NoLock)
    }

    // Work and values

    fn run_once(&self, key: &str, words: &Words) -> Outcome {
        let policy = once::Policy {
            lease: words.time("lease", 30_000),
            fingerprint: words.optional_text("fingerprint"),
            ..once::Policy::default()
        };
        let mut runs = 0;
        let result = self.requests.run_once(key, &policy, || {
            runs += 1;
            thread::sleep(words.time("takes", 0));
            words.text("result").into_bytes()
        })?;
        Ok(json!({"result": String::from_utf8_lossy(&result), "runs": runs}))
    }

    fn cached(&self, key: &str, words: &Words) -> Outcome {
        let policy = cache::Policy {
            fresh: Duration::from_secs(600),
            lease: words.time("lease", 30_000),
            ..cache::Policy::default()
        };
        let mut runs = 0;
        let value = self.requests.cached(key, &policy, || {
            runs += 1;
            thread::sleep(words.time("takes", 0));
            words.text("value").into_bytes()
        })?;
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        Ok(json!({"value": value, "runs": runs}))
    }
}

impl<C: Crate> AnyRunner for Runner<C> {
    fn carry_out(&self, operation: &str, words: &Words) -> Outcome {
        let (key, order) = (words.text("key"), words.text("order"));
        match operation {
            "lock.acquire" => self.acquire(&key, words),
            "lock.acquire_many" => self.acquire_many(words),
            "semaphore.acquire" => self.acquire_permits(&key, words),
            "lock.release" => {
                let shared = self.hold(words)?;
                let hold = lock(&shared).take();
                lost_unless(self.requests.release(hold.ok_or(Failure::NoLock)?)?)
            }
            "lock.check" => {
                let shared = self.hold(words)?;
                let mut hold = lock(&shared);
                lost_unless(self.requests.check(hold.as_mut().ok_or(Failure::NoLock)?)?)
            }
            "lock.lost" => {
                let shared = self.hold(words)?;
                let mut hold = lock(&shared);
                let hold = hold.as_mut().ok_or(Failure::NoLock)?;
                Ok(self.requests.is_lost(hold).into())
            }
            "stock.deduct" => {
                let request = stock::deduct(&key, words.number("qty")).order(order);
                match words.optional_text("user") {
                    Some(user) => self.change(&request.user(user)),
                    None => self.change(&request),
                }
            }
            "stock.deduct_many" => {
                let items = words.0.get("items").and_then(Value::as_object);
                let quantity = |quantity: &Value| quantity.as_u64().unwrap_or_default();
                let items: Vec<(&String, u64)> = items
                    .into_iter()
                    .flatten()
                    .map(|(key, number)| (key, quantity(number)))
                    .collect();
                let answers = self
                    .requests
                    .repeat(&stock::deduct_all(&items).order(order))?;
                answers.into_iter().map(changed).collect()
            }
            "stock.reserve" => {
                let time = words.time("ms", 0);
                let request = stock::reserve(&key, words.number("qty"), order, time);
                match words.optional_text("user") {
                    Some(user) => self.change(&request.user(user)),
                    None => self.change(&request),
                }
            }
            "stock.confirm" => self.change(&stock::confirm(&key, order)),
            "stock.cancel" => self.change(&stock::cancel(&key, order)),
            "stock.add" => {
                let delta = words.0.get("delta").and_then(Value::as_i64);
                self.change(&stock::add(&key, delta.unwrap_or_default()).order(order))
            }
            "once.run" => self.run_once(&key, words),
            "cache.get" => self.cached(&key, words),
            "cache.delete" => {
                self.requests.query(&cache::invalidate(&key))?;
                Ok(Value::Null)
            }
            "delay.add" => {
                let message = words.text("message");
                let request = delay::add(&key, &message, words.time("ms", 0));
                self.requests
                    .query(&request.values(&[("text", &message)]))?;
                Ok(true.into())
            }
            "delay.cancel" => {
                let removed = self
                    .requests
                    .repeat(&delay::cancel(&key, &[words.text("message")]))?;
                Ok((removed > 0).into())
            }
            "limit.gcra" => {
                let (burst, count) = (words.number("burst"), words.number("count"));
                let request = limit::gcra(&key, burst, count, words.time("period", 0));
                Ok(self.requests.query(&request)?.allowed.into())
            }
            "limit.first" => Ok(self
                .requests
                .query(&limit::first(&key, words.time("ms", 0)))?
                .into()),
            "bloom.add" => Ok(self
                .requests
                .repeat(&filter::add(&key, words.text("item")))?
                .into()),
            "bloom.exists" => {
                let request = filter::may_contain(&key, words.text("item"));
                Ok(self.requests.repeat(&request)?.into())
            }
            _ => Err(refused("unknown operation")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_name(words: &Words) -> String {
    words.optional_text("name").unwrap_or("lock".into())
}

fn lost_unless(is_held: bool) -> Outcome {
    if is_held {
        Ok(true.into())
    } else {
        Err(refused("lost"))
    }
}

fn changed(answer: Answer) -> Outcome {
    answer.map(Value::from).map_err(|refusal| {
        refused(match refusal {
            Refusal::SoldOut => "SOLD_OUT",
            Refusal::OverUserLimit => "OVER_USER_LIMIT",
            Refusal::OrderClosed => "CLOSED",
            _ => "UNKNOWN",
        })
    })
}

fn answer(number: &Value, outcome: Outcome) -> Value {
    match outcome {
        Ok(value) => json!({"id": number, "ok": value}),
        Err(Failure::Refused(reason)) => json!({"id": number, "refused": reason}),
        Err(Failure::NoLock) => json!({"id": number, "error": "NoLock"}),
        Err(Failure::Failed(Error::Lost(_))) => json!({"id": number, "error": "connection"}),
        Err(Failure::Failed(error)) => {
            let name = match &error {
                Error::Conflict => "Conflict",
                Error::WrongType => "WrongType",
                Error::NoSuchQueue => "NoSuchQueue",
                Error::Deadlock => "Deadlock",
                _ => "another",
            };
            json!({"id": number, "error": name, "text": error.to_string()})
        }
    }
}

fn write(line: &Value) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("the suite reads");
}

/// The version of the redis crate, of the workspace's lock file.
fn redis_version() -> &'static str {
    let packages = include_str!("../../../Cargo.lock");
    let (_, redis) = packages
        .split_once("name = \"redis\"\nversion = \"")
        .expect("the client uses it");
    redis.split('"').next().unwrap_or_default()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let arguments = Arguments {
        is_asynchronous: words.iter().any(|word| word == "tokio"),
        protocol: match words.last().map(String::as_str) {
            Some("3") => ProtocolVersion::RESP3,
            _ => ProtocolVersion::RESP2,
        },
    };
    let (features, topologies) = match arguments.is_asynchronous {
        true => (TOKIO_FEATURES, &["server", "sentinel"][..]),
        false => (FEATURES, &["server", "cluster", "sentinel"][..]),
    };
    let operations: Vec<&str> = OPERATIONS.into_iter().chain(features).collect();
    write(&json!({
        "client": format!("redis-rs {}", redis_version()),
        "runtime": "Rust",
        "repeats": false,
        "topologies": topologies,
        "operations": operations,
    }));
    let mut runner: Option<Arc<dyn AnyRunner>> = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let mut words: Map<String, Value> = serde_json::from_str(&line).expect("an object");
        let number = words.remove("id").unwrap_or_default();
        let operation = words.remove("do").unwrap_or_default();
        let (operation, words) = (operation.as_str().unwrap_or_default(), Words(words));
        if operation == "connect" {
            // The locks of the last connection are dropped in the background: a silent server would delay the answer.
            let last = runner.take();
            thread::spawn(move || drop(last));
            let outcome = open(&words, arguments).map_err(Failure::from);
            write(&answer(
                &number,
                outcome.map(|new| {
                    runner = Some(new);
                    Value::Null
                }),
            ));
            continue;
        }
        let Some(runner) = runner.clone() else {
            write(&answer(&number, Err(refused("not connected"))));
            continue;
        };
        let operation = operation.to_string();
        thread::spawn(move || {
            let outcome = runner.carry_out(&operation, &words);
            drop(runner);
            write(&answer(&number, outcome));
        });
    }
}
