//! What a command answers, before it is put on the wire in RESP2 or RESP3.

use crate::error::Error;

/// A reply. Only `Nil` and `Int` are made on hot paths; they allocate nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// None yet: the client waits and is answered when it is woken.
    Later,
    /// `nil`: a business refusal, or "there is none".
    Nil,
    /// `OK`, as the status that built-in commands reply.
    Ok,
    /// An integer below 2^53.
    Int(i64),
    /// A word of the command's vocabulary, such as a mode or a state.
    Text(&'static str),
    /// Bytes that came from a user.
    Bytes(Box<[u8]>),
    /// An ordered list.
    Array(Vec<Reply>),
    /// Fields with lower-case names: a map in RESP3, a flat array in RESP2.
    Map(Vec<(&'static str, Reply)>),
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

/// What every command returns.
pub type Answer = Result<Reply, Error>;
