//! Who holds a lock: a set of holds by owner that costs one allocation for the common case of a
//! single holder.

use crate::deadlines::Listed;
use crate::linear_hash::{HashEntry, LinearHash};
use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU64;

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
    /// The bound of the renewals. `None`: nobody has asked for renewals, as far as is known.
    pub fn bound(&self) -> Option<u64> {
        let of_receipt = || Some(self.acquired.as_ref()?.bound?.get());
        self.watch
            .as_ref()
            .map(|watch| watch.bound)
            .or_else(of_receipt)
    }

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
    /// Of an acquisition: the [bound](Watch::bound) that a repetition keeps after a restart or a failover, which forget the watch of the
    /// hold. `None`: nobody had asked for renewals.
    pub bound: Option<NonZeroU64>,
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
    /// The holds, with those that have ended and are to be removed.
    by_owner: LinearHash<OwnerHold>,
    /// The order of their ends, if there are more than a few. Without this order, each search for the first and the last end
    /// would read all holds.
    ends: Option<Box<Ends>>,
    /// Where the list of deadlines has the lock. Not part of the dataset.
    listed: Listed,
}

/// Holds with their counts, in the order of their ends (Unix ms).
type ByEnd = BTreeMap<(u64, Box<[u8]>), u64>;

/// The ends of many holds.
#[derive(Debug, Clone, Default)]
struct Ends {
    /// The holds that have not ended.
    live: ByEnd,
    /// The holds that have ended and are to be removed. The list also has entries of holds that were replaced or removed
    /// meanwhile.
    ended: Vec<ByEnd>,
}

impl Ends {
    fn pop_ended(&mut self) -> Option<(u64, Box<[u8]>)> {
        loop {
            if let Some((end, _)) = self.ended.last_mut()?.pop_first() {
                return Some(end);
            }
            self.ended.pop();
        }
    }

    /// Notes that the holds which end before `now` have ended. Returns their counts.
    fn end(&mut self, now: u64) -> u64 {
        if !self.has_due(now) {
            return 0;
        }
        let live = self.live.split_off(&(now, Box::default()));
        let ended = mem::replace(&mut self.live, live);
        let counts = ended.values().copied().fold(0, u64::wrapping_add);
        self.ended.push(ended);
        counts
    }

    fn has_due(&self, now: u64) -> bool {
        let first = self.live.first_key_value();
        first.is_some_and(|((until, _), _)| *until < now)
    }

    fn is_live(&self, own: &OwnerHold) -> bool {
        let end = (own.hold.until, own.owner.clone());
        self.live.contains_key(&end)
    }
}

/// More holds than this are kept in the order of their ends as well, until only half as many are left.
const FEW: usize = 64;

impl Many {
    /// How many holds have not ended.
    fn len(&self) -> usize {
        let ends = self.ends.as_ref();
        ends.map_or(self.by_owner.len(), |ends| ends.live.len())
    }

    /// Whether holds have ended that are still to be removed.
    fn has_ended(&self) -> bool {
        let ends = self.ends.as_ref();
        ends.is_some_and(|ends| !ends.ended.is_empty())
    }

    fn is_live(&self, own: &OwnerHold) -> bool {
        let ends = self.ends.as_ref();
        ends.is_none_or(|ends| ends.live.len() == self.by_owner.len() || ends.is_live(own))
    }

    fn get(&self, owner: &[u8]) -> Option<&Hold> {
        let own = self.by_owner.get(owner)?;
        self.is_live(own).then_some(&own.hold)
    }

    fn get_mut(&mut self, owner: &[u8]) -> Option<&mut Hold> {
        let found = self.by_owner.find(owner)?;
        if !self.is_live(self.by_owner.at(found)?) {
            return None;
        }
        self.by_owner.at_mut(found).map(|own| &mut own.hold)
    }

    /// The owners with the holds that have not ended.
    fn iter(&self) -> impl Iterator<Item = &OwnerHold> {
        // Where holds have ended, those that have not are found by their ends: there may be few of them among very many.
        let ends = self.ends.as_ref();
        let ends = ends.filter(|ends| ends.live.len() < self.by_owner.len());
        let all = ends.is_none().then(|| self.by_owner.iter());
        let live = ends.into_iter().flat_map(|ends| ends.live.keys());
        let live = live.filter_map(|(_, owner)| self.by_owner.get(owner));
        all.into_iter().flatten().chain(live)
    }

    fn insert(&mut self, owner: Box<[u8]>, hold: Hold) {
        if let Some(ends) = &mut self.ends {
            ends.live.insert((hold.until, owner.clone()), hold.count);
        }
        self.by_owner.insert(OwnerHold { owner, hold });
        if self.ends.is_none() && self.by_owner.len() > FEW {
            self.ends = Some(Box::new(Ends {
                live: by_end(self.by_owner.iter()),
                ended: Vec::new(),
            }));
        }
    }

