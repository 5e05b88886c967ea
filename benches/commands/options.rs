//! The command line.

pub(crate) const HELP: &str = "\
Server CPU of each command: make bench [ROWS='word ...'] [ARGS='option ...']

  word          only rows whose name or group contains one of the words
  --rounds N    how often each row is measured; the least result counts (15)
  --cycles N    cycles in a batch of pipelined commands; a quarter of it one by one (5000)
  --pipeline N  commands in one write (32)
  --aof         with an append-only file, flushed every second
  --no-module   only the rows that need no Sluice";

pub(crate) struct Options {
    pub(crate) words: Vec<String>,
    pub(crate) rounds: u64,
    pub(crate) cycles: u64,
    pub(crate) pipeline: u64,
    pub(crate) aof: bool,
    pub(crate) module: bool,
}

impl Options {
    /// An error is what to tell the user.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            words: Vec::new(),
            rounds: 15,
            cycles: 5_000,
            pipeline: 32,
            aof: false,
            module: true,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo says so to every benchmark.
                "--bench" => {}
                "--rounds" => options.rounds = positive(arguments.next(), &argument)?,
                "--cycles" => options.cycles = positive(arguments.next(), &argument)?,
                "--pipeline" => options.pipeline = positive(arguments.next(), &argument)?,
                "--aof" => options.aof = true,
                "--no-module" => options.module = false,
                option if option.starts_with('-') => return Err(HELP.into()),
                word => options.words.push(word.to_lowercase()),
            }
        }
        Ok(options)
    }

    /// Whether a row of this name is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word))
    }
}

fn positive(text: Option<String>, option: &str) -> Result<u64, String> {
    let number = text
        .and_then(|text| text.parse().ok())
        .filter(|&number| number > 0);
    number.ok_or_else(|| format!("{option} needs a positive number\n\n{HELP}"))
}
