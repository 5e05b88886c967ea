//! Where the server calls in: every command and callback passes a guard that turns a panic into an
//! error, because a panic that reached the server would take it down.

use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{Cursor, is};
use crate::server::base::guard::guard;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::reply::{self, SentReply};
use crate::server::handles::string::{ServerString, bytes_of, bytes_of_all, slice_of};
use crate::server::hooks::deletions;
use crate::server::hooks::events;
use crate::server::services::cluster;
use crate::server::services::command::{self, Entry, KeySpec, Keys, keys_in};
use crate::server::services::commit;
use crate::server::services::scripts;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A command in execution.
pub struct Call<'a> {
    /// The server's context.
    pub ctx: Ctx<'a>,
    /// The arguments, of [a command after its key](write_after_key) without the first one.
    args: &'a [&'a [u8]],
    /// All arguments.
    strings: &'a [*mut raw::RedisModuleString],
}

impl<'a> Call<'a> {
    /// A cursor over the arguments, the command's name left out. Of [a command after its key](write_after_key) it begins behind the
    /// key.
    pub fn cursor(&self) -> Cursor<'a> {
        Cursor::new(self.args)
    }

    /// A hash of the arguments. Every server that runs the command computes the same hash.
    pub fn digest(&self) -> u64 {
        let args = self.args.iter();
        args.fold(0, |digest, arg| xxh3_64_with_seed(arg, digest))
    }

    /// The argument that these bytes are, and not only equal to, if they are one.
    pub fn argument(&self, bytes: &[u8]) -> Option<ServerString<'a>> {
        let same = |arg: &&[u8]| std::ptr::eq(*arg, bytes);
        let index = self.args.iter().position(same)?;
        Some(self.name(index + self.strings.len() - self.args.len()))
    }

    /// The argument at `index` (0: the first after the command's name) as the name of a key.
    #[inline]
    pub fn name(&self, index: usize) -> ServerString<'a> {
        let string = self.strings[index];
        let behind = self.strings.len() - self.args.len();
        // SAFETY: the arguments live as long as the call, and `args` are the bytes of the last ones.
        unsafe {
            match index.checked_sub(behind) {
                Some(index) => ServerString::borrowed_with(string, self.args[index]),
                None => ServerString::borrowed(string),
            }
        }
    }
}

/// What may come before a command: nothing.
const READ: u8 = 0;
/// Before the command, the module reports deletions to the families. It also reports other events, unless a read-only script runs.
const READ_AFTER_DELETIONS: u8 = 1;
/// Before the command, the module reports deletions and, outside of a cluster, other events to the families.
const WRITE: u8 = 2;
/// Before the command, which may have no arguments, the module reports deletions to the families, and nothing else.
const READ_WITHOUT_ARGUMENTS: u8 = 3;

/// Added to the numbers above: the cursor of the command begins behind its first argument, a key. Most commands use its name only as
/// a string of the server. To ask for its bytes takes 30 instructions.
const AFTER_KEY: u8 = 8;

/// The entry of a command that writes. Before it, the module reports deletions to the families. Outside of a cluster, it also reports
/// the other deferred events. During a pause of writes, it reports only those that the pause does not delay.
pub const fn write<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, WRITE>
}

/// The same for a command after its key: its first argument is a key, and its [cursor](Call::cursor) begins behind that.
pub const fn write_after_key<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, { WRITE | AFTER_KEY }>
}

/// The entry of a command after its key that only reads; see [`write_after_key`].
pub const fn read_after_key<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, { READ | AFTER_KEY }>
}

/// The entry of a command that only reads.
pub const fn read<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, READ>
}

/// The entry of a command that only reads the state of this server, and whose arguments are all optional.
pub const fn read_without_arguments<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, READ_WITHOUT_ARGUMENTS>
}

/// The entry of a command that applies the decision of a master. The command never acts by itself, and a client needs the
/// permission to `RESTORE` the key.
pub const fn apply<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter_apply::<F>
}

unsafe extern "C" fn enter_apply<F>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    // SAFETY: the server gives a live context and `argc` strings that live through the call.
    unsafe {
        let allowed = guard(false, || {
            if argc < 2 {
                return true; // to be refused for that: of what is in an AOF nobody has checked the arity
            }
            let name = ServerString::borrowed(*argv.add(1));
            Ctx::new(ctx).may_apply(&name)
        });
        if allowed {
            return enter::<F, READ>(ctx, argv, argc);
        }
        guard((), || {
            reply::send_any(Ctx::new(ctx), &Err(Error::NotAllowed))
        });
    }
    raw::REDISMODULE_OK as c_int
}

/// The entry of a command that writes and whose key positions depend on its arguments. Servers that cannot
/// find such keys by their specs ask the command itself where they are.
pub const fn write_keyed<F, K>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
    K: Keys,
{
    enter_keyed::<F, K, WRITE>
}

