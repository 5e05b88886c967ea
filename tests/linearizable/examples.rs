//! Small histories written by hand: what the checker and its models take for right, and what for wrong.

use std::time::Duration;

use crate::checker::{End, Model, Record, Verdict, Who, check, first_wrong_reply};
use crate::entries::{self, Entries};
use crate::holds::{self, Holds, Kind, Owner};
use crate::stocks::{self, Stocks};

const LONG: u64 = 600_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Each operation is its own client's. It begins at the first time and is answered at the second.
fn told<M: Model>(from: u64, to: u64, op: M::Op, reply: M::Reply) -> Record<M> {
    Record {
        who: Who::Nobody,
        op,
        from: ms(from),
        end: End::Reply(ms(to), reply),
    }
}

/// An operation whose reply was lost.
fn lost<M: Model>(from: u64, op: M::Op) -> Record<M> {
    Record {
        who: Who::Nobody,
        op,
        from: ms(from),
        end: End::Unknown("lost".into()),
    }
}

#[track_caller]
fn is_right<M: Model>(model: &M, records: Vec<Record<M>>) {
    assert_eq!(check(model, &records), Verdict::Linearizable, "{records:?}");
}

/// And the reply that shows it is the one at this time.
#[track_caller]
fn is_wrong<M: Model>(model: &M, shown_at: u64, records: Vec<Record<M>>) {
    assert_eq!(check(model, &records), Verdict::Violation, "{records:?}");
    assert_eq!(first_wrong_reply(model, &records), Some(ms(shown_at)));
}

mod of_stocks {
    use super::*;
    use stocks::{Op, Reply};

    fn set(total: i64) -> Record<Stocks> {
        told(0, 1, Op::Set { key: 0, total }, Reply::Ok)
    }

    fn take(qty: i64, order: Option<u32>, px: Option<u64>) -> Op {
        let (keys, user) = (vec![0], None);
        Op::Take {
            keys,
            qty,
            order,
            user,
            px,
            request: 1,
        }
    }

    fn sells(from: u64, to: u64, qty: i64, reply: i64) -> Record<Stocks> {
        told(from, to, take(qty, None, None), Reply::Numbers(vec![reply]))
    }

    fn sells_order(from: u64, to: u64, order: u32, reply: i64) -> Record<Stocks> {
        told(
            from,
            to,
            take(1, Some(order), None),
            Reply::Numbers(vec![reply]),
        )
    }

    fn finds(from: u64, to: u64, available: i64) -> Record<Stocks> {
        told(
            from,
            to,
            Op::Get { key: 0 },
            Reply::Available(Some(available)),
        )
    }

    #[test]
    fn nobody_gets_what_another_has() {
        let stocks = Stocks::new(1, None);
        is_right(&stocks, vec![set(1), sells(2, 5, 1, 0), sells(3, 6, 1, -1)]);
        is_wrong(
            &stocks,
            6,
            vec![set(1), sells(2, 5, 1, 0), sells(3, 6, 1, 0)],
        );
        is_wrong(
            &stocks,
            6,
            vec![set(2), sells(2, 5, 1, 1), sells(3, 6, 1, -1)],
        );
    }

    #[test]
    fn what_was_answered_is_seen_from_then_on() {
        let stocks = Stocks::new(1, None);
        is_right(
            &stocks,
            vec![set(1), sells(2, 5, 1, 0), finds(3, 4, 0), finds(3, 4, 1)],
        );
        is_wrong(&stocks, 7, vec![set(1), sells(2, 5, 1, 0), finds(6, 7, 1)]);
        is_wrong(
            &stocks,
            6,
            vec![set(1), sells(2, 9, 1, 0), finds(3, 4, 0), finds(5, 6, 1)],
        );
    }

    #[test]
    fn what_was_lost_happened_late_or_never() {
        let stocks = Stocks::new(1, None);
        let sale = || lost(2, take(1, None, None));
        is_right(
            &stocks,
            vec![set(1), sale(), finds(3, 4, 1), finds(5, 6, 1)],
        );
        is_right(
            &stocks,
            vec![set(1), sale(), finds(3, 4, 1), finds(5, 6, 0)],
        );
        is_wrong(
            &stocks,
            6,
            vec![set(1), sale(), finds(3, 4, 0), finds(5, 6, 1)],
        );
        let early = finds(1, 2, 0);
        is_wrong(&stocks, 2, vec![set(1), early, sale()]);
    }

