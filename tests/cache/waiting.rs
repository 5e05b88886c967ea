//! Who waits for an entry gets it, or the lease, at once and in order, whatever happens to the key.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::cache::{about, counter, fetched, lease, nearly, number, shown, stores};
use crate::support::cluster::{
    Move, connect_in, id_of, master_and_replica, node, node_of_databases, one_node, two_nodes,
};
use crate::support::{
    Crowd, Lines, Raw, SOON, Server, WRONGTYPE, await_role, await_waiting, eventually, field_of,
    follow, late_and_next_answer, not_before, now_ms, quiet, served, server_and_client,
    still_waits, wait_for_replica_sync, waiter, waiting, waits, without_cron,
};

const FETCH: &str = "CACHE.FETCH k LEASE 600000 BLOCK 0";

/// A server whose key `k` is missing and leased, with three that wait for it.
fn crowd() -> (Server, Raw, i64, Vec<Raw>) {
    let (server, mut client) = server_and_client();
    let token = lease(&mut client, "k");
    let waiters = (0..3).map(|_| waiter(&server, FETCH)).collect();
    (server, client, token, waiters)
}

/// Panics unless all get this.
#[track_caller]
fn all_get(waiters: &mut [Raw], expected: &str) {
    for waiter in waiters {
        assert_eq!(shown(&served(waiter)), expected);
    }
}

/// Panics unless the first gets the lease and all others go on waiting; returns its token.
#[track_caller]
fn first_gets_the_lease(waiters: &mut [Raw]) -> i64 {
    let token = number(&served(&mut waiters[0]), "LEASE -");
    for waiter in &mut waiters[1..] {
        still_waits(waiter);
    }
    token
}

// Stores

#[test]
fn a_store_is_what_all_were_waiting_for() {
    for (set, expected) in [
        ("CACHE.SET k v PX 600000 TOKEN", "HIT v"),
        ("CACHE.SETNULL k PX 600000 TOKEN", "NULL -"),
        ("CACHE.SET k v PX 600000", "HIT v"),
        ("CACHE.SETNULL k PX 600000 VER", "NULL -"),
    ] {
        let (server, mut client, token, mut waiters) = crowd();
        let last = set.split(' ').next_back().unwrap();
        let argument = match last {
            "TOKEN" => token.to_string(),
            "VER" => "5".into(),
            _ => String::new(),
        };
        assert_eq!(client.must(&format!("{set} {argument}")), 1);
        for waiter in &mut waiters {
            nearly(number(&served(waiter), expected), 600_000);
        }
        assert_eq!(waiting(&server), 0);
        assert_eq!(about(&mut client, "k", "waiters"), 0);
        assert_eq!(counter(&mut client, "leases"), 1);
    }
}

#[test]
fn a_store_in_a_transaction_or_a_script_is_one_too() {
    for way in ["MULTI", "EVAL"] {
        let (_server, mut client, token, mut waiters) = crowd();
        if way == "MULTI" {
            client.transact([format!("CACHE.SET k v PX 600000 TOKEN {token}")]);
        } else {
            let script = "return redis.call('CACHE.SET', 'k', 'v', 'PX', 600000)";
            client.call(["EVAL", script, "0"]);
        }
        all_get(&mut waiters, "HIT v");
    }
}

#[test]
fn a_store_that_is_refused_answers_nobody() {
    let (_server, mut client, token, mut waiters) = crowd();
    let other = token + 1;
    assert_eq!(client.must(&format!("CACHE.SET k v PX 5 TOKEN {other}")), 0);
    assert_eq!(client.must(&format!("CACHE.FAIL k {other} BACKOFF 5")), 0);
    for waiter in &mut waiters {
        still_waits(waiter);
    }
    // In grace nothing is stored, and whoever tried has no more to do: the next one loads.
    client.must("CACHE.DEL k GRACE 600000");
    let token = first_gets_the_lease(&mut waiters);
    assert!(!stores(&mut client, "k", token));
    number(&served(&mut waiters[1]), "LEASE -");
    still_waits(&mut waiters[2]);
    client.must("CACHE.SET k v PX 600000");
    all_get(&mut waiters[2..], "HIT v");
}

#[test]
fn all_waiting_clients_receive_a_value_that_expires_at_once() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k");
    let mut waiters: Vec<_> = (0..3).map(|_| waiter(&server, FETCH)).collect();
    // By this clock, all answers of one command are in its time slice, and the value has expired in the next round of the event loop,
    // however busy the machine is.
    server.freeze_clock(true);
    server.shift_clock_per_reading(200);
    client.must(&format!("CACHE.SET k v PX 1 TOKEN {token}"));
    all_get(&mut waiters, "HIT v");
}

/// A client whose time is up gets no lease, even if the server was too busy to answer it in time.
#[test]
fn a_client_whose_time_is_up_gets_no_lease() {
    let hold = |client: &mut Raw| format!("CACHE.FAIL k {}", lease(client, "k"));
    let (late, next) = late_and_next_answer(hold, "CACHE.FETCH k LEASE 600000", "LEASE");
    number(&late, "WAIT -");
    number(&next, "LEASE -");
}

#[test]
fn all_waiting_clients_receive_the_stored_value() {
    const SIZE: usize = 500;
    const VALUE: usize = 1 << 20;
    let server = Server::builder().many_that_block(2_000).start();
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k").to_string();
    let mut crowd = Crowd::connect(&server, SIZE);
    crowd.ask_in_order(
        |_| FETCH.split(' ').map(String::from).collect::<Vec<_>>(),
        |asked| waiting(&server) == asked as i64,
    );
    let value = vec![b'v'; VALUE];
    let set: [&[u8]; 7] = [
        b"CACHE.SET",
        b"k",
        &value,
        b"PX",
        b"600000",
        b"TOKEN",
        token.as_bytes(),
    ];
    // In one step, so that no reply has been sent when it is measured how much the answers take.
    client.must("MULTI");
    client.call(set);
    client.must("INFO memory");
    let replies = client.must("EXEC");
    let used = field_of(&replies.array()[1], "used_memory");
    assert!(used < 100 << 20, "{used} bytes are in use");
    for (_, reply) in crowd.replies(SIZE, SOON) {
        let (state, found, _) = fetched(&reply);
        assert!(state == "HIT" && found.as_deref() == Some(&value));
    }
}

