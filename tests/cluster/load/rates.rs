//! Limits that are used up.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key;
use crate::support::Random;
use crate::support::cluster::Client;

/// How many are allowed by each of [`KINDS`]: nothing leaks and no window ends during a test.
const MOST: u64 = 20;
const KINDS: [(&str, &str); 7] = [
    ("gcra", "RATE.GCRA % 19 1 315360000000"),
    ("throttle", "CL.THROTTLE % 19 1 315360000"),
    ("window", "RATE.WINDOW % 20 315360000000"),
    ("sliding", "RATE.WINDOW % 20 315360000000 SLIDING"),
    ("exact", "RATE.WINDOW % 20 315360000000 EXACT"),
    ("several", "RATE.MGCRA 1 % 19 1 315360000000"),
    (
        "tiers",
        "RATE.TIERS % 2 19 1 315360000000 90 2 315360000000",
    ),
];

pub(super) struct Rates {
    tag: String,
    allowed: [AtomicU64; KINDS.len()],
    /// How many were told to be the first with this number.
    firsts: Mutex<HashMap<u64, i64>>,
}

impl Rates {
    pub(super) fn new(tag: &str) -> Self {
        Self {
            tag: tag.into(),
            allowed: Default::default(),
            firsts: Mutex::default(),
        }
    }

    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random) {
        let kind = random.below(KINDS.len() as u64) as usize;
        let reply = client.must(&self.tag, &self.command(kind));
        if reply.array()[0] == 0 {
            self.allowed[kind].fetch_add(1, Ordering::Relaxed);
        }
        let number = random.below(200);
        let once = key(&self.tag, &format!("once:{number}"));
        let first = client
            .must(&self.tag, &format!("RATE.ONCE {once} PX 600000"))
            .int();
        *self.firsts.lock().unwrap().entry(number).or_default() += first;
    }

    fn command(&self, kind: usize) -> String {
        let (name, line) = KINDS[kind];
        line.replace('%', &key(&self.tag, name))
    }

    pub(super) fn check(&self, client: &mut Client<'_>) {
        for (kind, allowed) in self.allowed.iter().enumerate() {
            let told = allowed.load(Ordering::Relaxed);
            assert!(told <= MOST, "{}: {told} were allowed", KINDS[kind].0);
            // What is left, and not more, can still be had.
            while client.must(&self.tag, &self.command(kind)).array()[0] == 0 {
                allowed.fetch_add(1, Ordering::Relaxed);
            }
            let all = allowed.load(Ordering::Relaxed);
            assert_eq!(all, MOST, "{}: after {told}", KINDS[kind].0);
        }
        let firsts = self.firsts.lock().unwrap();
        for (number, firsts) in &*firsts {
            assert_eq!(*firsts, 1, "{}: once:{number}", self.tag);
        }
        println!("{}: {} numbers once", self.tag, firsts.len());
    }
}
