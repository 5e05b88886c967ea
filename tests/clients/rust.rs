//! The crate clients/rust.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use redis::cluster::ClusterClient;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use sluice_client::cache::{self, Fetched, Near, Policy};
use sluice_client::delay::{self, Added};
use sluice_client::filter::{self, cuckoo};
use sluice_client::lock::{self, AsyncLock, Lock, RenewedLock};
use sluice_client::once::{self, Begun, Failure};
use sluice_client::stock::{self, Refusal};
use sluice_client::{Connect, Error, Result, limit, semaphore};

use crate::LOST;
use crate::lossy::Lossy;
use crate::support::cluster::{self, HIGH, LOW, Move, two_nodes};
use crate::support::{SOON, Server, eventually, wait_for_replica_sync};

/// Longer than any test: what is free before was released.
const LONG: Duration = Duration::from_secs(600);

/// Renewed every four seconds: a busy machine may stand still for some seconds.
const LEASE: Duration = Duration::from_secs(12);

/// Longer than the lease, so that only renewals can keep a hold.
const PAST_LEASE: Duration = Duration::from_secs(14);

const NO_WAIT: Duration = Duration::from_millis(10);

fn client(port: u16) -> Client {
    Client::open(format!("redis://127.0.0.1:{port}/")).expect("a URL")
}

/// Waits longer than the crate for a connection and for replies: a busy machine may stand still for longer than two seconds.
#[derive(Clone)]
struct Patient<C>(C);

impl<C: Connect> Connect for Patient<C> {
    type Connection = C::Connection;

    fn connect(&self, limit: Duration, reply_limit: Duration) -> RedisResult<C::Connection> {
        self.0.connect(limit + SOON, reply_limit + SOON)
    }
}

/// The same for asynchronous connections.
fn patience() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON * 2))
}

fn is_free(server: &Server) -> bool {
    server.command(["EXISTS", "key"]) == 0
}

fn watched(server: &Server) -> Option<Lock> {
    let client = Patient(client(server.port()));
    Lock::acquire(&client, "key", LONG, NO_WAIT).expect("the server answers")
}

fn renewed(server: &Server, lease: Duration) -> Option<RenewedLock> {
    RenewedLock::acquire(&client(server.port()), "key", lease, NO_WAIT).expect("the server answers")
}

