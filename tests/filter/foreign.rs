//! Filters of RedisBloom and valkey-bloom: they answer as they did there, grow, and go on. `tests/data/foreign/README.md` says how the data was made.

use sluice::filter::foreign::chain::Chain;
use sluice::filter::foreign::sip_chain::{BITMAP_HEADER_BYTES, SipChain, SipLink};
use sluice::filter::foreign::tables::{Hashing, Tables};
use sluice::filter::foreign::{ForeignHeader, ForeignLayers, ForeignShape};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::corruption::{FOOTER, sealed};
use crate::support::filter::{
    BAD_DATA, Chunk, FILTERS, ITEMS, Kind, TOO_LARGE, add, answers_of, assert_calm, assert_holds,
    dump, held_named, load, load_chunk, number, value_digest,
};
use crate::support::{
    Fsync, Lines, Raw, Server, Value, assert_identical, compile, pair, server_and_client,
    wait_for_replica_sync,
};

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/foreign");
    fs::read(path.join(name)).expect(name)
}

/// What the other module answered about a filter.
#[derive(Debug, Clone)]
struct Answers {
    items: i64,
    found: u64,
    digest: u64,
    counts: u64,
}

/// The folders of the data: that of RedisBloom 2.2, and those of other versions.
const FOLDERS: [&str; 4] = ["", "1.0/", "2.0/", "8.8/"];

/// All filters of the data but those of a million items. The name of a filter begins with its folder.
fn filters() -> BTreeMap<String, Answers> {
    let mut filters = all_filters();
    filters.retain(|name, _| !name.ends_with("-million"));
    filters
}

/// All filters of the data.
fn all_filters() -> BTreeMap<String, Answers> {
    let files = FOLDERS.map(|folder| (folder, "answers.txt"));
    let files = files.into_iter().chain([("", "answers-valkey.txt")]);
    files.flat_map(filters_of).collect()
}

/// The filters of a file of answers.
fn filters_of((folder, file): (&str, &str)) -> BTreeMap<String, Answers> {
    let text = String::from_utf8(data(&format!("{folder}{file}"))).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let filters = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let hex = |word: &str| u64::from_str_radix(word, 16).expect("a digest");
        let answers = Answers {
            items: words[1].parse().expect("a number"),
            found: words[2].parse().expect("a number"),
            digest: hex(words[3]),
            counts: hex(words[4]),
        };
        (format!("{folder}{}", words[0]), answers)
    });
    filters.collect()
}

/// The name of a filter without its folder.
fn stem(name: &str) -> &str {
    name.rsplit('/').next().expect("a name")
}

pub(crate) fn kind_of(name: &str) -> Kind {
    if stem(name).starts_with("cf") {
        Kind::Cuckoo
    } else {
        Kind::Bloom
    }
}

fn is_of_valkey_bloom(name: &str) -> bool {
    stem(name).starts_with("vb")
}

fn is_cuckoo_of_2_0(name: &str) -> bool {
    name.starts_with("2.0/cf")
}

/// Whether the filter has a format that newer versions of RedisBloom do not write.
fn has_old_format(name: &str) -> bool {
    name.starts_with("1.0/") || name.starts_with("2.0/")
}

/// The RDB version of Redis 7.0, which all tested servers load.
pub(crate) const RDB_VERSION: u16 = 10;

/// The payload of `DUMP`, with an RDB version that all tested servers load.
pub(crate) fn payload(name: &str) -> Vec<u8> {
    let mut payload = data(&format!("{name}.dump"));
    payload.truncate(payload.len() - FOOTER);
    payload.extend(RDB_VERSION.to_le_bytes());
    sealed(payload)
}

fn type_of(name: &str) -> &'static str {
    match kind_of(name) {
        Kind::Bloom if is_of_valkey_bloom(name) => "bloomfltr",
        Kind::Bloom => "MBbloom--",
        Kind::Cuckoo => "MBbloomCF",
    }
}

/// The chunks of `SCANDUMP`.
pub(crate) fn chunks(name: &str) -> Vec<Chunk> {
    records(&format!("{name}.chunks"))
}

/// The records of a file: a number, and bytes.
fn records(file: &str) -> Vec<Chunk> {
    let bytes = data(file);
    let mut rest = &bytes[..];
    let mut chunks = Vec::new();
    while let Some((head, more)) = rest.split_at_checked(16) {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (chunk, more) = more.split_at(word(8) as usize);
        chunks.push((word(0) as i64, chunk.to_vec()));
        rest = more;
    }
    chunks
}

