//! Clients that wait get the result, or the work, in order, whatever happens to the key.

use std::time::{Duration, Instant};

use crate::support::cluster::{node, two_nodes};
use crate::support::once::{CONFLICT, begin, busy, counter, done, token};
use crate::support::{
    Builder, Lines, Raw, SOON, Server, WRONGTYPE, await_role, await_waiting, eventually, follow,
    late_and_next_answer, not_before, quiet, run_delayed, served, server_and_client, still_waits,
    waiter, waiting, waits,
};

const WAIT: &str = "ONCE.BEGIN k LEASE 600000 BLOCK 0";

/// A server where somebody is at the work `k`, with three clients that wait for it.
fn crowd() -> (Server, Raw, i64, Vec<Raw>) {
    let (server, mut client) = server_and_client();
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let waiters = (0..3).map(|_| waiter(&server, WAIT)).collect();
    (server, client, token, waiters)
}

/// Panics unless the first begins the work and all others go on waiting; returns its token.
#[track_caller]
fn first_begins(waiters: &mut [Raw]) -> i64 {
    let token = token(&served(&mut waiters[0]));
    for waiter in &mut waiters[1..] {
        still_waits(waiter);
    }
    token
}

#[test]
fn a_result_is_for_all_who_wait() {
    let (server, mut client, token, mut waiters) = crowd();
    assert_eq!(client.must("ONCE.INFO k").field("waiters").int(), 3);
    assert_eq!(client.must(&format!("ONCE.DONE k {token} r PX 600000")), 1);
    for waiter in &mut waiters {
        let left = done(&served(waiter), "r");
        assert!((1..=600_000).contains(&left));
    }
    assert_eq!(waiting(&server), 0);
    assert_eq!(counter(&mut client, "replayed"), 3);
    assert_eq!(counter(&mut client, "begun"), 1);
}

#[test]
fn a_failure_is_for_the_first() {
    let (_server, mut client, mut token, mut waiters) = crowd();
    while !waiters.is_empty() {
        assert_eq!(client.must(&format!("ONCE.FAIL k {token}")), 1);
        let next = first_begins(&mut waiters);
        assert!(next > token);
        token = next;
        waiters.remove(0);
    }
    assert_eq!(client.must(&format!("ONCE.DONE k {token} r PX 600000")), 1);
}

#[test]
fn the_end_of_a_lease_is_for_the_first_while_nobody_calls() {
    let (server, mut client) = server_and_client();
    begin(&mut client, "ONCE.BEGIN k LEASE 300");
    let mut waiters: Vec<_> = (0..3).map(|_| waiter(&server, WAIT)).collect();
    let second = first_begins(&mut waiters);
    assert_eq!(counter(&mut client, "expired"), 1);
    assert_eq!(client.must(&format!("ONCE.DONE k {second} r PX 600000")), 1);
    for waiter in &mut waiters[1..] {
        done(&served(waiter), "r");
    }
}

/// If a lease has ended but the server has not served the queue yet, a client that sends `ONCE.BEGIN` does not overtake the waiting
/// clients, even if the time slice of the service is over before it serves anybody. In this test, a transaction delays the service, and
/// each reading of the clock takes longer than a slice.
#[test]
fn nobody_overtakes_waiting_clients_when_a_lease_ends() {
    const LEASE_MS: i64 = 500;
    for (us_per_reading, left_ms) in [(0, 600_000), (1100, 0)] {
        let is_tested = (0..10).any(|_| {
            let builder = Server::builder().clock(0);
            let server = builder.config("enable-debug-command", "yes").start();
            let mut client = Raw::connect(&server);
            server.freeze_clock(true);
            begin(&mut client, &format!("ONCE.BEGIN k LEASE {LEASE_MS}"));
            let mut next = waiter(&server, WAIT);
            let reply = run_delayed(&mut client, "ONCE.BEGIN k LEASE 300000", || {
                server.shift_clock(LEASE_MS + 1);
                server.shift_clock_per_reading(us_per_reading);
            });
            let left = busy(&reply);
            server.shift_clock_per_reading(0);
            token(&served(&mut next));
            // Otherwise the transaction was over before the clock was shifted.
            left == left_ms
        });
        assert!(is_tested, "{us_per_reading} us");
    }
}

