//! What Bloom filters promise: the rate of false positives, the bits of an item, and that no item is denied.

use super::{size, terms};
use crate::support::filter::{Kind, assert_holds_numbers, count, each, fill, value_digest};
use crate::support::{Fsync, Lines, Raw, Server, server_and_client};

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
