//! The server's own commands on cached entries.

use crate::support::cache::{about, counter, fetched, lease, look, nearly, shown, stores};
use crate::support::{
    Lines, Raw, SEPARATE, SOON, Server, Value, await_gone, eventually, now_ms, server_and_client,
    settled_memory, used_memory,
};

/// What differs between two of these is what the values hold, or when their keys expire.
#[track_caller]
fn digest_of(client: &mut Raw, key: &str) -> String {
    let reply = client.must(&format!("DEBUG DIGEST-VALUE {key}"));
    reply.array()[0].text().to_owned()
}

#[test]
fn whatever_removes_a_key_removes_the_entry() {
    let (_server, mut client) = server_and_client();
    for line in [
        "DEL k",
        "UNLINK k",
        "PEXPIRE k 0",
        "PEXPIRE k 5",
        "PEXPIREAT k 1",
        "RENAME k other",
        "MOVE k 1",
        "FLUSHDB",
        "FLUSHALL ASYNC",
        "SWAPDB 0 9",
    ] {
        client.must("CACHE.SET k v PX 600000");
        client.must(line);
        await_gone(&mut client, "k");
        assert!(client.must("CACHE.GET k").is_nil(), "{line}");
        assert!(client.must("CACHE.INFO k").is_nil(), "{line}");
        assert_eq!(look(&mut client, "k"), "LEASE -", "{line}");
        client.must("FLUSHALL");
    }
}

/// The module emits `expired` itself, after it has granted a lease in the millisecond in which the entry expired.
#[test]
fn a_lease_granted_as_the_entry_expires_is_kept_whatever_events_are_on() {
    let (_server, mut client) = server_and_client();
    for flags in ["KEA", "Ex", ""] {
        client.call(["CONFIG", "SET", "notify-keyspace-events", flags]);
        for _ in 0..20 {
            client.must("CACHE.SET k v PX 3");
            while !look(&mut client, "k").starts_with("LEASE") {}
            let next = look(&mut client, "k");
            assert!(next.starts_with("WAIT"), "{flags}: {next}");
            client.must("CACHE.DEL k");
        }
    }
}

#[test]
fn entries_are_a_type_of_their_own() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET value v PX 600000");
    client.must("CACHE.SETNULL null PX 600000");
    client.must("CACHE.DEL tombstone GRACE 600000");
    client.must("SET string v");
    for key in ["value", "null", "tombstone"] {
        assert_eq!(client.must(&format!("TYPE {key}")), "sluice-ca");
        assert_eq!(client.must(&format!("EXISTS {key}")), 1);
        assert_eq!(client.must(&format!("OBJECT REFCOUNT {key}")), 1);
        assert!(
            !client
                .must(&format!("OBJECT ENCODING {key}"))
                .text()
                .is_empty()
        );
        assert!(client.must(&format!("OBJECT IDLETIME {key}")).int() >= 0);
        let debug = client.must(&format!("DEBUG OBJECT {key}"));
        assert!(debug.text().contains("serializedlength"));
    }
    let found = client.must("SCAN 0 COUNT 1000 TYPE sluice-ca");
    let mut keys: Vec<_> = found.array()[1].array().iter().map(Value::text).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["null", "tombstone", "value"]);
    client.must("CONFIG SET maxmemory-policy allkeys-lfu");
    client.must("COPY value copy");
    assert!(client.must("OBJECT FREQ copy").int() >= 0);
}

// Expiry

#[test]
fn an_entry_is_fresh_no_longer_than_its_key_lives() {
    let (_server, mut client) = server_and_client();
    // What the expiry is given later than the entry is stale time more.
    let stale = |client: &mut Raw| about(client, "k", "stale_ms");
    client.must("CACHE.SET k v PX 600000 STALE 600000");
    client.must("PEXPIRE k 300000");
    nearly(about(&mut client, "k", "fresh_ms"), 300_000);
    assert_eq!(about(&mut client, "k", "stale_ms"), 0);
    // A longer life makes it stale for longer, not fresh.
    client.must("PEXPIRE k 900000");
    nearly(about(&mut client, "k", "fresh_ms"), 300_000);
    assert!((600_000..620_000).contains(&stale(&mut client)));
    // Only the stale time is cut.
    client.must("CACHE.SET k v PX 300000 STALE 600000");
    client.must("PEXPIRE k 500000");
    nearly(about(&mut client, "k", "fresh_ms"), 300_000);
    assert!((200_000..220_000).contains(&stale(&mut client)));
}

