//! Random histories of a cache against a naive model: entries, leases and queues together. The commands, time, the server's
//! own changes of keys and disconnects act on the state machines as the module lets them act, without a server.

use std::collections::BTreeMap;

use super::model::{Model, START};
use proptest::prelude::*;
use sluice::cache::lease::{LeaseRequest, LeaseStatus, Leases};
use sluice::cache::rebuilds::{Rebuilds, WaitingFetch};
use sluice::cache::state::{
    CacheEntry, EarlyRefresh, EntryKind, EntryVersion, Freshness, Invalidation, InvalidationChange,
    decide_invalidation,
};
use sluice::cache::step::{
    FetchReply, FetchRequest, FetchState, RETRY_MS, StoreRequest, decide_fetch, decide_store,
};
use sluice::key_queues::{HeadStep, KeyWaiter, QueueDeadline};

const KEYS: u8 = 3;

/// The token of a request.
#[derive(Debug, Clone, Copy)]
enum Proof {
    None,
    /// The token of the key's last lease.
    Last,
    /// The token of the key's first lease.
    First,
    /// A token of no lease.
    Wrong,
}

#[derive(Debug, Clone)]
enum Event {
    Fetch {
        key: u8,
        lease: u64,
        early: u64,
        slide: u64,
        is_absent: bool,
        block: Option<u64>,
    },
    Set {
        key: u8,
        value: Option<u8>,
        fresh: u64,
        stale: u64,
        proof: Proof,
        version: Option<u64>,
    },
    Del {
        key: u8,
        stale: u64,
        grace: u64,
        version: Option<u64>,
    },
    Fail {
        key: u8,
        proof: Proof,
        backoff: u64,
    },
    /// A command of the server deletes the key.
    Remove {
        key: u8,
    },
    /// A client leaves while it waits, or before its reply is sent.
    Disconnect {
        client: usize,
    },
    /// The server sends the replies of all clients that were served.
    Send,
    /// Time passes. Perhaps the server looks for expired keys.
    Pass {
        ms: u64,
        sweeps: bool,
    },
    /// Time passes, and the server is too busy to handle deadlines.
    Stall {
        ms: u64,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    let key = || 0..KEYS;
    let time = || prop_oneof![Just(0u64), 0..60u64];
    let version = || proptest::option::of(0..4u64);
    let proof = || {
        prop_oneof![
            2 => Just(Proof::None),
            4 => Just(Proof::Last),
            1 => Just(Proof::First),
            1 => Just(Proof::Wrong),
        ]
    };
    let block = prop_oneof![1 => Just(None), 2 => Just(Some(0)), 2 => (1..80u64).prop_map(Some)];
    let slide = prop_oneof![3 => Just(0u64), 1 => 1..60u64];
    let is_absent = proptest::bool::weighted(0.1);
    prop_oneof![
        8 => (key(), 1..60u64, time(), slide, is_absent, block).prop_map(
            |(key, lease, early, slide, is_absent, block)| Event::Fetch {
                key, lease, early, slide, is_absent, block,
            }
        ),
        4 => (key(), proptest::option::of(any::<u8>()), 1..60u64, time(), proof(), version())
            .prop_map(|(key, value, fresh, stale, proof, version)| Event::Set {
                key, value, fresh, stale, proof, version,
            }),
        2 => (key(), time(), time(), version())
            .prop_map(|(key, stale, grace, version)| Event::Del { key, stale, grace, version }),
        2 => (key(), proof(), time())
            .prop_map(|(key, proof, backoff)| Event::Fail { key, proof, backoff }),
        1 => key().prop_map(|key| Event::Remove { key }),
        2 => (0..12usize).prop_map(|client| Event::Disconnect { client }),
        1 => Just(Event::Send),
        5 => (0..50u64, any::<bool>()).prop_map(|(ms, sweeps)| Event::Pass { ms, sweeps }),
        1 => (0..50u64).prop_map(|ms| Event::Stall { ms }),
    ]
}

/// A reply to a client: its state, the value, and a time or the number of a grant.
type Seen = (FetchState, Option<Option<u8>>, Number);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Ms(u64),
    /// The number of a lease, counted from 0.
    Grant(usize),
}

// The subject: the module's state machines behind a keyspace.

