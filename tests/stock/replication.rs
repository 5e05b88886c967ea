//! A replica has the stocks and event streams of its master, decides nothing, and takes over with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::stock::{
    CLOSED, assert_stream_tells_all, await_state, counts, entries, number, state, told,
};
use crate::support::{
    EndOnDrop, Fsync, Lines, Random, Raw, SOON, Server, Value, assert_identical, await_failover,
    await_role, eventually, follow, ints, now_ms, pair, quiet, random_load, wait_for_replica_sync,
    with_growing_lease,
};

// The same dataset

#[test]
fn every_change_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for line in [
        "STOCK.SET plain 10",
        "STOCK.ADD plain 5",
        "STOCK.DEDUCT plain 2",
        "STOCK.DEDUCT plain 1 USER u",
        "STOCK.DEDUCT plain 1 ORDER o",
        "STOCK.SET k 50 PERUSER 9 RETAIN 3600000 EVENTS s MAXLEN 10",
        "STOCK.ADD k 5",
        "STOCK.ADD k -1 ORDER a",
        "STOCK.DEDUCT k 2 USER u",
        "STOCK.DEDUCT k 1 ORDER d USER u",
        "STOCK.RESERVE k 3 ORDER r PX 900000 USER u",
        "STOCK.RESERVE k 4 ORDER c PX 900000 USER v",
        "STOCK.CONFIRM k r",
        "STOCK.CANCEL k c",
        "STOCK.CANCEL k d",
        "STOCK.CANCEL k r",
        "STOCK.CANCEL k marked",
        "STOCK.SET k 70 PERUSER 9 EVENTS s",
        "STOCK.SET other 30 EVENTS s",
        "STOCK.MDEDUCT 3 k 1 other 2 plain 3 ORDER m USER u",
        "STOCK.MRESERVE 2 k 1 other 2 ORDER n PX 900000 USER v",
        "STOCK.MCONFIRM 2 other k n",
        "STOCK.MCANCEL 2 k other n",
        "STOCK.MCANCEL 2 k other never",
        "SET counter 7 PX 900000",
        "STOCK.IMPORT counter PERUSER 3 EVENTS s",
        "HSET hash total 9 ordered 4",
        "STOCK.IMPORT hash",
        "PEXPIRE k 900000",
        "PERSIST k",
        "PEXPIRE plain 900000",
        "COPY k copy",
        "COPY k copy DB 1",
        "RENAME other renamed",
        "MOVE copy 2",
        "SWAPDB 1 2",
        "STOCK.DEDUCT renamed 1",
        "DEL s",
        "STOCK.DEDUCT k 1 USER w",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g worker COUNT 1 STREAMS s >",
        "STOCK.DEDUCT k 1 USER w",
        "UNLINK plain",
    ] {
        client.must(line);
        assert_identical(&master, &replica);
    }
    let dump = client.must("DUMP k");
    client.call([b"RESTORE".as_slice(), b"restored", b"900000", dump.bytes()]);
    assert_identical(&master, &replica);
    client.transact([
        "STOCK.DEDUCT k 1 ORDER t USER t",
        "STOCK.SET k 5 EVENTS t",
        "STOCK.DEDUCT k 1",
        "STOCK.DEDUCT k 9",
        "STOCK.RESERVE k 1 ORDER t PX 900000",
    ]);
    let script = "redis.call('STOCK.CONFIRM', KEYS[1], 't')
        return redis.call('STOCK.MDEDUCT', 2, KEYS[1], 1, KEYS[2], 1)";
    let reply = client.call(["EVAL", script, "2", "k", "renamed"]);
    assert_eq!(ints(&reply).len(), 2);
    assert_identical(&master, &replica);
    let (mut one, mut other) = (Raw::connect(&master), Raw::connect(&replica));
    for key in ["k", "renamed", "counter", "hash", "restored"] {
        for line in [format!("STOCK.INFO {key}"), format!("PEXPIRETIME {key}")] {
            assert_eq!(one.must(&line), other.must(&line), "{line}");
        }
    }
    client.must("FLUSHALL");
    assert_identical(&master, &replica);
    assert!(!replica.log().contains("lacks an entry"));
}

#[test]
fn ends_and_forgotten_orders_arrive_as_they_are() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 1000 PERUSER 9 RETAIN 50 EVENTS s MAXLEN 200");
    client.must("STOCK.SET plain 1000 RETAIN 50");
    let orders = (0..300).flat_map(|number| {
        [
            format!(
                "STOCK.RESERVE k 1 ORDER r{number} PX {} USER u{number}",
                1 + number % 90
            ),
            format!("STOCK.DEDUCT k 1 ORDER d{number} USER u{number}"),
            format!(
                "STOCK.RESERVE plain 1 ORDER r{number} PX {}",
                1 + number % 90
            ),
            format!("STOCK.CANCEL plain m{number}"),
        ]
    });
    client.run_all(orders);
    for key in ["k", "plain"] {
        eventually(SOON, || number(&mut client, key, "orders") == 0);
    }
    assert_identical(&master, &replica);
    let mut reader = Raw::connect(&replica);
    for client in [&mut client, &mut reader] {
        assert_eq!(counts(client, "k"), [700, 0, 300]);
        assert_eq!(counts(client, "plain"), [1000, 0, 0]);
        assert_eq!(number(client, "k", "users"), 300);
    }
    assert!(!replica.log().contains("lacks an entry"));
}

