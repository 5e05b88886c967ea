//! Stocks survive what servers live through: saves, restarts, rewrites and crashes.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::stock::{
    CLOSED, CONFLICT, MOST, OVER_LIMIT, SOLD_OUT, UNKNOWN, assert_stream_tells_all, await_state,
    counts, number, state, told,
};
use crate::support::ways::Picture;
use crate::support::{
    EndOnDrop, Fsync, Lines, Random, Raw, SOON, Server, Shutdown, Value, eventually, ints, now_ms,
    ways, with_growing_lease,
};

/// Enough orders for several pieces of a saved stock.
const CROWD: i64 = 1200;

/// Every kind of stock and order there is, in two databases; nothing of it ends or is forgotten soon.
fn fill(server: &Server) {
    let mut client = Raw::connect(server);
    for line in [
        "STOCK.SET plain 10",
        "STOCK.DEDUCT plain 3",
        "STOCK.ADD plain -1",
        "STOCK.SET empty 0",
        "STOCK.SET terms 50 PERUSER 7 RETAIN 123456789 EVENTS s MAXLEN 5000",
        "STOCK.RESERVE terms 1 ORDER live PX 900000 USER u",
        "STOCK.RESERVE terms 2 ORDER confirmed PX 900000 USER u",
        "STOCK.CONFIRM terms confirmed",
        "STOCK.RESERVE terms 3 ORDER released PX 900000 USER u",
        "STOCK.CANCEL terms released",
        "STOCK.RESERVE terms 3 ORDER returned PX 900000 USER v",
        "STOCK.CONFIRM terms returned",
        "STOCK.CANCEL terms returned",
        "STOCK.DEDUCT terms 4 ORDER sold USER u",
        "STOCK.DEDUCT terms 4 ORDER refunded USER w",
        "STOCK.CANCEL terms refunded",
        "STOCK.DEDUCT terms 5 USER x",
        "STOCK.CANCEL terms marked",
        "STOCK.ADD terms 6 ORDER added",
        "STOCK.RESERVE terms 1 ORDER expired PX 1 USER y",
        "BLPOP nobody 0.02", // until it has: the copy below is made without it
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g worker COUNT 3 STREAMS s >",
        "STOCK.SET forgets 20 RETAIN 1",
        "STOCK.RESERVE forgets 1 ORDER live PX 900000",
        "STOCK.DEDUCT forgets 1 ORDER sold",
        "STOCK.RESERVE forgets 1 ORDER expired PX 1",
        "STOCK.SET replaced 5 EVENTS t",
        "STOCK.DEDUCT replaced 1 ORDER o",
        "STOCK.SET replaced 9 EVENTS t MAXLEN 3",
        "STOCK.SET m1 10 EVENTS t",
        "STOCK.SET m2 10",
        "STOCK.MRESERVE 2 m1 1 m2 2 ORDER live PX 900000",
        "STOCK.MRESERVE 2 m1 1 m2 2 ORDER sold PX 900000",
        "STOCK.MCONFIRM 2 m1 m2 sold",
        "STOCK.MDEDUCT 3 m1 1 m2 2 plain 1 ORDER o USER u",
        "STOCK.MCANCEL 2 m1 m2 never",
        "STOCK.SET mortal 10",
        "STOCK.DEDUCT mortal 1 ORDER o",
        "PEXPIRE mortal 900000",
        "SET counter 12 PX 900000",
        "STOCK.IMPORT counter EVENTS t",
        "STOCK.DEDUCT counter 1 ORDER o",
        "HSET hash total 10 ordered 4",
        "STOCK.IMPORT hash PERUSER 2",
        "RENAME plain renamed",
        "COPY terms copy",
        "STOCK.DEDUCT copy 1 ORDER copied USER z",
        "SELECT 3",
        "STOCK.SET plain 77 EVENTS s",
        "STOCK.RESERVE plain 7 ORDER o PX 900000",
        "SELECT 0",
    ] {
        client.must(line);
    }
    client.call(["STOCK.SET", "most", MOST]);
    client.transact([
        "STOCK.DEDUCT renamed 1 ORDER in-transaction",
        "STOCK.ADD renamed 2",
    ]);
    let script =
        "return redis.call('STOCK.RESERVE', KEYS[1], 1, 'ORDER', 'in-script', 'PX', 900000)";
    assert!(client.call(["EVAL", script, "1", "renamed"]).int() >= 0);
    let odd: &[u8] = b"\0\xff\r\n odd";
    let longest = [b'x'; 512];
    client.call([
        b"STOCK.SET".as_slice(),
        odd,
        b"10",
        b"PERUSER",
        b"5",
        b"EVENTS",
        b"\0s",
    ]);
    for id in [odd, &longest] {
        let deduct = [
            b"STOCK.DEDUCT".as_slice(),
            odd,
            b"1",
            b"ORDER",
            id,
            b"USER",
            id,
        ];
        assert!(client.call(deduct).int() >= 0);
    }
    let total = 2 * CROWD;
    client.must(&format!(
        "STOCK.SET crowd {total} PERUSER 3 EVENTS crowd-events"
    ));
    let orders = (0..CROWD).map(|number| match number % 4 {
        0 => format!(
            "STOCK.RESERVE crowd 1 ORDER o{number} PX 900000 USER u{}",
            number % 600
        ),
        1 => format!("STOCK.CANCEL crowd o{number}"),
        _ => format!(
            "STOCK.DEDUCT crowd 1 ORDER o{number} USER u{}",
            number % 600
        ),
    });
    for reply in client.run_all(orders) {
        assert!(reply.int() >= UNKNOWN, "{reply:?}");
    }
    await_state(&mut client, "terms", "expired", "expired");
    eventually(SOON, || number(&mut client, "forgets", "orders") == 1);
}

