//! The clients that wait while hash slots move: those whose slot has left this node are redirected, and those whose slot has
//! stayed are served.

use super::ownership::{
    Verdict, ask_server, can_access, changed_slots, current_nodes, forget_change, forget_loss,
    has_lost, lost_slots, moved, nodes, owned_slots, retain_slots, same_nodes, take_change,
};
use crate::error::Error;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::wake_event_loop;
use crate::server::services::slots::{SlotSet, slot_of};
use crate::server::services::timer;
use crate::waiting::{InSlots, Key};
use std::collections::VecDeque;

/// The maximum number of queues of a family that a step lists.
const STEP_SIZE: usize = 32;

/// The shortest time between two checks by the cron event, which occurs up to 500 times a second on servers with many clients
/// (`dynamic-hz`).
const CHECK_US: u64 = 90_000;

#[derive(Default)]
struct WaitingState {
    /// The slots that need another pass: a client could not be served, or perhaps not every client received its error.
    postponed: SlotSet,
    /// The remaining work, at most one for each slot. Errors are first.
    work: VecDeque<Work>,
    /// The first of the slots that the server is asked for next, where it must be asked for each of them.
    next_slot: usize,
    /// When the cron event last checked (Unix us).
    checked_at_us: u64,
}

static STATE: MainThread<WaitingState> = MainThread::new();

/// Work for the clients that wait in a slot.
struct Work {
    slot: u16,
    task: Task,
}

enum Task {
    /// The clients receive this error: the slot has left this node, or the cluster is down. `None`: the first step looks for the error.
    Refuse(Option<Error>),
    /// The clients are served, in a pass over all queues of all families.
    Serve {
        /// The index of the family.
        family: usize,
        /// The number of the family's last queue whose clients were served.
        done: u64,
        /// Whether the slot has come or gone, so that every queue is tried.
        has_changed: bool,
    },
}

/// The families whose clients can wait.
fn families() -> impl Iterator<Item = InSlots> {
    crate::enabled_families().filter_map(|family| family.waiting)
}

impl Work {
    fn refuse(slot: usize, error: Option<Error>) -> Self {
        Self {
            slot: slot as u16,
            task: Task::Refuse(error),
        }
    }

    fn serve(slot: usize, has_changed: bool) -> Self {
        Self {
            slot: slot as u16,
            task: Task::Serve {
                family: 0,
                done: 0,
                has_changed,
            },
        }
    }