impl Random {
    /// Any command of the family, or one of the server's on its keys and streams.
    fn command(&mut self) -> String {
        let key = format!("k{}", self.below(5));
        let other = format!("k{}", self.below(5));
        let (qty, user) = (1 + self.below(4), self.below(6));
        let order = self.below(80);
        let px = if self.below(3) == 0 {
            900_000
        } else {
            1 + self.below(120)
        };
        match self.below(40) {
            0..=3 => format!("STOCK.DEDUCT {key} {qty} USER u{user}"),
            4..=7 => format!("STOCK.DEDUCT {key} {qty} ORDER d{order} USER u{user}"),
            8..=13 => format!("STOCK.RESERVE {key} {qty} ORDER r{order} PX {px} USER u{user}"),
            14..=16 => format!("STOCK.CONFIRM {key} r{order}"),
            17 => format!("STOCK.CANCEL {key} r{order}"),
            18 => format!("STOCK.CANCEL {key} d{order}"),
            19..=21 => format!("STOCK.ADD {key} {}", 9 - self.below(12) as i64),
            22 => format!("STOCK.ADD {key} 3 ORDER a{order}"),
            23 if key != other => {
                format!("STOCK.MDEDUCT 2 {key} 1 {other} 2 ORDER m{order} USER u{user}")
            }
            24..=26 if key != other => {
                format!("STOCK.MRESERVE 2 {key} 1 {other} 2 ORDER n{order} PX {px} USER u{user}")
            }
            27 if key != other => format!("STOCK.MCONFIRM 2 {key} {other} n{order}"),
            28 if key != other => format!("STOCK.MCANCEL 2 {key} {other} n{order}"),
            29 => format!("RENAME {key} {other}"),
            30 => format!("COPY {key} {other} REPLACE"),
            31 => format!("MOVE {key} 1"),
            32 => format!("XTRIM s{} MAXLEN 5", self.below(2)),
            33 if self.below(8) == 0 => format!("DEL s{}", self.below(2)),
            34 if self.below(8) == 0 => "SWAPDB 0 1".into(),
            35 if self.below(8) == 0 => format!("PEXPIRE {key} 50"),
            36 if self.below(8) == 0 => format!("PEXPIRE s{} 30", self.below(2)),
            37 if self.below(8) == 0 => format!("SET s{} string PX 15", self.below(2)),
            38 => format!(
                "STOCK.SET {key} {} PERUSER 9 NX RETAIN 90 EVENTS s0 MAXLEN 30",
                20 + self.below(90)
            ),
            _ => match self.below(6) {
                0 => format!("STOCK.SET {key} {} RETAIN 60", 20 + self.below(90)),
                1 => format!("STOCK.SET {key} {} EVENTS s1 MAXLEN 7", 20 + self.below(90)),
                _ => format!(
                    "STOCK.SET {key} {} PERUSER 9 RETAIN 90 EVENTS s0 MAXLEN 30",
                    20 + self.below(90)
                ),
            },
        }
    }
}

#[test]
fn replicas_are_identical_after_a_random_load() {
    const MOST_ROUNDS: u64 = 30;
    const COUNTERS: [&str; 4] = ["deducted", "reserved", "confirmed", "expired"];
    let master = quiet().start();
    let replica = quiet().start();
    let second = quiet()
        .aof(Fsync::No)
        .config("aof-use-rdb-preamble", "no")
        .start();
    // Blocks of few entries are trimmed often.
    for server in [&master, &replica, &second] {
        server.command(["CONFIG", "SET", "stream-node-max-entries", "3"]);
    }
    follow(&master, &replica);
    follow(&replica, &second);
    // A busy machine takes more rounds until there was everything.
    for round in 0..MOST_ROUNDS {
        random_load(
            &master,
            6,
            77 + round,
            Duration::from_millis(600),
            Random::command,
        );
        assert_identical(&master, &replica);
        assert_identical(&master, &second);
        let count = |counter: &&str| master.info_int(&format!("sluice_stock_{counter}"));
        if round >= 2 && COUNTERS.iter().all(|counter| count(counter) > 0) {
            break;
        }
    }
    for counter in COUNTERS {
        let count = master.info_int(&format!("sluice_stock_{counter}"));
        assert!(count > 0, "none {counter}");
    }
    // What the last in the chain has written is what all have. It restarts as a master: what ends by itself must be over.
    eventually(SOON, || {
        let digest = master.digest();
        thread::sleep(Duration::from_millis(250));
        master.digest() == digest
    });
    assert_identical(&master, &second);
    let digest = master.digest();
    second.crash();
    assert_eq!(second.digest(), digest);
    for server in [&master, &replica, &second] {
        let log = server.log();
        for word in ["internal error", "panic", "lacks an entry"] {
            assert!(!log.contains(word), "{word} {log}");
        }
    }
}

