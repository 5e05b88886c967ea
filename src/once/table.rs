//! The command table of the family.

use super::commands;
use crate::server::entry::{apply, read, write};
use crate::server::services::command::{Command, ONE_KEY, ONE_KEY_READ};

/// The commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "ONCE.BEGIN",
        usage: "key LEASE ms [FINGERPRINT f] [BLOCK ms]",
        summary: "Begins work that is done once, or returns its result, or waits for it.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -4,
        flags: "write fast blocking",
        categories: "write fast blocking",
        keys: ONE_KEY,
        run: write(commands::begin),
    },
    Command {
        name: "ONCE.DONE",
        usage: "key token result PX ms",
        summary: "Stores the result of work for all callers.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -6,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(commands::done),
    },
    Command {
        name: "ONCE.FAIL",
        usage: "key token",
        summary: "Ends work without a result, so that the next caller begins it again.",
        complexity: "O(1)",
        arity: 3,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(commands::fail),
    },
    Command {
        name: "ONCE.INFO",
        usage: "key",
        summary: "Returns the state of work, its lease and its waiting clients.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(commands::info),
    },
    Command {
        name: "ONCE.APPLY",
        usage: "key effect [result]",
        summary: "Internal: what a master decided about work, for replicas and the AOF.",
        complexity: "O(1)",
        arity: -3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(commands::apply_effect),
    },
];
