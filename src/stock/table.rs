//! The command table of stocks, with the positions of the keys.

use super::commands::{
    add, apply_effects, cancel, confirm, deduct, get, import, info, mget, order, reserve, set,
};
use super::several::{mcancel, mconfirm, mdeduct, mreserve};
use crate::server::entry::{apply, read, write, write_after_key, write_keyed};
use crate::server::services::command::{
    Access, Command, CountedKeys, CountedPairs, KeyPositions, KeySpec, Keys, ONE_KEY, ONE_KEY_READ,
};

const ALL_READ: &[KeySpec] = &[KeySpec {
    positions: KeyPositions::From(1),
    access: Access::Read,
}];

/// The stock and, after the total, its event stream.
struct KeyAndStream;
impl Keys for KeyAndStream {
    const SPECS: &'static [KeySpec] = &[
        ONE_KEY[0],
        KeySpec {
            positions: KeyPositions::After(c"EVENTS", 3),
            access: Access::Write,
        },
    ];
}

/// The same without a total.
struct KeyAndStreamOnly;
impl Keys for KeyAndStreamOnly {
    const SPECS: &'static [KeySpec] = &[
        ONE_KEY[0],
        KeySpec {
            positions: KeyPositions::After(c"EVENTS", 2),
            access: Access::Write,
        },
    ];
}

/// All commands of the family.
pub const TABLE: &[Command] = &[
    Command {
        name: "STOCK.SET",
        usage: "key total [NX | XX] [PERUSER n] [RETAIN ms] [EVENTS stream [MAXLEN n]]",
        summary: "Creates or replaces a stock with its total and its terms of sale.",
        complexity: "O(1)",
        arity: -3,
        flags: "write deny-oom fast getkeys-api",
        categories: "write fast",
        keys: KeyAndStream::SPECS,
        run: write_keyed::<_, KeyAndStream>(set),
    },
    Command {
        name: "STOCK.ADD",
        usage: "key delta [ORDER id]",
        summary: "Adds to the available quantity of a stock, or removes from it; returns the available quantity.",
        complexity: "O(1)",
        arity: -3,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(add),
    },
    Command {
        name: "STOCK.DEDUCT",
        usage: "key qty [ORDER id] [USER user]",
        summary: "Sells a quantity if it is available; returns the available quantity.",
        complexity: "O(1)",
        arity: -3,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write_after_key(deduct),
    },
    Command {
        name: "STOCK.RESERVE",
        usage: "key qty ORDER id PX ms [USER user]",
        summary: "Reserves a quantity for a time; without a confirmation the reservation expires.",
        complexity: "O(log R) with R live reservations of the stock",
        arity: -7,
        flags: "write deny-oom fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(reserve),
    },
    Command {
        name: "STOCK.CONFIRM",
        usage: "key id",
        summary: "Sells the reserved quantity of an order; returns the quantity.",
        complexity: "O(log R) with R live reservations of the stock",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(confirm),
    },
    Command {
        name: "STOCK.CANCEL",
        usage: "key id",
        summary: "Cancels a reservation or refunds a sale; returns the quantity.",
        complexity: "O(log R) with R live reservations of the stock",
        arity: 3,
        flags: "write fast",
        categories: "write fast",
        keys: ONE_KEY,
        run: write(cancel),
    },
    Command {
        name: "STOCK.MDEDUCT",
        usage: "numkeys key qty [key qty ...] [ORDER id] [USER user]",
        summary: "Sells quantities of several stocks at once, all or none; returns the available quantities.",
        complexity: "O(K) with K keys",
        arity: -4,
        flags: "write deny-oom getkeys-api",
        categories: "write slow",
        keys: CountedPairs::SPECS,
        run: write_keyed::<_, CountedPairs>(mdeduct),
    },
    Command {
        name: "STOCK.MRESERVE",
        usage: "numkeys key qty [key qty ...] ORDER id PX ms [USER user]",
        summary: "Reserves quantities of several stocks at once, all or none.",
        complexity: "O(K log R) with K keys and R live reservations of each",
        arity: -8,
        flags: "write deny-oom getkeys-api",
        categories: "write slow",
        keys: CountedPairs::SPECS,
        run: write_keyed::<_, CountedPairs>(mreserve),
    },
    Command {
        name: "STOCK.MCONFIRM",
        usage: "numkeys key [key ...] id",
        summary: "Sells the reserved quantities of an order of several stocks, all or none.",
        complexity: "O(K log R) with K keys and R live reservations of each",
        arity: -4,
        flags: "write getkeys-api",
        categories: "write slow",
        keys: CountedKeys::SPECS,
        run: write_keyed::<_, CountedKeys>(mconfirm),
    },
    Command {
        name: "STOCK.MCANCEL",
        usage: "numkeys key [key ...] id",
        summary: "Cancels the reservations or refunds the sales of an order of several stocks, all or none.",
        complexity: "O(K log R) with K keys and R live reservations of each",
        arity: -4,
        flags: "write getkeys-api",
        categories: "write slow",
        keys: CountedKeys::SPECS,
        run: write_keyed::<_, CountedKeys>(mcancel),
    },
    Command {
        name: "STOCK.GET",
        usage: "key",
        summary: "Returns the available quantity of a stock.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(get),
    },
    Command {
        name: "STOCK.MGET",
        usage: "key [key ...]",
        summary: "Returns the available quantities of several stocks.",
        complexity: "O(K) with K keys",
        arity: -2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ALL_READ,
        run: read(mget),
    },
    Command {
        name: "STOCK.ORDER",
        usage: "key id",
        summary: "Returns the state, the quantity and the user of an order.",
        complexity: "O(1)",
        arity: 3,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(order),
    },
    Command {
        name: "STOCK.INFO",
        usage: "key",
        summary: "Returns the quantities and the terms of sale of a stock.",
        complexity: "O(1)",
        arity: 2,
        flags: "readonly fast",
        categories: "read fast",
        keys: ONE_KEY_READ,
        run: read(info),
    },
    Command {
        name: "STOCK.IMPORT",
        usage: "key [PERUSER n] [RETAIN ms] [EVENTS stream [MAXLEN n]]",
        summary: "Turns a counter, or a hash with total and ordered, into a stock in place.",
        complexity: "O(1)",
        arity: -2,
        flags: "write deny-oom fast getkeys-api",
        categories: "write fast",
        keys: KeyAndStreamOnly::SPECS,
        run: write_keyed::<_, KeyAndStreamOnly>(import),
    },
    Command {
        name: "STOCK.APPLY",
        usage: "key effects",
        summary: "Internal: applies a master's changes of a stock, on replicas and from the AOF.",
        complexity: "O(N) with N effects",
        arity: 3,
        flags: "write",
        categories: "write slow dangerous",
        keys: ONE_KEY,
        run: apply(apply_effects),
    },
];
