//! Clients that the server lends to listeners. From 8.1.1 on Valkey runs a listener to keyspace events in the context of the
//! client whose command it is, and selects the event's database for it. Up to 9.1 it forgets to select the client's own
//! again (<https://github.com/valkey-io/valkey/pull/4024>): with any module that listens, `MOVE` and `COPY ... DB` leave
//! their client in the other database, and are replicated as if they had been called there. Here the client gets its
//! database back.
//!
//! Nothing tells a listener which database that is, so a command filter looks at it before each command that may use
//! another one than its client's. Servers without the defect get no filter. What is read from an append-only file passes no
//! filter: there the first half of a `MOVE` and the copying of a value of ours tell it. Nothing tells it of a `COPY ... DB` of
//! other values in such a file.

use super::context::{Ctx, Name, bytes_of};
use super::info::ServerInfo;
use super::main_thread::MainThread;
use super::{entry, log};
use crate::request::{is, parse_int};
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The commands that use another database than their client's, and those that run them.
const CROSSING: [&str; 6] = ["copy", "move", "eval", "evalsha", "fcall", "exec"];

/// What is known of the command that runs.
#[derive(Default)]
struct Running {
    /// Its client and that one's database, if it is one of those that matter.
    home: Option<(u64, c_int)>,
    /// The database that a key is about to come from.
    source: Option<c_int>,
    /// The copies that the running transaction may make, if it is one that goes from database to database.
    copies: Vec<Copied>,
    /// What clients have queued so far.
    queues: HashMap<u64, Queue>,
}

/// What of the commands in a transaction counts.
struct Queue {
    /// Where the next of them will run.
    database: c_int,
    selects: bool,
    copies: Vec<Copied>,
}

/// A `COPY`: to which key, and the database that it is called in.
struct Copied {
    target: Box<[u8]>,
    database: c_int,
}

static IS_AFFECTED: AtomicBool = AtomicBool::new(false);
static RUNNING: MainThread<Running> = MainThread::new();

/// Looks whether this server has the defect, and if so begins to mend it. False if the server refuses.
pub(super) fn begin(ctx: Ctx<'_>) -> bool {
    let server = ServerInfo::read(c"server");
    if !forgets(server.text(c"valkey_version")) {
        return true;
    }
    IS_AFFECTED.store(true, Ordering::Relaxed);
    // SAFETY: the context is alive, the callback lives as long as the module.
    let filter = unsafe {
        api!(RedisModule_RegisterCommandFilter(
            ctx.raw(),
            Some(on_command),
            0
        ))
    };
    if filter.is_null() {
        log::warn(ctx.raw(), "the server refuses a command filter");
    }
    !filter.is_null()
}

/// Has this version of Valkey the defect? An API that one could ask for it does not exist.
fn forgets(version: &[u8]) -> bool {
    let mut numbers = version.split(|byte| *byte == b'.').map(parse_int);
    let mut next = || numbers.next().flatten().unwrap_or(0);
    let version = (next(), next(), next());
    ((8, 1, 1)..(9, 2, 0)).contains(&version)
}

/// A key of this database is about to be copied or moved.
#[inline]
pub(super) fn comes_from(database: c_int) {
    RUNNING.get().source = Some(database);
}

/// At the end of a listener to an event of this key: selects the client's own database again.
#[inline]
pub(super) fn give_back(ctx: Ctx<'_>, event: &[u8], key: &Name<'_>) {
    if IS_AFFECTED.load(Ordering::Relaxed) {
        bring_home(ctx, event, key.bytes());
    }
}

/// A client has disconnected.
pub(super) fn forget(client: u64) {
    if IS_AFFECTED.load(Ordering::Relaxed) {
        RUNNING.get().queues.remove(&client);
    }
}

fn bring_home(ctx: Ctx<'_>, event: &[u8], key: &[u8]) {
    let mut running = RUNNING.get();
    match event {
        b"move_from" => running.source = Some(ctx.db()),
        b"move_to" | b"copy_to" => {
            let source = running.source.take();
            let copied = running.copies.iter().find(|copied| *copied.target == *key);
            if let Some(database) = source.or(copied.map(|copied| copied.database)) {
                select(ctx, database);
            }
        }
        _ => {}
    }
    let Some((owner, database)) = running.home else {
        return;
    };
    // SAFETY: the context is alive.
    let client = unsafe { api!(RedisModule_GetClientId(ctx.raw())) };
    // Not one that was blocked and goes on in the wake of the command.
    if client == owner || !is_connected(client) {
        select(ctx, database);
    }
}

