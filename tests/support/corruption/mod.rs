//! What the tests of corruption share: ways to damage bytes, and looks at whether a server took it well.

mod dataset;

use std::sync::LazyLock;

use crate::support::{Random, Server};

pub use dataset::{
    CACHES, FAMILIES, FILTERS, Family, LIMITS, LOCKS, QUEUES, STOCKS, WORKS, fill, used_commands,
    uses,
};

/// A payload's last bytes: two of the RDB version, eight of the checksum.
pub const FOOTER: usize = 10;

/// The polynomial of the server's checksum, reflected: "Jones", as in the server's `crc64.c`.
const JONES: u64 = 0x95ac_9329_ac4b_c9b5;

static CRC: LazyLock<[u64; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        (0..8).fold(byte as u64, |rest, _| {
            let carry = if rest & 1 == 1 { JONES } else { 0 };
            rest >> 1 ^ carry
        })
    })
});

/// A payload without its checksum, with the right one behind it.
pub fn sealed(mut payload: Vec<u8>) -> Vec<u8> {
    let check = payload.iter().fold(0u64, |check, byte| {
        check >> 8 ^ CRC[usize::from(check as u8 ^ byte)]
    });
    payload.extend(check.to_le_bytes());
    payload
}

/// An RDB value of a module's type: what `DUMP` begins with, then strings, an end, and a footer.
pub fn payload_of<S: AsRef<[u8]>>(real: &[u8], strings: &[S]) -> Vec<u8> {
    // The type, and the module's id in nine bytes.
    let mut payload = real[..10].to_vec();
    for string in strings {
        let string = string.as_ref();
        payload.extend([5, 0x80]);
        payload.extend((string.len() as u32).to_be_bytes());
        payload.extend(string);
    }
    payload.push(0);
    payload.extend(&real[real.len() - FOOTER..]);
    payload
}

/// Some bytes, changed at random in a few places, with parts of others in between.
pub fn mutated(random: &mut Random, bytes: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let end = (at + random.below(20) as usize).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = *random.one(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes.insert(at, random.below(256) as u8),
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let other = random.one(others).clone();
                let from = random.below(other.len() as u64 + 1) as usize;
                let to = (from + random.below(60) as usize).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

/// All that is left of some bytes when they are cut.
pub fn cut(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len()).map(|end| bytes[..end].to_vec())
}

/// Some bytes with one bit flipped, for every bit.
pub fn flipped(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len() * 8).map(|bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    })
}

/// Every way to damage some bytes in one place.
pub fn damaged(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = cut(bytes).chain(flipped(bytes)).collect();
    for at in 0..bytes.len() {
        for byte in [0, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.to_vec();
            changed[at] = byte;
            all.push(changed);
            all.push([&bytes[..at], &[byte], &bytes[at..]].concat());
        }
        all.push([&bytes[..at], &bytes[at + 1..]].concat());
    }
    all
}

/// 2^53 - 1 in LEB128. As a fence it is the last one.
pub const MOST: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];

/// The largest lengths and numbers that RDB files and our own encoding can write: in 32 bits and 64, in LEB128 near 2^53
/// and 2^64, and the beginnings of a number and of a compressed string.
const EXTREMES: [&[u8]; 10] = [
    &[0x80, 0xff, 0xff, 0xff, 0xff],
    &[0x80, 0x7f, 0xff, 0xff, 0xff],
    &[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x81, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    MOST,
    &[0x80, 0x80, 0x80, 0x80, 0xfc, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xc2, 0xff, 0xff, 0xff, 0x7f],
    &[0xc3, 0x0a, 0x80, 0xff, 0xff, 0xff, 0xff],
];

/// Some bytes with an extreme number at every place, in place of a byte, of as many bytes, and put in between.
pub fn extreme(bytes: &[u8]) -> Vec<Vec<u8>> {
    let places = (0..bytes.len()).flat_map(|at| EXTREMES.map(|number| (at, number)));
    let made = places.flat_map(|(at, number)| {
        [0, 1, number.len()].map(|replaced| {
            let end = (at + replaced).min(bytes.len());
            [&bytes[..at], number, &bytes[end..]].concat()
        })
    });
    made.collect()
}

/// The beginning of one and the end of the other.
pub fn spliced(random: &mut Random, one: &[u8], other: &[u8]) -> Vec<u8> {
    let until = random.below(one.len() as u64 + 1) as usize;
    let from = match random.below(2) {
        0 => until.min(other.len()), // at the same place
        _ => random.below(other.len() as u64 + 1) as usize,
    };
    [&one[..until], &other[from..]].concat()
}

/// The most memory that a server ever had, in bytes, as the system tells.
pub fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid());
    let status = std::fs::read_to_string(path).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number: u64 = number.expect("a field").parse().expect("a number");
    number * 1024
}

/// What no log of a server may have in it.
const ALARMS: [&str; 5] = [
    "panic",
    "internal error",
    "BUG REPORT",
    "ASSERTION",
    "crashed by signal",
];

/// Panics if a log tells of something that must not happen.
///
/// Servers do not count the arguments of a command in an AOF: a `PEXPIREAT` that has lost its time takes them down, with or
/// without a module.
#[track_caller]
pub fn assert_calm(log: &str) {
    let frames = ["expireGenericCommand", "loadSingleAppendOnlyFile"];
    if frames.iter().all(|frame| log.contains(frame)) {
        return;
    }
    for alarm in ALARMS {
        assert!(!log.contains(alarm), "{alarm}:\n{log}");
    }
}

/// The environment variable that makes the tests of corruption thorough: `all`.
const FAULTS: &str = "SLUICE_FAULTS";

/// Is everything tried that can be, which takes long?
pub fn all_faults() -> bool {
    std::env::var_os(FAULTS).is_some_and(|value| value == "all")
}

/// The commands of an append-only file, each with the place where it ends. Panics on anything else.
#[track_caller]
pub fn commands(file: &[u8]) -> Vec<(Vec<Vec<u8>>, usize)> {
    let mut commands = Vec::new();
    let mut at = 0;
    let number = |at: &mut usize, sign: u8| -> usize {
        assert_eq!(file[*at], sign);
        let length = file[*at..].iter().position(|byte| *byte == b'\r');
        let end = *at + length.expect("a line");
        let text = std::str::from_utf8(&file[*at + 1..end]).expect("a number");
        *at = end + 2;
        text.parse().expect("a number")
    };
    while at < file.len() {
        let words = number(&mut at, b'*');
        let words = (0..words).map(|_| {
            let length = number(&mut at, b'$');
            let start = at;
            at += length + 2;
            file[start..start + length].to_vec()
        });
        let words = words.collect();
        commands.push((words, at));
    }
    commands
}
