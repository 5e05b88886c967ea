//! The check for a deadlock when a client begins to wait, in a bounded number of steps.

use super::{Read, STEPS_TO_READ, Search};
use crate::lock::queue::Queues;
use crate::waiting::Ticket;

/// The result of the check of a client that joins a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Its wait can end, and it makes no other client wait forever.
    Fine,
    /// Its wait would never end, or its owner would wait forever for something else.
    Deadlock,
    /// The check would take too long for a command, or needs a key that cannot be read now.
    Unknown,
}

/// How many steps commands may take to find out at once whether waiting can end.
#[derive(Debug, Default)]
pub struct Budget {
    left: u64,
    /// When steps were last added (Unix ms).
    at: u64,
}

impl Budget {
    /// The maximum number of steps of a command: some tenths of a millisecond.
    const STEPS_PER_COMMAND: u64 = 1000;
    /// The maximum number of steps of all commands in a millisecond: one round of the event loop can execute many commands.
    const STEPS_PER_MS: u64 = 400;
    /// The maximum number of unused steps that later commands may use.
    const MAX_STEPS: u64 = 4 * Self::STEPS_PER_COMMAND;

    /// Calls `check` with the steps that a command may take at this time (Unix ms), from which it subtracts those it takes.
    pub fn spend<T>(&mut self, now: u64, check: impl FnOnce(&mut u64) -> T) -> T {
        let added = now.abs_diff(self.at).saturating_mul(Self::STEPS_PER_MS);
        self.left = self.left.saturating_add(added).min(Self::MAX_STEPS);
        self.at = now;
        let given = self.left.min(Self::STEPS_PER_COMMAND);
        let mut steps = given;
        let result = check(&mut steps);
        self.left -= given - steps;
        result
    }
}

/// The maximum number of holders of a key that the check looks through for owners that wait.
const FEW_HOLDERS: usize = 16;

/// The maximum number of keys with waiting clients that the check opens.
const FEW_KEYS: usize = 32;

/// Checks a client that has just joined the queues, in at most `steps` steps. Subtracts the used steps from `steps`.
pub fn check(queues: &mut Queues, newcomer: Ticket, steps: &mut u64, read: Read<'_>) -> Check {
    if is_plainly_fine(queues, newcomer, steps, read) {
        return Check::Fine;
    }
    if *steps == 0 {
        return Check::Unknown;
    }
    let mut search = Search::of(queues, newcomer);
    let Some(deadlocked) = search.run(queues, steps, read) else {
        return Check::Unknown;
    };
    let is_owner_stuck =
        || queues.is_upgrade_of_waiting_owner(newcomer) && search.is_owner_stuck(newcomer);
    if deadlocked.is_none() && !is_owner_stuck() {
        search.note_reentries(queues);
        return Check::Fine;
    }
    // Those ahead may be in a deadlock that is not known yet, and wait for it to be resolved.
    match search.left_others(queues) {
        true => Check::Unknown,
        false => Check::Deadlock,
    }
}

/// Whether it is plain at once that no owner waits for one that waits for it. The common cases: no holder of the wanted keys
/// waits, or the newcomer's owner holds nothing that clients wait for.
fn is_plainly_fine(queues: &Queues, newcomer: Ticket, steps: &mut u64, read: Read<'_>) -> bool {
    let Some(waiter) = queues.get(newcomer) else {
        return true;
    };
    let joined = (0..waiter.keys.len()).filter_map(|index| queues.queue_of_waiter(newcomer, index));
    let is_behind_entangled = |queue| {
        let first = queues.entangled_after(queue, None, newcomer);
        first.is_some_and(|first| first != newcomer)
    };
    if queues.leaves_less(newcomer) {
        return false; // the clients ahead may be deadlocked now
    }
    let owner_waits_twice = queues.owner_waits_twice(newcomer);
    if waiter.keys.len() <= FEW_KEYS && !owner_waits_twice {
        let mut joined = joined;
        if !joined.any(is_behind_entangled) {
            let (mut are_all_read, mut may_have_waiting_holder) = (true, false);
            for key in &waiter.keys {
                *steps = steps.saturating_sub(STEPS_TO_READ);
                are_all_read &= read(key, &mut |lock| {
                    may_have_waiting_holder |= lock.holds().len() > FEW_HOLDERS
                        || lock
                            .holds()
                            .iter()
                            .any(|(owner, _)| queues.owner_waits(owner));
                });
            }
            if are_all_read && !may_have_waiting_holder {
                return true;
            }
        }
    }
    let is_cheap = queues.queue_count() <= FEW_KEYS && *steps > FEW_KEYS as u64 * STEPS_TO_READ;
    if owner_waits_twice || !is_cheap {
        return false;
    }
    let mut holds = false;
    for key in queues.keys() {
        *steps = steps.saturating_sub(STEPS_TO_READ);
        let is_read = read(key, &mut |lock| {
            holds |= lock.holds().get(&waiter.owner).is_some()
        });
        if !is_read {
            return false;
        }
    }
    !holds
}
