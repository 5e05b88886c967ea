//! `INFO`, and the settings of new filters.

use super::{size, terms};
use crate::support::filter::{Kind, TOO_LARGE, number};
use crate::support::{Lines, Raw, Server, field_of, server_and_client};

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
