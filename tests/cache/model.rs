//! The state machine of an entry, the leases and the lines of those who wait, against models so naive that one sees that
//! they are right: entries that keep their whole history, tables that are lists.

use std::collections::BTreeMap;

use crate::support::Random;
use proptest::prelude::*;
use sluice::cache::lease::{Lease, Leases, Rebuild};
use sluice::cache::queue::{Queue, Waiter};
use sluice::cache::state::{
    Claim, Entry, Kind, Look, Refresh, Refusal, Remains, Terms, Version, admit, is_due_to_slide,
    jittered,
};
use sluice::waiting;

// Entries

/// When the model's story begins: any time would do.
const START: u64 = 1_000_000;

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
    entry: Option<Entry>,
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

    fn look(&self, now: u64) -> Look {
        let look = |entry: &Entry| entry.look(now, || Some(self.expires));
        self.entry.as_ref().map_or(Look::Missing, look)
    }
}

/// The contract, as one would tell it: what a reader sees until when, and what is refused until when.
#[derive(Default)]
struct Model {
    value: Option<u8>,
    fresh_until: u64,
    stale_until: u64,
    /// Whether there is anything to serve at all.
    stored: bool,
    /// The version that is remembered, and whether it is that of a deletion.
    version: Option<u64>,
    deleted: bool,
    /// Until when the version is remembered, if the entry itself does not keep it.
    grace_until: u64,
    lease: Option<u64>,
}

impl Model {
    fn is_served(&self, now: u64) -> bool {
        self.stored && now < self.stale_until.max(self.fresh_until)
    }

    /// Nothing of it is left.
    fn is_gone(&self, now: u64) -> bool {
        !self.is_served(now) && self.grace_until <= now
    }