/// FNV-1a of 64 bits.
fn fnv(values: impl Iterator<Item = u8>) -> u64 {
    values.fold(0xcbf2_9ce4_8422_2325, |digest, value| {
        (digest ^ u64::from(value)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The pure filter of valkey-bloom.
fn pure_of_valkey_bloom(name: &str) -> ForeignLayers {
    let parts = records(&format!("{name}.parts"));
    let (_, numbers) = &parts[0];
    let words = numbers
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(u64::from_le_bytes);
    let words: Vec<_> = words.collect();
    let read = |(capacity, bitmap): &Chunk| SipLink::read(bitmap, *capacity as u64);
    let links = parts[1..].iter().map(|part| read(part).expect("a link"));
    let (links, seeds): (Vec<_>, Vec<_>) = links.unzip();
    let chain = SipChain {
        expansion: words[0],
        error: f64::from_bits(words[1]),
        tightening: f64::from_bits(words[2]),
        is_seed_random: words[3] == 1,
        seed: seeds[0],
        links,
        last_items: words[4],
    };
    let header = ForeignHeader {
        shape: ForeignShape::SipChain(chain.check().expect("a chain")),
        is_original: true,
    };
    let mut filter = header.build().expect("memory");
    for (index, (_, bitmap)) in parts[1..].iter().enumerate() {
        let bits = &bitmap[BITMAP_HEADER_BYTES..];
        filter.set_array(index, bits).expect("the bits");
    }
    filter
}

/// Whether there are chunks of the filter. RedisBloom dumps no cuckoo filter without items.
fn has_chunks(name: &str) -> bool {
    stem(name) != "cf-empty"
}

/// The pure filter.
fn pure(name: &str) -> ForeignLayers {
    if is_of_valkey_bloom(name) {
        return pure_of_valkey_bloom(name);
    }
    let chunks = chunks(name);
    let (_, header) = &chunks[0];
    let shape = match kind_of(name) {
        Kind::Bloom => ForeignShape::Chain(Chain::read_dump(header).expect("a header")),
        Kind::Cuckoo => ForeignShape::Tables(Tables::read_dump(header).expect("a header")),
    };
    let header = ForeignHeader {
        shape,
        is_original: true,
    };
    let mut filter = header.build().expect("memory");
    for (iterator, chunk) in &chunks[1..] {
        filter
            .load_chunk(*iterator as u64 - 1, chunk)
            .expect("a chunk");
    }
    filter
}

/// A million answers are those of the other module: the same true and the same false positives.
#[test]
fn a_million_answers_of_each_filter_are_those_of_the_other_module() {
    for (name, answers) in filters() {
        if !has_chunks(&name) {
            continue;
        }
        let filter = pure(&name);
        let item = |number: u64| format!("i{number}").into_bytes();
        let held: Vec<u8> = (0..1_000_000)
            .map(|number| filter.holds(&item(number)).into())
            .collect();
        let found = held.iter().map(|held| u64::from(*held)).sum::<u64>();
        assert_eq!(found, answers.found, "{name}");
        assert_eq!(fnv(held.into_iter()), answers.digest, "{name}");
        if kind_of(&name) == Kind::Cuckoo {
            let counts = (0..10_000).map(|number| filter.count(&item(number)) as u8);
            assert_eq!(fnv(counts), answers.counts, "{name}");
        }
        assert_eq!(filter.shape.items() as i64, answers.items, "{name}");
    }
}

/// Asks the server about some thousand items.
#[track_caller]
fn assert_same_answers(client: &mut Raw, name: &str, key: &str) {
    const ASKED: u64 = 20_000;
    let kind = kind_of(name);
    let held = held_named(client, kind, key, "i", 0..ASKED);
    let expected = if !has_chunks(name) {
        0
    } else {
        let filter = pure(name);
        let is_held = |number: &u64| filter.holds(format!("i{number}").as_bytes());
        (0..ASKED).filter(is_held).count() as u64
    };
    assert_eq!(held, expected, "{name}");
    assert_eq!(number(client, kind, key, ITEMS), filters()[name].items);
}

#[track_caller]
fn restore(client: &mut Raw, name: &str, key: &str) -> Value {
    client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", &payload(name)])
}

/// A payload without its RDB version and its checksum.
pub(crate) fn body(payload: &[u8]) -> &[u8] {
    &payload[..payload.len() - FOOTER]
}

#[test]
fn a_restored_filter_is_unchanged_until_it_is_changed() {
    let server = Server::builder().config("rdbcompression", "no").start();
    let mut client = Raw::connect(&server);
    for name in filters().keys() {
        assert_eq!(restore(&mut client, name, name), "OK");
        assert_eq!(client.must(&format!("TYPE {name}")), type_of(name));
        assert_same_answers(&mut client, name, name);
        let digest = value_digest(&mut client, name);
        client.must(&format!("COPY {name} copy REPLACE"));
        assert_eq!(value_digest(&mut client, "copy"), digest);
        client.must("DEBUG RELOAD");
        assert_eq!(value_digest(&mut client, name), digest);
        assert_same_answers(&mut client, name, name);
        let dumped = client.must(&format!("DUMP {name}"));
        if !has_old_format(name) {
            assert!(body(dumped.bytes()) == body(&payload(name)), "{name}");
        }
        // What is in it already changes nothing.
        if kind_of(name) == Kind::Bloom && filters()[name].items > 0 {
            assert_eq!(client.must(&format!("BF.ADD {name} i0")), 0);
            assert_eq!(client.must(&format!("TYPE {name}")), type_of(name));
        }
    }
    let foreign = filters().len() as i64 + 1; // and a copy
    assert_eq!(server.info_int("sluice_filter_foreign"), foreign);
    assert_calm(&server);
}

#[test]
fn the_chunks_of_redisbloom_are_loaded_and_made() {
    let (_server, mut client) = server_and_client();
    let with_chunks = |name: &&String| has_chunks(name) && !is_of_valkey_bloom(name);
    for name in filters().keys().filter(with_chunks) {
        let kind = kind_of(name);
        load(&mut client, kind, name, &chunks(name));
        assert_eq!(client.must(&format!("TYPE {name}")), type_of(name));
        assert_same_answers(&mut client, name, name);
        let dumped = dump(&mut client, kind, name);
        if has_old_format(name) && kind == Kind::Bloom {
            // The first chunk has the newest layout.
            let read = |chunk: &Chunk| Chain::read_dump(&chunk.1).expect("a header");
            assert_eq!(read(&dumped[0]), read(&chunks(name)[0]), "{name}");
            assert_eq!(dumped[1..], chunks(name)[1..], "{name}");
        } else {
            assert_eq!(dumped, chunks(name), "{name}");
        }
        if name == "2.0/cf-deleted" {
            continue; // RedisBloom 2.0 saves the number of deleted items in chunks only
        }
        assert_eq!(restore(&mut client, name, "restored"), "OK");
        let digest = value_digest(&mut client, "restored");
        assert_eq!(value_digest(&mut client, name), digest);
        client.must("DEL restored");
    }
}

/// The iterator is the end of a chunk, so the bytes of a shorter one would come to the wrong place.
#[test]
fn a_chunk_must_follow_the_one_before() {
    let (_server, mut client) = server_and_client();
    for name in ["bf-wide", "cf-four"] {
        let kind = kind_of(name);
        let load = |client: &mut Raw, chunk: &Chunk, bytes: &[u8]| {
            let command = kind.name("LOADCHUNK");
            let iterator = chunk.0.to_string();
            client.call([command.as_bytes(), b"k", iterator.as_bytes(), bytes])
        };
        let chunks = chunks(name);
        assert!(chunks.len() > 3, "{name}");
        assert_eq!(load(&mut client, &chunks[0], &chunks[0].1), "OK");
        for end in [1, chunks[1].1.len() / 2, chunks[1].1.len() - 1] {
            let reply = load(&mut client, &chunks[1], &chunks[1].1[..end]);
            assert_eq!(reply.err(), "ERR received bad data", "{name} {end}");
        }
        let skipped = load(&mut client, &chunks[2], &chunks[2].1);
        assert_eq!(skipped.err(), "ERR received bad data", "{name}");
        // A lost reply is no reason to begin again.
        for chunk in [1, 1, 2, 1, 2] {
            assert_eq!(
                load(&mut client, &chunks[chunk], &chunks[chunk].1),
                "OK",
                "{name} {chunk}"
            );
        }
        for chunk in &chunks[3..] {
            assert_eq!(load(&mut client, chunk, &chunk.1), "OK", "{name}");
        }
        client.must("RENAME k loaded");
        assert_same_answers(&mut client, name, "loaded");
        client.must("DEL loaded");
    }
}

/// A chunk has no check, so one that would remove items is refused.
#[test]
fn no_chunk_removes_items_of_a_filter_that_is_complete() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    for name in ["bf-wide", "cf-four", "2.0/cf-default"] {
        let kind = kind_of(name);
        assert_eq!(restore(&mut client, name, name), "OK");
        let digest = value_digest(&mut client, name);
        for (iterator, chunk) in &chunks(name)[1..] {
            for other in [vec![0; chunk.len()], vec![0x5a; chunk.len()]] {
                let reply = load_chunk(&mut client, kind, name, *iterator, &other);
                assert_eq!(reply.err(), BAD_DATA, "{name} {iterator}");
            }
            assert_eq!(load_chunk(&mut client, kind, name, *iterator, chunk), "OK");
        }
        assert_eq!(value_digest(&mut client, name), digest, "{name}");
    }
}

/// A server that restarts, and a copy, go on where the chunks ended.
#[test]
fn chunks_go_on_after_a_restart_and_under_another_name() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    for name in ["bf-wide", "cf-four", "2.0/cf-default"] {
        let kind = kind_of(name);
        let chunks = chunks(name);
        client.must("DEL first second third fourth");
        // The rewritten AOF has all chunks.
        load(&mut client, kind, "fourth", &chunks[..2]);
        server.rewrite_aof();
        client.must("DEBUG LOADAOF");
        load(&mut client, kind, "fourth", &chunks[2..]);
        load(&mut client, kind, "first", &chunks[..2]);
        client.must("COPY first second");
        client.must("RENAME first third");
        load(&mut client, kind, "second", &chunks[2..]);
        client.must("DEBUG RELOAD");
        load(&mut client, kind, "third", &chunks[2..]);
        for key in ["second", "third", "fourth"] {
            assert_same_answers(&mut client, name, key);
            client.must("DEBUG LOADAOF");
            assert_same_answers(&mut client, name, key);
        }
    }
}

/// `SCANDUMP` and the AOF read each byte once.
#[test]
fn chunks_of_any_size_are_the_bytes_of_the_arrays() {
    for name in ["bf-wide", "cf-four", "2.0/cf-default"] {
        let filter = pure(name);
        let count = filter.shape.count();
        let whole: Vec<u8> = (0..count).flat_map(|index| filter.array(index)).collect();
        for most in [2, 1000, 4096, 1 << 20] {
            let all: Vec<_> = filter.chunks(most).collect();
            let bytes: Vec<u8> = all.iter().flat_map(|(_, piece)| piece.clone()).collect();
            assert!(bytes == whole, "{name} {most}");
            let (mut from, mut stepwise) = (0, Vec::new());
            while let Some((end, piece)) = filter.chunk(from, most) {
                assert!((1..=most).contains(&piece.len()));
                stepwise.push((end, piece));
                from = end;
            }
            assert!(stepwise == all, "{name} {most}");
        }
    }
}

/// RedisBloom has up to 65 535 tables in a filter.
#[test]
fn a_filter_of_many_tables_is_saved_and_loaded_within_its_memory() {
    const TABLES: usize = 65_535;
    const BYTES: i64 = 16 << 20;
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    let tables = Tables {
        buckets: 1,
        items: 0,
        deleted: 0,
        bucket_size: 2,
        max_iterations: 20,
        expansion: 1,
        tables: vec![1; TABLES],
        hashing: Hashing::Bits64,
    };
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {}", BYTES / 4));
    let refused = load_chunk(&mut client, Kind::Cuckoo, "k", 1, &tables.dump());
    assert_eq!(refused.err(), TOO_LARGE);
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {BYTES}"));
    let before = server.info_int("used_memory");
    let loaded = load_chunk(&mut client, Kind::Cuckoo, "k", 1, &tables.dump());
    assert_eq!(loaded, "OK");
    let used = server.info_int("used_memory") - before;
    assert!(used < BYTES, "{used}");
    // An item in the first and in the last table.
    let slot = [1, 0];
    for (iterator, chunk) in [(3, slot), (2 * TABLES as i64 + 1, [0, 255])] {
        client.must("DEBUG RELOAD"); // the tables between have no chunks
        let reply = load_chunk(&mut client, Kind::Cuckoo, "k", iterator, &chunk);
        assert_eq!(reply, "OK");
    }
    assert_eq!(
        number(&mut client, Kind::Cuckoo, "k", FILTERS),
        TABLES as i64
    );
    let digest = value_digest(&mut client, "k");
    let payload = client.must("DUMP k").bytes().to_vec();
    assert_eq!(
        client.call([b"RESTORE".as_slice(), b"copy", b"0", &payload]),
        "OK"
    );
    assert_eq!(value_digest(&mut client, "copy"), digest);
    client.must("DEL copy");
    server.rewrite_aof();
    client.must("DEBUG LOADAOF");
    assert_eq!(value_digest(&mut client, "k"), digest);
    assert_eq!(client.must("CF.ADD k new"), 1);
    assert_eq!(client.must("TYPE k"), "sluice-cf");
    assert_calm(&server);
}

/// Newer versions of RedisBloom would look for the items of such a filter in wrong places. Their loader reads the first number
/// as the number of tables, and refuses 0.
#[test]
fn a_cuckoo_filter_of_redisbloom_2_0_is_saved_so_that_newer_versions_refuse_it() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    let names = || filters().into_keys().filter(|name| is_cuckoo_of_2_0(name));
    for name in names() {
        assert_eq!(restore(&mut client, &name, &name), "OK");
        let dumped = client.must(&format!("DUMP {name}")).bytes().to_vec();
        // The type with its encoding version takes ten bytes, then comes an unsigned integer.
        assert_eq!(dumped[10..12], [2, 0], "{name}");
        let reply = client.call([b"RESTORE".as_slice(), b"again", b"0", &dumped, b"REPLACE"]);
        assert_eq!(reply, "OK");
        let digest = value_digest(&mut client, &name);
        assert_eq!(value_digest(&mut client, "again"), digest);
    }
    client.must("DEL again");
    let digest = server.digest();
    for _ in 0..2 {
        client.must("DEBUG LOADAOF");
        assert_eq!(server.digest(), digest);
        server.rewrite_aof();
    }
    for name in names() {
        assert_eq!(client.must(&format!("TYPE {name}")), "MBbloomCF");
        assert_same_answers(&mut client, &name, &name);
    }
}

/// valkey-bloom has no chunks of its own, and Sluice has no `BF.LOAD`, so the chunks and the commands of an AOF are Sluice's.
#[test]
fn chunks_and_the_aof_keep_filters_of_valkey_bloom() {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("rdbcompression", "no")
        .start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    let of_valkey_bloom = || {
        filters()
            .into_keys()
            .filter(|name| is_of_valkey_bloom(name))
    };
    for name in of_valkey_bloom() {
        assert_eq!(restore(&mut client, &name, &name), "OK");
        let digest = value_digest(&mut client, &name);
        let chunks = dump(&mut client, Kind::Bloom, &name);
        load(&mut client, Kind::Bloom, "loaded", &chunks);
        assert_eq!(client.must("TYPE loaded"), "bloomfltr");
        assert_eq!(value_digest(&mut client, "loaded"), digest, "{name}");
        let raw = client.call([b"BF.LOADCHUNK".as_slice(), b"loaded", b"10", b"xx"]);
        assert_eq!(raw.err(), "ERR received bad data");
        client.must("DEL loaded");
    }
    let digest = server.digest();
    client.must("DEBUG LOADAOF");
    assert_eq!(server.digest(), digest);
    server.rewrite_aof();
    client.must("DEBUG LOADAOF");
    assert_eq!(server.digest(), digest);
    for name in of_valkey_bloom() {
        assert_eq!(client.must(&format!("TYPE {name}")), "bloomfltr");
        assert_same_answers(&mut client, &name, &name);
        let payload = client.must(&format!("DUMP {name}"));
        let original = data(&format!("{name}.dump"));
        assert!(body(payload.bytes()) == body(&original), "{name}");
    }
}

/// An RDB file with the version that all tested servers load, and without a checksum.
fn rdb_file(name: &str) -> Vec<u8> {
    let mut file = data(name);
    let end = file.len() - 8;
    file[5..9].copy_from_slice(format!("{RDB_VERSION:04}").as_bytes());
    file[end..].fill(0);
    file
}

#[test]
fn files_of_redisbloom_are_loaded() {
    for folder in FOLDERS {
        let names = filters_of((folder, "answers.txt")).into_keys();
        let names = names.filter(|name| !name.ends_with("-million") && name != "bf-old");
        let names: Vec<_> = names.collect();
        let from_rdb = Server::builder().rdb(true).start();
        from_rdb.kill9();
        let file = rdb_file(&format!("{folder}all.rdb"));
        fs::write(from_rdb.dir().join("dump.rdb"), file).expect("a file");
        // In the AOF of RedisBloom 1.0 and 2.0, the first chunk of a Bloom filter has the iterator 0.
        let from_aof = Server::builder().aof(Fsync::Always).start();
        from_aof.kill9();
        let file = data(&format!("{folder}all.aof"));
        fs::write(from_aof.aof_file(".incr."), file).expect("a file");
        for server in [from_rdb, from_aof] {
            server.restart();
            let mut client = Raw::connect(&server);
            for name in &names {
                let key = stem(name);
                assert_eq!(client.must(&format!("TYPE {key}")), type_of(name));
                assert_same_answers(&mut client, name, key);
            }
        }
    }
}

#[test]
fn a_file_of_valkey_bloom_is_loaded() {
    let server = Server::builder().rdb(true).start();
    server.kill9();
    let file = rdb_file("all-valkey.rdb");
    fs::write(server.dir().join("dump.rdb"), file).expect("a file");
    server.restart();
    let mut client = Raw::connect(&server);
    let names = filters().into_keys();
    for name in names.filter(|name| is_of_valkey_bloom(name)) {
        assert_eq!(client.must(&format!("TYPE {name}")), "bloomfltr");
        assert_same_answers(&mut client, &name, &name);
    }
}

/// RedisBloom 2.2 loads Bloom filters of older versions, and saves them in its own format. Sluice saves the same bytes.
#[test]
fn bloom_filters_of_old_versions_are_saved_as_redisbloom_saves_them() {
    let server = Server::builder().config("rdbcompression", "no").start();
    let mut client = Raw::connect(&server);
    for name in ["1.0/bf-wide", "2.0/bf-old"] {
        assert_eq!(restore(&mut client, name, name), "OK");
        let dumped = client.must(&format!("DUMP {name}"));
        assert!(body(dumped.bytes()) == body(&payload("bf-old")), "{name}");
    }
}

/// The filter has a million items: a second million gets the false positives of the other module.
#[test]
fn a_filter_of_a_million_items_answers_as_in_the_other_module() {
    const MILLION: u64 = 1_000_000;
    let (_server, mut client) = server_and_client();
    let mut names = all_filters();
    names.retain(|name, _| name.ends_with("-million"));
    assert_eq!(names.len(), 5);
    for (name, answers) in names {
        let kind = kind_of(&name);
        assert_eq!(restore(&mut client, &name, &name), "OK");
        assert_holds(&mut client, kind, &name, 0..MILLION);
        let held = answers_of(&mut client, kind, &name, 0..2 * MILLION);
        let found = held.iter().map(|held| u64::from(*held)).sum::<u64>();
        assert_eq!(found, answers.found, "{name}");
        assert_eq!(fnv(held.into_iter()), answers.digest, "{name}");
        assert_eq!(number(&mut client, kind, &name, ITEMS), answers.items);
        client.must(&format!("DEL {name}"));
    }
}

/// A filter of each kind and module grows from one million to four.
#[test]
fn a_filter_of_a_million_items_grows_to_four_million() {
    const MILLION: u64 = 1_000_000;
    const ASKED: u64 = 100_000;
    let (_server, mut client) = server_and_client();
    // RedisBloom declares 0.3 for the whole filter, valkey-bloom 0.2 for the first link.
    for (name, rate) in [
        ("8.8/bf-million", Some(0.3)),
        ("8.8/cf-million", None),
        ("vb-million", Some(0.4)),
    ] {
        let kind = kind_of(name);
        assert_eq!(restore(&mut client, name, "k"), "OK");
        let before = held_named(&mut client, kind, "k", "other", 0..ASKED);
        let restored = number(&mut client, kind, "k", ITEMS);
        add(&mut client, kind, "k", 2 * MILLION..5 * MILLION);
        assert_holds(&mut client, kind, "k", 0..MILLION);
        assert_holds(&mut client, kind, "k", 2 * MILLION..5 * MILLION);
        let found = held_named(&mut client, kind, "k", "other", 0..ASKED);
        // The new layers of a cuckoo filter have fingerprints of 16 bits.
        let layers = number(&mut client, kind, "k", FILTERS) as f64;
        let of_new_layers = before as f64 + 0.00012 * layers * ASKED as f64;
        let expected = rate.map_or(of_new_layers, |rate| rate * ASKED as f64);
        let most = expected + 4.0 * expected.sqrt();
        assert!((found as f64) < most, "{name}: {before}, then {found}");
        let items = number(&mut client, kind, "k", ITEMS) - restored;
        // What was a false positive is not added to a Bloom filter.
        let least = 3.0 * MILLION as f64 * (1.0 - 1.1 * rate.unwrap_or(0.0));
        assert!(items as f64 >= least, "{name}: {items}");
        client.must("DEL k");
    }
}

/// The most false positives of a filter that has grown, as a part of the items that were not added. valkey-bloom and RedisBloom
/// 1.0 and 2.0 declare the rate of the first link, and add links with less than half of it.
fn declared_rate(name: &str) -> Option<f64> {
    let rate = match stem(name).split_once('-')? {
        ("cf", _) => return None,
        (_, "wide") => 0.0001,
        (_, "default" | "half" | "seed") => 0.01,
        _ => return None,
    };
    let is_of_first_link = is_of_valkey_bloom(name) || has_old_format(name);
    Some(if is_of_first_link { 2.0 * rate } else { rate })
}

/// Adds items until there are four times as many.
#[test]
fn a_filter_that_grows_keeps_its_items_and_its_error_rate() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("CONFIG SET appendonly yes");
    for (name, answers) in filters() {
        let kind = kind_of(&name);
        restore(&mut client, &name, &name);
        if name.ends_with("-fixed") {
            let reply = client.run(&format!("BF.ADD {name} new"));
            assert!(
                reply.err().contains("non scaling filter is full"),
                "{reply:?}"
            );
            assert_eq!(client.must(&format!("TYPE {name}")), type_of(&name));
            continue;
        }
        let is_nonscaling = name.ends_with("-half") && !has_old_format(&name);
        let wanted = if is_nonscaling {
            450
        } else {
            3 * answers.items.max(1000) as u64
        };
        let layers = number(&mut client, kind, &name, FILTERS);
        let capacity = format!("BF.INFO {name} CAPACITY");
        let declared = is_nonscaling.then(|| client.must(&capacity));
        add(&mut client, kind, &name, 1_000_000..1_000_000 + wanted);
        if let Some(declared) = declared {
            assert_eq!(client.must(&capacity), declared, "{name}");
        }
        let own = if kind == Kind::Bloom {
            "sluice-bf"
        } else {
            "sluice-cf"
        };
        assert_eq!(client.must(&format!("TYPE {name}")), own);
        assert!(number(&mut client, kind, &name, FILTERS) > layers);
        assert_holds(&mut client, kind, &name, 1_000_000..1_000_000 + wanted);
        if !name.ends_with("-deleted") && !name.ends_with("-empty") {
            let least = if name.ends_with("-copies") {
                1000
            } else {
                answers.items as u64
            };
            assert_holds(&mut client, kind, &name, 0..least);
        }
        if let Some(rate) = declared_rate(&name) {
            let asked = 100_000;
            let found = held_named(&mut client, kind, &name, "other", 0..asked);
            // Four standard deviations more than expected.
            let most = rate * asked as f64;
            assert!((found as f64) < most + 4.0 * most.sqrt(), "{name}: {found}");
        }
        client.must(&format!("PEXPIRE {name} 600000000"));
    }
    wait_for_replica_sync(&master, &replica);
    assert_identical(&master, &replica);
    let digest = master.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(master.digest(), digest);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    master.rewrite_aof();
    client.must("DEBUG LOADAOF");
    assert_eq!(master.digest(), digest);
    for name in filters().keys() {
        let kind = kind_of(name);
        let chunks = dump(&mut client, kind, name);
        client.must(&format!("PERSIST {name}"));
        client.must("DEL loaded");
        load(&mut client, kind, "loaded", &chunks);
        client.must(&format!("COPY {name} copy REPLACE"));
        let dumped = client.must(&format!("DUMP {name}")).bytes().to_vec();
        let reply = client.call([
            b"RESTORE".as_slice(),
            b"restored",
            b"0",
            &dumped,
            b"REPLACE",
        ]);
        assert_eq!(reply, "OK");
        let digest = value_digest(&mut client, name);
        for key in ["loaded", "copy", "restored"] {
            assert_eq!(value_digest(&mut client, key), digest, "{name}: {key}");
        }
    }
    assert_calm(&master);
    assert_calm(&replica);
}