fn select(ctx: Ctx<'_>, database: c_int) {
    // SAFETY: the context is alive; a database that does not exist is not selected.
    unsafe { api!(RedisModule_SelectDb(ctx.raw(), database)) };
}

/// Until this is dropped the module itself works in another database of its own choice, and nobody is brought home by the
/// events of that.
pub(super) struct Out(Option<(u64, c_int)>);

/// See [`Out`].
#[inline]
pub(super) fn go_out() -> Out {
    Out(RUNNING.get().home.take())
}

impl Drop for Out {
    fn drop(&mut self) {
        RUNNING.get().home = self.0;
    }
}

unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    entry::guard((), || {
        // SAFETY: the server calls this with a live pointer; an argument below the count is a string of it.
        let argument =
            |index| unsafe { bytes_of(api!(RedisModule_CommandFilterArgGet(command, index))) };
        // SAFETY: as above.
        let (count, client) = unsafe {
            (
                api!(RedisModule_CommandFilterArgsCount(command)),
                api!(RedisModule_CommandFilterGetClientId(command)),
            )
        };
        let at = |index| {
            if index < count { argument(index) } else { b"" }
        };
        RUNNING.get().passes(client, at(0), at);
    });
}

impl Running {
    /// A client is about to run a command, or to queue it.
    fn passes<'a>(&mut self, client: u64, name: &[u8], argument: impl Fn(c_int) -> &'a [u8]) {
        let selects = is(name, "select");
        if !selects && !CROSSING.iter().any(|crossing| is(name, crossing)) {
            if self.home.is_some() && is_connected(client) {
                self.home = None;
            }
            if is(name, "discard") || is(name, "reset") {
                self.queues.remove(&client);
            }
            return;
        }
        let database = parse_int(argument(1)).and_then(|number| number.try_into().ok());
        // A script's commands are run by a client of its own, which begins where the caller is.
        let Some(info) = client_info(client) else {
            if let Some(home) = self.home.as_mut().filter(|_| selects) {
                home.1 = database.unwrap_or(home.1);
            }
            return;
        };
        if is(name, "exec") {
            self.executes(client, info.db.into());
        } else if info.flags & u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_MULTI) != 0 {
            let queue = self.queues.entry(client).or_insert(Queue {
                database: info.db.into(),
                selects: false,
                copies: Vec::new(),
            });
            if selects {
                queue.selects = true;
                queue.database = database.unwrap_or(queue.database);
            } else if is(name, "copy") {
                queue.copies.push(Copied {
                    target: argument(2).into(),
                    database: queue.database,
                });
            }
        } else {
            self.home = (!selects).then_some((client, info.db.into()));
        }
    }

    /// A client runs what it has queued.
    fn executes(&mut self, client: u64, database: c_int) {
        let queue = self.queues.remove(&client);
        let wanders = queue.filter(|queue| queue.selects);
        // Where it is at each moment of a transaction with `SELECT` in it nobody knows.
        self.home = wanders.is_none().then_some((client, database));
        self.copies = wanders.map(|queue| queue.copies).unwrap_or_default();
    }
}

/// Is this a connection, and not a client that a script or a module has made for itself?
fn is_connected(client: u64) -> bool {
    // SAFETY: without a place for what it finds the function only looks whether there is such a client.
    let status = unsafe { api!(RedisModule_GetClientInfoById(ptr::null_mut(), client)) };
    status == raw::REDISMODULE_OK as c_int
}

/// What the server knows of a connection; `None` if it is none.
fn client_info(client: u64) -> Option<raw::RedisModuleClientInfo> {
    if !is_connected(client) {
        return None;
    }
    // SAFETY: a structure of numbers, for which zeros are a value; the server fills in its version 1.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = std::mem::zeroed();
        info.version = 1;
        let status = api!(RedisModule_GetClientInfoById(
            (&raw mut info).cast(),
            client
        ));
        (status == raw::REDISMODULE_OK as c_int).then_some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::forgets;

    #[test]
    fn versions_with_the_defect_are_known() {
        for (version, has_it) in [
            ("", false),
            ("7.2.9", false),
            ("8.0.5", false),
            ("8.1.0", false),
            ("8.1.1", true),
            ("8.1.10", true),
            ("9.0.0", true),
            ("9.1.2", true),
            ("9.2.0", false),
            ("10.0.0", false),
        ] {
            assert_eq!(forgets(version.as_bytes()), has_it, "{version}");
        }
    }
}