#[test]
fn all_ways_to_save_and_load_keep_everything() {
    let filled = |server: &Server| {
        fill(server);
        let picture = Picture::of(server);
        assert!(picture.keys.len() >= 17, "{}", picture.keys.len());
        picture
    };
    ways::walk(filled, |server, before| {
        before.assert_is_of(server);
        check_what_was_filled(server);
    });
}

/// What [`fill`] made works on: numbers, limits, orders, terms and streams.
fn check_what_was_filled(server: &Server) {
    let mut client = Raw::connect(server);
    let digest = server.digest();
    // What was asked before is answered again, and changes nothing.
    for (line, expected) in [
        ("STOCK.RESERVE terms 1 ORDER live PX 900000 USER u", 49),
        ("STOCK.RESERVE terms 2 ORDER confirmed PX 900000 USER u", 47),
        ("STOCK.CONFIRM terms confirmed", 2),
        ("STOCK.CANCEL terms released", 3),
        (
            "STOCK.RESERVE terms 3 ORDER released PX 900000 USER u",
            CLOSED,
        ),
        ("STOCK.CANCEL terms returned", 3),
        ("STOCK.DEDUCT terms 4 ORDER sold USER u", 43),
        ("STOCK.CANCEL terms refunded", 4),
        ("STOCK.DEDUCT terms 4 ORDER refunded USER w", CLOSED),
        ("STOCK.CANCEL terms marked", UNKNOWN),
        ("STOCK.DEDUCT terms 1 ORDER marked USER u", CLOSED),
        ("STOCK.ADD terms 6 ORDER added", 44),
        ("STOCK.CONFIRM terms expired", CLOSED),
        ("STOCK.DEDUCT terms 1 USER u", OVER_LIMIT),
        ("STOCK.DEDUCT terms 3 USER x", OVER_LIMIT),
        ("STOCK.DEDUCT copy 1 ORDER copied USER z", 43),
        ("STOCK.CONFIRM forgets sold", UNKNOWN),
        ("STOCK.DEDUCT empty 1", SOLD_OUT),
        ("STOCK.CONFIRM m2 sold", 2),
        ("STOCK.DEDUCT m1 1 ORDER never", CLOSED),
    ] {
        assert_eq!(client.run(line), expected, "{line}");
    }
    let conflict = "STOCK.RESERVE terms 1 ORDER live PX 900001 USER u";
    assert_eq!(client.run(conflict).err(), CONFLICT);
    let again = client.run("STOCK.MDEDUCT 3 m1 1 m2 2 renamed 1 ORDER o USER u");
    assert_eq!(ints(&again), [7, 4, 5]);
    assert_eq!(server.digest(), digest, "a repetition changed something");

    assert_eq!(counts(&mut client, "terms"), [44, 1, 11]);
    assert_eq!(counts(&mut client, "forgets"), [18, 1, 1]);
    assert_eq!(counts(&mut client, "hash"), [6, 0, 4]);
    assert_eq!(counts(&mut client, "counter"), [11, 0, 1]);
    let info = client.run("STOCK.INFO terms");
    for (field, value) in [
        ("orders", 9),
        ("users", 2),
        ("peruser", 7),
        ("retain_ms", 123_456_789),
        ("maxlen", 5000),
        ("ver", 16),
    ] {
        assert_eq!(info.field(field), &value, "{field}");
    }
    assert_eq!(info.field("events"), &"s");
    let order = client.run("STOCK.ORDER terms live");
    let lasts = order.field("expires_ms").int() - order.field("created_ms").int();
    assert_eq!(lasts, 900_000);
    assert_eq!(client.run("XPENDING s g").array()[0], 3);

    // And goes on.
    assert_eq!(client.run("STOCK.CONFIRM terms live"), 1);
    assert_eq!(client.run("STOCK.CANCEL terms sold"), 4);
    assert_eq!(client.run("STOCK.DEDUCT terms 4 USER u"), 44);
    let last = told(&mut client, "s");
    assert_eq!(
        last[last.len() - 3..],
        [
            "confirm terms live u 1 44 17",
            "cancel terms sold u 4 48 18",
            "deduct terms - u 4 44 19"
        ]
    );
    let [available, reserved, sold] = counts(&mut client, "crowd");
    assert_eq!((reserved, sold), (CROWD / 4, CROWD / 2));
    assert_eq!(number(&mut client, "crowd", "orders"), CROWD);
    assert_eq!(client.run("STOCK.CONFIRM crowd o4"), 1);
    assert_eq!(client.run("STOCK.CANCEL crowd o6"), 1);
    assert_eq!(
        counts(&mut client, "crowd"),
        [available + 1, reserved - 1, sold]
    );
    assert_stream_tells_all(&mut client, "crowd-events", &["crowd"]);
}

