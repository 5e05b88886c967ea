//! Native data types as keys know them: a name of nine characters, the server's handle, the number of live values.

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

/// How many values of all types there are.
pub(in crate::server) static ALL_LIVE: AtomicUsize = AtomicUsize::new(0);

/// Is there any value of the module's types?
pub(in crate::server) fn any_live() -> bool {
    ALL_LIVE.load(Ordering::Relaxed) > 0
}

impl<T> NativeType<T> {
    /// A type that is still to be registered. Its name is permanent: it is in every RDB file.
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

    /// How many values of this type there are in the server.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Hands a value over to the server, which gives it back to `free`.
    pub(in crate::server) fn to_raw(&self, value: T) -> *mut T {
        self.live.fetch_add(1, Ordering::Relaxed);
        ALL_LIVE.fetch_add(1, Ordering::Relaxed);
        Box::into_raw(Box::new(value))
    }

    /// Takes a value back from the server.
    ///
    /// # Safety
    /// `value` came from [`NativeType::to_raw`] of this type, and is used no more.
    pub(in crate::server) unsafe fn take_back(&self, value: *mut c_void) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        ALL_LIVE.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(value.cast::<T>()) });
    }
}

/// Does the module delete a key at this moment?
pub(in crate::server) static DELETING: AtomicBool = AtomicBool::new(false);

/// Marks deletions as the module's own, of which no `unlinked` is told.
pub(in crate::server) fn while_deleting(work: impl FnOnce()) {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            DELETING.store(false, Ordering::Relaxed);
        }
    }
    let _done = Done; // also by a panic
    DELETING.store(true, Ordering::Relaxed);
    work();
}
