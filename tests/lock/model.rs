//! The pure lock machine against a naive model: after any operations both answer alike and hold
//! alike, and a replica that gets only the effects is identical.

use proptest::prelude::*;
use sluice::lock::persist::{self, apply, by_fence, decode, effects, encode};
use sluice::lock::state::{
    Abandoned, Acquire, Acquired, Amount, Lock, Mode, Released, RequestedMode, Upgraded, Watchdog,
};

const OWNERS: [&[u8]; 4] = [b"a", b"b\0", b"\xff\xfe", b"a long name of an owner"];

#[derive(Debug, Clone)]
enum Op {
    Acquire {
        owner: usize,
        claim: RequestedMode,
        lease: u64,
        id: Option<u8>,
        queued: bool,
        watch: Option<Watchdog>,
    },
    /// The server renews a hold for a connection.
    RenewWatched {
        owner: usize,
        client: u64,
    },
    /// The connection that a hold is watched for has closed.
    Close {
        owner: usize,
        client: u64,
    },
    Release {
        owner: usize,
        amount: Amount,
        id: Option<u8>,
    },
    Renew {
        owner: usize,
        lease: u64,
    },
    Upgrade {
        owner: usize,
        lease: u64,
    },
    Downgrade {
        owner: usize,
    },
    Clamp {
        after: u64,
    },
    Sleep {
        ms: u64,
    },
    Reload,
}

fn any_claim(semaphore: bool) -> BoxedStrategy<RequestedMode> {
    if semaphore {
        (1..5u64, 0..4u64)
            .prop_map(|(count, more)| RequestedMode::Permits {
                count,
                limit: count + more,
            })
            .boxed()
    } else {
        prop_oneof![Just(RequestedMode::Exclusive), Just(RequestedMode::Shared)].boxed()
    }
}

/// Client ids are below this; 0 is none.
const CLIENTS: u64 = 3;

fn any_watchdog() -> impl Strategy<Value = Watchdog> {
    let max_hold = prop_oneof![Just(u64::MAX), 1..80u64];
    (0..CLIENTS, max_hold, any::<bool>()).prop_map(|(client, max_hold, lingers)| Watchdog {
        client,
        max_hold,
        lingers,
    })
}

fn any_amount() -> impl Strategy<Value = Amount> {
    prop_oneof![4 => (1..4u64).prop_map(Amount::Count), 1 => Just(Amount::All)]
}

fn any_op(semaphore: bool) -> BoxedStrategy<Op> {
    let owner = 0..OWNERS.len();
    let id = || proptest::option::weighted(0.4, 0..3u8);
    let acquire = (
        owner.clone(),
        any_claim(semaphore),
        1..60u64,
        id(),
        prop::bool::weighted(0.1),
        proptest::option::weighted(0.4, any_watchdog()),
    )
        .prop_map(|(owner, claim, lease, id, queued, watch)| Op::Acquire {
            owner,
            claim,
            lease,
            id,
            queued,
            watch,
        });
    let client = 1..CLIENTS;
    let renew_watched = (owner.clone(), client.clone())
        .prop_map(|(owner, client)| Op::RenewWatched { owner, client });
    let close = (owner.clone(), client).prop_map(|(owner, client)| Op::Close { owner, client });
    let release = (owner.clone(), any_amount(), id()).prop_map(|(owner, amount, id)| Op::Release {
        owner,
        amount,
        id,
    });
    let renew = (owner.clone(), 1..60u64).prop_map(|(owner, lease)| Op::Renew { owner, lease });
    let upgrade = (owner.clone(), 1..60u64).prop_map(|(owner, lease)| Op::Upgrade { owner, lease });
    let downgrade = owner.prop_map(|owner| Op::Downgrade { owner });
    let clamp = (0..40u64).prop_map(|after| Op::Clamp { after });
    let sleep = (0..25u64).prop_map(|ms| Op::Sleep { ms });
    let modes = if semaphore { 0 } else { 2 };
    prop_oneof![
        6 => acquire, 4 => release, 2 => renew, modes => upgrade, modes => downgrade,
        1 => clamp, 3 => sleep, 1 => Just(Op::Reload), 3 => renew_watched, 1 => close
    ]
    .boxed()
}

