//! The state machines of entries, leases and queues against naive models: each by itself, and all together in random
//! histories of commands, time, server events and disconnects.

use std::collections::BTreeMap;

use crate::support::Random;
use proptest::prelude::*;
use sluice::cache::lease::{Lease, LeaseStatus, Leases};
use sluice::cache::state::{
    CacheEntry, EarlyRefresh, EntryKind, EntryVersion, Freshness, Invalidation, InvalidationChange,
    NewEntry, StoreRefusal, TokenStatus, admit, decide_invalidation, is_due_to_slide, jittered,
};
use sluice::key_queues::{KeyQueues, KeyWaiter};
use sluice::waiting;

// Entries

/// The start of each history (Unix ms). It is arbitrary.
pub(super) const START: u64 = 1_000_000;

/// A step in the life of a key, with small numbers so that its times meet often.
#[derive(Debug, Clone)]
enum Step {
    Store {
        value: Option<u8>,
        fresh: u64,
        stale: u64,
        version: Option<u64>,
        /// By the lease that was given last, if it is this.
        token: bool,
    },
    Invalidate {
        stale: u64,
        grace: u64,
        version: Option<u64>,
    },
    Slide {
        slide: u64,
    },
    Lease,
    Wait {
        ms: u64,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let version = || proptest::option::of(0..6u64);
    let time = || prop_oneof![Just(0u64), 0..80u64];
    prop_oneof![
        4 => (proptest::option::of(any::<u8>()), 1..80u64, time(), version(), any::<bool>())
            .prop_map(|(value, fresh, stale, version, token)| {
                Step::Store { value, fresh, stale, version, token }
            }),
        3 => (time(), time(), version())
            .prop_map(|(stale, grace, version)| Step::Invalidate { stale, grace, version }),
        1 => (1..80u64).prop_map(|slide| Step::Slide { slide }),
        2 => Just(Step::Lease),
        4 => (0..50u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// The key as the server has it.
#[derive(Default)]
struct Subject {
    entry: Option<CacheEntry>,
    expires: u64,
    /// When the key's lease was given, if there is one.
    lease: Option<u64>,
}

impl Subject {
    fn pass(&mut self, now: u64) {
        if self.entry.is_some() && self.expires <= now {
            // An expiry ends a lease as any change does.
            *self = Self::default();
        }
    }

    fn freshness(&self, now: u64) -> Freshness {
        let freshness = |entry: &CacheEntry| entry.freshness(now, || Some(self.expires));
        self.entry.as_ref().map_or(Freshness::Missing, freshness)
    }

    fn invalidate(&mut self, request: &Invalidation, now: u64) -> bool {
        let expires = self.entry.is_some().then_some(self.expires);
        let (existed, change) = decide_invalidation(self.entry.as_ref(), expires, request, now);
        match change {
            InvalidationChange::Unchanged => {}
            InvalidationChange::Delete => self.entry = None,
            InvalidationChange::Mark(mark) => {
                let entry = self.entry.get_or_insert_with(CacheEntry::tombstone);
                entry.invalidate(&mark);
                self.expires = mark.expires();
            }
        }
        existed
    }
}

/// The contract of an entry: what a reader sees until when, and what is refused until when.
#[derive(Default)]
pub(super) struct Model {
    pub(super) value: Option<u8>,
    pub(super) fresh_until: u64,
    pub(super) stale_until: u64,
    /// Whether there is anything to serve at all.
    pub(super) stored: bool,
    /// The version that is remembered, and whether it is that of a deletion.
    pub(super) version: Option<u64>,
    pub(super) deleted: bool,
    /// Until when the version is remembered, if the entry itself does not keep it.
    pub(super) grace_until: u64,
    pub(super) lease: Option<u64>,
}

impl Model {
    pub(super) fn is_served(&self, now: u64) -> bool {
        self.stored && now < self.stale_until.max(self.fresh_until)
    }

    /// Nothing of it is left.
    pub(super) fn is_gone(&self, now: u64) -> bool {
        !self.is_served(now) && self.grace_until <= now
    }

    pub(super) fn store(
        &mut self,
        value: Option<u8>,
        fresh: u64,
        stale: u64,
        version: Option<u64>,
        now: u64,
    ) {
        let grace_until = match self.grace_until {
            until if until > now => until,
            _ => 0,
        };
        let remembered = self.version.filter(|_| grace_until > 0);
        *self = Model {
            value,
            fresh_until: now + fresh,
            stale_until: now + fresh + stale,
            stored: true,
            version: remembered.max(version),
            deleted: false,
            grace_until,
            lease: self.lease,
        };
    }

    pub(super) fn slide(&mut self, slide: u64, now: u64) {
        let stale = self.stale_until - self.fresh_until;
        self.fresh_until = now + slide;
        self.stale_until = self.fresh_until + stale;
    }

    /// Returns whether there was an entry to serve.
    pub(super) fn invalidate(
        &mut self,
        stale: u64,
        grace: u64,
        version: Option<u64>,
        now: u64,
    ) -> bool {
        let existed = self.is_served(now);
        if existed || self.grace_until > now || grace > 0 {
            let serves = existed && stale > 0;
            let limit = if self.fresh_until > now {
                u64::MAX
            } else {
                self.stale_until
            };
            // The version of an earlier invalidation is kept, and so is that of an entry that is still served.
            let in_grace = self.deleted || self.grace_until > now;
            let keeps = in_grace || serves || version.is_some();
            let kept = self.version.filter(|_| keeps);
            *self = Model {
                value: self.value.filter(|_| serves),
                fresh_until: 0,
                stale_until: if serves { limit.min(now + stale) } else { 0 },
                stored: serves,
                version: kept.max(version),
                deleted: true,
                grace_until: self.grace_until.max(now + grace),
                lease: None,
            };
            if self.is_gone(now) {
                *self = Model::default();
            }
        }
        existed
    }

    pub(super) fn was_there(&self) -> bool {
        self.stored || self.grace_until > 0
    }

    fn pass(&mut self, now: u64) {
        if self.was_there() && self.is_gone(now) {
            *self = Self::default();
        }
    }
}

fn entry_story(steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut subject, mut model) = (Subject::default(), Model::default());
    let mut now = START;
    for step in steps {
        match *step {
            Step::Wait { ms } => now += ms,
            Step::Lease => {
                subject.pass(now);
                model.pass(now);
                subject.lease = Some(now);
                model.lease = Some(now);
            }
            Step::Store {
                value,
                fresh,
                stale,
                version,
                token,
            } => {
                let claim = match (token, subject.lease) {
                    (false, _) => TokenStatus::None,
                    (true, Some(since)) => TokenStatus::Current(since),
                    (true, None) => TokenStatus::Ended,
                };
                let new = version.map(EntryVersion::new);
                let got = admit(subject.entry.as_ref(), claim, new);
                let expected = match model.lease {
                    None if token => Err(StoreRefusal::NotCurrent),
                    Some(since) if token && since < model.grace_until => Err(StoreRefusal::InGrace),
                    _ if version.is_some() && model.version > version => Err(StoreRefusal::Older),
                    _ => Ok(()),
                };
                prop_assert_eq!(got, expected);
                if got.is_ok() {
                    let kind = if value.is_some() {
                        EntryKind::Value
                    } else {
                        EntryKind::Negative
                    };
                    let bytes: &[u8] = &value.map_or(vec![], |byte| vec![byte; 3]);
                    let new = NewEntry {
                        kind,
                        fresh_ms: fresh,
                        stale_ms: stale,
                        version: new,
                        rebuild_us: None,
                    };
                    let entry = subject.entry.get_or_insert_with(CacheEntry::tombstone);
                    subject.expires = entry.store(&new, bytes, now);
                    model.store(value, fresh, stale, version, now);
                    model.lease = None;
                }
                if got.is_ok() || token && got != Err(StoreRefusal::NotCurrent) {
                    subject.lease = None;
                    model.lease = None;
                }
            }
            Step::Invalidate {
                stale,
                grace,
                version,
            } => {
                let request = Invalidation {
                    stale_ms: stale,
                    grace_ms: grace,
                    version: version.map(EntryVersion::new),
                };
                let existed = subject.invalidate(&request, now);
                let expected = model.invalidate(stale, grace, version, now);
                prop_assert_eq!(existed, expected);
                subject.lease = None;
                model.lease = None;
            }
            Step::Slide { slide } => {
                // Only a fresh value slides.
                if let Freshness::Fresh(left) = subject.freshness(now)
                    && is_due_to_slide(slide, left)
                {
                    let expires = Some(subject.expires);
                    if let Some(entry) = &mut subject.entry
                        && let Some(later) = entry.slide(slide, now, expires)
                    {
                        subject.expires = later;
                    }
                    model.slide(slide, now);
                }
            }
        }
        subject.pass(now);
        model.pass(now);
        agree(&subject, &model, now)?;
    }
    Ok(())
}

/// What can be seen of both is the same.
fn agree(subject: &Subject, model: &Model, now: u64) -> Result<(), TestCaseError> {
    let expected = match model {
        model if !model.is_served(now) => Freshness::Missing,
        model if now < model.fresh_until => Freshness::Fresh(model.fresh_until - now),
        model => Freshness::Stale(model.stale_until - now),
    };
    prop_assert_eq!(subject.freshness(now), expected);
    prop_assert_eq!(subject.entry.is_none(), model.is_gone(now));
    let Some(entry) = &subject.entry else {
        return Ok(());
    };
    let until = model.stale_until.max(model.fresh_until);
    prop_assert_eq!(subject.expires, until.max(model.grace_until));
    let grace = (model.grace_until > now).then_some(model.grace_until);
    prop_assert_eq!(entry.grace_until(now), grace);
    prop_assert_eq!(entry.version.map(EntryVersion::number), model.version);
    if expected != Freshness::Missing {
        let value = model.value.map(|byte| vec![byte; 3]);
        prop_assert_eq!(entry.value().map(<[u8]>::to_vec), value);
    }
    if let Freshness::Fresh(_) = expected {
        let stale = model.stale_until - model.fresh_until;
        prop_assert_eq!(entry.stale_time(Some(subject.expires)), stale);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 50 } else { 10_000 }, ..ProptestConfig::default() })]

