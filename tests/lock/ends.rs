//! A hold that ends among others: a change that the server makes at its time, wherever the lock is by then.

use std::time::{Duration, Instant};

use crate::support::{
    Builder, Fsync, Lines, Raw, SOON, Server, Shutdown, Value, ask, assert_identical, eventually,
    pair, server_and_client, settled_memory, unix_ms, wait_for_replica_sync, with_growing_lease,
};

/// Both kinds of locks that have several holders.
const WAYS: [(&str, &str); 2] = [("LOCK.ACQUIRE k", "SHARED"), ("SEM.ACQUIRE k", "LIMIT 9")];

/// Long enough to look at the lock, or move it, before the first hold ends.
const SHORT: i64 = 1500;

/// A lock with a hold of this lease (ms), between two that do not end. It does not end before the returned time.
fn hold(client: &mut Raw, (acquire, how): (&str, &str), lease: i64) -> Instant {
    let begun = Instant::now();
    for (owner, lease) in [("a", 600_000), ("b", lease), ("c", 900_000)] {
        client.must(&format!("{acquire} {owner} {how} PX {lease}"));
    }
    begun + Duration::from_millis(lease.unsigned_abs())
}

fn ended(server: &Server) -> i64 {
    server.info_int("sluice_lock_expired_leases")
}

/// Prepares something before the hold ends.
fn in_time<T>(way: (&str, &str), prepare: impl Fn(&Server, &mut Raw) -> T) -> (Server, T) {
    with_growing_lease(SHORT, |lease| {
        let (server, mut client) = server_and_client();
        hold(&mut client, way, lease);
        let prepared = prepare(&server, &mut client);
        (ended(&server) == 0).then_some((server, prepared))
    })
}

#[test]
fn clients_that_track_or_watch_the_key_hear_of_it() {
    for way in WAYS {
        let (server, (mut tracker, mut watcher)) = in_time(way, |server, _| {
            let (mut tracker, mut watcher) = (Raw::connect(server), Raw::connect(server));
            tracker.hello3();
            tracker.must("CLIENT TRACKING ON");
            tracker.must("EXISTS k");
            watcher.must("WATCH k");
            (tracker, watcher)
        });
        let push = tracker.read_within(SOON).expect("no invalidation");
        assert_eq!(push.array()[0], "invalidate");
        assert_eq!(push.array()[1].array()[0], "k");
        watcher.must("MULTI");
        watcher.must("PING");
        assert!(watcher.run("EXEC").is_nil(), "{way:?}");
        assert_eq!(ended(&server), 1);
    }
}

#[test]
fn it_ends_wherever_the_lock_has_moved() {
    for way in WAYS {
        for (moves, ends) in [
            ("RENAME k other", 1),
            ("MOVE k 3", 1),
            ("SWAPDB 0 3", 1),
            ("COPY k other", 2),
            ("COPY k other DB 3", 2),
        ] {
            let (server, _) = in_time(way, |_, client| client.must(moves));
            eventually(SOON, || ended(&server) == ends);
        }
        let (server, ()) = in_time(way, |_, client| {
            let dump = client.run("DUMP k");
            client.must("DEL k");
            let expires = (unix_ms() + 900_000).to_string();
            let words = ["RESTORE", "other", &expires].map(str::as_bytes);
            let restore = [&words[..], &[dump.bytes(), b"ABSTTL"]].concat();
            assert_eq!(client.call(restore), "OK");
        });
        eventually(SOON, || ended(&server) == 1);
    }
}

#[test]
fn it_ends_after_a_restart() {
    type Stop = fn(&Server);
    let stops: [(Builder, Stop); 2] = [
        (Server::builder().rdb(true), |server| {
            assert!(server.shutdown(Shutdown::Save).success());
        }),
        (Server::builder().aof(Fsync::Always), Server::kill9),
    ];
    for way in WAYS {
        for (builder, stop) in &stops {
            let server = with_growing_lease(SHORT, |lease| {
                let server = builder.clone().start();
                let until = hold(&mut Raw::connect(&server), way, lease);
                stop(&server);
                (Instant::now() < until).then_some(server)
            });
            server.restart();
            eventually(SOON, || ended(&server) == 1);
            assert_eq!(ask(&server, "EXISTS k"), 1);
        }
    }
}