/// All clients that wait when the work is done learn its result, even if the key has gone before the server has answered them. In
/// this test, each reading of the clock takes longer than a time slice, so `ONCE.DONE` itself answers nobody.
#[test]
fn a_result_is_for_all_waiting_clients_even_if_its_key_goes() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    server.freeze_clock(true);
    for (px, removal) in [
        (600_000, "DEL k"),
        (600_000, "FLUSHALL"),
        (600_000, "RENAME k other"),
        (1, "PING"),
    ] {
        let first = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
        let mut next = waiter(&server, "ONCE.BEGIN k LEASE 600000 BLOCK 0 FINGERPRINT f");
        let mut waiters = ["", "FINGERPRINT f", "", "FINGERPRINT g"]
            .map(|how| waiter(&server, &format!("{WAIT} {how}")));
        client.must(&format!("ONCE.FAIL k {first}"));
        let token = token(&served(&mut next));
        server.shift_clock_per_reading(1100);
        client.send_bytes(format!("ONCE.DONE k {token} r PX {px}\r\n{removal}\r\n").as_bytes());
        assert_eq!(client.read(), 1);
        client.read();
        server.shift_clock_per_reading(0);
        for waiter in &mut waiters[..3] {
            assert!(done(&served(waiter), "r") <= px);
        }
        assert!(served(&mut waiters[3]).err().starts_with("CONFLICT "));
        client.must("FLUSHALL");
        begin(&mut client, "ONCE.BEGIN k LEASE 600000");
        client.must("FLUSHALL");
    }
}

/// `CLIENT UNBLOCK` names a client after the work was done and before the server has answered it: it gets the result. In this test,
/// each reading of the clock takes longer than a time slice, so the commands themselves answer nobody.
#[test]
fn a_client_that_is_unblocked_gets_the_result_of_work_that_is_done() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    server.freeze_clock(true);
    for is_renamed in [false, true] {
        let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
        let other = begin(&mut client, "ONCE.BEGIN other LEASE 600000");
        client.must(&format!("ONCE.DONE other {other} r PX 600000"));
        let mut unblocked = Raw::connect(&server);
        let id = unblocked.id();
        waits(&server, &mut unblocked, WAIT);
        let finish = match is_renamed {
            true => "RENAME other k".to_string(),
            false => format!("ONCE.DONE k {token} r PX 600000"),
        };
        server.shift_clock_per_reading(1100);
        let replies = client.pipeline(
            ["MULTI", &finish, &format!("CLIENT UNBLOCK {id}"), "EXEC"]
                .map(|line| line.split(' ').map(String::from).collect::<Vec<_>>()),
        );
        assert_eq!(replies[3].array()[1], 1);
        server.shift_clock_per_reading(0);
        done(&served(&mut unblocked), "r");
        client.must("FLUSHALL");
    }
}

/// Other work that comes to the key and is done changes nothing for clients that waited for the first work.
#[test]
fn each_client_gets_the_result_of_the_work_that_it_waited_for() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    server.freeze_clock(true);
    let first = begin(&mut client, "ONCE.BEGIN k LEASE 600000 FINGERPRINT f");
    let other = begin(&mut client, "ONCE.BEGIN other LEASE 600000 FINGERPRINT g");
    let wait = format!("{WAIT} FINGERPRINT f");
    let mut waiters = [waiter(&server, &wait), waiter(&server, &wait)];
    server.shift_clock_per_reading(1100);
    let done_first = format!("ONCE.DONE k {first} r PX 600000");
    let done_other = format!("ONCE.DONE k {other} s PX 600000");
    let replies = client.pipeline(
        ["MULTI", &done_first, "RENAME other k", &done_other, "EXEC"]
            .map(|line| line.split(' ').map(String::from).collect::<Vec<_>>()),
    );
    assert_eq!(replies[4].array()[2], 1);
    server.shift_clock_per_reading(0);
    for waiter in &mut waiters {
        done(&served(waiter), "r");
    }
}

/// A client whose time is up gets no work, even if the server was too busy to answer it in time.
#[test]
fn a_client_whose_time_is_up_gets_no_work() {
    let hold = |client: &mut Raw| {
        let token = begin(client, "ONCE.BEGIN k LEASE 600000");
        format!("ONCE.FAIL k {token}")
    };
    let (late, next) = late_and_next_answer(hold, "ONCE.BEGIN k LEASE 600000", "NEW");
    busy(&late);
    token(&next);
}

#[test]
fn the_lease_of_a_waiting_client_begins_when_it_is_served() {
    let (server, mut client) = server_and_client();
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let mut next = waiter(&server, "ONCE.BEGIN k LEASE 50000 BLOCK 0 FINGERPRINT f");
    client.must(&format!("ONCE.FAIL k {token}"));
    first_begins(std::slice::from_mut(&mut next));
    let info = client.must("ONCE.INFO k");
    assert!((1..=50_000).contains(&info.field("lease_ms").int()));
    assert_eq!(info.field("fingerprint").bytes(), b"f");
}

