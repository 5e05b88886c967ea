//! `LOCK.GUARD`: the check of a fencing token by the resource that the lock protects.

use super::options::{OPTIONS, PX};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{MAX_SAFE, parse_int};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::services::commit::{Commit, KeyFate, Replicate};

/// `LOCK.GUARD key fence [PX ms]`
///
/// `fence`: 1 to 2^53 - 1. `PX`: the key expires after 1 ms to 10 years; without it, it keeps the
/// expiry that it has. Replies 1 if no larger fence was seen, which is remembered, else 0. Errors:
/// `WRONGTYPE`; `ERR value is not an integer or out of range` if the string at the key is none.
pub(super) fn guard(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let text = cursor.clone().value()?;
    let fence = cursor.int("fence", 1..=MAX_SAFE)?;
    let options = OPTIONS.read(&mut cursor, PX)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut key = ctx.open(&name);
    let largest = match key.string()? {
        Some(seen) => Some(parse_int(seen).ok_or(Error::NotInteger)?),
        None => None,
    };
    if largest > Some(fence) {
        return Ok(Reply::Int(0));
    }
    let expires = options.number(PX).map(|lease| Now::read().ms() + lease);
    if largest == Some(fence) && expires.is_none() {
        // Nothing changes. A `WAIT` behind this command says whether the replicas have the fence.
        let commit = Commit {
            replicate: Replicate::Effect(c"LOCK.APPLY", &[]),
            ..Commit::default()
        };
        if !ctx.is_replay() {
            key.commit(ctx, &name, &commit);
        }
        return Ok(Reply::Int(1));
    }
    key.set_string(text);
    let commit = Commit {
        key: KeyFate::keep_until(expires),
        replicate: Replicate::Set(text, expires),
        is_modified: true,
        event: Some(c"lock.guard"),
    };
    key.commit(ctx, &name, &commit);
    Ok(Reply::Int(1))
}
