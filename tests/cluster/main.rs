//! All families in a cluster of three masters and three replicas: slots that move and masters that change while clients are
//! at work, a master that is killed, reads from replicas, commands on keys of several slots.
//!
//! `CLUSTER_SECONDS` makes the clients work for that long instead of some seconds.

mod atomic;
mod idle;
mod load;
mod postponed;
mod renamed;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use load::Load;
use support::cache::shown;
use support::cluster::{
    Client, LOW, Lost, Move, Six, await_replica, calls, connect_in, is_master, node,
    node_of_databases, one_node, slot_of, take_over, two_nodes, with_changing_masters,
};
use support::lock::{Grant, check};
use support::stock::assert_stream_tells_all;
use support::{
    EndOnDrop, Lines, Random, Raw, SOON, Server, Value, ask, eventually, served, still_waits,
    wait_for_replica_sync,
};

/// A hash tag in the slots of each master.
const TAGS: [&str; 3] = ["b", "c", "a"];

/// A node that is silent for so many milliseconds is only busy: no test stops one for so long.
const BUSY: u32 = 20_000;

/// A node that is silent for so long has failed.
const FAILED: u32 = 2000;

fn seconds() -> Duration {
    let seconds = std::env::var("CLUSTER_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("CLUSTER_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(3))
}

// Under load

#[test]
fn nothing_is_lost_or_doubled_while_slots_move_and_masters_change() {
    let start = || Six::start(BUSY);
    with_changing_masters(start, |cluster| {
        let load = Load::prepare(cluster, &TAGS);
        let moves = load.during(|| move_slots(cluster, seconds(), &load));
        println!("{moves} moves");
        assert!(moves > 5, "the run was too tame");
        load.check();

        let changes = load.during(|| change_masters(cluster, seconds() / 4));
        println!("{changes} changes of a master");
        load.check();
        cluster.await_replicas();
        cluster.assert_replicas_identical();
    });
}

