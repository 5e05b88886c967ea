//! Clients that wait for locks and semaphores are served in order and in time.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::lock::{DEADLOCK, TOO_MANY, about, fence, holders, lease_of, queue};
use crate::support::{
    Lines, Raw, SOON, Server, Value, WRONGTYPE, await_waiting, eventually, not_before, served,
    server_and_client, still_waits, waiter, waiting, waits, with_growing_lease, without_cron,
};

/// The reply to a connection that was refused at once; panics when it waits.
#[track_caller]
fn refused_at_once(server: &Server, line: &str) -> Value {
    let mut client = Raw::connect(server);
    client.ask(line);
    client
        .read_within(SOON)
        .unwrap_or_else(|| panic!("{line} waits"))
}

// Order

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k w0");
    let mut waiters: Vec<_> = (1..=20)
        .map(|number| waiter(&server, &format!("LOCK.ACQUIRE k w{number} BLOCK 0")))
        .collect();
    let mut last = 0;
    for number in 1..=20 {
        let before = number - 1;
        assert_eq!(client.run(&format!("LOCK.RELEASE k w{before}")), 0);
        let given = fence(&served(&mut waiters[before]));
        assert!(given > last, "{given} must be larger than {last}");
        last = given;
        assert_eq!(client.run(&format!("LOCK.HELD k w{number}")), given);
        for later in &mut waiters[number..] {
            still_waits(later);
        }
    }
    assert_eq!(waiting(&server), 0);
}

#[test]
fn no_client_overtakes_waiting_clients() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me SHARED");
    let mut first = waiter(&server, "LOCK.ACQUIRE k first BLOCK 0");
    // Compatible with the holder, but somebody is queued ahead.
    assert!(client.run("LOCK.ACQUIRE k other SHARED").is_nil());
    let mut second = waiter(&server, "LOCK.ACQUIRE k second SHARED BLOCK 0");
    still_waits(&mut second);
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut first));
    still_waits(&mut second);
    client.run("LOCK.RELEASE k first");
    fence(&served(&mut second));
}

#[test]
fn consecutive_shared_waiters_are_served_together() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut a = waiter(&server, "LOCK.ACQUIRE k a SHARED BLOCK 0");
    let mut b = waiter(&server, "LOCK.ACQUIRE k b SHARED BLOCK 0");
    let mut x = waiter(&server, "LOCK.ACQUIRE k x BLOCK 0");
    let mut c = waiter(&server, "LOCK.ACQUIRE k c SHARED BLOCK 0");
    client.run("LOCK.RELEASE k me");
    let (fence_a, fence_b) = (fence(&served(&mut a)), fence(&served(&mut b)));
    assert!(fence_a < fence_b, "in order of arrival");
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"shared");
    assert_eq!(holders(&info), [("a".into(), 1), ("b".into(), 1)]);
    assert_eq!(queue(&info), ["x", "c"]);
    still_waits(&mut x);
    still_waits(&mut c);
    client.run("LOCK.RELEASE k b");
    still_waits(&mut x);
    client.run("LOCK.RELEASE k a");
    fence(&served(&mut x));
    still_waits(&mut c);
    client.run("LOCK.RELEASE k x");
    fence(&served(&mut c));
}

#[test]
fn only_the_last_release_serves() {
    let (server, mut client) = server_and_client();
    for _ in 0..3 {
        client.run("LOCK.ACQUIRE k me");
    }
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("LOCK.RELEASE k me");
    client.run("LOCK.RELEASE k me");
    assert_eq!(waiting(&server), 1);
    still_waits(&mut next);
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut next));
}

#[test]
fn a_waiter_goes_first_even_when_the_release_and_a_new_request_come_together() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let replies = client.pipeline([
        vec!["LOCK.RELEASE", "k", "me"],
        vec!["LOCK.ACQUIRE", "k", "me"],
    ]);
    assert_eq!(replies[0], 0);
    assert!(replies[1].is_nil());
    fence(&served(&mut next));
}

#[test]
fn a_downgrade_lets_shared_waiters_in() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut a = waiter(&server, "LOCK.ACQUIRE k a SHARED BLOCK 0");
    let mut b = waiter(&server, "LOCK.ACQUIRE k b SHARED BLOCK 0");
    let mut x = waiter(&server, "LOCK.ACQUIRE k x BLOCK 0");
    client.run("LOCK.DOWNGRADE k me");
    fence(&served(&mut a));
    fence(&served(&mut b));
    still_waits(&mut x);
    assert_eq!(holders(&client.run("LOCK.INFO k")).len(), 3);
}

// Hand-over

/// A server whose cron runs only once a second, and a connection to it. The cron also serves clients when a lease has ended, so a frequent
/// cron would be in time by chance.
fn server_with_rare_cron() -> (Server, Raw) {
    let server = Server::builder().config("hz", "1").start();
    let client = Raw::connect(&server);
    (server, client)
}

/// Whether another round is needed. `delays_us`: the delay of each round so far. At least 12 rounds check that no lease ends early. One
/// of at most 300 rounds must be in time (the contract: 5 ms on an idle server).
#[track_caller]
fn needs_a_round(delays_us: &[i64]) -> bool {
    let least = delays_us.iter().min().copied().unwrap_or(i64::MAX);
    assert!(
        delays_us.len() < 300 || least <= 6_000,
        "{least} us late at best"
    );
    delays_us.len() < 12 || least > 6_000
}

#[test]
fn an_expiry_serves_within_milliseconds_and_never_too_early() {
    let (server, mut client) = server_with_rare_cron();
    let mut delays_us = Vec::new();
    while needs_a_round(&delays_us) {
        let key = format!("k{}", delays_us.len());
        let given = fence(&client.call(["LOCK.ACQUIRE", &key, "me", "PX", "100"]));
        let mut next = Raw::connect(&server);
        next.call(["LOCK.ACQUIRE", &key, "you", "BLOCK", "0"]);
        let handed = fence(&client.call(["LOCK.HELD", &key, "you"]));
        // Fences are the server's time in microseconds: no time on the way to this test counts.
        let late = handed - given - 100_000;
        assert!(late >= -1_000, "{late} us: the lease was not over yet");
        assert!(late <= 20_000_000, "{late} us late");
        delays_us.push(late);
    }
}

#[test]
fn a_shared_hold_that_ends_within_a_longer_one_serves_in_time_too() {
    let (server, mut client) = server_with_rare_cron();
    let mut delays_us = Vec::new();
    while needs_a_round(&delays_us) {
        let key = format!("s{}", delays_us.len());
        let given = fence(&client.call(["SEM.ACQUIRE", &key, "short", "LIMIT", "2", "PX", "100"]));
        client.call(["SEM.ACQUIRE", &key, "long", "LIMIT", "2", "PX", "100000"]);
        let mut next = Raw::connect(&server);
        let reply = next.call(["SEM.ACQUIRE", &key, "you", "LIMIT", "2", "BLOCK", "0"]);
        let late = fence(&reply) - given - 100_000;
        assert!(late >= -1_000, "{late} us: the lease was not over yet");
        delays_us.push(late);
    }
}

#[test]
fn a_release_serves_in_the_same_step() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    // No other command gets between.
    let replies = client.pipeline([
        vec!["LOCK.RELEASE", "k", "me"],
        vec!["LOCK.HELD", "k", "you"],
    ]);
    assert_eq!(fence(&replies[1]), fence(&served(&mut next)));
}

#[test]
fn whatever_removes_the_lock_serves_the_next() {
    let (server, mut client) = server_and_client();
    for line in [
        "DEL k",
        "UNLINK k",
        "PEXPIREAT k 1",
        "PEXPIRE k -1",
        "PEXPIRE k 10",
        "RENAME k elsewhere",
        "MOVE k 3",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "SWAPDB 0 7",
        "LOCK.RENEW k me PX 10",
        "LOCK.RELEASE k me ALL",
        "LOCK.MRELEASE 1 k me",
        "MIGRATE nowhere 0 k 0 10",
    ] {
        client.run("LOCK.ACQUIRE k me PX 100000");
        let mut first = waiter(&server, "LOCK.ACQUIRE k first BLOCK 0");
        let mut second = waiter(&server, "LOCK.ACQUIRE k second BLOCK 0");
        client.run(line);
        if line.starts_with("MIGRATE") {
            // It fails, and changes nothing.
            still_waits(&mut first);
            client.run("DEL k");
        }
        let given = fence(&served(&mut first));
        assert_eq!(client.run("LOCK.HELD k first"), given, "{line}");
        assert_eq!(waiting(&server), 1, "{line}");
        still_waits(&mut second);
        client.run("LOCK.RELEASE k first");
        fence(&served(&mut second));
        client.run("FLUSHALL");
    }
}

#[test]
fn whatever_removes_a_lock_in_a_transaction_or_a_script_serves_the_next() {
    let (server, mut client) = server_and_client();
    for line in ["DEL k", "RENAME k elsewhere", "PEXPIREAT k 1", "FLUSHDB"] {
        for script in [false, true] {
            client.run("LOCK.ACQUIRE k me");
            let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
            if script {
                let words = line.split(' ').map(|word| format!("'{word}'"));
                let words = words.collect::<Vec<_>>().join(", ");
                let script = format!("return redis.call({words})");
                let reply = client.call(["EVAL", &script, "0"]);
                assert!(!reply.is_err(), "{line}: {reply:?}");
            } else {
                client.run("MULTI");
                client.run(line);
                client.run("EXEC");
            }
            fence(&served(&mut next));
            client.run("FLUSHALL");
        }
    }
}

#[test]
fn a_lock_that_is_taken_again_in_the_same_transaction_serves_nobody() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("MULTI");
    client.run("RENAME k aside");
    client.run("RENAME aside k");
    client.run("EXEC");
    // At any moment one of both holds, and never both.
    let me = client.run("LOCK.HELD k me");
    let you = client.run("LOCK.HELD k you");
    assert!(me.is_nil() != you.is_nil(), "me: {me:?}, you: {you:?}");
    if you.is_nil() {
        still_waits(&mut next);
        client.run("LOCK.RELEASE k me");
    }
    fence(&served(&mut next));
}

#[test]
fn a_value_of_another_type_in_place_of_the_lock_is_an_error_for_the_waiters() {
    let (server, mut client) = server_and_client();
    client.run("SADD set x");
    for (kind, line) in [
        ("string", "SET k value"),
        ("string", "RENAME other k"),
        ("string", "COPY other k REPLACE"),
        ("string", "GETSET k value"),
        ("set", "SUNIONSTORE k set"),
        ("list", "SORT set ALPHA STORE k"),
        ("sluice-sm", "RENAME sem k"),
    ] {
        client.run("SET other value");
        client.run("SEM.ACQUIRE sem x LIMIT 1");
        client.run("LOCK.ACQUIRE k me");
        let mut first = waiter(&server, "LOCK.ACQUIRE k first BLOCK 0");
        let mut second = waiter(&server, "LOCK.ACQUIRE k second SHARED BLOCK 0");
        let mut many = waiter(&server, "LOCK.MACQUIRE 2 k free many BLOCK 0");
        if client.run(line).is_err() {
            // GETSET refuses to overwrite what is no string.
            client.run("SET k value");
        }
        assert_eq!(client.run("TYPE k"), kind, "{line}");
        for waiter in [&mut first, &mut second, &mut many] {
            assert_eq!(served(waiter).err(), WRONGTYPE, "{line}");
        }
        assert_eq!(waiting(&server), 0);
        client.run("DEL k");
        fence(&client.run("LOCK.ACQUIRE free me"));
        client.run("DEL free");
    }
}

/// The transaction ends after the string has expired, and before the server has removed it.
#[test]
fn a_string_that_has_expired_keeps_no_waiter_from_the_lock() {
    let (server, mut client) = server_and_client();
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    client.must("LOCK.ACQUIRE k me PX 3600000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k next BLOCK 0");
    client.transact(["SET k value PX 1", "DEBUG SLEEP 0.05"]);
    fence(&served(&mut next));
}

