//! Filters survive what servers live through, and go from one server to another in chunks.

use std::collections::BTreeMap;
use std::fs;

use crate::support::filter::{
    BAD_DATA, Chunk, FILTERS, ITEM_EXISTS, ITEMS, KINDS, Kind, MAX_CHUNK_BYTES, TOO_LARGE, add,
    add_named, assert_calm, assert_holds, chunk, dump, held, held_named, load, load_chunk, number,
    value_digest,
};
use crate::support::{
    Fsync, Lines, NOT_AN_INTEGER, Raw, SOON, Server, Shutdown, WRONGTYPE, encode, eventually, ways,
};

/// A filter that is made and then filled with the items `i0`, `i1`...
struct Spec {
    kind: Kind,
    key: &'static str,
    reserve: &'static str,
    items: u64,
}

const fn bloom(key: &'static str, reserve: &'static str, items: u64) -> Spec {
    let kind = Kind::Bloom;
    Spec {
        kind,
        key,
        reserve,
        items,
    }
}

const fn cuckoo(key: &'static str, reserve: &'static str, items: u64) -> Spec {
    let kind = Kind::Cuckoo;
    Spec {
        kind,
        key,
        reserve,
        items,
    }
}

/// Filters of every sort; without a reservation it is the first item that makes them.
const SPECS: [Spec; 25] = [
    bloom("bf-fresh", "BF.RESERVE % 0.01 1000", 0),
    bloom("bf-half", "BF.RESERVE % 0.01 1000", 500),
    bloom("bf-full", "BF.RESERVE % 0.001 1000 NONSCALING", 990),
    bloom("bf-default", "", 50),
    bloom("bf-scaled", "", 5000),
    bloom("bf-same", "BF.RESERVE % 0.01 100 EXPANSION 1", 900),
    bloom("bf-steep", "BF.RESERVE % 0.05 10 EXPANSION 40", 3000),
    bloom("bf-strict", "BF.RESERVE % 0.0000000001 300", 900),
    bloom("bf-lax", "BF.RESERVE % 0.9 1000", 1000),
    bloom("bf-tiny", "BF.RESERVE % 0.01 1 NONSCALING", 1),
    bloom("bf-two-segments", "BF.RESERVE % 0.01 300000", 4000),
    bloom("bf-sparse", "BF.RESERVE % 0.01 2000000", 5),
    bloom("bf-large", "BF.RESERVE % 0.01 16000000", 30_000),
    cuckoo("cf-fresh", "CF.RESERVE % 1000", 0),
    cuckoo("cf-half", "CF.RESERVE % 1000", 500),
    cuckoo("cf-full", "CF.RESERVE % 1000 EXPANSION 0", 1000),
    cuckoo("cf-default", "", 50),
    cuckoo("cf-scaled", "CF.RESERVE % 100 EXPANSION 2", 5000),
    cuckoo(
        "cf-same",
        "CF.RESERVE % 100 EXPANSION 1 MAXITERATIONS 5",
        900,
    ),
    cuckoo("cf-steep", "CF.RESERVE % 10 EXPANSION 64", 3000),
    cuckoo("cf-8", "CF.RESERVE % 500 BITS 8 EXPANSION 2", 1500),
    cuckoo(
        "cf-32",
        "CF.RESERVE % 500 BITS 32 BUCKETSIZE 7 EXPANSION 2",
        1500,
    ),
    cuckoo(
        "cf-single",
        "CF.RESERVE % 500 BUCKETSIZE 1 EXPANSION 4",
        1500,
    ),
    cuckoo(
        "cf-wide",
        "CF.RESERVE % 500 BUCKETSIZE 255 EXPANSION 2",
        1500,
    ),
    cuckoo("cf-sparse", "CF.RESERVE % 500000 BITS 32", 5),
];

/// Apart from the others, because it is slow to send about.
const LARGE_CUCKOO: Spec = cuckoo("cf-large", "CF.RESERVE % 5000000 BITS 32", 30_000);

