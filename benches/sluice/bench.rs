//! The server under measurement, and the clients that keep it busy.

use std::time::Duration;

use crate::cpu;
use crate::filled::Filled;
use crate::floor;
use crate::options::Options;
use crate::row::Step;
use crate::support::{Fsync, Raw, Server, eventually};
use crate::template::{Ready, Words};

/// Connections that send pipelines in turn. The next batch always waits, so the cost of a command does not contain the sleep and
/// the wake-up of the server.
pub(crate) const CONNECTIONS: usize = 16;

/// More than the largest number of clients that wait at the same time.
const MOST_CLIENTS: &str = "15000";

/// Commands in one write while a dataset is filled.
const FILL_AT_ONCE: u64 = 1_000;

const DISCONNECT_LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) clients: Vec<Raw>,
    pub(crate) words: Words,
    filled: Filled,
}

impl Bench {
    /// A server on one core; this thread moves to another one.
    pub(crate) fn start(options: &Options) -> Self {
        Self::start_under(&[], options)
    }

    /// The same with a server that runs under another program.
    pub(crate) fn start_under(wrapper: &[&str], options: &Options) -> Self {
        cpu::run_anywhere();
        let server = start_server(wrapper, options);
        cpu::separate_from(server.pid());
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Raw::connect(&server)).collect();
        let words = Words::load(&mut clients[0]);
        if options.module {
            floor::load(&server, &mut clients[0]);
        }
        Self {
            server,
            clients,
            words,
            filled: Filled::default(),
        }
    }

    /// Runs the commands on an empty database. `{n}` becomes `number`.
    pub(crate) fn prepare(&mut self, setup: &[&str], name: &str, key: &str, number: u64) {
        let client = &mut self.clients[0];
        let flushed = client.call(["FLUSHDB", "SYNC"]);
        assert_eq!(flushed, "OK");
        for command in setup {
            let text = self.words.fill(command, key, number).text(0, 0);
            if self.filled.copy(client, &text) {
                continue;
            }
            let reply = client.call(text.split(' '));
            assert!(!reply.is_err(), "{name}: {text} got the reply {reply:?}");
        }
    }

    /// Sends this command over every connection, if it is not empty.
    pub(crate) fn send_to_all(&mut self, command: &str) {
        if !command.is_empty() {
            for client in &mut self.clients {
                let reply = client.call(command.split(' '));
                assert_eq!(reply, "OK", "{command}");
            }
        }
    }

    /// Runs the command for each `{i}` from 1 to `number`.
    pub(crate) fn fill(&mut self, command: &str, name: &str, key: &str, number: u64) {
        let template = self.words.fill(command, key, number);
        let client = &mut self.clients[0];
        let mut bytes = Vec::new();
        for first in (1..=number).step_by(FILL_AT_ONCE as usize) {
            let some = first..(first + FILL_AT_ONCE).min(number + 1);
            bytes.clear();
            for index in some.clone() {
                template.write(index, 0, &mut bytes);
            }
            client.send_bytes(&bytes);
            for _ in some {
                let reply = client.read();
                let is_fine = !reply.is_err() && !reply.is_nil();
                assert!(is_fine, "{name}: {command} got the reply {reply:?}");
            }
        }
    }

    pub(crate) fn ready<'s>(
        &self,
        steps: impl IntoIterator<Item = &'s Step>,
        key: &str,
        number: u64,
    ) -> Vec<Ready<'s>> {
        let steps = steps.into_iter();
        steps
            .map(|step| Ready::new(step, &self.words, key, number))
            .collect()
    }

    /// Waits until the server has closed the connections of a crowd. Otherwise this work would be measured with the next row.
    pub(crate) fn await_the_end_of_crowds(&self) {
        eventually(DISCONNECT_LIMIT, || {
            self.server.info_int("blocked_clients") == 0
                && self.server.info_int("connected_clients") < CONNECTIONS as i64 + 4
        });
    }

    /// Waits until no request is queued. A request that is notified has no client of its own, and the server removes the requests
    /// of a closed connection in slices. Otherwise these would be measured with the next row.
    pub(crate) fn await_the_end_of_requests(&self) {
        eventually(DISCONNECT_LIMIT, || {
            self.server.info_int("sluice_lock_waiting") == 0
        });
    }
}

fn start_server(wrapper: &[&str], options: &Options) -> Server {
    let mut builder = Server::builder()
        .under(wrapper)
        .config("maxclients", MOST_CLIENTS);
    if !options.module {
        builder = builder.no_module();
    }
    if options.aof {
        // A rewrite in the middle of a batch would be measured with it.
        builder = builder
            .aof(Fsync::Everysec)
            .config("auto-aof-rewrite-percentage", "0");
    }
    builder.start()
}
