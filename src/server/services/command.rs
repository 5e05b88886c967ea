//! The description of a command, and its registration with the server: name, arity, flags, key specs, ACL categories and
//! documentation.

use crate::request::{Cursor, is};
use crate::server::base::main_thread::MainThread;
use crate::server::handles::call;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::ServerString;
use crate::usage::{self, Argument, ArgumentKind};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_int};
use std::iter::StepBy;
use std::ops::Range;
use std::sync::OnceLock;
use std::{io, ptr};

/// A function that the server calls to run a command.
pub type Entry = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// One command.
pub struct Command {
    /// The name, in capitals.
    pub name: &'static str,
    /// The arguments in the notation of the documentation; see [`crate::usage`].
    pub usage: &'static str,
    /// The effect, in one sentence.
    pub summary: &'static str,
    /// The time complexity.
    pub complexity: &'static str,
    /// The number of arguments, the name included. A negative number: at least so many.
    pub arity: i32,
    /// The command flags of the server, separated by spaces.
    pub flags: &'static str,
    /// The ACL categories, separated by spaces. Before Redis 7.2, commands of modules have none.
    pub categories: &'static str,
    /// The keys.
    pub keys: &'static [KeySpec],
    /// The function that runs the command.
    pub run: Entry,
}

/// The key positions of a command. Argument 0 is the name of the command.
#[derive(Debug, Clone, Copy)]
pub enum KeyPositions {
    /// One key at this index.
    At(i32),
    /// All arguments from this index to the end.
    From(i32),
    /// A number of keys, and behind it that many keys.
    Counted {
        /// The index of the number.
        at: i32,
        /// The distance between two keys. 1: only keys; 2: a value follows each key.
        step: i32,
    },
    /// One key behind this keyword. The search for the keyword begins at this index.
    After(&'static CStr, i32),
    /// One key after an option. Another argument may be equal to the word of the option, so the other options are read, too.
    AfterOption {
        /// The word of the option.
        keyword: &'static CStr,
        /// The index of the first option.
        from: i32,
        /// The words of all options, and the number of their arguments.
        options: &'static [(&'static str, usize)],
    },
}

impl KeyPositions {
    /// The indexes of the keys in these arguments, which begin with the name of the command. `None`: the command refuses the
    /// number of keys, so it uses no key.
    pub(in crate::server) fn find(self, args: &[&[u8]]) -> Option<StepBy<Range<usize>>> {
        let one = |index: usize| (index..index + 1).step_by(1);
        let none = || (0..0).step_by(1);
        Some(match self {
            KeyPositions::At(index) => one(index as usize),
            KeyPositions::From(index) => (index as usize..args.len()).step_by(1),
            KeyPositions::Counted { at, step } => {
                let (first, step) = (at as usize + 1, step as usize);
                let room = args.len().saturating_sub(first).div_ceil(step);
                // The command refuses any other number, before it looks at a key.
                let count = Cursor::new(args.get(at as usize..).unwrap_or_default()).numkeys();
                let count = count.ok().filter(|count| *count <= room)?;
                (first..first + count * step).step_by(step)
            }
            KeyPositions::After(keyword, from) => {
                let is_keyword = |arg: &&[u8]| arg.eq_ignore_ascii_case(keyword.to_bytes());
                let rest = args.get(from as usize..).unwrap_or(&[]);
                let found = rest.iter().position(is_keyword);
                let key = found.map(|index| from as usize + index + 1);
                key.filter(|index| *index < args.len())
                    .map_or_else(none, one)
            }
            KeyPositions::AfterOption {
                keyword,
                from,
                options,
            } => {
                let mut index = from as usize;
                while let Some(word) = args.get(index) {
                    let option = options.iter().find(|(name, _)| is(word, name));
                    let Some((name, count)) = option else {
                        break; // the command refuses it
                    };
                    if name.as_bytes() == keyword.to_bytes() && index + 1 < args.len() {
                        return Some(one(index + 1));
                    }
                    index += 1 + count;
                }
                none()
            }
        })
    }
}

