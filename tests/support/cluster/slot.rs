//! A slot on its way from one node to another, in the steps that `redis-cli --cluster reshard` takes.

use super::{connect_in, id_of};
use crate::support::{Server, Value, ask};

/// How many milliseconds a node may take to receive keys.
const PATIENCE: &str = "20000";

/// A slot on its way.
pub struct Move<'a> {
    slot: i64,
    from: &'a Server,
    to: &'a Server,
}

impl<'a> Move<'a> {
    /// Says to both nodes that the slot is about to move.
    #[track_caller]
    pub fn start(slot: i64, from: &'a Server, to: &'a Server) -> Self {
        ask(
            to,
            &format!("CLUSTER SETSLOT {slot} IMPORTING {}", id_of(from)),
        );
        ask(
            from,
            &format!("CLUSTER SETSLOT {slot} MIGRATING {}", id_of(to)),
        );
        Self { slot, from, to }
    }

    /// Moves these keys.
    #[track_caller]
    pub fn keys<K: AsRef<[u8]>>(&self, keys: &[K]) {
        self.keys_of(0, keys);
    }

    /// Moves these keys of a database.
    #[track_caller]
    pub fn keys_of<K: AsRef<[u8]>>(&self, db: usize, keys: &[K]) {
        let (port, db_there) = (self.to.port().to_string(), db.to_string());
        let head = [
            "MIGRATE",
            "127.0.0.1",
            &port,
            "",
            &db_there,
            PATIENCE,
            "KEYS",
        ];
        let mut command: Vec<&[u8]> = head.iter().map(|word| word.as_bytes()).collect();
        command.extend(keys.iter().map(AsRef::as_ref));
        let reply = connect_in(self.from, db).call(command);
        assert!(reply == "OK" || reply == "NOKEY", "{reply:?}");
    }

    /// Moves up to `count` keys, whichever the server names; how many there were.
    #[track_caller]
    pub fn some_keys(&self, count: usize) -> usize {
        let line = format!("CLUSTER GETKEYSINSLOT {} {count}", self.slot);
        let keys = ask(self.from, &line);
        let keys: Vec<&[u8]> = keys.array().iter().map(Value::bytes).collect();
        if !keys.is_empty() {
            self.keys(&keys);
        }
        keys.len()
    }

    /// Gives the slot to its new node for good.
    #[track_caller]
    pub fn finish(&self) {
        self.finish_before(&[]);
    }

    /// The same, and tells these nodes too, which would hear of it anyway.
    #[track_caller]
    pub fn finish_before(&self, others: &[&Server]) {
        let line = format!("CLUSTER SETSLOT {} NODE {}", self.slot, id_of(self.to));
        for node in [self.to, self.from].iter().chain(others) {
            ask(node, &line);
        }
    }

    /// Calls the move off: the keys must be where they were.
    #[track_caller]
    pub fn cancel(&self) {
        for node in [self.from, self.to] {
            ask(node, &format!("CLUSTER SETSLOT {} STABLE", self.slot));
        }
    }
}