/// Moves the slots of the tags around, one after the other, a few keys at a time.
fn move_slots(cluster: &Six, time: Duration, load: &Load) -> usize {
    let mut random = Random(u64::from(std::process::id()));
    let end = Instant::now() + time;
    let masters = cluster.masters();
    let mut moves = 0;
    while Instant::now() < end || load.is_tame() || moves < 2 * TAGS.len() {
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

/// Lets each replica take over from its master, who lives; once, because Redis 7.0 counts votes again that were given for
/// an earlier attempt, and then has two masters for a moment.
fn change_masters(cluster: &Six, time: Duration) -> usize {
    let (masters, replicas) = cluster.nodes().split_at(3);
    for (old, new) in masters.iter().zip(replicas) {
        take_over(new);
        eventually(SOON, || old.info("role").as_deref() == Some("slave"));
        sleep(time / 3);
    }
    masters.len()
}

/// Kills a master, and waits until its replica has taken over. Only during this time, the short timeout `FAILED` applies.
fn kill_master(cluster: &Six, master: &Server, replica: &Server) {
    master.kill9();
    cluster.set_timeout(FAILED);
    eventually(SOON * 3, || is_master(replica));
    cluster.set_timeout(BUSY);
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
        let deadline = Instant::now() + SOON;
        // If the reply is lost, nobody knows whether the order was recorded, and the client repeats it.
        let left = loop {
            match client.call(tag, &deduct) {
                Ok(left) => break left,
                Err(Lost) => assert!(Instant::now() < deadline, "{order}"),
            }
        };
        assert!(left.int() >= 0, "{order}: {left:?}");
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
        "CACHE.SETNULL {b}null PX 600000",
        "RATE.WINDOW {b}window 5 600000 COST 3",
        "RATE.GCRA {b}gcra 4 1 600000 COST 3",
        "RATE.ONCE {b}once PX 600000",
    ] {
        must(line);
    }
    let token = must("CACHE.FETCH {b}gone LEASE 600000").array()[2].int();
    let work = must("ONCE.BEGIN {b}work LEASE 600000").array()[2].int();
    let paid = must("ONCE.BEGIN {b}paid LEASE 600000 FINGERPRINT f").array()[2].int();
    assert_eq!(
        must(&format!("ONCE.DONE {{b}}paid {paid} receipt PX 600000")),
        1
    );
    wait_for_replica_sync(old, new);
    replicas_read_and_redirect(old, new, slot, fence);

    // From here on, somebody is always waiting.
    let survivors = Survivors::new(&cluster, new);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in 0..3 {
            let (survivors, has_ended) = (&survivors, &has_ended);
            scope.spawn(move || survivors.work(tag, name, has_ended));
        }
        let _end = EndOnDrop(&has_ended);
        sleep(Duration::from_millis(700));
        kill_master(&cluster, old, new);
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
    let replay = must("ONCE.BEGIN {b}paid LEASE 5 FINGERPRINT f");
    assert_eq!(replay.array()[0], "DONE");
    assert_eq!(replay.array()[1], "receipt");
    assert_eq!(must("ONCE.BEGIN {b}work LEASE 5").array()[0], "BUSY");
    assert_eq!(must(&format!("ONCE.DONE {{b}}work {work} r PX 600000")), 1);

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
    assert_stream_tells_all(&mut at_new, "{b}events", &["{b}stock"]);
    assert_stream_tells_all(&mut at_new, "{b}events2", &["{b}sale"]);

    old.restart();
    await_replica(old);
    assert_eq!(old.info("role").as_deref(), Some("slave"));
    cluster.assert_replicas_identical();
    replicas_read_and_redirect(new, old, slot, fence);
}

/// A slot is on its way, key by key, when the master dies that it leaves. Valkey has told its replica that, and it sends
/// clients after the keys. Redis has not: its replica takes keys for free that are on the other node already.
#[test]
fn a_replica_that_takes_over_in_the_middle_of_a_move_knows_of_it_on_valkey_only() {
    let cluster = Six::start(BUSY);
    let tag = TAGS[0];
    let mut client = Client::of(&cluster);
    let fence = client.must(tag, "LOCK.ACQUIRE {b}moved me PX 600000").int();
    let stays = client.must(tag, "LOCK.ACQUIRE {b}stays me PX 600000").int();
    let masters = cluster.masters();
    let slot = slot_of(masters[0], tag);
    let (old, _) = cluster.servers_of(slot);
    let others = masters.iter().find(|node| node.port() != old.port());
    let to = others.expect("another master");
    let new = cluster.replica_of(old);
    let moving = Move::start(slot, old, to);
    moving.keys(&["{b}moved"]);
    wait_for_replica_sync(old, new);
    kill_master(&cluster, old, new);
    let mut at_new = Raw::connect(new);
    let mut ask_new = |line: &str| {
        let mut reply = Value::Nil;
        eventually(SOON * 3, || {
            reply = at_new.run(line);
            !matches!(&reply, Value::Error(error) if error.starts_with("CLUSTERDOWN"))
        });
        reply
    };
    assert_eq!(ask_new("LOCK.HELD {b}stays me"), stays);
    let reply = ask_new("LOCK.ACQUIRE {b}moved you PX 600000");
    if new.info("valkey_version").is_some() {
        let asked = format!("ASK {slot} 127.0.0.1:{}", to.port());
        assert_eq!(reply.err(), asked);
        let mut at_target = Raw::connect(to);
        eventually(SOON * 3, || {
            at_target.must("ASKING");
            at_target.run("LOCK.HELD {b}moved me") == fence
        });
    } else {
        assert!(reply.int() > fence, "the same lock, twice");
    }
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
    for (line, expected) in [
        ("CACHE.FETCH {b}entry LEASE 5", "HIT v"),
        ("CACHE.FETCH {b}entry LEASE 5 SLIDE 900000", "HIT v"),
        ("CACHE.FETCH {b}null LEASE 5 BLOCK 0", "NULL -"),
        ("CACHE.FETCH {b}missing LEASE 5 BLOCK 0", "MISS -"),
        (
            "CACHE.FETCH {b}missing LEASE 5 GUARD {b}bloom unknown",
            "ABSENT -",
        ),
        ("CACHE.FETCH {b}missing LEASE 5 GUARD {b}bloom x", "MISS -"),
    ] {
        assert_eq!(shown(&client.must(line)), expected, "{line}");
    }
    assert_eq!(client.must("CACHE.FAIL {b}missing 1"), 0);
    let mut other = Raw::connect(replica);
    assert_eq!(other.run("CACHE.FETCH {b}entry LEASE 5").err(), moved);
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
        "CACHE.SET {b}entry w PX 5",
        "CACHE.DEL {b}entry",
        "RATE.WINDOW {b}window 5 600000",
        "RATE.ONCE {b}once PX 5",
        "ONCE.BEGIN {b}work LEASE 5 BLOCK 0",
        "ONCE.DONE {b}work 1 r PX 5",
        "ONCE.FAIL {b}work 1",
    ] {
        assert_eq!(client.run(line).err(), moved, "{line}");
    }
}

// Waiting

