//! Stocks that sell, with an event stream.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{key, pause};
use crate::support::cluster::Client;
use crate::support::stock::{CLOSED, Entry, SOLD_OUT, replay};
use crate::support::{Random, SOON, eventually, ints};

/// Enough for everybody.
const TOTAL: i64 = 1_000_000;

/// Not enough for everybody.
const FEW: i64 = 120;

/// What the clients were told.
#[derive(Default)]
struct Ledger {
    /// Each change but those that happen by themselves, as [`line`] has it.
    changes: Vec<String>,
    /// How many reservations were left to end by themselves.
    left: usize,
}

pub(super) struct Stocks {
    tag: String,
    stocks: [String; 2],
    few: String,
    events: String,
    ledger: Mutex<Ledger>,
    sold_out: AtomicU64,
}

impl Stocks {
    pub(super) fn prepare(client: &mut Client<'_>, tag: &str) -> Self {
        let stocks = Self {
            tag: tag.into(),
            stocks: ["stock", "stock2"].map(|name| key(tag, name)),
            few: key(tag, "few"),
            events: key(tag, "events"),
            ledger: Mutex::default(),
            sold_out: AtomicU64::new(0),
        };
        let [one, other] = &stocks.stocks;
        for (stock, total) in [(one, TOTAL), (other, TOTAL), (&stocks.few, FEW)] {
            let events = &stocks.events;
            let set = format!("STOCK.SET {stock} {total} EVENTS {events} MAXLEN 10000000");
            assert_eq!(client.must(tag, &set), "OK");
        }
        stocks
    }

    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random, id: &str) {
        let (stock, qty) = (&self.stocks[0], 1 + random.below(5) as i64);
        match random.below(10) {
            0 => self.sell_without_order(client, qty),
            1 => self.sell_few(client, id),
            2 => self.reserve_both(client, random, id),
            3 => {
                self.take(client, "DEDUCT", stock, qty, id, "");
                if random.below(3) == 0 {
                    self.finish(client, "CANCEL", qty, id);
                }
            }
            4 => {
                let px = 20 + random.below(300);
                self.take(client, "RESERVE", stock, qty, id, &format!("PX {px}"));
                self.ledger.lock().unwrap().left += 1;
            }
            _ => {
                self.take(client, "RESERVE", stock, qty, id, "PX 600000");
                pause(random);
                let how = if random.below(3) == 0 {
                    "CANCEL"
                } else {
                    "CONFIRM"
                };
                self.finish(client, how, qty, id);
            }
        }
    }

    fn note(&self, line: String) {
        self.ledger.lock().unwrap().changes.push(line);
    }

    fn sell_without_order(&self, client: &mut Client<'_>, qty: i64) {
        let stock = &self.stocks[0];
        let available = client
            .must(&self.tag, &format!("STOCK.DEDUCT {stock} {qty}"))
            .int();
        self.note(line("deduct", stock, "-", qty, Some(available)));
    }

    fn take(&self, client: &mut Client<'_>, how: &str, stock: &str, qty: i64, id: &str, px: &str) {
        let command = format!("STOCK.{how} {stock} {qty} ORDER {id} {px}");
        let available = client.must(&self.tag, &command).int();
        assert!(available >= 0, "{command}: {available}");
        let op = how.to_lowercase();
        self.note(line(&op, stock, id, qty, Some(available)));
        // A client that is not sure says it again.
        let again = client.must(&self.tag, &command).int();
        assert!(
            again == available || px != "PX 600000" && again == CLOSED,
            "{again}"
        );
    }

    fn finish(&self, client: &mut Client<'_>, how: &str, qty: i64, id: &str) {
        let stock = &self.stocks[0];
        for _again in 0..2 {
            let command = format!("STOCK.{how} {stock} {id}");
            assert_eq!(client.must(&self.tag, &command), qty, "{command}");
        }
        self.note(line(&how.to_lowercase(), stock, id, qty, None));
    }

    fn sell_few(&self, client: &mut Client<'_>, id: &str) {
        let stock = &self.few;
        let command = format!("STOCK.DEDUCT {stock} 1 ORDER {id}");
        match client.must(&self.tag, &command).int() {
            SOLD_OUT => {
                self.sold_out.fetch_add(1, Ordering::Relaxed);
            }
            available => self.note(line("deduct", stock, id, 1, Some(available))),
        }
    }

    fn reserve_both(&self, client: &mut Client<'_>, random: &mut Random, id: &str) {
        let [one, other] = &self.stocks;
        let command = format!("STOCK.MRESERVE 2 {one} 1 {other} 2 ORDER {id} PX 600000");
        let available = ints(&client.must(&self.tag, &command));
        pause(random);
        let confirmed = client.must(&self.tag, &format!("STOCK.MCONFIRM 2 {one} {other} {id}"));
        assert_eq!(ints(&confirmed), [1, 2]);
        for (stock, qty, available) in [(one, 1, available[0]), (other, 2, available[1])] {
            self.note(line("reserve", stock, id, qty, Some(available)));
            self.note(line("confirm", stock, id, qty, None));
        }
    }

    /// The event stream, in pages.
    fn entries(&self, client: &mut Client<'_>) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let last = entries.last().map_or((0, 0), |entry| entry.id);
            let range = format!("XRANGE {} ({}-{} + COUNT 500", self.events, last.0, last.1);
            let page = client.must(&self.tag, &range);
            if page.array().is_empty() {
                return entries;
            }
            entries.extend(page.array().iter().map(Entry::read));
        }
    }

    pub(super) fn check(&self, client: &mut Client<'_>) {
        let tag = &*self.tag;
        let mut number = |stock: &str, field: &str| {
            let info = client.must(tag, &format!("STOCK.INFO {stock}"));
            info.field(field).int()
        };
        eventually(SOON, || number(&self.stocks[0], "reserved") == 0);
        let all = [&self.stocks[0], &self.stocks[1], &self.few];
        let infos = all.map(|stock| {
            let counts = ["available", "reserved", "sold"].map(|field| number(stock, field));
            let expected = if *stock == self.few { FEW } else { TOTAL };
            assert_eq!(counts.iter().sum::<i64>(), expected, "{stock}");
            assert_eq!(number(stock, "total"), expected, "{stock}");
            (counts, number(stock, "ver"))
        });
        let entries = self.entries(client);
        assert!(entries.is_sorted_by(|one, next| one.id < next.id));
        let replayed = replay(&entries);
        for (stock, info) in all.into_iter().zip(infos) {
            assert_eq!(replayed[stock.as_bytes()], info, "{stock}");
        }

        // What the clients were told is what the stream tells, no more and no less.
        let ledger = self.ledger.lock().unwrap();
        let mut expected = ledger.changes.clone();
        expected.sort();
        let told = entries
            .iter()
            .filter(|entry| !["set", "expire"].contains(&&*entry.op));
        let mut told: Vec<_> = told.map(line_of).collect();
        told.sort();
        assert_eq!(told.len(), expected.len());
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told, expected);
        }
        let ended = entries.iter().filter(|entry| entry.op == "expire").count();
        assert_eq!(ended, ledger.left, "reservations that ended by themselves");
        let few_sold = expected.iter().filter(|change| change.contains(&self.few));
        let few_sold = few_sold.count() as i64;
        assert!(few_sold <= FEW && (few_sold == FEW || self.sold_out.load(Ordering::Relaxed) == 0));
        assert!(told.len() > 50 && ended > 2, "the run was too tame");
        println!(
            "{tag}: {} events, {ended} of them ends, {few_sold} of the few",
            entries.len()
        );
    }
}

/// A change as a client knows it.
fn line(op: &str, stock: &str, order: &str, qty: i64, available: Option<i64>) -> String {
    let available = available.map_or(String::new(), |available| available.to_string());
    format!("{op} {stock} {order} {qty} {available}")
}

/// The same of an entry of the stream.
fn line_of(entry: &Entry) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let order = if entry.order.is_empty() {
        "-".into()
    } else {
        text(&entry.order)
    };
    let takes = ["deduct", "reserve"].contains(&&*entry.op);
    let available = takes.then_some(entry.available);
    line(&entry.op, &text(&entry.sku), &order, entry.qty, available)
}
