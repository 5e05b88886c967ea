//! The search for deadlocks: it finds waiting clients that can never be served, over all keys and databases.
//!
//! An owner that does not wait is expected to release what it holds some day. From there the search computes who is served
//! then, who releases then because nothing is left that it waits for, and so on: the reduction of Holt, "Some deadlock
//! properties of computer systems" (1972). The other clients are deadlocked. The search reads a key once,
//! and again only when one of its holders releases it. So the number of its small steps grows with the waiters, the keys that
//! they wait for, and those holders that wait themselves.
//!
//! The search looks only at waiters on which the unverified ones depend. A waiter that waits for one key, and whose owner waits for
//! nothing else, is served at its turn and then releases. Only its request matters to the search.
//!
//! A [`Search`] can stop after any step and go on later. In the meantime clients may leave and holds may end, which the search
//! takes into account before it reports a deadlocked client. Clients that come later are checked by the next search.

mod check;
mod graph;
mod stable_list;

use super::cycles::Cycles;
use super::limits::PossibleLimits;
use super::queue::{Queues, Want};
use super::state::{Lock, Mode, RequestedMode};
use crate::waiting::{Key, Ticket};
use graph::{Ahead, Held, KeyNode, OwnerNode, QueuePosition, SearchTask, WaiterNode};
use stable_list::StableList;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

pub use check::{Budget, Check, check};

/// Given a key and a function, calls the function with the lock there, if there is one. Returns false if the key cannot be read now.
pub type Read<'a> = &'a mut dyn FnMut(&Key, &mut dyn FnMut(&Lock)) -> bool;

/// How many steps it takes to open a key.
pub(super) const STEPS_TO_READ: u64 = 8;

/// The holders of a key are looked at in one go if they, or all waiting owners, are not more than this.
const AT_ONCE: usize = 2048;

/// The same for the check of a command.
const AT_ONCE_IN_COMMAND: usize = 512;

/// How many holders are looked at in the time of one step.
const HOLDERS_PER_STEP: u64 = 4;

/// How many waiters of a queue, or holders of a key, are looked at in one step.
pub(super) const PER_STEP: usize = 64;

/// A search for clients that can never be served.
#[derive(Debug)]
pub struct Search {
    tasks: StableList<SearchTask>,
    /// Whether all clients are found on which the unverified ones depend.
    is_gathered: bool,
    keys: StableList<KeyNode>,
    node_of_queue: BTreeMap<u64, usize>,
    owners: StableList<OwnerNode>,
    owner_of_number: BTreeMap<u64, usize>,
    waiters: StableList<WaiterNode>,
    waiter_of_ticket: BTreeMap<Ticket, usize>,
    /// So many holders of a key are looked at in one go.
    at_once: usize,
    /// The last arrival that is checked.
    last: u64,
    /// The number of the newest limits at the start of the search. A later limit counts only if it
    /// is larger, because its client can be refused.
    last_naming: u64,
    /// The unverified waiters by their arrival.
    unverified: BTreeMap<u64, usize>,
    /// The clients without which all others can be served, the newest first. The wait of the last one closed a cycle.
    closing: Vec<Ticket>,
    /// The numbers of the limits that these clients named.
    closing_namings: BTreeSet<u64>,
    /// The clients that were taken to enter locks again, with the numbers of the queues, and their owners.
    reentries: BTreeSet<(u64, usize, Ticket)>,
    /// How many steps it took.
    spent: u64,
    /// Whether the clients that are to be checked again are marked as unverified.
    is_marked: bool,
    /// Whether a key could not be read, so that nothing can be concluded.
    has_unread: bool,
    /// Whether anything has changed since a deadlock was suspected.
    is_disturbed: bool,
    /// Whether the search is to start again, and all that was found to be freed.
    is_outdated: bool,
}

