//! What the commands of semaphores reply and do, sentence by sentence of the contract. Clients that wait are in
//! `waiting.rs`. What they share with locks (events, transactions, scripts, access rules) is in `commands.rs`.

use crate::support::lock::{about, fence, holder, holders, is_watched, lease_of, queue};
use crate::support::{
    Lines, Raw, SOON, SYNTAX, Server, Value, WRONGTYPE, ask, await_gone, await_waiting, eventually,
    now_us, pair, served, server_and_client, still_waits, wait_for_replica_sync, waiter, waiting,
    waits,
};

/// Limit, permits in use, and the holders with their permits.
fn state(client: &mut Raw, key: &str) -> (i64, i64, Vec<(String, i64)>) {
    let info = client.call(["SEM.INFO", key]);
    let (limit, used) = (info.field("limit").int(), info.field("used").int());
    (limit, used, holders(&info))
}

fn held(owner: &str, permits: i64) -> (String, i64) {
    (owner.to_string(), permits)
}

// ACQUIRE

#[test]
fn permits_are_given_up_to_the_limit() {
    let (_server, mut client) = server_and_client();
    let mut last = 0;
    for owner in ["a", "b", "c"] {
        let given = fence(&client.call(["SEM.ACQUIRE", "s", owner, "LIMIT", "3"]));
        assert!(given > last, "{given} must be larger than {last}");
        last = given;
    }
    assert!(client.run("SEM.ACQUIRE s d LIMIT 3").is_nil());
    let all = vec![held("a", 1), held("b", 1), held("c", 1)];
    assert_eq!(state(&mut client, "s"), (3, 3, all));
    assert_eq!(client.run("SEM.RELEASE s b"), 0);
    fence(&client.run("SEM.ACQUIRE s d LIMIT 3"));
    assert!(client.run("SEM.ACQUIRE s e LIMIT 3").is_nil());
}

#[test]
fn several_permits_are_given_at_once_or_not_at_all() {
    let (_server, mut client) = server_and_client();
    fence(&client.run("SEM.ACQUIRE s a LIMIT 10 PERMITS 7"));
    assert!(client.run("SEM.ACQUIRE s b LIMIT 10 PERMITS 4").is_nil());
    assert_eq!(state(&mut client, "s"), (10, 7, vec![held("a", 7)]));
    fence(&client.run("SEM.ACQUIRE s b LIMIT 10 PERMITS 3"));
    assert!(client.run("SEM.ACQUIRE s c LIMIT 10").is_nil());
}

#[test]
fn the_permits_of_an_owner_add_up_under_one_fence_and_the_later_lease() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 2 PX 100000"));
    assert_eq!(
        client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 3 PX 1000"),
        first
    );
    assert_eq!(state(&mut client, "s"), (10, 5, vec![held("me", 5)]));
    about(lease_of(&client.run("SEM.INFO s"), "me"), 100_000);
    assert_eq!(client.run("SEM.ACQUIRE s me LIMIT 10 PX 500000"), first);
    about(client.run("PTTL s").int(), 500_000);
    assert_eq!(state(&mut client, "s").1, 6);
}

#[test]
fn an_owner_gets_no_more_permits_than_are_free() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 2");
    assert!(client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 2").is_nil());
    fence(&client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 1"));
    assert!(client.run("SEM.ACQUIRE s me LIMIT 3").is_nil());
    assert_eq!(state(&mut client, "s"), (3, 3, vec![held("me", 3)]));
}

#[test]
fn more_permits_than_the_limit_are_an_error() {
    let (_server, mut client) = server_and_client();
    let reply = client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 4");
    assert_eq!(reply.err(), "ERR PERMITS must be between 1 and 3");
    // Whatever the order of the options.
    let reply = client.run("SEM.ACQUIRE s me PERMITS 4 LIMIT 3");
    assert_eq!(reply.err(), "ERR PERMITS must be between 1 and 3");
    let reply = client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 4 BLOCK 0");
    assert_eq!(reply.err(), "ERR PERMITS must be between 1 and 3");
    assert_eq!(client.run("EXISTS s"), 0);
    fence(&client.run("SEM.ACQUIRE s me PERMITS 3 LIMIT 3"));
}

#[test]
fn the_limit_is_the_one_that_the_last_acquire_named() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
    assert!(client.run("SEM.ACQUIRE s b LIMIT 2").is_nil());
    fence(&client.run("SEM.ACQUIRE s b LIMIT 4"));
    assert_eq!(state(&mut client, "s").0, 4);
    fence(&client.run("SEM.ACQUIRE s c LIMIT 4"));
    assert_eq!(state(&mut client, "s").1, 4);
}

