//! Writes the page: the results of a run as tables and charts.

mod charts;
mod figures;
mod page;
mod table;
mod verdict;

use std::path::Path;

use crate::cost::{Cost, Measured, is_baseline};
use crate::deadlock::Searched;
use crate::families::FAMILIES;
use crate::growth::{self, Growth};
use crate::instructions::Counted;
use crate::latency::{Contestant, LOADS};
use crate::machine;
use crate::options::Options;
use crate::row::{FLOOR_BAR, Family};
use crate::scripts::SCRIPTS;
use page::Page;
use table::Align::{Left, Right};
use table::Table;
use verdict::verdict;

/// All that a run has measured.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Measured>,
    pub(crate) counted: Vec<Counted>,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) growth: Option<Growth>,
    pub(crate) searched: Vec<Searched>,
}

impl Results {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.counted.is_empty()
            && self.contestants.is_empty()
            && self.growth.is_none()
            && self.searched.is_empty()
    }

    /// The rows of a family.
    fn rows_of(&self, family: &Family) -> Vec<&Measured> {
        let of_family = |row: &&Measured| std::ptr::eq(row.family, family);
        self.rows.iter().filter(of_family).collect()
    }
}

/// Writes the page and its charts.
pub(crate) fn write(
    folder: &Path,
    page: &str,
    results: &Results,
    options: &Options,
) -> Result<(), Box<dyn std::error::Error>> {
    let charts = folder.join("benchmarks");
    std::fs::create_dir_all(&charts)?;
    charts::draw(&charts, results, options)?;
    let file = folder.join("benchmarks.md");
    std::fs::write(&file, page)?;
    println!(
        "Written: {} and the charts in {}",
        file.display(),
        charts.display()
    );
    Ok(())
}

/// The text of the page.
pub(crate) fn page(results: &Results, options: &Options) -> String {
    let mut page = Page::new(options.out.is_none());
    put_head(&mut page, results, options);
    if !results.rows.is_empty() {
        put_costs(&mut page, results, options);
    }
    if !results.counted.is_empty() {
        put_instructions(&mut page, &results.counted);
    }
    if !results.contestants.is_empty() {
        put_latencies(&mut page, &results.contestants, options);
    }
    if let Some(growth) = &results.growth {
        put_growth(&mut page, growth, options);
    }
    if !results.searched.is_empty() {
        put_searches(&mut page, &results.searched);
    }
    if options.out.is_some() {
        put_scripts(&mut page);
    }
    page.finish()
}

fn put_head(page: &mut Page, results: &Results, options: &Options) {
    page.heading("# Benchmarks");
    page.prose(
        "\
`make bench` wrote this page and measured the figures in its tables. Design targets are fixed. The reasons for missed targets contain
counts of instructions from earlier runs. The page compares commands of Sluice with built-in commands and with Lua scripts: the
server CPU of a command, the latency under load, and the growth of both.",
    );
    if charts::has_pairs(results) {
        page.prose("![Lua and Sluice, as multiples of built-in commands](benchmarks/lua-against-sluice.svg)");
    }
    page.heading("## Where and when");
    let mut table = Table::new([("", Left), ("", Left)]);
    for (what, which) in machine::describe() {
        table.row([what, which.as_str()]);
    }
    page.table(&table);
    let aof = match options.aof {
        true => "an append-only file, flushed every second",
        false => "no persistence",
    };
    page.prose(&format!(
        "\
Server and client run on the same machine and use TCP over the loopback device. The server's main thread has one core, the client
another. The server has {aof}. Compare ratios, not microseconds: ratios vary by some percent from run to run. Not measured:
networks, replicas, clusters.

The program is [benches/sluice](../benches/sluice/main.rs). `make bench` runs all of it in about ten minutes.
`make bench ROWS=lock` measures only the rows with such a name. `SERVER=/path/to/valkey-server make bench` measures another
server. `make bench ARGS=--help` lists all options.",
    ));
}

fn put_costs(page: &mut Page, results: &Results, options: &Options) {
    page.heading("## What commands cost");
    page.prose(&format!(
        "\
Server CPU in microseconds: the running time of the server's main thread by the kernel (`schedstat`). This time limits a server.
A pipeline has {} commands in one write. {} connections send a pipeline each in turn, so the server always has the next
one. One by one, a client waits for each reply before it sends again, so most of the time is spent in the network and in wake-ups.
The smallest of {} rounds counts, because other programs can only add time. The program checks each reply. A ratio compares with
the first row of its group. A design target is the ratio above which a user would rather stay with the built-in command or the script.",
        options.pipeline,
        crate::bench::CONNECTIONS,
        options.rounds,
    ));
    for family in FAMILIES {
        let rows = results.rows_of(family);
        if !rows.is_empty() {
            put_family(page, family, &rows, options);
        }
    }
}

