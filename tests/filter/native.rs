//! The server's own commands work on filters, of a few bytes and of many.

use std::collections::HashSet;

use crate::support::filter::{
    Chunk, FILTERS, ITEMS, KINDS, Kind, add, add_named, assert_calm, assert_holds, chunk, held,
    load, load_chunk, number, value_digest,
};
use crate::support::{
    Lines, Raw, SEPARATE, SOON, Server, Value, WRONGTYPE, eventually, field_of,
    reads_keys_in_threads, server_and_client, settled_memory, used_memory,
};
use sluice::filter::persist::put_piece;

/// A filter of many segments that is nearly untouched: large for the server, quick to make.
fn reserve_large(client: &mut Raw, kind: Kind, key: &str) {
    client.must(&kind.reserve(key, 4_000_000));
    add(client, kind, key, 0..1000);
}

/// Filters, layers and bytes that `INFO sluice` tells.
fn live(server: &Server) -> [i64; 3] {
    ["keys", "layers", "bytes"].map(|field| server.info_int(&format!("sluice_filter_{field}")))
}

// The end of a key

#[test]
fn whatever_removes_a_key_removes_the_filter_and_its_memory() {
    let (server, mut client) = server_and_client();
    for kind in KINDS {
        for removal in [
            "DEL k",
            "UNLINK k",
            "PEXPIREAT k 1",
            "PEXPIRE k -1",
            "FLUSHDB",
            "FLUSHDB ASYNC",
            "FLUSHALL",
            "FLUSHALL ASYNC",
            "SET k string",
            "RENAME string k",
        ] {
            for large in [false, true] {
                client.must("FLUSHALL");
                client.must("SET string v");
                if large {
                    reserve_large(&mut client, kind, "k");
                } else {
                    add(&mut client, kind, "k", 0..9);
                }
                assert_eq!(live(&server)[..2], [1, 1]);
                client.must(removal);
                eventually(SOON, || live(&server) == [0, 0, 0]);
                let look = client.call([&kind.name("EXISTS"), "k", "i1"]);
                if removal.ends_with(" k") && removal.starts_with("RENAME")
                    || removal == "SET k string"
                {
                    assert_eq!(look.err(), WRONGTYPE);
                } else {
                    assert_eq!(look, 0, "{removal}");
                    assert_eq!(client.run("EXISTS k"), 0, "{removal}");
                    let info = client.call([&kind.name("INFO"), "k"]);
                    assert_eq!(info.err(), kind.missing(), "{removal}");
                }
            }
        }
    }
    assert_calm(&server);
}

#[test]
fn large_filters_are_freed_in_the_background_and_small_ones_at_once() {
    for kind in KINDS {
        let server = Server::builder()
            .config("lazyfree-lazy-user-del", "yes")
            .config("lazyfree-lazy-expire", "yes")
            .config("lazyfree-lazy-server-del", "yes")
            .start();
        let mut client = Raw::connect(&server);
        let has_threads = reads_keys_in_threads(&mut client);
        let mut freed = 0;
        for end in [
            "UNLINK k",
            "DEL k",
            "PEXPIRE k 1",
            "SET k v",
            "RENAME small k",
            "FLUSHDB ASYNC",
            "FLUSHALL ASYNC",
        ] {
            client.run("DEL k small");
            add(&mut client, kind, "small", 0..9);
            reserve_large(&mut client, kind, "k");
            eventually(SOON, || server.info_int("lazyfree_pending_objects") == 0);
            freed = freed.max(server.info_int("lazyfreed_objects"));
            client.must(end);
            // With I/O threads, a thread that serves a client frees what that client overwrites.
            if end != "SET k v" || !has_threads {
                eventually(SOON, || server.info_int("lazyfreed_objects") > freed);
            }
            eventually(SOON, || live(&server)[2] < 5000);
            freed = server.info_int("lazyfreed_objects");
        }
        // A key that expires is seen as expired at once, so that only its end is waited for.
        client.must("FLUSHALL");
        freed = server.info_int("lazyfreed_objects");
        add(&mut client, kind, "small", 0..9);
        client.must("UNLINK small");
        eventually(SOON, || live(&server) == [0, 0, 0]);
        assert_eq!(server.info_int("lazyfreed_objects"), freed, "{kind:?}");
    }
}

