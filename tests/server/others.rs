//! Keys of other people: the module listens to what happens to them, and leaves no trace on them.

use crate::support::{Lines as _, Raw, Server};
use std::thread::sleep;
use std::time::Duration;

/// A value of each family, so that each listens.
const VALUES: [&str; 6] = [
    "LOCK.ACQUIRE lock me PX 100000000",
    "SEM.ACQUIRE sem me LIMIT 2 PX 100000000",
    "CACHE.SET cached value PX 100000000",
    "RATE.GCRA limit 9 1 100000000",
    "STOCK.SET stock 10",
    "BF.ADD bloom a",
];

/// Commands whose events the module listens to, which themselves count nothing of keys that are there.
const QUIET: [&str; 7] = [
    "EXPIRE {x}a 1000",
    "PERSIST {x}a",
    "COPY {x}a {x}b REPLACE",
    "RENAME {x}b {x}c",
    "MOVE {x}c 1",
    "PEXPIREAT {x}a 9000000000000",
    "DEL {x}c",
];

fn lookups(server: &Server) -> (i64, i64) {
    let field = |name| server.info_int(name);
    (field("keyspace_hits"), field("keyspace_misses"))
}

fn run_all(server: &Server, client: &mut Raw) -> (i64, i64) {
    client.must("SET {x}a value");
    let before = lookups(server);
    for command in QUIET {
        client.must(command);
    }
    client.must("FLUSHDB");
    let after = lookups(server);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn listeners_count_no_hit_and_no_miss() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let plain = run_all(&server, &mut client);
    client.must("CONFIG SET notify-keyspace-events KEAm");
    client.must("SELECT 2");
    for value in VALUES {
        client.must(value);
    }
    client.must("CACHE.FETCH leased LEASE 100000000");
    client.must("SELECT 0");
    client.must("SELECT 1");
    client.must("FLUSHDB");
    client.must("SELECT 0");
    assert_eq!(run_all(&server, &mut client), plain);
}

#[test]
fn listeners_do_not_touch_keys() {
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        let server = Server::builder()
            .config("maxmemory-policy", policy)
            .config("lfu-decay-time", "0") // a use count does not fall with time
            .start();
        let mut client = Raw::connect(&server);
        for value in VALUES {
            client.must(value);
        }
        client.must("SET string value");
        // The module gives copies of locks, semaphores and limits the expiry of what they hold.
        for key in ["string", "cached", "stock", "bloom", "lock", "sem", "limit"] {
            let payload = client.call(["DUMP", key]).bytes().to_vec();
            let (option, number) = match policy {
                "allkeys-lru" => ("IDLETIME", "1000"),
                _ => ("FREQ", "77"),
            };
            let far = "9000000000000";
            let mut restore: Vec<&[u8]> = vec![b"RESTORE", b"copy", far.as_bytes(), &payload];
            restore.extend([
                b"ABSTTL".as_slice(),
                b"REPLACE",
                option.as_bytes(),
                number.as_bytes(),
            ]);
            assert_eq!(client.call(restore), "OK");
            client.must("PING"); // what the module noted is dealt with by now
            let left = client.call(["OBJECT", option, "copy"]).int();
            // A slow machine adds to the idle time.
            assert!(
                left >= number.parse().expect("a number"),
                "{policy}, {key}: {left}"
            );
        }
    }
}

#[test]
fn listeners_announce_no_missing_key() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for value in VALUES {
        client.must(value);
    }
    client.must("CONFIG SET notify-keyspace-events KEm");
    let mut listener = Raw::connect(&server);
    listener.must("PSUBSCRIBE __key*__:*");
    client.must("SET short value PX 1");
    sleep(Duration::from_millis(2));
    for command in ["SET a value", "PEXPIRE a 1", "RENAME a b", "DEL b"] {
        client.run(command);
    }
    client.must("GET missing");
    let first = listener.read();
    assert!(format!("{first:?}").contains("missing"), "{first:?}");
}
