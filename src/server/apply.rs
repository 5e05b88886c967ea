//! The internal command `SLUICE.APPLY`, which carries changes of keys to replicas and the AOF where the server's own command
//! has another name (`rename-command`): the server looks for a command by its name before it replicates it. It reads that
//! setting before it loads modules, so the module's own commands keep their names.

use crate::error::Error;
use crate::reply::{Answer, Reply};
use crate::request::{MAX_SAFE, is};
use crate::server::entry::{Call, apply};
use crate::server::handles::context::Ctx;
use crate::server::services::command::{self, Command, ONE_KEY};
use crate::server::services::commit::{Commit, DEL, KeyFate, PEXPIREAT, Replicate, SET};
use std::ffi::CStr;

const COMMAND: Command = Command {
    name: "SLUICE.APPLY",
    usage: "key (DEL | PEXPIREAT expires | SET expires value)",
    summary: "Internal: a change of a key, for replicas and the AOF, where the server's own command has another name.",
    complexity: "O(1)",
    arity: -3,
    flags: "write",
    categories: "write slow dangerous",
    keys: ONE_KEY,
    run: apply(apply_change),
};

/// Registers the command, which belongs to no family.
pub(in crate::server) fn register(ctx: Ctx<'_>) -> bool {
    command::register(ctx, &COMMAND)
}

/// `SLUICE.APPLY key DEL | PEXPIREAT expires | SET expires value`
///
/// `expires`: Unix milliseconds. With 0, `SET` keeps the expiry that the key has.
fn apply_change(call: &Call<'_>) -> Answer {
    let mut cursor = call.cursor();
    cursor.value()?;
    let change = cursor.value()?;
    let (ctx, name) = (call.ctx, call.name(0));
    let is_change = |known: &CStr| known.to_str().is_ok_and(|known| is(change, known));
    let bad = |_| Error::BadEffect;
    let mut value = None;
    let fate = if is_change(DEL) {
        KeyFate::Delete
    } else if is_change(PEXPIREAT) {
        KeyFate::ExpireAt(cursor.uint("expires", 1..=MAX_SAFE).map_err(bad)?)
    } else if is_change(SET) {
        let at = cursor.uint("expires", 0..=MAX_SAFE).map_err(bad)?;
        value = Some(cursor.value().map_err(bad)?);
        match at {
            0 => KeyFate::Keep,
            at => KeyFate::ExpireAt(at),
        }
    } else {
        return Err(Error::BadEffect);
    };
    cursor.end().map_err(bad)?;
    let mut key = ctx.open(&name);
    if let Some(value) = value {
        key.set_string(value);
    }
    let fate = if key.is_empty() { KeyFate::Keep } else { fate };
    let commit = Commit {
        key: fate,
        replicate: Replicate::Verbatim,
        is_modified: true,
        event: None,
    };
    key.commit(ctx, &name, &commit);
    Ok(Reply::Ok)
}
