//! What the commands of cuckoo filters reply and do, sentence by sentence of the contract.

use sluice::cuckoo::state::{Cuckoo, Terms};
use sluice::filter::persist::put_head;
use sluice::filter::state::Head;

use crate::support::filter::{
    BAD_CAPACITY, BAD_DATA, BAD_EXPANSION, CAPACITY_RANGE, EXPANSION_RANGE, ITEM_EXISTS, Kind,
    NO_INTEGERS, OUT_OF_MEMORY, TOO_LARGE, assert_holds_numbers, count, dump, each, load_chunk,
    number, server_and_both, shown, value_digest,
};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SYNTAX, Server, Value, WRONGTYPE, Written,
    assert_identical, field_of, follow, ints, server_and_client,
};

const MISSING: &str = "ERR Not found";
const FULL: &str = "ERR Filter is full";
const NO_MORE_LAYERS: &str = "ERR Maximum expansions reached";

/// A number that `CF.INFO` tells.
#[track_caller]
fn info(client: &mut Raw, key: &str, field: &str) -> i64 {
    number(client, Kind::Cuckoo, key, field)
}

/// Layers, items, and how many were deleted.
#[track_caller]
fn counts(client: &mut Raw, key: &str) -> [i64; 3] {
    let info = client.must(&format!("CF.INFO {key}"));
    let number = |field: &str| info.field(field).int();
    [
        number("Number of filters"),
        number("Number of items inserted"),
        number("Number of items deleted"),
    ]
}

// RESERVE, INFO

#[test]
fn info_shows_what_was_reserved_flat_in_resp2_and_as_a_map_in_resp3() {
    let (_server, mut client, mut third) = server_and_both();
    for (line, [bucket_size, expansion, iterations]) in [
        ("CF.RESERVE a 1000", [4, 1, 20]),
        (
            "CF.RESERVE b 1000 BUCKETSIZE 2 MAXITERATIONS 5 EXPANSION 4",
            [2, 4, 5],
        ),
        (
            "cf.reserve c 1000 expansion 0 maxIterations 65535 bucketsize 255",
            [255, 0, 65535],
        ),
        (
            "CF.RESERVE d 1000 MAXITERATIONS 1 BITS 8 BUCKETSIZE 1",
            [1, 1, 1],
        ),
        // An expansion is rounded up to a power of two.
        ("CF.RESERVE e 1000 EXPANSION 3", [4, 4, 20]),
        ("CF.RESERVE f 1000 EXPANSION 5 BITS 32", [4, 8, 20]),
        ("CF.RESERVE g 1000 EXPANSION 32768 bits 16", [4, 32768, 20]),
        ("CF.RESERVE h 1000 EXPANSION 16385", [4, 32768, 20]),
        ("CF.RESERVE i 1", [4, 1, 20]),
    ] {
        assert_eq!(client.run(line), "OK", "{line}");
        let key = line.split(' ').nth(1).expect("a key");
        let Value::Array(flat) = client.run(&format!("CF.INFO {key}")) else {
            panic!("no array");
        };
        let Value::Map(map) = third.run(&format!("CF.INFO {key}")) else {
            panic!("no map");
        };
        let names = [
            "Size",
            "Number of buckets",
            "Number of filters",
            "Number of items inserted",
            "Number of items deleted",
            "Bucket size",
            "Expansion rate",
            "Max iterations",
        ];
        assert_eq!((flat.len(), map.len()), (16, 8));
        for (index, name) in names.into_iter().enumerate() {
            assert_eq!(flat[2 * index], name, "{line}");
            let pair = (flat[2 * index].clone(), flat[2 * index + 1].clone());
            assert_eq!(map[index], pair, "{line}");
        }
        let values: Vec<_> = (0..8).map(|index| flat[2 * index + 1].int()).collect();
        let expected = [1, 0, 0, bucket_size, expansion, iterations];
        assert_eq!(values[2..], expected, "{line}");
        let (size, buckets) = (values[0], values[1]);
        assert!(size >= 64 && buckets >= 1, "{line}: {size} {buckets}");
    }
    for client in [&mut client, &mut third] {
        assert_eq!(client.run("CF.INFO none").err(), MISSING);
    }
}

#[test]
fn the_width_of_fingerprints_shows_in_the_size_and_in_the_rate() {
    let (_server, mut client) = server_and_client();
    let mut sizes = Vec::new();
    for (bits, most) in [(8, 20_000), (16, 80), (32, 0)] {
        let key = format!("k{bits}");
        client.must(&format!("CF.RESERVE {key} 100000 EXPANSION 0 BITS {bits}"));
        let all = count(&mut client, &format!("CF.INSERT {key} ITEMS"), 0..100_000);
        assert_eq!(all, 100_000);
        assert_holds_numbers(&mut client, Kind::Cuckoo, &key, 0..100_000);
        // Up to eight fingerprints are looked at: 8 / 2^bits. The bounds are above twice that, with 32 bits above
        // 50 000 times that.
        let never = 1 << 40;
        let found = count(
            &mut client,
            &format!("CF.MEXISTS {key}"),
            never..never + 300_000,
        );
        assert!(found <= most, "{bits}: {found}");
        let size = info(&mut client, &key, "Size");
        let used = client.must(&format!("MEMORY USAGE {key}")).int();
        assert!(
            used >= size && used < size + size / 10 + 1000,
            "{used} {size}"
        );
        sizes.push(size);
    }
    client.must("CF.RESERVE default 100000");
    assert_eq!(info(&mut client, "default", "Size"), sizes[1]);
    assert!(
        sizes[1] > sizes[0] * 19 / 10 && sizes[2] > sizes[1] * 19 / 10,
        "{sizes:?}"
    );
}

