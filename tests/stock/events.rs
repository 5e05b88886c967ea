//! The event stream of stocks: every change is told in the step in which it happens, exactly once and in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::stock::{
    CLOSED, EXHAUSTED, Entry, OVER_LIMIT, SOLD_OUT, UNKNOWN, assert_stream_tells_all, await_state,
    counts, entries, number, state, told,
};
use crate::support::{
    EndOnDrop, Lines, Random, Raw, SOON, Server, Value, WRONGTYPE, assert_identical, eventually,
    ints, now_ms, pair, server_and_client,
};

/// The last id that a stream can have.
const LAST_ID: &str = "18446744073709551615-18446744073709551615";

// What is told

#[test]
fn every_change_is_an_entry_with_all_its_fields() {
    let (_server, mut client) = server_and_client();
    for line in [
        "STOCK.SET k 10 EVENTS s",
        "STOCK.ADD k 5",
        "STOCK.ADD k -1 ORDER back",
        "STOCK.DEDUCT k 2",
        "STOCK.DEDUCT k 1 ORDER d USER u",
        "STOCK.DEDUCT k 1 USER only",
        "STOCK.RESERVE k 3 ORDER r PX 900000",
        "STOCK.RESERVE k 4 ORDER c PX 900000 USER v",
        "STOCK.CONFIRM k r",
        "STOCK.CANCEL k c",
        "STOCK.CANCEL k d",
        "STOCK.CANCEL k r",
        "STOCK.SET k 7 EVENTS s",
    ] {
        client.must(line);
    }
    client.run("STOCK.RESERVE k 2 ORDER e PX 10 USER u");
    await_state(&mut client, "k", "e", "expired");
    let expected = [
        "set k - - 10 10 1",
        "add k - - 5 15 2",
        "add k back - -1 14 3",
        "deduct k - - 2 12 4",
        "deduct k d u 1 11 5",
        "deduct k - only 1 10 6",
        "reserve k r - 3 7 7",
        "reserve k c v 4 3 8",
        "confirm k r - 3 3 9",
        "cancel k c v 4 7 10",
        "cancel k d u 1 8 11",
        "cancel k r - 3 11 12",
        "set k - - 7 7 13",
        "reserve k e u 2 5 14",
        "expire k e u 2 7 15",
    ];
    assert_eq!(told(&mut client, "s"), expected);
    assert_eq!(number(&mut client, "k", "ver"), 15);
    assert_stream_tells_all(&mut client, "s", &["k"]);
}

#[test]
fn what_changes_nothing_is_not_told() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.run("STOCK.SET k 10 PERUSER 3 RETAIN 600000 EVENTS s");
    client.run("STOCK.DEDUCT k 1 ORDER d USER u");
    client.run("STOCK.RESERVE k 1 ORDER r PX 3600000 USER u");
    let before = told(&mut client, "s");
    for line in [
        "STOCK.DEDUCT k 11 USER v",
        "STOCK.DEDUCT k 2 USER u",
        "STOCK.DEDUCT k 1",
        "STOCK.DEDUCT k 2 ORDER r USER u",
        "STOCK.RESERVE k 1 ORDER r PX 3600000 USER u",
        "STOCK.ADD k -10",
        "STOCK.SET k 5 NX EVENTS s",
        "STOCK.CONFIRM k unknown",
        // Marks are no changes of the stock.
        "STOCK.CANCEL k unknown",
        "STOCK.DEDUCT k 1 ORDER unknown USER v",
        "STOCK.MDEDUCT 2 k 1 none 1 USER v",
        "STOCK.GET k",
        "STOCK.INFO k",
    ] {
        client.run(line);
        assert_eq!(told(&mut client, "s"), before, "{line}");
    }
    // Nor is it told that an order is forgotten.
    server.shift_clock(600_000);
    eventually(SOON, || number(&mut client, "k", "orders") == 1);
    assert_eq!(told(&mut client, "s"), before);
    assert_eq!(number(&mut client, "k", "ver"), 3);
}

#[test]
fn stocks_without_a_stream_tell_nothing() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.run("STOCK.DEDUCT k 1");
    client.run("STOCK.SET k 10");
    client.run("STOCK.DEDUCT k 1");
    assert_eq!(client.run("XLEN s"), 2);
    assert_eq!(client.run("DBSIZE"), 2);
    // Another stream goes on from there.
    client.run("STOCK.SET k 10 EVENTS other");
    client.run("STOCK.DEDUCT k 1");
    assert_eq!(client.run("XLEN s"), 2);
    assert_eq!(
        told(&mut client, "other"),
        ["set k - - 10 10 5", "deduct k - - 1 9 6"]
    );
}

#[test]
fn a_stock_tells_its_name_of_now() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.run("STOCK.RESERVE k 1 ORDER o PX 900000");
    client.run("RENAME k new");
    client.run("STOCK.CONFIRM new o");
    client.run("COPY new copy");
    client.run("STOCK.DEDUCT copy 2");
    client.run("STOCK.DEDUCT new 3");
    let expected = [
        "set k - - 10 10 1",
        "reserve k o - 1 9 2",
        "confirm new o - 1 9 3",
        "deduct copy - - 2 7 4",
        "deduct new - - 3 6 4",
    ];
    assert_eq!(told(&mut client, "s"), expected);
}

