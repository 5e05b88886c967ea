//! Random commands and random bytes get proper replies, and leave the server well.

use crate::bad_input::{MOST, Victim};
use crate::forms::{forms, is_internal, options, registered};
use crate::support::lock::{DEADLOCK, TOO_MANY};
use crate::support::{
    Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, UNSAFE_INTEGER, Value, WRONGTYPE,
    await_waiting, eventually,
};

/// A generator of numbers that look random: xorshift.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// One chance in `many`.
    fn rarely(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

const KEYS: [&str; 15] = [
    "k0", "k1", "k2", "s0", "s1", "t0", "t1", "string", "list", "", "b0", "b1", "c0", "r0", "r1",
];
const OWNERS: [&str; 4] = ["o0", "o1", "o2", "o3"];
const NUMBERS: [&str; 12] = [
    "1",
    "2",
    "3",
    "5",
    "50",
    "1000",
    "100000",
    "0",
    "-1",
    "x",
    MOST,
    "9223372036854775807",
];

/// A command that makes sense more often than not.
fn random_command(numbers: &mut Numbers) -> Vec<Vec<u8>> {
    let lock = numbers.one(&KEYS[..3]);
    let sem = numbers.one(&KEYS[3..5]);
    let stock = numbers.one(&KEYS[5..7]);
    let bloom = numbers.one(&KEYS[10..12]);
    let rate = numbers.one(&KEYS[13..]);
    let any = numbers.one(&KEYS);
    let owner = numbers.one(&OWNERS);
    let number = numbers.one(&NUMBERS);
    let key = match numbers.below(8) {
        0 => any,
        1 => sem,
        _ => lock,
    };
    let acquire: &[&str] = &["PX", "BLOCK", "WATCHDOG", "ID"];
    let release: &[&str] = &["ALL", "ID"];
    let order: &[&str] = &["ORDER", "USER"];
    let terms: &[&str] = &["PERUSER", "RETAIN", "EVENTS", "MAXLEN"];
    let qty = numbers.one(&NUMBERS[..4]);
    if numbers.rarely(6) {
        return random_form(numbers);
    }
    let (mut line, options): (Vec<&str>, &[&str]) = match numbers.below(42) {
        0..=3 => (vec!["LOCK.ACQUIRE", key, owner], acquire),
        4 => (vec!["LOCK.ACQUIRE", key, owner, "SHARED"], acquire),
        5 | 6 => (vec!["LOCK.RELEASE", key, owner], release),
        7 => (vec!["LOCK.RENEW", key, owner], &["PX"]),
        8 => (vec!["LOCK.UPGRADE", key, owner], &["PX", "BLOCK"]),
        9 => (vec!["LOCK.DOWNGRADE", key, owner], &[]),
        10 => (vec!["LOCK.HELD", key, owner], &[]),
        11 => (vec![numbers.one(&["LOCK.INFO", "SEM.INFO"]), any], &[]),
        12 => (vec!["LOCK.GUARD", any, number], &["PX"]),
        13 => (vec!["LOCK.MACQUIRE", "2", lock, any, owner], acquire),
        14 => (vec!["LOCK.MRELEASE", "2", lock, any, owner], release),
        15 | 16 => {
            let limit = numbers.one(&["2", "3", "5", "0", MOST]);
            let permits = numbers.one(&["1", "1", "2", "3", "6"]);
            let line = vec![
                "SEM.ACQUIRE",
                sem,
                owner,
                "LIMIT",
                limit,
                "PERMITS",
                permits,
            ];
            (line, acquire)
        }
        17 => (vec!["SEM.RELEASE", sem, owner], &["PERMITS", "ALL", "ID"]),
        39 => {
            let name = numbers.one(&["LOCK.CANCEL", "SEM.CANCEL"]);
            (vec![name, any, owner], &[])
        }
        40 => {
            let limit = numbers.one(&["2", "3", "5", "0", MOST]);
            let mut line = vec!["SEM.MACQUIRE", "2", sem, limit, any, limit, owner];
            if numbers.rarely(2) {
                line = vec!["LOCK.ACQUIRE", lock, owner];
            }
            line.extend(["ID", owner, "NOTIFY", any, "WATCHDOG"]);
            (line, &["PX", "BLOCK", "MAXHOLD", "LINGER"])
        }
        41 => {
            let line = vec!["SEM.MRELEASE", "2", sem, any, owner];
            (line, &["PERMITS", "ALL", "ID"])
        }
        18 => (vec!["SEM.RENEW", sem, owner], &["PX"]),
        19 => {
            let name = numbers.one(&["DEL", "UNLINK", "PERSIST", "DUMP", "TYPE", "TOUCH"]);
            (vec![name, any], &[])
        }
        20 => {
            let name = numbers.one(&["RENAME", "COPY", "RENAMENX"]);
            (
                vec![name, numbers.one(&[lock, stock]), numbers.one(&KEYS[..7])],
                &[],
            )
        }
        21 | 22 => (vec!["STOCK.DEDUCT", stock, qty], order),
        23 => {
            let line = vec!["STOCK.RESERVE", stock, qty, "ORDER", owner, "PX", number];
            (line, &["USER"])
        }
        24 => {
            let name = numbers.one(&["STOCK.CONFIRM", "STOCK.CANCEL", "STOCK.ORDER"]);
            (vec![name, stock, owner], &[])
        }
        25 => (vec!["STOCK.MDEDUCT", "2", stock, qty, any, "1"], order),
        26 => {
            let name = numbers.one(&["STOCK.MCONFIRM", "STOCK.MCANCEL"]);
            (vec![name, "2", stock, any, owner], &[])
        }
        27 => {
            let name = numbers.one(&["STOCK.INFO", "STOCK.GET", "STOCK.MGET", "STOCK.IMPORT"]);
            (vec![name, any], &[])
        }
        28 => {
            let name = numbers.one(&["STOCK.SET", "STOCK.SET", "STOCK.ADD"]);
            (vec![name, stock, numbers.one(&NUMBERS[2..6])], terms)
        }
        29 => {
            let name = numbers.one(&["BF.ADD", "BF.MADD", "BF.EXISTS", "BF.MEXISTS"]);
            (vec![name, bloom, number], &[])
        }
        30 => {
            let name = numbers.one(&["CF.ADD", "CF.ADDNX", "CF.DEL", "CF.COUNT", "CF.EXISTS"]);
            (vec![name, "c0", number], &[])
        }
        31 => {
            let line = vec!["BF.RESERVE", bloom, "0.01", number];
            (line, &["EXPANSION", "NONSCALING"])
        }
        32 => (
            vec!["CF.RESERVE", "c0", number],
            &["EXPANSION", "BUCKETSIZE", "MAXITERATIONS", "BITS"],
        ),
        33 => {
            let lines: [&[&str]; 5] = [
                &["BF.INSERT", bloom, "CAPACITY", number, "ITEMS", owner],
                &["CF.INSERT", "c0", "CAPACITY", number, "ITEMS", owner],
                &["CF.INSERTNX", "c0", "NOCREATE", "ITEMS", owner, owner],
                &["BF.MERGE", bloom, "2", "b0", any],
                &["BF.RESERVE", bloom, "LIKE", any],
            ];
            (numbers.one(&lines).to_vec(), &[])
        }
        34 => {
            let names = ["BF.INFO", "BF.CARD", "CF.INFO", "CF.COMPACT"];
            let key = numbers.one(&["b0", "b1", "c0", any]);
            (vec![numbers.one(&names), key], &[])
        }
        35 => {
            let line = vec!["RATE.GCRA", rate, qty, qty, number];
            (line, &["COST", "PEEK"])
        }
        36 => {
            let line = vec!["RATE.WINDOW", rate, qty, number];
            (line, &["COST", "PEEK", "SLIDING"])
        }
        37 => {
            let lines: [&[&str]; 5] = [
                &["RATE.TIERS", rate, "2", "1", "1", number, qty, qty, "1000"],
                &["RATE.REFUND", any, qty],
                &["RATE.REFUND", rate, number],
                &["RATE.ONCE", any, "PX", number],
                &["CL.THROTTLE", any, number, qty, qty],
            ];
            (numbers.one(&lines).to_vec(), &[])
        }
        _ => {
            let native: [&[&str]; 8] = [
                &["PEXPIRE", key, "20"],
                &["PEXPIRE", key, "-1"],
                &["EXPIRE", key, "1000"],
                &["SWAPDB", "0", "1"],
                &["MOVE", key, "1"],
                &["SELECT", "0"],
                &["MEMORY", "USAGE", key],
                &["FLUSHDB"],
            ];
            (numbers.one(&native).to_vec(), &[])
        }
    };
    let is_flag = |option: &str| crate::forms::options().contains(&(option, true));
    for option in options {
        if numbers.rarely(3) {
            line.push(option);
            if !is_flag(option) && !numbers.rarely(40) {
                let usual = numbers.one(&NUMBERS[..7]);
                let any = numbers.one(&NUMBERS);
                line.push(if numbers.rarely(10) { any } else { usual });
            }
        }
    }
    let mut words = line.iter().map(|word| word.as_bytes().to_vec()).collect();
    if numbers.rarely(12) {
        spoil(numbers, &mut words);
    }
    words
}

/// Any command, with some of its options.
fn random_form(numbers: &mut Numbers) -> Vec<Vec<u8>> {
    let mut forms = forms();
    let form = forms.swap_remove(numbers.below(forms.len()));
    let flags = form.flags.iter().map(|flag| vec![*flag]);
    let values = form
        .values
        .iter()
        .map(|(option, value)| vec![*option, *value]);
    let options: Vec<&str> = flags
        .chain(values)
        .filter(|_| numbers.rarely(3))
        .flatten()
        .collect();
    let mut words = form.with(&options);
    if numbers.rarely(12) {
        spoil(numbers, &mut words);
    }
    words
}

/// Makes something wrong about a command.
fn spoil(numbers: &mut Numbers, words: &mut Vec<Vec<u8>>) {
    let place = 1 + numbers.below(words.len().max(2) - 1);
    let place = place.min(words.len() - 1);
    match numbers.below(6) {
        0 => {
            words.remove(place);
        }
        1 => words.push(b"BOGUS".to_vec()),
        2 => {
            let again = words[place].clone();
            words.push(again);
        }
        3 => {
            let length = [0, 1, 128, 129, 1024, 1025, 5000][numbers.below(7)];
            words[place] = (0..length).map(|_| numbers.below(256) as u8).collect();
        }
        4 => words[place] = numbers.one(&NUMBERS).as_bytes().to_vec(),
        _ => {
            let other = 1 + numbers.below(words.len().max(2) - 1);
            words.swap(place, other.min(place));
        }
    }
    if words.is_empty() || words[0].is_empty() {
        words.insert(0, b"PING".to_vec());
    }
}

/// No command may keep the connection that sends it for longer than a moment.
fn make_it_short(words: &mut [Vec<u8>]) {
    let place = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case(b"BLOCK"));
    if let Some(value) = place.and_then(|place| words.get_mut(place + 1)) {
        *value = b"2".to_vec();
    }
}

