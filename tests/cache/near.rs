//! A near cache of the process with `CLIENT TRACKING`: a model of the client's side in each mode of tracking, on real connections.
//! After an invalidation has reached a client, its near cache returns no older value.
//!
//! `SLUICE_NEAR_STEPS` is the number of random steps (3000).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::cache::fetched;
use crate::support::{
    Lines, Random, Raw, SOON, Server, Value, eventually, number_from, quiet, waiting,
};

const KEYS: u64 = 12;

/// A mode of `CLIENT TRACKING`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Default,
    Broadcast,
    OptIn,
    OptOut,
}

const MODES: [Mode; 4] = [Mode::Default, Mode::Broadcast, Mode::OptIn, Mode::OptOut];

/// A value that a near cache keeps; `None`: a negative entry.
#[derive(Debug, Clone)]
struct Kept {
    value: Option<Vec<u8>>,
    until: Instant,
}

/// A connection with its near cache.
struct Near {
    mode: Mode,
    client: Raw,
    kept: HashMap<String, Kept>,
    pushes: u64,
    /// To test the test: of so many invalidations, one is lost.
    loses: Option<u64>,
}

impl Near {
    fn connect(server: &Server, mode: Mode, loses: Option<u64>) -> Self {
        let mut client = Raw::connect(server);
        client.hello3();
        client.must(match mode {
            Mode::Default => "CLIENT TRACKING ON",
            Mode::Broadcast => "CLIENT TRACKING ON BCAST",
            Mode::OptIn => "CLIENT TRACKING ON OPTIN",
            Mode::OptOut => "CLIENT TRACKING ON OPTOUT",
        });
        Self {
            mode,
            client,
            kept: HashMap::new(),
            pushes: 0,
            loses,
        }
    }

    /// Handles a message if it is an invalidation. Returns whether it is one, and names this key or all keys.
    fn invalidate(&mut self, message: &Value, key: &str) -> Option<bool> {
        let Value::Push(parts) = message else {
            return None;
        };
        let [kind, keys] = &parts[..] else {
            return None;
        };
        if *kind != "invalidate" {
            return None;
        }
        self.pushes += 1;
        if self
            .loses
            .is_some_and(|every| self.pushes.is_multiple_of(every))
        {
            return Some(false);
        }
        if keys.is_nil() {
            self.kept.clear();
            return Some(true);
        }
        for gone in keys.array() {
            self.kept.remove(gone.text());
        }
        Some(keys.array().iter().any(|gone| gone.text() == key))
    }

    /// Handles all invalidations that the server has sent until now.
    fn catch_up(&mut self) {
        // Broadcasts are sent at the end of a round of the event loop. With `io-threads`, the writer may have its reply before.
        let rounds = match self.mode {
            Mode::Broadcast => 2,
            _ => 1,
        };
        for _ in 0..rounds {
            self.client.send(["PING"]);
            loop {
                let message = self.client.read();
                if self.invalidate(&message, "").is_none() {
                    assert_eq!(message, "PONG");
                    break;
                }
            }
        }
    }

    /// Sends a `CACHE.FETCH`.
    fn ask(&mut self, key: &str, options: &str) -> Instant {
        let asked = Instant::now();
        let fetch = format!("CACHE.FETCH {key} LEASE 20 {options}");
        if self.mode == Mode::OptIn {
            self.client.ask("CLIENT CACHING YES");
        }
        self.client.ask(&fetch);
        asked
    }

    /// Reads the reply to it, and keeps a value unless it was invalidated meanwhile. Returns the state.
    fn take(&mut self, key: &str, asked: Instant) -> String {
        let mut is_valid = true;
        let mut replies = if self.mode == Mode::OptIn { 2 } else { 1 };
        loop {
            let message = self.client.read();
            if let Some(names_key) = self.invalidate(&message, key) {
                is_valid &= !names_key;
                continue;
            }
            replies -= 1;
            if replies > 0 {
                assert_eq!(message, "OK");
                continue;
            }
            if message.is_err() {
                return message.err().to_owned(); // a key of another type
            }
            let (state, value, n) = fetched(&message);
            if is_valid && (state == "HIT" || state == "NULL") {
                // The server counts in whole milliseconds.
                let until = asked
                    + Duration::from_millis(n as u64).saturating_sub(Duration::from_millis(1));
                self.kept.insert(key.to_owned(), Kept { value, until });
            }
            return state;
        }
    }

