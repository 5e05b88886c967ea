//! Queues survive saves, restarts, rewrites and crashes, and each message reaches its stream once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::delay::{await_entries, entries, number};
use crate::support::ways::Picture;
use crate::support::{
    EndOnDrop, Fsync, Lines, Raw, SOON, Server, Shutdown, eventually, now_ms, ways,
};

/// Queues of every kind, in two databases. No message of them is due soon.
fn fill(server: &Server) {
    let mut client = Raw::connect(server);
    for line in [
        "DELAY.SET empty STREAM s",
        "DELAY.SET few STREAM s MAXLEN 5000",
        "DELAY.ADD few a PX 900000 VALUES f v",
        "DELAY.ADD few b PX 800000 VALUES f v g w",
        "DELAY.ADD few a PX 700000 VALUES f replaced",
        "DELAY.ADD few c PX 700000 VALUES f v",
        "DELAY.CANCEL few c",
        "DELAY.ADD few d PX 0 VALUES f delivered",
        "XGROUP CREATE s g 0 MKSTREAM",
        "DELAY.SET moved STREAM t",
        "DELAY.ADD moved a PX 900000 VALUES f v",
        "RENAME moved renamed",
        "COPY renamed copy",
        "DELAY.SET mortal STREAM s",
        "PEXPIRE mortal 900000",
        "SELECT 3",
        "DELAY.SET few STREAM s",
        "DELAY.ADD few a PX 900000 VALUES f v",
        "SELECT 0",
        "DELAY.SET crowd STREAM s",
    ] {
        client.must(line);
    }
    client.transact(["DELAY.ADD few t PX 900000 VALUES f v", "DELAY.CANCEL few b"]);
    let lines =
        (0..3000).map(|n| format!("DELAY.ADD crowd m{n} PX {} VALUES n {n}", 900_000 + n % 9));
    client.run_all(lines);
    let large = "x".repeat(100_000);
    client.call([
        "DELAY.ADD",
        "crowd",
        "large",
        "PX",
        "900000",
        "VALUES",
        "f",
        &large,
    ]);
    await_entries(&mut client, "s", 1);
}

#[test]
fn all_ways_to_save_and_load_keep_everything() {
    let filled = |server: &Server| {
        fill(server);
        let picture = Picture::of(server);
        assert!(picture.keys.len() >= 8, "{}", picture.keys.len());
        picture
    };
    ways::walk(filled, |server, before| before.assert_is_of(server));
}

#[test]
fn a_restarted_server_delivers_what_became_due_meanwhile() {
    for fsync in [None, Some(Fsync::Always)] {
        let server = match fsync {
            None => Server::builder().rdb(true).start(),
            Some(fsync) => Server::builder().aof(fsync).start(),
        };
        let mut client = Raw::connect(&server);
        client.transact([
            "DELAY.SET q STREAM s",
            "DELAY.ADD q b PX 320 VALUES f b",
            "DELAY.ADD q a PX 300 VALUES f a",
            "DELAY.ADD q c PX 900000 VALUES f c",
        ]);
        match fsync {
            None => drop(server.shutdown(Shutdown::Save)),
            Some(_) => server.kill9(),
        }
        thread::sleep(std::time::Duration::from_millis(400));
        server.restart();
        let mut client = Raw::connect(&server);
        assert_eq!(await_entries(&mut client, "s", 2), ["f a", "f b"]);
        assert_eq!(number(&mut client, "q", "messages"), 1);
        assert_eq!(number(&mut client, "q", "delivered"), 2);
    }
}

/// A server with `appendfsync always` is killed again and again while messages come and go. No message that was
/// acknowledged is lost, and none is delivered twice, whatever the moment of the crash, also during a rewrite of the AOF.
#[test]
fn each_message_is_delivered_once_over_crashes() {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET q STREAM s");
    let mut acknowledged = Vec::new();
    for round in 0..6 {
        let is_over = AtomicBool::new(false);
        let mut client = Raw::connect(&server);
        let before = client.must("XLEN s").int();
        let added = thread::scope(|scope| {
            let _end = EndOnDrop(&is_over);
            let mut adding = Raw::connect(&server);
            let is_over = &is_over;
            let adder = scope.spawn(move || {
                let mut added = Vec::new();
                for n in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = format!("r{round}-{n}");
                    let line = format!("DELAY.ADD q {id} PX {} VALUES id {id}", n % 40);
                    let words: Vec<_> = line.split(' ').collect();
                    match adding.try_call(words, SOON) {
                        Ok(Some(reply)) if reply == 1 => added.push(id),
                        _ => break,
                    }
                }
                added
            });
            eventually(SOON, || client.must("XLEN s").int() > before + 20);
            if round % 2 == 1 {
                client.run("BGREWRITEAOF");
            }
            server.kill9();
            is_over.store(true, Ordering::Relaxed);
            adder.join().expect("the adder")
        });
        acknowledged.extend(added);
        server.restart();
    }
    let mut client = Raw::connect(&server);
    eventually(SOON, || number(&mut client, "q", "messages") == 0);
    let mut delivered = entries(&mut client, "s");
    let all = delivered.len();
    delivered.sort();
    delivered.dedup();
    assert_eq!(delivered.len(), all, "a message was delivered twice");
    for id in acknowledged {
        let entry = format!("id {id}");
        assert!(delivered.binary_search(&entry).is_ok(), "{id} is lost");
    }
}

/// Batches that are due together are cut by crashes in the middle of their delivery. What follows after a restart is in
/// the order of time and arrival, as if there had been no crash.
#[test]
fn the_order_of_messages_outlasts_crashes() {
    const BATCHES: i64 = 8;
    const BATCH: i64 = 4000;
    const APART_MS: i64 = 600_000;
    let server = Server::builder().aof(Fsync::Always).clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("DELAY.SET q STREAM s");
    let start = now_ms(&mut client);
    let due = |n: i64| start + (1 + n / BATCH) * APART_MS + n * 7919 % 100;
    client.run_all((0..BATCHES * BATCH).map(|n| {
        let at = due(n);
        format!("DELAY.ADD q m{n} PXAT {at} VALUES n {n}")
    }));
    let (mut batch, mut crashes_in_delivery) = (0, 0);
    while crashes_in_delivery < 2 {
        assert!(batch < BATCHES, "no crash met a delivery");
        server.shift_clock(APART_MS);
        let mut client = Raw::connect(&server);
        let before = batch * BATCH;
        batch += 1;
        eventually(SOON, || client.must("XLEN s").int() > before);
        server.kill9();
        server.restart();
        let mut client = Raw::connect(&server);
        eventually(SOON * 3, || client.must("XLEN s").int() == batch * BATCH);
        let after_restart = server.info_int("sluice_delay_delivered");
        crashes_in_delivery += i64::from(after_restart > 0);
    }
    let mut expected: Vec<_> = (0..batch * BATCH).collect();
    expected.sort_by_key(|n| (due(*n), *n));
    let expected: Vec<_> = expected.iter().map(|n| format!("n {n}")).collect();
    let mut client = Raw::connect(&server);
    assert_eq!(entries(&mut client, "s"), expected);
}
