//! The delivery of messages: each once, in order, with exactly its fields and values, and never for long at a time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::delay::{await_entries, entries, number};
use crate::support::{Lines, Raw, SOON, Server, eventually, now_ms, quiet, server_and_client};

#[test]
fn messages_are_delivered_in_the_order_of_time_and_arrival() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    let at = now_ms(&mut client) + 300;
    let mut lines: Vec<_> = [
        ("d", 20),
        ("b", 10),
        ("a", 0),
        ("c", 10),
        ("x", 5),
        ("e", 20),
    ]
    .map(|(id, after)| {
        let due = at + after;
        format!("DELAY.ADD q {id} PXAT {due} VALUES id {id} n {after}")
    })
    .into();
    lines.extend(["DELAY.CANCEL q x".into(), "EXISTS s".into()]);
    assert_eq!(client.transact(&lines)[7], 0);
    let delivered = await_entries(&mut client, "s", 5);
    let expected = [
        "id a n 0",
        "id b n 10",
        "id c n 10",
        "id d n 20",
        "id e n 20",
    ];
    assert_eq!(delivered, expected);
    let replies = client.transact(["DELAY.INFO q", "XLEN s"]);
    assert_eq!(replies[0].field("delivered"), &5);
    assert_eq!(replies[0].field("messages"), &0);
    assert!(client.run("DELAY.GET q a").is_nil());
    // Ids of delivered messages are not remembered.
    assert_eq!(client.run("DELAY.ADD q a PX 60000 NX VALUES f v"), 1);
}

#[test]
fn overdue_messages_are_delivered_before_the_next_round_ends() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    for number in 0..100 {
        let line = match number % 2 {
            0 => format!("DELAY.ADD q a PX 0 VALUES n {number}"),
            _ => format!("DELAY.ADD q a PXAT {number} VALUES n {number}"),
        };
        // The next command on the connection comes in a later round.
        assert_eq!(client.must(&line), 1);
        assert_eq!(client.must("XLEN s"), number + 1);
    }
    assert_eq!(number(&mut client, "q", "messages"), 0);
}

#[test]
fn a_message_wakes_the_clients_that_read_the_stream() {
    let (server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    let mut worker = Raw::connect(&server);
    worker.must("XGROUP CREATE s g $ MKSTREAM");
    worker.ask("XREADGROUP GROUP g w BLOCK 0 STREAMS s >");
    client.must("DELAY.ADD q a PX 50 VALUES f v");
    let entry = worker.read();
    assert_eq!(entry.array()[0].array()[0].text(), "s");
}

/// A server that ticks once a second and has no other work wakes the reader in time, not with its next tick.
#[test]
fn a_reader_of_the_stream_does_not_wait_for_a_tick() {
    let server = Server::builder()
        .config("hz", "1")
        .config("dynamic-hz", "no")
        .start();
    let (mut client, mut reader) = (Raw::connect(&server), Raw::connect(&server));
    client.must("DELAY.SET q STREAM s");
    client.must("XGROUP CREATE s g $ MKSTREAM");
    // A tick is just over when the reader was woken by one, so the next tick is nearly a second away.
    let mut lags_ms = Vec::new();
    for _ in 0..5 {
        reader.ask("XREADGROUP GROUP g w BLOCK 0 STREAMS s >");
        client.must("DELAY.ADD q a PX 100 VALUES f v");
        let reply = reader.read();
        let read_at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let entry = reply.array()[0].array()[1].array()[0].array()[0].text();
        let appended_at: u128 = entry.split('-').next().expect("ms").parse().expect("ms");
        lags_ms.push(read_at.as_millis().saturating_sub(appended_at));
    }
    assert!(lags_ms[1..].iter().any(|lag| *lag < 400), "{lags_ms:?}");
}

#[test]
fn a_replaced_message_is_delivered_once_with_its_last_values() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    for number in 0..50 {
        client.must(&format!("DELAY.ADD q a PX 600000 VALUES n {number}"));
    }
    client.must("DELAY.ADD q a PX 30 XX VALUES n last");
    assert_eq!(await_entries(&mut client, "s", 1), ["n last"]);
    assert_eq!(number(&mut client, "q", "delivered"), 1);
}

