//! Three Sentinels, a master, two replicas, and clients that find the master through the Sentinels. Masters die and
//! freeze; the clients go on by themselves, and what they were told adds up.
//!
//! Replication is asynchronous, so a master that dies takes with it what no replica has got. A client that wants to be sure
//! asks with `WAIT`; what both replicas have got is never lost here, and that is what is claimed. Fences rise all the same.
//!
//! `SLUICE_FAILOVERS` is how often the first test lets a master die and another freeze (1).

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::support::{
    EndOnDrop, Lines, Raw, Server, Value, assert_identical, eventually, number_from,
    wait_for_replica_sync,
};

/// A failover takes some seconds. If an election of a Sentinel fails, which can happen several times on a slow machine, the next one
/// is 20 seconds later.
const SOON: Duration = Duration::from_secs(180);

/// A server that does not answer for this long is left, and another one is looked for.
const PATIENCE: Duration = Duration::from_millis(1500);

const PAUSE: Duration = Duration::from_millis(20);

const GROUP: &str = "shop";

/// A master, its replicas, and who watches them.
struct Group {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Group {
    fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let sentinel = || Server::builder().sentinel().start();
        let sentinels: Vec<_> = (0..3).map(|_| sentinel()).collect();
        for replica in &servers[1..] {
            replica.replica_of(&servers[0]);
        }
        for replica in &servers[1..] {
            wait_for_replica_sync(&servers[0], replica);
        }
        for sentinel in &sentinels {
            watch(sentinel, servers[0].port());
        }
        let group = Self { servers, sentinels };
        group.await_acquaintance();
        group
    }

    /// Waits until every Sentinel knows both replicas and the two others.
    fn await_acquaintance(&self) {
        eventually(SOON, || {
            self.sentinels.iter().all(|sentinel| {
                let about = sentinel.command(["SENTINEL", "MASTER", GROUP]);
                let is_two = |field: &str| about.field(field) == &"2";
                is_two("num-slaves") && is_two("num-other-sentinels")
            })
        });
    }

    /// The server that is the master, by what all Sentinels and it itself say.
    fn try_master(&self) -> Option<&Server> {
        let ports: HashSet<_> = self.sentinels.iter().map(named_master).collect();
        let port = ports.iter().copied().next().flatten()?;
        let server = self.servers.iter().find(|server| server.port() == port)?;
        let is_master = || {
            let role = Raw::try_connect(port).and_then(|mut c| c.try_call(["ROLE"], PATIENCE));
            matches!(role, Ok(Some(role)) if role.array()[0] == "master")
        };
        (ports.len() == 1 && server.is_running() && is_master()).then_some(server)
    }

    fn master(&self) -> &Server {
        let mut master = None;
        eventually(SOON, || {
            master = self.try_master();
            master.is_some()
        });
        master.unwrap()
    }

    /// Waits until another one is the master.
    fn master_after(&self, old: &Server) -> &Server {
        let mut master = None;
        eventually(SOON, || {
            let found = self.try_master();
            master = found.filter(|server| server.port() != old.port());
            master.is_some()
        });
        master.unwrap()
    }

    /// Waits until the master has two replicas that have all it has.
    fn await_health(&self) {
        eventually(SOON, || {
            let Some(master) = self.try_master() else {
                return false;
            };
            master.info_int("connected_slaves") == 2
                && self.servers.iter().all(|server| {
                    server.port() == master.port()
                        || server.info("master_link_status").as_deref() == Some("up")
                            && server.info("master_replid") == master.info("master_replid")
                })
        });
    }

    /// Freezes the replicas and cuts their links: they will find what their sockets hold, and nothing later. Returns the master and
    /// its replicas.
    fn silence_replicas(&self) -> (&Server, Vec<&Server>) {
        let master = self.master();
        let is_replica = |server: &&Server| server.port() != master.port();
        let replicas: Vec<_> = self.servers.iter().filter(is_replica).collect();
        for replica in &replicas {
            replica.stop_signal();
        }
        master.command(["CLIENT", "KILL", "TYPE", "replica"]);
        (master, replicas)
    }

