//! The server's own commands work on limits, which expire by themselves wherever they are.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use crate::support::rate::{
    KINDS, ask, assert_expires, assert_filled, at, costing, counting_kinds, fill, remaining,
};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, Raw, SEPARATE, SOON, Server, Value, WRONGTYPE, assert_identical,
    eventually, field_of, follow, quiet, server_and_client, settled_memory, until_pong,
};

const TYPE: &str = "sluice-ra";
const HOUR: i64 = 3_600_000;

// The end of a key

#[test]
fn whatever_removes_a_key_lets_the_limit_begin_anew() {
    let (_server, mut client) = server_and_client();
    for removal in [
        "DEL %",
        "UNLINK %",
        "PEXPIREAT % 1",
        "PEXPIRE % -1",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SET % string",
        "RENAME other %",
    ] {
        for (kind, line) in KINDS {
            client.must("FLUSHALL");
            client.must("SET other v");
            fill(&mut client);
            client.must(&at(removal, kind));
            let line = at(line, kind);
            if ["SET % string", "RENAME other %"].contains(&removal) {
                assert_eq!(client.run(&line).err(), WRONGTYPE, "{removal}");
                continue;
            }
            assert_eq!(client.call(["EXISTS", kind]), 0, "{removal}");
            assert_eq!(client.call(["RATE.REFUND", kind, "1"]), 0, "{removal}");
            match kind {
                "once" => assert_eq!(client.run(&line), 1, "{removal}"),
                _ => assert_eq!(ask(&mut client, &line)[..3], [0, 5, 4], "{removal}"),
            }
        }
    }
}

#[test]
fn a_key_that_is_made_to_expire_earlier_does() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in KINDS {
        assert_eq!(client.call(["PEXPIRE", kind, "20"]), 1);
        eventually(SOON, || client.call(["EXISTS", kind]) == 0);
        client.must(&at(line, kind));
        let left = client.call(["PTTL", kind]).int();
        assert!(left > HOUR, "{kind} expires in {left} ms");
    }
}

/// Nothing makes a key stay for longer than it matters.
#[test]
fn a_key_that_is_made_to_stay_expires_with_its_limit() {
    let (_server, mut client) = server_and_client();
    for (key, line) in [
        ("g", "RATE.GCRA g 4 1 20"),
        ("w", "RATE.WINDOW w 5 50"),
        ("s", "RATE.WINDOW s 5 25 SLIDING"),
        ("t", "RATE.TIERS t 1 4 1 20"),
    ] {
        for stay in ["PERSIST %", "PEXPIRE % 900000", "EXPIREAT % 99999999999"] {
            // In one step, so that it has not expired yet.
            let replies = client.transact([line, &at(stay, key)]);
            assert_eq!(replies[1], 1, "{line}");
            eventually(SOON, || client.run("DBSIZE") == 0);
        }
        // A step that goes on after the end has the key still; who gives back then removes it.
        let script = "redis.call('PERSIST', KEYS[1])
            repeat
                local left = redis.call(unpack(ARGV))[3]
            until left == 5
            redis.call('RATE.REFUND', KEYS[1], 1)
            return redis.call('EXISTS', KEYS[1])";
        client.must(line);
        let peek = format!("{line} COST 0");
        let command = ["EVAL", script, "1", key].into_iter();
        assert_eq!(client.call(command.chain(peek.split(' '))), 0, "{line}");
    }
    client.transact(["RATE.ONCE o PX 20", "PERSIST o"]);
    thread::sleep(Duration::from_millis(40));
    // Once is what its key says.
    assert_eq!(client.run("RATE.ONCE o PX 20"), 0);
    assert_eq!(client.run("PTTL o"), -1);
}

/// A transaction that goes on after the end. Redis 8.6 looks a key up, and deletes one that has expired, when a module tells it that
/// the key has changed: the module must not use it any more then.
#[test]
fn a_key_that_outlives_its_limit_is_removed_after_the_transaction() {
    let (_server, mut client) = server_and_client();
    for line in [
        "RATE.GCRA k 4 1 5",
        "RATE.WINDOW k 5 5",
        "RATE.WINDOW k 5 5 SLIDING",
        "RATE.WINDOW k 5 5 EXACT",
        "RATE.MGCRA 1 k 4 1 5",
    ] {
        let replies = client.transact([line, "PERSIST k", "DEBUG SLEEP 0.03"]);
        assert_eq!(replies[1], 1, "{line}");
        assert_eq!(replies[2], "OK");
        eventually(SOON, || client.run("DBSIZE") == 0);
    }
}

