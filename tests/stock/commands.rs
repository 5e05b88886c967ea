//! What the commands of stocks reply and do, sentence by sentence of the contract.

use crate::support::stock::{
    CLOSED, CONFLICT, MOST, OVER_LIMIT, SOLD_OUT, UNKNOWN, USER_REQUIRED, await_state, counts,
    entries, number, state, told,
};
use crate::support::{
    Fsync, KeyspaceEvents, Lines, NOT_AN_INTEGER, Raw, SOON, SYNTAX, Server, UNSAFE_INTEGER, Value,
    WRONGTYPE, Written, eventually, field_of, ints, now_ms, server_and_client,
};

// SET, GET, MGET, ADD

#[test]
fn all_of_a_new_stock_is_available() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("STOCK.SET k 10"), "OK");
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(client.run("STOCK.GET k"), 10);
    assert_eq!(client.run("STOCK.SET empty 0"), "OK");
    assert_eq!(client.run("STOCK.GET empty"), 0);
    assert_eq!(client.run("PTTL k"), -1);
    assert!(client.run("STOCK.GET none").is_nil());
    assert!(client.run("STOCK.INFO none").is_nil());
    assert!(client.run("STOCK.ORDER none o").is_nil());
    let all = client.run("STOCK.MGET k none empty k");
    assert_eq!(
        all.array(),
        [Value::Int(10), Value::Nil, Value::Int(0), Value::Int(10)]
    );
}

#[test]
fn set_with_nx_creates_and_with_xx_replaces() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("STOCK.SET k 5 XX").is_nil());
    assert_eq!(client.run("EXISTS k"), 0);
    assert_eq!(client.run("STOCK.SET k 5 NX"), "OK");
    assert!(client.run("STOCK.SET k 9 NX").is_nil());
    assert_eq!(counts(&mut client, "k"), [5, 0, 0]);
    assert_eq!(client.run("STOCK.SET k 9 xx"), "OK");
    assert_eq!(counts(&mut client, "k"), [9, 0, 0]);
    assert_eq!(client.run("STOCK.SET k 9 NX XX").err(), SYNTAX);
    client.run("SET string v");
    for line in [
        "STOCK.SET string 5",
        "STOCK.SET string 5 NX",
        "STOCK.SET string 5 XX",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
}

#[test]
fn the_terms_of_a_stock_are_those_of_its_last_set() {
    let (_server, mut client) = server_and_client();
    let terms = |client: &mut Raw| {
        let info = client.must("STOCK.INFO k");
        let number = |field: &str| info.field(field).int();
        let events = info.field("events").text().to_owned();
        (number("peruser"), number("retain_ms"), events)
    };
    client.run("STOCK.SET k 10");
    assert_eq!(terms(&mut client), (0, 86_400_000, String::new()));
    client.run("STOCK.SET k 10 maxlen 50 events {k}s peruser 3 retain 7000");
    assert_eq!(terms(&mut client), (3, 7000, "{k}s".into()));
    assert_eq!(number(&mut client, "k", "maxlen"), 50);
    client.run("STOCK.SET k 10 EVENTS other");
    assert_eq!(terms(&mut client), (0, 86_400_000, "other".into()));
    assert_eq!(number(&mut client, "k", "maxlen"), 100_000);
    client.run("STOCK.SET k 10");
    assert_eq!(terms(&mut client), (0, 86_400_000, String::new()));
}

#[test]
fn set_replaces_all_of_a_stock_and_its_versions_go_on() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2");
    assert_eq!(number(&mut client, "k", "ver"), 1);
    let replies = client.transact([
        "STOCK.RESERVE k 2 ORDER r PX 50 USER u",
        "STOCK.DEDUCT k 1 ORDER d USER v",
        "STOCK.CANCEL k mark",
        "PEXPIRE k 900000",
        "STOCK.INFO k",
        "STOCK.SET k 4 PERUSER 2",
    ]);
    assert_eq!(replies[4].field("ver"), &3);
    assert_eq!(counts(&mut client, "k"), [4, 0, 0]);
    assert_eq!(client.run("PTTL k"), -1);
    for field in ["orders", "users"] {
        assert_eq!(number(&mut client, "k", field), 0, "{field}");
    }
    assert_eq!(number(&mut client, "k", "ver"), 4);
    for id in ["r", "d", "mark"] {
        assert_eq!(state(&mut client, "k", id), "none");
        assert_eq!(client.call(["STOCK.CONFIRM", "k", id]), UNKNOWN);
    }
    // Not even the old reservation comes back, when another one that is younger has.
    client.run("STOCK.SET clock 1");
    client.run("STOCK.RESERVE clock 1 ORDER r PX 60");
    await_state(&mut client, "clock", "r", "expired");
    assert_eq!(counts(&mut client, "k"), [4, 0, 0]);
    // What the users had was theirs of the old stock.
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), 2);
}

#[test]
fn add_restocks_and_takes_back() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    assert_eq!(client.run("STOCK.ADD k 5"), 15);
    assert_eq!(client.run("STOCK.ADD k -3"), 12);
    client.run("STOCK.DEDUCT k 4");
    client.run("STOCK.RESERVE k 3 ORDER r PX 900000");
    assert_eq!(counts(&mut client, "k"), [5, 3, 4]);
    assert_eq!(client.run("STOCK.ADD k -6"), SOLD_OUT);
    assert_eq!(counts(&mut client, "k"), [5, 3, 4]);
    assert_eq!(client.run("STOCK.ADD k -5"), 0);
    assert_eq!(client.run("STOCK.ADD k -1"), SOLD_OUT);
    assert_eq!(client.run("STOCK.ADD k 1"), 1);
    assert_eq!(counts(&mut client, "k"), [1, 3, 4]);
    assert_eq!(client.run("STOCK.ADD none 1"), UNKNOWN);
    assert_eq!(client.run("EXISTS none"), 0);
}

#[test]
fn an_add_with_an_order_counts_once() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    assert_eq!(client.run("STOCK.ADD k 5 ORDER delivery"), 15);
    client.run("STOCK.DEDUCT k 1");
    assert_eq!(client.run("STOCK.ADD k 5 ORDER delivery"), 15);
    assert_eq!(client.run("STOCK.ADD k 6 ORDER delivery").err(), CONFLICT);
    assert_eq!(client.run("STOCK.ADD k -14 ORDER back"), 0);
    assert_eq!(client.run("STOCK.ADD k -14 ORDER back"), 0);
    assert_eq!(counts(&mut client, "k"), [0, 0, 1]);
    assert_eq!(
        client.run("STOCK.ORDER k delivery").field("qty").int(),
        5,
        "the delta"
    );
}

// DEDUCT

#[test]
fn deduct_sells_what_is_available_and_no_more() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    assert_eq!(client.run("STOCK.DEDUCT k 3"), 7);
    assert_eq!(client.run("STOCK.DEDUCT k 8"), SOLD_OUT);
    assert_eq!(client.run("STOCK.DEDUCT k 7"), 0);
    assert_eq!(client.run("STOCK.DEDUCT k 1"), SOLD_OUT);
    assert_eq!(counts(&mut client, "k"), [0, 0, 10]);
    assert_eq!(client.run("STOCK.DEDUCT none 1"), UNKNOWN);
    assert_eq!(client.run("EXISTS none"), 0);
}

#[test]
fn what_is_reserved_cannot_be_sold_to_others() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 5");
    assert_eq!(client.run("STOCK.RESERVE k 4 ORDER a PX 900000"), 1);
    assert_eq!(client.run("STOCK.DEDUCT k 2"), SOLD_OUT);
    assert_eq!(client.run("STOCK.RESERVE k 2 ORDER b PX 900000"), SOLD_OUT);
    assert_eq!(client.run("STOCK.ADD k -2"), SOLD_OUT);
    assert_eq!(client.run("STOCK.DEDUCT k 1"), 0);
    assert_eq!(counts(&mut client, "k"), [0, 4, 1]);
}

#[test]
fn many_clients_sell_exactly_what_there_is() {
    const CLIENTS: usize = 8;
    const TRIES: usize = 200;
    const STOCK: i64 = 1000;
    let (server, mut client) = server_and_client();
    client.call(["STOCK.SET", "k", &STOCK.to_string(), "PERUSER", "150"]);
    let sold: i64 = std::thread::scope(|scope| {
        let sellers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    let user = format!("user{number}");
                    let mut client = Raw::connect(server);
                    let orders = (0..TRIES).map(|order| {
                        let order = format!("{user}-{order}");
                        ["STOCK.DEDUCT", "k", "1", "ORDER", &order, "USER", &user]
                            .map(str::to_owned)
                    });
                    let replies = client.pipeline(orders);
                    let codes = [SOLD_OUT, OVER_LIMIT];
                    assert!(
                        replies
                            .iter()
                            .all(|reply| reply.int() >= 0 || codes.contains(&reply.int()))
                    );
                    replies.iter().filter(|reply| reply.int() >= 0).count() as i64
                })
            })
            .collect();
        sellers
            .into_iter()
            .map(|seller| seller.join().unwrap())
            .sum()
    });
    assert_eq!(sold, STOCK);
    assert_eq!(counts(&mut client, "k"), [0, 0, STOCK]);
    assert_eq!(number(&mut client, "k", "orders"), STOCK);
}

// Orders are idempotent

/// The stock `k` has 10, and of the order `o` each of these makes something else.
const HISTORIES: [(&str, &[&str]); 9] = [
    ("reserved", &[RESERVE]),
    ("confirmed", &[RESERVE, CONFIRM]),
    ("released", &[RESERVE, CANCEL]),
    ("given back", &[RESERVE, CONFIRM, CANCEL]),
    ("deducted", &[DEDUCT]),
    ("refunded", &[DEDUCT, CANCEL]),
    ("added", &[ADD]),
    ("marked", &[CANCEL]),
    ("expired", &["STOCK.RESERVE k 2 ORDER o PX 1 USER u"]),
];

const RESERVE: &str = "STOCK.RESERVE k 2 ORDER o PX 900000 USER u";
const DEDUCT: &str = "STOCK.DEDUCT k 2 ORDER o USER u";
const ADD: &str = "STOCK.ADD k 2 ORDER o";
const CONFIRM: &str = "STOCK.CONFIRM k o";
const CANCEL: &str = "STOCK.CANCEL k o";

