//! NOTIFY: requests that wait without blocking their clients, the messages that are published for them, and the notices of
//! holds that are lost. CANCEL takes requests out of queues.

use crate::support::lock::fence;
use crate::support::{
    Lines, Raw, SOON, SYNTAX, Server, Value, WRONGTYPE, ask, await_waiting, eventually, pair,
    served, server_and_client, wait_for_replica_sync, waiter, waiting,
};
use std::time::{Duration, Instant};

/// A subscriber of one channel.
struct Subscriber(Raw);

impl Subscriber {
    fn of(server: &Server, channel: &str) -> Self {
        let mut client = Raw::connect(server);
        client.must(&format!("SUBSCRIBE {channel}"));
        Self(client)
    }

    /// The next message.
    #[track_caller]
    fn next(&mut self) -> String {
        let message = self.0.read_within(SOON).expect("a message comes");
        message.array()[2].text().to_owned()
    }

    /// Panics unless this is the next message.
    #[track_caller]
    fn hears(&mut self, what: &str, fence: i64, id: &str) {
        assert_eq!(self.next(), format!("{what} {fence} {id}"));
    }

    /// The fence that the next message grants to a request.
    #[track_caller]
    fn granted(&mut self, id: &str) -> i64 {
        let message = self.next();
        let words: Vec<&str> = message.split(' ').collect();
        assert_eq!((words[0], words[2]), ("granted", id), "{message}");
        words[1].parse().expect("a fence")
    }

    /// Panics if any other message has been published before `marker`, which `client` publishes now.
    #[track_caller]
    fn hears_no_more(&mut self, client: &mut Raw) {
        client.must("PUBLISH channel marker");
        assert_eq!(self.next(), "marker");
    }
}

fn start() -> (Server, Raw, Subscriber) {
    let (server, client) = server_and_client();
    let subscriber = Subscriber::of(&server, "channel");
    (server, client, subscriber)
}

// Waiting

