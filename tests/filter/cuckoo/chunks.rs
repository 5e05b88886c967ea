//! `CF.SCANDUMP` and `CF.LOADCHUNK`.

use sluice::cuckoo::state::{Cuckoo, CuckooParameters};
use sluice::filter::persist::put_header;
use sluice::filter::state::FilterHeader;

use super::{MISSING, count_added};
use crate::support::filter::{
    BAD_DATA, ITEM_EXISTS, Kind, count, dump, each, load_chunk, value_digest,
};
use crate::support::{Lines, WRONGTYPE, server_and_client};

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
    let wide = CuckooParameters::new(100, 4, 4, 20, 2);
    let strange = CuckooParameters { base: 1, ..wide };
    let expansionless = CuckooParameters::new(100, 4, 4, 20, 0);
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
        put_header(
            &mut bytes,
            &FilterHeader::<Cuckoo> {
                seed: 5,
                parameters: terms,
                layers,
                deleted: 0,
                foreign: None,
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
