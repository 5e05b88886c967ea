//! The cost of each command: the CPU time of the server's main thread (`/proc/<pid>/task/<pid>/schedstat`).
//!
//! This time limits a server. The clock of a client would also count the network, the scheduler and the client itself. The server
//! has one core, the client another. Each round runs all rows in turn, so a slow moment of the machine affects all of them. The
//! smallest round of a row counts, because other programs can only add time.

use crate::bench::Bench;
use crate::families::FAMILIES;
use crate::options::Options;
use crate::progress;
use crate::ring::{NotifiedRing, Ring};
use crate::row::{Family, Group, Row, Step, Work};
use crate::stream::{Stream, timed};

/// One by one, this part of the cycles runs, because each command takes a network round trip.
const CYCLES_ONE_BY_ONE: u64 = 4;

/// Part of the cycles that run before the measured ones, so that caches and allocator are warm.
const WARM_UP: u64 = 10;

/// Rows of a hundred items run this part of the cycles, with so many commands in one write.
const PART_OF_MANY: u64 = 10;
const PIPELINE_OF_MANY: usize = 10;

/// Server CPU of one cycle, in microseconds: the least over the rounds so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) pipelined: Option<f64>,
    pub(crate) one_by_one: Option<f64>,
}

/// A row that has been measured.
pub(crate) struct Measured {
    pub(crate) family: &'static Family,
    pub(crate) group: &'static Group,
    pub(crate) row: &'static Row,
    pub(crate) cost: Cost,
}

impl Cost {
    fn least(self, other: Self) -> Self {
        let least = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            pipelined: least(self.pipelined, other.pipelined),
            one_by_one: least(self.one_by_one, other.one_by_one),
        }
    }
}

/// All rows that are asked for.
pub(crate) fn measure(options: &Options) -> Vec<Measured> {
    let mut measured: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| chosen_of(family, options))
        .collect();
    if measured.is_empty() {
        return measured;
    }
    let mut bench = Bench::start(options);
    let progress = progress::bar("cost", options.rounds * measured.len() as u64);
    for _ in 0..options.rounds {
        for (number, result) in measured.iter_mut().enumerate() {
            progress.set_message(result.row.name);
            let cost = run(&mut bench, result.row, &format!("row:{number}"), options);
            result.cost = result.cost.least(cost);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    measured
}

/// The rows of a family that are asked for, each group after its baseline.
fn chosen_of(family: &'static Family, options: &Options) -> Vec<Measured> {
    let asked_for = |group: &Group, row: &Row| {
        (options.module || !row.needs_module())
            && (options.wants(group.name) || options.wants(row.name))
    };
    let mut chosen = Vec::new();
    for group in family.groups {
        let rows = group.rows.iter();
        if rows.clone().any(|row| asked_for(group, row)) {
            let rows = rows.filter(|row| is_baseline(group, row) || asked_for(group, row));
            chosen.extend(rows.map(|row| Measured {
                family,
                group,
                row,
                cost: Cost::default(),
            }));
        }
    }
    chosen
}

/// Whether the others of the group are compared with this one.
pub(crate) fn is_baseline(group: &Group, row: &Row) -> bool {
    std::ptr::eq(&raw const group.rows[0], row)
}

/// One round of one row.
fn run(bench: &mut Bench, row: &Row, key: &str, options: &Options) -> Cost {
    bench.prepare(row.setup, row.name, key, 1);
    let [before, after] = row.mode.unwrap_or_default();
    bench.send_to_all(before);
    let cost = run_work(bench, row, key, options);
    bench.send_to_all(after);
    cost
}

fn run_work(bench: &mut Bench, row: &Row, key: &str, options: &Options) -> Cost {
    match &row.work {
        Work::Cycle(steps) => run_cycles(bench, row, steps, key, options),
        Work::HandOver {
            waiters,
            give,
            take,
        } => run_hand_overs(bench, row.name, *waiters, [give, take], key, options),
        Work::NotifiedHandOver {
            waiters,
            give,
            take,
        } => run_notified_hand_overs(bench, row.name, *waiters, [give, take], key, options),
    }
}

fn run_cycles(bench: &mut Bench, row: &Row, steps: &[Step], key: &str, options: &Options) -> Cost {
    let steps = bench.ready(steps, key, 1);
    let pid = bench.server.pid();
    let (cycles, pipeline) = cycles_of(row, options);
    let mut stream = Stream::new(row.name, &steps);
    let many = &mut bench.clients[..];
    stream.send(many, cycles.div_ceil(WARM_UP), pipeline);
    let pipelined = timed(pid, cycles, |cycles| stream.send(many, cycles, pipeline));
    let few = cycles.div_ceil(CYCLES_ONE_BY_ONE);
    let one_by_one = timed(pid, few, |cycles| {
        stream.send_one_by_one(&mut many[0], cycles)
    });
    Cost {
        pipelined: Some(pipelined),
        one_by_one: Some(one_by_one),
    }
}

/// The number of cycles of a row, and of commands in one write.
pub(crate) fn cycles_of(row: &Row, options: &Options) -> (u64, usize) {
    match row.items {
        1 => (options.cycles, options.pipeline as usize),
        _ => (options.cycles.div_ceil(PART_OF_MANY), PIPELINE_OF_MANY),
    }
}

fn run_hand_overs(
    bench: &Bench,
    row: &str,
    waiters: usize,
    steps: [&Step; 2],
    key: &str,
    options: &Options,
) -> Cost {
    let steps = bench.ready(steps, key, 1);
    let [give, take] = &steps[..] else {
        unreachable!("two steps in, two out")
    };
    let mut ring = Ring::gather(&bench.server, row, waiters, give, take);
    let cost = cost_of_turns(bench, options, |cycles| ring.turn(cycles));
    drop(ring);
    bench.await_the_end_of_crowds();
    cost
}

fn run_notified_hand_overs(
    bench: &Bench,
    row: &str,
    waiters: usize,
    steps: [&Step; 2],
    key: &str,
    options: &Options,
) -> Cost {
    let steps = bench.ready(steps, key, 1);
    let [give, take] = &steps[..] else {
        unreachable!("two steps in, two out")
    };
    let mut ring = NotifiedRing::gather(&bench.server, row, key, waiters, give, take);
    let cost = cost_of_turns(bench, options, |cycles| ring.turn(cycles));
    drop(ring);
    bench.await_the_end_of_crowds();
    bench.await_the_end_of_requests();
    cost
}

/// The cost of a hand-over. `turn` hands over so many times.
fn cost_of_turns(bench: &Bench, options: &Options, mut turn: impl FnMut(u64)) -> Cost {
    let cycles = options.cycles.div_ceil(CYCLES_ONE_BY_ONE);
    turn(cycles.div_ceil(WARM_UP));
    Cost {
        pipelined: None,
        one_by_one: Some(timed(bench.server.pid(), cycles, turn)),
    }
}
