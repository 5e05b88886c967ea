//! One order, packed into few bytes: a shop remembers millions of orders.
//!
//! ```text
//! record = header id [user] [qty] created [since] [reply] [px]
//! header = status + flags; USER: user is present; MOVED: since is present; ONE: qty is 1 and absent
//! ```
//!
//! [`crate::codec`] defines integers and byte strings. `qty` is zigzag-encoded, times are Unix milliseconds. `reply` and `px` are
//! present until the order is closed, so that a repeated request receives the first reply. Memory, RDB and AOF contain the same
//! bytes.

use super::{MAX_ID_BYTES, MAX_QTY};
use crate::codec::{Corrupt, Reader, put_bytes, put_uint, uint_len};
use crate::linear_hash::HashEntry;
use crate::memory::block_size;
use crate::request::TEN_YEARS_MS;

/// The status of an order, and the command that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `RESERVE`: neither confirmed nor cancelled yet.
    Reserved,
    /// `RESERVE`, confirmed.
    Confirmed,
    /// `RESERVE`, cancelled before or after it was confirmed.
    Released,
    /// `RESERVE`, expired.
    Expired,
    /// `DEDUCT`.
    Deducted,
    /// `DEDUCT`, cancelled.
    Refunded,
    /// `ADD`.
    Added,
    /// `CANCEL` of an unknown order.
    CancelledUnknown,
}

const STATUSES: [Status; 8] = [
    Status::Reserved,
    Status::Confirmed,
    Status::Released,
    Status::Expired,
    Status::Deducted,
    Status::Refunded,
    Status::Added,
    Status::CancelledUnknown,
];

impl Status {
    /// Whether the quantity of the order is sold.
    pub fn is_sold(self) -> bool {
        matches!(self, Status::Confirmed | Status::Deducted)
    }

    /// Whether a client cancelled the order.
    pub fn is_cancelled(self) -> bool {
        matches!(
            self,
            Status::Released | Status::Refunded | Status::CancelledUnknown
        )
    }

    /// Whether the order was cancelled or expired. Such an order never changes again.
    pub fn is_closed(self) -> bool {
        self.is_cancelled() || self == Status::Expired
    }

    /// The name in the reply of `STOCK.ORDER`.
    pub fn name(self) -> &'static str {
        match self {
            Status::Reserved => "reserved",
            Status::Confirmed | Status::Deducted => "sold",
            Status::Released | Status::Refunded | Status::CancelledUnknown => "cancelled",
            Status::Expired => "expired",
            Status::Added => "added",
        }
    }

    fn keeps_request(self) -> bool {
        !self.is_closed()
    }

    fn keeps_px(self) -> bool {
        matches!(self, Status::Reserved | Status::Confirmed)
    }
}

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order<'a> {
    /// The id, 1 to 512 bytes.
    pub id: &'a [u8],
    /// The user, at most 512 bytes; empty if the request named none.
    pub user: &'a [u8],
    /// The status.
    pub status: Status,
    /// The quantity; of an `ADD`, the delta.
    pub qty: i64,
    /// The time of the first request (Unix ms).
    pub created: u64,
    /// The time of the last change of the status (Unix ms).
    pub since: u64,
    /// The reply to the first request; 0 when the order is closed.
    pub reply: u64,
    /// The lifetime of a reservation, in milliseconds; 0 for other orders, and when the order is closed.
    pub px: u64,
}

impl Order<'_> {
    /// The deadline (Unix ms): the end of a reservation, or the time when a final order can be forgotten.
    pub fn due(&self, retain: u64) -> u64 {
        match self.status {
            Status::Reserved => self.created + self.px,
            _ => self.since + retain,
        }
    }
}

const STATUS: u8 = 7;
const USER: u8 = 8;
const MOVED: u8 = 16;
const STALE: u8 = 32;
const ONE: u8 = 64;

/// A packed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedOrder(Box<[u8]>);

impl PackedOrder {
    /// Packs an order.
    pub fn pack(order: &Order<'_>) -> Self {
        let mut out = Vec::with_capacity(packed_len(order));
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let (has_user, moved) = (!order.user.is_empty(), order.since != order.created);
        let one = order.qty == 1;
        let flags = flag(has_user, USER) | flag(moved, MOVED) | flag(one, ONE);
        out.push(order.status as u8 | flags);
        put_bytes(&mut out, order.id);
        if has_user {
            put_bytes(&mut out, order.user);
        }
        if !one {
            put_uint(&mut out, zigzag(order.qty));
        }
        put_uint(&mut out, order.created);
        if moved {
            put_uint(&mut out, order.since);
        }
        if order.status.keeps_request() {
            put_uint(&mut out, order.reply);
        }
        if order.status.keeps_px() {
            put_uint(&mut out, order.px);
        }
        debug_assert_eq!(out.len(), out.capacity());
        Self(out.into_boxed_slice())
    }

    /// The order.
    pub fn order(&self) -> Order<'_> {
        let order = read(&mut Reader::new(&self.0));
        order.expect("a record is what was packed")
    }

    /// The packed bytes, for defragmentation.
    pub fn bytes_mut(&mut self) -> &mut Box<[u8]> {
        &mut self.0
    }

    /// Whether the queue of final orders still contains an older entry of this order, which does not count.
    pub fn is_stale(&self) -> bool {
        self.0[0] & STALE != 0
    }

    /// Sets or clears this mark.
    pub fn set_stale(&mut self, stale: bool) {
        self.0[0] = self.0[0] & !STALE | if stale { STALE } else { 0 };
    }
}

