//! A replica has the limits of its master, decides nothing, and takes over with them.

use std::thread;
use std::time::Duration;

use crate::support::rate::{
    BAD_EFFECT, KINDS, ask, assert_filled, at, costing, counting_kinds, fill,
};
use crate::support::{
    Fsync, Lines, Random, Raw, SOON, Server, WRONGTYPE, assert_identical, await_role, eventually,
    follow, now_us, pair, quiet, random_load, server_and_client, stop_before, unix_ms,
    wait_for_replica_sync, with_growing_lease,
};
use sluice::rate::gcra::{Bucket, LeakRate};
use sluice::rate::persist;
use sluice::rate::state::Limit;

/// Panics unless both have the same keys with the same ends: a digest tells only whether they have one.
#[track_caller]
fn assert_same_ends(one: &Server, other: &Server) {
    let ends = |server: &Server| {
        let mut client = Raw::connect(server);
        let keys = client.must("KEYS *");
        let mut ends: Vec<_> = keys
            .array()
            .iter()
            .map(|key| {
                let end = client.call([b"PEXPIRETIME", key.bytes()]).int();
                (key.bytes().to_vec(), end)
            })
            .collect();
        ends.sort();
        ends
    };
    assert_eq!(ends(one), ends(other));
}

// The same dataset

#[test]
fn every_change_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for line in [
        "RATE.GCRA g 9 1 3600000",
        "RATE.GCRA g 9 1 3600000 COST 3",
        "RATE.GCRA g 9 1 3600000 COST 30",
        "RATE.GCRA g 9 1 3600000 PEEK",
        "RATE.GCRA g 4 7 60000000",
        "CL.THROTTLE g 9 7 60000 2",
        "RATE.REFUND g 2",
        "PERSIST g",
        "RATE.GCRA g 99 7 60000000",
        "PEXPIRE g 900000",
        "RATE.REFUND g 1",
        "RATE.REFUND g 99",
        "RATE.WINDOW w 9 3600000",
        "RATE.WINDOW w 9 3600000 COST 3",
        "RATE.WINDOW w 9 7200000 COST 3",
        "PERSIST w",
        "RATE.WINDOW w 9 7200000",
        "RATE.REFUND w 1",
        "RATE.WINDOW s 9 3600000 SLIDING",
        "RATE.WINDOW s 9 3600000 COST 2 SLIDING",
        "RATE.TIERS t 2 9 1 3600000 9 1 7200000",
        "RATE.TIERS t 3 9 1 3600000 9 1 7200000 9 1 86400000",
        "RATE.TIERS t 1 9 1 3600000",
        "RATE.ONCE o PX 3600000",
        "RATE.ONCE o PX 3600000",
        "COPY t copy",
        "COPY t copy DB 1",
        "RATE.TIERS copy 1 9 1 3600000",
        "RENAME w renamed",
        "RATE.WINDOW renamed 9 7200000",
        "MOVE s 2",
        "SWAPDB 1 2",
        "UNLINK t",
        "RATE.WINDOW e 9 3600000 EXACT COST 2",
        "RATE.WINDOW e 9 7200000 EXACT COST 2",
        "RATE.CHARGE e 9",
        "RATE.REFUND e 3",
        "RATE.WINDOW e 20 7200000 EXACT",
        "RATE.REFUND e 99",
        "RATE.GCRA a 0 1 3600000 AHEAD 99999999",
        "RATE.GCRA a 0 1 3600000 AHEAD 99999999",
        "RATE.CHARGE a 3",
        "RATE.MGCRA 2 a 0 1 3600000 b 0 1 3600000 AHEAD 99999999",
        "RATE.TIERS c 2 1 1 3600000 2 1 7200000 COST 2 AHEAD 9",
        "RATE.TIERS c 2 1 1 3600000 2 1 7200000 COST 2 AHEAD 99999999",
        "RATE.CHARGE c 1",
    ] {
        client.must(line);
        assert_identical(&master, &replica);
        assert_same_ends(&master, &replica);
    }
    let dump = client.must("DUMP copy");
    client.call([b"RESTORE".as_slice(), b"restored", b"0", dump.bytes()]);
    client.must("RATE.TIERS restored 1 9 1 3600000");
    client.transact([
        "RATE.GCRA in 9 1 3600000",
        "RATE.REFUND in 1",
        "RATE.ONCE in PX 900000",
    ]);
    let script = "redis.call('RATE.ONCE', KEYS[1], 'PX', 900000)
        return redis.call('RATE.GCRA', KEYS[2], 5, 1, 900000)";
    client.call(["EVAL", script, "2", "a", "b"]);
    assert_identical(&master, &replica);
    assert_same_ends(&master, &replica);
    client.must("FLUSHALL");
    assert_identical(&master, &replica);
}