/// The same order with other arguments.
const OTHERS: [&str; 9] = [
    "STOCK.RESERVE k 3 ORDER o PX 900000 USER u",
    "STOCK.RESERVE k 2 ORDER o PX 900001 USER u",
    "STOCK.RESERVE k 2 ORDER o PX 900000 USER v",
    "STOCK.RESERVE k 2 ORDER o PX 900000",
    "STOCK.DEDUCT k 1 ORDER o USER u",
    "STOCK.DEDUCT k 2 ORDER o USER U",
    "STOCK.DEDUCT k 2 ORDER o",
    "STOCK.ADD k -2 ORDER o",
    "STOCK.ADD k 9 ORDER o",
];

/// What a request for an order with this history is answered: a number, or `None` for `CONFLICT`.
fn expected(history: &str, request: &str) -> Option<i64> {
    match (history, request) {
        ("marked", CANCEL) => Some(UNKNOWN),
        ("released" | "given back" | "refunded", CANCEL) => Some(2),
        ("released" | "given back" | "refunded" | "marked" | "expired", _) => Some(CLOSED),
        ("reserved" | "confirmed", RESERVE) | ("deducted", DEDUCT) => Some(8),
        ("reserved" | "confirmed" | "deducted", CONFIRM | CANCEL) => Some(2),
        ("added", ADD) => Some(12),
        _ => None,
    }
}

#[test]
fn every_request_for_a_known_order_has_its_answer() {
    let (server, mut client) = server_and_client();
    let requests = [RESERVE, DEDUCT, ADD, CONFIRM, CANCEL];
    let mut conflicts = 0;
    for (history, commands) in HISTORIES {
        for request in requests.into_iter().chain(OTHERS) {
            client.run("STOCK.SET k 10");
            for command in commands {
                client.must(command);
            }
            if history == "expired" {
                await_state(&mut client, "k", "o", "expired");
            }
            // The first reply comes again, not what is available now.
            client.run("STOCK.DEDUCT k 1");
            let (before, digest) = (counts(&mut client, "k"), server.digest());
            let reply = client.run(request);
            match expected(history, request) {
                Some(number) => assert_eq!(reply, number, "{request}, {history}"),
                None => assert_eq!(reply.err(), CONFLICT, "{request}, {history}"),
            }
            conflicts += i64::from(expected(history, request).is_none());
            let after = counts(&mut client, "k");
            let [available, reserved, sold] = before;
            match (history, request) {
                ("reserved", CONFIRM) => assert_eq!(after, [available, 0, sold + 2]),
                ("reserved", CANCEL) => assert_eq!(after, [available + 2, 0, sold]),
                ("confirmed" | "deducted", CANCEL) => {
                    assert_eq!(after, [available + 2, reserved, sold - 2]);
                }
                _ => assert_eq!(
                    server.digest(),
                    digest,
                    "{request} changes what is {history}"
                ),
            }
        }
    }
    assert_eq!(server.info_int("sluice_stock_conflicts"), conflicts);
}

#[test]
fn a_repeated_order_changes_nothing_however_often_it_comes() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    let first = client.run(DEDUCT);
    let digest = server.digest();
    for _ in 0..10 {
        assert_eq!(client.run(DEDUCT), first);
    }
    assert_eq!(server.digest(), digest);
    assert_eq!(counts(&mut client, "k"), [8, 0, 2]);
    // Options may come in another order.
    assert_eq!(client.run("STOCK.DEDUCT k 2 user u order o"), first);
    // Ids are compared as they are.
    assert_eq!(client.run("STOCK.DEDUCT k 2 ORDER O USER u"), 6);
}

#[test]
fn refusals_are_not_remembered() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 1 PERUSER 2");
    for line in [
        "STOCK.DEDUCT k 2 ORDER d USER u",
        "STOCK.RESERVE k 2 ORDER r PX 900000 USER v",
    ] {
        assert_eq!(client.run(line), SOLD_OUT, "{line}");
    }
    for line in ["STOCK.DEDUCT k 3 ORDER d2 USER u", "STOCK.ADD k -5 ORDER a"] {
        assert!(client.run(line).int() < 0, "{line}");
    }
    assert_eq!(client.run("STOCK.CONFIRM k c"), UNKNOWN);
    assert_eq!(number(&mut client, "k", "orders"), 0);
    client.run("STOCK.ADD k 9");
    assert_eq!(client.run("STOCK.DEDUCT k 2 ORDER d USER u"), 8);
    assert_eq!(client.run("STOCK.RESERVE k 2 ORDER r PX 900000 USER v"), 6);
    assert_eq!(client.run("STOCK.DEDUCT k 1 ORDER d2 USER w"), 5);
    assert_eq!(client.run("STOCK.ADD k -5 ORDER a"), 0);
    // A CONFIRM that came too early is forgotten too.
    client.run("STOCK.ADD k 1");
    assert_eq!(client.run("STOCK.RESERVE k 1 ORDER c PX 900000 USER w"), 0);
    assert_eq!(client.run("STOCK.CONFIRM k c"), 1);
}

#[test]
fn orders_are_known_to_their_own_stock_only() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.SET b 20");
    assert_eq!(client.run("STOCK.DEDUCT a 1 ORDER o"), 9);
    assert_eq!(client.run("STOCK.DEDUCT b 2 ORDER o"), 18);
    assert_eq!(client.run("STOCK.CANCEL a o"), 1);
    assert_eq!(state(&mut client, "b", "o"), "sold");
}

// RESERVE, CONFIRM, CANCEL

#[test]
fn a_reservation_is_confirmed() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    assert_eq!(client.run(RESERVE), 8);
    assert_eq!(counts(&mut client, "k"), [8, 2, 0]);
    assert_eq!(client.run(CONFIRM), 2);
    assert_eq!(counts(&mut client, "k"), [8, 0, 2]);
    assert_eq!(client.run(CONFIRM), 2);
    assert_eq!(counts(&mut client, "k"), [8, 0, 2]);
}

#[test]
fn a_reservation_is_cancelled() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.run(RESERVE);
    assert_eq!(client.run(CANCEL), 2);
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(client.run(CANCEL), 2);
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(client.run(CONFIRM), CLOSED);
    assert_eq!(client.run(RESERVE), CLOSED);
}

#[test]
fn a_sale_and_a_confirmed_reservation_are_refunded() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.run("STOCK.DEDUCT k 3 ORDER d");
    client.run("STOCK.RESERVE k 4 ORDER r PX 900000");
    client.run("STOCK.CONFIRM k r");
    assert_eq!(counts(&mut client, "k"), [3, 0, 7]);
    for (id, qty, left) in [("d", 3, [6, 0, 4]), ("r", 4, [10, 0, 0])] {
        for _ in 0..2 {
            assert_eq!(client.call(["STOCK.CANCEL", "k", id]), qty);
            assert_eq!(counts(&mut client, "k"), left);
        }
        assert_eq!(state(&mut client, "k", id), "cancelled");
        assert_eq!(client.call(["STOCK.CONFIRM", "k", id]), CLOSED);
    }
}

#[test]
fn a_cancellation_that_comes_first_stops_the_order_that_comes_late() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    for id in ["r", "d", "a"] {
        assert_eq!(client.call(["STOCK.CANCEL", "k", id]), UNKNOWN);
        assert_eq!(client.call(["STOCK.CANCEL", "k", id]), UNKNOWN);
        assert_eq!(state(&mut client, "k", id), "cancelled");
    }
    for line in [
        "STOCK.RESERVE k 2 ORDER r PX 900000",
        "STOCK.DEDUCT k 2 ORDER d",
        "STOCK.ADD k 2 ORDER a",
        "STOCK.CONFIRM k r",
    ] {
        assert_eq!(client.run(line), CLOSED, "{line}");
    }
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(number(&mut client, "k", "orders"), 3);
    // Where there is no stock, nothing can be marked.
    assert_eq!(client.run("STOCK.CANCEL none o"), UNKNOWN);
    assert_eq!(client.run("STOCK.CONFIRM none o"), UNKNOWN);
    assert_eq!(client.run("EXISTS none"), 0);
}

#[test]
fn a_reservation_ends_by_itself_and_not_before_its_deadline() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2");
    let replies = client.transact([
        "STOCK.RESERVE k 2 ORDER o PX 80 USER u",
        "STOCK.ORDER k o",
        "STOCK.DEDUCT k 1 USER u",
    ]);
    assert_eq!(replies[0], 8);
    let end = replies[1].field("expires_ms").int();
    assert_eq!(replies[2], OVER_LIMIT);
    // Nobody asks the stock itself, and it ends nevertheless.
    eventually(SOON, || server.info_int("sluice_stock_expired") == 1);
    assert!(now_ms(&mut client) >= end, "it has ended too early");
    assert_eq!(counts(&mut client, "k"), [10, 0, 0]);
    assert_eq!(state(&mut client, "k", "o"), "expired");
    for line in [
        "STOCK.CONFIRM k o",
        "STOCK.CANCEL k o",
        "STOCK.RESERVE k 2 ORDER o PX 80 USER u",
        "STOCK.DEDUCT k 2 ORDER o USER u",
    ] {
        assert_eq!(client.run(line), CLOSED, "{line}");
    }
    // The user may buy again.
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), 8);
    assert_eq!(number(&mut client, "k", "users"), 1);
}

#[test]
fn a_reservation_that_was_confirmed_or_cancelled_does_not_end() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.transact([
        "STOCK.RESERVE k 2 ORDER confirmed PX 30",
        "STOCK.CONFIRM k confirmed",
        "STOCK.RESERVE k 3 ORDER cancelled PX 30",
        "STOCK.CANCEL k cancelled",
        "STOCK.RESERVE k 1 ORDER clock PX 30",
    ]);
    await_state(&mut client, "k", "clock", "expired");
    assert_eq!(counts(&mut client, "k"), [8, 0, 2]);
    assert_eq!(state(&mut client, "k", "confirmed"), "sold");
    assert_eq!(state(&mut client, "k", "cancelled"), "cancelled");
    assert_eq!(server.info_int("sluice_stock_expired"), 1);
}

