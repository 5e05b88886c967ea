//! Clients that wait for keys of a hash slot that is migrating. If the migration is canceled, they are served. Until then, they do
//! not delay clients of other slots.

use std::thread::sleep;
use std::time::Duration;

use crate::support::cluster::{LOW, Move, node, slot_of, two_nodes};
use crate::support::{Builder, Lines as _, Raw, SOON, Server, Swarm, encode, eventually};

/// Keys of the slot of [`LOW`].
fn key(index: usize) -> String {
    format!("{{{LOW}}}{index}")
}

/// A node with thousands of clients is not taken for a failed one.
fn patient_node() -> Builder {
    node().config("cluster-node-timeout", "60000")
}

/// A key that the first of [`two_nodes`] serves in another slot than that of [`LOW`].
fn key_elsewhere(server: &Server) -> String {
    let slot = |key: &String| slot_of(server, key);
    let mut keys = (0..).map(|index| format!("key{index}"));
    keys.find(|key| slot(key) < 8192 && slot(key) != slot_of(server, LOW))
        .expect("there are enough keys")
}

/// Lets as many clients wait, each for a lock at a key of its own. One connection sends all requests.
fn wait_for_locks(server: &Server, count: usize) -> Raw {
    let mut client = Raw::connect(server);
    for start in (0..count).step_by(500) {
        let keys = || (start..count.min(start + 500)).map(key);
        let holds = keys().map(|key| format!("LOCK.ACQUIRE {key} holder PX 3600000"));
        let waits = keys().map(|key| {
            format!("LOCK.ACQUIRE {key} waiter PX 3600000 BLOCK 0 ID {key} NOTIFY channel")
        });
        client.run_all(holds.chain(waits).collect::<Vec<_>>());
    }
    assert_eq!(waiting(server), count as i64);
    client
}

fn waiting(server: &Server) -> i64 {
    server.info_int("sluice_lock_waiting")
}

/// The migration is canceled while the node tries to serve the clients, one key after another.
#[test]
fn thousands_are_served_after_a_canceled_migration() {
    const CLIENTS: usize = 20_000;
    let (one, other) = two_nodes(&patient_node());
    let mut client = Raw::connect(&one);
    for pause in [300, 350, 400] {
        let _waiting = wait_for_locks(&one, CLIENTS);
        let moving = Move::start(slot_of(&one, LOW), &one, &other);
        client.run_all((0..CLIENTS).map(|index| format!("DEL {}", key(index))));
        assert_eq!(waiting(&one), CLIENTS as i64);
        // A pass over so many keys takes longer than the 100 ms between two checks.
        sleep(Duration::from_millis(pause));
        moving.cancel();
        eventually(SOON, || waiting(&one) == 0);
        client.must("FLUSHALL");
    }
}

/// Locks arrive at the keys that thousands of clients wait for, and are deleted before their holders' requests can be tried.
#[test]
fn clients_of_other_slots_are_served_while_a_slot_migrates() {
    const CLIENTS: usize = 40_000;
    const KEYS_AT_ONCE: usize = 500;
    let (one, other) = two_nodes(&patient_node());
    let mut client = wait_for_locks(&one, CLIENTS);
    let spare = |index| format!("{{{LOW}}}spare{index}");
    client.run_all(
        (0..CLIENTS).map(|index| format!("LOCK.ACQUIRE {} other PX 3600000", spare(index))),
    );
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    for start in (0..CLIENTS).step_by(KEYS_AT_ONCE) {
        let indices = || start..start + KEYS_AT_ONCE;
        let renames = indices().map(|index| format!("RENAME {} {}", spare(index), key(index)));
        let deletions = indices().map(|index| format!("DEL {}", key(index)));
        let replies = client.transact(renames.chain(deletions));
        let (renamed, deleted) = replies.split_at(KEYS_AT_ONCE);
        assert!(renamed.iter().all(|reply| *reply == "OK"), "{renamed:?}");
        assert!(deleted.iter().all(|reply| *reply == 1), "{deleted:?}");
    }
    assert_eq!(waiting(&one), CLIENTS as i64);
    let elsewhere = key_elsewhere(&one);
    for _ in 0..5 {
        client.must(&format!("LOCK.ACQUIRE {elsewhere} me"));
        let mut waiter = Raw::connect(&one);
        waiter.ask(&format!("LOCK.ACQUIRE {elsewhere} you BLOCK 0"));
        eventually(SOON, || waiting(&one) == CLIENTS as i64 + 1);
        client.must(&format!("DEL {elsewhere}"));
        let reply = waiter.read_within(SOON);
        assert!(reply.is_some_and(|reply| reply.int() > 0));
        client.must(&format!("DEL {elsewhere}"));
    }
    moving.cancel();
    eventually(SOON, || waiting(&one) == 0);
}

