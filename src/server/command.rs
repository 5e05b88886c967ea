//! The table of commands, from which everything that the server knows of a command comes: name,
//! arity, flags, key specs, ACL categories and documentation.

use super::context::Ctx;
use super::entry::Entry;
use super::log;
use crate::usage::{self, Argument, Kind};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// One command.
pub struct Command {
    /// Its name, in capitals.
    pub name: &'static str,
    /// Its arguments as the documentation writes them; see [`crate::usage`].
    pub usage: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What it costs.
    pub complexity: &'static str,
    /// The number of arguments with the name; negative: at least so many.
    pub arity: i32,
    /// The server's command flags, space-separated.
    pub flags: &'static str,
    /// Its ACL categories, space-separated, where the server lets modules set them.
    pub categories: &'static str,
    /// Where its keys are.
    pub keys: &'static [KeySpec],
    /// What runs.
    pub run: Entry,
}

/// Where keys are among the arguments, the command's name being argument 0.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// One key at this index.
    At(i32),
    /// As many keys as the number at this index says, right behind it.
    CountedAt(i32),
}

/// What a command does with keys.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// It reads what the user stored.
    Read,
    /// It reads and changes it.
    Update,
}

/// Some keys of a command.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// Where they are.
    pub place: Place,
    /// What happens to them.
    pub access: Access,
}

/// The version of the structs that describe a command, with their sizes.
static DESCRIPTION_VERSION: raw::RedisModuleCommandInfoVersion =
    raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };

/// Registers a command. False, with a line in the log, if the server refuses it.
pub(super) fn register(ctx: Ctx<'_>, command: &Command) -> bool {
    if !create(ctx, command) {
        let line = format!(
            "<sluice> the command {} is taken by another module, or cannot be registered. \
             Load Sluice without its family, with the option: families <those that you want>",
            command.name
        );
        log::warn(ctx.raw(), &line);
        return false;
    }
    let described = describe(ctx, command);
    if !described {
        let line = format!(
            "<sluice> the server refuses the description of {}",
            command.name
        );
        log::warn(ctx.raw(), &line);
    }
    described
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn create(ctx: Ctx<'_>, command: &Command) -> bool {
    let name = c_string(&command.name.to_lowercase()); // as the built-in ones are
    let flags = c_string(command.flags);
    // Key specs follow in `describe`; these numbers are what servers derive from them.
    let (first, last, step) = match command.keys {
        [
            KeySpec {
                place: Place::At(index),
                ..
            },
            ..,
        ] => (*index, *index, 1),
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
    let categories = c_string(command.categories);
    let mut keys: Vec<_> = command.keys.iter().map(key_spec).collect();
    // SAFETY: a spec of zeros ends the list.
    keys.push(unsafe { std::mem::zeroed() });
    let arguments = usage::parse(command.usage);
    let mut texts = Vec::new();
    let mut lists = Vec::new();
    let args = raw_arguments(&arguments, &mut texts, &mut lists);
    // SAFETY: the server copies all that the description points to, which lives until then.
    unsafe {
        let proxy = api!(RedisModule_GetCommand(ctx.raw(), name.as_ptr()));
        let info = raw::RedisModuleCommandInfo {
            version: &DESCRIPTION_VERSION,
            summary: summary.as_ptr(),
            complexity: complexity.as_ptr(),
            since: c"0.1.0".as_ptr(),
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

fn key_spec(spec: &KeySpec) -> raw::RedisModuleCommandKeySpec {
    let flags = match spec.access {
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Update => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    };
    // SAFETY: zeros are a valid value of this plain struct.
    let mut out: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    out.flags = u64::from(flags);
    out.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    match spec.place {
        Place::At(index) => {
            out.bs.index.pos = index;
            out.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            out.fk.range.lastkey = 0;
            out.fk.range.keystep = 1;
            out.fk.range.limit = 0;
        }
        Place::CountedAt(index) => {
            out.bs.index.pos = index;
            out.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            out.fk.keynum.keynumidx = 0;
            out.fk.keynum.firstkey = 1;
            out.fk.keynum.keystep = 1;
        }
    }
    out
}

/// Builds the server's form of an argument list, which ends with an element of zeros. What it
/// points to is kept in `texts` and `lists`.
fn raw_arguments(
    arguments: &[Argument],
    texts: &mut Vec<CString>,
    lists: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> *mut raw::RedisModuleCommandArg {
    let mut list: Vec<raw::RedisModuleCommandArg> = Vec::with_capacity(arguments.len() + 1);
    for argument in arguments {
        let (kind, parts): (_, &[Argument]) = match &argument.kind {
            Kind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, &[]),
            Kind::Integer => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                &[],
            ),
            Kind::String => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                &[],
            ),
            Kind::Token => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                &[],
            ),
            Kind::OneOf(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
                parts,
            ),
            Kind::Block(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
                parts,
            ),
        };
        let subargs = if parts.is_empty() {
            ptr::null_mut()
        } else {
            raw_arguments(parts, texts, lists)
        };
        let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
        if argument.optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if argument.multiple {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        // SAFETY: zeros are a valid value of this plain struct.
        let mut out: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        out.name = keep(texts, &argument.name);
        out.type_ = kind;
        out.key_spec_index = if argument.kind == Kind::Key { 0 } else { -1 };
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
