//! Locks of the crate clients/rust that share one connection.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::Client;
use sluice_client::lock::{HeldLock, Locks};
use sluice_client::{Error, Result};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::support::{SOON, Server, eventually, not_before};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Renewed every four seconds: a busy machine may stand still for some seconds.
const LEASE: Duration = Duration::from_secs(12);

/// The crate treats a reply as lost if it takes longer.
const REPLY_LIMIT: Duration = Duration::from_secs(2);

const TASKS: usize = 1000;

/// One, and others if a busy machine delays a reply by more than two seconds.
const MOST_CONNECTIONS: i64 = 10;

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, work)
}

fn locks(server: &Server) -> Locks {
    let url = format!("redis://127.0.0.1:{}/", server.port());
    Locks::new(Client::open(url).expect("a URL"))
}

/// Acquires a lock that becomes free within `wait`. The crate repeats the request if a busy machine delays the reply by more than two
/// seconds.
async fn acquired(locks: &Locks, wait: Duration) -> HeldLock {
    let held = locks.acquire("key", LONG, wait).await;
    held.expect("a reply").expect("it is free in time")
}

/// Whether the server refuses this request. Repeats it if the reply is too late for the crate, which does not repeat requests with a
/// wait of zero.
async fn is_refused(request: impl AsyncFn() -> Result<Option<HeldLock>>) -> bool {
    let reply = async {
        loop {
            let begun = Instant::now();
            match request().await {
                Err(Error::Lost(_)) => not_before(begun, REPLY_LIMIT),
                reply => break reply.expect("a reply"),
            }
        }
    };
    timeout(SOON, reply)
        .await
        .expect("it replies soon")
        .is_none()
}

fn kill_all_connections(server: &Server) {
    server.command(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.command(["CLIENT", "KILL", "TYPE", "pubsub"]);
}

/// Whether this number of requests waits for the lock.
fn has_waiting(server: &Server, count: i64) -> bool {
    server.info_int("sluice_lock_waiting") == count
}

async fn soon(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, holds).await.expect("it happens soon");
}

#[test]
fn a_thousand_tasks_share_one_connection() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let before = server.info_int("total_connections_received");
        let (inside, largest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (locks, inside, largest) = (locks.clone(), inside.clone(), largest.clone());
            tasks.spawn_local(async move {
                let held = locks.acquire("key", LONG, LONG).await;
                let held = held.expect("a reply").expect("it is free in time");
                assert!(held.fence() > largest.replace(held.fence()));
                assert_eq!(inside.replace(1), 0);
                tokio::task::yield_now().await;
                inside.set(0);
                assert!(held.release().await.expect("a reply"));
            });
        }
        let ended = tasks.join_all().await;
        assert_eq!(ended.len(), TASKS);
        let own = 1; // that of the question
        let opened = server.info_int("total_connections_received") - before - own;
        assert!(opened <= MOST_CONNECTIONS, "{opened}");
    });
    assert_eq!(server.command(["DBSIZE"]), 0);
}

#[test]
fn a_lock_that_is_removed_is_lost_at_once() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let held = acquired(&locks, SOON).await;
        assert!(held.check().await.expect("a reply") && held.validity() > LONG / 2);
        assert!(is_refused(async || locks.acquire("key", LONG, Duration::ZERO).await).await);
        server.command(["DEL", "key"]);
        timeout(SOON, held.lost()).await.expect("a message says so");
        assert!(held.validity().is_zero() && !held.check().await.expect("a reply"));
        let other = acquired(&locks, SOON).await;
        assert!(!held.release().await.expect("a reply"));
        assert!(other.release().await.expect("a reply"));
    });
}

