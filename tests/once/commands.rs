//! What the commands reply and do, sentence by sentence of the contract.

use std::thread;
use std::time::Duration;

use crate::support::once::{CONFLICT, begin, begun, busy, counter, done, fill, token};
use crate::support::{
    KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Value, WRONGTYPE, eventually,
    server_and_client,
};

const TEN_YEARS: i64 = 315_360_000_000;

#[test]
fn work_is_begun_once_and_its_result_is_had_by_all() {
    let (_server, mut client) = server_and_client();
    let first = begin(&mut client, "ONCE.BEGIN pay LEASE 60000");
    let left = busy(&client.must("ONCE.BEGIN pay LEASE 5"));
    assert!((1..=60_000).contains(&left), "{left}");
    assert!((1..=60_000).contains(&client.must("PTTL pay").int()));
    let line = format!("ONCE.DONE pay {first} charged PX 90000");
    assert_eq!(client.must(&line), 1);
    for _ in 0..3 {
        let left = done(&client.must("ONCE.BEGIN pay LEASE 5"), "charged");
        assert!((60_001..=90_000).contains(&left), "{left}");
    }
    // Repeated: the same again, and PX does not begin anew.
    let end = client.must("PEXPIRETIME pay");
    thread::sleep(Duration::from_millis(5));
    assert_eq!(client.must(&line), 1);
    assert_eq!(client.must("PEXPIRETIME pay"), end);
    for other in [
        format!("ONCE.DONE pay {first} other PX 90000"),
        format!("ONCE.DONE pay {} charged PX 90000", first + 1),
        format!("ONCE.FAIL pay {first}"),
    ] {
        assert_eq!(client.must(&other), 0, "{other}");
    }
    done(&client.must("ONCE.BEGIN pay LEASE 5"), "charged");
    // DEL forgets.
    client.must("DEL pay");
    assert_eq!(client.must(&line), 0);
    let second = begin(&mut client, "ONCE.BEGIN pay LEASE 60000");
    assert!(second > first);
    for (name, count) in [
        ("begun", 2),
        ("done", 1),
        ("replayed", 4),
        ("busy", 1),
        ("failed", 0),
    ] {
        assert_eq!(counter(&mut client, name), count, "{name}");
    }
}

#[test]
fn results_are_any_bytes_also_none() {
    let (_server, mut client) = server_and_client();
    for (key, result) in [("a", &b""[..]), ("b", b"\0\xff\r\n"), ("c", &[7; 100_000])] {
        let line = format!("ONCE.BEGIN {key} LEASE 60000");
        let token = begin(&mut client, &line).to_string();
        let command: [&[u8]; 6] = [
            b"ONCE.DONE",
            key.as_bytes(),
            token.as_bytes(),
            result,
            b"PX",
            b"90000",
        ];
        assert_eq!(client.call(command), 1);
        let (state, stored, _) = begun(&client.must(&line));
        assert_eq!((&*state, stored.as_deref()), ("DONE", Some(result)));
        let info = client.must(&format!("ONCE.INFO {key}"));
        assert_eq!(info.field("result_bytes"), &Value::Int(result.len() as i64));
    }
}

#[test]
fn failed_work_is_free_for_the_next() {
    let (_server, mut client) = server_and_client();
    let first = begin(&mut client, "ONCE.BEGIN k LEASE 60000 FINGERPRINT f");
    assert_eq!(client.must(&format!("ONCE.FAIL k {}", first + 1)), 0);
    assert_eq!(client.must(&format!("ONCE.FAIL k {first}")), 1);
    assert_eq!(client.must("EXISTS k"), 0);
    assert_eq!(client.must(&format!("ONCE.FAIL k {first}")), 0);
    let second = begin(&mut client, "ONCE.BEGIN k LEASE 60000 FINGERPRINT g");
    assert_eq!(client.must(&format!("ONCE.DONE k {first} r PX 5000")), 0);
    assert_eq!(client.must(&format!("ONCE.DONE k {second} r PX 5000")), 1);
    assert_eq!(counter(&mut client, "failed"), 1);
}