#[test]
fn a_lower_limit_revokes_nothing() {
    let (_server, mut client) = server_and_client();
    let a = fence(&client.run("SEM.ACQUIRE s a LIMIT 5 PERMITS 4"));
    assert!(client.run("SEM.ACQUIRE s b LIMIT 2").is_nil());
    assert_eq!(client.run("SEM.RENEW s a"), a);
    assert_eq!(state(&mut client, "s").1, 4);
    assert_eq!(client.run("SEM.RELEASE s a PERMITS 2"), 2);
    // Two of two are in use.
    assert!(client.run("SEM.ACQUIRE s b LIMIT 2").is_nil());
    assert_eq!(client.run("SEM.RELEASE s a"), 1);
    fence(&client.run("SEM.ACQUIRE s b LIMIT 2"));
    assert_eq!(state(&mut client, "s").1, 2);
}

#[test]
fn a_semaphore_can_be_huge() {
    let (_server, mut client) = server_and_client();
    let most = "9007199254740991";
    fence(&client.call(["SEM.ACQUIRE", "s", "a", "LIMIT", most, "PERMITS", most]));
    assert!(
        client
            .call(["SEM.ACQUIRE", "s", "b", "LIMIT", most])
            .is_nil()
    );
    assert!(
        client
            .call(["SEM.ACQUIRE", "s", "a", "LIMIT", most, "PERMITS", most])
            .is_nil()
    );
    assert_eq!(state(&mut client, "s").1, 9_007_199_254_740_991);
    let left = client.call(["SEM.RELEASE", "s", "a", "PERMITS", "9007199254740990"]);
    assert_eq!(left, 1);
    let half = "9007199254740990";
    fence(&client.call(["SEM.ACQUIRE", "s", "b", "LIMIT", most, "PERMITS", half]));
    assert_eq!(state(&mut client, "s").1, 9_007_199_254_740_991);
}

#[test]
fn the_default_is_one_permit_for_the_default_lease() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 3");
    assert_eq!(state(&mut client, "s"), (3, 1, vec![held("me", 1)]));
    about(client.run("PTTL s").int(), 30_000);
}

#[test]
fn a_semaphore_needs_a_limit() {
    let (_server, mut client) = server_and_client();
    assert_eq!(client.run("SEM.ACQUIRE s me PERMITS 1").err(), SYNTAX);
    assert_eq!(client.run("SEM.ACQUIRE s me PX 100 WATCHDOG").err(), SYNTAX);
    assert_eq!(client.run("EXISTS s"), 0);
}

#[test]
fn the_ttl_is_the_longest_lease_and_permits_end_at_theirs() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 3 PX 20");
    client.run("SEM.ACQUIRE s b LIMIT 3 PERMITS 2 PX 100000");
    about(client.run("PTTL s").int(), 100_000);
    eventually(SOON, || {
        !client.run("SEM.ACQUIRE s c LIMIT 3 PX 50000").is_nil()
    });
    let info = client.run("SEM.INFO s");
    assert_eq!(holders(&info), [held("b", 2), held("c", 1)]);
    assert!(client.run("SEM.RELEASE s a").is_nil());
    assert!(client.run("SEM.RENEW s a").is_nil());
    client.run("SEM.RELEASE s b ALL");
    about(client.run("PTTL s").int(), 50_000);
    client.run("SEM.RENEW s c PX 20");
    await_gone(&mut client, "s");
    assert!(client.run("SEM.INFO s").is_nil());
}

#[test]
fn persist_does_not_let_permits_outlive_their_lease() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 1 PX 100");
    client.run("PERSIST s");
    eventually(SOON, || {
        !client.run("SEM.ACQUIRE s b LIMIT 1 PX 100").is_nil()
    });
    client.run("EXPIRE s 1000");
    eventually(SOON, || client.run("EXISTS s") == 0);
}

