//! Nonsense gets the error that the contract names, changes nothing, and leaves the server well.

use crate::forms::{More, forms, options, registered};
use crate::support::lock::fence;
use crate::support::{
    Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, WRONGTYPE, await_waiting, encode, eventually,
    waiter,
};

const TEN_YEARS: &str = "315360000000";
pub(crate) const MOST: &str = "9007199254740991";

/// A server whose keys `lock` and `sem` are held by `me`, with the stocks `stock` and `stock2`, the filters `bloom`,
/// `bloom2` and `cuckoo`, the entry `cached`, the limits `gcra`, `window`, `tiers` and `once`, the delay queue `queue`, and a client that sends nonsense.
pub(crate) struct Victim {
    pub(crate) server: Server,
    pub(crate) client: Raw,
    digest: String,
}

impl Victim {
    pub(crate) fn new() -> Self {
        let server = Server::start();
        let mut client = Raw::connect(&server);
        client.run("LOCK.ACQUIRE lock me PX 100000000 ID a");
        client.run("LOCK.ACQUIRE shared me SHARED PX 100000000");
        client.run("LOCK.ACQUIRE shared you SHARED PX 100000000");
        client.run("SEM.ACQUIRE sem me LIMIT 5 PERMITS 3 PX 100000000 ID a");
        client.run("STOCK.SET stock 10");
        client.run("STOCK.SET stock2 10");
        client.run("STOCK.MRESERVE 2 stock 1 stock2 1 ORDER live PX 100000000");
        client.run("BF.RESERVE bloom 0.01 100");
        client.run("BF.ADD bloom a");
        client.run("BF.RESERVE bloom2 LIKE bloom");
        client.run("CF.RESERVE cuckoo 100");
        client.run("CF.ADD cuckoo a");
        client.run("CACHE.SET cached value PX 100000000");
        client.run("RATE.GCRA gcra 9 1 100000000");
        client.run("RATE.WINDOW window 9 100000000");
        client.run("RATE.TIERS tiers 1 9 1 100000000");
        client.run("RATE.ONCE once PX 100000000");
        client.run("ONCE.BEGIN work LEASE 100000000 FINGERPRINT f");
        client.run("DELAY.SET queue STREAM delayed");
        client.run("DELAY.ADD queue there PX 100000000 VALUES f v");
        client.run("SET counter 5");
        client.run("SET string value");
        client.run("RPUSH list a b");
        client.run("HSET hash field value");
        client.run("SADD set a b");
        client.run("ZADD zset 1 a");
        client.run("XADD stream 1-1 field value");
        client.run("SETBIT bits 5 1");
        client.run("PFADD hll a");
        let digest = client.run("DEBUG DIGEST").text().to_string();
        Self {
            server,
            client,
            digest,
        }
    }

    /// The error of a command that must change nothing.
    #[track_caller]
    fn refuses<C>(&mut self, command: C) -> String
    where
        C: IntoIterator,
        C::Item: AsRef<[u8]>,
    {
        let command: Vec<Vec<u8>> = command
            .into_iter()
            .map(|word| word.as_ref().to_vec())
            .collect();
        let digest = ["DEBUG", "DIGEST"].map(|word| word.as_bytes().to_vec());
        let replies = self.client.pipeline([command.clone(), digest.to_vec()]);
        let shown: Vec<_> = command
            .iter()
            .map(|word| word[..word.len().min(60)].escape_ascii().to_string())
            .collect();
        let shown = shown.join(" ");
        assert!(replies[0].is_err(), "{shown}: {:?}", replies[0]);
        assert_eq!(
            replies[1],
            self.digest.as_str(),
            "{shown} changes the dataset"
        );
        replies[0].err().to_string()
    }

    #[track_caller]
    fn refuses_line(&mut self, line: &str) -> String {
        self.refuses(line.split_whitespace())
    }
}

#[test]
fn too_few_and_too_many_arguments_are_the_servers_own_error() {
    let mut victim = Victim::new();
    for form in forms() {
        let name = form.name;
        let expected = format!(
            "ERR wrong number of arguments for '{}' command",
            name.to_lowercase()
        );
        let words = form.plain();
        for count in 1..form.least {
            assert_eq!(victim.refuses(&words[..count]), expected, "{name} {count}");
        }
        if form.more == More::Nothing {
            assert_eq!(victim.refuses(form.with(&["more"])), expected, "{name}");
            assert_eq!(victim.refuses(form.with(&["PX", "5"])), expected, "{name}");
        }
    }
}