#[test]
fn ten_thousand_orders_are_kept_by_every_file() {
    let server = Server::builder()
        .aof(Fsync::No)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET k 30000 PERUSER 9");
    let orders = (0..10_000).map(|number| match number % 3 {
        0 => format!("STOCK.RESERVE k 2 ORDER o{number} PX 900000 USER u{number}"),
        1 => format!("STOCK.DEDUCT k 1 ORDER o{number} USER u{number}"),
        _ => format!("STOCK.CANCEL k o{number}"),
    });
    client.run_all(orders);
    client.run_all((0..5000).map(|number| format!("STOCK.CANCEL k o{}", number * 2)));
    let before = Picture::of(&server);
    let numbers = counts(&mut client, "k");
    server.command(["DEBUG", "RELOAD"]);
    before.assert_is_of(&server);
    server.rewrite_aof();
    assert!(server.terminate().success());
    server.restart();
    before.assert_is_of(&server);
    let mut client = Raw::connect(&server);
    assert_eq!(counts(&mut client, "k"), numbers);
    let payload = client.must("DUMP k");
    let restore = [b"RESTORE".as_slice(), b"copy", b"0", payload.bytes()];
    assert_eq!(client.call(restore), "OK");
    assert_eq!(
        client.must("DEBUG DIGEST-VALUE copy"),
        client.must("DEBUG DIGEST-VALUE k")
    );
    for key in ["k", "copy"] {
        assert_eq!(number(&mut client, key, "orders"), 10_000);
        assert_eq!(client.call(["STOCK.CONFIRM", key, "o3"]), 2);
        assert_eq!(client.call(["STOCK.CONFIRM", key, "o6"]), CLOSED);
        assert_eq!(client.call(["STOCK.CANCEL", key, "o7"]), 1);
    }
}

// Time that passes

#[test]
fn reservations_that_ended_while_the_server_was_down_end_right_after_its_start() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
        Server::builder()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", "no"),
    ] {
        // However long the requests take, no reservation ends before the server does.
        let (server, end) = with_growing_lease(2000, |lease| {
            let server = builder.clone().start();
            let mut client = Raw::connect(&server);
            client.must("STOCK.SET k 1000 PERUSER 600 EVENTS s");
            client.must("STOCK.RESERVE k 1 ORDER live PX 900000 USER v");
            let orders = (0..600)
                .map(|number| format!("STOCK.RESERVE k 1 ORDER o{number} PX {lease} USER u"));
            client.run_all(orders);
            if server.info_int("aof_enabled") == 1 {
                server.rewrite_aof();
            }
            client.must("CLIENT PAUSE 100000 WRITE");
            if server.info_int("sluice_stock_expired") > 0 {
                return None;
            }
            let order = client.must("STOCK.ORDER k o599");
            Some((server, order.get("expires_ms")?.int()))
        });
        assert!(server.terminate().success());
        let clock = Server::start();
        let mut clock = Raw::connect(&clock);
        eventually(SOON, || now_ms(&mut clock) > end);
        server.restart();
        let mut client = Raw::connect(&server);
        // Nobody asks the stock.
        eventually(SOON, || server.info_int("sluice_stock_expired") == 600);
        assert_eq!(counts(&mut client, "k"), [999, 1, 0]);
        assert_eq!(state(&mut client, "k", "o0"), "expired");
        assert_eq!(client.run("STOCK.CONFIRM k o599"), CLOSED);
        assert_eq!(number(&mut client, "k", "users"), 1);
        assert_stream_tells_all(&mut client, "s", &["k"]);
        let digest = server.digest();
        server.command(["DEBUG", "RELOAD"]);
        assert_eq!(server.digest(), digest);
    }
}

