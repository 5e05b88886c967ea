//! A client of a cluster: it follows redirections, as client libraries do, and tells lost replies from answers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Six;
use crate::support::{Raw, Value};

/// A command that has been sent around for longer than this will never be carried out.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a waiting command may wait besides.
const REPLY: Duration = Duration::from_secs(45);

/// Before a node is asked again that could not answer.
const PAUSE: Duration = Duration::from_millis(5);

/// The connection was lost before the reply came: nobody knows whether the command was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// What it was told besides answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// The slot is served elsewhere.
    pub moved: usize,
    /// The key may have gone to a node that takes the slot over.
    pub asked: usize,
    /// The keys of one command are on two nodes.
    pub try_again: usize,
    /// The node became a replica while the client waited.
    pub unblocked: usize,
    /// Nobody serves the slot now, or the node is loading.
    pub down: usize,
    /// Replies that never came.
    pub lost: usize,
}

impl std::ops::AddAssign for Told {
    fn add_assign(&mut self, other: Self) {
        self.moved += other.moved;
        self.asked += other.asked;
        self.try_again += other.try_again;
        self.unblocked += other.unblocked;
        self.down += other.down;
        self.lost += other.lost;
    }
}

/// A client of a cluster. All keys of a command have the same hash tag, by which it remembers who serves them.
pub struct Client<'a> {
    cluster: &'a Six,
    connections: HashMap<u16, Raw>,
    served_by: HashMap<String, u16>,
    /// Where the last command was answered.
    last: u16,
    /// What it was told until now.
    pub told: Told,
}

enum Next {
    Answer(Value),
    Again,
    Ask(u16),
}

impl<'a> Client<'a> {
    /// A client that first asks the first node.
    pub fn of(cluster: &'a Six) -> Self {
        Self {
            cluster,
            connections: HashMap::new(),
            served_by: HashMap::new(),
            last: 0,
            told: Told::default(),
        }
    }

    /// Sends the command of a line to whoever serves this hash tag; panics on an error that is not about the cluster.
    #[track_caller]
    pub fn must(&mut self, tag: &str, line: &str) -> Value {
        self.call(tag, line)
            .unwrap_or_else(|Lost| panic!("{line}: the reply is lost"))
    }

    /// The same, where a node may be killed before it answers.
    #[track_caller]
    pub fn call(&mut self, tag: &str, line: &str) -> Result<Value, Lost> {
        let deadline = Instant::now() + PATIENCE;
        let mut asking = None;
        loop {
            assert!(Instant::now() < deadline, "{line}: {:?}", self.told);
            let port = asking.unwrap_or_else(|| self.port_of(tag));
            if self.connect(port).is_err() {
                self.try_another(tag);
                continue;
            }
            let reply = self.talk(port, line, asking.take().is_some());
            let Ok(reply) = reply else {
                self.connections.remove(&port);
                self.try_another(tag);
                self.told.lost += 1;
                return Err(Lost);
            };
            match self.understand(tag, port, reply) {
                Next::Answer(reply) => {
                    assert!(!reply.is_err(), "{line}: {reply:?}");
                    self.last = port;
                    return Ok(reply);
                }
                Next::Again => {}
                Next::Ask(port) => asking = Some(port),
            }
        }
    }

    /// Whether a replica has all that this client has written with its last command.
    pub fn is_replicated(&mut self) -> bool {
        let port = self.last;
        let reply = self.talk(port, "WAIT 1 1000", false);
        if reply.is_err() {
            self.connections.remove(&port);
        }
        reply.is_ok_and(|count| matches!(count, Value::Int(1..)))
    }

    /// The port of the node that carried the last command out.
    pub fn answered_by(&self) -> u16 {
        self.last
    }

    fn port_of(&self, tag: &str) -> u16 {
        let known = self.served_by.get(tag);
        known
            .copied()
            .unwrap_or_else(|| self.cluster.nodes()[0].port())
    }

    fn connect(&mut self, port: u16) -> io::Result<()> {
        if let Entry::Vacant(place) = self.connections.entry(port) {
            place.insert(Raw::try_connect(port)?);
        }
        Ok(())
    }

    fn talk(&mut self, port: u16, line: &str, asking: bool) -> io::Result<Value> {
        let connection = self
            .connections
            .get_mut(&port)
            .ok_or(io::ErrorKind::NotConnected)?;
        if asking {
            connection.try_call(["ASKING"], REPLY)?;
        }
        let reply = connection.try_call(line.split_whitespace(), REPLY)?;
        Ok(reply.unwrap_or_else(|| panic!("{line}: never answered")))
    }

    /// Some other node than the one that this tag was sent to.
    fn try_another(&mut self, tag: &str) {
        sleep(PAUSE);
        let ports: Vec<u16> = self
            .cluster
            .nodes()
            .iter()
            .map(|node| node.port())
            .collect();
        let port = self.port_of(tag);
        let at = ports.iter().position(|other| *other == port).unwrap_or(0);
        self.served_by
            .insert(tag.into(), ports[(at + 1) % ports.len()]);
    }

    fn understand(&mut self, tag: &str, port: u16, reply: Value) -> Next {
        let Value::Error(error) = &reply else {
            return Next::Answer(reply);
        };
        let mut words = error.split(' ');
        let told = &mut self.told;
        match words.next().unwrap_or_default() {
            "MOVED" => {
                told.moved += 1;
                self.served_by.insert(tag.into(), port_in(error));
                Next::Again
            }
            "ASK" => {
                told.asked += 1;
                Next::Ask(port_in(error))
            }
            "TRYAGAIN" => {
                told.try_again += 1;
                sleep(PAUSE);
                Next::Again
            }
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" => {
                told.down += 1;
                self.try_another(tag);
                Next::Again
            }
            "UNBLOCKED" => {
                told.unblocked += 1;
                self.connections.remove(&port); // the server is about to close it
                Next::Again
            }
            _ => Next::Answer(reply),
        }
    }
}

fn port_in(redirection: &str) -> u16 {
    let port = redirection.rsplit(':').next().unwrap_or_default();
    port.parse().unwrap_or_else(|_| panic!("{redirection}"))
}