impl Spec {
    fn make(&self, client: &mut Raw, key: &str) {
        if !self.reserve.is_empty() {
            client.must(&self.reserve.replace('%', key));
        }
        add(client, self.kind, key, 0..self.items);
    }

    /// How many more items there is room for.
    fn room(&self) -> u64 {
        match self.key {
            "bf-full" | "bf-tiny" | "cf-full" => 0,
            "cf-same" => 500,
            _ => 2000,
        }
    }

    /// The digest of the filter at a key after it has got more items.
    #[track_caller]
    fn grown(&self, client: &mut Raw, key: &str) -> String {
        add_named(client, self.kind, key, "more", 0..self.room());
        if self.kind == Kind::Cuckoo && self.items > 0 {
            assert_eq!(client.call(["CF.DEL", key, "i0"]), 1);
            client.call(["CF.COMPACT", key]);
            add(client, self.kind, key, 0..1);
        }
        assert_holds(client, self.kind, key, 0..self.items);
        value_digest(client, key)
    }
}

/// What a filter is, and what it will be when it has grown.
type Digests = BTreeMap<&'static str, (String, String)>;

fn fill(server: &Server) -> Digests {
    let mut client = Raw::connect(server);
    let mut digests = Digests::new();
    for spec in &SPECS {
        spec.make(&mut client, spec.key);
        let digest = value_digest(&mut client, spec.key);
        client.must(&format!("COPY {} control", spec.key));
        let grown = spec.grown(&mut client, "control");
        client.must("DEL control");
        digests.insert(spec.key, (digest, grown));
    }
    // What else may have become of a key.
    for line in [
        "BF.RESERVE base 0.01 100",
        "BF.RESERVE like LIKE base",
        "BF.MADD like a b c",
        "BF.MERGE base 1 like",
        "BF.MERGE united 2 base like",
        "CF.INSERT cf ITEMS a a b c",
        "CF.DEL cf a",
        "CF.DEL cf never",
        "COPY bf-scaled mortal",
        "PEXPIRE mortal 900000",
        "RENAME like renamed",
        "SELECT 3",
        "BF.ADD elsewhere a",
        "CF.ADDNX elsewhere-too a",
        "SELECT 0",
    ] {
        client.must(line);
    }
    client.transact(["BF.MADD base d e", "CF.ADD cf d"]);
    let script = "redis.call('BF.ADD', KEYS[1], 'in script'); return redis.call('CF.ADD', KEYS[2], 'in script')";
    assert!(!client.call(["EVAL", script, "2", "base", "cf"]).is_err());
    let chunks = dump(&mut client, Kind::Bloom, "bf-scaled");
    load(&mut client, Kind::Bloom, "loaded", &chunks);
    let odd: &[u8] = b"\0\xff\r\n odd";
    client.call([b"BF.ADD".as_slice(), odd, odd]);
    client.call([b"CF.ADD".as_slice(), b"cf\0", odd]);
    digests
}

#[track_caller]
fn assert_kept(server: &Server, digests: &Digests) {
    let mut client = Raw::connect(server);
    for spec in &SPECS {
        let (digest, grown) = &digests[spec.key];
        assert_eq!(&value_digest(&mut client, spec.key), digest, "{}", spec.key);
        assert_holds(&mut client, spec.kind, spec.key, 0..spec.items);
        assert_eq!(&spec.grown(&mut client, spec.key), grown, "{}", spec.key);
    }
    for (line, expected) in [
        ("BF.EXISTS base d", 1),
        ("BF.CARD united", 6),
        ("CF.COUNT cf a", 1),
        (
            "BF.CARD loaded",
            number(&mut client, Kind::Bloom, "mortal", ITEMS),
        ),
    ] {
        assert_eq!(client.run(line), expected, "{line}");
    }
    assert!(client.run("PTTL mortal").int() > 0);
    client.must("BF.MERGE renamed 1 base");
    let odd: &[u8] = b"\0\xff\r\n odd";
    assert_eq!(client.call([b"BF.EXISTS".as_slice(), odd, odd]), 1);
    assert_eq!(client.call([b"CF.EXISTS".as_slice(), b"cf\0", odd]), 1);
    client.must("SELECT 3");
    assert_eq!(client.run("BF.EXISTS elsewhere a"), 1);
    assert_eq!(client.run("CF.EXISTS elsewhere-too a"), 1);
    assert_calm(server);
}

