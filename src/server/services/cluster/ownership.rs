//! Which node of a cluster owns a key.
//!
//! The server checks the keys of commands. What the module does of its own accord (deadlines, hand-overs, renewals,
//! releases) passes no such check, so it asks here first: [`owns`] is the one function for all families. Atomic slot migration
//! copies keys to a node that does not own their slot yet, and leaves keys on a node that owns it no more.

use crate::error::Error;
use crate::server::base::api;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::call::{self, CallReply};
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::string::{ServerString, slice_of};
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::slots::{self, Nodes, Ranges, SlotSet, slot_of};
use crate::waiting::Key;
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::mem;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The time for which a reply of `CLUSTER NODES` is valid: a little less than the time between two cron events.
const FRESH_US: u64 = 90_000;

/// A reply of `CLUSTER NODES` is valid for at least this many times the time that it took. So `CLUSTER NODES` takes at most 1/50 (2 %)
/// of the time, also in a large cluster.
const MIN_COST_RATIO: u64 = 50;

#[derive(Default)]
struct OwnershipState {
    nodes: Option<Rc<Nodes>>,
    /// How this server names nodes to clients, if the server was asked since the last reply of `CLUSTER NODES`.
    preferred: Option<Rc<str>>,
    /// When the server was asked for the nodes (Unix us).
    asked_at_us: u64,
    /// How long the reply took.
    reply_time_us: u64,
    /// How many [`SameNodes`] live, and whether the nodes were asked for since the first of them began.
    same_nodes: u32,
    are_nodes_current: bool,
    /// The slots that this node has lost. The clients that wait there must be redirected, even if this node already imports the
    /// slot again: the keys are on another node.
    lost: SlotSet,
    /// The slots that commands have assigned to this node since the server was last asked for its slots. Such a slot may have left and
    /// returned in that time. On a server that cannot be asked: all slots that commands may have moved.
    assigned: SlotSet,
    /// The slots that moved, that started or stopped moving, that were dropped, or that may have left and returned. All their clients
    /// are tried again, because the leases of the cache that they wait for were revoked.
    changed: SlotSet,
}

static STATE: MainThread<OwnershipState> = MainThread::new();

/// Whether slots have changed, so that the clients that wait in them must be checked before the next cron event.
static HAS_CHANGED: AtomicBool = AtomicBool::new(false);

/// The server's answer to a command on a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The cluster is down.
    Down,
    /// The key is not here, or not always.
    Refused,
}

/// Asks the server whether it would run a command of the family on this key. Nothing is done and nothing is counted, but on Redis 7.0
/// a failed call of the command.
pub(super) fn ask_server(ctx: Ctx<'_>, name: &ServerString<'_>) -> Verdict {
    static CHECKS_ALONE: OnceLock<bool> = OnceLock::new();
    static COMMAND: OnceLock<Option<&CStr>> = OnceLock::new();
    let command = *COMMAND
        .get_or_init(|| crate::enabled_families().find_map(|family| family.slot_check_command));
    let Some(command) = command else {
        return Verdict::Allowed; // no other family acts of its own accord
    };
    // SAFETY: "sc" are a key's name and a NUL-terminated string, which live through the call. "E" and "D" let the server
    // reply with its reason if it refuses the command.
    let call = |format: &CStr| unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            command.as_ptr(),
            format.as_ptr(),
            name.raw(),
            c"".as_ptr()
        )))
    };
    // Redis 7.2 and Valkey check without running the command. Redis 7.0 does not know "D", and replies nothing.
    let reply = match CHECKS_ALONE.get_or_init(|| call(c"Dsc").is_there()) {
        true => call(c"Dsc"),
        false => call(c"Esc"),
    };
    match reply.part().error() {
        Some(error) if error.contains("cluster is down") => Verdict::Down,
        Some(error) if error.contains("non local key") => Verdict::Refused,
        _ => Verdict::Allowed,
    }
}

/// The server's own answer whether a slot's keys can be used here, of Redis since 8.4: its slots, those of its master, and
/// those that it imports key by key, but not those that are copied to it at once.
pub(super) fn can_access(slot: u16) -> Option<bool> {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
    let function = (*FUNCTION.get_or_init(|| {
        let address = api::function(c"RedisModule_ClusterCanAccessKeysInSlot")?;
        // SAFETY: redismodule.h of Redis 8.4: `int RedisModule_ClusterCanAccessKeysInSlot(int slot)`.
        Some(unsafe { mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(address) })
    }))?;
    // SAFETY: the function takes any number.
    Some(unsafe { function(c_int::from(slot)) != 0 })
}