    /// The caller calls [`Many::shrink`] when it has removed all that it wants to.
    fn take(&mut self, owner: &[u8]) -> Option<OwnerHold> {
        let taken = self.by_owner.remove(self.by_owner.find(owner)?);
        self.by_owner.compact(&mut |_, _| {});
        taken
    }

    fn remove(&mut self, owner: &[u8]) -> Option<Hold> {
        if self.has_ended() {
            self.get(owner)?;
        }
        let OwnerHold { owner, hold } = self.take(owner)?;
        if let Some(ends) = &mut self.ends {
            ends.live.remove(&(hold.until, owner));
        }
        self.shrink();
        Some(hold)
    }

    /// Removes the hold of this owner if it has ended.
    fn remove_ended(&mut self, owner: &[u8]) -> Option<Hold> {
        if !self.has_ended() || self.is_live(self.by_owner.get(owner)?) {
            return None;
        }
        self.take(owner).map(|own| own.hold)
    }

    /// A hold has got another end or count.
    fn moved(&mut self, owner: &[u8], before: u64, (until, count): (u64, u64)) {
        if let Some(ends) = &mut self.ends {
            let mut end = (before, owner.into());
            if before == until {
                ends.live.entry(end).and_modify(|known| *known = count);
            } else {
                ends.live.remove(&end);
                end.0 = until;
                ends.live.insert(end, count);
            }
        }
    }

    /// Removes at most `most` of the holds that ended before `now`; if the set is small, all of them. The remaining ended holds no
    /// longer count. Adds the counts of the holds that this call ended to `ended`. Returns the removed holds.
    fn expire(&mut self, now: u64, most: usize, ended: &mut u64) -> Vec<(Box<[u8]>, Hold)> {
        let mut dead = Vec::new();
        if let Some(ends) = &mut self.ends {
            let mut owners = Vec::new();
            let mut left = most;
            while left > 0
                && let Some((until, owner)) = ends.pop_ended()
            {
                left -= 1;
                let own = self.by_owner.get(&owner);
                if own.is_some_and(|own| own.hold.until == until && !ends.is_live(own)) {
                    owners.push(owner);
                }
            }
            while left > 0 && ends.has_due(now) {
                left -= 1;
                if let Some(((_, owner), count)) = ends.live.pop_first() {
                    *ended = ended.wrapping_add(count);
                    owners.push(owner);
                }
            }
            *ended = ended.wrapping_add(ends.end(now));
            dead.extend(owners.iter().filter_map(|owner| self.take(owner)));
        } else {
            let due = self.by_owner.iter().filter(|own| own.hold.until < now);
            let due: Vec<Box<[u8]>> = due.map(|own| own.owner.clone()).collect();
            dead.extend(due.iter().filter_map(|owner| self.take(owner)));
            let counts = dead.iter().map(|own| own.hold.count);
            *ended = counts.fold(*ended, u64::wrapping_add);
        }
        self.shrink();
        dead.into_iter().map(|own| (own.owner, own.hold)).collect()
    }

    fn clamp(&mut self, limit: u64) {
        let (by_owner, ends) = (&mut self.by_owner, &mut self.ends);
        let mut clamped = ByEnd::new();
        for chunk in 0..by_owner.chunks() {
            by_owner.visit_chunk(chunk, &mut |own| match ends {
                None => own.hold.end_by(limit),
                Some(ends) if ends.is_live(own) => {
                    own.hold.end_by(limit);
                    clamped.insert((own.hold.until, own.owner.clone()), own.hold.count);
                }
                Some(_) => {}
            });
        }
        if let Some(ends) = ends {
            ends.live = clamped;
        }
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Hold)) {
        for chunk in 0..self.by_owner.chunks() {
            self.by_owner
                .visit_chunk(chunk, &mut |own| visit(&mut own.hold));
        }
    }

    /// The first and the last end.
    fn bounds(&self) -> (u64, u64) {
        let Some(ends) = &self.ends else {
            return bounds(self.by_owner.iter().map(|own| &own.hold));
        };
        let (first, last) = (ends.live.first_key_value(), ends.live.last_key_value());
        let end = |((until, _), _): (&(u64, Box<[u8]>), &u64)| *until;
        (first.map_or(u64::MAX, end), last.map_or(0, end))
    }

    /// Frees the order of ends if few holds are left.
    fn shrink(&mut self) {
        if self.by_owner.len() <= FEW / 2 && !self.has_ended() {
            self.ends = None;
        }
    }

    fn memory(&self, block: &dyn Fn(usize) -> usize) -> usize {
        let table = self.by_owner.memory() + block(size_of::<Self>()) + self.listed.memory();
        let Some(ends) = &self.ends else {
            return table;
        };
        let ends = ends.ended.iter().chain([&ends.live]).flatten();
        let ends = ends.map(|((_, owner), _)| BYTES_PER_END + block(owner.len()));
        table + block(size_of::<Ends>()) + ends.sum::<usize>()
    }
}