#[test]
fn all_ways_to_save_and_load_keep_everything_and_it_goes_on_the_same_way() {
    let filled = |server: &Server| (fill(server), server.digest());
    ways::walk(filled, |server, (digests, of_all)| {
        assert_eq!(&server.digest(), of_all);
        assert_kept(server, digests);
    });
}

/// With a limit that was lowered since, or `maxmemory`: what is there stays.
#[test]
fn limits_that_are_lower_now_do_not_keep_filters_from_being_loaded() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
        Server::builder()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", "no"),
    ] {
        let server = builder.start();
        let (digests, of_all) = (fill(&server), server.digest());
        server.command(["CONFIG", "SET", "sluice.bloom-max-bytes", "1000"]);
        if server.info_int("aof_enabled") == 1 {
            server.command(["DEBUG", "LOADAOF"]);
            server.rewrite_aof();
            server.command(["DEBUG", "LOADAOF"]);
        } else {
            server.command(["DEBUG", "RELOAD"]);
        }
        server.command(["CONFIG", "SET", "sluice.bloom-max-bytes", "1073741824"]);
        assert_eq!(server.digest(), of_all);
        assert_kept(&server, &digests);
    }
}

/// A server that is killed while clients add has every item whose addition it has confirmed.
#[test]
fn a_crash_loses_no_confirmed_item() {
    for kind in KINDS {
        let server = Server::builder().aof(Fsync::Always).start();
        let mut confirmed = [0; 3];
        for round in 0..3 {
            std::thread::scope(|scope| {
                let adders = confirmed.iter_mut().enumerate().map(|(number, confirmed)| {
                    let mut client = Raw::connect(&server);
                    scope.spawn(move || {
                        loop {
                            let item = format!("w{number}-{confirmed}");
                            let command: [Vec<u8>; 3] =
                                [kind.name("ADD").into(), b"k".to_vec(), item.into()];
                            client.send_bytes(&encode(&command));
                            match client.try_read(SOON) {
                                Ok(Some(reply)) => assert!(!reply.is_err(), "{reply:?}"),
                                _ => return,
                            }
                            *confirmed += 1;
                        }
                    })
                });
                let adders: Vec<_> = adders.collect();
                let goal = 400 * (round + 1);
                let mut client = Raw::connect(&server);
                eventually(SOON, || {
                    client.run("EXISTS k") == 1 && number(&mut client, kind, "k", ITEMS) > goal
                });
                server.kill9();
                drop(adders);
            });
            server.restart();
            let mut client = Raw::connect(&server);
            for (number, confirmed) in confirmed.iter().enumerate() {
                for item in 0..*confirmed {
                    let item = format!("w{number}-{item}");
                    let held = client.call([&kind.name("EXISTS"), "k", item.as_str()]);
                    assert_eq!(held, 1, "{kind:?} {item}");
                }
            }
            let _ = round;
        }
        let mut client = Raw::connect(&server);
        assert!(
            number(&mut client, kind, "k", FILTERS) > 1,
            "none has grown"
        );
    }
}

/// Each merge adds the numbers of items, so that eighty of them reach the most that a filter counts.
#[test]
fn a_filter_that_was_merged_until_its_count_ends_is_loaded_as_it_was_saved() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("BF.RESERVE a 0.01 100");
    client.must("BF.RESERVE b LIKE a");
    client.must("BF.MADD a x");
    client.must("BF.MADD b y");
    for _ in 0..45 {
        client.must("BF.MERGE a 1 b");
        client.must("BF.MERGE b 1 a");
    }
    let most = 1 << 52;
    assert_eq!(client.must("BF.CARD a"), most);
    client.must("BF.MADD a new newer");
    let card = client.must("BF.CARD a").int();
    let payload = client.must("DUMP a").bytes().to_vec();
    let restored = client.call([b"RESTORE".as_slice(), b"again", b"0", &payload]);
    assert!(card <= most, "BF.CARD: {card}");
    assert_eq!(restored, "OK");
    let digest = server.digest();
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    assert_eq!(server.digest(), digest);
}