#[test]
fn a_stream_is_in_the_database_of_its_stock() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    // In one transaction: the reservation must not end before the stock has moved.
    let replies = client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 200",
        "MOVE k 3",
        "SELECT 0", // some versions of Valkey leave the client in the other database: see tests/server/databases.rs
    ]);
    assert_eq!(replies[1], 1);
    assert_eq!(client.run("XLEN s"), 2);
    client.run("SELECT 3");
    await_state(&mut client, "k", "o", "expired");
    client.run("STOCK.DEDUCT k 1");
    assert_eq!(
        told(&mut client, "s"),
        ["expire k o - 1 10 3", "deduct k - - 1 9 4"]
    );
    client.run("SELECT 0");
    assert_eq!(client.run("XLEN s"), 2);
}

// Trimming

#[test]
fn a_stream_is_trimmed_to_about_its_maxlen() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 100000 EVENTS s MAXLEN 50");
    client.run_all((0..2000).map(|_| "STOCK.DEDUCT k 1"));
    let length = client.run("XLEN s").int();
    // About: whole blocks of a hundred entries are dropped.
    assert!((50..=250).contains(&length), "{length}");
    let last = entries(&mut client, "s");
    let versions: Vec<_> = last.iter().map(|entry| entry.ver).collect();
    assert!(versions.is_sorted_by(|one, next| one + 1 == *next));
    assert_eq!(versions.last(), Some(&2001));

    // With blocks of one entry, about is exactly; a new SET changes the length.
    client.run("CONFIG SET stream-node-max-entries 1");
    client.run("DEL s");
    client.run_all((0..200).map(|_| "STOCK.DEDUCT k 1"));
    assert_eq!(client.run("XLEN s"), 50);
    client.run("STOCK.SET k 1000 EVENTS s MAXLEN 1");
    assert_eq!(told(&mut client, "s"), ["set k - - 1000 1000 2202"]);
    client.run("STOCK.SET k 1000 EVENTS s");
    client.run_all((0..200).map(|_| "STOCK.DEDUCT k 1"));
    assert_eq!(client.run("XLEN s"), 202);
}

// A key that cannot be the stream

/// The stock `k`, whose stream's key is a string now, with an order in every state.
fn stock_without_its_stream(client: &mut Raw) {
    for line in [
        "DEL s",
        "STOCK.SET k 10 PERUSER 5 EVENTS s",
        "STOCK.RESERVE k 1 ORDER live PX 900000 USER u",
        "STOCK.DEDUCT k 1 ORDER sold USER u",
        "STOCK.SET other 10",
        "STOCK.RESERVE other 1 ORDER live PX 900000",
        "DEL s",
        "SET s value",
    ] {
        client.must(line);
    }
}

#[test]
fn changes_are_refused_while_the_streams_key_holds_another_type() {
    let (server, mut client) = server_and_client();
    for other in [
        "SET s value",
        "RPUSH s a",
        "STOCK.SET s 5",
        "LOCK.ACQUIRE s me PX 900000",
    ] {
        stock_without_its_stream(&mut client);
        client.run("DEL s");
        client.must(other);
        let digest = server.digest();
        for line in [
            "STOCK.ADD k 1",
            "STOCK.ADD k 1 ORDER a",
            "STOCK.DEDUCT k 1 USER v",
            "STOCK.DEDUCT k 1 ORDER d USER v",
            "STOCK.RESERVE k 1 ORDER r PX 900000 USER v",
            "STOCK.CONFIRM k live",
            "STOCK.CANCEL k live",
            "STOCK.CANCEL k sold",
            "STOCK.SET k 5 EVENTS s",
            "STOCK.SET new 5 EVENTS s",
            "STOCK.MDEDUCT 2 other 1 k 1 USER v",
            "STOCK.MDEDUCT 2 k 1 other 1 USER v",
            "STOCK.MRESERVE 2 other 1 k 1 ORDER m PX 900000 USER v",
            "STOCK.MCONFIRM 2 other k live",
            "STOCK.MCANCEL 2 other k live",
        ] {
            assert_eq!(client.run(line).err(), WRONGTYPE, "{line}, {other}");
            assert_eq!(server.digest(), digest, "{line}, {other}");
        }
        // What would change nothing anyway is answered as ever.
        for (line, expected) in [
            ("STOCK.DEDUCT k 11 USER v", SOLD_OUT),
            ("STOCK.DEDUCT k 5 USER u", OVER_LIMIT),
            ("STOCK.DEDUCT k 1 ORDER sold USER u", 8),
            ("STOCK.CONFIRM k sold", 1),
            ("STOCK.CONFIRM k unknown", UNKNOWN),
            ("STOCK.GET k", 8),
        ] {
            assert_eq!(client.run(line), expected, "{line}, {other}");
        }
        assert_eq!(server.digest(), digest);
    }
    // A new SET makes it work again, and so does the end of what is in the way.
    client.run("STOCK.SET k 10 EVENTS elsewhere");
    assert_eq!(client.run("STOCK.DEDUCT k 1"), 9);
    stock_without_its_stream(&mut client);
    client.run("DEL s");
    assert_eq!(client.run("STOCK.CONFIRM k live"), 1);
    let ver = number(&mut client, "k", "ver");
    assert_eq!(
        told(&mut client, "s"),
        [format!("confirm k live u 1 8 {ver}")]
    );
}