    #[test]
    fn an_order_is_taken_once() {
        let stocks = Stocks::new(1, None);
        let first = || lost(2, take(1, Some(7), None));
        is_right(
            &stocks,
            vec![set(3), first(), sells_order(3, 4, 7, 2), finds(5, 6, 2)],
        );
        is_wrong(&stocks, 4, vec![set(3), first(), sells_order(3, 4, 7, 1)]);
        is_wrong(
            &stocks,
            6,
            vec![set(3), first(), sells_order(3, 4, 7, 2), finds(5, 6, 1)],
        );
    }

    /// The due time of the reservation of order 7 by this request.
    fn due_of(request: u64) -> Op {
        let (keys, order) = (vec![0], 7);
        Op::Due {
            keys,
            order,
            request,
        }
    }

    #[test]
    fn a_due_time_ends_no_later_reservation_of_the_order() {
        let stocks = Stocks::new(1, None);
        let reserved = || told(2, 3, take(1, Some(7), Some(20)), Reply::Numbers(vec![1]));
        let set_again = || told(10, 11, Op::Set { key: 0, total: 2 }, Reply::Ok);
        let reserves_again = |request| {
            let mut again = take(1, Some(7), Some(20));
            if let Op::Take { request: own, .. } = &mut again {
                *own = request;
            }
            told(20, 21, again, Reply::Numbers(vec![1]))
        };
        let due = || told(22, 25, due_of(1), Reply::Happened);
        let comes_back = || lost(22, Op::ComesBack { key: 0 });
        let records = |request, available| {
            let start = [set(2), reserved(), set_again(), reserves_again(request)];
            let rest = [due(), comes_back(), finds(30, 31, available)];
            start.into_iter().chain(rest).collect()
        };
        is_right(&stocks, records(2, 1));
        is_wrong(&stocks, 31, records(2, 2));
        is_right(&stocks, records(1, 2));
    }

    #[test]
    fn a_reservation_is_confirmed_in_time() {
        let stocks = Stocks::new(1, None);
        let reserved = || told(2, 3, take(1, Some(7), Some(20)), Reply::Numbers(vec![1]));
        let due = || told(22, 25, due_of(1), Reply::Happened);
        let comes_back = || lost(22, Op::ComesBack { key: 0 });
        let confirm = |from, reply| {
            let confirm = Op::Confirm {
                keys: vec![0],
                order: 7,
            };
            told(from, from + 1, confirm, Reply::Numbers(vec![reply]))
        };
        is_right(
            &stocks,
            vec![set(2), reserved(), due(), comes_back(), confirm(10, 1)],
        );
        is_right(
            &stocks,
            vec![set(2), reserved(), due(), comes_back(), confirm(30, -3)],
        );
        is_wrong(
            &stocks,
            31,
            vec![set(2), reserved(), due(), comes_back(), confirm(30, 1)],
        );
        is_wrong(
            &stocks,
            11,
            vec![set(2), reserved(), due(), comes_back(), confirm(10, -3)],
        );
        // The quantity takes its time, but comes back no sooner.
        for available in [1, 2] {
            let found = finds(30, 31, available);
            is_right(
                &stocks,
                vec![set(2), reserved(), due(), comes_back(), found],
            );
        }
        is_wrong(
            &stocks,
            11,
            vec![set(2), reserved(), due(), comes_back(), finds(10, 11, 2)],
        );
    }
}

mod of_holds {
    use super::*;
    use holds::{Op, Reply};

    const ANN: Owner = Owner(1, 0);
    const BOB: Owner = Owner(2, 0);

    fn lock() -> Holds {
        Holds::new(Kind::Lock, 1)
    }

    fn acquire(owner: Owner, id: Option<u32>) -> Op {
        Op::Acquire {
            keys: vec![0],
            owner,
            shared: false,
            permits: 1,
            lease: LONG,
            block: None,
            id,
        }
    }

