//! The search for deadlocks while thousands of clients hold locks that others want: the server CPU of a wait, the time until the
//! deadlocked clients are refused, and the latency of another client's `PING`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cpu::main_thread_time;
use crate::options::Options;
use crate::progress;
use crate::support::{Crowd, EndOnDrop, Raw, eventually};

/// Numbers of waiting clients, one after the other.
const SIZES: &[u64] = &[400, 1_000, 4_000];

/// The keys of one request of many keys.
const KEYS: u64 = 100;

/// The most of such requests: 4000 of them would be 400 000 entries of queues.
const MOST_OF_MANY_KEYS: u64 = 1_000;

/// The time within which all clients wait, and all searches have ended.
const LIMIT: Duration = Duration::from_secs(120);

/// A search has ended if the server has run for less than `QUIET_NS` in this time: for its cron and the PINGs.
const LOOK: Duration = Duration::from_millis(100);
const QUIET_NS: u64 = 5_000_000;

/// A refusal is the last one if none follows for this time plus the time from the start to that refusal.
const SETTLED: Duration = Duration::from_secs(1);

/// Between two PINGs.
const PAUSE: Duration = Duration::from_millis(1);

/// The holds of clients and their requests: commands that acquire the holds, then one command of each waiting client.
struct Scenario {
    name: &'static str,
    most: u64,
    hold: fn(u64) -> Vec<String>,
    ask: fn(u64, u64) -> String,
    end: End,
}

/// The deadlocked clients.
#[derive(Clone, Copy)]
enum End {
    /// No client.
    Nobody,
    /// The client that sends this command at last.
    Closer(fn(u64) -> String),
    /// Most of the waiting clients.
    Most,
}

const LEASE: &str = "PX 600000";

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "deadlock: one semaphore, half of its holders want one more permit",
        most: u64::MAX,
        hold: |size| {
            (0..2 * size)
                .map(|owner| permit("a", "x", owner, 2 * size))
                .collect()
        },
        ask: |size, owner| permit("a", "x", owner, 2 * size) + " BLOCK 0",
        end: End::Nobody,
    },
    Scenario {
        name: "deadlock: two semaphores, the holders of each want the other",
        most: u64::MAX,
        hold: |size| {
            let half = size / 2;
            let of = |key: &'static str, owner| move |number| permit(key, owner, number, half);
            (0..half)
                .map(of("a", "x"))
                .chain((0..half).map(of("b", "y")))
                .collect()
        },
        // The last client but one of the second half waits, the last one closes the cycle.
        ask: |size, client| match client.checked_sub(size / 2) {
            None => permit("b", "x", client, size / 2) + " BLOCK 0",
            Some(number) => permit("a", "y", number, size / 2) + " BLOCK 0",
        },
        end: End::Closer(|size| permit("a", "y", size / 2 - 1, size / 2) + " BLOCK 0"),
    },
    Scenario {
        name: "deadlock: each client holds a lock and wants the next 100",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size + KEYS),
        // From the last client to the first: no client queues ahead of the owner of a lock that it wants.
        ask: |size, client| next_locks(size - 1 - client),
        end: End::Closer(|size| format!("LOCK.ACQUIRE k:0 x:{size} {LEASE} BLOCK 0")),
    },
    Scenario {
        name: "deadlock: the same, but most of them are deadlocked",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size + KEYS),
        ask: |_, client| next_locks(client),
        end: End::Most,
    },
    Scenario {
        name: "deadlock: each client holds a lock and wants 100 others, chosen at random",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size),
        ask: |size, client| random_locks(size, client, KEYS),
        end: End::Most,
    },
    Scenario {
        name: "deadlock: each client holds a lock and wants 2 others, chosen at random",
        most: u64::MAX,
        hold: |size| each_its_lock(size),
        ask: |size, client| random_locks(size, client, 2),
        end: End::Most,
    },
];

fn each_its_lock(size: u64) -> Vec<String> {
    let hold = |number| format!("LOCK.ACQUIRE k:{number} x:{number} {LEASE}");
    (0..size).map(hold).collect()
}

/// The request of an owner that wants so many different locks of others, the same in every run.
fn random_locks(size: u64, owner: u64, count: u64) -> String {
    let mut state = (owner + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chosen = Vec::new();
    while (chosen.len() as u64) < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let key = format!("k:{}", state % size);
        if state % size != owner && !chosen.contains(&key) {
            chosen.push(key);
        }
    }
    let keys = chosen.join(" ");
    format!("LOCK.MACQUIRE {count} {keys} x:{owner} {LEASE} BLOCK 0")
}

/// The request of an owner that wants the next locks.
fn next_locks(owner: u64) -> String {
    let keys = (owner + 1..=owner + KEYS).map(|key| format!("k:{key}"));
    let keys = keys.collect::<Vec<_>>().join(" ");
    format!("LOCK.MACQUIRE {KEYS} {keys} x:{owner} {LEASE} BLOCK 0")
}

