//! What the commands of Bloom filters reply and do, sentence by sentence of the contract.

use sluice::bloom::shape::Shape;
use sluice::bloom::state::{Bloom, Terms};
use sluice::filter::persist::put_head;
use sluice::filter::state::Head;

use crate::support::filter::{
    BAD_CAPACITY, BAD_DATA, BAD_EXPANSION, BAD_RATE, CAPACITY_RANGE, EXPANSION_RANGE, ITEM_EXISTS,
    Kind, NO_INTEGERS, OUT_OF_MEMORY, RATE_RANGE, TOO_LARGE, assert_holds_numbers, count, dump,
    each, fill, load_chunk, number, server_and_both, shown, value_digest,
};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SYNTAX, Server, UNSAFE_INTEGER, Value,
    WRONGTYPE, Written, assert_identical, field_of, follow, ints, server_and_client,
};
use std::time::{Duration, Instant};

const MISSING: &str = "ERR not found";
const FULL: &str = "ERR non scaling filter is full";
const DIFFER: &str = "ERR filters differ in shape";
const CANNOT_EXPAND: &str = "ERR Nonscaling filters cannot expand";

/// The properties of a filter: capacity, layers, items and expansion (0: it does not scale).
#[track_caller]
fn terms(client: &mut Raw, key: &str) -> [i64; 4] {
    let info = client.must(&format!("BF.INFO {key}"));
    let expansion = match info.field("Expansion rate") {
        Value::Nil => 0,
        expansion => expansion.int(),
    };
    let number = |field: &str| info.field(field).int();
    [
        number("Capacity"),
        number("Number of filters"),
        number("Number of items inserted"),
        expansion,
    ]
}

#[track_caller]
fn size(client: &mut Raw, key: &str) -> i64 {
    number(client, Kind::Bloom, key, "Size")
}

// RESERVE, INFO

#[test]
fn a_reserved_filter_is_empty_and_has_the_properties_that_were_declared() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("BF.RESERVE a 0.01 1000", [1000, 1, 0, 2]),
        ("BF.RESERVE b 0.001 5 EXPANSION 4", [5, 1, 0, 4]),
        ("BF.RESERVE c 0.5 1 NONSCALING", [1, 1, 0, 0]),
        ("bf.reserve d .1 7 expansion 0", [7, 1, 0, 0]),
        ("BF.RESERVE e 1e-3 7 nonScaling", [7, 1, 0, 0]),
        ("BF.RESERVE f 0.01 7 NONSCALING EXPANSION 0", [7, 1, 0, 0]),
        ("BF.RESERVE g 0.01 7 Expansion 0 NONSCALING", [7, 1, 0, 0]),
        ("BF.RESERVE h 0.01 7 EXPANSION 1", [7, 1, 0, 1]),
        ("BF.RESERVE i 0.01 7 EXPANSION 32768", [7, 1, 0, 32768]),
        ("BF.RESERVE j 0.999999 1073741824", [1 << 30, 1, 0, 2]),
        ("BF.RESERVE k 1e-12 1", [1, 1, 0, 2]),
    ] {
        assert_eq!(client.run(line), "OK", "{line}");
        let key = line.split(' ').nth(1).expect("a key");
        assert_eq!(terms(&mut client, key), expected, "{line}");
        assert_eq!(client.run(&format!("BF.CARD {key}")), 0, "{line}");
        assert_eq!(client.run(&format!("BF.EXISTS {key} x")), 0, "{line}");
        assert_eq!(client.run(&format!("PTTL {key}")), -1, "{line}");
    }
}