/// A request for several locks waits for a free key, which becomes a semaphore and then a lock.
#[test]
fn a_lock_in_place_of_a_semaphore_is_an_error_for_the_waiters_behind_a_request_for_locks() {
    let (server, mut client) = server_and_client();
    for line in ["RENAME lock k", "COPY lock k REPLACE"] {
        client.run("SEM.ACQUIRE held me LIMIT 1 PX 3600000");
        client.run("LOCK.ACQUIRE other me PX 3600000");
        client.run("LOCK.ACQUIRE lock me PX 3600000");
        let mut first = waiter(&server, "SEM.MACQUIRE 2 held 1 k 1 first BLOCK 0");
        let mut locks = waiter(&server, "LOCK.MACQUIRE 2 other k locks BLOCK 0");
        let mut one = waiter(&server, "SEM.ACQUIRE k one LIMIT 1 BLOCK 0");
        let mut many = waiter(&server, "SEM.MACQUIRE 1 k 1 many BLOCK 0");
        client.run("SEM.RELEASE held me");
        assert_eq!(served(&mut first).array().len(), 2);
        client.run(line);
        assert_eq!(served(&mut one).err(), WRONGTYPE, "{line}");
        assert_eq!(served(&mut many).err(), WRONGTYPE, "{line}");
        assert_eq!(waiting(&server), 1);
        client.run("DEL other k");
        assert_eq!(served(&mut locks).array().len(), 2);
        client.run("FLUSHALL");
    }
}

#[test]
fn a_lock_in_place_of_the_lock_keeps_the_waiters_waiting() {
    let (server, mut client) = server_and_client();
    for line in ["RENAME other k", "COPY other k REPLACE"] {
        client.run("LOCK.ACQUIRE k me");
        client.run("LOCK.ACQUIRE other holder");
        let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
        client.run(line);
        fence(&client.run("LOCK.HELD k holder"));
        assert_eq!(waiting(&server), 1, "{line}");
        still_waits(&mut next);
        client.run("LOCK.RELEASE k holder");
        fence(&served(&mut next));
        client.run("FLUSHALL");
    }
}

#[test]
fn a_restored_lock_keeps_the_waiters_waiting() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE other holder PX 100000");
    let dump = client.run("DUMP other");
    client.run("LOCK.ACQUIRE k me PX 100000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let restore = [b"RESTORE".as_slice(), b"k", b"0", dump.bytes(), b"REPLACE"];
    assert_eq!(client.call(restore), "OK");
    still_waits(&mut next);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("holder".into(), 1)]);
    client.run("LOCK.RELEASE k holder");
    fence(&served(&mut next));
}

#[test]
fn a_lock_that_comes_shared_lets_shared_waiters_in() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    client.run("LOCK.ACQUIRE other holder SHARED");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you SHARED BLOCK 0");
    client.run("RENAME other k");
    fence(&served(&mut next));
    assert_eq!(holders(&client.run("LOCK.INFO k")).len(), 2);
}

#[test]
fn waiters_wait_for_a_key_of_their_database() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k zero");
    client.run("SELECT 1");
    client.run("LOCK.ACQUIRE k one");
    let mut at_zero = waiter(&server, "LOCK.ACQUIRE k next0 BLOCK 0");
    let mut at_one = Raw::connect(&server);
    at_one.run("SELECT 1");
    waits(&server, &mut at_one, "LOCK.ACQUIRE k next1 BLOCK 0");

    // Both databases hold a lock at `k` after the swap as well.
    client.run("SWAPDB 0 1");
    still_waits(&mut at_zero);
    still_waits(&mut at_one);
    client.run("SELECT 0");
    assert_eq!(client.run("LOCK.RELEASE k one"), 0);
    fence(&served(&mut at_zero));
    assert_eq!(waiting(&server), 1);
    client.run("SELECT 1");
    assert_eq!(client.run("LOCK.RELEASE k zero"), 0);
    fence(&served(&mut at_one));
    fence(&client.run("LOCK.HELD k next1"));
    client.run("SELECT 0");
    fence(&client.run("LOCK.HELD k next0"));
}

/// It is first in the line of each key, and not to be looked at once for each of them: every look opens all the keys.
#[test]
fn a_client_that_waits_for_thousands_of_keys_does_not_block_the_server() {
    const WAITERS: usize = 40;
    const KEYS: usize = 1000;
    let (server, mut client) = server_and_client();
    let all = |waiter: usize, rest: &str| {
        let keys: Vec<_> = (0..KEYS).map(|key| format!("{waiter}:{key}")).collect();
        format!("LOCK.MACQUIRE {KEYS} {} {rest}", keys.join(" "))
    };
    for (db, holder) in [(1, "one"), (0, "zero")] {
        client.run(&format!("SELECT {db}"));
        for number in 0..WAITERS {
            client.must(&all(number, &format!("{holder} PX 600000")));
        }
    }
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| waiter(&server, &all(number, "next BLOCK 0")))
        .collect();

    client.ask("SWAPDB 0 1"); // all of them are busy again
    let swapped = client.read_within(Duration::from_secs(10));
    assert_eq!(swapped.expect("the server looks and looks"), "OK");
    assert_eq!(client.run("PING"), "PONG");
    for mut waiter in waiting {
        still_waits(&mut waiter);
    }
}

#[test]
fn flushdb_of_another_database_serves_nobody() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("SELECT 1");
    client.run("LOCK.ACQUIRE k me");
    client.run("FLUSHDB");
    assert_eq!(waiting(&server), 1);
    still_waits(&mut next);
    client.run("SELECT 0");
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut next));
}

#[test]
fn expire_and_persist_move_the_moment_at_which_a_waiter_is_served() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 300");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("PERSIST k");
    // The lease ends all the same.
    fence(&served(&mut next));

    client.run("LOCK.RENEW k you PX 100000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k third BLOCK 0");
    client.run("PEXPIRE k 10");
    fence(&served(&mut next));

    client.run("LOCK.RENEW k third PX 300");
    let mut next = waiter(&server, "LOCK.ACQUIRE k fourth BLOCK 0");
    client.run("EXPIRE k 1000");
    fence(&served(&mut next));
}

#[test]
fn a_renewed_lease_makes_the_waiter_wait_longer() {
    let (server, mut client) = server_and_client();
    let mut next = Raw::connect(&server);
    client.run("LOCK.ACQUIRE k me PX 600000");
    waits(&server, &mut next, "LOCK.ACQUIRE k you BLOCK 0");
    for _ in 0..10 {
        client.run("LOCK.RENEW k me PX 600000");
    }
    let renewed = Instant::now();
    client.run("LOCK.RENEW k me PX 300");
    fence(&served(&mut next));
    not_before(renewed, Duration::from_millis(300));
}

#[test]
fn a_reload_of_the_dataset_never_makes_two_holders() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    assert_eq!(client.run("DEBUG RELOAD"), "OK");
    fence(&client.run("LOCK.HELD k me"));
    still_waits(&mut next);
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut next));
}

// Leases of waiters

#[test]
fn the_lease_of_a_waiter_starts_when_it_is_served() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 600");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you PX 90000 BLOCK 0");
    let given = fence(&served(&mut next));
    let end = client.run("PEXPIRETIME k").int();
    let lease = end - given / 1000;
    assert!((89_700..=90_300).contains(&lease), "a lease of {lease} ms");
    about(lease_of(&client.run("LOCK.INFO k"), "you"), 90_000);
}

#[test]
fn the_default_lease_of_a_waiter_is_that_of_the_configuration() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut next));
    about(client.run("PTTL k").int(), 30_000);
}

// Those who go

#[test]
fn a_client_that_timed_out_receives_nil_and_never_the_lock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100000");
    client.run("SEM.ACQUIRE s me LIMIT 1");
    client.run("LOCK.ACQUIRE shared me SHARED");
    client.run("LOCK.ACQUIRE shared you SHARED");
    for line in [
        "LOCK.ACQUIRE k you BLOCK 60",
        "LOCK.ACQUIRE k you SHARED BLOCK 60",
        "LOCK.MACQUIRE 2 free k you BLOCK 60",
        "LOCK.UPGRADE shared you BLOCK 60",
        "SEM.ACQUIRE s you LIMIT 1 BLOCK 60",
    ] {
        let asked = Instant::now();
        assert!(Raw::connect(&server).run(line).is_nil(), "{line}");
        not_before(asked, Duration::from_millis(60));
        assert!(asked.elapsed() < SOON, "{line}");
        assert_eq!(waiting(&server), 0, "{line}");
    }
    client.run("LOCK.RELEASE k me");
    assert_eq!(client.run("EXISTS k"), 0);
    assert_eq!(server.info_int("sluice_lock_timeouts"), 5);
}

#[test]
fn block_0_waits_without_limit() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut forever = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    // The others' time is up meanwhile.
    for _ in 0..3 {
        assert!(client.run("LOCK.ACQUIRE k third BLOCK 50").is_nil());
    }
    still_waits(&mut forever);
    client.run("LOCK.RELEASE k me");
    fence(&served(&mut forever));
}

#[test]
fn those_behind_a_waiter_that_goes_move_up() {
    let (server, mut client) = server_and_client();
    let kill = |client: &mut Raw, mut gone: Raw, id: i64| {
        assert_eq!(client.call(["CLIENT", "KILL", "ID", &id.to_string()]), 1);
        assert!(gone.closes_within(SOON));
    };
    let unblock = |client: &mut Raw, mut gone: Raw, id: i64, how: &str| {
        let reply = client.call(["CLIENT", "UNBLOCK", &id.to_string(), how]);
        assert_eq!(reply, 1);
        served(&mut gone)
    };
    for (name, how) in [("close", 0), ("kill", 1), ("timeout", 2), ("error", 3)] {
        client.run("LOCK.ACQUIRE k me SHARED PX 100000");
        let mut gone = Raw::connect(&server);
        let id = gone.id();
        waits(&server, &mut gone, "LOCK.ACQUIRE k gone BLOCK 0");
        let mut next = waiter(&server, "LOCK.ACQUIRE k next SHARED BLOCK 0");
        match how {
            0 => drop(gone),
            1 => kill(&mut client, gone, id),
            2 => assert!(unblock(&mut client, gone, id, "TIMEOUT").is_nil()),
            _ => {
                let reply = unblock(&mut client, gone, id, "ERROR");
                let expected = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
                assert_eq!(reply.err(), expected);
            }
        }
        // The shared holder and the shared waiter have nobody between them any more.
        fence(&served(&mut next));
        assert_eq!(waiting(&server), 0, "{name}");
        let info = client.run("LOCK.INFO k");
        assert_eq!(queue(&info), [""; 0], "{name}");
        client.run("DEL k");
        assert_eq!(client.run("EXISTS k"), 0, "{name}");
    }
}

#[test]
fn all_kinds_of_waiters_can_be_unblocked() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 600000");
    client.run("SEM.ACQUIRE s me LIMIT 1 PX 600000");
    client.run("LOCK.ACQUIRE shared me SHARED PX 600000");
    client.run("LOCK.ACQUIRE shared you SHARED PX 600000");
    let digest = client.run("DEBUG DIGEST");
    for line in [
        "LOCK.ACQUIRE k you BLOCK 90000",
        "LOCK.MACQUIRE 2 free k you BLOCK 0",
        "LOCK.UPGRADE shared you BLOCK 0",
        "SEM.ACQUIRE s you LIMIT 1 BLOCK 0",
    ] {
        for resp3 in [false, true] {
            let mut gone = Raw::connect(&server);
            if resp3 {
                gone.hello3();
            }
            let id = gone.id().to_string();
            waits(&server, &mut gone, line);
            assert_eq!(client.call(["CLIENT", "UNBLOCK", &id]), 1, "{line}");
            assert!(served(&mut gone).is_nil(), "{line}");
            waits(&server, &mut gone, line);
            assert_eq!(client.call(["CLIENT", "UNBLOCK", &id, "ERROR"]), 1);
            assert!(served(&mut gone).err().starts_with("UNBLOCKED"), "{line}");
            assert_eq!(client.call(["CLIENT", "UNBLOCK", &id]), 0, "{line}");
            assert_eq!(gone.run("PING"), "PONG");
            assert_eq!(waiting(&server), 0, "{line}");
        }
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
}

