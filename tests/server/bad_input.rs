//! Nonsense gets the error that the contract names, changes nothing, and leaves the server well.

use crate::support::lock::{DEADLOCK, TOO_MANY, fence};
use crate::support::{
    Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, UNSAFE_INTEGER, Value, WRONGTYPE,
    await_waiting, encode, eventually, waiter,
};

const TEN_YEARS: &str = "315360000000";
const MOST: &str = "9007199254740991";

/// A server whose keys `lock` and `sem` are held by `me`, with the stocks `stock` and `stock2`, the filters `bloom`,
/// `bloom2` and `cuckoo`, the limits `gcra`, `window`, `tiers` and `once`, and a client that sends nonsense.
struct Victim {
    _server: Server,
    client: Raw,
    digest: String,
}

impl Victim {
    fn new() -> Self {
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
        client.run("RATE.GCRA gcra 9 1 100000000");
        client.run("RATE.WINDOW window 9 100000000");
        client.run("RATE.TIERS tiers 1 9 1 100000000");
        client.run("RATE.ONCE once PX 100000000");
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
            _server: server,
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

/// A command in a form that works, and the options that it takes.
pub(crate) struct Form {
    /// The command with its positional arguments, which would change something.
    pub(crate) line: &'static str,
    /// Options without a value.
    pub(crate) flags: &'static [&'static str],
    /// Options with a value, and one that works.
    pub(crate) values: &'static [(&'static str, &'static str)],
    /// How few words there may be, and whether there may be more than in `line`.
    arity: (usize, bool),
}

pub(crate) const FORMS: &[Form] = &[
    Form {
        line: "LOCK.ACQUIRE lock me",
        flags: &["SHARED", "WATCHDOG"],
        values: &[("PX", "1000"), ("BLOCK", "1000"), ("ID", "b")],
        arity: (3, true),
    },
    Form {
        line: "LOCK.RELEASE lock me",
        flags: &["ALL"],
        values: &[("ID", "b")],
        arity: (3, true),
    },
    Form {
        line: "LOCK.RENEW lock me",
        flags: &[],
        values: &[("PX", "1000")],
        arity: (3, true),
    },
    Form {
        line: "LOCK.UPGRADE shared me",
        flags: &[],
        values: &[("PX", "1000"), ("BLOCK", "1000")],
        arity: (3, true),
    },
    Form {
        line: "LOCK.DOWNGRADE lock me",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "LOCK.HELD lock me",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "LOCK.INFO lock",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "LOCK.GUARD guard 5",
        flags: &[],
        values: &[("PX", "1000")],
        arity: (3, true),
    },
    Form {
        line: "LOCK.MACQUIRE 2 lock new me",
        flags: &["WATCHDOG"],
        values: &[("PX", "1000"), ("BLOCK", "1000"), ("ID", "b")],
        arity: (4, true),
    },
    Form {
        line: "LOCK.MRELEASE 2 lock new me",
        flags: &["ALL"],
        values: &[("ID", "b")],
        arity: (4, true),
    },
    Form {
        line: "SEM.ACQUIRE sem me LIMIT 5",
        flags: &["WATCHDOG"],
        values: &[
            ("PERMITS", "1"),
            ("PX", "1000"),
            ("BLOCK", "1000"),
            ("ID", "b"),
        ],
        arity: (5, true),
    },
    Form {
        line: "SEM.RELEASE sem me",
        flags: &["ALL"],
        values: &[("PERMITS", "1"), ("ID", "b")],
        arity: (3, true),
    },
    Form {
        line: "SEM.RENEW sem me",
        flags: &[],
        values: &[("PX", "1000")],
        arity: (3, true),
    },
    Form {
        line: "SEM.INFO sem",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "STOCK.SET stock 5",
        flags: &["NX", "XX"],
        values: &[
            ("PERUSER", "5"),
            ("RETAIN", "1000"),
            ("EVENTS", "events"),
            ("MAXLEN", "5"),
        ],
        arity: (3, true),
    },
    Form {
        line: "STOCK.ADD stock 1",
        flags: &[],
        values: &[("ORDER", "o")],
        arity: (3, true),
    },
    Form {
        line: "STOCK.DEDUCT stock 1",
        flags: &[],
        values: &[("ORDER", "o"), ("USER", "u")],
        arity: (3, true),
    },
    Form {
        line: "STOCK.RESERVE stock 1 ORDER o PX 100000000",
        flags: &[],
        values: &[("USER", "u")],
        arity: (7, true),
    },
    Form {
        line: "STOCK.CONFIRM stock live",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "STOCK.CANCEL stock live",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "STOCK.MDEDUCT 2 stock 1 stock2 1",
        flags: &[],
        values: &[("ORDER", "o"), ("USER", "u")],
        arity: (4, true),
    },
    Form {
        line: "STOCK.MRESERVE 1 stock 1 ORDER o PX 100000000",
        flags: &[],
        values: &[("USER", "u")],
        arity: (8, true),
    },
    Form {
        line: "STOCK.MCONFIRM 2 stock stock2 live",
        flags: &[],
        values: &[],
        arity: (4, true),
    },
    Form {
        line: "STOCK.MCANCEL 2 stock stock2 live",
        flags: &[],
        values: &[],
        arity: (4, true),
    },
    Form {
        line: "STOCK.GET stock",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "STOCK.ORDER stock live",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "STOCK.INFO stock",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "STOCK.IMPORT counter",
        flags: &[],
        values: &[
            ("PERUSER", "5"),
            ("RETAIN", "1000"),
            ("EVENTS", "events"),
            ("MAXLEN", "5"),
        ],
        arity: (2, true),
    },
    Form {
        line: "BF.RESERVE bloom 0.01 100",
        flags: &["NONSCALING"],
        values: &[("EXPANSION", "4")],
        arity: (4, true),
    },
    Form {
        line: "BF.ADD bloom new",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "BF.EXISTS bloom a",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "BF.CARD bloom",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "BF.INFO bloom",
        flags: &[],
        values: &[],
        arity: (2, true),
    },
    Form {
        line: "BF.SCANDUMP bloom 0",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "BF.LOADCHUNK bloom 2 x",
        flags: &[],
        values: &[],
        arity: (4, false),
    },
    Form {
        line: "BF.MERGE bloom 1 bloom2",
        flags: &[],
        values: &[],
        arity: (4, true),
    },
    Form {
        line: "CF.RESERVE cuckoo 100",
        flags: &[],
        values: &[
            ("BUCKETSIZE", "4"),
            ("MAXITERATIONS", "20"),
            ("EXPANSION", "4"),
            ("BITS", "8"),
        ],
        arity: (3, true),
    },
    Form {
        line: "CF.ADD cuckoo new",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.ADDNX cuckoo new",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.EXISTS cuckoo a",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.COUNT cuckoo a",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.DEL cuckoo a",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.COMPACT cuckoo",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "CF.INFO cuckoo",
        flags: &[],
        values: &[],
        arity: (2, false),
    },
    Form {
        line: "CF.SCANDUMP cuckoo 0",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "CF.LOADCHUNK cuckoo 2 x",
        flags: &[],
        values: &[],
        arity: (4, false),
    },
    Form {
        line: "RATE.GCRA gcra 9 1 100000000",
        flags: &["PEEK"],
        values: &[("COST", "2")],
        arity: (5, true),
    },
    Form {
        line: "RATE.WINDOW window 9 100000000",
        flags: &["PEEK", "SLIDING"],
        values: &[("COST", "2")],
        arity: (4, true),
    },
    Form {
        line: "RATE.TIERS tiers 1 9 1 100000000",
        flags: &["PEEK"],
        values: &[("COST", "2")],
        arity: (6, true),
    },
    Form {
        line: "RATE.REFUND gcra 1",
        flags: &[],
        values: &[],
        arity: (3, false),
    },
    Form {
        line: "RATE.ONCE fresh PX 100000000",
        flags: &[],
        values: &[],
        arity: (4, true),
    },
    Form {
        line: "CL.THROTTLE gcra 9 1 100000 1",
        flags: &[],
        values: &[],
        arity: (5, false),
    },
];

const OPTIONS: [&str; 29] = [
    "SHARED",
    "PX",
    "BLOCK",
    "WATCHDOG",
    "ID",
    "ALL",
    "PERMITS",
    "LIMIT",
    "ORDER",
    "USER",
    "PERUSER",
    "RETAIN",
    "EVENTS",
    "MAXLEN",
    "NX",
    "XX",
    "CAPACITY",
    "ERROR",
    "EXPANSION",
    "NOCREATE",
    "NONSCALING",
    "ITEMS",
    "LIKE",
    "BUCKETSIZE",
    "MAXITERATIONS",
    "BITS",
    "COST",
    "PEEK",
    "SLIDING",
];

/// Those without a value.
const FLAGS: [&str; 9] = [
    "SHARED",
    "WATCHDOG",
    "ALL",
    "NX",
    "XX",
    "NOCREATE",
    "NONSCALING",
    "PEEK",
    "SLIDING",
];

fn name(form: &Form) -> &'static str {
    form.line.split(' ').next().unwrap_or("")
}

