//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::instructions;

pub(crate) const HELP: &str = "\
Compares Sluice with built-in commands and Lua scripts: make bench [ROWS='word ...'] [ARGS='option ...']

Without words it measures everything and writes docs/benchmarks.md with its charts. With words, or with a choice of parts, it
prints the results, and writes files only if --out names a folder.

A short run of all parts: --rounds 1 --cycles 200 --millis 300 --most 1000 --out target/bench

  word          only rows, contests and series whose name or group contains one of the words; cost only, without --parts
  --parts LIST  of cost,instructions,latency,growth,deadlock
  --rounds N    how often each row of the cost is measured; the smallest result counts (15)
  --cycles N    cycles in a batch of pipelined commands; a quarter of it one by one (5000)
  --pipeline N  commands in one write (32)
  --millis N    how long each contest of the latency runs at each rate (3000)
  --most N      the largest number of keys, orders and so on in the growth (1000000)
  --out DIR     write benchmarks.md and the folder benchmarks/ there
  --aof         with an append-only file, flushed every second
  --no-module   only the rows of the cost that need no Sluice";

const NO_VALGRIND: &str = "valgrind is missing, so no instructions are counted.";

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Cost,
    Instructions,
    Latency,
    Growth,
    Deadlock,
}

const PARTS: [(&str, Part); 5] = [
    ("cost", Part::Cost),
    ("instructions", Part::Instructions),
    ("latency", Part::Latency),
    ("growth", Part::Growth),
    ("deadlock", Part::Deadlock),
];

pub(crate) struct Options {
    words: Vec<String>,
    parts: Vec<Part>,
    pub(crate) rounds: u64,
    pub(crate) cycles: u64,
    pub(crate) pipeline: u64,
    pub(crate) length: Duration,
    pub(crate) most: u64,
    pub(crate) out: Option<PathBuf>,
    pub(crate) aof: bool,
    pub(crate) module: bool,
}

impl Options {
    /// An error is a text for the user.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            words: Vec::new(),
            parts: Vec::new(),
            rounds: 15,
            cycles: 5_000,
            pipeline: 32,
            length: Duration::from_secs(3),
            most: 1_000_000,
            out: None,
            aof: false,
            module: true,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo passes this option to every benchmark.
                "--bench" => {}
                "--parts" => options.parts = parts(arguments.next())?,
                "--rounds" => options.rounds = positive(arguments.next(), &argument)?,
                "--cycles" => options.cycles = positive(arguments.next(), &argument)?,
                "--pipeline" => options.pipeline = positive(arguments.next(), &argument)?,
                "--millis" => {
                    options.length = Duration::from_millis(positive(arguments.next(), &argument)?);
                }
                "--most" => options.most = positive(arguments.next(), &argument)?,
                "--out" => options.out = Some(arguments.next().ok_or(HELP)?.into()),
                "--aof" => options.aof = true,
                "--no-module" => options.module = false,
                option if option.starts_with('-') => return Err(HELP.into()),
                word => options.words.push(word.to_lowercase()),
            }
        }
        options.complete()?;
        Ok(options)
    }

    /// Sets the parts and the folder that the arguments do not name.
    fn complete(&mut self) -> Result<(), String> {
        let is_the_usual = self.words.is_empty() && self.parts.is_empty();
        if is_the_usual && self.module && !self.aof && self.out.is_none() {
            self.out = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/docs").into());
        }
        if !self.module {
            self.parts = vec![Part::Cost];
        } else if self.parts.is_empty() {
            let all = PARTS.iter().map(|(_, part)| *part);
            self.parts = all
                .filter(|part| self.words.is_empty() || *part == Part::Cost)
                .collect();
        }
        if self.has(Part::Instructions) && !instructions::can_count() {
            self.parts.retain(|part| *part != Part::Instructions);
            if self.parts.is_empty() {
                return Err(NO_VALGRIND.into());
            }
            eprintln!("{NO_VALGRIND}");
        }
        Ok(())
    }

    /// Whether this part is asked for.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Whether something of this name is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word))
    }
}

fn parts(list: Option<String>) -> Result<Vec<Part>, String> {
    let list = list.unwrap_or_default();
    let part = |name: &str| PARTS.iter().find(|(known, _)| *known == name);
    let found: Option<Vec<_>> = list.split(',').map(part).collect();
    let found = found.ok_or(HELP)?;
    Ok(found.into_iter().map(|(_, part)| *part).collect())
}

fn positive(text: Option<String>, option: &str) -> Result<u64, String> {
    let number = text
        .and_then(|text| text.parse().ok())
        .filter(|&number| number > 0);
    number.ok_or_else(|| format!("{option} needs a positive number\n\n{HELP}"))
}
