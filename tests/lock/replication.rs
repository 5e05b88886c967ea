//! A replica has what its master has, and takes over with it.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    Crowd, EndOnDrop, Fsync, Lines, Random, Raw, SOON, Server, Value, ask, assert_identical,
    await_failover, await_role, differences, eventually, follow, not_before, pair, quiet, unix_ms,
    wait_for_replica_sync, waiter, with_growing_lease,
};

/// Long enough for an answer that must not come to come after all.
const MOMENT: Duration = Duration::from_millis(100);

// --- The same dataset ------------------------------------------------------------------------------------------------

impl Random {
    fn lease(&mut self) -> u64 {
        if self.below(3) == 0 {
            600_000
        } else {
            5 + self.below(300)
        }
    }

    /// Any command of the family, or one of the server's on its keys.
    fn command(&mut self) -> String {
        let lock = format!("l{}", self.below(12));
        let other = format!("l{}", self.below(12));
        let sem = format!("s{}", self.below(5));
        let owner = format!("o{}", self.below(6));
        let px = self.lease();
        let id = match self.below(3) {
            0 => format!("ID i{}", self.below(4)),
            _ => String::new(),
        };
        let block = match self.below(4) {
            0 => format!("BLOCK {}", 1 + self.below(40)),
            _ => String::new(),
        };
        let watchdog = if self.below(6) == 0 { "WATCHDOG" } else { "" };
        let shared = if self.below(3) > 0 { "SHARED" } else { "" };
        let permits = 1 + self.below(3);
        let limit = 3 + self.below(4);
        match self.below(32) {
            0..=8 => {
                format!("LOCK.ACQUIRE {lock} {owner} {shared} PX {px} {block} {watchdog} {id}")
            }
            9..=12 => format!("LOCK.RELEASE {lock} {owner} {id}"),
            13 => format!("LOCK.RELEASE {lock} {owner} ALL"),
            14 => format!("LOCK.RENEW {lock} {owner} PX {px}"),
            15 => format!("LOCK.UPGRADE {lock} {owner} PX {px} {block}"),
            16 => format!("LOCK.DOWNGRADE {lock} {owner}"),
            17 if lock != other => {
                format!("LOCK.MACQUIRE 2 {lock} {other} {owner} PX {px} {block} {watchdog} {id}")
            }
            18 if lock != other => format!("LOCK.MRELEASE 2 {lock} {other} {owner} {id}"),
            19..=20 => format!(
                "SEM.ACQUIRE {sem} {owner} LIMIT {limit} PERMITS {permits} PX {px} {block} {watchdog} {id}"
            ),
            21 => format!("SEM.RELEASE {sem} {owner} {id}"),
            22 => format!("SEM.RENEW {sem} {owner} PX {px}"),
            23 => format!("PEXPIRE {lock} {px}"),
            24 => format!("PERSIST {lock}"),
            25 => format!("RENAME {lock} {other}"),
            26 => format!("COPY {lock} {other} REPLACE"),
            27 => format!("DEL {lock}"),
            28 => format!("MOVE {lock} 1"),
            29 => format!(
                "SEM.MACQUIRE 2 t0 {limit} t1 {limit} {owner} PERMITS {permits} PX {px} {block} {watchdog} {id}"
            ),
            30 => format!("SEM.MRELEASE 2 t0 t1 {owner} {id}"),
            _ => format!("LOCK.GUARD g{} {}", self.below(3), 1 + self.below(1000)),
        }
    }
}

/// Clients that send random commands for a while, some in transactions and scripts, some from connections that close.
fn random_load(server: &Server, seed: u64, time: Duration) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..8 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15_u64.rotate_left(number * 8));
                let mut client = Raw::connect(server);
                while !stop.load(Ordering::Relaxed) {
                    let command = random.command();
                    match random.below(40) {
                        0 => client = Raw::connect(server),
                        1 => {
                            let commands =
                                ["MULTI".into(), command, random.command(), "EXEC".into()];
                            client.run_all(&commands);
                        }
                        2 => {
                            let script = "return redis.pcall(unpack(ARGV))";
                            let mut line = vec!["EVAL", script, "0"];
                            // A script is no connection that a hold could be renewed for.
                            line.extend(
                                command
                                    .split_whitespace()
                                    .filter(|word| *word != "WATCHDOG"),
                            );
                            client.call(line);
                        }
                        _ => {
                            let reply = client.run(&command);
                            if let Value::Error(text) = reply {
                                assert!(!text.contains("internal"), "{command}: {text}");
                            }
                        }
                    }
                }
            });
        }
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_replica_is_identical_after_a_random_load() {
    let master = quiet().start();
    let replica = quiet().start();
    let second = quiet().aof(Fsync::No).start();
    follow(&master, &replica);
    follow(&replica, &second);
    let counted = || {
        ["handoffs", "expired_leases"].map(|name| master.info_int(&format!("sluice_lock_{name}")))
    };
    // A busy machine needs more rounds.
    for round in 0..40 {
        if round >= 4 && counted().iter().all(|count| *count > 20) {
            break;
        }
        random_load(&master, 77 + round, Duration::from_millis(700));
        // From here on, nothing but what is said changes anything.
        ask(&master, "DEBUG SET-ACTIVE-EXPIRE 0");
        assert_identical(&master, &replica);
        assert_identical(&master, &second);
        assert_same_expiries(&master, &replica);
        ask(&master, "DEBUG SET-ACTIVE-EXPIRE 1");
    }
    // On a very busy machine, clients seldom wait long enough to be served.
    assert!(counted().iter().all(|count| *count > 5), "{:?}", counted());

    // What the last in the chain has written is what all have: without what ends by itself, since it restarts as a master.
    eventually(SOON, || master.info_int("sluice_lock_watchdog_holds") == 0);
    eventually(SOON, || all_leases_are_long(&master));
    drop_ended_holds(&master);
    assert_identical(&master, &second);
    let digest = master.digest();
    second.crash();
    let now = second.digest();
    assert!(now == digest, "{}", differences(&master, &second));
    for server in [&master, &replica, &second] {
        assert!(!server.log().contains("internal error"));
    }
}