#[test]
fn ten_thousand_reservations_end_by_themselves() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10000");
    let reserve = |number| format!("STOCK.RESERVE k 1 ORDER o{number} PX 300");
    let replies = client.run_all((0..10_000).map(reserve));
    assert!(replies.iter().all(|reply| reply.int() >= 0));
    eventually(SOON, || counts(&mut client, "k") == [10_000, 0, 0]);
    assert_eq!(server.info_int("sluice_stock_expired"), 10_000);
    assert_eq!(number(&mut client, "k", "ver"), 20_001);
}

/// The order is closed the moment its time is up, also if the server has not come round to it.
#[test]
fn a_reservation_is_over_at_its_deadline_in_the_midst_of_a_transaction() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2");
    for (request, expected) in [
        ("STOCK.CONFIRM k o", CLOSED),
        ("STOCK.CANCEL k o", CLOSED),
        ("STOCK.DEDUCT k 2 USER u", 8),
        ("STOCK.DEDUCT k 10 USER big", OVER_LIMIT),
        ("STOCK.ADD k -10", 0),
    ] {
        client.run("STOCK.SET k 10 PERUSER 2");
        let lines = [
            "STOCK.RESERVE k 2 ORDER o PX 5 USER u",
            "DEBUG SLEEP 0.02",
            request,
            "STOCK.ORDER k o",
        ];
        let replies = client.transact(lines);
        assert_eq!(replies[2], expected, "{request}");
        assert_eq!(replies[3].field("state"), &"expired", "{request}");
    }
}

// PERUSER

#[test]
fn nobody_gets_more_than_the_limit_for_each_user() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 100 PERUSER 3");
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), 98);
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), OVER_LIMIT);
    assert_eq!(
        client.run("STOCK.RESERVE k 2 ORDER r PX 900000 USER u"),
        OVER_LIMIT
    );
    assert_eq!(client.run("STOCK.RESERVE k 1 ORDER r PX 900000 USER u"), 97);
    assert_eq!(client.run("STOCK.DEDUCT k 1 USER u"), OVER_LIMIT);
    assert_eq!(client.run("STOCK.DEDUCT k 4 USER v"), OVER_LIMIT);
    assert_eq!(client.run("STOCK.DEDUCT k 3 USER v"), 94);
    assert_eq!(number(&mut client, "k", "users"), 2);
    // What was reserved counts as well when it is sold.
    client.run("STOCK.CONFIRM k r");
    assert_eq!(client.run("STOCK.DEDUCT k 1 USER u"), OVER_LIMIT);
    // A repetition takes nothing: the limit does not count for it.
    assert_eq!(client.run("STOCK.RESERVE k 1 ORDER r PX 900000 USER u"), 97);
    assert_eq!(counts(&mut client, "k"), [94, 0, 6]);
}

#[test]
fn cancelled_orders_give_the_users_allowance_back() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2");
    for (id, take) in [
        ("d", "STOCK.DEDUCT k 2 ORDER d USER u"),
        ("r", "STOCK.RESERVE k 2 ORDER r PX 900000 USER u"),
    ] {
        assert_eq!(client.run(take), 8);
        assert_eq!(client.run("STOCK.DEDUCT k 1 USER u"), OVER_LIMIT);
        for _ in 0..2 {
            assert_eq!(client.call(["STOCK.CANCEL", "k", id]), 2);
        }
        assert_eq!(number(&mut client, "k", "users"), 0);
    }
    client.run("STOCK.RESERVE k 2 ORDER c PX 900000 USER u");
    client.run("STOCK.CONFIRM k c");
    assert_eq!(client.run("STOCK.DEDUCT k 1 USER u"), OVER_LIMIT);
    client.run("STOCK.CANCEL k c");
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), 8);
}

#[test]
fn a_stock_with_a_limit_wants_to_know_the_user() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2");
    client.run("STOCK.SET free 10");
    let digest = server.digest();
    for line in [
        "STOCK.DEDUCT k 1",
        "STOCK.DEDUCT k 1 ORDER o",
        "STOCK.RESERVE k 1 ORDER o PX 900000",
        "STOCK.MDEDUCT 2 free 1 k 1",
        "STOCK.MRESERVE 2 free 1 k 1 ORDER o PX 900000",
    ] {
        assert_eq!(client.run(line).err(), USER_REQUIRED, "{line}");
    }
    assert_eq!(server.digest(), digest);
    // Others need no user.
    assert_eq!(client.run("STOCK.ADD k 1"), 11);
    client.run("STOCK.RESERVE k 1 ORDER o PX 900000 USER u");
    assert_eq!(client.run("STOCK.CONFIRM k o"), 1);
    assert_eq!(client.run("STOCK.CANCEL k o"), 1);
}

#[test]
fn without_a_limit_users_are_noted_and_not_counted() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    assert_eq!(client.run("STOCK.DEDUCT k 5 ORDER o USER u"), 5);
    assert_eq!(client.run("STOCK.DEDUCT k 5 USER u"), 0);
    assert_eq!(client.run("STOCK.ORDER k o").field("user"), &"u");
    assert_eq!(number(&mut client, "k", "users"), 0);
}

// RETAIN

#[test]
fn final_orders_are_forgotten_and_live_reservations_are_not() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 100 RETAIN 150");
    for line in [
        "STOCK.RESERVE k 1 ORDER live PX 900000",
        "STOCK.DEDUCT k 2 ORDER sold",
        "STOCK.RESERVE k 3 ORDER confirmed PX 900000",
        "STOCK.CONFIRM k confirmed",
        "STOCK.RESERVE k 4 ORDER cancelled PX 900000",
        "STOCK.CANCEL k cancelled",
        "STOCK.CANCEL k marked",
        "STOCK.ADD k 5 ORDER added",
    ] {
        client.must(line);
    }
    client.run("STOCK.RESERVE k 6 ORDER expired PX 1");
    eventually(SOON, || number(&mut client, "k", "orders") == 1);
    assert_eq!(state(&mut client, "k", "live"), "reserved");
    assert_eq!(counts(&mut client, "k"), [99, 1, 5]);
    for id in [
        "sold",
        "confirmed",
        "cancelled",
        "marked",
        "added",
        "expired",
    ] {
        assert_eq!(state(&mut client, "k", id), "none", "{id}");
    }
    // Their ids are free again, and nothing of theirs can be undone.
    assert_eq!(client.run("STOCK.CONFIRM k sold"), UNKNOWN);
    assert_eq!(client.run("STOCK.DEDUCT k 7 ORDER cancelled"), 92);
    assert_eq!(client.run("STOCK.CONFIRM k live"), 1);
}

#[test]
fn an_order_is_remembered_for_the_full_time_after_it_is_final() {
    const RETAIN: i64 = 200;
    let (_server, mut client) = server_and_client();
    client.call(["STOCK.SET", "k", "100", "RETAIN", &RETAIN.to_string()]);
    client.run("STOCK.DEDUCT k 1 ORDER first");
    client.run("STOCK.RESERVE k 1 ORDER second PX 900000");
    let sold = now_ms(&mut client);
    // A sale that is given back is final once more.
    eventually(SOON, || now_ms(&mut client) > sold + RETAIN / 2);
    let before = now_ms(&mut client);
    let refunded = client.run("STOCK.CANCEL k first") == 1;
    client.run("STOCK.CONFIRM k second");
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    let after = now_ms(&mut client);
    assert!(
        after >= before + RETAIN,
        "forgotten after {} ms",
        after - before
    );
    // On a machine that is too slow for this, the sale was forgotten before.
    let sold = if refunded { 1 } else { 2 };
    assert_eq!(counts(&mut client, "k"), [100 - sold, 0, sold]);
}

#[test]
fn what_users_have_is_remembered_longer_than_their_orders() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 2 RETAIN 1");
    client.run("STOCK.DEDUCT k 2 ORDER o USER u");
    eventually(SOON, || number(&mut client, "k", "orders") == 0);
    assert_eq!(client.run("STOCK.DEDUCT k 1 USER u"), OVER_LIMIT);
    assert_eq!(number(&mut client, "k", "users"), 1);
}

// M commands

#[test]
fn several_stocks_are_sold_at_once() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.SET b 20");
    client.run("STOCK.SET c 30");
    let reply = client.run("STOCK.MDEDUCT 3 a 1 b 2 c 3");
    assert_eq!(ints(&reply), [9, 18, 27]);
    let reply = client.run("STOCK.MDEDUCT 2 c 1 a 1 ORDER o USER u");
    assert_eq!(ints(&reply), [26, 8]);
    for key in ["a", "c"] {
        assert_eq!(state(&mut client, key, "o"), "sold");
    }
    assert_eq!(state(&mut client, "b", "o"), "none");
    assert_eq!(ints(&client.run("STOCK.MDEDUCT 1 b 5")), [13]);
    assert_eq!(counts(&mut client, "a"), [8, 0, 2]);
    assert_eq!(counts(&mut client, "b"), [13, 0, 7]);
    assert_eq!(counts(&mut client, "c"), [26, 0, 4]);
}

#[test]
fn several_stocks_are_reserved_confirmed_and_cancelled_at_once() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.SET b 20");
    let reserve = "STOCK.MRESERVE 2 a 1 b 2 ORDER o PX 900000 USER u";
    for _ in 0..2 {
        assert_eq!(ints(&client.run(reserve)), [9, 18]);
    }
    assert_eq!(counts(&mut client, "b"), [18, 2, 0]);
    for _ in 0..2 {
        assert_eq!(ints(&client.run("STOCK.MCONFIRM 2 b a o")), [2, 1]);
    }
    assert_eq!(counts(&mut client, "a"), [9, 0, 1]);
    assert_eq!(ints(&client.run(reserve)), [9, 18]);
    for _ in 0..2 {
        assert_eq!(ints(&client.run("STOCK.MCANCEL 2 a b o")), [1, 2]);
    }
    assert_eq!(counts(&mut client, "a"), [10, 0, 0]);
    assert_eq!(counts(&mut client, "b"), [20, 0, 0]);
    assert_eq!(ints(&client.run(reserve)), [CLOSED, CLOSED]);
    assert_eq!(
        ints(&client.run("STOCK.MCONFIRM 2 a b o")),
        [CLOSED, CLOSED]
    );
    // Each stock can be dealt with alone, too.
    client.run("STOCK.MRESERVE 2 a 1 b 2 ORDER p PX 900000");
    assert_eq!(client.run("STOCK.CONFIRM a p"), 1);
    assert_eq!(client.run("STOCK.CANCEL b p"), 2);
    assert_eq!(counts(&mut client, "a"), [9, 0, 1]);
    assert_eq!(counts(&mut client, "b"), [20, 0, 0]);
}

