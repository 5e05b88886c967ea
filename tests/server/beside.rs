//! Full transfers beside the old dataset (`repl-diskless-load swapdb`): clients of the replica read the old one meanwhile, and
//! when the new one has taken its place nothing of the old one is left.

use crate::support::{
    Lines as _, Raw, SOON, Server, Value, assert_identical, await_role, eventually, field_of,
    follow,
};

/// Stocks, each with a reservation that ends by itself, and with the same names in both datasets.
const STOCKS: usize = 30;

/// How long reservations last, and by how much more the clock is set forward to end them (ms).
const LONG: &str = "50000000";
const LONGER: i64 = 100_000_000;

/// How long holds and work last that do not end.
const FOREVER: &str = "900000000";

/// The number of messages of a delay queue; `None`: there is no such queue.
fn messages_of(client: &mut Raw, key: &str) -> Option<i64> {
    let info = client.run(&format!("DELAY.INFO {key}"));
    (!info.is_nil()).then(|| info.field("messages").int())
}

/// What is there when all is due that is due: the keys of one dataset, each with the number of its delivered messages and of its
/// holds that ended.
const OLD: [(&str, i64, i64); 3] = [("both", 1, 1), ("old", 1, 1), ("new", 0, 0)];
const NEW: [(&str, i64, i64); 3] = [("both", 2, 2), ("old", 0, 0), ("new", 2, 2)];

fn value_of(server: &Server, key: &str) -> i64 {
    Raw::connect(server).must(&format!("STOCK.GET {key}")).int()
}

/// How many transfers are tried: on a slow machine, one can be over before the replica is looked at.
const ATTEMPTS: usize = 5;

/// The first bytes of a transfer, after which the rest takes seconds.
const PART_BYTES: i64 = 50_000;

/// A master and a replica that have a dataset, and are in the middle of the transfer of another one. Also returns the digest of the
/// old dataset.
fn during_a_transfer() -> (Server, Server, String) {
    let found = (0..ATTEMPTS).find_map(|_| begin_a_transfer());
    found.expect("a transfer that is not over at once")
}

/// `None`: the transfer was over too soon.
fn begin_a_transfer() -> Option<(Server, Server, String)> {
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
    for key in ["queue-both", "queue-old"] {
        client.must(&format!("DELAY.SET {key} STREAM {key}-delivered"));
        client.must(&format!("DELAY.ADD {key} old PX {LONG} VALUES of old"));
    }
    for key in ["sem-both", "sem-old"] {
        client.must(&format!("SEM.ACQUIRE {key} short LIMIT 9 PX {LONG}"));
        client.must(&format!("SEM.ACQUIRE {key} long LIMIT 9 PX {FOREVER}"));
    }
    client.must(&format!("ONCE.BEGIN work-both LEASE {FOREVER}"));
    let token = client.must(&format!("ONCE.BEGIN work-old LEASE {FOREVER}"));
    let token = token.array()[2].int();
    client.must(&format!("ONCE.DONE work-old {token} old PX {FOREVER}"));
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
    for key in ["queue-both", "queue-new"] {
        change.push(format!("DELAY.SET {key} STREAM {key}-delivered"));
        for id in ["new", "newer"] {
            change.push(format!("DELAY.ADD {key} {id} PX {LONG} VALUES of {id}"));
        }
    }
    for key in ["sem-both", "sem-new"] {
        for owner in ["short1", "short2"] {
            change.push(format!("SEM.ACQUIRE {key} {owner} LIMIT 9 PX {LONG}"));
        }
        change.push(format!("SEM.ACQUIRE {key} long LIMIT 9 PX {FOREVER}"));
    }
    change.push(format!("ONCE.BEGIN work-both LEASE {LONG} FINGERPRINT new"));
    change.push(format!("ONCE.BEGIN work-new LEASE {FOREVER}"));
    change.push("LOCK.ACQUIRE lock new PX 90000000".into());
    change.push("CACHE.SET cached new PX 90000000".into());
    change.push("BF.ADD bloom new".into());
    // More than the backlog keeps, so that everything has to be transferred.
    let filler = "x".repeat(1500);
    change.extend((0..400).map(|number| format!("SET filler{number} {filler}")));
    client.transact(change);
    let shown = replies_of_old_dataset(fence);
    let mut reader = Raw::connect(&replica);
    let mut replies = Vec::new();
    let mut is_loading = false;
    // Waits until a part of the new dataset is loaded. If all of it is loaded, the transfer was too fast.
    eventually(SOON, || {
        let lines = shown.iter().map(|(line, _)| *line);
        replies = reader.run_all(lines.chain(["STOCK.GET new1", "INFO everything"]));
        let info = replies.pop().expect("a reply to the last command");
        is_loading = field_of(&info, "async_loading") == 1;
        let is_part_loaded = is_loading && field_of(&info, "loading_loaded_bytes") > PART_BYTES;
        let new1 = replies.pop().expect("a reply to the last but one");
        is_part_loaded || !new1.is_nil()
    });
    if !is_loading {
        return None;
    }
    for ((line, is_old), reply) in shown.iter().zip(&replies) {
        assert!(is_old(reply), "{line}: {reply:?}");
    }
    Some((master, replica, old))
}