fn put_family(page: &mut Page, family: &Family, rows: &[&Measured], options: &Options) {
    page.heading(&format!("### {}", family.title));
    page.prose(family.text);
    if charts::has_chart(family, rows) {
        let (title, file) = (family.title, family.file);
        page.prose(&format!(
            "![{title}: what commands cost](benchmarks/{file}.svg)\n"
        ));
    }
    let mut table = Table::new([
        ("", Left),
        (&format!("us, pipeline {}", options.pipeline), Right),
        ("ratio", Right),
        ("us, one by one", Right),
        ("ratio", Right),
    ]);
    let mut baseline = Cost::default();
    for row in rows {
        if is_baseline(row.group, row.row) {
            baseline = row.cost;
            table.row([format!("*{}*", row.group.name)]);
        }
        table.row([
            code(row.row.name),
            decimals(row.cost.pipelined, 2),
            decimals(ratio(row.cost.pipelined, baseline.pipelined), 2),
            decimals(row.cost.one_by_one, 1),
            decimals(ratio(row.cost.one_by_one, baseline.one_by_one), 2),
        ]);
    }
    page.table(&table);
    let figures = figures::table(family, rows);
    if !figures.is_empty() {
        page.heading("Ratios and design targets:");
        page.table(&figures);
    }
}

fn put_instructions(page: &mut Page, counted: &[Counted]) {
    page.heading("## Instructions of hot commands");
    page.prose(&format!(
        "\
The [floor module](../benches/sluice/floor.c) has a command for each hot command of Sluice. It
makes only the calls that no module can do without: it reads the bytes of the same arguments,
opens the same key, makes the same changes of the keyspace, replicates an effect where Sluice
does, and sends the same reply. It reads no option and no number, and keeps no state: this is the
server's part of such a command. callgrind counts the instructions in which the server reads,
executes and answers a command, in pipelines as above. Counts do not depend on the load of the
machine. The goal is a ratio of at most {FLOOR_BAR:.2}.",
    ));
    let mut table = Table::new([
        ("", Left),
        ("instructions", Right),
        ("the server's part", Right),
        ("Sluice's part", Right),
        ("ratio", Right),
        ("", Left),
    ]);
    for group in counted.chunk_by(|one, other| std::ptr::eq(one.family, other.family)) {
        table.row([format!("*{}*", group[0].family.title)]);
        for one in group {
            let ratio = one.row / one.floor;
            table.row([
                code(one.figure.row),
                number_of(one.row),
                number_of(one.floor),
                number_of(one.row - one.floor),
                decimals(Some(ratio), 2),
                verdict(ratio, one.figure.bar, one.figure.reason),
            ]);
        }
    }
    page.table(&table);
}

