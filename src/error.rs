//! The one error type of every command. Its `Display` is the text on the wire.

use std::fmt;

/// Why a command was refused as a misuse. Business refusals (a taken lock, an empty stock) are
/// replies, not errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// An unknown, repeated or incomplete option.
    Syntax,
    /// Not a plain decimal integer, or outside i64.
    NotInteger,
    /// An integer (or the length in bytes of a string) outside what its argument allows.
    OutOfRange {
        /// The argument, spelled as in the documentation of the command.
        argument: &'static str,
        /// The smallest value that it takes.
        min: i64,
        /// The largest value that it takes.
        max: i64,
    },
    /// The key holds another type.
    WrongType,
    /// Waiting would close a cycle of owners that wait for each other.
    Deadlock,
    /// The server has as many waiting clients as `lock-max-waiters` allows.
    TooManyWaiters,
    /// The slot of the key that the client waited for is served by another node.
    Moved {
        /// The hash slot, 0 to 16383.
        slot: u16,
        /// `host:port` of the node that serves it.
        address: String,
    },
    /// The stock limits what a user may have, and the command names none.
    UserRequired,
    /// An order id came with other arguments before.
    Conflict,
    /// A hash that is to become a stock is not one of the kind that can.
    NotAStockHash,
    /// Two keys that are used together are in different slots of a cluster.
    CrossSlot,
    /// No more entries fit into a stream.
    StreamFull,
    /// There is more in memory than `maxmemory` allows.
    OutOfMemory,
    /// An internal command, by somebody who may not do what it does.
    NotAllowed,
    /// The serialized effect of a replicated command cannot be read.
    BadEffect,
    /// Something that should be impossible; the server's log has the details.
    Internal,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Syntax => f.write_str("ERR syntax error"),
            Error::NotInteger => f.write_str("ERR value is not an integer or out of range"),
            Error::OutOfRange { argument, min, max } => {
                write!(f, "ERR {argument} must be between {min} and {max}")
            }
            Error::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Error::Deadlock => f.write_str("DEADLOCK waiting for this lock would never end"),
            Error::TooManyWaiters => f.write_str("ERR too many waiting clients"),
            Error::Moved { slot, address } => write!(f, "MOVED {slot} {address}"),
            Error::UserRequired => f.write_str("ERR USER is required by this stock"),
            Error::Conflict => f.write_str("CONFLICT order id was used with other arguments"),
            Error::NotAStockHash => {
                f.write_str("ERR the hash must have the fields total and ordered, and no others")
            }
            Error::CrossSlot => {
                f.write_str("CROSSSLOT Keys in request don't hash to the same slot")
            }
            Error::StreamFull => f.write_str(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ),
            Error::OutOfMemory => {
                f.write_str("OOM command not allowed when used memory > 'maxmemory'.")
            }
            Error::NotAllowed => {
                f.write_str("NOPERM this internal command needs the permission to RESTORE the key")
            }
            Error::BadEffect => f.write_str("ERR invalid replicated effect"),
            Error::Internal => f.write_str("ERR internal error"),
        }
    }
}

impl std::error::Error for Error {}
