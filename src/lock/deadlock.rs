//! Would waiting never end? Looks for cycles of owners that wait for each other, over all keys
//! and databases.
//!
//! An owner waits for the holders of the key that exclude it and for the waiters ahead of it. A
//! lock needs all of them to give way; a semaphore only enough of its holders. So a cycle alone
//! proves nothing where semaphores are in it: the owners that can still make progress are found
//! as a fixed point (the reduction of a wait-for graph, as in Holt, "Some deadlock properties of
//! computer systems", 1972), and waiting is hopeless if the newcomer is not among them.

use super::queue::{Queues, Waiter, Want};
use super::state::{Claim, Lock};
use crate::waiting::{Key, Ticket};
use std::collections::{HashMap, HashSet};

/// What the search needs of a lock: each holder with its count.
type Holders = Vec<(Box<[u8]>, u64)>;

/// Given a key and a function, calls the function with the lock there, if there is one.
pub type Read<'a> = &'a mut dyn FnMut(&Key, &mut dyn FnMut(&Lock));

/// Would `newcomer`, who is about to join the queues, close a cycle?
pub fn would_close_cycle(queues: &Queues, newcomer: &Waiter, read: Read<'_>) -> bool {
    let ticket = match newcomer.want {
        Want::Upgrade => 0,
        Want::Claim(_) => Ticket::MAX,
    };
    if repeats(newcomer, queues) || nobody_waits_for(newcomer, queues, read) {
        return false;
    }
    let mut graph = Graph {
        queues,
        newcomer: &newcomer.owner,
        read,
        waits: HashMap::new(),
        measured: false,
    };
    let wait = graph.wait(newcomer, ticket);
    if !graph.explore(&newcomer.owner, &wait) {
        return false; // nearly always
    }
    graph.measured = true;
    let wait = graph.wait(newcomer, ticket);
    graph.explore(&newcomer.owner, &wait);
    let live = graph.live(&newcomer.owner, &wait);
    !wait.iter().all(|edge| edge.can_end(&live))
}

/// Does the owner wait for the same locks already? Then this is a retry, which is served with the
/// first, and waits for nothing that the first does not wait for.
fn repeats(newcomer: &Waiter, queues: &Queues) -> bool {
    let is_lock =
        |waiter: &Waiter| matches!(waiter.want, Want::Claim(Claim::Exclusive | Claim::Shared));
    let earlier = queues.of_owner(&newcomer.owner).iter();
    let mut earlier = earlier.filter_map(|ticket| queues.get(*ticket));
    is_lock(newcomer) && earlier.any(|other| is_lock(other) && other.keys == newcomer.keys)
}

/// With more keys than this that clients wait for, it is cheaper to start from the newcomer.
const FEW_KEYS: usize = 64;

/// Is it plain that no cycle can pass through the newcomer's owner, because it neither waits already
/// nor holds what others, or itself, wait for?
fn nobody_waits_for(newcomer: &Waiter, queues: &Queues, read: Read<'_>) -> bool {
    let owner = &*newcomer.owner;
    if !queues.of_owner(owner).is_empty() {
        return false;
    }
    let Some(keys) = queues.keys_if_few(FEW_KEYS) else {
        return false;
    };
    let mut holds = false;
    for key in keys.iter().chain(&newcomer.keys) {
        read(key, &mut |lock| holds |= lock.holds().get(owner).is_some());
    }
    !holds
}

/// One key that a waiter waits for.
struct Edge {
    holders: Holders,
    ahead: Vec<Box<[u8]>>,
    /// For a semaphore: how many permits may be taken by owners that never give way.
    slack: Option<u64>,
}

impl Edge {
    fn blockers(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.holders
            .iter()
            .map(|(owner, _)| owner)
            .chain(&self.ahead)
    }

    /// Ends the wait if all the owners in `live` give way? Who waits does not.
    fn can_end(&self, live: &HashSet<Box<[u8]>>) -> bool {
        let stuck = |other: &[u8]| !live.contains(other);
        if self.ahead.iter().any(|other| stuck(other)) {
            return false;
        }
        let held_for_ever = self.holders.iter().filter(|(other, _)| stuck(other));
        match self.slack {
            None => held_for_ever.count() == 0,
            Some(slack) => held_for_ever.map(|(_, count)| count).sum::<u64>() <= slack,
        }
    }
}

