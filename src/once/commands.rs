//! The commands of the family: each reads its request, takes a step and replies.

use super::edit::WorkEdit;
use super::native::ONCE;
use super::options::{BLOCK, FINGERPRINT, LEASE, OPTIONS, PX};
use super::serve::{OnceQueues, WaitingBegin};
use super::state::{BeginDecision, DoneDecision, DoneWork, decide_begin, decide_done, decide_fail};
use super::{COUNTERS, HOLD_TIMES, HOT, STATE, WAITING_CLIENTS};
use crate::error::Error;
use crate::queue_service::{self, QueueService};
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::key::TypedReadKey;
use crate::server::services::deferred::{ServerEvent, defer};
use crate::server::services::memory;
use std::sync::atomic::Ordering;

/// `ONCE.BEGIN key LEASE ms [FINGERPRINT f] [BLOCK ms]`
///
/// `LEASE`: how long the worker has the key to itself, 1 ms to 10 years. `FINGERPRINT`: the digest of the request, 1 to 512
/// bytes. `BLOCK`: how long the client waits for another worker, 0 (without limit) to 10 years. Replies with `[NEW, nil, token]`,
/// `[BUSY, nil, ms]` or `[DONE, result, ms]`. Errors: `WRONGTYPE`, `CONFLICT`, `OOM` for new work.
pub(super) fn begin(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let allowed = LEASE | FINGERPRINT | BLOCK;
    let options = OPTIONS.read(&mut cursor, allowed)?.require(LEASE)?;
    let (lease_ms, fingerprint) = (
        options.number_or(LEASE, 0),
        options.bytes(FINGERPRINT).unwrap_or_default(),
    );
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = WorkEdit::open(ctx, &name)?;
    let now = Now::read();
    edit.remove_if_over(now.ms());
    if edit.work().is_none() && has_queue(call) {
        // The lease has just ended. The first waiting client gets the work, and not this client.
        drop(edit);
        serve_first_key(call, now);
        edit = WorkEdit::open(ctx, &name)?;
    }
    let decision = match decide_begin(edit.work().as_deref(), fingerprint, now.ms()) {
        // The time of the slice is over, so the queue is served later.
        BeginDecision::Begin if has_queue(call) => BeginDecision::Busy(0),
        decision => decision,
    };
    match decision {
        BeginDecision::Begin => {
            if memory::is_full() && !ctx.is_replay() {
                return Err(Error::OutOfMemory);
            }
            let token = edit.begin(lease_ms, fingerprint, now)?;
            COUNTERS.begun.count();
            Ok(ctx.send_fetched("NEW", None, token))
        }
        BeginDecision::Conflict => {
            COUNTERS.conflicts.count();
            Err(Error::OtherFingerprint)
        }
        BeginDecision::Done(left) => {
            COUNTERS.replayed.count();
            let result = edit.work().and_then(|work| work.result.as_deref());
            Ok(ctx.send_fetched("DONE", Some(result.unwrap_or_default()), left))
        }
        BeginDecision::Busy(left) => {
            drop(edit);
            let request = || WaitingBegin {
                lease_ms,
                fingerprint: fingerprint.into(),
            };
            if let Some(block_ms) = options.number(BLOCK)
                && ctx.may_block()
                && queue_service::wait::<OnceQueues>(ctx, key, request(), block_ms, left, now)
            {
                return Ok(Reply::Later);
            }
            COUNTERS.busy.count();
            HOT.count_refusal(ctx, &name);
            Ok(ctx.send_fetched("BUSY", None, left))
        }
    }
}

/// A token. All tokens are in this range.
fn token(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    cursor.uint("token", 0..=MAX_SAFE)
}

