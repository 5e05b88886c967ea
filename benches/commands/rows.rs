//! All rows, by group: what Sluice does, next to the built-in commands and the Lua that it stands in for.
//!
//! To add a family, add its groups to [`GROUPS`], each with its baseline first.

use crate::row::Reply::{Array, Begins, BeginsWithBulk, Bulk, Int, Is, Nil, Text};
use crate::row::{Group, Row, Step, hand_over, row, row_of_100, step};

/// The scripts by the names that `{sha:<name>}` calls them.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    ("redisson_lock", include_str!("lua/redisson_lock.lua")),
    ("redisson_unlock", include_str!("lua/redisson_unlock.lua")),
    (
        "compare_and_delete",
        include_str!("lua/compare_and_delete.lua"),
    ),
    ("stock_string", include_str!("lua/stock_string.lua")),
    ("stock_hash", include_str!("lua/stock_hash.lua")),
    ("stock_order", include_str!("lua/stock_order.lua")),
    ("bloom_add", include_str!("lua/bloom_add.lua")),
    ("bloom_exists", include_str!("lua/bloom_exists.lua")),
    ("incr_expire", include_str!("lua/incr_expire.lua")),
    ("gcra", include_str!("lua/gcra.lua")),
    ("cached_read", include_str!("lua/cached_read.lua")),
];

pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "built-in commands",
        rows: BUILT_IN,
    },
    Group {
        name: "lock: take and give back",
        rows: LOCK_CYCLE,
    },
    Group {
        name: "lock: refused",
        rows: LOCK_REFUSED,
    },
    Group {
        name: "lock: look, renew, guard",
        rows: LOCK_HELD,
    },
    Group {
        name: "lock: hand over to the next waiter",
        rows: LOCK_HAND_OVER,
    },
    Group {
        name: "stock: sell",
        rows: STOCK_SELL,
    },
    Group {
        name: "stock: sold out",
        rows: STOCK_SOLD_OUT,
    },
    Group {
        name: "stock: orders, users, events",
        rows: STOCK_ORDERS,
    },
    Group {
        name: "stock: read",
        rows: STOCK_READ,
    },
    Group {
        name: "bloom: one item",
        rows: BLOOM_ONE,
    },
    Group {
        name: "bloom: a hundred items, pipeline 10",
        rows: BLOOM_MANY,
    },
    Group {
        name: "cuckoo: one item",
        rows: CUCKOO_ONE,
    },
    Group {
        name: "cuckoo: a hundred items, pipeline 10",
        rows: CUCKOO_MANY,
    },
    Group {
        name: "cache: read",
        rows: CACHE_READ,
    },
    Group {
        name: "cache: write",
        rows: CACHE_WRITE,
    },
    Group {
        name: "rate: a hot key",
        rows: RATE,
    },
];

const OK: crate::row::Reply = Text("OK");

const BUILT_IN: &[Row] = &[
    row("PING", &[], &[step("PING", Text("PONG"))]),
    row("GET", &["SET {key} {value}"], &[step("GET {key}", Bulk)]),
    row("SET", &[], &[step("SET {key} {value}", OK)]),
    row("INCR", &[], &[step("INCR {key}", Int)]),
    row("DEL of a missing key", &[], &[step("DEL {key}", Is(0))]),
];

const SET_NX: Step = step("SET {key} me NX PX 30000", OK);
const ACQUIRE: Step = step("LOCK.ACQUIRE {key} me PX 30000", Int);
const REDISSON_LOCK: Step = step("EVALSHA {sha:redisson_lock} 1 {key} 30000 me", Nil);

/// Unlocks with this reply: 1 when the lock is free then, 0 when it was entered more than once.
const fn redisson_unlock(reply: i64) -> Step {
    step(
        "EVALSHA {sha:redisson_unlock} 2 {key} {key}:channel 0 30000 me",
        Is(reply),
    )
}

