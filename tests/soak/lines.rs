//! The commands of the soak, as lines in the notation of the documentation.
//!
//! `[...]` is taken or left out, `a|b` is a choice, `x*` comes once to four times, and a word that begins with `$` is
//! drawn from what [`draw`](crate::draw) knows by that name. A number in front says how often a line comes.

/// Every command of the module, with all its options.
pub(crate) const OURS: &[(u32, &str)] = &[
    // Locks and semaphores
    (8, "LOCK.ACQUIRE $lock $owner [SHARED] [PX $ms] [ID $id]"),
    (
        3,
        "LOCK.ACQUIRE $lock $owner [SHARED] [PX $ms] [WATCHDOG] [ID $id]",
    ),
    (
        1,
        "LOCK.ACQUIRE $lock $owner [SHARED] [PX $ms] BLOCK $moment",
    ),
    (
        3,
        "LOCK.ACQUIRE $lock $owner [SHARED] [PX $ms] [BLOCK $ms] [WATCHDOG [MAXHOLD $ms] [LINGER]] ID $id NOTIFY $word",
    ),
    (2, "LOCK.CANCEL $lock $id"),
    (6, "LOCK.RELEASE $lock $owner [ALL] [ID $id]"),
    (2, "LOCK.RENEW $lock $owner [PX $ms]"),
    (2, "LOCK.UPGRADE $lock $owner [PX $ms]"),
    (1, "LOCK.UPGRADE $lock $owner BLOCK $moment"),
    (2, "LOCK.DOWNGRADE $lock $owner"),
    (
        3,
        "LOCK.MACQUIRE 2 $lock $lock $owner [PX $ms] [WATCHDOG] [ID $id]",
    ),
    (1, "LOCK.MACQUIRE 2 $lock $lock $owner PX $ms BLOCK $moment"),
    (
        1,
        "LOCK.MACQUIRE 2 $lock $lock $owner [PX $ms] [BLOCK $ms] [WATCHDOG [MAXHOLD $ms] [LINGER]] ID $id NOTIFY $word",
    ),
    (2, "LOCK.MRELEASE 2 $lock $lock $owner [ALL] [ID $id]"),
    (2, "LOCK.HELD $lock $owner"),
    (2, "LOCK.INFO $lock"),
    (2, "LOCK.GUARD $guard $number [PX $ms]"),
    (
        6,
        "SEM.ACQUIRE $sem $owner LIMIT $few [PERMITS $few] [PX $ms] [WATCHDOG] [ID $id]",
    ),
    (
        1,
        "SEM.ACQUIRE $sem $owner LIMIT 3 [PERMITS 2] PX $ms BLOCK $moment",
    ),
    (
        3,
        "SEM.ACQUIRE $sem $owner LIMIT $few [PERMITS $few] [PX $ms] [BLOCK $ms] [WATCHDOG [MAXHOLD $ms] [LINGER]] ID $id NOTIFY $word",
    ),
    (
        3,
        "SEM.MACQUIRE 2 $sem $few $sem $few $owner [PERMITS $few] [PX $ms] [WATCHDOG [MAXHOLD $ms] [LINGER]] [ID $id]",
    ),
    (
        1,
        "SEM.MACQUIRE 2 $sem 3 $sem 3 $owner [PERMITS 2] PX $ms BLOCK $moment",
    ),
    (
        1,
        "SEM.MACQUIRE 2 $sem 3 $sem 3 $owner [PX $ms] [BLOCK $ms] ID $id NOTIFY $word",
    ),
    (
        2,
        "SEM.MRELEASE 2 $sem $sem $owner [PERMITS $few|ALL] [ID $id]",
    ),
    (2, "SEM.CANCEL $sem $id"),
    (4, "SEM.RELEASE $sem $owner [PERMITS $few|ALL] [ID $id]"),
    (2, "SEM.RENEW $sem $owner [PX $ms]"),
    (2, "SEM.INFO $sem"),
    // Stock
    (
        2,
        "STOCK.SET $stock $number [NX|XX] [PERUSER $few] [RETAIN $ms] [EVENTS $stream [MAXLEN $number]]",
    ),
    (4, "STOCK.ADD $stock $number [ORDER $order]"),
    (6, "STOCK.DEDUCT $stock $few [ORDER $order] [USER $owner]"),
    (
        6,
        "STOCK.RESERVE $stock $few ORDER $order PX $ms [USER $owner]",
    ),
    (4, "STOCK.CONFIRM $stock $order"),
    (4, "STOCK.CANCEL $stock $order"),
    (
        2,
        "STOCK.MDEDUCT 2 $stock $few $stock $few [ORDER $order] [USER $owner]",
    ),
    (
        2,
        "STOCK.MRESERVE 2 $stock $few $stock $few ORDER $order PX $ms [USER $owner]",
    ),
    (1, "STOCK.MCONFIRM 2 $stock $stock $order"),
    (1, "STOCK.MCANCEL 2 $stock $stock $order"),
    (3, "STOCK.GET $stock"),
    (1, "STOCK.MGET $stock*"),
    (2, "STOCK.ORDER $stock $order"),
    (2, "STOCK.INFO $stock"),
    (1, "SET $stock $few"),
    (1, "HSET $stock total 100 ordered $few"),
    (
        2,
        "STOCK.IMPORT $stock [PERUSER $few] [RETAIN $ms] [EVENTS $stream [MAXLEN $number]]",
    ),
    // Filters
    (
        2,
        "BF.RESERVE $bloom 0.01 $number [EXPANSION $few] [NONSCALING]",
    ),
    (1, "BF.RESERVE $bloom LIKE $bloom"),
    (6, "BF.ADD $bloom $item"),
    (3, "BF.MADD $bloom $item*"),
    (
        3,
        "BF.INSERT $bloom [CAPACITY $number] [ERROR 0.001] [EXPANSION $few] [NOCREATE] [NONSCALING] ITEMS $item*",
    ),
    (4, "BF.EXISTS $bloom $item"),
    (2, "BF.MEXISTS $bloom $item*"),
    (1, "BF.CARD $bloom"),
    (1, "BF.INFO $bloom [CAPACITY|SIZE|FILTERS|ITEMS|EXPANSION]"),
    (2, "BF.SCANDUMP $bloom $few"),
    (1, "BF.SCANDUMP $bloom 0"),
    (2, "BF.LOADCHUNK $bloom $chunk"),
    (1, "BF.MERGE $bloom 2 $bloom $bloom"),
    (
        2,
        "CF.RESERVE $cuckoo $number [BUCKETSIZE $few] [MAXITERATIONS $few] [EXPANSION $few] [BITS 8|BITS 16|BITS 32]",
    ),
    (5, "CF.ADD $cuckoo $item"),
    (3, "CF.ADDNX $cuckoo $item"),
    (
        2,
        "CF.INSERT $cuckoo [CAPACITY $number] [NOCREATE] ITEMS $item*",
    ),
    (
        2,
        "CF.INSERTNX $cuckoo [CAPACITY $number] [NOCREATE] ITEMS $item*",
    ),
    (3, "CF.EXISTS $cuckoo $item"),
    (2, "CF.MEXISTS $cuckoo $item*"),
    (2, "CF.COUNT $cuckoo $item"),
    (4, "CF.DEL $cuckoo $item"),
    (1, "CF.COMPACT $cuckoo"),
    (1, "CF.INFO $cuckoo"),
    (1, "CF.SCANDUMP $cuckoo $few"),
    (1, "CF.SCANDUMP $cuckoo 0"),
    (2, "CF.LOADCHUNK $cuckoo $chunk"),
    // Caches
    (4, "CACHE.GET $cache"),
    (
        10,
        "CACHE.FETCH $cache LEASE $ms [EARLY $ms|BETA 1.5] [SLIDE $ms] [GUARD $bloom $item|GUARD $cuckoo $item]",
    ),
    (1, "CACHE.FETCH $cache LEASE $ms BLOCK $moment"),
    (
        6,
        "CACHE.SET $cache $value PX $ms [STALE $ms] [JITTER $few] [TOKEN $token] [VER $number]",
    ),
    (
        2,
        "CACHE.SETNULL $cache PX $ms [STALE $ms] [JITTER $few] [TOKEN $token] [VER $number]",
    ),
    (3, "CACHE.DEL $cache [STALE $ms] [GRACE $ms] [VER $number]"),
    (
        3,
        "CACHE.FETCH $cache LEASE $ms [SLIDE $ms] BREAKER db $few $moment",
    ),
    (1, "CACHE.BREAKER db [RESET]"),
    (2, "CACHE.FAIL $cache $token [BACKOFF $ms]"),
    (1, "CACHE.INFO $cache"),
    // Limits
    (
        5,
        "RATE.GCRA $gcra $few $few $ms [COST $few] [PEEK] [AHEAD $ms]",
    ),
    (
        5,
        "RATE.WINDOW $window $few $ms [COST $few] [PEEK] [SLIDING|EXACT]",
    ),
    (
        3,
        "RATE.TIERS $tiers 2 $few $few $ms $few $few $ms [COST $few] [PEEK] [AHEAD $ms]",
    ),
    (
        3,
        "RATE.MGCRA 2 $gcra $few $few $ms $gcra $few $few $ms [COST $few] [PEEK] [AHEAD $ms]",
    ),
    (3, "RATE.CHARGE $rate $few"),
    (3, "RATE.REFUND $rate $few"),
    (3, "RATE.ONCE $once PX $ms"),
    (2, "CL.THROTTLE $gcra $few $few $few [$few]"),
    // Work that is done once
    (5, "ONCE.BEGIN $work LEASE $ms [FINGERPRINT $item]"),
    (1, "ONCE.BEGIN $work LEASE $ms BLOCK $moment"),
    (4, "ONCE.DONE $work $turn $value PX $ms"),
    (2, "ONCE.FAIL $work $turn"),
    (1, "ONCE.INFO $work"),
    // Delay queues
    (1, "DELAY.SET $queue STREAM $stream [MAXLEN $number]"),
    (
        6,
        "DELAY.ADD $queue $order PX $ms [NX|XX] VALUES $item $value",
    ),
    (3, "DELAY.CANCEL $queue $order*"),
    (2, "DELAY.GET $queue $order"),
    (1, "DELAY.RANGE $queue $few"),
    (2, "DELAY.INFO $queue"),
    // All families
    (2, "SLUICE.HOT [COUNT $few]"),
    (1, "SLUICE.HOT lock [COUNT $few]"),
    (1, "SLUICE.HOT RESET"),
    // What only masters send: nonsense from anybody else
    (1, "LOCK.APPLY $lock $junk"),
    (1, "LOCK.FENCE $number"),
    (1, "STOCK.APPLY $stock $junk"),
    (1, "DELAY.APPLY $queue $junk"),
    (1, "SLUICE.APPLY $lock $junk"),
    (1, "BF.APPLY $bloom $junk"),
    (1, "CF.APPLY $cuckoo $junk"),
    (1, "CACHE.APPLY $cache $junk [$value]"),
    (1, "RATE.APPLY $rate $junk"),
    (1, "ONCE.APPLY $work $junk [$value]"),
];

