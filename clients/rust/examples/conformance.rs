//! The runner of the conformance suite, `clients/conformance`. The argument is the version of the protocol, 2 or 3.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ProtocolVersion, RedisError};
use serde_json::{Map, Value, json};
use sluice_client::cache;
use sluice_client::lock::{Lock, RenewedLock};
use sluice_client::stock::{Answer, Refusal};
use sluice_client::{
    Connect, Error, Repeatable, Reply, Request, delay, filter, limit, once, stock,
};

/// How long the client waits for a connection or a reply.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What the client can do. `bound`: a lock that ends with its connection. `linger`: one that survives a broken connection. `follow`:
/// and moves with its hash slot. `local-loss`: its holder counts it as lost without the server.
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

const FEATURES: [&str; 3] = ["linger", "follow", "local-loss"];

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

type Outcome = Result<Value, Failure>;

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

    fn time(&self, name: &str, otherwise_ms: u64) -> Duration {
        let ms = self.0.get(name).and_then(Value::as_u64);
        Duration::from_millis(ms.unwrap_or(otherwise_ms))
    }
}

/// A lock.
enum AnyLock<C: Connect> {
    Bound(Lock<C::Connection>),
    Renewed(RenewedLock<C>),
}

/// A lock until it is released.
type SharedLock<C> = Arc<Mutex<Option<AnyLock<C>>>>;

struct Runner<C: Connect> {
    client: C,
    locks: Mutex<HashMap<String, SharedLock<C>>>,
}

/// A runner for a server, a cluster or a master behind Sentinel.
trait AnyRunner: Send + Sync {
    fn carry_out(&self, operation: &str, words: &Words) -> Outcome;
}

fn open(words: &Words, protocol: ProtocolVersion) -> Result<Arc<dyn AnyRunner>, RedisError> {
    let (host, port) = (words.text("host"), words.number("port"));
    let number = u8::from(protocol == ProtocolVersion::RESP3) + 2;
    let url = format!("redis://{host}:{port}/?protocol=resp{number}");
    Ok(match words.text("topology").as_str() {
        "cluster" => {
            let builder = ClusterClientBuilder::new([url]).use_protocol(protocol);
            Runner::start(builder.build()?)
        }
        "sentinel" => {
            let port = u16::try_from(port).unwrap_or_default();
            let (sentinel, master) = (ConnectionAddr::Tcp(host, port), words.text("master"));
            let builder =
                SentinelClientBuilder::new([sentinel], master, SentinelServerType::Master);
            let client = builder?.set_client_to_redis_protocol(protocol).build()?;
            Runner::start(Arc::new(Mutex::new(client)))
        }
        _ => Runner::start(Client::open(url)?),
    })
}

