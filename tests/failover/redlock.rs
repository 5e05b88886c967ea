//! Redlock, as `examples/redlock` has it, over five servers that die, freeze, and have the wrong time.
//!
//! `SLUICE_REDLOCK_SECONDS` is how long clients compete while servers fail (3).

#[path = "../../examples/redlock/redlock.rs"]
mod algorithm;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::support::{EndOnDrop, Fsync, Random, SOON, Server, eventually, number_from};
use algorithm::{Guard, Held, Redlock, Settings};

const HOUR: i64 = 3_600_000;
const KEY: &str = "report";

/// A lease that no test waits for: what is free again was released.
const LONG: Duration = Duration::from_secs(600);

/// How long clients wait for a reply where no server is silent. A running server never takes so long.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// The same where servers are frozen: clients wait this long for each of them. A running server may stall for some seconds.
const REPLY_LIMIT_FROZEN: Duration = Duration::from_secs(4);

/// The same where clients compete: a client without a reply tries again.
const REPLY_LIMIT_COMPETING: Duration = Duration::from_millis(300);

/// Servers with clocks that are so many milliseconds ahead.
fn servers<const N: usize>(ahead: [i64; N]) -> [Server; N] {
    ahead.map(|ahead| Server::builder().clock(ahead).start())
}

fn client(servers: &[Server], lease: Duration, patience: Duration) -> Redlock {
    let address = |server: &Server| format!("redis://127.0.0.1:{}/", server.port());
    let addresses: Vec<_> = servers.iter().map(address).collect();
    let settings = Settings {
        lease,
        patience,
        pause: Duration::from_millis(40),
    };
    Redlock::new(&addresses, settings).unwrap()
}

fn two_clients(servers: &[Server], lease: Duration) -> [Redlock; 2] {
    [(); 2].map(|()| client(servers, lease, REPLY_LIMIT))
}

fn granted(held: &Held) -> Vec<bool> {
    held.fences.iter().map(Option::is_some).collect()
}

/// Does anybody hold the lock on this server?
fn is_held(server: &Server) -> bool {
    server.command(["EXISTS", KEY]) == 1
}

/// A client with connections to all servers, so that a server that freezes is one that the client had.
fn connected(servers: &[Server]) -> Redlock {
    let mut client = client(servers, LONG, REPLY_LIMIT_FROZEN);
    eventually(SOON, || {
        let Some(held) = client.try_acquire(KEY) else {
            return false;
        };
        let is_connected = held.fences.iter().all(Option::is_some);
        client.release(held);
        is_connected
    });
    client
}

#[test]
fn a_majority_is_enough_and_less_leaves_nothing_behind() {
    let servers = servers([0; 5]);
    let [mut one, mut other] = two_clients(&servers, LONG);
    let held = one.try_acquire(KEY).unwrap();
    assert_eq!(granted(&held), [true; 5]);
    assert!(held.validity() < LONG && held.validity() > LONG / 2);
    assert!(other.try_acquire(KEY).is_none());
    one.release(held);

    servers[0].kill9();
    servers[1].kill9();
    let mut held = one.acquire(KEY, SOON).unwrap();
    assert_eq!(granted(&held), [false, false, true, true, true]);
    assert!(other.try_acquire(KEY).is_none());
    assert!(one.renew(&mut held));
    // The third goes while the lock is held: it cannot be renewed, but it can be given back where it is.
    servers[2].kill9();
    assert!(!one.renew(&mut held));
    assert!(is_held(&servers[3]) && is_held(&servers[4]));
    one.release(held);
    assert!(!is_held(&servers[3]) && !is_held(&servers[4]));
    // Two of five are no majority.
    let acquired = |server: &Server| server.info_int("sluice_lock_acquired");
    let before = acquired(&servers[3]);
    assert!(one.acquire(KEY, Duration::from_millis(200)).is_none());
    assert!(acquired(&servers[3]) > before);
    assert!(!is_held(&servers[3]) && !is_held(&servers[4]));
    // With a third one it goes on.
    servers[2].restart();
    let held = one.acquire(KEY, SOON).unwrap();
    assert_eq!(granted(&held), [false, false, true, true, true]);
    one.release(held);
}

#[test]
fn an_owner_with_a_minority_of_holds_blocks_no_other_owner_and_releases_them() {
    let servers = servers([0; 5]);
    let mut client = client(&servers, LONG, REPLY_LIMIT);
    for server in &servers[..2] {
        server.command(["LOCK.ACQUIRE", KEY, "somebody", "PX", "600000"]);
    }
    let held = client.try_acquire(KEY).unwrap();
    assert_eq!(granted(&held), [false, false, true, true, true]);
    client.release(held);
    servers[2].command(["LOCK.ACQUIRE", KEY, "somebody", "PX", "600000"]);
    assert!(client.try_acquire(KEY).is_none());
    assert!(!is_held(&servers[3]) && !is_held(&servers[4]));
    // It has taken nobody else's.
    assert!(servers[..3].iter().all(is_held));
}

