//! Removed keys of all types: keys that expire, keys that are evicted, and keys that a command deletes by name, even if they do not
//! exist. Also commands that may move hash slots, for which there is no event. The server calls a command filter with each
//! command. So the module registers the filter when a family needs it, and removes it when no family has needed it for some
//! seconds. Keyspace events report all other removals; see [`super::events`].

use crate::request::{is, parse_int};
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::call;
use crate::server::handles::context::{self, Ctx, are_writes_paused, is_connected};
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use crate::server::hooks::queued::anonymous::Anonymous;
use crate::server::hooks::queued::by_client::ByClient;
use crate::server::hooks::queued::{ClientState, MOST_STATES};
use crate::server::services::cluster;
use crate::server::services::commit;
use crate::server::services::deferred;
use crate::server::services::deferred::{ServerEvent, defer_and_wake};
use crate::server::services::deleters;
use crate::server::services::scripts;
use crate::server::services::scripts::Transaction;
use crate::server::services::slots::{SLOTS, is_in_cluster};
use redis_module::raw;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::iter;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of ticks of the server's cron after which an unused filter is removed: about ten seconds.
const MAX_IDLE_TICKS: u32 = 100;

/// The most clients whose states are read after each deletion, on a server that does not name the client of a command. The states
/// of more clients are read ten times a second, for a part of the clients at a time, because each takes a system call.
const FEW_CLIENTS: usize = 32;

#[derive(Default)]
struct DeletionWatch {
    filter: Option<NonNull<raw::RedisModuleCommandFilter>>,
    idle_ticks: u32,
    /// All clients with a connection.
    clients: BTreeSet<u64>,
    by_client: ByClient,
    /// For Redis 7.0, which does not name the client of a command.
    anonymous: Anonymous,
}

static WATCH: MainThread<DeletionWatch> = MainThread::new();

/// The names of commands that the filter reads.
static WATCHED_NAMES: OnceLock<WatchedNames> = OnceLock::new();

/// Those besides the [other deleters](deleters::is_other).
const WATCHED: [&str; 10] = [
    "del", "unlink", "multi", "exec", "discard", "reset", "set", "msetex", "restore", "cluster",
];

/// The lengths and first letters of names, one bit each: a command with another name need not be read.
struct WatchedNames([u32; 32]);

impl WatchedNames {
    fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut own = Self([0; 32]);
        for name in names.map(str::as_bytes) {
            own.0[Self::index(name)] |= Self::bit(name);
        }
        own
    }

    /// Whether this may be one of the names.
    #[inline]
    fn may_have(&self, name: &[u8]) -> bool {
        self.0[Self::index(name)] & Self::bit(name) != 0
    }

    #[inline]
    fn index(name: &[u8]) -> usize {
        name.len().min(31)
    }

    /// The bit of the first letter, the same for capitals.
    #[inline]
    fn bit(name: &[u8]) -> u32 {
        1 << (name.first().unwrap_or(&0) & 31)
    }
}

/// Whether the filter is registered.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

/// Whether there is a deletion that may have run. Each command reads this.
static HAS_UNCHECKED: AtomicBool = AtomicBool::new(false);

impl DeletionWatch {
    /// The clients that are in transactions.
    fn open_transactions(&self) -> Vec<u64> {
        let clients = self.clients.iter().copied();
        clients
            .filter(|client| state_of(*client) == ClientState::InTransaction)
            .collect()
    }

    fn update_unchecked(&self) {
        let is_checked = self.by_client.is_checked() && self.anonymous.is_checked();
        HAS_UNCHECKED.store(!is_checked, Ordering::Relaxed);
    }

    fn check(&mut self, current: Option<u64>) {
        let is_paused = self.by_client.has_delayed() && are_writes_paused();
        self.by_client
            .check(current, is_paused, state_of, &mut deleting);
        self.anonymous.check(state_of, &mut deleting);
        self.update_unchecked();
    }
}

/// Notes the clients that connected before the module was loaded. If `CLIENT` is renamed, the ends of their transactions tell of
/// them, on servers that name the client of a command.
pub(in crate::server) fn learn_clients(ctx: Ctx<'_>) {
    WATCH.get().clients.extend(call::clients(ctx));
}

