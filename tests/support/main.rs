//! The tools of the tests do what they promise: a test that trusts a broken tool proves nothing.

#[path = "mod.rs"]
mod support;

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::cluster::{LATE_MESSAGE, has_defect, node, with_changing_masters};
use support::{
    Builder, Crowd, Fsync, Raw, Server, Shutdown, Value, eventually, is_running, now_ms,
    wait_for_replica_sync,
};

const SOON: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(50);

fn plain() -> Builder {
    Server::builder().no_module()
}

#[test]
fn servers_are_alone() {
    let (one, other) = (plain().start(), plain().start());
    one.command(["SET", "k", "v"]);
    assert!(other.command(["GET", "k"]).is_nil());
    assert_ne!(one.port(), other.port());
    assert_ne!(one.dir(), other.dir());
    assert_ne!(one.digest(), other.digest());
}

#[test]
fn parallel_starts_get_different_ports() {
    let servers: Vec<_> = thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| plain().start())).collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    for server in &servers {
        assert_eq!(server.info_int("process_id"), i64::from(server.pid()));
    }
}

#[test]
fn a_setting_reaches_the_server() {
    let server = plain()
        .config("maxmemory-policy", "noeviction")
        .config("hz", "17")
        .start();
    assert_eq!(server.command(["CONFIG", "GET", "hz"]).field("hz"), &"17");
}

#[test]
fn a_refused_start_shows_the_log() {
    let log = plain()
        .config("loadmodule", "/nowhere/missing.so")
        .start_refused();
    assert!(log.contains("/nowhere/missing.so"), "{log}");
}

#[test]
fn the_redis_crate_connects() {
    let server = plain().start();
    let mut client = server.client();
    let reply: i64 = redis::cmd("INCR").arg("n").query(&mut client).unwrap();
    assert_eq!(reply, 1);
}

#[test]
fn a_file_that_a_rewrite_left_over_is_not_taken_for_the_base_file() {
    let server = plain().aof(Fsync::Always).start();
    server.rewrite_aof();
    let base = server.aof_file(".base.");
    // The folder lists them in any order.
    for number in [0, 1, 3, 4, 5] {
        let old = base.with_file_name(format!("appendonly.aof.{number}.base.rdb"));
        std::fs::write(old, "").expect("a file");
    }
    assert_eq!(server.aof_file(".base."), base);
    assert!(base.metadata().expect("the base file").len() > 0);
}

#[test]
fn a_crash_loses_nothing_of_the_append_only_file() {
    let server = plain().aof(Fsync::Always).start();
    server.command(["SET", "k", "v"]);
    let (pid, digest) = (server.pid(), server.digest());

    server.kill9();
    assert!(!is_running(pid));
    server.restart();

    assert_ne!(server.pid(), pid);
    assert_eq!(server.digest(), digest);
    assert_eq!(server.command(["GET", "k"]), "v");
}

#[test]
fn a_crash_without_persistence_loses_everything() {
    let server = plain().start();
    server.command(["SET", "k", "v"]);
    server.crash();
    assert!(server.command(["GET", "k"]).is_nil());
}

#[test]
fn a_shutdown_saves_as_it_is_told() {
    let server = plain().rdb(true).start();
    server.command(["SET", "saved", "1"]);
    assert!(server.shutdown(Shutdown::Save).success());
    server.restart();
    server.command(["SET", "lost", "1"]);
    assert!(server.shutdown(Shutdown::NoSave).success());
    server.restart();
    server.command(["SET", "kept", "1"]);
    assert!(server.terminate().success());
    server.restart();
    assert_eq!(server.command(["EXISTS", "saved", "kept"]), 2);
    assert_eq!(server.command(["EXISTS", "lost"]), 0);
}

#[test]
fn a_replica_follows_its_master() {
    let (master, replica) = (plain().start(), plain().start());
    master.command(["SET", "before", "1"]);
    replica.replica_of(&master);
    wait_for_replica_sync(&master, &replica);
    master.command(["SET", "after", "1"]);
    wait_for_replica_sync(&master, &replica);
    assert_eq!(replica.digest(), master.digest());

    replica.promote();
    assert_eq!(replica.info("role").as_deref(), Some("master"));
}

#[test]
fn two_nodes_make_a_cluster() {
    let (one, other) = (plain().cluster(true).start(), plain().cluster(true).start());
    one.own_slots(0..=8191);
    other.own_slots(8192..=16383);
    one.meet(&other);
    one.await_cluster(2);
    other.await_cluster(2);
    // The slot of "foo" is 12182.
    other.command(["SET", "foo", "v"]);
    let reply = Raw::connect(&one).call(["GET", "foo"]);
    assert!(reply.err().starts_with("MOVED 12182 "), "{reply:?}");
}

#[test]
fn a_stopped_server_is_stopped_until_it_goes_on() {
    let server = plain().start();
    let mut client = Raw::connect(&server);
    server.stop_signal();
    client.send(["PING"]);
    assert_eq!(client.read_within(MOMENT), None);
    server.cont_signal();
    assert_eq!(client.read(), "PONG");
}

