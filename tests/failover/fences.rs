//! Fences and leases when a master dies with writes that its replica never got, and when clocks are set.
//!
//! A fence is `max(last fence + 1, the clock in microseconds)`. So it rises over a fail-over that lost the last ones, if
//! the new master's clock has passed them; and over a clock that is set back, if the last ones are known. These tests say
//! what happens when either is not so.
//!
//! `SLUICE_FAILOVERS` is how many fail-overs the longest of the tests makes one after another (8).

use std::thread::sleep;
use std::time::Duration;

use crate::support::once::token;
use crate::support::{
    Builder, Fsync, Lines, Random, Raw, SOON, Server, Shutdown, Value, assert_identical,
    eventually, follow, now_ms, now_us, number_from, still_waits, wait_for_replica_sync, waiter,
    with_growing_lease,
};

const HOUR: i64 = 3_600_000;

/// Long enough for something that must not happen to happen after all.
const MOMENT: Duration = Duration::from_millis(300);

/// A server whose clock is so many milliseconds ahead of the machine's.
fn clocked(ahead: i64) -> Builder {
    Server::builder().clock(ahead)
}

fn pair(master: Builder, replica: Builder) -> (Server, Server) {
    let (master, replica) = (master.start(), replica.start());
    follow(&master, &replica);
    (master, replica)
}

/// From here on nothing reaches this replica; it keeps what it has. (A stopped process would find what its sockets hold.)
fn cut_off(replica: &Server) {
    const NOBODY: &str = "1";
    replica.command(["REPLICAOF", "127.0.0.1", NOBODY]);
}

/// The master dies, and the replica takes over with what it has.
fn fail_over(master: &Server, replica: &Server) {
    master.kill9();
    replica.promote();
}

fn assert_healthy(servers: &[&Server]) {
    for server in servers {
        assert_eq!(server.command(["PING"]), "PONG");
        let log = server.log();
        for word in ["internal error", "panicked", "ASSERTION", "crashed"] {
            assert!(!log.contains(word), "{word}: {log}");
        }
    }
}

/// A waiting client that has not been answered for a while.
#[track_caller]
fn assert_waits(client: &mut Raw) {
    assert_eq!(client.read_within(MOMENT), None);
}

/// Fences of every command that gives some, in the order in which they were given.
fn take_fences(server: &Server) -> Vec<i64> {
    let mut client = Raw::connect(server);
    let mut fences = Vec::new();
    for number in 0..3 {
        let lock = format!("lock:{number}");
        fences.push(
            client
                .must(&format!("LOCK.ACQUIRE {lock} a SHARED PX 600000"))
                .int(),
        );
        fences.push(client.must(&format!("LOCK.UPGRADE {lock} a")).int());
        let both = client.must(&format!("LOCK.MACQUIRE 2 one:{number} two:{number} a"));
        fences.extend(both.array().iter().map(Value::int));
        fences.push(
            client
                .must(&format!("SEM.ACQUIRE sem a{number} LIMIT 9"))
                .int(),
        );
        let mut next = waiter(server, &format!("LOCK.ACQUIRE {lock} b BLOCK 0"));
        client.must(&format!("LOCK.RELEASE {lock} a ALL"));
        fences.push(next.read().int());
        client.must("FLUSHALL");
    }
    fences
}

#[track_caller]
fn assert_rising(fences: &[i64]) {
    for two in fences.windows(2) {
        assert!(two[0] < two[1], "{} after {}", two[1], two[0]);
    }
}

// Fences over a fail-over

#[test]
fn fences_rise_over_a_failover_that_lost_the_last_ones() {
    for ahead in [0, 30, HOUR] {
        let (master, replica) = pair(clocked(0), clocked(ahead));
        let mut fences = take_fences(&master);
        wait_for_replica_sync(&master, &replica);
        cut_off(&replica);
        fences.extend(take_fences(&master));
        fail_over(&master, &replica);
        fences.extend(take_fences(&replica));
        assert_rising(&fences);
    }
}

/// Clocks that differ, as clocks do, by less than a fail-over takes: all fences of all masters rise.
#[test]
fn fences_rise_over_many_failovers_with_clocks_a_bit_apart() {
    let turns = number_from("SLUICE_FAILOVERS", 8);
    let mut random = Random(20_260_722);
    let mut jitter = || random.below(60) as i64 - 30;
    let (mut master, mut replica) = pair(clocked(jitter()), clocked(jitter()));
    let mut fences = Vec::new();
    for turn in 0..turns {
        fences.extend(take_fences(&master));
        if turn % 3 > 0 {
            cut_off(&replica);
            fences.extend(take_fences(&master));
        }
        fail_over(&master, &replica);
        // A fail-over by Sentinel takes seconds.
        let last = *fences.last().unwrap();
        let mut client = Raw::connect(&replica);
        eventually(SOON, || now_us(&mut client) > last);
        fences.extend(take_fences(&replica));
        master.restart();
        master.shift_clock(jitter());
        follow(&replica, &master);
        (master, replica) = (replica, master);
    }
    assert_rising(&fences);
}

