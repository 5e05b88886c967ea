//! Clients of caches: what they do, how that is said on the wire, and what follows from it.

use std::time::Duration;

use crate::checker::End;
use crate::entries::{Entries, Op, Reply};
use crate::faults::Fault;
use crate::run::{Aftermath, Command, Family};
use crate::support::{Random, Value};

/// A time that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its time a lease may be seen to end.
const SLACK: Duration = Duration::from_millis(3);

/// The most leases of a key that one `DEL` revokes: more readers do not fetch the key around its run.
const REVOCATIONS: usize = 4;

/// How the clients are made wrong on purpose: the checker has to find it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// What comes with a void token is stored.
    AnyTokenWillDo,
}

/// Clients of a few entries.
pub struct Readers {
    prefix: String,
    keys: usize,
    /// Do leases end?
    short: bool,
    /// Does anybody wait?
    waits: bool,
    mutation: Option<Mutation>,
}

/// What a client remembers.
#[derive(Default)]
pub struct Memory {
    number: u32,
    /// The leases that it got.
    leases: Vec<(usize, i64)>,
}

impl Readers {
    /// Clients of keys that begin with `prefix`, which draw what they do from `random`.
    pub fn of(prefix: &str, random: &mut Random, mutation: Option<Mutation>) -> Self {
        Self {
            prefix: prefix.into(),
            keys: 1 + random.below(3) as usize,
            short: random.below(3) == 0,
            waits: random.below(3) > 0,
            mutation,
        }
    }

    fn key(&self, key: &usize) -> String {
        format!("{{{}}}:{key}", self.prefix)
    }
}

impl Family for Readers {
    type Model = Entries;
    type Memory = Memory;

    fn model(&self) -> Entries {
        Entries::new(self.keys)
    }

    fn first(&self) -> Vec<Op> {
        Vec::new()
    }

    fn next(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        memory.number += 1;
        let number = me as u32 * 1000 + memory.number;
        let key = random.below(self.keys as u64) as usize;
        // Some values are nulls. No two writes write the same.
        let value = (random.below(6) > 0).then_some(number);
        // Some leases are used twice, some late, some never.
        let lease = match random.below(4) {
            0 => memory.leases.last().copied(),
            _ => memory.leases.pop(),
        };
        match (random.below(20), lease) {
            (0..9, Some((key, token))) => Op::Set {
                key,
                value,
                token: Some(token),
            },
            (9, Some((key, token))) => Op::Fail { key, token },
            (10, _) => Op::Set {
                key,
                value,
                token: None,
            },
            (11 | 12, _) => Op::Get { key },
            (13 | 14, _) => Op::Invalidate { key },
            (15 | 16, _) => Op::Delete { key },
            _ => Op::Fetch {
                key,
                lease: match self.short && random.below(2) == 0 {
                    true => 1 + random.below(40),
                    false => LONG,
                },
                block: (self.waits && random.below(2) == 0).then(|| 1 + random.below(40)),
                number,
            },
        }
    }

    fn learn(&self, memory: &mut Memory, op: &Op, end: &End<Reply>) {
        if let (Op::Fetch { key, .. }, End::Reply(_, Reply::Lease(token))) = (op, end) {
            memory.leases.push((*key, *token));
        }
    }

    fn last(&self) -> Vec<Op> {
        (0..self.keys).map(|key| Op::Get { key }).collect()
    }

    fn command(&self, op: &Op) -> Command {
        let line = match op {
            Op::Fetch {
                key, lease, block, ..
            } => {
                let block = block.map_or(String::new(), |ms| format!(" BLOCK {ms}"));
                format!("CACHE.FETCH {} LEASE {lease}{block}", self.key(key))
            }
            Op::Set { key, value, token } => {
                let token = token.filter(|_| self.mutation != Some(Mutation::AnyTokenWillDo));
                let token = token.map_or(String::new(), |token| format!(" TOKEN {token}"));
                match value {
                    Some(value) => format!("CACHE.SET {} {value} PX {LONG}{token}", self.key(key)),
                    None => format!("CACHE.SETNULL {} PX {LONG}{token}", self.key(key)),
                }
            }
            Op::Fail { key, token } => format!("CACHE.FAIL {} {token}", self.key(key)),
            Op::Get { key } => format!("CACHE.GET {}", self.key(key)),
            Op::Invalidate { key } => format!("CACHE.DEL {}", self.key(key)),
            Op::Delete { key } => format!("DEL {}", self.key(key)),
            _ => unreachable!("nobody asks for that"),
        };
        line.split(' ').map(String::from).collect()
    }

    fn reply(&self, op: &Op, value: &Value) -> Option<Reply> {
        let number = |value: &Value| value.text().parse().expect("a value is a number");
        Some(match (op, value) {
            (_, Value::Error(_)) => return None,
            (Op::Fetch { .. }, Value::Array(parts)) => match parts[0].text() {
                "HIT" => Reply::Hit(number(&parts[1])),
                "NULL" => Reply::Null,
                "LEASE" => Reply::Lease(parts[2].int()),
                "WAIT" => Reply::Wait,
                _ => return None,
            },
            (Op::Get { .. }, Value::Nil) => Reply::Value(None),
            (Op::Get { .. }, value) => Reply::Value(Some(number(value))),
            (_, Value::Int(done)) => Reply::Done(*done == 1),
            _ => return None,
        })
    }

    fn aftermath(&self, op: &Op, from: Duration, end: &End<Reply>) -> Vec<Aftermath<Op>> {
        let at = match end {
            End::Reply(at, _) => Some(*at),
            _ => None,
        };
        match op {
            Op::Delete { key } => {
                let is_read = Aftermath {
                    op: Op::DeleteIsRead { key: *key },
                    from,
                    until: at.map(|at| at + SLACK),
                };
                // When it is read. If a pause has put it off, also with the commands that arrive between the end of the pause
                // and the round of the event loop in which it must have run.
                vec![is_read; REVOCATIONS]
            }
            Op::Fetch {
                key,
                lease,
                block,
                number,
            } if matches!(end, End::Unknown(_) | End::Reply(_, Reply::Lease(_))) => {
                let (key, number) = (*key, *number);
                let mut follows = Vec::new();
                if *lease < LONG {
                    let lasts = Duration::from_millis(*lease);
                    follows.push(Aftermath {
                        op: Op::LeaseEnds { key, number },
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
            _ => Vec::new(),
        }
    }

    fn upset(&self, fault: Fault) -> Option<Op> {
        // Leases live in the master's memory.
        let forgets = matches!(fault, Fault::Crash(_) | Fault::Demotion(_) | Fault::Reload);
        forgets.then_some(Op::Forget)
    }

    fn happened() -> Reply {
        Reply::Happened
    }

    fn parts(&self) -> usize {
        self.keys
    }

    fn part(&self, op: &Op) -> Option<usize> {
        match op {
            Op::Fetch { key, .. }
            | Op::Set { key, .. }
            | Op::Fail { key, .. }
            | Op::Get { key }
            | Op::Invalidate { key }
            | Op::Delete { key }
            | Op::DeleteIsRead { key }
            | Op::LeaseEnds { key, .. }
            | Op::GivenBack { key, .. } => Some(*key),
            Op::Forget => None,
        }
    }

    fn blocks(&self, op: &Op) -> u64 {
        match op {
            Op::Fetch { block, .. } => block.unwrap_or(0),
            _ => 0,
        }
    }
}
