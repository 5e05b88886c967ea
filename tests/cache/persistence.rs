//! Cached entries survive restarts and crashes as they were, leases do not, and damaged bytes harm nobody.

use std::fs;

use crate::support::cache::{about, fetched, lease, look, stores};
use crate::support::corruption::{FOOTER, payload_of};
use crate::support::ways::Picture;
use crate::support::{
    Fsync, Lines, Random, Raw, Server, Shutdown, UNSAFE_INTEGER, Value, Written, follow, now_ms,
    quiet, ways,
};
use sluice::codec::put_uint;

/// Every kind of entry there is, in two databases; nothing of it ends soon.
fn fill(server: &Server) {
    let mut client = Raw::connect(server);
    for line in [
        "CACHE.SET plain v PX 600000",
        "CACHE.SET all v PX 600000 STALE 700000 VER 5",
        "CACHE.SET jittered v PX 600000 STALE 1000 JITTER 50",
        "CACHE.SETNULL null PX 600000 JITTER 50",
        "CACHE.SET zero v PX 600000 VER 0",
        "CACHE.SET most v PX 315360000000 STALE 315360000000 VER 9007199254740991",
        "CACHE.DEL tombstone GRACE 600000",
        "CACHE.DEL versioned GRACE 600000 VER 7",
        "CACHE.SET stale v PX 600000",
        "CACHE.DEL stale STALE 600000",
        "CACHE.SET both v PX 600000 VER 3",
        "CACHE.DEL both STALE 600000 GRACE 900000 VER 4",
        "CACHE.SET over v PX 600000",
        "CACHE.DEL over GRACE 900000",
        "CACHE.SET over w PX 500000 STALE 5000",
        "CACHE.SET slid v PX 60000 STALE 5000",
        "CACHE.FETCH slid LEASE 5 SLIDE 800000",
        "CACHE.SET cut v PX 600000 STALE 600000",
        "PEXPIRE cut 300000",
        "CACHE.SET kept v PX 600000 STALE 600000",
        "PERSIST kept",
        "CACHE.SET gone v PX 600000",
        "CACHE.DEL gone",
        "CACHE.SET old v PX 600000 STALE 5",
        "RENAME old renamed",
        "COPY renamed copied",
        "CACHE.SET copied w PX 600000",
        "SELECT 3",
        "CACHE.SET plain elsewhere PX 600000",
    ] {
        client.must(line);
    }
    let token = fetched(&client.must("CACHE.FETCH rebuilt LEASE 600000")).2;
    client.must(&format!("CACHE.SET rebuilt v PX 600000 TOKEN {token}"));
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let set: [&[u8]; 5] = [b"CACHE.SET", b"\0\xff", &bytes, b"PX", b"600000"];
    assert_eq!(client.call(set), 1);
    let set: [&[u8]; 5] = [b"CACHE.SET", b"empty", b"", b"PX", b"600000"];
    assert_eq!(client.call(set), 1);
}

#[test]
fn all_ways_to_save_and_load_keep_all_but_leases() {
    let filled = |server: &Server| {
        fill(server);
        let token = lease(&mut Raw::connect(server), "missing");
        (Picture::of(server), token)
    };
    ways::walk(filled, |server, (before, token)| {
        before.assert_is_of(server);
        check_what_was_filled(server, *token);
    });
}

/// What [`fill`] made is told, and the lease of this token is over.
fn check_what_was_filled(server: &Server, token: i64) {
    let mut client = Raw::connect(server);
    assert!(
        !stores(&mut client, "missing", token),
        "leases are not kept"
    );
    assert_eq!(look(&mut client, "plain"), "HIT v");
    assert_eq!(look(&mut client, "null"), "NULL -");
    assert_eq!(look(&mut client, "both"), "LEASE v");
    assert_eq!(look(&mut client, "tombstone"), "LEASE -");
    let all = client.must("CACHE.INFO all");
    assert_eq!(*all.field("ver"), 5);
    assert_eq!(*all.field("stale_ms"), 700_000);
    let grace = about(&mut client, "both", "grace_ms");
    assert!((1..=900_000).contains(&grace), "{grace}");
    assert_eq!(about(&mut client, "both", "ver"), 4);
    assert_eq!(client.must("CACHE.SET versioned v PX 5 VER 6"), 0);
    assert!(client.must("CACHE.INFO kept").field("stale_ms").is_nil());
    client.must("SELECT 3");
    assert_eq!(look(&mut client, "plain"), "HIT elsewhere");
    assert!(about(&mut client, "rebuilt", "rebuild_ms") > 0);
    assert_eq!(client.must("CACHE.GET empty"), "");
}

