//! Another module that listens to keyspace events and calls back: at each event it asks about the key of the event, and
//! receives a proper reply. The events come from commands, from slices of work and from timers.

use std::thread;
use std::time::Duration;

use crate::support::{Lines as _, Raw, SOON, Server, Value, await_waiting, compile, eventually};

const LISTENER: &str = include_str!("listener.c");

struct Listened {
    server: Server,
    client: Raw,
    lines: Vec<String>,
}

impl Listened {
    fn start() -> Self {
        let server = Server::builder()
            .clock(0)
            .config("enable-module-command", "yes")
            .config("enable-debug-command", "yes")
            .start();
        let library = server.dir().join("listener.so");
        compile(LISTENER, &library);
        let mut client = Raw::connect(&server);
        client.must(&format!("MODULE LOAD {}", library.display()));
        client.must("CONFIG SET notify-keyspace-events KEA");
        Self {
            server,
            client,
            lines: Vec::new(),
        }
    }

    fn run(&mut self, commands: &[&str]) {
        for command in commands {
            self.client.must(command);
        }
    }

    /// A client that has sent this command.
    fn ask(&mut self, command: &str) -> Raw {
        let mut client = Raw::connect(&self.server);
        client.ask(command);
        client
    }

    /// The same, when it waits in a queue, one of so many clients.
    fn wait(&mut self, command: &str, waiting: i64) -> Raw {
        let waiter = self.ask(command);
        await_waiting(&self.server, waiting);
        waiter
    }

    /// Waits until the listener has heard of this event of a key, and has received this reply.
    #[track_caller]
    fn expect(&mut self, line: &str) {
        eventually(SOON, || {
            let replies = self.client.must("listener.replies");
            let lines = replies.array().iter().map(|line| line.text().to_owned());
            self.lines.extend(lines);
            self.lines.iter().any(|heard| heard == line)
        });
        self.lines.retain(|heard| heard != line);
        self.check();
        self.lines.clear();
    }

    /// No reply is an error, but for a command on a key that holds another type by now.
    #[track_caller]
    fn check(&self) {
        for line in &self.lines {
            let is_proper = line.ends_with(" reply") || line.ends_with(" nil");
            let is_proper = is_proper || line.contains(" WRONGTYPE ");
            assert!(is_proper, "{line}");
        }
        let log = self.server.log();
        assert!(!log.contains("panic"), "{log}");
    }
}

#[test]
fn a_listener_to_events_of_commands_gets_replies() {
    const COMMANDS: &[(&str, &str)] = &[
        ("LOCK.ACQUIRE lock me", "lock.acquire lock LOCK.INFO reply"),
        ("LOCK.RENEW lock me", "lock.renew lock LOCK.INFO reply"),
        ("LOCK.RELEASE lock me", "lock.release lock LOCK.INFO nil"),
        (
            "LOCK.ACQUIRE shared me SHARED",
            "lock.acquire shared LOCK.INFO reply",
        ),
        (
            "LOCK.UPGRADE shared me",
            "lock.upgrade shared LOCK.INFO reply",
        ),
        (
            "LOCK.DOWNGRADE shared me",
            "lock.downgrade shared LOCK.INFO reply",
        ),
        (
            "LOCK.MACQUIRE 2 many more me",
            "lock.macquire more LOCK.INFO reply",
        ),
        (
            "LOCK.MRELEASE 2 many more me",
            "lock.mrelease more LOCK.INFO nil",
        ),
        (
            "SEM.ACQUIRE sem me LIMIT 2",
            "sem.acquire sem SEM.INFO reply",
        ),
        ("SEM.RENEW sem me", "sem.renew sem SEM.INFO reply"),
        ("SEM.RELEASE sem me", "sem.release sem SEM.INFO nil"),
        (
            "SEM.MACQUIRE 2 sems 2 semt 3 me",
            "sem.macquire semt SEM.INFO reply",
        ),
        (
            "SEM.MRELEASE 2 sems semt me",
            "sem.mrelease semt SEM.INFO nil",
        ),
        ("STOCK.SET stock 9", "stock.set stock STOCK.INFO reply"),
        (
            "STOCK.DEDUCT stock 1",
            "stock.deduct stock STOCK.INFO reply",
        ),
        (
            "STOCK.RESERVE stock 1 ORDER o PX 600000",
            "stock.reserve stock STOCK.INFO reply",
        ),
        (
            "STOCK.CONFIRM stock o",
            "stock.confirm stock STOCK.INFO reply",
        ),
        (
            "STOCK.MDEDUCT 1 stock 1",
            "stock.mdeduct stock STOCK.INFO reply",
        ),
        ("BF.ADD bloom a", "bf.add bloom BF.INFO reply"),
        ("BF.MADD bloom b c", "bf.madd bloom BF.INFO reply"),
        ("CF.ADD cuckoo a", "cf.add cuckoo CF.INFO reply"),
        ("CF.DEL cuckoo a", "cf.del cuckoo CF.INFO reply"),
        (
            "CACHE.SET cached v PX 600000",
            "cache.set cached CACHE.INFO reply",
        ),
        (
            "CACHE.FETCH cached LEASE 600000 SLIDE 6000000",
            "cache.fetch cached CACHE.INFO reply",
        ),
        (
            "CACHE.DEL cached STALE 600000",
            "cache.del cached CACHE.INFO reply",
        ),
        (
            "CACHE.SETNULL cached PX 600000",
            "cache.setnull cached CACHE.INFO reply",
        ),
        ("CACHE.DEL cached", "del cached CACHE.INFO nil"),
        (
            "RATE.GCRA gcra 9 1 600000",
            "rate.gcra gcra RATE.REFUND reply",
        ),
        (
            "CL.THROTTLE throttled 9 1 6000",
            "cl.throttle throttled RATE.REFUND reply",
        ),
        (
            "RATE.WINDOW window 9 600000",
            "rate.window window RATE.REFUND reply",
        ),
        (
            "RATE.TIERS tiers 1 9 1 600000",
            "rate.tiers tiers RATE.REFUND reply",
        ),
        ("RATE.REFUND tiers 1", "rate.refund tiers TYPE reply"),
        (
            "RATE.MGCRA 1 several 9 1 600000",
            "rate.mgcra several RATE.REFUND reply",
        ),
        (
            "RATE.CHARGE several 5",
            "rate.charge several RATE.REFUND reply",
        ),
        (
            "RATE.WINDOW exact 9 600000 EXACT",
            "rate.window exact RATE.REFUND reply",
        ),
        (
            "ONCE.BEGIN work LEASE 600000",
            "once.begin work ONCE.INFO reply",
        ),
        ("DEL stock", "del stock STOCK.INFO nil"),
    ];
    let mut listened = Listened::start();
    for (command, line) in COMMANDS {
        listened.run(&[command]);
        listened.expect(line);
    }
}

