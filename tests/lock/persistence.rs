//! Locks and semaphores survive what servers live through: saves, restarts, rewrites and crashes.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::ways::Picture;
use crate::support::{
    EndOnDrop, Fsync, Lines, Raw, SOON, Server, Value, ask, eventually, unix_ms, unix_us,
    wait_for_replica_sync, waiter, ways, with_growing_lease,
};

/// Ten minutes: a lease that no test outlives.
const LONG: &str = "600000";

/// How far the clock of fences is set ahead of the server's, in microseconds.
const ONE_HOUR: i64 = 3_600_000_000;

/// Every kind of hold there is, in two databases, none of which ends soon.
fn fill(server: &Server) {
    let mut client = Raw::connect(server);
    for line in [
        "LOCK.ACQUIRE plain me",
        "LOCK.RENEW plain me PX 900000",
        "LOCK.ACQUIRE deep me PX 600000 ID a1",
        "LOCK.ACQUIRE deep me PX 700000 ID a2",
        "LOCK.ACQUIRE deep me SHARED PX 500000 ID a3",
        "LOCK.RELEASE deep me ID r1",
        "LOCK.ACQUIRE both a SHARED PX 600000",
        "LOCK.ACQUIRE both b SHARED PX 800000 ID b1",
        "LOCK.ACQUIRE both b SHARED PX 700000",
        "LOCK.ACQUIRE both c SHARED PX 650000",
        "LOCK.RELEASE both a",
        "LOCK.ACQUIRE up me SHARED PX 600000",
        "LOCK.UPGRADE up me PX 700000",
        "LOCK.ACQUIRE down me PX 600000",
        "LOCK.DOWNGRADE down me",
        "LOCK.ACQUIRE shortened me PX 900000",
        "PEXPIRE shortened 600000",
        "LOCK.MACQUIRE 2 m1 m2 me PX 600000 ID mm",
        "SEM.ACQUIRE sem a LIMIT 10 PERMITS 3 PX 600000 ID s1",
        "SEM.ACQUIRE sem b LIMIT 12 PERMITS 4 PX 700000",
        "SEM.ACQUIRE sem a LIMIT 11 PERMITS 2 PX 650000 ID s2",
        "SEM.RELEASE sem a PERMITS 1 ID s3",
        "SEM.MACQUIRE 2 all 9 tenant 3 me PERMITS 2 PX 600000 ID sm",
        "LOCK.GUARD resource 12345",
        "SELECT 3",
        "LOCK.ACQUIRE plain other PX 600000",
        "SEM.ACQUIRE sem other LIMIT 1 PX 600000",
        "SELECT 0",
    ] {
        let reply = client.must(line);
        assert!(!reply.is_nil(), "{line}");
    }
    let odd: &[u8] = b"\0\xff\r\n owner";
    let key: &[u8] = b"odd\0\xfekey";
    let long = [b'x'; 1024];
    for owner in [odd, &long] {
        let command: [&[u8]; 8] = [
            b"LOCK.ACQUIRE",
            key,
            owner,
            b"SHARED",
            b"PX",
            LONG.as_bytes(),
            b"ID",
            &long[..128],
        ];
        assert!(client.call(command).int() > 0);
    }
    // Enough holders for several commands of a rewritten append-only file.
    let holders: Vec<_> = (0..1000)
        .map(|number| {
            format!(
                "LOCK.ACQUIRE crowd owner-{number} SHARED PX {}",
                600_000 + number
            )
        })
        .collect();
    for reply in client.run_all(&holders) {
        assert!(reply.int() > 0);
    }
    let permits: Vec<_> = (0..300)
        .map(|number| format!("SEM.ACQUIRE pool owner-{number} LIMIT 900 PERMITS 3 PX {LONG}"))
        .collect();
    for reply in client.run_all(&permits) {
        assert!(reply.int() > 0);
    }
}

