//! Clients of stocks: what they do, how that is said on the wire, and what follows from it.

use std::io;
use std::time::Duration;

use crate::checker::End;
use crate::faults::Fault;
use crate::run::{Aftermath, Command, Family};
use crate::stocks::{Op, Reply, SOLD_OUT, Stocks};
use crate::support::{Random, Raw, Value};

/// A reservation that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its deadline a reservation may be seen to end by a command that asks for it.
const SLACK: Duration = Duration::from_millis(3);

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
    /// How many ids of orders there are.
    orders: u64,
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
            orders: 3 + random.below(9),
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
        if order.is_multiple_of(3) && second != first {
            vec![first, second]
        } else {
            vec![first]
        }
    }

    fn take(&self, me: usize, random: &mut Random) -> Op {
        let order = random.below(self.orders) as u32;
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
        let reserves = order.is_multiple_of(2);
        let px = reserves.then(|| match self.short && order.is_multiple_of(4) {
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
            request: random.word(),
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
        let order = random.below(self.orders) as u32;
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
                ..
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
            request,
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
                request: *request,
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

    fn talk(&self, wire: &mut Raw, op: &Op, patience: Duration) -> io::Result<Option<Value>> {
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
                let Some(Value::Int(available)) = wire.try_call(["STOCK.GET", &key], patience)?
                else {
                    return Ok(None);
                };
                if available < *qty {
                    return Ok(Some(Value::Int(SOLD_OUT)));
                }
                // Whatever has happened between: only the race shows.
                let taken = wire.try_call(command, patience)?;
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
        wire.try_call(command, patience)
    }
}
