//! A replica has the entries of its master to the millisecond, decides nothing, and takes over with them, but without
//! the leases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::cache::{about, counter, fetched, lease, look, nearly, stores};
use crate::support::{
    EndOnDrop, Fsync, Lines, Random, Raw, SOON, Server, Value, assert_identical, await_role,
    differences, eventually, follow, now_ms, pair, quiet, served, until_pong,
    wait_for_replica_sync, waiter,
};
use sluice::cache::persist::put_effect;
use sluice::cache::state::{CacheEntry, EntryKind, EntryTag};

#[test]
fn every_change_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    for line in [
        "CACHE.SET k v PX 600000",
        "CACHE.SET k longer PX 600000 STALE 5000 VER 7",
        "CACHE.SET k v PX 600000 JITTER 50",
        "CACHE.SETNULL k PX 600000 JITTER 33 STALE 77",
        "CACHE.SET k v PX 60000 STALE 5000",
        "CACHE.FETCH k LEASE 5 SLIDE 900000",
        "PEXPIRE k 300000",
        "PEXPIRE k 400000",
        "CACHE.FETCH k LEASE 5 SLIDE 900000",
        "PERSIST k",
        "CACHE.FETCH k LEASE 5 SLIDE 990000",
        "COPY k copy",
        "CACHE.DEL k STALE 600000",
        "CACHE.DEL k STALE 500000 GRACE 400000 VER 9",
        "CACHE.SET k v PX 100000 VER 9",
        "CACHE.FETCH k LEASE 5 SLIDE 800000",
        "CACHE.DEL k GRACE 700000 VER 1",
        "CACHE.DEL k GRACE 1",
        "CACHE.DEL k GRACE 900000",
        "CACHE.SETNULL k PX 5000",
        "RENAME k other",
        "CACHE.DEL missing GRACE 600000",
        "MOVE missing 1",
        "CACHE.DEL copy",
        "SWAPDB 0 1",
        "CACHE.SET k v PX 600000",
        "SWAPDB 0 1",
    ] {
        client.must(line);
        assert_identical(&master, &replica);
    }
    let (_, _, token) = fetched(&client.must("CACHE.FETCH k LEASE 600000"));
    assert!(stores(&mut client, "k", token));
    assert!(about(&mut client, "k", "rebuild_ms") > 0);
    client.transact([
        "CACHE.SET a v PX 600000",
        "CACHE.SET b v PX 600000 JITTER 9",
    ]);
    let script = "redis.call('CACHE.SET', 'c', 'v', 'PX', 600000, 'JITTER', 50)";
    client.call(["EVAL", script, "0"]);
    assert_identical(&master, &replica);
    let bytes: Vec<u8> = (0..=255).collect();
    let set: [&[u8]; 5] = [b"CACHE.SET", &bytes, &bytes, b"PX", b"600000"];
    assert_eq!(client.call(set), 1);
    assert_identical(&master, &replica);
}

/// Any command, on few keys; times are so short that entries and graces end now and then.
fn random_line(random: &mut Random, token: &mut (u64, i64)) -> String {
    let key = random.below(6);
    let time = *random.one(&[5, 40, 300, 60_000]);
    let other = *random.one(&[1, 30, 200, 60_000]);
    let version = random.below(8);
    match random.below(24) {
        0..3 => format!("CACHE.SET k{key} v{version} PX {time} STALE {other} JITTER 50"),
        3 => format!("CACHE.SET k{key} v{version} PX {time} VER {version}"),
        4 => format!("CACHE.SETNULL k{key} PX {time} STALE {other}"),
        5..8 => {
            let (key, token) = *token;
            format!("CACHE.SET k{key} v{version} PX {time} STALE {other} TOKEN {token}")
        }
        8..13 => {
            token.0 = key;
            format!("CACHE.FETCH k{key} LEASE {other} SLIDE {time} EARLY {other}")
        }
        13 => format!("CACHE.FETCH k{key} LEASE {other} SLIDE {time} BETA 5"),
        14 => format!("CACHE.DEL k{key}"),
        15 => format!("CACHE.DEL k{key} STALE {time} GRACE {other} VER {version}"),
        16 => format!("CACHE.DEL k{key} GRACE {other}"),
        17 => format!("CACHE.FAIL k{key} {}", token.1),
        18 => format!("PEXPIRE k{key} {time}"),
        19 => format!("PERSIST k{key}"),
        20 => format!("RENAME k{key} k{}", random.below(6)),
        21 => format!("COPY k{key} k{} REPLACE", (key + 1 + random.below(5)) % 6),
        22 => format!("DEL k{key}"),
        _ => format!("CACHE.FETCH k{key} LEASE {other} BLOCK 3"),
    }
}

