//! Limits survive what servers live through: saves, restarts, rewrites and crashes. Nothing moves them but time.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::support::rate::{KINDS, ask, assert_filled, at, counting_kinds, fill};
use crate::support::ways::Picture;
use crate::support::{Fsync, Lines, Random, Raw, Server, now_us, ways};

/// Every kind of limit, in two databases, by all ways that one can come about.
fn fill_all(client: &mut Raw) {
    for line in [
        "SELECT 3",
        "RATE.GCRA gcra 4 7 3600000",
        "RATE.ONCE once PX 315360000000",
        "SELECT 0",
        "RATE.GCRA refunded 9 1 315360000000 COST 7",
        "RATE.REFUND refunded 4",
        "RATE.WINDOW changed 5 1000000 COST 2",
        "RATE.WINDOW changed 9 315360000000 COST 2",
        "RATE.GCRA changed-rate 5 3 7777777 COST 3",
        "RATE.GCRA changed-rate 5 7 315360000000",
        "RATE.GCRA given-back 5 1 1000",
        "RATE.REFUND given-back 1",
        "RATE.TIERS less 3 9 1 1000 9 1 2000 9 1 315360000000",
        "RATE.TIERS less 1 9 1 315360000000",
        "RATE.WINDOW persisted 5 100000000",
        "PERSIST persisted",
        "RATE.WINDOW mortal 5 100000000",
        "PEXPIRE mortal 900000",
        "RATE.TIERS source 2 9 1 1000000000 9 3 315360000000",
        "COPY source copy",
        "COPY source elsewhere DB 3",
        "RENAME source renamed",
        "RATE.GCRA source 9 1 1000000000",
        "RATE.GCRA gone 5 1 1000000",
        "DEL gone",
        "RATE.WINDOW log 9 315360000000 EXACT COST 2",
        "RATE.WINDOW log 9 315360000000 EXACT",
        "RATE.CHARGE log 3",
        "RATE.REFUND log 4",
        "RATE.GCRA ahead 0 1 3600000",
        "RATE.GCRA ahead 0 1 3600000 AHEAD 315360000000",
        "RATE.CHARGE ahead 5",
        "RATE.MGCRA 2 ahead 0 1 3600000 source 9 1 1000000000 AHEAD 315360000000",
    ] {
        client.must(line);
    }
    fill(client);
    let most = "RATE.GCRA most 9007199254740990 1 315360000000 COST 9007199254740991";
    client.must(most);
    let odd: [&[u8]; 5] = [b"RATE.GCRA", b"\0\xff\r\n odd", b"9", b"1", b"315360000000"];
    assert_eq!(client.call(odd).array()[0], 0);
    client.transact([
        "RATE.GCRA t 9 1 315360000000",
        "RATE.ONCE u PX 315360000000",
    ]);
    let script = "return redis.call('RATE.WINDOW', KEYS[1], 9, 315360000000, 'SLIDING')";
    assert_eq!(client.call(["EVAL", script, "1", "script"]).array()[0], 0);
}

#[test]
fn all_ways_to_save_and_load_keep_everything() {
    let filled = |server: &Server| {
        fill_all(&mut Raw::connect(server));
        let picture = Picture::of(server);
        assert_eq!(picture.keys.len(), 26);
        picture
    };
    ways::walk(filled, |server, before| {
        before.assert_is_of(server);
        let mut client = Raw::connect(server);
        assert_filled(&mut client);
        before.assert_is_of(server); // a look has changed nothing
        // And they go on, with the ends that they had.
        for (kind, line) in counting_kinds() {
            assert_eq!(ask(&mut client, &at(line, kind))[..3], [0, 5, 1], "{kind}");
        }
        let window = client.must("PEXPIRETIME window");
        assert_eq!(window, before.keys[&(0, b"window".to_vec())].ends);
    });
}

