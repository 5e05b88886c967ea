//! The server's own commands work on stocks, whose reservations end by themselves wherever they are.

use crate::support::stock::{
    CLOSED, UNKNOWN, assert_stream_tells_all, await_state, counts, number, state, told,
};
use crate::support::{
    KeyspaceEvents, Lines, Raw, SEPARATE, SOON, Server, Shutdown, Value, WRONGTYPE, eventually,
    field_of, server_and_client, settled_memory, until_pong,
};

// The end of a key

#[test]
fn whatever_removes_a_key_removes_the_stock_and_its_reservations() {
    let (server, mut client) = server_and_client();
    let removals = [
        "DEL k",
        "UNLINK k",
        "PEXPIREAT k 1",
        "PEXPIRE k -1",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SET k string",
        "STOCK.SET k 3",
        "RENAME other k",
    ];
    for removal in removals {
        client.run("FLUSHALL");
        client.must("STOCK.SET other 7");
        client.must("STOCK.SET k 10 PERUSER 5");
        client.transact(["STOCK.RESERVE k 1 ORDER o PX 30 USER u", removal]);
        let expired = server.info_int("sluice_stock_expired");
        // One that ends later, of which the server would tell too.
        client.must("STOCK.SET clock 1");
        client.must("STOCK.RESERVE clock 1 ORDER o PX 60");
        await_state(&mut client, "clock", "o", "expired");
        let ended = server.info_int("sluice_stock_expired") - expired;
        assert_eq!(ended, 1, "{removal}");
        match removal {
            "SET k string" => assert_eq!(client.run("STOCK.GET k").err(), WRONGTYPE),
            "STOCK.SET k 3" => assert_eq!(counts(&mut client, "k"), [3, 0, 0]),
            "RENAME other k" => assert_eq!(counts(&mut client, "k"), [7, 0, 0]),
            _ => {
                assert!(client.run("STOCK.INFO k").is_nil(), "{removal}");
                assert_eq!(client.run("STOCK.CONFIRM k o"), UNKNOWN, "{removal}");
                assert_eq!(client.run("STOCK.CANCEL k o"), UNKNOWN, "{removal}");
                assert_eq!(client.run("EXISTS k"), 0, "{removal}");
            }
        }
    }
}

#[test]
fn a_stock_keeps_the_expiry_that_it_is_given() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10");
    assert_eq!(client.run("PTTL k"), -1);
    assert_eq!(client.run("PEXPIRE k 900000"), 1);
    let end = client.run("PEXPIRETIME k");
    for line in [
        "STOCK.ADD k 1",
        "STOCK.DEDUCT k 1 ORDER d",
        "STOCK.RESERVE k 1 ORDER r PX 900000",
        "STOCK.CONFIRM k r",
        "STOCK.CANCEL k d",
    ] {
        client.must(line);
        assert_eq!(client.run("PEXPIRETIME k"), end, "{line}");
    }
    client.must("STOCK.RESERVE k 1 ORDER e PX 10");
    await_state(&mut client, "k", "e", "expired");
    assert_eq!(client.run("PEXPIRETIME k"), end);
    assert_eq!(client.run("PERSIST k"), 1);
    assert_eq!(client.run("PTTL k"), -1);
    client.must("PEXPIRE k 30");
    eventually(SOON, || client.run("EXISTS k") == 0);
    assert!(client.run("STOCK.GET k").is_nil());
    assert_eq!(client.run("STOCK.DEDUCT k 1"), UNKNOWN);
}

#[test]
fn the_end_of_a_stock_ends_no_other() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET mortal 10 EVENTS s");
    client.must("STOCK.SET lasting 10 EVENTS s");
    client.transact([
        "STOCK.MRESERVE 2 mortal 1 lasting 1 ORDER o PX 150",
        "PEXPIRE mortal 50",
    ]);
    await_state(&mut client, "lasting", "o", "expired");
    assert_eq!(client.run("EXISTS mortal"), 0);
    assert_eq!(told(&mut client, "s")[4..], ["expire lasting o - 1 10 3"]);
}

// What a key is

#[test]
fn a_stock_is_a_type_of_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10");
    client.must("SET string v");
    client.must("LOCK.ACQUIRE lock me");
    let kind = client.run("TYPE k").text().to_owned();
    assert_ne!(kind, client.run("TYPE lock").text());
    assert_eq!(client.run("EXISTS k k none"), 2);
    assert_eq!(client.run("TOUCH k none"), 1);
    let found = client.call(["SCAN", "0", "COUNT", "1000", "TYPE", &kind]);
    assert_eq!(found.array()[1].array(), [Value::Bulk(b"k".into())]);
    assert_eq!(client.run("KEYS *").array().len(), 3);
    assert!(!client.run("RANDOMKEY").is_nil());
}

