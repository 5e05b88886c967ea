//! The server's own commands work on locks and semaphores, and never make a hold outlive its lease.

use std::time::{Duration, Instant};

use crate::support::lock::{DEADLOCK, about, lease_of};
use crate::support::{
    Lines, Random, Raw, SEPARATE, SOON, Server, Shutdown, Value, ask, encode, eventually, pair,
    settled_memory, unix_ms, wait_for_replica_sync, waits, with_growing_lease, without_cron,
};

/// A client that waits in line; `db` is where.
#[track_caller]
fn waiter(server: &Server, db: u8, line: &str) -> Raw {
    let mut client = Raw::connect(server);
    client.call(["SELECT", &db.to_string()]);
    waits(server, &mut client, line);
    client
}

#[track_caller]
fn served_at_once(waiter: &mut Raw) -> i64 {
    let reply = waiter.read_within(SOON);
    reply.expect("the waiting client is not served").int()
}

#[track_caller]
fn still_waits(waiter: &mut Raw) {
    let reply = waiter.read_within(Duration::from_millis(30));
    assert_eq!(reply, None, "a waiting client is answered");
}

fn holders(server: &Server, key: &str) -> usize {
    let info = ask(server, &format!("LOCK.INFO {key}"));
    info.get_holders()
}

trait Holders {
    fn get_holders(&self) -> usize;
}

impl Holders for Value {
    fn get_holders(&self) -> usize {
        if self.is_nil() {
            return 0;
        }
        self.field("holders").array().len()
    }
}

// --- The end of a key ------------------------------------------------------------------------------------------------

#[test]
fn every_removal_of_a_key_serves_its_waiting_clients() {
    let server = Server::start();
    let removals = [
        "DEL k",
        "UNLINK k",
        "PEXPIREAT k 1",
        "PEXPIRE k -1",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "RENAME k elsewhere",
        "RENAMENX k nowhere",
        "MOVE k 5",
        "SWAPDB 0 7",
    ];
    for removal in removals {
        ask(&server, "FLUSHALL");
        for setup in [
            "LOCK.ACQUIRE k me PX 600000",
            "SEM.ACQUIRE s me LIMIT 1 PX 600000",
        ] {
            assert!(ask(&server, setup).int() > 0);
        }
        let mut lock = waiter(&server, 0, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
        let mut behind = waiter(&server, 0, "LOCK.ACQUIRE k third PX 600000 BLOCK 0");
        let mut sem = waiter(&server, 0, "SEM.ACQUIRE s you LIMIT 1 PX 600000 BLOCK 0");
        ask(&server, removal);
        let fence = served_at_once(&mut lock);
        assert_eq!(ask(&server, "LOCK.HELD k you"), fence, "{removal}");
        still_waits(&mut behind);
        if removal.starts_with("FLUSH") || removal.starts_with("SWAP") {
            served_at_once(&mut sem);
        } else {
            still_waits(&mut sem);
            ask(&server, "DEL s");
            served_at_once(&mut sem);
        }
        ask(&server, "DEL k");
        served_at_once(&mut behind);
    }
}

#[test]
fn a_removed_lock_is_free_within_the_same_transaction() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE k me PX 600000");
    let replies = client.run_all([
        "MULTI",
        "DEL k",
        "LOCK.HELD k me",
        "LOCK.ACQUIRE k you PX 600000",
        "EXEC",
    ]);
    let replies = replies[4].array();
    assert_eq!(replies[0], 1);
    assert!(replies[1].is_nil());
    assert!(replies[2].int() > 0);
}

/// A client that was just served goes on with what it has sent before: that serves others in the same step too.
#[test]
fn a_command_behind_a_wait_serves_others_at_once() {
    // The server's cron would hide a missed step ten times a second.
    let server = Server::builder().config("hz", "1").start();
    without_cron(|| {
        ask(&server, "FLUSHALL");
        ask(&server, "LOCK.ACQUIRE one me PX 600000");
        ask(&server, "LOCK.ACQUIRE two me PX 600000");
        let mut first = Raw::connect(&server);
        let both = [
            encode("LOCK.ACQUIRE one you PX 600000 BLOCK 0".split_whitespace()),
            encode("DEL two".split_whitespace()),
        ];
        first.send_bytes(&both.concat());
        eventually(SOON, || server.info_int("sluice_lock_waiting") == 1);
        let mut second = waiter(&server, 0, "LOCK.ACQUIRE two you PX 600000 BLOCK 0");
        let start = Instant::now();
        ask(&server, "LOCK.RELEASE one me");
        assert!(first.read().int() > 0);
        assert_eq!(first.read(), 1);
        assert!(second.read().int() > 0);
        start.elapsed()
    });
}

#[test]
fn a_change_is_seen_by_watch_and_a_refusal_is_not() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    let transaction = |between: &str| {
        let mut client = Raw::connect(&server);
        client.must("WATCH k");
        ask(&server, between);
        client.must("MULTI");
        client.must("PING");
        !client.call(["EXEC"]).is_nil()
    };
    assert!(transaction("LOCK.ACQUIRE k you"));
    assert!(transaction("LOCK.INFO k"));
    assert!(transaction("LOCK.RELEASE k you"));
    assert!(!transaction("LOCK.RENEW k me PX 500000"));
    assert!(!transaction("LOCK.ACQUIRE k me"));
    assert!(!transaction("LOCK.RELEASE k me ALL"));
    assert!(!transaction("LOCK.ACQUIRE k me"));
}

// --- Expiry ----------------------------------------------------------------------------------------------------------

#[test]
fn the_expiry_of_a_key_is_its_longest_lease() {
    let server = Server::start();
    let near = |key: &str, ms: i64| about(ask(&server, &format!("PTTL {key}")).int(), ms);
    ask(&server, "LOCK.ACQUIRE k a SHARED PX 100000");
    near("k", 100_000);
    ask(&server, "LOCK.ACQUIRE k b SHARED PX 200000");
    near("k", 200_000);
    ask(&server, "LOCK.ACQUIRE k c SHARED PX 50000");
    near("k", 200_000);
    ask(&server, "LOCK.RELEASE k b");
    near("k", 100_000);
    ask(&server, "LOCK.RENEW k a PX 20000");
    near("k", 50_000);
    ask(&server, "SEM.ACQUIRE s a LIMIT 5 PX 100000");
    ask(&server, "SEM.ACQUIRE s b LIMIT 5 PX 70000");
    near("s", 100_000);
    ask(&server, "SEM.RELEASE s a");
    near("s", 70_000);
}

