//! Functions of the module API that the bindings do not have.

use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

/// The address of a function of the server, perhaps one that is newer than the bindings.
pub(in crate::server) fn function(name: &CStr) -> Option<NonNull<c_void>> {
    let mut function: *mut c_void = ptr::null_mut();
    // SAFETY: the name is NUL-terminated; the server writes an address to `function` if it has one.
    let found = unsafe {
        api!(RedisModule_GetApi(
            name.as_ptr(),
            (&raw mut function).cast()
        ))
    };
    NonNull::new(function).filter(|_| found == raw::REDISMODULE_OK as c_int)
}

/// The other branch of a call whose function is there. Panics in debug builds, in which unit tests have no server.
///
/// # Safety
/// The server has the function.
#[inline(always)]
pub(in crate::server) unsafe fn missing(name: &str) -> ! {
    if cfg!(debug_assertions) {
        panic!("the server lacks {name}");
    }
    // SAFETY: the caller's promise.
    unsafe { std::hint::unreachable_unchecked() }
}
