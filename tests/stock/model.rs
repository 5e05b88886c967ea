//! The state machine of a stock against a naive model, which keeps everything in one list and looks
//! through all of it each time. 100 000 random operations; after every one of them:
//!
//! - the reply is the model's, the numbers are the model's, and nothing has been lost or found;
//! - a replica that gets only the encoded effects is the same;
//! - whoever has read the events from the beginning has the same numbers.

use proptest::prelude::*;
use sluice::error::Error;
use sluice::stock::persist::{self, Builder, StockEffect};
use sluice::stock::state::{
    Announcement, Change, Counts, Decision, Op, SaleTerms, Stock, StockAction, StockRequest,
};
use std::collections::HashSet;

const RETAIN: u64 = 500;

/// A step, with small numbers so that ids, users and deadlines meet often.
#[derive(Debug, Clone)]
enum Step {
    Add {
        delta: i64,
        order: u8,
    },
    Deduct {
        qty: u64,
        order: u8,
        user: u8,
    },
    Reserve {
        qty: u64,
        order: u8,
        user: u8,
        px: u64,
    },
    Confirm {
        order: u8,
    },
    Cancel {
        order: u8,
    },
    Wait {
        ms: u64,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let order = || 0..12u8; // 0: none
    let user = || 0..4u8;
    let qty = || 1..6u64;
    prop_oneof![
        1 => (-8..8i64, order()).prop_map(|(delta, order)| Step::Add { delta, order }),
        4 => (qty(), order(), user()).prop_map(|(qty, order, user)| Step::Deduct { qty, order, user }),
        6 => (qty(), 1..12u8, user(), prop_oneof![Just(50u64), Just(200), 1..400u64])
            .prop_map(|(qty, order, user, px)| Step::Reserve { qty, order, user, px }),
        3 => (1..12u8).prop_map(|order| Step::Confirm { order }),
        3 => (1..12u8).prop_map(|order| Step::Cancel { order }),
        3 => (0..150u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What came first under an id.
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    Add(i64),
    Deduct(u64),
    Reserve(u64, u64),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Live,
    Done,
    Cancelled,
    Expired,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    order: u8,
    user: u8,
    first: First,
    state: State,
    reply: i64,
    /// When it ends or is forgotten.
    due: u64,
}

/// The contract, as one would tell it.
#[derive(Debug, Default)]
struct Model {
    available: i64,
    reserved: i64,
    sold: i64,
    per_user: i64,
    known: Vec<Known>,
    /// What was taken and not given back, without an order that could tell.
    held: Vec<(u8, i64)>,
}

impl Model {
    fn held_by(&self, user: u8) -> i64 {
        let of_user = self.held.iter().filter(|(other, _)| *other == user);
        of_user.map(|(_, qty)| qty).sum()
    }

    fn find(&mut self, order: u8) -> Option<&mut Known> {
        self.known
            .iter_mut()
            .find(|known| order > 0 && known.order == order)
    }

    fn remember(&mut self, order: u8, user: u8, first: First, state: State, reply: i64, due: u64) {
        if order > 0 {
            self.known.push(Known {
                order,
                user,
                first,
                state,
                reply,
                due,
            });
        }
    }

    fn step(&mut self, step: &Step, now: u64) -> Result<i64, Error> {
        match *step {
            Step::Add { delta, order } => self.come(order, 0, First::Add(delta), now),
            Step::Deduct { qty, order, user } => self.come(order, user, First::Deduct(qty), now),
            Step::Reserve {
                qty,
                order,
                user,
                px,
            } => self.come(order, user, First::Reserve(qty, px), now),
            Step::Confirm { order } => self.confirm(order, now),
            Step::Cancel { order } => self.cancel(order, now),
            Step::Wait { .. } => {
                self.pass(now);
                Ok(0)
            }
        }
    }

    fn come(&mut self, order: u8, user: u8, first: First, now: u64) -> Result<i64, Error> {
        let takes = !matches!(first, First::Add(_));
        let is_closed =
            |known: &mut Known| matches!(known.state, State::Cancelled | State::Expired);
        if takes && self.per_user > 0 && user == 0 && !self.find(order).is_some_and(is_closed) {
            return Err(Error::UserRequired);
        }
        if let Some(known) = self.find(order) {
            return match known.state {
                State::Cancelled | State::Expired => Ok(-3),
                _ if known.first == first && known.user == user => Ok(known.reply),
                _ => Err(Error::Conflict),
            };
        }
        let (taken, state, due) = match first {
            First::Add(delta) => (-delta, State::Done, now + RETAIN),
            First::Deduct(qty) => (qty as i64, State::Done, now + RETAIN),
            First::Reserve(qty, px) => (qty as i64, State::Live, now + px),
            First::Nothing => unreachable!("nobody asks for that"),
        };
        if taken > self.available {
            return Ok(-1);
        }
        if takes && self.per_user > 0 && self.held_by(user) + taken > self.per_user {
            return Ok(-2);
        }
        self.available -= taken;
        match first {
            First::Deduct(_) => self.sold += taken,
            First::Reserve(..) => self.reserved += taken,
            _ => {}
        }
        if takes {
            self.held.push((user, taken));
        }
        self.remember(order, user, first, state, self.available, due);
        Ok(self.available)
    }

    fn confirm(&mut self, order: u8, now: u64) -> Result<i64, Error> {
        let Some(known) = self.find(order) else {
            return Ok(-4);
        };
        match (known.state, known.first) {
            (State::Cancelled | State::Expired, _) => Ok(-3),
            (State::Live, First::Reserve(qty, _)) => {
                known.state = State::Done;
                known.due = now + RETAIN;
                self.reserved -= qty as i64;
                self.sold += qty as i64;
                Ok(qty as i64)
            }
            (_, First::Reserve(qty, _) | First::Deduct(qty)) => Ok(qty as i64),
            (_, First::Add(_) | First::Nothing) => Err(Error::Conflict),
        }
    }

    fn cancel(&mut self, order: u8, now: u64) -> Result<i64, Error> {
        let Some(known) = self.find(order) else {
            self.remember(order, 0, First::Nothing, State::Cancelled, -4, now + RETAIN);
            return Ok(-4);
        };
        let qty = match known.first {
            First::Add(_) => return Err(Error::Conflict),
            First::Nothing => return Ok(-4),
            First::Deduct(qty) | First::Reserve(qty, _) => qty as i64,
        };
        match known.state {
            State::Expired => return Ok(-3),
            State::Cancelled => return Ok(qty),
            _ => {}
        }
        let was_live = known.state == State::Live;
        known.state = State::Cancelled;
        known.due = now + RETAIN;
        let user = known.user;
        self.give_back(was_live, user, qty);
        Ok(qty)
    }

    fn give_back(&mut self, was_live: bool, user: u8, qty: i64) {
        self.available += qty;
        *(if was_live {
            &mut self.reserved
        } else {
            &mut self.sold
        }) -= qty;
        self.held.push((user, -qty));
    }

    fn pass(&mut self, now: u64) {
        for index in 0..self.known.len() {
            let known = self.known[index];
            if let (State::Live, First::Reserve(qty, _), true) =
                (known.state, known.first, known.due <= now)
            {
                self.known[index].state = State::Expired;
                self.known[index].due = now + RETAIN;
                self.give_back(true, known.user, qty as i64);
            }
        }
        self.known
            .retain(|known| known.state == State::Live || known.due > now);
    }
}

fn word(prefix: &str, number: u8) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        number => format!("{prefix}{number}").into_bytes(),
    }
}

/// Somebody who knows nothing but the event stream.
#[derive(Clone)]
struct Reader {
    counts: Counts,
    /// The orders whose quantity is reserved at the moment.
    live: HashSet<Vec<u8>>,
}

impl Reader {
    fn read(&mut self, op: Op, told: &Announcement<'_>) {
        assert_eq!(told.ver, self.counts.ver + 1, "a gap in the events");
        let counts = &mut self.counts;
        let add = |number: &mut u64, qty: i64| *number = number.wrapping_add_signed(qty);
        let qty = told.qty;
        match op {
            Op::Add => add(&mut counts.available, qty),
            Op::Deduct => {
                add(&mut counts.available, -qty);
                add(&mut counts.sold, qty);
            }
            Op::Reserve => {
                add(&mut counts.available, -qty);
                add(&mut counts.reserved, qty);
                self.live.insert(told.order.to_vec());
            }
            Op::Confirm => {
                assert!(self.live.remove(told.order));
                add(&mut counts.reserved, -qty);
                add(&mut counts.sold, qty);
            }
            Op::Cancel | Op::Expire => {
                let live = self.live.remove(told.order);
                assert!(live || op == Op::Cancel);
                let from = if live {
                    &mut counts.reserved
                } else {
                    &mut counts.sold
                };
                add(from, -qty);
                add(&mut counts.available, qty);
            }
            Op::Mark | Op::Forget => panic!("{op:?} is not told"),
        }
        counts.ver = told.ver;
        assert_eq!(counts.available, told.available, "{op:?} {qty}");
    }
}

/// The stock, a replica of it, and somebody who reads its events.
struct World {
    stock: Stock,
    replica: Stock,
    reader: Option<Reader>,
}

impl World {
    fn new(total: u64, per_user: u64) -> Self {
        let counts = Counts {
            available: total,
            reserved: 0,
            sold: 0,
            ver: 1,
        };
        let terms = SaleTerms {
            per_user,
            retain: RETAIN,
            events: None,
        };
        Self {
            stock: Stock::new(counts, terms.clone()),
            replica: Stock::new(counts, terms),
            reader: Some(Reader {
                counts,
                live: HashSet::new(),
            }),
        }
    }