#[test]
fn the_first_change_keeps_the_expiry_and_reaches_all_keyspaces() {
    let (_server, mut client) = server_and_client();
    restore(&mut client, "bf-default", "k");
    client.must("PEXPIREAT k 9999999999999");
    assert_eq!(client.must("BF.ADD k new"), 1);
    assert_eq!(client.must("TYPE k"), "sluice-bf");
    assert_eq!(client.must("PEXPIRETIME k"), 9_999_999_999_999_i64);
    assert_eq!(client.must("BF.CARD k"), filters()["bf-default"].items + 1);
    client.must("BF.RESERVE own 0.01 100");
    restore(&mut client, "bf-half", "other");
    for line in [
        "BF.MERGE own 1 other",
        "BF.MERGE other 1 own",
        "BF.MERGE own 1 k",
        "BF.MERGE new 1 k",
        "BF.RESERVE new LIKE other",
        "BF.RESERVE new LIKE k",
    ] {
        let reply = client.run(line);
        assert_eq!(reply.err(), "ERR filters differ in shape", "{line}");
    }
    assert_eq!(client.must("EXISTS new"), 0);
    assert_eq!(
        client.must("CACHE.FETCH c LEASE 1000 GUARD k none").array()[0],
        "ABSENT"
    );
    assert_eq!(
        client
            .must("CACHE.FETCH c LEASE 1000 GUARD other i0")
            .array()[0],
        "LEASE"
    );
}

