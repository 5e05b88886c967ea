//! Filters in a cluster: slots, and the keys and users of every command.

use crate::support::cluster::{node, one_node, two_nodes};
use crate::support::filter::{Kind, add, assert_holds, value_digest};
use crate::support::{Lines, Raw, Server, Value, reads_keys_in_threads};

#[test]
fn several_filters_need_one_slot() {
    let (server, mut client) = one_node();
    for key in ["foo", "bar"] {
        client.must(&format!("BF.RESERVE {key} 0.01 100"));
    }
    client.must("BF.RESERVE {foo}1 LIKE foo");
    client.must("BF.RESERVE {foo}2 like {foo}1");
    client.must("BF.MADD {foo}1 a b");
    client.must("BF.MADD {foo}2 b c");
    let digest = server.digest();
    for line in [
        "BF.MERGE foo 1 bar",
        "BF.MERGE foo 2 {foo}1 bar",
        "BF.MERGE bar 2 {foo}1 {foo}2",
        "BF.RESERVE new LIKE foo",
        "BF.RESERVE {bar}new like foo",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("CROSSSLOT "), "{line}: {reply:?}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    client.must("BF.MERGE foo 2 {foo}1 {foo}2");
    client.must("BF.MERGE {foo}3 2 {foo}1 {foo}2");
    assert_eq!(client.run("BF.CARD foo"), 4);
    assert_eq!(
        value_digest(&mut client, "foo"),
        value_digest(&mut client, "{foo}3")
    );
}

#[test]
fn filters_go_to_another_node_with_their_slot() {
    let (one, other) = two_nodes(&node());
    let (mut here, mut there) = (Raw::connect(&one), Raw::connect(&other));
    let ids = [&one, &other].map(|server| server.command(["CLUSTER", "MYID"]).text().to_owned());
    // "bar" is in the slot 5061.
    here.must("BF.RESERVE bar 0.01 100");
    add(&mut here, Kind::Bloom, "bar", 0..1000);
    here.must("BF.RESERVE {bar}like LIKE bar");
    add(&mut here, Kind::Cuckoo, "{bar}cf", 0..500);
    assert!(there.run("BF.ADD bar x").err().starts_with("MOVED 5061"));
    there.must(&format!("CLUSTER SETSLOT 5061 IMPORTING {}", ids[0]));
    here.must(&format!("CLUSTER SETSLOT 5061 MIGRATING {}", ids[1]));
    let port = other.port().to_string();
    let migrate = [
        "MIGRATE",
        "127.0.0.1",
        &port,
        "",
        "0",
        "60000",
        "KEYS",
        "bar",
        "{bar}cf",
    ];
    assert_eq!(here.call(migrate), "OK");
    // One of both keys is here, the other there.
    assert!(here.run("BF.ADD bar x").err().starts_with("ASK 5061"));
    let reply = here.run("BF.MERGE bar 1 {bar}like");
    assert!(reply.err().starts_with("TRYAGAIN"), "{reply:?}");
    there.must("ASKING");
    assert_eq!(there.run("BF.EXISTS bar i1"), 1);
    assert_eq!(
        here.call(["MIGRATE", "127.0.0.1", &port, "{bar}like", "0", "60000"]),
        "OK"
    );
    for client in [&mut there, &mut here] {
        client.must(&format!("CLUSTER SETSLOT 5061 NODE {}", ids[1]));
    }
    assert_holds(&mut there, Kind::Bloom, "bar", 0..1000);
    assert_holds(&mut there, Kind::Cuckoo, "{bar}cf", 0..500);
    there.must("BF.MERGE {bar}like 1 bar");
    assert_holds(&mut there, Kind::Bloom, "{bar}like", 0..1000);
}

#[track_caller]
fn keys_and_flags(client: &mut Raw, line: &str) -> String {
    let keys = client.run(&format!("COMMAND GETKEYSANDFLAGS {line}"));
    if keys.is_err() {
        return keys.err().to_owned();
    }
    let keys = keys.array().iter().map(|key| {
        let flags = key.array()[1].array().iter().map(Value::text);
        let access = flags.filter(|flag| flag.len() == 2).collect::<Vec<_>>();
        format!("{}:{}", key.array()[0].text(), access.join("+"))
    });
    keys.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_keys_of_every_command_are_found() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    for (line, expected) in [
        ("BF.RESERVE k 0.01 100", "k:RW"),
        ("BF.RESERVE k 0.01 100 EXPANSION 4 NONSCALING", "k:RW"),
        ("BF.RESERVE k LIKE o", "k:RW o:RO"),
        ("BF.RESERVE k like o", "k:RW o:RO"),
        ("BF.RESERVE k LIKE LIKE", "k:RW LIKE:RO"),
        ("BF.RESERVE LIKE LIKE o", "LIKE:RW o:RO"),
        ("BF.RESERVE LIKE 0.01 100", "LIKE:RW"),
        ("BF.ADD k i", "k:RW"),
        ("BF.MADD k i j", "k:RW"),
        ("BF.INSERT k CAPACITY 5 ITEMS i j", "k:RW"),
        ("BF.MADD k LIKE o", "k:RW"),
        ("BF.LOADCHUNK k 1 x", "k:RW"),
        ("BF.MERGE d 1 a", "d:RW a:RO"),
        ("BF.MERGE d 3 a b c", "d:RW a:RO b:RO c:RO"),
        ("BF.MERGE d 2 d a", "d:RW d:RO a:RO"),
        ("BF.EXISTS k i", "k:RO"),
        ("BF.MEXISTS k i j", "k:RO"),
        ("BF.CARD k", "k:RO"),
        ("BF.INFO k", "k:RO"),
        ("BF.SCANDUMP k 0", "k:RO"),
        ("CF.RESERVE k 100", "k:RW"),
        ("CF.ADD k i", "k:RW"),
        ("CF.ADDNX k i", "k:RW"),
        ("CF.INSERT k ITEMS i j", "k:RW"),
        ("CF.INSERTNX k ITEMS i j", "k:RW"),
        ("CF.DEL k i", "k:RW"),
        ("CF.COMPACT k", "k:RW"),
        ("CF.LOADCHUNK k 1 x", "k:RW"),
        ("CF.EXISTS k i", "k:RO"),
        ("CF.MEXISTS k i j", "k:RO"),
        ("CF.COUNT k i", "k:RO"),
        ("CF.INFO k", "k:RO"),
        ("CF.SCANDUMP k 0", "k:RO"),
    ] {
        assert_eq!(keys_and_flags(&mut client, line), expected, "{line}");
        let names: Vec<&str> = expected.split([' ', ':']).step_by(2).collect();
        let keys = client.run(&format!("COMMAND GETKEYS {line}"));
        let keys: Vec<_> = keys.array().iter().map(Value::text).collect();
        assert_eq!(keys, names, "{line}");
    }
    for line in [
        "BF.MERGE d 0 a",
        "BF.MERGE d x a",
        "BF.MERGE d -1 a",
        "BF.MERGE d 9 a",
        "BF.MERGE d 9223372036854775807 a",
    ] {
        let reply = client.run(&format!("COMMAND GETKEYS {line}"));
        // A server that finds keys by their specs alone finds the destination.
        let expected = match reads_keys_in_threads(&mut client) {
            true => !matches!(&reply, Value::Array(keys) if keys.iter().any(|key| *key != "d")),
            false => reply.is_err(),
        };
        assert!(expected, "{line}: {reply:?}");
    }
}

#[test]
fn users_are_kept_to_their_filters_also_by_commands_on_several_keys() {
    let server = Server::start();
    let mut admin = Raw::connect(&server);
    admin.must("BF.RESERVE shared:a 0.01 100");
    admin.must("BF.RESERVE secret LIKE shared:a");
    admin.must("BF.ADD secret x");
    admin.must("ACL SETUSER u on >p +@all ~own:* %R~shared:*");
    let mut client = Raw::connect(&server);
    client.must("AUTH u p");
    client.must("BF.RESERVE own:a LIKE shared:a");
    client.must("BF.MERGE own:a 1 shared:a");
    let digest = server.digest();
    for line in [
        "BF.RESERVE own:b LIKE secret",
        "BF.MERGE own:a 1 secret",
        "BF.MERGE own:a 2 shared:a secret",
        "BF.MERGE shared:a 1 own:a",
        "BF.RESERVE shared:b LIKE own:a",
        "BF.ADD shared:a x",
        "BF.SCANDUMP secret 0",
        "BF.APPLY shared:a x",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOPERM"), "{line}: {reply:?}");
    }
    assert_eq!(server.digest(), digest);
    assert!(client.must("BF.SCANDUMP shared:a 0").array()[0].int() > 0);
}