/// What has leaked meanwhile is what the time gives, however late and however often the file is read: a request in 100 ms.
#[test]
fn limits_go_on_by_the_clock_while_the_server_is_down() {
    for builder in [
        Server::builder().aof(Fsync::Always),
        Server::builder().rdb(true),
    ] {
        let server = builder.start();
        let mut client = Raw::connect(&server);
        let consume = |line: &str| format!("{line} COST 500");
        let lines = [
            "RATE.GCRA g 999 10 1000",
            "RATE.TIERS t 2 999 10 1000 1999 1 315360000000",
        ];
        let begin = now_us(&mut client);
        lines
            .iter()
            .for_each(|line| drop(client.must(&consume(line))));
        // These are over before the server is back.
        client.must("RATE.WINDOW w 9 100");
        client.must("RATE.ONCE o PX 100");
        let end = now_us(&mut client);
        for _ in 0..2 {
            server.terminate();
            thread::sleep(Duration::from_millis(150));
            server.restart();
        }
        let mut client = Raw::connect(&server);
        for line in lines {
            let before = now_us(&mut client);
            let left = ask(&mut client, &format!("{line} COST 0"))[2];
            let after = now_us(&mut client);
            let least = 500 + (before - end) / 100_000;
            let most = 500 + (after - begin) / 100_000;
            assert!(
                (least..=most).contains(&left),
                "{line}: {left} of {least} to {most}"
            );
            assert!(left > 502);
        }
        assert_eq!(client.run("RATE.ONCE o PX 100000"), 1);
        assert_eq!(ask(&mut client, "RATE.WINDOW w 9 100000")[..3], [0, 9, 8]);
    }
}

/// The file has absolute times, and nothing of what was refused. Requests stand there as they came only where all they
/// do is add to what is there, whatever the time.
#[test]
fn the_append_only_file_has_what_was_decided() {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut client = Raw::connect(&server);
    fill(&mut client);
    for (kind, line) in KINDS {
        client.must(&at(line, kind));
        client.must(&at(line, kind));
        client.must(&at(line, kind)); // refused, for all but two
    }
    let file = fs::read(server.aof_file(".incr.")).unwrap();
    let file = file.escape_ascii().to_string();
    let count = |word: &str| file.matches(word).count();
    // The first of each kind makes a limit, the two windows go on as they are.
    assert!(count("RATE.APPLY") > 5, "{file}");
    let added = ["GCRA", "WINDOW", "TIERS", "THROTTLE"].map(count);
    assert!(added[1] >= 2, "{file}");
    let all = count("RATE.APPLY") + added.iter().sum::<usize>();
    assert_eq!(all, 6 * 3 + 1, "{file}");
    for word in ["ONCE", "PEXPIRE"] {
        assert_eq!(count(word), 0, "{word}: {file}");
    }
}

#[test]
fn the_file_of_a_random_load_is_the_dataset() {
    for preamble in ["yes", "no"] {
        let server = Server::builder()
            .aof(Fsync::No)
            .config("aof-use-rdb-preamble", preamble)
            .start();
        let mut client = Raw::connect(&server);
        let mut random = Random(0xa0f_5eed);
        for round in 0..6 {
            let lines: Vec<_> = (0..500).map(|_| random_line(&mut random)).collect();
            client.run_all(&lines);
            if round % 2 == 0 {
                server.rewrite_aof();
            }
        }
        assert!(client.run("DBSIZE").int() > 10);
        let before = Picture::of(&server);
        server.terminate();
        server.restart();
        before.assert_is_of(&server);
        assert!(!server.log().contains("panic"));
    }
}

/// A command on one of a few keys; nothing ends soon.
fn random_line(random: &mut Random) -> String {
    let key = format!("k{}", random.below(30));
    let other = format!("k{}", random.below(30));
    let (burst, count) = (random.below(9), 1 + random.below(9));
    let (cost, period) = (random.below(4), 1_000_000 * (1 + random.below(3)));
    match random.below(18) {
        0..=2 => format!("RATE.GCRA {key} {burst} {count} {period} COST {cost}"),
        3 => format!("CL.THROTTLE {key} {burst} {count} {}", period / 1000),
        4 | 5 => format!("RATE.WINDOW {key} {burst} {period} COST {cost}"),
        6 => format!("RATE.WINDOW {key} {burst} {period} COST {cost} SLIDING"),
        7 => format!("RATE.TIERS {key} 2 {burst} {count} {period} 9 1 {period}"),
        14 => format!("RATE.WINDOW {key} {burst} {period} COST {cost} EXACT"),
        15 => format!("RATE.CHARGE {key} {cost}"),
        16 => format!("RATE.GCRA {key} {burst} {count} {period} AHEAD 9000000"),
        17 if key != other => {
            format!("RATE.MGCRA 2 {key} 9 {count} {period} {other} {burst} 1 {period} AHEAD 99999")
        }
        8 | 9 => format!("RATE.REFUND {key} {cost}"),
        10 => format!("RATE.ONCE {key} PX {period}"),
        11 => format!("RENAME {key} {other}"),
        12 => format!("COPY {key} {other} REPLACE"),
        _ => format!("DEL {key}"),
    }
}
