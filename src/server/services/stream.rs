//! Streams. The master chooses the ids of entries, and replicas use the same ids.

use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::OpenKey;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster::{is_moving, share_slot};
use crate::server::services::{commit, deferred};
use redis_module::raw;
use std::ffi::c_int;
use std::{io, ptr};

/// The id of a stream's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// Unix milliseconds.
    pub ms: u64,
    /// The sequence number within the millisecond.
    pub seq: u64,
}

/// The string that an oversized entry consists of, kept for the next use.
static OVERSIZED_PART: MainThread<Option<OversizedPart>> = MainThread::new();

/// A string of an oversized entry, and the number of ticks of the server's cron since its last use.
struct OversizedPart {
    string: ServerString<'static>,
    idle_ticks: u32,
}

/// An unused string is freed after so many ticks: about ten seconds.
const MAX_IDLE_TICKS: u32 = 100;

/// Frees the string of an oversized entry when it was not used for about ten seconds. Called by the server's cron.
pub fn free_unused() {
    let mut part = OVERSIZED_PART.get();
    if let Some(unused) = part.as_mut() {
        unused.idle_ticks += 1;
        if unused.idle_ticks > MAX_IDLE_TICKS {
            *part = None;
        }
    }
}

/// A stream that is open for appending, or an empty key that becomes one.
pub struct Stream<'k> {
    ctx: Ctx<'k>,
    /// `None`: [suspended](Self::suspend).
    key: Option<OpenKey<'k>>,
    name: ServerString<'static>,
    /// Whether the key was empty when it was opened.
    is_new: bool,
}

impl<'k> Stream<'k> {
    /// Opens a key; an error if it holds another type.
    fn open(ctx: Ctx<'k>, name: ServerString<'static>) -> Result<Self, Error> {
        let open = || Self::open_key(ctx, &name);
        let mut key = open();
        if key.is_empty() {
            // If this call removed an expired key, a listener to that event may have written the key again. The handle still shows an
            // empty key. If the module created the stream with this handle, the server would abort.
            drop(key);
            key = open();
        }
        let is_new = match key.kind() {
            raw::REDISMODULE_KEYTYPE_EMPTY => true,
            raw::REDISMODULE_KEYTYPE_STREAM => false,
            _ => return Err(Error::WrongType),
        };
        Ok(Self {
            ctx,
            key: Some(key),
            name,
            is_new,
        })
    }

