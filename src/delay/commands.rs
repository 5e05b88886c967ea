//! The commands of the family: each reads its request, takes its step and answers.

use super::COUNTERS;
use super::edit::DelayEdit;
use super::message::{MAX_MESSAGE_BYTES, MAX_MESSAGE_ID_BYTES, PackedMessage, QueuedMessage, pack};
use super::native::{DELAY, ListedQueue};
use super::options::{MAXLEN, NX, OPTIONS, PX, PXAT, STREAM, VALUES, XX};
use super::persist::{self, DelayEffect};
use super::state::{AddCondition, AddDecision, Target};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::MAX_SAFE;
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::key::{TypedKey, TypedReadKey};

/// `DELAY.SET key STREAM stream [MAXLEN n]`
///
/// `STREAM`: the key of the stream, in the same hash slot. `MAXLEN`: about how many entries the stream keeps, 1 to 2^53 - 1;
/// without it, all. Creates the queue, or sets the stream of the one that is there, whose messages stay. Replies OK. Errors:
/// `WRONGTYPE`, `ERR the stream must be another key than the delay queue`.
pub(super) fn set(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let options = OPTIONS
        .read(&mut cursor, STREAM | MAXLEN)?
        .require(STREAM)?;
    let name = call.name(0);
    let target = Target {
        stream: options.bytes(STREAM).unwrap_or_default().into(),
        maxlen: options.number_or(MAXLEN, 0),
    };
    if *target.stream == *name.bytes() {
        return Err(Error::StreamIsQueue);
    }
    let mut edit = DelayEdit::open(call.ctx, &name)?;
    edit.set_target(target);
    edit.close(c"delay.set");
    Ok(Reply::Ok)
}

/// `DELAY.ADD key id (PX ms | PXAT unix-ms) [NX | XX] VALUES field value [field value ...]`
///
/// `id`: 1 to 512 bytes. `PX`: the delay, 0 ms to 10 years. `PXAT`: the due time, 0 to 10 years from now. `NX`: only if no
/// message has the id; `XX`: only if one has. Replies 1 (the message is new), 0 (it replaced one that was not delivered), or
/// nil if `NX` or `XX` forbids it. Errors: `WRONGTYPE`, `ERR no such delay queue`, `ERR Elements are too large to be stored`.
pub(super) fn add(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let id = cursor.name("id", MAX_MESSAGE_ID_BYTES)?;
    let options = OPTIONS
        .read(&mut cursor, PX | PXAT | NX | XX | VALUES)?
        .require(VALUES)?;
    let now = Now::read().ms();
    let delay = options.number(PX).map(|ms| now + ms);
    let due = delay.or(options.number(PXAT)).ok_or(Error::Syntax)?;
    let values = cursor.rest();
    if values.is_empty() || !values.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    if values.iter().map(|value| value.len()).sum::<usize>() > MAX_MESSAGE_BYTES {
        return Err(Error::EntryTooLarge);
    }
    let condition = match (options.has(NX), options.has(XX)) {
        (true, _) => AddCondition::New,
        (_, true) => AddCondition::Present,
        _ => AddCondition::Always,
    };
    let name = call.name(0);
    let mut edit = DelayEdit::open(call.ctx, &name)?;
    if edit.queue()?.decide_add(id, condition) == AddDecision::Refuse {
        return Ok(Reply::Nil);
    }
    let packed = pack(id, values);
    let message = PackedMessage::read(&packed).map_err(|_| Error::Internal)?;
    let is_replaced = edit.put(message, due)?;
    edit.close(c"delay.add");
    if is_replaced {
        COUNTERS.replaced.count();
    } else {
        COUNTERS.added.count();
    }
    Ok(Reply::Int(i64::from(!is_replaced)))
}

/// `DELAY.CANCEL key id [id ...]`
///
/// `id`: 1 to 512 bytes. Replies with the number of messages that were removed; 0 if there is no such queue. Error:
/// `WRONGTYPE`.
pub(super) fn cancel(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let mut ids = Vec::with_capacity(cursor.left());
    while cursor.left() > 0 {
        ids.push(cursor.name("id", MAX_MESSAGE_ID_BYTES)?);
    }
    if ids.is_empty() {
        return Err(Error::Syntax);
    }
    let name = call.name(0);
    let mut edit = DelayEdit::open(call.ctx, &name)?;
    let canceled = ids.iter().filter(|id| edit.cancel(id)).count() as u64;
    edit.close(c"delay.cancel");
    COUNTERS.canceled.add(canceled);
    Ok(Reply::int(canceled))
}

