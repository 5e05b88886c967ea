//! The breakers: while a loader fails, no client asks it. A breaker counts the loads that were leased with its name, opens after
//! several failures in a row, and lets one load through after a time. It uses no server, clock or randomness. Breakers are in
//! memory only.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a caller asks of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerRequest<'a> {
    /// The name of the breaker.
    pub name: &'a [u8],
    /// After so many failures in a row the breaker opens.
    pub failures: u32,
    /// The time for which it stays open, in milliseconds.
    pub open_ms: u32,
}

/// The [`BreakerRequest`] of a waiting client, which owns the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingBreakerRequest {
    name: Box<[u8]>,
    failures: u32,
    open_ms: u32,
}

impl From<BreakerRequest<'_>> for WaitingBreakerRequest {
    fn from(request: BreakerRequest<'_>) -> Self {
        Self {
            name: request.name.into(),
            failures: request.failures,
            open_ms: request.open_ms,
        }
    }
}

impl WaitingBreakerRequest {
    /// Borrows it for a lease.
    pub fn as_request(&self) -> BreakerRequest<'_> {
        BreakerRequest {
            name: &self.name,
            failures: self.failures,
            open_ms: self.open_ms,
        }
    }
}

/// The breaker of a lease, and the terms of the request for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerTerms {
    /// The number of the breaker. Each breaker has another one, also if it has the name of a forgotten one.
    pub number: u64,
    /// After so many failures in a row the breaker opens.
    pub failures: u32,
    /// The time for which it stays open, in milliseconds.
    pub open_ms: u32,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Leases are granted.
    Closed,
    /// No lease is granted for this time in milliseconds.
    Open(u64),
    /// One lease is granted, the trial.
    HalfOpen,
}

/// The trial of a half-open breaker: a lease and its end (Unix ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial<K> {
    /// The key of the lease.
    pub key: K,
    /// The token of the lease.
    pub token: u64,
    /// When the lease ends (Unix ms).
    pub until: u64,
}

/// A breaker.
#[derive(Debug)]
pub struct Breaker<K> {
    name: Arc<[u8]>,
    /// The failures in a row.
    pub failures: u64,
    /// How often it opened.
    pub trips: u64,
    /// Until when it is open, and half-open afterwards (Unix ms); `None`: it is closed.
    open_until: Option<u64>,
    /// The trial. It may have been revoked.
    pub trial: Option<Trial<K>>,
    /// When it was used last, as a number that grows with each use.
    used: u64,
}

impl<K> Breaker<K> {
    /// The state at this time (Unix ms).
    pub fn state(&self, now: u64) -> BreakerState {
        match self.open_until {
            None => BreakerState::Closed,
            Some(until) if now < until => BreakerState::Open(until - now),
            Some(_) => BreakerState::HalfOpen,
        }
    }

    fn close(&mut self) {
        (self.failures, self.open_until, self.trial) = (0, None, None);
    }

    /// A lease with this token has failed. Returns whether the breaker has opened.
    fn fail(&mut self, token: u64, terms: &BreakerTerms, at: u64) -> bool {
        let is_trial = self
            .trial
            .as_ref()
            .is_some_and(|trial| trial.token == token);
        if self.open_until.is_some() && !is_trial {
            return false; // a late failure
        }
        self.failures += 1;
        let opens = is_trial || self.failures >= terms.failures.into();
        if opens {
            self.open_until = Some(at + u64::from(terms.open_ms));
            self.trial = None;
            self.trips += 1;
        }
        opens
    }
}

/// The breakers of a server, by name. `K` identifies the key of a lease.
#[derive(Debug)]
pub struct Breakers<K> {
    numbers: BTreeMap<Arc<[u8]>, u64>,
    breakers: BTreeMap<u64, Breaker<K>>,
    /// The numbers of the breakers in the order of their last use.
    by_use: BTreeMap<u64, u64>,
    last_number: u64,
    last_use: u64,
    /// How often breakers opened.
    trips: u64,
}

