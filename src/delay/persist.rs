//! Delay queues as bytes: effects for AOF and replication, of which RDB and `DUMP` hold a list as well.
//!
//! ```text
//! effects = effect*                        until the end of the input
//! effect  = 'Q' target arrivals delivered  the queue is new and has no messages
//!         | 'S' target                     the queue has this stream; without a queue there is a new one
//!         | 'A' due message                the message arrives, and replaces the one with its id
//!         | 'C' id                         the message is canceled
//!         | 'D' id ms seq                  the message is delivered, as this entry of the stream
//!         | 'T' count                      the oldest entries of the stream were dropped, so many
//!         | 'M' due arrival message        the message waits
//! target  = stream maxlen
//! message = a byte string; see `message`
//!
//! queue   = version(1), byte strings of effects, an empty byte string: the first begins with 'Q', the rest are 'M'
//! ```
//!
//! Integers and byte strings are those of [`crate::codec`]; times are Unix milliseconds.

use super::message::{MAX_MESSAGE_ID_BYTES, PackedMessage, QueuedMessage};
use super::state::{DelayQueue, MAX_COUNT, Target};
use crate::codec::{Corrupt, Reader, put_bytes, put_uint};
use crate::server::services::stream::EntryId;

/// The version of the encoding that this build writes.
pub const DELAY_VERSION: u8 = 1;

/// One change of a queue as a replica or an AOF receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelayEffect<'a> {
    /// The queue is new.
    Created {
        /// Its stream.
        target: Target,
        /// How many messages had arrived.
        arrivals: u64,
        /// How many messages were delivered.
        delivered: u64,
    },
    /// The queue has this stream.
    Set(Target),
    /// A message arrives that is due at this time.
    Added(PackedMessage<'a>, u64),
    /// The message with this id is canceled.
    Canceled(&'a [u8]),
    /// The message with this id is delivered.
    Delivered(&'a [u8], EntryId),
    /// The number of the oldest entries of the stream that were dropped.
    Trimmed(u64),
    /// A message waits: its due time, and its number in the order of arrival.
    Waiting(PackedMessage<'a>, u64, u64),
}

/// Appends [`DelayEffect::Created`].
pub fn put_created(out: &mut Vec<u8>, queue: &DelayQueue) {
    out.push(b'Q');
    put_target(out, queue.target());
    put_uint(out, queue.arrivals());
    put_uint(out, queue.delivered());
}

/// Appends [`DelayEffect::Set`].
pub fn put_set(out: &mut Vec<u8>, target: &Target) {
    out.push(b'S');
    put_target(out, target);
}

/// Appends [`DelayEffect::Added`].
pub fn put_added(out: &mut Vec<u8>, message: PackedMessage<'_>, due: u64) {
    out.push(b'A');
    put_uint(out, due);
    put_bytes(out, message.packed());
}

/// Appends [`DelayEffect::Canceled`].
pub fn put_canceled(out: &mut Vec<u8>, id: &[u8]) {
    out.push(b'C');
    put_bytes(out, id);
}

/// Appends [`DelayEffect::Delivered`].
pub fn put_delivered(out: &mut Vec<u8>, id: &[u8], entry: EntryId) {
    out.push(b'D');
    put_bytes(out, id);
    put_uint(out, entry.ms);
    put_uint(out, entry.seq);
}

/// Appends [`DelayEffect::Trimmed`].
pub fn put_trimmed(out: &mut Vec<u8>, count: u64) {
    out.push(b'T');
    put_uint(out, count);
}

/// Appends [`DelayEffect::Waiting`].
pub fn put_waiting(out: &mut Vec<u8>, queued: &QueuedMessage) {
    out.push(b'M');
    put_uint(out, queued.due);
    put_uint(out, queued.arrival);
    put_bytes(out, queued.message().packed());
}

fn put_target(out: &mut Vec<u8>, target: &Target) {
    put_bytes(out, &target.stream);
    put_uint(out, target.maxlen);
}

/// Reads the effects of one command, one after the other.
pub fn effects(input: &[u8]) -> impl Iterator<Item = Result<DelayEffect<'_>, Corrupt>> {
    let mut reader = Reader::new(input);
    std::iter::from_fn(move || (!reader.is_empty()).then(|| effect(&mut reader)))
}

fn effect<'a>(reader: &mut Reader<'a>) -> Result<DelayEffect<'a>, Corrupt> {
    Ok(match reader.byte()? {
        b'Q' => DelayEffect::Created {
            target: target(reader)?,
            arrivals: number(reader)?,
            delivered: number(reader)?,
        },
        b'S' => DelayEffect::Set(target(reader)?),
        b'A' => {
            let due = number(reader)?;
            DelayEffect::Added(message(reader)?, due)
        }
        b'C' => DelayEffect::Canceled(reader.bytes(1, MAX_MESSAGE_ID_BYTES)?),
        b'D' => {
            let id = reader.bytes(1, MAX_MESSAGE_ID_BYTES)?;
            let ms = reader.uint(0, u64::MAX)?;
            let seq = reader.uint(0, u64::MAX)?;
            DelayEffect::Delivered(id, EntryId { ms, seq })
        }
        b'T' => DelayEffect::Trimmed(number(reader)?),
        b'M' => {
            let (due, arrival) = (number(reader)?, number(reader)?);
            DelayEffect::Waiting(message(reader)?, due, arrival)
        }
        _ => return Err(Corrupt),
    })
}

fn number(reader: &mut Reader<'_>) -> Result<u64, Corrupt> {
    reader.uint(0, MAX_COUNT)
}

fn target(reader: &mut Reader<'_>) -> Result<Target, Corrupt> {
    Ok(Target {
        stream: reader.bytes(0, usize::MAX)?.into(),
        maxlen: number(reader)?,
    })
}

fn message<'a>(reader: &mut Reader<'a>) -> Result<PackedMessage<'a>, Corrupt> {
    PackedMessage::read(reader.bytes(0, usize::MAX)?)
}

/// A whole queue is written in pieces, each of about so many bytes or one large message.
const PIECE_BYTES: usize = 16 * 1024;

/// Calls `write` with a whole queue as byte strings of effects. None of them is empty.
pub fn pieces(queue: &DelayQueue, write: &mut dyn FnMut(&[u8])) {
    let mut piece = Vec::new();
    put_created(&mut piece, queue);
    for queued in queue.iter() {
        if piece.len() >= PIECE_BYTES {
            write(&piece);
            piece.clear();
        }
        put_waiting(&mut piece, queued);
    }
    write(&piece);
}

/// Builds a queue of its pieces.
#[derive(Debug, Default)]
pub struct QueueBuilder(Option<DelayQueue>);

impl QueueBuilder {
    /// Takes the next piece.
    pub fn add(&mut self, piece: &[u8]) -> Result<(), Corrupt> {
        for effect in effects(piece) {
            match (effect?, &mut self.0) {
                (
                    DelayEffect::Created {
                        target,
                        arrivals,
                        delivered,
                    },
                    empty @ None,
                ) => *empty = Some(DelayQueue::with_counts(target, arrivals, delivered)),
                (DelayEffect::Waiting(message, due, arrival), Some(queue)) => {
                    queue.restore(message, due, arrival)?;
                }
                _ => return Err(Corrupt),
            }
        }
        Ok(())
    }

    /// The queue, if there is a whole one.
    pub fn finish(self) -> Result<DelayQueue, Corrupt> {
        self.0.ok_or(Corrupt)
    }
}
