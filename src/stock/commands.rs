//! The commands of the family: each reads its request, takes its step and returns a reply.

use super::edit::{SLICE_ORDERS, StockEdit, change_plainly, pass_on_repeated};
use super::native::STOCK;
use super::options::{NX, OPTIONS, ORDER, PX, TERMS, USER, XX};
use super::order::Status;
use super::persist::{self, Created, StockEffect};
use super::state::{
    Change, Counts, Decision, Op, Stock, StockAction, StockRefusal, StockRequest, next_ver,
};
use super::{COUNTERS, HOT, MAX_ID};
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
use crate::server::services::cluster;
use crate::server::services::native::open_together;
use std::collections::HashMap;
use std::ffi::CStr;

fn qty(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
    cursor.uint("qty", 1..=MAX_SAFE)
}

fn id<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("id", MAX_ID)
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
/// Replies with what is available, or -4 if there is no such key. Errors: `WRONGTYPE`;
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
/// `delta`: -(2^53 - 1) to 2^53 - 1. `ORDER`: 1 to 512 bytes. Replies with what is available; -1
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
/// `qty`: 1 to 2^53 - 1. `ORDER`, `USER`: 1 to 512 bytes. Replies with what is available
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

/// `STOCK.MDEDUCT numkeys key qty [key qty ...] [ORDER id] [USER user]`
///
/// All keys are different and in one hash slot. Replies with an array: for each key what
/// `STOCK.DEDUCT` would reply; if any of them is negative, nothing was done, and the others show
/// what is available. `CONFLICT` also if only some of the keys know the order.
pub(super) fn mdeduct(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let pairs = pairs(&mut cursor)?;
    let options = OPTIONS.read(&mut cursor, ORDER | USER)?;
    let requests = pairs
        .iter()
        .map(|qty| options.request(StockAction::Deduct { qty: *qty }));
    step_all(call, 2, &requests.collect::<Vec<_>>(), c"stock.mdeduct")
}

/// `STOCK.MRESERVE numkeys key qty [key qty ...] ORDER id PX ms [USER user]`
///
/// As `STOCK.MDEDUCT`, for reservations.
pub(super) fn mreserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let pairs = pairs(&mut cursor)?;
    let options = OPTIONS
        .read(&mut cursor, ORDER | PX | USER)?
        .require(ORDER | PX)?;
    let px = options.number_or(PX, 0);
    let requests = pairs
        .iter()
        .map(|qty| options.request(StockAction::Reserve { qty: *qty, px }));
    step_all(call, 2, &requests.collect::<Vec<_>>(), c"stock.mreserve")
}

/// `STOCK.MCONFIRM numkeys key [key ...] id`
///
/// Replies with an array: for each key what `STOCK.CONFIRM` would reply; if any of them is negative,
/// nothing was done. `CONFLICT` also if only some of the keys know the order.
pub(super) fn mconfirm(call: &Call<'_>) -> Answer {
    finish_all(call, StockAction::Confirm, c"stock.mconfirm")
}

/// `STOCK.MCANCEL numkeys key [key ...] id`
///
/// As `STOCK.MCONFIRM`. If no key knows the order, all remember it as closed.
pub(super) fn mcancel(call: &Call<'_>) -> Answer {
    finish_all(call, StockAction::Cancel, c"stock.mcancel")
}

fn finish_all(call: &Call<'_>, action: StockAction, event: &'static CStr) -> Answer {
    let mut cursor = call.cursor();
    let keys = cursor.keys()?;
    let order = id(&mut cursor)?;
    cursor.end()?;
    let request = StockRequest {
        action,
        order,
        user: &[],
    };
    step_all(call, 1, &vec![request; keys.len()], event)
}

/// The quantities of `numkeys key qty [key qty ...]`, whose keys are all different.
fn pairs(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, Error> {
    cursor
        .pairs()?
        .map(|value| qty(&mut Cursor::new(&[value])))
        .collect()
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
    let (ctx, name) = edit.place();
    count(ctx, name, &decision);
    Ok(Reply::Int(reply(&decision)))
}

fn decide<'a>(
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

/// A `CANCEL` is welcome when memory is short, but not one that only adds a mark.
fn check_memory(edits: &[StockEdit<'_>], decisions: &[Decision<'_>]) -> Result<(), Error> {
    let marks = |decision: &Decision<'_>| match decision {
        Decision::Change(change, _) => change.op == Op::Mark,
        _ => false,
    };
    if decisions.iter().any(marks) && edits.iter().any(StockEdit::is_out_of_memory) {
        return Err(Error::OutOfMemory);
    }
    Ok(())
}

