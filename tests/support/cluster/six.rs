//! A cluster of three masters and three replicas.

use std::thread;

use super::{id_of, node};
use crate::support::{SOON, Server, Value, ask, eventually, field_of, wait_for_replica_sync};

/// After so many milliseconds of silence nodes take each other for failing while they get to know each other: they talk
/// twice as often.
const JOIN_TIMEOUT_MS: u32 = 1500;

/// The slots of each master.
const SHARES: [std::ops::RangeInclusive<u16>; 3] = [0..=5460, 5461..=10922, 10923..=16383];

/// Six nodes. At first, the first three are masters, and each of the others is a replica of the one three before it.
pub struct Six {
    nodes: Vec<Server>,
}

impl AsRef<[Server]> for Six {
    fn as_ref(&self) -> &[Server] {
        &self.nodes
    }
}

impl Six {
    /// Starts the nodes and waits until all know and follow each other; then sets [their patience](Self::set_timeout).
    #[track_caller]
    pub fn start(timeout_ms: u32) -> Self {
        let start = || {
            node()
                .config("cluster-replica-validity-factor", "0")
                .start()
        };
        let nodes = thread::scope(|scope| {
            let starting: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
            let started = starting.into_iter().map(|node| node.join());
            started.map(|node| node.expect("a node")).collect()
        });
        let cluster = Self { nodes };
        // No replica takes over from a master that stalls meanwhile.
        cluster.configure("cluster-replica-no-failover yes");
        cluster.set_timeout(JOIN_TIMEOUT_MS);
        cluster.join();
        cluster.set_timeout(timeout_ms);
        cluster.await_health();
        cluster.configure("cluster-replica-no-failover no");
        cluster
    }

    /// From now on a node is taken for failing when it is silent for so many milliseconds.
    #[track_caller]
    pub fn set_timeout(&self, timeout_ms: u32) {
        self.configure(&format!("cluster-node-timeout {timeout_ms}"));
    }

    #[track_caller]
    fn configure(&self, setting: &str) {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            ask(node, &format!("CONFIG SET {setting}"));
        }
    }

    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            ask(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        thread::scope(|scope| {
            for (index, node) in self.nodes.iter().enumerate() {
                // Everybody to everybody: the news would take seconds to get around.
                for other in &self.nodes[..index] {
                    scope.spawn(|| node.meet(other));
                }
            }
        });
        for (master, share) in self.nodes.iter().zip(SHARES) {
            master.own_slots(share);
        }
        self.nodes.iter().for_each(|node| node.await_cluster(6));
        for (master, replica) in self.nodes.iter().zip(&self.nodes[3..]) {
            ask(replica, &format!("CLUSTER REPLICATE {}", id_of(master)));
        }
        self.await_health();
    }

    /// Waits until all nodes agree who serves what, each master has a replica, and all replicas follow.
    fn await_health(&self) {
        for node in &self.nodes {
            eventually(SOON * 2, || {
                node.await_cluster(6);
                let slots = ask(node, "CLUSTER SLOTS");
                // The range, the master and its replica.
                slots.array().iter().all(|range| range.array().len() == 4)
            });
        }
        self.await_replicas();
    }

    /// Waits until all replicas follow their masters.
    #[track_caller]
    pub fn await_replicas(&self) {
        for replica in self.nodes.iter().filter(|node| !is_master(node)) {
            await_replica(replica);
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Those that are masters now.
    pub fn masters(&self) -> Vec<&Server> {
        let running = self.nodes.iter().filter(|node| node.is_running());
        running.filter(|node| is_master(node)).collect()
    }

    /// The node on this port.
    #[track_caller]
    pub fn on_port(&self, port: u16) -> &Server {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|node| node.port() == port)
            .unwrap_or_else(|| panic!("no node on port {port}"))
    }

    /// Who serves a slot, and who follows it, as some running node knows it.
    #[track_caller]
    pub fn servers_of(&self, slot: i64) -> (&Server, Option<&Server>) {
        let mut running = self.nodes.iter().filter(|node| node.is_running());
        let slots = ask(running.next().expect("a running node"), "CLUSTER SLOTS");
        let bounds = |range: &&Value| {
            let range = range.array();
            (range[0].int()..=range[1].int()).contains(&slot)
        };
        let range = slots.array().iter().find(bounds);
        let range = range.unwrap_or_else(|| panic!("nobody serves slot {slot}"));
        let on = |node: &Value| {
            let port = u16::try_from(node.array()[1].int()).expect("a port");
            self.on_port(port)
        };
        let nodes = &range.array()[2..];
        (on(&nodes[0]), nodes.get(1).map(on))
    }

    /// The replica of a master.
    #[track_caller]
    pub fn replica_of(&self, master: &Server) -> &Server {
        let port = master.port().to_string();
        let follows = |node: &&Server| node.info("master_port").as_deref() == Some(&port);
        let mut running = self.nodes.iter().filter(|node| node.is_running());
        running.find(follows).expect("the master has no replica")
    }

    /// Panics unless each replica comes to have exactly what its master has.
    #[track_caller]
    pub fn assert_replicas_identical(&self) {
        for master in self.masters() {
            let replica = self.replica_of(master);
            eventually(SOON, || {
                let before = master.digest();
                wait_for_replica_sync(master, replica);
                replica.digest() == before
            });
        }
    }
}

/// Waits until a node is a replica that follows its master.
#[track_caller]
pub fn await_replica(node: &Server) {
    eventually(SOON * 2, || {
        node.info("master_link_status").as_deref() == Some("up")
    });
}

/// Whether a node is a master now.
pub fn is_master(node: &Server) -> bool {
    node.info("role").as_deref() == Some("master")
}