#[test]
fn an_entry_without_expiry_is_stale_for_ever() {
    let (_server, mut client) = server_and_client();
    // Together, so that the entry cannot end in between.
    let replies = client.transact(["CACHE.SET k v PX 20", "PERSIST k"]);
    assert_eq!(replies[1], 1);
    assert_eq!(client.must("PTTL k"), -1);
    eventually(SOON, || about(&mut client, "k", "fresh_ms") == 0);
    assert!(client.must("CACHE.INFO k").field("stale_ms").is_nil());
    assert_eq!(client.must("CACHE.GET k"), "v");
    assert_eq!(look(&mut client, "k"), "LEASE v");
    assert_eq!(look(&mut client, "k"), "STALE v");
    // The next store gives it an expiry again.
    client.must("CACHE.SET k v PX 600000");
    nearly(client.must("PTTL k").int(), 600_000);
    // A hit slides without one.
    client.must("PERSIST k");
    client.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    nearly(about(&mut client, "k", "fresh_ms"), 900_000);
    assert_eq!(client.must("PTTL k"), -1);
    client.must("CACHE.DEL k STALE 5000");
    nearly(client.must("PTTL k").int(), 5000);
}

#[test]
fn a_tombstone_that_never_expires_still_ends_its_grace() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.DEL k GRACE 50");
    if client.must("PERSIST k") == 0 {
        return; // a very busy machine
    }
    eventually(SOON, || about(&mut client, "k", "grace_ms") == 0);
    let token = lease(&mut client, "k");
    assert!(stores(&mut client, "k", token));
}

// RENAME, COPY, MOVE, SWAPDB

#[test]
fn an_entry_that_moves_stays_what_it_is() {
    let (_server, mut client) = server_and_client();
    for make in [
        "CACHE.SET k v PX 600000 STALE 600000 VER 5",
        "CACHE.SETNULL k PX 600000 VER 5",
        "CACHE.DEL k GRACE 600000 VER 5",
    ] {
        client.must("FLUSHALL");
        client.must(make);
        let digest = digest_of(&mut client, "k");
        client.must("SET taken v");
        client.must("RENAME k taken");
        assert_eq!(digest_of(&mut client, "taken"), digest);
        assert_eq!(client.must("COPY taken copy"), 1);
        assert_eq!(digest_of(&mut client, "copy"), digest);
        assert_eq!(client.must("MOVE taken 1"), 1);
        client.must("SWAPDB 0 1");
        assert_eq!(digest_of(&mut client, "taken"), digest);
        assert_eq!(about(&mut client, "taken", "ver"), 5);
        client.must("SWAPDB 0 1");
        assert_eq!(digest_of(&mut client, "copy"), digest);
    }
}

#[test]
fn a_copy_is_an_entry_of_its_own() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 600000 VER 5");
    client.must("COPY k copy");
    client.must("CACHE.SET k w PX 600000");
    assert_eq!(look(&mut client, "copy"), "HIT v");
    client.must("CACHE.DEL copy STALE 600000");
    assert_eq!(look(&mut client, "k"), "HIT w");
    assert_eq!(look(&mut client, "copy"), "LEASE v");
    // A lease is for a name, and goes nowhere.
    client.must("RENAME copy new");
    assert_eq!(look(&mut client, "new"), "LEASE v");
}

// DUMP, RESTORE, MIGRATE

