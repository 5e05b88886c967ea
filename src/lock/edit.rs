//! A step on a lock in the keyspace, and its consequences: the key is created or deleted, it expires with the longest lease, and
//! one commit goes to replicas, the AOF and listeners.

use super::handover::{Handover, OpenLocks};
use super::holds::{Hold, Watch};
use super::native::{forget_deadline, lease_ended, left_key, list, list_earlier};
use super::notices::{self, NOTICES, Notice};
use super::persist;
use super::state::{
    Abandoned, Acquire, Acquired, Admission, Amount, Lock, LockKind, Mode, Released, Upgraded,
};
use super::watch::{Watched, Watches};
use super::{EXPIRED_LEASES, HOLD_TIMES, LISTENING, LockService, SERVICE};
use crate::error::Error;
use crate::fence::{next_fence, remember_fence};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::native::open_together;
use crate::server::services::timer;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::slice;
use std::sync::atomic::Ordering;

/// The maximum number of ended holds that one command removes. The timer removes the others.
const MAX_ENDS_PER_COMMAND: usize = 64;

/// A lock's key, open for a step. Ends with [`LockKey::close`].
///
/// When a key is opened or created, the server may emit keyspace events, and their listeners may run commands of this family. So
/// the key is opened before [`SERVICE`] is borrowed, and closed afterwards: to open a key that has expired removes it, and a new
/// lock comes to its key when the key is closed.
pub(super) struct LockKey<'k> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    key: TypedKey<'k, Lock>,
    /// The lock that comes to the key when it is closed.
    fresh: Option<Box<Lock>>,
    kind: LockKind,
    now: Now,
    effects: Vec<u8>,
    /// Whether the step itself changed anything, beside the holds that had ended.
    stepped: bool,
    /// Whether it may be the repetition of a request, which changes nothing.
    repeated: bool,
    /// Whether replicas can take the step themselves, from the command as it came.
    verbatim: bool,
}

impl<'k> LockKey<'k> {
    /// Opens a key in the selected database for a step, for which the service is borrowed.
    pub(super) fn with<T>(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        kind: LockKind,
        now: Now,
        event: &'static CStr,
        step: impl FnOnce(&mut Self, &mut LockService) -> T,
    ) -> Result<T, Error> {
        let key = TypedKey::of(ctx.open(name), kind.native())?;
        Ok(Self::with_open(ctx, name, key, kind, now, event, step))
    }

    /// The same for a key that is open already.
    #[inline(always)]
    pub(super) fn with_open<T>(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        key: TypedKey<'k, Lock>,
        kind: LockKind,
        now: Now,
        event: &'static CStr,
        step: impl FnOnce(&mut Self, &mut LockService) -> T,
    ) -> T {
        let mut service = SERVICE.get();
        let (steps, most) = (&mut service.steps, MAX_ENDS_PER_COMMAND);
        let mut key = Self::of(ctx, steps, name, key, kind, now, most);
        let result = step(&mut key, &mut service);
        drop(service);
        key.close(event);
        result
    }

    /// Wraps an open key. First ends all holds whose lease is over, and removes at most `most` of them (at least one).
    #[inline(always)] // the result is large: it stays where it is used
    pub(super) fn of(
        ctx: Ctx<'k>,
        steps: &mut StepContext,
        name: &'k ServerString<'k>,
        mut key: TypedKey<'k, Lock>,
        kind: LockKind,
        now: Now,
        most: usize,
    ) -> Self {
        let mut effects = std::mem::take(&mut steps.effects);
        if let Some(lock) = key.value()
            && now != Now::BEFORE_ALL
            && lock.holds().has_due(now.ms())
        {
            end_holds(steps, lock, now, most, &mut effects);
        }
        Self {
            ctx,
            name,
            key,
            fresh: None,
            kind,
            now,
            effects,
            stepped: false,
            repeated: false,
            verbatim: false,
        }
    }

    /// The step depends on nothing but the lock, so replicas can take it as well: cheaper than an
    /// effect. Unless holds have ended, of which the command does not tell.
    pub(super) fn replicate_verbatim(&mut self) {
        let has_ended = self.value().is_some_and(|lock| lock.holds().has_ended());
        self.verbatim = self.effects.is_empty() && !has_ended;
    }

    /// The value at the key, or the one that comes to it.
    #[inline]
    fn value(&mut self) -> Option<&mut Lock> {
        match &mut self.fresh {
            Some(fresh) => Some(fresh),
            None => self.key.value(),
        }
    }

