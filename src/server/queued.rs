//! Deletions that wait in transactions. The server tells of a command when it arrives, and in `MULTI` it arrives long before
//! it runs. Of which client it is nobody says (7.0 has no function for that), but a command that is queued keeps its
//! arguments: as long as the server holds on to a key's name, its deletion is still to come.

use super::context::Name;
use super::main_thread::MainThread;
use std::sync::OnceLock;

/// A key that a command wants to delete.
struct Deletion {
    name: Name<'static>,
    /// What the string's header was while the server held it, too.
    header: u64,
}

impl Deletion {
    /// Does the server still hold the command's arguments? Its count of references is in the header, wherever that is.
    fn is_to_come(&self) -> bool {
        header(&self.name) == self.header
    }
}

/// The first bytes of the server's object behind a string.
fn header(name: &Name<'_>) -> u64 {
    // SAFETY: the string is alive, and on every server larger than this: type, encoding, access time and references, and
    // then a pointer. The bytes are compared with others of the same string, and mean nothing otherwise.
    unsafe { name.raw().cast::<u64>().read_unaligned() }
}

/// What has arrived, and where it is looked at next.
#[derive(Default)]
struct Arrived {
    deletions: Vec<Deletion>,
    next: usize,
}

static ARRIVED: MainThread<Arrived> = MainThread::new();

/// Can it be told on this server that it has given a string back?
fn is_told() -> bool {
    static IS_TOLD: OnceLock<bool> = OnceLock::new();
    *IS_TOLD.get_or_init(|| {
        let name = Name::new(b"name");
        let alone = header(&name);
        let other = name.retained();
        let shared = header(&name);
        drop(other);
        alone != shared && alone == header(&name)
    })
}

/// A command has arrived that deletes the key of this name, now or when its transaction runs.
pub(super) fn arrived(name: &Name<'_>) {
    if is_told() {
        let name = name.retained();
        let header = header(&name);
        ARRIVED.get().deletions.push(Deletion { name, header });
    }
}

/// A transaction is about to run: calls `delete` with the keys that one of those which are open deletes.
pub(super) fn before_transaction(mut delete: impl FnMut(&[u8])) {
    for deletion in &ARRIVED.get().deletions {
        if deletion.is_to_come() {
            delete(deletion.name.bytes());
        }
    }
}

/// Forgets what has run, or never will: each time a part, so that it never takes long.
pub(super) fn sort_out() {
    const PART: usize = 1000;
    let Arrived { deletions, next } = &mut *ARRIVED.get();
    for _ in 0..PART.min(deletions.len()) {
        *next = if *next < deletions.len() { *next } else { 0 };
        if deletions[*next].is_to_come() {
            *next += 1;
        } else {
            deletions.swap_remove(*next);
        }
    }
    if deletions.is_empty() {
        deletions.shrink_to(PART);
    }
}
