//! The histograms of waits and holds in `INFO sluice`.

use super::support::{
    Lines, Raw, SOON, Server, await_gone, eventually, follow, server_and_client, still_waits,
    waiter,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The numbers of a histogram by their names.
#[track_caller]
fn histogram(server: &Server, name: &str) -> BTreeMap<String, u64> {
    let text = server.info(&format!("sluice_{name}"));
    let text = text.unwrap_or_else(|| panic!("INFO has no histogram {name}"));
    let pair = |pair: &str| {
        let (key, number) = pair.split_once('=').expect("a name and a number");
        (key.to_owned(), number.parse().expect("a number"))
    };
    text.split(',').map(pair).collect()
}

/// The number of times in a histogram. Panics if its numbers do not fit together.
#[track_caller]
fn count(server: &Server, name: &str) -> u64 {
    let numbers = histogram(server, name);
    assert_eq!(numbers.len(), 32, "{numbers:?}");
    let bounds: Vec<u64> = (6..=35).map(|log2| 1 << log2).collect();
    let counts: Vec<u64> = bounds
        .iter()
        .map(|bound| numbers[&format!("le_{bound}")])
        .collect();
    assert!(counts.is_sorted(), "{numbers:?}");
    assert!(counts[29] <= numbers["count"], "{numbers:?}");
    let least: u64 = (1..30)
        .map(|index| (counts[index] - counts[index - 1]) * bounds[index - 1])
        .sum();
    assert!(numbers["sum"] >= least, "{numbers:?}");
    numbers["count"]
}

/// At least one time of a histogram is above `least`, which is a bound.
#[track_caller]
fn has_above(server: &Server, name: &str, least: u64) -> bool {
    let numbers = histogram(server, name);
    numbers["count"] > numbers[&format!("le_{least}")]
}

/// 16.4 ms, a bound. The tests wait for longer than this.
const BOUND_US: u64 = 1 << 14;
const PAUSE: Duration = Duration::from_millis(20);

#[test]
fn holds_are_counted_from_the_grant_to_their_end() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me");
    client.run("LOCK.ACQUIRE k me");
    assert_eq!(client.run("LOCK.RELEASE k me"), 1);
    assert_eq!(count(&server, "times_lock_hold_usec"), 0); // it is held once more
    std::thread::sleep(PAUSE);
    assert_eq!(client.run("LOCK.RELEASE k me"), 0);
    assert_eq!(count(&server, "times_lock_hold_usec"), 1);
    assert!(has_above(&server, "times_lock_hold_usec", BOUND_US));

    // A lease that ends is a hold of its length, whoever finds the end.
    client.run("LOCK.ACQUIRE expires me PX 20");
    await_gone(&mut client, "expires");
    eventually(SOON, || count(&server, "times_lock_hold_usec") == 2);
    client.run("SEM.ACQUIRE s a LIMIT 2 PX 20");
    client.run("SEM.ACQUIRE s b LIMIT 2 PX 600000");
    eventually(SOON, || count(&server, "times_lock_hold_usec") == 3);
    assert_eq!(count(&server, "times_lock_wait_usec"), 0);
}

#[test]
fn waits_are_counted_however_they_end() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 600000");
    assert!(client.run("LOCK.ACQUIRE k you BLOCK 20").is_nil());
    assert_eq!(count(&server, "times_lock_wait_usec"), 1);
    assert!(has_above(&server, "times_lock_wait_usec", BOUND_US));

    let mut granted = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    still_waits(&mut granted);
    client.run("LOCK.RELEASE k me");
    granted.read();
    assert_eq!(count(&server, "times_lock_wait_usec"), 2);

    drop(waiter(&server, "LOCK.ACQUIRE k me BLOCK 0"));
    eventually(SOON, || count(&server, "times_lock_wait_usec") == 3);

    client.run("LOCK.ACQUIRE k other BLOCK 0 ID i NOTIFY c");
    assert_eq!(client.run("LOCK.CANCEL k i"), 1);
    assert_eq!(count(&server, "times_lock_wait_usec"), 4);

    let mut unblocked = waiter(&server, "LOCK.ACQUIRE k me BLOCK 0");
    let id = unblocked_id(&mut client);
    client.run(&format!("CLIENT UNBLOCK {id}"));
    assert!(unblocked.read().is_nil());
    assert_eq!(count(&server, "times_lock_wait_usec"), 5);
}

/// The id of the only blocked client.
fn unblocked_id(client: &mut Raw) -> i64 {
    let list = client.run("CLIENT LIST");
    let line = list.text().lines().find(|line| line.contains("flags=b"));
    let id = line.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
    id.and_then(|id| id.parse().ok()).expect("a blocked client")
}

#[test]
fn cached_values_and_work_count_their_waits_and_leases() {
    let (server, mut client) = server_and_client();
    let lease = client.run("CACHE.FETCH c LEASE 600000");
    let token = lease.array()[2].int();
    let mut reader = waiter(&server, "CACHE.FETCH c LEASE 600000 BLOCK 0");
    std::thread::sleep(PAUSE);
    assert_eq!(
        client.run(&format!("CACHE.SET c v PX 600000 TOKEN {token}")),
        1
    );
    reader.read();
    for name in ["times_cache_wait_usec", "times_cache_hold_usec"] {
        assert_eq!(count(&server, name), 1, "{name}");
        assert!(has_above(&server, name, BOUND_US), "{name}");
    }
    let token = client.run("CACHE.FETCH d LEASE 600000").array()[2].int();
    assert_eq!(client.run(&format!("CACHE.FAIL d {token}")), 1);
    assert_eq!(client.run(&format!("CACHE.FAIL d {token}")), 0);
    assert_eq!(count(&server, "times_cache_hold_usec"), 2);

    let token = client.run("ONCE.BEGIN o LEASE 600000").array()[2].int();
    let mut caller = waiter(&server, "ONCE.BEGIN o LEASE 600000 BLOCK 0");
    std::thread::sleep(PAUSE);
    assert_eq!(client.run(&format!("ONCE.DONE o {token} r PX 600000")), 1);
    assert_eq!(client.run(&format!("ONCE.DONE o {token} r PX 600000")), 1);
    caller.read();
    for name in ["times_once_wait_usec", "times_once_hold_usec"] {
        assert_eq!(count(&server, name), 1, "{name}");
        assert!(has_above(&server, name, BOUND_US), "{name}");
    }
    client.run("ONCE.BEGIN p LEASE 20");
    await_gone(&mut client, "p");
    eventually(SOON, || count(&server, "times_once_hold_usec") == 2);
}

#[test]
fn a_replica_counts_no_releases_of_its_master() {
    let (master, mut client) = server_and_client();
    let replica = Server::start();
    follow(&master, &replica);
    client.run("LOCK.ACQUIRE k me");
    client.run("LOCK.RELEASE k me");
    client.run("SET last 1");
    eventually(SOON, || replica.command(["GET", "last"]) == "1");
    assert_eq!(count(&master, "times_lock_hold_usec"), 1);
    assert_eq!(count(&replica, "times_lock_hold_usec"), 0);
}