    /// What the near cache returns for a key.
    fn hit(&self, key: &str) -> Option<Kept> {
        let kept = self.kept.get(key)?;
        (Instant::now() < kept.until).then(|| kept.clone())
    }
}

/// What happened in a history.
#[derive(Debug, Default)]
struct Seen {
    hits: HashMap<String, u64>,
    pushes: u64,
    evicted: i64,
    handovers: u64,
}

/// A server, a client that writes, and near caches.
struct World {
    server: Server,
    writer: Raw,
    nears: Vec<Near>,
    random: Random,
    last_value: u64,
    loses: Option<u64>,
    seen: Seen,
}

impl World {
    fn key(&mut self) -> String {
        format!("key:{}", self.random.below(KEYS))
    }

    /// A command that changes the entry at a key, or any entries.
    fn change(&mut self, key: &str) -> String {
        self.last_value += 1;
        let length = 10 + self.random.below(300) as usize;
        let value = format!("{:0length$}", self.last_value);
        let time = *self.random.one(&[5, 20, 60_000, 60_000, 60_000]);
        let other = self.key();
        match self.random.below(40) {
            0..14 => format!("CACHE.SET {key} {value} PX {time} STALE 60000"),
            14..18 => format!("CACHE.SETNULL {key} PX {time}"),
            18..21 => format!("CACHE.DEL {key}"),
            21 => format!("CACHE.DEL {key} STALE 60000"),
            22 => format!("CACHE.DEL {key} STALE 5 GRACE {time}"),
            23 => format!("CACHE.DEL {key} GRACE 30"),
            24..26 => format!("DEL {key} {other}"),
            26 => format!("UNLINK {key}"),
            27 => format!("RENAME {other} {key}"),
            28..30 => format!("COPY {other} {key} REPLACE"),
            30 => format!("PEXPIRE {key} {time}"),
            31 => format!("PEXPIREAT {key} 1"),
            32 => format!("SET {key} string"),
            33 if self.random.below(10) == 0 => "FLUSHALL".into(),
            34 => format!("CACHE.FETCH {key} LEASE 5 SLIDE 90000"),
            35 => format!(
                "CACHE.SET {key} {value} PX 60000 VER {}",
                self.random.below(5)
            ),
            _ => format!("CACHE.FETCH {key} LEASE 5"),
        }
    }

    /// Carries out a random step.
    fn step(&mut self) -> Result<(), String> {
        let (key, near) = (self.key(), self.random.below(MODES.len() as u64) as usize);
        match self.random.below(20) {
            0..6 => {
                let line = self.change(&key);
                self.writer.run(&line);
            }
            6..12 => {
                let asked = self.nears[near].ask(&key, "");
                self.nears[near].take(&key, asked);
            }
            12..15 => {
                // The change comes while the request is on its way, before it or after it.
                let asked = self.nears[near].ask(&key, "");
                let line = self.change(&key);
                self.writer.run(&line);
                self.nears[near].take(&key, asked);
            }
            15 => self.hand_over(near, &key),
            16 if self.random.below(20) == 0 => {
                let id = self.nears[near].client.id_among_pushes();
                self.writer.run(&format!("CLIENT KILL ID {id}"));
                // Whoever loses the connection forgets everything.
                let fresh = Near::connect(&self.server, MODES[near], self.loses);
                let gone = std::mem::replace(&mut self.nears[near], fresh);
                self.seen.pushes += gone.pushes;
            }
            _ => {}
        }
        self.nears[near].catch_up();
        self.check(near, &key)
    }