/// What a client waits for, of each family.
const WAITS: [&str; 6] = [
    "LOCK.ACQUIRE bar you PX 600000 BLOCK 0",
    "LOCK.MACQUIRE 2 {bar}free bar you PX 600000 BLOCK 0",
    "SEM.ACQUIRE {bar}sem you LIMIT 1 PX 600000 BLOCK 0",
    "SEM.MACQUIRE 2 {bar}spare 1 {bar}sem 1 third PX 600000 BLOCK 0",
    "CACHE.FETCH {bar}entry LEASE 600000 BLOCK 0",
    "ONCE.BEGIN {bar}work LEASE 600000 BLOCK 0",
];

/// The number of clients of all families that wait on a node.
fn all_waiting(server: &Server) -> i64 {
    let fields = ["lock_waiting", "cache_waiters_now", "once_waiting"];
    fields
        .iter()
        .map(|field| server.info_int(&format!("sluice_{field}")))
        .sum()
}

#[test]
fn waiting_clients_of_all_keys_are_redirected_within_a_second_when_their_slot_leaves() {
    let (builder, databases) = node_of_databases();
    let (one, other) = two_nodes(&builder);
    let mut waiting = Vec::new();
    for db in 0..databases {
        let mut holder = connect_in(&one, db);
        for line in [
            "LOCK.ACQUIRE bar me PX 600000",
            "SEM.ACQUIRE {bar}sem me LIMIT 1 PX 600000",
        ] {
            assert!(holder.must(line).int() > 0);
        }
        let fetched = holder.must("CACHE.FETCH {bar}entry LEASE 600000");
        assert_eq!(fetched.array()[0], "LEASE");
        let begun = holder.must("ONCE.BEGIN {bar}work LEASE 600000");
        assert_eq!(begun.array()[0], "NEW");
        for line in WAITS {
            let mut client = connect_in(&one, db);
            client.ask(line);
            waiting.push((client, format!("{db}: {line}")));
        }
    }
    eventually(SOON, || {
        one.info_int("blocked_clients") == waiting.len() as i64
    });
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    for db in 0..databases {
        moving.keys_of(db, &["bar", "{bar}sem", "{bar}work"]);
    }
    moving.finish();
    let moved = Raw::connect(&one).run("GET bar");
    for (client, line) in &mut waiting {
        assert_eq!(client.read(), moved, "{line}");
    }
    assert_eq!(all_waiting(&one), 0);
}

/// Requests that are notified and a hold with a notice, whose keys are in the slot of [`LOW`].
struct Notified {
    subscriber: Raw,
    /// The messages that must come when the slot has left, sorted.
    expected: Vec<String>,
    client: Raw,
}

impl Notified {
    fn on(server: &Server) -> Self {
        let mut subscriber = Raw::connect(server);
        subscriber.must("SUBSCRIBE channel");
        let mut client = Raw::connect(server);
        let held = "LOCK.ACQUIRE {bar}held me PX 600000 ID held NOTIFY channel";
        let mut expected = vec![format!("lost {} held", client.must(held).int())];
        for (at, line) in [
            "LOCK.ACQUIRE bar one PX 600000 BLOCK 0",
            "LOCK.MACQUIRE 2 {bar}free bar one PX 600000 BLOCK 0",
            "SEM.ACQUIRE {bar}sem one LIMIT 1 PX 600000 BLOCK 0",
            "SEM.MACQUIRE 2 {bar}spare 1 {bar}sem 1 two PX 600000 BLOCK 0",
        ]
        .into_iter()
        .enumerate()
        {
            let reply = client.run(&format!("{line} ID id{at} NOTIFY channel"));
            assert!(reply.is_nil(), "{line}: {reply:?}");
            expected.push(format!("moved 0 id{at}"));
        }
        expected.sort();
        Self {
            subscriber,
            expected,
            client,
        }
    }

    /// Panics unless these messages come, and no others.
    fn hear_that_the_slot_has_left(&mut self) {
        let mut text = |within| Some(self.subscriber.read_within(within)?.array()[2].clone());
        let mut heard: Vec<_> = (0..self.expected.len())
            .map(|_| text(SOON).expect("a message comes").text().to_owned())
            .collect();
        heard.sort();
        assert_eq!(heard, self.expected);
        self.client.must("PUBLISH channel end");
        assert_eq!(text(SOON), Some(Value::Bulk(b"end".to_vec())));
    }
}

#[test]
fn notified_clients_hear_that_their_slot_has_left() {
    let (one, other) = two_nodes(&node());
    let mut holder = Raw::connect(&one);
    holder.must("LOCK.ACQUIRE bar me PX 600000");
    holder.must("SEM.ACQUIRE {bar}sem me LIMIT 1 PX 600000");
    let mut notified = Notified::on(&one);
    let moving = Move::start(slot_of(&one, LOW), &one, &other);
    moving.keys_of(0, &["bar", "{bar}sem", "{bar}held"]);
    moving.finish();
    notified.hear_that_the_slot_has_left();
    assert_eq!(all_waiting(&one), 0);
}

