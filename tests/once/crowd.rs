//! Ten thousand clients that wait for the end of one piece of work.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::once::{begin, begun, counter, done, token};
use crate::support::{Crowd, Lines, Raw, SOON, Server, eventually, served};

const SIZE: usize = 10_000;

/// A busy machine needs a while for so many.
const LONG: Duration = Duration::from_secs(300);

/// The system limits the connections of a process: there is one crowd at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A server, a client that is at the work `k`, its token, and a crowd that waits for its end.
fn waiting_crowd() -> (Server, Raw, i64, Crowd, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::builder().many_that_block(12_000).start();
    let mut client = Raw::connect(&server);
    let token = begin(&mut client, "ONCE.BEGIN k LEASE 600000");
    let mut crowd = Crowd::connect(&server, SIZE);
    for index in 0..SIZE {
        let words = ["ONCE.BEGIN", "k", "LEASE", "600000", "BLOCK", "0"];
        crowd.member(index).send(words);
    }
    eventually(LONG, || counter(&mut client, "waiting") == SIZE as i64);
    assert_eq!(client.must("ONCE.INFO k").field("waiters"), &(SIZE as i64));
    (server, client, token, crowd, turn)
}

#[test]
fn ten_thousand_waiting_clients_get_one_result() {
    let (_server, mut client, token, mut crowd, _turn) = waiting_crowd();
    assert_eq!(
        client.must(&format!("ONCE.DONE k {token} paid PX 600000")),
        1
    );
    // The server serves others while it answers the crowd.
    assert_eq!(client.must("PING"), "PONG");
    let replies = crowd.replies(SIZE, LONG);
    assert_eq!(replies.len(), SIZE);
    for (_, reply) in &replies {
        done(reply, "paid");
    }
    assert_eq!(counter(&mut client, "waiting"), 0);
    assert_eq!(counter(&mut client, "begun"), 1);
    assert_eq!(counter(&mut client, "replayed"), SIZE as i64);
}

#[test]
fn the_work_goes_from_one_of_ten_thousand_to_the_next() {
    let (_server, mut client, mut token_of_last, mut crowd, _turn) = waiting_crowd();
    for _ in 0..200 {
        assert_eq!(client.must(&format!("ONCE.FAIL k {token_of_last}")), 1);
        let (_, reply) = crowd.replies(1, SOON).remove(0);
        let next = token(&reply);
        assert!(next > token_of_last);
        token_of_last = next;
    }
    assert_eq!(counter(&mut client, "waiting"), SIZE as i64 - 200);
}

#[test]
fn nothing_is_left_of_ten_thousand_clients_that_leave() {
    let (server, mut client, token_of_first, crowd, _turn) = waiting_crowd();
    drop(crowd);
    eventually(LONG, || counter(&mut client, "waiting") == 0);
    let mut next = crate::support::waiter(&server, "ONCE.BEGIN k LEASE 600000 BLOCK 0");
    assert_eq!(client.must(&format!("ONCE.FAIL k {token_of_first}")), 1);
    let token = token(&served(&mut next));
    let (state, ..) = begun(&client.must("ONCE.BEGIN k LEASE 5"));
    assert_eq!(state, "BUSY");
    assert_eq!(client.must(&format!("ONCE.FAIL k {token}")), 1);
}