    #[test]
    fn an_entry_is_what_the_contract_tells_of_it(
        steps in proptest::collection::vec(any_step(), 1..40)
    ) {
        entry_story(&steps)?;
    }
}

#[test]
fn an_entry_without_an_expiry_of_its_key_is_stale_forever() {
    let mut entry = CacheEntry::tombstone();
    let new = NewEntry {
        kind: EntryKind::Value,
        fresh_ms: 10,
        stale_ms: 5,
        version: None,
        rebuild_us: None,
    };
    entry.store(&new, b"v", START);
    assert_eq!(entry.freshness(START + 9, || None), Freshness::Fresh(1));
    assert_eq!(
        entry.freshness(START + 10, || None),
        Freshness::Stale(u64::MAX)
    );
    assert_eq!(entry.stale_time(None), u64::MAX);
    let request = Invalidation {
        stale_ms: 7,
        ..Invalidation::default()
    };
    let (existed, change) = decide_invalidation(Some(&entry), None, &request, START + 20);
    assert!(existed);
    let InvalidationChange::Mark(mark) = change else {
        panic!("{change:?}");
    };
    assert_eq!(mark.expires(), START + 27);
}

#[test]
fn a_hit_slides_when_less_than_seven_eighths_are_left() {
    for slide in [1u64, 7, 8, 9, 800, 315_360_000_000] {
        let limit = slide - slide / 8;
        assert!(is_due_to_slide(slide, limit - 1), "{slide}");
        assert!(!is_due_to_slide(slide, limit), "{slide}");
        assert!(!is_due_to_slide(slide, u64::MAX), "{slide}");
    }
}