#[test]
fn a_filter_keeps_the_expiry_that_it_is_given() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("k", 50));
        assert_eq!(client.run("PTTL k"), -1);
        assert_eq!(client.run("PEXPIRE k 900000"), 1);
        let end = client.run("PEXPIRETIME k");
        // Through several expansions.
        add(&mut client, kind, "k", 0..500);
        assert!(number(&mut client, kind, "k", FILTERS) > 1);
        assert_eq!(client.run("PEXPIRETIME k"), end);
        match kind {
            Kind::Bloom => {
                client.must("BF.RESERVE like LIKE k");
                client.must("BF.MERGE k 1 like");
                assert_eq!(client.run("PTTL like"), -1);
            }
            Kind::Cuckoo => {
                client.must("CF.DEL k i1");
                client.must("CF.COMPACT k");
            }
        }
        assert_eq!(client.run("PEXPIRETIME k"), end);
        assert_eq!(client.run("PERSIST k"), 1);
        assert_eq!(client.run("PTTL k"), -1);
        client.must("PEXPIRE k 30");
        eventually(SOON, || client.run("EXISTS k") == 0);
        assert_eq!(held(&mut client, kind, "k", 0..500), 0);
        // What is added now is added to a new filter, which does not expire.
        add(&mut client, kind, "k", 0..1);
        assert_eq!(client.run("PTTL k"), -1);
        assert_eq!(number(&mut client, kind, "k", ITEMS), 1);
    }
}

// What a key is

#[test]
fn filters_are_two_types_of_their_own() {
    let (_server, mut client) = server_and_client();
    client.must("SET string v");
    for kind in KINDS {
        let key = kind.family();
        add(&mut client, kind, key, 0..5);
        assert_eq!(client.call(["TYPE", key]), kind.type_name());
        let found = client.call(["SCAN", "0", "COUNT", "1000", "TYPE", kind.type_name()]);
        assert_eq!(found.array()[1].array(), [Value::Bulk(key.into())]);
        assert_eq!(client.call(["EXISTS", key, key, "none"]), 2);
        assert_eq!(client.call(["TOUCH", key, "none"]), 1);
    }
    assert_eq!(client.run("KEYS *").array().len(), 3);
    for kind in KINDS {
        let other = kind.other().family();
        for key in [other, "string"] {
            for line in [
                format!("{} {key} i1", kind.name("EXISTS")),
                format!("{} {key} i1", kind.name("ADD")),
                format!("{} {key}", kind.name("INFO")),
                format!("{} {key} 0", kind.name("SCANDUMP")),
                format!("{} {key} 1 x", kind.name("LOADCHUNK")),
                kind.reserve(key, 10),
            ] {
                assert_eq!(client.run(&line).err(), WRONGTYPE, "{line}");
            }
        }
        for line in ["GET", "LLEN", "SCARD", "XLEN", "STOCK.GET", "LOCK.INFO"] {
            let reply = client.run(&format!("{line} {}", kind.family()));
            assert_eq!(reply.err(), WRONGTYPE, "{line}");
        }
    }
}

#[test]
fn object_and_debug_commands_answer() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("CONFIG SET maxmemory-policy noeviction");
        client.must("FLUSHALL");
        reserve_large(&mut client, kind, "k");
        assert!(!client.must("OBJECT ENCODING k").text().is_empty());
        assert_eq!(client.must("OBJECT REFCOUNT k"), 1);
        assert!(client.must("OBJECT IDLETIME k").int() >= 0);
        let debug = client.must("DEBUG OBJECT k");
        assert!(debug.text().contains("serializedlength"));
        client.must("CONFIG SET maxmemory-policy allkeys-lfu");
        client.must("COPY k copy");
        assert!(client.must("OBJECT FREQ copy").int() >= 0);
    }
}