/// All that the contract and the server allow as an error.
#[track_caller]
fn check(command: &[Vec<u8>], reply: &Value) {
    let shown: Vec<_> = command
        .iter()
        .map(|word| word.escape_ascii().to_string())
        .collect();
    let shown = shown.join(" ");
    match reply {
        Value::Error(text) => {
            let expected = [
                SYNTAX,
                NOT_AN_INTEGER,
                WRONGTYPE,
                DEADLOCK,
                TOO_MANY,
                "CONFLICT order id was used with other arguments",
                "ERR USER is required by this stock",
                "ERR the hash must have the fields total and ordered, and no others",
                "ERR not found",
                "ERR Not found",
                "ERR item exists",
                "ERR bad error rate",
                "ERR bad capacity",
                "ERR bad expansion",
                "ERR Nonscaling filters cannot expand",
                "ERR non scaling filter is full",
                "ERR Filter is full",
                "ERR Maximum expansions reached",
                "ERR received bad data",
                "ERR filters differ in shape",
                "ERR filter would exceed bloom-max-bytes",
                "ERR value larger than cache-max-bytes",
                "ERR BITS must be 8, 16 or 32",
                "ERR key holds another kind of limit",
                "ERR no such key",
                "ERR source and destination objects are the same",
                "ERR invalid DB index",
                "ERR value is not a valid float",
            ];
            let known = expected.contains(&text.as_str())
                || text.starts_with("ERR wrong number of arguments for ")
                || text.starts_with("ERR unknown ")
                || (text.starts_with("ERR ") && text.contains(" must be between "))
                || (text.starts_with("ERR ") && text.contains(" must be in the range "))
                || (text.starts_with("ERR ")
                    && ![
                        "LOCK.", "SEM.", "STOCK.", "BF.", "CF.", "CACHE.", "RATE.", "CL.",
                    ]
                    .iter()
                    .any(|family| shown.contains(family)));
            assert!(known, "{shown}: {text}");
        }
        Value::Int(number) => assert!(*number < UNSAFE_INTEGER, "{shown}: {number}"),
        Value::Array(items) => items.iter().for_each(|item| check(command, item)),
        _ => {}
    }
}

