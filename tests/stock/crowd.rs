//! Many clients at once, on connections that break: nothing is oversold, no order happens twice, and
//! the event stream tells the same story as the stock.

use crate::support::{EndOnDrop, Fsync, Raw, SOON, Server, Value, eventually};
use redis::{Connection, RedisResult};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pseudo-random numbers of a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A client that loses its connection now and then after it has sent a request, and repeats the
/// request until it has the reply. Of servers that are down it waits for the end.
struct Client {
    port: u16,
    connection: Option<Connection>,
    dice: Dice,
}

impl Client {
    fn new(port: u16, seed: u64) -> Self {
        Self {
            port,
            connection: None,
            dice: Dice(seed),
        }
    }

    fn call(&mut self, words: &[&str]) -> Result<i64, String> {
        let deadline = Instant::now() + SOON;
        loop {
            match self.attempt(words) {
                Ok(Some(reply)) => return Ok(reply),
                Err(error) if error.code() == Some("CONFLICT") => return Err(error.to_string()),
                _ => self.connection = None,
            }
            assert!(Instant::now() < deadline, "no reply to {words:?}");
        }
    }

    /// One attempt; `None`: the connection broke before the reply.
    fn attempt(&mut self, words: &[&str]) -> RedisResult<Option<i64>> {
        if self.connection.is_none() {
            let address = format!("redis://127.0.0.1:{}", self.port);
            let connected = redis::Client::open(address)?.get_connection();
            self.connection = connected.ok();
            if self.connection.is_none() {
                thread::sleep(Duration::from_millis(5)); // it is down
            }
        }
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        if self.dice.roll(12) == 0 {
            connection.send_packed_command(&command.get_packed_command())?;
            return Ok(None);
        }
        command.query(connection).map(Some)
    }
}

/// An entry of the event stream.
#[derive(Debug)]
struct Event {
    op: String,
    order: String,
    user: String,
    qty: i64,
    available: i64,
    ver: i64,
}

fn events(server: &Server, stream: &str) -> Vec<Event> {
    let entries = Raw::connect(server).call(["XRANGE", stream, "-", "+"]);
    let event = |entry: &Value| {
        let fields = &entry.array()[1];
        let text = |name: &str| fields.field(name).text().to_owned();
        let number = |name: &str| text(name).parse().expect("a number");
        Event {
            op: text("op"),
            order: text("order"),
            user: text("user"),
            qty: number("qty"),
            available: number("available"),
            ver: number("ver"),
        }
    };
    entries.array().iter().map(event).collect()
}

/// What the events add up to, and what they say became of each order. Panics where they do not fit.
fn replay(events: &[Event]) -> ([i64; 3], HashMap<String, &'static str>) {
    let [mut available, mut reserved, mut sold] = [0i64; 3];
    let mut orders: HashMap<String, &'static str> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.ver, index as i64 + 1, "a gap before {event:?}");
        let qty = event.qty;
        let before = orders.get(&event.order).copied();
        let state = match (event.op.as_str(), before) {
            ("set", None) => {
                available = qty;
                ""
            }
            ("deduct", None) => {
                (available, sold) = (available - qty, sold + qty);
                "sold"
            }
            ("reserve", None) => {
                (available, reserved) = (available - qty, reserved + qty);
                "reserved"
            }
            ("confirm", Some("reserved")) => {
                (reserved, sold) = (reserved - qty, sold + qty);
                "sold"
            }
            ("cancel", Some("reserved")) => {
                (available, reserved) = (available + qty, reserved - qty);
                "cancelled"
            }
            ("cancel", Some("sold")) => {
                (available, sold) = (available + qty, sold - qty);
                "cancelled"
            }
            ("expire", Some("reserved")) => {
                (available, reserved) = (available + qty, reserved - qty);
                "expired"
            }
            _ => panic!("{event:?} after {before:?}"),
        };
        if !event.order.is_empty() {
            orders.insert(event.order.clone(), state);
        }
        assert_eq!(event.available, available, "{event:?}");
        assert!(available >= 0 && reserved >= 0 && sold >= 0, "{event:?}");
    }
    ([available, reserved, sold], orders)
}

fn numbers(server: &Server, key: &str) -> [i64; 3] {
    let info = Raw::connect(server).call(["STOCK.INFO", key]);
    let numbers = ["available", "reserved", "sold"].map(|name| info.field(name).int());
    assert_eq!(info.field("total").int(), numbers.iter().sum::<i64>());
    numbers
}

const TOTAL: i64 = 1000;
const PER_USER: i64 = 4;