fn kill_all_connections(server: &Server) {
    server.command(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

#[test]
fn holders_exclude_each_other() {
    let server = Server::start();
    let mut lock = watched(&server).expect("it is free");
    assert!(watched(&server).is_none() && renewed(&server, LONG).is_none());
    assert!(lock.check().expect("connected"));
    let first = lock.fence();
    assert!(lock.release().expect("connected"));
    let lock = renewed(&server, LONG).expect("it is free again");
    assert!(watched(&server).is_none() && renewed(&server, LONG).is_none());
    assert!(lock.fence() > first);
    drop(lock);
    assert!(is_free(&server));
    // Dropping it is enough, also where a thread panics.
    let lock = watched(&server);
    assert!(lock.is_some() && !is_free(&server));
    drop(lock);
    eventually(SOON, || is_free(&server));
}

#[test]
fn a_killed_connection_frees_the_lock_and_its_holder_is_told() {
    let server = Server::start();
    let mut lock = watched(&server).expect("it is free");
    kill_all_connections(&server);
    eventually(SOON, || is_free(&server));
    assert!(matches!(lock.check(), Err(Error::Lost(_))));
    let other = watched(&server).expect("it is free");
    assert!(other.fence() > lock.fence());
    assert!(lock.release().is_err());
    assert!(!is_free(&server));
    drop(other);

    let mut lock = Lock::acquire(&Patient(client(server.port())), "key", LONG, SOON)
        .expect("connected")
        .expect("it is free");
    server.command(["DEL", "key"]);
    assert!(!lock.check().expect("connected"));
    assert!(!lock.release().expect("connected"));
}

#[test]
fn renewal_outlasts_the_lease_and_tells_of_a_loss() {
    let server = Server::start();
    let lock = renewed(&server, LEASE).expect("it is free");
    let start = Instant::now();
    while start.elapsed() < PAST_LEASE {
        assert!(!lock.validity().is_zero() && lock.validity() <= LEASE);
        assert!(watched(&server).is_none());
        thread::sleep(LEASE / 100);
    }
    server.command(["DEL", "key"]);
    eventually(SOON, || lock.validity().is_zero());
    drop(lock);

    // A server that is silent for longer than the lease.
    let lease = Duration::from_secs(1);
    let lock = renewed(&server, lease).expect("it is free");
    server.stop_signal();
    eventually(SOON, || lock.validity().is_zero());
    thread::sleep(lease / 2);
    server.cont_signal();
}

#[test]
fn a_renewed_lock_can_be_checked_and_released() {
    let server = Server::start();
    let client = client(server.port());
    let lock = RenewedLock::acquire(&client, "key", LONG, Duration::ZERO).expect("a reply");
    let lock = lock.expect("it is free");
    assert!(lock.check().expect("a reply"));
    assert!(lock.validity() > LONG / 2);
    // With a wait of zero, nobody waits.
    let other = RenewedLock::acquire(&client, "key", LONG, Duration::ZERO).expect("a reply");
    assert!(other.is_none());
    let other = Lock::acquire(&Patient(client), "key", LONG, Duration::ZERO).expect("a reply");
    assert!(other.is_none());
    assert!(lock.release().expect("a reply"));
    assert!(is_free(&server));

    let lock = renewed(&server, LONG).expect("it is free");
    server.command(["DEL", "key"]);
    assert!(!lock.check().expect("a reply"));
    let other = renewed(&server, LONG).expect("it is free");
    assert!(!lock.release().expect("a reply"));
    assert!(other.check().expect("a reply"));
}

#[test]
fn several_locks_and_permits_are_renewed_too() {
    let server = Server::start();
    let client = client(server.port());
    let keys = ["{l}a", "{l}b"];
    let both = |wait| RenewedLock::acquire_all(&client, &keys, LEASE, wait).expect("a reply");
    let permits = |count| {
        RenewedLock::acquire_permits(&client, "pool", 3, count, LEASE, Duration::ZERO)
            .expect("a reply")
    };
    let locks = both(Duration::ZERO).expect("they are free");
    assert_eq!(locks.fences().len(), 2);
    assert_eq!(locks.fences().first(), Some(&locks.fence()));
    let two = permits(2).expect("they are free");
    let start = Instant::now();
    while start.elapsed() < PAST_LEASE {
        assert!(!locks.validity().is_zero() && !two.validity().is_zero());
        assert!(both(Duration::ZERO).is_none() && permits(2).is_none());
        thread::sleep(LEASE / 100);
    }
    assert!(locks.check().expect("a reply") && two.check().expect("a reply"));
    let one = permits(1).expect("one permit is left");
    assert!(one.release().expect("a reply") && two.release().expect("a reply"));
    assert_eq!(server.command(["EXISTS", "pool"]), 0);

    // One of two locks is lost.
    server.command(["DEL", "{l}b"]);
    assert!(!locks.check().expect("a reply"));
    eventually(SOON, || locks.validity().is_zero());
    assert!(!locks.release().expect("a reply"));
    assert_eq!(
        server.command(["EXISTS", "{l}a"]),
        0,
        "the other is released"
    );
    drop(both(Duration::ZERO).expect("they are free"));
    assert!(both(SOON).is_some(), "the lock before was dropped");

    // The single commands for several semaphores.
    let connection = &mut server.client();
    let items = [("{s}a", 1), ("{s}b", 5)];
    let fences = semaphore::acquire_all(&items, "ann", 1).query(connection);
    assert_eq!(fences.expect("a reply").map(|fences| fences.len()), Some(2));
    let refused = semaphore::acquire_all(&items, "bob", 1).query(connection);
    assert_eq!(refused.expect("a reply"), None);
    let left = semaphore::release_each(&["{s}a", "{s}c"], "ann").query(connection);
    assert_eq!(left.expect("a reply"), [Some(0), None]);
}

#[test]
fn a_cluster_redirects_locks_sales_and_work() {
    let (one, other) = two_nodes(&cluster::node());
    let url = format!("redis://127.0.0.1:{}/", other.port());
    let client = ClusterClient::builder([url]).connection_timeout(SOON);
    let client = Patient(client.build().expect("a URL"));
    let key = LOW;
    let renewed = RenewedLock::acquire(&client, key, LONG, Duration::ZERO).expect("a reply");
    let renewed = renewed.expect("it is free");
    let watched = |key| Lock::acquire(&client, key, LONG, Duration::ZERO).expect("a reply");
    assert!(watched(key).is_none());
    let mut bound = watched(HIGH).expect("it is free");
    // The first argument of MACQUIRE is a number: the client sends it to the slot of this number and is redirected.
    let pair = [format!("{{{key}}}a"), format!("{{{key}}}b")];
    let pair = pair.each_ref().map(String::as_str);
    let both = RenewedLock::acquire_all(&client, &pair, LONG, Duration::ZERO).expect("a reply");
    let both = both.expect("they are free");

    let moved = Move::start(cluster::slot_of(&one, key), &one, &other);
    moved.keys(&[key, pair[0], pair[1]]);
    moved.finish();
    assert!(renewed.check().expect("redirected"), "the hold moved");
    assert!(both.check().expect("redirected"));
    assert!(bound.check().expect("a reply"));
    assert!(renewed.release().expect("redirected") && both.release().expect("redirected"));
    assert!(bound.release().expect("a reply"));

    let connect = || client.0.get_connection();
    let connection = &mut connect().expect("connected");
    stock::create(key, 10).query(connection).expect("a reply");
    let sale = stock::deduct(key, 1).order("order-1");
    assert_eq!(sale.query_until_replied(connect).expect("a reply"), Ok(9));
    assert_eq!(sale.query_until_replied(connect).expect("a reply"), Ok(9));
    let work = |result: &'static [u8]| {
        let policy = once::Policy::default();
        let done = once::run(&client, "work", &policy, |_| Ok(result.into()));
        done.unwrap_or_else(|error: Error| panic!("{error}"))
    };
    assert_eq!(work(b"first"), b"first");
    assert_eq!(work(b"second"), b"first");
}

#[test]
fn work_is_done_once_and_every_caller_gets_its_result() {
    let server = Server::start();
    let client = Patient(client(server.port()));
    let policy = once::Policy {
        fingerprint: Some("f".into()),
        ..once::Policy::default()
    };
    let run = |policy: &once::Policy, result: Result<&str>| {
        once::run(&client, "work", policy, |token| {
            assert!(token > 0);
            Ok(result?.as_bytes().to_vec())
        })
    };
    // Nobody else does work that may have been done.
    let unknown = once::run(&client, "charged", &policy, |_| {
        Err(Failure::Unknown(Error::LoaderFailed))
    });
    assert!(matches!(unknown, Err(Error::LoaderFailed)));
    assert_eq!(server.command(["EXISTS", "charged"]), 1);
    // Who fails leaves the work to the next caller.
    let failed = run(&policy, Err(Error::LoaderFailed));
    assert!(matches!(failed, Err(Error::LoaderFailed)));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            once::run(&client, "work", &policy, |_| -> Result<_, Failure<Error>> {
                thread::sleep(Duration::from_millis(300));
                Ok(b"first".to_vec())
            })
        });
        eventually(SOON, || server.command(["EXISTS", "work"]) == 1);
        assert_eq!(run(&policy, Ok("second")).expect("a result"), b"first");
        assert_eq!(first.join().expect("no panic").expect("a result"), b"first");
    });
    let other = once::Policy {
        fingerprint: Some("g".into()),
        ..policy.clone()
    };
    assert!(matches!(run(&other, Ok("third")), Err(Error::Conflict)));
    // The result of whoever needs longer than the lease is not stored.
    let short = once::Policy {
        lease: Duration::from_millis(20),
        ..once::Policy::default()
    };
    let late = once::run(&client, "late", &short, |_| -> Result<_, Failure<Error>> {
        eventually(SOON, || server.command(["EXISTS", "late"]) == 0);
        Ok(Vec::new())
    });
    assert!(matches!(late, Err(Error::LeaseEnded)));
}

