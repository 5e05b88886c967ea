//! Every command of caches: what it replies, what it refuses, and which leases it ends.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::support::cache::{
    LONG, about, counter, fetched, lease, look, nearly, number, shown, stores,
};
use crate::support::{
    KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, UNSAFE_INTEGER, Value,
    WRONGTYPE, await_gone, eventually, field_of, follow, now_ms, quiet, served, server_and_client,
    still_waits, until_pong, used_memory, wait_for_replica_sync, waiter,
};

const TEN_YEARS: &str = "315360000000";
const TEN_YEARS_MS: i64 = 315_360_000_000;
const MOST: &str = "9007199254740991";
const TOO_MUCH: &str = "9007199254740992";

fn sleep_ms(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// How many effects and other commands the server has sent to its replicas, in bytes.
///
/// It counts only while it has a backlog: see [`counting_server`].
fn written(client: &mut Raw) -> i64 {
    field_of(&client.must("INFO replication"), "master_repl_offset")
}

/// A server that counts what it sends, as one with a replica does.
fn counting_server() -> (Server, Server, Raw) {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&master, &replica);
    let client = Raw::connect(&master);
    (master, replica, client)
}

// States

#[test]
fn a_missing_key_is_leased_to_one_and_all_others_wait() {
    let (_server, mut client) = server_and_client();
    let reply = client.must("CACHE.FETCH k LEASE 60000");
    let token = number(&reply, "LEASE -");
    assert!(token > 0);
    for line in ["CACHE.FETCH k LEASE 5", "cache.fetch k lease 600000"] {
        nearly(number(&client.must(line), "WAIT -"), 60_000);
    }
    assert!(client.must("CACHE.GET k").is_nil());
    // Leases are no keys.
    assert_eq!(client.must("DBSIZE"), 0);
    assert_eq!(client.must("EXISTS k"), 0);
    assert_eq!(client.must("TYPE k"), "none");
    let other = number(&client.must("CACHE.FETCH other LEASE 60000"), "LEASE -");
    assert_ne!(token, other);
}

#[test]
fn a_value_is_a_hit_until_it_is_no_longer_fresh() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.must("CACHE.SET k v PX 60000"), 1);
    nearly(
        number(&client.must("CACHE.FETCH k LEASE 5"), "HIT v"),
        60_000,
    );
    assert_eq!(client.must("CACHE.GET k"), "v");
    nearly(client.must("PTTL k").int(), 60_000);
    client.must("CACHE.SET k w PX 30");
    await_gone(&mut client, "k");
    assert_eq!(look(&mut client, "k"), "LEASE -");
}

#[test]
fn a_cached_null_is_known_to_be_nothing() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.must("CACHE.SETNULL k PX 60000"), 1);
    nearly(
        number(&client.must("CACHE.FETCH k LEASE 5"), "NULL -"),
        60_000,
    );
    assert!(client.must("CACHE.GET k").is_nil());
    assert_eq!(client.must("EXISTS k"), 1);
    client.must("CACHE.SET k v PX 60000");
    assert_eq!(look(&mut client, "k"), "HIT v");
    client.must("CACHE.SETNULL k PX 60000");
    assert_eq!(look(&mut client, "k"), "NULL -");
}

#[test]
fn an_entry_is_stale_for_a_while_and_one_rebuilds_it() {
    let (_server, mut client) = server_and_client();
    for (set, value) in [("CACHE.SET k v", "v"), ("CACHE.SETNULL k", "-")] {
        client.must("FLUSHALL");
        client.must(&format!("{set} PX 20 STALE 60000"));
        nearly(client.must("PTTL k").int(), 60_020);
        eventually(SOON, || about(&mut client, "k", "fresh_ms") == 0);
        let reply = client.must("CACHE.FETCH k LEASE 50000");
        let token = number(&reply, &format!("LEASE {value}"));
        let reply = client.must("CACHE.FETCH k LEASE 50000");
        nearly(number(&reply, &format!("STALE {value}")), 50_000);
        // Only a wait for nothing at all blocks.
        let reply = client.must("CACHE.FETCH k LEASE 50000 BLOCK 0");
        number(&reply, &format!("STALE {value}"));
        if value == "v" {
            assert_eq!(client.must("CACHE.GET k"), "v");
        }
        assert!(stores(&mut client, "k", token));
        assert_eq!(look(&mut client, "k"), "HIT late");
    }
}

#[test]
fn after_its_stale_time_an_entry_is_gone_and_so_is_the_lease_on_it() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 10 STALE 60");
    eventually(SOON, || {
        let info = client.must("CACHE.INFO k");
        info.is_nil() || info.get("fresh_ms").is_none_or(|ms| *ms == 0)
    });
    let (state, _, token) = fetched(&client.must("CACHE.FETCH k LEASE 60000"));
    assert_eq!(state, "LEASE");
    await_gone(&mut client, "k");
    if client.must("CACHE.INFO k").is_nil() {
        assert!(!stores(&mut client, "k", token));
    }
    // On a very busy machine the lease came after all was gone.
}

#[test]
fn a_lease_lasts_as_long_as_it_was_asked_for_and_then_goes_to_the_next() {
    let (_server, mut client) = server_and_client();
    let start = now_ms(&mut client);
    let first = number(&client.must("CACHE.FETCH k LEASE 80"), "LEASE -");
    let mut second = client.must("CACHE.FETCH k LEASE 600000");
    while shown(&second) == "WAIT -" {
        assert!(fetched(&second).2 <= 80);
        second = client.must("CACHE.FETCH k LEASE 600000");
    }
    assert!(now_ms(&mut client) - start >= 80);
    let second = number(&second, "LEASE -");
    assert_ne!(first, second);
    assert!(!stores(&mut client, "k", first));
    assert!(stores(&mut client, "k", second));
    assert_eq!(counter(&mut client, "refused_sets"), 1);
}

#[test]
fn an_ended_lease_is_valid_until_another_client_gets_one() {
    let (_server, mut client) = server_and_client();
    let token = number(&client.must("CACHE.FETCH k LEASE 1"), "LEASE -");
    sleep_ms(20);
    assert!(client.must("CACHE.INFO k").is_nil());
    assert_eq!(counter(&mut client, "leases_now"), 0);
    assert!(stores(&mut client, "k", token));
    assert_eq!(look(&mut client, "k"), "HIT late");
    // It can also still fail, and be voided.
    client.must("DEL k");
    let token = number(&client.must("CACHE.FETCH k LEASE 1"), "LEASE -");
    sleep_ms(20);
    assert_eq!(
        client.must(&format!("CACHE.FAIL k {token} BACKOFF 60000")),
        1
    );
    assert_eq!(look(&mut client, "k"), "DOWN -");
    let token = number(&client.must("CACHE.FETCH j LEASE 1"), "LEASE -");
    sleep_ms(20);
    client.must("CACHE.DEL j");
    assert!(!stores(&mut client, "j", token));
}

#[test]
fn early_leases_a_fresh_entry_to_one_and_is_a_hit_for_all_others() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    number(&client.must("CACHE.FETCH k LEASE 60000 EARLY 0"), "HIT v");
    number(&client.must("CACHE.FETCH k LEASE 60000 EARLY 100"), "HIT v");
    let reply = client.must("CACHE.FETCH k LEASE 60000 EARLY 60001");
    let token = number(&reply, "LEASE v");
    for line in [
        "CACHE.FETCH k LEASE 60000 EARLY 60001",
        "CACHE.FETCH k LEASE 60000",
    ] {
        nearly(number(&client.must(line), "HIT v"), 60_000);
    }
    assert_eq!(counter(&mut client, "early"), 1);
    assert_eq!(counter(&mut client, "leases"), 1);
    assert!(stores(&mut client, "k", token));
    // A null is rebuilt early, too.
    client.must("CACHE.SETNULL n PX 60000");
    number(
        &client.must("CACHE.FETCH n LEASE 60000 EARLY 60001"),
        "LEASE -",
    );
    number(
        &client.must("CACHE.FETCH n LEASE 60000 EARLY 60001"),
        "NULL -",
    );
    // While the loader is down, what is fresh is a hit.
    client.must("CACHE.SET d v PX 60000");
    let token = number(
        &client.must("CACHE.FETCH d LEASE 60000 EARLY 60001"),
        "LEASE v",
    );
    client.must(&format!("CACHE.FAIL d {token} BACKOFF 60000"));
    number(
        &client.must("CACHE.FETCH d LEASE 60000 EARLY 60001"),
        "HIT v",
    );
}

#[test]
fn beta_rebuilds_sooner_what_takes_longer() {
    let (_server, mut client) = server_and_client();
    // How long a rebuild takes is measured from the lease to the store.
    let token = lease(&mut client, "slow");
    sleep_ms(50);
    stores(&mut client, "slow", token);
    let took = about(&mut client, "slow", "rebuild_ms");
    assert!((40..10_000).contains(&took), "{took}");
    // A store without a lease does not say, and leaves what is known.
    client.must("CACHE.SET slow v PX 10000");
    assert_eq!(about(&mut client, "slow", "rebuild_ms"), took);
    client.must("CACHE.SET unknown v PX 600000");
    assert_eq!(about(&mut client, "unknown", "rebuild_ms"), 0);

    // 50 ms * 1000 * -ln(u) is above 10 s for four of five u.
    let mut early = 0;
    for _ in 0..200 {
        client.must("CACHE.SET slow v PX 10000"); // so that it does not end
        number(
            &client.must("CACHE.FETCH slow LEASE 600000 BETA 0"),
            "HIT v",
        );
        number(
            &client.must("CACHE.FETCH unknown LEASE 600000 BETA 1000"),
            "HIT v",
        );
        let (state, value, n) = fetched(&client.must("CACHE.FETCH slow LEASE 600000 BETA 1e3"));
        assert_eq!(value.as_deref(), Some(&b"v"[..]));
        if state == "LEASE" {
            early += 1;
            client.must(&format!("CACHE.FAIL slow {n}"));
        }
    }
    assert!((100..200).contains(&early) || took > 100, "{early}");
    assert_eq!(counter(&mut client, "early"), early);
    // With a factor of 1 an entry that has its whole time before it is left alone.
    client.must("CACHE.SET slow v PX 600000000");
    for _ in 0..200 {
        number(
            &client.must("CACHE.FETCH slow LEASE 600000 BETA 1"),
            "HIT v",
        );
    }
    // A store that ends somebody's lease does not say how long that rebuild takes, and an invalidation forgets nothing.
    any_lease(&mut client, "slow");
    for line in [
        "CACHE.SET slow v PX 10000",
        "CACHE.DEL slow STALE 60000 GRACE 60000",
        "CACHE.DEL slow GRACE 60000",
        "CACHE.SET slow v PX 10000",
    ] {
        client.must(line);
        assert_eq!(about(&mut client, "slow", "rebuild_ms"), took, "{line}");
    }
}

#[test]
fn a_hit_slides_and_rarely_writes() {
    let (_server, _replica, mut client) = counting_server();
    client.must("CACHE.SET k v PX 600000 STALE 5000");
    let before = written(&mut client);
    for _ in 0..100 {
        // More than seven eighths are left, or more than it would be.
        for slide in ["600000", "1000"] {
            let line = format!("CACHE.FETCH k LEASE 60000 SLIDE {slide}");
            nearly(number(&client.must(&line), "HIT v"), 600_000);
        }
    }
    assert_eq!(written(&mut client), before);

    let reply = client.must("CACHE.FETCH k LEASE 60000 SLIDE 6000000");
    assert_eq!(number(&reply, "HIT v"), 6_000_000);
    assert!(written(&mut client) > before);
    nearly(client.must("PTTL k").int(), 6_005_000);
    assert_eq!(about(&mut client, "k", "stale_ms"), 5000);
    let before = written(&mut client);
    for _ in 0..100 {
        client.must("CACHE.FETCH k LEASE 60000 SLIDE 6000000");
    }
    assert_eq!(written(&mut client), before);
}

#[test]
fn an_entry_that_is_read_stays_and_one_that_is_not_goes() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("CACHE.SET read v PX 1000000");
    client.must("CACHE.SET unread v PX 1000000");
    for _ in 0..4 {
        server.shift_clock(700_000);
        number(
            &client.must("CACHE.FETCH read LEASE 60000 SLIDE 1000000"),
            "HIT v",
        );
    }
    assert!(client.must("CACHE.GET unread").is_nil());
    // A null does not slide, and what is stale is not made fresh.
    client.must("CACHE.SETNULL n PX 50000");
    client.must("CACHE.FETCH n LEASE 60000 SLIDE 600000");
    assert!(client.must("PTTL n").int() <= 50_000);
    client.must("CACHE.SET s v PX 60000");
    client.must("CACHE.DEL s STALE 50000");
    assert_eq!(
        shown(&client.must("CACHE.FETCH s LEASE 60000 SLIDE 600000")),
        "LEASE v"
    );
    assert!(client.must("PTTL s").int() <= 50_000);
}