#[test]
fn random_commands_get_proper_replies_and_leave_the_server_well() {
    const SEED: u64 = 0x5eed_10c5;
    const BATCHES: usize = 300;
    const BATCH: usize = 100;
    println!("seed {SEED:#x}");
    let server = Server::start();
    let mut numbers = Numbers(SEED);
    let mut clients: Vec<_> = (0..4).map(|_| Raw::connect(&server)).collect();
    let mut sleepers: Vec<Raw> = Vec::new();
    for batch in 0..BATCHES {
        let mut commands: Vec<_> = (0..BATCH).map(|_| random_command(&mut numbers)).collect();
        let turn = numbers.below(clients.len());
        let client = &mut clients[turn];
        if batch % 3 == 0 {
            // In a transaction nobody waits.
            client.run("MULTI");
            for (command, queued) in commands.iter().zip(client.pipeline(commands.clone())) {
                assert!(queued.is_err() || queued == "QUEUED", "{queued:?}");
                if queued.is_err() {
                    check(command, &queued);
                }
            }
            let replies = client.run("EXEC");
            assert!(
                !replies.is_err() || replies.err().starts_with("EXECABORT"),
                "{replies:?}"
            );
        } else {
            commands
                .iter_mut()
                .for_each(|command| make_it_short(command));
            let replies = client.pipeline(commands.clone());
            for (command, reply) in commands.iter().zip(&replies) {
                check(command, reply);
            }
        }
        // Some wait for long, and some of those go.
        let mut sleeper = Raw::connect(&server);
        let key = numbers.one(&KEYS[..3]);
        let owner = numbers.one(&OWNERS);
        sleeper.ask(&format!(
            "LOCK.ACQUIRE {key} {owner} BLOCK 0 PX 20 WATCHDOG"
        ));
        sleepers.push(sleeper);
        if sleepers.len() > 10 {
            sleepers.swap_remove(numbers.below(10));
        }
        if numbers.rarely(3) {
            let place = numbers.below(clients.len());
            clients[place] = Raw::connect(&server);
            clients[place].run("SET string value");
            clients[place].run("RPUSH list a");
        }
    }
    drop(sleepers);
    drop(clients);
    let mut client = Raw::connect(&server);
    assert_eq!(client.run("PING"), "PONG");
    let statistics = client.run("INFO commandstats");
    for name in registered(&mut client) {
        let field = format!("cmdstat_{}:", name.to_lowercase());
        let is_sent = statistics.text().contains(&field);
        assert!(is_sent || is_internal(&name), "{name} was never sent");
    }
    // Most of it made sense.
    for (counter, least) in [
        ("lock_acquired", 500),
        ("lock_reentered", 100),
        ("lock_handoffs", 50),
        ("stock_deducted", 100),
        ("stock_reserved", 30),
        ("stock_sold_out", 10),
        ("filter_items_added", 100),
        ("filter_lookups", 50),
        ("rate_allowed", 100),
        ("rate_limited", 20),
    ] {
        let count = server.info_int(&format!("sluice_{counter}"));
        assert!(count >= least, "only {count} {counter}");
    }
    assert!(!client.run("DEBUG RELOAD").is_err());
    await_waiting(&server, 0);
    eventually(SOON, || server.info_int("sluice_lock_watchdog_holds") == 0);
    let log = server.log();
    for word in ["panic", "internal error", "crashed", "BUG REPORT"] {
        assert!(!log.contains(word), "the log tells of a {word}:\n{log}");
    }
}