/// A clock that is behind is not enough to make a fence fall: the last ones must be lost, too.
#[test]
fn fences_that_were_replicated_rise_whatever_the_clock_says() {
    let (master, replica) = pair(clocked(0), clocked(-HOUR));
    let last = *take_fences(&master).last().unwrap();
    wait_for_replica_sync(&master, &replica);
    fail_over(&master, &replica);
    let mut client = Raw::connect(&replica);
    assert!(now_us(&mut client) < last);
    assert_eq!(client.must("LOCK.ACQUIRE k me"), last + 1);
    // Also those that nobody holds, and that no key tells of.
    client.must("FLUSHALL");
    assert_eq!(client.must("LOCK.ACQUIRE k me"), last + 2);
}

/// What a guard says when the fences that it has seen were lost, and the new master's clock is an hour behind: it goes
/// on refusing until the clock, or the operator, has passed them.
#[test]
fn a_guard_refuses_lower_fences_of_a_master_whose_clock_is_behind() {
    let resource = Server::start();
    let mut guard = Raw::connect(&resource);
    let mut is_let_in = |fence: i64| guard.must(&format!("LOCK.GUARD door {fence}")) == 1;

    let (master, replica) = pair(clocked(0), clocked(-HOUR));
    let mut client = Raw::connect(&master);
    let known = client.must("LOCK.ACQUIRE known x PX 7200000").int();
    wait_for_replica_sync(&master, &replica);
    cut_off(&replica);
    let lost = client.must("LOCK.ACQUIRE k old PX 7200000").int();
    assert!(is_let_in(lost));
    fail_over(&master, &replica);

    // The fence falls. Who has got the lock is refused, and who has lost it is let in: safe would be nobody.
    let mut client = Raw::connect(&replica);
    let fallen = client.must("LOCK.ACQUIRE k new PX 7200000").int();
    assert_eq!(fallen, known + 1);
    assert!(fallen < lost);
    assert!(!is_let_in(fallen));
    assert!(is_let_in(lost));
    // One hold more is one fence more: it takes as many holds as microseconds were lost, or the time.
    client.must("LOCK.RELEASE k new");
    assert_eq!(client.must("LOCK.ACQUIRE k new PX 7200000"), known + 2);

    // As soon as the clock has passed the lost ones, a new hold is let in, and the old holder is not any more. A hold
    // that is entered again keeps its fence: it must be released first.
    replica.shift_clock(HOUR);
    eventually(SOON, || now_us(&mut client) > lost);
    assert_eq!(client.must("LOCK.ACQUIRE k new PX 7200000"), known + 2);
    assert!(!is_let_in(known + 2));
    client.must("LOCK.RELEASE k new ALL");
    let risen = client.must("LOCK.ACQUIRE k new").int();
    assert!(is_let_in(risen));
    assert!(!is_let_in(lost));
}

/// The operator's way out, without touching the clock: what the guards have seen is made known to the new master.
#[test]
fn a_fence_that_was_lost_can_be_made_known() {
    let (master, replica) = pair(clocked(0), clocked(-HOUR));
    let second = Server::start();
    cut_off(&replica);
    let lost = *take_fences(&master).last().unwrap();
    fail_over(&master, &replica);
    follow(&replica, &second);
    let mut client = Raw::connect(&replica);
    assert!(client.must("LOCK.ACQUIRE before me").int() < lost);
    client.must(&format!("LOCK.FENCE {lost}"));
    assert_eq!(client.must("LOCK.ACQUIRE after me"), lost + 1);
    // It cannot be made to fall, and replicas hear of it.
    client.must("LOCK.FENCE 1");
    client.must("FLUSHALL");
    wait_for_replica_sync(&replica, &second);
    fail_over(&replica, &second);
    assert!(take_fences(&second)[0] > lost + 1);
}

/// The worst case, for which all clocks must have been set back: a lost fence is given again, to somebody else, and no
/// guard can tell the two apart.
#[test]
fn a_lost_fence_that_was_ahead_of_all_clocks_is_given_twice() {
    let (master, replica) = pair(clocked(0), clocked(0));
    let mut client = Raw::connect(&master);
    client.must("LOCK.ACQUIRE known x");
    wait_for_replica_sync(&master, &replica);
    for server in [&master, &replica] {
        server.shift_clock(-HOUR);
    }
    cut_off(&replica);
    let lost = client.must("LOCK.ACQUIRE k old").int();
    fail_over(&master, &replica);
    let mut client = Raw::connect(&replica);
    assert_eq!(client.must("LOCK.ACQUIRE k new"), lost);
}

/// Two masters at once, until the old one learns of the other: what it gave meanwhile is lost, and refused by guards.
#[test]
fn fences_of_the_new_master_overtake_those_of_one_that_woke_up() {
    let (old, new) = pair(clocked(0), clocked(0));
    take_fences(&old);
    wait_for_replica_sync(&old, &new);
    old.stop_signal();
    new.promote();
    let during = take_fences(&new);
    old.cont_signal();
    let by_old = Raw::connect(&old).must("LOCK.ACQUIRE k a PX 600000").int();
    let after = Raw::connect(&new).must("LOCK.ACQUIRE k b PX 600000").int();
    assert_rising(&[*during.last().unwrap(), by_old, after]);
    follow(&new, &old);
    let mut reader = Raw::connect(&old);
    assert!(reader.must("LOCK.HELD k a").is_nil());
    assert_eq!(reader.must("LOCK.HELD k b"), after);
    assert_identical(&new, &old);
    // And if the roles change again, it goes on from there.
    new.kill9();
    old.promote();
    assert!(take_fences(&old)[0] > after);
}

