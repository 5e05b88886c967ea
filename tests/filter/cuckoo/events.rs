//! Transactions, scripts, `WATCH`, keyspace events and counters, and that nobody hears of what changes nothing.

use super::{MISSING, count_added, counts};
use crate::support::filter::{CAPACITY_RANGE, ITEM_EXISTS, Kind, dump, load_chunk, shown};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, Raw, Server, Value, Written, assert_identical, field_of, follow,
    server_and_client,
};

#[test]
fn commands_work_in_transactions_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "CF.RESERVE k 100",
        "CF.ADD k a",
        "CF.ADDNX k a",
        "CF.INSERT k ITEMS b b",
        "CF.INSERTNX k ITEMS b c",
        "CF.COUNT k b",
        "CF.DEL k b",
        "CF.MEXISTS k a b z",
        "CF.COMPACT k",
        "CF.RESERVE k 100",
    ]);
    let expected = [
        "+OK",
        "1",
        "0",
        "[1, 1]",
        "[0, 1]",
        "2",
        "1",
        "[1, 1, 0]",
        "+OK",
    ];
    assert_eq!(shown(&Value::Array(replies[..9].to_vec())), expected);
    assert_eq!(replies[9].err(), ITEM_EXISTS);
    let script = "
        redis.call('CF.ADD', KEYS[1], 'a')
        redis.call('CF.ADD', KEYS[1], 'a')
        local many = redis.call('CF.INSERTNX', KEYS[1], 'ITEMS', 'a', 'b')
        local sum = many[1] * 1000 + many[2] * 100
        sum = sum + redis.call('CF.COUNT', KEYS[1], 'a') * 10
        return sum + redis.call('CF.DEL', KEYS[1], 'a')";
    assert_eq!(client.call(["EVAL", script, "1", "l"]), 121);
    let script = "redis.setresp(3)
        return {tostring(redis.call('CF.ADD', KEYS[1], 'x')), tostring(redis.call('CF.DEL', KEYS[1], 'none')),
            redis.call('CF.COUNT', KEYS[1], 'x')}";
    let reply = client.call(["EVAL", script, "1", "l"]);
    assert_eq!(shown(&reply), ["\"true\"", "\"false\"", "1"]);
    for (call, error) in [
        ("'CF.RESERVE', 'k', '5'", ITEM_EXISTS),
        ("'CF.DEL', 'none', 'a'", MISSING),
        ("'CF.INSERT', 'none', 'NOCREATE', 'ITEMS', 'a'", MISSING),
        ("'CF.RESERVE', 'new', '0'", CAPACITY_RANGE),
    ] {
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(client.call(["EVAL", &script, "0"]), error, "{call}");
    }
    let library = "#!lua name=cuckoo
        redis.register_function('once', function(keys, args)
            return redis.call('CF.ADDNX', keys[1], args[1]) end)";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(client.run("FCALL once 1 k f"), 1);
    assert_eq!(client.run("FCALL once 1 k f"), 0);
}

/// Every command that changes a filter, and one like it that changes nothing.
const CHANGES: [(&str, &str, &str); 9] = [
    ("cf.reserve", "CF.RESERVE new 100", "CF.RESERVE k 100"),
    ("cf.add", "CF.ADD k a", "CF.ADD full new"),
    ("cf.addnx", "CF.ADDNX k c", "CF.ADDNX k a"),
    ("cf.addnx", "CF.ADDNX made a", "CF.ADDNX made a"),
    (
        "cf.insert",
        "CF.INSERT k ITEMS a d",
        "CF.INSERT full ITEMS new newer",
    ),
    (
        "cf.insertnx",
        "CF.INSERTNX k ITEMS a e",
        "CF.INSERTNX k ITEMS a b",
    ),
    (
        "cf.insert",
        "CF.INSERT fresh ITEMS a",
        "CF.INSERT none NOCREATE ITEMS a",
    ),
    ("cf.del", "CF.DEL k a", "CF.DEL k nobody"),
    ("cf.compact", "CF.COMPACT sparse", "CF.COMPACT k"),
];

fn prepare_changes(client: &mut Raw) {
    client.must("CF.RESERVE k 100 BITS 32");
    client.must("CF.INSERT k ITEMS a b");
    client.must("CF.RESERVE full 1 EXPANSION 0 BITS 32");
    // As often as it can be, in both its buckets, so that they are full of it; and then all the others.
    count_added(client, "full", 0..1000);
    client.must("CF.RESERVE sparse 1 BUCKETSIZE 1 BITS 32");
    assert_eq!(count_added(client, "sparse", 0..30), 30);
    for item in 0..29u64 {
        client.call([b"CF.DEL".as_slice(), b"sparse", &item.to_le_bytes()]);
    }
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
    for line in [
        "CF.EXISTS k a",
        "CF.MEXISTS k a z",
        "CF.COUNT k a",
        "CF.INFO k",
        "CF.SCANDUMP k 0",
    ] {
        client.must(line);
        assert_eq!(events.take(), [""; 0], "{line}");
    }
    for (iterator, data) in dump(&mut client, Kind::Cuckoo, "k") {
        load_chunk(&mut client, Kind::Cuckoo, "loaded", iterator, &data);
        assert_eq!(events.take(), ["cf.loadchunk loaded"]);
        load_chunk(&mut client, Kind::Cuckoo, "loaded", iterator, b"nonsense");
        assert_eq!(events.take(), [""; 0]);
    }
}

#[test]
fn what_changes_nothing_is_not_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let replica = Server::start();
    follow(&server, &replica);
    prepare_changes(&mut client);
    client.must("CF.ADD made a");
    client.must("CONFIG SET repl-ping-replica-period 3600");
    let written = Written::by(&server);
    for (_, _, no_change) in CHANGES {
        client.run(no_change);
        assert_eq!(Written::by(&server), written, "{no_change}");
    }
    client.must("CF.DEL k a");
    assert_ne!(Written::by(&server), written);
    client.must("CF.COMPACT sparse");
    assert_identical(&server, &replica);
}

#[test]
fn info_counts_what_happens() {
    let (_server, mut client) = server_and_client();
    let counters = |client: &mut Raw| {
        let info = client.must("INFO sluice");
        let names = [
            "keys",
            "layers",
            "items_added",
            "lookups",
            "hits",
            "full",
            "refused_memory",
        ];
        names.map(|name| field_of(&info, &format!("sluice_filter_{name}")))
    };
    client.must("CF.RESERVE k 100 EXPANSION 0 BITS 32");
    client.must("CF.ADD k a");
    client.must("CF.ADD k a");
    client.must("CF.ADDNX k a");
    client.must("CF.INSERTNX k ITEMS a b");
    assert_eq!(counters(&mut client), [1, 1, 3, 0, 0, 0, 0]);
    client.must("CF.EXISTS k a");
    client.must("CF.MEXISTS k a b z");
    assert_eq!(counters(&mut client), [1, 1, 3, 4, 3, 0, 0]);
    client.must("DEL k");
    client.must("CF.RESERVE k 1 EXPANSION 1 BUCKETSIZE 1 BITS 32");
    assert_eq!(count_added(&mut client, "k", 0..30), 30);
    let layers = counts(&mut client, "k")[0];
    assert_eq!(counters(&mut client)[..3], [1, layers, 33]);
    for item in 0..30u64 {
        client.call([b"CF.DEL".as_slice(), b"k", &item.to_le_bytes()]);
    }
    client.must("CF.COMPACT k");
    assert_eq!(counters(&mut client)[..3], [1, 1, 33]);
}
