//! What the commands of limits reply and do, sentence by sentence of the contract.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::rate::{
    KINDS, MOST, OTHER_KIND, TEN_YEARS, ask, assert_expires, assert_filled, assert_reply, at,
    costing, counting_kinds, fill, remaining,
};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, Value, WRONGTYPE,
    Written, assert_identical, eventually, field_of, ints, now_ms, pair, server_and_client,
};

const HOUR: i64 = 3_600_000;

// GCRA

#[test]
fn gcra_allows_one_and_the_burst_and_then_as_the_rate_gives() {
    let (_server, mut client) = server_and_client();
    let line = "RATE.GCRA k 2 1 3600000";
    assert_eq!(ask(&mut client, line), [0, 3, 2, -1, HOUR]);
    assert_reply(&mut client, line, [0, 3, 1, -1, 2 * HOUR]);
    assert_reply(&mut client, line, [0, 3, 0, -1, 3 * HOUR]);
    for _ in 0..3 {
        assert_reply(&mut client, line, [1, 3, 0, HOUR, 3 * HOUR]);
    }
    let two = "RATE.GCRA k 2 1 3600000 COST 2";
    assert_reply(&mut client, two, [1, 3, 0, 2 * HOUR, 3 * HOUR]);
    // What can never fit has no retry.
    let four = "RATE.GCRA k 2 1 3600000 COST 4";
    assert_reply(&mut client, four, [1, 3, 0, -1, 3 * HOUR]);
    assert_eq!(
        ask(&mut client, &four.replace('k', "none")),
        [1, 3, 3, -1, 0]
    );
    assert_eq!(client.run("EXISTS none"), 0);
}

#[test]
fn gcra_without_a_burst_allows_one_at_a_time() {
    let (_server, mut client) = server_and_client();
    // 100 per hour is one in 36 seconds.
    assert_eq!(
        ask(&mut client, "RATE.GCRA k 0 100 3600000"),
        [0, 1, 0, -1, 36_000]
    );
    let reply = ask(&mut client, "RATE.GCRA k 0 100 3600000");
    assert_eq!(reply[..3], [1, 1, 0]);
    assert!(
        (1..=36_000).contains(&reply[3]) && reply[3] == reply[4],
        "{reply:?}"
    );
}

#[test]
fn gcra_rounds_nothing_to_zero() {
    let (_server, mut client) = server_and_client();
    // 2^53 - 1 in ten years: 28 in a microsecond, of which none may be lost.
    let line = format!("RATE.GCRA fast {} {MOST} {TEN_YEARS}", MOST - 1);
    assert_eq!(ask(&mut client, &line), [0, MOST, MOST - 1, -1, 1]);
    // One in ten years.
    let line = format!("RATE.GCRA slow 0 1 {TEN_YEARS}");
    assert_eq!(ask(&mut client, &line), [0, 1, 0, -1, TEN_YEARS]);
    assert_reply(&mut client, &line, [1, 1, 0, TEN_YEARS, TEN_YEARS]);
    // The slowest rate and the largest burst: more milliseconds than a reply can tell.
    let all = format!("RATE.GCRA full {} 1 {TEN_YEARS} COST {MOST}", MOST - 1);
    assert_eq!(ask(&mut client, &all), [0, MOST, 0, -1, MOST]);
    assert_eq!(ask(&mut client, &all), [1, MOST, 0, MOST, MOST]);
    // The fastest.
    let line = format!("RATE.GCRA quick 0 {MOST} 1");
    for _ in 0..5 {
        assert_eq!(ask(&mut client, &line), [0, 1, 0, -1, 1]);
    }
}

#[test]
fn waiting_for_the_retry_is_enough() {
    let (_server, mut client) = server_and_client();
    for line in [
        "RATE.GCRA g 1 2 80",
        "RATE.WINDOW w 2 60",
        "RATE.WINDOW s 2 60 SLIDING",
        "RATE.TIERS t 2 1 2 80 5 3 7",
    ] {
        for _ in 0..3 {
            let mut reply = ask(&mut client, line);
            let mut calls = 1;
            while reply[0] == 0 {
                reply = ask(&mut client, line);
                calls += 1;
                assert!(calls < 10_000, "{line} limits nobody");
            }
            assert!((1..=120).contains(&reply[3]), "{line}: {reply:?}");
            thread::sleep(Duration::from_millis(reply[3] as u64));
            let reply = ask(&mut client, line);
            assert_eq!(reply[0], 0, "{line}: {reply:?}");
        }
    }
}

// WINDOW

#[test]
fn a_window_starts_at_the_first_call_and_allows_its_limit() {
    let (_server, mut client) = server_and_client();
    let before = now_ms(&mut client);
    assert_eq!(
        ask(&mut client, "RATE.WINDOW k 3 3600000"),
        [0, 3, 2, -1, HOUR]
    );
    let after = now_ms(&mut client);
    let end = client.must("PEXPIRETIME k").int();
    assert!((before + HOUR..=after + HOUR).contains(&end));
    let line = "RATE.WINDOW k 3 3600000 COST 2";
    assert_reply(&mut client, line, [0, 3, 0, -1, HOUR]);
    for line in [line, "RATE.WINDOW k 3 3600000"] {
        assert_reply(&mut client, line, [1, 3, 0, HOUR, HOUR]);
    }
    assert_reply(
        &mut client,
        "RATE.WINDOW k 3 3600000 COST 4",
        [1, 3, 0, -1, HOUR],
    );
    // No call moves its end.
    assert_eq!(client.must("PEXPIRETIME k").int(), end);
    // A limit of nothing.
    assert_eq!(
        ask(&mut client, "RATE.WINDOW none 0 1000"),
        [1, 0, 0, -1, 0]
    );
    assert_eq!(
        ask(&mut client, "RATE.WINDOW none 0 1000 COST 0"),
        [0, 0, 0, -1, 0]
    );
    assert_eq!(client.run("EXISTS none"), 0);
}

#[test]
fn a_sliding_window_weighs_the_window_before() {
    let (_server, mut client) = server_and_client();
    let line = "RATE.WINDOW k 4 3600000 SLIDING";
    // What is consumed matters in the window after, too.
    assert_eq!(ask(&mut client, line), [0, 4, 3, -1, 2 * HOUR]);
    assert_reply(&mut client, &costing(line, 3), [0, 4, 0, -1, 2 * HOUR]);
    // In the next window, when a quarter of this one is out of reach.
    assert_reply(&mut client, line, [1, 4, 0, HOUR + HOUR / 4, 2 * HOUR]);
    assert_reply(
        &mut client,
        &costing(line, 4),
        [1, 4, 0, 2 * HOUR, 2 * HOUR],
    );

    // A short one. In the next window, a whole limit weighs as much as there is still to come of that window.
    let line = "RATE.WINDOW s 100 400 SLIDING";
    let mut tries = (0..100).map(|_| {
        client.run(&costing(line, 100));
        eventually(SOON, || client.run("PTTL s").int() <= 400);
        let replies = client.transact(["PTTL s", &costing(line, 0)]);
        (replies[0].int(), ints(&replies[1])[2])
    });
    // The processor may have been away for long.
    let timely = tries.find(|(left, _)| *left > 20);
    let (left, free) = timely.expect("a look in the next window");
    let expected = 100 - left / 4;
    assert!(
        (expected - 2..expected + 25).contains(&free),
        "{free} of 100, {left} ms left"
    );
}

// TIERS

#[test]
fn tiers_are_all_or_nothing_and_tell_which_binds() {
    let (_server, mut client) = server_and_client();
    // Two at once and one an hour; three at once and one a day.
    let line = "RATE.TIERS k 2 1 1 3600000 2 1 86400000";
    assert_eq!(ask(&mut client, line), [0, 2, 1, -1, 24 * HOUR, 0]);
    let reply = ask(&mut client, line);
    assert_eq!((&reply[..4], reply[5]), (&[0, 2, 0, -1][..], 0));
    // The first tier makes it wait, and the second one longer with three.
    let reply = ask(&mut client, line);
    assert_eq!((&reply[..3], reply[5]), (&[1, 2, 0][..], 0));
    assert!((HOUR - 60_000..=HOUR).contains(&reply[3]), "{reply:?}");
    let wider = "RATE.TIERS k 2 4 1 3600000 2 1 86400000 COST 2";
    let reply = ask(&mut client, wider);
    assert_eq!((&reply[..3], reply[5]), (&[1, 3, 1][..], 1));
    assert!(
        (24 * HOUR - 60_000..=24 * HOUR).contains(&reply[3]),
        "{reply:?}"
    );
    // The refused calls consumed nothing of either.
    let reply = ask(
        &mut client,
        "RATE.TIERS k 2 9 1 3600000 9 1 86400000 COST 0",
    );
    assert_eq!((reply[2], reply[5]), (8, 0));
    // What never fits into one of them: that one.
    for (line, tier) in [
        ("RATE.TIERS k 2 9 1 3600000 1 1 86400000 COST 3", 1),
        ("RATE.TIERS k 2 1 1 3600000 9 1 86400000 COST 3", 0),
        ("RATE.TIERS k 2 1 1 3600000 1 1 86400000 COST 3", 0),
    ] {
        let reply = ask(&mut client, line);
        assert_eq!((reply[0], reply[3], reply[5]), (1, -1, tier), "{line}");
    }
    // Of tiers with as much left, the first.
    let reply = ask(
        &mut client,
        "RATE.TIERS same 3 9 1 1000 4 1 3600000 4 1 86400000",
    );
    assert_eq!((reply[1], reply[2], reply[5]), (5, 4, 1));
    // One tier is a GCRA of another kind.
    assert_eq!(
        ask(&mut client, "RATE.TIERS one 1 0 1 3600000"),
        [0, 1, 0, -1, HOUR, 0]
    );
}

