//! The command table of the family.

use super::commands;
use super::options::FETCH_OPTIONS;
use crate::server::entry::{apply, read, read_after_deletions, read_after_deletions_keyed, write};
use crate::server::services::command::{
    Access, Command, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_READ,
};

/// A key, and the filter of `GUARD`.
struct KeyAndFilter;
impl Keys for KeyAndFilter {
    const SPECS: &'static [KeySpec] = &[
        KeySpec {
            positions: KeyPositions::At(1),
            access: Access::Read,
        },
        KeySpec {
            positions: KeyPositions::AfterOption {
                keyword: c"GUARD",
                from: 2,
                options: FETCH_OPTIONS,
            },
            access: Access::Read,
        },
    ];
}

/// The commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "CACHE.GET",
        usage: "key",
        summary: "Reads a cached value, fresh or stale.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(commands::get),
    },
    Command {
        name: "CACHE.FETCH",
        usage: "key LEASE ms [EARLY ms | BETA f] [SLIDE ms] [GUARD filter item] [BLOCK ms]",
        summary: "Reads a cached value, and tells the caller what to do: use it, rebuild it, or wait.",
        complexity: "O(1)",
        arity: -4,
        flags: "readonly fast blocking getkeys-api",
        categories: "read fast blocking",
        keys: KeyAndFilter::SPECS,
        run: read_after_deletions_keyed::<_, KeyAndFilter>(commands::fetch),
    },
    Command {
        name: "CACHE.SET",
        usage: "key value PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches a value; with a token only if nothing has happened to the key since its lease.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -5,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(commands::set),
    },
    Command {
        name: "CACHE.SETNULL",
        usage: "key PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches that there is no value.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(commands::setnull),
    },
    Command {
        name: "CACHE.DEL",
        usage: "key [STALE ms] [GRACE ms] [VER version]",
        summary: "Invalidates a cached value, and voids every lease to rebuild it.",
        complexity: "O(1)",
        arity: -2,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY,
        run: write(commands::del),
    },
    Command {
        name: "CACHE.FAIL",
        usage: "key token [BACKOFF ms]",
        summary: "Gives a lease back because the loader failed; nobody else is to try for a while.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -3,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read_after_deletions(commands::fail),
    },
    Command {
        name: "CACHE.INFO",
        usage: "key",
        summary: "Shows what is known of a cached value, of its lease and of who waits for it.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(commands::info),
    },
    Command {
        name: "CACHE.APPLY",
        usage: "key effect [value]",
        summary: "Internal: what a master decided about a cached value, for replicas and the AOF.",
        complexity: "O(1)",
        arity: -3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(commands::apply_effect),
    },
];
