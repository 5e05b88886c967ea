//! `SLUICE.HOT`: the keys with the most waits, refusals and bytes.

use super::support::{Lines, Raw, SOON, Server, Value, eventually, server_and_client, waiter};
use std::collections::BTreeMap;

/// The rows of a reply: family, measure, database, key, count.
#[track_caller]
fn rows(reply: &Value) -> Vec<(String, String, i64, String, i64)> {
    let row = |row: &Value| {
        let text = |name: &str| row.field(name).text().to_owned();
        let number = |name: &str| row.field(name).int();
        assert!(number("error") <= number("count"), "{row:?}");
        (
            text("family"),
            text("by"),
            number("db"),
            text("key"),
            number("count"),
        )
    };
    reply.array().iter().map(row).collect()
}

/// The rows in a short form, without the database.
#[track_caller]
fn shown(client: &mut Raw, line: &str) -> Vec<String> {
    let rows = rows(&client.must(line));
    let shown = rows
        .into_iter()
        .map(|(family, by, _, key, count)| format!("{family} {by} {key} {count}"));
    shown.collect()
}

#[test]
fn refusals_and_waits_are_counted_by_key() {
    let (server, mut client) = server_and_client();
    assert_eq!(shown(&mut client, "SLUICE.HOT"), [""; 0]);
    for (key, refusals) in [("a", 3), ("b", 5), ("free", 0)] {
        client.run(&format!("LOCK.ACQUIRE {key} me PX 600000"));
        for _ in 0..refusals {
            assert!(client.run(&format!("LOCK.ACQUIRE {key} you")).is_nil());
        }
    }
    let _one = waiter(&server, "LOCK.ACQUIRE a you BLOCK 0");
    let _two = waiter(&server, "LOCK.ACQUIRE a other BLOCK 0");
    let all = ["lock waits a 2", "lock refusals b 5", "lock refusals a 3"];
    assert_eq!(shown(&mut client, "SLUICE.HOT"), all);
    assert_eq!(shown(&mut client, "sluice.hot LOCK count 64"), all);
    assert_eq!(shown(&mut client, "SLUICE.HOT lock COUNT 1"), all[..2]);
    assert_eq!(shown(&mut client, "SLUICE.HOT stock"), [""; 0]);

    let mut resp3 = Raw::connect(&server);
    resp3.hello3();
    assert_eq!(rows(&resp3.run("SLUICE.HOT")).len(), 3);

    client.must("SLUICE.HOT stock RESET");
    assert_eq!(shown(&mut client, "SLUICE.HOT"), all);
    assert_eq!(client.must("SLUICE.HOT lock RESET"), "OK");
    assert_eq!(shown(&mut client, "SLUICE.HOT"), [""; 0]);
    client.run("LOCK.ACQUIRE b you");
    assert_eq!(shown(&mut client, "SLUICE.HOT"), ["lock refusals b 1"]);
    client.must("SLUICE.HOT RESET");
    assert_eq!(shown(&mut client, "SLUICE.HOT"), [""; 0]);
}

