//! Breakers: random histories against a naive model, and a database that fails behind a live server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::cache::{counter, fetched, look, nearly, number, shown, stores};
use crate::support::{
    Lines, Raw, SOON, SYNTAX, Server, eventually, pair, served, server_and_client, waiter,
};
use proptest::prelude::*;
use sluice::cache::breaker::{BreakerRequest, BreakerState};
use sluice::cache::lease::{Lease, LeaseOffer, LeaseRequest, Leases};
use sluice::cache::rebuilds::Rebuilds;

// The model

#[derive(Debug, Clone)]
enum Event {
    Fetch {
        key: u8,
        name: u8,
        failures: u32,
        open_ms: u32,
        lease_ms: u64,
    },
    FetchWithout {
        key: u8,
        lease_ms: u64,
    },
    /// The holder of the key's lease stores a value.
    Succeed {
        key: u8,
    },
    Fail {
        key: u8,
        backoff_ms: u64,
    },
    /// The key changes.
    Revoke {
        key: u8,
    },
    RevokeAll,
    Reset {
        name: u8,
    },
    Pass {
        ms: u64,
    },
}

const KEYS: u8 = 4;
const NAMES: u8 = 2;
const START: u64 = 1_700_000_000_000;

fn any_event() -> impl Strategy<Value = Event> {
    let fetch = (0..KEYS, 0..NAMES, 1..4u32, 1..60u32, 1..60u64);
    prop_oneof![
        8 => fetch.prop_map(|(key, name, failures, open_ms, lease_ms)| Event::Fetch {
            key, name, failures, open_ms, lease_ms
        }),
        1 => (0..KEYS, 1..60u64).prop_map(|(key, lease_ms)| Event::FetchWithout { key, lease_ms }),
        2 => (0..KEYS).prop_map(|key| Event::Succeed { key }),
        4 => (0..KEYS, prop_oneof![Just(0u64), 1..60u64])
            .prop_map(|(key, backoff_ms)| Event::Fail { key, backoff_ms }),
        1 => (0..KEYS).prop_map(|key| Event::Revoke { key }),
        1 => Just(Event::RevokeAll),
        1 => (0..NAMES).prop_map(|name| Event::Reset { name }),
        5 => (0..40u64).prop_map(|ms| Event::Pass { ms }),
    ]
}

#[derive(Debug, Clone)]
struct ModelLease {
    number: u64,
    until: u64,
    terms: Option<(u8, u32, u32)>,
    is_counted: bool,
}

#[derive(Debug, Default, Clone)]
struct ModelBreaker {
    failures: u64,
    open_until: Option<u64>,
    trial: Option<(u8, u64)>,
    trips: u64,
}

#[derive(Debug, Default)]
struct World {
    now: u64,
    leases: BTreeMap<u8, ModelLease>,
    backoffs: BTreeMap<u8, u64>,
    breakers: BTreeMap<u8, ModelBreaker>,
    last: u64,
}

impl World {
    fn fail(&mut self, lease: &ModelLease) {
        let Some((name, failures, open_ms)) = lease.terms else {
            return;
        };
        let breaker = self.breakers.get_mut(&name).expect("a known breaker");
        let is_trial = breaker
            .trial
            .is_some_and(|(_, number)| number == lease.number);
        if breaker.open_until.is_none() || is_trial {
            breaker.failures += 1;
            if is_trial || breaker.failures >= failures.into() {
                breaker.open_until = Some(self.now + u64::from(open_ms));
                breaker.trial = None;
                breaker.trips += 1;
            }
        }
    }

