//! An entry that writers invalidate and readers rebuild.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{key, pause};
use crate::support::Random;
use crate::support::cluster::Client;

pub(super) struct Caches {
    tag: String,
    entry: String,
    /// What a database would say.
    version: AtomicU64,
    /// The version whose writer has been told that the entry is gone: no older one may be seen after that.
    floor: AtomicU64,
    writer: Mutex<()>,
    hits: AtomicU64,
    leases: AtomicU64,
    refused: AtomicU64,
}

impl Caches {
    pub(super) fn new(tag: &str) -> Self {
        Self {
            tag: tag.into(),
            entry: key(tag, "entry"),
            version: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            writer: Mutex::default(),
            hits: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random) {
        if random.below(5) == 0 {
            self.write(client);
        } else {
            self.read(client, random);
        }
    }

    fn write(&self, client: &mut Client<'_>) {
        let _one_at_a_time = self.writer.lock().unwrap();
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        client.must(&self.tag, &format!("CACHE.DEL {}", self.entry));
        self.floor.store(version, Ordering::SeqCst);
    }

    fn read(&self, client: &mut Client<'_>, random: &mut Random) {
        let entry = &self.entry;
        let floor = self.floor.load(Ordering::SeqCst);
        let reply = client.must(
            &self.tag,
            &format!("CACHE.FETCH {entry} LEASE 2000 BLOCK 200"),
        );
        let [state, value, n] = reply.array() else {
            panic!("{reply:?}");
        };
        match state.text() {
            "HIT" => {
                let seen: u64 = value.text().parse().expect("a version");
                assert!(
                    seen >= floor,
                    "{entry}: stale: {seen}, and {floor} is current"
                );
                self.hits.fetch_add(1, Ordering::Relaxed);
            }
            "LEASE" => {
                let version = self.version.load(Ordering::SeqCst);
                pause(random); // a slow rebuild, which a writer may overtake
                let set = format!("CACHE.SET {entry} {version} PX 600000 TOKEN {}", n.int());
                let stored = client.must(&self.tag, &set).int();
                self.leases.fetch_add(1, Ordering::Relaxed);
                self.refused.fetch_add(1 - stored as u64, Ordering::Relaxed);
            }
            "WAIT" => {}
            other => panic!("{other}"),
        }
    }

    pub(super) fn check(&self) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (hits, leases, refused) = (&self.hits, &self.leases, &self.refused);
        let [hits, leases, refused] = [hits, leases, refused].map(count);
        println!(
            "{}: {hits} hits, {leases} leases, {refused} refused",
            self.tag
        );
        assert!(hits > 10 && leases > 5, "the run was too tame");
    }
}