#[test]
fn info_is_a_flat_array_of_ten_in_resp2_and_a_map_in_resp3() {
    let (_server, mut client, mut third) = server_and_both();
    client.must("BF.RESERVE k 0.01 100 EXPANSION 4");
    client.must("BF.MADD k a b");
    client.must("BF.RESERVE fixed 0.01 100 NONSCALING");
    let names = [
        "Capacity",
        "Size",
        "Number of filters",
        "Number of items inserted",
        "Expansion rate",
    ];
    for (key, items, expansion) in [("k", 2, Value::Int(4)), ("fixed", 0, Value::Nil)] {
        let line = format!("BF.INFO {key}");
        let Value::Array(flat) = client.run(&line) else {
            panic!("no array");
        };
        assert_eq!(flat.len(), 10);
        let Value::Map(map) = third.run(&line) else {
            panic!("no map");
        };
        let size = flat[3].int();
        assert!((125..1000).contains(&size), "{size}");
        let values = [100, size, 1, items].map(Value::Int);
        for (index, name) in names.into_iter().enumerate() {
            let expected = values.get(index).unwrap_or(&expansion);
            assert_eq!(flat[2 * index], name);
            assert_eq!(&flat[2 * index + 1], expected);
            assert_eq!(map[index], (flat[2 * index].clone(), expected.clone()));
        }
        assert_eq!(map.len(), 5);
        // With a field named: its value alone, or with its name.
        for (index, word) in ["CAPACITY", "size", "Filters", "items", "EXPANSION"]
            .into_iter()
            .enumerate()
        {
            let line = format!("BF.INFO {key} {word}");
            let expected = values.get(index).unwrap_or(&expansion).clone();
            assert_eq!(client.run(&line), Value::Array(vec![expected]), "{line}");
            let expected = Value::Map(vec![map[index].clone()]);
            assert_eq!(third.run(&line), expected, "{line}");
        }
    }
    for line in [
        "BF.INFO k BOGUS",
        "BF.INFO k SIZE SIZE",
        "BF.INFO k SIZE ITEMS",
        "BF.INFO none BOGUS",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    assert_eq!(client.call(["BF.INFO", "k", ""]).err(), SYNTAX);
    for line in ["BF.INFO none", "BF.INFO none SIZE"] {
        assert_eq!(client.run(line).err(), MISSING, "{line}");
        assert_eq!(third.run(line).err(), MISSING, "{line}");
    }
}

#[test]
fn nothing_is_reserved_where_something_is() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE k 0.01 100");
    client.must("BF.ADD k a");
    let digest = server.digest();
    for line in [
        "BF.RESERVE k 0.01 100",
        "BF.RESERVE k 0.5 7 NONSCALING",
        "BF.RESERVE k LIKE k",
        "BF.RESERVE k LIKE none",
    ] {
        assert_eq!(client.run(line).err(), ITEM_EXISTS, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

/// All of them are refused before anything changes, by a filter that exists as well.
#[test]
fn bad_properties_are_refused_with_the_texts_that_clients_know() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE there 0.01 100");
    let digest = server.digest();
    let mut cases: Vec<(Vec<&str>, &str)> = Vec::new();
    for rate in ["", "x", "nan", "0,1", "1%", "0.1.1", "0.1\0"] {
        cases.push((vec!["BF.RESERVE", "KEY", rate, "100"], BAD_RATE));
        cases.push((
            vec!["BF.INSERT", "KEY", "ERROR", rate, "ITEMS", "a"],
            BAD_RATE,
        ));
    }
    for rate in [
        "0", "1", "-0.1", "1.0", "0.0", "2", "1e9", "inf", "-inf", "1e-400", "1e400",
    ] {
        cases.push((vec!["BF.RESERVE", "KEY", rate, "100"], RATE_RANGE));
        cases.push((
            vec!["BF.INSERT", "KEY", "ERROR", rate, "ITEMS", "a"],
            RATE_RANGE,
        ));
    }
    let out_of_range = [
        "0",
        "-1",
        "1073741825",
        "9223372036854775807",
        "-9223372036854775808",
    ];
    let of_capacity = NO_INTEGERS.iter().map(|text| (*text, BAD_CAPACITY));
    let of_capacity = of_capacity.chain(out_of_range.iter().map(|text| (*text, CAPACITY_RANGE)));
    for (capacity, error) in of_capacity {
        cases.push((vec!["BF.RESERVE", "KEY", "0.01", capacity], error));
        let line = vec!["BF.INSERT", "KEY", "capacity", capacity, "ITEMS", "a"];
        cases.push((line, error));
    }
    let out_of_range = ["-1", "32769", "9223372036854775807"];
    let of_expansion = NO_INTEGERS.iter().map(|text| (*text, BAD_EXPANSION));
    let of_expansion = of_expansion.chain(out_of_range.iter().map(|text| (*text, EXPANSION_RANGE)));
    for (expansion, error) in of_expansion {
        let line = vec!["BF.RESERVE", "KEY", "0.01", "100", "EXPANSION", expansion];
        cases.push((line, error));
        let line = vec!["BF.INSERT", "KEY", "EXPANSION", expansion, "ITEMS", "a"];
        cases.push((line, error));
    }
    for line in [
        "BF.RESERVE KEY 0.01 100 NONSCALING EXPANSION 2",
        "BF.RESERVE KEY 0.01 100 EXPANSION 1 NONSCALING",
        "BF.INSERT KEY EXPANSION 2 NONSCALING ITEMS a",
        "BF.INSERT KEY NONSCALING EXPANSION 2 ITEMS a",
    ] {
        cases.push((line.split(' ').collect(), CANNOT_EXPAND));
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
    assert_eq!(server.digest(), digest);
    assert_eq!(client.run("EXISTS new"), 0);
}

#[test]
fn missing_repeated_and_unknown_options_are_syntax_errors() {
    let (server, mut client) = server_and_client();
    for line in [
        "BF.RESERVE k 0.01 100 BOGUS",
        "BF.RESERVE k 0.01 100 EXPANSION",
        "BF.RESERVE k 0.01 100 expansion 2 EXPANSION 2",
        "BF.RESERVE k 0.01 100 NONSCALING nonscaling",
        "BF.RESERVE k 0.01 100 NONSCALINGX",
        "BF.RESERVE k 0.01 100 EXPANSIO 2",
        "BF.RESERVE k 0.01 100 CAPACITY 5",
        "BF.RESERVE k 0.01 100 ERROR 0.1",
        "BF.RESERVE k 0.01 100 NOCREATE",
        "BF.RESERVE k 0.01 100 ITEMS a",
        "BF.RESERVE k 0.01 100 LIKE k",
        "BF.RESERVE k 0.01 100 EXPANSION 2 3",
        "BF.RESERVE k LIKE other EXPANSION 2",
        "BF.RESERVE k LIKE other NONSCALING",
        "BF.RESERVE k LIKE other LIKE other",
        "BF.INSERT k NOCREATE ITEMS",
        "BF.INSERT k a b",
        "BF.INSERT k BOGUS ITEMS a",
        "BF.INSERT k ERROR 0.1 CAPACITY 5",
        "BF.INSERT k ERROR 0.1 ERROR 0.1 ITEMS a",
        "BF.INSERT k CAPACITY 5 capacity 5 ITEMS a",
        "BF.INSERT k EXPANSION 5 expansion 5 ITEMS a",
        "BF.INSERT k NOCREATE nocreate ITEMS a",
        "BF.INSERT k NONSCALING NONSCALING ITEMS a",
        "BF.INSERT k ITEM a b",
        "BF.INSERT k NX ITEMS a",
        "BF.INSERT k BUCKETSIZE 4 ITEMS a",
        "BF.INSERT k LIKE other ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    // The value of an option that is missing is the next word.
    let line = "BF.INSERT k CAPACITY ITEMS a";
    assert_eq!(client.run(line).err(), BAD_CAPACITY);
    let arity = |name: &str| format!("ERR wrong number of arguments for '{name}' command");
    for (line, name) in [
        ("BF.RESERVE k 0.01", "bf.reserve"),
        ("BF.RESERVE k LIKE", "bf.reserve"),
        ("BF.ADD k", "bf.add"),
        ("BF.ADD k a b", "bf.add"),
        ("BF.MADD k", "bf.madd"),
        ("BF.INSERT k ITEMS", "bf.insert"),
        ("BF.EXISTS k", "bf.exists"),
        ("BF.EXISTS k a b", "bf.exists"),
        ("BF.MEXISTS k", "bf.mexists"),
        ("BF.CARD", "bf.card"),
        ("BF.CARD k x", "bf.card"),
        ("BF.INFO", "bf.info"),
        ("BF.SCANDUMP k", "bf.scandump"),
        ("BF.SCANDUMP k 0 x", "bf.scandump"),
        ("BF.LOADCHUNK k 1", "bf.loadchunk"),
        ("BF.LOADCHUNK k 1 x x", "bf.loadchunk"),
        ("BF.MERGE k 1", "bf.merge"),
    ] {
        assert_eq!(client.run(line).err(), arity(name), "{line}");
    }
    assert_eq!(client.run("DBSIZE"), 0);
    assert_eq!(server.info_int("sluice_filter_keys"), 0);
}

// ADD, MADD, INSERT, ITEM_EXISTS, MEXISTS, CARD

#[test]
fn replies_are_integers_in_resp2_and_booleans_in_resp3() {
    let (_server, mut two, mut three) = server_and_both();
    let array = |values: &[Value]| Value::Array(values.to_vec());
    for (protocol, client) in [("2", &mut two), ("3", &mut three)] {
        let truth = |truth: bool| match protocol {
            "2" => Value::Int(truth.into()),
            _ => Value::Bool(truth),
        };
        let (no, yes) = (&truth(false), &truth(true));
        let key = format!("k{protocol}");
        let both = &[yes.clone(), no.clone()][..];
        for (line, expected) in [
            ("BF.ADD K a", yes.clone()),
            ("BF.ADD K a", no.clone()),
            ("BF.EXISTS K a", yes.clone()),
            ("BF.EXISTS K b", no.clone()),
            ("BF.MADD K b a", array(both)),
            ("BF.MADD K b", array(&both[1..])),
            ("BF.INSERT K ITEMS c a", array(both)),
            ("BF.INSERT K ITEMS c", array(&both[1..])),
            ("BF.MEXISTS K c d", array(both)),
            ("BF.MEXISTS K c", array(&both[..1])),
            ("BF.MEXISTS K d", array(&both[1..])),
            // An item that comes twice in one command is new once.
            ("BF.MADD K e e", array(both)),
            ("BF.CARD K", Value::Int(4)),
            ("BF.EXISTS none a", no.clone()),
            ("BF.MEXISTS none a", array(&both[1..])),
            ("BF.CARD none", Value::Int(0)),
        ] {
            let line = line.replace('K', &key);
            assert_eq!(client.run(&line), expected, "RESP{protocol}: {line}");
        }
    }
}

#[test]
fn reads_of_a_missing_key_find_nothing_and_make_nothing() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("BF.EXISTS none a"), 0);
    assert_eq!(ints(&client.run("BF.MEXISTS none a b c")), [0, 0, 0]);
    assert_eq!(client.run("BF.CARD none"), 0);
    for line in [
        "BF.INFO none",
        "BF.SCANDUMP none 0",
        "BF.SCANDUMP none 1",
        "BF.LOADCHUNK none 2 x",
        "BF.INSERT none NOCREATE ITEMS a",
        "BF.INSERT none ERROR 0.1 NOCREATE ITEMS a",
        "BF.MERGE none 1 other",
        "BF.RESERVE none LIKE other",
        "BF.RESERVE none LIKE none",
    ] {
        assert_eq!(client.run(line).err(), MISSING, "{line}");
    }
    assert_eq!(client.run("DBSIZE"), 0);
}

#[test]
fn insert_creates_with_its_options_in_any_order_and_leaves_an_existing_filter_as_it_is() {
    let (_server, mut client) = server_and_client();
    for (line, expected) in [
        ("BF.INSERT a ITEMS x y", [100, 1, 2, 2]),
        ("BF.INSERT b CAPACITY 50 ITEMS x", [50, 1, 1, 2]),
        (
            "BF.INSERT c expansion 4 error 0.5 capacity 50 items x",
            [50, 1, 1, 4],
        ),
        (
            "BF.INSERT d NONSCALING CAPACITY 5 ERROR 0.001 ITEMS x",
            [5, 1, 1, 0],
        ),
        ("BF.INSERT e EXPANSION 0 ITEMS x", [100, 1, 1, 0]),
        (
            "BF.INSERT f CAPACITY 5 EXPANSION 0 nonscaling ITEMS x",
            [5, 1, 1, 0],
        ),
        // They are of no effect on a filter that is there.
        ("BF.INSERT a CAPACITY 5 ITEMS x z", [100, 1, 3, 2]),
        (
            "BF.INSERT a NOCREATE NONSCALING ERROR 0.5 ITEMS w",
            [100, 1, 4, 2],
        ),
        // After ITEMS everything is an item.
        (
            "BF.INSERT g ITEMS ITEMS NOCREATE CAPACITY 5 BOGUS",
            [100, 1, 5, 2],
        ),
    ] {
        assert!(!client.must(line).array().is_empty(), "{line}");
        let key = line.split(' ').nth(1).expect("a key");
        assert_eq!(terms(&mut client, key), expected, "{line}");
    }
    let there = ints(&client.run("BF.MEXISTS g ITEMS NOCREATE CAPACITY 5 BOGUS items"));
    assert_eq!(there, [1, 1, 1, 1, 1, 0]);
    // The rate counts: a stricter filter is larger.
    client.must("BF.INSERT loose ERROR 0.1 CAPACITY 10000 ITEMS x");
    client.must("BF.INSERT strict ERROR 0.0001 CAPACITY 10000 ITEMS x");
    assert!(size(&mut client, "strict") > 3 * size(&mut client, "loose"));
}

#[test]
fn items_and_keys_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let long = vec![0xa5; 1_000_000];
    let mut almost = long.clone();
    almost[999_999] = 0;
    let items: [&[u8]; 10] = [
        b"",
        b"\0",
        b"\0\0",
        b"\xff\xfe",
        b" ",
        b"a\r\nb",
        b"*1\r\n$4\r\nPING\r\n",
        "\u{1f980}".as_bytes(),
        &long,
        &almost,
    ];
    for key in [b"".as_slice(), b"\0\xff\r\n", b"BF.ADD"] {
        for (index, item) in items.into_iter().enumerate() {
            let exists = [b"BF.EXISTS".as_slice(), key, item];
            assert_eq!(client.call(exists), 0, "{index}");
            assert_eq!(client.call([b"BF.ADD".as_slice(), key, item]), 1, "{index}");
            assert_eq!(client.call(exists), 1, "{index}");
            assert_eq!(client.call([b"BF.ADD".as_slice(), key, item]), 0, "{index}");
        }
        let mut all = vec![b"BF.MEXISTS".as_slice(), key];
        all.extend(items);
        assert_eq!(ints(&client.call(all)), [1; 10]);
        assert_eq!(client.call([b"BF.CARD".as_slice(), key]), 10);
    }
}

#[test]
fn what_an_m_command_says_of_many_items_is_what_single_commands_say() {
    let (_server, mut client) = server_and_client();
    client.must("BF.RESERVE one 0.2 300");
    client.must("BF.RESERVE many LIKE one");
    // Many of them seem to be there already: the rate is high, and some come again.
    let items: Vec<_> = (0..1500).map(|index| (index * 7919) % 1000).collect();
    for batch in items.chunks(97) {
        let words: String = batch.iter().map(|item| format!(" i{item}")).collect();
        let many = ints(&client.must(&format!("BF.MADD many{words}")));
        let lines = batch.iter().map(|item| format!("BF.ADD one i{item}"));
        let one: Vec<_> = client.run_all(lines).iter().map(Value::int).collect();
        assert_eq!(one, many);
    }
    assert_eq!(terms(&mut client, "one"), terms(&mut client, "many"));
    assert!(terms(&mut client, "one")[1] > 1);
    assert_eq!(
        value_digest(&mut client, "one"),
        value_digest(&mut client, "many")
    );
    let words: String = (0..2000).map(|item| format!(" i{item}")).collect();
    let many = ints(&client.must(&format!("BF.MEXISTS many{words}")));
    let lines = (0..2000).map(|item| format!("BF.EXISTS one i{item}"));
    let one: Vec<_> = client.run_all(lines).iter().map(Value::int).collect();
    assert_eq!(one, many);
    assert!(many[..1000].iter().all(|there| *there == 1));
    assert!(many[1000..].contains(&0) && many[1000..].contains(&1));
}

// Growth

#[test]
fn a_filter_grows_to_two_hundred_times_its_capacity() {
    let (_server, mut client) = server_and_client();
    for expansion in [1, 2, 4, 32768] {
        let key = format!("k{expansion}");
        client.must(&format!("BF.RESERVE {key} 0.01 100 EXPANSION {expansion}"));
        let end = fill(&mut client, &key, 0, 20_000);
        let (mut capacity, mut layer, mut layers) = (100, 100, 1);
        while capacity < 20_000 {
            // With so many layers also those that are alike begin to double.
            layer *= if layers < 64 {
                expansion
            } else {
                expansion.max(2)
            };
            capacity += layer;
            layers += 1;
        }
        let expected = [capacity, layers, 20_000, expansion];
        assert_eq!(terms(&mut client, &key), expected);
        assert_eq!(client.run(&format!("BF.CARD {key}")), 20_000);
        assert_holds_numbers(&mut client, Kind::Bloom, &key, 0..end);
        // What seemed to be there was so because of the rate.
        assert!(end < 20_400, "{end}");
    }
}

#[test]
fn a_layer_comes_with_the_first_item_beyond_the_capacity() {
    let (_server, mut client) = server_and_client();
    client.must("BF.RESERVE k 0.000001 3 EXPANSION 2");
    for (item, layers, capacity) in [
        ("a", 1, 3),
        ("b", 1, 3),
        ("c", 1, 3),
        ("c", 1, 3),
        ("d", 2, 9),
        ("a", 2, 9),
        ("e", 2, 9),
    ] {
        client.must(&format!("BF.ADD k {item}"));
        let info = terms(&mut client, "k");
        assert_eq!((info[1], info[0]), (layers, capacity), "{item}");
    }
    assert_eq!(client.run("BF.CARD k"), 5);
    assert_eq!(ints(&client.run("BF.MEXISTS k a b c d e")), [1; 5]);
}

#[test]
fn a_filter_that_does_not_scale_holds_its_capacity_and_then_is_full() {
    let (server, mut client, mut third) = server_and_both();
    for (key, line) in [
        ("a", "BF.RESERVE a 0.0001 3 NONSCALING"),
        ("b", "BF.RESERVE b 0.0001 3 EXPANSION 0"),
        (
            "c",
            "BF.INSERT c ERROR 0.0001 CAPACITY 3 NONSCALING ITEMS x",
        ),
    ] {
        client.must(line);
        for item in ["x", "y", "z"] {
            client.must(&format!("BF.ADD {key} {item}"));
        }
        assert_eq!(terms(&mut client, key), [3, 1, 3, 0]);
        let digest = server.digest();
        assert_eq!(client.run(&format!("BF.ADD {key} w")).err(), FULL);
        // What is there already is no error, and what comes after an error has its answer too.
        assert_eq!(client.run(&format!("BF.ADD {key} y")), 0);
        let full = format!("-{FULL}");
        let reply = client.run(&format!("BF.MADD {key} x w y v"));
        assert_eq!(shown(&reply), ["0", &full, "0", &full]);
        let reply = third.run(&format!("BF.INSERT {key} ITEMS w x"));
        assert_eq!(shown(&reply), [&full, "false"]);
        let reply = client.run(&format!("BF.INSERT {key} NOCREATE ITEMS w"));
        assert_eq!(shown(&reply), [full]);
        assert_eq!(server.digest(), digest);
        assert_eq!(
            ints(&client.run(&format!("BF.MEXISTS {key} x y z w"))),
            [1, 1, 1, 0]
        );
    }
    assert_eq!(server.info_int("sluice_filter_full"), 15);
}

#[test]
fn of_items_of_which_not_all_find_room_the_first_do() {
    let (_server, mut client) = server_and_client();
    let full = format!("-{FULL}");
    client.must("BF.RESERVE k 0.0001 5 NONSCALING");
    client.must("BF.MADD k a b");
    let reply = client.run("BF.MADD k c a d e f g b");
    let expected = ["1", "0", "1", "1", &full, &full, "0"];
    assert_eq!(shown(&reply), expected);
    assert_eq!(client.run("BF.CARD k"), 5);
    let reply = client.run("BF.INSERT new ERROR 0.0001 CAPACITY 2 NONSCALING ITEMS a b c a");
    assert_eq!(shown(&reply), ["1", "1", &full, "0"]);
    assert_eq!(terms(&mut client, "new"), [2, 1, 2, 0]);
}

// Limits of memory

#[test]
fn a_filter_beyond_bloom_max_bytes_is_not_created() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE pattern 0.01 10000");
    client.must("CONFIG SET sluice.bloom-max-bytes 10000");
    let digest = server.digest();
    let lines = [
        "BF.RESERVE k 0.01 10000",
        "BF.RESERVE k 0.000001 5000",
        "BF.RESERVE k LIKE pattern",
        "BF.INSERT k CAPACITY 10000 ITEMS a",
        "BF.MERGE k 1 pattern",
    ];
    for line in lines {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    let head = dump(&mut client, Kind::Bloom, "pattern").remove(0);
    let reply = load_chunk(&mut client, Kind::Bloom, "k", head.0, &head.1);
    assert_eq!(reply.err(), TOO_LARGE);
    client.must("CONFIG SET sluice.bloom-capacity 10000");
    for line in ["BF.ADD k a", "BF.MADD k a b"] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(client.run("EXISTS k"), 0);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 8);
    assert_eq!(server.info_int("sluice_filter_keys"), 1);
    assert_eq!(client.run("BF.RESERVE k 0.01 5000"), "OK");
}

