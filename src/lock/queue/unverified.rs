//! What the queues keep for the search for deadlocks: which clients it has to check, and what has changed since it began.

use super::{Queues, Want, ticket_between};
use crate::lock::deadlock::PER_STEP;
use crate::lock::limits::{NamedLimits, PossibleLimits};
use crate::waiting::{Key, ScanStep, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

/// What has changed since a search for deadlocks began.
#[derive(Debug, Default)]
pub(in crate::lock) struct Changes {
    /// These clients wait no more. Each has the numbers of its queues with it.
    pub(in crate::lock) gone: Vec<(Ticket, Box<[u64]>)>,
    /// The semaphores of these queues have another limit.
    pub(in crate::lock) limits: BTreeSet<u64>,
    /// Holds of these keys may have gone, by the numbers of their queues. A set: thousands of commands for one key are one
    /// change, for each of which the search would read all its holders again.
    pub(in crate::lock) keys: BTreeSet<u64>,
    /// Holds may have come to owners that wait.
    pub(in crate::lock) more_holds: bool,
}

/// All clients of a queue are to be checked again.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// The last client that is marked already.
    after: Option<Ticket>,
    /// Whether clients that were expected to enter the lock again may have to wait now. If so, the clients behind them are to be
    /// checked again, too, in all queues of these requests.
    with_reentries: bool,
}

impl Recheck {
    /// Plans such a check of a queue in which clients may no longer enter the lock again.
    pub(super) fn plan_with_reentries(rechecks: &mut BTreeMap<u64, Self>, number: u64) {
        let recheck = rechecks.entry(number).or_default();
        if !recheck.with_reentries {
            *recheck = Self {
                after: None,
                with_reentries: true,
            };
        }
    }
}

/// For the search for deadlocks.
impl Queues {
    /// Notes that this client must be checked. The other clients of its keys must be checked, too, in two cases: the client named a
    /// limit that leaves less to them, or it upgrades the hold of an owner that also waits for something else.
    pub fn mark_unverified(&mut self, ticket: Ticket) {
        let may_block_others = self.is_upgrade_of_waiting_owner(ticket);
        if let Some(entry) = self.waiters.get(&ticket) {
            self.unverified.insert(entry.arrival, ticket);
            if entry.leaves_less || may_block_others {
                for queue in &entry.queues {
                    self.rechecks.entry(*queue).or_default();
                }
            }
        }
    }

    /// Whether there is any client of which it is not known whether its wait can end.
    pub fn has_unverified(&self) -> bool {
        !self.unverified.is_empty() || self.has_rechecks()
    }

    /// Whether clients are to be checked again that were verified.
    pub(in crate::lock) fn has_rechecks(&self) -> bool {
        !self.rechecks.is_empty() || !self.recheck_scans.is_empty()
    }

    /// Holds may have come to a key without an acquisition: its clients are to be checked again.
    pub fn recheck(&mut self, db: i32, key: &[u8]) {
        if let Some(number) = self.queues.number(db, key) {
            self.rechecks.entry(number).or_default();
            self.record_new_holds();
        }
    }

    /// An owner has upgraded its shared hold without a wait. Clients that could have shared the lock now wait for this owner. If the
    /// owner also waits, a cycle is possible, so the clients are to be checked again.
    pub fn record_upgrade(&mut self, db: i32, key: &[u8], owner: &[u8]) {
        if self.owner_waits(owner) {
            self.recheck(db, key);
        }
        self.record_new_holds();
    }