#[test]
fn all_ways_to_save_and_load_keep_everything() {
    let filled = |server: &Server| {
        fill(server);
        let picture = Picture::of(server);
        assert!(picture.keys.len() >= 15, "{}", picture.keys.len());
        picture
    };
    ways::walk(filled, |server, before| {
        before.assert_is_of(server);
        check_what_was_filled(server);
    });
}

/// What [`fill`] made works on: modes, counts, fences and request ids.
fn check_what_was_filled(server: &Server) {
    let mut client = Raw::connect(server);
    let deep = client.must("LOCK.INFO deep");
    assert_eq!(deep.field("mode"), &"exclusive");
    let holder = &deep.field("holders").array()[0];
    assert_eq!(holder.field("count"), &2);
    assert_eq!(holder.field("watchdog"), &0);
    let fence = holder.field("fence").int();
    let lease = holder.field("lease_ms").int();
    assert!((500_000..=700_000).contains(&lease), "{lease}");

    // The last acquisition and the last release are answered again, and change nothing.
    let digest = server.digest();
    assert_eq!(client.must("LOCK.ACQUIRE deep me PX 9000000 ID a3"), fence);
    assert_eq!(client.must("LOCK.RELEASE deep me ID r1"), 2);
    let both = client.must("LOCK.HELD both b").int();
    // Its last acquisition had no id: this one is new.
    assert_eq!(client.must("SEM.RELEASE sem a PERMITS 1 ID s3"), 4);
    let sem = client.must("SEM.INFO sem");
    let fence_of = |owner: &str| {
        let holders = sem.field("holders").array();
        let found = holders
            .iter()
            .find(|holder| *holder.field("owner") == owner);
        found.expect("it holds").field("fence").int()
    };
    assert_eq!(
        client.must("SEM.ACQUIRE sem a LIMIT 11 PERMITS 2 ID s2"),
        fence_of("a")
    );
    let again = client.must("LOCK.MACQUIRE 2 m1 m2 me PX 600000 ID mm");
    assert_eq!(again.array()[0], client.must("LOCK.HELD m1 me"));
    assert_eq!(again.array()[1], client.must("LOCK.HELD m2 me"));
    let permits = client.must("SEM.MACQUIRE 2 all 9 tenant 3 me PERMITS 2 PX 600000 ID sm");
    for (key, fence) in ["all", "tenant"].iter().zip(permits.array()) {
        let info = client.must(&format!("SEM.INFO {key}"));
        assert_eq!(info.field("used"), &2);
        assert_eq!(info.field("holders").array()[0].field("fence"), fence);
    }
    assert_eq!(server.digest(), digest, "a repetition changed something");

    // An id that is not the last one is a new request.
    assert_eq!(client.must("LOCK.ACQUIRE deep me ID a1"), fence);
    assert_eq!(client.must("LOCK.RELEASE deep me"), 2);
    assert!(client.must("LOCK.ACQUIRE deep you").is_nil());
    assert_eq!(client.must("LOCK.ACQUIRE both b SHARED"), both);
    assert!(client.must("LOCK.ACQUIRE both d").is_nil());
    assert!(client.must("LOCK.ACQUIRE both d SHARED").int() > both);

    assert_eq!(sem.field("limit"), &11);
    assert_eq!(sem.field("used"), &8);
    assert!(client.must("SEM.ACQUIRE sem z LIMIT 11 PERMITS 4").is_nil());
    assert!(client.must("SEM.ACQUIRE sem z LIMIT 11 PERMITS 3").int() > 0);
    assert_eq!(
        client
            .must("LOCK.INFO crowd")
            .field("holders")
            .array()
            .len(),
        1000
    );
    assert_eq!(client.must("LOCK.INFO up").field("mode"), &"exclusive");
    assert_eq!(client.must("LOCK.INFO down").field("mode"), &"shared");
    assert!(client.must("LOCK.ACQUIRE down you SHARED").int() > 0);
    assert_eq!(client.must("LOCK.GUARD resource 12344"), 0);
    assert_eq!(client.must("SEM.RELEASE pool owner-7 ALL"), 0);
    assert_eq!(client.must("SEM.INFO pool").field("used"), &897);
}

