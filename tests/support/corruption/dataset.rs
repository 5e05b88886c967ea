//! A small dataset with a value of every sort, and how such values are used.

use crate::support::{Lines, Raw, UNSAFE_INTEGER, Value};

/// What a family of commands makes.
pub struct Family {
    /// The commands, of which each changes something that stays.
    pub makes: &'static [&'static str],
    /// The keys of its own types that are there then.
    pub keys: &'static [&'static str],
}

/// Locks and semaphores.
pub const LOCKS: Family = Family {
    makes: &[
        "LOCK.ACQUIRE le me PX 90000000 ID first",
        "LOCK.ACQUIRE le me PX 90000000 ID second",
        "LOCK.RELEASE le me ID third",
        "LOCK.ACQUIRE ls a SHARED PX 90000000",
        "LOCK.ACQUIRE ls b SHARED PX 80000000 ID first",
        "LOCK.ACQUIRE lu a SHARED PX 90000000",
        "LOCK.UPGRADE lu a",
        "LOCK.DOWNGRADE lu a",
        "LOCK.RENEW lu a PX 95000000",
        "LOCK.ACQUIRE lw me PX 90000000 WATCHDOG",
        "LOCK.ACQUIRE gone me PX 90000000",
        "LOCK.RELEASE gone me",
        "SEM.ACQUIRE se a LIMIT 5 PERMITS 2 PX 90000000 ID first",
        "SEM.ACQUIRE se b LIMIT 5 PX 80000000",
        "SEM.RELEASE se a PERMITS 1 ID second",
    ],
    keys: &["le", "ls", "lu", "lw", "se"],
};

/// Stocks.
pub const STOCKS: Family = Family {
    makes: &[
        "STOCK.SET st 300 PERUSER 7 RETAIN 86400000 EVENTS ev MAXLEN 5000",
        "STOCK.RESERVE st 1 ORDER live PX 90000000 USER u",
        "STOCK.RESERVE st 2 ORDER confirmed PX 90000000 USER u",
        "STOCK.CONFIRM st confirmed",
        "STOCK.RESERVE st 3 ORDER released PX 90000000 USER v",
        "STOCK.CANCEL st released",
        "STOCK.DEDUCT st 4 ORDER sold USER u",
        "STOCK.CANCEL st sold",
        "STOCK.CANCEL st marked",
        "STOCK.ADD st -6 ORDER added",
        "STOCK.DEDUCT st 5 USER x",
        "STOCK.SET bare 20",
        "STOCK.DEDUCT bare 1",
        "STOCK.MRESERVE 2 st 1 bare 1 ORDER both PX 90000000 USER y",
    ],
    keys: &["st", "bare"],
};

/// Filters of both kinds.
pub const FILTERS: Family = Family {
    makes: &[
        "BF.RESERVE bf 0.1 12 EXPANSION 2",
        "BF.MADD bf i0 i1 i2 i3 i4 i5 i6 i7 i8 i9",
        "BF.MADD bf j0 j1 j2 j3 j4 j5 j6 j7 j8 j9 k0 k1 k2 k3 k4 k5 k6 k7 k8 k9",
        "BF.ADD bf new",
        "BF.RESERVE like LIKE bf",
        "BF.MERGE like 1 bf",
        "CF.RESERVE cf 12 EXPANSION 2 BITS 8",
        "CF.INSERT cf ITEMS i0 i1 i2 i3 i4 i5 i6 i7 i8 i9",
        "CF.INSERT cf ITEMS j0 j1 j2 j3 j4 j5 j6 j7 j8 j9 k0 k1 k2 k3 k4 k5 k6 k7 k8 k9",
        "CF.DEL cf i3",
        "CF.ADD cf new",
    ],
    keys: &["bf", "like", "cf"],
};

