//! WATCHDOG: the server keeps a hold for exactly as long as the connection lives that asked for it.

use std::time::{Duration, Instant};

use crate::support::lock::{about, fence, holder, holders, is_watched};
use crate::support::{
    Fsync, Lines, Raw, SOON, Server, await_gone, await_role, await_waiting, eventually, now_ms,
    pair, quiet, served, server_and_client, still_waits, wait_for_replica_sync, waiter, waits,
    with_growing_lease, without_cron,
};

/// Waits until the server's clock has gone on by `ms`, and calls `check` again and again.
#[track_caller]
fn during(client: &mut Raw, ms: i64, mut check: impl FnMut(&mut Raw)) {
    let end = now_ms(client) + ms;
    while now_ms(client) < end {
        check(client);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the server has renewed the holds at all these keys, and calls `check` again and again.
#[track_caller]
fn until_renewed(client: &mut Raw, keys: &[&str], mut check: impl FnMut(&mut Raw)) {
    let ends = |client: &mut Raw| -> Vec<i64> {
        let end = |key: &&str| client.call(["PEXPIRETIME", key]).int();
        keys.iter().map(end).collect()
    };
    let first = ends(client);
    eventually(SOON, || {
        check(client);
        let now = ends(client);
        assert!(now.iter().all(|end| *end > 0), "a hold has ended: {now:?}");
        now.iter().zip(&first).all(|(end, first)| end > first)
    });
}

/// How many holds the server renews.
#[track_caller]
fn watched(server: &Server) -> i64 {
    server.info_int("sluice_lock_watchdog_holds")
}

/// Waits until the server has noticed that a connection is gone.
#[track_caller]
fn await_end_of(client: &mut Raw, id: i64) {
    let line = format!("CLIENT LIST ID {id}");
    eventually(SOON, || client.run(&line).text().is_empty());
}

/// A lease that a busy machine renews in time: a third of it passes before the renewal, which may be late by the rest.
const LEASE: i64 = 9000;

// Renewal

#[test]
fn a_hold_is_renewed_as_long_as_its_connection_lives() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    let permits = fence(&holder.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 2 WATCHDOG PX 9000"));
    during(&mut client, LEASE + 1000, |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
        let left = client.run("PTTL k").int();
        assert!((1..=LEASE).contains(&left), "{left} ms are left");
        assert!(client.run("LOCK.ACQUIRE k you").is_nil());
    });
    assert_eq!(client.run("SEM.RENEW s me PX 9000"), permits);
    assert_eq!(client.run("SEM.INFO s").field("used"), &2);
    // Its fence and its count stay what they were.
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    assert_eq!(watched(&server), 2);
    assert_eq!(server.info_int("sluice_lock_expired_leases"), 0);
}

#[test]
fn a_hold_is_renewed_at_a_third_of_its_lease() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let lease = 6000;
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 6000")) / 1000;
    // Each renewal moves the end of the lease, so the end tells when the renewal was.
    let mut renewals = vec![given];
    eventually(SOON, || {
        let renewed = client.run("PEXPIRETIME k").int() - lease;
        if renewed > renewals[renewals.len() - 1] + 50 {
            renewals.push(renewed);
        }
        renewals.len() > 3
    });
    // A busy machine delays some renewals, and this test then misses some, so only the shortest interval counts.
    let pauses = renewals.windows(2).map(|pair| pair[1] - pair[0]);
    let least = pauses.min().expect("there are three");
    assert!((1950..=4000).contains(&least), "{least} ms of {lease}");
}

#[test]
fn without_watchdog_nothing_is_renewed() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 100");
    client.run("SEM.ACQUIRE s me LIMIT 1 PX 100");
    await_gone(&mut client, "k");
    await_gone(&mut client, "s");
    assert_eq!(watched(&server), 0);
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 0);
}

#[test]
fn a_tiny_lease_does_not_keep_the_server_from_its_work() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    for ms in [1, 2, 3, 10] {
        holder.run(&format!("LOCK.ACQUIRE k{ms} me WATCHDOG PX {ms}"));
    }
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(client.run("PING"), "PONG");
    }
    assert!(start.elapsed() < SOON);
    drop(holder);
    eventually(SOON, || client.run("DBSIZE") == 0);
    eventually(SOON, || watched(&server) == 0);
}