#[test]
fn refusals_reads_and_errors_propagate_nothing() {
    let master = quiet().aof(Fsync::No).start();
    let replica = quiet().start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for line in [
        "STOCK.SET k 10 PERUSER 5 EVENTS s",
        "STOCK.DEDUCT k 1 ORDER sold USER u",
        "STOCK.RESERVE k 1 ORDER live PX 900000 USER u",
        "STOCK.CANCEL k marked",
        "STOCK.SET empty 0",
        "STOCK.SET plain 5",
        "SET string v",
    ] {
        client.must(line);
    }
    master.await_rewrite();
    wait_for_replica_sync(&master, &replica);
    let offset = master.info_int("master_repl_offset");
    for line in [
        "STOCK.SET k 5 NX",
        "STOCK.SET none 5 XX",
        "STOCK.SET plain 5 EVENTS string",
        "STOCK.ADD k -100",
        "STOCK.DEDUCT empty 1",
        "STOCK.DEDUCT k 100 USER v",
        "STOCK.DEDUCT k 5 USER u",
        "STOCK.DEDUCT k 2 ORDER sold USER u",
        "STOCK.DEDUCT k 1",
        "STOCK.RESERVE k 1 ORDER marked PX 900000 USER u",
        "STOCK.CONFIRM k unknown",
        "STOCK.MDEDUCT 2 plain 1 empty 1",
        "STOCK.MDEDUCT 2 plain 1 string 1",
        "STOCK.MRESERVE 2 plain 1 empty 1 ORDER o PX 5",
        "STOCK.MCONFIRM 2 plain k live",
        "STOCK.GET k",
        "STOCK.MGET k plain",
        "STOCK.ORDER k sold",
        "STOCK.INFO k",
        "STOCK.IMPORT string",
        "STOCK.APPLY k nonsense",
    ] {
        client.run(line);
        client.run("PING");
        assert_eq!(master.info_int("master_repl_offset"), offset, "{line}");
    }
}

/// Requests in the order in which they are sent, each with its reply.
const REPEATABLE: [(&str, &[i64]); 11] = [
    ("STOCK.DEDUCT a 1 ORDER sold USER u", &[9]),
    ("STOCK.ADD a 5 ORDER added", &[14]),
    ("STOCK.RESERVE a 1 ORDER live PX 900000", &[13]),
    ("STOCK.CONFIRM a live", &[1]),
    ("STOCK.CANCEL a live", &[1]),
    ("STOCK.CANCEL a unborn", &[-4]),
    ("STOCK.MDEDUCT 2 a 1 b 1 ORDER many", &[13, 9]),
    ("STOCK.MRESERVE 2 b 1 a 1 ORDER held PX 900000", &[8, 12]),
    ("STOCK.MCONFIRM 2 a b held", &[1, 1]),
    ("STOCK.MCANCEL 2 a b held", &[1, 1]),
    ("STOCK.MCANCEL 2 a b never", &[-4, -4]),
];

/// Who repeats a request on a new connection waits for the replicas as whoever came first does.
#[test]
fn a_repeated_request_can_be_waited_for() {
    let master = quiet().aof(Fsync::No).start();
    let replica = quiet().aof(Fsync::No).start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for key in ["a", "b"] {
        client.must(&format!("STOCK.SET {key} 10 EVENTS s"));
    }
    assert_identical(&master, &replica);
    let numbers = |reply: &Value| match reply {
        Value::Int(number) => vec![*number],
        several => ints(several),
    };
    for (line, expected) in REPEATABLE {
        replica.stop_signal();
        assert_eq!(numbers(&client.run(line)), expected, "{line}");
        let mut again = Raw::connect(&master);
        assert_eq!(numbers(&again.run(line)), expected, "{line}");
        assert_eq!(again.run("WAIT 1 100"), 0, "{line}");
        let mut in_transaction = Raw::connect(&master);
        let replies = in_transaction.transact([line]);
        assert_eq!(numbers(&replies[0]), expected, "{line}");
        assert_eq!(in_transaction.run("WAIT 1 100"), 0, "{line} in MULTI");
        replica.cont_signal();
        assert_eq!(again.run("WAIT 1 20000"), 1, "{line}");
    }
    assert_identical(&master, &replica);
    assert_stream_tells_all(&mut client, "s", &["a", "b"]);
    for server in [&master, &replica] {
        let digest = server.digest();
        server.await_rewrite();
        server.crash();
        assert_eq!(server.digest(), digest);
        assert!(!server.log().contains("invalid replicated effect"));
    }
}