/// Cached entries.
pub const CACHES: Family = Family {
    makes: &[
        "CACHE.SET cv value PX 90000000 STALE 95000000 VER 5",
        "CACHE.SET cv other PX 90000000 STALE 95000000 VER 6",
        "CACHE.SETNULL cn PX 90000000",
        "CACHE.DEL ct GRACE 90000000 VER 7",
        "CACHE.SET cs value PX 90000000",
        "CACHE.DEL cs STALE 90000000 GRACE 80000000",
        "CACHE.SET gone value PX 90000000",
        "CACHE.DEL gone",
    ],
    keys: &["cv", "cn", "ct", "cs"],
};

/// Limits of all kinds.
pub const LIMITS: Family = Family {
    makes: &[
        "RATE.GCRA rg 4 1 315360000000 COST 3",
        "RATE.GCRA rg 4 1 315360000000",
        "RATE.REFUND rg 1",
        "RATE.WINDOW rw 5 315360000000 COST 3",
        "RATE.WINDOW re 5 315360000000 EXACT COST 2",
        "RATE.WINDOW re 5 315360000000 EXACT",
        "RATE.CHARGE re 2",
        "RATE.MGCRA 2 rg 4 1 315360000000 rm 4 1 315360000000 AHEAD 315360000000",
        "RATE.WINDOW rs 5 315360000000 SLIDING",
        "RATE.WINDOW rs 5 315360000000 SLIDING",
        "RATE.TIERS rt 2 4 1 315360000000 9 2 315360000000 COST 2",
        "RATE.ONCE ro PX 315360000000",
    ],
    keys: &["rg", "rw", "re", "rm", "rs", "rt", "ro"],
};

/// Work that is done once.
pub const WORKS: Family = Family {
    makes: &[
        "ONCE.BEGIN ob LEASE 90000000 FINGERPRINT f",
        "ONCE.BEGIN oc LEASE 90000000",
        "ONCE.BEGIN ob LEASE 90000000",
    ],
    keys: &["ob", "oc"],
};

/// Delay queues.
pub const QUEUES: Family = Family {
    makes: &[
        "DELAY.SET dq STREAM ds MAXLEN 5000",
        "DELAY.ADD dq first PX 90000000 VALUES f v g w",
        "DELAY.ADD dq first PX 80000000 VALUES f replaced",
        "DELAY.ADD dq second PX 80000000 VALUES f v",
        "DELAY.ADD dq third PX 70000000 VALUES f v",
        "DELAY.CANCEL dq third",
        "DELAY.ADD dq now PX 0 VALUES f v",
        "DELAY.SET dn STREAM ds",
    ],
    keys: &["dq", "dn"],
};

/// All of them.
pub const FAMILIES: [&Family; 7] = [&LOCKS, &STOCKS, &FILTERS, &CACHES, &LIMITS, &WORKS, &QUEUES];

/// Makes everything. The connection must stay: one lock is watched for it.
#[track_caller]
pub fn fill(client: &mut Raw) {
    for line in FAMILIES.iter().flat_map(|family| family.makes) {
        client.must(line);
    }
}

