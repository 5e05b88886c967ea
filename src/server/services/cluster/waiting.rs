//! The clients that wait while hash slots move: those whose slot has left this node are redirected, and those whose slot has
//! stayed are served.

use super::ownership::{
    Verdict, ask_server, can_access, current_nodes, moved, nodes, owns_slot, same_nodes,
    take_change,
};
use crate::error::Error;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::slots::{SLOTS, slot_of};
use crate::server::services::timer;
use crate::waiting::{InSlots, Key};
use std::collections::{BTreeSet, HashSet, VecDeque};

/// The longest time for work on waiting clients before the server serves other clients again.
const SLICE_US: u64 = 1000;

/// The most keys or clients that a step handles before the clock is read again.
const STEP_SIZE: usize = 32;

/// The most keys and clients that a slice handles. After the slice, the server takes 20 us to answer each client that was sent away.
const SLICE_SIZE: usize = 64;

#[derive(Default)]
struct WaitingState {
    /// The slots whose waiting clients are to be served when this node serves the slot: a client could not be served, or only some
    /// of the clients have been sent away.
    postponed: BTreeSet<u16>,
    /// The remaining work for waiting clients. Clients are sent away first.
    work: VecDeque<Work>,
    /// The first of the slots that the server is asked for next, where it must be asked for each of them.
    next_slot: u16,
}

static STATE: MainThread<WaitingState> = MainThread::new();

/// Work for the clients that wait in a slot.
struct Work {
    waiting: InSlots,
    slot: u16,
    task: Task,
}

enum Task {
    /// The clients receive this error: the slot has left this node, or the cluster is down.
    SendAway(Error),
    /// The clients are served, in a pass over all keys of the slot.
    Serve {
        /// The last key of the pass whose clients were served.
        done: Option<Key>,
        /// Whether another pass follows, because a client could not be served after this one began.
        again: bool,
    },
}

impl Task {
    const FIRST_PASS: Self = Self::Serve {
        done: None,
        again: false,
    };
}

impl Work {
    fn new(waiting: InSlots, slot: u16, task: Task) -> Self {
        Self {
            waiting,
            slot,
            task,
        }
    }

    /// Handles some keys or clients. Returns their number, and whether work remains.
    fn step(&mut self, ctx: Ctx<'_>) -> (usize, bool) {
        let after = match &self.task {
            Task::SendAway(_) => None,
            Task::Serve { done, .. } => done.as_ref(),
        };
        let keys = (self.waiting.keys)(self.slot, after, STEP_SIZE);
        match &mut self.task {
            Task::SendAway(error) => {
                STATE.get().postponed.insert(self.slot);
                let mut left = STEP_SIZE;
                for key in &keys {
                    if left > 0 {
                        left -= (self.waiting.send_away)(key, error, left);
                    }
                }
                (STEP_SIZE - left, left == 0)
            }
            Task::Serve { done, again } => {
                for key in &keys {
                    (self.waiting.serve)(ctx, key);
                }
                let is_last = keys.len() < STEP_SIZE;
                *done = keys.last().filter(|_| !is_last).cloned();
                (keys.len(), !is_last || std::mem::take(again))
            }
        }
    }
}

/// Whether clients that wait for this key may be served now, as if they had sent a command. If not, they are checked again when
/// this node owns the slot alone, or the slot has left.
pub fn serves(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    if !ctx.is_cluster() {
        return true;
    }
    let slot = slot_of(name.bytes());
    let serves = match ask_server(ctx, name) {
        Verdict::Allowed => true,
        Verdict::Down => false,
        Verdict::Refused => imports(ctx, slot),
    };
    if !serves {
        STATE.get().postponed.insert(slot);
    }
    serves
}

/// Whether this node imports the slot key by key. If it does, clients that were sent with `ASK` wait here.
fn imports(ctx: Ctx<'_>, slot: u16) -> bool {
    let imports = || nodes(ctx).is_some_and(|nodes| nodes.is_importing(slot));
    if !imports() {
        return false;
    }
    // The import can have ended a moment ago, and the slot can be on its way to the next node, with its locks.
    current_nodes(ctx).is_some_and(|nodes| nodes.is_importing(slot))
}

/// The error for a client that waited for this key until the server became a replica.
pub fn farewell(ctx: Ctx<'_>, name: &ServerString<'_>) -> Error {
    if !ctx.is_cluster() {
        return Error::Demoted;
    }
    moved(ctx, slot_of(name.bytes())).unwrap_or(Error::Demoted)
}

/// Before the event loop sleeps: checks waiting clients if slots have come or gone.
pub(in crate::server) fn check_waiting_clients_if_changed(ctx: Ctx<'_>) {
    if take_change(ctx) {
        check_waiting_clients(ctx);
    }
}

/// In a cluster, sends waiting clients after the slots that have left this node, or away if the cluster is down, and serves
/// those whose slot has stayed after all. To be called about ten times a second.
pub(in crate::server) fn check_waiting_clients(ctx: Ctx<'_>) {
    if !ctx.is_cluster() || !ctx.may_act() {
        return;
    }
    let all = crate::enabled_families().filter_map(|family| family.waiting);
    let all: Vec<(InSlots, Vec<u16>)> = all.map(|waiting| (waiting, (waiting.slots)())).collect();
    let (mut away, mut serve) = (VecDeque::new(), take_unfinished());
    if all.iter().all(|(_, slots)| slots.is_empty()) {
        STATE.get().postponed.clear();
        return;
    }
    let waiting = all
        .iter()
        .flat_map(|(waiting, slots)| slots.iter().map(|slot| (*waiting, *slot)));
    if is_down(ctx, &all) {
        for (family, slot) in waiting {
            away.push_back(Work::new(family, slot, Task::SendAway(Error::ClusterDown)));
        }
    } else {
        let postponed = std::mem::take(&mut STATE.get().postponed);
        let has_left = which_left(ctx, &all);
        serve.retain(|work| !has_left.contains(work.slot));
        let unfinished = serve_again(&mut serve, &postponed);
        for (family, slot) in waiting {
            if has_left.contains(slot) {
                STATE.get().postponed.insert(slot);
                if let Some(error) = error_for(ctx, slot) {
                    away.push_back(Work::new(family, slot, Task::SendAway(error)));
                }
            } else if postponed.contains(&slot)
                && !unfinished.contains(&(family.slots as usize, slot))
            {
                serve.push_back(Work::new(family, slot, Task::FIRST_PASS));
            }
        }
    }
    away.append(&mut serve);
    STATE.get().work = away;
    go_on(ctx);
}

