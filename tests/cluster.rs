//! All families in a cluster of three masters and three replicas: slots that move and masters that change while clients are
//! at work, a master that is killed, reads from replicas, commands on keys of several slots.
//!
//! `CLUSTER_SECONDS` makes the clients work for that long instead of some seconds.

mod cluster_load;
mod cluster_support;
mod lock_support;
mod stock_support;
mod support;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use cluster_load::Load;
use cluster_support::{
    Client, HIGH, LOW, Lost, Move, Six, ask, id_of, node, one_node, slot_of, two_nodes,
};
use lock_support::{Grant, check};
use support::{Lines, Random, Raw, SOON, Server, Value, eventually, wait_for_replica_sync};

/// A hash tag in the slots of each master.
const TAGS: [&str; 3] = ["b", "c", "a"];

/// A node that is silent for so many milliseconds is only busy: no test stops one for so long.
const BUSY: u32 = 30_000;

/// A node that is silent for so long has failed.
const FAILED: u32 = 2000;

fn seconds() -> u64 {
    let seconds = std::env::var("CLUSTER_SECONDS").ok();
    seconds.map_or(4, |text| text.parse().expect("CLUSTER_SECONDS is a number"))
}

// Under load

#[test]
fn nothing_is_lost_or_doubled_while_slots_move_and_masters_change() {
    let cluster = Six::start(BUSY);
    let load = Load::prepare(&cluster, &TAGS);
    let moves = load.during(|| move_slots(&cluster, Duration::from_secs(seconds())));
    println!("{moves} moves");
    assert!(moves > 5, "the run was too tame");
    load.check();

    let changes = load.during(|| change_masters(&cluster, Duration::from_secs(seconds() / 2)));
    println!("{changes} changes of a master");
    load.check();
    cluster.await_health();
    cluster.assert_replicas_identical();
}

/// Moves the slots of the tags around, one after the other, a few keys at a time.
fn move_slots(cluster: &Six, time: Duration) -> usize {
    let mut random = Random(u64::from(std::process::id()));
    let end = Instant::now() + time;
    let masters = cluster.masters();
    let mut moves = 0;
    while Instant::now() < end || moves < 2 * TAGS.len() {
        let slot = slot_of(masters[0], TAGS[moves % TAGS.len()]);
        let (from, _) = cluster.servers_of(slot);
        let others: Vec<_> = masters
            .iter()
            .filter(|node| node.port() != from.port())
            .collect();
        let to = random.one(&others);
        let moving = Move::start(slot, from, to);
        while moving.some_keys(1 + random.below(4) as usize) > 0 {
            sleep(Duration::from_micros(random.below(8000)));
        }
        moving.finish_before(&masters);
        moves += 1;
        sleep(Duration::from_millis(random.below(60)));
    }
    moves
}

/// Lets replicas take over from their masters, who live.
fn change_masters(cluster: &Six, time: Duration) -> usize {
    let end = Instant::now() + time;
    let mut changes = 0;
    while Instant::now() < end || changes < TAGS.len() {
        let slot = slot_of(&cluster.nodes()[0], TAGS[changes % TAGS.len()]);
        let (old, _) = cluster.servers_of(slot);
        let new = cluster.replica_of(old);
        ask(new, "CLUSTER FAILOVER");
        await_master(new);
        eventually(SOON, || old.info("role").as_deref() == Some("slave"));
        cluster.await_health();
        changes += 1;
    }
    changes
}

fn await_master(node: &Server) {
    eventually(SOON * 2, || node.info("role").as_deref() == Some("master"));
}

// A master dies

/// What clients of a master that dies were told of what its replica has too.
struct Survivors<'a> {
    cluster: &'a Six,
    /// The replica.
    new: &'a Server,
    grants: Mutex<Vec<Grant>>,
    orders: Mutex<BTreeSet<String>>,
    lost: Mutex<usize>,
}

