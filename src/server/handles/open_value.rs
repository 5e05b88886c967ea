//! The value of an open key, of which the module has one handle at a time.

use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The value of an open key. While it exists, nobody can have another one of the same value, so a reference from it is the only
/// one. If a listener to keyspace events deletes the key, the value stays in memory until the `OpenValue` is dropped. If a listener
/// renames or moves the key, the value stays open, but is at another key.
pub(in crate::server) struct OpenValue<T>(NonNull<T>);

impl<T> OpenValue<T> {
    /// The value at this address. Error: it is open already.
    ///
    /// # Safety
    /// The value is a `T` of this module's, which a `Box` has allocated. It stays until the result is dropped: whoever would free
    /// it calls [`keep_removed`] first.
    #[inline(always)]
    pub(in crate::server) unsafe fn new(value: NonNull<T>) -> Result<Self, Error> {
        if open(value.addr().get()) {
            Ok(Self(value))
        } else {
            Err(Error::KeyInUse)
        }
    }

    /// The value.
    #[inline(always)]
    pub(in crate::server) fn get(&mut self) -> &mut T {
        // SAFETY: the promise of `new`. This is the only `OpenValue` of the value, because `open` refuses a second one, and it is
        // borrowed as long as the reference.
        unsafe { self.0.as_mut() }
    }

    /// Whether the value has left its key since it was opened. The key then holds another value or none.
    #[inline(always)]
    pub(in crate::server) fn is_removed(&self) -> bool {
        has_left_key(self.0.addr().get())
    }
}

