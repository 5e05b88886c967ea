//! Valkey's import mode (`import-mode`): another server decides when keys end, and the module does nothing of its own accord.

use crate::support::lock::fence;
use crate::support::once::token;
use crate::support::{
    Lines as _, Raw, SOON, Server, await_gone, eventually, now_ms, served, server_and_client,
    still_waits, waiter,
};
use std::thread::sleep;
use std::time::Duration;

/// For so long (in ms) the clock is set forward. What ends earlier is due then, and the watched hold is to be renewed.
const STEP: i64 = 30_000;

/// Has the server an import mode? Valkey has since 8.1.
fn can_import() -> bool {
    let (_server, mut client) = server_and_client();
    let is_there = !client.must("CONFIG GET import-mode").array().is_empty();
    let set = client.run("CONFIG SET import-mode no");
    assert_eq!(set.is_err(), !is_there);
    is_there
}

/// A reservation, a lease with a waiting client behind it, a delayed message, work that another client waits for, a permit beside another, a watched hold and one whose connection is
/// lost. All but the last two end within [`STEP`].
struct Due {
    client: Raw,
    waiter: Raw,
    worker: Raw,
    watcher: Raw,
    watched_until: i64,
}

fn prepare(server: &Server) -> Due {
    let mut client = Raw::connect(server);
    for line in [
        "STOCK.SET stock 10 EVENTS stream",
        "STOCK.RESERVE stock 3 ORDER o PX 10000",
        "LOCK.ACQUIRE lock me PX 10000",
        "SEM.ACQUIRE sem short LIMIT 2 PX 10000",
        "SEM.ACQUIRE sem long LIMIT 2 PX 600000",
        "DELAY.SET queue STREAM delivered",
        "DELAY.ADD queue message PX 10000 VALUES f v",
        "ONCE.BEGIN work LEASE 10000",
    ] {
        client.must(line);
    }
    let mut watcher = Raw::connect(server);
    watcher.must("LOCK.ACQUIRE watched me WATCHDOG PX 60000");
    let mut lost = Raw::connect(server);
    lost.must("LOCK.ACQUIRE lost me WATCHDOG PX 600000");
    let waiter = waiter(server, "LOCK.ACQUIRE lock you PX 600000 BLOCK 0");
    let mut worker = Raw::connect(server);
    worker.ask("ONCE.BEGIN work LEASE 600000 BLOCK 0");
    eventually(SOON, || server.info_int("sluice_once_waiting") == 1);
    drop(lost);
    Due {
        watched_until: client.must("PEXPIRETIME watched").int(),
        client,
        waiter,
        worker,
        watcher,
    }
}

impl Due {
    fn assert_nothing_is_done(&mut self, server: &Server) {
        let client = &mut self.client;
        // Some calls of the cron event, at ten a second.
        let end = now_ms(client) + 1000;
        while now_ms(client) < end {
            assert_eq!(client.must("XLEN stream").int(), 2);
            assert_eq!(client.must("PEXPIRETIME watched").int(), self.watched_until);
            assert_eq!(client.must("EXISTS lost").int(), 1);
            assert_eq!(client.must("EXISTS delivered").int(), 0);
            assert_eq!(client.must("DELAY.INFO queue").field("messages").int(), 1);
            still_waits(&mut self.waiter);
            still_waits(&mut self.worker);
            sleep(Duration::from_millis(10));
        }
        for field in ["expired_leases", "renewed", "handoffs", "watchdog_released"] {
            let field = format!("sluice_lock_{field}");
            assert_eq!(server.info_int(&field), 0, "{field}");
        }
        for field in ["stock_expired", "once_expired", "delay_delivered"] {
            assert_eq!(server.info_int(&format!("sluice_{field}")), 0, "{field}");
        }
    }

    fn assert_all_is_done(mut self, server: &Server) {
        let client = &mut self.client;
        assert!(fence(&served(&mut self.waiter)) > 0);
        token(&served(&mut self.worker));
        await_gone(client, "lost");
        eventually(SOON, || client.must("XLEN delivered").int() == 1);
        eventually(SOON, || {
            client.must("PEXPIRETIME watched").int() > self.watched_until
        });
        eventually(SOON, || client.must("XLEN stream").int() == 3);
        assert_eq!(client.must("STOCK.GET stock").int(), 10);
        // The lease before the waiting client's, and the permit.
        eventually(SOON, || {
            let holders = client.must("SEM.INFO sem");
            server.info_int("sluice_lock_expired_leases") >= 1 && holders.field("used").int() == 1
        });
        drop(self.watcher);
        await_gone(client, "watched");
    }
}

#[test]
fn nothing_ends_in_import_mode_and_everything_after_it() {
    if !can_import() {
        return;
    }
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET import-mode yes");
    let mut due = prepare(&server);
    server.shift_clock(STEP);
    due.assert_nothing_is_done(&server);
    // A wait ends in time: that changes no key.
    let mut short = Raw::connect(&server);
    assert!(short.run("LOCK.ACQUIRE watched you BLOCK 100").is_nil());
    client.must("CONFIG SET maxmemory 0 import-mode no");
    due.assert_all_is_done(&server);
}

#[test]
fn import_mode_of_the_configuration_file_counts_where_config_has_another_name() {
    if !can_import() {
        return;
    }
    let server = Server::builder()
        .clock(0)
        .config("rename-command", "CONFIG other.CONFIG")
        .config("import-mode", "yes")
        .start();
    let mut due = prepare(&server);
    server.shift_clock(STEP);
    due.assert_nothing_is_done(&server);
    due.client.must("other.CONFIG SET import-mode no");
    due.assert_all_is_done(&server);
}

#[test]
fn an_import_source_finds_expired_keys() {
    if !can_import() {
        return;
    }
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET import-mode yes");
    client.must("LOCK.ACQUIRE lock me PX 10000");
    client.must("CACHE.SET entry value PX 10000");
    client.must("RATE.GCRA limit 1 1 10000");
    server.shift_clock(STEP);
    let mut source = Raw::connect(&server);
    source.must("CLIENT IMPORT-SOURCE ON");
    assert_eq!(source.must("EXISTS lock entry limit").int(), 3);
    // An entry lasts as long as its key, which the server keeps for this client; a hold ends by itself.
    assert_eq!(source.must("CACHE.GET entry"), "value");
    assert!(source.must("LOCK.HELD lock me").is_nil());
    assert!(fence(&source.must("LOCK.ACQUIRE lock you PX 10000")) > 0);
    assert_eq!(source.must("CACHE.SET entry other PX 10000").int(), 1);
    assert!(!source.must("LOCK.HELD lock you").is_nil());
    assert_eq!(source.must("EXISTS lock entry").int(), 2);
}

#[test]
fn no_entry_is_evicted_in_import_mode() {
    if !can_import() {
        return;
    }
    const ENTRIES: usize = 100;
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("CONFIG SET import-mode yes");
    let value = "x".repeat(1000);
    client.run_all((0..ENTRIES).map(|number| format!("CACHE.SET entry{number} {value} PX 600000")));
    client.must("CONFIG SET sluice.cache-max-bytes 20000");
    let end = now_ms(&mut client) + 1000;
    while now_ms(&mut client) < end {
        assert_eq!(client.must("DBSIZE").int(), ENTRIES as i64);
        sleep(Duration::from_millis(10));
    }
    assert_eq!(server.info_int("sluice_cache_evicted"), 0);
    client.must("CONFIG SET import-mode no");
    eventually(SOON, || server.info_int("sluice_cache_bytes") <= 20_000);
    assert!(client.must("DBSIZE").int() < ENTRIES as i64);
}