#[test]
fn a_deletion_that_deletes_nothing_is_not_written() {
    let (server, replica) = (quiet().aof(Fsync::Always).start(), quiet().start());
    follow(&server, &replica);
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET k v PX 600000");
    assert_eq!(client.must("CACHE.DEL k"), 1);
    // A lease is in memory only, and the deletion ends it.
    client.must("CACHE.FETCH leased LEASE 600000");
    let before = Written::by(&server);
    for line in [
        "CACHE.DEL k",
        "CACHE.DEL k STALE 600000",
        "CACHE.DEL leased",
        "CACHE.DEL leased STALE 600000",
    ] {
        assert_eq!(client.must(line), 0, "{line}");
        assert_eq!(client.transact([line])[0], 0, "{line}");
        assert_eq!(Written::by(&server), before, "{line}");
    }
    // A tombstone is written.
    assert_eq!(client.must("CACHE.DEL k GRACE 600000"), 0);
    assert_ne!(Written::by(&server), before);
}

#[test]
fn what_ends_while_the_server_is_down_is_gone_after_its_start() {
    for aof in [false, true] {
        let builder = if aof {
            Server::builder().aof(Fsync::Always)
        } else {
            Server::builder().rdb(true)
        };
        let server = builder.start();
        let mut client = Raw::connect(&server);
        for line in [
            "CACHE.SET ends v PX 300",
            "CACHE.SET stale v PX 300 STALE 600000",
            "CACHE.DEL grace GRACE 300",
            "CACHE.SET stays v PX 600000",
        ] {
            client.must(line);
        }
        let stale_ends = client.must("PEXPIRETIME stale");
        server.shutdown(Shutdown::Save);
        std::thread::sleep(std::time::Duration::from_millis(320));
        server.restart();
        let mut client = Raw::connect(&server);
        assert_eq!(look(&mut client, "ends"), "LEASE -");
        assert_eq!(look(&mut client, "stale"), "LEASE v");
        assert_eq!(client.must("PEXPIRETIME stale"), stale_ends);
        let token = lease(&mut client, "grace");
        assert!(stores(&mut client, "grace", token));
        assert_eq!(look(&mut client, "stays"), "HIT v");
    }
}

#[test]
fn of_a_cut_append_only_file_every_change_is_loaded_or_not_at_all() {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("aof-load-truncated", "yes")
        .start();
    let mut client = Raw::connect(&server);
    let file = server.aof_file(".incr.");
    let mut states = vec![(fs::metadata(&file).unwrap().len(), server.digest())];
    for line in [
        "CACHE.SET k v PX 600000 STALE 5000 JITTER 50 VER 3",
        "CACHE.FETCH k LEASE 5 SLIDE 900000",
        "CACHE.DEL k STALE 600000 GRACE 700000",
        "CACHE.SETNULL k PX 900000",
        "CACHE.DEL k",
        "CACHE.DEL j GRACE 600000 VER 5",
    ] {
        client.must(line);
        states.push((fs::metadata(&file).unwrap().len(), server.digest()));
    }
    let whole = fs::read(&file).unwrap();
    server.kill9();
    let mut random = Random(99);
    for _ in 0..12 {
        let cut = random.below(whole.len() as u64 + 1);
        fs::write(&file, &whole[..cut as usize]).unwrap();
        server.restart();
        let expected = states.iter().rev().find(|(length, _)| *length <= cut);
        // What comes before the first of them is the choice of the database.
        let empty = "0".repeat(40);
        let expected = expected.map_or(&empty, |(_, digest)| digest);
        assert_eq!(
            &server.digest(),
            expected,
            "cut at {cut} of {}",
            whole.len()
        );
        server.kill9();
    }
}

// Damaged and forged bytes

/// A server that takes any payload for undamaged.
fn careless_server() -> (Server, Raw) {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    (server, client)
}

fn payloads(client: &mut Raw) -> Vec<Vec<u8>> {
    [
        "CACHE.SET k value PX 600000 STALE 700000 VER 5",
        "CACHE.SETNULL k PX 600000",
        "CACHE.DEL k GRACE 600000 VER 9007199254740991",
    ]
    .iter()
    .map(|line| {
        client.must("DEL k");
        client.must(line);
        client.must("DUMP k").bytes().to_vec()
    })
    .collect()
}

