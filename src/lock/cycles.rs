//! Further deadlocks, once a search has found one: cycles of clients of which each waits for the next one.
//!
//! The search for deadlocks finds one deadlocked client, and must look at all queues again to find the next one. A hundred
//! deadlocked clients would need a hundred searches. But most deadlocks are cycles of clients that each wait for the
//! next one whatever the others do, and a walk through the queues finds such a cycle fast. The client that came last closed
//! the cycle. What no cycle shows, such as the permits of several holders together, is left to the next search.
//!
//! Walks from each suspect, the oldest first, find exactly those clients that a check of each at its arrival would have
//! refused. Where thousands of clients depend on each other, such walks take too long. Then one descent through all that is left
//! looks at each wait once, and refuses the newest client of each cycle that it meets.

use super::deadlock::{PER_STEP, Read, STEPS_TO_READ};
use super::queue::{LockWaiter, Queues, Want};
use super::state::{Lock, Mode, RequestedMode};
use crate::waiting::Ticket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A walk gives up after this number of clients, and looks at no more holders of a key, or waiters of an owner, than [`PER_STEP`].
const MAX_REACHED: usize = 4096;

/// A walk leaves a longer cycle to others: all its keys are read again in one go.
const MAX_CYCLE: usize = 256;

/// The walks may take as many steps as the search, and the descent so many times as many.
const DESCENT_FACTOR: u64 = 2;

/// The walks from each client that may close a cycle.
#[derive(Debug)]
pub(super) struct Cycles {
    /// The clients that may close a cycle, the oldest last.
    suspects: Vec<Ticket>,
    /// Those from which the descent starts, because their walks were given up.
    left: Vec<Ticket>,
    descent: Descent,
    walk: Option<CycleWalk>,
    /// The holders of keys that were read, by the numbers of their queues. They may have changed since.
    holders: BTreeMap<u64, Holders>,
    /// How many steps the walks may still take.
    steps_left: u64,
    /// How many steps the descent may still take.
    descent_steps_left: u64,
}

/// The holders of a key that wait for something.
#[derive(Debug, Default)]
struct Holders {
    is_shared: bool,
    /// The numbers of their owners, and their counts. `None`: too many.
    counts: Option<Vec<(u64, u64)>>,
}

/// A walk, first along the shortest ways, from a client to those that must be served before it, until one waits for the first.
#[derive(Debug)]
struct CycleWalk {
    suspect: Ticket,
    arrival: u64,
    /// For each client that was reached, the one that waits for it and the index of the key.
    reached: BTreeMap<Ticket, (Ticket, usize)>,
    /// Where the walk continues: clients and indexes of their keys.
    next: VecDeque<(Ticket, usize)>,
}

impl Cycles {
    /// `suspects`: the newest first.
    /// `last`: the last arrival that the search has looked at. `most_steps`: the steps that it took.
    pub(super) fn new(suspects: Vec<Ticket>, last: u64, most_steps: u64) -> Self {
        Self {
            suspects,
            left: Vec::new(),
            descent: Descent::new(last),
            walk: None,
            holders: BTreeMap::new(),
            steps_left: most_steps,
            descent_steps_left: most_steps.saturating_mul(DESCENT_FACTOR),
        }
    }

