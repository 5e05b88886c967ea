//! Damaged and forged filters of other modules: they are refused, or they answer and can be saved.

use std::fs;
use std::ops::Range;

use super::foreign::{RDB_VERSION, body, chunks, kind_of, payload};
use crate::support::corruption::sealed;
use crate::support::filter::{
    BAD_DATA, Kind, assert_calm, assert_holds, dump, load, load_chunk, value_digest,
};
use crate::support::{Fsync, Lines, Random, Raw, Server, encode, server_and_client};

/// The most bytes of a filter while damaged ones are loaded.
const MOST_BYTES: i64 = 64 << 20;

/// A server that gets damaged filters.
fn server_for_damage() -> (Server, Raw) {
    let (server, mut client) = server_and_client();
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {MOST_BYTES}"));
    // Valkey frees large values in the background otherwise, while the next one is loaded.
    client.must("CONFIG SET lazyfree-lazy-user-del no lazyfree-lazy-server-del no");
    (server, client)
}

/// Panics if the server has used more memory than a few filters need.
#[track_caller]
fn assert_modest(server: &Server) {
    let peak = server.info_int("used_memory_peak");
    assert!(peak < 3 * MOST_BYTES, "{peak}");
    assert_calm(server);
}

/// Sends a payload, and uses the filter if there is one. False: it was refused.
fn is_loaded(client: &mut Raw, kind: Kind, payload: &[u8]) -> bool {
    let reply = client.call([b"RESTORE".as_slice(), b"k", b"0", payload, b"REPLACE"]);
    if !reply.is_err() {
        use_filter(client, kind);
    }
    !reply.is_err()
}

fn use_filter(client: &mut Raw, kind: Kind) {
    for line in [
        "EXISTS k i1",
        "MEXISTS k i1 i2",
        "INFO k",
        "ADD k new",
        "SCANDUMP k 0",
    ] {
        client.run(&format!("{}.{line}", kind.family()));
    }
    client.run("CF.DEL k i7");
    client.must("DUMP k");
    client.must("DEBUG DIGEST-VALUE k");
    client.must("MEMORY USAGE k");
}

/// A small filter in each encoding of each format.
const SMALL: [&str; 8] = [
    "1.0/bf-half",
    "2.0/bf-half",
    "2.0/cf-empty",
    "bf-half",
    "cf-one",
    "8.8/bf-half",
    "8.8/cf-one",
    "vb-half",
];

/// A value with a footer.
fn with_footer(mut body: Vec<u8>) -> Vec<u8> {
    body.extend(RDB_VERSION.to_le_bytes());
    sealed(body)
}

#[test]
fn a_payload_that_is_cut_at_any_byte_is_refused() {
    let (server, mut client) = server_for_damage();
    for name in SMALL {
        let whole = payload(name);
        assert!(is_loaded(&mut client, kind_of(name), &whole));
        // The server reads on in the footer, whose two bytes of the version are a number and the end of the value.
        for length in 0..body(&whole).len() - 3 {
            let cut = with_footer(whole[..length].to_vec());
            let is_loaded = is_loaded(&mut client, kind_of(name), &cut);
            assert!(!is_loaded, "{name}: cut at {length}");
        }
    }
    assert_modest(&server);
}

/// A length of the RDB format, and the position behind it.
fn rdb_length(bytes: &[u8], at: usize) -> (u64, usize) {
    let number = |size: usize| {
        let bytes = &bytes[at + 1..at + 1 + size];
        let number = bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        (number, at + 1 + size)
    };
    match bytes[at] {
        0x80 => number(4),
        0x81 => number(8),
        byte if byte >> 6 == 0 => (u64::from(byte), at + 1),
        byte => (u64::from(byte & 63) << 8 | u64::from(bytes[at + 1]), at + 2),
    }
}

/// The code of a double, and that of a string, in the value of a module.
const DOUBLE: u64 = 4;
const STRING: u64 = 5;