#[test]
fn object_and_debug_commands_answer() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10 PERUSER 5 EVENTS s");
    client.must("STOCK.RESERVE k 1 ORDER o PX 900000 USER u");
    assert!(!client.must("OBJECT ENCODING k").text().is_empty());
    assert_eq!(client.must("OBJECT REFCOUNT k"), 1);
    assert!(client.must("OBJECT IDLETIME k").int() >= 0);
    let debug = client.must("DEBUG OBJECT k");
    assert!(debug.text().contains("serializedlength"));
    let digest = client.must("DEBUG DIGEST-VALUE k");
    client.must("COPY k copy");
    assert_eq!(client.must("DEBUG DIGEST-VALUE copy"), digest);
    client.must("RENAME k new");
    assert_eq!(client.must("DEBUG DIGEST-VALUE new"), digest);
    // Every change is a change of the digest.
    for line in [
        "STOCK.CANCEL new mark",
        "STOCK.CONFIRM new o",
        "STOCK.DEDUCT new 1 USER v",
        "STOCK.ADD new 0",
    ] {
        let before = client.must("DEBUG DIGEST-VALUE new");
        client.must(line);
        assert_ne!(client.must("DEBUG DIGEST-VALUE new"), before, "{line}");
    }
    client.must("CONFIG SET maxmemory-policy allkeys-lfu");
    assert!(client.must("OBJECT FREQ copy").int() >= 0);
}

#[test]
fn clients_that_track_a_stock_hear_of_changes_and_of_no_refusals() {
    let (server, mut client) = server_and_client();
    client.must("STOCK.SET k 10");
    client.must("STOCK.DEDUCT k 1 ORDER o");
    let mut tracker = Raw::connect(&server);
    tracker.hello3();
    tracker.must("CLIENT TRACKING ON");
    let mut is_told = |line: &str| {
        tracker.must("STOCK.GET k");
        client.run(line);
        until_pong(&mut tracker)
            .iter()
            .any(|value| matches!(value, Value::Push(parts) if parts[0] == "invalidate"))
    };
    for line in [
        "STOCK.DEDUCT k 1",
        "STOCK.ADD k 1",
        "STOCK.RESERVE k 1 ORDER r PX 900000",
        "STOCK.CONFIRM k r",
        "STOCK.CANCEL k r",
        "STOCK.MDEDUCT 1 k 1",
        "STOCK.SET k 10",
    ] {
        assert!(is_told(line), "{line}");
    }
    for line in ["STOCK.DEDUCT k 100", "STOCK.CONFIRM k none", "STOCK.GET k"] {
        assert!(!is_told(line), "{line}");
    }
    client.must("STOCK.RESERVE k 1 ORDER e PX 50");
    tracker.must("STOCK.GET k");
    await_state(&mut client, "k", "e", "expired");
    let heard = until_pong(&mut tracker);
    assert!(
        !heard.is_empty(),
        "nobody tells of the end of a reservation"
    );
}

// RENAME, COPY, MOVE, SWAPDB, RESTORE

#[test]
fn a_renamed_stock_keeps_its_orders_and_terms() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET old 10 PERUSER 3 EVENTS s");
    client.must("STOCK.RESERVE old 2 ORDER o PX 900000 USER u");
    let info = client.must("STOCK.INFO old");
    client.must("STOCK.SET taken 5");
    assert_eq!(client.run("RENAMENX old taken"), 0);
    client.must("RENAME old taken");
    assert_eq!(client.must("STOCK.INFO taken"), info);
    assert!(client.run("STOCK.INFO old").is_nil());
    assert_eq!(
        client.run("STOCK.RESERVE taken 2 ORDER o PX 900000 USER u"),
        8
    );
    assert_eq!(client.run("STOCK.DEDUCT taken 2 USER u"), -2);
    assert_eq!(client.run("STOCK.CONFIRM taken o"), 2);
    assert_eq!(client.run("STOCK.CONFIRM old o"), UNKNOWN);
}

#[test]
fn a_copy_is_a_stock_of_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10 PERUSER 3");
    client.must("STOCK.RESERVE k 2 ORDER o PX 900000 USER u");
    client.must("STOCK.DEDUCT k 1 ORDER sold USER u");
    let info = client.must("STOCK.INFO k");
    assert_eq!(client.run("COPY k copy"), 1);
    assert_eq!(client.run("COPY k copy"), 0);
    client.must("STOCK.SET over 1");
    assert_eq!(client.run("COPY k over REPLACE"), 1);
    assert_eq!(client.run("COPY k elsewhere DB 2"), 1);
    for (db, key) in [(0, "copy"), (0, "over"), (2, "elsewhere")] {
        client.call(["SELECT", &db.to_string()]);
        assert_eq!(client.call(["STOCK.INFO", key]), info);
        assert_eq!(client.call(["STOCK.CANCEL", key, "o"]), 2);
        assert_eq!(client.call(["STOCK.DEDUCT", key, "2", "USER", "u"]), 7);
        assert_eq!(counts(&mut client, key), [7, 0, 3]);
    }
    client.run("SELECT 0");
    assert_eq!(client.must("STOCK.INFO k"), info);
    client.run("DEL k");
    assert_eq!(client.run("STOCK.CANCEL copy sold"), 1);
}