    /// Takes up to so many steps. Returns a client that closes a cycle and must be refused now. Whether it is over says
    /// [`Cycles::is_over`].
    pub(super) fn go_on(
        &mut self,
        queues: &mut Queues,
        steps: &mut u64,
        read: Read<'_>,
    ) -> Option<Ticket> {
        while *steps > 0 && !self.is_over() {
            let before = *steps;
            *steps -= 1;
            let is_walking = !self.is_walked();
            let found = if is_walking {
                self.step(queues, steps, read)
            } else {
                self.descend(queues, steps, read)
            };
            let left = match is_walking {
                true => &mut self.steps_left,
                false => &mut self.descent_steps_left,
            };
            *left = left.saturating_sub(before - *steps);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether no more cycles are looked for.
    pub(super) fn is_over(&self) -> bool {
        self.is_walked() && (self.descent_steps_left == 0 || self.is_descended())
    }

    fn is_walked(&self) -> bool {
        self.steps_left == 0 || self.walk.is_none() && self.suspects.is_empty()
    }

    fn is_descended(&self) -> bool {
        self.walk.is_none()
            && self.suspects.is_empty()
            && self.left.is_empty()
            && self.descent.path.is_empty()
    }

    /// Frees a little. Returns false if nothing is left.
    pub(super) fn free_some(&mut self) -> bool {
        self.walk = None;
        self.suspects = Vec::new();
        self.left = Vec::new();
        self.holders.pop_first().is_some()
            | self.descent.path.pop().is_some()
            | self.descent.holders.pop_first().is_some()
            | self.descent.known.pop_first().is_some()
    }

    /// A step of the descent. Returns a client that closes a cycle and must be refused now.
    fn descend(&mut self, queues: &mut Queues, steps: &mut u64, read: Read<'_>) -> Option<Ticket> {
        if !self.descent.is_begun {
            queues.record_changes(true);
            self.descent.is_begun = true;
        }
        let changes = queues.changes()?;
        changes.gone.clear(); // they wait for nothing
        if changes.more_holds {
            self.descent_steps_left = 0;
            return None;
        }
        // The walks were given up at these clients.
        if let Some(suspect) = self.walk.take().map(|walk| walk.suspect) {
            self.left.push(suspect);
        }
        if let Some(suspect) = self.suspects.pop() {
            self.left.push(suspect);
            return None;
        }
        if self.descent.path.is_empty() {
            let suspect = self.left.pop()?;
            self.descent.enter(queues, suspect);
            return None;
        }
        self.descent.step(queues, steps, read)
    }

    fn step(&mut self, queues: &Queues, steps: &mut u64, read: Read<'_>) -> Option<Ticket> {
        let Some(walk) = &mut self.walk else {
            let suspect = self.suspects.pop()?;
            self.walk = queues.arrival(suspect).map(|arrival| CycleWalk {
                suspect,
                arrival,
                reached: BTreeMap::new(),
                next: VecDeque::from([(suspect, 0)]),
            });
            return None;
        };
        let Some((ticket, index)) = walk.next.pop_front() else {
            self.walk = None;
            return None;
        };
        let Some(queue) = queues.queue_of_waiter(ticket, index) else {
            return None; // these were all its keys
        };
        walk.next.push_front((ticket, index + 1));
        let holders = self.holders.entry(queue).or_insert_with(|| {
            *steps = steps.saturating_sub(STEPS_TO_READ);
            Holders::read(queues, queue, read)
        });
        let mut is_closed = false;
        each_blocker(queues, ticket, queue, holders, &mut |blocker| {
            if blocker == walk.suspect {
                is_closed = true;
            } else if queues.arrival(blocker) < Some(walk.arrival)
                && !walk.reached.contains_key(&blocker)
            {
                walk.reached.insert(blocker, (ticket, index));
                walk.next.push_back((blocker, 0));
            }
            *steps = steps.saturating_sub(1);
        });
        if is_closed || walk.reached.len() > MAX_REACHED {
            let found = (is_closed && walk.is_cycle(queues, (ticket, index), steps, read))
                .then_some(walk.suspect);
            if found.is_none() {
                self.left.push(walk.suspect);
            }
            self.walk = None;
            return found;
        }
        None
    }
}

/// A depth-first descent from waiting clients to those that must be served before them.
#[derive(Debug)]
struct Descent {
    /// The last arrival that matters.
    last: u64,
    /// From a suspect down to the present client.
    path: Vec<Descending>,
    known: BTreeMap<Ticket, DescentProgress>,
    /// The holders of keys that were read since changes are recorded, by the numbers of their queues.
    holders: BTreeMap<u64, Holders>,
    is_begun: bool,
}

/// A client of the path.
#[derive(Debug)]
struct Descending {
    ticket: Ticket,
    /// The index of the next key.
    next: usize,
    /// The clients that must be served before it at the key before `next`, and have not been looked at.
    blockers: Vec<Ticket>,
}

/// How far the descent has come with a client.
#[derive(Debug)]
enum DescentProgress {
    /// It has this position on the path.
    OnPath(usize),
    /// It was left when another client of the path was refused.
    Left(Descending),
    /// No cycle can be reached from it.
    Finished,
}

impl Descent {
    fn new(last: u64) -> Self {
        Self {
            last,
            path: Vec::new(),
            known: BTreeMap::new(),
            holders: BTreeMap::new(),
            is_begun: false,
        }
    }

    /// Continues with this client. Returns the position where a cycle begins, if it is on the path.
    fn enter(&mut self, queues: &Queues, ticket: Ticket) -> Option<usize> {
        if queues
            .arrival(ticket)
            .is_none_or(|arrival| arrival > self.last)
        {
            return None;
        }
        let progress = DescentProgress::OnPath(self.path.len());
        match self.known.insert(ticket, progress) {
            None => self.path.push(Descending {
                ticket,
                next: 0,
                blockers: Vec::new(),
            }),
            Some(DescentProgress::Left(client)) => self.path.push(client),
            Some(DescentProgress::OnPath(position)) => {
                self.known.insert(ticket, DescentProgress::OnPath(position));
                return Some(position);
            }
            Some(DescentProgress::Finished) => {
                self.known.insert(ticket, DescentProgress::Finished);
            }
        }
        None
    }

    fn step(&mut self, queues: &Queues, steps: &mut u64, read: Read<'_>) -> Option<Ticket> {
        let client = self.path.last_mut()?;
        if let Some(blocker) = client.blockers.pop() {
            let begin = self.enter(queues, blocker)?;
            return self.refuse(queues, begin, steps);
        }
        let (ticket, index) = (client.ticket, client.next);
        let Some(queue) = queues.queue_of_waiter(ticket, index) else {
            self.known.insert(ticket, DescentProgress::Finished);
            self.path.pop();
            return None;
        };
        client.next += 1;
        let holders = self.holders.entry(queue).or_insert_with(|| {
            *steps = steps.saturating_sub(STEPS_TO_READ);
            Holders::read(queues, queue, read)
        });
        each_blocker(queues, ticket, queue, holders, &mut |blocker| {
            client.blockers.push(blocker);
            *steps = steps.saturating_sub(1);
        });
        None
    }

    /// Returns the newest client of the cycle from this position to the end of the path, if each still waits for the next one.
    fn refuse(&mut self, queues: &Queues, begin: usize, steps: &mut u64) -> Option<Ticket> {
        let cycle = &self.path[begin..];
        *steps = steps.saturating_sub(cycle.len() as u64 / 4);
        let is_unchanged = cycle.iter().all(|client| {
            let queue = queues.queue_of_waiter(client.ticket, client.next - 1);
            queue.is_some_and(|queue| !queues.has_changed(queue))
        });
        let arrivals = cycle.iter().enumerate().map(|(position, client)| {
            let arrival = queues.arrival(client.ticket);
            (arrival, begin + position, client.ticket)
        });
        let (_, position, newest) = arrivals.max().filter(|_| is_unchanged)?;
        // Those that have led to the newest go on; those behind it are looked at again when somebody else leads to them.
        let mut next = self.path[begin].ticket;
        for mut client in self.path.drain(position..).rev() {
            let ticket = client.ticket;
            client.blockers.push(next);
            next = ticket;
            self.known.insert(ticket, DescentProgress::Left(client));
        }
        Some(newest)
    }
}

impl CycleWalk {
    /// Whether each client on the way to the last one still waits for the next one, and the last one for the first.
    fn is_cycle(
        &self,
        queues: &Queues,
        last: (Ticket, usize),
        steps: &mut u64,
        read: Read<'_>,
    ) -> bool {
        let (mut target, mut at) = (self.suspect, last);
        for _ in 0..MAX_CYCLE {
            let (ticket, index) = at;
            let Some(queue) = queues.queue_of_waiter(ticket, index) else {
                return false;
            };
            *steps = steps.saturating_sub(STEPS_TO_READ);
            let holders = Holders::read(queues, queue, read);
            let mut waits = false;
            each_blocker(queues, ticket, queue, &holders, &mut |blocker| {
                waits |= blocker == target;
            });
            if !waits {
                return false;
            }
            if ticket == self.suspect {
                return true;
            }
            target = ticket;
            let Some(before) = self.reached.get(&ticket) else {
                return false;
            };
            at = *before;
        }
        false
    }
}

impl Holders {
    fn read(queues: &Queues, queue: u64, read: Read<'_>) -> Self {
        let mut holders = Self {
            is_shared: false,
            counts: Some(Vec::new()),
        };
        let Some(key) = queues.key_of_queue(queue) else {
            return holders;
        };
        read(key, &mut |lock: &Lock| {
            let holds = lock.holds();
            let waiting = holds.iter().filter_map(|(owner, hold)| {
                let owner = queues.owner_number(owner)?;
                Some((owner, hold.count))
            });
            holders = Self {
                is_shared: lock.mode() == Mode::Shared,
                counts: (holds.len() <= PER_STEP).then(|| waiting.collect()),
            };
        });
        holders
    }

    fn has(&self, owner: u64) -> bool {
        let mut counts = self.counts.iter().flatten();
        counts.any(|(other, _)| *other == owner)
    }
}

/// Calls `visit` with clients that must all be served before this one can have the key of the queue. There may be more of them:
/// where that is not plain, none is named.
fn each_blocker(
    queues: &Queues,
    ticket: Ticket,
    queue: u64,
    holders: &Holders,
    visit: &mut dyn FnMut(Ticket),
) {
    let (Some(waiter), Some(owner), Some(counts)) = (
        queues.get(ticket),
        queues.owner_of_waiter(ticket),
        &holders.counts,
    ) else {
        return;
    };
    let is_semaphore = waiter.permits().is_some();
    let is_upgrade = waiter.want == Want::Upgrade;
    if !is_semaphore && !is_upgrade && holders.has(owner) {
        return; // the owner enters its own lock again
    }
    let waits_twice = queues.owner_waits_twice(ticket);
    let is_exclusive = waiter.want == Want::Acquire(RequestedMode::Exclusive);
    if is_exclusive && waits_twice && queues.owner_wants_to_share(ticket) {
        return; // its wait ends with nil if the owner shares one of its locks first
    }
    // Another request of the owner may share the lock with its holders, and let this one in.
    if !waits_twice || is_semaphore || is_upgrade || !holders.is_shared {
        let most = max_count_beside(queues, waiter, ticket, queue, holders.is_shared);
        for (holder, count) in counts {
            if *count > most && (is_semaphore || *holder != owner) {
                each_of_owner(queues, *holder, visit);
            }
        }
    }
    // Another request of the owner may be ahead, and let this one pass.
    if !is_upgrade
        && !waits_twice
        && let Some(ahead) = queues.entangled_before(queue, ticket)
        && !(waiter.is_shared() && queues.get(ahead).is_some_and(|ahead| ahead.is_shared()))
    {
        visit(ahead);
    }
}

/// The largest count that a holder can keep while the waiting client is served.
fn max_count_beside(
    queues: &Queues,
    waiter: &LockWaiter,
    ticket: Ticket,
    queue: u64,
    is_shared: bool,
) -> u64 {
    match waiter.want {
        Want::Acquire(RequestedMode::Shared) if is_shared => u64::MAX,
        Want::Upgrade | Want::Acquire(RequestedMode::Exclusive | RequestedMode::Shared) => 0,
        Want::Acquire(RequestedMode::Permits { .. }) => {
            // If later clients are refused, their limits no longer count.
            let naming = queues.naming(ticket).unwrap_or_default();
            let named = queues.named_limits(queue);
            let limits = named.map(|named| named.possible(naming + 1, &BTreeSet::new()));
            queues
                .spare_permits(queue, ticket, limits.unwrap_or_default())
                .0
        }
    }
}

/// Calls `visit` with the waiters of an owner, all of which must be served before it gives anything back.
fn each_of_owner(queues: &Queues, owner: u64, visit: &mut dyn FnMut(Ticket)) {
    let mut from = 0;
    for _ in 0..PER_STEP {
        let Some(ticket) = queues.ticket_of_owner(owner, from) else {
            return;
        };
        visit(ticket);
        from = ticket + 1;
    }
}