#[test]
fn expire_ends_permits_sooner() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s a LIMIT 1 PX 100000");
    client.run("PEXPIRE s 20");
    await_gone(&mut client, "s");
    fence(&client.run("SEM.ACQUIRE s b LIMIT 1"));
}

// RELEASE, RENEW

#[test]
fn release_tells_the_permits_left_with_the_owner() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("SEM.RELEASE s me").is_nil());
    client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 6");
    client.run("SEM.ACQUIRE s you LIMIT 10 PERMITS 4");
    assert_eq!(client.run("SEM.RELEASE s me"), 5);
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 3"), 2);
    assert!(client.run("SEM.RELEASE s stranger PERMITS 3").is_nil());
    assert_eq!(client.run("SEM.RELEASE s me all"), 0);
    assert!(client.run("SEM.RELEASE s me ALL").is_nil());
    assert_eq!(state(&mut client, "s"), (10, 4, vec![held("you", 4)]));
    assert_eq!(client.run("SEM.RELEASE s you PERMITS 4"), 0);
    assert_eq!(client.run("EXISTS s"), 0);
}

#[test]
fn more_permits_than_the_owner_has_cannot_be_released() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 2");
    let digest = client.run("DEBUG DIGEST");
    let reply = client.run("SEM.RELEASE s me PERMITS 3");
    assert_eq!(reply.err(), "ERR PERMITS must be between 1 and 2");
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 2 ALL").err(), SYNTAX);
    assert_eq!(client.run("DEBUG DIGEST"), digest);
}

#[test]
fn renew_sets_the_lease_of_that_owner() {
    let (_server, mut client) = server_and_client();
    assert!(client.run("SEM.RENEW s a").is_nil());
    let a = fence(&client.run("SEM.ACQUIRE s a LIMIT 2 PX 100000"));
    client.run("SEM.ACQUIRE s b LIMIT 2 PX 100000");
    assert_eq!(client.run("SEM.RENEW s a PX 500000"), a);
    assert!(client.run("SEM.RENEW s stranger PX 900000").is_nil());
    let info = client.run("SEM.INFO s");
    about(lease_of(&info, "a"), 500_000);
    about(lease_of(&info, "b"), 100_000);
    about(client.run("PTTL s").int(), 500_000);
    assert_eq!(client.run("SEM.RENEW s a"), a);
    about(lease_of(&client.run("SEM.INFO s"), "a"), 30_000);
}

// ID

#[test]
fn a_repeated_acquire_adds_no_permits() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 2 PX 100000 ID one"));
    let digest = client.run("DEBUG DIGEST");
    let again = client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 2 PX 900000 ID one");
    assert_eq!(again, first);
    // It changes nothing, so not the limit either.
    client.run("SEM.ACQUIRE s me LIMIT 20 PERMITS 2 ID one");
    assert_eq!(client.run("DEBUG DIGEST"), digest);
    assert_eq!(state(&mut client, "s"), (10, 2, vec![held("me", 2)]));
    client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 2 ID two");
    assert_eq!(state(&mut client, "s").1, 4);
}

#[test]
fn a_repeated_acquire_of_a_full_semaphore_is_still_a_success() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("SEM.ACQUIRE s me LIMIT 2 PERMITS 2 ID one"));
    assert_eq!(
        client.run("SEM.ACQUIRE s me LIMIT 2 PERMITS 2 ID one"),
        first
    );
    assert_eq!(
        client.run("SEM.ACQUIRE s me LIMIT 2 PERMITS 2 BLOCK 0 ID one"),
        first
    );
}

#[test]
fn a_repeated_release_gives_back_once() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 10 PERMITS 6");
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 2 ID one"), 4);
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 2 ID one"), 4);
    assert_eq!(state(&mut client, "s").1, 4);
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 3 ID two"), 1);
    // As many as it has no more: the repetition is one all the same.
    assert_eq!(client.run("SEM.RELEASE s me PERMITS 3 ID two"), 1);
    assert_eq!(client.run("SEM.RELEASE s me ID three"), 0);
    assert!(client.run("SEM.RELEASE s me ID three").is_nil());
}

// INFO