    /// This client leaves its queues without a lock. Its owner may wait there for more, and would have entered the lock again:
    /// then the clients of the queue are to be checked again.
    pub fn recheck_without(&mut self, ticket: Ticket) {
        if !self.owner_waits_twice(ticket) {
            return;
        }
        let Some(entry) = self.waiters.get(&ticket) else {
            return;
        };
        for number in &entry.queues {
            let Some((_, queue)) = self.queues.numbered(*number) else {
                continue;
            };
            let range = (entry.owner, 0)..=(entry.owner, Ticket::MAX);
            let mut others = queue.of_owners.range(range);
            let mut some = others.by_ref().take(PER_STEP);
            let may_enter = !queue.reentering.is_empty()
                && (some.any(|(_, other)| *other != ticket && queue.reentering.contains(other))
                    || others.next().is_some());
            if may_enter {
                Recheck::plan_with_reentries(&mut self.rechecks, *number);
            }
        }
    }

    /// Holds may have come to any key of a database without an acquisition: the same as [`Queues::recheck`] for each of them.
    pub fn recheck_db(&mut self, db: i32) {
        if !self.is_empty() {
            self.recheck_scans.push(self.scan(Some(db)));
            self.record_new_holds();
        }
    }

    /// Marks some of the clients that are to be checked again as unverified. Returns false if there are none.
    pub(in crate::lock) fn mark_some_unverified(&mut self) -> bool {
        if let Some((number, recheck)) = self.rechecks.pop_first() {
            self.mark_of_queue(number, recheck);
            return true;
        }
        let Some(scan) = self.recheck_scans.last_mut() else {
            return false;
        };
        match scan.step(&self.queues) {
            Some(ScanStep(Some((db, key)))) => {
                if let Some(number) = self.queues.number(db, &key) {
                    self.rechecks.entry(number).or_default();
                }
            }
            Some(ScanStep(None)) => {}
            None => drop(self.recheck_scans.pop()),
        }
        true
    }

    /// Marks some clients of a queue as unverified, and plans the rest.
    fn mark_of_queue(&mut self, number: u64, mut recheck: Recheck) {
        let Some((_, queue)) = self.queues.numbered(number) else {
            return;
        };
        let after = recheck.after.map_or(Unbounded, Excluded);
        let mut steps = 0;
        let mut last = None;
        for ticket in queue.tickets.range((after, Unbounded)) {
            if steps >= PER_STEP {
                break;
            }
            last = Some(*ticket);
            steps += 1;
            let Some(entry) = self.waiters.get(ticket) else {
                continue;
            };
            self.unverified.insert(entry.arrival, *ticket);
            if recheck.with_reentries && queue.reentering.contains(ticket) {
                for other in &entry.queues {
                    if *other != number {
                        self.rechecks.entry(*other).or_default();
                    }
                }
                steps += entry.queues.len();
            }
        }
        if last.is_some() {
            recheck.after = last;
            self.rechecks.insert(number, recheck);
        }
    }

    /// Whether this client has named a limit that leaves less to others that wait.
    pub(in crate::lock) fn leaves_less(&self, ticket: Ticket) -> bool {
        let entry = self.waiters.get(&ticket);
        entry.is_some_and(|entry| entry.leaves_less)
    }

    /// Whether this client waits to upgrade a hold, and its owner also waits for something else. Its own wait can end, and
    /// nevertheless others that could have shared the lock may then wait for its owner forever.
    pub(in crate::lock) fn is_upgrade_of_waiting_owner(&self, ticket: Ticket) -> bool {
        let waiter = self.get(ticket);
        waiter.is_some_and(|waiter| waiter.want == Want::Upgrade) && self.owner_waits_twice(ticket)
    }

    pub(in crate::lock) fn is_unverified(&self, ticket: Ticket) -> bool {
        let entry = self.waiters.get(&ticket);
        entry.is_some_and(|entry| self.unverified.contains_key(&entry.arrival))
    }

    /// The first unverified client that came after `arrival`, up to `last`.
    pub(in crate::lock) fn unverified_after(
        &self,
        arrival: u64,
        last: u64,
    ) -> Option<(u64, Ticket)> {
        let range = (Excluded(arrival), Included(last));
        let next = self.unverified.range(range).next()?;
        Some((*next.0, *next.1))
    }

