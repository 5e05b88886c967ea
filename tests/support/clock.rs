//! A wall clock of its own for a server: a small library that is loaded before all others (`LD_PRELOAD`) adds a shift to
//! what the machine's clock says, and counts how often the server sleeps and the writes in a round of its event loop. The numbers are
//! in a file that the server maps.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::home::Home;
use super::library::compile;
use super::talk::unix_us;

const SOURCE: &str = include_str!("clock.c");

const PRELOADED: &str = "clock.so";
const SHIFT: &str = "clock";

const NS_PER_MS: i64 = 1_000_000;
const NS_PER_US: i64 = 1000;

/// The places of the numbers in the file, in bytes, and its length.
const SHIFT_AT: u64 = 0;
const SLEEPS_AT: u64 = 8;
const MOST_WRITES_AT: u64 = 16;
const PER_READING_AT: u64 = 24;
const FROZEN_AT: u64 = 32;
const SHARED_LENGTH: u64 = 40;

/// The library, compiled once for all servers of this process.
static LIBRARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let home = Home::create();
    let library = home.path().join(PRELOADED);
    compile(SOURCE, &library);
    fs::read(library).expect("cannot read the clock's library")
});

/// The clock of one server, in its directory: it outlives the process, so that a restart keeps it.
pub(super) struct Clock {
    file: File,
    shift_path: PathBuf,
    library: PathBuf,
}

impl Clock {
    /// A clock that is `shift_ms` ahead of the machine's.
    pub(super) fn create(folder: &Path, shift_ms: i64) -> io::Result<Self> {
        let (shift_path, library) = (folder.join(SHIFT), folder.join(PRELOADED));
        fs::write(&library, &*LIBRARY)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&shift_path)?;
        file.set_len(SHARED_LENGTH)?;
        let clock = Self {
            file,
            shift_path,
            library,
        };
        clock.set(shift_ms * NS_PER_MS)?;
        Ok(clock)
    }

    /// Sets it forward by so many milliseconds, or back if that is negative.
    pub(super) fn shift(&self, by_ms: i64) -> io::Result<()> {
        self.set(self.number(SHIFT_AT)? + by_ms * NS_PER_MS)
    }

    /// From now on, every reading sets it forward by so many microseconds.
    pub(super) fn shift_per_reading(&self, us: i64) -> io::Result<()> {
        let ns = us * NS_PER_US;
        self.file.write_all_at(&ns.to_ne_bytes(), PER_READING_AT)
    }

    /// Freezes the clock: from now on, only shifts change it. If `is_frozen` is false, the clock runs again.
    pub(super) fn freeze(&self, is_frozen: bool) -> io::Result<()> {
        let ns = if is_frozen { unix_us() * NS_PER_US } else { 0 };
        self.file.write_all_at(&ns.to_ne_bytes(), FROZEN_AT)
    }

    /// How often the server has gone to sleep, all its starts together.
    pub(super) fn sleeps(&self) -> io::Result<i64> {
        self.number(SLEEPS_AT)
    }

    /// Begins to count the writes in a round anew.
    pub(super) fn reset_most_writes(&self) -> io::Result<()> {
        self.file.write_all_at(&[0; 8], MOST_WRITES_AT)
    }

    /// The largest number of writes of the server's main thread in one round of its event loop since the last reset.
    pub(super) fn most_writes_in_a_round(&self) -> io::Result<i64> {
        self.number(MOST_WRITES_AT)
    }

    fn number(&self, at: u64) -> io::Result<i64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(i64::from_ne_bytes(bytes))
    }

    fn set(&self, shift_ns: i64) -> io::Result<()> {
        self.file.write_all_at(&shift_ns.to_ne_bytes(), SHIFT_AT)
    }

    /// Makes the server that this command starts go by this clock.
    pub(super) fn govern(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("SLUICE_TEST_CLOCK", &self.shift_path);
    }
}