#[test]
fn renew_changes_the_pace() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000"));
    // From another connection: it is the owner's hold all the same.
    assert_eq!(client.run("LOCK.RENEW k me PX 9000"), given);
    until_renewed(&mut client, &["k"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
        assert!(client.run("PTTL k").int() <= LEASE);
    });
    assert_eq!(client.run("LOCK.RENEW k me PX 300000"), given);
    about(client.run("PTTL k").int(), 300_000);
    drop(holder);
    await_gone(&mut client, "k");
}

#[test]
fn a_longer_lease_on_reentry_is_kept_up() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    client.run("LOCK.ACQUIRE k me PX 100000");
    // The first lease would be renewed meanwhile.
    during(&mut client, LEASE / 2, |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
        about(client.run("PTTL k").int(), 100_000);
    });
    assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
    drop(holder);
    await_gone(&mut client, "k");
}

#[test]
fn expire_ends_a_watched_hold_sooner_too() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    client.run("PEXPIRE k 30");
    await_gone(&mut client, "k");
    eventually(SOON, || watched(&server) == 0);
    assert!(holder.run("LOCK.HELD k me").is_nil());
    drop(holder);
}

#[test]
fn persist_and_a_later_expire_do_not_end_the_watch() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    let other = fence(&holder.run("LOCK.ACQUIRE j me WATCHDOG PX 9000"));
    assert_eq!(client.run("EXPIRE j 100000"), 1);
    client.run("PERSIST k");
    // The connection lives, and nobody has asked for an end that has come.
    until_renewed(&mut client, &["k", "j"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given, "after PERSIST");
        assert_eq!(client.run("LOCK.HELD j me"), other, "after EXPIRE");
    });
    drop(holder);
    eventually(SOON, || client.run("EXISTS k j") == 0);
}

// The end of the connection

#[test]
fn a_lost_connection_releases_all_counts_at_once() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    for _ in 0..3 {
        holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    }
    holder.run("SEM.ACQUIRE s me LIMIT 5 PERMITS 3 WATCHDOG PX 300000");
    // Counts that other connections of the owner have added are the owner's as well.
    client.run("LOCK.ACQUIRE k me PX 300000");
    assert_eq!(watched(&server), 2);
    drop(holder);
    await_gone(&mut client, "k");
    await_gone(&mut client, "s");
    eventually(SOON, || watched(&server) == 0);
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 2);
    assert!(client.run("LOCK.RELEASE k me").is_nil());
}

#[test]
fn a_lost_connection_serves_the_next_waiter() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    drop(holder);
    fence(&served(&mut next));
    fence(&client.run("LOCK.HELD k you"));
    assert_eq!(server.info_int("sluice_lock_handoffs"), 1);
}

#[test]
fn every_way_in_which_a_connection_ends_releases() {
    let (server, mut client) = server_and_client();
    for how in ["close", "kill", "quit", "kill itself", "garbage", "reset"] {
        let mut holder = Raw::connect(&server);
        let id = holder.id();
        holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
        let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
        match how {
            "kill" => {
                assert_eq!(client.run(&format!("CLIENT KILL ID {id}")), 1);
            }
            "quit" => holder.ask("QUIT"),
            "kill itself" => holder.ask(&format!("CLIENT KILL ID {id} SKIPME no")),
            "garbage" => holder.send_bytes(b"*1\r\n$-5\r\n"),
            "reset" => {
                // RESET leaves the connection, and so the hold, alive.
                holder.ask("RESET");
                holder.ask("PING");
                assert_eq!(holder.read(), "RESET");
                assert_eq!(holder.read(), "PONG");
                still_waits(&mut next);
                drop(holder);
                fence(&served(&mut next));
                client.run("FLUSHALL");
                continue;
            }
            _ => {}
        }
        if how == "close" {
            drop(holder);
        } else {
            assert!(holder.closes_within(SOON), "{how}");
        }
        fence(&served(&mut next));
        client.run("FLUSHALL");
    }
}

