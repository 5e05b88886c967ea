//! Native data types: the callbacks by which the server saves, loads, copies, measures and frees
//! the values of a family.

use crate::memory::block_size;
use crate::server::base::alloc::GUARANTEED_ALIGN;
use crate::server::base::guard::guard;
use crate::server::base::main_thread;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::handles::key::OpenKey;
use crate::server::handles::log;
use crate::server::handles::native_type::{self, DELETING};
pub use crate::server::handles::native_type::{NativeType, open_together};
use crate::server::handles::open_value;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::{ServerString, bytes_of};
use redis_module::raw;
use std::ffi::{CString, c_int, c_ulong, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A native type: the callbacks for its values.
pub trait Native: 'static {
    /// The type of the values.
    type Value: 'static;

    /// The registration of the type.
    fn native() -> &'static NativeType<Self::Value>;

    /// The encoding version, which the RDB file stores with each value. A change of the output of [`Native::save`] needs a higher
    /// version. [`Native::load`] reads this version and all older ones. Newer ones are refused before the call.
    const ENCODING: c_int;

    /// Writes a value to RDB or `DUMP`.
    fn save(value: &Self::Value, out: &mut RdbWriter<'_>);

    /// Reads a value from RDB or `RESTORE`. `None`: the input is invalid.
    fn load(input: &mut RdbReader<'_>, encoding: c_int) -> Option<Self::Value>;

    /// Writes the commands that rebuild a value.
    fn rewrite(value: &Self::Value, out: &mut AofWriter<'_>);

    /// Adds the contents of a value to its digest.
    fn digest(value: &Self::Value, digest: &mut Digest<'_>);

    /// The bytes of a value from the allocator, without the struct itself.
    fn memory(value: &Self::Value) -> usize;

    /// The number of allocations of a value. The server frees values with many allocations in the background.
    fn free_effort(value: &Self::Value) -> usize;

    /// The value for a copy of the key. `None`: there is not enough memory. The family receives an event when the new key exists.
    fn copy(value: &Self::Value) -> Option<Self::Value>;

    /// Called when a value leaves its key: by `DEL`, expiry, eviction, `RENAME`, an overwriting `SET` and others. Not called for
    /// keys that the module deletes itself, nor for `FLUSHDB` and `FLUSHALL`.
    fn unlinked(value: &Self::Value, db: i32, key: &[u8]);

    /// Called before the server frees a value on its main thread. The value may have left its key before, or never had one. Only
    /// for types with [`Native::FOLLOWS_FREES`].
    fn freed(_value: &Self::Value) {}

    /// Whether the type implements [`Native::freed`].
    const FOLLOWS_FREES: bool = false;

    /// Moves the larger blocks of a value with `relocate`, to reduce fragmentation. A large value moves in parts, and asks
    /// [`Relocate::should_stop`] after each part. The function returns the number of the next part, and receives it as `from` in
    /// the next call. `None`: all parts are done.
    fn defrag(value: &mut Self::Value, relocate: &mut Relocate<'_>, from: usize) -> Option<usize>;

    /// Saves data of the whole module that belongs to no key.
    fn save_module(_out: &mut RdbWriter<'_>) {}

    /// Whether [`Native::save_module`] has data to save now.
    fn has_module_data() -> bool {
        false
    }

    /// Reads the output of [`Native::save_module`]. False: the input is invalid.
    fn load_module(_input: &mut RdbReader<'_>, _encoding: c_int) -> bool {
        true
    }

    /// Whether the type implements [`Native::save_module`].
    const SAVES_MODULE: bool = false;
}

/// Whether `MEMORY USAGE` of the server counts the object that points to a module's value.
static COUNTS_OBJECT: AtomicBool = AtomicBool::new(false);

/// Learns which blocks around a value the module has to count.
pub(in crate::server) fn learn_overhead(ctx: Ctx<'_>) {
    // Valkey 9.0 and Redis 8.2 keep the key in the object and count both (`objectComputeSize`, `kvobjComputeSize`).
    let version = Version::running();
    let counts = version.is_valkey_since((9, 0)) || version.is_redis_since((8, 2));
    COUNTS_OBJECT.store(counts, Ordering::Relaxed);
    learn_key_blocks(ctx);
}

/// The bytes of the blocks around a module's value that the server does not count: the object, and the block between the object
/// and the value, of two words each.
fn overhead() -> usize {
    let blocks = if COUNTS_OBJECT.load(Ordering::Relaxed) {
        1
    } else {
        2
    };
    blocks * block_size(16)
}

/// The bytes of a value, as `MEMORY USAGE` counts them without the key.
pub fn value_usage<N: Native>(value: &N::Value) -> usize {
    overhead() + block_size(size_of::<N::Value>()) + N::memory(value)
}

/// The memory of the values of one data type.
#[derive(Clone, Copy)]
pub struct TypeUsage {
    /// The number of values in the server.
    pub live: fn() -> usize,
    /// The bytes of an empty value.
    pub least: fn() -> usize,
    /// The bytes of the value at a key, without the key; `None`: the key has a value of another type.
    pub bytes: fn(&OpenKey<'_>) -> Option<usize>,
}

/// The memory of the values of this type.
pub const fn usage_of<N: Native>() -> TypeUsage {
    TypeUsage {
        live: || N::native().live(),
        least: || overhead() + block_size(size_of::<N::Value>()),
        bytes: |key| {
            if !key.holds(N::native()) {
                return None;
            }
            // SAFETY: the handle is open.
            let value: *mut c_void = unsafe { api!(RedisModule_ModuleTypeGetValue(key.raw)) };
            open_value::expect_closed(|| value.addr());
            // SAFETY: a value of this type is an `N::Value`. It is not open, so nobody changes it during the call.
            Some(value_usage::<N>(unsafe { borrow::<N>(value) }))
        },
    }
}

/// The part of a key that `MEMORY USAGE` of the server counts besides the value.
#[derive(Debug, Clone, Copy)]
enum KeyBlocks {
    /// The name, and an entry of a hash table with this many bytes.
    Table(usize),
    /// An entry of a hash table that contains the name.
    NameInTable,
    /// An object that contains the name and the expiry.
    NameInObject,
    /// Nothing.
    Nothing,
}

static KEY_BLOCKS: OnceLock<KeyBlocks> = OnceLock::new();

fn learn_key_blocks(ctx: Ctx<'_>) {
    let version = Version::running();
    let entry = match ctx.is_cluster() {
        // Entries are in a list of their hash slot.
        true if !version.is_redis_since((7, 2)) && !version.is_valkey_since((7, 2)) => 40,
        true if !version.is_redis_since((7, 4)) && !version.is_valkey_since((8, 0)) => 32,
        _ => 24,
    };
    let blocks = if COUNTS_OBJECT.load(Ordering::Relaxed) {
        KeyBlocks::NameInObject
    } else if version.is_valkey_since((8, 1)) {
        KeyBlocks::Nothing
    } else if version.is_valkey_since((8, 0)) {
        KeyBlocks::NameInTable
    } else {
        KeyBlocks::Table(entry)
    };
    KEY_BLOCKS.get_or_init(|| blocks);
}

/// The bytes that `MEMORY USAGE` adds to the value for a key that expires and has a name of this length.
pub fn key_usage(length: usize) -> usize {
    let header = match length {
        0..32 => 1,
        32..256 => 3,
        256..65536 => 5,
        _ => 9,
    };
    match KEY_BLOCKS.get() {
        Some(KeyBlocks::Table(entry)) => block_size(header + length + 1) + entry,
        // The name is a copy of an argument, which has the header of longer strings.
        Some(KeyBlocks::NameInTable) => block_size(17 + header.max(3) + length + 1),
        Some(KeyBlocks::NameInObject) => block_size(25 + header + length + 1),
        Some(KeyBlocks::Nothing) | None => 0,
    }
}

/// Registers a native type. False if the server refuses it.
pub fn register<N: Native>(ctx: Ctx<'_>) -> bool {
    let is_registered = try_register::<N>(ctx);
    if !is_registered {
        let line = format!("cannot register the data type {}", N::native().name);
        log::warn(ctx.raw(), &line);
    }
    is_registered
}

/// Registers a native type that another module may have. False if it has.
pub fn try_register<N: Native>(ctx: Ctx<'_>) -> bool {
    let aux_triggers = if N::SAVES_MODULE {
        raw::REDISMODULE_AUX_BEFORE_RDB as c_int
    } else {
        0
    };
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<N>),
        rdb_save: Some(rdb_save::<N>),
        aof_rewrite: Some(aof_rewrite::<N>),
        mem_usage: None,
        digest: Some(digest::<N>),
        free: Some(free::<N>),
        aux_load: N::SAVES_MODULE.then_some(aux_load::<N>),
        aux_save: N::SAVES_MODULE.then_some(aux_save::<N>),
        aux_save_triggers: aux_triggers,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: Some(defrag::<N>),
        mem_usage2: Some(mem_usage::<N>),
        free_effort2: Some(free_effort::<N>),
        unlink2: Some(unlink::<N>),
        copy2: Some(copy::<N>),
        aux_save2: (N::SAVES_MODULE).then_some(aux_save_if_any::<N>),
    };
    let native = N::native();
    let name = CString::new(native.name).unwrap_or_default();
    // SAFETY: name and methods live through the call, which copies them.
    let raw = unsafe {
        api!(RedisModule_CreateDataType(
            ctx.raw(),
            name.as_ptr(),
            N::ENCODING,
            &mut methods
        ))
    };
    native.raw.store(raw, Ordering::Relaxed);
    !raw.is_null()
}

/// The value behind a pointer of the server.
///
/// # Safety
/// `value` came from `to_raw` of the type that the callback is registered for, and nobody changes
/// it for `'a`.
unsafe fn borrow<'a, N: Native>(value: *const c_void) -> &'a N::Value {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast::<N::Value>() }
}

// SAFETY (for all callbacks below): the server calls them with its own pointers, which live through
// the call, and with values of the type that they were registered for.

unsafe extern "C" fn rdb_load<N: Native>(
    io: *mut raw::RedisModuleIO,
    encoding: c_int,
) -> *mut c_void {
    guard(ptr::null_mut(), || {
        // SAFETY: see above.
        let mut input = unsafe { RdbReader::new(io) };
        let value = if is_known::<N>(encoding) {
            N::load(&mut input, encoding)
        } else {
            None
        };
        match value {
            Some(value) => N::native().to_raw(Box::new(value)).cast(),
            None => ptr::null_mut(),
        }
    })
}

/// Whether this build can read values of this encoding version. A newer version of Sluice may have written them.
fn is_known<N: Native>(encoding: c_int) -> bool {
    let known = encoding <= N::ENCODING;
    if !known {
        let name = N::native().name;
        let line =
            format!("<sluice> a value of the type {name} was written by a newer version of Sluice");
        log::warn(ptr::null_mut(), &line);
    }
    known
}

unsafe extern "C" fn rdb_save<N: Native>(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    guard((), || {
        // SAFETY: see above.
        let (mut out, value) = unsafe { (RdbWriter::new(io), borrow::<N>(value)) };
        N::save(value, &mut out);
    });
}

unsafe extern "C" fn aof_rewrite<N: Native>(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    guard((), || {
        // SAFETY: see above.
        let name = unsafe { ServerString::borrowed(key) };
        // SAFETY: see above.
        let (mut out, value) = unsafe { (AofWriter::new(io, &name), borrow::<N>(value)) };
        N::rewrite(value, &mut out);
    });
}

unsafe extern "C" fn aux_save<N: Native>(io: *mut raw::RedisModuleIO, _when: c_int) {
    guard((), || {
        // SAFETY: see above.
        let mut out = unsafe { RdbWriter::new(io) };
        N::save_module(&mut out);
    });
}

/// For servers that omit empty data, so that such an RDB file loads without Sluice.
unsafe extern "C" fn aux_save_if_any<N: Native>(io: *mut raw::RedisModuleIO, when: c_int) {
    if guard(true, N::has_module_data) {
        // SAFETY: see above.
        unsafe { aux_save::<N>(io, when) };
    }
}

unsafe extern "C" fn aux_load<N: Native>(
    io: *mut raw::RedisModuleIO,
    encoding: c_int,
    _when: c_int,
) -> c_int {
    let loaded = guard(false, || {
        // SAFETY: see above.
        let mut input = unsafe { RdbReader::new(io) };
        is_known::<N>(encoding) && N::load_module(&mut input, encoding)
    });
    let status = if loaded {
        raw::REDISMODULE_OK
    } else {
        raw::REDISMODULE_ERR
    };
    status as c_int
}

unsafe extern "C" fn digest<N: Native>(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard((), || {
        // SAFETY: see above.
        let (mut digest, value) = unsafe { (Digest::new(md), borrow::<N>(value)) };
        N::digest(value, &mut digest);
    });
}

unsafe extern "C" fn free<N: Native>(value: *mut c_void) {
    // Perhaps on a background thread: then nothing here may use `MainThread`.
    guard((), || {
        let is_main = main_thread::is_running();
        if N::FOLLOWS_FREES && is_main {
            // SAFETY: see above.
            N::freed(unsafe { borrow::<N>(value) });
        }
        if is_main && open_value::keep_removed(value.addr()) {
            // A listener to keyspace events removed the key in the middle of a command, which may have a reference to the value.
            return N::native().count_freed();
        }
        // SAFETY: see above; the server forgets the value.
        unsafe { N::native().take_back(value) };
    });
}

unsafe extern "C" fn mem_usage<N: Native>(
    _ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _sample: usize,
) -> usize {
    guard(0, || {
        // SAFETY: see above.
        value_usage::<N>(unsafe { borrow::<N>(value) })
    })
}

unsafe extern "C" fn free_effort<N: Native>(
    _ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
) -> usize {
    guard(1, || {
        if open_value::is_open_at(value.addr()) {
            return 1; // `free` is to run on this thread, which knows that
        }
        // SAFETY: see above.
        N::free_effort(unsafe { borrow::<N>(value) }).max(1)
    })
}

unsafe extern "C" fn unlink<N: Native>(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    native_type::count_change();
    if DELETING.load(Ordering::Relaxed) {
        return;
    }
    guard((), || {
        open_value::leaves_key(value.addr());
        // SAFETY: see above; the key's name lives through the call.
        let (db, key, value) = unsafe {
            (
                api!(RedisModule_GetDbIdFromOptCtx(ctx)),
                bytes_of(api!(RedisModule_GetKeyNameFromOptCtx(ctx))),
                borrow::<N>(value),
            )
        };
        N::unlinked(value, db, key);
    });
}

unsafe extern "C" fn copy<N: Native>(
    _ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
) -> *mut c_void {
    guard(ptr::null_mut(), || {
        // SAFETY: see above.
        match N::copy(unsafe { borrow::<N>(value) }) {
            Some(copy) => N::native().to_raw(Box::new(copy)).cast(),
            None => ptr::null_mut(),
        }
    })
}

unsafe extern "C" fn defrag<N: Native>(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    const {
        assert!(
            align_of::<N::Value>() <= GUARANTEED_ALIGN,
            "a moved value stays aligned"
        );
    }
    guard(0, || {
        let mut relocate = Relocate {
            ctx,
            call: PhantomData,
        };
        // SAFETY: see above; a value is one block, which the server moves byte by byte and frees.
        unsafe {
            let mut from: c_ulong = 0; // stays so where the server keeps no cursor
            api!(RedisModule_DefragCursorGet(ctx, &mut from));
            if from == 0 {
                let moved = relocate.block(*value);
                if !moved.is_null() {
                    *value = moved;
                }
            }
            let value = &mut *(*value).cast::<N::Value>();
            match N::defrag(value, &mut relocate, from as usize) {
                Some(next) => {
                    api!(RedisModule_DefragCursorSet(ctx, next as c_ulong));
                    1
                }
                None => 0,
            }
        }
    })
}

/// Moves memory blocks for active defragmentation.
pub struct Relocate<'a> {
    ctx: *mut raw::RedisModuleDefragCtx,
    call: PhantomData<&'a ()>,
}

impl Relocate<'_> {
    /// Whether the time of the running callback is over.
    pub fn should_stop(&self) -> bool {
        // SAFETY: the context is that of the running callback.
        unsafe { api!(RedisModule_DefragShouldStop(self.ctx)) != 0 }
    }

    /// Moves a byte string.
    pub fn bytes(&mut self, bytes: &mut Box<[u8]>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let old = Box::into_raw(std::mem::take(bytes)).cast::<u8>();
        // SAFETY: a boxed slice is one block of `length` bytes. Where the server moved it, it has
        // copied the bytes and freed the old block.
        unsafe {
            let moved = self.block(old.cast()).cast::<u8>();
            let at = if moved.is_null() { old } else { moved };
            *bytes = Box::from_raw(ptr::slice_from_raw_parts_mut(at, length));
        }
    }

    /// Moves the elements of a vector.
    pub fn vec<T: Copy>(&mut self, vec: &mut Vec<T>) {
        const {
            assert!(
                align_of::<T>() <= GUARANTEED_ALIGN,
                "moved elements stay aligned"
            );
        }
        if size_of::<T>() == 0 || vec.capacity() == 0 {
            return;
        }
        let mut old = std::mem::ManuallyDrop::new(std::mem::take(vec));
        let (start, length, capacity) = (old.as_mut_ptr(), old.len(), old.capacity());
        // SAFETY: a vector is one block of `capacity` elements. Where the server moved it, it has copied the bytes and freed
        // the old block.
        unsafe {
            let moved = self.block(start.cast()).cast::<T>();
            let at = if moved.is_null() { start } else { moved };
            *vec = Vec::from_raw_parts(at, length, capacity);
        }
    }

    /// Moves one block; null if it stays where it is.
    ///
    /// # Safety
    /// `block` is one whole block of the server's allocator that nothing else points into.
    pub(in crate::server) unsafe fn block(&mut self, block: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's promise; the context is that of the running callback.
        unsafe { api!(RedisModule_DefragAlloc(self.ctx, block)) }
    }
}