    /// What the server does with a request.
    fn step(&mut self, step: &Step, now: u64) -> Result<i64, Error> {
        let (order, user) = match step {
            Step::Add { order, .. } | Step::Confirm { order } | Step::Cancel { order } => {
                (*order, 0)
            }
            Step::Deduct { order, user, .. } | Step::Reserve { order, user, .. } => (*order, *user),
            Step::Wait { .. } => {
                self.pass(now);
                return Ok(0);
            }
        };
        let action = match *step {
            Step::Add { delta, .. } => StockAction::Add { delta },
            Step::Deduct { qty, .. } => StockAction::Deduct { qty },
            Step::Reserve { qty, px, .. } => StockAction::Reserve { qty, px },
            Step::Confirm { .. } => StockAction::Confirm,
            _ => StockAction::Cancel,
        };
        let (order, user) = (word("order:", order), word("user:", user));
        let request = StockRequest {
            action,
            order: &order,
            user: &user,
        };
        match self.stock.decide(&request, now)? {
            Decision::Refused(refusal) => Ok(refusal as i64),
            Decision::Repeated(reply) => Ok(reply),
            Decision::Change(change, reply) => {
                self.apply(&change);
                Ok(reply)
            }
        }
    }

    /// What the server does by itself, in slices.
    fn pass(&mut self, now: u64) {
        loop {
            let Some(store) = self.stock.store() else {
                return;
            };
            let mut due: Vec<_> = store
                .ended(now, 2)
                .into_iter()
                .map(|id| (Op::Expire, id))
                .collect();
            let old = store.forgettable(now, self.stock.terms().retain, 2);
            due.extend(old.into_iter().map(|id| (Op::Forget, id)));
            if due.is_empty() {
                assert!(self.stock.next_due() > now);
                return;
            }
            for (op, id) in due {
                self.apply(&Change::of(op, &id, now));
            }
        }
    }

