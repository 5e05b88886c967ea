//! Who holds a lock: a set of holds by owner that costs one allocation for the common case of a
//! single holder.

use crate::deadlines::Listed;
use crate::linear_hash::{HashEntry, LinearHash};
use std::collections::BTreeSet;

/// One owner's hold of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// How many times it was acquired and not released; of a semaphore, its permits. 1 or more.
    pub count: u64,
    /// The fencing token of this hold.
    pub fence: u64,
    /// The last millisecond (Unix time) in which it is held.
    pub until: u64,
    /// The last acquisition, if it had a request id.
    pub acquired: Option<Box<Receipt>>,
    /// The last release, if it had a request id.
    pub released: Option<Box<Receipt>>,
    /// The connection that the server renews it for. Not part of the dataset.
    pub watch: Option<Box<Watch>>,
    /// The number of the notice that is published if the hold is lost; 0: none. Not part of the dataset.
    pub notice: u64,
}

impl Hold {
    fn end_by(&mut self, limit: u64) {
        if self.until > limit {
            self.until = limit;
            if let Some(watch) = &mut self.watch {
                watch.lease = 0;
            }
        }
    }
}

/// What was answered to a request, so that its repetition gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The request's id.
    pub id: Box<[u8]>,
    /// The integer that was answered.
    pub reply: u64,
}

/// A WATCHDOG: the server renews the hold while a connection lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// The connection's client id; 0: the connection has closed, and the hold [lingers](Self::lingers).
    pub client: u64,
    /// The lease in milliseconds that each renewal gives. 0: none is given any more, because
    /// somebody set an end to the hold.
    pub lease: u64,
    /// Its number in the index of watched holds; 0: not there yet.
    pub number: u64,
    /// No renewal sets a lease beyond this time (Unix ms); `u64::MAX`: the renewals have no bound.
    pub bound: u64,
    /// Whether the hold stays when the connection closes, and ends with its lease.
    pub lingers: bool,
}

impl Watch {
    /// Whether the server renews the hold now.
    pub fn is_renewed(&self) -> bool {
        self.client != 0 && self.lease > 0
    }
}

/// The holds of one lock by owner, with the bounds of their leases at hand.
#[derive(Debug, Clone)]
pub struct Holds {
    set: Set,
    /// The sum of all counts. It wraps rather than panics if a forged effect makes it too large.
    total: u64,
    /// No hold ends before this; exact after [`Holds::expire`] found something.
    soonest: u64,
    /// The latest end of a hold.
    longest: u64,
}

#[derive(Debug, Clone)]
enum Set {
    None,
    One(Box<[u8]>, Hold),
    Many(Box<Many>),
}

/// An owner with its hold.
#[derive(Debug, Clone)]
struct OwnerHold {
    owner: Box<[u8]>,
    hold: Hold,
}

impl HashEntry for OwnerHold {
    fn key(&self) -> &[u8] {
        &self.owner
    }
    /// Not counted here, because a hold changes in place; see [`Holds::memory`].
    fn heap(&self) -> usize {
        0
    }
}

/// The holds of several owners.
#[derive(Debug, Clone, Default)]
struct Many {
    by_owner: LinearHash<OwnerHold>,
    /// The ends of all of them in order, where there are more than a few: it would take ever longer to look through all
    /// holds for the next end and the last.
    by_end: Option<BTreeSet<(u64, Box<[u8]>)>>,
    /// Where the list of deadlines has the lock. Not part of the dataset.
    listed: Listed,
}

/// More holds than this are kept in the order of their ends as well, until only half as many are left.
const FEW: usize = 64;

impl Many {
    fn insert(&mut self, owner: Box<[u8]>, hold: Hold) {
        if let Some(by_end) = &mut self.by_end {
            by_end.insert((hold.until, owner.clone()));
        }
        self.by_owner.insert(OwnerHold { owner, hold });
        if self.by_end.is_none() && self.by_owner.len() > FEW {
            self.sort();
        }
    }

    /// The caller calls [`Many::shrink`] when it has removed all that it wants to.
    fn take(&mut self, owner: &[u8]) -> Option<OwnerHold> {
        let taken = self.by_owner.remove(self.by_owner.find(owner)?);
        self.by_owner.compact(&mut |_, _| {});
        taken
    }

    fn remove(&mut self, owner: &[u8]) -> Option<Hold> {
        let OwnerHold { owner, hold } = self.take(owner)?;
        if let Some(by_end) = &mut self.by_end {
            by_end.remove(&(hold.until, owner));
        }
        self.shrink();
        Some(hold)
    }

    /// A hold has got another end.
    fn moved(&mut self, owner: &[u8], before: u64, until: u64) {
        if let Some(by_end) = &mut self.by_end
            && before != until
        {
            let mut end = (before, owner.into());
            by_end.remove(&end);
            end.0 = until;
            by_end.insert(end);
        }
    }

