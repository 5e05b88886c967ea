//! The one error type of every command. Its `Display` is the text on the wire.

use std::fmt;

/// The error of a command that was misused. Business refusals (a held lock, a sold-out stock) are replies, not errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// An unknown, repeated or incomplete option.
    Syntax,
    /// Not a plain decimal integer, or outside i64.
    NotInteger,
    /// Too many arguments for a command with optional ones.
    Arity(&'static str),
    /// Not a decimal number.
    NotFloat,
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
    /// Another node serves the hash slot of the key that the client waited for.
    Moved {
        /// The hash slot, 0 to 16383.
        slot: u16,
        /// `host:port` of the node that serves it.
        address: String,
    },
    /// The stock has a limit per user, and the command names no user.
    UserRequired,
    /// The order id was used with other arguments before.
    Conflict,
    /// The idempotency key was used with another fingerprint.
    OtherFingerprint,
    /// A hash that is to become a stock has other fields than `total` and `ordered`.
    NotAStockHash,
    /// Two keys of one command are in different hash slots of a cluster.
    CrossSlot,
    /// Not all keys of the command are on this node: their hash slot is being moved.
    TryAgain,
    /// The cluster is down while the client waits.
    ClusterDown,
    /// No node of the cluster serves the hash slot that the client waits in.
    SlotNotServed,
    /// The server became a replica while the client waited.
    Demoted,
    /// No more entries fit into a stream.
    StreamFull,
    /// There is no delay queue at the key.
    NoDelayQueue,
    /// The stream of a delay queue is to be the key of the queue itself.
    StreamIsQueue,
    /// No stream takes an entry of this size.
    EntryTooLarge,
    /// The server uses more memory than `maxmemory` allows.
    OutOfMemory,
    /// The machine does not have the memory for a filter.
    NoMemory,
    /// A filter would take more memory than `bloom-max-bytes`.
    FilterTooLarge,
    /// A cached value does not fit into `cache-max-bytes`.
    ValueTooLarge,
    /// A false positive rate that is no number.
    BadErrorRate,
    /// A false positive rate that is not between 0 and 1.
    ErrorRateRange,
    /// A capacity that is not an integer.
    BadCapacity,
    /// A capacity out of range.
    CapacityRange,
    /// An expansion that is not an integer.
    BadExpansion,
    /// An expansion out of range.
    ExpansionRange,
    /// `NONSCALING` with an `EXPANSION`.
    NonscalingExpands,
    /// A width of fingerprints that is not 8, 16 or 32 bits.
    BadBits,
    /// A Bloom filter that does not scale is full.
    NonscalingFull,
    /// A cuckoo filter that does not expand is full.
    CuckooFull,
    /// A cuckoo filter has its largest number of layers.
    MaximumExpansions,
    /// There is no Bloom filter at the key.
    NoBloom,
    /// There is no cuckoo filter at the key.
    NoCuckoo,
    /// The key already holds a value.
    ItemExists,
    /// The chunk was not dumped from such a filter.
    BadData,
    /// The filters cannot be merged.
    FiltersDiffer,
    /// The key holds a limit of another kind.
    OtherLimit,
    /// A family of commands that is not loaded.
    UnknownFamily,
    /// An internal command from a client without the permissions for it.
    NotAllowed,
    /// The caller lacks the permission for the channel.
    NoChannel,
    /// The caller's user may not read a key that the server has not found among the arguments.
    NoKey,
    /// Another command has the value open. This one runs in a listener to an event of that command.
    KeyInUse,
    /// A listener to an event of this command has removed a key of the command.
    KeyRemoved,
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
            Error::Arity(command) => {
                write!(f, "ERR wrong number of arguments for '{command}' command")
            }
            Error::NotFloat => f.write_str("ERR value is not a valid float"),
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
            Error::OtherFingerprint => {
                f.write_str("CONFLICT key was used with another fingerprint")
            }
            Error::NotAStockHash => {
                f.write_str("ERR the hash must have the fields total and ordered, and no others")
            }
            Error::CrossSlot => {
                f.write_str("CROSSSLOT Keys in request don't hash to the same slot")
            }
            Error::TryAgain => f.write_str("TRYAGAIN Multiple keys request during rehashing of slot"),
            Error::ClusterDown => f.write_str("CLUSTERDOWN The cluster is down"),
            Error::SlotNotServed => f.write_str("CLUSTERDOWN Hash slot not served"),
            Error::Demoted => f.write_str(
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            ),
            Error::StreamFull => f.write_str(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ),
            Error::NoDelayQueue => f.write_str("ERR no such delay queue"),
            Error::StreamIsQueue => {
                f.write_str("ERR the stream must be another key than the delay queue")
            }
            Error::EntryTooLarge => f.write_str("ERR Elements are too large to be stored"),
            Error::OutOfMemory => {
                f.write_str("OOM command not allowed when used memory > 'maxmemory'.")
            }
            Error::NoMemory => f.write_str("ERR not enough memory for the filter"),
            Error::FilterTooLarge => f.write_str("ERR filter would exceed bloom-max-bytes"),
            Error::ValueTooLarge => f.write_str("ERR value larger than cache-max-bytes"),
            Error::BadErrorRate => f.write_str("ERR bad error rate"),
            Error::ErrorRateRange => {
                f.write_str("ERR error rate must be in the range (0.000000, 1.000000)")
            }
            Error::BadCapacity => f.write_str("ERR bad capacity"),
            Error::CapacityRange => {
                f.write_str("ERR capacity must be in the range [1, 1073741824]")
            }
            Error::BadExpansion => f.write_str("ERR bad expansion"),
            Error::ExpansionRange => f.write_str("ERR expansion must be in the range [0, 32768]"),
            Error::NonscalingExpands => f.write_str("ERR Nonscaling filters cannot expand"),
            Error::BadBits => f.write_str("ERR BITS must be 8, 16 or 32"),
            Error::NonscalingFull => f.write_str("ERR non scaling filter is full"),
            Error::CuckooFull => f.write_str("ERR Filter is full"),
            Error::MaximumExpansions => f.write_str("ERR Maximum expansions reached"),
            Error::NoBloom => f.write_str("ERR not found"),
            Error::NoCuckoo => f.write_str("ERR Not found"),
            Error::ItemExists => f.write_str("ERR item exists"),
            Error::BadData => f.write_str("ERR received bad data"),
            Error::FiltersDiffer => f.write_str("ERR filters differ in shape"),
            Error::OtherLimit => f.write_str("ERR key holds another kind of limit"),
            Error::UnknownFamily => f.write_str("ERR unknown family"),
            Error::NoKey => f.write_str("NOPERM No permissions to access a key"),
            Error::NoChannel => f.write_str("NOPERM No permissions to access a channel"),
            Error::NotAllowed => {
                f.write_str("NOPERM this internal command needs the permission to RESTORE the key")
            }
            Error::KeyRemoved => f.write_str("ERR the key was removed during the command"),
            Error::KeyInUse => f.write_str("ERR the key is in use by another command"),
            Error::BadEffect => f.write_str("ERR invalid replicated effect"),
            Error::Internal => f.write_str("ERR internal error"),
        }
    }
}

impl std::error::Error for Error {}