#[test]
fn there_are_one_to_sixty_four_tiers() {
    let (_server, mut client) = server_and_client();
    let line = |count: usize| {
        let tiers = (0..count).map(|tier| format!(" {} 1 3600000", 99 - tier));
        format!("RATE.TIERS k {count}{}", tiers.collect::<String>())
    };
    assert_eq!(ask(&mut client, &line(64))[..], [0, 37, 36, -1, HOUR, 63]);
    assert_eq!(
        client.run(&line(65)).err(),
        "ERR numtiers must be between 1 and 64"
    );
    // Fewer tiers than there were, and then more again.
    assert_eq!(ask(&mut client, &line(1))[..3], [0, 100, 98]);
    assert_eq!(ask(&mut client, &line(3))[..3], [0, 98, 95]);
    for line in [
        "RATE.TIERS k 2 1 1 1000",
        "RATE.TIERS k 2 1 1 1000 1",
        "RATE.TIERS k 2 1 1 1000 1 1",
        "RATE.TIERS k 1 1 1 1000 1 1 1000",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    // An option in the place of a tier is no number.
    let reply = client.run("RATE.TIERS k 2 1 1 1000 PEEK 1 1");
    assert_eq!(reply.err(), NOT_AN_INTEGER);
}

// REFUND

#[test]
fn a_refund_gives_back_and_never_more_than_all() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        for (refund, left) in [(0, 2), (1, 3)] {
            let reply = client.run(&format!("RATE.REFUND {kind} {refund}"));
            assert_eq!(reply, 1, "{kind}");
            assert_eq!(remaining(&mut client, &line), left, "{kind} {refund}");
        }
        assert_eq!(ask(&mut client, &costing(&line, 3))[..3], [0, 5, 0]);
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 4")), 1);
        assert_eq!(remaining(&mut client, &line), 4, "{kind}");
        // All of it: as if never used, so that there is no key.
        assert_eq!(client.run(&format!("RATE.REFUND {kind} {MOST}")), 1);
        assert_eq!(client.run(&format!("EXISTS {kind}")), 0, "{kind}");
        assert_eq!(remaining(&mut client, &line), 5, "{kind}");
        for refund in ["0", "1"] {
            assert_eq!(client.call(["RATE.REFUND", kind, refund]), 0, "{kind}");
        }
        client.must(&line);
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 1")), 1);
        assert_eq!(client.run(&format!("EXISTS {kind}")), 0, "{kind}");
    }
    assert_eq!(client.run("RATE.REFUND once 1").err(), OTHER_KIND);
    assert_eq!(client.run("RATE.REFUND none 1"), 0);
    assert_eq!(client.run("DBSIZE"), 1);
    assert_eq!(server.info_int("sluice_rate_refunded"), 30);
}

/// Someone else's limit is as it was before the refused call, and who gets their cost back may come again.
#[test]
fn a_refund_moves_the_end_of_the_key() {
    let (_server, mut client) = server_and_client();
    client.must("RATE.GCRA g 9 1 3600000 COST 5");
    assert_expires(&mut client, "g", 5 * HOUR);
    client.must("RATE.REFUND g 3");
    assert_expires(&mut client, "g", 2 * HOUR);
    client.must("RATE.TIERS t 2 9 1 3600000 9 1 60000 COST 5");
    client.must("RATE.REFUND t 4");
    assert_expires(&mut client, "t", HOUR);
    client.must("RATE.WINDOW w 9 3600000 COST 5");
    let end = client.must("PEXPIRETIME w");
    client.must("RATE.REFUND w 4");
    assert_eq!(client.must("PEXPIRETIME w"), end);
}

// ONCE

#[test]
fn once_is_one_for_the_first_and_zero_for_the_others() {
    let (server, mut client) = server_and_client();
    assert_eq!(client.run("RATE.ONCE order PX 3600000"), 1);
    assert_expires(&mut client, "order", HOUR);
    let end = client.must("PEXPIRETIME order");
    // Another time does not count.
    for line in ["RATE.ONCE order PX 3600000", "rate.once order px 1"] {
        assert_eq!(client.run(line), 0, "{line}");
        assert_eq!(client.must("PEXPIRETIME order"), end);
    }
    assert_eq!(client.run("RATE.ONCE other PX 1"), 1);
    eventually(SOON, || client.run("RATE.ONCE other PX 3600000") == 1);
    assert_eq!(client.run("DEL order"), 1);
    assert_eq!(client.run("RATE.ONCE order PX 315360000000"), 1);
    assert_eq!(server.info_int("sluice_rate_once_first"), 4);
}

/// Also where the server still has the key: through the very millisecond in which it expires, and while a script runs.
#[test]
fn once_ends_with_its_last_millisecond() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for _ in 0..20 {
        client.must("DEL k");
        assert_eq!(client.run("RATE.ONCE k PX 5"), 1);
        let end = client.must("PEXPIRETIME k").int();
        let is_first = || {
            let is_over = now_ms(&mut client) >= end;
            let is_first = client.run("RATE.ONCE k PX 3600000") == 1;
            assert!(is_first || !is_over, "there is a second after the end");
            is_first
        };
        eventually(SOON, is_first);
        assert!(
            now_ms(&mut client) >= end,
            "there is a second before the end"
        );
        assert_expires(&mut client, "k", HOUR);
    }
    // For the server no time goes by in a script.
    let script = "for call = 1, 1000000 do
            if redis.call('RATE.ONCE', KEYS[1], 'PX', 20) == 1 and call > 1 then
                redis.call('PEXPIRE', KEYS[1], 3600000)
                return redis.call('RATE.ONCE', KEYS[1], 'PX', 20)
            end
        end";
    assert_eq!(client.call(["EVAL", script, "1", "s"]), 0);
    assert_expires(&mut client, "s", HOUR);
    assert_identical(&master, &replica);
    let mut there = Raw::connect(&replica);
    for key in ["k", "s"] {
        let end = client.call(["PEXPIRETIME", key]);
        assert_eq!(there.call(["PEXPIRETIME", key]), end);
    }
}

