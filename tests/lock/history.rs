//! Many clients over a few locks for some seconds, doing all that clients do, dying included. What
//! they saw is then checked: never two exclusive holders at a time, fences rise, every call ends.

use crate::support::lock::{Grant, check};
use crate::support::{Raw, SOON, Server, Value, eventually};
use proptest::prelude::{Rng, RngCore};
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 16;
const LOCKS: [&str; 3] = ["lock:a", "lock:b", "lock:c"];
/// The shortest run. A busy machine needs more time for as many grants.
const RUN: Duration = Duration::from_secs(5);
const ENOUGH_GRANTS: usize = 150;
const ENOUGH_DEATHS: usize = 30;

struct Client<'a> {
    server: &'a Server,
    connection: Raw,
    name: String,
    round: u32,
    rng: TestRng,
    grants: Vec<Grant>,
    deaths: usize,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, index: usize, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8] = index as u8;
        Self {
            server,
            connection: Raw::connect(server),
            name: format!("client-{index}"),
            round: 0,
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
            grants: Vec::new(),
            deaths: 0,
        }
    }

    /// The connection dies, in the middle of whatever it does.
    fn die(&mut self) {
        self.connection = Raw::connect(self.server);
        self.deaths += 1;
    }

    fn pause(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_micros(
            self.rng.next_u64() % (most_ms * 1000),
        ));
    }

    /// Asks for one lock, or for all of several.
    fn step(&mut self) {
        self.round += 1;
        // A new owner each time: what a dead connection left behind is somebody else's.
        let owner = format!("{}:{}", self.name, self.round);
        let first = self.rng.random_range(0..LOCKS.len());
        let count = if self.rng.random_ratio(1, 5) { 2 } else { 1 };
        let locks: Vec<usize> = (0..count)
            .map(|step| (first + step) % LOCKS.len())
            .collect();
        let shared = count == 1 && self.rng.random_ratio(1, 3);
        let lease = self.rng.random_range(1..40u64);
        let block = self.rng.random_range(1..200u64);
        let watchdog = self.rng.random_ratio(1, 8);

        let mut command: Vec<String> = Vec::new();
        if count == 1 {
            command.extend(["LOCK.ACQUIRE".to_owned(), LOCKS[first].to_owned()]);
        } else {
            command.extend(["LOCK.MACQUIRE".to_owned(), count.to_string()]);
            command.extend(locks.iter().map(|lock| LOCKS[*lock].to_owned()));
        }
        command.extend([owner.clone(), "PX".to_owned(), lease.to_string()]);
        command.extend(["BLOCK".to_owned(), block.to_string()]);
        command.extend(shared.then(|| "SHARED".to_owned()));
        command.extend(watchdog.then(|| "WATCHDOG".to_owned()));

        let asked = Instant::now();
        self.connection.send(&command);
        if self.rng.random_ratio(1, 20) {
            self.pause(20);
            return self.die(); // while it waits, or just when it is served
        }
        let reply = self
            .connection
            .read_within(Duration::from_millis(block) + SOON);
        let reply = reply.unwrap_or_else(|| panic!("{command:?} never ended"));
        let from = Instant::now();
        let fences: Vec<i64> = match &reply {
            Value::Nil => return,
            Value::Int(fence) => vec![*fence],
            Value::Array(fences) => fences.iter().map(Value::int).collect(),
            other => panic!("{command:?} -> {other:?}"),
        };

        self.pause(30);
        if self.rng.random_ratio(1, 3) {
            // Some renew, some re-enter, none of which ends the hold.
            let key = LOCKS[locks[0]];
            self.connection
                .call(["LOCK.RENEW", key, &owner, "PX", &lease.to_string()]);
        }
        let released = Instant::now();
        // A watched hold lasts as long as the connection, but how long that is is not certain here.
        let lease_ends = asked + Duration::from_millis(lease);
        for (lock, fence) in locks.iter().zip(fences) {
            let to = released.min(lease_ends);
            self.grants.push(Grant {
                lock: *lock,
                shared,
                fence,
                asked,
                from,
                to,
            });
        }
        match self.rng.random_range(0..10) {
            0 => self.die(),
            1 => {} // forgets to release
            _ => {
                for lock in &locks {
                    let reply = self.connection.call(["LOCK.RELEASE", LOCKS[*lock], &owner]);
                    assert!(reply.is_nil() || reply.int() == 0, "released: {reply:?}");
                }
            }
        }
    }
}

#[test]
fn sixteen_clients_never_hold_together_and_every_call_ends() {
    let server = Server::start();
    let seed = std::process::id().into();
    println!("seed {seed}");
    let begun = Instant::now();
    let (grants, deaths) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let goes_on = || {
        let is_enough =
            grants.load(Relaxed) > ENOUGH_GRANTS && deaths.load(Relaxed) > ENOUGH_DEATHS;
        let lasts = begun.elapsed();
        lasts < RUN || (!is_enough && lasts < SOON)
    };
    let clients: Vec<Client<'_>> = thread::scope(|scope| {
        let run = |index| {
            let (server, grants, deaths, goes_on) = (&server, &grants, &deaths, &goes_on);
            scope.spawn(move || {
                let mut client = Client::new(server, index, seed);
                while goes_on() {
                    let before = (client.grants.len(), client.deaths);
                    client.step();
                    grants.fetch_add(client.grants.len() - before.0, Relaxed);
                    deaths.fetch_add(client.deaths - before.1, Relaxed);
                }
                client
            })
        };
        let threads: Vec<_> = (0..CLIENTS).map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a client"))
            .collect()
    });
    let grants: Vec<Grant> = clients
        .iter()
        .flat_map(|client| client.grants.clone())
        .collect();
    let deaths: usize = clients.iter().map(|client| client.deaths).sum();
    println!("{} grants, {deaths} deaths", grants.len());
    assert!(
        grants.len() > ENOUGH_GRANTS && deaths > ENOUGH_DEATHS,
        "the run was too tame: {} {deaths}",
        grants.len()
    );
    check(&grants).unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));

    drop(clients);
    eventually(SOON, || {
        let left = server
            .command(["EXISTS", LOCKS[0], LOCKS[1], LOCKS[2]])
            .int();
        let has_none = |count| server.info_int(count) == 0;
        left == 0 && has_none("sluice_lock_waiting") && has_none("sluice_lock_watchdog_holds")
    });
}

#[test]
fn the_check_finds_what_is_wrong() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let grant = |lock, shared, fence, from, to| Grant {
        lock,
        shared,
        fence,
        asked: at(from),
        from: at(from),
        to: at(to),
    };
    let held = grant(0, false, 1, 0, 10);
    assert!(check(&[held.clone(), grant(0, false, 2, 10, 20)]).is_ok());
    assert!(check(&[held.clone(), grant(1, false, 2, 5, 20)]).is_ok());
    assert!(check(&[held.clone(), grant(0, false, 2, 9, 20)]).is_err());
    assert!(check(&[held.clone(), grant(0, true, 2, 5, 6)]).is_err());
    assert!(check(&[held, grant(0, false, 1, 30, 40)]).is_err());
    assert!(check(&[grant(0, true, 1, 0, 10), grant(0, true, 2, 5, 15)]).is_ok());
}
