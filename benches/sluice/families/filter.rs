//! `BF.*` and `CF.*`.

use crate::row::Reply::{Array, Bulk, Int, Is};
use crate::row::{
    Contest, Family, Group, Load, Pair, Probe, Row, Series, Step, bar, figure, hot, row,
    row_of_100, step,
};

use super::SIZES;

pub(crate) const FAMILY: Family = Family {
    title: "Filters",
    file: "filters",
    text: "Reference: [filters.md](filters.md). The filters are filled to 80 %, and the queries find their items. A row with a hundred items counts \
           them as one command.",
    groups: &[
        Group {
            name: "bloom: one item of a Bloom filter",
            rows: BLOOM_ONE,
        },
        Group {
            name: "bloom: a hundred items, pipeline 10",
            rows: BLOOM_MANY,
        },
        Group {
            name: "cuckoo: one item of a cuckoo filter",
            rows: CUCKOO_ONE,
        },
        Group {
            name: "cuckoo: a hundred items, pipeline 10",
            rows: CUCKOO_MANY,
        },
    ],
    chart: &[
        "GET of 128 bytes",
        "7 SETBIT (Lua)",
        "7 GETBIT (Lua), there",
        "7 GETBIT (Lua), not there",
        "the server's part of BF.ADD",
        "BF.ADD into 1M",
        "the server's part of BF.EXISTS",
        "BF.EXISTS in 10 000",
        "BF.EXISTS in 1M",
        "BF.EXISTS in 100M",
        "the server's part of CF.ADD",
        "CF.ADD into 1M",
        "the server's part of CF.EXISTS",
        "CF.EXISTS in 10 000",
        "CF.EXISTS in 1M",
    ],
    figures: &[
        figure("7 SETBIT (Lua)", "GET of 128 bytes"),
        figure("7 GETBIT (Lua), there", "GET of 128 bytes"),
        figure("7 GETBIT (Lua), not there", "GET of 128 bytes"),
        bar("BF.ADD into 1M", "GET of 128 bytes", 1.35).because(FAR),
        figure("the server's part of BF.EXISTS", "GET of 128 bytes"),
        figure("BF.EXISTS in 10 000", "GET of 128 bytes"),
        hot("BF.ADD into 1M", "the server's part of BF.ADD").because(
            "the floor hashes no item: the hash and its seven bits take 160 instructions",
        ),
        hot("BF.EXISTS in 10 000", "the server's part of BF.EXISTS"),
        hot(
            "BF.MEXISTS x100 in 1M",
            "the server's part of BF.MEXISTS x100",
        )
        .because("the floor hashes no items: each hash and its seven bits take 180 instructions"),
        hot("CF.ADD into 1M", "the server's part of CF.ADD").because(
            "the floor hashes no item: the hash, its buckets and moved fingerprints take about 350 instructions",
        ),
        hot("CF.EXISTS in 10 000", "the server's part of CF.EXISTS")
            .because("the floor hashes no item: the hash and its two buckets take 190 instructions"),
        bar("BF.EXISTS in 100M", "GET of 128 bytes", 1.5).because(FAR),
        bar("BF.MEXISTS x100 in 1M", "GET of 128 bytes", 18.0),
        bar("BF.MEXISTS x100 in 100M", "GET of 128 bytes", 25.0),
        bar("BF.MADD x100 into 100M", "GET of 128 bytes", 33.0),
        bar("CF.ADD into 1M", "GET of 128 bytes", 1.8).because(FAR),
        figure("CF.EXISTS in 10 000", "GET of 128 bytes"),
        bar("CF.EXISTS in 1M", "GET of 128 bytes", 1.45).because(FAR),
    ],
    pairs: &[
        Pair {
            title: "add to a Bloom filter of 1 million",
            built_in: "GET of 128 bytes",
            lua: "7 SETBIT (Lua)",
            sluice: "BF.ADD into 1M",
        },
        Pair {
            title: "find in a Bloom filter of 1 million",
            built_in: "GET of 128 bytes",
            lua: "7 GETBIT (Lua), there",
            sluice: "BF.EXISTS in 1M",
        },
    ],
    contest: Some(CONTEST),
    series: SERIES,
};

