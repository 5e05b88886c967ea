//! Whether a running script may write. The module API does not say it.
//!
//! The server itself names the function that runs, and its flags. For a script, the command filter of
//! [`deletions`](crate::server::hooks::deletions) notes which kind of script a client calls. The first script of all runs before
//! the filter is registered: then the list of clients shows which kind of command runs.

use crate::request::is;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::call::{CallReply, CallReplyPart};
use crate::server::handles::context::Ctx;
use sha1_smol::Sha1;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A set of kinds of scripts, one bit each: the kinds that the running script may have.
type Kinds = u8;

/// A script that may write.
const WRITES: Kinds = 1;
/// A script that may not.
const READS: Kinds = 2;
/// A function. The server is asked whether it may write.
const FUNCTION: Kinds = 4;
const ANY: Kinds = WRITES | READS | FUNCTION;

/// The kind of the script that a client has called last; 0: the filter has seen none.
static LAST_CALLED: AtomicU8 = AtomicU8::new(0);

/// Whether a script has asked to write. From then on the filter stays, because a later script may ask after any time.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

static QUEUED: MainThread<QueuedScripts> = MainThread::new();

/// The digests of scripts that declare to write nothing, which `EVALSHA` may call.
static READ_ONLY: MainThread<BTreeSet<[u8; 20]>> = MainThread::new();

/// The most digests that are kept.
const MAX_DIGESTS: usize = 1000;

/// The kind of script that a command calls; `None`: none. `script`: the first argument, a script, its digest or the name of a
/// function.
fn kind_of_call<'a>(name: &[u8], script: impl FnOnce() -> &'a [u8]) -> Option<Kinds> {
    let (call, ending) = name.split_at(name.len() - name.len().min(3));
    let is_read_only = is(ending, "_ro");
    let call = if is_read_only { call } else { name };
    let kind = if is_read_only
        && ["eval", "evalsha", "fcall"]
            .iter()
            .any(|known| is(call, known))
    {
        READS
    } else if is(call, "fcall") {
        FUNCTION
    } else if is(call, "eval") {
        kind_of_script(script())
    } else if is(call, "evalsha") {
        let digest = digest_of(script());
        let is_declared = digest.is_some_and(|digest| READ_ONLY.get().contains(&digest));
        if is_declared { READS } else { WRITES }
    } else {
        return None;
    };
    Some(kind)
}

/// The kind of a script. Remembers its digest if it declares to write nothing.
fn kind_of_script(script: &[u8]) -> Kinds {
    if !is_declared_read_only(script) {
        return WRITES;
    }
    let digests = &mut *READ_ONLY.get();
    digests.insert(Sha1::from(script).digest().bytes());
    if digests.len() > MAX_DIGESTS {
        digests.pop_first();
    }
    READS
}

/// Whether the first line of a script has the flag `no-writes`.
fn is_declared_read_only(script: &[u8]) -> bool {
    const FLAG: &[u8] = b"no-writes";
    let line = script.split(|byte| *byte == b'\n').next();
    line.is_some_and(|line| {
        line.starts_with(b"#!") && line.windows(FLAG.len()).any(|part| part == FLAG)
    })
}

/// The digest that 40 hexadecimal digits stand for.
fn digest_of(digits: &[u8]) -> Option<[u8; 20]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut digest = [0; 20];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        let [high, low] = *pair else { return None };
        *byte = (digit(high)? * 16 + digit(low)?) as u8;
    }
    (digits.len() == 40).then_some(digest)
}

/// Whether [`arrives`] looks at a command of this name.
#[inline]
pub(in crate::server) fn is_watched(name: &[u8]) -> bool {
    match name {
        [b'e' | b'E', b'v' | b'V', ..] | [b'f' | b'F', b'c' | b'C', ..] => true,
        [b's' | b'S', b'c' | b'C', ..] => name.len() == 6,
        _ => false,
    }
}

/// Notes a command that arrives. `argument` returns an argument, an empty one if there is none. `queue`: the transaction that the
/// command may be queued in.
pub(in crate::server) fn arrives<'a>(
    name: &[u8],
    argument: impl Fn(usize) -> &'a [u8],
    queue: impl FnOnce() -> Option<Transaction>,
) {
    if is(name, "script") && is(argument(1), "load") {
        kind_of_script(argument(2));
    }
    let Some(kind) = kind_of_call(name, || argument(1)) else {
        return;
    };
    LAST_CALLED.store(kind, Ordering::Relaxed);
    if let Some(transaction) = queue() {
        QUEUED.get().add(transaction, kind);
    }
}

/// A transaction that scripts are queued in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Transaction {
    /// That of this client.
    Of(u64),
    /// That of some client. Redis 7.0 does not say which.
    Anonymous,
}

