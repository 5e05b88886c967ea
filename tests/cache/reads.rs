//! `CACHE.FETCH` and `CACHE.FAIL` as commands that read: replicas, pauses, read-only scripts, and clients that track keys.

use crate::support::cache::{about, fetched, lease, look, nearly, number, shown, stores};
use crate::support::{
    Lines, Raw, SOON, Server, WRONGTYPE, eventually, pair, quiet, reads_keys_in_threads, served,
    server_and_client, until_pong, wait_for_replica_sync, waiter, waiting,
};

const FETCH: &str = "CACHE.FETCH k LEASE 600000 BLOCK 600000";

/// The keys that the server has told a client to forget; `None`: it told nothing.
#[track_caller]
fn told(client: &mut Raw) -> Vec<String> {
    let pushes = until_pong(client);
    let keys = pushes
        .iter()
        .flat_map(|push| push.array()[1].array().to_vec());
    keys.map(|key| key.text().to_owned()).collect()
}

fn tracker(server: &Server, options: &str) -> Raw {
    let mut client = Raw::connect(server);
    client.hello3();
    client.must(&format!("CLIENT TRACKING ON {options}"));
    client
}

// Replicas

#[test]
fn a_replica_serves_what_is_fresh_and_leases_nothing() {
    for is_writable in [false, true] {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        client.run_all([
            "CACHE.SET fresh v PX 600000",
            "CACHE.SETNULL none PX 600000",
            "CACHE.SET stale v PX 600000",
            "CACHE.DEL stale STALE 600000",
            "CACHE.DEL tombstone GRACE 600000",
            "BF.ADD filter item",
        ]);
        let token = lease(&mut client, "leased");
        wait_for_replica_sync(&master, &replica);
        let mut reader = Raw::connect(&replica);
        if is_writable {
            reader.must("CONFIG SET replica-read-only no");
        }
        for (line, expected) in [
            ("fresh LEASE 5", "HIT v"),
            ("fresh LEASE 5 EARLY 315360000000", "HIT v"),
            ("fresh LEASE 5 BETA 1000", "HIT v"),
            ("fresh LEASE 5 SLIDE 900000", "HIT v"),
            ("none LEASE 5 SLIDE 900000", "NULL -"),
        ] {
            let reply = reader.must(&format!("CACHE.FETCH {line}"));
            assert_eq!(shown(&reply), expected, "{line}");
            nearly(fetched(&reply).2, 600_000);
        }
        for (line, expected) in [
            ("stale LEASE 5", "MISS v"),
            ("stale LEASE 5 GUARD filter nothing", "MISS v"),
            ("tombstone LEASE 5 BLOCK 0", "MISS -"),
            ("leased LEASE 5 BLOCK 0", "MISS -"),
            ("missing LEASE 5 GUARD filter item", "MISS -"),
            ("missing LEASE 5 GUARD filter nothing", "ABSENT -"),
            ("fresh LEASE 5 GUARD filter nothing", "HIT v"),
        ] {
            let reply = reader.must(&format!("CACHE.FETCH {line}"));
            assert_eq!(shown(&reply), expected, "{line}");
            if expected != "HIT v" {
                assert_eq!(fetched(&reply).2, 0, "{line}");
            }
        }
        nearly(about(&mut reader, "fresh", "fresh_ms"), 600_000);
        assert_eq!(reader.must(&format!("CACHE.FAIL leased {token}")), 0);
        reader.must("SELECT 1");
        assert_eq!(look(&mut reader, "k"), "MISS -");
        assert!(stores(&mut client, "leased", token));
    }
}