#[test]
fn an_option_without_its_value_is_a_syntax_error() {
    let mut victim = Victim::new();
    for mut form in forms() {
        // The words behind the options would be taken for the value.
        form.end.clear();
        let mut refuses = |options: &[&str]| {
            let words = form.with(options);
            if words.len() >= form.least {
                assert_eq!(victim.refuses(words), SYNTAX, "{} {options:?}", form.name);
            }
        };
        for (option, _) in &form.values {
            refuses(&[option]);
            refuses(&[&option.to_lowercase()]);
            for (other, other_value) in &form.values {
                if other != option {
                    refuses(&[other, other_value, option]);
                }
            }
            for flag in &form.flags {
                // PERMITS and ALL exclude each other anyway.
                refuses(&[flag, option]);
            }
        }
    }
    assert_eq!(victim.refuses_line("SEM.ACQUIRE sem me PX 5 LIMIT"), SYNTAX);
}

#[test]
fn a_repeated_option_is_a_syntax_error() {
    let mut victim = Victim::new();
    for form in forms() {
        for (option, value) in &form.values {
            let lower = option.to_lowercase();
            let twice = [*option, *value, &lower, *value];
            assert_eq!(victim.refuses(form.with(&twice)), SYNTAX, "{twice:?}");
        }
        for flag in &form.flags {
            let mixed = format!("{}{}", &flag[..1], flag[1..].to_lowercase());
            let twice = [*flag, &mixed];
            assert_eq!(victim.refuses(form.with(&twice)), SYNTAX, "{twice:?}");
        }
    }
    let twice = "SEM.ACQUIRE sem me LIMIT 5 limit 5";
    assert_eq!(victim.refuses_line(twice), SYNTAX);
    let both = "SEM.RELEASE sem me ALL PERMITS 1";
    assert_eq!(victim.refuses_line(both), SYNTAX);
    let both = "SEM.RELEASE sem me PERMITS 1 ALL";
    assert_eq!(victim.refuses_line(both), SYNTAX);
}

#[test]
fn an_unknown_option_is_a_syntax_error() {
    let mut victim = Victim::new();
    let strange: [&[u8]; 9] = [
        b"BOGUS",
        b"",
        b"P",
        b"PXX",
        b"PX\0",
        b"\0PX",
        b"\xff\xfe",
        b"NX",
        b"1000",
    ];
    for form in forms() {
        if form.more != More::Options {
            continue;
        }
        let name = form.name;
        let place = form.head.len();
        let strange = strange.iter().filter(|option| {
            let text = std::str::from_utf8(option);
            !text.is_ok_and(|option| form.takes(option))
        });
        for option in strange {
            for value in [None, Some(b"1000".as_slice())] {
                let mut command = form.with(&[]);
                let words = [Some(*option), value].into_iter().flatten();
                command.splice(place..place, words.map(<[u8]>::to_vec));
                assert_eq!(victim.refuses(command), SYNTAX, "{name} {option:?}");
            }
        }
        // Options of other commands are unknown to this one.
        for (option, is_flag) in options() {
            if form.takes(option) {
                continue;
            }
            let words = [option, "1000"];
            let words = if is_flag { &words[..1] } else { &words };
            let reply = victim.refuses(form.with(words));
            assert_eq!(reply, SYNTAX, "{name} {words:?}");
        }
    }
}

/// No integers, or none that i64 has.
const NO_INTEGERS: [&[u8]; 20] = [
    b"",
    b"+1",
    b"01",
    b"-01",
    b"-0",
    b" 1",
    b"1 ",
    b"1.5",
    b"1.0",
    b"1e3",
    b"0x10",
    b"1_000",
    b"one",
    b"-",
    b"1\0",
    b"\xff",
    "\u{ff11}".as_bytes(),
    b"9223372036854775808",
    b"-9223372036854775809",
    b"100000000000000000000000000000000000000000",
];

