//! `ONCE.*`: idempotency keys with results. Work is done once however often it is asked for, and every caller gets its result.
//!
//! Work is a key whose value is a [`state::OnceWork`]: busy until the end of its lease, then done with a result until the result
//! is forgotten. [`commands`] reads requests, [`state`] decides them, [`edit`] carries out their changes of a key, and
//! [`serve`] answers waiting clients.

pub mod commands;
pub mod edit;
pub mod native;
mod options;
pub mod persist;
pub mod queue;
pub mod serve;
pub mod state;
pub mod table;

use crate::Family;
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::info::Counter;
use crate::waiting::{Agenda, Key, Scan, Ticket};
use queue::OnceQueue;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;

/// The longest fingerprint in bytes.
pub const MAX_FINGERPRINT: usize = 512;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "once",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[],
    key_changed: native::key_changed,
    on_event: serve::handle_event,
    due: serve::due,
    go_on: serve::go_on,
    cron: serve::cron,
    waiting: Some(serve::WAITING),
    info: serve::info,
    ..Family::PLAIN
};

/// The blocked clients.
static BLOCKED: BlockedClients = BlockedClients::new(serve::client_left, serve::reply_sent);

/// The family's state beside the keyspace.
#[derive(Default)]
struct OnceState {
    /// The waiting clients.
    queue: OnceQueue,
    /// The leases of waiting clients that were served and whose replies have not been sent yet.
    unsent: BTreeMap<Ticket, (Key, u64)>,
    /// The leases of clients that left before their replies were sent.
    undelivered: VecDeque<(Key, u64)>,
    /// The keys whose queues are to be served, in slices.
    agenda: Agenda,
    /// The scans through queues that are to be served, in slices.
    scans: VecDeque<Scan>,
    /// The clients whose waits are to end with an error, in slices.
    dismissals: VecDeque<WorkDismissal>,
}

/// Clients whose waits end with an error.
#[derive(Debug)]
enum WorkDismissal {
    /// The clients of the queues of this scan: the server has become a replica.
    All(Scan),
    /// The clients that wait for a key receive this error.
    Key(Key, Error),
}

static STATE: MainThread<OnceState> = MainThread::new();

/// The number of waiting clients. Values that leave their keys are reported only if there are any. They do so in the middle of
/// steps.
static WAITING_CLIENTS: AtomicU64 = AtomicU64::new(0);

/// Leases that ended without a result. The server frees an expired value in the middle of a step.
static EXPIRED_LEASES: AtomicU64 = AtomicU64::new(0);

/// The counters of `INFO sluice`.
struct OnceCounters {
    begun: Counter,
    done: Counter,
    failed: Counter,
    replayed: Counter,
    busy: Counter,
    conflicts: Counter,
}

static COUNTERS: OnceCounters = OnceCounters {
    begun: Counter::new(),
    done: Counter::new(),
    failed: Counter::new(),
    replayed: Counter::new(),
    busy: Counter::new(),
    conflicts: Counter::new(),
};