#[test]
fn a_listener_to_events_of_waiting_clients_gets_replies() {
    let mut listened = Listened::start();
    // A lock is handed over by the command that releases it, by a disconnect, and when a lease ends.
    listened.run(&["LOCK.ACQUIRE lock me PX 600000"]);
    let mut waiter = listened.wait("LOCK.ACQUIRE lock you WATCHDOG PX 600000 BLOCK 0", 1);
    let mut other = listened.wait("LOCK.ACQUIRE lock other PX 50 BLOCK 0", 2);
    let mut last = listened.wait("LOCK.ACQUIRE lock last PX 600000 BLOCK 0", 3);
    listened.run(&["LOCK.RELEASE lock me"]);
    assert!(waiter.read().int() > 0);
    listened.expect("lock.acquire lock LOCK.INFO reply");
    drop(waiter);
    assert!(other.read().int() > 0);
    assert!(last.read().int() > 0);
    listened.expect("lock.acquire lock LOCK.INFO reply");
    // The key goes, and with it the hold.
    let mut next = listened.wait("LOCK.ACQUIRE lock next PX 600000 BLOCK 0", 1);
    listened.run(&["DEL lock"]);
    assert!(next.read().int() > 0);
    listened.expect("lock.acquire lock LOCK.INFO reply");

    // The lease of one of several holds ends.
    listened.run(&[
        "SEM.ACQUIRE sem me LIMIT 2 PX 600000",
        "SEM.ACQUIRE sem you LIMIT 2 PX 50",
    ]);
    let mut waiter = listened.ask("SEM.ACQUIRE sem other LIMIT 2 PX 600000 BLOCK 0");
    assert!(waiter.read().int() > 0);
    listened.expect("sem.acquire sem SEM.INFO reply");

    // Clients that wait for an entry are served by a store, and by the end of a lease.
    listened.run(&["CACHE.FETCH cached LEASE 50"]);
    let mut waiter = listened.ask("CACHE.FETCH cached LEASE 600000 BLOCK 0");
    assert_eq!(waiter.read().array()[0], "LEASE");
    let mut waiter = listened.wait("CACHE.FETCH cached LEASE 600000 BLOCK 0", 1);
    listened.run(&["CACHE.SET cached v PX 600000"]);
    assert_eq!(waiter.read().array()[0], "HIT");
    listened.expect("cache.set cached CACHE.INFO reply");
}

#[test]
fn a_listener_to_events_of_timers_gets_replies() {
    let mut listened = Listened::start();
    listened.run(&["LOCK.ACQUIRE lock me WATCHDOG PX 12000"]);
    listened.run(&["SEM.ACQUIRE sem me LIMIT 2 WATCHDOG PX 12000"]);
    listened.expect("lock.renew lock LOCK.INFO reply");
    listened.expect("sem.renew sem SEM.INFO reply");
    listened.run(&[
        "STOCK.SET stock 9",
        "STOCK.RESERVE stock 1 ORDER o PX 20",
        "STOCK.RESERVE stock 1 ORDER p PX 20",
    ]);
    listened.expect("stock.expire stock STOCK.INFO reply");
    listened.run(&["LOCK.ACQUIRE short me PX 20"]);
    listened.expect("expired short LOCK.INFO nil");
    // The hold of a closed connection.
    let mut holder = Raw::connect(&listened.server);
    holder.must("LOCK.ACQUIRE held me WATCHDOG PX 600000");
    drop(holder);
    listened.expect("lock.release held LOCK.INFO nil");
    // An expired entry that a command meets, or the server.
    listened.run(&["CACHE.SET cached v PX 20"]);
    listened.expect("expired cached CACHE.INFO nil");
    listened.run(&["RATE.GCRA limit 0 1 20"]);
    listened.expect("expired limit CACHE.INFO nil");
}

/// Lets a key expire that was set to expire in a millisecond. Active expiry is off: the next command that opens the key
/// removes it, and the server emits `expired` in the middle of that command.
fn pass() {
    thread::sleep(Duration::from_millis(5));
}