fn all_leases_are_long(server: &Server) -> bool {
    let mut client = Raw::connect(server);
    (0..2).all(|db| {
        client.must(&format!("SELECT {db}"));
        let keys = client.must("KEYS *");
        let all_are_alive = client.must("DBSIZE") == keys.array().len() as i64;
        all_are_alive
            && keys.array().iter().all(|key| {
                let key = key.text();
                if key.starts_with('g') {
                    return true;
                }
                let kind = if key.starts_with('l') { "LOCK" } else { "SEM" };
                let info = client.run(&format!("{kind}.INFO {key}"));
                info.is_nil()
                    || info
                        .field("holders")
                        .array()
                        .iter()
                        .all(|holder| holder.field("lease_ms").int() > 10_000)
            })
    })
}

/// Holds whose lease has ended stay in the dataset until a master ends them, in a moment or when a command is about their lock.
fn drop_ended_holds(server: &Server) {
    let mut client = Raw::connect(server);
    for db in 0..2 {
        client.must(&format!("SELECT {db}"));
        for key in client.must("KEYS *").array() {
            for command in ["LOCK.RENEW", "SEM.RENEW"] {
                client.call([command.as_bytes(), key.bytes(), b"nobody"]);
            }
        }
    }
}

fn assert_same_expiries(master: &Server, replica: &Server) {
    let (mut one, mut other) = (Raw::connect(master), Raw::connect(replica));
    for key in one.must("KEYS *").array() {
        let line = format!("PEXPIRETIME {}", key.text());
        let (here, there) = (one.must(&line).int(), other.must(&line).int());
        // What ends soon may have ended between the two.
        if here > unix_ms() + 10_000 || there > unix_ms() + 10_000 {
            assert_eq!(here, there, "{line}");
        }
    }
}

#[test]
fn each_effect_arrives_as_it_is() {
    let (master, replica) = pair();
    let mut watched = Raw::connect(&master);
    let lines = [
        "LOCK.ACQUIRE k a SHARED PX 600000 ID i",
        "LOCK.ACQUIRE k b SHARED PX 700000",
        "LOCK.ACQUIRE k a SHARED PX 800000 ID j",
        "LOCK.RELEASE k a ID r",
        "LOCK.RENEW k b PX 500000",
        "LOCK.RELEASE k b",
        "LOCK.UPGRADE k a PX 900000",
        "LOCK.DOWNGRADE k a",
        "LOCK.MACQUIRE 3 x y z me PX 600000 ID m",
        "LOCK.MRELEASE 2 x y me",
        "SEM.ACQUIRE s a LIMIT 9 PERMITS 4 PX 600000",
        "SEM.ACQUIRE s b LIMIT 5 PX 600000",
        "SEM.RELEASE s a PERMITS 2 ID i",
        "SEM.RENEW s a PX 900000",
        "SEM.MACQUIRE 2 all 9 tenant 3 a PERMITS 2 PX 600000 ID i",
        "SEM.MACQUIRE 2 tenant 3 all 9 b PX 700000",
        "SEM.MRELEASE 2 all tenant a ID r",
        "PEXPIRE k 450000",
        "PERSIST k",
        "PEXPIRE z 999999999",
        "COPY k copy",
        "COPY k copy2 DB 1",
        "RENAME z zz",
        "MOVE copy 2",
        "SWAPDB 1 2",
        "LOCK.GUARD g 5 PX 600000",
        "LOCK.GUARD g 6",
        "LOCK.ACQUIRE w me PX 600000 WATCHDOG",
        "RENAME w ww",
    ];
    for line in lines {
        watched.must(line);
        ask(&master, "PING");
        assert_identical(&master, &replica);
        assert_same_expiries(&master, &replica);
    }
    let dump = ask(&master, "DUMP k");
    let restore: [&[u8]; 4] = [b"RESTORE", b"restored", b"0", dump.bytes()];
    master.command(restore);
    assert_identical(&master, &replica);
    assert_same_expiries(&master, &replica);
    drop(watched);
    eventually(SOON, || ask(&master, "EXISTS ww") == 0);
    assert_identical(&master, &replica);
    ask(&master, "FLUSHALL");
    assert_identical(&master, &replica);
}

/// Who repeats a request on a new connection waits for the replicas as whoever came first does.
#[test]
fn a_repeated_request_can_be_waited_for() {
    let master = quiet().aof(Fsync::No).start();
    let replica = quiet().start();
    follow(&master, &replica);
    for line in [
        "LOCK.ACQUIRE k me PX 600000 ID a",
        "LOCK.ACQUIRE k me PX 600000 ID b",
        "LOCK.RELEASE k me ID r",
        "LOCK.RELEASE k me ID s", // the last: its repetition finds nothing
        "LOCK.MACQUIRE 2 a b me PX 600000 ID a",
        "LOCK.MRELEASE 2 a b me ID r",
        "SEM.ACQUIRE s me LIMIT 3 PERMITS 2 PX 600000 ID a",
        "SEM.RELEASE s me ID r",
        "SEM.MACQUIRE 2 s 3 t 2 me PERMITS 2 PX 600000 ID m",
        "SEM.MRELEASE 2 s t me ID mr",
        // Requests without an id that find what they ask for:
        "LOCK.ACQUIRE u me SHARED PX 600000",
        "LOCK.UPGRADE u me PX 1000",
        "LOCK.DOWNGRADE u me",
        "LOCK.GUARD g 5",
    ] {
        replica.stop_signal();
        let mut first = Raw::connect(&master);
        assert!(!first.must(line).is_nil(), "{line}");
        let mut again = Raw::connect(&master);
        again.must(line);
        assert_eq!(again.run("WAIT 1 100"), 0, "{line}");
        let mut in_transaction = Raw::connect(&master);
        in_transaction.transact([line]);
        assert_eq!(in_transaction.run("WAIT 1 100"), 0, "{line} in MULTI");
        replica.cont_signal();
        assert_eq!(again.run("WAIT 1 20000"), 1, "{line}");
        assert_identical(&master, &replica);
    }
    let digest = master.digest();
    master.kill9();
    master.restart();
    assert_eq!(master.digest(), digest);
}