#[test]
fn bad_properties_are_refused_with_the_texts_that_clients_know() {
    let (server, mut client) = server_and_client();
    client.must("CF.RESERVE there 100");
    let digest = server.digest();
    let mut cases: Vec<(Vec<&str>, &str)> = Vec::new();
    for text in NO_INTEGERS {
        cases.push((vec!["CF.RESERVE", "KEY", text], BAD_CAPACITY));
        let line = vec!["CF.RESERVE", "KEY", "100", "EXPANSION", text];
        cases.push((line, BAD_EXPANSION));
        for option in ["BUCKETSIZE", "maxiterations", "Bits"] {
            cases.push((
                vec!["CF.RESERVE", "KEY", "100", option, text],
                NOT_AN_INTEGER,
            ));
        }
        for name in ["CF.INSERT", "CF.INSERTNX"] {
            let line = vec![name, "KEY", "CAPACITY", text, "ITEMS", "a"];
            cases.push((line, BAD_CAPACITY));
        }
    }
    for capacity in ["0", "-1", "1073741825", "9223372036854775807"] {
        cases.push((vec!["CF.RESERVE", "KEY", capacity], CAPACITY_RANGE));
        for name in ["CF.INSERT", "CF.INSERTNX"] {
            let line = vec![name, "KEY", "CAPACITY", capacity, "ITEMS", "a"];
            cases.push((line, CAPACITY_RANGE));
        }
    }
    for expansion in ["-1", "32769", "9223372036854775807"] {
        let line = vec!["CF.RESERVE", "KEY", "100", "EXPANSION", expansion];
        cases.push((line, EXPANSION_RANGE));
    }
    for (option, values, error) in [
        (
            "BUCKETSIZE",
            ["0", "-1", "256", "9223372036854775807"],
            "ERR BUCKETSIZE must be between 1 and 255",
        ),
        (
            "MAXITERATIONS",
            ["0", "-1", "65536", "9223372036854775807"],
            "ERR MAXITERATIONS must be between 1 and 65535",
        ),
        (
            "BITS",
            ["9", "10", "24", "31"],
            "ERR BITS must be 8, 16 or 32",
        ),
    ] {
        for value in values {
            cases.push((vec!["CF.RESERVE", "KEY", "100", option, value], error));
        }
    }
    for (line, error) in &cases {
        for key in ["new", "there"] {
            let line: Vec<_> = line
                .iter()
                .map(|word| if *word == "KEY" { key } else { word })
                .collect();
            assert_eq!(client.call(&line).err(), *error, "{line:?}");
        }
    }
    for bits in ["0", "-8", "7", "33", "64"] {
        let reply = client.call(["CF.RESERVE", "new", "100", "BITS", bits]);
        assert!(reply.err().starts_with("ERR BITS must be "), "{reply:?}");
    }
    for line in [
        "CF.RESERVE there 100",
        "CF.RESERVE there 5 EXPANSION 0 BITS 8",
    ] {
        assert_eq!(client.run(line).err(), ITEM_EXISTS, "{line}");
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(client.run("EXISTS new"), 0);
}

#[test]
fn missing_repeated_and_unknown_options_are_syntax_errors() {
    let (server, mut client) = server_and_client();
    for line in [
        "CF.RESERVE k 100 BOGUS",
        "CF.RESERVE k 100 4",
        "CF.RESERVE k 100 BUCKETSIZE",
        "CF.RESERVE k 100 MAXITERATIONS",
        "CF.RESERVE k 100 EXPANSION",
        "CF.RESERVE k 100 BITS",
        "CF.RESERVE k 100 BUCKETSIZE 4 bucketsize 4",
        "CF.RESERVE k 100 MAXITERATIONS 4 MAXITERATIONS 4",
        "CF.RESERVE k 100 EXPANSION 4 Expansion 4",
        "CF.RESERVE k 100 BITS 8 BITS 8",
        "CF.RESERVE k 100 CAPACITY 5",
        "CF.RESERVE k 100 NOCREATE",
        "CF.RESERVE k 100 NONSCALING",
        "CF.RESERVE k 100 LIKE other",
        "CF.RESERVE k 100 ITEMS a",
        "CF.RESERVE k 100 BUCKETSIZES 4",
        "CF.RESERVE k 100 BUCKETSIZE 4 BITS",
        "CF.INSERT k NOCREATE ITEMS",
        "CF.INSERT k a b",
        "CF.INSERT k BOGUS ITEMS a",
        "CF.INSERT k CAPACITY 5 NOCREATE",
        "CF.INSERT k CAPACITY 5 CAPACITY 5 ITEMS a",
        "CF.INSERT k NOCREATE NOCREATE ITEMS a",
        "CF.INSERT k EXPANSION 2 ITEMS a",
        "CF.INSERT k BUCKETSIZE 2 ITEMS a",
        "CF.INSERT k BITS 8 ITEMS a",
        "CF.INSERT k ERROR 0.1 ITEMS a",
        "CF.INSERTNX k NOCREATE ITEMS",
        "CF.INSERTNX k a b",
        "CF.INSERTNX k NONSCALING ITEMS a",
        "CF.INSERTNX k CAPACITY 5 capacity 5 ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    assert_eq!(
        client.run("CF.INSERT k CAPACITY ITEMS a").err(),
        BAD_CAPACITY
    );
    for (line, name) in [
        ("CF.RESERVE k", "cf.reserve"),
        ("CF.ADD k", "cf.add"),
        ("CF.ADD k a b", "cf.add"),
        ("CF.ADDNX k", "cf.addnx"),
        ("CF.ADDNX k a b", "cf.addnx"),
        ("CF.INSERT k ITEMS", "cf.insert"),
        ("CF.INSERTNX k ITEMS", "cf.insertnx"),
        ("CF.EXISTS k", "cf.exists"),
        ("CF.EXISTS k a b", "cf.exists"),
        ("CF.MEXISTS k", "cf.mexists"),
        ("CF.COUNT k", "cf.count"),
        ("CF.COUNT k a b", "cf.count"),
        ("CF.DEL k", "cf.del"),
        ("CF.DEL k a b", "cf.del"),
        ("CF.COMPACT", "cf.compact"),
        ("CF.COMPACT k x", "cf.compact"),
        ("CF.INFO", "cf.info"),
        ("CF.INFO k SIZE", "cf.info"),
        ("CF.SCANDUMP k", "cf.scandump"),
        ("CF.LOADCHUNK k 1", "cf.loadchunk"),
    ] {
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(client.run(line).err(), expected, "{line}");
    }
    assert_eq!(client.run("DBSIZE"), 0);
    assert_eq!(server.info_int("sluice_filter_keys"), 0);
}

// ADD, ADDNX, INSERT, INSERTNX, ITEM_EXISTS, MEXISTS, COUNT, DEL

#[test]
fn replies_are_integers_in_resp2_and_booleans_in_resp3_but_for_count_and_insertnx() {
    let (_server, mut two, mut three) = server_and_both();
    for (protocol, client) in [("2", &mut two), ("3", &mut three)] {
        let key = format!("k{protocol}");
        // `yes` and `no` are 1 and 0 in RESP2, true and false in RESP3; what is written as a number is one in both.
        for (line, expected) in [
            ("CF.ADD K a", "yes"),
            ("CF.ADD K a", "yes"),
            ("CF.ADDNX K a", "no"),
            ("CF.ADDNX K b", "yes"),
            ("CF.EXISTS K a", "yes"),
            ("CF.EXISTS K z", "no"),
            ("CF.MEXISTS K a z b", "[yes, no, yes]"),
            ("CF.MEXISTS K z", "[no]"),
            ("CF.INSERT K ITEMS a c", "[yes, yes]"),
            ("CF.INSERTNX K ITEMS a d c", "[0, 1, 0]"),
            ("CF.INSERTNX K ITEMS e e", "[1, 0]"),
            ("CF.COUNT K a", "3"),
            ("CF.COUNT K z", "0"),
            ("CF.DEL K a", "yes"),
            ("CF.DEL K z", "no"),
            ("CF.COUNT K a", "2"),
            ("CF.EXISTS none a", "no"),
            ("CF.MEXISTS none a b", "[no, no]"),
            ("CF.COUNT none a", "0"),
        ] {
            let (yes, no) = match protocol {
                "2" => ("1", "0"),
                _ => ("true", "false"),
            };
            let expected = expected.replace("yes", yes).replace("no", no);
            let reply = client.run(&line.replace(" K ", &format!(" {key} ")));
            assert_eq!(format!("{reply:?}"), expected, "RESP{protocol}: {line}");
        }
    }
}

#[test]
fn missing_keys_are_not_found_by_commands_that_need_a_filter_and_made_by_adds() {
    let (_server, mut client) = server_and_client();
    for line in [
        "CF.DEL none a",
        "CF.COMPACT none",
        "CF.INFO none",
        "CF.SCANDUMP none 0",
        "CF.SCANDUMP none 5",
        "CF.LOADCHUNK none 2 x",
        "CF.INSERT none NOCREATE ITEMS a",
        "CF.INSERTNX none CAPACITY 5 NOCREATE ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), MISSING, "{line}");
    }
    assert_eq!(client.run("CF.EXISTS none a"), 0);
    assert_eq!(ints(&client.run("CF.MEXISTS none a b")), [0, 0]);
    assert_eq!(client.run("CF.COUNT none a"), 0);
    assert_eq!(client.run("DBSIZE"), 0);
    client.must("CF.RESERVE like 1024");
    let like = info(&mut client, "like", "Size");
    for line in [
        "CF.ADD a x",
        "CF.ADDNX b x",
        "CF.INSERT c ITEMS x",
        "CF.INSERTNX d ITEMS x",
    ] {
        client.must(line);
        let key = line.split(' ').nth(1).expect("a key");
        assert_eq!(info(&mut client, key, "Size"), like, "{line}");
        assert_eq!(counts(&mut client, key), [1, 1, 0], "{line}");
    }
    for line in [
        "CF.INSERT e CAPACITY 10000 ITEMS x",
        "CF.INSERTNX f capacity 10000 items x",
    ] {
        client.must(line);
        let key = line.split(' ').nth(1).expect("a key");
        assert!(info(&mut client, key, "Size") > 8 * like, "{line}");
    }
    // They are of no effect on a filter that is there.
    client.must("CF.INSERT e NOCREATE CAPACITY 5 ITEMS y");
    assert_eq!(counts(&mut client, "e"), [1, 2, 0]);
    let reply = client.must("CF.INSERT g ITEMS ITEMS NOCREATE CAPACITY 5");
    assert_eq!(ints(&reply), [1, 1, 1, 1]);
    client.must("CONFIG SET sluice.cuckoo-capacity 50000");
    client.must("CF.ADD h x");
    assert!(info(&mut client, "h", "Size") > 40 * like);
    client.must("CF.INSERT i CAPACITY 1024 ITEMS x");
    assert_eq!(info(&mut client, "i", "Size"), like);
}

#[test]
fn items_and_keys_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let long = vec![0x5a; 1_000_000];
    let items: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"\xff\xfe", b" ", b"a\r\nb", &long];
    for key in [b"".as_slice(), b"\0\xff\r\n"] {
        let reserve = [b"CF.RESERVE".as_slice(), key, b"100", b"BITS", b"32"];
        assert_eq!(client.call(reserve), "OK");
        for item in items {
            for (name, expected) in [
                ("CF.EXISTS", 0),
                ("CF.ADDNX", 1),
                ("CF.ADDNX", 0),
                ("CF.ADD", 1),
                ("CF.COUNT", 2),
                ("CF.EXISTS", 1),
                ("CF.DEL", 1),
                ("CF.DEL", 1),
                ("CF.DEL", 0),
                ("CF.ADD", 1),
            ] {
                let command = [name.as_bytes(), key, item];
                assert_eq!(client.call(command), expected, "{name}");
            }
        }
        let mut all = vec![b"CF.MEXISTS".as_slice(), key];
        all.extend(items);
        assert_eq!(ints(&client.call(all)), [1; 7]);
    }
}