    /// The lock, if anybody holds it.
    pub(super) fn lock(&mut self) -> Option<&mut Lock> {
        let lock = self.value()?;
        (!lock.holds().is_empty()).then_some(lock)
    }

    /// The lock's number in the list of deadlines; 0: none.
    pub(super) fn number(&mut self) -> u64 {
        let listed = self.value().and_then(|lock| lock.holds().listed());
        listed.map_or(0, |listed| listed.number)
    }

    /// Lists the lock by its next end, after the list has looked at it.
    pub(super) fn list_again(&mut self) {
        let (db, key) = (self.ctx.db(), self.name.bytes());
        if let Some(lock) = self.value() {
            list(lock, db, key);
        }
    }

    /// Whether any hold had ended.
    pub(super) fn has_ended_some(&self) -> bool {
        !self.stepped && !self.effects.is_empty()
    }

    /// When something about the lock ends by itself (Unix ms), at the earliest.
    pub(super) fn next_end(&mut self) -> Option<u64> {
        Some(self.lock()?.holds().soonest())
    }

    /// Returns what this acquisition would meet.
    pub(super) fn admits(&mut self, request: &Acquire<'_>) -> Admission {
        match self.lock() {
            Some(lock) => lock.admits(request),
            None => Lock::new(Mode::Exclusive).admits(request),
        }
    }

    pub(super) fn acquire(
        &mut self,
        steps: &mut StepContext,
        request: &Acquire<'_>,
    ) -> Result<Acquired, Error> {
        let fence = next_fence(self.now)?;
        let now = self.now.ms();
        if self.value().is_none() {
            self.fresh = Some(Box::new(Lock::new(Mode::Exclusive)));
        }
        self.end_hold(steps, request.owner);
        let lock = self.value().ok_or(Error::Internal)?;
        let acquired = lock.acquire(request, now, fence);
        match acquired {
            Acquired::Busy | Acquired::Never => {
                self.fresh = None;
                return Ok(acquired);
            }
            Acquired::Granted(fence) => remember_fence(fence),
            Acquired::Reentered(_) | Acquired::Repeated(_) => {}
        }
        if matches!(acquired, Acquired::Repeated(_)) {
            self.repeated = true;
        } else {
            self.changed(request.owner);
        }
        if request.watch.is_some() {
            self.watch(steps, request.owner);
        }
        if let (Some(channel), Some(id)) = (request.channel, request.id) {
            self.notice(request.owner, channel, id);
        }
        Ok(acquired)
    }

    pub(super) fn release(
        &mut self,
        steps: &mut StepContext,
        owner: &[u8],
        amount: Amount,
        id: Option<&[u8]>,
    ) -> Released {
        let Some(lock) = self.value() else {
            self.repeated = id.is_some(); // of a request that released the last hold
            return Released::NotHeld;
        };
        let hold = lock.holds().get(owner);
        let (notice, fence) = hold.map_or((0, 0), |hold| (hold.notice, hold.fence));
        let watch = match steps.watches.is_empty() {
            true => None,
            false => hold.and_then(|hold| hold.watch.clone()),
        };
        let released = lock.release(owner, amount, id);
        match released {
            Released::Left(0) => {
                if self.now != Now::BEFORE_ALL {
                    HOLD_TIMES.count_between(fence, self.now.micros());
                }
                self.gone(owner);
                steps.unwatch(watch.as_deref());
                notices::released(notice);
            }
            Released::Left(_) => {
                self.changed(owner);
            }
            Released::Repeated(_) | Released::NotHeld => self.repeated = id.is_some(),
            Released::TooMany(_) => {}
        }
        released
    }

    pub(super) fn renew(
        &mut self,
        steps: &mut StepContext,
        owner: &[u8],
        lease: u64,
    ) -> Option<u64> {
        let now = self.now.ms();
        let lock = self.lock()?;
        let fence = lock.renew(owner, lease, now)?;
        let is_watched = self.changed(owner);
        if is_watched {
            self.watch(steps, owner); // at another pace
        }
        Some(fence)
    }