#[test]
fn refusals_reads_and_errors_propagate_nothing() {
    let master = quiet().aof(Fsync::No).start();
    let replica = quiet().start();
    follow(&master, &replica);
    let mut client = Raw::connect(&master);
    for line in [
        "LOCK.ACQUIRE k me PX 600000 ID a",
        "LOCK.ACQUIRE k me PX 600000 ID b",
        "LOCK.RELEASE k me ID r",
        "LOCK.ACQUIRE both a SHARED PX 600000",
        "LOCK.ACQUIRE both b SHARED PX 600000",
        "SEM.ACQUIRE sem me LIMIT 2 PERMITS 2 PX 600000",
        "LOCK.GUARD guard 50",
        "SET string v",
    ] {
        assert!(!client.must(line).is_nil());
    }
    master.await_rewrite();
    wait_for_replica_sync(&master, &replica);
    let offset = master.info_int("master_repl_offset");
    let size = master.info_int("aof_current_size");
    let nothing = |line: &str| {
        // Also what the server does of its own accord after the command.
        ask(&master, "PING");
        assert_eq!(
            master.info_int("master_repl_offset"),
            offset,
            "{line} was propagated"
        );
        assert_eq!(
            master.info_int("aof_current_size"),
            size,
            "{line} was written"
        );
    };
    nothing("doing nothing");
    for line in [
        "LOCK.ACQUIRE k you",
        "LOCK.ACQUIRE k you SHARED PX 5 WATCHDOG ID x",
        "LOCK.ACQUIRE k you BLOCK 20",
        "LOCK.RELEASE k you",
        "LOCK.RELEASE k you ALL",
        "LOCK.RELEASE none me",
        "LOCK.RENEW k you",
        "LOCK.RENEW none you",
        "LOCK.UPGRADE k you",
        "LOCK.UPGRADE none you",
        "LOCK.UPGRADE both a",
        "LOCK.UPGRADE both a BLOCK 20",
        "LOCK.ACQUIRE both a",
        "LOCK.ACQUIRE both a BLOCK 20",
        "LOCK.DOWNGRADE both c",
        "LOCK.MACQUIRE 2 free k you",
        "LOCK.MACQUIRE 2 free k you BLOCK 20",
        "LOCK.MRELEASE 2 k none you",
        "LOCK.HELD k me",
        "LOCK.HELD k you",
        "LOCK.INFO k",
        "LOCK.INFO none",
        "LOCK.GUARD guard 49",
        "SEM.ACQUIRE sem me LIMIT 2",
        "SEM.ACQUIRE sem you LIMIT 2 BLOCK 20",
        "SEM.RELEASE sem you",
        "SEM.RENEW sem you",
        "SEM.INFO sem",
        "LOCK.ACQUIRE k",
        "LOCK.ACQUIRE k me PX 0",
        "LOCK.ACQUIRE k me PX abc",
        "LOCK.ACQUIRE k me NONSENSE",
        "LOCK.ACQUIRE k me SHARED SHARED",
        "LOCK.ACQUIRE string me",
        "LOCK.ACQUIRE sem me",
        "LOCK.RELEASE string me",
        "LOCK.MACQUIRE 2 free string you",
        "LOCK.MACQUIRE 2 free free you",
        "LOCK.MRELEASE 2 k string me",
        "SEM.ACQUIRE k me LIMIT 3",
        "SEM.ACQUIRE sem me LIMIT 2 PERMITS 3",
        "SEM.RELEASE sem me PERMITS 3",
        "LOCK.GUARD k 5",
        "LOCK.APPLY k nonsense",
        "LOCK.FENCE nonsense",
        "INFO sluice",
    ] {
        client.run(line);
        nothing(line);
    }
    // Waits that end without a lock.
    let mut ended = Raw::connect(&master);
    let id = ended.id().to_string();
    ended.ask("LOCK.ACQUIRE both c BLOCK 0");
    eventually(SOON, || master.info_int("sluice_lock_waiting") == 1);
    let lost = waiter(&master, "LOCK.ACQUIRE k you BLOCK 0");
    nothing("waiting");
    assert_eq!(master.command(["CLIENT", "UNBLOCK", &id]), 1);
    assert!(ended.read().is_nil());
    nothing("CLIENT UNBLOCK");
    drop(lost);
    eventually(SOON, || master.info_int("sluice_lock_waiting") == 0);
    nothing("a lost connection");
    // In a transaction, the refused part adds nothing to what is propagated.
    client.run_all(["MULTI", "LOCK.ACQUIRE k you", "LOCK.HELD k me", "EXEC"]);
    nothing("a transaction of refusals");
    client.call([
        "EVAL",
        "return redis.call('LOCK.ACQUIRE', KEYS[1], 'you')",
        "1",
        "k",
    ]);
    nothing("a script that is refused");
}

