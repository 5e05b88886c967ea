//! What clients that never wait ask for: a bit of each family, over a thousand keys.

use crate::support::{Random, Value};

/// What a reply may be.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    Int,
    IntOrNil,
    /// An integer, or this error where there is no key.
    IntOr(&'static str),
    Text,
    TextOrNil,
    /// As many elements.
    Array(usize),
    /// As many elements, or a null.
    ArrayOrNil(usize),
}

use Shape::{Array, ArrayOrNil, Int, IntOr, IntOrNil, Text, TextOrNil};

/// One command: its family, its words, what it may reply. `$k` is a key's number, `$c` the client's, `$i` an item's, `$u`
/// a number that comes once.
type Line = (&'static str, &'static str, Shape);

const NO_QUEUE: &str = "ERR no such delay queue";

const LINES: &[Line] = &[
    ("lock", "LOCK.ACQUIRE l$k c$c PX 5000", IntOrNil),
    ("lock", "LOCK.ACQUIRE l$k c$c PX 20 WATCHDOG", IntOrNil),
    ("lock", "LOCK.RELEASE l$k c$c ALL", IntOrNil),
    ("lock", "LOCK.RELEASE l$k c$c", IntOrNil),
    ("lock", "LOCK.HELD l$k c$c", IntOrNil),
    ("lock", "LOCK.MACQUIRE 2 m$k n$k c$c PX 200", ArrayOrNil(2)),
    ("lock", "LOCK.MRELEASE 2 m$k n$k c$c", Array(2)),
    ("sem", "SEM.ACQUIRE s$k c$c LIMIT 5 PX 300", IntOrNil),
    (
        "sem",
        "SEM.ACQUIRE s$k c$c LIMIT 5 PERMITS 2 PX 300",
        IntOrNil,
    ),
    ("sem", "SEM.RELEASE s$k c$c ALL", IntOrNil),
    (
        "sem",
        "SEM.MACQUIRE 2 s$k 5 q$k 9 c$c PX 300",
        ArrayOrNil(2),
    ),
    ("sem", "SEM.MRELEASE 2 s$k q$k c$c ALL", Array(2)),
    (
        "sem",
        "SEM.ACQUIRE s$k c$c LIMIT 2 PX 300 BLOCK 100 ID n$c NOTIFY load",
        IntOrNil,
    ),
    ("sem", "SEM.CANCEL s$k n$c", Int),
    (
        "lock",
        "LOCK.ACQUIRE l$k c$c PX 50 BLOCK 100 WATCHDOG MAXHOLD 200 LINGER ID n$c NOTIFY load",
        IntOrNil,
    ),
    ("lock", "LOCK.CANCEL l$k n$c", Int),
    ("stock", "STOCK.SET p$k 1000 NX RETAIN 1000", TextOrNil),
    ("stock", "STOCK.ADD p$k 3", Int),
    ("stock", "STOCK.DEDUCT p$k 1 ORDER o$u USER c$c", Int),
    ("stock", "STOCK.DEDUCT p$k 1", Int),
    ("stock", "STOCK.RESERVE p$k 2 ORDER o$u PX 300", Int),
    ("stock", "STOCK.RESERVE p$k 1 ORDER r$c PX 60000", Int),
    ("stock", "STOCK.CONFIRM p$k r$c", Int),
    ("stock", "STOCK.CANCEL p$k r$c", Int),
    ("stock", "STOCK.GET p$k", IntOrNil),
    ("filter", "BF.ADD b$k i$i", Int),
    ("filter", "BF.EXISTS b$k i$i", Int),
    ("filter", "BF.MEXISTS b$k i$i j$i h$i", Array(3)),
    ("filter", "CF.ADDNX f$k i$i", Int),
    ("filter", "CF.EXISTS f$k i$i", Int),
    ("filter", "CF.DEL f$k i$i", IntOr("ERR Not found")),
    ("cache", "CACHE.FETCH e$k LEASE 100", Array(3)),
    (
        "cache",
        "CACHE.FETCH e$k LEASE 100 EARLY 50 SLIDE 500",
        Array(3),
    ),
    (
        "cache",
        "CACHE.SET e$k value-$u PX 500 STALE 200 JITTER 10",
        Int,
    ),
    ("cache", "CACHE.GET e$k", TextOrNil),
    ("cache", "CACHE.DEL e$k STALE 100", Int),
    ("rate", "RATE.GCRA g$k 10 5 1000", Array(5)),
    ("rate", "RATE.GCRA a$k 10 5 1000 AHEAD 500", Array(5)),
    ("rate", "RATE.WINDOW v$k 5 200 EXACT", Array(5)),
    ("rate", "RATE.MGCRA 1 g$k 10 5 1000", Array(6)),
    ("rate", "RATE.CHARGE g$k 2", Int),
    ("rate", "RATE.REFUND g$k 1", Int),
    ("rate", "RATE.WINDOW w$k 5 200 SLIDING", Array(5)),
    ("rate", "RATE.TIERS t$k 2 10 5 100 20 10 1000", Array(6)),
    ("rate", "RATE.ONCE d$i PX 100", Int),
    ("rate", "CL.THROTTLE g$k 10 5 1", Array(5)),
    ("once", "ONCE.BEGIN o$k LEASE 50", Array(3)),
    ("once", "ONCE.BEGIN o$k LEASE 50 BLOCK 20", Array(3)),
    ("once", "ONCE.DONE o$k $i value-$u PX 100", Int),
    ("once", "ONCE.FAIL o$k $i", Int),
    ("delay", "DELAY.SET z$k STREAM zs MAXLEN 1000", Text),
    (
        "delay",
        "DELAY.ADD z$k m$u PX 300 VALUES n $u",
        IntOr(NO_QUEUE),
    ),
    (
        "delay",
        "DELAY.ADD z$k c$c PX 0 VALUES n $u",
        IntOr(NO_QUEUE),
    ),
    ("delay", "DELAY.CANCEL z$k c$c", Int),
    ("delay", "DELAY.GET z$k c$c", ArrayOrNil(2)),
    ("plain", "SET x$k value-$u PX 500", Text),
    ("plain", "GET x$k", TextOrNil),
    ("plain", "INCR y$k", Int),
];

