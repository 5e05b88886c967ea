//! State that lives as long as the module and belongs to the server's main thread.

use std::cell::{LazyCell, RefCell, RefMut};

/// A value that only the main thread uses.
pub struct MainThread<T>(LazyCell<RefCell<T>>);

// SAFETY: the server runs commands, timers, events and persistence callbacks of a module on one
// thread at a time, under its global lock. The only callback that it runs elsewhere is the freeing
// of values in the background, and that touches no `MainThread`.
unsafe impl<T> Sync for MainThread<T> {}

impl<T: Default> MainThread<T> {
    /// The default value, made when it is first used.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(LazyCell::new(RefCell::default))
    }

    /// The value. Panics if it is in use already: who holds it calls nothing that needs it.
    pub fn get(&self) -> RefMut<'_, T> {
        self.0.borrow_mut()
    }

    /// The value, unless it is in use already.
    pub fn try_get(&self) -> Option<RefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}
