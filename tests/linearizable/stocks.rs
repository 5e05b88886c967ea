//! `STOCK.*` one after the other: what is available, reserved and sold, and what became of each order.

use std::collections::BTreeMap;

use crate::checker::Model;

#[derive(Clone, Debug)]
pub enum Op {
    Set {
        key: usize,
        total: i64,
    },
    Add {
        key: usize,
        delta: i64,
        order: Option<u32>,
    },
    /// A sale, or, with a time, a reservation: of one stock, or of several at once.
    Take {
        keys: Vec<usize>,
        qty: i64,
        order: Option<u32>,
        user: Option<u32>,
        px: Option<u64>,
        /// The number of the request; its repetitions have the same number. `Due` ends only the reservation of this request.
        request: u64,
    },
    Confirm {
        keys: Vec<usize>,
        order: u32,
    },
    Cancel {
        keys: Vec<usize>,
        order: u32,
    },
    Get {
        key: usize,
    },
    Look {
        key: usize,
    },
    Delete {
        key: usize,
    },
    /// A reservation's time is up.
    Due {
        keys: Vec<usize>,
        order: u32,
        request: u64,
    },
    /// Its quantity comes back, some time after that.
    ComesBack {
        key: usize,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Ok,
    Numbers(Vec<i64>),
    Conflict,
    Available(Option<i64>),
    /// Available, reserved and sold.
    Counts(Option<[i64; 3]>),
    Deleted(bool),
    Happened,
}

/// Not enough is available.
pub const SOLD_OUT: i64 = -1;
const USER_LIMIT: i64 = -2;
const CLOSED: i64 = -3;
const UNKNOWN: i64 = -4;

/// What an order was first used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum First {
    Add(i64),
    Take(i64, Option<u32>, Option<u64>),
    /// A cancellation of what never came.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Reserved,
    /// Its time is up, and its quantity has not come back yet.
    Overdue,
    Sold,
    Added,
    Cancelled,
    Expired,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Order {
    first: First,
    status: Status,
    reply: i64,
    /// The number of the request that has taken it.
    request: u64,
}

impl Order {
    fn is_closed(&self) -> bool {
        matches!(self.status, Status::Cancelled | Status::Expired)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stock {
    available: i64,
    reserved: i64,
    sold: i64,
    orders: BTreeMap<u32, Order>,
    /// What users have, where that is limited.
    users: BTreeMap<u32, i64>,
}

/// A few stocks, and what each user may have of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stocks {
    stocks: Vec<Option<Stock>>,
    per_user: Option<i64>,
}

/// What one stock would do.
enum Decision {
    Says(i64),
    Changes(i64),
    /// Only remembers that an order was cancelled before it came.
    Marks,
    Conflict,
}

impl Stock {
    fn end_overdue(&mut self) {
        for order in self.orders.values_mut() {
            if order.status == Status::Overdue
                && let First::Take(qty, user, _) = order.first
            {
                order.status = Status::Expired;
                self.reserved -= qty;
                self.available += qty;
                if let Some(held) = user.and_then(|user| self.users.get_mut(&user)) {
                    *held -= qty;
                }
            }
        }
    }

    fn decide(&self, op: &Op, per_user: Option<i64>) -> Decision {
        let (order, first) = match op {
            Op::Add { delta, order, .. } => (*order, First::Add(*delta)),
            Op::Take {
                qty,
                order,
                user,
                px,
                ..
            } => (*order, First::Take(*qty, *user, *px)),
            Op::Confirm { order, .. } | Op::Cancel { order, .. } => (Some(*order), First::Nothing),
            _ => unreachable!("it asks a stock for nothing"),
        };
        if let Some(known) = order.and_then(|order| self.orders.get(&order)) {
            return known.decide(op, first);
        }
        let taken = match first {
            First::Add(delta) => -delta,
            First::Take(qty, ..) => qty,
            First::Nothing if matches!(op, Op::Cancel { .. }) => return Decision::Marks,
            First::Nothing => return Decision::Says(UNKNOWN),
        };
        if taken > self.available {
            return Decision::Says(SOLD_OUT);
        }
        if let (First::Take(_, Some(user), _), Some(most)) = (first, per_user)
            && self.users.get(&user).unwrap_or(&0) + taken > most
        {
            return Decision::Says(USER_LIMIT);
        }
        Decision::Changes(self.available - taken)
    }

    /// Carries out what was decided to change something.
    fn apply(&mut self, op: &Op, reply: i64) {
        match op {
            Op::Add { delta, order, .. } => {
                self.available += delta;
                self.remember(*order, First::Add(*delta), Status::Added, reply, 0);
            }
            Op::Take {
                qty,
                order,
                user,
                px,
                request,
                ..
            } => {
                self.available -= qty;
                let status = match px {
                    Some(_) => Status::Reserved,
                    None => Status::Sold,
                };
                match px {
                    Some(_) => self.reserved += qty,
                    None => self.sold += qty,
                }
                if let Some(user) = user {
                    *self.users.entry(*user).or_default() += qty;
                }
                let first = First::Take(*qty, *user, *px);
                self.remember(*order, first, status, reply, *request);
            }
            Op::Confirm { order, .. } => {
                let order = self.orders.get_mut(order).expect("it was decided");
                order.status = Status::Sold;
                self.reserved -= reply;
                self.sold += reply;
            }
            Op::Cancel { order, .. } => {
                let order = self.orders.get_mut(order).expect("it was decided");
                match order.status {
                    Status::Reserved => self.reserved -= reply,
                    _ => self.sold -= reply,
                }
                order.status = Status::Cancelled;
                self.available += reply;
                if let First::Take(_, Some(user), _) = order.first {
                    *self.users.entry(user).or_default() -= reply;
                }
            }
            _ => unreachable!("it asks a stock for nothing"),
        }
    }

