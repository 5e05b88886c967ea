//! Carries out the consequences of steps: removal, replication, invalidation and expiry. Only the three ways below do this without a
//! [`Commit`].
//!
//! A family decides a step and describes its consequences as a [`Commit`]. [`TypedKey::commit`] carries them out in one order:
//! the key's removal, replication, invalidation for clients that watch or track the key, the key's expiry. Keyspace events follow
//! later: listeners may be other modules that call back, so an event is emitted only when the module has released its state
//! and closed its keys: after the command, or after the callback in which the step was taken. See `emit_events`.
//!
//! Three changes leave by other ways. A value that takes the place of one of any type (`TypedKey::replace`) comes to its key in
//! the step, like a new value, and the commit of the step follows. An entry of a stream whose change is not applied is deleted
//! in the step (`Stream::retract`), before any commit. [`append_to_aof`] is about no key.

use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::{OpenKey, TypedKey};
use crate::server::handles::native_type::NativeType;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred;
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// What becomes of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyFate {
    /// It stays as it is.
    #[default]
    Keep,
    /// It stays and expires at this time (Unix ms).
    ExpireAt(u64),
    /// It is deleted. Listeners receive `del`.
    Delete,
    /// It is deleted because a master deleted it, or evicted. Listeners receive the event of the step alone.
    Remove,
    /// It is deleted because its time is up. Listeners receive `expired`.
    Expire,
}

impl KeyFate {
    /// The key stays. It expires at this time (Unix ms); `None` keeps its expiry.
    #[inline(always)]
    pub fn keep_until(expires: Option<u64>) -> Self {
        expires.map_or(Self::Keep, Self::ExpireAt)
    }

    #[inline(always)]
    fn is_removal(self) -> bool {
        matches!(self, Self::Delete | Self::Remove | Self::Expire)
    }
}

/// What replicas and the AOF receive.
#[derive(Default)]
pub enum Replicate<'a> {
    /// Nothing.
    #[default]
    Nothing,
    /// The running command as it came.
    Verbatim,
    /// `command key effect`
    Effect(&'static CStr, &'a [u8]),
    /// `command key effect value`; the value is not copied.
    EffectWithValue(&'static CStr, &'a [u8], &'a ServerString<'a>),
    /// `DEL key`
    Del,
    /// `PEXPIREAT key time`, in Unix ms
    ExpireAt(u64),
    /// `SET key value PXAT time`, in Unix ms; without a time `SET key value KEEPTTL`
    Set(&'a [u8], Option<u64>),
}

/// The consequences of one step on one key.
#[derive(Default)]
pub struct Commit<'a> {
    /// What becomes of the key.
    pub key: KeyFate,
    /// What replicas and the AOF receive.
    pub replicate: Replicate<'a>,
    /// Whether clients that watch or track the key must be told that it changed.
    pub is_modified: bool,
    /// The keyspace event of the step, of the module class.
    pub event: Option<&'static CStr>,
}

impl<T> TypedKey<'_, T> {
    /// Carries out the consequences of a step on this key, whose name is `name`. There are none if a listener to keyspace events
    /// deleted, renamed or moved the key during the command: the step was on a value that is not at this key.
    #[inline(always)]
    pub fn commit(&mut self, ctx: Ctx<'_>, name: &ServerString<'_>, commit: &Commit<'_>) {
        if self.is_removed() {
            return;
        }
        if commit.key.is_removal() {
            self.delete();
        }
        commit.carry_out(ctx, name);
        // The expiry is set last. If it is already in the past, Redis 8.6 deletes the key during `RedisModule_SignalModifiedKey`, and
        // this handle is then invalid. If the previous expiry of the key is in the past, the key is already deleted here.
        if let KeyFate::ExpireAt(at) = commit.key
            && !self.is_removed()
        {
            self.expire_at(at);
        }
    }

    /// Whether the key expires later than at this time (Unix ms), or never.
    pub fn outlives(&self, end: u64) -> bool {
        self.expires().is_none_or(|at| at > end)
    }

    /// Lets the key, whose name is `name`, expire at the end of its value (Unix ms), if it would expire later or never.
    pub fn limit_expiry(&mut self, ctx: Ctx<'_>, name: &ServerString<'_>, end: u64) {
        if self.outlives(end) {
            let commit = Commit {
                key: KeyFate::ExpireAt(end),
                replicate: Replicate::ExpireAt(end),
                is_modified: true,
                event: None,
            };
            self.commit(ctx, name, &commit);
        }
    }
}