#[test]
fn of_many_clients_one_is_the_first_and_exactly_the_limit_is_let_through() {
    const CLIENTS: usize = 8;
    const CALLS: usize = 200;
    const LINES: [&str; 5] = [
        "RATE.ONCE once PX 3600000",
        "RATE.GCRA g 499 1 3600000",
        "RATE.WINDOW w 500 3600000",
        "RATE.WINDOW s 500 3600000 SLIDING",
        "RATE.TIERS t 2 999 1 3600000 499 1 3600000",
    ];
    let server = Server::start();
    let passed = LINES.map(|_| AtomicI64::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                for _ in 0..CALLS {
                    let replies = client.run_all(LINES);
                    for (reply, passed) in replies.iter().zip(&passed) {
                        let pass = match reply {
                            Value::Int(first) => *first,
                            reply => 1 - ints(reply)[0],
                        };
                        passed.fetch_add(pass, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let passed = passed.map(AtomicI64::into_inner);
    assert_eq!(passed, [1, 500, 500, 500, 500]);
}

// CL.THROTTLE

#[test]
fn throttle_is_the_drop_in_for_redis_cell() {
    let (_server, mut client) = server_and_client();
    // The example of redis-cell's README.
    let line = "CL.THROTTLE user123 15 30 60";
    assert_eq!(ask(&mut client, line), [0, 16, 15, -1, 2]);
    client.must("CL.THROTTLE hour 15 1 3600 15");
    let line = "CL.THROTTLE hour 15 1 3600";
    let reply = ask(&mut client, line);
    assert_eq!(reply[..4], [0, 16, 0, -1]);
    assert!(
        (16 * 3600 - 60..=16 * 3600).contains(&reply[4]),
        "{reply:?}"
    );
    // Seconds are rounded up: a part of one is one.
    let reply = ask(&mut client, line);
    assert_eq!(reply[..3], [1, 16, 0]);
    assert!((3540..=3600).contains(&reply[3]), "{reply:?}");
    assert_eq!(
        ask(&mut client, "CL.THROTTLE quick 0 1000 1"),
        [0, 1, 0, -1, 1]
    );
    assert_eq!(ask(&mut client, "CL.THROTTLE two 0 1 2"), [0, 1, 0, -1, 2]);
    // Nearly two seconds are two.
    let replies = client.transact(["CL.THROTTLE both 0 1 2", "CL.THROTTLE both 0 1 2"]);
    assert_eq!(ints(&replies[1]), [1, 1, 0, 2, 2]);
    // More than there can be, and nothing.
    assert_eq!(
        ask(&mut client, "CL.THROTTLE none 15 30 60 17"),
        [1, 16, 16, -1, 0]
    );
    assert_eq!(
        ask(&mut client, "CL.THROTTLE none 15 30 60 0"),
        [0, 16, 16, -1, 0]
    );
    assert_eq!(
        ask(&mut client, "CL.THROTTLE many 15 30 60 16"),
        [0, 16, 0, -1, 32]
    );
    let line = format!("CL.THROTTLE slow 0 1 {}", TEN_YEARS / 1000);
    assert_eq!(ask(&mut client, &line), [0, 1, 0, -1, TEN_YEARS / 1000]);
}

#[test]
fn throttle_and_gcra_are_the_same_limit() {
    let (_server, mut client) = server_and_client();
    client.must("CL.THROTTLE k 4 1 3600 2");
    assert_reply(
        &mut client,
        "RATE.GCRA k 4 1 3600000",
        [0, 5, 2, -1, 3 * HOUR],
    );
    let reply = ask(&mut client, "CL.THROTTLE k 4 1 3600 2");
    assert_eq!(reply[..4], [0, 5, 0, -1]);
    client.must("RATE.REFUND k 5");
    assert_eq!(client.run("EXISTS k"), 0);
}

// PEEK, COST

#[test]
fn peek_tells_what_would_be_and_changes_nothing() {
    let (_server, mut client) = server_and_client();
    for (kind, line) in counting_kinds().filter(|(kind, _)| *kind != "throttle") {
        let line = at(line, kind);
        let peek = format!("{line} PEEK");
        for _ in 0..3 {
            assert_eq!(ask(&mut client, &peek)[..5], [0, 5, 5, -1, 0], "{peek}");
            assert_eq!(client.run(&format!("EXISTS {kind}")), 0, "{peek}");
        }
        let real = ask(&mut client, &format!("{line} COST 3"));
        assert_eq!(real[..4], [0, 5, 2, -1]);
        let dump = client.must(&format!("DUMP {kind}"));
        let end = client.must(&format!("PEXPIRETIME {kind}"));
        for (options, expected) in [
            ("PEEK", [0, 5, 2]),
            ("PEEK COST 2", [0, 5, 2]),
            ("COST 3 PEEK", [1, 5, 2]),
            ("PEEK COST 6", [1, 5, 2]),
            ("PEEK COST 0", [0, 5, 2]),
            ("COST 0", [0, 5, 2]),
        ] {
            let reply = ask(&mut client, &format!("{line} {options}"));
            assert_eq!(reply[..3], expected, "{line} {options}");
            assert_eq!(client.must(&format!("DUMP {kind}")), dump, "{options}");
            assert_eq!(client.must(&format!("PEXPIRETIME {kind}")), end);
        }
    }
}

#[test]
fn a_call_that_costs_nothing_makes_no_key() {
    let (_server, mut client) = server_and_client();
    for (kind, line) in counting_kinds() {
        let line = costing(&at(line, kind), 0);
        assert_eq!(ask(&mut client, &line)[..5], [0, 5, 5, -1, 0], "{line}");
    }
    assert_eq!(client.run("DBSIZE"), 0);
}

// Refusals change nothing

#[test]
fn refusals_peeks_and_errors_change_nothing_and_write_nothing() {
    let server = Server::builder().aof(Fsync::No).start();
    let mut client = Raw::connect(&server);
    fill(&mut client);
    client.must("SET string v");
    server.await_rewrite();
    let keys = KINDS.map(|(kind, _)| kind);
    let look = |client: &mut Raw| {
        let lines = keys
            .iter()
            .flat_map(|key| [format!("DUMP {key}"), format!("PEXPIRETIME {key}")]);
        client.run_all(lines)
    };
    let (before, dumps) = (Written::by(&server), look(&mut client));
    let mut lines: Vec<String> = Vec::new();
    for (kind, line) in counting_kinds() {
        // Too much now, too much ever, nothing; of a key and of none.
        lines.extend([3, 6, 0].map(|cost| costing(&at(line, kind), cost)));
        lines.extend([6, 0].map(|cost| costing(&at(line, "none"), cost)));
        lines.push(costing(&at(line, "string"), 1));
        lines.push(at(line, "once"));
        lines.push(format!("RATE.REFUND {kind} 0"));
        lines.push(format!("RATE.REFUND {kind} -1"));
        lines.push(format!("RATE.ONCE {kind} PX 1000"));
    }
    lines.extend(
        [
            "RATE.GCRA gcra 4 1 315360000000 PEEK",
            "RATE.GCRA gcra 0 1 1000",
            "RATE.GCRA gcra 2 7 315360000000",
            "RATE.GCRA none 4 1 315360000000 PEEK",
            "RATE.WINDOW window 5 315360000000 PEEK",
            "RATE.WINDOW window 3 1000000000",
            "RATE.WINDOW sliding 5 315360000000",
            "RATE.WINDOW sliding 3 1000000000 SLIDING",
            "RATE.TIERS tiers 1 2 1 1000000000",
            "RATE.TIERS tiers 2 9 1 315360000000 1 1 315360000000",
            "RATE.REFUND none 1",
            "RATE.REFUND once 1",
            "RATE.REFUND string 1",
            "RATE.ONCE once PX 1000",
            "RATE.ONCE none PX 0",
            "RATE.ONCE string PX 1000",
            "RATE.APPLY gcra nonsense",
            "INFO sluice",
        ]
        .map(str::to_owned),
    );
    for line in &lines {
        client.run(line);
        // Also what the server does of its own accord after the command.
        client.run("PING");
        assert_eq!(Written::by(&server), before, "{line}");
        assert_eq!(look(&mut client), dumps, "{line}");
    }
    client.transact(&lines);
    assert_eq!(Written::by(&server), before);
    let script = "return redis.call('RATE.GCRA', KEYS[1], 4, 1, 315360000000, 'COST', 3)";
    assert_eq!(client.call(["EVAL", script, "1", "gcra"]).array()[0], 1);
    assert_eq!(Written::by(&server), before);
    assert_eq!(client.run("EXISTS none"), 0);
}

// A changed configuration

#[test]
fn another_configuration_counts_at_once_and_keeps_what_was_consumed() {
    let (_server, mut client) = server_and_client();
    client.must("RATE.GCRA g 9 1 3600000 COST 6");
    for (line, expected) in [
        // Another burst, count, period.
        ("RATE.GCRA g 19 1 3600000 COST 0", [0, 20, 14, -1, 6 * HOUR]),
        (
            "RATE.GCRA g 4 1 3600000 COST 1",
            [1, 5, 0, 2 * HOUR, 6 * HOUR],
        ),
        ("RATE.GCRA g 4 1 3600000 COST 0", [1, 5, 0, HOUR, 6 * HOUR]),
        ("RATE.GCRA g 9 1 7200000 COST 0", [0, 10, 4, -1, 12 * HOUR]),
        (
            "RATE.GCRA g 5 2 3600000 COST 1",
            // Counted from the end of the millisecond of the last call on.
            [1, 6, 0, HOUR / 2 + 1, 3 * HOUR + 1],
        ),
        ("RATE.GCRA g 9 2 3600000 COST 4", [0, 10, 0, -1, 5 * HOUR]),
        (
            "RATE.GCRA g 9 2 3600000 COST 1",
            [1, 10, 0, HOUR / 2, 5 * HOUR],
        ),
    ] {
        assert_reply(&mut client, line, expected);
    }
    assert_expires(&mut client, "g", 5 * HOUR);
    for slides in ["", " SLIDING"] {
        let key = format!("w{}", slides.len());
        let line = |rest: &str| format!("RATE.WINDOW {key} {rest}{slides}");
        client.must(&line("10 3600000 COST 6"));
        let many = ask(&mut client, &line("20 3600000 COST 0"));
        assert_eq!(many[..4], [0, 20, 14, -1]);
        let few = ask(&mut client, &line("5 3600000 COST 0"));
        assert_eq!(few[..3], [1, 5, 0]);
        // A longer window began when this one did.
        let long = ask(&mut client, &line("10 7200000 COST 4"));
        assert_eq!(long[..4], [0, 10, 0, -1]);
        let end = if slides.is_empty() {
            2 * HOUR
        } else {
            4 * HOUR
        };
        assert_expires(&mut client, &key, end);
    }
    client.must("RATE.TIERS t 2 9 1 3600000 19 1 86400000 COST 6");
    // They may change places, and become more or fewer.
    for (line, expected) in [
        (
            "RATE.TIERS t 2 19 1 86400000 9 1 3600000 COST 0",
            [0, 10, 4, 1],
        ),
        ("RATE.TIERS t 1 7 1 86400000 COST 0", [0, 8, 2, 0]),
        ("RATE.TIERS t 1 7 5 60000 COST 0", [0, 8, 2, 0]),
        (
            "RATE.TIERS t 3 7 1 86400000 9 1 3600000 0 1 1 COST 0",
            [0, 1, 1, 2],
        ),
    ] {
        let reply = ask(&mut client, line);
        assert_eq!([reply[0], reply[1], reply[2], reply[5]], expected, "{line}");
    }
}

// Kinds and types

#[test]
fn a_key_of_another_kind_is_an_error() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in KINDS {
        for (other, _) in KINDS {
            // CL.THROTTLE is GCRA.
            let is_same = |name: &str| if name == "throttle" { "gcra" } else { name }.to_owned();
            let line = at(line, other);
            let reply = client.run(&line);
            if is_same(kind) == is_same(other) {
                assert!(!reply.is_err(), "{line}: {reply:?}");
            } else {
                assert_eq!(reply.err(), OTHER_KIND, "{line}");
                if kind != "once" {
                    let costly = client.run(&costing(&line, 0));
                    assert_eq!(costly.err(), OTHER_KIND, "{line}");
                }
            }
        }
    }
}

#[test]
fn limits_and_other_types_refuse_each_others_commands() {
    let (server, mut client) = server_and_client();
    for line in [
        "SET string v",
        "RPUSH list a",
        "HSET hash f v",
        "SADD set a",
        "ZADD zset 1 a",
        "XADD stream * f v",
        "LOCK.ACQUIRE lock me PX 3600000",
        "STOCK.SET stock 5",
        "BF.RESERVE bloom 0.01 100",
        "CF.RESERVE cuckoo 100",
    ] {
        client.must(line);
    }
    fill(&mut client);
    let digest = server.digest();
    for key in [
        "string", "list", "hash", "set", "zset", "stream", "lock", "stock", "bloom", "cuckoo",
    ] {
        for (_, line) in KINDS {
            let line = at(line, key);
            assert_eq!(client.run(&line).err(), WRONGTYPE, "{line}");
        }
        let reply = client.call(["RATE.REFUND", key, "1"]);
        assert_eq!(reply.err(), WRONGTYPE, "{key}");
    }
    for line in [
        "GET gcra",
        "INCR window",
        "APPEND once x",
        "LPUSH tiers a",
        "HSET sliding f v",
        "LOCK.ACQUIRE gcra me",
        "LOCK.INFO gcra",
        "SEM.ACQUIRE gcra me LIMIT 1",
        "STOCK.ADD window 1",
        "STOCK.IMPORT window",
        "BF.ADD tiers x",
        "CF.ADD once x",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn keys_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let long = vec![0xff; 100_000];
    let keys: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"\xff\xfe", b"a\r\nb ", &long];
    for key in keys {
        for (kind, line) in KINDS {
            client.call([b"DEL", key]);
            let words: Vec<&[u8]> = line
                .split(' ')
                .map(|word| if word == "%" { key } else { word.as_bytes() })
                .collect();
            let reply = client.call(&words);
            match kind {
                "once" => assert_eq!(reply, 1),
                _ => assert_eq!(ints(&reply)[..3], [0, 5, 4]),
            }
            assert_eq!(client.call([b"EXISTS", key]), 1);
            let refund = client.call([b"RATE.REFUND", key, b"1"]);
            assert_eq!(refund.is_err(), kind == "once");
        }
    }
}

// Arguments

/// Commands with a place for an integer, its name, and its range.
fn integers() -> Vec<(&'static str, &'static str, i64, i64)> {
    let mut integers = vec![
        ("RATE.GCRA k # 1 1000", "burst", 0, MOST - 1),
        ("RATE.GCRA k 1 # 1000", "count", 1, MOST),
        ("RATE.GCRA k 1 1 #", "period-ms", 1, TEN_YEARS),
        ("RATE.WINDOW k # 1000", "limit", 0, MOST),
        ("RATE.WINDOW k 5 #", "window-ms", 1, TEN_YEARS),
        ("RATE.WINDOW k 5 # SLIDING", "window-ms", 1, TEN_YEARS),
        ("RATE.TIERS k # 1 1 1000", "numtiers", 1, 64),
        ("RATE.TIERS k 1 # 1 1000", "burst", 0, MOST - 1),
        ("RATE.TIERS k 1 1 # 1000", "count", 1, MOST),
        ("RATE.TIERS k 1 1 1 #", "period-ms", 1, TEN_YEARS),
        ("RATE.TIERS k 2 1 1 1000 # 1 1", "burst", 0, MOST - 1),
        ("RATE.TIERS k 2 1 1 1000 1 1 #", "period-ms", 1, TEN_YEARS),
        ("RATE.REFUND k #", "n", 0, MOST),
        ("RATE.ONCE k PX #", "PX", 1, TEN_YEARS),
        ("CL.THROTTLE k # 1 1", "max_burst", 0, MOST - 1),
        ("CL.THROTTLE k 1 # 1", "count", 1, MOST),
        ("CL.THROTTLE k 1 1 #", "period-s", 1, TEN_YEARS / 1000),
        ("CL.THROTTLE k 1 1 1 #", "quantity", 0, MOST),
    ];
    for line in [
        "RATE.GCRA k 1 1 1000 COST #",
        "RATE.GCRA k 1 1 1000 PEEK cost #",
        "RATE.WINDOW k 5 1000 COST #",
        "RATE.WINDOW k 5 1000 Cost # SLIDING",
        "RATE.TIERS k 1 1 1 1000 COST #",
    ] {
        integers.push((line, "COST", 0, MOST));
    }
    integers
}

#[test]
fn integers_outside_their_range_are_named_with_it() {
    let (_server, mut client) = server_and_client();
    for (line, name, least, most) in integers() {
        let expected = format!("ERR {name} must be between {least} and {most}");
        for number in [least - 1, most + 1, i64::MIN, i64::MAX, -1] {
            let reply = client.run(&line.replace('#', &number.to_string()));
            assert_eq!(reply.err(), expected, "{line} {number}");
        }
        for number in [
            "",
            "x",
            "1.5",
            "+1",
            "01",
            "-0",
            "1e3",
            "0x10",
            "1\0",
            " 1",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            let words = line.split(' ');
            let words = words.map(|word| if word == "#" { number } else { word });
            let reply = client.call(words);
            assert_eq!(reply.err(), NOT_AN_INTEGER, "{line} {number:?}");
        }
        assert_eq!(client.run("DBSIZE"), 0);
    }
}

#[test]
fn integers_at_the_ends_of_their_range_work() {
    let (_server, mut client) = server_and_client();
    for (line, name, least, most) in integers() {
        for number in [least, most] {
            if name == "numtiers" && number == most {
                continue;
            }
            client.must("DEL k");
            client.must(&line.replace('#', &number.to_string()));
            client.must("RATE.REFUND none 1");
        }
    }
    // All of them together.
    for line in [
        format!("RATE.GCRA a {} {MOST} {TEN_YEARS} COST {MOST}", MOST - 1),
        format!("RATE.GCRA b {} 1 {TEN_YEARS} COST {MOST}", MOST - 1),
        format!("RATE.GCRA c {} {MOST} 1 COST {MOST}", MOST - 1),
        format!("RATE.WINDOW d {MOST} {TEN_YEARS} COST {MOST}"),
        format!("RATE.WINDOW e {MOST} {TEN_YEARS} COST {MOST} SLIDING"),
        format!(
            "RATE.TIERS f 2 {0} 1 {TEN_YEARS} {0} {MOST} 1 COST {MOST}",
            MOST - 1
        ),
    ] {
        let replies = [(); 2].map(|()| ask(&mut client, &line));
        assert_eq!(replies[0][0], 0, "{line}");
        let mut numbers = replies.iter().flatten();
        assert!(numbers.all(|number| (-1..=MOST).contains(number)), "{line}");
        let key = line.split(' ').nth(1).expect("a key");
        client.must(&format!("RATE.REFUND {key} {MOST}"));
    }
}

#[test]
fn missing_repeated_and_unknown_options_are_syntax_errors() {
    let (_server, mut client) = server_and_client();
    for line in [
        "RATE.GCRA k 1 1 1000 BOGUS",
        "RATE.GCRA k 1 1 1000 COST",
        "RATE.GCRA k 1 1 1000 PEEK COST",
        "RATE.GCRA k 1 1 1000 COST 1 COST 1",
        "RATE.GCRA k 1 1 1000 COST 1 cost 2",
        "RATE.GCRA k 1 1 1000 PEEK Peek",
        "RATE.GCRA k 1 1 1000 SLIDING",
        "RATE.GCRA k 1 1 1000 PX 5",
        "RATE.GCRA k 1 1 1000 5",
        "RATE.GCRA k 1 1 1000 COST 1 2",
        "RATE.GCRA k 1 1 1000 PEEKS",
        "RATE.WINDOW k 5 1000 BOGUS",
        "RATE.WINDOW k 5 1000 COST",
        "RATE.WINDOW k 5 1000 SLIDING SLIDING",
        "RATE.WINDOW k 5 1000 PEEK SLIDING peek",
        "RATE.WINDOW k 5 1000 1000",
        "RATE.TIERS k 1 1 1 1000 SLIDING",
        "RATE.TIERS k 1 1 1 1000 COST",
        "RATE.TIERS k 1 1 1 1000 PEEK PEEK",
        "RATE.ONCE k EX 5",
        "RATE.ONCE k COST 5",
        "RATE.ONCE k 5 PX",
        "RATE.ONCE k PX 1 PX 1",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    let too_many = client.run("CL.THROTTLE k 1 1 1 1 1");
    let arity = "ERR wrong number of arguments for 'cl.throttle' command";
    assert_eq!(too_many.err(), arity);
    assert_eq!(client.run("CL.THROTTLE k 1 1 1 PEEK").err(), NOT_AN_INTEGER);
    for option in [b"PEEK\0".as_slice(), b"", b"\xff", b"COS"] {
        let line: [&[u8]; 6] = [b"RATE.GCRA", b"k", b"1", b"1", b"1000", option];
        assert_eq!(client.call(line).err(), SYNTAX);
    }
    // A syntax error, whatever the key holds: the arguments come first.
    client.must("SET string v");
    assert_eq!(client.run("RATE.GCRA string 1 1 1000 X").err(), SYNTAX);
    assert_eq!(client.run("RATE.REFUND string x").err(), NOT_AN_INTEGER);
    assert_eq!(client.run("DBSIZE"), 1);
}

#[test]
fn options_come_in_any_case_and_order() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("rate.gcra a 4 1 3600000 cost 2 peek", [0, 5, 5]),
        ("Rate.Gcra a 4 1 3600000 PEEK COST 2", [0, 5, 5]),
        ("RATE.WINDOW b 5 3600000 SLIDING COST 2", [0, 5, 3]),
        ("RATE.WINDOW b 5 3600000 cost 1 Sliding", [0, 5, 2]),
        ("RATE.WINDOW b 5 3600000 peek sliding cost 2", [0, 5, 2]),
        ("RATE.WINDOW b 5 3600000 SLIDING PEEK", [0, 5, 2]),
        ("RATE.TIERS c 1 4 1 3600000 Cost 3 PeeK", [0, 5, 5]),
        ("RATE.TIERS c 1 4 1 3600000 peek cost 3", [0, 5, 5]),
        ("cl.throttle d 4 1 3600 2", [0, 5, 3]),
    ] {
        assert_eq!(ask(&mut client, line)[..3], expected, "{line}");
    }
    assert_eq!(client.run("rate.once e pX 3600000"), 1);
    assert_eq!(client.run("rate.refund d 2"), 1);
}

// The end of a key

#[test]
fn a_key_is_gone_by_itself_when_it_no_longer_matters() {
    let (_server, mut client) = server_and_client();
    for (key, line, most) in [
        ("g", "RATE.GCRA g 9 2 100 COST 3", 150),
        ("w", "RATE.WINDOW w 9 120", 120),
        ("s", "RATE.WINDOW s 9 60 SLIDING", 120),
        ("t", "RATE.TIERS t 2 9 1 50 9 1 100", 100),
        ("o", "RATE.ONCE o PX 90", 90),
        ("c", "CL.THROTTLE c 9 10 1", 100),
    ] {
        let before = now_ms(&mut client);
        // The reset of the reply and the end of the key are the same time. One step, so that the key is still there.
        let replies = client.transact([line, &format!("PEXPIRETIME {key}")]);
        let end = replies[1].int();
        let after = now_ms(&mut client);
        assert!((before + most..=after + most + 1).contains(&end), "{line}");
        eventually(SOON, || client.call(["EXISTS", key]) == 0);
        assert!(now_ms(&mut client) >= end, "{key} has gone too early");
    }
    eventually(SOON, || client.run("DBSIZE") == 0);
    // What is allowed again is new.
    assert_eq!(
        ask(&mut client, "RATE.WINDOW w 9 3600000"),
        [0, 9, 8, -1, HOUR]
    );
}

#[test]
fn a_hundred_thousand_idle_keys_are_gone_by_themselves() {
    const KEYS: usize = 100_000;
    let (server, mut client) = server_and_client();
    client.must("SET warm up");
    client.must("DEL warm");
    let before = server.info_int("used_memory");
    let line = |number: usize| match number % 5 {
        0 => format!("RATE.GCRA k{number} 5 1 300"),
        1 => format!("RATE.WINDOW k{number} 5 300"),
        2 => format!("RATE.WINDOW k{number} 5 150 SLIDING"),
        3 => format!("RATE.TIERS k{number} 2 5 1 300 5 2 300"),
        _ => format!("RATE.ONCE k{number} PX 300"),
    };
    for start in (0..KEYS).step_by(10_000) {
        for reply in client.run_all((start..start + 10_000).map(line)) {
            assert!(!reply.is_err(), "{reply:?}");
        }
    }
    assert!(server.info_int("sluice_rate_allowed") == 80_000);
    eventually(SOON, || {
        thread::sleep(Duration::from_millis(20));
        client.run("DBSIZE") == 0
    });
    // And so is their memory, but for buffers and tables that the server keeps for a while.
    drop(client);
    eventually(SOON, || server.info_int("used_memory") - before < 2_000_000);
}

// Transactions, scripts, WATCH, events

#[test]
fn replies_are_the_same_in_both_protocols() {
    let (server, mut client) = server_and_client();
    let mut third = Raw::connect(&server);
    third.hello3();
    for (kind, line) in counting_kinds() {
        let peek = costing(&at(line, kind), 0);
        let (two, three) = (client.must(&peek), third.must(&peek));
        assert_eq!(two, three, "{peek}");
        assert!(matches!(three, Value::Array(_)), "{three:?}");
    }
    assert_eq!(third.run("RATE.ONCE o PX 3600000"), 1);
    assert_eq!(third.run("RATE.ONCE o PX 3600000"), 0);
    assert_eq!(third.run("RATE.REFUND none 1"), 0);
    assert_eq!(third.run("RATE.REFUND o 1").err(), OTHER_KIND);
}

#[test]
fn commands_work_in_transactions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "RATE.GCRA g 4 1 3600000 COST 5",
        "RATE.GCRA g 4 1 3600000",
        "RATE.REFUND g 5",
        "RATE.GCRA g 4 1 3600000",
        "RATE.WINDOW g 4 1000",
        "RATE.ONCE o PX 3600000",
        "RATE.ONCE o PX 3600000",
        "RATE.TIERS t 1 4 1 3600000",
        "CL.THROTTLE g 4 1 3600",
    ]);
    assert_eq!(ints(&replies[0])[..3], [0, 5, 0]);
    assert_eq!(ints(&replies[1])[..3], [1, 5, 0]);
    assert_eq!(replies[2], 1);
    assert_eq!(ints(&replies[3])[..3], [0, 5, 4]);
    assert_eq!(replies[4].err(), OTHER_KIND);
    assert_eq!((replies[5].int(), replies[6].int()), (1, 0));
    assert_eq!(ints(&replies[7]), [0, 5, 4, -1, HOUR, 0]);
    assert_eq!(ints(&replies[8])[..3], [0, 5, 3]);
}