#[test]
fn a_stream_of_another_type_makes_messages_wait_and_they_are_tried_again() {
    let (server, mut client) = server_and_client();
    client.must("SET s string");
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 10 VALUES f v");
    eventually(SOON, || number(&mut client, "q", "stuck") == 1);
    assert_eq!(server.info_int("sluice_delay_stuck"), 1);
    assert_eq!(number(&mut client, "q", "messages"), 1);
    assert_eq!(number(&mut client, "q", "next_ms"), 0);
    assert_eq!(client.run("DELAY.GET q a").array()[0], 0);
    client.must("DELAY.ADD q b PX 0 VALUES g w");
    client.must("DELAY.ADD q c PX 0 VALUES g w");
    assert_eq!(client.run("DELAY.CANCEL q c"), 1);
    assert_eq!(client.run("GET s"), "string");
    client.must("DEL s");
    assert_eq!(await_entries(&mut client, "s", 2), ["f v", "g w"]);
    assert_eq!(number(&mut client, "q", "stuck"), 0);
    assert_eq!(server.info_int("sluice_delay_stuck"), 0);
    // Another stream is tried at once.
    client.must("DEL s");
    client.must("SET s string");
    client.must("DELAY.ADD q a PX 0 VALUES f v");
    eventually(SOON, || number(&mut client, "q", "stuck") == 1);
    client.must("DELAY.SET q STREAM t");
    assert_eq!(client.must("XLEN t"), 1);
}

/// The time of the next attempt is a time of the old clock.
#[test]
fn a_stuck_queue_is_tried_again_soon_if_the_clock_is_set_back() {
    const HOUR: i64 = 3_600_000;
    let server = quiet().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET q STREAM s");
    client.must("SET s value");
    client.must("DELAY.ADD q overdue PXAT 1 VALUES f v");
    eventually(SOON, || number(&mut client, "q", "stuck") == 1);
    // The module has looked at the clock in the cron event.
    eventually(SOON, || server.info_int("uptime_in_seconds") >= 2);
    server.shift_clock(-HOUR);
    client.must("DEL s");
    await_entries(&mut client, "s", 1);
    assert_eq!(number(&mut client, "q", "stuck"), 0);
}

/// Nothing waits for the stream any more.
#[test]
fn a_queue_is_not_stuck_without_a_due_message() {
    let (server, mut client) = server_and_client();
    client.must("SET s string");
    client.must("DELAY.SET q STREAM s");
    for line in ["DELAY.CANCEL q a", "DELAY.ADD q a PX 600000 VALUES f v"] {
        client.must("DELAY.ADD q a PX 0 VALUES f v");
        eventually(SOON, || number(&mut client, "q", "stuck") == 1);
        client.must(line);
        assert_eq!(number(&mut client, "q", "stuck"), 0, "{line}");
        assert_eq!(server.info_int("sluice_delay_stuck"), 0, "{line}");
    }
}

/// A message that replaces one that the stream did not accept is delivered at its time, not at the next attempt a second later.
#[test]
fn the_message_after_a_stuck_one_is_delivered_at_its_time() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    eventually(SOON, || {
        client.must("SET s string");
        client.must("DELAY.ADD q a PX 0 VALUES f v");
        eventually(SOON, || number(&mut client, "q", "stuck") == 1);
        let due = now_ms(&mut client) + 100;
        let add = format!("DELAY.ADD q a PXAT {due} VALUES f w");
        // In one transaction: no attempt to deliver must run between the two commands.
        client.transact(["DEL s", &add]);
        await_entries(&mut client, "s", 1);
        let stream = client.must("XINFO STREAM s");
        let id = stream.field("last-generated-id").text();
        let (delivered, _) = id.split_once('-').expect("an id");
        client.must("DEL s");
        delivered.parse::<i64>().expect("Unix ms") - due < 500
    });
}

#[test]
fn a_stream_without_ids_makes_messages_wait() {
    let (_server, mut client) = server_and_client();
    client.must("XADD s 18446744073709551615-18446744073709551614 f v");
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 0 VALUES f a");
    client.must("DELAY.ADD q b PX 0 VALUES f b");
    eventually(SOON, || number(&mut client, "q", "stuck") == 1);
    // The last id was free.
    assert_eq!(entries(&mut client, "s"), ["f v", "f a"]);
    assert_eq!(number(&mut client, "q", "messages"), 1);
    client.must("DEL s");
    assert_eq!(await_entries(&mut client, "s", 1), ["f b"]);
}

#[test]
fn a_queue_that_takes_the_key_of_its_stream_waits() {
    let (_server, mut client) = server_and_client();
    client.transact([
        "DELAY.SET q STREAM s",
        "DELAY.ADD q a PX 50 VALUES f v",
        "RENAME q s",
    ]);
    eventually(SOON, || number(&mut client, "s", "stuck") == 1);
    client.must("RENAME s q");
    assert_eq!(await_entries(&mut client, "s", 1), ["f v"]);
}