// Chance

#[test]
fn jitter_stays_within_its_percentage_and_is_spread_evenly() {
    const DRAWS: u64 = 100_000;
    let mut random = Random(7);
    for (ms, percent) in [
        (1000u64, 10u64),
        (1000, 100),
        (60_000, 33),
        (1, 100),
        (7, 0),
    ] {
        let most = ms * percent / 100;
        let (low, high) = ((ms - most).max(1), ms + most);
        let mut parts = [0u64; 10];
        for _ in 0..DRAWS {
            let ms = jittered(ms, percent, random.word());
            assert!((low..=high).contains(&ms), "{ms}");
            parts[((ms - low) * 10 / (high - low + 1)) as usize] += 1;
        }
        if most >= 100 {
            // Each part is expected to have a tenth, give or take 95; six times that never happens.
            assert!(
                parts.iter().all(|part| part.abs_diff(DRAWS / 10) < 600),
                "{parts:?}"
            );
        }
    }
    // Both ends are reached.
    assert_eq!(jittered(1000, 10, 0), 900);
    assert_eq!(jittered(1000, 10, 200), 1100);
    assert_eq!(jittered(1000, 10, 201), 900);
    // The longest time is no trouble.
    let longest = 315_360_000_000;
    for draw in [0, 1, u64::MAX, u64::MAX / 2] {
        assert!((1..=2 * longest).contains(&jittered(longest, 100, draw)));
    }
}

