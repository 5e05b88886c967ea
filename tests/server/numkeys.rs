//! Commands with `numkeys`: its bounds, and the keys that the server finds by it.

use crate::support::{Lines, NOT_AN_INTEGER, Raw, SYNTAX, Server, Value, ask};

const REFUSED: &str = "ERR numkeys must be between 1 and 1024";

/// A command with `numkeys`.
struct Counted {
    name: &'static str,
    /// The arguments in front of `numkeys`, the first of which is a key.
    front: &'static [&'static str],
    /// The arguments behind each key.
    each: &'static [&'static str],
    /// The arguments behind all keys.
    end: &'static [&'static str],
    /// Arguments behind all keys that are wrong themselves.
    bogus_end: &'static [&'static str],
}

const COUNTED: &[Counted] = &[
    Counted {
        name: "lock.macquire",
        front: &[],
        each: &[],
        end: &["me", "PX", "60000"],
        bogus_end: &["me", "PX", "x"],
    },
    Counted {
        name: "lock.mrelease",
        front: &[],
        each: &[],
        end: &["me", "ALL"],
        bogus_end: &["me", "ALL", "ALL"],
    },
    Counted {
        name: "sem.macquire",
        front: &[],
        each: &["5"],
        end: &["me", "PX", "60000"],
        bogus_end: &["me", "PX", "x"],
    },
    Counted {
        name: "sem.mrelease",
        front: &[],
        each: &[],
        end: &["me", "ALL"],
        bogus_end: &["me", "ALL", "ALL"],
    },
    Counted {
        name: "stock.mdeduct",
        front: &[],
        each: &["1"],
        end: &["ORDER", "deduct"],
        bogus_end: &["ORDER"],
    },
    Counted {
        name: "stock.mreserve",
        front: &[],
        each: &["1"],
        end: &["ORDER", "reserve", "PX", "60000"],
        bogus_end: &["ORDER", "reserve", "PX", "0"],
    },
    Counted {
        name: "stock.mconfirm",
        front: &[],
        each: &[],
        end: &["reserve"],
        bogus_end: &["reserve", "BOGUS"],
    },
    Counted {
        name: "stock.mcancel",
        front: &[],
        each: &[],
        end: &["reserve"],
        bogus_end: &["reserve", "BOGUS"],
    },
    Counted {
        name: "rate.mgcra",
        front: &[],
        each: &["9", "1", "60000"],
        end: &["COST", "1"],
        bogus_end: &["COST", "x"],
    },
    Counted {
        name: "bf.merge",
        front: &["own:destination"],
        each: &[],
        end: &[],
        bogus_end: &["BOGUS"],
    },
];

type Words = Vec<Vec<u8>>;

impl Counted {
    fn line(&self, numkeys: &[u8], keys: &[String], end: &[&str]) -> Words {
        let mut words = vec![self.name.as_bytes().to_vec()];
        words.extend(self.front.iter().map(|word| word.as_bytes().to_vec()));
        words.push(numkeys.to_vec());
        for key in keys {
            words.push(key.as_bytes().to_vec());
            words.extend(self.each.iter().map(|word| word.as_bytes().to_vec()));
        }
        words.extend(end.iter().map(|word| word.as_bytes().to_vec()));
        words
    }

    /// All keys of a call, in order.
    fn keys(&self, keys: &[String]) -> Vec<String> {
        let front = self.front.iter().map(|key| (*key).to_owned());
        front.chain(keys.iter().cloned()).collect()
    }
}

/// Values outside of the bounds.
const OUTSIDE: &[&[u8]] = &[
    b"0",
    b"-1",
    b"1025",
    b"65537",
    b"2147483648",
    b"4294967297",
    b"9007199254740992",
    b"9223372036854775807",
    b"-9223372036854775808",
];

/// Values that are no integers.
const NO_INTEGERS: &[&[u8]] = &[
    b"",
    b"x",
    b"+1",
    b" 1",
    b"1 ",
    b"01",
    b"-0",
    b"1.0",
    b"1e0",
    b"0x1",
    b"1\0",
    b"\xff",
    b"\xc0\xb1",
    b"9223372036854775808",
    b"18446744073709551617",
];

fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|key| format!("{prefix}:{key}")).collect()
}

/// A server with stocks and filters at the keys `stock:*` and `bf:*`; locks need none.
fn server() -> (Server, Raw) {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("BF.RESERVE own:destination 0.01 10");
    for key in keys("stock", 1025) {
        client.must(&format!("STOCK.SET {key} 10"));
    }
    for key in keys("bf", 1025) {
        client.must(&format!("BF.RESERVE {key} LIKE own:destination"));
    }
    (server, client)
}

/// The names of all commands that have an argument `numkeys`.
fn documented(server: &Server) -> Vec<String> {
    let mut client = Raw::connect(server);
    client.hello3();
    let docs = client.run("COMMAND DOCS");
    let Value::Map(commands) = docs else {
        panic!("COMMAND DOCS is no map: {docs:?}");
    };
    let mut names = Vec::new();
    for (name, about) in &commands {
        let Value::Map(fields) = about else { continue };
        let of = |field: &str| fields.iter().find(|(name, _)| *name == field);
        if !of("module").is_some_and(|(_, module)| *module == "sluice") {
            continue;
        }
        let arguments = of("arguments").map_or(&[][..], |(_, arguments)| arguments.array());
        if arguments
            .iter()
            .any(|argument| argument.field("name") == &"numkeys")
        {
            names.push(name.text().to_owned());
        }
    }
    names.sort();
    names
}

