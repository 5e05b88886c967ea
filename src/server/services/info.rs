//! The sections of `INFO sluice`: a general one, one for each family, one for the histograms of all families, and one for
//! their memory.

use crate::histogram::Histogram;
use crate::server::base::guard::guard;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::services::memory::may_evict;
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A counter. Only the main thread counts, so an addition need not be atomic.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at 0.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds 1.
    pub fn count(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    /// Adds a number.
    pub fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The version as people write it.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL"),
    };

/// Registers the sections.
pub(in crate::server) fn register(ctx: Ctx<'_>) {
    // SAFETY: the callback lives as long as the module.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(on_info))) };
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    guard((), || {
        // SAFETY: the server passes a live context, and copies the NUL-terminated names and texts.
        unsafe {
            // A section without a name has the name of the module.
            if api!(RedisModule_InfoAddSection(ctx, ptr::null())) == raw::REDISMODULE_OK as c_int {
                let families: Vec<_> = crate::enabled_families()
                    .map(|family| family.name)
                    .collect();
                let families = CString::new(families.join(",")).unwrap_or_default();
                for (name, text) in [(c"version", VERSION), (c"families", &families)] {
                    api!(RedisModule_InfoAddFieldCString(
                        ctx,
                        name.as_ptr(),
                        text.as_ptr()
                    ));
                }
                let evictable = may_evict().into();
                api!(RedisModule_InfoAddFieldULongLong(
                    ctx,
                    c"evictable".as_ptr(),
                    evictable
                ));
            }
        }
        for family in crate::enabled_families() {
            let Some(fields) = (family.info)() else {
                continue; // a crash report in the middle of a command, which uses the state of the family
            };
            let section = CString::new(family.name).unwrap_or_default();
            // SAFETY: the server gives a live context; the names live through the calls.
            unsafe {
                if api!(RedisModule_InfoAddSection(ctx, section.as_ptr()))
                    != raw::REDISMODULE_OK as c_int
                {
                    continue; // the client did not request this section
                }
                for (name, value) in fields {
                    let name = CString::new(name).unwrap_or_default();
                    api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
                }
            }
        }
        // SAFETY: the server gives a live context.
        unsafe {
            if api!(RedisModule_InfoAddSection(ctx, c"times".as_ptr()))
                == raw::REDISMODULE_OK as c_int
            {
                let histograms = crate::enabled_families().flat_map(|family| family.histograms);
                histograms.for_each(|(name, histogram)| add_histogram(ctx, name, histogram));
            }
            let Some(fields) = crate::general::memory::info() else {
                return; // a crash report in the middle of a visit
            };
            if api!(RedisModule_InfoAddSection(ctx, c"memory".as_ptr()))
                == raw::REDISMODULE_OK as c_int
            {
                for (name, value) in fields {
                    let name = CString::new(name).unwrap_or_default();
                    api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
                }
            }
        }
    });
}

/// Adds a histogram to the section: the number of times, their sum in microseconds, and for each bound in microseconds (`le_64`)
/// the number of times that do not exceed it.
///
/// # Safety
/// `ctx` is a live context.
unsafe fn add_histogram(
    ctx: *mut raw::RedisModuleInfoCtx,
    name: &'static str,
    histogram: &Histogram,
) {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the caller's promise; the server copies the names.
    unsafe {
        let add = |name: &CStr, value: u64| {
            api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value))
        };
        api!(RedisModule_InfoBeginDictField(ctx, name.as_ptr()));
        add(c"count", histogram.total());
        add(c"sum", histogram.sum_us());
        for (bound, count) in histogram.cumulative() {
            let bound = CString::new(format!("le_{bound}")).unwrap_or_default();
            add(&bound, count);
        }
        api!(RedisModule_InfoEndDictField(ctx));
    }
}

/// Logs a warning when eviction becomes possible.
pub(in crate::server) fn log_eviction(ctx: Ctx<'_>) {
    static COULD_EVICT: AtomicBool = AtomicBool::new(false);
    let may_evict = may_evict();
    if may_evict && !COULD_EVICT.load(Ordering::Relaxed) {
        let line = "the server may evict locks, limits and other keys of Sluice, because maxmemory is set and \
                    maxmemory-policy is not noeviction";
        log::warn(ctx.raw(), line);
    }
    COULD_EVICT.store(may_evict, Ordering::Relaxed);
}