#[test]
fn a_guard_knows_what_there_is_not() {
    let (_server, mut client) = server_and_client();
    client.must("BF.RESERVE bloom 0.0001 100");
    client.must("BF.ADD bloom known");
    client.must("CF.RESERVE cuckoo 100");
    client.must("CF.ADD cuckoo known");
    for filter in ["bloom", "cuckoo"] {
        client.must("DEL k");
        let line = format!("CACHE.FETCH k LEASE 60000 GUARD {filter} ");
        assert_eq!(
            number(&client.must(&format!("{line}unknown")), "ABSENT -"),
            0
        );
        // Also for who would wait, and no lease came of it.
        let reply = client.must(&format!("{line}unknown BLOCK 0"));
        assert_eq!(number(&reply, "ABSENT -"), 0);
        assert!(client.must("CACHE.INFO k").is_nil());
        let token = number(&client.must(&format!("{line}known")), "LEASE -");
        number(&client.must(&format!("{line}known")), "WAIT -");
        // What is cached is not asked for, stale or not.
        assert!(stores(&mut client, "k", token));
        number(&client.must(&format!("{line}unknown")), "HIT late");
        client.must("CACHE.DEL k STALE 60000");
        number(&client.must(&format!("{line}unknown")), "LEASE late");
        client.must("CACHE.DEL k");
        client.must("CACHE.SETNULL k PX 60000");
        number(&client.must(&format!("{line}unknown")), "NULL -");
    }
    // A filter that is not there guards nothing.
    client.must("DEL k");
    let reply = client.must("CACHE.FETCH k LEASE 60000 GUARD nowhere unknown");
    number(&reply, "LEASE -");
    // One that came to be meanwhile does: somebody who waits for nothing need not.
    client.must("DEL k");
    client.must("CACHE.FETCH k LEASE 60000 GUARD bloom known");
    let reply = client.must("CACHE.FETCH k LEASE 60000 GUARD bloom unknown");
    number(&reply, "ABSENT -");
    assert_eq!(counter(&mut client, "absent"), 5);
}

#[test]
fn a_guard_of_another_type_is_an_error_where_it_is_asked() {
    let (_server, mut client) = server_and_client();
    client.must("SET string v");
    client.must("CACHE.SET entry v PX 60000");
    for guard in ["string", "entry"] {
        let line = format!("CACHE.FETCH k LEASE 60000 GUARD {guard} x");
        assert_eq!(client.run(&line).err(), WRONGTYPE);
        assert!(client.must("CACHE.INFO k").is_nil());
    }
    // The entry is its own guard: nobody asks.
    number(
        &client.must("CACHE.FETCH entry LEASE 60000 GUARD entry x"),
        "HIT v",
    );
    assert_eq!(
        client.run("CACHE.FETCH k LEASE 60000 GUARD k x").array()[0],
        "LEASE"
    );
}

#[test]
fn a_loader_that_fails_gives_the_next_a_try_at_once_or_later() {
    let (_server, mut client) = server_and_client();
    let token = lease(&mut client, "k");
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 1);
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 0);
    assert!(!stores(&mut client, "k", token));
    let next = lease(&mut client, "k");
    assert_eq!(
        client.must(&format!("CACHE.FAIL k {token}")),
        0,
        "another's"
    );
    assert_eq!(client.must(&format!("CACHE.FAIL k {next} BACKOFF 0")), 1);

    let token = lease(&mut client, "k");
    assert_eq!(
        client.must(&format!("CACHE.FAIL k {token} BACKOFF 60000")),
        1
    );
    for block in ["", " BLOCK 0"] {
        let reply = client.must(&format!("CACHE.FETCH k LEASE 60000{block}"));
        nearly(number(&reply, "DOWN -"), 60_000);
    }
    nearly(about(&mut client, "k", "backoff_ms"), 60_000);
    assert_eq!(about(&mut client, "k", "lease_ms"), 0);
    assert_eq!(client.must(&format!("CACHE.FAIL k {token} BACKOFF 1")), 0);
    assert!(!stores(&mut client, "k", token));
    // An invalidation makes the loader no better.
    client.must("CACHE.DEL k");
    client.must("DEL k");
    assert_eq!(look(&mut client, "k"), "DOWN -");
    // What somebody stores shows that it is.
    client.must("CACHE.SET k v PX 60000");
    assert_eq!(look(&mut client, "k"), "HIT v");
    client.must("CACHE.DEL k");
    assert_eq!(look(&mut client, "k"), "LEASE -");

    let token = number(&client.must("CACHE.FETCH s LEASE 60000"), "LEASE -");
    let start = now_ms(&mut client);
    client.must(&format!("CACHE.FAIL s {token} BACKOFF 50"));
    eventually(SOON, || look(&mut client, "s") == "LEASE -");
    assert!(now_ms(&mut client) - start >= 50);
}

#[test]
fn while_the_loader_is_down_what_is_stale_is_served() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    client.must("CACHE.DEL k STALE 60000");
    let token = number(&client.must("CACHE.FETCH k LEASE 60000"), "LEASE v");
    client.must(&format!("CACHE.FAIL k {token} BACKOFF 50000"));
    nearly(
        number(&client.must("CACHE.FETCH k LEASE 60000"), "DOWN v"),
        50_000,
    );
}

// What a token is good for

/// What is there, and a command that ends the lease on the key.
const ENDS_A_LEASE: &[(&str, &str)] = &[
    ("", "CACHE.DEL k"),
    ("", "CACHE.DEL k GRACE 1"),
    ("", "CACHE.SET k v PX 60000"),
    ("", "CACHE.SETNULL k PX 60000"),
    ("", "CACHE.SET k v PX 60000 VER 5"),
    ("", "DEL k"),
    ("", "DEL j k l"),
    ("", "del k"),
    ("", "UNLINK k"),
    ("", "SET k v"),
    ("", "SETEX k 5 v"),
    ("", "APPEND k v"),
    ("", "INCR k"),
    ("", "HSET k f v"),
    ("", "RPUSH k v"),
    ("", "SADD k v"),
    ("", "ZADD k 1 v"),
    ("", "XADD k * f v"),
    ("", "SETBIT k 1 1"),
    ("", "LOCK.ACQUIRE k me"),
    ("", "STOCK.SET k 5"),
    ("", "BF.ADD k x"),
    ("SET s v", "RENAME s k"),
    ("SET s v", "RENAMENX s k"),
    ("SET s v", "COPY s k"),
    ("SET s v", "COPY s k REPLACE"),
    ("SADD s v", "SUNIONSTORE k s"),
    ("SADD s v", "SORT s ALPHA STORE k"),
    ("CACHE.SET s v PX 60000", "RENAME s k"),
    ("CACHE.SET s v PX 60000", "COPY s k"),
    ("", "FLUSHALL"),
    ("", "FLUSHALL ASYNC"),
    ("", "FLUSHDB"),
    ("", "FLUSHDB ASYNC"),
    ("", "SWAPDB 0 5"),
    ("", "SWAPDB 5 0"),
    ("", "EVAL return(redis.call('DEL','k')) 0"),
    ("", "EVAL return(redis.call('CACHE.DEL','k')) 0"),
    ("CACHE.SET k v PX 60000", "CACHE.DEL k STALE 60000"),
    ("CACHE.SET k v PX 60000", "CACHE.SET k w PX 60000"),
    ("CACHE.SET k v PX 60000", "DEL k"),
    ("CACHE.SET k v PX 60000", "UNLINK k"),
    ("CACHE.SET k v PX 60000", "SET k v"),
    ("CACHE.SET k v PX 60000", "PEXPIRE k 0"),
    ("CACHE.SET k v PX 60000", "PEXPIREAT k 1"),
    ("CACHE.SET k v PX 60000", "RENAME k elsewhere"),
    ("CACHE.SET k v PX 60000", "MOVE k 3"),
    ("CACHE.SET k v PX 60000", "FLUSHDB"),
    ("CACHE.SET k v PX 60000", "SWAPDB 0 5"),
    ("CACHE.SET k v PX 60000;SET s v", "COPY s k REPLACE"),
    ("CACHE.SET k v PX 60000", "SINTERSTORE k none"),
];

/// A line that fetches a lease on whatever is there.
fn any_fetch(key: &str) -> String {
    format!("CACHE.FETCH {key} LEASE {LONG} EARLY {TEN_YEARS}")
}

/// Fetches a lease on whatever is there.
fn any_lease(client: &mut Raw, key: &str) -> i64 {
    let (state, _, token) = fetched(&client.must(&any_fetch(key)));
    assert_eq!(state, "LEASE", "{key}");
    token
}

/// A key that may hold another type now takes no entry; then nobody can store anything either.
fn is_refused(client: &mut Raw, key: &str, token: i64) -> bool {
    let reply = client.run(&format!("CACHE.SET {key} late PX 60000 TOKEN {token}"));
    if reply.is_err() {
        assert_eq!(reply.err(), WRONGTYPE);
        client.must(&format!("PEXPIRE {key} 0"));
        return !stores(client, key, token);
    }
    reply == 0
}

#[test]
fn whatever_changes_a_key_ends_the_lease_on_it() {
    let (_server, mut client) = server_and_client();
    for (before, change) in ENDS_A_LEASE {
        for way in ["alone", "MULTI"] {
            client.must("SELECT 0");
            client.must("FLUSHALL");
            for line in before.split(';').filter(|line| !line.is_empty()) {
                client.must(line);
            }
            let token = any_lease(&mut client, "k");
            if way == "alone" {
                client.must(change);
            } else {
                client.transact([change]);
            }
            assert!(
                is_refused(&mut client, "k", token),
                "{way}: {before}, then {change}"
            );
        }
    }
}

/// What came to be at a missing key that is leased, of another type, and how it goes.
const COMES_AND_GOES: &[(&str, &str)] = &[
    ("SET k v", "DEL k"),
    ("SET k v", "GETDEL k"),
    ("SET k v", "GETEX k PXAT 1"),
    ("SET k v", "PEXPIRE k 0"),
    ("SET k v", "RENAME k elsewhere"),
    ("SET k v", "MOVE k 3"),
    ("SET k v", "SUNIONSTORE k none"),
    ("SET k v", "FLUSHDB"),
    ("SET k v PX 5", "EXISTS k"),
    ("RPUSH k v", "LPOP k"),
    ("SADD k v", "SPOP k"),
    ("HSET k f v", "HDEL k f"),
    ("ZADD k 1 v", "ZPOPMIN k"),
    ("RATE.ONCE k PX 5", "EXISTS k"),
    ("RATE.GCRA k 5 1 100000", "RATE.REFUND k 1"),
    ("LOCK.ACQUIRE k me", "LOCK.RELEASE k me"),
    ("SEM.ACQUIRE k me LIMIT 1", "SEM.RELEASE k me"),
];

#[test]
fn what_came_and_went_meanwhile_ends_the_lease() {
    let (_server, mut client) = server_and_client();
    let ways = COMES_AND_GOES.iter();
    // Whether or not anybody listens to events.
    for ((comes, goes), events) in ways.flat_map(|way| [(way, ""), (way, "KEA")]) {
        client.call(["CONFIG", "SET", "notify-keyspace-events", events]);
        client.must("FLUSHALL");
        let token = lease(&mut client, "k");
        client.must(comes);
        client.must(goes);
        await_gone(&mut client, "k");
        assert!(!stores(&mut client, "k", token), "{comes}, then {goes}");
    }
}

#[test]
fn what_changes_nothing_ends_no_lease() {
    let (_server, mut client) = server_and_client();
    for line in [
        "CACHE.FETCH k LEASE 5",
        "CACHE.GET k",
        "CACHE.INFO k",
        "CACHE.FAIL k 5",
        "CACHE.SET k v PX 5 TOKEN 5",
        "CACHE.SETNULL k PX 5 TOKEN 0",
        "CACHE.SET k",
        "CACHE.DEL k STALE",
        "CACHE.DEL k GRACE -1",
        "CACHE.SET k v PX 0 TOKEN %",
        "CACHE.SET k v PX 5 TOKEN % STALE",
        "CACHE.SETNULL k TOKEN %",
        "CACHE.FAIL k % BACKOFF",
        "CACHE.FAIL k % BACKOFF -1",
        "CACHE.DEL other GRACE 5000",
        "CACHE.SET other v PX 50000",
        "GET k",
        "EXISTS k",
        "TTL k",
        "PEXPIRE k 50",
        "PERSIST k",
        "RENAME k elsewhere",
        "MOVE k 3",
        "COPY k elsewhere REPLACE",
        "RENAME other kk",
        "DEL kk",
        "FLUSHDB_1",
        "SWAPDB 3 4",
        "SCAN 0",
        "KEYS *",
        "SELECT 0",
        "BGREWRITEAOF_",
    ] {
        client.must("FLUSHALL");
        client.must("CACHE.SET other v PX 60000");
        let token = lease(&mut client, "k");
        if line == "FLUSHDB_1" {
            client.must("SELECT 1");
            client.must("SET k v");
            client.must("FLUSHDB");
            client.must("SELECT 0");
        } else {
            client.run(&line.replace('%', &token.to_string()));
        }
        assert!(stores(&mut client, "k", token), "{line}");
    }
}

