//! The queues of waiting clients, in order. They use no server: a client is a ticket here, and its connection is kept elsewhere
//! under the same number. A client for several keys is in the queue of each with the same ticket, so no other client overtakes it.

mod unverified;

use super::limits::{NamedLimitChange, NamedLimits};
use super::state::{Acquire, LockKind, RequestedMode, Watchdog};
use crate::waiting::{Key, Scan, ScanStep, Ticket, WaitQueues};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use unverified::Recheck;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub(super) use unverified::Changes;

/// Tickets of ordinary waiters start here; below are those of upgrades, which go first.
const FIRST_ORDINARY: Ticket = 1 << 32;

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// An acquisition.
    Acquire(RequestedMode),
    /// To turn its shared hold into the exclusive one.
    Upgrade,
}

/// A client that is not blocked while its request waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The channel on which the end of the wait is published.
    pub channel: Arc<[u8]>,
    /// The client id of the connection that asked last. The request waits as long as this connection lives.
    pub client: u64,
}

/// A waiting client.
#[derive(Debug, Clone)]
pub struct LockWaiter {
    /// The keys, all in one database; several only for exclusive locks and for semaphores.
    pub keys: Vec<Key>,
    /// The limits of several semaphores, one for each key; empty: what it waits for names the limit.
    pub limits: Box<[u64]>,
    /// Whether its command takes several keys and replies with an array of fences.
    pub takes_many: bool,
    /// The owner on whose behalf it waits.
    pub owner: Box<[u8]>,
    /// What it waits for.
    pub want: Want,
    /// The lease in milliseconds that starts when it is served.
    pub lease: u64,
    /// The request's id.
    pub id: Option<Box<[u8]>>,
    /// How the hold is to be renewed, if at all.
    pub watch: Option<Watchdog>,
    /// Who is told of the end of the wait in place of a blocked client.
    pub listener: Option<Listener>,
    /// The keyspace event of its command.
    pub event: &'static CStr,
    /// Since when it waits (Unix ms).
    pub since: u64,
    /// The same in Unix us, for the times in `INFO`.
    pub since_us: u64,
    /// For how many milliseconds it waits; 0: without limit.
    pub timeout: u64,
}

impl LockWaiter {
    /// Until when it waits (Unix ms); `None`: without limit.
    pub fn deadline(&self) -> Option<u64> {
        (self.timeout > 0).then(|| self.since + self.timeout)
    }

    /// Whether it waits to acquire a lock, not a semaphore.
    pub(super) fn wants_lock(&self) -> bool {
        matches!(
            self.want,
            Want::Acquire(RequestedMode::Exclusive | RequestedMode::Shared)
        )
    }

    /// The type of its keys.
    pub fn kind(&self) -> LockKind {
        match self.permits() {
            Some(_) => LockKind::Semaphore,
            None => LockKind::Lock,
        }
    }

    /// Whether it wants to share a lock.
    pub fn is_shared(&self) -> bool {
        self.want == Want::Acquire(RequestedMode::Shared)
    }

    /// The permits that it asks for at each of its keys, if these are semaphores.
    pub fn permits(&self) -> Option<u64> {
        match self.want {
            Want::Acquire(RequestedMode::Permits { count, .. }) => Some(count),
            _ => None,
        }
    }

    /// The permits that it asks for at the key with this index, and the limit that it names for it.
    pub fn permits_at(&self, index: usize) -> Option<(u64, u64)> {
        match self.want {
            Want::Acquire(RequestedMode::Permits { count, limit }) => {
                Some((count, self.limits.get(index).copied().unwrap_or(limit)))
            }
            _ => None,
        }
    }

    /// Whether this client repeats the request of the other one. A repetition may name another lease, time or limit.
    fn repeats(&self, other: &LockWaiter) -> bool {
        let is_same_want = match (self.want, other.want) {
            (
                Want::Acquire(RequestedMode::Permits { count, .. }),
                Want::Acquire(RequestedMode::Permits { count: same, .. }),
            ) => count == same,
            (one, other) => one == other,
        };
        self.id.is_some()
            && is_same_want
            && self.id == other.id
            && self.owner == other.owner
            && self.takes_many == other.takes_many
            && self.keys == other.keys
    }