#[test]
fn a_stock_cannot_be_its_own_stream() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("STOCK.SET k 5 EVENTS k").err(), WRONGTYPE);
    assert_eq!(client.run("EXISTS k"), 0);
    client.run("STOCK.SET k 5 EVENTS s");
    assert_eq!(client.run("STOCK.SET k 5 EVENTS k").err(), WRONGTYPE);
    // It may come to that by RENAME. In one transaction: the reservation must not end before it.
    let replies = client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 100",
        "STOCK.ORDER k o",
        "RENAME k s",
    ]);
    assert_eq!(client.run("STOCK.DEDUCT s 1").err(), WRONGTYPE);
    let end = replies[1].field("expires_ms").int();
    eventually(SOON, || now_ms(&mut client) > end + 50);
    assert_eq!(counts(&mut client, "s"), [4, 1, 0]);
    client.run("RENAME s k");
    await_state(&mut client, "k", "o", "expired");
    assert_eq!(told(&mut client, "s"), ["expire k o - 1 5 3"]);
}

#[test]
fn a_reservation_whose_end_cannot_be_announced_waits_for_its_stream() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.transact(["STOCK.RESERVE k 2 ORDER o PX 60", "DEL s", "SET s value"]);
    client.run("STOCK.SET clock 10");
    client.run("STOCK.RESERVE clock 1 ORDER o PX 100");
    await_state(&mut client, "clock", "o", "expired");
    assert_eq!(counts(&mut client, "k"), [8, 2, 0]);
    assert_eq!(server.info_int("sluice_stock_expired"), 1);
    client.run("DEL s");
    await_state(&mut client, "k", "o", "expired");
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(told(&mut client, "s"), ["expire k o - 2 10 3"]);
}

/// The server tries again only after a while; commands need not wait for that.
#[test]
fn an_overdue_reservation_is_over_as_soon_as_its_end_can_be_told() {
    for (command, expected) in [
        ("STOCK.CONFIRM k o", CLOSED),
        ("STOCK.CANCEL k o", CLOSED),
        ("STOCK.DEDUCT k 10", 0),
        ("STOCK.RESERVE k 10 ORDER p PX 900000", 0),
        ("STOCK.MCONFIRM 1 k o", CLOSED),
        ("STOCK.MDEDUCT 1 k 10", 0),
    ] {
        let (_server, mut client) = server_and_client();
        client.run("STOCK.SET k 10 EVENTS s");
        client.transact(["STOCK.RESERVE k 2 ORDER o PX 30", "DEL s", "SET s value"]);
        // This one ends later: the server has tried to end the first one by then.
        client.run("STOCK.SET clock 10");
        client.run("STOCK.RESERVE clock 1 ORDER o PX 60");
        await_state(&mut client, "clock", "o", "expired");
        let replies = client.transact(["DEL s", command]);
        let reply = match &replies[1] {
            Value::Array(items) => &items[0],
            reply => reply,
        };
        assert_eq!(*reply, expected, "{command}");
        assert_eq!(state(&mut client, "k", "o"), "expired", "{command}");
        assert_eq!(
            told(&mut client, "s")[0],
            "expire k o - 2 10 3",
            "{command}"
        );
    }
}

// Streams that go

#[test]
fn a_deleted_stream_starts_again() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    for (number, end) in [
        "DEL s",
        "UNLINK s",
        "PEXPIREAT s 1",
        "RENAME s elsewhere",
        "XTRIM s MAXLEN 0",
    ]
    .into_iter()
    .enumerate()
    {
        client.must(end);
        assert_eq!(client.run("STOCK.DEDUCT k 1"), 9 - number as i64);
        let expected = format!("deduct k - - 1 {} {}", 9 - number, 2 + number);
        assert_eq!(told(&mut client, "s"), [expected], "{end}");
    }
}

#[test]
fn a_stream_with_an_expiry_goes_and_starts_again_by_itself() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.transact(["STOCK.RESERVE k 1 ORDER o PX 150", "PEXPIRE s 50"]);
    // Nobody touches the stream in between but the end of the reservation.
    await_state(&mut client, "k", "o", "expired");
    assert_eq!(told(&mut client, "s"), ["expire k o - 1 10 3"]);
    assert_eq!(client.run("PTTL s"), -1);
}

#[test]
fn a_stock_that_is_deleted_tells_no_more() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.run("STOCK.SET clock 10");
    client.transact([
        "STOCK.RESERVE k 1 ORDER o PX 30",
        "STOCK.RESERVE clock 1 ORDER o PX 60",
        "DEL k",
    ]);
    await_state(&mut client, "clock", "o", "expired");
    assert_eq!(client.run("XLEN s"), 2);
    // A new stock of that name begins anew.
    client.run("STOCK.SET k 5 EVENTS s");
    assert_eq!(told(&mut client, "s")[2], "set k - - 5 5 1");
}

// Several stocks, one stream