#[test]
fn a_silent_server_loses_the_lock_after_its_lease() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let acquired = async |key, lease| {
            let held = locks.acquire(key, lease, SOON).await;
            held.expect("a reply").expect("it is free")
        };
        let renewed = acquired("renewed", LEASE).await;
        // Its lease is shorter, so that the test ends soon. On a busy machine, this lease may end before the server is gone.
        let held = acquired("key", LEASE / 4).await;
        let end = |lock: &HeldLock| Instant::now() + lock.validity();
        let first_end = end(&renewed);
        soon(|| end(&renewed) > first_end + LEASE / 8).await;
        drop(server);
        for lock in [&held, &renewed] {
            let end = end(lock);
            timeout(SOON, lock.lost()).await.expect("the lease ends");
            assert!(Instant::now() >= end, "lost before its lease has ended");
            assert!(lock.validity().is_zero());
        }
        assert!(held.release().await.is_err());
    });
}

#[test]
fn what_is_dropped_leaves_the_queue_and_frees_the_lock() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let held = acquired(&locks, SOON).await;
        let waits = tokio::task::spawn_local({
            let locks = locks.clone();
            async move { acquired(&locks, LONG).await }
        });
        soon(|| has_waiting(&server, 1)).await;
        waits.abort();
        soon(|| has_waiting(&server, 0)).await;
        let moment = Duration::from_millis(20);
        assert!(is_refused(async || locks.acquire("key", LONG, moment).await).await);
        drop(held);
        drop(acquired(&locks, SOON).await);
        soon(|| server.command(["EXISTS", "key"]) == 0).await;
    });
}

#[test]
fn locks_and_waiting_requests_survive_broken_connections() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let held = acquired(&locks, SOON).await;
        let fence = held.fence();
        let waits = tokio::task::spawn_local({
            let locks = locks.clone();
            async move { acquired(&locks, LONG).await }
        });
        for _ in 0..3 {
            soon(|| has_waiting(&server, 1)).await;
            kill_all_connections(&server);
            soon(|| has_waiting(&server, 1)).await;
            assert!(held.check().await.expect("a reply"));
        }
        // No message of the end arrives.
        assert!(held.release().await.expect("a reply"));
        let next = timeout(SOON, waits).await.expect("it is free");
        let next = next.expect("the task ends");
        assert!(next.fence() > fence);
        kill_all_connections(&server);
        server.command(["DEL", "key"]);
        timeout(SOON, next.lost())
            .await
            .expect("a renewal finds it");
        assert!(!next.release().await.expect("a reply"));
    });
    eventually(SOON, || server.command(["DBSIZE"]) == 0);
}

#[test]
fn several_locks_and_permits_share_it_too() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        let keys = ["a", "b"];
        let held = locks.acquire_all(&keys, LONG, SOON).await;
        let held = held.expect("a reply").expect("they are free");
        assert_eq!(held.fences().len(), 2);
        let waits = tokio::task::spawn_local({
            let locks = locks.clone();
            async move { locks.acquire_all(&["b", "c"], LONG, LONG).await }
        });
        soon(|| has_waiting(&server, 1)).await;
        assert!(held.check().await.expect("a reply"));
        assert!(held.release().await.expect("a reply"));
        let next = timeout(SOON, waits).await.expect("they are free");
        let next = next.expect("the task ends").expect("a reply");
        let next = next.expect("they are free in time");
        assert_eq!(next.fences().len(), 2);
        server.command(["DEL", "c"]);
        timeout(SOON, next.lost()).await.expect("a message says so");
        assert!(!next.release().await.expect("a reply"));

        let permits = async |count, wait| locks.acquire_permits("sem", 3, count, LONG, wait).await;
        let two = permits(2, SOON).await.expect("a reply");
        let two = two.expect("two are free");
        assert!(is_refused(async || permits(2, Duration::ZERO).await).await);
        let one = permits(1, SOON).await.expect("a reply");
        let one = one.expect("one is free");
        assert!(two.check().await.expect("a reply"));
        assert!(two.release().await.expect("a reply") && one.release().await.expect("a reply"));
    });
    assert_eq!(server.command(["DBSIZE"]), 0);
}

#[test]
fn an_error_reply_is_returned() {
    let server = Server::start();
    run(async {
        let locks = locks(&server);
        server.command(["SET", "key", "value"]);
        let reply = locks.acquire("key", LONG, LONG).await;
        assert!(matches!(reply, Err(Error::WrongType)));
    });
}
