//! What the tests of filters share: both kinds by one name, items in great number (named ones, and numbers of eight bytes),
//! dumps in chunks, digests, the errors of the family.

use std::ops::Range;

use crate::support::{Lines, Raw, Server, Value, server_and_client};

/// A chunk that is none, or not the next one.
pub const BAD_DATA: &str = "ERR received bad data";
/// A filter is there already.
pub const ITEM_EXISTS: &str = "ERR item exists";
/// More bytes than the configuration allows.
pub const TOO_LARGE: &str = "ERR filter would exceed bloom-max-bytes";
/// No integer.
pub const BAD_CAPACITY: &str = "ERR bad capacity";
/// An integer that no filter can have as its capacity.
pub const CAPACITY_RANGE: &str = "ERR capacity must be in the range [1, 1073741824]";
/// No integer.
pub const BAD_EXPANSION: &str = "ERR bad expansion";
/// An integer by which no filter can grow.
pub const EXPANSION_RANGE: &str = "ERR expansion must be in the range [0, 32768]";
/// No number.
pub const BAD_RATE: &str = "ERR bad error rate";
/// A number that is no rate of errors.
pub const RATE_RANGE: &str = "ERR error rate must be in the range (0.000000, 1.000000)";
/// The server's own error.
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

/// A server and two connections to it, of which the second speaks RESP3.
pub fn server_and_both() -> (Server, Raw, Raw) {
    let (server, client) = server_and_client();
    let mut third = Raw::connect(&server);
    third.hello3();
    (server, client, third)
}

/// The most that a reply of `SCANDUMP` may hold.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

/// A kind of filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bloom,
    Cuckoo,
}

/// Both.
pub const KINDS: [Kind; 2] = [Kind::Bloom, Kind::Cuckoo];

impl Kind {
    /// `BF` or `CF`.
    pub fn family(self) -> &'static str {
        match self {
            Self::Bloom => "BF",
            Self::Cuckoo => "CF",
        }
    }

    /// The name of a command of this kind.
    pub fn name(self, command: &str) -> String {
        format!("{}.{command}", self.family())
    }

    /// What `TYPE` says.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Bloom => "sluice-bf",
            Self::Cuckoo => "sluice-cf",
        }
    }

    /// There is no filter of this kind at the key.
    pub fn missing(self) -> &'static str {
        match self {
            Self::Bloom => "ERR not found",
            Self::Cuckoo => "ERR Not found",
        }
    }

    /// Reserves a filter with the default terms.
    pub fn reserve(self, key: &str, capacity: u64) -> String {
        match self {
            Self::Bloom => format!("BF.RESERVE {key} 0.01 {capacity}"),
            Self::Cuckoo => format!("CF.RESERVE {key} {capacity}"),
        }
    }

    /// One that is no filter of this kind, but of the other.
    pub fn other(self) -> Self {
        match self {
            Self::Bloom => Self::Cuckoo,
            Self::Cuckoo => Self::Bloom,
        }
    }
}

/// How many items are sent at once: a batch is added in a few milliseconds.
const BATCH: u64 = 5000;

fn words(start: &[&str], prefix: &str, numbers: Range<u64>) -> Vec<String> {
    let mut words: Vec<String> = start.iter().map(ToString::to_string).collect();
    words.extend(numbers.map(|number| format!("{prefix}{number}")));
    words
}

fn batches(numbers: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = numbers.end;
    let starts = numbers.step_by(BATCH as usize);
    starts.map(move |start| start..(start + BATCH).min(end))
}

/// Adds the items `<prefix><number>`; panics if one is refused.
#[track_caller]
pub fn add_named(client: &mut Raw, kind: Kind, key: &str, prefix: &str, numbers: Range<u64>) {
    for batch in batches(numbers) {
        let start = match kind {
            Kind::Bloom => vec!["BF.MADD", key],
            Kind::Cuckoo => vec!["CF.INSERT", key, "ITEMS"],
        };
        let reply = client.call(words(&start, prefix, batch));
        for added in reply.array() {
            assert!(!added.is_err() && *added != -1, "{key}: {added:?}");
        }
    }
}

/// Adds the items `i<number>`.
#[track_caller]
pub fn add(client: &mut Raw, kind: Kind, key: &str, numbers: Range<u64>) {
    add_named(client, kind, key, "i", numbers);
}

/// The answers about these items, 0 or 1.
#[track_caller]
pub fn answers_of(client: &mut Raw, kind: Kind, key: &str, numbers: Range<u64>) -> Vec<u8> {
    let ask = |batch| client.call(words(&[&kind.name("MEXISTS"), key], "i", batch));
    let replies: Vec<_> = batches(numbers).map(ask).collect();
    let replies = replies.iter().flat_map(Value::array);
    replies.map(|held| held.int() as u8).collect()
}