impl Search {
    fn empty(queues: &Queues) -> Self {
        Self {
            tasks: StableList::default(),
            is_gathered: false,
            keys: StableList::default(),
            node_of_queue: BTreeMap::new(),
            owners: StableList::default(),
            owner_of_number: BTreeMap::new(),
            waiters: StableList::default(),
            waiter_of_ticket: BTreeMap::new(),
            at_once: AT_ONCE,
            last: queues.last_arrival(),
            last_naming: queues.last_naming(),
            unverified: BTreeMap::new(),
            closing: Vec::new(),
            closing_namings: BTreeSet::new(),
            reentries: BTreeSet::new(),
            spent: 0,
            is_marked: false,
            has_unread: false,
            is_disturbed: false,
            is_outdated: false,
        }
    }

    /// A search that checks one waiter.
    fn of(queues: &Queues, ticket: Ticket) -> Self {
        let mut search = Self::empty(queues);
        search.at_once = AT_ONCE_IN_COMMAND;
        search.find(queues, ticket);
        if let Some(arrival) = queues.arrival(ticket) {
            search.unverified.insert(arrival, 0);
        }
        search
    }

    /// A search that checks all unverified waiters that have arrived until now. Ends with [`Search::conclude`].
    pub fn of_unverified(queues: &mut Queues) -> Self {
        queues.record_changes(true);
        let mut search = Self::empty(queues);
        search.tasks.push(SearchTask::Unverified(0));
        search
    }

    /// Takes up to so many steps. `None`: there are more to take. `Some`: the deadlocked client, if there is one.
    pub fn run(
        &mut self,
        queues: &Queues,
        steps: &mut u64,
        read: Read<'_>,
    ) -> Option<Option<Ticket>> {
        loop {
            while let Some(task) = self.tasks.pop() {
                *steps = steps.saturating_sub(1);
                self.take(queues, task, steps, read);
                if *steps == 0 || self.has_unread {
                    return None;
                }
            }
            if !self.is_gathered {
                self.is_gathered = true;
                self.tasks.push(SearchTask::StartOwners(0));
                self.tasks.push(SearchTask::Start(0));
                continue;
            }
            // The newest is removed first. The last one that must be removed is the client whose arrival completed the deadlock.
            let Some((_, waiter)) = self.unverified.pop_last() else {
                return Some(self.closing.last().copied());
            };
            if !self.waiters[waiter].is_done {
                self.suspect(queues, waiter);
            }
        }
    }

    /// Removes this client and its limits from the copy of the queues, to see who can be served without it.
    fn suspect(&mut self, queues: &Queues, waiter: usize) {
        let ticket = self.waiters[waiter].ticket;
        self.closing.push(ticket);
        self.closing_namings.extend(queues.naming(ticket));
        self.remove_waiter(waiter);
    }

    /// The same over several rounds, while the queues change. `None`: there is more to do. `Some`: the deadlocked
    /// client, if there is one.
    pub fn go_on(
        &mut self,
        queues: &mut Queues,
        steps: &mut u64,
        read: Read<'_>,
    ) -> Option<Option<Ticket>> {
        let before = *steps;
        let result = self.go_on_with(queues, steps, read);
        self.spent += before - *steps;
        result
    }

    fn go_on_with(
        &mut self,
        queues: &mut Queues,
        steps: &mut u64,
        read: Read<'_>,
    ) -> Option<Option<Ticket>> {
        loop {
            if *steps == 0 {
                return None;
            }
            if !self.is_marked {
                *steps -= 1;
                self.is_marked = !queues.mark_some_unverified();
                self.last = queues.last_arrival();
                self.last_naming = queues.last_naming();
                continue;
            }
            if self.is_outdated {
                *steps -= 1;
                if !self.free_some() {
                    *self = Self::of_unverified(queues);
                }
                continue;
            }
            let changes = queues.changes()?;
            if std::mem::take(&mut changes.more_holds) {
                self.is_outdated = true;
                continue;
            }
            if let Some((ticket, queues)) = changes.gone.pop() {
                *steps = steps.saturating_sub(queues.len() as u64);
                self.has_gone(ticket, &queues);
                continue;
            }
            if let Some(queue) = changes.limits.pop_first() {
                *steps -= 1;
                self.leaves_more(queue, 0);
                continue;
            }
            let Some(suspect) = self.run(queues, steps, read)? else {
                return Some(None); // holds that have gone since then change nothing about that
            };
            if let Some(queue) = queues
                .changes()
                .and_then(|changes| changes.keys.pop_first())
            {
                if let Some(key) = self.node_of_queue.get(&queue) {
                    self.tasks.push(SearchTask::Reread(*key, None));
                }
                continue;
            }
            if self.is_disturbed || queues.get(suspect).is_none() {
                self.is_outdated = true;
                continue;
            }
            return Some(Some(suspect));
        }
    }

