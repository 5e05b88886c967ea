//! Compares Sluice with built-in commands and Lua scripts: the server CPU of commands, the latency under load, the growth of both.
//!
//! `make bench` runs all of it and writes docs/benchmarks.md with its charts. `families/` lists the measured commands; [`cost`],
//! [`instructions`], [`latency`], [`growth`] and [`deadlock`] measure; [`report`] writes the page.

mod bench;
#[path = "../chart/mod.rs"]
mod chart;
mod cost;
mod cpu;
mod deadlock;
mod families;
mod filled;
mod floor;
mod growth;
mod instructions;
mod latency;
mod machine;
mod open_loop;
mod options;
mod progress;
mod report;
mod ring;
mod row;
mod scripts;
mod stream;
#[path = "../../tests/support/mod.rs"]
mod support;
mod template;

use std::process::ExitCode;

use options::{Options, Part};
use report::Results;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        println!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let results = measure(&options);
    if results.is_empty() {
        eprintln!(
            "No row, contest or series of the chosen parts has one of these words in its name."
        );
        return ExitCode::FAILURE;
    }
    let page = report::page(&results, &options);
    let Some(folder) = &options.out else {
        println!("{page}");
        return ExitCode::SUCCESS;
    };
    match report::write(folder, &page, &results, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Results {
    let mut results = Results::default();
    if options.has(Part::Cost) {
        results.rows = cost::measure(options);
    }
    if options.has(Part::Instructions) {
        results.counted = instructions::count(options);
    }
    if options.has(Part::Latency) {
        results.contestants = latency::measure(options);
    }
    if options.has(Part::Growth) {
        results.growth = growth::measure(options);
    }
    if options.has(Part::Deadlock) {
        results.searched = deadlock::measure(options);
    }
    results
}
