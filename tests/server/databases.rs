//! A client stays in the database that it has selected, whatever the module listens to.
//!
//! Valkey 8.1.1 to 8.1.8, 9.0.0 to 9.0.5, 9.1.0 and 9.1.1 leave a client in the other database after `MOVE` and `COPY ... DB`
//! (<https://github.com/valkey-io/valkey/pull/4024>). There the first test, the third and the fourth one fail: `scripts/matrix`
//! expects that.

use crate::support::{
    Fsync, Lines, Raw, Server, Shutdown, Value, assert_identical, eventually, wait_for_replica_sync,
};

/// Sends each line, and expects no error.
#[track_caller]
fn run(client: &mut Raw, lines: &[&str]) {
    for line in lines {
        let reply = client.call(line.split_whitespace()); // `run` selects the client's database again
        assert!(!reply.is_err(), "{line}: {reply:?}");
    }
}

/// In which databases, of 0 to 3, there is such a key.
fn places_of(server: &Server, key: &str) -> Vec<i64> {
    let mut client = Raw::connect(server);
    let places = (0..4).filter(|database| {
        run(&mut client, &[&format!("SELECT {database}")]);
        client.call(["EXISTS", key]) == 1
    });
    places.collect()
}

/// Whatever crosses databases, each followed by a `SET` of a key of that name, which has to land where its client is.
const CROSSINGS: [(&str, &[&str], i64); 10] = [
    ("after:move", &["MOVE s1 3"], 0),
    ("after:copy", &["COPY s2 other DB 3 REPLACE"], 0),
    ("after:lock", &["MOVE l1 3"], 0),
    ("after:lockcopy", &["COPY l2 other2 DB 3"], 0),
    ("after:refusal", &["MOVE taken 3"], 0),
    ("after:expired", &["MOVE gone 3"], 0),
    ("after:select", &["SELECT 1", "COPY s4 s4 DB 2"], 1),
    (
        "after:exec",
        &[
            "MULTI",
            "COPY s2 o3 DB 3",
            "SET inside v",
            "MOVE s3 3",
            "EXEC",
        ],
        0,
    ),
    (
        "after:wandering",
        &["MULTI", "SELECT 2", "SET there v", "SELECT 0", "EXEC"],
        0,
    ),
    (
        "after:lazy",
        &["SET x v", "DEL x", "EXPIRE s2 1000", "RENAME s2 s5"],
        0,
    ),
];

/// What there is before.
const BEFORE: [&str; 14] = [
    "SET s1 v",
    "SET s2 v",
    "SET s3 v",
    "LOCK.ACQUIRE l1 me PX 600000",
    "LOCK.ACQUIRE l2 me PX 600000",
    "SET taken v",
    "SET gone v",
    "SELECT 1",
    "SET s4 v",
    "SELECT 3",
    "SET taken v",
    "SET gone v PX 1", // by then it may have expired, or not
    "BF.ADD f x",
    "SELECT 0",
];

fn cross(client: &mut Raw) {
    run(client, &BEFORE);
    let script = "redis.call('COPY', 'taken', 'scripted', 'DB', 2) redis.call('SET', 'by:script', 'v') \
        redis.call('SELECT', 1) redis.call('COPY', 's4', 'scripted2', 'DB', 2) redis.call('SET', 'by:script2', 'v')";
    assert!(!client.call(["EVAL", script, "0"]).is_err());
    run(client, &["SET after:script v"]);
    for (key, commands, _) in CROSSINGS {
        run(client, &["SELECT 0"]);
        run(client, commands);
        run(client, &[&format!("SET {key} v")]);
    }
}

#[track_caller]
fn all_are_in_place(server: &Server) {
    for (key, _, place) in CROSSINGS {
        assert_eq!(places_of(server, key), [place], "{key}");
    }
    for (key, places) in [
        ("after:script", &[0][..]),
        ("by:script", &[0]),
        ("by:script2", &[1]),
        ("scripted", &[2]),
        ("scripted2", &[2]),
        ("inside", &[0]),
        ("there", &[2]),
        ("s1", &[3]),
        ("l1", &[3]),
        ("l2", &[0]),
        ("other2", &[3]),
        ("taken", &[0, 3]),
    ] {
        assert_eq!(places_of(server, key), places, "{key}");
    }
}

#[test]
fn a_client_and_its_replicas_stay_where_they_are_when_keys_change_databases() {
    let (master, replica) = (Server::start(), Server::start());
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    let mut client = Raw::connect(&master);
    let mut neighbour = Raw::connect(&master);
    run(&mut neighbour, &["SELECT 2"]);
    cross(&mut client);
    run(
        &mut neighbour,
        &["SET neighbour v", "DEL neighbour", "SET neighbour v"],
    );
    all_are_in_place(&master);
    assert_eq!(places_of(&master, "neighbour"), [2]);
    assert_identical(&master, &replica);
    all_are_in_place(&replica);
}