#[test]
fn random_bytes_as_arguments_leave_the_server_well() {
    const SEED: u64 = 0xbad_5eed;
    println!("seed {SEED:#x}");
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut numbers = Numbers(SEED);
    let (forms, options) = (forms(), options());
    for _ in 0..40 {
        let commands: Vec<Vec<Vec<u8>>> = (0..100)
            .map(|_| {
                let name = forms[numbers.below(forms.len())].name;
                let mut words = vec![name.as_bytes().to_vec()];
                for _ in 0..numbers.below(9) {
                    let word = match numbers.below(4) {
                        0 => options[numbers.below(options.len())].0.as_bytes().to_vec(),
                        1 => numbers.one(&NUMBERS).as_bytes().to_vec(),
                        _ => {
                            let length = numbers.below(6);
                            (0..length).map(|_| numbers.below(256) as u8).collect()
                        }
                    };
                    words.push(word);
                }
                make_it_short(&mut words);
                words
            })
            .collect();
        let replies = client.pipeline(commands.clone());
        for (command, reply) in commands.iter().zip(&replies) {
            check(command, reply);
        }
    }
    assert_eq!(client.run("PING"), "PONG");
    assert!(!server.log().contains("panic"), "{}", server.log());
}

// Caches

/// A command of caches that makes sense more often than not, on the keys of all families.
fn random_cache_command(numbers: &mut Numbers, token: &str) -> Vec<Vec<u8>> {
    let cached = numbers.one(&["c1", "c2", "c3", "c4"]);
    let any = numbers.one(&[
        cached, cached, cached, "lock", "bloom", "string", "list", "",
    ]);
    let filter = numbers.one(&["bloom", "cuckoo", "nothing", "string", "c1"]);
    let number = numbers.one(&NUMBERS);
    let store: &[&str] = &["STALE", "JITTER", "TOKEN", "VER"];
    let fetch: &[&str] = &["EARLY", "BETA", "SLIDE", "GUARD", "BLOCK"];
    let (mut line, options): (Vec<&str>, &[&str]) = match numbers.below(12) {
        0..=3 => (vec!["CACHE.FETCH", any, "LEASE", number], fetch),
        4 | 5 => (vec!["CACHE.SET", any, "value", "PX", number], store),
        6 => (vec!["CACHE.SETNULL", any, "PX", number], store),
        7 => (vec!["CACHE.DEL", any], &["STALE", "GRACE", "VER"]),
        8 => (vec!["CACHE.FAIL", any, token], &["BACKOFF"]),
        9 => (vec![numbers.one(&["CACHE.GET", "CACHE.INFO"]), any], &[]),
        10 => (
            vec!["CACHE.SET", cached, "value", "PX", "100", "TOKEN", token],
            &[],
        ),
        _ => {
            let native: [&[&str]; 7] = [
                &["PEXPIRE", cached, "20"],
                &["DEL", cached],
                &["RENAME", cached, "c1"],
                &["COPY", cached, "c2", "REPLACE"],
                &["SET", cached, "x", "PX", "5"],
                &["PERSIST", cached],
                &["MEMORY", "USAGE", cached],
            ];
            (numbers.one(&native).to_vec(), &[])
        }
    };
    for option in options {
        if numbers.rarely(3) {
            line.push(option);
            match *option {
                "GUARD" => line.extend([filter, "item"]),
                "BETA" => line.push(numbers.one(&["0", "1", "0.5", "1000", "-1", "x"])),
                _ => line.push(numbers.one(&NUMBERS)),
            }
        }
    }
    let mut words = line.iter().map(|word| word.as_bytes().to_vec()).collect();
    if numbers.rarely(12) {
        spoil(numbers, &mut words);
    }
    words
}

