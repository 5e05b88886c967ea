//! `LOCK.*` and `SEM.*`.

use crate::row::Reply::{Array, Bulk, Int, Is, Nil};
use crate::row::{
    Contest, Family, Group, Load, Pair, Probe, Row, Series, Step, bar, figure, hand_over, hot,
    notified_hand_over, row, step,
};

use super::{OK, SIZES};

pub(crate) const FAMILY: Family = Family {
    title: "Locks and semaphores",
    file: "locks",
    text: "Reference: [locks.md](locks.md).",
    groups: &[
        Group {
            name: "lock: acquire and release",
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
            name: "lock: hand-over to the next waiting client",
            rows: LOCK_HAND_OVER,
        },
    ],
    chart: &[
        "SET NX PX + DEL",
        "SET NX PX + compare-and-delete (Lua)",
        "Redisson lock + unlock (Lua)",
        "the server's part of LOCK.ACQUIRE + LOCK.RELEASE",
        "LOCK.ACQUIRE + LOCK.RELEASE",
        "LOCK.ACQUIRE WATCHDOG + LOCK.RELEASE",
        "Redisson re-enter + unlock (Lua)",
        "LOCK.ACQUIRE re-enter + LOCK.RELEASE",
        "LOCK.MACQUIRE + LOCK.MRELEASE, 2 keys",
        "SEM.ACQUIRE + SEM.RELEASE",
        "SET NX PX, refused",
        "Redisson lock (Lua), refused",
        "the server's part of LOCK.ACQUIRE, refused",
        "LOCK.ACQUIRE, refused",
        "the server's part of LOCK.RENEW",
        "LOCK.RENEW",
        "LOCK.HELD",
    ],
    figures: &[
        bar("LOCK.ACQUIRE + LOCK.RELEASE", "SET NX PX + DEL", 1.5),
        figure(
            "LOCK.ACQUIRE + LOCK.RELEASE",
            "SET NX PX + compare-and-delete (Lua)",
        ),
        bar(
            "LOCK.ACQUIRE + LOCK.RELEASE",
            "Redisson lock + unlock (Lua)",
            0.33,
        ),
        figure(
            "LOCK.ACQUIRE re-enter + LOCK.RELEASE",
            "Redisson re-enter + unlock (Lua)",
        ),
        hot(
            "LOCK.ACQUIRE + LOCK.RELEASE",
            "the server's part of LOCK.ACQUIRE + LOCK.RELEASE",
        )
        .because(
            "the floor keeps no holds: to find, make and remove one takes about 1200 instructions, its effect 230, `PX` 180",
        ),
        bar("LOCK.ACQUIRE, refused", "SET NX PX, refused", 1.2),
        hot(
            "LOCK.ACQUIRE, refused",
            "the server's part of LOCK.ACQUIRE, refused",
        )
        .because("the floor reads no option: `PX` takes 180 instructions, the holder's name and lease 150"),
        hot("LOCK.RENEW", "the server's part of LOCK.RENEW").because(
            "the floor keeps no holds: to find and change one takes about 370 instructions, its effect 230, `PX` 180",
        ),
        figure("LOCK.ACQUIRE, refused", "Redisson lock (Lua), refused"),
        figure("LOCK.HELD", "GET of an owner"),
        figure(
            "LOCK.RELEASE to the next, 4000 waiting clients",
            "LOCK.RELEASE to the next, 1 waiting client",
        )
        .because(
            "the target is no growth; the next row is the server's own growth with as many connections",
        ),
        figure("RPUSH to BLPOP, 4000 waiting clients", "RPUSH to BLPOP, 1 waiting client"),
        bar(
            "LOCK.RELEASE to the next, 1 notified client",
            "LOCK.RELEASE to the next, 1 waiting client",
            1.2,
        ),
        bar(
            "LOCK.RELEASE to the next, 4000 notified clients",
            "LOCK.RELEASE to the next, 4000 waiting clients",
            1.2,
        ),
        figure(
            "LOCK.RELEASE to the next, 10000 notified clients",
            "LOCK.RELEASE to the next, 1 notified client",
        )
        .because("the target is no growth; a hand-over to a blocked client grows as much"),
    ],
    pairs: &[Pair {
        title: "acquire and release a lock",
        built_in: "SET NX PX + DEL",
        lua: "Redisson lock + unlock (Lua)",
        sluice: "LOCK.ACQUIRE + LOCK.RELEASE",
    }],
    contest: Some(CONTEST),
    series: SERIES,
};

