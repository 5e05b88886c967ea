//! `STOCK.*` one after the other: what is available, reserved and sold, and what became of each order.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::checker::{End, Model};
use crate::faults::Fault;
use crate::run::{Aftermath, Command, Family};
use crate::support::{Random, Raw, Value};

/// A reservation that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its deadline a reservation may be seen to end by a command that asks for it.
const SLACK: Duration = Duration::from_millis(3);

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

const SOLD_OUT: i64 = -1;
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
                self.remember(*order, First::Add(*delta), Status::Added, reply);
            }
            Op::Take {
                qty,
                order,
                user,
                px,
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
                self.remember(*order, First::Take(*qty, *user, *px), status, reply);
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

    fn remember(&mut self, order: Option<u32>, first: First, status: Status, reply: i64) {
        if let Some(order) = order {
            let known = Order {
                first,
                status,
                reply,
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
        let (mut open, mut unknown) = (false, false);
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
                    Some(known) => open |= !known.is_closed(),
                    None => unknown = true,
                }
            }
        }
        let conflicts = |decision: &Decision| matches!(decision, Decision::Conflict);
        if decisions.iter().any(conflicts) || (open && unknown) {
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
                    stock.remember(order, First::Nothing, Status::Cancelled, UNKNOWN);
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
            Op::Due { keys, order } => {
                for key in keys {
                    let stock = self.stocks[*key].as_mut();
                    if let Some(order) = stock.and_then(|stock| stock.orders.get_mut(order))
                        && order.status == Status::Reserved
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

/// How the clients are made wrong on purpose: the checker has to find it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// A sale looks first, and takes then what may be gone, as with `GET` and `SET`.
    LooksThenTakes,
    /// An order that is sent again is a new one.
    OrderIgnored,
}

/// Clients of a few stocks.
pub struct Buyers {
    prefix: String,
    keys: usize,
    total: i64,
    per_user: Option<i64>,
    /// Do reservations end?
    short: bool,
    /// Are stocks deleted and set anew?
    resets: bool,
    mutation: Option<Mutation>,
}

/// What a client remembers.
#[derive(Default)]
pub struct Memory {
    /// What it asked without hearing the answer.
    unanswered: Option<Op>,
}

impl Buyers {
    /// Clients of keys that begin with `prefix`, which draw what they do from `random`.
    pub fn of(prefix: &str, random: &mut Random, mutation: Option<Mutation>) -> Self {
        Self {
            prefix: prefix.into(),
            keys: 1 + random.below(3) as usize,
            total: 3 + random.below(20) as i64,
            per_user: (random.below(3) == 0).then(|| 2 + random.below(5) as i64),
            short: random.below(3) == 0,
            resets: random.below(4) == 0,
            mutation,
        }
    }

    fn key(&self, key: usize) -> String {
        format!("{{{}}}:{key}", self.prefix)
    }

    /// The stocks of an order: always the same ones.
    fn keys_of(&self, order: u32) -> Vec<usize> {
        let first = order as usize % self.keys;
        let second = (first + 1) % self.keys;
        if order % 3 == 0 && second != first {
            vec![first, second]
        } else {
            vec![first]
        }
    }

    fn take(&self, me: usize, random: &mut Random) -> Op {
        let order = random.below(12) as u32;
        // An order may come with other arguments than before.
        let qty = match random.below(10) {
            0 => 1 + random.below(4) as i64,
            _ => 1 + i64::from(order) % 3,
        };
        let user = match random.below(10) {
            0 => me as u32,
            _ => order % 2,
        };
        let user = self.per_user.map(|_| user);
        let reserves = order % 2 == 0;
        let px = reserves.then(|| match self.short && order % 4 == 0 {
            true => 5 + 3 * u64::from(order),
            false => LONG,
        });
        let has_order = reserves || random.below(4) > 0;
        Op::Take {
            keys: self.keys_of(order),
            qty,
            order: has_order.then_some(order),
            user,
            px,
        }
    }
}

impl Family for Buyers {
    type Model = Stocks;
    type Memory = Memory;

    fn model(&self) -> Stocks {
        Stocks::new(self.keys, self.per_user)
    }

    fn first(&self) -> Vec<Op> {
        let total = self.total;
        (0..self.keys).map(|key| Op::Set { key, total }).collect()
    }

    fn next(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        if let Some(op) = memory.unanswered.take()
            && random.below(4) > 0
        {
            return op;
        }
        let key = random.below(self.keys as u64) as usize;
        let order = random.below(12) as u32;
        let keys = self.keys_of(order);
        match random.below(20) {
            0..9 => self.take(me, random),
            9 | 10 => Op::Add {
                key,
                delta: random.below(7) as i64 - 3,
                order: (random.below(2) == 0).then(|| 100 + random.below(4) as u32),
            },
            11..14 => Op::Confirm { keys, order },
            14..16 => Op::Cancel { keys, order },
            16 if self.resets => Op::Delete { key },
            17 if self.resets => Op::Set {
                key,
                total: self.total,
            },
            16..18 => Op::Get { key },
            _ => Op::Look { key },
        }
    }

    fn learn(&self, memory: &mut Memory, op: &Op, end: &End<Reply>) {
        let is_repeatable = match op {
            Op::Take { order, .. } | Op::Add { order, .. } => order.is_some(),
            Op::Confirm { .. } | Op::Cancel { .. } => true,
            _ => false,
        };
        if is_repeatable && matches!(end, End::Unknown(_)) {
            memory.unanswered = Some(op.clone());
        }
    }

    fn last(&self) -> Vec<Op> {
        (0..self.keys).map(|key| Op::Look { key }).collect()
    }

    fn command(&self, op: &Op) -> Command {
        let mut words = Vec::new();
        let mut say = |text: &str| words.extend(text.split(' ').map(String::from));
        let name = |key: &usize| self.key(*key);
        let several = |keys: &[usize], qty: Option<i64>| {
            let qty = qty.map_or(String::new(), |qty| format!(" {qty}"));
            let parts: Vec<_> = keys.iter().map(|key| name(key) + &qty).collect();
            match parts.len() {
                1 => parts.concat(),
                count => format!("{count} {}", parts.join(" ")),
            }
        };
        let m = |keys: &[usize]| if keys.len() > 1 { "M" } else { "" };
        match op {
            Op::Set { key, total } => {
                say(&format!("STOCK.SET {} {total}", name(key)));
                if let Some(most) = self.per_user {
                    say(&format!("PERUSER {most}"));
                }
            }
            Op::Add { key, delta, order } => {
                say(&format!("STOCK.ADD {} {delta}", name(key)));
                if let Some(order) = order {
                    say(&format!("ORDER {order}"));
                }
            }
            Op::Take {
                keys,
                qty,
                order,
                user,
                px,
            } => {
                let verb = if px.is_some() { "RESERVE" } else { "DEDUCT" };
                say(&format!(
                    "STOCK.{}{verb} {}",
                    m(keys),
                    several(keys, Some(*qty))
                ));
                if let Some(order) = order {
                    say(&format!("ORDER {order}"));
                }
                if let Some(user) = user {
                    say(&format!("USER {user}"));
                }
                if let Some(px) = px {
                    say(&format!("PX {px}"));
                }
            }
            Op::Confirm { keys, order } => {
                say(&format!(
                    "STOCK.{}CONFIRM {} {order}",
                    m(keys),
                    several(keys, None)
                ));
            }
            Op::Cancel { keys, order } => {
                say(&format!(
                    "STOCK.{}CANCEL {} {order}",
                    m(keys),
                    several(keys, None)
                ));
            }
            Op::Get { key } => say(&format!("STOCK.GET {}", name(key))),
            Op::Look { key } => say(&format!("STOCK.INFO {}", name(key))),
            Op::Delete { key } => say(&format!("DEL {}", name(key))),
            Op::Due { .. } | Op::ComesBack { .. } => unreachable!("nobody asks for that"),
        }
        words
    }

    fn reply(&self, op: &Op, value: &Value) -> Option<Reply> {
        Some(match (op, value) {
            (_, Value::Error(text)) if text.starts_with("CONFLICT") => Reply::Conflict,
            (_, Value::Error(_)) => return None,
            (Op::Set { .. }, value) if value == &"OK" => Reply::Ok,
            (Op::Get { .. }, Value::Nil) => Reply::Available(None),
            (Op::Get { .. }, value) => Reply::Available(Some(value.int())),
            (Op::Look { .. }, Value::Nil) => Reply::Counts(None),
            (Op::Look { .. }, info) => {
                let counts = ["available", "reserved", "sold"];
                Reply::Counts(Some(counts.map(|name| info.field(name).int())))
            }
            (Op::Delete { .. }, value) => Reply::Deleted(value.int() == 1),
            (_, Value::Int(number)) => Reply::Numbers(vec![*number]),
            (_, Value::Array(numbers)) => Reply::Numbers(numbers.iter().map(Value::int).collect()),
            _ => return None,
        })
    }

    fn aftermath(&self, op: &Op, from: Duration, end: &End<Reply>) -> Vec<Aftermath<Op>> {
        let Op::Take {
            keys,
            order: Some(order),
            px: Some(px),
            ..
        } = op
        else {
            return Vec::new();
        };
        let until = match end {
            End::Reply(_, Reply::Numbers(numbers)) if numbers.iter().any(|n| *n < 0) => {
                return Vec::new();
            }
            End::Reply(_, Reply::Conflict) | End::Never(_) => return Vec::new(),
            _ if *px == LONG => return Vec::new(),
            End::Reply(at, _) => Some(*at),
            End::Unknown(_) => None,
        };
        let lasts = Duration::from_millis(*px);
        let ends = Aftermath {
            op: Op::Due {
                keys: keys.clone(),
                order: *order,
            },
            from: from + lasts - Duration::from_millis(1),
            until: until.map(|at| at + lasts + SLACK),
        };
        // The background takes its time, more of it while writes are paused.
        let comes_back = keys.iter().map(|key| Aftermath {
            op: Op::ComesBack { key: *key },
            from: from + lasts - Duration::from_millis(1),
            until: None,
        });
        std::iter::once(ends).chain(comes_back).collect()
    }

    fn upset(&self, _fault: Fault) -> Option<Op> {
        None // stocks survive everything
    }

    fn happened() -> Reply {
        Reply::Happened
    }

    fn talk(&self, wire: &mut Raw, op: &Op) -> io::Result<Option<Value>> {
        const LIMIT: Duration = Duration::from_millis(80);
        let mut command = self.command(op);
        match (self.mutation, op) {
            (
                Some(Mutation::LooksThenTakes),
                Op::Take {
                    keys,
                    qty,
                    order: None,
                    ..
                },
            ) if keys.len() == 1 => {
                let key = self.key(keys[0]);
                let Some(Value::Int(available)) = wire.try_call(["STOCK.GET", &key], LIMIT)? else {
                    return Ok(None);
                };
                if available < *qty {
                    return Ok(Some(Value::Int(SOLD_OUT)));
                }
                // Whatever has happened between: only the race shows.
                let taken = wire.try_call(command, LIMIT)?;
                return Ok(taken.map(|_| Value::Int(available - qty)));
            }
            (Some(Mutation::OrderIgnored), Op::Take { order: Some(_), .. }) => {
                let place = command.iter().position(|word| word == "ORDER");
                let id = &mut command[place.expect("it has an order") + 1];
                // As if each attempt had drawn its own.
                id.push_str(&format!(":{:?}", std::time::Instant::now()).replace(' ', ""));
            }
            _ => {}
        }
        wire.try_call(command, LIMIT)
    }
}