/// Begins to report all removed keys to the families, and keys that are deleted by name before the deletion.
#[inline]
pub fn watch_removals(ctx: Ctx<'_>) {
    if !IS_WATCHING.load(Ordering::Relaxed) {
        begin(ctx);
    }
}

#[cold]
fn begin(ctx: Ctx<'_>) {
    if !deferred::tells_of_removals() {
        deferred::TELLS_OF_REMOVALS.store(true, Ordering::Relaxed);
        deleters::learn(ctx);
        let others = deleters::others().iter().map(String::as_str);
        WATCHED_NAMES.get_or_init(|| WatchedNames::new(WATCHED.into_iter().chain(others)));
        // SAFETY: the context is alive, the callback lives as long as the module.
        let status = unsafe {
            api!(RedisModule_SubscribeToKeyspaceEvents(
                ctx.raw(),
                raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED,
                Some(on_removal)
            ))
        };
        if status != raw::REDISMODULE_OK as c_int {
            log::warn_in(ctx, "cannot subscribe to the events expired and evicted");
        }
    }
    // SAFETY: as above.
    let filter = unsafe {
        api!(RedisModule_RegisterCommandFilter(
            ctx.raw(),
            Some(on_command),
            0
        ))
    };
    if filter.is_null() {
        log::warn_in(ctx, "cannot register a command filter");
    }
    let watch = &mut *WATCH.get();
    watch.filter = NonNull::new(filter);
    watch.idle_ticks = 0;
    // The filter has not seen the commands that are queued already.
    let open = watch.open_transactions();
    if names_clients() {
        for client in open {
            watch.by_client.has_queued_before(client);
            scripts::have_queued_before(Transaction::Of(client));
        }
    } else {
        if !open.is_empty() {
            scripts::have_queued_before(Transaction::Anonymous);
        }
        watch.anonymous.have_queued_before(open);
    }
    IS_WATCHING.store(true, Ordering::Relaxed);
}

/// Removes the filter if no family needs it any more. In a cluster it stays, because it sees the commands that move slots. To be
/// called by the server's cron.
pub(in crate::server) fn tick(ctx: Ctx<'_>) {
    if !IS_WATCHING.load(Ordering::Relaxed) {
        return;
    }
    let watch = &mut *WATCH.get();
    if watch.anonymous.wants_group() {
        watch.check(None);
        let clients = &watch.clients;
        if watch.anonymous.search(clients, MOST_STATES, state_of) {
            scripts::no_transaction_is_open();
        }
    }
    let is_needed = ctx.is_cluster()
        || !watch.by_client.is_checked()
        || scripts::needs_filter()
        || crate::enabled_families().any(|family| (family.watches_deletions)());
    watch.idle_ticks = if is_needed { 0 } else { watch.idle_ticks + 1 };
    if watch.idle_ticks < MAX_IDLE_TICKS {
        return;
    }
    if let Some(filter) = watch.filter {
        // SAFETY: the context is alive, the filter is registered, and the server is not calling it now.
        let status = unsafe {
            api!(RedisModule_UnregisterCommandFilter(
                ctx.raw(),
                filter.as_ptr()
            ))
        };
        if status != raw::REDISMODULE_OK as c_int {
            watch.idle_ticks = 0;
            return;
        }
    }
    watch.filter = None;
    scripts::forget();
    watch.by_client = ByClient::default();
    watch.anonymous = Anonymous::default();
    watch.update_unchecked();
    IS_WATCHING.store(false, Ordering::Relaxed);
}

/// A client has connected.
pub(in crate::server) fn connects(client: u64) {
    WATCH.get().clients.insert(client);
}

/// A client has disconnected, perhaps in a transaction.
pub(in crate::server) fn disconnects(client: u64) {
    let watch = &mut *WATCH.get();
    watch.clients.remove(&client);
    watch.by_client.disconnects(client);
    watch.anonymous.disconnects(client);
    scripts::disconnects(client);
    watch.update_unchecked();
}