/// Restores a payload and uses what came of it in every way. Returns whether it was taken.
#[track_caller]
fn restored(client: &mut Raw, payload: &[u8]) -> bool {
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"5000", payload, b"REPLACE"];
    let reply = client.call(restore);
    if reply.is_err() {
        let text = reply.err();
        assert!(
            text.contains("Bad data") || text.contains("checksum"),
            "{text}"
        );
        return false;
    }
    if client.must("TYPE k") == "sluice-ca" {
        use_entry(client);
    }
    true
}

/// Every command on the key `k`: whatever it replies, it is no internal error.
#[track_caller]
fn use_entry(client: &mut Raw) {
    for line in [
        "CACHE.GET k",
        "CACHE.INFO k",
        "CACHE.FETCH k LEASE 5 SLIDE 900000",
        "CACHE.FETCH k LEASE 5 BETA 1000",
        "CACHE.FETCH k LEASE 5 EARLY 315360000000",
        "DUMP k",
        "COPY k saved REPLACE",
        "DEBUG DIGEST-VALUE k",
        "MEMORY USAGE k",
        "CACHE.DEL k STALE 315360000000 GRACE 315360000000 VER 1",
        "CACHE.INFO k",
        "CACHE.SET k v PX 315360000000 STALE 315360000000",
        "CACHE.FETCH k LEASE 5 SLIDE 315360000000",
        "CACHE.DEL k",
    ] {
        let reply = client.must(line);
        let numbers = match &reply {
            Value::Array(items) => items.clone(),
            item => vec![item.clone()],
        };
        for number in numbers {
            if let Value::Int(number) = number {
                assert!(number < UNSAFE_INTEGER, "{line}: {reply:?}");
            }
        }
    }
}

/// Panics if anything went wrong that the server tells of; all there is must be loaded again.
#[track_caller]
fn is_well(server: &Server, client: &mut Raw) {
    client.must("DEBUG RELOAD");
    client.must("FLUSHALL");
    let log = server.log();
    for word in ["panic", "internal error", "BUG REPORT", "invalid repl"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
}

#[test]
fn payloads_cut_or_changed_anywhere_are_refused_or_make_an_entry_that_works() {
    let (server, mut client) = careless_server();
    let mut taken = 0;
    for payload in payloads(&mut client) {
        assert!(restored(&mut client, &payload));
        let (value, footer) = payload.split_at(payload.len() - FOOTER);
        for end in 0..value.len() {
            let cut = [&value[..end], footer].concat();
            // The footer, whose checksum may be anything, can stand for as many bytes of the value as it has.
            let may_be_made_up = value.len() - end <= FOOTER;
            assert!(
                !restored(&mut client, &cut) || may_be_made_up,
                "{end} of {payload:?}"
            );
        }
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut flipped = payload.clone();
                flipped[at] ^= 1 << bit;
                taken += usize::from(restored(&mut client, &flipped));
            }
        }
    }
    assert!(taken > 50, "{taken}");
    is_well(&server, &mut client);
}

/// Numbers from where trouble begins, and ordinary ones.
fn odd(random: &mut Random, now: u64) -> u64 {
    let numbers = [
        0,
        1,
        now - 1,
        now + 1000,
        now + 600_000,
        (1 << 53) - 2,
        (1 << 53) - 1,
        1 << 53,
        (1 << 53) + 1,
        i64::MAX as u64,
        u64::MAX,
        u32::MAX.into(),
        1 << 32,
    ];
    *random.one(&numbers)
}

/// The head of an entry with such numbers.
fn forged_head(random: &mut Random, now: u64) -> (u8, Vec<u8>) {
    let letter = *random.one(b"VVVNGKXv\0");
    let mut head = vec![letter];
    // Likely numbers are tried more often: odd ones together are refused for the first of them.
    let usual = [now + 600_000, 6, 1000];
    for usual in usual {
        let number = if random.below(2) == 0 {
            usual
        } else {
            odd(random, now)
        };
        put_uint(&mut head, number);
    }
    match random.below(3) {
        0 => put_uint(&mut head, 0),
        1 => {
            put_uint(&mut head, odd(random, now));
            put_uint(&mut head, odd(random, now));
        }
        _ => put_uint(&mut head, odd(random, now)), // perhaps one too few
    }
    if random.below(20) == 0 {
        head.push(0);
    }
    (letter, head)
}