impl Listened {
    /// The same as [`Listened::start`]. The listener also asks about a held lock and writes keys of all families, and keys that
    /// have expired stay until a command opens them.
    fn start_beside() -> Self {
        let mut listened = Self::start();
        listened.run(&[
            "DEBUG SET-ACTIVE-EXPIRE 0",
            "LOCK.ACQUIRE beside:held me PX 600000",
            "listener.beside on",
        ]);
        listened.client.must("listener.replies");
        listened
    }

    /// Runs commands without the commands that the listener writes with. Redis 8 does not survive a listener that adds keys in the
    /// middle of a `SET` with an expiry. In one write, so that no key of theirs expires before the listener writes again.
    #[track_caller]
    fn run_alone(&mut self, commands: &[&str]) {
        let after = ["listener.beside on", "listener.replies"];
        let lines = [&["listener.beside off"], commands, &after].concat();
        for (line, reply) in lines.iter().zip(self.client.run_all(&lines)) {
            assert!(!reply.is_err(), "{line}: {reply:?}");
        }
    }

    /// Runs the commands of `before`, after which the key `second` expires, and then `command`, in whose middle the listener
    /// deletes `key`. Repeats that until the key expired neither too early nor too late. Returns the reply to `command`.
    #[track_caller]
    fn run_with_deletion(&mut self, before: &[&str], key: &str, command: &str) -> Value {
        let deletion = format!("expired {key} DEL reply");
        let mut reply = None;
        eventually(SOON, || {
            self.client.must(&format!("DEL {key} second"));
            self.run_alone(before);
            self.client.must(&format!("listener.run expired DEL {key}"));
            pass();
            reply = Some(self.client.run(command));
            let replies = self.client.must("listener.replies");
            replies.array().iter().any(|line| line.text() == deletion)
        });
        reply.expect("a reply")
    }

    /// Waits until the listener has heard of this event, and has received a reply to each of its commands.
    #[track_caller]
    fn expect_beside(&mut self, event: &str) {
        eventually(SOON, || {
            let replies = self.client.must("listener.replies");
            let lines = replies.array().iter().map(|line| line.text().to_owned());
            self.lines.extend(lines);
            let is_last =
                |line: &String| line.starts_with(&format!("{event} beside:delay DELAY.CANCEL "));
            self.lines.iter().any(is_last)
        });
        let held = format!("{event} beside:held LOCK.INFO reply");
        assert!(self.lines.contains(&held), "{:?}", self.lines);
        self.check();
        self.lines.clear();
    }
}

#[test]
fn a_listener_gets_replies_in_the_middle_of_a_command() {
    /// The key of a command with several keys that has expired is the second one.
    const ON_EXPIRED: &[(&str, &str)] = &[
        ("LOCK.ACQUIRE k me PX 1", "LOCK.ACQUIRE k you PX 600000"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.RENEW k me"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.RELEASE k me"),
        ("LOCK.ACQUIRE k me PX 1 SHARED", "LOCK.UPGRADE k me"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.DOWNGRADE k me"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.CANCEL k id"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.HELD k me"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.INFO k"),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.GUARD k 5"),
        (
            "LOCK.ACQUIRE k me PX 1",
            "LOCK.MACQUIRE 2 first k me PX 600000",
        ),
        ("LOCK.ACQUIRE k me PX 1", "LOCK.MRELEASE 2 first k me"),
        (
            "SEM.ACQUIRE k me LIMIT 2 PX 1",
            "SEM.ACQUIRE k you LIMIT 2 PX 600000",
        ),
        (
            "SEM.ACQUIRE k me LIMIT 2 PX 1",
            "SEM.MACQUIRE 2 sem 2 k 2 me",
        ),
        ("SEM.ACQUIRE k me LIMIT 2 PX 1", "SEM.MRELEASE 2 sem k me"),
        ("SET k 5 PX 1", "STOCK.SET k 9"),
        ("SET k 5 PX 1", "STOCK.IMPORT k"),
        ("SET k 5 PX 1", "STOCK.DEDUCT k 1"),
        ("SET k 5 PX 1", "STOCK.MDEDUCT 2 stock 1 k 1"),
        ("SET k 5 PX 1", "STOCK.MCANCEL 2 stock k id"),
        ("SET k 5 PX 1", "STOCK.SET other 9 EVENTS k"),
        ("SET k 5 PX 1", "BF.ADD k item"),
        ("SET k 5 PX 1", "CF.ADD k item"),
        (
            "SET k 5 PX 1",
            "CACHE.FETCH cached LEASE 600000 GUARD k item",
        ),
        ("CACHE.SET k v PX 1", "CACHE.FETCH k LEASE 600000"),
        ("CACHE.SET k v PX 1", "CACHE.SET k v PX 600000"),
        ("CACHE.SET k v PX 1", "CACHE.DEL k GRACE 600000"),
        ("SET k 5 PX 1", "RATE.GCRA k 9 9 600000"),
        ("SET k 5 PX 1", "RATE.MGCRA 2 limit 9 9 600000 k 9 9 600000"),
        ("SET k 5 PX 1", "RATE.WINDOW k 9 600000 EXACT"),
        ("SET k 5 PX 1", "ONCE.BEGIN k LEASE 600000"),
        ("SET k 5 PX 1", "DELAY.SET k STREAM due"),
    ];
    const ON_NEW: &[&str] = &[
        "LOCK.ACQUIRE k me",
        "LOCK.ACQUIRE k me WATCHDOG",
        "LOCK.ACQUIRE k me ID id NOTIFY channel",
        "LOCK.MACQUIRE 2 k l me",
        "SEM.ACQUIRE k me LIMIT 2",
        "LOCK.GUARD k 5",
        "STOCK.SET k 9",
        "STOCK.SET k 9 EVENTS l",
        "BF.ADD k item",
        "CF.ADD k item",
        "CACHE.SET k v PX 600000",
        "CACHE.DEL k GRACE 600000",
        "RATE.GCRA k 9 9 600000",
        "RATE.MGCRA 2 k 9 9 600000 l 9 9 600000",
        "RATE.WINDOW k 9 600000",
        "RATE.WINDOW k 9 600000 EXACT",
        "RATE.TIERS k 1 9 1 600000",
        "ONCE.BEGIN k LEASE 600000",
        "DELAY.SET k STREAM due",
    ];
    const ON_MISS: &[&str] = &[
        "LOCK.INFO none",
        "LOCK.HELD none me",
        "STOCK.INFO none",
        "CACHE.GET none",
        "CACHE.FETCH none LEASE 600000",
        "CACHE.FETCH none LEASE 600000 GUARD filter item",
        "ONCE.INFO none",
    ];
    let mut listened = Listened::start_beside();
    listened.run(&["LOCK.ACQUIRE first me PX 600000", "STOCK.SET stock 9"]);
    for (before, command) in ON_EXPIRED {
        // On a slow machine the listener itself may meet the key after it has expired, at an event of the first command.
        eventually(SOON, || {
            listened.run_alone(&["DEL k", before]);
            pass();
            let reply = listened.client.run(command);
            let is_internal = reply.is_err() && reply.err().contains("internal");
            assert!(!is_internal, "{command}: {reply:?}");
            let replies = listened.client.must("listener.replies");
            let lines = replies.array().iter().map(|line| line.text().to_owned());
            listened.lines = lines.collect();
            let is_expired = |line: &String| line.starts_with("expired beside:held ");
            listened.lines.iter().any(is_expired)
        });
        listened.expect_beside("expired");
    }
    for command in ON_NEW {
        listened.run(&["DEL k l", "listener.replies", command]);
        listened.expect_beside("new");
    }
    for command in ON_MISS {
        listened.client.must("listener.replies");
        listened.client.run(command);
        listened.expect_beside("keymiss");
    }
}