struct Subject {
    now: u64,
    rebuilds: Rebuilds,
    /// The entries, and when their keys expire.
    entries: BTreeMap<u8, (CacheEntry, u64)>,
    /// The keys whose queues are to be served.
    agenda: Vec<u8>,
    max_leases: usize,
    /// The key and the token of each lease.
    grants: Vec<(u8, u64)>,
    /// The replies to waiting clients.
    replies: Vec<(u64, Seen)>,
}

impl Subject {
    fn lease(&self, length_ms: u64) -> LeaseRequest<'static> {
        LeaseRequest {
            length_ms,
            now_us: self.now * 1000,
            max_leases: self.max_leases,
            breaker: None,
            max_breakers: 0,
        }
    }

    /// The entry's key goes: the value's callback revokes the lease.
    fn remove(&mut self, key: u8) {
        self.entries.remove(&key);
        self.rebuilds.leases.revoke(0, &[key]);
        if self.rebuilds.queue.waiting(0, &[key]) > 0 {
            self.agenda.push(key);
        }
    }

    /// The server removes an expired key when a command opens it.
    fn open(&mut self, key: u8) {
        let entry = self.entries.get(&key);
        if entry.is_some_and(|(_, expires)| *expires < self.now) {
            self.remove(key);
        }
    }

    fn freshness(&self, key: u8) -> Freshness {
        let entry = self.entries.get(&key);
        entry.map_or(Freshness::Missing, |(entry, expires)| {
            entry.freshness(self.now, || Some(*expires))
        })
    }

    fn remove_if_expired(&mut self, key: u8) {
        let freshness = self.freshness(key);
        let entry = self.entries.get(&key);
        if entry.is_some_and(|(entry, _)| entry.is_expired(freshness, self.now)) {
            self.remove(key);
        }
    }

    fn seen(&mut self, key: u8, reply: FetchReply) -> Seen {
        let value = self.entries.get(&key).map(|(entry, _)| entry.value());
        let value = value.filter(|_| reply.has_value);
        let number = match reply.token() {
            Some(token) => {
                assert!(self.grants.iter().all(|(_, other)| *other != token));
                self.grants.push((key, token));
                Number::Grant(self.grants.len() - 1)
            }
            None => Number::Ms(reply.n),
        };
        (
            reply.state,
            value.map(|value| value.map(|bytes| bytes[0])),
            number,
        )
    }

    /// Serves the clients of a key as far as possible.
    fn serve(&mut self, key: u8) {
        while self.rebuilds.queue.waiting(0, &[key]) > 0 {
            self.open(key);
            let freshness = self.freshness(key);
            if freshness == Freshness::Missing {
                self.remove_if_expired(key);
            }
            let lease = self.lease(0);
            let entry = self.entries.get(&key).map(|(entry, _)| entry);
            let step = self
                .rebuilds
                .serve_head(&(0, [key].into()), entry, freshness, &lease);
            match step {
                HeadStep::Empty | HeadStep::Waits(_) => return,
                HeadStep::TimedOut(ticket) => self.time_out(ticket),
                HeadStep::Served(ticket, reply) => {
                    let seen = self.seen(key, reply);
                    self.replies.push((ticket, seen));
                }
            }
        }
    }

    fn run_deferred(&mut self) {
        while !self.agenda.is_empty() {
            let key = self.agenda.remove(0);
            self.serve(key);
        }
    }

    fn token(&self, key: u8, proof: Proof) -> Option<u64> {
        let mut tokens = self.grants.iter().filter(|(of, _)| *of == key);
        match proof {
            Proof::None => None,
            Proof::Last => Some(tokens.next_back().map_or(1, |(_, token)| *token)),
            Proof::First => Some(tokens.next().map_or(1, |(_, token)| *token)),
            Proof::Wrong => Some(7),
        }
    }

    /// The reply, or the ticket of a client that waits.
    fn fetch(&mut self, key: u8, request: &FetchRequest, block: Option<u64>) -> Result<Seen, u64> {
        self.open(key);
        let freshness = self.freshness(key);
        if freshness == Freshness::Missing {
            self.remove_if_expired(key);
        }
        let lease = self.lease(request.lease_ms);
        let entry = self.entries.get(&key).map(|(entry, _)| entry);
        let leases = &mut self.rebuilds.leases;
        let offer = || leases.offer(0, &[key], &lease);
        let step = decide_fetch(entry, freshness, request, || panic!("no draw"), offer);
        if step.slides
            && let Some((entry, expires)) = self.entries.get_mut(&key)
        {
            let later = entry.slide(request.slide_ms, self.now, Some(*expires));
            *expires = later.unwrap_or(*expires);
        }
        if let Some(block) = block
            && step.reply.must_wait()
        {
            let retry_at = self.now + step.reply.n;
            let queue = &mut self.rebuilds.queue;
            let ticket = queue.push(KeyWaiter {
                key: (0, [key].into()),
                since_us: self.now * 1000,
                deadline: (block > 0).then(|| self.now + block),
                request: WaitingFetch {
                    lease_ms: request.lease_ms,
                    breaker: None,
                },
            });
            queue.set_retry(0, &[key], Some(retry_at));
            return Err(ticket);
        }
        Ok(self.seen(key, step.reply))
    }

    fn set(&mut self, key: u8, request: &StoreRequest, value: Option<u8>) -> bool {
        self.open(key);
        self.remove_if_expired(key);
        let lease = self.rebuilds.leases.get(0, &[key]).copied();
        let entry = self.entries.get(&key).map(|(entry, _)| entry);
        let now_us = self.now * 1000;
        let step = decide_store(entry, lease.as_ref(), request, now_us, || panic!("no draw"));
        if let Ok(new) = &step.admitted {
            let entry = self.entries.entry(key);
            let (entry, expires) = entry.or_insert_with(|| (CacheEntry::tombstone(), 0));
            let bytes: Vec<u8> = value.into_iter().collect();
            *expires = entry.store(new, &bytes, self.now);
        }
        if step.ends_lease {
            self.rebuilds.leases.remove(0, &[key]);
            self.serve(key);
        }
        step.admitted.is_ok()
    }

    fn del(&mut self, key: u8, request: &Invalidation) -> bool {
        self.open(key);
        self.remove_if_expired(key);
        let found = self.entries.get(&key);
        let (entry, expires) = (found.map(|(entry, _)| entry), found.map(|(_, at)| *at));
        let (existed, change) = decide_invalidation(entry, expires, request, self.now);
        match change {
            InvalidationChange::Unchanged => {}
            InvalidationChange::Delete => self.remove(key),
            InvalidationChange::Mark(mark) => {
                let entry = self.entries.entry(key);
                let (entry, expires) = entry.or_insert_with(|| (CacheEntry::tombstone(), 0));
                entry.invalidate(&mark);
                *expires = mark.expires();
            }
        }
        self.rebuilds.leases.revoke(0, &[key]);
        self.serve(key);
        existed
    }

    fn fail(&mut self, key: u8, token: u64, backoff: u64) -> bool {
        self.open(key);
        let (now, most) = (self.now, self.max_leases);
        let was_current = self.rebuilds.fail((0, &[key]), token, backoff, now, most);
        if was_current {
            self.serve(key);
        }
        was_current
    }

    fn disconnect(&mut self, ticket: u64) {
        if self.rebuilds.queue.remove(ticket).is_none() {
            self.rebuilds.queue.not_sent(ticket);
        }
        while let Some((key, token)) = self.rebuilds.queue.next_undelivered() {
            self.rebuilds.take_back(&key, token);
            let (_, key) = key;
            self.agenda.push(key[0]);
        }
    }

    fn send(&mut self) {
        for (ticket, _) in &self.replies {
            self.rebuilds.queue.sent(*ticket);
        }
    }

    fn time_out(&mut self, ticket: u64) {
        let waiter = self.rebuilds.queue.remove(ticket).expect("it waits");
        let reply = self.rebuilds.timeout_reply(&waiter.key, self.now);
        let seen = (reply.state, None, Number::Ms(reply.n));
        self.replies.push((ticket, seen));
    }

    fn pass(&mut self, ms: u64, sweeps: bool) {
        let end = self.now + ms;
        while let Some(at) = self.rebuilds.queue.next_deadline()
            && at <= end
        {
            self.now = self.now.max(at);
            match self.rebuilds.queue.pop_deadline() {
                Some(QueueDeadline::Timeout(ticket)) => self.time_out(ticket),
                Some(QueueDeadline::Retry((_, key))) => self.serve(key[0]),
                None => panic!("there is a deadline"),
            }
            self.run_deferred();
        }
        self.now = end;
        for key in 0..KEYS {
            if sweeps {
                self.open(key);
            }
        }
    }
}