fn rebuilt_in(ms: u32) -> CacheEntry {
    CacheEntry {
        rebuild_us: ms * 1000,
        ..CacheEntry::tombstone()
    }
}

#[test]
fn early_rebuilds_come_as_often_as_xfetch_says() {
    const DRAWS: u32 = 40_000;
    let mut random = Random(11);
    for (delta, beta, left) in [
        (100u32, 1.0, 0u64),
        (100, 1.0, 50),
        (100, 1.0, 100),
        (100, 1.0, 250),
        (100, 1.0, 400),
        (10, 1.0, 60),
        (100, 3.0, 250),
        (100, 0.5, 100),
        (3, 1.0, 6),
        (5000, 0.1, 400),
    ] {
        let entry = rebuilt_in(delta);
        let early = (0..DRAWS)
            .filter(|_| entry.wants_refresh(EarlyRefresh::Beta(beta), left, || random.word()));
        let rate = early.count() as f64 / f64::from(DRAWS);
        // P(-delta * beta * ln(u) >= left)
        let expected = (-(left as f64) / (f64::from(delta) * beta)).exp();
        let deviation = (expected * (1.0 - expected) / f64::from(DRAWS)).sqrt();
        assert!(
            (rate - expected).abs() <= 5.0 * deviation,
            "{delta} {beta} {left}: {rate}, {expected} expected"
        );
    }
}

#[test]
fn no_early_rebuild_without_a_reason() {
    let never = |entry: &CacheEntry, refresh, left| {
        [0, 1 << 11, u64::MAX]
            .into_iter()
            .all(|draw| !entry.wants_refresh(refresh, left, || draw))
    };
    assert!(never(&rebuilt_in(4_000_000), EarlyRefresh::Off, 1));
    // It is not known how long a rebuild takes, or nobody is to care.
    assert!(never(
        &CacheEntry::tombstone(),
        EarlyRefresh::Beta(1000.0),
        1
    ));
    assert!(never(&rebuilt_in(100), EarlyRefresh::Beta(0.0), 1));
    // No draw is so small that a quick rebuild begins hours before.
    assert!(never(&rebuilt_in(1), EarlyRefresh::Beta(1.0), 3_600_000));
    let entry = rebuilt_in(100);
    for (early, left, expected) in [
        (0, 1, false),
        (10, 10, false),
        (10, 9, true),
        (u64::MAX, 9, true),
    ] {
        assert_eq!(
            entry.wants_refresh(EarlyRefresh::Before(early), left, || panic!("no chance")),
            expected
        );
    }
}

