//! A step on the key of some work, and its [`Commit`].

use super::native::{ONCE, lease_ended};
use super::persist;
use super::state::OnceWork;
use crate::error::Error;
use crate::fence::{is_plausible_fence, next_fence, remember_fence};
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyEdit, KeyFate, Replicate};
use std::ffi::CStr;

/// The buffer of the effect that is being replicated. It keeps its memory for the next effect.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// A key that is empty or holds work.
pub(super) type WorkEdit<'k> = KeyEdit<'k, OnceWork>;

impl<'k> KeyEdit<'k, OnceWork> {
    /// Opens a key. Error: `WRONGTYPE`.
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Self::of(ctx, name, ctx.open(name), &ONCE)
    }

    /// The same to serve a waiting client; see [`Ctx::open_to_serve`].
    pub(super) fn open_to_serve(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Self::of(ctx, name, ctx.open_to_serve(name), &ONCE)
    }

    /// The work.
    pub(super) fn work(&mut self) -> Option<&mut OnceWork> {
        self.key.value()
    }

    /// Removes work whose time is up and that the server has not removed yet. Like the server's own expiry, this happens during
    /// commands that write nothing else. `now` is in Unix ms.
    pub(super) fn remove_if_over(&mut self, now: u64) {
        let Some(work) = self.key.value() else {
            return;
        };
        if !work.is_over(now) || self.ctx.is_replay() {
            return;
        }
        if work.result.is_none() {
            lease_ended(work);
        }
        let commit = Commit {
            key: KeyFate::Expire,
            replicate: Replicate::Del,
            is_modified: true,
            event: None,
        };
        self.carry_out(&commit);
    }

    /// Begins work at an empty key. Returns the token. Error: no fence is left.
    pub(super) fn begin(
        &mut self,
        lease_ms: u64,
        fingerprint: &[u8],
        now: Now,
    ) -> Result<u64, Error> {
        let token = next_fence(now)?;
        remember_fence(token);
        self.key.create(OnceWork {
            token,
            fingerprint: fingerprint.into(),
            until: now.ms() + lease_ms,
            result: None,
        });
        self.commit(None, c"once.begin");
        Ok(token)
    }

    /// Stores the result of the work. `until`: when it is forgotten (Unix ms).
    pub(super) fn store(&mut self, result: &ServerString<'_>, until: u64) {
        if let Some(work) = self.key.value() {
            work.result = Some(result.bytes().into());
            work.until = until;
        }
        self.commit(Some(result), c"once.done");
    }

    /// Ends the work without a result.
    pub(super) fn fail(&mut self) {
        let commit = Commit {
            key: KeyFate::Delete,
            replicate: Replicate::Del,
            is_modified: true,
            event: Some(c"once.fail"),
        };
        self.carry_out(&commit);
    }

    /// Replicates a repeated request, which changes nothing, so that `WAIT` after it waits for the first request.
    pub(super) fn repeat(&mut self) {
        let commit = Commit {
            replicate: Replicate::Effect(c"ONCE.APPLY", b""),
            ..Commit::default()
        };
        self.carry_out(&commit);
    }

    /// Makes the work what an effect says.
    pub(super) fn apply(&mut self, effect: &[u8], result: Option<&[u8]>) -> Result<(), Error> {
        let mut fate = KeyFate::Keep;
        if !effect.is_empty() {
            let mut work = persist::read_head(effect).map_err(|_| Error::BadEffect)?;
            if work.result.is_some() != result.is_some() || !is_plausible_fence(work.token) {
                return Err(Error::BadEffect);
            }
            work.result = result.map(Into::into);
            remember_fence(work.token);
            fate = KeyFate::ExpireAt(work.until);
            match self.key.value() {
                Some(current) => *current = work,
                None => self.key.create(work),
            }
        } else if result.is_some() {
            return Err(Error::BadEffect);
        }
        let commit = Commit {
            key: fate,
            replicate: Replicate::Verbatim,
            is_modified: fate != KeyFate::Keep,
            event: None,
        };
        self.carry_out(&commit);
        Ok(())
    }

    /// Commits a change of the work. `result`: the result, if it is new.
    fn commit(&mut self, result: Option<&ServerString<'_>>, event: &'static CStr) {
        let Some(work) = self.key.value() else {
            return;
        };
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_head(&mut effect, work);
        let commit = Commit {
            key: KeyFate::ExpireAt(work.until),
            replicate: match result {
                Some(result) => Replicate::EffectWithValue(c"ONCE.APPLY", &effect, result),
                None => Replicate::Effect(c"ONCE.APPLY", &effect),
            },
            is_modified: true,
            event: Some(event),
        };
        self.carry_out(&commit);
    }
}

/// Lets the key of some work expire at the work's end, if the key would expire later or never.
pub(super) fn limit_expiry(ctx: Ctx<'_>, name: &ServerString<'_>) {
    if let Ok(mut key) = TypedKey::of(ctx.peek(name), &ONCE)
        && let Some(end) = key.value().map(|work| work.until)
    {
        key.limit_expiry(ctx, name, end);
    }
}