#[test]
fn what_is_no_integer_is_named_so() {
    let mut victim = Victim::new();
    // Bytes, fractions, and what RedisBloom has errors of its own for.
    let others = [
        "ID",
        "NOTIFY",
        "ORDER",
        "USER",
        "EVENTS",
        "GUARD",
        "BETA",
        "CAPACITY",
        "ERROR",
        "EXPANSION",
        "FINGERPRINT",
        "BREAKER",
    ];
    for form in forms() {
        let is_integer = |option: &&str| !others.contains(option);
        let options = form.values.iter().map(|(option, _)| *option);
        for option in options.filter(is_integer) {
            for text in NO_INTEGERS {
                let mut command = form.with(&[option]);
                command.push(text.to_vec());
                let reply = victim.refuses(command);
                assert_eq!(reply, NOT_AN_INTEGER, "{} {option} {text:?}", form.name);
            }
        }
    }
    for text in NO_INTEGERS {
        for command in [
            vec![b"SEM.ACQUIRE".as_slice(), b"sem", b"me", b"LIMIT", text],
            vec![b"LOCK.GUARD", b"guard", text],
            vec![b"LOCK.GUARD", b"guard", text, b"PX", b"5"],
            vec![b"LOCK.MACQUIRE", text, b"new", b"me"],
            vec![b"LOCK.MRELEASE", text, b"lock", b"me"],
            vec![b"SEM.MACQUIRE", text, b"sem", b"5", b"me"],
            vec![b"SEM.MACQUIRE", b"2", b"sem", b"5", b"new", text, b"me"],
            vec![b"SEM.MRELEASE", text, b"sem", b"me"],
            vec![b"STOCK.SET", b"stock", text],
            vec![b"STOCK.ADD", b"stock", text],
            vec![b"STOCK.DEDUCT", b"stock", text],
            vec![
                b"STOCK.RESERVE",
                b"stock",
                text,
                b"ORDER",
                b"o",
                b"PX",
                b"5",
            ],
            vec![
                b"STOCK.RESERVE",
                b"stock",
                b"1",
                b"ORDER",
                b"o",
                b"PX",
                text,
            ],
            vec![b"STOCK.MDEDUCT", text, b"stock", b"1"],
            vec![b"STOCK.MDEDUCT", b"2", b"stock", b"1", b"stock2", text],
            vec![b"STOCK.MCONFIRM", text, b"stock", b"live"],
            vec![b"STOCK.MCANCEL", text, b"stock", b"live"],
            vec![b"DELAY.RANGE", b"queue", text],
            vec![b"BF.SCANDUMP", b"bloom", text],
            vec![b"BF.LOADCHUNK", b"bloom", text, b"x"],
            vec![b"BF.MERGE", b"bloom", text, b"bloom2"],
            vec![b"CF.SCANDUMP", b"cuckoo", text],
            vec![b"CF.LOADCHUNK", b"cuckoo", text, b"x"],
            vec![b"RATE.GCRA", b"gcra", text, b"1", b"1000"],
            vec![b"RATE.GCRA", b"gcra", b"1", text, b"1000"],
            vec![b"RATE.GCRA", b"gcra", b"1", b"1", text],
            vec![b"RATE.WINDOW", b"window", text, b"1000"],
            vec![b"RATE.WINDOW", b"window", b"1", text],
            vec![b"RATE.TIERS", b"tiers", text, b"1", b"1", b"1000"],
            vec![b"RATE.TIERS", b"tiers", b"1", b"1", b"1", text],
            vec![b"RATE.MGCRA", text, b"gcra", b"1", b"1", b"1000"],
            vec![b"RATE.MGCRA", b"1", b"gcra", b"1", text, b"1000"],
            vec![b"RATE.CHARGE", b"gcra", text],
            vec![b"RATE.REFUND", b"gcra", text],
            vec![b"RATE.ONCE", b"new", b"PX", text],
            b"CACHE.FETCH new LEASE 5 BREAKER db"
                .split(|byte| *byte == b' ')
                .chain([text, b"5"])
                .collect(),
            b"CACHE.FETCH new LEASE 5 BREAKER db 5"
                .split(|byte| *byte == b' ')
                .chain([text])
                .collect(),
            vec![b"ONCE.BEGIN", b"work", b"LEASE", text],
            vec![b"ONCE.DONE", b"work", text, b"result", b"PX", b"5"],
            vec![b"ONCE.DONE", b"work", b"5", b"result", b"PX", text],
            vec![b"ONCE.FAIL", b"work", text],
            vec![b"CL.THROTTLE", b"gcra", b"1", b"1", text],
            vec![b"CL.THROTTLE", b"gcra", b"1", b"1", b"1", text],
        ] {
            assert_eq!(victim.refuses(&command), NOT_AN_INTEGER, "{command:?}");
        }
    }
}

