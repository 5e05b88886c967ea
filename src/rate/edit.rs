//! A step on the key of one limit, and its [`Commit`].

use super::exact::ExactWindow;
use super::native::RATE;
use super::persist::{self, RateEffect};
use super::state::{Limit, LimitChange, WindowCall};
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyEdit, KeyFate, Replicate};
use std::ffi::CStr;

/// The buffer of the effect that is being replicated. It keeps its memory for the next effect.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// A key that is empty or holds a limit.
pub(super) type LimitEdit<'k> = KeyEdit<'k, Limit>;

impl<'k> KeyEdit<'k, Limit> {
    /// Opens a key. Error: `WRONGTYPE`.
    #[inline(always)]
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Self::of(ctx, name, ctx.open(name), &RATE)
    }

    /// The limit.
    #[inline]
    pub(super) fn limit(&mut self) -> Option<&mut Limit> {
        self.key.value()
    }

    /// When the key expires (Unix ms).
    pub(super) fn expires(&mut self) -> Option<u64> {
        self.key.expires()
    }

    /// Carries out a change. `cost`: the cost that [`LimitChange::AddCost`] adds.
    #[inline]
    pub(super) fn change(
        &mut self,
        change: LimitChange,
        cost: u64,
        event: &'static CStr,
    ) -> Result<(), Error> {
        match change {
            LimitChange::Unchanged => {}
            LimitChange::AddCost => self.add_cost(cost, Some(event))?,
            LimitChange::Replace(limit) => self.replace(limit, event),
            LimitChange::Record(call) => self.record(call, event),
            LimitChange::GiveBack(count) => self.give_back(count, event)?,
        }
        Ok(())
    }

    /// Adds a cost to the limit, and replicates the running command. Error: the key has no limit.
    #[inline]
    pub(super) fn add_cost(
        &mut self,
        cost: u64,
        event: Option<&'static CStr>,
    ) -> Result<(), Error> {
        let limit = self.key.value().ok_or(Error::BadEffect)?;
        let commit = Commit {
            key: KeyFate::keep_until(limit.add(cost)),
            replicate: Replicate::Verbatim,
            is_modified: true,
            event,
        };
        self.carry_out(&commit);
        Ok(())
    }

    /// Replaces the limit. The key expires at the limit's end. If the end does not change, the key's expiry does not change
    /// either, even if somebody else has set it.
    pub(super) fn replace(&mut self, limit: Limit, event: &'static CStr) {
        let end_before = self.end();
        let expires = limit.end().filter(|end| end_before != Some(*end));
        self.put(limit, expires, event);
    }

    fn end(&mut self) -> Option<u64> {
        self.key.value().and_then(|limit| limit.end())
    }

    /// Adds a call to the log of an exact window, which begins if there is none.
    fn record(&mut self, call: WindowCall, event: &'static CStr) {
        if self.key.value().is_none() {
            let mut log = ExactWindow::new(call.length);
            log.record(call.at, call.cost, call.length);
            return self.replace(Limit::Exact(Box::new(log)), event);
        }
        let end_before = self.end();
        self.add_call(call);
        let expires = self.end().filter(|end| end_before != Some(*end));
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_record(&mut effect, call, expires.unwrap_or(0));
        self.commit(&effect, expires, event);
    }

    /// Gives a cost back to the log of an exact window. Error: the key has no limit.
    fn give_back(&mut self, count: u64, event: &'static CStr) -> Result<(), Error> {
        let limit = self.key.value().ok_or(Error::Internal)?;
        let end_before = limit.end();
        limit.give_back(count);
        let expires = limit.end().filter(|end| end_before != Some(*end));
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_give_back(&mut effect, count, expires.unwrap_or(0));
        self.commit(&effect, expires, event);
        Ok(())
    }

    /// Puts a limit at the key. `expires`: when the key expires (Unix ms); `None` keeps the key's expiry.
    pub(super) fn put(&mut self, limit: Limit, expires: Option<u64>, event: &'static CStr) {
        // Taken, not borrowed: a new key makes the server emit an event, whose listener may run a command of this family.
        let mut effect = std::mem::take(&mut *EFFECT.get());
        effect.clear();
        persist::put_effect(&mut effect, &limit, expires.unwrap_or(0));
        self.set(limit);
        self.commit(&effect, expires, event);
        *EFFECT.get() = effect;
    }

    /// Commits a change that replicas receive as an effect.
    fn commit(&mut self, effect: &[u8], expires: Option<u64>, event: &'static CStr) {
        let commit = Commit {
            key: KeyFate::keep_until(expires),
            replicate: Replicate::Effect(c"RATE.APPLY", effect),
            is_modified: true,
            event: Some(event),
        };
        self.carry_out(&commit);
    }

    /// Deletes the key, because its limit is unused.
    pub(super) fn delete(&mut self, event: &'static CStr) {
        let commit = Commit {
            key: KeyFate::Delete,
            replicate: Replicate::Del,
            is_modified: true,
            event: Some(event),
        };
        self.carry_out(&commit);
    }

    /// Carries out a change that a master has sent. `expires`: as for [`LimitEdit::put`]. Error: the key has no limit.
    pub(super) fn apply(&mut self, effect: RateEffect, expires: Option<u64>) -> Result<(), Error> {
        match effect {
            RateEffect::Limit(limit) => self.set(limit),
            RateEffect::Record(call) => self.add_call(call),
            RateEffect::GiveBack(count) => {
                let limit = self.key.value().ok_or(Error::BadEffect)?;
                limit.give_back(count);
            }
        }
        let commit = Commit {
            key: KeyFate::keep_until(expires),
            replicate: Replicate::Verbatim,
            is_modified: true,
            event: None,
        };
        self.carry_out(&commit);
        Ok(())
    }

    /// Adds a call to the log of an exact window. A limit of another kind is replaced: a master has none.
    fn add_call(&mut self, call: WindowCall) {
        if !matches!(self.key.value(), Some(Limit::Exact(_))) {
            self.set(Limit::Exact(Box::new(ExactWindow::new(call.length))));
        }
        if let Some(limit) = self.key.value() {
            limit.record(call);
        }
    }

    fn set(&mut self, limit: Limit) {
        match self.key.value() {
            Some(current) => *current = limit,
            None => self.key.create(limit),
        }
    }
}

/// Lets the key of a limit expire at the limit's end, if the key would expire later or never.
pub(super) fn limit_expiry(ctx: Ctx<'_>, name: &ServerString<'_>) {
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &RATE)
        && let Some(end) = key.value().and_then(|limit| limit.end())
    {
        key.limit_expiry(ctx, name, end);
    }
}
