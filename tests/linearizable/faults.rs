//! What goes wrong while clients are at work: drawn from a seed, carried out against a real server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::proxy::{Direction, Proxy, Trouble};
use crate::support::{Builder, Fsync, Random, Raw, Server};

/// Nobody listens there: who is made its replica keeps its own dataset.
const NOWHERE: [&str; 2] = ["127.0.0.1", "1"];

/// The shortest time that clients wait for a reply.
const LEAST_PATIENCE: Duration = Duration::from_millis(120);

/// A fault; numbers are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGSTOP, and SIGCONT later.
    Freeze(u64),
    /// `kill -9`, and a start from the append-only file later.
    Crash(u64),
    /// `CLIENT PAUSE ... ALL`.
    PauseAll(u64),
    /// `CLIENT PAUSE ... WRITE`.
    PauseWrites(u64),
    /// `CLIENT KILL TYPE normal`.
    KillClients,
    /// `CLIENT UNBLOCK` of everybody.
    UnblockClients,
    /// The server becomes a replica of nobody that answers, and a master again later.
    Demotion(u64),
    /// `DEBUG RELOAD`.
    Reload,
    /// `BGREWRITEAOF`.
    Rewrite,
    /// Some requests meet trouble on their way.
    Requests(Trouble),
    /// Some replies meet trouble on their way.
    Replies(Trouble),
}

impl Fault {
    /// Any fault: those of the network most often, since they cost least.
    pub fn any(random: &mut Random) -> Self {
        let ms = 5 + random.below(60);
        match random.below(100) {
            0..8 => Self::Freeze(ms),
            8..16 => Self::Crash(random.below(20)),
            16..22 => Self::PauseAll(ms),
            22..30 => Self::PauseWrites(ms),
            30..38 => Self::KillClients,
            38..44 => Self::UnblockClients,
            44..54 => Self::Demotion(ms / 2),
            54..60 => Self::Reload,
            60..62 => Self::Rewrite,
            62..81 => Self::Requests(any_trouble(random)),
            _ => Self::Replies(any_trouble(random)),
        }
    }

    /// The fault without its numbers; `None`: it only waits for a message to meet.
    fn kind(self) -> Option<&'static str> {
        Some(match self {
            Self::Freeze(_) => "SIGSTOP and SIGCONT",
            Self::Crash(_) => "kill -9 and restart",
            Self::PauseAll(_) => "CLIENT PAUSE ALL",
            Self::PauseWrites(_) => "CLIENT PAUSE WRITE",
            Self::KillClients => "CLIENT KILL TYPE normal",
            Self::UnblockClients => "CLIENT UNBLOCK",
            Self::Demotion(_) => "REPLICAOF and back",
            Self::Reload => "DEBUG RELOAD",
            Self::Rewrite => "BGREWRITEAOF",
            Self::Requests(_) | Self::Replies(_) => return None,
        })
    }
}

/// What is counted when a message meets trouble.
pub fn kind_of(direction: Direction, trouble: Trouble) -> &'static str {
    match (direction, trouble) {
        (Direction::Request, Trouble::Lost) => "requests lost",
        (Direction::Request, Trouble::Cut) => "requests cut",
        (Direction::Request, Trouble::Late(_)) => "requests late",
        (Direction::Request, Trouble::Split) => "requests split",
        (Direction::Reply, Trouble::Lost) => "replies lost",
        (Direction::Reply, Trouble::Cut) => "replies cut",
        (Direction::Reply, Trouble::Late(_)) => "replies late",
        (Direction::Reply, Trouble::Split) => "replies split",
    }
}

fn any_trouble(random: &mut Random) -> Trouble {
    match random.below(8) {
        0..3 => Trouble::Lost,
        3 => Trouble::Cut,
        // Some are so late that the client has given up.
        4..7 => Trouble::Late(1 + random.below(240)),
        _ => Trouble::Split,
    }
}

/// How often what went wrong.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<&'static str, usize>>);

impl Tally {
    /// Counts something.
    pub fn add(&self, what: &'static str, times: usize) {
        let mut counts = self.0.lock().expect("nobody panics while counting");
        *counts.entry(what).or_default() += times;
    }