/// docs/filters.md: a deletion in a filter with both kinds of layers. A new layer has a false positive for about one in 10 000 items.
#[test]
fn a_deletion_of_an_old_item_can_remove_the_fingerprint_of_a_new_one() {
    const NEW: u32 = 3000;
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let is_denied = (0..300).any(|_| {
        client.must("DEL k");
        restore(&mut client, "cf-copies", "k");
        let all = |command: &str, name: &str, items: u32| -> Vec<String> {
            let line = |item| format!("{command} k {name}{item}");
            (0..items).map(line).collect()
        };
        let added = client.run_all(all("CF.ADD", "n", NEW));
        assert!(added.iter().all(|reply| *reply == 1));
        let before = client.run_all(all("CF.EXISTS", "n", NEW));
        assert!(before.iter().all(|reply| *reply == 1));
        client.run_all(all("CF.DEL", "i", 1000));
        let found = client.run_all(all("CF.EXISTS", "n", NEW));
        found.iter().any(|reply| *reply == 0)
    });
    assert!(is_denied);
}

#[test]
fn items_of_a_foreign_cuckoo_filter_can_be_deleted() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    restore(&mut client, "cf-copies", "k");
    for left in [2, 1, 0] {
        assert_eq!(client.must("CF.DEL k i5"), 1);
        assert_eq!(client.must("CF.COUNT k i5"), left);
    }
    assert_eq!(client.must("CF.DEL k i5"), 0);
    assert_eq!(client.must("TYPE k"), "sluice-cf");
    assert_eq!(number(&mut client, Kind::Cuckoo, "k", ITEMS), 2997);
    assert_eq!(
        number(&mut client, Kind::Cuckoo, "k", "Number of items deleted"),
        3
    );
    client.must("CF.ADD k i5");
    assert_eq!(client.must("CF.COUNT k i5"), 1);
    assert_eq!(client.must("CF.ADDNX k i6"), 0);
    client.must("CF.COMPACT k");
    assert_eq!(client.must("CF.COUNT k i6"), 3);
    wait_for_replica_sync(&master, &replica);
    assert_identical(&master, &replica);
}

