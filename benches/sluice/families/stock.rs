//! `STOCK.*`.

use crate::row::Reply::{Array, Bulk, Int, Is};
use crate::row::{
    Contest, Family, Group, Load, Pair, Probe, Row, Series, bar, figure, hot, row, step,
};

use super::SIZES;

pub(crate) const FAMILY: Family = Family {
    title: "Stock",
    file: "stock",
    text: "Reference: [stock.md](stock.md).",
    groups: &[
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
    ],
    chart: &[
        "INCR of a counter",
        "GET + DECRBY (Lua)",
        "HMGET + HINCRBY (Lua)",
        "the server's part of STOCK.DEDUCT",
        "STOCK.DEDUCT",
        "STOCK.DEDUCT, sold out",
        "STOCK.MDEDUCT, 2 keys",
        "XADD of an event",
        "order, user limit and XADD (Lua)",
        "STOCK.DEDUCT with an order",
        "the server's part of the same",
        "STOCK.DEDUCT with order, user and event",
        "STOCK.RESERVE + STOCK.CONFIRM",
    ],
    figures: &[
        bar("STOCK.DEDUCT", "INCR of a counter", 1.3).because(
            "a large part of the difference is the server's part of such a command: see below",
        ),
        figure("the server's part of STOCK.DEDUCT", "INCR of a counter"),
        hot("STOCK.DEDUCT", "the server's part of STOCK.DEDUCT").because(
            "the floor reads no quantity and decides nothing: both take about 200 instructions",
        ),
        figure("GET + DECRBY (Lua)", "INCR of a counter"),
        figure("HMGET + HINCRBY (Lua)", "INCR of a counter"),
        bar("STOCK.DEDUCT, sold out", "STOCK.DEDUCT", 1.0)
            .because("the same work except the subtraction: the difference is noise"),
        figure(
            "STOCK.DEDUCT with order, user and event, sold out",
            "STOCK.DEDUCT with order, user and event",
        ),
        bar(
            "STOCK.DEDUCT with order, user and event",
            "INCR of a counter",
            4.0,
        )
        .because("most of the cost is the event: see the row of XADD alone"),
        hot(
            "STOCK.DEDUCT with order, user and event",
            "the server's part of the same",
        )
        .because(
            "the floor remembers no order and no user: these take about 1500 instructions, the entry 550, \
             the options 190, the effect 200",
        ),
        figure("XADD of an event", "INCR of a counter"),
        figure("order, user limit and XADD (Lua)", "INCR of a counter"),
        figure("STOCK.GET", "GET of a counter"),
    ],
    pairs: &[
        Pair {
            title: "sell one item",
            built_in: "INCR of a counter",
            lua: "GET + DECRBY (Lua)",
            sluice: "STOCK.DEDUCT",
        },
        Pair {
            title: "sell, with order, user limit and event",
            built_in: "INCR of a counter",
            lua: "order, user limit and XADD (Lua)",
            sluice: "STOCK.DEDUCT with order, user and event",
        },
    ],
    contest: Some(CONTEST),
    series: SERIES,
};

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
        "the server's part of STOCK.DEDUCT",
        &["SET {key} 1"],
        &[step("FLOOR.DEDUCT {key} 1", Int)],
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
        "the server's part of the same",
        &["SET {key} 1"],
        &[step(
            "FLOOR.DEDUCT_EVENT {key} 1 ORDER order:{i} USER user:{i}",
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

/// The built-in command sells without order, user and event: it shows the lowest latency.
const CONTEST: Contest = Contest {
    name: "stock: sell with order, user and event",
    rows: [
        row(
            "DECRBY of a counter",
            &["SET {key} 1000000000"],
            &[step("DECRBY {key} 1", Int)],
        ),
        row(
            "order, user limit and XADD (Lua)",
            &["SET {key} 1000000000"],
            &[step(
                "EVALSHA {sha:stock_order} 4 {key} {key}:orders {key}:users {key}:events 1 order:{i} user:{i} 5",
                Int,
            )],
        ),
        row(
            "STOCK.DEDUCT with order, user and event",
            &["STOCK.SET {key} 1000000000 PERUSER 5 EVENTS {key}:events"],
            &[step(
                "STOCK.DEDUCT {key} 1 ORDER order:{i} USER user:{i}",
                Int,
            )],
        ),
    ],
};

const SERIES: &[Series] = &[
    Series {
        name: "stock: sell one of many products",
        of: "stocks",
        sizes: SIZES,
        built_in: Probe {
            name: "DECRBY",
            setup: &[],
            fill: "SET {key}:{i} 1000000000",
            load: Load::Cycle(&[step("DECRBY {key}:{r} 1", Int)]),
        },
        sluice: Probe {
            name: "STOCK.DEDUCT",
            setup: &[],
            fill: "STOCK.SET {key}:{i} 1000000000",
            load: Load::Cycle(&[step("STOCK.DEDUCT {key}:{r} 1", Int)]),
        },
        idle: false,
    },
    Series {
        name: "stock: one more order",
        of: "orders of one stock",
        sizes: SIZES,
        built_in: Probe {
            name: "HSET of a field",
            setup: &[],
            fill: "HSET {key} order:{i} 1",
            load: Load::Cycle(&[step("HSET {key} more:{i} 1", Is(1))]),
        },
        sluice: Probe {
            name: "STOCK.DEDUCT with an order",
            setup: &["STOCK.SET {key} 1000000000"],
            fill: "STOCK.DEDUCT {key} 1 ORDER order:{i}",
            load: Load::Cycle(&[step("STOCK.DEDUCT {key} 1 ORDER more:{i}", Int)]),
        },
        idle: false,
    },
    Series {
        name: "stock: reserve and cancel",
        of: "live reservations of one stock",
        sizes: SIZES,
        built_in: Probe {
            name: "ZADD + ZREM",
            setup: &[],
            fill: "ZADD {key} {i} order:{i}",
            load: Load::Cycle(&[
                step("ZADD {key} {r} more:{i}", Is(1)),
                step("ZREM {key} more:{i}", Is(1)),
            ]),
        },
        sluice: Probe {
            name: "STOCK.RESERVE + STOCK.CANCEL",
            setup: &["STOCK.SET {key} 1000000000"],
            fill: "STOCK.RESERVE {key} 1 ORDER order:{i} PX 3600000",
            load: Load::Cycle(&[
                step("STOCK.RESERVE {key} 1 ORDER more:{i} PX 3600000", Int),
                step("STOCK.CANCEL {key} more:{i}", Is(1)),
            ]),
        },
        idle: true,
    },
];