/// What a repeated request sends changes nothing anywhere.
#[test]
fn a_repeated_request_sends_an_effect_that_nobody_notices() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for key in ["a", "b"] {
        client.must(&format!("STOCK.SET {key} 10"));
    }
    for (line, _) in REPEATABLE {
        client.run(line);
        assert_identical(&master, &replica);
        let digest = master.digest();
        let mut watching = Vec::new();
        for server in [&master, &replica] {
            server.command(["CONFIG", "SET", "notify-keyspace-events", "KEA"]);
            let mut watcher = Raw::connect(server);
            watcher.must("WATCH a b");
            let mut listener = Raw::connect(server);
            listener.must("PSUBSCRIBE __key*__:*");
            watching.push((watcher, listener));
        }
        let offset = master.info_int("master_repl_offset");
        client.run(line);
        assert!(master.info_int("master_repl_offset") > offset, "{line}");
        wait_for_replica_sync(&master, &replica);
        for (watcher, listener) in &mut watching {
            watcher.must("MULTI");
            watcher.must("PING");
            assert_eq!(watcher.run("EXEC").array().len(), 1, "{line}");
            assert_eq!(listener.run("PING").array()[0], "pong", "{line}");
        }
        assert_eq!(master.digest(), digest, "{line}");
        assert_identical(&master, &replica);
    }
    // A key that is not there, or of another type, is none of its business.
    client.must("SET string v");
    for key in ["none", "string"] {
        assert_eq!(client.call(["STOCK.APPLY", key, ""]), "OK");
    }
    assert_eq!(client.run("EXISTS none"), 0);
    assert_identical(&master, &replica);
}

/// The master ends them only with the command, in an order of stocks that is not that of the entries.
#[test]
fn reservations_that_a_command_on_several_stocks_ends_arrive_with_all_entries() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for key in ["a", "b", "c"] {
        client.call(["STOCK.SET", key, "10", "EVENTS", "s"]);
    }
    client.transact([
        "STOCK.MRESERVE 3 a 1 b 2 c 3 ORDER o PX 5",
        "DEBUG SLEEP 0.02",
        "STOCK.MDEDUCT 3 c 1 b 1 a 1",
    ]);
    assert_stream_tells_all(&mut client, "s", &["a", "b", "c"]);
    assert_identical(&master, &replica);
    assert!(
        !replica.log().contains("lacks an entry"),
        "{}",
        replica.log()
    );
}

#[test]
fn what_a_refused_command_on_several_stocks_took_back_is_not_on_the_replica_either() {
    let last_id = "18446744073709551615-18446744073709551615";
    for obstacle in [
        "SET t string".to_owned(),
        format!("XADD t {last_id} op nonsense"),
    ] {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        for server in [&master, &replica] {
            server.command(["CONFIG", "SET", "stream-node-max-entries", "1"]);
        }
        for line in [
            "STOCK.SET a 10 EVENTS s MAXLEN 3",
            "STOCK.SET b 10 EVENTS s MAXLEN 3",
            "STOCK.SET c 10 EVENTS t",
            "STOCK.SET fresh 10 EVENTS new",
            "STOCK.DEDUCT a 1",
            "DEL new t",
            &obstacle,
        ] {
            client.must(line);
        }
        for line in [
            "STOCK.MDEDUCT 2 a 1 c 1",
            "STOCK.MDEDUCT 3 a 1 b 1 c 1",
            "STOCK.MDEDUCT 2 fresh 1 c 1",
        ] {
            assert!(client.run(line).is_err(), "{line}");
            assert_identical(&master, &replica);
        }
        client.must("STOCK.MDEDUCT 3 b 1 fresh 1 a 1");
        assert_identical(&master, &replica);
    }
}

#[test]
fn a_stream_that_expires_starts_again_on_the_replica_too() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 10 EVENTS s");
    client.transact(["STOCK.RESERVE k 1 ORDER o PX 150", "PEXPIRE s 50"]);
    await_state(&mut client, "k", "o", "expired");
    assert_identical(&master, &replica);
    client.must("PEXPIREAT s 1");
    client.must("STOCK.DEDUCT k 1");
    assert_eq!(told(&mut client, "s"), ["deduct k - - 1 9 4"]);
    assert_identical(&master, &replica);
}

// A replica decides nothing