    fn gets(from: u64, to: u64, owner: Owner, fence: i64) -> Record<Holds> {
        told(
            from,
            to,
            acquire(owner, None),
            Reply::Fences(Some(vec![fence])),
        )
    }

    fn is_refused(from: u64, to: u64, owner: Owner) -> Record<Holds> {
        told(from, to, acquire(owner, None), Reply::Fences(None))
    }

    fn releases(from: u64, to: u64, owner: Owner, left: Option<i64>) -> Record<Holds> {
        let release = Op::Release {
            keys: vec![0],
            owner,
            permits: Some(1),
            id: None,
        };
        told(from, to, release, Reply::Left(vec![left]))
    }

    #[test]
    fn one_owner_holds_it_at_a_time() {
        is_right(&lock(), vec![gets(1, 4, ANN, 10), is_refused(2, 5, BOB)]);
        is_wrong(&lock(), 5, vec![gets(1, 4, ANN, 10), gets(2, 5, BOB, 11)]);
        is_wrong(&lock(), 2, vec![is_refused(1, 2, BOB)]);
        let released = releases(5, 6, ANN, Some(0));
        is_right(
            &lock(),
            vec![gets(1, 4, ANN, 10), released, gets(7, 8, BOB, 11)],
        );
    }

    #[test]
    fn fences_rise() {
        let released = || releases(3, 4, ANN, Some(0));
        is_wrong(
            &lock(),
            6,
            vec![gets(1, 2, ANN, 10), released(), gets(5, 6, BOB, 10)],
        );
        is_wrong(
            &lock(),
            6,
            vec![gets(1, 2, ANN, 10), released(), gets(5, 6, ANN, 9)],
        );
        // Who re-enters has the one that it had.
        is_right(&lock(), vec![gets(1, 2, ANN, 10), gets(3, 4, ANN, 10)]);
        is_wrong(&lock(), 4, vec![gets(1, 2, ANN, 10), gets(3, 4, ANN, 11)]);
    }

    #[test]
    fn nobody_releases_what_another_holds() {
        let held = gets(1, 2, ANN, 10);
        is_right(&lock(), vec![held.clone(), releases(3, 4, BOB, None)]);
        is_wrong(&lock(), 4, vec![held.clone(), releases(3, 4, BOB, Some(0))]);
        is_wrong(
            &lock(),
            6,
            vec![held, releases(3, 4, BOB, None), gets(5, 6, BOB, 11)],
        );
    }

    #[test]
    fn a_repeated_request_holds_once() {
        let first = || lost(1, acquire(ANN, Some(5)));
        let again = || told(2, 3, acquire(ANN, Some(5)), Reply::Fences(Some(vec![10])));
        is_right(
            &lock(),
            vec![first(), again(), releases(4, 5, ANN, Some(0))],
        );
        is_wrong(
            &lock(),
            5,
            vec![first(), again(), releases(4, 5, ANN, Some(1))],
        );
        // Without an id it may hold twice.
        let first = lost(1, acquire(ANN, None));
        is_right(
            &lock(),
            vec![first, gets(2, 3, ANN, 10), releases(4, 5, ANN, Some(1))],
        );
    }

    #[test]
    fn a_lease_ends_when_it_does() {
        let ends = || {
            let ends = Op::LeaseEnds {
                keys: vec![0],
                owner: ANN,
                fences: Some(vec![10]),
            };
            told(20, 25, ends, Reply::Happened)
        };
        is_right(
            &lock(),
            vec![gets(1, 2, ANN, 10), ends(), gets(22, 23, BOB, 11)],
        );
        is_wrong(
            &lock(),
            11,
            vec![gets(1, 2, ANN, 10), ends(), gets(10, 11, BOB, 11)],
        );
        is_wrong(
            &lock(),
            31,
            vec![gets(1, 2, ANN, 10), ends(), is_refused(30, 31, BOB)],
        );
    }

    #[test]
    fn a_semaphore_has_a_limit() {
        let semaphore = Holds::new(Kind::Semaphore { limit: 2 }, 1);
        let (one, two) = (gets(1, 2, ANN, 10), gets(3, 4, BOB, 11));
        is_right(
            &semaphore,
            vec![one.clone(), two.clone(), is_refused(5, 6, ANN)],
        );
        is_wrong(&semaphore, 6, vec![one.clone(), two, gets(5, 6, ANN, 10)]);
        is_wrong(&semaphore, 4, vec![one, is_refused(3, 4, BOB)]);
    }
}