    /// Time passes, one millisecond after the other.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            let mut ended: Vec<_> = self.leases.values().cloned().collect();
            ended.retain(|lease| lease.until <= self.now && !lease.is_counted);
            ended.sort_by_key(|lease| lease.number);
            for lease in ended {
                self.fail(&lease);
                let same = |own: &&mut ModelLease| own.number == lease.number;
                self.leases
                    .values_mut()
                    .find(same)
                    .expect("a lease")
                    .is_counted = true;
            }
        }
    }

    /// For how long the breaker grants the key no lease.
    fn delay(&self, name: u8, key: Option<u8>) -> u64 {
        let Some(breaker) = self.breakers.get(&name) else {
            return 0;
        };
        let Some(until) = breaker.open_until else {
            return 0;
        };
        if self.now < until {
            return until - self.now;
        }
        let lease = breaker
            .trial
            .and_then(|(key, number)| self.leases.get(&key).filter(|lease| lease.number == number));
        match (lease, breaker.trial) {
            (Some(lease), Some((own, _))) if key != Some(own) => lease.until - self.now,
            _ => 0,
        }
    }

    fn fetch(&mut self, key: u8, terms: Option<(u8, u32, u32)>, lease_ms: u64) -> LeaseOffer {
        let backoff = self
            .backoffs
            .get(&key)
            .copied()
            .filter(|until| *until > self.now);
        let backoff = backoff.map_or(0, |until| until - self.now);
        let delay = terms.map_or(0, |(name, ..)| self.delay(name, Some(key)));
        if delay > 0 {
            return LeaseOffer::BackingOff(delay.max(backoff));
        }
        if let Some(lease) = self.leases.get(&key).filter(|lease| lease.until > self.now) {
            return LeaseOffer::Leased(lease.until - self.now);
        }
        if backoff > 0 {
            return LeaseOffer::BackingOff(backoff);
        }
        self.last += 1;
        self.backoffs.remove(&key);
        let until = self.now + lease_ms;
        let lease = ModelLease {
            number: self.last,
            until,
            terms,
            is_counted: false,
        };
        self.leases.insert(key, lease);
        if let Some((name, ..)) = terms {
            let breaker = self.breakers.entry(name).or_default();
            if breaker.open_until.is_some() {
                breaker.trial = Some((key, self.last));
            }
        }
        LeaseOffer::Granted(self.last)
    }
}

fn history(events: &[Event]) -> Result<(), TestCaseError> {
    let mut subject = Rebuilds::new(Leases::new(7, 0));
    let mut world = World {
        now: START,
        ..World::default()
    };
    // The token of each lease of the model.
    let mut tokens: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events {
        let now = world.now;
        match *event {
            Event::Pass { ms } => world.pass(ms),
            Event::Fetch { key, lease_ms, .. } | Event::FetchWithout { key, lease_ms } => {
                let terms = match *event {
                    Event::Fetch {
                        name,
                        failures,
                        open_ms,
                        ..
                    } => Some((name, failures, open_ms)),
                    _ => None,
                };
                let name = [terms.map_or(0, |(name, ..)| name)];
                let request = LeaseRequest {
                    length_ms: lease_ms,
                    now_us: now * 1000,
                    max_leases: 1000,
                    breaker: terms.map(|(_, failures, open_ms)| BreakerRequest {
                        name: &name,
                        failures,
                        open_ms,
                    }),
                    max_breakers: 10,
                };
                let got = subject.offer(0, &[key], &request);
                match (got, world.fetch(key, terms, lease_ms)) {
                    (LeaseOffer::Granted(token), LeaseOffer::Granted(number)) => {
                        tokens.insert(number, token);
                    }
                    (got, expected) => prop_assert_eq!(got, expected, "{:?}", event),
                }
            }
            Event::Succeed { key } => {
                if let Some(lease) = subject.leases.get(0, &[key]).copied()
                    && !lease.is_backoff
                {
                    subject.succeeded(0, &[key], &lease, now);
                    subject.leases.remove(0, &[key]);
                }
                if let Some(lease) = world.leases.remove(&key)
                    && let Some((name, ..)) = lease.terms
                    && let Some(breaker) = world.breakers.get_mut(&name)
                {
                    let trips = breaker.trips;
                    *breaker = ModelBreaker {
                        trips,
                        ..ModelBreaker::default()
                    };
                }
            }
            Event::Fail { key, backoff_ms } => {
                let lease = world.leases.remove(&key);
                let token = lease.as_ref().map_or(1, |lease| tokens[&lease.number]);
                let was_current = subject.fail((0, &[key]), token, backoff_ms, now, 1000);
                prop_assert_eq!(was_current, lease.is_some());
                if let Some(lease) = lease {
                    if !lease.is_counted {
                        world.fail(&lease);
                    }
                    if backoff_ms > 0 {
                        world.backoffs.insert(key, now + backoff_ms);
                    }
                }
            }
            Event::Revoke { key } => {
                subject.revoke(0, &[key], || now);
                world.leases.remove(&key);
            }
            Event::RevokeAll => {
                subject.revoke_many(|| now, |leases| leases.clear(None));
                world.leases.clear();
                world.backoffs.clear();
            }
            Event::Reset { name } => {
                subject.count_timeouts(now);
                let known = subject.breakers.reset(&[name]);
                prop_assert_eq!(known, world.breakers.contains_key(&name));
                if let Some(breaker) = world.breakers.get_mut(&name) {
                    let trips = breaker.trips;
                    *breaker = ModelBreaker {
                        trips,
                        ..ModelBreaker::default()
                    };
                }
            }
        }
        if matches!(event, Event::Pass { .. }) {
            continue; // the server need not notice that time has passed
        }
        subject.count_timeouts(world.now);
        let mut trips = 0;
        for name in 0..NAMES {
            let got = subject.breakers.get(&[name]).map(|breaker| {
                let state = breaker.state(world.now);
                (state, breaker.failures, breaker.trips)
            });
            let expected = world.breakers.get(&name).map(|breaker| {
                trips += breaker.trips;
                let state = match breaker.open_until {
                    None => BreakerState::Closed,
                    Some(until) if world.now < until => BreakerState::Open(until - world.now),
                    Some(_) => BreakerState::HalfOpen,
                };
                (state, breaker.failures, breaker.trips)
            });
            prop_assert_eq!(got, expected, "{:?}", event);
            let delay = subject.breaker_delay(&[name], None, world.now);
            prop_assert_eq!(delay, world.delay(name, None), "{:?}", event);
        }
        prop_assert_eq!(subject.breakers.trips(), trips);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 20 } else { 5_000 }, ..ProptestConfig::default() })]

    #[test]
    fn breakers_are_what_the_model_is(events in proptest::collection::vec(any_event(), 1..80)) {
        history(&events)?;
    }
}