// RENAME, COPY, MOVE, SWAPDB

#[test]
fn a_renamed_filter_is_the_same() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("old", 50));
        add(&mut client, kind, "old", 0..200);
        let digest = value_digest(&mut client, "old");
        add(&mut client, kind, "taken", 0..1);
        assert_eq!(client.run("RENAMENX old taken"), 0);
        client.must("RENAME old taken");
        assert_eq!(value_digest(&mut client, "taken"), digest);
        assert_eq!(held(&mut client, kind, "old", 0..200), 0);
        // Over values of other types.
        for set in ["SET over v", "RPUSH over a b", "STOCK.SET over 5"] {
            client.must("DEL over");
            client.must(set);
            client.must("RENAME taken over");
            assert_eq!(value_digest(&mut client, "over"), digest, "{set}");
            client.must("RENAME over taken");
        }
        assert_holds(&mut client, kind, "taken", 0..200);
        add(&mut client, kind, "taken", 200..400);
        assert_holds(&mut client, kind, "taken", 0..400);
    }
}

#[test]
fn a_copy_is_a_filter_of_its_own() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("k", 50));
        add(&mut client, kind, "k", 0..200);
        let digest = value_digest(&mut client, "k");
        assert_eq!(client.run("COPY k copy"), 1);
        assert_eq!(client.run("COPY k copy"), 0);
        client.must("STOCK.SET over 1");
        assert_eq!(client.run("COPY k over REPLACE"), 1);
        add(&mut client, kind, "filter", 0..5);
        assert_eq!(client.run("COPY k filter REPLACE"), 1);
        assert_eq!(client.run("COPY k elsewhere DB 2"), 1);
        for (db, key) in [(0, "copy"), (0, "over"), (0, "filter"), (2, "elsewhere")] {
            client.must(&format!("SELECT {db}"));
            assert_eq!(value_digest(&mut client, key), digest, "{key}");
            // What is done to one is not done to the other.
            add_named(&mut client, kind, key, key, 0..300);
            if kind == Kind::Cuckoo {
                // Another item may have the same fingerprint.
                let count = client.call(["CF.COUNT", key, "i7"]).int();
                assert_eq!(client.call(["CF.DEL", key, "i7"]), 1);
                assert_eq!(client.call(["CF.COUNT", key, "i7"]), count - 1);
            }
            assert_ne!(value_digest(&mut client, key), digest, "{key}");
        }
        client.must("SELECT 0");
        assert_eq!(value_digest(&mut client, "k"), digest);
        let before = value_digest(&mut client, "copy");
        add_named(&mut client, kind, "k", "more", 0..300);
        assert_eq!(value_digest(&mut client, "copy"), before);
        client.must("DEL k");
        assert!(held(&mut client, kind, "copy", 0..200) >= 199);
    }
}

#[test]
fn a_copy_of_a_large_filter_is_whole() {
    let (server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        let capacity = match kind {
            Kind::Bloom => 20_000_000,
            Kind::Cuckoo => 10_000_000,
        };
        client.must(&kind.reserve("k", capacity));
        add(&mut client, kind, "k", 0..20_000);
        assert!(number(&mut client, kind, "k", "Size") > 20 << 20);
        assert_eq!(client.run("COPY k copy"), 1);
        let digest = value_digest(&mut client, "k");
        assert_eq!(value_digest(&mut client, "copy"), digest);
        add(&mut client, kind, "copy", 20_000..20_001);
        assert_eq!(value_digest(&mut client, "k"), digest);
        client.must("UNLINK k");
        assert_holds(&mut client, kind, "copy", 0..20_001);
    }
    assert_calm(&server);
}