#[test]
fn a_chain_of_replicas_is_identical_after_a_random_load() {
    const SEED: u64 = 0xcac4e;
    /// Of each client in each round, however slow the machine is.
    const MIN_COMMANDS: usize = 500;
    let (master, replica) = pair();
    let last = quiet()
        .aof(Fsync::No)
        .config("aof-use-rdb-preamble", "no")
        .start();
    follow(&replica, &last);
    let stop = AtomicBool::new(false);
    for round in 0..3 {
        stop.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let _end = EndOnDrop(&stop);
            for number in 0..3 {
                let (master, stop) = (&master, &stop);
                scope.spawn(move || {
                    let mut random = Random(SEED + round * 10 + number);
                    let mut client = Raw::connect(master);
                    let mut token = (0, 0);
                    let mut commands = 0;
                    while commands < MIN_COMMANDS || !stop.load(Ordering::Relaxed) {
                        commands += 1;
                        let line = random_line(&mut random, &mut token);
                        let reply = client.run(&line);
                        match &reply {
                            Value::Array(_) if line.contains("FETCH") => {
                                let (state, _, n) = fetched(&reply);
                                if state == "LEASE" {
                                    token.1 = n;
                                }
                            }
                            Value::Error(text) => assert_eq!(text, "ERR no such key", "{line}"),
                            _ => {}
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
        });
        assert_identical(&master, &replica);
        assert_identical(&master, &last);
    }
    // It restarts as a master: what expires by itself must be over. A server that gets little time removes expired keys late, unless
    // a client asks for them.
    thread::sleep(Duration::from_millis(700));
    let mut client = Raw::connect(&master);
    client.must("EXISTS k0 k1 k2 k3 k4 k5");
    eventually(SOON, || {
        let digest = master.digest();
        thread::sleep(Duration::from_millis(250));
        master.digest() == digest
    });
    assert_identical(&master, &last);
    let digest = master.digest();
    last.crash();
    let is_same = last.digest() == digest;
    assert!(is_same, "{}", differences(&master, &last));
    for name in ["hits", "stale", "leases", "refused_sets", "early"] {
        assert!(counter(&mut client, name) > 0, "{name}");
    }
    for server in [&master, &replica, &last] {
        let log = server.log();
        for word in ["internal error", "panic", "invalid replicated"] {
            assert!(!log.contains(word), "{word} {log}");
        }
    }
}

#[test]
fn a_full_transfer_brings_everything() {
    let master = quiet().start();
    let mut client = Raw::connect(&master);
    for line in [
        "CACHE.SET k v PX 600000 STALE 5000 VER 7",
        "CACHE.SETNULL null PX 600000 JITTER 80",
        "CACHE.DEL tombstone GRACE 600000 VER 3",
        "CACHE.SET stale v PX 600000",
        "CACHE.DEL stale STALE 60000 GRACE 50000",
        "CACHE.SET forever v PX 600000",
        "PERSIST forever",
    ] {
        client.must(line);
    }
    let replica = quiet().start();
    follow(&master, &replica);
    assert_identical(&master, &replica);
    client.must("CACHE.SET k w PX 600000");
    assert_identical(&master, &replica);
}

#[test]
fn a_replica_reads_and_decides_nothing() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("CACHE.SET k v PX 600000");
    client.must("CACHE.SETNULL n PX 600000");
    client.must("CACHE.SET s v PX 600000");
    client.must("CACHE.DEL s STALE 600000");
    client.must("CACHE.DEL t GRACE 600000");
    wait_for_replica_sync(&master, &replica);
    let mut reader = Raw::connect(&replica);
    assert_eq!(reader.must("CACHE.GET k"), "v");
    assert_eq!(reader.must("CACHE.GET s"), "v");
    assert!(reader.must("CACHE.GET n").is_nil());
    assert!(reader.must("CACHE.GET t").is_nil());
    nearly(about(&mut reader, "k", "fresh_ms"), 600_000);
    for line in [
        "CACHE.SET k v PX 5",
        "CACHE.SETNULL k PX 5",
        "CACHE.DEL k",
        "CACHE.APPLY k x",
    ] {
        assert!(reader.run(line).err().starts_with("READONLY"), "{line}");
    }
    // What has ended is a miss there, whether the master has said so or not.
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    client.must("CACHE.SET ends v PX 100");
    client.must("CACHE.SET short v PX 600000");
    client.must("CACHE.DEL short STALE 100 GRACE 600000");
    wait_for_replica_sync(&master, &replica);
    for key in ["ends", "short"] {
        eventually(SOON, || reader.must(&format!("CACHE.GET {key}")).is_nil());
    }
}

#[test]
fn a_client_that_tracks_an_entry_at_a_replica_is_told_too() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("CACHE.SET k v PX 600000");
    wait_for_replica_sync(&master, &replica);
    let mut tracker = Raw::connect(&replica);
    tracker.hello3();
    tracker.must("CLIENT TRACKING ON");
    for line in [
        "CACHE.SET k w PX 600000",
        "CACHE.DEL k STALE 600000",
        "CACHE.SETNULL k PX 600000",
        "CACHE.DEL k",
    ] {
        tracker.must("CACHE.GET k");
        client.must(line);
        wait_for_replica_sync(&master, &replica);
        let pushes = until_pong(&mut tracker);
        let keys: Vec<_> = pushes
            .iter()
            .map(|push| push.array()[1].array()[0].clone())
            .collect();
        assert_eq!(keys, [Value::Bulk(b"k".to_vec())], "{line}");
    }
}

#[test]
fn a_promoted_replica_goes_on_and_refuses_what_the_old_master_leased() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("CACHE.SET s v PX 600000 STALE 5000 VER 7");
    client.must("CACHE.DEL s STALE 600000 GRACE 500000");
    client.must("CACHE.SET k v PX 600000");
    let missing = lease(&mut client, "missing");
    let early = fetched(&client.must("CACHE.FETCH k LEASE 600000 EARLY 900000")).2;
    let digest = master.digest();
    wait_for_replica_sync(&master, &replica);
    master.kill9();
    replica.promote();
    await_role(&replica, "master");
    assert_eq!(replica.digest(), digest);
    let mut client = Raw::connect(&replica);
    assert!(!stores(&mut client, "missing", missing));
    assert!(!stores(&mut client, "k", early));
    assert_eq!(look(&mut client, "k"), "HIT v");
    assert_eq!(look(&mut client, "s"), "LEASE v");
    nearly(about(&mut client, "s", "grace_ms"), 500_000);
    let token = lease(&mut client, "missing");
    assert!(token != missing && token != early);
    assert!(stores(&mut client, "missing", token));
}