#[test]
fn absurd_numbers_are_refused_or_make_an_entry_that_works() {
    const SEED: u64 = 0xcac4_e001;
    let (server, mut client) = careless_server();
    let mut random = Random(SEED);
    let real = payloads(&mut client).remove(0);
    let now = now_ms(&mut client) as u64;
    let mut taken = 0;
    for round in 0..1500 {
        let (letter, head) = forged_head(&mut random, now);
        let strings: &[&[u8]] = match random.below(8) {
            0 => &[&head, b"value", b"more"],
            1 => &[&head],
            2 => &[],
            _ if letter == b'V' => &[&head, b"value"],
            _ => &[&head],
        };
        taken += usize::from(restored(&mut client, &payload_of(&real, strings)));
        if round % 300 == 0 {
            client.must("DEBUG RELOAD");
        }
    }
    assert!(taken > 100, "{taken}");
    is_well(&server, &mut client);
}

#[test]
fn forged_effects_are_refused_or_leave_an_entry_that_works() {
    const SEED: u64 = 0xcac4_e002;
    let (server, mut client) = careless_server();
    let mut random = Random(SEED);
    let now = now_ms(&mut client) as u64;
    let (mut taken, mut real) = (0, 0);
    for _ in 0..4000 {
        let before = *random.one(&[
            "DEL k",
            "CACHE.SET k v PX 600000",
            "CACHE.DEL k GRACE 600000",
        ]);
        // A copy that ends soon would change the digest, too.
        client.must("DEL saved");
        client.must(before);
        let digest = client.must("DEBUG DIGEST");
        let mut effect = Vec::new();
        let expires = if random.below(2) == 0 {
            now + 700_000
        } else {
            odd(&mut random, now)
        };
        put_uint(&mut effect, expires);
        let (_, head) = forged_head(&mut random, now);
        effect.extend(head);
        if random.below(5) == 0 {
            effect = random.bytes(20);
        }
        let mut apply: Vec<&[u8]> = vec![b"CACHE.APPLY", b"k", &effect];
        if random.below(2) == 0 {
            apply.push(b"value");
        }
        let reply = client.call(apply);
        if reply.is_err() {
            assert_eq!(reply.err(), "ERR invalid replicated effect");
            assert_eq!(client.must("DEBUG DIGEST"), digest);
            continue;
        }
        taken += 1;
        if client.must("EXISTS k") == 1 {
            real += 1;
            use_entry(&mut client);
        }
    }
    assert!(taken > 100 && real > 50, "{taken} {real}");
    is_well(&server, &mut client);
}

/// An effect cut anywhere changes nothing.
#[test]
fn effects_cut_or_changed_anywhere_are_refused_or_leave_an_entry_that_works() {
    let server = Server::builder().aof(Fsync::Always).rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET k value PX 600000 STALE 700000 VER 5");
    client.must("CACHE.DEL k STALE 300000 GRACE 400000");
    let file = fs::read(server.aof_file(".incr.")).unwrap();
    // The effects as they stand in the file: the argument behind the key, and perhaps a value.
    let mut effects = Vec::new();
    let name = b"CACHE.APPLY\r\n$1\r\nk\r\n$";
    for start in 0..file.len() {
        let Some(rest) = file[start..].strip_prefix(name) else {
            continue;
        };
        let line_end = rest.iter().position(|byte| *byte == b'\r').unwrap();
        let length: usize = std::str::from_utf8(&rest[..line_end])
            .unwrap()
            .parse()
            .unwrap();
        effects.push(rest[line_end + 2..][..length].to_vec());
    }
    assert_eq!(effects.len(), 2);
    for (effect, value) in effects.iter().zip([Some(&b"value"[..]), None]) {
        let mut apply = |effect: &[u8]| {
            client.must("CACHE.SET k before PX 600000");
            let mut words: Vec<&[u8]> = vec![b"CACHE.APPLY", b"k", effect];
            words.extend(value);
            let reply = client.call(words);
            if reply.is_err() {
                assert_eq!(reply.err(), "ERR invalid replicated effect");
                assert_eq!(client.must("CACHE.GET k"), "before");
                return false;
            }
            if client.must("EXISTS k") == 1 {
                use_entry(&mut client);
            }
            true
        };
        assert!(apply(effect));
        for end in 0..effect.len() {
            assert!(!apply(&effect[..end]), "cut at {end}");
        }
        for at in 0..effect.len() {
            for bit in 0..8 {
                let mut flipped = effect.clone();
                flipped[at] ^= 1 << bit;
                apply(&flipped);
            }
        }
    }
    // What was taken is in the file, and the file can be read.
    let digest = server.digest();
    server.crash();
    assert_eq!(server.digest(), digest);
    is_well(&server, &mut Raw::connect(&server));
}
