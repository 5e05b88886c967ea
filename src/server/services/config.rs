//! Load options: `loadmodule libsluice.so <name> <value> ...`. `CONFIG SET sluice.<name> <value>` changes them at run time.

use crate::request::{is, parse_decimal, parse_int, parse_memory};
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::{ServerString, bytes_of};
use redis_module::raw;
use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// An option.
pub trait Setting: Sync {
    /// The name, without the prefix of the module.
    fn name(&self) -> &'static str;
    /// Sets the option when the module is loaded. The error describes the accepted values.
    fn set(&self, value: &[u8]) -> Result<(), String>;
    /// Registers the option with the server. Its present value becomes the default. False: the server refuses the option.
    fn register(&'static self, ctx: Ctx<'_>) -> bool;
}

/// An option with an integer value.
pub struct Integer {
    name: &'static str,
    min: i64,
    max: i64,
    /// Whether the value is a number of bytes, for which `100mb` is valid.
    is_memory: bool,
    value: AtomicI64,
}

impl Integer {
    /// An option with its default and its range.
    pub const fn new(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        assert!(min <= default && default <= max);
        Self {
            name,
            min,
            max,
            is_memory: false,
            value: AtomicI64::new(default),
        }
    }

    /// The same for a number of bytes.
    pub const fn memory(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        Self {
            is_memory: true,
            ..Self::new(name, default, min, max)
        }
    }

    /// The present value.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

impl Setting for Integer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set(&self, value: &[u8]) -> Result<(), String> {
        let fits = |value: &i64| (self.min..=self.max).contains(value);
        let refused = || format!("an integer between {} and {}", self.min, self.max);
        let value = if self.is_memory {
            parse_memory(value)
        } else {
            parse_int(value)
        };
        let value = value.filter(fits).ok_or_else(refused)?;
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn register(&'static self, ctx: Ctx<'_>) -> bool {
        let name = CString::new(self.name).unwrap_or_default();
        let flags = if self.is_memory {
            raw::REDISMODULE_CONFIG_MEMORY
        } else {
            raw::REDISMODULE_CONFIG_DEFAULT
        };
        // SAFETY: the setting lives as long as the process, and the server copies the name.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.raw(),
                name.as_ptr(),
                self.get(),
                flags,
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
    guard(0, || unsafe { &*setting.cast::<Integer>() }.get())
}

unsafe extern "C" fn on_set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    guard(raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: see above. The server has checked the range.
        let setting = unsafe { &*setting.cast::<Integer>() };
        setting.value.store(value, Ordering::Relaxed);
        raw::REDISMODULE_OK as c_int
    })
}

/// An option whose value is a rate: a decimal number greater than 0 and less than 1.
pub struct Rate {
    name: &'static str,
    value: MainThread<Option<(f64, ServerString<'static>)>>,
    default: &'static str,
}

impl Rate {
    /// An option with its default.
    pub const fn new(name: &'static str, default: &'static str) -> Self {
        Self {
            name,
            value: MainThread::new(),
            default,
        }
    }

    /// The present value.
    pub fn get(&self) -> f64 {
        self.with(|rate, _| rate)
    }

    /// Calls `read` with the value, as a number and as the text that was set.
    fn with<T>(&self, read: impl FnOnce(f64, &ServerString<'static>) -> T) -> T {
        let mut value = self.value.get();
        let (rate, text) = value.get_or_insert_with(|| {
            let rate = parse_rate(self.default.as_bytes()).unwrap_or(0.5);
            (rate, ServerString::new(self.default.as_bytes()))
        });
        read(*rate, text)
    }
}

/// Parses a rate.
fn parse_rate(text: &[u8]) -> Option<f64> {
    parse_decimal(text).filter(|rate| *rate > 0.0 && *rate < 1.0)
}

impl Setting for Rate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set(&self, value: &[u8]) -> Result<(), String> {
        let refused = || "a number greater than 0 and less than 1".to_owned();
        let rate = parse_rate(value).ok_or_else(refused)?;
        *self.value.get() = Some((rate, ServerString::new(value)));
        Ok(())
    }

