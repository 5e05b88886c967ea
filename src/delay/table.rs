//! The command table of delay queues, with the positions of the keys.

use super::commands::{add, apply_effects, cancel, get, info, range, set};
use crate::server::entry::{apply, read, write, write_keyed};
use crate::server::services::command::{
    Access, Command, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_READ,
};

/// The queue and its stream.
struct QueueAndStream;
impl Keys for QueueAndStream {
    const SPECS: &'static [KeySpec] = &[
        ONE_KEY[0],
        KeySpec {
            positions: KeyPositions::After(c"STREAM", 2),
            access: Access::Write,
        },
    ];
}

/// All commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "DELAY.SET",
        usage: "key STREAM stream [MAXLEN n]",
        summary: "Creates a delay queue, or sets the stream of one.",
        complexity: "O(1)",
        arity: -4,
        flags: "write deny-oom fast getkeys-api",
        categories: "write fast",
        keys: QueueAndStream::SPECS,
        run: write_keyed::<_, QueueAndStream>(set),
    },
    Command {
        name: "DELAY.ADD",
        usage: "key id (PX ms | PXAT unix-ms) [NX | XX] VALUES field value [field value ...]",
        summary: "Schedules a message, or replaces one that was not delivered.",
        complexity: "O(log M) with M messages of the queue",
        arity: -8,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(add),
    },
    Command {
        name: "DELAY.CANCEL",
        usage: "key id [id ...]",
        summary: "Removes messages that were not delivered.",
        complexity: "O(N log M) with N ids and M messages of the queue",
        arity: -3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(cancel),
    },
    Command {
        name: "DELAY.GET",
        usage: "key id",
        summary: "Returns the remaining time and the values of a message.",
        complexity: "O(N) with N fields",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(get),
    },
    Command {
        name: "DELAY.RANGE",
        usage: "key count",
        summary: "Returns the messages that are delivered next.",
        complexity: "O(N log N) with N returned messages",
        arity: 3,
        flags: "readonly",
        categories: "read slow",
        keys: ONE_KEY_READ,
        run: read(range),
    },
    Command {
        name: "DELAY.INFO",
        usage: "key",
        summary: "Returns the counts, the next due time and the stream of a delay queue.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(info),
    },
    Command {
        name: "DELAY.APPLY",
        usage: "key effects",
        summary: "Internal: what a master decided about a delay queue, for replicas and the AOF.",
        complexity: "O(N log M) with N effects and M messages of the queue",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effects),
    },
];