#[test]
fn a_connection_that_is_blocked_elsewhere_releases_when_it_ends() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE taken somebody PX 300000");
    for (line, kill) in [
        ("BLPOP list 0", false),
        ("BLPOP list 0", true),
        ("LOCK.ACQUIRE taken me BLOCK 0", false),
        ("LOCK.ACQUIRE taken me BLOCK 0 WATCHDOG", true),
        ("LOCK.MACQUIRE 2 taken free me BLOCK 0 WATCHDOG", true),
    ] {
        let mut holder = Raw::connect(&server);
        let id = holder.id();
        holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
        holder.ask(line);
        eventually(SOON, || server.info_int("blocked_clients") == 1);
        let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
        if kill {
            client.run(&format!("CLIENT KILL ID {id}"));
        }
        drop(holder);
        fence(&served(&mut next));
        await_waiting(&server, 0);
        client.run("LOCK.RELEASE k you");
        assert_eq!(client.run("EXISTS free"), 0, "{line}");
    }
    assert_eq!(holders(&client.run("LOCK.INFO taken")).len(), 1);
}

#[test]
fn a_hold_granted_after_waiting_is_watched_too() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    client.run("SEM.ACQUIRE s me LIMIT 1");
    let mut lock = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0 WATCHDOG PX 9000");
    let mut permit = waiter(
        &server,
        "SEM.ACQUIRE s you LIMIT 1 BLOCK 0 WATCHDOG PX 9000",
    );
    let mut many = waiter(
        &server,
        "LOCK.MACQUIRE 2 k m third BLOCK 0 WATCHDOG PX 9000",
    );
    client.run("LOCK.RELEASE k me");
    client.run("SEM.RELEASE s me");
    let given = fence(&served(&mut lock));
    fence(&served(&mut permit));
    until_renewed(&mut client, &["k", "s"], |client| {
        assert_eq!(client.run("LOCK.HELD k you"), given);
        assert_eq!(client.run("SEM.INFO s").field("used"), &1);
    });
    drop(permit);
    await_gone(&mut client, "s");
    drop(lock);
    assert_eq!(served(&mut many).array().len(), 2);
    assert_eq!(watched(&server), 2);
    drop(many);
    await_gone(&mut client, "k");
    await_gone(&mut client, "m");
}

#[test]
fn a_connection_that_ends_just_when_it_is_served_keeps_nothing() {
    let (server, mut client) = server_and_client();
    for _ in 0..30 {
        client.run("LOCK.ACQUIRE k me PX 300000");
        let mut lucky = Raw::connect(&server);
        waits(
            &server,
            &mut lucky,
            "LOCK.ACQUIRE k lucky WATCHDOG BLOCK 0 PX 300000",
        );
        client.ask("LOCK.RELEASE k me");
        drop(lucky);
        assert_eq!(client.read(), 0);
        await_gone(&mut client, "k");
    }
    eventually(SOON, || watched(&server) == 0);
}

#[test]
fn many_holds_of_one_connection_are_all_released() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let count = 2000;
    let keys: Vec<_> = (0..count).map(|number| format!("k{number}")).collect();
    let replies = holder.pipeline(
        keys.iter()
            .map(|key| ["LOCK.ACQUIRE", key, "me", "WATCHDOG", "PX", "300000"]),
    );
    assert!(replies.iter().all(|reply| !reply.is_nil()));
    assert_eq!(watched(&server), count);
    drop(holder);
    eventually(SOON, || client.run("DBSIZE") == 0);
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), count);
}

#[test]
fn two_owners_on_one_connection_are_both_released_and_others_are_not() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k a SHARED WATCHDOG PX 300000");
    holder.run("LOCK.ACQUIRE k b SHARED WATCHDOG PX 300000");
    // Without WATCHDOG, on the same connection; with it, on another one.
    holder.run("LOCK.ACQUIRE k c SHARED PX 300000");
    client.run("LOCK.ACQUIRE k d SHARED WATCHDOG PX 300000");
    drop(holder);
    eventually(SOON, || watched(&server) == 1);
    let left = [("c".into(), 1), ("d".into(), 1)];
    assert_eq!(holders(&client.run("LOCK.INFO k")), left);
}

// Which connection