/// Whether the server names the client of a command.
fn names_clients() -> bool {
    // SAFETY: the pointer was set when the module was initialized and never changes.
    let function = unsafe { raw::RedisModule_CommandFilterGetClientId };
    function.is_some()
}

/// The client of this command, if the server names it.
fn client_of(command: *mut raw::RedisModuleCommandFilterCtx) -> Option<u64> {
    names_clients()
        // SAFETY: the server calls the filter with a live pointer, and has the function.
        .then(|| unsafe { api!(RedisModule_CommandFilterGetClientId(command)) })
}

fn state_of(client: u64) -> ClientState {
    let Some(flags) = context::client_flags(client) else {
        return ClientState::Gone;
    };
    let has = |flag: u32| flags & u64::from(flag) != 0;
    if has(raw::REDISMODULE_CLIENTINFO_FLAG_MULTI) {
        ClientState::InTransaction
    } else if has(raw::REDISMODULE_CLIENTINFO_FLAG_BLOCKED) {
        ClientState::Blocked
    } else {
        ClientState::Free
    }
}

// SAFETY (for both callbacks): the server calls them with live pointers.

unsafe extern "C" fn on_removal(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guard((), || {
        // SAFETY: see above.
        let (ctx, name) = unsafe { (Ctx::new(ctx), ServerString::borrowed(key)) };
        if !commit::is_own_expiry(&name) {
            deferred::key_removed(ctx, &name);
        }
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    guard((), || {
        if HAS_UNCHECKED.load(Ordering::Relaxed) {
            check_before_command(client_of(command));
        }
        // SAFETY: see above.
        let argument = |index| unsafe {
            ServerString::borrowed(api!(RedisModule_CommandFilterArgGet(command, index)))
        };
        // SAFETY: see above.
        let count = || unsafe { api!(RedisModule_CommandFilterArgsCount(command)) };
        let command_name = argument(0);
        if scripts::is_watched(command_name.bytes()) {
            let strings: Vec<_> = (0..count().min(3)).map(argument).collect();
            let argument = |index: usize| strings.get(index).map_or(&b""[..], ServerString::bytes);
            scripts::arrives(command_name.bytes(), argument, || {
                open_transaction(client_of(command))
            });
        }
        // Every command of the server passes here, so most must be done after a glance at their name.
        if !is_watched(command_name.bytes()) {
            return;
        }
        match command_name.bytes() {
            name if deleters::is_plain(name) => {
                names_arrive(client_of(command), (1..count()).map(argument));
            }
            name if is(name, "multi") => WATCH.get().anonymous.begins(),
            name if ["exec", "discard", "reset"].iter().any(|end| is(name, end)) => {
                transaction_ends(client_of(command), is(name, "exec"));
            }
            name if may_expire_at_once(name, count()) => {
                keys_may_expire(client_of(command), (0..count()).map(argument).collect())
            }
            name if is(name, "cluster") => slots_may_move(&mut (1..count()).map(argument)),
            name if deleters::is_other(name) => {
                keys_arrive(client_of(command), (0..count()).map(argument).collect());
            }
            _ if cluster::is_renamed() => slots_may_move(&mut (1..count()).map(argument)),
            _ => {}
        }
    });
}

/// Whether the filter must read a command of this name.
#[inline]
fn is_watched(name: &[u8]) -> bool {
    let names = WATCHED_NAMES.get();
    names.is_none_or(|names| names.may_have(name)) || cluster::is_renamed()
}

/// Before the next command of a client: checks which deletions may have run. In the middle of a transaction nothing has changed.
#[cold]
fn check_before_command(client: Option<u64>) {
    if context::has_server_flags(raw::REDISMODULE_CTX_FLAGS_MULTI) {
        return;
    }
    let watch = &mut *WATCH.get();
    watch.check(client);
    if let Some(client) = client {
        watch.by_client.arrives(client);
    }
}

/// Notes that a transaction ends before the next command arrives.
fn transaction_ends(client: Option<u64>, runs: bool) {
    let transaction = client.map_or(Transaction::Anonymous, Transaction::Of);
    scripts::transaction_ends(transaction, runs);
    let watch = &mut *WATCH.get();
    match client {
        Some(client) => {
            if is_connected(client) && watch.clients.insert(client) {
                watch.by_client.has_queued_before(client); // it connected before the module was loaded
            }
            watch.by_client.ends(client);
        }
        None => watch.anonymous.ends(),
    }
    watch.update_unchecked();
}

/// The transaction in which a command of this client is queued, if it may be.
fn open_transaction(client: Option<u64>) -> Option<Transaction> {
    match client {
        Some(client) => {
            (state_of(client) == ClientState::InTransaction).then_some(Transaction::Of(client))
        }
        None => WATCH
            .get()
            .anonymous
            .wants_group()
            .then_some(Transaction::Anonymous),
    }
}

/// The arguments of a command that arrives.
type Arguments<'a, 'n> = &'a mut dyn Iterator<Item = ServerString<'n>>;

/// Notes the keys of `DEL` or a similar command, which runs now or with its transaction.
fn names_arrive<'n>(client: Option<u64>, names: impl Iterator<Item = ServerString<'n>>) {
    let names: Vec<_> = names.collect();
    let names = || names.iter().map(ServerString::bytes);
    names().for_each(|name| deleting(Some(name)));
    let watch = &mut *WATCH.get();
    match client {
        // A client without a connection is a script or another module, whose commands run at once.
        Some(client) if is_connected(client) => watch.by_client.deletes(client, names()),
        Some(_) => return,
        None if context::has_server_flags(raw::REDISMODULE_CTX_FLAGS_LUA) => return,
        None => {
            watch.anonymous.deletes(names());
            if watch.anonymous.wants_group() && watch.clients.len() <= FEW_CLIENTS {
                let open = watch.open_transactions();
                watch.anonymous.group(open);
            }
        }
    }
    watch.update_unchecked();
}

/// Notes the keys of a command that deletes keys among other arguments. A condition of the command counts as fulfilled.
fn keys_arrive(client: Option<u64>, command: Vec<ServerString<'_>>) {
    let positions = deleters::key_positions(&command);
    let is_key = |(position, name)| positions.contains(&position).then_some(name);
    names_arrive(client, command.into_iter().enumerate().filter_map(is_key));
}

/// Whether a command may store a value whose time is up: it has a value and a point in time. If there
/// is no key, such a command changes nothing on Valkey, and no event reports it.
#[inline]
fn may_expire_at_once(name: &[u8], count: c_int) -> bool {
    count > 4 && ["set", "msetex", "restore"].iter().any(|own| is(name, own))
}

#[cold]
fn keys_may_expire(client: Option<u64>, command: Vec<ServerString<'_>>) {
    const POINTS_IN_TIME: [&str; 3] = ["pxat", "exat", "absttl"];
    let is_point = |word: &ServerString<'_>| POINTS_IN_TIME.iter().any(|own| is(word.bytes(), own));
    if command.iter().any(is_point) {
        keys_arrive(client, command);
    }
}

/// Called before a command of the module: a delayed deletion may have run without a call of the filter.
#[inline]
pub(in crate::server) fn run_deferred(ctx: Ctx<'_>) {
    if HAS_UNCHECKED.load(Ordering::Relaxed) {
        run_deferred_for(ctx);
    }
}

#[cold]
fn run_deferred_for(ctx: Ctx<'_>) {
    if !context::has_server_flags(raw::REDISMODULE_CTX_FLAGS_MULTI) {
        let client = ctx.client();
        WATCH.get().check(client);
    }
}

/// At the end of a round of the server's event loop.
pub(in crate::server) fn ends_round() {
    if HAS_UNCHECKED.load(Ordering::Relaxed) {
        let watch = &mut *WATCH.get();
        if !are_writes_paused() {
            watch.by_client.ends_round(state_of);
        }
        watch.check(None);
    }
}

/// Reports to the families that a key with this name is or was deleted; `None`: any keys.
fn deleting(key: Option<&[u8]>) {
    for family in crate::enabled_families() {
        (family.key_deleting)(key);
    }
}

/// Defers an event if a `CLUSTER` command may move hash slots to this node or away from it. A slot can leave this node
/// without a command here, and return by a command that assigns it. Then `CLUSTER NODES` may show no difference, so the command itself
/// is noted.
fn slots_may_move(arguments: Arguments<'_, '_>) {
    if is_in_cluster()
        && let Some(what) = arguments.next()
        && let Some((ranges, is_assignment)) = named_slots(what.bytes(), arguments)
    {
        cluster::note_possible_move(&ranges, is_assignment);
        defer_and_wake(ServerEvent::SlotsMayMove);
    }
}

/// The ranges of slots that a subcommand of `CLUSTER` names (all slots for `FLUSHSLOTS`), and whether it assigns them to this node or lets
/// it import them. `None` if the subcommand moves no slots, or if its arguments are invalid. Also `None` for the subcommands of atomic
/// slot migration, which the server reports by events.
fn named_slots(what: &[u8], arguments: Arguments<'_, '_>) -> Option<(Vec<(u16, u16)>, bool)> {
    let is_any = |words: &[&str]| words.iter().any(|word| is(what, word));
    let read = |argument: ServerString<'_>| {
        let slot = u16::try_from(parse_int(argument.bytes())?).ok()?;
        (usize::from(slot) < SLOTS).then_some(slot)
    };
    if is(what, "setslot") {
        let slot = read(arguments.next()?)?;
        let action = arguments.next()?;
        let is_action = |word: &str| is(action.bytes(), word);
        let is_assignment = if is_action("node") {
            cluster::is_my_id(arguments.next()?.bytes())
        } else if is_action("importing") {
            // If a message shows that the other node no longer claims the slot, Valkey assigns it to this node without another command.
            true
        } else if is_action("migrating") || is_action("stable") {
            false
        } else {
            return None;
        };
        Some((vec![(slot, slot)], is_assignment))
    } else if is(what, "flushslots") {
        let all = vec![(0, SLOTS as u16 - 1)];
        arguments.next().is_none().then_some((all, false))
    } else if is_any(&["addslots", "delslots"]) {
        let slots = arguments.map(|slot| read(slot).map(|slot| (slot, slot)));
        Some((checked_ranges(slots)?, is(what, "addslots")))
    } else if is_any(&["addslotsrange", "delslotsrange"]) {
        let ranges = iter::from_fn(|| {
            let first = arguments.next()?;
            Some(read(first).zip(arguments.next().and_then(read)))
        });
        Some((checked_ranges(ranges)?, is(what, "addslotsrange")))
    } else {
        None
    }
}

