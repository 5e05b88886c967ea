//! Work that is done without a command, in slices of the server's time.

use super::ends::end_holds;
use super::handover::{Handover, HandoverProgress};
use super::notices::{self, NOTICES};
use super::search;
use super::watchdog;
use super::world::{ServerClients, ServerWorld};
use super::{DEADLINES, LISTENING, LockService, SERVICE};
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::services::cluster;
use crate::server::services::deferred;
use crate::server::services::replicas;
use crate::waiting::Key;
use std::sync::atomic::Ordering;

/// Serves the queues of keys that have changed, in order. The first slice is now; the rest goes on in later ones. If this is a command
/// of a module, all slices are later: a listener may run it in the middle of another command, which uses a key of a queue.
pub(super) fn serve(ctx: Ctx<'_>, now: Now, keys: impl IntoIterator<Item = Key>) {
    if ctx.may_be_nested() {
        let handover = &mut SERVICE.get().handover;
        keys.into_iter().for_each(|key| handover.serve_later(key));
        return deferred::ask_for_slices();
    }
    let _nodes = cluster::same_nodes();
    let mut world = ServerWorld { ctx, now };
    if Handover::keys_changed(&mut world, now.ms(), keys) {
        take_steps(&mut world, &mut Slice::begin());
    }
    plan_the_rest(ctx, now);
}

/// Serves the queue of a key, as part of a slice that has begun already. `None`: only asks for slices if work is left.
pub(super) fn serve_in(ctx: Ctx<'_>, now: Now, key: Option<Key>, slice: &mut Slice) {
    let mut world = ServerWorld { ctx, now };
    let waiting = SERVICE.get().handover.queues.len();
    if Handover::keys_changed(&mut world, now.ms(), key) {
        take_steps(&mut world, slice);
    } else if SERVICE.get().handover.queues.len() < waiting {
        slice.has_answered(); // the first client of the queue was served at once
    }
    plan_the_rest(ctx, now);
}

fn take_steps(world: &mut ServerWorld<'_>, slice: &mut Slice) {
    while !slice.is_over() && step(world, slice) {}
}

/// Asks for slices if work is left.
fn plan_the_rest(ctx: Ctx<'_>, now: Now) {
    if SERVICE.get().handover.has_urgent_work() {
        deferred::ask_for_slices();
    }
    search::plan_rechecks(ctx, &mut SERVICE.get(), now);
}

/// Takes a step of the hand-over. Returns false if there is nothing to do.
fn step(world: &mut ServerWorld<'_>, slice: &mut Slice) -> bool {
    let now = world.now.ms();
    let progress = Handover::step(world, now);
    if progress == HandoverProgress::Answered {
        slice.has_answered();
    }
    progress != HandoverProgress::Idle
}

/// Something to do at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DueWork {
    /// Serve a queue, because a hold ended that its first client waits for.
    Retry,
    /// Renew the hold that is watched under this number.
    Renew(u64),
    /// Look whether the hold with this notice has ended.
    Look(u64),
    /// Search for deadlocks.
    Search,
}

impl LockService {
    /// What is to be done next, and when (Unix ms).
    fn next_due(&self) -> Option<(u64, DueWork)> {
        let retry = self.handover.next_retry().map(|at| (at, DueWork::Retry));
        let renewal = self.steps.renewals.first().copied();
        let renewal = renewal.map(|(at, number)| (at, DueWork::Renew(number)));
        let search = self.search.next_at().map(|at| (at, DueWork::Search));
        let look = NOTICES.get().next_look();
        let look = look.map(|(at, number)| (at, DueWork::Look(number)));
        [retry, renewal, look, search].into_iter().flatten().min()
    }

    fn has_work(&self) -> bool {
        self.handover.has_work() || self.search.has_work() || NOTICES.get().has_lost()
    }
}

