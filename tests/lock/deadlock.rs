//! The search for deadlocks against a simulation of the whole world: everybody who doesn't wait
//! releases all it holds, whoever can be served is served, and so on. Who is never served would
//! wait forever.

use proptest::prelude::*;
use sluice::lock::deadlock::{Check, FinishedSearch, Search, check};
use sluice::lock::holds::Hold;
use sluice::lock::queue::{LockWaiter, Queues, Want};
use sluice::lock::state::{Acquire, Acquired, Lock, Mode, RequestedMode, Upgraded};
use sluice::waiting::{Key, Ticket};
use std::collections::{BTreeMap, VecDeque};

const OWNERS: usize = 6;
/// The first keys are locks, the others semaphores with this limit.
const LOCKS: usize = 3;
const KEYS: usize = 5;
const LIMIT: u64 = 3;

#[derive(Debug, Clone)]
struct Try {
    owner: usize,
    keys: Vec<usize>,
    shared: bool,
    permits: u64,
    upgrade: bool,
    /// The capacities that it names for its semaphores.
    limits: [u64; 2],
}

fn any_try() -> impl Strategy<Value = Try> {
    let keys = prop_oneof![
        4 => (0..KEYS).prop_map(|key| vec![key]),
        1 => Just(vec![0, 1]),
        1 => Just(vec![1, 2]),
        1 => Just(vec![0, 1, 2]),
        1 => Just(vec![LOCKS, LOCKS + 1]),
    ];
    let limit = || prop_oneof![3 => Just(LIMIT), 1 => 1..LIMIT];
    (
        0..OWNERS,
        keys,
        any::<bool>(),
        1..=LIMIT,
        prop::bool::weighted(0.1),
        [limit(), limit()],
    )
        .prop_map(|(owner, keys, shared, permits, upgrade, limits)| Try {
            owner,
            upgrade: upgrade && keys.len() == 1 && keys[0] < LOCKS,
            shared: shared && keys.len() == 1,
            keys,
            permits,
            limits: limits.map(|limit| limit.max(permits)),
        })
}

/// Few owners that often upgrade their holds.
fn any_try_of_two_locks() -> impl Strategy<Value = Try> {
    let keys = prop_oneof![
        2 => Just(vec![0]),
        2 => Just(vec![1]),
        1 => Just(vec![0, 1]),
    ];
    (0..4usize, keys, any::<bool>(), prop::bool::weighted(0.3)).prop_map(
        |(owner, keys, shared, upgrade)| Try {
            owner,
            upgrade: upgrade && keys.len() == 1,
            shared: shared && keys.len() == 1,
            keys,
            permits: 1,
            limits: [LIMIT; 2],
        },
    )
}

fn name(owner: usize) -> Vec<u8> {
    vec![b'a' + owner as u8]
}

/// Keys of different databases, to show that these don't matter.
fn key(index: usize) -> Key {
    (index as i32 % 2, vec![index as u8].into())
}

fn waiter(attempt: &Try) -> LockWaiter {
    let claim = if attempt.keys[0] >= LOCKS {
        RequestedMode::Permits {
            count: attempt.permits,
            limit: attempt.limits[0],
        }
    } else if attempt.shared {
        RequestedMode::Shared
    } else {
        RequestedMode::Exclusive
    };
    LockWaiter {
        keys: attempt.keys.iter().map(|index| key(*index)).collect(),
        takes_many: attempt.keys.len() > 1,
        owner: name(attempt.owner).into(),
        want: if attempt.upgrade {
            Want::Upgrade
        } else {
            Want::Acquire(claim)
        },
        lease: 1000,
        id: None,
        watch: None,
        listener: None,
        limits: if attempt.keys.len() > 1 && attempt.keys[0] >= LOCKS {
            attempt.limits.into()
        } else {
            Box::default()
        },
        event: c"",
        since: 0,
        since_us: 0,
        timeout: 0,
    }
}

/// The same request with other limits.
fn with_limits(waiter: &LockWaiter, limits: [u64; 2], at: u64) -> LockWaiter {
    let mut waiter = LockWaiter {
        since_us: at,
        ..waiter.clone()
    };
    if let Want::Acquire(RequestedMode::Permits { count, limit }) = &mut waiter.want {
        let limits = limits.map(|limit| limit.max(*count));
        *limit = limits[0];
        if !waiter.limits.is_empty() {
            waiter.limits = limits.into();
        }
    }
    waiter
}

#[derive(Clone)]
struct World {
    locks: BTreeMap<Key, Lock>,
    /// In the order in which they are served: upgrades first.
    waiting: Vec<LockWaiter>,
    /// The limits in force of semaphores for which clients wait.
    named: BTreeMap<Key, u64>,
    /// The newest limit of a granted client for each semaphore, with the time at which the client named it.
    granted: BTreeMap<Key, (u64, u64)>,
    fence: u64,
}

impl World {
    fn new() -> Self {
        World {
            locks: BTreeMap::new(),
            waiting: Vec::new(),
            named: BTreeMap::new(),
            granted: BTreeMap::new(),
            fence: 0,
        }
    }

    /// Puts a client into the queues.
    fn join(&mut self, place: usize, waiter: LockWaiter) {
        for (index, key) in waiter.keys.iter().enumerate() {
            if let Some((_, limit)) = waiter.permits_at(index) {
                self.named.insert(key.clone(), limit);
            }
        }
        self.waiting.insert(place, waiter);
    }

    /// A client leaves that was granted nothing. The limits that it named no longer count.
    fn leave(&mut self, since: u64) {
        let is_it = |other: &LockWaiter| other.since == since;
        let Some(place) = self.waiting.iter().position(is_it) else {
            return;
        };
        for key in self.waiting.remove(place).keys {
            self.name_newest(&key);
        }
    }

