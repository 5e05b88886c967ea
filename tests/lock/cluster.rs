//! Locks in a cluster: slots, redirections, and slots that move while locks in them are held and waited for.

use std::time::{Duration, Instant};

use crate::support::cluster::{
    HIGH, LOW, Move, await_look, calls, id_of, master_and_replica, node, slot_of, take_over,
    two_nodes, with_changing_masters,
};
use crate::support::lock::fence;
use crate::support::{
    Lines, Raw, SOON, Server, Value, ask, eventually, served, unix_us, wait_for_replica_sync,
    waiter, waiting,
};

const MOMENT: Duration = Duration::from_millis(300);

/// A client that waits for an entry of the cache, which somebody else is to rebuild.
#[track_caller]
fn reader(server: &Server, key: &str) -> Raw {
    ask(server, &format!("CACHE.FETCH {key} LEASE 600000"));
    let mut client = Raw::connect(server);
    client.ask(&format!("CACHE.FETCH {key} LEASE 600000 BLOCK 0"));
    eventually(SOON, || server.info_int("sluice_cache_waiters_now") == 1);
    client
}

#[track_caller]
fn still_waits(waiter: &mut Raw) {
    let reply = waiter.read_within(MOMENT);
    assert_eq!(reply, None, "a waiting client is answered");
}

#[test]
fn several_keys_need_one_slot() {
    let (one, _other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    for line in [
        "LOCK.MACQUIRE 2 bar foo me",
        "LOCK.MACQUIRE 2 bar foo me BLOCK 0",
        "LOCK.MACQUIRE 2 {bar}1 {bar2}1 me",
        "LOCK.MRELEASE 2 bar foo me",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("CROSSSLOT "), "{line}: {reply:?}");
    }
    assert_eq!(client.must("DBSIZE"), 0);

    let fences = client.must("LOCK.MACQUIRE 3 {bar}1 {bar}2 bar me PX 600000");
    assert_eq!(fences.array().len(), 3);
    let mut next = waiter(&one, "LOCK.MACQUIRE 2 {bar}2 {bar}1 you PX 600000 BLOCK 0");
    let released = client.must("LOCK.MRELEASE 3 {bar}1 {bar}2 bar me");
    assert_eq!(
        released.array(),
        [Value::Int(0), Value::Int(0), Value::Int(0)]
    );
    assert_eq!(next.read().array().len(), 2);

    // In transactions and scripts, where waiting is not possible.
    client.run_all([
        "MULTI",
        "LOCK.ACQUIRE {bar}1 me BLOCK 0",
        "LOCK.ACQUIRE bar me",
    ]);
    let replies = client.must("EXEC");
    assert!(replies.array()[0].is_nil());
    assert!(replies.array()[1].int() > 0);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 'BLOCK', '0')";
    assert!(client.call(["EVAL", script, "1", "{bar}2"]).is_nil());
}

#[test]
fn another_nodes_key_is_redirected() {
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    let moved = client.call(["GET", HIGH]);
    assert_eq!(
        moved.err(),
        format!("MOVED {} 127.0.0.1:{}", slot_of(&one, HIGH), other.port())
    );
    for line in [
        "LOCK.ACQUIRE foo me",
        "LOCK.ACQUIRE foo me BLOCK 0 WATCHDOG",
        "LOCK.RELEASE foo me",
        "LOCK.RENEW foo me",
        "LOCK.UPGRADE foo me BLOCK 0",
        "LOCK.DOWNGRADE foo me",
        "LOCK.MACQUIRE 2 foo {foo}1 me BLOCK 0",
        "LOCK.MRELEASE 2 foo {foo}1 me",
        "LOCK.HELD foo me",
        "LOCK.INFO foo",
        "LOCK.GUARD foo 5",
        "SEM.ACQUIRE foo me LIMIT 2 BLOCK 0",
        "SEM.RELEASE foo me",
        "SEM.RENEW foo me",
        "SEM.INFO foo",
    ] {
        assert_eq!(client.run(line), moved, "{line}");
    }
    assert!(ask(&other, "LOCK.ACQUIRE foo me").int() > 0);
}

