//! A replica has the queues and streams of its master, delivers nothing by itself, and takes over with them.

use std::time::{Duration, Instant};

use crate::support::delay::{await_entries, entries, number};
use crate::support::{
    Lines, Random, Raw, SOON, assert_identical, await_role, eventually, pair, quiet,
    wait_for_replica_sync,
};

#[test]
fn every_change_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for line in [
        "DELAY.SET q STREAM s",
        "DELAY.ADD q a PX 900000 VALUES f v",
        "DELAY.ADD q a PX 800000 VALUES f w",
        "DELAY.ADD q b PXAT 1 VALUES f v",
        "DELAY.ADD q c PX 0 NX VALUES f v",
        "DELAY.ADD q d PX 900000 VALUES f v",
        "DELAY.CANCEL q d none",
        "DELAY.SET q STREAM t MAXLEN 5",
        "DELAY.ADD q e PX 0 VALUES f v",
        "PEXPIRE q 900000",
        "COPY q copy",
        "RENAME copy renamed",
        "MOVE renamed 2",
        "SWAPDB 1 2",
        "XGROUP CREATE s g 0 MKSTREAM",
    ] {
        client.must(line);
        assert_identical(&master, &replica);
    }
    let dump = client.must("DUMP q");
    client.call([b"RESTORE".as_slice(), b"restored", b"0", dump.bytes()]);
    let script = "redis.call('DELAY.ADD', KEYS[1], 'lua', 'PX', 0, 'VALUES', 'f', 'v')
        return redis.call('DELAY.CANCEL', KEYS[1], 'a')";
    assert_eq!(client.call(["EVAL", script, "1", "q"]), 1);
    client.transact([
        "DELAY.ADD q f PX 0 VALUES f v",
        "DELAY.ADD q g PX 5 VALUES f v",
    ]);
    eventually(SOON, || number(&mut client, "q", "messages") == 0);
    assert_identical(&master, &replica);
    let (mut one, mut other) = (Raw::connect(&master), Raw::connect(&replica));
    assert_eq!(one.must("DELAY.INFO q"), other.must("DELAY.INFO q"));
    client.must("FLUSHALL");
    assert_identical(&master, &replica);
    assert!(!replica.log().contains("lacks a delayed message"));
}

#[test]
fn refusals_are_not_replicated() {
    let (master, _replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("DELAY.SET q STREAM s");
    client.must("DELAY.ADD q a PX 900000 VALUES f v");
    let sent = || {
        let stats = master.command(["INFO", "commandstats"]);
        (master.info_int("master_repl_offset"), stats.text().len())
    };
    // The offset also grows by pings and reports, so several tries may be needed.
    eventually(SOON, || {
        let before = sent().0;
        for line in [
            "DELAY.ADD q a NX PX 5 VALUES f v",
            "DELAY.ADD q b XX PX 5 VALUES f v",
            "DELAY.ADD none b PX 5 VALUES f v",
            "DELAY.CANCEL q none",
            "DELAY.CANCEL none a",
            "DELAY.SET q STREAM q",
        ] {
            client.run(line);
        }
        sent().0 == before
    });
}

#[test]
fn a_random_load_makes_identical_replicas() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let mut random = Random(20);
    for queue in 0..4 {
        client.must(&format!(
            "DELAY.SET q{queue} STREAM s{} MAXLEN 300",
            queue % 2
        ));
    }
    for _ in 0..60 {
        let lines: Vec<String> = (0..100)
            .map(|_| {
                let (queue, id) = (random.below(4), random.below(200));
                match random.below(12) {
                    0 | 1 => format!("DELAY.CANCEL q{queue} m{id} m{}", id + 1),
                    2 => format!(
                        "DELAY.ADD q{queue} m{id} XX PX {} VALUES id {id}",
                        random.below(9)
                    ),
                    3 => format!("DELAY.SET q{queue} STREAM s{} MAXLEN 300", random.below(3)),
                    _ => format!(
                        "DELAY.ADD q{queue} m{id} PX {} VALUES id {id}",
                        random.below(120)
                    ),
                }
            })
            .collect();
        client.run_all(lines);
    }
    eventually(SOON, || master.info_int("sluice_delay_messages") == 0);
    assert_identical(&master, &replica);
    assert_eq!(replica.info_int("sluice_delay_messages"), 0);
    assert!(master.info_int("sluice_delay_delivered") > 100);
    assert!(!replica.log().contains("lacks a delayed message"));
}