#[test]
fn a_replica_reads_and_refuses_to_write() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 10 PERUSER 5 EVENTS s");
    client.must("STOCK.RESERVE k 2 ORDER o PX 900000 USER u");
    wait_for_replica_sync(&master, &replica);
    let mut reader = Raw::connect(&replica);
    assert_eq!(reader.must("STOCK.GET k"), 8);
    assert_eq!(reader.must("STOCK.MGET k none").array()[0], 8);
    assert_eq!(counts(&mut reader, "k"), [8, 2, 0]);
    assert_eq!(
        reader.must("STOCK.ORDER k o"),
        client.must("STOCK.ORDER k o")
    );
    for line in [
        "STOCK.SET k 5",
        "STOCK.ADD k 1",
        "STOCK.DEDUCT k 1 USER u",
        "STOCK.RESERVE k 1 ORDER p PX 5 USER u",
        "STOCK.CONFIRM k o",
        "STOCK.CANCEL k o",
        "STOCK.MDEDUCT 1 k 1 USER u",
        "STOCK.MRESERVE 1 k 1 ORDER p PX 5 USER u",
        "STOCK.MCONFIRM 1 k o",
        "STOCK.MCANCEL 1 k o",
        "STOCK.IMPORT k",
        "STOCK.APPLY k x",
    ] {
        let reply = reader.run(line);
        assert!(reply.err().starts_with("READONLY "), "{line}: {reply:?}");
    }
}

#[test]
fn a_replica_ends_and_forgets_nothing_of_its_own_accord() {
    let (master, replica, mut client, mut reader, end) = with_growing_lease(900, |px| {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        client.must(&format!("STOCK.SET k 10 RETAIN {px} EVENTS s"));
        let replies = client.transact([
            format!("STOCK.RESERVE k 2 ORDER o PX {px}"),
            "STOCK.DEDUCT k 1 ORDER d".into(),
            "STOCK.ORDER k o".into(),
        ]);
        let end = replies[2].get("expires_ms")?.int();
        wait_for_replica_sync(&master, &replica);
        master.stop_signal();
        let mut reader = Raw::connect(&replica);
        let is_in_time = now_ms(&mut reader) < end;
        is_in_time.then_some((master, replica, client, reader, end))
    });
    let digest = replica.digest();
    eventually(SOON, || now_ms(&mut reader) > end + 300);
    assert_eq!(replica.digest(), digest);
    assert_eq!(replica.info_int("sluice_stock_expired"), 0);
    master.cont_signal();
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    assert_identical(&master, &replica);
    assert_eq!(counts(&mut reader, "k"), [9, 0, 1]);
    assert_eq!(replica.info_int("sluice_stock_expired"), 0);
}

#[test]
fn a_replica_that_was_paused_catches_up() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 10 RETAIN 60 EVENTS s MAXLEN 5");
    wait_for_replica_sync(&master, &replica);
    replica.stop_signal();
    client.must("STOCK.RESERVE k 1 ORDER a PX 20");
    client.must("STOCK.RESERVE k 1 ORDER b PX 900000");
    client.must("STOCK.DEDUCT k 3 ORDER c");
    eventually(SOON, || number(&mut client, "k", "orders") == 1);
    let created = client.must("STOCK.ORDER k b");
    replica.cont_signal();
    assert_identical(&master, &replica);
    assert_eq!(Raw::connect(&replica).must("STOCK.ORDER k b"), created);
}

#[test]
fn a_replica_with_its_own_file_starts_with_what_it_had() {
    for preamble in ["yes", "no"] {
        let master = quiet().start();
        let replica = quiet()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", preamble)
            .start();
        let mut client = Raw::connect(&master);
        client.must("STOCK.SET k 50 PERUSER 9 EVENTS s");
        client.must("STOCK.DEDUCT k 1 ORDER before USER u");
        follow(&master, &replica);
        replica.await_rewrite();
        for line in [
            "STOCK.RESERVE k 2 ORDER live PX 900000 USER u",
            "STOCK.RESERVE k 2 ORDER confirmed PX 900000 USER u",
            "STOCK.CONFIRM k confirmed",
            "STOCK.CANCEL k before",
            "STOCK.SET plain 9",
            "STOCK.DEDUCT plain 2",
            "STOCK.MDEDUCT 2 plain 1 k 1 ORDER m USER v",
            "STOCK.RESERVE k 1 ORDER short PX 1 USER w",
        ] {
            client.must(line);
        }
        await_state(&mut client, "k", "short", "expired");
        assert_identical(&master, &replica);
        let digest = master.digest();
        replica.crash();
        assert_eq!(replica.digest(), digest);
        let mut client = Raw::connect(&replica);
        assert_eq!(client.must("STOCK.CONFIRM k live"), 2);
        assert_stream_tells_all(&mut client, "s", &["k"]);
    }
}