#[test]
fn a_request_with_an_id_is_carried_out_once_although_its_reply_is_lost() {
    let server = Server::start();
    let lossy = Lossy::before(server.port(), &LOST);
    server.command(["STOCK.SET", "sku", "10"]);
    let client = client(lossy.port());
    let connect = || client.get_connection();
    let sale = stock::deduct("sku", 1).order("order-1").user("ann");
    assert_eq!(sale.query_until_replied(connect).expect("a reply"), Ok(9));
    assert_eq!(server.command(["STOCK.GET", "sku"]), 9);
    let acquire = lock::acquire("key", "ann").lease(LONG).id("request-1");
    let fence = acquire.query_until_replied(connect).expect("a reply");
    assert!(fence.is_some());
    let left = lock::release("key", "ann").query(&mut server.client());
    assert_eq!(left.expect("a reply"), Some(0), "it was acquired once");

    // Without an id the reply is lost indeed.
    let lost = stock::deduct("sku", 1).query(&mut client.get_connection().expect("connected"));
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    assert_eq!(server.command(["STOCK.GET", "sku"]), 8);
}

#[test]
fn refusals_are_values_and_errors_have_kinds() {
    let server = Server::start();
    let connection = &mut server.client();
    let create = || stock::create("{s}a", 3).per_user(2).events("{s}events");
    assert!(create().query(connection).expect("a reply"));
    let again = create().if_missing().query(connection);
    assert!(!again.expect("a reply"));
    let sale = |quantity| stock::deduct("{s}a", quantity).user("ann");
    let mut sell = |request: stock_request::Sale| request.query(connection).expect("a reply");
    assert_eq!(sell(sale(3)), Err(Refusal::OverUserLimit));
    assert_eq!(sell(sale(2)), Ok(1));
    let other = stock::deduct("{s}a", 2).user("bob");
    assert_eq!(sell(other), Err(Refusal::SoldOut));
    assert_eq!(sell(stock::deduct("missing", 1)), Err(Refusal::Unknown));

    stock::create("{s}b", 5).query(connection).expect("a reply");
    let items = [("{s}a", 1), ("{s}b", 2)];
    let reserve = stock::reserve_all(&items, "order", LONG).user("bob");
    assert_eq!(reserve.query(connection).expect("a reply"), [Ok(0), Ok(3)]);
    let conflict = stock::reserve("{s}b", 1, "order", LONG).query(connection);
    assert!(matches!(conflict, Err(Error::Conflict)), "{conflict:?}");
    let keys = ["{s}a", "{s}b"];
    let confirmed = stock::confirm_all(&keys, "order").query(connection);
    assert_eq!(confirmed.expect("a reply"), [Ok(1), Ok(2)]);
    let cancelled = stock::cancel_all(&keys, "order").query(connection);
    assert_eq!(cancelled.expect("a reply"), [Ok(1), Ok(2)]);
    let closed = stock::confirm("{s}a", "order").query(connection);
    assert_eq!(closed.expect("a reply"), Err(Refusal::OrderClosed));
    assert_eq!(
        stock::get("{s}b").query(connection).expect("a reply"),
        Some(5)
    );
    assert_eq!(
        stock::get("missing").query(connection).expect("a reply"),
        None
    );
    let both = stock::get_all(&["{s}b", "{s}missing"]).query(connection);
    assert_eq!(both.expect("a reply"), [Some(5), None]);

    server.command(["SET", "text", "v"]);
    let wrong = lock::acquire("text", "ann").query(connection);
    assert!(matches!(wrong, Err(Error::WrongType)), "{wrong:?}");
    lock::acquire("one", "ann")
        .query(connection)
        .expect("a reply");
    let mut other = server.client();
    lock::acquire("two", "bob")
        .query(&mut other)
        .expect("a reply");
    thread::scope(|scope| {
        scope.spawn(move || lock::acquire("one", "bob").block(SOON).query(&mut other));
        eventually(SOON, || server.info_int("blocked_clients") == 1);
        let deadlock = lock::acquire("two", "ann").block(SOON).query(connection);
        assert!(matches!(deadlock, Err(Error::Deadlock)), "{deadlock:?}");
        let released = lock::release_all("one", "ann").query(connection);
        assert_eq!(released.expect("a reply"), Some(0));
    });
}