#[test]
fn a_replica_reads_and_refuses_to_write() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    let fence = client.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
    client.must("LOCK.ACQUIRE short me PX 300");
    client.must("SEM.ACQUIRE sem me LIMIT 3 PERMITS 2 PX 600000");
    wait_for_replica_sync(&master, &replica);
    let mut reader = Raw::connect(&replica);
    assert_eq!(reader.must("LOCK.HELD k me"), fence);
    assert!(reader.must("LOCK.HELD k you").is_nil());
    let info = reader.must("LOCK.INFO k");
    assert_eq!(info.field("mode"), &"exclusive");
    assert_eq!(info.field("holders").array().len(), 1);
    assert_eq!(reader.must("SEM.INFO sem").field("used"), &2);
    for line in [
        "LOCK.ACQUIRE k me",
        "LOCK.ACQUIRE k you BLOCK 0",
        "LOCK.RELEASE k me",
        "LOCK.RENEW k me",
        "LOCK.UPGRADE k me BLOCK 0",
        "LOCK.DOWNGRADE k me",
        "LOCK.MACQUIRE 2 a b me BLOCK 0",
        "LOCK.MRELEASE 2 a b me",
        "LOCK.GUARD g 5",
        "SEM.ACQUIRE sem me LIMIT 3 BLOCK 0",
        "SEM.RELEASE sem me",
        "SEM.RENEW sem me",
        "LOCK.APPLY k x",
        "LOCK.FENCE 5",
    ] {
        let reply = reader.run(line);
        assert!(reply.err().starts_with("READONLY "), "{line}: {reply:?}");
    }
    // A lease that has ended is not shown as held, even while the master cannot say so.
    master.stop_signal();
    eventually(SOON, || reader.must("LOCK.HELD short me").is_nil());
    assert!(reader.must("LOCK.INFO short").is_nil());
    master.cont_signal();
    eventually(SOON, || ask(&master, "EXISTS short") == 0);
    assert_identical(&master, &replica);
}

#[test]
fn a_writable_replica_lives() {
    let (master, replica) = pair();
    ask(&replica, "CONFIG SET replica-read-only no");
    let mut client = Raw::connect(&replica);
    for line in [
        "LOCK.ACQUIRE own me PX 600000 WATCHDOG",
        "LOCK.ACQUIRE own you BLOCK 50",
        "LOCK.ACQUIRE own me",
        "PEXPIRE own 1000",
        "LOCK.RELEASE own me ALL",
        "LOCK.ACQUIRE other me PX 20",
    ] {
        client.run(line);
    }
    drop(client);
    ask(&master, "LOCK.ACQUIRE k me PX 600000");
    wait_for_replica_sync(&master, &replica);
    assert!(ask(&replica, "LOCK.HELD k me").int() > 0);
}

#[test]
fn a_replica_with_its_own_file_starts_with_what_it_had() {
    for preamble in ["yes", "no"] {
        let master = quiet().start();
        let replica = quiet()
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", preamble)
            .start();
        ask(&master, "LOCK.ACQUIRE before me PX 600000 ID i");
        follow(&master, &replica);
        replica.await_rewrite();
        let fence = ask(&master, "LOCK.ACQUIRE after a SHARED PX 600000 ID i");
        ask(&master, "LOCK.ACQUIRE after b SHARED PX 500000");
        ask(&master, "LOCK.RELEASE after b");
        ask(&master, "PEXPIRE after 400000");
        assert_identical(&master, &replica);
        let digest = master.digest();
        let end = ask(&master, "PEXPIRETIME after");
        replica.crash();
        assert_eq!(replica.digest(), digest);
        assert_eq!(ask(&replica, "PEXPIRETIME after"), end);
        assert_eq!(ask(&replica, "LOCK.ACQUIRE after a SHARED ID i"), fence);
    }
}

/// The replica hears nothing for a while, during which a lease ends and the lock goes to somebody else.
#[test]
fn a_replica_that_was_paused_catches_up() {
    let (master, replica) = pair();
    // The hold that ends unseen ends before the one that a client waits for.
    ask(&master, "LOCK.ACQUIRE k2 a SHARED PX 300");
    ask(&master, "LOCK.ACQUIRE k a PX 300");
    ask(&master, "LOCK.ACQUIRE k2 b SHARED PX 600000");
    let mut next = waiter(&master, "LOCK.ACQUIRE k c PX 600000 BLOCK 0");
    wait_for_replica_sync(&master, &replica);
    replica.stop_signal();
    let fence = next.read();
    assert!(fence.int() > 0);
    ask(&master, "LOCK.ACQUIRE k2 c SHARED PX 600000");
    replica.cont_signal();
    assert_identical(&master, &replica);
    assert_eq!(ask(&replica, "LOCK.HELD k c"), fence);
    assert_eq!(
        ask(&replica, "LOCK.INFO k2").field("holders").array().len(),
        2
    );
}

/// A replica applies what its master decided long ago; it does not count from when it hears of it.
#[test]
fn a_late_replica_does_not_lengthen_leases() {
    let (master, replica) = pair();
    replica.stop_signal();
    ask(&master, "LOCK.ACQUIRE k a PX 600000");
    let end = ask(&master, "PEXPIRETIME k");
    thread::sleep(Duration::from_millis(300));
    replica.cont_signal();
    wait_for_replica_sync(&master, &replica);
    assert_eq!(ask(&replica, "PEXPIRETIME k"), end);
    assert_identical(&master, &replica);
}

// --- Atomic effects --------------------------------------------------------------------------------------------------