impl<C> Runner<C>
where
    C: Connect<Connection: Send> + Clone + Send + Sync + 'static,
{
    fn start(client: C) -> Arc<dyn AnyRunner> {
        Arc::new(Self {
            client,
            locks: Mutex::default(),
        })
    }

    fn connection(&self) -> Result<C::Connection, RedisError> {
        self.client.connect(TIMEOUT, TIMEOUT)
    }

    /// Sends a request once.
    fn query<R: Reply, O>(&self, request: &Request<R, O>) -> Result<R, Error> {
        request.query(&mut self.connection()?)
    }

    /// Sends a request until it is replied.
    fn repeat<R: Reply, O: Repeatable>(&self, request: &Request<R, O>) -> Result<R, Error> {
        request.query_until_replied(|| self.connection())
    }

    fn change<O: Repeatable>(&self, request: &Request<Answer, O>) -> Outcome {
        changed(self.repeat(request)?)
    }

    // Locks

    fn acquire(&self, key: &str, words: &Words) -> Outcome {
        let (lease, wait) = (words.time("lease", 10_000), words.time("wait", 0));
        let lingers = words.0.get("linger").and_then(Value::as_bool);
        if lingers.unwrap_or(true) {
            let lock = RenewedLock::acquire(&self.client, key, lease, wait)?;
            return Ok(self.keep(lock, words)?[0].into());
        }
        let bound = Lock::acquire(&self.client, key, lease, wait)?;
        let bound = bound.ok_or_else(|| refused("timeout"))?;
        let fence = bound.fence();
        let shared = Arc::new(Mutex::new(Some(AnyLock::Bound(bound))));
        lock(&self.locks).insert(lock_name(words), shared);
        Ok(fence.into())
    }

    fn acquire_many(&self, words: &Words) -> Outcome {
        let (lease, wait) = (words.time("lease", 10_000), words.time("wait", 0));
        let keys = words.0.get("keys").and_then(Value::as_array);
        let keys: Vec<&str> = keys.into_iter().flatten().flat_map(Value::as_str).collect();
        let locks = RenewedLock::acquire_all(&self.client, &keys, lease, wait)?;
        Ok(self.keep(locks, words)?.into())
    }

    fn acquire_permits(&self, key: &str, words: &Words) -> Outcome {
        let (lease, wait) = (words.time("lease", 10_000), words.time("wait", 0));
        let (limit, permits) = (words.number("limit"), words.number("permits").max(1));
        let hold = RenewedLock::acquire_permits(&self.client, key, limit, permits, lease, wait)?;
        Ok(self.keep(hold, words)?[0].into())
    }

    /// Returns the fencing tokens.
    fn keep(&self, acquired: Option<RenewedLock<C>>, words: &Words) -> Result<Vec<i64>, Failure> {
        let renewed = acquired.ok_or_else(|| refused("timeout"))?;
        let fences = renewed.fences().to_vec();
        let shared = Arc::new(Mutex::new(Some(AnyLock::Renewed(renewed))));
        lock(&self.locks).insert(lock_name(words), shared);
        Ok(fences)
    }

    fn lock(&self, words: &Words) -> Result<SharedLock<C>, Failure> {
        let locks = lock(&self.locks);
        let shared = locks.get(&lock_name(words));
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
        let result = once::run(&self.client, key, &policy, |_| {
            runs += 1;
            thread::sleep(words.time("takes", 0));
            Ok::<_, Failure>(words.text("result").into_bytes())
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
        let mut connection = self.client.connect(TIMEOUT, Duration::from_secs(60))?;
        let value = cache::get(&mut connection, key, &policy, |_| {
            runs += 1;
            thread::sleep(words.time("takes", 0));
            Ok::<_, Failure>(Some(words.text("value").into_bytes()))
        })?;
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        Ok(json!({"value": value, "runs": runs}))
    }
}

impl<C> AnyRunner for Runner<C>
where
    C: Connect<Connection: Send> + Clone + Send + Sync + 'static,
{
    fn carry_out(&self, operation: &str, words: &Words) -> Outcome {
        let (key, order) = (words.text("key"), words.text("order"));
        match operation {
            "lock.acquire" => self.acquire(&key, words),
            "lock.acquire_many" => self.acquire_many(words),
            "semaphore.acquire" => self.acquire_permits(&key, words),
            "lock.release" => {
                let shared = self.lock(words)?;
                let lock = lock(&shared).take();
                lost_unless(match lock.ok_or(Failure::NoLock)? {
                    AnyLock::Bound(lock) => lock.release()?,
                    AnyLock::Renewed(lock) => lock.release()?,
                })
            }
            "lock.check" => {
                let shared = self.lock(words)?;
                lost_unless(match lock(&shared).as_mut() {
                    Some(AnyLock::Bound(lock)) => lock.check()?,
                    Some(AnyLock::Renewed(lock)) => lock.check()?,
                    None => return Err(Failure::NoLock),
                })
            }
            "lock.lost" => {
                let shared = self.lock(words)?;
                let is_lost = match lock(&shared).as_mut() {
                    Some(AnyLock::Bound(lock)) => !lock.check().unwrap_or(false),
                    Some(AnyLock::Renewed(lock)) => lock.validity().is_zero(),
                    None => return Err(Failure::NoLock),
                };
                Ok(is_lost.into())
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
                let answers = self.repeat(&stock::deduct_all(&items).order(order))?;
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
                self.query(&cache::invalidate(&key))?;
                Ok(Value::Null)
            }
            "delay.add" => {
                let message = words.text("message");
                let request = delay::add(&key, &message, words.time("ms", 0));
                self.query(&request.values(&[("text", &message)]))?;
                Ok(true.into())
            }
            "delay.cancel" => {
                let removed = self.repeat(&delay::cancel(&key, &[words.text("message")]))?;
                Ok((removed > 0).into())
            }
            "limit.gcra" => {
                let (burst, count) = (words.number("burst"), words.number("count"));
                let request = limit::gcra(&key, burst, count, words.time("period", 0));
                Ok(self.query(&request)?.allowed.into())
            }
            "limit.first" => Ok(self.query(&limit::first(&key, words.time("ms", 0)))?.into()),
            "bloom.add" => Ok(self.repeat(&filter::add(&key, words.text("item")))?.into()),
            "bloom.exists" => {
                let request = filter::may_contain(&key, words.text("item"));
                Ok(self.repeat(&request)?.into())
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
    let protocol = match std::env::args().nth(1).as_deref() {
        Some("3") => ProtocolVersion::RESP3,
        _ => ProtocolVersion::RESP2,
    };
    let operations: Vec<&str> = OPERATIONS.into_iter().chain(FEATURES).collect();
    write(&json!({
        "client": format!("redis-rs {}", redis_version()),
        "runtime": "Rust",
        "repeats": false,
        "topologies": ["server", "cluster", "sentinel"],
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
            let outcome = open(&words, protocol).map_err(Failure::from);
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
