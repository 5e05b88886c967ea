//! What the commands of cuckoo filters reply and do, sentence by sentence of the contract.

use super::{MISSING, counts, info};
use crate::support::filter::{
    BAD_CAPACITY, BAD_EXPANSION, CAPACITY_RANGE, EXPANSION_RANGE, ITEM_EXISTS, Kind, NO_INTEGERS,
    assert_holds_numbers, count, dump, load_chunk, server_and_both, value_digest,
};
use crate::support::{Lines, NOT_AN_INTEGER, SYNTAX, Value, WRONGTYPE, ints, server_and_client};

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