#[test]
fn a_restored_entry_is_what_was_dumped() {
    let (_server, mut client) = server_and_client();
    for make in [
        "CACHE.SET k v PX 600000 STALE 600000 VER 5",
        "CACHE.SETNULL k PX 600000",
        "CACHE.DEL k GRACE 600000 VER 0",
    ] {
        client.must("DEL k new");
        let token = lease(&mut client, "k");
        if make.contains("PX") {
            // How long it took to rebuild is kept, too.
            client.must(&format!("{make} TOKEN {token}"));
        } else {
            client.must(make);
        }
        client.must("PEXPIREAT k 99999999999999");
        let digest = digest_of(&mut client, "k");
        let payload = client.must("DUMP k").bytes().to_vec();
        let restore: [&[u8]; 5] = [b"RESTORE", b"new", b"99999999999999", &payload, b"ABSTTL"];
        assert_eq!(client.call(restore), "OK");
        assert_eq!(digest_of(&mut client, "new"), digest, "{make}");
        assert!(client.call(restore).err().starts_with("BUSYKEY"));
    }
    client.must("CACHE.SET k v PX 600000 STALE 600000");
    let payload = client.must("DUMP k").bytes().to_vec();
    // The expiry that it is given counts.
    let restore: [&[u8]; 5] = [b"RESTORE", b"new", b"50000", &payload, b"REPLACE"];
    assert_eq!(client.call(restore), "OK");
    nearly(client.must("PTTL new").int(), 50_000);
    assert!(about(&mut client, "new", "fresh_ms") <= 50_000);
    let restore: [&[u8]; 5] = [b"RESTORE", b"new", b"0", &payload, b"REPLACE"];
    assert_eq!(client.call(restore), "OK");
    assert_eq!(client.must("PTTL new"), -1);
    nearly(about(&mut client, "new", "fresh_ms"), 600_000);
}