    fn pass(&mut self, now: u64) {
        let was_there = self.stored || self.grace_until > 0;
        if was_there && self.is_gone(now) {
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
                    (false, _) => Claim::None,
                    (true, Some(since)) => Claim::Current(since),
                    (true, None) => Claim::Ended,
                };
                let new = version.map(Version::new);
                let got = admit(subject.entry.as_ref(), claim, new);
                let expected = match model.lease {
                    None if token => Err(Refusal::NotCurrent),
                    Some(since) if token && since < model.grace_until => Err(Refusal::InGrace),
                    _ if version.is_some() && model.version > version => Err(Refusal::Older),
                    _ => Ok(()),
                };
                prop_assert_eq!(got, expected);
                if got.is_ok() {
                    let kind = if value.is_some() {
                        Kind::Value
                    } else {
                        Kind::Null
                    };
                    let bytes: &[u8] = &value.map_or(vec![], |byte| vec![byte; 3]);
                    let terms = Terms {
                        fresh,
                        stale,
                        version: new,
                    };
                    let entry = subject.entry.get_or_insert_with(Entry::gone);
                    subject.expires = entry.store(kind, bytes, terms, now);
                    let grace_until = match model.grace_until {
                        until if until > now => until,
                        _ => 0,
                    };
                    let remembered = model.version.filter(|_| grace_until > 0);
                    model = Model {
                        value,
                        fresh_until: now + fresh,
                        stale_until: now + fresh + stale,
                        stored: true,
                        version: remembered.max(version),
                        deleted: false,
                        grace_until,
                        lease: None,
                    };
                }
                if got.is_ok() || token && got != Err(Refusal::NotCurrent) {
                    subject.lease = None;
                    model.lease = None;
                }
            }
            Step::Invalidate {
                stale,
                grace,
                version,
            } => {
                let remains = Remains {
                    stale,
                    grace,
                    version: version.map(Version::new),
                };
                let existed = if subject.entry.is_some() || grace > 0 {
                    let expires = subject.entry.is_some().then_some(subject.expires);
                    let entry = subject.entry.get_or_insert_with(Entry::gone);
                    let (existed, stays) = entry.invalidate(remains, now, expires);
                    match stays {
                        Some(until) => subject.expires = until,
                        None => subject.entry = None,
                    }
                    existed
                } else {
                    false
                };
                prop_assert_eq!(existed, model.is_served(now));
                if existed || model.grace_until > now || grace > 0 {
                    let serves = existed && stale > 0;
                    let limit = if model.fresh_until > now {
                        u64::MAX
                    } else {
                        model.stale_until
                    };
                    // A version that an earlier deletion remembers stays, and that of what is still served.
                    let in_grace = model.deleted || model.grace_until > now;
                    let keeps = in_grace || serves || version.is_some();
                    let kept = model.version.filter(|_| keeps);
                    model = Model {
                        value: model.value.filter(|_| serves),
                        fresh_until: 0,
                        stale_until: if serves { limit.min(now + stale) } else { 0 },
                        stored: serves,
                        version: kept.max(version),
                        deleted: true,
                        grace_until: model.grace_until.max(now + grace),
                        lease: None,
                    };
                    if model.is_gone(now) {
                        model = Model::default();
                    }
                }
                subject.lease = None;
                model.lease = None;
            }
            Step::Slide { slide } => {
                // Only a fresh value slides.
                if let Look::Fresh(left) = subject.look(now)
                    && is_due_to_slide(slide, left)
                {
                    let expires = Some(subject.expires);
                    if let Some(entry) = &mut subject.entry
                        && let Some(later) = entry.slide(slide, now, expires)
                    {
                        subject.expires = later;
                    }
                    let stale = model.stale_until - model.fresh_until;
                    model.fresh_until = now + slide;
                    model.stale_until = model.fresh_until + stale;
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
        model if !model.is_served(now) => Look::Missing,
        model if now < model.fresh_until => Look::Fresh(model.fresh_until - now),
        model => Look::Stale(model.stale_until - now),
    };
    prop_assert_eq!(subject.look(now), expected);
    prop_assert_eq!(subject.entry.is_none(), model.is_gone(now));
    let Some(entry) = &subject.entry else {
        return Ok(());
    };
    let until = model.stale_until.max(model.fresh_until);
    prop_assert_eq!(subject.expires, until.max(model.grace_until));
    let grace = (model.grace_until > now).then_some(model.grace_until);
    prop_assert_eq!(entry.grace_until(now), grace);
    prop_assert_eq!(entry.version.map(Version::number), model.version);
    if expected != Look::Missing {
        let value = model.value.map(|byte| vec![byte; 3]);
        prop_assert_eq!(entry.value().map(<[u8]>::to_vec), value);
    }
    if let Look::Fresh(_) = expected {
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
fn an_entry_whose_key_never_expires_is_stale_without_end() {
    let mut entry = Entry::gone();
    let terms = Terms {
        fresh: 10,
        stale: 5,
        version: None,
    };
    entry.store(Kind::Value, b"v", terms, START);
    assert_eq!(entry.look(START + 9, || None), Look::Fresh(1));
    assert_eq!(entry.look(START + 10, || None), Look::Stale(u64::MAX));
    assert_eq!(entry.stale_time(None), u64::MAX);
    let remains = Remains {
        stale: 7,
        ..Remains::default()
    };
    let (existed, stays) = entry.invalidate(remains, START + 20, None);
    assert!(existed);
    assert_eq!(stays, Some(START + 27));
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

fn rebuilt_in(ms: u32) -> Entry {
    Entry {
        rebuild_us: ms * 1000,
        ..Entry::gone()
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
        let early =
            (0..DRAWS).filter(|_| entry.wants_refresh(Refresh::Beta(beta), left, || random.word()));
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
    let never = |entry: &Entry, refresh, left| {
        [0, 1 << 11, u64::MAX]
            .into_iter()
            .all(|draw| !entry.wants_refresh(refresh, left, || draw))
    };
    assert!(never(&rebuilt_in(4_000_000), Refresh::Late, 1));
    // It is not known how long a rebuild takes, or nobody is to care.
    assert!(never(&Entry::gone(), Refresh::Beta(1000.0), 1));
    assert!(never(&rebuilt_in(100), Refresh::Beta(0.0), 1));
    // No draw is so small that a quick rebuild begins hours before.
    assert!(never(&rebuilt_in(1), Refresh::Beta(1.0), 3_600_000));
    let entry = rebuilt_in(100);
    for (early, left, expected) in [
        (0, 1, false),
        (10, 10, false),
        (10, 9, true),
        (u64::MAX, 9, true),
    ] {
        assert_eq!(
            entry.wants_refresh(Refresh::Early(early), left, || panic!("no chance")),
            expected
        );
    }
}

#[test]
fn all_draws_are_good_for_an_early_rebuild() {
    let entry = Entry {
        rebuild_us: u32::MAX,
        ..Entry::gone()
    };
    // The smallest gives the longest time, and neither it nor the largest is infinite.
    assert!(entry.wants_refresh(Refresh::Beta(1.0), 1_000_000, || 0));
    assert!(!entry.wants_refresh(Refresh::Beta(1.0), 1, || u64::MAX));
    assert!(entry.wants_refresh(Refresh::Beta(1.0), 0, || u64::MAX));
    // -ln(2^-53) is 36.737, and no draw gives more.
    for (left, expected) in [(36_700, true), (36_800, false)] {
        let is_early = rebuilt_in(1000).wants_refresh(Refresh::Beta(1.0), left, || 0);
        assert_eq!(is_early, expected, "{left}");
    }
}

// Leases

#[derive(Debug, Clone)]
enum Act {
    Grant { db: i32, key: u8, ms: u64 },
    Void { db: i32, key: u8 },
    VoidAnywhere { key: u8 },
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
        2 => place().prop_map(|(db, key)| Act::Void { db, key }),
        1 => (0..5u8).prop_map(|key| Act::VoidAnywhere { key }),
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
    let is_other = |(at, other): &&((i32, u8), Lease)| *at != place && other.failed == lease.failed;
    while list.iter().filter(is_other).count() >= most {
        let ended = list.iter().enumerate();
        let ended =
            ended.filter(|(_, (_, other))| other.until <= now && other.failed == lease.failed);
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
    let (mut leases, mut list) = (Leases::default(), List::new());
    let (mut now, mut last_token) = (START, 0);
    for act in acts {
        match *act {
            Act::Wait { ms } => now += ms,
            Act::Grant { db, key, ms } => {
                if leases.look(db, &[key], now) != Rebuild::Free {
                    continue; // nobody asks then
                }
                last_token += 1;
                let lease = Lease {
                    token: last_token,
                    since: now * 1000,
                    until: now + ms,
                    failed: false,
                    slot: u16::from(key) % SLOTS,
                };
                let granted = leases.grant(db, &[key], lease, now, most);
                let expected = grant_by_hand(&mut list, (db, key), lease, now, most);
                prop_assert_eq!(granted, expected);
                prop_assert_eq!(leases.is_current(db, &[key], last_token), granted);
            }
            Act::Void { db, key } => {
                leases.revoke(db, &[key]);
                list.retain(|(at, lease)| *at != (db, key) || lease.failed);
            }
            Act::VoidAnywhere { key } => {
                let mut dbs = leases.revoke_in_all_databases(&[key]);
                dbs.sort_unstable();
                let mut expected: Vec<i32> = list
                    .iter()
                    .filter(|((_, at), lease)| *at == key && !lease.failed)
                    .map(|((db, _), _)| *db)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(dbs, expected);
                list.retain(|((_, at), lease)| *at != key || lease.failed);
            }
            Act::Fail { db, key, ms } => {
                leases.fail(db, &[key], now + ms, now, most);
                if let Some(index) = list.iter().position(|(at, _)| *at == (db, key)) {
                    let (place, mut pause) = list.remove(index);
                    (pause.until, pause.failed) = (now + ms, true);
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
                leases.clear_slot(slot);
                list.retain(|(_, lease)| lease.slot != slot);
            }
        }
        same_leases(&leases, &list, now, most)?;
    }
    Ok(())
}

fn same_leases(leases: &Leases, list: &List, now: u64, most: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(leases.len(), list.len());
    prop_assert_eq!(leases.is_empty(), list.is_empty());
    let pauses = list.iter().filter(|(_, lease)| lease.failed).count();
    prop_assert!(pauses <= most && list.len() - pauses <= most);
    let out = list
        .iter()
        .filter(|(_, lease)| !lease.failed && lease.until > now);
    prop_assert_eq!(leases.out(now), out.count());
    for db in 0..3 {
        for key in 0..5u8 {
            let found = list.iter().find(|(at, _)| *at == (db, key));
            let lease = found.map(|(_, lease)| *lease);
            prop_assert_eq!(leases.get(db, &[key]).copied(), lease);
            let expected = match lease {
                Some(lease) if lease.until > now && lease.failed => {
                    Rebuild::Down(lease.until - now)
                }
                Some(lease) if lease.until > now => Rebuild::Out(lease.until - now),
                _ => Rebuild::Free,
            };
            prop_assert_eq!(leases.look(db, &[key], now), expected);
            // Also a lease whose time is up is current until somebody else gets one.
            if let Some(lease) = lease {
                prop_assert_eq!(leases.is_current(db, &[key], lease.token), !lease.failed);
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
        failed: false,
        slot: 0,
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

// Lines

#[derive(Debug, Clone)]
enum Turn {
    Push { db: i32, key: u8 },
    Remove { index: usize },
    Retry { db: i32, key: u8, at: Option<u64> },
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        5 => (0..3i32, 0..4u8).prop_map(|(db, key)| Turn::Push { db, key }),
        4 => (0..20usize).prop_map(|index| Turn::Remove { index }),
        2 => (0..3i32, 0..4u8, proptest::option::of(0..9u64))
            .prop_map(|(db, key, at)| Turn::Retry { db, key, at }),
    ]
}

/// The lines of those who wait by what they wait for, each with when it is looked at again.
type Lines = BTreeMap<(i32, u8), (Vec<u64>, Option<u64>)>;

fn queue_story(turns: &[Turn]) -> Result<(), TestCaseError> {
    let (mut queue, mut lines) = (Queue::default(), Lines::new());
    let mut tickets: Vec<u64> = Vec::new();
    for turn in turns {
        match *turn {
            Turn::Push { db, key } => {
                let waiter = Waiter {
                    key: (db, [key].into()),
                    lease: u64::from(key),
                    deadline: None,
                };
                let ticket = queue.push(waiter.clone());
                prop_assert!(tickets.iter().all(|earlier| *earlier < ticket));
                prop_assert_eq!(queue.get(ticket), Some(&waiter));
                tickets.push(ticket);
                lines.entry((db, key)).or_default().0.push(ticket);
            }
            Turn::Remove { index } => {
                // Also those that have gone before.
                let Some(ticket) = tickets.get(index).copied() else {
                    continue;
                };
                let of = lines.iter().find(|(_, (line, _))| line.contains(&ticket));
                let of = of.map(|(of, _)| *of);
                let removed = queue.remove(ticket).map(|waiter| waiter.0.key);
                prop_assert_eq!(removed, of.map(|(db, key)| (db, [key].into())));
                prop_assert_eq!(queue.get(ticket), None);
                for (line, _) in lines.values_mut() {
                    line.retain(|other| *other != ticket);
                }
                lines.retain(|_, (line, _)| !line.is_empty());
            }
            Turn::Retry { db, key, at } => {
                let before = queue.set_retry(db, &[key], at);
                let line = lines.get_mut(&(db, key));
                let expected = line.and_then(|(_, retry)| std::mem::replace(retry, at));
                prop_assert_eq!(before, expected);
            }
        }
        same_lines(&queue, &lines)?;
    }
    Ok(())
}

fn same_lines(queue: &Queue, lines: &Lines) -> Result<(), TestCaseError> {
    let all: usize = lines.values().map(|(line, _)| line.len()).sum();
    prop_assert_eq!(queue.len(), all);
    prop_assert_eq!(queue.is_empty(), all == 0);
    for db in 0..3 {
        for key in 0..4u8 {
            let (line, retry) = lines.get(&(db, key)).cloned().unwrap_or_default();
            prop_assert_eq!(queue.head(db, &[key]), line.first().copied());
            prop_assert_eq!(queue.waiting(db, &[key]), line.len());
            prop_assert_eq!(queue.tickets(db, &[key]).collect::<Vec<_>>(), line);
            prop_assert_eq!(queue.knows_when(db, &[key]), retry.is_some());
        }
    }
    for of in [None, Some(0), Some(1), Some(2)] {
        let mut walk = queue.walk(of);
        let mut keys: Vec<waiting::Key> = Vec::new();
        while let Some(waiting::Step(key)) = queue.step(&mut walk) {
            keys.extend(key);
        }
        keys.sort();
        let expected = lines.keys().filter(|(db, _)| of.is_none_or(|of| of == *db));
        let expected: Vec<waiting::Key> = expected.map(|(db, key)| (*db, [*key].into())).collect();
        prop_assert_eq!(keys, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 50 } else { 5000 }, ..ProptestConfig::default() })]

    #[test]
    fn lines_are_what_lists_of_tickets_are(
        turns in proptest::collection::vec(any_turn(), 1..60)
    ) {
        queue_story(&turns)?;
    }
}
