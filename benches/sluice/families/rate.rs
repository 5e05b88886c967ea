//! `RATE.*`.

use crate::row::Reply::{Array, Int, Is};
use crate::row::{
    Contest, Family, Group, Load, Pair, Probe, Row, Series, bar, figure, hot, row, step,
};

use super::{OK, SIZES};

pub(crate) const FAMILY: Family = Family {
    title: "Rate limits",
    file: "rate",
    text: "Reference: [rate.md](rate.md).",
    groups: &[
        Group {
            name: "rate: a hot key",
            rows: RATE,
        },
        Group {
            name: "rate: once",
            rows: ONCE,
        },
    ],
    chart: &[
        "INCR of a hot key",
        "INCR + PEXPIRE (Lua)",
        "GCRA (Lua)",
        "the server's part of RATE.GCRA",
        "RATE.GCRA",
        "RATE.GCRA, limited",
        "the server's part of RATE.WINDOW",
        "RATE.WINDOW",
        "RATE.WINDOW SLIDING",
        "RATE.TIERS of 3",
        "RATE.GCRA AHEAD, a wait",
        "RATE.MGCRA of 2 keys",
        "RATE.CHARGE",
        "RATE.WINDOW EXACT",
        "SET NX PX of a new key",
        "RATE.ONCE of a new key",
    ],
    figures: &[
        figure("INCR + PEXPIRE (Lua)", "INCR of a hot key"),
        figure("GCRA (Lua)", "INCR of a hot key"),
        bar("RATE.GCRA", "INCR of a hot key", 1.5).because(FLOOR),
        figure("the server's part of RATE.GCRA", "INCR of a hot key"),
        hot("RATE.GCRA", "the server's part of RATE.GCRA").because(
            "the floor reads no numbers and computes nothing: three numbers take 210 instructions, the bucket 300, its end 130, \
             and one command in 16 replicates the bucket",
        ),
        figure("RATE.GCRA, limited", "INCR of a hot key"),
        bar("RATE.WINDOW", "INCR of a hot key", 1.4).because(FLOOR),
        figure("the server's part of RATE.WINDOW", "INCR of a hot key"),
        hot("RATE.WINDOW", "the server's part of RATE.WINDOW").because(
            "the floor reads no numbers and computes nothing: two numbers take 150 instructions, the window 250",
        ),
        figure("RATE.WINDOW, limited", "INCR of a hot key"),
        figure("RATE.GCRA AHEAD, a wait", "RATE.GCRA"),
        figure("RATE.MGCRA of 2 keys", "RATE.GCRA"),
        figure("RATE.CHARGE", "INCR of a hot key"),
        figure("RATE.WINDOW EXACT", "RATE.WINDOW"),
        figure("RATE.WINDOW EXACT, limited", "RATE.WINDOW, limited"),
        figure("RATE.ONCE of a new key", "SET NX PX of a new key"),
    ],
    pairs: &[Pair {
        title: "check a rate limit (GCRA)",
        built_in: "INCR of a hot key",
        lua: "GCRA (Lua)",
        sluice: "RATE.GCRA",
    }],
    contest: Some(CONTEST),
    series: SERIES,
};

const FLOOR: &str = "the server's part of a command with as many arguments and five numbers in the reply is nearly as much: see below";

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
            "EVALSHA {sha:gcra} 1 {key} 1000000000 1000 1000",
            LIMITS,
        )],
    ),
    row(
        "RATE.GCRA",
        &[],
        &[step("RATE.GCRA {key} 1000000000 1000 1000", LIMITS)],
    ),
    row(
        "the server's part of RATE.GCRA",
        &["SET {key} 1"],
        &[step("FLOOR.GCRA {key} 1000000000 1000 1000", LIMITS)],
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
        "the server's part of RATE.WINDOW",
        &["SET {key} 1 PX 3600000"],
        &[step("FLOOR.WINDOW {key} 1000000000 60000", LIMITS)],
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
        "RATE.GCRA AHEAD, no wait",
        &[],
        &[step(
            "RATE.GCRA {key} 1000000000 1000 1000 AHEAD 1000",
            LIMITS,
        )],
    ),
    row(
        "RATE.GCRA AHEAD, a wait",
        &["RATE.GCRA {key} 0 1000 1000"],
        &[step("RATE.GCRA {key} 0 1000 1000 AHEAD 3600000", LIMITS)],
    ),
    row(
        "RATE.MGCRA of 2 keys",
        &[],
        &[step(
            "RATE.MGCRA 2 {key}:1 1000000000 1000 1000 {key}:2 1000000000 1000 1000",
            LIMITS,
        )],
    ),
    row(
        "RATE.CHARGE",
        &["RATE.GCRA {key} 1000000000 1000 1000"],
        &[step("RATE.CHARGE {key} 1", Is(1))],
    ),
    row(
        "RATE.WINDOW EXACT",
        &[],
        &[step("RATE.WINDOW {key} 100000 3600000 EXACT", LIMITS)],
    ),
    row(
        "RATE.WINDOW EXACT, limited",
        &["RATE.WINDOW {key} 1 3600000 EXACT"],
        &[step("RATE.WINDOW {key} 1 3600000 EXACT", LIMITS)],
    ),
];

const ONCE: &[Row] = &[
    row(
        "SET NX PX of a new key",
        &[],
        &[step("SET {key}:{i} 1 NX PX 60000", OK)],
    ),
    row(
        "RATE.ONCE of a new key",
        &[],
        &[step("RATE.ONCE {key}:{i} PX 60000", Is(1))],
    ),
];

const CONTEST: Contest = Contest {
    name: "rate: check a limit",
    rows: [
        row("INCR of a hot key", &[], &[step("INCR {key}", Int)]),
        row(
            "GCRA (Lua)",
            &[],
            &[step(
                "EVALSHA {sha:gcra} 1 {key} 1000000000 1000 1000",
                LIMITS,
            )],
        ),
        row(
            "RATE.GCRA",
            &[],
            &[step("RATE.GCRA {key} 1000000000 1000 1000", LIMITS)],
        ),
    ],
};

/// Each request adds an hour, so no limit ends during the measurement.
const SERIES: &[Series] = &[Series {
    name: "rate: check one of many limits",
    of: "limits in use",
    sizes: SIZES,
    built_in: Probe {
        name: "INCR",
        setup: &[],
        fill: "SET {key}:{i} 1 PX 3600000",
        load: Load::Cycle(&[step("INCR {key}:{r}", Int)]),
    },
    sluice: Probe {
        name: "RATE.GCRA",
        setup: &[],
        fill: "RATE.GCRA {key}:{i} 1000000 1 3600000",
        load: Load::Cycle(&[step("RATE.GCRA {key}:{r} 1000000 1 3600000", LIMITS)]),
    },
    idle: true,
}];
