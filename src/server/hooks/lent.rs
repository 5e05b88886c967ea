//! Clients that the server lends to listeners. From 8.1.1 on Valkey runs a listener to keyspace events in the context of the
//! client whose command it is, and selects the event's database for it. Until 8.1.9, 9.0.5 and 9.1.1 it forgets to select the
//! client's own again (<https://github.com/valkey-io/valkey/pull/4024>): with any module that listens, `MOVE` and
//! `COPY ... DB` leave their client in the other database, and are replicated as if they had been called there. Here the
//! client gets its database back.
//!
//! Which one that is, the first half of a `MOVE` tells, and the copying of a value of ours. Of a `COPY` of other values
//! nothing tells it, so a command filter looks before it, on servers with the defect only. What is read from an append-only
//! file passes no filter, and a listener of another module that was loaded later has the last word: there it stays as it is.

use crate::request::{is, parse_int};
use crate::server::base::guard::guard;
use crate::server::base::log;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::{Ctx, is_connected};
use crate::server::handles::string::{ServerString, bytes_of};
use crate::server::services::info::ServerInfo;
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_AFFECTED: AtomicBool = AtomicBool::new(false);
static LENT: MainThread<Lent> = MainThread::new();

/// What is known of clients and the databases that they are in.
#[derive(Default)]
struct Lent {
    /// The database that a key has just been taken from, to be put into another one.
    source: Option<c_int>,
    /// What copies clients, also those of scripts, are about to make.
    clients: HashMap<u64, Copies>,
    /// The database that the running script is in, as far as is known.
    script: Option<c_int>,
}

/// The copies of one client.
#[derive(Default)]
struct Copies {
    /// Of the command or transaction that runs.
    ready: Vec<Copied>,
    /// Of the transaction that is being queued.
    queued: Vec<Copied>,
    /// The database that the next command of that will run in, if it is not the client's.
    selected: Option<c_int>,
}

/// A `COPY ... DB`.
#[derive(Debug, PartialEq, Eq)]
struct Copied {
    target: Box<[u8]>,
    destination: c_int,
    /// The database that it is called in.
    home: c_int,
}