#[test]
fn info_of_a_semaphore_is_a_map_in_resp3_and_a_flat_array_in_resp2() {
    let (server, mut client) = server_and_client();
    assert!(client.run("SEM.INFO s").is_nil());
    let first = fence(&client.run("SEM.ACQUIRE s me LIMIT 3 PERMITS 2 PX 100000 WATCHDOG"));
    client.run("SEM.ACQUIRE s you LIMIT 3 PX 50000");
    let _big = waiter(&server, "SEM.ACQUIRE s big LIMIT 3 PERMITS 3 BLOCK 90000");
    let _small = waiter(&server, "SEM.ACQUIRE s small LIMIT 3 BLOCK 0");

    let flat = client.run("SEM.INFO s");
    let mut modern = Raw::connect(&server);
    modern.hello3();
    let map = modern.run("SEM.INFO s");
    assert!(matches!(flat, Value::Array(_)), "{flat:?}");
    assert!(matches!(map, Value::Map(_)), "{map:?}");
    assert!(matches!(map.field("holders").array()[0], Value::Map(_)));
    assert!(matches!(map.field("waiters").array()[0], Value::Map(_)));
    for info in [flat, map] {
        let names: Vec<_> = info.fields().iter().map(|(name, _)| name.text()).collect();
        assert_eq!(names, ["limit", "used", "holders", "waiters"]);
        assert_eq!(info.field("limit"), &3);
        assert_eq!(info.field("used"), &3);
        let me = holder(&info, "me");
        assert_eq!(me.field("count"), &2);
        assert_eq!(me.field("fence"), &first);
        about(me.field("lease_ms").int(), 100_000);
        assert!(is_watched(&info, "me"));
        assert!(!is_watched(&info, "you"));
        assert_eq!(queue(&info), ["big", "small"]);
        let waiters = info.field("waiters").array();
        about(waiters[0].field("timeout_ms").int(), 90_000);
        assert!((0..20_000).contains(&waiters[0].field("waiting_ms").int()));
    }
}

#[test]
fn used_does_not_count_permits_with_ended_leases() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s short LIMIT 5 PERMITS 2 PX 20");
    client.run("SEM.ACQUIRE s long LIMIT 5 PERMITS 3 PX 100000");
    eventually(SOON, || state(&mut client, "s").1 == 3);
    assert_eq!(state(&mut client, "s"), (5, 3, vec![held("long", 3)]));
}

// The limit while clients wait

/// The limit that `SEM.INFO` shows.
fn limit(client: &mut Raw) -> i64 {
    state(client, "s").0
}

#[test]
fn the_newest_waiting_request_sets_the_limit() {
    let (server, mut client) = server_and_client();
    client.must("SEM.ACQUIRE s a LIMIT 2");
    client.must("SEM.ACQUIRE s a LIMIT 2");
    let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 2 BLOCK 0");
    let mut c = waiter(&server, "SEM.ACQUIRE s c LIMIT 1 BLOCK 0");
    client.must("SEM.RELEASE s a");
    assert_eq!(state(&mut client, "s"), (1, 1, vec![held("a", 1)]));
    still_waits(&mut b);
    // A larger one serves those ahead at once.
    let mut d = waiter(&server, "SEM.ACQUIRE s d LIMIT 3 BLOCK 0");
    for waiting in [&mut b, &mut c] {
        fence(&served(waiting));
    }
    assert_eq!(limit(&mut client), 3);
    still_waits(&mut d);
    client.must("SEM.RELEASE s a");
    fence(&served(&mut d));
    assert_eq!(limit(&mut client), 3);
}

#[test]
fn a_request_for_more_permits_than_the_limit_uses_its_own() {
    let (server, mut client) = server_and_client();
    client.must("SEM.ACQUIRE s a LIMIT 1");
    let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 3 PERMITS 3 BLOCK 0");
    assert_eq!(limit(&mut client), 3);
    let c = waiter(&server, "SEM.ACQUIRE s c LIMIT 1 BLOCK 0");
    assert_eq!(limit(&mut client), 1);
    client.must("SEM.RELEASE s a");
    fence(&served(&mut b));
    assert_eq!(limit(&mut client), 1);
    drop(c);
    eventually(SOON, || waiting(&server) == 0);
    assert_eq!(limit(&mut client), 3, "b has named it, and holds permits");
}

/// How the wait of a request ends that is granted nothing.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Timeout,
    Canceled,
    Closed,
    Unblocked,
    NotifiedTimeout,
    NotifiedCanceled,
    NotifiedClosed,
}