#[test]
fn all_draws_are_good_for_an_early_rebuild() {
    let entry = CacheEntry {
        rebuild_us: u32::MAX,
        ..CacheEntry::tombstone()
    };
    // The smallest gives the longest time, and neither it nor the largest is infinite.
    assert!(entry.wants_refresh(EarlyRefresh::Beta(1.0), 1_000_000, || 0));
    assert!(!entry.wants_refresh(EarlyRefresh::Beta(1.0), 1, || u64::MAX));
    assert!(entry.wants_refresh(EarlyRefresh::Beta(1.0), 0, || u64::MAX));
    // -ln(2^-53) is 36.737, and no draw gives more.
    for (left, expected) in [(36_700, true), (36_800, false)] {
        let is_early = rebuilt_in(1000).wants_refresh(EarlyRefresh::Beta(1.0), left, || 0);
        assert_eq!(is_early, expected, "{left}");
    }
}

// Leases

#[derive(Debug, Clone)]
enum Act {
    Grant { db: i32, key: u8, ms: u64 },
    Revoke { db: i32, key: u8 },
    RevokeAnywhere { key: u8 },
    Fail { db: i32, key: u8, ms: u64 },
    Remove { db: i32, key: u8 },
    Clear { db: Option<i32> },
    ClearSlot { slot: u16 },
    Wait { ms: u64 },
}

fn any_act() -> impl Strategy<Value = Act> {
    let place = || (0..3i32, 0..5u8);
    prop_oneof![
        8 => (place(), 1..60u64).prop_map(|((db, key), ms)| Act::Grant { db, key, ms }),
        2 => place().prop_map(|(db, key)| Act::Revoke { db, key }),
        1 => (0..5u8).prop_map(|key| Act::RevokeAnywhere { key }),
        3 => (place(), 1..60u64).prop_map(|((db, key), ms)| Act::Fail { db, key, ms }),
        1 => place().prop_map(|(db, key)| Act::Remove { db, key }),
        1 => proptest::option::of(0..3i32).prop_map(|db| Act::Clear { db }),
        1 => (0..SLOTS).prop_map(|slot| Act::ClearSlot { slot }),
        5 => (0..40u64).prop_map(|ms| Act::Wait { ms }),
    ]
}

/// So many hash slots the keys are in.
const SLOTS: u16 = 3;

/// All leases in one list.
type List = Vec<((i32, u8), Lease)>;

/// Gives a lease away, or makes it pause, as one would by hand: in the place of the key's own, in a free place, or in that
/// of the one that has ended first.
fn grant_by_hand(list: &mut List, place: (i32, u8), lease: Lease, now: u64, most: usize) -> bool {
    let is_other =
        |(at, other): &&((i32, u8), Lease)| *at != place && other.is_backoff == lease.is_backoff;
    while list.iter().filter(is_other).count() >= most {
        let ended = list.iter().enumerate();
        let ended = ended
            .filter(|(_, (_, other))| other.until <= now && other.is_backoff == lease.is_backoff);
        let first = ended.min_by_key(|(_, (_, lease))| (lease.until, lease.token));
        let Some((index, _)) = first else {
            return false;
        };
        list.remove(index);
    }
    list.retain(|(at, _)| *at != place);
    list.push((place, lease));
    true
}