    /// Ends the search. The clients before the deadlocked one are verified if no other client was suspected: with several
    /// suspects it is only known that these clients can be served without all of them.
    pub fn conclude(mut self, queues: &mut Queues, deadlocked: Option<Ticket>) -> FinishedSearch {
        self.note_reentries(queues);
        queues.record_changes(false);
        let last = match deadlocked.and_then(|ticket| queues.arrival(ticket)) {
            Some(arrival) if self.closing.len() == 1 => arrival - 1,
            Some(_) => 0,
            None => self.last,
        };
        let suspects = if deadlocked.is_some() {
            std::mem::take(&mut self.closing)
        } else {
            Vec::new()
        };
        FinishedSearch {
            cycles: Cycles::new(suspects, self.last, self.spent),
            search: self,
            last,
        }
    }

    /// Frees a little of what was found. Returns false if nothing is left.
    fn free_some(&mut self) -> bool {
        self.keys.pop().is_some()
            | self.owners.pop().is_some()
            | self.waiters.pop().is_some()
            | self.node_of_queue.pop_first().is_some()
            | self.owner_of_number.pop_first().is_some()
            | self.waiter_of_ticket.pop_first().is_some()
            | self.unverified.pop_first().is_some()
            | self.closing_namings.pop_first().is_some()
            | self.tasks.pop().is_some()
    }

    /// Whether any other client is left than the newcomer of which it is not known whether its wait can end.
    fn left_others(&self, queues: &Queues) -> bool {
        let mut left = self.waiters.iter().filter(|waiter| !waiter.is_done);
        queues.has_rechecks()
            || queues.has_unverified() && left.any(|waiter| queues.is_unverified(waiter.ticket))
    }

    /// Whether the owner of this client still has a request that is never served.
    fn is_owner_stuck(&self, ticket: Ticket) -> bool {
        let waiter = self.waiter_of_ticket.get(&ticket);
        waiter.is_some_and(|waiter| self.owners[self.waiters[*waiter].owner].waiting > 0)
    }

    fn take(&mut self, queues: &Queues, task: SearchTask, steps: &mut u64, read: Read<'_>) {
        match task {
            SearchTask::Unverified(after) => {
                if let Some((arrival, ticket)) = queues.unverified_after(after, self.last) {
                    self.tasks.push(SearchTask::Unverified(arrival));
                    if let Some(waiter) = self.find(queues, ticket) {
                        self.unverified.insert(arrival, waiter);
                    }
                }
            }
            SearchTask::Owner(owner, from) => {
                if let Some(ticket) = queues.ticket_of_owner(self.owners[owner].number, from) {
                    self.tasks.push(SearchTask::Owner(owner, ticket + 1));
                    self.find(queues, ticket);
                }
            }
            SearchTask::Keys(waiter, index) => self.find_key(queues, waiter, index),
            SearchTask::Queue(key, last) => {
                let node = &mut self.keys[key];
                match queues.entangled_after(node.queue, node.found, last) {
                    Some(ticket) => {
                        node.found = Some(ticket);
                        self.tasks.push(SearchTask::Queue(key, last));
                        self.find(queues, ticket);
                    }
                    None => node.found = node.found.max(Some(last)),
                }
            }
            SearchTask::Holders(key, after) => self.find_holders(queues, key, after, steps, read),
            SearchTask::Start(key) => {
                if key < self.keys.len() {
                    self.tasks.push(SearchTask::Start(key + 1));
                    self.list(key);
                    if !self.keys[key].is_semaphore {
                        self.tasks.push(SearchTask::EnterAll(key, None));
                    }
                }
            }
            SearchTask::StartOwners(owner) => {
                if let Some(node) = self.owners.get(owner) {
                    self.tasks.push(SearchTask::StartOwners(owner + 1));
                    if node.waiting == 0 {
                        self.tasks.push(SearchTask::Release(owner, 0));
                    }
                }
            }
            SearchTask::EnterAll(key, after) => {
                let after = after.map_or(Unbounded, Excluded);
                let holder = self.keys[key].held.range((after, Unbounded)).next();
                if let Some(holder) = holder.map(|(holder, _)| *holder) {
                    self.tasks.push(SearchTask::EnterAll(key, Some(holder)));
                    self.tasks.push(SearchTask::Enter(key, holder, None));
                }
            }
            SearchTask::Enter(key, owner, after) => self.enter_again(key, owner, after),
            SearchTask::ServeNext(key) => self.serve_next(queues, key),
            SearchTask::Serve(waiter) => {
                *steps = steps.saturating_sub(self.waiters[waiter].keys.len() as u64);
                self.serve(waiter);
            }
            SearchTask::Release(owner, index) => self.release(owner, index),
            SearchTask::Reread(key, after) => self.reread(queues, key, after, steps, read),
        }
    }

