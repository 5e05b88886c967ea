//! Persistence: byte strings to and from RDB, commands to the AOF, elements to the digest. The families define the meaning of the
//! bytes in pure Rust with [`crate::codec`], so that tests and fuzzers need no server.

use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::string::{ServerString, bytes_of, slice_of};
use redis_module::raw;
use std::ffi::CStr;
use std::marker::PhantomData;

/// Writes to an RDB file or a `DUMP`.
pub struct RdbWriter<'a> {
    io: *mut raw::RedisModuleIO,
    call: PhantomData<&'a ()>,
}

impl RdbWriter<'_> {
    /// # Safety
    /// `io` is that of the running callback.
    pub(in crate::server) unsafe fn new(io: *mut raw::RedisModuleIO) -> Self {
        Self {
            io,
            call: PhantomData,
        }
    }

    /// Writes a byte string.
    pub fn bytes(&mut self, bytes: &[u8]) {
        // SAFETY: the io is alive, the buffer is given with its length.
        unsafe {
            api!(RedisModule_SaveStringBuffer(
                self.io,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
        }
    }
}

impl RdbWriter<'_> {
    /// Writes an integer in the server's own encoding.
    pub fn uint(&mut self, value: u64) {
        // SAFETY: the io is alive.
        unsafe { api!(RedisModule_SaveUnsigned(self.io, value)) };
    }

    /// Writes a floating-point number in the server's own encoding.
    pub fn double(&mut self, value: f64) {
        // SAFETY: the io is alive.
        unsafe { api!(RedisModule_SaveDouble(self.io, value)) };
    }
}

/// Reads from an RDB file or a `RESTORE`.
pub struct RdbReader<'a> {
    io: *mut raw::RedisModuleIO,
    call: PhantomData<&'a ()>,
}

impl RdbReader<'_> {
    /// # Safety
    /// `io` is that of the running callback.
    pub(in crate::server) unsafe fn new(io: *mut raw::RedisModuleIO) -> Self {
        Self {
            io,
            call: PhantomData,
        }
    }

    /// Whether a client of this server loads the value with `RESTORE`. Then limits apply, which the server's own dataset and the
    /// dataset of a master may exceed.
    pub fn is_for_client(&self) -> bool {
        // SAFETY: the io is alive, and its context lives as long.
        let ctx = unsafe { Ctx::new(api!(RedisModule_GetContextFromIO(self.io))) };
        !ctx.is_loading() && !ctx.is_replica()
    }

    /// Writes a line to the server's log.
    pub fn warn(&self, message: &str) {
        // SAFETY: the io is alive, and its context lives as long.
        let ctx = unsafe { Ctx::new(api!(RedisModule_GetContextFromIO(self.io))) };
        log::warn_in(ctx, message);
    }

    /// The database and the name of the key, if the server reports them.
    pub fn key(&self) -> Option<(i32, &[u8])> {
        // SAFETY: the io is alive, and the name lives as long as it.
        unsafe {
            let name = api!(RedisModule_GetKeyNameFromIO(self.io));
            if name.is_null() {
                return None;
            }
            Some((api!(RedisModule_GetDbIdFromIO(self.io)), bytes_of(name)))
        }
    }

    /// Reads a byte string and calls `read` with it. `None`: the input ends or is damaged.
    pub fn bytes<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut length = 0;
        // SAFETY: the io is alive. The server checks the length against its input. It returns a buffer, which `Buffer` frees,
        // or null.
        unsafe {
            let start = api!(RedisModule_LoadStringBuffer(self.io, &mut length));
            if start.is_null() {
                return None;
            }
            let buffer = Buffer(start.cast());
            if api!(RedisModule_IsIOError(self.io)) != 0 {
                return None;
            }
            Some(read(slice_of(buffer.0, length)))
        }
    }
}

impl RdbReader<'_> {
    /// Reads an integer in the server's own encoding. `None`: the input ends or is damaged.
    pub fn uint(&mut self) -> Option<u64> {
        // SAFETY: the io is alive. The server returns 0 and notes an error if there is no integer.
        let (value, failed) = unsafe {
            let value = api!(RedisModule_LoadUnsigned(self.io));
            (value, api!(RedisModule_IsIOError(self.io)) != 0)
        };
        (!failed).then_some(value)
    }

    /// Reads a floating-point number in the server's own encoding. `None`: the input ends or is damaged.
    pub fn double(&mut self) -> Option<f64> {
        // SAFETY: as above.
        let (value, failed) = unsafe {
            let value = api!(RedisModule_LoadDouble(self.io));
            (value, api!(RedisModule_IsIOError(self.io)) != 0)
        };
        (!failed).then_some(value)
    }
}

/// A buffer of the server, freed when dropped, so also after a panic.
struct Buffer(*mut u8);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer came from the server's allocator, and only this struct frees it.
        unsafe { api!(RedisModule_Free(self.0.cast())) };
    }
}

/// Writes commands to an AOF that is being rewritten.
pub struct AofWriter<'a> {
    io: *mut raw::RedisModuleIO,
    name: &'a ServerString<'a>,
}

impl<'a> AofWriter<'a> {
    /// # Safety
    /// `io` is that of the running callback.
    pub(in crate::server) unsafe fn new(
        io: *mut raw::RedisModuleIO,
        name: &'a ServerString<'a>,
    ) -> Self {
        Self { io, name }
    }

    /// Writes `command key payload`.
    pub fn command(&mut self, command: &CStr, payload: &[u8]) {
        // SAFETY: "sb" is a key's name and a buffer with its length; all live through the call.
        unsafe {
            api!(RedisModule_EmitAOF(
                self.io,
                command.as_ptr(),
                c"sb".as_ptr(),
                self.name.raw(),
                payload.as_ptr(),
                payload.len()
            ));
        }
    }
}

impl AofWriter<'_> {
    /// Writes `command key payload value`.
    pub fn command_with(&mut self, command: &CStr, payload: &[u8], value: &[u8]) {
        // SAFETY: "sbb" is a key's name and two buffers with their lengths; all live through the call.
        unsafe {
            api!(RedisModule_EmitAOF(
                self.io,
                command.as_ptr(),
                c"sbb".as_ptr(),
                self.name.raw(),
                payload.as_ptr(),
                payload.len(),
                value.as_ptr(),
                value.len()
            ));
        }
    }
}

/// The digest of a value, for `DEBUG DIGEST`.
pub struct Digest<'a> {
    md: *mut raw::RedisModuleDigest,
    call: PhantomData<&'a ()>,
}

impl Digest<'_> {
    /// # Safety
    /// `md` is that of the running callback.
    pub(in crate::server) unsafe fn new(md: *mut raw::RedisModuleDigest) -> Self {
        Self {
            md,
            call: PhantomData,
        }
    }

    /// Adds one element. The order of elements does not matter.
    pub fn element(&mut self, bytes: &[u8]) {
        // SAFETY: the digest is alive, the buffer is given with its length.
        unsafe {
            api!(RedisModule_DigestAddStringBuffer(
                self.md,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
            api!(RedisModule_DigestEndSequence(self.md));
        }
    }
}