/// The model: a list, searched from the front, with every rule spelled out.
#[derive(Default)]
struct Model {
    holds: Vec<Held>,
    exclusive: bool,
    limit: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    owner: usize,
    count: u64,
    fence: u64,
    until: u64,
    acquired: Option<(u8, u64)>,
    released: Option<(u8, u64)>,
    watch: Option<Watched>,
    /// The bound of the last acquisition, if that had an id: a repetition keeps it when a reload has ended the watch. The outer `None`:
    /// nobody had asked for renewals.
    kept_bound: Option<Option<u64>>,
}

/// How the server renews a hold.
#[derive(Clone, Debug, PartialEq)]
struct Watched {
    /// `None`: the connection has closed.
    client: Option<u64>,
    /// `None`: somebody has set an end to the hold.
    lease: Option<u64>,
    bound: Option<u64>,
    lingers: bool,
}

impl Held {
    /// An acquisition asks for a WATCHDOG, or not. A repetition moves no bound.
    fn watch(&mut self, watch: Option<Watchdog>, lease: u64, now: u64, is_repetition: bool) {
        let Some(asked) = watch.filter(|watch| watch.client != 0) else {
            return;
        };
        let mut bound = (asked.max_hold != u64::MAX).then(|| now + asked.max_hold);
        if is_repetition {
            bound = match self.watch.take() {
                Some(before) => before.bound,
                None => self.kept_bound.unwrap_or(bound),
            };
        }
        self.watch = Some(Watched {
            client: Some(asked.client),
            lease: Some(lease),
            bound,
            lingers: asked.lingers,
        });
    }

    fn end_by(&mut self, limit: u64) {
        if self.until > limit {
            self.until = limit;
            if let Some(watch) = &mut self.watch {
                watch.lease = None;
            }
        }
    }
}

impl Model {
    fn find(&mut self, owner: usize) -> Option<&mut Held> {
        self.holds.iter_mut().find(|held| held.owner == owner)
    }

    fn used(&self) -> u64 {
        self.holds.iter().map(|held| held.count).sum()
    }

    fn acquire(&mut self, op: &Op, now: u64, fence: u64) -> Acquired {
        let Op::Acquire {
            owner,
            claim,
            lease,
            id,
            queued,
            watch,
        } = *op
        else {
            unreachable!()
        };
        let (used, exclusive) = (self.used(), self.exclusive);
        let (permits, limit) = match claim {
            RequestedMode::Permits { count, limit } => (count, limit),
            _ => (1, u64::MAX),
        };
        let semaphore = limit != u64::MAX;
        let longest = watch.map_or(u64::MAX, |watch| watch.max_hold);
        let until = now + lease.min(longest);
        if let Some(held) = self.find(owner) {
            if let (Some(id), Some((last, reply))) = (id, held.acquired)
                && id == last
            {
                held.watch(watch, lease, now, true);
                return Acquired::Repeated(reply);
            }
            if claim == RequestedMode::Exclusive && !exclusive {
                return Acquired::Never;
            }
            if semaphore && (queued || used + permits > limit) {
                return Acquired::Busy;
            }
            held.count += permits;
            held.until = held.until.max(until);
            let before = match &held.watch {
                Some(watch) => Some(watch.bound),
                None => held.kept_bound,
            };
            held.acquired = id.map(|id| (id, held.fence));
            held.watch(watch, lease, now, false);
            let bound = held
                .watch
                .as_ref()
                .map_or(before, |watch| Some(watch.bound));
            held.kept_bound = bound.filter(|_| id.is_some());
            let fence = held.fence;
            self.limit = limit;
            return Acquired::Reentered(fence);
        }
        let compatible = match claim {
            RequestedMode::Exclusive => self.holds.is_empty(),
            RequestedMode::Shared => self.holds.is_empty() || !self.exclusive,
            RequestedMode::Permits { .. } => used + permits <= limit,
        };
        if queued || !compatible {
            return Acquired::Busy;
        }
        self.exclusive = claim == RequestedMode::Exclusive;
        self.limit = limit;
        let mut held = Held {
            owner,
            count: permits,
            fence,
            until,
            acquired: id.map(|id| (id, fence)),
            released: None,
            watch: None,
            kept_bound: None,
        };
        held.watch(watch, lease, now, false);
        let bound = held.watch.as_ref().map(|watch| watch.bound);
        held.kept_bound = bound.filter(|_| id.is_some());
        self.holds.push(held);
        Acquired::Granted(fence)
    }