fn lease_story(acts: &[Act], most: usize) -> Result<(), TestCaseError> {
    let slot_of = |key: &[u8]| u16::from(key[0]) % SLOTS;
    let (mut leases, mut list) = (Leases::with_slots(1, 0, slot_of), List::new());
    let (mut now, mut last_token) = (START, 0);
    for act in acts {
        match *act {
            Act::Wait { ms } => now += ms,
            Act::Grant { db, key, ms } => {
                if leases.status(db, &[key], now) != LeaseStatus::Free {
                    continue; // nobody asks then
                }
                last_token += 1;
                let lease = Lease {
                    token: last_token,
                    since: now * 1000,
                    until: now + ms,
                    is_backoff: false,
                    breaker: None,
                    has_timed_out: false,
                };
                let granted = leases.grant(db, &[key], lease, now, most);
                let expected = grant_by_hand(&mut list, (db, key), lease, now, most);
                prop_assert_eq!(granted, expected);
                prop_assert_eq!(leases.is_current(db, &[key], last_token), granted);
            }
            Act::Revoke { db, key } => {
                leases.revoke(db, &[key]);
                list.retain(|(at, lease)| *at != (db, key) || lease.is_backoff);
            }
            Act::RevokeAnywhere { key } => {
                let mut dbs = leases.databases_of(&[key]);
                for db in &dbs {
                    leases.revoke(*db, &[key]);
                }
                dbs.sort_unstable();
                let mut expected: Vec<i32> = list
                    .iter()
                    .filter(|((_, at), lease)| *at == key && !lease.is_backoff)
                    .map(|((db, _), _)| *db)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(dbs, expected);
                list.retain(|((_, at), lease)| *at != key || lease.is_backoff);
            }
            Act::Fail { db, key, ms } => {
                leases.fail(db, &[key], now + ms, now, most);
                if let Some(index) = list.iter().position(|(at, _)| *at == (db, key)) {
                    let (place, mut pause) = list.remove(index);
                    (pause.until, pause.is_backoff) = (now + ms, true);
                    grant_by_hand(&mut list, place, pause, now, most);
                }
            }
            Act::Remove { db, key } => {
                let removed = leases.remove(db, &[key]);
                let found = list.iter().find(|(at, _)| *at == (db, key));
                prop_assert_eq!(removed, found.map(|(_, lease)| *lease));
                list.retain(|(at, _)| *at != (db, key));
            }
            Act::Clear { db } => {
                leases.clear(db);
                list.retain(|((of, _), _)| db.is_some_and(|db| *of != db));
            }
            Act::ClearSlot { slot } => {
                leases.clear_slots(&[(slot, slot)]);
                list.retain(|((_, key), _)| u16::from(*key) % SLOTS != slot);
            }
        }
        same_leases(&leases, &list, now, most)?;
    }
    Ok(())
}

fn same_leases(leases: &Leases, list: &List, now: u64, most: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(leases.len(), list.len());
    prop_assert_eq!(leases.is_empty(), list.is_empty());
    let pauses = list.iter().filter(|(_, lease)| lease.is_backoff).count();
    prop_assert!(pauses <= most && list.len() - pauses <= most);
    let out = list
        .iter()
        .filter(|(_, lease)| !lease.is_backoff && lease.until > now);
    prop_assert_eq!(leases.count_active(now), out.count());
    for db in 0..3 {
        for key in 0..5u8 {
            let found = list.iter().find(|(at, _)| *at == (db, key));
            let lease = found.map(|(_, lease)| *lease);
            prop_assert_eq!(leases.get(db, &[key]).copied(), lease);
            let expected = match lease {
                Some(lease) if lease.until > now && lease.is_backoff => {
                    LeaseStatus::BackingOff(lease.until - now)
                }
                Some(lease) if lease.until > now => LeaseStatus::Leased(lease.until - now),
                _ => LeaseStatus::Free,
            };
            prop_assert_eq!(leases.status(db, &[key], now), expected);
            // Also a lease whose time is up is current until somebody else gets one.
            if let Some(lease) = lease {
                prop_assert_eq!(
                    leases.is_current(db, &[key], lease.token),
                    !lease.is_backoff
                );
                prop_assert!(!leases.is_current(db, &[key], lease.token + 1));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 50 } else { 10_000 }, ..ProptestConfig::default() })]

    #[test]
    fn leases_are_what_a_list_of_them_is(
        acts in proptest::collection::vec(any_act(), 1..60),
        most in 0..8usize,
    ) {
        lease_story(&acts, most)?;
    }
}