#[test]
fn expire_ends_a_hold_sooner() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    ask(&server, "SEM.ACQUIRE s me LIMIT 1 PX 600000");
    let mut lock = waiter(&server, 0, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    let mut sem = waiter(&server, 0, "SEM.ACQUIRE s you LIMIT 1 PX 600000 BLOCK 0");
    ask(&server, "PEXPIRE k 300000");
    assert!(ask(&server, "LOCK.HELD k me").int() > 0);
    about(lease_of(&ask(&server, "LOCK.INFO k"), "me"), 300_000);
    let before = unix_ms();
    ask(&server, "PEXPIRE k 700");
    ask(&server, &format!("PEXPIREAT s {}", before + 700));
    served_at_once(&mut lock);
    let served = unix_ms() - before;
    assert!(served >= 700, "served after {served} ms");
    served_at_once(&mut sem);
}

#[test]
fn expire_and_persist_cannot_make_a_hold_outlive_its_lease() {
    let server = Server::start();
    for change in [
        "PEXPIRE k 900000",
        "PERSIST k",
        "PEXPIREAT k 99999999999999",
        "EXPIRE k 9000 GT",
    ] {
        with_growing_lease(600, |lease| {
            ask(&server, "DEL k");
            let before = unix_ms();
            ask(&server, &format!("LOCK.ACQUIRE k me PX {lease}"));
            let has_changed = ask(&server, change) == 1;
            let left = ask(&server, "PTTL k").int();
            if !has_changed || left == -2 {
                return None;
            }
            assert!((0..=lease).contains(&left), "{change}: {left}");
            let mut next = waiter(&server, 0, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
            served_at_once(&mut next);
            let served = unix_ms() - before;
            assert!(served >= lease, "{change}: served after {served} ms");
            Some(())
        });
    }
}

/// The same without anybody waiting, where only the expiry of the key can make it go.
#[test]
fn a_lock_that_was_persisted_still_goes_by_itself() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE k me PX 300");
    ask(&server, "LOCK.ACQUIRE m me PX 300");
    ask(&server, "SEM.ACQUIRE s me LIMIT 2 PX 300");
    ask(&server, "PERSIST k");
    ask(&server, "PEXPIRE m 600000");
    server.command(["EVAL", "redis.call('PERSIST', KEYS[1])", "1", "s"]);
    eventually(SOON, || ask(&server, "DBSIZE") == 0);
}

#[test]
fn expire_within_a_transaction_counts_for_the_next_command_in_it() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE k me PX 600000");
    let replies = client.run_all([
        "MULTI",
        "PEXPIRE k 50000",
        "LOCK.ACQUIRE k me PX 1000",
        "PTTL k",
        "PERSIST k",
        "LOCK.HELD k me",
        "EXEC",
    ]);
    let left = replies[6].array()[2].int();
    assert!((1..=50_000).contains(&left), "{left}");
    // Once the transaction is over, the key has an expiry again.
    let left = client.must("PTTL k").int();
    assert!((1..=600_000).contains(&left), "{left}");
}

// --- What a key is ---------------------------------------------------------------------------------------------------

#[test]
fn locks_and_semaphores_are_two_types() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE lock me");
    ask(&server, "SEM.ACQUIRE sem me LIMIT 2");
    ask(&server, "SET string v");
    let lock_type = ask(&server, "TYPE lock");
    let sem_type = ask(&server, "TYPE sem");
    assert_ne!(lock_type, sem_type);
    assert_eq!(ask(&server, "EXISTS lock sem lock"), 3);
    assert_eq!(ask(&server, "TOUCH lock sem"), 2);
    let found = |kind: &Value| {
        let scan = ask(&server, &format!("SCAN 0 COUNT 1000 TYPE {}", kind.text()));
        scan.array()[1].array().to_vec()
    };
    assert_eq!(found(&lock_type), [Value::Bulk(b"lock".to_vec())]);
    assert_eq!(found(&sem_type), [Value::Bulk(b"sem".to_vec())]);
    assert_eq!(ask(&server, "KEYS *").array().len(), 3);

    let mut client = Raw::connect(&server);
    for line in [
        "LOCK.ACQUIRE sem me",
        "LOCK.RELEASE sem me",
        "LOCK.RENEW sem me",
        "LOCK.UPGRADE sem me",
        "LOCK.DOWNGRADE sem me",
        "LOCK.HELD sem me",
        "LOCK.INFO sem",
        "LOCK.GUARD sem 5",
        "LOCK.MACQUIRE 2 free sem me",
        "LOCK.MRELEASE 2 lock sem me",
        "SEM.ACQUIRE lock me LIMIT 2",
        "SEM.RELEASE lock me",
        "SEM.RENEW lock me",
        "SEM.INFO lock",
        "SEM.INFO string",
        "LOCK.INFO string",
        "GET lock",
        "INCR sem",
        "APPEND lock x",
        "LPUSH sem x",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("WRONGTYPE "), "{line}: {reply:?}");
    }
    assert_eq!(ask(&server, "EXISTS free"), 0);
    assert!(ask(&server, "LOCK.HELD lock me").int() > 0);
}

#[test]
fn object_and_debug_commands_answer() {
    let server = Server::start();
    for setup in [
        "LOCK.ACQUIRE lock me PX 600000 ID i",
        "SEM.ACQUIRE sem me LIMIT 2 PX 600000",
    ] {
        ask(&server, setup);
    }
    for key in ["lock", "sem"] {
        assert!(
            !ask(&server, &format!("OBJECT ENCODING {key}"))
                .text()
                .is_empty()
        );
        assert_eq!(ask(&server, &format!("OBJECT REFCOUNT {key}")), 1);
        assert!(ask(&server, &format!("OBJECT IDLETIME {key}")).int() >= 0);
        assert!(
            ask(&server, &format!("DEBUG OBJECT {key}"))
                .text()
                .contains("serializedlength")
        );
        let digest = ask(&server, &format!("DEBUG DIGEST-VALUE {key}"));
        ask(&server, &format!("COPY {key} copy REPLACE"));
        assert_eq!(ask(&server, "DEBUG DIGEST-VALUE copy"), digest);
        ask(&server, &format!("RENAME {key} renamed"));
        assert_eq!(ask(&server, "DEBUG DIGEST-VALUE renamed"), digest);
        ask(&server, &format!("RENAME renamed {key}"));
    }
    let digest = ask(&server, "DEBUG DIGEST-VALUE lock");
    ask(&server, "LOCK.ACQUIRE lock me PX 600000 ID other");
    assert_ne!(ask(&server, "DEBUG DIGEST-VALUE lock"), digest);
    ask(&server, "CONFIG SET maxmemory-policy allkeys-lfu");
    assert!(ask(&server, "OBJECT FREQ lock").int() >= 0);
}

