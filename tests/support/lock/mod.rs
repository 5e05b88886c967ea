//! What the tests of locks and semaphores share: commands as lines of text, and looks at who waits.

mod history;

pub use history::{Grant, check};

use crate::support::{UNSAFE_INTEGER, Value};

/// Who would wait for itself is refused.
pub const DEADLOCK: &str = "DEADLOCK waiting for this lock would never end";
/// The configuration allows no more that wait.
pub const TOO_MANY: &str = "ERR too many waiting clients";

/// The fence in a reply; panics when it cannot be one.
#[track_caller]
pub fn fence(reply: &Value) -> i64 {
    let fence = reply.int();
    assert!((1..UNSAFE_INTEGER).contains(&fence), "{fence} is no fence");
    fence
}

/// Owner, count and watchdog of each holder that an INFO reply names.
#[track_caller]
pub fn holders(info: &Value) -> Vec<(String, i64)> {
    let holder = |holder: &Value| {
        let owner = holder.field("owner").text().to_string();
        (owner, holder.field("count").int())
    };
    info.field("holders").array().iter().map(holder).collect()
}

/// The owners that an INFO reply shows waiting, in their order.
#[track_caller]
pub fn queue(info: &Value) -> Vec<String> {
    let waiters = info.field("waiters").array().iter();
    waiters
        .map(|waiter| waiter.field("owner").text().to_string())
        .collect()
}

/// What is left of the lease of an owner's hold, as the INFO reply tells it.
#[track_caller]
pub fn lease_of(info: &Value, owner: &str) -> i64 {
    holder(info, owner).field("lease_ms").int()
}

/// What an INFO reply tells about one holder.
#[track_caller]
pub fn holder<'a>(info: &'a Value, owner: &str) -> &'a Value {
    let mut holders = info.field("holders").array().iter();
    holders
        .find(|holder| holder.field("owner") == &owner)
        .unwrap_or_else(|| panic!("{owner} holds nothing: {info:?}"))
}

/// Whether the holder's lease is renewed by the server.
#[track_caller]
pub fn is_watched(info: &Value, owner: &str) -> bool {
    match holder(info, owner).field("watchdog") {
        Value::Int(flag) => *flag == 1,
        Value::Bool(flag) => *flag,
        other => panic!("watchdog is {other:?}"),
    }
}

/// Panics unless `left` milliseconds are what a slow machine has left of `lease`.
#[track_caller]
pub fn about(left: i64, lease: i64) {
    assert!(
        (lease - 20_000..=lease).contains(&left),
        "{left} ms are left of {lease}"
    );
}