    /// A hash by which a repetition of its request is found, if it has an id.
    fn fingerprint(&self) -> Option<u128> {
        let id = self.id.as_ref()?;
        let (kind, count) = match self.want {
            Want::Acquire(RequestedMode::Exclusive) => (u8::from(self.takes_many), 0),
            Want::Acquire(RequestedMode::Shared) => (2, 0),
            Want::Acquire(RequestedMode::Permits { count, .. }) => {
                (3 + u8::from(self.takes_many), count)
            }
            Want::Upgrade => return None,
        };
        let mut hash = Xxh3::new();
        hash.update(&[kind]);
        hash.update(&count.to_le_bytes());
        hash.update(&self.keys[0].0.to_le_bytes());
        let names = [id, &self.owner].into_iter().map(|name| &**name);
        for name in names.chain(self.keys.iter().map(|(_, key)| &**key)) {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        Some(hash.digest128())
    }
}

/// The queue of one key.
#[derive(Debug, Default)]
struct LockQueue {
    tickets: BTreeSet<Ticket>,
    /// Those of them that want a lock exclusively.
    unshared: BTreeSet<Ticket>,
    /// The entangled ones: they also wait for something else, or their owners do.
    entangled: BTreeSet<Ticket>,
    /// The entangled ones with the numbers of their owners.
    of_owners: BTreeSet<(u64, Ticket)>,
    /// Those of them whose wait can end because their owners enter the lock again.
    reentering: BTreeSet<Ticket>,
    /// Those of them with ids, by a hash of the id.
    ids: BTreeSet<(u64, Ticket)>,
    /// The limits that clients named for a semaphore, and the permits that they ask for.
    limits: NamedLimits,
}

/// How a client leaves its queues.
#[derive(Debug, Clone, Copy)]
enum LeaveReason<'a> {
    /// It has only just joined them, and nothing else has changed.
    Withdrawn,
    /// It was granted nothing.
    Refused,
    /// It was granted its keys. At the keys with these indices, in order, the request only repeated an acquisition.
    Granted(&'a [usize]),
}

impl LeaveReason<'_> {
    /// Whether it was granted permits of the semaphore at the key with this index.
    fn grants(self, index: usize) -> bool {
        matches!(self, Self::Granted(repeated) if repeated.binary_search(&index).is_err())
    }
}

/// A client in the queues.
#[derive(Debug)]
struct QueuedWaiter {
    waiter: Arc<LockWaiter>,
    owner: u64,
    /// The numbers of the queues of its keys.
    queues: Box<[u64]>,
    /// How many waited before it since the server started.
    arrival: u64,
    /// When it is tried again, because a hold that it waits for ends then (Unix ms).
    retry_at: Option<u64>,
    /// The index of the key that it waited for when it was tried last.
    blocked_on: usize,
    /// The number of the limits that it named.
    naming: u64,
    /// Whether it named a limit that leaves less to others that wait.
    leaves_less: bool,
}

/// An owner on whose behalf clients wait.
#[derive(Debug)]
struct Owner {
    name: Arc<[u8]>,
    tickets: BTreeSet<Ticket>,
}

/// All queues of a server.
#[derive(Debug)]
pub struct Queues {
    waiters: BTreeMap<Ticket, QueuedWaiter>,
    queues: WaitQueues<LockQueue>,
    owner_numbers: BTreeMap<Arc<[u8]>, u64>,
    owners: BTreeMap<u64, Owner>,
    /// The waiters with ids.
    requests: BTreeMap<u128, Ticket>,
    /// The waiters that are not blocked, by the client ids of their connections.
    listeners: BTreeSet<(u64, Ticket)>,
    /// Waiters of whom it is not known yet whether their waiting can end, by their arrival.
    unverified: BTreeMap<u64, Ticket>,
    /// The numbers of queues whose clients are all to be checked again.
    rechecks: BTreeMap<u64, Recheck>,
    /// Scans through queues whose clients are all to be checked again.
    recheck_scans: Vec<Scan>,
    changes: Option<Changes>,
    /// How many keys all waiters wait for, each counted for each of them.
    waited_keys: usize,
    last_owner: u64,
    last_arrival: u64,
    last_naming: u64,
    next_ordinary: Ticket,
    next_upgrade: Ticket,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            queues: WaitQueues::default(),
            owner_numbers: BTreeMap::new(),
            owners: BTreeMap::new(),
            requests: BTreeMap::new(),
            listeners: BTreeSet::new(),
            unverified: BTreeMap::new(),
            rechecks: BTreeMap::new(),
            recheck_scans: Vec::new(),
            changes: None,
            waited_keys: 0,
            last_owner: 0,
            last_arrival: 0,
            last_naming: 0,
            next_ordinary: FIRST_ORDINARY,
            next_upgrade: 0,
        }
    }
}

