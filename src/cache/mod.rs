//! `CACHE.*`: a cache in front of a database, protected from cache penetration, stampede, avalanche and stale writes.
//!
//! A cached entry is a key whose value is a [`state::CacheEntry`]. The leases and the waiting clients of all keys are in
//! [`rebuilds::Rebuilds`], beside the keyspace and in memory only. [`commands`] reads requests, [`step`] decides them,
//! [`edit`] carries out their changes of a key, [`revoke`] revokes the leases of keys that change, and [`serve`] answers
//! waiting clients.

pub mod breaker;
mod budget;
pub mod commands;
pub mod edit;
pub mod guard;
pub mod lease;
pub mod native;
mod options;
pub mod persist;
pub mod rebuilds;
pub mod revoke;
pub mod serve;
pub mod sieve;
mod stale_ends;
pub mod state;
pub mod step;
pub mod table;

use crate::Family;
use crate::general::HotKeys;
use crate::histogram::Histogram;
use crate::queue_service::{self, QueueWork};
use crate::server::base::main_thread::MainThread;
use crate::server::base::random;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::config::Integer;
use crate::server::services::info::Counter;
use crate::waiting::Scan;
use lease::Leases;
use rebuilds::Rebuilds;
use serve::CacheQueues;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "cache",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[&MAX_LEASES, &MAX_BREAKERS, &MAX_BYTES],
    key_changed: native::key_changed,
    key_removed: revoke::key_removed,
    key_deleting: revoke::key_deleting,
    watches_deletions: revoke::has_leases,
    dataset_changed: revoke::dataset_changed,
    on_event: serve::handle_event,
    due: serve::due,
    go_on: |ctx, slice| serve::go_on(ctx, slice) | stale_ends::go_on(ctx, slice),
    cron: serve::cron,
    waiting: Some(queue_service::in_slots::<CacheQueues>()),
    slot_check_command: Some(c"CACHE.FAIL"),
    info: serve::info,
    histograms: &[
        ("times_cache_wait_usec", &WAIT_TIMES),
        ("times_cache_hold_usec", &HOLD_TIMES),
    ],
    hot: Some(&HOT),
    ..Family::PLAIN
};

static MAX_LEASES: Integer = Integer::new("cache-max-leases", 100_000, 0, 10_000_000);
static MAX_BREAKERS: Integer = Integer::new("cache-max-breakers", 1000, 0, 1_000_000);
static MAX_BYTES: Integer = Integer::memory("cache-max-bytes", 0, 0, i64::MAX);

/// The blocked clients.
static BLOCKED: BlockedClients = BlockedClients::new(
    queue_service::client_left::<CacheQueues>,
    queue_service::reply_sent::<CacheQueues>,
);

/// The family's state beside the keyspace. To open a key may run callbacks that need it: the server may find the key expired,
/// and then its lease is revoked. So no code opens a key while it borrows this state.
struct CacheState {
    /// The leases and the waiting clients.
    rebuilds: Rebuilds,
    /// The work for the queues that remains.
    work: QueueWork,
    /// A scan of all queues that checks whether their keys hold a value by now.
    key_check: Option<Scan>,
}

impl Default for CacheState {
    fn default() -> Self {
        Self {
            rebuilds: Rebuilds::new(Leases::new(random::secret(), random::secret())),
            work: QueueWork::default(),
            key_check: None,
        }
    }
}

/// How long clients waited: from the request until the client had an answer or left.
static WAIT_TIMES: Histogram = Histogram::new();

/// How long leases to rebuild were held: from the grant until the store or `CACHE.FAIL`. Leases that ended otherwise are not counted.
static HOLD_TIMES: Histogram = Histogram::new();

/// The keys with the most waits and refusals, and with the most bytes in large values.
static HOT: HotKeys = HotKeys::new();

static STATE: MainThread<CacheState> = MainThread::new();

/// The counters of `INFO sluice`.
struct CacheCounters {
    hits: Counter,
    nulls: Counter,
    misses: Counter,
    stale: Counter,
    leases: Counter,
    waits: Counter,
    absent: Counter,
    down: Counter,
    refused_sets: Counter,
    early: Counter,
    evicted: Counter,
}

static COUNTERS: CacheCounters = CacheCounters {
    hits: Counter::new(),
    nulls: Counter::new(),
    misses: Counter::new(),
    stale: Counter::new(),
    leases: Counter::new(),
    waits: Counter::new(),
    absent: Counter::new(),
    down: Counter::new(),
    refused_sets: Counter::new(),
    early: Counter::new(),
    evicted: Counter::new(),
};
