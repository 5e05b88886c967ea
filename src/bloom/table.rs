//! The command table of Bloom filters, with the positions of the keys.

use super::commands::{add, card, info, insert, load, madd, merge, reserve};
use super::state::Bloom;
use crate::filter::commands::{apply_effects, exists, mexists, scandump};
use crate::server::entry::{apply, read, read_after_key, write, write_after_key, write_keyed};
use crate::server::services::command::{
    Access, Command, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_READ,
};

/// The filter, and after `LIKE` another one.
struct KeyAndOther;
impl Keys for KeyAndOther {
    const SPECS: &'static [KeySpec] = &[
        ONE_KEY[0],
        KeySpec {
            positions: KeyPositions::After(c"LIKE", 2),
            access: Access::Read,
        },
    ];
}

/// The destination, and the sources that are merged into it.
struct KeyAndCounted;
impl Keys for KeyAndCounted {
    const SPECS: &'static [KeySpec] = &[
        ONE_KEY[0],
        KeySpec {
            positions: KeyPositions::Counted { at: 2, step: 1 },
            access: Access::Read,
        },
    ];
}

/// All commands of Bloom filters.
pub const TABLE: &[Command] = &[
    Command {
        name: "BF.RESERVE",
        usage: "key (error capacity [EXPANSION expansion] [NONSCALING] | LIKE other)",
        summary: "Creates an empty Bloom filter with a false positive rate and a capacity.",
        complexity: "O(1)",
        arity: -4,
        flags: "write deny-oom fast getkeys-api",
        categories: "write fast bloom",
        keys: KeyAndOther::SPECS,
        run: write_keyed::<_, KeyAndOther>(reserve),
    },
    Command {
        name: "BF.ADD",
        usage: "key item",
        summary: "Adds an item to a Bloom filter; creates the filter if it does not exist.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "write deny-oom fast",
        categories: "write fast bloom",
        keys: ONE_KEY,
        run: write_after_key(add),
    },
    Command {
        name: "BF.MADD",
        usage: "key item [item ...]",
        summary: "Adds items to a Bloom filter; creates the filter if it does not exist.",
        complexity: "O(N L) with N items and L layers",
        arity: -3,
        flags: "write deny-oom",
        categories: "write slow bloom",
        keys: ONE_KEY,
        run: write(madd),
    },
    Command {
        name: "BF.INSERT",
        usage: "key [CAPACITY capacity] [ERROR error] [EXPANSION expansion] [NOCREATE] [NONSCALING] ITEMS item [item ...]",
        summary: "Adds items to a Bloom filter; creates the filter with these properties if it does not exist.",
        complexity: "O(N L) with N items and L layers",
        arity: -4,
        flags: "write deny-oom",
        categories: "write slow bloom",
        keys: ONE_KEY,
        run: write(insert),
    },
    Command {
        name: "BF.EXISTS",
        usage: "key item",
        summary: "Returns whether an item was added to a Bloom filter: certainly not, or probably.",
        complexity: "O(L) with L layers",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast bloom",
        keys: ONE_KEY_READ,
        run: read_after_key(exists::<Bloom>),
    },
    Command {
        name: "BF.MEXISTS",
        usage: "key item [item ...]",
        summary: "Returns for each item whether it was added to a Bloom filter: certainly not, or probably.",
        complexity: "O(N L) with N items and L layers",
        arity: -3,
        flags: "readonly",
        categories: "read slow bloom",
        keys: ONE_KEY_READ,
        run: read_after_key(mexists::<Bloom>),
    },
    Command {
        name: "BF.CARD",
        usage: "key",
        summary: "Returns the number of items that were added to a Bloom filter.",
        complexity: "O(L) with L layers",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast bloom",
        keys: ONE_KEY_READ,
        run: read(card),
    },
    Command {
        name: "BF.INFO",
        usage: "key [CAPACITY | SIZE | FILTERS | ITEMS | EXPANSION]",
        summary: "Returns the properties of a Bloom filter.",
        complexity: "O(L) with L layers",
        arity: -2,
        flags: "readonly fast",
        categories: "read fast bloom",
        keys: ONE_KEY_READ,
        run: read(info),
    },
    Command {
        name: "BF.SCANDUMP",
        usage: "key iterator",
        summary: "Dumps a Bloom filter in chunks; returns the next iterator and a chunk.",
        complexity: "O(B) with B bytes of the filter",
        arity: 3,
        flags: "readonly",
        categories: "read slow bloom",
        keys: ONE_KEY_READ,
        run: read(scandump::<Bloom>),
    },
    Command {
        name: "BF.LOADCHUNK",
        usage: "key iterator data",
        summary: "Loads a Bloom filter from the chunks of BF.SCANDUMP.",
        complexity: "O(B) with B bytes of the chunk",
        arity: 4,
        flags: "write deny-oom",
        categories: "write slow bloom",
        keys: ONE_KEY,
        run: write(load),
    },
    Command {
        name: "BF.MERGE",
        usage: "destination numkeys key [key ...]",
        summary: "Adds all items of Bloom filters to the destination; all filters must have the same shape and seed.",
        complexity: "O(K B) with K filters of B bytes",
        arity: -4,
        flags: "write deny-oom getkeys-api",
        categories: "write slow bloom",
        keys: KeyAndCounted::SPECS,
        run: write_keyed::<_, KeyAndCounted>(merge),
    },
    Command {
        name: "BF.APPLY",
        usage: "key effects",
        summary: "Internal: applies a master's changes of a Bloom filter, on replicas and from the AOF.",
        complexity: "O(N) with N effects",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effects::<Bloom>),
    },
];
