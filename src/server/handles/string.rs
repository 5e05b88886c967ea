//! Strings of the server: names of keys and arguments of commands.

use redis_module::raw;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

/// The name of a key as the server wants it.
#[derive(Debug)]
pub struct ServerString<'a> {
    raw: NonNull<raw::RedisModuleString>,
    is_owned: bool,
    /// The bytes, if they are known already: to ask the server for them takes 40 instructions.
    bytes: Option<&'a [u8]>,
}

impl<'a> ServerString<'a> {
    /// Borrows an argument of the running command.
    ///
    /// # Safety
    /// `raw` is a string of the server that lives at least as long as `'a`.
    pub(in crate::server) unsafe fn borrowed(raw: *mut raw::RedisModuleString) -> Self {
        Self {
            raw: NonNull::new(raw).expect("an argument is a string"),
            is_owned: false,
            bytes: None,
        }
    }

    /// The same for an argument whose bytes are known.
    ///
    /// # Safety
    /// See [`ServerString::borrowed`]. `bytes` are the bytes of this string, which nobody changes for `'a`.
    pub(in crate::server) unsafe fn borrowed_with(
        raw: *mut raw::RedisModuleString,
        bytes: &'a [u8],
    ) -> Self {
        Self {
            raw: NonNull::new(raw).expect("an argument is a string"),
            is_owned: false,
            bytes: Some(bytes),
        }
    }

    /// Takes over a string that the server made for us, if it did.
    ///
    /// # Safety
    /// `raw` is null or a string that nobody else frees.
    pub(in crate::server) unsafe fn owned(
        raw: *mut raw::RedisModuleString,
    ) -> Option<ServerString<'static>> {
        Some(ServerString {
            raw: NonNull::new(raw)?,
            is_owned: true,
            bytes: None,
        })
    }

    /// Makes a name of bytes.
    pub fn new(bytes: &[u8]) -> ServerString<'static> {
        // SAFETY: a null context makes a string that its creator frees; the buffer is given with
        // its length.
        let raw = unsafe {
            api!(RedisModule_CreateString(
                std::ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        };
        ServerString {
            raw: NonNull::new(raw).expect("the server makes a string or dies"),
            is_owned: true,
            bytes: None,
        }
    }

    /// Makes a string of an integer.
    pub fn number(value: i64) -> ServerString<'static> {
        // SAFETY: a null context makes a string that its creator frees.
        let raw = unsafe {
            api!(RedisModule_CreateStringFromLongLong(
                std::ptr::null_mut(),
                value
            ))
        };
        // SAFETY: nobody else has it.
        unsafe { ServerString::owned(raw) }.expect("the server makes a string or dies")
    }

    /// The same string once more, for as long as one likes.
    pub(in crate::server) fn retained(&self) -> ServerString<'static> {
        // SAFETY: the string is alive, and with a null context its new owner frees it.
        unsafe {
            api!(RedisModule_RetainString(std::ptr::null_mut(), self.raw()));
            ServerString::owned(self.raw())
        }
        .expect("it is a string")
    }

    /// The name's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self.bytes {
            Some(bytes) => bytes,
            // SAFETY: the string lives as long as `self` and is not changed.
            None => unsafe { bytes_of(self.raw.as_ptr()) },
        }
    }

    pub(in crate::server) fn raw(&self) -> *mut raw::RedisModuleString {
        self.raw.as_ptr()
    }

    /// Gives the string away, to who frees it.
    pub(in crate::server) fn into_raw(self) -> *mut raw::RedisModuleString {
        debug_assert!(self.is_owned);
        std::mem::ManuallyDrop::new(self).raw()
    }
}

impl Drop for ServerString<'_> {
    fn drop(&mut self) {
        if self.is_owned {
            // SAFETY: `new` made it without a context, nobody else frees it.
            unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.raw())) };
        }
    }
}

/// The bytes of a string of the server.
///
/// # Safety
/// `raw` is such a string; it lives and is not changed for `'a`.
pub(in crate::server) unsafe fn bytes_of<'a>(raw: *const raw::RedisModuleString) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the caller's promise; the server fills in the length of the buffer it returns.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(raw, &mut length));
        slice_of(start.cast(), length)
    }
}

/// The bytes of each string, written to a buffer that has room for them.
///
/// # Safety
/// They are strings of the server; they live and are not changed for `'a`.
#[inline(always)]
pub(in crate::server) unsafe fn bytes_of_all<'a, 'b>(
    strings: &[*mut raw::RedisModuleString],
    buffer: &'b mut [MaybeUninit<&'a [u8]>],
) -> &'b [&'a [u8]] {
    assert!(buffer.len() >= strings.len());
    let mut slot = buffer.as_mut_ptr();
    for string in strings {
        let mut length = MaybeUninit::uninit();
        // SAFETY: the caller's promise. The server fills in the length of the buffer, and returns the address of one for any string.
        // There are as many slots as strings.
        unsafe {
            let start = api!(RedisModule_StringPtrLen(*string, length.as_mut_ptr()));
            let bytes: &[u8] = slice::from_raw_parts(start.cast(), length.assume_init());
            (*slot).write(bytes);
            slot = slot.add(1);
        }
    }
    // SAFETY: as many elements have just been written.
    unsafe { slice::from_raw_parts(buffer.as_ptr().cast(), strings.len()) }
}

/// The elements at a pointer of the server. Null, which the server may return for nothing, is an empty slice.
///
/// # Safety
/// `start` is null, or `length` elements stand there, live and are not changed for `'a`.
#[inline]
pub(in crate::server) unsafe fn slice_of<'a, T>(start: *const T, length: usize) -> &'a [T] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start, length) }
}
