//! A node of a cluster looks ten times a second after its waiting clients. That costs next to nothing, however many keys
//! they wait for.

use std::time::{Duration, Instant};

use crate::support::cluster::{LOW, Move, node, slot_of, two_nodes};
use crate::support::{Lines as _, Raw, Server, Swarm, encode, eventually, waiter};

/// Clients, each of which waits for keys of a slot of its own.
const CLIENTS: usize = 5000;

/// The keys that each of them waits for.
const KEYS: usize = 20;

/// A busy machine needs a while for so many.
const LONG: Duration = Duration::from_secs(60);

/// Lets clients wait for a hundred thousand keys in thousands of slots.
fn wait(server: &Server) -> Swarm {
    let mut holder = Raw::connect(server);
    let mut swarm = Swarm::connect(server, CLIENTS);
    for index in 0..CLIENTS {
        let keys = (0..KEYS).map(|key| format!("{{{index}}}{key}"));
        let keys: Vec<String> = keys.collect();
        holder.must(&format!("LOCK.ACQUIRE {} holder PX 600000", keys[0]));
        let mut command = vec!["LOCK.MACQUIRE".to_owned(), KEYS.to_string()];
        command.extend(keys);
        command.extend(["waiter", "BLOCK", "0"].map(String::from));
        swarm.send(index, &encode(command));
    }
    eventually(LONG, || {
        server.info_int("blocked_clients") == CLIENTS as i64
    });
    swarm
}

#[test]
fn a_node_sleeps_while_clients_wait_for_thousands_of_keys() {
    const SLEEPS: i64 = 20;
    let builder = node().many_that_block(10_000).clock(0);
    let server = builder.start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let _swarm = wait(&server);
    // It looks about once between two sleeps, and then it may ask for the nodes of the cluster, but not for thousands of keys.
    let before = server.sleeps();
    let calls = server.calls_while_it_sleeps(SLEEPS);
    let sleeps = server.sleeps() - before; // `SLEEPS`, or more if this test stalls
    println!("{calls} commands between {sleeps} sleeps");
    assert!(calls <= 20 * sleeps, "{calls}");
}

/// The cron event of a server with many clients occurs up to 500 times a second (`dynamic-hz`). Waiting clients are checked no more
/// often than on other servers.
#[test]
fn a_node_whose_cron_event_is_frequent_checks_no_more_often() {
    const SLEEPS: i64 = 200;
    let server = node().config("hz", "500").clock(0).start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    Raw::connect(&server).must("LOCK.ACQUIRE bar me PX 3600000");
    let _waiter = waiter(&server, "LOCK.ACQUIRE bar you BLOCK 0");
    let start = Instant::now();
    let calls = server.calls_while_it_sleeps(SLEEPS);
    // A check asks for the nodes of the cluster and for a key.
    let most = 20.0 + 25.0 * start.elapsed().as_secs_f64();
    assert!((calls as f64) < most, "{calls} commands, {most} expected");
}

/// A slot leaves in which thousands wait: all are told.
#[test]
fn thousands_are_told_that_their_slot_has_left() {
    let (one, other) = two_nodes(&node().many_that_block(10_000));
    let call = |owner: &str| format!("LOCK.ACQUIRE bar {owner} PX 600000 BLOCK 0");
    Raw::connect(&one).must(&call("me"));
    let mut swarm = Swarm::connect(&one, CLIENTS);
    for index in 0..CLIENTS {
        let line = call(&format!("owner{index}"));
        swarm.send(index, &encode(line.split(' ')));
    }
    eventually(LONG, || one.info_int("blocked_clients") == CLIENTS as i64);
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys(&[LOW]);
    moving.finish();
    let moved = Raw::connect(&one).run("GET bar");
    let mut told = 0;
    eventually(LONG, || {
        for index in swarm.ready(Duration::from_millis(100)) {
            for reply in swarm.replies(index) {
                assert_eq!(reply, moved);
                told += 1;
            }
        }
        told == CLIENTS
    });
}