    pub(super) fn upgrade(&mut self, owner: &[u8], lease: u64) -> Result<Upgraded, Error> {
        let (fence, now) = (next_fence(self.now)?, self.now.ms());
        let Some(lock) = self.lock() else {
            return Ok(Upgraded::NotHeld);
        };
        let hold = lock.holds().get(owner);
        let until = hold.map(|hold| hold.until);
        let notice = hold.map_or(0, |hold| hold.notice);
        let upgraded = lock.upgrade(owner, lease, now, fence);
        match upgraded {
            Upgraded::Upgraded(fence) => {
                remember_fence(fence);
                if notice != 0 {
                    NOTICES.get().set_fence(notice, fence);
                }
                self.changed(owner);
            }
            Upgraded::Already(_) if lock.holds().get(owner).map(|hold| hold.until) != until => {
                self.changed(owner);
            }
            Upgraded::Already(_) => self.repeated = true,
            _ => {}
        }
        Ok(upgraded)
    }

    pub(super) fn downgrade(&mut self, owner: &[u8]) -> Option<u64> {
        let (fence, was_exclusive) = self.lock()?.downgrade(owner)?;
        if was_exclusive {
            self.changed(owner);
        } else {
            self.repeated = true;
        }
        Some(fence)
    }

    /// The server's own renewal; false if the hold is gone or watched for somebody else, or lasts as long as it may.
    pub(super) fn renew_watched(
        &mut self,
        steps: &mut StepContext,
        owner: &[u8],
        client: u64,
    ) -> bool {
        let now = self.now.ms();
        let renewed = self
            .lock()
            .and_then(|lock| lock.renew_watched(owner, client, now));
        if renewed == Some(true) {
            self.changed(owner);
        }
        if renewed.is_some() {
            self.watch(steps, owner);
        }
        renewed == Some(true)
    }

    /// Takes away what was watched for a connection that is gone. Returns whether it did: a hold may linger.
    pub(super) fn abandon(&mut self, steps: &mut StepContext, owner: &[u8], client: u64) -> bool {
        let abandoned = self.lock().map(|lock| lock.abandon(owner, client));
        let Some(Abandoned::Released(hold)) = abandoned else {
            return false;
        };
        HOLD_TIMES.count_between(hold.fence, self.now.micros());
        self.gone(owner);
        steps.unwatch(hold.watch.as_deref());
        notices::lost(hold.notice);
        true
    }

    /// Ends all holds with the key, and the key with its last hold, after something else has set
    /// the key's expiry or made the key.
    pub(super) fn reconcile(&mut self, steps: &mut StepContext) {
        let key_expires = self.key.expires();
        let Some(lock) = self.key.value() else {
            return;
        };
        let longest = lock.holds().longest();
        let end = key_expires.map_or(longest, |at| at.min(longest));
        let is_shorter = lock.clamp(end);
        if is_shorter {
            let holds = lock.holds().iter();
            holds.for_each(|(_, hold)| plan_loss_check(self.ctx, hold));
        }
        if is_shorter || key_expires != Some(end) {
            lock.key_expires = 0; // to be set again
            persist::put_clamped(&mut self.effects, end);
        } else {
            lock.key_expires = end;
        }
        let watched = lock.holds().iter().filter(|(_, hold)| hold.watch.is_some());
        let owners: Vec<Box<[u8]>> = watched.map(|(owner, _)| owner.into()).collect();
        for owner in owners {
            self.watch(steps, &owner);
        }
    }

    /// Ends the step: makes the key what the lock has become, and commits what was changed. `event` is the keyspace event of
    /// the change that the step made.
    pub(super) fn close(mut self, event: &'static CStr) {
        let (ctx, name) = (self.ctx, self.name);
        let mut effects = std::mem::take(&mut self.effects);
        if let Some(fresh) = self.fresh.take() {
            self.key.create_boxed(fresh);
        }
        let event = (self.stepped && !event.is_empty()).then_some(event);
        let is_repeated = self.repeated && effects.is_empty() && !ctx.is_replay();
        let mut commit = Commit::default();
        if let Some(lock) = self.key.value() {
            if lock.holds().is_empty() {
                if lock.holds().has_ended() {
                    left_key(lock, ctx.db(), name.bytes());
                } else {
                    forget_deadline(lock);
                }
                commit.key = KeyFate::Delete;
                commit.replicate = match self.verbatim && self.stepped {
                    true => Replicate::Verbatim,
                    false => Replicate::Del,
                };
                (commit.is_modified, commit.event) = (true, event);
            } else {
                if let Some(at) = list_earlier(lock, ctx, name) {
                    timer::arm(ctx, at);
                }
                let longest = lock.holds().longest();
                if lock.key_expires != longest {
                    lock.key_expires = longest;
                    commit.key = KeyFate::ExpireAt(longest);
                }
                if self.stepped || !effects.is_empty() {
                    commit.replicate = match self.verbatim {
                        true => Replicate::Verbatim,
                        false => Replicate::Effect(c"LOCK.APPLY", &effects),
                    };
                    (commit.is_modified, commit.event) = (true, event);
                }
            }
        }
        if is_repeated && matches!(commit.replicate, Replicate::Nothing) {
            // Replicas that have this have the first request, too: a `WAIT` behind a repetition says whether they do.
            commit.replicate = Replicate::Effect(c"LOCK.APPLY", &[]);
        }
        self.key.commit(ctx, name, &commit);
        if effects.capacity() > 0 {
            effects.clear();
            SERVICE.get().steps.effects = effects;
        }
    }