#[test]
fn a_closed_connection_never_gets_the_lock() {
    let (server, mut client) = server_and_client();
    for _ in 0..20 {
        client.run("LOCK.ACQUIRE k me");
        let gone = waiter(&server, "LOCK.ACQUIRE k gone BLOCK 0");
        drop(gone);
        await_waiting(&server, 0);
        client.run("LOCK.RELEASE k me");
        assert_eq!(client.run("EXISTS k"), 0);
    }
    assert_eq!(server.info_int("sluice_lock_handoffs"), 0);
}

#[test]
fn a_waiter_killed_in_the_transaction_that_releases_does_not_get_the_lock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut gone = Raw::connect(&server);
    let id = gone.id();
    waits(&server, &mut gone, "LOCK.ACQUIRE k gone BLOCK 0");
    let mut next = waiter(&server, "LOCK.ACQUIRE k next BLOCK 0");
    client.run("MULTI");
    client.run(&format!("CLIENT KILL ID {id}"));
    client.run("LOCK.RELEASE k me");
    client.run("EXEC");
    assert!(gone.closes_within(SOON));
    fence(&served(&mut next));
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("next".into(), 1)]);
}

// Pipelines and protocols

#[test]
fn commands_behind_one_that_waits_run_after_it() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut pipeline = Raw::connect(&server);
    for line in [
        "SET before 1",
        "LOCK.ACQUIRE k you BLOCK 0",
        "SET after 1",
        "LOCK.HELD k you",
        "LOCK.RELEASE k you",
        "LOCK.ACQUIRE j you BLOCK 0",
        "PING",
    ] {
        pipeline.ask(line);
    }
    await_waiting(&server, 1);
    assert_eq!(pipeline.read(), "OK");
    still_waits(&mut pipeline);
    assert_eq!(client.run("EXISTS before after"), 1);
    client.run("LOCK.ACQUIRE j me");
    client.run("LOCK.RELEASE k me");
    let given = fence(&pipeline.read());
    assert_eq!(pipeline.read(), "OK");
    assert_eq!(pipeline.read(), given);
    assert_eq!(pipeline.read(), 0);
    await_waiting(&server, 1);
    still_waits(&mut pipeline);
    client.run("LOCK.RELEASE j me");
    fence(&pipeline.read());
    assert_eq!(pipeline.read(), "PONG");
}

#[test]
fn blocked_clients_get_replies_of_their_protocol() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut modern = Raw::connect(&server);
    modern.hello3();
    waits(&server, &mut modern, "LOCK.MACQUIRE 2 k j you BLOCK 0");
    client.run("LOCK.RELEASE k me");
    let fences = served(&mut modern);
    let fences: Vec<_> = fences.array().iter().map(fence).collect();
    assert_eq!(client.run("LOCK.HELD k you"), fences[0]);
    assert_eq!(client.run("LOCK.HELD j you"), fences[1]);
    let mut other = Raw::connect(&server);
    other.hello3();
    assert_eq!(other.run("LOCK.ACQUIRE k me BLOCK 20"), Value::Nil);
    assert_eq!(other.run("LOCK.MACQUIRE 1 k me BLOCK 20"), Value::Nil);
    client.run("SEM.ACQUIRE s me LIMIT 1");
    waits(&server, &mut other, "SEM.ACQUIRE s you LIMIT 1 BLOCK 0");
    client.run("SEM.RELEASE s me");
    fence(&served(&mut other));
    // The server counts them as it counts all blocked clients.
    waits(&server, &mut other, "SEM.ACQUIRE s third LIMIT 1 BLOCK 0");
    assert_eq!(server.info_int("blocked_clients"), 1);
}

#[test]
fn a_waiting_client_may_not_do_anything_else_and_others_may() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let _waiters: Vec<_> = (0..50)
        .map(|number| waiter(&server, &format!("LOCK.ACQUIRE k w{number} BLOCK 0")))
        .collect();
    assert_eq!(client.run("SET x 1"), "OK");
    fence(&client.run("LOCK.ACQUIRE other me"));
    assert_eq!(queue(&client.run("LOCK.INFO k")).len(), 50);
}

// CLIENT PAUSE

#[test]
fn a_lease_that_ends_in_a_pause_of_writes_serves_after_it() {
    let (server, mut client) = server_and_client();
    // The leases end in the pause, however long the pause takes to begin.
    let (lock, mut next, mut next_permit, mut times_out) = with_growing_lease(800, |lease| {
        let start = Instant::now();
        let (lock, permit, watched) = (
            format!("k{lease}"),
            format!("s{lease}"),
            format!("w{lease}"),
        );
        client.must(&format!("LOCK.ACQUIRE {lock} me PX {lease}"));
        client.must(&format!("SEM.ACQUIRE {permit} me LIMIT 1 PX {lease}"));
        client.must(&format!("LOCK.ACQUIRE {watched} me PX {lease} WATCHDOG"));
        let next = waiter(&server, &format!("LOCK.ACQUIRE {lock} you BLOCK 0"));
        let next_permit = waiter(
            &server,
            &format!("SEM.ACQUIRE {permit} you LIMIT 1 BLOCK 0"),
        );
        let block = lease + 200;
        let times_out = waiter(
            &server,
            &format!("LOCK.ACQUIRE {watched} you BLOCK {block}"),
        );
        client.must("CLIENT PAUSE 100000 WRITE");
        if start.elapsed() < Duration::from_millis(lease.unsigned_abs()) {
            return Some((lock, next, next_permit, times_out));
        }
        client.must("CLIENT UNPAUSE");
        None
    });
    assert!(served(&mut times_out).is_nil());
    // Nobody is promised anything while nothing can be written.
    still_waits(&mut next);
    still_waits(&mut next_permit);
    client.run("CLIENT UNPAUSE");
    fence(&served(&mut next));
    fence(&served(&mut next_permit));
    fence(&client.run(&format!("LOCK.HELD {lock} you")));
}

#[test]
fn a_client_that_times_out_in_a_pause_of_writes_leaves_at_once() {
    let (server, mut client) = server_and_client();
    // The lease ends in the pause, however long it takes until that begins.
    let (mut gone, mut built_in) = with_growing_lease(100, |lease| {
        let start = Instant::now();
        client.must(&format!("LOCK.ACQUIRE k{lease} me PX {lease}"));
        let block = lease + 200;
        let gone = waiter(
            &server,
            &format!("LOCK.ACQUIRE k{lease} gone BLOCK {block}"),
        );
        // What a built-in command does in the same place.
        let mut built_in = Raw::connect(&server);
        let id = built_in.id();
        built_in.ask(&format!("BLPOP list {}", block as f64 / 1000.0));
        let line = format!("CLIENT LIST ID {id}");
        eventually(SOON, || {
            !client.must(&line).text().contains("cmd=client|id")
        });
        client.must("CLIENT PAUSE 100000 WRITE");
        if start.elapsed() < Duration::from_millis(lease.unsigned_abs()) {
            return Some((gone, built_in));
        }
        client.must("CLIENT UNPAUSE");
        None
    });
    assert!(served(&mut built_in).is_nil());
    let reply = gone.read_within(SOON);
    client.run("CLIENT UNPAUSE");
    let reply = reply.expect("it had to wait until the pause ended");
    assert!(reply.is_nil(), "its time was up, and it got {reply:?}");
}

#[test]
fn a_connection_lost_in_a_pause_of_writes_is_dealt_with_after_it() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k holder WATCHDOG");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let gone = waiter(&server, "LOCK.ACQUIRE k gone BLOCK 0");
    client.run("CLIENT PAUSE 100000 WRITE");
    drop(holder);
    drop(gone);
    await_waiting(&server, 1);
    client.run("CLIENT UNPAUSE");
    fence(&served(&mut next));
    client.run("LOCK.RELEASE k you");
    eventually(SOON, || client.run("EXISTS k") == 0);
}

// UPGRADE

#[test]
fn an_upgrade_waits_ahead_of_the_queue() {
    let (server, mut client) = server_and_client();
    let shared = fence(&client.run("LOCK.ACQUIRE k a SHARED"));
    client.run("LOCK.ACQUIRE k a SHARED");
    client.run("LOCK.ACQUIRE k b SHARED");
    let mut x = waiter(&server, "LOCK.ACQUIRE k x BLOCK 0");
    let mut upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    assert_eq!(queue(&client.run("LOCK.INFO k"))[0], "a");
    assert!(client.run("LOCK.ACQUIRE k c SHARED").is_nil());
    client.run("LOCK.RELEASE k b");
    let exclusive = fence(&served(&mut upgrade));
    assert!(exclusive > shared);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"exclusive");
    assert_eq!(holders(&info), [("a".into(), 2)]);
    still_waits(&mut x);
    client.run("LOCK.RELEASE k a ALL");
    fence(&served(&mut x));
}

#[test]
fn an_upgrade_is_served_when_the_lease_of_the_others_ends() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED PX 100000");
    client.run("LOCK.ACQUIRE k b SHARED PX 200");
    let mut upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    fence(&served(&mut upgrade));
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("a".into(), 1)]);
}

#[test]
fn the_second_of_two_upgraders_is_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED");
    client.run("LOCK.ACQUIRE k b SHARED");
    let mut upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    let digest = client.run("DEBUG DIGEST");
    let second = refused_at_once(&server, "LOCK.UPGRADE k b BLOCK 0");
    assert_eq!(second.err(), DEADLOCK);
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 1);
    // Without BLOCK it would not wait: nil.
    assert!(client.run("LOCK.UPGRADE k b").is_nil());
    client.run("LOCK.RELEASE k b");
    fence(&served(&mut upgrade));
}

#[test]
fn a_waiting_upgrade_receives_nil_when_its_hold_ends() {
    let (server, mut client) = server_and_client();
    for end in ["LOCK.RELEASE k a ALL", "LOCK.RENEW k a PX 10", "DEL k"] {
        client.run("LOCK.ACQUIRE k a SHARED PX 100000");
        client.run("LOCK.ACQUIRE k b SHARED PX 100000");
        let mut upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
        let mut behind = waiter(&server, "LOCK.ACQUIRE k c SHARED BLOCK 0");
        client.run(end);
        assert!(served(&mut upgrade).is_nil(), "{end}");
        // Whoever stood behind it does so no more.
        fence(&served(&mut behind));
        client.run("DEL k");
    }
    client.run("LOCK.ACQUIRE k a SHARED PX 150");
    client.run("LOCK.ACQUIRE k b SHARED PX 100000");
    let mut upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    assert!(served(&mut upgrade).is_nil());
    assert_eq!(waiting(&server), 0);
}

#[test]
fn an_upgrade_that_gives_up_leaves_the_shared_hold() {
    let (server, mut client) = server_and_client();
    let shared = fence(&client.run("LOCK.ACQUIRE k a SHARED"));
    client.run("LOCK.ACQUIRE k b SHARED");
    assert!(client.run("LOCK.UPGRADE k a BLOCK 30").is_nil());
    assert_eq!(client.run("LOCK.HELD k a"), shared);
    let upgrade = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    let mut behind = waiter(&server, "LOCK.ACQUIRE k c SHARED BLOCK 0");
    drop(upgrade);
    fence(&served(&mut behind));
    assert_eq!(client.run("LOCK.HELD k a"), shared);
    // The other one may upgrade now.
    client.run("LOCK.RELEASE k a");
    client.run("LOCK.RELEASE k c");
    fence(&client.run("LOCK.UPGRADE k b"));
}

// Deadlock

#[test]
fn two_owners_that_would_wait_for_each_other_are_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k1 a");
    client.run("LOCK.ACQUIRE k2 b");
    let mut a = waiter(&server, "LOCK.ACQUIRE k2 a BLOCK 0");
    let digest = client.run("DEBUG DIGEST");
    for line in [
        "LOCK.ACQUIRE k1 b BLOCK 0",
        // Its time would be up some day, but it would never be served.
        "LOCK.ACQUIRE k1 b BLOCK 90000",
        "LOCK.ACQUIRE k1 b SHARED BLOCK 0",
        "LOCK.MACQUIRE 2 free k1 b BLOCK 0",
    ] {
        assert_eq!(refused_at_once(&server, line).err(), DEADLOCK, "{line}");
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 4);
    assert_eq!(waiting(&server), 1);
    // Without BLOCK it would not wait.
    assert!(client.run("LOCK.ACQUIRE k1 b").is_nil());
    client.run("LOCK.RELEASE k2 b");
    fence(&served(&mut a));
}