#[test]
fn a_wait_whose_time_is_up_is_busy() {
    let (server, mut client) = server_and_client();
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let begun = Instant::now();
    let left = busy(&client.must("ONCE.BEGIN k LEASE 5 BLOCK 50"));
    not_before(begun, Duration::from_millis(50));
    assert!((1..=600_000).contains(&left), "{left}");
    // CLIENT UNBLOCK replies the same; with ERROR it is the server's error.
    for (how, is_error) in [("", false), (" ERROR", true)] {
        let mut next = Raw::connect(&server);
        let id = next.id();
        waits(&server, &mut next, WAIT);
        assert_eq!(client.must(&format!("CLIENT UNBLOCK {id}{how}")), 1);
        let reply = served(&mut next);
        if is_error {
            assert!(reply.err().starts_with("UNBLOCKED "), "{reply:?}");
        } else {
            busy(&reply);
        }
    }
    assert_eq!(waiting(&server), 0);
    // Who has left gets nothing.
    drop(waiter(&server, WAIT));
    await_waiting(&server, 0);
    client.must(&format!("ONCE.FAIL k {token}"));
    begin(&mut client, "ONCE.BEGIN k LEASE 600000");
}

#[test]
fn whatever_frees_the_key_serves_the_first() {
    for line in [
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "RENAME k elsewhere",
        "PEXPIRE k 1",
        "MOVE k 1",
    ] {
        let (_server, mut client, _, mut waiters) = crowd();
        client.must(line);
        first_begins(&mut waiters);
    }
    let (_server, mut client, _, mut waiters) = crowd();
    client.must("SWAPDB 0 1");
    first_begins(&mut waiters);
    let (_server, mut client, _, mut waiters) = crowd();
    client.must("SET k v");
    for waiter in &mut waiters {
        assert_eq!(served(waiter).err(), WRONGTYPE);
    }
}

#[test]
fn a_done_key_that_arrives_wakes_all() {
    let (_server, mut client) = server_and_client();
    let first = begin(&mut client, "ONCE.BEGIN other LEASE 600000");
    client.must(&format!("ONCE.DONE other {first} r PX 600000"));
    let dump = client.must("DUMP other").bytes().to_vec();
    for way in ["RENAME other k", "COPY other k REPLACE", "RESTORE"] {
        let (_server, mut client, _, mut waiters) = crowd();
        let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"600000", &dump, b"REPLACE"];
        if way == "RESTORE" {
            assert_eq!(client.call(restore), "OK");
        } else {
            let first = begin(&mut client, "ONCE.BEGIN other LEASE 600000");
            client.must(&format!("ONCE.DONE other {first} r PX 600000"));
            client.must(way);
        }
        for waiter in &mut waiters {
            done(&served(waiter), "r");
        }
    }
    // Other work that is busy is waited for as well, and another request is told so.
    let (server, mut client, _, mut waiters) = crowd();
    let mut named = waiter(&server, "ONCE.BEGIN k LEASE 600000 FINGERPRINT f BLOCK 0");
    let token = begin(&mut client, "ONCE.BEGIN other LEASE 600000 FINGERPRINT g");
    client.must("RENAME other k");
    assert_eq!(client.must(&format!("ONCE.DONE k {token} r PX 600000")), 1);
    for waiter in &mut waiters {
        done(&served(waiter), "r");
    }
    assert_eq!(served(&mut named).err(), CONFLICT);
}

#[test]
fn a_client_that_leaves_before_its_reply_leaves_the_work_to_the_next() {
    let (server, mut client, token, mut waiters) = crowd();
    let mut gone = Raw::connect(&server);
    let id = gone.id();
    client.must(&format!("ONCE.FAIL k {token}"));
    let token = first_begins(&mut waiters);
    let mut last: Vec<Raw> = waiters.split_off(1);
    for waiter in last.drain(..) {
        drop(waiter);
    }
    await_waiting(&server, 0);
    waits(&server, &mut gone, WAIT);
    let replies = client.transact([
        format!("ONCE.FAIL k {token}"),
        format!("CLIENT KILL ID {id}"),
    ]);
    assert_eq!(replies[0], 1);
    // Nobody is at it.
    eventually(SOON, || client.must("EXISTS k") == 0);
}