/// What a client knows of an order: the last that it was told.
type Told = Vec<(String, &'static str)>;

/// Orders until it is told to stop, in all the ways that there are.
fn shop(client: &mut Client, number: u64, stop: &AtomicBool) -> Told {
    let mut told = Told::new();
    for order in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("order:{number}:{order}");
        let user = format!("user:{}", client.dice.roll(400));
        let qty = (1 + client.dice.roll(3)).to_string();
        if client.dice.roll(3) == 0 {
            let sale = ["STOCK.DEDUCT", "sku", &qty, "ORDER", &id, "USER", &user];
            match client.call(&sale) {
                Ok(0..) => told.push((id.clone(), "sold")),
                Ok(-2 | -1) => told.push((id.clone(), "")),
                other => panic!("{sale:?}: {other:?}"),
            }
        } else {
            let px = (20 + client.dice.roll(150)).to_string();
            let sale = [
                "STOCK.RESERVE",
                "sku",
                &qty,
                "ORDER",
                &id,
                "PX",
                &px,
                "USER",
                &user,
            ];
            match client.call(&sale) {
                Ok(0..) => told.push((id.clone(), "reserved")),
                // Its first request may have been carried out, and may have ended since.
                Ok(-3) => told.push((id.clone(), "expired")),
                Ok(-2 | -1) => told.push((id.clone(), "")),
                other => panic!("{sale:?}: {other:?}"),
            }
            if told.last().is_some_and(|(_, state)| *state == "reserved") && client.dice.roll(3) > 0
            {
                match client.call(&["STOCK.CONFIRM", "sku", &id]) {
                    Ok(1..) => told.push((id.clone(), "sold")),
                    Ok(-3) => told.push((id.clone(), "expired")),
                    other => panic!("confirm {id}: {other:?}"),
                }
            }
        }
        let state = told.last().map_or("", |(_, state)| state);
        if matches!(state, "sold" | "reserved") && client.dice.roll(2) == 0 {
            match client.call(&["STOCK.CANCEL", "sku", &id]) {
                Ok(1..) => told.push((id, "cancelled")),
                Ok(-3) => told.push((id, "expired")),
                other => panic!("cancel {id}: {other:?}"),
            }
        }
    }
    told
}

#[test]
fn a_crowd_on_broken_connections_and_a_server_that_is_killed_oversell_nothing() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut raw = Raw::connect(&server);
    let total = TOTAL.to_string();
    let per_user = PER_USER.to_string();
    raw.call([
        "STOCK.SET",
        "sku",
        &total,
        "PERUSER",
        &per_user,
        "EVENTS",
        "events",
        "MAXLEN",
        "10000000",
    ]);
    let stop = AtomicBool::new(false);
    let port = server.port();
    let told: Vec<Told> = thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        let clients: Vec<_> = (0..32)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || shop(&mut Client::new(port, number), number, stop))
            })
            .collect();
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(900));
            server.crash();
        }
        thread::sleep(Duration::from_millis(900));
        // Orders of every state must exist below, on a slow machine too; an order has at most three events.
        let mut counter = Raw::connect(&server);
        eventually(SOON, || counter.call(["XLEN", "events"]).int() > 2000);
        stop.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .map(|client| client.join().expect("a client"))
            .collect()
    });
    eventually(SOON, || numbers(&server, "sku")[1] == 0);

    let events = events(&server, "events");
    let (sums, orders) = replay(&events);
    assert_eq!(sums, numbers(&server, "sku"));
    assert_eq!(sums.iter().sum::<i64>(), TOTAL);
    let ver = Raw::connect(&server).call(["STOCK.INFO", "sku"]);
    assert_eq!(ver.field("ver").int(), events.len() as i64);

    let mut held: HashMap<&str, i64> = HashMap::new();
    for event in &events {
        let qty = match event.op.as_str() {
            "deduct" | "reserve" => event.qty,
            "cancel" | "expire" => -event.qty,
            _ => 0,
        };
        let held = held.entry(&event.user).or_default();
        *held += qty;
        assert!((0..=PER_USER).contains(held), "{event:?}");
    }

    let mut seen = HashSet::new();
    for (order, state) in told.iter().flatten().rev() {
        if !seen.insert(order) {
            continue; // only the last word counts
        }
        let now = orders.get(order).copied().unwrap_or("");
        let fits = now == *state || (*state == "reserved" && now == "expired");
        assert!(fits, "{order} was told {state:?} and is {now:?}");
    }
    let known = |order: &&String| seen.contains(*order);
    assert_eq!(orders.keys().filter(known).count(), orders.len());
    assert!(orders.len() > 500, "only {} orders", orders.len());
    for state in ["sold", "cancelled", "expired"] {
        assert!(
            orders.values().any(|other| *other == state),
            "no order is {state}"
        );
    }

    let digest = server.digest();
    server.crash();
    assert_eq!(server.digest(), digest);
}

/// The nodes of a cluster, and which of them has which segment.
struct Segments {
    nodes: Vec<Server>,
    of: [usize; 4],
}

impl Segments {
    fn start() -> Self {
        let nodes: Vec<Server> = (0..4)
            .map(|_| Server::builder().cluster(true).start())
            .collect();
        for (index, node) in nodes.iter().enumerate() {
            let first = index as u16 * 4096;
            node.own_slots(first..=first + 4095);
            if index > 0 {
                node.meet(&nodes[0]);
            }
        }
        for node in &nodes {
            node.await_cluster(4);
        }
        let mut raw = Raw::connect(&nodes[0]);
        let of = [0, 1, 2, 3].map(|segment| {
            let slot = raw.call(["CLUSTER", "KEYSLOT", &key(segment)]).int();
            slot as usize / 4096
        });
        Self { nodes, of }
    }

