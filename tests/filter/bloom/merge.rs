//! `BF.MERGE`, and filters that are reserved `LIKE` others.

use super::{DIFFER, FULL, MISSING, size, terms};
use crate::support::filter::{Kind, TOO_LARGE, assert_holds_numbers, count, fill, value_digest};
use crate::support::{Lines, NOT_AN_INTEGER, Raw, SYNTAX, WRONGTYPE, ints, server_and_client};

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