#[test]
fn leases_are_for_a_key_of_one_database() {
    let (_server, mut client) = server_and_client();
    let zero = lease(&mut client, "k");
    client.must("SELECT 1");
    let one = lease(&mut client, "k");
    assert!(!stores(&mut client, "k", zero));
    assert!(stores(&mut client, "k", one));
    // What happens in the one does not matter in the other.
    client.must("FLUSHDB");
    client.must("SET k other");
    client.must("PEXPIRE k 0");
    client.must("CACHE.SET k v PX 60000");
    client.must("CACHE.DEL k");
    client.must("SELECT 0");
    assert!(stores(&mut client, "k", zero));
}

#[test]
fn an_expiry_ends_the_lease_on_what_was_there() {
    let (_server, mut client) = server_and_client();
    // One step, so that the entry is still there.
    let fetch = any_fetch("k");
    let lines = ["CACHE.SET k v PX 300", &fetch];
    let token = number(&client.transact(lines)[1], "LEASE v");
    await_gone(&mut client, "k");
    assert!(!stores(&mut client, "k", token));
    // In the moment of the store, too, if nobody has looked since.
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    let token = number(&client.transact(lines)[1], "LEASE v");
    sleep_ms(320);
    assert!(!stores(&mut client, "k", token));
}

/// The server keeps a key through the very millisecond in which it expires, and for as long as a script runs.
#[test]
fn a_lease_that_is_given_while_an_entry_ends_is_the_only_one() {
    let (_server, mut client) = server_and_client();
    let is_kept = |client: &mut Raw, token| {
        sleep_ms(3);
        assert_eq!(look(client, "k"), "WAIT -");
        assert!(stores(client, "k", token));
    };
    for _ in 0..30 {
        client.must("CACHE.SET k v PX 10");
        let token = loop {
            let (state, _, token) = fetched(&client.must("CACHE.FETCH k LEASE 60000"));
            if state == "LEASE" {
                break token;
            }
        };
        is_kept(&mut client, token);
    }
    let script = "redis.call('CACHE.SET', KEYS[1], 'v', 'PX', 10, 'STALE', ARGV[1])
        for _ = 1, 1000000 do
            local found = redis.call('CACHE.FETCH', KEYS[1], 'LEASE', 60000)
            if found[1] == 'LEASE' and not found[2] then return found[3] end
        end";
    for stale in ["0", "10"] {
        let token = client.call(["EVAL", script, "1", "k", stale]);
        is_kept(&mut client, token.int());
    }
}

/// Somebody else has seen to it that it stays.
#[test]
fn what_remembers_nothing_any_more_goes_when_it_is_next_used() {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    let remain = |client: &mut Raw| {
        client.must("CACHE.DEL k GRACE 600000 VER 9");
        assert_eq!(client.must("PERSIST k"), 1);
        server.shift_clock(700_000);
        assert_eq!(client.must("EXISTS k"), 1);
    };
    for line in ["CACHE.SET k v PX 60000 VER 3", "CACHE.SETNULL k PX 5 VER 0"] {
        remain(&mut client);
        assert_eq!(client.must(line), 1, "{line}");
        client.must("DEL k");
    }
    remain(&mut client);
    assert_eq!(client.must("CACHE.DEL k"), 0);
    assert_eq!(client.must("EXISTS k"), 0);
    remain(&mut client);
    let token = lease(&mut client, "k");
    assert_eq!(client.must("EXISTS k"), 0);
    assert!(stores(&mut client, "k", token));
    for pause in [false, true] {
        client.must("CACHE.DEL k GRACE 600000");
        assert_eq!(client.must("PERSIST k"), 1);
        client.must("CACHE.FETCH k LEASE 600000");
        let mut next = waiter(&server, "CACHE.FETCH k LEASE 600000 BLOCK 0");
        if pause {
            client.must("CLIENT PAUSE 36000000 WRITE"); // nothing can be handed to replicas
        }
        server.shift_clock(700_000);
        if pause {
            sleep_ms(50);
            still_waits(&mut next);
            client.must("CLIENT UNPAUSE");
        }
        let token = number(&served(&mut next), "LEASE -");
        assert_eq!(client.must("EXISTS k"), 0);
        assert!(stores(&mut client, "k", token));
        client.must("DEL k");
    }
}

#[test]
fn an_eviction_ends_the_lease_on_what_was_there() {
    let (_server, mut client) = server_and_client();
    let value = "x".repeat(1000);
    client.must(&format!("CACHE.SET k {value} PX {LONG}"));
    let token = any_lease(&mut client, "k");
    // Also of what came to be at a missing key.
    let missing = lease(&mut client, "missing");
    client.must("SET missing other");
    client.must("CONFIG SET maxmemory-policy allkeys-random");
    client.must("CONFIG SET maxmemory 1");
    eventually(SOON, || {
        client.run("SET s v");
        client.must("DBSIZE") == 0
    });
    client.must("CONFIG SET maxmemory 0");
    assert!(!stores(&mut client, "k", token));
    assert!(!stores(&mut client, "missing", missing));
}

#[test]
fn a_restored_or_copied_entry_ends_the_lease_and_is_served() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k old PX 60000");
    client.must("CACHE.SET other new PX 60000");
    let payload = client.must("DUMP other").bytes().to_vec();
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"60000", &payload, b"REPLACE"];
    let token = any_lease(&mut client, "k");
    assert_eq!(client.call(restore), "OK");
    assert!(!stores(&mut client, "k", token));
    assert_eq!(look(&mut client, "k"), "HIT new");
    client.must("DEL k");
    let token = lease(&mut client, "k");
    assert_eq!(client.call(restore), "OK");
    assert!(!stores(&mut client, "k", token));
    client.must("CACHE.SET k old PX 60000");
    let token = any_lease(&mut client, "k");
    assert_eq!(client.must("COPY other k REPLACE"), 1);
    assert!(!stores(&mut client, "k", token));
    // A copy in another database is another key.
    let token = any_lease(&mut client, "k");
    assert_eq!(client.must("COPY other k DB 1"), 1);
    assert!(stores(&mut client, "k", token));
}

#[test]
fn a_token_is_good_for_one_store_of_one_key() {
    let (_server, mut client) = server_and_client();
    let token = lease(&mut client, "k");
    assert!(!stores(&mut client, "other", token));
    assert!(stores(&mut client, "k", token));
    assert!(!stores(&mut client, "k", token));
    assert_eq!(client.must(&format!("CACHE.FAIL k {token}")), 0);
    let token = lease(&mut client, "n");
    let line = format!("CACHE.SETNULL n PX 60000 TOKEN {token}");
    assert_eq!(client.must(&line), 1);
    assert_eq!(client.must(&line), 0);
    assert_eq!(look(&mut client, "n"), "NULL -");
    for token in ["0", "1", MOST] {
        let line = format!("CACHE.SET n v PX 5 TOKEN {token}");
        assert_eq!(client.must(&line), 0, "{token}");
        assert_eq!(client.must(&format!("CACHE.FAIL n {token}")), 0, "{token}");
    }
    assert_eq!(counter(&mut client, "refused_sets"), 6);
}

#[test]
fn tokens_are_never_given_twice() {
    let (server, mut client) = server_and_client();
    let mut seen = BTreeSet::new();
    for number in 0..1000 {
        assert!(seen.insert(lease(&mut client, &format!("k{number}"))));
    }
    server.shutdown(crate::support::Shutdown::NoSave);
    server.restart();
    let mut client = Raw::connect(&server);
    for number in 0..1000 {
        assert!(seen.insert(lease(&mut client, &format!("k{number}"))));
    }
}

// Versions

#[test]
fn what_is_older_is_not_stored_in_place_of_what_is_newer() {
    let (_server, mut client) = server_and_client();
    let set = |client: &mut Raw, version: &str| {
        client
            .must(&format!("CACHE.SET k v{version} PX 60000 VER {version}"))
            .int()
    };
    assert_eq!(set(&mut client, "5"), 1);
    assert_eq!(set(&mut client, "4"), 0);
    assert_eq!(set(&mut client, "0"), 0);
    assert_eq!(look(&mut client, "k"), "HIT v5");
    assert_eq!(set(&mut client, "5"), 1, "the same is not older");
    assert_eq!(set(&mut client, MOST), 1);
    assert_eq!(about(&mut client, "k", "ver"), MOST.parse::<i64>().unwrap());
    assert_eq!(counter(&mut client, "refused_sets"), 2);
    // Without a version it always stores, and the entry has none then.
    assert_eq!(client.must("CACHE.SET k plain PX 60000"), 1);
    assert!(client.must("CACHE.INFO k").field("ver").is_nil());
    assert_eq!(set(&mut client, "0"), 1);
    assert_eq!(about(&mut client, "k", "ver"), 0);
    // A null has a version, too.
    assert_eq!(client.must("CACHE.SETNULL k PX 60000 VER 7"), 1);
    assert_eq!(set(&mut client, "6"), 0);
    assert_eq!(client.must("CACHE.SETNULL k PX 60000 VER 6"), 0);
    assert_eq!(look(&mut client, "k"), "NULL -");
}

#[test]
fn a_deleted_version_is_remembered_through_the_grace() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000 VER 5");
    assert_eq!(client.must("CACHE.DEL k VER 8 GRACE 60000"), 1);
    assert_eq!(about(&mut client, "k", "ver"), 8);
    assert_eq!(client.must("CACHE.SET k v7 PX 60000 VER 7"), 0);
    // A second deletion forgets nothing.
    assert_eq!(client.must("CACHE.DEL k GRACE 60000"), 0);
    assert_eq!(client.must("CACHE.DEL k VER 6 GRACE 60000"), 0);
    assert_eq!(client.must("CACHE.SET k v7 PX 60000 VER 7"), 0);
    assert_eq!(client.must("CACHE.SET k v8 PX 60000 VER 8"), 1);
    assert_eq!(look(&mut client, "k"), "HIT v8");
    // Without grace nothing is left to remember it.
    client.must("DEL k");
    client.must("CACHE.SET k v8 PX 60000 VER 8");
    assert_eq!(client.must("CACHE.DEL k VER 9"), 1);
    assert_eq!(client.must("EXISTS k"), 0);
    assert_eq!(client.must("CACHE.SET k v1 PX 60000 VER 1"), 1);
    // While a stale value stays, so does the version.
    assert_eq!(client.must("CACHE.DEL k STALE 60000 VER 4"), 1);
    assert_eq!(client.must("CACHE.SET k v3 PX 60000 VER 3"), 0);
    assert_eq!(client.must("CACHE.SET k v4 PX 60000 VER 4"), 1);
}

#[test]
fn a_token_that_comes_with_too_old_a_version_stores_nothing_and_is_used_up() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000 VER 5");
    client.must("CACHE.DEL k STALE 60000 VER 5");
    let token = any_lease(&mut client, "k");
    let line = format!("CACHE.SET k old PX 60000 TOKEN {token} VER 4");
    assert_eq!(client.must(&line), 0);
    // Its holder has no more to do: the next one tries.
    let token = any_lease(&mut client, "k");
    let line = format!("CACHE.SET k new PX 60000 VER 5 TOKEN {token}");
    assert_eq!(client.must(&line), 1);
    // Without a token, too old a version ends no lease.
    let token = any_lease(&mut client, "k");
    assert_eq!(client.must("CACHE.SET k old PX 60000 VER 1"), 0);
    assert!(stores(&mut client, "k", token));
}

#[test]
fn what_is_still_served_keeps_its_version() {
    let (_server, mut client) = server_and_client();
    for line in [
        "CACHE.DEL k STALE 60000",
        "CACHE.DEL k STALE 60000 GRACE 5",
        "CACHE.DEL k STALE 60000 VER 2",
    ] {
        client.must("CACHE.SET k v PX 60000 VER 7");
        assert_eq!(client.must(line), 1, "{line}");
        assert_eq!(about(&mut client, "k", "ver"), 7, "{line}");
        assert_eq!(client.must("CACHE.SET k old PX 60000 VER 6"), 0, "{line}");
        assert_eq!(client.must("CACHE.SET k new PX 60000 VER 7"), 1, "{line}");
        client.must("DEL k");
    }
    // What is not, does not.
    client.must("CACHE.SET k v PX 60000 VER 7");
    client.must("CACHE.DEL k GRACE 60000");
    assert_eq!(client.must("CACHE.SET k old PX 60000 VER 6"), 1);
}

#[test]
fn through_the_grace_a_version_is_remembered_whatever_is_stored_meanwhile() {
    let (_server, mut client) = server_and_client();
    for (meanwhile, least) in [
        ("CACHE.SET k v PX 60000 VER 7", 7),
        ("CACHE.SET k v PX 60000", 5),
        ("CACHE.SETNULL k PX 60000", 5),
        ("CACHE.DEL k", 5),
    ] {
        client.must("CACHE.DEL k GRACE 60000 VER 5");
        client.must(meanwhile);
        for then in ["CACHE.DEL k", "CACHE.DEL k GRACE 60000"] {
            client.must(then);
            assert_eq!(about(&mut client, "k", "ver"), least, "{meanwhile}");
            let old = format!("CACHE.SET k old PX 60000 VER {}", least - 1);
            assert_eq!(client.must(&old), 0, "{meanwhile}");
        }
        client.must("DEL k");
    }
}