fn reply(decision: &Decision<'_>) -> i64 {
    match decision {
        Decision::Refused(refusal) => *refusal as i64,
        Decision::Repeated(reply) | Decision::Change(_, reply) => *reply,
    }
}

fn count(ctx: Ctx<'_>, name: &ServerString<'_>, decision: &Decision<'_>) {
    match decision {
        Decision::Refused(StockRefusal::SoldOut) => {
            COUNTERS.sold_out.count();
            HOT.refuses(ctx, name);
        }
        Decision::Refused(StockRefusal::UserLimit) => {
            COUNTERS.user_limited.count();
            HOT.refuses(ctx, name);
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

/// One step on each of several stocks, or on none of them. The keys are the second argument and
/// every `stride`th after it.
fn step_all(
    call: &Call<'_>,
    stride: usize,
    requests: &[StockRequest<'_>],
    event: &'static CStr,
) -> Answer {
    let _nodes = cluster::same_nodes();
    let (ctx, now) = (call.ctx, Now::read().ms());
    let names: Vec<ServerString<'_>> = (0..requests.len())
        .map(|index| call.name(1 + index * stride))
        .collect();
    let mut edits = open_together(|| {
        let open = |name| {
            let key = TypedKey::of(ctx.open(name), &STOCK)?; // nothing has changed yet
            Ok(StockEdit::for_call(call, name, key))
        };
        names.iter().map(open).collect::<Result<Vec<_>, Error>>()
    })?;
    let most = (SLICE_ORDERS / edits.len().max(1)).max(1);
    for (edit, request) in edits.iter_mut().zip(requests) {
        edit.end_overdue(now, request.order, most);
    }
    let answer = step_together(&mut edits, requests, now);
    for edit in &mut edits {
        edit.close(Some(event));
    }
    answer
}

fn step_together(edits: &mut [StockEdit<'_>], requests: &[StockRequest<'_>], now: u64) -> Answer {
    let mut decisions = Vec::with_capacity(edits.len());
    for (edit, request) in edits.iter_mut().zip(requests) {
        decisions.push(decide(edit, request, now)?);
    }
    if is_known_to_some(edits, requests) {
        COUNTERS.conflicts.count();
        return Err(Error::Conflict);
    }
    let refused = decisions.iter().any(|decision| reply(decision) < 0);
    let mut replies = Vec::with_capacity(edits.len());
    for (edit, decision) in edits.iter_mut().zip(&mut decisions) {
        replies.push(Reply::Int(match (&decision, edit.stock()) {
            (Decision::Change(change, _), Some(stock))
                if refused && matches!(change.op, Op::Deduct | Op::Reserve) =>
            {
                stock.counts().available as i64
            }
            (decision, _) => reply(decision),
        }));
    }
    check_memory(edits, &decisions)?;
    // Of a refused request, only the marks of cancelled orders remain.
    let happens = |change: &Change<'_>| !refused || change.op == Op::Mark;
    let changes = edits.iter_mut().zip(&decisions);
    let changes = changes.filter_map(|(edit, decision)| match decision {
        Decision::Change(change, _) if happens(change) => Some((edit, change)),
        _ => None,
    });
    apply_all(changes.collect())?;
    let is_repeated = |decision: &Decision<'_>| matches!(decision, Decision::Repeated(_));
    if decisions.iter().all(is_repeated)
        && edits.iter().all(StockEdit::is_unchanged)
        && let Some(edit) = edits.first_mut()
    {
        edit.replicate_repeated();
    }
    for (edit, decision) in edits.iter().zip(&decisions) {
        if !refused || !matches!(decision, Decision::Change(..)) {
            let (ctx, name) = edit.place();
            count(ctx, name, decision);
        }
    }
    Ok(Reply::Array(replies))
}

/// Whether some of these stocks have the order, and others do not. A closed order counts only for `MCONFIRM` and `MCANCEL`: a new
/// sale of a closed order is refused in any case.
fn is_known_to_some(edits: &mut [StockEdit<'_>], requests: &[StockRequest<'_>]) -> bool {
    let (mut known, mut unknown) = (false, false);
    for (edit, request) in edits.iter_mut().zip(requests) {
        if let Some(stock) = edit.stock()
            && !request.order.is_empty()
        {
            let is_end = matches!(request.action, StockAction::Confirm | StockAction::Cancel);
            let is_unknown = stock.order(request.order).is_none();
            known |= !is_unknown && (is_end || stock.has_open(request.order));
            unknown |= is_unknown;
        }
    }
    known && unknown
}

/// Checks that all changes can be announced. An entry that is appended and deleted again would leave traces: the last id of the
/// stream, and its number of added entries.
fn check_streams(changes: &mut [(&mut StockEdit<'_>, &Change<'_>)]) -> Result<(), Error> {
    let mut is_announced =
        |(edit, change): &mut (&mut StockEdit<'_>, &Change<'_>)| edit.stream_of(change).is_some();
    if !changes.iter_mut().any(&mut is_announced) {
        return Ok(());
    }
    let streams = changes
        .iter_mut()
        .map(|(edit, change)| edit.stream_of(change).map(Box::from));
    let streams: Vec<Option<Box<[u8]>>> = streams.collect();
    let mut entries: HashMap<&[u8], u64> = HashMap::new();
    for stream in streams.iter().flatten() {
        *entries.entry(stream).or_default() += 1;
    }
    // The only entry of a command is appended or not: there is no other one to take out.
    let is_only = streams.iter().flatten().count() == 1;
    for ((edit, change), stream) in changes.iter_mut().zip(&streams) {
        // Streams are asked once, for all of their entries.
        let asked = stream.as_deref().and_then(|stream| entries.remove(stream));
        edit.check_stream(change, asked.filter(|_| !is_only).unwrap_or(0))?;
    }
    Ok(())
}

/// Announces all changes, then applies all of them: if one cannot be announced, none is.
fn apply_all(mut changes: Vec<(&mut StockEdit<'_>, &Change<'_>)>) -> Result<(), Error> {
    check_streams(&mut changes)?;
    let mut announced = Vec::with_capacity(changes.len());
    let mut failure = None;
    for (edit, change) in changes {
        match edit.announce(change, None) {
            Ok(entry) => announced.push((edit, change, entry)),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let presence = announced
        .iter()
        .try_for_each(|(edit, ..)| edit.check_presence());
    let Some(failure) = failure.or(presence.err()) else {
        let mut announced = announced.into_iter();
        return announced.try_for_each(|(edit, change, entry)| edit.apply(change, entry));
    };
    for (edit, _, entry) in announced.into_iter().rev() {
        if let Some(entry) = entry {
            edit.retract(entry);
        }
    }
    Err(failure)
}

/// `STOCK.GET key`
///
/// Replies with what is available, or nil if there is no such stock. Error: `WRONGTYPE`.
pub(super) fn get(call: &Call<'_>) -> Answer {
    available(call, 0)
}

/// `STOCK.MGET key [key ...]`
///
/// Replies with an array of what is available, nil where there is no such stock. Error: `WRONGTYPE`.
pub(super) fn mget(call: &Call<'_>) -> Answer {
    let keys = call.cursor().left();
    let all: Result<Vec<Reply>, Error> = (0..keys).map(|index| available(call, index)).collect();
    all.map(Reply::Array)
}

fn available(call: &Call<'_>, index: usize) -> Answer {
    let name = call.name(index);
    read_stock(call, &name, |stock| Reply::int(stock.counts().available))
}

/// Calls `look` with the stock at a key. Nil: there is no stock.
fn read_stock(
    call: &Call<'_>,
    name: &ServerString<'_>,
    look: impl FnOnce(&Stock) -> Reply,
) -> Answer {
    let mut key = TypedReadKey::of(call.ctx.open_to_read(name), &STOCK)?;
    Ok(key.value().map_or(Reply::Nil, |stock| look(stock)))
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