/// A slot leaves while another one migrates, whose many clients cannot be served.
#[test]
fn clients_of_a_slot_that_leaves_are_told_while_another_one_migrates() {
    const CLIENTS: usize = 20_000;
    let (one, other) = two_nodes(&patient_node());
    let mut client = wait_for_locks(&one, CLIENTS);
    let leaving = key_elsewhere(&one);
    client.must(&format!("LOCK.ACQUIRE {leaving} holder PX 3600000"));
    let mut waiter = Raw::connect(&one);
    waiter.ask(&format!("LOCK.ACQUIRE {leaving} waiter BLOCK 0"));
    eventually(SOON, || waiting(&one) == CLIENTS as i64 + 1);
    let migrating = Move::start(slot_of(&one, LOW), &one, &other);
    client.must(&format!("DEL {}", key(0)));
    sleep(Duration::from_millis(300)); // the node tries to serve one of its clients
    let moving = Move::start(slot_of(&one, &leaving), &one, &other);
    moving.keys(&[&leaving]);
    moving.finish();
    let told = waiter.read_within(SOON);
    assert_eq!(told, Some(client.run(&format!("GET {leaving}"))));
    migrating.cancel();
    eventually(SOON, || waiting(&one) == CLIENTS as i64 - 1);
}

/// The cluster is up again before all clients are told that it was down. The clients that are first then are served.
#[test]
fn clients_are_served_if_the_cluster_is_up_before_they_are_told() {
    const WRITERS: usize = 64;
    const READERS: usize = 20_000;
    let builder = patient_node().config("cluster-require-full-coverage", "yes");
    let (one, _other) = two_nodes(&builder);
    let mut client = Raw::connect(&one);
    client.must("LOCK.ACQUIRE bar me SHARED PX 3600000");
    let unused = slot_of(&one, &key_elsewhere(&one));
    for pause in [50, 100, 150] {
        let request = |index: usize| {
            let mode = if index < WRITERS { "" } else { "SHARED" };
            format!(
                "LOCK.ACQUIRE bar owner{index} {mode} PX 3600000 BLOCK 0 ID {index} NOTIFY channel"
            )
        };
        client.run_all((0..WRITERS + READERS).map(request));
        assert_eq!(waiting(&one), (WRITERS + READERS) as i64);
        client.must(&format!("CLUSTER DELSLOTS {unused}"));
        eventually(SOON, || waiting(&one) < READERS as i64);
        sleep(Duration::from_millis(pause));
        client.must(&format!("CLUSTER ADDSLOTS {unused}"));
        eventually(SOON, || waiting(&one) == 0);
        one.await_cluster(2);
        client.must("DEL bar");
        client.must("LOCK.ACQUIRE bar me SHARED PX 3600000");
    }
}

/// Clients wait in thousands of slots when the cluster goes down. They are told together, and not one slot after another.
#[test]
fn clients_of_thousands_of_slots_are_told_in_a_few_slices() {
    const CLIENTS: usize = 3000;
    /// A slice handles 64 clients, or 32 if the machine is slow. Between slices, the node also wakes up for other reasons.
    const MOST_SLEEPS: i64 = 1000;
    let builder = patient_node().config("cluster-require-full-coverage", "yes");
    let server = builder.clock(0).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let mut subscriber = Raw::connect(&server);
    subscriber.must("SUBSCRIBE channel");
    let mut client = Raw::connect(&server);
    client.run_all((0..CLIENTS).flat_map(|index| {
        let acquire = format!("LOCK.ACQUIRE key{index}");
        [
            format!("{acquire} holder PX 3600000"),
            format!("{acquire} waiter PX 3600000 BLOCK 0 ID {index} NOTIFY channel"),
        ]
    }));
    assert_eq!(waiting(&server), CLIENTS as i64);
    let before = server.sleeps();
    client.must(&format!("CLUSTER DELSLOTS {}", slot_of(&server, "unused")));
    for _ in 0..CLIENTS {
        let message = subscriber.read_within(SOON).expect("a message");
        assert!(message.array()[2].text().starts_with("moved 0 "));
    }
    let sleeps = server.sleeps() - before;
    println!("{sleeps} sleeps");
    assert!(sleeps < MOST_SLEEPS, "{sleeps}");
}

/// Clients of two families wait in a slot whose migration is canceled. When those that can be served are served, the node does
/// nothing more.
#[test]
fn a_node_sleeps_after_a_canceled_migration() {
    const LOCKS: usize = 20_000;
    const CONNECTIONS: usize = 8000;
    /// An idle node with many clients wakes up at most 60 times a second. One that tries to serve its waiting clients does so up to a
    /// thousand times.
    const MOST_SLEEPS: i64 = 150;
    let builder = patient_node().config("maxclients", "10000").clock(0);
    let (one, other) = two_nodes(&builder);
    let mut client = wait_for_locks(&one, LOCKS);
    let mut swarm = Swarm::connect(&one, CONNECTIONS);
    for index in 0..CONNECTIONS {
        let begin = format!("ONCE.BEGIN {{{LOW}}}work{index} LEASE 3600000");
        client.must(&begin);
        let waiting = format!("{begin} BLOCK 0");
        swarm.send(index, &encode(waiting.split(' ')));
    }
    eventually(SOON, || {
        one.info_int("blocked_clients") == CONNECTIONS as i64
    });
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    client.must(&format!("DEL {} {{{LOW}}}work0", key(0)));
    sleep(Duration::from_millis(1000)); // the node tries to serve the two clients
    moving.cancel();
    eventually(SOON, || waiting(&one) == LOCKS as i64 - 1);
    eventually(SOON, || {
        one.info_int("blocked_clients") == CONNECTIONS as i64 - 1
    });
    eventually(SOON, || {
        let before = one.sleeps();
        sleep(Duration::from_secs(1));
        let sleeps = one.sleeps() - before;
        println!("{sleeps} sleeps");
        sleeps < MOST_SLEEPS
    });
}