#[test]
fn the_breaker_that_was_used_least_recently_is_forgotten() {
    let mut subject = Rebuilds::new(Leases::new(7, 0));
    let mut key = 0_u32;
    let mut use_one = |subject: &mut Rebuilds, name: &[u8]| {
        key += 1;
        let breaker = BreakerRequest {
            name,
            failures: 1,
            open_ms: 1,
        };
        let request = LeaseRequest {
            length_ms: 10,
            now_us: START * 1000,
            max_leases: 1000,
            breaker: Some(breaker),
            max_breakers: 3,
        };
        subject.offer(0, &key.to_le_bytes(), &request)
    };
    for name in [b"a", b"b", b"c", b"a", b"d"] {
        use_one(&mut subject, name);
    }
    let known = [b"a", b"b", b"c", b"d"].map(|name| subject.breakers.get(name).is_some());
    assert_eq!(known, [true, false, true, true]);
    assert_eq!(subject.breakers.len(), 3);
}

// A live server

fn breaker(client: &mut Raw, name: &str) -> (String, i64, i64, i64) {
    let reply = client.must(&format!("CACHE.BREAKER {name}"));
    (
        reply.field("state").text().to_owned(),
        reply.field("failures").int(),
        reply.field("retry_ms").int(),
        reply.field("trips").int(),
    )
}

/// For how long the breaker of [`fetch`] is open.
const OPEN_MS: i64 = 600_000;

/// A lease or backoff that is longer than [`OPEN_MS`].
const LONG_MS: i64 = 36_000_000;

/// Fetches a key with a breaker that opens after three failures.
fn fetch(client: &mut Raw, key: &str) -> (String, Option<Vec<u8>>, i64) {
    let line = format!("CACHE.FETCH {key} LEASE {LONG_MS} BREAKER db 3 {OPEN_MS}");
    fetched(&client.must(&line))
}