/// The commands of the append-only file, in the groups in which they take effect.
fn written(server: &Server) -> Vec<Vec<String>> {
    let directory = server.dir().join("appendonlydir");
    let file = fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains(".incr."))
        .unwrap();
    let bytes = fs::read(file).unwrap();
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut open = false;
    let mut at = 0;
    while at < bytes.len() {
        let count = number(&bytes, &mut at, b'*');
        let arguments: Vec<String> = (0..count)
            .map(|_| {
                let length = number(&bytes, &mut at, b'$');
                let text = bytes[at..at + length].escape_ascii().to_string();
                at += length + 2;
                text
            })
            .collect();
        match arguments[0].as_str() {
            "SELECT" => {}
            "MULTI" => {
                open = true;
                groups.push(Vec::new());
            }
            "EXEC" => open = false,
            _ if open => groups.last_mut().unwrap().push(arguments.join(" ")),
            _ => groups.push(vec![arguments.join(" ")]),
        }
    }
    groups
}

fn number(bytes: &[u8], at: &mut usize, mark: u8) -> usize {
    assert_eq!(bytes[*at], mark);
    let end = *at
        + bytes[*at..]
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .unwrap();
    let text = std::str::from_utf8(&bytes[*at + 1..end]).unwrap();
    *at = end + 2;
    text.parse().unwrap()
}