// The model: lists of leases and waiting clients, and the contract of an entry.

#[derive(Debug, Clone, Copy)]
struct ModelLease {
    key: u8,
    grant: usize,
    since: u64,
    until: u64,
    is_backoff: bool,
}

#[derive(Debug, Clone, Copy)]
struct ModelWaiter {
    key: u8,
    ticket: u64,
    lease: u64,
    deadline: Option<u64>,
}

struct World {
    now: u64,
    entries: Vec<Model>,
    leases: Vec<ModelLease>,
    /// In the order of their arrival.
    waiters: Vec<ModelWaiter>,
    retry_at: [Option<u64>; KEYS as usize],
    /// The leases of clients whose replies have not been sent.
    unsent: Vec<(u64, u8, usize)>,
    agenda: Vec<u8>,
    max_leases: usize,
    grants: Vec<u8>,
    replies: Vec<(u64, Seen)>,
}

impl World {
    fn entry(&mut self, key: u8) -> &mut Model {
        &mut self.entries[usize::from(key)]
    }

    fn end(&mut self, key: u8) -> u64 {
        let entry = self.entry(key);
        entry
            .stale_until
            .max(entry.fresh_until)
            .max(entry.grace_until)
    }

    fn revoke(&mut self, key: u8) {
        self.leases
            .retain(|lease| lease.key != key || lease.is_backoff);
    }