#[test]
fn commands_work_in_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let script = "local reply = redis.call('RATE.GCRA', KEYS[1], ARGV[1], 1, 3600000)
        return {reply[1], reply[2], reply[3], reply[4]}";
    let most = (MOST - 1).to_string();
    let reply = client.call(["EVAL", script, "1", "k", &most]);
    assert_eq!(ints(&reply), [0, MOST, MOST - 1, -1]);
    // Every integer is exact in Lua.
    let script = "local reply = redis.call('RATE.GCRA', KEYS[1], ARGV[1], 1, 3600000, 'PEEK')
        return tostring(reply[3] == 9007199254740990)";
    assert_eq!(client.call(["EVAL", script, "1", "k", &most]), "true");
    let script = "return redis.pcall('RATE.WINDOW', KEYS[1], 1, 1000).err";
    let text = client.call(["EVAL", script, "1", "k"]);
    assert!(text.text().contains(OTHER_KIND), "{text:?}");
    let script = "return {redis.call('RATE.ONCE', KEYS[1], 'PX', 3600000),
        redis.call('RATE.ONCE', KEYS[1], 'PX', 3600000),
        redis.call('RATE.REFUND', KEYS[2], 1)}";
    let reply = client.call(["EVAL", script, "2", "o", "k"]);
    assert_eq!(ints(&reply), [1, 0, 1]);
    let library = "#!lua name=limits
        redis.register_function('ask', function(keys, args)
            return redis.call('CL.THROTTLE', keys[1], args[1], 1, 3600)
        end)";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(ints(&client.run("FCALL ask 1 f 4")), [0, 5, 4, -1, 3600]);
    assert_eq!(ints(&client.run("FCALL ask 1 f 0"))[..3], [1, 1, 0]);
}