#[test]
fn a_lease_that_ends_frees_the_key() {
    let (_server, mut client) = server_and_client();
    let first = begin(&mut client, "ONCE.BEGIN k LEASE 1");
    eventually(SOON, || client.must("EXISTS k") == 0);
    // Nobody else has begun, and it is gone with its key.
    for line in [
        format!("ONCE.DONE k {first} r PX 5000"),
        format!("ONCE.FAIL k {first}"),
    ] {
        assert_eq!(client.must(&line), 0, "{line}");
    }
    let second = begin(&mut client, "ONCE.BEGIN k LEASE 60000");
    assert!(second > first);
    assert_eq!(client.must(&format!("ONCE.DONE k {first} r PX 5000")), 0);
    assert_eq!(counter(&mut client, "expired"), 1);
    // What is forgotten is begun again.
    assert_eq!(client.must(&format!("ONCE.DONE k {second} r PX 20")), 1);
    eventually(SOON, || client.must("EXISTS k") == 0);
    begin(&mut client, "ONCE.BEGIN k LEASE 60000");
    assert_eq!(counter(&mut client, "expired"), 1);
}

/// The server keeps a key for as long as a script runs.
#[test]
fn a_lease_ends_to_the_millisecond_within_a_script() {
    let (_server, mut client) = server_and_client();
    let script = "local first = redis.call('ONCE.BEGIN', KEYS[1], 'LEASE', 1)
        local begin = redis.call('TIME')
        repeat
            local now = redis.call('TIME')
        until (now[1] - begin[1]) * 1000000 + now[2] - begin[2] > 5000 or true
        for i = 1, 200000 do end
        return first[1]";
    assert_eq!(client.call(["EVAL", script, "1", "k"]), "NEW");
    let replies = client.transact(["ONCE.BEGIN m LEASE 1", "ONCE.BEGIN m LEASE 60000"]);
    token(&replies[0]);
}

#[test]
fn fingerprints_tell_requests_apart() {
    let (_server, mut client) = server_and_client();
    for after in [None, Some("result")] {
        client.must("FLUSHALL");
        let named = begin(&mut client, "ONCE.BEGIN named LEASE 60000 FINGERPRINT f");
        let bare = begin(&mut client, "ONCE.BEGIN bare LEASE 60000");
        if let Some(result) = after {
            for (key, token) in [("named", named), ("bare", bare)] {
                let line = format!("ONCE.DONE {key} {token} {result} PX 60000");
                assert_eq!(client.must(&line), 1);
            }
        }
        let mut state = |line: &str| begun(&client.must(line)).0;
        let expected = after.map_or("BUSY", |_| "DONE");
        for line in [
            "ONCE.BEGIN named LEASE 5",
            "ONCE.BEGIN named LEASE 5 FINGERPRINT f",
            "ONCE.BEGIN bare LEASE 5",
            "ONCE.BEGIN bare LEASE 5 FINGERPRINT f",
            "ONCE.BEGIN bare LEASE 5 FINGERPRINT g",
        ] {
            assert_eq!(state(line), expected, "{line}");
        }
        for line in [
            "ONCE.BEGIN named LEASE 5 FINGERPRINT g",
            "ONCE.BEGIN named LEASE 5 FINGERPRINT F BLOCK 0",
        ] {
            assert_eq!(client.run(line).err(), CONFLICT, "{line}");
        }
    }
    assert_eq!(counter(&mut client, "conflicts"), 4);
}