#[test]
fn an_item_is_counted_and_deleted_as_often_as_it_was_added() {
    let (_server, mut client) = server_and_client();
    for (bucket_size, width) in [(1, 32), (2, 16), (4, 32), (7, 32), (100, 16), (255, 8)] {
        client.must("DEL k");
        client.must(&format!(
            "CF.RESERVE k 10000 BUCKETSIZE {bucket_size} BITS {width} EXPANSION 2"
        ));
        // More often than the buckets of one layer have slots.
        for count in 1..=3 * bucket_size {
            assert_eq!(client.run("CF.ADD k a"), 1);
            assert_eq!(client.run("CF.COUNT k a"), count);
        }
        let [layers, items, _] = counts(&mut client, "k");
        assert!(layers >= 2 && items == 3 * bucket_size, "{layers} {items}");
        for count in (0..3 * bucket_size).rev() {
            assert_eq!(client.run("CF.EXISTS k a"), 1);
            assert_eq!(client.run("CF.DEL k a"), 1);
            assert_eq!(client.run("CF.COUNT k a"), count);
        }
        assert_eq!(client.run("CF.EXISTS k a"), 0);
        assert_eq!(client.run("CF.DEL k a"), 0);
        let counts = counts(&mut client, "k");
        assert_eq!(counts, [layers, 0, 3 * bucket_size]);
    }
}

#[test]
fn deleting_items_denies_no_others_and_makes_room() {
    let (_server, mut client) = server_and_client();
    client.must("CF.RESERVE k 20000 EXPANSION 0 BITS 32");
    assert_eq!(count(&mut client, "CF.INSERT k ITEMS", 0..20_000), 20_000);
    for round in 0..3u64 {
        // The older half goes, and as many come.
        let start = round * 10_000;
        for item in start..start + 10_000 {
            client.send([b"CF.DEL".as_slice(), b"k", &item.to_le_bytes()]);
            if item % 500 == 499 {
                (0..500).for_each(|_| assert_eq!(client.read(), 1));
            }
        }
        assert_holds_numbers(
            &mut client,
            Kind::Cuckoo,
            "k",
            start + 10_000..start + 20_000,
        );
        let gone = count(&mut client, "CF.MEXISTS k", start..start + 10_000);
        assert!(gone <= 2, "{gone} are still there"); // 8 / 2^32 for each
        let fresh = start + 20_000..start + 30_000;
        assert_eq!(count(&mut client, "CF.INSERT k ITEMS", fresh), 10_000);
        assert_holds_numbers(
            &mut client,
            Kind::Cuckoo,
            "k",
            start + 10_000..start + 30_000,
        );
    }
    assert_eq!(counts(&mut client, "k"), [1, 20_000, 30_000]);
}

#[test]
fn what_an_m_command_says_of_many_items_is_what_single_commands_say() {
    let (_server, mut client) = server_and_client();
    client.must("CF.RESERVE k 500 BITS 8");
    let chunks = dump(&mut client, Kind::Cuckoo, "k");
    for key in ["one", "many"] {
        // The same seed.
        for (iterator, data) in &chunks {
            load_chunk(&mut client, Kind::Cuckoo, key, *iterator, data);
        }
    }
    let items: Vec<_> = (0..1500).map(|index| (index * 7919) % 1000).collect();
    for batch in items.chunks(97) {
        let words: String = batch.iter().map(|item| format!(" i{item}")).collect();
        let many = ints(&client.must(&format!("CF.INSERTNX many ITEMS{words}")));
        let lines = batch.iter().map(|item| format!("CF.ADDNX one i{item}"));
        let one: Vec<_> = client.run_all(lines).iter().map(Value::int).collect();
        assert_eq!(one, many);
        let many = ints(&client.must(&format!("CF.MEXISTS many{words}")));
        assert_eq!(many, vec![1; batch.len()]);
    }
    assert_eq!(
        value_digest(&mut client, "one"),
        value_digest(&mut client, "many")
    );
}

