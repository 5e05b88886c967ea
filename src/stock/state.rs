//! The state machine of one stock. It uses no server, clock or randomness: the time is an argument.
//!
//! A step has two halves. [`Stock::decide`] reads a request and changes nothing. If its decision is a [`Change`],
//! [`Stock::apply`] carries it out. Between the two, the family announces the change in the event stream. Replicas and the AOF
//! receive the same change and apply it with the same function.

use super::MAX_QTY;
use super::order::{Order, Status};
use super::order_store::OrderStore;
use crate::codec::Corrupt;
use crate::deadlines::Listed;
use crate::error::Error;
use crate::memory::block_size;
use std::collections::HashMap;

/// The action that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockAction {
    /// To raise or lower the available quantity.
    Add {
        /// The change of the quantity, -(2^53 - 1) to 2^53 - 1.
        delta: i64,
    },
    /// To sell.
    Deduct {
        /// The quantity, 1 to 2^53 - 1.
        qty: u64,
    },
    /// To reserve.
    Reserve {
        /// The quantity, 1 to 2^53 - 1.
        qty: u64,
        /// The lifetime of a reservation that is not confirmed, in milliseconds.
        px: u64,
    },
    /// To turn a reservation into a sale.
    Confirm,
    /// To undo an order.
    Cancel,
}

/// A request to a stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockRequest<'a> {
    /// The requested action.
    pub action: StockAction,
    /// The order id; empty if the request names none.
    pub order: &'a [u8],
    /// The user; empty if the request names none.
    pub user: &'a [u8],
}

/// The reason for a refusal. The discriminant is the reply of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockRefusal {
    /// The available quantity is too small.
    SoldOut = -1,
    /// The quantity exceeds the limit per user.
    UserLimit = -2,
    /// The order is cancelled or has expired.
    Closed = -3,
    /// The stock or the order does not exist.
    Unknown = -4,
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<'a> {
    /// The request is refused and changes nothing.
    Refused(StockRefusal),
    /// The request repeats an earlier one, whose reply is returned again.
    Repeated(i64),
    /// The change to apply, and the reply.
    Change(Change<'a>, i64),
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The available quantity rises or falls.
    Add,
    /// Available becomes sold.
    Deduct,
    /// Available becomes reserved.
    Reserve,
    /// Reserved becomes sold.
    Confirm,
    /// Reserved or sold becomes available.
    Cancel,
    /// Reserved becomes available.
    Expire,
    /// An unknown order is remembered as closed.
    Mark,
    /// A final order is forgotten.
    Forget,
}

impl Op {
    /// Whether the event stream has an entry for the change: it has one for each change of a quantity.
    pub fn is_announced(self) -> bool {
        !matches!(self, Op::Mark | Op::Forget)
    }
}

/// A change that was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The kind of the change.
    pub op: Op,
    /// The order id; empty if there is none.
    pub order: &'a [u8],
    /// The user of `Deduct` and `Reserve`; empty if the request names none.
    pub user: &'a [u8],
    /// The quantity of `Add`, `Deduct` and `Reserve`.
    pub qty: i64,
    /// The lifetime of a `Reserve`, in milliseconds.
    pub px: u64,
    /// The time of the decision (Unix ms).
    pub now: u64,
}

impl<'a> Change<'a> {
    /// A change that consists of an order and a time.
    pub fn of(op: Op, order: &'a [u8], now: u64) -> Self {
        Self {
            op,
            order,
            user: &[],
            qty: 0,
            px: 0,
            now,
        }
    }
}

/// The contents of an event stream entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// The order id; empty if there is none.
    pub order: &'a [u8],
    /// The user; empty if there is none.
    pub user: &'a [u8],
    /// The quantity; of an addition, the delta.
    pub qty: i64,
    /// The available quantity after the change.
    pub available: u64,
    /// The number of the change.
    pub ver: u64,
}

/// The terms of sale: the options of `STOCK.SET`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleTerms {
    /// The limit per user, for reserved and sold quantities together; 0: no limit.
    pub per_user: u64,
    /// The retention time of final orders, in milliseconds.
    pub retain: u64,
    /// The event stream.
    pub events: Option<Box<EventStream>>,
}