    /// A client repeats its request with other limits, and keeps its place. `at`: when it names them.
    fn repeat(&mut self, place: usize, limits: [u64; 2], at: u64) {
        let waiter = &mut self.waiting[place];
        *waiter = with_limits(waiter, limits, at);
        for key in waiter.keys.clone() {
            self.name_newest(&key);
        }
    }

    /// Sets the limit in force of a semaphore after one has gone.
    fn name_newest(&mut self, key: &Key) {
        let waiting = self.waiting.iter().filter_map(|other| {
            let index = other.keys.iter().position(|own| own == key)?;
            Some((other.since_us, other.permits_at(index)?.1))
        });
        let granted = self.granted.get(key).copied();
        let Some(newest) = waiting.max() else {
            self.named.remove(key);
            return;
        };
        if let Some((_, limit)) = granted.max(Some(newest)) {
            self.named.insert(key.clone(), limit);
        }
    }

    /// A waiting client is granted its permits.
    fn note_grant(&mut self, waiter: &LockWaiter) {
        for (index, key) in waiter.keys.iter().enumerate() {
            if let Some((_, limit)) = waiter.permits_at(index) {
                let granted = self.granted.entry(key.clone()).or_default();
                *granted = (waiter.since_us, limit).max(*granted);
            }
        }
    }

    /// Forgets the limits of semaphores that nobody waits for.
    fn forget_grants(&mut self) {
        let waiting = &self.waiting;
        let is_wanted = |key: &Key| waiting.iter().any(|waiter| waiter.keys.contains(key));
        self.granted.retain(|key, _| is_wanted(key));
    }

    /// The place of a newcomer: upgrades go ahead.
    fn place(&self, newcomer: &LockWaiter) -> usize {
        let is_upgrade = |other: &&LockWaiter| other.want == Want::Upgrade;
        if newcomer.want == Want::Upgrade {
            self.waiting.iter().take_while(is_upgrade).count()
        } else {
            self.waiting.len()
        }
    }

    /// Whether a newcomer has its answer at once: it is served, or would wait for itself.
    fn answers_at_once(&mut self, newcomer: &LockWaiter) -> bool {
        for key in &newcomer.keys {
            if !self.waiting.iter().any(|other| other.keys.contains(key)) {
                self.named.remove(key);
            }
        }
        let ahead = match newcomer.want {
            Want::Upgrade => Vec::new(),
            Want::Acquire(_) => self.waiting.clone(),
        };
        self.try_serve(newcomer, &ahead)
    }

    /// What a client asks for at its key with this index.
    fn claim(&self, waiter: &LockWaiter, index: usize) -> RequestedMode {
        match (waiter.want, waiter.permits_at(index)) {
            (_, Some((count, own))) => {
                let named = self.named.get(&waiter.keys[index]).copied();
                let limit = named.filter(|named| *named >= count).unwrap_or(own);
                RequestedMode::Permits { count, limit }
            }
            (Want::Acquire(mode), None) => mode,
            (Want::Upgrade, None) => unreachable!(),
        }
    }

    /// Who waits forever, if everybody who does not wait releases all.
    fn find_deadlocked(self) -> Option<LockWaiter> {
        self.in_the_end().waiting.into_iter().next()
    }

    /// Shows the held locks to a check.
    fn reader(&self) -> impl FnMut(&Key, &mut dyn FnMut(&Lock)) -> bool {
        |key, visit| {
            if let Some(lock) = self.locks.get(key)
                && !lock.holds().is_empty()
            {
                visit(lock);
            }
            true
        }
    }

    fn lock(&mut self, key: &Key) -> &mut Lock {
        self.locks
            .entry(key.clone())
            .or_insert_with(|| Lock::new(Mode::Exclusive))
    }

    /// Serves one waiter if nobody is ahead of it on any of its keys and all of them are free for
    /// it. Returns whether it got what it wants.
    fn try_serve(&mut self, waiter: &LockWaiter, ahead: &[LockWaiter]) -> bool {
        let behind = |key: &Key| ahead.iter().any(|other| other.keys.contains(key));
        self.fence += 1;
        let fence = self.fence;
        if waiter.want == Want::Upgrade {
            let upgraded = self
                .lock(&waiter.keys[0])
                .upgrade(&waiter.owner, 1000, 0, fence);
            // Who holds nothing any more is told so.
            return !matches!(upgraded, Upgraded::Busy);
        }
        let request = |mode, queued| Acquire {
            owner: &waiter.owner,
            mode,
            kept_limit: None,
            lease: 1000,
            id: None,
            watch: None,
            channel: None,
            queued,
        };
        let mut changed: Vec<(Key, Lock)> = Vec::new();
        let mut is_busy = false;
        for (index, key) in waiter.keys.iter().enumerate() {
            let request = request(self.claim(waiter, index), behind(key));
            let mut lock = self.lock(key).clone();
            match lock.acquire(&request, 0, fence) {
                Acquired::Busy => is_busy = true,
                Acquired::Never => return true, // it is told so
                _ => {}
            }
            changed.push((key.clone(), lock));
        }
        if !is_busy {
            self.locks.extend(changed);
        }
        !is_busy
    }

    /// Lets everybody who doesn't wait release everything, for as long as that serves somebody.
    fn in_the_end(mut self) -> Self {
        loop {
            let waiting = std::mem::take(&mut self.waiting);
            for lock in self.locks.values_mut() {
                for other in (0..OWNERS).map(name) {
                    if !waiting.iter().any(|waiting| *waiting.owner == *other) {
                        lock.drop_owner(&other);
                    }
                }
            }
            let before = waiting.len();
            let mut still: Vec<LockWaiter> = Vec::new();
            for waiter in waiting {
                if !self.try_serve(&waiter, &still) {
                    still.push(waiter);
                }
            }
            self.waiting = still;
            if self.waiting.len() == before {
                return self;
            }
        }
    }

