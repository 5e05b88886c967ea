//! The search for deadlocks: how much a wait costs the server where thousands of clients wait that hold what others want, how
//! soon the deadlocked clients are refused, and for how long another client's `PING` waits meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cpu::main_thread_time;
use crate::options::Options;
use crate::progress;
use crate::support::{Crowd, EndOnDrop, Raw, eventually};

/// Clients that wait, with so many each in turn.
const SIZES: &[u64] = &[400, 1_000, 4_000];

/// The keys of one request of many keys.
const KEYS: u64 = 100;

/// With more of such requests than this the queues have half a million entries.
const MOST_OF_MANY_KEYS: u64 = 1_000;

/// All clients wait within this, and searches have ended.
const LIMIT: Duration = Duration::from_secs(120);

/// A search has ended if the server has run for less than `QUIET_NS` in this time: for its cron and the PINGs.
const LOOK: Duration = Duration::from_millis(100);
const QUIET_NS: u64 = 5_000_000;

/// After the last refusal there is none for so long, and for as long as it took until then.
const SETTLED: Duration = Duration::from_secs(1);

/// Between two PINGs.
const PAUSE: Duration = Duration::from_millis(1);

/// What clients hold and want: commands without replies that matter, then one command of each waiting client.
struct World {
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

const WORLDS: &[World] = &[
    World {
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
    World {
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
    World {
        name: "deadlock: each client holds a lock and wants the next 100",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size + KEYS),
        // From the last one to the first: nobody stands in front of a client whose lock it wants.
        ask: |size, client| next_locks(size - 1 - client),
        end: End::Closer(|size| format!("LOCK.ACQUIRE k:0 x:{size} {LEASE} BLOCK 0")),
    },
    World {
        name: "deadlock: the same, but most of them are deadlocked",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size + KEYS),
        ask: |_, client| next_locks(client),
        end: End::Most,
    },
    World {
        name: "deadlock: each client holds a lock and wants 100 others, chosen at random",
        most: MOST_OF_MANY_KEYS,
        hold: |size| each_its_lock(size),
        ask: |size, client| random_locks(size, client, KEYS),
        end: End::Most,
    },
    World {
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

/// What a world has shown.
pub(crate) struct Searched {
    pub(crate) name: &'static str,
    pub(crate) waiters: u64,
    /// Server CPU of a wait in microseconds, the search included.
    pub(crate) wait_us: f64,
    /// From the command that closes a cycle to its error, or from the last command to the last error.
    pub(crate) error_ms: Option<f64>,
    pub(crate) longest_ping_ms: f64,
}

/// All worlds that are asked for.
pub(crate) fn measure(options: &Options) -> Vec<Searched> {
    let worlds = WORLDS.iter().filter(|world| options.wants(world.name));
    let runs: Vec<_> = worlds
        .flat_map(|world| SIZES.iter().map(move |size| (world, *size)))
        .filter(|(world, size)| *size <= world.most.min(options.most))
        .collect();
    if runs.is_empty() {
        return Vec::new();
    }
    let mut bench = Bench::start(options);
    let progress = progress::bar("deadlock", runs.len() as u64);
    let mut results = Vec::new();
    for (world, size) in runs {
        progress.set_message(world.name);
        results.push(search(&mut bench, world, size));
        bench.await_the_end_of_crowds();
        progress.inc(1);
    }
    progress.finish_and_clear();
    results
}

fn search(bench: &mut Bench, world: &World, size: u64) -> Searched {
    bench.prepare(&[], world.name, "", 1);
    for command in (world.hold)(size) {
        let reply = bench.clients[0].call(command.split(' '));
        assert!(!reply.is_err() && !reply.is_nil(), "{command}: {reply:?}");
    }
    // The client that closes the cycle takes the place of the last one, where it is one of them.
    let waiters = match world.end {
        End::Closer(close) if (world.ask)(size, size - 1) == close(size) => size - 1,
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
        let commands = (0..waiters).map(|client| (world.ask)(size, client));
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
            let are_settled = match world.end {
                End::Most => last_error.is_some_and(|last| start.elapsed() > 2 * last + SETTLED),
                End::Nobody | End::Closer(_) => true,
            };
            are_settled && server.info_int("blocked_clients") + refused == waiters as i64
        });
        await_quiet(server.pid());
        let nanoseconds = main_thread_time(server.pid()) - before;
        let elapsed = match world.end {
            End::Nobody => {
                assert_eq!(refused, 0, "{}", world.name);
                None
            }
            End::Most => last_error,
            End::Closer(close) => {
                assert_eq!(refused, 0, "{}", world.name);
                let start = Instant::now();
                closer.send(close(size).split(' '));
                let reply = closer.read_within(LIMIT);
                let is_refused = reply.as_ref().is_some_and(|reply| reply.is_err());
                assert!(is_refused, "{}: {reply:?}", world.name);
                Some(start.elapsed())
            }
        };
        let error_ms = elapsed.map(|elapsed| elapsed.as_secs_f64() * 1e3);
        is_over.store(true, Ordering::Relaxed);
        Searched {
            name: world.name,
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

/// Waits until searches that go on from the server's timer have ended.
fn await_quiet(server: u32) {
    eventually(LIMIT, || {
        let before = main_thread_time(server);
        sleep(LOOK);
        main_thread_time(server) - before < QUIET_NS
    });
}
