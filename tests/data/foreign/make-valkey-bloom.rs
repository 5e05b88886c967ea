//! Makes the files `vb-*` of this folder, with the crates bloomfilter 3.0.2, which valkey-bloom 1.0 uses, and crc 3:
//! `make-valkey-bloom FOLDER`. The growth and the layouts follow valkey-bloom's `src/bloom/utils.rs` and
//! `src/wrapper/bloom_callback.rs`; no server is needed.

use bloomfilter::Bloom;
use std::{env, fs, path::PathBuf};

struct Object {
    expansion: u64,
    error: f64,
    is_seed_random: bool,
    filters: Vec<(Bloom<[u8]>, u64, u64)>, // with the capacity and the number of items
}

const TIGHTENING: f64 = 0.5;
const FIXED_SEED: [u8; 32] = [
    89, 15, 245, 34, 234, 120, 17, 218, 167, 20, 216, 9, 59, 62, 123, 217, 29, 137, 138, 115, 62,
    152, 136, 135, 48, 127, 151, 205, 40, 7, 51, 131,
];
/// In the place of a random one.
const SEED: [u8; 32] = *b"sixteen bytes k1sixteen bytes k2";

impl Object {
    fn reserve(error: f64, capacity: u64, expansion: u64, is_seed_random: bool) -> Self {
        let mut object = Self { expansion, error, is_seed_random, filters: Vec::new() };
        object.grow(capacity);
        object
    }

    fn grow(&mut self, capacity: u64) {
        let error = self.error * TIGHTENING.powi(self.filters.len() as i32);
        let seed = if self.is_seed_random { &SEED } else { &FIXED_SEED };
        let filter = Bloom::new_for_fp_rate_with_seed(capacity as usize, error, seed);
        self.filters.push((filter.unwrap(), capacity, 0));
    }

    fn has(&self, item: &[u8]) -> bool {
        self.filters.iter().any(|(filter, ..)| filter.check(item))
    }

    fn add(&mut self, item: &[u8]) {
        if self.has(item) {
            return;
        }
        let (_, capacity, items) = self.filters.last().unwrap();
        if items == capacity {
            assert!(self.expansion > 0, "full");
            self.grow(capacity * self.expansion);
        }
        let (filter, _, items) = self.filters.last_mut().unwrap();
        filter.set(item);
        *items += 1;
    }

    /// The payload of `DUMP` of Redis 7.0.
    fn dump(&self) -> Vec<u8> {
        let mut out = vec![7]; // a module's value
        put_length(&mut out, type_id("bloomfltr", 1));
        let put_uint = |out: &mut Vec<u8>, number| {
            put_length(out, 2);
            put_length(out, number);
        };
        let put_double = |out: &mut Vec<u8>, number: f64| {
            put_length(out, 4);
            out.extend(number.to_le_bytes());
        };
        put_uint(&mut out, self.filters.len() as u64);
        put_uint(&mut out, self.expansion);
        put_double(&mut out, self.error);
        put_double(&mut out, TIGHTENING);
        put_uint(&mut out, self.is_seed_random.into());
        for (filter, capacity, _) in &self.filters {
            put_length(&mut out, 5);
            put_length(&mut out, filter.as_slice().len() as u64);
            out.extend(filter.as_slice());
            put_uint(&mut out, *capacity);
        }
        put_uint(&mut out, self.filters.last().unwrap().2);
        put_length(&mut out, 0);
        out.extend(10_u16.to_le_bytes());
        let crc = crc::Crc::<u64>::new(&crc::CRC_64_REDIS);
        out.extend(crc.checksum(&out).to_le_bytes());
        out
    }

    /// Records of a number, a length and bytes: the numbers of the object, then each capacity with its bitmap.
    fn parts(&self) -> Vec<u8> {
        let mut numbers = self.expansion.to_le_bytes().to_vec();
        numbers.extend(self.error.to_le_bytes());
        numbers.extend(TIGHTENING.to_le_bytes());
        numbers.extend(u64::from(self.is_seed_random).to_le_bytes());
        numbers.extend(self.filters.last().unwrap().2.to_le_bytes());
        let mut out = Vec::new();
        let mut put = |number: u64, bytes: &[u8]| {
            out.extend(number.to_le_bytes());
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend(bytes);
        };
        put(0, &numbers);
        for (filter, capacity, _) in &self.filters {
            put(*capacity, filter.as_slice());
        }
        out
    }
}

/// A length of an RDB file.
fn put_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..64 => out.push(length as u8),
        64..16384 => out.extend((length as u16 | 0x4000).to_be_bytes()),
        16384..0x1_0000_0000 => {
            out.push(0x80);
            out.extend((length as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend(length.to_be_bytes());
        }
    }
}

fn type_id(name: &str, version: u64) -> u64 {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letters = name.chars().map(|letter| LETTERS.find(letter).unwrap() as u64);
    letters.fold(0, |id, letter| id << 6 | letter) << 10 | version
}

fn main() {
    let folder = PathBuf::from(env::args().nth(1).expect("a folder"));
    let mut lines = vec!["# name, items, answers 1 for i0 to i999999, their FNV-1a".to_owned()];
    for (name, error, capacity, expansion, is_seed_random, items) in [
        ("vb-default", 0.01, 100, 2, true, 1000),
        ("vb-empty", 0.01, 1000, 2, true, 0),
        ("vb-fixed", 0.001, 1000, 0, true, 1000),
        ("vb-half", 0.01, 1000, 0, true, 500),
        ("vb-seed", 0.01, 1000, 2, false, 1500),
        ("vb-wide", 0.0001, 500, 4, true, 6000),
    ] {
        let mut object = Object::reserve(error, capacity, expansion, is_seed_random);
        let mut number = 0;
        let count = |object: &Object| object.filters.iter().map(|filter| filter.2).sum::<u64>();
        while count(&object) < items {
            object.add(format!("i{number}").as_bytes());
            number += 1;
        }
        let (mut found, mut digest) = (0, 0xcbf2_9ce4_8422_2325_u64);
        for number in 0..1_000_000 {
            let has = object.has(format!("i{number}").as_bytes());
            found += u64::from(has);
            digest = (digest ^ u64::from(has)).wrapping_mul(0x100_0000_01b3);
        }
        fs::write(folder.join(format!("{name}.dump")), object.dump()).unwrap();
        fs::write(folder.join(format!("{name}.parts")), object.parts()).unwrap();
        lines.push(format!("{name} {items} {found} {digest:016x} 0"));
    }
    fs::write(folder.join("answers-valkey.txt"), lines.join("\n") + "\n").unwrap();
}