#[test]
fn what_belongs_together_takes_effect_together() {
    let server = Server::builder().aof(Fsync::Always).clock(0).start();
    // The server takes these steps in time slices. By this clock, no slice ends early, however busy the machine is.
    server.freeze_clock(true);
    let group_of = |what: &str, work: &mut dyn FnMut()| {
        let before = written(&server).len();
        work();
        let groups = written(&server).split_off(before);
        assert_eq!(groups.len(), 1, "{what}: {groups:#?}");
        groups.into_iter().next().unwrap()
    };
    let hands_over = |what: &str, released: &[&str], work: &mut dyn FnMut()| {
        let group = group_of(what, work);
        let (first, others) = group.split_at(released.len());
        assert_eq!(first, released, "{what}: {group:#?}");
        assert!(!others.is_empty(), "{what}: {group:#?}");
        let are_holds = others.iter().all(|line| line.starts_with("LOCK.APPLY "));
        assert!(are_holds, "{what}: {group:#?}");
    };

    ask(&server, "LOCK.ACQUIRE k a PX 600000");
    let mut next = waiter(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    let group = group_of("a release that hands over", &mut || {
        ask(&server, "LOCK.RELEASE k a");
        assert!(next.read().int() > 0);
    });
    assert!(
        group.iter().any(|line| line.contains("LOCK.APPLY k")),
        "{group:?}"
    );

    let mut shared: Vec<_> = (0..3)
        .map(|number| {
            waiter(
                &server,
                &format!("LOCK.ACQUIRE k s{number} SHARED PX 600000 BLOCK 0"),
            )
        })
        .collect();
    let released = ["LOCK.RELEASE k b"];
    hands_over("a release that lets several in", &released, &mut || {
        ask(&server, released[0]);
        for waiter in &mut shared {
            assert!(waiter.read().int() > 0);
        }
    });

    group_of("several keys", &mut || {
        ask(&server, "LOCK.MACQUIRE 3 x y z a PX 600000");
    });
    let mut rest: Vec<_> = ["x", "y", "z"]
        .map(|key| waiter(&server, &format!("LOCK.ACQUIRE {key} b PX 600000 BLOCK 0")))
        .into();
    let released = ["DEL x", "DEL y", "DEL z"];
    hands_over("a release of several keys", &released, &mut || {
        ask(&server, "LOCK.MRELEASE 3 x y z a");
        for waiter in &mut rest {
            assert!(waiter.read().int() > 0);
        }
    });

    // The server looks for expired keys by itself. If it finds this one first, the hand-over follows in the next round.
    ask(&server, "DEBUG SET-ACTIVE-EXPIRE 0");
    ask(&server, "LOCK.ACQUIRE t a PX 200");
    let mut next = waiter(&server, "LOCK.ACQUIRE t b PX 600000 BLOCK 0");
    group_of("the end of a lease that hands over", &mut || {
        server.shift_clock(201);
        assert!(next.read().int() > 0);
    });

    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE w a PX 600000 WATCHDOG");
    client.must("LOCK.ACQUIRE w2 a PX 600000 WATCHDOG");
    let mut watched = Some(client);
    let mut next = waiter(&server, "LOCK.ACQUIRE w b PX 600000 BLOCK 0");
    group_of("the end of a connection that hands over", &mut || {
        drop(watched.take());
        assert!(next.read().int() > 0);
        eventually(SOON, || ask(&server, "EXISTS w2") == 0);
    });

    let mut client = Raw::connect(&server);
    let mut next = waiter(&server, "LOCK.ACQUIRE w c PX 600000 BLOCK 0");
    group_of("a transaction", &mut || {
        let lines = [
            "MULTI",
            "LOCK.ACQUIRE m1 a PX 600000",
            "LOCK.ACQUIRE m2 a PX 600000",
            "SET s v",
            "LOCK.RELEASE w b",
            "EXEC",
        ];
        client.run_all(lines);
        assert!(next.read().int() > 0);
    });
    group_of("a script", &mut || {
        let script =
            "redis.call('LOCK.ACQUIRE', KEYS[1], 'a') redis.call('LOCK.ACQUIRE', KEYS[2], 'a')";
        server.command(["EVAL", script, "2", "e1", "e2"]);
    });

    server.freeze_clock(false);
    let digest = server.digest();
    server.crash();
    assert_eq!(server.digest(), digest);
}

// --- Promotion and demotion ------------------------------------------------------------------------------------------

#[test]
fn a_promoted_replica_honours_what_it_knows() {
    let (_master, replica, held, last, end) = with_growing_lease(5000, |lease| {
        let (master, replica) = pair();
        let mut watched = Raw::connect(&master);
        let held = watched.must("LOCK.ACQUIRE k me PX 600000 ID a").int();
        watched.must(&format!("LOCK.ACQUIRE short me PX {lease}"));
        watched.must(&format!("LOCK.ACQUIRE dog me PX {lease} WATCHDOG"));
        watched.must("SEM.ACQUIRE sem me LIMIT 2 PERMITS 2 PX 600000");
        let last = watched.must("LOCK.ACQUIRE last me PX 600000").int();
        wait_for_replica_sync(&master, &replica);
        let end = ask(&replica, "PEXPIRETIME short").int();
        master.kill9();
        (end > 0).then_some((master, replica, held, last, end))
    });
    replica.promote();

    assert_eq!(ask(&replica, "LOCK.HELD k me"), held);
    assert!(ask(&replica, "LOCK.ACQUIRE k you").is_nil());
    assert!(ask(&replica, "SEM.ACQUIRE sem you LIMIT 2").is_nil());
    assert_eq!(ask(&replica, "LOCK.ACQUIRE k me ID a"), held);
    assert_eq!(ask(&replica, "LOCK.ACQUIRE k me ID b"), held);
    assert!(ask(&replica, "LOCK.ACQUIRE new me").int() > last);

    // Clients wait here now, and are served when a lease ends or is released.
    let mut next = waiter(&replica, "LOCK.ACQUIRE short you PX 600000 BLOCK 0");
    let mut dog = waiter(&replica, "LOCK.ACQUIRE dog you PX 600000 BLOCK 0");
    let mut sem = waiter(&replica, "SEM.ACQUIRE sem you LIMIT 2 PX 600000 BLOCK 0");
    let fence = next.read().int();
    let served = unix_ms();
    assert!(fence > last);
    assert!(served >= end, "served {} ms early", end - served);
    assert!(served < end + 60_000, "served {} ms late", served - end);
    assert!(dog.read().int() > last, "the lease of a WATCHDOG runs down");
    assert_eq!(ask(&replica, "SEM.RELEASE sem me ALL"), 0);
    assert!(sem.read().int() > fence);
    assert_eq!(replica.info_int("sluice_lock_renewed"), 0);
}

#[test]
fn waiting_clients_of_a_demoted_master_are_unblocked_and_never_get_the_lock() {
    const CROWD: usize = 50;
    let (old, new) = pair();
    let mut watched = Raw::connect(&old);
    watched.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
    watched.must("SEM.ACQUIRE sem me LIMIT 1 PX 600000");
    watched.must("LOCK.ACQUIRE up a SHARED PX 600000");
    watched.must("LOCK.ACQUIRE up b SHARED PX 600000");
    let mut crowd = Crowd::connect(&old, CROWD);
    crowd.ask_in_order(
        // Owners of their own: two connections of one owner could wait for each other.
        |number| {
            let line = match number % 5 {
                0 => format!("LOCK.ACQUIRE k o{number} BLOCK 0"),
                1 => format!("SEM.ACQUIRE sem o{number} LIMIT 1 BLOCK 0 WATCHDOG"),
                2 => format!("LOCK.MACQUIRE 2 k free o{number} BLOCK 0"),
                3 => format!("LOCK.ACQUIRE up o{number} BLOCK 20000"),
                _ => format!("LOCK.ACQUIRE k o{number} SHARED BLOCK 60000 WATCHDOG"),
            };
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        },
        |asked| old.info_int("sluice_lock_waiting") == asked as i64,
    );
    wait_for_replica_sync(&old, &new);
    new.promote();
    old.replica_of(&new);
    for number in 0..CROWD {
        // The server closes the connection behind this reply.
        let reply = crowd.member(number).read();
        assert!(reply.err().starts_with("UNBLOCKED "), "{number}: {reply:?}");
    }
    assert_eq!(old.info_int("sluice_lock_waiting"), 0);
    assert_eq!(old.info_int("sluice_lock_watchdog_holds"), 0);
    wait_for_replica_sync(&new, &old);
    assert_identical(&new, &old);

    // All is released: nobody of them gets anything, neither here nor there.
    for line in [
        "LOCK.RELEASE k me ALL",
        "SEM.RELEASE sem me",
        "LOCK.RELEASE up a",
        "LOCK.RELEASE up b",
    ] {
        assert_eq!(ask(&new, line), 0, "{line}");
    }
    drop(watched);
    drop(crowd);
    thread::sleep(MOMENT);
    assert_identical(&new, &old);
    assert_eq!(ask(&new, "DBSIZE"), 0);

    // Back again, with nothing left over from before.
    old.promote();
    let mut next = Raw::connect(&old);
    assert!(next.must("LOCK.ACQUIRE k x PX 600000").int() > 0);
    let mut waits = waiter(&old, "LOCK.ACQUIRE k y PX 600000 BLOCK 0");
    next.must("LOCK.RELEASE k x");
    assert!(waits.read().int() > 0);
    assert_eq!(ask(&old, "DBSIZE"), 1);
}

#[test]
fn a_client_that_is_served_at_the_moment_of_a_demotion_keeps_its_later_hold() {
    let server = quiet().start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE k me PX 600000");
    let mut served = waiter(&server, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    // Before the waiter can be told, the server tells all that wait that nothing comes any more.
    let lines = ["LOCK.RELEASE k me", "REPLICAOF 127.0.0.1 1"];
    client.run_all(lines);
    assert!(served.read().err().starts_with("UNBLOCKED "));
    assert!(client.must("LOCK.HELD k you").int() > 0);

    // Much may happen before it is a master again: the owner is to hold the lock by another grant then.
    server.promote();
    assert_eq!(client.must("DEL k"), 1);
    let fence = client.must("LOCK.ACQUIRE k you PX 600000").int();
    // Somebody else who waited is gone: what was given to such ones is looked for.
    drop(waiter(&server, "LOCK.ACQUIRE k other BLOCK 0"));
    eventually(SOON, || server.info_int("sluice_lock_waiting") == 0);
    thread::sleep(MOMENT);
    assert_eq!(client.must("LOCK.HELD k you"), fence);
}

#[test]
fn the_connection_of_a_watchdog_decides_nothing_on_a_demoted_master() {
    let (old, new) = pair();
    let mut watched = Raw::connect(&old);
    let fence = watched.must("LOCK.ACQUIRE k me PX 600000 WATCHDOG");
    wait_for_replica_sync(&old, &new);
    new.promote();
    old.replica_of(&new);
    wait_for_replica_sync(&new, &old);
    drop(watched);
    thread::sleep(MOMENT);
    assert_eq!(ask(&old, "LOCK.HELD k me"), fence);
    assert_identical(&new, &old);
    // Nor after it is a master again: the lease runs down there.
    old.promote();
    thread::sleep(MOMENT);
    assert_eq!(ask(&old, "LOCK.HELD k me"), fence);
}

#[test]
fn clients_wait_on_while_a_replica_gets_everything() {
    let master = quiet().start();
    ask(&master, "LOCK.ACQUIRE k me PX 600000");
    ask(&master, "LOCK.ACQUIRE ends me PX 700");
    let mut next = waiter(&master, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    let mut after = waiter(&master, "LOCK.ACQUIRE ends you PX 600000 BLOCK 0");
    // The transfer takes long enough for a lease to end within.
    ask(&master, "CONFIG SET rdb-key-save-delay 200000");
    for number in 0..5 {
        ask(&master, &format!("SET s{number} v"));
    }
    let replica = quiet().start();
    replica.replica_of(&master);
    assert!(after.read().int() > 0);
    ask(&master, "LOCK.RELEASE k me");
    assert!(next.read().int() > 0);
    wait_for_replica_sync(&master, &replica);
    assert_identical(&master, &replica);
    assert_eq!(
        ask(&replica, "LOCK.HELD k you"),
        ask(&master, "LOCK.HELD k you")
    );
}

#[test]
fn fences_go_on_over_a_promotion() {
    let (master, replica) = pair();
    let ahead = (unix_ms() + 3_600_000) * 1000;
    ask(&master, &format!("LOCK.FENCE {ahead}"));
    let mut last = ahead;
    let servers = [&master, &replica];
    // Back and forth, without any key that could carry the fence.
    for turn in 0..4 {
        let (now, other) = (servers[turn % 2], servers[(turn + 1) % 2]);
        let fence = ask(now, "LOCK.ACQUIRE k me").int();
        assert!(
            fence > last && fence < last + 1_000_000,
            "{fence} after {last}"
        );
        last = fence;
        ask(now, "DEL k");
        wait_for_replica_sync(now, other);
        other.promote();
        now.replica_of(other);
        wait_for_replica_sync(other, now);
    }
}

// --- Pauses and fail-over --------------------------------------------------------------------------------------------

/// Redis 7.0 stops with a failed assertion when a module replicates while writes are paused.
#[test]
fn the_server_survives_what_happens_while_writes_are_paused() {
    for mode in ["WRITE", "ALL"] {
        let (master, replica) = pair();
        let mut watched = Raw::connect(&master);
        watched.must("LOCK.ACQUIRE dog me PX 300 WATCHDOG");
        let mut dying = Raw::connect(&master);
        dying.must("LOCK.ACQUIRE dead me PX 600000 WATCHDOG");
        for line in [
            "LOCK.ACQUIRE ends me PX 200",
            "LOCK.ACQUIRE shared a SHARED PX 200",
            "LOCK.ACQUIRE shared b SHARED PX 600000",
            "SEM.ACQUIRE sem me LIMIT 1 PX 200",
            "LOCK.ACQUIRE long me PX 600000",
        ] {
            ask(&master, line);
        }
        let mut ends = waiter(&master, "LOCK.ACQUIRE ends you PX 600000 BLOCK 0");
        let mut sem = waiter(&master, "SEM.ACQUIRE sem you LIMIT 1 PX 600000 BLOCK 0");
        let mut dead = waiter(&master, "LOCK.ACQUIRE dead you PX 600000 BLOCK 0");
        let mut timed = waiter(&master, "LOCK.ACQUIRE long you BLOCK 300");
        let gone = waiter(&master, "LOCK.ACQUIRE ends third PX 600000 BLOCK 0");
        let mut control = Raw::connect(&master);
        wait_for_replica_sync(&master, &replica);

        let start = Instant::now();
        control.must(&format!("CLIENT PAUSE 900 {mode}"));
        drop(dying);
        drop(gone);
        if mode == "WRITE" {
            // Reads are answered, and show no lease that has ended.
            eventually(SOON, || {
                control.must("LOCK.HELD ends me").is_nil()
                    && control.must("LOCK.HELD shared a").is_nil()
            });
            control.must("LOCK.INFO ends");
            control.must("LOCK.INFO shared");
        }
        for waiter in [&mut ends, &mut sem, &mut dead] {
            assert!(waiter.read().int() > 0);
        }
        not_before(start, Duration::from_millis(900));
        assert!(timed.read().is_nil());
        assert!(watched.must("LOCK.HELD ends you").int() > 0);
        assert!(watched.must("LOCK.HELD dead you").int() > 0);
        assert_identical(&master, &replica);
        assert!(!master.log().contains("ASSERTION"));
    }
}

/// As for a client that waits for a list: the pause does not keep it from being told that its time is up.
#[test]
fn a_wait_ends_in_time_while_writes_are_paused() {
    let server = Server::start();
    ask(&server, "LOCK.ACQUIRE k me PX 600000");
    let mut list = Raw::connect(&server);
    list.ask("BLPOP list 0.4");
    let mut lock = waiter(&server, "LOCK.ACQUIRE k you BLOCK 400");
    ask(&server, "CLIENT PAUSE 600000 WRITE");
    assert!(list.read().is_nil());
    assert!(lock.read().is_nil());
}

#[test]
fn operators_end_waits_while_writes_are_paused() {
    let (master, replica) = pair();
    ask(&master, "LOCK.ACQUIRE k me PX 600000");
    let mut first = Raw::connect(&master);
    let first_id = first.id().to_string();
    first.ask("LOCK.ACQUIRE k you BLOCK 0");
    let mut second = Raw::connect(&master);
    let second_id = second.id().to_string();
    second.ask("LOCK.ACQUIRE k third BLOCK 0");
    eventually(SOON, || master.info_int("sluice_lock_waiting") == 2);
    ask(&master, "CLIENT PAUSE 600000 WRITE");
    assert_eq!(master.command(["CLIENT", "UNBLOCK", &first_id]), 1);
    assert!(first.read().is_nil());
    assert_eq!(
        master.command(["CLIENT", "UNBLOCK", &second_id, "ERROR"]),
        1
    );
    assert!(second.read().err().starts_with("UNBLOCKED "));
    ask(&master, "CLIENT UNPAUSE");
    assert_eq!(ask(&master, "LOCK.RELEASE k me"), 0);
    assert!(ask(&master, "LOCK.INFO k").is_nil());
    assert_identical(&master, &replica);
}

#[test]
fn a_failover_hands_over_with_all_leases() {
    let (old, new) = pair();
    let mut watched = Raw::connect(&old);
    let held = watched.must("LOCK.ACQUIRE k me PX 600000 ID a").int();
    watched.must("LOCK.ACQUIRE dog me PX 1000 WATCHDOG");
    watched.must("LOCK.ACQUIRE ends me PX 150");
    let last = watched.must("SEM.ACQUIRE sem me LIMIT 1 PX 600000").int();
    let mut waits = waiter(&old, "LOCK.ACQUIRE k you PX 600000 BLOCK 0");
    let mut ends = waiter(&old, "LOCK.ACQUIRE ends you PX 600000 BLOCK 0");
    wait_for_replica_sync(&old, &new);

    // The replica is silent at first: the old master pauses and leases end in the pause.
    new.stop_signal();
    old.command(["FAILOVER"]);
    thread::sleep(Duration::from_millis(400));
    new.cont_signal();
    await_role(&new, "master");
    await_role(&old, "slave");
    assert!(waits.read().err().starts_with("UNBLOCKED "));
    let ends = ends.read();
    assert!(ends.is_err() || ends.int() > 0);
    wait_for_replica_sync(&new, &old);
    assert_identical(&new, &old);

    assert_eq!(ask(&new, "LOCK.HELD k me"), held);
    assert_eq!(ask(&new, "LOCK.ACQUIRE k me ID a"), held);
    assert!(ask(&new, "LOCK.ACQUIRE k you").is_nil());
    if ends.is_err() {
        assert!(ask(&new, "LOCK.HELD ends you").is_nil());
    }
    assert!(ask(&new, "LOCK.ACQUIRE other me").int() > last);
    eventually(SOON, || ask(&new, "EXISTS dog") == 0);
    assert_identical(&new, &old);
    assert!(!old.log().contains("ASSERTION"));
}

#[test]
fn failovers_under_load_keep_the_datasets_identical() {
    let (one, other) = pair();
    let servers = [&one, &other];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&stop);
        for number in 0..6 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random(0x1234_5678_9abc_def1 ^ (number * 7919 + 1));
                while !stop.load(Ordering::Relaxed) {
                    let mut client = Raw::connect(servers[random.below(2) as usize]);
                    for _ in 0..30 {
                        client.ask(&random.command());
                        match client.try_read(Duration::from_secs(5)) {
                            Ok(Some(Value::Error(text))) => {
                                assert!(!text.contains("internal"), "{text}")
                            }
                            Ok(Some(_)) => {}
                            // Unblocked by the change of roles, which ends the connection.
                            _ => break,
                        }
                    }
                }
            });
        }
        for turn in 0..3 {
            let (now, next) = (servers[turn % 2], servers[(turn + 1) % 2]);
            thread::sleep(Duration::from_millis(250));
            now.command(["FAILOVER"]);
            await_failover(now, next);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // After an odd number of turns, the other one is the master.
    ask(&other, "DEBUG SET-ACTIVE-EXPIRE 0");
    assert_identical(&other, &one);
    for server in servers {
        let log = server.log();
        assert!(
            !log.contains("internal error") && !log.contains("ASSERTION"),
            "{log}"
        );
    }
}

/// The server ends itself if a module sends anything while writes are paused.
#[test]
fn a_replica_that_saves_in_a_pause_of_writes_lives_on() {
    let master = quiet().start();
    let replica = quiet().aof(Fsync::Everysec).start();
    follow(&master, &replica);
    Raw::connect(&master).must("LOCK.ACQUIRE k me");
    wait_for_replica_sync(&master, &replica);
    // The file that follows the synchronization is written first.
    replica.await_rewrite();
    ask(&replica, "CLIENT PAUSE 1000 WRITE");
    let saves = replica.info_int("rdb_saves");
    ask(&replica, "BGSAVE");
    eventually(SOON, || replica.info_int("rdb_saves") > saves);
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(ask(&replica, "PING"), "PONG");
    assert!(replica.is_running());
}
