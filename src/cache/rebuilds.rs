//! The leases and the waiting clients of all keys: which client rebuilds an entry, and which clients wait for it. It uses no
//! server, clock or randomness. All of it is beside the keyspace and in memory only.

use super::breaker::{BreakerState, Breakers, Trial, WaitingBreakerRequest};
use super::lease::{Lease, LeaseKey, LeaseOffer, LeaseRequest, LeaseStatus, Leases};
use super::state::{CacheEntry, EarlyRefresh, Freshness};
use super::step::{FetchReply, FetchRequest, RETRY_MS, decide_fetch};
use crate::key_queues::{HeadStep, KeyQueues};
use crate::waiting::Key;
use std::convert::Infallible;

/// The request of a client that waits for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingFetch {
    /// The length of the lease that it wants, in milliseconds.
    pub lease_ms: u64,
    /// The breaker of the load.
    pub breaker: Option<WaitingBreakerRequest>,
}

/// The leases and the waiting clients of a server.
#[derive(Debug, Default)]
pub struct Rebuilds {
    /// The leases.
    pub leases: Leases,
    /// The breakers.
    pub breakers: Breakers<LeaseKey>,
    /// The waiting clients.
    pub queue: KeyQueues<WaitingFetch, Infallible>,
}

/// The most leases that are checked at a time for whether their time has run out.
const TIMEOUTS_AT_ONCE: usize = 1000;

impl Rebuilds {
    /// No waiting clients, and these leases.
    pub fn new(leases: Leases) -> Self {
        Self {
            leases,
            ..Self::default()
        }
    }

    /// Counts the leases whose time has run out (Unix ms) as failures of their loaders, at most so many at once.
    pub fn count_timeouts(&mut self, now: u64) {
        if self.breakers.is_empty() {
            return;
        }
        let mut steps = TIMEOUTS_AT_ONCE;
        while let Some(lease) = self.leases.next_timeout(now, &mut steps) {
            if let Some(terms) = &lease.breaker {
                self.breakers.failed(terms, lease.token, lease.until);
            }
        }
    }

    /// Counts the lease of this key among them, although others have ended before it that were not checked.
    fn count_timeouts_with(&mut self, db: i32, key: &[u8], now: u64) {
        if self.breakers.is_empty() {
            return;
        }
        self.count_timeouts(now);
        if let Some(lease) = self.leases.time_out(db, key, now)
            && let Some(terms) = &lease.breaker
        {
            self.breakers.failed(terms, lease.token, lease.until);
        }
    }

    /// Revokes the lease of a key. A revoked lease is no failure of its loader, unless its time has run out before (Unix ms).
    /// `now` is called if there are breakers.
    pub fn revoke(&mut self, db: i32, key: &[u8], now: impl FnOnce() -> u64) {
        if !self.breakers.is_empty() {
            self.count_timeouts_with(db, key, now());
        }
        self.leases.revoke(db, key);
    }

    /// The same for the leases of a key in all databases. Returns the databases.
    pub fn revoke_in_all_databases(&mut self, key: &[u8], now: impl Fn() -> u64) -> Vec<i32> {
        let dbs = self.leases.databases_of(key);
        for db in &dbs {
            self.revoke(*db, key, &now);
        }
        dbs
    }

    /// The same for leases of many keys. If more than a thousand have ended and were not checked, the others are not counted.
    pub fn revoke_many(&mut self, now: impl FnOnce() -> u64, revoke: impl FnOnce(&mut Leases)) {
        if !self.breakers.is_empty() {
            self.count_timeouts(now());
        }
        revoke(&mut self.leases);
    }

    /// Removes the lease or the backoff of a key that was stored.
    pub fn remove(&mut self, db: i32, key: &[u8], now: u64) {
        self.count_timeouts_with(db, key, now);
        self.leases.remove(db, key);
    }

    /// For how long the breaker of this name grants no lease of a key, in milliseconds; 0: it grants one. `now` is in Unix ms.
    pub fn breaker_delay(&self, name: &[u8], key: Option<LeaseKey>, now: u64) -> u64 {
        let Some(breaker) = self.breakers.get(name) else {
            return 0;
        };
        match (breaker.state(now), &breaker.trial) {
            (BreakerState::Closed, _) | (BreakerState::HalfOpen, None) => 0,
            (BreakerState::Open(left), _) => left,
            (BreakerState::HalfOpen, Some(trial)) => {
                let is_out = self.leases.is_current_at(trial.key, trial.token);
                if is_out && key != Some(trial.key) {
                    trial.until.saturating_sub(now)
                } else {
                    0
                }
            }
        }
    }