/// `DELAY.GET key id`
///
/// Replies with the time until the message is due in ms (0 if it is overdue), and an array of its fields and values. Nil if
/// there is no such queue or message. Error: `WRONGTYPE`.
pub(super) fn get(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let id = cursor.name("id", MAX_MESSAGE_ID_BYTES)?;
    read_queue(call, Reply::Nil, |value| {
        let Some(queued) = value.queue.get(id) else {
            return Reply::Nil;
        };
        let values = queued.message().values();
        let values = values.map(|value| Reply::Bytes(value.into())).collect();
        Reply::Array(vec![ms_left(queued), Reply::Array(values)])
    })
}

/// `DELAY.RANGE key count`
///
/// `count`: 0 to 2^53 - 1. Replies with an array of the messages that are delivered next, at most `count` of them: the id and
/// the time until the message is due in ms. Error: `WRONGTYPE`.
pub(super) fn range(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let count = cursor.uint("count", 0..=MAX_SAFE)?;
    read_queue(call, Reply::Array(Vec::new()), |value| {
        let soonest = value.queue.soonest(count as usize);
        let pair = |queued: &&QueuedMessage| {
            let id = Reply::Bytes(queued.message().id().into());
            Reply::Array(vec![id, ms_left(queued)])
        };
        Reply::Array(soonest.iter().map(pair).collect())
    })
}

fn ms_left(queued: &QueuedMessage) -> Reply {
    Reply::int(queued.ms_left(Now::read().ms()))
}

/// `DELAY.INFO key`
///
/// Replies with a map: messages (that wait), bytes (of their ids, fields and values), stream, maxlen (0: none), next_ms (until
/// the next message is due, -1: there is none), delivered, stuck (1 while the stream accepts no entries). Nil if there is no
/// such queue. Error: `WRONGTYPE`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    read_queue(call, Reply::Nil, |value| {
        let queue = &value.queue;
        let target = queue.target();
        Reply::Map(vec![
            ("messages", Reply::int(queue.len() as u64)),
            ("bytes", Reply::int(queue.payload_bytes())),
            ("stream", Reply::Bytes(target.stream.clone())),
            ("maxlen", Reply::int(target.maxlen)),
            ("next_ms", queue.first().map_or(Reply::Int(-1), ms_left)),
            ("delivered", Reply::int(queue.delivered())),
            ("stuck", Reply::Int(value.is_stuck().into())),
        ])
    })
}

/// What `read` makes of the queue at the key; `none` if there is no queue.
fn read_queue(call: &Call<'_>, none: Reply, read: impl FnOnce(&ListedQueue) -> Reply) -> Answer {
    let name = call.name(0);
    let mut key = TypedReadKey::of(call.ctx.open_to_read(&name), &DELAY)?;
    Ok(key.value().map_or(none, |value| read(value)))
}

/// `DELAY.APPLY key effects`: makes a queue what a master says it is. See [`persist`].
pub(super) fn apply_effects(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let payload = cursor.value()?;
    // All of them are read once before the first is carried out, and none is kept.
    if payload.is_empty() || persist::effects(payload).any(|effect| effect.is_err()) {
        return Err(Error::BadEffect);
    }
    let (ctx, name) = (call.ctx, call.name(0));
    let key = match persist::effects(payload).next() {
        Some(Ok(DelayEffect::Created { .. })) => TypedKey::over(ctx.open(&name), &DELAY),
        _ => TypedKey::of(ctx.open(&name), &DELAY)?,
    };
    let mut edit = DelayEdit::of(ctx, &name, key);
    let applied = persist::effects(payload)
        .try_for_each(|effect| edit.apply(effect.map_err(|_| Error::BadEffect)?));
    edit.close_applied();
    applied.map(|()| Reply::Ok)
}