#[test]
fn moved_and_swapped_filters_are_the_same() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        reserve_large(&mut client, kind, "k");
        let digest = value_digest(&mut client, "k");
        assert_eq!(client.run("MOVE k 2"), 1);
        assert_eq!(held(&mut client, kind, "k", 0..1000), 0);
        add_named(&mut client, kind, "k", "other", 0..5);
        assert_eq!(client.run("MOVE k 2"), 0);
        client.must("SELECT 2");
        assert_eq!(value_digest(&mut client, "k"), digest);
        client.must("SWAPDB 0 2");
        assert_eq!(number(&mut client, kind, "k", ITEMS), 5);
        client.must("SELECT 0");
        assert_eq!(value_digest(&mut client, "k"), digest);
        assert_holds(&mut client, kind, "k", 0..1000);
    }
}

// DUMP, RESTORE, MIGRATE

#[test]
fn a_restored_filter_is_what_was_dumped() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("k", 50));
        add(&mut client, kind, "k", 0..300);
        let digest = value_digest(&mut client, "k");
        let payload = client.must("DUMP k").bytes().to_vec();
        for set in ["SET string v", "STOCK.SET stock 5", "RPUSH list a"] {
            client.must(set);
        }
        add(&mut client, kind.other(), "other", 0..5);
        let mut restore = |key: &str, ttl: &str, options: &[&str]| {
            let mut command: Vec<&[u8]> =
                vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), &payload];
            command.extend(options.iter().map(|option| option.as_bytes()));
            client.call(command)
        };
        for key in ["k", "string", "stock", "list", "other"] {
            assert!(restore(key, "0", &[]).err().starts_with("BUSYKEY"));
            assert_eq!(restore(key, "0", &["REPLACE"]), "OK");
        }
        assert_eq!(restore("mortal", "900000", &[]), "OK");
        assert_eq!(restore("until", "99999999999999", &["ABSTTL"]), "OK");
        assert_eq!(restore("idle", "0", &["IDLETIME", "5"]), "OK");
        assert_eq!(restore("past", "1000", &["ABSTTL"]), "OK");
        assert_eq!(client.run("EXISTS past"), 0);
        assert_eq!(client.run("PTTL k"), -1);
        assert!(client.run("PTTL mortal").int() > 0);
        assert_eq!(client.run("PEXPIRETIME until"), 99_999_999_999_999);
        client.must("PERSIST mortal");
        client.must("PERSIST until");
        // All go on alike.
        let mut grown = HashSet::new();
        for key in [
            "k", "string", "stock", "list", "other", "mortal", "until", "idle",
        ] {
            assert_eq!(value_digest(&mut client, key), digest, "{key}");
            assert_holds(&mut client, kind, key, 0..300);
            add(&mut client, kind, key, 300..900);
            assert_holds(&mut client, kind, key, 0..900);
            grown.insert(value_digest(&mut client, key));
        }
        assert_eq!(grown.len(), 1);
    }
}

#[test]
fn restore_keeps_to_the_limit_for_filters() {
    let (server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must("CONFIG SET sluice.bloom-max-bytes 1073741824");
        reserve_large(&mut client, kind, "k");
        let payload = client.must("DUMP k").bytes().to_vec();
        client.must("CONFIG SET sluice.bloom-max-bytes 1000000");
        let refused = server.info_int("sluice_filter_refused_memory");
        let command = [b"RESTORE".as_slice(), b"again", b"0", &payload];
        let reply = client.call(command);
        assert_eq!(reply.err(), "ERR Bad data format", "{reply:?}");
        assert_eq!(server.info_int("sluice_filter_refused_memory"), refused + 1);
        // What is there stays, and is copied and saved as it is.
        assert_holds(&mut client, kind, "k", 0..1000);
        client.must("DEBUG RELOAD");
        assert_holds(&mut client, kind, "k", 0..1000);
        eventually(SOON, || live(&server)[0] == 1); // the old one is freed in the background
    }
}