/// The time by the server, and by this machine, in milliseconds.
fn times(server: &Server) -> (i64, i64) {
    let there = now_ms(&mut Raw::connect(server));
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (there, here.as_millis() as i64)
}

#[track_caller]
fn assert_ahead(server: &Server, ms: i64) {
    let (there, here) = times(server);
    // Replies take time, and so does a restart.
    let off = (there - here) - ms;
    assert!(off.abs() < 60_000, "{off} ms off");
}

#[test]
fn a_server_goes_by_a_clock_of_its_own() {
    const HOUR: i64 = 3_600_000;
    let (ahead, behind) = (plain().clock(HOUR).start(), plain().clock(-HOUR).start());
    assert_ahead(&ahead, HOUR);
    assert_ahead(&behind, -HOUR);
    assert_ahead(&plain().start(), 0);
    for by in [-3 * HOUR, HOUR / 2, 30 * 24 * HOUR] {
        ahead.shift_clock(by);
    }
    assert_ahead(&ahead, 718 * HOUR + HOUR / 2);
    assert_ahead(&behind, -HOUR);
    // A restart keeps it.
    behind.crash();
    assert_ahead(&behind, -HOUR);
}

/// Expiries go by it, also those of the module, and what the server counts without it does not.
#[test]
fn a_clock_that_is_set_moves_deadlines_and_nothing_else() {
    const HOUR: i64 = 3_600_000;
    let server = Server::builder().clock(0).start();
    server.command(["SET", "k", "v", "PX", "1800000"]);
    server.command(["LOCK.ACQUIRE", "lock", "me", "PX", "1800000"]);
    server.shift_clock(HOUR);
    assert_eq!(server.command(["EXISTS", "k", "lock"]), 0);
    let fence = server.command(["LOCK.ACQUIRE", "lock", "me"]).int();
    let (there, _) = times(&server);
    assert!((there - fence / 1000).abs() < 60_000, "{fence} at {there}");
    // What is done at intervals goes on: nobody but the server's cron looks for this key.
    server.shift_clock(-2 * HOUR);
    server.command(["SET", "k", "v", "PX", "50"]);
    eventually(SOON, || server.command(["DBSIZE"]) == 1);
}

#[test]
#[should_panic(expected = "it goes by the machine's clock")]
fn only_a_clock_of_its_own_can_be_shifted() {
    plain().start().shift_clock(1);
}

#[test]
fn a_sentinel_watches_a_master() {
    let (master, sentinel) = (plain().start(), Server::builder().sentinel().start());
    let port = master.port().to_string();
    sentinel.command(["SENTINEL", "MONITOR", "it", "127.0.0.1", &port, "1"]);
    let address = sentinel.command(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "it"]);
    assert_eq!(address.array()[1], port.as_str());
    sentinel.crash();
    assert_eq!(
        sentinel
            .command(["SENTINEL", "CKQUORUM", "it"])
            .text()
            .get(..2),
        Some("OK")
    );
}

#[test]
fn nothing_is_left_of_a_panicking_test() {
    let seen = Mutex::new(None);
    let failing_test = || {
        let server = plain().start();
        *seen.lock().unwrap() = Some((server.pid(), server.dir().to_owned()));
        panic!("this panic is part of the test");
    };
    assert!(catch_unwind(AssertUnwindSafe(failing_test)).is_err());
    let (pid, dir) = seen.into_inner().unwrap().unwrap();
    assert!(!is_running(pid));
    assert!(!dir.exists());
}

#[test]
fn a_silent_death_of_the_server_fails_the_test() {
    let failing_test = || {
        let server = plain().start();
        let pid = server.pid();
        Raw::connect(&server).send(["DEBUG", "SEGFAULT"]);
        eventually(SOON, || !is_running(pid));
    };
    assert!(catch_unwind(failing_test).is_err());
}

/// The test runs itself in a second process, which it kills.
#[test]
fn no_server_outlives_its_test_process() {
    const ROLE: &str = "SLUICE_TEST_IS_VICTIM";
    const NAME: &str = "no_server_outlives_its_test_process";
    if std::env::var_os(ROLE).is_some() {
        // The thread that asked for the server ends, which must not be the end of the server.
        let server = thread::spawn(|| plain().start()).join().unwrap();
        println!("\nserver {}", server.pid());
        loop {
            thread::park();
        }
    }

    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let server: u32 = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("server ")?.parse().ok())
        .unwrap();
    assert!(is_running(server));

    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually(SOON, || !is_running(server));
}

#[test]
fn waiting_ends_at_its_deadline() {
    let mut looks = 0;
    eventually(SOON, || {
        looks += 1;
        looks == 3
    });
    assert_eq!(looks, 3);
    assert!(catch_unwind(|| eventually(MOMENT, || false)).is_err());
}

