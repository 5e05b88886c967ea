//! Work survives saves, restarts, rewrites and crashes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::once::{assert_filled, begin, begun, fill};
use crate::support::ways::{self, Picture};
use crate::support::{EndOnDrop, Fsync, Lines, Raw, SOON, Server, eventually};

#[test]
fn all_ways_to_save_and_load_keep_everything() {
    let filled = |server: &Server| {
        let token = fill(&mut Raw::connect(server));
        (token, Picture::of(server))
    };
    ways::walk(filled, |server, (token, before)| {
        before.assert_is_of(server);
        let mut client = Raw::connect(server);
        assert_filled(&mut client, *token);
        // Every token is larger than those before.
        assert!(begin(&mut client, "ONCE.BEGIN new LEASE 5") > *token);
        assert_eq!(client.must(&format!("ONCE.DONE busy {token} r PX 5000")), 1);
    });
}

/// Clients do the same work again and again, and the server is killed in between. What was acknowledged is there, and nobody
/// begins work that is done, or that somebody else is at.
#[test]
fn a_server_that_is_killed_loses_no_result() {
    let server = Server::builder().aof(Fsync::Always).start();
    for round in 0..3 {
        let stop = AtomicBool::new(false);
        let acknowledged = Mutex::new(Vec::new());
        let tokens = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let _end = EndOnDrop(&stop);
            for worker in 0..4u64 {
                let (stop, acknowledged, tokens) = (&stop, &acknowledged, &tokens);
                let mut client = Raw::connect(&server);
                scope.spawn(move || {
                    for number in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        // Two workers each want the same work.
                        let key = format!("w{round}:{}:{number}", worker % 2);
                        let line = format!("ONCE.BEGIN {key} LEASE 600000");
                        let limit = Duration::from_secs(30);
                        let words: Vec<&str> = line.split(' ').collect();
                        let Ok(Some(reply)) = client.try_call(&words, limit) else {
                            return;
                        };
                        let (state, _, token) = begun(&reply);
                        if state != "NEW" {
                            continue;
                        }
                        tokens.lock().unwrap().push((key.clone(), token));
                        let token = token.to_string();
                        let words = ["ONCE.DONE", &key, &token, &token, "PX", "6000000"];
                        match client.try_call(words, limit) {
                            Ok(Some(reply)) => {
                                assert_eq!(reply, 1, "{key}");
                                acknowledged.lock().unwrap().push((key, token));
                            }
                            _ => return,
                        }
                    }
                });
            }
            eventually(SOON, || acknowledged.lock().unwrap().len() > 100);
            server.kill9();
            stop.store(true, Ordering::Relaxed);
        });
        server.restart();
        let mut client = Raw::connect(&server);
        let acknowledged = acknowledged.into_inner().unwrap();
        assert!(!acknowledged.is_empty());
        for (key, result) in &acknowledged {
            let (state, stored, _) = begun(&client.must(&format!("ONCE.BEGIN {key} LEASE 5")));
            assert_eq!(state, "DONE", "{key}");
            assert_eq!(stored.as_deref(), Some(result.as_bytes()), "{key}");
        }
        let tokens = tokens.into_inner().unwrap();
        let mut keys: Vec<_> = tokens.iter().map(|(key, _)| key).collect();
        keys.sort();
        let all = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), all, "two workers began the same work");
        // A lease that was acknowledged is honoured.
        for (key, token) in &tokens {
            let (state, _, number) = begun(&client.must(&format!("ONCE.BEGIN {key} LEASE 5")));
            assert_ne!(state, "NEW", "{key} {token} {number}");
        }
        let last = tokens.iter().map(|(_, token)| *token).max().unwrap_or(0);
        assert!(begin(&mut client, &format!("ONCE.BEGIN fresh{round} LEASE 5")) > last);
    }
}