    fn client(&self) -> Client {
        Client {
            sentinels: self.sentinels.iter().map(Server::port).collect(),
            connection: None,
        }
    }
}

/// The master of which this Sentinel knows.
fn named_master(sentinel: &Server) -> Option<u16> {
    let address = sentinel.command(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP]);
    address.array()[1].text().parse().ok()
}

/// Lets a Sentinel watch the group, with timeouts for a test instead of those for a data center. The Sentinel marks a master as down
/// only after six seconds of silence, because a running master may stall for some seconds.
fn watch(sentinel: &Server, master: u16) {
    let mut client = Raw::connect(sentinel);
    client.must(
        "SENTINEL DEBUG INFO-PERIOD 300 PING-PERIOD 300 ASK-PERIOD 200 PUBLISH-PERIOD 300 TILT-PERIOD 1000 \
         MIN-LINK-RECONNECT-PERIOD 500",
    );
    client.must(&format!("SENTINEL MONITOR {GROUP} 127.0.0.1 {master} 2"));
    client.must(&format!(
        "SENTINEL SET {GROUP} down-after-milliseconds 6000 failover-timeout 10000 parallel-syncs 2"
    ));
}

// A client

/// A client that asks the Sentinels where the master is, whenever the one that it knew does not answer or is none.
struct Client {
    sentinels: Vec<u16>,
    connection: Option<Raw>,
}

impl Client {
    /// The reply of the master; `None` if there is none now. Whether the command was executed is not known then.
    fn try_run(&mut self, line: &str) -> Option<Value> {
        let mut connection = self.connection.take().or_else(|| self.find_master())?;
        let reply = connection
            .try_call(line.split_whitespace(), PATIENCE)
            .ok()??;
        if let Value::Error(text) = &reply {
            // A master no more, or not yet, or not any more alone.
            let moved = ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN"];
            let code = text.split_whitespace().next().unwrap_or_default();
            assert!(moved.contains(&code), "{line}: {text}");
            return None;
        }
        self.connection = Some(connection);
        Some(reply)
    }

    /// Asks until there is a reply. The command must be one that may be sent again.
    fn run(&mut self, line: &str) -> Value {
        let start = Instant::now();
        loop {
            if let Some(reply) = self.try_run(line) {
                return reply;
            }
            assert!(start.elapsed() < SOON, "no master for {line}");
            sleep(PAUSE);
        }
    }

    /// Have both replicas got all that this connection has written?
    fn is_secured(&mut self) -> bool {
        // On another connection it would speak of other writes.
        self.connection.is_some()
            && self
                .try_run("WAIT 2 300")
                .is_some_and(|replicas| replicas == 2)
    }

    fn find_master(&self) -> Option<Raw> {
        let ask = |port: &u16| {
            let mut sentinel = Raw::try_connect(*port).ok()?;
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP];
            let address = sentinel.try_call(question, PATIENCE).ok()??;
            address.array()[1].text().parse().ok()
        };
        let port = self.sentinels.iter().find_map(ask)?;
        let mut connection = Raw::try_connect(port).ok()?;
        let role = connection.try_call(["ROLE"], PATIENCE).ok()??;
        (role.array()[0] == "master").then_some(connection)
    }
}

// What clients do, and what they were told

const PIECES: i64 = 1_000_000;

/// A hold, from the moment when it was asked for to the one when it was known.
struct Hold {
    asked: Instant,
    known: Instant,
    fence: i64,
}

/// What all clients were told.
#[derive(Default)]
struct Books {
    holds: Mutex<Vec<Hold>>,
    /// The fences of the writes that the protected resource has let in, in order.
    writes: Mutex<Vec<i64>>,
    refused_writes: Mutex<u64>,
    /// Orders that were sold, and whether both replicas knew it.
    sold: Mutex<HashMap<String, bool>>,
    sent: Mutex<HashSet<String>>,
    /// Who was the first for a key: when it was heard, and whether both replicas knew it.
    firsts: Mutex<HashMap<String, Vec<(Instant, bool)>>>,
}

