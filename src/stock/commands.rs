//! The commands on one stock, and those that read: each reads its request, takes its step and returns a reply.

use super::edit::{SLICE_ORDERS, StockEdit, change_plainly, pass_on_repeated};
use super::native::STOCK;
use super::options::{NX, OPTIONS, ORDER, PX, TERMS, USER, XX};
use super::order::Status;
use super::persist::{self, Created, StockEffect};
use super::state::{
    Counts, Decision, Op, Stock, StockAction, StockRefusal, StockRequest, next_ver,
};
use super::{COUNTERS, HOT, MAX_ID_BYTES};
use crate::error::Error;
use crate::options::Options;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, MAX_SAFE, parse_int};
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::{OpenKey, TypedKey, TypedReadKey};
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use std::ffi::CStr;

pub(super) fn qty(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    cursor.uint("qty", 1..=MAX_SAFE)
}

pub(super) fn id<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("id", MAX_ID_BYTES)
}

/// `STOCK.SET key total [NX | XX] [PERUSER n] [RETAIN ms] [EVENTS stream [MAXLEN n]]`
///
/// `total`: 0 to 2^53 - 1. `NX`: only if there is no stock; `XX`: only if there is one. `PERUSER`:
/// the most that a user may have, 1 to 2^53 - 1. `RETAIN`: how long final orders are remembered,
/// 1 ms to 10 years, default a day. `EVENTS`: the key of a stream; `MAXLEN`: about how many entries
/// it keeps, default 100000. Replaces a stock with all its orders; the numbering of its events goes
/// on, its expiry ends. Replies OK, or nil if `NX` or `XX` forbids it. Error: `WRONGTYPE`, also for
/// the stream.
pub(super) fn set(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let total = cursor.uint("total", 0..=MAX_SAFE)?;
    let options = OPTIONS.read(&mut cursor, NX | XX | TERMS)?;
    let terms = options.terms();
    let (ctx, name) = (call.ctx, call.name(0));
    let mut edit = StockEdit::open(ctx, &name)?;
    let before = edit.stock().map(|stock| stock.counts().ver);
    if options.has(NX) && before.is_some() || options.has(XX) && before.is_none() {
        return Ok(Reply::Nil);
    }
    edit.create(Created {
        counts: Counts {
            available: total,
            reserved: 0,
            sold: 0,
            ver: next_ver(before.unwrap_or(0)),
        },
        terms,
        keeps_expiry: false,
        entry: None,
    })?;
    edit.close(Some(c"stock.set"));
    Ok(Reply::Ok)
}

/// `STOCK.IMPORT key [PERUSER n] [RETAIN ms] [EVENTS stream [MAXLEN n]]`
///
/// The options are those of `STOCK.SET`. The key holds a counter from 0 to 2^53 - 1, or a hash with
/// the fields `total` and `ordered` and no others, of which `ordered` was sold; it keeps its expiry.
/// Returns the available quantity, or -4 if there is no such key. Errors: `WRONGTYPE`;
/// `ERR value is not an integer or out of range`; `ERR counter must be between ...`, and the same
/// for `total` and `ordered`; `ERR the hash must have the fields total and ordered, and no others`.
pub(super) fn import(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let terms = OPTIONS.read(&mut cursor, TERMS)?.terms();
    let (ctx, name) = (call.ctx, call.name(0));
    let key = ctx.open(&name);
    if key.is_empty() {
        return Ok(Reply::Int(StockRefusal::Unknown as i64));
    }
    let (available, sold) = counter(&key)?;
    let mut edit = StockEdit::of(ctx, &name, TypedKey::over(key, &STOCK));
    edit.create(Created {
        counts: Counts {
            available,
            reserved: 0,
            sold,
            ver: 1,
        },
        terms,
        keeps_expiry: true,
        entry: None,
    })?;
    edit.close(Some(c"stock.import"));
    Ok(Reply::int(available))
}

/// The available and the sold quantity of a counter or a hash without Sluice.
fn counter(key: &OpenKey<'_>) -> Result<(u64, u64), Error> {
    if !key.is_hash() {
        let text = key.string()?.unwrap_or_default();
        return Ok((quantity(text, "counter", MAX_SAFE)?, 0));
    }
    let fields = [c"total", c"ordered"].map(|field| key.hash_field(field));
    let [Some(total), Some(ordered)] = fields else {
        return Err(Error::NotAStockHash);
    };
    if key.length() != 2 {
        return Err(Error::NotAStockHash);
    }
    let total = quantity(total.bytes(), "total", MAX_SAFE)?;
    let ordered = quantity(ordered.bytes(), "ordered", total as i64)?;
    Ok((total - ordered, ordered))
}