// Capacity and growth

/// So many different items find room in a filter that may not expand, whatever its buckets and fingerprints are.
#[track_caller]
fn check_capacity(client: &mut Raw, capacity: u64, bucket_size: u64, width: u64) {
    let key = format!("k{capacity}-{bucket_size}-{width}");
    client.must(&format!(
        "CF.RESERVE {key} {capacity} BUCKETSIZE {bucket_size} BITS {width} EXPANSION 0"
    ));
    let mut refused = 0;
    each(
        client,
        &format!("CF.INSERT {key} ITEMS"),
        0..capacity,
        |_, reply| {
            refused += u64::from(*reply != 1);
        },
    );
    assert_eq!(
        refused, 0,
        "{refused} items find no room: capacity {capacity}, bucket size {bucket_size}, {width} bits"
    );
    let [layers, items, deleted] = counts(client, &key);
    assert_eq!([items, deleted], [capacity as i64, 0], "{key}");
    // In small tables, and in buckets of one, some items may need a layer of their own.
    assert!(
        layers == 1 || layers == 2 && (capacity < 1000 || bucket_size == 1),
        "{key}"
    );
    assert_holds_numbers(client, Kind::Cuckoo, &key, 0..capacity);
    client.must(&format!("DEL {key}"));
}

/// Each filter has a seed of its own, and in small tables some seeds are worse than others: so each is tried often.
#[test]
fn small_capacities_really_hold() {
    const TRIES: usize = 20;
    let (_server, mut client) = server_and_client();
    let mut failures = Vec::new();
    for bucket_size in [1, 2, 3, 4, 5, 8, 16, 255] {
        for width in [8, 16, 32] {
            for capacity in [
                1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 20, 31, 33, 40, 64, 100, 333,
            ] {
                let items: String = (0..capacity).map(|item| format!(" i{item}")).collect();
                let lines = (0..TRIES).flat_map(|number| {
                    [
                        format!(
                            "CF.RESERVE k{number} {capacity} BUCKETSIZE {bucket_size} BITS {width} EXPANSION 0"
                        ),
                        format!("CF.INSERT k{number} ITEMS{items}"),
                        format!("DEL k{number}"),
                    ]
                });
                let replies = client.run_all(lines);
                let refused = |reply: &&Value| ints(reply).contains(&-1);
                let failed = replies.iter().skip(1).step_by(3).filter(refused).count();
                if failed > 0 {
                    failures.push(format!(
                        "{failed} of {TRIES}: capacity {capacity}, bucket size {bucket_size}, {width} bits"
                    ));
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "filters that do not hold their capacity:\n{}",
        failures.join("\n")
    );
}

#[test]
fn large_capacities_really_hold() {
    let (_server, mut client) = server_and_client();
    for capacity in [5000, 65_536, 100_000] {
        for bucket_size in [1, 2, 4, 8, 64] {
            for width in [16, 32] {
                check_capacity(&mut client, capacity, bucket_size, width);
            }
        }
    }
}

#[test]
fn capacities_hold_with_narrow_fingerprints() {
    let (_server, mut client) = server_and_client();
    for capacity in [1000, 5000, 50_000, 100_000] {
        for bucket_size in [2, 3, 4, 8, 64, 255] {
            check_capacity(&mut client, capacity, bucket_size, 8);
        }
    }
}

/// 255 fingerprints and two slots for each item: many items have the same two.
#[test]
fn capacities_hold_with_narrow_fingerprints_in_buckets_of_one() {
    let (_server, mut client) = server_and_client();
    for capacity in [1000, 5000, 50_000, 100_000, 100_000, 100_000] {
        check_capacity(&mut client, capacity, 1, 8);
    }
}

/// Items come one by one as well as in batches, and the number of iterations is no limit below the capacity.
#[test]
fn a_capacity_holds_with_the_fewest_iterations() {
    let (_server, mut client) = server_and_client();
    client.must("CF.RESERVE k 3000 EXPANSION 0 MAXITERATIONS 1");
    for item in 0..3000u64 {
        let reply = client.call([b"CF.ADDNX".as_slice(), b"k", &item.to_le_bytes()]);
        // With 16 bits some of them seem to be there.
        assert!(!reply.is_err(), "{item}: {reply:?}");
    }
    let items = info(&mut client, "k", "Number of items inserted");
    assert!(items > 2980, "{items}");
}

#[test]
fn a_filter_that_does_not_expand_is_full_at_last_and_keeps_what_it_has() {
    let (server, mut client, mut third) = server_and_both();
    client.must("CF.RESERVE k 100 EXPANSION 0 BITS 32");
    let mut held = Vec::new();
    each(
        &mut client,
        "CF.INSERT k ITEMS",
        0..1000,
        |item, reply| match reply.int() {
            1 => held.push(item),
            -1 => {}
            other => panic!("{other}"),
        },
    );
    assert!((100..200).contains(&held.len()), "{}", held.len());
    let items = held.len() as i64;
    assert_eq!(counts(&mut client, "k"), [1, items, 0]);
    let full = 1000 - items;
    assert_eq!(server.info_int("sluice_filter_full"), full);
    // Until no slot is left: every new item is refused then.
    each(
        &mut client,
        "CF.INSERT k ITEMS",
        1000..200_000,
        |item, reply| {
            if reply.int() == 1 {
                held.push(item);
            }
        },
    );
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), FULL);
    assert_eq!(client.run("CF.ADDNX k new").err(), FULL);
    assert_eq!(third.run("CF.ADD k new").err(), FULL);
    let known = held[0].to_le_bytes();
    let insertnx = [b"CF.INSERTNX".as_slice(), b"k", b"ITEMS", b"new", &known];
    let insert = [b"CF.INSERT".as_slice(), b"k", b"ITEMS", b"new", b"newer"];
    for client in [&mut client, &mut third] {
        assert_eq!(shown(&client.call(insertnx)), ["-1", "0"]);
    }
    assert_eq!(shown(&client.call(insert)), ["-1", "-1"]);
    assert_eq!(shown(&third.call(insert)), ["false", "false"]);
    assert_eq!(server.digest(), digest);
    for item in &held {
        let exists = [b"CF.EXISTS".as_slice(), b"k", &item.to_le_bytes()];
        assert_eq!(client.call(exists), 1);
    }
    // What is taken out makes room for another.
    assert_eq!(client.call([b"CF.DEL".as_slice(), b"k", &known]), 1);
    let again = [b"CF.ADD".as_slice(), b"k", &known];
    assert_eq!(client.call(again), 1);
}

#[test]
fn a_filter_grows_layer_by_layer_and_denies_nothing() {
    let (_server, mut client) = server_and_client();
    for (expansion, bucket_size, width, items) in [
        (1, 4, 16, 20_000),
        (2, 4, 16, 200_000),
        (4, 2, 32, 200_000),
        (2, 1, 16, 100_000),
        (32, 8, 8, 100_000),
        (32768, 4, 16, 20_000),
    ] {
        client.must("DEL k");
        client.must(&format!(
            "CF.RESERVE k 1000 EXPANSION {expansion} BUCKETSIZE {bucket_size} BITS {width}"
        ));
        let added = count(&mut client, "CF.INSERT k ITEMS", 0..items);
        assert_eq!(added, items, "{expansion}");
        let [layers, inserted, deleted] = counts(&mut client, "k");
        assert_eq!((inserted, deleted), (items as i64, 0));
        assert!(layers >= 2, "{expansion}: {layers}");
        // Each layer holds its capacity before the next one comes.
        let (mut capacity, mut layer, mut most) = (1000, 1000, 1);
        while capacity < items {
            layer *= expansion;
            capacity += layer;
            most += 1;
        }
        assert!(layers <= most, "{expansion}: {layers} layers, not {most}");
        assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..items);
    }
}