impl Queues {
    /// Begins to index the queues by hash slot.
    pub fn index_slots(&mut self) {
        self.queues.index_slots();
    }

    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many pairs of a waiter and a key there are.
    pub fn waited_keys(&self) -> usize {
        self.waited_keys
    }

    /// Puts a client at the end of its keys' queues, an upgrade in front.
    pub fn push(&mut self, waiter: LockWaiter) -> Ticket {
        let next = match waiter.want {
            Want::Upgrade => &mut self.next_upgrade,
            Want::Acquire(_) => &mut self.next_ordinary,
        };
        let ticket = *next;
        *next += 1;
        self.last_naming += 1;
        let naming = self.last_naming;
        let mut leaves_less = false;
        let queues = waiter.keys.iter().enumerate().map(|(index, key)| {
            let (number, queue) = self.queues.get_or_create(key);
            queue.tickets.insert(ticket);
            if let Some((count, limit)) = waiter.permits_at(index) {
                let change = queue.limits.join(naming, count, limit);
                leaves_less |= change.may_leave_less;
                record_limit(&mut self.changes, number, change);
            } else if !waiter.is_shared() {
                queue.unshared.insert(ticket);
            }
            if let Some(id) = &waiter.id {
                queue.ids.insert((xxh3_64(id), ticket));
            }
            number
        });
        let queues = queues.collect();
        self.waited_keys += waiter.keys.len();
        let owner = self.owner_of(&waiter, ticket);
        if let Some(fingerprint) = waiter.fingerprint() {
            self.requests.insert(fingerprint, ticket);
        }
        if let Some(listener) = &waiter.listener {
            self.listeners.insert((listener.client, ticket));
        }
        self.last_arrival += 1;
        let entry = QueuedWaiter {
            waiter: Arc::new(waiter),
            owner,
            queues,
            arrival: self.last_arrival,
            retry_at: None,
            blocked_on: 0,
            naming,
            leaves_less,
        };
        let waits_for_more = entry.waiter.keys.len() > 1;
        self.waiters.insert(ticket, entry);
        let tickets = &self.owners[&owner].tickets;
        let others = tickets.iter().find(|other| **other != ticket).copied();
        if let Some(other) = others {
            self.entangle(ticket);
            if tickets_are(&self.owners[&owner].tickets, 2) {
                self.entangle(other); // with more, all are already
            }
        } else if waits_for_more {
            self.entangle(ticket);
        }
        ticket
    }

    /// The number of the owner of a client, which waits with this ticket as well.
    fn owner_of(&mut self, waiter: &LockWaiter, ticket: Ticket) -> u64 {
        let number = match self.owner_numbers.get(&waiter.owner[..]) {
            Some(number) => *number,
            None => {
                self.last_owner += 1;
                let name: Arc<[u8]> = waiter.owner[..].into();
                self.owner_numbers.insert(name.clone(), self.last_owner);
                let tickets = BTreeSet::new();
                self.owners.insert(self.last_owner, Owner { name, tickets });
                self.last_owner
            }
        };
        if let Some(owner) = self.owners.get_mut(&number) {
            owner.tickets.insert(ticket);
        }
        number
    }

    fn entangle(&mut self, ticket: Ticket) {
        let Some(entry) = self.waiters.get(&ticket) else {
            return;
        };
        for number in &entry.queues {
            if let Some(queue) = self.queues.numbered_mut(*number) {
                queue.entangled.insert(ticket);
                queue.of_owners.insert((entry.owner, ticket));
            }
        }
    }

