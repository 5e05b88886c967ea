//! A slot on its way from one node to another, in the steps that `redis-cli --cluster reshard` takes.

use super::{connect_in, id_of};
use crate::support::{Lines as _, Raw, SOON, Server, Value, ask, eventually};

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
        set_slot(to, slot, &format!("IMPORTING {}", id_of(from)));
        set_slot(from, slot, &format!("MIGRATING {}", id_of(to)));
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
        let owner = format!("NODE {}", id_of(self.to));
        for node in [self.to, self.from].iter().chain(others) {
            set_slot(node, self.slot, &owner);
        }
    }

    /// Calls the move off: the keys must be where they were.
    #[track_caller]
    pub fn cancel(&self) {
        for node in [self.from, self.to] {
            set_slot(node, self.slot, "STABLE");
        }
    }
}

/// `CLUSTER SETSLOT`. Valkey refuses it if a replica does not confirm it within two seconds: then it is sent again.
#[track_caller]
fn set_slot(node: &Server, slot: i64, how: &str) {
    let line = format!("CLUSTER SETSLOT {slot} {how}");
    eventually(SOON, || {
        let reply = Raw::connect(node).run(&line);
        let is_late = reply.is_err() && reply.err().starts_with("NOREPLICAS ");
        assert!(is_late || !reply.is_err(), "{line}: {reply:?}");
        !is_late
    });
}