mod of_entries {
    use super::*;
    use entries::{Op, Reply};

    fn fetch(from: u64, to: u64, number: u32, reply: Reply) -> Record<Entries> {
        let fetch = Op::Fetch {
            key: 0,
            lease: LONG,
            block: None,
            number,
        };
        told(from, to, fetch, reply)
    }

    fn stores(from: u64, to: u64, token: i64, done: bool) -> Record<Entries> {
        let set = Op::Set {
            key: 0,
            value: Some(7),
            token: Some(token),
        };
        told(from, to, set, Reply::Done(done))
    }

    fn invalidates(from: u64, to: u64) -> Record<Entries> {
        told(from, to, Op::Invalidate { key: 0 }, Reply::Done(false))
    }

    #[test]
    fn a_revoked_token_stores_nothing() {
        let (entries, lease) = (Entries::new(1), fetch(1, 2, 1, Reply::Lease(10)));
        is_right(&entries, vec![lease.clone(), stores(5, 6, 10, true)]);
        is_right(
            &entries,
            vec![lease.clone(), invalidates(3, 4), stores(5, 6, 10, false)],
        );
        is_wrong(
            &entries,
            6,
            vec![lease.clone(), invalidates(3, 4), stores(5, 6, 10, true)],
        );
        is_wrong(&entries, 6, vec![lease.clone(), stores(5, 6, 10, false)]);
        // At the same time either may have been first.
        for done in [true, false] {
            let (del, store) = (invalidates(3, 6), stores(4, 5, 10, done));
            let del = match done {
                true => told(3, 6, Op::Invalidate { key: 0 }, Reply::Done(true)),
                false => del,
            };
            is_right(&entries, vec![lease.clone(), del, store]);
        }
    }

    #[test]
    fn one_caller_rebuilds() {
        let (entries, lease) = (Entries::new(1), || fetch(1, 2, 1, Reply::Lease(10)));
        is_right(&entries, vec![lease(), fetch(3, 4, 2, Reply::Wait)]);
        is_wrong(&entries, 4, vec![lease(), fetch(3, 4, 2, Reply::Lease(11))]);
        is_wrong(&entries, 2, vec![fetch(1, 2, 1, Reply::Wait)]);
        let stored = stores(3, 4, 10, true);
        is_right(
            &entries,
            vec![lease(), stored.clone(), fetch(5, 6, 2, Reply::Hit(7))],
        );
        is_wrong(
            &entries,
            6,
            vec![lease(), stored, fetch(5, 6, 2, Reply::Lease(11))],
        );
    }

    #[test]
    fn a_lease_is_current_until_somebody_else_gets_one() {
        let entries = Entries::new(1);
        let lease = || fetch(1, 2, 1, Reply::Lease(10));
        let ends = || told(20, 25, Op::LeaseEnds { key: 0, number: 1 }, Reply::Happened);
        let next = || fetch(30, 31, 2, Reply::Lease(11));
        is_right(&entries, vec![lease(), ends(), stores(40, 41, 10, true)]);
        is_right(
            &entries,
            vec![lease(), ends(), next(), stores(40, 41, 10, false)],
        );
        is_wrong(
            &entries,
            41,
            vec![lease(), ends(), next(), stores(40, 41, 10, true)],
        );
        is_wrong(
            &entries,
            31,
            vec![lease(), ends(), fetch(30, 31, 2, Reply::Wait)],
        );
        is_wrong(
            &entries,
            31,
            vec![lease(), ends(), fetch(30, 31, 2, Reply::Lease(10))],
        );
    }

    #[test]
    fn a_restart_revokes_every_lease() {
        let (entries, lease) = (Entries::new(1), || fetch(1, 2, 1, Reply::Lease(10)));
        let restart = || told(3, 4, Op::Forget, Reply::Happened);
        is_right(&entries, vec![lease(), restart(), stores(5, 6, 10, false)]);
        is_wrong(
            &entries,
            6,
            vec![lease(), restart(), stores(5, 6, 10, true)],
        );
    }
}