/// A server that wakes up grants what it was asked for long ago. The release is right behind it.
#[test]
fn what_a_frozen_server_grants_late_is_released() {
    let servers = servers([0; 5]);
    let mut client = connected(&servers);
    let acquired = |server: &Server| server.info_int("sluice_lock_acquired");
    for frozen in [&servers[..1], &servers[..3]] {
        let before: Vec<_> = frozen.iter().map(acquired).collect();
        for server in frozen {
            server.stop_signal();
        }
        let held = client.try_acquire(KEY);
        // Three of five that are silent are as good as dead.
        assert_eq!(held.is_some(), frozen.len() == 1);
        if let Some(mut held) = held {
            assert!(held.fences[0].is_none());
            assert!(client.renew(&mut held));
            client.release(held);
        }
        assert!(
            servers[frozen.len()..]
                .iter()
                .all(|server| !is_held(server))
        );
        for (server, before) in frozen.iter().zip(before) {
            server.cont_signal();
            eventually(SOON, || acquired(server) > before);
            eventually(SOON, || !is_held(server));
        }
    }
    // The late replies confuse nobody.
    let held = client.try_acquire(KEY).unwrap();
    assert_eq!(granted(&held), [true; 5]);
    client.release(held);
    assert!(servers.iter().all(|server| !is_held(server)));
}

/// A client that is gone releases nothing: then the lease ends.
#[test]
fn what_a_frozen_server_grants_to_a_dead_client_ends_by_itself() {
    let servers = servers([0; 5]);
    let mut client = connected(&servers);
    let before = servers[4].info_int("sluice_lock_acquired");
    servers[4].stop_signal();
    let held = client.try_acquire(KEY).unwrap();
    drop((held, client));
    servers[4].cont_signal();
    eventually(SOON, || {
        servers[4].info_int("sluice_lock_acquired") > before
    });
    // Its lease has begun when the server woke up, later than the others'.
    assert!(servers.iter().all(is_held));
    for server in &servers {
        server.shift_clock(HOUR);
    }
    eventually(SOON, || servers.iter().all(|server| !is_held(server)));
}

#[test]
fn clocks_that_are_wrong_do_no_harm_as_long_as_they_run() {
    let servers = servers([HOUR, -HOUR, 0, 0, 0]);
    // Long enough for a client or a server that stalls for some seconds.
    let lease = Duration::from_secs(10);
    let [mut one, mut other] = two_clients(&servers, lease);
    let mut held = one.try_acquire(KEY).unwrap();
    assert_eq!(granted(&held), [true; 5]);
    for server in &servers {
        let left = server.command(["PTTL", KEY]).int();
        assert!(left <= 10_000, "{left}");
    }
    assert!(one.renew(&mut held));
    // Nobody releases it: it ends everywhere, and not before its time.
    let ends = Instant::now() + held.validity();
    let next = other.acquire(KEY, SOON).unwrap();
    assert!(Instant::now() >= ends);
    assert!(!one.renew(&mut held));
    other.release(next);
}

/// The clocks of a minority jump: the lock stays where it is, and it can be had.
#[test]
fn a_minority_of_clocks_that_jump_does_no_harm() {
    let servers = servers([0; 5]);
    let [mut one, mut other] = two_clients(&servers, LONG);
    let mut held = one.try_acquire(KEY).unwrap();
    servers[0].shift_clock(HOUR);
    servers[1].shift_clock(HOUR);
    assert!(other.try_acquire(KEY).is_none());
    assert!(one.renew(&mut held));
    one.release(held);
    // A client that dies, and clocks that make its leases longer: the majority frees it in time.
    one.try_acquire(KEY).unwrap();
    drop(one);
    servers[0].shift_clock(-HOUR);
    servers[1].shift_clock(-HOUR);
    // More time than the lease passes on all servers.
    for server in &servers {
        server.shift_clock(HOUR / 4);
    }
    let held = other.acquire(KEY, SOON).unwrap();
    assert_eq!(granted(&held), [false, false, true, true, true]);
}

/// The clocks of a majority jump: two clients hold the lock. Only the resource can tell them apart, by the fences of the
/// servers that both had, and not by the largest fence.
#[test]
fn a_majority_of_clocks_that_jump_makes_two_holders_and_the_guard_obeys_the_later() {
    // The first holder has a server whose clock, and so whose fences, are ahead of all others.
    let servers = servers([2 * HOUR, 0, 0, 0, 0]);
    let [mut one, mut other] = two_clients(&servers, LONG);
    let mut guard = Guard::default();
    let held = one.try_acquire(KEY).unwrap();
    assert!(guard.admits(&held.fences));
    for server in &servers[1..4] {
        server.shift_clock(HOUR);
    }
    let stolen = other.acquire(KEY, SOON).unwrap();
    assert_eq!(granted(&stolen), [false, true, true, true, false]);
    assert!(!held.validity().is_zero() && !stolen.validity().is_zero());
    assert!(
        guard.admits(&held.fences),
        "nobody later has been there yet"
    );
    assert!(guard.admits(&stolen.fences));
    assert!(!guard.admits(&held.fences));
    assert!(guard.admits(&stolen.fences));
    assert!(
        stolen.fences.iter().flatten().max() < held.fences.iter().flatten().max(),
        "the largest fence would have let the first one in, and kept the second one out"
    );
}