/// A crash cuts the append-only file anywhere: what is whole before the cut is loaded.
#[test]
fn a_cut_append_only_file_is_loaded_up_to_the_cut() {
    let server = Server::builder().aof(Fsync::Always).start();
    let kept = ask(&server, "LOCK.ACQUIRE kept me PX 600000").int();
    ask(&server, "LOCK.ACQUIRE cut me PX 600000");
    server.kill9();
    let directory = server.dir().join("appendonlydir");
    let incremental = fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains(".incr."))
        .unwrap();
    let bytes = fs::read(&incremental).unwrap();
    fs::write(&incremental, &bytes[..bytes.len() - 3]).unwrap();
    server.restart();
    assert_eq!(ask(&server, "LOCK.HELD kept me"), kept);
    assert!(ask(&server, "LOCK.HELD cut me").is_nil());
}

// --- The clock of fences ---------------------------------------------------------------------------------------------

/// Sets the fences far ahead of the server's clock, so that only its memory can make them go on from there.
/// Returns the last fence that was given; no key is left.
fn set_fences_ahead(server: &Server) -> i64 {
    ask(server, &format!("LOCK.FENCE {}", unix_us() + ONE_HOUR));
    let fence = ask(server, "LOCK.ACQUIRE k me PX 600000").int();
    assert!(fence > unix_us() + ONE_HOUR / 2);
    assert_eq!(ask(server, "DEL k"), 1);
    assert_eq!(ask(server, "DBSIZE"), 0);
    fence
}

#[track_caller]
fn assert_fences_go_on(server: &Server, last: i64) -> i64 {
    let fence = ask(server, "LOCK.ACQUIRE k me PX 600000").int();
    assert!(
        fence > last,
        "{fence} is not above {last}: the clock of fences is lost"
    );
    assert!(fence < last + ONE_HOUR, "{fence} is far above {last}");
    ask(server, "LOCK.RELEASE k me");
    fence
}

/// Without a key: only the clock of fences is there to be kept. Also by a replica that never saw a lock.
#[test]
fn fences_go_on_on_all_ways_to_save_and_load() {
    ways::walk(set_fences_ahead, |server, last| {
        assert_fences_go_on(server, *last);
    });
}

#[test]
fn fences_go_on_after_flushall() {
    let server = Server::builder()
        .rdb(true)
        .aof(Fsync::Always)
        .config("aof-use-rdb-preamble", "no")
        .start();
    let last = set_fences_ahead(&server);
    ask(&server, "LOCK.ACQUIRE other me");
    ask(&server, "FLUSHALL");
    server.rewrite_aof();
    server.crash();
    ask(&server, "FLUSHALL ASYNC");
    server.crash();
    assert_fences_go_on(&server, last);
}

#[test]
fn fences_rise_after_an_upgrade_of_a_deleted_key() {
    let server = Server::builder().aof(Fsync::Always).start();
    set_fences_ahead(&server);
    ask(&server, "LOCK.ACQUIRE k me SHARED");
    let last = ask(&server, "LOCK.UPGRADE k me").int();
    ask(&server, "LOCK.RELEASE k me");
    server.crash();
    assert_fences_go_on(&server, last);
}

#[test]
fn fences_go_on_from_a_transaction_that_leaves_nothing() {
    let server = Server::builder().aof(Fsync::Always).start();
    set_fences_ahead(&server);
    let script = "local f = redis.call('LOCK.ACQUIRE', KEYS[1], 'me')
                  redis.call('LOCK.RELEASE', KEYS[1], 'me')
                  return f";
    let last = server.command(["EVAL", script, "1", "k"]).int();
    server.crash();
    assert_fences_go_on(&server, last);
}

