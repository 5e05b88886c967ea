//! The floor: the cost of built-in commands, and of module commands that find no key.

use crate::row::Reply::{Bulk, Int, Is, Nil, Text};
use crate::row::{Family, Group, Row, figure, row, step};

use super::OK;

pub(crate) const FAMILY: Family = Family {
    title: "The floor",
    file: "floor",
    text: "The cost of the server for a command, and of a Sluice command that finds no key and so does almost nothing. A command with as \
           many arguments can hardly cost less. Each argument adds to the cost, also for built-in commands.",
    groups: &[
        Group {
            name: "floor: built-in commands",
            rows: BUILT_IN,
        },
        Group {
            name: "floor: module commands on a missing key",
            rows: MISSING,
        },
    ],
    chart: &[
        "PING",
        "GET of a missing key",
        "GET",
        "SET",
        "INCR",
        "DEL of a missing key",
        "STOCK.GET, 1 argument",
        "CACHE.GET, 1 argument",
        "LOCK.HELD, 2 arguments",
        "BF.EXISTS, 2 arguments",
        "LOCK.RENEW, 4 arguments",
    ],
    figures: &[
        figure("CACHE.GET, 1 argument", "GET of a missing key"),
        figure("LOCK.HELD, 2 arguments", "GET of a missing key"),
        figure("LOCK.RENEW, 4 arguments", "GET of a missing key"),
    ],
    pairs: &[],
    contest: None,
    series: &[],
};

const BUILT_IN: &[Row] = &[
    row("PING", &[], &[step("PING", Text("PONG"))]),
    row("GET of a missing key", &[], &[step("GET {key}", Nil)]),
    row("GET", &["SET {key} {value}"], &[step("GET {key}", Bulk)]),
    row("SET", &[], &[step("SET {key} {value}", OK)]),
    row("INCR", &[], &[step("INCR {key}", Int)]),
    row("DEL of a missing key", &[], &[step("DEL {key}", Is(0))]),
    row(
        "SET XX PX of a missing key, 4 arguments",
        &[],
        &[step("SET {key} me XX PX 30000", Nil)],
    ),
];

const MISSING: &[Row] = &[
    row("PING again", &[], &[step("PING", Text("PONG"))]),
    row(
        "STOCK.GET, 1 argument",
        &[],
        &[step("STOCK.GET {key}", Nil)],
    ),
    row(
        "CACHE.GET, 1 argument",
        &[],
        &[step("CACHE.GET {key}", Nil)],
    ),
    row(
        "LOCK.HELD, 2 arguments",
        &[],
        &[step("LOCK.HELD {key} me", Nil)],
    ),
    row(
        "BF.EXISTS, 2 arguments",
        &[],
        &[step("BF.EXISTS {key} item", Is(0))],
    ),
    row(
        "LOCK.RENEW, 4 arguments",
        &[],
        &[step("LOCK.RENEW {key} me PX 30000", Nil)],
    ),
];
