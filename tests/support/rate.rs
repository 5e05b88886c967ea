//! What the tests of limits share: the kinds of limits, the numbers of their replies, the errors of the family.

use crate::support::{Lines, Raw, ints};

/// A limit of one kind is no limit of another.
pub const OTHER_KIND: &str = "ERR key holds another kind of limit";
/// What no master sends.
pub const BAD_EFFECT: &str = "ERR invalid replicated effect";

/// 2^53 - 1: the largest quantity.
pub const MOST: i64 = (1 << 53) - 1;
/// In milliseconds: the longest period.
pub const TEN_YEARS: i64 = 315_360_000_000;

/// The kinds of limits, each with what asks for it: nothing leaks and no window ends while a test runs, and there is room
/// for five.
pub const KINDS: [(&str, &str); 7] = [
    ("gcra", "RATE.GCRA % 4 1 315360000000"),
    ("throttle", "CL.THROTTLE % 4 1 315360000"),
    ("window", "RATE.WINDOW % 5 315360000000"),
    ("sliding", "RATE.WINDOW % 5 315360000000 SLIDING"),
    ("exact", "RATE.WINDOW % 5 315360000000 EXACT"),
    ("tiers", "RATE.TIERS % 2 4 1 315360000000 9 2 315360000000"),
    ("once", "RATE.ONCE % PX 315360000000"),
];

/// Those that count, all but `RATE.ONCE`.
pub fn counting_kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.into_iter().filter(|(kind, _)| *kind != "once")
}

/// A line about this key.
pub fn at(line: &str, key: &str) -> String {
    line.replace('%', key)
}

/// The same that costs so much. `CL.THROTTLE` has no option for it.
pub fn costing(line: &str, cost: i64) -> String {
    match line.starts_with("CL.") {
        true => format!("{line} {cost}"),
        false => format!("{line} COST {cost}"),
    }
}

/// One key of each kind, of which three are consumed. They are named after their kinds.
#[track_caller]
pub fn fill(client: &mut Raw) {
    for (kind, line) in KINDS {
        let line = match kind {
            "once" => at(line, kind),
            _ => costing(&at(line, kind), 3),
        };
        client.must(&line);
    }
}

/// The integers of the reply to a line.
#[track_caller]
pub fn ask(client: &mut Raw, line: &str) -> Vec<i64> {
    ints(&client.must(line))
}

/// Panics unless the reply begins with `limited`, `limit`, `remaining`, and its times are these or, since time goes on, up
/// to a minute less.
#[track_caller]
pub fn assert_reply(client: &mut Raw, line: &str, expected: [i64; 5]) {
    let reply = ask(client, line);
    assert_eq!(reply[..3], expected[..3], "{line}: {reply:?}");
    for place in [3, 4] {
        let (time, most) = (reply[place], expected[place]);
        let is_near = match most {
            ..=0 => most..=most,
            _ => most.saturating_sub(60_000).max(0)..=most,
        };
        assert!(
            is_near.contains(&time),
            "{line}: {reply:?}, not {expected:?}"
        );
    }
}

/// How much is left of a limit.
#[track_caller]
pub fn remaining(client: &mut Raw, line: &str) -> i64 {
    ask(client, &costing(line, 0))[2]
}

/// Panics unless each kind that [`fill`] made has two left of its five, and once was not long ago.
#[track_caller]
pub fn assert_filled(client: &mut Raw) {
    for (kind, line) in counting_kinds() {
        assert_eq!(remaining(client, &at(line, kind)), 2, "{kind}");
    }
    assert_eq!(client.must("RATE.ONCE once PX 1000"), 0);
}

/// Panics unless a key expires in so many milliseconds, or up to a minute less.
#[track_caller]
pub fn assert_expires(client: &mut Raw, key: &str, within: i64) {
    let left = client.call(["PTTL", key]).int();
    // The end is rounded up, and the server's present down.
    let is_near = within - 60_000..=within + 1;
    assert!(is_near.contains(&left), "{key} expires in {left} ms");
}