/// The unfinished work, without the errors, which are decided anew each time.
fn take_unfinished() -> VecDeque<Work> {
    let mut work = std::mem::take(&mut STATE.get().work);
    work.retain(|work| matches!(work.task, Task::Serve { .. }));
    work
}

/// Adds a pass to the unfinished work of postponed slots, which may have passed the clients that could not be served. Returns the
/// families and slots of the unfinished work.
fn serve_again(work: &mut VecDeque<Work>, postponed: &BTreeSet<u16>) -> HashSet<(usize, u16)> {
    for work in work.iter_mut() {
        if let Task::Serve {
            done: Some(_),
            again,
        } = &mut work.task
        {
            *again |= postponed.contains(&work.slot);
        }
    }
    work.iter()
        .map(|work| (work.waiting.slots as usize, work.slot))
        .collect()
}

/// The error for clients that wait in a slot that this node does not serve. `None`: they go on waiting.
fn error_for(ctx: Ctx<'_>, slot: u16) -> Option<Error> {
    match nodes(ctx) {
        None => Some(Error::TryAgain), // the server answers a repeated command itself
        Some(nodes) if nodes.server_of(slot).is_none() => Some(Error::SlotNotServed),
        Some(_) => moved(ctx, slot),
    }
}

/// Whether the cluster is down. A waited key can then have another owner that this node does not see. Some servers unblock
/// waiting clients themselves; Valkey 8.1 and later do not.
fn is_down(ctx: Ctx<'_>, all: &[(InSlots, Vec<u16>)]) -> bool {
    let mut keys = all.iter().filter_map(|(waiting, slots)| {
        let slot = slots.iter().find(|slot| owns_slot(ctx, **slot))?;
        (waiting.keys)(*slot, None, 1).pop()
    });
    keys.next()
        .is_some_and(|(_, key)| ask_server(ctx, &ServerString::new(&key)) == Verdict::Down)
}

/// Slots in one bit each.
struct SlotSet(Box<[u64; SLOTS / 64]>);

impl SlotSet {
    fn new() -> Self {
        Self(Box::new([0; SLOTS / 64]))
    }

    fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64] |= 1 << (slot % 64);
    }

    fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot) / 64] & 1 << (slot % 64) != 0
    }
}

/// The slots with waiting clients that this node does not own.
fn which_left(ctx: Ctx<'_>, all: &[(InSlots, Vec<u16>)]) -> SlotSet {
    let mut left = SlotSet::new();
    if can_access(0).is_some() || nodes(ctx).is_some() {
        let has_left = |slot: &u16| {
            let is_moving = || nodes(ctx).is_some_and(|nodes| nodes.is_moving(*slot));
            !owns_slot(ctx, *slot) && !is_moving()
        };
        let slots = || all.iter().flat_map(|(_, slots)| slots);
        if slots().any(has_left) {
            // Update the stored reply first: on a busy machine it can be older than the start of an import whose clients already wait here.
            current_nodes(ctx);
            slots()
                .filter(|slot| has_left(slot))
                .for_each(|slot| left.insert(*slot));
        }
        return left;
    }
    // The server tells nothing: it is asked with a key of each slot, of as many slots as there is time for.
    let (start, from) = (Now::read().micros(), STATE.get().next_slot);
    let mut slots: Vec<(u16, InSlots)> = all
        .iter()
        .flat_map(|(waiting, slots)| slots.iter().map(|slot| (*slot, *waiting)))
        .collect();
    slots.sort_unstable_by_key(|(slot, _)| (*slot < from, *slot));
    for (slot, waiting) in slots {
        if Now::read().micros().saturating_sub(start) > SLICE_US {
            STATE.get().next_slot = slot;
            break;
        }
        if let Some((_, key)) = (waiting.keys)(slot, None, 1).pop()
            && ask_server(ctx, &ServerString::new(&key)) == Verdict::Refused
        {
            left.insert(slot);
        }
    }
    left
}

/// Does a slice of the work for waiting clients.
pub(in crate::server) fn go_on(ctx: Ctx<'_>) {
    if STATE.get().work.is_empty() || !ctx.may_act() {
        return; // the cron event asks again
    }
    let _nodes = same_nodes();
    let start = Now::read();
    let mut left = SLICE_SIZE;
    while left > 0 {
        let Some(mut work) = STATE.get().work.pop_front() else {
            return;
        };
        let (handled, has_more) = work.step(ctx);
        left = left.saturating_sub(handled.max(1));
        match &work.task {
            _ if !has_more => {}
            Task::SendAway(_) => STATE.get().work.push_front(work),
            Task::Serve { .. } => STATE.get().work.push_back(work), // after a step for each other slot
        }
        if Now::read().micros().saturating_sub(start.micros()) > SLICE_US {
            break;
        }
    }
    if !STATE.get().work.is_empty() {
        timer::arm(ctx, Now::read().ms() + 1);
    }
}
