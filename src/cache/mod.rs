//! `CACHE.*`: a cache beside a database, without penetration, stampede, avalanche or stale writes.
//!
//! A cached entry is a key whose value is a [`state::Entry`]. Who may rebuild which entry is in [`lease::Leases`], who
//! waits for one in [`queue::Queue`]; both are beside the keyspace and in memory only. [`commands`] reads requests,
//! [`edit`] changes entries, [`revoke`] revokes the leases of keys that change from any side, and [`serve`] does what happens
//! without a command: it answers who waits.

pub mod commands;
pub mod edit;
pub mod guard;
pub mod lease;
pub mod native;
mod options;
pub mod persist;
pub mod queue;
pub mod revoke;
pub mod serve;
pub mod state;

use crate::Family;
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::base::random;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::config::Integer;
use crate::server::services::info::Counter;
use crate::waiting::{Agenda, Key, Ticket, Walk};
use lease::Leases;
use queue::Queue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "cache",
    commands: &[commands::TABLE],
    types: native::TYPES,
    settings: &[&MAX_LEASES],
    key_changed: native::touched,
    key_removed: revoke::removed,
    key_deleting: revoke::deleting,
    watches_deletions: revoke::has_leases,
    dataset_changed: revoke::moved,
    on_event: serve::happened,
    due: serve::due,
    go_on: serve::go_on,
    cron: serve::cron,
    waiting: Some(serve::WAITING),
    info: serve::info,
    ..Family::PLAIN
};

static MAX_LEASES: Integer = Integer::new("cache-max-leases", 100_000, 0, 10_000_000);

/// When to ask again if there is no room for another lease, in milliseconds.
const RETRY: u64 = 50;

/// The clients that wait for entries.
static BLOCKED: BlockedClients = BlockedClients::new(serve::left, serve::answered);

/// What the family remembers beside the keyspace. Keys that are opened may turn out to be expired, which voids their
/// leases: so nobody opens a key while he holds this.
struct State {
    leases: Leases,
    queue: Queue,
    /// What is to be done when (Unix ms).
    deadlines: BTreeSet<(u64, Due)>,
    /// The leases of waiters that have not got their answer yet: for a moment only.
    unanswered: BTreeMap<Ticket, (Key, u64)>,
    /// The leases of waiters that will never get their answer: to be taken back.
    undelivered: VecDeque<(Key, u64)>,
    /// The keys whose queues are to be looked at, in slices.
    agenda: Agenda,
    /// Walks through queues that are to be looked at, in slices.
    walks: VecDeque<Walk>,
    /// Who is to be sent away, in slices.
    farewells: VecDeque<Farewell>,
    /// The slots of this node of a cluster, when they were looked at last.
    own_slots: Option<String>,
    /// Where the count of tokens is.
    tokens: u64,
}

impl Default for State {
    /// Nothing yet. Tokens are counted from where nobody knows.
    fn default() -> Self {
        Self {
            leases: Leases::seeded(random::secret()),
            queue: Queue::default(),
            deadlines: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            undelivered: VecDeque::new(),
            agenda: Agenda::default(),
            walks: VecDeque::new(),
            farewells: VecDeque::new(),
            own_slots: None,
            tokens: random::secret(),
        }
    }
}

/// Clients that are to be sent away.
#[derive(Debug)]
enum Farewell {
    /// Those in the queues of a replica.
    All(Walk),
    /// Those who wait for a key, with an error.
    Key(Key, Error),
}

/// Something to do at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// This waiter's time is up.
    Timeout(Ticket),
    /// Something that a line waits for has ended.
    Retry(Key),
}

static STATE: MainThread<State> = MainThread::new();

/// The counters of `INFO sluice`.
struct Stats {
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
}

static STATS: Stats = Stats {
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
};
