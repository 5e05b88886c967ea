//! The growth of costs with the number of keys, orders, waiting clients and items, for commands of Sluice and built-in commands;
//! and the CPU time of an idle server that keeps a million of them.
//!
//! Each cycle uses a random one of them. Of a million, few are in the caches of the processor, also for built-in commands: that
//! is a part of the growth.

use std::thread::sleep;
use std::time::Duration;

use crate::bench::Bench;
use crate::cpu::main_thread_time;
use crate::families::FAMILIES;
use crate::options::Options;
use crate::progress;
use crate::ring::Ring;
use crate::row::{Load, Probe, Series, Step, Way};
use crate::stream::{Stream, timed};
use crate::support::{Crowd, eventually};

/// Measurements of each cost. The smallest one counts.
pub(crate) const ROUNDS: u64 = 5;

/// Hand-overs run this part of the cycles, because each takes network round trips.
const CYCLES_OF_HAND_OVERS: u64 = 5;

/// The time within which all clients are blocked.
const BLOCK_LIMIT: Duration = Duration::from_secs(30);

/// The part of a contest's time for which an idle server is measured.
const PART_FOR_IDLENESS: u32 = 3;

/// One line of a series.
pub(crate) struct Line {
    pub(crate) series: &'static Series,
    pub(crate) name: &'static str,
    /// The command that created them.
    pub(crate) fill: &'static str,
    pub(crate) way: Way,
    /// A number of them, and the server CPU of a cycle in microseconds.
    pub(crate) costs: Vec<(u64, f64)>,
    /// CPU of the idle server in milliseconds per second, with the largest number of them.
    pub(crate) idle: Option<f64>,
}

/// All results.
pub(crate) struct Growth {
    pub(crate) lines: Vec<Line>,
    /// CPU of the idle server in milliseconds per second, with an empty dataset.
    pub(crate) idle_empty: f64,
}

/// All series that are asked for.
pub(crate) fn measure(options: &Options) -> Option<Growth> {
    let series = FAMILIES.iter().flat_map(|family| family.series);
    let series: Vec<_> = series.filter(|series| options.wants(series.name)).collect();
    if series.is_empty() {
        return None;
    }
    let mut bench = Bench::start(options);
    let idle_empty = idle(&bench, options);
    let progress = progress::bar("growth", 2 * series.len() as u64);
    let mut lines = Vec::new();
    for series in series {
        progress.set_message(series.name);
        for (probe, way) in [
            (&series.built_in, Way::BuiltIn),
            (&series.sluice, Way::Sluice),
        ] {
            lines.push(follow(&mut bench, series, probe, way, options));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Some(Growth { lines, idle_empty })
}

fn follow(
    bench: &mut Bench,
    series: &'static Series,
    probe: &'static Probe,
    way: Way,
    options: &Options,
) -> Line {
    let sizes = series.sizes.iter().filter(|size| **size <= options.most);
    let mut costs = Vec::new();
    for size in sizes {
        costs.push((*size, cost(bench, probe, *size, options)));
    }
    let idle = series.idle.then(|| idle(bench, options));
    Line {
        series,
        name: probe.name,
        fill: probe.fill,
        way,
        costs,
        idle,
    }
}

fn cost(bench: &mut Bench, probe: &Probe, size: u64, options: &Options) -> f64 {
    let key = "growth";
    bench.prepare(probe.setup, probe.name, key, size);
    if !probe.fill.is_empty() {
        bench.fill(probe.fill, probe.name, key, size);
    }
    match &probe.load {
        Load::Cycle(steps) => cost_of_cycles(bench, probe.name, steps, key, size, options),
        Load::Queue { give, take } => {
            let cost = cost_of_turns(bench, probe.name, size as usize, [give, take], key, options);
            bench.await_the_end_of_crowds();
            cost
        }
        Load::Aside {
            waiting,
            give,
            take,
        } => {
            let crowd = wait_aside(bench, waiting, key, size);
            let cost = cost_of_turns(bench, probe.name, 1, [give, take], key, options);
            drop(crowd);
            bench.await_the_end_of_crowds();
            cost
        }
    }
}

fn cost_of_cycles(
    bench: &mut Bench,
    name: &str,
    steps: &[Step],
    key: &str,
    size: u64,
    options: &Options,
) -> f64 {
    let steps = bench.ready(steps, key, size);
    let pid = bench.server.pid();
    let pipeline = options.pipeline as usize;
    let mut stream = Stream::new(name, &steps);
    let clients = &mut bench.clients[..];
    stream.send(clients, options.cycles, pipeline);
    least(|| {
        timed(pid, options.cycles, |cycles| {
            stream.send(clients, cycles, pipeline);
        })
    })
}

fn cost_of_turns(
    bench: &Bench,
    name: &str,
    waiters: usize,
    steps: [&Step; 2],
    key: &str,
    options: &Options,
) -> f64 {
    let steps = bench.ready(steps, key, 1);
    let [give, take] = &steps[..] else {
        unreachable!("two steps in, two out")
    };
    let mut ring = Ring::gather(&bench.server, name, waiters, give, take);
    let cycles = options.cycles.div_ceil(CYCLES_OF_HAND_OVERS);
    ring.turn(cycles);
    least(|| timed(bench.server.pid(), cycles, |cycles| ring.turn(cycles)))
}

/// Clients that wait with the command, each for its own key.
fn wait_aside(bench: &Bench, command: &str, key: &str, size: u64) -> Crowd {
    let template = bench.words.fill(command, key, size);
    let mut crowd = Crowd::connect(&bench.server, size as usize);
    for client in 0..crowd.size() {
        let mut bytes = Vec::new();
        template.write(0, client + 1, &mut bytes);
        crowd.member(client).send_bytes(&bytes);
    }
    eventually(BLOCK_LIMIT, || {
        bench.server.info_int("blocked_clients") == size as i64
    });
    crowd
}

fn least(mut measure: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

/// The time of one measurement of an idle server, and of the pause before the first one.
pub(crate) fn idle_length(options: &Options) -> Duration {
    options.length / PART_FOR_IDLENESS
}

/// Milliseconds of CPU per second of a server without commands: the smallest of several measurements.
fn idle(bench: &Bench, options: &Options) -> f64 {
    let length = idle_length(options);
    let pid = bench.server.pid();
    sleep(length);
    least(|| {
        let before = main_thread_time(pid);
        sleep(length);
        let nanoseconds = main_thread_time(pid) - before;
        nanoseconds as f64 / 1e6 / length.as_secs_f64()
    })
}