#[test]
fn every_command_with_numkeys_is_tested_here() {
    let mut names: Vec<_> = COUNTED.iter().map(|command| command.name).collect();
    names.sort_unstable();
    assert_eq!(documented(&Server::start()), names);
}

#[test]
fn numkeys_has_bounds_that_are_checked_first() {
    let (server, mut client) = server();
    let digest = server.digest();
    for command in COUNTED {
        let family = command.name.split('.').next().unwrap();
        let one = keys(family, 1);
        let same = vec![one[0].clone(), one[0].clone()];
        for (values, error) in [(OUTSIDE, REFUSED), (NO_INTEGERS, NOT_AN_INTEGER)] {
            for value in values {
                for keys in [&one, &keys(family, 3), &same] {
                    for end in [command.end, command.bogus_end] {
                        let reply = client.call(command.line(value, keys, end));
                        let shown = value.escape_ascii();
                        assert_eq!(reply.err(), error, "{} {shown} {end:?}", command.name);
                    }
                }
            }
        }
        let most = keys(family, 1025);
        let reply = client.call(command.line(b"1025", &most, command.end));
        assert_eq!(reply.err(), REFUSED, "{}", command.name);
        for (numkeys, count) in [("5", 4), ("1024", 4), ("1024", 1000), ("1024", 1023)] {
            let keys = keys(family, count);
            let reply = client.call(command.line(numkeys.as_bytes(), &keys, &[]));
            assert_eq!(reply.err(), SYNTAX, "{} {numkeys} {count}", command.name);
        }
    }
    // Options are not read as the arguments of a missing key.
    for line in [
        "RATE.MGCRA 2 rate:0 9 1 60000 COST 1 PEEK",
        "RATE.MGCRA 3 rate:0 9 1 60000 rate:1 9 1 60000 AHEAD 5 PEEK",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_command_takes_1024_keys() {
    let (_server, mut client) = server();
    for command in COUNTED {
        let family = command.name.split('.').next().unwrap();
        let all = keys(family, 1024);
        let reply = client.call(command.line(b"1024", &all, command.end));
        if command.name == "bf.merge" {
            assert_eq!(reply, "OK");
        } else if command.name == "rate.mgcra" {
            assert_eq!(reply.array()[..3], [0, 10, 9], "{reply:?}");
        } else if command.name != "stock.mcancel" {
            assert_eq!(reply.array().len(), 1024, "{}", command.name);
            let taken = reply.array().iter().all(|item| item.int() >= 0);
            assert!(taken, "{}: {reply:?}", command.name);
        }
    }
}

#[test]
fn the_server_finds_no_more_keys_than_there_are() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut found = |line: Words| {
        let mut command = vec![b"COMMAND".to_vec(), b"GETKEYS".to_vec()];
        command.extend(line);
        let reply = client.call(command);
        match reply.is_err() {
            true => None,
            false => {
                let names = reply.array().iter();
                Some(names.map(|key| key.text().to_owned()).collect::<Vec<_>>())
            }
        }
    };
    for command in COUNTED {
        let name = command.name;
        for count in [1, 2, 7, 1024] {
            let keys = keys("k", count);
            let line = command.line(count.to_string().as_bytes(), &keys, command.end);
            assert_eq!(found(line), Some(command.keys(&keys)), "{name} {count}");
        }
        for value in OUTSIDE.iter().chain(NO_INTEGERS) {
            let keys = keys("k", 5);
            let shown = value.escape_ascii();
            let Some(found) = found(command.line(value, &keys, command.end)) else {
                continue;
            };
            // The server itself takes some of these numbers modulo 2^32.
            let there = command.keys(&keys);
            let are_there = found.iter().all(|key| there.contains(key));
            assert!(are_there, "{name} {shown}: {found:?}");
            assert!(found.len() <= there.len(), "{name} {shown}: {found:?}");
        }
        for missing in [10, 1000] {
            let keys = keys("k", 5);
            let line = command.line(missing.to_string().as_bytes(), &keys, &[]);
            let front = command.keys(&[]);
            let found = found(line).unwrap_or_default();
            assert!(found.is_empty() || found == front, "{name}: {found:?}");
        }
    }
}

/// A user who may use some keys gets at no other one, whatever `numkeys` is.
#[test]
fn no_number_of_keys_gets_around_an_acl() {
    let (server, _) = server();
    ask(&server, "ACL SETUSER bob on >pw ~own:* +@all");
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    let digest = server.digest();
    for command in COUNTED {
        let family = command.name.split('.').next().unwrap();
        let others = keys(family, 3);
        let mixed = vec!["own:1".to_owned(), others[0].clone()];
        for keys in [&others, &mixed] {
            for value in OUTSIDE.iter().chain(NO_INTEGERS) {
                let reply = client.call(command.line(value, keys, command.end));
                let shown = value.escape_ascii();
                assert!(reply.is_err(), "{} {shown}: {reply:?}", command.name);
            }
            let numkeys = keys.len().to_string();
            let reply = client.call(command.line(numkeys.as_bytes(), keys, command.end));
            let refused = reply.err().starts_with("NOPERM ");
            assert!(refused, "{}: {reply:?}", command.name);
        }
    }
    assert_eq!(server.digest(), digest);
}