// Grace

#[test]
fn in_grace_nothing_is_stored_with_a_token() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    assert_eq!(client.must("CACHE.DEL k GRACE 60000"), 1);
    // A tombstone is a key that reads as a miss.
    assert_eq!(client.must("EXISTS k"), 1);
    assert_eq!(client.must("TYPE k"), "sluice-ca");
    nearly(client.must("PTTL k").int(), 60_000);
    assert!(client.must("CACHE.GET k").is_nil());
    nearly(about(&mut client, "k", "grace_ms"), 60_000);
    assert!(client.must("CACHE.INFO k").field("kind").is_nil());
    assert_eq!(about(&mut client, "k", "bytes"), 0);

    let token = lease(&mut client, "k");
    assert!(!stores(&mut client, "k", token));
    assert_eq!(counter(&mut client, "refused_sets"), 1);
    // The one who tried has no more to do.
    let token = lease(&mut client, "k");
    let line = format!("CACHE.SETNULL k PX 60000 TOKEN {token}");
    assert_eq!(client.must(&line), 0);
    assert_eq!(client.must("CACHE.DEL k"), 0, "there is no entry");
    nearly(about(&mut client, "k", "grace_ms"), 60_000);

    // Who stores without a token knows what he does; the grace goes on.
    assert_eq!(client.must("CACHE.SET k plain PX 600000"), 1);
    assert_eq!(look(&mut client, "k"), "HIT plain");
    nearly(about(&mut client, "k", "grace_ms"), 60_000);
    let token = any_lease(&mut client, "k");
    assert!(!stores(&mut client, "k", token));
    assert_eq!(look(&mut client, "k"), "HIT plain");
}

#[test]
fn a_deletion_that_changes_nothing_is_handed_to_nobody() {
    let (master, replica, mut client) = counting_server();
    client.must("CACHE.DEL k GRACE 600000 VER 5");
    wait_for_replica_sync(&master, &replica);
    let before = written(&mut client);
    for line in [
        "CACHE.DEL k",
        "CACHE.DEL k VER 3",
        "CACHE.DEL missing VER 9 STALE 5",
    ] {
        assert_eq!(client.must(line), 0, "{line}");
        assert_eq!(written(&mut client), before, "{line}");
    }
    client.must("CACHE.DEL k VER 6");
    assert!(written(&mut client) > before);
    assert_eq!(about(&mut client, "k", "ver"), 6);
}

#[test]
fn grace_ends_by_itself_and_a_lease_from_it_stores_nothing_even_then() {
    let (_server, mut client) = server_and_client();
    // With a stale value the key outlives the grace, without one it goes with it.
    for stale in ["", " STALE 600000"] {
        client.must("CACHE.SET k v PX 600000");
        let del = format!("CACHE.DEL k GRACE 150{stale}");
        // One step, so that the grace period lasts.
        let replies = client.transact([&*del, "CACHE.FETCH k LEASE 600000"]);
        let (state, _, from_grace) = fetched(&replies[1]);
        assert_eq!(state, "LEASE");
        eventually(SOON, || {
            let info = client.must("CACHE.INFO k");
            info.is_nil() || !stale.is_empty() && *info.field("grace_ms") == 0
        });
        assert!(!stores(&mut client, "k", from_grace), "{stale}");
        let token = any_lease(&mut client, "k");
        assert!(stores(&mut client, "k", token), "{stale}");
        client.must("DEL k");
    }
}

#[test]
fn a_lease_from_grace_stores_nothing_over_what_was_stored_without_a_token() {
    let (_server, mut client) = server_and_client();
    // One step, so that the grace period lasts.
    let replies = client.transact([
        "CACHE.DEL k GRACE 150",
        "CACHE.SET k plain PX 600000 STALE 600000",
        &any_fetch("k"),
    ]);
    let token = number(&replies[2], "LEASE plain");
    eventually(SOON, || about(&mut client, "k", "grace_ms") == 0);
    assert!(!stores(&mut client, "k", token));
    assert_eq!(look(&mut client, "k"), "HIT plain");
    let token = any_lease(&mut client, "k");
    assert!(stores(&mut client, "k", token));
}

#[test]
fn grace_is_only_made_longer() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.must("CACHE.DEL k GRACE 60000"), 0);
    assert_eq!(client.must("CACHE.DEL k GRACE 10"), 0);
    nearly(client.must("PTTL k").int(), 60_000);
    client.must("CACHE.DEL k GRACE 600000");
    nearly(client.must("PTTL k").int(), 600_000);
    // The key lives as long as the longer of both.
    client.must("CACHE.SET k v PX 1000000");
    nearly(client.must("PTTL k").int(), 1_000_000);
    client.must("CACHE.SET k v PX 300000");
    nearly(client.must("PTTL k").int(), 600_000);
    // Who removes the tombstone ends the grace.
    client.must("DEL k");
    let token = lease(&mut client, "k");
    assert!(stores(&mut client, "k", token));
}

#[test]
fn an_entry_ends_before_its_grace_does() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.DEL k GRACE 600000");
    client.must("CACHE.SET k v PX 30 STALE 30");
    eventually(SOON, || client.must("CACHE.GET k").is_nil());
    assert_eq!(client.must("EXISTS k"), 1);
    assert_eq!(look(&mut client, "k"), "LEASE -");
    assert!(client.must("CACHE.INFO k").field("kind").is_nil());
    nearly(about(&mut client, "k", "grace_ms"), 600_000);
}

// Deletion

#[test]
fn del_says_whether_there_was_an_entry() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.must("CACHE.DEL k"), 0);
    assert_eq!(client.must("CACHE.DEL k STALE 60000"), 0);
    assert_eq!(client.must("EXISTS k"), 0);
    for set in ["CACHE.SET k v PX 60000", "CACHE.SETNULL k PX 60000"] {
        client.must(set);
        assert_eq!(client.must("CACHE.DEL k"), 1);
        assert_eq!(client.must("EXISTS k"), 0);
        client.must(set);
        assert_eq!(client.must("CACHE.DEL k STALE 60000"), 1);
        assert_eq!(
            client.must("CACHE.DEL k STALE 60000"),
            1,
            "it is still served"
        );
        assert_eq!(client.must("CACHE.DEL k GRACE 60000"), 1);
        assert_eq!(client.must("CACHE.DEL k"), 0);
        client.must("DEL k");
    }
}

#[test]
fn a_deleted_entry_may_be_served_stale() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 600000");
    assert_eq!(client.must("CACHE.DEL k STALE 60000"), 1);
    nearly(client.must("PTTL k").int(), 60_000);
    assert_eq!(client.must("CACHE.GET k"), "v");
    assert_eq!(about(&mut client, "k", "fresh_ms"), 0);
    nearly(about(&mut client, "k", "stale_ms"), 60_000);
    assert_eq!(look(&mut client, "k"), "LEASE v");
    assert_eq!(look(&mut client, "k"), "STALE v");
    // The time is not made longer, but it may be made shorter.
    client.must("CACHE.DEL k STALE 600000");
    assert!(client.must("PTTL k").int() <= 60_000);
    client.must("CACHE.DEL k STALE 30000");
    assert!(client.must("PTTL k").int() <= 30_000);
    assert_eq!(look(&mut client, "k"), "LEASE v", "the lease was voided");
    assert_eq!(client.must("CACHE.DEL k STALE 0"), 1);
    assert_eq!(client.must("EXISTS k"), 0);
}

#[test]
fn grace_and_stale_time_go_together() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 600000");
    client.must("CACHE.DEL k STALE 50000 GRACE 90000");
    nearly(client.must("PTTL k").int(), 90_000);
    nearly(about(&mut client, "k", "stale_ms"), 50_000);
    nearly(about(&mut client, "k", "grace_ms"), 90_000);
    assert_eq!(client.must("CACHE.GET k"), "v");
    client.must("CACHE.SET k v PX 600000");
    client.must("CACHE.DEL k STALE 40 GRACE 90000");
    eventually(SOON, || client.must("CACHE.GET k").is_nil());
    assert_eq!(client.must("EXISTS k"), 1);
    assert_eq!(look(&mut client, "k"), "LEASE -");
}

// Values

#[test]
fn keys_and_values_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let bytes: Vec<u8> = (0..=255).chain(0..=255).collect();
    for (key, value) in [
        (&b""[..], &b""[..]),
        (b"\0\xff\r\n", b""),
        (b"k", &bytes),
        (&bytes, b"\0"),
        (b"PX", b"PX"),
        (b"TOKEN", b"-1"),
    ] {
        let set: [&[u8]; 5] = [b"CACHE.SET", key, value, b"PX", b"60000"];
        assert_eq!(client.call(set), 1);
        assert_eq!(client.call([b"CACHE.GET", key]).bytes(), value);
        let fetch: [&[u8]; 4] = [b"CACHE.FETCH", key, b"LEASE", b"60000"];
        let (state, found, _) = fetched(&client.call(fetch));
        assert_eq!((state.as_str(), found.as_deref()), ("HIT", Some(value)));
        let info = client.call([b"CACHE.INFO", key]);
        assert_eq!(*info.field("bytes"), value.len() as i64);
        assert_eq!(info.field("kind"), &"value");
        assert_eq!(client.call([b"CACHE.DEL", key]), 1);
    }
}

#[test]
fn a_value_of_ten_megabytes_is_stored_and_served() {
    let (_server, mut client) = server_and_client();
    let value: Vec<u8> = (0..10_000_000u32).map(|i| (i / 7) as u8).collect();
    let set: [&[u8]; 5] = [b"CACHE.SET", b"k", &value, b"PX", b"60000"];
    assert_eq!(client.call(set), 1);
    assert!(client.must("CACHE.GET k").bytes() == value);
    let (state, found, _) = fetched(&client.must("CACHE.FETCH k LEASE 5"));
    assert!(state == "HIT" && found == Some(value));
    assert_eq!(about(&mut client, "k", "bytes"), 10_000_000);
}

#[test]
fn jitter_spreads_expiries_within_its_bounds() {
    let (_server, mut client) = server_and_client();
    let fetch = |client: &mut Raw| fetched(&client.must("CACHE.FETCH k LEASE 5")).2;
    let (mut least, mut most, mut seen) = (i64::MAX, 0, BTreeSet::new());
    for _ in 0..500 {
        client.must("CACHE.SET k v PX 1000000 JITTER 10 STALE 1000000");
        let left = fetch(&mut client);
        assert!((880_000..=1_100_000).contains(&left), "{left}");
        assert!(about(&mut client, "k", "stale_ms") == 1_000_000);
        (least, most) = (least.min(left), most.max(left));
        seen.insert(left / 1000);
    }
    assert!(least < 930_000 && most > 1_070_000, "{least} {most}");
    assert!(seen.len() > 100, "{}", seen.len());
    client.must("CACHE.SETNULL k PX 1000000 JITTER 100");
    assert!(fetch(&mut client) <= 2_000_000);
    client.must("CACHE.SET k v PX 1000000 JITTER 0");
    nearly(fetch(&mut client), 1_000_000);
    assert_eq!(client.must("CACHE.SET k v PX 1 JITTER 100"), 1);
}

#[test]
fn the_longest_times_work() {
    let (_server, mut client) = server_and_client();
    let line = format!(
        "CACHE.SET k v PX {TEN_YEARS} STALE {TEN_YEARS} JITTER 100 VER {MOST} TOKEN {}",
        lease(&mut client, "k")
    );
    assert_eq!(client.must(&line), 1);
    let line = format!("CACHE.FETCH k LEASE {TEN_YEARS} EARLY {TEN_YEARS} SLIDE {TEN_YEARS}");
    let (_, value, _) = fetched(&client.must(&line));
    assert_eq!(value.as_deref(), Some(&b"v"[..]));
    assert!(about(&mut client, "k", "stale_ms") == TEN_YEARS_MS);
    let line = format!("CACHE.DEL k STALE {TEN_YEARS} GRACE {TEN_YEARS} VER {MOST}");
    assert_eq!(client.must(&line), 1);
    nearly(client.must("PTTL k").int(), TEN_YEARS_MS);
    let token = any_lease(&mut client, "k");
    let line = format!("CACHE.FAIL k {token} BACKOFF {TEN_YEARS}");
    assert_eq!(client.must(&line), 1);
    nearly(
        number(&client.must("CACHE.FETCH k LEASE 1 BLOCK 5"), "DOWN v"),
        TEN_YEARS_MS,
    );
}