#[test]
fn a_database_that_is_down_is_asked_three_times_and_then_once_per_open_time() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    let mut waiting = None;
    let mut asked = 0;
    for index in 0..1000 {
        let key = format!("k{index}");
        let (state, _, n) = fetch(&mut client, &key);
        match state.as_str() {
            "LEASE" => {
                asked += 1;
                if index == 0 {
                    let line =
                        format!("CACHE.FETCH k0 LEASE {LONG_MS} BREAKER db 3 {OPEN_MS} BLOCK 0");
                    waiting = Some(waiter(&server, &line));
                    let fail = format!("CACHE.FAIL k0 {n} BACKOFF {LONG_MS}");
                    assert_eq!(client.must(&fail), 1);
                } else {
                    assert_eq!(client.must(&format!("CACHE.FAIL {key} {n}")), 1);
                }
            }
            _ => {
                assert_eq!(state, "DOWN");
                assert!((1..=OPEN_MS).contains(&n), "{n}");
            }
        }
    }
    assert_eq!(asked, 3);
    assert_eq!(shown(&served(&mut waiting.expect("a waiter"))), "DOWN -");
    let (state, failures, retry, trips) = breaker(&mut client, "db");
    assert_eq!((state.as_str(), failures, trips), ("open", 3, 1));
    assert!((1..=OPEN_MS).contains(&retry));
    // A key in its own backoff takes the later of both times, and no trial.
    let (state, _, n) = fetch(&mut client, "k0");
    assert_eq!(state, "DOWN");
    assert!((OPEN_MS + 1..=LONG_MS).contains(&n), "{n}");
    server.shift_clock(OPEN_MS + 1);
    assert_eq!(breaker(&mut client, "db").0, "half-open");
    assert_eq!(fetch(&mut client, "k0").0, "DOWN");
    assert_eq!(breaker(&mut client, "db").2, 0);
    // One trial, whose own key waits. All others are down.
    let (state, _, trial) = fetch(&mut client, "k7");
    assert_eq!(state, "LEASE");
    assert_eq!(fetch(&mut client, "k7").0, "WAIT");
    let (state, _, n) = fetch(&mut client, "k8");
    assert_eq!(state, "DOWN");
    nearly(n, LONG_MS);
    assert_eq!(look(&mut client, "k9"), "LEASE -"); // without the breaker
    // A trial that is revoked frees its place.
    client.must("CACHE.DEL k7");
    assert_eq!(breaker(&mut client, "db").2, 0);
    assert!(!stores(&mut client, "k7", trial));
    let (_, _, trial) = fetch(&mut client, "k8");
    assert_eq!(client.must(&format!("CACHE.FAIL k8 {trial}")), 1);
    let (state, _, _, trips) = breaker(&mut client, "db");
    assert_eq!((state.as_str(), trips), ("open", 2));
    assert_eq!(counter(&mut client, "breaker_trips"), 2);
    server.shift_clock(OPEN_MS + 1);
    assert_eq!(breaker(&mut client, "db").0, "half-open");
    let (_, _, trial) = fetch(&mut client, "k8");
    assert!(stores(&mut client, "k8", trial));
    assert_eq!(breaker(&mut client, "db"), ("closed".to_owned(), 0, 0, 2));
    for index in 10..1000 {
        assert_eq!(fetch(&mut client, &format!("k{index}")).0, "LEASE");
    }
}

#[test]
fn what_is_fresh_is_served_and_what_is_stale_comes_with_down() {
    let (_server, mut client) = server_and_client();
    client.must("BF.ADD filter item");
    client.must("CACHE.SET fresh v PX 600000");
    client.must("CACHE.SET stale v PX 600000");
    client.must("CACHE.DEL stale STALE 600000");
    let reply = client.must("CACHE.FETCH k LEASE 600000 BREAKER db 1 600000");
    let token = number(&reply, "LEASE -");
    let reply = client.must("CACHE.FETCH late LEASE 600000 BREAKER db 1 600000");
    let late = number(&reply, "LEASE -");
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 1);
    for (line, expected) in [
        ("fresh LEASE 5", "HIT v"),
        ("fresh LEASE 5 EARLY 315360000000", "HIT v"),
        ("stale LEASE 5", "DOWN v"),
        ("missing LEASE 5", "DOWN -"),
        ("missing LEASE 5 BLOCK 0", "DOWN -"),
        ("missing LEASE 5 GUARD filter other", "ABSENT -"),
        ("missing LEASE 5 GUARD filter item", "DOWN -"),
    ] {
        let reply = client.must(&format!("CACHE.FETCH {line} BREAKER db 1 600000"));
        assert_eq!(shown(&reply), expected, "{line}");
    }
    assert_eq!(
        shown(&client.must("CACHE.FETCH x LEASE 5 BREAKER other 1 5")),
        "LEASE -"
    );
    // A late failure changes nothing. A late success closes the breaker, also if nothing is stored.
    client.must("FLUSHALL");
    assert_eq!(breaker(&mut client, "db").0, "open");
    assert!(!stores(&mut client, "late", late));
    assert_eq!(client.must("CACHE.BREAKER db RESET"), 1);
    assert_eq!(breaker(&mut client, "db"), ("closed".to_owned(), 0, 0, 1));
    assert_eq!(client.must("CACHE.BREAKER unknown RESET"), 0);
    assert!(client.must("CACHE.BREAKER unknown").is_nil());
}

