//! A client that sends requests by a schedule and does not wait for replies.
//!
//! A client that waits for its reply sends fewer requests to a slow server, and its latencies leave out the waiting time of all
//! other users ("coordinated omission"). Here requests follow a schedule, as of many independent users (a Poisson process), and
//! a latency counts from the moment when the request was due.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cpu::main_thread_time;
use crate::support::{Random, Server, Swarm};
use crate::template::Ready;

/// The number of connections, as of a medium service.
pub(crate) const CONNECTIONS: usize = 50;

/// Requests that each connection has under way while the capacity is measured.
const DEPTH: usize = 4;

/// Cycles of a request, in one write, as a page of a shop or a pipelining client sends them. With one command in a write, the
/// server would spend most of its time in system calls, and this client would need more time than the server.
pub(crate) const CYCLES: usize = 10;

/// Requests that are sent before replies are read.
const BURST: usize = 64;

/// Latencies are kept in nanoseconds with three digits.
const DIGITS: u8 = 3;
const LONGEST: u64 = 100_000_000_000;

/// The time within which all replies arrive after the last request.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// All connections, and the requests of each that have no reply yet.
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
    /// Replies to the first of them that have arrived.
    heard: usize,
}

/// The results of a run.
pub(crate) struct Run {
    pub(crate) latencies: Histogram<u64>,
    /// The delay between the due time of a request and its sending: the client's own part of a latency.
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

    /// Requests that `server` answers in a second of its own CPU time while more requests always wait.
    ///
    /// The time is that of its main thread, not of the clock, because other programs would lower the result.
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

    /// Reads the replies that have arrived. It does not sleep: this client has its own core, and a wake-up would take too long.
    fn listen(&mut self) {
        for connection in self.swarm.ready(Duration::ZERO) {
            self.hear(connection);
        }
    }

    /// Reads replies of the connection. Returns the number of requests that are complete now.
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
        let deadline = Instant::now() + REPLY_LIMIT;
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