/// Looks whether this server has the defect, and if so begins to mend it. False if the server refuses.
pub(in crate::server) fn begin(ctx: Ctx<'_>) -> bool {
    let server = ServerInfo::read(c"server");
    // SAFETY: the pointer was set when the module was initialized and never changes.
    let who = unsafe { raw::RedisModule_CommandFilterGetClientId };
    if who.is_none() || !forgets(server.text(c"valkey_version")) {
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

/// Has this version of Valkey the defect? An API that one could ask for it does not exist. Where that is not sure, it is
/// taken to have it: where it has not, nothing is done but in vain.
fn forgets(version: &[u8]) -> bool {
    let mut numbers = version.split(|byte| *byte == b'.').map(parse_int);
    let mut next = || numbers.next().flatten().unwrap_or(0);
    let version = (next(), next(), next());
    [
        (8, 1, 1)..=(8, 1, 8),
        (9, 0, 0)..=(9, 0, 5),
        (9, 1, 0)..=(9, 1, 1),
    ]
    .iter()
    .any(|versions| versions.contains(&version))
}

/// A value of ours was copied from a key of this database.
#[inline]
pub(in crate::server) fn copied_from(database: c_int) {
    if IS_AFFECTED.load(Ordering::Relaxed) {
        LENT.get().source = Some(database);
    }
}

/// At the end of a listener to an event of this key: selects the client's own database again.
#[inline]
pub(in crate::server) fn give_back(ctx: Ctx<'_>, event: &[u8], key: &ServerString<'_>) {
    if IS_AFFECTED.load(Ordering::Relaxed) {
        let home = LENT.get().home(ctx, event, key.bytes());
        if let Some(home) = home {
            // SAFETY: the context is alive; a database that does not exist is not selected.
            unsafe { api!(RedisModule_SelectDb(ctx.raw(), home)) };
        }
    }
}

/// A client has disconnected.
pub(in crate::server) fn forget(client: u64) {
    if IS_AFFECTED.load(Ordering::Relaxed) {
        LENT.get().clients.remove(&client);
    }
}

unsafe extern "C" fn on_command(command: *mut raw::RedisModuleCommandFilterCtx) {
    guard((), || {
        // SAFETY: the server calls this with a live pointer.
        let (count, client) = unsafe {
            (
                api!(RedisModule_CommandFilterArgsCount(command)),
                api!(RedisModule_CommandFilterGetClientId(command)),
            )
        };
        // SAFETY: as above; an argument below the count is a string that lives through this call.
        let argument =
            |index| unsafe { bytes_of(api!(RedisModule_CommandFilterArgGet(command, index))) };
        let (name, rest) = (argument(0), (1..count).map(argument));
        if is_connected(client) {
            // While a script is busy others are heard, and refused.
            if !has_flag(raw::REDISMODULE_CTX_FLAGS_LUA) {
                LENT.get().passes(client, name, rest);
            }
        } else if has_flag(raw::REDISMODULE_CTX_FLAGS_LUA) {
            LENT.get().passes_in_script(client, name, rest);
        }
    });
}

impl Lent {
    /// The database of the client whose command this event is of, if it may be in another one.
    fn home(&mut self, ctx: Ctx<'_>, event: &[u8], key: &[u8]) -> Option<c_int> {
        match event {
            b"move_from" => {
                self.source = Some(ctx.db());
                None
            }
            b"move_to" => self.source.take(),
            b"copy_to" => self.source.take().or_else(|| {
                // SAFETY: the context is alive.
                let client = unsafe { api!(RedisModule_GetClientId(ctx.raw())) };
                self.clients.get_mut(&client)?.made(key, ctx.db())
            }),
            _ => None,
        }
    }

    /// A connection is about to run a command, or to queue it.
    fn passes<'a>(&mut self, client: u64, name: &[u8], rest: impl Iterator<Item = &'a [u8]>) {
        if let Some(copies) = self.clients.get_mut(&client) {
            copies.ready.clear();
        }
        let runs_script = ["eval", "evalsha", "fcall"]
            .iter()
            .any(|runs| is(name, runs));
        if is(name, "copy") {
            self.copies(client, rest);
        } else if is(name, "select") {
            self.selects(client, rest);
        } else if is(name, "exec") {
            self.executes(client);
        } else if is(name, "discard") || is(name, "reset") {
            self.clients.remove(&client);
        } else if runs_script {
            self.script = client_info(client).map(|info| info.db.into());
        }
    }

    fn copies<'a>(&mut self, client: u64, rest: impl Iterator<Item = &'a [u8]>) {
        let (Some((target, destination)), Some(info)) = (crossing(rest), client_info(client))
        else {
            return;
        };
        let copies = self.clients.entry(client).or_default();
        let copied = Copied {
            target,
            destination,
            home: copies.selected.unwrap_or(info.db.into()),
        };
        if is_queuing(&info) {
            copies.queued.push(copied);
        } else {
            copies.ready.push(copied);
        }
    }

    fn selects<'a>(&mut self, client: u64, mut rest: impl Iterator<Item = &'a [u8]>) {
        if client_info(client).is_some_and(|info| is_queuing(&info)) {
            let database = rest.next().and_then(number);
            let copies = self.clients.entry(client).or_default();
            copies.selected = database.or(copies.selected);
        }
    }

    /// A connection runs what it has queued.
    fn executes(&mut self, client: u64) {
        let queue = self.clients.remove(&client).unwrap_or_default();
        // Where it is when a script of a transaction with `SELECT` begins nobody knows.
        self.script = match queue.selected {
            None => client_info(client).map(|info| info.db.into()),
            Some(_) => None,
        };
        if !queue.queued.is_empty() {
            let ready = Copies {
                ready: queue.queued,
                ..Copies::default()
            };
            self.clients.insert(client, ready);
        }
    }

    /// A script is about to run a command.
    fn passes_in_script<'a>(
        &mut self,
        client: u64,
        name: &[u8],
        mut rest: impl Iterator<Item = &'a [u8]>,
    ) {
        if is(name, "select") {
            // In a transaction another script may follow, which begins where the caller is.
            let is_alone = !has_flag(raw::REDISMODULE_CTX_FLAGS_MULTI);
            self.script = rest.next().and_then(number).filter(|_| is_alone);
        } else if is(name, "copy") {
            let copied = crossing(rest).zip(self.script);
            let ready = copied.map(|((target, destination), home)| Copied {
                target,
                destination,
                home,
            });
            self.clients.entry(client).or_default().ready = ready.into_iter().collect();
        }
    }
}