#[test]
fn a_reservation_of_several_stocks_ends_in_all_of_them() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.SET b 20");
    client.run("STOCK.MRESERVE 2 a 1 b 2 ORDER o PX 30");
    for key in ["a", "b"] {
        await_state(&mut client, key, "o", "expired");
    }
    assert_eq!(counts(&mut client, "a"), [10, 0, 0]);
    assert_eq!(counts(&mut client, "b"), [20, 0, 0]);
    for line in ["STOCK.MCONFIRM 2 a b o", "STOCK.MCANCEL 2 a b o"] {
        assert_eq!(ints(&client.run(line)), [CLOSED, CLOSED], "{line}");
    }
}

#[test]
fn if_one_of_several_stocks_refuses_nothing_is_done() {
    let (server, mut client) = server_and_client();
    for line in [
        "STOCK.SET a 10",
        "STOCK.SET b 20 PERUSER 3",
        "STOCK.SET empty 0",
        "STOCK.CANCEL a closed",
        "STOCK.CANCEL b closed",
        "STOCK.DEDUCT b 2 USER u",
        "STOCK.DEDUCT b 1 ORDER other USER w",
        "STOCK.RESERVE b 1 ORDER live PX 900000 USER w",
        "STOCK.CANCEL a half",
        "SET string v",
    ] {
        client.must(line);
    }
    let digest = server.digest();
    for (line, expected) in [
        ("MDEDUCT 2 a 1 empty 1", [10, SOLD_OUT]),
        ("MDEDUCT 2 empty 1 a 1 ORDER o", [SOLD_OUT, 10]),
        ("MDEDUCT 2 a 11 empty 1", [SOLD_OUT, SOLD_OUT]),
        ("MDEDUCT 2 a 1 none 1", [10, UNKNOWN]),
        ("MDEDUCT 2 a 1 b 2 USER u", [10, OVER_LIMIT]),
        ("MDEDUCT 2 b 2 a 11 USER v", [16, SOLD_OUT]),
        ("MDEDUCT 2 a 1 b 1 ORDER closed USER v", [CLOSED, CLOSED]),
        ("MRESERVE 2 a 1 empty 1 ORDER o PX 9000", [10, SOLD_OUT]),
        ("MRESERVE 2 none 1 a 1 ORDER o PX 9000", [UNKNOWN, 10]),
        (
            "MRESERVE 2 a 1 b 3 ORDER o PX 9000 USER u",
            [10, OVER_LIMIT],
        ),
        ("MCONFIRM 2 a b closed", [CLOSED, CLOSED]),
        ("MCONFIRM 2 a b unknown", [UNKNOWN, UNKNOWN]),
        ("MCONFIRM 2 none a closed", [UNKNOWN, CLOSED]),
        ("MCONFIRM 2 none b live", [UNKNOWN, 1]),
        ("MCANCEL 2 none b live", [UNKNOWN, 1]),
        ("MCANCEL 2 b none other", [1, UNKNOWN]),
    ] {
        let reply = client.run(&format!("STOCK.{line}"));
        assert_eq!(ints(&reply), expected, "{line}");
        assert_eq!(server.digest(), digest, "{line} changes something");
    }
    for line in [
        "STOCK.MDEDUCT 2 a 1 string 1",
        "STOCK.MRESERVE 2 string 1 a 1 ORDER o PX 9000",
        "STOCK.MCONFIRM 2 b string live",
        "STOCK.MCANCEL 3 b a string live",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
        assert_eq!(server.digest(), digest, "{line} changes something");
    }
}

#[test]
fn an_order_that_only_some_stocks_know_is_a_conflict() {
    let (server, mut client) = server_and_client();
    for line in [
        "STOCK.SET a 10",
        "STOCK.SET b 20",
        "STOCK.SET c 30",
        "STOCK.MDEDUCT 2 a 1 b 1 ORDER sold",
        "STOCK.MRESERVE 2 a 1 b 1 ORDER live PX 900000",
    ] {
        client.must(line);
    }
    let digest = server.digest();
    for line in [
        "STOCK.MDEDUCT 2 a 1 c 1 ORDER sold",
        "STOCK.MDEDUCT 2 c 1 a 1 ORDER sold",
        "STOCK.MDEDUCT 3 a 1 b 1 c 1 ORDER sold",
        "STOCK.MRESERVE 3 a 1 c 1 b 1 ORDER live PX 900000",
        "STOCK.MCONFIRM 3 a b c live",
        "STOCK.MCONFIRM 2 c b sold",
        "STOCK.MCANCEL 3 c a b live",
        "STOCK.MCANCEL 2 a c sold",
        // And what is known was something else.
        "STOCK.MDEDUCT 2 a 1 b 2 ORDER sold",
        "STOCK.MDEDUCT 2 a 1 b 1 ORDER live",
        "STOCK.MDEDUCT 2 a 1 b 1 ORDER sold USER u",
        "STOCK.MRESERVE 2 a 1 b 1 ORDER live PX 900001",
        "STOCK.MRESERVE 2 a 1 b 1 ORDER sold PX 900000",
    ] {
        assert_eq!(client.run(line).err(), CONFLICT, "{line}");
        assert_eq!(server.digest(), digest, "{line} changes something");
    }
    // All of those that know it, in another order.
    assert_eq!(
        ints(&client.run("STOCK.MDEDUCT 2 b 1 a 1 ORDER sold")),
        [19, 9]
    );
}

/// One of the stocks has closed the order, and another one does not know it.
#[test]
fn an_order_that_only_some_stocks_have_closed_is_a_conflict_at_its_end() {
    let (server, mut client) = server_and_client();
    for end in ["cancelled", "marked", "expired"] {
        client.run("STOCK.SET a 10");
        client.run("STOCK.SET b 20");
        match end {
            "expired" => {
                client.must("STOCK.RESERVE a 1 ORDER o PX 1");
                await_state(&mut client, "a", "o", "expired");
            }
            end => {
                if end == "cancelled" {
                    client.must("STOCK.DEDUCT a 2 ORDER o");
                }
                client.run("STOCK.CANCEL a o");
            }
        }
        let digest = server.digest();
        for line in [
            "STOCK.MCANCEL 2 a b o",
            "STOCK.MCANCEL 2 b a o",
            "STOCK.MCONFIRM 2 a b o",
        ] {
            assert_eq!(client.run(line).err(), CONFLICT, "{line}, {end}");
            assert_eq!(server.digest(), digest, "{line} changes something");
        }
        // It is not sold again, whoever else knows it.
        let replies = client.run("STOCK.MDEDUCT 2 a 1 b 1 ORDER o");
        assert_eq!(ints(&replies), [CLOSED, 20]);
    }
}

#[test]
fn a_closed_order_of_a_stock_with_user_limits_is_closed_also_without_a_user() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 5");
    client.must("STOCK.DEDUCT k 1 ORDER o USER u");
    for line in ["STOCK.DEDUCT k 1 ORDER o", "STOCK.DEDUCT k 1"] {
        assert_eq!(client.run(line).err(), USER_REQUIRED, "{line}");
    }
    client.must("STOCK.CANCEL k o");
    for line in [
        "STOCK.DEDUCT k 1 ORDER o",
        "STOCK.RESERVE k 1 ORDER o PX 1000",
        "STOCK.DEDUCT k 1 ORDER o USER other",
    ] {
        assert_eq!(client.run(line), CLOSED, "{line}");
    }
}

#[test]
fn a_cancellation_of_several_stocks_that_comes_first_marks_all() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.SET b 20");
    for _ in 0..2 {
        assert_eq!(
            ints(&client.run("STOCK.MCANCEL 2 a b o")),
            [UNKNOWN, UNKNOWN]
        );
    }
    let late = "STOCK.MRESERVE 2 a 1 b 1 ORDER o PX 900000";
    assert_eq!(ints(&client.run(late)), [CLOSED, CLOSED]);
    assert_eq!(client.run("STOCK.DEDUCT a 1 ORDER o"), CLOSED);
    assert_eq!(counts(&mut client, "a"), [10, 0, 0]);
}

#[test]
fn keys_of_one_command_are_all_different() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET a 10");
    client.run("STOCK.RESERVE a 1 ORDER o PX 900000");
    let digest = server.digest();
    for line in [
        "STOCK.MDEDUCT 2 a 1 a 1",
        "STOCK.MDEDUCT 3 a 1 b 1 a 2",
        "STOCK.MRESERVE 2 a 1 a 1 ORDER p PX 900000",
        "STOCK.MCONFIRM 2 a a o",
        "STOCK.MCANCEL 3 a b a o",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
    }
    let many: Vec<_> = (0..300).map(|number| format!("k{number}")).collect();
    let mut command = vec!["STOCK.MCANCEL", "301"];
    command.extend(many.iter().map(String::as_str));
    command.extend(["k77", "o"]);
    assert_eq!(client.call(command).err(), SYNTAX);
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_thousand_stocks_are_sold_in_one_step() {
    let (_server, mut client) = server_and_client();
    let keys: Vec<_> = (0..1000).map(|number| format!("k{number}")).collect();
    client.pipeline(keys.iter().map(|key| ["STOCK.SET", key, "5"]));
    let mut reserve = vec!["STOCK.MRESERVE", "1000"];
    reserve.extend(keys.iter().flat_map(|key| [key.as_str(), "2"]));
    reserve.extend(["ORDER", "o", "PX", "900000"]);
    assert_eq!(ints(&client.call(reserve)), [3; 1000]);
    let mut confirm = vec!["STOCK.MCONFIRM", "1000"];
    confirm.extend(keys.iter().map(String::as_str));
    confirm.push("o");
    assert_eq!(ints(&client.call(confirm)), [2; 1000]);
    for key in ["k0", "k999"] {
        assert_eq!(counts(&mut client, key), [3, 0, 2]);
    }
}

// Limits

