//! The limits that waiting clients name for a semaphore. The newest one is in force.

use std::collections::{BTreeMap, BTreeSet};

/// The limits that the clients of a queue named, and the permits that these clients ask for. When a request ends without permits, its
/// limit is removed. The numbers of limits increase over all queues.
#[derive(Debug, Default)]
pub(super) struct NamedLimits {
    /// The limits of waiting clients, by number.
    waiting: BTreeMap<u64, u64>,
    /// How many waiting clients named each limit.
    clients_by_limit: BTreeMap<u64, usize>,
    /// How many waiting clients ask for each number of permits.
    counts: BTreeMap<u64, usize>,
    /// The newest limit of a client that was granted permits, with its number. It counts while other clients wait.
    granted: Option<(u64, u64)>,
}

/// How a change affects the limit in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedLimitChange {
    pub(super) has_changed: bool,
    /// Whether a waiting client can get fewer permits, now or after other clients are refused.
    pub(super) may_leave_less: bool,
    /// Whether a running search can count an older, larger limit instead.
    pub(super) may_mislead_search: bool,
}

/// The two limits of a semaphore that a search for deadlocks considers. It refuses a client only if neither is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PossibleLimits {
    /// The newest limit now. The client that named it may be refused later.
    now: Option<u64>,
    /// The newest limit below the bound: without the limits of suspects and those that came later than the search.
    below_bound: Option<u64>,
}

impl PossibleLimits {
    /// The larger limit for an acquisition of `count` permits that names the limit `own`.
    pub(super) fn largest(self, count: u64, own: u64) -> u64 {
        limit_for(count, own, self.now).max(limit_for(count, own, self.below_bound))
    }

    /// Whether both are enough for so many permits.
    pub(super) fn are_enough(self, count: u64) -> bool {
        let limits = [self.now, self.below_bound];
        limits.into_iter().flatten().all(|limit| limit >= count)
    }
}

impl NamedLimits {
    /// The limit in force: the newest one. `None`: no client waits for permits.
    pub(super) fn in_force(&self) -> Option<u64> {
        self.newest(self.waiting.last_key_value())
    }

    /// The newest limit, without those of waiting clients with this number or a larger one.
    fn newest_before(&self, number: u64) -> Option<u64> {
        self.newest(self.waiting.range(..number).next_back())
    }

    /// The newer one of this limit and that of the granted client.
    fn newest(&self, waiting: Option<(&u64, &u64)>) -> Option<u64> {
        let (number, limit) = waiting?;
        let newest = self.granted.max(Some((*number, *limit)));
        newest.map(|(_, limit)| limit)
    }

    /// The limit for an acquisition of `count` permits that names the limit `own`.
    pub(super) fn limit(&self, count: u64, own: u64) -> u64 {
        limit_for(count, own, self.in_force())
    }

    /// The limit that the semaphore stores when the client with this number and `limit` is granted permits.
    pub(super) fn stored_limit(&self, number: u64, limit: u64) -> u64 {
        match self.granted {
            Some((last, kept)) if last > number => kept,
            _ => limit,
        }
    }

    /// The largest number of permits that a waiting client asks for.
    pub(super) fn most_wanted(&self) -> u64 {
        self.counts.last_key_value().map_or(0, |(count, _)| *count)
    }

    /// A client begins to wait for `count` permits, and names a limit with the largest number until now.
    pub(super) fn join(&mut self, number: u64, count: u64, limit: u64) -> NamedLimitChange {
        let change = self.change(|limits| limits.insert(number, limit));
        *self.counts.entry(count).or_default() += 1;
        change
    }

    /// A client repeats its request, and names a limit with the largest number until now. `before`: the number of the limit that it
    /// replaces.
    pub(super) fn repeat(&mut self, before: u64, number: u64, limit: u64) -> NamedLimitChange {
        let may_mislead_search = self.has_different_limits();
        let change = self.change(|limits| {
            limits.remove(before);
            limits.insert(number, limit);
        });
        NamedLimitChange {
            may_mislead_search,
            ..change
        }
    }

    /// A client that asked for `count` permits and named the limit with this number was granted them. The limit in
    /// force stays while others wait for permits.
    pub(super) fn grant(&mut self, number: u64, count: u64) {
        let limit = self.remove(number);
        remove_one(&mut self.counts, count);
        self.granted = self.granted.max(limit.map(|limit| (number, limit)));
        self.forget_granted();
    }