#[test]
fn moved_and_swapped_stocks_keep_their_orders() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10");
    client.must("STOCK.RESERVE k 2 ORDER o PX 900000");
    assert_eq!(client.run("MOVE k 2"), 1);
    client.must("STOCK.SET k 5");
    assert_eq!(client.run("MOVE k 2"), 0);
    client.must("SELECT 2");
    assert_eq!(client.run("STOCK.RESERVE k 2 ORDER o PX 900000"), 8);
    client.must("SWAPDB 0 2");
    assert_eq!(counts(&mut client, "k"), [5, 0, 0]);
    client.must("SELECT 0");
    assert_eq!(client.run("STOCK.CONFIRM k o"), 2);
    assert_eq!(counts(&mut client, "k"), [8, 0, 2]);
}

/// What becomes of a stock `k`, and where it is afterwards: `a` or `b` and its key. `%a` and `%b` are two databases, the
/// first of which is selected.
type Way = (&'static [&'static str], &'static [(char, &'static str)]);

const WAYS: [Way; 24] = [
    (&["PING"], &[('a', "k")]),
    (&["RENAME k n"], &[('a', "n")]),
    (&["RENAMENX k n"], &[('a', "n")]),
    (&["RENAME k n", "RENAME n k"], &[('a', "k")]),
    (
        &[
            "STOCK.SET n 5",
            "STOCK.RESERVE n 1 ORDER x PX 900000",
            "RENAME k n",
        ],
        &[('a', "n")],
    ),
    (&["COPY k n"], &[('a', "k"), ('a', "n")]),
    (
        &["STOCK.SET n 5", "COPY k n REPLACE"],
        &[('a', "k"), ('a', "n")],
    ),
    (&["COPY k n", "DEL k"], &[('a', "n")]),
    (&["COPY k n DB %b"], &[('a', "k"), ('b', "n")]),
    (&["COPY k k DB %b", "UNLINK k"], &[('b', "k")]),
    (&["MOVE k %b"], &[('b', "k")]),
    (&["MOVE k %b", "SELECT %b", "MOVE k %a"], &[('a', "k")]),
    (&["MOVE k %b", "SELECT %b", "RENAME k n"], &[('b', "n")]),
    (&["SWAPDB %a %b"], &[('b', "k")]),
    (&["SWAPDB %a %b", "SWAPDB %b %a"], &[('a', "k")]),
    (&["RENAME k n", "SWAPDB %a %b"], &[('b', "n")]),
    (&["SWAPDB %a %b", "SELECT %b", "RENAME k n"], &[('b', "n")]),
    (
        &["COPY k n", "SWAPDB %a %b", "STOCK.SET k 3"],
        &[('b', "k"), ('b', "n")],
    ),
    (&["MOVE k %b", "SWAPDB %a %b"], &[('a', "k")]),
    (&["FCALL restore 2 k k"], &[('a', "k")]),
    (&["FCALL restore 2 k n", "RENAME n m"], &[('a', "m")]),
    (&["FCALL restore 2 k n", "SWAPDB %a %b"], &[('b', "n")]),
    (&["FCALL flush_and_restore 2 k n"], &[('a', "n")]),
    (
        &["FCALL flush_and_restore 2 k k", "MOVE k %b"],
        &[('b', "k")],
    ),
];

/// `DUMP`, `DEL` or `FLUSHDB`, and `RESTORE` in one step.
const LIBRARY: &str = "#!lua name=moves
    redis.register_function('restore', function(keys)
        local payload = redis.call('DUMP', keys[1])
        redis.call('DEL', keys[1])
        return redis.call('RESTORE', keys[2], 0, payload)
    end)
    redis.register_function('flush_and_restore', function(keys)
        local payload = redis.call('DUMP', keys[1])
        redis.call('FLUSHDB')
        return redis.call('RESTORE', keys[2], 0, payload)
    end)";

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    OneByOne,
    Pipelined,
    Transaction,
}