#[test]
fn a_migrated_filter_goes_on_at_the_other_server() {
    let (one, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let port = other.port();
    for kind in KINDS {
        add(&mut here, kind, "small", 0..500);
        reserve_large(&mut here, kind, "large");
        here.must("PEXPIRE large 900000");
        // The digest of a value has its expiry in it.
        here.must("COPY large control");
        let digests = ["small", "large"].map(|key| value_digest(&mut here, key));
        let migrate = format!("MIGRATE 127.0.0.1 {port}  0 60000 KEYS small large");
        let migrate: Vec<&str> = migrate.split(' ').collect();
        assert_eq!(here.call(&migrate), "OK");
        assert_eq!(here.run("EXISTS small large"), 0);
        let arrived = ["small", "large"].map(|key| value_digest(&mut there, key));
        assert_eq!(arrived, digests);
        assert!(there.run("PTTL large").int() > 0);
        for (client, key) in [(&mut here, "control"), (&mut there, "large")] {
            client.must(&format!("PERSIST {key}"));
            add(client, kind, key, 1000..3000);
        }
        assert_eq!(
            value_digest(&mut here, "control"),
            value_digest(&mut there, "large")
        );
        // Back, over what is there.
        add(&mut here, kind, "small", 0..1);
        let back = format!("MIGRATE 127.0.0.1 {} small 0 60000", one.port());
        assert!(there.run(&back).err().contains("BUSYKEY"));
        assert_eq!(there.must(&format!("{back} COPY REPLACE")), "OK");
        assert_eq!(value_digest(&mut here, "small"), digests[0]);
        assert_holds(&mut there, kind, "small", 0..500);
        here.must("FLUSHALL");
        there.must("FLUSHALL");
    }
}

// DEBUG DIGEST

/// The seed of a filter, as its head has it.
fn seed_of(head: &[u8]) -> u64 {
    u64::from_le_bytes(head[2..10].try_into().expect("eight bytes"))
}

/// A filter with one byte at a position, made of a head.
fn with_byte(head: &[u8], position: u64, byte: u8) -> Vec<Chunk> {
    let mut piece = Vec::new();
    put_piece(&mut piece, seed_of(head), position, &[byte]);
    vec![(1, head.to_vec()), (position as i64 + 2, piece)]
}

#[test]
fn every_bit_of_a_filter_is_in_its_digest() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("k", 40));
        let (_, head) = chunk(&mut client, kind, "k", 0);
        let mut digests = HashSet::from([value_digest(&mut client, "k")]);
        let bytes = client.must("MEMORY USAGE k").int() as u64;
        let mut bits = 0;
        for position in 0..bytes {
            for bit in 0..8 {
                let [(first, head), (next, piece)] =
                    <[Chunk; 2]>::try_from(with_byte(&head, position, 1 << bit)).expect("two");
                assert_eq!(load_chunk(&mut client, kind, "one", first, &head), "OK");
                assert_eq!(load_chunk(&mut client, kind, "one", next, &piece), "OK");
                if digests.insert(value_digest(&mut client, "one")) {
                    bits += 1;
                } else {
                    // The filter has no more bytes, and the chunk is left out.
                    assert!(bits >= 512 && bits <= position * 8);
                }
                client.must("DEL one");
            }
        }
        assert!(bits >= 512 && bits % 512 == 0, "{bits}");
    }
}

#[test]
fn the_last_bits_of_every_part_of_a_large_filter_are_in_its_digest() {
    let (_server, mut client) = server_and_client();
    for kind in KINDS {
        client.must("FLUSHALL");
        client.must(&kind.reserve("k", 600_000));
        let (_, head) = chunk(&mut client, kind, "k", 0);
        let mut digests = HashSet::from([value_digest(&mut client, "k")]);
        for position in [0, 1, 262_143, 262_144, 524_287, 524_288, 700_000] {
            for byte in [1, 128] {
                load(&mut client, kind, "one", &with_byte(&head, position, byte));
                assert!(digests.insert(value_digest(&mut client, "one")));
                client.must("DEL one");
            }
        }
    }
}

