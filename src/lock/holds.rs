//! Who holds a lock: a set of holds by owner that costs one allocation for the common case of a
//! single holder.

use std::collections::HashMap;

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
    /// The connection's client id.
    pub client: u64,
    /// The lease in milliseconds that each renewal gives. 0: none is given any more, because
    /// somebody set an end to the hold.
    pub lease: u64,
    /// Its number in the index of watched holds; 0: not there yet.
    pub number: u64,
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
    Many(HashMap<Box<[u8]>, Hold>),
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
            Set::Many(map) => map.len(),
        }
    }

    /// Does nobody hold?
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
            Set::Many(map) => map.get(owner),
        }
    }

    /// Every owner with its hold, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Hold)> {
        let (one, many) = match &self.set {
            Set::None => (None, None),
            Set::One(owner, hold) => (Some((&**owner, hold)), None),
            Set::Many(map) => (None, Some(map)),
        };
        one.into_iter()
            .chain(many.into_iter().flatten().map(|(k, v)| (&**k, v)))
    }

    /// Adds a hold for an owner that has none, or replaces the one it has.
    pub fn insert(&mut self, owner: &[u8], hold: Hold) {
        self.remove(owner);
        self.total = self.total.wrapping_add(hold.count);
        self.soonest = self.soonest.min(hold.until);
        self.longest = self.longest.max(hold.until);
        self.set = match std::mem::replace(&mut self.set, Set::None) {
            Set::None => Set::One(owner.into(), hold),
            Set::One(first, other) => {
                Set::Many(HashMap::from([(first, other), (owner.into(), hold)]))
            }
            Set::Many(mut map) => {
                map.insert(owner.into(), hold);
                Set::Many(map)
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
        if new_until >= self.longest {
            self.longest = new_until;
        } else if until == self.longest {
            self.measure();
        }
        Some(result)
    }

    /// Takes an owner's hold away.
    pub fn remove(&mut self, owner: &[u8]) -> Option<Hold> {
        let hold = match &mut self.set {
            Set::Many(map) => map.remove(owner)?,
            Set::One(name, _) if **name == *owner => {
                match std::mem::replace(&mut self.set, Set::None) {
                    Set::One(_, hold) => hold,
                    _ => unreachable!("it was One"),
                }
            }
            _ => return None,
        };
        self.total = self.total.wrapping_sub(hold.count);
        if hold.until == self.longest || self.is_empty() {
            self.measure();
        }
        Some(hold)
    }

    /// Drops every hold whose lease ended before `now`; returns the dropped.
    pub fn expire(&mut self, now: u64) -> Vec<(Box<[u8]>, Hold)> {
        if now <= self.soonest {
            return Vec::new();
        }
        let dead = match std::mem::replace(&mut self.set, Set::None) {
            Set::One(owner, hold) if hold.until < now => vec![(owner, hold)],
            Set::Many(mut map) => {
                let dead = map.extract_if(|_, hold| hold.until < now).collect();
                self.set = Set::Many(map);
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
            Set::Many(map) => map.values_mut().for_each(|hold| hold.end_by(limit)),
        }
        self.measure();
        true
    }

    /// Calls `visit` with every hold.
    pub fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Hold)) {
        match &mut self.set {
            Set::None => {}
            Set::One(_, hold) => visit(hold),
            Set::Many(map) => map.values_mut().for_each(visit),
        }
    }

    /// The bytes taken from the allocator beside the struct itself; `block` gives what the
    /// allocator takes for a request of so many bytes.
    pub fn memory(&self, block: &dyn Fn(usize) -> usize) -> usize {
        let table = match &self.set {
            Set::Many(map) => {
                // A table of buckets (a power of two, filled to 7/8) with a control byte each.
                let buckets = (map.capacity() * 8 / 7).next_power_of_two();
                block(buckets * (size_of::<(Box<[u8]>, Hold)>() + 1) + 16)
            }
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
            Set::Many(map) => map.get_mut(owner),
        }
    }

    fn measure(&mut self) {
        let (mut soonest, mut longest) = (u64::MAX, 0);
        for (_, hold) in self.iter() {
            soonest = soonest.min(hold.until);
            longest = longest.max(hold.until);
        }
        (self.soonest, self.longest) = (soonest, longest);
    }
}