    fn remember(
        &mut self,
        order: Option<u32>,
        first: First,
        status: Status,
        reply: i64,
        request: u64,
    ) {
        if let Some(order) = order {
            let known = Order {
                first,
                status,
                reply,
                request,
            };
            self.orders.insert(order, known);
        }
    }
}

impl Order {
    fn decide(&self, op: &Op, first: First) -> Decision {
        let qty = match self.first {
            First::Take(qty, ..) => qty,
            _ => 0,
        };
        match op {
            Op::Cancel { .. } => match (self.status, self.first) {
                (_, First::Nothing) => Decision::Says(UNKNOWN),
                (Status::Added, _) => Decision::Conflict,
                (Status::Expired, _) => Decision::Says(CLOSED),
                (Status::Cancelled, _) => Decision::Says(qty),
                _ => Decision::Changes(qty),
            },
            _ if self.is_closed() => Decision::Says(CLOSED),
            Op::Confirm { .. } => match self.status {
                Status::Added => Decision::Conflict,
                Status::Sold => Decision::Says(qty),
                _ => Decision::Changes(qty),
            },
            _ if first == self.first => Decision::Says(self.reply),
            _ => Decision::Conflict,
        }
    }
}

impl Stocks {
    pub fn new(keys: usize, per_user: Option<i64>) -> Self {
        Self {
            stocks: vec![None; keys],
            per_user,
        }
    }

    /// One request to one stock or, all or nothing, to several; what is replied.
    fn ask(&mut self, keys: &[usize], op: &Op, order: Option<u32>) -> Reply {
        let per_user = self.per_user;
        let is_end = matches!(op, Op::Confirm { .. } | Op::Cancel { .. });
        let (mut known, mut unknown) = (false, false);
        let mut decisions = Vec::new();
        for key in keys {
            let Some(stock) = &mut self.stocks[*key] else {
                decisions.push(Decision::Says(UNKNOWN));
                continue;
            };
            stock.end_overdue();
            decisions.push(stock.decide(op, per_user));
            if let Some(order) = order {
                match stock.orders.get(&order) {
                    // Nobody sells a closed order again, whoever else knows it.
                    Some(order) => known |= is_end || !order.is_closed(),
                    None => unknown = true,
                }
            }
        }
        let conflicts = |decision: &Decision| matches!(decision, Decision::Conflict);
        if decisions.iter().any(conflicts) || (known && unknown) {
            return Reply::Conflict;
        }
        let says = |decision: &Decision| match decision {
            Decision::Says(reply) | Decision::Changes(reply) => *reply,
            Decision::Marks | Decision::Conflict => UNKNOWN,
        };
        let is_refused = decisions.iter().any(|decision| says(decision) < 0);
        let mut replies = Vec::new();
        for (key, decision) in keys.iter().zip(&decisions) {
            let reply = says(decision);
            let Some(stock) = &mut self.stocks[*key] else {
                replies.push(reply);
                continue;
            };
            let shows = is_refused && matches!(op, Op::Take { .. });
            replies.push(match decision {
                Decision::Changes(_) if shows => stock.available,
                _ => reply,
            });
            match decision {
                Decision::Changes(reply) if !is_refused => stock.apply(op, *reply),
                Decision::Marks => {
                    stock.remember(order, First::Nothing, Status::Cancelled, UNKNOWN, 0);
                }
                _ => {}
            }
        }
        Reply::Numbers(replies)
    }

    fn carry_out(&mut self, op: &Op) -> Reply {
        match op {
            Op::Set { key, total } => {
                self.stocks[*key] = Some(Stock {
                    available: *total,
                    ..Stock::default()
                });
                Reply::Ok
            }
            Op::Add { key, order, .. } => self.ask(&[*key], op, *order),
            Op::Take { keys, order, .. } => self.ask(keys, op, *order),
            Op::Confirm { keys, order } | Op::Cancel { keys, order } => {
                self.ask(keys, op, Some(*order))
            }
            Op::Get { key } => {
                let stock = self.stocks[*key].as_ref();
                Reply::Available(stock.map(|stock| stock.available))
            }
            Op::Look { key } => {
                let stock = self.stocks[*key].as_ref();
                Reply::Counts(stock.map(|stock| [stock.available, stock.reserved, stock.sold]))
            }
            Op::Delete { key } => Reply::Deleted(self.stocks[*key].take().is_some()),
            Op::Due {
                keys,
                order,
                request,
            } => {
                for key in keys {
                    let stock = self.stocks[*key].as_mut();
                    if let Some(order) = stock.and_then(|stock| stock.orders.get_mut(order))
                        && order.status == Status::Reserved
                        && order.request == *request
                    {
                        order.status = Status::Overdue;
                    }
                }
                Reply::Happened
            }
            Op::ComesBack { key } => {
                if let Some(stock) = &mut self.stocks[*key] {
                    stock.end_overdue();
                }
                Reply::Happened
            }
        }
    }
}

impl Model for Stocks {
    type Op = Op;
    type Reply = Reply;

    fn step(&mut self, op: &Op, reply: Option<&Reply>) -> bool {
        let expected = self.carry_out(op);
        reply.is_none_or(|reply| *reply == expected)
    }
}