/// `LOCK.HELD` and `LOCK.INFO` of an operator must not make an idle lock look busy: as with built-in types, they touch.
#[test]
fn idle_time_is_counted() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    eventually(SOON, || ask(&server, "OBJECT IDLETIME k").int() >= 2);
    let lines = ["LOCK.RENEW k me PX 600000", "OBJECT IDLETIME k"];
    let replies = Raw::connect(&server).transact(lines);
    assert!(replies[1].int() <= 1, "{replies:?}");
}

// --- RENAME, COPY, MOVE, SWAPDB --------------------------------------------------------------------------------------

#[test]
fn a_renamed_lock_is_held_under_its_new_name() {
    let server = Server::start();
    let fence = ask(&server, "LOCK.ACQUIRE old me PX 600000");
    let end = ask(&server, "PEXPIRETIME old");
    ask(&server, "LOCK.ACQUIRE new other PX 600000");
    let mut waits_for_new = waiter(&server, 0, "LOCK.ACQUIRE new you PX 600000 BLOCK 0");
    assert_eq!(ask(&server, "RENAMENX old new"), 0);
    ask(&server, "RENAME old new");
    assert_eq!(ask(&server, "LOCK.HELD new me"), fence);
    assert!(ask(&server, "LOCK.HELD new other").is_nil());
    assert_eq!(ask(&server, "EXISTS old"), 0);
    assert_eq!(ask(&server, "PEXPIRETIME new"), end);
    still_waits(&mut waits_for_new);
    assert!(ask(&server, "LOCK.ACQUIRE old me").int() > fence.int());
    assert_eq!(ask(&server, "LOCK.RELEASE new me"), 0);
    served_at_once(&mut waits_for_new);
}

#[test]
fn a_watchdog_follows_a_renamed_or_moved_lock() {
    const LEASE: i64 = 9000; // it ends if the server stalls for two thirds of it
    let server = Server::start();
    for (change, key) in [
        ("RENAME k n", "n"),
        ("RENAMENX k n", "n"),
        ("MOVE k 1", "k"),
        ("SWAPDB 0 1", "k"),
    ] {
        // Watches a lock, which then gets its other name.
        let watch = |lease: i64| {
            ask(&server, "FLUSHALL");
            let mut watched = Raw::connect(&server);
            watched.must(&format!("LOCK.ACQUIRE k me PX {lease} WATCHDOG"));
            ask(&server, change);
            watched
        };
        let mut client = Raw::connect(&server);
        if key == "k" {
            client.must("SELECT 1");
        }
        // It is renewed where it is now, after a third of its lease...
        let watched = watch(LEASE);
        let first = client.must(&format!("PEXPIRETIME {key}")).int();
        eventually(SOON, || {
            let end = client.must(&format!("PEXPIRETIME {key}")).int();
            assert!(end >= first, "{change}: the hold is gone");
            end > first
        });
        drop(watched);
        // ...and ends there with its connection, long before its lease.
        drop(watch(600_000));
        eventually(SOON, || client.must(&format!("EXISTS {key}")) == 0);
        assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
    }
}

#[test]
fn a_copy_has_the_same_holds() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let fence = client.must("LOCK.ACQUIRE k a SHARED PX 600000 ID one");
    client.must("LOCK.ACQUIRE k b SHARED PX 500000");
    let end = client.must("PEXPIRETIME k");
    let dump = client.must("DUMP k");
    assert_eq!(client.must("COPY k c"), 1);
    assert_eq!(client.must("COPY k c"), 0);
    client.must("LOCK.ACQUIRE d other");
    assert_eq!(client.must("COPY k d REPLACE"), 1);
    assert_eq!(client.must("COPY k e DB 2"), 1);
    for (db, key) in [(0, "c"), (0, "d"), (2, "e")] {
        client.must(&format!("SELECT {db}"));
        assert_eq!(client.must(&format!("DUMP {key}")), dump);
        assert_eq!(client.must(&format!("PEXPIRETIME {key}")), end);
        assert_eq!(
            client.must(&format!("LOCK.ACQUIRE {key} a SHARED ID one")),
            fence
        );
        // They are independent of each other.
        assert_eq!(client.must(&format!("LOCK.RELEASE {key} a")), 0);
    }
    client.must("SELECT 0");
    assert_eq!(client.must("LOCK.HELD k a"), fence);
    assert_eq!(client.must("DUMP k"), dump);
}

#[test]
fn the_copy_of_a_watched_lock_runs_down() {
    let server = Server::start();
    let mut watched = Raw::connect(&server);
    watched.must("LOCK.ACQUIRE k me PX 9000 WATCHDOG");
    watched.must("COPY k copy");
    assert_eq!(
        ask(&server, "LOCK.INFO copy").field("holders").array()[0].field("watchdog"),
        &0
    );
    eventually(SOON, || ask(&server, "EXISTS copy") == 0);
    assert_eq!(ask(&server, "EXISTS k"), 1);
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 1);
}

/// A copy has the original's fence: what is renewed for the one must not be lost to the other.
#[test]
fn a_watched_copy_takes_nothing_from_the_watched_original() {
    let server = Server::start();
    let mut watched = Raw::connect(&server);
    watched.must("LOCK.ACQUIRE k me PX 9000 WATCHDOG");
    watched.must("COPY k copy");
    watched.must("LOCK.ACQUIRE copy me PX 9000 WATCHDOG");
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 2);
    let ends = || ["k", "copy"].map(|key| ask(&server, &format!("PEXPIRETIME {key}")).int());
    let first = ends();
    eventually(SOON, || {
        let now = ends();
        assert!(now.iter().all(|end| *end > 0), "a hold is not renewed");
        // More than one renewal: each is a third of the lease later.
        now.iter()
            .zip(first)
            .all(|(end, first)| *end > first + 4500)
    });
    drop(watched);
    // Both end with the connection, long before their leases.
    let mut watched = Raw::connect(&server);
    ask(&server, "FLUSHALL");
    watched.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
    watched.must("COPY k copy");
    watched.must("LOCK.ACQUIRE copy me PX 600000 WATCHDOG");
    drop(watched);
    eventually(SOON, || ask(&server, "EXISTS k copy") == 0);
}