#[test]
fn several_stocks_tell_one_stream_in_the_order_of_the_command() {
    let (_server, mut client) = server_and_client();
    for key in ["a", "b"] {
        client.call(["STOCK.SET", key, "10", "EVENTS", "s"]);
    }
    client.run("STOCK.SET c 10 EVENTS t");
    client.run("STOCK.SET silent 10");
    client.run("STOCK.MRESERVE 4 b 1 c 2 silent 3 a 4 ORDER o PX 900000 USER u");
    client.run("STOCK.MCONFIRM 4 a b c silent o");
    client.run("STOCK.MCANCEL 2 b c o");
    client.run("STOCK.MDEDUCT 3 silent 1 b 2 a 3");
    let expected = [
        "set a - - 10 10 1",
        "set b - - 10 10 1",
        "reserve b o u 1 9 2",
        "reserve a o u 4 6 2",
        "confirm a o u 4 6 3",
        "confirm b o u 1 9 3",
        "cancel b o u 1 10 4",
        "deduct b - - 2 8 5",
        "deduct a - - 3 3 4",
    ];
    assert_eq!(told(&mut client, "s"), expected);
    assert_eq!(
        told(&mut client, "t"),
        [
            "set c - - 10 10 1",
            "reserve c o u 2 8 2",
            "confirm c o u 2 8 3",
            "cancel c o u 2 10 4"
        ]
    );
    assert_stream_tells_all(&mut client, "s", &["a", "b"]);
}

/// Before the command itself, it ends the reservations whose time was up.
#[test]
fn a_command_on_several_stocks_tells_their_ended_reservations_first() {
    let (_server, mut client) = server_and_client();
    for key in ["a", "b"] {
        client.call(["STOCK.SET", key, "10", "EVENTS", "s"]);
    }
    let replies = client.transact([
        "STOCK.MRESERVE 2 a 10 b 10 ORDER o PX 5",
        "DEBUG SLEEP 0.02",
        "STOCK.MDEDUCT 2 a 4 b 5",
    ]);
    assert_eq!(ints(&replies[2]), [6, 5]);
    let expected = [
        "expire a o - 10 10 3",
        "expire b o - 10 10 3",
        "deduct a - - 4 6 4",
        "deduct b - - 5 5 4",
    ];
    assert_eq!(told(&mut client, "s")[4..], expected);
    assert_stream_tells_all(&mut client, "s", &["a", "b"]);
}

/// Makes the stocks `a` and `b` that tell `s`, which is as long as it may be, and `c` that cannot tell anything.
fn stocks_of_which_one_cannot_tell(client: &mut Raw, obstacle: &str) {
    // Trimming is exact with blocks of one entry.
    client.run("CONFIG SET stream-node-max-entries 1");
    for line in [
        "STOCK.SET a 10 EVENTS s MAXLEN 3",
        "STOCK.SET b 10 EVENTS s MAXLEN 3",
        "STOCK.SET c 10 EVENTS t",
        "STOCK.DEDUCT a 1",
        "DEL t",
        obstacle,
    ] {
        client.must(line);
    }
    assert_eq!(client.run("XLEN s"), 3);
}

/// What is in the way of the stock `c`, and the error that it gives.
const OBSTACLES: [(&str, &str); 2] = [
    ("SET t value", WRONGTYPE),
    (
        "XADD t 18446744073709551615-18446744073709551615 op nonsense",
        EXHAUSTED,
    ),
];

#[test]
fn if_one_of_several_stocks_cannot_tell_the_streams_of_the_others_are_as_before() {
    for (obstacle, error) in OBSTACLES {
        for line in [
            "STOCK.MDEDUCT 2 c 1 a 1",
            "STOCK.MDEDUCT 2 a 1 c 1",
            "STOCK.MDEDUCT 3 a 1 b 1 c 1",
            "STOCK.MRESERVE 3 b 1 c 1 a 1 ORDER o PX 900000",
        ] {
            let (server, mut client) = server_and_client();
            stocks_of_which_one_cannot_tell(&mut client, obstacle);
            let (before, digest) = (told(&mut client, "s"), server.digest());
            assert_eq!(client.run(line).err(), error, "{line}");
            assert_eq!(told(&mut client, "s"), before, "{line}");
            assert_eq!(server.digest(), digest, "{line}");
        }
    }
}

#[test]
fn if_one_of_several_stocks_cannot_tell_no_stream_is_made_for_the_others() {
    for (obstacle, error) in OBSTACLES {
        let (server, mut client) = server_and_client();
        stocks_of_which_one_cannot_tell(&mut client, obstacle);
        client.run("DEL s");
        let digest = server.digest();
        assert_eq!(client.run("STOCK.MDEDUCT 2 a 1 c 1").err(), error);
        assert_eq!(client.run("EXISTS s"), 0, "an empty stream is left");
        assert_eq!(server.digest(), digest);
    }
}

// Streams that are full

