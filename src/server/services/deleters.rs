//! The commands that delete keys by name. `COMMAND` describes the keys of each command, so the module finds newer commands than
//! `DEL` and `UNLINK`.

use crate::request::is;
use crate::server::handles::call::{self, CallReplyPart};
use crate::server::handles::context::Ctx;
use crate::server::handles::string::{ServerString, slice_of};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The commands of every server whose arguments are all keys.
const PLAIN: [&str; 2] = ["del", "unlink"];

/// Those that were known when this was written, for a server that does not answer because of `rename-command COMMAND`. Commands
/// that delete keys in another way (`RENAME`, `MOVE`) delete only keys that exist, which keyspace events report.
const KNOWN: [&str; 3] = ["getdel", "delex", "delifeq"];

static OTHERS: OnceLock<Vec<String>> = OnceLock::new();

/// Learns the commands from the server.
pub(in crate::server) fn learn(ctx: Ctx<'_>) {
    let reply = call::commands(ctx);
    let commands = reply.part();
    let all = (0..commands.len()).filter_map(|index| deleter(commands.element(index)?));
    let mut others: Vec<String> = all.filter(|name| !is_plain(name.as_bytes())).collect();
    if commands.len() == 0 {
        others = KNOWN.map(String::from).into();
    }
    OTHERS.get_or_init(|| others);
}

/// The name of a command that deletes keys: always (flag `RM`), or under a condition (flags `delete` and `variable_flags`). A
/// command on strings with the flag `delete` (`GETDEL`) deletes the key as well, because a string has no parts to delete.
fn deleter(command: CallReplyPart<'_>) -> Option<String> {
    const CATEGORIES: usize = 6;
    const KEY_SPECS: usize = 8;
    let categories = command.element(CATEGORIES)?;
    let mut categories = (0..categories.len()).filter_map(|index| categories.element(index));
    let is_of_strings = categories.any(|name| name.text().as_deref() == Some("@string"));
    let specs = command.element(KEY_SPECS)?;
    let removes = |spec: CallReplyPart<'_>| {
        let fields = (0..spec.len()).filter_map(|index| spec.element(index));
        let flags = fields.skip_while(|field| field.text().as_deref() != Some("flags"));
        let Some(flags) = flags.into_iter().nth(1) else {
            return false;
        };
        let has = |flag: &str| {
            let mut all = (0..flags.len()).filter_map(|index| flags.element(index)?.text());
            all.any(|own| own.eq_ignore_ascii_case(flag))
        };
        has("RM") || has("delete") && (has("variable_flags") || is_of_strings)
    };
    let mut specs = (0..specs.len()).filter_map(|index| specs.element(index));
    specs.any(removes).then(|| command.element(0)?.text())?
}

/// Whether the command deletes all its arguments.
pub(in crate::server) fn is_plain(name: &[u8]) -> bool {
    PLAIN.iter().any(|plain| is(name, plain))
}

/// The names of the other commands that delete keys.
pub(in crate::server) fn others() -> &'static [String] {
    OTHERS.get().map_or(&[], Vec::as_slice)
}

/// Whether the command deletes keys among other arguments.
pub(in crate::server) fn is_other(name: &[u8]) -> bool {
    others().iter().any(|other| is(name, other))
}

/// The key positions in a command.
pub(in crate::server) fn key_positions(command: &[ServerString<'_>]) -> Vec<usize> {
    let mut command: Vec<_> = command.iter().map(ServerString::raw).collect();
    let mut count: c_int = 0;
    // SAFETY: the server reads the given number of strings and needs no context. It returns an array of `count` integers, which
    // is freed here, or null if the command has no keys.
    unsafe {
        let positions = api!(RedisModule_GetCommandKeys(
            ptr::null_mut(),
            command.as_mut_ptr(),
            command.len() as c_int,
            &mut count
        ));
        if positions.is_null() {
            return Vec::new();
        }
        let found = slice_of(positions, usize::try_from(count).unwrap_or(0));
        let found = found
            .iter()
            .filter_map(|position| usize::try_from(*position).ok());
        let found = found.collect();
        api!(RedisModule_Free(positions.cast::<c_void>()));
        found
    }
}