#[test]
fn reservations_end_by_themselves_wherever_their_stock_goes() {
    let server = Server::builder()
        .config("databases", "200")
        .clock(0)
        .start();
    let mut client = Raw::connect(&server);
    client.call(["FUNCTION", "LOAD", LIBRARY]);
    let mut places = Vec::new();
    let mut next = 0;
    for how in [How::OneByOne, How::Pipelined, How::Transaction] {
        for (lines, ends) in WAYS {
            let (a, b) = (next, next + 1);
            next += 2;
            let database = |name: char| if name == 'a' { a } else { b };
            client.must(&format!("SELECT {a}"));
            client.must("STOCK.SET k 10");
            client.must("STOCK.RESERVE k 1 ORDER o PX 600000");
            let lines = lines.iter().map(|line| {
                line.replace("%a", &a.to_string())
                    .replace("%b", &b.to_string())
            });
            let mut selected = format!("SELECT {a}");
            // Some versions of Valkey leave a client in the other database: see tests/server/databases.rs.
            let lines = lines.flat_map(|line| {
                if line.starts_with("SELECT ") {
                    selected.clone_from(&line);
                }
                let is_crossing = line.starts_with("MOVE ") || line.contains(" DB ");
                [Some(line), is_crossing.then(|| selected.clone())]
            });
            let lines: Vec<_> = lines.flatten().collect();
            let replies = match how {
                How::OneByOne => lines.iter().map(|line| client.run(line)).collect(),
                How::Pipelined => client.run_all(&lines),
                How::Transaction => client.transact(&lines),
            };
            for reply in &replies {
                assert!(!reply.is_err() && *reply != 0, "{lines:?}: {replies:?}");
            }
            for (name, key) in ends {
                let lines = lines.join(", ");
                places.push((database(*name), *key, format!("{how:?}: {lines}")));
            }
        }
    }
    let expected = places.len() as i64;
    for (db, key, what) in &places {
        client.must(&format!("SELECT {db}"));
        assert_eq!(state(&mut client, key, "o"), "reserved", "{what}");
    }
    server.shift_clock(600_000);
    for (db, key, what) in &places {
        client.must(&format!("SELECT {db}"));
        eventually(SOON, || state(&mut client, key, "o") != "reserved");
        assert_eq!(state(&mut client, key, "o"), "expired", "{what}");
        let [available, reserved, _] = counts(&mut client, key);
        assert_eq!((available, reserved), (10, 0), "{what}");
    }
    assert_eq!(server.info_int("sluice_stock_expired"), expected);
}

#[test]
fn orders_are_forgotten_wherever_their_stock_goes() {
    let server = Server::builder().config("databases", "60").start();
    let mut client = Raw::connect(&server);
    client.call(["FUNCTION", "LOAD", LIBRARY]);
    let mut places = Vec::new();
    for (number, (lines, ends)) in WAYS.into_iter().enumerate() {
        let (a, b) = (2 * number, 2 * number + 1);
        client.must(&format!("SELECT {a}"));
        client.must("STOCK.SET k 10 RETAIN 500");
        client.must("STOCK.DEDUCT k 1 ORDER o");
        for line in lines {
            let line = line.replace("%a", &a.to_string());
            client.must(&line.replace("%b", &b.to_string()));
        }
        for (name, key) in ends {
            places.push((if *name == 'a' { a } else { b }, *key, lines));
        }
    }
    for (db, key, lines) in &places {
        client.must(&format!("SELECT {db}"));
        eventually(SOON, || state(&mut client, key, "o") == "none");
        assert_eq!(counts(&mut client, key), [9, 0, 1], "{lines:?}");
    }
}

#[test]
fn a_stock_that_is_restored_right_after_everything_was_flushed_keeps_its_deadline() {
    for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "FLUSHDB ASYNC"] {
        let server = Server::builder().clock(0).start();
        let mut client = Raw::connect(&server);
        client.must("STOCK.SET k 10 EVENTS s");
        client.must("STOCK.SET gone 10");
        client.must("STOCK.RESERVE gone 1 ORDER o PX 600000");
        client.must("STOCK.RESERVE k 1 ORDER o PX 600000");
        let dump = client.must("DUMP k").bytes().to_vec();
        let flush = flush.split(' ').map(|word| word.as_bytes().to_vec());
        let restore = [b"RESTORE".as_slice(), b"k", b"0", &dump].map(<[u8]>::to_vec);
        let restore_other = [b"RESTORE".as_slice(), b"n", b"0", &dump].map(<[u8]>::to_vec);
        let replies = client.pipeline([flush.collect(), restore.to_vec(), restore_other.to_vec()]);
        assert!(replies.iter().all(|reply| *reply == "OK"), "{replies:?}");
        server.shift_clock(600_000);
        for key in ["k", "n"] {
            await_state(&mut client, key, "o", "expired");
            assert_eq!(counts(&mut client, key), [10, 0, 0]);
        }
        assert_eq!(server.info_int("sluice_stock_expired"), 2);
        assert_eq!(client.run("XLEN s"), 2);
    }
}

