//! What the tests of caches share: what readers are told, who waits, and looks at entries.

use crate::support::{Lines, Raw, UNSAFE_INTEGER, Value, field_of};

/// A lease that does not end during a test.
pub const LONG: &str = "600000";

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
    field_of(&info, &format!("sluice_cache_{name}"))
}

/// Panics unless `left` milliseconds are what a slow machine has left of `all`.
#[track_caller]
pub fn nearly(left: i64, all: i64) {
    assert!(
        (all - 20_000..=all).contains(&left),
        "{left} ms are left of {all}"
    );
}