    /// A client waits for an entry while another one has the lease, and is served by a store or gets the lease.
    fn hand_over(&mut self, near: usize, key: &str) {
        self.writer.run(&format!("DEL {key}"));
        let lease = self.writer.run(&format!("CACHE.FETCH {key} LEASE 60000"));
        let (state, _, token) = fetched(&lease);
        assert_eq!(state, "LEASE");
        let asked = self.nears[near].ask(key, "BLOCK 60000");
        eventually(SOON, || waiting(&self.server) == 1);
        self.last_value += 1;
        let value = self.last_value;
        let line = match self.random.below(5) {
            0 => format!("CACHE.SET {key} {value} PX 60000"),
            1 => format!("CACHE.SETNULL {key} PX 60000 TOKEN {token}"),
            2 => format!("CACHE.FAIL {key} {token}"),
            3 => format!("CACHE.DEL {key}"),
            _ => format!("CACHE.SET {key} {value} PX 60000 TOKEN {token}"),
        };
        self.writer.must(&line);
        self.nears[near].take(key, asked);
        self.seen.handovers += 1;
    }

    /// Compares what a near cache returns with what the server has. All invalidations have reached the client.
    fn check(&mut self, near: usize, key: &str) -> Result<(), String> {
        let near = &self.nears[near];
        let Some(kept) = near.hit(key) else {
            return Ok(());
        };
        let mode = format!("{:?}", near.mode);
        *self.seen.hits.entry(mode.clone()).or_default() += 1;
        let about = self.writer.run(&format!("CACHE.INFO {key}"));
        let got = self.writer.run(&format!("CACHE.GET {key}"));
        // Its fresh time may have ended since.
        if Instant::now() >= kept.until {
            return Ok(());
        }
        let is_fresh = !about.is_err() && !about.is_nil() && about.field("fresh_ms").int() > 0;
        let is_same = match &kept.value {
            Some(value) => !got.is_nil() && !got.is_err() && got.bytes() == value,
            None => is_fresh && *about.field("kind") == "null",
        };
        if is_fresh && is_same {
            return Ok(());
        }
        Err(format!(
            "{mode}: {key} has {kept:?}, the server {about:?} {got:?}"
        ))
    }
}

/// The id of a connection to which the server may push.
trait PushedTo {
    fn id_among_pushes(&mut self) -> i64;
}

impl PushedTo for Raw {
    fn id_among_pushes(&mut self) -> i64 {
        self.send(["CLIENT", "ID"]);
        loop {
            if let Value::Int(id) = self.read() {
                return id;
            }
        }
    }
}

/// Runs random steps. Error: a near cache returned an old value. `loses`: see [`Near`].
fn history(seed: u64, steps: u64, loses: Option<u64>) -> Result<Seen, String> {
    let server = quiet()
        .module_args(&["cache-max-bytes", "2000"])
        .config("tracking-table-max-keys", "8")
        .start();
    let nears = MODES.map(|mode| Near::connect(&server, mode, loses));
    let mut world = World {
        writer: Raw::connect(&server),
        nears: nears.into(),
        random: Random(seed),
        last_value: 0,
        loses,
        seen: Seen::default(),
        server,
    };
    for step in 0..steps {
        world
            .step()
            .map_err(|error| format!("step {step}: {error}"))?;
    }
    world.seen.pushes += world.nears.iter().map(|near| near.pushes).sum::<u64>();
    world.seen.evicted = world.server.info_int("sluice_cache_evicted");
    Ok(world.seen)
}

#[test]
fn a_near_cache_returns_no_old_value_after_the_invalidation_has_reached_it() {
    let steps = number_from("SLUICE_NEAR_STEPS", 3000);
    let seen = history(0x0ea2_cac4, steps, None).unwrap_or_else(|error| panic!("{error}"));
    println!("{steps} steps: {seen:?}");
    for mode in MODES {
        let hits = seen.hits.get(&format!("{mode:?}")).copied().unwrap_or(0);
        assert!(hits > steps / 100, "{mode:?}: {seen:?}");
    }
    assert!(seen.pushes > steps / 10, "{seen:?}");
    assert!(seen.evicted as u64 > steps / 100, "{seen:?}");
    assert!(seen.handovers > steps / 100, "{seen:?}");
}

/// The checker finds a lost invalidation.
#[test]
fn a_near_cache_that_loses_invalidations_returns_an_old_value() {
    let error = history(7, 20_000, Some(10)).expect_err("no old value");
    assert!(error.contains("the server"), "{error}");
}