fn quantity(text: &[u8], argument: &'static str, max: i64) -> Result<u64, Error> {
    let number = parse_int(text).ok_or(Error::NotInteger)?;
    if (0..=max).contains(&number) {
        return Ok(number as u64);
    }
    Err(Error::OutOfRange {
        argument,
        min: 0,
        max,
    })
}

/// `STOCK.ADD key delta [ORDER id]`
///
/// `delta`: -(2^53 - 1) to 2^53 - 1. `ORDER`: 1 to 512 bytes. Returns the available quantity; -1
/// (less is available than is taken back), -3 (the order is closed), -4 (no such stock). Errors:
/// `WRONGTYPE`, `CONFLICT`, `ERR delta must be between ...` if the total would exceed 2^53 - 1.
pub(super) fn add(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let delta = cursor.int("delta", -MAX_SAFE..=MAX_SAFE)?;
    let options = OPTIONS.read(&mut cursor, ORDER)?;
    step(
        call,
        &options.request(StockAction::Add { delta }),
        c"stock.add",
    )
}

/// `STOCK.DEDUCT key qty [ORDER id] [USER user]`
///
/// `qty`: 1 to 2^53 - 1. `ORDER`, `USER`: 1 to 512 bytes. Returns the available quantity
/// afterwards; -1 (sold out), -2 (over the user's limit), -3 (the order is closed), -4 (no such
/// stock). Errors: `WRONGTYPE`, `CONFLICT`, `ERR USER is required by this stock`.
pub(super) fn deduct(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let qty = qty(&mut cursor)?;
    let mut options = Options::NONE;
    OPTIONS.read_into(&mut options, &mut cursor, ORDER | USER)?;
    step(
        call,
        &options.request(StockAction::Deduct { qty }),
        c"stock.deduct",
    )
}

/// `STOCK.RESERVE key qty ORDER id PX ms [USER user]`
///
/// `PX`: how long the reservation lasts, 1 ms to 10 years. The rest as for `STOCK.DEDUCT`.
pub(super) fn reserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let qty = qty(&mut cursor)?;
    let options = OPTIONS
        .read(&mut cursor, ORDER | PX | USER)?
        .require(ORDER | PX)?;
    let action = StockAction::Reserve {
        qty,
        px: options.number_or(PX, 0),
    };
    step(call, &options.request(action), c"stock.reserve")
}

/// `STOCK.CONFIRM key id`
///
/// Replies with the order's quantity, also if it is sold already; -3 (closed), -4 (no such stock or
/// order). Errors: `WRONGTYPE`, `CONFLICT` (the id of an `ADD`).
pub(super) fn confirm(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let request = StockRequest {
        action: StockAction::Confirm,
        order: id(&mut cursor)?,
        user: &[],
    };
    step(call, &request, c"stock.confirm")
}

/// `STOCK.CANCEL key id`
///
/// Replies with the order's quantity, also if it is cancelled already; -3 (it has expired), -4 (no
/// such stock; or no such order, whose id is remembered as closed). Errors: `WRONGTYPE`, `CONFLICT`
/// (the id of an `ADD`).
pub(super) fn cancel(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let request = StockRequest {
        action: StockAction::Cancel,
        order: id(&mut cursor)?,
        user: &[],
    };
    step(call, &request, c"stock.cancel")
}

/// One step on the stock at the first key.
fn step(call: &Call<'_>, request: &StockRequest<'_>, event: &'static CStr) -> Answer {
    let name = call.name(0);
    let mut key = TypedKey::of(call.ctx.open(&name), &STOCK)?;
    let Some(stock) = key.value() else {
        return Ok(Reply::Int(StockRefusal::Unknown as i64));
    };
    let next_end = stock.next_end();
    let needs_time = !request.order.is_empty() || next_end < u64::MAX;
    let now = if needs_time { Now::read().ms() } else { 0 };
    if request.order.is_empty() && !stock.has_events() && next_end > now {
        return step_plainly(call, &name, key, request, event);
    }
    let mut edit = StockEdit::for_call(call, &name, key);
    edit.end_overdue(now, request.order, SLICE_ORDERS);
    let answer = step_once(&mut edit, request, now);
    edit.close(Some(event));
    answer
}

/// One step on a stock without an event stream and without an order: it depends only on the quantities of the stock.
fn step_plainly(
    call: &Call<'_>,
    name: &ServerString<'_>,
    mut key: TypedKey<'_, Stock>,
    request: &StockRequest<'_>,
    event: &'static CStr,
) -> Answer {
    let stock = key.value().ok_or(Error::Internal)?;
    let decision = stock.decide(request, 0)?;
    if let Decision::Change(change, _) = &decision {
        change_plainly(call.ctx, name, &mut key, change, event)?;
    }
    count(call.ctx, name, &decision);
    Ok(Reply::Int(reply(&decision)))
}