#[test]
fn changes_are_refused_when_the_stream_has_no_ids_left() {
    let (server, mut client) = server_and_client();
    for line in [
        "STOCK.SET k 10 EVENTS s",
        "STOCK.RESERVE k 1 ORDER live PX 900000",
        "STOCK.SET other 10 EVENTS fine",
        "STOCK.RESERVE other 1 ORDER live PX 900000",
    ] {
        client.must(line);
    }
    client.call(["XADD", "s", LAST_ID, "op", "nonsense"]);
    let digest = server.digest();
    for line in [
        "STOCK.ADD k 1",
        "STOCK.DEDUCT k 1 ORDER d",
        "STOCK.RESERVE k 1 ORDER r PX 900000",
        "STOCK.CONFIRM k live",
        "STOCK.CANCEL k live",
        "STOCK.SET k 5 EVENTS s",
        "STOCK.SET new 5 EVENTS s",
        "STOCK.MDEDUCT 2 other 1 k 1",
        "STOCK.MDEDUCT 2 k 1 other 1",
        "STOCK.MCONFIRM 2 other k live",
        "STOCK.MCANCEL 2 other k live",
    ] {
        assert_eq!(client.run(line).err(), EXHAUSTED, "{line}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    client.run("DEL s");
    assert_eq!(ints(&client.run("STOCK.MCONFIRM 2 other k live")), [1, 1]);
    assert_eq!(told(&mut client, "s"), ["confirm k live - 1 9 3"]);
}

#[test]
fn the_log_names_the_stock_whose_reservations_cannot_end_and_its_stream() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    let stock: &[u8] = b"stock\r\n%s\xff";
    let stream: &[u8] = b"stream\0";
    client.call([b"STOCK.SET", stock, b"10", b"EVENTS", stream]);
    let reserve: [&[u8]; 7] = [
        b"STOCK.RESERVE",
        stock,
        b"1",
        b"ORDER",
        b"o",
        b"PX",
        b"600000",
    ];
    client.call(reserve);
    client.call([b"XADD", stream, LAST_ID.as_bytes(), b"op", b"nonsense"]);
    server.shift_clock(600_000);
    let line = r#"the reservations of the stock "stock\r\n%s\xff" cannot end: its event stream "stream\x00" has no ids left"#;
    eventually(SOON, || server.log().contains(line));
    client.call([b"DEL", stream]);
    let get: [&[u8]; 2] = [b"STOCK.GET", stock];
    eventually(SOON, || client.call(get) == 10);
    assert_eq!(server.log().matches("has no ids left").count(), 1);
}

#[test]
fn of_several_stocks_all_or_none_get_the_last_ids_of_their_stream() {
    let (server, mut client) = server_and_client();
    for key in ["a", "b"] {
        client.call(["STOCK.SET", key, "10", "EVENTS", "s"]);
    }
    // Room for one more.
    let almost = "18446744073709551615-18446744073709551614";
    client.call(["XADD", "s", almost, "op", "nonsense"]);
    let digest = server.digest();
    let reply = client.run("STOCK.MDEDUCT 2 a 1 b 1");
    assert_eq!(reply.err(), EXHAUSTED);
    assert_eq!(server.digest(), digest);
    assert_eq!(client.run("XLEN s"), 3);
    for key in ["a", "b"] {
        assert_eq!(counts(&mut client, key), [10, 0, 0]);
    }
}

/// What a stream has given: its last id, its entries of all times and those that are there.
fn given(client: &mut Raw, stream: &str) -> [String; 3] {
    let about = client.run(&format!("XINFO STREAM {stream}"));
    ["last-generated-id", "entries-added", "length"]
        .map(|field| format!("{:?}", about.field(field)))
}

/// An entry that is appended and taken out again leaves its id and its count in the stream.
#[test]
fn what_a_stream_refuses_leaves_no_trace_in_the_streams_before_it() {
    const ALMOST: &str = "18446744073709551615-18446744073709551614";
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let mut copy = Raw::connect(&replica);
    // Each stock with its stream, and each stream with the last id that it is to have.
    type Pairs = &'static [(&'static str, &'static str)];
    let cases: [(Pairs, Pairs); 6] = [
        (&[("a", "s"), ("b", "t")], &[("t", LAST_ID)]),
        (&[("a", "s"), ("b", "s")], &[("s", ALMOST)]),
        (&[("a", "s"), ("b", "t"), ("c", "t")], &[("t", ALMOST)]),
        (&[("a", "s"), ("b", "t"), ("c", "s")], &[("s", ALMOST)]),
        (&[("a", "s"), ("b", "t"), ("c", "u")], &[("u", LAST_ID)]),
        (&[("a", ""), ("b", "s"), ("c", "t")], &[("t", LAST_ID)]),
    ];
    for (stocks, streams) in cases {
        for is_deleted in [false, true] {
            client.run("FLUSHALL");
            for (key, stream) in stocks {
                let events = if stream.is_empty() { "" } else { "EVENTS" };
                client.must(&format!("STOCK.SET {key} 10 {events} {stream}"));
                client.must(&format!("STOCK.RESERVE {key} 1 ORDER live PX 900000"));
            }
            for (stream, last) in streams {
                client.call(["XADD", stream, last, "op", "nonsense"]);
                if is_deleted {
                    client.call(["XDEL", stream, last]);
                }
            }
            let count = stocks.len();
            let keys: Vec<_> = stocks.iter().map(|(key, _)| *key).collect();
            let (pairs, keys) = (keys.join(" 1 ") + " 1", keys.join(" "));
            let names = ["s", "t", "u"];
            let there = names.map(|name| client.run(&format!("EXISTS {name}")) == 1);
            let there: Vec<_> = names.into_iter().zip(there).filter(|(_, is)| *is).collect();
            let all = |client: &mut Raw| -> Vec<_> {
                there.iter().map(|(name, _)| given(client, name)).collect()
            };
            let (before, digest) = (all(&mut client), master.digest());
            let offset = master.info_int("master_repl_offset");
            for line in [
                format!("STOCK.MDEDUCT {count} {pairs}"),
                format!("STOCK.MDEDUCT {count} {pairs} ORDER d"),
                format!("STOCK.MRESERVE {count} {pairs} ORDER r PX 900000"),
                format!("STOCK.MCONFIRM {count} {keys} live"),
                format!("STOCK.MCANCEL {count} {keys} live"),
            ] {
                assert_eq!(client.run(&line).err(), EXHAUSTED, "{line}");
                assert_eq!(all(&mut client), before, "{line} {streams:?} {is_deleted}");
            }
            assert_eq!(master.digest(), digest);
            assert_eq!(master.info_int("master_repl_offset"), offset);
            assert_identical(&master, &replica);
            assert_eq!(all(&mut copy), before);
            // A cancellation that comes first needs no entry.
            let reply = client.run(&format!("STOCK.MCANCEL {count} {keys} late"));
            assert_eq!(ints(&reply), vec![UNKNOWN; count]);
            assert_eq!(all(&mut client), before);
        }
    }
}

#[test]
fn the_last_ids_of_a_stream_are_used() {
    let (_server, mut client) = server_and_client();
    for (key, stream) in [("a", "s"), ("b", "s"), ("c", "t")] {
        client.must(&format!("STOCK.SET {key} 10 EVENTS {stream}"));
    }
    // Two entries are left, and no other stream matters.
    client.run("XADD s 18446744073709551615-18446744073709551613 op nonsense");
    let reply = client.run("STOCK.MDEDUCT 3 a 1 c 1 b 1");
    assert_eq!(ints(&reply), [9, 9, 9]);
    let [last, _, length] = given(&mut client, "s");
    assert!(last.contains(LAST_ID), "{last}");
    assert_eq!(length, "5");
    let before = given(&mut client, "t");
    let reply = client.run("STOCK.MDEDUCT 2 c 1 a 1");
    assert_eq!(reply.err(), EXHAUSTED);
    assert_eq!(given(&mut client, "t"), before);
    assert_eq!(ints(&client.run("STOCK.MDEDUCT 1 c 1")), [8]);
}

#[test]
fn a_missing_stream_is_made_and_another_type_refused_before_any_entry() {
    let (server, mut client) = server_and_client();
    for (key, stream) in [("a", "s"), ("b", "t"), ("c", "u")] {
        client.must(&format!("STOCK.SET {key} 10 EVENTS {stream}"));
    }
    client.run("DEL t");
    client.run("SET u string");
    let before = given(&mut client, "s");
    let digest = server.digest();
    let reply = client.run("STOCK.MDEDUCT 3 a 1 b 1 c 1");
    assert_eq!(reply.err(), WRONGTYPE);
    assert_eq!(server.digest(), digest);
    assert_eq!(given(&mut client, "s"), before);
    assert_eq!(client.run("EXISTS t"), 0);
    client.run("DEL u");
    assert_eq!(ints(&client.run("STOCK.MDEDUCT 3 a 1 b 1 c 1")), [9, 9, 9]);
    assert_eq!(told(&mut client, "t"), ["deduct b - - 1 9 2"]);
    // A stream that is there and has never had an entry.
    client.run("XGROUP CREATE v g $ MKSTREAM");
    for key in ["d", "e"] {
        client.run("XTRIM v MAXLEN 0");
        client.must(&format!("STOCK.SET {key} 10 EVENTS v"));
    }
    client.run("DEL v");
    client.run("XGROUP CREATE v g $ MKSTREAM");
    assert_eq!(ints(&client.run("STOCK.MDEDUCT 2 d 1 e 1")), [9, 9]);
    let expected = ["deduct d - - 1 9 2", "deduct e - - 1 9 2"];
    assert_eq!(told(&mut client, "v"), expected);
}

#[test]
fn a_reservation_waits_for_a_full_stream_too() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.transact([
        "STOCK.RESERVE k 2 ORDER o PX 60".to_owned(),
        format!("XADD s {LAST_ID} op nonsense"),
    ]);
    client.run("STOCK.SET clock 10");
    client.run("STOCK.RESERVE clock 1 ORDER o PX 100");
    await_state(&mut client, "clock", "o", "expired");
    assert_eq!(counts(&mut client, "k"), [8, 2, 0]);
    client.run("DEL s");
    await_state(&mut client, "k", "o", "expired");
    assert_eq!(told(&mut client, "s"), ["expire k o - 2 10 3"]);
}