impl<T> Drop for OpenValue<T> {
    #[inline(always)]
    fn drop(&mut self) {
        close(self.0.addr().get());
        if ANY_REMOVED.load(Ordering::Relaxed)
            && forget_removed(self.0.addr().get()) == Some(Removal::Forgotten)
        {
            // SAFETY: the promise of `new`. The server has forgotten the value, and `keep_removed` has left it to this handle.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// What happened to an open value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It left its key. It may be at another one.
    LeftKey,
    /// The server has forgotten it.
    Forgotten,
}

/// The addresses of open values that have left their keys.
static REMOVED: MainThread<HashMap<usize, Removal, BuildHasherDefault<AddressHasher>>> =
    MainThread::new();

/// Whether [`REMOVED`] has any.
static ANY_REMOVED: AtomicBool = AtomicBool::new(false);

/// Called when the server frees the value at this address. Returns true if it is open: then its [`OpenValue`] frees it later.
pub(in crate::server) fn keep_removed(address: usize) -> bool {
    let is_open = is_open_at(address);
    if is_open {
        note_removal(address, Removal::Forgotten);
    }
    is_open
}

/// The value at this address leaves its key. The server is about to free it, or keeps it for another key.
#[inline(always)]
pub(in crate::server) fn leaves_key(address: usize) {
    if is_open_at(address) {
        note_removal(address, Removal::LeftKey);
    }
}

#[cold]
fn note_removal(address: usize, removal: Removal) {
    REMOVED.get().insert(address, removal);
    ANY_REMOVED.store(true, Ordering::Relaxed);
}

/// Whether the value at this address is open and has left the key where it was opened.
#[inline(always)]
pub(in crate::server) fn has_left_key(address: usize) -> bool {
    ANY_REMOVED.load(Ordering::Relaxed) && is_removed(address)
}

#[cold]
fn is_removed(address: usize) -> bool {
    REMOVED.get().contains_key(&address)
}

#[cold]
fn forget_removed(address: usize) -> Option<Removal> {
    let mut removed = REMOVED.get();
    let removal = removed.remove(&address);
    ANY_REMOVED.store(!removed.is_empty(), Ordering::Relaxed);
    removal
}

/// The address of the open value if there is one, 0 if there is none, and [`SEVERAL`] if they are in [`OPEN_VALUES`].
static OPEN_VALUE: AtomicUsize = AtomicUsize::new(0);

/// No value has this address, because values are aligned.
const SEVERAL: usize = 1;

/// The addresses of the open values, if there have been several at a time.
static OPEN_VALUES: MainThread<HashSet<usize, BuildHasherDefault<AddressHasher>>> =
    MainThread::new();

/// Returns false if the value at this address is open already.
#[inline(always)]
fn open(address: usize) -> bool {
    if OPEN_VALUE.load(Ordering::Relaxed) == 0 {
        OPEN_VALUE.store(address, Ordering::Relaxed);
        return true;
    }
    open_another(address)
}

/// Whether any value is open. A command that finds one runs in a listener to an event of the command that has it open.
#[inline(always)]
pub(in crate::server) fn is_any_value_open() -> bool {
    OPEN_VALUE.load(Ordering::Relaxed) != 0
}

/// Whether the value at this address is open.
#[inline(always)]
pub(in crate::server) fn is_open_at(address: usize) -> bool {
    OPEN_VALUE.load(Ordering::Relaxed) != 0 && is_open(address)
}

/// Panics if the value at this address is open: the server is about to free it. `address` is called if any value is open.
#[inline(always)]
pub(in crate::server) fn expect_closed(address: impl FnOnce() -> usize) {
    if OPEN_VALUE.load(Ordering::Relaxed) != 0 {
        assert!(!is_open(address()), "the value of a key is in use");
    }
}

#[cold]
fn is_open(address: usize) -> bool {
    match OPEN_VALUE.load(Ordering::Relaxed) {
        SEVERAL => OPEN_VALUES.get().contains(&address),
        one => one == address,
    }
}

#[cold]
fn open_another(address: usize) -> bool {
    let mut values = OPEN_VALUES.get();
    let before = OPEN_VALUE.swap(SEVERAL, Ordering::Relaxed);
    if before != SEVERAL {
        values.insert(before);
    }
    values.insert(address)
}

#[inline(always)]
fn close(address: usize) {
    if OPEN_VALUE.load(Ordering::Relaxed) == address {
        OPEN_VALUE.store(0, Ordering::Relaxed);
    } else {
        close_another(address);
    }
}

#[cold]
fn close_another(address: usize) {
    let mut values = OPEN_VALUES.get();
    values.remove(&address);
    if values.is_empty() {
        OPEN_VALUE.store(0, Ordering::Relaxed);
    }
}

/// Spreads addresses over a table by one multiplication with the golden ratio (Knuth, The Art of Computer Programming, 6.4).
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(*byte as usize);
        }
    }

    fn write_usize(&mut self, number: usize) {
        let mixed = (self.0 ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32); // the table uses the high bits and the low bits
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic;

    /// One test, because the addresses of open values are state of the process.
    #[test]
    fn a_value_is_open_once_at_a_time() {
        let mut values: Vec<Box<u32>> = (0..1000).map(Box::new).collect();
        let pointers = values.iter().map(|value| &raw const **value);
        let addresses: Vec<usize> = pointers.map(|value| value.addr()).collect();
        // SAFETY: the values outlive what is opened.
        let mut try_open =
            |index: usize| unsafe { OpenValue::new(NonNull::from(&mut *values[index])) };

        let is_refused =
            |index: usize| panic::catch_unwind(|| expect_closed(|| addresses[index])).is_err();
        let mut first = try_open(0).expect("it is closed");
        *first.get() += 7;
        assert!(is_refused(0) && !is_refused(1));
        drop(first);
        assert!(!is_refused(0));
        let opened = (0..1000).map(&mut try_open);
        let mut opened: Vec<OpenValue<u32>> = opened.map(Result::unwrap).collect();
        assert_eq!(*opened[0].get(), 7);
        assert!(is_refused(0) && is_refused(999));
        for index in [0, 1, 500, 999] {
            assert_eq!(try_open(index).err(), Some(Error::KeyInUse));
        }

        opened.remove(0); // the first is closed before the others
        let again = try_open(0).expect("it is closed");
        assert_eq!(try_open(0).err(), Some(Error::KeyInUse));
        assert!(is_any_value_open());
        drop(again);
        drop(opened);
        assert!(!is_any_value_open());
        assert_eq!(OPEN_VALUE.load(Ordering::Relaxed), 0);
        assert!(OPEN_VALUES.get().is_empty());
        drop(try_open(999).expect("it is closed"));

        // A removed value is left to its handle.
        assert!(!keep_removed(addresses[0]));
        let value = Box::leak(Box::new(std::rc::Rc::new(5)));
        let copy = value.clone();
        let address = (&raw const *value).addr();
        // SAFETY: nobody else frees the value.
        let mut removed = unsafe { OpenValue::new(NonNull::from(value)) }.unwrap();
        assert!(!removed.is_removed());
        assert!(keep_removed(address));
        assert!(removed.is_removed());
        assert_eq!(**removed.get(), 5);
        drop(removed);
        assert_eq!(std::rc::Rc::strong_count(&copy), 1);
        assert!(!ANY_REMOVED.load(Ordering::Relaxed) && !keep_removed(address));

        // A value that is at another key now is the server's.
        leaves_key(addresses[1]);
        assert!(!ANY_REMOVED.load(Ordering::Relaxed));
        let mut kept = Box::new(7);
        // SAFETY: the value outlives what is opened.
        let moved = unsafe { OpenValue::new(NonNull::from(&mut *kept)) }.unwrap();
        leaves_key((&raw const *kept).addr());
        assert!(moved.is_removed());
        drop(moved);
        assert_eq!(*kept, 7);
        assert!(!ANY_REMOVED.load(Ordering::Relaxed));
    }
}