/// Whether a reply is right.
type Check = Box<dyn Fn(&Value) -> bool>;

/// What a replica with the old dataset replies to commands.
fn replies_of_old_dataset(fence: i64) -> Vec<(&'static str, Check)> {
    let has = |field: &'static str, number: i64| -> Check {
        Box::new(move |info| info.field(field) == &number)
    };
    let is = |number: i64| -> Check { Box::new(move |reply| *reply == number) };
    let is_nil = || -> Check { Box::new(Value::is_nil) };
    vec![
        ("STOCK.GET both1", is(9)),
        ("STOCK.GET old1", is(9)),
        ("STOCK.GET new1", is_nil()),
        ("LOCK.HELD lock old", is(fence)),
        ("LOCK.HELD lock new", is_nil()),
        ("LOCK.INFO lock", Box::new(|info| !info.is_err())),
        ("SEM.INFO sem", has("limit", 2)),
        ("CACHE.GET cached", Box::new(|value| *value == "old")),
        ("BF.EXISTS bloom old", is(1)),
        ("BF.EXISTS bloom new", is(0)),
        ("DELAY.INFO queue-both", has("messages", 1)),
        ("DELAY.INFO queue-new", is_nil()),
        ("SEM.INFO sem-both", has("used", 2)),
        ("SEM.INFO sem-new", is_nil()),
        (
            "ONCE.INFO work-both",
            Box::new(|info| info.field("fingerprint").is_nil()),
        ),
        (
            "ONCE.INFO work-old",
            Box::new(|info| info.field("state") == &"done"),
        ),
        ("ONCE.INFO work-new", is_nil()),
    ]
}

/// The replica becomes the master, and all reservations of its dataset end: those and no others.
fn promote_and_end(
    master: Server,
    replica: &Server,
    stocks: [(&str, Option<i64>); 3],
    others: [(&str, i64, i64); 3],
) {
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
    let mut delivered = 0;
    for (name, messages, holds) in others {
        let mut len = || reader.must(&format!("XLEN queue-{name}-delivered")).int();
        eventually(SOON, || len() == messages);
        let left = (messages > 0).then_some(0);
        assert_eq!(messages_of(&mut reader, &format!("queue-{name}")), left);
        delivered += messages;
        let line = format!("SEM.INFO sem-{name}");
        if holds == 0 {
            assert!(reader.run(&line).is_nil(), "{name}");
        } else {
            assert_eq!(reader.must(&line).field("used").int(), 1, "{name}");
        }
    }
    let replies = reader.transact(["INFO sluice"]);
    assert_eq!(field_of(&replies[0], "sluice_delay_delivered"), delivered);
    // Besides the holds of the semaphores, that of `lock` has ended, and of the old dataset that of `sem`.
    let ended_holds: i64 = others.iter().map(|(_, _, holds)| holds).sum();
    eventually(SOON, || {
        replica.info_int("sluice_lock_expired_leases") >= ended_holds
    });
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
    let mut reader = Raw::connect(&replica);
    let work = reader.must("ONCE.INFO work-both");
    assert_eq!(work.field("fingerprint"), &"new");
    assert!(reader.run("ONCE.INFO work-old").is_nil());
    assert_eq!(reader.must("ONCE.INFO work-new").field("state"), &"busy");
    let stocks = [("both", Some(20)), ("new", Some(20)), ("old", None)];
    promote_and_end(master, &replica, stocks, NEW);
}

#[test]
fn when_a_transfer_is_cut_off_the_old_dataset_goes_on() {
    let (master, replica, old) = during_a_transfer();
    master.kill9();
    eventually(SOON, || replica.info_int("async_loading") == 0);
    assert_eq!(replica.digest(), old);
    let stocks = [("both", Some(10)), ("old", Some(10)), ("new", None)];
    promote_and_end(master, &replica, stocks, OLD);
}