// The end of a lease

#[test]
fn when_a_lease_ends_the_first_gets_the_next() {
    const LEASE_MS: i64 = 600_000;
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    number(&client.must("CACHE.FETCH k LEASE 600000"), "LEASE -");
    let mut waiters: Vec<_> = (0..3)
        .map(|_| waiter(&server, "CACHE.FETCH k LEASE 600000 BLOCK 0"))
        .collect();
    server.shift_clock(LEASE_MS);
    first_gets_the_lease(&mut waiters);
    // It has its own lease, from then on.
    server.shift_clock(LEASE_MS / 2);
    still_waits(&mut waiters[1]);
    server.shift_clock(LEASE_MS / 2);
    first_gets_the_lease(&mut waiters[1..]);
    nearly(about(&mut client, "k", "lease_ms"), LEASE_MS);
    assert_eq!(waiting(&server), 1);
}

#[test]
fn the_next_gets_the_lease_within_milliseconds() {
    // By itself the server would look once a second.
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    let mut next = Raw::connect(&server);
    let mut round = 0;
    without_cron(|| {
        round += 1;
        let begin = Instant::now();
        client.must(&format!("CACHE.FETCH k{round} LEASE 60"));
        let reply = next.must(&format!("CACHE.FETCH k{round} LEASE 600000 BLOCK 0"));
        number(&reply, "LEASE -");
        not_before(begin, Duration::from_millis(60));
        begin.elapsed()
    });
}

#[test]
fn a_lease_that_is_given_back_goes_to_the_first() {
    let (_server, mut client, token, mut waiters) = crowd();
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 1);
    let token = first_gets_the_lease(&mut waiters);
    assert_eq!(client.must(&format!("CACHE.FAIL k {token} BACKOFF 0")), 1);
    first_gets_the_lease(&mut waiters[1..]);
}

#[test]
fn a_failure_with_a_backoff_is_an_answer_to_all() {
    let (server, mut client, token, mut waiters) = crowd();
    let fail = format!("CACHE.FAIL k {token} BACKOFF 600000");
    assert_eq!(client.must(&fail), 1);
    for waiter in &mut waiters {
        nearly(number(&served(waiter), "DOWN -"), 600_000);
    }
    assert_eq!(waiting(&server), 0);
}

// Any change of the key

#[test]
fn the_first_waiting_client_gets_a_lease_when_the_present_one_is_revoked() {
    for line in [
        "DEL k",
        "UNLINK x k",
        "CACHE.DEL k",
        "CACHE.DEL k STALE 600000",
        "CACHE.DEL k GRACE 600000",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FLUSHDB",
        "SWAPDB 0 3",
        "SWAPDB 3 0",
        "EVAL return(redis.call('DEL','k')) 0",
    ] {
        for way in ["alone", "MULTI"] {
            let (_server, mut client, token, mut waiters) = crowd();
            if way == "alone" {
                client.must(line);
            } else {
                client.transact([line]);
            }
            let new = first_gets_the_lease(&mut waiters);
            assert!(!stores(&mut client, "k", token), "{line}");
            assert!(stores(&mut client, "k", new) || line.contains("GRACE"));
            if !line.contains("GRACE") {
                all_get(&mut waiters[1..], "HIT late");
            }
        }
    }
}

#[test]
fn what_happens_in_another_database_or_to_another_key_answers_nobody() {
    let (_server, mut client, token, mut waiters) = crowd();
    for line in [
        "CACHE.SET other v PX 600000",
        "DEL other",
        "SWAPDB 3 4",
        "SELECT 1",
        "FLUSHDB",
        "CACHE.SET k v PX 600000",
        "CACHE.DEL k",
        "SELECT 0",
    ] {
        client.must(line);
    }
    for waiter in &mut waiters {
        still_waits(waiter);
    }
    assert!(stores(&mut client, "k", token));
    all_get(&mut waiters, "HIT late");
}

#[test]
fn waiters_wait_for_a_key_of_their_database() {
    let (server, mut client) = server_and_client();
    client.must("SELECT 5");
    let token = lease(&mut client, "k");
    let mut there = Raw::connect(&server);
    there.must("SELECT 5");
    waits(&server, &mut there, FETCH);
    lease(&mut Raw::connect(&server), "k");
    let mut here = waiter(&server, FETCH);
    assert!(stores(&mut client, "k", token));
    all_get(std::slice::from_mut(&mut there), "HIT late");
    still_waits(&mut here);
    // What was in the other database is here now.
    client.must("SWAPDB 0 5");
    all_get(std::slice::from_mut(&mut here), "HIT late");
}

/// Nothing can be stored while it is there; those who wait are told when the lease could be given to them.
#[test]
fn a_value_of_another_type_is_an_error_for_all_waiting_clients() {
    for line in [
        "SET k other",
        "INCR k",
        "LPUSH k x",
        "RENAME other k",
        "COPY other k",
        "MOVE k 0",
        "LOCK.ACQUIRE k me",
        "BF.ADD k x",
    ] {
        let (server, mut client) = server_and_client();
        client.must("CACHE.FETCH k LEASE 600000");
        let mut waiters = [(); 3].map(|()| waiter(&server, FETCH));
        client.must("SET other v");
        if line.starts_with("MOVE") {
            client.must("SELECT 1");
            client.must("SET k v");
        }
        client.must(line);
        for waiter in &mut waiters {
            assert_eq!(served(waiter).err(), WRONGTYPE, "{line}");
        }
        assert_eq!(waiting(&server), 0, "{line}");
    }
}

