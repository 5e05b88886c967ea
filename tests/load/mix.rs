//! What clients that never wait ask for: a bit of each family, over a thousand keys.

use crate::support::{Random, Value, WRONGTYPE};

/// What a reply may be.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    Int,
    IntOrNil,
    /// An integer, or this error where there is no key.
    IntOr(&'static str),
    /// Anything but an error.
    NoError,
    /// Anything but an error that is not one of these.
    AnyOr(&'static [&'static str]),
    Text,
    TextOrNil,
    /// As many elements.
    Array(usize),
    /// As many elements, or a null.
    ArrayOrNil(usize),
}

use Shape::{AnyOr, Array, ArrayOrNil, Int, IntOr, IntOrNil, NoError, Text, TextOrNil};

/// One command: its family, its words, what it may reply. `$k` is a key's number, `$c` the client's, `$i` an item's, `$u`
/// a number that comes once.
type Line = (&'static str, &'static str, Shape);

const NO_QUEUE: &str = "ERR no such delay queue";
const EXISTS: &str = "ERR item exists";
const NO_BLOOM: &str = "ERR not found";
const NO_CUCKOO: &str = "ERR Not found";
const OTHER_SHAPE: &str = "ERR filters differ in shape";
const BAD_CHUNK: &str = "ERR received bad data";

/// The commands that only masters and tools send.
const INTERNAL: &[&str] = &["apply", "fence"];

/// Panics if a command of this list, as the server names them, is not in the mix.
pub(crate) fn check_completeness(commands: &[Value]) {
    for command in commands.iter().map(|name| name.text().to_lowercase()) {
        let is_internal = INTERNAL
            .iter()
            .any(|word| command.split('.').nth(1) == Some(word));
        let is_sent = LINES
            .iter()
            .any(|line| line.1.to_lowercase().split(' ').next() == Some(&command));
        assert!(is_sent || is_internal, "{command} is not in the mix");
    }
}

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
    ("lock", "LOCK.RENEW l$k c$c PX 200", IntOrNil),
    ("lock", "LOCK.UPGRADE l$k c$c PX 200", IntOrNil),
    ("lock", "LOCK.DOWNGRADE l$k c$c", IntOrNil),
    ("lock", "LOCK.INFO l$k", NoError),
    ("lock", "LOCK.GUARD u$k $i PX 500", Int),
    ("sem", "SEM.RENEW s$k c$c PX 200", IntOrNil),
    ("sem", "SEM.INFO s$k", NoError),
    ("stock", "STOCK.SET p$k 1000 NX RETAIN 1000", TextOrNil),
    (
        "stock",
        "STOCK.SET P$k 1000 NX RETAIN 1000 EVENTS ps MAXLEN 1000",
        TextOrNil,
    ),
    ("stock", "STOCK.MDEDUCT 2 p$k 1 P$k 1 ORDER d$u", Array(2)),
    (
        "stock",
        "STOCK.MRESERVE 2 p$k 1 P$k 1 ORDER m$c PX 60000",
        Array(2),
    ),
    ("stock", "STOCK.MCONFIRM 2 p$k P$k m$c", Array(2)),
    ("stock", "STOCK.MCANCEL 2 p$k P$k m$c", Array(2)),
    ("stock", "STOCK.MGET p$k P$k", Array(2)),
    ("stock", "STOCK.ORDER p$k r$c", NoError),
    ("stock", "STOCK.INFO p$k", NoError),
    ("stock", "STOCK.IMPORT p$k RETAIN 1000", AnyOr(&[WRONGTYPE])),
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
    ("filter", "BF.RESERVE b$k 0.01 1000", AnyOr(&[EXISTS])),
    ("filter", "BF.MADD b$k i$i j$i", Array(2)),
    ("filter", "BF.INSERT b$k CAPACITY 1000 ITEMS i$i", Array(1)),
    ("filter", "BF.CARD b$k", Int),
    ("filter", "BF.INFO b$k", AnyOr(&[NO_BLOOM])),
    ("filter", "BF.SCANDUMP b$k 0", AnyOr(&[NO_BLOOM])),
    (
        "filter",
        "BF.LOADCHUNK B$k 1 chunk",
        AnyOr(&[BAD_CHUNK, EXISTS]),
    ),
    (
        "filter",
        "BF.RESERVE B$k LIKE b$k",
        AnyOr(&[EXISTS, NO_BLOOM]),
    ),
    (
        "filter",
        "BF.MERGE B$k 1 b$k",
        AnyOr(&[NO_BLOOM, OTHER_SHAPE]),
    ),
    ("filter", "CF.RESERVE f$k 1024", AnyOr(&[EXISTS])),
    ("filter", "CF.ADDNX f$k i$i", Int),
    ("filter", "CF.ADD f$k i$i", Int),
    ("filter", "CF.INSERT f$k ITEMS i$i j$i", Array(2)),
    ("filter", "CF.INSERTNX f$k ITEMS i$i j$i", Array(2)),
    ("filter", "CF.MEXISTS f$k i$i j$i", Array(2)),
    ("filter", "CF.COUNT f$k i$i", Int),
    ("filter", "CF.COMPACT f$k", AnyOr(&[NO_CUCKOO])),
    ("filter", "CF.INFO f$k", AnyOr(&[NO_CUCKOO])),
    ("filter", "CF.SCANDUMP f$k 0", AnyOr(&[NO_CUCKOO])),
    (
        "filter",
        "CF.LOADCHUNK F$k 1 chunk",
        AnyOr(&[BAD_CHUNK, EXISTS]),
    ),
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
    ("cache", "CACHE.SETNULL E$k PX 500", Int),
    (
        "cache",
        "CACHE.FETCH E$k LEASE 100 BREAKER load 5 100 GUARD b$k i$i",
        Array(3),
    ),
    ("cache", "CACHE.FAIL e$k $i BACKOFF 50", Int),
    ("cache", "CACHE.INFO e$k", NoError),
    ("cache", "CACHE.BREAKER load", NoError),
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
    ("once", "ONCE.INFO o$k", NoError),
    ("delay", "DELAY.RANGE z$k 5", NoError),
    ("delay", "DELAY.INFO z$k", NoError),
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
    ("plain", "SLUICE.HOT COUNT 5", NoError),
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
            NoError => !reply.is_err(),
            AnyOr(errors) => match reply {
                Value::Error(text) => errors.contains(&text.as_str()),
                _ => true,
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