    /// A client that asked for `count` permits and named the limit with this number leaves without them.
    pub(super) fn leave(&mut self, number: u64, count: u64) -> NamedLimitChange {
        // The limit after this one was compared only with this one.
        let neighbors = self.neighbors(number);
        let is_less = neighbors.is_some_and(|(earlier, later)| self.is_less(earlier, later));
        let change = self.change(|limits| {
            limits.remove(number);
            remove_one(&mut limits.counts, count);
            limits.forget_granted();
        });
        NamedLimitChange {
            may_leave_less: change.may_leave_less || is_less,
            ..change
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> NamedLimitChange {
        let before = self.in_force();
        change(self);
        let now = self.in_force();
        let both = before.zip(now);
        NamedLimitChange {
            has_changed: before != now,
            may_leave_less: both.is_some_and(|(before, now)| self.is_less(before, now)),
            may_mislead_search: false,
        }
    }

    /// Whether a limit can leave less to any client than the one before it.
    fn is_less(&self, before: u64, now: u64) -> bool {
        // If the limit is below the permits that a client asks for, the client's own limit counts.
        now < before || before < self.most_wanted() && before < now
    }

    /// Whether clients named different limits.
    fn has_different_limits(&self) -> bool {
        let granted = self.granted.map(|(_, limit)| limit);
        self.clients_by_limit.len() > 1
            || granted.is_some_and(|limit| !self.clients_by_limit.contains_key(&limit))
    }

    /// The limits before and after the one with this number, if it has both.
    fn neighbors(&self, number: u64) -> Option<(u64, u64)> {
        let pair = |(number, limit): (&u64, &u64)| (*number, *limit);
        let earlier = self.waiting.range(..number).next_back().map(pair);
        let later = self.waiting.range(number + 1..).next().map(pair);
        let (before, after) = match self.granted {
            Some(granted) if granted.0 > number => (None, Some(granted)),
            granted => (granted, None),
        };
        let (_, later) = later.into_iter().chain(after).min()?;
        let (_, earlier) = earlier.max(before)?;
        Some((earlier, later))
    }

    fn insert(&mut self, number: u64, limit: u64) {
        self.waiting.insert(number, limit);
        *self.clients_by_limit.entry(limit).or_default() += 1;
    }

    fn remove(&mut self, number: u64) -> Option<u64> {
        let limit = self.waiting.remove(&number)?;
        remove_one(&mut self.clients_by_limit, limit);
        Some(limit)
    }

    /// Forgets the limit of the granted client if nobody waits. The semaphore stores it.
    fn forget_granted(&mut self) {
        if self.waiting.is_empty() {
            self.granted = None;
        }
    }

    /// Skips at most `most` of the newest limits below `bound` that are in `skipped`. Returns the new bound, and whether the newest limit
    /// below it is not in `skipped`.
    pub(super) fn skip(&self, bound: u64, skipped: &BTreeSet<u64>, most: usize) -> (u64, bool) {
        let numbers = self.waiting.range(..bound).rev();
        let numbers = numbers.map(|(number, _)| *number);
        let mut skip = numbers.take_while(|number| skipped.contains(number));
        let last = skip.by_ref().take(most).last();
        (last.unwrap_or(bound), skip.next().is_none())
    }

    /// The limits that a search considers: the newest one below `bound`, and the one in force unless `skipped` has the number of the
    /// newest limit of a waiting client.
    pub(super) fn possible(&self, bound: u64, skipped: &BTreeSet<u64>) -> PossibleLimits {
        let below_bound = self.newest_before(bound);
        let last = self.waiting.last_key_value();
        let now = last.filter(|(number, _)| !skipped.contains(number));
        let now = now.map_or(below_bound, |_| self.in_force());
        PossibleLimits { now, below_bound }
    }
}

/// The limit for an acquisition of `count` permits that names the limit `own`, while this one is in force.
fn limit_for(count: u64, own: u64, in_force: Option<u64>) -> u64 {
    match in_force {
        Some(limit) if limit >= count => limit,
        _ => own,
    }
}

/// Removes one from a multiset.
fn remove_one(counts: &mut BTreeMap<u64, usize>, value: u64) {
    if let Some(count) = counts.get_mut(&value) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&value);
        }
    }
}