    fn release(&mut self, owner: usize, amount: Amount, id: Option<u8>) -> Released {
        let Some(held) = self.find(owner) else {
            return Released::NotHeld;
        };
        if let (Some(id), Some((last, reply))) = (id, held.released)
            && id == last
        {
            return Released::Repeated(reply);
        }
        let take = match amount {
            Amount::All => held.count,
            Amount::Count(count) => count,
        };
        if take > held.count {
            return Released::TooMany(held.count);
        }
        held.count -= take;
        let left = held.count;
        held.released = id.map(|id| (id, left));
        self.holds.retain(|held| held.count > 0);
        Released::Left(left)
    }

    fn upgrade(&mut self, owner: usize, lease: u64, now: u64, fence: u64) -> Upgraded {
        let (alone, exclusive) = (self.holds.len() == 1, self.exclusive);
        let Some(held) = self.find(owner) else {
            return Upgraded::NotHeld;
        };
        if !exclusive && !alone {
            return Upgraded::Busy;
        }
        held.until = held.until.max(now + lease);
        if exclusive {
            return Upgraded::Already(held.fence);
        }
        held.fence = fence;
        self.exclusive = true;
        Upgraded::Upgraded(fence)
    }
}

fn id_bytes(id: &Option<u8>) -> Option<&[u8]> {
    id.as_ref().map(std::slice::from_ref)
}

/// What the real machine holds, in the model's terms.
fn seen(lock: &Lock) -> Vec<Held> {
    let receipt = |receipt: &Option<Box<sluice::lock::holds::Receipt>>| {
        receipt
            .as_ref()
            .map(|receipt| (receipt.id[0], receipt.reply))
    };
    by_fence(lock)
        .into_iter()
        .map(|(owner, hold)| Held {
            owner: OWNERS
                .iter()
                .position(|name| *name == owner)
                .expect("a known owner"),
            count: hold.count,
            fence: hold.fence,
            until: hold.until,
            acquired: receipt(&hold.acquired),
            released: receipt(&hold.released),
            watch: hold.watch.as_ref().map(|watch| Watched {
                client: Some(watch.client).filter(|client| *client != 0),
                lease: Some(watch.lease).filter(|lease| *lease != 0),
                bound: Some(watch.bound).filter(|bound| *bound != u64::MAX),
                lingers: watch.lingers,
            }),
            kept_bound: hold
                .acquired
                .as_ref()
                .and_then(|receipt| receipt.bound)
                .map(|bound| Some(bound.get()).filter(|bound| *bound != u64::MAX)),
        })
        .collect()
}