    fn apply(&mut self, change: &Change<'_>) {
        if let Some(told) = self.stock.announce(change)
            && let Some(reader) = &mut self.reader
        {
            reader.read(change.op, &told);
        }
        self.stock.apply(change).expect("it was decided");
        let mut bytes = Vec::new();
        persist::put_changed(&mut bytes, change, None);
        for effect in persist::effects(&bytes) {
            match effect {
                Ok(StockEffect::Changed(change, None)) => {
                    self.replica.apply(&change).expect("the master did so");
                }
                effect => panic!("{effect:?}"),
            }
        }
    }

    fn check(&self, model: &Model) {
        let counts = self.stock.counts();
        let numbers = [counts.available, counts.reserved, counts.sold];
        assert_eq!(
            numbers.map(|number| number as i64),
            [model.available, model.reserved, model.sold]
        );
        let reader = self.reader.as_ref();
        assert_eq!(reader.map(|reader| reader.counts), Some(counts));
        let orders = self.stock.store().map_or(0, |store| store.order_count());
        assert_eq!(orders, model.known.len());
        assert!(self.stock.is_consistent());
        assert_eq!(self.replica.counts(), counts);
    }
}

fn pieces(stock: &Stock) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let given = persist::pieces(stock, &mut |piece| pieces.push(piece.to_vec()));
    assert_eq!((given, given), (pieces.len(), persist::count_pieces(stock)));
    pieces
}