/// The same where the replica loads into a second dataset while it goes on serving the first.
#[test]
fn fences_go_on_on_a_promoted_replica_that_swaps_datasets() {
    let master = Server::start();
    let replica = Server::builder()
        .config("repl-diskless-load", "swapdb")
        .start();
    let last = set_fences_ahead(&master);
    ask(&master, "LOCK.ACQUIRE held me PX 600000");
    ask(&replica, "LOCK.ACQUIRE old me PX 600000");
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    assert_eq!(replica.digest(), master.digest());
    master.kill9();
    replica.promote();
    assert!(ask(&replica, "LOCK.ACQUIRE held you").is_nil());
    assert_fences_go_on(&replica, last);
}

#[test]
fn fences_go_on_on_a_promoted_replica_that_followed() {
    let (master, replica) = (Server::start(), Server::start());
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    let last = set_fences_ahead(&master);
    wait_for_replica_sync(&master, &replica);
    master.kill9();
    replica.promote();
    assert_fences_go_on(&replica, last);
}

/// A replica decides nothing, but what it remembers must survive its own rewrite.
#[test]
fn fences_go_on_after_a_replica_has_rewritten_its_own_file() {
    for preamble in ["yes", "no"] {
        let master = Server::start();
        let replica = Server::builder()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", preamble)
            .start();
        replica.replica_of(&master);
        wait_for_replica_sync(&master, &replica);
        let last = set_fences_ahead(&master);
        wait_for_replica_sync(&master, &replica);
        replica.rewrite_aof();
        master.kill9();
        // A restart forgets the master: this is a promotion after a crash.
        replica.crash();
        assert_fences_go_on(&replica, last);
    }
}

// --- Leases ----------------------------------------------------------------------------------------------------------

#[test]
fn a_lease_that_ends_while_the_server_is_down_is_gone_after_the_start() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
    ] {
        let server = builder.start();
        ask(&server, "LOCK.ACQUIRE gone me PX 400");
        ask(&server, "LOCK.ACQUIRE half short SHARED PX 400");
        let long = ask(&server, "LOCK.ACQUIRE half long SHARED PX 600000").int();
        ask(&server, "SEM.ACQUIRE sem short LIMIT 2 PERMITS 2 PX 400");
        let over = unix_ms() + 400;
        assert!(server.terminate().success());
        eventually(SOON, || unix_ms() > over);
        server.restart();

        assert_eq!(ask(&server, "EXISTS gone sem"), 0);
        assert!(ask(&server, "LOCK.INFO gone").is_nil());
        assert!(ask(&server, "LOCK.HELD half short").is_nil());
        assert_eq!(ask(&server, "LOCK.HELD half long"), long);
        assert_eq!(
            ask(&server, "LOCK.INFO half")
                .field("holders")
                .array()
                .len(),
            1
        );
        assert!(ask(&server, "LOCK.ACQUIRE gone you").int() > long);
        assert!(ask(&server, "SEM.ACQUIRE sem you LIMIT 2 PERMITS 2").int() > long);
        assert!(ask(&server, "LOCK.UPGRADE half long").int() > long);
    }
}

#[test]
fn a_lease_runs_on_while_the_server_is_down() {
    for builder in [
        Server::builder().rdb(true),
        Server::builder().aof(Fsync::Always),
    ] {
        let (server, expires) = with_growing_lease(5000, |lease| {
            let server = builder.clone().start();
            ask(&server, &format!("LOCK.ACQUIRE k me PX {lease}"));
            let expires = ask(&server, "PEXPIRETIME k").int();
            assert!(server.terminate().success());
            server.restart();
            let restored = ask(&server, "PEXPIRETIME k").int();
            if restored == -2 {
                return None;
            }
            assert_eq!(restored, expires);
            Some((server, expires))
        });
        let waiter = &mut Raw::connect(&server);
        let fence = waiter.run("LOCK.ACQUIRE k you BLOCK 60000");
        let served = unix_ms();
        assert!(fence.int() > 0);
        assert!(served >= expires, "served {} ms early", expires - served);
        assert!(
            served < expires + 30_000,
            "served {} ms late",
            served - expires
        );
    }
}