#[test]
fn after_thirty_two_layers_no_more_come() {
    let (server, mut client, mut third) = server_and_both();
    client.must("CF.RESERVE k 1 EXPANSION 1 BUCKETSIZE 1 BITS 32");
    let mut held = Vec::new();
    let mut refused = 0;
    for item in 0..5000u64 {
        let reply = client.call([b"CF.ADD".as_slice(), b"k", &item.to_le_bytes()]);
        match reply {
            Value::Error(text) => {
                assert_eq!(text, NO_MORE_LAYERS, "{item}");
                refused += 1;
            }
            reply => {
                assert_eq!(reply, 1);
                held.push(item);
            }
        }
    }
    assert!(held.len() >= 32 && refused > 0, "{} {refused}", held.len());
    assert_eq!(counts(&mut client, "k"), [32, held.len() as i64, 0]);
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), NO_MORE_LAYERS);
    assert_eq!(client.run("CF.ADDNX k new").err(), NO_MORE_LAYERS);
    assert_eq!(shown(&client.run("CF.INSERT k ITEMS new newer")), ["-1"; 2]);
    assert_eq!(shown(&third.run("CF.INSERT k ITEMS new")), ["false"]);
    assert_eq!(shown(&third.run("CF.INSERTNX k ITEMS new")), ["-1"]);
    assert_eq!(server.digest(), digest);
    assert_eq!(server.info_int("sluice_filter_full"), refused + 6);
    for item in held {
        let exists = [b"CF.EXISTS".as_slice(), b"k", &item.to_le_bytes()];
        assert_eq!(client.call(exists), 1, "{item}");
    }
    // The same item comes to its end as well: it fills both its buckets of every layer.
    client.must("CF.RESERVE same 1000 EXPANSION 1 BUCKETSIZE 2 BITS 32");
    let mut times = 0;
    let reply = loop {
        match client.run("CF.ADD same a") {
            Value::Int(1) => times += 1,
            other => break other,
        }
    };
    assert_eq!(reply.err(), NO_MORE_LAYERS);
    // Both buckets may be one.
    assert!([64, 128].contains(&times), "{times}");
    assert_eq!(client.run("CF.COUNT same a"), times);
    assert_eq!(client.run("CF.ADD same b"), 1);
}

// COMPACT

#[test]
fn compact_moves_items_to_the_first_layers_and_frees_the_others() {
    let (_server, mut client) = server_and_client();
    for (expansion, bucket_size, width) in [(1, 4, 16), (2, 4, 32), (4, 2, 8), (2, 1, 16)] {
        client.must("DEL k");
        client.must(&format!(
            "CF.RESERVE k 1000 EXPANSION {expansion} BUCKETSIZE {bucket_size} BITS {width}"
        ));
        let all = count(&mut client, "CF.INSERT k ITEMS", 0..10_000);
        assert_eq!(all, 10_000);
        let [layers, ..] = counts(&mut client, "k");
        let size = info(&mut client, "k", "Size");
        for item in 500..10_000u64 {
            client.send([b"CF.DEL".as_slice(), b"k", &item.to_le_bytes()]);
            if item % 500 == 499 {
                (0..500).for_each(|_| assert_eq!(client.read(), 1));
            }
        }
        // Narrow fingerprints: one that looks like another may have been taken for it, none is lost.
        assert_eq!(counts(&mut client, "k"), [layers, 500, 9500]);
        let denied = 500 - count(&mut client, "CF.MEXISTS k", 0..500);
        assert_eq!(denied, 0, "{denied} denied before");
        assert_eq!(client.run("CF.COMPACT k"), "OK");
        let [left, items, deleted] = counts(&mut client, "k");
        assert_eq!((items, deleted), (500, 9500));
        assert!(left < layers, "{left} of {layers} layers");
        assert!(info(&mut client, "k", "Size") < size);
        assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..500);
        // And it grows again.
        assert_eq!(
            count(&mut client, "CF.INSERT k ITEMS", 20_000..25_000),
            5000
        );
        assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..500);
        assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 20_000..25_000);
    }
}

#[test]
fn compact_keeps_full_filters_and_counts_as_they_are() {
    let (server, mut client) = server_and_client();
    client.must("CF.RESERVE k 1000 EXPANSION 2 BITS 32");
    for _ in 0..20 {
        client.must("CF.ADD k often");
    }
    assert_eq!(count(&mut client, "CF.INSERT k ITEMS", 0..6000), 6000);
    assert_eq!(client.run("CF.COMPACT k"), "OK");
    assert_eq!(client.run("CF.COUNT k often"), 20);
    assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..6000);
    assert_eq!(info(&mut client, "k", "Number of items inserted"), 6020);
    // A second time there is nothing to move.
    let digest = server.digest();
    assert_eq!(client.run("CF.COMPACT k"), "OK");
    assert_eq!(server.digest(), digest);
    client.must("CF.RESERVE empty 100");
    assert_eq!(client.run("CF.COMPACT empty"), "OK");
    assert_eq!(counts(&mut client, "empty"), [1, 0, 0]);
    for _ in 0..20 {
        assert_eq!(client.run("CF.DEL k often"), 1);
    }
    assert_eq!(client.run("CF.DEL k often"), 0);
}

// Limits of memory

