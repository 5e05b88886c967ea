//! Damaged and forged bytes of filters are refused or make a filter that answers: nothing crashes, hangs or takes
//! memory that it does not need.

use std::time::Duration;

use crate::support::corruption::{FOOTER, damaged, mutated, payload_of};
use crate::support::filter::{
    BAD_DATA, FILTERS, KINDS, Kind, TOO_LARGE, add, assert_calm, dump, held, load_chunk, number,
};
use crate::support::{
    Lines, Random, Raw, SOON, Server, Shutdown, Value, eventually, field_of, used_memory,
};
use sluice::bloom::shape::BloomShape;
use sluice::bloom::state::{Bloom, BloomParameters};
use sluice::codec::put_uint;
use sluice::cuckoo::state::{Cuckoo, CuckooParameters};
use sluice::filter::hash::Hash;
use sluice::filter::persist::{
    effects, header_of, load_piece, pieces, put_header, put_header_effect, put_item_effect,
    put_layer_effect, put_piece, put_piece_effect, read_header, start_of,
};
use sluice::filter::state::{Added, Filter, FilterHeader, FilterKind as Pure};
use xxhash_rust::xxh3::xxh3_64;

/// The size of a forged filter that is honestly allowed.
const MAX_BYTES: u64 = 16 << 20;

const MIB: i64 = 1 << 20;

/// A server that takes any payload for undamaged.
fn careless_server() -> (Server, Raw) {
    let server = Server::builder()
        .rdb(true)
        // Each command that is called for the first time would get a histogram of many kilobytes.
        .config("latency-tracking", "no")
        .start();
    let mut client = Raw::connect(&server);
    client.must("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {MAX_BYTES}"));
    (server, client)
}

/// A number of kB that the system tells of a process, in bytes.
fn status(server: &Server, field: &str) -> i64 {
    let path = format!("/proc/{}/status", server.pid());
    let status = std::fs::read_to_string(path).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let number: i64 = number.expect("a field").parse().expect("a number");
    number * 1024
}

/// What the server uses before a test, to be compared afterwards.
struct Before {
    used: i64,
    resident: i64,
    addressed: i64,
}

/// Replaces a connection by one whose buffers are as small as any new one's.
fn renew(server: &Server, client: &mut Raw) {
    *client = Raw::connect(server);
    client.must("SELECT 0");
    eventually(SOON, || {
        field_of(&client.must("INFO clients"), "connected_clients") == 1
    });
}

impl Before {
    fn of(server: &Server, client: &mut Raw) -> Self {
        renew(server, client);
        Self {
            used: used_memory(client),
            resident: status(server, "VmHWM"),
            addressed: status(server, "VmPeak"),
        }
    }

    /// Panics unless all memory is given back, and there never was much more of it.
    #[track_caller]
    fn is_restored(&self, server: &Server, client: &mut Raw) {
        client.must("FLUSHALL");
        renew(server, client);
        let used = used_memory(client) - self.used;
        let resident = status(server, "VmHWM") - self.resident;
        println!("used {used:+}, at most {resident:+} resident");
        assert!(used < 20_000, "{used} bytes are not given back");
        assert!(resident < 64 * MIB, "{resident} bytes more were resident");
        assert_calm(server);
    }

    /// The same of what was asked for and never touched. Only where the server itself believes no lengths.
    #[track_caller]
    fn is_kept(&self, server: &Server) {
        let addressed = status(server, "VmPeak") - self.addressed;
        println!("at most {addressed:+} addressed");
        // The C library reserves 64 MiB for a thread that allocates while another one does.
        assert!(
            addressed < 256 * MIB,
            "{addressed} bytes more were asked for"
        );
    }
}

/// All commands of `use_filter` together need less processor time on the server. Usually, they need at most 25 ms.
const MAX_PROCESSOR_TIME: Duration = Duration::from_secs(1);

/// The processor time that the server has used. Time in which other processes have the processor does not count.
#[track_caller]
fn processor_time(client: &mut Raw) -> Duration {
    let info = client.must("INFO cpu");
    let seconds = |name: &str| -> f64 {
        let mut lines = info.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.expect("a field").parse().expect("a number")
    };
    Duration::from_secs_f64(seconds("used_cpu_user:") + seconds("used_cpu_sys:"))
}