#[test]
fn longer_cycles_are_deadlocks() {
    let (server, mut client) = server_and_client();
    let size = 6;
    for number in 0..size {
        client.run(&format!("LOCK.ACQUIRE k{number} o{number}"));
    }
    let mut waiters: Vec<_> = (0..size - 1)
        .map(|number| {
            let next = number + 1;
            waiter(&server, &format!("LOCK.ACQUIRE k{next} o{number} BLOCK 0"))
        })
        .collect();
    let last = size - 1;
    let closing = refused_at_once(&server, &format!("LOCK.ACQUIRE k0 o{last} BLOCK 0"));
    assert_eq!(closing.err(), DEADLOCK);
    // The cycle is not closed: the last one lets go, and all are served one after another.
    client.run(&format!("LOCK.RELEASE k{last} o{last}"));
    for number in (0..last).rev() {
        fence(&served(&mut waiters[number]));
        client.run(&format!("LOCK.RELEASE k{number} o{number}"));
    }
    assert_eq!(waiting(&server), 0);
}

#[test]
fn a_cycle_over_databases_is_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a");
    let mut other = Raw::connect(&server);
    other.run("SELECT 9");
    other.run("LOCK.ACQUIRE k b");
    let _b = waiter(&server, "LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(other.run("LOCK.ACQUIRE k a BLOCK 0").err(), DEADLOCK);
}

#[test]
fn a_cycle_is_still_seen_after_its_databases_are_swapped() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k1 a");
    client.run("LOCK.ACQUIRE k2 b");
    let mut swapped = Raw::connect(&server);
    swapped.run("SELECT 1");
    swapped.run("LOCK.ACQUIRE k2 b");
    // `a` waits at k2 of database 0: for `b` before the swap and for `b` after it.
    let _a = waiter(&server, "LOCK.ACQUIRE k2 a BLOCK 0");
    client.run("SWAPDB 0 1");
    // Now `a` holds k1 in database 1.
    assert_eq!(swapped.run("LOCK.ACQUIRE k1 b BLOCK 0").err(), DEADLOCK);
}

#[test]
fn a_cycle_through_somebody_ahead_in_the_queue_is_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED");
    client.run("LOCK.ACQUIRE j c");
    let _b = waiter(&server, "LOCK.ACQUIRE k b BLOCK 0");
    // Not behind the holder, which shares, but behind `b`, which waits for the holder.
    let mut c = waiter(&server, "LOCK.ACQUIRE k c SHARED BLOCK 0");
    let closing = refused_at_once(&server, "LOCK.ACQUIRE j a BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    still_waits(&mut c);
    client.run("LOCK.RELEASE k a");
    assert_eq!(waiting(&server), 1);
    client.run("LOCK.RELEASE k b");
    fence(&served(&mut c));
}

#[test]
fn a_request_behind_a_waiter_for_its_own_owner_is_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE j a");
    client.run("LOCK.ACQUIRE k h SHARED");
    // `b` waits for `a` with both keys, and so stands in line at `k` as well.
    let _b = waiter(&server, "LOCK.MACQUIRE 2 j k b BLOCK 0");
    // `a` would stand behind `b`, and `b` waits until `a` gives `j` back.
    let closing = refused_at_once(&server, "LOCK.ACQUIRE k a SHARED BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
}

/// `a` waits to share a lock. Its second request, for this lock and another one exclusively, would get nil when `a` begins to
/// share. But the first request leaves. Now the second one keeps `b` waiting at the other lock.
#[test]
fn a_request_that_leaves_closes_a_cycle_at_another_lock() {
    for how in ["cancel", "disconnect", "unblock", "timeout"] {
        let (server, mut client) = server_and_client();
        client.run("LOCK.MACQUIRE 2 lock other h PX 600000");
        client.run("LOCK.ACQUIRE held b PX 600000");
        let block = if how == "timeout" { 3000 } else { 0 };
        let mut shared = Raw::connect(&server);
        let id = shared.id();
        let line = format!("LOCK.ACQUIRE lock a SHARED BLOCK {block} ID shared");
        waits(&server, &mut shared, &line);
        let mut both = waiter(&server, "LOCK.MACQUIRE 2 lock other a BLOCK 0");
        let mut held = waiter(&server, "LOCK.ACQUIRE held a BLOCK 0");
        let mut closing = waiter(&server, "LOCK.ACQUIRE other b SHARED BLOCK 0");
        match how {
            "cancel" => assert_eq!(client.run("LOCK.CANCEL lock shared"), 1),
            "disconnect" => drop(shared),
            "unblock" => assert_eq!(client.run(&format!("CLIENT UNBLOCK {id}")), 1),
            _ => assert!(served(&mut shared).is_nil()),
        }
        assert_eq!(served(&mut closing).err(), DEADLOCK, "{how}");
        client.run("LOCK.MRELEASE 2 lock other h");
        assert_eq!(served(&mut both).array().len(), 2);
        client.run("LOCK.RELEASE held b");
        fence(&served(&mut held));
    }
}

#[test]
fn cycles_through_requests_for_several_locks_are_deadlocks() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k1 a");
    client.run("LOCK.ACQUIRE k2 b");
    client.run("LOCK.ACQUIRE k3 c");
    let mut many = waiter(&server, "LOCK.MACQUIRE 3 free k2 k3 a BLOCK 0");
    for line in [
        "LOCK.ACQUIRE k1 b BLOCK 0",
        "LOCK.ACQUIRE k1 c BLOCK 0",
        "LOCK.MACQUIRE 2 free2 k1 c BLOCK 0",
    ] {
        assert_eq!(refused_at_once(&server, line).err(), DEADLOCK, "{line}");
    }
    // `c` would stand behind `a` at k2, which waits for k3 of `c`.
    let closing = refused_at_once(&server, "LOCK.ACQUIRE k2 c BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    // `c` waits for `b` only: no cycle, since `b` can go on.
    client.run("LOCK.ACQUIRE other b");
    let mut c = waiter(&server, "LOCK.ACQUIRE other c BLOCK 0");
    client.run("LOCK.RELEASE k2 b");
    assert_eq!(client.run("EXISTS k2"), 0);
    still_waits(&mut many);
    client.run("LOCK.RELEASE other b");
    fence(&served(&mut c));
    client.run("LOCK.RELEASE k3 c");
    assert_eq!(served(&mut many).array().len(), 3);
}

#[test]
fn the_upgrade_of_one_lock_closes_a_cycle_over_another() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a SHARED");
    client.run("LOCK.ACQUIRE k b SHARED");
    client.run("LOCK.ACQUIRE j a");
    let b = waiter(&server, "LOCK.ACQUIRE j b BLOCK 0");
    let closing = refused_at_once(&server, "LOCK.UPGRADE k a BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    // The other way round.
    drop(b);
    await_waiting(&server, 0);
    client.run("FLUSHALL");
    client.run("LOCK.ACQUIRE k a SHARED");
    client.run("LOCK.ACQUIRE k b SHARED");
    client.run("LOCK.ACQUIRE j a");
    let _a = waiter(&server, "LOCK.UPGRADE k a BLOCK 0");
    let closing = refused_at_once(&server, "LOCK.ACQUIRE j b BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
}

#[test]
fn a_semaphore_in_a_cycle_is_a_deadlock_unless_somebody_else_can_make_room() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 1");
    client.run("LOCK.ACQUIRE k b");
    let _a = waiter(&server, "LOCK.ACQUIRE k a BLOCK 0");
    let closing = refused_at_once(&server, "SEM.ACQUIRE s b LIMIT 1 BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);

    client.run("SEM.ACQUIRE t a LIMIT 2");
    client.run("SEM.ACQUIRE t free LIMIT 2");
    let mut b = waiter(&server, "SEM.ACQUIRE t b LIMIT 2 BLOCK 0");
    client.run("SEM.RELEASE t free");
    fence(&served(&mut b));
}

#[test]
fn holders_of_all_permits_that_wait_for_a_client_of_their_semaphore_are_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 2");
    client.run("SEM.ACQUIRE s c LIMIT 2");
    client.run("LOCK.ACQUIRE k b");
    let _a = waiter(&server, "LOCK.ACQUIRE k a BLOCK 0");
    let _b = waiter(&server, "SEM.ACQUIRE s b LIMIT 2 BLOCK 0");
    // `c` was the only one who could make room for `b`.
    let closing = refused_at_once(&server, "LOCK.ACQUIRE k c BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
}

#[test]
fn an_owner_that_would_wait_for_its_own_permits_does_not_wait() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 2");
    // Nobody but itself could make room. Refused, as a shared holder that asks for the exclusive lock.
    let reply = refused_at_once(&server, "SEM.ACQUIRE s me LIMIT 3 PERMITS 2 BLOCK 0");
    assert!(reply.is_nil() || reply.err() == DEADLOCK, "{reply:?}");
}

#[test]
fn an_owner_that_would_wait_behind_one_that_waits_for_its_permits_is_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 3 PERMITS 2");
    let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 3 PERMITS 2 BLOCK 0");
    // One permit is free, but `b` stands ahead, and waits for `a`.
    let reply = refused_at_once(&server, "SEM.ACQUIRE s a LIMIT 3 BLOCK 0");
    assert!(!reply.is_err() || reply.err() == DEADLOCK, "{reply:?}");
    still_waits(&mut b);
}

#[test]
fn two_holders_of_all_permits_that_both_want_more_are_a_deadlock() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 2");
    client.run("SEM.ACQUIRE s b LIMIT 2");
    // `b` can make room.
    let mut a = waiter(&server, "SEM.ACQUIRE s a LIMIT 2 BLOCK 0");
    // Now nobody can.
    let closing = refused_at_once(&server, "SEM.ACQUIRE s b LIMIT 2 BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    client.run("SEM.RELEASE s b");
    fence(&served(&mut a));
}

#[test]
fn a_hold_with_an_ended_lease_is_in_no_cycle() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k1 a PX 100000");
    client.run("LOCK.ACQUIRE k2 b PX 100000");
    let mut a = waiter(&server, "LOCK.ACQUIRE k2 a BLOCK 0");
    // `a` has lost its hold while it waits.
    client.run("LOCK.RELEASE k1 a");
    fence(&client.run("LOCK.ACQUIRE k1 b BLOCK 0"));
    still_waits(&mut a);
}

#[test]
fn a_waiter_that_has_gone_is_in_no_cycle() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k1 a");
    client.run("LOCK.ACQUIRE k2 b");
    let gone = waiter(&server, "LOCK.ACQUIRE k2 a BLOCK 0");
    drop(gone);
    await_waiting(&server, 0);
    let mut b = waiter(&server, "LOCK.ACQUIRE k1 b BLOCK 0");
    client.run("LOCK.RELEASE k1 a");
    fence(&served(&mut b));
}

#[test]
fn many_waiters_without_a_cycle_are_no_deadlock() {
    let (server, mut client) = server_and_client();
    // A comb: 20 owners wait for the first, each of them is waited for by two others.
    client.run("LOCK.ACQUIRE root o");
    for number in 0..20 {
        client.run(&format!("LOCK.ACQUIRE k{number} o{number} SHARED"));
        client.run(&format!("LOCK.ACQUIRE shared o{number} SHARED"));
    }
    let mut waiters = Vec::new();
    for number in 0..20 {
        waiters.push(waiter(
            &server,
            &format!("LOCK.ACQUIRE root o{number} BLOCK 0"),
        ));
        waiters.push(waiter(
            &server,
            &format!("LOCK.ACQUIRE k{number} x{number} BLOCK 0"),
        ));
        waiters.push(waiter(
            &server,
            &format!("LOCK.ACQUIRE k{number} y{number} SHARED BLOCK 0"),
        ));
    }
    // An owner with two connections waits twice.
    waiters.push(waiter(&server, "LOCK.ACQUIRE k3 x1 BLOCK 0"));
    waiters.push(waiter(&server, "LOCK.MACQUIRE 2 k5 k7 z BLOCK 0"));
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 0);
    assert_eq!(waiting(&server), 62);
    client.run("FLUSHALL");
    let control = &mut client;
    eventually(SOON, || {
        // Whoever gets a lock loses it at once: all are served.
        control.run("FLUSHALL");
        waiting(&server) == 0
    });
    for waiter in &mut waiters {
        let reply = served(waiter);
        assert!(!reply.is_err(), "{reply:?}");
    }
}