#[test]
fn a_client_that_is_served_in_the_wake_of_another_stays_where_it_is() {
    let server = Server::start();
    let (mut client, mut waiter) = (Raw::connect(&server), Raw::connect(&server));
    run(&mut waiter, &["SELECT 2"]);
    waiter.send(["BLPOP", "list", "0"]);
    eventually(std::time::Duration::from_secs(20), || {
        server.info_int("blocked_clients") == 1
    });
    run(
        &mut client,
        &[
            "SET s v",
            "MULTI",
            "COPY s t DB 3",
            "SELECT 2",
            "RPUSH list x",
            "EXEC",
        ],
    );
    assert!(matches!(waiter.read(), Value::Array(_)));
    run(&mut waiter, &["SET mine v"]);
    assert_eq!(places_of(&server, "mine"), [2]);
    assert_eq!(places_of(&server, "list"), []);
}

#[test]
fn an_append_only_file_brings_moved_keys_back_to_where_they_were() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    run(
        &mut client,
        &[
            "SET s v",
            "LOCK.ACQUIRE l me PX 600000",
            "MOVE s 1",
            "SET after:move v",
            "MULTI",
            "COPY l m DB 2",
            "SET after:copy v",
            "MOVE l 3",
            "SET after:both v",
            "EXEC",
            "SET last v",
        ],
    );
    let digest = server.digest();
    server.shutdown(Shutdown::NoSave);
    server.restart();
    assert_eq!(server.digest(), digest);
    for (key, place) in [("s", 1), ("m", 2), ("l", 3), ("after:both", 0), ("last", 0)] {
        assert_eq!(places_of(&server, key), [place], "{key}");
    }
}

#[test]
fn scripts_and_repeated_copies_in_transactions_stay_where_they_are() {
    let (master, replica) = (Server::start(), Server::start());
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    let mut client = Raw::connect(&master);
    run(
        &mut client,
        &[
            "SET k v", "SELECT 1", "SET a v", "SELECT 2", "SET a v", "SELECT 0",
        ],
    );
    client.send(["MULTI"]);
    client.read();
    client.call(["EVAL", "redis.call('SELECT', 3)", "0"]);
    run(
        &mut client,
        &["SET x v", "DEL x", "SET behind:script v", "EXEC"],
    );
    let copies = [
        "MULTI",
        "SELECT 1",
        "COPY missing z DB 3",
        "COPY a y DB 3",
        "SELECT 2",
        "COPY a y DB 3 REPLACE",
        "SET behind:copies v",
        "EXEC",
        "SET after:copies v",
    ];
    run(&mut client, &copies);
    for server in [&master, &replica] {
        wait_for_replica_sync(&master, &replica);
        assert_eq!(places_of(server, "behind:script"), [0]);
        assert_eq!(places_of(server, "behind:copies"), [2]);
        assert_eq!(places_of(server, "after:copies"), [2]);
    }
    assert_eq!(master.digest(), replica.digest());
}

/// What a transaction brings to another database ends there in time, and a client that waits there is served.
#[test]
fn what_crosses_databases_in_a_transaction_is_followed() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let mut waiter = Raw::connect(&server);
    run(
        &mut client,
        &[
            "STOCK.SET k 10",
            "STOCK.RESERVE k 1 ORDER o PX 300",
            "LOCK.ACQUIRE l me PX 300",
        ],
    );
    run(
        &mut client,
        &[
            "MULTI",
            "COPY k n DB 3",
            "SELECT 0",
            "MOVE k 1",
            "SELECT 0",
            "MOVE l 2",
            "SELECT 0",
            "SET here v",
            "EXEC",
        ],
    );
    run(&mut waiter, &["SELECT 2"]);
    waiter.ask("LOCK.ACQUIRE l you BLOCK 0");
    assert!(waiter.read().int() > 0);
    for (database, key) in [(3, "n"), (1, "k")] {
        run(&mut client, &[&format!("SELECT {database}")]);
        eventually(std::time::Duration::from_secs(20), || {
            client.call(["STOCK.GET", key]) == 10
        });
    }
    assert_eq!(places_of(&server, "here"), [0]);
}

/// What the server does, and not its version, says whether the log has to warn.
#[test]
fn the_log_warns_of_a_server_that_leaves_clients_in_another_database() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    run(&mut client, &["SET k v", "MOVE k 3", "SET mark v"]);
    let is_misplaced = places_of(&server, "mark") != [0];
    let warns = server
        .log()
        .contains("leaves a client in the other database");
    assert_eq!(warns, is_misplaced, "{}", server.log());
}