// Workers

/// The entries in the reply of an `XREADGROUP` of one stream.
#[track_caller]
fn read_entries(reply: &Value) -> Vec<Entry> {
    let streams = reply.array();
    assert_eq!(streams.len(), 1);
    let entries = streams[0].array()[1].array();
    entries.iter().map(Entry::read).collect()
}

/// A worker of the group `g` that waits for the next entry of `s`.
#[track_caller]
fn waiting_worker(server: &Server, name: &str) -> Raw {
    let blocked = server.info_int("blocked_clients");
    let mut worker = Raw::connect(server);
    worker.ask(&format!("XREADGROUP GROUP g {name} BLOCK 0 STREAMS s >"));
    eventually(SOON, || server.info_int("blocked_clients") == blocked + 1);
    worker
}

#[test]
fn whatever_changes_a_stock_wakes_the_worker_that_waits_for_it() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 100 EVENTS s");
    client.run("STOCK.SET other 100");
    client.run("XGROUP CREATE s g $");
    let script = "return redis.call('STOCK.DEDUCT', KEYS[1], 1)";
    for (command, op) in [
        ("STOCK.DEDUCT k 1", "deduct"),
        ("STOCK.ADD k 1", "add"),
        ("STOCK.RESERVE k 1 ORDER r PX 900000", "reserve"),
        ("STOCK.CONFIRM k r", "confirm"),
        ("STOCK.CANCEL k r", "cancel"),
        ("STOCK.MDEDUCT 2 other 1 k 1", "deduct"),
        ("EVAL", "deduct"),
        ("MULTI", "add"),
        ("STOCK.SET k 100 EVENTS s", "set"),
    ] {
        let mut worker = waiting_worker(&server, "w");
        match command {
            "EVAL" => drop(client.call(["EVAL", script, "1", "k"])),
            "MULTI" => drop(client.transact(["STOCK.ADD k 1"])),
            _ => drop(client.must(command)),
        }
        let reply = worker.read_within(SOON).expect("nobody wakes the worker");
        let entries = read_entries(&reply);
        assert_eq!(entries.len(), 1, "{command}");
        assert_eq!(entries[0].op, op, "{command}");
    }
}

