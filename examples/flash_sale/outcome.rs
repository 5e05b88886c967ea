//! The outcome of a run: the records of the server, compared with the replies to the buyers.

use std::collections::HashMap;

use crate::books::Books;
use crate::buy::Answer;
use crate::crowd::Order;
use crate::report::Report;
use crate::sale::Sale;
use crate::way::{ITEMS, Way};

/// The numbers of one run.
pub(crate) struct Outcome {
    pub(crate) way: Way,
    /// Pieces sold.
    pub(crate) sold: u64,
    /// Sold items beyond the stock.
    pub(crate) oversold: u64,
    /// Orders that were sent again because a reply was lost.
    pub(crate) resent: u64,
    /// Orders with more than one item.
    pub(crate) double_orders: u64,
    /// Users with more than one item, by an order that was sold twice or by a double click.
    pub(crate) double_users: u64,
    /// Orders with an item although the reply to the buyer was a refusal.
    pub(crate) untold: u64,
    /// Seconds from the start until the last buyer received the reply of a sale.
    pub(crate) seconds: f64,
    /// Broken promises. Only `STOCK.DEDUCT` promises anything.
    pub(crate) faults: Vec<String>,
}

impl Outcome {
    /// Compares `books` with the replies to the buyers of `orders` in `sale`.
    pub(crate) fn new(way: Way, orders: &[Order], sale: &Sale, books: Books) -> Self {
        let mut users: HashMap<&str, u64> = HashMap::new();
        for order in orders {
            *users.entry(&order.user).or_default() += books.items_of(order);
        }
        let count = |has: &dyn Fn(&Report, u64) -> bool| {
            let reports = sale.reports.iter();
            let found = reports.filter(|report| has(report, books.items_of(&orders[report.order])));
            found.count() as u64
        };
        let told_so = |report: &Report| report.bought.answer == Answer::Sold;
        let mut outcome = Self {
            way,
            sold: books.sold,
            oversold: books.sold.saturating_sub(ITEMS),
            resent: count(&|report, _| report.bought.resent),
            double_orders: count(&|_, items| items > 1),
            double_users: users.values().filter(|&&items| items > 1).count() as u64,
            untold: count(&|report, items| items > 0 && !told_so(report)),
            seconds: seconds(sale),
            faults: Vec::new(),
        };
        if way == Way::Stock {
            let in_vain = count(&|report, items| items == 0 && told_so(report));
            outcome.faults = books.faults;
            outcome.check(in_vain, users.len() as u64);
        }
        outcome
    }

    /// Sales in a second.
    pub(crate) fn rate(&self) -> f64 {
        if self.sold == 0 {
            return 0.0;
        }
        self.sold as f64 / self.seconds
    }

    /// Checks the guarantees of STOCK.* for this crowd: each of `users` wants one item and is allowed one.
    fn check(&mut self, in_vain: u64, users: u64) {
        let promises = [
            ("items oversold", self.oversold, 0),
            ("items sold", self.sold, ITEMS.min(users)),
            ("orders sold twice", self.double_orders, 0),
            ("users with two items or more", self.double_users, 0),
            ("orders sold and told no", self.untold, 0),
            ("orders told yes and not sold", in_vain, 0),
        ];
        for (what, got, promised) in promises {
            if got != promised {
                let fault = format!("{what}: {got} instead of {promised}");
                self.faults.push(fault);
            }
        }
    }
}

fn seconds(sale: &Sale) -> f64 {
    let sales = sale.reports.iter();
    let last = sales
        .filter(|report| report.bought.answer == Answer::Sold)
        .map(|report| report.answered_us)
        .max();
    let microseconds = last.map_or(0, |last| last.saturating_sub(sale.started_us));
    microseconds as f64 / 1e6
}