const LOCK_CYCLE: &[Row] = &[
    row("SET NX PX + DEL", &[], &[SET_NX, step("DEL {key}", Is(1))]),
    row(
        "SET NX PX + compare-and-delete (Lua)",
        &[],
        &[
            SET_NX,
            step("EVALSHA {sha:compare_and_delete} 1 {key} me", Is(1)),
        ],
    ),
    row(
        "Redisson lock + unlock (Lua)",
        &[],
        &[REDISSON_LOCK, redisson_unlock(1)],
    ),
    row(
        "Redisson re-enter + unlock (Lua)",
        &["EVALSHA {sha:redisson_lock} 1 {key} 30000 me"],
        &[REDISSON_LOCK, redisson_unlock(0)],
    ),
    row(
        "LOCK.ACQUIRE + LOCK.RELEASE",
        &[],
        &[ACQUIRE, step("LOCK.RELEASE {key} me", Is(0))],
    ),
    row(
        "LOCK.ACQUIRE re-enter + LOCK.RELEASE",
        &["LOCK.ACQUIRE {key} me PX 600000"],
        &[ACQUIRE, step("LOCK.RELEASE {key} me", Is(1))],
    ),
    row(
        "LOCK.ACQUIRE SHARED + LOCK.RELEASE",
        &[],
        &[
            step("LOCK.ACQUIRE {key} me SHARED PX 30000", Int),
            step("LOCK.RELEASE {key} me", Is(0)),
        ],
    ),
    row(
        "LOCK.ACQUIRE WATCHDOG + LOCK.RELEASE",
        &[],
        &[
            step("LOCK.ACQUIRE {key} me PX 30000 WATCHDOG", Int),
            step("LOCK.RELEASE {key} me", Is(0)),
        ],
    ),
    row(
        "LOCK.ACQUIRE ID + LOCK.RELEASE ID",
        &[],
        &[
            step("LOCK.ACQUIRE {key} me PX 30000 ID take:{i}", Int),
            step("LOCK.RELEASE {key} me ID give:{i}", Is(0)),
        ],
    ),
    row(
        "LOCK.MACQUIRE + LOCK.MRELEASE, 2 keys",
        &[],
        &[
            step("LOCK.MACQUIRE 2 {key}:1 {key}:2 me PX 30000", Array),
            step("LOCK.MRELEASE 2 {key}:1 {key}:2 me", Array),
        ],
    ),
    row(
        "SEM.ACQUIRE + SEM.RELEASE",
        &[],
        &[
            step("SEM.ACQUIRE {key} me LIMIT 10 PX 30000", Int),
            step("SEM.RELEASE {key} me", Is(0)),
        ],
    ),
];

const LOCK_REFUSED: &[Row] = &[
    row(
        "SET NX PX, refused",
        &["SET {key} other PX 600000"],
        &[step("SET {key} me NX PX 30000", Nil)],
    ),
    row(
        "Redisson lock (Lua), refused",
        &["EVALSHA {sha:redisson_lock} 1 {key} 600000 other"],
        &[step("EVALSHA {sha:redisson_lock} 1 {key} 30000 me", Int)],
    ),
    row(
        "LOCK.ACQUIRE, refused",
        &["LOCK.ACQUIRE {key} other PX 600000"],
        &[step("LOCK.ACQUIRE {key} me PX 30000", Nil)],
    ),
    row(
        "SEM.ACQUIRE, refused",
        &["SEM.ACQUIRE {key} other LIMIT 1 PX 600000"],
        &[step("SEM.ACQUIRE {key} me LIMIT 1 PX 30000", Nil)],
    ),
];