    /// Answers clients with their error, or serves queues, while the slice lasts. Returns whether work remains.
    fn step(&mut self, ctx: Ctx<'_>, slice: &mut Slice) -> bool {
        match &mut self.task {
            Task::Refuse(error) => {
                if error.is_none() {
                    *error = error_for(ctx, self.slot);
                }
                let Some(error) = error else {
                    return false;
                };
                let mut are_all_listed = true;
                for family in families() {
                    let queues = (family.queues)(self.slot, 0, STEP_SIZE);
                    are_all_listed &= queues.len() < STEP_SIZE;
                    for (_, key) in queues {
                        while !slice.is_over() && (family.refuse)(&key, error) {
                            slice.has_answered();
                        }
                    }
                }
                slice.is_over() || !are_all_listed
            }
            Task::Serve {
                family,
                done,
                has_changed,
            } => {
                let Some(in_slots) = families().nth(*family) else {
                    return false;
                };
                let queues = (in_slots.queues)(self.slot, *done, STEP_SIZE);
                for (number, key) in &queues {
                    (in_slots.serve)(ctx, key, *has_changed, slice);
                    *done = *number;
                    if slice.is_over() {
                        return true;
                    }
                }
                if queues.len() < STEP_SIZE {
                    (*family, *done) = (*family + 1, 0);
                }
                *family < families().count()
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
        STATE.get().postponed.set(slot.into(), true);
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
    current_nodes(ctx).is_some_and(|nodes| nodes.is_importing(slot)) && !has_lost(slot)
}

/// The error for a client that waited for this key until the server became a replica.
pub fn demotion_error(ctx: Ctx<'_>, name: &ServerString<'_>) -> Error {
    if !ctx.is_cluster() {
        return Error::Demoted;
    }
    moved(ctx, slot_of(name.bytes())).unwrap_or(Error::Demoted)
}

/// Before the event loop sleeps: checks waiting clients if slots have come or gone.
pub(in crate::server) fn check_waiting_clients_if_changed(ctx: Ctx<'_>) {
    if take_change(ctx) {
        check_waiting_clients(ctx);
        wake_event_loop(); // the server may have computed already for how long it sleeps
    }
}

/// In the cron event: checks waiting clients, at most eleven times a second.
pub(in crate::server) fn check_waiting_clients_regularly(ctx: Ctx<'_>) {
    let now = Now::read().micros();
    let last = STATE.get().checked_at_us;
    if now.abs_diff(last) >= CHECK_US {
        STATE.get().checked_at_us = now;
        check_waiting_clients(ctx);
    }
}

/// In a cluster: redirects the clients of slots that have left. Refuses all clients if the cluster is down. Serves the clients of
/// slots that have stayed.
fn check_waiting_clients(ctx: Ctx<'_>) {
    if !ctx.is_cluster() || !ctx.may_act() {
        return;
    }
    let mut waiting = SlotSet::ZERO;
    for slot in families().flat_map(|family| (family.slots)()) {
        waiting.set(slot.into(), true);
    }
    retain_slots(&waiting);
    let mut serve = take_passes();
    let mut postponed = std::mem::take(&mut STATE.get().postponed) & waiting;
    let mut work = VecDeque::new();
    if waiting.not_any() {
        return;
    }
    if is_down(ctx, &waiting) {
        postponed = waiting;
        serve.clear();
        work.extend(
            waiting
                .iter_ones()
                .map(|slot| Work::refuse(slot, Some(Error::ClusterDown))),
        );
    } else {
        let has_left = which_left(ctx, &waiting);
        let changed = changed_slots() & waiting;
        postponed |= changed;
        serve.retain(|work| !has_left[usize::from(work.slot)]);
        for slot in has_left.iter_ones() {
            postponed.set(slot, true);
            work.push_back(Work::refuse(slot, None));
        }
        let mut begins = postponed & !has_left;
        for work in &serve {
            begins.set(work.slot.into(), false); // another pass follows this one
        }
        for slot in begins.iter_ones() {
            postponed.set(slot, false);
            serve.push_back(Work::serve(slot, changed[slot]));
            forget_change(slot as u16);
        }
    }
    work.append(&mut serve);
    let mut state = STATE.get();
    state.postponed |= postponed;
    state.work = work;
    drop(state);
    go_on(ctx);
}

/// The unfinished passes. Errors are decided anew each time.
fn take_passes() -> VecDeque<Work> {
    let mut work = std::mem::take(&mut STATE.get().work);
    work.retain(|work| matches!(work.task, Task::Serve { .. }));
    work
}

/// A key of this slot that a client waits for.
fn waited_key(slot: usize) -> Option<Key> {
    let queue = families().find_map(|family| (family.queues)(slot as u16, 0, 1).pop());
    queue.map(|(_, key)| key)
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
fn is_down(ctx: Ctx<'_>, waiting: &SlotSet) -> bool {
    let owns = owned_slots(ctx);
    let owned = waiting.iter_ones().find(|slot| owns(*slot as u16));
    owned
        .and_then(waited_key)
        .is_some_and(|(_, key)| ask_server(ctx, &ServerString::new(&key)) == Verdict::Down)
}

/// The slots with waiting clients that this node does not own, or has lost and whose clients are not redirected yet.
fn which_left(ctx: Ctx<'_>, waiting: &SlotSet) -> SlotSet {
    let mut left = SlotSet::ZERO;
    if nodes(ctx).is_some() || can_access(0).is_some() {
        let find = || {
            let owns = owned_slots(ctx);
            let is_moving = |slot| nodes(ctx).is_some_and(|nodes| nodes.is_moving(slot));
            let mut left = SlotSet::ZERO;
            for slot in waiting.iter_ones() {
                left.set(slot, !owns(slot as u16) && !is_moving(slot as u16));
            }
            left | lost_slots() & *waiting
        };
        left = find();
        if left.any() {
            // On a busy machine the stored reply can be older than the start of an import whose clients already wait here.
            current_nodes(ctx);
            left = find();
        }
        return left;
    }
    // The server tells nothing: it is asked with a key of each slot, of as many slots as there is time for.
    let (slice, from) = (Slice::begin(), STATE.get().next_slot);
    let slots = || waiting.iter_ones();
    let from_there = slots().skip_while(|slot| *slot < from);
    for slot in from_there.chain(slots().take_while(|slot| *slot < from)) {
        if slice.is_over() {
            STATE.get().next_slot = slot;
            break;
        }
        let asked = waited_key(slot).map(|(_, key)| ask_server(ctx, &ServerString::new(&key)));
        left.set(slot, asked == Some(Verdict::Refused));
    }
    left
}

/// Does a slice of the work for waiting clients.
pub(in crate::server) fn go_on(ctx: Ctx<'_>) {
    if !ctx.may_act() {
        let passes = take_passes(); // the errors are decided anew
        STATE.get().work = passes;
        return; // the cron event asks again
    }
    if STATE.get().work.is_empty() {
        return;
    }
    let _nodes = same_nodes();
    let mut slice = Slice::of_redirections();
    while !slice.is_over() {
        let Some(mut work) = STATE.get().work.pop_front() else {
            return;
        };
        let has_more = work.step(ctx, &mut slice);
        match work.task {
            Task::Refuse(_) if has_more => STATE.get().work.push_front(work),
            Task::Refuse(None) => {} // no error: they go on waiting, and the slot stays postponed
            Task::Refuse(Some(_)) => forget_loss(work.slot),
            Task::Serve { .. } if has_more => STATE.get().work.push_back(work), // other slots first
            Task::Serve { .. } => {}
        }
    }
    if !STATE.get().work.is_empty() {
        timer::arm(ctx, Now::read().ms() + 1);
    }
}
