//! Deletions that wait in transactions. The server tells of a command when it arrives, and in `MULTI` it arrives long before
//! it runs. Of which client it is 7.0 does not say. But a command that is queued keeps its arguments: as long as the server
//! holds on to a key's name its deletion is still to come, and when it lets go of it the deletion has run, or never will.

use crate::server::base::main_thread::MainThread;
use crate::server::handles::string::ServerString;
use crate::waiting::SMALL;
use redis_module::raw::RedisModuleString;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The keys that one command deletes.
#[derive(Default)]
struct Deletion {
    names: Vec<ServerString<'static>>,
    /// What the header of the first one was while the server held it, too.
    header: u64,
}

impl Deletion {
    /// Does the server still hold the command's arguments? Its count of references is in the header, wherever that is.
    fn is_to_come(&self) -> bool {
        self.names
            .first()
            .is_some_and(|name| header(name) == self.header)
    }
}

/// The first bytes of the server's object behind a string.
fn header(name: &ServerString<'_>) -> u64 {
    // SAFETY: the string is alive and on every server an aligned object of at least 8 bytes: type, encoding, access time
    // and references. They are compared with those of the same string at another time, and mean nothing otherwise.
    unsafe { name.raw().cast::<u64>().read_volatile() }
}

/// What is known of deletions.
#[derive(Default)]
struct Deletions {
    /// The one that arrived last: whether it has run can be told when the next command arrives.
    last: Deletion,
    /// Those that are queued, by the first one's name: a command that was put off arrives again.
    queued: HashMap<*mut RedisModuleString, Deletion>,
    /// Has anything happened by which some of them may have run?
    may_have_run: bool,
}

static DELETIONS: MainThread<Deletions> = MainThread::new();

/// Is there anything to be sorted out? It is asked with every command.
static UNSETTLED: AtomicBool = AtomicBool::new(false);

/// Can it be told on this server that it has given a string back?
fn is_told() -> bool {
    static IS_TOLD: OnceLock<bool> = OnceLock::new();
    *IS_TOLD.get_or_init(|| {
        let name = ServerString::new(b"name");
        let alone = header(&name);
        let other = name.retained();
        let shared = header(&name);
        drop(other);
        alone != shared && alone == header(&name)
    })
}

/// A command has arrived that deletes the keys of these names, now or when its transaction runs.
pub(in crate::server) fn arrived<'n>(names: impl Iterator<Item = ServerString<'n>>) {
    if is_told() {
        let last = &mut DELETIONS.get().last;
        last.names.extend(names.map(|name| name.retained()));
        last.header = last.names.first().map_or(0, header);
        UNSETTLED.store(true, Ordering::Relaxed);
    } else {
        names.for_each(drop); // whoever counts the names as they pass does so at once, and not again
    }
}

/// A transaction ends, one way or the other, before the next command arrives.
pub(in crate::server) fn transaction_ends() {
    let deletions = &mut *DELETIONS.get();
    if !deletions.queued.is_empty() {
        deletions.may_have_run = true;
        UNSETTLED.store(true, Ordering::Relaxed);
    }
}

/// Calls `deleted` with the keys whose deletions have been queued and are no longer: they have run, or were given up. To be
/// called before a command does anything.
#[inline]
pub(in crate::server) fn run_deferred(deleted: impl FnMut(&[u8])) {
    if UNSETTLED.load(Ordering::Relaxed) {
        sort_out(deleted);
    }
}

#[cold]
fn sort_out(mut deleted: impl FnMut(&[u8])) {
    let Deletions {
        last,
        queued,
        may_have_run,
    } = &mut *DELETIONS.get();
    let first = last.names.first().map(ServerString::raw);
    match first.filter(|first| last.is_to_come() && !queued.contains_key(first)) {
        Some(first) => {
            queued.insert(first, std::mem::take(last));
        }
        None => {
            last.names.clear();
            last.names.shrink_to(SMALL);
        }
    }
    // A command that a pause of writes put off runs without a word: so of few, all are looked at each time.
    if std::mem::take(may_have_run) || queued.len() <= SMALL {
        let ended = queued.extract_if(|_, deletion| !deletion.is_to_come());
        for name in ended.flat_map(|(_, deletion)| deletion.names) {
            deleted(name.bytes());
        }
        if queued.is_empty() {
            queued.shrink_to(SMALL);
        }
    }
    UNSETTLED.store(!queued.is_empty(), Ordering::Relaxed);
}