#[test]
fn a_migrated_lock_is_held_on_the_other_node() {
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    // The fences of the two nodes are an hour apart.
    let ahead = unix_us() + 3_600_000_000;
    client.must(&format!("LOCK.FENCE {ahead}"));
    for line in [
        "LOCK.ACQUIRE bar me PX 600000 ID a",
        "LOCK.ACQUIRE bar me PX 600000 ID b",
        "LOCK.RELEASE bar me ID r",
        "LOCK.ACQUIRE {bar}shared a SHARED PX 500000",
        "LOCK.ACQUIRE {bar}shared b SHARED PX 600000",
        "SEM.ACQUIRE {bar}sem a LIMIT 5 PERMITS 3 PX 600000",
        "LOCK.GUARD {bar}guard 77",
    ] {
        assert!(!client.must(line).is_nil());
    }
    let keys = ["bar", "{bar}shared", "{bar}sem", "{bar}guard"];
    let picture = |server: &Server| {
        keys.map(|key| {
            let mut client = Raw::connect(server);
            let dump = client.must(&format!("DUMP {key}"));
            (dump, client.must(&format!("PEXPIRETIME {key}")))
        })
    };
    let before = picture(&one);
    let fence = client.must("LOCK.HELD bar me");
    client.must("LOCK.ACQUIRE {bar}watched me PX 2000 WATCHDOG");
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys(&keys);
    moving.keys(&["{bar}watched"]);
    assert!(client.run("LOCK.HELD bar me").err().starts_with("ASK "));
    moving.finish();
    assert!(client.run("LOCK.HELD bar me").err().starts_with("MOVED "));

    assert_eq!(picture(&other), before);
    let mut client = Raw::connect(&other);
    assert_eq!(client.must("LOCK.ACQUIRE bar me ID b"), fence);
    assert_eq!(client.must("LOCK.RELEASE bar me ID r"), 1);
    assert!(client.must("LOCK.ACQUIRE bar you").is_nil());
    assert_eq!(client.must("SEM.INFO {bar}sem").field("used"), &3);
    assert_eq!(client.must("LOCK.RELEASE bar me"), 0);
    let next = client.must("LOCK.ACQUIRE bar you").int();
    assert!(
        next > fence.int() && fence.int() > ahead,
        "{next} after {fence:?}"
    );
    // Its client is connected to the first node, so nobody renews it here.
    eventually(SOON, || {
        ask(&other, "LOCK.ACQUIRE {bar}watched you") != Value::Nil
    });
}