/// A server that forgets what it granted is the end of Redlock: so it must not forget.
#[test]
fn a_restarted_server_remembers_what_it_granted_only_if_it_keeps_a_file() {
    for keeps in [true, false] {
        let servers: Vec<_> = (0..3)
            .map(|_| match keeps {
                true => Server::builder().aof(Fsync::Always).start(),
                false => Server::start(),
            })
            .collect();
        let [mut one, mut other] = two_clients(&servers, LONG);
        servers[0].kill9();
        let held = one.try_acquire(KEY).unwrap();
        servers[0].restart();
        servers[1].kill9();
        servers[1].restart();
        // Two of three know nothing of it, unless one remembers.
        let wait = if keeps {
            Duration::from_millis(200)
        } else {
            SOON
        };
        let stolen = other.acquire(KEY, wait);
        assert_eq!(stolen.is_none(), keeps);
        let mut guard = Guard::default();
        if let Some(stolen) = stolen {
            assert!(guard.admits(&held.fences) && guard.admits(&stolen.fences));
            assert!(!guard.admits(&held.fences));
        }
    }
}

/// When somebody was in, as long as it was valid.
struct Stay {
    from: Instant,
    until: Instant,
    fences: Vec<Option<i64>>,
}

fn compete(servers: &[Server], stays: &Mutex<Vec<Stay>>, stop: &AtomicBool, number: u64) {
    let mut client = client(servers, Duration::from_millis(1000), REPLY_LIMIT_COMPETING);
    let mut random = Random(0x5eed_0000_0000 + number);
    while !stop.load(Ordering::Relaxed) {
        let Some(mut held) = client.acquire(KEY, Duration::from_millis(500)) else {
            continue;
        };
        let from = Instant::now();
        let valid_until = from + held.validity();
        sleep(Duration::from_millis(random.below(8)));
        let mut until = Instant::now().min(valid_until);
        // Now and then longer than a lease, as long as that is renewed.
        if random.below(6) == 0 && client.renew(&mut held) && until < valid_until {
            let valid_until = Instant::now() + held.validity();
            sleep(Duration::from_millis(20));
            until = Instant::now().min(valid_until);
        }
        stays.lock().unwrap().push(Stay {
            from,
            until,
            fences: held.fences.clone(),
        });
        // Now and then it dies with the lock.
        if random.below(20) > 0 {
            client.release(held);
        }
    }
}

/// Lets one or two of the servers fail at a time, which is what the majority can bear.
fn fail(servers: &[Server], random: &mut Random) {
    let first = random.below(5) as usize;
    let second = (first + 1 + random.below(4) as usize) % 5;
    servers[first].stop_signal();
    if random.below(2) == 0 {
        servers[second].kill9();
        servers[second].restart();
    }
    sleep(Duration::from_millis(100 + random.below(500)));
    servers[first].cont_signal();
    sleep(Duration::from_millis(100));
}

#[test]
fn one_at_a_time_while_servers_die_and_freeze() {
    let time = number_from("SLUICE_REDLOCK_SECONDS", 3);
    // They keep what they granted, and two of them have never had the right time.
    let servers = [HOUR, -HOUR, 0, 20, -20]
        .map(|ahead| Server::builder().clock(ahead).aof(Fsync::Always).start());
    let (stays, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (servers_ref, stays_ref, stop_ref) = (&servers, &stays, &stop);
    let mut faults = 0;
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..4 {
            scope.spawn(move || compete(servers_ref, stays_ref, stop_ref, number));
        }
        let mut random = Random(0xfa17);
        let start = Instant::now();
        // On a slow machine until some have held the lock, for some minutes at most.
        while start.elapsed() < Duration::from_secs(time)
            || (stays_ref.lock().unwrap().len() <= 4
                && start.elapsed() < Duration::from_secs((10 * time).max(180)))
        {
            fail(&servers, &mut random);
            faults += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut stays = stays.into_inner().unwrap();
    stays.sort_by_key(|stay| stay.from);
    println!("{} stays, {faults} faults", stays.len());
    assert!(stays.len() > 4, "{}", stays.len());
    for two in stays.windows(2) {
        assert!(two[0].until <= two[1].from, "two were in at a time");
    }
    // A resource that each of them writes to refuses nobody; one that comes late again, it refuses.
    let mut guard = Guard::default();
    for two in stays.windows(2) {
        assert!(guard.admits(&two[0].fences));
        assert!(guard.admits(&two[1].fences));
        assert!(!guard.admits(&two[0].fences));
    }
    // Nothing stays behind.
    eventually(SOON, || servers.iter().all(|server| !is_held(server)));
}