/// The positions of the keys in a command, which begins with its name, and the use of each key. None, if the number of keys is
/// wrong.
pub(in crate::server) fn keys_in<'a>(
    specs: &'a [KeySpec],
    args: &'a [&'a [u8]],
) -> impl Iterator<Item = (usize, Access)> + 'a {
    let is_refused = specs.iter().any(|spec| spec.positions.find(args).is_none());
    let specs = if is_refused { &[] } else { specs };
    specs.iter().flat_map(|spec| {
        let positions = spec.positions.find(args).into_iter().flatten();
        positions.map(|position| (position, spec.access))
    })
}

/// The way in which a command uses a key.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// The command reads the value.
    Read,
    /// The command reads and changes the value.
    Update,
    /// The command changes the value, and its reply contains nothing of it.
    Write,
}

impl Access {
    pub(in crate::server) fn flags(self) -> u32 {
        match self {
            Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            Access::Update => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Access::Write => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE,
        }
    }
}

/// Some keys of a command.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// The key positions.
    pub positions: KeyPositions,
    /// The way in which the command uses these keys.
    pub access: Access,
}

/// One key, the first argument, which the command changes.
pub const ONE_KEY: &[KeySpec] = &[KeySpec {
    positions: KeyPositions::At(1),
    access: Access::Update,
}];

/// One key, the first argument. The command changes it, and its reply contains nothing of the value.
pub const ONE_KEY_WRITE: &[KeySpec] = &[KeySpec {
    positions: KeyPositions::At(1),
    access: Access::Write,
}];

/// One key, the first argument, which the command only reads.
pub const ONE_KEY_READ: &[KeySpec] = &[KeySpec {
    positions: KeyPositions::At(1),
    access: Access::Read,
}];

/// The keys of a command that reports its key positions to the server; see [`crate::server::entry::write_keyed`].
pub trait Keys: 'static {
    /// The key specs.
    const SPECS: &'static [KeySpec];
}

/// `numkeys key [key ...]`
pub struct CountedKeys;
impl Keys for CountedKeys {
    const SPECS: &'static [KeySpec] = &[KeySpec {
        positions: KeyPositions::Counted { at: 1, step: 1 },
        access: Access::Update,
    }];
}

/// `numkeys key value [key value ...]`
pub struct CountedPairs;
impl Keys for CountedPairs {
    const SPECS: &'static [KeySpec] = &[KeySpec {
        positions: KeyPositions::Counted { at: 1, step: 2 },
        access: Access::Update,
    }];
}

/// The version of the structs that describe a command, with their sizes.
static DESCRIPTION_VERSION: raw::RedisModuleCommandInfoVersion =
    raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };

/// Whether the server or another module has a command of this name.
pub(in crate::server) fn exists(ctx: Ctx<'_>, name: &str) -> bool {
    // As the server itself compares names. The API finds the commands of this module alone by their names, and the keys of
    // all commands: it says that there is no command, or that there are no keys.
    let name = ServerString::new(name.as_bytes());
    let mut argv = [name.raw()];
    let mut count = 0;
    // SAFETY: the context is alive; the arguments live through the call. The server makes the array for us, or gives null.
    unsafe {
        let keys = api!(RedisModule_GetCommandKeys(
            ctx.raw(),
            argv.as_mut_ptr(),
            argv.len() as c_int,
            &mut count
        ));
        if keys.is_null() {
            return io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT);
        }
        api!(RedisModule_Free(keys.cast()));
    }
    true
}

/// Adds a category to ACLs. Commands can be in it if the server lets modules add categories, or has this one.
pub(in crate::server) fn add_category(ctx: Ctx<'_>, name: &CStr) {
    // SAFETY: the pointer was set when the module was loaded and never changes.
    let Some(add) = (unsafe { raw::RedisModule_AddACLCategory }) else {
        return; // Redis before 7.4
    };
    // SAFETY: the context is that of the load; the name is NUL-terminated and the server copies it.
    let status = unsafe { add(ctx.raw(), name.as_ptr()) };
    let is_there = status == raw::REDISMODULE_OK as c_int
        || io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY);
    if is_there && let Ok(name) = name.to_str() {
        ADDED_CATEGORIES.get().push(name.to_owned());
    } else {
        let line = format!("cannot add the ACL category {name:?}");
        log::warn(ctx.raw(), &line);
    }
}

