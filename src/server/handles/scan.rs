//! Scans of the keyspace.

use crate::server::base::guard::guard;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::OpenKey;
use crate::server::handles::string::ServerString;
use redis_module::raw;
use std::ffi::c_void;
use std::mem::ManuallyDrop;

/// A scan of all keys of one database, in steps. A key that is there from the first step to the last is seen at least once.
pub struct KeyScan(*mut raw::RedisModuleScanCursor);

impl KeyScan {
    /// A scan that has not begun.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // SAFETY: the function takes no argument.
        Self(unsafe { api!(RedisModule_ScanCursorCreate()) })
    }

    /// Appends the names of some keys of the selected database. Returns whether more keys are left.
    pub fn step(&mut self, ctx: Ctx<'_>, names: &mut Vec<Box<[u8]>>) -> bool {
        // SAFETY: context and cursor are alive; the callback gets the vector back during the call.
        let is_left = unsafe {
            api!(RedisModule_Scan(
                ctx.raw(),
                self.0,
                Some(on_scanned),
                std::ptr::from_mut(names).cast()
            ))
        };
        is_left != 0
    }

    /// Calls `visit` with the names and the values of some keys of the selected database. It leaves no trace at the keys. Returns
    /// whether more keys are left.
    pub fn visit(&mut self, ctx: Ctx<'_>, mut visit: &mut dyn FnMut(&[u8], &OpenKey<'_>)) -> bool {
        // SAFETY: context and cursor are alive; the callback gets the closure back during the call.
        let is_left = unsafe {
            api!(RedisModule_Scan(
                ctx.raw(),
                self.0,
                Some(on_visited),
                (&raw mut visit).cast()
            ))
        };
        is_left != 0
    }
}

unsafe extern "C" fn on_visited(
    _ctx: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    key: *mut raw::RedisModuleKey,
    visit: *mut c_void,
) {
    guard((), || {
        // SAFETY: the server passes a live name, a key that it has opened and closes itself, and the closure of
        // [`KeyScan::visit`].
        let (name, key, visit) = unsafe {
            (
                ServerString::borrowed(name),
                ManuallyDrop::new(OpenKey::new(key)),
                &mut *visit.cast::<&mut dyn FnMut(&[u8], &OpenKey<'_>)>(),
            )
        };
        visit(name.bytes(), &key);
    });
}

unsafe extern "C" fn on_scanned(
    _ctx: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    _key: *mut raw::RedisModuleKey,
    names: *mut c_void,
) {
    guard((), || {
        // SAFETY: the server passes a live name and the vector of [`KeyScan::step`].
        let (name, names) = unsafe {
            (
                ServerString::borrowed(name),
                &mut *names.cast::<Vec<Box<[u8]>>>(),
            )
        };
        names.push(name.bytes().into());
    });
}

impl Drop for KeyScan {
    fn drop(&mut self) {
        // SAFETY: the cursor belongs to this value alone.
        unsafe { api!(RedisModule_ScanCursorDestroy(self.0)) };
    }
}