/// An expiry that the server takes may be later than any time that is kept with an entry.
#[test]
fn an_expiry_in_the_far_future_is_no_trouble() {
    let (master, replica, mut client) = counting_server();
    for at in [
        "9007199254740990",
        "9007199254740992",
        "9223372036854775000",
    ] {
        client.must("CACHE.SET k v PX 60000");
        assert_eq!(client.must(&format!("PEXPIREAT k {at}")), 1);
        assert!(about(&mut client, "k", "stale_ms") < UNSAFE_INTEGER);
        let reply = client.must("CACHE.FETCH k LEASE 5 SLIDE 600000");
        assert_eq!(number(&reply, "HIT v"), 600_000, "{at}");
        assert!(client.must("PEXPIRETIME k").int() >= 9_007_199_254_740_990);
        let info = client.must("CACHE.INFO k");
        assert!(info.field("stale_ms").int() < UNSAFE_INTEGER);
        wait_for_replica_sync(&master, &replica);
        assert_eq!(master.digest(), replica.digest(), "{at}");
        client.must("CACHE.DEL k STALE 60000");
        nearly(client.must("PTTL k").int(), 60_000);
    }
}

/// No event tells of the `DEL` of a missing key, so it counts when the server reads it: in a transaction, when it is queued.
/// What is there and is deleted counts when that happens.
#[test]
fn a_deletion_in_a_transaction_ends_the_lease_from_before_it_was_queued() {
    let (server, mut client) = server_and_client();
    let mut writer = Raw::connect(&server);
    let token = lease(&mut client, "k");
    writer.must("MULTI");
    writer.must("DEL k");
    assert!(!stores(&mut client, "k", token));
    writer.must("EXEC");

    client.must("CACHE.SET k v PX 60000");
    writer.must("MULTI");
    writer.must("DEL k");
    let token = any_lease(&mut client, "k");
    writer.must("EXEC");
    assert!(!stores(&mut client, "k", token));
}

/// The order of a client that opens its transaction with that of its database, and ends it after it: who has read the
/// database meanwhile has read what is old.
#[test]
fn a_deletion_in_a_transaction_ends_the_lease_that_was_given_before_it_ran() {
    let (server, mut client) = server_and_client();
    let (mut writer, mut other) = (Raw::connect(&server), Raw::connect(&server));
    lease(&mut client, "first"); // nothing is looked at before there is one
    for deletion in ["DEL k", "UNLINK a k b", "del k"] {
        writer.must("MULTI");
        writer.must(deletion);
        let token = lease(&mut client, "k");
        let bystander = any_lease(&mut client, "bystander");
        assert_eq!(writer.must("EXEC").array()[0], 0);
        assert!(!stores(&mut client, "k", token), "{deletion}");
        assert!(stores(&mut client, "bystander", bystander));
        client.must("DEL bystander");
    }
    // Many keys, and other transactions meanwhile.
    let keys: Vec<String> = (0..3000).map(|number| format!("k{number}")).collect();
    writer.must("MULTI");
    for some in keys.chunks(100) {
        writer.must(&format!("DEL {}", some.join(" ")));
        other.transact(["SET x 1", "DEL x"]);
    }
    let tokens: Vec<_> = keys.iter().map(|key| lease(&mut client, key)).collect();
    writer.must("EXEC");
    for (key, token) in keys.iter().zip(tokens) {
        assert!(!stores(&mut client, key, token), "{key}");
    }
}

/// Whatever the server has that deletes keys.
#[test]
fn every_command_that_deletes_keys_ends_leases() {
    let (_server, mut client) = server_and_client();
    lease(&mut client, "first");
    for deletion in [
        "DEL k",
        "UNLINK k",
        "GETDEL k",
        "DELEX k",
        "DELEX k IFEQ x",
        "DELIFEQ k x",
    ] {
        let token = lease(&mut client, "k");
        let bystander = any_lease(&mut client, "x");
        let reply = client.run(deletion);
        let has_it = !reply.is_err();
        assert!(
            has_it || deletion.starts_with("DELE") || deletion.starts_with("DELI"),
            "{reply:?}"
        );
        assert_eq!(stores(&mut client, "k", token), !has_it, "{deletion}");
        assert!(stores(&mut client, "x", bystander), "{deletion}");
        client.must("DEL k x");
    }
    // What only reads or changes keys does not.
    for harmless in [
        "GET k",
        "TTL k",
        "OBJECT HELP",
        "nonsense k",
        "EXPIRE k 5",
        "LPOP k",
    ] {
        let token = lease(&mut client, "k");
        client.run(harmless);
        assert!(stores(&mut client, "k", token), "{harmless}");
        client.must("DEL k");
    }
}

#[test]
fn a_deletion_ends_a_lease_that_its_own_transaction_was_given() {
    let (_server, mut client) = server_and_client();
    lease(&mut client, "first");
    let replies = client.transact(["CACHE.FETCH k LEASE 60000", "DEL k"]);
    let token = number(&replies[0], "LEASE -");
    assert!(!stores(&mut client, "k", token));
}

/// A connection that was given back to its pool in the middle of a transaction must not spoil the key for everybody else.
#[test]
fn a_deletion_in_a_transaction_that_stays_open_ends_no_lease_when_others_end() {
    let (server, mut client) = server_and_client();
    let (mut open, mut other) = (Raw::connect(&server), Raw::connect(&server));
    lease(&mut client, "first");
    open.must("MULTI");
    open.must("DEL k");
    for _ in 0..3 {
        let token = any_lease(&mut client, "k");
        other.transact(["SET x 1", "DEL x k1"]);
        other.run("MULTI");
        other.run("DISCARD");
        drop(Raw::connect(&server));
        assert!(stores(&mut client, "k", token));
    }
    client.must("CACHE.DEL k");
    let token = lease(&mut client, "k");
    open.must("EXEC");
    assert!(!stores(&mut client, "k", token));
}

/// While writes are paused, commands that were put off arrive again.
#[test]
fn a_deletion_that_is_queued_in_a_pause_ends_the_lease_when_it_runs() {
    let (server, mut client) = server_and_client();
    let (mut writer, mut admin) = (Raw::connect(&server), Raw::connect(&server));
    lease(&mut client, "first");
    writer.must("MULTI");
    admin.must("CLIENT PAUSE 300 WRITE");
    writer.ask("DEL k");
    assert_eq!(writer.read(), "QUEUED");
    let token = lease(&mut client, "k");
    writer.must("EXEC");
    assert!(!stores(&mut client, "k", token));
}

/// Has two clients send a command each while all clients are paused. Returns the clients with their replies once the server has
/// run the commands in this order. A server that is too slow reads the second command after the pause, and runs it first: then the
/// result is `None`.
fn ask_in_pause(
    server: &Server,
    client: &mut Raw,
    commands: [&str; 2],
) -> Option<[(Raw, Value); 2]> {
    client.must("CONFIG SET slowlog-log-slower-than 0");
    let mut askers = commands.map(|_| Raw::connect(server));
    client.must("CLIENT PAUSE 300 ALL");
    for (asker, command) in askers.iter_mut().zip(commands) {
        asker.ask(command);
        sleep_ms(50);
    }
    let replied = askers.map(|mut asker| {
        let reply = asker.read();
        (asker, reply)
    });
    // The newest command is first. `MONITOR` of Valkey 8.1 does not have commands that a pause delayed.
    let slowlog = client.must("SLOWLOG GET 20");
    let ran = slowlog
        .array()
        .iter()
        .map(|entry| entry.array()[3].array()[0].text().to_owned());
    let ran: Vec<String> = ran.collect();
    let names = commands.map(|command| command.split(' ').next().unwrap_or_default());
    let age = |name| ran.iter().position(|command| command == name);
    let [first, second] = names.map(|name| age(name).expect("the slow log has all commands"));
    (first > second).then_some(replied)
}

/// Calls the function with another key each time, until it returns something.
fn with_keys<T>(mut run: impl FnMut(&str) -> Option<T>) -> T {
    (0..50)
        .find_map(|attempt| run(&format!("k{attempt}")))
        .expect("the server runs delayed commands in order")
}

#[test]
fn a_deletion_that_a_pause_put_off_ends_no_lease_that_was_given_after_it() {
    let (server, mut client) = server_and_client();
    lease(&mut client, "first");
    let (key, replied) = with_keys(|key| {
        let commands = [
            format!("DEL {key}"),
            format!("CACHE.FETCH {key} LEASE 60000"),
        ];
        let commands = commands.each_ref().map(String::as_str);
        Some((
            key.to_owned(),
            ask_in_pause(&server, &mut client, commands)?,
        ))
    });
    let [(writer, deleted), (_reader, leased)] = replied;
    assert_eq!(deleted, 0);
    let token = number(&leased, "LEASE -");
    client.transact(["SET x 1"]);
    drop(writer);
    client.transact(["SET x 1"]);
    assert_eq!(look(&mut client, &key), "WAIT -");
    assert!(stores(&mut client, &key, token));
}

#[test]
fn a_deletion_that_a_pause_put_off_ends_a_lease_that_was_put_off_before_it() {
    let (server, mut client) = server_and_client();
    lease(&mut client, "first");
    let (key, replied) = with_keys(|key| {
        let commands = [
            format!("CACHE.FETCH {key} LEASE 60000"),
            format!("DEL {key}"),
        ];
        let commands = commands.each_ref().map(String::as_str);
        Some((
            key.to_owned(),
            ask_in_pause(&server, &mut client, commands)?,
        ))
    });
    let [(_reader, leased), (_writer, deleted)] = replied;
    assert_eq!(deleted, 0);
    let token = number(&leased, "LEASE -");
    assert!(!stores(&mut client, &key, token));
}

/// A pause of writes puts off deletions, and no leases.
#[test]
fn a_deletion_that_a_pause_put_off_ends_a_lease_that_was_given_in_the_pause() {
    let (server, mut client) = server_and_client();
    let mut writer = Raw::connect(&server);
    lease(&mut client, "first");
    client.must("CLIENT PAUSE 600000 WRITE");
    writer.ask("DEL k");
    eventually(SOON, || server.info_int("blocked_clients") == 1);
    let token = lease(&mut client, "k");
    client.must("CLIENT UNPAUSE");
    assert_eq!(writer.read(), 0);
    assert!(!stores(&mut client, "k", token));
}

/// The module hears of commands only while a lease is out.
#[test]
fn a_deletion_that_was_queued_before_any_lease_was_given_ends_one() {
    let (server, mut client) = server_and_client();
    let mut writer = Raw::connect(&server);
    for pause_ms in [0, 12_000] {
        sleep_ms(pause_ms);
        writer.must("MULTI");
        writer.must("DEL k");
        let token = lease(&mut client, "k");
        writer.must("EXEC");
        assert!(!stores(&mut client, "k", token), "{pause_ms}");
        // Once all leases are gone, it stops after some seconds.
        let token = lease(&mut client, "k");
        assert!(stores(&mut client, "k", token), "{pause_ms}");
        client.must("CACHE.DEL k");
    }
}

/// Their names are kept only until it is seen that they have run.
#[test]
fn deletions_that_are_not_queued_leave_nothing_behind() {
    let (_server, mut client) = server_and_client();
    lease(&mut client, "first");
    let script = "for number = 1, 100000 do redis.call('DEL', ('k'):rep(200) .. number) end";
    client.call(["EVAL", script, "0"]);
    let before = used_memory(&mut client);
    client.call(["EVAL", script, "0"]);
    client.transact(["DEL k1 k2 k3", "DEL k4"]);
    let names: Vec<String> = (0..10_000)
        .map(|number| format!("{number:0>200}"))
        .collect();
    client.must(&format!("DEL {}", names.join(" ")));
    let more = used_memory(&mut client) - before;
    assert!(more < 1_000_000, "{more}"); // of twenty million
}

/// What never ran, and what ran long ago, ends none.
#[test]
fn a_deletion_that_a_transaction_does_not_run_ends_no_later_lease() {
    let (server, mut client) = server_and_client();
    let (mut writer, mut other) = (Raw::connect(&server), Raw::connect(&server));
    let id = writer.id();
    lease(&mut client, "first");
    client.must("DEL k");
    client.call(["EVAL", "return redis.call('DEL', KEYS[1])", "1", "k"]);
    writer.must("MULTI");
    writer.must("DEL k");
    writer.must("DISCARD");
    writer.must("MULTI");
    writer.must("DEL k");
    let mut writer = Some(writer);
    for _ in 0..3 {
        client.must("DEL k");
        let token = lease(&mut client, "k");
        drop(writer.take());
        eventually(SOON, || {
            client.call(["CLIENT", "LIST", "ID", &id.to_string()]) == ""
        });
        other.transact(["SET x 1", "DEL x"]);
        assert!(stores(&mut client, "k", token));
    }
}

// Bad input