// The append-only file

/// The lengths of all strings in a file of commands.
fn lengths(bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut at = 0;
    let line = |at: &mut usize| {
        let end = bytes[*at..].iter().position(|byte| *byte == b'\r');
        let end = *at + end.expect("a line");
        let text = std::str::from_utf8(&bytes[*at + 1..end]).expect("a number");
        let number: usize = text.parse().expect("a number");
        let kind = bytes[*at];
        *at = end + 2;
        (kind, number)
    };
    while at < bytes.len() {
        if bytes[at] == b'#' {
            // A note of the server's.
            at += bytes[at..]
                .iter()
                .position(|byte| *byte == b'\n')
                .expect("a line")
                + 1;
            continue;
        }
        let (kind, count) = line(&mut at);
        assert_eq!(kind, b'*');
        for _ in 0..count {
            let (kind, length) = line(&mut at);
            assert_eq!(kind, b'$');
            lengths.push(length);
            at += length + 2;
        }
    }
    lengths
}

#[test]
fn a_large_filter_is_rewritten_in_pieces() {
    for kind in KINDS {
        let server = Server::builder()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", "no")
            .start();
        let mut client = Raw::connect(&server);
        client.must(match kind {
            Kind::Bloom => "BF.RESERVE k 0.01 16000000",
            Kind::Cuckoo => "CF.RESERVE k 5000000 BITS 32",
        });
        add(&mut client, kind, "k", 0..30_000);
        client.must(&kind.reserve("sparse", 4_000_000));
        add(&mut client, kind, "sparse", 0..1);
        client.must("PEXPIRE k 900000");
        server.rewrite_aof();
        let base = fs::read(server.aof_file(".base.")).unwrap();
        let lengths = lengths(&base);
        let most = *lengths.iter().max().expect("some");
        assert!(most <= 1 << 20, "{kind:?}: a string of {most}");
        let size = number(&mut client, kind, "k", "Size") as usize;
        assert!(
            size > MAX_CHUNK_BYTES && base.len() > size,
            "{}",
            base.len()
        );
        // Of the other one only what is used.
        assert!(base.len() < size + 1_000_000, "{}", base.len());
        let incremental = fs::read(server.aof_file(".incr.")).unwrap();
        assert!(incremental.len() < 1000);
        let digest = server.digest();
        server.crash();
        assert_eq!(server.digest(), digest);
        let mut client = Raw::connect(&server);
        assert_holds(&mut client, kind, "k", 0..30_000);
        assert!(client.run("PTTL k").int() > 0);
    }
}

#[test]
fn items_that_come_while_the_file_is_rewritten_are_kept() {
    for preamble in ["yes", "no"] {
        let server = Server::builder()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", preamble)
            .config("rdb-key-save-delay", "20000")
            .start();
        let mut client = Raw::connect(&server);
        for kind in KINDS {
            client.must(&kind.reserve(kind.family(), 100));
            add(&mut client, kind, kind.family(), 0..50);
        }
        client.must("BGREWRITEAOF");
        for kind in KINDS {
            add(&mut client, kind, kind.family(), 50..1500);
        }
        server.await_rewrite();
        for kind in KINDS {
            add(&mut client, kind, kind.family(), 1500..1600);
        }
        let digest = server.digest();
        server.crash();
        assert_eq!(server.digest(), digest);
        let mut client = Raw::connect(&server);
        for kind in KINDS {
            assert_holds(&mut client, kind, kind.family(), 0..1600);
        }
    }
}

// SCANDUMP and LOADCHUNK

