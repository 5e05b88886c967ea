//! `LOCK.*` and `SEM.*`: locks and semaphores.
//!
//! A lock is a key that exists while somebody holds it. Its value is a [`state::Lock`]; a semaphore
//! is the same machine in the mode [`state::Mode::Permits`] under a type of its own. Clients wait in [`queue::Queues`], in memory
//! only. `commands` reads requests and takes steps. [`handover`] decides who is served next, for the server in `world` or
//! for a simulation. `slices` does the work that no command asks for.

mod apply;
mod blocking;
mod commands;
pub mod counters;
mod cycles;
pub mod deadlock;
mod edit;
mod ends;
mod events;
mod guard;
pub mod handover;
pub mod holds;
mod inspect;
mod limits;
pub mod native;
mod notices;
mod options;
pub mod persist;
pub mod queue;
mod search;
mod slices;
pub mod state;
mod table;
pub mod watch;
mod watchdog;
mod world;

use crate::Family;
use crate::deadlines::Listing;
use crate::general::HotKeys;
use crate::general::memory::FamilyMemory;
use crate::histogram::Histogram;
use crate::request::TEN_YEARS_MS;
use crate::server::base::main_thread::MainThread;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::config::Integer;
use edit::StepContext;
use handover::Handover;
use search::DeadlockSearch;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The longest owner in bytes.
pub const MAX_OWNER_BYTES: usize = 1024;

/// The longest request id in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

/// The longest channel in bytes.
const MAX_CHANNEL_BYTES: usize = 1024;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "lock",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[&DEFAULT_LEASE, &MAX_WAITERS, &MAX_WAITED_KEYS],
    key_changed: native::key_changed,
    dataset_changed: events::dataset_changed,
    follows_client: watchdog::follows_client,
    on_event: events::on_event,
    due: slices::due,
    go_on: |ctx, slice| slices::go_on(ctx, slice) | DEADLINES.go_on(ctx, slice),
    cron: slices::cron,
    slot_parcel: events::slot_parcel,
    waiting: Some(blocking::WAITING),
    slot_check_command: Some(c"LOCK.RELEASE"),
    info: counters::info,
    histograms: &[
        ("times_lock_wait_usec", &WAIT_TIMES),
        ("times_lock_hold_usec", &HOLD_TIMES),
    ],
    hot: Some(&HOT),
    memory: Some(FamilyMemory {
        keys: "memory_lock_keys",
        bytes: "memory_lock_bytes",
        types: native::USAGE,
    }),
    ..Family::PLAIN
};

static DEFAULT_LEASE: Integer = Integer::new("lock-default-lease", 30_000, 1, TEN_YEARS_MS);
static MAX_WAITERS: Integer = Integer::new("lock-max-waiters", 100_000, 0, 10_000_000);
/// For how many keys all clients together may wait, each key counted for each client.
static MAX_WAITED_KEYS: Integer = Integer::new("lock-max-waited-keys", 1_000_000, 0, 1_000_000_000);

/// The clients that wait for locks and semaphores.
static BLOCKED: BlockedClients = BlockedClients::new(blocking::left, blocking::answered);

/// What the family keeps beside the keyspace.
#[derive(Default)]
struct LockService {
    /// The queues of waiting clients, and who is served next.
    handover: Handover,
    /// What steps on keys need beside the keyspace.
    steps: StepContext,
    /// The search for deadlocks.
    search: DeadlockSearch,
}

/// To open or to create a key may run callbacks and listeners to keyspace events that need it. So no code does so while it borrows
/// this state, except for the search for deadlocks, which [looks](search::read_lock) at keys without removing those that expired.
static SERVICE: MainThread<LockService> = MainThread::new();

/// The locks with several holds, by the time at which the first of these ends. The only hold of a lock ends with its key.
static DEADLINES: Listing = Listing::new();

/// Holds whose lease ended. No field of the [`SERVICE`]: the search for deadlocks borrows that when Redis 7.0 removes an expired key.
static EXPIRED_LEASES: AtomicU64 = AtomicU64::new(0);

/// How long clients waited: from the request until the client had an answer or left.
static WAIT_TIMES: Histogram = Histogram::new();

/// How long locks were held: from the fencing token, which is the time of the grant, until the release or the end of the lease.
static HOLD_TIMES: Histogram = Histogram::new();

/// The keys with the most waits and refusals.
static HOT: HotKeys = HotKeys::new();

/// Whether any client waits or any hold is watched. If not, values that leave their keys need not be reported. No field of the
/// [`SERVICE`], for the same reason.
static LISTENING: AtomicBool = AtomicBool::new(false);