/// What the server itself does to keys of the module, and to their database.
pub(crate) const THEIRS: &[(u32, &str)] = &[
    (30, "DEL $any [$any]"),
    (10, "UNLINK $any [$any]"),
    (10, "PEXPIRE $any $ms"),
    (4, "PERSIST $any"),
    (8, "RENAME $pair"),
    (3, "RENAMENX $pair"),
    (8, "COPY $pair [DB $database] [REPLACE]"),
    (4, "MOVE $any $database"),
    (16, "DUMP $any"),
    (20, "RESTORE $dump [REPLACE]"),
    (20, "RESTORE $garbage REPLACE"),
    (4, "SELECT $database"),
    (4, "MEMORY USAGE $any"),
    (2, "OBJECT ENCODING $any"),
    (2, "DEBUG DIGEST-VALUE $any"),
    (2, "TYPE $any"),
    (2, "SET $any wrong [PX 20]"),
    (2, "RPUSH $any wrong"),
    (2, "LRANGE $any 0 -1"),
    (1, "EVAL $script 0 $word*"),
    (4, "EVAL $call 1 $lock $owner"),
    (1, "INFO sluice"),
    (1, "COMMAND DOCS LOCK.ACQUIRE"),
    (2, "CONFIG SET sluice.lock-default-lease $ms"),
    (2, "CONFIG SET sluice.lock-max-waiters $number"),
    (2, "CONFIG SET sluice.cache-max-leases $number"),
    (1, "CONFIG SET sluice.bloom-error-rate 0.02"),
    (1, "CONFIG SET sluice.bloom-capacity $number"),
    (1, "CONFIG SET sluice.bloom-expansion $few"),
    (1, "CONFIG SET sluice.cuckoo-capacity $number"),
    (1, "CONFIG GET sluice.*"),
];