#[test]
fn other_types_of_redisbloom_are_named_in_the_log() {
    let (server, mut client) = server_and_client();
    for (name, what) in [
        ("topk", "top-k list"),
        ("cms", "count-min sketch"),
        ("8.8/topk", "top-k list"),
        ("8.8/cms", "count-min sketch"),
        ("8.8/tdigest", "t-digest"),
    ] {
        assert!(restore(&mut client, name, name).is_err());
        let line = format!("cannot load the {what} of RedisBloom at key \"{name}\"");
        assert!(server.log().contains(&line), "{}", server.log());
    }
    let server = Server::builder()
        .module_args(&["bloom-foreign", "no"])
        .start();
    let mut client = Raw::connect(&server);
    assert!(restore(&mut client, "bf-default", "k").is_err());
    let (iterator, header) = &chunks("bf-default")[0];
    let reply = client.call([
        b"BF.LOADCHUNK".as_slice(),
        b"k",
        iterator.to_string().as_bytes(),
        header,
    ]);
    assert_eq!(reply.err(), "ERR received bad data");
}

#[test]
fn a_valid_filter_that_is_not_loaded_is_named_in_the_log() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE own 0.01 1000");
    let own = client.must("DUMP own").bytes().to_vec();
    client.must("CONFIG SET sluice.bloom-max-bytes 100");
    for (key, payload) in [
        ("of\nredisbloom", payload("bf-default")),
        ("of\nvalkey", payload("vb-default")),
        ("of\nsluice", own),
    ] {
        let reply = client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", &payload]);
        assert!(reply.is_err());
        let line = format!(
            "the filter at key \"{}\" was not restored: {TOO_LARGE}",
            key.replace('\n', "\\n")
        );
        assert!(server.log().contains(&line), "{}", server.log());
    }
    // The encoding version is the last ten bits of the type.
    let mut older = payload("vb-default");
    assert_eq!(older[9], 1);
    older[9] = 0;
    older.truncate(older.len() - 8);
    let reply = client.call([b"RESTORE".as_slice(), b"old", b"0", &sealed(older)]);
    assert!(reply.is_err());
    let line = "cannot load the Bloom filter at key \"old\": its valkey-bloom is older than 1.0";
    assert!(server.log().contains(line), "{}", server.log());
}

