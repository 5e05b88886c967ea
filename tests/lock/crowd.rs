//! Thousands of clients that wait for one lock: all are served in order, and nothing is left of them.

use std::time::{Duration, Instant};

use crate::support::lock::{DEADLOCK, fence, holders};
use crate::support::{
    Crowd, Lines, Raw, SOON, Server, await_waiting, eventually, field_of, waiting,
};

const SIZE: usize = 2000;

/// A busy machine needs a while for so many.
const LONG: Duration = Duration::from_secs(30);

fn owner(index: usize) -> String {
    format!("owner{index}")
}

fn crowded_server() -> Server {
    Server::builder().config("maxclients", "10000").start()
}

/// Waits until the server needs no more memory than `before`, give or take what it keeps for the next clients.
#[track_caller]
fn await_memory(server: &Server, before: i64) {
    // With I/O threads it keeps a little more than half a mebibyte.
    let slack = 768 * 1024;
    let mut now = 0;
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        now = server.info_int("used_memory");
        if now <= before + slack {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{now} bytes are in use, and {before} were");
}

#[test]
fn a_crowd_is_served_in_order_and_leaves_no_memory_behind() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    client.run("LOCK.ACQUIRE warm up");
    client.run("LOCK.RELEASE warm up");
    let before = server.info_int("used_memory");

    let mut crowd = Crowd::connect(&server, SIZE);
    client.run("LOCK.ACQUIRE k first PX 600000");
    crowd.ask_in_order(
        |index| {
            let words = format!("LOCK.ACQUIRE k {} BLOCK 0 PX 600000", owner(index));
            words.split(' ').map(String::from).collect::<Vec<_>>()
        },
        |asked| waiting(&server) == asked as i64,
    );
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("waiters").array().len(), SIZE);

    client.run("LOCK.RELEASE k first");
    let mut last = 0;
    for index in 0..SIZE {
        let given = fence(&crowd.member(index).read());
        assert!(given > last, "{given} must be larger than {last}");
        last = given;
        let left = client.call(["LOCK.RELEASE", "k", &owner(index)]);
        assert_eq!(left, 0, "{}", owner(index));
    }
    assert_eq!(client.run("EXISTS k"), 0);
    let counters = client.run("INFO sluice");
    assert_eq!(field_of(&counters, "sluice_lock_waiting"), 0);
    assert_eq!(field_of(&counters, "sluice_lock_handoffs"), SIZE as i64);
    assert_eq!(field_of(&counters, "sluice_lock_waited"), SIZE as i64);
    drop(crowd);
    await_memory(&server, before);
}

#[test]
fn a_crowd_that_goes_leaves_the_queue_and_no_memory_behind() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    client.run("LOCK.MACQUIRE 2 k j first PX 600000");
    let before = server.info_int("used_memory");
    // The server takes four milliseconds for each to give back what it keeps for blocked clients.
    let size = SIZE / 4;
    let mut crowd = Crowd::connect(&server, size);
    crowd.ask_in_order(
        |index| {
            let owner = owner(index);
            let line = match index % 4 {
                0 => format!("LOCK.ACQUIRE k {owner} BLOCK 600000"),
                1 => format!("LOCK.ACQUIRE k {owner} SHARED BLOCK 0 WATCHDOG ID {owner}"),
                2 => format!("LOCK.MACQUIRE 3 k j {owner} {owner} BLOCK 600000"),
                _ => format!("LOCK.ACQUIRE j {owner} BLOCK 0"),
            };
            line.split(' ').map(String::from).collect::<Vec<_>>()
        },
        |asked| waiting(&server) == asked as i64,
    );
    let gone = Instant::now();
    drop(crowd);
    await_waiting(&server, 0);
    assert!(gone.elapsed() < SOON, "{:?}", gone.elapsed());
    assert_eq!(client.run("LOCK.MRELEASE 2 k j first").array().len(), 2);
    assert_eq!(client.run("DBSIZE"), 0);
    assert_eq!(server.info_int("sluice_lock_handoffs"), 0);
    await_memory(&server, before);
}

