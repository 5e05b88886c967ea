//! The command table of the family.

use super::commands;
use crate::server::entry::{apply, write, write_after_key, write_keyed};
use crate::server::services::command::{
    Access, Command, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_WRITE,
};

/// `numkeys key burst count period-ms [key burst count period-ms ...]`
struct CountedLimits;
impl Keys for CountedLimits {
    const SPECS: &'static [KeySpec] = &[KeySpec {
        positions: KeyPositions::Counted { at: 1, step: 4 },
        access: Access::Update,
    }];
}

/// The commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "RATE.GCRA",
        usage: "key burst count period-ms [COST n] [PEEK] [AHEAD ms]",
        summary: "Checks a token bucket: count requests in each period, and a burst more at once.",
        complexity: "O(1)",
        arity: -5,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write_after_key(commands::gcra),
    },
    Command {
        name: "RATE.WINDOW",
        usage: "key limit window-ms [COST n] [PEEK] [SLIDING | EXACT]",
        summary: "Checks a fixed, sliding or exact window: limit requests in each window.",
        complexity: "O(1); O(log N) with EXACT and N calls in the window",
        arity: -4,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write_after_key(commands::window),
    },
    Command {
        name: "RATE.TIERS",
        usage: "key numtiers burst count period-ms [burst count period-ms ...] [COST n] [PEEK] [AHEAD ms]",
        summary: "Checks several token buckets at once; counts the request in all of them or in none.",
        complexity: "O(T) with T tiers",
        arity: -6,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(commands::tiers),
    },
    Command {
        name: "RATE.MGCRA",
        usage: "numkeys key burst count period-ms [key burst count period-ms ...] [COST n] [PEEK] [AHEAD ms]",
        summary: "Checks the token buckets of several keys at once; counts the request in all of them or in none.",
        complexity: "O(K) with K keys",
        arity: -6,
        flags: "write getkeys-api",
        categories: "write slow",
        keys: CountedLimits::SPECS,
        run: write_keyed::<_, CountedLimits>(commands::mgcra),
    },
    Command {
        name: "RATE.CHARGE",
        usage: "key n",
        summary: "Adds a cost to a limit that is known only after the request.",
        complexity: "O(1); O(T) with T tiers",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY_WRITE,
        run: write(commands::charge),
    },
    Command {
        name: "RATE.REFUND",
        usage: "key n",
        summary: "Returns the cost of requests to a limit.",
        complexity: "O(1); O(T) with T tiers",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY_WRITE,
        run: write(commands::refund),
    },
    Command {
        name: "RATE.ONCE",
        usage: "key PX ms",
        summary: "Returns 1 to the first caller within a time, and 0 to all other callers.",
        complexity: "O(1)",
        arity: -4,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(commands::once),
    },
    Command {
        name: "CL.THROTTLE",
        usage: "key max_burst count period-s [quantity]",
        summary: "Checks a token bucket with the arguments and the reply of redis-cell, in seconds.",
        complexity: "O(1)",
        arity: -5,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(commands::throttle),
    },
    Command {
        name: "RATE.APPLY",
        usage: "key effect",
        summary: "Internal: applies a master's changes of a limit, on replicas and from the AOF.",
        complexity: "O(1)",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(commands::apply_effect),
    },
];
