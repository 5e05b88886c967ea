//! Clients that wait for keys whose hash slot is on its way. They are served when the slot stays after all, and nobody else
//! waits for that.

use std::thread::sleep;
use std::time::Duration;

use crate::support::cluster::{LOW, Move, node, slot_of, two_nodes};
use crate::support::{Lines as _, Raw, SOON, Server, eventually};

/// Keys of the slot of [`LOW`].
fn key(index: usize) -> String {
    format!("{{{LOW}}}{index}")
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

/// The slot stays while its clients are being looked at: nobody is forgotten.
#[test]
fn thousands_are_served_after_a_canceled_migration() {
    const CLIENTS: usize = 10_000;
    let (one, other) = two_nodes(&node());
    let mut client = Raw::connect(&one);
    for pause in [300, 350, 400] {
        let _waiting = wait_for_locks(&one, CLIENTS);
        let moving = Move::start(slot_of(&one, LOW), &one, &other);
        client.run_all((0..CLIENTS).map(|index| format!("DEL {}", key(index))));
        assert_eq!(waiting(&one), CLIENTS as i64);
        // The node looks ten times a second. Each look takes longer than the time between two.
        sleep(Duration::from_millis(pause));
        moving.cancel();
        eventually(SOON, || waiting(&one) == 0);
        client.must("FLUSHALL");
    }
}

/// Thousands of clients cannot be tried again where a lock has arrived, because the key is gone and its slot is on its way.
#[test]
fn clients_of_other_slots_are_served_while_a_slot_is_on_its_way() {
    const CLIENTS: usize = 40_000;
    let (one, other) = two_nodes(&node());
    let mut client = wait_for_locks(&one, CLIENTS);
    let spare = |index| format!("{{{LOW}}}spare{index}");
    client.run_all(
        (0..CLIENTS).map(|index| format!("LOCK.ACQUIRE {} other PX 3600000", spare(index))),
    );
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    let renames = (0..CLIENTS).map(|index| format!("RENAME {} {}", spare(index), key(index)));
    let deletions = (0..CLIENTS).map(|index| format!("DEL {}", key(index)));
    client.transact(renames.chain(deletions));
    assert_eq!(waiting(&one), CLIENTS as i64);
    let elsewhere = (0..)
        .map(|index| format!("key{index}"))
        .find(|key| slot_of(&one, key) < 8192 && slot_of(&one, key) != slot_of(&one, LOW))
        .expect("a key");
    for _ in 0..5 {
        client.must(&format!("LOCK.ACQUIRE {elsewhere} me"));
        let mut waiter = Raw::connect(&one);
        waiter.ask(&format!("LOCK.ACQUIRE {elsewhere} you BLOCK 0"));
        eventually(SOON, || waiting(&one) == CLIENTS as i64 + 1);
        client.must(&format!("DEL {elsewhere}"));
        assert!(
            waiter
                .read_within(SOON)
                .is_some_and(|reply| reply.int() > 0)
        );
        client.must(&format!("DEL {elsewhere}"));
    }
    moving.cancel();
    eventually(SOON, || waiting(&one) == 0);
}
