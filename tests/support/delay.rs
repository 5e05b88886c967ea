//! What the tests of delay queues share.

use crate::support::{Lines, Raw, SOON, eventually};

/// The error of commands that need a queue.
pub const NO_QUEUE: &str = "ERR no such delay queue";

/// An integer field of `DELAY.INFO`.
#[track_caller]
pub fn number(client: &mut Raw, key: &str, field: &str) -> i64 {
    client.must(&format!("DELAY.INFO {key}")).field(field).int()
}

/// The entries of a stream, each as its fields and values with blanks between them. Their ids rise.
#[track_caller]
pub fn entries(client: &mut Raw, stream: &str) -> Vec<String> {
    let reply = client.must(&format!("XRANGE {stream} - +"));
    let entries = reply.array().iter().map(|entry| {
        let values = entry.array()[1].array().iter();
        let values: Vec<String> = values
            .map(|value| value.bytes().escape_ascii().to_string())
            .collect();
        values.join(" ")
    });
    entries.collect()
}

/// Waits until a stream has so many entries, and returns them; see [`entries`].
#[track_caller]
pub fn await_entries(client: &mut Raw, stream: &str, count: i64) -> Vec<String> {
    await_at_least(client, stream, count);
    let entries = entries(client, stream);
    assert_eq!(entries.len() as i64, count, "{entries:?}");
    entries
}

/// Waits until a stream has so many entries, or more.
#[track_caller]
pub fn await_at_least(client: &mut Raw, stream: &str, count: i64) {
    let line = format!("XLEN {stream}");
    eventually(SOON, || client.must(&line).int() >= count);
}

/// The ids of the messages that `DELAY.RANGE` returns.
#[track_caller]
pub fn waiting_ids(client: &mut Raw, key: &str) -> Vec<String> {
    let reply = client.must(&format!("DELAY.RANGE {key} 1000000"));
    let ids = reply.array().iter();
    ids.map(|pair| pair.array()[0].text().to_owned()).collect()
}
