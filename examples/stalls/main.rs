//! Measures the longest time for which the module stops the server when much is due at once. A client sends `PING` meanwhile, one at
//! a time.
//!
//! | argument | what is due at once |
//! |---|---|
//! | `eviction` | cached entries of 1 GB, of which the lowered budget keeps 10 MB |
//! | `delivery` | a million delayed messages |
//! | `holds` | the leases of 20 000 shared holds of one lock |
//! | `permits` | the leases of 20 000 permits of one semaphore |
//! | `reservations` | 100 000 reservations of one stock |
//! | `calls` | 100 000 calls of one exact window, which all leave it |
//!
//! Without an argument, it measures all of them. It starts `SERVER` (default: `redis-server`) with the module `SLUICE_MODULE`. Run it
//! on an idle machine: a process that waits for a processor is counted, too. The times on the idle server, which come first, show how
//! idle the machine is.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Lines, Raw, Server, field_of, now_ms};

/// No stall is to be longer.
const BOUND: Duration = Duration::from_millis(2);

/// The time for which the idle server is measured.
const IDLE: Duration = Duration::from_secs(3);

/// The commands of one pipeline.
const BATCH: usize = 1000;

/// All work becomes due after this time. The load is prepared before.
const DUE_MS: i64 = 6_000_000;

/// After this many `PING`s, another client checks whether the work is done.
const PINGS_PER_CHECK: usize = 50;

/// The calls that the exact window permits.
const MAX_CALLS: usize = 100_000;

/// When all due entries are removed, the key uses less memory than this.
const SMALL_BYTES: i64 = 10_000;

const VALUE_BYTES: usize = 500;
const BUDGET_BYTES: i64 = 10 << 20;

/// What is due at once.
struct Load {
    name: &'static str,
    /// Prepares it. `at`: when it is due (Unix ms).
    prepare: fn(&mut Raw, at: i64),
    /// Makes it due.
    begin: fn(&Server, &mut Raw),
    /// Whether all of it is done. It may run commands on what is due first.
    is_done: fn(&mut Raw) -> bool,
}

const LOADS: [Load; 6] = [
    Load {
        name: "eviction",
        prepare: |client, _| {
            let value = "v".repeat(VALUE_BYTES);
            let set = |n| format!("CACHE.SET user:{n} {value} PX 600000000");
            run_until(client, set, |client| cached_bytes(client) >= 1 << 30);
        },
        begin: |_, client| {
            client.must(&format!("CONFIG SET sluice.cache-max-bytes {BUDGET_BYTES}"));
        },
        is_done: |client| cached_bytes(client) <= BUDGET_BYTES,
    },
    Load {
        name: "delivery",
        prepare: |client, at| {
            client.must("DELAY.SET q STREAM s");
            let add = |n| format!("DELAY.ADD q m{n} PXAT {at} VALUES n {n}");
            run_times(client, 1_000_000, add);
        },
        begin: pass_time,
        is_done: |client| client.must("XLEN s") == 1_000_000,
    },
    Load {
        name: "holds",
        prepare: |client, at| {
            let left = at - now_ms(client);
            client.must(&format!("LOCK.ACQUIRE l last SHARED PX {}", left + DUE_MS));
            let acquire = |n| format!("LOCK.ACQUIRE l o{n} SHARED PX {left}");
            run_times(client, 20_000, acquire);
        },
        begin: pass_time,
        is_done: |client| {
            client.must("LOCK.RENEW l last PX 600000");
            memory(client, "l") < SMALL_BYTES
        },
    },
    Load {
        name: "permits",
        prepare: |client, at| {
            let left = at - now_ms(client);
            client.must(&format!(
                "SEM.ACQUIRE s last LIMIT 30000 PX {}",
                left + DUE_MS
            ));
            let acquire = |n| format!("SEM.ACQUIRE s o{n} LIMIT 30000 PX {left}");
            run_times(client, 20_000, acquire);
        },
        begin: pass_time,
        is_done: |client| {
            client.must("SEM.ACQUIRE s new LIMIT 30000 PX 600000");
            memory(client, "s") < SMALL_BYTES
        },
    },
    Load {
        name: "reservations",
        prepare: |client, at| {
            client.must("STOCK.SET s 100000");
            let left = at - now_ms(client);
            let reserve = |n| format!("STOCK.RESERVE s 1 ORDER o{n} PX {left}");
            run_times(client, 100_000, reserve);
        },
        begin: pass_time,
        is_done: |client| client.must("STOCK.GET s") == 100_000,
    },
    Load {
        name: "calls",
        prepare: |client, _| run_times(client, MAX_CALLS - 1, |_| call()),
        begin: |server, client| {
            server.shift_clock(DUE_MS / 2);
            client.must(&call()); // this one stays in the window
            server.shift_clock(DUE_MS / 2 + 1000);
        },
        is_done: |client| {
            client.must(&call());
            memory(client, "w") < SMALL_BYTES
        },
    },
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for load in LOADS {
        if wanted.is_empty() || wanted.iter().any(|name| name == load.name) {
            measure(&load);
        }
    }
}

