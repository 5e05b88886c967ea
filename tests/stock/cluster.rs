//! Stocks in a cluster and under access rules: their keys and event streams are known, kept to one slot and to those who
//! may use them.

use std::thread;
use std::time::Duration;

use crate::support::cluster::{Move, calls, node, one_node, two_nodes};
use crate::support::stock::{UNKNOWN, assert_stream_tells_all, await_state, counts, told};
use crate::support::{
    Lines, Raw, Server, Value, ask, ints, reads_keys_in_threads, server_and_client,
};

#[track_caller]
fn keys(client: &mut Raw, line: &str) -> String {
    let keys = client.run(&format!("COMMAND GETKEYS {line}"));
    if keys.is_err() {
        return keys.err().to_owned();
    }
    let keys: Vec<_> = keys.array().iter().map(Value::text).collect();
    keys.join(" ")
}

// Slots

#[test]
fn several_stocks_need_one_slot() {
    let (server, mut client) = one_node();
    for key in ["foo", "bar", "{foo}1", "{foo}2"] {
        client.must(&format!("STOCK.SET {key} 10"));
    }
    client.must("STOCK.RESERVE foo 1 ORDER o PX 900000");
    client.must("STOCK.RESERVE bar 1 ORDER o PX 900000");
    let digest = server.digest();
    for line in [
        "STOCK.MDEDUCT 2 foo 1 bar 1",
        "STOCK.MDEDUCT 2 foo 1 bar 1 ORDER p USER u",
        "STOCK.MDEDUCT 3 foo 1 {foo}1 1 bar 1",
        "STOCK.MRESERVE 2 bar 1 foo 1 ORDER p PX 900000",
        "STOCK.MCONFIRM 2 foo bar o",
        "STOCK.MCANCEL 2 foo bar o",
        "STOCK.MGET foo bar",
        "STOCK.SET foo 10 EVENTS bar",
        "STOCK.SET foo 10 NX EVENTS bar",
        "STOCK.SET foo 10 XX MAXLEN 5 EVENTS bar",
        "STOCK.SET foo 10 PERUSER 5 RETAIN 5 events bar MAXLEN 5",
        "STOCK.IMPORT foo EVENTS bar",
        "STOCK.IMPORT foo PERUSER 5 MAXLEN 5 EVENTS bar",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("CROSSSLOT "), "{line}: {reply:?}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    let reply = client.must("STOCK.MDEDUCT 3 foo 1 {foo}1 2 {foo}2 3 ORDER m");
    assert_eq!(ints(&reply), [8, 8, 7]);
    let reply = client.must("STOCK.MCANCEL 3 {foo}2 foo {foo}1 m");
    assert_eq!(ints(&reply), [3, 1, 2]);
    let reply = client.must("STOCK.MGET {foo}1 {foo}none foo");
    assert!(reply.array()[1].is_nil());
}

/// A stream that is not there may be on another node, which the module must know now: for all stocks of a command at once.
#[test]
fn stocks_whose_streams_are_missing_cost_one_look_at_the_nodes() {
    const COUNT: usize = 1000;
    let (server, mut client) = one_node();
    let keys = || (0..COUNT).map(|number| format!("{{foo}}{number}"));
    client.run_all(keys().map(|key| format!("STOCK.SET {key} 10 EVENTS {key}e")));
    let streams: Vec<String> = keys().map(|key| format!("{key}e")).collect();
    let streams = streams.join(" ");
    assert_eq!(client.must(&format!("DEL {streams}")), COUNT as i64);
    let sold: Vec<String> = keys().map(|key| format!("{key} 1")).collect();
    let before = calls(&server, "cluster|nodes");
    let reply = client.must(&format!("STOCK.MDEDUCT {COUNT} {}", sold.join(" ")));
    assert_eq!(ints(&reply), [9; COUNT]);
    assert_eq!(client.must(&format!("EXISTS {streams}")), COUNT as i64);
    // The cron event asks, too, a few times in the meantime.
    let asked = calls(&server, "cluster|nodes") - before;
    assert!((1..COUNT as i64 / 8).contains(&asked), "{asked} times");
}

#[test]
fn a_stock_and_its_stream_in_one_slot_work_in_a_cluster() {
    let (_server, mut client) = one_node();
    client.must("STOCK.SET {sku}1 10 EVENTS {sku}s");
    client.must("STOCK.SET {sku}2 10 MAXLEN 5000 EVENTS {sku}s");
    client.must("SET {sku}3 7");
    client.must("STOCK.IMPORT {sku}3 EVENTS {sku}s");
    client.must("STOCK.MRESERVE 2 {sku}1 1 {sku}2 2 ORDER live PX 900000 USER u");
    client.must("STOCK.MRESERVE 2 {sku}1 1 {sku}2 2 ORDER o PX 100 USER u");
    client.must("STOCK.MCONFIRM 2 {sku}2 {sku}1 live");
    await_state(&mut client, "{sku}1", "o", "expired");
    await_state(&mut client, "{sku}2", "o", "expired");
    assert_eq!(counts(&mut client, "{sku}2"), [8, 0, 2]);
    assert_stream_tells_all(&mut client, "{sku}s", &["{sku}1", "{sku}2", "{sku}3"]);
    let script = "return redis.call('STOCK.MDEDUCT', 2, KEYS[1], 1, KEYS[2], 1)";
    let reply = client.call(["EVAL", script, "2", "{sku}1", "{sku}2"]);
    assert_eq!(ints(&reply), [8, 7]);
    let refused = "return redis.call('STOCK.MDEDUCT', 2, KEYS[1], 1, 'elsewhere', 1)";
    // With I/O threads, Redis 8.4 and later do not look for keys that a script names itself.
    if !reads_keys_in_threads(&mut client) {
        assert!(client.call(["EVAL", refused, "1", "{sku}1"]).is_err());
    }
    assert_eq!(client.transact(["STOCK.DEDUCT {sku}1 1"])[0], 7);
}

#[test]
fn keys_of_other_nodes_are_redirected_and_stocks_migrate() {
    let (one, other) = two_nodes(&node());
    // `bar` is of slot 5061, `foo` of slot 12182.
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let moved = format!("MOVED 12182 127.0.0.1:{}", other.port());
    for line in [
        "STOCK.SET foo 10",
        "STOCK.SET foo 10 EVENTS {foo}s",
        "STOCK.ADD foo 1",
        "STOCK.DEDUCT foo 1",
        "STOCK.RESERVE foo 1 ORDER o PX 5",
        "STOCK.CONFIRM foo o",
        "STOCK.CANCEL foo o",
        "STOCK.MDEDUCT 2 foo 1 {foo}1 1",
        "STOCK.MRESERVE 2 foo 1 {foo}1 1 ORDER o PX 5",
        "STOCK.MCONFIRM 2 foo {foo}1 o",
        "STOCK.MCANCEL 2 foo {foo}1 o",
        "STOCK.GET foo",
        "STOCK.MGET foo {foo}1",
        "STOCK.ORDER foo o",
        "STOCK.INFO foo",
        "STOCK.IMPORT foo",
    ] {
        assert_eq!(here.run(line).err(), moved, "{line}");
    }

    here.must("STOCK.SET bar 10 PERUSER 5 EVENTS {bar}s");
    here.must("STOCK.RESERVE bar 1 ORDER live PX 900000 USER u");
    here.must("STOCK.RESERVE bar 2 ORDER o PX 1500 USER u");
    let moving = Move::start(5061, &one, &other);
    moving.keys(&["bar", "{bar}s"]);
    moving.finish();
    assert!(here.run("STOCK.GET bar").err().starts_with("MOVED 5061 "));
    assert_eq!(there.must("STOCK.CONFIRM bar live"), 1);
    await_state(&mut there, "bar", "o", "expired");
    assert_eq!(counts(&mut there, "bar"), [9, 0, 1]);
    assert_stream_tells_all(&mut there, "{bar}s", &["bar"]);
}

const SPLIT: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// Sends the command of a line to a node that is about to get its slot.
#[track_caller]
fn asking(client: &mut Raw, line: &str) -> Value {
    client.must("ASKING");
    client.run(line)
}

/// While a stock is on one node and its event stream on the other, nothing can be told, so nothing changes: not by
/// commands, and not by itself. Otherwise there would soon be two streams of that name, which could never meet.
#[test]
fn a_stock_and_its_stream_are_never_told_apart() {
    const SLOT: i64 = 5061;
    let (one, other) = two_nodes(&node().clock(0));
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let (stock, stream) = ("{bar}k", "{bar}s");
    for first in [stock, stream] {
        let last = if first == stock { stream } else { stock };
        for line in [
            "STOCK.SET {bar}k 10 EVENTS {bar}s",
            "STOCK.SET {bar}quiet 10",
            "STOCK.RESERVE {bar}k 3 ORDER live PX 600000",
            "STOCK.DEDUCT {bar}k 1 ORDER sold",
            "STOCK.RESERVE {bar}k 2 ORDER ends PX 20000",
        ] {
            here.must(line);
        }
        let moving = Move::start(SLOT, &one, &other);
        moving.keys(&[first]);
        assert_eq!(counts_of_slot(&one, &other, SLOT), [2, 1]);

        // Whoever has the stock has not got the stream.
        let (with_stock, is_asked) = match first == stock {
            true => (&mut there, true),
            false => (&mut here, false),
        };
        let mut run = |line: &str| match is_asked {
            true => asking(with_stock, line),
            false => with_stock.run(line),
        };
        for line in [
            "STOCK.DEDUCT {bar}k 1",
            "STOCK.DEDUCT {bar}k 1 ORDER new",
            "STOCK.RESERVE {bar}k 1 ORDER new PX 600000",
            "STOCK.ADD {bar}k 5",
            "STOCK.CONFIRM {bar}k live",
            "STOCK.CANCEL {bar}k live",
            "STOCK.CANCEL {bar}k sold",
            "STOCK.MDEDUCT 1 {bar}k 1",
            "STOCK.MRESERVE 1 {bar}k 1 ORDER new PX 600000",
            "STOCK.MCONFIRM 1 {bar}k live",
            "STOCK.MCANCEL 1 {bar}k live",
            "STOCK.SET {bar}k 5 EVENTS {bar}s",
            "STOCK.MDEDUCT 2 {bar}k 1 {bar}quiet 1",
        ] {
            let reply = run(line);
            // The quiet stock is on the first node: for the server itself that makes a difference.
            let expected = reply == Value::Error(SPLIT.into());
            assert!(expected, "{first} first: {line}: {reply:?}");
        }
        let script = "return redis.call('STOCK.DEDUCT', KEYS[1], 1)";
        if is_asked {
            there.must("ASKING");
        }
        let client = if is_asked { &mut there } else { &mut here };
        let reply = client.call(["EVAL", script, "1", stock]);
        assert!(reply.err().contains("TRYAGAIN"), "{reply:?}");
        // What changes nothing or tells nobody goes on.
        let reply = match is_asked {
            true => asking(&mut there, "STOCK.GET {bar}k"),
            false => here.run("STOCK.GET {bar}k"),
        };
        assert_eq!(reply, 4);
        assert_eq!(here.must("STOCK.DEDUCT {bar}quiet 1"), 9);

        // The reservation is due now, and neither node creates a second stream. The clock step is shorter than
        // `cluster-node-timeout`, so no node is marked as failing.
        one.shift_clock(20_000);
        other.shift_clock(20_000);
        thread::sleep(Duration::from_millis(400));
        assert_eq!(counts_of_slot(&one, &other, SLOT), [2, 1]);

        moving.keys(&[last, "{bar}quiet"]);
        moving.finish();
        await_state(&mut there, stock, "ends", "expired");
        assert_eq!(counts(&mut there, stock), [6, 3, 1]);
        there.must("STOCK.CONFIRM {bar}k live");
        assert_stream_tells_all(&mut there, stream, &[stock]);
        let ends = told(&mut there, stream);
        let ends = ends.iter().filter(|entry| entry.starts_with("expire"));
        assert_eq!(ends.count(), 1);

        // A stream that is really gone begins anew.
        there.must("DEL {bar}s");
        there.must("STOCK.DEDUCT {bar}k 1");
        assert_eq!(told(&mut there, stream).len(), 1);
        there.must("DEL {bar}k {bar}s {bar}quiet");
        let back = Move::start(SLOT, &other, &one);
        back.finish();
    }
}

/// How many keys of a slot the two nodes have.
fn counts_of_slot(one: &Server, other: &Server, slot: i64) -> [i64; 2] {
    [one, other].map(|node| ask(node, &format!("CLUSTER COUNTKEYSINSLOT {slot}")).int())
}

/// Of two stocks with one stream, one has followed it already.
#[test]
fn stocks_with_one_stream_follow_it_one_by_one() {
    let (one, other) = two_nodes(&node().clock(0));
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    for line in [
        "STOCK.SET {bar}1 10 EVENTS {bar}s",
        "STOCK.SET {bar}2 10 EVENTS {bar}s",
        "STOCK.RESERVE {bar}1 1 ORDER o PX 20000",
        "STOCK.RESERVE {bar}2 2 ORDER o PX 20000",
    ] {
        here.must(line);
    }
    let moving = Move::start(5061, &one, &other);
    moving.keys(&["{bar}s"]);
    moving.keys(&["{bar}1"]);
    assert_eq!(asking(&mut there, "STOCK.DEDUCT {bar}1 1 ORDER d"), 8);
    assert_eq!(here.run("STOCK.DEDUCT {bar}2 1 ORDER d").err(), SPLIT);
    // The clock step is shorter than `cluster-node-timeout`, so no node is marked as failing.
    one.shift_clock(20_000);
    other.shift_clock(20_000);
    thread::sleep(Duration::from_millis(300));
    moving.keys(&["{bar}2"]);
    moving.finish();
    for key in ["{bar}1", "{bar}2"] {
        await_state(&mut there, key, "o", "expired");
    }
    assert_eq!(there.must("STOCK.DEDUCT {bar}2 1 ORDER d"), 9);
    assert_eq!(counts(&mut there, "{bar}1"), [9, 0, 1]);
    assert_eq!(counts(&mut there, "{bar}2"), [9, 0, 1]);
    assert_stream_tells_all(&mut there, "{bar}s", &["{bar}1", "{bar}2"]);
}

// Keys

/// Panics unless the server knows exactly these keys of a command, and what it does with them.
#[track_caller]
fn assert_keys(client: &mut Raw, line: &str, expected: &str, access: &str) {
    assert_eq!(keys(client, line), expected, "{line}");
    let with_flags = client.run(&format!("COMMAND GETKEYSANDFLAGS {line}"));
    let with_flags = with_flags.array();
    assert_eq!(with_flags.len(), expected.split(' ').count(), "{line}");
    for key in with_flags {
        let flags: Vec<_> = key.array()[1].array().iter().map(Value::text).collect();
        assert!(flags.contains(&access), "{line}: {flags:?}");
    }
}

#[test]
fn the_keys_of_commands_with_quantities_are_found() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("STOCK.MDEDUCT 1 a 1", "a"),
        ("STOCK.MDEDUCT 2 a 1 b 2", "a b"),
        ("STOCK.MDEDUCT 3 a 1 b 2 c 3 ORDER o USER u", "a b c"),
        ("STOCK.MRESERVE 2 a 1 b 2 ORDER o PX 5", "a b"),
    ] {
        assert_keys(&mut client, line, expected, "RW");
    }
}