    fn register(&'static self, ctx: Ctx<'_>) -> bool {
        let name = CString::new(self.name).unwrap_or_default();
        let default = self.with(|_, text| CString::new(text.bytes()).unwrap_or_default());
        // SAFETY: the setting lives as long as the process, and the server copies name and default.
        let status = unsafe {
            api!(RedisModule_RegisterStringConfig(
                ctx.raw(),
                name.as_ptr(),
                default.as_ptr(),
                raw::REDISMODULE_CONFIG_DEFAULT,
                Some(on_get_rate),
                Some(on_set_rate),
                None,
                std::ptr::from_ref(self).cast_mut().cast()
            ))
        };
        status == raw::REDISMODULE_OK as c_int
    }
}

// SAFETY (for both callbacks): the private data is the setting that was registered.

/// The server reads the string and does not free it. The setting owns it until the next `CONFIG SET`.
unsafe extern "C" fn on_get_rate(
    _name: *const c_char,
    setting: *mut c_void,
) -> *mut raw::RedisModuleString {
    guard(std::ptr::null_mut(), || {
        // SAFETY: see above.
        unsafe { &*setting.cast::<Rate>() }.with(|_, text| text.raw())
    })
}

unsafe extern "C" fn on_set_rate(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    setting: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let status = guard(raw::REDISMODULE_ERR, || {
        // SAFETY: see above; the string of the server lives through the call.
        let (setting, value) = unsafe { (&*setting.cast::<Rate>(), bytes_of(value)) };
        match setting.set(value) {
            Ok(()) => raw::REDISMODULE_OK,
            Err(takes) => {
                let text = format!("argument must be {takes}");
                // SAFETY: the server takes the string over.
                unsafe { *error = ServerString::new(text.as_bytes()).into_raw() };
                raw::REDISMODULE_ERR
            }
        }
    });
    status as c_int
}

/// An option that is `yes` or `no`. It is decided when the module is loaded.
pub struct Switch {
    name: &'static str,
    value: AtomicBool,
}

impl Switch {
    /// An option with its default.
    pub const fn new(name: &'static str, default: bool) -> Self {
        Self {
            name,
            value: AtomicBool::new(default),
        }
    }

    /// The present value.
    pub fn get(&self) -> bool {
        self.value.load(Ordering::Relaxed)
    }
}

impl Setting for Switch {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set(&self, value: &[u8]) -> Result<(), String> {
        let value = match value {
            value if is(value, "yes") => true,
            value if is(value, "no") => false,
            _ => return Err("yes or no".to_owned()),
        };
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn register(&'static self, ctx: Ctx<'_>) -> bool {
        let name = CString::new(self.name).unwrap_or_default();
        // SAFETY: the setting lives as long as the process, and the server copies the name.
        let status = unsafe {
            api!(RedisModule_RegisterBoolConfig(
                ctx.raw(),
                name.as_ptr(),
                self.get().into(),
                raw::REDISMODULE_CONFIG_IMMUTABLE,
                Some(on_get_switch),
                Some(on_set_switch),
                None,
                std::ptr::from_ref(self).cast_mut().cast()
            ))
        };
        status == raw::REDISMODULE_OK as c_int
    }
}

// SAFETY (for both callbacks): the private data is the setting that was registered.

unsafe extern "C" fn on_get_switch(_name: *const c_char, setting: *mut c_void) -> c_int {
    // SAFETY: see above.
    guard(0, || unsafe { &*setting.cast::<Switch>() }.get().into())
}

/// The server calls this once, with the default or with the value of its configuration file.
unsafe extern "C" fn on_set_switch(
    _name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    guard(raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: see above.
        let setting = unsafe { &*setting.cast::<Switch>() };
        setting.value.store(value != 0, Ordering::Relaxed);
        raw::REDISMODULE_OK as c_int
    })
}