#[test]
fn a_watchdog_lease_runs_down_after_a_restart() {
    let server = with_growing_lease(6000, |lease| {
        let server = Server::builder().aof(Fsync::Always).start();
        let mut watched = Raw::connect(&server);
        watched.must(&format!("LOCK.ACQUIRE k me PX {lease} WATCHDOG"));
        watched.must(&format!("SEM.ACQUIRE s me LIMIT 1 PX {lease} WATCHDOG"));
        let renewals = server.info_int("sluice_lock_renewed");
        eventually(SOON, || {
            server.info_int("sluice_lock_renewed") >= renewals + 2
        });
        assert_eq!(ask(&server, "EXISTS k s"), 2);
        server.crash();

        let info = ask(&server, "LOCK.INFO k");
        if info.is_nil() {
            return None;
        }
        let holder = &info.field("holders").array()[0];
        assert_eq!(holder.field("watchdog"), &0);
        assert!(holder.field("lease_ms").int() <= lease);
        Some(server)
    });
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
    eventually(SOON, || ask(&server, "EXISTS k s") == 0);
    assert_eq!(server.info_int("sluice_lock_renewed"), 0);
}

/// The shortened lease is part of the dataset: `PERSIST` after a restart cannot bring the long one back.
#[test]
fn an_expiry_that_shortened_a_hold_is_kept_with_it() {
    let server = Server::builder().aof(Fsync::Always).start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    ask(&server, "PEXPIRE k 300000");
    let expires = ask(&server, "PEXPIRETIME k").int();
    server.crash();
    assert_eq!(ask(&server, "PEXPIRETIME k"), expires);
    ask(&server, "PERSIST k");
    let left = ask(&server, "PTTL k").int();
    assert!((1..=300_000).contains(&left), "{left}");
}

#[test]
fn waiting_clients_do_not_survive_a_restart() {
    let server = Server::builder().aof(Fsync::Always).start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    let mut waiter = Raw::connect(&server);
    waiter.ask("LOCK.ACQUIRE k you BLOCK 0");
    eventually(SOON, || server.info_int("sluice_lock_waiting") == 1);
    assert!(server.terminate().success());
    assert!(waiter.closes_within(SOON));
    server.restart();
    assert_eq!(server.info_int("sluice_lock_waiting"), 0);
    assert_eq!(ask(&server, "LOCK.RELEASE k me"), 0);
    assert!(ask(&server, "LOCK.INFO k").is_nil());
}

#[test]
fn clients_wait_on_while_a_dataset_is_loaded_again() {
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        let (server, mut waiters) = with_growing_lease(4000, |lease| {
            let server = Server::builder().aof(Fsync::Always).start();
            ask(&server, "LOCK.ACQUIRE k me PX 600000");
            ask(&server, &format!("LOCK.ACQUIRE ends me PX {lease}"));
            ask(&server, "SEM.ACQUIRE s me LIMIT 1 PX 600000");
            let mut waiters = [
                "LOCK.ACQUIRE k you PX 600000 BLOCK 0",
                "LOCK.ACQUIRE ends you PX 600000 BLOCK 0",
                "SEM.ACQUIRE s you LIMIT 1 PX 600000 BLOCK 0",
            ]
            .map(|line| waiter(&server, line));
            ask(&server, reload);
            let waiting = server.info_int("sluice_lock_waiting");
            if waiters[1].has_received() {
                return None;
            }
            assert_eq!(waiting, 3, "{reload}");
            Some((server, waiters))
        });
        assert_eq!(ask(&server, "LOCK.RELEASE k me"), 0, "{reload}");
        assert_eq!(ask(&server, "SEM.RELEASE s me"), 0, "{reload}");
        for waiter in &mut waiters {
            assert!(waiter.read().int() > 0, "{reload}");
        }
    }
}

// --- Crashes ---------------------------------------------------------------------------------------------------------

/// What a client knows of one of its locks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Known {
    fence: i64,
    count: i64,
    /// When the lease ends: not before and not after (Unix ms).
    ends: (i64, i64),
}