#[test]
fn the_keys_of_every_command_are_found() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("STOCK.SET k 5", "k"),
        ("STOCK.SET k 5 NX PERUSER 3 RETAIN 5", "k"),
        ("STOCK.SET k 5 EVENTS s", "k s"),
        ("STOCK.SET k 5 XX RETAIN 5 events s MAXLEN 9", "k s"),
        ("STOCK.SET k 5 MAXLEN 9 PERUSER 1 EVENTS s", "k s"),
        ("STOCK.SET k 5 EVENTS EVENTS", "k EVENTS"),
        ("STOCK.SET EVENTS 5", "EVENTS"),
        ("STOCK.SET EVENTS 5 EVENTS s", "EVENTS s"),
        ("STOCK.IMPORT k", "k"),
        ("STOCK.IMPORT k PERUSER 3", "k"),
        ("STOCK.IMPORT k EVENTS s", "k s"),
        ("STOCK.IMPORT EVENTS EVENTS s", "EVENTS s"),
        ("STOCK.IMPORT k RETAIN 5 Events s MAXLEN 5", "k s"),
        ("STOCK.ADD k 5 ORDER o", "k"),
        ("STOCK.DEDUCT k 5 ORDER EVENTS USER u", "k"),
        ("STOCK.RESERVE k 5 ORDER o PX 5 USER u", "k"),
        ("STOCK.CONFIRM k o", "k"),
        ("STOCK.CANCEL k o", "k"),
        ("STOCK.MCONFIRM 3 a b c o", "a b c"),
        ("STOCK.MCANCEL 1 a o", "a"),
        ("STOCK.GET k", "k"),
        ("STOCK.MGET a b c", "a b c"),
        ("STOCK.ORDER k o", "k"),
        ("STOCK.INFO k", "k"),
    ] {
        let reads = ["GET", "MGET", "ORDER", "INFO"].map(|name| format!("STOCK.{name} "));
        let access = match reads.iter().any(|name| line.starts_with(name)) {
            true => "RO",
            false => "RW",
        };
        assert_keys(&mut client, line, expected, access);
    }
    // Keys that are not there, and are too many.
    for line in [
        "STOCK.MDEDUCT 0 a 1",
        "STOCK.MDEDUCT x a 1",
        "STOCK.MDEDUCT -1 a 1",
        "STOCK.MCONFIRM 9 a o",
        "STOCK.MCANCEL 9223372036854775807 a o",
    ] {
        let reply = client.run(&format!("COMMAND GETKEYS {line}"));
        assert!(reply.is_err(), "{line}: {reply:?}");
    }
}