/// `min-replicas-to-write` narrows the gap: a master without replicas gives nothing away, to nobody who asks and nobody who
/// waits. What a connection watches over it keeps.
#[test]
fn a_master_without_replicas_locks_and_sells_nothing_if_told_so() {
    for extra in [&[][..], &[("rename-command", "CONFIG \"\"")]] {
        let master = clocked(0)
            .config("min-replicas-to-write", "1")
            .config("min-replicas-max-lag", "10");
        let master = extra
            .iter()
            .fold(master, |master, (name, value)| master.config(name, value));
        with_growing_lease(2000, |lease| gives_nothing_away_alone(&master, lease));
    }
}

/// A master that wants two replicas and has one gives nothing away, whether `CONFIG` says so or has another name.
#[test]
fn a_master_with_one_replica_of_two_hands_nothing_on() {
    for extra in [None, Some(("rename-command", "CONFIG \"\""))] {
        let master = clocked(0)
            .config("min-replicas-to-write", "2")
            .config("min-replicas-max-lag", "10");
        let master = extra.map_or(master.clone(), |(name, value)| master.config(name, value));
        let (master, first) = pair(master, clocked(0));
        let second = clocked(0).start();
        second.replica_of(&master);
        let mut client = Raw::connect(&master);
        eventually(SOON, || !client.run("SET s v").is_err());
        client.must("LOCK.ACQUIRE k me PX 600000");
        client.must("SEM.ACQUIRE sem me LIMIT 1 PX 600000");
        client.must("ONCE.BEGIN o LEASE 600000");
        let mut waiters = [
            "LOCK.ACQUIRE k next BLOCK 0",
            "SEM.ACQUIRE sem next LIMIT 1 BLOCK 0",
            "ONCE.BEGIN o LEASE 600000 BLOCK 0",
        ]
        .map(|line| waiter(&master, line));
        cut_off(&second);
        eventually(SOON, || client.run("SET s v").is_err());
        master.shift_clock(HOUR); // the leases end only now
        for info in ["LOCK.INFO k", "SEM.INFO sem", "ONCE.INFO o"] {
            eventually(SOON, || client.must(info).is_nil());
        }
        sleep(Duration::from_millis(1500)); // longer than the pause until the queue is served again
        assert!(waiters.iter_mut().all(|next| !next.has_received()));
        assert!(client.must("LOCK.HELD k next").is_nil());
        second.replica_of(&master);
        let [lock, permit, work] = waiters.each_mut().map(Raw::read);
        assert!(lock.int() > 0 && permit.int() > 0);
        token(&work);
        drop(first);
    }
}

/// Returns `None` if the lease ended before the replica was gone.
fn gives_nothing_away_alone(master: &Builder, lease: i64) -> Option<()> {
    let (master, replica) = pair(master.clone(), clocked(0));
    let mut client = Raw::connect(&master);
    eventually(SOON, || !client.run("SET s v").is_err());
    client.must("LOCK.ACQUIRE watched me PX 6000 WATCHDOG");
    let renewed = master.info_int("sluice_lock_renewed");
    client.must(&format!("LOCK.ACQUIRE k me PX {lease}"));
    client.must("STOCK.SET sku 10");
    let mut next = waiter(&master, "LOCK.ACQUIRE k next BLOCK 0");
    let brief = format!("LOCK.ACQUIRE k brief BLOCK {}", lease + 500);
    let mut brief = waiter(&master, &brief);
    wait_for_replica_sync(&master, &replica);
    cut_off(&replica);
    eventually(SOON, || master.info_int("connected_slaves") == 0);
    if next.has_received() {
        return None;
    }
    for line in [
        "LOCK.ACQUIRE other me",
        "LOCK.RENEW k me",
        "LOCK.RELEASE k me",
        "SEM.ACQUIRE s me LIMIT 3",
        "LOCK.GUARD g 5",
        "STOCK.DEDUCT sku 1 ORDER o",
        "RATE.ONCE once PX 1000",
    ] {
        let reply = client.run(line);
        assert!(reply.err().starts_with("NOREPLICAS "), "{line}: {reply:?}");
    }
    // Nor is anything handed on: another master may give it away meanwhile.
    eventually(SOON, || client.must("LOCK.INFO k").is_nil());
    assert_eq!(next.read_within(Duration::from_millis(500)), None);
    assert!(client.must("LOCK.HELD k next").is_nil());
    assert!(brief.read().is_nil(), "its time is up as ever");
    eventually(SOON, || master.info_int("sluice_lock_renewed") > renewed);
    assert!(client.must("LOCK.HELD watched me").int() > 0);
    replica.replica_of(&master);
    assert!(next.read().int() > 0);
    assert!(client.must("LOCK.HELD k next").int() > 0);
    Some(())
}

// Leases over a fail-over