/// Does what is due. While writes are paused only waits can end: no lock may change then.
pub(super) fn due(ctx: Ctx<'_>, now: Now) -> Option<u64> {
    let may_act = ctx.may_act();
    let mut slice = Slice::begin();
    let mut next = None;
    loop {
        let handover = &mut SERVICE.get().handover;
        let Some(at) = handover.next_timeout() else {
            break;
        };
        if at > now.ms() {
            next = Some(at);
            break;
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        handover.end_first_wait(&mut ServerClients);
        slice.has_answered();
    }
    if !may_act {
        return next; // the cron event asks again
    }
    loop {
        let next_due = SERVICE.get().next_due();
        let Some((at, due)) = next_due else {
            break;
        };
        if at > now.ms() {
            next = Some(next.map_or(at, |next| next.min(at)));
            break;
        }
        if slice.is_over() {
            next = Some(now.ms() + 1);
            break;
        }
        match due {
            DueWork::Retry => SERVICE.get().handover.retry_first(),
            DueWork::Renew(number) => {
                SERVICE.get().steps.renewals.pop_first();
                watchdog::renew(ctx, now, number);
            }
            DueWork::Look(number) => notices::look(ctx, now, number),
            DueWork::Search => search::begin_search(&mut SERVICE.get(), now),
        }
    }
    loop {
        let first = DEADLINES.get().first();
        let Some((at, number)) = first else {
            break;
        };
        if at > now.ms() {
            next = Some(next.map_or(at, |next| next.min(at)));
            break;
        }
        if slice.is_over() {
            next = Some(now.ms() + 1);
            break;
        }
        end_holds(ctx, now, number);
    }
    take_steps(&mut ServerWorld { ctx, now }, &mut slice);
    let service = &mut *SERVICE.get();
    search::plan_rechecks(ctx, service, now);
    if service.has_work() {
        deferred::ask_for_slices();
    }
    [next, service.search.next_at()].into_iter().flatten().min()
}

/// Goes on with the work that is left.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let now = Now::read();
    let mut world = ServerWorld { ctx, now };
    while !slice.is_over() && notices::tell_next() {
        slice.has_answered();
    }
    if !ctx.may_act() {
        return go_on_as_replica(&mut world, slice);
    }
    while !slice.is_over() {
        if step(&mut world, slice) {
            continue;
        }
        let service = &mut *SERVICE.get();
        let waiting = service.handover.queues.len();
        if !search::take_steps(ctx, service, now) {
            break;
        }
        if service.handover.queues.len() < waiting {
            slice.has_answered();
        }
    }
    let service = &mut *SERVICE.get();
    search::plan_rechecks(ctx, service, now);
    stop_listening_if_idle(service);
    service.has_work()
}

/// Goes on as a replica, which has no locks to hand over. While writes are paused nothing is done: the cron event asks again.
fn go_on_as_replica(world: &mut ServerWorld<'_>, slice: &mut Slice) -> bool {
    if !world.ctx.is_replica() {
        return false;
    }
    let now = world.now.ms();
    while !slice.is_over() && Handover::step_as_replica(world, now) {
        slice.has_answered();
    }
    let service = &*SERVICE.get();
    stop_listening_if_idle(service);
    service.handover.has_tasks()
}

/// Keys that are deleted need not be reported while no client waits and no hold is watched.
pub(super) fn stop_listening_if_idle(service: &LockService) {
    if service.handover.queues.is_empty() && service.steps.watches.is_empty() {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// Asks for slices for remaining work, and serves clients that waited because the master had too few replicas.
pub(super) fn cron(ctx: Ctx<'_>) {
    DEADLINES.cron(ctx);
    let service = &mut *SERVICE.get();
    if service.has_work() {
        deferred::ask_for_slices(); // the work may have had to wait
    }
    let handover = &mut service.handover;
    if handover.queues.is_empty() || !ctx.may_act() {
        return;
    }
    let now = Now::read();
    if handover.has_refused_grants() && replicas::are_enough(ctx, now) && handover.grants_again() {
        deferred::ask_for_slices();
    }
}