#[test]
fn reservations_end_after_a_move_and_a_reload() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET k 10");
    client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 900",
        "COPY k copy DB 3",
        "SELECT 0",
        "RENAME k n",
        "SWAPDB 0 5",
    ]);
    client.must("DEBUG RELOAD");
    client.must("SELECT 5");
    client.must("RENAME n m");
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    let mut client = Raw::connect(&server);
    for (db, key) in [(5, "m"), (3, "copy")] {
        client.must(&format!("SELECT {db}"));
        await_state(&mut client, key, "o", "expired");
        assert_eq!(counts(&mut client, key), [10, 0, 0]);
    }
}

#[test]
fn a_restored_stock_is_what_was_dumped() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET k 10 PERUSER 3 RETAIN 60000 EVENTS s MAXLEN 9");
    client.must("STOCK.RESERVE k 1 ORDER live PX 900000 USER u");
    client.must("STOCK.DEDUCT k 1 ORDER sold USER u");
    client.must("STOCK.CANCEL k marked");
    let (info, order) = (
        client.must("STOCK.INFO k"),
        client.must("STOCK.ORDER k live"),
    );
    let dump = client.must("DUMP k").bytes().to_vec();
    let mut restore = |key: &str, ttl: &str, options: &[&str]| {
        let mut command: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), &dump];
        command.extend(options.iter().map(|option| option.as_bytes()));
        client.call(command)
    };
    assert!(restore("k", "0", &[]).err().starts_with("BUSYKEY"));
    assert_eq!(restore("k", "0", &["REPLACE"]), "OK");
    assert_eq!(restore("mortal", "900000", &[]), "OK");
    assert_eq!(restore("until", "99999999999999", &["ABSTTL"]), "OK");
    assert_eq!(restore("idle", "0", &["IDLETIME", "5"]), "OK");
    assert_eq!(restore("past", "1000", &["ABSTTL"]), "OK");
    assert_eq!(client.run("EXISTS past"), 0);
    assert_eq!(client.run("PTTL k"), -1);
    assert!(client.run("PTTL mortal").int() > 0);
    assert_eq!(client.run("PEXPIRETIME until"), 99_999_999_999_999);
    for key in ["k", "mortal", "until", "idle"] {
        assert_eq!(client.call(["STOCK.INFO", key]), info, "{key}");
        assert_eq!(client.call(["STOCK.ORDER", key, "live"]), order, "{key}");
        assert_eq!(client.call(["STOCK.CANCEL", key, "sold"]), 1, "{key}");
        assert_eq!(client.call(["STOCK.CONFIRM", key, "live"]), 1, "{key}");
        assert_eq!(
            client.call(["STOCK.CONFIRM", key, "marked"]),
            CLOSED,
            "{key}"
        );
    }
}

/// The payload has been lying about for longer than its reservations were to last.
#[test]
fn reservations_of_an_old_payload_end_right_after_it_is_restored() {
    let (server, mut client) = server_and_client();
    client.must("STOCK.SET k 10 PERUSER 4 EVENTS s");
    client.must("STOCK.RESERVE k 1 ORDER live PX 900000 USER v");
    let replies = client.transact([
        "STOCK.RESERVE k 2 ORDER o PX 30 USER u",
        "DUMP k",
        "STOCK.ORDER k o",
    ]);
    await_state(&mut client, "k", "o", "expired");
    client.must("DEL k s");
    let restore = [b"RESTORE".as_slice(), b"n", b"0", replies[1].bytes()];
    assert_eq!(client.call(restore), "OK");
    assert_eq!(client.run("STOCK.CONFIRM n o"), CLOSED);
    let restore = [b"RESTORE".as_slice(), b"m", b"0", replies[1].bytes()];
    assert_eq!(client.call(restore), "OK");
    eventually(SOON, || server.info_int("sluice_stock_expired") == 3);
    for key in ["n", "m"] {
        assert_eq!(counts(&mut client, key), [9, 1, 0]);
        assert_eq!(number(&mut client, key, "users"), 1);
    }
    assert_eq!(
        told(&mut client, "s"),
        ["expire n o u 2 9 4", "expire m o u 2 9 4"]
    );
}