#[test]
fn no_server_has_room_for_impossible_filters() {
    let (server, mut client) = server_and_client();
    let digest = server.digest();
    for line in [
        "BF.RESERVE k 0.01 1073741824",
        "BF.RESERVE k 1e-12 500000000",
        "BF.RESERVE k 1e-300 100",
        "BF.RESERVE k 5e-324 1",
        "BF.RESERVE k 5e-324 1073741824",
        "BF.INSERT k ERROR 1e-300 CAPACITY 1073741824 ITEMS a",
    ] {
        let start = Instant::now();
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
        assert!(start.elapsed() < Duration::from_secs(2), "{line}");
    }
    client.must("CONFIG SET sluice.bloom-max-bytes 9007199254740992");
    for line in [
        "BF.RESERVE k 1e-60 1073741824",
        "BF.RESERVE k 1e-100 1073741824",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("ERR "), "{line}: {reply:?}");
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_filter_does_not_grow_beyond_bloom_max_bytes() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET sluice.bloom-max-bytes 4000");
    client.must("BF.RESERVE k 0.0001 1000 EXPANSION 2");
    let end = fill(&mut client, "k", 0, 1000);
    let digest = server.digest();
    let written = Written::by(&server);
    assert_eq!(client.run("BF.ADD k new").err(), TOO_LARGE);
    let refused = format!("-{TOO_LARGE}");
    let known = (end - 1).to_le_bytes();
    let reply = client.call([b"BF.MADD".as_slice(), b"k", b"new", &known, b"newer"]);
    assert_eq!(shown(&reply), [&refused, "0", &refused]);
    assert_eq!(server.digest(), digest);
    assert_eq!(Written::by(&server), written);
    assert_eq!(terms(&mut client, "k"), [1000, 1, 1000, 2]);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 3);
    client.must("CONFIG SET sluice.bloom-max-bytes 40000");
    assert_eq!(client.run("BF.ADD k new"), 1);
    assert_eq!(terms(&mut client, "k"), [3000, 2, 1001, 2]);
    assert_holds_numbers(&mut client, Kind::Bloom, "k", 0..end);
    // So large a layer that nobody could have it.
    client.must("BF.RESERVE steep 0.0001 1000 EXPANSION 32768");
    fill(&mut client, "steep", 0, 1000);
    assert_eq!(client.run("BF.ADD steep new").err(), TOO_LARGE);
    assert_eq!(terms(&mut client, "steep"), [1000, 1, 1000, 32768]);
}