/// The ranges. `None` if a range is invalid, or if they have more slots than a cluster. The server refuses a command that names a slot
/// twice.
fn checked_ranges(ranges: impl Iterator<Item = Option<(u16, u16)>>) -> Option<Vec<(u16, u16)>> {
    let mut remaining = SLOTS;
    let checked = ranges.map(|range| {
        let (first, last) = range?;
        let count = usize::from(last.checked_sub(first)?) + 1;
        remaining = remaining.checked_sub(count)?;
        Some((first, last))
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_slots_are_valid_and_name_no_more_slots_than_there_are() {
        let last = SLOTS as u16 - 1;
        let all = checked_ranges([Some((0, last))].into_iter());
        assert_eq!(all, Some(vec![(0, last)]));
        assert!(checked_ranges([Some((0, last)), Some((5, 5))].into_iter()).is_none());
        assert!(checked_ranges([Some((5, 4))].into_iter()).is_none());
        assert!(checked_ranges([Some((5, 6)), None].into_iter()).is_none());
    }

    #[test]
    fn watched_names_have_all_of_their_names_and_few_others() {
        let names = WatchedNames::new(WATCHED.into_iter().chain(["getdel", "delifeq"]));
        for name in WATCHED.into_iter().chain(["getdel", "delifeq"]) {
            assert!(names.may_have(name.as_bytes()), "{name}");
            assert!(names.may_have(name.to_uppercase().as_bytes()), "{name}");
        }
        for other in [
            "get",
            "incr",
            "hset",
            "zadd",
            "xadd",
            "stock.deduct",
            "mget",
            "",
        ] {
            assert!(!names.may_have(other.as_bytes()), "{other}");
        }
        assert!(!names.may_have(&[b'd'; 100]));
    }
}