/// On all who have the dataset, and for keys that come with another end or with none.
#[test]
fn a_key_has_its_end_back_everywhere() {
    let master = quiet().aof(Fsync::Always).start();
    let replica = quiet().start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    fill(&mut client);
    let mut there = Raw::connect(&replica);
    for (kind, _) in counting_kinds() {
        let end = client.call(["PEXPIRETIME", kind]);
        let dump = client.call(["DUMP", kind]);
        let restore = |ttl: &'static str| {
            let command = ["RESTORE", kind, ttl].map(str::as_bytes);
            let command = command.into_iter().chain([dump.bytes(), b"REPLACE"]);
            command.collect::<Vec<_>>()
        };
        let line = |line: &str| -> Vec<Vec<u8>> {
            let line = at(line, kind);
            line.split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect()
        };
        for later in [
            "PERSIST %",
            "PEXPIRE % 9000000000000",
            "PEXPIREAT % 9999999999999",
        ] {
            assert_eq!(client.call(line(later)), 1);
            assert_eq!(client.call(["PEXPIRETIME", kind]), end, "{kind} {later}");
        }
        for ttl in ["0", "9000000000000"] {
            assert_eq!(client.call(restore(ttl)), "OK");
            assert_eq!(client.call(["PEXPIRETIME", kind]), end, "{kind} {ttl}");
        }
        assert_eq!(client.call(["DUMP", kind]), dump);
        // What is made to end earlier, does: it may be renamed and copied.
        assert_eq!(client.call(["PEXPIRE", kind, "900000"]), 1);
        assert_eq!(client.call(["RENAME", kind, "other"]), "OK");
        assert_eq!(client.call(["COPY", "other", "copy", "REPLACE"]), 1);
        for key in ["other", "copy"] {
            assert!(client.call(["PTTL", key]).int() <= 900_000);
        }
        assert_eq!(client.call(["PERSIST", "other"]), 1);
        assert_eq!(client.call(["PEXPIRETIME", "other"]), end);
        assert_eq!(client.call(["RENAME", "other", kind]), "OK");
        assert_identical(&master, &replica);
        assert_eq!(there.call(["PEXPIRETIME", kind]), end);
    }
    client.must("DEL copy");
    let ends = |client: &mut Raw| KINDS.map(|(kind, _)| client.call(["PEXPIRETIME", kind]));
    let before = ends(&mut client);
    master.terminate();
    master.restart();
    assert_eq!(ends(&mut Raw::connect(&master)), before);
    assert_filled(&mut Raw::connect(&master));
}

#[test]
fn an_allowed_call_sets_the_end_that_is_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("RATE.GCRA g 9 1 3600000");
    for other in ["PERSIST g", "PEXPIRE g 900000000", "PEXPIRE g 10000"] {
        assert_eq!(client.run(other), 1);
        let calls = ask(&mut client, "RATE.GCRA g 9 1 3600000")[2];
        assert_expires(&mut client, "g", (10 - calls) * HOUR);
    }
    // A refused one leaves it.
    client.must("PEXPIRE g 900000");
    client.must("RATE.GCRA g 0 1 3600000");
    client.must("RATE.GCRA g 9 1 3600000 COST 0");
    client.must("RATE.GCRA g 9 1 3600000 PEEK");
    assert!(client.run("PTTL g").int() <= 900_000);
}

// What a key is

