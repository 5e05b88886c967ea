//! Deletions that have arrived and have not run. A command in `MULTI` runs at `EXEC`, and a command that arrives while writes are
//! paused runs after the pause. The server reports neither, so this module keeps the names of the keys until the deletion must have
//! run. In doubt, a lease is revoked: a needless revocation costs a rebuild, a missing one stale data.
//!
//! [`by_client`] is for servers that name the client of a command, [`anonymous`] for Redis 7.0, which does not.

pub(super) mod anonymous;
pub(super) mod by_client;

/// The most names of all clients together, and their most bytes. Beyond that, the end of a transaction revokes all leases.
const MAX_NAMES: usize = 10_000;
const MAX_BYTES: usize = 256 * 1024;

/// The most clients whose states are read before a command or in a tick. On Redis 7.0, each takes a system call.
pub(super) const MOST_STATES: usize = 128;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientState {
    /// The client has no connection. It may be a script, whose commands run at once.
    Gone,
    /// The client is in a transaction, perhaps with a delayed `EXEC`.
    InTransaction,
    /// The command of the client is delayed, or the client waits in a blocking command.
    Blocked,
    Free,
}

/// The keys of deletions.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeletedKeys {
    Named(Vec<Box<[u8]>>),
    All,
}

impl Default for DeletedKeys {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

impl DeletedKeys {
    /// Adds names, as far as the budget allows it.
    pub(super) fn add<'n>(
        &mut self,
        names: impl Iterator<Item = &'n [u8]>,
        budget: &mut NameBudget,
    ) {
        for name in names {
            let Self::Named(own) = self else {
                return;
            };
            if budget.take(name.len()) {
                own.push(name.into());
            } else {
                self.release(budget);
                *self = Self::All;
            }
        }
    }

    pub(super) fn release(&mut self, budget: &mut NameBudget) {
        if let Self::Named(names) = self {
            names.iter().for_each(|name| budget.give_back(name.len()));
        }
    }

    /// Calls `revoke` with each key; `None` stands for all keys.
    pub(super) fn revoke(&self, revoke: &mut dyn FnMut(Option<&[u8]>)) {
        match self {
            Self::All => revoke(None),
            Self::Named(names) => names.iter().for_each(|name| revoke(Some(name))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Named(names) if names.is_empty())
    }
}

/// The number and the bytes of the kept names.
#[derive(Debug, Default)]
pub(super) struct NameBudget {
    names: usize,
    bytes: usize,
}

impl NameBudget {
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let fits = self.names < MAX_NAMES && self.bytes + bytes <= MAX_BYTES;
        if fits {
            self.names += 1;
            self.bytes += bytes;
        }
        fits
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        self.names -= 1;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    //! What the tests of both files need.

    use super::ClientState;
    use std::cell::Cell;

    pub(super) fn names(line: &str) -> impl Iterator<Item = &[u8]> {
        line.split(' ').map(str::as_bytes)
    }

    pub(super) fn text(key: &[u8]) -> String {
        String::from_utf8_lossy(key).into_owned()
    }

    pub(super) const NOTHING: [&str; 0] = [];

    pub(super) const MANY: u64 = 2000;

    /// Clients whose states are counted when they are read.
    pub(super) struct Clients {
        pub(super) state: Cell<ClientState>,
        pub(super) reads: Cell<u64>,
    }

    impl Clients {
        pub(super) fn all(state: ClientState) -> Self {
            let (state, reads) = (Cell::new(state), Cell::new(0));
            Self { state, reads }
        }

        pub(super) fn read(&self) -> ClientState {
            self.reads.set(self.reads.get() + 1);
            self.state.get()
        }
    }
}