#[test]
fn watch_sees_allowed_calls_and_no_refused_ones() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    let mut other = Raw::connect(&server);
    let mut is_seen = |key: &str, between: &str| {
        other.call(["WATCH", key]);
        client.run(between);
        other.run("MULTI");
        other.run("PING");
        other.run("EXEC").is_nil()
    };
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        for (line, expected) in [
            (costing(&line, 3), false),
            (costing(&line, 0), false),
            (format!("RATE.REFUND {kind} 0"), false),
            (costing(&line, 1), true),
            (line.clone(), true),
            (line.clone(), false),
            (format!("RATE.REFUND {kind} 1"), true),
            (format!("RATE.REFUND {kind} 5"), true),
            (format!("RATE.REFUND {kind} 5"), false),
            (line, true),
        ] {
            assert_eq!(is_seen(kind, &line), expected, "{line}");
        }
    }
    assert!(!is_seen("once", "RATE.ONCE once PX 1000"));
    assert!(is_seen("new", "RATE.ONCE new PX 3600000"));
    assert!(!is_seen("g", "RATE.GCRA g 4 1 3600000 PEEK"));
}

#[test]
fn changes_are_keyspace_events_and_refusals_are_not() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEd");
    for (line, expected) in [
        ("RATE.GCRA k 1 1 3600000", &["rate.gcra k"][..]),
        ("rate.gcra k 1 1 3600000 cost 0", &[]),
        ("RATE.GCRA k 1 1 3600000 PEEK", &[]),
        ("CL.THROTTLE k 1 1 3600", &["cl.throttle k"]),
        ("CL.THROTTLE k 1 1 3600", &[]),
        ("RATE.GCRA k 1 1 3600000", &[]),
        ("RATE.REFUND k 0", &[]),
        ("RATE.REFUND k 1", &["rate.refund k"]),
        ("RATE.REFUND k 1", &["rate.refund k"]),
        ("RATE.REFUND k 1", &[]),
        ("RATE.WINDOW w 2 3600000", &["rate.window w"]),
        // What is only added to what is there is a change, too.
        ("RATE.WINDOW w 2 3600000", &["rate.window w"]),
        ("RATE.WINDOW w 2 3600000", &[]),
        ("RATE.WINDOW s 1 3600000 SLIDING", &["rate.window s"]),
        ("RATE.TIERS t 1 0 1 3600000", &["rate.tiers t"]),
        ("RATE.TIERS t 1 0 1 3600000", &[]),
        ("RATE.ONCE o PX 3600000", &["rate.once o"]),
        ("RATE.ONCE o PX 3600000", &[]),
        ("RATE.GCRA o 1 1 1000", &[]),
    ] {
        client.run(line);
        assert_eq!(events.take(), expected, "{line}");
    }
    // The end of a key is the server's own event.
    let mut events = KeyspaceEvents::of(&server, "KEA");
    client.must("RATE.GCRA k 1 1 3600000");
    client.must("RATE.REFUND k 1");
    assert_eq!(events.take(), ["rate.gcra k", "rate.refund k", "del k"]);
    client.must("RATE.ONCE short PX 1");
    let mut told = events.take();
    eventually(SOON, || {
        client.run("EXISTS short");
        told.extend(events.take());
        told.last().is_some_and(|last| last == "expired short")
    });
    assert_eq!(told, ["rate.once short", "expired short"]);
}

// What the server tells