#[test]
fn filters_and_layers_beyond_bloom_max_bytes_are_refused() {
    let (server, mut client) = server_and_client();
    client.must("CONFIG SET sluice.bloom-max-bytes 4000");
    let digest = server.digest();
    for line in [
        "CF.RESERVE k 10000",
        "CF.RESERVE k 1000 BITS 32",
        "CF.RESERVE k 1073741824 BITS 32",
        "CF.RESERVE k 1073741824 BITS 32 BUCKETSIZE 1",
        "CF.INSERT k CAPACITY 10000 ITEMS a",
        "CF.INSERTNX k CAPACITY 10000 ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    client.must("CONFIG SET sluice.cuckoo-capacity 10000");
    for line in ["CF.ADD k a", "CF.ADDNX k a", "CF.INSERT k ITEMS a"] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 9);
    assert_eq!(client.run("EXISTS k"), 0);
    // A layer that would be too much.
    client.must("CF.RESERVE k 1000 EXPANSION 2");
    let mut held = 0;
    each(&mut client, "CF.INSERT k ITEMS", 0..3000, |_, reply| {
        held += i64::from(*reply == 1);
    });
    assert!((1000..2000).contains(&held), "{held}");
    assert_eq!(counts(&mut client, "k"), [1, held, 0]);
    // Until no slot is left.
    count_added(&mut client, "k", 3000..200_000);
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), TOO_LARGE);
    assert_eq!(shown(&client.run("CF.INSERT k ITEMS new")), ["-1"]);
    assert_eq!(server.digest(), digest);
    assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..1000);
    client.must("CONFIG SET sluice.bloom-max-bytes 40000");
    assert_eq!(client.run("CF.ADD k new"), 1);
    assert_eq!(counts(&mut client, "k")[0], 2);
}

#[track_caller]
fn count_added(client: &mut Raw, key: &str, range: std::ops::Range<u64>) -> i64 {
    let mut added = 0;
    each(
        client,
        &format!("CF.INSERT {key} ITEMS"),
        range,
        |_, reply| {
            added += i64::from(*reply == 1);
        },
    );
    added
}

#[test]
fn maxmemory_refuses_filters_and_layers_and_lets_items_be_deleted() {
    let (server, mut client) = server_and_client();
    client.must("CF.RESERVE k 1000 EXPANSION 32768");
    let limit = server.info_int("used_memory") + (20 << 20);
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    for line in [
        "CF.RESERVE new 20000000",
        "CF.INSERT new CAPACITY 20000000 ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    count_added(&mut client, "k", 0..100_000);
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), OUT_OF_MEMORY);
    assert_eq!(server.digest(), digest);
    assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..1000);
    client.must("CONFIG SET maxmemory 1");
    for line in [
        "CF.RESERVE new 100",
        "CF.ADD k a",
        "CF.ADDNX k a",
        "CF.INSERT k ITEMS a",
        "CF.INSERTNX k ITEMS a",
        "CF.LOADCHUNK k 1 x",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    let item = 5u64.to_le_bytes();
    assert_eq!(client.call([b"CF.DEL".as_slice(), b"k", &item]), 1);
    assert_eq!(client.run("CF.COMPACT k"), "OK");
    assert!(!client.run("CF.COUNT k x").is_err());
}

// SCANDUMP, LOADCHUNK

#[test]
fn a_filter_is_restored_from_its_chunks() {
    let (_server, mut client) = server_and_client();
    client.must("CF.RESERVE empty 100");
    client.must("CF.RESERVE grown 100 EXPANSION 2 BUCKETSIZE 3");
    assert_eq!(count(&mut client, "CF.INSERT grown ITEMS", 0..5000), 5000);
    client.must("CF.DEL grown x");
    client.must("CF.RESERVE large 6000000 BITS 32");
    assert_eq!(
        count(&mut client, "CF.INSERT large ITEMS", 0..60_000),
        60_000
    );
    for (key, least) in [("empty", 1), ("grown", 2), ("large", 3)] {
        let chunks = dump(&mut client, Kind::Cuckoo, key);
        assert!(chunks.len() >= least, "{key}: {}", chunks.len());
        for (iterator, data) in &chunks {
            assert_eq!(
                load_chunk(&mut client, Kind::Cuckoo, "copy", *iterator, data),
                "OK"
            );
        }
        assert_eq!(
            value_digest(&mut client, "copy"),
            value_digest(&mut client, key)
        );
        let line = format!("CF.INFO {key}");
        assert_eq!(client.run("CF.INFO copy"), client.run(&line));
        client.must("DEL copy");
    }
}

#[test]
fn loadchunk_believes_nothing_that_was_not_dumped() {
    let (server, mut client) = server_and_client();
    for key in ["k", "other"] {
        client.must(&format!("CF.RESERVE {key} 500 EXPANSION 2"));
        count_added(&mut client, key, 0..900);
    }
    client.must("BF.RESERVE bloom 0.01 500");
    let chunks = dump(&mut client, Kind::Cuckoo, "k");
    let foreign = dump(&mut client, Kind::Cuckoo, "other");
    let (head, (at, body)) = (&chunks[0], &chunks[1]);
    let digest = server.digest();
    for index in 0..head.1.len() {
        let mut spoilt = head.1.clone();
        spoilt[index] ^= 0x10;
        for data in [&spoilt[..], &head.1[..index]] {
            let reply = load_chunk(&mut client, Kind::Cuckoo, "new", 1, data);
            assert_eq!(reply.err(), BAD_DATA, "{index}");
        }
    }
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "new", 1, body).err(),
        BAD_DATA
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "new", 1, &head.1).err(),
        BAD_DATA
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "k", 1, &head.1).err(),
        ITEM_EXISTS
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "none", *at, body).err(),
        MISSING
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "bloom", *at, body).err(),
        WRONGTYPE
    );
    assert_eq!(server.digest(), digest);
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "new", 1, &head.1),
        "OK"
    );
    let before = server.digest();
    for index in (0..body.len()).step_by(41) {
        let mut spoilt = body.clone();
        spoilt[index] ^= 1;
        for data in [&spoilt[..], &body[..index]] {
            let reply = load_chunk(&mut client, Kind::Cuckoo, "new", *at, data);
            assert_eq!(reply.err(), BAD_DATA, "{index}");
        }
    }
    for (iterator, data) in [
        (at - 1, body),
        (at + 1, body),
        (2, body),
        (*at, &foreign[1].1),
        (*at, &Vec::new()),
    ] {
        let reply = load_chunk(&mut client, Kind::Cuckoo, "new", iterator, data);
        assert_eq!(reply.err(), BAD_DATA, "{iterator}");
    }
    assert_eq!(server.digest(), before);
    for (iterator, data) in &chunks[1..] {
        assert_eq!(
            load_chunk(&mut client, Kind::Cuckoo, "new", *iterator, data),
            "OK"
        );
    }
    assert_eq!(
        value_digest(&mut client, "new"),
        value_digest(&mut client, "k")
    );
    // Fingerprints cannot be united with others.
    client.must("CF.ADD new another");
    client.must("CF.ADD new and-another");
    let changed = value_digest(&mut client, "new");
    let (at, body) = chunks.last().expect("chunks");
    let reply = load_chunk(&mut client, Kind::Cuckoo, "new", *at, body);
    assert_eq!(reply.err(), BAD_DATA);
    assert_eq!(value_digest(&mut client, "new"), changed);
}