#[test]
fn a_migrated_stock_goes_on_at_the_other_server() {
    let (one, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    here.must("STOCK.SET k 10 PERUSER 4 EVENTS s");
    here.must("STOCK.RESERVE k 1 ORDER live PX 900000 USER u");
    here.must("STOCK.RESERVE k 2 ORDER o PX 600 USER u");
    let port = other.port();
    assert_eq!(
        here.must(&format!("MIGRATE 127.0.0.1 {port} k 0 60000")),
        "OK"
    );
    assert_eq!(here.run("EXISTS k"), 0);
    await_state(&mut there, "k", "o", "expired");
    assert_eq!(there.run("STOCK.CONFIRM k live"), 1);
    assert_eq!(counts(&mut there, "k"), [9, 0, 1]);
    let told = told(&mut there, "s");
    assert_eq!(told.last().unwrap(), "confirm k live u 1 9 5");
}

// FLUSHALL, eviction

#[test]
fn flushing_one_database_leaves_the_stocks_of_others() {
    for flush in ["FLUSHDB", "FLUSHDB ASYNC"] {
        let (server, mut client) = server_and_client();
        client.must("SELECT 1");
        client.must("STOCK.SET k 10 EVENTS s");
        client.must("STOCK.RESERVE k 1 ORDER o PX 150");
        client.must("SELECT 2");
        client.must("STOCK.SET k 10 EVENTS s");
        // In one transaction: the reservation must not end before the flush.
        client.transact(["STOCK.RESERVE k 1 ORDER o PX 150", flush]);
        // A new one of the same name has deadlines of its own.
        client.must("STOCK.SET k 20 EVENTS s");
        client.must("STOCK.RESERVE k 5 ORDER o PX 300");
        await_state(&mut client, "k", "o", "expired");
        assert_eq!(counts(&mut client, "k"), [20, 0, 0]);
        assert_stream_tells_all(&mut client, "s", &["k"]);
        client.must("SELECT 1");
        await_state(&mut client, "k", "o", "expired");
        assert_stream_tells_all(&mut client, "s", &["k"]);
        assert_eq!(server.info_int("sluice_stock_expired"), 2);
    }
}

#[test]
fn evicted_stocks_are_gone_with_their_reservations() {
    let (server, mut client) = server_and_client();
    let lines = (0..4000).flat_map(|number| {
        [
            format!("STOCK.SET k{number} 10"),
            format!("STOCK.RESERVE k{number} 1 ORDER o PX 600"),
        ]
    });
    client.run_all(lines);
    client.must("CONFIG SET maxmemory-policy allkeys-random");
    let limit = server.info_int("used_memory") - 300_000;
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    client.run_all((0..20).map(|number| format!("SET s{number} v")));
    assert!(server.info_int("evicted_keys") > 0);
    client.must("CONFIG SET maxmemory 0");
    let left = client.must("KEYS k*");
    assert!(left.array().len() < 4000);
    for key in left.array() {
        await_state(&mut client, key.text(), "o", "expired");
    }
    client.must("DEBUG RELOAD");
    assert!(!server.log().contains("panic"));
}

// Memory

/// How many commands are sent at once: enough to be fast, too few to need large buffers.
const BATCH: usize = 100;

#[track_caller]
fn send(client: &mut Raw, lines: &[String]) {
    for batch in lines.chunks(BATCH) {
        for reply in client.run_all(batch) {
            assert!(!reply.is_err() && reply != -1, "{reply:?}");
        }
    }
}

fn used_memory(client: &mut Raw) -> i64 {
    field_of(&client.must("INFO memory"), "used_memory")
}

/// A stock whose memory is measured: what the server gave out since there was only an empty one.
struct Measured {
    server: Server,
    client: Raw,
    /// What the server had given out before, and what `MEMORY USAGE` said then.
    before: (i64, i64),
}

impl Measured {
    fn new(set: &str) -> Self {
        let server = Server::start();
        let mut client = Raw::connect(&server);
        client.must(set);
        // All that the first commands make: buffers, tables, counters.
        let warm_up: Vec<_> = (0..200)
            .map(|number| format!("STOCK.CANCEL none o{number}"))
            .collect();
        send(&mut client, &warm_up);
        let before = (0, client.must("MEMORY USAGE k").int());
        let mut measured = Self {
            server,
            client,
            before,
        };
        measured.before.0 = used_memory(&mut measured.client);
        measured
    }

    /// Compares what was given with what `MEMORY USAGE` says of it.
    #[track_caller]
    fn is_told(&mut self, what: &str) {
        let given = used_memory(&mut self.client) - self.before.0;
        let said = self.client.must("MEMORY USAGE k").int() - self.before.1;
        let error = (said - given) as f64 / given as f64 * 100.0;
        println!("{what}: given {given}, said {said}, {error:+.1} %");
        assert!(
            error.abs() <= 10.0,
            "{what}: MEMORY USAGE grew by {said}, the server's memory by {given}, {error:+.1} %"
        );
    }
}

const ORDERS: usize = 50_000;

/// In an order that looks random: by a step that has no factor in common with the number of orders.
fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(|number| number * 7919 % ORDERS)
}