#[test]
fn a_replica_delivers_when_it_is_promoted_and_not_before() {
    // On a busy machine the messages can be due before the replica has them and the master is gone. Then they get more time.
    let replicated = |px: u64| {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        client.must("DELAY.SET q STREAM s");
        client.must("DELAY.ADD q later PX 900000 VALUES f later");
        let start = Instant::now();
        client.transact([
            format!("DELAY.ADD q b PX {} VALUES f b", px + 10),
            format!("DELAY.ADD q a PX {px} VALUES f a"),
        ]);
        wait_for_replica_sync(&master, &replica);
        master.kill9();
        let mut reader = Raw::connect(&replica);
        let is_delivered = reader.must("DELAY.GET q a").is_nil();
        assert!(!is_delivered || start.elapsed() >= Duration::from_millis(px));
        (!is_delivered).then_some((replica, reader))
    };
    let mut times = [1500, 6000, 24_000].into_iter();
    let (replica, mut reader) = times.find_map(replicated).expect("replicated in time");
    eventually(SOON, || reader.must("DELAY.GET q b").array()[0] == 0);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(reader.must("XLEN s"), 0);
    replica.promote();
    await_role(&replica, "master");
    assert_eq!(await_entries(&mut reader, "s", 2), ["f a", "f b"]);
    assert_eq!(number(&mut reader, "q", "messages"), 1);
}

/// The master dies in the middle of a delivery of many messages that are due together.
#[test]
fn a_replica_that_is_promoted_during_a_delivery_delivers_the_rest() {
    let dies_amid = |count: i64| {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        client.must("DELAY.SET q STREAM s");
        // The queue cannot deliver, because another type is at the key of its stream.
        client.must("SET s value");
        let script = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
                redis.call('DELAY.ADD', KEYS[1], 'm' .. n, 'PXAT', 1 + n, 'VALUES', 'n', n) end";
        for first in (0..count).step_by(5000) {
            let (first, last) = (first.to_string(), (first + 4999).to_string());
            client.call(["EVAL", script, "1", "q", &first, &last]);
        }
        wait_for_replica_sync(&master, &replica);
        let mut reader = Raw::connect(&replica);
        client.must("DEL s");
        eventually(SOON, || {
            let length = reader.run("XLEN s");
            !length.is_err() && length.int() > 0
        });
        master.kill9();
        eventually(SOON, || {
            replica.info("master_link_status").as_deref() == Some("down")
        });
        let left = number(&mut reader, "q", "messages");
        replica.promote();
        let entries = await_entries(&mut reader, "s", count);
        let expected: Vec<String> = (0..count).map(|n| format!("n {n}")).collect();
        assert!(entries == expected, "{} entries", entries.len());
        assert_eq!(number(&mut reader, "q", "messages"), 0);
        left > 0
    };
    let mut counts = [50_000, 200_000, 800_000].into_iter();
    assert!(counts.any(dies_amid), "each delivery was over too early");
}

#[test]
fn a_replica_that_joins_receives_the_whole_queue() {
    let master = quiet().start();
    let mut client = Raw::connect(&master);
    client.must("DELAY.SET q STREAM s");
    let lines = (0..2000).map(|n| format!("DELAY.ADD q m{n} PX {} VALUES n {n}", 300 + n % 500));
    client.run_all(lines);
    let replica = quiet().start();
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    await_entries(&mut client, "s", 2000);
    assert_identical(&master, &replica);
    let mut reader = Raw::connect(&replica);
    assert_eq!(entries(&mut reader, "s"), entries(&mut client, "s"));
}