// Access rules

/// A user, and a connection that has logged in as it.
fn user(server: &Server, rules: &str) -> Raw {
    let mut admin = Raw::connect(server);
    let name = "user";
    admin.must(&format!("ACL SETUSER {name} reset on nopass {rules}"));
    let mut client = Raw::connect(server);
    client.must(&format!("AUTH {name} any"));
    client
}

#[track_caller]
fn refused(client: &mut Raw, lines: &[&str]) {
    for line in lines {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM"), "{line}: {reply:?}");
    }
}

#[test]
fn users_are_kept_to_their_stocks() {
    let (server, mut admin) = server_and_client();
    admin.must("STOCK.SET other 10");
    let mut client = user(&server, "~own:* +@all");
    client.must("STOCK.SET own:1 10");
    refused(
        &mut client,
        &[
            "STOCK.SET other 5",
            "STOCK.ADD other 1",
            "STOCK.DEDUCT other 1",
            "STOCK.RESERVE other 1 ORDER o PX 5",
            "STOCK.CONFIRM other o",
            "STOCK.CANCEL other o",
            "STOCK.GET other",
            "STOCK.ORDER other o",
            "STOCK.INFO other",
            "STOCK.IMPORT other",
        ],
    );
    assert_eq!(
        client.must("STOCK.DEDUCT own:1 1 ORDER other USER other"),
        9
    );
    assert_eq!(counts(&mut admin, "other"), [10, 0, 0]);
}