#[test]
fn a_writable_replica_lives() {
    let (master, replica) = pair();
    replica.command(["CONFIG", "SET", "replica-read-only", "no"]);
    let mut client = Raw::connect(&replica);
    for line in [
        "STOCK.SET own 10 EVENTS s RETAIN 1",
        "STOCK.DEDUCT own 1",
        "STOCK.RESERVE own 1 ORDER o PX 1",
        "STOCK.DEDUCT own 1 ORDER p",
        "STOCK.CANCEL own p",
    ] {
        client.must(line);
    }
    Raw::connect(&master).must("STOCK.SET k 10");
    wait_for_replica_sync(&master, &replica);
    assert_eq!(client.must("STOCK.GET k"), 10);
    assert_eq!(number(&mut client, "own", "total"), 10);
}

// Promotion

/// Makes a replica whose master is gone a master, and waits until the reservations of these stocks have ended there, not
/// before their deadline.
fn promote_and_await_ends(server: &Server, places: &[(i32, &str)], end: i64) {
    await_silence(server);
    let mut client = Raw::connect(server);
    // On a slow machine, the old master has ended some of them, and this one some of its own before it was a replica.
    let before = server.info_int("sluice_stock_expired");
    let mut live = 0;
    for (db, key) in places {
        client.call(["SELECT", &db.to_string()]);
        live += i64::from(state(&mut client, key, "o") == "reserved");
    }
    server.promote();
    await_ends(server, places, end);
    assert_eq!(server.info_int("sluice_stock_expired") - before, live);
}

/// Waits until a replica has executed all that its master sent before it went.
fn await_silence(replica: &Server) {
    eventually(SOON, || {
        replica.info("master_link_status").as_deref() == Some("down")
    });
}

/// Waits until the reservations of these stocks have ended, not before their deadline.
fn await_ends(server: &Server, places: &[(i32, &str)], end: i64) {
    let mut client = Raw::connect(server);
    for (db, key) in places {
        client.call(["SELECT", &db.to_string()]);
        await_state(&mut client, key, "o", "expired");
        assert!(now_ms(&mut client) >= end, "{key} ends too early");
        let [available, reserved, _] = counts(&mut client, key);
        assert_eq!((available, reserved), (10, 0), "{key} in {db}");
        assert_eq!(client.call(["STOCK.CONFIRM", key, "o"]), CLOSED);
    }
}

#[test]
fn a_promoted_replica_honours_and_ends_what_it_knows() {
    let (master, replica) = (quiet().start(), quiet().clock(0).start());
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for line in [
        "STOCK.SET k 10 PERUSER 4 RETAIN 1200000 EVENTS s",
        "STOCK.RESERVE k 1 ORDER short PX 600000 USER u",
        "STOCK.RESERVE k 2 ORDER live PX 3600000 USER u",
        "STOCK.DEDUCT k 1 ORDER sold USER v",
    ] {
        client.must(line);
    }
    wait_for_replica_sync(&master, &replica);
    master.kill9();
    replica.promote();

    let mut client = Raw::connect(&replica);
    assert_eq!(
        client.must("STOCK.RESERVE k 2 ORDER live PX 3600000 USER u"),
        7
    );
    assert_eq!(state(&mut client, "k", "short"), "reserved");
    replica.shift_clock(600_000);
    await_state(&mut client, "k", "short", "expired");
    assert_eq!(client.must("STOCK.CONFIRM k live"), 2);
    // And what was final long enough is forgotten.
    replica.shift_clock(600_000);
    eventually(SOON, || state(&mut client, "k", "sold") == "none");
    assert_eq!(counts(&mut client, "k"), [7, 0, 3]);
    assert_stream_tells_all(&mut client, "s", &["k"]);
    assert_eq!(replica.info_int("sluice_stock_expired"), 1);
}

#[test]
fn reservations_end_on_a_promoted_replica_wherever_their_stock_has_moved_before() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for key in ["stays", "old", "source", "moved", "dumped", "swapped"] {
        let set = format!("STOCK.SET {key} 10 EVENTS s");
        client.must(&set);
    }
    let reserve = |key: &str| format!("STOCK.RESERVE {key} 1 ORDER o PX 900");
    let mut lines: Vec<_> = ["stays", "old", "source", "moved", "dumped", "swapped"]
        .iter()
        .map(|key| reserve(key))
        .collect();
    lines.push("STOCK.ORDER stays o".into());
    let replies = client.transact(lines);
    let end = replies[6].field("expires_ms").int();
    let dump = client.must("DUMP dumped");
    for line in [
        "RENAME old new",
        "COPY source copy",
        "COPY source copy DB 1",
        "MOVE moved 2",
        "DEL dumped",
        "MOVE swapped 4",
        "SWAPDB 4 5",
    ] {
        client.must(line);
    }
    client.call([b"RESTORE".as_slice(), b"restored", b"0", dump.bytes()]);
    assert_identical(&master, &replica);
    master.kill9();
    let places = [
        (0, "stays"),
        (0, "new"),
        (0, "source"),
        (0, "copy"),
        (1, "copy"),
        (2, "moved"),
        (0, "restored"),
        (5, "swapped"),
    ];
    promote_and_await_ends(&replica, &places, end);
}