    // Who matters

    /// The waiter with this ticket, who matters. `None`: it came after the search began. Such a client is left out, because its
    /// owner may hold keys whose waiting holders are known already. It only takes from others.
    fn find(&mut self, queues: &Queues, ticket: Ticket) -> Option<usize> {
        if let Some(known) = self.waiter_of_ticket.get(&ticket) {
            return Some(*known);
        }
        if queues.arrival(ticket)? > self.last {
            return None;
        }
        let (number, waiter) = (queues.owner_of_waiter(ticket)?, queues.get(ticket)?);
        let owner = self.find_owner(number);
        let index = self.waiters.len();
        self.waiters.push(WaiterNode {
            ticket,
            owner,
            want: waiter.want,
            keys: Vec::with_capacity(waiter.keys.len()),
            missing: waiter.keys.len(),
            is_done: false,
            was_done: false,
        });
        self.waiter_of_ticket.insert(ticket, index);
        self.owners[owner].waiting += 1;
        self.tasks.push(SearchTask::Keys(index, 0));
        Some(index)
    }

    fn find_owner(&mut self, number: u64) -> usize {
        if let Some(known) = self.owner_of_number.get(&number) {
            return *known;
        }
        let index = self.owners.len();
        self.owners.push(OwnerNode {
            number,
            waiting: 0,
            holds: Vec::new(),
            is_live: false,
        });
        self.owner_of_number.insert(number, index);
        self.tasks.push(SearchTask::Owner(index, 0));
        index
    }

    fn find_key(&mut self, queues: &Queues, waiter: usize, index: usize) {
        let ticket = self.waiters[waiter].ticket;
        if self.waiters[waiter].is_done {
            return; // it has gone meanwhile
        }
        let Some(queue) = queues.queue_of_waiter(ticket, index) else {
            return;
        };
        self.tasks.push(SearchTask::Keys(waiter, index + 1));
        let key = match self.node_of_queue.get(&queue) {
            Some(known) => *known,
            None => {
                let key = self.keys.len();
                self.keys.push(KeyNode {
                    queue,
                    found: None,
                    is_semaphore: false,
                    is_shared: false,
                    held: BTreeMap::new(),
                    known: BTreeMap::new(),
                    total: 0,
                    waiting: BTreeMap::new(),
                    passed: None,
                    ahead: None,
                    limit_bound: self.last_naming + 1,
                    last_suspected: None,
                    of_owners: BTreeSet::new(),
                    is_listed: false,
                });
                self.node_of_queue.insert(queue, key);
                self.tasks.push(SearchTask::Holders(key, 0));
                key
            }
        };
        let node = &mut self.keys[key];
        let position = QueuePosition {
            waiter,
            is_ready: false,
            reenters: false,
        };
        node.waiting.insert(ticket, position);
        node.of_owners.insert((self.waiters[waiter].owner, ticket));
        node.is_semaphore = queues
            .get(ticket)
            .is_some_and(|waiter| waiter.permits().is_some());
        self.waiters[waiter].keys.push(key);
        if self.keys[key].found < Some(ticket) {
            self.tasks.push(SearchTask::Queue(key, ticket));
        }
    }

