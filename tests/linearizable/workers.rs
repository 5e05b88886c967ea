//! Clients of work that is done once: what they do, how that is said on the wire, and what follows from it.

use std::io;
use std::time::Duration;

use crate::checker::End;
use crate::faults::Fault;
use crate::run::{Aftermath, Command, Family};
use crate::support::{Random, Raw, Value};
use crate::works::{Op, Reply, Works};

/// A time that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its time a lease may be seen to end.
const SLACK: Duration = Duration::from_millis(3);

/// How the clients are made wrong on purpose: the checker has to find it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// A client that finds the key busy frees it, and does the work as well.
    BusyIgnored,
    /// A client stores a result with whatever token is the current one.
    TokenIgnored,
}

/// Clients of a few keys.
pub struct Workers {
    prefix: String,
    keys: usize,
    /// Whether leases end.
    is_short: bool,
    /// Whether clients wait for the result.
    waits: bool,
    mutation: Option<Mutation>,
}

/// What a client remembers.
#[derive(Default)]
pub struct Memory {
    number: u32,
    /// The tokens that it was granted.
    leases: Vec<(usize, i64)>,
    /// The last result that it sent.
    sent: Option<(usize, i64, u32)>,
}

impl Workers {
    /// Clients of keys that begin with `prefix`, which draw what they do from `random`.
    pub fn of(prefix: &str, random: &mut Random, mutation: Option<Mutation>) -> Self {
        Self {
            prefix: prefix.into(),
            keys: 1 + random.below(3) as usize,
            is_short: random.below(3) == 0,
            waits: random.below(3) > 0,
            mutation,
        }
    }

    fn key(&self, key: usize) -> String {
        format!("{{{}}}:{key}", self.prefix)
    }
}

impl Family for Workers {
    type Model = Works;
    type Memory = Memory;

    fn model(&self) -> Works {
        Works::new(self.keys)
    }

    fn first(&self) -> Vec<Op> {
        Vec::new()
    }

    fn next(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        memory.number += 1;
        let number = me as u32 * 1000 + memory.number;
        let key = random.below(self.keys as u64) as usize;
        // Some tokens are used twice, some late, some never.
        let lease = match random.below(4) {
            0 => memory.leases.last().copied(),
            _ => memory.leases.pop(),
        };
        match (random.below(20), lease, memory.sent) {
            (0..8, Some((key, token)), _) => {
                memory.sent = Some((key, token, number));
                Op::Done {
                    key,
                    token,
                    result: number,
                }
            }
            (8 | 9, Some((key, token)), _) => Op::Fail { key, token },
            // The reply was lost, perhaps: the same result again.
            (10, _, Some((key, token, result))) => Op::Done { key, token, result },
            (11..14, _, _) => Op::Delete { key },
            _ => Op::Begin {
                key,
                lease: match self.is_short && random.below(2) == 0 {
                    true => 1 + random.below(40),
                    false => LONG,
                },
                fingerprint: (random.below(3) == 0).then(|| random.below(2) as u8),
                block: (self.waits && random.below(2) == 0).then(|| 1 + random.below(40)),
                number,
            },
        }
    }

    fn learn(&self, memory: &mut Memory, op: &Op, end: &End<Reply>) {
        if let (Op::Begin { key, .. }, End::Reply(_, Reply::New(token))) = (op, end) {
            memory.leases.push((*key, *token));
        }
    }

    fn last(&self) -> Vec<Op> {
        let ask = |key| Op::Begin {
            key,
            lease: LONG,
            fingerprint: None,
            block: None,
            number: 0,
        };
        (0..self.keys).map(ask).collect()
    }

    fn command(&self, op: &Op) -> Command {
        let line = match op {
            Op::Begin {
                key,
                lease,
                fingerprint,
                block,
                ..
            } => {
                let block = block.map_or(String::new(), |ms| format!(" BLOCK {ms}"));
                let print = fingerprint.map_or(String::new(), |of| format!(" FINGERPRINT {of}"));
                format!("ONCE.BEGIN {} LEASE {lease}{print}{block}", self.key(*key))
            }
            Op::Done { key, token, result } => {
                format!("ONCE.DONE {} {token} {result} PX {LONG}", self.key(*key))
            }
            Op::Fail { key, token } => format!("ONCE.FAIL {} {token}", self.key(*key)),
            Op::Delete { key } => format!("DEL {}", self.key(*key)),
            Op::LeaseEnds { .. } | Op::GivenBack { .. } => unreachable!("nobody asks for that"),
        };
        line.split(' ').map(String::from).collect()
    }