#[test]
fn a_store_that_a_version_refuses_is_a_success() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 600000 VER 5");
    client.must("CACHE.DEL k STALE 600000");
    let fetch = |key: &str| format!("CACHE.FETCH {key} LEASE 600000 BREAKER db 2 600000");
    let fails = number(&client.must(&fetch("j")), "LEASE -");
    let refused = number(&client.must(&fetch("k")), "LEASE v");
    client.must(&format!("CACHE.FAIL j {fails}"));
    assert_eq!(breaker(&mut client, "db").1, 1);
    assert_eq!(
        client.must(&format!("CACHE.SET k w PX 5 VER 3 TOKEN {refused}")),
        0
    );
    assert_eq!(breaker(&mut client, "db").1, 0);
}

#[test]
fn a_lease_whose_time_runs_out_is_one_failure() {
    let (_server, mut client) = server_and_client();
    let reply = client.must("CACHE.FETCH k LEASE 20 BREAKER db 1 600000");
    let token = number(&reply, "LEASE -");
    eventually(SOON, || breaker(&mut client, "db").0 == "open");
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 1);
    let (_, failures, _, trips) = breaker(&mut client, "db");
    assert_eq!((failures, trips), (1, 1));
    // The lease of another key, whose success comes late.
    client.must("CACHE.BREAKER db RESET");
    let reply = client.must("CACHE.FETCH j LEASE 20 BREAKER db 1 600000");
    let token = number(&reply, "LEASE -");
    eventually(SOON, || breaker(&mut client, "db").0 == "open");
    assert!(stores(&mut client, "j", token));
    assert_eq!(breaker(&mut client, "db").0, "closed");
}

/// The server looks for leases whose time is up ten times a second. A key that changes before that is no excuse.
#[test]
fn a_lease_that_is_revoked_after_its_time_is_a_failure() {
    let server = Server::builder().config("hz", "1").start();
    let mut client = Raw::connect(&server);
    let changes = [
        "CACHE.DEL k",
        "DEL k",
        "CACHE.SET k v PX 1000",
        "SET k v",
        "FLUSHALL",
        "SWAPDB 0 1",
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for number in 0..5 {
            let name = format!("{index}-{number}");
            client.must("FLUSHALL");
            let reply = client.must(&format!("CACHE.FETCH k LEASE 5 BREAKER {name} 1 600000"));
            assert_eq!(reply.array()[0], "LEASE");
            std::thread::sleep(Duration::from_millis(15));
            client.run(change);
            assert_eq!(breaker(&mut client, &name).0, "open", "{change}");
        }
    }
}

/// A command's time is that at which it began, and a key that it finds expired revokes a lease later than that.
#[test]
fn leases_are_counted_once_whatever_the_clock_does() {
    let mut subject = Rebuilds::default();
    let terms = BreakerRequest {
        name: b"db",
        failures: 2,
        open_ms: 1000,
    };
    let request = |now: u64| LeaseRequest {
        length_ms: 5,
        now_us: now * 1000,
        max_leases: 10,
        breaker: Some(terms),
        max_breakers: 10,
    };
    let failures = |subject: &Rebuilds| subject.breakers.get(b"db").map(|own| own.failures);
    for key in [b"a", b"b"] {
        let offer = subject.offer(0, key, &request(START));
        assert!(matches!(offer, LeaseOffer::Granted(_)));
    }
    subject.revoke(0, b"a", || START + 5);
    assert_eq!(failures(&subject), Some(2));
    subject.breakers.reset(b"db");
    let again = |subject: &mut Rebuilds, now| subject.offer(0, b"a", &request(now));
    assert!(matches!(
        again(&mut subject, START + 4),
        LeaseOffer::Granted(_)
    ));
    subject.count_timeouts(START);
    subject.count_timeouts(START + 8);
    assert_eq!(failures(&subject), Some(0));
    subject.count_timeouts(START + 9);
    subject.count_timeouts(START + 8);
    subject.count_timeouts(START + 9);
    assert_eq!(failures(&subject), Some(1));
}

