//! Runs rows and takes the time of the server.

use std::time::Duration;

use crate::cpu::main_thread_time;
use crate::filled::Filled;
use crate::options::Options;
use crate::row::{Row, Step, Work};
use crate::support::{Crowd, Raw, Server, eventually};
use crate::template::{Ready, Words};

/// One by one takes a network round trip for each command: fewer cycles do.
const CYCLES_ONE_BY_ONE: u64 = 4;

/// Connections that send pipelines in turn, so that the server finds the next batch waiting: what it takes to sleep and to
/// wake up is not what a command costs.
const CONNECTIONS: usize = 16;

/// Part of the cycles that run before the measured ones, so that caches and allocator are warm.
const WARM_UP: u64 = 10;

/// Cycles of a hundred items: a part of the cycles of the others, and so many in one write.
const PART_OF_MANY: u64 = 10;
const PIPELINE_OF_MANY: usize = 10;

const DISCONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Server CPU of one cycle, in microseconds: the least over the rounds so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) pipelined: Option<f64>,
    pub(crate) one_by_one: Option<f64>,
}

impl Cost {
    pub(crate) fn least(self, other: Self) -> Self {
        let least = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            pipelined: least(self.pipelined, other.pipelined),
            one_by_one: least(self.one_by_one, other.one_by_one),
        }
    }
}

/// The server under measurement and the client that keeps it busy.
pub(crate) struct Bench<'a> {
    server: &'a Server,
    clients: Vec<Raw>,
    words: Words,
    filled: Filled,
    cycles: u64,
    /// Commands in one write.
    pipeline: usize,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(server: &'a Server, options: &Options) -> Self {
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Raw::connect(server)).collect();
        let words = Words::load(&mut clients[0]);
        Self {
            server,
            clients,
            words,
            filled: Filled::default(),
            cycles: options.cycles,
            pipeline: options.pipeline as usize,
        }
    }

    /// One round of one row; `number` is the row's own.
    pub(crate) fn run(&mut self, row: &Row, number: usize) -> Cost {
        let key = format!("row:{number}");
        self.prepare(row, &key);
        match &row.work {
            Work::Cycle(steps) => self.run_cycles(row, steps, &key),
            Work::HandOver {
                waiters,
                give,
                take,
            } => self.run_hand_overs(row.name, *waiters, [give, take], &key),
        }
    }

    /// The row's setup on an empty database.
    fn prepare(&mut self, row: &Row, key: &str) {
        let client = &mut self.clients[0];
        let flushed = client.call(["FLUSHDB", "SYNC"]);
        assert_eq!(flushed, "OK");
        for command in row.setup {
            let text = self.words.fill(command, key).text(0, 0);
            if self.filled.copy(client, &text) {
                continue;
            }
            let reply = client.call(text.split(' '));
            assert!(
                !reply.is_err(),
                "{}: {text} got the reply {reply:?}",
                row.name
            );
        }
    }

    fn run_cycles(&mut self, row: &Row, steps: &[Step], key: &str) -> Cost {
        let steps: Vec<_> = self.ready(steps, key);
        let pid = self.server.pid();
        let (cycles, pipeline) = match row.items {
            1 => (self.cycles, self.pipeline),
            _ => (self.cycles.div_ceil(PART_OF_MANY), PIPELINE_OF_MANY),
        };
        let mut stream = Stream {
            row: row.name,
            steps: &steps,
            cycle: 0,
        };
        let many = &mut self.clients[..];
        stream.send(many, cycles.div_ceil(WARM_UP), pipeline);
        let pipelined = timed(pid, cycles, |cycles| stream.send(many, cycles, pipeline));
        let few = cycles.div_ceil(CYCLES_ONE_BY_ONE);
        let one_by_one = timed(pid, few, |cycles| {
            stream.send_one_by_one(&mut many[0], cycles)
        });
        Cost {
            pipelined: Some(pipelined),
            one_by_one: Some(one_by_one),
        }
    }

    fn ready<'s>(&self, steps: impl IntoIterator<Item = &'s Step>, key: &str) -> Vec<Ready<'s>> {
        let steps = steps.into_iter();
        steps
            .map(|step| Ready::new(step, &self.words, key))
            .collect()
    }

    fn run_hand_overs(&mut self, row: &str, waiters: usize, steps: [&Step; 2], key: &str) -> Cost {
        let steps = self.ready(steps, key);
        let [give, take] = &steps[..] else {
            unreachable!("two steps in, two out")
        };
        let mut ring = Ring::gather(self.server, row, waiters, give, take);
        let cycles = self.cycles.div_ceil(CYCLES_ONE_BY_ONE);
        ring.turn(cycles.div_ceil(WARM_UP));
        let pid = self.server.pid();
        let cost = timed(pid, cycles, |cycles| ring.turn(cycles));
        drop(ring);
        // The next row must not pay for the end of thousands of connections.
        eventually(DISCONNECT_LIMIT, || {
            self.server.info_int("blocked_clients") == 0
                && self.server.info_int("connected_clients") < CONNECTIONS as i64 + 4
        });
        Cost {
            pipelined: None,
            one_by_one: Some(cost),
        }
    }
}

