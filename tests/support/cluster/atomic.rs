//! Atomic slot migration: the server copies a slot, and gives it away at once. Valkey does so since 9.0
//! (`CLUSTER MIGRATESLOTS`, said to the node that the slot leaves), Redis since 8.4 (`CLUSTER MIGRATION`, said to the one
//! that it comes to).

use std::thread::sleep;
use std::time::Duration;

use super::id_of;
use crate::support::{Lines as _, Raw, SOON, Server, Value, ask, eventually};

/// How a server is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// `CLUSTER MIGRATESLOTS`.
    Valkey,
    /// `CLUSTER MIGRATION`.
    Redis,
}

impl Atomic {
    /// What this server can do. Where it cannot, it must say that it knows no such command.
    #[track_caller]
    pub fn of(server: &Server) -> Option<Self> {
        let has = |name: &str| !ask(server, &format!("COMMAND INFO {name}")).array()[0].is_nil();
        match (has("CLUSTER|MIGRATESLOTS"), has("CLUSTER|MIGRATION")) {
            (true, _) => Some(Self::Valkey),
            (_, true) => Some(Self::Redis),
            _ => {
                for line in ["CLUSTER MIGRATESLOTS", "CLUSTER MIGRATION"] {
                    let reply = Raw::connect(server).run(line);
                    assert!(reply.err().contains("nknown subcommand"), "{reply:?}");
                }
                None
            }
        }
    }

    /// Begins to move a slot.
    #[track_caller]
    pub fn start(self, slot: i64, from: &Server, to: &Server) {
        match self {
            Self::Valkey => {
                let to = id_of(to);
                let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}");
                eventually(SOON, || !Raw::connect(from).run(&line).is_err());
            }
            Self::Redis => {
                let line = format!("CLUSTER MIGRATION IMPORT {slot} {slot}");
                // Refused while what is left of the slot is still being dropped.
                eventually(SOON, || !Raw::connect(to).run(&line).is_err());
            }
        }
    }

    /// Calls all off that are under way.
    pub fn cancel(self, from: &Server, to: &Server) {
        match self {
            Self::Valkey => Raw::connect(from).run("CLUSTER CANCELSLOTMIGRATIONS"),
            Self::Redis => Raw::connect(to).run("CLUSTER MIGRATION CANCEL ALL"),
        };
    }

    /// Moves a slot, and waits until all of these nodes know that.
    #[track_caller]
    pub fn migrate(self, slot: i64, from: &Server, to: &Server) {
        self.start(slot, from, to);
        self.await_end(slot, from, to);
    }

    /// Waits until both nodes say that the slot is where it was to go.
    #[track_caller]
    pub fn await_end(self, slot: i64, from: &Server, to: &Server) {
        let to_id = id_of(to);
        for node in [from, to] {
            eventually(SOON * 2, || owner_of(node, slot).as_deref() == Some(&to_id));
        }
    }

    /// Makes migrations from this node stop where their keys are copied, but their slot is not given away; or go on.
    #[track_caller]
    pub fn hold(self, from: &Server, is_held: bool) {
        let line = match self {
            Self::Valkey => format!("DEBUG SLOTMIGRATION PREVENT-PAUSE {}", u8::from(is_held)),
            // Redis cannot stop there, but it can take its time: so many microseconds for each key.
            Self::Redis => {
                let delay = if is_held { 400_000 } else { 0 };
                format!("CONFIG SET rdb-key-save-delay {delay}")
            }
        };
        assert_eq!(ask(from, &line), "OK", "{line}");
    }

    /// Waits until the node that a slot goes to has some of its keys, and the slot is not given away yet if that is
    /// [held up](Self::hold).
    #[track_caller]
    pub fn await_copies(self, slot: i64, to: &Server) {
        match self {
            Self::Valkey => {
                let line = format!("CLUSTER COUNTKEYSINSLOT {slot}");
                eventually(SOON * 2, || ask(to, &line).int() >= 2);
            }
            // It does not count what is not its own yet.
            Self::Redis => {
                let copies = || {
                    let status = ask(to, "CLUSTER MIGRATION STATUS ALL");
                    let mut all = status.array().iter();
                    all.any(|one| one.field("state") == &"accumulate-buffer")
                };
                eventually(SOON * 2, copies);
                sleep(A_WHILE);
            }
        }
    }
}

/// The id of the node that serves a slot, as a node says.
pub fn owner_of(node: &Server, slot: i64) -> Option<String> {
    let slots = ask(node, "CLUSTER SLOTS");
    let range = slots.array().iter().find(|range| {
        let range = range.array();
        (range[0].int()..=range[1].int()).contains(&slot)
    })?;
    let id: &Value = &range.array()[2].array()[2];
    Some(id.text().to_owned())
}

/// A while in which something must not happen.
pub const A_WHILE: Duration = Duration::from_millis(700);
