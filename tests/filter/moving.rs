//! Moving from RedisBloom, as `docs/migrating.md` describes it: the replies that differ, the settings, and the steps.

use std::fs;
use std::path::Path;

use crate::support::filter::{Kind, assert_holds, value_digest};
use crate::support::{
    Lines, Raw, Value, assert_identical, await_role, follow, quiet, server_and_client,
    wait_for_replica_sync,
};

/// The guide.
const GUIDE: &str = include_str!("../../docs/migrating.md");

/// What RedisBloom 8.8 replied to each command: `<command>[|<field>]`, a tab, and the reply.
const REPLIES: &str = include_str!("../data/foreign/8.8/replies.txt");

/// What the guide says of the keys before the table of replies.
const BEFORE: [&str; 8] = [
    "SET text x",
    "BF.ADD bf a",
    "CF.ADD cf a",
    "BF.RESERVE full 0.01 1 NONSCALING",
    "BF.ADD full a",
    "BF.RESERVE large-bf 0.01 1000000",
    "CF.RESERVE large-cf 1000000",
    "CF.RESERVE large-cf-8 1000000 BITS 8",
];

/// The cells of a table of the guide.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = GUIDE.split_once(heading).expect(heading);
    let rows = rest.lines().skip(1).take_while(|line| !line.is_empty());
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect());
    cells.collect()
}

/// The parts of a text between backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A reply in one line.
fn line_of(reply: &Value) -> String {
    match reply {
        Value::Int(number) => number.to_string(),
        Value::Error(text) | Value::Simple(text) => text.trim().to_owned(),
        Value::Array(replies) => replies.iter().map(line_of).collect::<Vec<_>>().join(", "),
        other => other.text().to_owned(),
    }
}

#[test]
fn the_replies_that_differ_from_redisbloom_are_those_of_the_guide() {
    let (_server, mut client) = server_and_client();
    for line in BEFORE {
        client.must(line);
    }
    let rows = table("| command | RedisBloom 8.8 | Sluice |\n");
    assert_eq!(rows.len(), REPLIES.lines().count());
    for (row, of_redisbloom) in rows.iter().zip(REPLIES.lines()) {
        let [command, theirs, ours] = row[..] else {
            panic!("not three cells: {row:?}");
        };
        let command = code(command);
        let (asked, reply) = of_redisbloom.split_once('\t').expect("a reply");
        assert_eq!(command.join("|"), asked);
        assert_eq!(code(theirs), [reply], "{asked}");
        assert_ne!(theirs, ours, "{asked}");
        let reply = client.run(command[0]);
        let reply = match command.get(1) {
            Some(field) => line_of(reply.field(field)),
            None => line_of(&reply),
        };
        assert_eq!(code(ours), [reply], "{asked}");
    }
}

#[test]
fn the_settings_of_redisbloom_have_the_names_and_defaults_of_the_guide() {
    let (_server, mut client) = server_and_client();
    let rows = table("| RedisBloom 8.8 | Sluice | default |\n");
    let mut named = 0;
    for row in &rows {
        if let [name] = code(row[1])[..] {
            let reply = client.must(&format!("CONFIG GET {name}"));
            let value = match row[2] {
                "1 GiB" => "1073741824",
                value => value,
            };
            assert_eq!(reply.array()[1], value, "{name}");
            named += 1;
        }
    }
    assert_eq!(named, 5);
    // Those without a setting: RedisBloom's values, and Sluice's bucket size.
    client.must("CF.ADD cf a");
    let info = client.must("CF.INFO cf");
    assert_eq!(info.field("Bucket size"), &4);
    assert_eq!(info.field("Max iterations"), &20);
    assert_eq!(info.field("Expansion rate"), &1);
}

fn restore(client: &mut Raw, file: &str, key: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/foreign");
    let payload = fs::read(path.join(file)).expect(file);
    let reply = client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", &payload]);
    assert_eq!(reply, "OK");
}

/// The old server has Sluice, too, and unchanged filters of RedisBloom, which it sends as RedisBloom would.
#[test]
fn filters_move_by_replication_while_clients_write() {
    let (old, new) = (quiet().start(), quiet().start());
    let mut writer = Raw::connect(&old);
    restore(&mut writer, "bf-default.dump", "bf");
    restore(&mut writer, "cf-default.dump", "cf");
    restore(&mut writer, "2.0/cf-copies.dump", "unchanged");
    writer.must("SET s v");
    follow(&old, &new);
    wait_for_replica_sync(&old, &new);
    let mut client = Raw::connect(&new);
    for (key, name) in [("bf", "MBbloom--"), ("cf", "MBbloomCF")] {
        assert_eq!(client.must(&format!("TYPE {key}")), name);
    }
    // Both servers are in use.
    for number in 0..1000 {
        writer.must(&format!("BF.ADD bf new{number}"));
        writer.must(&format!("CF.ADD cf new{number}"));
    }
    writer.must("CF.DEL cf i0");
    writer.must("CLIENT PAUSE 10000 WRITE");
    wait_for_replica_sync(&old, &new);
    assert_identical(&old, &new);
    let digest = value_digest(&mut client, "unchanged");
    client.must("REPLICAOF NO ONE");
    await_role(&new, "master");
    assert_eq!(client.must("TYPE bf"), "sluice-bf");
    assert_eq!(client.must("TYPE cf"), "sluice-cf");
    assert_eq!(client.must("TYPE unchanged"), "MBbloomCF");
    assert_holds(&mut client, Kind::Bloom, "bf", 0..1000);
    assert_holds(&mut client, Kind::Cuckoo, "cf", 1..5000);
    for number in 0..1000 {
        assert_eq!(client.must(&format!("BF.EXISTS bf new{number}")), 1);
        assert_eq!(client.must(&format!("CF.EXISTS cf new{number}")), 1);
    }
    assert_eq!(client.must("BF.ADD bf after"), 1);
    assert_eq!(value_digest(&mut client, "unchanged"), digest);
}