#[test]
fn quantities_go_to_two_to_the_53_and_no_further() {
    let (_server, mut client) = server_and_client();
    let most = UNSAFE_INTEGER - 1;
    assert_eq!(client.call(["STOCK.SET", "k", MOST]), "OK");
    assert_eq!(client.run("STOCK.GET k"), most);
    let beyond = |reply: Value| {
        let text = reply.err().to_owned();
        assert!(text.starts_with("ERR delta must be between "), "{text}");
    };
    beyond(client.run("STOCK.ADD k 1"));
    assert_eq!(client.run("STOCK.DEDUCT k 5 ORDER o"), most - 5);
    client.run("STOCK.RESERVE k 5 ORDER r PX 900000");
    // Sold and reserved are part of the total.
    beyond(client.run("STOCK.ADD k 1"));
    beyond(client.run("STOCK.ADD k 1 ORDER a"));
    assert_eq!(client.run("STOCK.ADD k -1"), most - 11);
    assert_eq!(client.run("STOCK.ADD k 1"), most - 10);
    client.run("STOCK.SET k 0");
    assert_eq!(client.call(["STOCK.ADD", "k", MOST]), most);
    assert_eq!(
        client.call(["STOCK.RESERVE", "k", MOST, "ORDER", "r", "PX", "900000"]),
        0
    );
    assert_eq!(client.run("STOCK.CONFIRM k r"), most);
    assert_eq!(client.run("STOCK.CANCEL k r"), most);
    assert_eq!(client.call(["STOCK.ADD", "k", &format!("-{MOST}")]), 0);
}

#[test]
fn numbers_outside_their_range_are_named() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    let digest = server.digest();
    let ten_years = "315360000000";
    for (line, expected) in [
        (
            "STOCK.SET k -1",
            format!("ERR total must be between 0 and {MOST}"),
        ),
        (
            "STOCK.SET k 9007199254740992",
            format!("ERR total must be between 0 and {MOST}"),
        ),
        (
            "STOCK.SET k 5 PERUSER 0",
            "ERR PERUSER must be between 1 and ".into(),
        ),
        (
            "STOCK.SET k 5 RETAIN 0",
            "ERR RETAIN must be between 1 and ".into(),
        ),
        (
            "STOCK.SET k 5 EVENTS s MAXLEN 0",
            "ERR MAXLEN must be between 1 and ".into(),
        ),
        (
            "STOCK.ADD k -9007199254740992",
            "ERR delta must be between -9007199254740991 and ".into(),
        ),
        (
            "STOCK.ADD k 9007199254740992",
            "ERR delta must be between ".into(),
        ),
        (
            "STOCK.DEDUCT k 0",
            format!("ERR qty must be between 1 and {MOST}"),
        ),
        (
            "STOCK.DEDUCT k -1",
            format!("ERR qty must be between 1 and {MOST}"),
        ),
        (
            "STOCK.RESERVE k 0 ORDER o PX 5",
            format!("ERR qty must be between 1 and {MOST}"),
        ),
        (
            "STOCK.RESERVE k 1 ORDER o PX 0",
            format!("ERR PX must be between 1 and {ten_years}"),
        ),
        (
            "STOCK.RESERVE k 1 ORDER o PX 315360000001",
            format!("ERR PX must be between 1 and {ten_years}"),
        ),
        (
            "STOCK.MDEDUCT 2 k 1 other 0",
            format!("ERR qty must be between 1 and {MOST}"),
        ),
        (
            "STOCK.MDEDUCT 0 k 1",
            "ERR numkeys must be between 1 and 1024".into(),
        ),
        ("STOCK.DEDUCT k x", NOT_AN_INTEGER.into()),
        ("STOCK.DEDUCT k 1.0", NOT_AN_INTEGER.into()),
        ("STOCK.SET k 9223372036854775808", NOT_AN_INTEGER.into()),
        ("STOCK.MDEDUCT x k 1", NOT_AN_INTEGER.into()),
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with(&expected), "{line}: {reply:?}");
        assert_eq!(server.digest(), digest, "{line}");
    }
    client.must(&format!("STOCK.RESERVE k 1 ORDER o PX {ten_years}"));
    client.must(&format!(
        "STOCK.SET k {MOST} PERUSER {MOST} RETAIN {ten_years} EVENTS s MAXLEN {MOST}"
    ));
    assert_eq!(client.call(["STOCK.DEDUCT", "k", MOST, "USER", "u"]), 0);
}

#[test]
fn missing_repeated_and_unknown_options_are_syntax_errors() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.run("SET counter 5");
    let digest = server.digest();
    for line in [
        "STOCK.RESERVE k 1 ORDER o PX 5 PX 5",
        "STOCK.RESERVE k 1 ORDER o USER u USER u",
        "STOCK.RESERVE k 1 ORDER o ORDER p",
        "STOCK.RESERVE k 1 PX 5 USER u",
        "STOCK.RESERVE k 1 ORDER o USER u",
        "STOCK.MRESERVE 1 k 1 PX 5 USER u",
        "STOCK.MRESERVE 1 k 1 ORDER o USER u",
        "STOCK.MRESERVE 2 k 1 ORDER o PX 5", // fewer keys than numkeys says
        "STOCK.DEDUCT k 1 PX 5",
        "STOCK.DEDUCT k 1 ORDER",
        "STOCK.DEDUCT k 1 o",
        "STOCK.ADD k 1 USER u",
        "STOCK.SET k 5 MAXLEN 5",
        "STOCK.SET k 5 EVENTS",
        "STOCK.SET k 5 EVENTS s EVENTS s",
        "STOCK.SET k 5 NX NX",
        "STOCK.SET k 5 BOGUS",
        "STOCK.IMPORT counter NX",
        "STOCK.IMPORT counter MAXLEN 5",
        "STOCK.MDEDUCT 2 k 1",
        "STOCK.MDEDUCT 2 k 1 j",
        "STOCK.MDEDUCT 1 k 1 j 1",
        "STOCK.MCONFIRM 2 k o",
        "STOCK.MCANCEL 1 k o p",
    ] {
        assert_eq!(client.run(line).err(), SYNTAX, "{line}");
        assert_eq!(server.digest(), digest, "{line}");
    }
}

#[test]
fn orders_and_users_have_one_to_512_bytes() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 5");
    let digest = server.digest();
    let (longest, too_long) = ("x".repeat(512), "x".repeat(513));
    for id in ["", &too_long] {
        for command in [
            vec!["STOCK.DEDUCT", "k", "1", "USER", "u", "ORDER", id],
            vec!["STOCK.DEDUCT", "k", "1", "USER", id],
            vec!["STOCK.ADD", "k", "1", "ORDER", id],
            vec![
                "STOCK.RESERVE",
                "k",
                "1",
                "PX",
                "5",
                "USER",
                "u",
                "ORDER",
                id,
            ],
            vec!["STOCK.CONFIRM", "k", id],
            vec!["STOCK.CANCEL", "k", id],
            vec!["STOCK.ORDER", "k", id],
            vec!["STOCK.MDEDUCT", "1", "k", "1", "USER", id],
            vec!["STOCK.MCANCEL", "1", "k", id],
        ] {
            let reply = client.call(&command);
            let expected = " must be between 1 and 512";
            assert!(reply.err().ends_with(expected), "{command:?}: {reply:?}");
        }
        assert_eq!(server.digest(), digest);
    }
    let deduct = [
        "STOCK.DEDUCT",
        "k",
        "1",
        "ORDER",
        &longest,
        "USER",
        &longest,
    ];
    assert_eq!(client.call(deduct), 9);
    let order = client.call(["STOCK.ORDER", "k", &longest]);
    assert_eq!(order.field("user"), &longest.as_str());
    assert_eq!(client.call(["STOCK.CANCEL", "k", &longest]), 1);
}

#[test]
fn keys_orders_and_users_are_arbitrary_bytes() {
    let (_server, mut client) = server_and_client();
    let strange: [&[u8]; 7] = [
        b"\0",
        b"a\0b",
        b"a",
        b"\xff\xfe",
        b"%s%n%d",
        b"\r\n$5\r\n",
        "h\u{f6}lle".as_bytes(),
    ];
    for key in strange {
        client.call([
            b"STOCK.SET".as_slice(),
            key,
            b"100",
            b"PERUSER",
            b"9",
            b"EVENTS",
            b"stream",
        ]);
        for id in strange {
            let left = client.call([
                b"STOCK.RESERVE".as_slice(),
                key,
                b"1",
                b"ORDER",
                id,
                b"PX",
                b"900000",
                b"USER",
                id,
            ]);
            let order = client.call([b"STOCK.ORDER", key, id]);
            assert_eq!(order.field("user").bytes(), id);
            assert_eq!(client.call([b"STOCK.CONFIRM", key, id]), 1, "{left:?}");
        }
        let info = client.call([b"STOCK.INFO", key]);
        assert_eq!(info.field("users"), &(strange.len() as i64));
        assert_eq!(info.field("sold"), &(strange.len() as i64));
    }
    let all = entries(&mut client, "stream");
    let told: Vec<_> = all.iter().filter(|entry| entry.op == "confirm").collect();
    assert_eq!(told.len(), strange.len() * strange.len());
    assert!(strange.iter().all(|id| {
        told.iter()
            .any(|entry| entry.order == *id && entry.user == *id)
    }));
    assert!(
        strange
            .iter()
            .all(|key| told.iter().any(|entry| entry.sku == *key))
    );
    // What looks like an option is none in its place; the empty key is a key.
    client.run("STOCK.SET ORDER 5 EVENTS EVENTS");
    assert_eq!(client.run("STOCK.DEDUCT ORDER 1 USER ORDER ORDER USER"), 4);
    assert_eq!(client.run("STOCK.ORDER ORDER USER").field("user"), &"ORDER");
    assert_eq!(client.run("XLEN EVENTS"), 2);
    assert_eq!(client.call(["STOCK.SET", "", "5"]), "OK");
    assert_eq!(client.call(["STOCK.DEDUCT", "", "5"]), 0);
}

// What is shown