mod stock_request {
    use sluice_client::Request;
    use sluice_client::stock::{self, Answer};

    pub(super) type Sale = Request<Answer, stock::Sale>;
}

#[test]
fn all_families_answer_with_their_types() {
    let server = Server::start();
    let connection = &mut server.client();
    // Locks of several keys, semaphores.
    let fences = lock::acquire_all(&["{l}a", "{l}b"], "ann").query(connection);
    assert_eq!(fences.expect("a reply").map(|fences| fences.len()), Some(2));
    let shared = lock::acquire("{l}a", "bob").shared().query(connection);
    assert_eq!(shared.expect("a reply"), None);
    let fence = lock::renew("{l}a", "ann", LONG).query(connection);
    let fence = fence.expect("a reply").expect("held");
    assert!(
        lock::guard("guarded", fence)
            .query(connection)
            .expect("a reply")
    );
    assert!(
        !lock::guard("guarded", fence - 1)
            .query(connection)
            .expect("a reply")
    );
    let channel = "notices";
    let queued = lock::acquire("{l}a", "bob")
        .block(LONG)
        .notify(channel)
        .id("7");
    assert_eq!(queued.query(connection).expect("a reply"), None);
    assert!(
        lock::cancel("{l}a", "7")
            .query(connection)
            .expect("a reply")
    );
    assert!(
        !lock::cancel("{l}a", "7")
            .query(connection)
            .expect("a reply")
    );
    let permits = semaphore::acquire_permits("pool", "ann", 3, 2).query(connection);
    assert!(permits.expect("a reply").is_some());
    let left = semaphore::release("pool", "ann", 1).query(connection);
    assert_eq!(left.expect("a reply"), Some(1));
    let more = semaphore::acquire("pool", "bob", 3)
        .lease(LONG)
        .query(connection);
    assert!(more.expect("a reply").is_some());

    let released = lock::release_each(&["{l}a", "{l}b"], "ann").query(connection);
    assert_eq!(released.expect("a reply"), [Some(0), Some(0)]);
    let shared = |owner| lock::acquire("shared", owner).shared();
    assert!(shared("ann").query(connection).expect("a reply").is_some());
    assert!(shared("bob").query(connection).expect("a reply").is_some());
    let upgrade = lock::upgrade("shared", "ann").lease(LONG);
    assert_eq!(upgrade.query(connection).expect("a reply"), None);
    let released = lock::release("shared", "bob").query(connection);
    assert_eq!(released.expect("a reply"), Some(0));
    let fence = upgrade.block(LONG).query(connection).expect("a reply");
    assert!(fence.is_some() && shared("bob").query(connection).expect("a reply").is_none());
    let same = lock::downgrade("shared", "ann").query(connection);
    assert!(same.expect("a reply").is_some());
    assert!(shared("bob").query(connection).expect("a reply").is_some());
    let queued = semaphore::acquire_permits("pool", "eve", 3, 2).block(LONG);
    let queued = queued.notify(channel).id("8").query(connection);
    assert_eq!(queued.expect("a reply"), None, "one permit is free");
    let cancelled = semaphore::cancel("pool", "8").query(connection);
    assert!(cancelled.expect("a reply"));

    // Limits.
    let gcra = || limit::gcra("limit", 1, 1, LONG);
    let first = gcra().query(connection).expect("a reply");
    assert!(first.allowed && first.limit == 2 && first.remaining == 1 && first.wait.is_none());
    assert!(gcra().peek().query(connection).expect("a reply").allowed);
    assert!(gcra().query(connection).expect("a reply").allowed);
    let refused = gcra().query(connection).expect("a reply");
    assert!(!refused.allowed && refused.wait.is_some_and(|wait| wait <= LONG));
    let ahead = gcra().ahead(LONG).query(connection).expect("a reply");
    assert!(ahead.allowed && ahead.wait.is_some());
    let never = gcra().cost(9).query(connection).expect("a reply");
    assert!(!never.allowed && never.wait.is_none());
    let both = [("{r}user", 9, 1, LONG), ("{r}all", 0, 1, LONG)];
    assert!(
        limit::gcra_all(&both)
            .query(connection)
            .expect("a reply")
            .allowed
    );
    let tiers = [(0, 1, LONG), (9, 9, LONG)];
    let tiers = || limit::tiers("{r}tiers", &tiers);
    assert!(tiers().query(connection).expect("a reply").allowed);
    let refused = tiers().query(connection).expect("a reply");
    assert!(!refused.allowed && refused.index == 0);
    let all = limit::gcra_all(&both).query(connection).expect("a reply");
    assert!(!all.allowed && all.index == 1, "{all:?}");
    let window = || limit::window("window", 1, LONG).exact();
    assert!(window().query(connection).expect("a reply").allowed);
    assert!(!window().query(connection).expect("a reply").allowed);
    assert!(
        limit::charge("window", 1)
            .query(connection)
            .expect("a reply")
    );
    assert!(
        limit::refund("window", 1)
            .query(connection)
            .expect("a reply")
    );
    assert!(
        limit::first("tick", LONG)
            .query(connection)
            .expect("a reply")
    );
    assert!(
        !limit::first("tick", LONG)
            .query(connection)
            .expect("a reply")
    );

    // Work that is done once.
    let begin = || once::begin("work", LONG).fingerprint("f");
    let Begun::New(token) = begin().query(connection).expect("a reply") else {
        panic!("the work is new");
    };
    let busy = begin().query(connection).expect("a reply");
    assert!(
        matches!(busy, Begun::Busy(time) if time <= LONG),
        "{busy:?}"
    );
    let conflict = once::begin("work", LONG).fingerprint("g").query(connection);
    assert!(matches!(conflict, Err(Error::Conflict)), "{conflict:?}");
    let done = once::done("work", token, b"r\0".as_slice(), LONG);
    assert!(done.query(connection).expect("a reply"));
    assert!(
        !once::fail("work", token)
            .query(connection)
            .expect("a reply")
    );
    assert_eq!(
        begin().query(connection).expect("a reply"),
        Begun::Done(b"r\0".to_vec())
    );

    // Delayed messages.
    delay::create("{d}queue", "{d}stream")
        .query(connection)
        .expect("a reply");
    let add = || delay::add("{d}queue", "id", LONG);
    let values = [("field", "value")];
    let mut added = |request: sluice_client::Request<Added>| request.query(connection);
    assert_eq!(added(add().values(&values)).expect("a reply"), Added::New);
    assert_eq!(
        added(add().values(&values)).expect("a reply"),
        Added::Replaced
    );
    let refused = added(add().if_missing().values(&values));
    assert_eq!(refused.expect("a reply"), Added::Refused);
    let next = delay::next("{d}queue", 5)
        .query(connection)
        .expect("a reply");
    assert!(
        matches!(&next[..], [(id, ms)] if id == "id" && *ms <= 600_000),
        "{next:?}"
    );
    let waiting = delay::get("{d}queue", "id").query(connection);
    let (ms, values) = waiting.expect("a reply").expect("not delivered");
    assert!(ms <= 600_000 && !values.is_empty());
    let missing = delay::get("{d}queue", "other").query(connection);
    assert_eq!(missing.expect("a reply"), None);
    let cancelled = delay::cancel("{d}queue", &["id", "other"]).query(connection);
    assert_eq!(cancelled.expect("a reply"), 1);

    // Filters.
    filter::create("bloom", 0.001, 1000)
        .query(connection)
        .expect("a reply");
    assert!(
        filter::add("bloom", "ann")
            .query(connection)
            .expect("a reply")
    );
    assert!(
        !filter::add("bloom", "ann")
            .query(connection)
            .expect("a reply")
    );
    assert!(
        filter::may_contain("bloom", "ann")
            .query(connection)
            .expect("a reply")
    );
    let added = filter::add_all("bloom", &["ann", "eve"]).query(connection);
    assert_eq!(added.expect("a reply"), [false, true]);
    let both = filter::may_contain_all("bloom", &["ann", "bob"]).query(connection);
    assert_eq!(both.expect("a reply"), [true, false]);
    cuckoo::create("cuckoo", 1000)
        .query(connection)
        .expect("a reply");
    assert!(
        cuckoo::add("cuckoo", "ann")
            .query(connection)
            .expect("a reply")
    );
    let again = cuckoo::add_if_missing("cuckoo", "ann").query(connection);
    assert!(!again.expect("a reply"));
    let count = cuckoo::count("cuckoo", "ann").query(connection);
    assert_eq!(count.expect("a reply"), 1);
    let both = cuckoo::may_contain_all("cuckoo", &["ann", "bob"]).query(connection);
    assert_eq!(both.expect("a reply"), [true, false]);
    assert!(
        cuckoo::remove("cuckoo", "ann")
            .query(connection)
            .expect("a reply")
    );
    assert!(
        !cuckoo::may_contain("cuckoo", "ann")
            .query(connection)
            .expect("a reply")
    );
}