#[test]
fn what_was_not_replicated_is_as_if_it_had_not_been() {
    let resource = Server::start();
    let mut guard = Raw::connect(&resource);
    let (master, replica) = pair(clocked(0), clocked(0));
    let mut client = Raw::connect(&master);
    client.must("LOCK.ACQUIRE renewed me PX 60000");
    client.must("LOCK.ACQUIRE released me PX 60000 ID i");
    client.must("LOCK.ACQUIRE long me PX 600000 ID i");
    client.must("STOCK.SET sku 1");
    wait_for_replica_sync(&master, &replica);
    cut_off(&replica);
    let taken = client.must("LOCK.ACQUIRE taken me PX 600000").int();
    client.must("LOCK.RENEW renewed me PX 600000");
    assert_eq!(client.must("LOCK.RELEASE released me"), 0);
    assert_eq!(client.must("LOCK.RELEASE long me ALL"), 0);
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER mine"), 0);
    assert_eq!(client.must("RATE.ONCE cron PX 600000"), 1);
    fail_over(&master, &replica);

    let mut client = Raw::connect(&replica);
    // A lock that two believe to hold, until the fence decides.
    let again = client.must("LOCK.ACQUIRE taken you PX 600000").int();
    assert!(again > taken);
    assert_eq!(guard.must(&format!("LOCK.GUARD g {taken}")), 1);
    assert_eq!(guard.must(&format!("LOCK.GUARD g {again}")), 1);
    assert_eq!(guard.must(&format!("LOCK.GUARD g {taken}")), 0);
    assert!(client.must("LOCK.RENEW taken me").is_nil());
    // A renewal that is gone ends the lease when it would have ended before, a release frees nothing before it ends.
    let wait = |key| {
        waiter(
            &replica,
            &format!("LOCK.ACQUIRE {key} you PX 600000 BLOCK 0"),
        )
    };
    let mut both = ["renewed", "released"].map(wait);
    both.iter_mut().for_each(still_waits);
    replica.shift_clock(61_000);
    for waiting in &mut both {
        assert!(waiting.read().int() > again);
    }
    assert!(client.must("LOCK.ACQUIRE long you").is_nil());
    // Who sends it again is understood.
    assert_eq!(client.must("LOCK.RELEASE long me ALL"), 0);
    // The last piece is sold again: to another, and the first buyer's retry finds none.
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER other"), 0);
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER mine"), -1);
    assert_eq!(client.must("RATE.ONCE cron PX 600000"), 1);
}

/// Leases are points in time, and the clock that counts is the new master's.
#[test]
fn leases_end_by_the_clock_of_the_new_master() {
    for ahead in [-HOUR, HOUR] {
        let (master, replica) = pair(clocked(0), clocked(ahead));
        let mut client = Raw::connect(&master);
        client.must("LOCK.ACQUIRE k me PX 60000");
        client.must("STOCK.SET sku 9");
        client.must("STOCK.RESERVE sku 1 ORDER o PX 60000");
        wait_for_replica_sync(&master, &replica);
        fail_over(&master, &replica);
        let mut client = Raw::connect(&replica);
        if ahead > 0 {
            assert!(client.must("LOCK.ACQUIRE k you").int() > 0);
            eventually(SOON, || client.must("STOCK.GET sku") == 9);
        } else {
            let left = client.must("PTTL k").int();
            assert!((HOUR..=HOUR + 60_000).contains(&left), "{left}");
            assert!(client.must("LOCK.ACQUIRE k you").is_nil());
            assert_eq!(client.must("STOCK.GET sku"), 8);
        }
        assert_healthy(&[&replica]);
    }
}

// A clock that is set back

/// The length of leases and waits that begin before the clock is set back. They must not end before that, although a machine may stall
/// for some seconds.
const FIRST_LEASE_MS: i64 = 10_000;

/// Sleeps for longer than [`FIRST_LEASE_MS`], whatever the clock says.
fn sleep_past_first_lease() {
    sleep(Duration::from_millis(FIRST_LEASE_MS.unsigned_abs() + 200));
}

/// A master with a replica that goes by the machine's clock, so that the datasets can be compared.
fn watched_master() -> (Server, Server) {
    pair(clocked(0), Server::builder())
}

