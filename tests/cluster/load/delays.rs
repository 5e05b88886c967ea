//! Messages that are delivered later, or canceled.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::key;
use crate::support::cluster::Client;
use crate::support::{Random, SOON, eventually};

pub(super) struct Delays {
    tag: String,
    queue: String,
    stream: String,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    added: BTreeSet<String>,
    canceled: BTreeSet<String>,
}

impl Delays {
    pub(super) fn prepare(client: &mut Client<'_>, tag: &str) -> Self {
        let (queue, stream) = (key(tag, "queue"), key(tag, "delayed"));
        client.must(tag, &format!("DELAY.SET {queue} STREAM {stream}"));
        Self {
            tag: tag.into(),
            queue,
            stream,
            counts: Mutex::default(),
        }
    }

    /// Adds a message, and sometimes cancels it, perhaps too late.
    pub(super) fn step(&self, client: &mut Client<'_>, random: &mut Random, id: &str) {
        let number = self.counts.lock().unwrap().added.len();
        let is_canceled = number % 4 == 3;
        let queue = &self.queue;
        // Some are canceled at the last moment, others long before.
        let px = if number % 8 == 3 {
            600_000
        } else {
            random.below(50)
        };
        let add = format!("DELAY.ADD {queue} {id} PX {px} VALUES id {id}");
        assert_eq!(client.must(&self.tag, &add), 1, "{add}");
        self.counts.lock().unwrap().added.insert(id.into());
        if is_canceled && client.must(&self.tag, &format!("DELAY.CANCEL {queue} {id}")) == 1 {
            self.counts.lock().unwrap().canceled.insert(id.into());
        }
    }

    /// Each message that was not canceled is in the stream once.
    pub(super) fn check(&self, client: &mut Client<'_>) {
        let (queue, stream, tag) = (&self.queue, &self.stream, &self.tag);
        let info = format!("DELAY.INFO {queue}");
        eventually(SOON, || client.must(tag, &info).field("messages") == &0);
        let entries = client.must(tag, &format!("XRANGE {stream} - +"));
        let entries = entries.array().iter();
        let delivered: Vec<String> = entries
            .map(|entry| entry.array()[1].array()[1].text().to_owned())
            .collect();
        let counts = self.counts.lock().unwrap();
        let (added, canceled) = (counts.added.len(), counts.canceled.len());
        println!("{tag}: {added} messages, {canceled} canceled");
        assert_eq!(delivered.len(), added - canceled, "{tag}");
        let delivered: BTreeSet<String> = delivered.into_iter().collect();
        assert!(
            delivered
                .iter()
                .eq(counts.added.difference(&counts.canceled)),
            "{tag}"
        );
        assert!(added > 5 && canceled > 0, "the run was too tame");
    }
}
