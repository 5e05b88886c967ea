//! `LOCK.*` and `SEM.*`: locks and semaphores.
//!
//! A lock is a key that exists while somebody holds it. Its value is a [`state::Lock`]; a semaphore
//! is the same machine in the mode [`state::Mode::Permits`] under a type of its own. Clients that
//! wait stand in [`queue::Queues`], beside the keyspace and in memory only. [`commands`] reads
//! requests and takes steps, [`serve`] does what happens without a command: it hands locks over,
//! ends waits, and renews and releases holds for connections.

mod apply;
mod blocking;
mod commands;
pub mod deadlock;
mod edit;
mod guard;
pub mod holds;
mod inspect;
pub mod native;
mod options;
pub mod persist;
pub mod queue;
mod serve;
pub mod state;
mod table;
pub mod watch;

use crate::Family;
use crate::deadlines::Listing;
use crate::error::Error;
use crate::request::{MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::log;
use crate::server::services::blocked::BlockedClients;
use crate::server::services::config::Integer;
use crate::server::services::memory::is_following;
use crate::waiting::{Agenda, Key, Ticket, Walk};
use deadlock::{Budget, Remains, Search};
use queue::{Queues, Waiter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use watch::{Sweep, Watches};

/// The longest owner in bytes.
pub const MAX_OWNER: usize = 1024;

/// The longest request id in bytes.
pub const MAX_ID: usize = 128;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "lock",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[&DEFAULT_LEASE, &MAX_WAITERS, &MAX_WAITED_KEYS],
    key_changed: native::touched,
    dataset_changed: |event| DEADLINES.moved(event), // the rest in its turn is early enough
    follows_client: serve::follows_client,
    on_event: serve::happened,
    due: serve::due,
    go_on: serve::go_on,
    cron: serve::cron,
    waiting: Some(serve::WAITING),
    info: serve::info,
    ..Family::PLAIN
};

static DEFAULT_LEASE: Integer = Integer::new("lock-default-lease", 30_000, 1, TEN_YEARS_MS);
static MAX_WAITERS: Integer = Integer::new("lock-max-waiters", 100_000, 0, 10_000_000);
/// For how many keys all clients together may wait, each key counted for each client.
static MAX_WAITED_KEYS: Integer = Integer::new("lock-max-waited-keys", 1_000_000, 0, 1_000_000_000);

/// The clients that wait for locks and semaphores.
static BLOCKED: BlockedClients = BlockedClients::new(serve::left, serve::answered);

/// What the family remembers beside the keyspace.
#[derive(Default)]
struct State {
    queues: Queues,
    watches: Watches,
    /// Who was served and has not got its answer yet: for a moment only.
    unanswered: BTreeMap<Ticket, Arc<Waiter>>,
    /// Who was served and will never get its answer: what it was given is to be taken back, from this key on.
    undelivered: VecDeque<(Arc<Waiter>, usize)>,
    /// Was a lock not handed on because the master had too few replicas?
    held_back: bool,
    /// When waiters' time is up (Unix ms).
    timeouts: BTreeSet<(u64, Ticket)>,
    /// What else is to be done when (Unix ms).
    deadlines: BTreeSet<(u64, Due)>,
    /// What is to be done in slices, before queues are looked at.
    tasks: VecDeque<Task>,
    /// The keys whose queues are to be looked at, in slices.
    agenda: Agenda,
    /// Walks through queues that are to be looked at, in slices.
    walks: VecDeque<Walk>,
    /// The search for deadlocks that goes on in slices, and when it began (Unix ms).
    search: Option<(Search, u64)>,
    /// What is left of the last one, and when the next one may begin (Unix ms).
    remains: Option<(Remains, u64)>,
    /// For the check of those who come.
    search_budget: Budget,
    /// Is it noted when the next search begins?
    will_search: bool,
    stats: Stats,
    /// A buffer for effects, kept to be used again.
    effects: Vec<u8>,
}

/// Something to do at a deadline, if the module may act then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something that the first in a queue waits for has ended.
    Retry(Ticket),
    /// The hold that is watched under this number is to be renewed for its connection.
    Renew(u64),
    /// Look for deadlocks.
    Search,
}

/// Something that is done in slices, a step at a time.
#[derive(Debug)]
enum Task {
    /// Watch holds no more.
    Unwatch(Sweep),
    /// Make a lock fit an expiry that something else gave its key, or a key that it came to.
    Reconcile(Key),
    /// Release what was watched for a connection.
    Abandon(u64),
    /// Take back what waiters were given who went before they could be told.
    TakeBack,
    /// Look at the other waiters of an owner who was served: at those for its key at this place, behind this ticket.
    Kin(Arc<Waiter>, usize, Ticket),
    /// Answer everybody in the queues of a replica.
    Farewell(Walk),
    /// Answer all who wait for a key with an error.
    SendAway(Key, Error),
}

static STATE: MainThread<State> = MainThread::new();

/// Where a hold ends among others, and when the first one does. A hold that is the only one ends with its key.
static DEADLINES: Listing = Listing::new();

/// The counters of `INFO sluice`.
#[derive(Debug, Default)]
struct Stats {
    acquired: u64,
    reentered: u64,
    refused: u64,
    waited: u64,
    timeouts: u64,
    handoffs: u64,
    renewed: u64,
    watchdog_released: u64,
    deadlocks: u64,
}

/// Holds whose lease ended. Apart from the other counters, because a key may expire in the middle
/// of a command.
static EXPIRED_LEASES: AtomicU64 = AtomicU64::new(0);

/// Does anybody wait, or is any hold watched? If not, keys that go need not be noted.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// The last fence that was given by this server or its masters, as far as it knows.
static FENCE: AtomicU64 = AtomicU64::new(0);

/// The next fence: a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014), so
/// that it rises also where the last ones were never replicated, as long as clocks are sane.
fn next_fence(now: Now) -> Result<u64, Error> {
    let fence = (FENCE.load(Ordering::Relaxed) + 1).max(now.micros());
    if fence > MAX_SAFE as u64 {
        log::warn_of_server("no fence is left: the clock is beyond the year 2255");
        return Err(Error::Internal);
    }
    Ok(fence)
}

/// The largest fence that is believed of a stranger: it leaves enough for 35 years, a million in a second.
const MOST_BELIEVED: u64 = MAX_SAFE as u64 - (1 << 50);

/// Can this fence have been given? Masters and files of this server are believed. Of others, nobody may leave this server
/// without fences, by a forged payload that he restores.
fn is_plausible_fence(fence: u64) -> bool {
    is_following() || fence <= MOST_BELIEVED.max(FENCE.load(Ordering::Relaxed))
}

/// Remembers a fence that was given here or elsewhere.
fn remember_fence(fence: u64) {
    FENCE.fetch_max(fence, Ordering::Relaxed);
}