#[test]
fn a_replica_ends_it_when_the_master_says_so_or_when_it_is_the_master() {
    for way in WAYS {
        // The replica has the hold when its master stops.
        let without_master = |stop: fn(&Server)| {
            with_growing_lease(SHORT, |lease| {
                let (master, replica) = pair();
                let until = hold(&mut Raw::connect(&master), way, lease);
                wait_for_replica_sync(&master, &replica);
                stop(&master);
                (Instant::now() < until).then_some((master, replica, lease))
            })
        };
        let (master, replica, lease) = without_master(Server::stop_signal);
        let before = replica.digest();
        // Not by its own clock.
        let end = unix_ms() + lease + 300;
        eventually(SOON, || unix_ms() > end);
        assert_eq!(replica.digest(), before);
        assert_eq!(ended(&replica), 0);
        master.cont_signal();
        eventually(SOON, || ended(&master) == 1);
        eventually(SOON, || replica.digest() != before);
        assert_identical(&master, &replica);

        let (_master, replica, _) = without_master(Server::kill9);
        assert_eq!(ended(&replica), 0);
        replica.promote();
        eventually(SOON, || ended(&replica) == 1);
        assert_eq!(ask(&replica, "EXISTS k"), 1);
    }
}

#[test]
fn locks_that_go_leave_nothing_behind() {
    for removal in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        let (_server, mut client) = server_and_client();
        let fill = |client: &mut Raw| {
            for number in 0..5000 {
                let acquire = format!("SEM.ACQUIRE key-{number}");
                let lines = ["a", "b"].map(|owner| format!("{acquire} {owner} LIMIT 2 PX 900000"));
                let lines = lines.iter().map(|line| line.split(' '));
                client.pipeline(lines);
            }
        };
        fill(&mut client);
        client.must(removal);
        let before = settled_memory(&mut client);
        fill(&mut client);
        client.must(removal);
        let after = settled_memory(&mut client);
        assert!(after < before + 200_000, "{removal}: {before} to {after}");
    }
}

#[test]
fn very_many_that_end_at_once_give_their_memory_back() {
    let script = "for i = 1, 20000 do
                      redis.call('SEM.ACQUIRE', KEYS[1], 'owner-' .. i, 'LIMIT', 30000, 'PX', ARGV[1])
                  end";
    let (server, mut client, before) = with_growing_lease(3000, |lease| {
        let (server, mut client) = server_and_client();
        client.must("SEM.ACQUIRE k stays LIMIT 30000 PX 900000");
        let before = settled_memory(&mut client);
        client.call(["EVAL", script, "1", "k", &lease.to_string()]);
        let is_large = client.run("MEMORY USAGE k").int() > 1_000_000;
        is_large.then_some((server, client, before))
    });
    eventually(SOON, || ended(&server) == 20_000);
    assert!(client.run("MEMORY USAGE k").int() < 20_000);
    let after = settled_memory(&mut client);
    assert!(after < before + 200_000, "{before} to {after}");
}