/// Everybody can compute the check of a chunk. What is accepted must be a filter that keeps its promises.
#[test]
fn a_forged_head_is_refused_or_makes_a_filter_that_denies_nothing() {
    let (server, mut client) = server_and_client();
    let mut broken = Vec::new();
    let wide = Terms::new(100, 4, 4, 20, 2);
    let strange = Terms { base: 1, ..wide };
    let expansionless = Terms::new(100, 4, 4, 20, 0);
    for (name, terms, layers) in [
        ("descending layers", wide, vec![(3, 0), (0, 0)]),
        ("a layer between", wide, vec![(0, 0), (4, 0), (1, 0)]),
        ("equal layers", wide, vec![(0, 0), (0, 0), (0, 0)]),
        ("a large first layer", wide, vec![(5, 0)]),
        ("too few buckets", strange, vec![(0, 0), (1, 0)]),
        (
            "items that are not there",
            wide,
            vec![(0, 1_000_000), (1, 7)],
        ),
        ("no expansion", expansionless, vec![(0, 0), (1, 0)]),
        ("many layers", wide, vec![(0, 0); 1000]),
    ] {
        let mut bytes = Vec::new();
        put_head(
            &mut bytes,
            &Head::<Cuckoo> {
                seed: 5,
                terms,
                layers,
                deleted: 0,
            },
        );
        client.must("DEL k");
        let reply = load_chunk(&mut client, Kind::Cuckoo, "k", 1, &bytes);
        if reply.is_err() {
            assert_eq!(reply.err(), BAD_DATA, "{name}");
            continue;
        }
        let mut held = Vec::new();
        each(&mut client, "CF.INSERT k ITEMS", 0..600, |item, reply| {
            if *reply == 1 {
                held.push(item);
            }
        });
        // Room in the layers below is what items are moved to.
        for item in held.iter().filter(|item| *item % 3 == 0) {
            client.call([b"CF.DEL".as_slice(), b"k", &item.to_le_bytes()]);
        }
        client.run("CF.COMPACT k");
        let denied = held
            .iter()
            .filter(|item| *item % 3 != 0)
            .filter(|item| client.call([b"CF.EXISTS".as_slice(), b"k", &item.to_le_bytes()]) != 1);
        let denied = denied.count();
        if denied > 0 {
            broken.push(format!("{name}: {denied} items denied"));
        }
    }
    assert_eq!(broken, [""; 0]);
    assert_eq!(client.run("PING"), "PONG");
    assert!(!server.log().contains("internal error"), "{}", server.log());
}

// Other types

#[test]
fn filters_and_other_types_refuse_each_others_commands() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE bloom 0.01 100");
    client.must("CF.RESERVE cuckoo 100");
    client.must("SET string v");
    client.must("ZADD zset 1 a");
    client.must("STOCK.SET stock 5");
    let digest = server.digest();
    for key in ["bloom", "string", "zset", "stock"] {
        for line in [
            "CF.RESERVE KEY 100",
            "CF.ADD KEY a",
            "CF.ADDNX KEY a",
            "CF.INSERT KEY ITEMS a",
            "CF.INSERT KEY NOCREATE ITEMS a",
            "CF.INSERTNX KEY ITEMS a",
            "CF.EXISTS KEY a",
            "CF.MEXISTS KEY a b",
            "CF.COUNT KEY a",
            "CF.DEL KEY a",
            "CF.COMPACT KEY",
            "CF.INFO KEY",
            "CF.SCANDUMP KEY 0",
            "CF.SCANDUMP KEY 1",
            "CF.LOADCHUNK KEY 1 x",
            "CF.LOADCHUNK KEY 2 x",
        ] {
            let line = line.replace("KEY", key);
            assert_eq!(client.run(&line).err(), WRONGTYPE, "{line}");
        }
    }
    for line in [
        "GET cuckoo",
        "APPEND cuckoo x",
        "BF.ADD cuckoo x",
        "BF.EXISTS cuckoo x",
        "ZADD cuckoo 1 a",
        "STOCK.GET cuckoo",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

// Transactions, scripts, WATCH, events

#[test]
fn commands_work_in_transactions_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "CF.RESERVE k 100",
        "CF.ADD k a",
        "CF.ADDNX k a",
        "CF.INSERT k ITEMS b b",
        "CF.INSERTNX k ITEMS b c",
        "CF.COUNT k b",
        "CF.DEL k b",
        "CF.MEXISTS k a b z",
        "CF.COMPACT k",
        "CF.RESERVE k 100",
    ]);
    let expected = [
        "+OK",
        "1",
        "0",
        "[1, 1]",
        "[0, 1]",
        "2",
        "1",
        "[1, 1, 0]",
        "+OK",
    ];
    assert_eq!(shown(&Value::Array(replies[..9].to_vec())), expected);
    assert_eq!(replies[9].err(), ITEM_EXISTS);
    let script = "
        redis.call('CF.ADD', KEYS[1], 'a')
        redis.call('CF.ADD', KEYS[1], 'a')
        local many = redis.call('CF.INSERTNX', KEYS[1], 'ITEMS', 'a', 'b')
        local sum = many[1] * 1000 + many[2] * 100
        sum = sum + redis.call('CF.COUNT', KEYS[1], 'a') * 10
        return sum + redis.call('CF.DEL', KEYS[1], 'a')";
    assert_eq!(client.call(["EVAL", script, "1", "l"]), 121);
    let script = "redis.setresp(3)
        return {tostring(redis.call('CF.ADD', KEYS[1], 'x')), tostring(redis.call('CF.DEL', KEYS[1], 'none')),
            redis.call('CF.COUNT', KEYS[1], 'x')}";
    let reply = client.call(["EVAL", script, "1", "l"]);
    assert_eq!(shown(&reply), ["\"true\"", "\"false\"", "1"]);
    for (call, error) in [
        ("'CF.RESERVE', 'k', '5'", ITEM_EXISTS),
        ("'CF.DEL', 'none', 'a'", MISSING),
        ("'CF.INSERT', 'none', 'NOCREATE', 'ITEMS', 'a'", MISSING),
        ("'CF.RESERVE', 'new', '0'", CAPACITY_RANGE),
    ] {
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(client.call(["EVAL", &script, "0"]), error, "{call}");
    }
    let library = "#!lua name=cuckoo
        redis.register_function('once', function(keys, args)
            return redis.call('CF.ADDNX', keys[1], args[1]) end)";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(client.run("FCALL once 1 k f"), 1);
    assert_eq!(client.run("FCALL once 1 k f"), 0);
}

/// Every command that changes a filter, and one like it that changes nothing.
const CHANGES: [(&str, &str, &str); 9] = [
    ("cf.reserve", "CF.RESERVE new 100", "CF.RESERVE k 100"),
    ("cf.add", "CF.ADD k a", "CF.ADD full new"),
    ("cf.addnx", "CF.ADDNX k c", "CF.ADDNX k a"),
    ("cf.addnx", "CF.ADDNX made a", "CF.ADDNX made a"),
    (
        "cf.insert",
        "CF.INSERT k ITEMS a d",
        "CF.INSERT full ITEMS new newer",
    ),
    (
        "cf.insertnx",
        "CF.INSERTNX k ITEMS a e",
        "CF.INSERTNX k ITEMS a b",
    ),
    (
        "cf.insert",
        "CF.INSERT fresh ITEMS a",
        "CF.INSERT none NOCREATE ITEMS a",
    ),
    ("cf.del", "CF.DEL k a", "CF.DEL k nobody"),
    ("cf.compact", "CF.COMPACT sparse", "CF.COMPACT k"),
];