#[test]
fn a_hold_is_bound_to_the_connection_that_asked_last() {
    let (server, mut client) = server_and_client();
    let mut first = Raw::connect(&server);
    let mut second = Raw::connect(&server);
    let given = fence(&first.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    assert_eq!(second.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"), given);
    assert_eq!(watched(&server), 1);
    drop(first);
    until_renewed(&mut client, &["k"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
    });
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 2)]);
    drop(second);
    await_gone(&mut client, "k");
}

#[test]
fn reentering_without_watchdog_leaves_the_hold_bound_where_it_is() {
    let (server, mut client) = server_and_client();
    let mut first = Raw::connect(&server);
    first.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    client.run("LOCK.ACQUIRE k me PX 300000");
    assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
    drop(first);
    await_gone(&mut client, "k");
}

#[test]
fn a_hold_is_watched_from_the_acquisition_on_that_asks_for_it() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 300000");
    assert!(!is_watched(&client.run("LOCK.INFO k"), "me"));
    let mut later = Raw::connect(&server);
    later.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
    // One of two is given back, and the rest is the whole hold.
    client.run("LOCK.RELEASE k me");
    assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
    client.run("LOCK.ACQUIRE k me PX 300000");
    drop(later);
    await_gone(&mut client, "k");
}

#[test]
fn a_retry_from_a_new_connection_binds_the_hold_to_it() {
    let (server, mut client) = server_and_client();
    let mut first = Raw::connect(&server);
    let mut retry = Raw::connect(&server);
    let given = fence(&first.run("LOCK.ACQUIRE k me WATCHDOG PX 9000 ID one"));
    let permits = fence(&first.run("SEM.ACQUIRE s me LIMIT 2 WATCHDOG PX 9000 ID one"));
    let many = first.run("LOCK.MACQUIRE 2 a b me WATCHDOG PX 9000 ID one");
    assert_eq!(
        retry.run("LOCK.ACQUIRE k me WATCHDOG PX 9000 ID one"),
        given
    );
    assert_eq!(
        retry.run("SEM.ACQUIRE s me LIMIT 2 WATCHDOG PX 9000 ID one"),
        permits
    );
    assert_eq!(
        retry.run("LOCK.MACQUIRE 2 a b me WATCHDOG PX 9000 ID one"),
        many
    );
    // The server notices only now that the first connection is lost.
    drop(first);
    until_renewed(&mut client, &["k", "s", "a", "b"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
        assert_eq!(client.run("EXISTS k s a b"), 4);
    });
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    drop(retry);
    eventually(SOON, || client.run("EXISTS k s a b") == 0);
}

#[test]
fn of_two_waiting_connections_of_one_owner_the_one_that_asked_last_counts() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k other");
    let mut first = waiter(
        &server,
        "LOCK.ACQUIRE k me WATCHDOG PX 300000 BLOCK 0 ID one",
    );
    let mut retry = waiter(
        &server,
        "LOCK.ACQUIRE k me WATCHDOG PX 300000 BLOCK 0 ID one",
    );
    client.run("LOCK.RELEASE k other");
    assert!(served(&mut first).is_nil());
    let given = fence(&served(&mut retry));
    let id = first.id();
    drop(first);
    await_end_of(&mut client, id);
    assert_eq!(client.run("LOCK.HELD k me"), given);
    drop(retry);
    await_gone(&mut client, "k");
}

// Where the hold goes

#[test]
fn a_watched_hold_survives_rename_move_and_swapdb() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    let mut holds_at = |line: &str, db: i64, key: &str| {
        client.run(line);
        client.run(&format!("SELECT {db}"));
        let mut left = client.call(["PTTL", key]).int();
        eventually(SOON, || {
            let before = std::mem::replace(&mut left, client.call(["PTTL", key]).int());
            left > before // the server renewed the lease
        });
        assert_eq!(client.call(["LOCK.HELD", key, "me"]), given, "{line}");
        assert!(is_watched(&client.call(["LOCK.INFO", key]), "me"));
    };
    holds_at("RENAME k moved", 0, "moved");
    holds_at("MOVE moved 3", 3, "moved");
    holds_at("SWAPDB 3 5", 5, "moved");
    assert_eq!(watched(&server), 1);
    drop(holder);
    await_gone(&mut client, "moved");
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 1);
}