#[test]
fn options_come_in_any_order_and_any_case() {
    let (_server, mut client) = server_and_client();
    for line in [
        "cache.set k v px 60000 stale 5 jitter 1 ver 3",
        "CACHE.SET k v VER 3 JITTER 1 STALE 5 PX 60000",
        "Cache.Set k v Stale 5 Px 60000 Ver 3 Jitter 1",
        "CACHE.SETNULL k VER 3 PX 60000",
        "CACHE.SET PX PX PX 60000",
        "CACHE.DEL k ver 3 grace 0 stale 0",
        "CACHE.SETNULL STALE STALE 5 PX 60000",
    ] {
        assert_eq!(client.must(line), 1, "{line}");
    }
    for line in [
        "CACHE.FETCH LEASE BLOCK 5 SLIDE 5 LEASE 60000 GUARD LEASE BLOCK EARLY 1",
        "cache.fetch k block 5 beta 0.5 guard BETA BETA slide 9 lease 60000",
    ] {
        number(&client.must(line), "LEASE -");
    }
}

#[test]
fn incomplete_repeated_and_unknown_options_are_syntax_errors() {
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    let digest = server.digest();
    for line in [
        "CACHE.FETCH k LEASE 5 LEASE 5",
        "CACHE.FETCH k EARLY 5 SLIDE 5",
        "CACHE.FETCH k LEASE 5 EARLY",
        "CACHE.FETCH k LEASE 5 BETA",
        "CACHE.FETCH k LEASE 5 SLIDE",
        "CACHE.FETCH k LEASE 5 BLOCK",
        "CACHE.FETCH k LEASE 5 GUARD",
        "CACHE.FETCH k LEASE 5 GUARD f",
        "CACHE.FETCH k BLOCK 5 LEASE",
        "CACHE.FETCH k LEASE 5 EARLY 5 BETA 1",
        "CACHE.FETCH k LEASE 5 BETA 1 EARLY 5",
        "CACHE.FETCH k LEASE 5 EARLY 5 EARLY 5",
        "CACHE.FETCH k LEASE 5 BETA 1 BETA 1",
        "CACHE.FETCH k LEASE 5 SLIDE 1 SLIDE 1",
        "CACHE.FETCH k LEASE 5 BLOCK 1 BLOCK 1",
        "CACHE.FETCH k LEASE 5 GUARD f i GUARD f i",
        "CACHE.FETCH k LEASE 5 PX 5",
        "CACHE.FETCH k LEASE 5 TOKEN 5",
        "CACHE.FETCH k LEASE 5 STALE 5",
        "CACHE.FETCH k LEASE 5 nonsense",
        "CACHE.FETCH k LEASES 5",
        "CACHE.SET k v STALE 5",
        "CACHE.SET k v PX 5 PX 5",
        "CACHE.SET k v PX 5 STALE",
        "CACHE.SET k v PX 5 STALE 5 STALE 5",
        "CACHE.SET k v PX 5 JITTER",
        "CACHE.SET k v PX 5 JITTER 5 JITTER 5",
        "CACHE.SET k v PX 5 TOKEN",
        "CACHE.SET k v PX 5 TOKEN 5 TOKEN 5",
        "CACHE.SET k v PX 5 VER",
        "CACHE.SET k v PX 5 VER 5 VER 5",
        "CACHE.SET k v PX 5 LEASE 5",
        "CACHE.SET k v PX 5 GRACE 5",
        "CACHE.SET k v EX 5",
        "CACHE.SET k v PX 5 NX",
        "CACHE.SET k v VER PX",
        "CACHE.SETNULL k PX 5 PX 5",
        "CACHE.SETNULL k VER 5",
        "CACHE.SETNULL k v PX 5",
        "CACHE.DEL k STALE",
        "CACHE.DEL k STALE 5 STALE 5",
        "CACHE.DEL k GRACE",
        "CACHE.DEL k GRACE 5 GRACE 5",
        "CACHE.DEL k VER",
        "CACHE.DEL k VER 1 VER 1",
        "CACHE.DEL k j",
        "CACHE.DEL k TOKEN 5",
        "CACHE.FAIL k 5 BACKOFF",
        "CACHE.FAIL k 5 BACKOFF 5 BACKOFF 5",
        "CACHE.FAIL k 5 5",
        "CACHE.FAIL k 5 TOKEN 5",
    ] {
        let reply = client.run(line);
        // VER PX: what follows is no number, which is found first.
        let expected = if line.ends_with("VER PX") {
            NOT_AN_INTEGER
        } else {
            SYNTAX
        };
        assert_eq!(reply.err(), expected, "{line}");
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(counter(&mut client, "leases"), 0);
    assert_eq!(counter(&mut client, "hits"), 0);
}

/// Commands with one integer left out, its name, and what it may be.
const INTEGERS: &[(&str, &str, i64, i64)] = &[
    ("CACHE.FETCH k LEASE", "LEASE", 1, TEN_YEARS_MS),
    ("CACHE.FETCH k LEASE 5 EARLY", "EARLY", 0, TEN_YEARS_MS),
    ("CACHE.FETCH k LEASE 5 SLIDE", "SLIDE", 1, TEN_YEARS_MS),
    ("CACHE.FETCH k LEASE 5 BLOCK", "BLOCK", 0, TEN_YEARS_MS),
    ("CACHE.SET k v PX", "PX", 1, TEN_YEARS_MS),
    ("CACHE.SET k v PX 60000 STALE", "STALE", 0, TEN_YEARS_MS),
    ("CACHE.SET k v PX 60000 JITTER", "JITTER", 0, 100),
    (
        "CACHE.SET k v PX 60000 TOKEN",
        "TOKEN",
        0,
        9_007_199_254_740_991,
    ),
    (
        "CACHE.SET k v PX 60000 VER",
        "VER",
        0,
        9_007_199_254_740_991,
    ),
    ("CACHE.SETNULL k PX", "PX", 1, TEN_YEARS_MS),
    ("CACHE.SETNULL k PX 60000 STALE", "STALE", 0, TEN_YEARS_MS),
    ("CACHE.SETNULL k PX 60000 JITTER", "JITTER", 0, 100),
    (
        "CACHE.SETNULL k PX 60000 TOKEN",
        "TOKEN",
        0,
        9_007_199_254_740_991,
    ),
    (
        "CACHE.SETNULL k PX 60000 VER",
        "VER",
        0,
        9_007_199_254_740_991,
    ),
    ("CACHE.DEL k STALE", "STALE", 0, TEN_YEARS_MS),
    ("CACHE.DEL k GRACE", "GRACE", 0, TEN_YEARS_MS),
    ("CACHE.DEL k VER", "VER", 0, 9_007_199_254_740_991),
    ("CACHE.FAIL k", "token", 0, 9_007_199_254_740_991),
    ("CACHE.FAIL k 5 BACKOFF", "BACKOFF", 0, TEN_YEARS_MS),
];

#[test]
fn integers_outside_their_range_are_named_with_it() {
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    let digest = server.digest();
    for (line, argument, min, max) in INTEGERS {
        let expected = format!("ERR {argument} must be between {min} and {max}");
        for number in [min - 1, -1, i64::MIN, max + 1, i64::MAX] {
            let reply = client.run(&format!("{line} {number}"));
            assert_eq!(reply.err(), expected, "{line} {number}");
        }
        for number in [
            "x",
            "1.5",
            "+1",
            "01",
            "1e3",
            "0x10",
            "-0",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            let reply = client.run(&format!("{line} {number}"));
            assert_eq!(reply.err(), NOT_AN_INTEGER, "{line} {number}");
        }
        let mut words: Vec<&str> = line.split(' ').collect();
        for number in ["", " 1", "1 ", "1\0"] {
            words.push(number);
            assert_eq!(client.call(&words).err(), NOT_AN_INTEGER, "{line}");
            words.pop();
        }
    }
    assert_eq!(server.digest(), digest);
    for (line, _, min, max) in INTEGERS {
        for number in [min, max] {
            client.must(&format!("{line} {number}"));
        }
    }
    assert_eq!(
        client
            .run(&format!("CACHE.SET k v PX 5 VER {TOO_MUCH}"))
            .err(),
        format!("ERR VER must be between 0 and {MOST}")
    );
}

#[test]
fn beta_is_a_decimal_number_from_0_to_1000() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    for beta in ["x", "", "nan", "1,5", " 1", "1 ", "0x1", "1.5.5", "--1"] {
        let reply = client.call(["CACHE.FETCH", "k", "LEASE", "5", "BETA", beta]);
        assert_eq!(reply.err(), "ERR value is not a valid float", "{beta:?}");
    }
    for beta in ["-1", "-0.001", "1000.1", "1e9", "inf", "-inf"] {
        let reply = client.call(["CACHE.FETCH", "k", "LEASE", "5", "BETA", beta]);
        let expected = "ERR BETA must be between 0 and 1000";
        assert_eq!(reply.err(), expected, "{beta}");
    }
    for beta in ["0", "1", "0.5", ".5", "1e-3", "1e3", "1000"] {
        let line = format!("CACHE.FETCH k LEASE 5 BETA {beta}");
        number(&client.must(&line), "HIT v");
    }
}