const LOCK_HELD: &[Row] = &[
    row(
        "GET of an owner",
        &["SET {key} me PX 600000"],
        &[step("GET {key}", Bulk)],
    ),
    row(
        "PEXPIRE of an owner",
        &["SET {key} me PX 600000"],
        &[step("PEXPIRE {key} 600000", Is(1))],
    ),
    row(
        "LOCK.HELD",
        &["LOCK.ACQUIRE {key} me PX 600000"],
        &[step("LOCK.HELD {key} me", Int)],
    ),
    row(
        "LOCK.RENEW",
        &["LOCK.ACQUIRE {key} me PX 600000"],
        &[step("LOCK.RENEW {key} me PX 600000", Int)],
    ),
    row(
        "LOCK.GUARD, the fence that it knows",
        &["LOCK.GUARD {key} 1"],
        &[step("LOCK.GUARD {key} 1", Is(1))],
    ),
    row(
        "LOCK.GUARD, a new fence",
        &[],
        &[step("LOCK.GUARD {key} {i}", Is(1))],
    ),
    row(
        "LOCK.GUARD, an old fence",
        &["LOCK.GUARD {key} 2"],
        &[step("LOCK.GUARD {key} 1", Is(0))],
    ),
];

const LIST_GIVE: Step = step("RPUSH {key} turn", Is(1));
const LIST_TAKE: Step = step("BLPOP {key} 0", Array);
const LOCK_GIVE: Step = step("LOCK.RELEASE {key} client:{client}", Is(0));
const LOCK_TAKE: Step = step("LOCK.ACQUIRE {key} client:{client} PX 60000 BLOCK 0", Int);

const LOCK_HAND_OVER: &[Row] = &[
    hand_over(
        "RPUSH to BLPOP, 1 waiter",
        &["RPUSH {key} turn"],
        1,
        LIST_GIVE,
        LIST_TAKE,
    ),
    hand_over(
        "RPUSH to BLPOP, 4000 waiters",
        &["RPUSH {key} turn"],
        4000,
        LIST_GIVE,
        LIST_TAKE,
    ),
    hand_over(
        "LOCK.RELEASE to the next, 1 waiter",
        &[],
        1,
        LOCK_GIVE,
        LOCK_TAKE,
    ),
    hand_over(
        "LOCK.RELEASE to the next, 4000 waiters",
        &[],
        4000,
        LOCK_GIVE,
        LOCK_TAKE,
    ),
];

const STOCK_SELL: &[Row] = &[
    row(
        "INCR of a counter",
        &["SET {key} 10000000"],
        &[step("INCR {key}", Int)],
    ),
    row(
        "DECRBY of a counter",
        &["SET {key} 10000000"],
        &[step("DECRBY {key} 1", Int)],
    ),
    row(
        "GET + DECRBY (Lua)",
        &["SET {key} 10000000"],
        &[step("EVALSHA {sha:stock_string} 1 {key} 1", Int)],
    ),
    row(
        "HMGET + HINCRBY (Lua)",
        &["HSET {key} total 10000000 ordered 0"],
        &[step("EVALSHA {sha:stock_hash} 1 {key} 1", Is(1))],
    ),
    row(
        "STOCK.DEDUCT",
        &["STOCK.SET {key} 10000000"],
        &[step("STOCK.DEDUCT {key} 1", Int)],
    ),
    row(
        "STOCK.ADD",
        &["STOCK.SET {key} 0"],
        &[step("STOCK.ADD {key} 1", Int)],
    ),
    row(
        "STOCK.MDEDUCT, 2 keys",
        &["STOCK.SET {key}:1 10000000", "STOCK.SET {key}:2 10000000"],
        &[step("STOCK.MDEDUCT 2 {key}:1 1 {key}:2 1", Array)],
    ),
];