    /// Whether all requests of an owner are served in the end.
    fn serves_in_the_end(self, owner: &[u8]) -> bool {
        let waiting = self.in_the_end().waiting;
        waiting.iter().all(|waiter| *waiter.owner != *owner)
    }
}

/// Compares the check of each newcomer with the simulation.
fn compare_checks(tries: &[Try]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut queues = Queues::default();
    for attempt in tries {
        let newcomer = waiter(attempt);
        let holds_it = newcomer
            .keys
            .iter()
            .any(|key| world.lock(key).holds().get(&newcomer.owner).is_some());
        if newcomer.want == Want::Upgrade && !holds_it {
            continue;
        }
        let before = world.clone();
        if world.answers_at_once(&newcomer) {
            // An upgrade of an owner that waits elsewhere can close a cycle, which a search finds: see `simulate`.
            let waits = |other: &LockWaiter| other.owner == newcomer.owner;
            if newcomer.want == Want::Upgrade && before.waiting.iter().any(waits) {
                world = before;
            }
            continue;
        }
        let mut with_it = world.clone();
        with_it.join(with_it.place(&newcomer), newcomer.clone());
        let never_ends = !with_it.clone().serves_in_the_end(&newcomer.owner);
        let ticket = queues.push(newcomer);
        let checked = check(&mut queues, ticket, &mut { u64::MAX }, &mut world.reader());
        let expected = if never_ends {
            Check::Deadlock
        } else {
            Check::Fine
        };
        prop_assert_eq!(checked, expected, "{:?}", attempt);
        if never_ends {
            queues.withdraw(ticket);
        } else {
            // Nothing else harms those that wait already.
            let may_harm = attempt.keys[0] >= LOCKS || attempt.upgrade;
            let deadlocked = may_harm
                .then(|| with_it.clone().find_deadlocked())
                .flatten();
            prop_assert!(
                deadlocked.is_none(),
                "{:?} deadlocks {:?}",
                attempt,
                deadlocked
            );
            world = with_it;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1000 } else { 20_000 }, ..ProptestConfig::default() })]

    #[test]
    fn a_wait_is_refused_exactly_if_it_would_never_end(tries in prop::collection::vec(any_try(), 1..40)) {
        compare_checks(&tries)?;
    }

    #[test]
    fn an_upgrade_is_refused_exactly_if_its_owner_would_wait_forever(tries in prop::collection::vec(any_try_of_two_locks(), 1..30)) {
        compare_checks(&tries)?;
    }
}

/// What happens while a search goes on.
#[derive(Debug, Clone)]
enum Event {
    /// An owner requests something, and waits if necessary. A search checks it later.
    Try(Try),
    /// The same, but the check takes at most so many steps at once.
    Check(Try, u64),
    /// A client repeats its request with these limits.
    Repeat(usize, [u64; 2]),
    /// A waiter leaves.
    Leave(usize),
    /// An owner gives a key back, perhaps on another connection than the one that waits.
    Release(usize, usize),
    /// A key is deleted.
    Delete(usize),
    /// A lock or a semaphore is renamed to another key.
    Rename(usize, usize),
    /// The search takes so many steps.
    Search(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => any_try().prop_map(Event::Try),
        2 => (any_try(), any_steps()).prop_map(|(attempt, steps)| Event::Check(attempt, steps)),
        1 => (0..20usize, [1..=LIMIT, 1..=LIMIT]).prop_map(|(index, limits)| Event::Repeat(index, limits)),
        1 => (0..20usize).prop_map(Event::Leave),
        2 => (0..OWNERS, 0..KEYS).prop_map(|(owner, key)| Event::Release(owner, key)),
        1 => (0..KEYS).prop_map(Event::Delete),
        1 => (0..LOCKS, 0..LOCKS).prop_map(|(from, to)| Event::Rename(from, to)),
        1 => (LOCKS..KEYS, LOCKS..KEYS).prop_map(|(from, to)| Event::Rename(from, to)),
        4 => (1..30u64).prop_map(Event::Search),
    ]
}

/// Events around two semaphores whose limits often change, and a lock.
fn any_limit_event() -> impl Strategy<Value = Event> {
    let limit = || 1..=LIMIT + 1;
    let keys = prop_oneof![
        1 => Just(vec![0]),
        4 => Just(vec![LOCKS]),
        2 => Just(vec![LOCKS + 1]),
        2 => Just(vec![LOCKS, LOCKS + 1]),
    ];
    let attempt = (0..5usize, keys, 1..=LIMIT, [limit(), limit()]).prop_map(
        |(owner, keys, permits, limits)| Try {
            owner,
            keys,
            shared: false,
            permits,
            upgrade: false,
            limits: limits.map(|limit| limit.max(permits)),
        },
    );
    prop_oneof![
        4 => (attempt, any_steps()).prop_map(|(attempt, steps)| Event::Check(attempt, steps)),
        2 => (0..8usize, [limit(), limit()]).prop_map(|(index, limits)| Event::Repeat(index, limits)),
        1 => (0..8usize).prop_map(Event::Leave),
        1 => (0..5usize, LOCKS..KEYS).prop_map(|(owner, key)| Event::Release(owner, key)),
        3 => (1..25u64).prop_map(Event::Search),
    ]
}

/// The steps of a check at once: none, too few, or so many that it looks at all keys.
fn any_steps() -> impl Strategy<Value = u64> {
    prop_oneof![0..80u64, 300..1000u64]
}