#[test]
fn other_types_are_refused_and_left_alone() {
    let (server, mut client) = server_and_client();
    for make in [
        "SET k v",
        "RPUSH k v",
        "HSET k f v",
        "LOCK.ACQUIRE k me",
        "STOCK.SET k 5",
        "BF.ADD k x",
        "CF.ADD k x",
    ] {
        client.must("FLUSHALL");
        client.must(make);
        let digest = server.digest();
        for line in [
            "CACHE.GET k",
            "CACHE.FETCH k LEASE 5",
            "CACHE.FETCH k LEASE 5 BLOCK 0",
            "CACHE.SET k v PX 5",
            "CACHE.SET k v PX 5 TOKEN 5",
            "CACHE.SETNULL k PX 5",
            "CACHE.DEL k",
            "CACHE.DEL k GRACE 5",
            "CACHE.FAIL k 5",
            "CACHE.INFO k",
        ] {
            assert_eq!(client.run(line).err(), WRONGTYPE, "{make}: {line}");
        }
        assert_eq!(server.digest(), digest, "{make}");
    }
    client.must("FLUSHALL");
    client.must("CACHE.SET k v PX 60000");
    for line in [
        "GET k",
        "APPEND k v",
        "LPUSH k v",
        "LOCK.ACQUIRE k me",
        "STOCK.GET k",
        "BF.ADD k x",
        "CF.EXISTS k x",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
}

// What is told of an entry

#[test]
fn info_tells_all_of_an_entry_in_both_protocols() {
    let (server, mut client) = server_and_client();
    let fields = [
        "kind",
        "bytes",
        "fresh_ms",
        "stale_ms",
        "ver",
        "lease_ms",
        "waiters",
        "rebuild_ms",
        "backoff_ms",
        "grace_ms",
    ];
    assert!(client.must("CACHE.INFO k").is_nil());
    client.must("CACHE.SET k value PX 60000 STALE 5000 VER 7");
    any_lease(&mut client, "k");
    let mut third = Raw::connect(&server);
    third.hello3();
    for client in [&mut client, &mut third] {
        let info = client.must("CACHE.INFO k");
        let names: Vec<_> = info.fields().iter().map(|(name, _)| name.text()).collect();
        assert_eq!(names, fields);
        assert_eq!(info.field("kind"), &"value");
        assert_eq!(*info.field("bytes"), 5);
        nearly(info.field("fresh_ms").int(), 60_000);
        assert_eq!(*info.field("stale_ms"), 5000);
        assert_eq!(*info.field("ver"), 7);
        nearly(info.field("lease_ms").int(), 600_000);
        for zero in ["waiters", "rebuild_ms", "backoff_ms", "grace_ms"] {
            assert_eq!(*info.field(zero), 0, "{zero}");
        }
    }
    assert!(matches!(third.must("CACHE.INFO k"), Value::Map(_)));
    client.must("CACHE.SETNULL k PX 60000");
    let info = third.must("CACHE.INFO k");
    assert_eq!(info.field("kind"), &"null");
    assert_eq!(*info.field("bytes"), 0);
    assert_eq!(*info.field("stale_ms"), 0);
    assert!(info.field("ver").is_nil());
    // Of a missing key that somebody loads and others wait for.
    client.must("DEL k");
    lease(&mut client, "k");
    let mut waiter = waiter(&server, "CACHE.FETCH k LEASE 5 BLOCK 0");
    let info = third.must("CACHE.INFO k");
    assert!(info.field("kind").is_nil());
    nearly(info.field("lease_ms").int(), 600_000);
    assert_eq!(*info.field("waiters"), 1);
    client.must("CACHE.SETNULL k PX 60000");
    served(&mut waiter);
    // An entry that never expires is stale without end.
    client.must("CACHE.SET k v PX 60000");
    client.must("PERSIST k");
    assert!(third.must("CACHE.INFO k").field("stale_ms").is_nil());
}

#[test]
fn replies_are_of_the_protocol() {
    let (server, mut client) = server_and_client();
    let mut third = Raw::connect(&server);
    third.hello3();
    client.must("CACHE.SET v v PX 60000");
    client.must("CACHE.SETNULL n PX 60000");
    for client in [&mut client, &mut third] {
        for key in ["v", "n", "missing"] {
            let reply = client.must(&format!("CACHE.FETCH {key} LEASE 60000"));
            assert!(matches!(&reply, Value::Array(parts) if parts.len() == 3));
        }
        assert_eq!(client.must("CACHE.DEL nothing"), 0);
        assert_eq!(client.must("CACHE.FAIL nothing 5"), 0);
        assert_eq!(client.must("CACHE.SET s v PX 5"), 1);
        assert!(client.must("CACHE.GET n").is_nil());
    }
}

#[test]
fn counters_count_what_readers_get() {
    let (server, mut client) = server_and_client();
    let names = [
        "entries",
        "bytes",
        "evicted",
        "hits",
        "nulls",
        "misses",
        "stale",
        "leases",
        "waits",
        "absent",
        "down",
        "refused_sets",
        "early",
        "breaker_trips",
        "leases_now",
        "waiters_now",
    ];
    let info = client.must("INFO sluice");
    let info = info.text();
    let (_, section) = info.split_once("# sluice_cache\r\n").expect("a section");
    let fields: Vec<_> = section
        .lines()
        .take_while(|line| !line.is_empty())
        .collect();
    let expected = names.map(|name| format!("sluice_cache_{name}:0"));
    assert_eq!(fields, expected);
    assert!(
        server
            .command(["INFO", "everything"])
            .text()
            .contains("# sluice_cache")
    );

    client.must("BF.ADD f x");
    for line in [
        "CACHE.FETCH k LEASE 60000",                 // a miss and a lease
        "CACHE.FETCH k LEASE 60000",                 // a miss and a wait
        "CACHE.FETCH a LEASE 60000 GUARD f unknown", // a miss and an absence
        "CACHE.GET k",                               // a miss
        "CACHE.SET k v PX 60000 TOKEN 1",            // refused
        "CACHE.SET k v PX 60000",
        "CACHE.FETCH k LEASE 60000",                    // a hit
        "CACHE.FETCH k LEASE 60000 EARLY 315360000000", // a lease, early
        "CACHE.GET k",                                  // a hit
        "CACHE.DEL k STALE 60000",
        "CACHE.FETCH k LEASE 60000", // a lease
        "CACHE.FETCH k LEASE 60000", // stale
        "CACHE.FETCH k LEASE 60000", // stale
        "CACHE.GET k",               // a hit
        "CACHE.SETNULL n PX 60000",
        "CACHE.FETCH n LEASE 60000", // a null
        "CACHE.GET n",               // a null
        "CACHE.DEL t GRACE 60000",
        "CACHE.GET t", // a miss
        "CACHE.SET g v PX 60000",
        "CACHE.DEL g STALE 1 GRACE 60000",
    ] {
        client.must(line);
    }
    // What is served no longer is a tombstone.
    eventually(SOON, || counter(&mut client, "entries") == 2);
    let counts = names.map(|name| counter(&mut client, name));
    let usage = |key| client.call(["MEMORY", "USAGE", key]).int();
    let bytes = ["k", "n"].map(usage).iter().sum();
    let expected = [2, bytes, 0, 3, 2, 5, 2, 3, 1, 1, 0, 1, 1, 0, 1, 0];
    assert_eq!(counts, expected);
    // It is a miss as well.
    client.must("CACHE.GET g");
    assert_eq!(counter(&mut client, "misses"), 6);
    let (_, _, token) = fetched(&client.must("CACHE.FETCH d LEASE 60000"));
    client.must(&format!("CACHE.FAIL d {token} BACKOFF 60000"));
    client.must("CACHE.FETCH d LEASE 60000");
    assert_eq!(counter(&mut client, "down"), 1);
    // A pause is no lease.
    assert_eq!(counter(&mut client, "leases_now"), 1);
}

#[test]
fn past_the_most_leases_nobody_gets_one() {
    let (server, mut client) = server_and_client();
    assert_eq!(
        client
            .must("CONFIG GET sluice.cache-max-leases")
            .field("sluice.cache-max-leases"),
        &"100000"
    );
    client.must("CONFIG SET sluice.cache-max-leases 3");
    let tokens: Vec<_> = (0..3)
        .map(|number| lease(&mut client, &format!("k{number}")))
        .collect();
    let left = number(&client.must("CACHE.FETCH k3 LEASE 60000"), "WAIT -");
    assert!((1..=1000).contains(&left), "{left} is no short time");
    client.must("CACHE.SET s v PX 60000");
    client.must("CACHE.DEL s STALE 60000");
    number(&client.must("CACHE.FETCH s LEASE 60000"), "STALE v");
    client.must("CACHE.SET e v PX 60000");
    let line = format!("CACHE.FETCH e LEASE 60000 EARLY {TEN_YEARS}");
    number(&client.must(&line), "HIT v");
    assert_eq!(counter(&mut client, "leases"), 3);
    assert_eq!(counter(&mut client, "leases_now"), 3);
    // Who waits gets one as soon as there is room.
    let mut first = waiter(&server, "CACHE.FETCH k3 LEASE 60000 BLOCK 0");
    assert!(stores(&mut client, "k0", tokens[0]));
    number(&served(&mut first), "LEASE -");
    // The others are still good.
    assert!(stores(&mut client, "k1", tokens[1]));

    client.must("CONFIG SET sluice.cache-max-leases 0");
    number(&client.must("CACHE.FETCH none LEASE 60000"), "WAIT -");
    let reply = client.must("CACHE.FETCH none LEASE 60000 BLOCK 120");
    let left = number(&reply, "WAIT -");
    assert!((1..=1000).contains(&left), "{left} is no short time");
    assert!(stores(&mut client, "k2", tokens[2]), "given before");
    // Nothing is known of the key but who waits for it.
    let mut next = waiter(&server, "CACHE.FETCH none LEASE 60000 BLOCK 0");
    assert_eq!(about(&mut client, "none", "waiters"), 1);
    client.must("CONFIG SET sluice.cache-max-leases 10000000");
    number(&served(&mut next), "LEASE -");
    for bad in ["-1", "10000001", "x"] {
        let reply = client.run(&format!("CONFIG SET sluice.cache-max-leases {bad}"));
        assert!(reply.is_err(), "{bad}");
    }
}

#[test]
fn loaders_that_failed_take_no_lease_from_others() {
    let (_server, mut client) = server_and_client();
    client.must("CONFIG SET sluice.cache-max-leases 2");
    for key in ["a", "b", "c"] {
        let token = lease(&mut client, key);
        assert_eq!(
            client.must(&format!("CACHE.FAIL {key} {token} BACKOFF 60000")),
            1
        );
    }
    for key in ["a", "b"] {
        assert_eq!(look(&mut client, key), "DOWN -");
    }
    // So many are remembered, and no more.
    lease(&mut client, "c");
    lease(&mut client, "d");
    assert_eq!(look(&mut client, "e"), "WAIT -");
    assert_eq!(counter(&mut client, "leases_now"), 2);
}

#[test]
fn fewer_leases_are_fewer_also_where_many_have_ended() {
    let (_server, mut client) = server_and_client();
    for key in ["a", "b", "c"] {
        number(
            &client.must(&format!("CACHE.FETCH {key} LEASE 1")),
            "LEASE -",
        );
    }
    sleep_ms(10);
    client.must("CONFIG SET sluice.cache-max-leases 1");
    lease(&mut client, "d");
    number(&client.must("CACHE.FETCH e LEASE 60000"), "WAIT -");
    client.must("CONFIG SET sluice.cache-max-leases 0");
    number(&client.must("CACHE.FETCH f LEASE 60000"), "WAIT -");
    assert_eq!(counter(&mut client, "leases_now"), 1);
}

#[test]
fn an_ended_lease_frees_memory_for_another() {
    let server = Server::builder()
        .module_args(&["cache-max-leases", "2"])
        .start();
    let mut client = Raw::connect(&server);
    let first = number(&client.must("CACHE.FETCH a LEASE 1"), "LEASE -");
    sleep_ms(10);
    let second = number(&client.must("CACHE.FETCH b LEASE 1"), "LEASE -");
    sleep_ms(10);
    lease(&mut client, "c");
    // The one that ended first was forgotten for it: its late store fails.
    assert!(!stores(&mut client, "a", first));
    assert!(stores(&mut client, "b", second));
}

// Transactions, scripts, watching and tracking

#[test]
fn commands_work_in_transactions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "CACHE.FETCH k LEASE 60000 BLOCK 0",
        // A wait that counts as not given.
        "CACHE.FETCH k LEASE 60000 BLOCK 0",
        "CACHE.SET k v PX 60000",
        "CACHE.GET k",
        "CACHE.FETCH k LEASE 5 BLOCK 5",
        "CACHE.DEL k STALE 60000",
        "CACHE.FETCH k LEASE 60000",
        "CACHE.FETCH k LEASE 60000",
        "CACHE.INFO k",
        "CACHE.SETNULL k PX 60000",
        "CACHE.FETCH k LEASE 60000",
        "CACHE.FAIL k 5",
    ]);
    let states: Vec<_> = [0, 1, 4, 6, 7, 10].map(|at| shown(&replies[at])).into();
    assert_eq!(
        states,
        ["LEASE -", "WAIT -", "HIT v", "LEASE v", "STALE v", "NULL -"]
    );
    assert_eq!(replies[2], 1);
    assert_eq!(replies[3], "v");
    assert_eq!(replies[11], 0);
}

#[test]
fn commands_work_in_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let script = "local reply = redis.call('CACHE.FETCH', KEYS[1], 'LEASE', 60000, 'BLOCK', 0)
        if reply[1] ~= 'LEASE' then return reply end
        return redis.call('CACHE.SET', KEYS[1], 'loaded', 'PX', 60000, 'TOKEN', reply[3])";
    // A token is exact in Lua.
    assert_eq!(client.call(["EVAL", script, "1", "k"]), 1);
    assert_eq!(
        shown(&client.call(["EVAL", script, "1", "k"])),
        "HIT loaded"
    );
    lease(&mut client, "other");
    assert_eq!(
        shown(&client.call(["EVAL", script, "1", "other"])),
        "WAIT -"
    );
    let script = "return redis.call('CACHE.GET', KEYS[1])";
    assert_eq!(client.call(["EVAL_RO", script, "1", "k"]), "loaded");
    assert!(client.call(["EVAL_RO", script, "1", "nothing"]).is_nil());
    let script = "return redis.pcall('CACHE.SET', KEYS[1], 'v', 'PX', 0).err";
    let text = client.call(["EVAL", script, "1", "k"]);
    assert!(text.text().contains("PX must be between 1 and"), "{text:?}");
    let script = "redis.call('CACHE.DEL', KEYS[1], 'GRACE', 60000)
        return redis.call('CACHE.INFO', KEYS[1])";
    let info = client.call(["EVAL", script, "1", "k"]);
    nearly(info.field("grace_ms").int(), 60_000);
    let library = "#!lua name=caches
        redis.register_function('ask', function(keys)
            return redis.call('CACHE.FETCH', keys[1], 'LEASE', 60000, 'BLOCK', 0)
        end)
        redis.register_function('store', function(keys, args)
            return redis.call('CACHE.SET', keys[1], args[2], 'PX', 60000, 'TOKEN', args[1])
        end)
        redis.register_function{
            function_name = 'look',
            callback = function(keys) return redis.call('CACHE.GET', keys[1]) end,
            flags = {'no-writes'}
        }";
    client.call(["FUNCTION", "LOAD", library]);
    let token = number(&client.must("FCALL ask 1 f"), "LEASE -");
    number(&client.must("FCALL ask 1 f"), "WAIT -");
    assert_eq!(client.must(&format!("FCALL store 1 f {token} v")), 1);
    number(&client.must("FCALL ask 1 f"), "HIT v");
    assert_eq!(client.must("FCALL_RO look 1 f"), "v");
}

#[test]
fn watch_sees_what_changes_an_entry_and_nothing_else() {
    let (server, mut client) = server_and_client();
    let mut watcher = Raw::connect(&server);
    let mut is_seen = |client: &mut Raw, line: &str| {
        watcher.must("WATCH k");
        client.must(line);
        watcher.must("MULTI");
        watcher.must("PING");
        watcher.run("EXEC").is_nil()
    };
    for (line, seen) in [
        ("CACHE.FETCH k LEASE 60000", false),
        ("CACHE.FETCH k LEASE 60000", false),
        ("CACHE.FAIL k 5", false),
        ("CACHE.SET k v PX 60000 TOKEN 5", false),
        ("CACHE.DEL k", false),
        ("CACHE.SET k v PX 60000", true),
        ("CACHE.GET k", false),
        ("CACHE.INFO k", false),
        ("CACHE.FETCH k LEASE 60000", false),
        ("CACHE.FETCH k LEASE 60000 EARLY 315360000000", false),
        // Who reads it again reads the same.
        ("CACHE.FETCH k LEASE 60000 SLIDE 900000", false),
        ("CACHE.SETNULL k PX 60000", true),
        ("CACHE.SETNULL k PX 60000", true),
        ("CACHE.SET k v PX 60000", true),
        ("CACHE.DEL k STALE 60000", true),
        ("CACHE.DEL k GRACE 60000", true),
        ("CACHE.SET k v PX 60000 VER 5", true),
        ("CACHE.SET k v PX 60000 VER 4", false),
        ("CACHE.DEL k", true),
        ("DEL k", true),
    ] {
        assert_eq!(is_seen(&mut client, line), seen, "{line}");
    }
}