#[test]
fn the_deadline_of_a_reservation_stays_the_same_over_a_restart() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
    ] {
        let server = builder.start();
        let mut client = Raw::connect(&server);
        client.must("STOCK.SET k 10");
        // In one transaction: the reservation must not end before it is looked at.
        let replies = client.transact(["STOCK.RESERVE k 1 ORDER o PX 500", "STOCK.ORDER k o"]);
        let end = replies[1].field("expires_ms").int();
        assert!(server.terminate().success());
        server.restart();
        let mut client = Raw::connect(&server);
        let order = client.must("STOCK.ORDER k o");
        if let Some(expires) = order.get("expires_ms") {
            assert_eq!(*expires, end);
        }
        await_state(&mut client, "k", "o", "expired");
        assert!(now_ms(&mut client) >= end, "it has ended too early");
    }
}

#[test]
fn orders_that_were_to_be_forgotten_while_the_server_was_down_are_forgotten_after_its_start() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
    ] {
        let server = builder.start();
        let mut client = Raw::connect(&server);
        client.must("STOCK.SET k 1000 RETAIN 300 EVENTS s");
        client.must("STOCK.RESERVE k 1 ORDER live PX 900000");
        let orders = (0..600).map(|number| format!("STOCK.DEDUCT k 1 ORDER o{number}"));
        client.run_all(orders);
        assert!(server.terminate().success());
        server.restart();
        let mut client = Raw::connect(&server);
        eventually(SOON, || number(&mut client, "k", "orders") == 1);
        assert_eq!(counts(&mut client, "k"), [399, 1, 600]);
        let digest = server.digest();
        server.command(["DEBUG", "RELOAD"]);
        assert_eq!(server.digest(), digest);
    }
}

#[test]
fn what_ended_and_was_forgotten_is_in_the_append_only_file() {
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET k 1000 PERUSER 9 RETAIN 100 EVENTS s");
    client.must("STOCK.SET other 1000");
    let orders = (0..500).flat_map(|number| {
        [
            format!(
                "STOCK.RESERVE k 1 ORDER r{number} PX {} USER u{number}",
                1 + number % 50
            ),
            format!("STOCK.DEDUCT k 1 ORDER d{number} USER u{number}"),
            format!(
                "STOCK.RESERVE other 1 ORDER r{number} PX {}",
                1 + number % 50
            ),
        ]
    });
    client.run_all(orders);
    server.rewrite_aof(); // in the midst of it
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    eventually(SOON, || counts(&mut client, "other") == [1000, 0, 0]);
    assert_eq!(counts(&mut client, "k"), [500, 0, 500]);
    let before = Picture::of(&server);
    for _ in 0..2 {
        server.crash();
        before.assert_is_of(&server);
    }
    assert_stream_tells_all(&mut Raw::connect(&server), "s", &["k"]);
}

// Crashes

/// A crash cuts the append-only file anywhere: a change and what tells of it are both there, or neither.
#[test]
fn of_a_cut_append_only_file_every_change_is_loaded_with_its_event_or_not_at_all() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut client = Raw::connect(&server);
    for line in [
        "STOCK.SET a 10 EVENTS s",
        "STOCK.SET b 10 EVENTS s",
        "STOCK.SET c 10 PERUSER 5",
    ] {
        client.must(line);
    }
    let mut states = vec![server.digest()];
    let incremental = server.aof_file(".incr.");
    let start = fs::read(&incremental).unwrap().len();
    for line in [
        "STOCK.DEDUCT a 1 ORDER o",
        "STOCK.MRESERVE 3 a 1 b 2 c 3 ORDER m PX 900000 USER u",
        "STOCK.MCONFIRM 3 c b a m",
    ] {
        client.must(line);
        states.push(server.digest());
    }
    server.kill9();
    let bytes = fs::read(&incremental).unwrap();
    let mut seen = 0;
    for part in 0..=24 {
        let length = bytes.len() - (bytes.len() - start) * part / 24;
        fs::write(&incremental, &bytes[..length]).unwrap();
        server.restart();
        let found = states.iter().position(|state| *state == server.digest());
        let found = found.unwrap_or_else(|| panic!("cut at {length} of {}", bytes.len()));
        seen |= 1 << found;
        assert_stream_tells_all(&mut Raw::connect(&server), "s", &["a", "b"]);
        server.kill9();
    }
    assert_eq!(seen, 0b1111, "every state comes up");
}