/// A world and the queues that stand for it, with the tickets of the waiters by the time at which they came.
struct Watched {
    world: World,
    queues: Queues,
    tickets: BTreeMap<u64, Ticket>,
    search: Option<Search>,
    /// The last search, which looks for further cycles.
    finished: Option<FinishedSearch>,
    came: u64,
    found: usize,
    /// How many of those are further deadlocks of one search.
    further: usize,
}

impl Watched {
    /// Serves whoever can be served, in order.
    fn serve(&mut self) {
        loop {
            let before = self.world.waiting.len();
            let mut still: Vec<LockWaiter> = Vec::new();
            for waiter in std::mem::take(&mut self.world.waiting) {
                if self.world.try_serve(&waiter, &still) {
                    let ticket = self.tickets[&waiter.since];
                    self.queues.remove_granted(ticket, &[]);
                    self.world.note_grant(&waiter);
                    if self.queues.owner_waits(&waiter.owner) {
                        self.queues.record_new_holds();
                    }
                } else {
                    still.push(waiter);
                }
            }
            self.world.waiting = still;
            self.world.forget_grants();
            if self.world.waiting.len() == before {
                return;
            }
        }
    }

    fn leave(&mut self, ticket: Ticket) {
        self.queues.recheck_without(ticket);
        let Some(waiter) = self.queues.remove(ticket) else {
            return;
        };
        self.world.leave(waiter.since);
        self.serve();
    }

    /// An owner requests something. If it must wait, a check of at most `steps` steps looks for a deadlock.
    fn attempt(&mut self, attempt: &Try, mut steps: u64) -> Result<(), TestCaseError> {
        self.came += 1;
        let newcomer = LockWaiter {
            since: self.came,
            since_us: self.came,
            ..waiter(attempt)
        };
        let holds_it = newcomer
            .keys
            .iter()
            .any(|key| self.world.lock(key).holds().get(&newcomer.owner).is_some());
        if newcomer.want == Want::Upgrade && !holds_it {
            return Ok(());
        }
        if self.world.answers_at_once(&newcomer) {
            // The owner may wait for something else, and excludes more than before.
            match newcomer.want {
                Want::Upgrade => {
                    let (db, name) = &newcomer.keys[0];
                    self.queues.record_upgrade(*db, name, &newcomer.owner);
                }
                Want::Acquire(_) => self.queues.record_new_holds(),
            }
            return Ok(());
        }
        let ticket = self.queues.push(newcomer.clone());
        let mut world = self.world.clone();
        world.join(world.place(&newcomer), newcomer.clone());
        let checked = match steps {
            0 => Check::Unknown,
            _ => check(&mut self.queues, ticket, &mut steps, &mut world.reader()),
        };
        match checked {
            Check::Fine => {}
            Check::Unknown => self.queues.mark_unverified(ticket),
            Check::Deadlock => {
                let served = world.serves_in_the_end(&newcomer.owner);
                prop_assert!(!served, "{:?} could have been served", newcomer);
                self.queues.withdraw(ticket);
                return Ok(());
            }
        }
        self.tickets.insert(self.came, ticket);
        self.world = world;
        Ok(())
    }

    /// A client repeats its request with other limits.
    fn repeat(&mut self, index: usize, limits: [u64; 2]) {
        let Some(waiter) = self.world.waiting.get(index) else {
            return;
        };
        self.came += 1;
        let ticket = self.tickets[&waiter.since];
        let repetition = with_limits(waiter, limits, self.came);
        self.queues.replace(ticket, repetition);
        self.world.repeat(index, limits, self.came);
        self.serve();
    }

    /// Serves whoever can be served because of a key.
    fn changed(&mut self, index: usize) {
        let (db, name) = key(index);
        self.queues.record_change(db, &name);
        self.serve();
    }

    fn rename(&mut self, from: usize, to: usize) {
        let Some(lock) = self.world.locks.remove(&key(from)) else {
            return;
        };
        if !lock.holds().is_empty() {
            self.world.locks.insert(key(to), lock);
        }
        let (db, name) = key(to);
        self.queues.recheck(db, &name);
        self.changed(from);
        self.changed(to);
    }

    /// Takes steps of the search. Returns whether it has come to an end.
    fn search(&mut self, mut steps: u64) -> Result<bool, TestCaseError> {
        let queues = &mut self.queues;
        if let Some(finished) = &mut self.finished {
            let found = finished.find(queues, &mut steps, &mut self.world.reader());
            if !finished.may_find() {
                while !finished.free(queues, &mut 3) {}
                self.finished = None;
            }
            if let Some(ticket) = found {
                self.further += 1;
                self.refuse(ticket)?;
            }
            return Ok(false);
        }
        let search = self
            .search
            .get_or_insert_with(|| Search::of_unverified(queues));
        let result = search.go_on(queues, &mut steps, &mut self.world.reader());
        let (Some(deadlocked), Some(search)) = (result, self.search.take_if(|_| result.is_some()))
        else {
            return Ok(false);
        };
        self.finished = Some(search.conclude(&mut self.queues, deadlocked));
        if let Some(ticket) = deadlocked {
            self.refuse(ticket)?;
        }
        Ok(true)
    }

    /// Refuses a deadlocked client.
    fn refuse(&mut self, ticket: Ticket) -> Result<(), TestCaseError> {
        let waiter = self.queues.get(ticket).cloned();
        let waiter = waiter.ok_or_else(|| TestCaseError::fail("it waits no more"))?;
        let served = self.world.clone().serves_in_the_end(&waiter.owner);
        prop_assert!(!served, "{:?} could have been served", waiter);
        self.found += 1;
        self.leave(ticket);
        Ok(())
    }
}