impl Copies {
    /// A copy was made: where was its client? Those before it have failed.
    fn made(&mut self, target: &[u8], destination: c_int) -> Option<c_int> {
        let is_it =
            |copied: &Copied| *copied.target == *target && copied.destination == destination;
        let place = self.ready.iter().position(is_it)?;
        self.ready
            .drain(..=place)
            .next_back()
            .map(|copied| copied.home)
    }
}

/// The target and the destination of `source target [DB destination] [REPLACE]`, if it names a database.
fn crossing<'a>(mut rest: impl Iterator<Item = &'a [u8]>) -> Option<(Box<[u8]>, c_int)> {
    let target = rest.nth(1)?;
    let mut options = rest.skip_while(|option| !is(option, "db"));
    Some((target.into(), number(options.nth(1)?)?))
}

fn number(text: &[u8]) -> Option<c_int> {
    parse_int(text)?.try_into().ok()
}

/// Is this true of the whole server at this moment?
fn has_flag(flag: u32) -> bool {
    // SAFETY: a null context is allowed.
    let flags = unsafe { api!(RedisModule_GetContextFlags(ptr::null_mut())) };
    flags as u32 & flag != 0
}

fn is_queuing(info: &raw::RedisModuleClientInfo) -> bool {
    info.flags & u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_MULTI) != 0
}

/// What the server knows of a connection.
fn client_info(client: u64) -> Option<raw::RedisModuleClientInfo> {
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
    use super::{Copied, Copies, crossing, forgets};

    #[test]
    fn versions_with_the_defect_are_known() {
        for (version, has_it) in [
            ("", false),
            ("7.2.9", false),
            ("8.0.5", false),
            ("8.1.0", false),
            ("8.1.1", true),
            ("8.1.8", true),
            ("8.1.9", false),
            ("8.1.10", false),
            ("9.0.0", true),
            ("9.1.0", true),
            ("9.1.2", false),
            ("9.2.0", false),
            ("10.0.0", false),
        ] {
            assert_eq!(forgets(version.as_bytes()), has_it, "{version}");
        }
    }

    #[test]
    fn copies_to_other_databases_are_read() {
        let read = |line: &'static str| crossing(line.split(' ').map(str::as_bytes));
        let found = Some((b"b".as_slice().into(), 3));
        for line in ["a b db 3", "a b REPLACE DB 3", "a b Db 3 replace"] {
            assert_eq!(read(line), found, "{line}");
        }
        for line in ["a", "a b", "a b REPLACE", "a b DB", "a b DB x"] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn a_copy_that_fails_tells_nothing_of_those_behind_it() {
        let copied = |target: &str, destination, home| Copied {
            target: target.as_bytes().into(),
            destination,
            home,
        };
        let mut copies = Copies {
            ready: vec![copied("y", 3, 0), copied("x", 3, 1), copied("y", 3, 2)],
            ..Copies::default()
        };
        assert_eq!(copies.made(b"z", 3), None);
        assert_eq!(copies.made(b"x", 3), Some(1));
        assert_eq!(copies.made(b"y", 3), Some(2));
        assert_eq!(copies.made(b"y", 3), None);
    }
}
