//! Clients that wait while hash slots migrate. If a migration is canceled, they are served. Until then, they do not delay clients of
//! other slots.

use std::thread::sleep;
use std::time::Duration;

use crate::support::cache::lease;
use crate::support::cluster::{LOW, Move, await_look, node, slot_of, two_nodes};
use crate::support::{
    Lines as _, Raw, SOON, Server, Swarm, await_waiting, encode, eventually, served, waiter,
    waiting,
};

/// A key of another slot than that of [`LOW`], which the first of [`two_nodes`] serves as well.
const OTHER: &str = "b"; // slot 3300

/// A node that serves all slots.
fn owner_of_all() -> Server {
    let builder = node().config("cluster-require-full-coverage", "yes");
    let server = builder.clock(0).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    server
}

/// A key in the slot of [`LOW`].
fn key(index: usize) -> String {
    format!("{{{LOW}}}{index}")
}

/// Sends `count` requests that wait, each for the lock at a key of its own in the slot of [`LOW`]. Returns the connection that has
/// sent them.
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

/// The migration is canceled at different moments of a pass over the keys of the slot.
#[test]
fn thousands_are_served_after_a_canceled_migration() {
    const CLIENTS: usize = 20_000;
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    for pause in [300, 350, 400] {
        let _waiting = wait_for_locks(&one, CLIENTS);
        let moving = Move::start(slot_of(&one, LOW), &one, &other);
        client.run_all((0..CLIENTS).map(|index| format!("DEL {}", key(index))));
        assert_eq!(waiting(&one), CLIENTS as i64);
        // A pass over so many keys takes longer than the 100 ms between two checks.
        sleep(Duration::from_millis(pause));
        moving.cancel();
        await_waiting(&one, 0);
        client.must("FLUSHALL");
    }
}

/// `RENAME` puts locks at the keys that thousands of clients wait for, and `DEL` removes them in the same transaction. So there are
/// thousands of keys whose clients the node cannot try.
#[test]
fn clients_of_other_slots_are_served_while_a_slot_migrates() {
    const CLIENTS: usize = 40_000;
    const KEYS_AT_ONCE: usize = 500;
    let (one, other) = two_nodes(&node());
    let mut client = wait_for_locks(&one, CLIENTS);
    let spare = |index| format!("{{{LOW}}}spare{index}");
    let acquire = |index| format!("LOCK.ACQUIRE {} other PX 3600000", spare(index));
    client.run_all((0..CLIENTS).map(acquire));
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
    for _ in 0..5 {
        client.must(&format!("LOCK.ACQUIRE {OTHER} me"));
        let mut waiter = waiter(&one, &format!("LOCK.ACQUIRE {OTHER} you BLOCK 0"));
        client.must(&format!("DEL {OTHER}"));
        assert!(served(&mut waiter).int() > 0);
        client.must(&format!("DEL {OTHER}"));
    }
    moving.cancel();
    await_waiting(&one, 0);
}

/// A slot leaves. Another slot migrates, and its many clients cannot be served.
#[test]
fn clients_of_a_slot_that_leaves_are_redirected_while_another_one_migrates() {
    const CLIENTS: usize = 20_000;
    let (one, other) = two_nodes(&node());
    let mut client = wait_for_locks(&one, CLIENTS);
    client.must(&format!("LOCK.ACQUIRE {OTHER} holder PX 3600000"));
    let mut waiter = waiter(&one, &format!("LOCK.ACQUIRE {OTHER} waiter BLOCK 0"));
    let migrating = Move::start(slot_of(&one, LOW), &one, &other);
    client.must(&format!("DEL {}", key(0)));
    sleep(Duration::from_millis(300)); // the node tries to serve the client of the key
    let moving = Move::start(slot_of(&one, OTHER), &one, &other);
    moving.keys(&[OTHER]);
    moving.finish();
    assert_eq!(served(&mut waiter), client.run(&format!("GET {OTHER}")));
    migrating.cancel();
    await_waiting(&one, CLIENTS as i64 - 1);
}

/// Redirects `count` requests with these keys, whose first key is held. With the 100 ms between two checks after every 32 clients or
/// keys, it would take minutes.
fn check_redirection(count: usize, keys: impl Fn(usize) -> Vec<String>) {
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    for number in 0..count {
        let keys = keys(number);
        client.run(&format!("LOCK.ACQUIRE {} holder PX 3600000", keys[0]));
        let acquire = format!("LOCK.MACQUIRE {} {}", keys.len(), keys.join(" "));
        let options = format!("BLOCK 0 ID {number} NOTIFY channel");
        let reply = client.run(&format!("{acquire} waiter{number} {options}"));
        assert!(reply.is_nil(), "{reply:?}");
    }
    assert_eq!(waiting(&one), count as i64);
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    client.run_all((0..count).map(|number| format!("DEL {}", keys(number)[0])));
    moving.finish();
    await_waiting(&one, 0);
}

/// A client that receives its error leaves the queues of all its keys.
#[test]
fn clients_for_many_keys_are_redirected_together() {
    const KEYS: usize = 32;
    check_redirection(2000, |number| {
        (0..KEYS).map(|at| key(number * KEYS + at)).collect()
    });
}

#[test]
fn clients_for_one_key_are_redirected_together() {
    check_redirection(40_000, |_| vec![key(0)]);
}