#[test]
fn a_notified_request_waits_and_its_client_goes_on() {
    let (server, mut client, mut subscriber) = start();
    let first = fence(&client.run("LOCK.ACQUIRE k a"));
    assert!(
        client
            .run("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    assert_eq!(client.run("PING"), "PONG");
    assert_eq!(waiting(&server), 1);
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("waiters").array()[0].field("owner"), &"b");
    assert_eq!(client.run("LOCK.RELEASE k a"), 0);
    let granted = subscriber.granted("one");
    assert!(granted > first);
    assert_eq!(client.run("LOCK.HELD k b"), granted);
    // The message may be lost: the request returns what it was granted.
    assert_eq!(
        client.run("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel"),
        granted
    );
    assert_eq!(client.run("LOCK.RELEASE k b"), 0);
    subscriber.hears_no_more(&mut client);
}

#[test]
fn a_fence_that_is_given_at_once_is_not_published() {
    let (_server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a BLOCK 0 ID one NOTIFY channel"));
    fence(&client.run("SEM.ACQUIRE s a LIMIT 1 ID one NOTIFY channel"));
    // Without BLOCK nothing waits.
    assert!(
        client
            .run("LOCK.ACQUIRE k b ID two NOTIFY channel")
            .is_nil()
    );
    assert_eq!(client.run("LOCK.RELEASE k a"), 0);
    assert_eq!(client.run("EXISTS k"), 0);
    subscriber.hears_no_more(&mut client);
}

#[test]
fn blocked_and_notified_requests_stand_in_one_queue() {
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    let mut second = waiter(&server, "LOCK.ACQUIRE k b BLOCK 0");
    assert!(
        client
            .run("LOCK.ACQUIRE k c BLOCK 0 ID c NOTIFY channel")
            .is_nil()
    );
    let mut fourth = waiter(&server, "LOCK.ACQUIRE k d BLOCK 0");
    let mut last = 0;
    for owner in ["a", "b", "c", "d"] {
        assert_eq!(client.run(&format!("LOCK.RELEASE k {owner}")), 0);
        let given = match owner {
            "a" => fence(&served(&mut second)),
            "b" => subscriber.granted("c"),
            "c" => fence(&served(&mut fourth)),
            _ => break,
        };
        assert!(given > last);
        last = given;
    }
    assert_eq!(client.run("EXISTS k"), 0);
}

#[test]
fn the_time_of_a_notified_request_ends() {
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    assert!(
        client
            .run("LOCK.ACQUIRE k b BLOCK 50 ID one NOTIFY channel")
            .is_nil()
    );
    subscriber.hears("timeout", 0, "one");
    assert_eq!(waiting(&server), 0);
    assert_eq!(server.info_int("sluice_lock_timeouts"), 1);
}

#[test]
fn a_request_for_several_keys_is_granted_with_the_first_fence() {
    let (_server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE a holder"));
    let line = "LOCK.MACQUIRE 2 b a me BLOCK 0 ID one NOTIFY channel";
    assert!(client.run(line).is_nil());
    client.run("LOCK.RELEASE a holder");
    let first = subscriber.granted("one");
    let fences = client.run(line);
    assert_eq!(fences.array()[0], first);
    assert_eq!(fences.array().len(), 2);

    client.must("SEM.ACQUIRE s holder LIMIT 1");
    let line = "SEM.MACQUIRE 2 s 1 t 1 me BLOCK 0 ID one NOTIFY channel";
    assert!(client.run(line).is_nil());
    client.run("SEM.RELEASE s holder");
    let first = subscriber.granted("one");
    assert_eq!(client.run(line).array()[0], first);
}

#[test]
fn a_request_leaves_the_queue_with_its_connection() {
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    let mut gone = Raw::connect(&server);
    for number in 0..300 {
        let line = format!("LOCK.ACQUIRE k o{number} BLOCK 0 ID {number} NOTIFY channel");
        assert!(gone.run(&line).is_nil());
    }
    let mut next = waiter(&server, "LOCK.ACQUIRE k next BLOCK 0");
    drop(gone);
    await_waiting(&server, 1);
    client.run("LOCK.RELEASE k a");
    fence(&served(&mut next));
    subscriber.hears_no_more(&mut client);
}

#[test]
fn a_repetition_keeps_its_place_and_binds_the_request_to_its_connection() {
    let line = |block: u64| format!("LOCK.ACQUIRE k b BLOCK {block} ID one NOTIFY channel");
    // If a busy machine takes longer than the first request waits, it waits longer.
    let repeated = |block| {
        let (server, mut client, subscriber) = start();
        fence(&client.run("LOCK.ACQUIRE k a PX 600000"));
        let mut first = Raw::connect(&server);
        let start = Instant::now();
        assert!(first.run(&line(block)).is_nil());
        let behind = waiter(&server, "LOCK.ACQUIRE k c BLOCK 0");
        // Without a limit from now on.
        assert!(client.run(&line(0)).is_nil());
        drop(first);
        let left = Duration::from_millis(block).checked_sub(start.elapsed())?;
        std::thread::sleep(left + Duration::from_millis(50));
        Some((server, client, subscriber, behind))
    };
    let (server, mut client, mut subscriber, mut behind) = [100, 1000, 10_000]
        .into_iter()
        .find_map(repeated)
        .expect("repeated in time");
    assert_eq!(waiting(&server), 2);
    // A blocked client takes the place, and gives it back to a notified one.
    let mut blocked = Raw::connect(&server);
    blocked.ask("LOCK.ACQUIRE k b BLOCK 0 ID one");
    eventually(SOON, || server.info_int("blocked_clients") == 2);
    assert!(client.run(&line(0)).is_nil());
    assert!(served(&mut blocked).is_nil());
    client.run("LOCK.RELEASE k a");
    subscriber.granted("one");
    client.run("LOCK.RELEASE k b");
    fence(&served(&mut behind));
    subscriber.hears_no_more(&mut client);
}

#[test]
fn a_notified_request_closes_no_cycle() {
    let (_server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    fence(&client.run("LOCK.ACQUIRE l b"));
    assert!(
        client
            .run("LOCK.ACQUIRE l a BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    let reply = client.run("LOCK.ACQUIRE k b BLOCK 0 ID two NOTIFY channel");
    assert_eq!(
        reply.err(),
        "DEADLOCK waiting for this lock would never end"
    );
    client.run("LOCK.RELEASE l b");
    subscriber.granted("one");
}

#[test]
fn notified_requests_count_among_those_that_may_wait() {
    let (_server, mut client, _subscriber) = start();
    client.must("CONFIG SET sluice.lock-max-waiters 1");
    fence(&client.run("LOCK.ACQUIRE k a"));
    assert!(
        client
            .run("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    let reply = client.run("LOCK.ACQUIRE k c BLOCK 0 ID two NOTIFY channel");
    assert_eq!(reply.err(), "ERR too many waiting clients");
    let reply = client.run("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel");
    assert!(reply.is_nil(), "a repetition is no other request");
}

#[test]
fn where_no_client_may_block_nothing_waits() {
    let (server, mut client, _subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    client.must("MULTI");
    client.must("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel");
    assert!(client.must("EXEC").array()[0].is_nil());
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'BLOCK', '0', 'ID', 'one', 'NOTIFY', 'channel')";
    assert!(client.call(["EVAL", script, "1", "k"]).is_nil());
    assert_eq!(waiting(&server), 0);
    // A hold that a script acquires has its notice all the same.
    let mut subscriber = Subscriber::of(&server, "channel");
    client.run("LOCK.RELEASE k a");
    let given = client.call(["EVAL", script, "1", "k"]).int();
    client.run("DEL k");
    subscriber.hears("lost", given, "one");
}

#[test]
fn a_subscribed_client_is_told_on_its_own_connection() {
    let (server, mut client, _subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    let mut own = Raw::connect(&server);
    own.hello3();
    own.ask("SUBSCRIBE own");
    own.read();
    own.ask("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY own");
    assert!(format!("{:?}", own.read()).contains("nil"));
    assert_eq!(waiting(&server), 1);
    client.run("LOCK.RELEASE k a");
    let message = format!("{:?}", own.read_within(SOON).expect("a message"));
    assert!(message.contains("granted "), "{message}");
}

#[test]
fn a_key_of_another_type_moves_the_request() {
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    assert!(
        client
            .run("LOCK.ACQUIRE k b BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    client.run("SET k value");
    subscriber.hears("moved", 0, "one");
    assert_eq!(waiting(&server), 0);
}

/// The client waits for the first key. The other keys are held, too.
#[test]
fn any_key_of_another_type_moves_a_request_for_several() {
    let (server, mut client, mut subscriber) = start();
    for (family, keys, other) in [
        ("LOCK", "3 a b c", "SEM.ACQUIRE other x LIMIT 1"),
        ("SEM", "3 a 1 b 1 c 1", "LOCK.ACQUIRE other x"),
    ] {
        for key in ["a", "b", "c"] {
            for line in [format!("SET {key} value"), format!("RENAME other {key}")] {
                client.run(&format!("{family}.MACQUIRE {keys} holder PX 3600000"));
                client.run(other);
                let notified =
                    format!("{family}.MACQUIRE {keys} one BLOCK 0 ID one NOTIFY channel");
                assert!(client.run(&notified).is_nil());
                let mut blocked = waiter(&server, &format!("{family}.MACQUIRE {keys} two BLOCK 0"));
                client.run(&line);
                subscriber.hears("moved", 0, "one");
                assert_eq!(served(&mut blocked).err(), WRONGTYPE, "{line}");
                assert_eq!(waiting(&server), 0);
                client.run("FLUSHALL");
            }
        }
    }
}

#[test]
fn a_demotion_moves_the_requests_and_forgets_the_notices() {
    let (old, new) = pair();
    let mut subscriber = Subscriber::of(&old, "channel");
    let mut client = Raw::connect(&old);
    fence(&client.run("LOCK.ACQUIRE k a PX 600000 ID one NOTIFY channel"));
    assert!(
        client
            .run("LOCK.ACQUIRE k b BLOCK 0 ID two NOTIFY channel")
            .is_nil()
    );
    wait_for_replica_sync(&old, &new);
    new.promote();
    old.replica_of(&new);
    subscriber.hears("moved", 0, "two");
    assert_eq!(waiting(&old), 0);
    let mut there = Subscriber::of(&new, "channel");
    assert_eq!(ask(&new, "DEL k"), 1);
    let mut control = Raw::connect(&new);
    there.hears_no_more(&mut control);
    // The request is repeated there.
    fence(&control.run("LOCK.ACQUIRE k b BLOCK 0 ID two NOTIFY channel"));
}

// CANCEL

#[test]
fn cancel_takes_requests_out_of_the_queues() {
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k a"));
    fence(&client.run("LOCK.ACQUIRE l a"));
    assert_eq!(client.run("LOCK.CANCEL k one"), 0);
    assert!(
        client
            .run("LOCK.MACQUIRE 2 k l b BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    let mut blocked = waiter(&server, "LOCK.ACQUIRE k c BLOCK 0 ID one");
    let mut behind = waiter(&server, "LOCK.ACQUIRE l d BLOCK 0");
    let mut other = waiter(&server, "LOCK.ACQUIRE k e BLOCK 0 ID two");
    client.run("LOCK.RELEASE l a");
    assert_eq!(
        waiting(&server),
        4,
        "l is free, but the request for both is ahead"
    );
    assert_eq!(client.run("LOCK.CANCEL k one"), 1);
    assert!(served(&mut blocked).is_nil());
    fence(&served(&mut behind));
    assert_eq!(client.run("LOCK.CANCEL k one"), 0);
    client.run("LOCK.RELEASE k a");
    fence(&served(&mut other));
    subscriber.hears_no_more(&mut client);
}

#[test]
fn cancel_is_for_one_type() {
    let (server, mut client, _subscriber) = start();
    fence(&client.run("SEM.ACQUIRE s a LIMIT 1"));
    assert!(
        client
            .run("SEM.ACQUIRE s b LIMIT 1 BLOCK 0 ID one NOTIFY channel")
            .is_nil()
    );
    assert_eq!(client.run("LOCK.CANCEL s one").err(), WRONGTYPE);
    assert_eq!(waiting(&server), 1);
    assert_eq!(client.run("SEM.CANCEL s one"), 1);
    assert_eq!(waiting(&server), 0);
    let long = "x".repeat(129);
    let reply = client.run(&format!("SEM.CANCEL s {long}"));
    assert_eq!(reply.err(), "ERR request-id must be between 1 and 128");
}

// Lost holds

#[test]
fn a_lost_hold_is_published_once_for_each_key() {
    let (_server, mut client, mut subscriber) = start();
    for (line, is_lost) in [
        ("DEL k l", true),
        ("UNLINK k l", true),
        ("FLUSHDB", true),
        ("FLUSHALL ASYNC", true),
        ("LOCK.MRELEASE 2 k l me", false),
        ("LOCK.MRELEASE 2 k l me ALL ID two", false),
    ] {
        let fences = client.must("LOCK.MACQUIRE 2 k l me ID one NOTIFY channel");
        client.must(line);
        if is_lost {
            let mut messages = [subscriber.next(), subscriber.next()];
            messages.sort();
            let [first, second] = [&fences.array()[0], &fences.array()[1]];
            let expected = [
                format!("lost {} one", first.int()),
                format!("lost {} one", second.int()),
            ];
            assert_eq!(messages, expected, "{line}");
        }
        subscriber.hears_no_more(&mut client);
    }
}

#[test]
fn a_hold_is_lost_with_its_lease() {
    let (_server, mut client, mut subscriber) = start();
    client.must("CONFIG SET hz 1");
    let given = fence(&client.run("LOCK.ACQUIRE k me PX 50 ID one NOTIFY channel"));
    subscriber.hears("lost", given, "one");
    // Among others that hold on.
    client.must("SEM.ACQUIRE s other LIMIT 2");
    let given = fence(&client.run("SEM.ACQUIRE s me LIMIT 2 PX 50 ID one NOTIFY channel"));
    subscriber.hears("lost", given, "one");
    // A renewed one is lost later, and EXPIRE ends it sooner.
    let replies = client.transact([
        "LOCK.ACQUIRE k me PX 50 ID one NOTIFY channel",
        "LOCK.RENEW k me PX 600000",
    ]);
    let given = fence(&replies[0]);
    std::thread::sleep(Duration::from_millis(100));
    subscriber.hears_no_more(&mut client);
    client.must("PEXPIRE k 50");
    subscriber.hears("lost", given, "one");
}

/// The server does not remove expired keys by itself here, so only the module can notice the end in time.
#[test]
fn a_hold_that_was_shortened_is_lost_at_its_new_end() {
    const LONG: &str = "PX 86400000 ID one NOTIFY channel";
    let (server, mut client, mut subscriber) = start();
    client.must("DEBUG SET-ACTIVE-EXPIRE 0");
    for (acquire, shorten) in [
        ("LOCK.ACQUIRE k me", "LOCK.RENEW k me PX 50"),
        ("LOCK.ACQUIRE k me", "PEXPIRE k 50"),
        ("LOCK.ACQUIRE k me SHARED", "LOCK.RENEW k me PX 50"),
        ("LOCK.ACQUIRE k me WATCHDOG", "LOCK.RENEW k me PX 50"),
        ("LOCK.ACQUIRE k me WATCHDOG", "PEXPIRE k 50"),
        ("LOCK.MACQUIRE 1 k me", "LOCK.RENEW k me PX 50"),
        ("LOCK.MACQUIRE 1 k me", "PEXPIRE k 50"),
        ("SEM.ACQUIRE k me LIMIT 2", "SEM.RENEW k me PX 50"),
        ("SEM.ACQUIRE k me LIMIT 2", "PEXPIRE k 50"),
        ("SEM.MACQUIRE 1 k 2 me", "SEM.RENEW k me PX 50"),
    ] {
        let mut holder = Raw::connect(&server);
        let given = match holder.must(&format!("{acquire} {LONG}")) {
            Value::Array(fences) => fence(&fences[0]),
            given => fence(&given),
        };
        if acquire.contains("WATCHDOG") && shorten.contains("RENEW") {
            // The server renews the hold until its connection closes.
            let linger = format!("{acquire} LINGER {LONG}");
            assert_eq!(holder.run(&linger), given);
            drop(holder);
            eventually(SOON, || server.info_int("sluice_lock_watchdog_holds") == 0);
        }
        client.must(shorten);
        subscriber.hears("lost", given, "one");
        assert_eq!(client.run("EXISTS k"), 0, "{acquire}, {shorten}");
    }
    // Among others, of which one holds on.
    for owner in ["a", "b", "c"] {
        client.must(&format!("SEM.ACQUIRE s {owner} LIMIT 3 {LONG}"));
    }
    for owner in ["a", "b"] {
        let given = fence(&client.run(&format!("SEM.RENEW s {owner} PX 50")));
        subscriber.hears("lost", given, "one");
    }
    // A shared hold that was exclusive, and that has come to another key.
    let given = fence(&client.run(&format!("LOCK.ACQUIRE k me {LONG}")));
    client.must("LOCK.DOWNGRADE k me");
    client.must("RENAME k l");
    client.must("LOCK.RENEW l me PX 50");
    subscriber.hears("lost", given, "one");
    // One that was shortened and prolonged again.
    let given = fence(&client.run(&format!("LOCK.ACQUIRE k me {LONG}")));
    client.must("MULTI");
    client.must("LOCK.RENEW k me PX 50");
    client.must("LOCK.ACQUIRE k me PX 86400000");
    client.must("EXEC");
    std::thread::sleep(Duration::from_millis(100));
    subscriber.hears_no_more(&mut client);
    client.must("PEXPIRE k 50");
    subscriber.hears("lost", given, "one");
}

#[test]
fn a_notice_follows_its_key() {
    let (_server, mut client, mut subscriber) = start();
    let given = fence(&client.run("LOCK.ACQUIRE k me ID one NOTIFY channel"));
    for line in [
        "RENAME k l",
        "MOVE l 1",
        "SWAPDB 0 1",
        "COPY l copy",
        "DEL copy",
        "RENAME l k",
        "PERSIST k",
    ] {
        client.must(line);
    }
    subscriber.hears_no_more(&mut client);
    client.must("SET k value");
    subscriber.hears("lost", given, "one");
    // A key that is renamed onto a lock takes its place.
    let given = fence(&client.run("LOCK.ACQUIRE l me ID two NOTIFY channel"));
    client.must("RENAME k l");
    subscriber.hears("lost", given, "two");
}

#[test]
fn a_notice_has_the_id_and_the_channel_that_the_owner_named_last() {
    let (server, mut client, mut subscriber) = start();
    let mut other = Subscriber::of(&server, "other");
    fence(&client.run("LOCK.ACQUIRE k me SHARED ID one NOTIFY channel"));
    fence(&client.run("LOCK.ACQUIRE k me SHARED ID two NOTIFY other"));
    fence(&client.run("LOCK.ACQUIRE k me SHARED ID three"));
    let given = fence(&client.run("LOCK.UPGRADE k me"));
    assert_eq!(client.run("LOCK.RELEASE k me"), 2);
    client.run("DEL k");
    other.hears("lost", given, "two");
    subscriber.hears_no_more(&mut client);
}

#[test]
fn a_closed_watchdog_connection_loses_its_holds() {
    let (server, mut client, mut subscriber) = start();
    let mut holder = Raw::connect(&server);
    let given = fence(&holder.run("LOCK.ACQUIRE k me WATCHDOG ID one NOTIFY channel"));
    drop(holder);
    subscriber.hears("lost", given, "one");
    assert_eq!(client.run("EXISTS k"), 0);
}

// Rules

#[test]
fn notify_needs_an_id_and_a_channel_of_1_to_1024_bytes() {
    let (_server, mut client, _subscriber) = start();
    let reply = client.run("LOCK.ACQUIRE k me BLOCK 0 NOTIFY channel");
    assert_eq!(reply.err(), SYNTAX);
    let too_long = "c".repeat(1025);
    for channel in ["", &too_long] {
        let reply = client.call(["LOCK.ACQUIRE", "k", "me", "ID", "one", "NOTIFY", channel]);
        assert_eq!(reply.err(), "ERR NOTIFY must be between 1 and 1024");
    }
    fence(&client.call([
        "LOCK.ACQUIRE",
        "k",
        "me",
        "ID",
        "one",
        "NOTIFY",
        &too_long[1..],
    ]));
}

#[test]
fn the_caller_needs_the_permission_for_the_channel() {
    let (server, mut client, _subscriber) = start();
    client.must("ACL SETUSER app on >pw ~* +@all resetchannels &own:*");
    client.must("LOCK.ACQUIRE held other");
    let mut app = Raw::connect(&server);
    app.must("AUTH app pw");
    let script =
        "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'me', 'ID', 'one', 'NOTIFY', ARGV[1])";
    for (channel, is_allowed) in [("own:1", true), ("other", false)] {
        for key in ["free", "held"] {
            let line = format!("LOCK.ACQUIRE {key} me BLOCK 0 ID one NOTIFY {channel}");
            let many = format!("SEM.MACQUIRE 1 sem 9 me ID one NOTIFY {channel}");
            for reply in [
                app.run(&line),
                app.run(&many),
                app.call(["EVAL", script, "1", key, channel]),
            ] {
                let is_refused = reply.is_err();
                assert_eq!(!is_refused, is_allowed, "{line}: {reply:?}");
                if is_refused {
                    assert_eq!(reply.err(), "NOPERM No permissions to access a channel");
                }
            }
        }
    }
    let log = client.must("ACL LOG 1").array()[0].clone();
    for (field, expected) in [
        ("reason", "channel"),
        ("object", "other"),
        ("username", "app"),
    ] {
        assert_eq!(log.field(field), &expected, "{log:?}");
    }
}

/// Each is served in order.
#[test]
fn thousands_of_requests_wait_on_one_connection() {
    const REQUESTS: usize = 10_000;
    let (server, mut client, mut subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k holder PX 600000"));
    let mut shared = Raw::connect(&server);
    let requests = (0..REQUESTS).map(|number| {
        let line = format!("LOCK.ACQUIRE k o{number} PX 600000 BLOCK 0 ID {number} NOTIFY channel");
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    });
    let replies = shared.pipeline(requests);
    assert!(replies.iter().all(Value::is_nil));
    assert_eq!(waiting(&server), REQUESTS as i64);
    client.run("LOCK.RELEASE k holder");
    let mut last = 0;
    for number in 0..REQUESTS {
        let granted = subscriber.granted(&number.to_string());
        assert!(granted > last);
        last = granted;
        shared.ask(&format!("LOCK.RELEASE k o{number}"));
    }
    eventually(SOON, || waiting(&server) == 0);
}

/// A client hears of its hold by a repetition of the request, if its subscriber has missed the message.
#[test]
fn a_subscriber_that_was_killed_and_comes_back_leaves_nothing_stuck() {
    const REQUESTS: usize = 100;
    let (server, mut client, subscriber) = start();
    fence(&client.run("LOCK.ACQUIRE k holder PX 600000"));
    let mut shared = Raw::connect(&server);
    let line = |number: usize| {
        format!("LOCK.ACQUIRE k o{number} PX 600000 BLOCK 0 ID i{number} NOTIFY channel")
    };
    for number in 0..REQUESTS {
        assert!(shared.run(&line(number)).is_nil());
    }
    // The messages of the first half are lost.
    client.must("CLIENT KILL TYPE pubsub");
    drop(subscriber);
    client.run("LOCK.RELEASE k holder");
    let mut last = 0;
    for number in 0..REQUESTS / 2 {
        let mut granted = 0;
        eventually(SOON, || {
            let reply = shared.run(&line(number));
            granted = if reply.is_nil() { 0 } else { fence(&reply) };
            granted > 0
        });
        assert!(granted > last);
        last = granted;
        assert_eq!(fence(&shared.run(&line(number))), granted, "again");
        assert_eq!(shared.run(&format!("LOCK.RELEASE k o{number}")), 0);
    }
    // Whoever is next holds the lock by now, and has heard nothing of it.
    let next = REQUESTS / 2;
    eventually(SOON, || {
        !shared.run(&format!("LOCK.HELD k o{next}")).is_nil()
    });
    let mut subscriber = Subscriber::of(&server, "channel");
    assert!(fence(&shared.run(&line(next))) > last);
    for number in next + 1..REQUESTS {
        assert_eq!(shared.run(&format!("LOCK.RELEASE k o{}", number - 1)), 0);
        let granted = subscriber.granted(&format!("i{number}"));
        assert!(granted > last);
        last = granted;
    }
    assert_eq!(shared.run(&format!("LOCK.RELEASE k o{}", REQUESTS - 1)), 0);
    assert_eq!(waiting(&server), 0);
    assert_eq!(client.run("EXISTS k"), 0);
}

/// The client that asked and the subscriber share one lost connection, as those of many clients do.
#[test]
fn a_client_whose_connections_were_both_killed_repeats_its_requests() {
    let (server, mut client, subscriber) = start();
    let held = fence(&client.run("LOCK.ACQUIRE k holder PX 600000"));
    let line = "LOCK.ACQUIRE k me PX 600000 BLOCK 0 ID i NOTIFY channel";
    let mut shared = Raw::connect(&server);
    assert!(shared.run(line).is_nil());
    drop((shared, subscriber));
    eventually(SOON, || waiting(&server) == 0);
    client.run("LOCK.RELEASE k holder");
    let mut shared = Raw::connect(&server);
    let mut subscriber = Subscriber::of(&server, "channel");
    let granted = fence(&shared.run(line));
    assert!(granted > held);
    client.run("DEL k");
    subscriber.hears("lost", granted, "i");
}

/// The lease ends while the server is busy, and a flush is the next command: nobody has seen the end yet.
#[test]
fn a_hold_that_ended_before_a_flush_is_lost() {
    for acquire in [
        "LOCK.ACQUIRE k o SHARED",
        "LOCK.ACQUIRE k o",
        "SEM.ACQUIRE k o LIMIT 5",
    ] {
        for flush in ["FLUSHALL", "FLUSHDB"] {
            let (server, mut client) = server_and_client();
            let mut subscriber = Raw::connect(&server);
            subscriber.must("SUBSCRIBE channel");
            client.must(&format!("{acquire} PX 100 ID request NOTIFY channel"));
            client.run_all(["DEBUG SLEEP 0.2", flush]);
            let message = subscriber.read_within(SOON).expect("a message");
            let text = message.array()[2].text();
            assert!(
                text.starts_with("lost ") && text.ends_with(" request"),
                "{acquire}, {flush}: {text}"
            );
        }
    }
}