#[test]
fn info_and_order_are_maps_in_resp3_and_flat_in_resp2() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 PERUSER 5 RETAIN 60000 EVENTS s MAXLEN 70");
    client.run("STOCK.RESERVE k 2 ORDER r PX 900000 USER u");
    client.run("STOCK.DEDUCT k 1 ORDER d USER u");
    let info = [
        ("total", 10),
        ("available", 7),
        ("reserved", 2),
        ("sold", 1),
        ("orders", 2),
        ("users", 1),
        ("peruser", 5),
        ("retain_ms", 60_000),
        ("maxlen", 70),
        ("ver", 3),
    ];
    for protocol in [2, 3] {
        client.call(["HELLO", &protocol.to_string()]);
        let is_map = |reply: &Value| matches!(reply, Value::Map(_));
        let reply = client.run("STOCK.INFO k");
        assert_eq!(is_map(&reply), protocol == 3);
        for (field, value) in info {
            assert_eq!(reply.field(field), &value, "{field}");
        }
        assert_eq!(reply.field("events"), &"s");
        assert_eq!(reply.fields().len(), 11);

        let now = now_ms(&mut client);
        let order = client.run("STOCK.ORDER k r");
        assert_eq!(is_map(&order), protocol == 3);
        assert_eq!(order.field("state"), &"reserved");
        assert_eq!(order.field("qty"), &2);
        assert_eq!(order.field("user"), &"u");
        let created = order.field("created_ms").int();
        assert!((now - 60_000..=now).contains(&created), "{created}");
        assert_eq!(order.field("expires_ms"), &(created + 900_000));
        let order = client.run("STOCK.ORDER k d");
        assert_eq!(order.field("state"), &"sold");
        assert!(order.get("expires_ms").is_none());
        assert!(client.run("STOCK.ORDER k unknown").is_nil());
        assert!(client.run("STOCK.INFO none").is_nil());
        assert!(client.run("STOCK.GET none").is_nil());
        assert!(client.run("STOCK.MGET none").array()[0].is_nil());
        assert!(client.run("STOCK.SET k 5 NX").is_nil());
    }
}

#[test]
fn an_order_shows_what_became_of_it() {
    let (_server, mut client) = server_and_client();
    for (history, commands) in HISTORIES {
        client.run("STOCK.SET k 10");
        for command in commands {
            client.must(command);
        }
        if history == "expired" {
            await_state(&mut client, "k", "o", "expired");
        }
        let expected = match history {
            "reserved" => "reserved",
            "confirmed" | "deducted" => "sold",
            "expired" => "expired",
            "added" => continue,
            _ => "cancelled",
        };
        let order = client.run("STOCK.ORDER k o");
        assert_eq!(order.field("state"), &expected, "{history}");
        let qty = if history == "marked" { 0 } else { 2 };
        assert_eq!(order.field("qty"), &qty, "{history}");
        let user = if history == "marked" { "" } else { "u" };
        assert_eq!(order.field("user"), &user, "{history}");
    }
}

#[test]
fn info_counts_what_happens() {
    const COUNTERS: [&str; 9] = [
        "deducted",
        "reserved",
        "confirmed",
        "cancelled",
        "expired",
        "sold_out",
        "user_limited",
        "duplicates",
        "conflicts",
    ];
    let (_server, mut client) = server_and_client();
    let mut last = [0; 9];
    let mut step = |client: &mut Raw, line: &str, expected: &[(&str, i64)]| {
        client.run(line);
        let info = client.run("INFO sluice");
        let now = COUNTERS.map(|name| field_of(&info, &format!("sluice_stock_{name}")));
        let grown: Vec<_> = COUNTERS
            .into_iter()
            .zip(now.iter().zip(last))
            .filter(|(_, (now, last))| **now != *last)
            .map(|(name, (now, last))| (name, now - last))
            .collect();
        assert_eq!(grown, expected, "{line}");
        last = now;
    };
    let info = client.run("INFO sluice").text().to_owned();
    let is_section = |line: &str| line.starts_with('#') && line.contains("stock");
    assert!(info.lines().any(is_section), "{info}");
    for (line, expected) in [
        ("STOCK.SET k 10 PERUSER 3", &[][..]),
        ("STOCK.ADD k 1", &[]),
        ("STOCK.DEDUCT k 1 USER u", &[("deducted", 1)]),
        ("STOCK.DEDUCT k 1 ORDER d USER u", &[("deducted", 1)]),
        ("STOCK.DEDUCT k 1 ORDER d USER u", &[("duplicates", 1)]),
        ("STOCK.DEDUCT k 2 ORDER d USER u", &[("conflicts", 1)]),
        ("STOCK.DEDUCT k 2 USER u", &[("user_limited", 1)]),
        ("STOCK.DEDUCT k 100 USER v", &[("sold_out", 1)]),
        ("STOCK.ADD k -100", &[("sold_out", 1)]),
        (
            "STOCK.RESERVE k 2 ORDER r PX 900000 USER v",
            &[("reserved", 1)],
        ),
        (
            "STOCK.RESERVE k 2 ORDER r PX 900000 USER v",
            &[("duplicates", 1)],
        ),
        ("STOCK.CONFIRM k r", &[("confirmed", 1)]),
        ("STOCK.CONFIRM k r", &[("duplicates", 1)]),
        ("STOCK.CANCEL k r", &[("cancelled", 1)]),
        ("STOCK.CANCEL k r", &[("duplicates", 1)]),
        ("STOCK.CANCEL k d", &[("cancelled", 1)]),
        ("STOCK.CONFIRM k d", &[]),
        ("STOCK.CONFIRM k unknown", &[]),
        ("STOCK.DEDUCT none 1", &[]),
        ("STOCK.DEDUCT k 1", &[]),
        ("STOCK.GET k", &[]),
    ] {
        step(&mut client, line, expected);
    }
    client.run("STOCK.RESERVE k 1 ORDER e PX 20 USER v");
    await_state(&mut client, "k", "e", "expired");
    step(&mut client, "PING", &[("reserved", 1), ("expired", 1)]);
}

#[test]
fn changes_are_keyspace_events_and_refusals_are_not() {
    let (server, mut client) = server_and_client();
    let mut events = KeyspaceEvents::of(&server, "KEd");
    for (line, expected) in [
        ("STOCK.SET k 10 PERUSER 9", &["stock.set k"][..]),
        ("STOCK.SET k 10 NX", &[]),
        ("STOCK.ADD k 5", &["stock.add k"]),
        ("STOCK.ADD k 5 ORDER a", &["stock.add k"]),
        ("STOCK.ADD k 5 ORDER a", &[]),
        ("STOCK.DEDUCT k 1 USER u", &["stock.deduct k"]),
        ("STOCK.DEDUCT k 100 USER u", &[]),
        ("STOCK.DEDUCT k 9 USER u", &[]),
        ("STOCK.DEDUCT k 1", &[]),
        ("STOCK.DEDUCT none 1", &[]),
        (
            "STOCK.RESERVE k 2 ORDER r PX 900000 USER u",
            &["stock.reserve k"],
        ),
        ("STOCK.RESERVE k 2 ORDER r PX 900000 USER u", &[]),
        ("STOCK.RESERVE k 3 ORDER r PX 900000 USER u", &[]),
        ("STOCK.CONFIRM k r", &["stock.confirm k"]),
        ("STOCK.CONFIRM k r", &[]),
        ("STOCK.CANCEL k r", &["stock.cancel k"]),
        ("STOCK.CANCEL k r", &[]),
        ("STOCK.SET a 5", &["stock.set a"]),
        ("STOCK.SET b 5", &["stock.set b"]),
        (
            "STOCK.MDEDUCT 2 a 1 b 1",
            &["stock.mdeduct a", "stock.mdeduct b"],
        ),
        ("STOCK.MDEDUCT 2 a 1 b 9", &[]),
        (
            "STOCK.MRESERVE 2 a 1 b 1 ORDER o PX 900000",
            &["stock.mreserve a", "stock.mreserve b"],
        ),
        (
            "STOCK.MCONFIRM 2 a b o",
            &["stock.mconfirm a", "stock.mconfirm b"],
        ),
        (
            "STOCK.MCANCEL 2 a b o",
            &["stock.mcancel a", "stock.mcancel b"],
        ),
        ("STOCK.MCANCEL 2 a b o", &[]),
        ("SET counter 5", &[]),
        ("STOCK.IMPORT counter", &["stock.import counter"]),
        ("STOCK.GET k", &[]),
        ("STOCK.INFO k", &[]),
    ] {
        client.run(line);
        assert_eq!(events.take(), expected, "{line}");
    }
    client.run("STOCK.RESERVE k 1 ORDER e PX 20 USER u");
    await_state(&mut client, "k", "e", "expired");
    assert_eq!(events.take(), ["stock.reserve k", "stock.expire k"]);
}

/// The server comes round to a reservation that has ended only with the next command, which is refused itself.
#[test]
fn a_refused_command_that_ends_a_reservation_is_no_event_of_its_own() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.run("STOCK.SET a 10");
    let mut events = KeyspaceEvents::of(&server, "KEd");
    for refused in [
        "STOCK.DEDUCT k 11",
        "STOCK.MDEDUCT 2 k 11 a 1",
        "STOCK.CONFIRM k o",
    ] {
        client.run("STOCK.SET k 10");
        events.take();
        let lines = [
            "STOCK.RESERVE k 2 ORDER o PX 5",
            "DEBUG SLEEP 0.02",
            refused,
        ];
        client.transact(lines);
        assert_eq!(
            events.take(),
            ["stock.reserve k", "stock.expire k"],
            "{refused}"
        );
    }
}