/// Commands that use a value in every way, by its type. A command that makes values only is here, too: it meets one that is
/// there.
const USES: [(&str, &[&str]); 9] = [
    (
        "sluice-lk",
        &[
            "LOCK.INFO %",
            "LOCK.HELD % me",
            "LOCK.ACQUIRE % me PX 90000000 ID first",
            "LOCK.ACQUIRE % x SHARED PX 90000000",
            "LOCK.RENEW % a",
            "LOCK.UPGRADE % a",
            "LOCK.DOWNGRADE % me",
            "LOCK.RELEASE % b",
            "LOCK.RELEASE % a ALL",
            "LOCK.ACQUIRE % me",
            "LOCK.INFO %",
            "LOCK.MACQUIRE 1 % me PX 90000000",
            "LOCK.MRELEASE 1 % me",
            "LOCK.CANCEL % first",
            "LOCK.GUARD % 5",
        ],
    ),
    (
        "sluice-sm",
        &[
            "SEM.INFO %",
            "SEM.ACQUIRE % c LIMIT 5 PERMITS 2 PX 90000000",
            "SEM.ACQUIRE % a LIMIT 5 PX 90000000 ID first",
            "SEM.RENEW % a",
            "SEM.RELEASE % b ALL",
            "SEM.RELEASE % a PERMITS 1",
            "SEM.MACQUIRE 1 % 5 a PX 90000000",
            "SEM.MRELEASE 1 % a",
            "SEM.CANCEL % first",
            "SEM.INFO %",
        ],
    ),
    (
        "sluice-st",
        &[
            "STOCK.INFO %",
            "STOCK.ORDER % live",
            "STOCK.DEDUCT % 1 ORDER new USER u",
            "STOCK.RESERVE % 1 ORDER next PX 1 USER n",
            "STOCK.CONFIRM % live",
            "STOCK.CANCEL % sold",
            "STOCK.CANCEL % live",
            "STOCK.ADD % 1",
            "STOCK.GET %",
            "STOCK.MGET %",
            "STOCK.MRESERVE 1 % 1 ORDER many PX 90000000 USER m",
            "STOCK.MCONFIRM 1 % many",
            "STOCK.MDEDUCT 1 % 1 ORDER more USER m",
            "STOCK.MCANCEL 1 % more",
            "STOCK.IMPORT %",
            "STOCK.SET % 5 XX",
        ],
    ),
    (
        "sluice-bf",
        &[
            "BF.MEXISTS % i0 j0 k9 new never",
            "BF.CARD %",
            "BF.ADD % fresh",
            "BF.MADD % a b c d e f g h",
            "BF.SCANDUMP % 0",
            "BF.SCANDUMP % 1",
            "BF.INFO %",
            "BF.EXISTS % i0",
            "BF.INSERT % NOCREATE ITEMS p q",
            "BF.RESERVE % 0.1 10",
            "BF.LOADCHUNK % 2 x",
            "BF.MERGE % 1 %",
        ],
    ),
    (
        "sluice-cf",
        &[
            "CF.MEXISTS % i0 j0 k9 new never",
            "CF.COUNT % i0",
            "CF.ADD % fresh",
            "CF.INSERT % ITEMS a b c d e f g h",
            "CF.DEL % j4",
            "CF.COMPACT %",
            "CF.SCANDUMP % 0",
            "CF.SCANDUMP % 1",
            "CF.INFO %",
            "CF.EXISTS % i0",
            "CF.ADDNX % fresh",
            "CF.INSERTNX % NOCREATE ITEMS p q",
            "CF.RESERVE % 10",
            "CF.LOADCHUNK % 2 x",
        ],
    ),
    (
        "sluice-ca",
        &[
            "CACHE.GET %",
            "CACHE.INFO %",
            "CACHE.FETCH % LEASE 5 SLIDE 900000",
            "CACHE.FETCH % LEASE 5 BETA 1000",
            "CACHE.FETCH % LEASE 5 EARLY 315360000000",
            "CACHE.DEL % STALE 315360000000 GRACE 90000000 VER 1",
            "CACHE.FETCH % LEASE 5 BREAKER % 1 86400000",
            "CACHE.BREAKER %",
            "SLUICE.HOT cache",
            "CACHE.FAIL % 5 BACKOFF 5",
            "CACHE.SETNULL % PX 315360000000 VER 1",
            "CACHE.SET % v PX 315360000000 STALE 315360000000",
            "CACHE.INFO %",
        ],
    ),
    (
        "sluice-on",
        &[
            "ONCE.INFO %",
            "ONCE.BEGIN % LEASE 5",
            "ONCE.BEGIN % LEASE 5 FINGERPRINT f",
            "ONCE.DONE % 5 result PX 315360000000",
            "ONCE.FAIL % 5",
            "ONCE.INFO %",
        ],
    ),
    (
        "sluice-ra",
        &[
            "RATE.GCRA % 9007199254740990 1 315360000000 COST 5",
            "RATE.GCRA % 4 1 315360000000",
            "RATE.WINDOW % 9007199254740991 1 COST 9007199254740991",
            "RATE.WINDOW % 5 315360000000 SLIDING",
            "RATE.WINDOW % 5 315360000000 EXACT",
            "RATE.CHARGE % 3",
            "RATE.GCRA % 4 1 315360000000 AHEAD 315360000000",
            "RATE.MGCRA 1 % 4 1 315360000000",
            "RATE.TIERS % 2 4 1 315360000000 9 2 315360000000",
            "RATE.REFUND % 1",
            "RATE.ONCE % PX 1000",
            "CL.THROTTLE % 4 1 315360000",
        ],
    ),
    (
        "sluice-dq",
        &[
            "DELAY.INFO %",
            "DELAY.RANGE % 1000",
            "DELAY.GET % first",
            "DELAY.ADD % first PX 90000000 VALUES f v",
            "DELAY.ADD % new PX 90000000 VALUES f v",
            "DELAY.ADD % now PX 0 VALUES f v",
            "DELAY.CANCEL % first second",
            "DELAY.SET % STREAM other MAXLEN 5",
            "DELAY.INFO %",
        ],
    ),
];