/// The trial of a breaker that opens after one failure.
fn offer_lease(subject: &mut Rebuilds, key: &[u8], length_ms: u64, has_breaker: bool) -> Lease {
    let breaker = BreakerRequest {
        name: b"db",
        failures: 1,
        open_ms: 1000,
    };
    let request = LeaseRequest {
        length_ms,
        now_us: START * 1000,
        max_leases: 100_000,
        breaker: has_breaker.then_some(breaker),
        max_breakers: 10,
    };
    let offer = subject.offer(0, key, &request);
    assert!(matches!(offer, LeaseOffer::Granted(_)), "{offer:?}");
    *subject.leases.get(0, key).expect("a lease")
}

/// More leases than the server looks at in one step have ended before this one.
#[test]
fn a_lease_behind_many_ended_ones_is_counted_when_its_key_changes() {
    let end: fn(&mut Rebuilds, u64) = |subject, now| subject.revoke(0, b"late", || now);
    let end_anywhere = |subject: &mut Rebuilds, now| {
        assert_eq!(subject.revoke_in_all_databases(b"late", || now), [0]);
    };
    let fetch = |subject: &mut Rebuilds, now: u64| {
        let request = LeaseRequest {
            length_ms: 5,
            now_us: now * 1000,
            max_leases: 100_000,
            breaker: None,
            max_breakers: 10,
        };
        let offer = subject.offer(0, b"late", &request);
        assert!(matches!(offer, LeaseOffer::Granted(_)), "{offer:?}");
    };
    let store = |subject: &mut Rebuilds, now| subject.remove(0, b"late", now);
    for end in [end, end_anywhere, fetch, store] {
        for is_known_before in [false, true] {
            let mut subject = Rebuilds::default();
            if is_known_before {
                offer_lease(&mut subject, b"first", 1000, true);
            }
            for number in 0..5000u32 {
                offer_lease(&mut subject, &number.to_le_bytes(), 1, false);
            }
            offer_lease(&mut subject, b"late", 2, true);
            end(&mut subject, START + 3);
            let breaker = subject.breakers.get(b"db").expect("it is known");
            assert_eq!(breaker.failures, 1, "{is_known_before}");
            for _ in 0..10 {
                subject.count_timeouts(START + 3);
            }
            let breaker = subject.breakers.get(b"db").expect("it is known");
            assert_eq!(breaker.failures, 1, "{is_known_before}");
        }
    }
    // Before the first breaker, no ended lease has one.
    let mut subject = Rebuilds::default();
    for number in 0..5000u32 {
        offer_lease(&mut subject, &number.to_le_bytes(), 0, false);
    }
    offer_lease(&mut subject, b"late", 2, true);
    subject.count_timeouts(START + 3);
    assert_eq!(subject.breakers.get(b"db").map(|own| own.failures), Some(1));
}

/// The server can find room for a value only a few milliseconds after it has decided to store it.
#[test]
fn a_lease_whose_load_has_succeeded_is_no_failure_later() {
    let mut subject = Rebuilds::default();
    let lease = offer_lease(&mut subject, b"key", 5, true);
    subject.succeeded(0, b"key", &lease, START + 4);
    subject.revoke(0, b"another", || START + 6);
    subject.remove(0, b"key", START + 4);
    let breaker = subject.breakers.get(b"db").expect("it is known");
    assert_eq!(breaker.failures, 0);
    assert_eq!(breaker.state(START + 6), BreakerState::Closed);
}

#[test]
fn a_fetch_that_finds_an_expired_key_counts_the_leases_that_ended_meanwhile() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for _ in 0..200 {
        client.must("CACHE.DEL k");
        client.must("CACHE.SET k v PX 2");
        for key in ["a", "b", "c", "k"] {
            client.must(&format!("CACHE.FETCH {key} LEASE 1 BREAKER db 1000000 1"));
        }
        std::thread::sleep(Duration::from_micros(1500));
        for _ in 0..10 {
            client.must("CACHE.FETCH k LEASE 1 BREAKER db 1000000 1");
        }
    }
}

