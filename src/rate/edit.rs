//! A step on the key of one limit, and its [`Commit`].

use super::native::RATE;
use super::persist;
use super::state::Limit;
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use std::ffi::CStr;

/// The buffer of the effect that is being replicated. It keeps its memory for the next effect.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// A key that is empty or holds a limit.
pub(super) struct LimitEdit<'k> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    key: TypedKey<'k, Limit>,
}

impl<'k> LimitEdit<'k> {
    /// Opens a key. Error: `WRONGTYPE`.
    #[inline(always)]
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        let key = TypedKey::of(ctx.open(name), &RATE)?;
        Ok(Self { ctx, name, key })
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

    /// Adds a cost to the limit, and replicates the running command. Error: the key has no limit.
    #[inline]
    pub(super) fn add_cost(
        &mut self,
        cost: u64,
        event: Option<&'static CStr>,
    ) -> Result<(), Error> {
        let limit = self.key.value().ok_or(Error::BadEffect)?;
        let end_before = limit.end();
        limit.add(cost);
        let end = limit.end();
        // Most calls of a hot key do not move the limit's end to another millisecond.
        let commit = Commit {
            key: fate(end.filter(|_| end != end_before)),
            replicate: Replicate::Verbatim,
            is_modified: true,
            event,
        };
        self.key.commit(self.ctx, self.name, &commit);
        Ok(())
    }

    /// Replaces the limit. The key expires at the limit's end. If the end does not change, the key's expiry does not change
    /// either, even if somebody else has set it.
    pub(super) fn replace(&mut self, limit: Limit, event: &'static CStr) {
        let end_before = self.key.value().and_then(|limit| limit.end());
        let expires = limit.end().filter(|end| end_before != Some(*end));
        self.put(limit, expires, event);
    }

    /// Puts a limit at the key. `expires`: when the key expires (Unix ms); `None` keeps the key's expiry.
    pub(super) fn put(&mut self, limit: Limit, expires: Option<u64>, event: &'static CStr) {
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_effect(&mut effect, &limit, expires.unwrap_or(0));
        self.set(limit);
        let commit = Commit {
            key: fate(expires),
            replicate: Replicate::Effect(c"RATE.APPLY", &effect),
            is_modified: true,
            event: Some(event),
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Deletes the key, because its limit is unused.
    pub(super) fn delete(&mut self, event: &'static CStr) {
        let commit = Commit {
            key: KeyFate::Delete,
            replicate: Replicate::Del,
            is_modified: true,
            event: Some(event),
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Makes the limit the one that a master has sent. `expires`: as for [`LimitEdit::put`].
    pub(super) fn apply(&mut self, limit: Limit, expires: Option<u64>) {
        self.set(limit);
        let commit = Commit {
            key: fate(expires),
            replicate: Replicate::Verbatim,
            is_modified: true,
            event: None,
        };
        self.key.commit(self.ctx, self.name, &commit);
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
        && let Some(end) = end_before_expiry(&mut key)
    {
        let commit = Commit {
            key: KeyFate::ExpireAt(end),
            replicate: Replicate::ExpireAt(end),
            is_modified: true,
            event: None,
        };
        key.commit(ctx, name, &commit);
    }
}

/// The end of a limit whose key expires later or never (Unix ms).
pub(super) fn end_before_expiry(key: &mut TypedKey<'_, Limit>) -> Option<u64> {
    let end = key.value()?.end()?;
    let outlives = key.expires().is_none_or(|at| at > end);
    outlives.then_some(end)
}

/// `expires`: when the key expires (Unix ms); `None` keeps the key's expiry.
fn fate(expires: Option<u64>) -> KeyFate {
    expires.map_or(KeyFate::Keep, KeyFate::ExpireAt)
}
