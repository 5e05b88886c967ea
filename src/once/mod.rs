//! `ONCE.*`: idempotency keys with results. Work is done once, even if many callers request it, and every caller gets its result.
//!
//! Work is a key whose value is a [`state::OnceWork`]: busy until the end of its lease, then done with a result until the result
//! is forgotten. [`commands`] reads requests, [`state`] decides them, [`edit`] carries out their changes of a key, and
//! [`serve`] answers waiting clients.

pub mod commands;
pub mod edit;
pub mod native;
mod options;
pub mod persist;
pub mod serve;
pub mod state;
pub mod table;

use crate::Family;
use crate::general::HotKeys;
use crate::general::memory::FamilyMemory;
use crate::histogram::Histogram;
use crate::key_queues::KeyQueues;
use crate::queue_service::{self, QueueWork};
use crate::server::base::main_thread::MainThread;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::info::Counter;
use serve::{OnceQueues, WaitingBegin};
use state::DoneWork;
use std::sync::atomic::AtomicU64;

/// The longest fingerprint in bytes.
pub const MAX_FINGERPRINT_BYTES: usize = 512;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "once",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[],
    key_changed: native::key_changed,
    on_event: serve::handle_event,
    due: queue_service::due::<OnceQueues>,
    go_on: queue_service::go_on::<OnceQueues>,
    cron: |_| queue_service::ask_for_slices_if_needed::<OnceQueues>(),
    waiting: Some(queue_service::in_slots::<OnceQueues>()),
    slot_check_command: Some(c"ONCE.FAIL"),
    info: serve::info,
    histograms: &[
        ("times_once_wait_usec", &WAIT_TIMES),
        ("times_once_hold_usec", &HOLD_TIMES),
    ],
    hot: Some(&HOT),
    memory: Some(FamilyMemory {
        keys: "memory_once_keys",
        bytes: "memory_once_bytes",
        types: native::USAGE,
    }),
    ..Family::PLAIN
};

/// The blocked clients.
static BLOCKED: BlockedClients = BlockedClients::new(
    queue_service::client_left::<OnceQueues>,
    queue_service::reply_sent::<OnceQueues>,
);

/// The family's state beside the keyspace.
#[derive(Default)]
struct OnceState {
    /// The waiting clients.
    queue: KeyQueues<WaitingBegin, DoneWork>,
    /// The work for the queues that remains.
    work: QueueWork,
}

/// How long clients waited: from the request until the client had an answer or left.
static WAIT_TIMES: Histogram = Histogram::new();

/// How long work was busy: from the token, which is the time of the grant, until `ONCE.DONE`, `ONCE.FAIL` or the end of the lease.
static HOLD_TIMES: Histogram = Histogram::new();

/// The keys with the most waits and refusals, and with the most bytes in large results.
static HOT: HotKeys = HotKeys::new();

static STATE: MainThread<OnceState> = MainThread::new();

/// The number of waiting clients. Values that leave their keys are reported only if there are any. The report runs in the
/// middle of a step, so this number is not part of the state.
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
