//! Messages, packed into one block of bytes each.
//!
//! ```text
//! message = id (field value)+       byte strings of `crate::codec`
//! ```

use crate::codec::{Corrupt, Reader, put_bytes};
use crate::linear_hash::HashEntry;
use crate::memory::block_size;

/// The longest id of a message in bytes.
pub const MAX_MESSAGE_ID_BYTES: usize = 512;

/// The most bytes that the fields and values of one message have. No stream takes a larger entry.
pub const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Packs a message. `values` are fields and values by turns.
pub fn pack(id: &[u8], values: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = values.iter().map(|value| value.len() + 2).sum();
    let mut packed = Vec::with_capacity(id.len() + bytes + 8);
    put_bytes(&mut packed, id);
    for value in values {
        put_bytes(&mut packed, value);
    }
    packed
}

/// A message whose packed bytes are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedMessage<'a> {
    packed: &'a [u8],
}

impl<'a> PackedMessage<'a> {
    /// The message, if the bytes are one.
    pub fn read(packed: &'a [u8]) -> Result<Self, Corrupt> {
        let mut reader = Reader::new(packed);
        reader.bytes(1, MAX_MESSAGE_ID_BYTES)?;
        let (mut count, mut bytes) = (0, 0);
        while !reader.is_empty() {
            bytes += reader.bytes(0, MAX_MESSAGE_BYTES)?.len();
            count += 1;
        }
        if count == 0 || count % 2 != 0 || bytes > MAX_MESSAGE_BYTES {
            return Err(Corrupt);
        }
        Ok(Self { packed })
    }

    /// The packed bytes.
    pub fn packed(self) -> &'a [u8] {
        self.packed
    }

    /// The id.
    pub fn id(self) -> &'a [u8] {
        self.strings().next().unwrap_or_default()
    }

    /// The fields and values by turns.
    pub fn values(self) -> impl Iterator<Item = &'a [u8]> {
        self.strings().skip(1)
    }

    /// The bytes of the id, the fields and the values.
    pub fn payload_bytes(self) -> u64 {
        self.strings().map(|string| string.len() as u64).sum()
    }

    fn strings(self) -> impl Iterator<Item = &'a [u8]> {
        let mut reader = Reader::new(self.packed);
        std::iter::from_fn(move || reader.bytes(0, MAX_MESSAGE_BYTES).ok())
    }
}

/// A message in a queue.
#[derive(Debug, Clone)]
pub struct QueuedMessage {
    packed: Box<[u8]>,
    /// When it is due (Unix ms).
    pub due: u64,
    /// Its number in the order of arrival.
    pub arrival: u64,
    /// Its index in the heap of the queue.
    pub(super) position: u32,
}

impl QueuedMessage {
    /// A copy of a message for a queue.
    pub(super) fn new(message: PackedMessage<'_>, due: u64, arrival: u64) -> Self {
        Self {
            packed: message.packed.into(),
            due,
            arrival,
            position: 0,
        }
    }

    /// The message itself.
    pub fn message(&self) -> PackedMessage<'_> {
        PackedMessage {
            packed: &self.packed,
        }
    }

    /// The time until it is due in milliseconds; 0 if it is overdue.
    pub fn ms_left(&self, now: u64) -> u64 {
        self.due.saturating_sub(now)
    }

    /// The position of the message in the order of delivery.
    pub(super) fn rank(&self) -> (u64, u64) {
        (self.due, self.arrival)
    }

    /// The block of packed bytes, which may be moved and not changed.
    pub(super) fn block(&mut self) -> &mut Box<[u8]> {
        &mut self.packed
    }
}

impl HashEntry for QueuedMessage {
    fn key(&self) -> &[u8] {
        self.message().id()
    }

    fn heap(&self) -> usize {
        block_size(self.packed.len())
    }
}