/// `CLUSTER DELSLOTS` leaves a slot without a node. The error is that of a client that waits in a built-in command.
#[test]
fn waiting_clients_are_told_that_no_node_serves_their_slot() {
    for full_coverage in ["no", "yes"] {
        let builder = node().config("cluster-require-full-coverage", full_coverage);
        let (one, _other) = two_nodes(&builder);
        let mut holder = Raw::connect(&one);
        for line in [
            "LOCK.ACQUIRE bar me PX 600000",
            "SEM.ACQUIRE {bar}sem me LIMIT 1 PX 600000",
            "CACHE.FETCH {bar}entry LEASE 600000",
            "ONCE.BEGIN {bar}work LEASE 600000",
        ] {
            holder.must(line);
        }
        let mut waiting = WAITS.map(|line| (Raw::connect(&one), line));
        for (client, line) in &mut waiting {
            client.ask(line);
        }
        let mut list = Raw::connect(&one);
        list.ask("BLPOP {bar}list 0");
        assert!(holder.must("LOCK.ACQUIRE {b}lock me PX 600000").int() > 0);
        let mut stays = Raw::connect(&one);
        stays.ask("LOCK.ACQUIRE {b}lock you PX 600000 BLOCK 0");
        eventually(SOON, || {
            one.info_int("blocked_clients") == waiting.len() as i64 + 2
        });
        holder.must(&format!("CLUSTER DELSLOTS {}", slot_of(&one, LOW)));
        let down = list.read();
        assert!(down.err().starts_with("CLUSTERDOWN "), "{down:?}");
        for (client, line) in &mut waiting {
            let reply = client.read();
            match full_coverage {
                "no" => assert_eq!(reply, down, "{line}"),
                // The slot has no node, and soon the cluster is down, which is the other error.
                _ => assert!(reply.err().starts_with("CLUSTERDOWN "), "{line}: {reply:?}"),
            }
        }
        if full_coverage == "no" {
            assert_eq!(all_waiting(&one), 1);
            still_waits(&mut stays);
            holder.must("LOCK.RELEASE {b}lock me");
            assert!(served(&mut stays).int() > 0);
        }
        // Nobody is left in a queue when the slot is back.
        holder.must(&format!("CLUSTER ADDSLOTS {}", slot_of(&one, LOW)));
        eventually(SOON, || {
            ask(&one, "CLUSTER INFO")
                .text()
                .contains("cluster_state:ok")
        });
        assert_eq!(all_waiting(&one), 0);
        assert_eq!(holder.must("LOCK.RELEASE bar me"), 0);
        assert!(holder.must("LOCK.ACQUIRE bar third").int() > 0);
    }
}

/// The node looks ten times a second whether the keys that clients wait for are still its own.
#[test]
fn upkeep_of_waiting_clients_counts_no_hits_or_misses() {
    let (server, mut client) = one_node();
    for line in [
        "LOCK.ACQUIRE bar me PX 600000",
        "SEM.ACQUIRE {bar}sem me LIMIT 1 PX 600000",
        "CACHE.FETCH {bar}entry LEASE 600000",
        "ONCE.BEGIN {bar}work LEASE 600000",
    ] {
        client.must(line);
    }
    let mut waiting = WAITS.map(|line| (Raw::connect(&server), line));
    for (client, line) in &mut waiting {
        client.ask(line);
    }
    eventually(SOON, || all_waiting(&server) == waiting.len() as i64);
    let counted = || ["keyspace_hits", "keyspace_misses"].map(|field| server.info_int(field));
    let looks = || calls(&server, "cluster|nodes");
    let (before, first) = (counted(), looks());
    eventually(SOON, || looks() > first + 10);
    assert_eq!(counted(), before);
    assert_eq!(server.info_int("total_error_replies"), 0);
}

// Several keys