#[test]
fn a_cached_value_is_loaded_once() {
    let server = Server::start();
    let connection = &mut server.client();
    // No entry and no failure is forgotten before the end of the test.
    let policy = Policy {
        fresh: LONG,
        absent: LONG,
        back_off: LONG,
        ..Policy::default()
    };
    let mut loads = 0;
    for _ in 0..2 {
        let value = cache::get(connection, "user:1", &policy, |_| {
            loads += 1;
            Ok::<_, Error>(Some(b"Ann".to_vec()))
        });
        assert_eq!(value.expect("loaded").as_deref(), Some(&b"Ann"[..]));
    }
    assert_eq!(loads, 1);
    let mut load = |key, value: Result<Option<&[u8]>>| {
        let load = |_: &str| value.map(|value| value.map(<[u8]>::to_vec));
        cache::get(connection, key, &policy, load)
    };
    assert_eq!(load("user:2", Ok(None)).expect("loaded"), None);
    assert_eq!(load("user:2", Ok(Some(b"new"))).expect("a null"), None);
    assert!(load("user:3", Err(Error::WrongType)).is_err());
    let soon = load("user:3", Ok(Some(b"Ann")));
    assert!(matches!(soon, Err(Error::LoaderFailed)), "{soon:?}");

    // The single commands.
    let fetch = || cache::fetch("user:4", LONG).breaker("db", 5, LONG);
    let Fetched::Lease(token, None) = fetch().query(connection).expect("a reply") else {
        panic!("nobody else has the lease");
    };
    let waits = fetch().query(connection).expect("a reply");
    assert!(
        matches!(waits, Fetched::Wait(time) if time <= LONG),
        "{waits:?}"
    );
    let store = |value: &'static str| cache::store("user:4", value, LONG).token(token);
    assert!(
        store("v")
            .stale(LONG)
            .jitter(10)
            .query(connection)
            .expect("a reply")
    );
    let peeked = cache::peek("user:4").query(connection).expect("a reply");
    assert_eq!(peeked.as_deref(), Some(&b"v"[..]));
    let hit = fetch().query(connection).expect("a reply");
    assert!(matches!(hit, Fetched::Hit(value, _) if value == b"v"));
    let invalidated = cache::invalidate("user:4").stale(LONG).query(connection);
    assert!(invalidated.expect("a reply"));
    assert!(!store("w").query(connection).expect("a reply"));
    let lease = fetch().query(connection).expect("a reply");
    let Fetched::Lease(token, Some(_)) = lease else {
        panic!("the old value is served while it is loaded: {lease:?}");
    };
    assert!(matches!(
        fetch().query(connection).expect("a reply"),
        Fetched::Stale(_)
    ));
    assert!(
        cache::fail("user:4", token, LONG)
            .query(connection)
            .expect("a reply")
    );
    let down = fetch().query(connection).expect("a reply");
    assert!(matches!(down, Fetched::Down(Some(_), time) if time <= LONG));
    filter::add("names", "ann")
        .query(connection)
        .expect("a reply");
    let absent = cache::fetch("user:5", LONG)
        .guard("names", "bob")
        .query(connection);
    assert_eq!(absent.expect("a reply"), Fetched::Absent);
}

