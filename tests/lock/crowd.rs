//! Thousands of clients that wait for one lock: all are served in order, and nothing is left of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::lock::{DEADLOCK, fence, holders};
use crate::support::{
    Crowd, Lines, Raw, SOON, Server, await_waiting, encode, eventually, field_of, waiting,
};

const SIZE: usize = 2000;

/// A busy machine needs a while for so many.
const LONG: Duration = Duration::from_secs(300);

fn owner(index: usize) -> String {
    format!("owner{index}")
}

fn crowded_server() -> Server {
    Server::builder().many_that_block(10_000).start()
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
            let words = format!("LOCK.ACQUIRE k {} SHARED PX 600000 BLOCK 0", owner(index));
            words.split(' ').map(String::from).collect::<Vec<_>>()
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
fn a_deadlock_is_found_although_the_expiry_of_its_keys_changes_again_and_again() {
    const FLOOD: usize = 10_000;
    let server = Server::start();
    let mut client = Raw::connect(&server);
    let half = 3000;
    let size = 2 * half;
    // The search takes several slices.
    let hold = |index: usize| {
        format!(
            "SEM.ACQUIRE s{} {} LIMIT {half} PX 900000",
            index % 2,
            owner(index)
        )
    };
    let ask = |index: usize| {
        format!(
            "SEM.ACQUIRE s{} {} LIMIT {half} PX 900000 BLOCK 0 ID {index} NOTIFY channel",
            1 - index % 2,
            owner(index)
        )
    };
    let lines = (0..size).map(hold).chain((0..size - 1).map(ask));
    let lines: Vec<String> = lines.collect();
    for some in lines.chunks(500) {
        client.pipeline(some.iter().map(|line| line.split(' ')));
    }
    assert_eq!(waiting(&server), size as i64 - 1);
    let is_over = AtomicBool::new(false);
    let changes = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // So many that the server finds one in each round of its event loop.
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = Raw::connect(&server);
                let change = |n: usize| ["PEXPIRE", ["s0", "s1"][n % 2], "800000"];
                let flood: Vec<u8> = (0..FLOOD).flat_map(|n| encode(change(n))).collect();
                let start = Instant::now();
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < 2 * LONG {
                    client.send_bytes(&flood);
                    for _ in 0..FLOOD {
                        client.read();
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        while changes.load(Ordering::Relaxed) < 3 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(20));
        }
        client.run(&ask(size - 1));
        let deadlocks = || server.info_int("sluice_lock_deadlocks");
        while deadlocks() == 0 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(deadlocks(), 1);
    });
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

/// Different numbers below `size` other than `number`, the same in every run.
fn scattered(size: usize, number: usize, count: usize) -> Vec<usize> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut chosen = Vec::new();
    while chosen.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let next = state as usize % size;
        if next != number && !chosen.contains(&next) {
            chosen.push(next);
        }
    }
    chosen
}

/// The words of a request for the locks of these numbers.
fn request(keys: &[usize], member: usize) -> Vec<String> {
    let keys = keys.iter().map(|key| format!("k{key}"));
    let head = ["LOCK.MACQUIRE".into(), keys.len().to_string()];
    let tail = [owner(member), "BLOCK".into(), "0".into()];
    head.into_iter().chain(keys).chain(tail).collect()
}

/// Every member holds a lock and wants many others. Returns how many requests were refused, and the server's CPU time in seconds
/// until everybody has an answer. Whoever has one releases all that it holds, so a deadlock that nobody finds ends the test.
fn answer_all(size: usize, wanted: impl Fn(usize) -> Vec<usize>) -> (usize, f64) {
    let server = crowded_server();
    let mut client = Raw::connect(&server);
    for member in 0..size {
        let (key, owner) = (format!("k{member}"), owner(member));
        fence(&client.call(["LOCK.ACQUIRE", &key, &owner, "PX", "3600000"]));
    }
    // Somebody else holds all that nobody of the crowd does.
    for key in size..2 * size {
        let key = format!("k{key}");
        fence(&client.call(["LOCK.ACQUIRE", &key, "other", "PX", "3600000"]));
    }
    let mut crowd = Crowd::connect(&server, size);
    let start = busy(&mut client);
    for member in 0..size {
        let words = request(&wanted(member), member);
        crowd.member(member).send(words);
    }
    let mut answered = 0;
    let mut refused = 0;
    if wanted(0).iter().all(|key| *key >= size) {
        await_waiting(&server, size as i64);
        for key in size..2 * size {
            client.call(["LOCK.RELEASE", &format!("k{key}"), "other"]);
        }
    }
    while answered < size {
        for (member, reply) in crowd.replies(1, LONG) {
            answered += 1;
            if reply.is_err() {
                assert_eq!(reply.err(), DEADLOCK);
                refused += 1;
            } else {
                let words = request(&wanted(member), member);
                let keys = words.iter().filter(|word| word.starts_with('k'));
                let mut release = vec!["LOCK.MRELEASE", &words[1]];
                release.extend(keys.map(String::as_str));
                let name = owner(member);
                release.push(&name);
                client.call(release);
            }
            client.call(["LOCK.RELEASE", &format!("k{member}"), &owner(member)]);
        }
    }
    let taken = busy(&mut client) - start;
    assert_eq!(waiting(&server), 0);
    (refused, taken)
}

/// Hundreds of deadlocks at once cost the server not much more than the same requests without any.
#[test]
fn the_deadlocks_of_a_crowd_are_all_found_with_bounded_work() {
    let (size, keys) = (400, 50);
    let plain = |member| scattered(size, member, keys).into_iter();
    let (refused, usual) = answer_all(size, |member| plain(member).map(|key| size + key).collect());
    assert_eq!(refused, 0);
    let (refused, taken) = answer_all(size, |member| plain(member).collect());
    assert!(refused > size / 2, "{refused} refused");
    assert!(
        taken < 20.0 * usual,
        "{taken} s, and {usual} s without deadlocks"
    );
}

/// One connection asks for one lock again and again on behalf of one owner. All requests are served in order when it is their
/// turn, and each of them costs the same, however many there are.
#[test]
fn a_crowd_of_requests_of_one_owner_is_served_in_order_with_bounded_work() {
    let mut costs = Vec::new();
    for size in [10_000, 100_000] {
        let server = Server::start();
        let mut client = Raw::connect(&server);
        let mut subscriber = Raw::connect(&server);
        subscriber.must("SUBSCRIBE channel");
        client.run("LOCK.ACQUIRE k first PX 3600000");
        let start = busy(&mut client);
        for begin in (0..size).step_by(1000) {
            for number in begin..begin + 1000 {
                let line =
                    format!("LOCK.ACQUIRE k me PX 3600000 BLOCK 0 ID {number} NOTIFY channel");
                client.ask(&line);
            }
            for _ in 0..1000 {
                assert!(client.read_within(LONG).expect("an answer").is_nil());
            }
        }
        assert_eq!(waiting(&server), size);
        client.run("LOCK.RELEASE k first");
        let mut given = None;
        for number in 0..size {
            let message = subscriber.read_within(LONG).expect("a message");
            let text = message.array()[2].text();
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!((words[0], words[2]), ("granted", &*number.to_string()));
            assert_eq!(words[1], given.get_or_insert_with(|| words[1].to_owned()));
        }
        costs.push(busy(&mut client) - start);
        assert_eq!(waiting(&server), 0);
        let info = client.run("LOCK.INFO k");
        assert_eq!(holders(&info), [("me".into(), size)]);
    }
    let [few, many] = costs[..] else {
        unreachable!();
    };
    assert!(many < 50.0 * few.max(0.01), "{costs:?}");
}