/// An event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventStream {
    /// The key of the stream.
    pub stream: Box<[u8]>,
    /// The approximate number of entries that the stream keeps, as for `MAXLEN ~`.
    pub maxlen: u64,
}

/// The quantities of a stock, and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// The quantity that can be sold or reserved.
    pub available: u64,
    /// The quantity of all live reservations.
    pub reserved: u64,
    /// The sold quantity.
    pub sold: u64,
    /// The number of changes so far, at most 2^53 - 1.
    pub ver: u64,
}

impl Counts {
    /// The sum of the available, reserved and sold quantities.
    pub fn total(&self) -> u64 {
        self.available + self.reserved + self.sold
    }
}

/// The stock of one SKU.
#[derive(Debug, Clone)]
pub struct Stock {
    counts: Counts,
    terms: SaleTerms,
    store: Option<Box<OrderStore>>,
    /// The position in the list of deadlines. It is not part of the dataset.
    pub listed: Listed,
}

impl Stock {
    /// A stock without orders.
    pub fn new(counts: Counts, terms: SaleTerms) -> Self {
        Self {
            counts,
            terms,
            store: None,
            listed: Listed::default(),
        }
    }

    /// The quantities and the version.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The terms of sale.
    pub fn terms(&self) -> &SaleTerms {
        &self.terms
    }

    /// The orders and users, if the stock remembers any.
    pub fn store(&self) -> Option<&OrderStore> {
        self.store.as_deref()
    }

    /// Whether the stock has an event stream.
    pub fn has_events(&self) -> bool {
        self.terms.events.is_some()
    }