/// The lease ends with what was there, so they are told at once.
#[test]
fn a_value_of_another_type_in_place_of_a_tombstone_is_an_error_for_all_waiting_clients() {
    for line in ["SET k other", "SUNIONSTORE k set", "COPY other k REPLACE"] {
        let (server, mut client) = server_and_client();
        client.run_all(["SADD set x", "SET other v", "CACHE.DEL k GRACE 600000"]);
        lease(&mut client, "k");
        let mut waiters = [(); 3].map(|()| waiter(&server, FETCH));
        client.must(line);
        for waiter in &mut waiters {
            assert_eq!(served(waiter).err(), WRONGTYPE, "{line}");
        }
    }
}

#[test]
fn a_command_on_another_type_revokes_the_lease() {
    let (server, mut client) = server_and_client();
    for line in [
        "CACHE.FAIL k % BACKOFF 600000",
        "CACHE.SET k v PX 60000 TOKEN %",
        "CACHE.DEL k",
        "CACHE.FETCH k LEASE 5",
    ] {
        let token = lease(&mut client, "k");
        let mut waiter = waiter(&server, FETCH);
        client.must("SET k other");
        let reply = client.run(&line.replace('%', &token.to_string()));
        assert_eq!(reply.err(), WRONGTYPE, "{line}");
        assert_eq!(served(&mut waiter).err(), WRONGTYPE, "{line}");
        client.must("DEL k");
        assert!(!stores(&mut client, "k", token), "{line}");
        client.must("CACHE.SET k v PX 60000");
        client.must("DEL k");
    }
}

#[test]
fn an_entry_that_arrives_without_a_command_is_a_hit_for_all_waiting_clients() {
    for way in ["RESTORE", "RENAME", "COPY", "MOVE", "SWAPDB", "MULTI"] {
        let (_server, mut client, _, mut waiters) = crowd();
        client.must("CACHE.SET other new PX 600000");
        match way {
            "RESTORE" => {
                let payload = client.must("DUMP other").bytes().to_vec();
                let restore: [&[u8]; 4] = [b"RESTORE", b"k", b"600000", &payload];
                assert_eq!(client.call(restore), "OK");
            }
            "MOVE" | "SWAPDB" => {
                client.must("SELECT 1");
                client.must("CACHE.SET k new PX 600000");
                let line = if way == "MOVE" {
                    "MOVE k 0"
                } else {
                    "SWAPDB 0 1"
                };
                client.must(line);
            }
            "MULTI" => {
                // What comes and goes within a step was never there.
                client.transact(["SET k other", "DEL k", "RENAME other k"]);
            }
            way => {
                client.must(&format!("{way} other k"));
            }
        }
        all_get(&mut waiters, "HIT new");
    }
}

#[test]
fn a_key_that_expires_during_a_rebuild_frees_the_lease_for_a_waiting_client() {
    let (server, mut client) = server_and_client();
    // A tombstone reads as a miss: all but one wait, and with it the lease goes.
    // One step, so that it is still there.
    let replies = client.transact(["CACHE.DEL k GRACE 400", "CACHE.FETCH k LEASE 600000"]);
    let token = number(&replies[1], "LEASE -");
    let mut next = waiter(&server, FETCH);
    let new = number(&served(&mut next), "LEASE -");
    assert_eq!(client.must("EXISTS k"), 0);
    assert!(!stores(&mut client, "k", token));
    assert!(stores(&mut client, "k", new));
}

// Those who leave

#[test]
fn a_client_that_timed_out_is_told_to_wait() {
    let (server, mut client) = server_and_client();
    lease(&mut client, "k");
    for block in [1, 30, 120] {
        let start = now_ms(&mut client);
        let reply = client.must(&format!("CACHE.FETCH k LEASE 5 BLOCK {block}"));
        assert!(now_ms(&mut client) - start >= block);
        nearly(number(&reply, "WAIT -"), 600_000);
    }
    assert_eq!(waiting(&server), 0);
    assert_eq!(about(&mut client, "k", "waiters"), 0);
}

#[test]
fn the_time_of_a_waiter_is_up_within_milliseconds() {
    // By itself the server would look once a second.
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    lease(&mut client, "k");
    without_cron(|| {
        let begin = Instant::now();
        number(&client.must("CACHE.FETCH k LEASE 5 BLOCK 60"), "WAIT -");
        not_before(begin, Duration::from_millis(60));
        begin.elapsed()
    });
}

#[test]
fn a_waiter_can_be_unblocked() {
    let (server, mut client) = server_and_client();
    lease(&mut client, "k");
    for resp3 in [false, true] {
        let mut gone = Raw::connect(&server);
        if resp3 {
            gone.hello3();
        }
        let id = gone.id().to_string();
        waits(&server, &mut gone, FETCH);
        assert_eq!(client.call(["CLIENT", "UNBLOCK", &id]), 1);
        nearly(number(&served(&mut gone), "WAIT -"), 600_000);
        waits(&server, &mut gone, FETCH);
        assert_eq!(client.call(["CLIENT", "UNBLOCK", &id, "ERROR"]), 1);
        assert!(served(&mut gone).err().starts_with("UNBLOCKED"));
        assert_eq!(client.call(["CLIENT", "UNBLOCK", &id]), 0);
        assert_eq!(gone.must("PING"), "PONG");
        assert_eq!(waiting(&server), 0);
    }
}