/// `ONCE.DONE key token result PX ms`
///
/// `token`: 0 to 2^53 - 1. `PX`: how long the result is remembered, 1 ms to 10 years. Replies with 1, or with 0 if the token is
/// not the current one, or if another result is stored. Error: `WRONGTYPE`.
pub(super) fn done(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let token = token(&mut cursor)?;
    let result = cursor.value()?;
    let options = OPTIONS.read(&mut cursor, PX)?.require(PX)?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = WorkEdit::open(ctx, &name)?;
    let now = Now::read();
    edit.remove_if_over(now.ms());
    let decision = decide_done(edit.work().as_deref(), token, result, now.ms());
    match decision {
        DoneDecision::Store => {
            COUNTERS.done.count();
            HOLD_TIMES.count_between(token, now.micros());
            HOT.count_stored_bytes(ctx, &name, result.len());
            edit.store(&call.name(2), now.ms() + options.number_or(PX, 0));
        }
        DoneDecision::Repeated => edit.repeat(),
        DoneDecision::Refused => {}
    }
    if decision != DoneDecision::Refused
        && has_queue(call)
        && let Some(work) = edit.work().as_deref().and_then(DoneWork::of)
    {
        OnceQueues::with(|queues, _| queues.set_outcome(ctx.db(), name.bytes(), work));
    }
    drop(edit);
    serve_first_key(call, now);
    Ok(Reply::Int((decision != DoneDecision::Refused).into()))
}

/// `ONCE.FAIL key token`
///
/// `token`: 0 to 2^53 - 1. Replies with 1, or with 0 if the token is not the current one, or if the work is done. Error:
/// `WRONGTYPE`.
pub(super) fn fail(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let token = token(&mut cursor)?;
    cursor.end()?;
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = WorkEdit::open(ctx, &name)?;
    let now = Now::read();
    edit.remove_if_over(now.ms());
    let is_freed = decide_fail(edit.work().as_deref(), token, now.ms());
    if is_freed {
        COUNTERS.failed.count();
        HOLD_TIMES.count_between(token, now.micros());
        edit.fail();
    }
    drop(edit);
    serve_first_key(call, now);
    Ok(Reply::Int(is_freed.into()))
}

/// Whether clients wait for the first key.
fn has_queue(call: &Call<'_>) -> bool {
    WAITING_CLIENTS.load(Ordering::Relaxed) > 0
        && queue_service::has_queue::<OnceQueues>(call.ctx, &call.name(0))
}

/// Serves the clients that wait for the first key.
fn serve_first_key(call: &Call<'_>, now: Now) {
    if WAITING_CLIENTS.load(Ordering::Relaxed) > 0 {
        queue_service::serve_name::<OnceQueues>(call.ctx, now, &call.name(0));
    }
}

/// `ONCE.INFO key`
///
/// Replies with a map. The reply is nil if the key does not exist, or if its lease or its result has ended and the server has not
/// removed the key yet. `lease_ms` is there while the work is busy, `ttl_ms` when it is done. Error: `WRONGTYPE`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    let (ctx, name) = (call.ctx, call.name(0));
    let db = ctx.db();
    let mut key = TypedReadKey::of(ctx.open_to_read(&name), &ONCE)?;
    let now = Now::read().ms();
    let Some(work) = key.value().filter(|work| !work.is_over(now)) else {
        return Ok(Reply::Nil);
    };
    let waiters = STATE.get().queue.waiting(db, name.bytes()) as u64;
    let (state, end) = match work.result {
        None => ("busy", "lease_ms"),
        Some(_) => ("done", "ttl_ms"),
    };
    let fingerprint = match &*work.fingerprint {
        [] => Reply::Nil,
        bytes => Reply::Bytes(bytes.into()),
    };
    let result_bytes = work.result.as_ref().map_or(0, |result| result.len());
    Ok(Reply::Map(vec![
        ("state", Reply::Text(state)),
        ("token", Reply::int(work.token)),
        ("fingerprint", fingerprint),
        (end, Reply::int(work.until - now)),
        ("result_bytes", Reply::int(result_bytes as u64)),
        ("waiters", Reply::int(waiters)),
    ]))
}

/// `ONCE.APPLY key effect [result]`: applies an effect that a master has sent. See [`super::persist`].
pub(super) fn apply_effect(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let key = cursor.value()?;
    let effect = cursor.value()?;
    let result = cursor.next();
    cursor.end()?;
    let (ctx, name) = (call.ctx, call.name(0));
    WorkEdit::open(ctx, &name)?.apply(effect, result)?;
    if WAITING_CLIENTS.load(Ordering::Relaxed) > 0 {
        defer(ServerEvent::Changed(ctx.db(), key.into()));
    }
    Ok(Reply::Ok)
}