/// A generator of numbers that look random: xorshift.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn owners_that_lock_in_order_never_meet_a_deadlock() {
    let server = Server::start();
    thread::scope(|scope| {
        for number in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut client = Raw::connect(server);
                let mut numbers = Numbers(number + 1);
                for _ in 0..60 {
                    let first = numbers.below(3);
                    for key in [first, first + 1 + numbers.below(2)] {
                        let shared = ["", "SHARED"][numbers.below(2) as usize];
                        let line = format!("LOCK.ACQUIRE k{key} o{number} {shared} BLOCK 0");
                        fence(&client.run(&line));
                    }
                    for key in 0..5 {
                        client.run(&format!("LOCK.RELEASE k{key} o{number} ALL"));
                    }
                }
            });
        }
    });
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 0);
    assert_eq!(waiting(&server), 0);
    assert_eq!(server.command(["DBSIZE"]), 0);
}

/// Eight owners that ask for what they like, and start again when they are told of a deadlock.
#[track_caller]
fn always_go_on(request: impl Fn(&mut Numbers, u64, u64) -> String + Sync) {
    let server = Server::start();
    // Returns how many deadlocks the owner met.
    let live = |owner: u64| -> u32 {
        let mut client = Raw::connect(&server);
        let mut numbers = Numbers(owner + 77);
        let mut deadlocks = 0;
        for _ in 0..60 {
            for step in 0..3 {
                let line = request(&mut numbers, owner, step);
                client.ask(&format!("{line} BLOCK 0 PX 600000"));
                // Nobody holds for longer than a few commands take.
                let reply = client.read_within(SOON);
                let reply = reply.unwrap_or_else(|| panic!("nobody sees the deadlock: {line}"));
                if reply.is_err() {
                    assert_eq!(reply.err(), DEADLOCK);
                    deadlocks += 1;
                    break;
                }
            }
            for key in 0..4 {
                client.run(&format!("LOCK.RELEASE k{key} o{owner} ALL"));
                client.run(&format!("SEM.RELEASE s{key} o{owner} ALL"));
            }
        }
        deadlocks
    };
    let live = &live;
    let total: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|owner| scope.spawn(move || live(owner)))
            .collect();
        let counts = threads.into_iter().map(thread::ScopedJoinHandle::join);
        counts.map(|count| count.expect("see above")).sum()
    });
    assert_eq!(server.info_int("sluice_lock_deadlocks"), i64::from(total));
    assert_eq!(waiting(&server), 0);
    assert_eq!(server.command(["DBSIZE"]), 0);
}

#[test]
fn owners_that_lock_in_any_order_always_go_on() {
    always_go_on(|numbers, owner, _| {
        let key = numbers.below(4);
        let other = (key + 1) % 4;
        match numbers.below(4) {
            0 => format!("LOCK.ACQUIRE k{key} o{owner}"),
            1 => format!("LOCK.ACQUIRE k{key} o{owner} SHARED"),
            2 => format!("LOCK.UPGRADE k{key} o{owner}"),
            _ => format!("LOCK.MACQUIRE 2 k{key} k{other} o{owner}"),
        }
    });
}

#[test]
fn owners_that_take_locks_and_permits_once_each_always_go_on() {
    always_go_on(|numbers, owner, step| {
        // Of each three keys one, so that nobody asks for more of what it has.
        let key = [0, 1][numbers.below(2) as usize];
        match (step + owner) % 3 {
            0 => format!("LOCK.ACQUIRE k{key} o{owner}"),
            1 => format!("SEM.ACQUIRE s{key} o{owner} LIMIT 2"),
            _ => format!("SEM.ACQUIRE s{} o{owner} LIMIT 3 PERMITS 2", key + 2),
        }
    });
}

#[test]
fn owners_that_take_permits_in_any_order_always_go_on() {
    always_go_on(|numbers, owner, _| {
        let key = numbers.below(2);
        match numbers.below(3) {
            0 => format!("LOCK.ACQUIRE k{key} o{owner}"),
            1 => format!("SEM.ACQUIRE s{key} o{owner} LIMIT 2"),
            _ => format!("SEM.ACQUIRE s{key} o{owner} LIMIT 2 PERMITS 2"),
        }
    });
}

// MACQUIRE

#[test]
fn a_request_for_several_locks_holds_nothing_while_it_waits() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE b holder");
    let mut many = waiter(&server, "LOCK.MACQUIRE 3 a b c many BLOCK 0 PX 90000");
    assert_eq!(client.run("EXISTS a b c"), 1);
    assert!(client.run("LOCK.HELD a many").is_nil());
    client.run("LOCK.RELEASE b holder");
    let fences = served(&mut many);
    let fences: Vec<_> = fences.array().iter().map(fence).collect();
    for (key, given) in ["a", "b", "c"].into_iter().zip(fences) {
        assert_eq!(client.call(["LOCK.HELD", key, "many"]), given);
        about(client.call(["PTTL", key]).int(), 90_000);
    }
}

#[test]
fn a_request_for_several_locks_is_not_overtaken_on_any_of_them() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE b holder");
    let mut many = waiter(&server, "LOCK.MACQUIRE 2 a b many BLOCK 0");
    // `a` is free, and yet `many` stands ahead.
    assert!(client.run("LOCK.ACQUIRE a x").is_nil());
    assert!(client.run("LOCK.ACQUIRE a x SHARED").is_nil());
    assert!(client.run("LOCK.MACQUIRE 2 a z x").is_nil());
    let mut at_a = waiter(&server, "LOCK.ACQUIRE a x BLOCK 0");
    let mut at_b = waiter(&server, "LOCK.ACQUIRE b y BLOCK 0");
    still_waits(&mut at_a);
    client.run("LOCK.RELEASE b holder");
    assert_eq!(served(&mut many).array().len(), 2);
    still_waits(&mut at_a);
    still_waits(&mut at_b);
    client.run("LOCK.MRELEASE 2 a b many");
    fence(&served(&mut at_a));
    fence(&served(&mut at_b));
}

#[test]
fn requests_for_several_locks_are_served_in_order() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.MACQUIRE 3 a b c holder");
    let mut ab = waiter(&server, "LOCK.MACQUIRE 2 a b one BLOCK 0");
    let mut bc = waiter(&server, "LOCK.MACQUIRE 2 b c two BLOCK 0");
    let mut c = waiter(&server, "LOCK.ACQUIRE c three BLOCK 0");
    let mut d = Raw::connect(&server);
    client.run("LOCK.RELEASE c holder");
    // `c` is free, but `two` stands ahead there and waits for `b`.
    still_waits(&mut c);
    client.run("LOCK.RELEASE b holder");
    still_waits(&mut ab);
    client.run("LOCK.RELEASE a holder");
    assert_eq!(served(&mut ab).array().len(), 2);
    still_waits(&mut bc);
    client.run("LOCK.RELEASE a one");
    assert_eq!(waiting(&server), 2);
    client.run("LOCK.RELEASE b one");
    assert_eq!(served(&mut bc).array().len(), 2);
    still_waits(&mut c);
    client.run("LOCK.MRELEASE 2 b c two");
    fence(&served(&mut c));
    fence(&d.run("LOCK.ACQUIRE a four"));
}

#[test]
fn a_request_for_several_locks_is_not_starved() {
    let server = Server::start();
    // Two keys that are hardly ever free at the same time: each has three clients that want it all the time.
    let served = thread::scope(|scope| {
        let (done, stop) = std::sync::mpsc::channel::<()>();
        let stop = std::sync::Arc::new(std::sync::Mutex::new(stop));
        for number in 0..6 {
            let (server, stop) = (&server, stop.clone());
            scope.spawn(move || {
                let mut client = Raw::connect(server);
                let key = number % 2;
                loop {
                    fence(&client.run(&format!("LOCK.ACQUIRE k{key} o{number} BLOCK 0")));
                    client.run(&format!("LOCK.RELEASE k{key} o{number}"));
                    let end = stop.lock().expect("another thread failed").try_recv();
                    if end == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                        return;
                    }
                }
            });
        }
        let mut client = Raw::connect(&server);
        let mut served = 0;
        for _ in 0..50 {
            // Long enough for a slow machine, and short for a request that is overtaken all the time.
            let reply = client.run("LOCK.MACQUIRE 2 k0 k1 many BLOCK 60000");
            if reply.is_nil() {
                break;
            }
            client.run("LOCK.MRELEASE 2 k0 k1 many");
            served += 1;
        }
        drop(done);
        served
    });
    assert_eq!(served, 50);
}

#[test]
fn a_request_for_several_locks_that_goes_leaves_all_queues() {
    let (server, mut client) = server_and_client();
    for how in ["timeout", "close", "unblock"] {
        client.run("LOCK.ACQUIRE c holder");
        let mut many = Raw::connect(&server);
        let id = many.id();
        let block = if how == "timeout" { 300 } else { 0 };
        let line = format!("LOCK.MACQUIRE 3 a b c many BLOCK {block}");
        waits(&server, &mut many, &line);
        let mut a = waiter(&server, "LOCK.ACQUIRE a x BLOCK 0");
        let mut b = waiter(&server, "LOCK.ACQUIRE b y SHARED BLOCK 0");
        match how {
            "timeout" => assert!(served(&mut many).is_nil()),
            "close" => drop(many),
            _ => {
                assert_eq!(client.run(&format!("CLIENT UNBLOCK {id}")), 1);
                assert!(served(&mut many).is_nil());
            }
        }
        fence(&served(&mut a));
        fence(&served(&mut b));
        client.run("LOCK.RELEASE c holder");
        assert_eq!(client.run("EXISTS c"), 0, "{how}");
        assert_eq!(waiting(&server), 0, "{how}");
        client.run("FLUSHALL");
    }
}

#[test]
fn a_request_for_several_locks_is_served_when_the_last_lease_ends() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE a x PX 100");
    client.run("LOCK.ACQUIRE b y PX 250");
    client.run("LOCK.ACQUIRE c z SHARED PX 150");
    let mut many = waiter(&server, "LOCK.MACQUIRE 3 a b c many BLOCK 0");
    let fences = served(&mut many);
    assert_eq!(fences.array().len(), 3);
    assert_eq!(holders(&client.run("LOCK.INFO b")), [("many".into(), 1)]);
}

#[test]
fn a_free_key_of_a_waiting_request_that_becomes_something_else_is_an_error() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE b holder");
    let mut many = waiter(&server, "LOCK.MACQUIRE 2 a b many BLOCK 0");
    let mut behind = waiter(&server, "LOCK.ACQUIRE a behind BLOCK 0");
    client.run("SET a string");
    still_waits(&mut behind);
    client.run("LOCK.RELEASE b holder");
    assert_eq!(served(&mut many).err(), WRONGTYPE);
    assert_eq!(served(&mut behind).err(), WRONGTYPE);
    // All or none.
    assert_eq!(client.run("EXISTS b"), 0);
    assert_eq!(client.run("GET a"), "string");
}

#[test]
fn a_request_for_several_locks_counts_as_one_waiter_and_reenters() {
    let (server, mut client) = server_and_client();
    let own = fence(&client.run("LOCK.ACQUIRE a me"));
    client.run("LOCK.ACQUIRE b you");
    let mut many = waiter(&server, "LOCK.MACQUIRE 2 a b me BLOCK 0");
    assert_eq!(waiting(&server), 1);
    client.run("LOCK.RELEASE b you");
    let fences = served(&mut many);
    assert_eq!(fences.array()[0], own);
    assert!(fence(&fences.array()[1]) > own);
    assert_eq!(holders(&client.run("LOCK.INFO a")), [("me".into(), 2)]);
}