#[test]
fn info_counts_what_happens() {
    const COUNTERS: [&str; 6] = [
        "allowed",
        "limited",
        "peeked",
        "refunded",
        "once_first",
        "once_duplicate",
    ];
    let (_server, mut client) = server_and_client();
    let info = client.run("INFO sluice").text().to_owned();
    assert!(info.contains("# sluice_rate\r\n"), "{info}");
    let mut last = [0; 6];
    for (line, expected) in [
        ("RATE.GCRA g 0 1 3600000", &["allowed"][..]),
        ("RATE.GCRA g 0 1 3600000", &["limited"]),
        ("RATE.GCRA g 0 1 3600000 PEEK", &["peeked"]),
        ("RATE.GCRA new 0 1 3600000 PEEK", &["peeked"]),
        ("RATE.GCRA g 0 1 3600000 COST 5", &["limited"]),
        ("RATE.GCRA g 0 1 3600000 COST x", &[]),
        ("CL.THROTTLE g 0 1 3600", &["limited"]),
        ("RATE.WINDOW w 1 3600000", &["allowed"]),
        ("RATE.WINDOW w 1 3600000", &["limited"]),
        ("RATE.WINDOW g 1 3600000", &[]),
        ("RATE.TIERS t 1 0 1 3600000", &["allowed"]),
        ("RATE.TIERS t 1 0 1 3600000", &["limited"]),
        ("RATE.TIERS t 1 0 1 3600000 PEEK", &["peeked"]),
        ("RATE.REFUND t 1", &["refunded"]),
        ("RATE.REFUND t 1", &[]),
        ("RATE.ONCE o PX 3600000", &["once_first"]),
        ("RATE.ONCE o PX 3600000", &["once_duplicate"]),
        ("RATE.ONCE g PX 3600000", &[]),
        ("RATE.REFUND o 1", &[]),
    ] {
        client.run(line);
        let info = client.run("INFO sluice");
        let now = COUNTERS.map(|name| field_of(&info, &format!("sluice_rate_{name}")));
        let counters = COUNTERS.into_iter().zip(now.iter().zip(last));
        let grown: Vec<_> = counters
            .filter(|(_, (now, last))| **now != *last)
            .inspect(|(name, (now, last))| assert_eq!(**now, last + 1, "{line} {name}"))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(grown, expected, "{line}");
        last = now;
    }
}

/// The commands of the contract, with the least number of words, the keywords, and the flag of growing memory.
const COMMANDS: [(&str, i64, &str, bool); 8] = [
    // Those with PEEK refuse on their own what needs memory.
    ("rate.gcra", -5, "AHEAD COST PEEK", false),
    ("rate.window", -4, "COST EXACT PEEK SLIDING", false),
    ("rate.tiers", -6, "AHEAD COST PEEK", false),
    ("rate.mgcra", -6, "AHEAD COST PEEK", false),
    ("rate.charge", 3, "", false),
    ("rate.refund", 3, "", false),
    ("rate.once", -4, "PX", true),
    ("cl.throttle", -5, "", true),
];

#[test]
fn every_command_tells_what_it_is() {
    let (_server, mut client) = server_and_client();
    for (name, arity, keywords, grows) in COMMANDS {
        let info = client.call(["COMMAND", "INFO", name]);
        let info = info.array()[0].array();
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        for (flag, expected) in [
            ("write", true),
            ("fast", name != "rate.mgcra"),
            ("module", true),
            ("denyoom", grows),
            ("readonly", false),
            ("blocking", false),
        ] {
            assert_eq!(flags.contains(&flag), expected, "{name}: {flags:?}");
        }
        let [spec] = info[8].array() else {
            panic!("{name} has one key");
        };
        let flags: Vec<_> = spec
            .field("flags")
            .array()
            .iter()
            .map(Value::text)
            .collect();
        assert!(
            flags.contains(&"RW") && !flags.contains(&"incomplete"),
            "{name}: {flags:?}"
        );

        let docs = client.call(["COMMAND", "DOCS", name]);
        let docs = docs.field(name);
        assert!(!docs.field("summary").text().is_empty(), "{name}");
        assert!(docs.field("complexity").text().starts_with("O("), "{name}");
        let mut found = Vec::new();
        collect_tokens(docs.field("arguments"), &mut found);
        found.sort();
        assert_eq!(found.join(" "), keywords, "{name}");

        let too_few = vec![name; usize::try_from(arity.abs() - 1).unwrap()];
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(client.call(too_few).err(), expected);
        if arity > 0 {
            let too_many = vec![name; usize::try_from(arity + 1).unwrap()];
            assert_eq!(client.call(too_many).err(), expected);
        }
        let words = vec!["1"; usize::try_from(arity.abs() - 1).unwrap()];
        let keys = client.call([vec!["COMMAND", "GETKEYS", name], words].concat());
        assert_eq!(keys.array(), [Value::Bulk(b"1".into())], "{name}");
    }
}

fn collect_tokens(arguments: &Value, found: &mut Vec<String>) {
    for argument in arguments.array() {
        if let Some(token) = argument.get("token") {
            found.push(token.text().to_owned());
        }
        if let Some(parts) = argument.get("arguments") {
            collect_tokens(parts, found);
        }
    }
}

#[test]
fn users_are_kept_to_their_keys_commands_and_categories() {
    let (server, mut client) = server_and_client();
    for line in [
        "ACL SETUSER bob on >pw ~own:* +@all",
        "ACL SETUSER eve on >pw %R~own:* +@all",
        "ACL SETUSER ann on >pw ~* +rate.gcra +ping",
        "ACL SETUSER writer on >pw %W~own:* +@all",
    ] {
        client.must(line);
    }
    let mut user = Raw::connect(&server);
    let mut refuses = |who: &str, line: &str| {
        user.must(&format!("AUTH {who} pw"));
        let reply = user.run(line);
        reply.is_err() && reply.err().starts_with("NOPERM ")
    };
    for (kind, line) in KINDS {
        assert!(refuses("bob", &at(line, "other")), "{line}");
        assert!(!refuses("bob", &at(line, &format!("own:{kind}"))), "{line}");
        assert!(refuses("eve", &at(line, "own:read")), "{line}");
        assert_eq!(refuses("ann", &at(line, "a")), kind != "gcra", "{line}");
        assert!(refuses("writer", &at(line, "own:read")), "{line}");
    }
    for command in ["RATE.REFUND", "RATE.CHARGE"] {
        assert!(refuses("bob", &format!("{command} other 1")));
        assert!(refuses("eve", &format!("{command} own:gcra 1")));
        for who in ["bob", "writer"] {
            assert!(!refuses(who, &format!("{command} own:gcra 1")), "{who}");
        }
    }

    let mut listed = |category: &str| {
        let list = client.must(&format!("ACL CAT {category}"));
        let names = list.array().to_vec();
        move |name: &str| names.iter().any(|item| *item == name)
    };
    let [read, write, fast, slow] = ["read", "write", "fast", "slow"].map(&mut listed);
    if !write("rate.gcra") {
        return; // a server before 7.2
    }
    for (name, ..) in COMMANDS {
        let is = [read(name), write(name), fast(name), slow(name)];
        let is_fast = name != "rate.mgcra";
        assert_eq!(is, [false, true, is_fast, !is_fast], "{name}");
    }
}

#[test]
fn a_full_server_refuses_new_limits_and_still_gives_back() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    client.must("CONFIG SET maxmemory 1");
    for (_, line) in KINDS {
        let reply = client.run(&at(line, "new"));
        assert!(reply.err().starts_with("OOM"), "{line}: {reply:?}");
    }
    for (kind, _) in counting_kinds() {
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 1")), 1);
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 9")), 1);
    }
    client.must("CONFIG SET maxmemory 0");
    fill(&mut client);
    assert_filled(&mut client);
}

/// The server would evict the limit before the next command, so each call would be the first one.
#[test]
fn a_server_that_can_evict_too_little_refuses_new_limits() {
    let (_server, mut client) = server_and_client();
    for policy in ["volatile-ttl", "volatile-lru", "allkeys-random"] {
        client.must("CONFIG SET maxmemory 0");
        client.must(&format!("CONFIG SET maxmemory-policy {policy}"));
        client.must("SET other v");
        client.must("CONFIG SET maxmemory 1");
        for (kind, line) in KINDS {
            let reply = client.run(&at(line, "new"));
            assert!(
                reply.err().starts_with("OOM "),
                "{policy}, {line}: {reply:?}"
            );
            if kind != "once" && kind != "throttle" {
                let peek = format!("{} PEEK", at(line, "new"));
                assert_eq!(ask(&mut client, &peek)[0], 0, "{policy}, {line}");
            }
        }
        let mgcra = client.run("RATE.MGCRA 2 new 4 1 1000 other 4 1 1000");
        assert!(mgcra.err().starts_with("OOM "), "{policy}: {mgcra:?}");
        client.must("CONFIG SET maxmemory 0");
        assert_eq!(client.must("EXISTS new"), 0, "{policy}");
    }
}

/// The server evicts before a command, and then there is room for the limit.
#[test]
fn a_server_that_evicts_enough_counts() {
    let (server, mut client) = server_and_client();
    client.run_all((0..4000).map(|number| format!("SET k{number} {}", "v".repeat(200))));
    client.must("CONFIG SET maxmemory-policy allkeys-lru");
    let limit = server.info_int("used_memory") - 100_000;
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    for number in 0..100 {
        let line = format!("RATE.GCRA limit{number} 4 1 3600000");
        assert_eq!(ask(&mut client, &line)[..3], [0, 5, 4]);
    }
    assert!(server.info_int("evicted_keys") > 0);
}

// AHEAD