#[test]
fn a_replica_that_comes_later_gets_everything() {
    for load in ["disabled", "swapdb"] {
        let master = quiet().start();
        fill(&mut Raw::connect(&master));
        let replica = quiet().config("repl-diskless-load", load).start();
        fill(&mut Raw::connect(&replica)); // which is gone then
        follow(&master, &replica);
        assert_identical(&master, &replica);
        assert_same_ends(&master, &replica);
        // What the master knows of the ends of its keys, a replica learns from the changes.
        let mut client = Raw::connect(&master);
        for (kind, line) in counting_kinds() {
            client.must(&at(line, kind));
        }
        assert_identical(&master, &replica);
        assert_same_ends(&master, &replica);
    }
}

impl Random {
    /// Any command of the family, or one of the server's on its keys; much of it ends soon.
    fn command(&mut self) -> String {
        let key = format!("k{}", self.below(12));
        let other = format!("k{}", self.below(12));
        let (burst, count, cost) = (self.below(6), 1 + self.below(5), self.below(3));
        let period = *self.one(&[1, 10, 50, 200, 1_000_000]);
        match self.below(29) {
            0..=4 => format!("RATE.GCRA {key} {burst} {count} {period} COST {cost}"),
            5..=7 => format!("RATE.WINDOW {key} {burst} {period} COST {cost}"),
            8..=10 => format!("RATE.WINDOW {key} {burst} {period} COST {cost} SLIDING"),
            24 | 25 => format!("RATE.WINDOW {key} {burst} {period} COST {cost} EXACT"),
            26 => format!("RATE.CHARGE {key} {cost}"),
            27 => format!("RATE.GCRA {key} {burst} {count} {period} COST {cost} AHEAD 50"),
            28 if key != other => {
                format!("RATE.MGCRA 2 {key} {burst} {count} {period} {other} 4 1 50 AHEAD 20")
            }
            11..=13 => format!("RATE.TIERS {key} 2 {burst} {count} {period} 4 1 50"),
            14 | 15 => format!("RATE.REFUND {key} {cost}"),
            16 | 17 => format!("RATE.ONCE {key} PX {period}"),
            18 => format!("RENAME {key} {other}"),
            19 => format!("COPY {key} {other} REPLACE"),
            20 => format!("MOVE {key} 1"),
            21 => format!("PEXPIRE {key} 30"),
            22 => format!("PERSIST {key}"),
            _ => format!("DEL {key}"),
        }
    }
}

#[test]
fn a_chain_of_replicas_is_identical_after_a_random_load() {
    const MOST_ROUNDS: u64 = 30;
    const COUNTERS: [&str; 7] = [
        "allowed",
        "limited",
        "ahead",
        "charged",
        "refunded",
        "once_first",
        "once_duplicate",
    ];
    let master = quiet().start();
    let replica = quiet().start();
    let second = quiet()
        .aof(Fsync::No)
        .config("aof-use-rdb-preamble", "no")
        .start();
    follow(&master, &replica);
    follow(&replica, &second);
    // A busy machine takes more rounds until there was everything.
    for round in 0..MOST_ROUNDS {
        random_load(
            &master,
            4,
            77 + round,
            Duration::from_millis(400),
            Random::command,
        );
        assert_identical(&master, &replica);
        assert_identical(&master, &second);
        let count = |counter: &&str| master.info_int(&format!("sluice_rate_{counter}"));
        if round >= 2 && COUNTERS.iter().all(|counter| count(counter) > 0) {
            break;
        }
    }
    for counter in COUNTERS {
        let count = master.info_int(&format!("sluice_rate_{counter}"));
        assert!(count > 0, "none {counter}");
    }
    // What is left when all that ends soon has ended is what the last in the chain has written. Six requests of 200 ms each
    // take longest.
    eventually(SOON, || {
        let digest = master.digest();
        thread::sleep(Duration::from_millis(1500));
        master.digest() == digest
    });
    assert_identical(&master, &second);
    assert_same_ends(&master, &second);
    let digest = master.digest();
    second.crash();
    assert_eq!(second.digest(), digest);
    for server in [&master, &replica, &second] {
        let log = server.log();
        for word in ["internal error", "panic", "invalid replicated"] {
            assert!(!log.contains(word), "{word} {log}");
        }
    }
}

