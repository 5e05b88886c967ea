//! Static state of the module, which only the main thread of the server uses.

use std::cell::{Cell, LazyCell, RefCell, RefMut};

/// A value that only the main thread uses.
pub struct MainThread<T>(LazyCell<RefCell<T>>);

// SAFETY: the server runs commands, timers, events and persistence callbacks of a module on one thread at a time, under its global
// lock. Two callbacks may run on another thread, and use no `MainThread` there: `free` of a value in the background, and the
// entry of a command with keys at no fixed positions (`entry::enter_keyed`), which servers with `io-threads` ask for these keys.
unsafe impl<T> Sync for MainThread<T> {}

impl<T: Default> MainThread<T> {
    /// The default value, created at the first use.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(LazyCell::new(RefCell::default))
    }

    /// The value. Panics if it is borrowed: a borrower must not call functions that need the value.
    pub fn get(&self) -> RefMut<'_, T> {
        check_thread();
        self.0.borrow_mut()
    }

    /// The value. `None`: it is borrowed.
    pub fn try_get(&self) -> Option<RefMut<'_, T>> {
        check_thread();
        self.0.try_borrow_mut().ok()
    }
}

thread_local! {
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the running thread is the main thread.
pub(in crate::server) fn learn_thread() {
    IS_MAIN.set(true);
}

/// Whether the running thread is the main thread.
pub(in crate::server) fn is_running() -> bool {
    IS_MAIN.get()
}

/// Panics in debug builds if another thread has used such a value before, except in unit tests, which have several threads.
#[inline]
fn check_thread() {
    #[cfg(all(debug_assertions, not(test)))]
    {
        static FIRST: std::sync::OnceLock<std::thread::ThreadId> = std::sync::OnceLock::new();
        let this = std::thread::current().id();
        assert_eq!(
            *FIRST.get_or_init(|| this),
            this,
            "a value of the main thread is used on another thread"
        );
    }
}