/// All that the contract allows as an error of a cache.
#[track_caller]
fn check_of_cache(command: &[Vec<u8>], reply: &Value) {
    check(command, reply);
    if let Value::Error(text) = reply
        && command[0].starts_with(b"CACHE.")
    {
        let known = [
            SYNTAX,
            NOT_AN_INTEGER,
            WRONGTYPE,
            "ERR value is not a valid float",
        ]
        .contains(&text.as_str())
            || text.starts_with("ERR wrong number of arguments for ")
            || text.contains(" must be between ");
        assert!(known, "{command:?}: {text}");
    }
}

#[test]
fn random_commands_of_caches_get_proper_replies_and_leave_the_server_well() {
    const SEED: u64 = 0x5eed_cac4;
    const BATCH: usize = 100;
    println!("seed {SEED:#x}");
    let mut victim = Victim::new();
    let mut numbers = Numbers(SEED);
    let mut token = "0".to_owned();
    let mut sleepers: Vec<Raw> = Vec::new();
    for batch in 0..150 {
        let mut commands: Vec<_> = (0..BATCH)
            .map(|_| random_cache_command(&mut numbers, &token))
            .collect();
        let client = &mut victim.client;
        let replies = if batch % 3 == 0 {
            // What the server refuses to queue would undo all.
            client.run("MULTI");
            let queued = client.pipeline(commands.clone());
            commands = commands
                .into_iter()
                .zip(queued)
                .filter(|(command, queued)| match queued {
                    Value::Error(_) => {
                        check_of_cache(command, queued);
                        false
                    }
                    _ => true,
                })
                .map(|(command, _)| command)
                .collect();
            match client.run("EXEC") {
                Value::Array(replies) => replies,
                aborted => {
                    assert!(aborted.err().starts_with("EXECABORT"), "{aborted:?}");
                    Vec::new()
                }
            }
        } else {
            commands
                .iter_mut()
                .for_each(|command| make_it_short(command));
            client.pipeline(commands.clone())
        };
        for (command, reply) in commands.iter().zip(&replies) {
            check_of_cache(command, reply);
            if let Value::Array(parts) = reply
                && parts.first().is_some_and(|state| *state == "LEASE")
            {
                token = parts[2].int().to_string();
            }
        }
        // Some wait for long, and some of those go.
        let mut sleeper = Raw::connect(&victim.server);
        let key = numbers.one(&["c1", "c2", "c3", "c4"]);
        sleeper.ask(&format!("CACHE.FETCH {key} LEASE 1000 BLOCK 0"));
        sleepers.push(sleeper);
        if sleepers.len() > 10 {
            sleepers.swap_remove(numbers.below(10));
        }
    }
    drop(sleepers);
    let client = &mut victim.client;
    eventually(SOON, || {
        let info = client.run("INFO sluice_cache");
        info.text().contains("sluice_cache_waiters_now:0")
    });
    client.run("DEBUG RELOAD");
    client.run("FLUSHALL");
    assert_eq!(client.run("CACHE.SET k v PX 1000"), 1);
    let log = victim.server.log();
    for word in ["panic", "internal error", "BUG REPORT"] {
        assert!(!log.contains(word), "{word} {log}");
    }
}