    fn remove(&mut self, key: u8) {
        *self.entry(key) = Model::default();
        self.revoke(key);
        self.agenda.push(key);
    }

    /// An entry whose time is up goes. `early`: also in the millisecond in which it expires.
    fn touch(&mut self, key: u8, early: bool) {
        let (end, now) = (self.end(key), self.now);
        if self.entry(key).was_there() && (end < now || early && end == now) {
            self.remove(key);
        }
    }

    /// A lease or backoff takes the place of the key's own, or a free place, or that of the one that ended first.
    fn put(&mut self, lease: ModelLease) -> bool {
        let is_other =
            |other: &&ModelLease| other.key != lease.key && other.is_backoff == lease.is_backoff;
        while self.leases.iter().filter(is_other).count() >= self.max_leases {
            let ended = self
                .leases
                .iter()
                .filter(|other| other.is_backoff == lease.is_backoff);
            let ended = ended.filter(|other| other.until <= self.now);
            let Some(first) = ended.min_by_key(|other| (other.until, other.grant)) else {
                return false;
            };
            let key = first.key;
            self.leases.retain(|other| other.key != key);
        }
        self.leases.retain(|other| other.key != lease.key);
        self.leases.push(lease);
        true
    }

    fn lease_of(&self, key: u8) -> Option<ModelLease> {
        self.leases.iter().find(|lease| lease.key == key).copied()
    }

    fn status(&self, key: u8) -> LeaseStatus {
        match self.lease_of(key).filter(|lease| lease.until > self.now) {
            Some(lease) if lease.is_backoff => LeaseStatus::BackingOff(lease.until - self.now),
            Some(lease) => LeaseStatus::Leased(lease.until - self.now),
            None => LeaseStatus::Free,
        }
    }

    fn grant(&mut self, key: u8, ms: u64) -> Option<usize> {
        let grant = self.grants.len();
        let lease = ModelLease {
            key,
            grant,
            since: self.now,
            until: self.now + ms,
            is_backoff: false,
        };
        let is_granted = self.put(lease);
        if is_granted {
            self.grants.push(key);
        }
        is_granted.then_some(grant)
    }