    fn find_holders(
        &mut self,
        queues: &Queues,
        key: usize,
        after: u64,
        steps: &mut u64,
        read: Read<'_>,
    ) {
        let Some(name) = queues.key_of_queue(self.keys[key].queue) else {
            return; // nobody waits for it any more
        };
        *steps = steps.saturating_sub(STEPS_TO_READ);
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut next = None;
        let mut is_shared = false;
        let is_read =
            read(name, &mut |lock| {
                is_shared = lock.mode() == Mode::Shared;
                let holds = lock.holds();
                let few = holds.len().min(queues.owners());
                if few > self.at_once {
                    // In the order of the waiting owners' numbers: that can be gone on with later.
                    *steps = steps.saturating_sub(PER_STEP as u64 / HOLDERS_PER_STEP);
                    let mut at = after;
                    for _ in 0..PER_STEP {
                        let Some((number, owner)) = queues.owner_after(at) else {
                            return;
                        };
                        found.extend(holds.get(owner).map(|hold| (number, hold.count)));
                        at = number;
                    }
                    next = Some(at);
                    return;
                }
                *steps = steps.saturating_sub(few as u64 / HOLDERS_PER_STEP);
                if holds.len() <= queues.owners() {
                    let holders = holds.iter();
                    found.extend(holders.filter_map(|(owner, hold)| {
                        Some((queues.owner_number(owner)?, hold.count))
                    }));
                    return;
                }
                let mut at = 0;
                while let Some((number, owner)) = queues.owner_after(at) {
                    found.extend(holds.get(owner).map(|hold| (number, hold.count)));
                    at = number;
                }
            });
        self.has_unread |= !is_read;
        self.keys[key].is_shared = is_shared;
        if let Some(next) = next {
            self.tasks.push(SearchTask::Holders(key, next));
        }
        for (number, really) in found {
            let owner = self.find_owner(number);
            let node = &mut self.keys[key];
            node.known.insert(owner, really);
            let held = Held { really, served: 0 };
            if node.held.insert(owner, held).is_none() {
                node.total = node.total.saturating_add(really);
                self.owners[owner].holds.push(key);
            }
        }
    }

    // Who is served

    fn list(&mut self, key: usize) {
        if self.is_gathered && !self.keys[key].is_listed {
            self.keys[key].is_listed = true;
            self.tasks.push(SearchTask::ServeNext(key));
        }
    }