#[test]
fn info_shows_all_of_it() {
    let (server, mut client) = server_and_client();
    assert!(client.must("ONCE.INFO k").is_nil());
    for resp3 in [false, true] {
        let mut client = Raw::connect(&server);
        if resp3 {
            client.hello3();
        }
        client.must("FLUSHALL");
        let token = begin(&mut client, "ONCE.BEGIN k LEASE 60000 FINGERPRINT fp");
        let info = client.must("ONCE.INFO k");
        let names = |info: &Value| -> Vec<String> {
            let fields = info.fields();
            fields
                .iter()
                .map(|(name, _)| name.text().to_owned())
                .collect()
        };
        let order = [
            "state",
            "token",
            "fingerprint",
            "lease_ms",
            "result_bytes",
            "waiters",
        ];
        assert_eq!(names(&info), order);
        assert_eq!(info.field("state"), &Value::Bulk(b"busy".into()));
        assert_eq!(info.field("token"), &Value::Int(token));
        assert_eq!(info.field("fingerprint"), &Value::Bulk(b"fp".into()));
        assert!((1..=60_000).contains(&info.field("lease_ms").int()));
        assert_eq!(info.field("result_bytes"), &Value::Int(0));
        assert_eq!(info.field("waiters"), &Value::Int(0));
        client.must(&format!("ONCE.DONE k {token} paid PX 90000"));
        let info = client.must("ONCE.INFO k");
        let order = [
            "state",
            "token",
            "fingerprint",
            "ttl_ms",
            "result_bytes",
            "waiters",
        ];
        assert_eq!(names(&info), order);
        assert_eq!(info.field("state"), &Value::Bulk(b"done".into()));
        assert!((60_001..=90_000).contains(&info.field("ttl_ms").int()));
        assert_eq!(info.field("result_bytes"), &Value::Int(4));
        client.must("DEL k");
        begin(&mut client, "ONCE.BEGIN k LEASE 60000");
        assert!(client.must("ONCE.INFO k").field("fingerprint").is_nil());
    }
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    client.must("SET string v");
    let digest = server.digest();
    let lease = format!("ERR LEASE must be between 1 and {TEN_YEARS}");
    let px = format!("ERR PX must be between 1 and {TEN_YEARS}");
    let long = "f".repeat(513);
    for (line, error) in [
        ("ONCE.BEGIN k BLOCK 5 LEASE", SYNTAX),
        ("ONCE.BEGIN k FINGERPRINT f", SYNTAX),
        ("ONCE.BEGIN k LEASE 5 LEASE 5", SYNTAX),
        ("ONCE.BEGIN k LEASE 5 PX 5", SYNTAX),
        ("ONCE.BEGIN k LEASE 5 FINGERPRINT", SYNTAX),
        ("ONCE.BEGIN k LEASE x", NOT_AN_INTEGER),
        ("ONCE.BEGIN k LEASE 0", &lease),
        ("ONCE.BEGIN k LEASE 315360000001", &lease),
        (
            "ONCE.BEGIN k LEASE 5 BLOCK -1",
            "ERR BLOCK must be between 0 and 315360000000",
        ),
        (
            &format!("ONCE.BEGIN k LEASE 5 FINGERPRINT {long}"),
            "ERR FINGERPRINT must be between 1 and 512",
        ),
        ("ONCE.BEGIN string LEASE 5", WRONGTYPE),
        ("ONCE.DONE string 5 r PX 5", WRONGTYPE),
        ("ONCE.FAIL string 5", WRONGTYPE),
        ("ONCE.INFO string", WRONGTYPE),
        ("ONCE.DONE busy x r PX 5", NOT_AN_INTEGER),
        (
            "ONCE.DONE busy -1 r PX 5",
            "ERR token must be between 0 and 9007199254740991",
        ),
        ("ONCE.DONE busy 5 r LEASE 5", SYNTAX),
        ("ONCE.DONE busy 5 r PX 5 PX 5", SYNTAX),
        ("ONCE.DONE busy 5 r PX 0", &px),
        ("ONCE.FAIL busy x", NOT_AN_INTEGER),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
    let empty = client.call(["ONCE.BEGIN", "k", "LEASE", "5", "FINGERPRINT", ""]);
    assert_eq!(empty.err(), "ERR FINGERPRINT must be between 1 and 512");
    assert_eq!(server.digest(), digest);
    assert_eq!(client.must("EXISTS k"), 0);
}

#[test]
fn a_full_server_refuses_new_work_and_nothing_else() {
    let (_server, mut client) = server_and_client();
    let token = fill(&mut client);
    let failing = begin(&mut client, "ONCE.BEGIN failing LEASE 600000");
    client.must("CONFIG SET maxmemory 1");
    assert!(
        client
            .run("ONCE.BEGIN new LEASE 5")
            .err()
            .starts_with("OOM ")
    );
    busy(&client.must("ONCE.BEGIN busy LEASE 5"));
    done(&client.must("ONCE.BEGIN done LEASE 5"), "paid");
    let line = format!("ONCE.DONE busy {token} result PX 600000");
    assert_eq!(client.must(&line), 1);
    done(&client.must("ONCE.BEGIN busy LEASE 5"), "result");
    assert_eq!(client.must(&format!("ONCE.FAIL failing {failing}")), 1);
    client.must("CONFIG SET maxmemory 0");
    begin(&mut client, "ONCE.BEGIN new LEASE 5");
}

#[test]
fn blocking_is_not_where_it_is_not_allowed() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    let replies = client.transact([
        "ONCE.BEGIN busy LEASE 5 BLOCK 0",
        "ONCE.BEGIN t LEASE 600000",
    ]);
    busy(&replies[0]);
    token(&replies[1]);
    let script = "return redis.call('ONCE.BEGIN', KEYS[1], 'LEASE', 5, 'BLOCK', 0)";
    busy(&client.call(["EVAL", script, "1", "busy"]));
    assert_eq!(counter(&mut client, "waiting"), 0);
}