/// A key that is empty or holds a value of one type, open for a step. Families add their steps.
pub struct KeyEdit<'k, T: 'static> {
    /// The context of the step.
    pub ctx: Ctx<'k>,
    /// The name of the key.
    pub name: &'k ServerString<'k>,
    /// The key.
    pub key: TypedKey<'k, T>,
}

impl<'k, T: 'static> KeyEdit<'k, T> {
    /// A step on a key that is open. Error: `WRONGTYPE`.
    #[inline(always)]
    pub fn of(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        key: OpenKey<'k>,
        native: &'static NativeType<T>,
    ) -> Result<Self, Error> {
        let key = TypedKey::of(key, native)?;
        Ok(Self { ctx, name, key })
    }

    /// Carries out the consequences of a step.
    #[inline(always)]
    pub fn carry_out(&mut self, commit: &Commit<'_>) {
        self.key.commit(self.ctx, self.name, commit);
    }
}

impl OpenKey<'_> {
    /// Carries out the consequences of a step on this key, whose name is `name`.
    pub fn commit(&mut self, ctx: Ctx<'_>, name: &ServerString<'_>, commit: &Commit<'_>) {
        if commit.key.is_removal() {
            self.delete();
        }
        commit.carry_out(ctx, name);
        // The expiry is set last. If it is already in the past, Redis 8.6 deletes the key during `RedisModule_SignalModifiedKey`, and
        // this handle is then invalid.
        if let KeyFate::ExpireAt(at) = commit.key {
            self.expire_at(at);
        }
    }
}

impl Commit<'_> {
    /// Carries out the consequences of a step that leaves the key itself alone, which need not be open or exist.
    pub fn carry_out_without_key(&self, ctx: Ctx<'_>, name: &ServerString<'_>) {
        assert_eq!(
            self.key,
            KeyFate::Keep,
            "a key that is not open stays as it is"
        );
        self.carry_out(ctx, name);
    }

    // Inlined, because most of a commit is constant where it is made.
    #[inline(always)]
    fn carry_out(&self, ctx: Ctx<'_>, name: &ServerString<'_>) {
        match self.replicate {
            Replicate::Nothing => {}
            Replicate::Verbatim => replicate_verbatim(ctx),
            Replicate::Effect(command, effect) => replicate_effect(ctx, command, name, effect),
            Replicate::EffectWithValue(command, effect, value) => {
                replicate_effect_with_value(ctx, command, name, effect, value);
            }
            Replicate::Del => replicate_del(ctx, name),
            Replicate::ExpireAt(at) => replicate_expiry(ctx, name, at),
            Replicate::Set(value, expires) => replicate_set(ctx, name, value, expires),
        }
        if self.is_modified {
            signal_modified(ctx, name);
        }
        if let Some(event) = self.event {
            queue_event(ctx, raw::REDISMODULE_NOTIFY_MODULE, event, name);
        }
        match self.key {
            KeyFate::Keep | KeyFate::ExpireAt(_) | KeyFate::Remove => {}
            KeyFate::Delete => queue_event(ctx, raw::REDISMODULE_NOTIFY_GENERIC, c"del", name),
            KeyFate::Expire => queue_event(ctx, raw::REDISMODULE_NOTIFY_EXPIRED, c"expired", name),
        }
    }
}

/// A keyspace event that is still to be emitted.
struct QueuedEvent {
    db: i32,
    class: c_int,
    event: &'static CStr,
    name: ServerString<'static>,
}

static QUEUED_EVENTS: MainThread<Vec<QueuedEvent>> = MainThread::new();
static HAS_QUEUED_EVENTS: AtomicBool = AtomicBool::new(false);

/// Queues a keyspace event, if anybody wants it. The families are always told of a deleted key.
#[inline(always)]
fn queue_event(ctx: Ctx<'_>, class: c_int, event: &'static CStr, name: &ServerString<'_>) {
    let is_for_families = class == raw::REDISMODULE_NOTIFY_GENERIC && deferred::tells_of_removals();
    if is_wanted(class) || is_for_families {
        push_event(ctx, class, event, name);
    }
}

#[inline(never)]
fn push_event(ctx: Ctx<'_>, class: c_int, event: &'static CStr, name: &ServerString<'_>) {
    QUEUED_EVENTS.get().push(QueuedEvent {
        db: ctx.db(),
        class,
        event,
        name: name.retained(),
    });
    HAS_QUEUED_EVENTS.store(true, Ordering::Relaxed);
}