impl HashEntry for PackedOrder {
    fn key(&self) -> &[u8] {
        let mut reader = Reader::new(&self.0[1..]);
        reader
            .bytes(1, MAX_ID_BYTES)
            .expect("a record is what was packed")
    }

    fn heap(&self) -> usize {
        block_size(self.0.len())
    }
}

/// The bytes of a packed order, for a single allocation of the right size.
fn packed_len(order: &Order<'_>) -> usize {
    let bytes_len = |bytes: &[u8]| uint_len(bytes.len() as u64) + bytes.len();
    let when = |is: bool, length: usize| if is { length } else { 0 };
    1 + bytes_len(order.id)
        + when(!order.user.is_empty(), bytes_len(order.user))
        + when(order.qty != 1, uint_len(zigzag(order.qty)))
        + uint_len(order.created)
        + when(order.since != order.created, uint_len(order.since))
        + when(order.status.keeps_request(), uint_len(order.reply))
        + when(order.status.keeps_px(), uint_len(order.px))
}

/// Appends an order.
pub fn put(out: &mut Vec<u8>, order: &Order<'_>) {
    out.extend_from_slice(&PackedOrder::pack(order).0);
}

/// Reads an order that could have come to be by commands.
pub fn read<'a>(reader: &mut Reader<'a>) -> Result<Order<'a>, Corrupt> {
    let header = reader.byte()?;
    if header & !(STATUS | USER | MOVED | STALE | ONE) != 0 {
        return Err(Corrupt);
    }
    let status = STATUSES[usize::from(header & STATUS)];
    let id = reader.bytes(1, MAX_ID_BYTES)?;
    let user = match header & USER {
        0 => &[],
        _ => reader.bytes(1, MAX_ID_BYTES)?,
    };
    let qty = match header & ONE {
        0 => unzigzag(reader.uint(0, 2 * MAX_QTY)?),
        _ => 1,
    };
    let created = reader.uint(0, MAX_QTY)?;
    let since = match header & MOVED {
        0 => created,
        _ => reader.uint(0, MAX_QTY)?,
    };
    let reply = match status.keeps_request() {
        true => reader.uint(0, MAX_QTY)?,
        false => 0,
    };
    let px = match status.keeps_px() {
        true => reader.uint(1, TEN_YEARS_MS as u64)?,
        false => 0,
    };
    let fits = match status {
        Status::Added => true,
        Status::CancelledUnknown => qty == 0,
        _ => qty > 0,
    };
    if !fits || created + px > MAX_QTY {
        return Err(Corrupt); // STOCK.ORDER returns the sum, which must be below 2^53
    }
    Ok(Order {
        id,
        user,
        status,
        qty,
        created,
        since,
        reply,
        px,
    })
}

/// Maps small numbers of either sign to small unsigned numbers, as in Protocol Buffers: 0, -1, 1, -2 to 0, 1, 2, 3.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The reverse of [`zigzag`].
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_order_is_read_back_as_packed(
            id in proptest::collection::vec(any::<u8>(), 1..=512),
            user in proptest::collection::vec(any::<u8>(), 0..40),
            status in 0..8usize,
            qty in prop_oneof![Just(1), 1..=MAX_QTY as i64],
            numbers in [0..=MAX_QTY, 0..=MAX_QTY, 0..=MAX_QTY],
            px in 1..=TEN_YEARS_MS as u64,
        ) {
            let status = STATUSES[status];
            let [created, since, reply] = numbers;
            let order = Order {
                id: &id,
                user: &user,
                status,
                qty: match status { Status::CancelledUnknown => 0, Status::Added => -qty, _ => qty },
                created: created.min(MAX_QTY - px),
                since,
                reply: if status.keeps_request() { reply } else { 0 },
                px: if status.keeps_px() { px } else { 0 },
            };
            let mut record = PackedOrder::pack(&order);
            prop_assert_eq!(record.order(), order);
            prop_assert_eq!(record.key(), &id[..]);
            record.set_stale(true);
            prop_assert!(record.is_stale());
            prop_assert_eq!(record.order(), order);
            record.set_stale(false);
            prop_assert_eq!(&record, &PackedOrder::pack(&order));
        }

        #[test]
        fn invalid_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = read(&mut Reader::new(&bytes));
        }

        #[test]
        fn unzigzag_reverses_zigzag(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn a_reservation_ends_before_2_to_the_53rd() {
        let reserved = |created| Order {
            id: b"o",
            user: &[],
            status: Status::Reserved,
            qty: 1,
            created,
            since: created,
            reply: 1,
            px: 1000,
        };
        for (created, is_valid) in [(MAX_QTY - 1000, true), (MAX_QTY - 999, false)] {
            let mut record = Vec::new();
            put(&mut record, &reserved(created));
            assert_eq!(read(&mut Reader::new(&record)).is_ok(), is_valid);
        }
    }

    #[test]
    fn an_order_with_an_id_of_16_bytes_takes_32() {
        let now = 1_800_000_000_000;
        let reserved = Order {
            id: &[b'o'; 16],
            user: &[],
            status: Status::Reserved,
            qty: 1,
            created: now,
            since: now,
            reply: 1_000_000,
            px: 900_000,
        };
        assert_eq!(PackedOrder::pack(&reserved).heap(), 32);
        let deducted = Order {
            status: Status::Deducted,
            px: 0,
            ..reserved
        };
        assert_eq!(PackedOrder::pack(&deducted).heap(), 32);
    }
}
