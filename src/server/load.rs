//! Loading the module: the server calls `RedisModule_OnLoad` once.

use crate::request::is;
use crate::server::apply;
use crate::server::base::alloc;
use crate::server::base::guard::guard;
use crate::server::base::main_thread;
use crate::server::handles::context;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::{bytes_of, slice_of};
use crate::server::hooks::deletions;
use crate::server::hooks::events;
use crate::server::services::cluster;
use crate::server::services::command;
use crate::server::services::info;
use crate::server::services::native;
use crate::server::services::slots;
use redis_module::raw;
use std::ffi::c_int;

/// The version for `MODULE LIST`: major * 10000 + minor * 100 + patch, as in other modules.
const VERSION: c_int = major() * 10_000
    + below_100(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + below_100(env!("CARGO_PKG_VERSION_PATCH"));

const fn major() -> c_int {
    number(env!("CARGO_PKG_VERSION_MAJOR"))
}

/// A part of the version with at most two digits.
const fn below_100(text: &str) -> c_int {
    let number = number(text);
    assert!(number < 100, "the version does not fit into MODULE LIST");
    number
}

const fn number(text: &str) -> c_int {
    match c_int::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo's own version is a number"),
    }
}

/// The entry point that the server looks for in the shared library.
///
/// # Safety
/// The server calls it, with its context and the arguments of `loadmodule`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // The module must not allocate before this call, which provides the server's allocator.
    // SAFETY: the context is the server's, the name is NUL-terminated.
    let status = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            c"sluice".as_ptr(),
            VERSION,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if status != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    let loaded = guard(false, || {
        if let Some(missing) = missing_function() {
            let line = format!(
                "this server is too old: it lacks {missing}. Sluice needs Redis 7.0 or Valkey"
            );
            log::warn(ctx, &line);
            return false;
        }
        log::catch_panics();
        alloc::learn_sizes();
        main_thread::learn_thread();
        context::learn_database();
        let argc = usize::try_from(argc).unwrap_or(0);
        // SAFETY: the server passes `argc` strings that live through the call.
        let args = unsafe { slice_of(argv, argc) };
        // SAFETY: as above.
        let args: Vec<&[u8]> = args.iter().map(|arg| unsafe { bytes_of(*arg) }).collect();
        // SAFETY: the context is the server's, and lives through this call.
        let ctx = unsafe { Ctx::new(ctx) };
        native::learn_overhead(ctx);
        match read_options(&args) {
            Ok(families) => choose_families(ctx, families) && register(ctx, families),
            Err(problem) => {
                log::warn(ctx.raw(), &problem);
                false
            }
        }
    });
    let status = if loaded {
        raw::REDISMODULE_OK
    } else {
        raw::REDISMODULE_ERR
    };
    status as c_int
}

