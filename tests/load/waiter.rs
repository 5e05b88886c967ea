//! Clients that wait, are served, hold for a moment, give back, and wait again: for locks, for several locks at once, for
//! permits, for what others are loading into a cache, and for work that others do.

use std::time::Duration;

use crate::support::{Random, Value};

/// So many wait for one key.
const GROUP: usize = 100;

/// How long the database of a cache takes, and how long its answers are good.
const LOAD: Duration = Duration::from_millis(800);
const FRESH_MS: &str = "50";

/// What a client waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Exclusive,
    Shared,
    /// Two locks at once.
    Both,
    Permits,
    Entry,
    /// The result of work that is done once.
    Work,
}

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has asked, and may have to wait.
    Asks,
    /// It has what it wanted.
    Holds,
    /// It gives back.
    Returns,
    /// It has all it needs, and will want nothing more unless told to.
    Rests,
}

/// What a client does next.
pub(crate) enum Next {
    /// It sends this.
    Send(String),
    /// Nothing until this time is over.
    Sleep(Duration),
    /// Nothing until its reply is there.
    Listen,
    /// Nothing any more.
    Nothing,
}

/// A client that waits.
pub(crate) struct Waiter {
    name: usize,
    group: usize,
    want: Want,
    state: State,
    /// Of the lease to load.
    token: i64,
    /// How often it was served.
    pub(crate) served: u64,
    /// How often its time was up.
    pub(crate) timeouts: u64,
}

impl Waiter {
    /// The waiter with this number, which asks when it is told to [go on](Self::go_on).
    pub(crate) fn new(number: usize) -> Self {
        let group = number / GROUP;
        let want = match (group % 5, number % 4) {
            (0 | 1, 0) => Want::Shared,
            (0 | 1, 1) => Want::Both,
            (0 | 1, _) => Want::Exclusive,
            (2, _) => Want::Permits,
            (3, _) => Want::Entry,
            _ => Want::Work,
        };
        Self {
            name: number,
            group,
            want,
            state: State::Rests,
            token: 0,
            served: 0,
            timeouts: 0,
        }
    }

    /// Whether it has asked and has no reply yet.
    pub(crate) fn has_asked(&self) -> bool {
        self.state == State::Asks
    }

    /// It slept, or it begins. `last`: it wants nothing new.
    pub(crate) fn go_on(&mut self, random: &mut Random, last: bool) -> Next {
        match self.state {
            State::Holds => {
                self.state = State::Returns;
                Next::Send(self.give_back())
            }
            State::Rests if !last => {
                self.state = State::Asks;
                Next::Send(self.ask(random))
            }
            State::Rests => Next::Nothing,
            State::Asks | State::Returns => Next::Listen,
        }
    }

    /// A reply came. Panics if it is none of what there may be.
    #[track_caller]
    pub(crate) fn hear(&mut self, reply: &Value, random: &mut Random) -> Next {
        match (self.state, reply) {
            (State::Asks, Value::Nil) if !self.wants_value() => {
                self.timeouts += 1;
                self.state = State::Rests;
                Next::Sleep(Duration::ZERO)
            }
            (State::Asks, Value::Array(parts)) if self.wants_value() => self.fetched(parts, random),
            (State::Asks, Value::Int(1..)) if self.want != Want::Both => self.granted(random),
            (State::Asks, Value::Array(fences)) if self.want == Want::Both && fences.len() == 2 => {
                self.granted(random)
            }
            // It may be gone: flushed, swapped away, or void.
            (State::Returns, Value::Int(_) | Value::Nil) if self.want != Want::Both => {
                self.returned()
            }
            (State::Returns, Value::Array(left)) if self.want == Want::Both && left.len() == 2 => {
                self.returned()
            }
            _ => panic!("{reply:?} to waiter {} of group {}", self.name, self.group),
        }
    }

    /// Whether one client makes a value for all others of its group.
    fn wants_value(&self) -> bool {
        matches!(self.want, Want::Entry | Want::Work)
    }

    fn ask(&self, random: &mut Random) -> String {
        let Self { name, group, .. } = self;
        // Some of them have not all the time.
        let block = if random.below(4) == 0 {
            500 + random.below(3000)
        } else {
            0
        };
        match self.want {
            Want::Exclusive => format!("LOCK.ACQUIRE wl{group} w{name} PX 5000 BLOCK {block}"),
            Want::Shared => {
                format!("LOCK.ACQUIRE wl{group} w{name} SHARED PX 5000 WATCHDOG BLOCK {block}")
            }
            Want::Both => {
                format!("LOCK.MACQUIRE 2 wl{group} wm{group} w{name} PX 5000 BLOCK {block}")
            }
            Want::Permits => format!("SEM.ACQUIRE ws{group} w{name} LIMIT 3 PX 5000 BLOCK {block}"),
            Want::Entry => format!("CACHE.FETCH we{group} LEASE 10000 BLOCK {block}"),
            Want::Work => format!("ONCE.BEGIN wo{group} LEASE 10000 BLOCK {block}"),
        }
    }

    fn give_back(&self) -> String {
        let Self {
            name, group, token, ..
        } = self;
        match self.want {
            Want::Exclusive | Want::Shared => format!("LOCK.RELEASE wl{group} w{name}"),
            Want::Both => format!("LOCK.MRELEASE 2 wl{group} wm{group} w{name}"),
            Want::Permits => format!("SEM.RELEASE ws{group} w{name}"),
            Want::Entry => format!("CACHE.SET we{group} value PX {FRESH_MS} TOKEN {token}"),
            Want::Work => format!("ONCE.DONE wo{group} {token} result PX {FRESH_MS}"),
        }
    }

    fn granted(&mut self, random: &mut Random) -> Next {
        self.served += 1;
        self.state = State::Holds;
        Next::Sleep(Duration::from_millis(5 + random.below(20)))
    }

    #[track_caller]
    fn fetched(&mut self, parts: &[Value], random: &mut Random) -> Next {
        let [state, _, Value::Int(n)] = parts else {
            panic!("{parts:?}");
        };
        match state.text() {
            "LEASE" | "NEW" => {
                self.served += 1;
                self.token = *n;
                self.state = State::Holds;
                Next::Sleep(LOAD)
            }
            "HIT" | "DONE" => {
                self.served += 1;
                self.state = State::Rests;
                Next::Sleep(Duration::from_millis(*n as u64 + random.below(20)))
            }
            "WAIT" | "BUSY" => {
                self.timeouts += 1;
                self.state = State::Rests;
                Next::Sleep(Duration::ZERO)
            }
            other => panic!("{other}"),
        }
    }

    fn returned(&mut self) -> Next {
        self.state = State::Rests;
        Next::Sleep(Duration::ZERO)
    }
}