/// Whether the module may change this key without a client's command. False if another node owns its slot: the local value is
/// then a copy that follows its owner, or is about to be dropped. The state of the cluster does not matter.
pub fn owns(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    if !ctx.is_cluster() {
        return true;
    }
    let slot = slot_of(name.bytes());
    if let Some(can) = can_access(slot) {
        return can;
    }
    let nodes = nodes(ctx);
    if nodes
        .as_ref()
        .is_some_and(|nodes| !nodes.is_own(slot) && !nodes.is_moving(slot))
    {
        return false;
    }
    match ask_server(ctx, name) {
        Verdict::Allowed => true,
        Verdict::Down => true, // the nodes say so
        // Slots that move key by key: what is here is here alone.
        Verdict::Refused => nodes.is_some_and(|nodes| nodes.is_moving(slot)),
    }
}

/// Which slots are this node's, as far as that is known without their keys. The returned function asks nobody, so a family may
/// use it while its state is borrowed. To ask the server here can report moved slots to the families.
pub fn owned_slots(ctx: Ctx<'_>) -> impl Fn(u16) -> bool + use<> {
    let answers_alone = can_access(0).is_some();
    let nodes = if answers_alone { None } else { nodes(ctx) };
    move |slot| {
        let is_here = |nodes: &Rc<Nodes>| nodes.is_own(slot) || nodes.is_importing(slot);
        can_access(slot).unwrap_or_else(|| nodes.as_ref().is_none_or(is_here))
    }
}

