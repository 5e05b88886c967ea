//! Open keys.

use crate::error::Error;
use crate::server::base::main_thread;
use crate::server::handles::native_type::{self, NativeType};
use crate::server::handles::open_value::{self, OpenValue};
use crate::server::handles::string::{ServerString, bytes_of, slice_of};
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name of the key that was opened last, and is open. Null: that key is closed.
static OPENED_NAME: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// The name of the key that was opened last, if it is open: for the log of a panic.
pub(in crate::server) fn opened_name() -> Option<Vec<u8>> {
    let name = OPENED_NAME.load(Ordering::Relaxed);
    if name.is_null() || !main_thread::is_running() {
        return None;
    }
    // SAFETY: the name outlives the handle, whose `drop` on this thread makes the pointer null.
    Some(unsafe { bytes_of(name) }.to_vec())
}

/// A key that is open; closed when dropped.
pub struct OpenKey<'k> {
    pub(in crate::server) raw: *mut raw::RedisModuleKey,
    names: PhantomData<&'k ()>,
}

impl OpenKey<'_> {
    /// Opens a key.
    ///
    /// # Safety
    /// Context and name are alive, and outlive the handle.
    #[inline(always)]
    pub(in crate::server) unsafe fn open(
        ctx: *mut raw::RedisModuleCtx,
        name: *mut raw::RedisModuleString,
        mode: u32,
    ) -> Self {
        // SAFETY: the caller's promise; the handle is new.
        let key = unsafe { Self::new(api!(RedisModule_OpenKey(ctx, name, mode as c_int))) };
        OPENED_NAME.store(name, Ordering::Relaxed);
        #[cfg(debug_assertions)]
        // SAFETY: the caller's promise.
        panic_on_purpose(unsafe { bytes_of(name) });
        key
    }

    /// Wraps a handle.
    ///
    /// # Safety
    /// `raw` was just opened and belongs to nobody else, or is null; the context and the name
    /// that it was opened with outlive it.
    pub(in crate::server) unsafe fn new(raw: *mut raw::RedisModuleKey) -> Self {
        Self {
            raw,
            names: PhantomData,
        }
    }

    /// The database that it is in.
    pub(in crate::server) fn db(&self) -> i32 {
        // SAFETY: the handle is open or null, both of which the function knows.
        unsafe { api!(RedisModule_GetDbIdFromModuleKey(self.raw)) }
    }

    pub(in crate::server) fn kind(&self) -> isize {
        // SAFETY: the handle is open or null, both of which the function knows.
        unsafe { api!(RedisModule_KeyType(self.raw)) as isize }
    }

    /// Whether the key does not exist.
    pub fn is_empty(&self) -> bool {
        self.kind() == raw::REDISMODULE_KEYTYPE_EMPTY
    }

    /// Whether the value is of a module's type.
    pub fn is_native(&self) -> bool {
        self.kind() == raw::REDISMODULE_KEYTYPE_MODULE
    }

    /// Whether the value is open, under this key or under the one from which a listener to keyspace events has moved it.
    pub(in crate::server) fn holds_open_value(&self) -> bool {
        // SAFETY: the handle is open or null, both of which the function knows.
        let value = unsafe { api!(RedisModule_ModuleTypeGetValue(self.raw)) };
        open_value::is_open_at(value.addr())
    }

    /// Whether the value is of this type.
    pub fn holds<T>(&self, native: &NativeType<T>) -> bool {
        // SAFETY: the handle is open or null, both of which the function knows.
        let found = unsafe { api!(RedisModule_ModuleTypeGetType(self.raw)) };
        !found.is_null() && found == native.raw()
    }

    /// Deletes the key.
    pub(in crate::server) fn delete(&mut self) {
        self.expect_closed_value();
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_DeleteKey(self.raw)) };
    }

    /// Deletes the key; a large value is freed in the background.
    pub(in crate::server) fn unlink(&mut self) {
        self.expect_closed_value();
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_UnlinkKey(self.raw)) };
    }

    /// Panics if another handle has opened the value of this type, which is about to be freed.
    fn expect_closed_value(&self) {
        open_value::expect_closed(|| {
            if self.is_empty() {
                return 0; // no value has this address
            }
            // SAFETY: the handle is open; the result is null for a value that is none of a module.
            let value: *mut c_void = unsafe { api!(RedisModule_ModuleTypeGetValue(self.raw)) };
            value.addr()
        });
    }

    /// When the key expires (Unix ms), if it does.
    pub fn expires(&self) -> Option<u64> {
        if self.is_empty() {
            return None; // Redis 8.6.3 reads the expiry from a null value and crashes
        }
        // SAFETY: the handle is open on a value.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.raw)) };
        u64::try_from(at).ok()
    }

    /// Lets the key expire at this time (Unix ms). There must be a value.
    pub(in crate::server) fn expire_at(&mut self, at: u64) {
        assert!(!self.is_empty(), "an expiry of a key that is there");
        self.set_expiry(at);
    }

    /// The same where the caller has seen the value.
    #[inline]
    fn set_expiry(&mut self, at: u64) {
        // SAFETY: the handle is open for writing on a value.
        let status = unsafe { api!(RedisModule_SetAbsExpire(self.raw, at as i64)) };
        assert_eq!(status, raw::REDISMODULE_OK as c_int, "set an expiry");
    }

    /// The bytes of a string. `None`: the key does not exist. Error: the value is of another type.
    pub fn string(&self) -> Result<Option<&[u8]>, Error> {
        match self.kind() {
            raw::REDISMODULE_KEYTYPE_EMPTY => Ok(None),
            raw::REDISMODULE_KEYTYPE_STRING => {
                let mut length = 0;
                // SAFETY: the handle is open on a string; the server fills in the length of the
                // buffer, which lives until the key is changed.
                unsafe {
                    let mode = raw::REDISMODULE_READ as c_int;
                    let start = api!(RedisModule_StringDMA(self.raw, &mut length, mode));
                    Ok(Some(slice_of(start.cast(), length)))
                }
            }
            _ => Err(Error::WrongType),
        }
    }

    /// Whether the value is a hash.
    pub fn is_hash(&self) -> bool {
        self.kind() == raw::REDISMODULE_KEYTYPE_HASH
    }

    /// The number of fields of a hash, elements of a list or entries of a stream.
    pub fn length(&self) -> usize {
        // SAFETY: the handle is open or null, both of which the function knows.
        unsafe { api!(RedisModule_ValueLength(self.raw)) }
    }

    /// The value of a hash field. `None`: the hash has no such field.
    pub fn hash_field(&self, field: &CStr) -> Option<ServerString<'static>> {
        let mut value: *mut raw::RedisModuleString = ptr::null_mut();
        // SAFETY: the handle is open on a hash. With this flag, field names are NUL-terminated; a null pointer ends the list. The
        // server returns a string, which `ServerString` frees, or leaves the pointer null.
        unsafe {
            let flags = raw::REDISMODULE_HASH_CFIELDS as c_int;
            api!(RedisModule_HashGet(
                self.raw,
                flags,
                field.as_ptr(),
                &raw mut value,
                ptr::null_mut::<c_void>()
            ));
            ServerString::owned(value)
        }
    }

    /// Sets a string. The key keeps its expiry.
    pub fn set_string(&mut self, value: &[u8]) {
        self.expect_closed_value();
        let expires = self.expires();
        let value = ServerString::new(value);
        // SAFETY: the handle is open for writing; the server takes its own reference.
        let status = unsafe { api!(RedisModule_StringSet(self.raw, value.raw())) };
        assert_eq!(status, raw::REDISMODULE_OK as c_int, "set a string");
        if let Some(at) = expires {
            self.expire_at(at);
        }
    }
}