#[test]
fn refusals_reads_and_errors_write_nothing() {
    let server = Server::builder().aof(Fsync::No).start();
    let mut client = Raw::connect(&server);
    for line in [
        "STOCK.SET k 10 PERUSER 5 EVENTS s",
        "STOCK.RESERVE k 1 ORDER live PX 900000 USER u",
        "STOCK.DEDUCT k 1 ORDER sold USER u",
        "STOCK.RESERVE k 1 ORDER confirmed PX 900000 USER v",
        "STOCK.CONFIRM k confirmed",
        "STOCK.DEDUCT k 1 ORDER refunded USER v",
        "STOCK.CANCEL k refunded",
        "STOCK.CANCEL k marked",
        "STOCK.ADD k 1 ORDER added",
        "STOCK.RESERVE k 1 ORDER expired PX 1 USER u",
        "STOCK.SET plain 5",
        "STOCK.SET empty 0",
        "SET string v",
        "HSET hash total 5",
    ] {
        client.must(line);
    }
    await_state(&mut client, "k", "expired", "expired");
    server.await_rewrite();
    let before = Written::by(&server);
    for line in [
        "STOCK.SET k 5 NX",
        "STOCK.SET none 5 XX",
        "STOCK.SET string 5",
        "STOCK.SET plain 5 EVENTS string",
        "STOCK.SET plain 5 EVENTS plain",
        "STOCK.SET plain -5",
        "STOCK.ADD k -100",
        "STOCK.ADD k 2 ORDER added",
        "STOCK.ADD none 1",
        "STOCK.ADD k 9007199254740991",
        "STOCK.DEDUCT k 100 USER w",
        "STOCK.DEDUCT empty 1",
        "STOCK.DEDUCT empty 1 ORDER o",
        "STOCK.DEDUCT k 4 USER u",
        "STOCK.DEDUCT k 4 ORDER o USER u",
        "STOCK.DEDUCT k 1",
        "STOCK.DEDUCT k 2 ORDER sold USER u",
        "STOCK.DEDUCT k 1 ORDER marked USER u",
        "STOCK.DEDUCT none 1",
        "STOCK.DEDUCT string 1",
        "STOCK.RESERVE k 1 ORDER live PX 1 USER u",
        "STOCK.RESERVE k 1 ORDER expired PX 900000 USER u",
        "STOCK.RESERVE empty 1 ORDER o PX 900000",
        "STOCK.CONFIRM k refunded",
        "STOCK.CONFIRM k unknown",
        "STOCK.CONFIRM k expired",
        "STOCK.CONFIRM none o",
        "STOCK.CANCEL k expired",
        "STOCK.CANCEL k added",
        "STOCK.CANCEL none o",
        "STOCK.MDEDUCT 2 plain 1 empty 1",
        "STOCK.MDEDUCT 2 plain 1 none 1",
        "STOCK.MDEDUCT 2 plain 1 string 1",
        "STOCK.MDEDUCT 2 plain 1 k 1 ORDER sold USER u",
        "STOCK.MRESERVE 2 plain 1 empty 1 ORDER o PX 900000",
        "STOCK.MCONFIRM 2 plain k live",
        "STOCK.MCANCEL 2 k plain live",
        "STOCK.MDEDUCT 2 plain 1 plain 1",
        "STOCK.GET k",
        "STOCK.MGET k none plain",
        "STOCK.ORDER k live",
        "STOCK.INFO k",
        "STOCK.IMPORT none",
        "STOCK.IMPORT string",
        "STOCK.IMPORT hash",
        "STOCK.IMPORT k",
        "STOCK.APPLY k nonsense",
        "INFO sluice",
    ] {
        client.run(line);
        // Also what the server does of its own accord after the command.
        client.run("PING");
        assert_eq!(Written::by(&server), before, "{line}");
    }
    client.transact(["STOCK.DEDUCT empty 1", "STOCK.CONFIRM k refunded"]);
    assert_eq!(Written::by(&server), before);
    let script = "redis.call('STOCK.DEDUCT', KEYS[1], 1) return redis.call('STOCK.GET', KEYS[1])";
    assert_eq!(client.call(["EVAL", script, "1", "empty"]), 0);
    assert_eq!(Written::by(&server), before);
}

#[test]
fn watch_sees_changes_and_no_refusals() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET k 10 EVENTS s");
    client.run("STOCK.DEDUCT k 1 ORDER o");
    let mut other = Raw::connect(&server);
    let mut is_seen = |key: &str, between: &str| {
        other.call(["WATCH", key]);
        client.run(between);
        other.run("MULTI");
        other.run("PING");
        other.run("EXEC").is_nil()
    };
    for line in [
        "STOCK.DEDUCT k 100",
        "STOCK.DEDUCT k 1 ORDER o",
        "STOCK.CONFIRM k o",
        "STOCK.GET k",
        "STOCK.INFO k",
        "STOCK.SET k 5 NX",
    ] {
        for key in ["k", "s"] {
            assert!(!is_seen(key, line), "{line} {key}");
        }
    }
    for line in [
        "STOCK.ADD k 1",
        "STOCK.DEDUCT k 1",
        "STOCK.CANCEL k o",
        "STOCK.SET k 5 EVENTS s",
    ] {
        assert!(is_seen("k", line), "{line}");
    }
    assert!(is_seen("s", "STOCK.ADD k 1"));
}

// Transactions, scripts, functions

#[test]
fn commands_work_in_transactions() {
    let (_server, mut client) = server_and_client();
    let lines = [
        "STOCK.SET k 10 EVENTS s",
        "STOCK.RESERVE k 2 ORDER o PX 900000",
        "STOCK.DEDUCT k 9",
        "STOCK.CONFIRM k o",
        "STOCK.CANCEL k p",
        "STOCK.DEDUCT k 1 ORDER o",
        "STOCK.SET a 5",
        "STOCK.MDEDUCT 2 k 1 a 1",
        "STOCK.GET k",
    ];
    let replies = client.transact(lines);
    assert_eq!(replies[0], "OK");
    assert_eq!(replies[1], 8);
    assert_eq!(replies[2], SOLD_OUT);
    assert_eq!(replies[3], 2);
    assert_eq!(replies[4], UNKNOWN);
    assert_eq!(replies[5].err(), CONFLICT);
    assert_eq!(ints(&replies[7]), [7, 4]);
    assert_eq!(replies[8], 7);
    assert_eq!(told(&mut client, "s").len(), 4);
}

#[test]
fn commands_work_in_scripts_and_functions() {
    let (_server, mut client) = server_and_client();
    client.call(["STOCK.SET", "k", MOST, "EVENTS", "s"]);
    let script = "return redis.call('STOCK.DEDUCT', KEYS[1], ARGV[1], 'ORDER', ARGV[2])";
    let mut deduct = |qty: &str, order: &str| client.call(["EVAL", script, "1", "k", qty, order]);
    let most = UNSAFE_INTEGER - 1;
    assert_eq!(deduct("1", "o"), most - 1);
    assert_eq!(deduct("1", "o"), most - 1);
    assert!(deduct("2", "o").err().starts_with("CONFLICT"));
    // Every integer is exact in Lua.
    let script = "return tostring(redis.call('STOCK.GET', KEYS[1]) == 9007199254740990)";
    assert_eq!(client.call(["EVAL", script, "1", "k"]), "true");
    let script = "return redis.pcall('STOCK.DEDUCT', KEYS[1], 5, 'ORDER', 'o').err";
    let text = client.call(["EVAL", script, "1", "k"]);
    assert!(text.text().contains(CONFLICT), "{text:?}");
    let script = "return {redis.call('STOCK.RESERVE', KEYS[1], 5, 'ORDER', 'r', 'PX', 900000),
        redis.call('STOCK.CONFIRM', KEYS[1], 'r'), redis.call('STOCK.CANCEL', KEYS[1], 'r')}";
    assert_eq!(
        ints(&client.call(["EVAL", script, "1", "k"])),
        [most - 6, 5, 5]
    );

    let library = "#!lua name=shop
        redis.register_function('buy', function(keys, args)
            return redis.call('STOCK.DEDUCT', keys[1], args[1])
        end)";
    client.call(["FUNCTION", "LOAD", library]);
    assert_eq!(client.run("FCALL buy 1 k 10"), most - 11);
    assert_eq!(told(&mut client, "s").len(), 6);
}

// IMPORT

#[test]
fn a_counter_becomes_a_stock_in_place() {
    let (_server, mut client) = server_and_client();
    client.run("SET k 10 PX 900000");
    client.run("DECR k");
    let expires = client.run("PEXPIRETIME k");
    let import = "STOCK.IMPORT k PERUSER 3 RETAIN 5000 EVENTS s MAXLEN 7";
    assert_eq!(client.run(import), 9);
    assert_eq!(counts(&mut client, "k"), [9, 0, 0]);
    assert_eq!(client.run("PEXPIRETIME k"), expires);
    for (field, value) in [
        ("peruser", 3),
        ("retain_ms", 5000),
        ("maxlen", 7),
        ("ver", 1),
    ] {
        assert_eq!(number(&mut client, "k", field), value, "{field}");
    }
    assert_eq!(told(&mut client, "s"), ["set k - - 9 9 1"]);
    assert_eq!(client.run("STOCK.DEDUCT k 2 USER u"), 7);
    // As the server keeps strings: as integers, short, and long ones that were changed.
    for commands in [
        &["SET c 0"][..],
        &["SET c 1", "APPEND c 23"],
        &["SETRANGE c 0 77"],
    ] {
        client.run("DEL c");
        for command in commands {
            client.must(command);
        }
        let value: i64 = client.run("GET c").text().parse().unwrap();
        assert_eq!(client.run("STOCK.IMPORT c"), value);
        assert_eq!(counts(&mut client, "c"), [value, 0, 0]);
        assert_eq!(client.run("PTTL c"), -1);
    }
    client.call(["SET", "c", MOST]);
    assert_eq!(client.run("STOCK.IMPORT c"), UNSAFE_INTEGER - 1);
}

#[test]
fn a_hash_with_total_and_ordered_becomes_a_stock_in_place() {
    let (_server, mut client) = server_and_client();
    for entries in ["128", "0"] {
        client.call(["CONFIG", "SET", "hash-max-listpack-entries", entries]);
        client.run("DEL s k");
        client.run("HSET k ordered 4 total 10");
        client.run("PEXPIRE k 900000");
        let expires = client.run("PEXPIRETIME k");
        assert_eq!(client.run("STOCK.IMPORT k EVENTS s"), 6);
        assert_eq!(counts(&mut client, "k"), [6, 0, 4]);
        assert_eq!(client.run("PEXPIRETIME k"), expires);
        assert_eq!(told(&mut client, "s"), ["set k - - 10 6 1"]);
        client.run("HSET all total 5 ordered 5");
        assert_eq!(client.run("STOCK.IMPORT all"), 0);
        assert_eq!(counts(&mut client, "all"), [0, 0, 5]);
        client.run("DEL all");
    }
}