#[test]
fn maxlen_trims_the_stream_at_each_delivery() {
    let (_server, mut client) = server_and_client();
    client.must("CONFIG SET stream-node-max-entries 10");
    client.must("DELAY.SET q STREAM s MAXLEN 50");
    let lines = (0..500).map(|number| format!("DELAY.ADD q m{number} PX 0 VALUES n {number}"));
    client.run_all(lines);
    eventually(SOON, || number(&mut client, "q", "delivered") == 500);
    let length = client.must("XLEN s").int();
    assert!((50..=70).contains(&length), "{length}");
    assert_eq!(entries(&mut client, "s").last().expect("an entry"), "n 499");
    client.must("DELAY.SET q STREAM s");
    let lines = (0..500).map(|number| format!("DELAY.ADD q m{number} PX 0 VALUES n {number}"));
    client.run_all(lines);
    eventually(SOON, || client.must("XLEN s") == length + 500);
}

#[test]
fn a_full_memory_does_not_stop_delivery() {
    let (_server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 200 VALUES f v");
    client.must("CONFIG SET maxmemory 1");
    assert!(
        client
            .run("DELAY.ADD q b PX 1 VALUES f v")
            .err()
            .starts_with("OOM")
    );
    assert!(client.run("DELAY.SET r STREAM s").err().starts_with("OOM"));
    assert_eq!(client.run("DELAY.CANCEL q none"), 0);
    assert_eq!(await_entries(&mut client, "s", 1), ["f v"]);
}

#[test]
fn a_pause_of_writes_stops_delivery_until_it_ends() {
    let (server, mut client) = server_and_client();
    client.must("DELAY.SET q STREAM s");
    // In one transaction: the pause begins before the message is due.
    client.transact([
        "DELAY.ADD q a PX 100 VALUES f v",
        "CLIENT PAUSE 600000 WRITE",
    ]);
    let mut reader = Raw::connect(&server);
    eventually(SOON, || reader.must("DELAY.GET q a").array()[0] == 0);
    // Several rounds of the server's cron.
    let offset = |server: &Server| server.info_int("master_repl_offset");
    let before = offset(&server);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(reader.must("XLEN s"), 0);
    assert_eq!(number(&mut reader, "q", "stuck"), 0);
    assert_eq!(offset(&server), before);
    client.must("CLIENT UNPAUSE");
    assert_eq!(await_entries(&mut client, "s", 1), ["f v"]);
}

#[test]
fn queues_take_turns_and_each_database_has_its_streams() {
    let (_server, mut client) = server_and_client();
    for db in 0..3 {
        client.must(&format!("SELECT {db}"));
        for queue in ["q", "r"] {
            client.must(&format!("DELAY.SET {queue} STREAM s"));
            let lines =
                (0..200).map(|n| format!("DELAY.ADD {queue} m{n} PX 100 VALUES {queue}{db} {n}"));
            client.run_all(lines);
        }
    }
    for db in 0..3 {
        client.must(&format!("SELECT {db}"));
        let entries = await_entries(&mut client, "s", 400);
        for queue in ["q", "r"] {
            let of_queue = entries
                .iter()
                .filter_map(|entry| entry.strip_prefix(&format!("{queue}{db} ")));
            let of_queue: Vec<_> = of_queue.collect();
            let expected: Vec<_> = (0..200).map(|number| number.to_string()).collect();
            assert_eq!(of_queue, expected);
        }
    }
}

/// The server answers other clients between slices while many messages are due together.
#[test]
fn many_messages_due_together_are_delivered_in_slices() {
    // If the system stops the client for a while, it sees fewer intermediate states. So one of five attempts is enough.
    let seen: Vec<_> = (0..5)
        .map(|_| rounds_while_many_are_delivered())
        .take_while(|rounds| *rounds < 5)
        .collect();
    assert!(seen.len() < 5, "{seen:?}");
}

/// How often a client is answered after the first and before the last of many messages has been delivered.
fn rounds_while_many_are_delivered() -> i64 {
    const COUNT: i64 = 100_000;
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET q STREAM s");
    let at = now_ms(&mut client) + 600_000;
    for batch in 0..COUNT / 1000 {
        let numbers = batch * 1000..(batch + 1) * 1000;
        client.run_all(numbers.map(|n| format!("DELAY.ADD q m{n} PXAT {at} VALUES n {n}")));
    }
    assert_eq!(number(&mut client, "q", "messages"), COUNT);
    server.shift_clock(600_001);
    let mut rounds = 0;
    let start = Instant::now();
    loop {
        let delivered = client.must("XLEN s").int();
        rounds += i64::from(delivered > 0 && delivered < COUNT);
        if delivered == COUNT {
            break;
        }
        assert!(start.elapsed() < SOON * 3, "{delivered}");
    }
    let entries = entries(&mut client, "s");
    assert!(
        entries
            .iter()
            .enumerate()
            .all(|(n, entry)| *entry == format!("n {n}"))
    );
    rounds
}