/// Redis 7.0 sends no reply at all to a client that is unblocked after the module has unblocked it.
#[test]
fn a_client_that_is_answered_and_unblocked_in_the_same_step_receives_the_answer() {
    let (server, mut client) = server_and_client();
    for (line, expected) in [
        ("CACHE.SET k v PX 60000 TOKEN %", "HIT v"),
        ("CACHE.SETNULL k PX 60000", "NULL -"),
        ("CACHE.FAIL k %", "LEASE -"),
        ("CACHE.FAIL k % BACKOFF 60000", "DOWN -"),
        ("CACHE.DEL k", "LEASE -"),
    ] {
        client.must("FLUSHALL");
        let token = lease(&mut client, "k");
        let mut waiter = Raw::connect(&server);
        let id = waiter.id();
        waits(&server, &mut waiter, FETCH);
        client.must("MULTI");
        client.must(&line.replace('%', &token.to_string()));
        client.must(&format!("CLIENT UNBLOCK {id}"));
        assert_eq!(client.must("EXEC").array()[1], 1, "{line}");
        assert_eq!(shown(&served(&mut waiter)), expected, "{line}");
        assert_eq!(waiter.must("PING"), "PONG", "{line}");
        assert_eq!(waiting(&server), 0);
    }
}

/// Redis 7.0 runs commands of clients that were unblocked after it has asked modules before it sleeps.
#[test]
fn what_is_stored_right_before_the_server_sleeps_is_answered_before_it_wakes_by_itself() {
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    without_cron(|| {
        client.must("FLUSHALL");
        lease(&mut client, "k");
        let mut waiter = waiter(&server, FETCH);
        let mut setter = Raw::connect(&server);
        setter.send(["BLPOP", "list", "0"]);
        setter.send(["CACHE.SET", "k", "v", "PX", "60000"]);
        eventually(SOON, || server.info_int("blocked_clients") == 2);
        let begin = Instant::now();
        client.must("LPUSH list x");
        assert_eq!(shown(&served(&mut waiter)), "HIT v");
        begin.elapsed()
    });
}

#[test]
fn a_waiter_that_goes_leaves_the_line_and_the_next_moves_up() {
    for way in ["close", "kill", "unblock", "time-out"] {
        let (server, mut client) = server_and_client();
        let token = lease(&mut client, "k");
        let mut gone = Raw::connect(&server);
        let id = gone.id().to_string();
        let block = if way == "time-out" { 1000 } else { 0 };
        waits(
            &server,
            &mut gone,
            &format!("CACHE.FETCH k LEASE 600000 BLOCK {block}"),
        );
        let mut next = waiter(&server, FETCH);
        match way {
            "close" => drop(gone),
            "kill" => {
                assert_eq!(client.call(["CLIENT", "KILL", "ID", &id]), 1);
                assert!(gone.closes_within(SOON));
            }
            "unblock" => {
                client.call(["CLIENT", "UNBLOCK", &id]);
                number(&served(&mut gone), "WAIT -");
            }
            _ => {
                number(&served(&mut gone), "WAIT -");
            }
        }
        await_waiting(&server, 1);
        assert_eq!(about(&mut client, "k", "waiters"), 1, "{way}");
        client.must(&format!("CACHE.FAIL k {token}"));
        number(&served(&mut next), "LEASE -");
        assert_eq!(waiting(&server), 0);
    }
}

/// The lease of who never hears of it is no lease.
#[test]
fn a_waiter_killed_right_after_it_was_granted_gives_the_lease_back() {
    let (server, mut client) = server_and_client();
    for end in ["CLIENT KILL ID", "CLIENT UNBLOCK"] {
        let token = lease(&mut client, "k");
        let mut first = Raw::connect(&server);
        let id = first.id();
        waits(&server, &mut first, FETCH);
        let mut second = waiter(&server, FETCH);
        // In one step: it is served, and goes before its reply is sent.
        let error = if end.ends_with("UNBLOCK") {
            " ERROR"
        } else {
            ""
        };
        let replies = client.transact([
            format!("CACHE.FAIL k {token}"),
            format!("{end} {id}{error}"),
        ]);
        assert_eq!(replies[0], 1);
        // Whom the server cannot unblock any more gets what it was granted.
        let got_it = end.ends_with("UNBLOCK")
            && first.read_within(SOON).is_some_and(|reply| !reply.is_err());
        if !got_it {
            let token = number(&served(&mut second), "LEASE -");
            assert_eq!(waiting(&server), 0);
            assert!(stores(&mut client, "k", token));
        }
        client.must("DEL k");
        client.must("FLUSHALL");
        drop(second);
        await_waiting(&server, 0);
        client.must("FLUSHALL");
    }
}

#[test]
fn many_clients_that_arrive_and_leave_leave_no_state() {
    let (server, mut client) = server_and_client();
    lease(&mut client, "k");
    let mut kept = waiter(&server, FETCH);
    for _ in 0..10 {
        let gone: Vec<_> = (0..10)
            .map(|number| {
                let mut client = Raw::connect(&server);
                let block = 600_000 + number;
                client.ask(&format!("CACHE.FETCH k LEASE 5 BLOCK {block}"));
                client
            })
            .collect();
        await_waiting(&server, 11);
        drop(gone);
        await_waiting(&server, 1);
    }
    still_waits(&mut kept);
    client.must("CACHE.SET k v PX 600000");
    all_get(std::slice::from_mut(&mut kept), "HIT v");
}

// Order

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (server, mut client) = server_and_client();
    let mut token = lease(&mut client, "k");
    let mut waiters: Vec<_> = (0..12).map(|_| waiter(&server, FETCH)).collect();
    for first in 0..12 {
        client.must(&format!("CACHE.FAIL k {token}"));
        token = first_gets_the_lease(&mut waiters[first..]);
    }
    assert_eq!(waiting(&server), 0);
}

