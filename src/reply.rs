//! The reply of a command, before it is sent in RESP2 or RESP3.

use crate::error::Error;
use std::sync::Arc;

/// A reply. Only `Nil`, `Int`, `Bool` and `Ints` are made on hot paths; they allocate nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No reply yet: the client waits and receives its reply when it is woken.
    Later,
    /// The reply was sent already, without a copy of the value.
    Sent,
    /// Nil: a refusal, or a missing value.
    Nil,
    /// The status `OK`.
    Ok,
    /// An integer, -(2^53 - 1) to 2^53 - 1.
    Int(i64),
    /// A boolean in RESP3, 1 or 0 in RESP2.
    Bool(bool),
    /// A constant word, such as a mode or a state.
    Text(&'static str),
    /// A byte string.
    Bytes(Box<[u8]>),
    /// An error in the place of one element of a list.
    Error(Box<Error>),
    /// A list of a few integers.
    Ints(Ints),
    /// The reply of `CACHE.FETCH`.
    Fetched(Fetched),
    /// An ordered list.
    Array(Vec<Reply>),
    /// Names and values: a map in RESP3, a flat array in RESP2.
    Map(Vec<(&'static str, Reply)>),
    /// One field by its name: a map of one pair in RESP3, an array of the value in RESP2.
    Field(&'static str, Box<Reply>),
}

impl Reply {
    /// An integer reply. `value` is below 2^53.
    pub fn int(value: u64) -> Self {
        debug_assert!(value < 1 << 53);
        Reply::Int(value as i64)
    }

    /// The integer, or nil.
    pub fn int_or_nil(value: Option<u64>) -> Self {
        match value {
            Some(value) => Reply::int(value),
            None => Reply::Nil,
        }
    }
}

/// A state, a value or nil, and a number. All clients that receive the value share its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The state, which says what the client does next.
    pub state: &'static str,
    /// The value; `None`: nil.
    pub value: Option<Arc<[u8]>>,
    /// The number, whose meaning depends on the state.
    pub n: u64,
}

/// At most six integers, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ints {
    values: [i64; 6],
    count: usize,
}

impl Ints {
    /// The integers.
    pub fn as_slice(&self) -> &[i64] {
        &self.values[..self.count]
    }
}

impl<const N: usize> From<[i64; N]> for Reply {
    fn from(list: [i64; N]) -> Self {
        const { assert!(N <= 6) };
        let mut values = [0; 6];
        values[..N].copy_from_slice(&list);
        Reply::Ints(Ints { values, count: N })
    }
}

/// The result of a command: its reply, or an error.
pub type Answer = Result<Reply, Error>;