#[test]
fn raw_sends_and_reads_any_bytes() {
    let server = plain().start();
    let mut client = Raw::connect(&server);
    let odd: &[u8] = b"\0\r\n$5\r\n\xff";
    assert_eq!(client.call([b"SET".as_slice(), odd, odd]), "OK");
    assert_eq!(
        client.call([b"GET".as_slice(), odd]),
        Value::Bulk(odd.into())
    );
    assert_eq!(client.call(["GET", "missing"]), Value::Nil);
    assert_eq!(client.call(["STRLEN", "missing"]).int(), 0);
    assert!(
        client
            .call(["GET"])
            .err()
            .contains("wrong number of arguments")
    );
    client.send_bytes(b"PING inline\r\n");
    assert_eq!(client.read(), "inline");
    assert_eq!(client.read_within(MOMENT), None);
}

#[test]
fn raw_reads_every_kind_of_both_protocols() {
    let server = plain().start();
    let mut client = Raw::connect(&server);
    let kinds = |client: &mut Raw| {
        client.pipeline([
            ["DEBUG", "PROTOCOL", "null"],
            ["DEBUG", "PROTOCOL", "integer"],
            ["DEBUG", "PROTOCOL", "string"],
            ["DEBUG", "PROTOCOL", "verbatim"],
            ["DEBUG", "PROTOCOL", "bignum"],
            ["DEBUG", "PROTOCOL", "true"],
            ["DEBUG", "PROTOCOL", "double"],
            ["DEBUG", "PROTOCOL", "array"],
            ["DEBUG", "PROTOCOL", "set"],
            ["DEBUG", "PROTOCOL", "map"],
            ["DEBUG", "PROTOCOL", "attrib"],
        ])
    };

    let replies = kinds(&mut client);
    assert_eq!(replies[0], Value::Nil);
    assert!(replies[1].int() > 0);
    assert_eq!(replies[5], 1);
    assert_eq!(replies[9].fields().len(), 3);

    client.hello3();
    let replies = kinds(&mut client);
    assert_eq!(replies[0], Value::Nil);
    assert_eq!(replies[2], "Hello World");
    assert_eq!(replies[3].text(), "This is a verbatim\nstring");
    assert!(
        matches!(replies[4], Value::BigNumber(_)),
        "{:?}",
        replies[4]
    );
    assert_eq!(replies[5], Value::Bool(true));
    assert!(matches!(replies[6], Value::Double(number) if number > 3.0));
    assert_eq!(replies[7].array().len(), 3);
    assert!(matches!(replies[8], Value::Set(_)), "{:?}", replies[8]);
    assert!(matches!(replies[9], Value::Map(_)), "{:?}", replies[9]);
    assert!(!replies[10].is_err());
}

#[test]
fn raw_reads_push_messages() {
    let server = plain().start();
    let mut client = Raw::connect(&server);
    client.hello3();
    client.send(["SUBSCRIBE", "news"]);
    assert!(matches!(client.read(), Value::Push(_)));
    server.command(["PUBLISH", "news", "v"]);
    assert_eq!(client.read().array()[2], "v");
}

#[test]
fn raw_notices_that_it_is_disconnected() {
    let server = plain().start();
    let mut client = Raw::connect(&server);
    assert!(!client.closes_within(MOMENT));
    let id = client.id().to_string();
    server.command(["CLIENT", "KILL", "ID", &id]);
    assert!(client.closes_within(SOON));
}

#[test]
fn a_crowd_is_served_in_the_order_in_which_it_asks() {
    const SIZE: usize = 4000;
    let server = plain().start();
    let mut crowd = Crowd::connect(&server, SIZE);
    crowd.ask_in_order(
        |_| ["BLPOP", "queue", "0"],
        |asked| server.info_int("blocked_clients") == asked as i64,
    );
    assert!(crowd.replies_within(1, MOMENT).is_empty());

    let mut giver = Raw::connect(&server);
    giver.call(["RPUSH", "queue", "first"]);
    let (member, reply) = crowd.replies(1, SOON).remove(0);
    assert_eq!(
        (member, &reply.array()[1]),
        (0, &Value::Bulk(b"first".into()))
    );

    for number in 1..SIZE {
        giver.call(["RPUSH", "queue", &number.to_string()]);
    }
    for (member, reply) in crowd.replies(SIZE - 1, SOON) {
        assert_eq!(reply.array()[1], member.to_string().as_str());
    }
}

/// The test of a cluster is repeated if a node hangs by a defect of the server, and for no other reason.
#[test]
fn tests_of_failovers_are_repeated_only_for_the_defect_of_the_server() {
    for (logs_late_message, is_stopped) in [(true, true), (false, true), (true, false)] {
        let (attempts, repeats) = (Cell::new(0), Cell::new(false));
        let result = catch_unwind(AssertUnwindSafe(|| {
            with_changing_masters(
                || [node().no_module().start()],
                |[node]| {
                    attempts.set(attempts.get() + 1);
                    if attempts.get() > 1 {
                        return;
                    }
                    repeats.set(has_defect(node) && logs_late_message && is_stopped);
                    if logs_late_message {
                        node.command(["DEBUG", "LOG", LATE_MESSAGE]);
                    }
                    if is_stopped {
                        node.stop_signal();
                    }
                    panic!("the node does not answer");
                },
            );
        }));
        assert_eq!(result.is_ok(), repeats.get());
        assert_eq!(attempts.get(), 1 + usize::from(repeats.get()));
    }
}