/// A shop of its own in a stock that it shares: it knows what the server has acknowledged.
struct Shop {
    number: usize,
    random: u64,
    /// The states that each of its orders can be in.
    orders: Vec<&'static [&'static str]>,
    /// The order whose last request was not answered: the crash came before or after its effect.
    in_doubt: Option<usize>,
}

const SOLD: &[&str] = &["sold"];
const CANCELLED: &[&str] = &["cancelled"];
const LIVE: &[&str] = &["reserved"];
const SHORT: &[&str] = &["reserved", "expired"];
const REFUSED: &[&str] = &["none"];
const EXPIRED: &[&str] = &["expired"];

impl Shop {
    fn roll(&mut self, sides: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % sides as u64) as usize
    }

    /// Random requests until the server dies. Returns how many were answered.
    fn work(&mut self, mut client: Raw, stop: &AtomicBool) -> usize {
        let mut answered = 0;
        while !stop.load(Ordering::Relaxed) {
            let old = self.roll(self.orders.len().max(1)).min(self.orders.len());
            let (order, verb) = match self.roll(8) {
                0..=2 => (self.orders.len(), "DEDUCT"),
                3 => (self.orders.len(), "RESERVE"),
                4 => (self.orders.len(), "HOLD"),
                5 | 6 if old < self.orders.len() => (old, "CONFIRM"),
                _ if old < self.orders.len() => (old, "CANCEL"),
                _ => continue,
            };
            if order == self.orders.len() {
                self.orders.push(REFUSED);
            }
            let id = format!("shop{}-{order}", self.number);
            let user = self.number;
            let line = match verb {
                "DEDUCT" => format!("STOCK.DEDUCT k 1 ORDER {id} USER u{user}"),
                "RESERVE" => format!("STOCK.RESERVE k 2 ORDER {id} PX 40 USER u{user}"),
                "HOLD" => format!("STOCK.RESERVE k 3 ORDER {id} PX 900000 USER u{user}"),
                _ => format!("STOCK.{verb} k {id}"),
            };
            self.in_doubt = Some(order);
            client.ask(&line);
            let Ok(Some(reply)) = client.try_read(SOON) else {
                return answered;
            };
            self.in_doubt = None;
            answered += 1;
            let before = self.orders[order];
            self.orders[order] = match (verb, reply.int()) {
                ("DEDUCT", 0..) => SOLD,
                ("RESERVE", 0..) => SHORT,
                ("HOLD", 0..) => LIVE,
                ("CONFIRM", 0..) => SOLD,
                ("CANCEL", 0.. | UNKNOWN) => CANCELLED,
                ("CONFIRM" | "CANCEL", CLOSED) if before == SHORT => EXPIRED,
                (_, SOLD_OUT | OVER_LIMIT | UNKNOWN | CLOSED) => before,
                (_, code) => panic!("{line}: {code}"),
            };
        }
        answered
    }

    /// Compares what it knows with what the server has after a crash.
    fn check(&mut self, server: &Server) {
        let mut client = Raw::connect(server);
        for order in 0..self.orders.len() {
            let id = format!("shop{}-{order}", self.number);
            let found = state(&mut client, "k", &id);
            if self.in_doubt == Some(order) {
                // Either state is right; from here on this one is known.
                self.orders[order] = match found.as_str() {
                    "sold" => SOLD,
                    "cancelled" => CANCELLED,
                    "expired" => EXPIRED,
                    "none" => REFUSED,
                    _ if self.orders[order] == LIVE => LIVE,
                    _ => &["reserved", "expired"],
                };
                continue;
            }
            let expected = self.orders[order];
            assert!(
                expected.contains(&found.as_str()),
                "{id}: {found}, acknowledged {expected:?}"
            );
        }
        self.in_doubt = None;
    }
}