    /// Serves the first client that waits for a key, if it could be served.
    fn serve_next(&mut self, queues: &Queues, key: usize) {
        let node = &mut self.keys[key];
        node.is_listed = false;
        let (queue, passed) = (node.queue, node.passed);
        let first = node.waiting.first_key_value();
        if let Some(waiter) = first.map(|(_, position)| position.waiter)
            && node.ends_at_once(&self.waiters[waiter])
        {
            return self.end_at_once(key, waiter);
        }
        let Some((ticket, position)) = node.waiting.iter_mut().next() else {
            return;
        };
        if position.is_ready {
            return; // it lacks others
        }
        let ticket = *ticket;
        let waiter = &self.waiters[position.waiter];
        // Those who are taken to wait no more leave everything to it.
        let is_done = |ticket: Ticket| {
            let known = self.waiter_of_ticket.get(&ticket);
            known.is_some_and(|known| self.waiters[*known].is_done)
        };
        let known = node.ahead.take_if(|ahead| ahead.first == ticket);
        let mut others = node.held.keys().filter(|owner| **owner != waiter.owner);
        let others_hold = others.next().is_some();
        let own = node.held.contains_key(&waiter.owner);
        let can_be_had = match waiter.want {
            Want::Upgrade => !others_hold,
            Want::Acquire(RequestedMode::Exclusive) => !others_hold || own,
            Want::Acquire(RequestedMode::Shared) => {
                let is_free = !others_hold || own;
                let mut at = known.map_or(passed, |ahead| ahead.at);
                let mut unshared = None;
                if !is_free && node.is_shared {
                    for _ in 0..PER_STEP {
                        unshared = queues.unshared_between(queue, at, ticket);
                        let Some(done) = unshared.filter(|unshared| is_done(*unshared)) else {
                            break;
                        };
                        at = Some(done);
                    }
                    node.ahead = Some(Ahead {
                        first: ticket,
                        at,
                        spare: 0,
                        limits: PossibleLimits::default(),
                    });
                    if unshared.is_some() && unshared == at {
                        return self.list(key);
                    }
                }
                is_free || node.is_shared && unshared.is_none()
            }
            Want::Acquire(RequestedMode::Permits { .. }) => {
                let skipped = &self.closing_namings;
                let Some(named) = queues.named_limits(queue) else {
                    return;
                };
                let (bound, is_complete) = named.skip(node.limit_bound, skipped, PER_STEP);
                node.limit_bound = bound;
                if !is_complete {
                    return self.list(key);
                }
                let limits = named.possible(bound, skipped);
                let known = known.filter(|ahead| ahead.limits == limits);
                let (mut at, mut spare) = match known {
                    Some(ahead) => (ahead.at, ahead.spare),
                    None => {
                        let (spare, is_all) = queues.spare_permits(queue, ticket, limits);
                        (if is_all { Some(ticket) } else { passed }, spare)
                    }
                };
                let mut is_measured = false;
                for _ in 0..PER_STEP {
                    let Some(next) = queues.ticket_between(queue, at, ticket) else {
                        is_measured = true;
                        break;
                    };
                    if !is_done(next) {
                        spare = spare.min(queues.spare_permits(queue, next, limits).0);
                    }
                    at = Some(next);
                }
                node.ahead = Some(Ahead {
                    first: ticket,
                    at,
                    spare,
                    limits,
                });
                if !is_measured {
                    return self.list(key);
                }
                node.total <= spare
            }
        };
        if can_be_had {
            let waiter = position.waiter;
            position.is_ready = true;
            if own && !node.is_semaphore {
                position.reenters = true;
                self.note_reentry(key, waiter);
            }
            self.can_have_one(waiter);
        }
    }

    /// A waiter is answered nil because its owner shares the lock.
    fn end_at_once(&mut self, key: usize, waiter: usize) {
        self.note_reentry(key, waiter);
        self.remove_waiter(waiter);
    }

    /// Notes that the wait of a client can end because its owner has this key.
    fn note_reentry(&mut self, key: usize, waiter: usize) {
        let WaiterNode { ticket, owner, .. } = self.waiters[waiter];
        self.reentries.insert((self.keys[key].queue, owner, ticket));
    }

    fn note_reentries(&mut self, queues: &mut Queues) {
        let reentries = std::mem::take(&mut self.reentries);
        let reentries = reentries.into_iter();
        queues.note_reentries(reentries.map(|(queue, _, ticket)| (queue, ticket)));
    }

    /// A waiter could have one key more.
    fn can_have_one(&mut self, waiter: usize) {
        let node = &mut self.waiters[waiter];
        node.missing -= 1;
        if node.missing == 0 && !node.is_done {
            self.tasks.push(SearchTask::Serve(waiter));
        }
    }

    fn serve(&mut self, waiter: usize) {
        if self.waiters[waiter].is_done {
            return;
        }
        let owner = self.waiters[waiter].owner;
        let (ticket, want) = (self.waiters[waiter].ticket, self.waiters[waiter].want);
        let permits = match want {
            Want::Acquire(RequestedMode::Permits { count, .. }) => count,
            _ => 1,
        };
        for index in 0..self.waiters[waiter].keys.len() {
            let key = self.waiters[waiter].keys[index];
            let node = &mut self.keys[key];
            let first = node.waiting.first_key_value();
            if first.is_some_and(|(first, position)| *first == ticket && !position.reenters) {
                node.passed = Some(ticket);
            }
            let is_new = !node.held.contains_key(&owner);
            if is_new {
                self.owners[owner].holds.push(key);
                node.is_shared = want == Want::Acquire(RequestedMode::Shared);
            } else if want == Want::Upgrade {
                node.is_shared = false;
            }
            let held = node.held.entry(owner).or_default();
            held.served = held.served.saturating_add(permits);
            node.total = node.total.saturating_add(permits);
            if !node.is_semaphore {
                self.tasks.push(SearchTask::Enter(key, owner, None));
            }
        }
        self.done(waiter);
    }