/// Uses what was made of damaged bytes in every way; it must also be saved as something that is loaded.
#[track_caller]
fn use_filter(client: &mut Raw, key: &str, what: &dyn std::fmt::Debug) {
    let kind = client.call(["TYPE", key]);
    let kind = KINDS.into_iter().find(|one| kind == one.type_name());
    let Some(kind) = kind else {
        return; // the damage has made another type of it
    };
    let family = kind.family();
    let add = match kind {
        Kind::Bloom => "MADD",
        Kind::Cuckoo => "INSERT",
    };
    let items = if kind == Kind::Cuckoo { "ITEMS" } else { "i0" };
    let own = match kind {
        Kind::Bloom => format!("BF.CARD {key}"),
        Kind::Cuckoo => format!("CF.DEL {key} i3"),
    };
    let last = match kind {
        Kind::Bloom => format!("BF.MERGE {key} 1 copy"),
        Kind::Cuckoo => format!("CF.COMPACT {key}"),
    };
    let before = processor_time(client);
    let lines = [
        format!("{family}.EXISTS {key} i1"),
        format!("{family}.MEXISTS {key} i1 i2 new"),
        format!("{family}.INFO {key}"),
        format!("MEMORY USAGE {key}"),
        format!("DEBUG DIGEST-VALUE {key}"),
        own,
        format!("{family}.ADD {key} new"),
        format!("{family}.{add} {key} {items} a b c d e f g h"),
        format!("COPY {key} copy REPLACE"),
        last,
        format!("{family}.SCANDUMP {key} 0"),
        format!("{family}.SCANDUMP {key} 1"),
        format!("{family}.INFO {key}"),
        format!("DUMP {key}"),
        "DEL copy".to_owned(),
    ];
    let replies = client.run_all(&lines);
    let known = [
        TOO_LARGE,
        "ERR non scaling filter is full",
        "ERR Filter is full",
        "ERR Maximum expansions reached",
        "ERR filters differ in shape",
    ];
    for (line, reply) in lines.iter().zip(&replies) {
        if let Value::Error(text) = reply {
            assert!(known.contains(&text.as_str()), "{line}: {text}: {what:?}");
        }
    }
    // Forged counts that are at their end have a test of their own.
    let mut ends = false;
    for (field, value) in replies[12].fields() {
        if let Value::Int(number) = value {
            let is_count = *field != "Size" && *field != "Capacity";
            ends |= is_count && *number > (1 << 53) - 100;
            let is_safe = (0..1 << 53).contains(number);
            assert!(
                is_safe || ends || *field == "Capacity",
                "{field:?} is {number}: {what:?}"
            );
        }
    }
    let payload = replies[13].bytes();
    let restored = client.call([b"RESTORE".as_slice(), b"copy", b"0", payload, b"REPLACE"]);
    assert!(
        ends || restored == "OK",
        "cannot be loaded as it was saved: {what:?}"
    );
    client.must("DEL copy");
    let used = processor_time(client) - before;
    assert!(used < MAX_PROCESSOR_TIME, "{used:?}: {what:?}");
}

/// A small filter of two layers.
fn small(client: &mut Raw, kind: Kind) {
    client.must(match kind {
        Kind::Bloom => "BF.RESERVE k 0.1 12 EXPANSION 2",
        Kind::Cuckoo => "CF.RESERVE k 12 EXPANSION 2 BITS 8",
    });
    add(client, kind, "k", 0..30);
    assert!(number(client, kind, "k", FILTERS) > 1);
}

// RESTORE

#[track_caller]
fn restore_all(client: &mut Raw, payloads: &[Vec<u8>], what: &str) -> usize {
    let mut made = 0;
    for payload in payloads {
        let reply = client.call([b"RESTORE".as_slice(), b"r", b"0", payload]);
        match reply {
            Value::Error(text) => assert!(!text.contains("internal"), "{what} {text}"),
            _ => {
                made += 1;
                use_filter(client, "r", &(what, payload.escape_ascii().to_string()));
                client.must("DEL r");
            }
        }
    }
    made
}

#[test]
fn payloads_that_are_damaged_in_one_place_are_refused_or_make_a_filter_that_works() {
    let (server, mut client) = careless_server();
    for compression in ["no", "yes"] {
        client.must(&format!("CONFIG SET rdbcompression {compression}"));
        for kind in KINDS {
            small(&mut client, kind);
            let payload = client.must("DUMP k").bytes().to_vec();
            client.must("FLUSHALL");
            assert_eq!(
                restore_all(&mut client, std::slice::from_ref(&payload), "whole"),
                1
            );
            let before = Before::of(&server, &mut client);
            let (value, footer) = payload.split_at(payload.len() - FOOTER);
            let payloads: Vec<Vec<u8>> = damaged(value)
                .into_iter()
                .map(|value| [&value, footer].concat())
                .chain(damaged(&payload))
                .collect();
            let made = restore_all(&mut client, &payloads, "damaged");
            // The footer's bits do not count, and nearly all others do.
            assert!(made < payloads.len() / 8, "{made} of {}", payloads.len());
            before.is_restored(&server, &mut client);
        }
    }
}