#[test]
fn commands_behind_one_that_waits_run_after_it() {
    let (server, mut client) = server_and_client();
    let token = lease(&mut client, "k");
    let mut next = Raw::connect(&server);
    waits(&server, &mut next, FETCH);
    next.ask("CACHE.GET k");
    next.ask("PING");
    still_waits(&mut next);
    stores(&mut client, "k", token);
    number(&served(&mut next), "HIT late");
    assert_eq!(served(&mut next), "late");
    assert_eq!(served(&mut next), "PONG");
}

// Pauses and roles

#[test]
fn in_a_pause_of_writes_times_run_on_and_all_else_comes_after_it() {
    let (server, mut client) = server_and_client();
    number(&client.must("CACHE.FETCH k LEASE 1000"), "LEASE -");
    lease(&mut client, "j");
    let mut next = waiter(&server, FETCH);
    let mut times_out = waiter(&server, "CACHE.FETCH j LEASE 5 BLOCK 1100");
    client.must("CLIENT PAUSE 100000 WRITE");
    nearly(number(&served(&mut times_out), "WAIT -"), 600_000);
    let gone = Instant::now();
    // What is in memory only may be given in a pause or after it; who has it can store after it only.
    let early = next.read_within(Duration::from_millis(50));
    client.must("CLIENT UNPAUSE");
    let reply = early.unwrap_or_else(|| served(&mut next));
    let token = number(&reply, "LEASE -");
    assert!(gone.elapsed() < SOON);
    assert!(stores(&mut client, "k", token));
}

#[test]
fn a_demoted_server_answers_waiting_clients_and_forgets_all_leases() {
    let (master, server) = (quiet().start(), quiet().start());
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k");
    let early = lease(&mut client, "other");
    let (_, _, failed) =
        fetched(&client.must("CACHE.FETCH down LEASE 600000 BREAKER database 1 600000"));
    client.must(&format!("CACHE.FAIL down {failed} BACKOFF 600000"));
    assert_eq!(counter(&mut client, "breaker_trips"), 1);
    let mut waiters: Vec<_> = (0..3).map(|_| waiter(&server, FETCH)).collect();
    server.replica_of(&master);
    for waiter in &mut waiters {
        assert!(served(waiter).err().starts_with("UNBLOCKED "));
    }
    await_role(&server, "slave");
    let line = format!("CACHE.SET k v PX 5 TOKEN {token}");
    assert_eq!(shown(&client.must(FETCH)), "MISS -");
    for line in [&line, "CACHE.DEL k"] {
        assert!(client.run(line).err().starts_with("READONLY"), "{line}");
    }
    assert_eq!(counter(&mut client, "waiters_now"), 0);
    assert!(client.must("CACHE.BREAKER database").is_nil());
    assert_eq!(counter(&mut client, "breaker_trips"), 1);
    // As soon as it is a master again it begins anew.
    server.promote();
    assert!(!stores(&mut client, "k", token));
    assert!(!stores(&mut client, "other", early));
    for key in ["k", "other", "down"] {
        lease(&mut client, key);
    }
    let mut next = waiter(&server, FETCH);
    client.must("CACHE.SET k v PX 600000");
    all_get(std::slice::from_mut(&mut next), "HIT v");
}

#[test]
fn a_promoted_replica_gives_leases_of_its_own() {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    let token = lease(&mut client, "k");
    client.must("CACHE.SET v v PX 600000");
    wait_for_replica_sync(&master, &replica);
    replica.promote();
    let mut client = Raw::connect(&replica);
    // Who has a lease of the old master comes too late.
    assert!(!stores(&mut client, "k", token));
    let new = lease(&mut client, "k");
    assert_ne!(token, new);
    assert!(!stores(&mut client, "k", token));
    let mut next = waiter(&replica, FETCH);
    assert!(stores(&mut client, "k", new));
    all_get(std::slice::from_mut(&mut next), "HIT late");
}

#[test]
fn a_reload_of_the_dataset_revokes_leases_and_serves_waiting_clients() {
    let (_server, mut client, token, mut waiters) = crowd();
    client.must("DEBUG RELOAD");
    first_gets_the_lease(&mut waiters);
    assert!(!stores(&mut client, "k", token));
}

/// Nothing goes before this load, and no event tells of what it brings.
#[test]
fn all_waiting_clients_receive_a_loaded_entry() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET k v PX 600000");
    client.must("SAVE");
    client.must("DEL k");
    let token = lease(&mut client, "k");
    let mut waiters = [(); 3].map(|()| waiter(&server, FETCH));
    client.must("DEBUG RELOAD NOSAVE NOFLUSH MERGE");
    all_get(&mut waiters, "HIT v");
    assert!(!stores(&mut client, "k", token));
}

// Cluster

/// A key of a slot that the first node serves.
const LOW: &str = "bar";
const SLOT: i64 = 5061;

/// What happens to a missing key on another node leaves no trace that would come back with its slot.
#[test]
fn a_lease_ends_when_its_slot_leaves_even_if_it_comes_back() {
    let (builder, databases) = node_of_databases();
    let (one, other) = two_nodes(&builder);
    let mut here: Vec<_> = (0..databases).map(|db| connect_in(&one, db)).collect();
    let leases: Vec<_> = here
        .iter_mut()
        .map(|client| (lease(client, LOW), lease(client, "baz")))
        .collect();
    Move::start(SLOT, &one, &other).finish();
    for db in 0..databases {
        let mut there = connect_in(&other, db);
        there.must("SET bar v");
        there.must("DEL bar");
    }
    Move::start(SLOT, &other, &one).finish();
    for (client, (left, stays)) in here.iter_mut().zip(leases) {
        assert!(!stores(client, LOW, left));
        assert!(stores(client, "baz", stays), "of another slot");
    }
}