#[test]
fn names_and_numbers_have_bounds() {
    let (_server, mut client) = server_and_client();
    let long = "n".repeat(129);
    let out = "ERR name must be between 1 and 128";
    for (words, expected) in [
        (vec!["BREAKER", "", "1", "1"], out),
        (vec!["BREAKER", &long, "1", "1"], out),
        (
            vec!["BREAKER", "b", "0", "1"],
            "ERR failures must be between 1 and 1000000",
        ),
        (
            vec!["BREAKER", "b", "1000001", "1"],
            "ERR failures must be between 1 and 1000000",
        ),
        (
            vec!["BREAKER", "b", "1", "0"],
            "ERR open-ms must be between 1 and 86400000",
        ),
        (
            vec!["BREAKER", "b", "1", "86400001"],
            "ERR open-ms must be between 1 and 86400000",
        ),
        (
            vec!["BREAKER", "b", "x", "1"],
            "ERR value is not an integer or out of range",
        ),
        (vec!["BREAKER", "b", "1"], SYNTAX),
        (
            vec!["BREAKER", "b", "1", "1", "BREAKER", "b", "1", "1"],
            SYNTAX,
        ),
        (vec!["RESET"], SYNTAX),
    ] {
        let command = ["CACHE.FETCH", "k", "LEASE", "5"];
        let command: Vec<_> = command.into_iter().chain(words).collect();
        assert_eq!(client.call(command.clone()).err(), expected, "{command:?}");
    }
    assert_eq!(client.call(["CACHE.BREAKER", ""]).err(), out);
    assert_eq!(client.call(["CACHE.BREAKER", &long]).err(), out);
    assert_eq!(client.run("CACHE.BREAKER b RESET RESET").err(), SYNTAX);
    assert_eq!(client.run("CACHE.BREAKER b x").err(), SYNTAX);
    let longest = "n".repeat(128);
    let line = format!("CACHE.FETCH k LEASE 5 BREAKER {longest} 1000000 86400000");
    assert_eq!(shown(&client.must(&line)), "LEASE -");
}

#[test]
fn a_server_remembers_its_own_breakers_and_no_more_than_it_may() {
    let server = Server::builder()
        .module_args(&["cache-max-breakers", "2"])
        .start();
    let mut client = Raw::connect(&server);
    for name in ["a", "b", "c"] {
        client.must(&format!(
            "CACHE.FETCH {name} LEASE 600000 BREAKER {name} 1 5"
        ));
    }
    let known = ["a", "b", "c"].map(|name| !client.must(&format!("CACHE.BREAKER {name}")).is_nil());
    assert_eq!(known, [false, true, true]);
    let (master, replica) = pair();
    Raw::connect(&master).must("CACHE.FETCH k LEASE 5 BREAKER a 1 5");
    assert!(Raw::connect(&replica).must("CACHE.BREAKER a").is_nil());
}

#[test]
fn without_names_no_breaker_has_an_effect() {
    let (_server, mut client) = server_and_client();
    let fetch = |key: &str| format!("CACHE.FETCH {key} LEASE 600000 BREAKER b 1 600000");
    let token = number(&client.must(&fetch("k")), "LEASE -");
    client.must(&format!("CACHE.FAIL k {token}"));
    assert_eq!(shown(&client.must(&fetch("k"))), "DOWN -");
    client.must("CONFIG SET sluice.cache-max-breakers 0");
    assert_eq!(shown(&client.must(&fetch("k"))), "LEASE -");
    assert!(client.must("CACHE.BREAKER b").is_nil());
    assert_eq!(client.must("CACHE.BREAKER b RESET"), 0);
    client.must("CONFIG SET sluice.cache-max-breakers 1");
    assert_eq!(shown(&client.must(&fetch("other"))), "DOWN -");
}

#[test]
fn a_new_name_removes_up_to_sixteen_if_there_are_too_many() {
    let (_server, mut client) = server_and_client();
    let names: Vec<_> = (0..40).map(|number| format!("b{number}")).collect();
    for name in &names {
        client.must(&format!(
            "CACHE.FETCH {name} LEASE 600000 BREAKER {name} 1 5"
        ));
    }
    client.must("CONFIG SET sluice.cache-max-breakers 2");
    client.must("CACHE.FETCH k LEASE 600000 BREAKER new 1 5");
    let is_known = |name: &String| !client.must(&format!("CACHE.BREAKER {name}")).is_nil();
    let known: Vec<_> = names.iter().map(is_known).collect();
    assert_eq!(known, [vec![false; 16], vec![true; 24]].concat());
}