#[test]
fn thousands_of_waiting_clients_receive_nil_at_their_timeout() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    client.run("SEM.ACQUIRE s first LIMIT 1 PX 600000");
    let size = 1000;
    let mut crowd = Crowd::connect(&server, size);
    crowd.ask_in_order(
        |index| {
            let words = format!("SEM.ACQUIRE s {} LIMIT 1 BLOCK 4000", owner(index));
            words.split(' ').map(String::from).collect::<Vec<_>>()
        },
        |_| true,
    );
    let replies = crowd.replies(size, LONG);
    assert!(replies.iter().all(|(_, reply)| reply.is_nil()));
    assert_eq!(waiting(&server), 0);
    assert_eq!(server.info_int("sluice_lock_timeouts"), size as i64);
}

#[test]
fn one_release_lets_a_crowd_of_shared_waiters_in() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let size = 2000;
    let mut crowd = Crowd::connect(&server, size);
    client.run("LOCK.ACQUIRE k first PX 600000");
    crowd.ask_in_order(
        |index| {
            let owner = owner(index);
            ["LOCK.ACQUIRE", "k", &owner, "SHARED", "BLOCK", "0"].map(String::from)
        },
        |asked| waiting(&server) == asked as i64,
    );
    client.run("LOCK.RELEASE k first");
    let mut replies = crowd.replies(size, LONG);
    replies.sort_unstable_by_key(|(member, _)| *member);
    let fences: Vec<_> = replies.iter().map(|(_, reply)| fence(reply)).collect();
    assert!(fences.is_sorted_by(|one, next| one < next));
    let info = client.run("LOCK.INFO k");
    assert_eq!(info.field("holders").array().len(), size);
    // With the last of them the lock goes.
    for index in 0..size {
        client.send(["LOCK.RELEASE", "k", &owner(index)]);
    }
    for _ in 0..size {
        assert_eq!(client.read(), 0);
    }
    eventually(SOON, || client.run("EXISTS k") == 0);
}

/// How long the server's main thread has run, in seconds.
#[track_caller]
fn busy(client: &mut Raw) -> f64 {
    let info = client.must("INFO cpu");
    let of = |name: &str| -> f64 {
        let line = info.text().lines().find_map(|line| line.strip_prefix(name));
        line.expect("INFO has it")
            .parse()
            .expect("a number of seconds")
    };
    of("used_cpu_user_main_thread:") + of("used_cpu_sys_main_thread:")
}

#[test]
fn a_crowd_that_waits_for_several_locks_does_not_hold_up_the_server() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    client.run("LOCK.MACQUIRE 2 k j first PX 600000");
    let size = 1000;
    let mut crowd = Crowd::connect(&server, size);
    // The time that the server itself needs: Redis with I/O threads waits for one of them with every client that blocks.
    let start = busy(&mut client);
    for index in 0..size {
        let owner = owner(index);
        crowd
            .member(index)
            .send(["LOCK.MACQUIRE", "2", "k", "j", &owner, "BLOCK", "0"]);
        // One at a time, so that this gives up as soon as the server does.
        client.ask("PING");
        let answer = client.read_within(LONG);
        assert!(answer.is_some(), "no answer with {index} waiters");
        let taken = busy(&mut client) - start;
        assert!(taken < SOON.as_secs_f64(), "{index} waiters took {taken} s");
        crowd.await_execution(index);
    }
    await_waiting(&server, size as i64);

    // They are served in order, each with both.
    let start = Instant::now();
    client.run("LOCK.MRELEASE 2 k j first");
    for index in 0..size {
        let fences = crowd.member(index).read();
        assert_eq!(fences.array().len(), 2);
        client.call(["LOCK.MRELEASE", "2", "k", "j", &owner(index)]);
    }
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    assert_eq!(client.run("DBSIZE"), 0);
}