    /// The step changed this owner's hold, which exists. Returns whether the hold is watched.
    fn changed(&mut self, owner: &[u8]) -> bool {
        self.stepped = true;
        let lock = match &mut self.fresh {
            Some(fresh) => Some(&mut **fresh),
            None => self.key.value(),
        };
        if let Some(lock) = lock
            && let Some(hold) = lock.holds().get_known(owner)
        {
            if !self.verbatim {
                persist::put_held(&mut self.effects, lock.mode(), owner, hold);
            }
            plan_loss_check(self.ctx, hold);
            return hold.watch.is_some();
        }
        false
    }

    /// The step took this owner's hold away.
    fn gone(&mut self, owner: &[u8]) {
        self.stepped = true;
        if !self.verbatim {
            persist::put_gone(&mut self.effects, owner);
        }
    }

    /// Removes this owner's hold if it has ended and is still to be removed.
    pub(super) fn end_hold(&mut self, steps: &mut StepContext, owner: &[u8]) {
        if let Some(lock) = self.value()
            && let Some(ended) = lock.remove_ended(owner)
        {
            steps.hold_ended(&ended);
            persist::put_gone(&mut self.effects, owner);
        }
    }

    /// Has the server tell this channel if the owner's hold is lost.
    fn notice(&mut self, owner: &[u8], channel: &[u8], id: &[u8]) {
        let (ctx, kind, name) = (self.ctx, self.kind, self.name);
        let Some(lock) = self.value() else {
            return;
        };
        let Some(hold) = lock.holds().get(owner) else {
            return;
        };
        let notice = Notice {
            key: (ctx.db(), name.bytes().into()),
            kind,
            owner: owner.into(),
            channel: channel.into(),
            id: id.into(),
            fence: hold.fence,
        };
        let number = NOTICES.get().set(hold.notice, notice, hold.until);
        timer::arm(ctx, hold.until + 1);
        lock.set_notice(owner, number);
    }

    /// Has the server renew the owner's hold, if it is watched.
    fn watch(&mut self, steps: &mut StepContext, owner: &[u8]) {
        let (ctx, kind, name, now) = (self.ctx, self.kind, self.name, self.now.ms());
        let Some(lock) = self.value() else {
            return;
        };
        let hold = lock.holds().get(owner);
        let Some((hold, watch)) = hold.and_then(|hold| Some((hold, hold.watch.as_deref()?))) else {
            return;
        };
        steps.unwatch(Some(watch));
        if watch.client == 0 {
            return; // its connection has closed
        }
        let number = match watch.number {
            0 => steps.watches.next_number(),
            number => number,
        };
        let watched = Watched {
            client: watch.client,
            key: (ctx.db(), name.bytes().into()),
            kind,
            owner: owner.into(),
            // At a third of the lease, counted from its end: to look at it again changes nothing.
            next: match watch.lease {
                0 => u64::MAX,
                _ if hold.until >= watch.bound => u64::MAX,
                lease => hold.until.saturating_sub(lease - lease / 3).max(now + 1),
            },
        };
        lock.set_watch_number(owner, number);
        if watched.next < u64::MAX {
            steps.renewals.insert((watched.next, number));
            timer::arm(ctx, watched.next);
        }
        steps.watches.insert(number, watched);
        LISTENING.store(true, Ordering::Relaxed);
    }
}

/// If the hold has a notice, plans a check at its end whether it is lost.
#[inline(always)]
fn plan_loss_check(ctx: Ctx<'_>, hold: &Hold) {
    if hold.notice != 0 && NOTICES.get().look_sooner(hold.notice, hold.until) {
        timer::arm(ctx, hold.until.saturating_add(1));
    }
}