    /// How often it was counted.
    pub fn of(&self, what: &str) -> usize {
        let counts = self.0.lock().expect("nobody panics while counting");
        counts.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().expect("nobody panics while counting");
        let parts: Vec<_> = counts
            .iter()
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        out.write_str(&parts.join(", "))
    }
}

/// A server, the network before it, and how much was done to them.
pub struct World {
    pub server: Server,
    pub proxy: Proxy,
    pub tally: Arc<Tally>,
    /// How long a client waits for a reply before it gives up, in addition to the time for which it asked to wait in the queue.
    pub patience: Duration,
}

impl World {
    /// A server that has written to its disk whatever it acknowledges.
    pub fn durable(tally: &Arc<Tally>) -> Self {
        Self::of(Server::builder().aof(Fsync::Always), tally)
    }

    /// A server that remembers nothing: a crash loses what it has acknowledged.
    pub fn forgetful(tally: &Arc<Tally>) -> Self {
        Self::of(Server::builder(), tally)
    }

    fn of(builder: Builder, tally: &Arc<Tally>) -> Self {
        let server = builder.start();
        let proxy = Proxy::before(server.port(), tally);
        Self {
            patience: LEAST_PATIENCE.max(20 * time_of_a_write(&proxy)),
            server,
            proxy,
            tally: Arc::clone(tally),
        }
    }

    /// Carries a fault out, to its end.
    pub fn suffer(&self, fault: Fault) {
        let (server, proxy) = (&self.server, &self.proxy);
        let wait = |ms| sleep(Duration::from_millis(ms));
        let pause = |ms: u64, mode: &str| {
            server.command(["CLIENT", "PAUSE", &ms.to_string(), mode]);
            wait(ms);
        };
        match fault {
            Fault::Freeze(ms) => {
                server.stop_signal();
                wait(ms);
                server.cont_signal();
            }
            Fault::Crash(ms) => {
                server.kill9();
                wait(ms);
                server.restart();
            }
            Fault::PauseAll(ms) => pause(ms, "ALL"),
            Fault::PauseWrites(ms) => pause(ms, "WRITE"),
            Fault::KillClients => {
                server.command(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            Fault::UnblockClients => self.unblock_all(),
            Fault::Demotion(ms) => {
                server.command(["REPLICAOF", NOWHERE[0], NOWHERE[1]]);
                wait(ms);
                server.promote();
            }
            Fault::Reload => {
                server.command(["DEBUG", "RELOAD"]);
            }
            Fault::Rewrite => {
                // One that runs already is as good.
                let _ = Raw::connect(server).call(["BGREWRITEAOF"]);
            }
            Fault::Requests(trouble) => proxy.trouble_a_request(self.as_late(trouble)),
            Fault::Replies(trouble) => proxy.trouble_a_reply(self.as_late(trouble)),
        }
        if let Some(kind) = fault.kind() {
            self.tally.add(kind, 1);
        }
    }

    /// A late message is later if the clients wait longer.
    fn as_late(&self, trouble: Trouble) -> Trouble {
        let ms = |time: Duration| time.as_millis() as u64;
        match trouble {
            Trouble::Late(late) => Trouble::Late(late * ms(self.patience) / ms(LEAST_PATIENCE)),
            _ => trouble,
        }
    }

    fn unblock_all(&self) {
        if self.server.may_die_of_unblock() {
            return;
        }
        // Redis 7.0 to 8.0 dies when it is to unblock a client whose command it has put off.
        self.server.command(["CLIENT", "UNPAUSE"]);
        let clients = self.server.command(["CLIENT", "LIST", "TYPE", "normal"]);
        for line in clients.text().lines() {
            let id = line.split(['=', ' ']).nth(1).expect("it begins with id=");
            self.server.command(["CLIENT", "UNBLOCK", id]);
        }
    }
}

/// The median time of a write. It is long on a slow disk.
fn time_of_a_write(proxy: &Proxy) -> Duration {
    let mut client = Raw::try_connect(proxy.port()).expect("cannot connect");
    let mut times = [(); 9].map(|()| {
        let begun = Instant::now();
        client.call(["SET", "write", "1"]);
        begun.elapsed()
    });
    times.sort_unstable();
    times[times.len() / 2]
}