/// The kinds of scripts that are queued in transactions.
#[derive(Debug, Default)]
struct QueuedScripts {
    by_client: HashMap<u64, Kinds>,
    anonymous: Kinds,
}

impl QueuedScripts {
    fn add(&mut self, transaction: Transaction, kinds: Kinds) {
        match transaction {
            Transaction::Of(client) => *self.by_client.entry(client).or_default() |= kinds,
            Transaction::Anonymous => self.anonymous |= kinds,
        }
    }

    /// The kinds of scripts in a transaction that ends.
    fn end(&mut self, transaction: Transaction) -> Kinds {
        match transaction {
            Transaction::Of(client) => self.by_client.remove(&client).unwrap_or(ANY),
            Transaction::Anonymous if self.anonymous == 0 => ANY,
            Transaction::Anonymous => self.anonymous,
        }
    }
}

/// A transaction was open before the filter was registered, and may have any scripts.
pub(in crate::server) fn have_queued_before(transaction: Transaction) {
    QUEUED.get().add(transaction, ANY);
}

/// A transaction ends. `runs`: with `EXEC`.
pub(in crate::server) fn transaction_ends(transaction: Transaction, runs: bool) {
    let kinds = QUEUED.get().end(transaction);
    if runs {
        LAST_CALLED.store(kinds, Ordering::Relaxed);
    }
}

/// A client has disconnected.
pub(in crate::server) fn disconnects(client: u64) {
    QUEUED.get().by_client.remove(&client);
}

/// No client is in a transaction.
pub(in crate::server) fn no_transaction_is_open() {
    *QUEUED.get() = QueuedScripts::default();
}

/// Forgets the last script, because no more commands are noted.
pub(in crate::server) fn forget() {
    LAST_CALLED.store(0, Ordering::Relaxed);
    *QUEUED.get() = QueuedScripts::default();
}

/// Whether commands must be noted also without a lease.
pub(in crate::server) fn needs_filter() -> bool {
    IS_ASKED.load(Ordering::Relaxed)
}

/// Whether the running command is no part of a script, or of one that is not known to be called to read only. The server is not asked.
pub fn may_write(ctx: Ctx<'_>) -> bool {
    let may_write = |kinds: Kinds| kinds != 0 && kinds & READS == 0;
    !ctx.is_script() || may_write(LAST_CALLED.load(Ordering::Relaxed))
}

/// Whether the running command, which is part of a script, may write. The first call comes before the filter is registered.
pub fn may_script_write(ctx: Ctx<'_>) -> bool {
    IS_ASKED.store(true, Ordering::Relaxed);
    let mut kinds = LAST_CALLED.load(Ordering::Relaxed);
    if kinds == 0 {
        kinds = kinds_that_run(ctx);
        LAST_CALLED.store(kinds, Ordering::Relaxed);
    }
    if kinds & FUNCTION != 0 {
        if let Some(may_write) = may_function_write(ctx) {
            return may_write;
        }
        kinds &= !FUNCTION;
    }
    kinds == WRITES
}

/// The server's reply to a command with one argument.
fn ask(ctx: Ctx<'_>, command: &CStr, argument: &CStr) -> CallReply {
    // SAFETY: "c" is a NUL-terminated string, which lives through the call. With "E", the server replies with an error.
    unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            command.as_ptr(),
            c"Ec".as_ptr(),
            argument.as_ptr()
        )))
    }
}

/// The kinds of scripts that may run now, by the list of clients. Only the client whose command runs has arguments, besides clients
/// that are blocked or have sent a part of a command.
fn kinds_that_run(ctx: Ctx<'_>) -> Kinds {
    let reply = ask(ctx, c"CLIENT", c"LIST");
    let list = reply.part().text().unwrap_or_default();
    match list
        .lines()
        .map(kinds_of_client)
        .fold(0, |all, kinds| all | kinds)
    {
        0 => ANY,
        kinds => kinds,
    }
}

/// The kinds of scripts that a client in the list may run now.
fn kinds_of_client(line: &str) -> Kinds {
    let field = |name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(own, _)| *own == name).map(|(_, value)| value)
    };
    if field("argv-mem") == Some("0") {
        return 0;
    }
    match field("cmd") {
        Some("exec") | None => ANY,
        // A script in the first line of all that declares to write nothing is not recognized.
        Some(name) => kind_of_call(name.as_bytes(), || b"").unwrap_or(0),
    }
}

