//! A server with nothing to do does nothing, however far away its deadlines are.

use crate::support::{Lines as _, Raw, SOON, Server, eventually};

/// Redis 7.0 multiplies the milliseconds until a module's next timer in an int, when one has fired
/// and another follows: 36 minutes become a time in the past, and the event loop never sleeps.
#[test]
fn a_server_sleeps_while_deadlines_are_hours_away() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.call(["STOCK.SET", "sku", "10"]);
    let hour = "3600000";
    client.call(["STOCK.RESERVE", "sku", "1", "ORDER", "far", "PX", hour]);
    // A timer that fires, so that the server sets it anew for what is left.
    client.call(["STOCK.RESERVE", "sku", "1", "ORDER", "near", "PX", "50"]);
    let expired = || server.info_int("sluice_stock_expired") == 1;
    eventually(SOON, expired);
    assert_eq!(server.calls_while_it_sleeps(10), 0);
}

/// What a cluster's node does ten times a second for those who wait is nothing to a server of its own.
#[test]
fn a_server_sleeps_while_clients_wait_for_thousands_of_keys() {
    const WAITERS: usize = 100;
    const KEYS: usize = 1000;
    let server = Server::builder().clock(0).start();
    let mut holder = Raw::connect(&server);
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let keys: Vec<_> = (0..KEYS).map(|key| format!("{number}:{key}")).collect();
        let all = format!("LOCK.MACQUIRE {KEYS} {}", keys.join(" "));
        holder.must(&format!("{all} holder PX 600000"));
        let mut waiter = Raw::connect(&server);
        waiter.ask(&format!("{all} waiter BLOCK 0"));
        waiting.push(waiter);
    }
    let all_wait = || server.info_int("sluice_lock_waiting") == waiting.len() as i64;
    eventually(SOON, all_wait);
    assert_eq!(server.calls_while_it_sleeps(20), 0);
}