impl Books {
    /// Takes a lock, writes under its protection, and gives it back.
    fn lock_and_write(&self, client: &mut Client, owner: &str) {
        let asked = Instant::now();
        let line = format!("LOCK.ACQUIRE lock {owner} PX 2000 BLOCK 500 ID {owner}");
        let reply = client.run(&line);
        if reply.is_nil() {
            return;
        }
        let fence = reply.int();
        self.holds.lock().unwrap().push(Hold {
            asked,
            known: Instant::now(),
            fence,
        });
        self.write(fence);
        client.run(&format!("LOCK.RELEASE lock {owner} ALL"));
    }

    /// What the lock protects: it refuses who comes with a smaller fence than it has seen.
    fn write(&self, fence: i64) {
        let mut writes = self.writes.lock().unwrap();
        if writes.last().is_none_or(|last| fence > *last) {
            writes.push(fence);
        } else {
            *self.refused_writes.lock().unwrap() += 1;
        }
    }

    fn use_a_permit(client: &mut Client, owner: &str) {
        let line = format!("SEM.ACQUIRE sem {owner} LIMIT 2 PX 2000 BLOCK 500 ID {owner}");
        if !client.run(&line).is_nil() {
            client.run(&format!("SEM.RELEASE sem {owner} ALL"));
        }
    }

    fn buy(&self, client: &mut Client, order: &str, reserves: bool) {
        self.sent.lock().unwrap().insert(order.to_owned());
        let bought = if reserves {
            // The reservation may be lost and the confirmation find none: then it is made again.
            let left = client.run(&format!("STOCK.RESERVE sku 1 ORDER {order} PX 600000"));
            assert!(left.int() >= 0, "{order}: {left:?}");
            client.run(&format!("STOCK.CONFIRM sku {order}")) == 1
        } else {
            let left = client.run(&format!("STOCK.DEDUCT sku 1 ORDER {order}"));
            assert!(left.int() >= 0, "{order}: {left:?}");
            true
        };
        let is_secured = client.is_secured();
        if bought {
            self.sold
                .lock()
                .unwrap()
                .insert(order.to_owned(), is_secured);
        }
    }

    fn be_first(&self, client: &mut Client, key: &str) {
        // Whoever lost the reply may have been the first, and hears that it was not: nobody is then.
        if client.run(&format!("RATE.ONCE {key} PX 600000")) == 1 {
            let first = (Instant::now(), client.is_secured());
            let mut firsts = self.firsts.lock().unwrap();
            firsts.entry(key.to_owned()).or_default().push(first);
        }
    }

