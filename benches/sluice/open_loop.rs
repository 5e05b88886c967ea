//! A client whose commands are due when they are due, however slow the server is.
//!
//! A client that waits for a reply before it sends the next command asks less of a slow server, and so leaves out of its
//! latencies what everybody else would have waited for ("coordinated omission"). Here requests come by a schedule, as from
//! many independent users (a Poisson process), and a latency counts from the moment when the request was due.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cpu::main_thread_time;
use crate::support::{Random, Server, Swarm};
use crate::template::Ready;

/// As many as a service of some size has.
pub(crate) const CONNECTIONS: usize = 50;

/// Requests that each connection has under way while the capacity is measured.
const DEPTH: usize = 4;

/// Cycles of a request, in one write: what a page of a shop asks for, or a client that pipelines by itself. One command in a
/// write costs the server mostly the system calls, and this client more than the server.
pub(crate) const CYCLES: usize = 10;

/// How many are sent before replies are read.
const BURST: usize = 64;

/// Latencies are kept in nanoseconds with three digits.
const DIGITS: u8 = 3;
const LONGEST: u64 = 100_000_000_000;

/// When all is sent, replies come within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// All connections, and what each of them has asked.
pub(crate) struct OpenLoop<'a> {
    swarm: Swarm,
    row: &'a str,
    steps: &'a [Ready<'a>],
    asked: Vec<Asked>,
    random: Random,
    number: u64,
    latencies: Histogram<u64>,
    lateness: Histogram<u64>,
    replied: u64,
}

/// The requests of one connection that have no reply yet.
#[derive(Clone, Default)]
struct Asked {
    /// When each was due.
    due: VecDeque<Instant>,
    /// Replies to the first of them that have come.
    heard: usize,
}

/// What a run has shown.
pub(crate) struct Run {
    pub(crate) latencies: Histogram<u64>,
    /// How long after they were due requests were sent: what of the latencies is the client's own.
    pub(crate) lateness: Histogram<u64>,
}

impl<'a> OpenLoop<'a> {
    pub(crate) fn connect(server: &Server, row: &'a str, steps: &'a [Ready<'a>]) -> Self {
        let histogram =
            || Histogram::new_with_max(LONGEST, DIGITS).expect("three digits are possible");
        Self {
            swarm: Swarm::connect(server, CONNECTIONS),
            row,
            steps,
            asked: vec![Asked::default(); CONNECTIONS],
            random: Random(0x5eed_5eed),
            number: 0,
            latencies: histogram(),
            lateness: histogram(),
            replied: 0,
        }
    }

    /// Requests that `server` gets through in a second of its own time when there is always another one waiting.
    ///
    /// By the time of its main thread, not by the clock: what else runs on the machine would set the pace.
    pub(crate) fn capacity(mut self, server: u32, length: Duration) -> f64 {
        let start = Instant::now();
        let before = main_thread_time(server);
        for _ in 0..DEPTH {
            for connection in 0..CONNECTIONS {
                self.send(connection, start);
            }
        }
        while start.elapsed() < length {
            for connection in self.swarm.ready(Duration::ZERO) {
                for _ in 0..self.hear(connection) {
                    self.send(connection, Instant::now());
                }
            }
        }
        self.finish();
        let nanoseconds = main_thread_time(server) - before;
        self.replied as f64 / (nanoseconds as f64 / 1e9)
    }

    /// Sends `rate` requests per second until `length` is over, and waits for the replies.
    pub(crate) fn run(mut self, rate: f64, length: Duration) -> Run {
        let start = Instant::now();
        let mut due = start;
        while due < start + length {
            for _ in 0..BURST {
                if due > Instant::now() {
                    break;
                }
                let connection = self.random.below(CONNECTIONS as u64) as usize;
                self.lateness.saturating_record(nanos_since(due));
                self.send(connection, due);
                due += self.gap(rate);
            }
            self.listen();
        }
        self.finish();
        Run {
            latencies: self.latencies,
            lateness: self.lateness,
        }
    }

    /// The time to the next request of a Poisson process.
    fn gap(&mut self, rate: f64) -> Duration {
        let share = (self.random.below(1 << 31) + 1) as f64 / (1u64 << 31) as f64;
        Duration::from_secs_f64(-share.ln() / rate)
    }

    fn send(&mut self, connection: usize, due: Instant) {
        let mut bytes = Vec::with_capacity(2048);
        for _ in 0..CYCLES {
            self.number += 1;
            for step in self.steps {
                step.template.write(self.number, connection, &mut bytes);
            }
        }
        self.swarm.send(connection, &bytes);
        self.asked[connection].due.push_back(due);
    }

    /// Reads what has come. It does not sleep: this client has a core of its own, and nobody wakes up in time.
    fn listen(&mut self) {
        for connection in self.swarm.ready(Duration::ZERO) {
            self.hear(connection);
        }
    }

    /// How many requests of the connection have got their last reply.
    fn hear(&mut self, connection: usize) -> usize {
        let mut complete = 0;
        let asked = &mut self.asked[connection];
        for reply in self.swarm.replies(connection) {
            self.steps[asked.heard % self.steps.len()].check(&reply, self.row);
            asked.heard += 1;
            if asked.heard == CYCLES * self.steps.len() {
                asked.heard = 0;
                let due = asked.due.pop_front().expect("a request was sent");
                self.latencies.saturating_record(nanos_since(due));
                complete += 1;
            }
        }
        self.replied += complete as u64;
        complete
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.asked.iter().any(|asked| !asked.due.is_empty()) {
            assert!(
                Instant::now() < deadline,
                "{}: replies are missing",
                self.row
            );
            self.listen();
        }
    }
}

fn nanos_since(due: Instant) -> u64 {
    u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