fn by_end<'o>(holds: impl Iterator<Item = &'o OwnerHold>) -> ByEnd {
    let ends = holds.map(|own| ((own.hold.until, own.owner.clone()), own.hold.count));
    ends.collect()
}

/// What an entry of a B-tree takes: its nodes have room for 11 and are 6 to 8 full.
const BYTES_PER_END: usize = 65;

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
            Set::Many(many) => many.len(),
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
            Set::Many(many) => many.get(owner),
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
        let many = self.many().into_iter().flat_map(Many::iter);
        self.one().chain(many.map(|own| (&*own.owner, &own.hold)))
    }

    /// The same with the holds that have ended and are still to be removed.
    pub fn iter_with_ended(&self) -> impl Iterator<Item = (&[u8], &Hold)> {
        let many = self.many().into_iter();
        let many = many.flat_map(|many| many.by_owner.iter());
        self.one().chain(many.map(|own| (&*own.owner, &own.hold)))
    }

    /// How many there are, with those that have ended and are still to be removed.
    pub fn len_with_ended(&self) -> usize {
        let many = self.many().map(|many| many.by_owner.len());
        many.unwrap_or_else(|| self.len())
    }

    fn one(&self) -> impl Iterator<Item = (&[u8], &Hold)> {
        let one = match &self.set {
            Set::One(owner, hold) => Some((&**owner, hold)),
            _ => None,
        };
        one.into_iter()
    }

    fn many(&self) -> Option<&Many> {
        match &self.set {
            Set::Many(many) => Some(many),
            _ => None,
        }
    }

    /// Whether holds have ended that [`Holds::expire`] has still to return.
    pub fn has_ended(&self) -> bool {
        self.many().is_some_and(Many::has_ended)
    }

    /// Whether there is something for [`Holds::expire`] to do.
    #[inline]
    pub fn has_due(&self, now: u64) -> bool {
        self.soonest < now || self.has_ended()
    }

    /// Removes the hold of this owner if it has ended and [`Holds::expire`] has still to return it.
    pub fn remove_ended(&mut self, owner: &[u8]) -> Option<Hold> {
        match &mut self.set {
            Set::Many(many) => many.remove_ended(owner),
            _ => None,
        }
    }

    /// Adds a hold for an owner that has none, or replaces the one it has.
    pub fn insert(&mut self, owner: &[u8], hold: Hold) {
        if !self.is_empty() {
            self.remove(owner);
        }
        self.remove_ended(owner);
        self.total = self.total.wrapping_add(hold.count);
        self.soonest = self.soonest.min(hold.until);
        self.longest = self.longest.max(hold.until);
        self.set = match mem::replace(&mut self.set, Set::None) {
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
        if let Set::Many(many) = &mut self.set
            && (count, until) != (new_count, new_until)
        {
            many.moved(owner, until, (new_until, new_count));
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
                match mem::replace(&mut self.set, Set::None) {
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
                many.ends = None;
            }
            set => *set = Set::None,
        }
        self.total = 0;
        self.measure();
    }

    /// When the list of deadlines is to look at the lock (Unix ms), `u64::MAX`: never. A hold that is the only one ends with
    /// its key. 0: at once, because holds have ended that are to be removed.
    pub fn next_end(&self) -> u64 {
        if self.has_ended() {
            0
        } else if self.len() > 1 {
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

    /// Ends all holds whose lease ended before `now`, but removes at most `most` of them; returns the
    /// removed. The others [have ended](Self::has_ended), and later calls return them.
    pub fn expire(&mut self, now: u64, most: usize) -> Vec<(Box<[u8]>, Hold)> {
        if now <= self.soonest && !self.has_ended() {
            return Vec::new();
        }
        let mut ended = 0;
        let dead = match mem::replace(&mut self.set, Set::None) {
            Set::One(owner, hold) if hold.until < now => {
                ended = hold.count;
                vec![(owner, hold)]
            }
            Set::Many(mut many) => {
                let dead = many.expire(now, most, &mut ended);
                self.set = Set::Many(many);
                dead
            }
            alive => {
                self.set = alive;
                Vec::new()
            }
        };
        self.total = self.total.wrapping_sub(ended);
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
                .iter_with_ended()
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
            Set::Many(many) => many.get_mut(owner),
        }
    }

    fn measure(&mut self) {
        (self.soonest, self.longest) = match &self.set {
            Set::Many(many) => many.bounds(),
            _ => bounds(self.one().map(|(_, hold)| hold)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// What a naive set of holds would do.
    #[derive(Default)]
    struct Model {
        /// Owners with the ends of their holds.
        ends: HashMap<Vec<u8>, u64>,
        /// The holds that have ended and were not returned yet.
        ended: HashMap<Vec<u8>, u64>,
    }

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
        RemoveEnded(u8),
        Expire(u64, usize),
        Clamp(u64),
    }

    fn step() -> impl Strategy<Value = HoldsStep> {
        let end = 0..1000u64;
        let most = || prop_oneof![1..20usize, Just(usize::MAX)];
        prop_oneof![
            60 => (any::<u8>(), end.clone()).prop_map(|(owner, until)| HoldsStep::Insert(owner, until)),
            20 => (any::<u8>(), end.clone()).prop_map(|(owner, until)| HoldsStep::Change(owner, until)),
            20 => any::<u8>().prop_map(HoldsStep::Remove),
            5 => any::<u8>().prop_map(HoldsStep::RemoveEnded),
            2 => (0..300u64, most()).prop_map(|(now, most)| HoldsStep::Expire(now, most)),
            1 => (500..1000u64).prop_map(HoldsStep::Clamp),
            1 => (end, most()).prop_map(|(now, most)| HoldsStep::Expire(now, most)),
        ]
    }

    fn take(holds: &mut Holds, model: &mut Model, step: &HoldsStep) {
        match *step {
            HoldsStep::Insert(owner, until) => {
                holds.insert(&[owner], hold(until));
                model.ends.insert(vec![owner], until);
                model.ended.remove(&[owner][..]);
            }
            HoldsStep::Change(owner, until) => {
                let changed = holds.change(&[owner], |hold| {
                    hold.until = until;
                    hold.count += until % 2;
                });
                let expected = model.ends.get_mut(&[owner][..]).map(|end| *end = until);
                assert_eq!(changed, expected);
            }
            HoldsStep::Remove(owner) => {
                let removed = holds.remove(&[owner]).map(|hold| hold.until);
                assert_eq!(removed, model.ends.remove(&[owner][..]));
            }
            HoldsStep::RemoveEnded(owner) => {
                let removed = holds.remove_ended(&[owner]).map(|hold| hold.until);
                assert_eq!(removed, model.ended.remove(&[owner][..]));
            }
            HoldsStep::Expire(now, most) => {
                let dead = holds.expire(now, most);
                assert!(dead.len() <= most.max(FEW));
                let due = model.ends.extract_if(|_, until| *until < now);
                model.ended.extend(due);
                for (owner, hold) in dead {
                    assert_eq!(model.ended.remove(&*owner), Some(hold.until));
                }
                assert!(model.ended.is_empty() || holds.has_ended());
            }
            HoldsStep::Clamp(limit) => {
                holds.clamp(limit);
                let ends = model.ends.values_mut();
                ends.for_each(|until| *until = limit.min(*until));
            }
        }
    }

    proptest! {
        #[test]
        fn the_bounds_are_those_of_all_holds_however_many_they_are(steps in prop::collection::vec(step(), 0..600)) {
            let (mut holds, mut model) = (Holds::default(), Model::default());
            for step in &steps {
                take(&mut holds, &mut model, step);
                prop_assert_eq!(holds.len(), model.ends.len());
                prop_assert_eq!(holds.len_with_ended(), model.ends.len() + model.ended.len());
                prop_assert_eq!(holds.total(), holds.iter().map(|(_, hold)| hold.count).sum::<u64>());
                let (first, last) = (model.ends.values().copied().min(), model.ends.values().copied().max());
                prop_assert_eq!(holds.longest(), last.unwrap_or(0));
                prop_assert!(holds.soonest() <= first.unwrap_or(u64::MAX));
                for owner in model.ended.keys() {
                    prop_assert!(holds.get(owner).is_none());
                }
                if let Set::Many(many) = &holds.set {
                    let ends = many.ends.as_ref().map(|ends| ends.live.len());
                    prop_assert!(ends.is_none_or(|ends| ends == model.ends.len()));
                    prop_assert!(ends.is_some() || model.ends.len() <= FEW);
                }
            }
            let mut all: Vec<_> = holds.iter().map(|(owner, hold)| (owner.to_vec(), hold.until)).collect();
            let mut expected: Vec<_> = model.ends.into_iter().collect();
            all.sort();
            expected.sort();
            prop_assert_eq!(all, expected);
        }
    }
}