#[test]
fn payloads_that_are_damaged_at_random_are_refused_or_make_a_filter_that_works() {
    const SEED: u64 = 0x0dd0_5eed;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    client.must("CONFIG SET rdbcompression no");
    let mut payloads = Vec::new();
    for kind in KINDS {
        small(&mut client, kind);
        payloads.push(client.must("DUMP k").bytes().to_vec());
        client.must("DEL k");
    }
    let before = Before::of(&server, &mut client);
    let damaged: Vec<Vec<u8>> = (0..6000)
        .map(|_| {
            let payload = random.one(&payloads).clone();
            let (value, footer) = payload.split_at(payload.len() - FOOTER);
            [mutated(&mut random, value, &payloads), footer.to_vec()].concat()
        })
        .collect();
    restore_all(&mut client, &damaged, "random");
    before.is_restored(&server, &mut client);
}

// LOADCHUNK

#[test]
fn damaged_chunks_are_refused_wherever_they_are_damaged() {
    const SEED: u64 = 0xc0ff_ee00;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    for kind in KINDS {
        small(&mut client, kind);
        let chunks = dump(&mut client, kind, "k");
        let [(_, head), (end, piece), ..] = chunks.as_slice() else {
            panic!("two chunks at least");
        };
        assert_eq!(load_chunk(&mut client, kind, "half", 1, head), "OK");
        let digest = server.digest();
        let before = Before::of(&server, &mut client);
        let others = [head.clone(), piece.clone()];
        let heads = damaged(head).into_iter();
        let heads = heads.chain((0..3000).map(|_| mutated(&mut random, head, &others)));
        for damaged in heads.collect::<Vec<_>>().iter().filter(|one| *one != head) {
            let reply = load_chunk(&mut client, kind, "new", 1, damaged);
            assert_eq!(reply.err(), BAD_DATA, "{}", damaged.escape_ascii());
        }
        let pieces = damaged(piece).into_iter();
        let pieces = pieces.chain((0..3000).map(|_| mutated(&mut random, piece, &others)));
        for damaged in pieces
            .collect::<Vec<_>>()
            .iter()
            .filter(|one| *one != piece)
        {
            for end in [*end, 2 + random.below(400) as i64] {
                let reply = load_chunk(&mut client, kind, "half", end, damaged);
                assert_eq!(reply.err(), BAD_DATA, "{}", damaged.escape_ascii());
            }
        }
        assert_eq!(server.digest(), digest);
        for (end, piece) in &chunks[1..] {
            assert_eq!(load_chunk(&mut client, kind, "half", *end, piece), "OK");
        }
        assert_eq!(held(&mut client, kind, "half", 0..20), 20);
        before.is_restored(&server, &mut client);
        before.is_kept(&server);
    }
}

/// A right checksum below damaged contents: what is meant for accidents stops no attacker.
#[test]
fn damaged_heads_with_a_right_checksum_are_refused_or_make_a_filter_that_works() {
    const SEED: u64 = 0x5ea1_ed00;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    for kind in KINDS {
        small(&mut client, kind);
        let real = client.must("DUMP k").bytes().to_vec();
        let head = dump(&mut client, kind, "k").remove(0).1;
        client.must("DEL k");
        let body = &head[..head.len() - 8];
        let before = Before::of(&server, &mut client);
        let others = [body.to_vec()];
        let heads = damaged(body).into_iter();
        let heads = heads.chain((0..2500).map(|_| mutated(&mut random, body, &others)));
        let mut made = 0;
        for mut head in heads.collect::<Vec<_>>() {
            let check = xxh3_64(&head);
            head.extend(check.to_le_bytes());
            made += u32::from(forged_head(&mut client, kind, &real, &head, "damaged"));
        }
        println!("{made} made");
        assert!(made > 200);
        before.is_restored(&server, &mut client);
        before.is_kept(&server);
    }
}

/// Offers a head by all ways; whether it makes a filter.
#[track_caller]
fn forged_head(client: &mut Raw, kind: Kind, real: &[u8], head: &[u8], what: &str) -> bool {
    let what = (what, head.escape_ascii().to_string());
    let loaded = load_chunk(client, kind, "f", 1, head);
    let payload = payload_of(real, &[head.to_vec(), Vec::new()]);
    let restored = client.call([b"RESTORE".as_slice(), b"r", b"0", &payload]);
    let mut effect = vec![b'H'];
    put_uint(&mut effect, head.len() as u64);
    effect.extend(head);
    let applied = client.call([kind.name("APPLY").as_bytes(), b"a", &effect]);
    let [loaded, restored, applied] =
        [(loaded, "f"), (restored, "r"), (applied, "a")].map(|(reply, key)| match reply {
            Value::Error(text) => {
                assert!(!text.contains("internal"), "{text}: {what:?}");
                None
            }
            _ => Some(key),
        });
    assert_eq!(loaded.is_some(), restored.is_some(), "{what:?}");
    assert_eq!(loaded.is_some(), applied.is_some(), "{what:?}");
    let Some(key) = loaded else {
        return false;
    };
    use_filter(client, key, &what);
    client.must("DEL f r a");
    true
}