    fn disentangle(&mut self, ticket: Ticket) {
        let Some(entry) = self.waiters.get(&ticket) else {
            return;
        };
        for number in &entry.queues {
            if let Some(queue) = self.queues.numbered_mut(*number) {
                queue.entangled.remove(&ticket);
                queue.of_owners.remove(&(entry.owner, ticket));
            }
        }
    }

    /// The client whose request this one repeats.
    pub fn repeated_by(&self, waiter: &LockWaiter) -> Option<Ticket> {
        let ticket = *self.requests.get(&waiter.fingerprint()?)?;
        let first = self.get(ticket)?;
        waiter.repeats(first).then_some(ticket)
    }

    /// Puts a client in the position of the one whose request it repeats. Returns that one.
    pub fn replace(&mut self, ticket: Ticket, waiter: LockWaiter) -> Option<Arc<LockWaiter>> {
        let entry = self.waiters.get_mut(&ticket)?;
        self.last_naming += 1;
        let before = std::mem::replace(&mut entry.naming, self.last_naming);
        for (index, number) in entry.queues.iter().enumerate() {
            if let Some((_, limit)) = waiter.permits_at(index)
                && let Some(queue) = self.queues.numbered_mut(*number)
            {
                let change = queue.limits.repeat(before, entry.naming, limit);
                record_limit(&mut self.changes, *number, change);
                if change.may_leave_less || change.may_mislead_search && self.changes.is_some() {
                    self.rechecks.entry(*number).or_default();
                }
            }
        }
        if let Some(listener) = &entry.waiter.listener {
            self.listeners.remove(&(listener.client, ticket));
        }
        if let Some(listener) = &waiter.listener {
            self.listeners.insert((listener.client, ticket));
        }
        Some(std::mem::replace(&mut entry.waiter, Arc::new(waiter)))
    }

    /// Removes a client that has only just joined. The queues are again what they were.
    pub fn withdraw(&mut self, ticket: Ticket) {
        self.take(ticket, LeaveReason::Withdrawn);
    }