const STOCK_SOLD_OUT: &[Row] = &[
    row(
        "GET + DECRBY (Lua), sold out",
        &["SET {key} 0"],
        &[step("EVALSHA {sha:stock_string} 1 {key} 1", Is(-1))],
    ),
    row(
        "HMGET + HINCRBY (Lua), sold out",
        &["HSET {key} total 0 ordered 0"],
        &[step("EVALSHA {sha:stock_hash} 1 {key} 1", Is(0))],
    ),
    row(
        "STOCK.DEDUCT, sold out",
        &["STOCK.SET {key} 0"],
        &[step("STOCK.DEDUCT {key} 1", Is(-1))],
    ),
    row(
        "STOCK.DEDUCT with order, user and event, sold out",
        &["STOCK.SET {key} 0 PERUSER 5 EVENTS {key}:events"],
        &[step(
            "STOCK.DEDUCT {key} 1 ORDER order:{i} USER user:{i}",
            Is(-1),
        )],
    ),
    row(
        "STOCK.DEDUCT, over the user's limit",
        &[
            "STOCK.SET {key} 1000 PERUSER 1 EVENTS {key}:events",
            "STOCK.DEDUCT {key} 1 USER me",
        ],
        &[step("STOCK.DEDUCT {key} 1 ORDER order:{i} USER me", Is(-2))],
    ),
];

const STOCK_ORDERS: &[Row] = &[
    row(
        "XADD of an event",
        &[],
        &[step(
            "XADD {key} MAXLEN ~ 100000 * op deduct sku product:1 order order:{i} user user:{i} qty 1 available 1000 ver 1",
            Bulk,
        )],
    ),
    row(
        "order, user limit and XADD (Lua)",
        &["SET {key} 10000000"],
        &[step(
            "EVALSHA {sha:stock_order} 4 {key} {key}:orders {key}:users {key}:events 1 order:{i} user:{i} 5",
            Int,
        )],
    ),
    row(
        "STOCK.DEDUCT with an order",
        &["STOCK.SET {key} 10000000"],
        &[step("STOCK.DEDUCT {key} 1 ORDER order:{i}", Int)],
    ),
    row(
        "STOCK.DEDUCT with order, user and event",
        &["STOCK.SET {key} 10000000 PERUSER 5 EVENTS {key}:events"],
        &[step(
            "STOCK.DEDUCT {key} 1 ORDER order:{i} USER user:{i}",
            Int,
        )],
    ),
    row(
        "STOCK.DEDUCT, the same order again",
        &[
            "STOCK.SET {key} 10000000 EVENTS {key}:events",
            "STOCK.DEDUCT {key} 1 ORDER order:1",
        ],
        &[step("STOCK.DEDUCT {key} 1 ORDER order:1", Int)],
    ),
    row(
        "STOCK.RESERVE + STOCK.CONFIRM",
        &["STOCK.SET {key} 10000000"],
        &[
            step("STOCK.RESERVE {key} 1 ORDER order:{i} PX 900000", Int),
            step("STOCK.CONFIRM {key} order:{i}", Is(1)),
        ],
    ),
    row(
        "STOCK.RESERVE + STOCK.CANCEL",
        &["STOCK.SET {key} 10000000"],
        &[
            step("STOCK.RESERVE {key} 1 ORDER order:{i} PX 900000", Int),
            step("STOCK.CANCEL {key} order:{i}", Is(1)),
        ],
    ),
];

const STOCK_READ: &[Row] = &[
    row(
        "GET of a counter",
        &["SET {key} 1000"],
        &[step("GET {key}", Bulk)],
    ),
    row(
        "STOCK.GET",
        &["STOCK.SET {key} 1000"],
        &[step("STOCK.GET {key}", Is(1000))],
    ),
];

const GET: Step = step("GET {key}", Bulk);