#[test]
fn refusals_and_looks_propagate_nothing() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    fill(&mut client);
    wait_for_replica_sync(&master, &replica);
    let offset = master.info_int("master_repl_offset");
    let mut lines: Vec<_> = counting_kinds()
        .flat_map(|(kind, line)| [0, 3, 9].map(|cost| costing(&at(line, kind), cost)))
        .collect();
    lines.extend(
        [
            "RATE.GCRA gcra 4 1 315360000000 PEEK",
            "RATE.GCRA new 4 1 315360000000 PEEK",
            "RATE.WINDOW gcra 4 1000",
            "RATE.REFUND gcra 0",
            "RATE.REFUND none 5",
            "RATE.CHARGE gcra 0",
            "RATE.CHARGE none 5",
            "RATE.CHARGE once 5",
            "RATE.GCRA gcra 4 1 315360000000 COST 5 AHEAD 1000",
            "RATE.GCRA gcra 4 1 315360000000 COST 5 AHEAD 315360000000 PEEK",
            "RATE.MGCRA 2 gcra 4 1 315360000000 new 4 1 1000 COST 5 AHEAD 1000",
            "RATE.MGCRA 2 gcra 4 1 315360000000 new 4 1 1000 COST 0",
            "RATE.MGCRA 2 new 4 1 1000 window 4 1 1000",
            "RATE.WINDOW exact 5 315360000000 EXACT PEEK",
            "RATE.ONCE once PX 1",
            "RATE.APPLY gcra nonsense",
        ]
        .map(str::to_owned),
    );
    for line in lines {
        client.run(&line);
        client.run("PING");
        assert_eq!(master.info_int("master_repl_offset"), offset, "{line}");
    }
}

/// What the master decided counts, whatever the clock says of the replica or of the machine that reads the file: also of
/// costs that are only added, which are replicated as they came.
#[test]
fn another_clock_moves_no_limit() {
    const HOUR: i64 = 3_600_000;
    let master = quiet()
        .clock(0)
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let replicas = [-HOUR, HOUR].map(|ahead| quiet().clock(ahead).start());
    for replica in &replicas {
        follow(&master, replica);
    }
    let mut client = Raw::connect(&master);
    fill(&mut client);
    let lines = [
        "RATE.GCRA g 99 3 10000000",
        "CL.THROTTLE c 99 3 10000",
        "RATE.WINDOW w 99 20000000",
        "RATE.WINDOW s 99 20000000 SLIDING",
        "RATE.TIERS t 2 99 3 10000000 999 7 10000000",
        "RATE.WINDOW x 99 20000000 EXACT",
        "RATE.GCRA a 3 3 10000000 AHEAD 99999999",
        "RATE.CHARGE a 1",
        "RATE.MGCRA 2 m 9 1 1000000 n 9 1 10000000",
    ];
    // In one step, so that many of them come within a moment.
    client.transact([lines; 8].concat());
    client.must("RATE.REFUND g 1");
    assert_eq!(client.run("RATE.ONCE o PX 20000000"), 1);
    let digest = master.digest();
    for replica in &replicas {
        assert_identical(&master, replica);
        assert_same_ends(&master, replica);
    }
    for shift in [-2 * HOUR, 3 * HOUR] {
        master.terminate();
        master.shift_clock(shift);
        master.restart();
        assert_eq!(master.digest(), digest);
        assert_same_ends(&replicas[0], &master);
    }
}

// A replica decides nothing

#[test]
fn a_replica_refuses_to_decide() {
    let (master, replica) = pair();
    fill(&mut Raw::connect(&master));
    wait_for_replica_sync(&master, &replica);
    let mut reader = Raw::connect(&replica);
    for (kind, line) in KINDS {
        for line in [at(line, kind), format!("RATE.REFUND {kind} 1")] {
            let reply = reader.run(&line);
            assert!(reply.err().starts_with("READONLY"), "{line}: {reply:?}");
        }
        assert_eq!(reader.call(["TYPE", kind]), "sluice-ra");
    }
    assert_identical(&master, &replica);
}