#[test]
fn ahead_takes_now_what_there_is_room_for_later() {
    let (server, mut client) = server_and_client();
    // Two at once and one an hour.
    let line = "RATE.GCRA k 1 1 3600000";
    let ahead = |ms: i64| format!("{line} AHEAD {ms}");
    assert_eq!(ask(&mut client, &ahead(2 * HOUR)), [0, 2, 1, -1, HOUR]);
    assert_reply(&mut client, &ahead(2 * HOUR), [0, 2, 0, -1, 2 * HOUR]);
    // What would be refused waits its turn, each behind the one before.
    assert_reply(&mut client, &ahead(2 * HOUR), [0, 2, 0, HOUR, 3 * HOUR]);
    assert_reply(&mut client, &ahead(2 * HOUR), [0, 2, 0, 2 * HOUR, 4 * HOUR]);
    let told = assert_reply_within(&mut client, &ahead(2 * HOUR), [1, 2, 0, 3 * HOUR, 4 * HOUR]);
    // A refusal replies as it does without AHEAD, and so does AHEAD 0.
    for line in [line.to_owned(), ahead(0)] {
        let reply = ask(&mut client, &line);
        assert_eq!(reply[..3], told[..3]);
        assert!(reply[3] <= told[3] && told[3] - reply[3] < 60_000);
    }
    // PEEK tells the wait and takes nothing.
    for _ in 0..2 {
        let peek = format!("{} PEEK", ahead(4 * HOUR));
        assert_reply(&mut client, &peek, [0, 2, 0, 3 * HOUR, 4 * HOUR]);
    }
    // What never fits is refused.
    let large = format!("{} COST 3", ahead(TEN_YEARS));
    assert_reply(&mut client, &large, [1, 2, 0, -1, 4 * HOUR]);
    // Nothing is to be had at once, and nothing is taken.
    let nothing = format!("{} COST 0", ahead(4 * HOUR));
    for _ in 0..2 {
        assert_reply(&mut client, &nothing, [0, 2, 0, 2 * HOUR, 4 * HOUR]);
    }
    // Two are refused with 1 ms, PEEK counts alone.
    for (counter, expected) in [("allowed", 2), ("ahead", 4), ("limited", 5), ("peeked", 2)] {
        let count = server.info_int(&format!("sluice_rate_{counter}"));
        assert_eq!(count, expected, "{counter}");
    }
    for wrong in ["-1", "315360000001"] {
        let reply = client.run(&format!("{line} AHEAD {wrong}"));
        assert_eq!(reply.err(), "ERR AHEAD must be between 0 and 315360000000");
    }
    for wrong in ["AHEAD", "AHEAD 1 AHEAD 1"] {
        assert_eq!(client.run(&format!("{line} {wrong}")).err(), SYNTAX);
    }
    assert_eq!(client.run("RATE.WINDOW w 1 1000 AHEAD 1").err(), SYNTAX);
}

/// The same as [`assert_reply`], with the reply.
#[track_caller]
fn assert_reply_within(client: &mut Raw, line: &str, expected: [i64; 5]) -> Vec<i64> {
    assert_reply(client, line, expected);
    ask(client, line)
}

#[test]
fn ahead_of_tiers_and_keys_names_the_longest_wait() {
    let (_server, mut client) = server_and_client();
    for line in [
        "RATE.TIERS t 2 0 1 3600000 1 1 86400000",
        "RATE.MGCRA 2 a 0 1 3600000 b 1 1 86400000",
    ] {
        let ahead = format!("{line} AHEAD 86400000");
        assert_eq!(
            ask(&mut client, &ahead),
            [0, 1, 0, -1, 24 * HOUR, 0],
            "{line}"
        );
        let reply = ask(&mut client, &ahead);
        assert_eq!((&reply[..3], reply[5]), (&[0, 1, 0][..], 0), "{line}");
        assert!(
            (HOUR - 60_000..=HOUR).contains(&reply[3]),
            "{line}: {reply:?}"
        );
        let reply = ask(&mut client, &ahead);
        assert_eq!((&reply[..3], reply[5]), (&[0, 2, 0][..], 1), "{line}");
        assert!(
            (24 * HOUR - 60_000..=24 * HOUR).contains(&reply[3]),
            "{line}: {reply:?}"
        );
        let reply = ask(&mut client, &ahead);
        assert_eq!((&reply[..3], reply[5]), (&[1, 2, 0][..], 1), "{line}");
        assert!(
            (48 * HOUR - 60_000..=48 * HOUR).contains(&reply[3]),
            "{line}: {reply:?}"
        );
    }
}

/// 50 workers share a limit of 100 a second, and wait as long as they are told, two seconds at most. In no span do more of
/// them act than the burst and the rate allow, they act in the order of their calls, and who is refused would have had to
/// wait longer.
#[test]
fn fifty_workers_share_a_shaper() {
    let (server, mut client) = server_and_client();
    let calls = AtomicI64::new(0);
    let acts = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                while calls.fetch_add(1, Ordering::Relaxed) < 1500 {
                    // The decision is made between the two times. Not in a transaction: newer servers read their clock once there.
                    let call = "RATE.GCRA api 9 100 1000 AHEAD 2000";
                    let replies = client.run_all(["TIME", call, "TIME"]);
                    let [before, after] = [&replies[0], &replies[2]].map(|time| {
                        let number =
                            |at: usize| time.array()[at].text().parse::<i64>().expect("a number");
                        number(0) * 1_000_000 + number(1)
                    });
                    let [limited, limit, remaining, wait, _] = ints(&replies[1])[..] else {
                        panic!("{replies:?}");
                    };
                    assert!(limit == 10 && (0..10).contains(&remaining));
                    if limited == 1 {
                        assert!(wait > 2000, "{wait}");
                        continue;
                    }
                    assert!((-1..=2000).contains(&wait));
                    let wait = 1000 * wait.max(0);
                    acts.lock()
                        .expect("a list")
                        .push((before, before + wait, after + wait));
                }
            });
        }
    });
    let mut acts = acts.into_inner().expect("a list");
    acts.sort();
    // The server may use a cached time that is a few milliseconds old; waits are rounded up to a millisecond.
    const SLACK: i64 = 50_000;
    for pair in acts.windows(2) {
        assert!(pair[1].2 >= pair[0].1 - SLACK, "{pair:?}");
    }
    for (place, (_, from, _)) in acts.iter().enumerate() {
        for (count, (_, _, until)) in acts[place..].iter().enumerate() {
            let allowed = 10 + (until - from + 2 * SLACK) / 10_000;
            assert!(count as i64 <= allowed, "{count} in {} us", until - from);
        }
    }
    // A horizon of two seconds is 200 calls and the burst, when all come at once.
    assert!(acts.len() >= 210, "{}", acts.len());
    let counted = server.info_int("sluice_rate_allowed") + server.info_int("sluice_rate_ahead");
    assert_eq!(counted, acts.len() as i64);
    assert_eq!(server.info_int("sluice_rate_limited"), 1500 - counted);
    assert!(client.run("PTTL api").int() <= 2110);
}

// MGCRA

#[test]
fn several_keys_are_limited_at_once_all_or_none() {
    let (server, mut client) = server_and_client();
    let line = "RATE.MGCRA 3 user 1 1 3600000 address 4 1 3600000 all 9 1 86400000";
    assert_eq!(ask(&mut client, line), [0, 2, 1, -1, 24 * HOUR, 0]);
    // Its keys are limits like any other.
    assert_reply(
        &mut client,
        "RATE.GCRA address 4 1 3600000 COST 4",
        [0, 5, 0, -1, 5 * HOUR],
    );
    assert_reply(
        &mut client,
        "CL.THROTTLE user 1 1 3600 0",
        [0, 2, 1, -1, 3600],
    );
    let reply = ask(&mut client, line);
    assert_eq!((&reply[..3], reply[5]), (&[1, 5, 0][..], 1));
    assert!((HOUR - 60_000..=HOUR).contains(&reply[3]), "{reply:?}");
    assert!(
        (24 * HOUR - 60_000..=24 * HOUR).contains(&reply[4]),
        "{reply:?}"
    );
    // The refused call consumed nothing.
    assert_eq!(remaining(&mut client, "RATE.GCRA all 9 1 86400000"), 9);
    assert_eq!(remaining(&mut client, "RATE.GCRA user 1 1 3600000"), 1);
    // What never fits names its key.
    let large = "RATE.MGCRA 3 new 1 1 3600000 other 4 1 3600000 all 0 1 86400000 COST 2";
    let reply = ask(&mut client, large);
    assert_eq!((reply[0], reply[3], reply[5]), (1, -1, 2), "{reply:?}");
    assert_eq!(client.run("EXISTS new"), 0);
    let peek = ask(&mut client, &format!("{line} PEEK"));
    assert_eq!((peek[0], peek[5]), (1, 1));
    // A call counts once.
    for (counter, expected) in [("allowed", 5), ("limited", 2), ("peeked", 1)] {
        let count = server.info_int(&format!("sluice_rate_{counter}"));
        assert_eq!(count, expected, "{counter}");
    }
}