#[test]
fn an_integer_out_of_range_is_named_with_its_range() {
    let mut victim = Victim::new();
    let (least, most) = (i64::MIN.to_string(), i64::MAX.to_string());
    for form in forms() {
        let name = form.name;
        for (option, _) in &form.values {
            let (numbers, expected) = match *option {
                "PX" => (
                    vec!["0", "-1", "315360000001", &least, &most],
                    format!("ERR PX must be between 1 and {TEN_YEARS}"),
                ),
                // The contract names no upper end for it.
                "BLOCK" => (
                    vec!["-1", &least],
                    "ERR BLOCK must be between 0 and ".into(),
                ),
                "MAXHOLD" => (
                    vec!["0", "-1", "315360000001", &least, &most],
                    format!("ERR MAXHOLD must be between 1 and {TEN_YEARS}"),
                ),
                "PERMITS" if matches!(name, "SEM.ACQUIRE" | "SEM.MACQUIRE") => (
                    vec!["0", "-1", "6", &least],
                    "ERR PERMITS must be between 1 and ".into(),
                ),
                "PERMITS" => (
                    vec!["0", "-1", "4", MOST, &least, &most],
                    "ERR PERMITS must be between 1 and ".into(),
                ),
                "PERUSER" | "MAXLEN" => (
                    vec!["0", "-1", "9007199254740992", &least, &most],
                    format!("ERR {option} must be between 1 and {MOST}"),
                ),
                "BUCKETSIZE" => (
                    vec!["0", "-1", "256", &least, &most],
                    "ERR BUCKETSIZE must be between 1 and 255".into(),
                ),
                "MAXITERATIONS" => (
                    vec!["0", "-1", "65536", &least, &most],
                    "ERR MAXITERATIONS must be between 1 and 65535".into(),
                ),
                "BITS" => (
                    vec!["0", "-8", "9", "24", "33", "64", &least, &most],
                    "ERR BITS must be ".into(),
                ),
                "EXPANSION" if name != "BF.INSERT" => (
                    vec!["-1", "32769", &least, &most],
                    "ERR expansion must be in the range [0, 32768]".into(),
                ),
                "RETAIN" => (
                    vec!["0", "-1", "315360000001", &least, &most],
                    format!("ERR RETAIN must be between 1 and {TEN_YEARS}"),
                ),
                "COST" => (
                    vec!["-1", "9007199254740992", &least, &most],
                    format!("ERR COST must be between 0 and {MOST}"),
                ),
                _ => continue,
            };
            for number in numbers {
                let reply = victim.refuses(form.with(&[option, number]));
                let is_named = reply.starts_with(&expected);
                assert!(is_named, "{name} {option} {number}: {reply}");
            }
        }
    }
    for number in ["0", "-1", "9007199254740992", &least, &most] {
        let reply = victim.refuses(["LOCK.GUARD", "guard", number]);
        assert!(reply.starts_with("ERR fence must be between "), "{reply}");
        let reply = victim.refuses(["SEM.ACQUIRE", "sem", "me", "LIMIT", number]);
        assert!(
            reply.starts_with("ERR LIMIT must be between 1 and "),
            "{reply}"
        );
    }
    let reply = victim.refuses_line("SEM.ACQUIRE sem me LIMIT 5 PERMITS 6");
    assert_eq!(reply, "ERR PERMITS must be between 1 and 5");
    let reply = victim.refuses_line("SEM.ACQUIRE sem you PERMITS 6 LIMIT 5");
    assert_eq!(reply, "ERR PERMITS must be between 1 and 5");
    let reply = victim.refuses_line("SEM.RELEASE sem me PERMITS 4");
    assert_eq!(reply, "ERR PERMITS must be between 1 and 3");
}

#[test]
fn integers_at_the_ends_of_their_range_work() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for line in [
        "LOCK.ACQUIRE a me PX 1",
        "LOCK.ACQUIRE b me PX 315360000000",
        "LOCK.ACQUIRE c me BLOCK 0",
        "LOCK.ACQUIRE d me BLOCK 315360000000",
        "LOCK.RENEW b me PX 315360000000",
        "LOCK.GUARD g 1 PX 315360000000",
        "LOCK.GUARD g 9007199254740991 PX 1",
        "SEM.ACQUIRE s me LIMIT 1 PERMITS 1",
        "SEM.ACQUIRE t me LIMIT 9007199254740991 PERMITS 9007199254740991",
    ] {
        fence(&client.run(line));
    }
}

#[test]
fn owners_and_ids_have_their_lengths() {
    let mut victim = Victim::new();
    let no_owner = "ERR owner must be between 1 and 1024";
    let no_id = "ERR ID must be between 1 and 128";
    for form in forms() {
        let name = form.name;
        let words = form.with(&[]);
        let Some(place) = words.iter().position(|word| word == b"me") else {
            continue;
        };
        for length in [0, 1025, 100_000] {
            let mut command = words.clone();
            command[place] = vec![b'x'; length];
            assert_eq!(victim.refuses(command), no_owner, "{name} {length}");
        }
        if form.takes("ID") {
            for length in [0, 129, 100_000] {
                let mut command = form.with(&["ID"]);
                command.push(vec![0; length]);
                assert_eq!(victim.refuses(command), no_id, "{name} {length}");
            }
        }
    }
    let (owner, id) = (vec![0xff; 1024], vec![0; 128]);
    let command = [b"LOCK.ACQUIRE".as_slice(), b"new", &owner, b"ID", &id];
    let given = fence(&victim.client.call(command));
    assert_eq!(victim.client.call(command), given);
    let held = [b"LOCK.HELD".as_slice(), b"new", &owner];
    assert_eq!(victim.client.call(held), given);
}