#[test]
fn what_is_no_counter_cannot_be_imported_and_stays_as_it_is() {
    let (server, mut client) = server_and_client();
    assert_eq!(client.run("STOCK.IMPORT none"), UNKNOWN);
    for line in [
        "SET text abc",
        "SET negative -1",
        "SET fraction 1.5",
        "SET large 9007199254740992",
        "SET huge 99999999999999999999",
        "HSET half total 5",
        "HSET other ordered 5",
        "HSET over total 5 ordered 6",
        "HSET below total 5 ordered -1",
        "HSET letters total five ordered 1",
        "HSET more total 5 ordered 1 price 10",
    ] {
        client.must(line);
    }
    for line in [
        "RPUSH list 5",
        "SADD set 5",
        "ZADD zset 1 5",
        "XADD stream * total 5",
        "STOCK.SET stock 5",
        "LOCK.ACQUIRE lock me",
    ] {
        client.must(line);
    }
    let digest = server.digest();
    for key in [
        "text", "negative", "fraction", "large", "huge", "half", "other", "over", "below",
        "letters", "more",
    ] {
        let reply = client.call(["STOCK.IMPORT", key]);
        let text = match key {
            "half" | "other" | "more" => {
                "ERR the hash must have the fields total and ordered, and no others"
            }
            "negative" | "large" => "ERR counter must be between 0 and 9007199254740991",
            "over" | "below" => "ERR ordered must be between 0 and 5",
            _ => "ERR value is not an integer or out of range",
        };
        assert_eq!(reply.err(), text, "{key}");
    }
    for key in ["list", "set", "zset", "stream", "stock", "lock"] {
        let reply = client.call(["STOCK.IMPORT", key]);
        assert_eq!(reply.err(), WRONGTYPE, "{key}");
    }
    client.run("SET counter 5");
    let digest_with_counter = server.digest();
    assert_ne!(digest, digest_with_counter);
    for line in [
        "STOCK.IMPORT counter EVENTS list",
        "STOCK.IMPORT counter EVENTS counter",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(server.digest(), digest_with_counter);
}

// Types, memory, documentation

#[test]
fn stocks_and_other_types_refuse_each_others_commands() {
    let (server, mut client) = server_and_client();
    client.run("STOCK.SET stock 10");
    client.run("SET string v");
    client.run("LOCK.ACQUIRE lock me PX 900000");
    let digest = server.digest();
    for key in ["string", "lock"] {
        for line in [
            format!("STOCK.SET {key} 5"),
            format!("STOCK.ADD {key} 5"),
            format!("STOCK.DEDUCT {key} 5"),
            format!("STOCK.RESERVE {key} 5 ORDER o PX 5"),
            format!("STOCK.CONFIRM {key} o"),
            format!("STOCK.CANCEL {key} o"),
            format!("STOCK.MDEDUCT 2 stock 1 {key} 1"),
            format!("STOCK.MRESERVE 2 stock 1 {key} 1 ORDER o PX 5"),
            format!("STOCK.MCONFIRM 2 stock {key} o"),
            format!("STOCK.MCANCEL 2 stock {key} o"),
            format!("STOCK.GET {key}"),
            format!("STOCK.MGET stock {key}"),
            format!("STOCK.ORDER {key} o"),
            format!("STOCK.INFO {key}"),
        ] {
            assert_eq!(client.run(&line).err(), WRONGTYPE, "{line}");
        }
    }
    for line in [
        "GET stock",
        "INCR stock",
        "XADD stock * a b",
        "LOCK.INFO stock",
        "HGETALL stock",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_full_server_refuses_new_orders_and_still_settles_old_ones() {
    let (_server, mut client) = server_and_client();
    client.run("STOCK.SET k 10");
    client.run("STOCK.RESERVE k 1 ORDER r PX 900000");
    client.run("STOCK.RESERVE k 1 ORDER s PX 900000");
    client.run("SET counter 5");
    client.run("CONFIG SET maxmemory 1");
    for line in [
        "STOCK.SET new 5",
        "STOCK.ADD k 1 ORDER a",
        "STOCK.DEDUCT k 1 ORDER d",
        "STOCK.RESERVE k 1 ORDER x PX 900000",
        "STOCK.MDEDUCT 1 k 1 ORDER d",
        "STOCK.MRESERVE 1 k 1 ORDER x PX 900000",
        "STOCK.IMPORT counter",
        // A mark takes memory as well.
        "STOCK.CANCEL k unknown",
        "STOCK.MCANCEL 1 k unknown",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("OOM"), "{line}: {reply:?}");
    }
    assert_eq!(number(&mut client, "k", "orders"), 2);
    assert_eq!(client.run("STOCK.CONFIRM k r"), 1);
    for _ in 0..2 {
        assert_eq!(client.run("STOCK.CANCEL k s"), 1);
    }
    assert_eq!(ints(&client.run("STOCK.MCANCEL 1 k r")), [1]);
    assert_eq!(client.run("STOCK.GET k"), 10);
}

/// The commands of the contract, with the least number of words and the keywords of each.
const COMMANDS: [(&str, i64, &str); 15] = [
    ("stock.set", -3, "EVENTS MAXLEN NX PERUSER RETAIN XX"),
    ("stock.add", -3, "ORDER"),
    ("stock.deduct", -3, "ORDER USER"),
    ("stock.reserve", -7, "ORDER PX USER"),
    ("stock.confirm", 3, ""),
    ("stock.cancel", 3, ""),
    ("stock.mdeduct", -4, "ORDER USER"),
    ("stock.mreserve", -8, "ORDER PX USER"),
    ("stock.mconfirm", -4, ""),
    ("stock.mcancel", -4, ""),
    ("stock.get", 2, ""),
    ("stock.mget", -2, ""),
    ("stock.order", 3, ""),
    ("stock.info", 2, ""),
    ("stock.import", -2, "EVENTS MAXLEN PERUSER RETAIN"),
];

#[test]
fn every_command_tells_what_it_is() {
    let (_server, mut client) = server_and_client();
    for (name, arity, keywords) in COMMANDS {
        let info = client.call(["COMMAND", "INFO", name]);
        let info = info.array()[0].array();
        assert_eq!(info[1], arity, "{name}");
        let flags: Vec<_> = info[2].array().iter().map(Value::text).collect();
        let reads = ["stock.get", "stock.mget", "stock.order", "stock.info"].contains(&name);
        assert_eq!(flags.contains(&"readonly"), reads, "{name} {flags:?}");
        assert_eq!(flags.contains(&"write"), !reads, "{name} {flags:?}");
        assert!(!flags.contains(&"blocking"), "{name} {flags:?}");
        let settles = name.ends_with("confirm") || name.ends_with("cancel");
        assert_eq!(
            flags.contains(&"denyoom"),
            !reads && !settles,
            "{name} {flags:?}"
        );

        let docs = client.call(["COMMAND", "DOCS", name]);
        let docs = docs.field(name);
        assert!(!docs.field("summary").text().is_empty(), "{name}");
        assert!(docs.field("complexity").text().starts_with("O("), "{name}");
        let mut found = Vec::new();
        collect_tokens(docs.field("arguments"), &mut found);
        found.sort();
        assert_eq!(found.join(" "), keywords, "{name}");

        let too_few = vec![name; usize::try_from(arity.abs() - 1).unwrap()];
        let reply = client.call(too_few);
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(reply.err(), expected);
    }
}

fn collect_tokens(arguments: &Value, found: &mut Vec<String>) {
    for argument in arguments.array() {
        if let Some(token) = argument.get("token") {
            found.push(token.text().to_owned());
        }
        if let Some(parts) = argument.get("arguments") {
            collect_tokens(parts, found);
        }
    }
}

/// The server ends a slice of them at a time; whoever asks for one is answered as if all had ended.
#[test]
fn a_request_finds_its_order_expired_among_thousands_of_overdue_ones() {
    let (_server, mut client) = server_and_client();
    // None may end before the last is made, however slow the machine is.
    let overdue = [100, 1000, 8000]
        .iter()
        .find_map(|px| overdue_together(&mut client, *px));
    let (asked, reserved) = overdue.expect("3000 reservations take more than 8 s");
    assert_eq!(asked, [CLOSED, CLOSED, CLOSED]);
    assert!(reserved > 1000, "all at once");
    eventually(SOON, || counts(&mut client, "k") == [3000, 0, 0]);
}

/// Makes 3000 reservations of `px` milliseconds in a transaction and lets them end in it. Returns the replies to
/// requests for three of them, and how many are still counted as reserved. `None`: some have ended too early.
fn overdue_together(client: &mut Raw, px: u32) -> Option<(Vec<i64>, i64)> {
    let reserve = |order: u32| format!("STOCK.RESERVE k 1 ORDER o{order} PX {px}");
    let mut lines = vec!["DEL k".to_owned(), "STOCK.SET k 3000".to_owned()];
    lines.extend((0..3000).map(reserve));
    lines.push("STOCK.INFO k".into());
    lines.push(format!("DEBUG SLEEP {}", f64::from(px) / 1000.0 + 0.1));
    lines.push("STOCK.CONFIRM k o2997".into());
    lines.push("STOCK.CANCEL k o2998".into());
    lines.push(reserve(2999));
    lines.push("STOCK.INFO k".into());
    let replies = client.transact(&lines);
    let reserved = |info: &Value| info.field("reserved").int();
    let asked = replies[3004..3007].iter().map(Value::int).collect();
    (reserved(&replies[3002]) == 3000).then(|| (asked, reserved(&replies[3007])))
}

/// Neither before the first nor only after the last.
#[test]
fn clients_are_served_while_many_reservations_end_together() {
    // If the system stops the client for a while, it sees fewer intermediate states. So one of five attempts is enough.
    let seen: Vec<_> = (0..5)
        .map(|_| served_while_many_end())
        .take_while(|served| *served < 5)
        .collect();
    assert!(seen.len() < 5, "{seen:?}");
}

/// How often a client is served after the first and before the last of 40 000 reservations has ended.
fn served_while_many_end() -> usize {
    let server = Server::builder().clock(0).start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET k 40000");
    for first in (0..40_000).step_by(1000) {
        let orders = first..first + 1000;
        client.run_all(orders.map(|order| format!("STOCK.RESERVE k 1 ORDER o{order} PX 600000")));
    }
    assert_eq!(counts(&mut client, "k")[1], 40_000);
    server.shift_clock(600_000);
    let mut seen = std::collections::BTreeSet::new();
    eventually(SOON, || {
        let reserved = counts(&mut client, "k")[1];
        seen.insert(reserved);
        reserved == 0
    });
    seen.range(1..40_000).count()
}