    fn look(&mut self, key: u8, request: &FetchRequest) -> Seen {
        use FetchState::{Absent, Down, Hit, Lease, Null, Stale, Wait};
        let now = self.now;
        let (served, value) = (self.entry(key).is_served(now), self.entry(key).value);
        let left = self.entry(key).fresh_until.saturating_sub(now);
        let shown = served.then_some(value);
        if served && left > 0 {
            if left < request.early()
                && self.status(key) == LeaseStatus::Free
                && let Some(grant) = self.grant(key, request.lease_ms)
            {
                return (Lease, shown, Number::Grant(grant));
            }
            let state = if value.is_some() { Hit } else { Null };
            let slide = request.slide_ms;
            if value.is_some() && slide > 0 && left < slide - slide / 8 {
                self.entry(key).slide(slide, now);
                return (state, shown, Number::Ms(slide));
            }
            return (state, shown, Number::Ms(left));
        }
        if !served && request.is_absent {
            return (Absent, None, Number::Ms(0));
        }
        let busy = if served { Stale } else { Wait };
        match self.status(key) {
            LeaseStatus::Leased(left) => (busy, shown, Number::Ms(left)),
            LeaseStatus::BackingOff(left) => (Down, shown, Number::Ms(left)),
            LeaseStatus::Free => match self.grant(key, request.lease_ms) {
                Some(grant) => (Lease, shown, Number::Grant(grant)),
                None => (busy, shown, Number::Ms(RETRY_MS)),
            },
        }
    }

    /// What a client whose time is up sees: never a free lease.
    fn look_late(&mut self, key: u8) -> Seen {
        let (now, is_free) = (self.now, self.status(key) == LeaseStatus::Free);
        let entry = self.entry(key);
        match (is_free && entry.fresh_until <= now, entry.is_served(now)) {
            (true, true) => (FetchState::Stale, Some(entry.value), Number::Ms(0)),
            (true, false) => (FetchState::Wait, None, Number::Ms(0)),
            _ => self.look(key, &plain(0)),
        }
    }

    fn time_out(&mut self, ticket: u64) {
        let waiter = self.waiters.iter().find(|waiter| waiter.ticket == ticket);
        let left = match self.status(waiter.expect("it waits").key) {
            LeaseStatus::Leased(left) | LeaseStatus::BackingOff(left) => left,
            LeaseStatus::Free => RETRY_MS,
        };
        self.replies
            .push((ticket, (FetchState::Wait, None, Number::Ms(left))));
        self.leave(ticket);
    }

    fn serve(&mut self, key: u8) {
        while let Some(waiter) = self
            .waiters
            .iter()
            .find(|waiter| waiter.key == key)
            .copied()
        {
            self.touch(key, true);
            let is_late = waiter.deadline.is_some_and(|at| at <= self.now);
            let seen = match is_late {
                true => self.look_late(key),
                false => self.look(key, &plain(waiter.lease)),
            };
            if is_late && seen.0 == FetchState::Wait {
                self.time_out(waiter.ticket);
                continue;
            }
            if let (FetchState::Wait, _, Number::Ms(ms)) = seen {
                self.retry_at[usize::from(key)] = Some(self.now + ms);
                return;
            }
            if let Number::Grant(grant) = seen.2 {
                self.unsent.push((waiter.ticket, key, grant));
            }
            self.replies.push((waiter.ticket, seen));
            self.leave(waiter.ticket);
        }
    }

    fn leave(&mut self, ticket: u64) {
        self.waiters.retain(|waiter| waiter.ticket != ticket);
        for key in 0..KEYS {
            if self.waiters.iter().all(|waiter| waiter.key != key) {
                self.retry_at[usize::from(key)] = None;
            }
        }
    }

    fn run_deferred(&mut self) {
        while !self.agenda.is_empty() {
            let key = self.agenda.remove(0);
            self.serve(key);
        }
    }

    /// Whether a proof is that of the key's current lease.
    fn current(&self, key: u8, proof: Proof) -> Option<ModelLease> {
        let mut grants = (0..self.grants.len()).filter(|grant| self.grants[*grant] == key);
        let grant = match proof {
            Proof::Last => grants.next_back(),
            Proof::First => grants.next(),
            Proof::None | Proof::Wrong => None,
        };
        let lease = self.lease_of(key).filter(|lease| !lease.is_backoff);
        lease.filter(|lease| Some(lease.grant) == grant)
    }

