//! The command table of the family.

use super::commands;
use super::options::FETCH_OPTIONS;
use crate::server::entry::{apply, read, read_after_deletions, read_after_deletions_keyed, write};
use crate::server::services::command::{
    Access, Command, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_READ, ONE_KEY_WRITE,
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
        summary: "Returns a cached value, fresh or stale.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(commands::get),
    },
    Command {
        name: "CACHE.FETCH",
        usage: "key LEASE ms [EARLY ms | BETA f] [SLIDE ms] [GUARD filter item] [BREAKER name failures open-ms] [BLOCK ms]",
        summary: "Returns a cached value and a state: use the value, rebuild it, or wait.",
        complexity: "O(1); O(L) with GUARD and L layers of the filter",
        arity: -4,
        flags: "readonly fast blocking getkeys-api",
        categories: "read fast blocking",
        keys: KeyAndFilter::SPECS,
        run: read_after_deletions_keyed::<_, KeyAndFilter>(commands::fetch),
    },
    Command {
        name: "CACHE.SET",
        usage: "key value PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches a value; with a token, only if that is the current lease of the key.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -5,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY_WRITE,
        run: write(commands::set),
    },
    Command {
        name: "CACHE.SETNULL",
        usage: "key PX ms [STALE ms] [JITTER percent] [TOKEN token] [VER version]",
        summary: "Caches a negative entry: the database has no value.",
        complexity: "O(1), and O(1) for each waiting client that it answers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow",
        keys: ONE_KEY_WRITE,
        run: write(commands::setnull),
    },
    Command {
        name: "CACHE.DEL",
        usage: "key [STALE ms] [GRACE ms] [VER version]",
        summary: "Invalidates a cached value and revokes the lease to rebuild it.",
        complexity: "O(1)",
        arity: -2,
        flags: "write",
        categories: "write slow",
        keys: ONE_KEY_WRITE,
        run: write(commands::del),
    },
    Command {
        name: "CACHE.FAIL",
        usage: "key token [BACKOFF ms]",
        summary: "Returns a lease because the loader failed. With BACKOFF, no caller gets a lease for a time.",
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
        summary: "Returns the state of a cached value, of its lease and of its waiting clients.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(commands::info),
    },
    Command {
        name: "CACHE.BREAKER",
        usage: "name [RESET]",
        summary: "Returns the state of the breaker of a loader. With RESET, closes it.",
        complexity: "O(1)",
        arity: -2,
        flags: "fast",
        categories: "fast",
        keys: &[],
        run: read_after_deletions(commands::breaker),
    },
    Command {
        name: "CACHE.APPLY",
        usage: "key effect [value]",
        summary: "Internal: applies a master's changes of a cached value, on replicas and from the AOF.",
        complexity: "O(1)",
        arity: -3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(commands::apply_effect),
    },
];