/// Numbers at the ends of what can be written, and beyond what makes sense.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    3,
    64,
    65,
    255,
    1000,
    32_768,
    1 << 30,
    1 << 32,
    (1 << 53) - 1,
    1 << 53,
    u64::MAX,
];

const ERRORS: [f64; 12] = [
    0.1,
    0.01,
    1e-300,
    5e-324,
    0.0,
    -0.0,
    -1.0,
    0.999_999_999,
    1.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

/// A number that is most often an ordinary one.
fn odd(random: &mut Random, ordinary: u64) -> u64 {
    match random.below(5) {
        0 => *random.one(&NUMBERS),
        1 => random.one(&NUMBERS).wrapping_sub(1),
        _ => ordinary,
    }
}

fn bloom_head(random: &mut Random) -> Vec<u8> {
    let layers = 1 + random.below(4);
    let errors = if random.below(3) == 0 { 12 } else { 3 };
    let head: FilterHeader<Bloom> = FilterHeader {
        seed: random.word(),
        parameters: BloomParameters {
            error: *random.one(&ERRORS[..errors]),
            capacity: odd(random, 100),
            expansion: odd(random, 2),
        },
        layers: (0..layers)
            .map(|_| {
                let shape = BloomShape {
                    capacity: odd(random, 100),
                    blocks: odd(random, 4),
                    probes: odd(random, 7) as u32,
                };
                (shape, odd(random, 50))
            })
            .collect(),
        deleted: odd(random, 0),
        foreign: None,
    };
    let mut bytes = Vec::new();
    put_header(&mut bytes, &head);
    bytes
}

fn cuckoo_head(random: &mut Random) -> Vec<u8> {
    let layers = 1 + random.below(4);
    let head: FilterHeader<Cuckoo> = FilterHeader {
        seed: random.word(),
        parameters: CuckooParameters {
            capacity: odd(random, 100),
            bucket_size: odd(random, 4),
            width: odd(random, 2),
            max_iterations: odd(random, 20),
            expansion: odd(random, 2),
            base: odd(random, 30),
        },
        layers: (0..layers)
            .map(|layer| (odd(random, layer.min(1)) as u32, odd(random, 50)))
            .collect(),
        deleted: odd(random, 3),
        foreign: None,
    };
    let mut bytes = Vec::new();
    put_header(&mut bytes, &head);
    bytes
}

#[test]
fn absurd_numbers_with_a_right_checksum_are_refused_or_make_a_filter_that_works() {
    const SEED: u64 = 0xab50_12d0;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    for kind in KINDS {
        small(&mut client, kind);
        let real = client.must("DUMP k").bytes().to_vec();
        client.must("DEL k");
        let before = Before::of(&server, &mut client);
        let mut made = 0;
        for _ in 0..4000 {
            let head = match kind {
                Kind::Bloom => bloom_head(&mut random),
                Kind::Cuckoo => cuckoo_head(&mut random),
            };
            made += u32::from(forged_head(&mut client, kind, &real, &head, "absurd"));
        }
        println!("{made} made");
        assert!(made > 50 && made < 3000, "{made}");
        before.is_restored(&server, &mut client);
        before.is_kept(&server);
    }
}

fn bloom_with(layers: Vec<(BloomShape, u64)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head: FilterHeader<Bloom> = FilterHeader {
        seed: 7,
        parameters: BloomParameters {
            error: 0.01,
            capacity: 100,
            expansion: 2,
        },
        layers,
        deleted: 0,
        foreign: None,
    };
    put_header(&mut bytes, &head);
    bytes
}

fn cuckoo_with(change: impl FnOnce(&mut FilterHeader<Cuckoo>)) -> Vec<u8> {
    let mut head: FilterHeader<Cuckoo> =
        FilterHeader::new(7, CuckooParameters::new(100, 4, 2, 20, 2)).expect("a head");
    change(&mut head);
    let mut bytes = Vec::new();
    put_header(&mut bytes, &head);
    bytes
}

/// The limit is for honest sizes: what is larger is refused before anything is taken.
#[test]
fn forged_sizes_beyond_the_limit_are_refused_without_taking_memory() {
    let (server, mut client) = careless_server();
    let mut heads = Vec::new();
    let shape = |blocks| BloomShape {
        capacity: 100,
        blocks,
        probes: 7,
    };
    for blocks in [
        MAX_BYTES / 64 + 1,
        1 << 26,
        1 << 40,
        u64::MAX / 64,
        u64::MAX,
    ] {
        heads.push((Kind::Bloom, bloom_with(vec![(shape(blocks), 0)])));
        heads.push((
            Kind::Bloom,
            bloom_with(vec![(shape(1), 0), (shape(blocks), 0)]),
        ));
    }
    // Whose sum is small again if it is counted carelessly.
    heads.push((Kind::Bloom, bloom_with(vec![(shape(1 << 57), 0); 2])));
    heads.push((Kind::Bloom, bloom_with(vec![(shape(1 << 63), 0); 2])));
    for base in [1 << 23, 1 << 30, 1 << 32] {
        heads.push((
            Kind::Cuckoo,
            cuckoo_with(|head| head.parameters.base = base),
        ));
    }
    for fine in [20, 31] {
        for count in [1, 31] {
            let layers = [vec![(0, 0)], vec![(fine, 0); count]].concat();
            heads.push((Kind::Cuckoo, cuckoo_with(|head| head.layers = layers)));
        }
        let widest = cuckoo_with(|head| {
            head.parameters.base = 1 << 32;
            head.parameters.bucket_size = 255;
            head.parameters.width = 4;
            head.layers = vec![(0, 0), (fine, 0)];
        });
        heads.push((Kind::Cuckoo, widest));
    }
    small(&mut client, Kind::Bloom);
    let bloom = client.must("DUMP k").bytes().to_vec();
    client.must("DEL k");
    small(&mut client, Kind::Cuckoo);
    let cuckoo = client.must("DUMP k").bytes().to_vec();
    client.must("DEL k");
    let before = Before::of(&server, &mut client);
    for (kind, head) in &heads {
        let reply = load_chunk(&mut client, *kind, "f", 1, head);
        assert_eq!(reply.err(), TOO_LARGE, "{}", head.escape_ascii());
        let real = if *kind == Kind::Bloom {
            &bloom
        } else {
            &cuckoo
        };
        assert!(!forged_head(&mut client, *kind, real, head, "large"));
    }
    before.is_restored(&server, &mut client);
    before.is_kept(&server);
}

/// Whoever forges numbers must not get a server that cannot load what it has saved.
#[test]
fn forged_counts_do_not_make_a_file_that_cannot_be_loaded() {
    const MOST: u64 = (1 << 53) - 1;
    let full = BloomShape {
        capacity: MOST,
        blocks: 1,
        probes: 7,
    };
    let shape = BloomShape {
        capacity: 1000,
        blocks: 10,
        probes: 7,
    };
    let mut wrong = Vec::new();
    for (what, kind, head) in [
        (
            "the most items, and room for more",
            Kind::Bloom,
            bloom_with(vec![(full, MOST), (shape, 0)]),
        ),
        (
            "nearly the most items",
            Kind::Bloom,
            bloom_with(vec![(full, MOST - 1)]),
        ),
        (
            "capacities whose sum is more than can be told",
            Kind::Bloom,
            bloom_with(vec![(full, 1), (full, 1)]),
        ),
        (
            "the most items",
            Kind::Cuckoo,
            cuckoo_with(|head| head.layers[0].1 = MOST),
        ),
        (
            "the most deletions",
            Kind::Cuckoo,
            cuckoo_with(|head| head.deleted = MOST),
        ),
        (
            "more layers than a filter gets",
            Kind::Cuckoo,
            cuckoo_with(|head| head.layers = vec![(0, 0); 100]),
        ),
    ] {
        let server = Server::builder().rdb(true).start();
        let mut client = Raw::connect(&server);
        client.must("CF.ADD honest a");
        let loaded = load_chunk(&mut client, kind, "k", 1, &head);
        if loaded.is_err() {
            assert_eq!(loaded.err(), BAD_DATA, "{what}");
            continue;
        }
        for number in 0..20 {
            client.call([kind.name("ADD"), "k".into(), format!("i{number}")]);
        }
        for number in 0..5 {
            client.run(&format!("CF.DEL k i{number}"));
        }
        let info = client.call([&kind.name("INFO"), "k"]);
        for (field, value) in info.fields() {
            if let Value::Int(number) = value
                && !(0..1 << 53).contains(number)
            {
                wrong.push(format!("{what}: {field:?} is {number}"));
            }
        }
        let payload = client.must("DUMP k").bytes().to_vec();
        let restored = client.call([b"RESTORE".as_slice(), b"again", b"0", &payload]);
        if restored != "OK" {
            wrong.push(format!("{what}: RESTORE of its DUMP: {restored:?}"));
            continue; // a server with it would not start any more
        }
        let digest = server.digest();
        assert!(server.shutdown(Shutdown::Save).success());
        server.restart();
        assert_eq!(server.digest(), digest, "{what}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// No command makes a cuckoo filter whose later layers are smaller: there the buckets of one layer are not found in another.
#[test]
fn a_forged_cuckoo_filter_whose_layers_shrink_is_refused_or_loses_nothing_when_it_is_compacted() {
    let (server, mut client) = careless_server();
    let head = cuckoo_with(|head| head.layers = vec![(3, 0), (0, 0)]);
    let reply = load_chunk(&mut client, Kind::Cuckoo, "k", 1, &head);
    if !reply.is_err() {
        add(&mut client, Kind::Cuckoo, "k", 0..80);
        client.must("CF.COMPACT k");
        let held = held(&mut client, Kind::Cuckoo, "k", 0..80);
        assert_eq!(held, 80, "items are denied after CF.COMPACT");
    }
    assert_calm(&server);
}

/// One layer of one line each, as `EXPANSION 1` makes them of a filter for one item: what belongs to a layer beside its
/// lines counts too.
#[test]
fn a_filter_of_very_many_layers_keeps_to_the_limit_and_answers() {
    let (server, mut client) = careless_server();
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {}", 2 * MIB));
    let shape = BloomShape {
        capacity: 1,
        blocks: 1,
        probes: 7,
    };
    let layers = 2 * MIB as usize / 64;
    let mut wrong = Vec::new();
    for (kind, head) in [
        (Kind::Bloom, bloom_with(vec![(shape, 1); layers])),
        (
            Kind::Cuckoo,
            cuckoo_with(|head| {
                head.parameters.base = 8;
                head.layers = vec![(0, 1); layers];
            }),
        ),
    ] {
        let before = used_memory(&mut client);
        let reply = load_chunk(&mut client, kind, "k", 1, &head);
        if !reply.is_err() {
            let start = processor_time(&mut client);
            client.call([&kind.name("EXISTS"), "k", "i1"]);
            let used = processor_time(&mut client) - start;
            let given = used_memory(&mut client) - before;
            println!("{layers} layers: {used:?}, {given} bytes");
            assert!(used < MAX_PROCESSOR_TIME, "{used:?}");
            let said = client.must("MEMORY USAGE k").int();
            assert!(said * 10 > given * 9, "{said} of {given}");
            if given > 3 * MIB {
                wrong.push(format!("{kind:?}: {given} bytes with a limit of 2 MiB"));
            }
        }
        client.must("FLUSHALL");
    }
    assert_calm(&server);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Forged pieces with a right checksum: any bytes at any position.
#[test]
fn forged_pieces_are_refused_or_leave_a_filter_that_works() {
    const SEED: u64 = 0x0fee_d5ea;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    for kind in KINDS {
        small(&mut client, kind);
        let real = client.must("DUMP k").bytes().to_vec();
        let head = dump(&mut client, kind, "k").remove(0).1;
        let seed = u64::from_le_bytes(head[2..10].try_into().expect("eight bytes"));
        client.must("DEL k");
        let before = Before::of(&server, &mut client);
        for _ in 0..1500 {
            let mut strings = vec![head.clone()];
            for _ in 0..1 + random.below(3) {
                let length = *random.one(&[0, 1, 10, 64, 65, 128, 300]);
                let data: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                let position = match random.below(6) {
                    0 => *random.one(&NUMBERS),
                    1 => u64::MAX - random.below(400),
                    _ => random.below(200),
                };
                let mut piece = position.to_le_bytes().to_vec();
                put_piece(&mut piece, seed, position, &data);
                strings.push(piece);
            }
            if random.below(9) > 0 {
                strings.push(Vec::new());
            }
            let payload = payload_of(&real, &strings);
            let reply = client.call([b"RESTORE".as_slice(), b"r", b"0", &payload]);
            if !reply.is_err() {
                use_filter(&mut client, "r", &strings);
                client.must("DEL r");
            }
        }
        before.is_restored(&server, &mut client);
        before.is_kept(&server);
    }
}

/// Effects in any order, of any sense, damaged or not, as a client with all rights may send them.
#[test]
fn forged_effects_are_refused_or_leave_a_filter_that_works() {
    const SEED: u64 = 0xe44e_c750;
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let (server, mut client) = careless_server();
    for kind in KINDS {
        let before = Before::of(&server, &mut client);
        let mut applied = 0;
        for _ in 0..4000 {
            let mut effects = Vec::new();
            for _ in 0..1 + random.below(4) {
                match kind {
                    Kind::Bloom => forged_effect::<Bloom>(&mut random, &mut effects),
                    Kind::Cuckoo => forged_effect::<Cuckoo>(&mut random, &mut effects),
                }
            }
            if random.below(3) == 0 {
                effects = mutated(&mut random, &effects, std::slice::from_ref(&effects));
            }
            let key = format!("k{}", random.below(5));
            let reply = client.call([kind.name("APPLY").as_bytes(), key.as_bytes(), &effects]);
            match reply {
                Value::Error(text) => assert!(!text.contains("internal"), "{text}: {effects:?}"),
                _ => applied += 1,
            }
            if random.below(20) == 0 && client.call(["EXISTS", &key]) == 1 {
                use_filter(&mut client, &key, &effects.escape_ascii().to_string());
                client.call(["DEL", &key]);
            }
        }
        println!("{applied} applied");
        assert!(applied > 300, "{applied}");
        before.is_restored(&server, &mut client);
        before.is_kept(&server);
    }
}

/// A kind of filter as the tests forge it.
trait Forged: Pure {
    /// An ordinary head.
    fn head(seed: u64, capacity: u64) -> FilterHeader<Self>;
    /// The shape of some layer.
    fn shape(random: &mut Random) -> Self::LayerShape;
}

impl Forged for Bloom {
    fn head(seed: u64, capacity: u64) -> FilterHeader<Self> {
        let terms = BloomParameters {
            error: 0.05,
            capacity,
            expansion: 2,
        };
        FilterHeader::new(seed, terms).expect("a head")
    }

    fn shape(random: &mut Random) -> BloomShape {
        BloomShape {
            capacity: odd(random, 20),
            blocks: odd(random, 3),
            probes: odd(random, 5) as u32,
        }
    }
}

impl Forged for Cuckoo {
    fn head(seed: u64, capacity: u64) -> FilterHeader<Self> {
        FilterHeader::new(seed, CuckooParameters::new(capacity, 4, 2, 20, 2)).expect("a head")
    }

    fn shape(random: &mut Random) -> u32 {
        odd(random, 1) as u32
    }
}

fn forged_effect<K: Forged>(random: &mut Random, out: &mut Vec<u8>) {
    match random.below(8) {
        0 | 1 => put_header_effect(out, &K::head(7, 1 + random.below(30))),
        2 => {
            let position = odd(random, random.0 % 100);
            let data: Vec<u8> = (0..random.below(70))
                .map(|_| random.below(256) as u8)
                .collect();
            put_piece_effect(out, 7, position, &data);
        }
        3 => put_layer_effect::<K>(out, &K::shape(random)),
        _ => {
            let bits = u128::from(random.word()) << 64 | u128::from(random.word());
            put_item_effect(out, Hash::from_bits(bits));
        }
    }
}

// Without a server

const CASES: u64 = 150_000;

/// A filter is only built of what is small.
const SMALL: u64 = 1 << 16;

/// Fills a filter that grows as it does in a server.
fn fill<K: Pure>(filter: &mut Filter<K>, items: std::ops::Range<u32>) {
    for item in items {
        let hash = filter.hash(&item.to_le_bytes());
        while K::add(filter, hash, false) == Added::Full {
            let shape = K::next_shape(filter, hash).expect("it may grow");
            filter.grow(shape).expect("memory");
        }
    }
}

/// What can be done with a filter, done: none of it may panic.
fn exercise<K: Pure>(filter: &mut Filter<K>) {
    for item in 0..8u32 {
        let hash = filter.hash(&item.to_le_bytes());
        K::holds(filter, hash);
        if K::add(filter, hash, item % 2 == 0) == Added::New {
            assert!(K::holds(filter, hash));
        }
        if let Ok(shape) = K::next_shape(filter, hash) {
            let _ = K::lines(&filter.parameters, &shape);
        }
    }
    let mut written = 0;
    pieces(filter, &mut |piece| written += piece.len());
    assert!(written > 0 && filter.size() > 0);
}

fn fuzz_heads<K: Forged>(seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut originals: Vec<Vec<u8>> = Vec::new();
    for capacity in [1, 30, 1000] {
        let mut filter = K::head(random.word(), capacity).build().expect("memory");
        fill(&mut filter, 0..3 * capacity as u32);
        let mut bytes = Vec::new();
        put_header(&mut bytes, &header_of(&filter));
        assert!(read_header::<K>(&bytes).is_ok());
        originals.push(bytes);
    }
    let mut accepted = 0;
    for _ in 0..CASES {
        let original = random.one(&originals).clone();
        let body = &original[..original.len() - 8];
        let mut bytes = mutated(&mut random, body, &originals);
        let is_sealed = random.below(10) > 0;
        let check = if is_sealed {
            xxh3_64(&bytes)
        } else {
            random.word()
        };
        bytes.extend(check.to_le_bytes());
        let Ok(head) = read_header::<K>(&bytes) else {
            continue;
        };
        assert!(is_sealed || originals.contains(&bytes));
        // Nothing is read that would be written in another way.
        let mut again = Vec::new();
        put_header(&mut again, &head);
        assert_eq!(again, bytes);
        accepted += 1;
        if head.size() <= SMALL {
            exercise(&mut head.build().expect("memory"));
        }
    }
    println!("{accepted} accepted");
    assert!(accepted > CASES / 20);
}

#[test]
fn mutated_heads_of_bloom_filters_never_panic() {
    fuzz_heads::<Bloom>(0xb100_0001);
}

#[test]
fn mutated_heads_of_cuckoo_filters_never_panic() {
    fuzz_heads::<Cuckoo>(0xc0c0_0001);
}

fn fuzz_pieces<K: Forged>(seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut source = K::head(7, 30).build().expect("memory");
    fill(&mut source, 0..40);
    let data: Vec<u8> = (0..source.layers.len())
        .flat_map(|layer| source.layers[layer].lines.segment(0).to_vec())
        .collect();
    let size = data.len() as u64;
    let empty = || header_of(&source).build().expect("memory");
    let mut filter = empty();
    let mut accepted = 0;
    for round in 0..CASES {
        if round % 50 == 0 {
            filter = empty();
        }
        let from = random.below(size + 1) as usize;
        let to = from + random.below(size - from as u64 + 1) as usize;
        let mut piece = Vec::new();
        put_piece(&mut piece, 7, from as u64, &data[from..to]);
        let position = match random.below(5) {
            0 => *random.one(&NUMBERS),
            1 => u64::MAX - random.below(size + 9),
            _ => from as u64,
        };
        if random.below(2) == 0 {
            piece = mutated(&mut random, &piece, std::slice::from_ref(&data));
        }
        let end = position.wrapping_add(piece.len() as u64).wrapping_sub(8);
        if let Ok(start) = start_of(&piece, end) {
            assert_eq!(start, position);
        }
        let loaded = load_piece(&mut filter, position, &piece);
        if position >= size {
            assert_ne!(loaded, Ok(true)); // left out at most
        } else if loaded.is_ok() {
            // Only what was written for this very place.
            let length = piece.len() as u64 - 8;
            let own = &data[position as usize..(position + length) as usize];
            assert_eq!(own, &piece[..length as usize]);
            accepted += 1;
        }
        if round % 100 == 0 {
            // Whole, for its place, and longer than the filter.
            let more = 1 + random.below(100) as usize;
            let long = [&data[from..], &vec![1; more]].concat();
            for position in [from as u64, size, u64::MAX - random.below(99)] {
                let mut piece = Vec::new();
                put_piece(&mut piece, 7, position, &long);
                assert_ne!(load_piece(&mut filter, position, &piece), Ok(true));
            }
        }
        if round % 500 == 0 {
            exercise(&mut filter);
            filter = empty();
        }
    }
    println!("{accepted} accepted");
    assert!(accepted > CASES / 10);
}

#[test]
fn mutated_pieces_of_bloom_filters_never_panic_and_never_load_at_another_place() {
    fuzz_pieces::<Bloom>(0xb100_0002);
}

#[test]
fn mutated_pieces_of_cuckoo_filters_never_panic_and_never_load_at_another_place() {
    fuzz_pieces::<Cuckoo>(0xc0c0_0002);
}

fn fuzz_effects<K: Forged>(seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let filter = K::head(7, 30).build().expect("memory");
    let mut read = 0;
    for _ in 0..CASES {
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(3) {
            forged_effect::<K>(&mut random, &mut bytes);
        }
        if random.below(4) > 0 {
            bytes = mutated(&mut random, &bytes, std::slice::from_ref(&bytes));
        }
        let known = (random.below(2) == 0).then_some(&filter);
        if let Ok(effects) = effects::<K>(&bytes, known) {
            read += effects.len() as u64;
        }
    }
    println!("{read} read");
    assert!(read > CASES / 5);
}

#[test]
fn mutated_effects_never_panic() {
    fuzz_effects::<Bloom>(0xb100_0003);
    fuzz_effects::<Cuckoo>(0xc0c0_0003);
}