    fn clients(&self, seed: u64) -> [Client; 4] {
        [0, 1, 2, 3].map(|segment| {
            let port = self.nodes[self.of[segment]].port();
            Client::new(port, seed * 4 + segment as u64)
        })
    }

    fn numbers(&self, segment: usize) -> [i64; 3] {
        numbers(&self.nodes[self.of[segment]], &key(segment))
    }
}

fn key(segment: usize) -> String {
    format!("{{sku:{segment}}}")
}

/// Buys one piece, first in the home segment and then in the others. After the reply -1, the buyer closes the order in this segment,
/// because an earlier request without a reply can still arrive. So an order is in at most one segment. After -3, an earlier call has closed
/// it there.
fn buy(clients: &mut [Client; 4], order: &str, home: usize) -> bool {
    (0..4).any(|step| {
        let segment = (home + step) % 4;
        let sale = ["STOCK.DEDUCT", &key(segment), "1", "ORDER", order];
        let left = clients[segment].call(&sale);
        let left = left.unwrap_or_else(|error| panic!("{sale:?}: {error}"));
        if left == -1 {
            let close = ["STOCK.CANCEL", &key(segment), order];
            clients[segment].call(&close).expect("no conflict");
        }
        assert!(left >= 0 || left == -1 || left == -3, "{sale:?}: {left}");
        left >= 0
    })
}

/// Moves pieces between segments. The same id on both sides: whoever repeats it, moves them once.
fn move_pieces(clients: &mut [Client; 4], from: usize, to: usize, qty: i64, id: &str) {
    let taken = clients[from].call(&["STOCK.ADD", &key(from), &format!("-{qty}"), "ORDER", id]);
    if taken.expect("no conflict") >= 0 {
        let put = clients[to].call(&["STOCK.ADD", &key(to), &qty.to_string(), "ORDER", id]);
        assert!(put.expect("no conflict") >= 0);
    }
}

#[test]
fn four_segments_on_four_nodes_sell_all_800_pieces_and_never_801() {
    let segments = Segments::start();
    let nodes: HashSet<usize> = segments.of.into_iter().collect();
    assert_eq!(nodes.len(), 4, "{:?}", segments.of);
    for segment in 0..4 {
        let mut raw = Raw::connect(&segments.nodes[segments.of[segment]]);
        raw.call(["STOCK.SET", &key(segment), "200"]);
    }
    let done = AtomicBool::new(false);
    let sold: usize = thread::scope(|scope| {
        let _end = EndOnDrop(&done);
        let (segments, done) = (&segments, &done);
        let mover = scope.spawn(move || {
            let mut clients = segments.clients(1000);
            let mut moves = 0;
            while !done.load(Ordering::Relaxed) {
                let from = clients[0].dice.roll(4) as usize;
                let to = (from + 1 + clients[0].dice.roll(3) as usize) % 4;
                let qty = 1 + clients[0].dice.roll(15) as i64;
                move_pieces(&mut clients, from, to, qty, &format!("move:{moves}"));
                moves += 1;
            }
            moves
        });
        // Nearly everybody comes to the first segment.
        let buyers: Vec<_> = (0..8)
            .map(|buyer| {
                scope.spawn(move || {
                    let mut clients = segments.clients(buyer);
                    let bought = (0..80).filter(|number| {
                        let home = if number % 10 == 0 { 1 } else { 0 };
                        let order = format!("order:{buyer}:{number}");
                        let is_sold = buy(&mut clients, &order, home);
                        if is_sold && number % 7 == 0 {
                            assert!(buy(&mut clients, &order, home), "{order}");
                        }
                        is_sold
                    });
                    bought.count()
                })
            })
            .collect();
        let sold = buyers
            .into_iter()
            .map(|buyer| buyer.join().expect("a buyer"))
            .sum();
        done.store(true, Ordering::Relaxed);
        assert!(mover.join().expect("the mover") > 0);
        sold
    });
    // Every piece is in one segment, whatever moved.
    let all = [0, 1, 2, 3].map(|segment| segments.numbers(segment));
    let sum = |index: usize| all.iter().map(|numbers| numbers[index]).sum::<i64>();
    assert_eq!((sum(0) + sum(2), sum(2)), (800, sold as i64), "{all:?}");

    // The rest goes to buyers who come later, none of whom need try more than the segments.
    let mut clients = segments.clients(2000);
    let rest = sum(0);
    let late = (0..rest + 50).filter(|number| buy(&mut clients, &format!("late:{number}"), 3));
    assert_eq!(late.count() as i64, rest);
    let all = [0, 1, 2, 3].map(|segment| segments.numbers(segment));
    assert_eq!(all.iter().map(|numbers| numbers[2]).sum::<i64>(), 800);
    assert_eq!(all.map(|numbers| numbers[0]), [0; 4]);
}
