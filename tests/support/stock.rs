//! What the tests of stocks share: looks at their numbers, their orders and their event streams.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::{Lines, Raw, SOON, Value};

/// The same order id, and something else.
pub const CONFLICT: &str = "CONFLICT order id was used with other arguments";
/// The stock has a limit for each user.
pub const USER_REQUIRED: &str = "ERR USER is required by this stock";
/// The server's own error.
pub const EXHAUSTED: &str =
    "ERR The stream has exhausted the last possible ID, unable to add more items";

/// 2^53 - 1: the largest quantity.
pub const MOST: &str = "9007199254740991";

/// There is less than that.
pub const SOLD_OUT: i64 = -1;
/// The user has had as many as one may have.
pub const OVER_LIMIT: i64 = -2;
/// The order is over.
pub const CLOSED: i64 = -3;
/// There is no such order.
pub const UNKNOWN: i64 = -4;

/// What is available, reserved and sold of a stock; panics unless that is its total.
#[track_caller]
pub fn counts(client: &mut Raw, key: &str) -> [i64; 3] {
    let info = client.must(&format!("STOCK.INFO {key}"));
    let counts = ["available", "reserved", "sold"].map(|field| info.field(field).int());
    assert_eq!(
        info.field("total").int(),
        counts.iter().sum::<i64>(),
        "{info:?}"
    );
    counts
}

/// A number that `STOCK.INFO` tells.
#[track_caller]
pub fn number(client: &mut Raw, key: &str, field: &str) -> i64 {
    client.must(&format!("STOCK.INFO {key}")).field(field).int()
}

/// What became of an order; `none` if it is not known.
#[track_caller]
pub fn state(client: &mut Raw, key: &str, id: &str) -> String {
    let order = client.must(&format!("STOCK.ORDER {key} {id}"));
    if order.is_nil() {
        return "none".into();
    }
    order.field("state").text().into()
}

/// Waits until an order is in this state.
#[track_caller]
pub fn await_state(client: &mut Raw, key: &str, id: &str, expected: &str) {
    let mut last = String::new();
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        last = state(client, key, id);
        if last == expected {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    panic!("the order {id} of {key} is {last}, not {expected}");
}

/// An entry of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its id in the stream: milliseconds and number.
    pub id: (u64, u64),
    /// What happened.
    pub op: String,
    /// The key of the stock.
    pub sku: Vec<u8>,
    /// The order id, or nothing.
    pub order: Vec<u8>,
    pub user: Vec<u8>,
    /// How many pieces.
    pub qty: i64,
    /// What was available afterwards.
    pub available: i64,
    /// The stock's version afterwards.
    pub ver: i64,
}

impl Entry {
    /// Reads an entry of `XRANGE` or `XREADGROUP`; panics unless it has exactly the fields of the contract.
    #[track_caller]
    pub fn read(entry: &Value) -> Self {
        let (id, fields) = (entry.array()[0].text(), &entry.array()[1]);
        let names: Vec<_> = fields
            .fields()
            .iter()
            .map(|(name, _)| name.text())
            .collect();
        assert_eq!(
            names,
            ["op", "sku", "order", "user", "qty", "available", "ver"]
        );
        let number = |name: &str| fields.field(name).text().parse().expect("a number");
        let (ms, seq) = id.split_once('-').expect("an id has two parts");
        Self {
            id: (ms.parse().expect("an id"), seq.parse().expect("an id")),
            op: fields.field("op").text().into(),
            sku: fields.field("sku").bytes().into(),
            order: fields.field("order").bytes().into(),
            user: fields.field("user").bytes().into(),
            qty: number("qty"),
            available: number("available"),
            ver: number("ver"),
        }
    }

    /// `op sku order user qty available ver`, with a dash for what is empty.
    pub fn line(&self) -> String {
        let text = |bytes: &[u8]| match bytes {
            b"" => "-".into(),
            bytes => bytes.escape_ascii().to_string(),
        };
        let [sku, order, user] = [&self.sku, &self.order, &self.user].map(|bytes| text(bytes));
        let Self {
            op,
            qty,
            available,
            ver,
            ..
        } = self;
        format!("{op} {sku} {order} {user} {qty} {available} {ver}")
    }
}

