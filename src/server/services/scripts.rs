//! Whether a running script may write. The module API does not say it, so the command filter of [`deletions`](crate::server::hooks::deletions) notes which
//! kind of script a client calls. While that is unknown, a script may not write.

use crate::request::is;
use crate::server::handles::context::Ctx;
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const MAY_WRITE: u8 = 1;
const READS_ONLY: u8 = 2;

/// The kind of the script that a client has called last.
static LAST_CALLED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The commands that call scripts and functions that may write. The names of the others end with `_ro`.
const CALLS: [&str; 3] = ["eval", "evalsha", "fcall"];

/// Notes a command that arrives. `is_read_only`: whether its first argument [is a script that declares to write
/// nothing](is_declared_read_only).
#[inline]
pub(in crate::server) fn arrives(name: &[u8], is_read_only: impl FnOnce() -> bool) {
    if let [b'e' | b'E' | b'f' | b'F', ..] = name {
        note(name, is_read_only);
    }
}

fn note(name: &[u8], is_read_only: impl FnOnce() -> bool) {
    let (call, ending) = name.split_at(name.len() - name.len().min(3));
    let kind = if is(name, "exec") {
        UNKNOWN // it runs commands that arrived before
    } else if CALLS.iter().any(|known| is(name, known)) {
        if is_read_only() {
            READS_ONLY
        } else {
            MAY_WRITE
        }
    } else if is(ending, "_ro") && CALLS.iter().any(|known| is(call, known)) {
        READS_ONLY
    } else {
        return;
    };
    LAST_CALLED.store(kind, Ordering::Relaxed);
}

/// Whether the first line of a script has the flag `no-writes`.
pub(in crate::server) fn is_declared_read_only(script: &[u8]) -> bool {
    const FLAG: &[u8] = b"no-writes";
    let line = script.split(|byte| *byte == b'\n').next();
    line.is_some_and(|line| {
        line.starts_with(b"#!") && line.windows(FLAG.len()).any(|part| part == FLAG)
    })
}

/// Forgets the last script, because no more commands are noted.
pub(in crate::server) fn forget() {
    LAST_CALLED.store(UNKNOWN, Ordering::Relaxed);
}

/// Whether the running command is no part of a script, or of one that may write. Unless the command filter is registered, this is
/// unknown.
pub fn may_write(ctx: Ctx<'_>) -> bool {
    if !ctx.is_script() {
        return true;
    }
    LAST_CALLED.load(Ordering::Relaxed) == MAY_WRITE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_decides() {
        let after = |name: &str, script: &'static str| {
            arrives(name.as_bytes(), || is_declared_read_only(script.as_bytes()));
            LAST_CALLED.load(Ordering::Relaxed)
        };
        for (name, script, kind) in [
            ("eval", "return 1", MAY_WRITE),
            ("GET", "k", MAY_WRITE),
            ("EVALSHA_RO", "abc", READS_ONLY),
            ("exists", "k", READS_ONLY),
            ("FCALL", "f", MAY_WRITE),
            ("fcall_ro", "f", READS_ONLY),
            ("EvalSha", "abc", MAY_WRITE),
            ("EVAL", "#!lua flags=no-writes\nreturn 1", READS_ONLY),
            ("EVAL", "return 'no-writes'", MAY_WRITE),
            ("exec", "", UNKNOWN),
            ("eval_ro", "return 1", READS_ONLY),
            ("e", "", READS_ONLY),
        ] {
            assert_eq!(after(name, script), kind, "{name} {script}");
        }
        forget();
        assert_eq!(LAST_CALLED.load(Ordering::Relaxed), UNKNOWN);
    }
}
