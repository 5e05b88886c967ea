//! The context of one call from the server, and names of keys.

use crate::server::handles::key::{OpenKey, ReadKey};
use crate::server::handles::native_type;
use crate::server::handles::open_value;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::ServerString;
use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the server returns the client's database in a transaction if a module asks for the selected one.
static RETURNS_CLIENTS_DATABASE: AtomicBool = AtomicBool::new(false);

/// Looks which database the server returns. The answer shows in a transaction only, so the version decides.
pub(in crate::server) fn learn_database() {
    let returns = Version::running().is_valkey_since((9, 0));
    RETURNS_CLIENTS_DATABASE.store(returns, Ordering::Relaxed);
}

/// Whether writes are paused.
pub(in crate::server) fn are_writes_paused() -> bool {
    // SAFETY: the function takes no argument.
    unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// Whether a connection has this client id. A client that a script or a module created for itself is not a connection.
pub fn is_connected(id: u64) -> bool {
    // SAFETY: a null pointer asks only whether there is such a client.
    let known = unsafe { api!(RedisModule_GetClientInfoById(std::ptr::null_mut(), id)) };
    known == raw::REDISMODULE_OK as c_int
}

/// The flags of the client with this id (`REDISMODULE_CLIENTINFO_FLAG_*`). `None`: there is no such client.
pub(in crate::server) fn client_flags(id: u64) -> Option<u64> {
    let mut info = raw::RedisModuleClientInfo {
        version: raw::REDISMODULE_CLIENTINFO_VERSION.into(),
        flags: 0,
        id: 0,
        addr: [0; 46],
        port: 0,
        db: 0,
    };
    // SAFETY: the server fills in the struct, which has the version that it says.
    let known = unsafe { api!(RedisModule_GetClientInfoById((&raw mut info).cast(), id)) };
    (known == raw::REDISMODULE_OK as c_int).then_some(info.flags)
}

/// Whether any of these flags is true of the server as a whole (`REDISMODULE_CTX_FLAGS_*`).
pub(in crate::server) fn has_server_flags(flags: u32) -> bool {
    server_flags() & flags != 0
}

/// What is true of the server as a whole (`REDISMODULE_CTX_FLAGS_*`).
pub(in crate::server) fn server_flags() -> u32 {
    // SAFETY: the function takes a null context for that.
    unsafe { api!(RedisModule_GetContextFlags(std::ptr::null_mut())) as u32 }
}

/// Whether a master or an AOF can send commands to this server. A master that loads nothing gets none. A node of a cluster always
/// can: newer servers send a slot's commands to the master that receives the slot.
static MAY_REPLAY: AtomicBool = AtomicBool::new(true);

/// Sets whether a master or an AOF can send commands to this server.
pub(in crate::server) fn set_may_replay(may_replay: bool) {
    MAY_REPLAY.store(may_replay, Ordering::Relaxed);
}

/// Whether the server is in Valkey's import mode.
static IMPORTS: AtomicBool = AtomicBool::new(false);

/// Sets whether the server is in Valkey's import mode. Returns whether it was before.
pub(in crate::server) fn set_import_mode(is_on: bool) -> bool {
    IMPORTS.swap(is_on, Ordering::Relaxed)
}

/// The server's context for the duration of one callback.
#[derive(Clone, Copy)]
pub struct Ctx<'c> {
    raw: NonNull<raw::RedisModuleCtx>,
    callback: PhantomData<&'c ()>,
}