/// The connection ends, and before the server has dealt with that, the lock gets another name.
#[test]
fn a_watchdog_renews_nothing_if_its_connection_closes_while_the_lock_moves() {
    // The server's cron would deal with it ten times a second.
    let server = Server::builder().config("hz", "1").start();
    for (change, db, key) in [
        ("MOVE k 1", 1, "k"),
        ("RENAME k n", 0, "n"),
        ("SWAPDB 0 1", 1, "k"),
    ] {
        for _ in 0..5 {
            ask(&server, "FLUSHALL");
            let mut client = Raw::connect(&server);
            let mut watched = Raw::connect(&server);
            watched.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
            drop(watched);
            // It may be gone already: then there is nothing to move.
            client.run(change);
            client.must(&format!("SELECT {db}"));
            eventually(SOON, || client.must(&format!("EXISTS {key}")) == 0);
        }
    }
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
}

/// "A lost connection serves the next waiter in the same step", also of a server that has nothing else to do.
#[test]
fn a_lost_connection_serves_the_next_at_once() {
    // A missed step would be made up for by the server's cron, which runs once a second here.
    let server = Server::builder().config("hz", "1").start();
    without_cron(|| {
        ask(&server, "FLUSHALL");
        let mut watched = Raw::connect(&server);
        watched.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
        let mut next = waiter(&server, 0, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
        let start = Instant::now();
        drop(watched);
        assert!(next.read().int() > 0);
        start.elapsed()
    });
    without_cron(|| {
        ask(&server, "FLUSHALL");
        ask(&server, "LOCK.ACQUIRE shared a SHARED PX 600000");
        // An exclusive request in the queue, and a shared one that only its end lets in.
        let first = waiter(&server, 0, "LOCK.ACQUIRE shared b PX 600000 BLOCK 0");
        let mut behind = waiter(&server, 0, "LOCK.ACQUIRE shared c SHARED PX 600000 BLOCK 0");
        let start = Instant::now();
        drop(first);
        assert!(behind.read().int() > 0);
        start.elapsed()
    });
}

/// A script runs on a connection of the server's own, which never closes: what it asks for must not be renewed forever.
#[test]
fn a_watchdog_that_a_script_asks_for_does_not_outlive_the_caller() {
    let server = Server::start();
    let mut caller = Raw::connect(&server);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 'PX', '500', 'WATCHDOG')";
    assert!(caller.call(["EVAL", script, "1", "k"]).int() > 0);
    drop(caller);
    // By the end of the connection, or at the latest by the end of the lease.
    let start = Instant::now();
    eventually(SOON, || {
        ask(&server, "EXISTS k") == 0 || start.elapsed() > Duration::from_secs(3)
    });
    assert_eq!(
        ask(&server, "EXISTS k"),
        0,
        "nobody is left, and the lock is renewed"
    );
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
}

#[test]
fn waiting_clients_of_a_moved_lock_stay_in_their_database() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let fence = client.must("LOCK.ACQUIRE k me PX 600000");
    let mut here = waiter(&server, 0, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    assert_eq!(client.must("MOVE k 2"), 1);
    let next = served_at_once(&mut here);
    client.must("SELECT 2");
    assert_eq!(client.must("LOCK.HELD k me"), fence);
    let mut there = waiter(&server, 2, "LOCK.ACQUIRE k third PX 600000 BLOCK 0");
    client.must("SELECT 0");
    assert_eq!(client.must("MOVE k 2"), 0);
    // Like clients that wait for a list, they wait for a name in the database of that number.
    client.must("SWAPDB 0 2");
    assert_eq!(client.must("LOCK.HELD k me"), fence);
    client.must("LOCK.RELEASE k me");
    still_waits(&mut there);
    client.must("SELECT 2");
    assert_eq!(client.must("LOCK.HELD k you"), next);
    client.must("LOCK.RELEASE k you");
    served_at_once(&mut there);
}

// --- DUMP, RESTORE, MIGRATE ------------------------------------------------------------------------------------------

#[track_caller]
fn restore(server: &Server, key: &str, ttl: &str, payload: &[u8], options: &[&str]) -> Value {
    let mut command: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), payload];
    command.extend(options.iter().map(|option| option.as_bytes()));
    Raw::connect(server).call(command)
}

#[test]
fn a_restored_lock_does_not_outlive_its_lease() {
    let server = Server::start();
    let fence = ask(&server, "LOCK.ACQUIRE k me PX 600000");
    ask(&server, "SEM.ACQUIRE s me LIMIT 3 PERMITS 2 PX 600000");
    let end = ask(&server, "PEXPIRETIME k").int();
    let payload = ask(&server, "DUMP k").bytes().to_vec();
    let sem = ask(&server, "DUMP s").bytes().to_vec();
    let absolute = (end + 5000).to_string();
    for (key, ttl, options) in [
        ("no-ttl", "0", &[][..]),
        ("longer", "900000", &[]),
        ("absolute", &absolute, &["ABSTTL"]),
        ("k", "0", &["REPLACE"]),
        ("idle", "0", &["IDLETIME", "5"]),
    ] {
        assert_eq!(restore(&server, key, ttl, &payload, options), "OK", "{key}");
        assert_eq!(ask(&server, &format!("LOCK.HELD {key} me")), fence, "{key}");
        assert_eq!(ask(&server, &format!("PEXPIRETIME {key}")), end, "{key}");
    }
    assert!(
        restore(&server, "k", "0", &payload, &[])
            .err()
            .starts_with("BUSYKEY")
    );
    assert_eq!(restore(&server, "s2", "0", &sem, &[]), "OK");
    assert!(ask(&server, "PTTL s2").int() > 0);
    assert_eq!(ask(&server, "SEM.INFO s2").field("used"), &2);

    // A shorter one ends it sooner.
    with_growing_lease(300, |ttl| {
        ask(&server, "DEL short");
        let restored = restore(&server, "short", &ttl.to_string(), &payload, &[]);
        assert_eq!(restored, "OK");
        let lines = ["PTTL short", "LOCK.INFO short", "LOCK.HELD short me"];
        let replies = Raw::connect(&server).transact(lines);
        if replies[2].is_nil() {
            return None;
        }
        assert_eq!(replies[2], fence);
        assert!(replies[0].int() <= ttl, "{replies:?}");
        assert!(lease_of(&replies[1], "me") <= ttl, "{replies:?}");
        Some(())
    });
    let mut next = waiter(&server, 0, "LOCK.ACQUIRE short you PX 600000 BLOCK 0");
    served_at_once(&mut next);
    assert_eq!(
        restore(&server, "past", "1000", &payload, &["ABSTTL"]),
        "OK"
    );
    assert_eq!(ask(&server, "EXISTS past"), 0);
}

