//! `CACHE.*` one after the other: an entry, and the one lease that lets somebody rebuild it.

use std::collections::BTreeSet;

use crate::checker::Model;

#[derive(Clone, Debug)]
pub enum Op {
    Fetch {
        key: usize,
        lease: u64,
        block: Option<u64>,
        /// Tells fetches apart whose replies were lost.
        number: u32,
    },
    /// `value`: `None` is a cached null.
    Set {
        key: usize,
        value: Option<u32>,
        token: Option<i64>,
    },
    Fail {
        key: usize,
        token: i64,
    },
    Get {
        key: usize,
    },
    /// `CACHE.DEL`.
    Invalidate {
        key: usize,
    },
    /// `DEL`.
    Delete {
        key: usize,
    },
    /// The lease is revoked, because a `DEL` has arrived that may run later or be refused, or because it may have run.
    DeleteIsRead {
        key: usize,
    },
    /// The time of a lease that a fetch got is up.
    LeaseEnds {
        key: usize,
        number: u32,
    },
    /// A waiter got the lease, and was gone before it could be told.
    GivenBack {
        key: usize,
        number: u32,
    },
    /// All leases are void.
    Forget,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Hit(u32),
    Null,
    Lease(i64),
    Wait,
    Value(Option<u32>),
    Done(bool),
    Happened,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lease {
    /// The fetch that got it.
    number: u32,
    /// `None`: nobody was told.
    token: Option<i64>,
    is_over: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    /// The inner `None` is a null.
    value: Option<Option<u32>>,
    lease: Option<Lease>,
}

/// A few entries, and all tokens that were given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entries {
    entries: Vec<Entry>,
    tokens: BTreeSet<i64>,
}

impl Entries {
    pub fn new(keys: usize) -> Self {
        Self {
            entries: vec![Entry::default(); keys],
            tokens: BTreeSet::new(),
        }
    }

    fn fetch(&mut self, key: usize, number: u32, reply: Option<&Reply>) -> bool {
        let entry = &mut self.entries[key];
        let expected = match (&entry.value, &entry.lease) {
            (Some(Some(value)), _) => Reply::Hit(*value),
            (Some(None), _) => Reply::Null,
            (None, Some(lease)) if !lease.is_over => Reply::Wait,
            _ => {
                let token = match reply {
                    None => None,
                    Some(Reply::Lease(token)) => Some(*token),
                    _ => return false,
                };
                entry.lease = Some(Lease {
                    number,
                    token,
                    is_over: false,
                });
                // No two leases have the same.
                return token.is_none_or(|token| self.tokens.insert(token));
            }
        };
        reply.is_none_or(|reply| *reply == expected)
    }

    fn carry_out(&mut self, op: &Op) -> Reply {
        match op {
            Op::Fetch { .. } => unreachable!("its reply may be one of many"),
            Op::Set { key, value, token } => {
                let entry = &mut self.entries[*key];
                let is_current = token.is_none() || entry.holds(*token);
                if is_current {
                    entry.value = Some(*value);
                    entry.lease = None;
                }
                Reply::Done(is_current)
            }
            Op::Fail { key, token } => {
                let entry = &mut self.entries[*key];
                let is_current = entry.holds(Some(*token));
                if is_current {
                    entry.lease = None;
                }
                Reply::Done(is_current)
            }
            Op::Get { key } => Reply::Value(self.entries[*key].value.flatten()),
            Op::Invalidate { key } => {
                let entry = std::mem::take(&mut self.entries[*key]);
                Reply::Done(entry.value.is_some())
            }
            Op::Delete { key } => {
                let entry = &mut self.entries[*key];
                let was_there = entry.value.take().is_some();
                if was_there {
                    entry.lease = None;
                }
                Reply::Done(was_there)
            }
            Op::DeleteIsRead { key } => {
                self.entries[*key].lease = None;
                Reply::Happened
            }
            Op::LeaseEnds { key, number } => {
                let lease = self.entries[*key].lease.as_mut();
                if let Some(lease) = lease.filter(|lease| lease.number == *number) {
                    lease.is_over = true;
                }
                Reply::Happened
            }
            Op::GivenBack { key, number } => {
                let lease = &mut self.entries[*key].lease;
                lease.take_if(|lease| lease.number == *number);
                Reply::Happened
            }
            Op::Forget => {
                for entry in &mut self.entries {
                    entry.lease = None;
                }
                Reply::Happened
            }
        }
    }
}

impl Entry {
    fn holds(&self, token: Option<i64>) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.token.is_some() && lease.token == token)
    }
}

impl Model for Entries {
    type Op = Op;
    type Reply = Reply;

    fn step(&mut self, op: &Op, reply: Option<&Reply>) -> bool {
        if let Op::Fetch { key, number, .. } = op {
            return self.fetch(*key, *number, reply);
        }
        let expected = self.carry_out(op);
        reply.is_none_or(|reply| *reply == expected)
    }
}