/// The lease ends when the slot is about to leave, and is free again when it stays.
#[test]
fn a_waiting_client_gets_the_lease_if_its_slot_stays_after_all() {
    let (one, other) = two_nodes(&node());
    let mut here = Raw::connect(&one);
    let token = lease(&mut here, LOW);
    let mut next = waiter(&one, "CACHE.FETCH bar LEASE 600000 BLOCK 0");
    let moving = Move::start(SLOT, &one, &other);
    still_waits(&mut next);
    moving.cancel();
    number(&served(&mut next), "LEASE -");
    assert!(!stores(&mut here, LOW, token));
}

#[test]
fn a_lease_stays_when_other_slots_arrive_and_leave() {
    let server = node().config("cluster-require-full-coverage", "no").start();
    server.own_slots(0..=16382);
    server.await_cluster(1);
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, LOW);
    let mut next = waiter(&server, "CACHE.FETCH bar LEASE 600000 BLOCK 0");
    for line in ["ADDSLOTS 16383", "DELSLOTS 1 2", "DELSLOTSRANGE 3 100"] {
        client.must(&format!("CLUSTER {line}"));
        still_waits(&mut next);
    }
    assert!(stores(&mut client, LOW, token));
    number(&served(&mut next), "HIT late");
}

#[test]
fn a_refused_move_of_a_slot_revokes_no_lease() {
    let (server, mut client) = one_node();
    let token = lease(&mut client, LOW);
    let mut next = waiter(&server, "CACHE.FETCH bar LEASE 600000 BLOCK 0");
    for line in [
        "CLUSTER ADDSLOTS 1",
        "CLUSTER SETSLOT 5061 MIGRATING nobody",
    ] {
        assert!(client.run(line).is_err(), "{line}");
        assert!(about(&mut client, LOW, "lease_ms") > 0, "{line}");
    }
    still_waits(&mut next);
    assert!(stores(&mut client, LOW, token));
    number(&served(&mut next), "HIT late");
}

/// The module sees such a command before the server checks it. If the command names more slots than a cluster has, it is ignored.
#[test]
fn a_command_that_assigns_a_slot_revokes_its_lease_even_if_it_is_refused() {
    let (server, mut client) = one_node();
    let id = id_of(&server);
    client.must("ACL SETUSER guest on nopass +ping");
    let mut guest = Raw::connect(&server);
    guest.must("AUTH guest any");
    let all_twice = " 0 16383".repeat(2);
    for (line, is_revoked) in [
        (format!("SETSLOT {SLOT} IMPORTING {id}"), true),
        (format!("SETSLOT {SLOT} NODE {id}"), true),
        (format!("ADDSLOTS {SLOT}"), true),
        (format!("addslotsrange {SLOT} {SLOT}"), true),
        (format!("ADDSLOTSRANGE{all_twice}"), false),
        (format!("ADDSLOTSRANGE {SLOT} 1"), false),
        (format!("ADDSLOTS {SLOT} 16384"), false),
        (format!("SETSLOT {SLOT} NODE nobody"), false),
        (format!("DELSLOTS {SLOT}"), false),
    ] {
        let tokens = [LOW, "baz"].map(|key| lease(&mut client, key));
        let reply = guest.run(&format!("CLUSTER {line}"));
        assert!(reply.err().starts_with("NOPERM"), "{line}");
        assert_eq!(stores(&mut client, LOW, tokens[0]), !is_revoked, "{line}");
        assert!(stores(&mut client, "baz", tokens[1]), "{line}");
        for key in [LOW, "baz"] {
            client.must(&format!("CACHE.DEL {key}"));
        }
    }
}

#[test]
fn leases_end_when_slots_go_and_come_back() {
    let server = Server::builder().cluster(true).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let mut client = Raw::connect(&server);
    // Each twice: it is known by then what the node has.
    for _ in 0..2 {
        for (go, come) in [
            ("DELSLOTS 5061", "ADDSLOTS 5061"),
            ("DELSLOTSRANGE 5061 5062", "ADDSLOTSRANGE 5061 5062"),
            ("FLUSHSLOTS", "ADDSLOTSRANGE 0 16383"),
        ] {
            let token = lease(&mut client, LOW);
            client.must(&format!("CLUSTER {go}"));
            client.must(&format!("CLUSTER {come}"));
            server.await_cluster(1);
            assert!(!stores(&mut client, LOW, token), "{go}");
        }
    }
    // A refused command ends no lease in a slot that it does not assign.
    let token = lease(&mut client, LOW);
    for line in [
        "CLUSTER SETSLOT 5061 NODE nobody",
        "CLUSTER ADDSLOTS 5062",
        "CLUSTER DELSLOTS 16384",
    ] {
        assert!(client.run(line).is_err(), "{line}");
    }
    assert!(stores(&mut client, LOW, token));
}

#[test]
fn a_waiting_client_is_redirected_when_its_slot_leaves() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(|node| node.command(["CLUSTER", "MYID"]).text().to_owned());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let token = lease(&mut here, LOW);
    lease(&mut here, "baz");
    let mut waiters: Vec<_> = (0..3)
        .map(|_| waiter(&one, "CACHE.FETCH bar LEASE 600000 BLOCK 0"))
        .collect();
    let mut stays = waiter(&one, "CACHE.FETCH baz LEASE 600000 BLOCK 0");
    there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
    here.must(&format!("CLUSTER SETSLOT {SLOT} MIGRATING {}", ids[1]));
    for waiter in &mut waiters {
        still_waits(waiter);
    }
    for client in [&mut there, &mut here] {
        client.must(&format!("CLUSTER SETSLOT {SLOT} NODE {}", ids[1]));
    }
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", other.port());
    for waiter in &mut waiters {
        assert_eq!(served(waiter).err(), moved);
    }
    still_waits(&mut stays);
    assert_eq!(waiting(&one), 1);
    // They follow, and begin anew there.
    assert!(!stores(&mut there, LOW, token));
    lease(&mut there, LOW);
    let mut next = waiter(&other, "CACHE.FETCH bar LEASE 600000 BLOCK 0");
    there.must("CACHE.SET bar v PX 600000");
    number(&served(&mut next), "HIT v");
    here.must("CACHE.SET baz v PX 600000");
    number(&served(&mut stays), "HIT v");
}