#[test]
fn a_restored_payload_with_ended_leases_has_no_holds() {
    let server = Server::start();
    // In one step, so that no lease ends before the dump.
    let replies = Raw::connect(&server).transact([
        "LOCK.ACQUIRE k me PX 50",
        "DUMP k",
        "LOCK.ACQUIRE h short SHARED PX 50",
        "LOCK.ACQUIRE h long SHARED PX 600000",
        "DUMP h",
    ]);
    let all_ended = replies[1].bytes().to_vec();
    let long = &replies[3];
    let half_ended = replies[4].bytes().to_vec();
    eventually(SOON, || {
        ask(&server, "LOCK.HELD h short").is_nil() && ask(&server, "EXISTS k") == 0
    });

    assert_eq!(restore(&server, "k", "0", &all_ended, &[]), "OK");
    assert!(ask(&server, "LOCK.HELD k me").is_nil());
    assert!(ask(&server, "LOCK.INFO k").is_nil());
    assert_eq!(ask(&server, "EXISTS k"), 0);
    assert!(ask(&server, "LOCK.ACQUIRE k you").int() > 0);

    // Over a lock that others wait for.
    ask(&server, "LOCK.ACQUIRE w me PX 600000");
    let mut next = waiter(&server, 0, "LOCK.ACQUIRE w you PX 600000 BLOCK 0");
    assert_eq!(restore(&server, "w", "0", &half_ended, &["REPLACE"]), "OK");
    assert_eq!(ask(&server, "LOCK.HELD w long"), *long);
    assert_eq!(holders(&server, "w"), 1);
    still_waits(&mut next);
    assert_eq!(restore(&server, "w", "0", &all_ended, &["REPLACE"]), "OK");
    served_at_once(&mut next);
}

#[test]
fn fences_rise_above_those_of_a_restored_lock() {
    let (one, other) = (Server::start(), Server::start());
    let ahead = (unix_ms() + 3_600_000) * 1000;
    ask(&one, &format!("LOCK.FENCE {ahead}"));
    let fence = ask(&one, "LOCK.ACQUIRE k me PX 600000").int();
    assert!(fence > ahead);
    let payload = ask(&one, "DUMP k").bytes().to_vec();
    assert_eq!(restore(&other, "k", "0", &payload, &[]), "OK");
    assert_eq!(ask(&other, "LOCK.HELD k me"), fence);
    ask(&other, "DEL k");
    assert!(ask(&other, "LOCK.ACQUIRE k you").int() > fence);
}

#[test]
fn a_migrated_lock_is_held_on_the_other_server() {
    let (one, other) = (Server::start(), Server::start());
    let mut client = Raw::connect(&one);
    let setup = [
        "LOCK.ACQUIRE k me PX 600000 ID a",
        "LOCK.ACQUIRE k me PX 600000 ID b",
        "LOCK.RELEASE k me ID r",
        "LOCK.ACQUIRE shared a SHARED PX 500000",
        "LOCK.ACQUIRE shared b SHARED PX 600000",
        "SEM.ACQUIRE sem a LIMIT 5 PERMITS 3 PX 600000",
        "LOCK.GUARD guard 77",
    ];
    for line in setup {
        client.must(line);
    }
    let fence = client.must("LOCK.HELD k me");
    let before: Vec<_> = ["k", "shared", "sem", "guard"]
        .map(|key| {
            (
                client.must(&format!("DUMP {key}")),
                client.must(&format!("PEXPIRETIME {key}")),
            )
        })
        .into();
    let port = other.port();
    client.must(&format!("MIGRATE 127.0.0.1 {port} k 0 60000 COPY"));
    assert_eq!(ask(&other, "LOCK.HELD k me"), fence);
    client.must(&format!("MIGRATE 127.0.0.1 {port} k 0 60000 REPLACE"));
    let port = port.to_string();
    let several = [
        "MIGRATE",
        "127.0.0.1",
        &port,
        "",
        "0",
        "60000",
        "KEYS",
        "shared",
        "sem",
        "guard",
    ];
    assert_eq!(client.call(several), "OK");
    assert_eq!(client.must("DBSIZE"), 0);
    for (key, (dump, end)) in ["k", "shared", "sem", "guard"].iter().zip(&before) {
        assert_eq!(ask(&other, &format!("DUMP {key}")), *dump, "{key}");
        assert_eq!(ask(&other, &format!("PEXPIRETIME {key}")), *end, "{key}");
    }
    assert_eq!(ask(&other, "LOCK.ACQUIRE k me ID b"), fence);
    assert_eq!(ask(&other, "LOCK.RELEASE k me ID r"), 1);
    assert!(ask(&other, "LOCK.ACQUIRE k you").is_nil());
}

// --- Damaged input ---------------------------------------------------------------------------------------------------

/// A payload's last bytes: two of the RDB version, eight of the checksum.
const FOOTER: usize = 10;

#[test]
fn damaged_payloads_are_refused_or_valid() {
    let builder = Server::builder()
        .config("sanitize-dump-payload", "yes")
        .rdb(true);
    let server = builder.start();
    ask(&server, "DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    for line in [
        "LOCK.ACQUIRE exclusive me PX 600000 ID a",
        "LOCK.ACQUIRE exclusive me PX 600000 ID b",
        "LOCK.RELEASE exclusive me ID r",
        "LOCK.ACQUIRE shared a SHARED PX 600000",
        "LOCK.ACQUIRE shared b SHARED PX 700000 ID b",
        "SEM.ACQUIRE sem a LIMIT 300 PERMITS 3 PX 600000",
        "SEM.ACQUIRE sem b LIMIT 300 PERMITS 200 PX 600000",
    ] {
        ask(&server, line);
    }
    let mut client = Raw::connect(&server);
    let mut damaged = Vec::new();
    for key in ["exclusive", "shared", "sem"] {
        let payload = client.must(&format!("DUMP {key}")).bytes().to_vec();
        let (value, footer) = payload.split_at(payload.len() - FOOTER);
        for cut in 0..value.len() {
            damaged.push([&value[..cut], footer].concat());
        }
        for bit in 0..payload.len() * 8 {
            let mut flipped = payload.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            damaged.push(flipped);
        }
        for at in 0..value.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut changed = payload.clone();
                changed[at] = byte;
                damaged.push(changed);
                damaged.push([&value[..at], &[byte], &value[at..], footer].concat());
            }
        }
    }
    let restored = restore_all(&mut client, &damaged);
    assert!(restored.len() > 50, "{}", restored.len());
    assert!(restored.len() < damaged.len());
    // What was accepted is a value that the server saves and loads.
    check_and_reload(&server, &restored);
}

/// Restores each payload under a name of its own; the names of those that were accepted.
fn restore_all(client: &mut Raw, payloads: &[Vec<u8>]) -> Vec<String> {
    let mut accepted = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        let key = format!("restored-{number}");
        let reply = client.call([b"RESTORE", key.as_bytes(), b"0", payload]);
        match reply {
            Value::Error(text) => assert!(!text.contains("internal"), "{text}: {payload:?}"),
            _ => accepted.push(key),
        }
    }
    accepted
}

