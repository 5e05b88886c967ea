//! `BF.SCANDUMP` and `BF.LOADCHUNK`.

use sluice::bloom::shape::BloomShape;
use sluice::bloom::state::{Bloom, BloomParameters};
use sluice::filter::persist::put_header;
use sluice::filter::state::FilterHeader;

use super::{MISSING, terms};
use crate::support::filter::{
    BAD_DATA, ITEM_EXISTS, Kind, TOO_LARGE, dump, each, fill, load_chunk, value_digest,
};
use crate::support::{Lines, NOT_AN_INTEGER, UNSAFE_INTEGER, Value, WRONGTYPE, server_and_client};

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
    let layer = |capacity, blocks, probes| BloomShape {
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
        put_header(
            &mut bytes,
            &FilterHeader::<Bloom> {
                seed: 5,
                parameters: BloomParameters {
                    error: 0.01,
                    capacity: 100,
                    expansion,
                },
                layers,
                deleted: 0,
                foreign: None,
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