    /// Takes `most` of the holds out that ended before `now`; of a few holds, all.
    fn expire(&mut self, now: u64, most: usize) -> Vec<(Box<[u8]>, Hold)> {
        let mut dead = Vec::new();
        if let Some(by_end) = &mut self.by_end {
            while dead.len() < most && by_end.first().is_some_and(|(until, _)| *until < now) {
                dead.extend(by_end.pop_first().map(|(_, owner)| owner));
            }
        } else {
            let ended = self.by_owner.iter().filter(|own| own.hold.until < now);
            dead.extend(ended.map(|own| own.owner.clone()));
        }
        let dead = dead.iter().filter_map(|owner| self.take(owner));
        let dead = dead.map(|own| (own.owner, own.hold)).collect();
        self.shrink();
        dead
    }

    fn clamp(&mut self, limit: u64) {
        self.visit_mut(&mut |hold| hold.end_by(limit));
        if self.by_end.is_some() {
            self.sort();
        }
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Hold)) {
        for chunk in 0..self.by_owner.chunks() {
            self.by_owner
                .visit_chunk(chunk, &mut |own| visit(&mut own.hold));
        }
    }

    fn values(&self) -> impl Iterator<Item = &Hold> {
        self.by_owner.iter().map(|own| &own.hold)
    }

    /// The first and the last end.
    fn bounds(&self) -> (u64, u64) {
        let by_end = self.by_end.as_ref();
        let sorted = by_end.and_then(|ends| Some((ends.first()?.0, ends.last()?.0)));
        sorted.unwrap_or_else(|| bounds(self.values()))
    }

    fn sort(&mut self) {
        let ends = self.by_owner.iter();
        let ends = ends.map(|own| (own.hold.until, own.owner.clone()));
        self.by_end = Some(ends.collect());
    }

    /// Frees the order of ends if few holds are left.
    fn shrink(&mut self) {
        if self.by_owner.len() <= FEW / 2 {
            self.by_end = None;
        }
    }

    fn memory(&self, block: &dyn Fn(usize) -> usize) -> usize {
        let table = self.by_owner.memory() + block(size_of::<Self>()) + self.listed.memory();
        let Some(by_end) = &self.by_end else {
            return table;
        };
        let ends = by_end
            .iter()
            .map(|(_, owner)| BYTES_PER_END + block(owner.len()));
        table + ends.sum::<usize>()
    }
}

/// What an entry of a B-tree takes: its nodes have room for 11 and are 6 to 8 full.
const BYTES_PER_END: usize = 50;

fn bounds<'h>(holds: impl Iterator<Item = &'h Hold>) -> (u64, u64) {
    holds.fold((u64::MAX, 0), |(soonest, longest), hold| {
        (soonest.min(hold.until), longest.max(hold.until))
    })
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            set: Set::None,
            total: 0,
            soonest: u64::MAX,
            longest: 0,
        }
    }
}

impl Holds {
    /// How many owners hold.
    pub fn len(&self) -> usize {
        match &self.set {
            Set::None => 0,
            Set::One(..) => 1,
            Set::Many(many) => many.by_owner.len(),
        }
    }

    /// Whether there is no hold.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of all counts: of a semaphore, the permits that are taken.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// A time (Unix ms) before which no hold ends.
    pub fn soonest(&self) -> u64 {
        self.soonest
    }

    /// The latest end of a hold (Unix ms), 0 if there is none.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// This owner's hold.
    pub fn get(&self, owner: &[u8]) -> Option<&Hold> {
        match &self.set {
            Set::None => None,
            Set::One(name, hold) => (**name == *owner).then_some(hold),
            Set::Many(many) => many.by_owner.get(owner).map(|own| &own.hold),
        }
    }

    /// The hold of an owner that has one.
    #[inline]
    pub fn get_known(&self, owner: &[u8]) -> Option<&Hold> {
        match &self.set {
            // Nobody else has one, so the names need not be compared.
            Set::One(name, hold) => {
                debug_assert!(**name == *owner);
                Some(hold)
            }
            _ => self.get(owner),
        }
    }