#[test]
fn a_hit_that_slides_invalidates_nobody_at_the_master_or_a_replica() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("CACHE.SET k v PX 60000");
    wait_for_replica_sync(&master, &replica);
    let mut trackers = [tracker(&master, ""), tracker(&replica, "")];
    let mut watchers = [Raw::connect(&master), Raw::connect(&replica)];
    for tracker in &mut trackers {
        assert_eq!(look(tracker, "k"), "HIT v");
    }
    for watcher in &mut watchers {
        watcher.run_all(["WATCH k", "MULTI", "CACHE.GET k"]);
    }
    let reply = client.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    assert_eq!(number(&reply, "HIT v"), 900_000);
    wait_for_replica_sync(&master, &replica);
    nearly(about(&mut Raw::connect(&replica), "k", "fresh_ms"), 900_000);
    for (tracker, watcher) in trackers.iter_mut().zip(&mut watchers) {
        assert_eq!(told(tracker), [""; 0]);
        assert_eq!(watcher.must("EXEC").array()[0], "v");
    }
    // An entry that stays and is stale has changed.
    client.must("CACHE.DEL k STALE 60000");
    wait_for_replica_sync(&master, &replica);
    for tracker in &mut trackers {
        assert_eq!(told(tracker), ["k"]);
    }
}

// Where the server does not write

/// A hit slides only where the server would accept a command that writes.
#[test]
fn a_pause_of_writes_stops_no_fetch_and_no_failure() {
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    let token = lease(&mut client, "loading");
    let mut next = waiter(&server, "CACHE.FETCH loading LEASE 600000 BLOCK 0");
    client.must("CLIENT PAUSE 100000 WRITE");
    let mut reader = Raw::connect(&server);
    let reply = reader.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    nearly(number(&reply, "HIT v"), 60_000);
    let given = lease(&mut reader, "missing");
    assert_eq!(reader.must(&format!("CACHE.FAIL loading {token}")), 1);
    let handed = number(&served(&mut next), "LEASE -");
    nearly(about(&mut reader, "k", "fresh_ms"), 60_000);
    client.must("CLIENT UNPAUSE");
    assert!(stores(&mut client, "missing", given));
    assert!(stores(&mut client, "loading", handed));
    let reply = reader.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    assert_eq!(number(&reply, "HIT v"), 900_000);
}

#[test]
fn an_entry_that_expires_in_a_pause_is_leased_and_the_server_lives() {
    let (server, mut client) = server_and_client();
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    client.must("CACHE.SET k v PX 20");
    client.must("CLIENT PAUSE 100000 WRITE");
    let mut reader = Raw::connect(&server);
    eventually(SOON, || look(&mut reader, "k") != "HIT v");
    assert_eq!(look(&mut reader, "k"), "WAIT -");
    client.must("CLIENT UNPAUSE");
    assert_eq!(client.must("DBSIZE").int() & !1, 0);
    client.must("CACHE.SET k v PX 60000");
    assert_eq!(look(&mut reader, "k"), "HIT v");
}

#[test]
fn too_few_replicas_stop_no_fetch_and_no_failure() {
    let server = quiet().start();
    let mut client = Raw::connect(&server);
    client.run_all(["CACHE.SET k v PX 60000", "CACHE.SET other v PX 60000"]);
    let slid = client.must("CACHE.FETCH other LEASE 5 SLIDE 900000");
    assert_eq!(number(&slid, "HIT v"), 900_000);
    client.must("CONFIG SET min-replicas-to-write 1");
    assert!(client.run("CACHE.DEL k").err().starts_with("NOREPLICAS"));
    let reply = client.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    nearly(number(&reply, "HIT v"), 60_000);
    let token = lease(&mut client, "missing");
    assert_eq!(client.must(&format!("CACHE.FAIL missing {token}")), 1);
    client.must("CONFIG SET min-replicas-to-write 0");
    let reply = client.must("CACHE.FETCH k LEASE 5 SLIDE 900000");
    assert_eq!(number(&reply, "HIT v"), 900_000);
}