#[test]
fn three_hundred_wait_for_one_result() {
    let (server, mut client) = server_and_client();
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let mut waiters: Vec<_> = (0..300).map(|_| Raw::connect(&server)).collect();
    for waiter in &mut waiters {
        waiter.ask(WAIT);
    }
    await_waiting(&server, 300);
    assert_eq!(client.must(&format!("ONCE.DONE k {token} r PX 600000")), 1);
    for waiter in &mut waiters {
        done(&served(waiter), "r");
    }
}

// Demotion, slots, shutdown

#[test]
fn a_demoted_server_unblocks_who_waits() {
    let (master, server) = (quiet().start(), quiet().start());
    let mut client = Raw::connect(&server);
    begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let mut waiters: Vec<_> = (0..3).map(|_| waiter(&server, WAIT)).collect();
    server.replica_of(&master);
    for waiter in &mut waiters {
        assert!(served(waiter).err().starts_with("UNBLOCKED "));
    }
    await_role(&server, "slave");
    let refused = client.run(WAIT);
    assert!(refused.err().starts_with("READONLY"), "{refused:?}");
    assert_eq!(counter(&mut client, "waiting"), 0);
    server.promote();
    begin(&mut client, "ONCE.BEGIN new LEASE 600000");
}

#[test]
fn a_promoted_replica_honours_leases_and_lets_clients_wait() {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    let first = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let last = begin(&mut client, "ONCE.BEGIN gone LEASE 600000");
    client.must(&format!("ONCE.FAIL gone {last}"));
    crate::support::assert_identical(&master, &replica);
    master.kill9();
    replica.promote();
    let mut client = Raw::connect(&replica);
    busy(&client.must("ONCE.BEGIN k LEASE 5"));
    let mut next = waiter(&replica, WAIT);
    assert_eq!(client.must(&format!("ONCE.DONE k {first} r PX 600000")), 1);
    done(&served(&mut next), "r");
    assert!(begin(&mut client, "ONCE.BEGIN new LEASE 5") > first);
}

#[test]
fn who_waits_in_a_slot_that_leaves_is_sent_after_it() {
    check_that_waiting_clients_follow_a_slot(&node());
}

/// The module asks the server for slots with a command of a family that is loaded.
#[test]
fn who_waits_in_a_slot_that_leaves_is_sent_after_it_where_no_other_family_has_waiting_clients() {
    check_that_waiting_clients_follow_a_slot(&node().module_args(&["families", "once,rate"]));
}

fn check_that_waiting_clients_follow_a_slot(builder: &Builder) {
    const SLOT: u16 = 5061;
    let (one, other) = two_nodes(builder);
    let ids = [&one, &other].map(|node| node.command(["CLUSTER", "MYID"]).text().to_owned());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    begin(&mut here, "ONCE.BEGIN bar LEASE 600000");
    let mut waiters: Vec<_> = (0..3)
        .map(|_| waiter(&one, "ONCE.BEGIN bar LEASE 600000 BLOCK 0"))
        .collect();
    there.must(&format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", ids[0]));
    here.must(&format!("CLUSTER SETSLOT {SLOT} MIGRATING {}", ids[1]));
    here.must(&format!("MIGRATE 127.0.0.1 {} bar 0 60000", other.port()));
    // The key has gone, the slot has not: nobody begins the work that is busy at the other node.
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
    // The lease has moved with the key.
    busy(&there.must("ONCE.BEGIN bar LEASE 5"));
}

#[test]
fn a_cluster_that_is_down_has_no_waiting_clients_where_no_other_family_has_any() {
    let (one, _other) = two_nodes(&node().module_args(&["families", "once"]));
    let mut client = Raw::connect(&one);
    begin(&mut client, "ONCE.BEGIN bar LEASE 600000");
    let mut next = waiter(&one, "ONCE.BEGIN bar LEASE 600000 BLOCK 0");
    client.must("CLUSTER DELSLOTS 0");
    let reply = served(&mut next);
    assert!(reply.err().starts_with("CLUSTERDOWN "), "{reply:?}");
}

#[test]
fn a_shutdown_with_waiting_clients_loses_nothing() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let waiters: Vec<_> = (0..3).map(|_| waiter(&server, WAIT)).collect();
    assert!(server.terminate().success());
    drop(waiters);
    server.restart();
    let mut client = Raw::connect(&server);
    busy(&client.must("ONCE.BEGIN k LEASE 5"));
    assert_eq!(client.must(&format!("ONCE.DONE k {token} r PX 600000")), 1);
    done(&client.must("ONCE.BEGIN k LEASE 5"), "r");
}