const BLOOM_ONE: &[Row] = &[
    row("GET of 128 bytes", &["SET {key} {value}"], &[GET]),
    row(
        "7 SETBIT (Lua)",
        &["SETBIT {key} 9600000 1"],
        &[step(
            "EVALSHA {sha:bloom_add} 1 {key} {i}17 {i}29 {i}31 {i}43 {i}57 {i}61 {i}83",
            Int,
        )],
    ),
    row(
        "7 GETBIT (Lua), not there",
        &["SETBIT {key} 9600000 1"],
        &[step(
            "EVALSHA {sha:bloom_exists} 1 {key} {i}17 {i}29 {i}31 {i}43 {i}57 {i}61 {i}83",
            Is(0),
        )],
    ),
    row(
        "BF.ADD into 1M",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.ADD {key} new:{i}", Int)],
    ),
    row(
        "BF.ADD into 1M, there already",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.ADD {key} item:{i}", Is(0))],
    ),
    row(
        "BF.EXISTS in 10 000",
        &["COPY filled:bloom:10000 {key}"],
        &[step("BF.EXISTS {key} item:{i}", Is(1))],
    ),
    row(
        "BF.EXISTS in 1M",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.EXISTS {key} item:{i}", Is(1))],
    ),
    row(
        "BF.EXISTS in 100M",
        &["COPY filled:bloom:100000000 {key}"],
        &[step("BF.EXISTS {key} item:{i}", Is(1))],
    ),
    row(
        "BF.EXISTS in 100M, not there",
        &["COPY filled:bloom:100000000 {key}"],
        &[step("BF.EXISTS {key} new:{i}", Int)],
    ),
];

const BLOOM_MANY: &[Row] = &[
    row_of_100("GET, pipeline 10", &["SET {key} {value}"], &[GET]),
    row_of_100(
        "BF.MEXISTS x100 in 1M",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.MEXISTS {key} {100 items}", Array)],
    ),
    row_of_100(
        "BF.MEXISTS x100 in 100M",
        &["COPY filled:bloom:100000000 {key}"],
        &[step("BF.MEXISTS {key} {100 items}", Array)],
    ),
    row_of_100(
        "BF.MADD x100 into 1M",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.MADD {key} {100 new}", Array)],
    ),
    row_of_100(
        "BF.MADD x100 into 100M",
        &["COPY filled:bloom:100000000 {key}"],
        &[step("BF.MADD {key} {100 new}", Array)],
    ),
];

const CUCKOO_ONE: &[Row] = &[
    row("GET of 128 bytes again", &["SET {key} {value}"], &[GET]),
    row(
        "CF.ADD into 1M",
        &["COPY filled:cuckoo:1000000 {key}"],
        &[step("CF.ADD {key} new:{i}", Is(1))],
    ),
    row(
        "CF.EXISTS in 10 000",
        &["COPY filled:cuckoo:10000 {key}"],
        &[step("CF.EXISTS {key} item:{i}", Is(1))],
    ),
    row(
        "CF.EXISTS in 1M",
        &["COPY filled:cuckoo:1000000 {key}"],
        &[step("CF.EXISTS {key} item:{i}", Is(1))],
    ),
    row(
        "CF.ADD + CF.DEL in 1M",
        &["COPY filled:cuckoo:1000000 {key}"],
        &[
            step("CF.ADD {key} new:{i}", Is(1)),
            step("CF.DEL {key} new:{i}", Is(1)),
        ],
    ),
];

const CUCKOO_MANY: &[Row] = &[
    row_of_100("GET again, pipeline 10", &["SET {key} {value}"], &[GET]),
    row_of_100(
        "CF.MEXISTS x100 in 1M",
        &["COPY filled:cuckoo:1000000 {key}"],
        &[step("CF.MEXISTS {key} {100 items}", Array)],
    ),
    row_of_100(
        "CF.INSERT x100 into 1M",
        &["COPY filled:cuckoo:1000000 {key}"],
        &[step("CF.INSERT {key} ITEMS {100 new}", Array)],
    ),
];

/// A ratio that somebody has promised or asked about: its first row over its second.
pub(crate) struct Figure {
    pub(crate) row: &'static str,
    pub(crate) over: &'static str,
}

const CACHED: &[&str] = &["CACHE.SET {key} {value} PX 3600000"];
const HIT: crate::row::Reply = Begins("HIT");