/// The entry of a command that only reads the dataset, whose reply depends on all deletions before it.
pub const fn read_after_deletions<F>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    enter::<F, READ_AFTER_DELETIONS>
}

/// The same for a command [after its key](write_after_key) whose other keys are not at fixed positions; see [`write_keyed`].
pub const fn read_after_deletions_keyed<F, K>(_run: F) -> Entry
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
    K: Keys,
{
    enter_keyed::<F, K, { READ_AFTER_DELETIONS | AFTER_KEY }>
}

unsafe extern "C" fn enter_keyed<F, K, const MODE: u8>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
    K: Keys,
{
    // SAFETY: the server gives a live context and `argc` strings that live through the call.
    unsafe {
        // Guarded by `enter` in the common case.
        if api!(RedisModule_IsKeysPositionRequest(ctx)) == 0 {
            if guard(false, || crosses_slots(Ctx::new(ctx), K::SPECS, argv, argc)) {
                guard((), || {
                    reply::send_any(Ctx::new(ctx), &Err(Error::CrossSlot))
                });
                return raw::REDISMODULE_OK as c_int;
            }
            return enter::<F, MODE>(ctx, argv, argc);
        }
        guard((), || {
            with_bytes(slice_of(argv, argc as usize), |args| {
                for (position, access) in keys_in(K::SPECS, args) {
                    let flags = access.flags() as c_int;
                    api!(RedisModule_KeyAtPosWithFlags(ctx, position as c_int, flags));
                }
            });
        });
    }
    raw::REDISMODULE_OK as c_int
}

/// Calls `f` with the bytes of these strings.
///
/// # Safety
/// The strings are alive, and the server does not change them meanwhile.
#[inline(always)]
unsafe fn with_bytes<R>(
    strings: &[*mut raw::RedisModuleString],
    f: impl FnOnce(&[&[u8]]) -> R,
) -> R {
    if strings.len() > INLINE_ARGS {
        // SAFETY: see above.
        return unsafe { with_bytes_of_many(strings, f) };
    }
    let mut inline = [const { MaybeUninit::uninit() }; INLINE_ARGS];
    // SAFETY: see above.
    f(unsafe { bytes_of_all(strings, &mut inline) })
}

/// The same for any number of strings.
///
/// # Safety
/// See [`with_bytes`].
#[inline(never)]
unsafe fn with_bytes_of_many<R>(
    strings: &[*mut raw::RedisModuleString],
    f: impl FnOnce(&[&[u8]]) -> R,
) -> R {
    let mut buffer = Vec::with_capacity(strings.len());
    // SAFETY: see above.
    f(unsafe { bytes_of_all(strings, buffer.spare_capacity_mut()) })
}