#[test]
fn users_are_kept_to_their_stocks_by_commands_on_several_keys() {
    let (server, mut admin) = server_and_client();
    for key in ["own:1", "own:2", "other"] {
        admin.must(&format!("STOCK.SET {key} 10"));
    }
    let mut client = user(&server, "~own:* +@all");
    refused(
        &mut client,
        &[
            "STOCK.MGET own:1 other",
            "STOCK.MCONFIRM 2 own:1 other o",
            "STOCK.MCANCEL 3 own:1 own:2 other o",
            "STOCK.MCANCEL 2 other own:1 o",
        ],
    );
    refused(
        &mut client,
        &[
            "STOCK.MDEDUCT 1 other 1",
            "STOCK.MDEDUCT 2 other 1 own:1 1",
            "STOCK.MDEDUCT 2 own:1 1 other 1",
            "STOCK.MDEDUCT 3 own:1 1 own:2 1 other 1 ORDER o",
            "STOCK.MRESERVE 2 own:1 1 other 1 ORDER o PX 5",
        ],
    );
    // A quantity or an order's id is no key.
    let reply = client.must("STOCK.MDEDUCT 2 own:1 1 own:2 1 ORDER other USER other");
    assert_eq!(ints(&reply), [9, 9]);
    let reply = client.must("STOCK.MCANCEL 2 own:1 own:2 other");
    assert_eq!(ints(&reply), [1, 1]);
    assert_eq!(counts(&mut admin, "other"), [10, 0, 0]);
}

