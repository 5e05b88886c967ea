//! A process with many buyers.

use std::fmt::Write as _;
use std::io::{self, Write as _, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisResult;

use crate::buy::{buy, prepare};
use crate::clock::now_us;
use crate::crowd::{Order, orders};
use crate::line::Line;
use crate::options::{Options, Task};
use crate::report::Report;
use crate::way::Way;

/// A worker prints this when its connections are open. It then waits for a line, and begins.
pub(crate) const READY: &str = "ready";

/// The connections of one process. Each has a thread that serves one buyer after the other.
const CONNECTIONS: u64 = 8;

/// Reports are sent in batches: single reports would slow down the buyers, and so the race between them.
const REPORT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the orders of this process. An error is a message for the user.
pub(crate) fn run(options: &Options, task: &Task) -> Result<(), String> {
    let orders = orders(options.buyers, options.seed);
    let lines = open_lines(task).map_err(|error| format!("cannot connect: {error}"))?;
    await_start().map_err(|error| format!("nobody starts the sale: {error}"))?;
    thread::scope(|scope| {
        let mut buyers = Vec::new();
        for (first, line) in (task.number..)
            .step_by(options.processes as usize)
            .zip(lines)
        {
            let part = part_of(&orders, first, options.processes * CONNECTIONS);
            buyers.push(scope.spawn(move || serve(task.way, line, part)));
        }
        buyers.into_iter().try_for_each(|buyer| {
            let served = buyer.join().map_err(|_| "a buyer's thread panicked")?;
            served.map_err(|error| format!("{}: {error}", task.way.name()))
        })
    })
}

fn open_lines(task: &Task) -> RedisResult<Vec<Line>> {
    let mut lines = (0..CONNECTIONS)
        .map(|_| Line::open(task.port))
        .collect::<RedisResult<Vec<_>>>()?;
    prepare(task.way, &mut lines[0])?;
    Ok(lines)
}

fn await_start() -> io::Result<()> {
    println!("{READY}");
    match stdin().read_line(&mut String::new())? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Every `step`th order with its index, beginning with `first`: neighbors are in different processes.
fn part_of(orders: &[Order], first: u64, step: u64) -> impl Iterator<Item = (usize, &Order)> {
    let numbered = orders.iter().enumerate();
    numbered.skip(first as usize).step_by(step as usize)
}

fn serve<'a>(
    way: Way,
    mut line: Line,
    part: impl Iterator<Item = (usize, &'a Order)>,
) -> RedisResult<()> {
    let mut reports = String::new();
    let mut written = Instant::now();
    for (index, order) in part {
        let report = Report {
            order: index,
            bought: buy(way, &mut line, order)?,
            answered_us: now_us(),
        };
        let _ = writeln!(reports, "{report}");
        if written.elapsed() > REPORT_PAUSE {
            write_out(&mut reports)?;
            written = Instant::now();
        }
    }
    write_out(&mut reports)?;
    Ok(())
}

/// Writes all in one piece, because the threads of a process share its output.
fn write_out(reports: &mut String) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(reports.as_bytes())?;
    reports.clear();
    out.flush()
}
