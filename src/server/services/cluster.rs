//! Which node of a cluster serves a key.
//!
//! The server checks the keys of commands. What the module does of its own accord (deadlines, hand-overs, renewals,
//! releases) passes no such check, so it asks here first: [`owns`] is the one place for all families. Atomic slot migration
//! copies keys to a node that does not own their slot yet, and leaves keys on a node that owns it no more.

use crate::error::Error;
use crate::server::base::api;
use crate::server::base::clock::Now;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::call::{self, CallReply, CallReplyPart};
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::{ServerString, slice_of};
use crate::server::services::commit::{Commit, Replicate};
use crate::server::services::deferred;
use crate::server::services::deferred::ServerEvent;
use crate::server::services::slots::{self, Nodes, Ranges, SLOTS, slot_of};
use crate::server::services::timer;
use crate::waiting::{InSlots, Key};
use redis_module::raw;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// For so long what `CLUSTER NODES` said is good, in microseconds: a little less than the time between two cron events.
const FRESH_US: u64 = 90_000;

/// If the question is expensive, because the cluster is large, it takes at most this part of the time.
const COST_PART: u64 = 50;

/// For so long (in microseconds) the server may look after waiting clients before it serves others again.
const SLICE_US: u64 = 1000;

/// So many keys or clients are looked after before the clock is read again.
const STEP_SIZE: usize = 32;

/// So many steps are taken in a slice at most: the server takes 20 us to answer each client that a step sends away, when the
/// slice is over.
const SLICE_STEPS: usize = 2;

/// A command and its payload, `command key payload`, that a node must run before it serves keys of a hash slot of this node.
pub type SlotParcel = (&'static CStr, Vec<u8>);

#[derive(Default)]
struct State {
    nodes: Option<Rc<Nodes>>,
    /// How this server names nodes to clients, if that was asked for since.
    preferred: Option<Rc<str>>,
    /// When the nodes were asked for (Unix us), and how long that took.
    asked_at: u64,
    asked_for: u64,
    /// How many [`SameNodes`] live, and whether the nodes were asked for since the first of them began.
    same_nodes: u32,
    are_nodes_current: bool,
    /// The slots whose waiting clients could not be served when something happened.
    put_off: BTreeSet<u16>,
    /// For each atomic migration from this node that goes on, one of its slots. Empty where the server lets
    /// [the copy begin](send_before_keys) with what the families give along.
    exports: HashMap<Vec<u8>, u16>,
    /// What is to be done for waiting clients.
    work: VecDeque<Work>,
    /// Where the look at the slots goes on that must be asked for one by one.
    next_slot: u16,
}

static STATE: MainThread<State> = MainThread::new();

/// Whether slots have changed, so that the clients that wait in them must be checked before the next cron event.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Something to do for those who wait in a slot.
struct Work {
    waiting: InSlots,
    slot: u16,
    task: Task,
}

enum Task {
    /// They are told this: the slot has left this node, or the cluster is down.
    SendAway(Error),
    /// The slot is here again: they are served, from the key behind this one on.
    Serve(Option<Key>),
}

/// What the server says to a command on a key.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// The cluster is down.
    Down,
    /// The key is not here, or not always.
    Refused,
}

