//! Locks and semaphores that everybody wants.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{key, pause};
use crate::support::cluster::Client;
use crate::support::lock::{Grant, check};
use crate::support::{Random, Value};

/// A lease that does not end during a test.
const LONG: u64 = 600_000;

/// How many permits the semaphore has.
const LIMIT: u64 = 3;

/// Permits as their client saw them.
struct Permits {
    count: u64,
    fence: i64,
    asked: Instant,
    from: Instant,
    to: Instant,
}

pub(super) struct Locks {
    tag: String,
    locks: [String; 2],
    sem: String,
    grants: Mutex<Vec<Grant>>,
    permits: Mutex<Vec<Permits>>,
}

impl Locks {
    pub(super) fn new(tag: &str) -> Self {
        Self {
            tag: tag.into(),
            locks: ["lock", "lock2"].map(|name| key(tag, name)),
            sem: key(tag, "sem"),
            grants: Mutex::default(),
            permits: Mutex::default(),
        }
    }

    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random, owner: &str) {
        match random.below(16) {
            0..9 => self.hold_one(client, random, owner),
            9 => self.hold_both(client, random, owner),
            _ => self.hold_permits(client, random, owner),
        }
    }

    fn hold_one(&self, client: &mut Client<'_>, random: &mut Random, owner: &str) {
        let (tag, lock) = (&*self.tag, &self.locks[0]);
        let shared = random.below(4) == 0;
        let forgets = random.below(10) == 0;
        let lease = if forgets { 5 + random.below(60) } else { LONG };
        let mode = if shared { "SHARED" } else { "" };
        let asked = Instant::now();
        let reply = client.must(
            tag,
            &format!("LOCK.ACQUIRE {lock} {owner} {mode} PX {lease} BLOCK 20000 ID a"),
        );
        let from = Instant::now();
        assert!(!reply.is_nil(), "{lock} was never free");
        let fence = reply.int();
        pause(random);
        if !forgets {
            assert_eq!(
                client.must(tag, &format!("LOCK.HELD {lock} {owner}")),
                fence
            );
            if random.below(4) == 0 {
                let again = client.must(tag, &format!("LOCK.RENEW {lock} {owner} PX {LONG}"));
                assert_eq!(again, fence);
            }
        }
        // The lease began when the request was sent, or later.
        let to = Instant::now().min(asked + Duration::from_millis(lease));
        self.grants.lock().unwrap().push(Grant {
            lock: 0,
            shared,
            fence,
            asked,
            from,
            to,
        });
        if !forgets {
            let left = client.must(tag, &format!("LOCK.RELEASE {lock} {owner} ID r"));
            assert_eq!(left, 0, "{lock}: {owner} has lost its hold");
        }
    }

    fn hold_both(&self, client: &mut Client<'_>, random: &mut Random, owner: &str) {
        let (tag, [one, other]) = (&*self.tag, &self.locks);
        let asked = Instant::now();
        let reply = client.must(
            tag,
            &format!("LOCK.MACQUIRE 2 {other} {one} {owner} PX {LONG} BLOCK 20000 ID a"),
        );
        let from = Instant::now();
        assert!(!reply.is_nil(), "{one} and {other} were never free");
        pause(random);
        let to = Instant::now();
        for (lock, fence) in [1, 0].into_iter().zip(reply.array()) {
            self.grants.lock().unwrap().push(Grant {
                lock,
                shared: false,
                fence: fence.int(),
                asked,
                from,
                to,
            });
        }
        let left = client.must(tag, &format!("LOCK.MRELEASE 2 {one} {other} {owner} ID r"));
        assert_eq!(left, Value::Array(vec![Value::Int(0), Value::Int(0)]));
    }

    fn hold_permits(&self, client: &mut Client<'_>, random: &mut Random, owner: &str) {
        let (tag, sem) = (&*self.tag, &self.sem);
        let count = 1 + random.below(LIMIT);
        let asked = Instant::now();
        let reply = client.must(
            tag,
            &format!(
                "SEM.ACQUIRE {sem} {owner} LIMIT {LIMIT} PERMITS {count} PX {LONG} BLOCK 20000 ID a"
            ),
        );
        let from = Instant::now();
        assert!(!reply.is_nil(), "{sem} had never {count} permits");
        let fence = reply.int();
        pause(random);
        let to = Instant::now();
        self.permits.lock().unwrap().push(Permits {
            count,
            fence,
            asked,
            from,
            to,
        });
        let left = client.must(
            tag,
            &format!("SEM.RELEASE {sem} {owner} PERMITS {count} ID r"),
        );
        assert_eq!(left, 0, "{sem}: {owner} has lost its permits");
    }

    pub(super) fn check(&self, client: &mut Client<'_>) {
        let grants = self.grants.lock().unwrap();
        check(&grants).unwrap_or_else(|problem| panic!("{}: {problem}", self.tag));
        let permits = self.permits.lock().unwrap();
        assert!(
            grants.len() > 20 && permits.len() > 10,
            "the run was too tame"
        );
        check_permits(&permits).unwrap_or_else(|problem| panic!("{}: {problem}", self.tag));
        println!(
            "{}: {} grants, {} of permits",
            self.tag,
            grants.len(),
            permits.len()
        );
        // The last hold of each has been released, or its lease is over.
        let exists = format!("EXISTS {} {} {}", self.locks[0], self.locks[1], self.sem);
        crate::support::eventually(crate::support::SOON, || {
            client.must(&self.tag, &exists) == 0
        });
    }
}

/// What is wrong with a history, if anything is: more permits than there are at a time, or a fence that did not rise.
fn check_permits(all: &[Permits]) -> Result<(), String> {
    for one in all {
        let held_then = all
            .iter()
            .filter(|other| other.from <= one.from && one.from < other.to);
        let count: u64 = held_then.map(|held| held.count).sum();
        if count > LIMIT {
            return Err(format!("{count} permits at a time"));
        }
        let earlier = all.iter().filter(|other| other.from < one.asked);
        let last = earlier.map(|other| other.fence).max();
        if last >= Some(one.fence) {
            return Err(format!("a fence did not rise: {last:?}, {}", one.fence));
        }
    }
    Ok(())
}

#[test]
fn the_check_of_permits_finds_what_is_wrong() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let permits = |count, fence, from, to| Permits {
        count,
        fence,
        asked: at(from),
        from: at(from),
        to: at(to),
    };
    let is_refused = |one, other| check_permits(&[one, other]).is_err();
    assert!(!is_refused(permits(2, 1, 0, 10), permits(1, 2, 5, 20)));
    assert!(!is_refused(permits(3, 1, 0, 10), permits(3, 2, 10, 20)));
    assert!(is_refused(permits(2, 1, 0, 10), permits(2, 2, 9, 20)));
    assert!(is_refused(permits(1, 2, 0, 10), permits(1, 2, 20, 30)));
    assert!(is_refused(permits(1, 2, 0, 10), permits(1, 1, 20, 30)));
}