const SET_NX: Step = step("SET {key} me NX PX 30000", OK);

const ACQUIRE: Step = step("LOCK.ACQUIRE {key} me PX 30000", Int);

const REDISSON_LOCK: Step = step("EVALSHA {sha:redisson_lock} 1 {key} 30000 me", Nil);

/// Unlocks with this reply: 1 if the lock is free afterwards, 0 if the owner still holds it.
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
        "the server's part of LOCK.ACQUIRE + LOCK.RELEASE",
        &[],
        &[
            step("FLOOR.ACQUIRE {key} me PX 30000", Int),
            step("FLOOR.RELEASE {key} me", Is(0)),
        ],
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
        "LOCK.ACQUIRE WATCHDOG MAXHOLD LINGER + LOCK.RELEASE",
        &[],
        &[
            step(
                "LOCK.ACQUIRE {key} me PX 30000 WATCHDOG MAXHOLD 600000 LINGER",
                Int,
            ),
            step("LOCK.RELEASE {key} me", Is(0)),
        ],
    ),
    row(
        "LOCK.ACQUIRE NOTIFY + LOCK.RELEASE",
        &[],
        &[
            step(
                "LOCK.ACQUIRE {key} me PX 30000 ID take:{i} NOTIFY {key}",
                Int,
            ),
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
    row(
        "SEM.MACQUIRE + SEM.MRELEASE, 2 keys",
        &[],
        &[
            step("SEM.MACQUIRE 2 {key}:1 10 {key}:2 10 me PX 30000", Array),
            step("SEM.MRELEASE 2 {key}:1 {key}:2 me", Array),
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
        "the server's part of LOCK.ACQUIRE, refused",
        &["SET {key} other PX 600000"],
        &[step("FLOOR.REFUSE {key} me PX 30000", Nil)],
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
        // Each renewal moves the end of the lease, as a renewal some seconds later does.
        &[step("LOCK.RENEW {key} me PX 600{i}", Int)],
    ),
    row(
        "the server's part of LOCK.RENEW",
        &["SET {key} me PX 600000"],
        &[step("FLOOR.RENEW {key} me PX 600{i}", Int)],
    ),
    row(
        "LOCK.GUARD, the last fence again",
        &["LOCK.GUARD {key} 1"],
        &[step("LOCK.GUARD {key} 1", Is(1))],
    ),
    row(
        "LOCK.GUARD, a new fence",
        &[],
        // Each client has its own key, because the server may read the clients in any order.
        &[step("LOCK.GUARD {key}:{client} {i}", Is(1))],
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

const LOCK_NOTIFY: Step = step(
    "LOCK.ACQUIRE {key} client:{client} PX 60000 BLOCK 0 ID {client}:{i} NOTIFY {key}",
    Nil,
);

const LOCK_HAND_OVER: &[Row] = &[
    hand_over(
        "RPUSH to BLPOP, 1 waiting client",
        &["RPUSH {key} turn"],
        1,
        LIST_GIVE,
        LIST_TAKE,
    ),
    hand_over(
        "RPUSH to BLPOP, 4000 waiting clients",
        &["RPUSH {key} turn"],
        4000,
        LIST_GIVE,
        LIST_TAKE,
    ),
    hand_over(
        "LOCK.RELEASE to the next, 1 waiting client",
        &[],
        1,
        LOCK_GIVE,
        LOCK_TAKE,
    ),
    hand_over(
        "LOCK.RELEASE to the next, 4000 waiting clients",
        &[],
        4000,
        LOCK_GIVE,
        LOCK_TAKE,
    ),
    notified_hand_over(
        "LOCK.RELEASE to the next, 1 notified client",
        1,
        LOCK_GIVE,
        LOCK_NOTIFY,
    ),
    notified_hand_over(
        "LOCK.RELEASE to the next, 4000 notified clients",
        4000,
        LOCK_GIVE,
        LOCK_NOTIFY,
    ),
    notified_hand_over(
        "LOCK.RELEASE to the next, 10000 notified clients",
        10_000,
        LOCK_GIVE,
        LOCK_NOTIFY,
    ),
];

/// Each client has its own lock, because a shared lock would refuse most requests.
const CONTEST: Contest = Contest {
    name: "lock: acquire and release",
    rows: [
        row(
            "SET NX PX + DEL",
            &[],
            &[
                step("SET {key}:{client} me NX PX 30000", OK),
                step("DEL {key}:{client}", Is(1)),
            ],
        ),
        row(
            "Redisson lock + unlock (Lua)",
            &[],
            &[
                step("EVALSHA {sha:redisson_lock} 1 {key}:{client} 30000 me", Nil),
                step(
                    "EVALSHA {sha:redisson_unlock} 2 {key}:{client} {key}:channel 0 30000 me",
                    Is(1),
                ),
            ],
        ),
        row(
            "LOCK.ACQUIRE + LOCK.RELEASE",
            &[],
            &[
                step("LOCK.ACQUIRE {key}:{client} me PX 30000", Int),
                step("LOCK.RELEASE {key}:{client} me", Is(0)),
            ],
        ),
    ],
};

/// Numbers of waiting clients. Each of them is a connection, so a million is too many.
const CROWDS: &[u64] = &[1, 1_000, 10_000];

const SERIES: &[Series] = &[
    Series {
        name: "lock: renew one of many",
        of: "locks held, each with a lease",
        sizes: SIZES,
        built_in: Probe {
            name: "PEXPIRE",
            setup: &[],
            fill: "SET {key}:{i} me PX 3600000",
            load: Load::Cycle(&[step("PEXPIRE {key}:{r} 3600000", Is(1))]),
        },
        sluice: Probe {
            name: "LOCK.RENEW",
            setup: &[],
            fill: "LOCK.ACQUIRE {key}:{i} me PX 3600000",
            load: Load::Cycle(&[step("LOCK.RENEW {key}:{r} me PX 3600000", Int)]),
        },
        idle: true,
    },
    Series {
        name: "lock: release one of many permits, acquire it again",
        of: "holders of one semaphore",
        sizes: &[1, 10, 1_000, 1_000_000],
        built_in: Probe {
            name: "ZREM + ZADD",
            setup: &[],
            fill: "ZADD {key} {i} owner:{i}",
            load: Load::Cycle(&[
                step("ZREM {key} owner:{r}", Is(1)),
                step("ZADD {key} {i} owner:{r}", Is(1)),
            ]),
        },
        sluice: Probe {
            name: "SEM.RELEASE + SEM.ACQUIRE",
            setup: &[],
            fill: "SEM.ACQUIRE {key} owner:{i} LIMIT 2000000 PX 3600000",
            load: Load::Cycle(&[
                step("SEM.RELEASE {key} owner:{r}", Is(0)),
                step("SEM.ACQUIRE {key} owner:{r} LIMIT 2000000 PX 3600000", Int),
            ]),
        },
        idle: true,
    },
    Series {
        name: "lock: hand-over in a queue",
        of: "clients that wait for one key",
        sizes: CROWDS,
        built_in: Probe {
            name: "RPUSH to BLPOP",
            setup: &["RPUSH {key} turn"],
            fill: "",
            load: Load::Queue {
                give: LIST_GIVE,
                take: LIST_TAKE,
            },
        },
        sluice: Probe {
            name: "LOCK.RELEASE to the next",
            setup: &[],
            fill: "",
            load: Load::Queue {
                give: LOCK_GIVE,
                take: LOCK_TAKE,
            },
        },
        idle: false,
    },
    Series {
        name: "lock: hand-over beside other queues",
        of: "clients that wait, each for its own key",
        sizes: CROWDS,
        built_in: Probe {
            name: "RPUSH to BLPOP",
            setup: &["RPUSH {key} turn"],
            fill: "",
            load: Load::Aside {
                waiting: "BLPOP {key}:{client} 0",
                give: LIST_GIVE,
                take: LIST_TAKE,
            },
        },
        sluice: Probe {
            name: "LOCK.RELEASE to the next",
            setup: &[],
            fill: "LOCK.ACQUIRE {key}:{i} holder PX 3600000",
            load: Load::Aside {
                waiting: "LOCK.ACQUIRE {key}:{client} waiter PX 60000 BLOCK 0",
                give: LOCK_GIVE,
                take: LOCK_TAKE,
            },
        },
        idle: false,
    },
];