#[test]
fn every_change_is_announced() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEd");
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 60000");
    client.must("ONCE.BEGIN k LEASE 60000");
    for _ in 0..2 {
        client.must(&format!("ONCE.DONE k {token} r PX 60000"));
    }
    let token = begin(&mut client, "ONCE.BEGIN other LEASE 60000");
    client.must(&format!("ONCE.FAIL other {token}"));
    let expected = [
        "once.begin k",
        "once.done k",
        "once.begin other",
        "once.fail other",
    ];
    assert_eq!(events.take(), expected);
}

#[test]
fn every_command_tells_what_it_is() {
    let (_server, mut client) = server_and_client();
    for (name, arity, flags) in [
        ("once.begin", -4, "write fast blocking"),
        ("once.done", -6, "write"),
        ("once.fail", 3, "write"),
        ("once.info", 2, "readonly fast"),
    ] {
        let info = client.call(["COMMAND", "INFO", name]);
        let info = info.array()[0].array();
        assert_eq!(info[1], arity, "{name}");
        let found: Vec<_> = info[2].array().iter().map(Value::text).collect();
        for flag in ["write", "readonly", "fast", "blocking", "denyoom"] {
            let expected = flags.split(' ').any(|own| own == flag);
            assert_eq!(found.contains(&flag), expected, "{name}: {found:?}");
        }
        let keys = client.call(["COMMAND", "GETKEYS", name, "k", "1", "2", "3", "4"]);
        if arity < 0 {
            assert_eq!(keys.array(), [Value::Bulk(b"k".into())], "{name}");
        }
        let docs = client.call(["COMMAND", "DOCS", name]);
        assert!(!docs.field(name).field("summary").text().is_empty());
    }
}

#[test]
fn users_need_to_read_and_to_write_the_key() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    client.must("ACL SETUSER reader on >pw %R~* +@all");
    client.must("ACL SETUSER writer on >pw %W~* +@all");
    client.must("ACL SETUSER both on >pw ~done +@all");
    let mut user = Raw::connect(&server);
    for (who, may) in [("reader", false), ("writer", false), ("both", true)] {
        user.must(&format!("AUTH {who} pw"));
        for line in [
            "ONCE.BEGIN done LEASE 5",
            "ONCE.DONE done 5 r PX 5",
            "ONCE.FAIL done 5",
        ] {
            let refused = user.run(line);
            let is_refused = refused.is_err() && refused.err().starts_with("NOPERM ");
            assert_eq!(is_refused, !may, "{who}: {line}");
        }
        let refused = user.run("ONCE.INFO done");
        assert_eq!(refused.is_err(), who == "writer", "{who}: {refused:?}");
    }
    let other = user.run("ONCE.BEGIN other LEASE 5");
    assert!(other.err().starts_with("NOPERM "));
}