fn check(ops: Vec<Op>, semaphore: bool) -> Result<(), TestCaseError> {
    let mut lock = Lock::new(Mode::Exclusive);
    let mut replica = Lock::new(Mode::Exclusive);
    let mut model = Model {
        exclusive: true,
        ..Model::default()
    };
    let (mut now, mut fence) = (1_000, 0);
    for op in ops {
        let mut out = Vec::new();
        if !lock.expire(now).is_empty() {
            persist::put_expired(&mut out, now);
        }
        model.holds.retain(|held| held.until >= now);
        let mut touched = None;
        fence += 1;
        match &op {
            Op::Acquire {
                owner,
                claim,
                lease,
                id,
                queued,
                watch,
            } => {
                let request = Acquire {
                    owner: OWNERS[*owner],
                    mode: *claim,
                    kept_limit: None,
                    lease: *lease,
                    id: id_bytes(id),
                    watch: *watch,
                    channel: None,
                    queued: *queued,
                };
                prop_assert_eq!(
                    lock.acquire(&request, now, fence),
                    model.acquire(&op, now, fence)
                );
                touched = Some(*owner);
            }
            Op::Release { owner, amount, id } => {
                let real = lock.release(OWNERS[*owner], *amount, id_bytes(id));
                prop_assert_eq!(real, model.release(*owner, *amount, *id));
                touched = Some(*owner);
            }
            Op::Renew { owner, lease } => {
                let expected = model.find(*owner).map(|held| {
                    held.until = now + lease;
                    if let Some(watch) = &mut held.watch {
                        watch.lease = Some(*lease);
                    }
                    held.fence
                });
                prop_assert_eq!(lock.renew(OWNERS[*owner], *lease, now), expected);
                touched = Some(*owner);
            }
            Op::Upgrade { owner, lease } => {
                let real = lock.upgrade(OWNERS[*owner], *lease, now, fence);
                prop_assert_eq!(real, model.upgrade(*owner, *lease, now, fence));
                touched = Some(*owner);
            }
            Op::Downgrade { owner } => {
                let was_exclusive = model.exclusive;
                let expected = model.find(*owner).map(|held| (held.fence, was_exclusive));
                model.exclusive &= expected.is_none();
                prop_assert_eq!(lock.downgrade(OWNERS[*owner]), expected);
                touched = Some(*owner);
            }
            Op::RenewWatched { owner, client } => {
                let held = model.find(*owner).filter(|held| {
                    let watch = held.watch.as_ref();
                    watch.is_some_and(|watch| watch.client == Some(*client))
                });
                let expected = held.map(|held| {
                    let watch = held.watch.as_ref().expect("it is watched");
                    let bound = watch.bound.unwrap_or(u64::MAX);
                    let until = watch.lease.map(|lease| bound.min(now + lease));
                    let is_longer = until > Some(held.until);
                    held.until = held.until.max(until.unwrap_or(0));
                    is_longer
                });
                let renewed = lock.renew_watched(OWNERS[*owner], *client, now);
                prop_assert_eq!(renewed, expected);
                touched = Some(*owner);
            }
            Op::Close { owner, client } => {
                let held = model.find(*owner);
                let watch = held.and_then(|held| held.watch.as_mut());
                let watch = watch.filter(|watch| watch.client == Some(*client));
                let expected = watch.map(|watch| {
                    watch.client = None;
                    watch.lingers
                });
                if expected == Some(false) {
                    model.holds.retain(|held| held.owner != *owner);
                }
                let abandoned = match lock.abandon(OWNERS[*owner], *client) {
                    Abandoned::NotWatched => None,
                    Abandoned::Lingers => Some(true),
                    Abandoned::Released(_) => Some(false),
                };
                prop_assert_eq!(abandoned, expected);
                touched = Some(*owner);
            }
            Op::Clamp { after } => {
                lock.clamp(now + after);
                persist::put_clamped(&mut out, now + after);
                for held in &mut model.holds {
                    held.end_by(now + after);
                }
            }
            Op::Sleep { ms } => now += ms,
            Op::Reload if lock.holds().is_empty() => {}
            Op::Reload => {
                let mut bytes = Vec::new();
                encode(&lock, &mut bytes);
                lock = decode(&bytes).expect("what was encoded");
                for held in &mut model.holds {
                    held.watch = None; // a connection is not part of the dataset
                }
            }
        }
        if let Some(owner) = touched.map(|owner| OWNERS[owner]) {
            match lock.holds().get(owner) {
                Some(hold) => persist::put_held(&mut out, lock.mode(), owner, hold),
                None => persist::put_gone(&mut out, owner),
            }
        }
        apply(&mut replica, effects(&out).expect("what was written"));

        model.holds.sort_by_key(|held| held.fence);
        prop_assert_eq!(seen(&lock), model.holds.clone());
        let unwatched = model.holds.iter().map(|held| Held {
            watch: None,
            ..held.clone()
        });
        prop_assert_eq!(seen(&replica), unwatched.collect::<Vec<_>>());
        prop_assert_eq!(lock.holds().total(), model.used());
        prop_assert_eq!(lock.holds().len(), model.holds.len());
        prop_assert_eq!(
            lock.holds().longest(),
            model.holds.iter().map(|held| held.until).max().unwrap_or(0)
        );
        prop_assert!(
            model
                .holds
                .iter()
                .all(|held| held.until >= lock.holds().soonest())
        );
        if !model.holds.is_empty() {
            let expected = match (semaphore, model.exclusive) {
                (true, _) => Mode::Permits { limit: model.limit },
                (_, true) => Mode::Exclusive,
                (_, false) => Mode::Shared,
            };
            prop_assert_eq!(lock.mode(), expected);
            prop_assert_eq!(replica.mode(), expected);
            prop_assert!(semaphore || !model.exclusive || model.holds.len() == 1);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 200 } else { 100_000 }, ..ProptestConfig::default() })]

    #[test]
    fn a_lock_does_what_the_model_does(ops in prop::collection::vec(any_op(false), 1..24)) {
        check(ops, false)?;
    }

    #[test]
    fn a_semaphore_does_what_the_model_does(ops in prop::collection::vec(any_op(true), 1..24)) {
        check(ops, true)?;
    }
}

