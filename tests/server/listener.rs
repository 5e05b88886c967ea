//! Another module that listens to keyspace events and calls back: at each event it asks about the key of the event, and
//! receives a proper reply. The events come from commands, from slices of work and from timers.

use crate::support::{Lines as _, Raw, SOON, Server, await_waiting, compile, eventually};

const LISTENER: &str = include_str!("listener.c");

struct Listened {
    server: Server,
    client: Raw,
    lines: Vec<String>,
}

impl Listened {
    fn start() -> Self {
        let server = Server::builder()
            .config("enable-module-command", "yes")
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
    listened.run(&["LOCK.ACQUIRE lock me WATCHDOG PX 3000"]);
    listened.run(&["SEM.ACQUIRE sem me LIMIT 2 WATCHDOG PX 3000"]);
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
