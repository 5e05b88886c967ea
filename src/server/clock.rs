//! The server machine's clock, read once for each command.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment in Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    micros: u64,
}

impl Now {
    /// The time for a command that a master or an AOF hands down: no lease has ended yet, because
    /// the end of a lease is handed down as well.
    pub const BEFORE_ALL: Now = Now { micros: 0 };

    /// The present.
    pub fn read() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            micros: since.map_or(0, |since| since.as_micros() as u64),
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