/// More owners than a lock keeps without the order of their ends.
const MANY: u64 = 200;

#[derive(Debug, Clone)]
enum ManyOp {
    Acquire(u64, RequestedMode, u64),
    Release(u64, Amount),
    Renew(u64, u64),
    Upgrade(u64),
    Clamp(u64),
    /// The time passes, or the clock is set back.
    Sleep(i64),
    /// The value is saved and loaded, or copied.
    Reload(bool),
}

fn any_many_op(semaphore: bool) -> impl Strategy<Value = ManyOp> {
    let claim = match semaphore {
        true => (1..3u64)
            .prop_map(|count| RequestedMode::Permits { count, limit: 250 })
            .boxed(),
        false => prop_oneof![
            9 => Just(RequestedMode::Shared),
            1 => Just(RequestedMode::Exclusive)
        ]
        .boxed(),
    };
    let lease = || prop_oneof![8 => Just(100), 1 => 1..300u64];
    prop_oneof![
        60 => (0..MANY, claim, lease()).prop_map(|(owner, claim, lease)| ManyOp::Acquire(owner, claim, lease)),
        6 => (0..MANY, any_amount()).prop_map(|(owner, amount)| ManyOp::Release(owner, amount)),
        6 => (0..MANY, lease()).prop_map(|(owner, lease)| ManyOp::Renew(owner, lease)),
        if semaphore { 0 } else { 2 } => (0..MANY).prop_map(ManyOp::Upgrade),
        1 => (0..200u64).prop_map(ManyOp::Clamp),
        2 => prop_oneof![0..3i64, Just(101), -50..0i64].prop_map(ManyOp::Sleep),
        1 => any::<bool>().prop_map(ManyOp::Reload),
    ]
}