/// The first required function of the module API that the server lacks. A test compares the list with the calls in the sources.
fn missing_function() -> Option<&'static str> {
    macro_rules! required {
        ($($name:ident)*) => {
            // SAFETY: the pointers were set by `Export_RedisModule_Init` and never change.
            unsafe { [$((stringify!($name), { let function = raw::$name; function.is_some() })),*] }
        };
    }
    required![
        RedisModule_ACLAddLogEntry
        RedisModule_ACLCheckChannelPermissions
        RedisModule_ACLCheckCommandPermissions
        RedisModule_ACLCheckKeyPermissions
        RedisModule_AbortBlock
        RedisModule_Alloc
        RedisModule_AvoidReplicaTraffic
        RedisModule_BlockClient
        RedisModule_Call
        RedisModule_CallReplyArrayElement
        RedisModule_CallReplyLength
        RedisModule_CallReplyStringPtr
        RedisModule_CallReplyType
        RedisModule_Calloc
        RedisModule_CloseKey
        RedisModule_CommandFilterArgGet
        RedisModule_CommandFilterArgsCount
        RedisModule_CreateCommand
        RedisModule_CreateDataType
        RedisModule_CreateString
        RedisModule_CreateStringFromLongLong
        RedisModule_CreateTimer
        RedisModule_DbSize
        RedisModule_DefragAlloc
        RedisModule_DefragCursorGet
        RedisModule_DefragCursorSet
        RedisModule_DefragShouldStop
        RedisModule_DeleteKey
        RedisModule_DigestAddStringBuffer
        RedisModule_DigestEndSequence
        RedisModule_EmitAOF
        RedisModule_EventLoopAddOneShot
        RedisModule_Free
        RedisModule_FreeCallReply
        RedisModule_FreeModuleUser
        RedisModule_FreeServerInfo
        RedisModule_FreeString
        RedisModule_GetAbsExpire
        RedisModule_GetApi
        RedisModule_GetBlockedClientHandle
        RedisModule_GetBlockedClientPrivateData
        RedisModule_GetClientId
        RedisModule_GetClientInfoById
        RedisModule_GetCommand
        RedisModule_GetCommandKeys
        RedisModule_GetContextFlags
        RedisModule_GetContextFromIO
        RedisModule_GetCurrentUserName
        RedisModule_GetDbIdFromIO
        RedisModule_GetDbIdFromModuleKey
        RedisModule_GetDbIdFromOptCtx
        RedisModule_GetKeyNameFromIO
        RedisModule_GetKeyNameFromOptCtx
        RedisModule_GetModuleUserFromUserName
        RedisModule_GetMyClusterID
        RedisModule_GetNotifyKeyspaceEvents
        RedisModule_GetRandomBytes
        RedisModule_GetSelectedDb
        RedisModule_GetServerInfo
        RedisModule_HashGet
        RedisModule_InfoAddFieldCString
        RedisModule_InfoAddFieldULongLong
        RedisModule_InfoAddSection
        RedisModule_InfoBeginDictField
        RedisModule_InfoEndDictField
        RedisModule_IsIOError
        RedisModule_IsKeysPositionRequest
        RedisModule_KeyAtPosWithFlags
        RedisModule_KeyType
        RedisModule_LoadConfigs
        RedisModule_LoadDouble
        RedisModule_LoadStringBuffer
        RedisModule_LoadUnsigned
        RedisModule_Log
        RedisModule_MallocSize
        RedisModule_ModuleTypeGetType
        RedisModule_ModuleTypeGetValue
        RedisModule_ModuleTypeSetValue
        RedisModule_NotifyKeyspaceEvent
        RedisModule_OpenKey
        RedisModule_PublishMessage
        RedisModule_Realloc
        RedisModule_RegisterBoolConfig
        RedisModule_RegisterCommandFilter
        RedisModule_RegisterInfoFunc
        RedisModule_RegisterNumericConfig
        RedisModule_RegisterStringConfig
        RedisModule_Replicate
        RedisModule_ReplicateVerbatim
        RedisModule_ReplyWithArray
        RedisModule_ReplyWithBool
        RedisModule_ReplyWithError
        RedisModule_ReplyWithLongLong
        RedisModule_ReplyWithMap
        RedisModule_ReplyWithNull
        RedisModule_ReplyWithSimpleString
        RedisModule_ReplyWithStringBuffer
        RedisModule_RetainString
        RedisModule_SaveDouble
        RedisModule_SaveStringBuffer
        RedisModule_SaveUnsigned
        RedisModule_Scan
        RedisModule_ScanCursorCreate
        RedisModule_ScanCursorDestroy
        RedisModule_SelectDb
        RedisModule_ServerInfoGetFieldC
        RedisModule_ServerInfoGetFieldUnsigned
        RedisModule_SetAbsExpire
        RedisModule_SetCommandInfo
        RedisModule_SetDisconnectCallback
        RedisModule_SetModuleOptions
        RedisModule_SignalModifiedKey
        RedisModule_StopTimer
        RedisModule_StreamAdd
        RedisModule_StreamDelete
        RedisModule_StreamTrimByLength
        RedisModule_StringDMA
        RedisModule_StringPtrLen
        RedisModule_StringSet
        RedisModule_SubscribeToKeyspaceEvents
        RedisModule_SubscribeToServerEvent
        RedisModule_TryAlloc
        RedisModule_UnblockClient
        RedisModule_UnlinkKey
        RedisModule_UnregisterCommandFilter
        RedisModule_ValueLength
    ]
    .into_iter()
    .find_map(|(name, there)| (!there).then_some(name))
}

/// The families to load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Families {
    /// All families whose command names are free.
    All,
    /// Exactly the families that the option `families` names.
    Named,
}

/// Reads the load options, which are pairs of a name and a value. The error is a line for the log.
fn read_options(args: &[&[u8]]) -> Result<Families, String> {
    let mut families = Families::All;
    crate::enable_all_families();
    for pair in args.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).into_owned();
        let [_, value] = pair else {
            return Err(format!("the load option {name} has no value"));
        };
        if is(pair[0], "families") {
            crate::enable_families(&String::from_utf8_lossy(value))?;
            families = Families::Named;
            continue;
        }
        let mut settings = crate::FAMILIES.iter().flat_map(|family| family.settings);
        let Some(setting) = settings.find(|setting| is(pair[0], setting.name())) else {
            return Err(format!("{name} is not a load option"));
        };
        if let Err(takes) = setting.set(value) {
            let name = setting.name();
            return Err(format!("the load option {name} must be {takes}"));
        }
    }
    Ok(families)
}

/// Disables each family with a command name that another module uses, before anything of the family is registered. False: the
/// option `families` names such a family, or no family remains. The log has the reason.
fn choose_families(ctx: Ctx<'_>, families: Families) -> bool {
    let enabled: Vec<_> = crate::enabled_families().collect();
    for family in &enabled {
        let commands = family.commands.iter().copied().flatten();
        let names = commands.map(|command| command.name);
        let taken: Vec<_> = names.filter(|name| command::exists(ctx, name)).collect();
        if !taken.is_empty() && !leave_out(ctx, family.name, &taken.join(", "), families) {
            return false;
        }
    }
    let any = crate::enabled_families().next().is_some();
    if !any {
        log::warn(
            ctx.raw(),
            "other modules have commands of all families: no family can be loaded",
        );
    }
    any
}

