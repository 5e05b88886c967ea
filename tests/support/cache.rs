//! What the tests of caches share: what readers are told, who waits, and looks at entries.

use std::time::{Duration, Instant};

use crate::support::{
    Builder, Lines, Raw, SOON, Server, UNSAFE_INTEGER, Value, eventually, field_of,
    wait_for_replica_sync,
};

/// No reply is in flight: all that the server had to send has been sent before its last answer.
pub const NOW: Duration = Duration::ZERO;

/// A lease that does not end during a test.
pub const LONG: &str = "600000";

/// A server without persistence, and a connection to it.
pub fn server_and_client() -> (Server, Raw) {
    let server = Server::start();
    let client = Raw::connect(&server);
    (server, client)
}

/// The state, the value and the number of a reply to `CACHE.FETCH`; panics on anything else.
#[track_caller]
pub fn fetched(reply: &Value) -> (String, Option<Vec<u8>>, i64) {
    let Value::Array(parts) = reply else {
        panic!("not what was fetched: {reply:?}");
    };
    let [state, value, n] = &parts[..] else {
        panic!("not what was fetched: {reply:?}");
    };
    let n = n.int();
    assert!((0..UNSAFE_INTEGER).contains(&n), "{reply:?}");
    let value = (!value.is_nil()).then(|| value.bytes().to_vec());
    (state.text().into(), value, n)
}

/// `STATE value` of a reply to `CACHE.FETCH`, with a dash where there is no value.
#[track_caller]
pub fn shown(reply: &Value) -> String {
    let (state, value, _) = fetched(reply);
    let value = value.map_or("-".into(), |value| value.escape_ascii().to_string());
    format!("{state} {value}")
}

/// The number of a reply to `CACHE.FETCH` that shows this: see [`shown`].
#[track_caller]
pub fn number(reply: &Value, expected: &str) -> i64 {
    assert_eq!(shown(reply), expected);
    fetched(reply).2
}

/// Fetches a key that must be missing, for a lease that does not end during a test; returns its token.
#[track_caller]
pub fn lease(client: &mut Raw, key: &str) -> i64 {
    let reply = client.must(&format!("CACHE.FETCH {key} LEASE {LONG}"));
    number(&reply, "LEASE -")
}

/// What a reader without options finds at a key: `STATE value`.
#[track_caller]
pub fn look(client: &mut Raw, key: &str) -> String {
    shown(&client.must(&format!("CACHE.FETCH {key} LEASE {LONG}")))
}

/// Whether a value is stored with this token.
#[track_caller]
pub fn stores(client: &mut Raw, key: &str, token: i64) -> bool {
    match client.must(&format!("CACHE.SET {key} late PX {LONG} TOKEN {token}")) {
        Value::Int(1) => true,
        Value::Int(0) => false,
        other => panic!("{other:?}"),
    }
}

/// A number that `CACHE.INFO` tells; panics if it tells nothing.
#[track_caller]
pub fn about(client: &mut Raw, key: &str, field: &str) -> i64 {
    client.must(&format!("CACHE.INFO {key}")).field(field).int()
}

/// A counter of the section `cache` of `INFO sluice`.
#[track_caller]
pub fn counter(client: &mut Raw, name: &str) -> i64 {
    let info = client.must("INFO sluice_cache");
    field_of(&info, &format!("sluice_{name}"))
}

/// Panics unless `left` milliseconds are what a slow machine has left of `all`.
#[track_caller]
pub fn nearly(left: i64, all: i64) {
    assert!(
        (all - 20_000..=all).contains(&left),
        "{left} ms are left of {all}"
    );
}

/// How many clients wait for entries.
#[track_caller]
pub fn waiting(server: &Server) -> i64 {
    server.info_int("sluice_waiters_now")
}

/// Waits until that many clients wait.
#[track_caller]
pub fn await_waiting(server: &Server, count: i64) {
    let mut control = Raw::connect(server);
    let mut last = -1;
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        last = counter(&mut control, "waiters_now");
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

/// Waits until the key is gone.
#[track_caller]
pub fn await_gone(client: &mut Raw, key: &str) {
    eventually(SOON, || client.call(["EXISTS", key]) == 0);
}

/// A server that sends its replicas nothing of its own accord, and everything else at once: those that were synchronized
/// without a file have to wait for up to a second.
pub fn quiet() -> Builder {
    Server::builder()
        .config("repl-ping-replica-period", "3600")
        .config("repl-diskless-sync", "no")
}

/// Makes `replica` one of `master`, and waits until it has everything.
#[track_caller]
pub fn follow(master: &Server, replica: &Server) {
    replica.replica_of(master);
    wait_for_replica_sync(master, replica);
}

/// Waits until a server that has become a replica or a master is that.
#[track_caller]
pub fn await_role(server: &Server, role: &str) {
    eventually(SOON, || server.info("role").as_deref() == Some(role));
}