/// It is the master that says when a key has ended, also when nobody has heard of it for long.
#[test]
fn a_replica_ends_nothing_of_its_own_accord() {
    let (master, replica) = pair();
    let (mut client, mut reader) = (Raw::connect(&master), Raw::connect(&replica));
    let end = with_growing_lease(300, |period| {
        let replies = client.transact([
            format!("RATE.WINDOW w 9 {period}"),
            format!("RATE.ONCE o PX {period}"),
            "PEXPIRETIME w".into(),
        ]);
        stop_before(&master, &replica, replies[2].int())
    });
    eventually(SOON, || unix_ms() > end + 200);
    assert_eq!(reader.run("DBSIZE"), 2);
    master.cont_signal();
    eventually(SOON, || reader.run("DBSIZE") == 0);
    assert_identical(&master, &replica);
}

#[test]
fn a_writable_replica_lives() {
    let (master, replica) = pair();
    replica.command(["CONFIG", "SET", "replica-read-only", "no"]);
    let mut client = Raw::connect(&replica);
    fill(&mut client);
    assert_filled(&mut client);
    let mut first = Raw::connect(&master);
    fill(&mut first);
    for (kind, line) in counting_kinds() {
        first.must(&costing(&at(line, kind), 2));
    }
    assert_identical(&master, &replica);
}

#[test]
fn a_client_that_watches_a_limit_at_a_replica_sees_it_change() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    fill(&mut client);
    let mut watcher = Raw::connect(&replica);
    for (kind, line) in counting_kinds() {
        let line = at(line, kind);
        for line in [
            line.clone(),
            costing(&line, 3), // refused
            format!("RATE.REFUND {kind} 1"),
            format!("RATE.REFUND {kind} 9"),
        ] {
            wait_for_replica_sync(&master, &replica);
            watcher.call(["WATCH", kind]);
            client.must(&line);
            wait_for_replica_sync(&master, &replica);
            watcher.must("MULTI");
            watcher.must("PING");
            let seen = watcher.run("EXEC").is_nil();
            assert_eq!(seen, !line.ends_with('3'), "{line}");
        }
    }
}

// Promotion

#[test]
fn a_promotion_moves_no_limit() {
    let [master, replica, second] = [(); 3].map(|()| quiet().clock(0).start());
    follow(&master, &replica);
    follow(&replica, &second);
    let mut client = Raw::connect(&master);
    fill(&mut client);
    // A request in 100 ms.
    let begin = now_us(&mut client);
    client.must("RATE.GCRA g 999 10 1000 COST 500");
    let end = now_us(&mut client);
    client.must("RATE.WINDOW short 9 600000 COST 9");
    assert_identical(&master, &replica);
    let digest = replica.digest();
    wait_for_replica_sync(&replica, &second);
    master.kill9();
    replica.promote();
    await_role(&replica, "master");
    let mut client = Raw::connect(&replica);
    assert_filled(&mut client);
    let before = now_us(&mut client);
    let left = ask(&mut client, "RATE.GCRA g 999 10 1000 COST 0")[2];
    let after = now_us(&mut client);
    let (least, most) = (
        500 + (before - end) / 100_000,
        500 + (after - begin) / 100_000,
    );
    assert!(
        (least..=most).contains(&left),
        "{left} of {least} to {most}"
    );
    // It ends what is over now, and not what isn't.
    assert_eq!(client.run("DBSIZE"), 9);
    for server in [&replica, &second] {
        server.shift_clock(600_001);
    }
    eventually(SOON, || client.run("EXISTS short g") == 0);
    assert_eq!(client.run("DBSIZE"), 7);
    assert_ne!(replica.digest(), digest);
    for (kind, line) in counting_kinds() {
        assert_eq!(
            ask(&mut client, &costing(&at(line, kind), 2))[..3],
            [0, 5, 0]
        );
        assert_eq!(ask(&mut client, &at(line, kind))[..3], [1, 5, 0]);
    }
    assert_eq!(client.run("RATE.ONCE once PX 5"), 0);
    assert_identical(&replica, &second);
    assert_same_ends(&replica, &second);
    // And down the chain.
    replica.kill9();
    second.promote();
    let mut client = Raw::connect(&second);
    for (kind, line) in counting_kinds() {
        assert_eq!(ask(&mut client, &at(line, kind))[..3], [1, 5, 0], "{kind}");
        assert_eq!(client.run(&format!("RATE.REFUND {kind} 3")), 1);
    }
    assert_filled_with(&mut client, 3);
}

#[track_caller]
fn assert_filled_with(client: &mut Raw, left: i64) {
    for (kind, line) in counting_kinds() {
        let reply = ask(client, &costing(&at(line, kind), 0));
        assert_eq!(reply[2], left, "{kind}");
    }
}

