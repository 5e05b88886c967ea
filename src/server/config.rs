//! Load options: given as `loadmodule libsluice.so <name> <value> ...` and, at run time, as
//! `CONFIG SET sluice.<name> <value>`.

use super::context::Ctx;
use redis_module::raw;
use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

/// An option with an integer value.
pub struct Setting {
    /// Its name, without the module's prefix.
    pub name: &'static str,
    /// The smallest value.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    value: AtomicI64,
}

impl Setting {
    /// An option with its default.
    pub const fn new(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        assert!(min <= default && default <= max);
        Self {
            name,
            min,
            max,
            value: AtomicI64::new(default),
        }
    }

    /// Its value now.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets it when the module is loaded; false if the value is out of range.
    pub(super) fn set(&self, value: i64) -> bool {
        let fits = (self.min..=self.max).contains(&value);
        if fits {
            self.value.store(value, Ordering::Relaxed);
        }
        fits
    }

    /// Registers it with the server, the value that it has as its default.
    pub(super) fn register(&'static self, ctx: Ctx<'_>) -> bool {
        let name = CString::new(self.name).unwrap_or_default();
        // SAFETY: the setting lives as long as the process, and the server copies the name.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.raw(),
                name.as_ptr(),
                self.get(),
                raw::REDISMODULE_CONFIG_DEFAULT,
                self.min,
                self.max,
                Some(on_get),
                Some(on_set),
                None,
                std::ptr::from_ref(self).cast_mut().cast()
            ))
        };
        status == raw::REDISMODULE_OK as c_int
    }
}

// SAFETY (for both callbacks): the private data is the setting that was registered.

unsafe extern "C" fn on_get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: see above.
    unsafe { &*setting.cast::<Setting>() }.get()
}

unsafe extern "C" fn on_set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: see above. The server has checked the range.
    unsafe { &*setting.cast::<Setting>() }
        .value
        .store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}