const CACHE_READ: &[Row] = &[
    row(
        "GET of a value of 128 bytes",
        &["SET {key} {value} PX 3600000"],
        &[step("GET {key}", Bulk)],
    ),
    row(
        "cached read of rockscache (Lua)",
        &["HSET {key} value {value}", "PEXPIRE {key} 3600000"],
        &[step(
            "EVALSHA {sha:cached_read} 1 {key} 1795000000 1795000003 me",
            BeginsWithBulk,
        )],
    ),
    row("CACHE.GET", CACHED, &[step("CACHE.GET {key}", Bulk)]),
    row(
        "CACHE.FETCH, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000", HIT)],
    ),
    row(
        "CACHE.FETCH EARLY, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000 EARLY 5000", HIT)],
    ),
    row(
        "CACHE.FETCH BETA, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000 BETA 1", HIT)],
    ),
    row(
        "CACHE.FETCH SLIDE, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000 SLIDE 3600000", HIT)],
    ),
    row(
        "CACHE.FETCH, null",
        &["CACHE.SETNULL {key} PX 3600000"],
        &[step("CACHE.FETCH {key} LEASE 3000", Begins("NULL"))],
    ),
    row(
        "CACHE.FETCH, absent by its guard",
        &["BF.ADD {key} nobody"],
        &[step(
            "CACHE.FETCH {key}:{i} LEASE 3000 GUARD {key} item:{i}",
            Begins("ABSENT"),
        )],
    ),
];

const CACHE_WRITE: &[Row] = &[
    row(
        "SET PX of 128 bytes",
        &[],
        &[step("SET {key} {value} PX 3600000", OK)],
    ),
    row(
        "CACHE.SET",
        &[],
        &[step("CACHE.SET {key} {value} PX 3600000", Is(1))],
    ),
    row(
        "CACHE.FETCH, lease + CACHE.FAIL of another",
        &[],
        &[
            step("CACHE.FETCH {key}:{i} LEASE 3000", Begins("LEASE")),
            step("CACHE.FAIL {key}:{i} 1", Is(0)),
        ],
    ),
    row(
        "CACHE.DEL of a missing key",
        &[],
        &[step("CACHE.DEL {key}", Is(0))],
    ),
];

/// Five numbers, one of which may be -1.
const LIMITS: crate::row::Reply = Array;

const RATE: &[Row] = &[
    row("INCR of a hot key", &[], &[step("INCR {key}", Int)]),
    row(
        "INCR + PEXPIRE (Lua)",
        &[],
        &[step(
            "EVALSHA {sha:incr_expire} 1 {key} 1000000000 60000",
            Is(1),
        )],
    ),
    row(
        "GCRA (Lua)",
        &[],
        &[step(
            "EVALSHA {sha:gcra} 1 {key} 1000000 1000000 1000",
            LIMITS,
        )],
    ),
    row(
        "RATE.GCRA",
        &[],
        &[step("RATE.GCRA {key} 1000000 1000000 1000", LIMITS)],
    ),
    row(
        "RATE.GCRA, limited",
        &["RATE.GCRA {key} 0 1 3600000"],
        &[step("RATE.GCRA {key} 0 1 3600000", LIMITS)],
    ),
    row(
        "RATE.WINDOW",
        &[],
        &[step("RATE.WINDOW {key} 1000000000 60000", LIMITS)],
    ),
    row(
        "RATE.WINDOW, limited",
        &["RATE.WINDOW {key} 1 3600000"],
        &[step("RATE.WINDOW {key} 1 3600000", LIMITS)],
    ),
    row(
        "RATE.WINDOW SLIDING",
        &[],
        &[step("RATE.WINDOW {key} 1000000000 60000 SLIDING", LIMITS)],
    ),
    row(
        "RATE.TIERS of 3",
        &[],
        &[step(
            "RATE.TIERS {key} 3 1000000 1000000 1000 1000000 1000000 1000 1000000 1000000 1000",
            LIMITS,
        )],
    ),
    row(
        "RATE.ONCE of a new key",
        &[],
        &[step("RATE.ONCE {key}:{i} PX 60000", Is(1))],
    ),
    row(
        "SET NX PX of a new key",
        &[],
        &[step("SET {key}:{i} 1 NX PX 60000", OK)],
    ),
];