#[test]
fn a_limit_is_a_type_of_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("SET string v");
    client.must("LOCK.ACQUIRE lock me");
    fill(&mut client);
    let keys: HashSet<Vec<u8>> = KINDS
        .iter()
        .map(|(kind, _)| kind.as_bytes().to_vec())
        .collect();
    for (kind, _) in KINDS {
        assert_eq!(client.call(["TYPE", kind]), TYPE);
    }
    assert_ne!(client.run("TYPE lock"), TYPE);
    let found = client.call(["SCAN", "0", "COUNT", "1000", "TYPE", TYPE]);
    let found = found.array()[1].array().iter();
    let found: HashSet<Vec<u8>> = found.map(|key| key.bytes().to_vec()).collect();
    assert_eq!(found, keys);
    assert_eq!(client.run("EXISTS gcra once none"), 2);
    assert_eq!(client.run("TOUCH gcra none"), 1);
    assert_eq!(client.run("DBSIZE"), 9);
    assert!(!client.run("RANDOMKEY").is_nil());
}

#[test]
fn object_and_debug_commands_answer() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, _) in KINDS {
        assert!(!client.call(["OBJECT", "ENCODING", kind]).text().is_empty());
        assert_eq!(client.call(["OBJECT", "REFCOUNT", kind]), 1);
        assert!(client.call(["OBJECT", "IDLETIME", kind]).int() >= 0);
        let debug = client.call(["DEBUG", "OBJECT", kind]);
        assert!(debug.text().contains("serializedlength"), "{debug:?}");
    }
    client.must("CONFIG SET maxmemory-policy allkeys-lfu");
    assert!(client.must("OBJECT FREQ gcra").int() >= 0);
}

fn digest_of(client: &mut Raw, key: &str) -> String {
    let reply = client.must(&format!("DEBUG DIGEST-VALUE {key}"));
    reply.array()[0].text().to_owned()
}

#[test]
fn every_change_is_a_change_of_the_digest_and_no_look_is() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    let digests: HashSet<String> = KINDS
        .iter()
        .map(|(kind, _)| digest_of(&mut client, kind))
        .collect();
    assert_eq!(digests.len(), KINDS.len(), "two kinds have the same digest");
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        for (line, changes) in [
            (costing(&line, 0), false),
            (costing(&line, 3), false),
            (costing(&line, 1), true),
            (format!("RATE.REFUND {kind} 0"), false),
            (format!("RATE.REFUND {kind} 1"), true),
            (line, true),
        ] {
            let before = digest_of(&mut client, kind);
            client.must(&line);
            assert_eq!(digest_of(&mut client, kind) != before, changes, "{line}");
        }
        let digest = digest_of(&mut client, kind);
        client.must(&format!("COPY {kind} copy REPLACE"));
        assert_eq!(digest_of(&mut client, "copy"), digest, "{kind}");
        client.must("RENAME copy renamed");
        assert_eq!(digest_of(&mut client, "renamed"), digest, "{kind}");
    }
}

#[test]
fn clients_that_track_a_limit_hear_of_allowed_calls_and_of_no_refused_ones() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    let mut tracker = Raw::connect(&server);
    tracker.hello3();
    tracker.must("CLIENT TRACKING ON");
    let mut is_told = |key: &str, line: &str| {
        tracker.call(["TYPE", key]);
        client.must(line);
        until_pong(&mut tracker)
            .iter()
            .any(|value| matches!(value, Value::Push(parts) if parts[0] == "invalidate"))
    };
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        assert!(!is_told(kind, &costing(&line, 3)), "{line}");
        assert!(!is_told(kind, &costing(&line, 0)), "{line}");
        assert!(is_told(kind, &line), "{line}");
        assert!(is_told(kind, &format!("RATE.REFUND {kind} 1")), "{line}");
        assert!(is_told(kind, &format!("RATE.REFUND {kind} 9")), "{line}");
    }
    assert!(!is_told("once", "RATE.ONCE once PX 1000"));
}

// RENAME, COPY, MOVE, SWAPDB

/// What is at a key: its bytes and its end.
fn look(client: &mut Raw, key: &str) -> [Value; 2] {
    [
        client.call(["DUMP", key]),
        client.call(["PEXPIRETIME", key]),
    ]
}

