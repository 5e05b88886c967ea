//! The internal commands that carry a master's decisions to replicas and the AOF.

use super::LISTENING;
use super::native::{forget_deadline, list_earlier};
use super::persist::{self, LockEffect};
use super::state::{Lock, LockKind, Mode};
use crate::error::Error;
use crate::fence::{is_plausible_fence, remember_fence};
use crate::reply::{Answer, Reply};
use crate::request::MAX_SAFE;
use crate::server::entry::Call;
use crate::server::handles::key::TypedKey;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use std::sync::atomic::Ordering;

/// `LOCK.APPLY key effects`: makes a lock what a master says it is. See [`persist`].
pub(super) fn apply_effects(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let effects = persist::effects(cursor.value()?).map_err(|_| Error::BadEffect)?;
    if effects.is_empty() {
        verbatim(call); // of a repeated request, which changed nothing
        return Ok(Reply::Ok);
    }
    let fence = |effect: &LockEffect<'_>| match effect {
        LockEffect::Held(_, _, hold) => hold.fence,
        LockEffect::Fence(fence) => *fence,
        _ => 0,
    };
    if !effects.iter().map(fence).all(is_plausible_fence) {
        return Err(Error::BadEffect);
    }
    let (ctx, name) = (call.ctx, call.name(0));
    if let [LockEffect::Fence(fence)] = effects[..] {
        remember_fence(fence);
        verbatim(call);
        return Ok(Reply::Ok); // this is about no key
    }
    let open = |kind: LockKind| TypedKey::of(ctx.open(&name), kind.native());
    let mut key = match kind_of(&effects)? {
        Some(kind) => open(kind)?,
        None => open(LockKind::Lock).or_else(|_| open(LockKind::Semaphore))?, // whatever is there
    };
    if key.value().is_none() {
        key.create(Lock::new(Mode::Exclusive));
    }
    let Some(lock) = key.value() else {
        return Err(Error::Internal);
    };
    let gives_holds = effects
        .iter()
        .any(|effect| matches!(effect, LockEffect::Held(..)));
    remember_fence(persist::apply(lock, effects));
    lock.key_expires = lock.holds().longest();
    if lock.key_expires == 0 {
        forget_deadline(lock);
    }
    let commit = Commit {
        key: match lock.key_expires {
            0 => KeyFate::Remove,
            at => KeyFate::ExpireAt(at),
        },
        replicate: Replicate::Verbatim,
        is_modified: true,
        event: None,
    };
    key.commit(ctx, &name, &commit);
    if let Some(lock) = key.value() {
        list_earlier(lock, ctx, &name); // the cron event asks, should this server become a master
    }
    if LISTENING.load(Ordering::Relaxed) {
        let (db, key) = (ctx.db(), name.bytes().into());
        deferred::defer(match gives_holds {
            true => ServerEvent::Arrived(db, key),
            false => ServerEvent::Changed(db, key),
        });
    }
    Ok(Reply::Ok)
}

/// Hands on a command that changes no key.
fn verbatim(call: &Call<'_>) {
    let commit = Commit {
        replicate: Replicate::Verbatim,
        ..Commit::default()
    };
    commit.carry_out_without_key(call.ctx, &call.name(0));
}

/// Which type the effects are about, if they tell; both at once is nonsense.
fn kind_of(effects: &[LockEffect<'_>]) -> Result<Option<LockKind>, Error> {
    let mut kinds = effects.iter().filter_map(|effect| match effect {
        LockEffect::Held(mode, ..) => Some(LockKind::of(*mode)),
        _ => None,
    });
    let first = kinds.next();
    if kinds.any(|kind| Some(kind) != first) {
        return Err(Error::BadEffect);
    }
    Ok(first)
}

/// `LOCK.FENCE fence`: remembers the last fence that a master gave.
pub(super) fn apply_fence(call: &Call<'_>) -> Answer {
    let fence = call.cursor().uint("fence", 1..=MAX_SAFE)?;
    if !is_plausible_fence(fence) {
        return Err(Error::BadEffect);
    }
    remember_fence(fence);
    verbatim(call);
    Ok(Reply::Ok)
}