#[test]
fn a_listener_gets_replies_in_the_middle_of_a_hand_over() {
    let mut listened = Listened::start_beside();
    let granted = |mut waiter: Raw| {
        let reply = waiter.read();
        assert!(!reply.is_nil() && !reply.is_err(), "{reply:?}");
    };
    // A release hands over a lock together with one whose key does not exist.
    listened.run(&["LOCK.ACQUIRE lock me PX 600000"]);
    let waiter = listened.wait("LOCK.MACQUIRE 2 lock fresh you PX 600000 BLOCK 0", 1);
    listened.run(&["listener.replies", "LOCK.RELEASE lock me"]);
    granted(waiter);
    listened.expect_beside("new");
    // The hand-over finds a key that has expired: the one that the client waits for, and another one.
    listened.run(&["LOCK.ACQUIRE short me PX 1000"]);
    granted(listened.ask("LOCK.ACQUIRE short you PX 600000 BLOCK 0"));
    listened.expect_beside("expired");
    listened.run(&[
        "LOCK.ACQUIRE first me PX 600000",
        "LOCK.ACQUIRE second me PX 1000",
    ]);
    let waiter = listened.wait("LOCK.MACQUIRE 2 first second you PX 600000 BLOCK 0", 1);
    thread::sleep(Duration::from_millis(1020));
    listened.run(&["LOCK.RELEASE first me"]);
    granted(waiter);
    listened.expect_beside("expired");
    // Timers find keys that have expired: a hold with a notice, a stock with a reservation.
    for commands in [
        ["LOCK.ACQUIRE noticed me PX 1000 ID id NOTIFY channel"].as_slice(),
        &[
            "STOCK.SET stock 9",
            "STOCK.RESERVE stock 1 ORDER o PX 1100",
            "PEXPIRE stock 1000",
        ],
    ] {
        listened.run_alone(commands);
        listened.expect_beside("expired");
    }
}

