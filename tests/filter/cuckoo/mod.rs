//! Cuckoo filters: what their commands reply (`commands.rs`, `chunks.rs`), that they hold what was reserved (`accuracy.rs`),
//! limits of memory (`memory.rs`), and who hears of a change (`events.rs`).

mod accuracy;
mod chunks;
mod commands;
mod events;
mod memory;

use crate::support::filter::{Kind, each, number};
use crate::support::{Lines, Raw};

const MISSING: &str = "ERR Not found";
const FULL: &str = "ERR Filter is full";
const NO_MORE_LAYERS: &str = "ERR Maximum expansions reached";

/// A number that `CF.INFO` tells.
#[track_caller]
fn info(client: &mut Raw, key: &str, field: &str) -> i64 {
    number(client, Kind::Cuckoo, key, field)
}

/// Layers, items, and how many were deleted.
#[track_caller]
fn counts(client: &mut Raw, key: &str) -> [i64; 3] {
    let info = client.must(&format!("CF.INFO {key}"));
    let number = |field: &str| info.field(field).int();
    [
        number("Number of filters"),
        number("Number of items inserted"),
        number("Number of items deleted"),
    ]
}

#[track_caller]
fn count_added(client: &mut Raw, key: &str, range: std::ops::Range<u64>) -> i64 {
    let mut added = 0;
    each(
        client,
        &format!("CF.INSERT {key} ITEMS"),
        range,
        |_, reply| {
            added += i64::from(*reply == 1);
        },
    );
    added
}
