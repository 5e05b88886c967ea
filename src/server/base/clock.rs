//! The server machine's clock, read once for each command.

/// A moment in Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    micros: u64,
}

impl Now {
    /// The time for a command that a master or an AOF hands down: no lease has ended yet, because
    /// the end of a lease is handed down as well.
    pub const BEFORE_ALL: Now = Now { micros: 0 };

    /// The present. The standard library's clock asks the same, and takes 110 instructions more for it.
    pub fn read() -> Self {
        let mut since = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the clock is there on every system, and writes to what it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut since) };
        let seconds = u64::try_from(since.tv_sec).unwrap_or(0); // none before 1970
        Self {
            micros: seconds * 1_000_000 + since.tv_nsec as u64 / 1000,
        }
    }

    /// Microseconds since 1970.
    pub fn micros(self) -> u64 {
        self.micros
    }

    /// Milliseconds since 1970.
    pub fn ms(self) -> u64 {
        self.micros / 1000
    }
}