#[test]
fn a_connection_that_ends_after_a_rename_releases_what_has_been_renamed() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    client.run("RENAME k moved");
    // Somebody else's lock at the old name is left alone, even one of the same owner.
    client.run("LOCK.ACQUIRE k me PX 300000");
    let mut next = waiter(&server, "LOCK.ACQUIRE moved you BLOCK 0");
    drop(holder);
    fence(&served(&mut next));
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
}

#[test]
fn a_copy_is_not_watched() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    assert_eq!(client.run("COPY k copy"), 1);
    assert_eq!(watched(&server), 1);
    // Its lease ends, while the original goes on.
    await_gone(&mut client, "copy");
    assert_eq!(client.run("LOCK.HELD k me"), given);

    client.run("LOCK.RENEW k me PX 300000");
    client.run("COPY k copy");
    assert!(!is_watched(&client.run("LOCK.INFO copy"), "me"));
    drop(holder);
    await_gone(&mut client, "k");
    assert_eq!(client.run("LOCK.HELD copy me"), given);
}

#[test]
fn a_restored_hold_is_not_watched() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
    let dump = client.run("DUMP k");
    client.call([b"RESTORE".as_slice(), b"r", b"0", dump.bytes()]);
    assert!(!is_watched(&client.run("LOCK.INFO r"), "me"));
    client.call([b"RESTORE".as_slice(), b"k", b"0", dump.bytes(), b"REPLACE"]);
    drop(holder);
    eventually(SOON, || watched(&server) == 0);
    fence(&client.run("LOCK.HELD r me"));
}

#[test]
fn what_ends_the_hold_ends_the_watch() {
    let (server, mut client) = server_and_client();
    for end in [
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SET k string",
        "PEXPIREAT k 1",
        "LOCK.RELEASE k me ALL",
    ] {
        let mut holder = Raw::connect(&server);
        holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
        assert_eq!(watched(&server), 1);
        client.run(end);
        eventually(SOON, || {
            // Touched, so that it ends if its time is over.
            client.run("EXISTS k");
            watched(&server) == 0
        });
        client.run("DEL k");
        // The owner holds it anew, without a watch: the old connection has nothing to do with it.
        let given = fence(&client.run("LOCK.ACQUIRE k me PX 300000"));
        assert!(!is_watched(&client.run("LOCK.INFO k"), "me"), "{end}");
        let id = holder.id();
        drop(holder);
        await_end_of(&mut client, id);
        assert_eq!(client.run("LOCK.HELD k me"), given, "{end}");
        client.run("FLUSHALL");
    }
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 0);
}

#[test]
fn upgrade_and_downgrade_leave_the_hold_watched() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("LOCK.ACQUIRE k me SHARED WATCHDOG PX 9000");
    for line in ["LOCK.UPGRADE k me PX 9000", "LOCK.DOWNGRADE k me"] {
        let given = fence(&client.run(line));
        until_renewed(&mut client, &["k"], |client| {
            assert_eq!(client.run("LOCK.HELD k me"), given);
        });
        assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
        assert_eq!(watched(&server), 1);
    }
    drop(holder);
    await_gone(&mut client, "k");
}

#[test]
fn a_reloaded_hold_ends_with_its_lease_though_its_connection_lives() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 3000"));
    client.must("DEBUG RELOAD");
    let held = client.run("LOCK.HELD k me");
    assert!(held == given || held.is_nil(), "{held:?}");
    await_gone(&mut client, "k");
    eventually(SOON, || watched(&server) == 0);
    assert_eq!(holder.run("PING"), "PONG");
}

// Transactions and scripts

#[test]
fn a_hold_taken_in_a_transaction_is_watched() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    holder.run("MULTI");
    holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000");
    holder.run("LOCK.MACQUIRE 2 a b me WATCHDOG PX 9000");
    holder.run("SEM.ACQUIRE s me LIMIT 1 WATCHDOG PX 9000");
    holder.run("EXEC");
    assert_eq!(watched(&server), 4);
    until_renewed(&mut client, &["k", "a", "b", "s"], |client| {
        assert_eq!(client.run("EXISTS k a b s"), 4);
    });
    drop(holder);
    eventually(SOON, || client.run("DBSIZE") == 0);
}