/// The categories of families that commands can be in.
static ADDED_CATEGORIES: MainThread<Vec<String>> = MainThread::new();

/// The categories of a command that the server has.
fn categories(command: &Command) -> String {
    let of_families = || {
        crate::FAMILIES
            .iter()
            .flat_map(|family| family.acl_categories)
    };
    let added = ADDED_CATEGORIES.get();
    let is_there = |word: &&str| {
        let is_own = of_families().any(|own| own.to_bytes() == word.as_bytes());
        !is_own || added.iter().any(|added| added == word)
    };
    let words = command.categories.split(' ').filter(is_there);
    words.collect::<Vec<_>>().join(" ")
}

/// Registers a command. False, with a line in the log, if the server refuses it.
pub(in crate::server) fn register(ctx: Ctx<'_>, command: &Command) -> bool {
    if !create(ctx, command) {
        let line = format!("cannot register the command {}", command.name);
        log::warn(ctx.raw(), &line);
        return false;
    }
    let described = describe(ctx, command);
    if !described {
        let line = format!("cannot register the description of {}", command.name);
        log::warn(ctx.raw(), &line);
    }
    described
}

/// Whether the server may ask commands where their keys are.
///
/// Redis 8.4 and later look for keys as soon as they have read a command. With `io-threads`, this is
/// on a thread that reads. A command that is asked there ends an execution unit of the server: that
/// propagates what the main thread has collected so far, and corrupts the replication stream or
/// crashes the server. There the server finds the keys by their specs alone.
pub(in crate::server) fn may_be_asked_for_keys(ctx: Ctx<'_>) -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        !Version::running().is_redis_since((8, 4))
            || call::number_setting(ctx, c"io-threads") == Some(1)
    })
}

/// Logs a warning where the server asks commands for their keys on its I/O threads and cannot do without: a Valkey cluster
/// routes these commands by nothing else.
pub(in crate::server) fn warn_of_io_threads(ctx: Ctx<'_>) {
    if Version::running().is_valkey()
        && ctx.is_cluster()
        && call::number_setting(ctx, c"io-threads").is_some_and(|threads| threads > 1)
    {
        let line = "a Valkey cluster with io-threads above 1 can crash when clients send commands of a module with several keys. \
                    Set io-threads 1";
        log::warn(ctx.raw(), line);
    }
}

/// The flag of a command that the server may ask for its keys.
const ASKED_FOR_KEYS: &str = "getkeys-api";

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn create(ctx: Ctx<'_>, command: &Command) -> bool {
    let name = c_string(&command.name.to_lowercase()); // as the built-in ones are
    let flags = if may_be_asked_for_keys(ctx) {
        c_string(command.flags)
    } else {
        c_string(command.flags.replace(ASKED_FOR_KEYS, "").trim_end())
    };
    // Key specs follow in `describe`; these numbers are what servers derive from them.
    let (first, last, step) = match command.keys.first().map(|spec| spec.positions) {
        Some(KeyPositions::At(index)) => (index, index, 1),
        Some(KeyPositions::From(index)) => (index, -1, 1),
        _ => (0, 0, 0),
    };
    // SAFETY: the strings live through the call; the entry lives as long as the module.
    let status = unsafe {
        api!(RedisModule_CreateCommand(
            ctx.raw(),
            name.as_ptr(),
            Some(command.run),
            flags.as_ptr(),
            first,
            last,
            step
        ))
    };
    status == raw::REDISMODULE_OK as c_int
}