#[test]
fn each_family_counts_its_refusals() {
    let (_server, mut client) = server_and_client();
    client.must("STOCK.SET s 0");
    client.must("STOCK.DEDUCT s 1");
    client.must("STOCK.SET l 9 PERUSER 1");
    client.must("STOCK.DEDUCT l 2 USER u");
    client.must("STOCK.MDEDUCT 2 s 1 l 1 USER u");
    client.must("BF.RESERVE f 0.01 1 NONSCALING");
    for item in 0..3000 {
        client.run(&format!("BF.ADD f {item}"));
    }
    client.must("CACHE.FETCH c LEASE 600000");
    client.must("CACHE.FETCH c LEASE 600000");
    client.must("RATE.GCRA r 0 1 600000");
    client.must("RATE.GCRA r 0 1 600000");
    client.must("RATE.MGCRA 2 new 0 1 600000 r 0 1 600000");
    client.must("RATE.GCRA r 0 1 600000 PEEK");
    client.must("ONCE.BEGIN o LEASE 600000");
    client.must("ONCE.BEGIN o LEASE 600000");
    let mut shown = shown(&mut client, "SLUICE.HOT");
    let filter = shown
        .iter()
        .position(|row| row.starts_with("bloom refusals f "));
    shown.remove(filter.expect("a full filter"));
    let wanted = [
        "stock refusals s 2",
        "stock refusals l 1",
        "cache refusals c 1",
        "rate refusals r 2",
        "once refusals o 1",
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn large_values_are_counted_by_their_bytes() {
    let (_server, mut client) = server_and_client();
    let (large, small) = ("v".repeat(16 * 1024), "v".repeat(16 * 1024 - 1));
    client.must("CACHE.SET small v PX 600000");
    for (key, value) in [
        ("k", &large),
        ("k", &large),
        ("small", &small),
        ("l", &large),
    ] {
        client.call(["CACHE.SET", key, value, "PX", "600000"]);
    }
    let token = client.must("ONCE.BEGIN o LEASE 600000").array()[2]
        .int()
        .to_string();
    client.call(["ONCE.DONE", "o", &token, &large, "PX", "600000"]);
    let wanted = [
        "cache bytes k 32768",
        "cache bytes l 16384",
        "once bytes o 16384",
    ];
    assert_eq!(shown(&mut client, "SLUICE.HOT"), wanted);
}

#[test]
fn the_sum_of_many_refusals_is_exact_and_the_hottest_key_is_first() {
    let (_server, mut client) = server_and_client();
    let mut exact: BTreeMap<String, i64> = BTreeMap::new();
    let mut lines = Vec::new();
    for round in 0..10_000_i64 {
        let key = format!("k{}", (round * round) % 200 % (1 + round % 100));
        lines.push(["LOCK.ACQUIRE".to_owned(), key.clone(), "you".to_owned()]);
        *exact.entry(key).or_default() += 1;
    }
    for key in exact.keys() {
        client.call(["LOCK.ACQUIRE", key, "me", "PX", "600000"]);
    }
    for some in lines.chunks(1000) {
        client.pipeline(some);
    }
    let rows = rows(&client.must("SLUICE.HOT lock COUNT 64"));
    let sum: i64 = rows.iter().map(|(.., count)| count).sum();
    assert!((10_000 - 127..=10_000).contains(&sum), "{sum}");
    let hottest = exact
        .iter()
        .max_by_key(|(_, count)| **count)
        .expect("a key");
    assert_eq!(rows[0].3, *hottest.0, "{rows:?}");
}

#[test]
fn flushed_names_are_forgotten_and_swapped_databases_are_swapped() {
    let (_server, mut client) = server_and_client();
    for db in 0..3 {
        client.must(&format!("SELECT {db}"));
        client.run("LOCK.ACQUIRE k me PX 600000");
        client.run("LOCK.ACQUIRE k you");
    }
    let dbs = |client: &mut Raw| -> Vec<i64> {
        let rows = rows(&client.must("SLUICE.HOT"));
        let mut dbs: Vec<i64> = rows.iter().map(|row| row.2).collect();
        dbs.sort_unstable();
        dbs
    };
    assert_eq!(dbs(&mut client), [0, 1, 2]);
    client.must("FLUSHDB"); // 2
    assert_eq!(dbs(&mut client), [0, 1]);
    client.must("SWAPDB 0 5");
    assert_eq!(dbs(&mut client), [1, 5]);
    client.must("FLUSHALL");
    assert_eq!(dbs(&mut client), [0; 0]);
}

#[test]
fn a_user_sees_only_keys_that_the_user_may_read() {
    let (server, mut client) = server_and_client();
    for key in ["app:1", "app:2", "secret"] {
        client.run(&format!("LOCK.ACQUIRE {key} me PX 600000"));
        client.run(&format!("LOCK.ACQUIRE {key} you"));
    }
    client.must("ACL SETUSER app on nopass ~app:* %W~secret resetchannels +sluice.hot +eval");
    let mut app = Raw::connect(&server);
    app.must("AUTH app any");
    let seen = ["lock refusals app:1 1", "lock refusals app:2 1"];
    assert_eq!(shown(&mut app, "SLUICE.HOT"), seen);
    assert_eq!(shown(&mut app, "SLUICE.HOT COUNT 2"), seen);
    // A script has the permissions of its caller.
    let script = app.call(["EVAL", "return redis.call('SLUICE.HOT')", "0"]);
    assert_eq!(rows(&script).len(), 2);
    assert_eq!(shown(&mut client, "SLUICE.HOT").len(), 3);

    client.must("ACL SETUSER app -sluice.hot");
    assert!(app.run("SLUICE.HOT").err().starts_with("NOPERM"));
}

#[test]
fn wrong_arguments_are_refused() {
    let (_server, mut client) = server_and_client();
    for (line, error) in [
        ("SLUICE.HOT locks", "ERR unknown family"),
        (
            "SLUICE.HOT lock COUNT 0",
            "ERR COUNT must be between 1 and 64",
        ),
        ("SLUICE.HOT COUNT 65", "ERR COUNT must be between 1 and 64"),
        (
            "SLUICE.HOT COUNT x",
            "ERR value is not an integer or out of range",
        ),
        ("SLUICE.HOT COUNT", "ERR syntax error"),
        ("SLUICE.HOT lock stock", "ERR syntax error"),
        ("SLUICE.HOT lock RESET COUNT 1", "ERR syntax error"),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
    let server = Server::builder().module_args(&["families", "lock"]).start();
    let mut client = Raw::connect(&server);
    assert_eq!(client.run("SLUICE.HOT stock").err(), "ERR unknown family");
    assert!(rows(&client.must("SLUICE.HOT")).is_empty());
}

#[test]
fn the_counts_are_those_of_this_server_and_of_this_run() {
    let (server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE k me PX 600000");
    client.run("LOCK.ACQUIRE k you");
    client.run("LOCK.RELEASE k me");
    assert_eq!(shown(&mut client, "SLUICE.HOT"), ["lock refusals k 1"]);
    let replica = Server::start();
    super::support::follow(&server, &replica);
    eventually(SOON, || replica.command(["DBSIZE"]) == 0);
    assert!(rows(&replica.command(["SLUICE.HOT"])).is_empty());
}
