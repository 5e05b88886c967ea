//! The command table.

use super::commands;
use crate::server::entry::read_without_arguments;
use crate::server::services::command::Command;

/// The commands that belong to no family.
pub const TABLE: &[Command] = &[Command {
    name: "SLUICE.HOT",
    usage: "[family] [COUNT n | RESET]",
    summary: "Returns the keys with the most waits, refusals and bytes of each family, on this server.",
    complexity: "O(1)",
    arity: -1,
    flags: "readonly admin allow-loading allow-stale",
    categories: "read admin dangerous slow",
    keys: &[],
    run: read_without_arguments(commands::hot),
}];