/// Two locks do the same. One of them removes all holds that have ended at once, the other a few at each step: it answers and
/// holds alike, and a replica that gets its effects is identical in the end.
fn check_removal_in_steps(ops: Vec<ManyOp>, most: usize) -> Result<(), TestCaseError> {
    let mut at_once = Lock::new(Mode::Exclusive);
    let mut in_steps = Lock::new(Mode::Exclusive);
    let mut replica = Lock::new(Mode::Exclusive);
    let (mut now, mut fence) = (1_000, 0);
    let (mut ended, mut removed) = (0, 0);
    let name = |owner: u64| format!("owner-{owner}").into_bytes();
    let expire = |lock: &mut Lock, now, removed: &mut usize, out: &mut Vec<u8>| {
        let gone = lock.expire_some(now, most);
        *removed += gone.len();
        persist::put_ended(out, &gone, lock.holds().has_ended(), now);
    };
    for op in ops {
        let mut out = Vec::new();
        ended += at_once.expire(now).len();
        expire(&mut in_steps, now, &mut removed, &mut out);
        fence += 1;
        let mut touched = None;
        match op {
            ManyOp::Acquire(owner, mode, lease) => {
                let owner = name(owner);
                let request = Acquire {
                    owner: &owner,
                    mode,
                    kept_limit: None,
                    lease,
                    id: None,
                    watch: None,
                    channel: None,
                    queued: false,
                };
                removed += usize::from(in_steps.remove_ended(&owner).is_some());
                let expected = at_once.acquire(&request, now, fence);
                prop_assert_eq!(in_steps.acquire(&request, now, fence), expected);
                touched = Some(owner);
            }
            ManyOp::Release(owner, amount) => {
                let owner = name(owner);
                let expected = at_once.release(&owner, amount, None);
                prop_assert_eq!(in_steps.release(&owner, amount, None), expected);
                touched = Some(owner);
            }
            ManyOp::Renew(owner, lease) => {
                let owner = name(owner);
                let expected = at_once.renew(&owner, lease, now);
                prop_assert_eq!(in_steps.renew(&owner, lease, now), expected);
                touched = Some(owner);
            }
            ManyOp::Upgrade(owner) => {
                let owner = name(owner);
                let expected = at_once.upgrade(&owner, 100, now, fence);
                prop_assert_eq!(in_steps.upgrade(&owner, 100, now, fence), expected);
                touched = Some(owner);
            }
            ManyOp::Clamp(after) => {
                prop_assert_eq!(at_once.clamp(now + after), in_steps.clamp(now + after));
                persist::put_clamped(&mut out, now + after);
            }
            ManyOp::Sleep(ms) => now = 1_000.max(now.saturating_add_signed(ms)),
            ManyOp::Reload(_) if at_once.holds().is_empty() => {}
            ManyOp::Reload(true) => {
                let mut bytes = Vec::new();
                encode(&in_steps, &mut bytes);
                let read = decode(&bytes).expect("what was encoded");
                prop_assert_eq!(by_fence(&read), by_fence(&at_once));
            }
            ManyOp::Reload(false) => {
                let copy = in_steps.copy();
                prop_assert_eq!(by_fence(&copy), by_fence(&at_once));
            }
        }
        if let Some(owner) = touched {
            match in_steps.holds().get(&owner) {
                Some(hold) => persist::put_held(&mut out, in_steps.mode(), &owner, hold),
                None => persist::put_gone(&mut out, &owner),
            }
        }
        apply(&mut replica, effects(&out).expect("what was written"));
        prop_assert_eq!(by_fence(&in_steps), by_fence(&at_once));
        let (slow, fast) = (in_steps.holds(), at_once.holds());
        prop_assert_eq!(slow.len(), fast.len());
        prop_assert_eq!(slow.total(), fast.total());
        prop_assert_eq!(slow.longest(), fast.longest());
        prop_assert!(fast.iter().all(|(_, hold)| hold.until >= slow.soonest()));
        prop_assert!(fast.is_empty() || in_steps.mode() == at_once.mode());
        prop_assert_eq!(removed + slow.len_with_ended() - slow.len(), ended);
    }
    loop {
        let mut out = Vec::new();
        expire(&mut in_steps, now, &mut removed, &mut out);
        apply(&mut replica, effects(&out).expect("what was written"));
        if !in_steps.holds().has_ended() {
            break;
        }
    }
    // The last step may have been a pause.
    at_once.expire(now);
    prop_assert_eq!(by_fence(&in_steps), by_fence(&at_once));
    prop_assert_eq!(by_fence(&replica), by_fence(&at_once));
    let now = now + 1_000_000;
    for lock in [&mut at_once, &mut in_steps, &mut replica] {
        lock.expire(now);
        prop_assert!(lock.holds().is_empty() && !lock.holds().has_ended());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 10 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn holds_that_have_ended_hold_nothing_however_slowly_they_are_removed(
        ops in prop::collection::vec(any_many_op(false), 300..1200), most in 1..10usize
    ) {
        check_removal_in_steps(ops, most)?;
    }

    #[test]
    fn permits_that_have_ended_are_free_however_slowly_they_are_removed(
        ops in prop::collection::vec(any_many_op(true), 300..1200), most in 1..10usize
    ) {
        check_removal_in_steps(ops, most)?;
    }
}