#[test]
fn leases_and_waits_that_had_begun_last_longer_on_a_clock_that_is_set_back() {
    let (master, replica) = watched_master();
    let mut client = Raw::connect(&master);
    let acquire = format!("LOCK.ACQUIRE k me PX {FIRST_LEASE_MS}");
    let mut last = client.must(&acquire).int();
    client.must(&format!("LOCK.ACQUIRE renewed me PX {FIRST_LEASE_MS}"));
    client.must("LOCK.ACQUIRE held me PX 7200000");
    let mut served = waiter(&master, "LOCK.ACQUIRE k next PX 600000 BLOCK 0");
    let timed = format!("LOCK.ACQUIRE held you BLOCK {FIRST_LEASE_MS}");
    let mut timed = waiter(&master, &timed);
    let mut unblocked = Raw::connect(&master);
    let id = unblocked.id();
    unblocked.ask(&format!("LOCK.ACQUIRE held other BLOCK {FIRST_LEASE_MS}"));
    eventually(SOON, || master.info_int("sluice_lock_waiting") == 3);
    master.shift_clock(-HOUR);
    sleep_past_first_lease();

    // What had begun goes on for an hour more.
    let left = client.must("PTTL k").int();
    assert!(
        (HOUR - 60_000..=HOUR + FIRST_LEASE_MS).contains(&left),
        "{left}"
    );
    for waiting in [&mut served, &mut timed, &mut unblocked] {
        assert_waits(waiting);
    }
    let info = client.must("LOCK.INFO k");
    let lease = info.field("holders").array()[0].field("lease_ms").int();
    assert!(
        (HOUR - 60_000..=HOUR + FIRST_LEASE_MS).contains(&lease),
        "{lease}"
    );
    let waiter_of_k = &info.field("waiters").array()[0];
    assert_eq!(waiter_of_k.field("waiting_ms"), &0);
    // What begins now takes its time: leases, waits, hand-overs.
    let mut fence = |client: &mut Raw, line: &str| {
        let fence = client.must(line).int();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    fence(&mut client, "LOCK.ACQUIRE new me PX 100");
    let mut next = waiter(&master, "LOCK.ACQUIRE new you PX 50 BLOCK 0");
    assert!(next.read().int() > 0);
    eventually(SOON, || client.must("EXISTS new") == 0);
    assert!(
        waiter(&master, "LOCK.ACQUIRE held x BLOCK 50")
            .read()
            .is_nil()
    );
    // A renewal makes a lease as long as it says.
    client.must("LOCK.RENEW renewed me PX 100");
    eventually(SOON, || client.must("EXISTS renewed") == 0);
    // Releases serve, and operators unblock.
    assert_eq!(client.must("LOCK.RELEASE k me"), 0);
    assert!(served.read().int() > 0);
    assert_eq!(client.must(&format!("CLIENT UNBLOCK {id}")), 1);
    assert!(unblocked.read().is_nil());
    assert_waits(&mut timed);
    // When the clock is where it was, the time is up.
    master.shift_clock(HOUR);
    assert!(timed.read().is_nil());
    assert_identical(&master, &replica);
    assert_healthy(&[&master, &replica]);
}

#[test]
fn watched_holds_live_through_a_clock_that_is_set_back() {
    let (master, replica) = watched_master();
    let mut control = Raw::connect(&master);
    let mut watched = Raw::connect(&master);
    // A server that stalls for some seconds must be able to renew in time.
    let fence = watched.must("LOCK.ACQUIRE dog me PX 9000 WATCHDOG");
    watched.must("SEM.ACQUIRE sem me LIMIT 1 PX 9000 WATCHDOG");
    eventually(SOON, || master.info_int("sluice_lock_renewed") > 1);
    let mut next = waiter(&master, "LOCK.ACQUIRE dog next PX 600000 BLOCK 0");
    master.shift_clock(-HOUR);
    let renewed = master.info_int("sluice_lock_renewed");
    assert_waits(&mut next);
    assert_eq!(control.must("LOCK.HELD dog me"), fence);
    // There is no hurry: the lease has an hour left.
    assert!(master.info_int("sluice_lock_renewed") <= renewed + 2);
    // New ones are renewed at their pace.
    let mut other = Raw::connect(&master);
    other.must("LOCK.ACQUIRE fast me PX 9000 WATCHDOG");
    let end = control.must("PEXPIRETIME fast").int();
    eventually(SOON, || control.must("PEXPIRETIME fast").int() > end);
    // The end of a connection is seen at once.
    drop(watched);
    assert!(next.read().int() > fence.int());
    eventually(SOON, || control.must("EXISTS sem") == 0);
    assert_identical(&master, &replica);
    drop(other);
    eventually(SOON, || control.must("EXISTS fast") == 0);
    assert_identical(&master, &replica);
    assert_healthy(&[&master, &replica]);
}

#[test]
fn reservations_that_had_begun_last_longer_on_a_clock_that_is_set_back() {
    let (master, replica) = watched_master();
    let mut client = Raw::connect(&master);
    client.must("STOCK.SET sku 100 RETAIN 20000 EVENTS events");
    for order in ["confirmed", "cancelled", "left"] {
        client.must(&format!(
            "STOCK.RESERVE sku 1 ORDER {order} PX {FIRST_LEASE_MS}"
        ));
    }
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER sold"), 96);
    master.shift_clock(-HOUR);
    sleep_past_first_lease();
    let now = now_ms(&mut client);
    for order in ["confirmed", "cancelled", "left"] {
        let info = client.must(&format!("STOCK.ORDER sku {order}"));
        assert_eq!(info.field("state"), &"reserved");
        let left = info.field("expires_ms").int() - now;
        assert!(
            (HOUR - 60_000..=HOUR + FIRST_LEASE_MS).contains(&left),
            "{left}"
        );
    }
    // New ones end in time.
    client.must("STOCK.RESERVE sku 5 ORDER short PX 50");
    eventually(SOON, || client.must("STOCK.GET sku") == 96);
    assert_eq!(client.must("STOCK.CONFIRM sku short"), -3);
    // Old ones can be dealt with, and are remembered for longer.
    assert_eq!(client.must("STOCK.CONFIRM sku confirmed"), 1);
    assert_eq!(client.must("STOCK.CANCEL sku cancelled"), 1);
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER sold"), 96);
    assert_identical(&master, &replica);
    // What is left of them ends when the clock is there.
    assert_eq!(client.must("STOCK.GET sku"), 97);
    master.shift_clock(HOUR);
    eventually(SOON, || client.must("STOCK.GET sku") == 98);
    assert_eq!(
        client.must("STOCK.ORDER sku left").field("state"),
        &"expired"
    );
    let info = client.must("STOCK.INFO sku");
    assert_eq!(info.field("sold"), &2);
    assert_eq!(info.field("reserved"), &0);
    // The events are complete, and their ids rise.
    let events = client.must("XRANGE events - +");
    assert_eq!(events.array().len() as i64, info.field("ver").int());
    for (number, event) in events.array().iter().enumerate() {
        let ver = event.array()[1].field("ver").text();
        assert_eq!(ver, (number + 1).to_string());
    }
    master.shift_clock(30_000); // more than RETAIN
    eventually(SOON, || client.must("STOCK.INFO sku").field("orders") == &0);
    assert_identical(&master, &replica);
    assert_healthy(&[&master, &replica]);
}

/// The waiting time of a refusal, in milliseconds.
fn retry(reply: &Value) -> i64 {
    assert_eq!(reply.array()[0], 1, "it is allowed: {reply:?}");
    reply.array()[3].int()
}

#[test]
fn full_limits_stay_full_for_longer_on_a_clock_that_is_set_back() {
    let (master, replica) = watched_master();
    let mut client = Raw::connect(&master);
    let kinds_of = |ms: i64| {
        [
            format!("RATE.GCRA gcra 2 1 {ms}"),
            format!("RATE.TIERS tiers 2 2 1 {ms} 9 1 1"),
            format!("RATE.WINDOW window 3 {ms}"),
            format!("RATE.WINDOW sliding 3 {ms} SLIDING"),
        ]
    };
    let kinds = kinds_of(FIRST_LEASE_MS);
    let once = format!("RATE.ONCE once PX {FIRST_LEASE_MS}");
    for line in &kinds {
        client.must(&format!("{line} COST 3"));
        // Another of the kind, with room.
        client.must(&line.replacen(' ', " with-room-", 1));
    }
    client.must(&once);
    master.shift_clock(-HOUR);
    for line in &kinds {
        let wait = retry(&client.must(line));
        assert!(
            (HOUR - 60_000..=HOUR + 3 * FIRST_LEASE_MS).contains(&wait),
            "{line}: {wait}"
        );
        let roomy = line.replacen(' ', " with-room-", 1);
        assert_eq!(client.must(&roomy).array()[0], 0, "{roomy}");
    }
    assert_eq!(client.must(&once), 0);
    assert_identical(&master, &replica);
    // What is asked for the first time knows nothing of it.
    for line in kinds_of(2000) {
        let fresh = line.replacen(' ', " fresh-", 1);
        // In one step, in which no time passes.
        let replies = client.transact([&format!("{fresh} COST 3"), &fresh]);
        assert!(retry(&replies[1]) <= 6000, "{fresh}");
        eventually(SOON, || client.must(&fresh).array()[0] == 0);
    }
    // A refund makes room at once; else, waiting as long as told is enough.
    assert_eq!(client.must("RATE.REFUND gcra 1"), 1);
    assert_eq!(client.must(&kinds[0]).array()[0], 0);
    let waits = kinds[2..].iter().map(|line| retry(&client.must(line)));
    master.shift_clock(waits.max().expect("two waits"));
    for line in &kinds[2..] {
        eventually(SOON, || client.must(line).array()[0] == 0);
    }
    eventually(SOON, || client.must(&once) == 1);
    assert_healthy(&[&master, &replica]);
}

#[test]
fn entries_and_rebuilds_last_longer_on_a_clock_that_is_set_back() {
    let (master, replica) = watched_master();
    let mut client = Raw::connect(&master);
    client.must(&format!("CACHE.SET entry v PX {FIRST_LEASE_MS}"));
    let lease = client.must(&format!("CACHE.FETCH missing LEASE {FIRST_LEASE_MS}"));
    assert_eq!(lease.array()[0], "LEASE");
    let dead = client.must(&format!("CACHE.FETCH dead LEASE {FIRST_LEASE_MS}"));
    assert_eq!(dead.array()[0], "LEASE");
    let mut blocked = Raw::connect(&master);
    blocked.ask("CACHE.FETCH missing LEASE 2000 BLOCK 60000");
    eventually(SOON, || master.info_int("sluice_cache_waiters_now") == 1);
    master.shift_clock(-HOUR);
    sleep_past_first_lease();
    for (key, state) in [("entry", "HIT"), ("missing", "WAIT"), ("dead", "WAIT")] {
        let reply = client.must(&format!("CACHE.FETCH {key} LEASE 2000"));
        assert_eq!(reply.array()[0], state);
        let left = reply.array()[2].int();
        assert!(
            (HOUR - 60_000..=HOUR + FIRST_LEASE_MS).contains(&left),
            "{key}: {left}"
        );
    }
    // The holder of a lease stores as ever, and those who wait get it.
    let token = lease.array()[2].int();
    assert_eq!(
        client.must(&format!("CACHE.SET missing v PX 60000 TOKEN {token}")),
        1
    );
    assert_eq!(blocked.read().array()[0], "HIT");
    assert!(client.must("CACHE.INFO missing").field("fresh_ms").int() <= 60_000);
    client.must("CACHE.SET missing v PX 100");
    eventually(SOON, || client.must("CACHE.GET missing").is_nil());
    // A rebuild whose holder has died is a delete away.
    client.must("CACHE.DEL dead");
    assert_eq!(client.must("CACHE.FETCH dead LEASE 50").array()[0], "LEASE");
    eventually(SOON, || {
        client.must("CACHE.FETCH dead LEASE 60000").array()[0] == "LEASE"
    });
    master.shift_clock(HOUR);
    eventually(SOON, || client.must("CACHE.GET entry").is_nil());
    assert_identical(&master, &replica);
    assert_healthy(&[&master, &replica]);
}

/// Redis 7.0 multiplies the milliseconds until the module's timer in an int: 36 minutes are more than it holds, and its
/// event loop would not sleep until then.
#[test]
fn a_server_sleeps_after_its_clock_was_set_back() {
    let server = clocked(0).start();
    let mut client = Raw::connect(&server);
    client.must("STOCK.SET sku 10");
    client.must(&format!("STOCK.RESERVE sku 1 ORDER o PX {FIRST_LEASE_MS}"));
    client.must(&format!("LOCK.ACQUIRE k me PX {FIRST_LEASE_MS}"));
    let _next = waiter(&server, "LOCK.ACQUIRE k you BLOCK 0");
    server.shift_clock(-HOUR);
    sleep_past_first_lease();
    let used = || -> f64 {
        let part = |name: &str| -> f64 { server.info(name).unwrap().parse().unwrap() };
        part("used_cpu_user") + part("used_cpu_sys")
    };
    let before = used();
    sleep(Duration::from_millis(1200));
    let used = used() - before;
    assert!(
        used < 0.4,
        "{used} seconds of CPU in 1.2 seconds of nothing"
    );
    assert_eq!(client.must("STOCK.GET sku"), 9);
}

// A clock that is set forward

#[test]
fn all_leases_end_and_nothing_breaks_on_a_clock_that_is_set_forward() {
    let (master, replica) = watched_master();
    let mut client = Raw::connect(&master);
    let mut watched = Raw::connect(&master);
    let last = watched.must("LOCK.ACQUIRE dog me PX 30000 WATCHDOG").int();
    for line in [
        "LOCK.ACQUIRE k me PX 1800000",
        "LOCK.ACQUIRE shared a SHARED PX 1800000",
        "LOCK.ACQUIRE shared b SHARED PX 7200000",
        "SEM.ACQUIRE sem me LIMIT 1 PX 1800000",
        "STOCK.SET sku 10 EVENTS events",
        "STOCK.RESERVE sku 4 ORDER o PX 1800000",
        "STOCK.DEDUCT sku 1 ORDER sold",
        "RATE.GCRA gcra 0 1 1800000",
        "RATE.WINDOW window 1 1800000",
        "RATE.ONCE once PX 1800000",
        "CACHE.SET entry v PX 1800000",
        "CACHE.SET stale v PX 1800000 STALE 7200000",
    ] {
        client.must(line);
    }
    let lease = client.must("CACHE.FETCH missing LEASE 1800000");
    let token = lease.array()[2].int();
    let mut for_ever = waiter(&master, "LOCK.ACQUIRE k next PX 600000 BLOCK 0");
    let mut permit = waiter(&master, "SEM.ACQUIRE sem next LIMIT 1 PX 600000 BLOCK 0");
    let mut after_dog = waiter(&master, "LOCK.ACQUIRE dog next PX 600000 BLOCK 0");
    let mut timed = waiter(&master, "LOCK.ACQUIRE shared next BLOCK 60000");
    master.shift_clock(HOUR);

    // Nobody looks: the server does by itself.
    let fence = for_ever.read().int();
    assert!(
        fence > last + 1000 * (HOUR - 60_000),
        "{fence} after {last}"
    );
    assert!(permit.read().int() > 0);
    // A watched hold is over too, since its lease is. Its client hears of it when it asks.
    assert!(after_dog.read().int() > 0);
    assert!(watched.must("LOCK.RENEW dog me").is_nil());
    assert_eq!(master.info_int("sluice_lock_watchdog_holds"), 0);
    assert!(timed.read().is_nil());
    assert!(client.must("LOCK.HELD shared a").is_nil());
    assert!(client.must("LOCK.HELD shared b").int() > 0);
    eventually(SOON, || client.must("STOCK.GET sku") == 9);
    assert_eq!(client.must("STOCK.CONFIRM sku o"), -3);
    // Orders are remembered for a day.
    assert_eq!(client.must("STOCK.DEDUCT sku 1 ORDER sold"), 5);
    assert_eq!(client.must("RATE.GCRA gcra 0 1 1800000").array()[0], 0);
    assert_eq!(client.must("RATE.WINDOW window 1 1800000").array()[0], 0);
    assert_eq!(client.must("RATE.ONCE once PX 1800000"), 1);
    assert!(client.must("CACHE.GET entry").is_nil());
    assert_eq!(client.must("CACHE.GET stale"), "v");
    // Nobody else has got the lease meanwhile.
    assert_eq!(
        client.must(&format!("CACHE.SET missing v PX 60000 TOKEN {token}")),
        1
    );
    assert_identical(&master, &replica);

    // And all goes on: also when the clock is put right.
    let mut again = Raw::connect(&master);
    again.must("LOCK.ACQUIRE dog2 me PX 9000 WATCHDOG");
    let renewed = master.info_int("sluice_lock_renewed");
    eventually(SOON, || master.info_int("sluice_lock_renewed") > renewed);
    let high = client.must("LOCK.ACQUIRE high me PX 100").int();
    master.shift_clock(-HOUR);
    assert!(client.must("LOCK.ACQUIRE right me PX 100").int() > high);
    eventually(SOON, || client.must("EXISTS right") == 0);
    assert_eq!(client.must("LOCK.RELEASE k next"), 0);
    assert_identical(&master, &replica);
    assert_healthy(&[&master, &replica]);
}

// Clocks that are set while the server is down

enum Kept {
    Rdb,
    AofWithRdb,
    Aof,
}

fn restarts_with(kept: &Kept) -> Builder {
    match kept {
        Kept::Rdb => clocked(0).rdb(true),
        Kept::AofWithRdb => clocked(0).aof(Fsync::Always),
        Kept::Aof => clocked(0)
            .aof(Fsync::Always)
            .config("aof-use-rdb-preamble", "no"),
    }
}

fn restart(server: &Server, kept: &Kept, shift: i64) {
    match kept {
        Kept::Rdb => drop(server.shutdown(Shutdown::Save)),
        _ => server.kill9(),
    }
    server.shift_clock(shift);
    server.restart();
}

#[test]
fn fences_rise_over_a_restart_with_a_clock_that_was_set_back() {
    for kept in [Kept::Rdb, Kept::AofWithRdb, Kept::Aof] {
        let server = restarts_with(&kept).start();
        let mut client = Raw::connect(&server);
        client.must("LOCK.ACQUIRE k me PX 60000 ID i");
        client.must("STOCK.SET sku 9");
        client.must("STOCK.RESERVE sku 2 ORDER o PX 60000");
        client.must("RATE.WINDOW w 1 60000");
        client.must("CACHE.SET c v PX 60000");
        // The last fence is of a lock that is gone.
        let last = client.must("LOCK.ACQUIRE gone me").int();
        client.must("LOCK.RELEASE gone me");
        let digest = server.digest();
        restart(&server, &kept, -HOUR);
        assert_eq!(server.digest(), digest);
        let mut client = Raw::connect(&server);
        let next = client.must("LOCK.ACQUIRE new me PX 100").int();
        assert!(next > last && next < last + 1000, "{next} after {last}");
        let left = client.must("PTTL k").int();
        assert!((HOUR - 60_000..=HOUR + 60_000).contains(&left), "{left}");
        assert!(client.must("LOCK.ACQUIRE k you").is_nil());
        assert_eq!(client.must("STOCK.GET sku"), 7);
        assert_eq!(client.must("RATE.WINDOW w 1 60000").array()[0], 1);
        assert_eq!(client.must("CACHE.GET c"), "v");
        eventually(SOON, || client.must("EXISTS new") == 0);
        assert_eq!(client.must("LOCK.RELEASE k me"), 0);
        assert_eq!(client.must("STOCK.CONFIRM sku o"), 2);
        assert_healthy(&[&server]);
    }
}

#[test]
fn leases_are_over_after_a_restart_with_a_clock_that_was_set_forward() {
    for kept in [Kept::Rdb, Kept::AofWithRdb, Kept::Aof] {
        let server = restarts_with(&kept).start();
        let mut client = Raw::connect(&server);
        let last = client.must("LOCK.ACQUIRE k me PX 60000").int();
        client.must("SEM.ACQUIRE s a LIMIT 2 PX 60000");
        client.must("SEM.ACQUIRE s b LIMIT 2 PX 7200000");
        client.must("STOCK.SET sku 9");
        client.must("STOCK.RESERVE sku 2 ORDER o PX 60000");
        client.must("RATE.WINDOW w 1 60000");
        client.must("CACHE.SET c v PX 60000");
        restart(&server, &kept, HOUR);
        let mut client = Raw::connect(&server);
        assert!(client.must("LOCK.ACQUIRE k you").int() > last + 1000 * (HOUR - 60_000));
        assert_eq!(client.must("SEM.INFO s").field("used"), &1);
        eventually(SOON, || client.must("STOCK.GET sku") == 9);
        assert_eq!(client.must("STOCK.CONFIRM sku o"), -3);
        assert_eq!(client.must("RATE.WINDOW w 1 60000").array()[0], 0);
        assert!(client.must("CACHE.GET c").is_nil());
        // Put right again, it remembers.
        let last = client.must("LOCK.ACQUIRE x me").int();
        restart(&server, &kept, -HOUR);
        assert_eq!(Raw::connect(&server).must("LOCK.ACQUIRE y me"), last + 1);
        assert_healthy(&[&server]);
    }
}