/// Looks at keys in every way, then saves and loads them, twice.
fn check_and_reload(server: &Server, keys: &[String]) {
    let mut client = Raw::connect(server);
    for key in keys {
        for command in [
            "LOCK.INFO",
            "SEM.INFO",
            "MEMORY USAGE",
            "PTTL",
            "TYPE",
            "DEBUG DIGEST-VALUE",
        ] {
            let reply = client.run(&format!("{command} {key}"));
            if let Value::Error(text) = &reply {
                assert!(text.starts_with("WRONGTYPE"), "{command} {key}: {text}");
            }
        }
        let payload = client.call(["DUMP", key]);
        if !payload.is_nil() {
            let command: [&[u8]; 5] = [b"RESTORE", b"again", b"0", payload.bytes(), b"REPLACE"];
            let reply = client.call(command);
            assert_eq!(
                reply, "OK",
                "{key} cannot be loaded as it was saved: {payload:?}"
            );
        }
    }
    client.call(["DEL", "again"]);
    // Holds that have ended are not there after a reload.
    for key in keys {
        for command in ["LOCK.RENEW", "SEM.RENEW"] {
            client.call([command, key, "nobody"]);
        }
    }
    let digest = server.digest();
    server.command(["DEBUG", "RELOAD"]);
    assert_eq!(server.digest(), digest);
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    assert_eq!(server.digest(), digest);
    let log = server.log();
    assert!(!log.contains("internal error"), "{log}");
}

/// The internal encoding of effects, as `src/lock/persist.rs` describes it.
mod effects {
    pub(super) fn uint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    pub(super) fn text(out: &mut Vec<u8>, bytes: &[u8]) {
        uint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }

    /// `mode`: 0 exclusive, 1 shared, more: a semaphore of that limit.
    pub(super) fn held(mode: u64, owner: &str, count: u64, fence: u64, until: u64) -> Vec<u8> {
        let mut out = vec![b'H', mode.min(2) as u8];
        if mode >= 2 {
            uint(&mut out, mode);
        }
        text(&mut out, owner.as_bytes());
        for number in [count, fence, until] {
            uint(&mut out, number);
        }
        out.push(0);
        out
    }

    pub(super) fn gone(owner: &str) -> Vec<u8> {
        let mut out = vec![b'G'];
        text(&mut out, owner.as_bytes());
        out
    }

    pub(super) fn at(kind: u8, time: u64) -> Vec<u8> {
        let mut out = vec![kind];
        uint(&mut out, time);
        out
    }
}

impl Random {
    /// An effect that the encoding allows, of whatever sense.
    fn effect(&mut self, kind: u64, now: u64) -> Vec<u8> {
        let owner = ["a", "b", "c"][self.below(3) as usize];
        // No lease ends while the test runs.
        let until = match self.below(8) {
            0 => now - self.below(1_000_000),
            _ => now + 600_000 + self.below(1_000_000),
        };
        match self.below(8) {
            0 => effects::gone(owner),
            1 => effects::at(b'X', now + self.below(1_000_000)),
            2 => effects::at(b'C', until),
            _ => {
                let mode = if kind == 0 {
                    self.below(2)
                } else {
                    2 + self.below(9)
                };
                effects::held(
                    mode,
                    owner,
                    1 + self.below(5),
                    1 + self.below(1_000_000),
                    until,
                )
            }
        }
    }
}

fn apply(client: &mut Raw, key: &str, effects: &[u8]) -> Value {
    client.call([b"LOCK.APPLY", key.as_bytes(), effects])
}

#[test]
fn random_effects_are_refused_or_leave_a_valid_state() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let now = u64::try_from(unix_ms()).unwrap();
    let mut keys = Vec::new();
    for number in 0..3000 {
        let kind = random.below(2);
        let key = format!("{}-{}", ["lock", "sem"][kind as usize], number % 97);
        let mut input: Vec<u8> = (0..1 + random.below(4))
            .flat_map(|_| random.effect(kind, now))
            .collect();
        match random.below(6) {
            0 => input = random.bytes(60),
            1 => {
                let at = random.below(input.len() as u64) as usize;
                input[at] ^= 1 << random.below(8);
            }
            2 => input.truncate(random.below(input.len() as u64) as usize),
            3 => input.extend(random.bytes(5)),
            _ => {}
        }
        if let Value::Error(text) = apply(&mut client, &key, &input) {
            assert!(!text.contains("internal"), "{text}: {input:?}");
        }
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // A forged clock must not stop the fences of what follows.
    keys.retain(|key| client.call(["EXISTS", key]) == 1);
    assert!(keys.len() > 50, "{}", keys.len());
    check_and_reload(&server, &keys);
}

/// A client applies an effect, which gives a lock to an owner that waits for one who waits for this lock.
#[test]
fn a_hold_that_a_client_applies_closes_a_cycle() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE k other PX 600000");
    client.must("LOCK.ACQUIRE j b PX 600000");
    let mut a = waiter(&server, 0, "LOCK.ACQUIRE j a BLOCK 0");
    let mut b = waiter(&server, 0, "LOCK.ACQUIRE k b BLOCK 0");
    let fence = client.must("LOCK.HELD k other").int() as u64;
    let until = u64::try_from(unix_ms()).unwrap() + 600_000;
    // A search has found meanwhile that both can be served some day.
    still_waits(&mut a);
    let applied = apply(
        &mut client,
        "k",
        &effects::held(0, "a", 1, fence + 1, until),
    );
    assert_eq!(applied, "OK");
    assert!(client.must("LOCK.HELD k a").int() > 0);
    let refused = b.read_within(SOON).expect("it is refused");
    assert_eq!(refused.err(), DEADLOCK);
    assert_eq!(server.info_int("sluice_lock_waiting"), 1);
}

