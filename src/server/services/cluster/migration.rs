//! Atomic slot migration: what servers report of it, and the commands that the families send along with a hash slot.

use super::ownership::{forget_nodes, slots_have_changed};
use crate::server::base::api;
use crate::server::base::guard::guard;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::log;
use crate::server::handles::server_info::Version;
use crate::server::handles::string::{ServerString, slice_of};
use crate::server::services::commit::{Commit, Replicate};
use crate::server::services::deferred::ServerEvent;
use crate::server::services::slots::{self, Ranges};
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// A command and its payload, `command key payload`, that a node must run before it serves keys of a hash slot of this node.
pub type SlotParcel = (&'static CStr, Vec<u8>);

/// For each atomic migration from this node that goes on, one of its slots. Empty where the server lets
/// [the copy begin](send_before_keys) with what the families give along.
static EXPORTS: MainThread<HashMap<Vec<u8>, u16>> = MainThread::new();

/// Sends to the nodes that receive hash slots of this node what the families give along. To be called when the server has just
/// begun to copy the slots. The AOF and the replicas receive it, too. Returns false if no node waits for it: on Redis, the
/// copy itself begins with it, see `send_before_keys`.
pub fn send_to_importers(ctx: Ctx<'_>) -> bool {
    let slots: Vec<u16> = EXPORTS.get().values().copied().collect();
    for (command, payload) in slot_parcels() {
        for slot in &slots {
            // A server passes on only commands that have a key in the slot. The key is not opened, and need not exist.
            let name = ServerString::new(&slots::key_in(*slot));
            let commit = Commit {
                replicate: Replicate::Effect(command, &payload),
                ..Commit::default()
            };
            commit.carry_out_without_key(ctx, &name);
        }
    }
    !slots.is_empty()
}

/// What the families give along with the keys of a slot.
fn slot_parcels() -> Vec<SlotParcel> {
    let families = crate::enabled_families();
    families
        .filter_map(|family| (family.slot_parcel)())
        .collect()
}

/// `RedisModule_ClusterPropagateForSlotMigration` of Redis since 8.4: puts a command in front of the copy of a slot.
type SendBeforeKeys =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *const c_char, *const c_char, ...) -> c_int;

fn send_before_keys_function() -> Option<SendBeforeKeys> {
    static FUNCTION: OnceLock<Option<SendBeforeKeys>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let address = api::function(c"RedisModule_ClusterPropagateForSlotMigration")?;
        // SAFETY: redismodule.h of Redis 8.4: `int RedisModule_ClusterPropagateForSlotMigration(RedisModuleCtx *ctx, const
        // char *cmdname, const char *fmt, ...)`.
        Some(unsafe {
            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, SendBeforeKeys>(address)
        })
    })
}

/// Puts what the families give along in front of the copy of these slots. Redis calls this in the child that writes the copy,
/// so it has the state at the fork. All later changes follow the copy.
fn send_before_keys(ctx: Ctx<'_>, ranges: &Ranges) {
    let (Some(send), Some((first, _))) = (send_before_keys_function(), ranges.first()) else {
        return;
    };
    let name = ServerString::new(&slots::key_in(*first));
    for (command, payload) in slot_parcels() {
        // SAFETY: "sb" is a key's name and a buffer with its length; all live through the call.
        let status = unsafe {
            send(
                ctx.raw(),
                command.as_ptr(),
                c"sb".as_ptr(),
                name.raw(),
                payload.as_ptr(),
                payload.len(),
            )
        };
        if status != raw::REDISMODULE_OK as c_int {
            let line = "cannot send a command in front of the copy of a hash slot";
            log::warn_in(ctx, line);
        }
    }
}

/// The role of this server changes, and with it who serves what.
pub(in crate::server) fn role_changes() {
    forget_nodes();
    EXPORTS.get().clear();
}

// What servers tell of atomic slot migration. The bindings know neither the events nor their data.

/// A slot range of Redis: `RedisModuleSlotRange` in redismodule.h of 8.4.
#[repr(C)]
struct RedisRange {
    start: u16,
    end: u16,
}

/// `RedisModuleSlotRangeArray` in redismodule.h of Redis 8.4, in front of its ranges.
#[repr(C)]
struct RedisRanges {
    count: i32,
    ranges: [RedisRange; 0],
}

/// `RedisModuleClusterSlotMigrationInfoV1` in redismodule.h of Redis 8.4.
#[repr(C)]
struct RedisMigration {
    version: u64,
    source: [u8; NODE_ID + 1],
    destination: [u8; NODE_ID + 1],
    task: *const c_char,
    slots: *const RedisRanges,
}

/// `RedisModuleClusterSlotMigrationTrimInfoV1` in redismodule.h of Redis 8.4.
#[repr(C)]
struct RedisTrim {
    version: u64,
    slots: *const RedisRanges,
}

/// A slot range of Valkey: `ValkeyModuleSlotRange` in valkeymodule.h of 9.0.
#[repr(C)]
struct ValkeyRange {
    start: c_int,
    end: c_int,
}

/// `ValkeyModuleAtomicSlotMigrationInfoV1` in valkeymodule.h of Valkey 9.0.
#[repr(C)]
struct ValkeyMigration {
    version: u64,
    job: [u8; NODE_ID + 1],
    ranges: *const ValkeyRange,
    count: u32,
}

const NODE_ID: usize = raw::REDISMODULE_NODE_ID_LEN as usize;

