//! Bloom filters: what their commands reply (`commands.rs`, `merge.rs`, `chunks.rs`), the rate of false positives
//! (`accuracy.rs`), limits of memory (`memory.rs`), who hears of a change (`events.rs`), and settings (`settings.rs`).

mod accuracy;
mod chunks;
mod commands;
mod events;
mod memory;
mod merge;
mod settings;

use crate::support::filter::{Kind, number};
use crate::support::{Lines, Raw, Value};

const MISSING: &str = "ERR not found";
const FULL: &str = "ERR non scaling filter is full";
const DIFFER: &str = "ERR filters differ in shape";
const CANNOT_EXPAND: &str = "ERR Nonscaling filters cannot expand";

/// The properties of a filter: capacity, layers, items and expansion (0: it does not scale).
#[track_caller]
fn terms(client: &mut Raw, key: &str) -> [i64; 4] {
    let info = client.must(&format!("BF.INFO {key}"));
    let expansion = match info.field("Expansion rate") {
        Value::Nil => 0,
        expansion => expansion.int(),
    };
    let number = |field: &str| info.field(field).int();
    [
        number("Capacity"),
        number("Number of filters"),
        number("Number of items inserted"),
        expansion,
    ]
}

#[track_caller]
fn size(client: &mut Raw, key: &str) -> i64 {
    number(client, Kind::Bloom, key, "Size")
}
