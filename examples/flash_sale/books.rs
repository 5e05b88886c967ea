//! Reads the sold items from the server, and checks that the records of a stock agree with each other.

use std::collections::{HashMap, HashSet};

use crate::crowd::{self, Order};
use crate::support::{Raw, Server, Value};
use crate::way::{ITEMS, ORDERS, STOCK, Way};

/// The server's record of a sale.
pub(crate) struct Books {
    /// Pieces sold.
    pub(crate) sold: u64,
    /// The items of each order id.
    items_of: HashMap<String, u64>,
    /// The differences. Only a stock of Sluice has records that can be compared.
    pub(crate) faults: Vec<String>,
}

impl Books {
    /// Reads the record of a sale in this way.
    pub(crate) fn read(server: &Server, way: Way) -> Self {
        let mut client = Raw::connect(server);
        match way {
            Way::Stock => read_stock(&mut client),
            _ => read_hash(&mut client),
        }
    }

    /// The items of this order.
    pub(crate) fn items_of(&self, order: &Order) -> u64 {
        self.items_of.get(&order.id).copied().unwrap_or(0)
    }
}

fn read_hash(client: &mut Raw) -> Books {
    let hash = client.call(["HGETALL", ORDERS]);
    let entries = hash.fields().into_iter();
    let items_of: HashMap<_, _> = entries
        .map(|(id, items)| (id.text().to_string(), number(items)))
        .collect();
    Books {
        sold: items_of.values().sum(),
        items_of,
        faults: Vec::new(),
    }
}

/// `STOCK.INFO` has the sold quantity and the event stream has the orders: both must agree.
fn read_stock(client: &mut Raw) -> Books {
    let info = client.call(["STOCK.INFO", STOCK]);
    let mut replay = Replay::default();
    for entry in client.call(["XRANGE", ORDERS, "-", "+"]).array() {
        replay.apply(&entry.array()[1]);
    }
    let available = number(&client.call(["STOCK.GET", STOCK]));
    replay.compare("STOCK.GET", available, replay.available);
    for (field, replayed) in replay.as_info() {
        replay.compare(field, number(info.field(field)), replayed);
    }
    Books {
        sold: number(info.field("sold")),
        items_of: replay.items_of,
        faults: replay.faults,
    }
}

/// A stock that is rebuilt from its events.
#[derive(Default)]
struct Replay {
    available: u64,
    sold: u64,
    ver: u64,
    items_of: HashMap<String, u64>,
    users: HashSet<String>,
    faults: Vec<String>,
}

impl Replay {
    fn apply(&mut self, event: &Value) {
        let qty = number(event.field("qty"));
        match event.field("op").text() {
            "set" => self.available = qty,
            "deduct" => self.deduct(event, qty),
            op => self.faults.push(format!("nobody asked for the event {op}")),
        }
        let (ver, available) = (number(event.field("ver")), number(event.field("available")));
        self.compare("ver of an event", ver, self.ver + 1);
        self.compare("available of an event", available, self.available);
        // One gap is one fault: the next events are compared with the values of this event.
        self.ver = ver;
        self.available = available;
    }

    fn deduct(&mut self, event: &Value, qty: u64) {
        let order = event.field("order").text();
        let user = event.field("user").text();
        *self.items_of.entry(order.into()).or_default() += qty;
        self.users.insert(user.into());
        self.sold += qty;
        if crowd::user_of(order) != Some(user) {
            self.faults.push(format!("{order} was sold to {user}"));
        }
        match self.available.checked_sub(qty) {
            Some(available) => self.available = available,
            None => self.faults.push(format!("{order} got what was not there")),
        }
    }

    /// The expected fields of `STOCK.INFO`.
    fn as_info(&self) -> [(&'static str, u64); 7] {
        [
            ("total", ITEMS),
            ("available", self.available),
            ("reserved", 0),
            ("sold", self.sold),
            ("orders", self.items_of.len() as u64),
            ("users", self.users.len() as u64),
            ("ver", self.ver),
        ]
    }

    fn compare(&mut self, what: &str, got: u64, replayed: u64) {
        if got != replayed {
            let fault = format!("{what} is {got}, and {replayed} by the events");
            self.faults.push(fault);
        }
    }
}

/// An integer, or a string that contains one.
fn number(value: &Value) -> u64 {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        text => text.text().parse().ok(),
    };
    number.unwrap_or_else(|| panic!("not a number of items: {value:?}"))
}