#[test]
fn the_end_of_a_reservation_wakes_the_worker_that_waits_for_it() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.run("STOCK.SET k 100 EVENTS s");
    client.run("STOCK.RESERVE k 1 ORDER o PX 600000 USER u");
    client.run("XGROUP CREATE s g $");
    let mut worker = waiting_worker(&server, "w");
    // XREAD without a group wakes as well.
    let mut reader = Raw::connect(&server);
    reader.ask("XREAD BLOCK 0 STREAMS s $");
    eventually(SOON, || server.info_int("blocked_clients") == 2);
    server.shift_clock(600_000);
    for client in [&mut worker, &mut reader] {
        let reply = client.read_within(SOON).expect("nobody wakes the worker");
        let entries = read_entries(&reply);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].line(), "expire k o u 1 100 3");
    }
}

#[test]
fn workers_share_the_orders_and_take_over_from_one_that_died() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 1000 EVENTS s");
    client.run("XGROUP CREATE s g $");
    let orders = (0..300).map(|number| format!("STOCK.DEDUCT k 1 ORDER o{number}"));
    client.run_all(orders);
    let mut done: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    // One takes a hundred and dies after half of them; its connection is gone, its entries are pending.
    let mut dying = Raw::connect(&server);
    let taken = read_entries(&dying.run("XREADGROUP GROUP g dying COUNT 100 STREAMS s >"));
    for entry in &taken[..50] {
        *done.entry(entry.order.clone()).or_default() += 1;
        let id = format!("{}-{}", entry.id.0, entry.id.1);
        assert_eq!(dying.call(["XACK", "s", "g", &id]), 1);
    }
    drop(dying);
    let mut worker = Raw::connect(&server);
    let settle = |worker: &mut Raw, entries: &[Entry], done: &mut BTreeMap<Vec<u8>, usize>| {
        for entry in entries {
            *done.entry(entry.order.clone()).or_default() += 1;
            let id = format!("{}-{}", entry.id.0, entry.id.1);
            assert_eq!(worker.call(["XACK", "s", "g", &id]), 1);
        }
    };
    loop {
        let reply = worker.run("XREADGROUP GROUP g worker COUNT 70 STREAMS s >");
        if reply.is_nil() {
            break;
        }
        settle(&mut worker, &read_entries(&reply), &mut done);
    }
    let mut cursor = "0-0".to_owned();
    loop {
        let reply = worker.call([
            "XAUTOCLAIM",
            "s",
            "g",
            "worker",
            "0",
            &cursor,
            "COUNT",
            "20",
        ]);
        let claimed: Vec<_> = reply.array()[1].array().iter().map(Entry::read).collect();
        settle(&mut worker, &claimed, &mut done);
        cursor = reply.array()[0].text().to_owned();
        if cursor == "0-0" {
            break;
        }
    }
    assert_eq!(client.run("XPENDING s g").array()[0], 0);
    assert_eq!(done.len(), 300);
    assert!(done.values().all(|times| *times == 1));
}

// All together