#[test]
fn a_hold_lost_while_its_owner_waits_for_several_locks_is_taken_anew() {
    let (server, mut client) = server_and_client();
    let own = fence(&client.run("LOCK.ACQUIRE a me"));
    client.run("LOCK.ACQUIRE b you");
    let mut many = waiter(&server, "LOCK.MACQUIRE 2 a b me BLOCK 0");
    client.run("DEL a");
    client.run("LOCK.RELEASE b you");
    let fences = served(&mut many);
    assert!(fence(&fences.array()[0]) > own);
    assert_eq!(holders(&client.run("LOCK.INFO a")), [("me".into(), 1)]);
}

// Limits and ids

#[test]
fn no_more_clients_wait_than_the_configuration_allows() {
    let server = Server::builder()
        .module_args(&["lock-max-waiters", "2"])
        .start();
    let mut client = Raw::connect(&server);
    client.run("LOCK.ACQUIRE k me PX 600000");
    client.run("SEM.ACQUIRE s me LIMIT 1 PX 600000");
    client.run("LOCK.ACQUIRE shared me SHARED PX 600000");
    client.run("LOCK.ACQUIRE shared you SHARED PX 600000");
    let first = waiter(&server, "LOCK.ACQUIRE k a BLOCK 0");
    let _second = waiter(&server, "SEM.ACQUIRE s a LIMIT 1 BLOCK 0");
    let digest = client.run("DEBUG DIGEST");
    for line in [
        "LOCK.ACQUIRE k b BLOCK 0",
        "LOCK.ACQUIRE k b BLOCK 10",
        "LOCK.MACQUIRE 2 free k b BLOCK 0",
        "LOCK.UPGRADE shared you BLOCK 0",
        "SEM.ACQUIRE s b LIMIT 1 BLOCK 0",
    ] {
        assert_eq!(refused_at_once(&server, line).err(), TOO_MANY, "{line}");
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    // Who need not wait is not concerned.
    assert!(client.run("LOCK.ACQUIRE k b").is_nil());
    fence(&client.run("LOCK.ACQUIRE free b BLOCK 0"));
    // A place is free again.
    drop(first);
    await_waiting(&server, 1);
    let _third = waiter(&server, "LOCK.ACQUIRE k c BLOCK 0");
    assert_eq!(client.run("LOCK.ACQUIRE k d BLOCK 0").err(), TOO_MANY);
    assert_eq!(client.run("CONFIG SET sluice.lock-max-waiters 3"), "OK");
    let _fourth = waiter(&server, "LOCK.ACQUIRE k d BLOCK 0");
    assert_eq!(client.run("LOCK.ACQUIRE k e BLOCK 0").err(), TOO_MANY);
}

#[test]
fn the_keys_that_all_clients_wait_for_are_bounded() {
    let server = Server::builder()
        .module_args(&["lock-max-waited-keys", "3"])
        .start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.MACQUIRE 3 a b c holder PX 600000");
    client.must("SEM.ACQUIRE s holder LIMIT 1 PX 600000");
    let first = waiter(&server, "LOCK.MACQUIRE 2 a b me BLOCK 0");
    let line = "LOCK.MACQUIRE 2 b c you BLOCK 0";
    assert_eq!(refused_at_once(&server, line).err(), TOO_MANY);
    let _second = waiter(&server, "LOCK.ACQUIRE a you BLOCK 0");
    for line in [
        "LOCK.ACQUIRE a b BLOCK 0",
        "SEM.ACQUIRE s b LIMIT 1 BLOCK 0",
    ] {
        assert_eq!(refused_at_once(&server, line).err(), TOO_MANY, "{line}");
    }
    // Who repeats a request needs no more room, and who need not wait none.
    assert_eq!(client.run("CONFIG SET sluice.lock-max-waited-keys 4"), "OK");
    let request = "LOCK.ACQUIRE c me BLOCK 0 ID one";
    let _third = waiter(&server, request);
    let _retry = waiter(&server, request);
    fence(&client.run("LOCK.ACQUIRE free b BLOCK 0"));
    drop(first);
    await_waiting(&server, 2);
    let _fourth = waiter(&server, "LOCK.MACQUIRE 2 b c you BLOCK 0");
    assert_eq!(client.run("LOCK.ACQUIRE b b BLOCK 0").err(), TOO_MANY);
}

/// A request of each command that waits, with what somebody holds before, and what he gives back.
const REPEATED: [[&str; 3]; 4] = [
    [
        "LOCK.ACQUIRE k me BLOCK 0 ID one",
        "LOCK.ACQUIRE k holder",
        "LOCK.RELEASE k holder",
    ],
    [
        "LOCK.ACQUIRE k me SHARED BLOCK 0 ID one",
        "LOCK.ACQUIRE k holder",
        "LOCK.RELEASE k holder",
    ],
    [
        "LOCK.MACQUIRE 2 j k me BLOCK 0 ID one",
        "LOCK.MACQUIRE 1 k holder",
        "LOCK.MRELEASE 1 k holder",
    ],
    [
        "SEM.ACQUIRE k me LIMIT 2 PERMITS 2 BLOCK 0 ID one",
        "SEM.ACQUIRE k holder LIMIT 2",
        "SEM.RELEASE k holder",
    ],
];

#[test]
fn a_retry_takes_the_place_of_the_request_that_still_waits() {
    for [request, hold, give_back] in REPEATED {
        let (server, mut client) = server_and_client();
        client.must(hold);
        let mut first = waiter(&server, request);
        let behind = request.replace(" me ", " other ");
        let mut behind = waiter(&server, &behind);
        let mut retry = waiter(&server, request);
        assert!(served(&mut first).is_nil(), "{request}");
        assert_eq!(waiting(&server), 2, "{request}");
        client.must(give_back);
        let given = served(&mut retry);
        assert!(!given.is_nil(), "{request}");
        let info = if request.starts_with("SEM") {
            "SEM.INFO k"
        } else {
            "LOCK.INFO k"
        };
        let count = if request.starts_with("SEM") { 2 } else { 1 };
        let held = holders(&client.run(info));
        assert_eq!(held[0], ("me".into(), count), "{request}");
        if !request.contains("SHARED") {
            still_waits(&mut behind);
        }
        // Once more, after it was served.
        let again = served(&mut waiter_or_not(&server, request));
        assert_eq!(again, given, "{request}");
        assert_eq!(
            holders(&client.run(info))[0],
            ("me".into(), count),
            "{request}"
        );
    }
}

/// A new connection that has sent the command of `line`.
fn waiter_or_not(server: &Server, line: &str) -> Raw {
    let mut client = Raw::connect(server);
    client.ask(line);
    client
}

#[test]
fn a_retry_beside_a_dead_connection_is_served_before_clients_that_wait_for_its_owner() {
    let (server, mut client) = server_and_client();
    for [request, hold, give_back] in REPEATED {
        client.must(hold);
        // Nobody reads from the first connection any more.
        let mut frozen = waiter(&server, request);
        let other = request.replace(" me ", " other ").replace(" SHARED", "");
        let mut other = waiter(&server, &other);
        let mut retry = waiter(&server, request);
        client.must(give_back);
        assert!(!served(&mut retry).is_nil(), "{request}");
        still_waits(&mut other);
        drop(other);
        await_waiting(&server, 0);
        assert!(served(&mut frozen).is_nil(), "{request}");
        client.must("FLUSHALL");
    }
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 0);
}

#[test]
fn a_retry_counts_its_time_anew_and_binds_its_own_connection() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k holder PX 600000");
    let first = waiter(
        &server,
        "LOCK.ACQUIRE k me BLOCK 600000 WATCHDOG PX 600000 ID one",
    );
    let mut other = waiter(&server, "LOCK.ACQUIRE k other BLOCK 0");
    let mut retry = waiter(
        &server,
        "LOCK.ACQUIRE k me BLOCK 0 WATCHDOG PX 300000 ID one",
    );
    drop(first);
    let info = client.run("LOCK.INFO k");
    assert_eq!(queue(&info), ["me", "other"]);
    assert_eq!(info.field("waiters").array()[0].field("timeout_ms"), &0);
    // With less time than the first had left.
    let mut short = waiter(
        &server,
        "LOCK.ACQUIRE k me BLOCK 1 WATCHDOG PX 300000 ID one",
    );
    assert!(served(&mut retry).is_nil());
    assert!(served(&mut short).is_nil());
    assert_eq!(queue(&client.run("LOCK.INFO k")), ["other"]);
    drop(other);
    await_waiting(&server, 0);
    let first = waiter(
        &server,
        "LOCK.ACQUIRE k me BLOCK 0 WATCHDOG PX 600000 ID two",
    );
    let mut retry = waiter(
        &server,
        "LOCK.ACQUIRE k me BLOCK 0 WATCHDOG PX 600000 ID two",
    );
    other = waiter(&server, "LOCK.ACQUIRE k other BLOCK 0");
    client.must("LOCK.RELEASE k holder");
    fence(&served(&mut retry));
    drop(first);
    still_waits(&mut other);
    drop(retry);
    fence(&served(&mut other));
}

#[test]
fn a_retry_that_may_not_wait_leaves_the_request_in_its_place() {
    for [request, hold, give_back] in REPEATED {
        let (server, mut client) = server_and_client();
        client.must(hold);
        let mut first = waiter(&server, request);
        assert!(client.run(&request.replace(" BLOCK 0", "")).is_nil());
        client.must("MULTI");
        client.must(request);
        assert!(client.run("EXEC").array()[0].is_nil());
        still_waits(&mut first);
        assert_eq!(waiting(&server), 1);
        client.must(give_back);
        assert!(!served(&mut first).is_nil(), "{request}");
    }
}

#[test]
fn a_request_with_the_same_id_for_something_else_is_no_retry() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k holder");
    client.must("LOCK.ACQUIRE j holder");
    client.must("SEM.ACQUIRE s holder LIMIT 5 PERMITS 5");
    let lines = [
        "LOCK.ACQUIRE k me BLOCK 0 ID one",
        "LOCK.ACQUIRE j me BLOCK 0 ID one",
        "LOCK.ACQUIRE k you BLOCK 0 ID one",
        "LOCK.ACQUIRE k me BLOCK 0 ID two",
        "LOCK.ACQUIRE k you SHARED BLOCK 0 ID one",
        "LOCK.MACQUIRE 2 j k me BLOCK 0 ID one",
        "LOCK.MACQUIRE 2 k j me BLOCK 0 ID one",
        "LOCK.MACQUIRE 1 k me BLOCK 0 ID one",
        "SEM.ACQUIRE s me LIMIT 5 BLOCK 0 ID one",
        "SEM.ACQUIRE s me LIMIT 5 PERMITS 2 BLOCK 0 ID one",
    ];
    let mut waiters = lines.map(|line| waiter(&server, line));
    assert_eq!(waiting(&server), lines.len() as i64);
    waiters.iter_mut().for_each(still_waits);
}

#[test]
fn a_retry_after_a_lost_reply_gets_the_fence_that_the_waiter_got() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k holder");
    let mut first = waiter(&server, "LOCK.ACQUIRE k me BLOCK 0 ID one");
    let mut behind = waiter(&server, "LOCK.ACQUIRE k other BLOCK 0");
    client.run("LOCK.RELEASE k holder");
    let given = fence(&served(&mut first));
    drop(first);
    assert_eq!(client.run("LOCK.ACQUIRE k me BLOCK 0 ID one"), given);
    assert_eq!(client.run("LOCK.RELEASE k me"), 0);
    fence(&served(&mut behind));
}

#[test]
fn two_connections_of_one_owner_both_get_the_lock() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k holder");
    let mut one = waiter(&server, "LOCK.ACQUIRE k me BLOCK 0");
    let mut other_owner = waiter(&server, "LOCK.ACQUIRE k other BLOCK 0");
    let mut two = waiter(&server, "LOCK.ACQUIRE k me BLOCK 0");
    client.run("LOCK.RELEASE k holder");
    let given = fence(&served(&mut one));
    // It holds the lock now, and so re-enters: behind `other` it would wait for itself.
    assert_eq!(served(&mut two), given);
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 2)]);
    still_waits(&mut other_owner);
    client.run("LOCK.RELEASE k me ALL");
    fence(&served(&mut other_owner));
}