/// A key that is open for reading. The handle is null if there is no such key, and functions that change keys do not survive that.
pub struct ReadKey<'k>(OpenKey<'k>);

impl<'k> ReadKey<'k> {
    #[inline(always)]
    pub(in crate::server) fn new(key: OpenKey<'k>) -> Self {
        Self(key)
    }

    /// Whether the value is of this type.
    pub fn holds<T>(&self, native: &NativeType<T>) -> bool {
        self.0.holds(native)
    }
}

/// A key that is open for reading, and is empty or holds a value of one native type. The value itself may be changed, such as its
/// notes on how it is used.
pub struct TypedReadKey<'k, T: 'static> {
    value: Option<OpenValue<T>>, // dropped before the key is closed
    key: OpenKey<'k>,
}

impl<'k, T> TypedReadKey<'k, T> {
    /// The same as [`TypedKey::of`].
    #[inline(always)]
    pub fn of(key: ReadKey<'k>, native: &'static NativeType<T>) -> Result<Self, Error> {
        Self::of_any(key, native, &[])
    }

    /// The same as [`TypedKey::of_any`].
    #[inline(always)]
    pub fn of_any(
        ReadKey(key): ReadKey<'k>,
        native: &'static NativeType<T>,
        others: &[&'static NativeType<T>],
    ) -> Result<Self, Error> {
        let value = open_value_of(&key, native, others)?;
        Ok(Self { value, key })
    }

    /// The value, if there is one.
    #[inline]
    pub fn value(&mut self) -> Option<&mut T> {
        self.value.as_mut().map(OpenValue::get)
    }

    /// When the key expires (Unix ms), if it does.
    pub fn expires(&self) -> Option<u64> {
        self.key.expires()
    }
}

/// The value of a key that may hold values of these types. Error: it holds another one, or the value is open.
#[inline(always)]
fn open_value_of<T>(
    key: &OpenKey<'_>,
    native: &NativeType<T>,
    others: &[&NativeType<T>],
) -> Result<Option<OpenValue<T>>, Error> {
    let value = if key.holds(native) || others.iter().any(|other| key.holds(other)) {
        // SAFETY: the handle is open. A value of the type that `native`, or one of the others, stands for was made by
        // it, so it is a `T`. When the server frees it while it is open, because a listener to keyspace events changed
        // the key, the type's `free` leaves it to the `OpenValue` (`native::free`). The methods of this module that delete a
        // key panic before that.
        unsafe {
            let value = api!(RedisModule_ModuleTypeGetValue(key.raw));
            let value = NonNull::new(value.cast::<T>());
            value.map(|value| OpenValue::new(value)).transpose()?
        }
    } else {
        None
    };
    if value.is_none() && !key.is_empty() {
        return Err(Error::WrongType);
    }
    Ok(value)
}

/// An open key that is empty or holds a value of one native type. No two of them hold one value at a time.
pub struct TypedKey<'k, T: 'static> {
    value: Option<OpenValue<T>>, // dropped before the key is closed
    key: OpenKey<'k>,
    native: &'static NativeType<T>,
}

impl<'k, T> TypedKey<'k, T> {
    /// The key as one that may hold this type. Error: it holds another one, or the value is open: a listener to keyspace events runs
    /// a command in the middle of the one that opened it.
    #[inline(always)] // the result is large: it stays where it is used
    pub fn of(key: OpenKey<'k>, native: &'static NativeType<T>) -> Result<Self, Error> {
        Self::of_any(key, native, &[])
    }

