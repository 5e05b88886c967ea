//! Options and reports of the crate clients/rust.

use std::time::{Duration, SystemTime};

use redis::{Client, Connection, FromRedisValue, from_redis_value};
use sluice_client::cache::{self, Fetched};
use sluice_client::delay::{self, Added};
use sluice_client::filter::{self, cuckoo};
use sluice_client::stock::{self, Refusal};
use sluice_client::{Error, Info, lock, once, semaphore};

use crate::support::{SOON, Server, eventually};

const LONG: Duration = Duration::from_secs(600);

/// A server, and connections to it in both versions of the protocol.
fn connected() -> (Server, [Connection; 2]) {
    let server = Server::start();
    let port = server.port();
    let connections = ["resp2", "resp3"].map(|protocol| {
        let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
        let client = Client::open(url).expect("a URL");
        client.get_connection().expect("a connection")
    });
    (server, connections)
}

fn field<T: FromRedisValue>(info: Option<Info>, name: &str) -> T {
    let value = info.expect("the key exists").remove(name);
    let value = value.unwrap_or_else(|| panic!("no {name}"));
    from_redis_value(value).expect("its type")
}

#[test]
fn reports_have_their_fields_in_both_protocols() {
    let (_server, connections) = connected();
    for mut connection in connections {
        let link = &mut connection;
        redis::cmd("FLUSHALL").exec(link).expect("a reply");
        assert!(stock::info("stock").query(link).expect("a reply").is_none());
        let created = stock::create("stock", 10).events_at_most("changes", 100);
        assert!(created.query(link).expect("a reply"));
        let sale = stock::deduct("stock", 2).order("order").user("ann");
        assert_eq!(sale.query(link).expect("a reply"), Ok(8));
        let info = stock::info("stock").query(link).expect("a reply");
        assert_eq!(field::<u64>(info, "sold"), 2);
        let order = stock::order("stock", "order").query(link).expect("a reply");
        assert_eq!(field::<String>(order, "state"), "sold");

        let held = lock::acquire("lock", "owner").lease(LONG);
        let fence = held.query(link).expect("a reply");
        assert!(fence.is_some());
        let info = lock::info("lock").query(link).expect("a reply");
        assert_eq!(field::<Vec<redis::Value>>(info, "holders").len(), 1);
        let permit = semaphore::acquire("permits", "owner", 3).lease(LONG);
        assert!(permit.query(link).expect("a reply").is_some());
        let info = semaphore::info("permits").query(link).expect("a reply");
        assert_eq!(field::<u64>(info, "used"), 1);

        once::begin("work", LONG).query(link).expect("a reply");
        let info = once::info("work").query(link).expect("a reply");
        assert_eq!(field::<String>(info, "state"), "busy");
        delay::create("queue", "stream")
            .max_length(5)
            .query(link)
            .expect("a reply");
        let info = delay::info("queue").query(link).expect("a reply");
        assert_eq!(field::<u64>(info, "messages"), 0);
        filter::add("bloom", "ann").query(link).expect("a reply");
        assert_eq!(filter::count("bloom").query(link).expect("a reply"), 1);
        let info = filter::info("bloom").query(link).expect("a reply");
        assert_eq!(field::<u64>(info, "Number of items inserted"), 1);
        cuckoo::add("cuckoo", "ann").query(link).expect("a reply");
        let info = cuckoo::info("cuckoo").query(link).expect("a reply");
        assert_eq!(field::<u64>(info, "Number of items inserted"), 1);
    }
}

#[test]
fn a_counter_becomes_a_stock() {
    let (server, [mut connection, _]) = connected();
    server.command(["SET", "sku", "7"]);
    let imported = stock::import("sku").per_user(2).query(&mut connection);
    assert_eq!(imported.expect("a reply"), Ok(7));
    let sale = stock::deduct("sku", 3).order("order").user("ann");
    let answer = sale.query(&mut connection).expect("a reply");
    assert_eq!(answer, Err(Refusal::OverUserLimit));
    let other = stock::create("other", 5).if_present();
    assert!(!other.query(&mut connection).expect("a reply"));
    let replaced = stock::create("sku", 5).if_present();
    assert!(replaced.query(&mut connection).expect("a reply"));
}

