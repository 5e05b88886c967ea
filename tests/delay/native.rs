//! The server's own commands work on queues, and messages are delivered wherever their queue is.

use crate::support::delay::{await_entries, number, waiting_ids};
use crate::support::{
    Lines, Raw, SEPARATE, SOON, Server, WRONGTYPE, eventually, server_and_client, settled_memory,
};

#[test]
fn whatever_removes_a_queue_removes_its_messages() {
    let (server, mut client) = server_and_client();
    for removal in [
        "DEL q",
        "UNLINK q",
        "PEXPIREAT q 1",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SET q string",
        "RENAME other q",
    ] {
        client.run("FLUSHALL");
        client.must("DELAY.SET other STREAM other-stream");
        client.transact([
            "DELAY.SET q STREAM s",
            "DELAY.ADD q a PX 30 VALUES f v",
            removal,
        ]);
        // A message that is due later.
        client.must("DELAY.SET clock STREAM t");
        client.must("DELAY.ADD clock a PX 60 VALUES f v");
        await_entries(&mut client, "t", 1);
        assert_eq!(client.run("EXISTS s"), 0, "{removal}");
        let reply = client.run("DELAY.ADD q b XX PX 5 VALUES f v");
        match removal {
            "SET q string" => assert_eq!(reply.err(), WRONGTYPE),
            "RENAME other q" => assert!(reply.is_nil()),
            _ => assert!(reply.is_err(), "{removal}"),
        }
    }
    client.must("FLUSHALL");
    eventually(SOON, || server.info_int("sluice_delay_queues") == 0);
    assert_eq!(server.info_int("sluice_delay_messages"), 0);
}

#[test]
fn messages_are_delivered_wherever_their_queue_has_moved() {
    let (_server, mut client) = server_and_client();
    for (queue, db, moves) in [
        ("renamed", 0, &["RENAME q renamed"][..]),
        ("renamed", 0, &["RENAME q other", "RENAME other renamed"]),
        ("q", 3, &["MOVE q 3"]),
        ("q", 4, &["SWAPDB 0 4"]),
        ("q", 5, &["COPY q q DB 5", "DEL q"]),
        ("copy", 0, &["COPY q copy", "DEL q"]),
        ("q", 6, &["MOVE q 6", "SWAPDB 6 7", "SWAPDB 7 6"]),
    ] {
        client.must("FLUSHALL");
        let mut lines = vec![
            "DELAY.SET q STREAM s",
            "DELAY.ADD q a PX 100 VALUES f 1",
            "DELAY.ADD q b PX 120 VALUES f 2",
        ];
        lines.extend(moves);
        client.transact(lines);
        client.must(&format!("SELECT {db}"));
        assert_eq!(
            await_entries(&mut client, "s", 2),
            ["f 1", "f 2"],
            "{moves:?}"
        );
        assert_eq!(number(&mut client, queue, "delivered"), 2);
        client.must("SELECT 0");
    }
}

#[test]
fn a_copy_delivers_its_own_messages() {
    let (_server, mut client) = server_and_client();
    client.transact([
        "DELAY.SET q STREAM s",
        "DELAY.ADD q a PX 50 VALUES f v",
        "COPY q r",
        "DELAY.SET r STREAM t",
        "DELAY.ADD r b PX 50 VALUES g w",
    ]);
    assert_eq!(await_entries(&mut client, "s", 1), ["f v"]);
    assert_eq!(await_entries(&mut client, "t", 2), ["f v", "g w"]);
}

#[test]
fn a_restored_queue_delivers_what_is_due() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET q STREAM s");
    client.run_all((0..300).map(|number| {
        let ms = 600_000 + number % 7;
        format!("DELAY.ADD q m{number} PX {ms} VALUES n {number}")
    }));
    let before = waiting_ids(&mut client, "q");
    let dump = client.must("DUMP q");
    client.must("DEL q");
    client.call([b"RESTORE".as_slice(), b"q", b"0", dump.bytes()]);
    let after = waiting_ids(&mut client, "q");
    assert_eq!(before, after);
    server.shift_clock(600_010);
    let delivered = await_entries(&mut client, "s", 300);
    let expected: Vec<_> = before.iter().map(|id| format!("n {}", &id[1..])).collect();
    assert_eq!(delivered, expected);
}

