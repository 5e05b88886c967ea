//! `CACHE.*`.

use crate::row::Reply::{Begins, BeginsWithBulk, Bulk, Is};
use crate::row::{
    Contest, Family, Group, Load, Pair, Probe, Row, Series, bar, figure, hot, row, step,
};

use super::{OK, SIZES};

pub(crate) const FAMILY: Family = Family {
    title: "Caching",
    file: "cache",
    text: "Reference: [cache.md](cache.md).",
    groups: &[
        Group {
            name: "cache: read",
            rows: CACHE_READ,
        },
        Group {
            name: "cache: write",
            rows: CACHE_WRITE,
        },
    ],
    chart: &[
        "GET of a value of 128 bytes",
        "cached read of rockscache (Lua)",
        "CACHE.GET",
        "the server's part of CACHE.FETCH",
        "CACHE.FETCH, hit",
        "CACHE.FETCH EARLY, hit",
        "CACHE.FETCH, negative entry",
        "CACHE.FETCH, absent by its guard",
        "SET PX of 128 bytes",
        "the server's part of CACHE.SET",
        "CACHE.SET",
    ],
    figures: &[
        figure(
            "cached read of rockscache (Lua)",
            "GET of a value of 128 bytes",
        ),
        figure("CACHE.GET", "GET of a value of 128 bytes"),
        bar("CACHE.FETCH, hit", "GET of a value of 128 bytes", 1.3).because(
            "two more arguments than GET and a reply of three parts: see the server's part below",
        ),
        figure(
            "the server's part of CACHE.FETCH",
            "GET of a value of 128 bytes",
        ),
        hot("CACHE.FETCH, hit", "the server's part of CACHE.FETCH")
            .because("the floor reads no option: `LEASE` takes 180 instructions, the decision 90"),
        bar("CACHE.FETCH with a budget, hit", "CACHE.FETCH, hit", 1.1),
        bar("CACHE.FETCH with tracking, hit", "CACHE.FETCH, hit", 1.1).because(
            "the server asks the command for its keys and remembers them: see `GET` with tracking",
        ),
        figure("GET with tracking", "GET of a value of 128 bytes"),
        bar("CACHE.FETCH BREAKER, hit", "CACHE.FETCH, hit", 1.1)
            .because("four more arguments: the server takes 1700 instructions to read them, the command 400"),
        figure("CACHE.SET", "SET PX of 128 bytes"),
        hot("CACHE.SET", "the server's part of CACHE.SET").because(
            "the floor reads no option: `PX` takes 180 instructions, the decision 300, the count of bytes 140, leases and waiting clients 100, the effect 180",
        ),
    ],
    pairs: &[Pair {
        title: "read from the cache, a hit",
        built_in: "GET of a value of 128 bytes",
        lua: "cached read of rockscache (Lua)",
        sluice: "CACHE.FETCH, hit",
    }],
    contest: Some(CONTEST),
    series: SERIES,
};

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
        "the server's part of CACHE.FETCH",
        &["SET {key} {value} PX 3600000"],
        &[step("FLOOR.FETCH {key} LEASE 3000", HIT)],
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
        "CACHE.FETCH BREAKER, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000 BREAKER db 5 1000", HIT)],
    ),
    row(
        "CACHE.FETCH with a budget, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000", HIT)],
    )
    .between(
        "CONFIG SET sluice.cache-max-bytes 1gb",
        "CONFIG SET sluice.cache-max-bytes 0",
    ),
    row(
        "CACHE.FETCH with tracking, hit",
        CACHED,
        &[step("CACHE.FETCH {key} LEASE 3000", HIT)],
    )
    .between("CLIENT TRACKING ON", "CLIENT TRACKING OFF"),
    row(
        "GET with tracking",
        &["SET {key} {value} PX 3600000"],
        &[step("GET {key}", Bulk)],
    )
    .between("CLIENT TRACKING ON", "CLIENT TRACKING OFF"),
    row(
        "CACHE.FETCH, negative entry",
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
        "the server's part of CACHE.SET",
        &["SET {key} 1"],
        &[step("FLOOR.STORE {key} {value} PX 3600000", Is(1))],
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

const CONTEST: Contest = Contest {
    name: "cache: read, a hit",
    rows: [
        row(
            "GET of 128 bytes",
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
        row(
            "CACHE.FETCH, hit",
            CACHED,
            &[step("CACHE.FETCH {key} LEASE 3000", HIT)],
        ),
    ],
};

const SERIES: &[Series] = &[Series {
    name: "cache: read one of many",
    of: "values of 128 bytes",
    sizes: SIZES,
    built_in: Probe {
        name: "GET",
        setup: &[],
        fill: "SET {key}:{i} {value} PX 3600000",
        load: Load::Cycle(&[step("GET {key}:{r}", Bulk)]),
    },
    sluice: Probe {
        name: "CACHE.FETCH, hit",
        setup: &[],
        fill: "CACHE.SET {key}:{i} {value} PX 3600000",
        load: Load::Cycle(&[step("CACHE.FETCH {key}:{r} LEASE 3000", HIT)]),
    },
    idle: true,
}];