pub(crate) const FIGURES: &[Figure] = &[
    Figure {
        row: "LOCK.ACQUIRE + LOCK.RELEASE",
        over: "SET NX PX + DEL",
    },
    Figure {
        row: "LOCK.ACQUIRE + LOCK.RELEASE",
        over: "SET NX PX + compare-and-delete (Lua)",
    },
    Figure {
        row: "LOCK.ACQUIRE + LOCK.RELEASE",
        over: "Redisson lock + unlock (Lua)",
    },
    Figure {
        row: "LOCK.ACQUIRE re-enter + LOCK.RELEASE",
        over: "Redisson re-enter + unlock (Lua)",
    },
    Figure {
        row: "LOCK.ACQUIRE, refused",
        over: "SET NX PX, refused",
    },
    Figure {
        row: "LOCK.ACQUIRE, refused",
        over: "Redisson lock (Lua), refused",
    },
    Figure {
        row: "LOCK.HELD",
        over: "GET of an owner",
    },
    Figure {
        row: "LOCK.RELEASE to the next, 4000 waiters",
        over: "LOCK.RELEASE to the next, 1 waiter",
    },
    Figure {
        row: "STOCK.DEDUCT",
        over: "INCR of a counter",
    },
    Figure {
        row: "GET + DECRBY (Lua)",
        over: "INCR of a counter",
    },
    Figure {
        row: "HMGET + HINCRBY (Lua)",
        over: "INCR of a counter",
    },
    Figure {
        row: "STOCK.DEDUCT, sold out",
        over: "STOCK.DEDUCT",
    },
    Figure {
        row: "STOCK.DEDUCT with order, user and event, sold out",
        over: "STOCK.DEDUCT with order, user and event",
    },
    Figure {
        row: "STOCK.DEDUCT with order, user and event",
        over: "INCR of a counter",
    },
    Figure {
        row: "order, user limit and XADD (Lua)",
        over: "INCR of a counter",
    },
    Figure {
        row: "STOCK.GET",
        over: "GET of a counter",
    },
    Figure {
        row: "7 SETBIT (Lua)",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "BF.ADD into 1M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "BF.EXISTS in 100M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "7 GETBIT (Lua), not there",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "BF.MEXISTS x100 in 1M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "BF.MEXISTS x100 in 100M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "BF.MADD x100 into 100M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "CF.ADD into 1M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "CF.EXISTS in 1M",
        over: "GET of 128 bytes",
    },
    Figure {
        row: "INCR + PEXPIRE (Lua)",
        over: "INCR of a hot key",
    },
    Figure {
        row: "GCRA (Lua)",
        over: "INCR of a hot key",
    },
    Figure {
        row: "RATE.GCRA",
        over: "INCR of a hot key",
    },
    Figure {
        row: "RATE.GCRA, limited",
        over: "INCR of a hot key",
    },
    Figure {
        row: "RATE.WINDOW",
        over: "INCR of a hot key",
    },
    Figure {
        row: "RATE.WINDOW, limited",
        over: "INCR of a hot key",
    },
    Figure {
        row: "cached read of rockscache (Lua)",
        over: "GET of a value of 128 bytes",
    },
    Figure {
        row: "CACHE.GET",
        over: "GET of a value of 128 bytes",
    },
    Figure {
        row: "CACHE.FETCH, hit",
        over: "GET of a value of 128 bytes",
    },
    Figure {
        row: "CACHE.SET",
        over: "SET PX of 128 bytes",
    },
];
