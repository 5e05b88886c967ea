//! The commands of RedisBloom as it replicates them and writes them into an AOF: as they came from a client, without a seed and
//! without a decision. All servers that run them must have the same filters.

use std::fs;

use crate::foreign::chunks;
use crate::support::filter::{Kind, add, assert_calm, assert_holds, number};
use crate::support::{
    Fsync, Lines, Raw, SOON, Server, assert_identical, await_role, compile, encode, eventually,
    follow, quiet, wait_for_replica_sync,
};

/// A module that replicates each command as it came.
const VERBATIM: &str = include_str!("verbatim.c");

/// A master that sends commands as RedisBloom does.
fn master_like_redisbloom() -> Server {
    let home = Server::builder().no_module().start();
    let library = home.dir().join("verbatim.so");
    compile(VERBATIM, &library);
    let library = library.to_str().expect("a path");
    quiet().no_module().config("loadmodule", library).start()
}

/// A command of one line.
type Line = Vec<Vec<u8>>;

fn line(text: &str) -> Line {
    text.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// A command with the items `i<number>`.
fn with_items(start: &str, numbers: std::ops::Range<u64>) -> Line {
    let items = numbers.map(|number| format!("i{number}").into_bytes());
    line(start).into_iter().chain(items).collect()
}

/// The commands that load a filter of RedisBloom from its chunks.
fn chunks_of(name: &str, kind: Kind, key: &str) -> Vec<Line> {
    let chunks = chunks(name).into_iter();
    let lines = chunks.map(|(iterator, chunk)| {
        let start = line(&format!("{} {key} {iterator}", kind.name("LOADCHUNK")));
        start.into_iter().chain([chunk]).collect()
    });
    lines.collect()
}

/// Filters of each kind that commands create in each way, grow, and make their own.
fn history() -> Vec<Line> {
    let mut lines: Vec<Line> = [
        "BF.RESERVE bf-reserved 0.1 100",
        "BF.RESERVE bf-other 0.1 100",
        "BF.ADD bf-added i0",
        "BF.INSERT bf-inserted CAPACITY 20 ERROR 0.1 ITEMS i0 i1",
        "CF.RESERVE cf-reserved 100",
        "CF.ADD cf-added i0",
        "CF.ADDNX cf-addnx i0",
        "CF.INSERT cf-inserted CAPACITY 20 ITEMS i0 i1",
        "CF.INSERTNX cf-insertnx ITEMS i0 i1",
    ]
    .map(line)
    .into();
    for key in ["bf-reserved", "bf-other", "bf-added", "bf-inserted"] {
        lines.push(with_items(&format!("BF.MADD {key}"), 0..300));
    }
    for key in ["cf-reserved", "cf-added", "cf-addnx", "cf-inserted"] {
        lines.push(with_items(&format!("CF.INSERT {key} ITEMS"), 0..300));
    }
    lines.push(line("CF.DEL cf-inserted i7"));
    for key in ["bf-foreign", "bf-unchanged"] {
        lines.extend(chunks_of("bf-default", Kind::Bloom, key));
    }
    for key in ["cf-foreign", "cf-deleted"] {
        lines.extend(chunks_of("cf-default", Kind::Cuckoo, key));
    }
    lines.push(line("BF.ADD bf-foreign new"));
    lines.push(line("CF.ADD cf-foreign new"));
    lines.push(line("CF.DEL cf-deleted i5"));
    lines.push(line("CF.ADD cf-deleted i5"));
    lines
}

/// A replica passes the commands of its master on as they came.
#[test]
fn servers_that_run_the_same_commands_have_the_same_filters() {
    let old = master_like_redisbloom();
    let (first, second) = (quiet().start(), quiet().start());
    follow(&old, &first);
    follow(&first, &second);
    let mut writer = Raw::connect(&old);
    for line in history() {
        assert_eq!(writer.call(line), "OK");
    }
    wait_for_replica_sync(&old, &first);
    assert_identical(&first, &second);
    let mut client = Raw::connect(&first);
    assert_eq!(client.must("DBSIZE"), 13);
    // The one takes the place of the old master, and the other goes on without a full transfer. An item that the master has
    // already, or that is a false positive there, is not sent.
    let transfers = first.info_int("sync_full");
    first.promote();
    await_role(&first, "master");
    for key in ["bf-reserved", "bf-added", "bf-inserted", "bf-foreign"] {
        add(&mut client, Kind::Bloom, key, 10_000..12_000);
    }
    for key in ["cf-reserved", "cf-addnx", "cf-foreign"] {
        for batch in [10_000..11_000, 11_000..12_000] {
            client.call(with_items(&format!("CF.INSERTNX {key} ITEMS"), batch));
        }
    }
    assert_identical(&first, &second);
    assert_eq!(first.info_int("sync_full"), transfers);
    // Filters of one history have different seeds.
    let reply = client.run("BF.MERGE bf-reserved 1 bf-other");
    assert_eq!(reply.err(), "ERR filters differ in shape");
    assert_calm(&first);
    assert_calm(&second);
}

/// Writes an AOF of these commands, and starts the server with it.
fn restart_with(server: &Server, lines: &[Line]) {
    server.kill9();
    let commands = lines.iter().flat_map(encode);
    fs::write(server.aof_file(".incr."), commands.collect::<Vec<u8>>()).expect("a file");
    server.restart();
}

/// What the server adds to the AOF later is about filters with the same bits.
#[test]
fn an_aof_of_commands_makes_the_same_filters_each_time() {
    let server = Server::builder().aof(Fsync::Always).start();
    let lines: Vec<Line> = [line("SELECT 0")].into_iter().chain(history()).collect();
    restart_with(&server, &lines);
    let mut client = Raw::connect(&server);
    add(&mut client, Kind::Bloom, "bf-reserved", 10_000..12_000);
    add(&mut client, Kind::Cuckoo, "cf-reserved", 10_000..12_000);
    add(&mut client, Kind::Bloom, "bf-foreign", 10_000..12_000);
    add(&mut client, Kind::Cuckoo, "cf-foreign", 10_000..12_000);
    let digest = server.digest();
    for _ in 0..2 {
        server.kill9();
        server.restart();
        assert_eq!(server.digest(), digest);
    }
    let mut client = Raw::connect(&server);
    for (kind, key) in [
        (Kind::Bloom, "bf-reserved"),
        (Kind::Cuckoo, "cf-reserved"),
        (Kind::Bloom, "bf-foreign"),
        (Kind::Cuckoo, "cf-foreign"),
    ] {
        assert_holds(&mut client, kind, key, 0..300);
        assert_holds(&mut client, kind, key, 10_000..12_000);
    }
    assert_calm(&server);
}

/// RedisBloom does not count false positives, rounds sizes up, and can have more layers.
#[test]
fn a_filter_that_is_full_here_has_the_items_that_redisbloom_accepted() {
    let old = master_like_redisbloom();
    let replica = quiet().aof(Fsync::Always).start();
    follow(&old, &replica);
    let mut writer = Raw::connect(&old);
    let cases = [
        (Kind::Bloom, "BF.RESERVE bf 0.01 1000 NONSCALING", 1012),
        (
            Kind::Bloom,
            "BF.RESERVE bf-inexact 0.3 1000 NONSCALING",
            1400,
        ),
        (Kind::Cuckoo, "CF.RESERVE cf 1100 EXPANSION 0", 1950),
        (
            Kind::Cuckoo,
            "CF.RESERVE cf-pairs 1100 BUCKETSIZE 2 EXPANSION 0",
            1950,
        ),
        (Kind::Cuckoo, "CF.RESERVE cf-layers 35", 6000),
        (
            Kind::Cuckoo,
            "CF.RESERVE cf-doubling 35 EXPANSION 2",
            20_000,
        ),
    ];
    for (kind, reserve, items) in cases {
        writer.call(line(reserve));
        let key = reserve.split(' ').nth(1).expect("a key");
        for number in 0..items {
            writer.call(line(&format!("{} {key} i{number}", kind.name("ADD"))));
        }
    }
    wait_for_replica_sync(&old, &replica);
    let mut client = Raw::connect(&replica);
    for (kind, reserve, items) in cases {
        let key = reserve.split(' ').nth(1).expect("a key");
        assert_holds(&mut client, kind, key, 0..items);
    }
    // A client that adds items to a full filter of RedisBloom does not fill it with bits here.
    let mut writer = Raw::connect(&old);
    for number in 0..20_000 {
        writer.call(line(&format!("BF.ADD bf other{number}")));
    }
    wait_for_replica_sync(&old, &replica);
    let items = number(&mut client, Kind::Bloom, "bf", "Number of items inserted");
    assert!((1012..1100).contains(&items), "{items}");
    let digest = replica.digest();
    replica.command(["REPLICAOF", "NO", "ONE"]);
    await_role(&replica, "master");
    let refused = client.run("BF.ADD bf refused");
    assert_eq!(refused.err(), "ERR non scaling filter is full");
    eventually(SOON, || {
        ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
            .iter()
            .all(|field| replica.info_int(field) == 0)
    });
    replica.kill9();
    replica.restart();
    assert_eq!(replica.digest(), digest);
}

/// `bloom-foreign no` is for clients. A master and an AOF are not refused.
#[test]
fn chunks_of_a_master_and_of_an_aof_are_loaded_also_without_bloom_foreign() {
    let old = master_like_redisbloom();
    let builder = || {
        quiet()
            .aof(Fsync::Always)
            .module_args(&["bloom-foreign", "no"])
    };
    let replica = builder().start();
    follow(&old, &replica);
    let mut writer = Raw::connect(&old);
    let filters = [(Kind::Bloom, "bf-default"), (Kind::Cuckoo, "cf-default")];
    let lines: Vec<Line> = [line("SELECT 0")]
        .into_iter()
        .chain(
            filters
                .iter()
                .flat_map(|(kind, name)| chunks_of(name, *kind, name)),
        )
        .collect();
    for line in &lines[1..] {
        writer.call(line);
    }
    wait_for_replica_sync(&old, &replica);
    let server = builder().start();
    restart_with(&server, &lines);
    for server in [&replica, &server] {
        let mut client = Raw::connect(server);
        for (kind, name) in filters {
            assert_eq!(client.must(&format!("TYPE {name}")), kind.type_name());
            assert_holds(&mut client, kind, name, 0..1000);
        }
    }
    assert_eq!(replica.digest(), server.digest());
}

/// RedisBloom accepts additions before the last chunk.
#[test]
fn an_item_that_a_master_adds_between_two_chunks_stops_no_chunk() {
    let old = master_like_redisbloom();
    let replica = quiet().start();
    follow(&old, &replica);
    let mut writer = Raw::connect(&old);
    for (kind, name) in [(Kind::Bloom, "bf-wide"), (Kind::Cuckoo, "cf-four")] {
        for (index, chunk) in chunks_of(name, kind, name).into_iter().enumerate() {
            writer.call(chunk);
            writer.call(line(&format!("{} {name} new{index}", kind.name("ADD"))));
        }
    }
    wait_for_replica_sync(&old, &replica);
    let mut client = Raw::connect(&replica);
    for (kind, name) in [(Kind::Bloom, "bf-wide"), (Kind::Cuckoo, "cf-four")] {
        assert_holds(&mut client, kind, name, 0..4000);
        assert_eq!(
            client.must(&format!("{} {name} new0", kind.name("EXISTS"))),
            1
        );
    }
    assert_calm(&replica);
}