#[test]
fn keys_of_other_types_are_refused() {
    let mut victim = Victim::new();
    let others = [
        "string", "list", "hash", "set", "zset", "stream", "bits", "hll",
    ];
    for form in forms() {
        let name = form.name;
        let mut wrong: Vec<_> = others.to_vec();
        match name {
            // The names of a breaker and of a family are no keys.
            "CACHE.BREAKER" | "SLUICE.HOT" => wrong.clear(),
            // A guard is a string: what is none of its numbers is another matter.
            "LOCK.GUARD" => {
                wrong.retain(|key| !["string", "bits", "hll"].contains(key));
                wrong.extend(["lock", "sem"]);
            }
            // A counter or a hash may become a stock, and what is none of those is another matter.
            "STOCK.IMPORT" => {
                wrong.retain(|key| !["string", "bits", "hll", "hash"].contains(key));
                wrong.extend(["lock", "stock"]);
            }
            _ if name.starts_with("LOCK") => wrong.extend(["sem", "stock", "bloom", "cached"]),
            _ if name.starts_with("SEM") => wrong.extend(["lock", "stock", "cuckoo", "cached"]),
            _ if name.starts_with("BF") => wrong.extend(["lock", "stock", "cuckoo"]),
            _ if name.starts_with("CF") => wrong.extend(["lock", "stock", "bloom"]),
            _ if name.starts_with("DELAY") => {
                wrong.extend(["lock", "sem", "stock", "bloom", "cached", "gcra"]);
            }
            _ if name.starts_with("CACHE") => {
                wrong.extend(["lock", "sem", "stock", "bloom", "cuckoo", "gcra"]);
            }
            _ if name.starts_with("RATE") || name.starts_with("CL") => {
                wrong.extend(["lock", "sem", "stock", "bloom", "cuckoo", "cached"]);
            }
            _ if name.starts_with("ONCE") => {
                wrong.extend([
                    "lock", "sem", "stock", "bloom", "cuckoo", "gcra", "once", "cached",
                ]);
            }
            _ => wrong.extend(["lock", "sem", "bloom", "cuckoo", "gcra", "once", "cached"]),
        }
        for key in wrong {
            let own = [
                "lock", "sem", "shared", "guard", "stock", "counter", "bloom", "bloom2", "cuckoo",
                "gcra", "window", "tiers", "fresh", "cached", "work", "queue",
            ];
            let words = form.plain().into_iter();
            let words = words.map(|word| if own.contains(&word) { key } else { word });
            let line = words.collect::<Vec<_>>().join(" ");
            assert_eq!(victim.refuses_line(&line), WRONGTYPE, "{line}");
            if form.takes("BLOCK") {
                let line = format!("{line} BLOCK 0");
                assert_eq!(victim.refuses_line(&line), WRONGTYPE, "{line}");
            }
        }
    }
    for key in ["string", "bits", "hll"] {
        let reply = victim.refuses(["LOCK.GUARD", key, "5"]);
        assert_eq!(reply, NOT_AN_INTEGER, "{key}");
    }
    // And the built-in commands refuse locks.
    for line in [
        "GET lock",
        "INCR lock",
        "LPUSH sem x",
        "HSET lock a b",
        "SADD sem x",
        "ZADD lock 1 x",
        "XADD sem * a b",
        "APPEND lock x",
        "SETRANGE lock 0 x",
        "GET stock",
        "DECR stock",
        "HGETALL stock",
        "XADD stock * a b",
        "GET bloom",
        "SETBIT bloom 5 1",
        "PFADD bloom a",
        "SADD cuckoo x",
        "PFCOUNT cuckoo",
        "GET gcra",
        "INCR window",
        "SET once x GET",
    ] {
        assert_eq!(victim.refuses_line(line), WRONGTYPE, "{line}");
    }
}

#[test]
fn numkeys_and_the_keys_must_fit() {
    let mut victim = Victim::new();
    for name in ["LOCK.MACQUIRE", "LOCK.MRELEASE", "SEM.MRELEASE"] {
        for numkeys in ["3", "4", "100"] {
            // No owner is left, or not even the keys are all there.
            let reply = victim.refuses([name, numkeys, "new", "lock", "me"]);
            assert_eq!(reply, SYNTAX, "{name} {numkeys}");
        }
        // Duplicates: next to each other, and apart.
        for line in ["2 lock lock me", "3 lock new lock me", "3 new new2 new me"] {
            assert_eq!(victim.refuses_line(&format!("{name} {line}")), SYNTAX);
        }
        // What follows the owner are options.
        assert_eq!(victim.refuses([name, "1", "new", "lock", "me"]), SYNTAX);
    }
    for line in [
        "SEM.MACQUIRE 2 sem 5 me",
        "SEM.MACQUIRE 2 sem 5 sem 5 me",
        "SEM.MACQUIRE 3 sem 5 new 5 me",
        "SEM.MACQUIRE 1 new 5 lock 5 me",
    ] {
        assert_eq!(victim.refuses_line(line), SYNTAX, "{line}");
    }
    let many: Vec<_> = (0..1000).map(|number| format!("key{number}")).collect();
    let mut command = vec!["LOCK.MACQUIRE".to_string(), "1001".to_string()];
    command.extend(many);
    command.extend(["key999".to_string(), "me".to_string()]);
    assert_eq!(victim.refuses(command), SYNTAX);
}

