//! Inventory that never oversells: `STOCK.*`.
//!
//! A request with an order id may be repeated after a lost reply ([`Request::query_until_replied`]): it sells once.

use std::time::Duration;

use redis::{ToRedisArgs, Value};

use crate::error::Result;
use crate::request::{Info, Repeatable, Reply, Request, read};

/// The quantity after the request, or why nothing has changed.
pub type Answer = std::result::Result<u64, Refusal>;

/// Why the server has changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Not enough is available.
    SoldOut,
    /// The user would hold more than the stock permits.
    OverUserLimit,
    /// The order was cancelled, or its reservation has expired.
    OrderClosed,
    /// No stock has this key, or the stock knows no such order.
    Unknown,
}

fn answer(code: i64) -> Answer {
    match code {
        -1 => Err(Refusal::SoldOut),
        -2 => Err(Refusal::OverUserLimit),
        -3 => Err(Refusal::OrderClosed),
        _ => code.try_into().map_err(|_| Refusal::Unknown),
    }
}

impl Reply for Answer {
    fn read(value: Value) -> Result<Self> {
        Ok(answer(read(value)?))
    }
}

/// One answer for each key.
impl Reply for Vec<Answer> {
    fn read(value: Value) -> Result<Self> {
        Ok(read::<Vec<i64>>(value)?.into_iter().map(answer).collect())
    }
}

/// The options of a request for a sale that has no order id.
pub enum Sale {}
/// The options of a request that has an order id.
pub enum Order {}
/// The options of [`create`].
pub enum Create {}

impl Repeatable for Order {}

/// Creates a stock, or replaces it. The reply is false if [`if_missing`](Request::if_missing) found one.
pub fn create(key: impl ToRedisArgs, total: u64) -> Request<bool, Create> {
    Request::new("STOCK.SET").arg(key).arg(total)
}

/// Turns a counter, a string with a whole number, into a stock. The answer is the available quantity.
pub fn import(key: impl ToRedisArgs) -> Request<Answer, Create> {
    Request::new("STOCK.IMPORT").arg(key)
}

impl Request<bool, Create> {
    /// Creates the stock only if the key does not exist.
    pub fn if_missing(self) -> Self {
        self.arg("NX")
    }

    /// Replaces a stock, and creates none.
    pub fn if_present(self) -> Self {
        self.arg("XX")
    }
}

impl<R> Request<R, Create> {
    /// No user holds more than this, reserved and sold together. Each sale must name its user then.
    pub fn per_user(self, most: u64) -> Self {
        self.arg("PERUSER").arg(most)
    }

    /// How long the server remembers a final order. The default is one day.
    pub fn retain(self, time: Duration) -> Self {
        self.time("RETAIN", time)
    }

    /// The stream that receives an entry for each change. In a cluster it is in the slot of the stock.
    pub fn events(self, stream: impl ToRedisArgs) -> Self {
        self.arg("EVENTS").arg(stream)
    }

    /// The same, and the stream is trimmed to about this many entries.
    pub fn events_at_most(self, stream: impl ToRedisArgs, most: u64) -> Self {
        self.events(stream).arg("MAXLEN").arg(most)
    }
}

/// Sells a quantity. The answer is the available quantity afterwards.
pub fn deduct(key: impl ToRedisArgs, quantity: u64) -> Request<Answer, Sale> {
    Request::new("STOCK.DEDUCT").arg(key).arg(quantity)
}

/// Sells several quantities, all or none. Each answer is the available quantity of one key.
pub fn deduct_all<K: ToRedisArgs>(items: &[(K, u64)]) -> Request<Vec<Answer>, Sale> {
    with_items(Request::new("STOCK.MDEDUCT"), items)
}

/// Adds to the available quantity, or removes from it with a negative number.
pub fn add(key: impl ToRedisArgs, quantity: i64) -> Request<Answer, Sale> {
    Request::new("STOCK.ADD").arg(key).arg(quantity)
}

/// Reserves a quantity for an order. Without [`confirm`] in this time the server gives it back by itself.
pub fn reserve(
    key: impl ToRedisArgs,
    quantity: u64,
    order: impl ToRedisArgs,
    time: Duration,
) -> Request<Answer, Order> {
    let request = Request::new("STOCK.RESERVE").arg(key).arg(quantity);
    request.arg("ORDER").arg(order).time("PX", time)
}

/// Reserves several quantities, all or none.
pub fn reserve_all<K: ToRedisArgs>(
    items: &[(K, u64)],
    order: impl ToRedisArgs,
    time: Duration,
) -> Request<Vec<Answer>, Order> {
    let request = with_items(Request::new("STOCK.MRESERVE"), items);
    request.arg("ORDER").arg(order).time("PX", time)
}

fn with_items<R, O, K: ToRedisArgs>(request: Request<R, O>, items: &[(K, u64)]) -> Request<R, O> {
    let request = request.arg(items.len());
    let add = |request: Request<R, O>, (key, quantity): &(K, u64)| request.arg(key).arg(*quantity);
    items.iter().fold(request, add)
}

impl<R> Request<R, Sale> {
    /// The id of the order. It exists before the first attempt, so that a repetition sells nothing more.
    pub fn order(self, id: impl ToRedisArgs) -> Request<R, Order> {
        self.arg("ORDER").arg(id).with_options()
    }

    /// The user who buys.
    pub fn user(self, user: impl ToRedisArgs) -> Self {
        self.arg("USER").arg(user)
    }
}

impl<R> Request<R, Order> {
    /// The user who buys.
    pub fn user(self, user: impl ToRedisArgs) -> Self {
        self.arg("USER").arg(user)
    }
}

/// Sells what an order has reserved. The answer is its quantity.
pub fn confirm(key: impl ToRedisArgs, order: impl ToRedisArgs) -> Request<Answer, Order> {
    Request::new("STOCK.CONFIRM").arg(key).arg(order)
}

/// Gives back what an order has reserved or bought. The answer is its quantity.
pub fn cancel(key: impl ToRedisArgs, order: impl ToRedisArgs) -> Request<Answer, Order> {
    Request::new("STOCK.CANCEL").arg(key).arg(order)
}

/// The same as [`confirm`] for an order of several keys.
pub fn confirm_all<K: ToRedisArgs>(
    keys: &[K],
    order: impl ToRedisArgs,
) -> Request<Vec<Answer>, Order> {
    let request = Request::new("STOCK.MCONFIRM").arg(keys.len());
    keys.iter().fold(request, Request::arg).arg(order)
}

/// The same as [`cancel`] for an order of several keys.
pub fn cancel_all<K: ToRedisArgs>(
    keys: &[K],
    order: impl ToRedisArgs,
) -> Request<Vec<Answer>, Order> {
    let request = Request::new("STOCK.MCANCEL").arg(keys.len());
    keys.iter().fold(request, Request::arg).arg(order)
}

/// The available quantity; `None` if no stock has this key.
pub fn get(key: impl ToRedisArgs) -> Request<Option<u64>> {
    Request::new("STOCK.GET").arg(key)
}

/// The same as [`get`] for several stocks.
pub fn get_all<K: ToRedisArgs>(keys: &[K]) -> Request<Vec<Option<u64>>> {
    keys.iter().fold(Request::new("STOCK.MGET"), Request::arg)
}

/// What the server remembers of an order; `None` if it knows no such order.
pub fn order(key: impl ToRedisArgs, order: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("STOCK.ORDER").arg(key).arg(order)
}

/// The quantities and settings of a stock. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("STOCK.INFO").arg(key)
}
