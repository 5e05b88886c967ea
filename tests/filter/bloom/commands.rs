//! What the commands of Bloom filters reply and do, sentence by sentence of the contract.

use super::{CANNOT_EXPAND, FULL, MISSING, size, terms};
use crate::support::filter::{
    BAD_CAPACITY, BAD_EXPANSION, BAD_RATE, CAPACITY_RANGE, EXPANSION_RANGE, ITEM_EXISTS, Kind,
    NO_INTEGERS, RATE_RANGE, assert_holds_numbers, fill, server_and_both, shown, value_digest,
};
use crate::support::{Lines, SYNTAX, Value, WRONGTYPE, ints, server_and_client};

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
        // As in RedisBloom, NONSCALING prevails.
        ("BF.INSERT h NONSCALING EXPANSION 4 ITEMS x", [100, 1, 1, 0]),
        ("BF.INSERT i EXPANSION 2 NONSCALING ITEMS x", [100, 1, 1, 0]),
        (
            "BF.INSERT a NOCREATE EXPANSION 4 NONSCALING ITEMS x",
            [100, 1, 2, 2],
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