    /// Whoever waits for a lock on behalf of its holder enters it again.
    fn enter_again(&mut self, key: usize, owner: usize, after: Option<Ticket>) {
        let after = after.map_or(Included((owner, 0)), |after| Excluded((owner, after)));
        let range = (after, Included((owner, Ticket::MAX)));
        let next = self.keys[key].of_owners.range(range).next();
        let Some((_, ticket)) = next.copied() else {
            return;
        };
        self.tasks.push(SearchTask::Enter(key, owner, Some(ticket)));
        let waiter = self.keys[key].waiting.get(&ticket);
        if let Some(waiter) = waiter.map(|position| position.waiter)
            && self.keys[key].ends_at_once(&self.waiters[waiter])
        {
            return self.end_at_once(key, waiter);
        }
        if let Some(position) = self.keys[key].waiting.get_mut(&ticket)
            && !position.is_ready
            && self.waiters[position.waiter].want != Want::Upgrade
        {
            (position.is_ready, position.reenters) = (true, true);
            let waiter = position.waiter;
            self.note_reentry(key, waiter);
            self.can_have_one(waiter);
        }
    }

    /// Notes that a client waits no more.
    fn done(&mut self, waiter: usize) {
        let node = &mut self.waiters[waiter];
        node.is_done = true;
        node.was_done = self.closing.is_empty();
        let (ticket, owner) = (node.ticket, node.owner);
        for key in std::mem::take(&mut node.keys) {
            let node = &mut self.keys[key];
            node.waiting.remove(&ticket);
            node.of_owners.remove(&(owner, ticket));
            if !self.closing.is_empty() {
                node.last_suspected = node.last_suspected.max(Some(ticket));
            }
            self.list(key);
        }
        self.owners[owner].waiting -= 1;
        if self.owners[owner].waiting == 0 && self.is_gathered {
            self.tasks.push(SearchTask::Release(owner, 0));
        }
    }

    fn release(&mut self, owner: usize, index: usize) {
        self.owners[owner].is_live |= self.closing.is_empty();
        if let Some(key) = self.owners[owner].holds.get(index).copied() {
            self.tasks.push(SearchTask::Release(owner, index + 1));
            if let Some(held) = self.keys[key].held.remove(&owner) {
                let node = &mut self.keys[key];
                node.total = node
                    .total
                    .saturating_sub(held.really.saturating_add(held.served));
                self.list(key);
            }
        }
    }

    // What changed

    fn remove_waiter(&mut self, waiter: usize) {
        if !self.waiters[waiter].is_done {
            self.done(waiter);
        }
    }

    /// A client waits no more in any of these queues.
    fn has_gone(&mut self, ticket: Ticket, queues: &[u64]) {
        let Some(waiter) = self.waiter_of_ticket.get(&ticket).copied() else {
            for queue in queues {
                self.leaves_more(*queue, ticket);
            }
            return;
        };
        let node = &self.waiters[waiter];
        let owner = &self.owners[node.owner];
        let gives_way = owner.is_live || self.closing.is_empty() && owner.waiting == 0;
        // It was taken to be served, and to keep what it got. Perhaps that has kept others from being served, or has let another
        // client of its owner enter the lock again, which then waits for its turn.
        if node.is_done && (!gives_way || self.others_reenter(node, queues)) {
            self.is_outdated = true;
            return;
        }
        self.is_disturbed |= !self.closing.is_empty() && !node.was_done;
        self.remove_waiter(waiter);
    }