/// Queues the stream event `xadd`, and tells clients that watch or track the stream that it has grown.
pub(in crate::server) fn stream_has_grown(ctx: Ctx<'_>, name: &ServerString<'_>) {
    signal_modified(ctx, name);
    queue_event(ctx, raw::REDISMODULE_NOTIFY_STREAM, c"xadd", name);
}

/// Emits the queued keyspace events, in order. To be called where no family's state is borrowed and no key is open.
#[inline]
pub(in crate::server) fn emit_events(ctx: Ctx<'_>) {
    if HAS_QUEUED_EVENTS.load(Ordering::Relaxed) {
        emit_queued_events(ctx);
    }
}

#[cold]
fn emit_queued_events(ctx: Ctx<'_>) {
    HAS_QUEUED_EVENTS.store(false, Ordering::Relaxed);
    // A listener may run commands of the module, which emit their own events when they end.
    let mut events = std::mem::take(&mut *QUEUED_EVENTS.get());
    for queued in events.drain(..) {
        ctx.in_db(queued.db, || emit(ctx, &queued));
    }
    let kept = &mut *QUEUED_EVENTS.get();
    if kept.capacity() == 0 && events.capacity() <= KEPT_EVENTS {
        *kept = events;
    }
}

/// The buffer of queued events is kept up to this capacity.
const KEPT_EVENTS: usize = 64;

/// The name of the key whose event the module emits now.
static EMITTED_NAME: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// Whether the module itself emits this `expired` event, late. The family that removed the key has handled that, and has perhaps
/// granted a lease of the key since.
pub(in crate::server) fn is_own_expiry(name: &ServerString<'_>) -> bool {
    EMITTED_NAME.load(Ordering::Relaxed) == name.raw()
}

fn emit(ctx: Ctx<'_>, queued: &QueuedEvent) {
    let QueuedEvent {
        class, event, name, ..
    } = queued;
    if is_wanted(*class) {
        let before = EMITTED_NAME.load(Ordering::Relaxed); // of the event whose listener runs this command
        if *class == raw::REDISMODULE_NOTIFY_EXPIRED {
            EMITTED_NAME.store(name.raw(), Ordering::Relaxed);
        }
        // SAFETY: context, event and name live through the call.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                ctx.raw(),
                *class,
                event.as_ptr(),
                name.raw()
            ));
        }
        EMITTED_NAME.store(before, Ordering::Relaxed);
    } else {
        deferred::key_removed(ctx, name);
    }
}

/// Whether `notify-keyspace-events` enables events of this class.
#[inline]
fn is_wanted(class: c_int) -> bool {
    // SAFETY: the function takes no argument.
    let wanted = unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) };
    wanted & class != 0
}

/// The internal command that carries a change of a key where the server's own command has another name (`rename-command`).
pub(in crate::server) const APPLY: &CStr = c"SLUICE.APPLY";
pub(in crate::server) const DEL: &CStr = c"DEL";
pub(in crate::server) const SET: &CStr = c"SET";
pub(in crate::server) const PEXPIREAT: &CStr = c"PEXPIREAT";

#[cold]
fn cannot_replicate(command: &CStr) -> ! {
    panic!("cannot replicate {command:?}")
}

/// Sends `command key payload` to the replicas and the AOF.
#[inline]
fn replicate_effect(ctx: Ctx<'_>, command: &CStr, name: &ServerString<'_>, payload: &[u8]) {
    // SAFETY: "sb" is a key's name and a buffer with its length; all live through the call.
    let status = unsafe {
        api!(RedisModule_Replicate(
            ctx.raw(),
            command.as_ptr(),
            c"sb".as_ptr(),
            name.raw(),
            payload.as_ptr(),
            payload.len()
        ))
    };
    if status != raw::REDISMODULE_OK as c_int {
        cannot_replicate(command);
    }
}

/// Sends `command key payload value` to the replicas and the AOF; the value is not copied.
#[inline(never)]
fn replicate_effect_with_value(
    ctx: Ctx<'_>,
    command: &CStr,
    name: &ServerString<'_>,
    payload: &[u8],
    value: &ServerString<'_>,
) {
    // SAFETY: "sbs" is a key's name, a buffer with its length and a string; all live through the call.
    let status = unsafe {
        api!(RedisModule_Replicate(
            ctx.raw(),
            command.as_ptr(),
            c"sbs".as_ptr(),
            name.raw(),
            payload.as_ptr(),
            payload.len(),
            value.raw()
        ))
    };
    if status != raw::REDISMODULE_OK as c_int {
        cannot_replicate(command);
    }
}

