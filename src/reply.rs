//! What a command answers, before it is put on the wire in RESP2 or RESP3.

use crate::error::Error;
use std::sync::Arc;

/// A reply. Only `Nil`, `Int`, `Bool` and `Ints` are made on hot paths; they allocate nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// None yet: the client waits and is answered when it is woken.
    Later,
    /// It was sent already, straight from the value that it shows.
    Sent,
    /// `nil`: a business refusal, or "there is none".
    Nil,
    /// `OK`, as the status that built-in commands reply.
    Ok,
    /// An integer below 2^53.
    Int(i64),
    /// A truth value: a boolean in RESP3, 1 or 0 in RESP2.
    Bool(bool),
    /// A word of the command's vocabulary, such as a mode or a state.
    Text(&'static str),
    /// Bytes that came from a user.
    Bytes(Box<[u8]>),
    /// An error in the place of one element of a list.
    Error(Box<Error>),
    /// A list of a few integers.
    Ints(Ints),
    /// What a reader of a cache is to do.
    Fetched(Fetched),
    /// An ordered list.
    Array(Vec<Reply>),
    /// Fields with their names: a map in RESP3, a flat array in RESP2.
    Map(Vec<(&'static str, Reply)>),
    /// One field that was asked for: a map of one pair in RESP3, an array of its value in RESP2.
    Field(&'static str, Box<Reply>),
}

impl Reply {
    /// An integer reply. Everything that is counted here stays below 2^53.
    pub fn int(value: u64) -> Self {
        debug_assert!(value < 1 << 53);
        Reply::Int(value as i64)
    }

    /// The integer, or nil.
    pub fn int_or_nil(value: Option<u64>) -> Self {
        value.map_or(Reply::Nil, Reply::int)
    }
}

/// A word that says what to do, bytes or nil, and a number. The bytes are shared by all who get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// What to do.
    pub state: &'static str,
    /// The bytes.
    pub value: Option<Arc<[u8]>>,
    /// The number.
    pub n: u64,
}

/// A few integers, in place.
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

/// What every command returns.
pub type Answer = Result<Reply, Error>;