/// Every command that takes several keys, with keys of two slots: what to say before, so that it would do something.
const CROSSING: [&str; 26] = [
    "DELAY.SET bar STREAM foo",
    "LOCK.MACQUIRE 2 bar foo me",
    "LOCK.MACQUIRE 2 bar foo me BLOCK 0",
    "LOCK.MRELEASE 2 bar foo me",
    "SEM.MACQUIRE 2 bar 5 foo 5 me",
    "SEM.MACQUIRE 2 bar 5 foo 5 me BLOCK 0 ID i NOTIFY channel",
    "SEM.MRELEASE 2 bar foo me ALL",
    "STOCK.SET bar 5 EVENTS foo",
    "STOCK.IMPORT bar EVENTS foo",
    "STOCK.MDEDUCT 2 bar 1 foo 1",
    "RATE.MGCRA 2 bar 1 1 5 foo 1 1 5",
    "STOCK.MRESERVE 2 bar 1 foo 1 ORDER o PX 5",
    "STOCK.MCONFIRM 2 bar foo o",
    "STOCK.MCANCEL 2 bar foo o",
    "STOCK.MGET bar foo",
    "BF.RESERVE bar LIKE foo",
    "BF.MERGE bar 1 foo",
    "BF.MERGE bar 2 {bar}2 foo",
    "CACHE.FETCH bar LEASE 5 GUARD foo item",
    "CACHE.FETCH bar LEASE 5 BLOCK 0 GUARD foo item",
    "LOCK.MACQUIRE 3 {bar}2 bar foo me WATCHDOG",
    "LOCK.MRELEASE 3 {bar}2 bar foo me ALL",
    "STOCK.MDEDUCT 3 {bar}2 1 bar 1 foo 1 ORDER o",
    "STOCK.MGET {bar}2 bar foo",
    "STOCK.SET bar 5 NX MAXLEN 5 EVENTS foo",
    "STOCK.IMPORT bar PERUSER 5 EVENTS foo",
];

#[test]
fn no_command_takes_keys_of_two_slots() {
    let (server, mut client) = one_node();
    let digest = server.digest();
    for line in CROSSING {
        let reply = client.run(line);
        assert!(reply.err().starts_with("CROSSSLOT "), "{line}: {reply:?}");

        client.must("MULTI");
        let reply = client.run(line);
        assert!(reply.err().starts_with("CROSSSLOT "), "{line}: {reply:?}");
        assert!(client.run("EXEC").err().starts_with("EXECABORT "), "{line}");

        // A script that declares none of its keys, or just one.
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let script = format!("return redis.call({})", words.join(","));
        for declared in [&["0"][..], &["1", "bar"]] {
            let mut eval = vec!["EVAL", &script];
            eval.extend(declared);
            let reply = client.call(eval);
            // The server refuses keys of several slots or of another node. Where it does not find them, the module does.
            let mut reasons = ["ttempted to access", "CROSSSLOT "].iter();
            let is_refused = reasons.any(|reason| reply.err().contains(reason));
            assert!(is_refused, "{line}: {reply:?}");
        }
        assert_eq!(server.digest(), digest, "{line}");
    }
    // Commands of two slots in one transaction.
    for line in ["LOCK.ACQUIRE bar me", "RATE.ONCE foo PX 5"] {
        client.must("MULTI");
        client.must(line);
        let other = if line.contains("bar") {
            "CACHE.DEL foo"
        } else {
            "BF.ADD bar x"
        };
        client.must(other);
        let reply = client.run("EXEC");
        assert!(reply.err().starts_with("CROSSSLOT "), "{reply:?}");
        assert_eq!(server.digest(), digest);
    }
}

/// So that nobody adds a command on several keys and forgets it above.
#[test]
fn no_command_on_several_keys_is_forgotten() {
    let (_server, mut client) = one_node();
    let tried: BTreeSet<String> = CROSSING
        .iter()
        .map(|line| line.split(' ').next().expect("a name").to_lowercase())
        .collect();
    let names = client.must("COMMAND LIST FILTERBY MODULE sluice");
    let mut takes_many = BTreeSet::new();
    for name in names.array() {
        let info = client.call(["COMMAND", "INFO", name.text()]);
        let specs = info.array()[0].array()[8].array();
        let has_many = specs.len() > 1 || specs.iter().any(spans_several);
        if has_many {
            takes_many.insert(name.text().to_lowercase());
        }
    }
    assert_eq!(takes_many, tried);
}

/// May a key specification of `COMMAND INFO` find several keys?
fn spans_several(spec: &Value) -> bool {
    let find = spec.field("find_keys");
    let spec = find.field("spec");
    find.field("type") == &"keynum" || spec.get("lastkey").is_some_and(|last| *last != 0)
}

#[test]
fn the_log_of_a_valkey_cluster_warns_of_io_threads() {
    for (threads, is_warned) in [("1", false), ("2", true)] {
        let server = node().config("io-threads", threads).start();
        let mut client = Raw::connect(&server);
        let is_valkey = client.must("INFO server").text().contains("valkey_version");
        let warns = server.log().contains("Set io-threads 1");
        assert_eq!(warns, is_valkey && is_warned, "{threads}: {}", server.log());
    }
}