#[test]
fn a_limit_that_moves_is_the_same_limit() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in KINDS {
        let before = look(&mut client, kind);
        for step in [
            "RENAME % new",
            "RENAMENX new %",
            "MOVE % 2",
            "SELECT 2",
            "SWAPDB 2 3",
            "SELECT 3",
            "MOVE % 0",
            "SELECT 0",
        ] {
            let reply = client.must(&at(step, kind));
            assert!(reply != 0, "{step}");
        }
        assert_eq!(look(&mut client, kind), before, "{kind}");
        client.must("SELECT 2");
        assert_eq!(client.run("DBSIZE"), 0);
        client.must("SELECT 0");
        if kind != "once" {
            assert_eq!(ask(&mut client, &at(line, kind))[..3], [0, 5, 1]);
            assert_eq!(client.call(["RATE.REFUND", kind, "1"]), 1);
        }
    }
    assert_filled(&mut client);
}

#[test]
fn a_copy_is_a_limit_of_its_own() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in KINDS {
        let before = look(&mut client, kind);
        client.must("DEL copy");
        assert_eq!(client.call(["COPY", kind, "copy"]), 1);
        assert_eq!(client.call(["COPY", kind, "copy"]), 0);
        assert_eq!(client.run(&format!("COPY {kind} copy DB 1 REPLACE")), 1);
        assert_eq!(look(&mut client, "copy"), before, "{kind}");
        if kind == "once" {
            assert_eq!(client.run(&at(line, "copy")), 0);
            continue;
        }
        assert_eq!(
            ask(&mut client, &costing(&at(line, "copy"), 2))[..3],
            [0, 5, 0]
        );
        assert_eq!(look(&mut client, kind), before, "{kind}");
        client.must("SELECT 1");
        assert_eq!(remaining(&mut client, &at(line, "copy")), 2, "{kind}");
        client.must("SELECT 0");
    }
    assert_filled(&mut client);
}

/// It expires as the first one, and a call moves its own end only.
#[test]
fn copies_and_renamed_keys_expire_by_themselves() {
    let (_server, mut client) = server_and_client();
    for line in [
        "RATE.GCRA % 9 1 40",
        "RATE.WINDOW % 9 150",
        "RATE.WINDOW % 9 60 SLIDING",
        "RATE.TIERS % 2 9 1 40 9 1 20",
        "RATE.ONCE % PX 100",
    ] {
        let lines = [
            at(line, "a"),
            "COPY a b".into(),
            "COPY a c DB 1".into(),
            "SELECT 0".into(),
            "RENAME a d".into(),
            at(line, "b"),
            at(line, "d"),
        ];
        for reply in client.transact(&lines) {
            assert!(!reply.is_err(), "{line}: {reply:?}");
        }
        eventually(SOON, || client.run("DBSIZE") == 0);
        client.must("SELECT 1");
        eventually(SOON, || client.run("DBSIZE") == 0);
        client.must("SELECT 0");
    }
}

// DUMP, RESTORE, MIGRATE

#[test]
fn a_restored_limit_is_what_was_dumped() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in KINDS {
        let [dump, end] = look(&mut client, kind);
        let mut restore = |key: &str, ttl: &str, options: &[&str]| {
            let mut command: Vec<&[u8]> =
                vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), dump.bytes()];
            command.extend(options.iter().map(|option| option.as_bytes()));
            client.call(command)
        };
        assert!(restore(kind, "0", &[]).err().starts_with("BUSYKEY"));
        let until = end.int();
        let end = until.to_string();
        assert_eq!(restore(kind, &end, &["REPLACE", "ABSTTL"]), "OK");
        assert_eq!(restore("until", &end, &["ABSTTL", "REPLACE"]), "OK");
        assert_eq!(restore("mortal", "900000", &["REPLACE"]), "OK");
        assert_eq!(restore("stays", "0", &["REPLACE", "IDLETIME", "5"]), "OK");
        assert_eq!(restore("past", "1000", &["ABSTTL"]), "OK");
        assert_eq!(client.run("EXISTS past"), 0);
        assert!(client.run("PTTL mortal").int() <= 900_000);
        let stays = client.run("PEXPIRETIME stays").int();
        assert_eq!(stays, if kind == "once" { -1 } else { until }, "{kind}");
        assert_eq!(look(&mut client, "until"), [dump, Value::Int(until)]);
        for key in ["until", "mortal", "stays"] {
            let line = at(line, key);
            if kind == "once" {
                assert_eq!(client.run(&line), 0);
                continue;
            }
            assert_eq!(ask(&mut client, &line)[..3], [0, 5, 1], "{line}");
            // From the first change of its end on it expires when it should; that of a window changes with the next.
            let is_early = client.call(["PTTL", key]).int() <= 900_000;
            let stays_so = key == "mortal" && line.contains("WINDOW") && !line.contains("EXACT");
            assert_eq!(is_early, stays_so, "{line}");
        }
    }
    assert_filled(&mut client);
}