impl<'c> Ctx<'c> {
    /// Wraps the context that the server handed to a callback.
    ///
    /// # Safety
    /// `raw` is such a context, and lives at least as long as `'c`.
    pub(in crate::server) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self {
            raw: NonNull::new(raw).expect("the server passes a context"),
            callback: PhantomData,
        }
    }

    pub(in crate::server) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.raw.as_ptr()
    }

    /// The selected database.
    #[inline]
    pub fn db(self) -> i32 {
        if RETURNS_CLIENTS_DATABASE.load(Ordering::Relaxed) {
            return self.db_of_keys();
        }
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetSelectedDb(self.raw())) }
    }

    /// The database that a key would be opened in. In a transaction, Valkey 9 returns the client's database as the selected one,
    /// whatever database the module and its events have selected since.
    fn db_of_keys(self) -> i32 {
        if !self.has_flags(raw::REDISMODULE_CTX_FLAGS_MULTI) || self.is_cluster() {
            // SAFETY: the context is alive.
            return unsafe { api!(RedisModule_GetSelectedDb(self.raw())) };
        }
        self.peek(&ServerString::new(b"")).db()
    }

    /// Runs `work` with another database selected. A database that doesn't exist is not selected,
    /// and `work` does not run.
    pub fn in_db<T>(self, db: i32, work: impl FnOnce() -> T) -> Option<T> {
        let before = self.db();
        if before == db {
            return Some(work());
        }
        // SAFETY: the context is alive.
        let select = |db| unsafe { api!(RedisModule_SelectDb(self.raw(), db)) };
        if select(db) != raw::REDISMODULE_OK as c_int {
            return None;
        }
        let _back = Selected(self, before);
        Some(work())
    }

    /// The number of keys of the selected database.
    pub fn count_keys(self) -> u64 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_DbSize(self.raw())) }
    }

    /// The id of the client that sent the command; `None` in a script, where the server does not
    /// tell whose it is.
    pub fn client(self) -> Option<u64> {
        if self.is_script() {
            return None; // Valkey 9.1 knows its client for scripts by an id, like a connection
        }
        // SAFETY: the context is alive.
        let id = unsafe { api!(RedisModule_GetClientId(self.raw())) };
        is_connected(id).then_some(id)
    }

    /// Whether another command may be in progress, because a listener to keyspace events runs this one in the middle of it. True for each
    /// command that a module calls. Exceptions: calls with the format `K`, transactions and scripts. For these, the server does not report
    /// that a module called the command.
    pub fn may_be_nested(self) -> bool {
        const INNER: u32 = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        const OUTER: u32 = raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
        open_value::is_any_value_open() || self.flags() & (INNER | OUTER) == INNER
    }

    /// What is true of the context (`REDISMODULE_CTX_FLAGS_*`).
    fn flags(self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetContextFlags(self.raw())) as u32 }
    }

    fn has_flags(self, flags: u32) -> bool {
        self.flags() & flags != 0
    }

    /// Whether the client may be blocked. False in `MULTI`, in Lua, for a client that denies it or is subscribed, and
    /// on a replica, which serves no waiting client.
    pub fn may_block(self) -> bool {
        self.may_queue() && !self.is_subscribed()
    }

    /// The same for a request that waits without blocking its client, which may be subscribed.
    pub fn may_queue(self) -> bool {
        !self.has_flags(
            raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
                | raw::REDISMODULE_CTX_FLAGS_SLAVE
                | raw::REDISMODULE_CTX_FLAGS_LOADING,
        )
    }

    /// Whether the client is subscribed to a channel or a pattern. Valkey does not block such a client, and Redis does. With RESP2
    /// it cannot send a command of this module.
    fn is_subscribed(self) -> bool {
        // SAFETY: the context is alive.
        let id = unsafe { api!(RedisModule_GetClientId(self.raw())) };
        let subscribed = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_PUBSUB);
        client_flags(id).is_some_and(|flags| flags & subscribed != 0)
    }

    /// Whether the module may change the dataset now without a client's command. True if [`Ctx::may_decide`] is true, except in
    /// Valkey's import mode.
    pub fn may_act(self) -> bool {
        !IMPORTS.load(Ordering::Relaxed) && self.may_decide()
    }

    /// Whether a command may change more than its client requests, for example end an overdue reservation. Only a master may, and
    /// not while it loads, while it applies the changes of another master, or while writes are paused: then a failover waits for
    /// the replicas.
    pub fn may_decide(self) -> bool {
        let follows = raw::REDISMODULE_CTX_FLAGS_SLAVE
            | raw::REDISMODULE_CTX_FLAGS_LOADING
            | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING
            | raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        !self.has_flags(follows) && !self.is_paused()
    }

    /// Whether the running command was sent by a master or an AOF. The query takes a tenth of the time of a command, so it is
    /// skipped where the answer is known.
    #[inline]
    pub fn is_replay(self) -> bool {
        MAY_REPLAY.load(Ordering::Relaxed) && self.is_handed_down()
    }

    fn is_handed_down(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// Whether writes are paused, so that nothing may be sent to replicas or the AOF.
    pub fn is_paused(self) -> bool {
        are_writes_paused()
    }

    /// Whether the server is loading a dataset.
    pub fn is_loading(self) -> bool {
        self.has_flags(
            raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING,
        )
    }

    /// Whether more memory is in use than `maxmemory` allows.
    pub fn is_out_of_memory(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_OOM)
    }

    /// Whether the caller may run an internal command. The command can set the key to any value, so a caller needs the
    /// permission to `RESTORE` the key. Masters and AOFs may always.
    pub(in crate::server) fn may_apply(self, name: &ServerString<'_>) -> bool {
        if self.is_handed_down() {
            return true;
        }
        // A client that a script or another module has made for itself may have no user, and Redis 7 and Valkey 8.0
        // crash when they are asked for the name of that.
        if self.client().is_none() {
            return false;
        }
        let restore = [b"RESTORE".as_slice(), b"0", b""].map(ServerString::new);
        let [command, ttl, payload] = &restore;
        let mut argv = [command.raw(), name.raw(), ttl.raw(), payload.raw()];
        // SAFETY: the arguments live through the call.
        self.check_user(|user| unsafe {
            api!(RedisModule_ACLCheckCommandPermissions(
                user,
                argv.as_mut_ptr(),
                argv.len() as c_int
            ))
        })
    }

    /// Asks about the user of the running command, whose client has one. Returns whether the server agrees.
    pub(in crate::server) fn check_user(
        self,
        ask: impl FnOnce(*mut raw::RedisModuleUser) -> c_int,
    ) -> bool {
        // SAFETY: the context is alive; the server makes the name and the user for us, which are freed below, or gives null.
        unsafe {
            let name = ServerString::owned(api!(RedisModule_GetCurrentUserName(self.raw())));
            let Some(name) = name else {
                return false;
            };
            let user = api!(RedisModule_GetModuleUserFromUserName(name.raw()));
            if user.is_null() {
                return false;
            }
            let status = ask(user);
            api!(RedisModule_FreeModuleUser(user));
            status == raw::REDISMODULE_OK as c_int
        }
    }

    /// Whether the client uses RESP3.
    pub fn is_resp3(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_RESP3)
    }

    /// Whether the running command is part of a script or a function.
    pub fn is_script(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    /// Whether this server is a replica.
    pub fn is_replica(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_SLAVE)
    }

    /// Whether this server is a node of a cluster. This does not change while it runs.
    pub fn is_cluster(self) -> bool {
        static IS_CLUSTER: OnceLock<bool> = OnceLock::new();
        *IS_CLUSTER.get_or_init(|| self.has_flags(raw::REDISMODULE_CTX_FLAGS_CLUSTER))
    }

    /// Opens a key for reading and writing. A key that has expired is not there.
    pub fn open<'k>(self, name: &'k ServerString<'_>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        let before = native_type::changes();
        let key = self.open_to_write(name);
        if native_type::changes() == before {
            return key;
        }
        self.open_again(name, key)
    }

    fn open_to_write<'k>(self, name: &'k ServerString<'_>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        self.open_as(raw::REDISMODULE_READ | raw::REDISMODULE_WRITE, name)
    }

    /// The server removed a key that had expired. A listener to the event may have put another value at the key, of which the
    /// handle does not know.
    #[cold]
    fn open_again<'k>(self, name: &'k ServerString<'_>, key: OpenKey<'k>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        drop(key);
        self.open_to_write(name)
    }

    /// Opens a key for reading.
    pub fn open_to_read<'k>(self, name: &'k ServerString<'_>) -> ReadKey<'k>
    where
        'c: 'k,
    {
        ReadKey::new(self.open_as(raw::REDISMODULE_READ, name))
    }

    /// Opens a key to serve clients that wait for it. Where the module may not act, a key that has expired stays there: Valkey 8.1 would
    /// remove it even in import mode.
    pub fn open_to_serve<'k>(self, name: &'k ServerString<'_>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        match self.may_act() {
            true => self.open(name),
            false => self.peek(name),
        }
    }

    /// Opens a key that may be anybody's, for reading and writing, without a trace: neither its idle time nor the server's
    /// hits and misses change, no `keymiss` is emitted, and a key that has expired stays to be removed by the server (by Redis
    /// 7.0 it is removed now).
    pub fn peek<'k>(self, name: &'k ServerString<'_>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        // Only reads are counted and announced. Redis 7.0 does not know the last three flags, and needs only the first.
        let mode = raw::REDISMODULE_READ
            | raw::REDISMODULE_WRITE
            | raw::REDISMODULE_OPEN_KEY_NOTOUCH
            | raw::REDISMODULE_OPEN_KEY_NONOTIFY
            | raw::REDISMODULE_OPEN_KEY_NOSTATS
            | raw::REDISMODULE_OPEN_KEY_NOEXPIRE;
        self.open_as(mode, name)
    }

    fn open_as<'k>(self, mode: u32, name: &'k ServerString<'_>) -> OpenKey<'k>
    where
        'c: 'k,
    {
        // SAFETY: context and name are alive, and the handle doesn't outlive them.
        unsafe { OpenKey::open(self.raw(), name.raw(), mode) }
    }
}

/// Selects a database again when it is dropped, also by a panic.
struct Selected<'c>(Ctx<'c>, i32);

impl Drop for Selected<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is alive, and the database was selected before.
        unsafe { api!(RedisModule_SelectDb(self.0.raw(), self.1)) };
    }
}