/// What happens while the connection is away comes later, with the times that the master decided.
#[test]
fn a_replica_that_was_away_has_the_masters_times() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    replica.stop_signal();
    client.must("CACHE.SET k v PX 600000 STALE 5000 JITTER 50");
    client.must("CACHE.SET s v PX 60000");
    client.must("CACHE.FETCH s LEASE 5 SLIDE 600000");
    client.must("CACHE.DEL t GRACE 600000");
    thread::sleep(Duration::from_millis(200));
    replica.cont_signal();
    assert_identical(&master, &replica);
    let mut reader = Raw::connect(&replica);
    for key in ["k", "s", "t"] {
        let at = client.must(&format!("PEXPIRETIME {key}"));
        assert_eq!(reader.must(&format!("PEXPIRETIME {key}")), at);
        assert!(at.int() > now_ms(&mut client));
    }
}

/// What the master decided counts, whatever the clock says of the replica or of the machine that reads the file.
#[test]
fn another_clock_moves_no_time_of_an_entry() {
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
    for line in [
        "CACHE.SET k v PX 20000000 STALE 30000000 JITTER 50 VER 7",
        "CACHE.SETNULL n PX 20000000 JITTER 50",
        "CACHE.SET s v PX 20000000 STALE 30000000",
        "CACHE.FETCH s LEASE 5 SLIDE 40000000",
        "CACHE.SET d v PX 20000000",
        "CACHE.DEL d STALE 30000000 GRACE 40000000 VER 9",
        "CACHE.DEL t GRACE 20000000",
        "CACHE.SET t v PX 5000000",
        "CACHE.SET e v PX 20000000 STALE 30000000",
        "PEXPIRE e 15000000",
    ] {
        client.must(line);
    }
    let token = lease(&mut client, "rebuilt");
    assert!(client.must(&format!("CACHE.SET rebuilt v PX 20000000 TOKEN {token}")) == 1);
    let ends = |server: &Server| {
        let mut client = Raw::connect(server);
        ["k", "n", "s", "d", "t", "e", "rebuilt"]
            .map(|key| client.must(&format!("PEXPIRETIME {key}")).int())
    };
    let (digest, before) = (master.digest(), ends(&master));
    for replica in &replicas {
        assert_identical(&master, replica);
        assert_eq!(ends(replica), before);
    }
    for shift in [-2 * HOUR, 3 * HOUR] {
        master.terminate();
        master.shift_clock(shift);
        master.restart();
        assert_eq!((master.digest(), ends(&master)), (digest.clone(), before));
    }
}

