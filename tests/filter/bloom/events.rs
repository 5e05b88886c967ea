//! Transactions, scripts, `WATCH` and keyspace events, and that nobody hears of what changes nothing.

use super::{FULL, MISSING};
use crate::support::filter::{ITEM_EXISTS, Kind, RATE_RANGE, dump, load_chunk, shown};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, Raw, Server, Written, assert_identical, follow, ints,
    server_and_client,
};

#[test]
fn commands_work_in_transactions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "BF.RESERVE k 0.0001 2 NONSCALING",
        "BF.MADD k a b c",
        "BF.EXISTS k a",
        "BF.RESERVE l LIKE k",
        "BF.ADD l d",
        "BF.MERGE m 2 k l",
        "BF.CARD m",
        "BF.INFO m ITEMS",
        "BF.RESERVE m 0.1 1",
    ]);
    assert_eq!(replies[0], "OK");
    assert_eq!(shown(&replies[1]), ["1", "1", &format!("-{FULL}")]);
    assert_eq!(replies[2], 1);
    assert_eq!(replies[4], 1);
    assert_eq!(replies[5], "OK");
    assert_eq!(replies[6], 3);
    assert_eq!(ints(&replies[7]), [3]);
    assert_eq!(replies[8].err(), ITEM_EXISTS);
}

#[test]
fn commands_work_in_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let script = "
        local sum = redis.call('BF.ADD', KEYS[1], 'a') * 1000
        sum = sum + redis.call('BF.ADD', KEYS[1], 'a') * 100
        local many = redis.call('BF.MADD', KEYS[1], 'a', 'b', 'c')
        sum = sum + (many[1] + many[2] + many[3]) * 10
        return sum + redis.call('BF.EXISTS', KEYS[1], 'c')";
    assert_eq!(client.call(["EVAL", script, "1", "k"]), 1021);
    let script = "
        redis.setresp(3)
        local new = redis.call('BF.ADD', KEYS[1], 'x')
        local old = redis.call('BF.ADD', KEYS[1], 'x')
        local info = redis.call('BF.INFO', KEYS[1])['map']
        return {tostring(new), tostring(old), info['Number of items inserted']}";
    let reply = client.call(["EVAL", script, "1", "k"]);
    assert_eq!(shown(&reply), ["\"true\"", "\"false\"", "4"]);
    for (call, error) in [
        ("'BF.RESERVE', 'k', '0.1', '5'", ITEM_EXISTS),
        ("'BF.RESERVE', 'new', '2', '5'", RATE_RANGE),
        ("'BF.INSERT', 'new', 'NOCREATE', 'ITEMS', 'a'", MISSING),
    ] {
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(client.call(["EVAL", &script, "0"]), error, "{call}");
    }
    let library = "#!lua name=filters
        redis.register_function('seen', function(keys, args)
            return redis.call('BF.ADD', keys[1], args[1]) end)
        redis.register_function{function_name='known', flags={'no-writes'}, callback=function(keys, args)
            return redis.call('BF.EXISTS', keys[1], args[1]) end}";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(client.run("FCALL seen 1 k f"), 1);
    assert_eq!(client.run("FCALL seen 1 k f"), 0);
    assert_eq!(client.run("FCALL_RO known 1 k f"), 1);
    let writes = "return redis.call('BF.ADD', KEYS[1], 'z')";
    assert!(client.call(["EVAL_RO", writes, "1", "k"]).is_err());
}

/// Every command that changes a filter, and one like it that changes nothing. The filters `k` and `l` are alike.
const CHANGES: [(&str, &str, &str); 7] = [
    (
        "bf.reserve",
        "BF.RESERVE new 0.01 100",
        "BF.RESERVE k 0.01 100",
    ),
    ("bf.add", "BF.ADD k new", "BF.ADD k a"),
    ("bf.madd", "BF.MADD k a newer", "BF.MADD k a b a"),
    (
        "bf.insert",
        "BF.INSERT k ITEMS newest",
        "BF.INSERT k CAPACITY 5 ITEMS a b",
    ),
    (
        "bf.insert",
        "BF.INSERT fresh ITEMS a",
        "BF.INSERT none NOCREATE ITEMS a",
    ),
    ("bf.merge", "BF.MERGE k 1 l", "BF.MERGE k 1 none"),
    ("bf.add", "BF.ADD full a", "BF.ADD full b"),
];