#[test]
fn clients_that_track_an_entry_are_told_when_it_changes() {
    let (server, mut client) = server_and_client();
    let mut tracker = Raw::connect(&server);
    tracker.hello3();
    tracker.must("CLIENT TRACKING ON");
    client.must("CACHE.SET k v PX 60000");
    for (line, told) in [
        ("CACHE.SET k w PX 60000", true),
        ("CACHE.SETNULL k PX 60000", true),
        ("CACHE.SET k v PX 60000 TOKEN 5", false),
        ("CACHE.FETCH k LEASE 60000", false),
        ("CACHE.SET k v PX 60000", true),
        ("CACHE.FETCH k LEASE 60000 SLIDE 900000", false),
        ("CACHE.DEL k STALE 60000", true),
        ("CACHE.DEL k GRACE 60000", true),
        ("CACHE.SET k v PX 60000", true),
        ("DEL k", true),
        ("CACHE.SET k v PX 60000", true),
    ] {
        tracker.must("CACHE.GET k");
        client.must(line);
        let pushes = until_pong(&mut tracker);
        let keys: Vec<_> = pushes
            .iter()
            .map(|push| &push.array()[1].array()[0])
            .collect();
        if told {
            assert_eq!(keys, [&Value::Bulk(b"k".to_vec())], "{line}");
        } else {
            assert!(pushes.is_empty(), "{line}: {pushes:?}");
        }
    }
}

#[test]
fn changes_are_keyspace_events_and_refusals_are_not() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "EAd");
    let mut token = 0;
    for (line, expected) in [
        ("CACHE.FETCH k LEASE 60000", &[][..]),
        ("CACHE.FETCH k LEASE 60000", &[]),
        ("CACHE.SET k v PX 60000 TOKEN 5", &[]),
        ("CACHE.SET k v PX 60000 TOKEN", &["cache.set k"]),
        ("CACHE.FETCH k LEASE 60000", &[]),
        ("CACHE.GET k", &[]),
        ("CACHE.FETCH k LEASE 60000 SLIDE 60000", &[]),
        ("CACHE.FETCH k LEASE 60000 SLIDE 900000", &["cache.fetch k"]),
        ("CACHE.SETNULL k PX 60000 VER 5", &["cache.setnull k"]),
        ("CACHE.SETNULL k PX 60000 VER 4", &[]),
        ("CACHE.DEL k STALE 60000", &["cache.del k"]),
        ("CACHE.DEL k GRACE 60000", &["cache.del k"]),
        ("DEL k", &["del k"]),
        ("CACHE.DEL k", &[]),
        ("CACHE.DEL k GRACE 60000", &["cache.del k"]),
        ("CACHE.SET k v PX 60000", &["cache.set k"]),
        ("DEL k", &["del k"]),
        ("CACHE.SET k v PX 60000", &["cache.set k"]),
        ("CACHE.DEL k", &["cache.del k", "del k"]),
    ] {
        let mut line = line.to_owned();
        if line.ends_with("TOKEN") {
            line += &format!(" {token}");
        }
        let reply = client.must(&line);
        if line.starts_with("CACHE.FETCH") && shown(&reply).starts_with("LEASE") {
            token = fetched(&reply).2;
        }
        assert_eq!(events.take(), expected, "{line}");
    }
    client.must("CACHE.SET k v PX 30");
    await_gone(&mut client, "k");
    assert_eq!(events.take(), ["cache.set k", "expired k"]);
}

#[test]
fn reads_and_refusals_write_nothing() {
    let (_server, _replica, mut client) = counting_server();
    client.must("CACHE.SET k v PX 60000 VER 5");
    client.must("CACHE.SET s v PX 60000");
    client.must("CACHE.DEL s STALE 60000 GRACE 60000");
    client.must("BF.ADD f x");
    let before = written(&mut client);
    for line in [
        "CACHE.GET k",
        "CACHE.INFO k",
        "CACHE.FETCH k LEASE 60000",
        "CACHE.FETCH k LEASE 60000 EARLY 315360000000",
        "CACHE.FETCH s LEASE 60000",
        "CACHE.FETCH s LEASE 60000",
        "CACHE.FETCH missing LEASE 60000",
        "CACHE.FETCH missing LEASE 60000 BLOCK 20",
        "CACHE.FETCH absent LEASE 60000 GUARD f y",
        "CACHE.SET k v PX 60000 VER 4",
        "CACHE.SET k v PX 60000 TOKEN 5",
        "CACHE.SETNULL missing PX 60000 TOKEN 5",
        "CACHE.FAIL missing 5",
        "CACHE.DEL missing",
        "CACHE.DEL missing STALE 5",
    ] {
        client.must(line);
        assert_eq!(written(&mut client), before, "{line}");
    }
    let (_, _, token) = fetched(&client.must("CACHE.FETCH other LEASE 60000"));
    client.must(&format!("CACHE.FAIL other {token} BACKOFF 60000"));
    assert_eq!(written(&mut client), before);
}

#[test]
fn a_full_server_stores_nothing_new_and_still_invalidates() {
    let (_server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    client.must("CONFIG SET maxmemory 1");
    for line in ["CACHE.SET j v PX 60000", "CACHE.SETNULL j PX 60000"] {
        assert!(client.run(line).err().starts_with("OOM "), "{line}");
    }
    number(&client.must("CACHE.FETCH k LEASE 60000"), "HIT v");
    assert_eq!(client.must("CACHE.GET k"), "v");
    let token = number(&client.must("CACHE.FETCH j LEASE 60000"), "LEASE -");
    assert_eq!(client.must(&format!("CACHE.FAIL j {token}")), 1);
    assert_eq!(client.must("CACHE.DEL k"), 1);
}

// What the server tells of the commands

/// Name, arity, first key, options.
const COMMANDS: &[(&str, i64, &str)] = &[
    ("cache.get", 2, ""),
    (
        "cache.fetch",
        -4,
        "BETA BLOCK BREAKER EARLY GUARD LEASE SLIDE",
    ),
    ("cache.set", -5, "JITTER PX STALE TOKEN VER"),
    ("cache.setnull", -4, "JITTER PX STALE TOKEN VER"),
    ("cache.del", -2, "GRACE STALE VER"),
    ("cache.fail", -3, "BACKOFF"),
    ("cache.info", 2, ""),
    ("cache.breaker", -2, "RESET"),
];

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
fn every_command_tells_what_it_is() {
    let (_server, mut client) = server_and_client();
    for (name, arity, keywords) in COMMANDS {
        let info = client.call(["COMMAND", "INFO", name]);
        let info = info.array()[0].array();
        assert_eq!(info[1], *arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let has = |flag: &str| flags.contains(&flag);
        let reads = ["cache.get", "cache.fetch", "cache.fail", "cache.info"].contains(name);
        assert_eq!(has("readonly"), reads, "{name} {flags:?}");
        let writes = !reads && *name != "cache.breaker";
        assert_eq!(has("write"), writes, "{name} {flags:?}");
        assert_eq!(has("blocking"), *name == "cache.fetch", "{name} {flags:?}");
        let stores = name.starts_with("cache.set");
        assert_eq!(has("denyoom"), stores, "{name} {flags:?}");
        assert_eq!(has("fast"), !writes, "{name} {flags:?}");

        let docs = client.call(["COMMAND", "DOCS", name]);
        let docs = docs.field(name);
        assert!(!docs.field("summary").text().is_empty(), "{name}");
        assert!(docs.field("complexity").text().starts_with("O("), "{name}");
        let mut found = Vec::new();
        collect_tokens(docs.field("arguments"), &mut found);
        found.sort();
        assert_eq!(&found.join(" "), keywords, "{name}");

        let too_few = vec![*name; usize::try_from(arity.abs() - 1).unwrap()];
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(client.call(too_few).err(), expected);
        if *arity > 0 {
            let too_many = vec![*name; usize::try_from(arity + 1).unwrap()];
            assert_eq!(client.call(too_many).err(), expected);
        }
    }
}

#[test]
fn the_filter_of_a_guard_is_a_key_that_is_read() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("CACHE.GET k", "k:RO"),
        ("CACHE.INFO k", "k:RO"),
        ("CACHE.SET k v PX 5", "k:RW"),
        ("CACHE.SET k GUARD PX 5", "k:RW"),
        ("CACHE.SETNULL k PX 5", "k:RW"),
        ("CACHE.DEL k", "k:RW"),
        ("CACHE.FAIL k 5", "k:RO"),
        ("CACHE.APPLY k x", "k:RW"),
        ("CACHE.FETCH k LEASE 5", "k:RO"),
        ("CACHE.FETCH k LEASE 5 GUARD f i", "k:RO f:RO"),
        ("CACHE.FETCH k guard f i LEASE 5 BLOCK 5", "k:RO f:RO"),
        ("CACHE.FETCH k GUARD GUARD GUARD LEASE 5", "k:RO GUARD:RO"),
        ("CACHE.FETCH GUARD GUARD f i LEASE 5", "GUARD:RO f:RO"),
        ("CACHE.FETCH GUARD LEASE 5", "GUARD:RO"),
    ] {
        let keys = client.must(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        let keys = keys.array().iter().map(|key| {
            let flags = key.array()[1].array().iter().map(Value::text);
            let access = flags.filter(|flag| flag.len() == 2).collect::<Vec<_>>();
            format!("{}:{}", key.array()[0].text(), access.join("+"))
        });
        assert_eq!(keys.collect::<Vec<_>>().join(" "), expected, "{line}");
        let names: Vec<&str> = expected.split([' ', ':']).step_by(2).collect();
        let keys = client.must(&format!("COMMAND GETKEYS {line}"));
        let keys: Vec<_> = keys.array().iter().map(Value::text).collect();
        assert_eq!(keys, names, "{line}");
    }
}

#[test]
fn users_are_kept_to_their_keys_and_filters() {
    let (server, mut admin) = server_and_client();
    admin.must("BF.ADD shared:f x");
    admin.must("BF.ADD secret x");
    admin.must("CACHE.SET shared:k v PX 60000");
    admin.must("ACL SETUSER u on >p +@all ~own:* %R~shared:*");
    let mut client = Raw::connect(&server);
    client.must("AUTH u p");
    number(
        &client.must("CACHE.FETCH own:k LEASE 60000 GUARD shared:f y"),
        "ABSENT -",
    );
    assert_eq!(client.must("CACHE.GET shared:k"), "v");
    client.must("CACHE.INFO shared:k");
    number(&client.must("CACHE.FETCH shared:k LEASE 60000"), "HIT v");
    let token = number(&client.must("CACHE.FETCH shared:j LEASE 60000"), "LEASE -");
    let fail = format!("CACHE.FAIL shared:j {token}");
    assert_eq!(client.must(&fail), 1);
    for line in [
        "CACHE.FETCH own:k LEASE 60000 GUARD secret y",
        "CACHE.FETCH own:k GUARD secret y LEASE 60000",
        "CACHE.FETCH other LEASE 60000",
        "CACHE.SET shared:k v PX 60000",
        "CACHE.SETNULL shared:k PX 60000",
        "CACHE.DEL shared:k",
        "CACHE.FAIL other 5",
        "CACHE.GET other",
        "CACHE.INFO other",
        "CACHE.APPLY shared:k x",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM"), "{line}: {reply:?}");
    }
    // A user with only the write permission cannot read cached values.
    admin.must("ACL SETUSER writer on >p +@all %W~own:*");
    client.must("AUTH writer p");
    assert_eq!(client.must("CACHE.SET own:k v PX 60000"), 1);
    assert_eq!(client.must("CACHE.SETNULL own:k PX 60000"), 1);
    assert_eq!(client.must("CACHE.DEL own:k"), 1);
    for line in ["CACHE.FETCH own:k LEASE 5", "CACHE.GET own:k"] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM"), "{line}: {reply:?}");
    }
    admin.must("ACL SETUSER reader on >p ~* +@all -@all +cache.get");
    client.must("AUTH reader p");
    assert_eq!(client.must("CACHE.GET shared:k"), "v");
    assert!(
        client
            .run("CACHE.FETCH shared:k LEASE 5")
            .err()
            .starts_with("NOPERM")
    );
}

#[test]
fn without_the_family_of_filters_a_guard_guards_nothing_and_harms_nobody() {
    let server = Server::builder()
        .module_args(&["families", "cache"])
        .start();
    let mut client = Raw::connect(&server);
    client.must("SET string v");
    let reply = client.must("CACHE.FETCH k LEASE 60000 GUARD nowhere x");
    let token = number(&reply, "LEASE -");
    assert!(stores(&mut client, "k", token));
    client.must("CACHE.DEL k");
    let reply = client.run("CACHE.FETCH k LEASE 60000 GUARD string x");
    assert_eq!(reply.err(), WRONGTYPE);
    assert_eq!(look(&mut client, "k"), "LEASE -");
}