/// In a cluster a master is handed entries down, too, with the slots that come to it.
#[test]
fn a_replicated_entry_ends_the_lease_and_serves_waiting_clients() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k");
    let mut next = waiter(&server, "CACHE.FETCH k LEASE 600000 BLOCK 0");
    let entry = CacheEntry {
        tag: EntryTag::new(EntryKind::Value),
        fresh_until: 99_999_999_999_999,
        ..CacheEntry::tombstone()
    };
    let mut effect = Vec::new();
    put_effect(&mut effect, &entry, false, 99_999_999_999_999);
    let apply: [&[u8]; 4] = [b"CACHE.APPLY", b"k", &effect, b"v"];
    assert_eq!(client.call(apply), "OK");
    assert_eq!(fetched(&served(&mut next)).0, "HIT");
    assert!(!stores(&mut client, "k", token));
}

#[test]
fn effects_that_do_not_fit_what_is_there_are_refused() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let effect = |kind, keeps| {
        let entry = CacheEntry {
            tag: EntryTag::new(kind),
            ..CacheEntry::tombstone()
        };
        let mut effect = Vec::new();
        put_effect(&mut effect, &entry, keeps, 99_999_999_999_999);
        effect
    };
    for (kind, keeps, value) in [
        (EntryKind::Value, false, None),
        (EntryKind::Negative, false, Some(b"v")),
        (EntryKind::Tombstone, false, Some(b"v")),
        (EntryKind::Tombstone, true, Some(b"v")),
        // There is nothing to keep.
        (EntryKind::Tombstone, true, None),
    ] {
        let effect = effect(kind, keeps);
        let mut apply: Vec<&[u8]> = vec![b"CACHE.APPLY", b"k", &effect];
        apply.extend(value.map(|value| value.as_slice()));
        let reply = client.call(apply);
        assert_eq!(
            reply.err(),
            "ERR invalid replicated effect",
            "{kind:?} {keeps}"
        );
        assert_eq!(client.must("DBSIZE"), 0);
    }
}

#[test]
fn the_internal_command_needs_the_permission_to_restore() {
    let server = Server::start();
    let mut admin = Raw::connect(&server);
    admin.must("CACHE.SET k v PX 600000");
    admin.must("ACL SETUSER bob on >pw ~* +@all -restore");
    admin.must("ACL SETUSER eve on >pw ~own:* +@all");
    let digest = server.digest();
    let mut client = Raw::connect(&server);
    client.must("AUTH bob pw");
    assert_eq!(
        client.run("CACHE.APPLY k x").err(),
        "NOPERM this internal command needs the permission to RESTORE the key"
    );
    client.must("AUTH eve pw");
    assert!(client.run("CACHE.APPLY k x").err().starts_with("NOPERM"));
    assert_eq!(
        client.run("CACHE.APPLY own:k x").err(),
        "ERR invalid replicated effect"
    );
    assert_eq!(server.digest(), digest);
}