struct Graph<'a> {
    queues: &'a Queues,
    /// The owner of the newcomer.
    newcomer: &'a [u8],
    read: Read<'a>,
    /// The owners that were reached and wait, with all that they wait for.
    waits: HashMap<Box<[u8]>, Vec<Edge>>,
    /// Is the slack of semaphores wanted? It takes a walk along the queue.
    measured: bool,
}

impl Graph<'_> {
    /// Who stands in the way of a waiter with this ticket, key by key.
    fn wait(&mut self, waiter: &Waiter, ticket: Ticket) -> Vec<Edge> {
        let edges = waiter.keys.iter().map(|key| {
            // A waiter ahead that waits for nothing else stands for itself: it waits for the same
            // holders as this one, unless this one is shared and it is not.
            let behind_unshared = self.queues.is_behind_unshared(key, ticket);
            let mut holders = Holders::new();
            (self.read)(key, &mut |lock| {
                if behind_unshared || waiter.excludes_holders_of(lock) {
                    let all = lock.holds().iter();
                    let in_the_way = all.filter(|(name, _)| waiter.is_blocked_by(name));
                    holders.extend(in_the_way.map(|(name, hold)| (name.into(), hold.count)));
                }
            });
            let newcomers = self.queues.of_owner(self.newcomer);
            let ahead = self.queues.in_the_way(waiter, key, ticket, newcomers);
            Edge {
                holders,
                ahead: ahead.iter().map(|other| other.owner.clone()).collect(),
                slack: self.slack(waiter, key, ticket),
            }
        });
        edges.collect()
    }

    /// How many permits may stay taken for ever, so that this waiter and all ahead of it are
    /// served nevertheless.
    fn slack(&self, waiter: &Waiter, key: &Key, ticket: Ticket) -> Option<u64> {
        let permits = |waiter: &Waiter| match waiter.want {
            Want::Claim(Claim::Permits { count, limit }) => Some((count, limit)),
            _ => None,
        };
        let (count, limit) = permits(waiter)?;
        if !self.measured {
            return Some(0);
        }
        let ahead = self.queues.line_of(key.0, &key.1);
        let ahead = ahead.take_while(|(other, _)| *other < ticket);
        let most = ahead.filter_map(|(_, other)| Some(permits(other)?.0)).max();
        let most = most.unwrap_or(0).max(count);
        Some(
            self.queues
                .limit(key.0, &key.1, count, limit)
                .saturating_sub(most),
        )
    }

    /// Walks everything that `start` waits for, directly or not. Returns whether it came back to
    /// `start`.
    fn explore(&mut self, start: &[u8], first: &[Edge]) -> bool {
        let mut to_visit: Vec<Box<[u8]>> = blockers(first);
        let mut seen: HashSet<Box<[u8]>> = HashSet::new();
        let mut cycle = false;
        while let Some(owner) = to_visit.pop() {
            cycle |= *owner == *start;
            let tickets = self.queues.of_owner(&owner);
            if tickets.is_empty() || !seen.insert(owner.clone()) {
                continue;
            }
            let queues = self.queues;
            let edges: Vec<Edge> = tickets
                .iter()
                .filter_map(|ticket| Some((*ticket, queues.get(*ticket)?)))
                .flat_map(|(ticket, waiter)| self.wait(waiter, ticket))
                .collect();
            to_visit.extend(blockers(&edges));
            self.waits.insert(owner, edges);
        }
        cycle
    }

    /// The reached owners that can make progress, if `start` waits for `first` besides.
    fn live(&self, start: &[u8], first: &[Edge]) -> HashSet<Box<[u8]>> {
        let everybody = first.iter().chain(self.waits.values().flatten());
        let mut live: HashSet<Box<[u8]>> = everybody
            .flat_map(Edge::blockers)
            .filter(|owner| !self.waits.contains_key(*owner) && ***owner != *start)
            .cloned()
            .collect();
        loop {
            let freed: Vec<Box<[u8]>> = self
                .waits
                .iter()
                .filter(|(owner, _)| !live.contains(*owner) && ***owner != *start)
                .filter(|(_, edges)| edges.iter().all(|edge| edge.can_end(&live)))
                .map(|(owner, _)| owner.clone())
                .collect();
            if freed.is_empty() {
                return live;
            }
            live.extend(freed);
        }
    }
}

fn blockers(edges: &[Edge]) -> Vec<Box<[u8]>> {
    edges.iter().flat_map(Edge::blockers).cloned().collect()
}