const ENDINGS: [Ending; 7] = [
    Ending::Timeout,
    Ending::Canceled,
    Ending::Closed,
    Ending::Unblocked,
    Ending::NotifiedTimeout,
    Ending::NotifiedCanceled,
    Ending::NotifiedClosed,
];

impl Ending {
    /// Lets a request wait. Returns its client, and the client id.
    fn wait(self, server: &Server, request: &str) -> (Raw, i64) {
        let block = match self {
            Ending::Timeout | Ending::NotifiedTimeout => 300,
            _ => 0,
        };
        let mut client = Raw::connect(server);
        let id = client.must("CLIENT ID").int();
        let line = format!("{request} BLOCK {block} ID one");
        match self {
            Ending::NotifiedTimeout | Ending::NotifiedCanceled | Ending::NotifiedClosed => {
                assert!(client.run(&format!("{line} NOTIFY channel")).is_nil());
            }
            _ => waits(server, &mut client, &line),
        }
        (client, id)
    }

    fn end(self, server: &Server, (mut client, id): (Raw, i64)) {
        match self {
            Ending::Timeout | Ending::NotifiedTimeout => {}
            Ending::Canceled | Ending::NotifiedCanceled => {
                assert_eq!(ask(server, "SEM.CANCEL s one"), 1);
            }
            Ending::Closed | Ending::NotifiedClosed => return,
            Ending::Unblocked => assert_eq!(ask(server, &format!("CLIENT UNBLOCK {id}")), 1),
        }
        if matches!(self, Ending::Timeout | Ending::Canceled | Ending::Unblocked) {
            assert!(served(&mut client).is_nil());
        } else {
            eventually(SOON, || waiting(server) == 0); // with the client that waits for it
        }
    }
}