fn with(form: &Form, words: &[&str]) -> Vec<Vec<u8>> {
    let line = form.line.split(' ').chain(words.iter().copied());
    line.map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn too_few_and_too_many_arguments_are_the_servers_own_error() {
    let mut victim = Victim::new();
    for form in FORMS {
        let name = name(form);
        let expected = format!(
            "ERR wrong number of arguments for '{}' command",
            name.to_lowercase()
        );
        let words: Vec<_> = form.line.split(' ').collect();
        let (least, more) = form.arity;
        for count in 1..least {
            assert_eq!(victim.refuses(&words[..count]), expected, "{name} {count}");
        }
        if !more {
            assert_eq!(victim.refuses(with(form, &["more"])), expected, "{name}");
            assert_eq!(victim.refuses(with(form, &["PX", "5"])), expected, "{name}");
        }
    }
}

#[test]
fn an_option_without_its_value_is_a_syntax_error() {
    let mut victim = Victim::new();
    for form in FORMS {
        for (option, value) in form.values {
            assert_eq!(victim.refuses(with(form, &[option])), SYNTAX);
            let lower = option.to_lowercase();
            assert_eq!(victim.refuses(with(form, &[&lower])), SYNTAX);
            for (other, other_value) in form.values {
                if other != option {
                    let words = [*other, *other_value, *option];
                    assert_eq!(victim.refuses(with(form, &words)), SYNTAX, "{words:?}");
                }
            }
            for flag in form.flags {
                // PERMITS and ALL exclude each other anyway.
                let words = [*flag, *option];
                assert_eq!(
                    victim.refuses(with(form, &words)),
                    SYNTAX,
                    "{words:?} {value}"
                );
            }
        }
    }
    assert_eq!(victim.refuses_line("SEM.ACQUIRE sem me PX 5 LIMIT"), SYNTAX);
}

#[test]
fn a_repeated_option_is_a_syntax_error() {
    let mut victim = Victim::new();
    for form in FORMS {
        for (option, value) in form.values {
            let lower = option.to_lowercase();
            let twice = [*option, *value, &lower, *value];
            assert_eq!(victim.refuses(with(form, &twice)), SYNTAX, "{twice:?}");
        }
        for flag in form.flags {
            let mixed = format!("{}{}", &flag[..1], flag[1..].to_lowercase());
            let twice = [*flag, &mixed];
            assert_eq!(victim.refuses(with(form, &twice)), SYNTAX, "{twice:?}");
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
    for form in FORMS.iter().filter(|form| form.arity.1) {
        let takes = |option: &str| {
            form.flags.contains(&option) || form.values.iter().any(|(own, _)| *own == option)
        };
        let strange = strange.iter().filter(|option| {
            let text = std::str::from_utf8(option);
            !text.is_ok_and(takes)
        });
        for option in strange {
            for value in [None, Some(b"1000".as_slice())] {
                let mut command = with(form, &[]);
                command.push(option.to_vec());
                command.extend(value.map(<[u8]>::to_vec));
                assert_eq!(victim.refuses(command), SYNTAX, "{} {option:?}", name(form));
            }
        }
        // Options of other commands are unknown to this one.
        for option in OPTIONS.into_iter().filter(|option| !takes(option)) {
            if option == "LIMIT" && name(form) == "SEM.ACQUIRE" {
                continue;
            }
            let mut words = vec![option];
            if !FLAGS.contains(&option) {
                words.push("1000");
            }
            let reply = victim.refuses(with(form, &words));
            assert_eq!(reply, SYNTAX, "{} {words:?}", name(form));
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
    let integers = [
        "PX",
        "BLOCK",
        "PERMITS",
        "PERUSER",
        "RETAIN",
        "MAXLEN",
        "BUCKETSIZE",
        "MAXITERATIONS",
        "BITS",
        "COST",
    ];
    for form in FORMS {
        for (option, _) in form
            .values
            .iter()
            .filter(|(option, _)| integers.contains(option))
        {
            for text in NO_INTEGERS {
                let mut command = with(form, &[option]);
                command.push(text.to_vec());
                let reply = victim.refuses(command);
                assert_eq!(reply, NOT_AN_INTEGER, "{} {option} {text:?}", name(form));
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
            vec![b"RATE.REFUND", b"gcra", text],
            vec![b"RATE.ONCE", b"new", b"PX", text],
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
    for form in FORMS {
        for (option, _) in form.values {
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
                "PERMITS" if name(form) == "SEM.ACQUIRE" => (
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
                "EXPANSION" => (
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
                let reply = victim.refuses(with(form, &[option, number]));
                assert!(
                    reply.starts_with(&expected),
                    "{} {option} {number}: {reply}",
                    name(form)
                );
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
    for form in FORMS {
        let words = with(form, &[]);
        let Some(place) = words.iter().position(|word| word == b"me") else {
            continue;
        };
        for length in [0, 1025, 100_000] {
            let mut command = words.clone();
            command[place] = vec![b'x'; length];
            assert_eq!(victim.refuses(command), no_owner, "{} {length}", name(form));
        }
        if form.values.iter().any(|(option, _)| *option == "ID") {
            for length in [0, 129, 100_000] {
                let mut command = with(form, &["ID"]);
                command.push(vec![0; length]);
                assert_eq!(victim.refuses(command), no_id, "{} {length}", name(form));
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
    for form in FORMS {
        let name = name(form);
        let mut wrong: Vec<_> = others.to_vec();
        match name {
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
            _ if name.starts_with("LOCK") => wrong.extend(["sem", "stock", "bloom"]),
            _ if name.starts_with("SEM") => wrong.extend(["lock", "stock", "cuckoo"]),
            _ if name.starts_with("BF") => wrong.extend(["lock", "stock", "cuckoo"]),
            _ if name.starts_with("CF") => wrong.extend(["lock", "stock", "bloom"]),
            _ if name.starts_with("RATE") || name.starts_with("CL") => {
                wrong.extend(["lock", "sem", "stock", "bloom", "cuckoo"]);
            }
            _ => wrong.extend(["lock", "sem", "bloom", "cuckoo", "gcra", "once"]),
        }
        for key in wrong {
            let own = [
                "lock", "sem", "shared", "guard", "stock", "counter", "bloom", "bloom2", "cuckoo",
                "gcra", "window", "tiers", "fresh",
            ];
            let words = form.line.split(' ');
            let words = words.map(|word| if own.contains(&word) { key } else { word });
            let line = words.collect::<Vec<_>>().join(" ");
            assert_eq!(victim.refuses_line(&line), WRONGTYPE, "{line}");
            if form.values.iter().any(|(option, _)| *option == "BLOCK") {
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
    for name in ["LOCK.MACQUIRE", "LOCK.MRELEASE"] {
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
            "lock", "sem", "stock", "bloom", "cuckoo", "gcra", "string", "new",
        ] {
            for name in [
                b"LOCK.APPLY".as_slice(),
                b"STOCK.APPLY",
                b"BF.APPLY",
                b"CF.APPLY",
                b"RATE.APPLY",
            ] {
                let reply = victim.client.call([name, key.as_bytes(), text]);
                // An effect without a change may be none; what cannot be read is an error.
                assert!(reply.is_err() || reply == "OK", "{text:?}: {reply:?}");
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

// Caches. What each option refuses is in the tests of their commands.

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
        let mut sleeper = Raw::connect(&victim._server);
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
    let log = victim._server.log();
    for word in ["panic", "internal error", "BUG REPORT"] {
        assert!(!log.contains(word), "{word} {log}");
    }
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

// Random commands

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
    let (mut line, options): (Vec<&str>, &[&str]) = match numbers.below(39) {
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
    for option in options {
        if numbers.rarely(3) {
            line.push(option);
            if !FLAGS.contains(option) && !numbers.rarely(40) {
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
                "ERR BITS must be 8, 16 or 32",
                "ERR key holds another kind of limit",
                "ERR no such key",
                "ERR source and destination objects are the same",
                "ERR invalid DB index",
            ];
            let known = expected.contains(&text.as_str())
                || text.starts_with("ERR wrong number of arguments for ")
                || text.starts_with("ERR unknown ")
                || (text.starts_with("ERR ") && text.contains(" must be between "))
                || (text.starts_with("ERR ") && text.contains(" must be in the range "))
                || (text.starts_with("ERR ")
                    && !["LOCK.", "SEM.", "STOCK.", "BF.", "CF.", "RATE.", "CL."]
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
    let names: Vec<_> = FORMS.iter().map(name).collect();
    for _ in 0..40 {
        let commands: Vec<Vec<Vec<u8>>> = (0..100)
            .map(|_| {
                let mut words = vec![names[numbers.below(names.len())].as_bytes().to_vec()];
                for _ in 0..numbers.below(9) {
                    let word = match numbers.below(4) {
                        0 => numbers.one(&OPTIONS).as_bytes().to_vec(),
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