fn put_latencies(page: &mut Page, contestants: &[Contestant], options: &Options) {
    page.heading("## How long requests take");
    page.prose(&format!(
        "\
{} connections send requests by a schedule (a Poisson process, as of many independent users), whether or not the server has
answered the last ones. A latency counts from the scheduled time of the request. A client that waits for its reply would send fewer
requests to a slow server, and leave out the waiting time of all other users (\"coordinated omission\").

First the program measures the capacity of each way: requests in a second of server CPU. Then all three ways
get the same load for {} each: {} of the capacity of Lua. A request is {} cycles in one write, as pipelining
clients send them: with a single command, the system calls of the network would be the larger part of the measurement. For locks
a cycle acquires and releases a lock. If no built-in command has the same effect, the nearest one is measured. \"Sent late\" is
the delay of the client itself, also when other programs use its core.

![Latencies under load](benchmarks/latency.svg)",
        crate::open_loop::CONNECTIONS,
        seconds(options.length),
        LOADS.map(percent).join(" and "),
        crate::open_loop::CYCLES,
    ));
    for (number, load) in LOADS.iter().enumerate() {
        page.heading(&format!(
            "At {} of the capacity of Lua, in milliseconds:",
            percent(*load)
        ));
        let mut table = Table::new([
            ("", Left),
            ("capacity/s", Right),
            ("load/s", Right),
            ("p50", Right),
            ("p99", Right),
            ("p99.9", Right),
            ("max", Right),
            ("sent late, p99", Right),
        ]);
        for group in contestants.chunk_by(|one, other| one.contest == other.contest) {
            table.row([format!("*{}*", group[0].contest)]);
            for one in group {
                let under = &one.under[number];
                table.row([
                    code(one.name),
                    number_of(one.capacity),
                    number_of(under.rate),
                    decimals(Some(under.latency.p50), 3),
                    decimals(Some(under.latency.p99), 3),
                    decimals(Some(under.latency.p999), 3),
                    decimals(Some(under.latency.max), 3),
                    decimals(Some(under.lateness.p99), 3),
                ]);
            }
        }
        page.table(&table);
    }
}

fn put_growth(page: &mut Page, growth: &Growth, options: &Options) {
    page.heading("## How costs grow");
    page.prose(
        "\
Server CPU in microseconds of one cycle in a pipeline (hand-overs: one by one), by the number of keys, orders, waiting clients or
items. Each cycle uses a random one of them. Of a million, few are in the caches of the processor, also for built-in commands.
The number of waiting clients ends at 10 000, because each is a connection, and Linux has 28 000 ports for one address.

![How costs grow](benchmarks/growth.svg)",
    );
    let mut sizes: Vec<u64> = growth
        .lines
        .iter()
        .flat_map(|line| line.costs.iter().map(|(size, _)| *size))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heads = sizes.iter().map(|size| (number(*size), Right));
    let mut table = Table::new(
        std::iter::once((String::new(), Left))
            .chain(heads)
            .chain([("last / first".to_owned(), Right)]),
    );
    for group in growth
        .lines
        .chunk_by(|one, other| one.series.name == other.series.name)
    {
        table.row([format!("*{}*", group[0].series.of)]);
        for line in group {
            let cost = |size: &u64| {
                let found = line.costs.iter().find(|(at, _)| at == size);
                found.map_or_else(String::new, |(_, cost)| decimals(Some(*cost), 2))
            };
            let first = line.costs.first().map(|(_, cost)| *cost);
            let last = line.costs.last().map(|(_, cost)| *cost);
            table.row(
                std::iter::once(code(line.name))
                    .chain(sizes.iter().map(cost))
                    .chain([decimals(ratio(last, first), 2)]),
            );
        }
    }
    page.table(&table);
    put_idle(page, growth, options);
}

fn put_idle(page: &mut Page, growth: &Growth, options: &Options) {
    let lines = growth.lines.iter();
    let idle: Vec<_> = lines.filter_map(|line| Some((line, line.idle?))).collect();
    if idle.is_empty() {
        return;
    }
    page.prose(&format!(
        "\
An idle server still ends leases and reservations. This is the CPU time of its main thread, in milliseconds per second: the smallest
of {} measurements of {} each.",
        growth::ROUNDS,
        seconds(growth::idle_length(options)),
    ));
    let mut table = Table::new([("it keeps", Left), ("made by", Left), ("ms/s", Right)]);
    table.row(["nothing", "", &decimals(Some(growth.idle_empty), 2)]);
    for (line, idle) in idle {
        let most = line.costs.last().map_or(0, |(size, _)| *size);
        let maker = line.fill.split(' ').next().unwrap_or_default();
        table.row([
            &format!("{} {}", number(most), line.series.of),
            &format!("`{maker}`"),
            &decimals(Some(idle), 2),
        ]);
    }
    page.table(&table);
}

fn put_searches(page: &mut Page, searched: &[Searched]) {
    page.heading("## The search for deadlocks");
    page.prose(
        "\
All clients of a row send their requests at once and wait. The server CPU of a wait includes the search for deadlocks. Then one
more client closes a cycle and gets the error `DEADLOCK`. In the last three groups many clients are in cycles: the time is that from
the last command to the last error. From the last command on, another client sends `PING` every millisecond. The longest of them
includes the commands that the server has not run yet, and the time in which the client itself waits for its core.",
    );
    let mut table = Table::new([
        ("", Left),
        ("waiting clients", Right),
        ("server CPU per wait, us", Right),
        ("until the error, ms", Right),
        ("longest PING, ms", Right),
    ]);
    for group in searched.chunk_by(|one, other| one.name == other.name) {
        let (_, name) = group[0].name.split_once(": ").unwrap_or_default();
        table.row([format!("*{name}*")]);
        for one in group {
            table.row([
                String::new(),
                number(one.waiters),
                decimals(Some(one.wait_us), 1),
                decimals(one.error_ms, 1),
                decimals(Some(one.longest_ping_ms), 1),
            ]);
        }
    }
    page.table(&table);
}

fn put_scripts(page: &mut Page) {
    page.heading("## The Lua scripts");
    page.prose(
        "\
The scripts are loaded once and called by their digests, the fastest way. They contain no logging and no check of arguments.",
    );
    let mut table = Table::new([("script", Left), ("from", Left)]);
    for script in SCRIPTS {
        let name = script.name;
        table.row([
            &format!("[{name}.lua](../benches/sluice/lua/{name}.lua)"),
            script.from,
        ]);
    }
    page.table(&table);
}

fn ratio(cost: Option<f64>, baseline: Option<f64>) -> Option<f64> {
    Some(cost? / baseline?)
}

fn decimals(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn seconds(length: std::time::Duration) -> String {
    format!("{} s", length.as_secs_f64())
}

fn number_of(value: f64) -> String {
    number(value.round() as u64)
}

/// With spaces between thousands.
fn number(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
    let groups = groups.into_iter().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(" ")
}

/// Formats the commands in the name of a row as code.
fn code(name: &str) -> String {
    let word = |word: &str| match is_command(word) {
        true => format!("`{word}`"),
        false => word.to_owned(),
    };
    let words: Vec<_> = name
        .split(' ')
        .map(|text| match text.strip_suffix(',') {
            Some(text) => word(text) + ",",
            None => word(text),
        })
        .collect();
    words.join(" ").replace("` `", " ")
}

/// Commands and their words are in capitals; "Lua" and numbers are not.
fn is_command(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '.';
    word.len() > 1 && word.chars().all(is_part)
}