/// The server emits `expired` and `new` in the middle of a command that has another key open. A listener that uses the open key gets an
/// error, which is no defect of the module.
#[test]
fn a_key_that_a_command_has_open_is_in_use() {
    let mut listened = Listened::start();
    for (before, question, command) in [
        (
            "LOCK.ACQUIRE used me PX 600000",
            "LOCK.RELEASE used me",
            "LOCK.MACQUIRE 2 other used me PX 600000",
        ),
        (
            "STOCK.SET used 9 EVENTS other",
            "STOCK.DEDUCT used 1",
            "STOCK.DEDUCT used 1",
        ),
        (
            "RATE.GCRA used 9 9 600000",
            "RATE.GCRA used 9 9 600000",
            "RATE.MGCRA 2 other 9 9 600000 used 9 9 600000",
        ),
        (
            "DELAY.SET used STREAM other",
            "DELAY.CANCEL used id",
            "DELAY.ADD used message PX 0 VALUES field value",
        ),
    ] {
        let run = format!("listener.run new {question}");
        listened.run(&["DEL used other", before, "DEL other", &run]);
        let reply = listened.client.run(command);
        assert!(!reply.is_err(), "{command}: {reply:?}");
        listened.expect(&in_use("new", question));
    }
    // The second key of a command has expired.
    listened.run(&["DEBUG SET-ACTIVE-EXPIRE 0"]);
    for (before, question, command) in [
        (
            "LOCK.ACQUIRE used me PX 600000",
            "LOCK.INFO used",
            "LOCK.MACQUIRE 2 used other me PX 600000",
        ),
        (
            "STOCK.SET used 9",
            "STOCK.DEDUCT used 1",
            "STOCK.MDEDUCT 2 used 1 other 1",
        ),
        (
            "RATE.GCRA used 9 9 600000",
            "RATE.GCRA used 9 9 600000",
            "RATE.MGCRA 2 used 9 9 600000 other 9 9 600000",
        ),
    ] {
        let expected = in_use("expired", question);
        eventually(SOON, || {
            let run = format!("listener.run expired {question}");
            listened.run(&["DEL used other", before, "SET other 5 PX 1", &run]);
            pass();
            let reply = listened.client.run(command);
            assert!(!reply.is_err(), "{command}: {reply:?}");
            // On a slow machine the key expires before the command.
            let replies = listened.client.must("listener.replies");
            replies.array().iter().any(|line| line.text() == expected)
        });
    }
    let log = listened.server.log();
    assert!(!log.contains("panic") && !log.contains("internal"), "{log}");
}

/// What the listener receives for a command on an open key.
fn in_use(event: &str, command: &str) -> String {
    let mut words = command.split(' ');
    let (name, key) = (words.next().expect("a name"), words.next().expect("a key"));
    format!("{event} {key} {name} ERR the key is in use by another command")
}

/// The listener releases a lock for which a client waits that also waits for the key that is open.
#[test]
fn a_release_while_a_command_has_keys_open_is_handed_over_afterwards() {
    for waiting in [
        "LOCK.MACQUIRE 2 lock used you PX 600000 BLOCK 0",
        "LOCK.MACQUIRE 2 used lock you PX 600000 BLOCK 0",
        "LOCK.ACQUIRE lock you PX 600000 BLOCK 0",
    ] {
        let mut listened = Listened::start();
        listened.run(&[
            "LOCK.ACQUIRE used me PX 600000",
            "LOCK.ACQUIRE lock me PX 600000",
        ]);
        let mut waiter = listened.wait(waiting, 1);
        listened.run(&[
            "listener.run new LOCK.RELEASE lock me",
            "LOCK.MACQUIRE 2 other used me PX 600000",
        ]);
        listened.expect("new lock LOCK.RELEASE reply");
        listened.run(&["LOCK.RELEASE used me ALL"]);
        let granted = waiter.read();
        assert!(!granted.is_nil() && !granted.is_err(), "{granted:?}");
    }
}

/// `RENAME` finds that the lock at its destination has expired. A listener to this event releases another lock, and so a client could get
/// both. The server does not survive a key that comes to the destination in the middle of the command.
#[test]
fn a_release_in_the_middle_of_a_rename_is_handed_over_afterwards() {
    let mut listened = Listened::start();
    let mut waiter = None;
    eventually(SOON, || {
        listened.run(&[
            "DEL first second third",
            "LOCK.ACQUIRE second me PX 600000",
            "LOCK.ACQUIRE third me PX 600000",
            "listener.run expired LOCK.RELEASE second me",
            "LOCK.ACQUIRE first me PX 3000",
        ]);
        waiter = Some(listened.wait("LOCK.MACQUIRE 2 second first you PX 600000 BLOCK 0", 1));
        // In one write, so that nothing but the command meets the expired lock.
        listened
            .client
            .run_all(["DEBUG SLEEP 3.1", "RENAME third first"]);
        let replies = listened.client.must("listener.replies");
        let is_released = |line: &Value| line.text() == "expired second LOCK.RELEASE reply";
        let is_done = replies.array().iter().any(is_released);
        if !is_done {
            waiter = None;
            await_waiting(&listened.server, 0);
        }
        is_done
    });
    assert!(listened.client.must("LOCK.HELD first me").int() > 0);
    assert_eq!(listened.client.must("LOCK.RELEASE first me"), 0);
    let granted = waiter.expect("a waiting client").read();
    assert_eq!(granted.array().len(), 2);
}

/// A change of the expiry of a key that a command has open is handled afterwards.
#[test]
fn a_listener_may_change_the_expiry_of_a_key_that_a_command_has_open() {
    let mut listened = Listened::start();
    listened.run(&[
        "RATE.GCRA used 9 9 600000",
        "listener.run new PERSIST used",
        "RATE.MGCRA 2 used 9 9 600000 other 9 9 600000",
    ]);
    listened.expect("new used PERSIST reply");
    // A limit never stays longer than it matters.
    eventually(SOON, || listened.client.must("PTTL used").int() > 0);
}