/// Whether a client's command has keys of several hash slots. The server looks at that itself. But Redis does not find keys
/// that are counted or follow a keyword if a script uses them, unless it may ask the command.
///
/// # Safety
/// `argv` are `argc` live strings.
#[inline]
unsafe fn crosses_slots(
    ctx: Ctx<'_>,
    specs: &[KeySpec],
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> bool {
    // SAFETY: see above.
    ctx.is_cluster() && unsafe { crosses_slots_of_cluster(ctx, specs, argv, argc) }
}

/// The same on a node of a cluster.
///
/// # Safety
/// `argv` are `argc` live strings.
#[cold]
unsafe fn crosses_slots_of_cluster(
    ctx: Ctx<'_>,
    specs: &[KeySpec],
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> bool {
    if command::may_be_asked_for_keys(ctx) || ctx.is_replay() {
        return false;
    }
    // SAFETY: see above.
    unsafe {
        with_bytes(slice_of(argv, argc as usize), |args| {
            let keys = keys_in(specs, args);
            let mut slots = keys.map(|(position, _)| cluster::slot(ctx, args[position]));
            let first = slots.next();
            slots.any(|slot| Some(slot) != first)
        })
    }
}

/// Calls with at most so many arguments need no allocation.
const INLINE_ARGS: usize = 16;

unsafe extern "C" fn enter<F, const MODE: u8>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    // SAFETY: the server gives a context and `argc` strings that live through the call.
    unsafe {
        let skipped = (MODE & AFTER_KEY != 0) as usize;
        run_in_guard(run::<F>, MODE & !AFTER_KEY, skipped, ctx, argv, argc)
    }
}

/// Runs a command, which is a plain function, known by its type.
fn run<F>(call: &Call<'_>) -> Answer
where
    F: Fn(&Call<'_>) -> Answer + Copy + 'static,
{
    const { assert!(size_of::<F>() == 0, "a command is a plain function") };
    // SAFETY: a plain function's type has no bytes, so every value of it is this one.
    let run: F = unsafe { std::mem::zeroed() };
    run(call)
}

/// Runs a command and sends its reply. All commands share this code, so that the processor has it in its cache. `skipped`: the
/// arguments before those that the command's cursor reads.
///
/// # Safety
/// `ctx` is a live context, and `argv` are `argc` strings that live through the call.
unsafe fn run_in_guard(
    run: fn(&Call<'_>) -> Answer,
    mode: u8,
    skipped: usize,
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: see above.
    let ctx = unsafe { Ctx::new(ctx) };
    let replies = Cell::new(false);
    let done = guard(false, || {
        if mode != READ {
            deletions::run_deferred(ctx); // the filter may not have been called for a deferred command
            let may_act = || mode != READ_WITHOUT_ARGUMENTS && scripts::may_write(ctx);
            if mode == WRITE || events::is_any_deferred() && may_act() {
                events::run_deferred_before_command(ctx);
            }
        }
        // Nobody has checked the arity of a command in an AOF.
        let least = if mode == READ_WITHOUT_ARGUMENTS { 1 } else { 2 };
        let answer: Answer = if argc < least {
            Err(Error::Syntax)
        } else {
            // SAFETY: these strings live through the call, and the server does not change them in it.
            unsafe {
                let strings = slice::from_raw_parts(argv.add(1), argc as usize - 1);
                if strings.len() <= INLINE_ARGS {
                    let mut inline = [const { MaybeUninit::uninit() }; INLINE_ARGS];
                    let args = bytes_of_all(&strings[skipped..], &mut inline);
                    run(&Call { ctx, args, strings })
                } else {
                    with_bytes_of_many(&strings[skipped..], |args| {
                        run(&Call { ctx, args, strings })
                    })
                }
            }
        };
        replies.set(matches!(answer, Ok(Reply::Sent | Reply::Later)));
        commit::emit_events(ctx);
        replies.set(true);
        if reply::send(ctx, &answer) == SentReply::OwnsNothing {
            std::mem::forget(answer);
        }
        true
    });
    if !done {
        // SAFETY: see above.
        let strings = unsafe { slice_of(argv, usize::try_from(argc).unwrap_or(0)) };
        guard((), || after_panic(ctx, strings, replies.get()));
    }
    raw::REDISMODULE_OK as c_int
}

/// Logs which command panicked, and replies unless the command has begun to. The panic itself is in the log already.
#[cold]
fn after_panic(ctx: Ctx<'_>, strings: &[*mut raw::RedisModuleString], has_replied: bool) {
    if !has_replied {
        reply::send_any(ctx, &Err(Error::Internal));
    }
    // SAFETY: the strings live through the call.
    let args = strings.iter().map(|string| unsafe { bytes_of(*string) });
    log::warn_in(ctx, &panic_line(&args.collect::<Vec<_>>()));
    commit::emit_events(ctx); // of what was done before the panic
}

/// The most keys of a command in a log line.
const MAX_LOGGED_KEYS: usize = 8;

/// `args`: the command with its name. The keys of a command that `rename-command` has renamed are not known.
fn panic_line(args: &[&[u8]]) -> String {
    let name = args.first().copied().unwrap_or_default();
    let commands = crate::FAMILIES.iter().flat_map(|family| family.commands);
    let mut commands = commands.copied().flatten();
    let specs = commands.find(|command| is(name, command.name));
    let specs = specs.map_or(&[][..], |command| command.keys);
    let keys = keys_in(specs, args).filter_map(|(position, _)| args.get(position));
    let mut keys: Vec<String> = keys.map(|key| log::quoted(key)).collect();
    let more = keys.len().saturating_sub(MAX_LOGGED_KEYS);
    keys.truncate(MAX_LOGGED_KEYS);
    let line = format!("the command {} panicked", name.escape_ascii());
    match (&keys[..], more) {
        ([], _) => line,
        ([key], _) => format!("{line}: the value at the key {key} may be partly changed"),
        (keys, more) => {
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} others"),
            };
            let keys = keys.join(", ");
            format!("{line}: the values at the keys {keys}{more} may be partly changed")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::panic_line;

    #[test]
    fn the_log_names_the_command_and_its_keys() {
        for (command, keys) in [
            ("LOCK.ACQUIRE a\n me PX 5", "the key \"a\\n\" "),
            ("stock.mdeduct 2 a 1 b 2 ORDER o", "the keys \"a\", \"b\" "),
            ("RATE.MGCRA 2 a 1 1 1 b 1 1 1", "the keys \"a\", \"b\" "),
            ("BF.MERGE a 2 b c", "the keys \"a\", \"b\", \"c\" "),
            (
                "CACHE.FETCH a LEASE 5 GUARD b item",
                "the keys \"a\", \"b\" ",
            ),
            ("STOCK.MGET a b c d e f g h i j", "\"h\" and 2 others "),
        ] {
            let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let line = panic_line(&args);
            let name = command.split(' ').next().unwrap();
            assert!(line.contains(name) && line.contains(keys), "{line}");
        }
        for command in ["CACHE.BREAKER a", "RENAMED a", ""] {
            let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            assert!(panic_line(&args).ends_with("panicked"));
        }
        assert!(panic_line(&[b"LOCK.INFO", &[b'k'; 1_000_000]]).len() < 300);
    }
}
