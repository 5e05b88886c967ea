//! The near cache of the crate clients/rust.

use std::future::Future;
use std::time::Duration;

use redis::Client;
use sluice_client::cache::{Near, Policy};
use sluice_client::{Error, Result};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{SOON, Server};

const SIZE: usize = 100;

/// After this silence, the server must answer before an entry is used.
const SILENCE: Duration = Duration::from_secs(1);

/// Longer than any test.
fn policy() -> Policy {
    Policy {
        fresh: Duration::from_secs(600),
        ..Policy::default()
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

fn near(server: &Server, size: usize) -> Near {
    let url = format!("redis://127.0.0.1:{}/", server.port());
    Near::new(Client::open(url).expect("a URL"), size)
}

/// Reads a value that is cached.
async fn cached(near: &Near, key: &str) -> Result<Option<String>> {
    let load = async |_: &str| Ok::<_, Error>(Some(b"loaded".to_vec()));
    let value = near.get(key, &policy(), load).await?;
    Ok(value.map(|value| String::from_utf8(value).expect("a text")))
}

fn store(server: &Server, key: &str, value: &str) {
    server.command(["CACHE.SET", key, value, "PX", "600000"]);
}

/// Reads until this process has the value, and thus serves it without a round trip.
async fn until_kept(near: &Near, key: &str, value: &str) {
    let kept = async {
        loop {
            let before = near.hits();
            let read = cached(near, key).await.expect("a reply");
            if near.hits() > before && read.as_deref() == Some(value) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, kept).await.expect("it is kept soon");
}

async fn until_read(near: &Near, key: &str, value: &str) {
    let read = async {
        while cached(near, key).await.ok().flatten().as_deref() != Some(value) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, read).await.expect("it is read soon");
}

#[test]
fn a_value_is_loaded_once_and_then_served_by_the_process() {
    let server = Server::start();
    let near = near(&server, SIZE);
    run(async {
        let mut loads = 0;
        for _ in 0..3 {
            let value = near
                .get("key", &policy(), async |_| {
                    loads += 1;
                    Ok::<_, Error>(Some(b"value".to_vec()))
                })
                .await;
            assert_eq!(value.expect("a reply"), Some(b"value".to_vec()));
        }
        assert_eq!(loads, 1);
        until_kept(&near, "key", "value").await;
        let hits = near.hits();
        let fetched = server.info_int("sluice_cache_hits");
        for _ in 0..100 {
            cached(&near, "key").await.expect("a reply");
        }
        assert_eq!(near.hits(), hits + 100);
        assert_eq!(server.info_int("sluice_cache_hits"), fetched);
    });
}

#[test]
fn a_change_of_another_client_is_read() {
    let server = Server::start();
    let near = near(&server, SIZE);
    run(async {
        for number in 0..20 {
            let value = format!("value {number}");
            store(&server, "key", &value);
            until_read(&near, "key", &value).await;
            until_kept(&near, "key", &value).await;
        }
        server.command(["FLUSHALL"]);
        until_read(&near, "key", "loaded").await;
    });
}

#[test]
fn an_absent_value_is_kept_until_it_exists() {
    let server = Server::start();
    let near = near(&server, SIZE);
    run(async {
        server.command(["CACHE.SETNULL", "key", "PX", "600000"]);
        let kept = async {
            while near.hits() == 0 {
                assert_eq!(cached(&near, "key").await.expect("a reply"), None);
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, kept).await.expect("it is kept soon");
        store(&server, "key", "value");
        until_read(&near, "key", "value").await;
    });
}

#[test]
fn a_broken_connection_drops_all_entries() {
    let server = Server::start();
    let near = near(&server, SIZE);
    run(async {
        store(&server, "key", "old");
        until_kept(&near, "key", "old").await;
        server.command(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let dropped = async {
            while !near.is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, dropped).await.expect("they are dropped soon");
        store(&server, "key", "new");
        until_kept(&near, "key", "new").await;
    });
}

#[test]
fn a_silent_server_is_not_trusted() {
    let server = Server::start();
    let near = near(&server, SIZE);
    run(async {
        store(&server, "key", "old");
        until_kept(&near, "key", "old").await;
        server.stop_signal();
        let stopped = Instant::now();
        sleep(SILENCE).await;
        // The requests of this read fail, too: nobody knows whether the entry is old.
        let read = timeout(SOON, cached(&near, "key")).await;
        assert!(read.expect("it fails soon").is_err());
        assert!(stopped.elapsed() >= SILENCE && near.is_empty());
        server.cont_signal();
        until_read(&near, "key", "old").await;
    });
}

#[test]
fn the_number_of_entries_is_bounded() {
    let server = Server::start();
    let near = near(&server, 10);
    run(async {
        let mut key = String::new();
        let filled = async {
            for number in 0.. {
                key = format!("key {number}");
                store(&server, &key, "value");
                until_kept(&near, &key, "value").await;
                assert!(near.len() <= 10);
                // If the server stalls for too long, the near cache drops its connection and all entries.
                if number >= 50 && near.len() == 10 {
                    break;
                }
            }
        };
        timeout(SOON, filled).await.expect("it is full soon");
        near.forget(&key);
        assert_eq!(near.len(), 9);
    });
}