#[test]
fn the_digest_of_a_filter_is_that_of_its_copy_and_of_no_other() {
    let (_server, mut client) = server_and_client();
    // The same terms and items, and another seed.
    for kind in KINDS {
        let mut digests = HashSet::new();
        for number in 0..20 {
            let key = format!("k{number}");
            client.must(&kind.reserve(&key, 100));
            digests.insert(value_digest(&mut client, &key));
        }
        assert_eq!(digests.len(), 20, "{kind:?}");
        client.must("FLUSHALL");
    }
    // Every change is a change of the digest, also of numbers alone.
    client.must("CF.RESERVE cf 100");
    client.must("BF.RESERVE bf 0.01 100");
    client.must("BF.RESERVE like LIKE bf");
    client.must("BF.ADD like a");
    for line in [
        "CF.ADD cf a",
        "CF.ADD cf a",
        "CF.ADDNX cf b",
        "CF.DEL cf a",
        "CF.DEL cf a",
        "BF.ADD bf a",
        "BF.MADD bf a b c",
        "BF.MERGE bf 1 like",
        "BF.MERGE bf 1 like",
    ] {
        let key = line.split(' ').nth(1).expect("a key");
        let before = value_digest(&mut client, key);
        client.must(line);
        assert_ne!(value_digest(&mut client, key), before, "{line}");
    }
    for line in [
        "BF.ADD bf a",
        "CF.ADDNX cf b",
        "CF.COMPACT cf",
        "BF.EXISTS bf x",
    ] {
        let key = line.split(' ').nth(1).expect("a key");
        let before = value_digest(&mut client, key);
        client.must(line);
        assert_eq!(value_digest(&mut client, key), before, "{line}");
    }
    // In another order, the same set of items is the same Bloom filter.
    client.must("BF.RESERVE one 0.01 100");
    client.must("BF.RESERVE two LIKE one");
    client.must("BF.MADD one a b c d");
    client.must("BF.MADD two d b a c");
    assert_eq!(
        value_digest(&mut client, "one"),
        value_digest(&mut client, "two")
    );
}

// Memory

#[track_caller]
fn assert_close(what: &str, said: i64, given: i64) {
    let error = (said - given) as f64 / given as f64 * 100.0;
    println!("{what}: given {given}, said {said}, {error:+.1} %");
    assert!(
        error.abs() <= 10.0,
        "{what}: MEMORY USAGE said {said}, the server's memory grew by {given}, {error:+.1} %"
    );
}

#[test]
fn memory_usage_of_many_small_filters_is_truthful() {
    const COUNT: i64 = 3000;
    let (_server, mut client) = server_and_client();
    let mut measure = |line: &dyn Fn(i64) -> Vec<String>| {
        client.must("FLUSHALL SYNC"); // what is freed later would count as what is taken
        client.must("SET warm up");
        let before = used_memory(&mut client);
        for number in 0..COUNT {
            for line in line(number) {
                client.must(&line);
            }
        }
        let usages = (0..COUNT).map(|number| format!("MEMORY USAGE key-{number:08}"));
        let said: i64 = client.run_all(usages).iter().map(Value::int).sum();
        (settled_memory(&mut client) - before, said)
    };
    // What the server leaves out for every key, such as the table of its keys, is what it leaves out for a string.
    let (given, said) = measure(&|number| vec![format!("SET key-{number:08} {SEPARATE}")]);
    let left_out = given - said;
    for terms in [
        "BF.RESERVE % 0.01 1",
        "BF.RESERVE % 0.01 100",
        "BF.RESERVE % 0.000001 77",
        "BF.RESERVE % 0.01 1000",
        "BF.RESERVE % 0.001 4321 NONSCALING",
        "BF.RESERVE % 0.01 2 EXPANSION 1,BF.MADD % 1 2 3 4 5 6 7 8 9 10",
        "CF.RESERVE % 1",
        "CF.RESERVE % 100",
        "CF.RESERVE % 1024",
        "CF.RESERVE % 3000 BITS 8 BUCKETSIZE 7",
        "CF.RESERVE % 1 BUCKETSIZE 1,CF.INSERT % ITEMS 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
    ] {
        let (given, said) = measure(&|number| {
            let key = format!("key-{number:08}");
            let lines = terms.split(',');
            lines.map(|line| line.replace('%', &key)).collect()
        });
        assert_close(terms, said, given - left_out);
    }
}