/// The payload has been lying about for longer than its limit lasts.
#[test]
fn a_limit_that_is_restored_after_its_time_is_as_never_used() {
    let (_server, mut client) = server_and_client();
    for (key, line) in [
        ("g", "RATE.GCRA g 4 1 10"),
        ("w", "RATE.WINDOW w 5 30"),
        ("s", "RATE.WINDOW s 5 15 SLIDING"),
        ("t", "RATE.TIERS t 1 4 1 10"),
    ] {
        let line = costing(line, 3);
        let replies = client.transact([line.clone(), format!("DUMP {key}")]);
        eventually(SOON, || client.call(["EXISTS", key]) == 0);
        let restore = [
            b"RESTORE".as_slice(),
            key.as_bytes(),
            b"0",
            replies[1].bytes(),
        ];
        assert_eq!(client.call(restore), "OK");
        assert_eq!(ask(&mut client, &line)[..3], [0, 5, 2], "{line}");
        eventually(SOON, || client.call(["EXISTS", key]) == 0);
        // Nobody has to ask for it.
        assert_eq!(client.call(restore), "OK");
        eventually(SOON, || client.run("DBSIZE") == 0);
    }
}

#[test]
fn a_migrated_limit_goes_on_at_the_other_server() {
    let (one, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    fill(&mut here);
    let before = KINDS.map(|(kind, _)| look(&mut here, kind));
    let keys = KINDS.map(|(kind, _)| kind).join(" ");
    let port = other.port();
    let migrate = [
        "MIGRATE",
        "127.0.0.1",
        &port.to_string(),
        "",
        "0",
        "60000",
        "KEYS",
    ];
    let command = migrate.into_iter().chain(keys.split(' '));
    assert_eq!(here.call(command), "OK");
    assert_eq!(here.run("DBSIZE"), 0);
    for ((kind, _), [dump, end]) in KINDS.into_iter().zip(before) {
        let [moved, until] = look(&mut there, kind);
        assert_eq!(moved, dump, "{kind}");
        // It travels as a rest of time.
        assert!((until.int() - end.int()).abs() < 60_000, "{kind}");
    }
    assert_filled(&mut there);
}

// FLUSHALL, eviction

#[test]
fn flushing_one_database_leaves_the_limits_of_others() {
    for flush in ["FLUSHDB", "FLUSHDB ASYNC"] {
        let (_server, mut client) = server_and_client();
        fill(&mut client);
        client.must("SELECT 1");
        fill(&mut client);
        client.must(flush);
        assert_eq!(client.run("DBSIZE"), 0);
        client.must("SELECT 0");
        assert_filled(&mut client);
        client.must("SWAPDB 0 1");
        assert_eq!(client.run("DBSIZE"), 0);
        client.must("SELECT 1");
        assert_filled(&mut client);
    }
}

#[test]
fn limits_are_evicted_as_any_keys_that_expire() {
    let (server, mut client) = server_and_client();
    client.run_all((0..4000).map(|number| format!("RATE.TIERS k{number} 2 4 1 3600000 5 1 9")));
    client.must("CONFIG SET maxmemory-policy volatile-ttl");
    let limit = server.info_int("used_memory") - 200_000;
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    client.run_all((0..20).map(|number| format!("SET s{number} v")));
    assert!(server.info_int("evicted_keys") > 0);
    client.must("CONFIG SET maxmemory 0");
    let left = client.must("KEYS k*");
    assert!(left.array().len() < 4000);
    let left = left.array()[0].text();
    let line = format!("RATE.TIERS {left} 2 4 1 3600000 5 1 9");
    assert_eq!(ask(&mut client, &line)[..3], [0, 5, 3]);
}

// Memory

#[test]
fn memory_usage_is_truthful() {
    const COUNT: usize = 5000;
    let (server, mut client) = server_and_client();
    let mut measure = |line: &str| {
        client.must("FLUSHALL");
        client.must("SET warm up");
        // A connection of its own, whose buffers are no larger than the others'.
        let used = |server: &Server| {
            eventually(SOON, || server.info_int("lazyfree_pending_objects") == 0);
            field_of(&server.command(["INFO", "memory"]), "used_memory")
        };
        let before = used(&server);
        for start in (0..COUNT).step_by(100) {
            let lines = (start..start + 100).map(|number| at(line, &format!("key-{number:08}")));
            for reply in client.run_all(lines) {
                assert!(!reply.is_err(), "{reply:?}");
            }
        }
        let usages = (0..COUNT).map(|number| format!("MEMORY USAGE key-{number:08}"));
        let said: i64 = client.run_all(usages).iter().map(Value::int).sum();
        (settled_memory(&mut Raw::connect(&server)) - before, said)
    };
    measure(&format!("SET % {SEPARATE} PX 3600000"));
    // What the server leaves out for every key, such as the table of its keys and that of their ends, is what it leaves
    // out for a string.
    let (given, said) = measure(&format!("SET % {SEPARATE} PX 3600000"));
    let left_out = given - said;
    let tiers = |count: usize| format!("RATE.TIERS % {count}{}", " 9 1 3600000".repeat(count));
    let many = [1, 2, 3, 10, 64].map(tiers);
    let lines = KINDS.into_iter().map(|(_, line)| line);
    for line in lines.chain(many.iter().map(String::as_str)) {
        let (given, said) = measure(line);
        let truth = given - left_out;
        let error = (said - truth) as f64 / truth as f64 * 100.0;
        let (line, each) = (&line[..line.len().min(60)], truth / COUNT as i64);
        println!("{line}: given {each} each, said {error:+.1} %");
        assert!(
            error.abs() <= 10.0,
            "{line}: {said} of {truth}, {error:+.1} %"
        );
    }
}

#[test]
fn memory_of_limits_comes_back() {
    let (server, mut client) = server_and_client();
    let mut round = || {
        let lines = (0..3000).map(|number| {
            let count = 1 + number % 9;
            format!(
                "RATE.TIERS k{number} {count}{}",
                " 9 1 3600000".repeat(count)
            )
        });
        client.run_all(lines);
        // Fewer and more tiers, copies, and all ways to go.
        client.run_all((0..3000).map(|number| format!("RATE.TIERS k{number} 1 9 1 60000")));
        client.run_all((0..3000).map(|number| format!("RATE.TIERS k{number} 3 9 1 6 9 1 7 9 1 8")));
        client.run_all((0..3000).map(|number| format!("COPY k{number} copy REPLACE")));
        client.run_all((0..500).map(|number| format!("RATE.REFUND k{number} 99")));
        client.run_all((500..999).map(|number| format!("UNLINK k{number}")));
        client.run_all((1000..1999).map(|number| format!("SET k{number} v")));
        client.must("FLUSHALL");
        eventually(SOON, || server.info_int("lazyfree_pending_objects") == 0);
        server.info_int("used_memory")
    };
    round();
    let before = round();
    let after = (0..3).map(|_| round()).last().unwrap();
    // A leak of one bucket of each would be 3 * 3000 blocks of 48 bytes.
    let grown = after - before;
    assert!(grown < 100_000, "{grown} bytes are not given back");
}

// Events of the server

#[test]
fn the_servers_own_events_are_those_of_any_key() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEA");
    client.must("RATE.GCRA k 4 1 3600000");
    assert_eq!(events.take(), ["rate.gcra k"]);
    client.must("PEXPIRE k 900000");
    client.must("RENAME k n");
    client.must("DEL n");
    assert_eq!(
        events.take(),
        ["expire k", "rename_from k", "rename_to n", "del n"]
    );
}