fn measure(load: &Load) {
    let server = Server::builder().clock(0).start();
    let mut other = Raw::connect(&server);
    let at = now_ms(&mut other) + DUE_MS;
    (load.prepare)(&mut other, at);
    let mut client = Raw::connect(&server);
    let begun = Instant::now();
    let idle = pings(&mut client, |_| begun.elapsed() < IDLE);
    (load.begin)(&server, &mut other);
    let begun = Instant::now();
    let mut checks = Vec::new();
    let busy = pings(&mut client, |number| {
        if number % PINGS_PER_CHECK != 0 {
            return true;
        }
        let start = Instant::now();
        let is_done = (load.is_done)(&mut other);
        checks.push(start.elapsed());
        !is_done
    });
    println!("{}: done in {:.1?}", load.name, begun.elapsed());
    show("pings, idle", &idle);
    show("pings, busy", &busy);
    checks.sort_unstable();
    show("progress checks", &checks);
}

/// Lets the time pass until all is due.
fn pass_time(server: &Server, _client: &mut Raw) {
    server.shift_clock(DUE_MS + 1000);
}

/// A call of the exact window, which is as long as [`DUE_MS`].
fn call() -> String {
    format!("RATE.WINDOW w {MAX_CALLS} {DUE_MS} EXACT")
}

fn memory(client: &mut Raw, key: &str) -> i64 {
    client.must(&format!("MEMORY USAGE {key} SAMPLES 0")).int()
}

fn cached_bytes(client: &mut Raw) -> i64 {
    field_of(&client.must("INFO sluice_cache"), "sluice_cache_bytes")
}

fn run_times(client: &mut Raw, count: usize, line: impl Fn(usize) -> String) {
    for first in (0..count).step_by(BATCH) {
        client.run_all((first..count.min(first + BATCH)).map(&line));
    }
}

fn run_until(client: &mut Raw, line: impl Fn(usize) -> String, is_enough: fn(&mut Raw) -> bool) {
    let mut first = 0;
    while !is_enough(client) {
        client.run_all((first..first + BATCH).map(&line));
        first += BATCH;
    }
}

/// How long the client waited for each ping, the shortest first. It sends one at a time, while `goes_on` returns true for the number
/// of the next one.
fn pings(client: &mut Raw, mut goes_on: impl FnMut(usize) -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while goes_on(times.len() + 1) {
        let begun = Instant::now();
        client.must("PING");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times
}

fn show(what: &str, times: &[Duration]) {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let [half, most, longest] = [0.5, 0.999, 1.0].map(at);
    let above = times.iter().filter(|time| **time > BOUND).count();
    println!(
        "  {what}: {}, half below {half:.0?}, 99.9 % below {most:.1?}, the longest {longest:.1?}, {above} above {BOUND:?}",
        times.len()
    );
}
