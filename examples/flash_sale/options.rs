//! The command line of the sale and of its worker processes.

use crate::way::Way;

const HELP: &str = "\
The flash sale, five ways: make demo [ARGS='option ...']

  --buyers N     users who want an item (10000)
  --processes N  processes of the users, each with several connections (4)
  --seed N       draws the sequence of the buyers and the lost replies (1)";

/// The argument of a worker process. The way, the port and the number of the worker follow.
pub(crate) const WORKER: &str = "--worker";

const MOST_BUYERS: u64 = 1_000_000;
/// The server takes 10 000 connections.
const MOST_PROCESSES: u64 = 256;

/// The crowd, the same in all five runs.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) buyers: u64,
    pub(crate) processes: u64,
    pub(crate) seed: u64,
}

/// The task of one worker process.
pub(crate) struct Task {
    pub(crate) way: Way,
    pub(crate) port: u16,
    /// The number of the worker, from 0.
    pub(crate) number: u64,
}

impl Options {
    /// The options, and the task if this process is a worker. An error is a message for the user.
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<(Self, Option<Task>), String> {
        let mut options = Self {
            buyers: 10_000,
            processes: 4,
            seed: 1,
        };
        let mut task = None;
        while let Some(argument) = arguments.next() {
            let mut up_to = |most| positive(arguments.next(), &argument, most);
            match argument.as_str() {
                "--buyers" => options.buyers = up_to(MOST_BUYERS)?,
                "--processes" => options.processes = up_to(MOST_PROCESSES)?,
                "--seed" => options.seed = up_to(u64::MAX)?,
                WORKER => task = Some(Task::parse(&mut arguments).ok_or(HELP)?),
                _ => return Err(HELP.into()),
            }
        }
        Ok((options, task))
    }

    /// The options as arguments for a worker.
    pub(crate) fn arguments(&self) -> Vec<String> {
        [
            ("--buyers", self.buyers),
            ("--processes", self.processes),
            ("--seed", self.seed),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_string(), value.to_string()])
        .collect()
    }
}

impl Task {
    fn parse(arguments: &mut impl Iterator<Item = String>) -> Option<Self> {
        Some(Self {
            way: Way::from_word(&arguments.next()?)?,
            port: arguments.next()?.parse().ok()?,
            number: arguments.next()?.parse().ok()?,
        })
    }

    /// The task as arguments for the worker.
    pub(crate) fn arguments(&self) -> Vec<String> {
        vec![
            WORKER.into(),
            self.way.word().into(),
            self.port.to_string(),
            self.number.to_string(),
        ]
    }
}

fn positive(text: Option<String>, option: &str, most: u64) -> Result<u64, String> {
    let number = text
        .and_then(|text| text.parse().ok())
        .filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("{option} needs a number from 1 to {most}\n\n{HELP}"))
}
