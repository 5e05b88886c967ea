//! Servers whose own commands have other names, or none (`rename-command`).

use crate::support::cache::{lease, stores};
use crate::support::{Fsync, Lines as _, Raw, SOON, Server, assert_identical, eventually, quiet};
use crate::support::{module_path, wait_for_replica_sync};

/// Commands that the module once sent to replicas, and all that might be taken for one that it calls.
const RENAMED: [&str; 16] = [
    "DEL",
    "UNLINK",
    "SET",
    "GET",
    "GETRANGE",
    "EXPIRE",
    "PEXPIRE",
    "PEXPIREAT",
    "CONFIG",
    "CLUSTER",
    "COMMAND",
    "CLIENT",
    "XADD",
    "XTRIM",
    "XDEL",
    "RESTORE",
];

/// What changes keys in every way that replicas are told of. No key expires: of that the server itself sends `DEL`, whatever
/// its own `DEL` is called. `<token>` is that of the work that began last.
const CHANGES: [(&str, &str); 47] = [
    ("LOCK.ACQUIRE lock me PX 100000000", ""),
    ("LOCK.RELEASE lock me", "0"),
    ("LOCK.GUARD guard 5", "1"),
    ("LOCK.GUARD guard 6 PX 100000000", "1"),
    ("LOCK.GUARD guard 7", "1"),
    ("LOCK.GUARD guard 4", "0"),
    ("SEM.ACQUIRE sem me LIMIT 2 PX 100000000", ""),
    ("CACHE.SET cached value PX 100000000", "1"),
    ("CACHE.DEL cached", "1"),
    ("CACHE.SET kept value PX 100000000", "1"),
    ("CACHE.DEL kept STALE 100000000", "1"),
    ("RATE.GCRA limit 9 1 100000000", ""),
    ("RATE.REFUND limit 1", "1"),
    ("RATE.GCRA other 9 1 100000000", ""),
    ("RATE.WINDOW window 9 100000000", ""),
    ("PERSIST other", "1"),
    ("RATE.ONCE once PX 100000000", ""),
    ("STOCK.SET stock 10 EVENTS stream MAXLEN 2", ""),
    ("STOCK.DEDUCT stock 1 ORDER a", ""),
    ("STOCK.RESERVE stock 1 ORDER b PX 100000000", ""),
    ("STOCK.RESERVE stock 1 ORDER c PX 1", ""),
    ("STOCK.CONFIRM stock b", ""),
    ("BF.ADD bloom a", "1"),
    ("CF.ADD cuckoo a", "1"),
    ("ONCE.BEGIN failed LEASE 100000000", ""),
    ("ONCE.FAIL failed <token>", "1"),
    ("ONCE.BEGIN work LEASE 100000000", ""),
    ("ONCE.DONE work <token> result PX 100000000", "1"),
    ("ONCE.DONE work <token> result PX 100000000", "1"),
    ("ONCE.BEGIN busy LEASE 100000000 FINGERPRINT f", ""),
    ("DELAY.SET queue STREAM delivered MAXLEN 1", ""),
    ("DELAY.ADD queue late PX 100000000 VALUES f v", "1"),
    ("DELAY.ADD queue never PX 100000000 VALUES f v", "1"),
    ("DELAY.CANCEL queue never", "1"),
    ("DELAY.ADD queue now PX 0 VALUES f v", "1"),
    ("LOCK.MACQUIRE 2 lock1 lock2 me PX 100000000", ""),
    ("LOCK.MRELEASE 2 lock1 lock2 me", ""),
    ("SEM.MACQUIRE 2 sem1 2 sem2 2 me PX 100000000", ""),
    ("SEM.MRELEASE 2 sem1 sem2 me", ""),
    ("STOCK.SET stock1 10 EVENTS stream", ""),
    ("STOCK.SET stock2 10", ""),
    ("STOCK.MDEDUCT 2 stock1 1 stock2 1", ""),
    (
        "STOCK.MRESERVE 2 stock1 1 stock2 1 ORDER m PX 100000000",
        "",
    ),
    ("STOCK.MCONFIRM 2 stock1 stock2 m", ""),
    ("STOCK.MCANCEL 2 stock1 stock2 m", ""),
    ("BF.MADD bloom b c", ""),
    ("RATE.MGCRA 2 other 9 1 100000000 third 9 1 100000000", ""),
];