#[test]
fn a_filter_that_is_loaded_in_chunks_is_the_same_and_goes_on_the_same_way() {
    let (one, other) = (Server::start(), Server::start());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    for spec in SPECS.iter().chain([&LARGE_CUCKOO]) {
        let key = spec.key;
        spec.make(&mut here, key);
        let chunks = dump(&mut here, spec.kind, key);
        if key.ends_with("-large") {
            assert!(chunks.len() > 2, "{key}");
        }
        if key.ends_with("-fresh") {
            assert_eq!(chunks.len(), 1, "{key}: all of it is zeros");
        }
        if key.ends_with("-sparse") {
            let bytes: usize = chunks.iter().map(|(_, data)| data.len()).sum();
            assert!(bytes < 4 << 20, "{key}: {bytes}");
        }
        let digest = value_digest(&mut here, key);
        load(&mut there, spec.kind, key, &chunks);
        assert_eq!(value_digest(&mut there, key), digest, "{key}");
        assert_holds(&mut there, spec.kind, key, 0..spec.items);
        let info = [spec.kind.name("INFO"), key.to_owned()];
        assert_eq!(there.call(&info), here.call(&info), "{key}");
        assert_eq!(
            spec.grown(&mut there, key),
            spec.grown(&mut here, key),
            "{key}"
        );
        // Nothing is lost when chunks come twice, as after a lost reply.
        let mut again = Raw::connect(&other);
        again.must("SELECT 1");
        for (iterator, data) in &chunks {
            assert_eq!(
                load_chunk(&mut again, spec.kind, key, *iterator, data),
                "OK"
            );
            if *iterator > 1 {
                assert_eq!(
                    load_chunk(&mut again, spec.kind, key, *iterator, data),
                    "OK"
                );
            }
        }
        assert_eq!(value_digest(&mut again, key), digest, "{key}");
        for client in [&mut here, &mut there, &mut again] {
            client.must(&format!("DEL {key}"));
        }
    }
    assert_calm(&other);
}

#[test]
fn chunks_may_come_in_any_order_after_the_first() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for spec in [&SPECS[12], &LARGE_CUCKOO] {
        spec.make(&mut client, "k");
        let chunks = dump(&mut client, spec.kind, "k");
        load(&mut client, spec.kind, "again", &chunks[..1]);
        let rest: Vec<Chunk> = chunks[1..].iter().rev().cloned().collect();
        assert!(rest.len() > 1);
        load(&mut client, spec.kind, "again", &rest);
        let digest = value_digest(&mut client, "k");
        assert_eq!(value_digest(&mut client, "again"), digest);
        client.must("FLUSHALL");
    }
}

/// A filter, its chunks, and a key that has the first of them already.
fn half_loaded(client: &mut Raw, kind: Kind) -> Vec<Chunk> {
    client.must("FLUSHALL");
    client.must(&kind.reserve("k", 3000));
    add(client, kind, "k", 0..1000);
    let chunks = dump(client, kind, "k");
    assert_eq!(chunks.len(), 2);
    load(client, kind, "half", &chunks[..1]);
    chunks
}

#[test]
fn damaged_chunks_are_refused_and_change_nothing() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for kind in KINDS {
        let chunks = half_loaded(&mut client, kind);
        let digest = server.digest();
        for (key, (iterator, data)) in ["new", "half"].iter().zip(&chunks) {
            let step = (data.len() / 400).max(1);
            let mut refused = |iterator: i64, data: &[u8], what: &str| {
                let reply = load_chunk(&mut client, kind, key, iterator, data);
                assert_eq!(reply.err(), BAD_DATA, "{kind:?} {what}");
            };
            for cut in (0..data.len()).step_by(step) {
                refused(*iterator, &data[..cut], "cut");
                // A piece is found by its end.
                let missing = (data.len() - cut) as i64;
                if *iterator > missing + 1 {
                    refused(*iterator - missing, &data[..cut], "cut, at another end");
                }
                refused(*iterator, &data[cut + 1..], "cut in front");
            }
            for bit in (0..data.len() * 8).step_by(step) {
                let mut flipped = data.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                refused(*iterator, &flipped, "flipped");
            }
            refused(*iterator, b"", "empty");
            refused(*iterator, &[data, b"x".as_slice()].concat(), "longer");
            refused(
                *iterator,
                &[b"x", data.as_slice()].concat(),
                "longer in front",
            );
        }
        assert_eq!(server.digest(), digest);
        load(&mut client, kind, "half", &chunks[1..]);
        let whole = value_digest(&mut client, "k");
        assert_eq!(value_digest(&mut client, "half"), whole);
    }
    assert_calm(&server);
}