/// The numbers and doubles of a value, and the lengths of its strings: the code of each, and its place.
fn fields(body: &[u8]) -> Vec<(u64, Range<usize>)> {
    let mut fields = Vec::new();
    let (_, mut at) = rdb_length(body, 1);
    loop {
        let (code, start) = rdb_length(body, at);
        at = match code {
            0 => return fields,
            DOUBLE => start + 8,
            _ => rdb_length(body, start).1,
        };
        fields.push((code, start..at));
        if code == STRING {
            at += rdb_length(body, start).0 as usize;
        }
    }
}

/// A payload with other bytes in a place.
fn replaced(body: &[u8], place: Range<usize>, bytes: &[u8]) -> Vec<u8> {
    with_footer([&body[..place.start], bytes, &body[place.end..]].concat())
}

/// A number as a value of a module has it.
fn rdb_number(number: u64) -> Vec<u8> {
    [&[0x81], number.to_be_bytes().as_slice()].concat()
}

/// The payloads that differ in one number, and have an extreme one in its place.
fn forged(name: &str) -> Vec<Vec<u8>> {
    const NUMBERS: [u64; 9] = [0, 1, 255, 4096, 65_536, 1 << 32, 1 << 40, 1 << 63, u64::MAX];
    const DOUBLES: [f64; 7] = [0.0, -1.0, 1.0, 1e300, f64::NAN, f64::INFINITY, 5e-324];
    let whole = payload(name);
    let body = body(&whole);
    let mut all = Vec::new();
    for (code, place) in fields(body) {
        if code == DOUBLE {
            all.extend(DOUBLES.map(|number| replaced(body, place.clone(), &number.to_le_bytes())));
            continue;
        }
        let (number, _) = rdb_length(body, place.start);
        let near = [number.wrapping_sub(1), number + 1];
        // The server itself allocates a string before it reads it.
        let most = if code == STRING { 65_536 } else { u64::MAX };
        let numbers = NUMBERS.into_iter().chain(near);
        let numbers = numbers.filter(|number| *number <= most);
        all.extend(numbers.map(|number| replaced(body, place.clone(), &rdb_number(number))));
    }
    all
}

#[test]
fn forged_numbers_of_a_payload_take_no_memory() {
    let (server, mut client) = server_for_damage();
    for name in SMALL {
        let (mut refused, mut tried) = (0, 0);
        for payload in forged(name) {
            tried += 1;
            refused += u64::from(!is_loaded(&mut client, kind_of(name), &payload));
        }
        assert!(
            tried > 30 && refused > tried / 3,
            "{name}: {refused} of {tried}"
        );
    }
    assert_modest(&server);
}