/// The cluster is up again before all clients have their error. Then the clients at the head of the queue are served.
#[test]
fn the_remaining_clients_are_served_after_a_short_outage() {
    // The writers wait for the reader `me`. The readers behind them can share the lock when the writers have received the error.
    const WRITERS: usize = 64;
    const READERS: usize = 20_000;
    let one = owner_of_all();
    let mut client = Raw::connect(&one);
    let unused = slot_of(&one, OTHER);
    for pause in [50, 100, 150] {
        client.must("LOCK.ACQUIRE bar me SHARED PX 3600000");
        let request = |index: usize| {
            let mode = if index < WRITERS { "" } else { "SHARED" };
            let acquire = format!("LOCK.ACQUIRE bar owner{index} {mode} PX 3600000");
            format!("{acquire} BLOCK 0 ID {index} NOTIFY channel")
        };
        client.run_all((0..WRITERS + READERS).map(request));
        assert_eq!(waiting(&one), (WRITERS + READERS) as i64);
        client.must(&format!("CLUSTER DELSLOTS {unused}"));
        eventually(SOON, || waiting(&one) < READERS as i64);
        sleep(Duration::from_millis(pause));
        client.must(&format!("CLUSTER ADDSLOTS {unused}"));
        await_waiting(&one, 0);
        one.await_cluster(1);
        client.must("DEL bar");
    }
}

/// Clients wait in thousands of slots when the cluster goes down. They do not receive their error one slot after another.
#[test]
fn clients_of_thousands_of_slots_share_slices() {
    const CLIENTS: usize = 3000;
    /// There are about 50 slices, more on a slow machine. One slot in a slice would take 3000.
    const MOST_SLEEPS: i64 = 2000;
    let server = owner_of_all();
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
    client.must(&format!("CLUSTER DELSLOTS {}", slot_of(&server, OTHER)));
    for _ in 0..CLIENTS {
        let message = subscriber.read_within(SOON).expect("a message");
        assert!(message.array()[2].text().starts_with("moved 0 "));
    }
    let sleeps = server.sleeps() - before;
    assert!(sleeps < MOST_SLEEPS, "{sleeps} sleeps");
}

/// If it takes long to redirect a client, as with a thousand keys, the node does other work after a few of them.
#[test]
fn a_node_serves_others_between_clients_that_take_long() {
    const CLIENTS: usize = 2000;
    /// A slice is 1 ms.
    const US_PER_READING: i64 = 300;
    /// Measured: 3 to 6 writes in a round, and 130 with 64 clients in a slice. A round has a few slices, and a slice up to three clients,
    /// each of which gets its error by one write.
    const MOST_WRITES: i64 = 40;
    let builder = node().many_that_block(3_000).clock(0);
    let (one, other) = two_nodes(&builder);
    let mut client = Raw::connect(&one);
    client.must(&format!("LOCK.ACQUIRE {LOW} holder PX 36000000"));
    let mut swarm = Swarm::connect(&one, CLIENTS);
    for index in 0..CLIENTS {
        let acquire = format!("LOCK.ACQUIRE {LOW} owner{index} PX 3600000 BLOCK 0");
        swarm.send(index, &encode(acquire.split(' ')));
    }
    await_waiting(&one, CLIENTS as i64);
    one.shift_clock_per_reading(US_PER_READING);
    one.count_writes();
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys(&[LOW]);
    moving.finish();
    await_waiting(&one, 0);
    let writes = one.most_writes_in_a_round();
    assert!((1..=MOST_WRITES).contains(&writes), "{writes} writes");
}

/// Clients of two families wait in a slot whose migration is canceled. When those that can be served are served, the node does
/// nothing more.
#[test]
fn a_node_sleeps_after_a_canceled_migration() {
    const LOCKS: usize = 20_000;
    const CONNECTIONS: usize = 8000;
    /// The limit is between the 60 times that an idle node wakes up in a second, and the up to 1000 times of a node with work.
    const MOST_SLEEPS: i64 = 150;
    let builder = node().many_that_block(10_000).clock(0);
    let (one, other) = two_nodes(&builder);
    let mut client = wait_for_locks(&one, LOCKS);
    let mut swarm = Swarm::connect(&one, CONNECTIONS);
    for index in 0..CONNECTIONS {
        let begin = format!("ONCE.BEGIN {{{LOW}}}work{index} LEASE 3600000");
        client.must(&begin);
        swarm.send(index, &encode(format!("{begin} BLOCK 0").split(' ')));
    }
    await_waiting(&one, (LOCKS + CONNECTIONS) as i64);
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    client.must(&format!("DEL {} {{{LOW}}}work0", key(0)));
    sleep(Duration::from_millis(1000)); // the node tries to serve the two clients
    moving.cancel();
    await_waiting(&one, (LOCKS + CONNECTIONS) as i64 - 2);
    eventually(SOON, || {
        let before = one.sleeps();
        sleep(Duration::from_secs(1));
        one.sleeps() - before < MOST_SLEEPS
    });
}

/// A node on which a client waits looks at its slots several times a second. It may look again after the first lease in a slot that has
/// just come.
#[test]
fn a_lease_in_a_slot_that_has_just_come_is_not_revoked() {
    const SLOTS: usize = 5;
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&other);
    let is_of_other = |tag: &String| slot_of(&other, tag) > 8191;
    let mut tags = (0..).map(|index| format!("tag{index}"));
    let waited = tags.find(is_of_other).expect("there are many tags");
    client.must(&format!("LOCK.ACQUIRE {waited} holder PX 3600000"));
    let _waiter = waiter(&other, &format!("LOCK.ACQUIRE {waited} waiter BLOCK 0"));
    for tag in tags.filter(|tag| !is_of_other(tag)).take(SLOTS) {
        await_look(&other);
        Move::start(slot_of(&one, &tag), &one, &other).finish();
        let token = lease(&mut client, &tag);
        await_look(&other);
        let again = client.must(&format!("CACHE.FETCH {tag} LEASE 60000"));
        assert_eq!(again.array()[0], "WAIT", "{tag}");
        assert_eq!(client.must(&format!("CACHE.FAIL {tag} {token}")), 1);
    }
}