#[test]
fn whoever_names_a_stream_must_be_allowed_to_write_it() {
    let (server, mut admin) = server_and_client();
    admin.must("SET own:counter 5");
    let lines = [
        "STOCK.SET own:1 10 EVENTS events",
        "STOCK.SET own:1 10 NX MAXLEN 5 EVENTS events",
        "STOCK.SET own:1 10 events events PERUSER 3",
        "STOCK.IMPORT own:counter EVENTS events",
        "STOCK.IMPORT own:counter RETAIN 5 EVENTS events MAXLEN 5",
    ];
    for rules in ["~own:* +@all", "~own:* %R~events +@all"] {
        let mut client = user(&server, rules);
        refused(&mut client, &lines);
        assert_eq!(admin.run("EXISTS own:1 events"), 0, "{rules}");
        client.must("STOCK.SET own:1 10 EVENTS own:events");
        client.must("STOCK.SET own:1 10");
        client.must("DEL own:1 own:events");
    }
    let mut client = user(&server, "~own:* ~events +@all");
    client.must(lines[0]);
    client.must(lines[3]);
    assert_eq!(told(&mut admin, "events").len(), 2);
}

/// Nothing of the stream is shown to whoever names it: as for `XADD`, reading it is another permission.
#[test]
fn whoever_names_a_stream_need_not_be_allowed_to_read_it() {
    let (server, mut admin) = server_and_client();
    admin.must("SET own:counter 5");
    let mut client = user(&server, "~own:* %W~events +@all");
    client.must("XADD events * a b");
    refused(&mut client, &["XRANGE events - +"]);
    admin.must("DEL events");
    client.must("STOCK.SET own:1 10 EVENTS events");
    client.must("STOCK.IMPORT own:counter EVENTS events");
    assert_eq!(told(&mut admin, "events").len(), 2);
}

