//! Work that is done once, or fails and is begun again.

use std::collections::HashMap;
use std::sync::Mutex;

use super::{key, pause};
use crate::support::Random;
use crate::support::cluster::Client;

/// How long a client waits for the worker of a piece of work.
const BLOCK_MS: u64 = 200;

/// What the clients know of a piece of work.
enum Known {
    /// The worker with this token is at it: it has the lease, and has not asked to end it yet.
    Busy(i64),
    /// Its result, which the worker has stored or is storing.
    Done(i64),
}

pub(super) struct Works {
    tag: String,
    known: Mutex<HashMap<u64, Known>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    done: u64,
    failed: u64,
    replayed: u64,
}

impl Works {
    pub(super) fn new(tag: &str) -> Self {
        Self {
            tag: tag.into(),
            known: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// Asks for a piece of work of which few clients know yet.
    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random) {
        let newest = self.known.lock().unwrap().len() as u64;
        let number = newest.saturating_sub(random.below(6));
        let work = key(&self.tag, &format!("work:{number}"));
        let begin = format!("ONCE.BEGIN {work} LEASE 3600000 BLOCK {BLOCK_MS}");
        let reply = client.must(&self.tag, &begin);
        let [state, result, n] = reply.array() else {
            panic!("{reply:?}");
        };
        match state.text() {
            "NEW" => self.work(client, random, number, n.int()),
            "DONE" => {
                let result: i64 = result.text().parse().expect("a token");
                let known = self.known.lock().unwrap();
                let is_right =
                    matches!(known.get(&number), Some(Known::Done(done)) if *done == result);
                assert!(is_right, "{work}: another result: {result}");
                self.counts.lock().unwrap().replayed += 1;
            }
            "BUSY" => {}
            other => panic!("{other}"),
        }
    }

    fn work(&self, client: &mut Client<'_>, random: &mut Random, number: u64, token: i64) {
        let work = key(&self.tag, &format!("work:{number}"));
        let know = |known| self.known.lock().unwrap().insert(number, known);
        let before = know(Known::Busy(token));
        assert!(before.is_none(), "{work}: begun twice");
        pause(random);
        let ended = {
            let counts = self.counts.lock().unwrap();
            counts.done + counts.failed
        };
        let fails = ended % 4 == 3;
        // Others may see the end before its worker does.
        let last = match fails {
            true => self.known.lock().unwrap().remove(&number),
            false => know(Known::Done(token)),
        };
        assert!(matches!(last, Some(Known::Busy(own)) if own == token));
        let end = match fails {
            true => format!("ONCE.FAIL {work} {token}"),
            false => format!("ONCE.DONE {work} {token} {token} PX 3600000"),
        };
        assert_eq!(client.must(&self.tag, &end), 1, "{end}");
        let mut counts = self.counts.lock().unwrap();
        counts.failed += u64::from(fails);
        counts.done += u64::from(!fails);
    }

    pub(super) fn check(&self, client: &mut Client<'_>) {
        for (number, known) in &*self.known.lock().unwrap() {
            let work = key(&self.tag, &format!("work:{number}"));
            let Known::Done(result) = known else {
                panic!("{work}: without an end");
            };
            let begin = format!("ONCE.BEGIN {work} LEASE 3600000");
            let reply = client.must(&self.tag, &begin);
            assert_eq!(reply.array()[0], "DONE", "{work}");
            assert_eq!(reply.array()[1], result.to_string().as_str(), "{work}");
        }
        let counts = self.counts.lock().unwrap();
        println!("{}: {counts:?}", self.tag);
        let is_tame = counts.done < 5 || counts.failed == 0 || counts.replayed < 5;
        assert!(!is_tame, "the run was too tame");
    }
}