/// A key that a listener deletes in the middle of a command is gone for the rest of the command.
#[test]
fn a_listener_may_delete_another_key_of_a_command() {
    let mut listened = Listened::start_beside();
    let fences = listened.run_with_deletion(
        &[
            "LOCK.ACQUIRE first me PX 600000",
            "LOCK.ACQUIRE second me PX 1",
        ],
        "first",
        "LOCK.MACQUIRE 2 first second me PX 600000",
    );
    for (index, key) in ["first", "second"].into_iter().enumerate() {
        let held = listened.client.must(&format!("LOCK.HELD {key} me"));
        assert_eq!(held, fences.array()[index], "{key}");
    }
    let replies = listened.run_with_deletion(
        &["STOCK.SET stock 9", "SET second 5 PX 1"],
        "stock",
        "STOCK.MDEDUCT 2 stock 1 second 1",
    );
    assert_eq!(replies.array()[0], -4);
    assert_eq!(replies.array()[1], -4);

    // The filter is looked up in the middle of a step on the entry.
    listened.run(&[
        "CACHE.SET cached v PX 600000",
        "CACHE.DEL cached GRACE 600000",
        "listener.run keymiss DEL cached",
    ]);
    let fetched = listened
        .client
        .must("CACHE.FETCH cached LEASE 600000 GUARD none item");
    assert_eq!(fetched.array()[0], "LEASE");
    listened.expect("keymiss cached DEL reply");
    assert_eq!(listened.client.must("EXISTS cached"), 0);
    listened.run(&["CACHE.SET cached v PX 600000"]);
}

/// The server emits `new` in the middle of a command that creates a key. A listener that then deletes another key of the command
/// removes a value that the command has open. Neither the server nor the other keys suffer from that.
#[test]
fn a_listener_may_delete_a_key_that_a_command_has_open() {
    let mut listened = Listened::start();
    listened.run(&[
        "LOCK.ACQUIRE held me PX 600000",
        "listener.run new DEL held",
        "LOCK.MACQUIRE 2 fresh held me PX 900000",
    ]);
    listened.expect("new held DEL reply");
    assert!(listened.client.must("LOCK.HELD fresh me").int() > 0);
    assert_eq!(listened.client.must("EXISTS held"), 0);
    listened.run(&[
        "RATE.GCRA used 9 9 600000",
        "listener.run new DEL used",
        "RATE.MGCRA 2 unused 9 9 600000 used 9 9 600000",
    ]);
    listened.expect("new used DEL reply");
    assert_eq!(listened.client.must("EXISTS unused used"), 1);

    // The key that is created is the event stream. No stock is sold without the others, and the stream has no entry of a sale
    // that did not happen.
    listened.run(&[
        "STOCK.SET stock 9 EVENTS events",
        "STOCK.SET other 9 EVENTS events",
    ]);
    for (key, command, left) in [
        ("other", "STOCK.MDEDUCT 2 stock 1 other 1", "9"),
        ("stock", "STOCK.DEDUCT stock 1", ""),
    ] {
        listened.run(&["DEL events", &format!("listener.run new DEL {key}")]);
        let reply = listened.client.run(command);
        assert_eq!(reply.err(), "ERR the key was removed during the command");
        listened.expect(&format!("new {key} DEL reply"));
        assert_eq!(listened.client.must("EXISTS events"), 0, "{command}");
        assert_eq!(listened.client.must(&format!("EXISTS {key}")), 0);
        let stock = listened.client.must("STOCK.GET stock");
        assert_eq!(stock.is_nil(), left.is_empty(), "{stock:?}");
    }
}

/// The same for a listener that deletes the event stream of another stock of the command, or of the stock that is created.
#[test]
fn a_listener_may_delete_a_stream_that_a_command_has_open() {
    let mut listened = Listened::start();
    for change in ["DEL events", "SET events text", "RENAME events gone"] {
        listened.run(&["DEL stock other events streams gone"]);
        listened.run(&[
            "STOCK.SET stock 9 EVENTS events MAXLEN 1",
            "STOCK.SET other 9 EVENTS streams MAXLEN 1",
        ]);
        let run = format!("listener.run new {change}");
        listened.run(&["DEL streams gone", &run]);
        let sold = listened.client.run("STOCK.MDEDUCT 2 stock 1 other 1");
        assert!(!sold.is_err(), "{change}: {sold:?}");
        listened.client.must("DEL events");
        listened.run(&["DEL stock events gone", "XADD events * f v"]);
        listened.run(&[&run]);
        let created = listened
            .client
            .run("STOCK.SET stock 9 EVENTS events MAXLEN 1");
        assert!(!created.is_err(), "{change}: {created:?}");
        assert_eq!(listened.client.must("STOCK.GET stock"), 9);
        assert_eq!(listened.client.must("STOCK.GET other"), 8);
    }
    assert!(!listened.server.log().contains("panic"));
}

/// The server emits `new` when the first message of a delay queue creates the stream. A listener that then deletes the queue deletes the
/// message, too: neither the queue nor an entry is left, and later messages of another queue are delivered.
#[test]
fn a_listener_may_delete_a_queue_that_delivers() {
    let mut listened = Listened::start();
    listened.run(&[
        "DELAY.SET queue STREAM out",
        "listener.run new DEL queue",
        "DELAY.ADD queue id PX 0 VALUES field value",
    ]);
    listened.expect("new queue DEL reply");
    assert_eq!(listened.client.must("EXISTS queue out"), 0);
    listened.run(&[
        "DELAY.SET other STREAM out",
        "DELAY.ADD other id PX 0 VALUES field value",
    ]);
    eventually(SOON, || listened.client.must("XLEN out") == 1);
}