#[test]
fn forged_numbers_of_a_chunk_take_no_memory() {
    let (server, mut client) = server_for_damage();
    for name in ["bf-default", "cf-default", "2.0/bf-wide", "2.0/cf-default"] {
        let kind = kind_of(name);
        let command = kind.name("LOADCHUNK");
        let chunks = chunks(name);
        let header = &chunks[0].1;
        for at in 0..=header.len() - 8 {
            for number in [0, 1 << 20, 1 << 40, u64::MAX] {
                let mut forged = header.clone();
                forged[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
                client.must("DEL k");
                let reply = client.call([command.as_bytes(), b"k", b"1", &forged]);
                if !reply.is_err() {
                    use_filter(&mut client, kind);
                }
            }
        }
        // Chunks that do not lie within one array.
        client.must("DEL k");
        client.call([command.as_bytes(), b"k", b"1", header]);
        let (iterator, chunk) = &chunks[1];
        for iterator in [
            2,
            3,
            iterator - 1,
            iterator + 1,
            1 << 40,
            9_007_199_254_740_991,
        ] {
            let iterator = iterator.to_string();
            let reply = client.call([command.as_bytes(), b"k", iterator.as_bytes(), chunk]);
            assert_eq!(reply.err(), "ERR received bad data", "{name}: {iterator}");
        }
        use_filter(&mut client, kind);
    }
    assert_modest(&server);
}

/// Payloads that are cut or have flipped bits, and whose checksum is right.
#[test]
fn damaged_filters_are_refused_or_answer() {
    let (server, mut client) = server_for_damage();
    let mut random = Random(0xf0_4e16);
    let names = [
        "bf-default",
        "bf-half",
        "1.0/bf-half",
        "2.0/bf-default",
        "2.0/cf-deleted",
        "8.8/bf-default",
        "8.8/cf-one",
        "cf-one",
        "cf-empty",
        "cf-deleted",
        "vb-default",
        "vb-half",
    ];
    for name in names {
        let payload = payload(name);
        let whole = &payload[..payload.len() - 8];
        let (mut refused, mut tried) = (0, 0);
        for _ in 0..1500 {
            let mut damaged = whole.to_vec();
            let at = if random.below(2) == 0 {
                120
            } else {
                whole.len() as u64 - 2
            };
            let at = random.below(at.min(whole.len() as u64 - 2)) as usize;
            match random.below(3) {
                0 => drop(damaged.drain(at..whole.len() - 2)),
                1 => damaged[at] ^= 1 << random.below(8),
                _ => damaged[at] = random.below(256) as u8,
            }
            let damaged = sealed(damaged);
            tried += 1;
            refused += u64::from(!is_loaded(&mut client, kind_of(name), &damaged));
        }
        assert!(
            refused > 0 && refused < tried,
            "{name}: {refused} of {tried}"
        );
    }
    let mut loaded = 0;
    for name in [
        "bf-default",
        "bf-half",
        "cf-default",
        "cf-four",
        "2.0/bf-wide",
        "2.0/cf-default",
    ] {
        let kind = kind_of(name);
        let chunks = chunks(name);
        let (_, header) = &chunks[0];
        client.must("DEL k");
        // The first 32 bytes of a cuckoo filter's header are a header of RedisBloom 2.0. Without its last 4 bytes, that of a Bloom
        // filter with one link is one of RedisBloom 2.2.0, with the same numbers.
        let valid = match name {
            "bf-half" => Some(header.len() - 4),
            _ if kind == Kind::Cuckoo => Some(32),
            _ => None,
        };
        for length in (0..header.len()).filter(|length| Some(*length) != valid) {
            let name = kind.name("LOADCHUNK");
            for header in [&header[..length], &vec![0; length]] {
                let reply = client.call([name.as_bytes(), b"k", b"1", header]);
                assert_eq!(reply.err(), "ERR received bad data");
            }
        }
        for _ in 0..1500 {
            let mut damaged = header.clone();
            let at = random.below(header.len() as u64) as usize;
            if random.below(4) == 0 {
                damaged.truncate(at);
            } else {
                damaged[at] = random.below(256) as u8;
            }
            client.must("DEL k");
            let name = kind.name("LOADCHUNK");
            let reply = client.call([name.as_bytes(), b"k", b"1", &damaged]);
            if !reply.is_err() {
                let mut rest = chunks[1..].iter();
                let is_whole = rest.all(|(iterator, chunk)| {
                    !load_chunk(&mut client, kind, "k", *iterator, chunk).is_err()
                });
                if is_whole {
                    loaded += 1;
                    assert_holds(&mut client, kind, "k", 0..100); // each item takes long in a filter of many tables
                }
                client.call([name.as_bytes(), b"k", b"100", &damaged]);
            }
        }
    }
    assert!(loaded > 0);
    assert_modest(&server);
}

/// The bytes of one number of a header or a value.
enum New {
    Byte(u8),
    Short(u16),
    Int(u32),
    Word(u64),
    Double(f64),
}

impl New {
    fn bytes(&self) -> Vec<u8> {
        match self {
            New::Byte(number) => vec![*number],
            New::Short(number) => number.to_le_bytes().to_vec(),
            New::Int(number) => number.to_le_bytes().to_vec(),
            New::Word(number) => number.to_le_bytes().to_vec(),
            New::Double(number) => number.to_le_bytes().to_vec(),
        }
    }
}

/// Numbers of the first chunk of `bf-half` that do not agree with the others, each at its place.
const BLOOM_HEADER: [(usize, New); 33] = [
    (0, New::Word(499)), // the items
    (8, New::Int(0)),    // the links
    (8, New::Int(2)),
    (12, New::Int(0)), // the options
    (12, New::Int(9)),
    (12, New::Int(12)),
    (20, New::Word(1192)), // the bytes
    (20, New::Word(1201)),
    (28, New::Word(0)), // the bits
    (28, New::Word(1)),
    (28, New::Word(9500)),
    (28, New::Word(9599)),
    (28, New::Word(9601)),
    (28, New::Word(9664)),
    (36, New::Word(499)),   // the items of the link
    (44, New::Double(0.0)), // the error rate
    (44, New::Double(0.02)),
    (44, New::Double(1.0)),
    (44, New::Double(f64::NAN)),
    (52, New::Double(0.0)), // the bits per entry
    (52, New::Double(1.0)),
    (52, New::Double(9.5)),
    (52, New::Double(f64::NAN)),
    (60, New::Int(0)), // the hashes
    (60, New::Int(1)),
    (60, New::Int(6)),
    (60, New::Int(8)),
    (60, New::Int(1000)),
    (64, New::Word(499)), // the entries
    (64, New::Word(2000)),
    (72, New::Byte(3)), // n2
    (72, New::Byte(13)),
    (72, New::Byte(64)),
];

/// The same for `cf-four`.
const CUCKOO_HEADER: [(usize, New); 12] = [
    (0, New::Word(8000)), // the items: 7168 slots
    (0, New::Word(1 << 40)),
    (8, New::Word(0)), // the buckets
    (8, New::Word(255)),
    (8, New::Word(257)),
    (16, New::Word(1 << 60)),
    (24, New::Word(0)), // the tables
    (24, New::Word(65_536)),
    (32, New::Short(0)), // the slots of a bucket
    (34, New::Short(0)), // the iterations
    (36, New::Short(0)), // the expansion
    (36, New::Short(40_000)),
];

/// A damaged number could let the filter deny its items.
#[test]
fn a_header_with_a_number_that_disagrees_is_refused() {
    let (server, mut client) = server_for_damage();
    let bloom = BLOOM_HEADER.map(|change| ("bf-half", change));
    let cuckoo = CUCKOO_HEADER.map(|change| ("cf-four", change));
    for (name, (at, new)) in bloom.into_iter().chain(cuckoo) {
        let kind = kind_of(name);
        let [header, rest @ ..] = &chunks(name)[..] else {
            panic!("no header")
        };
        let (mut changed, new) = (header.1.clone(), new.bytes());
        changed[at..at + new.len()].copy_from_slice(&new);
        let reply = load_chunk(&mut client, kind, "k", 1, &changed);
        assert_eq!(reply.err(), BAD_DATA, "{name}: {new:?} at {at}");
        for (iterator, chunk) in rest {
            let reply = load_chunk(&mut client, kind, "k", *iterator, chunk);
            assert_eq!(reply.err(), kind.missing());
        }
    }
    assert_modest(&server);
}

/// A header whose numbers agree may still be that of another filter.
#[test]
fn chunks_of_a_filter_with_smaller_tables_are_refused() {
    let (server, mut client) = server_for_damage();
    for (name, at, new) in [
        ("cf-four", 8, 512),   // the buckets
        ("cf-four", 32, 8),    // the slots of a bucket
        ("cf-four", 32, 200),  //
        ("cf-default", 32, 4), //
        ("cf-default", 8, 1024),
        ("2.0/cf-default", 8, 1024),
    ] {
        let chunks = chunks(name);
        let mut header = chunks[0].1.clone();
        header[at..at + 2].copy_from_slice(&u16::to_le_bytes(new));
        let reply = load_chunk(&mut client, Kind::Cuckoo, "k", 1, &header);
        assert_eq!(reply, "OK", "{name}: {new} at {at}");
        let (iterator, chunk) = &chunks[1];
        let reply = load_chunk(&mut client, Kind::Cuckoo, "k", *iterator, chunk);
        assert_eq!(reply.err(), BAD_DATA, "{name}: {new} at {at}");
        client.must("DEL k");
    }
    assert_modest(&server);
}

/// Numbers of the value of `bf-half` that do not agree with the others, each with its index.
const BLOOM_VALUE: [(usize, New); 22] = [
    (0, New::Word(499)), // the items
    (2, New::Word(0)),   // the options
    (2, New::Word(9)),
    (2, New::Word(1 << 32)),
    (4, New::Word(499)), // the entries
    (4, New::Word(2000)),
    (5, New::Double(0.02)), // the error rate
    (5, New::Double(f64::NAN)),
    (6, New::Word(1)), // the hashes
    (6, New::Word(8)),
    (6, New::Word(1000)),
    (6, New::Word(7 | 1 << 32)),
    (7, New::Double(1.0)), // the bits per entry
    (7, New::Double(9.5)),
    (7, New::Double(f64::NAN)),
    (8, New::Word(0)), // the bits
    (8, New::Word(1)),
    (8, New::Word(9500)),
    (8, New::Word(9599)),
    (9, New::Word(3)), // n2
    (9, New::Word(64)),
    (11, New::Word(499)), // the items of the link
];

/// The same for `cf-four`.
const CUCKOO_VALUE: [(usize, New); 12] = [
    (0, New::Word(2)), // the tables
    (0, New::Word(4)),
    (1, New::Word(255)), // the buckets
    (1, New::Word(512)),
    (2, New::Word(8000)), // the items
    (2, New::Word(1 << 40)),
    (4, New::Word(2)), // the slots of a bucket
    (5, New::Word(0)), // the iterations
    (5, New::Word(65_536)),
    (6, New::Word(0)), // the expansion
    (6, New::Word(4)),
    (7, New::Word(512)), // the buckets of the first table
];

/// The same for `vb-half`.
const VALKEY_VALUE: [(usize, New); 8] = [
    (2, New::Double(1.0)),    // the error rate
    (2, New::Double(2e-308)), // too low for a link
    (3, New::Double(0.0)),    // the tightening
    (4, New::Word(0)),        // the seed was not drawn
    (6, New::Word(0)),        // the capacity
    (6, New::Word(2000)),     // for fewer hashes
    (7, New::Word(1001)),     // the items
    (7, New::Word(u64::MAX)),
];

#[test]
fn a_payload_with_a_number_that_disagrees_is_refused() {
    let (server, mut client) = server_for_damage();
    let bloom = BLOOM_VALUE.map(|change| ("bf-half", change));
    let cuckoo = CUCKOO_VALUE.map(|change| ("cf-four", change));
    let valkey = VALKEY_VALUE.map(|change| ("vb-half", change));
    for (name, (index, new)) in bloom.into_iter().chain(cuckoo).chain(valkey) {
        let whole = payload(name);
        assert!(is_loaded(&mut client, kind_of(name), &whole));
        let (code, place) = fields(body(&whole)).swap_remove(index);
        let bytes = match new {
            New::Word(number) => rdb_number(number),
            _ => new.bytes(),
        };
        assert_eq!(
            code == DOUBLE,
            matches!(new, New::Double(_)),
            "{name}: {index}"
        );
        let changed = replaced(body(&whole), place, &bytes);
        let is_loaded = is_loaded(&mut client, kind_of(name), &changed);
        assert!(!is_loaded, "{name}: {bytes:?} at {index}");
    }
    // In the bitmap of valkey-bloom: the number of hashes, and a seed that is not drawn.
    for (name, at, new) in [("vb-half", 9, 6), ("vb-half", 9, 8), ("vb-empty", 10, 1)] {
        let mut changed = body(&payload(name)).to_vec();
        let (code, place) = fields(&changed).swap_remove(5);
        assert_eq!(code, STRING);
        changed[place.end + at] = new;
        let is_loaded = is_loaded(&mut client, Kind::Bloom, &with_footer(changed));
        assert!(!is_loaded, "{name}: {new} at {at}");
    }
    assert_modest(&server);
}

/// Some versions of RedisBloom 2.2 have made such filters. RedisBloom 8.8 loads them from its own files.
#[test]
fn numbers_of_old_filters_that_disagree_are_loaded_from_the_dataset_only() {
    let whole = payload("cf-four");
    let value = body(&whole);
    let old = [(2, 8000), (5, 0), (6, 4)].map(|(index, number)| {
        let (_, place) = fields(value).swap_remove(index);
        replaced(value, place, &rdb_number(number))
    });
    let chunks = chunks("cf-four");
    let mut commands = Vec::new();
    for (number, payload) in old.iter().enumerate() {
        let key = format!("restored{number}");
        commands.extend(encode([
            b"RESTORE".as_slice(),
            key.as_bytes(),
            b"0",
            payload,
        ]));
    }
    for (iterator, chunk) in &chunks {
        let mut chunk = chunk.clone();
        if *iterator == 1 {
            chunk[34..36].fill(0); // the iterations
        }
        let iterator = iterator.to_string();
        let line = [
            b"CF.LOADCHUNK".as_slice(),
            b"loaded",
            iterator.as_bytes(),
            &chunk,
        ];
        commands.extend(encode(line));
    }
    let server = Server::builder().aof(Fsync::Always).start();
    server.kill9();
    fs::write(server.aof_file(".incr."), commands).expect("a file");
    server.restart();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET aof-use-rdb-preamble no");
    let digest = server.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(server.digest(), digest);
    server.rewrite_aof();
    client.must("DEBUG LOADAOF");
    assert_eq!(server.digest(), digest);
    for key in ["restored0", "restored1", "restored2", "loaded"] {
        assert_eq!(client.must(&format!("TYPE {key}")), "MBbloomCF");
        assert_holds(&mut client, Kind::Cuckoo, key, 0..4000);
        let payload = client.must(&format!("DUMP {key}")).bytes().to_vec();
        let reply = client.call([b"RESTORE".as_slice(), b"copy", b"0", &payload]);
        assert!(reply.is_err(), "{key}");
        let chunks = dump(&mut client, Kind::Cuckoo, key);
        load(&mut client, Kind::Cuckoo, "copy", &chunks);
        let copied = value_digest(&mut client, "copy");
        assert_eq!(copied, value_digest(&mut client, key), "{key}");
        client.must("DEL copy");
    }
    assert_calm(&server);
}

/// What the server saves it can load, also when a number was the largest valid one before a change.
#[test]
fn a_filter_with_the_most_deletions_can_be_saved_after_another_deletion() {
    const MOST_ITEMS: u64 = 1 << 52;
    let (_server, mut client) = server_and_client();
    let mut chunks = chunks("cf-copies");
    chunks[0].1[16..24].copy_from_slice(&MOST_ITEMS.to_le_bytes());
    load(&mut client, Kind::Cuckoo, "k", &chunks);
    for _ in 0..2 {
        assert_eq!(client.must("CF.DEL k i5"), 1);
        client.must("DEBUG RELOAD");
    }
    assert_eq!(client.must("CF.COUNT k i5"), 1);
}
