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

/// Serves the queues of keys that have changed, in order. The first slice is now; the rest goes on in later ones.
pub(super) fn serve(
    ctx: Ctx<'_>,
    service: &mut LockService,
    now: Now,
    keys: impl IntoIterator<Item = Key>,
) {
    let _nodes = cluster::same_nodes();
    let (handover, mut world) = service.hand_over(ctx, now);
    if handover.keys_changed(&mut world, now.ms(), keys) {
        let mut slice = Slice::begin();
        while !slice.is_over() && step(handover, &mut world, &mut slice) {}
    }
    if handover.has_urgent_work() {
        deferred::ask_for_slices();
    }
}

/// Takes a step of the hand-over. Returns false if there is nothing to do.
fn step(handover: &mut Handover, world: &mut ServerWorld<'_>, slice: &mut Slice) -> bool {
    let progress = handover.step(world, world.now.ms());
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
    let service = &mut *SERVICE.get();
    let may_act = ctx.may_act();
    let mut slice = Slice::begin();
    let mut next = None;
    while let Some(at) = service.handover.next_timeout() {
        if at > now.ms() {
            next = Some(at);
            break;
        }
        if slice.is_over() {
            return Some(now.ms() + 1);
        }
        service.handover.end_first_wait(&mut ServerClients);
        slice.has_answered();
    }
    if !may_act {
        return next; // the cron event asks again
    }
    while let Some((at, due)) = service.next_due() {
        if at > now.ms() {
            next = Some(next.map_or(at, |next| next.min(at)));
            break;
        }
        if slice.is_over() {
            next = Some(now.ms() + 1);
            break;
        }
        match due {
            DueWork::Retry => service.handover.retry_first(),
            DueWork::Renew(number) => {
                service.steps.renewals.pop_first();
                watchdog::renew(ctx, service, now, number);
            }
            DueWork::Look(number) => notices::look(ctx, &mut service.steps, now, number),
            DueWork::Search => search::begin_search(service, now),
        }
    }
    loop {
        let Some((at, number)) = DEADLINES.get().first() else {
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
        end_holds(ctx, service, now, number);
    }
    let (handover, mut world) = service.hand_over(ctx, now);
    while !slice.is_over() && step(handover, &mut world, &mut slice) {}
    if service.has_work() {
        deferred::ask_for_slices();
    }
    next
}

/// Goes on with the work that is left.
pub(super) fn go_on(ctx: Ctx<'_>, slice: &mut Slice) -> bool {
    let service = &mut *SERVICE.get();
    let now = Now::read();
    while !slice.is_over() && notices::tell_next() {
        slice.has_answered();
    }
    if !ctx.may_act() {
        return go_on_as_replica(ctx, service, now, slice);
    }
    while !slice.is_over() {
        let (handover, mut world) = service.hand_over(ctx, now);
        if !step(handover, &mut world, slice) && !search::take_steps(ctx, service, now) {
            break;
        }
    }
    stop_listening_if_idle(service);
    service.has_work()
}

/// Goes on as a replica, which has no locks to hand over. While writes are paused nothing is done: the cron event asks again.
fn go_on_as_replica(ctx: Ctx<'_>, service: &mut LockService, now: Now, slice: &mut Slice) -> bool {
    if !ctx.is_replica() {
        return false;
    }
    let (handover, mut world) = service.hand_over(ctx, now);
    while !slice.is_over() && handover.step_as_replica(&mut world, now.ms()) {
        slice.has_answered();
    }
    let has_work = handover.has_tasks();
    stop_listening_if_idle(service);
    has_work
}

/// Keys that are deleted need not be reported while no client waits and no hold is watched.
pub(super) fn stop_listening_if_idle(service: &LockService) {
    if service.handover.queues.is_empty() && service.steps.watches.is_empty() {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// Serves clients that had to wait until the master has enough replicas.
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
    if handover.is_held_back() && replicas::are_enough(ctx, now) && handover.grants_again() {
        deferred::ask_for_slices();
    }
}