#[test]
fn a_full_table_forgets_the_lease_that_ended_first_and_none_that_is_out() {
    let mut leases = Leases::default();
    let lease = |token, until| Lease {
        token,
        since: 0,
        until,
        is_backoff: false,
        breaker: None,
        has_timed_out: false,
    };
    assert!(leases.grant(0, b"a", lease(1, 30), 0, 3));
    assert!(leases.grant(0, b"b", lease(2, 10), 0, 3));
    assert!(leases.grant(0, b"c", lease(3, 20), 0, 3));
    assert!(!leases.grant(0, b"d", lease(4, 99), 9, 3));
    assert!(leases.grant(0, b"d", lease(5, 99), 25, 3));
    assert!(!leases.is_current(0, b"b", 2), "it ended first");
    assert!(leases.is_current(0, b"c", 3), "it ended later");
    assert!(leases.is_current(0, b"a", 1), "it is out");
    // With a smaller limit than there are, also a key that has one gets the next only when others have ended.
    assert!(!leases.grant(0, b"d", lease(6, 99), 25, 1));
    assert!(leases.grant(0, b"d", lease(7, 99), 30, 1));
    assert!(!leases.is_current(0, b"a", 1), "it ended");
    assert!(!leases.grant(0, b"d", lease(8, 99), 200, 0));
}

// Queues

#[derive(Debug, Clone)]
enum Turn {
    Push { db: i32, key: u8 },
    Remove { index: usize },
    Retry { db: i32, key: u8, at: Option<u64> },
    Outcome { db: i32, key: u8 },
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        5 => (0..3i32, 0..4u8).prop_map(|(db, key)| Turn::Push { db, key }),
        4 => (0..20usize).prop_map(|index| Turn::Remove { index }),
        2 => (0..3i32, 0..4u8, proptest::option::of(0..9u64))
            .prop_map(|(db, key, at)| Turn::Retry { db, key, at }),
        1 => (0..3i32, 0..4u8).prop_map(|(db, key)| Turn::Outcome { db, key }),
    ]
}

/// The queue of each key, each ticket with its outcome, and when it is served again.
type Queues = BTreeMap<(i32, u8), (Vec<(u64, Option<usize>)>, Option<u64>)>;

fn queue_story(turns: &[Turn]) -> Result<(), TestCaseError> {
    let (mut queue, mut queues) = (KeyQueues::default(), Queues::new());
    let (mut tickets, mut outcomes): (Vec<u64>, usize) = (Vec::new(), 0);
    for turn in turns {
        match *turn {
            Turn::Push { db, key } => {
                let waiter = KeyWaiter {
                    key: (db, [key].into()),
                    since_us: 0,
                    deadline: None,
                    request: key,
                };
                let ticket = queue.push(waiter.clone());
                prop_assert!(tickets.iter().all(|earlier| *earlier < ticket));
                prop_assert_eq!(queue.get(ticket), Some(&waiter));
                tickets.push(ticket);
                queues.entry((db, key)).or_default().0.push((ticket, None));
            }
            Turn::Remove { index } => {
                // Also those that have gone before.
                let Some(ticket) = tickets.get(index).copied() else {
                    continue;
                };
                let of = queues
                    .iter()
                    .find(|(_, (of_key, _))| of_key.iter().any(|(other, _)| *other == ticket));
                let of = of.map(|(of, _)| *of);
                let removed = queue.remove(ticket).map(|waiter| waiter.key);
                prop_assert_eq!(removed, of.map(|(db, key)| (db, [key].into())));
                prop_assert_eq!(queue.get(ticket), None);
                for (tickets_of_key, _) in queues.values_mut() {
                    tickets_of_key.retain(|(other, _)| *other != ticket);
                }
                queues.retain(|_, (tickets_of_key, _)| !tickets_of_key.is_empty());
            }
            Turn::Retry { db, key, at } => {
                queue.set_retry(db, &[key], at);
                if let Some((_, retry)) = queues.get_mut(&(db, key)) {
                    *retry = at;
                }
            }
            Turn::Outcome { db, key } => {
                outcomes += 1;
                queue.set_outcome(db, &[key], outcomes);
                if let Some((tickets_of_key, _)) = queues.get_mut(&(db, key)) {
                    for (_, outcome) in tickets_of_key {
                        outcome.get_or_insert(outcomes);
                    }
                }
            }
        }
        same_queues(&queue, &queues)?;
    }
    Ok(())
}