/// The permission is asked for when the stream is named. Selling from the stock is telling it.
#[test]
fn whoever_may_sell_need_not_be_allowed_to_write_the_stream() {
    let (server, mut admin) = server_and_client();
    for key in ["stock:1", "stock:2"] {
        admin.must(&format!("STOCK.SET {key} 10 EVENTS events"));
    }
    let mut client = user(&server, "~stock:* +@all");
    refused(
        &mut client,
        &["XADD events * a b", "XLEN events", "DEL events"],
    );
    for (line, expected) in [
        ("STOCK.DEDUCT stock:1 1 ORDER d USER u", 9),
        ("STOCK.RESERVE stock:1 1 ORDER r PX 900000", 8),
        ("STOCK.CONFIRM stock:1 r", 1),
        ("STOCK.CANCEL stock:1 d", 1),
        ("STOCK.ADD stock:1 1", 10),
        ("STOCK.CANCEL stock:1 unknown", UNKNOWN),
    ] {
        assert_eq!(client.must(line), expected, "{line}");
    }
    assert_eq!(
        ints(&client.must("STOCK.MDEDUCT 2 stock:1 1 stock:2 1")),
        [9, 9]
    );
    client.must("STOCK.RESERVE stock:2 1 ORDER o PX 50");
    await_state(&mut client, "stock:2", "o", "expired");
    let script = "return redis.call('STOCK.DEDUCT', KEYS[1], 1)";
    assert_eq!(client.call(["EVAL", script, "1", "stock:2"]), 8);
    assert_stream_tells_all(&mut admin, "events", &["stock:1", "stock:2"]);
}

#[test]
fn reading_and_writing_are_two_permissions() {
    let (server, mut admin) = server_and_client();
    admin.must("STOCK.SET k 10");
    admin.must("STOCK.RESERVE k 1 ORDER o PX 900000");
    let mut reader = user(&server, "%R~k +@all");
    for line in [
        "STOCK.GET k",
        "STOCK.MGET k",
        "STOCK.ORDER k o",
        "STOCK.INFO k",
    ] {
        reader.must(line);
    }
    let writes = [
        "STOCK.SET k 5",
        "STOCK.ADD k 1",
        "STOCK.DEDUCT k 1",
        "STOCK.RESERVE k 1 ORDER p PX 5",
        "STOCK.CONFIRM k o",
        "STOCK.CANCEL k o",
        "STOCK.MDEDUCT 1 k 1",
        "STOCK.MRESERVE 1 k 1 ORDER p PX 5",
        "STOCK.MCONFIRM 1 k o",
        "STOCK.MCANCEL 1 k o",
        "STOCK.IMPORT k",
    ];
    refused(&mut reader, &writes);
    // Changes tell what is available: whoever may only write must not learn it.
    let mut writer = user(&server, "%W~k +@all");
    refused(&mut writer, &writes);
    refused(&mut writer, &["STOCK.GET k", "STOCK.INFO k"]);
    assert_eq!(counts(&mut admin, "k"), [9, 1, 0]);
}