    /// Every owner with its hold, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Hold)> {
        let (one, many) = match &self.set {
            Set::None => (None, None),
            Set::One(owner, hold) => (Some((&**owner, hold)), None),
            Set::Many(many) => (None, Some(&many.by_owner)),
        };
        let many = many.into_iter().flat_map(LinearHash::iter);
        one.into_iter()
            .chain(many.map(|own| (&*own.owner, &own.hold)))
    }

    /// Adds a hold for an owner that has none, or replaces the one it has.
    pub fn insert(&mut self, owner: &[u8], hold: Hold) {
        if !self.is_empty() {
            self.remove(owner);
        }
        self.total = self.total.wrapping_add(hold.count);
        self.soonest = self.soonest.min(hold.until);
        self.longest = self.longest.max(hold.until);
        self.set = match std::mem::replace(&mut self.set, Set::None) {
            Set::None => Set::One(owner.into(), hold),
            Set::One(first, other) => {
                let mut many = Box::<Many>::default();
                many.insert(first, other);
                many.insert(owner.into(), hold);
                Set::Many(many)
            }
            Set::Many(mut many) => {
                many.insert(owner.into(), hold);
                Set::Many(many)
            }
        };
    }

    /// Changes an owner's hold in place and returns what `change` returns; `None` if it has none.
    pub fn change<T>(&mut self, owner: &[u8], change: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        let hold = self.get_mut(owner)?;
        let (count, until) = (hold.count, hold.until);
        let result = change(hold);
        let (new_count, new_until) = (hold.count, hold.until);
        self.total = self.total.wrapping_sub(count).wrapping_add(new_count);
        self.soonest = self.soonest.min(new_until);
        if let Set::Many(many) = &mut self.set {
            many.moved(owner, until, new_until);
        }
        if new_until >= self.longest {
            self.longest = new_until;
        } else if until == self.longest {
            self.measure();
        }
        Some(result)
    }

    /// Takes an owner's hold away.
    pub fn remove(&mut self, owner: &[u8]) -> Option<Hold> {
        self.get(owner)?;
        self.remove_known(owner)
    }

    /// The same for an owner that has one.
    pub fn remove_known(&mut self, owner: &[u8]) -> Option<Hold> {
        let hold = match &mut self.set {
            Set::Many(many) => many.remove(owner)?,
            Set::One(name, _) => {
                debug_assert!(**name == *owner);
                match std::mem::replace(&mut self.set, Set::None) {
                    Set::One(_, hold) => hold,
                    _ => unreachable!("it was One"),
                }
            }
            Set::None => return None,
        };
        self.total = self.total.wrapping_sub(hold.count);
        if hold.until == self.longest || self.is_empty() {
            self.measure();
        }
        Some(hold)
    }

    /// Drops every hold.
    pub fn clear(&mut self) {
        match &mut self.set {
            // Its place in the list of deadlines stays with it.
            Set::Many(many) => {
                many.by_owner = LinearHash::default();
                many.shrink();
            }
            set => *set = Set::None,
        }
        self.total = 0;
        self.measure();
    }

    /// When the list of deadlines is to look at the lock (Unix ms), `u64::MAX`: never. A hold that is the only one ends with
    /// its key.
    pub fn next_end(&self) -> u64 {
        if self.len() > 1 {
            self.soonest.saturating_add(1)
        } else {
            u64::MAX
        }
    }

    /// Where the list of deadlines has the lock, if it ever had more than one hold.
    pub fn listed(&self) -> Option<&Listed> {
        match &self.set {
            Set::Many(many) => Some(&many.listed),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn listed_mut(&mut self) -> Option<&mut Listed> {
        match &mut self.set {
            Set::Many(many) => Some(&mut many.listed),
            _ => None,
        }
    }

    /// Drops `most` of the holds whose lease ended before `now`, those that ended first; returns the dropped.
    pub fn expire(&mut self, now: u64, most: usize) -> Vec<(Box<[u8]>, Hold)> {
        if now <= self.soonest {
            return Vec::new();
        }
        let dead = match std::mem::replace(&mut self.set, Set::None) {
            Set::One(owner, hold) if hold.until < now => vec![(owner, hold)],
            Set::Many(mut many) => {
                let dead = many.expire(now, most);
                self.set = Set::Many(many);
                dead
            }
            alive => {
                self.set = alive;
                Vec::new()
            }
        };
        for (_, hold) in &dead {
            self.total = self.total.wrapping_sub(hold.count);
        }
        self.measure();
        dead
    }

    /// Ends every hold at `limit` (Unix ms) at the latest. Returns whether any was shortened.
    pub fn clamp(&mut self, limit: u64) -> bool {
        if self.longest <= limit {
            return false;
        }
        match &mut self.set {
            Set::None => {}
            Set::One(_, hold) => hold.end_by(limit),
            Set::Many(many) => many.clamp(limit),
        }
        self.measure();
        true
    }

    /// Calls `visit` with every hold, whose end and count must stay as they are.
    pub fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Hold)) {
        match &mut self.set {
            Set::None => {}
            Set::One(_, hold) => visit(hold),
            Set::Many(many) => many.visit_mut(visit),
        }
    }

    /// The bytes taken from the allocator beside the struct itself; `block` gives what the
    /// allocator takes for a request of so many bytes.
    pub fn memory(&self, block: &dyn Fn(usize) -> usize) -> usize {
        let table = match &self.set {
            Set::Many(many) => many.memory(block),
            _ => 0,
        };
        let receipt = |receipt: &Option<Box<Receipt>>| match receipt {
            Some(receipt) => block(size_of::<Receipt>()) + block(receipt.id.len()),
            None => 0,
        };
        let watch = |hold: &Hold| hold.watch.as_ref().map_or(0, |_| block(size_of::<Watch>()));
        table
            + self
                .iter()
                .map(|(owner, hold)| {
                    block(owner.len())
                        + receipt(&hold.acquired)
                        + receipt(&hold.released)
                        + watch(hold)
                })
                .sum::<usize>()
    }

    fn get_mut(&mut self, owner: &[u8]) -> Option<&mut Hold> {
        match &mut self.set {
            Set::None => None,
            Set::One(name, hold) => (**name == *owner).then_some(hold),
            Set::Many(many) => {
                let found = many.by_owner.find(owner)?;
                many.by_owner.at_mut(found).map(|own| &mut own.hold)
            }
        }
    }

    fn measure(&mut self) {
        (self.soonest, self.longest) = match &self.set {
            Set::Many(many) => many.bounds(),
            _ => bounds(self.iter().map(|(_, hold)| hold)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// What a naive set of holds would do: owners with the ends of their holds.
    type Model = HashMap<Vec<u8>, u64>;

    fn hold(until: u64) -> Hold {
        Hold {
            count: 1,
            fence: 1,
            until,
            acquired: None,
            released: None,
            watch: None,
            notice: 0,
        }
    }

    #[derive(Debug, Clone)]
    enum HoldsStep {
        Insert(u8, u64),
        Change(u8, u64),
        Remove(u8),
        Expire(u64),
        Clamp(u64),
    }

    fn step() -> impl Strategy<Value = HoldsStep> {
        let end = 0..1000u64;
        prop_oneof![
            60 => (any::<u8>(), end.clone()).prop_map(|(owner, until)| HoldsStep::Insert(owner, until)),
            20 => (any::<u8>(), end.clone()).prop_map(|(owner, until)| HoldsStep::Change(owner, until)),
            20 => any::<u8>().prop_map(HoldsStep::Remove),
            2 => (0..300u64).prop_map(HoldsStep::Expire),
            1 => (500..1000u64).prop_map(HoldsStep::Clamp),
            1 => end.prop_map(HoldsStep::Expire),
        ]
    }

    fn take(holds: &mut Holds, model: &mut Model, step: &HoldsStep) {
        match *step {
            HoldsStep::Insert(owner, until) => {
                holds.insert(&[owner], hold(until));
                model.insert(vec![owner], until);
            }
            HoldsStep::Change(owner, until) => {
                let changed = holds.change(&[owner], |hold| hold.until = until);
                let expected = model.get_mut(&[owner][..]).map(|end| *end = until);
                assert_eq!(changed, expected);
            }
            HoldsStep::Remove(owner) => {
                let removed = holds.remove(&[owner]).map(|hold| hold.until);
                assert_eq!(removed, model.remove(&[owner][..]));
            }
            HoldsStep::Expire(now) => {
                let dead = holds.expire(now, usize::MAX).len();
                let before = model.len();
                model.retain(|_, until| *until >= now);
                assert_eq!(dead, before - model.len());
            }
            HoldsStep::Clamp(limit) => {
                holds.clamp(limit);
                model
                    .values_mut()
                    .for_each(|until| *until = limit.min(*until));
            }
        }
    }

    proptest! {
        #[test]
        fn the_bounds_are_those_of_all_holds_however_many_they_are(steps in prop::collection::vec(step(), 0..600)) {
            let (mut holds, mut model) = (Holds::default(), Model::new());
            for step in &steps {
                take(&mut holds, &mut model, step);
                prop_assert_eq!(holds.len(), model.len());
                prop_assert_eq!(holds.longest(), model.values().copied().max().unwrap_or(0));
                prop_assert!(holds.soonest() <= model.values().copied().min().unwrap_or(u64::MAX));
                if let Set::Many(many) = &holds.set {
                    let ends = many.by_end.as_ref().map(BTreeSet::len);
                    prop_assert!(ends.is_none_or(|ends| ends == model.len()));
                    prop_assert!(ends.is_some() || model.len() <= FEW);
                }
            }
            let mut all: Vec<_> = holds.iter().map(|(owner, hold)| (owner.to_vec(), hold.until)).collect();
            let mut expected: Vec<_> = model.into_iter().collect();
            all.sort();
            expected.sort();
            prop_assert_eq!(all, expected);
        }
    }
}