impl<K> Default for Breakers<K> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            breakers: BTreeMap::new(),
            by_use: BTreeMap::new(),
            last_number: 0,
            last_use: 0,
            trips: 0,
        }
    }
}

/// The most breakers that are forgotten at a time, if `cache-max-breakers` is lower than it was.
const FORGOTTEN_AT_ONCE: usize = 16;

impl<K> Breakers<K> {
    /// The number of breakers.
    pub fn len(&self) -> usize {
        self.breakers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.breakers.is_empty()
    }

    /// How often breakers opened.
    pub fn trips(&self) -> u64 {
        self.trips
    }

    /// Forgets all breakers. The count of [`trips`](Self::trips) stays.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.breakers.clear();
        self.by_use.clear();
    }

    /// The breaker of a name. A read is no use of it.
    pub fn get(&self, name: &[u8]) -> Option<&Breaker<K>> {
        self.breakers.get(self.numbers.get(name)?)
    }

    /// Uses the breaker of a name, if it is known.
    pub fn use_known(&mut self, name: &[u8]) -> Option<&Breaker<K>> {
        let number = *self.numbers.get(name)?;
        self.use_numbered(number);
        self.breakers.get(&number)
    }

    fn use_numbered(&mut self, number: u64) -> Option<&mut Breaker<K>> {
        let breaker = self.breakers.get_mut(&number)?;
        self.last_use += 1;
        self.by_use.remove(&breaker.used);
        breaker.used = self.last_use;
        self.by_use.insert(breaker.used, number);
        Some(breaker)
    }

    /// The terms of a lease that is granted with this request. The breaker is known from now on. If there are more than `most`,
    /// those that were used least recently are forgotten.
    pub fn terms(&mut self, request: &BreakerRequest<'_>, most: usize) -> BreakerTerms {
        let number = match self.numbers.get(request.name) {
            Some(number) => *number,
            None => self.begin(request.name, most),
        };
        BreakerTerms {
            number,
            failures: request.failures,
            open_ms: request.open_ms,
        }
    }

    fn begin(&mut self, name: &[u8], most: usize) -> u64 {
        for _ in 0..FORGOTTEN_AT_ONCE {
            if self.breakers.len() < most {
                break;
            }
            if let Some((_, number)) = self.by_use.pop_first()
                && let Some(breaker) = self.breakers.remove(&number)
            {
                self.numbers.remove(&breaker.name);
            }
        }
        self.last_number += 1;
        self.last_use += 1;
        let (number, name) = (self.last_number, Arc::<[u8]>::from(name));
        self.numbers.insert(name.clone(), number);
        self.by_use.insert(self.last_use, number);
        let breaker = Breaker {
            name,
            failures: 0,
            trips: 0,
            open_until: None,
            trial: None,
            used: self.last_use,
        };
        self.breakers.insert(number, breaker);
        number
    }

    /// A lease was granted. If the breaker is half-open, the lease is its trial.
    pub fn granted(&mut self, terms: &BreakerTerms, trial: Trial<K>, now: u64) {
        if let Some(breaker) = self.breakers.get_mut(&terms.number)
            && breaker.state(now) == BreakerState::HalfOpen
        {
            breaker.trial = Some(trial);
        }
    }

    /// The load of a lease has succeeded.
    pub fn succeeded(&mut self, terms: &BreakerTerms) {
        if let Some(breaker) = self.use_numbered(terms.number) {
            breaker.close();
        }
    }

    /// The load of a lease has failed, or its time ran out without an answer, at this time (Unix ms).
    pub fn failed(&mut self, terms: &BreakerTerms, token: u64, at: u64) {
        if let Some(breaker) = self.use_numbered(terms.number)
            && breaker.fail(token, terms, at)
        {
            self.trips += 1;
        }
    }

    /// Closes the breaker of a name. Returns whether it is known.
    pub fn reset(&mut self, name: &[u8]) -> bool {
        let number = self.numbers.get(name).copied();
        let breaker = number.and_then(|number| self.use_numbered(number));
        breaker.map(Breaker::close).is_some()
    }
}
