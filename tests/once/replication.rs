//! A replica has the work of its master, decides nothing, and takes over with it.

use std::time::Duration;

use crate::support::once::{assert_filled, fill, token};
use crate::support::{
    Lines, Random, Raw, SOON, assert_identical, eventually, follow, pair, quiet, random_load,
    server_and_client, stop_before, unix_ms, wait_for_replica_sync, with_growing_lease,
};

#[test]
fn every_change_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let token = fill(&mut client);
    assert_identical(&master, &replica);
    assert_filled(&mut client, token);
    for line in [
        "PEXPIRE busy 80000".to_owned(),
        "PERSIST busy".to_owned(),
        format!("ONCE.DONE busy {token} result PX 600000"),
        format!("ONCE.DONE busy {token} result PX 600000"),
        "COPY busy copy".to_owned(),
        "RENAME busy renamed".to_owned(),
        "DEL copy".to_owned(),
        "ONCE.BEGIN short LEASE 20".to_owned(),
    ] {
        client.must(&line);
        client.must("PING");
    }
    eventually(SOON, || client.must("EXISTS short") == 0);
    assert_identical(&master, &replica);
    // A repeated request, whose first reply was lost, can be waited for.
    assert_eq!(
        client.must(&format!("ONCE.DONE renamed {token} result PX 600000")),
        1
    );
    assert!(client.must("WAIT 1 10000").int() >= 1);
}

#[test]
fn refusals_and_looks_propagate_nothing() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let token = fill(&mut client);
    wait_for_replica_sync(&master, &replica);
    let offset = master.info_int("master_repl_offset");
    for line in [
        "ONCE.BEGIN busy LEASE 5".to_owned(),
        "ONCE.BEGIN done LEASE 5".to_owned(),
        "ONCE.BEGIN busy LEASE 5 FINGERPRINT g".to_owned(),
        "ONCE.BEGIN busy LEASE 5 BLOCK 10".to_owned(),
        format!("ONCE.DONE busy {} r PX 5", token + 1),
        format!("ONCE.FAIL busy {}", token + 1),
        "ONCE.DONE none 5 r PX 5".to_owned(),
        "ONCE.INFO busy".to_owned(),
        "ONCE.APPLY busy nonsense".to_owned(),
    ] {
        client.run(&line);
        assert_eq!(master.info_int("master_repl_offset"), offset, "{line}");
    }
}

impl Random {
    fn work(&mut self) -> String {
        let key = format!("k{}", self.below(8));
        let other = format!("k{}", self.below(8));
        match self.below(14) {
            0..=5 => format!("ONCE.BEGIN {key} LEASE {}", 1 + self.below(80)),
            6 => format!("ONCE.BEGIN {key} LEASE 50 FINGERPRINT f BLOCK 5"),
            7 => format!("PEXPIRE {key} {}", 1 + self.below(40)),
            8 => format!("PERSIST {key}"),
            9 => format!("RENAME {key} {other}"),
            10 => format!("COPY {key} {other} REPLACE"),
            11 => format!("MOVE {key} 1"),
            12 => format!("ONCE.FAIL {key} {}", self.below(5)),
            _ => format!("DEL {key}"),
        }
    }
}

#[test]
fn a_replica_is_identical_after_a_random_load() {
    let (master, replica) = pair();
    let second = quiet().start();
    follow(&replica, &second);
    for round in 0..3 {
        random_load(
            &master,
            4,
            177 + round,
            Duration::from_millis(400),
            Random::work,
        );
        assert_identical(&master, &replica);
        assert_identical(&master, &second);
    }
    assert!(master.info_int("sluice_once_begun") > 0);
    assert!(master.info_int("sluice_once_expired") > 0);
    for server in [&master, &replica, &second] {
        let log = server.log();
        for word in ["internal error", "panic", "invalid replicated"] {
            assert!(!log.contains(word), "{word} {log}");
        }
    }
}

/// It is the master that says when a lease has ended.
#[test]
fn a_replica_ends_nothing_by_itself() {
    let (master, replica) = pair();
    let (mut client, mut reader) = (Raw::connect(&master), Raw::connect(&replica));
    let end = with_growing_lease(200, |lease| {
        let line = format!("ONCE.BEGIN k LEASE {lease}");
        let replies = client.transact([&*line, "PEXPIRETIME k"]);
        token(&replies[0]);
        stop_before(&master, &replica, replies[1].int())
    });
    eventually(SOON, || unix_ms() > end + 200);
    assert_eq!(reader.run("DBSIZE"), 1);
    master.cont_signal();
    eventually(SOON, || reader.run("DBSIZE") == 0);
    assert_identical(&master, &replica);
}

#[test]
fn apply_needs_the_permission_to_restore_the_key() {
    let (server, mut client) = server_and_client();
    client.must("ACL SETUSER bob on >pw ~* +@all -restore");
    let mut user = Raw::connect(&server);
    user.must("AUTH bob pw");
    let refused = user.run("ONCE.APPLY k x");
    let needs = "NOPERM this internal command needs the permission to RESTORE the key";
    assert_eq!(refused.err(), needs);
    let bad = client.run("ONCE.APPLY k x");
    assert_eq!(bad.err(), "ERR invalid replicated effect");
    assert_eq!(client.must("EXISTS k"), 0);
}
