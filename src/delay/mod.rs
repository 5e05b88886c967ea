//! `DELAY.*`: messages that reach a stream later.
//!
//! A delay queue is a key whose value is a [`state::DelayQueue`]. [`commands`] reads requests, [`edit`] changes a queue and
//! delivers messages to its stream, and [`serve`] does so when messages are due. The time of the next delivery of each queue
//! is in [`crate::deadlines`].

pub mod commands;
pub mod edit;
pub mod message;
pub mod native;
mod options;
pub mod persist;
pub mod serve;
pub mod state;
pub mod table;

use crate::Family;
use crate::deadlines::Listing;
use crate::general::memory::FamilyMemory;
use crate::server::services::info::Counter;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "delay",
    commands: &[table::TABLE],
    types: native::TYPES,
    key_changed: serve::on_key_change,
    dataset_changed: |event| DEADLINES.moved(event),
    on_event: serve::on_server_event,
    due: serve::due,
    slot_check_command: Some(c"DELAY.CANCEL"),
    go_on: |ctx, slice| serve::go_on(ctx, slice) | DEADLINES.go_on(ctx, slice),
    cron: |ctx| DEADLINES.cron(ctx),
    info: serve::info,
    memory: Some(FamilyMemory {
        keys: "memory_delay_keys",
        bytes: "memory_delay_bytes",
        types: native::USAGE,
    }),
    ..Family::PLAIN
};

/// The counters of `INFO sluice`.
struct DelayCounters {
    added: Counter,
    replaced: Counter,
    canceled: Counter,
    delivered: Counter,
}

static COUNTERS: DelayCounters = DelayCounters {
    added: Counter::new(),
    replaced: Counter::new(),
    canceled: Counter::new(),
    delivered: Counter::new(),
};

/// When each queue has its next delivery.
static DEADLINES: Listing = Listing::new();