#[test]
fn memory_usage_of_large_filters_is_truthful() {
    let (_server, mut client) = server_and_client();
    for (count, line) in [
        (100, "BF.RESERVE % 0.01 20000"),
        (20, "BF.RESERVE % 0.01 200000"),
        (20, "BF.RESERVE % 0.01 250001"),
        (10, "BF.RESERVE % 0.001 1000000"),
        (1, "BF.RESERVE % 0.01 30000000"),
        (100, "CF.RESERVE % 20000"),
        (20, "CF.RESERVE % 130000"),
        (10, "CF.RESERVE % 1000000 BITS 32"),
        (1, "CF.RESERVE % 20000000 BITS 8"),
        (1, "CF.RESERVE % 3000000 BUCKETSIZE 1"),
    ] {
        let before = used_memory(&mut client);
        let mut said = 0;
        for number in 0..count {
            let key = format!("k{number}");
            client.must(&line.replace('%', &key));
            said += client.call(["MEMORY", "USAGE", &key]).int();
        }
        let given = used_memory(&mut client) - before;
        assert_close(line, said, given);
        let of_one = client.must("MEMORY USAGE k0").int();
        client.must("COPY k0 copy");
        let of_copy = client.must("MEMORY USAGE copy").int();
        assert!((of_copy - of_one).abs() < 500, "{line}: {of_one} {of_copy}");
        client.must("FLUSHALL");
        // What is left are buffers of connections, which the server makes smaller with time.
        eventually(SOON, || used_memory(&mut client) - before < 100_000);
    }
}

#[test]
fn memory_usage_of_filters_that_have_grown_is_truthful() {
    /// Enough items that the buffers of the connection, which shrink with time, do not matter.
    const ITEMS: u64 = 300_000;
    let (_server, mut client) = server_and_client();
    for (kind, line) in [
        (Kind::Bloom, "BF.RESERVE k 0.01 300"),
        (Kind::Bloom, "BF.RESERVE k 0.01 15000 EXPANSION 1"),
        (Kind::Cuckoo, "CF.RESERVE k 3000 EXPANSION 2"),
        (Kind::Cuckoo, "CF.RESERVE k 15000 EXPANSION 1"),
    ] {
        // Buffers and tables that commands like these leave behind.
        client.must(line);
        add(&mut client, kind, "k", 0..ITEMS);
        client.must("DEL k");
        let before = used_memory(&mut client);
        client.must(line);
        add(&mut client, kind, "k", 0..ITEMS);
        assert!(number(&mut client, kind, "k", FILTERS) > 5);
        let given = used_memory(&mut client) - before;
        assert_close(line, client.must("MEMORY USAGE k").int(), given);
        client.must("DEL k");
    }
}

#[test]
fn memory_of_filters_comes_back() {
    let (_server, mut client) = server_and_client();
    let round = |client: &mut Raw| {
        for kind in KINDS {
            client.must(&kind.reserve("k", 300));
            add(client, kind, "k", 0..5000);
            client.must("COPY k copy");
            let payload = client.must("DUMP k").bytes().to_vec();
            client.call([b"RESTORE".as_slice(), b"again", b"0", &payload]);
            // Refused halfway.
            let cut = &payload[..payload.len() / 2];
            client.call([b"RESTORE".as_slice(), b"none", b"0", cut]);
            client.must("DEL k");
            client.must("UNLINK again");
            client.must("FLUSHALL ASYNC");
        }
        client.must("BF.RESERVE a 0.01 100");
        client.must("BF.RESERVE b LIKE a");
        add(client, Kind::Bloom, "b", 0..1000);
        client.must("BF.MERGE a 1 b");
        client.must("BF.MERGE c 2 a b");
        client.must("FLUSHALL");
    };
    round(&mut client);
    round(&mut client);
    let before = used_memory(&mut client);
    for _ in 0..10 {
        round(&mut client);
    }
    // The last of it is given back in the background.
    eventually(SOON, || used_memory(&mut client) < before + 20_000);
}