/// A client with locks of its own, which knows what the server has acknowledged.
struct Keeper {
    number: usize,
    random: u64,
    locks: [Option<Known>; 6],
    /// The lock whose last request was not answered: the crash came before or after its effect.
    in_doubt: Option<usize>,
    largest_fence: i64,
}

impl Keeper {
    fn key(&self, lock: usize) -> String {
        format!("keeper-{}-{lock}", self.number)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides
    }

    /// Random requests until the server dies.
    fn work(&mut self, mut client: Raw, stop: &AtomicBool) -> usize {
        let mut answered = 0;
        while !stop.load(Ordering::Relaxed) {
            let lock = self.roll(6) as usize;
            let key = self.key(lock);
            let px = 100_000 + self.roll(500_000) as i64;
            let line = match self.roll(8) {
                0..=3 => format!("LOCK.ACQUIRE {key} me PX {px}"),
                4..=5 => format!("LOCK.RELEASE {key} me"),
                6 => format!("LOCK.RENEW {key} me PX {px}"),
                _ => format!("LOCK.RELEASE {key} me ALL"),
            };
            let sent = unix_ms();
            self.in_doubt = Some(lock);
            client.ask(&line);
            let Ok(Some(reply)) = client.try_read(SOON) else {
                return answered;
            };
            self.in_doubt = None;
            answered += 1;
            let ends = (sent + px, unix_ms() + px);
            self.learn(lock, &line, &reply, ends);
        }
        answered
    }

    fn learn(&mut self, lock: usize, line: &str, reply: &Value, ends: (i64, i64)) {
        let before = self.locks[lock];
        self.locks[lock] = match (before, line.split_whitespace().next().unwrap_or_default()) {
            (None, "LOCK.ACQUIRE") => {
                let fence = reply.int();
                assert!(fence > self.largest_fence, "{line}: a fence went back");
                self.largest_fence = fence;
                Some(Known {
                    fence,
                    count: 1,
                    ends,
                })
            }
            (Some(known), "LOCK.ACQUIRE") => {
                assert_eq!(*reply, known.fence, "{line}");
                let ends = (known.ends.0.max(ends.0), known.ends.1.max(ends.1));
                Some(Known {
                    count: known.count + 1,
                    ends,
                    ..known
                })
            }
            (Some(known), "LOCK.RENEW") => {
                assert_eq!(*reply, known.fence, "{line}");
                Some(Known { ends, ..known })
            }
            (Some(_), _) if line.ends_with("ALL") => {
                assert_eq!(*reply, 0, "{line}");
                None
            }
            (Some(known), _) => {
                assert_eq!(*reply, known.count - 1, "{line}");
                (known.count > 1).then_some(Known {
                    count: known.count - 1,
                    ..known
                })
            }
            (None, _) => {
                assert!(reply.is_nil(), "{line}: {reply:?}");
                None
            }
        };
    }

    /// Compares what it knows with what the server has after a crash.
    fn check(&mut self, server: &Server) {
        let mut client = Raw::connect(server);
        for lock in 0..self.locks.len() {
            let key = self.key(lock);
            let info = client.call(["LOCK.INFO", &key]);
            let expires = client.call(["PEXPIRETIME", &key]).int();
            let found = (!info.is_nil()).then(|| {
                let holder = &info.field("holders").array()[0];
                Known {
                    fence: holder.field("fence").int(),
                    count: holder.field("count").int(),
                    ends: (expires, expires),
                }
            });
            if self.in_doubt == Some(lock) {
                // Either state is right; from here on this one is known.
                self.largest_fence = self.largest_fence.max(found.map_or(0, |found| found.fence));
                self.locks[lock] = found;
                continue;
            }
            match (self.locks[lock], found) {
                (None, None) => {}
                (Some(known), Some(found)) => {
                    assert_eq!(
                        (found.fence, found.count),
                        (known.fence, known.count),
                        "{key}"
                    );
                    assert!(
                        known.ends.0 <= expires,
                        "{key} ends {} ms early",
                        known.ends.0 - expires
                    );
                    assert!(
                        expires <= known.ends.1,
                        "{key} ends {} ms late",
                        expires - known.ends.1
                    );
                }
                (known, found) => panic!("{key}: acknowledged {known:?}, found {found:?}"),
            }
        }
        self.in_doubt = None;
    }
}