    /// Whether another client of the same owner was taken to enter the lock again in any of these queues.
    fn others_reenter(&self, node: &WaiterNode, queues: &[u64]) -> bool {
        queues.iter().any(|queue| {
            let of_owner = (*queue, node.owner, 0)..=(*queue, node.owner, Ticket::MAX);
            let mut reentries = self.reentries.range(of_owner);
            reentries.any(|(_, _, ticket)| *ticket != node.ticket)
        })
    }

    /// Clients behind this ticket may get more of the key: a client ahead of them has left that the search did not depend on, or the
    /// limit has changed.
    fn leaves_more(&mut self, queue: u64, ticket: Ticket) {
        let Some(key) = self.node_of_queue.get(&queue).copied() else {
            return;
        };
        let node = &mut self.keys[key];
        let last = node.waiting.last_key_value().map(|(last, _)| *last);
        if last.max(node.last_suspected) <= Some(ticket) {
            return;
        }
        self.is_disturbed |= !self.closing.is_empty();
        node.ahead = None;
        self.list(key);
    }

    fn reread(
        &mut self,
        queues: &Queues,
        key: usize,
        after: Option<usize>,
        steps: &mut u64,
        read: Read<'_>,
    ) {
        let node = &self.keys[key];
        let Some(name) = queues.key_of_queue(node.queue) else {
            return;
        };
        *steps = steps.saturating_sub(STEPS_TO_READ);
        let from = after.map_or(0, |after| after + 1);
        let known: Vec<usize> = node
            .known
            .range(from..)
            .map(|(owner, _)| *owner)
            .take(PER_STEP)
            .collect();
        let Some(last) = known.last() else {
            return;
        };
        self.tasks.push(SearchTask::Reread(key, Some(*last)));
        let mut left = vec![0; known.len()];
        read(name, &mut |lock| {
            for (owner, left) in known.iter().zip(&mut left) {
                let name = queues.owner_name(self.owners[*owner].number);
                let hold = name.and_then(|name| lock.holds().get(name));
                *left = hold.map_or(0, |hold| hold.count);
            }
        });
        for (owner, left) in known.into_iter().zip(left) {
            let node = &mut self.keys[key];
            let before = node.known.insert(owner, left).unwrap_or(0);
            if left >= before {
                continue;
            }
            self.is_disturbed |= !self.closing.is_empty() && !self.owners[owner].is_live;
            // It may have been taken to enter the lock again.
            let mut reentries = self
                .reentries
                .range((node.queue, 0, 0)..=(node.queue, usize::MAX, Ticket::MAX));
            self.is_outdated |= left == 0 && reentries.next().is_some();
            if let Some(held) = node.held.get_mut(&owner) {
                node.total = node.total.saturating_sub(held.really.saturating_sub(left));
                held.really = held.really.min(left);
                if held.really == 0 && held.served == 0 {
                    node.held.remove(&owner);
                }
                self.list(key);
            }
        }
    }
}

/// A search that has ended. If it found a deadlock, the clients that it suspected besides may close `Cycles`. Its memory is
/// freed in steps, too.
#[derive(Debug)]
pub struct FinishedSearch {
    search: Search,
    cycles: Cycles,
    last: u64,
}

impl FinishedSearch {
    /// Takes up to so many steps to find a further deadlocked client, which must be refused now. There may be more as
    /// long as [`FinishedSearch::may_find`] says so.
    pub fn find(&mut self, queues: &mut Queues, steps: &mut u64, read: Read<'_>) -> Option<Ticket> {
        self.cycles.go_on(queues, steps, read)
    }

    /// Whether [`FinishedSearch::find`] may find something.
    pub fn may_find(&self) -> bool {
        !self.cycles.is_over()
    }

    /// Takes up to so many steps. True when nothing is left.
    pub fn free(&mut self, queues: &mut Queues, steps: &mut u64) -> bool {
        queues.record_changes(false);
        while *steps > 0 {
            *steps -= 1;
            if let Some((arrival, _)) = queues.unverified_after(0, self.last) {
                queues.mark_verified(arrival);
                continue;
            }
            if !self.search.free_some() && !self.cycles.free_some() {
                return true;
            }
        }
        false
    }
}
