//! Bloom filters that are larger than the settings, the server or the machine allow.

use super::{size, terms};
use crate::support::corruption::resident;
use crate::support::filter::{
    KINDS, Kind, OUT_OF_MEMORY, TOO_LARGE, absent, assert_holds_numbers, dump, fill, load_chunk,
    shown,
};
use crate::support::{Fsync, Lines, Raw, SOON, Server, Written, server_and_client};
use std::time::Instant;

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
        assert!(start.elapsed() < SOON, "{line}");
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
    let [new, newer] = absent(&mut client, Kind::Bloom, "k");
    assert_eq!(client.run(&format!("BF.ADD k {new}")).err(), TOO_LARGE);
    let refused = format!("-{TOO_LARGE}");
    let known = (end - 1).to_le_bytes();
    let items = [new.as_bytes(), &known, newer.as_bytes()];
    let reply = client.call([b"BF.MADD".as_slice(), b"k"].into_iter().chain(items));
    assert_eq!(shown(&reply), [&refused, "0", &refused]);
    assert_eq!(server.digest(), digest);
    assert_eq!(Written::by(&server), written);
    assert_eq!(terms(&mut client, "k"), [1000, 1, 1000, 2]);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 3);
    client.must("CONFIG SET sluice.bloom-max-bytes 40000");
    assert_eq!(client.run(&format!("BF.ADD k {new}")), 1);
    assert_eq!(terms(&mut client, "k"), [3000, 2, 1001, 2]);
    assert_holds_numbers(&mut client, Kind::Bloom, "k", 0..end);
    // So large a layer that nobody could have it.
    client.must("BF.RESERVE steep 0.0001 1000 EXPANSION 32768");
    fill(&mut client, "steep", 0, 1000);
    let [new, _] = absent(&mut client, Kind::Bloom, "steep");
    assert_eq!(client.run(&format!("BF.ADD steep {new}")).err(), TOO_LARGE);
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
    let [new, _] = absent(&mut client, Kind::Bloom, "k");
    for line in [
        "BF.RESERVE new 0.01 20000000",
        "BF.INSERT new CAPACITY 20000000 ITEMS a",
        &format!("BF.ADD k {new}"),
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    let refused = format!("-{OUT_OF_MEMORY}");
    let known = 0u64.to_le_bytes();
    let reply = client.call([b"BF.MADD".as_slice(), b"k", new.as_bytes(), &known]);
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
    assert!(took < SOON, "{took:?}");
    assert_eq!(client.run("BF.ADD k a"), 1);
    assert_eq!(client.run("BF.EXISTS k a"), 1);
    assert_eq!(client.run("BF.EXISTS k b"), 0);
    assert!(size(&mut client, "k") > 120_000_000);
    let touched = server.info_int("used_memory_rss") - before;
    assert!(touched < 20_000_000, "{touched}");
}

/// Also where the allocator has memory that it gave before.
#[test]
fn a_filter_that_is_reserved_again_has_no_pages_either() {
    let (server, mut client) = server_and_client();
    client.must("CONFIG SET lazyfree-lazy-user-del no");
    let before = resident(&server);
    for line in [
        "BF.RESERVE k 0.01 100000000",
        "CF.RESERVE k 50000000",
        "BF.RESERVE k 0.01 30000000",
    ] {
        let family = &line[..2];
        for round in 0..4 {
            assert_eq!(client.run(line), "OK");
            let item = format!("{family}.EXISTS k i{round}");
            assert_eq!(client.run(&item), 0);
            assert_eq!(client.run(&format!("{family}.ADD k i{round}")), 1);
            assert_eq!(client.run(&item), 1);
            assert_eq!(client.run("DEL k"), 1);
        }
        let touched = resident(&server) - before;
        assert!(touched < 20_000_000, "{line}: {touched}");
    }
}

/// Memory with other bytes in it is zeroed, whether the allocator or the system provides it.
#[test]
fn a_filter_in_memory_that_was_in_use_is_empty() {
    let (_server, mut client) = server_and_client();
    client.must("CONFIG SET lazyfree-lazy-user-del no");
    for capacity in [1000, 20_000, 100_000, 500_000, 5_000_000] {
        for kind in KINDS {
            for _ in 0..2 {
                client.must(&kind.reserve("k", capacity));
                client.must(&kind.reserve("other", capacity));
                let chunks = dump(&mut client, kind, "k");
                assert_eq!(chunks.len(), 1, "{capacity}: a bit is not zero");
                client.must("DEL k other");
                // Strings of the size of a segment and of other sizes, without zeros.
                for (number, size) in [60_000, 300_000, 4 << 20, 30 << 20].iter().enumerate() {
                    let bytes = vec![0xff; *size];
                    client.call([b"SET".as_slice(), format!("s{number}").as_bytes(), &bytes]);
                }
                client.must("DEL s0 s1 s2 s3");
            }
        }
    }
}

/// Redis 7.0 has no way to ask for zeroed memory that may be refused, and ends when it gets none.
#[test]
fn what_the_machine_has_no_memory_for_is_refused_and_the_server_lives() {
    const LIMIT: u64 = 3 << 30;
    let (server, mut client) = server_and_client();
    client.must("CONFIG SET sluice.bloom-max-bytes 64gb");
    client.must("BF.RESERVE small 0.01 1000");
    let pid = server.pid() as libc::pid_t;
    let set_limit = |bytes: u64| {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the limit lives through the call; a null pointer asks for nothing back.
        let set = unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &limit, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    };
    set_limit(LIMIT);
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
    // The allocator may have taken all addresses that the limit allows, and then needs some for itself.
    set_limit(libc::RLIM_INFINITY);
    for _ in 0..3 {
        client.must("BF.RESERVE middle 0.000000001 20000000");
        assert_eq!(client.run("BF.ADD middle a"), 1);
        assert_eq!(client.run("DEL middle"), 1);
    }
    assert_eq!(client.run("BF.ADD small a"), 1);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 3);
}