// Semaphores

#[test]
fn permits_are_served_in_order_and_a_large_request_is_not_overtaken() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 4 PERMITS 2");
    client.run("SEM.ACQUIRE s b LIMIT 4");
    let mut large = waiter(&server, "SEM.ACQUIRE s large LIMIT 4 PERMITS 3 BLOCK 0");
    let mut small = waiter(&server, "SEM.ACQUIRE s small LIMIT 4 BLOCK 0");
    // A permit is free all the time.
    still_waits(&mut small);
    assert!(client.run("SEM.ACQUIRE s other LIMIT 4").is_nil());
    client.run("SEM.RELEASE s b");
    assert_eq!(waiting(&server), 2);
    still_waits(&mut small);
    client.run("SEM.RELEASE s a");
    fence(&served(&mut large));
    still_waits(&mut small);
    client.run("SEM.RELEASE s a");
    fence(&served(&mut small));
    let info = client.run("SEM.INFO s");
    assert_eq!(info.field("used"), &4);
}

#[test]
fn one_release_serves_all_that_fit_in_order() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 5 PERMITS 5");
    let mut one = waiter(&server, "SEM.ACQUIRE s one LIMIT 5 PERMITS 2 BLOCK 0");
    let mut two = waiter(&server, "SEM.ACQUIRE s two LIMIT 5 PERMITS 2 BLOCK 0");
    let mut three = waiter(&server, "SEM.ACQUIRE s three LIMIT 5 PERMITS 2 BLOCK 0");
    let mut four = waiter(&server, "SEM.ACQUIRE s four LIMIT 5 PERMITS 1 BLOCK 0");
    client.run("SEM.RELEASE s a ALL");
    let (first, second) = (fence(&served(&mut one)), fence(&served(&mut two)));
    assert!(first < second);
    still_waits(&mut three);
    still_waits(&mut four);
    client.run("SEM.RELEASE s two");
    fence(&served(&mut three));
    still_waits(&mut four);
    client.run("DEL s");
    fence(&served(&mut four));
}

#[test]
fn whatever_removes_a_semaphore_serves_its_waiters() {
    let (server, mut client) = server_and_client();
    for line in [
        "DEL s",
        "PEXPIRE s 10",
        "RENAME s t",
        "FLUSHALL",
        "SWAPDB 0 1",
    ] {
        client.run("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
        let mut one = waiter(&server, "SEM.ACQUIRE s one LIMIT 2 BLOCK 0");
        let mut two = waiter(&server, "SEM.ACQUIRE s two LIMIT 2 BLOCK 0");
        let mut three = waiter(&server, "SEM.ACQUIRE s three LIMIT 2 BLOCK 0");
        client.run(line);
        fence(&served(&mut one));
        fence(&served(&mut two));
        assert_eq!(waiting(&server), 1, "{line}");
        still_waits(&mut three);
        client.run("SEM.RELEASE s one");
        fence(&served(&mut three));
        client.run("FLUSHALL");
    }
    client.run("SEM.ACQUIRE s a LIMIT 1");
    let mut one = waiter(&server, "SEM.ACQUIRE s one LIMIT 1 BLOCK 0");
    client.run("SET s string");
    assert_eq!(served(&mut one).err(), WRONGTYPE);
}

#[test]
fn a_limit_raised_by_a_waiting_client_serves_the_clients_that_fit_now() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
    let mut one = waiter(&server, "SEM.ACQUIRE s one LIMIT 2 BLOCK 0");
    let mut two = Raw::connect(&server);
    two.ask("SEM.ACQUIRE s two LIMIT 4 BLOCK 0");
    let first = fence(&served(&mut one));
    let second = fence(&served(&mut two));
    assert!(first < second, "in order of arrival");
    let info = client.run("SEM.INFO s");
    assert_eq!(info.field("limit"), &4);
    assert_eq!(info.field("used"), &4);
}

#[test]
fn a_limit_lowered_with_waiters_revokes_nothing_and_blocks_nobody_for_ever() {
    let (server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 5 PERMITS 4");
    let mut large = waiter(&server, "SEM.ACQUIRE s large LIMIT 5 PERMITS 5 BLOCK 0");
    let mut low = waiter(&server, "SEM.ACQUIRE s low LIMIT 2 BLOCK 0");
    assert_eq!(holders(&client.run("SEM.INFO s")), [("a".into(), 4)]);
    client.run("SEM.RELEASE s a ALL");
    // It named 5 of 5, and all are free.
    fence(&served(&mut large));
    still_waits(&mut low);
    client.run("SEM.RELEASE s large PERMITS 3");
    // Two of two are in use.
    assert_eq!(waiting(&server), 1);
    still_waits(&mut low);
    client.run("SEM.RELEASE s large");
    fence(&served(&mut low));
    assert_eq!(client.run("SEM.INFO s").field("limit"), &2);
}

#[test]
fn permits_and_locks_do_not_mix_in_one_queue() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut lock = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    let reply = client.run("SEM.ACQUIRE k x LIMIT 1 BLOCK 0");
    assert_eq!(reply.err(), WRONGTYPE);
    // A script takes the lock away and wants to make it a semaphore in one step.
    let script = "redis.call('DEL', KEYS[1])
        return redis.call('SEM.ACQUIRE', KEYS[1], 'x', 'LIMIT', 1)";
    let made = client.call(["EVAL", script, "1", "k"]);
    let reply = served(&mut lock);
    // If the script failed, `you` acquired the lock between its two commands. If it returned nil, the time slice for waiting clients ended
    // first, and `you` acquired the lock later. Otherwise, the script created the semaphore.
    if made.is_err() || made.is_nil() {
        assert_eq!(fence(&reply), client.run("LOCK.HELD k you").int());
    } else {
        assert_eq!(reply.err(), WRONGTYPE);
        assert_eq!(holders(&client.run("SEM.INFO k")), [("x".into(), 1)]);
    }
}

#[test]
fn a_client_that_timed_out_is_not_served_by_a_server_that_was_busy() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    let mut late = waiter(&server, "LOCK.ACQUIRE k late BLOCK 150");
    let mut next = waiter(&server, "LOCK.ACQUIRE k next BLOCK 60000");
    // Both come in one batch, so that no timer runs between them.
    client.pipeline([
        "DEBUG SLEEP 0.4".split(' ').collect::<Vec<_>>(),
        "LOCK.RELEASE k me".split(' ').collect(),
    ]);
    assert!(late.read().is_nil());
    fence(&next.read());
}

#[test]
fn waiting_clients_are_served_in_the_millisecond_of_an_expire() {
    // Without a timer of its own the cron would find it.
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    without_cron(|| {
        client.run("LOCK.ACQUIRE k me PX 600000");
        let mut next = waiter(&server, "LOCK.ACQUIRE k next BLOCK 0");
        client.run("PEXPIRE k 20");
        let start = Instant::now();
        fence(&next.read());
        let took = start.elapsed();
        client.run("DEL k");
        took
    });
}

#[test]
fn a_cycle_through_a_wait_that_came_before_is_seen() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k a");
    client.run("LOCK.ACQUIRE k2 x");
    let _b = waiter(&server, "LOCK.ACQUIRE k b BLOCK 0");
    let _x = waiter(&server, "LOCK.ACQUIRE k x BLOCK 0");
    // `b` will get `k` before `x`, who would then wait for it.
    let closing = refused_at_once(&server, "LOCK.ACQUIRE k2 b BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
}

#[test]
fn a_crowd_that_waits_for_several_locks_at_once_does_not_slow_the_server_down() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.MACQUIRE 2 k j me PX 600000");
    let waiting: Vec<Raw> = (0..400)
        .map(|number| {
            let mut client = Raw::connect(&server);
            client.ask(&format!("LOCK.MACQUIRE 2 k j o{number} BLOCK 0"));
            client
        })
        .collect();
    await_waiting(&server, 400);
    let start = Instant::now();
    let _last = waiter(&server, "LOCK.MACQUIRE 2 k j last BLOCK 0");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(waiting);
}

#[test]
fn a_client_that_is_unblocked_at_the_moment_of_its_service_has_no_hold() {
    let (server, mut client) = server_and_client();
    for _ in 0..5 {
        client.run("LOCK.ACQUIRE k me");
        let mut waiting = Raw::connect(&server);
        let id = waiting.id();
        waiting.ask("LOCK.ACQUIRE k you BLOCK 0 PX 600000");
        await_waiting(&server, 1);
        // In one batch: the release serves the waiter, who is unblocked before its reply is sent.
        let unblock = format!("CLIENT UNBLOCK {id} ERROR");
        client.pipeline([
            "LOCK.RELEASE k me".split(' ').collect::<Vec<_>>(),
            unblock.split(' ').collect(),
        ]);
        let reply = waiting.read();
        if reply.is_err() {
            assert!(reply.err().starts_with("UNBLOCKED"), "{reply:?}");
            assert!(client.run("LOCK.HELD k you").is_nil());
        } else {
            // The two commands did not come together after all.
            fence(&reply);
            client.run("DEL k");
        }
        assert_eq!(client.run("EXISTS k"), 0);
    }
}

#[test]
fn a_client_that_is_unblocked_at_the_moment_of_its_service_finds_its_hold_by_its_id() {
    let (server, mut client) = server_and_client();
    for _ in 0..5 {
        client.run("LOCK.ACQUIRE k me");
        let request = "LOCK.ACQUIRE k you BLOCK 0 PX 600000 ID r";
        let mut waiting = Raw::connect(&server);
        let id = waiting.id();
        waits(&server, &mut waiting, request);
        // In one batch: the release serves the waiting client, which is unblocked before its reply is sent.
        let unblock = format!("CLIENT UNBLOCK {id} ERROR");
        client.pipeline([
            "LOCK.RELEASE k me".split(' ').collect::<Vec<_>>(),
            unblock.split(' ').collect(),
        ]);
        let reply = served(&mut waiting);
        let held = client.run("LOCK.HELD k you");
        if reply.is_err() {
            assert!(reply.err().starts_with("UNBLOCKED"), "{reply:?}");
        } else {
            assert_eq!(reply, held);
        }
        let repeated = fence(&client.run(request));
        assert!(held.is_nil() || held == repeated, "{held:?}, {repeated}");
        assert_eq!(client.run("LOCK.HELD k you"), repeated);
        assert_eq!(client.run("LOCK.RELEASE k you"), 0);
    }
}

/// Redis 7.0 sends no reply at all to a client that is unblocked after the module has unblocked it.
#[test]
fn a_client_that_is_served_and_unblocked_in_the_same_step_receives_an_answer() {
    let (server, mut client) = server_and_client();
    for (hold, line, give) in [
        (
            "LOCK.ACQUIRE k me",
            "LOCK.ACQUIRE k you BLOCK 0",
            "LOCK.RELEASE k me",
        ),
        (
            "SEM.ACQUIRE k me LIMIT 1",
            "SEM.ACQUIRE k you LIMIT 1 BLOCK 0",
            "DEL k",
        ),
    ] {
        client.run(hold);
        let mut waiting = Raw::connect(&server);
        let id = waiting.id();
        waits(&server, &mut waiting, line);
        client.run("MULTI");
        client.run(give);
        client.run(&format!("CLIENT UNBLOCK {id}"));
        assert_eq!(client.run("EXEC").array()[1], 1, "{line}");
        let reply = served(&mut waiting);
        // What `DEL` frees is handed on after the step, when the waiter has gone.
        assert_eq!(reply.is_nil(), give == "DEL k", "{line}: {reply:?}");
        assert_eq!(waiting.run("PING"), "PONG", "{line}");
        assert_eq!(client.run("EXISTS k"), i64::from(!reply.is_nil()), "{line}");
        client.run("DEL k");
    }
}