/// Moving blocks while defragmenting must not damage them, also of a filter that takes several rounds.
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
    for kind in KINDS {
        let large = format!("large-{}", kind.family());
        client.must(&format!("{} EXPANSION 2", kind.reserve(&large, 50)));
        for number in 0..8000 {
            let key = format!("{}{number}", kind.family());
            client.must(&kind.reserve(&key, 20 + number % 300));
            client.call([&kind.name("ADD"), key.as_str(), "i0"]);
        }
        add(&mut client, kind, &large, 0..100_000);
    }
    let kept = |number: u64| number.is_multiple_of(7);
    for kind in KINDS {
        for number in (0..8000).filter(|number| !kept(*number)) {
            client.must(&format!("DEL {}{number}", kind.family()));
        }
    }
    let digest = server.digest();
    client.must("CONFIG SET activedefrag yes");
    eventually(SOON, || server.info_int("active_defrag_hits") > 1000);
    assert_eq!(server.digest(), digest);
    for kind in KINDS {
        let large = format!("large-{}", kind.family());
        assert_holds(&mut client, kind, &large, 0..100_000);
        add(&mut client, kind, &large, 100_000..110_000);
        assert_holds(&mut client, kind, &large, 0..110_000);
        for number in (0..8000).filter(|number| kept(*number)) {
            let key = format!("{}{number}", kind.family());
            assert_eq!(client.call([&kind.name("EXISTS"), key.as_str(), "i0"]), 1);
        }
    }
    assert_calm(&server);
}

// Eviction

#[test]
fn evicted_filters_are_gone_with_their_memory() {
    let (server, mut client) = server_and_client();
    for (kind, lazily) in [
        (Kind::Bloom, false),
        (Kind::Bloom, true),
        (Kind::Cuckoo, false),
        (Kind::Cuckoo, true),
    ] {
        let word = if lazily { "yes" } else { "no" };
        client.must(&format!("CONFIG SET lazyfree-lazy-eviction {word}"));
        client.must("CONFIG SET maxmemory 0");
        client.must("FLUSHALL");
        for number in 0..40 {
            let key = format!("k{number}");
            client.must(&kind.reserve(&key, 400_000));
            add(&mut client, kind, &key, 0..1000);
        }
        let evicted = server.info_int("evicted_keys");
        client.must("CONFIG SET maxmemory-policy allkeys-random");
        let limit = used_memory(&mut client) / 2;
        client.must(&format!("CONFIG SET maxmemory {limit}"));
        // Eviction goes on beside the commands.
        eventually(SOON, || {
            client.run("SET s v");
            field_of(&client.must("INFO memory"), "used_memory") < limit
        });
        assert!(server.info_int("evicted_keys") > evicted + 10);
        client.must("CONFIG SET maxmemory 0");
        let left = client.must("KEYS k*");
        // In the background the server evicts more than it has to, faster than memory is given back.
        assert!(lazily || !left.array().is_empty());
        eventually(SOON, || live(&server)[0] == left.array().len() as i64);
        for key in left.array() {
            assert_holds(&mut client, kind, key.text(), 0..1000);
        }
    }
    assert_calm(&server);
}

#[test]
fn large_filters_expire_by_themselves_and_give_their_memory_back() {
    let (server, mut client) = server_and_client();
    for kind in KINDS {
        let before = used_memory(&mut client);
        for number in 0..10 {
            let key = format!("k{number}");
            reserve_large(&mut client, kind, &key);
            client.must(&format!("PEXPIRE {key} {}", 20 + number));
        }
        // Nobody looks at them.
        eventually(SOON, || live(&server) == [0, 0, 0]);
        assert_eq!(client.run("DBSIZE"), 0);
        // Each of them is megabytes.
        eventually(SOON, || used_memory(&mut client) < before + 500_000);
    }
}