    fn work(&self, mut client: Client, number: usize, stop: &AtomicBool) {
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let name = format!("c{number}-{round}");
            self.lock_and_write(&mut client, &name);
            Self::use_a_permit(&mut client, &name);
            self.buy(&mut client, &name, round % 3 == 0);
            self.be_first(&mut client, &format!("once:{round}"));
        }
    }

    /// Later holds have larger fences, whoever gave them: also those that no replica ever heard of.
    fn assert_fences_rise(&self) {
        let mut holds = self.holds.lock().unwrap();
        holds.sort_by_key(|hold| hold.known);
        let mut by_asking: Vec<_> = holds.iter().collect();
        by_asking.sort_by_key(|hold| hold.asked);
        let mut known = holds.iter().peekable();
        let mut largest = 0;
        for hold in by_asking {
            while let Some(before) = known.next_if(|before| before.known < hold.asked) {
                largest = largest.max(before.fence);
            }
            assert!(hold.fence > largest, "{} after {largest}", hold.fence);
        }
        let fences: HashSet<_> = holds.iter().map(|hold| hold.fence).collect();
        assert_eq!(fences.len(), holds.len(), "a fence was given twice");
    }

    /// What the stock says is what the clients were told, apart from what replication lost. Returns how many were lost.
    fn assert_orders_add_up(&self, master: &Server) -> usize {
        let mut client = Raw::connect(master);
        let sent = self.sent.lock().unwrap();
        let mut state_of = |order: &String| {
            let info = client.must(&format!("STOCK.ORDER sku {order}"));
            (!info.is_nil()).then(|| info.field("state").text().to_owned())
        };
        let states: HashMap<_, _> = sent
            .iter()
            .filter_map(|order| Some((order, state_of(order)?)))
            .collect();
        let sold_here = states.values().filter(|state| *state == "sold").count();
        let reserved_here = states.values().filter(|state| *state == "reserved").count();
        let stock = client.must("STOCK.INFO sku");
        assert_eq!(stock.field("sold").int(), sold_here as i64);
        assert_eq!(stock.field("reserved").int(), reserved_here as i64);
        let left = PIECES - (sold_here + reserved_here) as i64;
        assert_eq!(stock.field("available").int(), left);
        let told = self.sold.lock().unwrap();
        let is_lost = |order: &String| states.get(order).is_none_or(|state| state != "sold");
        for (order, is_secured) in &*told {
            assert!(!is_secured || !is_lost(order), "{order} was lost");
        }
        told.keys().filter(|order| is_lost(order)).count()
    }

    /// There are two firsts only where the earlier one was lost.
    fn assert_firsts_are_alone(&self) {
        for (key, firsts) in &mut *self.firsts.lock().unwrap() {
            firsts.sort();
            let (_, earlier) = firsts.split_last().unwrap();
            let is_kept = |(_, is_secured): &(Instant, bool)| *is_secured;
            assert!(!earlier.iter().any(is_kept), "{key}: {firsts:?}");
        }
    }

    fn progress(&self) -> usize {
        self.writes.lock().unwrap().len() + self.sold.lock().unwrap().len()
    }

    fn await_progress(&self) {
        let before = self.progress();
        eventually(SOON, || self.progress() > before + 15);
    }
}

// The tests

#[test]
fn clients_go_on_when_masters_die_and_freeze() {
    let turns = number_from("SLUICE_FAILOVERS", 1);
    let group = Group::start();
    let books = Books::default();
    Raw::connect(group.master()).must(&format!("STOCK.SET sku {PIECES}"));
    let stop = AtomicBool::new(false);
    let (group_ref, books_ref, stop_ref) = (&group, &books, &stop);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..4 {
            let client = group_ref.client();
            scope.spawn(move || books_ref.work(client, number, stop_ref));
        }
        // A failed check must end the clients too.
        let faults = scope.spawn(move || {
            for _ in 0..turns {
                a_master_dies(group_ref, books_ref);
                a_master_freezes(group_ref, books_ref);
            }
        });
        let outcome = faults.join();
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });

    group.await_health();
    let master = group.master();
    for server in &group.servers {
        if server.port() != master.port() {
            assert_identical(master, server);
        }
        let log = server.log();
        for word in ["internal error", "panicked", "ASSERTION", "crashed"] {
            assert!(!log.contains(word), "{word}: {log}");
        }
    }
    books.assert_fences_rise();
    books.assert_firsts_are_alone();
    let lost = books.assert_orders_add_up(master);
    assert!(lost > 0, "the dead masters had told all");
    println!(
        "{} holds, {} writes, {} refused, {} orders, {lost} lost",
        books.holds.lock().unwrap().len(),
        books.writes.lock().unwrap().len(),
        books.refused_writes.lock().unwrap(),
        books.sold.lock().unwrap().len(),
    );

    // A Sentinel has the servers write their configuration: the module is in it.
    let rewritten = group.servers.iter().find(|it| it.port() != master.port());
    let rewritten = rewritten.unwrap();
    rewritten.crash();
    group.await_health();
    wait_for_replica_sync(master, rewritten);
    assert_eq!(rewritten.digest(), master.digest());
}