/// Nobody is refused who could have been served, whatever changes while the search goes on; and when it has looked at
/// everybody, no deadlocked client is left.
fn simulate(events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut watched = Watched {
        world: World::new(),
        queues: Queues::default(),
        tickets: BTreeMap::new(),
        search: None,
        finished: None,
        came: 0,
        found: 0,
        further: 0,
    };
    for event in events {
        for ((db, name), named) in &watched.world.named {
            let is_awaited = |waiter: &LockWaiter| waiter.keys.contains(&(*db, name.clone()));
            if watched.world.waiting.iter().any(is_awaited) {
                prop_assert_eq!(watched.queues.limit(*db, name), Some(*named));
            }
        }
        match event {
            Event::Try(attempt) => watched.attempt(&attempt, 0)?,
            Event::Check(attempt, steps) => watched.attempt(&attempt, steps)?,
            Event::Repeat(index, limits) => watched.repeat(index, limits),
            Event::Leave(index) => {
                if let Some(waiter) = watched.world.waiting.get(index) {
                    let ticket = watched.tickets[&waiter.since];
                    watched.leave(ticket);
                }
            }
            Event::Release(owner, index) => {
                watched.world.lock(&key(index)).drop_owner(&name(owner));
                watched.changed(index);
            }
            Event::Delete(index) => {
                watched.world.locks.remove(&key(index));
                watched.changed(index);
            }
            Event::Rename(from, to) => watched.rename(from, to),
            Event::Search(steps) => {
                watched.search(steps)?;
            }
        }
    }
    let mut slices = 0;
    while watched.queues.has_unverified() || watched.finished.is_some() {
        watched.search(5)?;
        slices += 1;
        prop_assert!(slices < 100_000, "the searches do not end");
    }
    let deadlocked = watched.world.find_deadlocked();
    prop_assert!(deadlocked.is_none(), "{:?} is deadlocked", deadlocked);
    Ok(())
}

/// An owner tries to acquire locks.
fn plain_try(owner: usize, keys: &[usize], shared: bool) -> Try {
    Try {
        owner,
        keys: keys.to_vec(),
        shared,
        permits: 1,
        upgrade: false,
        limits: [LIMIT; 2],
    }
}

fn attempt(owner: usize, keys: &[usize], shared: bool) -> Event {
    Event::Try(plain_try(owner, keys, shared))
}

/// An owner has two requests: one for the first lock, and a later one for this lock and another. Another client waits between them.
/// The later request could overtake this client by re-entry, but then the first request leaves: each of the two waits for the other.
#[test]
fn a_request_that_leaves_no_longer_lets_another_one_of_its_owner_pass() {
    for shared in [true, false] {
        let mut events = vec![
            attempt(0, &[0], false),
            attempt(1, &[1], false),
            attempt(2, &[2], false),
            attempt(1, &[0], shared),
            attempt(3, &[0, 1], false),
            attempt(1, &[0, 2], false),
        ];
        events.extend([1000; 5].map(Event::Search));
        events.push(Event::Leave(0));
        simulate(events).expect("no client is refused or left in a deadlock");
    }
}

/// A client is verified because the exclusive request ahead of it ends with nil some day. Then the owner of a shared hold, who waits
/// for this client, upgrades its hold at once: both wait for each other.
#[test]
fn an_upgrade_of_a_waiting_owner_can_close_a_cycle() {
    let upgrade = Event::Try(Try {
        owner: 1,
        keys: vec![2],
        shared: false,
        permits: 1,
        upgrade: true,
        limits: [LIMIT; 2],
    });
    let mut events = vec![
        attempt(3, &[0], false),
        attempt(1, &[2], true),
        attempt(0, &[1], false),
        attempt(5, &[1], true),
        attempt(5, &[1, 2], false),
        attempt(1, &[0], false),
        attempt(3, &[2], true),
    ];
    events.extend([1000; 5].map(Event::Search));
    events.push(upgrade);
    simulate(events).expect("no client is left in a deadlock");
}

/// The same, but the upgrade waits for another owner that shares the lock. Its own wait can end, but then its owner waits on.
#[test]
fn an_upgrade_that_waits_can_close_a_cycle() {
    let tries = [
        plain_try(1, &[0], true),
        plain_try(0, &[1], false),
        plain_try(3, &[0], true),
        plain_try(4, &[1], true),
        plain_try(4, &[0, 1], false),
        plain_try(1, &[1], false),
        plain_try(4, &[0], true),
    ];
    let upgrade = Try {
        upgrade: true,
        ..plain_try(1, &[0], false)
    };
    let all = [&tries[..], std::slice::from_ref(&upgrade)].concat();
    compare_checks(&all).expect("the upgrade is refused");
    for steps in 0..100 {
        let mut events: Vec<Event> = tries.iter().cloned().map(Event::Try).collect();
        events.extend([1000; 5].map(Event::Search));
        events.push(Event::Check(upgrade.clone(), steps));
        simulate(events).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
    }
}

/// The same, but the request leaves while a search goes on, after any number of steps.
#[test]
fn a_search_notices_that_an_owner_can_no_longer_pass() {
    for (shared, others) in [(true, vec![0]), (true, vec![0, 1]), (false, vec![0, 1])] {
        for steps in 1..100 {
            let events = vec![
                attempt(5, &[0], false),
                attempt(0, &[2], false),
                attempt(1, &[1], false),
                attempt(0, &[0], shared),
                attempt(2, &[0, 2], false),
                attempt(0, &others, false),
                Event::Search(steps),
                Event::Leave(0),
            ];
            simulate(events).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
        }
    }
}