#[test]
fn a_read_only_script_fetches_and_slides_nothing() {
    let (_server, mut client) = server_and_client();
    let call = |client: &mut Raw, command: &str, script: &str| {
        client.call([command, script, "1", "k"]).array()[2].int()
    };
    let script = "return redis.call('CACHE.FETCH', KEYS[1], 'LEASE', 5, 'SLIDE', 900000)";
    let declared = format!("#!lua flags=no-writes\n{script}");
    let sha = client.call(["SCRIPT", "LOAD", script]).text().to_owned();
    let library = "#!lua name=lib\nredis.register_function{function_name='look', flags={'no-writes'}, \
                   callback=function(keys) return redis.call('CACHE.FETCH', keys[1], 'LEASE', 5, 'SLIDE', 900000) end}\n\
                   redis.register_function{function_name='keep', \
                   callback=function(keys) return redis.call('CACHE.FETCH', keys[1], 'LEASE', 5, 'SLIDE', 900000) end}";
    client.call(["FUNCTION", "LOAD", library]);
    for (command, script) in [
        ("EVAL_RO", script),
        ("EVALSHA_RO", sha.as_str()),
        ("FCALL_RO", "look"),
        ("EVAL", declared.as_str()),
    ] {
        client.must("CACHE.SET k v PX 60000");
        nearly(call(&mut client, command, script), 60_000);
        nearly(client.must("PTTL k").int(), 60_000);
    }
    for (command, script) in [
        ("EVAL", script),
        ("EVALSHA", sha.as_str()),
        ("FCALL", "keep"),
    ] {
        client.must("CACHE.SET k v PX 60000");
        assert_eq!(call(&mut client, command, script), 900_000, "{command}");
    }
    // What is not in the cache is leased.
    let script = "return redis.call('CACHE.FETCH', KEYS[1], 'LEASE', 600000)";
    let reply = client.call(["EVAL_RO", script, "1", "missing"]);
    let token = number(&reply, "LEASE -");
    let script = "return redis.call('CACHE.FAIL', KEYS[1], ARGV[1])";
    let token = token.to_string();
    assert_eq!(client.call(["EVAL_RO", script, "1", "missing", &token]), 1);
}

// Clients that track keys

#[test]
fn a_fetched_key_is_tracked() {
    for (options, prepare) in [
        ("", ""),
        ("BCAST", ""),
        ("BCAST PREFIX k", ""),
        ("OPTIN", "CLIENT CACHING YES"),
        ("OPTOUT", ""),
    ] {
        let (server, mut client) = server_and_client();
        for line in [
            "CACHE.SET k w PX 60000",
            "CACHE.SETNULL k PX 60000",
            "CACHE.DEL k STALE 60000",
            "CACHE.DEL k",
            "SET k other",
            "RENAME k j",
            "FLUSHALL",
        ] {
            client.run_all(["DEL k", "CACHE.SET k v PX 60000"]);
            let mut tracker = tracker(&server, options);
            if !prepare.is_empty() {
                tracker.must(prepare);
            }
            assert_eq!(look(&mut tracker, "k"), "HIT v");
            client.must(line);
            // With I/O threads, the server may reply to a later command first.
            eventually(SOON, || !until_pong(&mut tracker).is_empty());
        }
    }
    // Without `CLIENT CACHING YES`, the key is not tracked.
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 60000");
    let mut tracker = tracker(&server, "OPTIN");
    assert_eq!(look(&mut tracker, "k"), "HIT v");
    client.must("CACHE.DEL k");
    assert_eq!(told(&mut tracker), [""; 0]);
}

#[test]
fn a_key_that_expires_is_told_to_clients_that_track_it() {
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET k v PX 50");
    let mut tracker = tracker(&server, "");
    if look(&mut tracker, "k") == "HIT v" {
        eventually(SOON, || {
            client.must("CACHE.FETCH k LEASE 5");
            told(&mut tracker) == ["k"]
        });
    }
}

#[test]
fn a_client_that_blocks_tracks_the_key() {
    let (server, mut client) = server_and_client();
    let token = lease(&mut client, "k");
    let mut tracker = tracker(&server, "");
    tracker.ask(FETCH);
    eventually(SOON, || waiting(&server) == 1);
    assert!(stores(&mut client, "k", token));
    // The push of the store that ends the wait comes first, and the reply is not kept. The next fetch is.
    let mut replies = until_pong(&mut tracker);
    replies.retain(|reply| reply.array().first().is_some_and(|first| *first == "HIT"));
    assert_eq!(replies.len(), 1, "{replies:?}");
    assert_eq!(look(&mut tracker, "k"), "HIT late");
    client.must("CACHE.DEL k");
    assert_eq!(told(&mut tracker), ["k"]);
}

