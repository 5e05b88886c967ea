//! The report of a worker process about each order: one line of text.

use std::fmt;
use std::str::FromStr;

use crate::buy::{Answer, Bought};

/// The outcome of one order.
pub(crate) struct Report {
    /// Its index in `crowd::orders`.
    pub(crate) order: usize,
    pub(crate) bought: Bought,
    /// When the buyer received the reply, in microseconds since 1970: the processes have no other common clock.
    pub(crate) answered_us: u64,
}

const SOLD: &str = "sold";
const SOLD_OUT: &str = "sold-out";
const OVER_LIMIT: &str = "over-limit";

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = match self.bought.answer {
            Answer::Sold => SOLD,
            Answer::SoldOut => SOLD_OUT,
            Answer::OverLimit => OVER_LIMIT,
        };
        let (order, resent, at) = (self.order, self.bought.resent, self.answered_us);
        write!(out, "{order} {answer} {resent} {at}")
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse(line).ok_or_else(|| format!("a worker says {line:?}"))
    }
}

fn parse(line: &str) -> Option<Report> {
    let mut words = line.split(' ');
    let order = words.next()?.parse().ok()?;
    let answer = match words.next()? {
        SOLD => Answer::Sold,
        SOLD_OUT => Answer::SoldOut,
        OVER_LIMIT => Answer::OverLimit,
        _ => return None,
    };
    let resent = words.next()?.parse().ok()?;
    let answered_us = words.next()?.parse().ok()?;
    Some(Report {
        order,
        bought: Bought { answer, resent },
        answered_us,
    })
}
