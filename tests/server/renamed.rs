//! Servers whose own commands have other names, or none (`rename-command`).

use crate::support::wait_for_replica_sync;
use crate::support::{Fsync, Lines as _, Raw, SOON, Server, assert_identical, eventually, quiet};

/// Commands that the module once sent to replicas, and all that might be taken for one that it calls.
const RENAMED: [&str; 14] = [
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
    "XADD",
    "XTRIM",
    "XDEL",
    "RESTORE",
];

/// What changes keys in every way that replicas are told of. No key expires: of that the server itself sends `DEL`, whatever
/// its own `DEL` is called.
const CHANGES: [(&str, &str); 24] = [
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
        for (command, expected) in CHANGES {
            let reply = client.call(command.split(' '));
            assert!(!reply.is_err(), "{name:?}, {command}: {reply:?}");
            if !expected.is_empty() {
                assert_eq!(format!("{reply:?}"), expected, "{name:?}, {command}");
            }
        }
        // What ends by itself does so on both: the module sees to it.
        let gone = |server: &Server| {
            let mut client = Raw::connect(server);
            client.must("EXISTS lock cached limit").int() == 0
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
