//! Filters that grow.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use super::key;
use crate::support::Random;
use crate::support::cluster::Client;

pub(super) struct Filters {
    tag: String,
    bloom: String,
    cuckoo: String,
    items: Mutex<Vec<String>>,
    /// How often an item was told to be new to the Bloom filter.
    new: AtomicI64,
}

impl Filters {
    pub(super) fn prepare(client: &mut Client<'_>, tag: &str) -> Self {
        let (bloom, cuckoo) = (key(tag, "bloom"), key(tag, "cuckoo"));
        client.must(tag, &format!("BF.RESERVE {bloom} 0.01 50"));
        client.must(tag, &format!("CF.RESERVE {cuckoo} 64 EXPANSION 2"));
        Self {
            tag: tag.into(),
            bloom,
            cuckoo,
            items: Mutex::default(),
            new: AtomicI64::new(0),
        }
    }

    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random, id: &str) {
        let (tag, bloom, cuckoo) = (&*self.tag, &self.bloom, &self.cuckoo);
        let added = client.must(tag, &format!("BF.ADD {bloom} {id}")).int();
        self.new.fetch_add(added, Ordering::Relaxed);
        client.must(tag, &format!("CF.ADD {cuckoo} {id}"));
        // An item that is added and taken out again leaves the others alone.
        client.must(tag, &format!("CF.ADD {cuckoo} {id}:out"));
        assert_eq!(client.must(tag, &format!("CF.DEL {cuckoo} {id}:out")), 1);
        let mut items = self.items.lock().unwrap();
        items.push(id.into());
        let some = random.one(&items).clone();
        drop(items);
        assert_eq!(
            client.must(tag, &format!("BF.EXISTS {bloom} {some}")),
            1,
            "{some}"
        );
        assert_eq!(
            client.must(tag, &format!("CF.EXISTS {cuckoo} {some}")),
            1,
            "{some}"
        );
    }

    pub(super) fn check(&self, client: &mut Client<'_>) {
        let (tag, items) = (&*self.tag, self.items.lock().unwrap());
        for chunk in items.chunks(100) {
            let chunk = chunk.join(" ");
            for look in [
                format!("BF.MEXISTS {} {chunk}", self.bloom),
                format!("CF.MEXISTS {} {chunk}", self.cuckoo),
            ] {
                let found = client.must(tag, &look);
                assert!(
                    found.array().iter().all(|found| *found == 1),
                    "{look}: {found:?}"
                );
            }
        }
        let new = self.new.load(Ordering::Relaxed);
        assert_eq!(client.must(tag, &format!("BF.CARD {}", self.bloom)), new);
        let info = client.must(tag, &format!("CF.INFO {}", self.cuckoo));
        let inserted = info.field("Number of items inserted").int();
        let deleted = info.field("Number of items deleted").int();
        println!("{tag}: {} items, {inserted} in, {deleted} out", items.len());
        assert!(!items.is_empty(), "the run was too tame");
    }
}