/// The replica gets everything at once, as one file, and what it had before is gone.
#[track_caller]
fn reservations_end_after_a_full_transfer(load: &str) {
    let master = quiet().config("repl-diskless-sync", "yes").start();
    let replica = quiet().config("repl-diskless-load", load).start();
    let mut client = Raw::connect(&replica);
    client.must("STOCK.SET stale 10");
    client.must("STOCK.RESERVE stale 1 ORDER o PX 1200");
    client.must("STOCK.SET k 10");
    client.must("STOCK.RESERVE k 3 ORDER o PX 900000");
    let mut client = Raw::connect(&master);
    client.must("SELECT 3");
    client.must("STOCK.SET k 10 EVENTS s");
    client.must("STOCK.SET other 10");
    let replies = client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 1600",
        "STOCK.RESERVE other 1 ORDER o PX 1600",
        "STOCK.ORDER k o",
    ]);
    let end = replies[2].field("expires_ms").int();
    follow(&master, &replica);
    assert_identical(&master, &replica);
    master.kill9();
    promote_and_await_ends(&replica, &[(3, "k"), (3, "other")], end);
    let mut client = Raw::connect(&replica);
    assert_eq!(client.must("DBSIZE"), 0);
    assert!(!replica.log().contains("panic"));
}

#[test]
fn reservations_end_on_a_replica_that_was_promoted_after_a_transfer_by_file() {
    reservations_end_after_a_full_transfer("disabled");
}

#[test]
fn reservations_end_on_a_replica_that_was_promoted_after_a_transfer_without_a_file() {
    reservations_end_after_a_full_transfer("swapdb");
}

#[test]
fn a_demoted_master_ends_nothing_any_more() {
    let (old, new) = pair();
    let mut client = Raw::connect(&old);
    client.must("STOCK.SET k 10 EVENTS s");
    client.must("STOCK.RESERVE k 1 ORDER o PX 900");
    wait_for_replica_sync(&old, &new);
    new.promote();
    old.replica_of(&new);
    await_role(&old, "slave");
    let before = old.info_int("sluice_stock_expired");
    wait_for_replica_sync(&new, &old);
    await_ends(&new, &[(0, "k")], 0);
    assert_identical(&new, &old);
    assert_eq!(old.info_int("sluice_stock_expired"), before);
    assert_stream_tells_all(&mut Raw::connect(&old), "s", &["k"]);
    // And back again.
    let mut client = Raw::connect(&new);
    client.must("STOCK.RESERVE k 1 ORDER p PX 500");
    wait_for_replica_sync(&new, &old);
    old.promote();
    await_state(&mut Raw::connect(&old), "k", "p", "expired");
}

#[test]
fn a_replica_of_a_replica_has_everything_and_takes_over() {
    let (master, replica) = pair();
    let second = quiet().start();
    follow(&replica, &second);
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 10 RETAIN 100 EVENTS s MAXLEN 50");
    client.run_all((0..200).map(|number| format!("STOCK.RESERVE k 1 ORDER x{number} PX 5")));
    client.must("STOCK.DEDUCT k 1 ORDER d");
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    let [available, reserved, sold] = counts(&mut client, "k");
    assert_eq!((available + sold, reserved), (10, 0));
    client.must("STOCK.SET k 10 EVENTS s");
    let replies = client.transact(["STOCK.RESERVE k 1 ORDER o PX 900", "STOCK.ORDER k o"]);
    let end = replies[1].field("expires_ms").int();
    assert_identical(&master, &replica);
    assert_identical(&replica, &second);
    master.kill9();
    wait_for_replica_sync(&replica, &second);
    replica.kill9();
    promote_and_await_ends(&second, &[(0, "k")], end);
}

// Pauses and fail-over

#[test]
fn nothing_ends_while_writes_are_paused() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let mut control = Raw::connect(&master);
    client.must("STOCK.SET k 10 RETAIN 100 EVENTS s");
    let replies = control.transact([
        "STOCK.RESERVE k 2 ORDER o PX 100",
        "STOCK.DEDUCT k 1 ORDER d",
        "STOCK.ORDER k o",
        "CLIENT PAUSE 60000 WRITE",
    ]);
    let end = replies[2].field("expires_ms").int();
    wait_for_replica_sync(&master, &replica);
    let before = (master.digest(), master.info_int("master_repl_offset"));
    eventually(SOON, || now_ms(&mut control) > end + 250);
    let after = (master.digest(), master.info_int("master_repl_offset"));
    assert_eq!(after, before, "something happened in the pause");
    // A command that comes in the pause is carried out after it, and finds what is over by then.
    client.ask("STOCK.CONFIRM k o");
    assert_eq!(client.read_within(Duration::from_millis(50)), None);
    control.must("CLIENT UNPAUSE");
    assert_eq!(client.read(), CLOSED);
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    assert_eq!(counts(&mut client, "k"), [9, 0, 1]);
    assert_identical(&master, &replica);
    assert_stream_tells_all(&mut client, "s", &["k"]);
    assert!(!master.log().contains("ASSERTION"));
}