#[test]
fn crashes_lose_no_acknowledged_order_and_sell_nothing_twice() {
    const SHOPS: usize = 6;
    const CRASHES: usize = 4;
    const REQUESTS_PER_CRASH: i64 = 400;
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("auto-aof-rewrite-min-size", "8kb")
        .config("auto-aof-rewrite-percentage", "50")
        .start();
    Raw::connect(&server).must("STOCK.SET k 1500 PERUSER 700 EVENTS s");
    let mut shops: Vec<_> = (0..SHOPS)
        .map(|number| Shop {
            number,
            random: 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1),
            orders: Vec::new(),
            in_doubt: None,
        })
        .collect();
    for _ in 0..CRASHES {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = EndOnDrop(&stop);
            for shop in &mut shops {
                let (client, stop) = (Raw::connect(&server), &stop);
                scope.spawn(move || shop.work(client, stop));
            }
            server.await_commands(REQUESTS_PER_CRASH);
            server.kill9();
            stop.store(true, Ordering::Relaxed);
        });
        server.restart();
        for shop in &mut shops {
            shop.check(&server);
        }
        let mut client = Raw::connect(&server);
        let [available, reserved, sold] = counts(&mut client, "k");
        assert_eq!(available + reserved + sold, 1500);
        assert_stream_tells_all(&mut client, "s", &["k"]);
    }
    let orders: usize = shops.iter().map(|shop| shop.orders.len()).sum();
    assert!(orders > 300, "only {orders} orders");
}

// Damaged input

/// A payload's last bytes: two of the RDB version, eight of the checksum.
const FOOTER: usize = 10;

/// A server that takes any payload for undamaged.
fn careless_server() -> (Server, Raw) {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    (server, client)
}

/// A payload with an order of every kind and users.
fn rich_payload(client: &mut Raw) -> Vec<u8> {
    for line in [
        "STOCK.SET rich 300 PERUSER 7 RETAIN 86400000 EVENTS stream MAXLEN 5000",
        "STOCK.RESERVE rich 1 ORDER live PX 900000 USER u",
        "STOCK.RESERVE rich 2 ORDER confirmed PX 900000 USER u",
        "STOCK.CONFIRM rich confirmed",
        "STOCK.RESERVE rich 3 ORDER released PX 900000 USER v",
        "STOCK.CANCEL rich released",
        "STOCK.DEDUCT rich 4 ORDER sold USER u",
        "STOCK.DEDUCT rich 4 ORDER refunded USER w",
        "STOCK.CANCEL rich refunded",
        "STOCK.CANCEL rich marked",
        "STOCK.ADD rich -6 ORDER added",
        "STOCK.DEDUCT rich 5 USER x",
        "STOCK.RESERVE rich 1 ORDER expired PX 1 USER y",
    ] {
        client.must(line);
    }
    await_state(client, "rich", "expired", "expired");
    client.must("DUMP rich").bytes().to_vec()
}

/// Restores each payload under a name of its own; the names of those that were accepted.
fn restore_all(client: &mut Raw, payloads: &[Vec<u8>]) -> Vec<String> {
    let mut accepted = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        let key = format!("restored-{number}");
        match client.call([b"RESTORE", key.as_bytes(), b"0", payload]) {
            Value::Error(text) => assert!(!text.contains("internal"), "{text}: {payload:?}"),
            _ => accepted.push(key),
        }
    }
    accepted
}

/// Uses stocks in every way, then saves and loads them. The keys of those that cannot be loaded as they were saved.
#[track_caller]
fn use_and_reload(server: &Server, keys: &[String]) -> Vec<String> {
    let mut client = Raw::connect(server);
    let mut lost = Vec::new();
    for key in keys {
        for line in [
            format!("STOCK.GET {key}"),
            format!("STOCK.ORDER {key} live"),
            format!("MEMORY USAGE {key}"),
            format!("DEBUG DIGEST-VALUE {key}"),
            format!("STOCK.DEDUCT {key} 1 ORDER new USER u"),
            format!("STOCK.RESERVE {key} 1 ORDER next PX 1 USER n"),
            format!("STOCK.CONFIRM {key} live"),
            format!("STOCK.CANCEL {key} sold"),
            format!("STOCK.CANCEL {key} live"),
            format!("STOCK.ADD {key} 1"),
            format!("COPY {key} copy REPLACE"),
        ] {
            if let Value::Error(text) = client.run(&line) {
                let known = [
                    "WRONGTYPE",
                    "CONFLICT",
                    "ERR delta must be",
                    "ERR USER is required",
                ];
                let known = known.iter().any(|known| text.starts_with(known));
                assert!(known, "{line}: {text}");
            }
        }
        if client.call(["TYPE", key]) == "sluice-st" {
            counts(&mut client, key);
        }
        let payload = client.call(["DUMP", key]);
        let command: [&[u8]; 5] = [b"RESTORE", b"again", b"0", payload.bytes(), b"REPLACE"];
        if client.call(command) != "OK" {
            lost.push(key.clone());
            client.call(["DEL", key]);
        }
    }
    client.call(["DEL", "again", "copy"]);
    // What is to end or to be forgotten does so between two looks, but not forever.
    eventually(SOON, || {
        let digest = server.digest();
        server.command(["DEBUG", "RELOAD"]);
        server.digest() == digest
    });
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    let mut client = Raw::connect(server);
    for key in keys {
        if client.call(["TYPE", key]) == "sluice-st" {
            counts(&mut client, key);
        }
    }
    let log = server.log();
    for word in ["panic", "internal error", "BUG REPORT"] {
        assert!(!log.contains(word), "{log}");
    }
    lost
}