fn prepare_changes(client: &mut Raw) {
    client.must("CF.RESERVE k 100 BITS 32");
    client.must("CF.INSERT k ITEMS a b");
    client.must("CF.RESERVE full 1 EXPANSION 0 BITS 32");
    // As often as it can be, in both its buckets, so that they are full of it; and then all the others.
    count_added(client, "full", 0..1000);
    client.must("CF.RESERVE sparse 1 BUCKETSIZE 1 BITS 32");
    assert_eq!(count_added(client, "sparse", 0..30), 30);
    for item in 0..29u64 {
        client.call([b"CF.DEL".as_slice(), b"sparse", &item.to_le_bytes()]);
    }
}

#[test]
fn watch_sees_changes_and_nothing_else() {
    let (server, mut client) = server_and_client();
    let mut other = Raw::connect(&server);
    prepare_changes(&mut client);
    for (_, change, no_change) in CHANGES {
        for (line, carried_out) in [(change, false), (no_change, true)] {
            let key = line.split(' ').nth(1).expect("a key");
            client.must(&format!("WATCH {key}"));
            other.run(line);
            client.must("MULTI");
            client.must("PING");
            assert_eq!(!client.must("EXEC").is_nil(), carried_out, "{line}");
        }
    }
}

#[test]
fn changes_are_keyspace_events_and_what_changes_nothing_is_none() {
    let (server, mut client) = server_and_client();
    prepare_changes(&mut client);
    let mut events = KeyspaceEvents::of(&server, "Ed");
    for (event, change, no_change) in CHANGES {
        let key = change.split(' ').nth(1).expect("a key");
        client.must(change);
        assert_eq!(events.take(), [format!("{event} {key}")], "{change}");
        client.run(no_change);
        assert_eq!(events.take(), [""; 0], "{no_change}");
    }
    for line in [
        "CF.EXISTS k a",
        "CF.MEXISTS k a z",
        "CF.COUNT k a",
        "CF.INFO k",
        "CF.SCANDUMP k 0",
    ] {
        client.must(line);
        assert_eq!(events.take(), [""; 0], "{line}");
    }
    for (iterator, data) in dump(&mut client, Kind::Cuckoo, "k") {
        load_chunk(&mut client, Kind::Cuckoo, "loaded", iterator, &data);
        assert_eq!(events.take(), ["cf.loadchunk loaded"]);
        load_chunk(&mut client, Kind::Cuckoo, "loaded", iterator, b"nonsense");
        assert_eq!(events.take(), [""; 0]);
    }
}

#[test]
fn what_changes_nothing_is_not_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let replica = Server::start();
    follow(&server, &replica);
    prepare_changes(&mut client);
    client.must("CF.ADD made a");
    client.must("CONFIG SET repl-ping-replica-period 3600");
    let written = Written::by(&server);
    for (_, _, no_change) in CHANGES {
        client.run(no_change);
        assert_eq!(Written::by(&server), written, "{no_change}");
    }
    client.must("CF.DEL k a");
    assert_ne!(Written::by(&server), written);
    client.must("CF.COMPACT sparse");
    assert_identical(&server, &replica);
}

#[test]
fn info_counts_what_happens() {
    let (_server, mut client) = server_and_client();
    let counters = |client: &mut Raw| {
        let info = client.must("INFO sluice");
        let names = [
            "keys",
            "layers",
            "items_added",
            "lookups",
            "hits",
            "full",
            "refused_memory",
        ];
        names.map(|name| field_of(&info, &format!("sluice_filter_{name}")))
    };
    client.must("CF.RESERVE k 100 EXPANSION 0 BITS 32");
    client.must("CF.ADD k a");
    client.must("CF.ADD k a");
    client.must("CF.ADDNX k a");
    client.must("CF.INSERTNX k ITEMS a b");
    assert_eq!(counters(&mut client), [1, 1, 3, 0, 0, 0, 0]);
    client.must("CF.EXISTS k a");
    client.must("CF.MEXISTS k a b z");
    assert_eq!(counters(&mut client), [1, 1, 3, 4, 3, 0, 0]);
    client.must("DEL k");
    client.must("CF.RESERVE k 1 EXPANSION 1 BUCKETSIZE 1 BITS 32");
    assert_eq!(count_added(&mut client, "k", 0..30), 30);
    let layers = counts(&mut client, "k")[0];
    assert_eq!(counters(&mut client)[..3], [1, layers, 33]);
    for item in 0..30u64 {
        client.call([b"CF.DEL".as_slice(), b"k", &item.to_le_bytes()]);
    }
    client.must("CF.COMPACT k");
    assert_eq!(counters(&mut client)[..3], [1, 1, 33]);
}

// Nothing is denied

#[test]
fn no_item_is_denied_after_growth_deletions_copies_and_reloads() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let mut keys = Vec::new();
    for (width, bucket_size, expansion) in [
        (8, 4, 1),
        (8, 1, 2),
        (16, 4, 1),
        (16, 2, 4),
        (16, 3, 2),
        (32, 4, 2),
        (32, 255, 2),
        (32, 5, 32),
    ] {
        let key = format!("k{width}-{bucket_size}-{expansion}");
        client.must(&format!(
            "CF.RESERVE {key} 200 BITS {width} BUCKETSIZE {bucket_size} EXPANSION {expansion}"
        ));
        assert_eq!(count_added(&mut client, &key, 0..3000), 3000);
        // Those that were added last go first.
        for item in 2000..3000u64 {
            let del = [b"CF.DEL".as_slice(), key.as_bytes(), &item.to_le_bytes()];
            assert_eq!(client.call(del), 1);
        }
        client.must(&format!("COPY {key} copy-{key}"));
        client.must(&format!("CF.COMPACT {key}"));
        keys.extend([key.clone(), format!("copy-{key}")]);
    }
    let check = |client: &mut Raw| {
        for key in &keys {
            assert_holds_numbers(client, Kind::Cuckoo, key, 0..2000);
        }
    };
    check(&mut client);
    let digest = server.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(server.digest(), digest);
    check(&mut client);
    for rewrite in [false, true] {
        if rewrite {
            server.rewrite_aof();
        }
        server.crash();
        client = Raw::connect(&server);
        assert_eq!(server.digest(), digest);
        check(&mut client);
    }
    let payload = client.must("DUMP k16-4-1").bytes().to_vec();
    let restore = [b"RESTORE".as_slice(), b"restored", b"0", &payload];
    assert_eq!(client.call(restore), "OK");
    let original = value_digest(&mut client, "k16-4-1");
    assert_eq!(value_digest(&mut client, "restored"), original);
}