#[test]
fn a_hold_taken_in_a_script_does_not_outlive_its_connection_for_ever() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 'WATCHDOG', 'PX', 500)";
    fence(&holder.call(["EVAL", script, "1", "k"]));
    let library = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('SEM.ACQUIRE', keys[1], 'me', 'LIMIT', 1, 'WATCHDOG', 'PX', 500)
        end)";
    client.call(["FUNCTION", "LOAD", library]);
    fence(&holder.run("FCALL take 1 s"));
    // The server does not tell the module whose script runs, so the holds run their leases down, and no less.
    assert_eq!(watched(&server), 0);
    drop(holder);
    await_gone(&mut client, "k");
    await_gone(&mut client, "s");
    eventually(SOON, || watched(&server) == 0);
}

#[test]
fn a_connection_killed_by_a_script_or_a_transaction_releases() {
    let (server, mut client) = server_and_client();
    for transaction in [false, true] {
        let mut holder = Raw::connect(&server);
        let id = holder.id();
        holder.run("LOCK.ACQUIRE k me WATCHDOG PX 300000");
        let mut next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
        if transaction {
            client.run("MULTI");
            client.run("SET x 1");
            client.run(&format!("CLIENT KILL ID {id}"));
            client.run("LOCK.INFO k");
            client.run("EXEC");
        } else {
            let script = "return redis.call('CLIENT', 'KILL', 'ID', ARGV[1])";
            let reply = client.call(["EVAL", script, "0", &id.to_string()]);
            if reply.is_err() {
                // Scripts of this server may not kill.
                client.run(&format!("CLIENT KILL ID {id}"));
            }
        }
        fence(&served(&mut next));
        client.run("FLUSHALL");
    }
}

#[test]
fn counters_follow_the_watched_holds() {
    let (server, mut client) = server_and_client();
    let mut holders = Vec::new();
    for number in 1..=5 {
        let mut holder = Raw::connect(&server);
        holder.run(&format!(
            "LOCK.ACQUIRE k o{number} SHARED WATCHDOG PX 300000"
        ));
        assert_eq!(watched(&server), number);
        holders.push(holder);
    }
    let info = client.run("LOCK.INFO k");
    assert_eq!(holder(&info, "o3").field("watchdog"), &1);
    // Released by hand: that is no release of the watchdog.
    client.run("LOCK.RELEASE k o5");
    assert_eq!(watched(&server), 4);
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 0);
    drop(holders);
    eventually(SOON, || watched(&server) == 0);
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 4);
    assert_eq!(client.run("EXISTS k"), 0);
}

#[test]
fn waiters_that_give_up_do_not_put_off_the_renewal() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    // Each wait that ends is a moment at which the server looks at the lock again.
    until_renewed(&mut client, &["k"], |client| {
        assert!(client.run("LOCK.ACQUIRE k you BLOCK 50").is_nil());
    });
    assert_eq!(client.run("LOCK.HELD k me"), given);
}

#[test]
fn an_end_that_somebody_sets_is_not_put_off_by_renewals() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 9000"));
    // Later than the next renewal would be.
    assert_eq!(client.run("PEXPIRE k 5000"), 1);
    assert!(!is_watched(&client.run("LOCK.INFO k"), "me"));
    await_gone(&mut client, "k");
    // Its owner can take it up again.
    fence(&holder.run("LOCK.ACQUIRE k me PX 9000 WATCHDOG"));
    client.run("PEXPIRE k 5000");
    fence(&holder.run("LOCK.RENEW k me PX 9000"));
    until_renewed(&mut client, &["k"], |_| {});
    assert_eq!(watched(&server), 1);
}

#[test]
fn a_connection_that_quits_releases_at_once() {
    // Without the server's own clock tick, which would find it out late.
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    without_cron(|| {
        let mut holder = Raw::connect(&server);
        fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG PX 600000"));
        client.ask("LOCK.ACQUIRE k you BLOCK 0");
        await_waiting(&server, 1);
        let start = Instant::now();
        holder.ask("QUIT");
        fence(&client.read());
        let took = start.elapsed();
        assert_eq!(client.run("LOCK.RELEASE k you"), 0);
        took
    });
}