    /// The order with this id.
    pub fn order(&self, id: &[u8]) -> Option<Order<'_>> {
        self.store.as_ref()?.order(id)
    }

    /// Whether the stock knows this order and the order is not closed.
    pub fn has_open(&self, id: &[u8]) -> bool {
        self.order(id)
            .is_some_and(|order| !order.status.is_closed())
    }

    /// Whether the stock has a closed order with this id.
    fn has_closed(&self, id: &[u8]) -> bool {
        self.order(id).is_some_and(|order| order.status.is_closed())
    }

    /// The end of the next reservation (Unix ms); `u64::MAX`: there is none.
    pub fn next_end(&self) -> u64 {
        self.store
            .as_ref()
            .map_or(u64::MAX, |store| store.next_end())
    }

    /// Whether the order is a reservation that ended by `now` and is not marked as expired yet.
    pub fn is_overdue(&self, id: &[u8], now: u64) -> bool {
        self.order(id)
            .is_some_and(|order| order.status == Status::Reserved && order.due(0) <= now)
    }

    /// The time when the next order can be forgotten (Unix ms); `u64::MAX`: there is none.
    pub fn next_forgettable(&self) -> u64 {
        let store = self.store.as_ref();
        store.map_or(u64::MAX, |store| store.next_forgettable(self.terms.retain))
    }

    /// The next deadline (Unix ms): a reservation ends, or an order can be forgotten. `u64::MAX`: there is none.
    pub fn next_due(&self) -> u64 {
        self.next_end().min(self.next_forgettable())
    }

    /// Decides a request without changing the stock. The caller has marked the order as expired if it
    /// [is overdue](Stock::is_overdue). Errors: `USER is required`, `CONFLICT`, `delta` out of range.
    #[inline(always)]
    pub fn decide<'a>(&self, request: &StockRequest<'a>, now: u64) -> Result<Decision<'a>, Error> {
        let needs_user = matches!(
            request.action,
            StockAction::Deduct { .. } | StockAction::Reserve { .. }
        );
        if needs_user
            && self.terms.per_user > 0
            && request.user.is_empty()
            && !self.has_closed(request.order)
        {
            return Err(Error::UserRequired);
        }
        if !request.order.is_empty()
            && let Some(order) = self.order(request.order)
        {
            return decide_known(&order, request, now);
        }
        match request.action {
            StockAction::Add { delta } => self.decide_add(request, delta, now),
            StockAction::Deduct { qty } => Ok(self.decide_take(request, Op::Deduct, qty, 0, now)),
            StockAction::Reserve { qty, px } => {
                Ok(self.decide_take(request, Op::Reserve, qty, px, now))
            }
            StockAction::Confirm => Ok(Decision::Refused(StockRefusal::Unknown)),
            StockAction::Cancel => {
                let mark = Change::of(Op::Mark, request.order, now);
                Ok(Decision::Change(mark, StockRefusal::Unknown as i64))
            }
        }
    }

    fn decide_add<'a>(
        &self,
        request: &StockRequest<'a>,
        delta: i64,
        now: u64,
    ) -> Result<Decision<'a>, Error> {
        let room = (MAX_QTY - self.counts.total()) as i64;
        if delta > room {
            return Err(Error::OutOfRange {
                argument: "delta",
                min: -(MAX_QTY as i64),
                max: room,
            });
        }
        let available = self.counts.available as i64 + delta;
        if available < 0 {
            return Ok(Decision::Refused(StockRefusal::SoldOut));
        }
        let change = Change {
            qty: delta,
            ..Change::of(Op::Add, request.order, now)
        };
        Ok(Decision::Change(change, available))
    }

    #[inline(always)]
    fn decide_take<'a>(
        &self,
        request: &StockRequest<'a>,
        op: Op,
        qty: u64,
        px: u64,
        now: u64,
    ) -> Decision<'a> {
        if qty > self.counts.available {
            return Decision::Refused(StockRefusal::SoldOut);
        }
        if self.terms.per_user > 0 {
            let held = self
                .store
                .as_ref()
                .map_or(0, |store| store.held(request.user));
            if held + qty > self.terms.per_user {
                return Decision::Refused(StockRefusal::UserLimit);
            }
        }
        let change = Change {
            op,
            order: request.order,
            user: request.user,
            qty: qty as i64,
            px,
            now,
        };
        Decision::Change(change, (self.counts.available - qty) as i64)
    }

    /// The event stream entry of a change that is not applied yet. `None`: the change has no entry.
    pub fn announce<'s>(&'s self, change: &Change<'s>) -> Option<Announcement<'s>> {
        let counts = self.counts;
        let (user, qty, gained) = match change.op {
            Op::Mark | Op::Forget => return None,
            Op::Add => (change.user, change.qty, change.qty),
            Op::Deduct | Op::Reserve => (change.user, change.qty, -change.qty),
            Op::Confirm | Op::Cancel | Op::Expire => {
                let order = self.order(change.order)?;
                let gained = if change.op == Op::Confirm {
                    0
                } else {
                    order.qty
                };
                (order.user, order.qty, gained)
            }
        };
        Some(Announcement {
            order: change.order,
            user,
            qty,
            available: counts.available.wrapping_add_signed(gained),
            ver: next_ver(counts.ver),
        })
    }

    /// Applies a change. Returns its deadline (Unix ms; `u64::MAX`: none). A change that does not fit this stock is an error and
    /// changes nothing.
    #[inline(always)]
    pub fn apply(&mut self, change: &Change<'_>) -> Result<u64, Corrupt> {
        let due = match change.op {
            Op::Add => self.add(change),
            Op::Deduct => self.take(change, Status::Deducted),
            Op::Reserve => self.take(change, Status::Reserved),
            Op::Confirm => self.finish(change, Status::Confirmed),
            Op::Cancel => self.finish(change, Status::Released),
            Op::Expire => self.finish(change, Status::Expired),
            Op::Mark => self.open(change, Status::CancelledUnknown, 0),
            Op::Forget => self.forget(change.order),
        }?;
        if change.op.is_announced() {
            self.counts.ver = next_ver(self.counts.ver);
        }
        Ok(due)
    }

    fn add(&mut self, change: &Change<'_>) -> Result<u64, Corrupt> {
        let available = self.counts.available.checked_add_signed(change.qty);
        let available = available.ok_or(Corrupt)?;
        let total = self.counts.total() - self.counts.available + available;
        if total > MAX_QTY {
            return Err(Corrupt);
        }
        let due = self.open(change, Status::Added, available)?;
        self.counts.available = available;
        Ok(due)
    }

    #[inline(always)]
    fn take(&mut self, change: &Change<'_>, status: Status) -> Result<u64, Corrupt> {
        let qty = u64::try_from(change.qty).map_err(|_| Corrupt)?;
        let available = self.counts.available.checked_sub(qty).ok_or(Corrupt)?;
        if self.terms.per_user > 0 && change.user.is_empty() {
            return Err(Corrupt); // every command names the user; without one, users and quantities would disagree
        }
        let due = self.open(change, status, available)?;
        self.counts.available = available;
        match status {
            Status::Reserved => self.counts.reserved += qty,
            _ => self.counts.sold += qty,
        }
        if self.terms.per_user > 0 {
            self.store_mut().give(change.user, qty);
        }
        Ok(due)
    }

    /// Remembers the order of a change, if it has one.
    #[inline]
    fn open(&mut self, change: &Change<'_>, status: Status, reply: u64) -> Result<u64, Corrupt> {
        if change.order.is_empty() {
            return match status {
                Status::Reserved | Status::CancelledUnknown => Err(Corrupt),
                _ => Ok(u64::MAX),
            };
        }
        let order = Order {
            id: change.order,
            user: change.user,
            status,
            qty: change.qty,
            created: change.now,
            since: change.now,
            reply,
            px: change.px,
        };
        let retain = self.terms.retain;
        self.store_mut().open(&order, retain).ok_or(Corrupt)
    }

    /// An order becomes final: `Released` stands for every kind of cancellation.
    fn finish(&mut self, change: &Change<'_>, to: Status) -> Result<u64, Corrupt> {
        let retain = self.terms.retain;
        let limited = self.terms.per_user > 0;
        let store = self.store.as_mut().ok_or(Corrupt)?;
        let handle = store.find(change.order).ok_or(Corrupt)?;
        let order = store.at(handle).ok_or(Corrupt)?;
        let qty = order.qty.unsigned_abs();
        let to = match (order.status, to) {
            (Status::Reserved, to) => to,
            (Status::Confirmed, Status::Released) => Status::Released,
            (Status::Deducted, Status::Released) => Status::Refunded,
            _ => return Err(Corrupt),
        };
        let from = match order.status {
            Status::Reserved => &mut self.counts.reserved,
            _ => &mut self.counts.sold,
        };
        *from = from.checked_sub(qty).ok_or(Corrupt)?;
        if to == Status::Confirmed {
            self.counts.sold += qty;
        } else {
            self.counts.available += qty;
            if limited && !order.user.is_empty() {
                let user: Box<[u8]> = order.user.into();
                store.take(&user, qty);
            }
        }
        Ok(store.finish(handle, to, change.now, retain))
    }

    fn forget(&mut self, id: &[u8]) -> Result<u64, Corrupt> {
        let store = self.store.as_mut().ok_or(Corrupt)?;
        let handle = store.find(id).ok_or(Corrupt)?;
        if store
            .at(handle)
            .is_none_or(|order| order.status == Status::Reserved)
        {
            return Err(Corrupt);
        }
        store.forget(handle);
        if store.is_empty() {
            self.store = None;
        }
        Ok(u64::MAX)
    }

    /// Adds an order without counting its quantity: for a stock that is read from a file.
    pub fn put_order(&mut self, order: &Order<'_>) -> Result<(), Corrupt> {
        let retain = self.terms.retain;
        self.store_mut().open(order, retain).ok_or(Corrupt)?;
        Ok(())
    }

    /// Adds a user with the quantity that it has, 1 or more: for a stock that is read from a file.
    pub fn put_user(&mut self, user: &[u8], held: u64) -> Result<(), Corrupt> {
        if self.terms.per_user == 0
            || held == 0
            || self.store().is_some_and(|store| store.held(user) > 0)
        {
            return Err(Corrupt);
        }
        self.store_mut().give(user, held);
        Ok(())
    }

    /// Whether the orders and users agree with the quantities. They always do after commands.
    pub fn is_consistent(&self) -> bool {
        let counts = self.counts;
        let taken = counts.reserved.checked_add(counts.sold);
        let total = taken.and_then(|taken| taken.checked_add(counts.available));
        let (Some(taken), Some(true)) = (taken, total.map(|total| total <= MAX_QTY)) else {
            return false;
        };
        let Some(store) = self.store() else {
            return counts.reserved == 0;
        };
        let mut reserved: u64 = 0;
        let mut sold: u64 = 0;
        let mut by_user: HashMap<&[u8], u64> = HashMap::new();
        for order in store.iter_orders() {
            let sum = match order.status {
                Status::Reserved => &mut reserved,
                status if status.is_sold() => &mut sold,
                _ => continue,
            };
            let qty = order.qty.unsigned_abs();
            *sum = sum.saturating_add(qty);
            if self.terms.per_user > 0 {
                let sum = by_user.entry(order.user).or_default();
                *sum = sum.saturating_add(qty);
            }
        }
        let users = store.iter_users();
        let held = users.fold(0u64, |sum, user| sum.saturating_add(user.held));
        let has = |(user, sum): (&&[u8], &u64)| store.held(user) >= *sum;
        reserved == counts.reserved
            && sold <= counts.sold
            && held <= taken
            && by_user.iter().all(has)
    }

    /// The bytes from the allocator, without the struct itself.
    pub fn memory(&self) -> usize {
        let events = self.terms.events.as_ref().map_or(0, |events| {
            block_size(size_of::<EventStream>()) + block_size(events.stream.len())
        });
        let store = self.store.as_ref().map_or(0, |store| {
            block_size(size_of::<OrderStore>()) + store.memory()
        });
        events + store
    }

    /// Calls `relocate` with some blocks of bytes, which it may move: those of part number `part`. False: there is no such part.
    pub fn visit_part(&mut self, part: usize, relocate: &mut dyn FnMut(&mut Box<[u8]>)) -> bool {
        if part == 0
            && let Some(events) = &mut self.terms.events
        {
            relocate(&mut events.stream);
        }
        let store = self.store.as_mut();
        store.is_some_and(|store| store.visit_part(part, relocate))
    }

    fn store_mut(&mut self) -> &mut OrderStore {
        self.store.get_or_insert_default()
    }
}