/// An owner waits to share a lock. Its second request, for this lock and another one exclusively, would get nil when it begins to
/// share. But the first request leaves. Now a client behind the second one at the other lock closes a cycle.
#[test]
fn a_request_that_no_longer_passes_keeps_others_waiting_at_all_of_its_keys() {
    let [lock, other, held] = [0, 1, 2];
    for steps in (1..60).chain([1000]) {
        let mut events = vec![
            attempt(5, &[lock, other], false),
            attempt(1, &[held], false),
            attempt(0, &[lock], true),
            attempt(0, &[lock, other], false),
            attempt(0, &[held], false),
            attempt(1, &[other], true),
        ];
        events.extend([steps; 5].map(Event::Search));
        events.push(Event::Leave(0));
        simulate(events).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
    }
}

/// A smaller limit makes two clients wait for each other, so a search refuses its client. Meanwhile the client with the earlier, larger
/// limit leaves. The two clients still wait for each other.
#[test]
fn a_search_notices_that_the_limit_before_a_refused_one_has_gone() {
    let wait = |owner, key, permits, limit| {
        Event::Try(Try {
            owner,
            keys: vec![key],
            shared: false,
            permits,
            upgrade: false,
            limits: [limit; 2],
        })
    };
    for steps in 1..100 {
        let mut events = vec![
            wait(0, 0, 1, LIMIT),
            wait(1, LOCKS, 2, 4),
            wait(2, LOCKS, 1, 4),
            wait(0, LOCKS, 2, 2), // can be served if the limit is 4, when 2 has released
            wait(3, LOCKS, 3, 4),
            wait(1, 0, 1, LIMIT),
        ];
        events.extend([1000; 5].map(Event::Search));
        events.extend([wait(4, LOCKS, 1, 2), Event::Search(steps), Event::Leave(1)]);
        simulate(events).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
    }
}

/// An upgrade in front of the queue can be served, and nevertheless keep two others from being served that could be without it.
/// The search that finds another deadlock must not take these two for verified.
#[test]
fn clients_behind_an_upgrade_are_not_verified_by_a_search_without_it() {
    let attempt = |owner, keys: &[usize], shared, permits, upgrade| {
        Event::Try(Try {
            owner,
            keys: keys.to_vec(),
            shared,
            permits,
            upgrade,
            limits: [LIMIT; 2],
        })
    };
    let events = vec![
        attempt(5, &[0], true, 1, false),
        attempt(1, &[0], true, 1, false),
        attempt(0, &[0, 1, 2], false, 1, false),
        attempt(3, &[3, 4], false, 1, false),
        attempt(1, &[3], false, 3, false),
        attempt(4, &[3], false, 1, false),
        attempt(2, &[3, 4], false, 1, false),
        attempt(4, &[0], true, 1, false),
        attempt(5, &[3, 4], false, 3, false),
        Event::Search(1),
        attempt(3, &[3], false, 1, false),
        attempt(5, &[0], false, 1, true),
        attempt(5, &[1], false, 1, false),
    ];
    simulate(events).expect("no client is refused or left in a deadlock");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 300 } else { 20_000 }, ..ProptestConfig::default() })]

    #[test]
    fn a_search_in_steps_finds_all_deadlocked_clients_and_no_others(
        events in prop::collection::vec(any_event(), 1..60)
    ) {
        simulate(events)?;
    }

    #[test]
    fn a_search_in_steps_handles_changing_limits(events in prop::collection::vec(any_limit_event(), 1..50)) {
        simulate(events)?;
    }
}

/// How many steps it takes to check one waiter more.
fn steps_of(queues: &mut Queues, locks: &BTreeMap<Key, Lock>, newcomer: Ticket) -> (Check, u64) {
    const MOST: u64 = 10_000_000;
    let mut steps = MOST;
    let checked = check(queues, newcomer, &mut steps, &mut |key, visit| {
        if let Some(lock) = locks.get(key) {
            visit(lock);
        }
        true
    });
    (checked, MOST - steps)
}

/// What a third client does during a search.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Third {
    /// Its larger limit lets two deadlocked clients continue.
    JoinsWithMore,
    /// It had a smaller limit, because of which two clients waited for each other.
    Leaves,
    /// Its smaller limit makes two clients wait for each other until it is refused.
    JoinsWithLess,
}

/// After any number of steps, the search refuses no client that could be served.
#[test]
fn a_search_notices_changes_of_a_limit() {
    for third in [Third::JoinsWithMore, Third::Leaves, Third::JoinsWithLess] {
        let mut steps_before = 0;
        while !ends_before_third(third, steps_before) {
            steps_before += 1;
            assert!(steps_before < 10_000);
        }
        assert!(steps_before > 10, "{third:?}");
    }
}