// MAXHOLD and LINGER

#[test]
fn maxhold_bounds_what_the_server_renews() {
    const MAXHOLD: i64 = 10_000; // longer than the lease: only a renewal reaches it
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let begun = now_ms(&mut client);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG MAXHOLD 10000 PX 9000"));
    eventually(SOON, || {
        let held = client.run("LOCK.HELD k me");
        let passed = now_ms(&mut client) - begun;
        // Redis 8.0 and later remove a key within the last millisecond of its lease.
        let may_end = passed >= MAXHOLD - 1;
        assert!(
            held == given || (held.is_nil() && may_end),
            "{held:?} after {passed} ms"
        );
        held.is_nil()
    });
    await_gone(&mut client, "k");
    eventually(SOON, || watched(&server) == 0);
}

#[test]
fn no_lease_of_the_acquisition_reaches_beyond_maxhold() {
    let (_server, mut client) = server_and_client();
    fence(&client.run("LOCK.ACQUIRE k me WATCHDOG MAXHOLD 50000 PX 90000"));
    about(client.run("PTTL k").int(), 50_000);
    client.run("SEM.MACQUIRE 1 s 1 me WATCHDOG MAXHOLD 50000 PX 90000");
    about(client.run("PTTL s").int(), 50_000);
    // By hand it goes further.
    client.run("LOCK.RENEW k me PX 80000");
    about(client.run("PTTL k").int(), 80_000);
}

#[test]
fn a_reentry_moves_lifts_or_leaves_the_bound() {
    let (_server, mut client) = server_and_client();
    fence(&client.run("LOCK.ACQUIRE lifted me WATCHDOG MAXHOLD 10000 PX 9000"));
    fence(&client.run("LOCK.ACQUIRE lifted me WATCHDOG PX 9000"));
    fence(&client.run("LOCK.ACQUIRE moved me WATCHDOG MAXHOLD 10000 PX 9000"));
    fence(&client.run("LOCK.ACQUIRE moved me WATCHDOG MAXHOLD 600000 PX 9000"));
    // Last, so that the bounds of the others would be over too when it ends.
    fence(&client.run("LOCK.ACQUIRE left me WATCHDOG MAXHOLD 10000 PX 9000"));
    fence(&client.run("LOCK.ACQUIRE left me PX 9000"));
    await_gone(&mut client, "left");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(client.run("EXISTS lifted moved"), 2);
}

#[test]
fn a_repetition_moves_no_bound() {
    let (server, mut client) = server_and_client();
    let line = "LOCK.ACQUIRE k me WATCHDOG MAXHOLD 10000 PX 9000 ID one";
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run(line));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(
        client.run("LOCK.ACQUIRE k me WATCHDOG PX 9000 ID one"),
        given
    );
    await_gone(&mut client, "k");
}

/// A restart and a failover forget for which connections the server renews holds, but not until when.
#[test]
fn a_repetition_after_a_restart_moves_no_bound() {
    a_repetition_moves_no_bound_after(
        || (quiet().aof(Fsync::Always).start(), None),
        |server, _| {
            server.crash();
            server
        },
    );
    a_repetition_moves_no_bound_after(
        || (quiet().rdb(true).start(), None),
        |server, _| {
            server.save_in_background();
            server.crash();
            server
        },
    );
}

#[test]
fn a_repetition_after_a_failover_moves_no_bound() {
    a_repetition_moves_no_bound_after(
        || {
            let (master, replica) = pair();
            (master, Some(replica))
        },
        |master, replica| {
            let replica = replica.expect("a replica");
            wait_for_replica_sync(&master, &replica);
            master.kill9();
            replica.promote();
            await_role(&replica, "master");
            replica
        },
    );
}

