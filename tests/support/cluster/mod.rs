//! What the tests of clusters share: clusters of two nodes and of six, slots on their way, and a client that follows the
//! redirections.

mod atomic;
mod circle;
mod client;
mod six;
mod slot;

pub use atomic::{A_WHILE, Atomic, owner_of};
pub use circle::{LATE_MESSAGE, has_defect, with_changing_masters};
pub use client::{Client, Lost, Told};
pub use six::{Six, await_replica, is_master};
pub use slot::Move;

use std::time::{Duration, Instant};

use super::{Builder, Lines as _, Raw, SOON, Server, ask, eventually};

/// A key of a slot that the first of [`two_nodes`] serves.
pub const LOW: &str = "bar"; // slot 5061
/// A key of a slot that the second of them serves.
pub const HIGH: &str = "foo"; // slot 12182

/// A node that owns nothing yet.
pub fn node() -> Builder {
    Server::builder().cluster(true)
}

/// The same with as many databases as the server gives the nodes of a cluster: one, or since Valkey 9 as many as it is told.
/// And how many these are.
pub fn node_of_databases() -> (Builder, usize) {
    const NAME: &str = "cluster-databases";
    let server = Server::builder().no_module().start();
    match ask(&server, &format!("CONFIG GET {NAME}")).array() {
        [] => (node(), 1),
        _ => (node().config(NAME, "2"), 2),
    }
}

/// A cluster of a master and its replica, which follows it.
#[track_caller]
pub fn master_and_replica() -> [Server; 2] {
    let (master, replica) = (node().start(), node().start());
    master.own_slots(0..=16383);
    master.meet(&replica);
    master.await_cluster(2);
    let id = ask(&master, "CLUSTER MYID");
    let replicate = ["CLUSTER", "REPLICATE", id.text()];
    eventually(SOON, || !Raw::connect(&replica).call(replicate).is_err());
    await_replica(&replica);
    replica.await_cluster(2);
    // A master ignores the request for a failover of a node that it does not know as its replica yet.
    let replicas = format!("CLUSTER REPLICAS {}", id.text());
    eventually(SOON, || ask(&master, &replicas).array().len() == 1);
    [master, replica]
}

/// Lets a replica take over from its running master. A replica abandons a failover after five seconds, so it is asked again.
#[track_caller]
pub fn take_over(replica: &Server) {
    const AGAIN: Duration = Duration::from_secs(6);
    let mut asked: Option<Instant> = None;
    eventually(SOON * 2, || {
        if is_master(replica) {
            return true;
        }
        if asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
            // Refused while the replica does not follow yet, and if it has just become a master.
            let reply = Raw::connect(replica).run("CLUSTER FAILOVER");
            asked = (!reply.is_err()).then(Instant::now);
        }
        false
    });
}

/// A connection in another database.
pub fn connect_in(server: &Server, db: usize) -> Raw {
    let mut client = Raw::connect(server);
    client.must(&format!("SELECT {db}"));
    client
}

/// One node that serves all slots, so that only the slots of a command's keys matter, and a connection to it.
pub fn one_node() -> (Server, Raw) {
    let server = node().start();
    server.own_slots(0..=16383);
    server.await_cluster(1);
    let client = Raw::connect(&server);
    (server, client)
}

/// Two nodes: the first serves the lower half of the slots.
pub fn two_nodes(builder: &Builder) -> (Server, Server) {
    let (one, other) = (builder.clone().start(), builder.clone().start());
    one.own_slots(0..=8191);
    other.own_slots(8192..=16383);
    one.meet(&other);
    for node in [&one, &other] {
        node.await_cluster(2);
        eventually(SOON, || ask(node, "CLUSTER SLOTS").array().len() == 2);
    }
    (one, other)
}

/// The slot of a key.
pub fn slot_of(server: &Server, key: &str) -> i64 {
    ask(server, &format!("CLUSTER KEYSLOT {key}")).int()
}

/// The id of a node.
pub fn id_of(server: &Server) -> String {
    ask(server, "CLUSTER MYID").text().into()
}

/// Waits until a node looks at the slots of all nodes again. The node does so regularly while clients wait there or hold leases of the cache.
#[track_caller]
pub fn await_look(node: &Server) {
    let before = calls(node, "cluster|nodes");
    eventually(SOON, || calls(node, "cluster|nodes") > before);
}

/// How often a command was called, also by the module itself.
pub fn calls(server: &Server, command: &str) -> i64 {
    let stats = ask(server, "INFO commandstats");
    let of = format!("cmdstat_{command}:calls=");
    let line = stats.text().lines().find_map(|line| line.strip_prefix(&of));
    let count = line.and_then(|line| line.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number of calls"))
}