#[test]
fn memory_usage_of_many_small_stocks_is_truthful() {
    let measure = |line: &dyn Fn(usize) -> String| {
        let server = Server::start();
        let mut client = Raw::connect(&server);
        client.must("PING");
        let before = used_memory(&mut client);
        let lines: Vec<_> = (0..8000).map(line).collect();
        send(&mut client, &lines);
        let usages = (0..8000).map(|number| format!("MEMORY USAGE key-{number:08}"));
        let said: i64 = client.run_all(usages).iter().map(Value::int).sum();
        let given = settled_memory(&mut client) - before;
        (given as f64 / 8000.0, said as f64 / 8000.0)
    };
    // What the server leaves out for every key, such as the table of its keys, is what it leaves out for a string.
    let (given, said) = measure(&|number| format!("SET key-{number:08} {SEPARATE}"));
    let left_out = given - said;
    for (what, terms) in [
        ("without events", ""),
        (
            "with events",
            "PERUSER 5 EVENTS a-stream-for-all-of-them MAXLEN 1",
        ),
    ] {
        let (given, said) = measure(&|number| format!("STOCK.SET key-{number:08} 10 {terms}"));
        let truth = given - left_out;
        let error = (said - truth) / truth * 100.0;
        println!("{what}: given {truth:.0}, said {said:.0}, {error:+.1} %");
        assert!(
            error.abs() <= 10.0,
            "{what}: {said:.0} of {truth:.0}, {error:+.1} %"
        );
    }
}

#[test]
fn memory_usage_of_direct_orders_is_truthful() {
    let mut stock = Measured::new("STOCK.SET k 1000000");
    let deduct = |number: usize| format!("STOCK.DEDUCT k 1 ORDER order-{number}");
    let lines: Vec<_> = (0..ORDERS).map(deduct).collect();
    send(&mut stock.client, &lines);
    stock.is_told("direct orders");
    // A third of them is given back.
    let lines: Vec<_> = shuffled(ORDERS / 3)
        .map(|number| format!("STOCK.CANCEL k order-{number}"))
        .collect();
    send(&mut stock.client, &lines);
    stock.is_told("direct orders, a third of them cancelled");
    drop(stock.server);
}

#[test]
fn memory_usage_of_orders_and_users_is_truthful() {
    for size in [1, 36, 200] {
        let mut stock = Measured::new("STOCK.SET k 1000000 PERUSER 5");
        let filler = "i".repeat(size);
        let deduct = |number: usize| {
            format!("STOCK.DEDUCT k 1 ORDER {filler}{number} USER {filler}{number}")
        };
        let lines: Vec<_> = (0..ORDERS / 2).map(deduct).collect();
        send(&mut stock.client, &lines);
        stock.is_told(&format!("orders and users with ids of {size} and more"));
    }
}

/// A stock with as many live reservations of a thousand users.
fn stock_of_reservations(retain: u64) -> Measured {
    let set = format!("STOCK.SET k 1000000 PERUSER 100 RETAIN {retain}");
    let mut stock = Measured::new(&set);
    let reserve = |number: usize| {
        let user = number % 1000;
        format!("STOCK.RESERVE k 1 ORDER order-{number} PX 900000 USER user-{user}")
    };
    let lines: Vec<_> = (0..ORDERS).map(reserve).collect();
    send(&mut stock.client, &lines);
    stock
}

/// Confirms or cancels half of them.
fn settle_half(stock: &mut Measured) {
    let settle = |number: usize| match number % 3 {
        0 => format!("STOCK.CONFIRM k order-{number}"),
        _ => format!("STOCK.CANCEL k order-{number}"),
    };
    let lines: Vec<_> = shuffled(ORDERS / 2).map(settle).collect();
    send(&mut stock.client, &lines);
}

#[test]
fn memory_usage_of_reservations_is_truthful_before_and_after_they_are_settled() {
    let mut stock = stock_of_reservations(900_000);
    stock.is_told("live reservations");
    settle_half(&mut stock);
    stock.is_told("live reservations, and half of them settled");
}

#[test]
fn memory_usage_is_truthful_after_orders_are_forgotten() {
    let mut stock = stock_of_reservations(1);
    settle_half(&mut stock);
    let orders = |client: &mut Raw| number(client, "k", "orders") as usize;
    eventually(SOON, || orders(&mut stock.client) == ORDERS / 2);
    stock.is_told("live reservations, and half of them forgotten");
    let cancel = |number: usize| format!("STOCK.CANCEL k order-{number}");
    let lines: Vec<_> = (0..ORDERS).map(cancel).collect();
    send(&mut stock.client, &lines);
    eventually(SOON, || orders(&mut stock.client) == 0);
    let left = stock.client.must("MEMORY USAGE k").int();
    // What the 1000 users have bought is not forgotten.
    assert!(left < 120_000, "{left} bytes for nothing");
}