/// Acquires the lock or the semaphore `k` for many owners, whose leases all end while the script runs: so the timer does nothing in
/// between. Then the script runs `then`, with the owners up to `count` ended and `acquire` and `how` as `ARGV[1]` and `how`.
fn end_together(
    client: &mut Raw,
    (acquire, how): (&str, &str),
    (count, last): (usize, &str),
    then: &str,
) -> Value {
    let script = format!(
        "local how = {{}}
         for word in string.gmatch(ARGV[2], '%S+') do how[#how + 1] = word end
         how[#how + 1] = 'PX'
         how[#how + 1] = 2000
         for i = 1, ARGV[5] do redis.call(ARGV[1], KEYS[1], 'owner-' .. i, unpack(how)) end
         redis.call(ARGV[4], KEYS[1], ARGV[6], 'PX', 2000)
         redis.call('LOCK.ACQUIRE', KEYS[2], 'me', 'PX', 2001) -- ends last
         while redis.call('LOCK.HELD', KEYS[2], 'me') do end
         {then}"
    );
    let [release, renew] = ["RELEASE", "RENEW"].map(|word| acquire.replace("ACQUIRE", word));
    let count = count.to_string();
    client.call([
        "EVAL", &script, "2", "k", "end", acquire, how, &release, &renew, &count, last,
    ])
}

/// 20 000 holds end together, and one stays. The next command finds nobody else in the lock, although the holds are removed in
/// steps.
#[test]
fn very_many_that_have_ended_hold_nothing_at_the_next_command() {
    for (acquire, how) in [("LOCK.ACQUIRE", "SHARED"), ("SEM.ACQUIRE", "LIMIT 20001")] {
        let is_lock = acquire == "LOCK.ACQUIRE";
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        let mut subscriber = Raw::connect(&master);
        subscriber.must("SUBSCRIBE channel");
        client.must(&format!("{acquire} k stays {how} PX 900000"));
        client.must(&format!(
            "{acquire} k owner-20000 {how} PX 900000 ID last NOTIFY channel"
        ));
        let then = "
            local replies = {}
            if ARGV[1] == 'LOCK.ACQUIRE' then
                replies[1] = redis.call('LOCK.UPGRADE', KEYS[1], 'stays')
                replies[2] = #redis.call('LOCK.INFO', KEYS[1])[4]
            else
                replies[1] = redis.call('SEM.ACQUIRE', KEYS[1], 'new', 'LIMIT', 20001, 'PERMITS', 20000, 'PX', 900000)
                replies[2] = #redis.call('SEM.INFO', KEYS[1])[6]
            end
            replies[3] = redis.call(ARGV[3], KEYS[1], 'owner-19999')
            return replies";
        let replies = end_together(&mut client, (acquire, how), (19_999, "owner-20000"), then);
        let replies = replies.array();
        assert!(replies[0].int() > 0, "{acquire}");
        assert_eq!(replies[1], if is_lock { 1 } else { 2 });
        assert!(replies[2].is_nil(), "{acquire}");
        // An owner whose hold has ended may have another one before the old one is removed.
        client.must(if is_lock {
            "LOCK.DOWNGRADE k stays"
        } else {
            "SEM.RELEASE k stays"
        });
        client.must(&format!("{acquire} k owner-15000 {how} PX 900000"));
        let message = subscriber.read_within(SOON).expect("a message");
        let text = message.array()[2].text();
        assert!(
            text.starts_with("lost ") && text.ends_with(" last"),
            "{text}"
        );
        eventually(SOON, || ended(&master) == 20_001); // with that of the other key
        assert_identical(&master, &replica);
        let kind = if is_lock { "LOCK" } else { "SEM" };
        let info = client.run(&format!("{kind}.INFO k"));
        assert_eq!(info.field("holders").array().len(), 2, "{kind}");
        assert!(client.run("MEMORY USAGE k").int() < 20_000);
    }
}

/// The last owner that holds a lock releases it in the same step in which very many others have ended. The key goes at once, with all
/// of them, and each is counted and announced.
#[test]
fn very_many_that_have_ended_leave_with_the_last_hold() {
    for (acquire, how) in [("LOCK.ACQUIRE", "SHARED"), ("SEM.ACQUIRE", "LIMIT 2000")] {
        let (master, replica) = pair();
        let mut client = Raw::connect(&master);
        let mut subscriber = Raw::connect(&master);
        subscriber.must("SUBSCRIBE channel");
        client.must(&format!("{acquire} k stays {how} PX 900000"));
        client.must(&format!(
            "{acquire} k z-last {how} PX 900000 ID last NOTIFY channel"
        ));
        client.must(&format!(
            "{acquire} k z-watched {how} PX 900000 WATCHDOG MAXHOLD 2000"
        ));
        let then = "redis.call(ARGV[3], KEYS[1], 'stays') return redis.call('EXISTS', KEYS[1])";
        let exists = end_together(&mut client, (acquire, how), (998, "z-last"), then);
        assert_eq!(exists, 0, "{acquire}");
        let message = subscriber.read_within(SOON).expect("a message");
        assert!(message.array()[2].text().starts_with("lost "), "{acquire}");
        eventually(SOON, || ended(&master) == 1001); // with that of the other key
        let watched = || master.info_int("sluice_lock_watchdog_holds");
        eventually(SOON, || watched() == 0);
        assert_identical(&master, &replica);
        assert_eq!(client.run("DBSIZE"), 0);
    }
}

/// A replica copies the holds that it has, also those that have ended and that the master is about to remove.
#[test]
fn a_copy_of_a_lock_in_which_very_many_have_ended_is_the_same_on_a_replica() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("SEM.ACQUIRE k stays LIMIT 2000 PX 900000");
    let then = "
        redis.call('SEM.RENEW', KEYS[1], 'stays', 'PX', 900000)
        redis.call('COPY', KEYS[1], 'copy')
        redis.call('SEM.RELEASE', 'copy', 'stays')
        return redis.call('EXISTS', 'copy')";
    let way = ("SEM.ACQUIRE", "LIMIT 2000");
    let exists = end_together(&mut client, way, (999, "owner-1"), then);
    assert_eq!(exists, 0);
    wait_for_replica_sync(&master, &replica);
    assert_identical(&master, &replica);
    assert_eq!(ask(&replica, "EXISTS copy"), 0);
    eventually(SOON, || client.run("MEMORY USAGE k").int() < 20_000);
    assert_identical(&master, &replica);
}