fn step_once(edit: &mut StockEdit<'_>, request: &StockRequest<'_>, now: u64) -> Answer {
    let decision = decide(edit, request, now)?;
    check_memory(std::slice::from_ref(edit), std::slice::from_ref(&decision))?;
    match &decision {
        Decision::Change(change, _) => edit.change(change)?,
        Decision::Repeated(_) if edit.is_unchanged() => edit.replicate_repeated(),
        _ => {}
    }
    let (ctx, name) = edit.ctx_and_name();
    count(ctx, name, &decision);
    Ok(Reply::Int(reply(&decision)))
}

pub(super) fn decide<'a>(
    edit: &mut StockEdit<'_>,
    request: &StockRequest<'a>,
    now: u64,
) -> Result<Decision<'a>, Error> {
    let Some(stock) = edit.stock() else {
        return Ok(Decision::Refused(StockRefusal::Unknown));
    };
    let decision = stock.decide(request, now);
    if decision == Err(Error::Conflict) {
        COUNTERS.conflicts.count();
    }
    decision
}

/// If the server is out of memory, refuses a `CANCEL` that only adds a mark. Other cancellations free memory.
pub(super) fn check_memory(
    edits: &[StockEdit<'_>],
    decisions: &[Decision<'_>],
) -> Result<(), Error> {
    let marks = |decision: &Decision<'_>| match decision {
        Decision::Change(change, _) => change.op == Op::Mark,
        _ => false,
    };
    if decisions.iter().any(marks) && edits.iter().any(StockEdit::is_out_of_memory) {
        return Err(Error::OutOfMemory);
    }
    Ok(())
}

pub(super) fn reply(decision: &Decision<'_>) -> i64 {
    match decision {
        Decision::Refused(refusal) => *refusal as i64,
        Decision::Repeated(reply) | Decision::Change(_, reply) => *reply,
    }
}

pub(super) fn count(ctx: Ctx<'_>, name: &ServerString<'_>, decision: &Decision<'_>) {
    match decision {
        Decision::Refused(StockRefusal::SoldOut) => {
            COUNTERS.sold_out.count();
            HOT.count_refusal(ctx, name);
        }
        Decision::Refused(StockRefusal::UserLimit) => {
            COUNTERS.user_limited.count();
            HOT.count_refusal(ctx, name);
        }
        Decision::Refused(_) => {}
        Decision::Repeated(_) => COUNTERS.duplicates.count(),
        Decision::Change(change, _) => match change.op {
            Op::Deduct => COUNTERS.deducted.count(),
            Op::Reserve => COUNTERS.reserved.count(),
            Op::Confirm => COUNTERS.confirmed.count(),
            Op::Cancel => COUNTERS.cancelled.count(),
            _ => {}
        },
    }
}

/// `STOCK.GET key`
///
/// Returns the available quantity, or nil if there is no such stock. Error: `WRONGTYPE`.
pub(super) fn get(call: &Call<'_>) -> Answer {
    available(call, 0)
}

/// `STOCK.MGET key [key ...]`
///
/// Replies with an array of the available quantities, nil where there is no such stock. Error: `WRONGTYPE`.
pub(super) fn mget(call: &Call<'_>) -> Answer {
    let keys = call.cursor().left();
    let all: Result<Vec<Reply>, Error> = (0..keys).map(|index| available(call, index)).collect();
    all.map(Reply::Array)
}

fn available(call: &Call<'_>, index: usize) -> Answer {
    let name = call.name(index);
    read_stock(call, &name, |stock| Reply::int(stock.counts().available))
}

/// Calls `read` with the stock at a key. Nil: there is no stock.
fn read_stock(
    call: &Call<'_>,
    name: &ServerString<'_>,
    read: impl FnOnce(&Stock) -> Reply,
) -> Answer {
    let mut key = TypedReadKey::of(call.ctx.open_to_read(name), &STOCK)?;
    Ok(key.value().map_or(Reply::Nil, |stock| read(stock)))
}

/// `STOCK.ORDER key id`
///
/// Replies with a map: state (reserved, sold, cancelled, expired; added for an `ADD`), qty, user
/// (empty if there is none), created_ms and, while it is reserved, expires_ms (Unix ms). Nil if
/// there is no such stock or order. Error: `WRONGTYPE`.
pub(super) fn order(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let id = id(&mut cursor)?;
    let name = call.name(0);
    read_stock(call, &name, |stock| {
        let Some(order) = stock.order(id) else {
            return Reply::Nil;
        };
        let mut fields = vec![
            ("state", Reply::Text(order.status.name())),
            ("qty", Reply::Int(order.qty)),
            ("user", Reply::Bytes(order.user.into())),
            ("created_ms", Reply::int(order.created)),
        ];
        if order.status == Status::Reserved {
            fields.push(("expires_ms", Reply::int(order.due(0))));
        }
        Reply::Map(fields)
    })
}

/// `STOCK.INFO key`
///
/// Replies with a map: total, available, reserved, sold, orders (remembered ones), users (that have
/// something; counted with `PERUSER`), peruser (0: no limit), retain_ms, events (empty: none),
/// maxlen (0: none), ver. Nil if there is no such stock. Error: `WRONGTYPE`.
pub(super) fn info(call: &Call<'_>) -> Answer {
    let name = call.name(0);
    read_stock(call, &name, |stock| {
        let (counts, terms) = (stock.counts(), stock.terms());
        let events = terms.events.as_deref();
        let store = stock.store();
        let number = |number: usize| Reply::int(number as u64);
        Reply::Map(vec![
            ("total", Reply::int(counts.total())),
            ("available", Reply::int(counts.available)),
            ("reserved", Reply::int(counts.reserved)),
            ("sold", Reply::int(counts.sold)),
            (
                "orders",
                number(store.map_or(0, |store| store.order_count())),
            ),
            ("users", number(store.map_or(0, |store| store.user_count()))),
            ("peruser", Reply::int(terms.per_user)),
            ("retain_ms", Reply::int(terms.retain)),
            (
                "events",
                Reply::Bytes(events.map_or(Box::default(), |events| events.stream.clone())),
            ),
            (
                "maxlen",
                Reply::int(events.map_or(0, |events| events.maxlen)),
            ),
            ("ver", Reply::int(counts.ver)),
        ])
    })
}

/// `STOCK.APPLY key effects`: applies the effects of a master or an AOF. See [`persist`].
pub(super) fn apply_effects(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let payload = cursor.value()?;
    if payload.is_empty() {
        pass_on_repeated(call.ctx, &call.name(0));
        return Ok(Reply::Ok);
    }
    // All of them are read once before the first is carried out, and none is kept.
    if persist::effects(payload).any(|effect| effect.is_err()) {
        return Err(Error::BadEffect);
    }
    let (ctx, name) = (call.ctx, call.name(0));
    if !ctx.is_replay() {
        persist::check_whole(payload).map_err(|_| Error::BadEffect)?;
    }
    let key = match persist::effects(payload).next() {
        Some(Ok(StockEffect::Created(_))) => TypedKey::over(ctx.open(&name), &STOCK),
        _ => TypedKey::of(ctx.open(&name), &STOCK)?,
    };
    let mut edit = StockEdit::for_effects(ctx, &name, key);
    let mut effects = persist::effects(payload);
    let applied = effects.try_for_each(|effect| {
        let effect = effect.map_err(|_| Error::BadEffect)?;
        apply_effect(call, &mut edit, effect)
    });
    edit.relist(0);
    edit.close_applied();
    applied.map(|()| Reply::Ok)
}

fn apply_effect(
    call: &Call<'_>,
    edit: &mut StockEdit<'_>,
    effect: StockEffect<'_>,
) -> Result<(), Error> {
    // The master has changed the stock, so this server changes it, too, even if it cannot append to the stream.
    let lost = |error: Error| {
        let line = format!("this server's copy of an event stream lacks an entry: {error}");
        log::warn_in(call.ctx, &line);
        None
    };
    match effect {
        StockEffect::Created(created) => {
            if created.entry.is_some() {
                edit.announce_new(&created).unwrap_or_else(lost);
            }
            edit.replace(*created);
            return Ok(());
        }
        StockEffect::Trimmed(count) => {
            edit.drop_oldest(count).unwrap_or_else(|error| {
                lost(error);
            });
            return Ok(());
        }
        StockEffect::Changed(change, entry) => {
            edit.stock().ok_or(Error::BadEffect)?;
            if entry.is_some() {
                edit.announce(&change, entry).unwrap_or_else(lost);
            }
            return edit.apply(&change, entry);
        }
        StockEffect::Order(_) | StockEffect::User(..) => {}
    }
    let stock = edit.stock().ok_or(Error::BadEffect)?;
    let put = match effect {
        StockEffect::Order(order) => stock.put_order(&order),
        StockEffect::User(user, held) => stock.put_user(user, held),
        _ => Ok(()),
    };
    put.map_err(|_| Error::BadEffect)
}