/// Where the acquisition set no bound, a repetition after a restart sets none.
#[test]
fn a_repetition_after_a_restart_sets_no_bound() {
    let server = quiet().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let first = "LOCK.ACQUIRE k me WATCHDOG LINGER PX 600000 ID one";
    let given = fence(&client.run(first));
    server.crash();
    let mut client = Raw::connect(&server);
    let repetition = "LOCK.ACQUIRE k me WATCHDOG MAXHOLD 1 LINGER PX 600000 ID one";
    assert_eq!(client.run(repetition), given);
    // A renewal by the server is cut to the bound, and this one is due.
    client.run("LOCK.RENEW k me PX 9000");
    until_renewed(&mut client, &["k"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
    });
}

/// `start` returns a server and perhaps its replica. `restart` returns the server that has the dataset afterwards.
#[track_caller]
fn a_repetition_moves_no_bound_after(
    start: fn() -> (Server, Option<Server>),
    restart: fn(Server, Option<Server>) -> Server,
) {
    with_growing_lease(2000, |lease| {
        let (server, replica) = start();
        let mut client = Raw::connect(&server);
        let max_hold = 2 * lease;
        let given = fence(&client.run(&format!(
            "LOCK.ACQUIRE k me WATCHDOG MAXHOLD {max_hold} LINGER PX {lease} ID one"
        )));
        let reentry = format!("LOCK.ACQUIRE k me PX {lease} ID two");
        assert_eq!(client.run(&reentry), given);
        let server = restart(server, replica);
        let mut client = Raw::connect(&server);
        let repetition = "LOCK.ACQUIRE k me WATCHDOG MAXHOLD 600000 PX 600000 ID two";
        let is_held = client.run(repetition) == given;
        let is_held = is_held && client.run("LOCK.HELD k me") == given;
        is_held.then(|| await_gone(&mut client, "k"))
    });
}

#[test]
fn a_lingering_hold_ends_with_its_lease() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG LINGER PX 9000"));
    assert!(is_watched(&client.run("LOCK.INFO k"), "me"));
    drop(holder);
    eventually(SOON, || watched(&server) == 0);
    assert_eq!(client.run("LOCK.HELD k me"), given);
    assert!(!is_watched(&client.run("LOCK.INFO k"), "me"));
    await_gone(&mut client, "k");
    assert_eq!(server.info_int("sluice_lock_watchdog_released"), 0);
}

#[test]
fn a_lingering_hold_is_bound_to_the_connection_that_repeats_its_acquisition() {
    let (server, mut client) = server_and_client();
    let mut holder = Raw::connect(&server);
    let line = "LOCK.ACQUIRE k me WATCHDOG LINGER PX 9000 ID one";
    let given = fence(&holder.run(line));
    drop(holder);
    eventually(SOON, || watched(&server) == 0);
    let mut second = Raw::connect(&server);
    assert_eq!(second.run(line), given);
    assert_eq!(watched(&server), 1);
    until_renewed(&mut client, &["k"], |client| {
        assert_eq!(client.run("LOCK.HELD k me"), given);
    });
    assert_eq!(holders(&client.run("LOCK.INFO k")), [("me".into(), 1)]);
    // Without LINGER it is released with the connection that asked last.
    assert_eq!(
        client.run("LOCK.ACQUIRE k me WATCHDOG PX 9000 ID one"),
        given
    );
    drop(second);
    drop(client);
    let mut client = Raw::connect(&server);
    eventually(SOON, || client.run("EXISTS k") == 0);
}

#[test]
fn maxhold_and_linger_need_watchdog() {
    let (_server, mut client) = server_and_client();
    for line in [
        "LOCK.ACQUIRE k me MAXHOLD 1000",
        "LOCK.ACQUIRE k me LINGER",
        "LOCK.MACQUIRE 1 k me LINGER MAXHOLD 1000",
        "SEM.ACQUIRE k me LIMIT 1 MAXHOLD 1000",
        "SEM.MACQUIRE 1 k 1 me LINGER",
    ] {
        assert_eq!(client.run(line).err(), "ERR syntax error", "{line}");
    }
    for bad in ["0", "315360000001"] {
        let reply = client.run(&format!("LOCK.ACQUIRE k me WATCHDOG MAXHOLD {bad}"));
        let error = "ERR MAXHOLD must be between 1 and 315360000000";
        assert_eq!(reply.err(), error);
    }
}
