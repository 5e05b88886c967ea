//! Full transfers beside the old dataset (`repl-diskless-load swapdb`): clients of the replica read the old one meanwhile, and
//! when the new one has taken its place nothing of the old one is left.

use crate::support::{
    Lines as _, Raw, SOON, Server, assert_identical, await_role, eventually, follow,
};

/// Stocks, each with a reservation that ends by itself, and with the same names in both datasets.
const STOCKS: usize = 30;

/// How long reservations last, and by how much more the clock is set forward to end them (ms).
const LONG: &str = "50000000";
const LONGER: i64 = 100_000_000;

fn value_of(server: &Server, key: &str) -> i64 {
    Raw::connect(server).must(&format!("STOCK.GET {key}")).int()
}

/// A master and a replica that have a dataset, and are about to transfer another one.
fn during_a_transfer() -> (Server, Server, String) {
    let master = Server::builder()
        .config("repl-diskless-sync", "yes")
        .config("repl-diskless-sync-delay", "0")
        .config("repl-backlog-size", "16384")
        .config("rdbcompression", "no")
        .config("repl-ping-replica-period", "3600")
        .start();
    let replica = Server::builder()
        .config("repl-diskless-load", "swapdb")
        .config("loading-process-events-interval-bytes", "1024")
        .clock(0)
        .start();
    let mut client = Raw::connect(&master);
    // In the old dataset 10 of each, of which 1 is reserved; it has stocks that the new one has not.
    for number in 0..STOCKS {
        for key in [format!("both{number}"), format!("old{number}")] {
            client.must(&format!("STOCK.SET {key} 10"));
            client.must(&format!("STOCK.RESERVE {key} 1 ORDER a PX {LONG}"));
        }
    }
    let fence = client.must("LOCK.ACQUIRE lock old PX 90000000").int();
    client.must("SEM.ACQUIRE sem old LIMIT 2 PX 90000000");
    client.must("CACHE.SET cached old PX 90000000");
    client.must("BF.ADD bloom old");
    client.must("RATE.ONCE once PX 90000000");
    follow(&master, &replica);
    let old = replica.digest();
    assert_eq!(old, master.digest());
    // In the new one there are 20 of each, of which 5 are reserved, and other stocks.
    client.must("CONFIG SET rdb-key-save-delay 20000"); // microseconds: it takes seconds, so that clients come in between
    let mut change = vec!["CLIENT KILL TYPE replica".to_owned(), "FLUSHALL".into()];
    for number in 0..STOCKS {
        for key in [format!("both{number}"), format!("new{number}")] {
            change.push(format!("STOCK.SET {key} 20"));
            change.push(format!("STOCK.RESERVE {key} 5 ORDER b PX {LONG}"));
        }
    }
    change.push("LOCK.ACQUIRE lock new PX 90000000".into());
    change.push("CACHE.SET cached new PX 90000000".into());
    change.push("BF.ADD bloom new".into());
    // More than the backlog keeps, so that everything has to be transferred.
    let filler = "x".repeat(1500);
    change.extend((0..400).map(|number| format!("SET filler{number} {filler}")));
    client.transact(change);
    eventually(SOON, || replica.info_int("async_loading") == 1);
    // The replica shows the old dataset.
    let mut reader = Raw::connect(&replica);
    assert_eq!(reader.must("STOCK.GET both1").int(), 9);
    assert_eq!(reader.must("STOCK.GET old1").int(), 9);
    assert_eq!(reader.must("LOCK.HELD lock old").int(), fence);
    assert!(reader.must("LOCK.HELD lock new").is_nil());
    assert_eq!(reader.must("SEM.INFO sem").field("limit").int(), 2);
    assert_eq!(reader.must("CACHE.GET cached"), "old");
    assert_eq!(reader.must("BF.EXISTS bloom old"), 1);
    assert_eq!(reader.must("BF.EXISTS bloom new"), 0);
    assert!(!reader.run("LOCK.INFO lock").is_err());
    assert!(reader.run("STOCK.GET new1").is_nil());
    (master, replica, old)
}

/// The replica becomes the master, and all reservations of its dataset end: those and no others.
fn promote_and_end(master: Server, replica: &Server, stocks: [(&str, Option<i64>); 3]) {
    drop(master);
    replica.promote();
    await_role(replica, "master");
    let before = replica.info_int("sluice_stock_expired");
    replica.shift_clock(LONGER);
    let mut reader = Raw::connect(replica);
    let mut ended = 0;
    for (name, left) in stocks {
        for number in 0..STOCKS {
            let key = format!("{name}{number}");
            match left {
                Some(left) => {
                    eventually(SOON, || value_of(replica, &key) == left);
                    ended += 1;
                }
                None => assert!(reader.must(&format!("STOCK.GET {key}")).is_nil(), "{key}"),
            }
        }
    }
    assert_eq!(replica.info_int("sluice_stock_expired") - before, ended);
    // Those that are listed now are listed once.
    for number in 0..STOCKS {
        reader.must(&format!("STOCK.RESERVE both{number} 1 ORDER c PX 1"));
    }
    let ended = ended + STOCKS as i64;
    eventually(SOON, || {
        replica.info_int("sluice_stock_expired") - before == ended
    });
    assert!(reader.must("LOCK.ACQUIRE lock other PX 1000").int() > 0);
    let log = replica.log();
    for word in ["internal error", "panicked", "lacks an entry"] {
        assert!(!log.contains(word), "{log}");
    }
}

#[test]
fn a_dataset_that_is_loaded_beside_the_old_one_replaces_all_of_it() {
    let (master, replica, old) = during_a_transfer();
    eventually(SOON, || replica.info_int("async_loading") == 0);
    eventually(SOON, || {
        replica.info("master_link_status").as_deref() == Some("up")
    });
    assert_identical(&master, &replica);
    assert_ne!(replica.digest(), old);
    let stocks = [("both", Some(20)), ("new", Some(20)), ("old", None)];
    promote_and_end(master, &replica, stocks);
}

#[test]
fn when_a_transfer_is_cut_off_the_old_dataset_goes_on() {
    let (master, replica, old) = during_a_transfer();
    // In the middle of it: a part of the new dataset is there.
    eventually(SOON, || {
        let loaded = replica.info("loading_loaded_bytes");
        let loaded = loaded.and_then(|bytes| bytes.parse::<u64>().ok());
        loaded.is_some_and(|bytes| bytes > 50_000)
    });
    assert_eq!(
        replica.info_int("async_loading"),
        1,
        "it is complete already"
    );
    master.kill9();
    eventually(SOON, || replica.info_int("async_loading") == 0);
    assert_eq!(replica.digest(), old);
    let stocks = [("both", Some(10)), ("old", Some(10)), ("new", None)];
    promote_and_end(master, &replica, stocks);
}