/// `REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION`.
const REDIS_MIGRATION: u64 = 18;

/// `REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION_TRIM`.
const REDIS_TRIM: u64 = 19;

/// `VALKEYMODULE_EVENT_ATOMIC_SLOT_MIGRATION`.
const VALKEY_MIGRATION: u64 = 19;

/// Beside the API's own: `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION`. Without it Valkey refuses
/// `CLUSTER MIGRATESLOTS`; Redis asks for nothing.
pub(in crate::server) fn module_options() -> c_int {
    if Version::running().is_valkey() {
        1 << 5
    } else {
        0
    }
}

/// Subscribes to what the server tells of atomic slot migration, if it can do that.
pub(in crate::server) fn subscribe(ctx: Ctx<'_>) {
    if !ctx.is_cluster() {
        return;
    }
    let subscribe = |id, callback| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the callbacks live as long as the module and know version 1 of each event's data. Servers that have no
        // such event refuse.
        unsafe {
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                callback
            ))
        }
    };
    // Valkey has another event under the same number.
    if Version::running().is_valkey() {
        subscribe(VALKEY_MIGRATION, Some(on_valkey_migration as _));
    } else {
        subscribe(REDIS_MIGRATION, Some(on_redis_migration as _));
        subscribe(REDIS_TRIM, Some(on_redis_trim as _));
    }
}

/// A step of an atomic slot migration.
enum MigrationEvent {
    ExportStarts,
    ExportFails,
    /// The slots belong to another node now.
    ExportEnds,
    /// The slots belong to this node now.
    ImportEnds,
}

fn migration(event: MigrationEvent, job: &[u8], ranges: Ranges) {
    match event {
        MigrationEvent::ExportStarts => {
            if let Some((first, _)) = ranges.first() {
                EXPORTS.get().insert(job.to_vec(), *first);
            }
            return;
        }
        MigrationEvent::ExportFails => {
            EXPORTS.get().remove(job);
            return;
        }
        MigrationEvent::ExportEnds => drop(EXPORTS.get().remove(job)),
        MigrationEvent::ImportEnds => {}
    }
    forget_nodes();
    slots_have_changed(ServerEvent::SlotsMoved, ranges);
}

// SAFETY (for all callbacks below): the server calls them with data of the type that belongs to the event.

/// # Safety
/// The pointer is null, or to ranges of the server.
unsafe fn redis_ranges(ranges: *const RedisRanges) -> Ranges {
    // SAFETY: the caller's promise; the ranges stand behind their count.
    unsafe {
        let Some(count) = ranges
            .as_ref()
            .and_then(|all| usize::try_from(all.count).ok())
        else {
            return Ranges::default();
        };
        let first = (&raw const (*ranges).ranges).cast::<RedisRange>();
        let ranges = slice_of(first, count);
        ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect()
    }
}

unsafe extern "C" fn on_redis_migration(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        let can_send = send_before_keys_function().is_some();
        let event = match subevent {
            2 => MigrationEvent::ImportEnds, // ..._IMPORT_COMPLETED
            3 if !can_send => MigrationEvent::ExportStarts, // ..._MIGRATE_STARTED
            4 => MigrationEvent::ExportFails, // ..._MIGRATE_FAILED
            5 => MigrationEvent::ExportEnds, // ..._MIGRATE_COMPLETED
            6 => {
                // SAFETY: see above. This is ..._MIGRATE_MODULE_PROPAGATE.
                let (ctx, ranges) = unsafe {
                    let info = &*data.cast::<RedisMigration>();
                    (Ctx::new(ctx), redis_ranges(info.slots))
                };
                send_before_keys(ctx, &ranges);
                return;
            }
            _ => return, // nothing follows from an import that starts or fails
        };
        // SAFETY: see above.
        let (job, ranges) = unsafe {
            let info = &*data.cast::<RedisMigration>();
            (
                CStr::from_ptr(info.task).to_bytes(),
                redis_ranges(info.slots),
            )
        };
        migration(event, job, ranges);
    });
}

unsafe extern "C" fn on_redis_trim(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        // Whether keys are dropped in the background or one by one: they are nobody's any more.
        // SAFETY: see above.
        let ranges = unsafe { redis_ranges((*data.cast::<RedisTrim>()).slots) };
        slots_have_changed(ServerEvent::SlotsDropped, ranges);
    });
}

unsafe extern "C" fn on_valkey_migration(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut std::ffi::c_void,
) {
    guard((), || {
        let event = match subevent {
            1 => MigrationEvent::ExportStarts, // ..._EXPORT_STARTED
            3 => MigrationEvent::ExportFails,  // ..._EXPORT_ABORTED
            4 => MigrationEvent::ImportEnds,   // ..._IMPORT_COMPLETED
            5 => MigrationEvent::ExportEnds,   // ..._EXPORT_COMPLETED
            _ => return, // nothing follows from an import that starts or fails
        };
        // SAFETY: see above; the ranges are as many as is said, and live through the call.
        let (job, ranges) = unsafe {
            let info = &*data.cast::<ValkeyMigration>();
            let ranges = slice_of(info.ranges, info.count as usize);
            (&info.job[..NODE_ID], ranges)
        };
        let slot = |number: c_int| u16::try_from(number).unwrap_or(0);
        let ranges = ranges
            .iter()
            .map(|range| (slot(range.start), slot(range.end)));
        migration(event, job, ranges.collect());
    });
}
