//! The latency of requests under load: the same load for the built-in command, Lua and Sluice.
//!
//! The load is a share of the capacity of Lua: half of it, which all three can serve, and a little more than all of it, at
//! which requests to Lua begin to queue.

use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use crate::bench::Bench;
use crate::families::FAMILIES;
use crate::open_loop::OpenLoop;
use crate::options::Options;
use crate::progress;
use crate::row::{Contest, Row, Way, Work};

/// The loads, as shares of the capacity of Lua.
pub(crate) const LOADS: [f64; 2] = [0.5, 1.1];

/// The capacity is measured for a part of the time of a run, in several rounds.
const PART_FOR_CAPACITY: u32 = 8;
const ROUNDS_FOR_CAPACITY: usize = 3;

/// A run before the measured one, so that caches and allocator are warm.
const PART_FOR_WARM_UP: u32 = 10;

/// One way of a contest that has been measured.
pub(crate) struct Contestant {
    pub(crate) contest: &'static str,
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    /// Requests per second of the server's time.
    pub(crate) capacity: f64,
    /// Under each of the [`LOADS`].
    pub(crate) under: Vec<Loaded>,
}

/// The results under one load.
pub(crate) struct Loaded {
    /// Requests per second that were due.
    pub(crate) rate: f64,
    pub(crate) latency: Percentiles,
    pub(crate) lateness: Percentiles,
}

/// In milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// All contests that are asked for.
pub(crate) fn measure(options: &Options) -> Vec<Contestant> {
    let contests: Vec<_> = FAMILIES
        .iter()
        .filter_map(|family| family.contest.as_ref())
        .filter(|contest| options.wants(contest.name))
        .collect();
    if contests.is_empty() {
        return Vec::new();
    }
    let mut bench = Bench::start(options);
    let runs = (ROUNDS_FOR_CAPACITY + LOADS.len()) * 3 * contests.len();
    let progress = progress::bar("latency", runs as u64);
    let mut contestants = Vec::new();
    for contest in contests {
        progress.set_message(contest.name);
        contestants.extend(hold(&mut bench, contest, options.length, &progress));
    }
    progress.finish_and_clear();
    contestants
}

fn hold(
    bench: &mut Bench,
    contest: &'static Contest,
    length: Duration,
    progress: &ProgressBar,
) -> Vec<Contestant> {
    let capacities = capacities(bench, contest, length, progress);
    let rows = contest.rows.iter().zip(capacities);
    let mut contestants: Vec<_> = rows
        .map(|(row, capacity)| Contestant {
            contest: contest.name,
            name: row.name,
            way: row.way(),
            capacity,
            under: Vec::new(),
        })
        .collect();
    let lua = contestants.iter().find(|one| one.way == Way::Lua);
    let lua = lua.expect("Lua takes part").capacity;
    for load in LOADS {
        for (row, contestant) in contest.rows.iter().zip(&mut contestants) {
            let rate = lua * load;
            with_loop(bench, row, |warm_up| {
                warm_up.run(rate / 2.0, length / PART_FOR_WARM_UP)
            });
            let run = with_loop(bench, row, |load| load.run(rate, length));
            contestant.under.push(Loaded {
                rate,
                latency: percentiles(&run.latencies),
                lateness: percentiles(&run.lateness),
            });
            progress.inc(1);
        }
    }
    contestants
}

/// The largest of several rounds, because other programs can only lower it.
fn capacities(
    bench: &mut Bench,
    contest: &Contest,
    length: Duration,
    progress: &ProgressBar,
) -> Vec<f64> {
    let server = bench.server.pid();
    let length = length / PART_FOR_CAPACITY;
    let mut capacities = vec![0.0; contest.rows.len()];
    for _ in 0..ROUNDS_FOR_CAPACITY {
        for (row, capacity) in contest.rows.iter().zip(&mut capacities) {
            let round = with_loop(bench, row, |load| load.capacity(server, length));
            *capacity = round.max(*capacity);
            progress.inc(1);
        }
    }
    capacities
}

fn with_loop<T>(bench: &mut Bench, row: &Row, work: impl FnOnce(OpenLoop<'_>) -> T) -> T {
    let Work::Cycle(steps) = &row.work else {
        unreachable!("contests are about cycles");
    };
    let key = "contest";
    bench.prepare(row.setup, row.name, key, 1);
    let steps = bench.ready(*steps, key, 1);
    work(OpenLoop::connect(&bench.server, row.name, &steps))
}

fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let at = |quantile: f64| millis(histogram.value_at_quantile(quantile));
    Percentiles {
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: millis(histogram.max()),
    }
}