/// Sends `DEL key` to the replicas and the AOF.
#[inline(never)]
fn replicate_del(ctx: Ctx<'_>, name: &ServerString<'_>) {
    // SAFETY: "s" is a key's name, which lives through the call; "c" is a NUL-terminated string.
    unsafe {
        let status = api!(RedisModule_Replicate(
            ctx.raw(),
            DEL.as_ptr(),
            c"s".as_ptr(),
            name.raw()
        ));
        if status != raw::REDISMODULE_OK as c_int {
            api!(RedisModule_Replicate(
                ctx.raw(),
                APPLY.as_ptr(),
                c"sc".as_ptr(),
                name.raw(),
                DEL.as_ptr()
            ));
        }
    }
}

/// Sends `PEXPIREAT key at` to the replicas and the AOF.
#[inline(never)]
fn replicate_expiry(ctx: Ctx<'_>, name: &ServerString<'_>, at: u64) {
    // SAFETY: "s" is a key's name, which lives through the call; "l" is a 64-bit integer, "c" a NUL-terminated string.
    unsafe {
        let status = api!(RedisModule_Replicate(
            ctx.raw(),
            PEXPIREAT.as_ptr(),
            c"sl".as_ptr(),
            name.raw(),
            at as i64
        ));
        if status != raw::REDISMODULE_OK as c_int {
            api!(RedisModule_Replicate(
                ctx.raw(),
                APPLY.as_ptr(),
                c"scl".as_ptr(),
                name.raw(),
                PEXPIREAT.as_ptr(),
                at as i64
            ));
        }
    }
}

/// Sends a command without a key to the AOF alone, also on a replica.
pub fn append_to_aof(ctx: Ctx<'_>, command: &CStr, number: u64) {
    // SAFETY: "l" is a 64-bit integer, "R" leaves the replicas out.
    let status = unsafe {
        api!(RedisModule_Replicate(
            ctx.raw(),
            command.as_ptr(),
            c"lR".as_ptr(),
            number as i64
        ))
    };
    if status != raw::REDISMODULE_OK as c_int {
        cannot_replicate(command);
    }
}

/// Sends `SET key value`, with `PXAT` or `KEEPTTL`, to the replicas and the AOF.
#[inline(never)]
fn replicate_set(ctx: Ctx<'_>, name: &ServerString<'_>, value: &[u8], expires: Option<u64>) {
    // SAFETY: "sbcl" and "sbc" are a key's name, a buffer with its length, a NUL-terminated
    // string and a 64-bit integer; all live through the call.
    let status = unsafe {
        match expires {
            Some(at) => api!(RedisModule_Replicate(
                ctx.raw(),
                SET.as_ptr(),
                c"sbcl".as_ptr(),
                name.raw(),
                value.as_ptr(),
                value.len(),
                c"PXAT".as_ptr(),
                at as i64
            )),
            None => api!(RedisModule_Replicate(
                ctx.raw(),
                SET.as_ptr(),
                c"sbc".as_ptr(),
                name.raw(),
                value.as_ptr(),
                value.len(),
                c"KEEPTTL".as_ptr()
            )),
        }
    };
    if status == raw::REDISMODULE_OK as c_int {
        return;
    }
    // SAFETY: as above.
    unsafe {
        api!(RedisModule_Replicate(
            ctx.raw(),
            APPLY.as_ptr(),
            c"sclb".as_ptr(),
            name.raw(),
            SET.as_ptr(),
            expires.unwrap_or(0) as i64,
            value.as_ptr(),
            value.len()
        ));
    }
}

/// Sends the running command as it came to the replicas and the AOF.
#[inline]
fn replicate_verbatim(ctx: Ctx<'_>) {
    // SAFETY: the context is that of a command.
    unsafe { api!(RedisModule_ReplicateVerbatim(ctx.raw())) };
}

/// Tells clients that WATCH or track the key that it changed.
#[inline]
fn signal_modified(ctx: Ctx<'_>, name: &ServerString<'_>) {
    // SAFETY: context and name live through the call.
    unsafe { api!(RedisModule_SignalModifiedKey(ctx.raw(), name.raw())) };
}