/// The same for a listener that renames or moves the queue, and then sends a writing command: the message is delivered from where the
/// queue is now.
#[test]
fn a_listener_may_rename_or_move_a_queue_that_delivers() {
    for (change, name, db) in [
        ("RENAME queue moved", "RENAME", 0),
        ("MOVE queue 1", "MOVE", 1),
    ] {
        let mut listened = Listened::start();
        listened.run(&[
            "DELAY.SET queue STREAM out",
            &format!("listener.run new {change}"),
            "DELAY.ADD queue id PX 0 VALUES field value",
        ]);
        listened.expect(&format!("new queue {name} reply"));
        listened.run(&[&format!("SELECT {db}")]);
        eventually(SOON, || listened.client.must("XLEN out") == 1);
        listened.run(&["SELECT 0"]);
        assert_eq!(listened.client.must("EXISTS queue"), 0, "{change}");
    }
}

/// A listener renames or moves a stock whose reservation ends: the reservation ends where the stock is now.
#[test]
fn a_listener_may_rename_or_move_a_stock_whose_reservation_ends() {
    for (change, name, db, key) in [
        ("RENAME stock moved", "RENAME", 0, "moved"),
        ("MOVE stock 1", "MOVE", 1, "stock"),
    ] {
        let mut listened = Listened::start();
        listened.run(&["STOCK.SET stock 9 EVENTS events"]);
        // In one transaction, so that the reservation does not end before the listener waits for the stream.
        let replies = listened.client.transact([
            "STOCK.RESERVE stock 2 ORDER o PX 50".to_owned(),
            "DEL events".into(),
            format!("listener.run new {change}"),
        ]);
        assert!(replies.iter().all(|reply| !reply.is_err()), "{replies:?}");
        listened.expect(&format!("new stock {name} reply"));
        listened.run(&[&format!("SELECT {db}")]);
        let get = format!("STOCK.GET {key}");
        eventually(SOON, || listened.client.must(&get) == 9);
        assert_eq!(listened.client.must("XLEN events"), 1, "{change}");
    }
}

/// The same if the databases are swapped, or the server becomes a replica for some time, before the module handles the rename.
#[test]
fn reservations_of_a_renamed_stock_end_after_swapdb_or_a_demotion() {
    for (change, db) in [("SWAPDB 0 1", 1), ("REPLICAOF 127.0.0.1 1", 0)] {
        let mut listened = Listened::start();
        listened.run(&[
            "STOCK.SET stock 9 EVENTS events",
            "STOCK.RESERVE stock 2 ORDER o PX 3000",
            "DEL events",
            "listener.run new RENAME stock moved",
        ]);
        let replies = listened.client.transact(["STOCK.DEDUCT stock 1", change]);
        assert!(!replies[1].is_err(), "{replies:?}");
        listened.run(&["REPLICAOF NO ONE", &format!("SELECT {db}")]);
        eventually(SOON, || listened.client.must("STOCK.GET moved") == 9);
    }
}

/// The renamed stock expires before the module handles the rename. Redis 7.0 then removes the stock, and the listener writes values of all
/// families.
#[test]
fn a_listener_may_write_when_a_stock_that_it_renamed_expires() {
    let mut listened = Listened::start();
    listened.run(&[
        "DEBUG SET-ACTIVE-EXPIRE 0",
        "STOCK.SET stock 9 EVENTS events",
        "DEL events",
        "listener.run new RENAME stock moved",
    ]);
    let replies = listened.client.transact([
        "STOCK.DEDUCT stock 1",
        "PEXPIRE moved 1",
        "listener.replies",
        "listener.beside on",
        "DEBUG SLEEP 0.01",
    ]);
    assert_eq!(replies[1], 1, "{replies:?}");
    assert_eq!(listened.client.must("EXISTS moved"), 0);
    let replies = listened.client.must("listener.replies");
    listened.lines = replies
        .array()
        .iter()
        .map(|line| line.text().to_owned())
        .collect();
    assert!(!listened.lines.is_empty());
    listened.check();
}

/// When the server removes an expired stream, a listener writes a new one to the same key. The module appends to the new stream.
#[test]
fn a_listener_may_write_a_stream_that_has_expired() {
    let mut listened = Listened::start();
    listened.run(&["DEBUG SET-ACTIVE-EXPIRE 0"]);
    listened.run(&[
        "STOCK.SET stock 9 EVENTS events",
        "DELAY.SET queue STREAM events",
    ]);
    for command in [
        "STOCK.DEDUCT stock 1",
        "STOCK.MDEDUCT 1 stock 1",
        "DELAY.ADD queue id PX 0 VALUES field value",
    ] {
        eventually(SOON, || {
            listened.run(&[
                "DEL events",
                "XADD events * old entry",
                "PEXPIRE events 5",
                "listener.run expired XADD events 5-5 of listener",
            ]);
            pass();
            pass();
            listened.run(&[command]);
            // If the stream expired before the listener waited for the event, this reply is missing, and the attempt is repeated.
            let replies = listened.client.must("listener.replies");
            let is_expected = |line: &Value| line.text() == "expired events XADD reply";
            replies.array().iter().any(is_expected)
        });
        eventually(SOON, || listened.client.must("XLEN events").int() >= 2);
        let entries = listened.client.must("XRANGE events - +");
        assert_eq!(entries.array()[0].array()[0], "5-5", "{command}");
    }
}