/// Ends the holds whose lease is over, removes at most `most` of them (at least one), and appends the effects.
#[cold]
fn end_holds(
    steps: &mut StepContext,
    lock: &mut Lock,
    now: Now,
    most: usize,
    effects: &mut Vec<u8>,
) {
    let ended = lock.expire_some(now.ms(), most.max(1));
    if ended.is_empty() {
        return;
    }
    persist::put_ended(effects, &ended, lock.holds().has_ended(), now.ms());
    for (_, hold) in &ended {
        steps.hold_ended(hold);
    }
}

/// What steps on keys need beside the keyspace.
#[derive(Default)]
pub(super) struct StepContext {
    /// The holds that are renewed for connections.
    pub(super) watches: Watches,
    /// When watched holds are renewed (Unix ms), by their numbers.
    pub(super) renewals: BTreeSet<(u64, u64)>,
    /// How many holds were released because their connection closed.
    pub(super) watchdog_released: u64,
    /// A buffer for effects, kept to be used again.
    effects: Vec<u8>,
}

impl StepContext {
    /// A hold was removed because its lease had ended.
    fn hold_ended(&mut self, hold: &Hold) {
        EXPIRED_LEASES.fetch_add(1, Ordering::Relaxed);
        lease_ended(hold);
        self.unwatch(hold.watch.as_deref());
        notices::lost(hold.notice);
    }

    fn unwatch(&mut self, watch: Option<&Watch>) {
        if let Some(watch) = watch {
            self.unwatch_number(watch.number);
        }
    }

    /// Watches the hold with this number no longer.
    pub(super) fn unwatch_number(&mut self, number: u64) {
        if let Some(next) = self.watches.remove(number) {
            self.renewals.remove(&(next, number));
        }
    }
}

/// The keys of one request, open for a step.
pub(super) struct OpenKeys<'a, 'k> {
    keys: &'a mut [LockKey<'k>],
    steps: &'a mut StepContext,
}

impl<'a, 'k> OpenKeys<'a, 'k> {
    /// A request for one key.
    #[inline]
    pub(super) fn one(key: &'a mut LockKey<'k>, steps: &'a mut StepContext) -> Self {
        let keys = slice::from_mut(key);
        Self { keys, steps }
    }
}

impl OpenLocks for OpenKeys<'_, '_> {
    fn admits(&mut self, index: usize, request: &Acquire<'_>) -> Admission {
        self.keys[index].admits(request)
    }

    #[inline]
    fn acquire(&mut self, index: usize, request: &Acquire<'_>) -> Result<Acquired, Error> {
        self.keys[index].acquire(self.steps, request)
    }

    fn upgrade(&mut self, owner: &[u8], lease: u64) -> Result<Upgraded, Error> {
        self.keys[0].upgrade(owner, lease)
    }

    fn next_end(&mut self, index: usize) -> Option<u64> {
        self.keys[index].next_end()
    }
}

/// Opens locks in the selected database, takes `step`, and commits what was changed. If a key holds no lock of this kind, it returns an
/// error and `step` is not taken.
pub(super) fn with_open_keys<'k, T>(
    ctx: Ctx<'k>,
    now: Now,
    names: impl ExactSizeIterator<Item = &'k ServerString<'k>> + Clone,
    kind: LockKind,
    event: &'static CStr,
    step: impl FnOnce(&mut Handover, &mut OpenKeys<'_, 'k>) -> T,
) -> Result<T, Error> {
    let (opened, failure) = open_together(|| {
        let mut opened = Vec::with_capacity(names.len());
        for name in names.clone() {
            match TypedKey::of(ctx.open(name), kind.native()) {
                Ok(key) => opened.push((name, key)),
                Err(error) => return (opened, Some(error)),
            }
        }
        (opened, None)
    });
    let mut service = SERVICE.get();
    let LockService {
        handover, steps, ..
    } = &mut *service;
    let most = MAX_ENDS_PER_COMMAND / names.len().max(1);
    let mut keys: Vec<LockKey<'k>> = opened
        .into_iter()
        .map(|(name, key)| LockKey::of(ctx, steps, name, key, kind, now, most))
        .collect();
    let result = match failure {
        None => Ok(step(
            handover,
            &mut OpenKeys {
                keys: &mut keys,
                steps,
            },
        )),
        Some(error) => Err(error),
    };
    drop(service);
    for key in keys {
        key.close(event);
    }
    result
}
