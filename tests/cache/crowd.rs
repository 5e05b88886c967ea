//! Crowds of readers ask the database once, and what writers have invalidated never comes back: neither by readers that
//! are slow nor by database replicas that lag.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::cache::{counter, fetched, lease, number, shown};
use crate::support::{
    Crowd, EndOnDrop, Lines, Random, Raw, SOON, Server, Value, await_waiting, not_before,
    server_and_client, still_waits,
};

fn crowded_server() -> Server {
    Server::builder().many_that_block(10_000).start()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

// One rebuild for all

#[test]
fn a_thousand_readers_of_a_missing_key_ask_the_database_once() {
    const SIZE: usize = 1000;
    let server = crowded_server();
    let mut crowd = Crowd::connect(&server, SIZE);
    let mut control = Raw::connect(&server);
    crowd.ask_in_order(
        |_| words("CACHE.FETCH k LEASE 600000 BLOCK 0"),
        |asked| counter(&mut control, "waiters_now") == asked as i64 - 1,
    );

    // Whoever is told to asks the database.
    let mut asked = 0;
    let (loader, reply) = crowd.replies(1, SOON).remove(0);
    let token = number(&reply, "LEASE -").to_string();
    asked += 1;
    let set = ["CACHE.SET", "k", "loaded", "PX", "600000", "TOKEN", &token];
    // The loader's own reply is one of those that follow.
    crowd.member(loader).send(set);
    let mut hits = 0;
    for (index, reply) in crowd.replies(SIZE, SOON) {
        match &reply {
            Value::Int(1) => assert_eq!(index, loader),
            reply if shown(reply) == "HIT loaded" => hits += 1,
            reply if shown(reply) == "LEASE -" => asked += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((asked, hits), (1, SIZE - 1));
    assert_eq!(counter(&mut control, "leases"), 1);
    assert_eq!(counter(&mut control, "waiters_now"), 0);
    assert_eq!(counter(&mut control, "leases_now"), 0);
}

#[test]
fn readers_that_come_while_somebody_loads_ask_the_database_no_more_often() {
    const THREADS: usize = 8;
    let (server, mut client) = server_and_client();
    let asked = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut reader = Raw::connect(&server);
                for key in 0..50 {
                    let line = format!("CACHE.FETCH k{key} LEASE 600000 BLOCK 60000");
                    let (state, value, n) = fetched(&reader.must(&line));
                    match state.as_str() {
                        "LEASE" => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            let set = format!("CACHE.SET k{key} v{key} PX 600000 TOKEN {n}");
                            assert_eq!(reader.must(&set), 1);
                        }
                        "HIT" => assert_eq!(value, Some(format!("v{key}").into_bytes())),
                        other => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert_eq!(asked.into_inner(), 50);
    assert_eq!(counter(&mut client, "refused_sets"), 0);
}

#[test]
fn loaders_that_die_are_replaced_once_per_lease() {
    const LEASE: Duration = Duration::from_millis(150);
    const ROUNDS: u32 = 5;
    let server = crowded_server();
    let mut crowd = Crowd::connect(&server, 40);
    let mut control = Raw::connect(&server);
    let start = Instant::now();
    crowd.ask_in_order(|_| words("CACHE.FETCH k LEASE 150 BLOCK 0"), |_| true);
    let mut loaders = Vec::new();
    for round in 0..ROUNDS {
        let (loader, reply) = crowd.replies(1, SOON).remove(0);
        number(&reply, "LEASE -");
        not_before(start, LEASE * round);
        assert!(!loaders.contains(&loader));
        loaders.push(loader);
        // It dies. Its connection stays in the crowd, so it is closed from the other side.
        let id = crowd.member(loader).id().to_string();
        assert_eq!(control.call(["CLIENT", "KILL", "ID", &id]), 1);
        *crowd.member(loader) = Raw::connect(&server);
    }
    // So the next one loads; everybody else has it then. On a slow machine its lease may end before it stores the value. Then there are
    // several loaders, and their replies may be read in any order.
    let mut loads = 0;
    let mut stores = 0;
    for _ in ROUNDS..40 {
        let (member, reply) = crowd.replies(1, SOON).remove(0);
        if stores > 0 && shown(&reply) == "HIT v" {
            continue;
        }
        let token = number(&reply, "LEASE -");
        not_before(start, LEASE * (ROUNDS + loads));
        loads += 1;
        let line = format!("CACHE.SET k v PX 600000 TOKEN {token}");
        stores += crowd.member(member).run(&line).int();
    }
    assert_eq!(stores, 1);
    assert_eq!(counter(&mut control, "leases"), i64::from(ROUNDS + loads));
}

#[test]
fn a_loader_that_fails_is_tried_once_per_backoff() {
    const BACKOFF: Duration = Duration::from_millis(100);
    let (server, _client) = server_and_client();
    let (tries, downs) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_enough = || {
        let tries = tries.load(Ordering::Relaxed);
        tries >= 8 && downs.load(Ordering::Relaxed) > tries
    };
    let start = Instant::now();
    thread::scope(|scope| {
        for number in 0..6 {
            let (server, tries, downs, is_enough) = (&server, &tries, &downs, &is_enough);
            scope.spawn(move || {
                let mut reader = Raw::connect(server);
                // Some wait while others try: a failure is an answer for them, too.
                let block = if number % 2 == 0 { " BLOCK 60000" } else { "" };
                // Not for a fixed time: if the machine stalls, no time remains for the attempts.
                while !is_enough() && start.elapsed() < SOON {
                    let line = format!("CACHE.FETCH k LEASE 600000{block}");
                    let (state, value, n) = fetched(&reader.must(&line));
                    assert_eq!(value, None);
                    match state.as_str() {
                        "LEASE" => {
                            tries.fetch_add(1, Ordering::Relaxed);
                            let fail = format!("CACHE.FAIL k {n} BACKOFF 100");
                            assert_eq!(reader.must(&fail), 1);
                        }
                        "DOWN" => {
                            assert!(n <= 100, "{n}");
                            downs.fetch_add(1, Ordering::Relaxed);
                            thread::sleep(Duration::from_millis(1));
                        }
                        "WAIT" => assert!(block.is_empty()),
                        other => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(is_enough(), "{tries:?} tries, {downs:?} times DOWN");
    let (tries, downs) = (tries.into_inner(), downs.into_inner());
    println!("{tries} tries, {downs} times DOWN");
    let most = start.elapsed().as_millis() / (BACKOFF.as_millis() - 10) + 1;
    assert!(u128::from(tries) <= most, "{tries} tries, {most} at most");
}

#[test]
fn a_failure_answers_all_waiting_clients_and_none_of_them_tries() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let token = lease(&mut client, "k");
    let mut crowd = Crowd::connect(&server, 200);
    crowd.ask_in_order(|_| words("CACHE.FETCH k LEASE 600000 BLOCK 0"), |_| true);
    await_waiting(&server, 200);
    still_waits(crowd.member(0));
    assert_eq!(
        client.must(&format!("CACHE.FAIL k {token} BACKOFF 600000")),
        1
    );
    for (_, reply) in crowd.replies(200, SOON) {
        let left = number(&reply, "DOWN -");
        assert!((1..=600_000).contains(&left));
    }
    assert_eq!(counter(&mut client, "leases"), 1);
    assert_eq!(counter(&mut client, "down"), 200);
}

// Slow readers and writers

/// A database of a few rows, each of which is its version, and what it was before.
struct Database {
    rows: Vec<Mutex<Vec<(Instant, u64)>>>,
    /// For each row the last version that is known to be invalidated: no older one may be a hit any more.
    invalidated: Vec<AtomicU64>,
}

impl Database {
    fn new(rows: usize) -> Self {
        let start = Instant::now();
        Self {
            rows: (0..rows).map(|_| Mutex::new(vec![(start, 1)])).collect(),
            invalidated: (0..rows).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn read(&self, row: usize) -> u64 {
        self.rows[row].lock().unwrap().last().unwrap().1
    }

    /// What a replica knows that is so far behind.
    fn read_behind(&self, row: usize, lag: Duration) -> u64 {
        let history = self.rows[row].lock().unwrap();
        let seen = Instant::now().checked_sub(lag).unwrap();
        let known = history.iter().rev().find(|(at, _)| *at <= seen);
        known.map_or(1, |(_, version)| *version)
    }

    fn write(&self, row: usize) -> u64 {
        let mut history = self.rows[row].lock().unwrap();
        let version = history.last().unwrap().1 + 1;
        history.push((Instant::now(), version));
        version
    }
}

/// How a run is done.
#[derive(Clone, Copy)]
struct Run {
    seed: u64,
    /// Do readers say which lease they store by?
    tokens: bool,
    /// Do all say which version they store?
    versions: bool,
    /// How far the replica that readers read is behind, at most, in milliseconds.
    lag: u64,
    invalidate: fn(&mut Raw, &mut Random, usize, u64),
}

const ROWS: usize = 3;
const READERS: u64 = 5;
const WRITERS: u64 = 2;

/// For how long all read and write, before they come to rest.
const ROUND: Duration = Duration::from_millis(150);

/// How often a reader had a hit that it must not have had any more, and how many rows the cache has old at the end.
#[derive(Debug, Default, PartialEq)]
struct Stale {
    hits: u64,
    rows: usize,
}

/// Readers and writers at random; then all is quiet, and the cache is compared with the database.
fn run(server: &Server, run: Run) -> Stale {
    server.command(["FLUSHALL"]);
    let database = Database::new(ROWS);
    let (quiet, stale_hits) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _end = EndOnDrop(&quiet);
        for number in 0..READERS {
            let (database, quiet, stale_hits) = (&database, &quiet, &stale_hits);
            scope.spawn(move || {
                let mut random = Random(run.seed * 1000 + number + 1);
                let mut client = Raw::connect(server);
                while !quiet.load(Ordering::Relaxed) {
                    let row = random.below(ROWS as u64) as usize;
                    if !reads(&mut client, &mut random, run, database, row) {
                        stale_hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for number in 0..WRITERS {
            let (database, quiet) = (&database, &quiet);
            scope.spawn(move || {
                let mut random = Random(run.seed * 1000 + 500 + number);
                let mut client = Raw::connect(server);
                while !quiet.load(Ordering::Relaxed) {
                    let row = random.below(ROWS as u64) as usize;
                    let version = database.write(row);
                    (run.invalidate)(&mut client, &mut random, row, version);
                    database.invalidated[row].fetch_max(version, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(random.below(20)));
                }
            });
        }
        thread::sleep(ROUND);
        quiet.store(true, Ordering::Relaxed);
    });
    let mut client = Raw::connect(server);
    let stale = (0..ROWS).filter(|row| {
        let (state, value, _) = fetched(&client.must(&format!("CACHE.FETCH k{row} LEASE 1")));
        state == "HIT" && version_of(&value) < database.read(*row)
    });
    Stale {
        rows: stale.count(),
        hits: stale_hits.into_inner(),
    }
}

fn version_of(value: &Option<Vec<u8>>) -> u64 {
    let text = std::str::from_utf8(value.as_deref().expect("a value"));
    text.expect("a number").parse().expect("a number")
}

/// A reader does as it is told. Returns whether what it had was not known to be old before it asked.
fn reads(client: &mut Raw, random: &mut Random, run: Run, database: &Database, row: usize) -> bool {
    let floor = database.invalidated[row].load(Ordering::SeqCst);
    // Some leases end before their loader is done.
    let lease = *random.one(&["600000", "600000", "4"]);
    let block = *random.one(&["", "", " BLOCK 20"]);
    let early = *random.one(&["", " EARLY 600000", " BETA 10"]);
    let line = format!("CACHE.FETCH k{row} LEASE {lease}{early}{block}");
    let (state, value, n) = fetched(&client.must(&line));
    match state.as_str() {
        "LEASE" => {
            let lag = Duration::from_millis(random.below(run.lag + 1));
            let version = database.read_behind(row, lag);
            thread::sleep(Duration::from_millis(random.below(12)));
            let store = match random.below(20) {
                0 => format!("CACHE.FAIL k{row} {n} BACKOFF 3"),
                1 => return true, // it dies
                _ => {
                    let stale = *random.one(&["", " STALE 600000", " JITTER 10"]);
                    let mut line = format!("CACHE.SET k{row} {version} PX 500000{stale}");
                    if run.tokens {
                        line += &format!(" TOKEN {n}");
                    }
                    if run.versions {
                        line += &format!(" VER {version}");
                    }
                    line
                }
            };
            client.must(&store);
            true
        }
        "HIT" => version_of(&value) >= floor,
        "STALE" | "WAIT" | "DOWN" => {
            thread::sleep(Duration::from_millis(1));
            true
        }
        other => panic!("{other}"),
    }
}

/// Any command that takes an entry away, of this family or of the server.
fn invalidate_somehow(client: &mut Raw, random: &mut Random, row: usize, _version: u64) {
    let line = match random.below(14) {
        0..4 => format!("CACHE.DEL k{row}"),
        4 => format!("CACHE.DEL k{row} STALE 600000"),
        5 => format!("CACHE.DEL k{row} GRACE 5"),
        6 => format!("DEL other k{row}"),
        7 => format!("UNLINK k{row}"),
        8 => "FLUSHDB".into(),
        9 => "FLUSHALL ASYNC".into(),
        10 => format!("RENAME k{row} trash"),
        11 => format!("PEXPIRE k{row} 0"),
        12 => format!("MOVE k{row} 1"),
        _ => {
            client.transact([format!("SET k{row} other"), format!("DEL k{row}")]);
            return;
        }
    };
    let reply = client.run(&line);
    // What isn't there is not renamed, moved or expired, which changes nothing: then it must be deleted.
    let does_nothing = match line.split(' ').next() {
        Some("RENAME") => reply.is_err(),
        Some("MOVE" | "PEXPIRE") => reply == 0,
        _ => {
            assert!(!reply.is_err(), "{line}: {reply:?}");
            false
        }
    };
    if does_nothing {
        client.must(&format!("DEL k{row}"));
    }
}

/// A writer that leaves the new version instead. An entry that somebody has put there from the database is not newer.
fn write_through(client: &mut Raw, _random: &mut Random, row: usize, version: u64) {
    let line = format!("CACHE.SET k{row} {version} PX 500000 VER {version}");
    client.must(&line);
}

/// For longer than any replica is behind, and with a value that is served stale meanwhile or not.
fn invalidate_with_grace(client: &mut Raw, random: &mut Random, row: usize, _version: u64) {
    let stale = *random.one(&["", " STALE 60000"]);
    client.must(&format!("CACHE.DEL k{row} GRACE 30{stale}"));
}

fn invalidate_without_grace(client: &mut Raw, random: &mut Random, row: usize, _version: u64) {
    let stale = *random.one(&["", " STALE 60000"]);
    client.must(&format!("CACHE.DEL k{row}{stale}"));
}

const TOKENS: Run = Run {
    seed: 0,
    tokens: true,
    versions: false,
    lag: 0,
    invalidate: invalidate_somehow,
};

/// Panics if anything old is seen in any of many rounds.
#[track_caller]
fn never_stale(runs: u64, how: Run) {
    let server = Server::start();
    let hits = || counter(&mut Raw::connect(&server), "hits");
    let mut seed = 0;
    // On a busy machine few hits come of a run.
    while seed < runs || hits() <= 100 {
        seed += 1;
        let stale = run(&server, Run { seed, ..how });
        assert_eq!(stale, Stale::default(), "seed {seed}");
        assert!(seed < 10 * runs, "{} hits: nothing was tried", hits());
    }
}

/// Panics unless the cache keeps something old in one of many rounds: else the test above proves nothing.
#[track_caller]
fn stale_sometimes(how: Run) {
    let server = Server::start();
    let found = (1..=60).any(|seed| run(&server, Run { seed, ..how }).rows > 0);
    assert!(found, "nothing old was ever kept");
}

#[test]
fn with_tokens_nothing_that_was_invalidated_ever_comes_back() {
    never_stale(12, TOKENS);
}

#[test]
fn without_tokens_what_was_invalidated_comes_back() {
    stale_sometimes(Run {
        tokens: false,
        ..TOKENS
    });
}

#[test]
fn with_versions_what_is_older_never_takes_the_place_of_what_is_newer() {
    never_stale(
        6,
        Run {
            tokens: false,
            versions: true,
            invalidate: write_through,
            ..TOKENS
        },
    );
}

#[test]
fn without_versions_what_is_older_takes_the_place_of_what_is_newer() {
    fn write(client: &mut Raw, random: &mut Random, row: usize, version: u64) {
        thread::sleep(Duration::from_millis(random.below(5)));
        client.must(&format!("CACHE.SET k{row} {version} PX 500000"));
    }
    stale_sometimes(Run {
        tokens: false,
        invalidate: write,
        ..TOKENS
    });
}

// A database replica that lags

/// At most as long as the grace: the server's milliseconds are cut off.
const LAG: u64 = 28;

#[test]
fn with_a_grace_of_the_lag_nothing_old_is_stored_from_a_database_replica() {
    never_stale(
        12,
        Run {
            lag: LAG,
            invalidate: invalidate_with_grace,
            ..TOKENS
        },
    );
}

#[test]
fn without_grace_what_a_database_replica_still_has_is_stored() {
    stale_sometimes(Run {
        lag: LAG,
        invalidate: invalidate_without_grace,
        ..TOKENS
    });
}