/// A client that fights with others for one lock, in line.
struct Fighter {
    number: usize,
    /// What was acknowledged and is not given back yet.
    held: Option<i64>,
}

impl Fighter {
    fn work(&mut self, mut client: Raw, stop: &AtomicBool) {
        let me = format!("fighter-{}", self.number);
        while !stop.load(Ordering::Relaxed) {
            client.send(["LOCK.ACQUIRE", "fight", &me, "PX", LONG, "BLOCK", "0"]);
            let Ok(Some(reply)) = client.try_read(SOON) else {
                return;
            };
            self.held = Some(reply.int());
            client.send(["PING"]);
            let Ok(Some(_)) = client.try_read(SOON) else {
                return;
            };
            self.held = None;
            client.send(["LOCK.RELEASE", "fight", &me]);
            let Ok(Some(_)) = client.try_read(SOON) else {
                return;
            };
        }
    }

    /// A hold that was handed over and acknowledged is there after a crash.
    fn check(&mut self, server: &Server) {
        let me = format!("fighter-{}", self.number);
        let found = server.command(["LOCK.HELD", "fight", &me]);
        if let Some(fence) = self.held.take() {
            assert_eq!(found, fence, "{me} lost its lock");
        }
    }
}

#[test]
fn crashes_lose_no_lock_that_was_handed_over() {
    let server = Server::builder().aof(Fsync::Always).start();
    let mut fighters: Vec<_> = (0..4)
        .map(|number| Fighter { number, held: None })
        .collect();
    for _ in 0..4 {
        let stop = AtomicBool::new(false);
        let before = server.info_int("sluice_lock_handoffs");
        thread::scope(|scope| {
            let _end = EndOnDrop(&stop);
            for fighter in &mut fighters {
                let (client, stop) = (Raw::connect(&server), &stop);
                scope.spawn(move || fighter.work(client, stop));
            }
            eventually(SOON, || {
                server.info_int("sluice_lock_handoffs") > before + 40
            });
            server.kill9();
            stop.store(true, Ordering::Relaxed);
        });
        server.restart();
        for fighter in &mut fighters {
            fighter.check(&server);
        }
        ask(&server, "DEL fight");
    }
}

#[test]
fn crashes_lose_no_acknowledged_hold_and_lengthen_no_lease() {
    const CLIENTS: usize = 8;
    const CRASHES: usize = 4;
    const REQUESTS_PER_CRASH: usize = 300;
    let server = Server::builder()
        .aof(Fsync::Always)
        .config("auto-aof-rewrite-min-size", "1kb")
        .config("auto-aof-rewrite-percentage", "50")
        .start();
    let mut keepers: Vec<_> = (0..CLIENTS)
        .map(|number| Keeper {
            number,
            random: 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1),
            locks: [None; 6],
            in_doubt: None,
            largest_fence: 0,
        })
        .collect();
    for _ in 0..CRASHES {
        let stop = AtomicBool::new(false);
        let answered: usize = thread::scope(|scope| {
            let _end = EndOnDrop(&stop);
            let workers: Vec<_> = keepers
                .iter_mut()
                .map(|keeper| {
                    let (client, stop) = (Raw::connect(&server), &stop);
                    scope.spawn(move || keeper.work(client, stop))
                })
                .collect();
            server.await_commands(REQUESTS_PER_CRASH as i64);
            server.kill9();
            stop.store(true, Ordering::Relaxed);
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .sum()
        });
        assert!(answered > REQUESTS_PER_CRASH / 2, "{answered}");
        server.restart();
        for keeper in &mut keepers {
            keeper.check(&server);
        }
    }
}
