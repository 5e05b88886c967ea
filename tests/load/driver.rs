//! One thread that speaks for all clients.
//!
//! Commands of the clients that never wait are sent when they are due, whether the server has answered others or not, and
//! a latency is counted from that moment on: a server that stands still pays for all that was due meanwhile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::mix::{self, FAMILIES, Sent};
use crate::support::{Random, Server, Swarm, encode};
use crate::waiter::{Next, Waiter};

/// The longest time between two looks at the clock.
const LOOK: Duration = Duration::from_millis(20);

/// How many are sent before replies are read.
const BURST: usize = 256;

/// Everybody who waits is served within this when nobody comes any more.
const PATIENCE: Duration = Duration::from_secs(180);

/// All clients: those that wait first, then those that do not.
pub(crate) struct Driver {
    swarm: Swarm,
    waiters: Vec<Waiter>,
    /// What each of the others has sent, and when that was due.
    sent: Vec<VecDeque<(Sent, Instant)>>,
    /// When waiters go on that sleep.
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    random: Random,
    drawn: u64,
    /// Nobody who was served asks again.
    is_ending: bool,
    /// Latencies in microseconds, for each family.
    pub(crate) latencies: Vec<Vec<u32>>,
    /// How long after they were due commands were sent, in microseconds: what of the latencies is this process's own.
    pub(crate) lateness: Vec<u32>,
}

impl Driver {
    /// Connects `waiters` clients that wait and `others` that do not.
    pub(crate) fn connect(server: &Server, waiters: usize, others: usize) -> Self {
        Self {
            swarm: Swarm::connect(server, waiters + others),
            waiters: (0..waiters).map(Waiter::new).collect(),
            sent: vec![VecDeque::new(); others],
            alarms: BinaryHeap::new(),
            random: Random(0x10ad_10ad),
            drawn: 0,
            is_ending: false,
            latencies: vec![Vec::new(); FAMILIES.len()],
            lateness: Vec::new(),
        }
    }

    /// Lets all waiters ask, without haste.
    pub(crate) fn let_them_wait(&mut self) {
        let now = Instant::now();
        for index in 0..self.waiters.len() {
            self.alarms.push(Reverse((
                now + Duration::from_micros(50 * index as u64),
                index,
            )));
        }
        while self
            .waiters
            .iter()
            .any(|waiter| waiter.served == 0 && !waiter.has_asked())
        {
            self.turn(LOOK);
        }
    }

    /// Sends `rate` commands per second until `length` is over.
    pub(crate) fn run(&mut self, rate: u64, length: Duration) {
        let start = Instant::now();
        let step = Duration::from_secs(1) / u32::try_from(rate).expect("a rate fits");
        let mut due = start;
        while due < start + length {
            for _ in 0..BURST {
                if due > Instant::now() {
                    break;
                }
                self.send_due(due);
                due += step;
            }
            self.turn(due.saturating_duration_since(Instant::now()).min(LOOK));
        }
    }

    /// Waits until everybody has every reply: those who wait are served, one after the other.
    #[track_caller]
    pub(crate) fn finish(&mut self) {
        self.is_ending = true;
        let deadline = Instant::now() + PATIENCE;
        while self.missing() > 0 {
            assert!(
                Instant::now() < deadline,
                "{} replies never came",
                self.missing()
            );
            self.turn(LOOK);
        }
    }

    /// How many replies have not come.
    fn missing(&self) -> usize {
        let asked = self
            .waiters
            .iter()
            .filter(|waiter| waiter.has_asked())
            .count();
        asked + self.alarms.len() + self.sent.iter().map(VecDeque::len).sum::<usize>()
    }

    /// How often waiters were served, and how often their time was up.
    pub(crate) fn waits(&self) -> (u64, u64) {
        let served = self.waiters.iter().map(|waiter| waiter.served).sum();
        (
            served,
            self.waiters.iter().map(|waiter| waiter.timeouts).sum(),
        )
    }

    fn send_due(&mut self, due: Instant) {
        self.drawn += 1;
        let client = self.random.below(self.sent.len() as u64) as usize;
        let (sent, line) = mix::draw(&mut self.random, client, self.drawn);
        let member = self.waiters.len() + client;
        self.swarm.send(member, &encode(line.split(' ')));
        self.sent[client].push_back((sent, due));
        self.lateness.push(micros_since(due));
    }

    /// Reads what has come until `limit` is over, and wakes those whose sleep is.
    #[track_caller]
    fn turn(&mut self, limit: Duration) {
        let now = Instant::now();
        let alarm = self
            .alarms
            .peek()
            .map_or(limit, |Reverse((at, _))| at.saturating_duration_since(now));
        for member in self.swarm.ready(limit.min(alarm)) {
            for reply in self.swarm.replies(member) {
                if member < self.waiters.len() {
                    let next = self.waiters[member].hear(&reply, &mut self.random);
                    self.follow(member, next);
                } else {
                    let sent = &mut self.sent[member - self.waiters.len()];
                    let (sent, due) = sent.pop_front().expect("a reply that nobody asked for");
                    sent.check(&reply);
                    self.latencies[sent.family()].push(micros_since(due));
                }
            }
        }
        let now = Instant::now();
        while let Some(Reverse((at, index))) = self.alarms.peek().copied()
            && at <= now
        {
            self.alarms.pop();
            let next = self.waiters[index].go_on(&mut self.random, self.is_ending);
            self.follow(index, next);
        }
    }

    fn follow(&mut self, index: usize, next: Next) {
        match next {
            Next::Send(line) => self.swarm.send(index, &encode(line.split(' '))),
            Next::Sleep(time) => self.alarms.push(Reverse((Instant::now() + time, index))),
            Next::Listen | Next::Nothing => {}
        }
    }
}

fn micros_since(due: Instant) -> u32 {
    u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX)
}