    /// The same for a key that may hold values of several types. New values are of the first one.
    #[inline(always)]
    pub fn of_any(
        key: OpenKey<'k>,
        native: &'static NativeType<T>,
        others: &[&'static NativeType<T>],
    ) -> Result<Self, Error> {
        let value = open_value_of(&key, native, others)?;
        Ok(Self { value, key, native })
    }

    /// The key, whatever it holds: for a value that takes its place.
    pub fn over(key: OpenKey<'k>, native: &'static NativeType<T>) -> Self {
        let value = None;
        Self { value, key, native }
    }

    /// The value, if there is one.
    #[inline]
    pub fn value(&mut self) -> Option<&mut T> {
        self.value.as_mut().map(OpenValue::get)
    }

    /// Puts a value at the key. It replaces a value of the same type.
    pub fn create(&mut self, value: T) {
        self.create_as(self.native, value);
    }

    /// The same with a value of another type that holds a `T`.
    pub fn create_as(&mut self, native: &'static NativeType<T>, value: T) {
        self.create_boxed_as(native, Box::new(value));
    }

    /// The same as [`TypedKey::create`] with a value that has its place in memory already.
    pub fn create_boxed(&mut self, value: Box<T>) {
        self.create_boxed_as(self.native, value);
    }

    fn create_boxed_as(&mut self, native: &'static NativeType<T>, value: Box<T>) {
        assert!(!native.raw().is_null(), "the type is registered");
        let value = native.to_raw(value);
        self.value = None; // the server frees the old one
        self.key.expect_closed_value();
        // SAFETY: the handle is open for writing; the `free` callback of the type takes back the result of `to_raw`.
        let status = unsafe {
            api!(RedisModule_ModuleTypeSetValue(
                self.key.raw,
                native.raw(),
                value.cast()
            ))
        };
        assert_eq!(status, raw::REDISMODULE_OK as c_int, "set a value");
        // SAFETY: `to_raw` returned the value, which stays as in `of_any`.
        let value = NonNull::new(value).map(|value| unsafe { OpenValue::new(value) });
        self.value = value.map(|value| value.expect("nobody has opened a new value"));
    }

    /// Deletes the key.
    pub(in crate::server) fn delete(&mut self) {
        self.value = None;
        native_type::while_deleting(|| self.key.delete());
    }

    /// Replaces the value at the key, of whatever type, and removes the expiry. The server frees a large old value in the
    /// background.
    pub fn replace(&mut self, value: T) {
        self.replace_as(self.native, value);
    }

    /// The same with a value of another type that holds a `T`.
    pub fn replace_as(&mut self, native: &'static NativeType<T>, value: T) {
        self.value = None;
        self.key.unlink();
        self.create_as(native, value);
    }

    /// Whether the value is of the first type, or there is none.
    pub fn is_of_first_type(&self) -> bool {
        self.value.is_none() || self.key.holds(self.native)
    }

    /// Puts a value of the first type at the key, in the place of one of another type. The expiry stays.
    pub fn change_type(&mut self, value: T) {
        let expires = self.expires();
        self.value = None;
        native_type::while_deleting(|| self.create(value));
        if let Some(at) = expires {
            self.key.set_expiry(at);
        }
    }

    /// When the key expires (Unix ms), if it does.
    pub fn expires(&self) -> Option<u64> {
        if self.is_removed() {
            return None;
        }
        self.key.expires()
    }

    /// Whether the value has left the key since the key was opened, because a listener to keyspace events deleted, renamed or moved
    /// the key. The handle then does not know what the key holds.
    #[inline(always)]
    pub fn is_removed(&self) -> bool {
        self.value.as_ref().is_some_and(OpenValue::is_removed)
    }

    /// The value, if it is still at the key where it was opened.
    pub fn value_at_key(&mut self) -> Option<&mut T> {
        if self.is_removed() {
            None
        } else {
            self.value()
        }
    }

    /// Lets the key expire at this time (Unix ms). There must be a value.
    #[inline]
    pub(in crate::server) fn expire_at(&mut self, at: u64) {
        assert!(self.value.is_some(), "an expiry of a key that is there");
        self.key.set_expiry(at);
    }
}

/// Panics in debug builds if the environment variable `SLUICE_PANIC_KEY` has the name of this key: tests look at the log then.
#[cfg(debug_assertions)]
fn panic_on_purpose(name: &[u8]) {
    static NAME: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let panics_at = NAME.get_or_init(|| std::env::var_os("SLUICE_PANIC_KEY"));
    let panics_at = panics_at.as_ref().map(|name| name.as_encoded_bytes());
    assert!(panics_at != Some(name), "on purpose");
}

impl Drop for OpenKey<'_> {
    fn drop(&mut self) {
        OPENED_NAME.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the handle is open or null, and nobody uses it any more.
        unsafe { api!(RedisModule_CloseKey(self.raw)) };
    }
}
