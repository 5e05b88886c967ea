//! What the tests of work that is done once share: replies, counters, and work in each state.

use crate::support::{Lines, Raw, Value, field_of};

/// The reply of a key that was used with another fingerprint.
pub const CONFLICT: &str = "CONFLICT key was used with another fingerprint";

/// The state, the result and the number of a reply of `ONCE.BEGIN`.
#[track_caller]
pub fn begun(reply: &Value) -> (String, Option<Vec<u8>>, i64) {
    let [state, result, number] = reply.array() else {
        panic!("{reply:?}");
    };
    let result = (!result.is_nil()).then(|| result.bytes().to_vec());
    (state.text().to_owned(), result, number.int())
}

/// Begins the work of a line, which is free. Returns the token.
#[track_caller]
pub fn begin(client: &mut Raw, line: &str) -> i64 {
    token(&client.must(line))
}

/// The token of a reply to a client that begins the work.
#[track_caller]
pub fn token(reply: &Value) -> i64 {
    let (state, result, token) = begun(reply);
    assert_eq!((&*state, result), ("NEW", None), "{reply:?}");
    assert!(token > 0, "{reply:?}");
    token
}

/// Panics unless the work is busy. Returns the time that is left of the lease.
#[track_caller]
pub fn busy(reply: &Value) -> i64 {
    let (state, result, left) = begun(reply);
    assert_eq!((&*state, result), ("BUSY", None), "{reply:?}");
    left
}

/// Panics unless the work has this result. Returns how long it is remembered.
#[track_caller]
pub fn done(reply: &Value, expected: &str) -> i64 {
    let (state, result, left) = begun(reply);
    assert_eq!(state, "DONE", "{reply:?}");
    assert_eq!(result.as_deref(), Some(expected.as_bytes()), "{reply:?}");
    left
}

/// A counter of the family.
#[track_caller]
pub fn counter(client: &mut Raw, name: &str) -> i64 {
    let info = client.must("INFO sluice_once");
    field_of(&info, &format!("sluice_once_{name}"))
}

/// Busy work, done work with and without a fingerprint, and an empty result; nothing ends while a test runs. Returns the token
/// of the busy work.
#[track_caller]
pub fn fill(client: &mut Raw) -> i64 {
    for (key, result) in [("done", "paid"), ("empty", "")] {
        let token = begin(client, &format!("ONCE.BEGIN {key} LEASE 600000"));
        let token = token.to_string();
        let reply = client.call(["ONCE.DONE", key, &token, result, "PX", "90000000"]);
        assert_eq!(reply, 1);
    }
    let token = begin(client, "ONCE.BEGIN known LEASE 600000 FINGERPRINT f");
    assert_eq!(
        client.must(&format!("ONCE.DONE known {token} paid PX 90000000")),
        1
    );
    begin(client, "ONCE.BEGIN busy LEASE 90000000 FINGERPRINT f")
}

/// Panics unless the keys are as [`fill`] made them.
#[track_caller]
pub fn assert_filled(client: &mut Raw, token: i64) {
    for (line, expected) in [
        ("ONCE.BEGIN done LEASE 5", "paid"),
        ("ONCE.BEGIN empty LEASE 5", ""),
        ("ONCE.BEGIN known LEASE 5 FINGERPRINT f", "paid"),
    ] {
        let left = done(&client.must(line), expected);
        assert!((1..=90_000_000).contains(&left), "{line}: {left}");
    }
    let other = client.run("ONCE.BEGIN known LEASE 5 FINGERPRINT g");
    assert_eq!(other.err(), CONFLICT);
    let other = client.run("ONCE.BEGIN busy LEASE 5 FINGERPRINT g");
    assert_eq!(other.err(), CONFLICT);
    let left = busy(&client.must("ONCE.BEGIN busy LEASE 5 FINGERPRINT f"));
    assert!((1..=90_000_000).contains(&left), "{left}");
    let info = client.must("ONCE.INFO busy");
    assert_eq!(info.field("token"), &Value::Int(token));
}