impl<'a> Survivors<'a> {
    fn new(cluster: &'a Six, new: &'a Server) -> Self {
        Self {
            cluster,
            new,
            grants: Mutex::default(),
            orders: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// Takes a lock and sells something, again and again.
    fn work(&self, tag: &str, name: usize, has_ended: &AtomicBool) {
        let mut client = Client::of(self.cluster);
        let mut round = 0;
        while !has_ended.load(Ordering::Relaxed) {
            round += 1;
            let id = format!("{name}:{round}");
            self.lock(&mut client, tag, &id);
            self.sell(&mut client, tag, &id);
        }
        *self.lost.lock().unwrap() += client.told.lost;
    }

    /// Does the replica know what the client did last? Only that counts.
    fn knows(&self, client: &mut Client<'_>) -> bool {
        client.answered_by() == self.new.port() || client.is_replicated()
    }

    fn lock(&self, client: &mut Client<'_>, tag: &str, owner: &str) {
        let asked = Instant::now();
        let acquire = format!("LOCK.ACQUIRE {{{tag}}}busy {owner} PX 3000 BLOCK 1000 ID a");
        let Ok(reply) = client.call(tag, &acquire) else {
            return; // it may hold the lock, which somebody waits for until the lease ends
        };
        if reply.is_nil() {
            return;
        }
        let counts = self.knows(client);
        let from = Instant::now();
        sleep(Duration::from_millis(1));
        let to = Instant::now().min(asked + Duration::from_secs(3));
        if counts {
            self.grants.lock().unwrap().push(Grant {
                lock: 0,
                shared: false,
                fence: reply.int(),
                asked,
                from,
                to,
            });
        }
        let _maybe = client.call(tag, &format!("LOCK.RELEASE {{{tag}}}busy {owner} ID r"));
    }

    fn sell(&self, client: &mut Client<'_>, tag: &str, order: &str) {
        let deduct = format!("STOCK.DEDUCT {{{tag}}}sale 1 ORDER {order}");
        match client.call(tag, &deduct) {
            Ok(left) => assert!(left.int() >= 0, "{order}: {left:?}"),
            // Nobody knows: the same order can be given again.
            Err(Lost) => assert!(client.must(tag, &deduct).int() >= 0),
        }
        if self.knows(client) {
            self.orders.lock().unwrap().insert(order.into());
        }
    }
}

#[test]
fn a_killed_master_is_followed_by_its_replica_which_knows_all() {
    let cluster = Six::start(BUSY);
    let tag = TAGS[0];
    let slot = slot_of(&cluster.nodes()[0], tag);
    let (old, new) = cluster.servers_of(slot);
    let new = new.expect("a replica");
    let mut client = Client::of(&cluster);
    let mut must = |line: &str| client.must(tag, line);
    let fence = must("LOCK.ACQUIRE {b}lock me PX 600000 WATCHDOG ID a").int();
    let shared = must("LOCK.ACQUIRE {b}shared me SHARED PX 600000").int();
    let permits = must("SEM.ACQUIRE {b}sem me LIMIT 5 PERMITS 3 PX 600000").int();
    let ended = must("LOCK.ACQUIRE {b}ended me PX 600000").int();
    must("LOCK.RELEASE {b}ended me");
    let last = fence.max(shared).max(permits).max(ended);
    for line in [
        "LOCK.GUARD {b}guard 77",
        "STOCK.SET {b}stock 10 PERUSER 4 EVENTS {b}events",
        "STOCK.RESERVE {b}stock 2 ORDER live PX 600000 USER u",
        "STOCK.RESERVE {b}stock 1 ORDER ends PX 4000 USER u",
        "STOCK.DEDUCT {b}stock 3 ORDER sold USER v",
        "STOCK.SET {b}sale 1000000 EVENTS {b}events2 MAXLEN 1000000",
        "BF.MADD {b}bloom x y z",
        "CF.INSERT {b}cuckoo ITEMS x y z",
        "CACHE.SET {b}entry v PX 600000",
        "CACHE.SETNULL {b}null PX 600000",
        "RATE.WINDOW {b}window 5 600000 COST 3",
        "RATE.GCRA {b}gcra 4 1 600000 COST 3",
        "RATE.ONCE {b}once PX 600000",
    ] {
        must(line);
    }
    let token = must("CACHE.FETCH {b}gone LEASE 600000").array()[2].int();
    wait_for_replica_sync(old, new);
    replicas_read_and_redirect(old, new, slot, fence);

    // From here on, somebody is always waiting, and a silent node has failed.
    for node in cluster.nodes() {
        ask(node, &format!("CONFIG SET cluster-node-timeout {FAILED}"));
    }
    let survivors = Survivors::new(&cluster, new);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in 0..3 {
            let (survivors, has_ended) = (&survivors, &has_ended);
            scope.spawn(move || survivors.work(tag, name, has_ended));
        }
        let _end = EndOnDrop(&has_ended);
        sleep(Duration::from_millis(700));
        old.kill9();
        await_master(new);
        let sold = || survivors.orders.lock().unwrap().len();
        let sold_before = sold();
        eventually(SOON * 2, || sold() > sold_before + 50);
    });