/// A pause must not hide that a slot has left and come back.
#[test]
fn a_lease_ends_with_its_slot_in_a_pause() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(id_of);
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let token = lease(&mut here, LOW);
    // Valkey executes `CLUSTER SETSLOT` only after the pause. The node learns of the move from the other node before.
    here.must("CLIENT PAUSE 3000 WRITE");
    let assign = |client: &mut Raw, id: &str| {
        client.must(&format!("CLUSTER SETSLOT {SLOT} NODE {id}"));
    };
    there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
    assign(&mut there, &ids[1]);
    assign(&mut here, &ids[1]);
    // A writer invalidates the entry on the other node.
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", other.port());
    assert_eq!(here.run("CACHE.GET bar").err(), moved);
    there.must("CACHE.DEL bar");
    assign(&mut there, &ids[0]);
    assign(&mut here, &ids[0]);
    here.must("CLIENT UNPAUSE");
    assert!(!stores(&mut here, LOW, token));
}

/// Valkey executes `CLUSTER SETSLOT` only after the replicas have it, so the module's command filter sees the command before the slot
/// changes.
#[test]
fn a_waiting_client_gets_no_lease_when_its_slot_begins_to_migrate() {
    let ([one, _replica], other) = (master_and_replica(), node().start());
    one.meet(&other);
    for node in [&one, &other] {
        node.await_cluster(3);
    }
    let ids = [&one, &other].map(id_of);
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    // Otherwise Valkey waits only two seconds for the replicas.
    let timeout = match one.info("valkey_version") {
        Some(_) => " TIMEOUT 60000",
        None => "",
    };
    for round in 0..3 {
        let key = format!("{{{LOW}}}{round}");
        let token = lease(&mut here, &key);
        let mut next = waiter(&one, &format!("CACHE.FETCH {key} LEASE 600000 BLOCK 0"));
        there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
        here.must(&format!(
            "CLUSTER SETSLOT {SLOT} MIGRATING {}{timeout}",
            ids[1]
        ));
        still_waits(&mut next);
        for client in [&mut there, &mut here] {
            client.must(&format!("CLUSTER SETSLOT {SLOT} STABLE{timeout}"));
        }
        // The entry may have been created and deleted on the other node.
        let token_of_next = number(&served(&mut next), "LEASE -");
        assert!(!stores(&mut here, &key, token));
        assert!(stores(&mut here, &key, token_of_next));
    }
}

/// While a node is frozen, a slot leaves it and returns. When the node continues, it learns both in one step. Its line in
/// `CLUSTER NODES` then differs only by the other slot, which begins to move, and by the configuration epoch.
#[test]
fn a_lease_ends_if_its_slot_leaves_and_comes_back_unseen() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(id_of);
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let other_slot = SLOT + 1;
    let mut slot_leaves_and_returns = |is_stored_at_once: bool| {
        let token = lease(&mut here, LOW);
        one.stop_signal();
        there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
        there.must(&format!("CLUSTER SETSLOT {SLOT} NODE {}", ids[1]));
        there.must("CACHE.DEL bar"); // a writer invalidates the entry
        sleep(Duration::from_millis(300)); // the message of the cluster bus arrives meanwhile
        let lines = [
            format!("{SLOT} IMPORTING {}", ids[1]),
            format!("{SLOT} NODE {}", ids[0]),
            format!("{other_slot} MIGRATING {}", ids[1]),
        ];
        for line in lines {
            here.ask(&format!("CLUSTER SETSLOT {line}"));
        }
        if is_stored_at_once {
            here.ask(&format!("CACHE.SET bar old PX 600000 TOKEN {token}"));
        }
        one.cont_signal();
        let has_come_back = !here.read().is_err() & !here.read().is_err() & !here.read().is_err();
        let stored = is_stored_at_once.then(|| here.read());
        if has_come_back {
            assert!(stored.is_none_or(|reply| reply == 0));
            assert!(!stores(&mut here, LOW, token));
        }
        // Otherwise the node has read the commands before that message.
        here.must(&format!("CLUSTER SETSLOT {other_slot} STABLE"));
        there.must(&format!("CLUSTER SETSLOT {SLOT} NODE {}", ids[0]));
        eventually(SOON, || {
            here.run(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[1]));
            here.run(&format!("CLUSTER SETSLOT {SLOT} NODE {}", ids[0]));
            !here.run("CACHE.DEL bar").is_err()
        });
        has_come_back
    };
    for is_stored_at_once in [false, true] {
        let has_returned = (0..10).any(|_| slot_leaves_and_returns(is_stored_at_once));
        assert!(has_returned, "the slot does not come back");
    }
}