    /// Removes a client without a grant from all its queues. Its limits no longer count.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Arc<LockWaiter>> {
        self.take(ticket, LeaveReason::Refused)
    }

    /// Removes a client from all its queues after its grant. `repeated`: the indices, in order, of the keys at which the request
    /// repeated an acquisition.
    pub fn remove_granted(
        &mut self,
        ticket: Ticket,
        repeated: &[usize],
    ) -> Option<Arc<LockWaiter>> {
        self.take(ticket, LeaveReason::Granted(repeated))
    }

    fn take(&mut self, ticket: Ticket, reason: LeaveReason<'_>) -> Option<Arc<LockWaiter>> {
        if !self.waiters.contains_key(&ticket) {
            return None;
        }
        self.disentangle(ticket);
        let entry = self.waiters.remove(&ticket)?;
        let waiter = entry.waiter;
        for (index, number) in entry.queues.iter().enumerate() {
            let Some(queue) = self.queues.numbered_mut(*number) else {
                continue;
            };
            queue.tickets.remove(&ticket);
            queue.unshared.remove(&ticket);
            queue.reentering.remove(&ticket);
            if let Some(id) = &waiter.id {
                queue.ids.remove(&(xxh3_64(id), ticket));
            }
            if let Some(count) = waiter.permits() {
                if reason.grants(index) {
                    queue.limits.grant(entry.naming, count);
                } else {
                    let change = queue.limits.leave(entry.naming, count);
                    record_limit(&mut self.changes, *number, change);
                    if change.may_leave_less && !matches!(reason, LeaveReason::Withdrawn) {
                        self.rechecks.entry(*number).or_default();
                    }
                }
            }
            if queue.tickets.is_empty() {
                self.queues.remove(*number);
            }
        }
        if let Some(listener) = &waiter.listener {
            self.listeners.remove(&(listener.client, ticket));
        }
        self.waited_keys -= entry.queues.len();
        self.unverified.remove(&entry.arrival);
        if let Some(fingerprint) = waiter.fingerprint()
            && self.requests.get(&fingerprint) == Some(&ticket)
        {
            self.requests.remove(&fingerprint);
        }
        if let Some(changes) = &mut self.changes {
            changes.gone.push((ticket, entry.queues));
        }
        let Some(owner) = self.owners.get_mut(&entry.owner) else {
            return Some(waiter);
        };
        owner.tickets.remove(&ticket);
        if owner.tickets.is_empty() {
            self.owner_numbers.remove(&waiter.owner[..]);
            self.owners.remove(&entry.owner);
        } else if tickets_are(&owner.tickets, 1)
            && let Some(last) = owner.tickets.first().copied()
            && self.waiters[&last].queues.len() == 1
        {
            self.disentangle(last);
        }
        Some(waiter)
    }

    /// A waiter.
    pub fn get(&self, ticket: Ticket) -> Option<&Arc<LockWaiter>> {
        self.waiters.get(&ticket).map(|entry| &entry.waiter)
    }

    /// The first waiter for locks or for semaphores in a key's queue whose request has this id.
    pub fn with_id(&self, (db, key): &Key, kind: LockKind, id: &[u8]) -> Option<Ticket> {
        let hash = xxh3_64(id);
        let queue = self.queues.get(*db, key)?;
        let tickets = queue.ids.range((hash, 0)..=(hash, Ticket::MAX));
        tickets.map(|(_, ticket)| *ticket).find(|ticket| {
            let waiter = self.get(*ticket);
            waiter.is_some_and(|waiter| waiter.id.as_deref() == Some(id) && waiter.kind() == kind)
        })
    }

    /// The first waiter of a connection that is not blocked.
    pub fn first_of_listener(&self, client: u64) -> Option<Ticket> {
        let range = (client, 0)..=(client, Ticket::MAX);
        self.listeners
            .range(range)
            .next()
            .map(|(_, ticket)| *ticket)
    }

    /// When a client is tried again (Unix ms), if a hold that it waits for ends by itself.
    pub fn retry_at(&self, ticket: Ticket) -> Option<u64> {
        self.waiters.get(&ticket)?.retry_at
    }

    /// Sets when a client is tried again, and returns the time that was set before.
    pub fn set_retry(&mut self, ticket: Ticket, at: Option<u64>) -> Option<u64> {
        let entry = self.waiters.get_mut(&ticket)?;
        std::mem::replace(&mut entry.retry_at, at)
    }

    /// The index of the key that a client waited for when it was tried last.
    pub fn blocked_on(&self, ticket: Ticket) -> usize {
        self.waiters
            .get(&ticket)
            .map_or(0, |entry| entry.blocked_on)
    }

    /// Sets the index of the key that a client waits for.
    pub fn set_blocked_on(&mut self, ticket: Ticket, index: usize) {
        if let Some(entry) = self.waiters.get_mut(&ticket) {
            entry.blocked_on = index;
        }
    }

    /// Whether the first client of a key's queue is tried again when a hold ends.
    pub fn has_retry(&self, db: i32, key: &[u8]) -> bool {
        let head = self.head(db, key);
        head.is_some_and(|head| self.retry_at(head).is_some())
    }

    /// The first in a key's queue.
    pub fn head(&self, db: i32, key: &[u8]) -> Option<Ticket> {
        self.queues.get(db, key)?.tickets.first().copied()
    }

    /// Whether any client waits for this key.
    pub fn waits_for(&self, db: i32, key: &[u8]) -> bool {
        !self.queues.is_empty() && self.queues.number(db, key).is_some()
    }

    /// The waiters of a key, in order.
    pub fn waiters_of(&self, db: i32, key: &[u8]) -> impl Iterator<Item = (Ticket, &LockWaiter)> {
        let queue = self.queues.get(db, key).into_iter();
        queue
            .flat_map(|queue| queue.tickets.iter())
            .filter_map(|ticket| Some((*ticket, &**self.get(*ticket)?)))
    }

    /// The limit in force: the newest limit of the clients that wait, or were granted permits while others waited. `None`: no client
    /// waits for permits, and the stored limit of the semaphore is in force.
    pub fn limit(&self, db: i32, key: &[u8]) -> Option<u64> {
        self.queues.get(db, key)?.limits.in_force()
    }

    /// The acquisition that a waiter asks for at its key with this index; `queued`: others are ahead of it. The limit of a semaphore
    /// is the one in force, but never less than what its permits need: a lowered limit must not make a waiter wait forever.
    pub(super) fn request<'w>(
        &self,
        ticket: Ticket,
        waiter: &'w LockWaiter,
        index: usize,
        queued: bool,
    ) -> Acquire<'w> {
        let (mut mode, mut kept_limit) = match waiter.want {
            Want::Acquire(mode) => (mode, None),
            Want::Upgrade => (RequestedMode::Exclusive, None),
        };
        if let Some((count, own)) = waiter.permits_at(index) {
            let (db, key) = &waiter.keys[index];
            let queue = self.queues.get(*db, key);
            let limit = queue.map_or(own, |queue| queue.limits.limit(count, own));
            mode = RequestedMode::Permits { count, limit };
            kept_limit = queue
                .zip(self.waiters.get(&ticket))
                .map(|(queue, entry)| queue.limits.stored_limit(entry.naming, own));
        }
        Acquire {
            owner: &waiter.owner,
            mode,
            kept_limit,
            lease: waiter.lease,
            id: waiter.id.as_deref(),
            watch: waiter.watch,
            channel: waiter.listener.as_ref().map(|listener| &*listener.channel),
            queued,
        }
    }

    /// Whether any client waits on behalf of this owner.
    pub fn owner_waits(&self, owner: &[u8]) -> bool {
        self.owner_numbers.contains_key(owner)
    }

    /// An owner's first waiter for a key behind `ticket`.
    pub fn next_of_owner(&self, (db, key): &Key, owner: &[u8], ticket: Ticket) -> Option<Ticket> {
        let owner = *self.owner_numbers.get(owner)?;
        let number = self.queues.number(*db, key)?;
        // The only waiter of an owner is not listed if it waits for one key.
        let tickets = &self.owners.get(&owner)?.tickets;
        if tickets_are(tickets, 1) {
            let only = *tickets.first()?;
            let waits_here = self.waiters.get(&only)?.queues.contains(&number);
            return (waits_here && only > ticket).then_some(only);
        }
        let (_, queue) = self.queues.numbered(number)?;
        let range = (Excluded((owner, ticket)), Included((owner, Ticket::MAX)));
        queue.of_owners.range(range).next().map(|(_, next)| *next)
    }

    /// The next waiter for a key behind `ticket`, which may have left.
    pub fn next_behind(&self, (db, key): &Key, ticket: Ticket) -> Option<Ticket> {
        let tickets = &self.queues.get(*db, key)?.tickets;
        let mut behind = tickets.range((Excluded(ticket), Unbounded));
        behind.next().copied()
    }

    /// A scan through the queues of a database; `None`: of all databases.
    pub fn scan(&self, db: Option<i32>) -> Scan {
        Scan::through(&self.queues, db)
    }

    /// The next key of a scan; see [`Scan::step`].
    pub fn next_scanned(&self, scan: &mut Scan) -> Option<ScanStep> {
        scan.step(&self.queues)
    }

    /// In a cluster, the hash slots of the keys that clients wait for.
    pub fn slots(&self) -> Vec<u16> {
        self.queues.slots()
    }

    /// In a cluster, queues of a slot; see [`WaitQueues::of_slot`].
    pub fn of_slot(&self, slot: u16, after: u64, most: usize) -> Vec<(u64, Key)> {
        self.queues.of_slot(slot, after, most)
    }

    /// Every key that clients wait for.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.queues.keys()
    }

    /// How many keys are waited for.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }
}

/// If the limit in force has changed, records this for the search.
fn record_limit(changes: &mut Option<Changes>, queue: u64, change: NamedLimitChange) {
    if let Some(changes) = changes
        && change.has_changed
    {
        changes.limits.insert(queue);
    }
}

fn tickets_are(tickets: &BTreeSet<Ticket>, number: usize) -> bool {
    tickets.len() == number
}

/// The first ticket after one, before another.
fn ticket_between(
    tickets: &BTreeSet<Ticket>,
    after: Option<Ticket>,
    before: Ticket,
) -> Option<Ticket> {
    if after >= Some(before) {
        return None;
    }
    let after = after.map_or(Unbounded, Excluded);
    tickets.range((after, Excluded(before))).next().copied()
}
