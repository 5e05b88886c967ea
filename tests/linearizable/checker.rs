//! Is there an order in which the operations of a history could have happened one after the other?
//!
//! The `stateright` crate's [`LinearizabilityTester`] decides. Two things are added around it, neither of which can hide
//! a violation:
//!
//! - **An operation of unknown outcome** (its reply was lost) may happen at any time after it was sent, or never. It is
//!   given to the tester as one that returns after all others, with a reply that nobody knows: put last, it changes
//!   nothing that anybody saw, which is as good as never.
//! - **A memory.** The tester tries orders one by one. The same operations in another order often lead to the same state,
//!   from which it need not look again (Lowe, "Testing for linearizability", 2017). The model that it steps refuses a
//!   step that leads to where it has been. To refuse more can only make a good history look wrong, never a wrong one good.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// More steps than this are not tried, which is some seconds' worth, and that is told: one or two of a thousand histories,
/// those with the most lost replies, would take more.
const MOST_STEPS: usize = 50_000;

/// What one after the other would do.
pub trait Model: Clone + Debug + Eq + Hash {
    /// What clients ask for, and what happens beside them.
    type Op: Clone + Debug + Send;
    /// What they are told.
    type Reply: Clone + Debug + PartialEq + Send;

    /// Carries the operation out, if this may be its reply; `None`: any may. Else the model is left as it comes to be.
    fn step(&mut self, op: &Self::Op, reply: Option<&Self::Reply>) -> bool;
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum End<R> {
    /// With a reply, at this time.
    Reply(Duration, R),
    /// Nobody knows whether it happened or will.
    Unknown(String),
    /// It did not happen: the server said so.
    Never(String),
}

/// Who did something: a client, or nobody (what happens by itself).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    Client(usize),
    Nobody,
}

/// One operation of a history. Times count from the beginning of the history.
#[derive(Clone, Debug)]
pub struct Record<M: Model> {
    pub who: Who,
    pub op: M::Op,
    pub from: Duration,
    pub end: End<M::Reply>,
}

/// What comes of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Linearizable,
    Violation,
    /// The search was given up.
    TooLong,
}

/// The time of the first reply that no order explains, of a history that has none.
pub fn first_wrong_reply<M: Model>(model: &M, records: &[Record<M>]) -> Option<Duration> {
    let mut replies: Vec<Duration> = records.iter().filter_map(replied_at).collect();
    replies.sort();
    let explained = |until: &Duration| check(model, &cut(records, *until)) != Verdict::Violation;
    replies.get(replies.partition_point(explained)).copied()
}

/// What was known of a history at some time.
fn cut<M: Model>(records: &[Record<M>], until: Duration) -> Vec<Record<M>> {
    let begun = records.iter().filter(|record| record.from <= until);
    let known = begun.map(|record| match replied_at(record) {
        Some(at) if at > until => Record {
            end: End::Unknown(String::new()),
            ..record.clone()
        },
        _ => record.clone(),
    });
    known.collect()
}

fn replied_at<M: Model>(record: &Record<M>) -> Option<Duration> {
    match record.end {
        End::Reply(at, _) => Some(at),
        _ => None,
    }
}

/// The tester's threads. It tries them in this order: what surely happened first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thread {
    /// A client, as long as it knows what becomes of its operations.
    Client(usize),
    /// Something that happens by itself.
    Own(usize),
    /// An operation of unknown outcome: its client goes on without it.
    Lost(usize),
}

/// Checks a history that begins with `model`.
pub fn check<M: Model>(model: &M, records: &[Record<M>]) -> Verdict {
    assert!(records.len() <= 128, "{} operations", records.len());
    let mut known = 0u128;
    // What is told to the tester, in the order in which it happened.
    let mut events = Vec::new();
    let mut lost = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let thread = match (&record.end, record.who) {
            (End::Never(_), _) => continue,
            (End::Unknown(_), _) => {
                lost.push(Thread::Lost(index));
                Thread::Lost(index)
            }
            (End::Reply(..), Who::Client(client)) => Thread::Client(client),
            (End::Reply(..), Who::Nobody) => Thread::Own(index),
        };
        events.push((record.from, true, thread, index));
        if let End::Reply(at, _) = record.end {
            known |= 1 << index;
            events.push((at, false, thread, index));
        }
    }
    events.sort_by_key(|(at, begins, ..)| (*at, *begins));
    let search = Rc::new(RefCell::new(Search::default()));
    let mut tester = LinearizabilityTester::new(Walk {
        model: model.clone(),
        done: 0,
        known,
        search: Rc::clone(&search),
    });
    for (_, begins, thread, index) in events {
        let record = &records[index];
        let told = match (&record.end, begins) {
            (_, true) => tester.on_invoke(thread, (index, record.op.clone())),
            (End::Reply(_, reply), false) => tester.on_return(thread, Some(reply.clone())),
            (_, false) => unreachable!("it has no reply"),
        };
        told.expect("a client asks one thing after the other");
    }
    for thread in lost {
        tester.on_return(thread, None).expect("it was begun");
    }
    let is_consistent = tester.is_consistent();
    let is_given_up = search.borrow().steps > MOST_STEPS;
    match is_consistent {
        true => Verdict::Linearizable,
        false if is_given_up => Verdict::TooLong,
        false => Verdict::Violation,
    }
}

/// What the search has seen until now.
struct Search<M> {
    been: HashSet<(u128, M)>,
    steps: usize,
}

impl<M> Default for Search<M> {
    fn default() -> Self {
        Self {
            been: HashSet::new(),
            steps: 0,
        }
    }
}

/// A model that knows which operations it has done, and refuses to go where the search has been.
#[derive(Clone)]
struct Walk<M> {
    model: M,
    /// The operations that were done, as bits.
    done: u128,
    /// Those whose outcome is known.
    known: u128,
    search: Rc<RefCell<Search<M>>>,
}

impl<M: Model> SequentialSpec for Walk<M> {
    type Op = (usize, M::Op);
    type Ret = Option<M::Reply>;

    fn invoke(&mut self, _op: &Self::Op) -> Self::Ret {
        unreachable!("every operation is given a reply, if only that nobody knows it")
    }

    fn is_valid_step(&mut self, (index, op): &Self::Op, reply: &Self::Ret) -> bool {
        self.done |= 1 << index;
        let is_over = self.done & self.known == self.known;
        if reply.is_none() && is_over {
            return true; // nobody looks any more
        }
        let mut search = self.search.borrow_mut();
        search.steps += 1;
        if search.steps > MOST_STEPS {
            return false;
        }
        let before = reply.is_none().then(|| self.model.clone());
        if !self.model.step(op, reply.as_ref()) {
            return false;
        }
        // Whoever's outcome is unknown and who would change nothing now may as well come later.
        if before.is_some_and(|before| before == self.model) {
            return false;
        }
        search.been.insert((self.done, self.model.clone()))
    }
}