/// A node learns from another one that it has lost a slot, and its operator assigns the slot to it again before the module has asked
/// for the slots. The line of the node in `CLUSTER NODES`, even its configuration epoch, is then the same as before. A lease in another
/// slot stays.
#[test]
fn a_lease_ends_if_its_slot_is_lost_to_another_node_and_assigned_again() {
    let (one, other) = two_nodes(&node().config("cluster-require-full-coverage", "no"));
    let ids = [&one, &other].map(id_of);
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    here.must("CONFIG SET hz 1"); // the module asks ten times less often
    let is_own = |client: &mut Raw| {
        let reply = client.must("CLUSTER NODES");
        let line = reply.text().lines().find(|line| line.contains("myself"));
        line.is_some_and(|line| line.contains(" 0-8191"))
    };
    let assign = |client: &mut Raw, id: &str| {
        client.run(&format!("CLUSTER SETSLOT {SLOT} NODE {id}"));
    };
    let mut slot_returns = |lines: &[String]| {
        eventually(SOON, || {
            assign(&mut there, &ids[0]);
            assign(&mut here, &ids[0]);
            is_own(&mut here)
        });
        let tokens = [LOW, "baz"].map(|key| {
            here.must(&format!("CACHE.DEL {key}"));
            lease(&mut here, key)
        });
        eventually(SOON, || {
            there.must("CLUSTER BUMPEPOCH");
            assign(&mut there, &ids[1]);
            sleep(Duration::from_millis(20));
            !is_own(&mut here)
        });
        there.must(&format!("CACHE.DEL {LOW}")); // a writer invalidates the entry
        assign(&mut there, &ids[0]);
        // In one write: the module would see the lost slot between two commands.
        let replies = here.run_all(lines);
        assert!(replies.iter().all(|reply| *reply == "OK"), "{replies:?}");
        let stored = here.run(&format!(
            "CACHE.SET {LOW} late PX 600000 TOKEN {}",
            tokens[0]
        ));
        // An earlier message of the other node can take the slot once more.
        let is_tested = is_own(&mut here);
        if is_tested {
            assert_eq!(stored, 0, "{lines:?}");
            assert!(stores(&mut here, "baz", tokens[1]), "{lines:?}");
        }
        is_tested
    };
    for ways_back in [
        vec![format!("SETSLOT {SLOT} NODE {}", ids[0])],
        vec![format!("DELSLOTS {SLOT}"), format!("ADDSLOTS {SLOT}")],
        vec![
            format!("DELSLOTSRANGE {SLOT} {SLOT}"),
            format!("ADDSLOTSRANGE {SLOT} {SLOT}"),
        ],
    ] {
        let lines: Vec<_> = ways_back
            .iter()
            .map(|way| format!("CLUSTER {way}"))
            .collect();
        assert!((0..10).any(|_| slot_returns(&lines)), "{lines:?}");
    }
}

/// Before the module grants a lease directly after `CLUSTER SETSLOT`, it asks for the slots again. So it does not revoke this lease later.
#[test]
fn a_lease_that_is_granted_right_behind_setslot_lasts() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(id_of);
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    lease(&mut here, "baz");
    for round in 0..3 {
        let (missing, stale) = (
            format!("{{{LOW}}}missing{round}"),
            format!("{{{LOW}}}stale{round}"),
        );
        here.must(&format!("CACHE.SET {stale} v PX 1 STALE 600000"));
        eventually(SOON, || about(&mut here, &stale, "fresh_ms") <= 0);
        there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
        for (command, key, expected) in [
            (format!("MIGRATING {}", ids[1]), &stale, "LEASE v"),
            ("STABLE".to_owned(), &missing, "LEASE -"),
        ] {
            let replies = here.run_all([
                format!("CLUSTER SETSLOT {SLOT} {command}"),
                format!("CACHE.FETCH {key} LEASE 600000"),
            ]);
            let token = number(&replies[1], expected);
            assert!(stores(&mut here, key, token), "{command}");
        }
        there.must(&format!("CLUSTER SETSLOT {SLOT} STABLE"));
    }
}

/// In a cluster the lease is taken back only after the step in which its holder went. What somebody else was given meanwhile
/// stays his.
#[test]
fn of_a_lease_that_is_given_back_late_nobody_else_loses_his() {
    let server = Server::builder().cluster(true).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k");
    let mut gone = Raw::connect(&server);
    let id = gone.id();
    waits(&server, &mut gone, FETCH);
    let replies = client.transact([
        format!("CACHE.FAIL k {token}"),
        format!("CLIENT KILL ID {id}"),
        "CACHE.DEL k".into(),
        "CACHE.FETCH k LEASE 600000".into(),
    ]);
    let token = number(&replies[3], "LEASE -");
    assert!(gone.closes_within(SOON));
    assert!(stores(&mut client, "k", token));
}

/// The key is gone here, and there it is still a tombstone: nobody may rebuild it by a lease of this node.
#[test]
fn a_waiting_client_gets_no_lease_on_the_node_that_its_slot_left() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(|node| node.command(["CLUSTER", "MYID"]).text().to_owned());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    here.must("CACHE.DEL bar GRACE 600000");
    lease(&mut here, LOW);
    let mut next = waiter(&one, "CACHE.FETCH bar LEASE 600000 BLOCK 0");
    there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
    // At once: with its slot's first step the lease ends, and the key would be here for the next in line.
    here.transact([
        format!("CLUSTER SETSLOT {SLOT} MIGRATING {}", ids[1]),
        format!("MIGRATE 127.0.0.1 {} bar 0 60000", other.port()),
    ]);
    still_waits(&mut next);
    for client in [&mut there, &mut here] {
        client.must(&format!("CLUSTER SETSLOT {SLOT} NODE {}", ids[1]));
    }
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", other.port());
    assert_eq!(served(&mut next).err(), moved);
    nearly(about(&mut there, LOW, "grace_ms"), 600_000);
}

#[test]
fn a_guard_must_be_in_the_slot_of_its_key() {
    let server = Server::builder().cluster(true).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let mut client = Raw::connect(&server);
    client.must("BF.ADD {k}f x");
    let reply = client.run("CACHE.FETCH {k} LEASE 5 GUARD foo x");
    assert!(reply.err().starts_with("CROSSSLOT"), "{reply:?}");
    number(
        &client.must("CACHE.FETCH {k} LEASE 60000 GUARD {k}f y"),
        "ABSENT -",
    );
    let mut next = Raw::connect(&server);
    number(&client.must("CACHE.FETCH {k} LEASE 60000"), "LEASE -");
    waits(&server, &mut next, "CACHE.FETCH {k} LEASE 60000 BLOCK 0");
    client.must("DEL {k}");
    number(&served(&mut next), "LEASE -");
}