    fn set(&mut self, event: &Event) -> bool {
        let &Event::Set {
            key,
            value,
            fresh,
            stale,
            proof,
            version,
        } = event
        else {
            panic!("not a set");
        };
        self.touch(key, true);
        let has_token = !matches!(proof, Proof::None);
        let lease = self.current(key, proof);
        if has_token && lease.is_none() {
            return false;
        }
        let grace_until = self.entry(key).grace_until;
        let is_in_grace = lease.is_some_and(|lease| lease.since < grace_until);
        let is_older = version.is_some() && self.entry(key).version > version;
        let is_stored = !is_in_grace && !is_older;
        if is_stored {
            let now = self.now;
            self.entry(key).store(value, fresh, stale, version, now);
        }
        if is_stored || has_token {
            self.leases.retain(|lease| lease.key != key);
            self.serve(key);
        }
        is_stored
    }

    fn fail(&mut self, key: u8, proof: Proof, backoff: u64) -> bool {
        self.touch(key, false);
        let Some(lease) = self.current(key, proof) else {
            return false;
        };
        self.leases.retain(|lease| lease.key != key);
        if backoff > 0 {
            self.put(ModelLease {
                until: self.now + backoff,
                is_backoff: true,
                ..lease
            });
        }
        self.serve(key);
        true
    }

    fn disconnect(&mut self, ticket: u64) {
        self.leave(ticket);
        if let Some(index) = self.unsent.iter().position(|unsent| unsent.0 == ticket) {
            let (_, key, grant) = self.unsent.remove(index);
            self.leases
                .retain(|lease| lease.is_backoff || lease.grant != grant);
            self.agenda.push(key);
        }
    }

    /// The next deadline: first the timeouts of a millisecond, then the queues that are served again.
    fn next_deadline(&self) -> Option<(u64, Result<u64, u8>)> {
        let timeouts = self.waiters.iter();
        let timeouts = timeouts.filter_map(|waiter| Some((waiter.deadline?, Ok(waiter.ticket))));
        let retries =
            (0..KEYS).filter_map(|key| Some((self.retry_at[usize::from(key)]?, Err(key))));
        timeouts.chain(retries).min()
    }

    fn pass(&mut self, ms: u64, sweeps: bool) {
        let end = self.now + ms;
        while let Some((at, deadline)) = self.next_deadline()
            && at <= end
        {
            self.now = self.now.max(at);
            match deadline {
                Ok(ticket) => self.time_out(ticket),
                Err(key) => {
                    self.retry_at[usize::from(key)] = None;
                    self.serve(key);
                }
            }
            self.run_deferred();
        }
        self.now = end;
        for key in 0..KEYS {
            if sweeps {
                self.touch(key, false);
            }
        }
    }
}

fn plain(lease_ms: u64) -> FetchRequest {
    FetchRequest {
        lease_ms,
        refresh: EarlyRefresh::Off,
        slide_ms: 0,
        is_absent: false,
        is_replica: false,
    }
}

trait Early {
    fn early(&self) -> u64;
}

impl Early for FetchRequest {
    fn early(&self) -> u64 {
        match self.refresh {
            EarlyRefresh::Before(ms) => ms,
            _ => 0,
        }
    }
}

