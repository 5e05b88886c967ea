//! The commands on several stocks: each takes a step on all of them, or on none.

use super::COUNTERS;
use super::commands::{check_memory, count, decide, id, qty, reply};
use super::edit::{SLICE_ORDERS, StockEdit};
use super::native::STOCK;
use super::options::{OPTIONS, ORDER, PX, USER};
use super::state::{Change, Decision, Op, StockAction, StockRequest};
use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::Cursor;
use crate::server::base::clock::Now;
use crate::server::entry::Call;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster;
use crate::server::services::native::open_together;
use std::collections::HashMap;
use std::ffi::CStr;

/// `STOCK.MDEDUCT numkeys key qty [key qty ...] [ORDER id] [USER user]`
///
/// All keys are different and in one hash slot. Replies with an array: for each key what
/// `STOCK.DEDUCT` would reply; if any of them is negative, nothing was done, and the others are
/// the available quantities. `CONFLICT` also if only some of the keys know the order.
pub(super) fn mdeduct(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let pairs = cursor.pairs()?;
    let options = OPTIONS.read(&mut cursor, ORDER | USER)?;
    let requests = requests(pairs, |qty| options.request(StockAction::Deduct { qty }))?;
    step_all(call, 2, &requests, c"stock.mdeduct")
}

/// `STOCK.MRESERVE numkeys key qty [key qty ...] ORDER id PX ms [USER user]`
///
/// As `STOCK.MDEDUCT`, for reservations.
pub(super) fn mreserve(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    let pairs = cursor.pairs()?;
    let options = OPTIONS
        .read(&mut cursor, ORDER | PX | USER)?
        .require(ORDER | PX)?;
    let px = options.number_or(PX, 0);
    let reserve = |qty| options.request(StockAction::Reserve { qty, px });
    step_all(call, 2, &requests(pairs, reserve)?, c"stock.mreserve")
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

/// A request for each quantity. The options are read first. If there are fewer keys than `numkeys`, an option is in the place of a key.
/// The error is then the missing option, not a wrong quantity.
fn requests<'a>(
    quantities: impl Iterator<Item = &'a [u8]>,
    request: impl Fn(u64) -> StockRequest<'a>,
) -> Result<Vec<StockRequest<'a>>, Error> {
    quantities
        .map(|value| Ok(request(qty(&mut Cursor::new(&[value]))?)))
        .collect()
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
            let (ctx, name) = edit.ctx_and_name();
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
            Ok(entry) => {
                edit.suspend_stream(); // the next entry may create a stream
                announced.push((edit, change, entry));
            }
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