#[test]
fn a_migrated_entry_goes_on_at_the_other_server() {
    let (one, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    here.must("CACHE.SET k v PX 600000 STALE 600000 VER 5");
    here.must("CACHE.DEL gone GRACE 600000 VER 7");
    let token = fetched(&here.must("CACHE.FETCH k LEASE 600000 EARLY 900000")).2;
    let port = other.port();
    let migrate = format!("MIGRATE 127.0.0.1 {port}  0 60000 KEYS k gone");
    let migrate: Vec<&str> = migrate.split(' ').collect();
    assert_eq!(here.call(&migrate), "OK");
    assert_eq!(here.must("EXISTS k gone"), 0);
    assert!(!stores(&mut here, "k", token));
    assert_eq!(look(&mut there, "k"), "HIT v");
    assert_eq!(about(&mut there, "k", "ver"), 5);
    // What MIGRATE takes is added to the expiry.
    let stale = about(&mut there, "k", "stale_ms");
    assert!((600_000..620_000).contains(&stale), "{stale}");
    nearly(about(&mut there, "gone", "grace_ms"), 600_000);
    assert_eq!(there.must("CACHE.SET gone v PX 5 VER 6"), 0);
}

// DEBUG DIGEST

#[test]
fn all_of_an_entry_is_in_its_digest() {
    let (_server, mut client) = server_and_client();
    let mut digests = Vec::new();
    for line in [
        "CACHE.SET k v PX 600000",
        "CACHE.SET k w PX 600000",
        "CACHE.SETNULL k PX 600000",
        "CACHE.SET k v PX 600000 VER 0",
        "CACHE.SET k v PX 600000 VER 1",
        "CACHE.SET k v PX 500000",
        "CACHE.DEL k STALE 600000",
        "CACHE.DEL k GRACE 600000",
        "CACHE.DEL k GRACE 700000",
    ] {
        client.must(line);
        // The expiry of a key is in the digest of a value: without it, what is left is the entry.
        client.must("COPY k bare REPLACE");
        client.must("PERSIST bare");
        let digest = digest_of(&mut client, "bare");
        assert!(!digests.contains(&digest), "{line}");
        digests.push(digest);
    }
    // Two values whose times are the same.
    let at = now_ms(&mut client) + 600_000;
    let digests = ["v", "w"].map(|value| {
        client.must(&format!("CACHE.SET k {value} PX 900000"));
        client.must(&format!("PEXPIREAT k {at}"));
        digest_of(&mut client, "k")
    });
    assert_ne!(digests[0], digests[1]);
    for line in [
        "CACHE.GET bare",
        "CACHE.FETCH bare LEASE 600000",
        "CACHE.SET bare v PX 5 TOKEN 5",
        "CACHE.INFO bare",
    ] {
        let before = digest_of(&mut client, "bare");
        client.must(line);
        assert_eq!(digest_of(&mut client, "bare"), before, "{line}");
    }
}

// Memory

/// What 10 000 keys take of the server's memory, and what `MEMORY USAGE` says.
fn measure(client: &mut Raw, lines: &[&str]) -> (i64, i64) {
    const COUNT: usize = 10_000;
    client.must("FLUSHALL SYNC"); // what is freed later would count as what is taken
    client.must("SET warm up");
    let before = used_memory(client);
    for line in lines {
        let lines: Vec<_> = (0..COUNT)
            .map(|number| line.replace('%', &format!("key-{number:08}")))
            .collect();
        for lines in lines.chunks(500) {
            let replies = client.run_all(lines);
            assert!(replies.iter().all(|reply| !reply.is_err()), "{replies:?}");
        }
    }
    let usages: Vec<_> = (0..COUNT)
        .map(|number| format!("MEMORY USAGE key-{number:08}"))
        .collect();
    let mut said = 0;
    for usages in usages.chunks(500) {
        let replies = client.run_all(usages);
        said += replies.iter().map(Value::int).sum::<i64>();
    }
    (settled_memory(client) - before, said)
}

#[test]
fn memory_usage_is_truthful() {
    let (_server, mut client) = server_and_client();
    // What the server leaves out for every key, such as its tables, is what it leaves out for a string.
    let (given, said) = measure(&mut client, &[&format!("SET % {SEPARATE} PX 600000")]);
    let left_out = given - said;
    let value = |length: usize| format!("CACHE.SET % {} PX 600000", "v".repeat(length));
    let (small, odd, large) = (value(1), value(77), value(1500));
    for lines in [
        &["CACHE.SETNULL % PX 600000"][..],
        &[&small],
        &[&odd],
        &[&large],
        &["CACHE.DEL % GRACE 600000"],
        &[&odd, "CACHE.DEL % STALE 600000 GRACE 600000 VER 5"],
        &[&large, &small],
        &[&large, "CACHE.DEL % GRACE 600000"],
    ] {
        let (given, said) = measure(&mut client, lines);
        let given = given - left_out;
        let error = (said - given) as f64 / given as f64 * 100.0;
        println!("{}: given {given}, said {said}, {error:+.1} %", lines.len());
        assert!(error.abs() <= 10.0, "{lines:?}: said {said}, given {given}");
    }
}

/// The values are just above size classes of jemalloc. Newer versions round such blocks to pages.
#[test]
fn memory_usage_of_large_values_is_truthful() {
    const COUNT: i64 = 100;
    let (_server, mut client) = server_and_client();
    for length in [16_500, 32_800, 65_600, 131_100] {
        client.must("FLUSHALL SYNC");
        let before = settled_memory(&mut client);
        let value = "v".repeat(length);
        for number in 0..COUNT {
            client.must(&format!("CACHE.SET k{number} {value} PX 600000"));
        }
        let given = (settled_memory(&mut client) - before) / COUNT;
        let said = client.must("MEMORY USAGE k7").int();
        let error = (said - given) as f64 / given as f64 * 100.0;
        println!("{length}: given {given}, said {said}, {error:+.1} %");
        assert!(error.abs() <= 10.0, "{length}: said {said}, given {given}");
    }
}

/// With jemalloc, that is. An entry is two more blocks, and those of the C library's allocator are dearer.
#[test]
fn an_entry_costs_at_most_1_3_times_what_a_string_does() {
    let (server, mut client) = server_and_client();
    let value = "v".repeat(128);
    let (string, _) = measure(&mut client, &[&format!("SET % {value} PX 600000")]);
    let (entry, _) = measure(&mut client, &[&format!("CACHE.SET % {value} PX 600000")]);
    println!("{string} bytes as strings, {entry} as entries");
    let most = match server.info("mem_allocator").as_deref() {
        Some("libc") => 14,
        _ => 13,
    };
    let is_met = entry * 10 <= string * most;
    assert!(is_met, "{entry} bytes, {string} as strings");
}

#[test]
fn a_client_that_waited_for_a_long_lease_leaves_no_state() {
    let (server, mut client) = server_and_client();
    let mut waiter = Raw::connect(&server);
    let mut wait_for = |number: usize| {
        let key = format!("{number}{}", "k".repeat(100));
        client.must(&format!("CACHE.FETCH {key} LEASE 315360000000"));
        waiter.ask(&format!("CACHE.FETCH {key} LEASE 1 BLOCK 0"));
        eventually(SOON, || about(&mut client, &key, "waiters") == 1);
        client.must(&format!("CACHE.SETNULL {key} PX 60000"));
        assert_eq!(fetched(&waiter.read()).0, "NULL");
        client.must(&format!("DEL {key}"));
        used_memory(&mut client)
    };
    // On a busy machine, a round can need more memory for a moment.
    let before = (0..50).map(&mut wait_for).skip(40).max().unwrap();
    let after = (50..600).map(&mut wait_for).skip(540).min().unwrap();
    assert!(after - before < 50_000, "{}", after - before);
}

#[test]
fn a_client_with_a_timeout_of_years_leaves_no_state() {
    let (server, mut client) = server_and_client();
    let mut waiters = [(); 20].map(|()| Raw::connect(&server));
    let mut round = || {
        lease(&mut client, "k");
        for waiter in &mut waiters {
            waiter.ask("CACHE.FETCH k LEASE 1 BLOCK 315360000000");
        }
        eventually(SOON, || about(&mut client, "k", "waiters") == 20);
        client.must("CACHE.SETNULL k PX 60000");
        for waiter in &mut waiters {
            assert_eq!(fetched(&waiter.read()).0, "NULL");
        }
        client.must("DEL k");
        used_memory(&mut client)
    };
    // On a busy machine, a round can need more memory for a moment.
    let before = (0..10).map(|_| round()).max().unwrap();
    let after = (0..120).map(|_| round()).skip(110).min().unwrap();
    assert!(after - before < 50_000, "{}", after - before);
}

/// Whenever the lease changes hands, those who still wait are looked at again at another time.
#[test]
fn a_line_behind_one_long_lease_after_another_leaves_nothing_behind() {
    let (server, mut client) = server_and_client();
    let key = "k".repeat(1000);
    let mut waiters = [(); 2].map(|()| Raw::connect(&server));
    let mut token = lease(&mut client, &key);
    let mut turn = |number: i64| {
        let [next, last] = &mut waiters;
        last.ask(&format!(
            "CACHE.FETCH {key} LEASE {} BLOCK 0",
            315_000_000_000 + 1000 * number
        ));
        let in_line = if number == 0 { 1 } else { 2 };
        eventually(SOON, || about(&mut client, &key, "waiters") == in_line);
        if number > 0 {
            client.must(&format!("CACHE.FAIL {key} {token}"));
            let (state, _, granted) = fetched(&next.read());
            assert_eq!(state, "LEASE");
            token = granted;
        }
        waiters.swap(0, 1);
        used_memory(&mut client)
    };
    // On a busy machine, a round can need more memory for a moment.
    let before = (0..50).map(&mut turn).skip(40).max().unwrap();
    let after = (50..300).map(&mut turn).skip(240).min().unwrap();
    assert!(after - before < 50_000, "{}", after - before);
}

/// They are beside the keyspace, where no `maxmemory` evicts anything.
#[test]
fn leases_of_long_keys_take_no_more_than_those_of_short_ones() {
    let (_server, mut client) = server_and_client();
    lease(&mut client, "first");
    let before = used_memory(&mut client);
    for number in 0..100 {
        let key = format!("{number}{}", "k".repeat(200_000));
        client.call(["CACHE.FETCH", &key, "LEASE", "600000"]);
    }
    let grown = used_memory(&mut client) - before;
    assert!(grown < 2_000_000, "{grown}");
    assert_eq!(counter(&mut client, "leases_now"), 101);
}

#[test]
fn memory_of_entries_and_leases_comes_back() {
    let (_server, mut client) = server_and_client();
    let fill = |client: &mut Raw| {
        for start in (0..20_000).step_by(1000) {
            let lines: Vec<_> = (start..start + 1000)
                .map(|number| match number % 4 {
                    0 => format!("CACHE.SET k{number} value PX 600000"),
                    1 => format!("CACHE.SETNULL k{number} PX 600000"),
                    2 => format!("CACHE.DEL k{number} GRACE 600000"),
                    _ => format!("CACHE.FETCH k{number} LEASE 600000"),
                })
                .collect();
            client.run_all(lines);
        }
        client.must("FLUSHALL");
    };
    // The first round makes tables and buffers that stay.
    fill(&mut client);
    // The entries of cleared leases in the order of ends are swept ten times a second.
    let before = settled_memory(&mut client);
    fill(&mut client);
    fill(&mut client);
    let grown = settled_memory(&mut client) - before;
    assert!(grown < 100_000, "{grown} bytes are not given back");
}

/// Moving blocks while defragmenting must not damage them.
#[test]
fn active_defrag_damages_nothing() {
    let (server, mut client) = server_and_client();
    if client.run("CONFIG SET activedefrag yes").is_err() {
        return; // a server that is built without it
    }
    for line in [
        "CONFIG SET activedefrag no",
        "CONFIG SET active-defrag-ignore-bytes 1",
        "CONFIG SET active-defrag-threshold-lower 1",
        "CONFIG SET active-defrag-cycle-min 40",
        "CONFIG SET active-defrag-cycle-max 60",
    ] {
        client.must(line);
    }
    let set = |number: usize| {
        let value = number.to_string().repeat(1 + number % 60);
        format!("CACHE.SET k{number} {value} PX 600000 STALE 600000")
    };
    // The allocator moves blocks out of pages that are emptier than the average: so some pages stay full.
    let is_removed = |number: &usize| *number < 15_000 && !number.is_multiple_of(7);
    for first in (0..20_000).step_by(500) {
        client.run_all((first..first + 500).map(set));
    }
    for first in (0..20_000).step_by(500) {
        let numbers = first..first + 500;
        let tombs = numbers.clone().filter(|number| *number % 21 == 0);
        client
            .run_all(tombs.map(|number| format!("CACHE.DEL k{number} GRACE 600000 STALE 600000")));
        let removed = numbers.filter(is_removed);
        client.run_all(removed.map(|number| format!("DEL k{number}")));
    }
    let digest = server.digest();
    client.must("CONFIG SET activedefrag yes");
    eventually(SOON, || server.info_int("active_defrag_hits") > 500);
    assert_eq!(server.digest(), digest);
    for number in (0..20_000).filter(|number| !is_removed(number)) {
        let value = number.to_string().repeat(1 + number % 60);
        assert_eq!(client.must(&format!("CACHE.GET k{number}")), value.as_str());
    }
}

#[test]
fn evicted_entries_are_gone_and_can_be_rebuilt() {
    let (server, mut client) = server_and_client();
    let value = "v".repeat(1000);
    for start in (0..3000).step_by(500) {
        client.run_all(
            (start..start + 500).map(|number| format!("CACHE.SET k{number} {value} PX 600000")),
        );
    }
    client.must("CONFIG SET maxmemory-policy volatile-ttl");
    let limit = used_memory(&mut client) - 1_000_000;
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    // `used_memory` does not show the end of the eviction, because the reply itself uses memory.
    eventually(SOON, || {
        client.run("SET s v");
        server.info_int("evicted_keys") > 100
    });
    client.must("CONFIG SET maxmemory 0");
    let mut rebuilt = 0;
    for number in 0..3000 {
        let reply = client.must(&format!("CACHE.FETCH k{number} LEASE 600000"));
        if shown(&reply) == "LEASE -" {
            let (_, _, token) = fetched(&reply);
            assert!(stores(&mut client, &format!("k{number}"), token));
            rebuilt += 1;
        }
    }
    assert!(rebuilt > 100, "{rebuilt}");
}