/// Runs `work` on a key of some database that the module changes of its own accord. If it [must not](owns), or there is no
/// such database, `work` does not run.
pub fn act_on<T>(
    ctx: Ctx<'_>,
    (db, key): &Key,
    work: impl FnOnce(&ServerString<'_>) -> T,
) -> Option<T> {
    let act = || {
        let name = ServerString::new(key);
        owns(ctx, &name).then(|| work(&name))
    };
    ctx.in_db(*db, act).flatten()
}

/// The error for clients that wait in a slot that another node serves, or `None` if nobody serves it.
pub(super) fn moved(ctx: Ctx<'_>, slot: u16) -> Option<Error> {
    let nodes = nodes(ctx)?;
    let (id, address) = nodes.server_of(slot)?;
    if my_id().is_none_or(|mine| mine == id) {
        return None;
    }
    let preferred = STATE.get().preferred.clone();
    let preferred = preferred.unwrap_or_else(|| {
        let preferred: Rc<str> = preferred_endpoint(ctx).into();
        STATE.get().preferred.insert(preferred).clone()
    });
    let address = slots::endpoint(address, &preferred)?;
    Some(Error::Moved { slot, address })
}

/// Whether the slot of this key moves to or from another node, key by key. If so, a key that is missing here can be there.
pub(in crate::server) fn is_moving(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    if !ctx.is_cluster() {
        return false;
    }
    current_nodes(ctx).is_some_and(|nodes| nodes.is_moving(slot_of(name.bytes())))
}

/// Whether a command may use these two keys together. In a cluster, they must be in one slot.
pub(in crate::server) fn share_slot(
    ctx: Ctx<'_>,
    one: &ServerString<'_>,
    other: &ServerString<'_>,
) -> bool {
    !ctx.is_cluster() || slot_of(one.bytes()) == slot_of(other.bytes())
}

/// The hash slot of a key; 0 outside of a cluster.
pub fn slot(ctx: Ctx<'_>, key: &[u8]) -> u16 {
    if ctx.is_cluster() { slot_of(key) } else { 0 }
}

/// Looks whether slots have come or gone of which no event told, and tells the families.
pub fn notice_changes(ctx: Ctx<'_>) {
    if ctx.is_cluster() {
        nodes(ctx);
    }
}

/// Whether a command that may move slots has arrived since the server was last asked for its slots.
static MAY_HAVE_MOVED: AtomicBool = AtomicBool::new(false);

/// Notes that a command has arrived that may move these ranges of slots. `is_assignment`: it assigns them to this node, or lets it import
/// them. In each range, both slots are valid, and the first is at most the last.
pub(in crate::server) fn note_possible_move(ranges: &[(u16, u16)], is_assignment: bool) {
    if is_assignment || is_renamed() {
        let mut state = STATE.get();
        for (first, last) in ranges {
            state.assigned[usize::from(*first)..=usize::from(*last)].fill(true);
        }
    }
    MAY_HAVE_MOVED.store(true, Ordering::Relaxed);
}

/// Whether `id` is the id of this node of the cluster.
pub(in crate::server) fn is_my_id(id: &[u8]) -> bool {
    my_id().is_some_and(|mine| mine.as_bytes() == id)
}

/// Whether the slot of this key is known to be this node's own and not to move. Returns true outside of a cluster, and before the server
/// was first asked for its slots, because the first reply reports no change. Returns false after a command that may move slots, until the
/// server is asked again.
///
/// If a slot leaves and returns within a tenth of a second, a lease in it can survive in two cases. (1) A transaction or a pause delays
/// the command, or Valkey waits until its replicas have confirmed `SETSLOT`. The command is noted only when it arrives, so a lease that
/// is granted during this delay survives. (2) A master of the same shard becomes a replica of this node, which then owns the slot again
/// (Redis 7.4 and later).
pub fn is_known_as_own(key: &[u8]) -> bool {
    if !slots::is_in_cluster() {
        return true;
    }
    if MAY_HAVE_MOVED.load(Ordering::Relaxed) {
        return false;
    }
    let slot = slot_of(key);
    let is_own = |nodes: &Rc<Nodes>| nodes.is_own(slot) && !nodes.is_moving(slot);
    STATE.get().nodes.as_ref().is_none_or(is_own)
}

/// If a command that may move slots has arrived since the server was last asked for its slots, asks again and reports the changes. Call
/// this before a value is stored with the token of a lease: if the slot has left and returned, the lease must be revoked first.
#[inline]
pub fn notice_possible_moves(ctx: Ctx<'_>) {
    if MAY_HAVE_MOVED.load(Ordering::Relaxed) {
        notice_changes_now(ctx);
    }
}

/// Asks the server again for its slots, and reports changes to the families. Call this before a lease is granted in a slot that is not
/// [known as own](is_known_as_own): if the node notices later that the slot has come, or moves no longer, it revokes the lease.
#[cold]
pub fn notice_changes_now(ctx: Ctx<'_>) {
    if current_nodes(ctx).is_none() {
        MAY_HAVE_MOVED.store(false, Ordering::Relaxed);
        let assigned = take_assigned();
        if assigned.any() {
            let slots = assigned.iter_ones().map(|slot| slot as u16);
            slots_have_changed(ServerEvent::SlotsMoved, slots::ranges(slots));
        }
    }
}

fn take_assigned() -> SlotSet {
    mem::replace(&mut STATE.get().assigned, SlotSet::ZERO)
}

/// The nodes and their slots, as the server reported them at most a moment ago. `None`: it did not report them.
pub(super) fn nodes(ctx: Ctx<'_>) -> Option<Rc<Nodes>> {
    let start = Now::read().micros();
    {
        let state = STATE.get();
        let fresh = FRESH_US.max(state.reply_time_us * MIN_COST_RATIO);
        if state.nodes.is_some() && start.abs_diff(state.asked_at_us) < fresh {
            return state.nodes.clone();
        }
    }
    let reply = ask_cluster(ctx, c"NODES")?;
    let nodes = Rc::new(Nodes::parse(&reply.part().text()?));
    MAY_HAVE_MOVED.store(false, Ordering::Relaxed);
    let mut state = STATE.get();
    let before = state.nodes.replace(nodes.clone());
    state.preferred = None;
    state.asked_at_us = start;
    state.reply_time_us = Now::read().micros().saturating_sub(start);
    drop(state);
    let assigned = take_assigned();
    if let Some(before) = before
        && (!before.has_same_slots(&nodes) || assigned.any())
    {
        let changed = before.difference(&nodes, &assigned);
        for slot in changed.iter().flat_map(|(first, last)| *first..=*last) {
            let is_own = nodes.is_own(slot);
            if before.is_own(slot) != is_own {
                STATE.get().lost.set(slot.into(), !is_own);
            }
        }
        if !changed.is_empty() {
            slots_have_changed(ServerEvent::SlotsMoved, changed);
        }
    }
    Some(nodes)
}

/// Whether this node has lost the slot, and clients may still wait there.
pub(super) fn has_lost(slot: u16) -> bool {
    STATE.get().lost[usize::from(slot)]
}

/// Forgets lost and changed slots in which no client waits.
pub(super) fn retain_slots(waiting: &SlotSet) {
    let mut state = STATE.get();
    state.lost &= *waiting;
    state.changed &= *waiting;
}

/// The slots that this node has lost, and whose clients are not redirected yet.
pub(super) fn lost_slots() -> SlotSet {
    STATE.get().lost
}

/// Call this when all clients are redirected that waited when the slot was lost.
pub(super) fn forget_loss(slot: u16) {
    STATE.get().lost.set(slot.into(), false);
}

/// The [changed](OwnershipState::changed) slots whose waiting clients must still be tried again.
pub(super) fn changed_slots() -> SlotSet {
    STATE.get().changed
}

/// Call this when a pass over all queues of the slot begins.
pub(super) fn forget_change(slot: u16) {
    STATE.get().changed.set(slot.into(), false);
}

/// Which node serves which slot now: an older reply is not enough.
pub(super) fn current_nodes(ctx: Ctx<'_>) -> Option<Rc<Nodes>> {
    {
        let state = STATE.get();
        if state.are_nodes_current {
            return state.nodes.clone();
        }
    }
    forget_nodes();
    let nodes = nodes(ctx);
    let mut state = STATE.get();
    state.are_nodes_current = state.same_nodes > 0 && nodes.is_some();
    nodes
}

/// Lets the next caller ask the server again which node serves which slot.
pub(super) fn forget_nodes() {
    let mut state = STATE.get();
    (state.asked_at_us, state.are_nodes_current) = (0, false);
}

/// A part of a command or of a slice, in which no command and no message of the cluster can move a slot. While it lives, the
/// module asks at most once which slots move, however many keys depend on it.
#[must_use]
pub struct SameNodes(());

/// Begins such a part. `None` outside of a cluster.
#[inline]
pub fn same_nodes() -> Option<SameNodes> {
    slots::is_in_cluster().then(|| {
        STATE.get().same_nodes += 1;
        SameNodes(())
    })
}

impl Drop for SameNodes {
    fn drop(&mut self) {
        let mut state = STATE.get();
        state.same_nodes -= 1;
        if state.same_nodes == 0 {
            state.are_nodes_current = false;
        }
    }
}

/// Reports a change of these slots to the families. `event` creates the event.
pub(super) fn slots_have_changed(event: fn(Ranges) -> ServerEvent, ranges: Ranges) {
    for slot in ranges.iter().flat_map(|(first, last)| *first..=*last) {
        STATE.get().changed.set(slot.into(), true);
    }
    HAS_CHANGED.store(true, Ordering::Relaxed);
    deferred::defer_slot_change(event(ranges));
}

/// Whether slots have come or gone since this function last returned true. It returns false while the server may not act.
pub(super) fn take_change(ctx: Ctx<'_>) -> bool {
    let has_changed = HAS_CHANGED.load(Ordering::Relaxed) && ctx.may_act();
    if has_changed {
        HAS_CHANGED.store(false, Ordering::Relaxed);
    }
    has_changed
}

/// Whether `CLUSTER` is known to have another name. If so, its subcommands are searched under any name.
static IS_RENAMED: AtomicBool = AtomicBool::new(false);

/// Whether a query has shown that the server has no command with the name `CLUSTER`. Then the server cannot be asked for its slots,
/// because no server tells its modules the new name.
#[inline]
pub(in crate::server) fn is_renamed() -> bool {
    IS_RENAMED.load(Ordering::Relaxed)
}

fn ask_cluster(ctx: Ctx<'_>, what: &CStr) -> Option<CallReply> {
    static HAS_CLUSTER: OnceLock<bool> = OnceLock::new();
    let ask = || {
        // SAFETY: "c" is a NUL-terminated string, which lives through the call.
        let reply = unsafe {
            CallReply(api!(RedisModule_Call(
                ctx.raw(),
                c"CLUSTER".as_ptr(),
                c"c".as_ptr(),
                what.as_ptr()
            )))
        };
        (!reply.0.is_null()).then_some(reply)
    };
    let has_cluster = *HAS_CLUSTER.get_or_init(|| {
        let has_cluster = ask().is_some();
        if !has_cluster {
            IS_RENAMED.store(true, Ordering::Relaxed);
            let line = "the server has no command CLUSTER under that name (rename-command): clients whose slot has left \
                        this node get TRYAGAIN instead of MOVED, and each command that may move a slot revokes the leases \
                        of CACHE.FETCH in this slot";
            log::warn_in(ctx, line);
        }
        has_cluster
    });
    if has_cluster { ask() } else { None }
}

/// How this server names nodes to clients.
fn preferred_endpoint(ctx: Ctx<'_>) -> String {
    call::setting(ctx, c"cluster-preferred-endpoint-type").unwrap_or_default()
}

fn my_id() -> Option<String> {
    // SAFETY: the function takes no argument; its result, if there is one, is an id of 40 bytes.
    unsafe {
        let id = api!(RedisModule_GetMyClusterID());
        if id.is_null() {
            return None;
        }
        let bytes = slice_of(id.cast::<u8>(), raw::REDISMODULE_NODE_ID_LEN as usize);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
