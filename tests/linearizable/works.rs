//! `ONCE.*` one after the other: work that one caller does, and whose result every caller gets.

use crate::checker::Model;

#[derive(Clone, Debug)]
pub enum Op {
    Begin {
        key: usize,
        lease: u64,
        fingerprint: Option<u8>,
        block: Option<u64>,
        /// Tells requests apart whose replies were lost.
        number: u32,
    },
    Done {
        key: usize,
        token: i64,
        result: u32,
    },
    Fail {
        key: usize,
        token: i64,
    },
    /// `DEL`.
    Delete {
        key: usize,
    },
    /// The lease of this request is over.
    LeaseEnds {
        key: usize,
        number: u32,
    },
    /// A waiting client was granted the lease, and was gone before it could be told.
    GivenBack {
        key: usize,
        number: u32,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    New(i64),
    Busy,
    Result(u32),
    Conflict,
    Done(bool),
    Happened,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    /// The request that began it.
    number: u32,
    /// `None`: nobody was told.
    token: Option<i64>,
    fingerprint: Option<u8>,
    result: Option<u32>,
}

/// Some keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Works {
    keys: Vec<(Option<Work>, i64)>,
}

impl Works {
    pub fn new(keys: usize) -> Self {
        Self {
            keys: vec![(None, 0); keys],
        }
    }

    /// Takes the step of a request. Returns whether this may be its reply.
    fn begin(
        &mut self,
        key: usize,
        number: u32,
        fingerprint: Option<u8>,
        reply: Option<&Reply>,
    ) -> bool {
        let (work, last_token) = &mut self.keys[key];
        let expected = match work {
            Some(work) if differ(work.fingerprint, fingerprint) => Reply::Conflict,
            Some(work) => work.result.map_or(Reply::Busy, Reply::Result),
            None => {
                let token = match reply {
                    None => None,
                    Some(Reply::New(token)) if token > last_token => Some(*token),
                    _ => return false,
                };
                *last_token = token.unwrap_or(*last_token);
                *work = Some(Work {
                    number,
                    token,
                    fingerprint,
                    result: None,
                });
                return true;
            }
        };
        reply.is_none_or(|reply| *reply == expected)
    }

    fn carry_out(&mut self, op: &Op) -> Reply {
        match op {
            Op::Begin { .. } => unreachable!("its reply may be one of many"),
            Op::Done { key, token, result } => {
                let work = self.keys[*key].0.as_mut();
                let work = work.filter(|work| work.token == Some(*token));
                Reply::Done(work.is_some_and(|work| *work.result.get_or_insert(*result) == *result))
            }
            Op::Fail { key, token } => {
                let is_busy = |work: &mut Work| work.token == Some(*token) && work.result.is_none();
                Reply::Done(self.keys[*key].0.take_if(is_busy).is_some())
            }
            Op::Delete { key } => Reply::Done(self.keys[*key].0.take().is_some()),
            Op::LeaseEnds { key, number } | Op::GivenBack { key, number } => {
                let is_busy = |work: &mut Work| work.number == *number && work.result.is_none();
                self.keys[*key].0.take_if(is_busy);
                Reply::Happened
            }
        }
    }
}

/// Whether these are the fingerprints of different requests. A request without one is the same as any other.
fn differ(one: Option<u8>, other: Option<u8>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

impl Model for Works {
    type Op = Op;
    type Reply = Reply;

    fn step(&mut self, op: &Op, reply: Option<&Reply>) -> bool {
        if let Op::Begin {
            key,
            number,
            fingerprint,
            ..
        } = op
        {
            return self.begin(*key, *number, *fingerprint, reply);
        }
        let expected = self.carry_out(op);
        reply.is_none_or(|reply| *reply == expected)
    }
}
