//! Clients that are subscribed and send commands, which RESP3 allows. Valkey blocks none of them, so `BLOCK` counts as not
//! given, on every server.

use crate::support::{Lines as _, Raw, Server};

/// Commands that would wait, what makes them wait, and what they reply without waiting.
const WAITS: [(&str, &str); 7] = [
    ("LOCK.ACQUIRE lock you PX 100000000 BLOCK 0", "nil"),
    ("LOCK.UPGRADE shared you BLOCK 0", "nil"),
    ("LOCK.MACQUIRE 2 lock free you PX 100000000 BLOCK 0", "nil"),
    ("SEM.ACQUIRE sem you LIMIT 1 PX 100000000 BLOCK 0", "nil"),
    (
        "SEM.MACQUIRE 2 sem 1 free 1 you PX 100000000 BLOCK 0",
        "nil",
    ),
    ("CACHE.FETCH cached LEASE 100000000 BLOCK 0", "WAIT"),
    ("ONCE.BEGIN work LEASE 100000000 BLOCK 0", "BUSY"),
];

#[test]
fn a_subscribed_client_waits_for_nothing() {
    let server = Server::start();
    let mut client = Raw::connect(&server);
    client.must("LOCK.ACQUIRE lock me PX 100000000");
    client.must("LOCK.ACQUIRE shared me SHARED PX 100000000");
    client.must("LOCK.ACQUIRE shared you SHARED PX 100000000");
    client.must("SEM.ACQUIRE sem me LIMIT 1 PX 100000000");
    client.must("CACHE.FETCH cached LEASE 100000000");
    client.must("ONCE.BEGIN work LEASE 100000000");
    let digest = server.digest();
    for subscribe in ["SUBSCRIBE a", "PSUBSCRIBE a*", "SSUBSCRIBE a"] {
        let mut subscribed = Raw::connect(&server);
        subscribed.hello3();
        subscribed.must(subscribe);
        for (command, expected) in WAITS {
            let reply = subscribed.must(command);
            let shown = format!("{reply:?}");
            assert!(shown.contains(expected), "{subscribe}, {command}: {shown}");
            assert_eq!(server.info_int("blocked_clients"), 0, "{command}");
        }
        // Once it has unsubscribed from all, it waits like any other.
        let unsubscribe = subscribe.replacen("SUBSCRIBE", "UNSUBSCRIBE", 1);
        subscribed.must(&unsubscribe);
        subscribed.ask("LOCK.ACQUIRE lock you BLOCK 1");
        assert!(format!("{:?}", subscribed.read()).contains("nil"));
    }
    let info = client.must("INFO sluice");
    let waited = |line: &&str| line.contains("waited:");
    let waited = info.text().lines().find(waited);
    let waited = waited.and_then(|line| line.rsplit(':').next());
    assert_eq!(waited, Some("3"), "a refused client has not waited");
    assert_eq!(server.digest(), digest);
    // Nobody is left in a queue: what is released is free.
    client.must("LOCK.RELEASE lock me");
    assert!(client.must("LOCK.ACQUIRE lock other").int() > 0);
}