/// What comes once in a few thousand commands: the dataset goes, moves, is written or is loaded.
pub(crate) const SELDOM: &[(u32, &str)] = &[
    (3, "FLUSHDB [ASYNC]"),
    (1, "FLUSHALL"),
    (3, "SWAPDB 0 1"),
    (1, "BGREWRITEAOF"),
    (1, "DEBUG RELOAD"),
    (1, "SCRIPT FLUSH"),
];

/// What clients do that may wait for long, or that go while they hold.
pub(crate) const WAITERS: &[(u32, &str)] = &[
    (
        4,
        "LOCK.ACQUIRE $lock $stranger [SHARED] [PX $ms] BLOCK $wait [WATCHDOG] [ID $id]",
    ),
    (
        2,
        "LOCK.MACQUIRE 2 $lock $lock $stranger [PX $ms] BLOCK $wait [WATCHDOG]",
    ),
    (1, "LOCK.UPGRADE $lock $owner BLOCK $wait"),
    (
        3,
        "SEM.ACQUIRE $sem $stranger LIMIT 2 [PX $ms] BLOCK $wait [WATCHDOG]",
    ),
    (4, "CACHE.FETCH $cache LEASE $ms BLOCK $wait"),
    (
        4,
        "ONCE.BEGIN $work LEASE $ms [FINGERPRINT $item] BLOCK $wait",
    ),
    (1, "LOCK.ACQUIRE $lock $stranger PX 60000 WATCHDOG"),
];
