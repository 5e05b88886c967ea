//! What happens to the dataset meanwhile, and how long a client that only sends PING has to wait.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::support::{Raw, Server, field_of};

/// Between two PINGs.
const PAUSE: Duration = Duration::from_millis(1);

/// What happens, one after the other, in equal distances. `(none)` is to compare with.
const ACCIDENTS: &[&str] = &[
    "(none)",
    "FLUSHALL",
    "SWAPDB 0 1",
    "BGREWRITEAOF",
    "FLUSHALL ASYNC",
    "BGSAVE SCHEDULE",
    "SWAPDB 1 0",
];

/// Something that happened.
pub(crate) struct Accident {
    pub(crate) name: &'static str,
    /// The longest that a PING took from it to the next one.
    pub(crate) stall: Duration,
    /// How long the command took.
    pub(crate) took: Duration,
    /// How many clients waited before.
    pub(crate) waiting: i64,
}

/// The threads that cause accidents and send PINGs.
pub(crate) struct Watch {
    causes: JoinHandle<Vec<Accident>>,
    pings: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
}

impl Watch {
    /// Lets everything happen within `length`.
    pub(crate) fn start(server: &Server, length: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let (over, stall) = (is_over.clone(), longest.clone());
        let mut pinger = Raw::connect(server);
        let pings = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                assert_eq!(pinger.call(["PING"]), "PONG");
                let took = start.elapsed();
                {
                    let mut longest = stall.lock().expect("nobody panics with it");
                    *longest = took.max(*longest);
                }
                sleep(PAUSE);
            }
        });
        let client = Raw::connect(server);
        let distance = length / u32::try_from(ACCIDENTS.len()).expect("a few");
        let causes = thread::spawn(move || cause_all(client, distance, &longest));
        Self {
            causes,
            pings,
            is_over,
        }
    }

    /// What has happened.
    pub(crate) fn finish(self) -> Vec<Accident> {
        let accidents = self.causes.join().expect("accidents happen as they should");
        self.is_over.store(true, Ordering::Relaxed);
        self.pings.join().expect("every PING is answered");
        accidents
    }
}

fn cause_all(mut client: Raw, distance: Duration, longest: &Mutex<Duration>) -> Vec<Accident> {
    let mut accidents = Vec::new();
    for name in ACCIDENTS {
        let info = client.call(["INFO", "sluice"]);
        let waiting = field_of(&info, "sluice_lock_waiting")
            + field_of(&info, "sluice_cache_waiters_now")
            + field_of(&info, "sluice_once_waiting");
        *longest.lock().expect("nobody panics with it") = Duration::ZERO;
        let start = Instant::now();
        if !name.starts_with('(') {
            let reply = client.call(name.split(' '));
            assert!(!reply.is_err(), "{name}: {reply:?}");
        }
        let took = start.elapsed();
        sleep(distance.saturating_sub(took));
        accidents.push(Accident {
            name,
            stall: *longest.lock().expect("nobody panics with it"),
            took,
            waiting,
        });
    }
    accidents
}