fn describe(ctx: Ctx<'_>, command: &Command) -> bool {
    let name = c_string(command.name);
    let summary = c_string(command.summary);
    let complexity = c_string(command.complexity);
    let categories = c_string(&categories(command));
    let mut keys: Vec<_> = command
        .keys
        .iter()
        .map(|spec| key_spec(spec, may_be_asked_for_keys(ctx)))
        .collect();
    // SAFETY: a spec of zeros ends the list.
    keys.push(unsafe { std::mem::zeroed() });
    let arguments = usage::parse(command.usage);
    let mut texts = Vec::new();
    let mut lists = Vec::new();
    let args = raw_arguments(&arguments, &mut 0, &mut texts, &mut lists);
    // SAFETY: the server copies all that the description points to, which lives until then.
    unsafe {
        let proxy = api!(RedisModule_GetCommand(ctx.raw(), name.as_ptr()));
        let info = raw::RedisModuleCommandInfo {
            version: &DESCRIPTION_VERSION,
            summary: summary.as_ptr(),
            complexity: complexity.as_ptr(),
            since: c"1.0.0".as_ptr(),
            history: ptr::null_mut(),
            tips: ptr::null(),
            arity: command.arity,
            key_specs: keys.as_mut_ptr(),
            args,
        };
        if proxy.is_null()
            || api!(RedisModule_SetCommandInfo(proxy, &info)) != raw::REDISMODULE_OK as c_int
        {
            return false;
        }
        match raw::RedisModule_SetCommandACLCategories {
            Some(set) => set(proxy, categories.as_ptr()) == raw::REDISMODULE_OK as c_int,
            None => true, // before 7.2 modules have none
        }
    }
}

fn key_spec(spec: &KeySpec, may_be_asked: bool) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: zeros are a valid value of this plain struct.
    let mut out: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    out.flags = u64::from(spec.access.flags());
    out.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    out.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    out.fk.range.keystep = 1;
    match spec.positions {
        KeyPositions::At(index) => out.bs.index.pos = index,
        KeyPositions::From(index) => {
            out.bs.index.pos = index;
            out.fk.range.lastkey = -1;
        }
        KeyPositions::Counted { at, step } => {
            out.bs.index.pos = at;
            out.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            out.fk.keynum.keynumidx = 0;
            out.fk.keynum.firstkey = 1;
            out.fk.keynum.keystep = step;
            if (step > 1 || at > 1) && may_be_asked {
                // With this flag the server asks the command itself (see `write_keyed`). Otherwise older servers would
                // mistake the number of keys for the position of the last key and find half of the keys, and all servers would find
                // the keys in front of a number that the command refuses.
                out.flags |= u64::from(raw::REDISMODULE_CMD_KEY_VARIABLE_FLAGS);
            }
        }
        KeyPositions::After(keyword, from) => {
            out.begin_search_type =
                raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_KEYWORD;
            out.bs.keyword.keyword = keyword.as_ptr();
            out.bs.keyword.startfrom = from;
        }
        KeyPositions::AfterOption { keyword, from, .. } => {
            out.begin_search_type =
                raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_KEYWORD;
            out.bs.keyword.keyword = keyword.as_ptr();
            out.bs.keyword.startfrom = from;
            if may_be_asked {
                // With this flag the server asks the command itself (see `read_after_deletions_keyed`).
                out.flags |= u64::from(raw::REDISMODULE_CMD_KEY_INCOMPLETE);
            }
        }
    }
    out
}

/// Builds the server's form of an argument list, which ends with an element of zeros. What it
/// points to is kept in `texts` and `lists`.
fn raw_arguments(
    arguments: &[Argument],
    next_spec: &mut c_int,
    texts: &mut Vec<CString>,
    lists: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> *mut raw::RedisModuleCommandArg {
    let mut list: Vec<raw::RedisModuleCommandArg> = Vec::with_capacity(arguments.len() + 1);
    for argument in arguments {
        let (kind, parts): (_, &[Argument]) = match &argument.kind {
            ArgumentKind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, &[]),
            ArgumentKind::Integer => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                &[],
            ),
            ArgumentKind::Double => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
                &[],
            ),
            ArgumentKind::String => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                &[],
            ),
            ArgumentKind::Token => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                &[],
            ),
            ArgumentKind::OneOf(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
                parts,
            ),
            ArgumentKind::Block(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
                parts,
            ),
        };
        let subargs = if parts.is_empty() {
            ptr::null_mut()
        } else {
            raw_arguments(parts, next_spec, texts, lists)
        };
        let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
        if argument.is_optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if argument.is_multiple {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        // SAFETY: zeros are a valid value of this plain struct.
        let mut out: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        out.name = keep(texts, &argument.name);
        out.type_ = kind;
        out.key_spec_index = -1;
        if argument.kind == ArgumentKind::Key {
            out.key_spec_index = *next_spec; // the specs are in the order of the arguments
            *next_spec += 1;
        }
        out.token = argument
            .token
            .as_deref()
            .map_or(ptr::null(), |token| keep(texts, token));
        out.flags = flags as c_int;
        out.subargs = subargs;
        list.push(out);
    }
    // SAFETY: as above; it ends the list.
    list.push(unsafe { std::mem::zeroed() });
    lists.push(list);
    lists
        .last_mut()
        .map_or(ptr::null_mut(), |list| list.as_mut_ptr())
}

