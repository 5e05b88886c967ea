//! Clients that wait for locks, permits and entries.

use std::time::{Duration, Instant};

use super::client::Raw;
use super::server::Server;
use super::talk::{Lines as _, SOON, field_of, run_delayed};
use super::value::Value;
use super::wait::eventually;

/// No reply is in flight: all that the server had to send has been sent before its last answer.
pub const NOW: Duration = Duration::ZERO;

/// How many clients wait.
#[track_caller]
pub fn waiting(server: &Server) -> i64 {
    waiting_as_told(&mut Raw::connect(server))
}

fn waiting_as_told(client: &mut Raw) -> i64 {
    let info = client.must("INFO sluice");
    count_of(&info, "sluice_lock_waiting")
        + count_of(&info, "sluice_cache_waiters_now")
        + count_of(&info, "sluice_once_waiting")
}

/// A field of `INFO`; 0 if its family is not loaded.
#[track_caller]
fn count_of(info: &Value, name: &str) -> i64 {
    let family: Vec<&str> = name.split_inclusive('_').take(2).collect();
    let family = family.concat();
    let is_loaded = info.text().lines().any(|line| line.starts_with(&family));
    if is_loaded { field_of(info, name) } else { 0 }
}

/// Waits until that many clients wait.
#[track_caller]
pub fn await_waiting(server: &Server, count: i64) {
    let mut control = Raw::connect(server);
    let mut last = -1;
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        last = waiting_as_told(&mut control);
        if last == count {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{last} clients wait, not {count}");
}

/// A new connection that has sent `line`. Returns when the server has blocked or answered it.
#[track_caller]
pub fn waiter(server: &Server, line: &str) -> Raw {
    let mut client = Raw::connect(server);
    waits(server, &mut client, line);
    client
}

/// Sends the command of `line` and returns once the server has blocked the client, or has answered it.
#[track_caller]
pub fn waits(server: &Server, client: &mut Raw, line: &str) {
    let mut control = Raw::connect(server);
    let list = format!("CLIENT LIST ID {}", client.id());
    client.ask(line);
    // The number of waiting clients is not enough: another client may leave when this one arrives.
    eventually(SOON, || {
        client.has_received() || is_blocked(&control.must(&list))
    });
}

/// Whether the server has blocked the client of this line of `CLIENT LIST`.
fn is_blocked(line: &Value) -> bool {
    let mut fields = line.text().split(' ');
    let flags = fields.find_map(|field| field.strip_prefix("flags="));
    flags.is_some_and(|flags| flags.contains('b'))
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

/// Lets a key go free after the time of its first waiting client is up and before the server has answered this client: a transaction
/// delays the end of the wait. Returns the answers for this client and for the next one. `hold` takes the key and returns the line that
/// frees it. `wait` is the line of a client that waits, without `BLOCK`. `granted` is the state of an answer that grants the key.
#[track_caller]
pub fn late_and_next_answer(
    hold: impl Fn(&mut Raw) -> String,
    wait: &str,
    granted: &str,
) -> (Value, Value) {
    const BLOCK_MS: i64 = 500;
    for _ in 0..10 {
        let builder = Server::builder().clock(0);
        let server = builder.config("enable-debug-command", "yes").start();
        let mut client = Raw::connect(&server);
        server.freeze_clock(true);
        let free = hold(&mut client);
        let mut late = waiter(&server, &format!("{wait} BLOCK {BLOCK_MS}"));
        let mut next = waiter(&server, &format!("{wait} BLOCK 0"));
        let reply = run_delayed(&mut client, &free, || server.shift_clock(BLOCK_MS + 1));
        assert_eq!(reply, 1);
        let answer = served(&mut late);
        // Otherwise the transaction was over before the clock was shifted.
        if answer.array()[0] != granted {
            return (answer, served(&mut next));
        }
    }
    panic!("the client whose time was up was granted the key");
}