#[test]
fn clients_that_wait_in_a_migrated_slot_are_sent_after_it() {
    let (one, other) = two_nodes(&node());
    let mut holder = Raw::connect(&one);
    for line in [
        "LOCK.ACQUIRE bar me PX 600000",
        "LOCK.ACQUIRE {bar}up a SHARED PX 600000",
        "LOCK.ACQUIRE {bar}up b SHARED PX 600000",
        "SEM.ACQUIRE {bar}sem me LIMIT 1 PX 600000",
        "LOCK.ACQUIRE baz me PX 600000", // of another slot of this node
    ] {
        assert!(holder.must(line).int() > 0);
    }
    let mut stays = waiter(&one, "LOCK.ACQUIRE baz you PX 600000 BLOCK 0");
    let mut waiters: Vec<_> = [
        "LOCK.ACQUIRE bar o1 PX 600000 BLOCK 0 WATCHDOG",
        "LOCK.ACQUIRE bar o2 SHARED PX 600000 BLOCK 60000",
        "LOCK.MACQUIRE 2 {bar}free bar o3 PX 600000 BLOCK 0",
        "LOCK.UPGRADE {bar}up a PX 600000 BLOCK 0",
        "LOCK.ACQUIRE {bar}up o4 PX 600000 BLOCK 0",
        "SEM.ACQUIRE {bar}sem o5 LIMIT 1 PX 600000 BLOCK 0",
    ]
    .into_iter()
    .map(|line| waiter(&one, line))
    .collect();

    let slot = slot_of(&one, LOW);
    let moving = Move::start(slot, &one, &other);
    moving.keys(&["bar", "{bar}up", "{bar}sem"]);
    // The keys have gone, the slot has not: nobody is granted what is held elsewhere.
    for waiter in &mut waiters {
        still_waits(waiter);
    }
    assert_eq!(ask(&one, &format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    moving.finish();
    let moved = format!("MOVED {slot} 127.0.0.1:{}", other.port());
    for waiter in &mut waiters {
        let reply = waiter.read_within(SOON).expect("not redirected");
        assert_eq!(reply.err(), moved);
    }
    eventually(SOON, || one.info_int("sluice_lock_waiting") == 1);
    assert_eq!(one.info_int("sluice_lock_handoffs"), 0);

    // They follow, and are served there; who waited elsewhere is served here.
    let mut client = waiter(&other, "LOCK.ACQUIRE bar o1 PX 600000 BLOCK 0");
    assert_eq!(ask(&other, "LOCK.RELEASE bar me"), 0);
    assert!(client.read().int() > 0);
    holder.must("LOCK.RELEASE baz me");
    assert!(stays.read().int() > 0);
    assert_eq!(ask(&one, "DBSIZE"), 1);
}

/// Of two locks that a client waits for, the one that another owner holds moves before the one that the client holds itself.
#[test]
fn a_lock_that_has_moved_is_not_granted_with_one_that_has_not() {
    let (one, other) = two_nodes(&node());
    for line in [
        "LOCK.ACQUIRE bar me PX 600000",
        "LOCK.ACQUIRE {bar}2 you PX 600000",
    ] {
        assert!(ask(&one, line).int() > 0);
    }
    let mut both = waiter(&one, "LOCK.MACQUIRE 2 bar {bar}2 me PX 600000 BLOCK 0");
    let slot = slot_of(&one, LOW);
    let moving = Move::start(slot, &one, &other);
    moving.keys(&["{bar}2"]);
    still_waits(&mut both);
    assert_eq!(ask(&one, &format!("CLUSTER COUNTKEYSINSLOT {slot}")), 1);
    moving.keys(&["bar"]);
    moving.finish();
    let reply = both.read_within(SOON).expect("not redirected");
    assert!(reply.err().starts_with("MOVED "), "{reply:?}");
    let mut both = waiter(&other, "LOCK.MACQUIRE 2 bar {bar}2 me PX 600000 BLOCK 0");
    assert_eq!(ask(&other, "LOCK.RELEASE {bar}2 you"), 0);
    assert_eq!(both.read().array().len(), 2);
}

/// The node has just imported the slot, and sends it on: a lock that has gone from here may be on the next node.
#[test]
fn a_lock_of_a_slot_that_leaves_right_after_its_import_is_not_granted() {
    let (one, other) = two_nodes(&node());
    let ids = [&one, &other].map(id_of);
    for key in [HIGH, "key", "other"] {
        let slot = slot_of(&one, key);
        let set = |how: &str| format!("CLUSTER SETSLOT {slot} {how}");
        let mut client = Raw::connect(&one);
        client.must(&set(&format!("IMPORTING {}", ids[1])));
        client.must("ASKING");
        fence(&client.run(&format!("LOCK.ACQUIRE {key} me PX 600000")));
        let mut next = Raw::connect(&one);
        next.must("ASKING");
        next.ask(&format!("LOCK.ACQUIRE {key} you PX 600000 BLOCK 0"));
        eventually(SOON, || waiting(&one) == 1);
        // The node has just asked who serves which slot, and does not ask again within some milliseconds. Redis 8.4 and later
        // need not be asked.
        let asked = || calls(&one, "cluster|nodes");
        let (before, begun) = (asked(), Instant::now());
        eventually(SOON, || asked() > before || begun.elapsed() > MOMENT);
        let replies = client.run_all([
            set(&format!("NODE {}", ids[0])),
            set(&format!("MIGRATING {}", ids[1])),
            format!("MIGRATE 127.0.0.1 {} {key} 0 20000", other.port()),
        ]);
        assert_eq!(replies[2], "OK");
        still_waits(&mut next);
        client.must(&set("STABLE"));
        fence(&served(&mut next));
    }
}

/// What the node knows of the slots is up to 90 ms old, and older on a busy machine. It may be older than the import.
#[test]
fn an_import_that_begins_right_after_the_node_asked_keeps_its_waiting_clients() {
    let (one, other) = two_nodes(&node());
    let id = id_of(&other);
    let mut keys = (0..).map(|number| format!("import{number}"));
    let mut next_slot = || {
        let key = keys.find(|key| slot_of(&other, key) > 8191).unwrap();
        let slot = slot_of(&other, &key);
        (key, format!("CLUSTER SETSLOT {slot} IMPORTING {id}"))
    };
    let (turns, import) = next_slot();
    let mut client = Raw::connect(&one);
    client.must(&import);
    client.must("ASKING");
    fence(&client.run(&format!("LOCK.ACQUIRE {turns} 0 PX 600000")));
    let mut waiters = Vec::new();
    for turn in 0..5 {
        let mut next = Raw::connect(&one);
        next.must("ASKING");
        next.ask(&format!(
            "LOCK.ACQUIRE {turns} {} PX 600000 BLOCK 0",
            turn + 1
        ));
        eventually(SOON, || waiting(&one) == turn + 1);
        // To serve that client, the node asks which slots move.
        let (key, import) = next_slot();
        let replies = client.run_all([
            "ASKING".to_owned(),
            format!("LOCK.RELEASE {turns} {turn}"),
            import,
            "ASKING".to_owned(),
            format!("LOCK.ACQUIRE {key} me PX 600000"),
        ]);
        assert_eq!(replies[1], 0);
        fence(&replies[4]);
        let mut waiter = Raw::connect(&one);
        waiter.must("ASKING");
        waiter.ask(&format!("LOCK.ACQUIRE {key} you PX 600000 BLOCK 0"));
        fence(&served(&mut next));
        still_waits(&mut waiter);
        waiters.push(waiter);
    }
}

/// The lock is released while the slot is on its way, and then the slot stays after all.
#[test]
fn a_migration_that_is_called_off_forgets_nobody() {
    let (one, other) = two_nodes(&node());
    ask(&one, "LOCK.ACQUIRE bar me PX 600000");
    let mut next = waiter(&one, "LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    assert_eq!(ask(&one, "LOCK.RELEASE bar me"), 0);
    let served = next.read_within(MOMENT);
    moving.cancel();
    let reply = served.or_else(|| next.read_within(SOON));
    assert!(
        reply
            .expect("the lock is free, and its first waiter is not served")
            .int()
            > 0
    );
}

/// The server itself sends blocked clients away when the cluster is down; Valkey since 8.1 only those that wait for keys in
/// its own way, so that the module has to do it. Nothing is left of them when it is up again.
#[test]
fn a_cluster_that_was_down_has_no_waiting_clients() {
    let (one, _other) = two_nodes(&node());
    ask(&one, "LOCK.ACQUIRE bar me PX 600000");
    let mut list = Raw::connect(&one);
    list.ask("BLPOP {bar}list 0");
    let mut next = waiter(&one, "LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
    let mut reader = reader(&one, "{bar}entry");
    ask(&one, "CLUSTER DELSLOTS 0");
    let down = list.read();
    assert!(down.err().starts_with("CLUSTERDOWN "), "{down:?}");
    assert_eq!(next.read(), down);
    assert_eq!(reader.read(), down);
    ask(&one, "CLUSTER ADDSLOTS 0");
    eventually(SOON, || {
        ask(&one, "CLUSTER INFO")
            .text()
            .contains("cluster_state:ok")
    });
    assert_eq!(one.info_int("sluice_lock_waiting"), 0);
    assert_eq!(one.info_int("sluice_cache_waiters_now"), 0);
    let mut again = Raw::connect(&one);
    again.must("LOCK.RELEASE bar me");
    assert!(again.must("LOCK.ACQUIRE bar third PX 600000").int() > 0);
    assert!(again.must("LOCK.HELD bar you").is_nil());
}

/// The module must know now which slots it imports, but one answer is good for all keys of a client.
#[test]
fn a_client_that_gets_many_locks_of_an_imported_slot_costs_one_look_at_the_nodes() {
    const COUNT: usize = 1024;
    let (one, other) = two_nodes(&node());
    let keys: Vec<String> = (0..COUNT)
        .map(|number| format!("{{{LOW}}}{number}"))
        .collect();
    let (own, names) = (keys[1..].join(" "), keys.join(" "));
    ask(
        &one,
        &format!("LOCK.MACQUIRE {} {own} me PX 6000000", COUNT - 1),
    );
    fence(&ask(
        &one,
        &format!("LOCK.ACQUIRE {} you PX 6000000", keys[0]),
    ));
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys(&keys);
    let mut all = Raw::connect(&other);
    all.must("ASKING");
    all.ask(&format!(
        "LOCK.MACQUIRE {COUNT} {names} me PX 6000000 BLOCK 0"
    ));
    eventually(SOON, || waiting(&other) == 1);
    let mut client = Raw::connect(&other);
    let before = calls(&other, "cluster|nodes");
    client.must("ASKING");
    // Not by a command of the module: `ASKING` would be good for its hand-over, too.
    assert_eq!(client.must(&format!("PEXPIRE {} 1", keys[0])), 1);
    assert_eq!(served(&mut all).array().len(), COUNT);
    // The cron event asks, too, a few times in the meantime.
    let asked = calls(&other, "cluster|nodes") - before;
    assert!((1..COUNT as i64 / 8).contains(&asked), "{asked} times");
}

/// After an ASK redirection a client waits at the importing node, as it would for a list there.
#[test]
fn clients_can_wait_at_the_importing_node() {
    let (one, other) = two_nodes(&node());
    ask(&one, "LOCK.ACQUIRE bar me PX 600000");
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys(&["bar"]);

    // What a built-in command does here.
    let mut list = Raw::connect(&other);
    list.run_all(["ASKING"]);
    list.ask("BLPOP {bar}list 0");
    let mut lock = Raw::connect(&other);
    lock.run_all(["ASKING"]);
    lock.ask("LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
    eventually(SOON, || other.info_int("blocked_clients") == 2);
    still_waits(&mut list);
    still_waits(&mut lock);
    let mut holder = Raw::connect(&other);
    let replies = holder.run_all(["ASKING", "RPUSH {bar}list v"]);
    assert_eq!(replies[1], 1);
    assert!(!list.read().is_err());
    let replies = holder.run_all(["ASKING", "LOCK.RELEASE bar me"]);
    assert_eq!(replies[1], 0);
    let served = lock.read_within(MOMENT);
    moving.finish();
    let reply = served.or_else(|| lock.read_within(SOON));
    assert!(reply.expect("never served").int() > 0);
}

/// The error is the one that the server itself gives, whatever the nodes are told to call each other.
#[test]
fn redirections_name_nodes_as_the_server_does() {
    let kinds = [
        node()
            .config("cluster-announce-hostname", "localhost")
            .config("cluster-preferred-endpoint-type", "hostname"),
        node().config("cluster-preferred-endpoint-type", "unknown-endpoint"),
    ];
    for builder in kinds {
        let (one, other) = two_nodes(&builder);
        ask(&one, "LOCK.ACQUIRE bar me PX 600000");
        let mut next = waiter(&one, "LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
        // The name of a node arrives with its next message.
        eventually(SOON, || {
            let moved = Raw::connect(&one).call(["GET", HIGH]);
            !moved.err().contains("MOVED 12182 ?:")
        });
        let moving = Move::start(slot_of(&one, LOW), &one, &other);
        moving.keys(&["bar"]);
        moving.finish();
        let expected = Raw::connect(&one).call(["GET", LOW]);
        assert!(expected.err().starts_with("MOVED 5061 "), "{expected:?}");
        let reply = next.read_within(SOON);
        assert_eq!(reply, Some(expected));
    }
}

#[test]
fn a_manual_failover_takes_the_holds_along() {
    with_changing_masters(master_and_replica, |[old, new]| {
        let mut watched = Raw::connect(old);
        let fence = watched
            .must("LOCK.ACQUIRE bar me PX 600000 WATCHDOG ID a")
            .int();
        watched.must("LOCK.ACQUIRE foo me PX 100");
        let mut waits = waiter(old, "LOCK.ACQUIRE bar you PX 600000 BLOCK 0");
        let mut entry = reader(old, "{bar}entry");
        wait_for_replica_sync(old, new);

        // A replica redirects, unless its client asks for reads from it.
        let mut reader = Raw::connect(new);
        assert!(reader.run("LOCK.HELD bar me").err().starts_with("MOVED "));
        reader.must("READONLY");
        assert_eq!(reader.must("LOCK.HELD bar me"), fence);
        assert!(
            reader
                .run("LOCK.ACQUIRE bar me")
                .err()
                .starts_with("MOVED ")
        );

        take_over(new);
        for waits in [&mut waits, &mut entry] {
            let reply = waits.read();
            let error = reply.err();
            assert!(
                error.starts_with("UNBLOCKED ") || error.starts_with("MOVED "),
                "{error}"
            );
        }
        eventually(SOON, || {
            old.info_int("sluice_lock_waiting") + old.info_int("sluice_cache_waiters_now") == 0
        });
        eventually(SOON, || old.info("role").as_deref() == Some("slave"));
        eventually(SOON, || !Raw::connect(new).run("LOCK.HELD bar me").is_err());
        assert_eq!(ask(new, "LOCK.HELD bar me"), fence);
        assert_eq!(ask(new, "LOCK.ACQUIRE bar me ID a"), fence);
        assert!(ask(new, "LOCK.ACQUIRE bar you").is_nil());
        drop(watched);
        eventually(SOON, || {
            old.info("master_link_status").as_deref() == Some("up")
        });
        wait_for_replica_sync(new, old);
        assert_eq!(new.digest(), old.digest());
        assert!(ask(new, "LOCK.HELD bar you").is_nil());
    });
}

/// Newer servers take every key that is opened during a command for one of the command's slot: a lock that was handed on
/// in the middle of a command for another slot would be held, and found by nobody.
#[test]
fn a_lock_that_is_freed_before_a_command_for_another_slot_is_handed_on() {
    let server = node().start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let mut first = Raw::connect(&server);
    for round in 0..50 {
        let (one, other) = (format!("{{{round}a}}lock"), format!("{{{round}b}}lock"));
        first.must(&format!("LOCK.ACQUIRE {one} first PX 60000"));
        let mut second = waiter(&server, &format!("LOCK.ACQUIRE {one} second BLOCK 60000"));
        // In one write, so that nothing comes between.
        first.send(["DEL", &one]);
        first.send(["LOCK.ACQUIRE", &other, "first"]);
        assert_eq!(first.read(), 1);
        assert!(first.read().int() > 0);
        assert!(second.read().int() > 0);
        assert_eq!(ask(&server, &format!("EXISTS {one}")), 1);
        let held = first.must(&format!("LOCK.HELD {one} second"));
        assert!(held.int() > 0);
        let third = first.must(&format!("LOCK.ACQUIRE {one} third"));
        assert!(third.is_nil(), "{third:?}");
    }
}

/// Pub/Sub of a cluster reaches all nodes, so a client may subscribe to any of them.
#[test]
fn messages_of_notify_reach_subscribers_of_other_nodes() {
    let (one, other) = two_nodes(&node());
    let mut far = Raw::connect(&other);
    far.must("SUBSCRIBE channel");
    let mut client = Raw::connect(&one);
    client.must("LOCK.ACQUIRE bar holder PX 600000");
    let line = "LOCK.ACQUIRE bar me PX 600000 BLOCK 0 ID i NOTIFY channel";
    assert!(client.must(line).is_nil());
    client.must("LOCK.RELEASE bar holder");
    let mut next = || {
        let message = far.read_within(SOON).expect("a message comes");
        message.array()[2].text().to_owned()
    };
    let granted = next();
    let fence = client.must("LOCK.HELD bar me").int();
    assert_eq!(granted, format!("granted {fence} i"));
    client.must("DEL bar");
    assert_eq!(next(), format!("lost {fence} i"));
}

/// A node that serves all slots.
fn owner_of_all() -> Server {
    let server = node().clock(0).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    server
}

/// Since Redis 7.2 a command finds only keys of its own hash slot. The lock that the other owner holds is in another one.
#[test]
fn a_deadlock_over_two_slots_is_refused() {
    let server = owner_of_all();
    let mut client = Raw::connect(&server);
    for (mine, yours) in [(LOW, HIGH), (HIGH, LOW)] {
        client.must(&format!("LOCK.ACQUIRE {mine} me PX 600000"));
        client.must(&format!("LOCK.ACQUIRE {yours} you PX 600000"));
        let mut waiter = waiter(&server, &format!("LOCK.ACQUIRE {yours} me BLOCK 0"));
        let refused = client.run(&format!("LOCK.ACQUIRE {mine} you BLOCK 60000"));
        assert!(refused.err().starts_with("DEADLOCK "), "{refused:?}");
        client.must(&format!("LOCK.RELEASE {yours} you"));
        assert!(served(&mut waiter).int() > 0);
        client.must("FLUSHALL");
    }
}

/// Clients that wait in other slots do not delay the refusal, although the command cannot open their keys.
#[test]
fn a_deadlock_in_one_slot_is_refused_at_once_beside_clients_of_other_slots() {
    let server = owner_of_all();
    let mut client = Raw::connect(&server);
    client.must(&format!("LOCK.ACQUIRE {HIGH} holder PX 600000"));
    let _beside = waiter(&server, &format!("LOCK.ACQUIRE {HIGH} waiter BLOCK 0"));
    client.must(&format!("LOCK.ACQUIRE {{{LOW}}}a me PX 600000"));
    client.must(&format!("LOCK.ACQUIRE {{{LOW}}}b you PX 600000"));
    let _waiter = waiter(&server, &format!("LOCK.ACQUIRE {{{LOW}}}b me BLOCK 0"));
    // A request that is checked later would get nil.
    let closing = format!("LOCK.ACQUIRE {{{LOW}}}a you BLOCK 60000 ID closing NOTIFY channel");
    let refused = client.run(&closing);
    assert!(refused.err().starts_with("DEADLOCK "), "{refused:?}");
}

/// A slot leaves a node on which nobody waits, and begins to come back. A client that is sent there with `ASK` waits there.
#[test]
fn a_client_waits_in_a_slot_that_was_lost_before_it_came() {
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    let tags = (0..).map(|index| format!("tag{index}"));
    let mut own_tags = tags.filter(|tag| (1..8192).contains(&slot_of(&one, tag)));
    let leased = own_tags.find(|tag| slot_of(&one, tag) != slot_of(&one, LOW));
    let leased = leased.expect("there are many tags");
    client.must(&format!("CACHE.FETCH {leased} LEASE 600000")); // the node looks at its slots now
    await_look(&one);
    Move::start(slot_of(&one, LOW), &one, &other).finish();
    await_look(&one);
    let back = Move::start(slot_of(&one, LOW), &other, &one);
    client.must("ASKING");
    fence(&client.run(&format!("LOCK.ACQUIRE {LOW} me PX 600000")));
    let mut next = Raw::connect(&one);
    next.must("ASKING");
    next.ask(&format!("LOCK.ACQUIRE {LOW} you PX 600000 BLOCK 0"));
    eventually(SOON, || waiting(&one) == 1);
    await_look(&one);
    await_look(&one);
    still_waits(&mut next);
    back.finish();
    client.must(&format!("LOCK.RELEASE {LOW} me"));
    fence(&served(&mut next));
}

/// Clients wait in thousands of slots when all keys are deleted. The hand-over goes on while commands change a lock with a queue of
/// its own. Each lock must be stored in its own hash slot.
#[test]
fn locks_are_handed_over_in_their_own_slots_beside_commands() {
    const CLIENTS: usize = 2000;
    /// A slice is 1 ms, so it ends after a few steps.
    const US_PER_READING: i64 = 300;
    let server = owner_of_all();
    let mut client = Raw::connect(&server);
    client.run_all((0..CLIENTS).flat_map(|index| {
        let acquire = format!("LOCK.ACQUIRE key{index}");
        [
            format!("{acquire} holder PX 3600000"),
            format!("{acquire} waiter PX 3600000 BLOCK 0 ID {index} NOTIFY channel"),
        ]
    }));
    let mut other = Raw::connect(&server);
    other.must("LOCK.ACQUIRE bar holder PX 3600000");
    let _queue: Vec<Raw> = ["next", "last"]
        .map(|owner| format!("LOCK.ACQUIRE bar {owner} PX 3600000 BLOCK 0"))
        .map(|line| waiter(&server, &line))
        .into();
    server.shift_clock_per_reading(US_PER_READING);
    client.ask("FLUSHALL");
    let end = Instant::now() + SOON;
    while waiting(&server) > 1 {
        assert!(Instant::now() < end, "clients are left");
        other.run_all((0..10).flat_map(|_| {
            [
                "LOCK.ACQUIRE bar me PX 3600000 BLOCK 0 ID me NOTIFY channel",
                "LOCK.CANCEL bar me",
            ]
        }));
    }
    client.read();
    for index in 0..CLIENTS {
        let fence = client.run(&format!("LOCK.HELD key{index} waiter"));
        assert!(matches!(fence, Value::Int(1..)), "key{index}: {fence:?}");
    }
}

/// A slot leaves and comes back at once: the node imports it before it has looked at the clients that wait there. The lock is on the
/// other node.
#[test]
fn a_client_is_redirected_if_its_slot_begins_to_come_back() {
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    for _ in 0..5 {
        client.must(&format!("LOCK.ACQUIRE {LOW} holder PX 600000"));
        let mut waiter = waiter(&one, &format!("LOCK.ACQUIRE {LOW} waiter BLOCK 0"));
        await_look(&one);
        let there = Move::start(slot_of(&one, LOW), &one, &other);
        there.keys(&[LOW]);
        there.finish();
        let back = Move::start(slot_of(&one, LOW), &other, &one);
        let reply = served(&mut waiter);
        assert!(reply.err().starts_with("MOVED "), "{reply:?}");
        back.keys(&[LOW]);
        back.finish();
        client.must(&format!("LOCK.RELEASE {LOW} holder"));
    }
}