/// Runs a search for `steps_before` steps, and then the third client joins or leaves. Returns whether the search ended before that.
fn ends_before_third(third: Third, mut steps_before: u64) -> bool {
    let held_by = |mode, owner: &str| lock_held_by(mode, [owner.to_owned()].into_iter());
    let locks: BTreeMap<Key, Lock> = BTreeMap::from([
        (
            (0, vec![3].into()),
            held_by(Mode::Permits { limit: 2 }, "c"),
        ),
        (key(0), held_by(Mode::Exclusive, "e")),
    ]);
    let read = &mut |key: &Key, visit: &mut dyn FnMut(&Lock)| {
        if let Some(lock) = locks.get(key) {
            visit(lock);
        }
        true
    };
    let for_lock = LockWaiter {
        owner: (*b"c").into(),
        ..one_waiter()
    };
    let limit = if third == Third::JoinsWithMore { 2 } else { 3 };
    let for_permits = LockWaiter {
        want: Want::Acquire(RequestedMode::Permits { count: 2, limit }),
        ..permit_waiter("e", 3, limit)
    };
    let client = permit_waiter("z", 3, 5 - limit);
    let mut queues = Queues::default();
    let join = |queues: &mut Queues, waiter| {
        let ticket = queues.push(waiter);
        queues.mark_unverified(ticket);
        ticket
    };
    join(&mut queues, for_lock);
    join(&mut queues, for_permits);
    let leaving = (third == Third::Leaves).then(|| join(&mut queues, client.clone()));
    let mut search = Search::of_unverified(&mut queues);
    if let Some(found) = search.go_on(&mut queues, &mut steps_before, read) {
        assert_eq!(found.is_some(), third != Third::JoinsWithLess, "{third:?}");
        return true;
    }
    let joined = match leaving {
        Some(ticket) => {
            queues.remove(ticket);
            None
        }
        None => Some(join(&mut queues, client)),
    };
    let found = loop {
        if let Some(found) = search.go_on(&mut queues, &mut 7, read) {
            break found;
        }
    };
    // A search that had only just begun includes the newcomer.
    let is_newcomer = third == Third::JoinsWithLess && found == joined;
    assert!(found.is_none() || is_newcomer, "{third:?}: {found:?}");
    false
}

fn lock_held_by(mode: Mode, owners: impl Iterator<Item = String>) -> Lock {
    let mut lock = Lock::new(mode);
    for owner in owners {
        let hold = Hold {
            count: 1,
            fence: 1,
            until: u64::MAX,
            acquired: None,
            released: None,
            watch: None,
            notice: 0,
        };
        lock.put(mode, owner.as_bytes(), hold);
    }
    lock
}

/// A client that wants the first lock.
fn one_waiter() -> LockWaiter {
    waiter(&Try {
        owner: 0,
        keys: vec![0],
        shared: false,
        permits: 1,
        upgrade: false,
        limits: [LIMIT; 2],
    })
}

fn permit_waiter(owner: &str, index: u8, limit: u64) -> LockWaiter {
    LockWaiter {
        keys: vec![(0, vec![index].into())],
        owner: owner.as_bytes().into(),
        want: Want::Acquire(RequestedMode::Permits { count: 1, limit }),
        ..one_waiter()
    }
}

/// Two semaphores whose holders wait for a permit of the other one: the last who joins makes it impossible.
#[test]
fn the_number_of_steps_is_proportional_to_the_waiting_clients() {
    for size in [500, 1000, 2000, 4000u64] {
        let half = size / 2;
        let mut locks = BTreeMap::new();
        for semaphore in 0..2u8 {
            let owners = (0..half).map(|number| format!("{semaphore}:{number}"));
            let lock = lock_held_by(Mode::Permits { limit: half }, owners);
            locks.insert((0, vec![semaphore].into()), lock);
        }
        let mut queues = Queues::default();
        let mut last = None;
        for number in 0..half {
            for semaphore in 0..2u8 {
                let owner = format!("{semaphore}:{number}");
                let ticket = queues.push(permit_waiter(&owner, 1 - semaphore, half));
                last = Some(ticket);
            }
        }
        let last = last.expect("somebody waits");
        let mut steps = 0;
        let mut spent = 0;
        queues.mark_unverified(last);
        let mut search = Search::of_unverified(&mut queues);
        let deadlocked = loop {
            spent += 100 - steps;
            steps = 100;
            let result = search.go_on(&mut queues, &mut steps, &mut |key, visit| {
                if let Some(lock) = locks.get(key) {
                    visit(lock);
                }
                true
            });
            if let Some(deadlocked) = result {
                break deadlocked;
            }
        };
        assert_eq!(deadlocked, Some(last));
        assert!(spent <= 30 * size, "{spent} steps with {size} waiters");
        // Without the last one all can be served in the end.
        queues.remove(last);
        let before = queues.push(permit_waiter("nobody", 0, half));
        let (checked, spent) = steps_of(&mut queues, &locks, before);
        assert_eq!(checked, Check::Fine);
        assert!(spent <= 30 * size, "{spent} steps with {size} waiters");
    }
}

/// Waiters who each hold a lock, want the `keys` locks behind it in a ring of `owners`, and come in this order.
fn ring(
    owners: usize,
    keys: usize,
    order: impl Fn(usize) -> usize,
) -> (Queues, BTreeMap<Key, Lock>) {
    let wanted = |number| (number + 1..=number + keys).collect();
    tangle(owners, (0..owners).map(order), wanted)
}

/// Waiters who each hold one of `owners` locks, and come in this order.
fn tangle(
    owners: usize,
    order: impl Iterator<Item = usize>,
    mut wanted: impl FnMut(usize) -> Vec<usize>,
) -> (Queues, BTreeMap<Key, Lock>) {
    let name = |number: usize| number.to_string();
    let key = |number: usize| -> Key { (0, name(number % owners).into_bytes().into()) };
    let held = |number| lock_held_by(Mode::Exclusive, std::iter::once(name(number)));
    let locks = (0..owners).map(|number| (key(number), held(number)));
    let mut queues = Queues::default();
    for number in order {
        let ticket = queues.push(LockWaiter {
            keys: wanted(number).into_iter().map(key).collect(),
            takes_many: true,
            want: Want::Acquire(RequestedMode::Exclusive),
            ..permit_waiter(&name(number), 0, 1)
        });
        queues.mark_unverified(ticket);
    }
    (queues, locks.collect())
}