impl Random {
    /// A command on one or several of the stocks `a`, `b` and `c`.
    fn sale(&mut self) -> String {
        let key = ["a", "b", "c"][self.below(3) as usize];
        let pair = ["a 1 b 2", "c 1 a 1", "b 3 c 1"][self.below(3) as usize];
        let keys = ["a b", "c a", "b c"][self.below(3) as usize];
        let (qty, user) = (1 + self.below(4), self.below(8));
        let order = self.below(90);
        let px = if self.below(2) == 0 {
            900_000
        } else {
            1 + self.below(60)
        };
        match self.below(20) {
            0 | 1 => format!("STOCK.DEDUCT {key} {qty} USER u{user}"),
            2..=4 => format!("STOCK.DEDUCT {key} {qty} ORDER d{order} USER u{user}"),
            5..=8 => format!("STOCK.RESERVE {key} {qty} ORDER r{order} PX {px} USER u{user}"),
            9 | 10 => format!("STOCK.CONFIRM {key} r{order}"),
            11 => format!("STOCK.CANCEL {key} r{order}"),
            12 => format!("STOCK.CANCEL {key} d{order}"),
            13 => format!("STOCK.ADD {key} {}", 8 - self.below(12) as i64),
            14 => format!("STOCK.MDEDUCT 2 {pair} ORDER m{order} USER u{user}"),
            15 | 16 => format!("STOCK.MRESERVE 2 {pair} ORDER n{order} PX {px} USER u{user}"),
            17 => format!("STOCK.MCONFIRM 2 {keys} n{order}"),
            18 => format!("STOCK.MCANCEL 2 {keys} n{order}"),
            _ if self.below(20) == 0 => {
                format!(
                    "STOCK.SET {key} {} PERUSER 9 RETAIN 200 EVENTS s",
                    20 + self.below(50)
                )
            }
            _ => format!("STOCK.ADD {key} 3 ORDER a{order}"),
        }
    }
}

/// A counter of `INFO sluice` that shows at most five of its events, so that a test would prove little.
fn rare_counter(server: &Server) -> Option<&'static str> {
    let counters = [
        "deducted",
        "reserved",
        "confirmed",
        "cancelled",
        "expired",
        "sold_out",
    ];
    let count = |counter: &str| server.info_int(&format!("sluice_stock_{counter}"));
    counters.into_iter().find(|counter| count(counter) <= 5)
}

/// Clients in great number, ends of reservations, forgotten orders; and a worker that reads as it happens.
#[test]
fn a_replay_of_the_stream_gives_the_numbers_of_every_stock() {
    let (server, mut client) = server_and_client();
    for key in ["a", "b", "c"] {
        let set = format!("STOCK.SET {key} 60 PERUSER 9 RETAIN 200 EVENTS s");
        client.must(&set);
    }
    client.run("XGROUP CREATE s g 0");
    let stop = AtomicBool::new(false);
    let read = thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        let worker = scope.spawn(|| {
            let mut worker = Raw::connect(&server);
            let mut read = Vec::new();
            loop {
                let last_look = stop.load(Ordering::Relaxed);
                let reply = worker.run("XREADGROUP GROUP g w COUNT 50 BLOCK 20 STREAMS s >");
                if !reply.is_nil() {
                    read.extend(read_entries(&reply));
                } else if last_look {
                    return read;
                }
            }
        });
        let clients: Vec<_> = (0..6)
            .map(|number: u32| {
                let server = &server;
                scope.spawn(move || {
                    let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.rotate_left(number * 9));
                    let mut client = Raw::connect(server);
                    // How often each thing happens depends on how the clients interleave.
                    for round in 0..600 {
                        if round >= 60 && rare_counter(server).is_none() {
                            break;
                        }
                        let lines: Vec<_> = (0..10).map(|_| random.sale()).collect();
                        for (line, reply) in lines.iter().zip(client.run_all(&lines)) {
                            let expected = !reply.is_err() || reply.err().starts_with("CONFLICT");
                            assert!(expected, "{line}: {reply:?}");
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        // Until what is to end soon has ended.
        eventually(SOON, || {
            let settled = |key: &str| {
                let mut client = Raw::connect(&server);
                let before = number(&mut client, key, "ver");
                thread::sleep(Duration::from_millis(80));
                number(&mut client, key, "ver") == before
            };
            ["a", "b", "c"].into_iter().all(settled)
        });
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    assert_eq!(rare_counter(&server), None);
    assert_stream_tells_all(&mut client, "s", &["a", "b", "c"]);
    assert!(
        read == entries(&mut client, "s"),
        "the worker has read something else"
    );
    assert_nobody_had_too_much(&read, 9);
    assert!(!server.log().contains("panic"));
}

/// At no moment has a user more of a stock than its limit.
#[track_caller]
fn assert_nobody_had_too_much(entries: &[Entry], limit: i64) {
    let mut held: BTreeMap<(&[u8], &[u8]), i64> = BTreeMap::new();
    for entry in entries {
        if entry.op == "set" {
            held.retain(|(sku, _), _| *sku != entry.sku);
            continue;
        }
        let has = held.entry((&entry.sku, &entry.user)).or_default();
        match entry.op.as_str() {
            "deduct" | "reserve" => *has += entry.qty,
            "cancel" | "expire" => *has -= entry.qty,
            _ => {}
        }
        assert!((0..=limit).contains(has), "{has} after {entry:?}");
    }
}

#[test]
fn stocks_that_share_a_stream_start_it_together() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET a 10 EVENTS s");
    client.must("STOCK.SET b 10 EVENTS s");
    client.must("DEL s");
    let reply = client.run("STOCK.MDEDUCT 2 a 1 b 1 ORDER o");
    assert_eq!(ints(&reply), [9, 9]);
    assert_eq!(
        told(&mut client, "s"),
        ["deduct a o - 1 9 2", "deduct b o - 1 9 2"]
    );
}