#[test]
fn commands_are_permitted_by_name_and_category() {
    let (server, mut admin) = server_and_client();
    admin.must("STOCK.SET k 10");
    let mut shop = user(&server, "~* -@all +stock.deduct +stock.get");
    assert_eq!(shop.must("STOCK.DEDUCT k 1"), 9);
    assert_eq!(shop.must("STOCK.GET k"), 9);
    refused(
        &mut shop,
        &["STOCK.SET k 5", "STOCK.ADD k 1", "STOCK.MDEDUCT 1 k 1"],
    );

    // The categories are set where the server lets modules set them.
    let listed = |client: &mut Raw, category: &str| {
        let list = client.must(&format!("ACL CAT {category}"));
        let names = list.array().to_vec();
        move |name: &str| names.iter().any(|item| *item == name)
    };
    if !listed(&mut admin, "write")("stock.set") {
        return; // a server before 7.2
    }
    let (read, write) = (listed(&mut admin, "read"), listed(&mut admin, "write"));
    let dangerous = listed(&mut admin, "dangerous");
    for name in ["stock.get", "stock.mget", "stock.order", "stock.info"] {
        assert!(read(name) && !write(name), "{name}");
    }
    for name in [
        "set", "add", "deduct", "reserve", "confirm", "cancel", "import",
    ] {
        let name = format!("stock.{name}");
        assert!(write(&name) && !read(&name) && !dangerous(&name), "{name}");
    }
    assert!(dangerous("stock.apply"));
}

/// What replicas and files are told makes of a key whatever it says: whoever may not do that by `RESTORE` may not do it so.
#[test]
fn the_internal_command_needs_the_permission_to_restore() {
    let (server, mut admin) = server_and_client();
    admin.must("STOCK.SET own 10");
    admin.must("STOCK.SET other 10");
    let digest = server.digest();
    // A new stock of 5.
    let new: &[u8] = b"S\0\x05\0\0\x01\0\x01\0";
    let apply = |client: &mut Raw, key: &str| client.call([b"STOCK.APPLY", key.as_bytes(), new]);
    for rules in ["~own +@all -restore", "~own -@all +stock.apply"] {
        let mut client = user(&server, rules);
        for key in ["own", "other"] {
            let reply = apply(&mut client, key);
            assert!(
                reply.err().starts_with("NOPERM"),
                "{rules} {key}: {reply:?}"
            );
        }
    }
    let mut client = user(&server, "~own +@all");
    assert!(apply(&mut client, "other").err().starts_with("NOPERM"));
    assert_eq!(server.digest(), digest);
    assert_eq!(apply(&mut client, "own"), "OK");
    assert_eq!(counts(&mut admin, "own"), [5, 0, 0]);
}

/// In a cluster a stream of another slot would be written where nobody finds it.
#[test]
fn a_stock_that_was_restored_to_another_slot_than_its_stream_changes_no_more() {
    let (_server, mut client) = one_node();
    client.must("STOCK.SET {a}k 10 EVENTS {a}s");
    let dump = client.call(["DUMP", "{a}k"]);
    let restored = client.call([b"RESTORE".as_slice(), b"{b}k", b"0", dump.bytes()]);
    assert_eq!(restored, "OK");
    let crossing = "CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(client.run("STOCK.DEDUCT {b}k 1").err(), crossing);
    assert_eq!(
        client.run("STOCK.RESERVE {b}k 1 ORDER o PX 50").err(),
        crossing
    );
    assert_eq!(counts(&mut client, "{b}k"), [10, 0, 0]);
    assert_eq!(client.run("STOCK.DEDUCT {a}k 1").int(), 9);
    assert_eq!(told(&mut client, "{a}s").len(), 2);
    client.must("STOCK.SET {b}k 10 EVENTS {b}s");
    assert_eq!(client.run("STOCK.DEDUCT {b}k 1").int(), 9);
}