#[test]
fn a_retry_that_was_served_keeps_what_its_first_connection_never_heard_of() {
    let (server, mut client) = server_and_client();
    for _ in 0..5 {
        client.run("LOCK.ACQUIRE k me");
        let request = "LOCK.ACQUIRE k you BLOCK 0 PX 600000 ID r";
        let mut first = Raw::connect(&server);
        let id = first.id();
        first.ask(request);
        await_waiting(&server, 1);
        let mut retry = waiter(&server, request);
        // In one batch: the retry is served, and the first goes, who may have its answer already.
        let unblock = format!("CLIENT UNBLOCK {id} ERROR");
        client.pipeline([
            "LOCK.RELEASE k me".split(' ').collect::<Vec<_>>(),
            unblock.split(' ').collect(),
        ]);
        let given = fence(&retry.read());
        first.read();
        assert_eq!(client.run("LOCK.HELD k you"), given);
        client.run("DEL k");
    }
}

#[test]
fn a_lowered_limit_closes_a_cycle() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k b");
    client.run("SEM.ACQUIRE s a LIMIT 3");
    client.run("SEM.ACQUIRE s c LIMIT 3");
    let _a = waiter(&server, "LOCK.ACQUIRE k a BLOCK 0");
    // `b` waits for `c` only: with a limit of 3 it needs no permit of `a`.
    let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 3 PERMITS 2 BLOCK 0");
    let closing = refused_at_once(&server, "SEM.ACQUIRE s d LIMIT 2 BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    client.run("SEM.RELEASE s c");
    fence(&served(&mut b));
}

#[test]
fn a_repeated_request_that_lowers_a_limit_closes_a_cycle() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k b");
    client.run("SEM.ACQUIRE s a LIMIT 3");
    client.run("SEM.ACQUIRE s c LIMIT 3");
    let _a = waiter(&server, "LOCK.ACQUIRE k a BLOCK 0");
    let request = "PERMITS 2 BLOCK 0 ID request";
    let _b = waiter(&server, &format!("SEM.ACQUIRE s b LIMIT 3 {request}"));
    let mut again = waiter(&server, &format!("SEM.ACQUIRE s b LIMIT 2 {request}"));
    let refused = again.read_within(SOON).expect("it is refused");
    assert_eq!(refused.err(), DEADLOCK);
}

/// The connections of four clients that wait, the last of them for `k`. `a` holds `k` shared and waits for `j`, which `c` holds.
/// The exclusive request of `e` will get nil, because `e` will share `m` first. So `c`, which waits behind it to share `k`, does not wait
/// for `a` until `a` has `k` exclusively.
fn four_without_a_cycle(server: &Server, client: &mut Raw) -> [Raw; 4] {
    client.must("LOCK.ACQUIRE j c");
    client.must("LOCK.ACQUIRE k a SHARED");
    client.must("LOCK.ACQUIRE m d");
    [
        "LOCK.ACQUIRE m e SHARED BLOCK 0",
        "LOCK.MACQUIRE 2 m k e BLOCK 0",
        "LOCK.ACQUIRE j a BLOCK 0",
        "LOCK.ACQUIRE k c SHARED BLOCK 0",
    ]
    .map(|line| waiter(server, line))
}

#[test]
fn an_upgrade_of_an_owner_that_waits_closes_a_cycle() {
    let (server, mut client) = server_and_client();
    let [_share, _many, _a, mut c] = four_without_a_cycle(&server, &mut client);
    thread::sleep(Duration::from_millis(500)); // a search that began meanwhile would find it
    assert_eq!(waiting(&server), 4);
    assert!(client.must("LOCK.UPGRADE k a").int() > 0);
    let refused = c.read_within(SOON).expect("it is refused");
    assert_eq!(refused.err(), DEADLOCK);
}

/// The upgrade alone could be served, after `b` has released `k`.
#[test]
fn an_upgrade_that_waits_for_others_closes_a_cycle() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k b SHARED");
    let [_share, _many, _a, mut c] = four_without_a_cycle(&server, &mut client);
    let closing = refused_at_once(&server, "LOCK.UPGRADE k a BLOCK 0");
    assert_eq!(closing.err(), DEADLOCK);
    client.must("LOCK.RELEASE m d");
    fence(&served(&mut c));
}

/// A lock comes to a key that clients wait for, without an acquisition.
#[test]
fn a_lock_that_comes_from_another_key_closes_a_cycle() {
    for (prepare, move_it) in [
        ("LOCK.ACQUIRE other a", "RENAME other k"),
        ("LOCK.ACQUIRE other a", "COPY other k REPLACE"),
    ] {
        let (server, mut client) = server_and_client();
        client.run("LOCK.ACQUIRE j c");
        client.run("LOCK.ACQUIRE k b");
        client.run(prepare);
        let _a = waiter(&server, "LOCK.ACQUIRE j a BLOCK 0");
        let mut c = waiter(&server, "LOCK.ACQUIRE k c BLOCK 0");
        client.run(move_it);
        let refused = c.read_within(SOON).expect("it is refused");
        assert_eq!(refused.err(), DEADLOCK, "{move_it}");
        assert_eq!(waiting(&server), 1);
    }
}

#[test]
fn a_lock_that_comes_from_another_database_closes_a_cycle() {
    let (server, mut client) = server_and_client();
    let mut other = Raw::connect(&server);
    other.run("SELECT 1");
    other.run("LOCK.ACQUIRE k a");
    client.run("LOCK.ACQUIRE k b");
    let mut third = Raw::connect(&server);
    third.run("SELECT 2");
    third.run("LOCK.ACQUIRE j c");
    third.send(["LOCK.ACQUIRE", "j", "a", "BLOCK", "0"]);
    await_waiting(&server, 1);
    let mut c = waiter(&server, "LOCK.ACQUIRE k c BLOCK 0");
    client.run("SWAPDB 0 1");
    let refused = c.read_within(SOON).expect("it is refused");
    assert_eq!(refused.err(), DEADLOCK);
}

/// An owner has two requests: one for a lock, and a later one for this lock and another. Another client waits between them. The
/// later request could overtake this client by re-entry, but then the first request leaves: each of the two waits for the other.
#[test]
fn a_client_that_leaves_no_longer_lets_another_one_of_its_owner_pass() {
    for how in ["SHARED BLOCK 0", "BLOCK 0"] {
        let (server, mut client) = server_and_client();
        for (key, owner) in [("k", "first"), ("x", "a"), ("j", "other")] {
            client.must(&format!("LOCK.ACQUIRE {key} {owner} PX 600000"));
        }
        let lines = [
            &*format!("LOCK.ACQUIRE k a {how}"),
            "LOCK.MACQUIRE 2 k x b BLOCK 0",
            "LOCK.MACQUIRE 2 k j a BLOCK 0",
        ];
        let mut waiting = Vec::from(lines.map(|line| waiter(&server, line)));
        thread::sleep(Duration::from_millis(500)); // a search that began meanwhile would find it
        drop(waiting.remove(0));
        eventually(SOON, || server.info_int("sluice_lock_deadlocks") == 1);
        let refused = waiting[1].read_within(SOON).expect("an answer");
        assert_eq!(refused.err(), DEADLOCK);
    }
}

/// An owner that shares a lock now gets nil for its other request, which wants the lock exclusively, although a further lock is busy.
#[test]
fn a_request_for_several_locks_ends_as_soon_as_its_owner_shares_one_of_them() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k first PX 600000");
    client.must("LOCK.ACQUIRE j other PX 600000");
    for keys in ["k j", "j k"] {
        let mut sharing = waiter(&server, "LOCK.ACQUIRE k a SHARED BLOCK 0 PX 600000");
        let mut taking = waiter(&server, &format!("LOCK.MACQUIRE 2 {keys} a BLOCK 0"));
        client.must("LOCK.RELEASE k first");
        fence(&sharing.read_within(SOON).expect("an answer"));
        assert!(taking.read_within(SOON).expect("an answer").is_nil());
        client.must("LOCK.RELEASE k a");
        client.must("LOCK.ACQUIRE k first PX 600000");
    }
}

// Owners that hold what they wait for

/// The lock that its owner holds comes to a key for which the same owner waits behind another client.
#[test]
fn an_owner_enters_the_lock_that_comes_to_the_key_it_waits_for() {
    for (how, ways) in [
        (
            "",
            &[
                "RENAME a b",
                "COPY a b REPLACE",
                "SWAPDB 0 1",
                "MOVE",
                "RESTORE",
            ][..],
        ),
        (" SHARED", &["RENAME a b"]),
    ] {
        for way in ways {
            let (server, mut client) = server_and_client();
            client.must(&format!("LOCK.ACQUIRE a A{how} PX 600000"));
            client.must("LOCK.ACQUIRE b C PX 600000");
            let mut other = waiter(&server, "LOCK.ACQUIRE b B BLOCK 0");
            let mut same = waiter(&server, &format!("LOCK.ACQUIRE b A{how} BLOCK 0"));
            match *way {
                "SWAPDB 0 1" => {
                    client.must("SELECT 1");
                    client.must(&format!("LOCK.ACQUIRE b A{how} PX 600000"));
                    client.must("SELECT 0");
                    client.must(way);
                }
                "MOVE" => {
                    client.must("RENAME a aside");
                    client.must("SELECT 1");
                    client.must(&format!("LOCK.ACQUIRE b A{how} PX 600000"));
                    let script = "redis.call('SELECT', 0) redis.call('DEL', KEYS[1])
                        redis.call('SELECT', 1) redis.call('MOVE', KEYS[1], 0)";
                    client.call(["EVAL", script, "1", "b"]);
                    client.must("SELECT 0");
                }
                "RESTORE" => {
                    let dump = client.run("DUMP a");
                    let restore: [&[u8]; 5] =
                        [b"RESTORE", b"b", b"600000", dump.bytes(), b"REPLACE"];
                    assert_eq!(client.call(restore), "OK");
                }
                _ => drop(client.must(way)),
            }
            fence(&served(&mut same));
            still_waits(&mut other);
            client.must("DEL b");
            fence(&served(&mut other));
        }
    }
}

/// A shared holder cannot get the lock exclusively, however it has come to share it.
#[test]
fn a_request_for_the_exclusive_lock_ends_when_its_owner_begins_to_share_it() {
    for request in ["LOCK.ACQUIRE b A BLOCK 0", "LOCK.MACQUIRE 2 b e A BLOCK 0"] {
        let (server, mut client) = server_and_client();
        client.must("LOCK.ACQUIRE a A SHARED PX 600000");
        client.must("LOCK.ACQUIRE b C PX 600000");
        client.must("LOCK.ACQUIRE e C PX 600000");
        let mut other = waiter(&server, "LOCK.ACQUIRE b B BLOCK 0");
        let mut same = waiter(&server, request);
        client.must("RENAME a b");
        assert!(served(&mut same).is_nil(), "{request}");
        still_waits(&mut other);
    }
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE b A PX 600000");
    client.must("LOCK.ACQUIRE e B PX 600000");
    let mut first = waiter(&server, "LOCK.MACQUIRE 2 b e A BLOCK 0");
    let mut shared = waiter(&server, "LOCK.ACQUIRE b D SHARED BLOCK 0");
    client.must("LOCK.DOWNGRADE b A");
    assert!(served(&mut first).is_nil());
    fence(&served(&mut shared));
    fence(&client.must("LOCK.ACQUIRE b E SHARED"));
}

/// The server checks permissions when it receives a command.
#[test]
fn a_waiting_client_keeps_the_permissions_that_its_command_had() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k me PX 600000");
    client.must("ACL SETUSER user on nopass ~k +lock.acquire +client");
    let connect = || {
        let mut connection = Raw::connect(&server);
        connection.must("AUTH user any");
        connection
    };
    let (mut stays, mut goes) = (connect(), connect());
    waits(
        &server,
        &mut stays,
        "LOCK.ACQUIRE k first PX 600000 BLOCK 0",
    );
    waits(
        &server,
        &mut goes,
        "LOCK.ACQUIRE k second PX 600000 BLOCK 0",
    );
    client.must("ACL SETUSER user resetkeys");
    client.must("LOCK.RELEASE k me");
    assert!(served(&mut stays).int() > 0);
    assert!(
        stays
            .run("LOCK.ACQUIRE k first")
            .err()
            .starts_with("NOPERM")
    );
    client.must("CLIENT KILL USER user");
    await_waiting(&server, 0);
}
