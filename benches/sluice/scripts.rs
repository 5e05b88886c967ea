//! The Lua scripts that Sluice replaces, and the origin of each.

pub(crate) struct Script {
    /// `{sha:<name>}` calls it.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// In Markdown.
    pub(crate) from: &'static str,
}

pub(crate) const SCRIPTS: &[Script] = &[
    Script {
        name: "redisson_lock",
        text: include_str!("lua/redisson_lock.lua"),
        from: "[Redisson](https://github.com/redisson/redisson), `RedissonLock.tryLockInnerAsync`: as many calls as the original",
    },
    Script {
        name: "redisson_unlock",
        text: include_str!("lua/redisson_unlock.lua"),
        from: "Redisson, `RedissonLock.unlockAsync`: the original begins with one `EXISTS` more, and its newer versions run more commands",
    },
    Script {
        name: "compare_and_delete",
        text: include_str!("lua/compare_and_delete.lua"),
        from: "the documentation of [SET](https://redis.io/docs/latest/commands/set/)",
    },
    Script {
        name: "stock_string",
        text: include_str!("lua/stock_string.lua"),
        from: "ours, the usual pattern: `GET`, compare, `DECRBY`",
    },
    Script {
        name: "stock_hash",
        text: include_str!("lua/stock_hash.lua"),
        from: "ours, the usual pattern: a hash of the total and the sold quantity",
    },
    Script {
        name: "stock_order",
        text: include_str!("lua/stock_order.lua"),
        from: "ours, the shortest script with the effects of `STOCK.DEDUCT` with `ORDER`, `USER` and an event",
    },
    Script {
        name: "bloom_add",
        text: include_str!("lua/bloom_add.lua"),
        from: "ours, the usual pattern; it receives the bit positions, so it hashes nothing",
    },
    Script {
        name: "bloom_exists",
        text: include_str!("lua/bloom_exists.lua"),
        from: "ours, the same; it stops at the first bit that is not set",
    },
    Script {
        name: "incr_expire",
        text: include_str!("lua/incr_expire.lua"),
        from: "the documentation of [INCR](https://redis.io/docs/latest/commands/incr/), with a limit",
    },
    Script {
        name: "gcra",
        text: include_str!("lua/gcra.lua"),
        from: "ours, with the three calls of [redis_rate](https://github.com/go-redis/redis_rate): `TIME`, `GET`, `SET`",
    },
    Script {
        name: "cached_read",
        text: include_str!("lua/cached_read.lua"),
        from: "[rockscache](https://github.com/dtm-labs/rockscache), the first script of `Fetch`: for a hit the same two calls",
    },
    Script {
        name: "delay_poll",
        text: include_str!("lua/delay_poll.lua"),
        from: "ours, the usual pattern: a sorted set of due times that clients poll",
    },
];
