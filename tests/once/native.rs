//! What the server's own commands do with work.

use crate::support::once::{assert_filled, begin, busy, done, fill};
use crate::support::{Lines, Raw, SOON, Server, eventually, server_and_client, settled_memory};

#[test]
fn work_is_a_type_of_its_own() {
    let (_server, mut client) = server_and_client();
    let token = fill(&mut client);
    for key in ["done", "empty", "known", "busy"] {
        assert_eq!(client.call(["TYPE", key]), "sluice-on");
        assert_eq!(client.call(["OBJECT", "ENCODING", key]), "raw");
        assert!(client.call(["MEMORY", "USAGE", key]).int() > 0);
    }
    let found = client.call(["SCAN", "0", "COUNT", "1000", "TYPE", "sluice-on"]);
    assert_eq!(found.array()[1].array().len(), 4);
    assert_filled(&mut client, token);
}

#[test]
fn an_expiry_shortens_and_never_lengthens() {
    let (_server, mut client) = server_and_client();
    let token = begin(&mut client, "ONCE.BEGIN busy LEASE 90000");
    let first = begin(&mut client, "ONCE.BEGIN done LEASE 90000");
    client.must(&format!("ONCE.DONE done {first} r PX 90000"));
    for key in ["busy", "done"] {
        let end = client.call(["PEXPIRETIME", key]);
        for line in ["PERSIST %", "PEXPIRE % 900000000", "EXPIRE % 100000"] {
            client.must(&line.replace('%', key));
            eventually(SOON, || client.call(["PEXPIRETIME", key]) == end);
        }
        client.must(&format!("PEXPIRE {key} 50000"));
        let end = client.call(["PEXPIRETIME", key]);
        assert!(client.call(["PTTL", key]).int() <= 50_000);
        client.must(&format!("PERSIST {key}"));
        eventually(SOON, || client.call(["PEXPIRETIME", key]) == end);
    }
    assert!(busy(&client.must("ONCE.BEGIN busy LEASE 5")) <= 50_000);
    assert!(done(&client.must("ONCE.BEGIN done LEASE 5"), "r") <= 50_000);
    // The time that a result is remembered begins when it is stored.
    assert_eq!(
        client.must(&format!("ONCE.DONE busy {token} r PX 90000")),
        1
    );
    assert!(client.must("PTTL busy").int() > 50_000);
}

#[test]
fn a_key_that_outlives_its_lease_is_removed_after_the_transaction() {
    let (_server, mut client) = server_and_client();
    client.transact(["ONCE.BEGIN k LEASE 5", "PERSIST k", "DEBUG SLEEP 0.03"]);
    eventually(SOON, || client.run("DBSIZE") == 0);
}

#[test]
fn copies_renamed_and_restored_work_goes_on() {
    let (_server, mut client) = server_and_client();
    let token = fill(&mut client);
    let end = client.must("PEXPIRETIME busy");
    client.must("COPY busy copy");
    assert_eq!(client.must("PEXPIRETIME copy"), end);
    busy(&client.must("ONCE.BEGIN copy LEASE 5"));
    let dump = client.must("DUMP busy").bytes().to_vec();
    for (ttl, key) in [(&b"0"[..], &b"late"[..]), (b"50000", b"early")] {
        let restore: [&[u8]; 4] = [b"RESTORE", key, ttl, &dump];
        assert_eq!(client.call(restore), "OK");
    }
    eventually(SOON, || client.must("PEXPIRETIME late") == end);
    assert!(busy(&client.must("ONCE.BEGIN early LEASE 5")) <= 50_000);
    client.must("RENAME done renamed");
    done(&client.must("ONCE.BEGIN renamed LEASE 5"), "paid");
    client.must("MOVE renamed 3");
    client.must("SELECT 3");
    done(&client.must("ONCE.BEGIN renamed LEASE 5"), "paid");
    client.must("MOVE renamed 0");
    client.must("SELECT 0");
    client.must("RENAME renamed done");
    assert_filled(&mut client, token);
    // Each copy is done on its own.
    assert_eq!(client.must(&format!("ONCE.DONE copy {token} r PX 5000")), 1);
    busy(&client.must("ONCE.BEGIN busy LEASE 5"));
}

#[test]
fn memory_usage_is_truthful() {
    const COUNT: i64 = 5000;
    for result in [0, 10, 300, 5000] {
        let (_server, mut client) = server_and_client();
        client.must("SET warm up");
        let result = "r".repeat(result);
        let before = settled_memory(&mut client);
        for key in 0..COUNT {
            let line = format!("ONCE.BEGIN k{key} LEASE 600000 FINGERPRINT fingerprint");
            let token = begin(&mut client, &line).to_string();
            let key = format!("k{key}");
            client.call(["ONCE.DONE", &key, &token, &result, "PX", "600000"]);
        }
        let used = settled_memory(&mut client) - before;
        let told: i64 = (0..COUNT)
            .map(|key| client.call(["MEMORY", "USAGE", &format!("k{key}")]).int())
            .sum();
        // The server's own tables of keys and expiries are not told.
        assert!(
            told <= used * 11 / 10 && used <= told + COUNT * 160,
            "{told} of {used}"
        );
    }
}

#[test]
fn a_flush_and_a_swap_take_work_along() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let token = fill(&mut client);
    client.must("SWAPDB 0 1");
    assert_eq!(client.must("DBSIZE"), 0);
    client.must("SELECT 1");
    assert_filled(&mut client, token);
    client.must("FLUSHDB");
    assert_eq!(client.must("DBSIZE"), 0);
    fill(&mut client);
}
