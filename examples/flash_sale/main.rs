//! The flash sale: 1000 items of one product, and a crowd of buyers who want more.
//!
//! It runs five times, each time with an empty server, the same crowd and the same lost replies: `GET` and `SET`, the same
//! under a lock in each process, the same under a `SETNX` lock, a Lua script, and `STOCK.DEDUCT`. Buyers are in several
//! processes. Some of them click twice, which makes two orders of one user. Some replies are lost, so the order is sent
//! again, as each client with a retry does. Afterwards the example reads the sales from the server, and compares them with
//! the replies to the buyers.
//!
//! `make demo` runs it. It fails if `STOCK.DEDUCT` breaks a guarantee.

mod books;
mod buy;
mod clock;
mod crowd;
mod line;
mod options;
mod outcome;
mod print;
mod report;
mod sale;
#[path = "../../tests/support/mod.rs"]
mod support;
mod way;
mod worker;

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use books::Books;
use options::Options;
use outcome::Outcome;
use support::Server;
use way::Way;

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|(options, task)| match task {
        Some(task) => worker::run(&options, &task),
        None => hold_sales(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// An error is a message for the user.
fn hold_sales(options: &Options) -> Result<(), String> {
    let orders = crowd::orders(options.buyers, options.seed);
    let server = Server::start();
    let progress = progress_bar(Way::ALL.len() * orders.len());
    let mut outcomes = Vec::new();
    for way in Way::ALL {
        progress.set_message(way.name());
        let sale = sale::run(&server, options, way, &progress)?;
        let books = Books::read(&server, way);
        outcomes.push(Outcome::new(way, &orders, &sale, books));
    }
    progress.finish_and_clear();
    print::heading(options, orders.len());
    print::table(&outcomes);
    print::explanation(&outcomes);
    verdict(&outcomes)
}

/// Returns an error if a way broke a guarantee.
fn verdict(outcomes: &[Outcome]) -> Result<(), String> {
    let faults: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.faults)
        .map(|fault| format!("FAULT: {fault}"))
        .collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("\n"))
    }
}

/// A progress bar on standard error, if that is a terminal.
fn progress_bar(orders: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} orders  {msg}")
        .expect("the template is well-formed");
    ProgressBar::new(orders as u64).with_style(style)
}
