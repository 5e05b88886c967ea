//! The search for deadlocks against a simulation of the whole world: everybody who doesn't wait
//! releases all it holds, whoever can be served is served, and so on. Who is never served would
//! wait for ever.

use proptest::prelude::*;
use sluice::lock::deadlock::would_close_cycle;
use sluice::lock::queue::{Queues, Waiter, Want};
use sluice::lock::state::{Acquire, Acquired, Claim, Lock, Mode, Upgraded};
use sluice::waiting::Key;
use std::collections::BTreeMap;

const OWNERS: usize = 6;
/// The first keys are locks, the others semaphores of this capacity.
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
}

fn any_try() -> impl Strategy<Value = Try> {
    let keys = prop_oneof![
        4 => (0..KEYS).prop_map(|key| vec![key]),
        1 => Just(vec![0, 1]),
        1 => Just(vec![1, 2]),
        1 => Just(vec![0, 1, 2]),
    ];
    (
        0..OWNERS,
        keys,
        any::<bool>(),
        1..=LIMIT,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(owner, keys, shared, permits, upgrade)| Try {
            owner,
            upgrade: upgrade && keys.len() == 1 && keys[0] < LOCKS,
            shared: shared && keys.len() == 1,
            keys,
            permits,
        })
}

fn name(owner: usize) -> Vec<u8> {
    vec![b'a' + owner as u8]
}

/// Keys of different databases, to show that these don't matter.
fn key(index: usize) -> Key {
    (index as i32 % 2, vec![index as u8].into())
}

fn waiter(attempt: &Try) -> Waiter {
    let claim = if attempt.keys[0] >= LOCKS {
        Claim::Permits {
            count: attempt.permits,
            limit: LIMIT,
        }
    } else if attempt.shared {
        Claim::Shared
    } else {
        Claim::Exclusive
    };
    Waiter {
        keys: attempt.keys.iter().map(|index| key(*index)).collect(),
        takes_many: attempt.keys.len() > 1,
        owner: name(attempt.owner).into(),
        want: if attempt.upgrade {
            Want::Upgrade
        } else {
            Want::Claim(claim)
        },
        lease: 1000,
        id: None,
        watch: None,
        event: c"",
        since: 0,
        timeout: 0,
        retry_at: None,
    }
}

#[derive(Clone)]
struct World {
    locks: BTreeMap<Key, Lock>,
    /// In the order in which they are served: upgrades first.
    waiting: Vec<Waiter>,
    fence: u64,
}

impl World {
    fn lock(&mut self, key: &Key) -> &mut Lock {
        self.locks
            .entry(key.clone())
            .or_insert_with(|| Lock::new(Mode::Exclusive))
    }

    /// Serves one waiter if nobody is ahead of it on any of its keys and all of them are free for
    /// it. Returns whether it got what it wants.
    fn try_serve(&mut self, waiter: &Waiter, ahead: &[Waiter]) -> bool {
        let behind = |key: &Key| ahead.iter().any(|other| other.keys.contains(key));
        self.fence += 1;
        let fence = self.fence;
        if waiter.want == Want::Upgrade {
            let upgraded = self
                .lock(&waiter.keys[0])
                .upgrade(&waiter.owner, 1000, 0, fence);
            return matches!(upgraded, Upgraded::Upgraded(_) | Upgraded::Already(_));
        }
        let Want::Claim(claim) = waiter.want else {
            unreachable!()
        };
        let request = |queued| Acquire {
            owner: &waiter.owner,
            claim,
            lease: 1000,
            id: None,
            watch: None,
            queued,
        };
        let mut trial = self.clone();
        for key in &waiter.keys {
            let acquired = trial.lock(key).acquire(&request(behind(key)), 0, fence);
            if matches!(acquired, Acquired::Busy | Acquired::Never) {
                return false;
            }
        }
        *self = trial;
        true
    }

    /// Lets everybody who doesn't wait release everything, for as long as that serves somebody.
    /// Is `owner` served in the end?
    fn serves_in_the_end(mut self, owner: &[u8]) -> bool {
        loop {
            let waiting: Vec<Box<[u8]>> = self.waiting.iter().map(|w| w.owner.clone()).collect();
            for lock in self.locks.values_mut() {
                for other in (0..OWNERS).map(name) {
                    if !waiting.iter().any(|waiting| **waiting == *other) {
                        lock.drop_owner(&other);
                    }
                }
            }
            let before = self.waiting.len();
            let mut still: Vec<Waiter> = Vec::new();
            for waiter in std::mem::take(&mut self.waiting) {
                if !self.try_serve(&waiter, &still) {
                    still.push(waiter);
                }
            }
            self.waiting = still;
            if !self.waiting.iter().any(|waiter| *waiter.owner == *owner) {
                return true;
            }
            if self.waiting.len() == before {
                return false;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1000 } else { 20_000 }, ..ProptestConfig::default() })]

    #[test]
    fn a_wait_is_refused_exactly_if_it_would_never_end(tries in prop::collection::vec(any_try(), 1..40)) {
        let mut world = World { locks: BTreeMap::new(), waiting: Vec::new(), fence: 0 };
        let mut queues = Queues::default();
        for attempt in tries {
            let newcomer = waiter(&attempt);
            let holds_it = newcomer.keys.iter().any(|key| world.lock(key).holds().get(&newcomer.owner).is_some());
            // A lock that it holds an owner enters again, or upgrades; it may ask for more permits of
            // a semaphore. It may wait for several locks at once, but
            // for each once: then it goes on when all its waits are over.
            let is_lock = attempt.keys[0] < LOCKS;
            let waits_for_it = world.waiting.iter().any(|other| {
                let semaphores = !is_lock || other.keys[0].1[0] >= LOCKS as u8;
                other.owner == newcomer.owner
                    && (semaphores || other.keys.iter().any(|key| newcomer.keys.contains(key)))
            });
            if waits_for_it || is_lock && holds_it != (newcomer.want == Want::Upgrade) {
                continue;
            }
            let ahead = if newcomer.want == Want::Upgrade { Vec::new() } else { world.waiting.clone() };
            if world.try_serve(&newcomer, &ahead) {
                continue;
            }
            let mut with_it = world.clone();
            if newcomer.want == Want::Upgrade {
                with_it.waiting.insert(0, newcomer.clone());
            } else {
                with_it.waiting.push(newcomer.clone());
            }
            let never_ends = !with_it.clone().serves_in_the_end(&newcomer.owner);
            let refused = would_close_cycle(&queues, &newcomer, &mut |key, visit| {
                if let Some(lock) = world.locks.get(key)
                    && !lock.holds().is_empty()
                {
                    visit(lock);
                }
            });
            prop_assert_eq!(refused, never_ends, "{:?}", attempt);
            if !refused {
                queues.push(newcomer);
                world = with_it;
            }
        }
    }
}
