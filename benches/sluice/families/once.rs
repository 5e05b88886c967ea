//! `ONCE.*`.

use crate::row::Reply::{Begins, Bulk, Is};
use crate::row::{Family, Group, Row, bar, row, step};

use super::OK;

pub(crate) const FAMILY: Family = Family {
    title: "Work that is done once",
    file: "once",
    text: "Reference: [once.md](once.md).",
    groups: &[
        Group {
            name: "once: begin and end work",
            rows: WORK,
        },
        Group {
            name: "once: query a result",
            rows: RESULT,
        },
    ],
    chart: &[
        "SET NX PX + SET PX of 128 bytes",
        "ONCE.BEGIN + ONCE.DONE of 128 bytes",
        "ONCE.BEGIN FINGERPRINT + ONCE.DONE of 128 bytes",
        "GET of a result of 128 bytes",
        "ONCE.BEGIN, done",
    ],
    figures: &[
        bar(
            "ONCE.BEGIN + ONCE.DONE of 128 bytes",
            "SET NX PX + SET PX of 128 bytes",
            1.5,
        ),
        bar("ONCE.BEGIN, done", "GET of a result of 128 bytes", 1.3)
            .because("two more arguments than GET and a reply of three parts, whose cost in the server is that of CACHE.FETCH"),
    ],
    pairs: &[],
    contest: None,
    series: &[],
};

const WORK: &[Row] = &[
    row(
        "SET NX PX + SET PX of 128 bytes",
        &[],
        &[
            step("SET {key}:{i} {client} NX PX 30000", OK),
            step("SET {key}:{i} {value} PX 3600000", OK),
        ],
    ),
    row(
        "ONCE.BEGIN + ONCE.DONE of 128 bytes",
        &[],
        &[
            step("ONCE.BEGIN {key}:{i} LEASE 30000", Begins("NEW")),
            step("ONCE.DONE {key}:{i} {token} {value} PX 3600000", Is(1)),
        ],
    ),
    row(
        "ONCE.BEGIN FINGERPRINT + ONCE.DONE of 128 bytes",
        &[],
        &[
            step(
                "ONCE.BEGIN {key}:{i} LEASE 30000 FINGERPRINT 0123456789abcdef0123456789abcdef",
                Begins("NEW"),
            ),
            step("ONCE.DONE {key}:{i} {token} {value} PX 3600000", Is(1)),
        ],
    ),
    row(
        "ONCE.BEGIN + ONCE.FAIL",
        &[],
        &[
            step("ONCE.BEGIN {key}:{i} LEASE 30000", Begins("NEW")),
            step("ONCE.FAIL {key}:{i} {token}", Is(1)),
        ],
    ),
];

const RESULT: &[Row] = &[
    row(
        "GET of a result of 128 bytes",
        &["SET {key} {value} PX 3600000"],
        &[step("GET {key}", Bulk)],
    ),
    row(
        "ONCE.BEGIN, done",
        &[
            "EVAL redis.call('ONCE.DONE',KEYS[1],redis.call('ONCE.BEGIN',KEYS[1],'LEASE','30000')[3],ARGV[1],'PX','3600000')return(1) \
             1 {key} {value}",
        ],
        &[step("ONCE.BEGIN {key} LEASE 30000", Begins("DONE"))],
    ),
    row(
        "ONCE.BEGIN, busy",
        &["ONCE.BEGIN {key} LEASE 3600000"],
        &[step("ONCE.BEGIN {key} LEASE 30000", Begins("BUSY"))],
    ),
];