#[test]
fn numkeys_and_the_stocks_must_fit() {
    let mut victim = Victim::new();
    for (name, item, end) in [
        ("STOCK.MDEDUCT", " 1", ""),
        ("STOCK.MRESERVE", " 1", " ORDER o PX 100000000"),
        ("STOCK.MCONFIRM", "", " live"),
        ("STOCK.MCANCEL", "", " live"),
        ("RATE.MGCRA", " 1 1 1000", ""),
    ] {
        let line = |numkeys: &str, keys: &[&str]| {
            let keys: String = keys.iter().map(|key| format!(" {key}{item}")).collect();
            format!("{name} {numkeys}{keys}{end}")
        };
        for numkeys in ["1", "4", "100"] {
            let line = line(numkeys, &["stock", "stock2"]);
            let reply = victim.refuses_line(&line);
            let expected = [SYNTAX, NOT_AN_INTEGER];
            let known = expected.contains(&reply.as_str()) || reply.contains(" must be between ");
            assert!(known, "{line}: {reply}");
        }
        for keys in [
            &["stock", "stock"][..],
            &["stock", "stock2", "stock"],
            &["new", "stock", "new"],
        ] {
            let line = line(&keys.len().to_string(), keys);
            assert_eq!(victim.refuses_line(&line), SYNTAX, "{line}");
        }
    }
}

#[test]
fn what_is_wrong_at_the_end_undoes_what_was_right_before() {
    let mut victim = Victim::new();
    for line in [
        "LOCK.MACQUIRE 3 a b string me",
        "SEM.MACQUIRE 3 a 5 b 5 string 5 me",
        "SEM.MRELEASE 2 sem lock me",
        "LOCK.CANCEL sem id",
        "SEM.CANCEL lock id",
        "LOCK.MRELEASE 3 lock a string me ALL",
        "LOCK.MACQUIRE 2 a b me PX 0",
        "LOCK.ACQUIRE a me SHARED WATCHDOG PX 100 ID x BLOCK 10 BOGUS",
        "LOCK.RELEASE lock me ALL BOGUS",
        "LOCK.RENEW lock me PX 1 PX 1",
        "LOCK.DOWNGRADE lock me me",
        "LOCK.GUARD guard 5 PX 0",
        "SEM.ACQUIRE sem me LIMIT 9 PERMITS 10",
        "SEM.RELEASE sem me PERMITS 1 ID",
        "STOCK.SET stock 5 PERUSER 5 EVENTS events MAXLEN 0",
        "STOCK.SET stock 5 EVENTS string",
        "STOCK.ADD stock 1 ORDER o BOGUS",
        "STOCK.DEDUCT stock 1 ORDER o USER u ORDER o",
        "STOCK.RESERVE stock 1 ORDER o PX 0",
        "STOCK.MDEDUCT 3 stock 1 stock2 1 string 1",
        "STOCK.MDEDUCT 2 stock 1 stock2 0",
        "STOCK.MCONFIRM 3 stock stock2 string live",
        "STOCK.MCANCEL 2 stock string live",
        "RATE.MGCRA 2 gcra 9 1 100000000 string 9 1 1000",
        "RATE.MGCRA 2 new 9 1 1000 gcra 9 1 0",
        "RATE.MGCRA 2 new 9 1 1000 gcra 9 1 1000 COST 1 AHEAD -1",
        "RATE.CHARGE gcra -1",
        "STOCK.IMPORT counter EVENTS list",
        "STOCK.IMPORT hash",
        "BF.RESERVE new 0.01 100 EXPANSION 2 NONSCALING",
        "BF.RESERVE new LIKE string",
        "BF.INSERT new CAPACITY 5 ERROR 2 ITEMS a b",
        "BF.INSERT bloom NOCREATE EXPANSION 2 BOGUS ITEMS new",
        "BF.MERGE new 2 bloom string",
        "BF.MERGE bloom 3 bloom2 cuckoo bloom",
        "CF.RESERVE new 100 BUCKETSIZE 4 BITS 9",
        "CF.INSERT new CAPACITY 5 NOCREATE CAPACITY 5 ITEMS a",
        "CF.INSERTNX cuckoo CAPACITY 0 ITEMS new",
        "DELAY.SET queue STREAM other MAXLEN 0",
        "DELAY.ADD queue there PX 5 VALUES f v g",
        "DELAY.ADD queue there PX 5 XX NX VALUES f v",
    ] {
        victim.refuses_line(line);
    }
}

