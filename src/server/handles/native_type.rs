//! The registration of native data types: a name of nine characters, the handle of the server, the number of live values.

use redis_module::raw;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A type that is registered with the server under a name of 9 characters.
pub struct NativeType<T> {
    pub(in crate::server) name: &'static str,
    pub(in crate::server) raw: AtomicPtr<raw::RedisModuleType>,
    pub(in crate::server) live: AtomicUsize,
    values: PhantomData<fn(T) -> T>,
}

/// The number of values of all types.
pub(in crate::server) static ALL_LIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts the values that came to a key or left one.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The number of values of the module's types that came to a key or left one.
#[inline(always)]
pub(in crate::server) fn changes() -> usize {
    CHANGES.load(Ordering::Relaxed)
}

/// Counts a value that comes to a key or leaves one. Only the main thread counts.
#[inline(always)]
pub(in crate::server) fn count_change() {
    CHANGES.store(changes().wrapping_add(1), Ordering::Relaxed);
}

/// Opens several keys at once. To open a key that has expired makes the server emit events, whose listeners may change the keys
/// that were opened before. Then they are opened again.
pub fn open_together<T>(mut open: impl FnMut() -> T) -> T {
    for _ in 0..MAX_ATTEMPTS {
        let before = changes();
        let opened = open();
        if changes() == before {
            return opened;
        }
    }
    open()
}

/// The most attempts to open keys together: a listener may put a value at a key that expires at once.
const MAX_ATTEMPTS: usize = 3;

/// Whether there is any value of the module's types.
pub(in crate::server) fn has_live_values() -> bool {
    ALL_LIVE.load(Ordering::Relaxed) > 0
}

impl<T> NativeType<T> {
    /// A type that is not registered yet. Its name must never change, because every RDB file contains it.
    pub const fn new(name: &'static str) -> Self {
        assert!(name.len() == 9);
        Self {
            name,
            raw: AtomicPtr::new(ptr::null_mut()),
            live: AtomicUsize::new(0),
            values: PhantomData,
        }
    }

    pub(in crate::server) fn raw(&self) -> *mut raw::RedisModuleType {
        self.raw.load(Ordering::Relaxed)
    }

    /// Whether the server knows the type.
    pub fn is_registered(&self) -> bool {
        !self.raw().is_null()
    }

    /// The number of values of this type in the server.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Passes a value to the server, which returns it to the `free` callback.
    pub(in crate::server) fn to_raw(&self, value: Box<T>) -> *mut T {
        self.live.fetch_add(1, Ordering::Relaxed);
        ALL_LIVE.fetch_add(1, Ordering::Relaxed);
        count_change();
        Box::into_raw(value)
    }

    /// Takes a value back from the server.
    ///
    /// # Safety
    /// [`NativeType::to_raw`] of this type returned `value`, and nobody uses it afterwards.
    pub(in crate::server) unsafe fn take_back(&self, value: *mut c_void) {
        self.count_freed();
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(value.cast::<T>()) });
    }

    /// Counts a value that the server has forgotten.
    pub(in crate::server) fn count_freed(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        ALL_LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the module itself deletes a key now.
pub(in crate::server) static DELETING: AtomicBool = AtomicBool::new(false);

/// Marks deletions as the module's own, for which `unlinked` is not called.
pub(in crate::server) fn while_deleting(work: impl FnOnce()) {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            DELETING.store(false, Ordering::Relaxed);
        }
    }
    let _done = Done; // dropped after a panic, too
    DELETING.store(true, Ordering::Relaxed);
    work();
}