/// How many of these items the filter does not deny.
#[track_caller]
pub fn held_named(
    client: &mut Raw,
    kind: Kind,
    key: &str,
    prefix: &str,
    numbers: Range<u64>,
) -> u64 {
    let mut held = 0;
    for batch in batches(numbers) {
        let reply = client.call(words(&[&kind.name("MEXISTS"), key], prefix, batch));
        held += reply.array().iter().map(Value::int).sum::<i64>() as u64;
    }
    held
}

/// How many of the items `i<number>` the filter does not deny.
#[track_caller]
pub fn held(client: &mut Raw, kind: Kind, key: &str, numbers: Range<u64>) -> u64 {
    held_named(client, kind, key, "i", numbers)
}

/// Panics if the filter denies one of the items `i<number>`.
#[track_caller]
pub fn assert_holds(client: &mut Raw, kind: Kind, key: &str, numbers: Range<u64>) {
    let held = held(client, kind, key, numbers.clone());
    assert_eq!(
        held,
        numbers.end - numbers.start,
        "{key} denies items that were added"
    );
}

/// A number that `INFO` of a filter tells.
#[track_caller]
pub fn number(client: &mut Raw, kind: Kind, key: &str, field: &str) -> i64 {
    let info = client.call([kind.name("INFO"), key.into()]);
    info.field(field).int()
}

/// The field of `INFO` that counts layers.
pub const FILTERS: &str = "Number of filters";
/// The field of `INFO` that counts items.
pub const ITEMS: &str = "Number of items inserted";

/// What a key's value is, wherever it is.
#[track_caller]
pub fn value_digest(client: &mut Raw, key: &str) -> String {
    let reply = client.call(["DEBUG", "DIGEST-VALUE", key]);
    reply.array()[0].text().to_owned()
}

/// A chunk of a dump, and the iterator that came with it.
pub type Chunk = (i64, Vec<u8>);

/// The next chunk after an iterator.
#[track_caller]
pub fn chunk(client: &mut Raw, kind: Kind, key: &str, iterator: i64) -> Chunk {
    let reply = client.call([kind.name("SCANDUMP"), key.into(), iterator.to_string()]);
    let [next, data] = reply.array() else {
        panic!("not a chunk: {reply:?}");
    };
    (next.int(), data.bytes().to_vec())
}

/// All chunks of a filter; panics unless each is as small as it must be, and the end is told.
#[track_caller]
pub fn dump(client: &mut Raw, kind: Kind, key: &str) -> Vec<Chunk> {
    let mut chunks = vec![chunk(client, kind, key, 0)];
    loop {
        let (iterator, data) = chunks.last().expect("a chunk");
        assert!(*iterator > 0 && !data.is_empty());
        assert!(data.len() <= MAX_CHUNK_BYTES, "a chunk of {}", data.len());
        let next = chunk(client, kind, key, *iterator);
        if next == (0, Vec::new()) {
            return chunks;
        }
        assert!(next.0 > *iterator, "the iterator does not rise");
        chunks.push(next);
    }
}

/// Gives a chunk to a filter.
#[track_caller]
pub fn load_chunk(client: &mut Raw, kind: Kind, key: &str, iterator: i64, data: &[u8]) -> Value {
    let (name, iterator) = (kind.name("LOADCHUNK"), iterator.to_string());
    client.call([name.as_bytes(), key.as_bytes(), iterator.as_bytes(), data])
}

/// Makes a filter of chunks.
#[track_caller]
pub fn load(client: &mut Raw, kind: Kind, key: &str, chunks: &[Chunk]) {
    for (iterator, data) in chunks {
        assert_eq!(load_chunk(client, kind, key, *iterator, data), "OK");
    }
}

/// Panics if the server's log tells of something that must not happen.
#[track_caller]
pub fn assert_calm(server: &Server) {
    let log = server.log();
    for word in [
        "panic",
        "internal error",
        "BUG REPORT",
        "invalid replicated",
    ] {
        assert!(!log.contains(word), "{word} {log}");
    }
}

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

/// Two items that a filter does not have, also not by chance: its seed is random, so any fixed item may
/// be a false positive.
#[track_caller]
pub fn absent(client: &mut Raw, kind: Kind, key: &str) -> [String; 2] {
    let exists = kind.name("EXISTS");
    let mut items = (0..1000).map(|number| format!("new-{number}"));
    [(), ()].map(|()| {
        let absent = items.find(|item| client.run(&format!("{exists} {key} {item}")) == 0);
        absent.expect("an item that the filter denies")
    })
}

/// The replies of an M command: numbers, and the texts of errors.
#[track_caller]
pub fn shown(reply: &Value) -> Vec<String> {
    let items = reply.array().iter();
    items.map(|item| format!("{item:?}")).collect()
}

/// Panics unless all items that are the numbers of a range are in the filter.
#[track_caller]
pub fn assert_holds_numbers(client: &mut Raw, kind: Kind, key: &str, range: Range<u64>) {
    let line = format!("{} {key}", kind.name("MEXISTS"));
    let all = range.end - range.start;
    assert_eq!(count(client, &line, range), all, "{key} denies items");
}