fn prepare_changes(client: &mut Raw) {
    client.must("BF.RESERVE k 0.00001 5");
    client.must("BF.MADD k a b");
    client.must("BF.RESERVE l LIKE k");
    client.must("BF.MADD l c");
    client.must("BF.RESERVE full 0.0001 1 NONSCALING");
}

#[test]
fn watch_sees_changes_and_nothing_else() {
    let (server, mut client) = server_and_client();
    let mut other = Raw::connect(&server);
    prepare_changes(&mut client);
    for (_, change, no_change) in CHANGES {
        for (line, carried_out) in [(change, false), (no_change, true)] {
            let key = line.split(' ').nth(1).expect("a key");
            client.must(&format!("WATCH {key}"));
            other.run(line);
            client.must("MULTI");
            client.must("PING");
            assert_eq!(!client.must("EXEC").is_nil(), carried_out, "{line}");
        }
    }
}

#[test]
fn changes_are_keyspace_events_and_what_changes_nothing_is_none() {
    let (server, mut client) = server_and_client();
    prepare_changes(&mut client);
    let mut events = KeyspaceEvents::of(&server, "Ed");
    for (event, change, no_change) in CHANGES {
        let key = change.split(' ').nth(1).expect("a key");
        client.must(change);
        assert_eq!(events.take(), [format!("{event} {key}")], "{change}");
        client.run(no_change);
        assert_eq!(events.take(), [""; 0], "{no_change}");
    }
    // One event for a command, however much it does.
    client.must("BF.MADD made a b c d e f g h");
    assert_eq!(events.take(), ["bf.madd made"]);
    for line in [
        "BF.EXISTS k a",
        "BF.MEXISTS k a z",
        "BF.CARD k",
        "BF.INFO k",
        "BF.SCANDUMP k 0",
    ] {
        client.must(line);
        assert_eq!(events.take(), [""; 0], "{line}");
    }
    for (iterator, data) in dump(&mut client, Kind::Bloom, "k") {
        load_chunk(&mut client, Kind::Bloom, "loaded", iterator, &data);
        assert_eq!(events.take(), ["bf.loadchunk loaded"]);
        load_chunk(&mut client, Kind::Bloom, "loaded", iterator, b"nonsense");
        assert_eq!(events.take(), [""; 0]);
    }
}

#[test]
fn what_changes_nothing_is_not_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    // With a replica once, so that the server counts what it would send.
    let replica = Server::start();
    follow(&server, &replica);
    prepare_changes(&mut client);
    client.must("BF.ADD full a");
    client.must("CONFIG SET repl-ping-replica-period 3600");
    let written = Written::by(&server);
    for (_, _, no_change) in CHANGES {
        client.run(no_change);
        assert_eq!(Written::by(&server), written, "{no_change}");
    }
    client.must("BF.ADD k new");
    assert_ne!(Written::by(&server), written);
    assert_identical(&server, &replica);
}

#[test]
fn a_merge_that_changes_nothing_is_neither_told_nor_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    prepare_changes(&mut client);
    client.must("BF.RESERVE empty LIKE k");
    let mut events = KeyspaceEvents::of(&server, "Ed");
    let written = Written::by(&server);
    for line in [
        "BF.MERGE k 1 k",
        "BF.MERGE k 1 empty",
        "BF.MERGE k 2 k empty",
    ] {
        assert_eq!(client.run(line), "OK");
        assert_eq!(events.take(), [""; 0], "{line}");
        assert_eq!(Written::by(&server), written, "{line}");
    }
}