#[test]
fn chunks_that_do_not_belong_are_refused_and_change_nothing() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for kind in KINDS {
        let chunks = half_loaded(&mut client, kind);
        let [(_, head), (end, piece)] = chunks.as_slice() else {
            panic!("two chunks");
        };
        // Filters of other seeds, sizes, kinds.
        client.must(&kind.reserve("twin", 3000));
        add(&mut client, kind, "twin", 0..1000);
        client.must(&kind.reserve("small", 10));
        client.must(&kind.other().reserve("other", 3000));
        client.must("SET string v");
        let digest = server.digest();
        let mut refused = |kind: Kind, key: &str, iterator: i64, data: &[u8], error: &str| {
            let reply = load_chunk(&mut client, kind, key, iterator, data);
            assert_eq!(reply.err(), error, "{kind:?} {key} {iterator}");
        };
        for key in ["twin", "small"] {
            refused(kind, key, *end, piece, BAD_DATA);
            refused(kind, key, 1, head, ITEM_EXISTS);
        }
        refused(kind, "k", 1, head, ITEM_EXISTS);
        refused(kind, "half", 1, head, ITEM_EXISTS);
        refused(kind, "half", 1, b"nonsense", ITEM_EXISTS);
        for iterator in [2, *end - 1, *end + 1, *end + 64, 2 * *end, 1 << 52] {
            refused(kind, "half", iterator, piece, BAD_DATA);
        }
        refused(kind, "half", *end, head, BAD_DATA);
        refused(kind, "none", 1, piece, BAD_DATA);
        refused(kind, "none", *end, piece, kind.missing());
        refused(kind.other(), "none", 1, head, BAD_DATA);
        refused(kind.other(), "other", *end, piece, BAD_DATA);
        refused(kind.other(), "half", *end, piece, WRONGTYPE);
        refused(kind, "string", 1, head, WRONGTYPE);
        refused(kind, "string", *end, piece, WRONGTYPE);
        for iterator in [0, -1, i64::MIN, 1 << 53, i64::MAX] {
            for key in ["half", "none"] {
                let reply = load_chunk(&mut client, kind, key, iterator, piece);
                assert!(reply.err().starts_with("ERR iterator must be"), "{reply:?}");
            }
        }
        let reply = client.call([&kind.name("LOADCHUNK"), "half", "x", "y"]);
        assert_eq!(reply.err(), NOT_AN_INTEGER);
        assert_eq!(server.digest(), digest);
    }
}

/// What another has put into a slot of the table since must not be lost.
#[test]
fn a_chunk_for_a_cuckoo_filter_that_has_got_items_since_loses_none_of_them() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let chunks = half_loaded(&mut client, Kind::Cuckoo);
    add_named(&mut client, Kind::Cuckoo, "half", "new", 0..500);
    let (end, piece) = &chunks[1];
    let reply = load_chunk(&mut client, Kind::Cuckoo, "half", *end, piece);
    let new = held_named(&mut client, Kind::Cuckoo, "half", "new", 0..500);
    assert_eq!(new, 500, "{reply:?}");
    assert_eq!(reply.err(), BAD_DATA);
}

