//! The event streams of stocks: opening them, and the entries that announce changes.

use super::STATE;
use super::state::{Announcement, Op};
use crate::error::Error;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::stream::{EntryId, Stream};
use std::rc::Rc;

/// The strings that do not change from entry to entry of an event stream.
pub(super) struct EntryStrings {
    fields: [ServerString<'static>; 7],
    ops: [ServerString<'static>; 7],
    none: ServerString<'static>,
    one: ServerString<'static>,
}

impl Default for EntryStrings {
    fn default() -> Self {
        Self {
            fields: ["op", "sku", "order", "user", "qty", "available", "ver"]
                .map(|field| ServerString::new(field.as_bytes())),
            ops: [
                "add", "deduct", "reserve", "confirm", "cancel", "expire", "set",
            ]
            .map(|op| ServerString::new(op.as_bytes())),
            none: ServerString::new(b""),
            one: ServerString::new(b"1"),
        }
    }
}

/// The index in [`EntryStrings::ops`] of the entry for a new stock. The others are in the order of [`Op`].
pub(super) const SET: usize = Op::Expire as usize + 1;

/// Opens the event stream of the stock at `sku`. With `is_following`, this server repeats what a master did, so the stream is
/// used as it is.
pub(super) fn open_stream<'k>(
    ctx: Ctx<'k>,
    sku: &ServerString<'_>,
    key: &[u8],
    is_following: bool,
) -> Result<Stream<'k>, Error> {
    let last = STATE.get().stream_name.take();
    let same = last.filter(|name| name.bytes() == key);
    let name = same.unwrap_or_else(|| ServerString::new(key));
    Stream::open_of(ctx, sku, name, is_following)
}

/// Appends an entry with this id, or the next one.
pub(super) fn append(
    stream: &mut Stream<'_>,
    call: Option<&Call<'_>>,
    sku: &ServerString<'_>,
    op: usize,
    announcement: &Announcement<'_>,
    id: Option<EntryId>,
) -> Result<EntryId, Error> {
    let strings = Rc::clone(&STATE.get().entry_strings);
    let argument = |bytes: &[u8]| call.and_then(|call| call.argument(bytes));
    let make = |bytes: &[u8]| argument(bytes).unwrap_or_else(|| ServerString::new(bytes));
    let named = |bytes: &[u8]| (!bytes.is_empty()).then(|| make(bytes));
    let (order, user) = (named(announcement.order), named(announcement.user));
    let qty = (announcement.qty != 1).then(|| ServerString::number(announcement.qty));
    let available = ServerString::number(announcement.available as i64);
    let ver = ServerString::number(announcement.ver as i64);
    let none = &strings.none;
    let [
        op_name,
        sku_name,
        order_name,
        user_name,
        qty_name,
        available_name,
        ver_name,
    ] = &strings.fields;
    let pairs = [
        op_name,
        &strings.ops[op],
        sku_name,
        sku,
        order_name,
        order.as_ref().unwrap_or(none),
        user_name,
        user.as_ref().unwrap_or(none),
        qty_name,
        qty.as_ref().unwrap_or(&strings.one),
        available_name,
        &available,
        ver_name,
        &ver,
    ];
    stream.append(&pairs, id)
}
