//! How much processor time of the server each command takes, next to what it stands in for.
//!
//! The clock of a client sees the network, the scheduler and the client itself. What limits a server is the time of its
//! main thread, so that is what is counted (`/proc/<pid>/task/<pid>/schedstat`), with the server on one core and the
//! client on another. Rounds go over all rows in turn, so that a slow moment of the machine hits them all, and the least
//! of a row's rounds counts: whatever else runs can only add to it.

mod cpu;
mod filled;
mod measure;
mod options;
mod row;
mod rows;
#[path = "../../tests/support/mod.rs"]
mod support;
mod table;
mod template;

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use measure::{Bench, Cost};
use options::Options;
use row::{Group, Row};
use rows::GROUPS;
use support::{Fsync, Server};
use table::Measured;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let chosen: Vec<_> = GROUPS
        .iter()
        .flat_map(|group| chosen_of(group, &options))
        .collect();
    if chosen.is_empty() {
        eprintln!("No row is named like that.");
        return ExitCode::FAILURE;
    }
    let server = start_server(&options);
    cpu::separate_from(server.pid());
    let measured = measure_all(&server, &chosen, &options);
    table::print(&measured, options.pipeline);
    table::print_figures(&measured, options.pipeline);
    ExitCode::SUCCESS
}

/// The rows of a group that are asked for, behind their baseline.
fn chosen_of<'a>(group: &'a Group, options: &Options) -> Vec<(&'a Group, &'a Row)> {
    let asked_for = |row: &Row| {
        (options.module || !row.needs_module())
            && (options.wants(group.name) || options.wants(row.name))
    };
    if !group.rows.iter().any(asked_for) {
        return Vec::new();
    }
    let rows = group.rows.iter().enumerate();
    rows.filter(|(index, row)| *index == 0 || asked_for(row))
        .map(|(_, row)| (group, row))
        .collect()
}

fn start_server(options: &Options) -> Server {
    let mut builder = Server::builder();
    if !options.module {
        builder = builder.no_module();
    }
    if options.aof {
        // A rewrite in the middle of a batch would be measured with it.
        builder = builder
            .aof(Fsync::Everysec)
            .config("auto-aof-rewrite-percentage", "0");
    }
    builder.start()
}

fn measure_all(
    server: &Server,
    chosen: &[(&'static Group, &'static Row)],
    options: &Options,
) -> Vec<Measured> {
    let mut bench = Bench::new(server, options);
    let mut measured: Vec<_> = chosen
        .iter()
        .map(|(group, row)| unmeasured(group, row))
        .collect();
    let progress = progress_bar(options.rounds * chosen.len() as u64);
    for _ in 0..options.rounds {
        for (number, ((_, row), result)) in chosen.iter().zip(&mut measured).enumerate() {
            progress.set_message(row.name);
            result.cost = result.cost.least(bench.run(row, number));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    measured
}

fn unmeasured(group: &'static Group, row: &'static Row) -> Measured {
    Measured {
        group: group.name,
        name: row.name,
        is_baseline: std::ptr::eq(row, &raw const group.rows[0]),
        cost: Cost::default(),
    }
}

/// On standard error, and only if that is a terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4} {msg}")
        .expect("the template is well-formed");
    ProgressBar::new(steps).with_style(style)
}