#[test]
fn a_queue_is_a_type_of_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 600000 VALUES f v");
    let kind = client.run("TYPE q").text().to_owned();
    let found = client.call(["SCAN", "0", "COUNT", "1000", "TYPE", &kind]);
    assert_eq!(found.array()[1].array().len(), 1);
    assert!(!client.must("OBJECT ENCODING q").text().is_empty());
    for line in ["GET q", "XADD q * f v", "STOCK.GET q", "LOCK.INFO q"] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    client.must("PEXPIRE q 600000");
    client.must("DELAY.ADD q b PX 0 VALUES f v");
    await_entries(&mut client, "s", 1);
    assert!(client.must("PTTL q").int() > 0);
    assert_eq!(client.run("PERSIST q"), 1);
    // A queue without messages stays.
    client.must("DELAY.CANCEL q a");
    assert_eq!(client.run("EXISTS q"), 1);
}

/// docs/delay.md: the overhead of messages above 110 bytes, and of more than ten fields.
#[test]
fn large_messages_take_at_most_what_the_documentation_says() {
    const COUNT: i64 = 500;
    let (_server, mut client) = server_and_client();
    let shapes = [1, 90, 118, 150, 260, 520, 1100, 2100, 4200].map(|bytes| (1, bytes));
    for (pairs, bytes) in
        shapes
            .into_iter()
            .chain([(10, 1), (20, 1), (60, 1), (100, 1), (30, 200), (12, 16_384)])
    {
        client.must("DELAY.SET q STREAM s");
        let value = "v".repeat(bytes);
        let values = vec![format!("f {value}"); pairs].join(" ");
        let adds = (0..COUNT).map(|n| format!("DELAY.ADD q m{n:07} PX 600000 VALUES {values}"));
        assert!(client.run_all(adds).iter().all(|reply| *reply == 1));
        let payload = number(&mut client, "q", "bytes");
        let usage = client.must("MEMORY USAGE q SAMPLES 0").int();
        let (overhead, payload) = ((usage - payload) / COUNT, payload / COUNT);
        let rounding = if payload > 110 { payload / 4 } else { 0 };
        let lengths = if pairs > 10 {
            pairs as i64 * [2, 3, 4][usize::from(bytes >= 128) + usize::from(bytes >= 16_384)]
        } else {
            0
        };
        let most = 100 + rounding + lengths;
        assert!(
            overhead <= most,
            "{pairs} pairs of {bytes}: {overhead}, at most {most}"
        );
        client.must("DEL q");
    }
}

/// As much as the allocator gave, within 10 %, and at most 100 bytes a message above the payload.
#[test]
fn memory_usage_is_true() {
    const COUNT: i64 = 20_000;
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET warm STREAM s");
    client.must("DELAY.ADD warm a PX 600000 VALUES f v");
    client.must("CONFIG SET maxmemory-clients 0");
    client.call(["SET", "separate", SEPARATE]);
    let add = |key: &str, n: i64| {
        format!(
            "DELAY.ADD {key} order:{n} PX {} VALUES order {n} kind reminder",
            600_000 + n % 977
        )
    };
    client.must("DELAY.SET q STREAM s");
    let before = settled_memory(&mut client);
    for batch in 0..COUNT / 1000 {
        client.run_all((0..1000).map(|n| add("q", batch * 1000 + n)));
    }
    let grown = settled_memory(&mut client) - before;
    let usage = client.must("MEMORY USAGE q").int();
    assert!(
        (usage - grown).abs() * 10 <= grown,
        "{usage} said, {grown} taken"
    );
    let payload = number(&mut client, "q", "bytes");
    assert!(usage - payload <= 100 * COUNT, "{usage} of {payload}");
}