    /// Grants a key's lease if it is free, and if its breaker allows it.
    pub fn offer(&mut self, db: i32, key: &[u8], request: &LeaseRequest<'_>) -> LeaseOffer {
        let now = request.now_us / 1000;
        self.count_timeouts_with(db, key, now);
        let Some(breaker) = request.breaker.filter(|_| request.max_breakers > 0) else {
            return self.leases.offer(db, key, request);
        };
        let lease_key = self.leases.locate(db, key);
        self.breakers.use_known(breaker.name);
        let delay = self.breaker_delay(breaker.name, Some(lease_key), now);
        if delay > 0 {
            return LeaseOffer::BackingOff(match self.leases.status(db, key, now) {
                LeaseStatus::BackingOff(left) => left.max(delay),
                _ => delay,
            });
        }
        if self.breakers.is_empty() {
            self.leases.skip_timeouts(now); // none of these leases has a breaker
        }
        let offer = self.leases.offer(db, key, request);
        if let LeaseOffer::Granted(token) = offer {
            let terms = self.breakers.terms(&breaker, request.max_breakers);
            self.leases.set_breaker(lease_key, Some(terms));
            let trial = Trial {
                key: lease_key,
                token,
                until: now + request.length_ms,
            };
            self.breakers.granted(&terms, trial, now);
        }
        offer
    }

    /// The holder of this lease of a key has stored what it loaded, or would have. `now` is in Unix ms.
    pub fn succeeded(&mut self, db: i32, key: &[u8], lease: &Lease, now: u64) {
        if let Some(terms) = &lease.breaker {
            self.count_timeouts(now);
            self.breakers.succeeded(terms);
            let lease_key = self.leases.locate(db, key);
            self.leases.set_breaker(lease_key, None); // its time may run out before it is removed
        }
    }

    /// Serves the first client of a key's queue, if the entry, the lease or the backoff has a reply for it. `lease`: a
    /// request for the key's lease; the length is that which the client wants.
    pub fn serve_head(
        &mut self,
        key: &Key,
        entry: Option<&CacheEntry>,
        freshness: Freshness,
        lease: &LeaseRequest<'_>,
    ) -> HeadStep<FetchReply> {
        let head = self.queue.head(key.0, &key.1);
        let waiter = head.and_then(|head| self.queue.get(head));
        let waiting = waiter.map(|waiter| waiter.request.clone());
        let Some((ticket, waiting)) = head.zip(waiting) else {
            return HeadStep::Empty;
        };
        let request = FetchRequest {
            lease_ms: waiting.lease_ms,
            refresh: EarlyRefresh::Off,
            slide_ms: 0,
            is_absent: false,
            is_replica: false,
        };
        let lease = LeaseRequest {
            length_ms: waiting.lease_ms,
            breaker: waiting
                .breaker
                .as_ref()
                .map(WaitingBreakerRequest::as_request),
            ..*lease
        };
        let now = lease.now_us / 1000;
        let is_late = self.queue.is_late(ticket, now);
        let offer = || match self.leases.status(key.0, &key.1, now) {
            LeaseStatus::Free if is_late => LeaseOffer::Leased(0),
            _ => self.offer(key.0, &key.1, &lease),
        };
        let reply = decide_fetch(entry, freshness, &request, || 0, offer).reply;
        if reply.must_wait() && is_late {
            return HeadStep::TimedOut(ticket);
        }
        if reply.must_wait() {
            let retry_at = now + reply.n;
            self.queue.set_retry(key.0, &key.1, Some(retry_at));
            return HeadStep::Waits(retry_at);
        }
        self.queue.remove(ticket);
        if let Some(token) = reply.token() {
            self.queue.granted(ticket, key, token);
        }
        HeadStep::Served(ticket, reply)
    }

    /// The reply of a client whose time is up.
    pub fn timeout_reply(&self, (db, key): &Key, now: u64) -> FetchReply {
        let left = match self.leases.status(*db, key, now) {
            LeaseStatus::Leased(left) | LeaseStatus::BackingOff(left) => left,
            LeaseStatus::Free => RETRY_MS, // the table of leases is full, or the next client is about to be served
        };
        FetchReply::wait(left)
    }

    /// Takes back the lease of a client that left before its reply was sent.
    pub fn take_back(&mut self, (db, key): &Key, token: u64) {
        if self.leases.is_current(*db, key, token) {
            self.leases.remove(*db, key);
        }
    }

    /// Ends a lease because the loader failed. For `backoff_ms` no client is granted another one. Returns whether the token
    /// was that of the key's current lease. `now` is in Unix ms.
    pub fn fail(
        &mut self,
        (db, key): (i32, &[u8]),
        token: u64,
        backoff_ms: u64,
        now: u64,
        max_leases: usize,
    ) -> bool {
        self.count_timeouts(now);
        let is_current = self.leases.is_current(db, key, token);
        if is_current
            && let Some(lease) = self.leases.get(db, key).copied()
            && let Some(terms) = &lease.breaker
            && !lease.has_timed_out
        {
            self.breakers.failed(terms, token, now);
        }
        if is_current && backoff_ms > 0 {
            self.leases.fail(db, key, now + backoff_ms, now, max_leases);
        } else if is_current {
            self.leases.remove(db, key);
        }
        is_current
    }

    /// Forgets all leases. The waiting clients stay.
    pub fn clear_leases(&mut self) {
        self.leases.clear(None);
        self.queue.forget_undelivered();
    }
}
