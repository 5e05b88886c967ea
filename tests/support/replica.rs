//! Masters and replicas: pairs of them, whether both have the same, and what a server has told its replicas.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::builder::Builder;
use super::client::Raw;
use super::random::Random;
use super::server::{Server, wait_for_replica_sync};
use super::talk::{Lines as _, SOON, field_of, unix_ms};
use super::value::Value;
use super::wait::EndOnDrop;
use super::wait::eventually;

/// A server that sends its replicas nothing of its own accord, and everything else at once: those that were synchronized
/// without a file have to wait for up to a second.
pub fn quiet() -> Builder {
    Server::builder()
        .config("repl-ping-replica-period", "3600")
        .config("repl-diskless-sync", "no")
}

/// A [quiet] master and its replica.
#[track_caller]
pub fn pair() -> (Server, Server) {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&master, &replica);
    (master, replica)
}

/// Makes `replica` one of `master`, and waits until it has everything.
#[track_caller]
pub fn follow(master: &Server, replica: &Server) {
    replica.replica_of(master);
    wait_for_replica_sync(master, replica);
}

/// Stops a master after its replica has received all changes. If the master stops before `end` (Unix ms), returns `end`. Otherwise lets
/// the master continue, waits until both servers have no keys, and returns `None`.
#[track_caller]
pub fn stop_before(master: &Server, replica: &Server, end: i64) -> Option<i64> {
    wait_for_replica_sync(master, replica);
    master.stop_signal();
    if unix_ms() < end {
        return Some(end);
    }
    master.cont_signal();
    eventually(SOON, || Raw::connect(replica).must("DBSIZE") == 0);
    None
}

/// Waits until a server that has become a replica or a master is that.
#[track_caller]
pub fn await_role(server: &Server, role: &str) {
    eventually(SOON, || server.info("role").as_deref() == Some(role));
}

/// Waits until a failover between two servers has ended, and the old master follows the new one.
#[track_caller]
pub fn await_failover(old: &Server, new: &Server) {
    let is = |server: &Server, field, value| server.info(field).as_deref() == Some(value);
    eventually(SOON, || {
        is(new, "role", "master")
            && is(old, "role", "slave")
            && is(old, "master_link_status", "up")
            && is(new, "master_failover_state", "no-failover")
    });
    eventually(SOON, || new.info_int("connected_slaves") == 1);
}

/// Panics unless the replica comes to have exactly what its master has.
#[track_caller]
pub fn assert_identical(master: &Server, replica: &Server) {
    // A master on which leases, reservations or keys still end changes between two looks: only one at rest can be compared.
    let deadline = Instant::now() + SOON;
    loop {
        let before = master.digest();
        wait_for_replica_sync(master, replica);
        if replica.digest() == before {
            return;
        }
        if master.digest() == before {
            break;
        }
        assert!(Instant::now() < deadline, "the master never comes to rest");
    }
    panic!("the datasets differ:{}", differences(master, replica));
}

/// What differs between two servers, for the message of a failure.
pub fn differences(master: &Server, replica: &Server) -> String {
    let mut differences = String::new();
    for db in 0..4 {
        let (mut one, mut other) = (Raw::connect(master), Raw::connect(replica));
        let mut keys = Vec::new();
        for client in [&mut one, &mut other] {
            client.must(&format!("SELECT {db}"));
            keys.extend(client.must("KEYS *").array().to_vec());
        }
        keys.sort_by_key(|key| key.bytes().to_vec());
        keys.dedup();
        for key in keys {
            let mut look = |command: &[&[u8]]| {
                let command = [command, &[key.bytes()]].concat();
                [one.call(&command), other.call(&command)]
            };
            let [own, others] = look(&[b"DEBUG", b"DIGEST-VALUE"]);
            let ends = look(&[b"PEXPIRETIME"]);
            if own != others || ends[0] != ends[1] {
                let shown = [&mut one, &mut other].map(|client| shown(client, key.bytes()));
                differences += &format!("\n{db} {key:?} on the master, and the replica:");
                differences += &format!("\n  {:?}, ends {:?}", shown[0], ends[0]);
                differences += &format!("\n  {:?}, ends {:?}", shown[1], ends[1]);
            }
        }
    }
    differences
}

/// What a person would look at.
fn shown(client: &mut Raw, key: &[u8]) -> Value {
    let kind = client.call([b"TYPE", key]);
    let command: &[u8] = match kind.text() {
        "stream" => return client.call([b"XRANGE".as_slice(), key, b"-", b"+"]),
        "sluice-lk" => b"LOCK.INFO",
        "sluice-sm" => b"SEM.INFO",
        "sluice-st" => b"STOCK.INFO",
        "sluice-bf" => b"BF.INFO",
        "sluice-cf" => b"CF.INFO",
        "sluice-ca" => b"CACHE.INFO",
        _ => b"DUMP",
    };
    client.call([command, key])
}

/// All that a refusal must leave as it is: the dataset, the append-only file and what replicas are sent.
///
/// The server keeps an append-only file for this.
#[derive(Debug, PartialEq)]
pub struct Written {
    digest: String,
    aof_size: i64,
    offset: i64,
}

impl Written {
    /// What the server has written until now.
    #[track_caller]
    pub fn by(server: &Server) -> Self {
        let info = server.command(["INFO", "everything"]);
        let field = |name| field_of(&info, name);
        Self {
            digest: server.digest(),
            aof_size: field("aof_current_size"),
            offset: field("master_repl_offset"),
        }
    }
}

/// So many clients send random commands for a while, some in transactions and scripts; `draw` makes one. None is answered with
/// an internal error.
pub fn random_load(
    server: &Server,
    clients: u32,
    seed: u64,
    time: Duration,
    draw: impl Fn(&mut Random) -> String + Sync,
) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..clients {
            let (stop, draw) = (&stop, &draw);
            scope.spawn(move || {
                let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15_u64.rotate_left(number * 8));
                let mut client = Raw::connect(server);
                while !stop.load(Ordering::Relaxed) {
                    let command = draw(&mut random);
                    match random.below(20) {
                        0 => drop(client.transact([command, draw(&mut random)])),
                        1 => {
                            let script = "return redis.pcall(unpack(ARGV))";
                            let mut line = vec!["EVAL", script, "0"];
                            line.extend(command.split_whitespace());
                            client.call(line);
                        }
                        _ => {
                            if let Value::Error(text) = client.run(&command) {
                                assert!(!text.contains("internal"), "{command}: {text}");
                            }
                        }
                    }
                }
            });
        }
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
}