#[test]
fn payloads_cut_at_any_byte_are_refused() {
    let (server, mut client) = careless_server();
    let payload = rich_payload(&mut client);
    let (value, footer) = payload.split_at(payload.len() - FOOTER);
    let plainly = (0..payload.len()).map(|cut| payload[..cut].to_vec());
    let with_footer = (0..value.len()).map(|cut| [&value[..cut], footer].concat());
    let mut made = 0;
    for cut in plainly.chain(with_footer) {
        let reply = client.call([b"RESTORE".as_slice(), b"k", b"0", &cut, b"REPLACE"]);
        if !reply.is_err() {
            // The last bytes may make sense as a footer, or the footer as the last bytes.
            counts(&mut client, "k");
            made += 1;
        }
    }
    assert!(made <= 6, "{made} cut payloads were taken");
    let reply = client.call([b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"]);
    assert_eq!(reply, "OK");
    assert_eq!(counts(&mut client, "k"), counts(&mut client, "rich"));
    assert!(!server.log().contains("panic"));
}

#[test]
fn damaged_payloads_are_refused_or_make_a_stock_that_works() {
    let (server, mut client) = careless_server();
    let payload = rich_payload(&mut client);
    let (value, footer) = payload.split_at(payload.len() - FOOTER);
    let mut damaged = Vec::new();
    for bit in 0..payload.len() * 8 {
        let mut flipped = payload.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        damaged.push(flipped);
    }
    for at in 0..value.len() {
        for byte in [0, 0x7f, 0x80, 0xff] {
            let mut changed = payload.clone();
            changed[at] = byte;
            damaged.push(changed);
            damaged.push([&value[..at], &[byte], &value[at..], footer].concat());
        }
    }
    let restored = restore_all(&mut client, &damaged);
    assert!(restored.len() > 50, "{}", restored.len());
    assert!(restored.len() < damaged.len() / 2);
    let lost = use_and_reload(&server, &restored);
    assert!(
        lost.is_empty(),
        "{lost:?} of {} cannot be loaded as they were saved",
        restored.len()
    );
}

/// The internal encoding of effects, as `src/stock/persist.rs` describes it.
mod effects {
    pub(super) fn uint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    pub(super) fn text(out: &mut Vec<u8>, bytes: &[u8]) {
        uint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }

    /// A new stock without a stream.
    pub(super) fn created(counts: [u64; 4], per_user: u64, retain: u64) -> Vec<u8> {
        let mut out = vec![b'S', 0];
        for number in counts.into_iter().chain([per_user, retain, 0]) {
            uint(&mut out, number);
        }
        out
    }

    /// A change that is not told: `numbers` are what stands behind the order and the user.
    pub(super) fn changed(op: u8, order: &str, user: Option<&str>, numbers: &[u64]) -> Vec<u8> {
        let mut out = vec![op];
        text(&mut out, order.as_bytes());
        if let Some(user) = user {
            text(&mut out, user.as_bytes());
        }
        numbers.iter().for_each(|number| uint(&mut out, *number));
        if !b"MF".contains(&op) {
            out.push(0);
        }
        out
    }
}

impl Random {
    /// An effect that the encoding allows, of whatever sense.
    fn effect(&mut self, now: u64) -> Vec<u8> {
        let order = ["live", "sold", "a", "b", "c"][self.below(5) as usize];
        let user = ["u", "v"][self.below(2) as usize];
        let qty = [1, 2, 5, (1 << 53) - 1][self.below(4) as usize];
        let at = now - self.below(100_000);
        match self.below(11) {
            0 => {
                let counts = [self.below(100), 0, self.below(9), 1 + self.below(99)];
                effects::created(counts, self.below(2) * 5, 1 + self.below(1_000_000_000))
            }
            1 => effects::changed(b'A', order, None, &[2 * qty - self.below(2), at]),
            2 | 3 => effects::changed(b'D', order, Some(user), &[qty, at]),
            4 | 5 => effects::changed(b'R', order, Some(user), &[qty, 1 + self.below(200_000), at]),
            6 => effects::changed(b'C', order, None, &[at]),
            7 => effects::changed(b'X', order, None, &[at]),
            8 => effects::changed(b'E', order, None, &[at]),
            9 => effects::changed(b'M', order, None, &[at]),
            _ => effects::changed(b'F', order, None, &[]),
        }
    }
}

#[test]
fn random_effects_are_refused_or_leave_a_stock_that_answers() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let now = u64::try_from(now_ms(&mut client)).unwrap();
    let mut keys: Vec<String> = (0..97).map(|number| format!("k{number}")).collect();
    for key in &keys {
        let new = effects::created([20, 0, 0, 1], random.below(2) * 9, 86_400_000);
        assert_eq!(client.call([b"STOCK.APPLY", key.as_bytes(), &new]), "OK");
    }
    let mut applied = 0;
    for _ in 0..4000 {
        let key = &keys[random.below(97) as usize];
        let mut input: Vec<u8> = (0..1 + random.below(3))
            .flat_map(|_| random.effect(now))
            .collect();
        match random.below(9) {
            0 => input = random.bytes(60),
            1 => {
                let at = random.below(input.len() as u64) as usize;
                input[at] ^= 1 << random.below(8);
            }
            2 => input.truncate(random.below(input.len() as u64) as usize),
            3 => input.extend(random.bytes(5)),
            _ => {}
        }
        match client.call([b"STOCK.APPLY", key.as_bytes(), &input]) {
            Value::Error(text) => assert!(!text.contains("internal"), "{text}: {input:?}"),
            _ => applied += 1,
        }
    }
    assert!(applied > 300, "only {applied}");
    keys.retain(|key| client.call(["EXISTS", key]) == 1);
    assert!(keys.len() > 50, "{}", keys.len());
    // Bytes that are no effects of commands may make a stock that is refused when it is loaded.
    let lost = use_and_reload(&server, &keys);
    assert!(lost.len() < keys.len() / 4, "{lost:?}");
}

/// Numbers that no commands make: whoever forges them must not get a server that cannot load what it has saved.
#[test]
fn forged_versions_do_not_make_a_file_that_cannot_be_loaded() {
    let server = Server::builder().rdb(true).start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET honest 5");
    let forged = effects::created([20, 0, 0, (1 << 53) - 1], 0, 86_400_000);
    let reply = client.call([b"STOCK.APPLY".as_slice(), b"forged", &forged]);
    assert!(reply.is_err() || reply == "OK", "{reply:?}");
    client.run("STOCK.DEDUCT forged 1");
    client.run("STOCK.SET forged 20 XX");
    // A reserved piece without an order.
    let reserved = effects::created([20, 1, 0, 1], 0, 86_400_000);
    let reply = client.call([b"STOCK.APPLY".as_slice(), b"reserved", &reserved]);
    assert_eq!(reply.err(), "ERR invalid replicated effect");
    assert_eq!(client.run("EXISTS reserved"), 0);
    // A user who holds more than was taken.
    let user = [
        &effects::created([20, 0, 0, 1], 5, 86_400_000)[..],
        b"U\x01u\x05",
    ]
    .concat();
    let reply = client.call([b"STOCK.APPLY".as_slice(), b"user", &user]);
    assert_eq!(reply.err(), "ERR invalid replicated effect");
    // A reservation that ends later than any number.
    let late = effects::changed(b'R', "o", Some(""), &[1, 1, (1 << 53) - 1]);
    let reply = client.call([b"STOCK.APPLY".as_slice(), b"honest", &late]);
    assert_eq!(reply.err(), "ERR invalid replicated effect");
    assert!(client.run("STOCK.ORDER honest o").is_nil());
    let reply = client.call([b"STOCK.APPLY".as_slice(), b"honest", b"U\x01u\x05"]);
    assert_eq!(reply.err(), "ERR invalid replicated effect");
    let digest = server.digest();
    let reload = client.run("DEBUG RELOAD");
    assert!(!reload.is_err(), "{reload:?}");
    assert_eq!(server.digest(), digest);
    assert_eq!(client.run("STOCK.GET honest"), 5);
}