    let mut client = Client::of(&cluster); // the other one has lost its connection
    let mut must = |line: &str| client.must(tag, line);
    assert_eq!(must("LOCK.HELD {b}lock me"), fence);
    assert_eq!(must("LOCK.ACQUIRE {b}lock me ID a"), fence);
    assert!(must("LOCK.ACQUIRE {b}lock you").is_nil());
    assert!(must("LOCK.ACQUIRE {b}shared you").is_nil());
    assert_eq!(must("LOCK.HELD {b}shared me"), shared);
    assert!(must("SEM.ACQUIRE {b}sem you LIMIT 5 PERMITS 3").is_nil());
    for line in [
        "LOCK.ACQUIRE {b}ended you PX 600000",
        "LOCK.ACQUIRE {b}shared you SHARED PX 600000",
        "SEM.ACQUIRE {b}sem you LIMIT 5 PERMITS 2 PX 600000",
    ] {
        assert!(must(line).int() > last, "{line}");
    }
    assert_eq!(must("LOCK.GUARD {b}guard 76"), 0);
    assert_eq!(
        must("STOCK.DEDUCT {b}stock 3 ORDER sold USER v"),
        4,
        "again"
    );
    assert_eq!(must("STOCK.DEDUCT {b}stock 2 ORDER more USER v"), -2);
    eventually(SOON, || {
        must("STOCK.ORDER {b}stock ends").field("state") == &"expired"
    });
    assert_eq!(must("STOCK.CONFIRM {b}stock live"), 2);
    assert_eq!(must("STOCK.GET {b}stock"), 5);
    for line in ["BF.MEXISTS {b}bloom x y z", "CF.MEXISTS {b}cuckoo x y z"] {
        assert!(must(line).array().iter().all(|found| *found == 1), "{line}");
    }
    assert_eq!(must("CACHE.GET {b}entry"), "v");
    assert_eq!(must("CACHE.FETCH {b}null LEASE 5").array()[0], "NULL");
    let late = format!("CACHE.SET {{b}}gone late PX 600000 TOKEN {token}");
    assert_eq!(must(&late), 0, "leases are the old master's");
    for line in [
        "RATE.WINDOW {b}window 5 600000 COST 3",
        "RATE.GCRA {b}gcra 4 1 600000 COST 3",
    ] {
        assert_eq!(must(line).array()[0], 1, "{line}");
    }
    assert_eq!(must("RATE.WINDOW {b}window 5 600000 COST 2").array()[0], 0);
    assert_eq!(must("RATE.ONCE {b}once PX 600000"), 0);

    let grants = survivors.grants.into_inner().unwrap();
    check(&grants).unwrap_or_else(|problem| panic!("{problem}"));
    let orders = survivors.orders.into_inner().unwrap();
    for order in &orders {
        let state = must(&format!("STOCK.ORDER {{b}}sale {order}"));
        assert!(
            !state.is_nil() && state.field("state") == &"sold",
            "{order}: {state:?}"
        );
    }
    let lost = survivors.lost.into_inner().unwrap();
    println!(
        "{} grants, {} orders, {lost} lost replies",
        grants.len(),
        orders.len()
    );
    assert!(
        grants.len() > 20 && orders.len() > 20,
        "the run was too tame"
    );
    let mut at_new = Raw::connect(new);
    stock_support::assert_stream_tells_all(&mut at_new, "{b}events", &["{b}stock"]);
    stock_support::assert_stream_tells_all(&mut at_new, "{b}events2", &["{b}sale"]);

    old.restart();
    cluster.await_health();
    assert_eq!(old.info("role").as_deref(), Some("slave"));
    cluster.assert_replicas_identical();
    replicas_read_and_redirect(new, old, slot, fence);
}

/// A replica answers those who ask for reads, and sends all others to its master.
fn replicas_read_and_redirect(master: &Server, replica: &Server, slot: i64, fence: i64) {
    let mut client = Raw::connect(replica);
    let moved = format!("MOVED {slot} 127.0.0.1:{}", master.port());
    let reads = [
        "LOCK.HELD {b}lock me",
        "LOCK.INFO {b}lock",
        "SEM.INFO {b}sem",
        "STOCK.GET {b}stock",
        "STOCK.MGET {b}stock {b}sale",
        "STOCK.ORDER {b}stock sold",
        "STOCK.INFO {b}stock",
        "BF.EXISTS {b}bloom x",
        "BF.MEXISTS {b}bloom x y",
        "BF.CARD {b}bloom",
        "BF.INFO {b}bloom",
        "BF.SCANDUMP {b}bloom 0",
        "CF.EXISTS {b}cuckoo x",
        "CF.MEXISTS {b}cuckoo x y",
        "CF.COUNT {b}cuckoo x",
        "CF.INFO {b}cuckoo",
        "CACHE.GET {b}entry",
        "CACHE.INFO {b}entry",
    ];
    for line in reads {
        assert_eq!(client.run(line).err(), moved, "{line}");
    }
    client.must("READONLY");
    for line in reads {
        assert!(!client.must(line).is_nil(), "{line}");
    }
    assert_eq!(client.must("LOCK.HELD {b}lock me"), fence);
    assert_eq!(client.must("CACHE.GET {b}entry"), "v");
    for line in [
        "LOCK.ACQUIRE {b}lock me PX 600000",
        "LOCK.ACQUIRE {b}lock you BLOCK 0",
        "LOCK.RELEASE {b}lock me",
        "LOCK.RENEW {b}lock me",
        "LOCK.GUARD {b}guard 5",
        "SEM.ACQUIRE {b}sem you LIMIT 1 BLOCK 0",
        "STOCK.DEDUCT {b}stock 1",
        "STOCK.CONFIRM {b}stock live",
        "BF.ADD {b}bloom x",
        "CF.ADD {b}cuckoo x",
        "CACHE.FETCH {b}entry LEASE 5",
        "CACHE.SET {b}entry w PX 5",
        "CACHE.DEL {b}entry",
        "RATE.WINDOW {b}window 5 600000",
        "RATE.ONCE {b}once PX 5",
    ] {
        assert_eq!(client.run(line).err(), moved, "{line}");
    }
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