#[test]
fn whatever_the_servers_commands_are_called_replicas_and_files_get_every_change() {
    for name in RENAMED.map(Some).into_iter().chain([None]) {
        // One at a time under another name, and all of them without any.
        let build = || match name {
            Some(name) => quiet().config("rename-command", &format!("{name} other.{name}")),
            None => RENAMED.iter().fold(quiet(), |builder, name| {
                builder.config("rename-command", &format!("{name} \"\""))
            }),
        };
        let master = build().aof(Fsync::Always).start();
        let replica = build().aof(Fsync::Always).start();
        replica.replica_of(&master);
        wait_for_replica_sync(&master, &replica);
        replica.await_rewrite();
        let mut client = Raw::connect(&master);
        let mut token = String::new();
        for (command, expected) in CHANGES {
            let command = command.replace("<token>", &token);
            let reply = client.call(command.split(' '));
            assert!(!reply.is_err(), "{name:?}, {command}: {reply:?}");
            if !expected.is_empty() {
                assert_eq!(format!("{reply:?}"), expected, "{name:?}, {command}");
            }
            if command.starts_with("ONCE.BEGIN ") {
                token = reply.array()[2].int().to_string();
            }
        }
        // What ends by itself does so on both: the module sees to it.
        let gone = |server: &Server| {
            let mut client = Raw::connect(server);
            client
                .must("EXISTS lock cached limit failed lock1 lock2 sem1 sem2")
                .int()
                == 0
                && client.must("XLEN delivered") == 1
                && client.must("STOCK.GET stock") == 8 // nil before the replica has the stock
        };
        eventually(SOON, || gone(&master));
        eventually(SOON, || gone(&replica));
        assert_identical(&master, &replica);
        let digest = master.digest();
        for server in [&master, &replica] {
            server.kill9();
            server.restart();
            assert_eq!(server.digest(), digest, "{name:?}, from its own file");
            let log = server.log();
            let is_bad = |line: &&str| {
                let mut words = ["internal error", "panicked", "unknown command"].iter();
                // Valkey's own module for Lua calls CONFIG.
                words.any(|word| line.contains(word)) && !line.contains("<lua>")
            };
            assert_eq!(log.lines().find(is_bad), None, "{name:?}");
        }
    }
}

/// The module asks the server by `COMMAND` which commands delete keys, and knows some of them without it.
#[test]
fn commands_that_delete_keys_end_leases_on_a_server_without_a_command_of_that_name() {
    let server = Server::builder()
        .config("rename-command", "COMMAND other.COMMAND")
        .start();
    let mut client = Raw::connect(&server);
    lease(&mut client, "first"); // from now on the module looks at commands
    for deletion in [
        "DEL k",
        "UNLINK k",
        "GETDEL k",
        "DELEX k",
        "DELIFEQ k x",
        "SET k v PXAT 1",
    ] {
        let token = lease(&mut client, "k");
        let reply = client.run(deletion);
        let is_there = !reply.is_err();
        assert!(is_there || deletion.starts_with("DEL"), "{reply:?}");
        assert_eq!(stores(&mut client, "k", token), !is_there, "{deletion}");
        client.must("DEL k");
    }
    let token = lease(&mut client, "k");
    client.transact(["GETDEL k"]);
    assert!(!stores(&mut client, "k", token));
}

/// Loaded while clients are connected, the module asks for them by `CLIENT`. If it has another name, the module learns of them from
/// their commands, on servers that name the client of a command.
#[test]
fn a_transaction_that_began_before_the_module_was_loaded_ends_leases_whatever_client_is_called() {
    for is_renamed in [false, true] {
        let mut builder = Server::builder().no_module();
        if is_renamed {
            builder = builder.config("rename-command", "CLIENT other.CLIENT");
        }
        let server = builder.start();
        let mut early = Raw::connect(&server);
        early.must("MULTI");
        assert_eq!(early.must("DEL k"), "QUEUED");
        let mut client = Raw::connect(&server);
        client.must(&format!("MODULE LOAD {}", module_path().display()));
        let is_named = server
            .info("redis_version")
            .is_some_and(|version| !version.starts_with("7.0"));
        if is_renamed && !is_named {
            continue; // Redis 7.0 does not say whose command it is: docs/cache.md
        }
        let token = lease(&mut client, "k");
        early.must("EXEC");
        assert!(!stores(&mut client, "k", token), "renamed: {is_renamed}");
    }
}