    fn reply(&self, op: &Op, value: &Value) -> Option<Reply> {
        Some(match (op, value) {
            (Op::Begin { .. }, Value::Error(text)) if text.starts_with("CONFLICT") => {
                Reply::Conflict
            }
            (_, Value::Error(_)) => return None,
            (Op::Begin { .. }, Value::Array(parts)) => match parts[0].text() {
                "NEW" => Reply::New(parts[2].int()),
                "BUSY" => Reply::Busy,
                "DONE" => Reply::Result(parts[1].text().parse().expect("a result is a number")),
                _ => return None,
            },
            (_, Value::Int(done)) => Reply::Done(*done == 1),
            _ => return None,
        })
    }

    fn aftermath(&self, op: &Op, from: Duration, end: &End<Reply>) -> Vec<Aftermath<Op>> {
        let at = match end {
            End::Reply(at, _) => Some(*at),
            _ => None,
        };
        let Op::Begin {
            key,
            lease,
            block,
            number,
            ..
        } = op
        else {
            return Vec::new();
        };
        if !matches!(end, End::Unknown(_) | End::Reply(_, Reply::New(_))) {
            return Vec::new();
        }
        let (key, number) = (*key, *number);
        let mut follows = Vec::new();
        if *lease < LONG {
            let lasts = Duration::from_millis(*lease);
            follows.push(Aftermath {
                op: Op::LeaseEnds { key, number },
                // The server counts from the beginning of a millisecond.
                from: from + lasts - Duration::from_millis(1),
                until: at.map(|at| at + lasts + SLACK),
            });
        }
        if at.is_none() && block.is_some() {
            follows.push(Aftermath {
                op: Op::GivenBack { key, number },
                from,
                until: None,
            });
        }
        follows
    }

    fn upset(&self, _fault: Fault) -> Option<Op> {
        None // work survives them all
    }

    fn happened() -> Reply {
        Reply::Happened
    }

    fn parts(&self) -> usize {
        self.keys
    }

    fn part(&self, op: &Op) -> Option<usize> {
        match op {
            Op::Begin { key, .. }
            | Op::Done { key, .. }
            | Op::Fail { key, .. }
            | Op::Delete { key }
            | Op::LeaseEnds { key, .. }
            | Op::GivenBack { key, .. } => Some(*key),
        }
    }

    fn blocks(&self, op: &Op) -> u64 {
        match op {
            Op::Begin { block, .. } => block.unwrap_or(0),
            _ => 0,
        }
    }

    fn talk(&self, wire: &mut Raw, op: &Op, patience: Duration) -> io::Result<Option<Value>> {
        let command = self.command(op);
        let limit = patience + Duration::from_millis(self.blocks(op));
        match (self.mutation, op) {
            (Some(Mutation::BusyIgnored), Op::Begin { key, .. }) => {
                let reply = wire.try_call(&command, limit)?;
                let is_busy = |reply: &Value| matches!(self.reply(op, reply), Some(Reply::Busy));
                if !reply.as_ref().is_some_and(is_busy) {
                    return Ok(reply);
                }
                match wire.try_call(["DEL", &self.key(*key)], patience)? {
                    Some(_) => wire.try_call(&command, limit),
                    None => Ok(None), // the reply is late, and would be taken for the next
                }
            }
            (Some(Mutation::TokenIgnored), Op::Done { key, result, .. }) => {
                let key = self.key(*key);
                let fields = match wire.try_call(["ONCE.INFO", &key], patience)? {
                    Some(Value::Array(fields)) => fields,
                    Some(_) => return wire.try_call(&command, patience),
                    None => return Ok(None),
                };
                let token = fields[3].int().to_string();
                let done = [
                    "ONCE.DONE",
                    &key,
                    &token,
                    &result.to_string(),
                    "PX",
                    "600000",
                ];
                wire.try_call(done, patience)
            }
            _ => wire.try_call(&command, limit),
        }
    }
}