#[test]
fn a_crowd_of_holders_that_wait_for_each_other_is_found_and_only_the_last_is_refused() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let size = 600;
    let half = size / 2;
    let mut crowd = Crowd::connect(&server, size);
    for index in 0..size {
        let (semaphore, owner) = (format!("s{}", index % 2), owner(index));
        let limit = half.to_string();
        let words = [
            "SEM.ACQUIRE",
            &semaphore,
            &owner,
            "LIMIT",
            &limit,
            "PX",
            "600000",
        ];
        fence(&client.call(words));
    }
    // Each holder of one semaphore waits for the other one. Only the last makes it impossible.
    crowd.ask_in_order(
        |index| {
            let words = format!(
                "SEM.ACQUIRE s{} {} LIMIT {half} BLOCK 0 PX 600000",
                1 - index % 2,
                owner(index)
            );
            words.split(' ').map(String::from).collect::<Vec<_>>()
        },
        |_| true,
    );
    let refused = crowd.replies(1, LONG);
    assert_eq!(refused[0].0, size - 1);
    assert_eq!(refused[0].1.err(), DEADLOCK);
    await_waiting(&server, size as i64 - 1);
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 1);
    // It gives back what it holds: somebody is served, who then gives all back, and so on.
    let last = owner(size - 1);
    client.call(["SEM.RELEASE", "s1", &last]);
    let mut left = size - 1;
    while left > 0 {
        for (index, reply) in crowd.replies(1, LONG) {
            fence(&reply);
            left -= 1;
            for semaphore in ["s0", "s1"] {
                client.call(["SEM.RELEASE", semaphore, &owner(index), "ALL"]);
            }
        }
    }
    assert_eq!(client.run("DBSIZE"), 0);
    assert_eq!(server.info_int("sluice_lock_deadlocks"), 1);
}

#[test]
fn a_flush_serves_a_crowd_at_many_keys_in_slices_and_in_order() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let (keys, each) = (700, 2);
    for key in 0..keys {
        let key = format!("k{key}");
        fence(&client.call(["LOCK.ACQUIRE", &key, "holder", "PX", "600000"]));
    }
    let mut crowd = Crowd::connect(&server, keys * each);
    crowd.ask_in_order(
        |index| {
            let words = format!(
                "LOCK.ACQUIRE k{} {} BLOCK 0 PX 600000",
                index % keys,
                owner(index)
            );
            words.split(' ').map(String::from).collect::<Vec<_>>()
        },
        |asked| waiting(&server) == asked as i64,
    );
    client.run("FLUSHALL");
    let first = crowd.replies(keys, LONG);
    for (index, reply) in first {
        assert!(index < keys, "{index} was served before another");
        fence(&reply);
    }
    assert_eq!(waiting(&server), (keys * (each - 1)) as i64);
    client.run("FLUSHALL");
    for (_, reply) in crowd.replies(keys, LONG) {
        fence(&reply);
    }
    assert_eq!(waiting(&server), 0);
}

#[test]
fn many_connections_of_one_owner_enter_its_lock_together() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let size = 1500;
    client.run("LOCK.ACQUIRE k first PX 600000");
    let mut crowd = Crowd::connect(&server, size);
    crowd.ask_in_order(
        |_| {
            "LOCK.ACQUIRE k me BLOCK 0 PX 600000"
                .split(' ')
                .map(String::from)
        },
        |asked| waiting(&server) == asked as i64,
    );
    client.run("LOCK.RELEASE k first");
    let replies = crowd.replies(size, LONG);
    let given = fence(&replies[0].1);
    assert!(replies.iter().all(|(_, reply)| *reply == given));
    let info = client.run("LOCK.INFO k");
    assert_eq!(holders(&info), [("me".into(), size as i64)]);
}

#[test]
fn a_crowd_of_watched_holds_is_released_when_its_connection_closes() {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    let mut holder = Raw::connect(&server);
    let size = 3000;
    for index in 0..size {
        let key = format!("k{index}");
        holder.send(["LOCK.ACQUIRE", &key, "me", "PX", "600000", "WATCHDOG"]);
    }
    for _ in 0..size {
        fence(&holder.read());
    }
    drop(holder);
    eventually(LONG, || client.run("DBSIZE") == 0);
    assert_eq!(
        server.info_int("sluice_lock_watchdog_released"),
        size as i64
    );
    assert_eq!(server.info_int("sluice_lock_watchdog_holds"), 0);
}