    fn open_key(ctx: Ctx<'k>, name: &ServerString<'_>) -> OpenKey<'k> {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        // SAFETY: context and name are alive. The handle keeps its own reference to the name, and
        // is closed before the context goes.
        unsafe { OpenKey::open(ctx.raw(), name.raw(), mode) }
    }

    /// Closes the key until the next use. To be called before another key is created: a listener to the event `new` can delete the
    /// stream, and the handle would still refer to it.
    pub fn suspend(&mut self) {
        self.key = None;
    }

    /// The open key. If it was suspended, it may hold anything now.
    #[inline(always)]
    fn key(&mut self) -> &mut OpenKey<'k> {
        self.key
            .get_or_insert_with(|| Self::open_key(self.ctx, &self.name))
    }

    /// Opens the stream that belongs to the value at the key `owner`. `is_following`: this server repeats a change of a master or an AOF,
    /// so the hash slots do not matter.
    ///
    /// Errors: `WrongType` if the key holds another type, or is `owner`; `CrossSlot` if the value was restored to another hash slot
    /// than that of its stream; `TryAgain` if the key is empty and its hash slot moves.
    pub fn open_of(
        ctx: Ctx<'k>,
        owner: &ServerString<'_>,
        name: ServerString<'static>,
        is_following: bool,
    ) -> Result<Self, Error> {
        if *name.bytes() == *owner.bytes() {
            return Err(Error::WrongType); // the value was renamed to its own stream, or is about to be created there
        }
        if !is_following && !share_slot(ctx, owner, &name) {
            return Err(Error::CrossSlot);
        }
        let stream = Self::open(ctx, name)?;
        // A stream that is not here may be on the node that the hash slot comes from or goes to: if the module created a second
        // stream, the two could not be merged after the move. The server does not check the stream, because commands do not name it.
        if !is_following && stream.is_new && is_moving(ctx, owner) {
            return Err(Error::TryAgain);
        }
        Ok(stream)
    }

    /// Appends an entry and returns its id. `fields`: names and values in turn, at most 16. `id`: the id on the master, or `None` for
    /// the next id. Error: the stream has no id left, or a larger last id.
    #[inline(always)] // stocks append a constant number of fields, so their loop is unrolled
    pub fn append(
        &mut self,
        fields: &[&ServerString<'_>],
        id: Option<EntryId>,
    ) -> Result<EntryId, Error> {
        let mut inline = [ptr::null_mut(); Self::INLINE_STRINGS];
        let mut many = Vec::new();
        let strings = match inline.get_mut(..fields.len()) {
            Some(strings) => strings,
            None => {
                many.resize(fields.len(), ptr::null_mut());
                &mut many
            }
        };
        for (string, name) in strings.iter_mut().zip(fields) {
            *string = name.raw();
        }
        let pairs = fields.len() / 2;
        assert!(fields.len() == pairs * 2, "fields and values by turns");
        let mut raw_id = raw::RedisModuleStreamID {
            ms: id.map_or(0, |id| id.ms),
            seq: id.map_or(0, |id| id.seq),
        };
        let flags = match id {
            Some(_) => 0,
            None => raw::REDISMODULE_STREAM_ADD_AUTOID,
        };
        // SAFETY: the handle is open for writing; the strings are `pairs` pairs and live through
        // the call.
        let status = unsafe {
            api!(RedisModule_StreamAdd(
                self.key().raw,
                flags as c_int,
                &mut raw_id,
                strings.as_mut_ptr(),
                pairs as i64
            ))
        };
        if status != raw::REDISMODULE_OK as c_int {
            return Err(Error::StreamFull);
        }
        deferred::need_round(); // for clients that wait for an entry
        let (ms, seq) = (raw_id.ms, raw_id.seq);
        Ok(EntryId { ms, seq })
    }

    /// Whether the stream has ids for this number of further entries. Changes nothing.
    ///
    /// The API does not return the last id of a stream. But the server compares the id of a new entry with the last id before it
    /// refuses an entry for its size, and `errno` has the reason (`ERANGE` for the size). So the function offers an oversized
    /// entry with the largest id that leaves enough ids.
    pub fn has_ids_for(&mut self, count: u64) -> bool {
        if self.is_new || count == 0 {
            return true;
        }
        let mut part = OVERSIZED_PART.get();
        let part = part.get_or_insert_with(|| OversizedPart {
            string: ServerString::new(&vec![0; Self::OVERSIZED_PART_BYTES]),
            idle_ticks: 0,
        });
        part.idle_ticks = 0;
        let mut strings = [part.string.raw(); Self::OVERSIZED_PARTS];
        let mut id = raw::RedisModuleStreamID {
            ms: u64::MAX,
            seq: u64::MAX - (count - 1),
        };
        // SAFETY: the handle is open for writing; the strings are pairs and live through the call.
        let status = unsafe {
            api!(RedisModule_StreamAdd(
                self.key().raw,
                0,
                &mut id,
                strings.as_mut_ptr(),
                (Self::OVERSIZED_PARTS / 2) as i64
            ))
        };
        assert_ne!(
            status,
            raw::REDISMODULE_OK as c_int,
            "an entry has no limit"
        );
        io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE)
    }

    /// An oversized entry has more than 1 GiB, so every server refuses it. All parts are the same string, and the server only
    /// adds up the lengths. A smaller number of parts is faster: 2050 parts take 3.8 us, 514 parts take 1 us.
    const OVERSIZED_PARTS: usize = 514;
    const OVERSIZED_PART_BYTES: usize = 2 * 1024 * 1024;

    /// An entry with at most this many names and values together needs no allocation.
    const INLINE_STRINGS: usize = 16;

    /// Deletes an entry that was just appended. Deletes the key, too, if the stream was new.
    pub fn retract(mut self, id: EntryId) {
        let mut id = raw::RedisModuleStreamID {
            ms: id.ms,
            seq: id.seq,
        };
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_StreamDelete(self.key().raw, &mut id)) };
        if self.is_new && self.key().length() == 0 {
            self.key().delete();
        }
    }

    /// Drops the oldest entries beyond approximately `length`, in whole blocks, as `MAXLEN ~` does. Returns their number, so that
    /// replicas drop the same entries.
    pub fn trim_to_about(&mut self, length: u64) -> u64 {
        if self.key().length() as u64 <= length {
            return 0;
        }
        self.trim(length, raw::REDISMODULE_STREAM_TRIM_APPROX)
    }

    /// Drops the `count` oldest entries.
    pub fn drop_oldest(&mut self, count: u64) {
        let left = (self.key().length() as u64).saturating_sub(count);
        self.trim(left, 0);
    }

    fn trim(&mut self, length: u64, flags: u32) -> u64 {
        // SAFETY: the handle is open for writing.
        let dropped = unsafe {
            api!(RedisModule_StreamTrimByLength(
                self.key().raw,
                flags as c_int,
                length as i64
            ))
        };
        u64::try_from(dropped).unwrap_or(0)
    }

    /// Closes the stream, and signals the change to clients that block on it, watch it or track it. Returns its name.
    pub fn announce(self) -> ServerString<'static> {
        let Self { ctx, key, name, .. } = self;
        drop(key); // wakes the clients that wait in XREAD and XREADGROUP
        commit::stream_has_grown(ctx, &name);
        name
    }
}