/// The same for a listener that gives such a key another name, or moves it to another database: the key that the command named is
/// not there any more, and the value is left where it is now.
#[test]
fn a_listener_may_rename_or_move_a_key_that_a_command_has_open() {
    const STEPS: &[(&str, &str)] = &[
        (
            "LOCK.ACQUIRE held me PX 600000",
            "LOCK.MACQUIRE 2 fresh held me PX 900000",
        ),
        (
            "SEM.ACQUIRE held me LIMIT 2 PX 600000",
            "SEM.MACQUIRE 2 fresh 2 held 2 me PX 900000",
        ),
        (
            "RATE.GCRA held 9 9 600000",
            "RATE.MGCRA 2 fresh 9 9 600000 held 9 9 600000",
        ),
    ];
    let mut listened = Listened::start();
    for (prepare, command) in STEPS {
        for (change, name) in [("RENAME held other", "RENAME"), ("MOVE held 1", "MOVE")] {
            listened.run(&[prepare, &format!("listener.run new {change}"), command]);
            listened.expect(&format!("new held {name} reply"));
            assert_eq!(listened.client.must("EXISTS fresh"), 1, "{command}");
            assert_eq!(listened.client.must("EXISTS held"), 0, "{command}");
            if name == "MOVE" {
                listened.run(&["SELECT 1", "RENAME held other"]);
            }
            let left_ms = listened.client.must("PTTL other").int();
            assert!((1..=900_000).contains(&left_ms), "{command}: {left_ms}");
            listened.run(&["FLUSHDB", "SELECT 0", "FLUSHDB"]);
        }
    }
}

/// To make room for an entry, the server may find that another one has expired. A listener to that event invalidates the entry
/// whose store is under way: a value from before the invalidation is not stored.
#[test]
fn a_listener_may_invalidate_an_entry_that_needs_room() {
    let mut listened = Listened::start();
    listened.run(&[
        "DEBUG SET-ACTIVE-EXPIRE 0",
        "CONFIG SET sluice.cache-max-bytes 5000",
    ]);
    let value = "v".repeat(3000);
    let mut stored = None;
    eventually(SOON, || {
        listened.run(&["DEL cached old"]);
        let fetched = listened.client.must("CACHE.FETCH cached LEASE 600000");
        let token = fetched.array()[2].int();
        listened.run(&[
            &format!("CACHE.SET old {value} PX 5"),
            "listener.replies",
            "listener.run expired CACHE.DEL cached",
        ]);
        thread::sleep(Duration::from_millis(10));
        let store = format!("CACHE.SET cached {value} PX 600000 TOKEN {token}");
        stored = Some(listened.client.must(&store));
        let replies = listened.client.must("listener.replies");
        let is_invalidated = |line: &Value| line.text() == "expired cached CACHE.DEL reply";
        replies.array().iter().any(is_invalidated)
    });
    assert_eq!(stored.expect("a reply"), 0);
    assert_eq!(listened.client.must("EXISTS cached"), 0);
}

/// A queue is served when a lease has ended. The server then finds the key expired, and a listener to that event runs a command on
/// the same key, which serves the queue, too. Each client is served once.
#[test]
fn a_listener_may_act_on_the_key_whose_queue_is_served() {
    let mut listened = Listened::start();
    listened.run(&[
        "DEBUG SET-ACTIVE-EXPIRE 0",
        "ONCE.BEGIN work LEASE 600000",
        "listener.run expired ONCE.FAIL work 1",
    ]);
    let mut first = listened.wait("ONCE.BEGIN work LEASE 600000 BLOCK 0", 1);
    let mut second = listened.wait("ONCE.BEGIN work LEASE 600000 BLOCK 0", 2);
    listened.server.shift_clock(700_000);
    let begun = first.read();
    assert_eq!(begun.array()[0], "NEW");
    listened.expect("expired work ONCE.FAIL reply");
    let token = begun.array()[2].int();
    let done = format!("ONCE.DONE work {token} result PX 600000");
    assert_eq!(listened.client.must(&done), 1);
    let done = second.read();
    assert_eq!(done.array()[0], "DONE");
    assert_eq!(done.array()[1], "result");
    for (counter, count) in [("begun", 2), ("replayed", 1), ("waiting", 0)] {
        let counter = format!("sluice_once_{counter}");
        assert_eq!(listened.server.info_int(&counter), count, "{counter}");
    }

    listened.run(&[
        "CACHE.DEL cached GRACE 600000",
        "CACHE.FETCH cached LEASE 600000",
        "listener.run expired CACHE.DEL cached",
    ]);
    let first = listened.wait("CACHE.FETCH cached LEASE 600000 BLOCK 0", 1);
    let second = listened.wait("CACHE.FETCH cached LEASE 600000 BLOCK 0", 2);
    listened.server.shift_clock(700_000);
    // The invalidation revokes the lease that a client has just received, and so does the event, if the server tells Sluice of it
    // after the other module. That costs a rebuild, but no client waits on.
    for mut client in [first, second] {
        let fetched = client.read();
        if fetched.array()[0] == "LEASE" {
            let token = fetched.array()[2].int();
            listened.run(&[&format!("CACHE.SET cached value PX 600000 TOKEN {token}")]);
        } else {
            assert_eq!(fetched.array()[0], "HIT");
        }
    }
    listened.expect("expired cached CACHE.DEL reply");
    let fetched = listened.client.must("CACHE.FETCH cached LEASE 600000");
    assert!(
        ["HIT", "LEASE"]
            .iter()
            .any(|state| fetched.array()[0] == *state)
    );
}