/// Refuses all deadlocked clients. `many`: one search may find several of them. Returns who was refused, sorted, and the steps.
fn refuse_all(queues: &mut Queues, locks: &BTreeMap<Key, Lock>, many: bool) -> (Vec<Ticket>, u64) {
    let mut steps = u64::MAX;
    let mut refused = Vec::new();
    let read = &mut |key: &Key, visit: &mut dyn FnMut(&Lock)| {
        visit(&locks[key]);
        true
    };
    while queues.has_unverified() {
        let mut search = Search::of_unverified(queues);
        let mut found = search.go_on(queues, &mut steps, read).flatten();
        let mut finished = search.conclude(queues, found);
        loop {
            if let Some(ticket) = found {
                queues.remove(ticket);
                refused.push(ticket);
            }
            if !many || !finished.may_find() {
                break;
            }
            found = finished.find(queues, &mut steps, read);
        }
        while !finished.free(queues, &mut steps) {}
    }
    refused.sort_unstable();
    (refused, u64::MAX - steps)
}

/// All deadlocked clients are found in few steps if one search may find several. If each search finds only one, the same clients are
/// refused.
#[test]
fn a_search_finds_many_deadlocks() {
    const OWNERS: usize = 400;
    const KEYS: usize = 100;
    // 211 and 400 have no common divisor: each number comes once.
    let orders: [fn(usize) -> usize; 2] = [|number| number, |number| number * 211 % OWNERS];
    for order in orders {
        let (mut queues, locks) = ring(OWNERS, KEYS, order);
        let (refused, steps) = refuse_all(&mut queues, &locks, true);
        assert!(refused.len() >= KEYS, "{} refused", refused.len());
        let most = 15 * (OWNERS * KEYS) as u64;
        assert!(steps <= most, "{steps} steps, {} refused", refused.len());
        let (mut queues, locks) = ring(OWNERS / 4, KEYS / 4, order);
        let (one_by_one, _) = refuse_all(&mut queues, &locks, false);
        let (mut queues, locks) = ring(OWNERS / 4, KEYS / 4, order);
        let (at_once, _) = refuse_all(&mut queues, &locks, true);
        assert_eq!(at_once, one_by_one);
    }
}

/// Different numbers below `owners` other than `number`, the same in every run.
fn scattered(owners: usize, number: usize, count: usize) -> Vec<usize> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chosen = Vec::new();
    while chosen.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let next = state as usize % owners;
        if next != number && !chosen.contains(&next) {
            chosen.push(next);
        }
    }
    chosen
}

/// Where each client wants a few of thousands of locks, nearly all depend on each other. The steps that it takes to find all
/// deadlocks grow with what clients wait for, not with the product of that and the number of deadlocks.
#[test]
fn deadlocks_among_clients_that_all_depend_on_each_other_are_found_in_linear_time() {
    for (owners, keys) in [(400, 100), (1000, 10), (1000, 3), (2000, 2), (4000, 2)] {
        let wanted = |number| scattered(owners, number, keys);
        let (mut queues, locks) = tangle(owners, 0..owners, wanted);
        let (refused, steps) = refuse_all(&mut queues, &locks, true);
        assert!(refused.len() > owners / 10, "{} refused", refused.len());
        let most = 200 * (owners * keys) as u64;
        assert!(steps <= most, "{steps} steps, {} refused", refused.len());
    }
}

/// While a search goes on, thousands of commands come for a semaphore whose holders it knows: it reads those again once, and
/// only if a client seems to be deadlocked.
#[test]
fn commands_for_one_key_do_not_make_a_search_read_its_holders_again_and_again() {
    const SIZE: u64 = 1000;
    for waiting in [SIZE - 1, SIZE] {
        let owners = (0..SIZE).map(|number| number.to_string());
        let lock = lock_held_by(Mode::Permits { limit: SIZE }, owners);
        let mut queues = Queues::default();
        let mut last = None;
        for number in 0..waiting {
            let ticket = queues.push(permit_waiter(&number.to_string(), 0, SIZE));
            queues.mark_unverified(ticket);
            last = Some(ticket);
        }
        let mut search = Search::of_unverified(&mut queues);
        for _ in 0..SIZE {
            queues.record_change(0, &[0]);
        }
        let mut steps = 10_000_000;
        let mut reads = 0;
        let found = search.go_on(&mut queues, &mut steps, &mut |_, visit| {
            reads += 1;
            visit(&lock);
            true
        });
        let deadlocked = last.filter(|_| waiting == SIZE);
        assert_eq!(found, Some(deadlocked));
        assert!(reads <= SIZE / 10, "{reads} reads with {waiting} waiters");
    }
}

/// Clients with different limits are granted permits during a search. One more search is enough.
#[test]
fn grants_do_not_repeat_searches() {
    const WAITING: u64 = 2000;
    let mut queues = Queues::default();
    let push = |queues: &mut Queues, number: u64| {
        queues.push(permit_waiter(&number.to_string(), 1, 10 + number % 2))
    };
    let mut waiting: VecDeque<Ticket> = (0..WAITING)
        .map(|number| push(&mut queues, number))
        .collect();
    queues.mark_unverified(waiting[waiting.len() - 2]);
    queues.mark_unverified(waiting[waiting.len() - 1]);
    let (mut searches, mut came) = (0, WAITING);
    while queues.has_unverified() {
        searches += 1;
        assert!(searches <= 2);
        let mut search = Search::of_unverified(&mut queues);
        let found = loop {
            if let Some(found) = search.go_on(&mut queues, &mut 64, &mut |_, _| true) {
                break found;
            }
            assert!(came < 2 * WAITING, "the search does not end");
            let served = waiting.pop_front().expect("a client");
            queues.remove_granted(served, &[]);
            waiting.push_back(push(&mut queues, came));
            came += 1;
        };
        assert_eq!(found, None);
        let mut finished = search.conclude(&mut queues, found);
        while !finished.free(&mut queues, &mut 64) {}
    }
    assert!(came > WAITING, "no client was served during a search");
}