    /// Notes that the wait of the client that came then can end.
    pub(in crate::lock) fn mark_verified(&mut self, arrival: u64) {
        self.unverified.remove(&arrival);
    }

    pub(in crate::lock) fn last_arrival(&self) -> u64 {
        self.last_arrival
    }

    /// Holds may have come to an owner, or exclude more than before.
    pub fn record_new_holds(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.more_holds = true;
        }
    }

    /// Begins or ends the record of changes.
    pub(in crate::lock) fn record_changes(&mut self, wanted: bool) {
        self.changes = wanted.then(Changes::default);
    }

    /// Whether the holds of a queue's key or its limit may have changed since the record began.
    pub(in crate::lock) fn has_changed(&self, queue: u64) -> bool {
        let changes = self.changes.as_ref();
        changes
            .is_none_or(|changes| changes.keys.contains(&queue) || changes.limits.contains(&queue))
    }

    pub(in crate::lock) fn changes(&mut self) -> Option<&mut Changes> {
        self.changes.as_mut()
    }

    /// Holds of a key may have gone. A client that would have entered the lock again may now wait behind others.
    pub fn record_change(&mut self, db: i32, key: &[u8]) {
        let Some(number) = self.queues.number(db, key) else {
            return;
        };
        let queue = self.queues.numbered(number);
        if queue.is_some_and(|(_, queue)| !queue.reentering.is_empty()) {
            Recheck::plan_with_reentries(&mut self.rechecks, number);
        }
        if let Some(changes) = &mut self.changes {
            changes.keys.insert(number);
        }
    }

    /// Notes that the wait of these clients, in the queues with these numbers, can end because their owners enter the lock again.
    pub(in crate::lock) fn note_reentries(
        &mut self,
        reentries: impl Iterator<Item = (u64, Ticket)>,
    ) {
        for (number, ticket) in reentries {
            if let Some(queue) = self.queues.numbered_mut(number)
                && queue.tickets.contains(&ticket)
            {
                queue.reentering.insert(ticket);
                let changes = self.changes.as_ref();
                if changes.is_some_and(|changes| changes.keys.contains(&number)) {
                    Recheck::plan_with_reentries(&mut self.rechecks, number);
                }
            }
        }
    }

    /// The number of an owner that waits.
    pub(in crate::lock) fn owner_number(&self, owner: &[u8]) -> Option<u64> {
        self.owner_numbers.get(owner).copied()
    }

    pub(in crate::lock) fn owner_name(&self, owner: u64) -> Option<&Arc<[u8]>> {
        self.owners.get(&owner).map(|owner| &owner.name)
    }

    /// The first waiting owner whose number is larger, and its name.
    pub(in crate::lock) fn owner_after(&self, number: u64) -> Option<(u64, &Arc<[u8]>)> {
        let range = (Excluded(number), Unbounded);
        let (number, owner) = self.owners.range(range).next()?;
        Some((*number, &owner.name))
    }

    pub(in crate::lock) fn owners(&self) -> usize {
        self.owners.len()
    }

    /// An owner's first ticket from this one on.
    pub(in crate::lock) fn ticket_of_owner(&self, owner: u64, from: Ticket) -> Option<Ticket> {
        self.owners
            .get(&owner)?
            .tickets
            .range(from..)
            .next()
            .copied()
    }

    /// Whether the owner of this client also waits for something else.
    pub(in crate::lock) fn owner_waits_twice(&self, ticket: Ticket) -> bool {
        let owner = self.owner_of_waiter(ticket);
        let owner = owner.and_then(|owner| self.owners.get(&owner));
        owner.is_some_and(|owner| owner.tickets.len() > 1)
    }

    /// Whether the owner of this client also waits to share a lock, or may do so.
    pub(in crate::lock) fn owner_wants_to_share(&self, ticket: Ticket) -> bool {
        let owner = self.owner_of_waiter(ticket);
        let Some(owner) = owner.and_then(|owner| self.owners.get(&owner)) else {
            return false;
        };
        let mut few = owner.tickets.iter().take(PER_STEP);
        owner.tickets.len() > PER_STEP
            || few.any(|other| self.get(*other).is_some_and(|other| other.is_shared()))
    }

    /// The number of a waiter in the order of arrival.
    pub(in crate::lock) fn arrival(&self, ticket: Ticket) -> Option<u64> {
        self.waiters.get(&ticket).map(|entry| entry.arrival)
    }

    pub(in crate::lock) fn owner_of_waiter(&self, ticket: Ticket) -> Option<u64> {
        self.waiters.get(&ticket).map(|entry| entry.owner)
    }

    /// The number of the queue of the key with this index.
    pub(in crate::lock) fn queue_of_waiter(&self, ticket: Ticket, index: usize) -> Option<u64> {
        self.waiters.get(&ticket)?.queues.get(index).copied()
    }

    pub(in crate::lock) fn key_of_queue(&self, queue: u64) -> Option<&Key> {
        self.queues.numbered(queue).map(|(key, _)| key)
    }

    /// The first entangled ticket in a queue after one, up to another.
    pub(in crate::lock) fn entangled_after(
        &self,
        queue: u64,
        after: Option<Ticket>,
        last: Ticket,
    ) -> Option<Ticket> {
        let (_, queue) = self.queues.numbered(queue)?;
        if after >= Some(last) {
            return None;
        }
        let after = after.map_or(Unbounded, Excluded);
        queue
            .entangled
            .range((after, Included(last)))
            .next()
            .copied()
    }

    /// The last entangled ticket in a queue before this one.
    pub(in crate::lock) fn entangled_before(&self, queue: u64, ticket: Ticket) -> Option<Ticket> {
        let (_, queue) = self.queues.numbered(queue)?;
        queue.entangled.range(..ticket).next_back().copied()
    }

    /// The first client of a queue after one, before another, that wants the lock exclusively.
    pub(in crate::lock) fn unshared_between(
        &self,
        queue: u64,
        after: Option<Ticket>,
        before: Ticket,
    ) -> Option<Ticket> {
        let (_, queue) = self.queues.numbered(queue)?;
        ticket_between(&queue.unshared, after, before)
    }

    /// The number of the newest limits that a client named.
    pub(in crate::lock) fn last_naming(&self) -> u64 {
        self.last_naming
    }

    /// The number of the limits that a waiter named.
    pub(in crate::lock) fn naming(&self, ticket: Ticket) -> Option<u64> {
        Some(self.waiters.get(&ticket)?.naming)
    }

    /// The limits that clients named in a queue.
    pub(in crate::lock) fn named_limits(&self, queue: u64) -> Option<&NamedLimits> {
        self.queues.numbered(queue).map(|(_, queue)| &queue.limits)
    }

    /// How many permits may stay taken forever, so that this waiter is served nevertheless; and whether that serves
    /// everybody in its queue.
    pub(in crate::lock) fn spare_permits(
        &self,
        queue: u64,
        ticket: Ticket,
        limits: PossibleLimits,
    ) -> (u64, bool) {
        let permits = self.waiters.get(&ticket).and_then(|entry| {
            let index = entry.queues.iter().position(|other| *other == queue)?;
            entry.waiter.permits_at(index)
        });
        let (Some((count, own)), Some((_, queue))) = (permits, self.queues.numbered(queue)) else {
            return (u64::MAX, true);
        };
        let limit = limits.largest(count, own);
        let serves_all = limits.are_enough(count) && queue.limits.most_wanted() <= count;
        (limit.saturating_sub(count), serves_all)
    }

    /// The first ticket of a queue after one, before another.
    pub(in crate::lock) fn ticket_between(
        &self,
        queue: u64,
        after: Option<Ticket>,
        before: Ticket,
    ) -> Option<Ticket> {
        let (_, queue) = self.queues.numbered(queue)?;
        ticket_between(&queue.tickets, after, before)
    }
}