/// Why a query of a large filter takes longer than that of a small filter.
const FAR: &str = "each item is used once, so its cache line is read from memory; the filter of 10 000 items is in the cache";

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
        "7 GETBIT (Lua), there",
        &["SETBIT {key} 9600000 0", "BITOP NOT {key} {key}"],
        &[step(
            "EVALSHA {sha:bloom_exists} 1 {key} {i}17 {i}29 {i}31 {i}43 {i}57 {i}61 {i}83",
            Is(1),
        )],
    ),
    row(
        "BF.ADD into 1M",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.ADD {key} new:{i}", Int)],
    ),
    row(
        "the server's part of BF.ADD",
        &["SET {key} 1"],
        &[step("FLOOR.ADD {key} new:{i}", Is(1))],
    ),
    row(
        "BF.ADD into 1M, there already",
        &["COPY filled:bloom:1000000 {key}"],
        &[step("BF.ADD {key} item:{i}", Is(0))],
    ),
    row(
        "the server's part of BF.EXISTS",
        &["SET {key} 1"],
        &[step("FLOOR.LOOK {key} item:{i}", Is(1))],
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
        "the server's part of BF.MEXISTS x100",
        &["SET {key} 1"],
        &[step("FLOOR.LOOK_MANY {key} {100 items}", Array)],
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
        "the server's part of CF.ADD",
        &["SET {key} 1"],
        &[step("FLOOR.ADD {key} new:{i}", Is(1))],
    ),
    row(
        "the server's part of CF.EXISTS",
        &["SET {key} 1"],
        &[step("FLOOR.LOOK {key} item:{i}", Is(1))],
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

const CONTEST: Contest = Contest {
    name: "bloom: add",
    rows: [
        row("GET of 128 bytes", &["SET {key} {value}"], &[GET]),
        row(
            "7 SETBIT (Lua)",
            &["SETBIT {key} 960000000 1"],
            &[step(
                "EVALSHA {sha:bloom_add} 1 {key} {i}17 {i}29 {i}31 {i}43 {i}57 {i}61 {i}83",
                Int,
            )],
        ),
        row(
            "BF.ADD into 1M",
            &["BF.RESERVE {key} 0.01 1000000"],
            &[step("BF.ADD {key} new:{i}", Int)],
        ),
    ],
};

const SERIES: &[Series] = &[
    Series {
        name: "bloom: query one of many",
        of: "items of a Bloom filter",
        sizes: SIZES,
        built_in: Probe {
            name: "SISMEMBER of a set",
            setup: &[],
            fill: "SADD {key} item:{i}",
            load: Load::Cycle(&[step("SISMEMBER {key} item:{r}", Is(1))]),
        },
        sluice: Probe {
            name: "BF.EXISTS",
            setup: &["BF.RESERVE {key} 0.01 {n}"],
            fill: "BF.ADD {key} item:{i}",
            load: Load::Cycle(&[step("BF.EXISTS {key} item:{r}", Is(1))]),
        },
        idle: false,
    },
    Series {
        name: "cuckoo: query one of many",
        of: "items of a cuckoo filter",
        sizes: SIZES,
        built_in: Probe {
            name: "SISMEMBER of a set",
            setup: &[],
            fill: "SADD {key} item:{i}",
            load: Load::Cycle(&[step("SISMEMBER {key} item:{r}", Is(1))]),
        },
        sluice: Probe {
            name: "CF.EXISTS",
            setup: &["CF.RESERVE {key} {n}"],
            fill: "CF.ADD {key} item:{i}",
            load: Load::Cycle(&[step("CF.EXISTS {key} item:{r}", Is(1))]),
        },
        idle: false,
    },
];