/// Microseconds that the server's main thread runs for each of `cycles`.
fn timed(pid: u32, cycles: u64, work: impl FnOnce(u64)) -> f64 {
    let before = main_thread_time(pid);
    work(cycles);
    let nanoseconds = main_thread_time(pid) - before;
    nanoseconds as f64 / cycles as f64 / 1000.0
}

/// The cycles of a row, on their way to the server.
struct Stream<'a> {
    row: &'a str,
    steps: &'a [Ready<'a>],
    /// The cycles sent so far.
    cycle: u64,
}

impl Stream<'_> {
    /// Sends `cycles`: to each client in turn a write of whole cycles, about `pipeline` commands, and reads all replies
    /// before the next turn.
    fn send(&mut self, clients: &mut [Raw], cycles: u64, pipeline: usize) {
        let batch = (pipeline / self.steps.len()).max(1) as u64;
        let last = self.cycle + cycles;
        let mut bytes = Vec::new();
        while self.cycle < last {
            let mut sent = vec![0; clients.len()];
            for (client, sent) in clients.iter_mut().zip(&mut sent) {
                *sent = batch.min(last - self.cycle);
                bytes.clear();
                for _ in 0..*sent {
                    self.cycle += 1;
                    for step in self.steps {
                        step.template.write(self.cycle, 0, &mut bytes);
                    }
                }
                client.send_bytes(&bytes);
            }
            for (client, sent) in clients.iter_mut().zip(sent) {
                for step in (0..sent).flat_map(|_| self.steps) {
                    step.read(client, self.row);
                }
            }
        }
    }

    /// Sends `cycles`, waiting for each reply before the next command.
    fn send_one_by_one(&mut self, client: &mut Raw, cycles: u64) {
        let mut bytes = Vec::new();
        for _ in 0..cycles {
            self.cycle += 1;
            for step in self.steps {
                bytes.clear();
                step.template.write(self.cycle, 0, &mut bytes);
                client.send_bytes(&bytes);
                step.read(client, self.row);
            }
        }
    }
}

/// Clients in a queue, of whom one is being served.
struct Ring<'a> {
    row: &'a str,
    clients: Crowd,
    served: usize,
    give: &'a Ready<'a>,
    take: &'a Ready<'a>,
}

impl<'a> Ring<'a> {
    /// Lets one client in, and `waiters` queue behind it.
    fn gather(
        server: &Server,
        row: &'a str,
        waiters: usize,
        give: &'a Ready<'a>,
        take: &'a Ready<'a>,
    ) -> Self {
        let mut clients = Crowd::connect(server, waiters + 1);
        let command = |client| take.template.text(0, client);
        clients.ask_in_order(
            |client| {
                command(client)
                    .split(' ')
                    .map(str::to_string)
                    .collect::<Vec<_>>()
            },
            |asked| server.info_int("blocked_clients") == asked as i64 - 1,
        );
        take.read(clients.member(0), row);
        Self {
            row,
            clients,
            served: 0,
            give,
            take,
        }
    }

    /// Hands over `times` times.
    fn turn(&mut self, times: u64) {
        let mut bytes = Vec::new();
        for _ in 0..times {
            bytes.clear();
            self.give.template.write(0, self.served, &mut bytes);
            self.take.template.write(0, self.served, &mut bytes);
            let giver = self.clients.member(self.served);
            giver.send_bytes(&bytes);
            self.give.read(giver, self.row);
            self.served = (self.served + 1) % self.clients.size();
            self.take.read(self.clients.member(self.served), self.row);
        }
    }
}