fn a_master_dies(group: &Group, books: &Books) {
    books.await_progress();
    // No replica receives the last writes of the master.
    let (master, replicas) = group.silence_replicas();
    let orders = || books.sold.lock().unwrap().len();
    let before = orders();
    eventually(SOON, || orders() > before + 12);
    master.kill9();
    for replica in replicas {
        replica.cont_signal();
    }
    group.master_after(master);
    books.await_progress();
    // It comes back, without anything, and becomes a replica.
    master.restart();
    group.await_health();
    assert_eq!(master.info("role").as_deref(), Some("slave"));
    books.await_progress();
}

fn a_master_freezes(group: &Group, books: &Books) {
    let master = group.master();
    let mut holder = Raw::connect(master);
    holder.must("LOCK.ACQUIRE held holder PX 3600000");
    assert_eq!(holder.must("WAIT 2 20000"), 2);
    let mut blocked: Vec<_> = [
        "LOCK.ACQUIRE held x BLOCK 0",
        "LOCK.MACQUIRE 2 held free y BLOCK 0",
        "BLPOP list 0",
    ]
    .map(|line| {
        let mut client = Raw::connect(master);
        client.ask(line);
        client
    })
    .into();
    books.await_progress();
    master.stop_signal();
    group.master_after(master);
    books.await_progress();
    master.cont_signal();
    // Nobody who waited there gets the lock, then or later. A Sentinel closes all connections in the same step as it makes
    // a server a replica, so that mostly nobody hears the reply, as from BLPOP.
    for client in &mut blocked {
        match client.try_read(SOON) {
            Err(_) => {}
            Ok(Some(Value::Error(text))) => assert!(text.starts_with("UNBLOCKED "), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    group.await_health();
    // If the machine stands still, another failover can follow, also back to the first master.
    let mut client = group.client();
    assert!(client.run("LOCK.HELD held holder").int() > 0);
    assert_eq!(client.run("LOCK.RELEASE held holder ID end"), 0);
    assert_eq!(client.run("EXISTS held free"), 0);
    assert_eq!(master.info_int("sluice_lock_waiting"), 0);
}

/// The replicas have lost their link and do not know it; the master acknowledges, and dies.
#[test]
fn an_acknowledged_write_that_no_replica_got_is_lost_and_the_fence_protects() {
    let group = Group::start();
    let guard = Server::start();
    let mut resource = Raw::connect(&guard);
    let mut client = group.client();
    client.run("STOCK.SET sku 1");
    client.run("LOCK.ACQUIRE kept me PX 3600000");
    eventually(SOON, || {
        client.run("LOCK.RENEW kept me PX 3600000"); // connects again if WAIT was not answered in time
        client.is_secured()
    });

    let (master, replicas) = group.silence_replicas();
    let lost = client.run("LOCK.ACQUIRE lock old PX 3600000").int();
    assert_eq!(client.run("STOCK.DEDUCT sku 1 ORDER old"), 0);
    // Who asks is told.
    assert!(!client.is_secured());
    master.kill9();
    for replica in replicas {
        replica.cont_signal();
    }
    assert_eq!(resource.must(&format!("LOCK.GUARD door {lost}")), 1);

    // The lock goes to another, while the first still believes to hold it.
    let new = client.run("LOCK.ACQUIRE lock new PX 3600000").int();
    assert!(new > lost);
    assert_eq!(resource.must(&format!("LOCK.GUARD door {new}")), 1);
    assert_eq!(resource.must(&format!("LOCK.GUARD door {lost}")), 0);
    assert!(client.run("LOCK.RENEW lock old").is_nil());
    // The piece is sold twice: once by the dead master, and once here.
    assert_eq!(client.run("STOCK.DEDUCT sku 1 ORDER new"), 0);
    assert_eq!(client.run("STOCK.DEDUCT sku 1 ORDER old"), -1);
    assert!(client.run("LOCK.HELD kept me").int() > 0);
    master.restart();
    group.await_health();
    let master = group.master();
    for server in &group.servers {
        eventually(SOON, || server.digest() == master.digest());
    }
}