/// All entries of an event stream; panics unless their ids rise.
#[track_caller]
pub fn entries(client: &mut Raw, stream: &str) -> Vec<Entry> {
    let reply = client.must(&format!("XRANGE {stream} - +"));
    let entries: Vec<_> = reply.array().iter().map(Entry::read).collect();
    assert!(entries.is_sorted_by(|one, next| one.id < next.id));
    entries
}

/// The same as lines: see [`Entry::line`].
#[track_caller]
pub fn told(client: &mut Raw, stream: &str) -> Vec<String> {
    entries(client, stream).iter().map(Entry::line).collect()
}

/// What a worker makes of a stream: what is available, reserved and sold of each stock, and its last version.
/// Panics unless every stock's versions follow each other and every entry says what is available then.
#[track_caller]
pub fn replay(entries: &[Entry]) -> BTreeMap<Vec<u8>, ([i64; 3], i64)> {
    let mut stocks: BTreeMap<Vec<u8>, ([i64; 3], i64)> = BTreeMap::new();
    // The orders that are reserved and not sold, with their stocks.
    let mut reserved: BTreeMap<(Vec<u8>, Vec<u8>), i64> = BTreeMap::new();
    for entry in entries {
        let order = (entry.sku.clone(), entry.order.clone());
        let (counts, ver) = stocks.entry(entry.sku.clone()).or_default();
        assert_eq!(entry.ver, *ver + 1, "a gap before {entry:?}");
        *ver = entry.ver;
        let [available, held, sold] = &mut *counts;
        match entry.op.as_str() {
            "set" => {
                // What was sold before it became a stock counts too: see STOCK.IMPORT.
                *counts = [entry.available, 0, entry.qty - entry.available];
                reserved.retain(|(sku, _), _| *sku != entry.sku);
            }
            "add" => *available += entry.qty,
            "deduct" => {
                *available -= entry.qty;
                *sold += entry.qty;
            }
            "reserve" => {
                *available -= entry.qty;
                *held += entry.qty;
                assert_eq!(reserved.insert(order, entry.qty), None, "{entry:?}");
            }
            "confirm" => {
                assert_eq!(reserved.remove(&order), Some(entry.qty), "{entry:?}");
                *held -= entry.qty;
                *sold += entry.qty;
            }
            "expire" => {
                assert_eq!(reserved.remove(&order), Some(entry.qty), "{entry:?}");
                *held -= entry.qty;
                *available += entry.qty;
            }
            "cancel" => {
                let from = if reserved.remove(&order).is_some() {
                    held
                } else {
                    sold
                };
                *from -= entry.qty;
                *available += entry.qty;
            }
            other => panic!("{other} is not an operation: {entry:?}"),
        }
        let available = stocks[&entry.sku].0[0];
        assert_eq!(entry.available, available, "{entry:?}");
    }
    stocks
}

/// Panics unless the stream, from its first entry on, tells exactly what `STOCK.INFO` tells of each of these stocks.
#[track_caller]
pub fn assert_stream_tells_all(client: &mut Raw, stream: &str, keys: &[&str]) {
    // In one moment, so that nothing happens in between.
    let mut lines = vec![format!("XRANGE {stream} - +")];
    lines.extend(keys.iter().map(|key| format!("STOCK.INFO {key}")));
    let replies = client.transact(lines);
    let entries: Vec<_> = replies[0].array().iter().map(Entry::read).collect();
    let replayed = replay(&entries);
    assert_eq!(replayed.len(), keys.len(), "{replayed:?}");
    for (key, info) in keys.iter().zip(&replies[1..]) {
        let number = |field: &str| info.field(field).int();
        let counts = ["available", "reserved", "sold"].map(number);
        let expected = (counts, number("ver"));
        assert_eq!(replayed.get(key.as_bytes()), Some(&expected), "{key}");
    }
}
