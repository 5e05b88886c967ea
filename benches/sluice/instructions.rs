//! How many instructions the server executes for a hot command and for its row in the floor module, counted by callgrind.
//!
//! A count does not depend on the load of the machine, on its caches or on its clock: two runs differ by about a thousandth.
//! It does not show the time of cache misses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::Bench;
use crate::cost::cycles_of;
use crate::families::FAMILIES;
use crate::options::Options;
use crate::progress;
use crate::row::{Family, Figure, Row, Work};
use crate::stream::Stream;

/// The profiles of all rows, for callgrind_annotate: a folder for each server.
const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/instructions");

/// Servers that count a row. The smallest count is used, because each server has its own seed for its tables of commands and
/// keys: if two names share a place in a table, the server compares both.
const SERVERS: u64 = 5;

/// Under callgrind a server is fifty times slower, so fewer cycles run.
const MAX_CYCLES: u64 = 2_000;

/// The function of the server that reads and executes the commands of a client, and puts the replies into its buffer. The other
/// work of the server depends on the time: its cron, its sleep, the sizes of its writes.
const COUNTED: &str = "--toggle-collect=readQueryFromClient";

/// Part of the cycles that run before the counted ones: tables and buffers have grown then.
const WARM_UP: u64 = 2;

/// A hot command and its row in the floor module.
pub(crate) struct Counted {
    pub(crate) family: &'static Family,
    pub(crate) figure: &'static Figure,
    /// Instructions of a cycle.
    pub(crate) row: f64,
    pub(crate) floor: f64,
}

/// Whether callgrind is installed.
pub(crate) fn can_count() -> bool {
    let version = Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// All hot commands that are asked for.
pub(crate) fn count(options: &Options) -> Vec<Counted> {
    let figures = FAMILIES
        .iter()
        .flat_map(|family| family.figures.iter().map(move |figure| (*family, figure)));
    let chosen: Vec<_> = figures
        .filter(|(_, figure)| figure.is_hot && options.wants(figure.row))
        .collect();
    if chosen.is_empty() {
        return Vec::new();
    }
    // Profiles of an earlier run would look like those of this one.
    let _ = fs::remove_dir_all(PROFILES);
    let progress = progress::bar("instructions", SERVERS * chosen.len() as u64);
    let mut counted: Vec<_> = chosen
        .into_iter()
        .map(|(family, figure)| Counted {
            family,
            figure,
            row: f64::INFINITY,
            floor: f64::INFINITY,
        })
        .collect();
    for server in 0..SERVERS {
        let mut counter = Counter::start(server, options);
        for one in &mut counted {
            progress.set_message(one.figure.row);
            let (row, floor) = (one.figure.row, one.figure.over);
            // The server resizes the reply buffers of its clients over time, so the rows change their order.
            let order = match server % 2 {
                0 => [row, floor],
                _ => [floor, row],
            };
            for name in order {
                let count = counter.count(one.family.row(name), options);
                let least = match name == row {
                    true => &mut one.row,
                    false => &mut one.floor,
                };
                *least = least.min(count);
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    counted
}

/// A server under callgrind.
struct Counter {
    bench: Bench,
    profiles: PathBuf,
    dumps: u64,
}

impl Counter {
    fn start(number: u64, options: &Options) -> Self {
        let profiles = Path::new(PROFILES).join(number.to_string());
        fs::create_dir_all(&profiles).expect("a folder for profiles");
        let file = format!("--callgrind-out-file={}/dump", profiles.display());
        let callgrind = ["valgrind", "--quiet", "--tool=callgrind", COUNTED, &file];
        Self {
            bench: Bench::start_under(&callgrind, options),
            profiles,
            dumps: 0,
        }
    }

    /// Instructions of a cycle. Leaves a profile of the row.
    fn count(&mut self, row: &Row, options: &Options) -> f64 {
        let Work::Cycle(steps) = &row.work else {
            unreachable!("hot commands need no queue")
        };
        let key = "row:0";
        self.bench.prepare(row.setup, row.name, key, 1);
        let steps = self.bench.ready(*steps, key, 1);
        let (cycles, pipeline) = cycles_of(row, options);
        let cycles = cycles.min(MAX_CYCLES);
        let mut stream = Stream::new(row.name, &steps);
        stream.send(&mut self.bench.clients, cycles.div_ceil(WARM_UP), pipeline);
        self.dump();
        stream.send(&mut self.bench.clients, cycles, pipeline);
        let dump = self.dump();
        let profile = self.profiles.join(file_name(row.name));
        fs::rename(&dump, &profile).expect("a profile");
        total(&profile) as f64 / cycles as f64
    }

    /// Makes callgrind write its counts since the last dump.
    fn dump(&mut self) -> PathBuf {
        assert_eq!(self.bench.clients[0].call(["FLOOR.DUMP", "key"]), 1);
        self.dumps += 1;
        self.profiles.join(format!("dump.{}", self.dumps))
    }
}

fn total(profile: &Path) -> u64 {
    let text = fs::read_to_string(profile).unwrap_or_else(|error| {
        panic!(
            "{}: {error} (valgrind may be incomplete)",
            profile.display()
        )
    });
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    let total = total.expect("a profile has a total");
    assert!(total > 0, "the server has no symbols: {COUNTED}");
    total
}

/// Letters, digits and dots.
fn file_name(row: &str) -> String {
    let words = row.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}