#[test]
fn maxmemory_refuses_filters_and_layers() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE k 0.01 100000 EXPANSION 1000");
    let end = fill(&mut client, "k", 0, 100_000);
    client.must("BF.RESERVE other 0.01 100");
    let limit = server.info_int("used_memory") + (20 << 20);
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    let digest = server.digest();
    for line in [
        "BF.RESERVE new 0.01 20000000",
        "BF.INSERT new CAPACITY 20000000 ITEMS a",
        "BF.ADD k new",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    let refused = format!("-{OUT_OF_MEMORY}");
    let known = 0u64.to_le_bytes();
    let reply = client.call([b"BF.MADD".as_slice(), b"k", b"new", &known]);
    assert_eq!(shown(&reply), [&refused, "0"]);
    assert_eq!(server.digest(), digest);
    // What fits is let in.
    assert_eq!(client.run("BF.ADD other a"), 1);
    assert_eq!(client.run("BF.RESERVE new 0.01 1000000"), "OK");
    // Nothing is when there is too much already; reads go on.
    client.must("CONFIG SET maxmemory 1");
    for line in [
        "BF.RESERVE newest 0.01 100",
        "BF.ADD other b",
        "BF.MADD other b",
        "BF.INSERT other ITEMS b",
        "BF.MERGE other 1 other",
        "BF.LOADCHUNK other 1 x",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    assert_eq!(client.run("BF.EXISTS other a"), 1);
    assert_eq!(client.run("BF.CARD other"), 1);
    assert_holds_numbers(&mut client, Kind::Bloom, "k", 0..end);
    client.must("BF.SCANDUMP other 0");
}

/// The memory is given by the system without being touched.
#[test]
fn a_hundred_million_items_are_reserved_in_no_time() {
    let (server, mut client) = server_and_client();
    let before = server.info_int("used_memory_rss");
    let start = Instant::now();
    assert_eq!(client.run("BF.RESERVE k 0.01 100000000"), "OK");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(client.run("BF.ADD k a"), 1);
    assert_eq!(client.run("BF.EXISTS k a"), 1);
    assert_eq!(client.run("BF.EXISTS k b"), 0);
    assert!(size(&mut client, "k") > 120_000_000);
    let touched = server.info_int("used_memory_rss") - before;
    assert!(touched < 20_000_000, "{touched}");
}

// The rate

/// How many of so many items that were never added seem to be there.
#[track_caller]
fn false_positives(client: &mut Raw, key: &str, queries: u64) -> u64 {
    let never = 1 << 40;
    count(client, &format!("BF.MEXISTS {key}"), never..never + queries)
}

/// The first layer is made for 3/4 of the rate, so the number of false positives of n queries has a mean below 0.75 n e
/// and a variance no greater; filters of this size differ by 0.025 n e at most. With n e = 500 it is n e at 5.4 standard
/// deviations.
#[track_caller]
fn check_rate_at_capacity(error: f64, capacity: u64) {
    let (_server, mut client) = server_and_client();
    client.must(&format!("BF.RESERVE k {error} {capacity} NONSCALING"));
    fill(&mut client, "k", 0, capacity);
    let queries = (500.0 / error) as u64;
    let found = false_positives(&mut client, "k", queries);
    assert!(found <= 500, "{found} of {queries} at {error}");
    // A filter that denies everything but what was added would be no Bloom filter: the test itself works.
    assert!(found >= 150, "{found} of {queries} at {error}");
}

#[test]
fn the_rate_of_one_percent_is_kept_at_capacity() {
    check_rate_at_capacity(0.01, 100_000);
}

#[test]
fn the_rate_of_one_in_a_thousand_is_kept_at_capacity() {
    check_rate_at_capacity(0.001, 100_000);
}

#[test]
fn the_rate_of_one_in_ten_thousand_is_kept_at_capacity() {
    check_rate_at_capacity(0.0001, 100_000);
}

/// Fills filters to 200 times their capacity, and looks at all of them together.
///
/// All layers together are made for less than 7/8 of the rate: 3/4, and 1/8 (1/2 + 1/6 + ...), less one standard
/// deviation between first layers of this size. Those of 2000 items at 0.0001 have 0.15 of the rate for it, which is
/// much: so ten filters are looked at. With n e = 1200 the mean is below 0.71 n e then, and n e is 5.5 standard
/// deviations (of the filters and of the sample) above it; with the others it is at least 5.
#[track_caller]
fn check_rate_after_growth(error: f64, capacity: u64, expansion: u64, filters: u64) {
    let (_server, mut client) = server_and_client();
    let (mut found, mut queries) = (0, 0);
    for _ in 0..filters {
        client.must(&format!(
            "BF.RESERVE k {error} {capacity} EXPANSION {expansion}"
        ));
        let end = fill(&mut client, "k", 0, 200 * capacity);
        assert!(terms(&mut client, "k")[0] as u64 >= 200 * capacity);
        let share = (1200.0 / error) as u64 / filters;
        found += false_positives(&mut client, "k", share);
        queries += share;
        assert_holds_numbers(&mut client, Kind::Bloom, "k", 0..end);
        client.must("DEL k");
    }
    assert!(found <= 1200, "{found} of {queries} at {error}");
    assert!(found >= 250, "{found} of {queries} at {error}");
}

#[test]
fn the_rate_of_one_percent_is_kept_after_growing_by_two_hundred_times() {
    check_rate_after_growth(0.01, 2000, 2, 10);
}

#[test]
fn the_rate_of_one_percent_is_kept_by_two_hundred_layers() {
    check_rate_after_growth(0.01, 1000, 1, 8);
}

#[test]
fn the_rate_of_one_in_a_thousand_is_kept_after_growing_by_two_hundred_times() {
    check_rate_after_growth(0.001, 2000, 2, 10);
}

#[test]
fn the_rate_of_one_in_ten_thousand_is_kept_after_growing_by_two_hundred_times() {
    check_rate_after_growth(0.0001, 2000, 4, 10);
}

/// Small filters are unlike each other, so single ones may err more often; their mean keeps the rate. It is half of it,
/// with a standard deviation of 0.02 between as many filters.
#[test]
fn small_filters_keep_the_rate_on_average() {
    let (_server, mut client) = server_and_client();
    for capacity in [1u64, 10, 100] {
        let (mut found, mut queries) = (0, 0);
        for number in 0..200 {
            let key = format!("k{capacity}-{number}");
            client.must(&format!("BF.RESERVE {key} 0.01 {capacity} NONSCALING"));
            fill(&mut client, &key, 0, capacity);
            found += false_positives(&mut client, &key, 800);
            queries += 800;
        }
        assert!(found * 100 <= queries, "{found} of {queries}, {capacity}");
    }
}

/// Bits for each item, as told by `bytes`, of filters of 100 000 items and more.
#[track_caller]
fn check_bits(bytes: impl Fn(&mut Raw, &str) -> i64) {
    let (_server, mut client) = server_and_client();
    let mut over = Vec::new();
    for (error, most) in [("0.01", 11.0), ("0.001", 16.5)] {
        for capacity in [100_000, 150_000, 200_000, 300_000, 500_000, 1_000_000] {
            let key = format!("k{error}-{capacity}");
            client.must(&format!("BF.RESERVE {key} {error} {capacity} NONSCALING"));
            if capacity == 100_000 {
                fill(&mut client, &key, 0, 100_000);
            }
            let bits = (8 * bytes(&mut client, &key)) as f64 / f64::from(capacity);
            if bits > most {
                over.push(format!("{error} {capacity}: {bits:.1}"));
            }
        }
    }
    assert_eq!(over, [""; 0], "more bits for each item than declared");
}

#[test]
fn an_item_takes_few_bits_by_info() {
    check_bits(size);
}

#[test]
fn an_item_takes_few_bits_by_memory_usage() {
    check_bits(|client, key| client.must(&format!("MEMORY USAGE {key}")).int());
}

// MERGE, LIKE

#[test]
fn a_filter_like_another_has_its_properties_and_none_of_its_items() {
    let (_server, mut client) = server_and_client();
    for options in ["0.001 50 EXPANSION 4", "0.2 7 NONSCALING", "0.01 100"] {
        client.must("FLUSHALL");
        client.must(&format!("BF.RESERVE a {options}"));
        client.must("BF.MADD a x y z");
        assert_eq!(client.run("BF.RESERVE b like a"), "OK");
        let (a, b) = (terms(&mut client, "a"), terms(&mut client, "b"));
        assert_eq!(b, [a[0], a[1], 0, a[3]]);
        assert_eq!(size(&mut client, "a"), size(&mut client, "b"));
        assert_eq!(ints(&client.run("BF.MEXISTS b x y z")), [0, 0, 0]);
        // The same seed: the same items make the same filter, and it can be united.
        client.must("BF.MADD b x y z");
        assert_eq!(
            value_digest(&mut client, "a"),
            value_digest(&mut client, "b")
        );
        assert_eq!(client.run("BF.MERGE c 2 a b"), "OK");
    }
    // A filter that has grown is like its first layer.
    client.must("BF.RESERVE grown 0.01 10");
    fill(&mut client, "grown", 0, 100);
    client.must("BF.RESERVE small LIKE grown");
    assert_eq!(terms(&mut client, "small"), [10, 1, 0, 2]);
}

#[test]
fn filters_that_were_reserved_by_themselves_have_seeds_of_their_own() {
    let (_server, mut client) = server_and_client();
    for key in ["a", "b"] {
        client.must(&format!("BF.RESERVE {key} 0.01 100"));
        client.must(&format!("BF.MADD {key} x y z"));
    }
    assert_ne!(
        value_digest(&mut client, "a"),
        value_digest(&mut client, "b")
    );
    assert_eq!(client.run("BF.MERGE a 1 b").err(), DIFFER);
}

/// `a`, `b` and `c` are alike and have the items 0..40, 20..60 and 1000..1300: `c` has grown.
fn mergeable(client: &mut Raw) {
    client.must("BF.RESERVE a 0.00001 50 EXPANSION 2");
    client.must("BF.RESERVE b LIKE a");
    client.must("BF.RESERVE c LIKE a");
    assert_eq!(count(client, "BF.MADD a", 0..40), 40);
    assert_eq!(count(client, "BF.MADD b", 20..60), 40);
    assert_eq!(count(client, "BF.MADD c", 1000..1300), 300);
    assert_eq!(terms(client, "c"), [350, 3, 300, 2]);
}

#[test]
fn a_merge_creates_its_destination() {
    let (_server, mut client) = server_and_client();
    mergeable(&mut client);
    let sources = ["a", "b", "c"].map(|key| value_digest(&mut client, key));
    assert_eq!(client.run("BF.MERGE new 2 a b"), "OK");
    assert_eq!(terms(&mut client, "new"), [50, 1, 80, 2]);
    assert_eq!(client.run("BF.CARD new"), 80);
    assert_holds_numbers(&mut client, Kind::Bloom, "new", 0..60);
    assert_eq!(count(&mut client, "BF.MEXISTS new", 1000..1300), 0);
    // With one that has more layers, in either order.
    for (line, key) in [("BF.MERGE x 2 a c", "x"), ("BF.MERGE y 2 c a", "y")] {
        assert_eq!(client.run(line), "OK");
        assert_eq!(terms(&mut client, key), [350, 3, 340, 2]);
        assert_holds_numbers(&mut client, Kind::Bloom, key, 0..40);
        assert_holds_numbers(&mut client, Kind::Bloom, key, 1000..1300);
        assert_eq!(count(&mut client, &format!("BF.MEXISTS {key}"), 40..60), 0);
    }
    // Of one filter: a copy.
    assert_eq!(client.run("BF.MERGE copy 1 c"), "OK");
    assert_eq!(
        value_digest(&mut client, "copy"),
        value_digest(&mut client, "c")
    );
    let after = ["a", "b", "c"].map(|key| value_digest(&mut client, key));
    assert_eq!(after, sources, "a source has changed");
}

#[test]
fn a_merge_adds_to_a_destination_that_is_there() {
    let (_server, mut client) = server_and_client();
    mergeable(&mut client);
    assert_eq!(client.run("BF.MERGE a 1 b"), "OK");
    assert_eq!(terms(&mut client, "a"), [50, 1, 80, 2]);
    assert_holds_numbers(&mut client, Kind::Bloom, "a", 0..60);
    // It gets the layers of a larger source.
    assert_eq!(client.run("BF.MERGE a 1 c"), "OK");
    assert_eq!(terms(&mut client, "a"), [350, 3, 380, 2]);
    assert_holds_numbers(&mut client, Kind::Bloom, "a", 0..60);
    assert_holds_numbers(&mut client, Kind::Bloom, "a", 1000..1300);
    // A smaller source leaves a larger destination its layers.
    assert_eq!(client.run("BF.MERGE c 1 b"), "OK");
    assert_eq!(terms(&mut client, "c"), [350, 3, 340, 2]);
    assert_holds_numbers(&mut client, Kind::Bloom, "c", 20..60);
    // It goes on growing.
    let end = fill(&mut client, "c", 5000, 2000);
    assert_holds_numbers(&mut client, Kind::Bloom, "c", 5000..end);
    assert_holds_numbers(&mut client, Kind::Bloom, "c", 1000..1300);
    assert_eq!(client.run("BF.CARD c"), 2340);
}

#[test]
fn a_source_counts_once_however_often_it_is_named() {
    let (_server, mut client) = server_and_client();
    mergeable(&mut client);
    assert_eq!(client.run("BF.MERGE new 4 a b a a"), "OK");
    assert_eq!(client.run("BF.CARD new"), 80);
    // The destination is united with itself when it is named among the sources.
    assert_eq!(client.run("BF.MERGE a 2 a b"), "OK");
    assert_eq!(client.run("BF.CARD a"), 80);
    let digest = value_digest(&mut client, "a");
    assert_eq!(client.run("BF.MERGE a 2 a a"), "OK");
    assert_eq!(value_digest(&mut client, "a"), digest);
    assert_holds_numbers(&mut client, Kind::Bloom, "a", 0..60);
}

#[test]
fn filters_of_other_shapes_are_not_united() {
    let (server, mut client) = server_and_client();
    mergeable(&mut client);
    client.must("BF.RESERVE rate 0.0001 50 EXPANSION 2");
    client.must("BF.RESERVE capacity 0.00001 51 EXPANSION 2");
    client.must("BF.RESERVE expansion 0.00001 50 EXPANSION 4");
    client.must("BF.RESERVE fixed 0.00001 50 NONSCALING");
    client.must("BF.RESERVE seed 0.00001 50 EXPANSION 2");
    let digest = server.digest();
    for other in ["rate", "capacity", "expansion", "fixed", "seed"] {
        for line in [
            format!("BF.MERGE a 1 {other}"),
            format!("BF.MERGE {other} 1 a"),
            format!("BF.MERGE new 2 a {other}"),
            format!("BF.MERGE new 3 c {other} a"),
            format!("BF.MERGE a 2 b {other}"),
        ] {
            assert_eq!(client.run(&line).err(), DIFFER, "{line}");
        }
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_merge_of_missing_and_other_keys_is_refused() {
    let (server, mut client) = server_and_client();
    mergeable(&mut client);
    client.must("SET string v");
    client.must("CF.RESERVE cuckoo 100");
    let digest = server.digest();
    for (line, error) in [
        ("BF.MERGE a 1 none", MISSING),
        ("BF.MERGE new 1 none", MISSING),
        ("BF.MERGE new 2 a none", MISSING),
        ("BF.MERGE new 2 none a", MISSING),
        ("BF.MERGE new 1 new", MISSING),
        ("BF.MERGE a 1 string", WRONGTYPE),
        ("BF.MERGE string 1 a", WRONGTYPE),
        ("BF.MERGE string 1 string", WRONGTYPE),
        ("BF.MERGE a 2 b cuckoo", WRONGTYPE),
        ("BF.MERGE cuckoo 1 a", WRONGTYPE),
        ("BF.MERGE new 2 a b c", SYNTAX),
        ("BF.MERGE new 2 a", SYNTAX),
        ("BF.MERGE new 100 a b", SYNTAX),
        ("BF.MERGE new x a b", NOT_AN_INTEGER),
        ("BF.MERGE new 1.0 a", NOT_AN_INTEGER),
        ("BF.MERGE new 9223372036854775808 a", NOT_AN_INTEGER),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
    for count in [
        "0",
        "-1",
        "-9223372036854775808",
        "1025",
        "9007199254740992",
    ] {
        let reply = client.run(&format!("BF.MERGE new {count} a"));
        assert_eq!(
            reply.err(),
            "ERR numkeys must be between 1 and 1024",
            "{count}"
        );
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_missing_destination_is_missing_as_a_source_too() {
    let (server, mut client) = server_and_client();
    mergeable(&mut client);
    let digest = server.digest();
    for line in [
        "BF.MERGE new 1 new",
        "BF.MERGE new 2 new new",
        "BF.MERGE new 2 new a",
        "BF.MERGE new 2 a new",
    ] {
        assert_eq!(client.run(line).err(), MISSING, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_merge_beyond_the_limits_of_memory_changes_nothing() {
    let (server, mut client) = server_and_client();
    mergeable(&mut client);
    let limit = size(&mut client, "c") - 200;
    client.must(&format!("CONFIG SET sluice.bloom-max-bytes {limit}"));
    let digest = server.digest();
    for line in ["BF.MERGE a 1 c", "BF.MERGE a 2 b c", "BF.MERGE new 1 c"] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    assert_eq!(terms(&mut client, "a"), [50, 1, 40, 2]);
    // One that needs no more memory is let through.
    assert_eq!(client.run("BF.MERGE a 1 b"), "OK");
}

#[test]
fn a_merge_can_overfill_a_filter_that_does_not_scale() {
    let (_server, mut client) = server_and_client();
    client.must("BF.RESERVE a 0.0001 5 NONSCALING");
    client.must("BF.RESERVE b LIKE a");
    client.must("BF.MADD a 1 2 3");
    client.must("BF.MADD b 4 5 6");
    assert_eq!(client.run("BF.MERGE a 1 b"), "OK");
    assert_eq!(terms(&mut client, "a"), [5, 1, 6, 0]);
    assert_eq!(client.run("BF.ADD a 7").err(), FULL);
    assert_eq!(ints(&client.run("BF.MEXISTS a 1 2 3 4 5 6")), [1; 6]);
}

// SCANDUMP, LOADCHUNK

#[test]
fn a_filter_is_restored_from_its_chunks() {
    let (_server, mut client) = server_and_client();
    client.must("BF.RESERVE empty 0.01 100");
    client.must("BF.RESERVE grown 0.001 100");
    fill(&mut client, "grown", 0, 5000);
    client.must("BF.RESERVE fixed 0.01 1000 NONSCALING");
    fill(&mut client, "fixed", 0, 1000);
    // Two chunks at least, of which each is full of items here and there.
    client.must("BF.RESERVE large 0.01 15000000");
    fill(&mut client, "large", 0, 60_000);
    for (key, least) in [("empty", 1), ("grown", 2), ("fixed", 2), ("large", 3)] {
        let chunks = dump(&mut client, Kind::Bloom, key);
        assert!(chunks.len() >= least, "{key}: {}", chunks.len());
        for (iterator, data) in &chunks {
            assert_eq!(
                load_chunk(&mut client, Kind::Bloom, "copy", *iterator, data),
                "OK"
            );
        }
        assert_eq!(
            value_digest(&mut client, "copy"),
            value_digest(&mut client, key)
        );
        assert_eq!(terms(&mut client, "copy"), terms(&mut client, key));
        // Loaded again, they change nothing.
        for (iterator, data) in &chunks[1..] {
            assert_eq!(
                load_chunk(&mut client, Kind::Bloom, "copy", *iterator, data),
                "OK"
            );
        }
        assert_eq!(
            value_digest(&mut client, "copy"),
            value_digest(&mut client, key)
        );
        client.must("DEL copy");
    }
    // Beyond the end there is nothing more.
    let Value::Array(end) = client.must("BF.SCANDUMP empty 9007199254740991") else {
        panic!("no array");
    };
    assert!(end[0] == 0 && end[1] == "");
}

#[test]
fn loadchunk_believes_nothing_that_was_not_dumped() {
    let (server, mut client) = server_and_client();
    client.must("BF.RESERVE k 0.01 500 EXPANSION 2");
    fill(&mut client, "k", 0, 900);
    client.must("BF.RESERVE other 0.01 500 EXPANSION 2");
    fill(&mut client, "other", 0, 900);
    client.must("CF.RESERVE cuckoo 500");
    client.must("SET string v");
    let chunks = dump(&mut client, Kind::Bloom, "k");
    let foreign = dump(&mut client, Kind::Bloom, "other");
    let (head, (at, body)) = (&chunks[0], &chunks[1]);
    let digest = server.digest();
    // A head that is not whole.
    for index in 0..head.1.len() {
        for bit in [1, 0x80] {
            let mut spoilt = head.1.clone();
            spoilt[index] ^= bit;
            let reply = load_chunk(&mut client, Kind::Bloom, "new", 1, &spoilt);
            assert_eq!(reply.err(), BAD_DATA, "{index}");
        }
        let reply = load_chunk(&mut client, Kind::Bloom, "new", 1, &head.1[..index]);
        assert_eq!(reply.err(), BAD_DATA, "{index}");
    }
    let mut longer = head.1.clone();
    longer.push(0);
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "new", 1, &longer).err(),
        BAD_DATA
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "new", 1, body).err(),
        BAD_DATA
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Cuckoo, "new", 1, &head.1).err(),
        BAD_DATA
    );
    assert_eq!(server.digest(), digest);
    // Chunks that are not whole, not of this filter, or not of this place.
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "new", head.0, &head.1),
        "OK"
    );
    let before = server.digest();
    for index in (0..body.len())
        .step_by(37)
        .chain(body.len() - 9..body.len())
    {
        let mut spoilt = body.clone();
        spoilt[index] ^= 4;
        let reply = load_chunk(&mut client, Kind::Bloom, "new", *at, &spoilt);
        assert_eq!(reply.err(), BAD_DATA, "{index}");
        let reply = load_chunk(&mut client, Kind::Bloom, "new", *at, &body[..index]);
        assert_eq!(reply.err(), BAD_DATA, "{index}");
    }
    for (iterator, data) in [
        (at - 1, body),
        (at + 1, body),
        (2, body),
        (9_007_199_254_740_991, body),
        (*at, &foreign[1].1),
        (*at, &head.1),
        (*at, &Vec::new()),
    ] {
        let reply = load_chunk(&mut client, Kind::Bloom, "new", iterator, data);
        assert_eq!(reply.err(), BAD_DATA, "{iterator}");
    }
    assert_eq!(server.digest(), before);
    // The first chunk makes the filter, so there must be none.
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "k", 1, &head.1).err(),
        ITEM_EXISTS
    );
    assert_eq!(
        load_chunk(&mut client, Kind::Bloom, "none", *at, body).err(),
        MISSING
    );
    for key in ["string", "cuckoo"] {
        for (iterator, data) in &chunks {
            let reply = load_chunk(&mut client, Kind::Bloom, key, *iterator, data);
            assert_eq!(reply.err(), WRONGTYPE, "{key}");
        }
    }
    for (iterator, expected) in [
        ("0", "ERR iterator must be between 1 and "),
        ("-1", "ERR iterator must be between 1 and "),
        ("9007199254740992", "ERR iterator must be between 1 and "),
        ("x", NOT_AN_INTEGER),
        ("", NOT_AN_INTEGER),
    ] {
        let reply = client.call([
            b"BF.LOADCHUNK".as_slice(),
            b"new",
            iterator.as_bytes(),
            body,
        ]);
        assert!(reply.err().starts_with(expected), "{iterator}: {reply:?}");
    }
    for (iterator, expected) in [
        ("-1", "ERR iterator must be between 0 and "),
        ("9007199254740992", "ERR iterator must be between 0 and "),
        ("x", NOT_AN_INTEGER),
    ] {
        let reply = client.call(["BF.SCANDUMP", "new", iterator]);
        assert!(reply.err().starts_with(expected), "{iterator}: {reply:?}");
    }
    assert_eq!(server.digest(), before);
    for (iterator, data) in &chunks[1..] {
        assert_eq!(
            load_chunk(&mut client, Kind::Bloom, "new", *iterator, data),
            "OK"
        );
    }
    assert_eq!(
        value_digest(&mut client, "new"),
        value_digest(&mut client, "k")
    );
}

/// Everybody can compute the check of a chunk. What is accepted must be a filter that keeps its promises.
#[test]
fn a_forged_head_is_refused_or_makes_a_filter_that_denies_nothing() {
    const MOST: u64 = (1 << 53) - 1;
    let (server, mut client) = server_and_client();
    let mut broken = Vec::new();
    let layer = |capacity, blocks, probes| Shape {
        capacity,
        blocks,
        probes,
    };
    let small = layer(100, 3, 7);
    for (name, expansion, layers) in [
        ("one bit", 2, vec![(layer(100, 1, 1), 0)]),
        ("all bits", 2, vec![(layer(100, 1, 64), 0)]),
        (
            "smaller layers above",
            2,
            vec![(small, 0), (layer(1, 1, 7), 0)],
        ),
        ("no expansion", 0, vec![(small, 100), (small, 100)]),
        ("as many layers as there may be", 2, vec![(small, 0); 5000]),
        ("items that are not there", 2, vec![(small, MOST)]),
        ("too large a capacity", 2, vec![(layer(MOST, 1, 1), 0); 2]),
        ("too many blocks", 2, vec![(layer(100, u64::MAX, 7), 0); 2]),
    ] {
        let mut bytes = Vec::new();
        put_head(
            &mut bytes,
            &Head::<Bloom> {
                seed: 5,
                terms: Terms {
                    error: 0.01,
                    capacity: 100,
                    expansion,
                },
                layers,
                deleted: 0,
            },
        );
        client.must("DEL k");
        let reply = load_chunk(&mut client, Kind::Bloom, "k", 1, &bytes);
        if reply.is_err() {
            let texts = [BAD_DATA, TOO_LARGE];
            assert!(texts.contains(&reply.err()), "{name}: {reply:?}");
            continue;
        }
        let mut held = Vec::new();
        each(&mut client, "BF.MADD k", 0..600, |item, reply| {
            if !reply.is_err() {
                held.push(item);
            }
        });
        let denied = held
            .iter()
            .filter(|item| client.call([b"BF.EXISTS".as_slice(), b"k", &item.to_le_bytes()]) != 1);
        let denied = denied.count();
        if denied > 0 {
            broken.push(format!("{name}: {denied} items denied"));
        }
        let [capacity, _, items, _] = terms(&mut client, "k");
        if capacity.max(items) >= UNSAFE_INTEGER {
            broken.push(format!("{name}: {capacity} {items}"));
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
    client.must("RPUSH list a");
    client.must("HSET hash f v");
    client.must("LOCK.ACQUIRE lock me PX 100000000");
    client.must("STOCK.SET stock 5");
    let digest = server.digest();
    for key in ["cuckoo", "string", "list", "hash", "lock", "stock"] {
        for line in [
            "BF.RESERVE KEY 0.01 100",
            "BF.RESERVE KEY LIKE bloom",
            "BF.RESERVE new LIKE KEY",
            "BF.ADD KEY a",
            "BF.MADD KEY a b",
            "BF.INSERT KEY ITEMS a",
            "BF.INSERT KEY NOCREATE ITEMS a",
            "BF.EXISTS KEY a",
            "BF.MEXISTS KEY a b",
            "BF.CARD KEY",
            "BF.INFO KEY",
            "BF.INFO KEY SIZE",
            "BF.SCANDUMP KEY 0",
            "BF.SCANDUMP KEY 1",
            "BF.LOADCHUNK KEY 1 x",
            "BF.LOADCHUNK KEY 2 x",
            "BF.MERGE KEY 1 bloom",
            "BF.MERGE new 1 KEY",
        ] {
            let line = line.replace("KEY", key);
            assert_eq!(client.run(&line).err(), WRONGTYPE, "{line}");
        }
    }
    for line in [
        "GET bloom",
        "APPEND bloom x",
        "SADD bloom x",
        "CF.ADD bloom x",
        "CF.EXISTS bloom x",
        "STOCK.GET bloom",
        "LOCK.INFO bloom",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(server.digest(), digest);
    let (bloom, cuckoo) = (client.must("TYPE bloom"), client.must("TYPE cuckoo"));
    assert_ne!(bloom.text(), cuckoo.text());
}

// Transactions, scripts, WATCH, events

#[test]
fn commands_work_in_transactions() {
    let (_server, mut client) = server_and_client();
    let replies = client.transact([
        "BF.RESERVE k 0.0001 2 NONSCALING",
        "BF.MADD k a b c",
        "BF.EXISTS k a",
        "BF.RESERVE l LIKE k",
        "BF.ADD l d",
        "BF.MERGE m 2 k l",
        "BF.CARD m",
        "BF.INFO m ITEMS",
        "BF.RESERVE m 0.1 1",
    ]);
    assert_eq!(replies[0], "OK");
    assert_eq!(shown(&replies[1]), ["1", "1", &format!("-{FULL}")]);
    assert_eq!(replies[2], 1);
    assert_eq!(replies[4], 1);
    assert_eq!(replies[5], "OK");
    assert_eq!(replies[6], 3);
    assert_eq!(ints(&replies[7]), [3]);
    assert_eq!(replies[8].err(), ITEM_EXISTS);
}

#[test]
fn commands_work_in_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    let script = "
        local sum = redis.call('BF.ADD', KEYS[1], 'a') * 1000
        sum = sum + redis.call('BF.ADD', KEYS[1], 'a') * 100
        local many = redis.call('BF.MADD', KEYS[1], 'a', 'b', 'c')
        sum = sum + (many[1] + many[2] + many[3]) * 10
        return sum + redis.call('BF.EXISTS', KEYS[1], 'c')";
    assert_eq!(client.call(["EVAL", script, "1", "k"]), 1021);
    let script = "
        redis.setresp(3)
        local new = redis.call('BF.ADD', KEYS[1], 'x')
        local old = redis.call('BF.ADD', KEYS[1], 'x')
        local info = redis.call('BF.INFO', KEYS[1])['map']
        return {tostring(new), tostring(old), info['Number of items inserted']}";
    let reply = client.call(["EVAL", script, "1", "k"]);
    assert_eq!(shown(&reply), ["\"true\"", "\"false\"", "4"]);
    for (call, error) in [
        ("'BF.RESERVE', 'k', '0.1', '5'", ITEM_EXISTS),
        ("'BF.RESERVE', 'new', '2', '5'", RATE_RANGE),
        ("'BF.INSERT', 'new', 'NOCREATE', 'ITEMS', 'a'", MISSING),
    ] {
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(client.call(["EVAL", &script, "0"]), error, "{call}");
    }
    let library = "#!lua name=filters
        redis.register_function('seen', function(keys, args)
            return redis.call('BF.ADD', keys[1], args[1]) end)
        redis.register_function{function_name='known', flags={'no-writes'}, callback=function(keys, args)
            return redis.call('BF.EXISTS', keys[1], args[1]) end}";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(client.run("FCALL seen 1 k f"), 1);
    assert_eq!(client.run("FCALL seen 1 k f"), 0);
    assert_eq!(client.run("FCALL_RO known 1 k f"), 1);
    let writes = "return redis.call('BF.ADD', KEYS[1], 'z')";
    assert!(client.call(["EVAL_RO", writes, "1", "k"]).is_err());
}

/// Every command that changes a filter, and one like it that changes nothing. The filters `k` and `l` are alike.
const CHANGES: [(&str, &str, &str); 7] = [
    (
        "bf.reserve",
        "BF.RESERVE new 0.01 100",
        "BF.RESERVE k 0.01 100",
    ),
    ("bf.add", "BF.ADD k new", "BF.ADD k a"),
    ("bf.madd", "BF.MADD k a newer", "BF.MADD k a b a"),
    (
        "bf.insert",
        "BF.INSERT k ITEMS newest",
        "BF.INSERT k CAPACITY 5 ITEMS a b",
    ),
    (
        "bf.insert",
        "BF.INSERT fresh ITEMS a",
        "BF.INSERT none NOCREATE ITEMS a",
    ),
    ("bf.merge", "BF.MERGE k 1 l", "BF.MERGE k 1 none"),
    ("bf.add", "BF.ADD full a", "BF.ADD full b"),
];

fn prepare_changes(client: &mut Raw) {
    client.must("BF.RESERVE k 0.00001 5");
    client.must("BF.MADD k a b");
    client.must("BF.RESERVE l LIKE k");
    client.must("BF.MADD l c");
    client.must("BF.RESERVE full 0.0001 1 NONSCALING");
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
    // One event for a command, however much it does.
    client.must("BF.MADD made a b c d e f g h");
    assert_eq!(events.take(), ["bf.madd made"]);
    for line in [
        "BF.EXISTS k a",
        "BF.MEXISTS k a z",
        "BF.CARD k",
        "BF.INFO k",
        "BF.SCANDUMP k 0",
    ] {
        client.must(line);
        assert_eq!(events.take(), [""; 0], "{line}");
    }
    for (iterator, data) in dump(&mut client, Kind::Bloom, "k") {
        load_chunk(&mut client, Kind::Bloom, "loaded", iterator, &data);
        assert_eq!(events.take(), ["bf.loadchunk loaded"]);
        load_chunk(&mut client, Kind::Bloom, "loaded", iterator, b"nonsense");
        assert_eq!(events.take(), [""; 0]);
    }
}

#[test]
fn what_changes_nothing_is_not_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    // With a replica once, so that the server counts what it would send.
    let replica = Server::start();
    follow(&server, &replica);
    prepare_changes(&mut client);
    client.must("BF.ADD full a");
    client.must("CONFIG SET repl-ping-replica-period 3600");
    let written = Written::by(&server);
    for (_, _, no_change) in CHANGES {
        client.run(no_change);
        assert_eq!(Written::by(&server), written, "{no_change}");
    }
    client.must("BF.ADD k new");
    assert_ne!(Written::by(&server), written);
    assert_identical(&server, &replica);
}

#[test]
fn a_merge_that_changes_nothing_is_neither_told_nor_written() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    prepare_changes(&mut client);
    client.must("BF.RESERVE empty LIKE k");
    let mut events = KeyspaceEvents::of(&server, "Ed");
    let written = Written::by(&server);
    for line in [
        "BF.MERGE k 1 k",
        "BF.MERGE k 1 empty",
        "BF.MERGE k 2 k empty",
    ] {
        assert_eq!(client.run(line), "OK");
        assert_eq!(events.take(), [""; 0], "{line}");
        assert_eq!(Written::by(&server), written, "{line}");
    }
}

// INFO, settings

#[test]
fn info_counts_what_happens() {
    let (server, mut client) = server_and_client();
    let names = [
        "keys",
        "layers",
        "items_added",
        "lookups",
        "hits",
        "full",
        "refused_memory",
    ];
    let counters = |client: &mut Raw| {
        let info = client.must("INFO sluice");
        assert!(info.text().contains("# sluice_bloom\r\n"), "{info:?}");
        names.map(|name| field_of(&info, &format!("sluice_filter_{name}")))
    };
    let bytes = || server.info_int("sluice_filter_bytes");
    assert_eq!(counters(&mut client), [0; 7]);
    assert_eq!(bytes(), 0);
    client.must("BF.RESERVE k 0.0001 3 EXPANSION 2");
    assert_eq!(counters(&mut client), [1, 1, 0, 0, 0, 0, 0]);
    let first = bytes();
    assert!(first >= 64, "{first}");
    client.must("BF.ADD k a");
    client.must("BF.ADD k a");
    client.must("BF.MADD k a b c d e");
    assert_eq!(counters(&mut client), [1, 2, 5, 0, 0, 0, 0]);
    assert!(bytes() > first);
    client.must("BF.EXISTS k a");
    client.must("BF.EXISTS k z");
    client.must("BF.MEXISTS k a b y");
    assert_eq!(counters(&mut client), [1, 2, 5, 5, 3, 0, 0]);
    client.must("BF.RESERVE l 0.0001 1 NONSCALING");
    client.must("BF.INSERT l ITEMS a b c a");
    assert_eq!(counters(&mut client), [2, 3, 6, 5, 3, 2, 0]);
    client.must("CONFIG SET sluice.bloom-max-bytes 1");
    client.run("BF.ADD m a");
    assert_eq!(counters(&mut client), [2, 3, 6, 5, 3, 2, 1]);
    client.must("CONFIG SET sluice.bloom-max-bytes 10000000");
    client.must("COPY k copy");
    assert_eq!(counters(&mut client), [3, 5, 6, 5, 3, 2, 1]);
    // Cuckoo filters count as well.
    client.must("CF.ADD cuckoo a");
    client.must("CF.EXISTS cuckoo a");
    assert_eq!(counters(&mut client), [4, 6, 7, 6, 4, 2, 1]);
    client.must("DEL k l copy cuckoo");
    assert_eq!(counters(&mut client), [0, 0, 7, 6, 4, 2, 1]);
    assert_eq!(bytes(), 0);
    client.must("BF.RESERVE k 0.01 1000000");
    let big = bytes();
    assert!((1_200_000..1_500_000).contains(&big), "{big}");
    client.must("FLUSHALL SYNC");
    assert_eq!(bytes(), 0);
}

const DEFAULTS: [(&str, &str); 5] = [
    ("sluice.bloom-error-rate", "0.01"),
    ("sluice.bloom-capacity", "100"),
    ("sluice.bloom-expansion", "2"),
    ("sluice.cuckoo-capacity", "1024"),
    ("sluice.bloom-max-bytes", "1073741824"),
];

#[track_caller]
fn config(client: &mut Raw, name: &str) -> String {
    let reply = client.must(&format!("CONFIG GET {name}"));
    reply.field(name).text().to_owned()
}

#[test]
fn defaults_are_those_of_the_contract_and_change_at_run_time() {
    let (_server, mut client) = server_and_client();
    for (name, value) in DEFAULTS {
        assert_eq!(config(&mut client, name), value, "{name}");
    }
    client.must("BF.ADD a x");
    assert_eq!(terms(&mut client, "a"), [100, 1, 1, 2]);
    client.must("BF.RESERVE same 0.01 100");
    assert_eq!(size(&mut client, "same"), size(&mut client, "a"));
    client.must(
        "CONFIG SET sluice.bloom-error-rate 0.0001 sluice.bloom-capacity 5000 sluice.bloom-expansion 4",
    );
    assert_eq!(config(&mut client, "sluice.bloom-error-rate"), "0.0001");
    client.must("BF.RESERVE same2 0.0001 5000");
    assert_eq!(terms(&mut client, "same2"), [5000, 1, 0, 4]);
    for line in ["BF.ADD b x", "BF.MADD c x", "BF.INSERT d ITEMS x"] {
        client.must(line);
        let key = line.split(' ').nth(1).expect("a key");
        assert_eq!(terms(&mut client, key), [5000, 1, 1, 4], "{line}");
        assert_eq!(size(&mut client, key), size(&mut client, "same2"), "{line}");
    }
    // What was made before is as it was.
    assert_eq!(terms(&mut client, "a"), [100, 1, 1, 2]);
    client.must("CONFIG SET sluice.bloom-expansion 0");
    client.must("BF.ADD e x");
    assert_eq!(terms(&mut client, "e"), [5000, 1, 1, 0]);
    client.must("BF.RESERVE f 0.01 10");
    assert_eq!(terms(&mut client, "f"), [10, 1, 0, 0]);
    client.must("BF.RESERVE g 0.01 10 EXPANSION 3");
    assert_eq!(terms(&mut client, "g"), [10, 1, 0, 3]);
    client.must("BF.RESERVE h 0.01 10 NONSCALING");
}

#[test]
fn defaults_are_load_options_too() {
    let options = [
        "bloom-error-rate",
        "1e-3",
        "Bloom-Capacity",
        "77",
        "bloom-expansion",
        "5",
        "cuckoo-capacity",
        "5000",
        "bloom-max-bytes",
        "20000",
    ];
    let server = Server::builder().module_args(&options).start();
    let mut client = Raw::connect(&server);
    client.must("BF.ADD k x");
    assert_eq!(terms(&mut client, "k"), [77, 1, 1, 5]);
    client.must("BF.RESERVE same 0.001 77");
    assert_eq!(size(&mut client, "same"), size(&mut client, "k"));
    client.must("CF.ADD c x");
    let buckets = number(&mut client, Kind::Cuckoo, "c", "Number of buckets");
    assert!(buckets * 4 >= 5000, "{buckets}");
    assert_eq!(client.run("BF.RESERVE big 0.01 100000").err(), TOO_LARGE);
    // A rewritten configuration keeps them.
    client.must("CONFIG SET sluice.bloom-error-rate 0.25 sluice.bloom-capacity 78");
    client.must("CONFIG REWRITE");
    server.crash();
    let mut client = Raw::connect(&server);
    assert_eq!(config(&mut client, "sluice.bloom-error-rate"), "0.25");
    assert_eq!(config(&mut client, "sluice.bloom-max-bytes"), "20000");
    client.must("BF.ADD k x");
    assert_eq!(terms(&mut client, "k"), [78, 1, 1, 5]);
}

#[test]
fn bad_settings_are_refused_and_change_nothing() {
    let (_server, mut client) = server_and_client();
    let bad: [(&str, &[&str]); 5] = [
        (
            "bloom-error-rate",
            &["0", "1", "-0.1", "2", "x", "", "nan", "inf", "0.1x"],
        ),
        ("bloom-capacity", &["0", "-1", "1073741825", "x", "", "1.5"]),
        ("bloom-expansion", &["-1", "32769", "x", "", "1.5"]),
        ("cuckoo-capacity", &["0", "-1", "1073741825", "x", ""]),
        ("bloom-max-bytes", &["0", "-1", "x", ""]),
    ];
    for (name, values) in bad {
        for value in values {
            let full = format!("sluice.{name}");
            let reply = client.call(["CONFIG", "SET", &full, value]);
            assert!(reply.is_err(), "{name} {value}: {reply:?}");
        }
        let log = Server::builder()
            .module_args(&[name, values[0]])
            .start_refused();
        let ours = log.lines().find(|line| line.contains("sluice>"));
        assert!(ours.is_some_and(|line| line.contains(name)), "{log}");
    }
    for (name, value) in DEFAULTS {
        assert_eq!(config(&mut client, name), value, "{name}");
    }
}

// Nothing is denied

/// Whatever happens to a filter, what was added is there, and the filter is the same bit by bit.
#[test]
fn no_item_is_denied_after_growth_merges_copies_and_reloads() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    let mut ends = Vec::new();
    for (number, (error, capacity, expansion)) in [
        (0.5, 10, 1),
        (0.01, 100, 2),
        (0.001, 50, 3),
        (1e-6, 1, 2),
        (1e-12, 1000, 0),
        (0.9, 100, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{number}");
        client.must(&format!(
            "BF.RESERVE {key} {error} {capacity} EXPANSION {expansion}"
        ));
        let items = if expansion == 0 { capacity } else { 1500 };
        let mut end = 0;
        each(
            &mut client,
            &format!("BF.MADD {key}"),
            0..items,
            |item, reply| {
                assert!(!reply.is_err(), "{item}: {reply:?}");
                end = item + 1;
            },
        );
        client.must(&format!("BF.RESERVE like{number} LIKE {key}"));
        let line = format!("BF.MADD like{number}");
        each(&mut client, &line, 5000..5000 + items, |_, _| {});
        client.must(&format!("BF.MERGE both{number} 2 {key} like{number}"));
        client.must(&format!("COPY both{number} copy{number}"));
        ends.push((number, end));
    }
    let check = |client: &mut Raw| {
        for (number, end) in &ends {
            assert_holds_numbers(client, Kind::Bloom, &format!("k{number}"), 0..*end);
            for key in ["both", "copy"] {
                let key = format!("{key}{number}");
                assert_holds_numbers(client, Kind::Bloom, &key, 0..*end);
                assert_holds_numbers(client, Kind::Bloom, &key, 5000..5000 + end);
            }
        }
    };
    check(&mut client);
    let digest = server.digest();
    client.must("DEBUG RELOAD");
    assert_eq!(server.digest(), digest);
    check(&mut client);
    // From the commands alone, and from a rewritten file.
    for rewrite in [false, true] {
        if rewrite {
            server.rewrite_aof();
        }
        server.crash();
        client = Raw::connect(&server);
        assert_eq!(server.digest(), digest);
        check(&mut client);
    }
    let payload = client.must("DUMP both1").bytes().to_vec();
    let restore = [b"RESTORE".as_slice(), b"restored", b"0", &payload];
    assert_eq!(client.call(restore), "OK");
    assert_eq!(
        value_digest(&mut client, "restored"),
        value_digest(&mut client, "both1")
    );
}

/// Redis 7.0 has no way to ask for zeroed memory that may be refused, and ends when it gets none.
#[test]
fn what_the_machine_has_no_memory_for_is_refused_and_the_server_lives() {
    const LIMIT: u64 = 3 << 30;
    let (server, mut client) = server_and_client();
    client.must("CONFIG SET sluice.bloom-max-bytes 64gb");
    client.must("BF.RESERVE small 0.01 1000");
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    let pid = server.pid() as libc::pid_t;
    // SAFETY: the limit lives through the call; a null pointer asks for nothing back.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    // Ten gigabytes each, which are not there.
    for line in [
        "BF.RESERVE large 0.000000001 1000000000",
        "BF.INSERT large CAPACITY 1000000000 ERROR 0.000000001 ITEMS a",
        "CF.RESERVE large 1000000000 BUCKETSIZE 1 BITS 32",
    ] {
        let reply = client.run(line);
        assert_eq!(
            reply.err(),
            "ERR not enough memory for the filter",
            "{line}"
        );
        assert_eq!(client.run("EXISTS large"), 0);
    }
    // A fiftieth of that is, and again after it was given back: some allocators keep the addresses for a while.
    for _ in 0..3 {
        client.must("BF.RESERVE middle 0.000000001 20000000");
        assert_eq!(client.run("BF.ADD middle a"), 1);
        assert_eq!(client.run("DEL middle"), 1);
    }
    assert_eq!(client.run("BF.ADD small a"), 1);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 3);
}