/// Disables a family whose names another module uses. False: the option `families` names it.
fn leave_out(ctx: Ctx<'_>, family: &str, taken: &str, families: Families) -> bool {
    let line = match families {
        Families::All => format!(
            "another module has {taken} and keeps these commands. The family {family} is not loaded"
        ),
        Families::Named => format!(
            "another module has {taken}: the family {family} cannot be loaded. \
             Leave it out of the option families"
        ),
    };
    log::warn(ctx.raw(), &line);
    crate::leave_family_out(family);
    families == Families::All
}

fn register(ctx: Ctx<'_>, families: Families) -> bool {
    let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
    // SAFETY: the context is the server's.
    unsafe {
        let options = options as c_int | cluster::module_options();
        api!(RedisModule_SetModuleOptions(ctx.raw(), options));
    }
    slots::learn_cluster(ctx);
    if !apply::register(ctx) {
        return false;
    }
    let enabled: Vec<_> = crate::enabled_families().collect();
    for family in enabled {
        if let Some(waiting) = family.waiting
            && ctx.is_cluster()
        {
            (waiting.index)();
        }
        // Types first: the API cannot unregister a command, and a type without a command has no effect.
        if !family.types.iter().all(|register| register(ctx)) {
            if !leave_out(ctx, family.name, "one of its data types", families) {
                return false;
            }
            continue;
        }
        for category in family.acl_categories {
            command::add_category(ctx, category);
        }
        let mut commands = family.commands.iter().copied().flatten();
        let registered = commands.all(|command| command::register(ctx, command))
            && family.settings.iter().all(|setting| setting.register(ctx));
        if !registered {
            return false;
        }
    }
    if !crate::general::table::TABLE
        .iter()
        .all(|command| command::register(ctx, command))
    {
        return false;
    }
    command::warn_of_io_threads(ctx);
    warn_of_misplaced_clients(ctx);
    info::register(ctx);
    info::log_eviction(ctx);
    // SAFETY: the context is the server's. A failure means that redis.conf has an invalid value for an option, which the server
    // has logged.
    let configured =
        unsafe { api!(RedisModule_LoadConfigs(ctx.raw())) } == raw::REDISMODULE_OK as c_int;
    deletions::learn_clients(ctx);
    configured && events::subscribe(ctx)
}

/// Logs a warning on a server that leaves clients in another database.
fn warn_of_misplaced_clients(ctx: Ctx<'_>) {
    if Version::running().misplaces_clients() {
        let line = "this version of Valkey leaves a client in the other database after MOVE and COPY ... DB, and replicates \
                    its next commands to that database. Upgrade to 8.1.9, 9.0.6, 9.1.2 or later";
        log::warn(ctx.raw(), line);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{env, fs};

    /// The functions that some servers lack. Their callers check for them.
    const OPTIONAL: [&str; 1] = ["RedisModule_CommandFilterGetClientId"];

    /// The functions of the allocator, which calls them through their pointers.
    const OF_ALLOCATOR: [&str; 5] = [
        "RedisModule_Alloc",
        "RedisModule_Calloc",
        "RedisModule_Free",
        "RedisModule_Realloc",
        "RedisModule_TryAlloc",
    ];

    /// Calls `read` with each source file.
    fn sources(folder: &Path, read: &mut dyn FnMut(&str)) {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, read);
            } else {
                read(&fs::read_to_string(path).expect("a source file"));
            }
        }
    }

    fn name(text: &str) -> &str {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        &text[..text.find(|letter| !is_part(letter)).unwrap_or(text.len())]
    }

    #[test]
    fn the_list_of_required_functions_is_the_list_of_called_functions() {
        let mut called = BTreeSet::from(OF_ALLOCATOR.map(String::from));
        let root = env::var("CARGO_MANIFEST_DIR").expect("cargo runs the test");
        sources(&Path::new(&root).join("src"), &mut |text| {
            let calls = text
                .split("api!(")
                .skip(1)
                .map(|call| name(call.trim_start()));
            called.extend(
                calls
                    .filter(|name| name.starts_with("RedisModule_"))
                    .map(String::from),
            );
        });
        let list = include_str!("load.rs").split("required![").nth(1);
        let list = list
            .and_then(|rest| rest.split(']').next())
            .expect("the list");
        let required: BTreeSet<_> = list.split_whitespace().map(String::from).collect();
        let optional = OPTIONAL.map(String::from).into();
        let needed: BTreeSet<_> = called.difference(&optional).cloned().collect();
        assert!(needed.len() > 90, "{needed:?}");
        assert_eq!(required, needed);
    }
}