fn uses_of(kind: &str) -> &'static [&'static str] {
    let uses = USES.iter().find(|(own, _)| *own == kind);
    uses.map_or(&[], |(_, lines)| lines)
}

/// The names of the commands that are used on values.
pub fn used_commands() -> impl Iterator<Item = &'static str> {
    let lines = USES.iter().flat_map(|(_, lines)| lines.iter());
    lines.filter_map(|line| line.split(' ').next())
}

/// What is asked of a value of any type.
const LOOKS: [&str; 5] = [
    "PTTL %",
    "MEMORY USAGE %",
    "DEBUG DIGEST-VALUE %",
    "COPY % copy REPLACE",
    "DUMP %",
];

/// Uses a value in every way. Whether it can be loaded as it was saved, before and after. Panics if anything is answered
/// that no client should see.
#[track_caller]
pub fn uses(client: &mut Raw, key: &str, what: &[u8]) -> bool {
    let kind = client.call(["TYPE", key]);
    let uses = uses_of(kind.text());
    let lines = LOOKS.iter().chain(uses).chain(&LOOKS);
    let lines: Vec<String> = lines.map(|line| line.replace('%', key)).collect();
    let replies = client.run_all(&lines);
    let mut loads = true;
    for (line, reply) in lines.iter().zip(&replies) {
        if line.starts_with("DUMP") && !reply.is_nil() {
            let payload = reply.bytes();
            let restore = [b"RESTORE".as_slice(), b"again", b"0", payload, b"REPLACE"];
            loads &= client.call(restore) == "OK";
        }
        check(client, line, reply, what);
    }
    client.must("DEL copy again");
    loads
}

#[track_caller]
fn check(client: &mut Raw, line: &str, reply: &Value, what: &[u8]) {
    let shown = || format!("{line}: {reply:?}: {}", what.escape_ascii());
    if let Value::Error(text) = reply {
        let takes_fence = line.contains(".ACQUIRE") || line.contains(".UPGRADE");
        let is_known = text != INTERNAL || takes_fence && fences_are_spent(client);
        assert!(is_known, "{}", shown());
        let code = text.split(' ').next().unwrap_or_default();
        let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
        assert!(is_code, "{}", shown());
        return;
    }
    // Ends that a forged time puts into the far future are the server's to tell.
    if !line.starts_with("PTTL") {
        assert!(largest(reply) < UNSAFE_INTEGER, "{}", shown());
    }
}

const INTERNAL: &str = "ERR internal error";

/// Whether a fence was forged after which there is none: no lock of this server can be acquired then.
fn fences_are_spent(client: &mut Raw) -> bool {
    let reply = client.run("LOCK.ACQUIRE spent? me PX 1");
    matches!(reply, Value::Error(text) if text == INTERNAL)
}

/// The integer in a reply that is farthest from 0.
fn largest(reply: &Value) -> i64 {
    let of = |items: &[Value]| items.iter().map(largest).max().unwrap_or(0);
    match reply {
        Value::Int(number) => number.saturating_abs(),
        Value::Array(items) => of(items),
        _ => 0,
    }
}