/// What a stock consists of, in an order of its own.
fn content(stock: &Stock) -> Vec<Vec<u8>> {
    let mut content = vec![Vec::new()];
    persist::put_summary(&mut content[0], stock);
    let store = stock.store();
    for order in store.iter().flat_map(|store| store.iter_orders()) {
        let mut bytes = Vec::new();
        persist::put_order(&mut bytes, &order);
        content.push(bytes);
    }
    for user in store.iter().flat_map(|store| store.iter_users()) {
        let mut bytes = Vec::new();
        persist::put_user(&mut bytes, &user.id, user.held);
        content.push(bytes);
    }
    content.sort();
    content
}

fn rebuilt(stock: &Stock) -> Stock {
    let mut builder = Builder::default();
    for piece in pieces(stock) {
        builder.add(&piece).expect("what was written");
    }
    builder.finish().expect("what was written")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 1000 }))]

    #[test]
    fn every_step_is_the_models(
        total in 0..40u64,
        per_user in prop_oneof![Just(0u64), 1..8u64],
        steps in proptest::collection::vec(any_step(), 200),
    ) {
        let mut world = World::new(total, per_user);
        let mut model = Model { available: total as i64, per_user: per_user as i64, ..Model::default() };
        let mut now = 1_800_000_000_000;
        for (index, step) in steps.iter().enumerate() {
            if let Step::Wait { ms } = step {
                now += ms;
            }
            // The server ends what is due before it looks at a request; so does the model.
            model.pass(now);
            world.pass(now);
            prop_assert_eq!(world.step(step, now), model.step(step, now), "step {}: {:?}", index, step);
            world.check(&model);
        }
        for user in 1..4u8 {
            let held = world.stock.store().map_or(0, |store| store.held(&word("user:", user)));
            let expected = if per_user > 0 { model.held_by(user) } else { 0 };
            prop_assert_eq!(held as i64, expected);
        }
        prop_assert_eq!(content(&world.replica), content(&world.stock));
        let mut again = rebuilt(&world.stock);
        prop_assert_eq!(content(&again), content(&world.stock));
        prop_assert_eq!(again.next_due(), world.stock.next_due());
        // It goes on as the first one would have.
        again.listed = world.stock.listed;
        world.replica = world.stock.clone();
        world.stock = again;
        for step in &steps {
            if let Step::Wait { ms } = step {
                now += ms;
            }
            model.pass(now);
            world.pass(now);
            prop_assert_eq!(world.step(step, now), model.step(step, now));
            world.check(&model);
        }
        prop_assert_eq!(content(&world.replica), content(&world.stock));
    }

    #[test]
    fn bytes_from_outside_never_make_it_panic(
        steps in proptest::collection::vec(any_step(), 60),
        per_user in 0..8u64,
        at: prop::sample::Index,
        bit in 0..8u32,
        cut: prop::sample::Index,
    ) {
        let mut world = World::new(30, per_user);
        let mut now = 1_800_000_000_000;
        for step in &steps {
            now += 7;
            let _ = world.step(step, now);
        }
        let piece = pieces(&world.stock).concat();
        let mut damaged = piece.clone();
        damaged[at.index(piece.len())] ^= 1u8 << bit;
        for bytes in [&damaged[..], &piece[..cut.index(piece.len())]] {
            let mut builder = Builder::default();
            if builder.add(bytes).is_ok() && let Ok(mut stock) = builder.finish() {
                // Whatever it is, it keeps the rules and can be used.
                prop_assert!(stock.is_consistent());
                for step in &steps {
                    let mut world = World { replica: stock.clone(), stock, reader: None };
                    now += 50;
                    world.pass(now);
                    let _ = world.step(step, now);
                    prop_assert!(world.stock.is_consistent());
                    stock = world.stock;
                }
            }
            // As an effect for a stock that is there, it does all or nothing.
            for effect in persist::effects(bytes) {
                if let Ok(StockEffect::Changed(change, _)) = effect {
                    let _ = world.stock.apply(&change);
                }
            }
        }
    }
}