#[test]
fn memory_of_a_stock_comes_back() {
    let (server, mut client) = server_and_client();
    let mut round = || {
        client.must("STOCK.SET k 100000 PERUSER 9 RETAIN 1 EVENTS s MAXLEN 100");
        let lines: Vec<_> = (0..1000)
            .flat_map(|number| {
                [
                    format!("STOCK.RESERVE k 1 ORDER r{number} PX 1 USER u{number}"),
                    format!("STOCK.DEDUCT k 1 ORDER d{number} USER u{number}"),
                    format!("STOCK.CANCEL k m{number}"),
                ]
            })
            .collect();
        send(&mut client, &lines);
        eventually(SOON, || number(&mut client, "k", "orders") == 0);
        client.must("COPY k copy");
        client.must("UNLINK k copy s");
        eventually(SOON, || server.info_int("lazyfree_pending_objects") == 0);
        used_memory(&mut client)
    };
    round();
    let before = round();
    let after = (0..4).map(|_| round()).last().unwrap();
    // A leak of one id of each order would be 4 * 3000 blocks of 16 bytes.
    let grown = after - before;
    assert!(grown < 60_000, "{grown} bytes are not given back");
}

/// Large values are freed by the background thread: `UNLINK` does not wait for it.
#[test]
fn a_large_stock_is_freed_in_the_background() {
    let (server, mut client) = server_and_client();
    let mut freed = 0;
    for end in ["UNLINK k", "FLUSHALL ASYNC", "STOCK.SET k 5"] {
        client.must("STOCK.SET k 100000");
        let lines: Vec<_> = (0..3000)
            .map(|number| format!("STOCK.DEDUCT k 1 ORDER o{number}"))
            .collect();
        send(&mut client, &lines);
        client.must(end);
        eventually(SOON, || server.info_int("lazyfreed_objects") > freed);
        freed = server.info_int("lazyfreed_objects");
    }
}

/// Moving blocks while defragmenting must not damage them, also of a stock that takes several rounds.
#[test]
fn active_defrag_damages_nothing() {
    let (server, mut client) = server_and_client();
    if client.run("CONFIG SET activedefrag yes").is_err() {
        return; // a server that is built without it
    }
    for line in [
        "CONFIG SET activedefrag no",
        "CONFIG SET active-defrag-ignore-bytes 1",
        "CONFIG SET active-defrag-threshold-lower 1",
        "CONFIG SET active-defrag-cycle-min 40",
        "CONFIG SET active-defrag-cycle-max 60",
        "STOCK.SET large 1000000 PERUSER 9 RETAIN 86400000 EVENTS s MAXLEN 100",
    ] {
        client.must(line);
    }
    let order = |number: usize| {
        let id = "i".repeat(number % 120);
        [
            format!("STOCK.SET small{number} 10 EVENTS {id}s"),
            format!("STOCK.RESERVE large 1 ORDER {id}{number} PX 900000 USER u{number}"),
            format!("STOCK.RESERVE small{number} 1 ORDER {id} PX 900000"),
        ]
    };
    let lines: Vec<_> = (1..20_000).flat_map(order).collect();
    for batch in lines.chunks(BATCH) {
        client.run_all(batch);
    }
    let ends = |number: usize| {
        let id = "i".repeat(number % 120);
        match number % 7 {
            0 => format!("STOCK.CONFIRM large {id}{number}"),
            _ => format!("DEL small{number}"),
        }
    };
    let lines: Vec<_> = (1..20_000).map(ends).collect();
    for batch in lines.chunks(BATCH) {
        client.run_all(batch);
    }
    client.must("CONFIG SET activedefrag yes");
    // While it goes on, orders come and go.
    let mut number = 0;
    eventually(SOON, || {
        number += 1;
        client.must(&format!(
            "STOCK.RESERVE large 1 ORDER new{number} PX 900000 USER n"
        ));
        client.must(&format!("STOCK.CANCEL large new{number}"));
        server.info_int("active_defrag_hits") > 3000
    });
    let numbers = counts(&mut client, "large");
    let digest = server.digest();
    server.command(["DEBUG", "RELOAD"]);
    assert_eq!(server.digest(), digest);
    assert_eq!(counts(&mut client, "large"), numbers);
    for number in [7usize, 13, 7000, 19_999] {
        let id = "i".repeat(number % 120);
        let confirm = format!("STOCK.CONFIRM large {id}{number}");
        assert_eq!(client.must(&confirm), 1, "{number}");
    }
    assert!(!server.log().contains("panic"));
}

// Events of the server

#[test]
fn the_servers_own_events_are_those_of_any_key() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEA");
    client.must("STOCK.SET k 10 EVENTS s");
    assert_eq!(events.take(), ["xadd s", "stock.set k"]);
    client.must("STOCK.DEDUCT k 1 ORDER o");
    assert_eq!(events.take(), ["xadd s", "stock.deduct k"]);
    client.must("STOCK.CANCEL k mark");
    assert_eq!(events.take(), ["stock.cancel k"]);
    client.must("PEXPIRE k 900000");
    client.must("RENAME k n");
    client.must("DEL n");
    assert_eq!(
        events.take(),
        ["expire k", "rename_from k", "rename_to n", "del n"]
    );
}