/// Somebody restores a lock with the largest fence that there can be: there must be fences for others afterwards.
#[test]
fn a_forged_fence_leaves_fences_for_others() {
    const LARGEST: u64 = (1 << 53) - 1;
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let until = u64::try_from(unix_ms()).unwrap() + 600_000;
    let mut last = 0;
    let mut check = |client: &mut Raw| {
        for line in ["LOCK.ACQUIRE k me", "SEM.ACQUIRE s me LIMIT 1"] {
            let fence = client.must(line).int();
            assert!(fence > last, "{fence} must be larger than {last}");
            last = fence;
        }
        client.must("DEL k s");
    };

    let forged = effects::held(0, "a", 1, LARGEST, until);
    assert!(apply(&mut client, "forged", &forged).is_err());
    assert!(client.call(["LOCK.FENCE", &LARGEST.to_string()]).is_err());
    assert_eq!(client.must("EXISTS forged"), 0);
    check(&mut client);

    // What is left after the largest fence that is believed is enough, and can be saved, dumped and loaded.
    let most = LARGEST - (1 << 50);
    let believed = effects::held(0, "a", 1, most, until);
    assert_eq!(apply(&mut client, "forged", &believed), "OK");
    check(&mut client);
    client.must("LOCK.ACQUIRE high me PX 600000");
    let payload = client.must("DUMP high").bytes().to_vec();
    let restored = client.call([b"RESTORE", b"again".as_slice(), b"0", &payload]);
    assert_eq!(restored, "OK");
    check_and_reload(&server, &["high".into(), "again".into()]);
    let mut client = Raw::connect(&server);
    check(&mut client);

    // The same payload with the largest fence instead of its own.
    client.must("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let own = fence_bytes(client.must("LOCK.HELD high me").int() as u64);
    let at = payload
        .windows(own.len())
        .position(|bytes| *bytes == own[..]);
    let mut damaged = payload;
    let at = at.expect("the fence is in the payload");
    damaged[at..at + own.len()].copy_from_slice(&fence_bytes(LARGEST));
    let refused = client.call([b"RESTORE", b"worse".as_slice(), b"0", &damaged]);
    assert!(refused.is_err(), "{refused:?}");
    check(&mut client);
}

/// A fence as payloads have it: as many bytes for each of them that is not small.
fn fence_bytes(fence: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    effects::uint(&mut bytes, fence);
    bytes
}

/// The smallest of the above: shared holders, and then one of them holds alone while the other was never said to be gone.
#[test]
fn effects_cannot_make_an_exclusive_lock_with_two_holders() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    let until = u64::try_from(unix_ms()).unwrap() + 600_000;
    let input = [
        effects::held(1, "a", 1, 10, until),
        effects::held(1, "b", 1, 11, until),
        effects::held(0, "a", 1, 12, until),
    ];
    let reply = apply(&mut client, "k", &input.concat());
    if !reply.is_err() {
        let info = client.call(["LOCK.INFO", "k"]);
        let count = info.get_holders();
        assert!(info.field("mode") == &"shared" || count == 1, "{info:?}");
    }
    check_and_reload(&server, &["k".to_owned()]);
}

#[test]
fn effects_on_other_types_are_refused() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let until = u64::try_from(unix_ms()).unwrap() + 600_000;
    client.must("SET string v");
    client.must("SEM.ACQUIRE sem me LIMIT 2");
    client.must("LOCK.ACQUIRE lock me");
    let digest = server.digest();
    let lock = effects::held(0, "a", 1, 10, until);
    let sem = effects::held(5, "a", 1, 10, until);
    for (key, effects) in [
        ("string", &lock),
        ("string", &sem),
        ("sem", &lock),
        ("lock", &sem),
    ] {
        let reply = apply(&mut client, key, effects);
        assert!(reply.err().starts_with("WRONGTYPE"), "{key}: {reply:?}");
    }
    for effects in [
        [lock.clone(), sem.clone()].concat(),
        [lock, b"?".to_vec()].concat(),
    ] {
        assert!(apply(&mut client, "new", &effects).is_err());
    }
    assert_eq!(client.must("EXISTS new"), 0);
    assert_eq!(server.digest(), digest, "what fails changes nothing");
}

// --- Memory ----------------------------------------------------------------------------------------------------------

/// What a server has given out for a key, and what `MEMORY USAGE` says of it.
struct Measured {
    given: f64,
    said: f64,
}

/// How many commands are sent at once: enough to be fast, too few to need large buffers.
const BATCH: usize = 50;

fn measure(keys: usize, make: impl Fn(usize, &str) -> Vec<Vec<String>>) -> Measured {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let name = |number: usize| format!("key-{number:08}");
    let commands: Vec<_> = (0..keys)
        .flat_map(|number| make(number, &name(number)))
        .collect();
    client.must("PING");
    let before = server.info_int("used_memory");
    for batch in commands.chunks(BATCH) {
        for reply in client.pipeline(batch) {
            assert!(!reply.is_err() && !reply.is_nil(), "{reply:?}");
        }
    }
    let said: i64 = (0..keys)
        .map(|number| client.call(["MEMORY", "USAGE", &name(number)]).int())
        .sum();
    let given = (settled_memory(&mut client) - before) as f64;
    Measured {
        given: given / keys as f64,
        said: said as f64 / keys as f64,
    }
}

fn command(line: &str) -> Vec<String> {
    line.split_whitespace().map(Into::into).collect()
}

/// Compares the two after what the server leaves out for every key with an expiry, such as the tables of its keys.
///
/// `keys` are so many that together they take megabytes, beside which the buffers of connections are nothing.
fn assert_truthful(name: &str, keys: usize, make: impl Fn(usize, &str) -> Vec<Vec<String>>) {
    let string = measure(keys, |_, key| {
        vec![command(&format!("SET {key} {SEPARATE} PX 900000"))]
    });
    let lock = measure(keys, make);
    let left_out = string.given - string.said;
    let truth = lock.given - left_out;
    let error = (lock.said - truth) / truth;
    println!(
        "{name}: given {:.0} (string {:.0}), left out {left_out:.0}, said {:.0} (string {:.0}), {:+.1} %",
        lock.given,
        string.given,
        lock.said,
        string.said,
        error * 100.0
    );
    assert!(
        error.abs() <= 0.1,
        "{name}: MEMORY USAGE says {:.0} of {truth:.0} bytes, {:+.1} %",
        lock.said,
        error * 100.0
    );
}

#[test]
fn memory_usage_of_locks_is_truthful() {
    for size in [1, 36, 100, 1024] {
        let owner = "o".repeat(size);
        assert_truthful(&format!("owner of {size}"), 8000, |_, key| {
            vec![command(&format!("LOCK.ACQUIRE {key} {owner} PX 900000"))]
        });
    }
}

#[test]
fn memory_usage_of_locks_with_request_ids_is_truthful() {
    for size in [1, 36, 128] {
        let id = "i".repeat(size);
        assert_truthful(&format!("ids of {size}"), 8000, |_, key| {
            vec![
                command(&format!("LOCK.ACQUIRE {key} owner PX 900000 ID first")),
                command(&format!("LOCK.ACQUIRE {key} owner PX 900000 ID {id}")),
                command(&format!("LOCK.RELEASE {key} owner ID {id}")),
            ]
        });
    }
}

