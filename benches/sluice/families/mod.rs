//! All rows, by family: commands of Sluice, and the built-in commands and Lua scripts to compare them with.
//!
//! To add a family, add a file for it and name it in [`FAMILIES`].

mod cache;
mod delay;
mod filter;
mod floor;
mod lock;
mod once;
mod rate;
mod stock;

use crate::row::{Family, Reply};

/// In the order of the page.
pub(crate) static FAMILIES: [&Family; 8] = [
    &floor::FAMILY,
    &lock::FAMILY,
    &stock::FAMILY,
    &filter::FAMILY,
    &cache::FAMILY,
    &rate::FAMILY,
    &once::FAMILY,
    &delay::FAMILY,
];

const OK: Reply = Reply::Text("OK");

/// The numbers of keys and so on for which the growth is measured.
const SIZES: &[u64] = &[1, 1_000, 1_000_000];
