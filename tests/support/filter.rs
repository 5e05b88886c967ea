//! What the tests of filters share: many items at once, looks at a filter's numbers, the errors of the family.

use std::ops::Range;

use crate::support::{Lines, Raw, Server, Value, server_and_client};

pub const EXISTS: &str = "ERR item exists";
pub const BAD_DATA: &str = "ERR received bad data";
pub const BAD_CAPACITY: &str = "ERR bad capacity";
pub const CAPACITY_RANGE: &str = "ERR capacity must be in the range [1, 1073741824]";
pub const BAD_EXPANSION: &str = "ERR bad expansion";
pub const EXPANSION_RANGE: &str = "ERR expansion must be in the range [0, 32768]";
pub const BAD_RATE: &str = "ERR bad error rate";
pub const RATE_RANGE: &str = "ERR error rate must be in the range (0.000000, 1.000000)";
pub const TOO_LARGE: &str = "ERR filter would exceed bloom-max-bytes";
pub const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// No integers, or none that i64 has.
pub const NO_INTEGERS: [&str; 9] = [
    "",
    "x",
    "1.5",
    "+1",
    "01",
    "1e3",
    "0x10",
    "9223372036854775808",
    "1\0",
];

/// The same with a second connection, which speaks RESP3.
pub fn server_and_both() -> (Server, Raw, Raw) {
    let (server, client) = server_and_client();
    let mut third = Raw::connect(&server);
    third.hello3();
    (server, client, third)
}

/// A number that `BF.INFO` or `CF.INFO` tells.
#[track_caller]
pub fn number(client: &mut Raw, family: &str, key: &str, field: &str) -> i64 {
    let info = client.must(&format!("{family}.INFO {key}"));
    info.field(field).int()
}

/// How many commands' worth of items are sent together: their replies fit into the buffers on both sides.
const BATCH: u64 = 4096;

/// Gives items of eight bytes each, which are the numbers of a range, to a command in large batches, and every reply to
/// `see`, with the number.
#[track_caller]
pub fn each(client: &mut Raw, line: &str, range: Range<u64>, mut see: impl FnMut(u64, &Value)) {
    let words: Vec<_> = line.split(' ').collect();
    let mut start = range.start;
    while start < range.end {
        let end = (start + BATCH).min(range.end);
        let count = words.len() as u64 + end - start;
        let mut bytes = format!("*{count}\r\n").into_bytes();
        for word in &words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        for item in start..end {
            bytes.extend(b"$8\r\n");
            bytes.extend(item.to_le_bytes());
            bytes.extend(b"\r\n");
        }
        client.send_bytes(&bytes);
        let reply = client.read();
        let replies = reply.array();
        assert_eq!(replies.len() as u64, end - start);
        for (item, reply) in (start..end).zip(replies) {
            see(item, reply);
        }
        start = end;
    }
}

/// How many of the items of a range a command replies 1 (or true) to; all other replies must be 0 (or false).
#[track_caller]
pub fn count(client: &mut Raw, line: &str, range: Range<u64>) -> u64 {
    let mut count = 0;
    each(client, line, range, |item, reply| match reply {
        Value::Int(1) | Value::Bool(true) => count += 1,
        Value::Int(0) | Value::Bool(false) => {}
        other => panic!("{line} {item}: {other:?}"),
    });
    count
}

/// Panics unless all items of a range are in the filter.
#[track_caller]
pub fn assert_holds(client: &mut Raw, family: &str, key: &str, range: Range<u64>) {
    let line = format!("{family}.MEXISTS {key}");
    let all = range.end - range.start;
    assert_eq!(count(client, &line, range), all, "{key} denies items");
}

/// Adds items until so many of a range were new; those that seem to be there already are passed over.
#[track_caller]
pub fn fill(client: &mut Raw, key: &str, from: u64, wanted: u64) -> u64 {
    let (mut added, mut next) = (0, from);
    while added < wanted {
        let end = next + (wanted - added);
        added += count(client, &format!("BF.MADD {key}"), next..end);
        next = end;
    }
    next
}

/// All chunks of a filter, with their iterators; the last, empty one is left out.
#[track_caller]
pub fn dump(client: &mut Raw, family: &str, key: &str) -> Vec<(i64, Vec<u8>)> {
    let mut chunks = Vec::new();
    let mut iterator = 0;
    loop {
        let reply = client.must(&format!("{family}.SCANDUMP {key} {iterator}"));
        let [next, data] = reply.array() else {
            panic!("{reply:?}");
        };
        if next.int() == 0 {
            assert_eq!(data, &"", "the last chunk is empty");
            return chunks;
        }
        assert!(!data.bytes().is_empty() && data.bytes().len() <= 16 << 20);
        iterator = next.int();
        chunks.push((iterator, data.bytes().to_vec()));
    }
}

/// Sends a chunk.
#[track_caller]
pub fn load(client: &mut Raw, family: &str, key: &str, iterator: i64, data: &[u8]) -> Value {
    let (name, iterator) = (format!("{family}.LOADCHUNK"), iterator.to_string());
    client.call([name.as_bytes(), key.as_bytes(), iterator.as_bytes(), data])
}

/// The replies of an M command: numbers, and the texts of errors.
#[track_caller]
pub fn shown(reply: &Value) -> Vec<String> {
    let items = reply.array().iter();
    items.map(|item| format!("{item:?}")).collect()
}

/// What differs between two `DEBUG DIGEST-VALUE`s is what the values hold.
#[track_caller]
pub fn digest_of(client: &mut Raw, key: &str) -> String {
    let reply = client.must(&format!("DEBUG DIGEST-VALUE {key}"));
    reply.array()[0].text().to_owned()
}