/// Whether the running function may write; `None`: a script runs, or the server does not answer.
fn may_function_write(ctx: Ctx<'_>) -> Option<bool> {
    let stats = ask(ctx, c"FUNCTION", c"STATS");
    let running = field(stats.part(), "running_script")?;
    let name = field(running, "name")?.text()?;
    let command = field(running, "command")?.element(0)?.text()?;
    if command.to_ascii_lowercase().ends_with("_ro") {
        return Some(false);
    }
    let list = ask(ctx, c"FUNCTION", c"LIST");
    let libraries = elements(list.part());
    let functions = libraries.filter_map(|library| field(library, "functions"));
    let mut functions = functions.flat_map(elements);
    let is_same = |function: &CallReplyPart<'_>| {
        field(*function, "name")
            .and_then(CallReplyPart::text)
            .as_ref()
            == Some(&name)
    };
    let flags = field(functions.find(is_same)?, "flags")?;
    let is_read_only = elements(flags).any(|flag| flag.text().as_deref() == Some("no-writes"));
    Some(!is_read_only)
}

fn elements(part: CallReplyPart<'_>) -> impl Iterator<Item = CallReplyPart<'_>> {
    (0..part.len()).filter_map(move |index| part.element(index))
}

/// The value behind a name in a map, which is an array of names and values.
fn field<'a>(map: CallReplyPart<'a>, name: &str) -> Option<CallReplyPart<'a>> {
    let mut names = (0..map.len()).step_by(2);
    let found = names.find(|index| {
        let own = map.element(*index).and_then(CallReplyPart::text);
        own.as_deref() == Some(name)
    })?;
    map.element(found + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &[u8] = b"#!lua flags=no-writes\nreturn 1";

    #[test]
    fn the_last_call_decides() {
        let after = |line: &str, script: &'static [u8]| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            if is_watched(words[0]) {
                let argument = |index: usize| match words.get(index) {
                    Some(word) if *word == b"$" => script,
                    found => found.copied().unwrap_or(b""),
                };
                arrives(words[0], argument, || None);
            }
            LAST_CALLED.load(Ordering::Relaxed)
        };
        let digest: String = Sha1::from(DECLARED).digest().to_string();
        let by_digest = format!("EVALSHA {}", digest.to_uppercase());
        for (line, script, kinds) in [
            ("eval $", &b"return 1"[..], WRITES),
            ("GET k", b"", WRITES),
            ("EVALSHA_RO abc", b"", READS),
            ("exists k", b"", READS),
            ("FCALL f", b"", FUNCTION),
            (&by_digest, b"", WRITES), // not seen yet
            ("fcall_ro f", b"", READS),
            ("EvalSha abc", b"", WRITES),
            ("SCRIPT load $", DECLARED, WRITES),
            (&by_digest, b"", READS),
            ("EVAL $", b"return 'no-writes'", WRITES),
            ("EVAL $", DECLARED, READS),
            ("eval", b"", WRITES),
            ("eval_ro $", b"return 1", READS),
            ("script", b"", READS),
        ] {
            assert_eq!(after(line, script), kinds, "{line}");
        }
        for number in 0..=MAX_DIGESTS {
            kind_of_script(format!("#!lua flags=no-writes\nreturn {number}").as_bytes());
        }
        assert_eq!(READ_ONLY.get().len(), MAX_DIGESTS);
        forget();
        assert_eq!(LAST_CALLED.load(Ordering::Relaxed), 0);
        assert_eq!(digest_of(&[b'0'; 39]), None);
        assert_eq!(digest_of(&[b'0'; 42]), None);
        assert_eq!(digest_of(&[b'x'; 40]), None);
    }

    #[test]
    fn the_scripts_of_a_transaction_run_at_its_end() {
        use Transaction::{Anonymous, Of};
        let mut queued = QueuedScripts::default();
        queued.add(Of(1), WRITES);
        queued.add(Of(1), WRITES);
        queued.add(Of(2), READS);
        assert_eq!(queued.end(Of(1)), WRITES);
        assert_eq!(queued.end(Of(1)), ANY); // it has queued no script that was seen
        queued.add(Of(2), WRITES);
        assert_eq!(queued.end(Of(2)), WRITES | READS);
        assert_eq!(queued.end(Anonymous), ANY);
        queued.add(Anonymous, WRITES);
        assert_eq!(queued.end(Anonymous), WRITES);
        assert_eq!(queued.end(Anonymous), WRITES);
    }

    #[test]
    fn the_list_of_clients_shows_the_command_that_runs() {
        let kinds = |cmd: &str, memory: &str| {
            kinds_of_client(&format!(
                "id=3 name=cmd argv-mem={memory} cmd={cmd} user=default"
            ))
        };
        assert_eq!(kinds("eval", "20"), WRITES);
        assert_eq!(kinds("evalsha_ro", "20"), READS);
        assert_eq!(kinds("fcall", "20"), FUNCTION);
        assert_eq!(kinds("exec", "10"), ANY);
        assert_eq!(kinds("eval", "0"), 0);
        assert_eq!(kinds("get", "20"), 0);
        assert_eq!(kinds_of_client("id=3"), ANY);
    }
}
