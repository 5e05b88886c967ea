//! Measures the longest time for which a mass eviction of the cache stops the server: the entries take 1 GB, the budget is lowered
//! to 10 MB, and a client sends `PING` meanwhile, one at a time.
//!
//! It starts `SERVER` (default: `redis-server`) with the module `SLUICE_MODULE`. Arguments: the megabytes of entries (1000) and
//! the bytes of a value (500). Run it on an idle machine: a process that waits for a processor is counted, too. The times before
//! the budget is lowered show how idle it is.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Lines, Raw, Server, field_of, quiet};

/// The time for which the idle server is measured first.
const IDLE: Duration = Duration::from_secs(3);

/// The entries of one pipeline.
const BATCH: u64 = 1000;

fn main() {
    let argument = |index, default| {
        let given = std::env::args().nth(index);
        given.map_or(default, |number| number.parse().expect("a number"))
    };
    let (megabytes, length): (i64, usize) = (argument(1, 1000), argument(2, 500) as usize);
    let server = quiet().start();
    fill(&server, megabytes << 20, length);
    let mut client = Raw::connect(&server);
    let begun = Instant::now();
    let idle = pings(&mut client, |_| begun.elapsed() < IDLE);
    let mut other = Raw::connect(&server);
    let entries = look(&mut other, "entries");
    other.must("CONFIG SET sluice.cache-max-bytes 10mb");
    let begun = Instant::now();
    let evicting = pings(&mut client, |number| {
        number % 50 != 0 || look(&mut other, "bytes") > 10 << 20
    });
    let took = begun.elapsed();
    let evicted = look(&mut other, "evicted");
    println!("{entries} entries of {length} bytes, {evicted} evicted in {took:.1?}");
    show("idle", &idle);
    show("evicting", &evicting);
}

fn look(client: &mut Raw, field: &str) -> i64 {
    let info = client.must("INFO sluice_cache");
    field_of(&info, &format!("sluice_cache_{field}"))
}

fn fill(server: &Server, bytes: i64, length: usize) {
    let mut client = Raw::connect(server);
    let value = "v".repeat(length);
    let mut number = 0;
    while look(&mut client, "bytes") < bytes {
        let sets = (number..number + BATCH)
            .map(|number| format!("CACHE.SET user:{number} {value} PX 600000000"));
        client.run_all(sets);
        number += BATCH;
    }
}

/// How long the client waited for each ping, the shortest first. It sends one at a time, while `goes_on` returns true for the number
/// of the next one.
fn pings(client: &mut Raw, mut goes_on: impl FnMut(u64) -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while goes_on(times.len() as u64 + 1) {
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
    println!(
        "{what}: {} pings, half below {half:.0?}, 99.9 % below {most:.1?}, the longest {longest:.1?}",
        times.len()
    );
}