fn same_queues(queue: &KeyQueues<u8, usize>, queues: &Queues) -> Result<(), TestCaseError> {
    let all: usize = queues
        .values()
        .map(|(tickets_of_key, _)| tickets_of_key.len())
        .sum();
    prop_assert_eq!(queue.len(), all);
    prop_assert_eq!(queue.is_empty(), all == 0);
    let retries = queues.values().filter_map(|(_, retry)| *retry);
    prop_assert_eq!(queue.next_deadline(), retries.min());
    for db in 0..3 {
        for key in 0..4u8 {
            let (tickets_of_key, retry) = queues.get(&(db, key)).cloned().unwrap_or_default();
            for (ticket, outcome) in &tickets_of_key {
                prop_assert_eq!(queue.outcome_of(*ticket).copied(), *outcome);
            }
            let tickets_of_key: Vec<u64> =
                tickets_of_key.iter().map(|(ticket, _)| *ticket).collect();
            prop_assert_eq!(queue.head(db, &[key]), tickets_of_key.first().copied());
            prop_assert_eq!(queue.waiting(db, &[key]), tickets_of_key.len());
            prop_assert_eq!(
                queue.tickets(db, &[key]).collect::<Vec<_>>(),
                tickets_of_key
            );
            prop_assert_eq!(queue.has_retry(db, &[key]), retry.is_some());
        }
    }
    for of in [None, Some(0), Some(1), Some(2)] {
        let mut scan = queue.scan(of);
        let mut keys: Vec<waiting::Key> = Vec::new();
        while let Some(waiting::ScanStep(key)) = queue.next_scanned(&mut scan) {
            keys.extend(key);
        }
        keys.sort();
        let expected = queues
            .keys()
            .filter(|(db, _)| of.is_none_or(|of| of == *db));
        let expected: Vec<waiting::Key> = expected.map(|(db, key)| (*db, [*key].into())).collect();
        prop_assert_eq!(keys, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 50 } else { 5000 }, ..ProptestConfig::default() })]

    #[test]
    fn queues_are_what_lists_of_tickets_are(
        turns in proptest::collection::vec(any_turn(), 1..60)
    ) {
        queue_story(&turns)?;
    }
}

/// Entries of cleared leases stay for a while. They do not count, and sweeps remove them.
#[test]
fn entries_of_cleared_leases_go_in_slices() {
    const MOST: usize = 1000;
    let mut leases = Leases::default();
    let mut token = 0;
    let mut grant = |leases: &mut Leases, db: i32, key: usize| {
        token += 1;
        let lease = Lease {
            token,
            since: START * 1000,
            until: START + 1000,
            is_backoff: false,
            breaker: None,
            has_timed_out: false,
        };
        leases.grant(db, &key.to_le_bytes(), lease, START, MOST)
    };
    // Leases of another database stay all the time.
    for key in 0..MOST / 2 {
        assert!(grant(&mut leases, 1, key));
    }
    for round in 0..20 {
        for key in 0..MOST / 2 {
            assert!(grant(&mut leases, 0, key), "{round}");
        }
        assert!(!grant(&mut leases, 0, MOST), "{round}");
        assert_eq!(leases.len(), MOST);
        leases.clear(Some(0));
        assert_eq!(leases.len(), MOST / 2);
        assert_eq!(leases.count_active(START), MOST / 2);
    }
    let slices = (0..).take_while(|_| leases.sweep(100)).count();
    assert!(slices <= 2 * MOST / 100, "{slices}");
    assert_eq!(leases.len(), MOST / 2);
    leases.clear(None);
    assert!(leases.is_empty());
    while leases.sweep(100) {}
    assert!(!leases.sweep(0));
}