#[test]
fn memory_usage_of_many_holders_is_truthful() {
    for (holders, keys) in [(2, 4000), (3, 4000), (5, 3000), (30, 400), (400, 40)] {
        assert_truthful(&format!("{holders} holders"), keys, |_, key| {
            (0..holders)
                .map(|owner| {
                    command(&format!(
                        "LOCK.ACQUIRE {key} owner-{owner:04} SHARED PX 900000"
                    ))
                })
                .collect()
        });
        assert_truthful(&format!("{holders} owners of permits"), keys, |_, key| {
            (0..holders)
                .map(|owner| {
                    command(&format!(
                        "SEM.ACQUIRE {key} owner-{owner:04} LIMIT 9999 PX 900000"
                    ))
                })
                .collect()
        });
    }
}

#[test]
fn memory_usage_is_truthful_after_most_holders_left() {
    assert_truthful("3 of 150 holders", 1500, |_, key| {
        let mut commands: Vec<_> = (0..150)
            .map(|owner| {
                command(&format!(
                    "LOCK.ACQUIRE {key} owner-{owner:04} SHARED PX 900000"
                ))
            })
            .collect();
        commands
            .extend((0..147).map(|owner| command(&format!("LOCK.RELEASE {key} owner-{owner:04}"))));
        commands
    });
}

#[test]
fn freed_locks_give_their_memory_back() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let used = || server.info_int("used_memory");
    let round = |client: &mut Raw| {
        for number in 0..500 {
            client.must(&format!(
                "LOCK.ACQUIRE k{number} owner PX 900000 ID i{number}"
            ));
            client.must(&format!(
                "LOCK.ACQUIRE shared owner{number} SHARED PX 900000 ID i{number}"
            ));
            client.must(&format!(
                "SEM.ACQUIRE sem owner{number} LIMIT 1000 PX 900000"
            ));
        }
        client.must("UNLINK shared sem");
        for number in 0..500 {
            client.must(&format!("LOCK.RELEASE k{number} owner"));
        }
        eventually(SOON, || server.info_int("lazyfree_pending_objects") == 0);
    };
    round(&mut client);
    let before = used();
    for _ in 0..5 {
        round(&mut client);
    }
    // A leak of one id or owner a round would be 5 * 1500 blocks of 16 bytes: 120 kB.
    let grown = used() - before;
    assert!(grown < 60_000, "{grown} bytes are not given back");
}

/// A lock that several owners held is in the list of deadlines. When such a lock is released, it must leave the list. Otherwise a
/// replica keeps it until its promotion, and a master until the end of the lease.
#[test]
fn released_permits_leave_no_deadlines_behind() {
    check_that_no_deadlines_stay(&["SEM.RELEASE s a", "SEM.RELEASE s b"]);
}

/// A replica receives this command if `DEL` has another name.
#[test]
fn permits_that_the_internal_command_deletes_leave_no_deadlines_behind() {
    check_that_no_deadlines_stay(&["SLUICE.APPLY s DEL"]);
}

/// `end`: the commands that end the holds of `a` and `b`.
#[track_caller]
fn check_that_no_deadlines_stay(end: &[&str]) {
    const ROUNDS: i64 = 20_000;
    let (master, replica) = pair();
    for server in [&master, &replica] {
        ask(server, "CONFIG SET repl-backlog-size 65536");
    }
    let mut client = Raw::connect(&master);
    let acquire = ["a", "b"].map(|owner| format!("SEM.ACQUIRE s {owner} LIMIT 2 PX 300000000000"));
    let round: Vec<&str> = acquire
        .iter()
        .map(String::as_str)
        .chain(end.iter().copied())
        .collect();
    let rounds = |client: &mut Raw, count: i64| {
        for _ in 0..count / 500 {
            client.run_all((0..500).flat_map(|_| round.iter().copied()));
        }
        wait_for_replica_sync(&master, &replica);
    };
    rounds(&mut client, ROUNDS); // the replication buffers have their final size now
    let mut servers = [&master, &replica].map(Raw::connect);
    let before = servers.each_mut().map(settled_memory);
    rounds(&mut client, ROUNDS);
    let after = servers.each_mut().map(settled_memory);
    for (before, after) in before.into_iter().zip(after) {
        assert!(after - before < 30 * ROUNDS, "{before} {after}");
    }
    assert_eq!(client.run("EXISTS s"), 0);
}

/// Large values are freed by the background thread: `UNLINK` does not wait for it.
#[test]
fn unlinking_a_large_lock_frees_it_in_the_background() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let lines = (0..3000).map(|owner| format!("LOCK.ACQUIRE k owner-{owner} SHARED PX 900000"));
    for reply in client.run_all(lines) {
        assert!(reply.int() > 0);
    }
    let freed = server.info_int("lazyfreed_objects");
    client.must("UNLINK k");
    eventually(SOON, || server.info_int("lazyfreed_objects") > freed);
}

/// Moving blocks while defragmenting must not damage them.
#[test]
fn active_defrag_damages_nothing() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    if client.run("CONFIG SET activedefrag yes").is_err() {
        return; // a server that is built without it
    }
    for line in [
        "CONFIG SET active-defrag-ignore-bytes 1",
        "CONFIG SET active-defrag-threshold-lower 0",
        "CONFIG SET active-defrag-cycle-min 60",
        "CONFIG SET active-defrag-cycle-max 70",
    ] {
        client.must(line);
    }
    for number in 0..3000 {
        let id = "i".repeat(1 + number % 128);
        client.must(&format!("LOCK.ACQUIRE k{number} owner PX 900000 ID {id}"));
        client.must(&format!(
            "LOCK.ACQUIRE s{} owner{number} SHARED PX 900000 ID {id}",
            number % 30
        ));
        client.must(&format!(
            "SEM.ACQUIRE m{} owner{number} LIMIT 9999 PX 900000 ID {id}",
            number % 30
        ));
    }
    for number in (0..3000).filter(|number| number % 7 != 0) {
        client.must(&format!("LOCK.RELEASE k{number} owner"));
        client.must(&format!("LOCK.RELEASE s{} owner{number}", number % 30));
    }
    let digest = server.digest();
    eventually(SOON, || {
        server.info_int("active_defrag_hits") > 0 || server.info_int("active_defrag_misses") > 5000
    });
    assert_eq!(server.digest(), digest);
    server.command(["DEBUG", "RELOAD"]);
    assert_eq!(server.digest(), digest);
    let id = "i".repeat(1 + 7);
    assert!(client.must(&format!("LOCK.ACQUIRE k7 owner ID {id}")).int() > 0);
    assert_eq!(client.must("LOCK.RELEASE k7 owner"), 0);
}