/// A module that has the types of RedisBloom and valkey-bloom.
const TYPES: &str = include_str!("types.c");

#[test]
fn types_of_another_module_stay_with_it() {
    let home = Server::builder().no_module().start();
    let library = home.dir().join("types.so");
    compile(TYPES, &library);
    let library = library.to_str().expect("a path");
    let server = Server::builder().config("loadmodule", library).start();
    let mut client = Raw::connect(&server);
    client.must("types.set a b c");
    for (key, name) in [("a", "MBbloom--"), ("b", "MBbloomCF"), ("c", "bloomfltr")] {
        assert_eq!(client.must(&format!("TYPE {key}")), name);
        for line in ["BF.EXISTS", "BF.ADD", "CF.EXISTS", "CF.ADD"] {
            let reply = client.run(&format!("{line} {key} item"));
            assert!(reply.err().starts_with("WRONGTYPE "), "{line}: {reply:?}");
        }
        let fetch = format!("CACHE.FETCH cached LEASE 1000 GUARD {key} item");
        let reply = client.run(&fetch);
        assert!(reply.err().starts_with("WRONGTYPE "), "{reply:?}");
    }
    let digest = server.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(server.digest(), digest);
    assert_eq!(client.must("TYPE c"), "bloomfltr");
    // Chunks have no type.
    load(&mut client, Kind::Bloom, "k", &chunks("bf-default"));
    assert_eq!(client.must("TYPE k"), "sluice-bf");
    assert_same_answers(&mut client, "bf-default", "k");
    // Whoever comes first has the types.
    let load = format!("MODULE LOAD {library}");
    let (_server, mut client) = server_and_client();
    assert!(client.run(&load).is_err());
    let server = Server::builder()
        .module_args(&["bloom-foreign", "no"])
        .start();
    let mut client = Raw::connect(&server);
    assert_eq!(client.run(&load), "OK");
    client.must("types.set a b c");
    assert_eq!(client.must("TYPE c"), "bloomfltr");
}