fn history(events: &[Event], max_leases: usize) -> Result<(), TestCaseError> {
    let mut subject = Subject {
        now: START,
        rebuilds: Rebuilds::new(Leases::new(1, 2)),
        entries: BTreeMap::new(),
        agenda: Vec::new(),
        max_leases,
        grants: Vec::new(),
        replies: Vec::new(),
    };
    let mut world = World {
        now: START,
        entries: (0..KEYS).map(|_| Model::default()).collect(),
        leases: Vec::new(),
        waiters: Vec::new(),
        retry_at: [None; KEYS as usize],
        unsent: Vec::new(),
        agenda: Vec::new(),
        max_leases,
        grants: Vec::new(),
        replies: Vec::new(),
    };
    let mut tickets = Vec::new();
    for event in events {
        match *event {
            Event::Fetch {
                key,
                lease,
                early,
                slide,
                is_absent,
                block,
            } => {
                let request = FetchRequest {
                    refresh: EarlyRefresh::Before(early),
                    slide_ms: slide,
                    is_absent,
                    ..plain(lease)
                };
                let got = subject.fetch(key, &request, block);
                world.touch(key, true);
                let expected = world.look(key, &request);
                match (got, block, expected) {
                    (Err(ticket), Some(block), (FetchState::Wait, _, Number::Ms(ms))) => {
                        tickets.push(ticket);
                        let deadline = (block > 0).then(|| world.now + block);
                        world.waiters.push(ModelWaiter {
                            key,
                            ticket,
                            lease,
                            deadline,
                        });
                        world.retry_at[usize::from(key)] = Some(world.now + ms);
                    }
                    (got, _, _) => {
                        prop_assert_eq!(got, Ok(expected));
                        prop_assert!(block.is_none() || expected.0 != FetchState::Wait);
                    }
                }
            }
            Event::Set {
                key,
                value,
                fresh,
                stale,
                proof,
                version,
            } => {
                let request = StoreRequest {
                    kind: value.map_or(EntryKind::Negative, |_| EntryKind::Value),
                    fresh_ms: fresh,
                    stale_ms: stale,
                    jitter_percent: 0,
                    token: subject.token(key, proof),
                    version: version.map(EntryVersion::new),
                };
                prop_assert_eq!(subject.set(key, &request, value), world.set(event));
            }
            Event::Del {
                key,
                stale,
                grace,
                version,
            } => {
                let request = Invalidation {
                    stale_ms: stale,
                    grace_ms: grace,
                    version: version.map(EntryVersion::new),
                };
                let existed = subject.del(key, &request);
                world.touch(key, true);
                let now = world.now;
                let expected = world.entry(key).invalidate(stale, grace, version, now);
                prop_assert_eq!(existed, expected);
                world.revoke(key);
                world.serve(key);
            }
            Event::Fail {
                key,
                proof,
                backoff,
            } => {
                let token = subject.token(key, proof).unwrap_or(7);
                let got = subject.fail(key, token, backoff);
                prop_assert_eq!(got, world.fail(key, proof, backoff));
            }
            Event::Remove { key } => {
                subject.remove(key);
                world.remove(key);
            }
            Event::Disconnect { client } => {
                if let Some(ticket) = tickets.get(client) {
                    subject.disconnect(*ticket);
                    world.disconnect(*ticket);
                }
            }
            Event::Send => {
                subject.send();
                world.unsent.clear();
            }
            Event::Pass { ms, sweeps } => {
                subject.pass(ms, sweeps);
                world.pass(ms, sweeps);
            }
            Event::Stall { ms } => {
                subject.now += ms;
                world.now += ms;
            }
        }
        subject.run_deferred();
        world.run_deferred();
        agree(&subject, &mut world)?;
    }
    Ok(())
}

/// All that can be seen is the same.
fn agree(subject: &Subject, world: &mut World) -> Result<(), TestCaseError> {
    prop_assert_eq!(&subject.replies, &world.replies);
    let now = world.now;
    for key in 0..KEYS {
        let entry = world.entry(key);
        let expected = match entry {
            entry if !entry.is_served(now) => Freshness::Missing,
            entry if now < entry.fresh_until => Freshness::Fresh(entry.fresh_until - now),
            entry => Freshness::Stale(entry.stale_until - now),
        };
        prop_assert_eq!(subject.freshness(key), expected);
        let leases = &subject.rebuilds.leases;
        prop_assert_eq!(leases.status(0, &[key], now), world.status(key));
        let grant = leases.get(0, &[key]).filter(|lease| !lease.is_backoff);
        let grant = grant.and_then(|lease| {
            let mut grants = subject.grants.iter();
            grants.position(|grant| *grant == (key, lease.token))
        });
        let lease = world.lease_of(key).filter(|lease| !lease.is_backoff);
        prop_assert_eq!(grant, lease.map(|lease| lease.grant));
        let waiting = world.waiters.iter().filter(|waiter| waiter.key == key);
        let waiting: Vec<u64> = waiting.map(|waiter| waiter.ticket).collect();
        let tickets: Vec<u64> = subject.rebuilds.queue.tickets(0, &[key]).collect();
        prop_assert_eq!(tickets, waiting);
    }
    let deadline = world.next_deadline().map(|(at, _)| at);
    prop_assert_eq!(subject.rebuilds.queue.next_deadline(), deadline);
    prop_assert_eq!(subject.rebuilds.leases.len(), world.leases.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 50 } else { 30_000 }, ..ProptestConfig::default() })]

    #[test]
    fn entries_leases_and_queues_are_what_the_contract_says(
        events in proptest::collection::vec(any_event(), 1..60),
        max_leases in 0..4usize,
    ) {
        history(&events, max_leases)?;
    }
}
