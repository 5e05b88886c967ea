//! What the tests of locks and semaphores share: commands as lines of text, and looks at who waits.

mod history;

use std::time::{Duration, Instant};

pub use history::{Grant, check};

use crate::support::{Raw, Server, Value, eventually};

pub use crate::support::{
    KeyspaceEvents as Events, Lines, NOT_AN_INTEGER, SOON, SYNTAX, UNSAFE_INTEGER, WRONGTYPE,
    field_of, now_ms, now_us, until_pong,
};

/// No reply is in flight: all that the server had to send has been sent before its last answer.
pub const NOW: Duration = Duration::ZERO;

pub const DEADLOCK: &str = "DEADLOCK waiting for this lock would never end";
pub const TOO_MANY: &str = "ERR too many waiting clients";

/// How many clients wait for locks and semaphores.
#[track_caller]
pub fn waiting(server: &Server) -> i64 {
    server.info_int("sluice_waiting")
}

/// Waits until that many clients wait.
#[track_caller]
pub fn await_waiting(server: &Server, count: i64) {
    let mut control = Raw::connect(server);
    let mut last = -1;
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        last = field_of(&control.run("INFO sluice"), "sluice_waiting");
        if last == count {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{last} clients wait, not {count}");
}

/// A new connection that has sent the command of `line`, once the server counts it among those that wait.
#[track_caller]
pub fn waiter(server: &Server, line: &str) -> Raw {
    let mut client = Raw::connect(server);
    waits(server, &mut client, line);
    client
}

/// Sends the command of `line` and returns once the server counts the client among those that wait.
#[track_caller]
pub fn waits(server: &Server, client: &mut Raw, line: &str) {
    let before = waiting(server);
    client.ask(line);
    await_waiting(server, before + 1);
}

/// The fence in a reply; panics when it cannot be one.
#[track_caller]
pub fn fence(reply: &Value) -> i64 {
    let fence = reply.int();
    assert!((1..UNSAFE_INTEGER).contains(&fence), "{fence} is no fence");
    fence
}

/// Panics unless the client still waits: the server has sent it nothing.
#[track_caller]
pub fn still_waits(client: &mut Raw) {
    let reply = client.read_within(NOW);
    assert!(reply.is_none(), "it was to wait and got {reply:?}");
}

/// The reply to a client that waits, which must come soon.
#[track_caller]
pub fn served(client: &mut Raw) -> Value {
    client
        .read_within(SOON)
        .unwrap_or_else(|| panic!("nobody serves this waiter"))
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

/// Waits until the key is gone.
#[track_caller]
pub fn await_gone(client: &mut Raw, key: &str) {
    eventually(SOON, || client.call(["EXISTS", key]) == 0);
}
