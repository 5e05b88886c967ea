//! `DELAY.*`.

use crate::row::Reply::{Bulk, Is};
use crate::row::{Family, Group, Row, bar, figure, row, step};

pub(crate) const FAMILY: Family = Family {
    title: "Delay queues",
    file: "delay",
    text: "Reference: [delay.md](delay.md). The queues have 10 000 further messages, the sorted sets as many further members.",
    groups: &[
        Group {
            name: "delay: schedule and cancel a message",
            rows: SCHEDULE,
        },
        Group {
            name: "delay: deliver a message",
            rows: DELIVER,
        },
    ],
    chart: &[
        "ZADD + ZREM",
        "DELAY.ADD + DELAY.CANCEL",
        "XADD",
        "ZADD + Lua: ZRANGE BYSCORE, ZREM, XADD",
        "DELAY.ADD of a message that is due",
    ],
    figures: &[
        bar("DELAY.ADD + DELAY.CANCEL", "ZADD + ZREM", 2.0),
        bar(
            "DELAY.ADD of a message that is due",
            "ZADD + Lua: ZRANGE BYSCORE, ZREM, XADD",
            1.0,
        ),
        figure("DELAY.ADD of a message that is due", "XADD").because(
            "the delivery alone is nearly an XADD; the rest is adding and removing the message",
        ),
    ],
    pairs: &[],
    contest: None,
    series: &[],
};

const SCHEDULE: &[Row] = &[
    row(
        "ZADD + ZREM",
        &[
            "EVAL for\ti=1,10000\tdo\tredis.call('ZADD',KEYS[1],9e12+i,'other'..i)end;return\t1 1 {key}",
        ],
        &[
            step("ZADD {key} 9000000000000 m{i}", Is(1)),
            step("ZREM {key} m{i}", Is(1)),
        ],
    ),
    row(
        "DELAY.ADD + DELAY.CANCEL",
        &[
            "DELAY.SET {key} STREAM {key}:s",
            "EVAL for\ti=1,10000\tdo\tredis.call('DELAY.ADD',KEYS[1],'other'..i,'PX','300000000','VALUES','f','v')end;return\t1 1 {key}",
        ],
        &[
            step("DELAY.ADD {key} m{i} PX 300000000 VALUES f v", Is(1)),
            step("DELAY.CANCEL {key} m{i}", Is(1)),
        ],
    ),
];

const DELIVER: &[Row] = &[
    row("XADD", &[], &[step("XADD {key} MAXLEN ~ 1000 * f v", Bulk)]),
    row(
        "ZADD + Lua: ZRANGE BYSCORE, ZREM, XADD",
        &[
            "EVAL for\ti=1,10000\tdo\tredis.call('ZADD',KEYS[1],9e12+i,'other'..i)end;return\t1 1 {key}",
        ],
        &[
            step("ZADD {key} 1 m{i}", Is(1)),
            step("EVALSHA {sha:delay_poll} 2 {key} {key}:s 2", Is(1)),
        ],
    ),
    row(
        "DELAY.ADD of a message that is due",
        &[
            "DELAY.SET {key} STREAM {key}:s MAXLEN 1000",
            "EVAL for\ti=1,10000\tdo\tredis.call('DELAY.ADD',KEYS[1],'other'..i,'PX','300000000','VALUES','f','v')end;return\t1 1 {key}",
        ],
        &[step("DELAY.ADD {key} m{i} PX 0 VALUES f v", Is(1))],
    ),
];
