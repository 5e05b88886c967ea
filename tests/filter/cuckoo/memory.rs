//! Cuckoo filters that are larger than the settings or the server allow.

use super::{count_added, counts};
use crate::support::filter::{Kind, OUT_OF_MEMORY, TOO_LARGE, assert_holds_numbers, each, shown};
use crate::support::{Lines, server_and_client};

#[test]
fn filters_and_layers_beyond_bloom_max_bytes_are_refused() {
    let (server, mut client) = server_and_client();
    client.must("CONFIG SET sluice.bloom-max-bytes 4000");
    let digest = server.digest();
    for line in [
        "CF.RESERVE k 10000",
        "CF.RESERVE k 1000 BITS 32",
        "CF.RESERVE k 1073741824 BITS 32",
        "CF.RESERVE k 1073741824 BITS 32 BUCKETSIZE 1",
        "CF.INSERT k CAPACITY 10000 ITEMS a",
        "CF.INSERTNX k CAPACITY 10000 ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    client.must("CONFIG SET sluice.cuckoo-capacity 10000");
    for line in ["CF.ADD k a", "CF.ADDNX k a", "CF.INSERT k ITEMS a"] {
        assert_eq!(client.run(line).err(), TOO_LARGE, "{line}");
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(server.info_int("sluice_filter_refused_memory"), 9);
    assert_eq!(client.run("EXISTS k"), 0);
    // A layer that would be too much.
    client.must("CF.RESERVE k 1000 EXPANSION 2");
    let mut held = 0;
    each(&mut client, "CF.INSERT k ITEMS", 0..3000, |_, reply| {
        held += i64::from(*reply == 1);
    });
    assert!((1000..2000).contains(&held), "{held}");
    assert_eq!(counts(&mut client, "k"), [1, held, 0]);
    // Until no slot is left.
    count_added(&mut client, "k", 3000..200_000);
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), TOO_LARGE);
    assert_eq!(shown(&client.run("CF.INSERT k ITEMS new")), ["-1"]);
    assert_eq!(server.digest(), digest);
    assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..1000);
    client.must("CONFIG SET sluice.bloom-max-bytes 40000");
    assert_eq!(client.run("CF.ADD k new"), 1);
    assert_eq!(counts(&mut client, "k")[0], 2);
}

#[test]
fn maxmemory_refuses_filters_and_layers_and_lets_items_be_deleted() {
    let (server, mut client) = server_and_client();
    client.must("CF.RESERVE k 1000 EXPANSION 32768");
    let limit = server.info_int("used_memory") + (20 << 20);
    client.must(&format!("CONFIG SET maxmemory {limit}"));
    for line in [
        "CF.RESERVE new 20000000",
        "CF.INSERT new CAPACITY 20000000 ITEMS a",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    count_added(&mut client, "k", 0..100_000);
    let digest = server.digest();
    assert_eq!(client.run("CF.ADD k new").err(), OUT_OF_MEMORY);
    assert_eq!(server.digest(), digest);
    assert_holds_numbers(&mut client, Kind::Cuckoo, "k", 0..1000);
    client.must("CONFIG SET maxmemory 1");
    for line in [
        "CF.RESERVE new 100",
        "CF.ADD k a",
        "CF.ADDNX k a",
        "CF.INSERT k ITEMS a",
        "CF.INSERTNX k ITEMS a",
        "CF.LOADCHUNK k 1 x",
    ] {
        assert_eq!(client.run(line).err(), OUT_OF_MEMORY, "{line}");
    }
    let item = 5u64.to_le_bytes();
    assert_eq!(client.call([b"CF.DEL".as_slice(), b"k", &item]), 1);
    assert_eq!(client.run("CF.COMPACT k"), "OK");
    assert!(!client.run("CF.COUNT k x").is_err());
}