/// A policy whose leases do not end before the end of the test.
fn with_long_leases() -> Policy {
    Policy {
        lease: LONG,
        ..Policy::default()
    }
}

#[test]
fn a_value_that_is_not_stored_is_returned() {
    let server = Server::start();
    let client = client(server.port());
    let connection = &mut server.client();
    let policy = with_long_leases();
    let loaded = vec![b'v'; 2000];
    let near = Near::new(client.clone(), 10);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for (option, refusal) in [
        ("sluice.cache-max-bytes", "1000"),
        ("maxmemory", "1"),
        ("min-replicas-to-write", "1"),
    ] {
        server.command(["CONFIG", "SET", option, refusal]);
        let load = || Ok::<_, Error>(Some(loaded.clone()));
        // Each one gives its lease back, so that the next one gets one.
        let value = cache::get(connection, "key", &policy, |_| load());
        assert_eq!(value.expect("a value"), Some(loaded.clone()), "{option}");
        runtime.block_on(async {
            let config = patience();
            let own = client.get_multiplexed_async_connection_with_config(&config);
            let own = &mut own.await.expect("connected");
            let value = cache::get_async(own, "key", &policy, async |_| load());
            assert_eq!(value.await.expect("a value"), Some(loaded.clone()));
            let value = near.get("key", &policy, async |_| load());
            assert_eq!(value.await.expect("a value"), Some(loaded.clone()));
        });
        let entry = cache::peek("key").query(connection);
        assert_eq!(entry.expect("a reply"), None, "{option}");
        assert_eq!(server.info_int("sluice_cache_leases_now"), 0, "{option}");
        server.command(["CONFIG", "SET", option, "0"]);
    }
}