#[test]
fn nothing_ends_while_all_commands_are_paused() {
    const PAUSE: u64 = 600;
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET k 10 EVENTS s");
    // The pause begins at the server's time at the start of the transaction, which is a millisecond before that of the order or so.
    let before = u64::try_from(now_ms(&mut client)).unwrap();
    client.transact([
        "STOCK.RESERVE k 2 ORDER o PX 100".to_owned(),
        format!("CLIENT PAUSE {PAUSE} ALL"),
    ]);
    assert_eq!(client.run("STOCK.CONFIRM k o"), CLOSED);
    let entries = entries(&mut client, "s");
    assert_eq!(entries.last().unwrap().op, "expire");
    let told = entries.last().unwrap().id.0;
    assert!(
        told >= before + PAUSE,
        "it ended {} ms after the start of the pause",
        told - before
    );
    assert_identical(&master, &replica);
}

#[test]
fn a_failover_hands_over_with_all_reservations() {
    let (old, new) = pair();
    let mut client = Raw::connect(&old);
    client.must("STOCK.SET k 10 PERUSER 9 EVENTS s");
    client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 150 USER u",
        "STOCK.RESERVE k 2 ORDER live PX 900000 USER u",
    ]);
    wait_for_replica_sync(&old, &new);
    // The replica is silent at first: the old master pauses, and a reservation ends in the pause.
    new.stop_signal();
    old.command(["FAILOVER"]);
    thread::sleep(Duration::from_millis(300));
    new.cont_signal();
    await_role(&new, "master");
    await_role(&old, "slave");
    let mut client = Raw::connect(&new);
    await_state(&mut client, "k", "o", "expired");
    assert_eq!(client.must("STOCK.CONFIRM k live"), 2);
    eventually(SOON, || {
        old.info("master_link_status").as_deref() == Some("up")
    });
    wait_for_replica_sync(&new, &old);
    assert_identical(&new, &old);
    assert_stream_tells_all(&mut client, "s", &["k"]);
    let last = entries(&mut client, "s");
    assert!(last.iter().filter(|entry| entry.op == "expire").count() == 1);
}

#[test]
fn commands_on_several_keys_replicate_with_io_threads() {
    let with_threads = || quiet().config("io-threads", "4");
    let (master, replica) = (with_threads().start(), with_threads().start());
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for key in ["a", "b"] {
        client.must(&format!("STOCK.SET {key} 1000000000 EVENTS s MAXLEN 30"));
    }
    random_load(&master, 8, 11, Duration::from_secs(2), |random| {
        let order = random.below(1000);
        match random.below(3) {
            0 => "STOCK.MDEDUCT 2 a 1 b 1".into(),
            1 => format!("STOCK.MRESERVE 2 a 1 b 2 ORDER o{order} PX 900000"),
            // More keys than there are arguments.
            _ => format!("STOCK.MCONFIRM 9 a b o{order}"),
        }
    });
    assert_identical(&master, &replica);
    let log = replica.log();
    assert!(!log.contains("Protocol error"), "{log}");
}

#[test]
fn failovers_under_load_keep_the_datasets_identical() {
    let (one, other) = pair();
    let servers = [&one, &other];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..4 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random(0x1234_5678_9abc_def1 ^ (number * 7919 + 1));
                while !stop.load(Ordering::Relaxed) {
                    let mut client = Raw::connect(servers[random.below(2) as usize]);
                    for _ in 0..30 {
                        client.ask(&random.command());
                        match client.try_read(Duration::from_secs(5)) {
                            Ok(Some(Value::Error(text))) => {
                                assert!(!text.contains("internal"), "{text}");
                            }
                            Ok(Some(_)) => {}
                            _ => break,
                        }
                    }
                }
            });
        }
        for turn in 0..3 {
            let (now, next) = (servers[turn % 2], servers[(turn + 1) % 2]);
            thread::sleep(Duration::from_millis(200));
            now.command(["FAILOVER"]);
            await_failover(now, next);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // After an odd number of turns, the other one is the master.
    assert_identical(&other, &one);
    for server in servers {
        let log = server.log();
        for word in ["internal error", "ASSERTION", "lacks an entry"] {
            assert!(!log.contains(word), "{log}");
        }
    }
}