/// The families, in the order of the report.
pub(crate) const FAMILIES: &[&str] = &[
    "lock", "sem", "stock", "filter", "cache", "rate", "once", "delay", "plain",
];

/// A command that was sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent(usize);

impl Sent {
    /// Its family, as an index of [`FAMILIES`].
    pub(crate) fn family(self) -> usize {
        let name = LINES[self.0].0;
        let found = FAMILIES.iter().position(|family| *family == name);
        found.expect("every line has a family that is reported")
    }

    /// Panics if this is nothing that the command may reply.
    #[track_caller]
    pub(crate) fn check(self, reply: &Value) {
        let fits = match LINES[self.0].2 {
            Int => matches!(reply, Value::Int(_)),
            IntOrNil => matches!(reply, Value::Int(_) | Value::Nil),
            IntOr(error) => match reply {
                Value::Error(text) => text == error,
                reply => matches!(reply, Value::Int(_)),
            },
            Text => matches!(reply, Value::Bulk(_) | Value::Simple(_)),
            TextOrNil => matches!(reply, Value::Bulk(_) | Value::Simple(_) | Value::Nil),
            Array(length) => matches!(reply, Value::Array(items) if items.len() == length),
            ArrayOrNil(length) => match reply {
                Value::Array(items) => items.len() == length,
                reply => reply.is_nil(),
            },
        };
        assert!(fits, "{}: {reply:?}", LINES[self.0].1);
    }
}

/// Some command of client number `client`.
pub(crate) fn draw(random: &mut Random, client: usize, unique: u64) -> (Sent, String) {
    let line = random.below(LINES.len() as u64) as usize;
    let mut text = String::with_capacity(64);
    let mut parts = LINES[line].1.split('$');
    text.push_str(parts.next().unwrap_or_default());
    // Within a command all keys have one number.
    let (key, item) = (random.below(1000), random.below(100_000));
    for part in parts {
        let number = match part.as_bytes()[0] {
            b'k' => key,
            b'i' => item,
            b'c' => client as u64,
            _ => unique,
        };
        text.push_str(&number.to_string());
        text.push_str(&part[1..]);
    }
    (Sent(line), text)
}