#[test]
fn wrong_keys_of_several_change_nothing() {
    let (_server, mut client) = server_and_client();
    fill(&mut client);
    client.must("SET string v");
    for (line, error) in [
        ("RATE.MGCRA 2 a 1 1 1000 a 1 1 1000", SYNTAX),
        ("RATE.MGCRA 2 a 1 1 1000", "ERR syntax error"),
        ("RATE.MGCRA 2 a 1 1 1000 b 1 1", SYNTAX),
        ("RATE.MGCRA 1 a 1 1 1000 b 1 1 1000", SYNTAX),
        (
            "RATE.MGCRA 0 a 1 1 1000",
            "ERR numkeys must be between 1 and 1024",
        ),
        (
            "RATE.MGCRA 1025 a 1 1 1000",
            "ERR numkeys must be between 1 and 1024",
        ),
        ("RATE.MGCRA x a 1 1 1000", NOT_AN_INTEGER),
        (
            "RATE.MGCRA 2 a 1 1 1000 b 1 0 1000",
            "ERR count must be between 1 and 9007199254740991",
        ),
        ("RATE.MGCRA 2 a 1 1 1000 string 1 1 1000", WRONGTYPE),
        ("RATE.MGCRA 2 a 1 1 1000 window 1 1 1000", OTHER_KIND),
        ("RATE.MGCRA 2 a 1 1 1000 once 1 1 1000", OTHER_KIND),
        ("RATE.MGCRA 1 a 1 1 1000 SLIDING", SYNTAX),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
    assert_eq!(client.run("EXISTS a b"), 0);
    assert_filled(&mut client);
    let many: String = (0..1024).map(|key| format!(" k{key} 1 1 60000")).collect();
    let reply = ask(&mut client, &format!("RATE.MGCRA 1024{many}"));
    assert_eq!((&reply[..4], reply[5]), (&[0, 2, 1, -1][..], 0));
    assert_eq!(client.run("EXISTS k0 k1023"), 2);
}

// CHARGE

#[test]
fn a_charge_is_taken_whether_or_not_there_is_room() {
    let (server, mut client) = server_and_client();
    fill(&mut client);
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        for (charge, left) in [(0, 2), (1, 1), (3, 0)] {
            let reply = client.run(&format!("RATE.CHARGE {kind} {charge}"));
            assert_eq!(reply, 1, "{kind}");
            assert_eq!(remaining(&mut client, &line), left, "{kind} {charge}");
        }
        // Later callers wait for it: seven of five are consumed.
        let reply = ask(&mut client, &line);
        assert_eq!(reply[..3], [1, 5, 0], "{kind}");
        assert!(reply[3] > 0, "{kind}");
        // What was too much is given back.
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 4")), 1);
        assert_eq!(remaining(&mut client, &line), 2, "{kind}");
        assert_eq!(client.run(&format!("RATE.CHARGE {kind} {MOST}")), 1);
        assert_eq!(client.run(&format!("RATE.CHARGE {kind} {MOST}")), 1);
        assert_eq!(remaining(&mut client, &line), 0, "{kind}");
        assert_eq!(client.run(&format!("RATE.REFUND {kind} {MOST}")), 1);
        assert_eq!(remaining(&mut client, &line), 5, "{kind}");
        assert_eq!(client.run(&format!("RATE.CHARGE {kind} 1")), 0, "{kind}");
        assert_eq!(client.call(["EXISTS", kind]), 0);
    }
    assert_eq!(client.run("RATE.CHARGE once 1").err(), OTHER_KIND);
    assert_eq!(client.run("RATE.CHARGE once 0").err(), OTHER_KIND);
    assert_eq!(client.run("RATE.CHARGE none 1"), 0);
    assert_eq!(client.run("DBSIZE"), 1);
    // Six kinds, five charges each that found a key.
    assert_eq!(server.info_int("sluice_rate_charged"), 30);
    client.must("SET string v");
    for (line, error) in [
        ("RATE.CHARGE string 1", WRONGTYPE),
        ("RATE.CHARGE k x", NOT_AN_INTEGER),
        (
            "RATE.CHARGE k -1",
            "ERR n must be between 0 and 9007199254740991",
        ),
        (
            "RATE.CHARGE k 9007199254740992",
            "ERR n must be between 0 and 9007199254740991",
        ),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
}

/// An estimate is taken as COST, and the rest is charged: 1000 tokens a minute, of which a reply used more than it was
/// thought to.
#[test]
fn later_callers_wait_for_a_charge() {
    let (_server, mut client) = server_and_client();
    let line = "RATE.GCRA tokens 999 1000 3600000";
    assert_eq!(ask(&mut client, &costing(line, 600))[..3], [0, 1000, 400]);
    assert_eq!(client.run("RATE.CHARGE tokens 900"), 1);
    // 500 too many, and 100 that it wants: 600 of 1000 in an hour.
    let reply = ask(&mut client, &costing(line, 100));
    assert_eq!(reply[..3], [1, 1000, 0]);
    let wait = HOUR * 600 / 1000;
    assert!((wait - 60_000..=wait).contains(&reply[3]), "{reply:?}");
    assert_expires(&mut client, "tokens", HOUR * 3 / 2);
}

// EXACT

#[test]
fn an_exact_window_remembers_each_call() {
    let (_server, mut client) = server_and_client();
    let line = "RATE.WINDOW k 3 3600000 EXACT";
    assert_eq!(ask(&mut client, line), [0, 3, 2, -1, HOUR]);
    assert_expires(&mut client, "k", HOUR);
    thread::sleep(Duration::from_millis(1500));
    let reply = ask(&mut client, &costing(line, 2));
    assert_eq!(reply, [0, 3, 0, -1, HOUR]);
    // One call has to leave for one, and both for two.
    let replies = client.transact([line, &costing(line, 2)]); // at the same time
    let (one, two) = (ints(&replies[0]), ints(&replies[1]));
    assert_eq!((&one[..3], &two[..3]), (&[1, 3, 0][..], &[1, 3, 0][..]));
    assert!(two[3] >= one[3] + 100, "{one:?} {two:?}");
    assert_eq!(ask(&mut client, &costing(line, 4))[3], -1);
    // The newest is given back first.
    assert_eq!(client.run("RATE.REFUND k 1"), 1);
    assert_eq!(remaining(&mut client, line), 1);
    for other in [
        "RATE.WINDOW k 3 3600000",
        "RATE.WINDOW k 3 3600000 SLIDING",
        "RATE.GCRA k 1 1 1",
    ] {
        assert_eq!(client.run(other).err(), OTHER_KIND, "{other}");
    }
    client.must("RATE.WINDOW s 3 3600000 SLIDING");
    assert_eq!(
        client.run("RATE.WINDOW s 3 3600000 EXACT").err(),
        OTHER_KIND
    );
    for line in [
        "RATE.WINDOW k 3 1000 EXACT SLIDING",
        "RATE.WINDOW k 3 1000 EXACT EXACT",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    assert_eq!(
        ask(&mut client, "RATE.WINDOW large 100000 1000 EXACT")[..3],
        [0, 100_000, 99_999]
    );
    let too_large = client.run("RATE.WINDOW large 100001 1000 EXACT");
    assert_eq!(too_large.err(), "ERR limit must be between 0 and 100000");
}

/// Calls a window that allows 20 requests in 50 ms. Returns the times before and after the call; `None`: it was limited. These are
/// times of the client, because `TIME` of Valkey 9.1 does not read the wall clock.
fn time_of_call(client: &mut Raw) -> Option<[Instant; 2]> {
    let before = Instant::now();
    let is_allowed = ask(client, "RATE.WINDOW k 20 50 EXACT")[0] == 0;
    is_allowed.then(|| [before, Instant::now()])
}

/// Checks the times of all allowed calls.
fn assert_no_span_has_more(mut allowed: Vec<[Instant; 2]>) {
    allowed.sort_unstable();
    assert!(allowed.len() > 20);
    for calls in allowed.windows(21) {
        let end = calls.iter().map(|[_, after]| *after).max();
        let span = end.expect("21 calls") - calls[0][0];
        assert!(span >= Duration::from_millis(50), "{span:?} {calls:?}");
    }
}

/// Never more than the limit in any span, whoever calls: checked against all that were allowed.
#[test]
fn no_span_has_more_calls_than_an_exact_window_allows() {
    let (server, _client) = server_and_client();
    let allowed = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                for _ in 0..2000 {
                    let call = time_of_call(&mut client);
                    allowed.lock().expect("a list").extend(call);
                }
            });
        }
    });
    assert_no_span_has_more(allowed.into_inner().expect("a list"));
}

/// A clock that steps back moves the remembered calls, so none of them leaves the window too early.
#[test]
fn no_span_has_more_calls_after_the_clock_stepped_back() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    let mut allowed = Vec::new();
    for call in 0..8000 {
        let time = time_of_call(&mut client);
        if time.is_some() && call % 3 == 0 {
            server.shift_clock(-1);
        }
        allowed.extend(time);
    }
    assert_no_span_has_more(allowed);
}

/// 100 000 remembered calls: what is asked of them takes no longer than of a few, and they take the memory that was
/// promised.
#[test]
fn a_hundred_thousand_remembered_calls_stop_nobody() {
    let server = Server::builder()
        .config("slowlog-log-slower-than", "100000")
        .start();
    let mut client = Raw::connect(&server);
    let line = "RATE.WINDOW k 100000 20000 EXACT";
    client.must(line);
    let before = client.must("MEMORY USAGE k").int();
    client.run_all((0..99_999).map(|_| line.to_string()));
    let bytes = client.must("MEMORY USAGE k").int();
    assert!(bytes - before <= 16 * 100_000, "{bytes}");
    for line in [
        line,
        "RATE.WINDOW k 100000 1 EXACT PEEK",
        "RATE.CHARGE k 7",
        "RATE.REFUND k 90000",
    ] {
        client.must(line);
    }
    // All leave at once.
    eventually(Duration::from_secs(60), || client.run("EXISTS k") == 0);
    client.must(line);
    // The processor may have been away in a few of them.
    let slow = client.must("SLOWLOG LEN").int();
    assert!(slow < 20, "{slow} of 100 000 calls took more than 100 ms");
    assert!(!server.log().contains("panic"));
}

// PEEK

#[test]
fn peek_is_answered_on_a_full_server_and_on_a_writable_replica() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    fill(&mut client);
    client.must("CONFIG SET maxmemory 1");
    let mgcra = "RATE.MGCRA 2 gcra 4 1 315360000000 other 4 1 1000 COST 2 PEEK";
    for (kind, line) in counting_kinds().filter(|(kind, _)| *kind != "throttle") {
        let peek = format!("{} PEEK", at(line, kind));
        assert_eq!(ask(&mut client, &peek)[..3], [0, 5, 2], "{kind}");
        let counted = client.run(&at(line, kind));
        assert!(counted.err().starts_with("OOM "), "{kind}: {counted:?}");
    }
    assert_eq!(ask(&mut client, mgcra)[..3], [0, 5, 2]);
    let counted = client.run(&mgcra.replace(" PEEK", ""));
    assert!(counted.err().starts_with("OOM "), "{counted:?}");
    client.must("CONFIG SET maxmemory 0");
    assert_filled(&mut client);
    assert_identical(&master, &replica);
    let mut reader = Raw::connect(&replica);
    assert!(
        reader
            .run("RATE.GCRA gcra 4 1 1000 PEEK")
            .err()
            .starts_with("READONLY")
    );
    reader.must("CONFIG SET replica-read-only no");
    for (kind, line) in counting_kinds().filter(|(kind, _)| *kind != "throttle") {
        let peek = format!("{} PEEK", at(line, kind));
        assert_eq!(ask(&mut reader, &peek)[..3], [0, 5, 2], "{kind}");
    }
    assert_eq!(ask(&mut reader, mgcra)[..3], [0, 5, 2]);
    assert_identical(&master, &replica);
}