fn permit(key: &str, owner: &str, number: u64, limit: u64) -> String {
    format!("SEM.ACQUIRE {key} {owner}:{number} LIMIT {limit} {LEASE}")
}

/// The results of a scenario with a number of clients.
pub(crate) struct Searched {
    pub(crate) name: &'static str,
    pub(crate) waiters: u64,
    /// Server CPU of a wait in microseconds, the search included.
    pub(crate) wait_us: f64,
    /// From the command that closes a cycle to its error, or from the last command to the last error.
    pub(crate) error_ms: Option<f64>,
    pub(crate) longest_ping_ms: f64,
}

/// All scenarios that are asked for.
pub(crate) fn measure(options: &Options) -> Vec<Searched> {
    let scenarios = SCENARIOS
        .iter()
        .filter(|scenario| options.wants(scenario.name));
    let runs: Vec<_> = scenarios
        .flat_map(|scenario| SIZES.iter().map(move |size| (scenario, *size)))
        .filter(|(scenario, size)| *size <= scenario.most.min(options.most))
        .collect();
    if runs.is_empty() {
        return Vec::new();
    }
    let mut bench = Bench::start(options);
    let progress = progress::bar("deadlock", runs.len() as u64);
    let mut results = Vec::new();
    for (scenario, size) in runs {
        progress.set_message(scenario.name);
        results.push(search(&mut bench, scenario, size));
        bench.await_the_end_of_crowds();
        progress.inc(1);
    }
    progress.finish_and_clear();
    results
}

fn search(bench: &mut Bench, scenario: &Scenario, size: u64) -> Searched {
    bench.prepare(&[], scenario.name, "", 1);
    for command in (scenario.hold)(size) {
        let reply = bench.clients[0].call(command.split(' '));
        assert!(!reply.is_err() && !reply.is_nil(), "{command}: {reply:?}");
    }
    // If the client that closes the cycle is the last of the waiting clients, it does not wait before.
    let waiters = match scenario.end {
        End::Closer(close) if (scenario.ask)(size, size - 1) == close(size) => size - 1,
        _ => size,
    };
    let mut crowd = Crowd::connect(&bench.server, waiters as usize);
    let mut closer = Raw::connect(&bench.server);
    let mut pinger = Raw::connect(&bench.server);
    let (server, is_over) = (&bench.server, AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = EndOnDrop(&is_over);
        let before = main_thread_time(server.pid());
        let refused_before = server.info_int("sluice_lock_deadlocks");
        let commands = (0..waiters).map(|client| (scenario.ask)(size, client));
        let commands: Vec<String> = commands.collect();
        for (client, command) in commands.iter().enumerate() {
            crowd.member(client).send(command.split(' '));
        }
        let start = Instant::now();
        let longest = scope.spawn(|| longest_ping(&mut pinger, &is_over));
        let mut last_error = None;
        let mut refused = 0;
        eventually(LIMIT, || {
            let now = server.info_int("sluice_lock_deadlocks") - refused_before;
            if now != refused {
                refused = now;
                last_error = Some(start.elapsed());
            }
            let are_settled = match scenario.end {
                End::Most => last_error.is_some_and(|last| start.elapsed() > 2 * last + SETTLED),
                End::Nobody | End::Closer(_) => true,
            };
            are_settled && server.info_int("blocked_clients") + refused == waiters as i64
        });
        await_quiet(server.pid());
        let nanoseconds = main_thread_time(server.pid()) - before;
        let elapsed = match scenario.end {
            End::Nobody => {
                assert_eq!(refused, 0, "{}", scenario.name);
                None
            }
            End::Most => last_error,
            End::Closer(close) => {
                assert_eq!(refused, 0, "{}", scenario.name);
                let start = Instant::now();
                closer.send(close(size).split(' '));
                let reply = closer.read_within(LIMIT);
                let is_refused = reply.as_ref().is_some_and(|reply| reply.is_err());
                assert!(is_refused, "{}: {reply:?}", scenario.name);
                Some(start.elapsed())
            }
        };
        let error_ms = elapsed.map(|elapsed| elapsed.as_secs_f64() * 1e3);
        is_over.store(true, Ordering::Relaxed);
        Searched {
            name: scenario.name,
            waiters,
            wait_us: nanoseconds as f64 / 1e3 / waiters as f64,
            error_ms,
            longest_ping_ms: longest.join().expect("the server answers").as_secs_f64() * 1e3,
        }
    })
}

fn longest_ping(client: &mut Raw, is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        assert_eq!(client.call(["PING"]), "PONG");
        longest = longest.max(start.elapsed());
        sleep(PAUSE);
    }
    longest
}

/// Waits until the searches that the server's timer continues have ended.
fn await_quiet(server: u32) {
    eventually(LIMIT, || {
        let before = main_thread_time(server);
        sleep(LOOK);
        main_thread_time(server) - before < QUIET_NS
    });
}