#[test]
fn errors_look_the_same_in_transactions_and_scripts() {
    let mut victim = Victim::new();
    let client = &mut victim.client;
    client.run("MULTI");
    // Too few arguments are seen at once, the rest when the command runs.
    let reply = client.run("LOCK.ACQUIRE lock");
    assert!(reply.err().starts_with("ERR wrong number"), "{reply:?}");
    assert!(client.run("EXEC").err().starts_with("EXECABORT"));
    client.run("MULTI");
    for line in [
        "LOCK.ACQUIRE lock me PX",
        "LOCK.ACQUIRE string me",
        "LOCK.RENEW lock me PX 0",
        "PING",
    ] {
        assert_eq!(client.run(line), "QUEUED");
    }
    let replies = client.run("EXEC");
    let replies = replies.array();
    assert_eq!(replies[0].err(), SYNTAX);
    assert_eq!(replies[1].err(), WRONGTYPE);
    assert!(replies[2].err().starts_with("ERR PX must be between"));
    assert_eq!(replies[3], "PONG");
    for (call, expected) in [
        ("'LOCK.ACQUIRE', 'lock', 'me', 'PX'", SYNTAX),
        ("'LOCK.ACQUIRE', 'string', 'me'", WRONGTYPE),
        ("'LOCK.RENEW', 'lock', 'me', 'PX', '1.5'", NOT_AN_INTEGER),
        ("'LOCK.RENEW', 'lock', 'me', 'PX', 1.5", NOT_AN_INTEGER),
        ("'STOCK.DEDUCT', 'string', 1", WRONGTYPE),
        ("'STOCK.DEDUCT', 'stock', 1.5", NOT_AN_INTEGER),
        ("'STOCK.DEDUCT', 'stock', 1, 'ORDER'", SYNTAX),
        ("'BF.ADD', 'string', 'a'", WRONGTYPE),
        ("'BF.INFO', 'bloom', 'BOGUS'", SYNTAX),
        ("'CF.SCANDUMP', 'cuckoo', 1.5", NOT_AN_INTEGER),
    ] {
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(client.call(["EVAL", &script, "0"]), expected, "{call}");
    }
    victim.refuses_line("LOCK.RENEW lock me PX 0");
}

#[test]
fn internal_commands_refuse_nonsense() {
    let mut victim = Victim::new();
    let mut names = registered(&mut victim.client);
    names.retain(|name| name.ends_with(".APPLY"));
    let nonsense: [&[u8]; 12] = [
        b"",
        b"\0",
        b"\xff",
        b"x",
        b"+ me 1 1 1",
        b"0",
        b"-1",
        b"{}",
        &[0xff; 64],
        &[0; 64],
        b"9223372036854775808",
        b"%s%n",
    ];
    for text in nonsense {
        for key in [
            "lock", "sem", "stock", "bloom", "cuckoo", "cached", "gcra", "queue", "string", "new",
        ] {
            for name in &names {
                let command = [name.as_bytes(), key.as_bytes(), text];
                let reply = victim.client.call(command);
                // An effect without a change may be none; what cannot be read is an error.
                assert!(reply.is_err() || reply == "OK", "{command:?}: {reply:?}");
            }
        }
    }
    for text in [b"".as_slice(), b"x", b"-1", b"1.5", b"9223372036854775808"] {
        victim.refuses([b"LOCK.FENCE", text]);
    }
    assert_eq!(victim.client.run("PING"), "PONG");
    victim.refuses_line("LOCK.ACQUIRE string me");
}