#[test]
fn the_limit_of_a_request_that_ends_without_permits_no_longer_counts() {
    for request in ["SEM.ACQUIRE s c LIMIT 1", "SEM.MACQUIRE 2 t 9 s 1 c"] {
        for ending in ENDINGS {
            let (server, mut client) = server_and_client();
            client.must("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
            let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 2 BLOCK 0");
            let c = ending.wait(&server, request);
            client.must("SEM.RELEASE s a");
            ending.end(&server, c);
            fence(&served(&mut b));
            let all = vec![held("a", 1), held("b", 1)];
            assert_eq!(state(&mut client, "s"), (2, 2, all), "{ending:?}");
            assert_eq!(waiting(&server), 0);
            client.must("SEM.RELEASE s a");
            fence(&client.run("SEM.ACQUIRE s d LIMIT 2"));
        }
    }
}

#[test]
fn permits_stay_that_were_granted_by_the_limit_of_a_request_that_ends_without_permits() {
    for ending in ENDINGS {
        let (server, mut client) = server_and_client();
        client.must("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
        let mut b = waiter(&server, "SEM.ACQUIRE s b LIMIT 2 PERMITS 2 BLOCK 0");
        let c = ending.wait(&server, "SEM.ACQUIRE s c LIMIT 4 PERMITS 4");
        fence(&served(&mut b));
        ending.end(&server, c);
        await_waiting(&server, 0);
        let all = vec![held("a", 2), held("b", 2)];
        assert_eq!(state(&mut client, "s"), (2, 4, all), "{ending:?}");
    }
}

#[test]
fn replicas_and_files_have_the_limit_of_the_last_permits() {
    let (master, replica) = pair();
    let mut client = Raw::connect(&master);
    client.must("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
    let mut b = waiter(&master, "SEM.ACQUIRE s b LIMIT 2 PERMITS 2 BLOCK 0");
    let c = waiter(&master, "SEM.ACQUIRE s c LIMIT 1 BLOCK 0");
    client.must("SEM.RELEASE s a ALL");
    fence(&served(&mut b));
    assert_eq!(limit(&mut client), 1);
    wait_for_replica_sync(&master, &replica);
    assert_eq!(ask(&replica, "SEM.INFO s").field("limit"), &2);
    drop(c);
    eventually(SOON, || waiting(&master) == 0);
    assert_eq!(limit(&mut client), 2);
    client.must("DEBUG RELOAD");
    assert_eq!(limit(&mut client), 2);
}

/// The repetition of a waiting request sets the limit again, and keeps its place.
#[test]
fn a_repeated_request_sets_the_limit() {
    let (server, mut client) = server_and_client();
    client.must("SEM.ACQUIRE s a LIMIT 3 PERMITS 3");
    let b = |limit| format!("SEM.ACQUIRE s b LIMIT {limit} BLOCK 0 ID one NOTIFY channel");
    assert!(client.run(&b(1)).is_nil());
    let c = waiter(&server, "SEM.ACQUIRE s c LIMIT 2 PERMITS 2 BLOCK 0");
    assert_eq!(limit(&mut client), 2);
    assert!(client.run(&b(3)).is_nil());
    assert_eq!(limit(&mut client), 3);
    client.must("SEM.RELEASE s a");
    eventually(SOON, || waiting(&server) == 1);
    // It has permits now, and named the newest limit.
    assert_eq!(
        state(&mut client, "s"),
        (3, 3, vec![held("a", 2), held("b", 1)])
    );
    drop(c);
    eventually(SOON, || waiting(&server) == 0);
    assert_eq!(limit(&mut client), 3);
}

/// When a client with a larger limit leaves, a wait can become one that never ends.
#[test]
fn the_end_of_a_larger_limit_can_close_a_cycle() {
    let (server, mut client) = server_and_client();
    client.must("LOCK.ACQUIRE k y PX 600000");
    client.must("SEM.ACQUIRE s x LIMIT 2 PX 600000");
    client.must("SEM.ACQUIRE s z LIMIT 2 PX 600000");
    let mut y = waiter(&server, "SEM.ACQUIRE s y LIMIT 1 BLOCK 0");
    let _w = waiter(&server, "SEM.ACQUIRE s w LIMIT 2 BLOCK 0 ID one");
    // The permit of z is enough for y.
    let mut x = waiter(&server, "LOCK.ACQUIRE k x BLOCK 0");
    still_waits(&mut x);
    assert_eq!(client.run("SEM.CANCEL s one"), 1);
    assert_eq!(
        served(&mut y).err(),
        "DEADLOCK waiting for this lock would never end"
    );
    client.must("LOCK.RELEASE k y");
    fence(&served(&mut x));
}

/// A newcomer whose smaller limit keeps an older client waiting is refused alone. A limit that is removed just before makes the server
/// search in slices.
#[test]
fn a_refused_newcomer_loses_its_limit_and_no_other_client_is_refused() {
    let (server, mut client) = server_and_client();
    client.must("SEM.ACQUIRE s b LIMIT 6 PX 600000");
    client.must("SEM.ACQUIRE s d LIMIT 6 PX 600000");
    client.must("SEM.ACQUIRE s x LIMIT 6 PERMITS 4 PX 600000");
    let mut d = waiter(&server, "SEM.ACQUIRE s d LIMIT 4 BLOCK 0");
    for _ in 0..5 {
        let _v = waiter(&server, "SEM.ACQUIRE s v LIMIT 6 BLOCK 0 ID one");
        let replies = client.run_all([
            "SEM.CANCEL s one".to_owned(),
            "SEM.ACQUIRE s b LIMIT 1 BLOCK 0".to_owned(),
        ]);
        assert_eq!(replies[0], 1);
        assert_eq!(
            replies[1].err(),
            "DEADLOCK waiting for this lock would never end"
        );
        still_waits(&mut d);
    }
    client.must("SEM.RELEASE s x ALL");
    fence(&served(&mut d));
}

// Two types

#[test]
fn locks_and_semaphores_are_two_types() {
    let (_server, mut client) = server_and_client();
    client.run("LOCK.ACQUIRE lock me");
    client.run("SEM.ACQUIRE sem me LIMIT 2");
    assert_ne!(client.run("TYPE lock"), client.run("TYPE sem"));
    let digest = client.run("DEBUG DIGEST");
    for line in [
        "LOCK.ACQUIRE sem me",
        "LOCK.ACQUIRE sem me SHARED BLOCK 0",
        "LOCK.RELEASE sem me",
        "LOCK.RENEW sem me",
        "LOCK.UPGRADE sem me",
        "LOCK.DOWNGRADE sem me",
        "LOCK.HELD sem me",
        "LOCK.INFO sem",
        "LOCK.GUARD sem 5",
        "LOCK.GUARD lock 5",
        "LOCK.MACQUIRE 2 lock sem me",
        "LOCK.MRELEASE 2 lock sem me",
        "SEM.ACQUIRE lock me LIMIT 2",
        "SEM.ACQUIRE lock me LIMIT 2 BLOCK 0",
        "SEM.RELEASE lock me",
        "SEM.RENEW lock me",
        "SEM.INFO lock",
    ] {
        assert_eq!(client.run(line).err(), WRONGTYPE, "{line}");
    }
    assert_eq!(client.run("DEBUG DIGEST"), digest);
}

#[test]
fn native_commands_work_on_semaphores() {
    let (_server, mut client) = server_and_client();
    let first = fence(&client.run("SEM.ACQUIRE s me LIMIT 5 PERMITS 2 PX 100000"));
    client.run("SEM.ACQUIRE s you LIMIT 5 PX 50000");
    let before = state(&mut client, "s");
    let kind = client.run("TYPE s").text().to_string();
    client.run("RENAME s t");
    assert_eq!(state(&mut client, "t"), before);
    client.run("COPY t s");
    client.run("SEM.RELEASE s me ALL");
    assert_eq!(state(&mut client, "t"), before);
    client.run("MOVE t 1");
    client.run("SWAPDB 0 1");
    assert_eq!(state(&mut client, "t"), before);
    let scanned = client.call(["SCAN", "0", "TYPE", &kind, "COUNT", "100"]);
    assert_eq!(scanned.array()[1].array(), [Value::Bulk(b"t".into())]);
    let dump = client.run("DUMP t");
    let digest = client.run("DEBUG DIGEST-VALUE t");
    client.run("UNLINK t");
    let restored = client.call([b"RESTORE".as_slice(), b"t", b"0", dump.bytes()]);
    assert_eq!(restored, "OK");
    assert_eq!(state(&mut client, "t"), before);
    assert_eq!(client.run("DEBUG DIGEST-VALUE t"), digest);
    assert_eq!(client.run("SEM.RENEW t me"), first);
    assert!(client.run("MEMORY USAGE t").int() > 0);
    client.run("DEBUG RELOAD");
    assert_eq!(state(&mut client, "t"), before);
    assert_eq!(client.run("DEL t"), 1);
    assert!(client.run("SEM.RELEASE t me").is_nil());
}

#[test]
fn the_limit_goes_with_the_key() {
    let (_server, mut client) = server_and_client();
    client.run("SEM.ACQUIRE s me LIMIT 5 PERMITS 5");
    client.run("SEM.RELEASE s me ALL");
    fence(&client.run("SEM.ACQUIRE s me LIMIT 1"));
    assert_eq!(state(&mut client, "s").0, 1);
}

// Fences

#[test]
fn fences_of_semaphores_and_locks_rise_together() {
    let (_server, mut client) = server_and_client();
    let before = now_us(&mut client);
    let lines = [
        "SEM.ACQUIRE s a LIMIT 9",
        "LOCK.ACQUIRE k a",
        "SEM.ACQUIRE s b LIMIT 9 PERMITS 3",
        "LOCK.ACQUIRE j a",
        "SEM.ACQUIRE t a LIMIT 9",
    ];
    let fences: Vec<_> = lines.iter().map(|line| fence(&client.run(line))).collect();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert!(fences[0] >= before - 1_000_000, "{} {before}", fences[0]);
    assert!(fences[4] <= now_us(&mut client) + 1_000_000);
    assert_eq!(client.run("SEM.ACQUIRE s a LIMIT 9"), fences[0]);
    assert_eq!(client.run("SEM.RENEW s b"), fences[2]);
}

// MACQUIRE and MRELEASE

#[test]
fn permits_of_several_semaphores_are_given_all_or_none() {
    let (_server, mut client) = server_and_client();
    let fences = client.must("SEM.MACQUIRE 2 tenant 1 all 5 a PERMITS 1");
    let fences: Vec<i64> = fences.array().iter().map(Value::int).collect();
    assert!(fences[0] > 0 && fences[1] > fences[0]);
    assert!(client.run("SEM.MACQUIRE 2 all 5 tenant 1 b").is_nil());
    assert_eq!(state(&mut client, "tenant"), (1, 1, vec![held("a", 1)]));
    assert_eq!(state(&mut client, "all"), (5, 1, vec![held("a", 1)]));
    client.must("SEM.MACQUIRE 2 other 3 all 5 b PERMITS 3");
    assert_eq!(state(&mut client, "all").1, 4);
    let reply = client.run("SEM.MRELEASE 3 tenant all other a");
    assert_eq!(reply.array()[..2], [Value::Int(0), Value::Int(0)]);
    assert!(reply.array()[2].is_nil());
    assert_eq!(client.run("EXISTS tenant"), 0);
}

#[test]
fn several_semaphores_are_released_all_or_none() {
    let (_server, mut client) = server_and_client();
    client.must("SEM.MACQUIRE 2 s 5 t 5 me PERMITS 2 ID one");
    client.must("SEM.ACQUIRE s me LIMIT 5");
    let reply = client.run("SEM.MRELEASE 2 s t me PERMITS 3");
    assert_eq!(reply.err(), "ERR PERMITS must be between 1 and 2");
    assert_eq!(state(&mut client, "s").1, 3, "nothing is released");
    for _ in 0..2 {
        let reply = client.run("SEM.MRELEASE 2 s t me ID two");
        assert_eq!(reply.array(), [Value::Int(2), Value::Int(1)]);
    }
    client.must("SET string value");
    let reply = client.run("SEM.MRELEASE 2 s string me");
    assert_eq!(reply.err(), WRONGTYPE);
    let reply = client.run("SEM.MRELEASE 2 s t me ALL");
    assert_eq!(reply.array(), [Value::Int(0), Value::Int(0)]);
}

#[test]
fn a_repeated_request_for_several_semaphores_gets_the_same_fences() {
    let (_server, mut client) = server_and_client();
    let first = client.must("SEM.MACQUIRE 2 s 5 t 5 me ID one");
    let again = client.must("SEM.MACQUIRE 2 s 5 t 5 me ID one");
    assert_eq!(first.array(), again.array());
    assert_eq!(state(&mut client, "s").1, 1);
}

#[test]
fn a_request_for_several_semaphores_is_not_overtaken() {
    let (server, mut client) = server_and_client();
    client.must("SEM.ACQUIRE s a LIMIT 2 PERMITS 2");
    client.must("SEM.ACQUIRE t a LIMIT 2");
    let mut both = waiter(&server, "SEM.MACQUIRE 2 s 2 t 2 b PERMITS 2 BLOCK 0");
    let mut one = waiter(&server, "SEM.ACQUIRE t c LIMIT 2 BLOCK 0");
    assert_eq!(client.run("SEM.RELEASE s a"), 1);
    assert_eq!(client.run("SEM.RELEASE t a"), 0);
    still_waits(&mut both);
    still_waits(&mut one);
    assert_eq!(client.run("SEM.RELEASE s a"), 0);
    assert_eq!(served(&mut both).array().len(), 2);
    still_waits(&mut one);
    client.must("SEM.MRELEASE 2 s t b ALL");
    fence(&served(&mut one));
}

#[test]
fn requests_for_several_semaphores_that_are_wrong_change_nothing() {
    let (_server, mut client) = server_and_client();
    for (line, error) in [
        ("SEM.MACQUIRE 2 s 5 s 5 me", SYNTAX),
        ("SEM.MACQUIRE 2 s 5 me", SYNTAX),
        ("SEM.MACQUIRE 3 s 5 t 5 me", SYNTAX),
        (
            "SEM.MACQUIRE 2 s 0 t 5 me",
            "ERR limit must be between 1 and 9007199254740991",
        ),
        (
            "SEM.MACQUIRE 2 s 5 t 3 me PERMITS 4",
            "ERR PERMITS must be between 1 and 3",
        ),
        (
            "SEM.MACQUIRE 0 s 5 me",
            "ERR numkeys must be between 1 and 1024",
        ),
        ("SEM.MACQUIRE 1 s 5 me SHARED", SYNTAX),
        ("SEM.MACQUIRE 1 s 5 me LIMIT 5", SYNTAX),
    ] {
        assert_eq!(client.run(line).err(), error, "{line}");
    }
    client.must("LOCK.ACQUIRE lock me");
    let reply = client.run("SEM.MACQUIRE 2 s 5 lock 5 me");
    assert_eq!(reply.err(), WRONGTYPE);
    assert_eq!(client.run("DBSIZE"), 1);
}