// Key positions

#[test]
fn a_breaker_with_the_name_of_an_option_is_no_option() {
    let (_server, mut client) = server_and_client();
    let by_words = reads_keys_in_threads(&mut client);
    // The keys, and those of a server that does not ask the command for them: the word behind the first `GUARD`.
    for (line, expected, found_by_words) in [
        ("k LEASE 5 BREAKER GUARD 3 1000", "k", "k 3"),
        ("k BREAKER guard 3 1000 GUARD f i LEASE 5", "k f", "k 3"),
        ("k GUARD f GUARD BREAKER GUARD 3 1000 LEASE 5", "k f", "k f"),
        ("GUARD LEASE 5 GUARD LEASE i", "GUARD LEASE", "GUARD LEASE"),
    ] {
        let keys = client.must(&format!("COMMAND GETKEYS CACHE.FETCH {line}"));
        let keys: Vec<_> = keys.array().iter().map(|key| key.text()).collect();
        let expected = if by_words { found_by_words } else { expected };
        assert_eq!(keys.join(" "), expected, "{line}");
    }
}

/// Also where the server takes the number of failures for the filter.
#[test]
fn a_breaker_with_the_name_of_an_option_opens_no_filter_of_others() {
    let (server, mut admin) = server_and_client();
    admin.must("BF.ADD secret x");
    admin.must("ACL SETUSER u on nopass +@all ~k ~3 ~open");
    let mut client = Raw::connect(&server);
    client.must("AUTH u any");
    let line = |filter| format!("CACHE.FETCH k LEASE 5 BREAKER guard 3 1000 GUARD {filter} i");
    let reply = client.run(&line("secret"));
    assert!(reply.err().starts_with("NOPERM "), "{reply:?}");
    admin.must("BF.ADD open x");
    number(&client.must(&line("open")), "ABSENT -");
}

// Keys of other types

/// No event reports a new key, so the module looks at the keys of waiting clients ten times a second.
#[test]
fn a_key_of_another_type_answers_all_waiting_clients_before_the_lease_ends() {
    for line in [
        "SET k other",
        "APPEND k other",
        "LPUSH k x",
        "RENAME other k",
        "COPY other k",
        "BF.ADD k x",
    ] {
        let (server, mut client) = server_and_client();
        client.must("CACHE.FETCH k LEASE 315360000000");
        let mut waiters = [(); 3].map(|()| waiter(&server, FETCH));
        client.must("SET other v");
        client.must(line);
        for waiter in &mut waiters {
            assert_eq!(served(waiter).err(), WRONGTYPE, "{line}");
        }
    }
}

#[test]
fn a_restored_entry_answers_all_waiting_clients() {
    let (server, mut client) = server_and_client();
    client.must("CACHE.SET j v PX 600000");
    let payload = client.call(["DUMP", "j"]).bytes().to_vec();
    client.must("CACHE.FETCH k LEASE 315360000000");
    let mut waiters = [(); 3].map(|()| waiter(&server, FETCH));
    client.call([b"RESTORE".as_slice(), b"k", b"600000", &payload]);
    for waiter in &mut waiters {
        assert_eq!(shown(&served(waiter)), "HIT v");
    }
}

/// On Valkey such a command changes nothing, and no event reports it.
#[test]
fn a_value_that_is_expired_on_arrival_ends_the_lease_on_a_missing_key() {
    let (_server, mut client) = server_and_client();
    for line in [
        "SET k v PXAT 1",
        "SET k v EXAT 1",
        "SET k v GET PXAT 1",
        "set k v pxat 1",
    ] {
        let token = lease(&mut client, "k");
        client.must(line);
        assert!(!stores(&mut client, "k", token), "{line}");
        client.run_all(["MULTI", line, "EXEC"]);
    }
    let token = lease(&mut client, "k");
    client.run("SET other v PXAT 1");
    client.run("SET k v PXAT");
    client.run_all(["SET other v EX 100", "GET k"]);
    // A command that is refused may end a lease, which costs a rebuild.
    let _ = stores(&mut client, "k", token);
}
