//! The printed result.

use crate::options::Options;
use crate::outcome::Outcome;
use crate::way::{ITEMS, Way};

const LEGEND: &str = "
resent        orders sent again because the first reply was lost
orders twice  orders with two items under one order id
users twice   users with two items or more, by such an order or by a double click
told no       orders with an item although the reply to the buyer was a refusal
seconds       from the start until the last buyer received the reply of a sale";

/// Prints the numbers of the crowd.
pub(crate) fn heading(options: &Options, orders: usize) {
    let Options {
        buyers, processes, ..
    } = options;
    let second_clicks = orders as u64 - buyers;
    println!(
        "{ITEMS} items. Users: {buyers}, in processes: {processes}. Orders: {orders}, second clicks: {second_clicks}.\n"
    );
}

/// The numbers.
pub(crate) fn table(outcomes: &[Outcome]) {
    println!(
        "{:<14}{:>7}{:>10}{:>9}{:>14}{:>13}{:>9}{:>10}{:>10}",
        "way",
        "sold",
        "oversold",
        "resent",
        "orders twice",
        "users twice",
        "told no",
        "sales/s",
        "seconds"
    );
    for outcome in outcomes {
        println!(
            "{:<14}{:>7}{:>10}{:>9}{:>14}{:>13}{:>9}{:>10.0}{:>10.3}",
            outcome.way.name(),
            outcome.sold,
            outcome.oversold,
            outcome.resent,
            outcome.double_orders,
            outcome.double_users,
            outcome.untold,
            outcome.rate(),
            outcome.seconds
        );
    }
    println!("{LEGEND}");
}

/// Prints an explanation of the numbers.
pub(crate) fn explanation(outcomes: &[Outcome]) {
    println!();
    for outcome in outcomes {
        println!("{}: {}", outcome.way.name(), sentence(outcome));
    }
}

/// A sentence that is correct for all numbers.
fn sentence(outcome: &Outcome) -> String {
    let oversold = outcome.oversold;
    match outcome.way {
        Way::GetSet if oversold > 0 => {
            format!(
                "oversold {oversold}. Buyers who read the same number each wrote the same next number."
            )
        }
        Way::GetSet => "oversold 0 this time, and nothing prevents it.".into(),
        Way::LocalLock if oversold > 0 => {
            format!(
                "oversold {oversold}. The lock of one process does not stop the other processes."
            )
        }
        Way::LocalLock => "oversold 0 this time: with one process, or by chance.".into(),
        Way::Lock | Way::Lua => format!(
            "oversold {oversold}. It knows no orders and no users. Orders that were sent again and sold again: {}.",
            outcome.double_orders
        ),
        Way::Stock if outcome.faults.is_empty() => format!(
            "oversold {oversold}. Each order is sold once, each user has one item, and the event stream has no gap and the same numbers."
        ),
        Way::Stock => "broke a guarantee, see below.".into(),
    }
}