#[test]
fn loading_chunks_keeps_to_the_limit_for_filters() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for kind in KINDS {
        client.must("CONFIG SET sluice.bloom-max-bytes 1073741824");
        client.must(&kind.reserve("k", 1_000_000));
        let (iterator, head) = chunk(&mut client, kind, "k", 0);
        client.must("CONFIG SET sluice.bloom-max-bytes 1000000");
        let refused = server.info_int("sluice_filter_refused_memory");
        let reply = load_chunk(&mut client, kind, "again", iterator, &head);
        assert_eq!(reply.err(), TOO_LARGE);
        assert_eq!(server.info_int("sluice_filter_refused_memory"), refused + 1);
        assert_eq!(client.run("EXISTS again"), 0);
        client.must("FLUSHALL");
    }
}

#[test]
fn a_dump_goes_on_from_any_place_and_ends() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for kind in KINDS {
        client.must(&kind.reserve("k", 3000));
        add(&mut client, kind, "k", 0..1000);
        let (end, _) = chunk(&mut client, kind, "k", 1);
        let (_, head) = chunk(&mut client, kind, "k", 0);
        for iterator in [end, end + 1, 1 << 40, (1 << 53) - 1] {
            assert_eq!(chunk(&mut client, kind, "k", iterator), (0, Vec::new()));
        }
        // From the middle on, what is before is missing.
        let half = (end - 1) / 2;
        let rest = chunk(&mut client, kind, "k", half + 1);
        assert_eq!(rest.0, end);
        load(&mut client, kind, "rest", &[(1, head), rest]);
        assert!(held(&mut client, kind, "rest", 0..1000) < 1000);
        for iterator in ["-1", "9007199254740992", "9223372036854775807"] {
            let reply = client.call([&kind.name("SCANDUMP"), "k", iterator]);
            assert!(reply.err().starts_with("ERR iterator must be"), "{reply:?}");
        }
        let reply = client.call([&kind.name("SCANDUMP"), "none", "0"]);
        assert_eq!(reply.err(), kind.missing());
        client.must("FLUSHALL");
    }
}

// A dump that is taken while the filter changes

/// Takes a dump, with something done after each chunk, and loads it under another name. The end says how it went.
#[track_caller]
fn dumped_while(
    client: &mut Raw,
    kind: Kind,
    mut meanwhile: impl FnMut(&mut Raw, usize),
) -> Result<usize, String> {
    let mut iterator = 0;
    for number in 0.. {
        let (next, data) = chunk(client, kind, "k", iterator);
        if next == 0 {
            return Ok(number);
        }
        let reply = load_chunk(client, kind, "copy", next, &data);
        if reply.is_err() {
            return Err(format!("chunk {number}: {reply:?}"));
        }
        meanwhile(client, number);
        iterator = next;
    }
    unreachable!()
}

#[test]
fn a_bloom_filter_that_gets_items_while_it_is_dumped_is_dumped_with_all_that_it_had() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("BF.RESERVE k 0.01 30000000");
    add(&mut client, Kind::Bloom, "k", 0..50_000);
    let chunks = dumped_while(&mut client, Kind::Bloom, |client, number| {
        add_named(client, Kind::Bloom, "k", &format!("n{number}-"), 0..5000);
    });
    assert!(chunks.expect("loaded") > 2);
    assert_holds(&mut client, Kind::Bloom, "copy", 0..50_000);
}

/// The head tells of fewer layers than there are when the chunks follow.
#[track_caller]
fn grows_while_it_is_dumped(kind: Kind) {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must(&kind.reserve("k", 100));
    add(&mut client, kind, "k", 0..100);
    let chunks = dumped_while(&mut client, kind, |client, number| {
        if number < 4 {
            add_named(client, kind, "k", &format!("n{number}-"), 0..300);
        }
    });
    if let Err(refusal) = chunks {
        panic!("the dump cannot be loaded: {refusal}");
    }
    assert_holds(&mut client, kind, "copy", 0..100);
}

#[test]
fn a_bloom_filter_that_grows_while_it_is_dumped_is_dumped_with_all_that_it_had() {
    grows_while_it_is_dumped(Kind::Bloom);
}

#[test]
fn a_cuckoo_filter_that_grows_while_it_is_dumped_is_dumped_with_all_that_it_had() {
    grows_while_it_is_dumped(Kind::Cuckoo);
}