#[test]
fn a_miss_on_a_replica_is_loaded() {
    let (master, replica) = (Server::start(), Server::start());
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    let connection = &mut replica.client();
    let policy = with_long_leases();
    let near = Near::new(client(replica.port()), 10);
    let load = || Ok::<_, Error>(Some(b"Ann".to_vec()));
    let value = cache::get(connection, "user:1", &policy, |_| load());
    assert_eq!(value.expect("loaded").as_deref(), Some(&b"Ann"[..]));
    let failed = cache::get(connection, "user:1", &policy, |_| Err(Error::WrongType));
    assert!(matches!(failed, Err(Error::WrongType)), "{failed:?}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let value = runtime.block_on(near.get("user:1", &policy, async |_| load()));
    assert_eq!(value.expect("loaded").as_deref(), Some(&b"Ann"[..]));
    let none = cache::get(connection, "user:1", &policy, |_| Ok::<_, Error>(None));
    assert_eq!(none.expect("loaded"), None);
}

#[test]
fn asynchronous_connections_do_the_same() {
    let server = Server::start();
    let client = client(server.port());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let config = patience();
        let connect = || client.get_multiplexed_async_connection_with_config(&config);
        let own = connect().await.expect("connected");
        let lock = AsyncLock::acquire(own, "key", LONG, NO_WAIT).await;
        let mut lock = lock.expect("a reply").expect("it is free");
        assert!(lock.check().await.expect("connected"));
        assert!(watched(&server).is_none());
        assert!(lock.release().await.expect("connected"));
        let own = connect().await.expect("connected");
        let lock = AsyncLock::acquire(own, "key", LONG, NO_WAIT).await;
        drop(lock.expect("a reply").expect("it is free"));
        let policy = Policy::default();
        let connection = &mut connect().await.expect("connected");
        let mut loads = 0;
        for _ in 0..2 {
            let value = cache::get_async(connection, "user:1", &policy, async |_| {
                loads += 1;
                Ok::<_, Error>(Some(b"Ann".to_vec()))
            });
            let value = value.await.expect("loaded");
            assert_eq!(value.as_deref(), Some(&b"Ann"[..]));
        }
        assert_eq!(loads, 1);
        let policy = once::Policy::default();
        for (key, failure) in [
            ("work", Failure::NoEffect(Error::LoaderFailed)),
            ("charged", Failure::Unknown(Error::LoaderFailed)),
        ] {
            let failed = once::run_async(connection, key, &policy, async |_| Err(failure));
            assert!(matches!(failed.await, Err(Error::LoaderFailed)));
        }
        assert_eq!(server.command(["EXISTS", "work", "charged"]), 1);
        for result in [&b"first"[..], b"second"] {
            let done = once::run_async(connection, "work", &policy, async |token| {
                assert!(token > 0);
                Ok::<_, Failure<Error>>(result.to_vec())
            });
            assert_eq!(done.await.expect("a result"), b"first");
        }
        let late = once::run_async(connection, "late", &policy, async |_| {
            server.command(["DEL", "late"]);
            Ok::<_, Failure<Error>>(Vec::new())
        });
        assert!(matches!(late.await, Err(Error::LeaseEnded)));
        stock::create("sku", 1)
            .query_async(connection)
            .await
            .expect("a reply");
        let sale = stock::deduct("sku", 1).order("order-1");
        assert_eq!(sale.query_async(connection).await.expect("a reply"), Ok(0));
        assert_eq!(sale.query_async(connection).await.expect("a reply"), Ok(0));
    });
    // The connection of the dropped lock closes when the runtime runs no more.
    drop(runtime);
    eventually(SOON, || is_free(&server));
}

/// The reply to each command of the handshake is `OK`. That to the first command of the module breaks off in the middle.
fn server_that_breaks_off() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = [0; 4096];
        loop {
            let length = stream.read(&mut request).expect("a request");
            let request = String::from_utf8_lossy(&request[..length]);
            if request.contains("LOCK.HELD") {
                return stream.write_all(b"$5\r\nab").expect("it reads");
            }
            let commands = request.matches("\r\nCLIENT\r\n").count();
            stream
                .write_all("+OK\r\n".repeat(commands).as_bytes())
                .expect("it reads");
        }
    });
    port
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_reply_is_lost() {
    let held = lock::held("key", "owner");
    let port = server_that_breaks_off();
    let connection = &mut client(port).get_connection().expect("connected");
    let reply = held.query(connection);
    assert!(matches!(reply, Err(Error::Lost(_))), "{reply:?}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let reply = runtime.block_on(async {
        let client = client(server_that_breaks_off());
        let config = patience();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        held.query_async(&mut connection.await.expect("connected"))
            .await
    });
    assert!(matches!(reply, Err(Error::Lost(_))), "{reply:?}");
}