#[test]
fn a_lingering_watchdog_outlives_its_connection() {
    let (server, [mut connection, mut other]) = connected();
    let request = lock::acquire("key", "owner").lease(LONG);
    let request = request.watchdog_lingering().id("request");
    let fence = request.query(&mut connection).expect("a reply");
    drop(connection);
    eventually(SOON, || server.info_int("connected_clients") == 2); // the other one, and that of the test
    assert_eq!(
        lock::held("key", "owner")
            .query(&mut other)
            .expect("a reply"),
        fence
    );
    assert_eq!(request.query(&mut other).expect("a reply"), fence);
}

#[test]
fn a_version_of_a_removal_refuses_older_values() {
    let (_server, [mut connection, _]) = connected();
    let link = &mut connection;
    let stored = cache::store("key", "value", LONG).version(5);
    assert!(stored.query(link).expect("a reply"));
    let removed = cache::invalidate("key").grace(LONG).version(9);
    assert!(removed.query(link).expect("a reply"));
    let old = cache::store("key", "old", LONG).version(8);
    assert!(!old.query(link).expect("a reply"));
    let new = cache::store("key", "new", LONG).version(9);
    assert!(new.query(link).expect("a reply"));
    let info = cache::info("key").query(link).expect("a reply");
    assert_eq!(field::<u64>(info, "ver"), 9);
    let fetched = cache::fetch("key", LONG).beta(1.0).query(link);
    assert!(matches!(fetched.expect("a reply"), Fetched::Hit(..)));
}

#[test]
fn a_breaker_is_reported_and_reset() {
    let (_server, [mut connection, _]) = connected();
    let link = &mut connection;
    assert!(cache::breaker("db").query(link).expect("a reply").is_none());
    let fetched = cache::fetch("key", LONG).breaker("db", 1, LONG).query(link);
    let Fetched::Lease(token, _) = fetched.expect("a reply") else {
        panic!("nobody else loads");
    };
    let failed = cache::fail("key", token, Duration::from_millis(1));
    assert!(failed.query(link).expect("a reply"));
    let breaker = cache::breaker("db").query(link).expect("a reply");
    assert_eq!(field::<String>(breaker, "state"), "open");
    assert!(cache::reset_breaker("db").query(link).expect("a reply"));
}

#[test]
fn a_message_has_a_time_of_the_clock_and_replaces_only_another() {
    let (_server, [mut connection, _]) = connected();
    let link = &mut connection;
    let create = delay::create("queue", "stream");
    create.query(link).expect("a reply");
    let at = SystemTime::now() + LONG;
    let fields = [("field", "value")];
    let mut add = |request: sluice_client::Request<Added, delay::Add>| {
        request.values(&fields).query(link).expect("a reply")
    };
    let refused = add(delay::add("queue", "id", LONG).if_present());
    assert_eq!(refused, Added::Refused);
    assert_eq!(add(delay::add_at("queue", "id", at)), Added::New);
    let replaced = add(delay::add_at("queue", "id", at).if_present());
    assert_eq!(replaced, Added::Replaced);
}

#[test]
fn filters_have_settings_and_merge() {
    let (_server, [mut connection, _]) = connected();
    let link = &mut connection;
    let fixed = filter::create("one", 0.01, 100).fixed();
    fixed.query(link).expect("a reply");
    let like = filter::create_like("two", "one");
    like.query(link).expect("a reply");
    filter::add("one", "ann").query(link).expect("a reply");
    filter::add("two", "bob").query(link).expect("a reply");
    let merged = filter::merge("both", &["one", "two"]);
    merged.query(link).expect("a reply");
    for name in ["ann", "bob"] {
        let exists = filter::may_contain("both", name).query(link);
        assert!(exists.expect("a reply"));
    }
    let growing = filter::create("three", 0.01, 100).expansion(4);
    growing.query(link).expect("a reply");
    let info = filter::info("three").query(link).expect("a reply");
    assert_eq!(field::<u64>(info, "Expansion rate"), 4);
    let wide = cuckoo::create("wide", 100).bits(32).expansion(2);
    wide.query(link).expect("a reply");
    assert!(matches!(
        filter::info("none").query(link),
        Err(Error::Redis(_))
    ));
}