/// Effects that begin well: a whole head, as a dump has it, and then something else.
#[test]
fn internal_commands_of_filters_refuse_what_no_master_sends() {
    let mut victim = Victim::new();
    for (family, key) in [("BF", "bloom"), ("CF", "cuckoo")] {
        let apply = format!("{family}.APPLY");
        let dumped = victim.client.run(&format!("{family}.SCANDUMP {key} 0"));
        let head = dumped.array()[1].bytes().to_vec();
        let mut whole = vec![b'H', u8::try_from(head.len()).expect("a short head")];
        whole.extend(&head);
        for index in 0..whole.len() {
            let mut spoilt = whole.clone();
            spoilt[index] ^= 0x20;
            victim.refuses([apply.as_bytes(), b"new", &spoilt]);
            if index > 0 {
                victim.refuses([apply.as_bytes(), b"new", &whole[..index]]);
            }
        }
        let ends: [&[u8]; 9] = [
            b"H",
            b"H\x01x",
            b"P",
            b"P\0\x09123456789",
            b"P\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x09123456789",
            b"L",
            b"L\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"A123",
            b"Z",
        ];
        for end in ends {
            let effects = [&whole[..], end].concat();
            victim.refuses([apply.as_bytes(), b"new", &effects]);
            victim.refuses([apply.as_bytes(), b"new", end]);
            // What comes after a good effect on a filter that is there.
            victim.refuses([apply.as_bytes(), key.as_bytes(), end]);
        }
        let effects = [apply.as_bytes(), b"new", &whole];
        assert_eq!(victim.client.call(effects), "OK");
        victim.client.run("DEL new");
    }
    victim.refuses_line("BF.ADD string a");
}

#[test]
fn the_internal_command_of_caches_refuses_nonsense() {
    let mut victim = Victim::new();
    for effect in [b"".as_slice(), b"\0", b"x", b"0V", &[0xff; 64], &[0; 64]] {
        for key in ["lock", "bloom", "string", "new"] {
            victim.refuses([b"CACHE.APPLY", key.as_bytes(), effect]);
            victim.refuses([b"CACHE.APPLY", key.as_bytes(), effect, b"value"]);
            victim.refuses([b"CACHE.APPLY", key.as_bytes(), effect, b"value", b"more"]);
        }
    }
}

#[test]
fn connections_may_close_at_every_byte_of_a_command() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.run("LOCK.ACQUIRE k holder");
    for command in [
        vec!["LOCK.ACQUIRE", "k", "me", "BLOCK", "0", "WATCHDOG"],
        vec!["LOCK.MACQUIRE", "2", "k", "j", "me", "BLOCK", "0"],
    ] {
        let bytes = encode(&command);
        for length in 0..bytes.len() {
            let mut half = Raw::connect(&server);
            half.send_bytes(&bytes[..length]);
        }
        // All of it, and at once gone.
        let mut whole = Raw::connect(&server);
        whole.send_bytes(&bytes);
        drop(whole);
    }
    eventually(SOON, || server.info_int("connected_clients") <= 2);
    await_waiting(&server, 0);
    client.run("LOCK.RELEASE k holder");
    assert_eq!(client.run("DBSIZE"), 0);
    assert_eq!(server.info_int("sluice_lock_handoffs"), 0);
}

#[test]
fn connections_may_close_right_when_they_are_served() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for round in 0..60 {
        client.run("LOCK.MACQUIRE 2 k j holder PX 300000");
        client.run("SEM.ACQUIRE s holder LIMIT 1 PX 300000");
        let lines = [
            "LOCK.ACQUIRE k me BLOCK 0 WATCHDOG PX 300000",
            "LOCK.MACQUIRE 2 k j you BLOCK 0 WATCHDOG PX 300000",
            "SEM.ACQUIRE s me LIMIT 1 BLOCK 0 WATCHDOG PX 300000",
        ];
        let mut lucky: Vec<_> = lines.iter().map(|line| waiter(&server, line)).collect();
        client.ask("LOCK.MRELEASE 2 k j holder");
        if round % 2 == 0 {
            client.ask("SEM.RELEASE s holder");
        } else {
            client.ask("DEL s");
        }
        if round % 3 == 0 {
            lucky.reverse();
        }
        drop(lucky);
        client.read();
        client.read();
        eventually(SOON, || client.run("DBSIZE") == 0);
    }
    await_waiting(&server, 0);
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
}

#[test]
fn inline_commands_and_broken_protocol_do_no_harm() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.send_bytes(b"LOCK.ACQUIRE \"a b\" me px 100000\r\n");
    fence(&client.read());
    client.send_bytes(b"LOCK.HELD \"a b\" me\r\nLOCK.ACQUIRE k \"\\x00\\xff\"\r\n");
    fence(&client.read());
    fence(&client.read());
    for bytes in [
        b"*3\r\n$12\r\nLOCK.ACQUIRE\r\n$-1\r\n$2\r\nme\r\n".as_slice(),
        b"*-7\r\nLOCK.ACQUIRE\r\n",
        b"*2\r\n$9\r\nLOCK.HELDxx\r\n",
        b"\0\0\0\0\r\n",
        b"*1000000000\r\n",
    ] {
        let mut broken = Raw::connect(&server);
        broken.send_bytes(bytes);
        drop(broken);
    }
    assert_eq!(client.run("PING"), "PONG");
}
