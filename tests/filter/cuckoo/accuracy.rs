//! What cuckoo filters promise: a capacity that holds, layers behind it, and that no item is denied.

use super::{FULL, NO_MORE_LAYERS, count_added, counts, info};
use crate::support::filter::{
    Kind, absent, assert_holds_numbers, count, each, server_and_both, shown, value_digest,
};
use crate::support::{Fsync, Lines, Raw, Server, Value, ints, server_and_client};

/// The maximum number of layers of a filter with `EXPANSION 0`: docs/filters.md says at most three further layers.
const MOST_FIXED_LAYERS: i64 = 4;

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
    // With buckets of one, a filter may need further layers: usually one. Fewer than 1 of 500 filters need two.
    let most = if bucket_size == 1 {
        MOST_FIXED_LAYERS
    } else {
        1
    };
    assert!((1..=most).contains(&layers), "{key}: {layers}");
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
    let [new, newer] = &absent(&mut client, Kind::Cuckoo, "k");
    assert_eq!(client.run(&format!("CF.ADD k {new}")).err(), FULL);
    assert_eq!(client.run(&format!("CF.ADDNX k {new}")).err(), FULL);
    assert_eq!(third.run(&format!("CF.ADD k {new}")).err(), FULL);
    let known = held[0].to_le_bytes();
    let (new, newer) = (new.as_bytes(), newer.as_bytes());
    let insertnx = [b"CF.INSERTNX".as_slice(), b"k", b"ITEMS", new, &known];
    let insert = [b"CF.INSERT".as_slice(), b"k", b"ITEMS", new, newer];
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
    let [new, newer] = absent(&mut client, Kind::Cuckoo, "k");
    let refused_by = |client: &mut Raw, line: &str| shown(&client.run(&format!("{line} {new}")));
    for command in ["CF.ADD", "CF.ADDNX"] {
        let reply = client.run(&format!("{command} k {new}"));
        assert_eq!(reply.err(), NO_MORE_LAYERS, "{command}");
    }
    assert_eq!(
        refused_by(&mut client, &format!("CF.INSERT k ITEMS {newer}")),
        ["-1"; 2]
    );
    assert_eq!(refused_by(&mut third, "CF.INSERT k ITEMS"), ["false"]);
    assert_eq!(refused_by(&mut third, "CF.INSERTNX k ITEMS"), ["-1"]);
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