/// The version after this one, at most 2^53 - 1.
pub fn next_ver(ver: u64) -> u64 {
    (ver + 1).min(MAX_QTY)
}

/// Decides a request for an order that the stock knows.
fn decide_known<'a>(
    order: &Order<'_>,
    request: &StockRequest<'a>,
    now: u64,
) -> Result<Decision<'a>, Error> {
    let closed = order.status.is_closed();
    let qty = order.qty;
    match request.action {
        StockAction::Cancel if order.status == Status::Added => Err(Error::Conflict),
        StockAction::Cancel if order.status == Status::CancelledUnknown => {
            Ok(Decision::Repeated(StockRefusal::Unknown as i64))
        }
        StockAction::Cancel if order.status.is_cancelled() => Ok(Decision::Repeated(qty)),
        StockAction::Cancel if !closed => {
            let cancel = Change::of(Op::Cancel, request.order, now);
            Ok(Decision::Change(cancel, qty))
        }
        _ if closed => Ok(Decision::Refused(StockRefusal::Closed)),
        StockAction::Confirm if order.status == Status::Reserved => {
            let confirm = Change::of(Op::Confirm, request.order, now);
            Ok(Decision::Change(confirm, qty))
        }
        StockAction::Confirm if order.status.is_sold() => Ok(Decision::Repeated(qty)),
        _ if is_same(order, request) => Ok(Decision::Repeated(order.reply as i64)),
        _ => Err(Error::Conflict),
    }
}

/// Whether the request repeats the one that opened the order.
fn is_same(order: &Order<'_>, request: &StockRequest<'_>) -> bool {
    let (status, qty, px) = (order.status, order.qty, order.px);
    let same = match request.action {
        StockAction::Add { delta } => status == Status::Added && qty == delta,
        StockAction::Deduct { qty: wanted } => status == Status::Deducted && qty == wanted as i64,
        StockAction::Reserve {
            qty: wanted,
            px: lasts,
        } => {
            let reserved = matches!(status, Status::Reserved | Status::Confirmed);
            reserved && qty == wanted as i64 && px == lasts
        }
        StockAction::Confirm | StockAction::Cancel => false,
    };
    same && order.user == request.user
}