#[test]
fn a_failover_hands_over_with_all_limits() {
    let (old, new) = pair();
    fill(&mut Raw::connect(&old));
    wait_for_replica_sync(&old, &new);
    let digest = old.digest();
    old.command(["FAILOVER"]);
    await_role(&new, "master");
    await_role(&old, "slave");
    assert_eq!(new.digest(), digest);
    assert_filled(&mut Raw::connect(&new));
    eventually(SOON, || {
        old.info("master_link_status").as_deref() == Some("up")
    });
    let mut client = Raw::connect(&new);
    for (kind, line) in counting_kinds() {
        client.must(&at(line, kind));
    }
    assert_identical(&new, &old);
    assert_same_ends(&new, &old);
}

#[test]
fn a_replica_counts_and_announces_nothing_of_its_own() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.run_all((0..1000).map(|_| "RATE.GCRA g 99999 1 3600000".to_string()));
    client.run_all((0..1000).map(|_| "RATE.WINDOW w 99999 3600000".to_string()));
    wait_for_replica_sync(&master, &replica);
    assert_eq!(master.digest(), replica.digest());
    let allowed = |server: &Server| server.info_int("sluice_rate_allowed");
    assert_eq!((allowed(&master), allowed(&replica)), (2000, 0));
}

// RATE.APPLY

/// An effect that consumes three of a GCRA.
fn effect(expires: u64) -> Vec<u8> {
    let bucket = Bucket {
        rate: LeakRate {
            count: 1,
            period: 315_360_000_000_000,
        },
        spent: 3,
        parts: 0,
        at: 1_750_000_000_000_000,
    };
    let mut effect = Vec::new();
    persist::put_effect(&mut effect, &Limit::Gcra(bucket), expires);
    effect
}

#[test]
fn apply_makes_a_limit_what_it_says_and_hands_it_on() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let apply = |key: &str, effect: &[u8]| {
        let command: [&[u8]; 3] = [b"RATE.APPLY", key.as_bytes(), effect];
        Raw::connect(&master).call(command)
    };
    assert_eq!(apply("k", &effect(0)), "OK");
    assert_eq!(client.run("PTTL k"), -1);
    assert_eq!(apply("k", &effect(99_999_999_999_999)), "OK");
    assert_eq!(client.run("PEXPIRETIME k"), 99_999_999_999_999);
    assert_eq!(apply("k", &effect(0)), "OK");
    assert_eq!(client.run("PEXPIRETIME k"), 99_999_999_999_999);
    let reply = ask(&mut client, "RATE.GCRA k 4 1 315360000000 COST 0");
    assert_eq!(reply[..3], [0, 5, 2]);
    // Whatever kind was there.
    client.must("RATE.ONCE o PX 900000");
    assert_eq!(apply("o", &effect(0)), "OK");
    client.must("SET string v");
    assert_eq!(apply("string", &effect(0)).err(), WRONGTYPE);
    assert_eq!(apply("k", b"").err(), BAD_EFFECT);
    // In the past: it ends at once.
    assert_eq!(apply("past", &effect(1)), "OK");
    eventually(SOON, || client.run("EXISTS past") == 0);
    assert_identical(&master, &replica);
    assert_same_ends(&master, &replica);
}

#[test]
fn apply_needs_the_permission_to_restore_the_key() {
    let (server, mut client) = server_and_client();
    for line in [
        "ACL SETUSER bob on >pw ~* +@all -restore",
        "ACL SETUSER eve on >pw ~own:* +@all",
        "ACL SETUSER ann on >pw ~* +@all -@dangerous",
    ] {
        client.must(line);
    }
    let effect = effect(0);
    let mut user = Raw::connect(&server);
    let mut apply = |who: &str, key: &str| {
        user.must(&format!("AUTH {who} pw"));
        let command: [&[u8]; 3] = [b"RATE.APPLY", key.as_bytes(), &effect];
        user.call(command)
    };
    let needs = "NOPERM this internal command needs the permission to RESTORE the key";
    assert_eq!(apply("bob", "k").err(), needs);
    assert!(apply("eve", "k").err().starts_with("NOPERM "));
    assert!(apply("ann", "k").err().starts_with("NOPERM "));
    assert_eq!(apply("eve", "own:k"), "OK");
    assert_eq!(client.run("EXISTS k own:k"), 1);
}
