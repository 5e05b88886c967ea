//! Queues in a cluster: queue and stream are in one hash slot and move together.

use crate::support::cluster::{Atomic, Move, node, one_node, slot_of, two_nodes};
use crate::support::delay::{await_at_least, await_entries, number};
use crate::support::{Lines, Raw, SOON, Value, eventually, server_and_client};

#[test]
fn the_keys_of_every_command_are_known() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("DELAY.SET q STREAM s", &["q", "s"][..]),
        ("DELAY.SET q MAXLEN 5 stream s", &["q", "s"]),
        ("DELAY.SET STREAM STREAM STREAM", &["STREAM", "STREAM"]),
        ("DELAY.ADD q STREAM PX 5 VALUES STREAM v", &["q"]),
        ("DELAY.CANCEL q a b", &["q"]),
        ("DELAY.GET q a", &["q"]),
        ("DELAY.RANGE q 5", &["q"]),
        ("DELAY.INFO q", &["q"]),
    ] {
        let keys = client.must(&format!("COMMAND GETKEYS {line}"));
        let keys: Vec<_> = keys.array().iter().map(Value::text).collect();
        assert_eq!(keys, expected, "{line}");
    }
}

#[test]
fn queue_and_stream_need_one_slot() {
    let (_server, mut client) = one_node();
    let reply = client.run("DELAY.SET foo STREAM bar");
    assert!(reply.err().starts_with("CROSSSLOT "), "{reply:?}");
    assert_eq!(client.run("EXISTS foo"), 0);
    client.must("DELAY.SET {foo}q STREAM {foo}s");
    client.transact([
        "DELAY.ADD {foo}q a PX 50 VALUES f v",
        "DELAY.ADD {foo}q b PX 0 VALUES f w",
    ]);
    assert_eq!(await_entries(&mut client, "{foo}s", 2), ["f w", "f v"]);
    // A queue that was restored into another slot than its stream.
    let replies = client.transact([
        "DELAY.ADD {foo}q c PX 50 VALUES f v",
        "DUMP {foo}q",
        "DELAY.CANCEL {foo}q c",
    ]);
    client.call([b"RESTORE".as_slice(), b"bar", b"0", replies[1].bytes()]);
    eventually(SOON, || number(&mut client, "bar", "stuck") == 1);
    client.must("DELAY.SET bar STREAM {bar}s");
    assert_eq!(await_entries(&mut client, "{bar}s", 1), ["f v"]);
    assert_eq!(client.must("XLEN {foo}s"), 2);
}

/// While the queue is on one node and its stream on the other, messages wait. Otherwise there would be two streams of one
/// name, which could never meet.
#[test]
fn messages_wait_while_queue_and_stream_are_on_different_nodes() {
    const SLOT: i64 = 5061; // of `bar`
    let (one, other) = two_nodes(&node().clock(0));
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    for (index, (first, last)) in [("{bar}q", "{bar}s"), ("{bar}s", "{bar}q")]
        .into_iter()
        .enumerate()
    {
        here.must("FLUSHALL");
        there.must("FLUSHALL");
        here.must("DELAY.SET {bar}q STREAM {bar}s");
        here.must("DELAY.ADD {bar}q before PX 0 VALUES f before");
        here.must("DELAY.ADD {bar}q a PX 20000 VALUES f a");
        here.must("DELAY.ADD {bar}q b PX 20010 VALUES f b");
        await_entries(&mut here, "{bar}s", 1);
        let moving = Move::start(SLOT, &one, &other);
        moving.keys(&[first]);
        let is_there = index == 0;
        // A command with both keys can be run on neither node.
        let set = "DELAY.SET {bar}q STREAM {bar}s";
        let reply = here.run(set);
        assert!(reply.err().starts_with("TRYAGAIN "), "{reply:?}");
        there.must("ASKING");
        let reply = there.run(set);
        assert!(reply.err().starts_with("TRYAGAIN "), "{reply:?}");
        // The clock step is shorter than `cluster-node-timeout`, so no node is marked as failing.
        one.shift_clock(20_010);
        other.shift_clock(20_010);
        eventually(SOON, || {
            let reply = match is_there {
                true => {
                    there.must("ASKING");
                    there.must("DELAY.INFO {bar}q")
                }
                false => here.must("DELAY.INFO {bar}q"),
            };
            reply.field("stuck") == &1
        });
        moving.keys(&[last]);
        moving.finish();
        let entries = await_entries(&mut there, "{bar}s", 3);
        assert_eq!(entries, ["f before", "f a", "f b"]);
        assert!(here.run("DELAY.INFO {bar}q").err().starts_with("MOVED "));
        // Back again, for the next round.
        let back = Move::start(SLOT, &other, &one);
        back.keys(&["{bar}q", "{bar}s"]);
        back.finish();
    }
}

/// Many messages, of which some are due before the keys move and others afterwards.
#[test]
fn many_messages_are_delivered_once_while_their_keys_move() {
    const COUNT: usize = 20_000;
    let moves_amid = |per_ms: usize| {
        let (one, other) = two_nodes(&node());
        let slot = slot_of(&one, "{bar}q");
        let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
        here.must("DELAY.SET {bar}q STREAM {bar}s");
        let lines = (0..COUNT).map(|n| {
            let px = 1 + n / per_ms;
            format!("DELAY.ADD {{bar}}q m{n} PX {px} VALUES n {n}")
        });
        here.run_all(lines);
        await_at_least(&mut here, "{bar}s", 100);
        let moving = Move::start(slot, &one, &other);
        moving.keys(&["{bar}q", "{bar}s"]);
        moving.finish();
        let left = number(&mut there, "{bar}q", "messages");
        let entries = await_entries(&mut there, "{bar}s", COUNT as i64);
        let expected: Vec<_> = (0..COUNT).map(|n| format!("n {n}")).collect();
        assert!(entries == expected, "{} entries", entries.len());
        assert_eq!(number(&mut there, "{bar}q", "messages"), 0);
        left > 0
    };
    // A busy machine needs more time for the move.
    assert!([8, 1].into_iter().any(moves_amid), "each move was too late");
}

#[test]
fn a_queue_that_moves_at_once_delivers_each_message_once() {
    let (one, other) = two_nodes(&node());
    let Some(way) = Atomic::of(&one) else {
        return; // this server cannot
    };
    let slot = slot_of(&one, "{bar}q");
    let mut client = Raw::connect(&one);
    client.must("DELAY.SET {bar}q STREAM {bar}s");
    let lines =
        (0..3000).map(|n| format!("DELAY.ADD {{bar}}q m{n} PX {} VALUES n {n}", 1 + n % 3000));
    client.run_all(lines);
    way.migrate(slot, &one, &other);
    let mut client = Raw::connect(&other);
    let entries = await_entries(&mut client, "{bar}s", 3000);
    // Each message is due later than the one before it, and arrives after it.
    let expected: Vec<_> = (0..3000).map(|n| format!("n {n}")).collect();
    assert_eq!(entries, expected);
    assert_eq!(number(&mut client, "{bar}q", "messages"), 0);
}