/// Keeps a text and returns its address, which stays when the list of texts grows.
fn keep(texts: &mut Vec<CString>, text: &str) -> *const c_char {
    texts.push(c_string(text));
    texts
        .last()
        .map_or(ptr::null(), |text: &CString| CStr::as_ptr(text))
}

#[cfg(test)]
mod tests {
    use super::KeyPositions;

    #[test]
    fn keys_are_found_at_their_positions() {
        let at = |positions: KeyPositions, line: &str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            positions.find(&args).map(Iterator::collect::<Vec<_>>)
        };
        let is_refused = |positions: KeyPositions, line: &str| at(positions, line).is_none();
        assert_eq!(at(KeyPositions::At(1), "get k"), Some(vec![1]));
        assert_eq!(at(KeyPositions::From(1), "mget k l m"), Some(vec![1, 2, 3]));
        let counted = |step| KeyPositions::Counted { at: 1, step };
        assert_eq!(at(counted(1), "lock 2 k l owner"), Some(vec![2, 3]));
        assert_eq!(at(counted(2), "deduct 2 k 1 l 1 ORDER o"), Some(vec![2, 4]));
        assert_eq!(at(counted(2), "deduct 2 k 1 l"), Some(vec![2, 4]));
        for nonsense in [
            "lock",
            "lock x k",
            "lock -1 k",
            "lock 3 k l",
            "lock 01 k",
            "lock +1 k",
            "lock 9007199254740992 k",
            "lock 99999999999999999999 k",
        ] {
            assert!(is_refused(counted(1), nonsense), "{nonsense}");
        }
        let many = |count: usize| format!("lock {count}{}", " k".repeat(count));
        assert_eq!(
            at(counted(1), &many(1024)).map(|keys| keys.len()),
            Some(1024)
        );
        assert!(is_refused(counted(1), &many(1025)));
        let after = KeyPositions::After(c"EVENTS", 3);
        assert_eq!(at(after, "set k 1 NX events s MAXLEN 5"), Some(vec![5]));
        assert_eq!(at(after, "set k 1 EVENTS EVENTS"), Some(vec![4]));
        assert_eq!(at(after, "set EVENTS 1"), Some(vec![]));
        assert_eq!(at(after, "set k 1 EVENTS"), Some(vec![]));
        let option = KeyPositions::AfterOption {
            keyword: c"GUARD",
            from: 2,
            options: &[("LEASE", 1), ("GUARD", 2), ("BREAKER", 3)],
        };
        for (line, keys) in [
            ("fetch k LEASE 1", vec![]),
            ("fetch k LEASE 1 guard f i", vec![5]),
            ("fetch GUARD LEASE 1 GUARD GUARD GUARD", vec![5]),
            ("fetch k BREAKER GUARD 1 1 LEASE 1", vec![]),
            ("fetch k BREAKER GUARD 1 1 GUARD f i", vec![7]),
            ("fetch k GUARD f GUARD BREAKER GUARD 1 1", vec![3]),
            ("fetch k UNKNOWN GUARD f i", vec![]),
            ("fetch k LEASE 1 GUARD", vec![]),
            ("fetch k BREAKER GUARD", vec![]),
        ] {
            assert_eq!(at(option, line), Some(keys), "{line}");
        }
    }
}