/// Asks the server what it says to a command that writes this key. Nothing is done and nothing is counted, but on Redis 7.0
/// a failed call of the command.
fn ask_server(ctx: Ctx<'_>, name: &ServerString<'_>) -> Verdict {
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
fn can_access(slot: u16) -> Option<bool> {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
    let function = (*FUNCTION.get_or_init(|| {
        let address = api::function(c"RedisModule_ClusterCanAccessKeysInSlot")?;
        // SAFETY: redismodule.h of Redis 8.4: `int RedisModule_ClusterCanAccessKeysInSlot(int slot)`.
        Some(unsafe {
            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(address)
        })
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

/// Whether this node owns the slot, as far as that is known without a key of the slot.
pub fn owns_slot(ctx: Ctx<'_>, slot: u16) -> bool {
    owned_slots(ctx)(slot)
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
        STATE.get().put_off.insert(slot);
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

/// The error for those who wait in a slot that another node serves, or `None` if nobody serves it.
fn moved(ctx: Ctx<'_>, slot: u16) -> Option<Error> {
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
pub fn is_moving(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    if !ctx.is_cluster() {
        return false;
    }
    current_nodes(ctx).is_some_and(|nodes| nodes.is_moving(slot_of(name.bytes())))
}

/// Whether a command may use these two keys together. In a cluster, they must be in one slot.
pub fn share_slot(ctx: Ctx<'_>, one: &ServerString<'_>, other: &ServerString<'_>) -> bool {
    !ctx.is_cluster() || slot_of(one.bytes()) == slot_of(other.bytes())
}

/// The hash slot of a key; 0 outside of a cluster.
pub fn slot(ctx: Ctx<'_>, key: &[u8]) -> u16 {
    if ctx.is_cluster() { slot_of(key) } else { 0 }
}

/// What this node serves, as it says itself, with its configuration epoch: it is another one as soon as a slot has come or
/// gone, is about to, or has gone and come back. `None` outside of a cluster, or if the server does not tell.
pub fn own_slots(ctx: Ctx<'_>) -> Option<String> {
    if !ctx.is_cluster() {
        return None;
    }
    current_nodes(ctx).map(|nodes| nodes.own_part().to_owned())
}

/// Looks whether slots have come or gone of which no event told, and tells the families.
pub fn notice_changes(ctx: Ctx<'_>) {
    if ctx.is_cluster() {
        nodes(ctx);
    }
}

/// Sends to the nodes that receive hash slots of this node what the families give along. To be called when the server has just
/// begun to copy the slots. The AOF and the replicas receive it, too. Returns false if no node waits for it: on Redis, the
/// copy itself begins with it, see `send_before_keys`.
pub fn send_to_importers(ctx: Ctx<'_>) -> bool {
    let slots: Vec<u16> = STATE.get().exports.values().copied().collect();
    for (command, payload) in slot_parcels() {
        for slot in &slots {
            // A server passes on only commands that have a key in the slot. The key is not opened, and need not exist.
            let name = ServerString::new(&slots::key_in(*slot));
            let commit = Commit {
                replicate: Replicate::Effect(command, &payload),
                ..Commit::default()
            };
            commit.carry_out_without_key(ctx, &name);
        }
    }
    !slots.is_empty()
}

/// What the families give along with the keys of a slot.
fn slot_parcels() -> Vec<SlotParcel> {
    let families = crate::enabled_families();
    families
        .filter_map(|family| (family.slot_parcel)())
        .collect()
}

/// `RedisModule_ClusterPropagateForSlotMigration` of Redis since 8.4: puts a command in front of the copy of a slot.
type SendBeforeKeys =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *const c_char, *const c_char, ...) -> c_int;

fn send_before_keys_function() -> Option<SendBeforeKeys> {
    static FUNCTION: OnceLock<Option<SendBeforeKeys>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let address = api::function(c"RedisModule_ClusterPropagateForSlotMigration")?;
        // SAFETY: redismodule.h of Redis 8.4: `int RedisModule_ClusterPropagateForSlotMigration(RedisModuleCtx *ctx, const
        // char *cmdname, const char *fmt, ...)`.
        Some(unsafe {
            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, SendBeforeKeys>(address)
        })
    })
}

/// Puts what the families give along in front of the copy of these slots. Redis calls this in the child that writes the copy,
/// so it has the state at the fork. All later changes follow the copy.
fn send_before_keys(ctx: Ctx<'_>, ranges: &Ranges) {
    let (Some(send), Some((first, _))) = (send_before_keys_function(), ranges.first()) else {
        return;
    };
    let name = ServerString::new(&slots::key_in(*first));
    for (command, payload) in slot_parcels() {
        // SAFETY: "sb" is a key's name and a buffer with its length; all live through the call.
        let status = unsafe {
            send(
                ctx.raw(),
                command.as_ptr(),
                c"sb".as_ptr(),
                name.raw(),
                payload.as_ptr(),
                payload.len(),
            )
        };
        if status != raw::REDISMODULE_OK as c_int {
            let line = "cannot send a command in front of the copy of a hash slot";
            log::warn_in(ctx, line);
        }
    }
}

/// The nodes and their slots, as the server reported them at most a moment ago. `None`: it did not report them.
fn nodes(ctx: Ctx<'_>) -> Option<Rc<Nodes>> {
    let start = Now::read().micros();
    {
        let state = STATE.get();
        let fresh = FRESH_US.max(state.asked_for * COST_PART);
        if state.nodes.is_some() && start.abs_diff(state.asked_at) < fresh {
            return state.nodes.clone();
        }
    }
    let reply = ask_cluster(ctx, c"NODES")?;
    let nodes = Rc::new(Nodes::parse(&reply.part().text()?));
    let mut state = STATE.get();
    let before = state.nodes.replace(nodes.clone());
    state.preferred = None;
    state.asked_at = start;
    state.asked_for = Now::read().micros().saturating_sub(start);
    drop(state);
    let changed = before.map(|before| before.difference(&nodes));
    if let Some(changed) = changed.filter(|changed| !changed.is_empty()) {
        moving(ServerEvent::SlotsMoved(changed));
    }
    Some(nodes)
}

/// Who serves which slot now: an answer of a moment ago is not enough.
fn current_nodes(ctx: Ctx<'_>) -> Option<Rc<Nodes>> {
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

/// Who serves which slot is asked for anew.
fn forget_nodes() {
    let mut state = STATE.get();
    (state.asked_at, state.are_nodes_current) = (0, false);
}

/// A part of a command or of a slice, in which no command and no message of the cluster can move a slot. While it lives, the
/// module asks at most once which slots move, however many keys depend on it.
#[must_use]
pub struct SameNodes(());

/// Begins such a part. `None` outside of a cluster.
#[inline]
pub fn same_nodes() -> Option<SameNodes> {
    slots::in_cluster().then(|| {
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

/// Tells the families that slots came or went.
fn moving(event: ServerEvent) {
    CHANGED.store(true, Ordering::Relaxed);
    deferred::defer_slot_change(event);
}

/// The role of this server changes, and with it who serves what.
pub(in crate::server) fn role_changes() {
    forget_nodes();
    STATE.get().exports.clear();
}

/// Whether `CLUSTER` is known to have another name. If so, its subcommands are searched under any name.
static IS_RENAMED: AtomicBool = AtomicBool::new(false);

/// Whether a query has shown that the server has no command with the name `CLUSTER`.
#[inline]
pub(in crate::server) fn is_renamed() -> bool {
    IS_RENAMED.load(Ordering::Relaxed)
}

fn ask_cluster(ctx: Ctx<'_>, what: &CStr) -> Option<CallReply> {
    static NAME: OnceLock<Option<CString>> = OnceLock::new();
    let ask = |command: &CStr| {
        // SAFETY: "c" is a NUL-terminated string, which lives through the call.
        let reply = unsafe {
            CallReply(api!(RedisModule_Call(
                ctx.raw(),
                command.as_ptr(),
                c"c".as_ptr(),
                what.as_ptr()
            )))
        };
        (!reply.0.is_null()).then_some(reply)
    };
    let name = NAME.get_or_init(|| {
        if ask(c"CLUSTER").is_some() {
            return Some(c"CLUSTER".to_owned());
        }
        IS_RENAMED.store(true, Ordering::Relaxed);
        let found = present_name(ctx).filter(|name| ask(name).is_some());
        if found.is_none() {
            let line = "the server has no command CLUSTER under that name (rename-command): clients whose slot has left \
                        this node get TRYAGAIN instead of MOVED";
            log::warn_in(ctx, line);
        }
        found
    });
    ask(name.as_deref()?)
}

/// What `CLUSTER` is called now, as far as the server tells: only Valkey 9 does.
fn present_name(ctx: Ctx<'_>) -> Option<CString> {
    let reply = call::commands(ctx);
    let commands = reply.part();
    let is_cluster = |command: &CallReplyPart<'_>| {
        let subcommands = command.element(9);
        let first = subcommands.and_then(|all| all.element(0)?.element(0)?.text());
        first.is_some_and(|name| name.starts_with("cluster|"))
    };
    let mut all = (0..commands.len()).filter_map(|index| commands.element(index));
    let name = all.find(is_cluster)?.element(0)?.text()?;
    CString::new(name).ok()
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

/// Before the event loop sleeps: looks after waiting clients if something has happened to slots.
pub(in crate::server) fn look_if_changed(ctx: Ctx<'_>) {
    if CHANGED.load(Ordering::Relaxed) && ctx.may_act() {
        CHANGED.store(false, Ordering::Relaxed);
        look_after(ctx);
    }
}

/// In a cluster, sends waiting clients after the slots that have left this node, or away if the cluster is down, and serves
/// those whose slot has stayed after all. To be called about ten times a second.
pub(in crate::server) fn look_after(ctx: Ctx<'_>) {
    if !ctx.is_cluster() || !ctx.may_act() {
        return;
    }
    let all = crate::enabled_families().filter_map(|family| family.waiting);
    let all: Vec<(InSlots, Vec<u16>)> = all.map(|waiting| (waiting, (waiting.slots)())).collect();
    let mut work = keep_unfinished();
    if all.iter().all(|(_, slots)| slots.is_empty()) {
        STATE.get().put_off.clear();
        return;
    }
    let send_away = |work: &mut VecDeque<Work>, waiting, slot, error| {
        let task = Task::SendAway(error);
        work.push_back(Work {
            waiting,
            slot,
            task,
        });
    };
    if is_down(ctx, &all) {
        for (waiting, slots) in &all {
            for slot in slots {
                send_away(&mut work, *waiting, *slot, Error::ClusterDown);
            }
        }
    } else {
        let put_off = std::mem::take(&mut STATE.get().put_off);
        let known = |waiting: InSlots, slot| (waiting.slots as usize, slot);
        let queued: HashSet<_> = work
            .iter()
            .map(|work| known(work.waiting, work.slot))
            .collect();
        let has_left = which_left(ctx, &all);
        for (waiting, slots) in &all {
            for slot in slots {
                if has_left.contains(*slot) {
                    if let Some(error) = error_for(ctx, *slot) {
                        send_away(&mut work, *waiting, *slot, error);
                    } else {
                        STATE.get().put_off.insert(*slot);
                    }
                } else if put_off.contains(slot) && !queued.contains(&known(*waiting, *slot)) {
                    let (waiting, slot, task) = (*waiting, *slot, Task::Serve(None));
                    work.push_back(Work {
                        waiting,
                        slot,
                        task,
                    });
                }
            }
        }
    }
    STATE.get().work = work;
    go_on(ctx);
}

/// What was begun before, but for what is decided anew each time.
fn keep_unfinished() -> VecDeque<Work> {
    let mut work = std::mem::take(&mut STATE.get().work);
    work.retain(|work| matches!(work.task, Task::Serve(_)));
    work
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
        for slot in all.iter().flat_map(|(_, slots)| slots) {
            let is_moving = || nodes(ctx).is_some_and(|nodes| nodes.is_moving(*slot));
            if !owns_slot(ctx, *slot) && !is_moving() {
                left.insert(*slot);
            }
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
    for _ in 0..SLICE_STEPS {
        let Some(mut work) = STATE.get().work.pop_front() else {
            return;
        };
        if work.step(ctx) {
            STATE.get().work.push_front(work);
        }
        if Now::read().micros().saturating_sub(start.micros()) > SLICE_US {
            break;
        }
    }
    if !STATE.get().work.is_empty() {
        timer::arm(ctx, Now::read().ms() + 1);
    }
}

impl Work {
    /// Does a few steps. Returns whether more remain.
    fn step(&mut self, ctx: Ctx<'_>) -> bool {
        match &mut self.task {
            Task::SendAway(error) => {
                let keys = (self.waiting.keys)(self.slot, None, STEP_SIZE);
                let mut left = STEP_SIZE;
                for key in &keys {
                    if left > 0 {
                        left -= (self.waiting.send_away)(key, error, left);
                    }
                }
                left < STEP_SIZE
            }
            Task::Serve(done) => {
                let keys = (self.waiting.keys)(self.slot, done.as_ref(), STEP_SIZE);
                for key in &keys {
                    (self.waiting.serve)(ctx, key);
                }
                let more = keys.last().cloned();
                let has_more = more.is_some();
                *done = more;
                has_more
            }
        }
    }
}

// What servers tell of atomic slot migration. The bindings know neither the events nor their data.

/// A slot range of Redis: `RedisModuleSlotRange` in redismodule.h of 8.4.
#[repr(C)]
struct RedisRange {
    start: u16,
    end: u16,
}

/// `RedisModuleSlotRangeArray` in redismodule.h of Redis 8.4, in front of its ranges.
#[repr(C)]
struct RedisRanges {
    count: i32,
    ranges: [RedisRange; 0],
}

/// `RedisModuleClusterSlotMigrationInfoV1` in redismodule.h of Redis 8.4.
#[repr(C)]
struct RedisMigration {
    version: u64,
    source: [u8; NODE_ID + 1],
    destination: [u8; NODE_ID + 1],
    task: *const c_char,
    slots: *const RedisRanges,
}

/// `RedisModuleClusterSlotMigrationTrimInfoV1` in redismodule.h of Redis 8.4.
#[repr(C)]
struct RedisTrim {
    version: u64,
    slots: *const RedisRanges,
}

/// A slot range of Valkey: `ValkeyModuleSlotRange` in valkeymodule.h of 9.0.
#[repr(C)]
struct ValkeyRange {
    start: c_int,
    end: c_int,
}

/// `ValkeyModuleAtomicSlotMigrationInfoV1` in valkeymodule.h of Valkey 9.0.
#[repr(C)]
struct ValkeyMigration {
    version: u64,
    job: [u8; NODE_ID + 1],
    ranges: *const ValkeyRange,
    count: u32,
}

const NODE_ID: usize = raw::REDISMODULE_NODE_ID_LEN as usize;

/// `REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION`.
const REDIS_MIGRATION: u64 = 18;
/// `REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION_TRIM`.
const REDIS_TRIM: u64 = 19;
/// `VALKEYMODULE_EVENT_ATOMIC_SLOT_MIGRATION`.
const VALKEY_MIGRATION: u64 = 19;

/// Beside the API's own: `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION`. Without it Valkey refuses
/// `CLUSTER MIGRATESLOTS`; Redis asks for nothing.
pub(in crate::server) fn module_options() -> c_int {
    if Version::running().is_valkey() {
        1 << 5
    } else {
        0
    }
}

/// Subscribes to what the server tells of atomic slot migration, if it can do that.
pub(in crate::server) fn subscribe(ctx: Ctx<'_>) {
    if !ctx.is_cluster() {
        return;
    }
    let subscribe = |id, callback| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the callbacks live as long as the module and know version 1 of each event's data. Servers that have no
        // such event refuse.
        unsafe {
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                callback
            ))
        }
    };
    // Valkey has another event under the same number.
    if Version::running().is_valkey() {
        subscribe(VALKEY_MIGRATION, Some(on_valkey_migration as _));
    } else {
        subscribe(REDIS_MIGRATION, Some(on_redis_migration as _));
        subscribe(REDIS_TRIM, Some(on_redis_trim as _));
    }
}

/// A step of an atomic slot migration.
enum MigrationEvent {
    ExportStarts,
    ExportFails,
    /// The slots belong to another node now.
    ExportEnds,
    /// The slots belong to this node now.
    ImportEnds,
}

fn migration(event: MigrationEvent, job: &[u8], ranges: Ranges) {
    let mut state = STATE.get();
    match event {
        MigrationEvent::ExportStarts => {
            if let Some((first, _)) = ranges.first() {
                state.exports.insert(job.to_vec(), *first);
            }
            return;
        }
        MigrationEvent::ExportFails => {
            state.exports.remove(job);
            return;
        }
        MigrationEvent::ExportEnds => drop(state.exports.remove(job)),
        MigrationEvent::ImportEnds => {}
    }
    drop(state);
    forget_nodes();
    moving(ServerEvent::SlotsMoved(ranges));
}

// SAFETY (for all callbacks below): the server calls them with data of the type that belongs to the event.

/// # Safety
/// The pointer is null, or to ranges of the server.
unsafe fn redis_ranges(ranges: *const RedisRanges) -> Ranges {
    // SAFETY: the caller's promise; the ranges stand behind their count.
    unsafe {
        let Some(count) = ranges
            .as_ref()
            .and_then(|all| usize::try_from(all.count).ok())
        else {
            return Ranges::default();
        };
        let first = (&raw const (*ranges).ranges).cast::<RedisRange>();
        let ranges = slice_of(first, count);
        ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect()
    }
}

unsafe extern "C" fn on_redis_migration(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        let can_send = send_before_keys_function().is_some();
        let event = match subevent {
            2 => MigrationEvent::ImportEnds, // ..._IMPORT_COMPLETED
            3 if !can_send => MigrationEvent::ExportStarts, // ..._MIGRATE_STARTED
            4 => MigrationEvent::ExportFails, // ..._MIGRATE_FAILED
            5 => MigrationEvent::ExportEnds, // ..._MIGRATE_COMPLETED
            6 => {
                // SAFETY: see above. This is ..._MIGRATE_MODULE_PROPAGATE.
                let (ctx, ranges) = unsafe {
                    let info = &*data.cast::<RedisMigration>();
                    (Ctx::new(ctx), redis_ranges(info.slots))
                };
                send_before_keys(ctx, &ranges);
                return;
            }
            _ => return, // nothing follows from an import that starts or fails
        };
        // SAFETY: see above.
        let (job, ranges) = unsafe {
            let info = &*data.cast::<RedisMigration>();
            (
                CStr::from_ptr(info.task).to_bytes(),
                redis_ranges(info.slots),
            )
        };
        migration(event, job, ranges);
    });
}

unsafe extern "C" fn on_redis_trim(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        // Whether keys are dropped in the background or one by one: they are nobody's any more.
        // SAFETY: see above.
        let ranges = unsafe { redis_ranges((*data.cast::<RedisTrim>()).slots) };
        moving(ServerEvent::SlotsDropped(ranges));
    });
}

unsafe extern "C" fn on_valkey_migration(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        let event = match subevent {
            1 => MigrationEvent::ExportStarts, // ..._EXPORT_STARTED
            3 => MigrationEvent::ExportFails,  // ..._EXPORT_ABORTED
            4 => MigrationEvent::ImportEnds,   // ..._IMPORT_COMPLETED
            5 => MigrationEvent::ExportEnds,   // ..._EXPORT_COMPLETED
            _ => return, // nothing follows from an import that starts or fails
        };
        // SAFETY: see above; the ranges are as many as is said, and live through the call.
        let (job, ranges) = unsafe {
            let info = &*data.cast::<ValkeyMigration>();
            let ranges = slice_of(info.ranges, info.count as usize);
            (&info.job[..NODE_ID], ranges)
        };
        let slot = |number: c_int| u16::try_from(number).unwrap_or(0);
        let ranges = ranges
            .iter()
            .map(|range| (slot(range.start), slot(range.end)));
        migration(event, job, ranges.collect());
    });
}
