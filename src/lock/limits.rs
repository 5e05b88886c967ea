//! The limits that waiting clients name for a semaphore. The newest one is in force.

use std::collections::{BTreeMap, BTreeSet};

/// The limits of the requests for permits in a queue, with the permits that they ask for. If a request ends without permits, its
/// limit is removed. Each limit has a number, in the order in which all limits of all queues were named.
#[derive(Debug, Default)]
pub(super) struct NamedLimits {
    /// Those of waiting clients, by their numbers.
    waiting: BTreeMap<u64, u64>,
    /// How many waiting clients named each limit.
    limits: BTreeMap<u64, usize>,
    /// How many waiting clients ask for each number of permits.
    counts: BTreeMap<u64, usize>,
    /// The newest limit of a client that was granted permits, with its number. It counts while others wait.
    granted: Option<(u64, u64)>,
}

/// How the limit in force has changed for the clients that wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedLimitChange {
    pub(super) is_other: bool,
    /// Whether any of them may get less, now or after the refusal of others.
    pub(super) is_less: bool,
    /// Whether a search that is running may count an older limit instead, which is larger.
    pub(super) is_uncertain: bool,
}

/// The limits of a semaphore that a search for deadlocks takes into account. A client is only refused if neither is enough for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PossibleLimits {
    /// The newest limit now. The client that named it may be refused later.
    now: Option<u64>,
    /// The newest limit without those that came later than the search.
    at_start: Option<u64>,
}

impl PossibleLimits {
    /// The larger limit for an acquisition of `count` permits that names the limit `own`.
    pub(super) fn largest(self, count: u64, own: u64) -> u64 {
        limit_for(count, own, self.now).max(limit_for(count, own, self.at_start))
    }

    /// Whether both are enough for so many permits.
    pub(super) fn are_enough(self, count: u64) -> bool {
        let limits = [self.now, self.at_start];
        limits.into_iter().flatten().all(|limit| limit >= count)
    }
}

impl NamedLimits {
    /// The limit in force: the newest one. `None`: no client waits for permits.
    pub(super) fn last(&self) -> Option<u64> {
        self.newest(self.waiting.last_key_value())
    }

    /// The newest limit, without those of waiting clients with this number or a larger one.
    fn last_before(&self, number: u64) -> Option<u64> {
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
        limit_for(count, own, self.last())
    }

    /// The limit that the semaphore stores when the client with this number and `limit` is granted permits.
    pub(super) fn after_grant(&self, number: u64, limit: u64) -> u64 {
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
        let is_uncertain = self.has_different_limits();
        let change = self.change(|limits| {
            limits.remove(before);
            limits.insert(number, limit);
        });
        NamedLimitChange {
            is_uncertain,
            ..change
        }
    }

    /// A client that asked for `count` permits and named the limit with this number was granted them.
    pub(super) fn grant(&mut self, number: u64, count: u64) -> NamedLimitChange {
        self.change(|limits| {
            let limit = limits.remove(number);
            remove_one(&mut limits.counts, count);
            limits.granted = limits.granted.max(limit.map(|limit| (number, limit)));
            limits.forget_granted();
        })
    }

    /// A client that asked for `count` permits and named the limit with this number leaves without them.
    pub(super) fn leave(&mut self, number: u64, count: u64) -> NamedLimitChange {
        // The later limit was only compared with the one that ends.
        let neighbors = self.neighbors(number);
        let is_less = neighbors.is_some_and(|(earlier, later)| self.is_less(earlier, later));
        let change = self.change(|limits| {
            limits.remove(number);
            remove_one(&mut limits.counts, count);
            limits.forget_granted();
        });
        NamedLimitChange {
            is_less: change.is_less || is_less,
            ..change
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> NamedLimitChange {
        let before = self.last();
        change(self);
        let now = self.last();
        let both = before.zip(now);
        NamedLimitChange {
            is_other: before != now,
            is_less: both.is_some_and(|(before, now)| self.is_less(before, now)),
            is_uncertain: false,
        }
    }

    /// Whether a limit can leave less to any client than the one before it.
    fn is_less(&self, before: u64, now: u64) -> bool {
        // A limit that is less than a client wants leaves it the one that it named itself.
        now < before || before < self.most_wanted() && before < now
    }

    /// Whether clients named different limits.
    fn has_different_limits(&self) -> bool {
        let granted = self.granted.map(|(_, limit)| limit);
        self.limits.len() > 1 || granted.is_some_and(|limit| !self.limits.contains_key(&limit))
    }

    /// The limits before and after the one with this number, if it has both.
    fn neighbors(&self, number: u64) -> Option<(u64, u64)> {
        let earlier = self.waiting.range(..number).next_back();
        let later = self.waiting.range(number + 1..).next();
        let [earlier, later] = [earlier, later].map(|limit| limit.map(|(at, limit)| (*at, *limit)));
        let (before, after) = match self.granted {
            Some(granted) if granted.0 > number => (None, Some(granted)),
            granted => (granted, None),
        };
        let (_, earlier) = earlier.max(before)?;
        let (_, later) = later.into_iter().chain(after).min()?;
        Some((earlier, later))
    }

    fn insert(&mut self, number: u64, limit: u64) {
        self.waiting.insert(number, limit);
        *self.limits.entry(limit).or_default() += 1;
    }

    fn remove(&mut self, number: u64) -> Option<u64> {
        let limit = self.waiting.remove(&number)?;
        remove_one(&mut self.limits, limit);
        Some(limit)
    }

    /// Forgets the limit of the granted client if nobody waits. The semaphore stores it.
    fn forget_granted(&mut self) {
        if self.waiting.is_empty() {
            self.granted = None;
        }
    }

    /// Skips limits in `skipped`, the newest first, from those with a number below `bound`, at most `most`. Returns the bound for those
    /// that are left, and whether the newest of these is not in `skipped`.
    pub(super) fn skip(&self, bound: u64, skipped: &BTreeSet<u64>, most: usize) -> (u64, bool) {
        let numbers = self.waiting.range(..bound).rev();
        let numbers = numbers.map(|(number, _)| *number);
        let mut skip = numbers.take_while(|number| skipped.contains(number));
        let last = skip.by_ref().take(most).last();
        (last.unwrap_or(bound), skip.next().is_none())
    }

    /// The limits that count in a search. Those with a number below `bound` count as they were at its start. `skipped`: the numbers of
    /// the limits of suspects, which do not count.
    pub(super) fn possible(&self, bound: u64, skipped: &BTreeSet<u64>) -> PossibleLimits {
        let at_start = self.last_before(bound);
        let last = self.waiting.last_key_value();
        let now = last.filter(|(number, _)| !skipped.contains(number));
        let now = now.map_or(at_start, |_| self.last());
        PossibleLimits { now, at_start }
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
