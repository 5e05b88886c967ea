//! Sluice: locks, semaphores and more as native commands of Redis and Valkey.
//!
//! This file is the manifest: the families, each with its commands, data types and load options.
//! A command's way is always the same: bytes, [request], a pure step of a state machine, its
//! outcome, then [reply](mod@reply), replication and events; see `docs/design.md`.

pub mod bloom;
pub mod cache;
pub mod codec;
pub mod cuckoo;
pub mod deadlines;
pub mod error;
pub mod filter;
pub mod lock;
pub mod memory;
pub mod options;
pub mod rate;
pub mod reply;
pub mod request;
pub mod server;
pub mod stock;
pub mod usage;
pub mod waiting;

use server::base::clock::Now;
use server::base::slice::Slice;
use server::handles::context::Ctx;
use server::handles::string::ServerString;
use server::services::cluster::SlotParcel;
use server::services::command::Command;
use server::services::config::Setting;
use server::services::deferred::{KeyChange, ServerEvent};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use waiting::InSlots;

/// A family of commands: everything that the server has to know of it.
pub struct Family {
    /// Its name, in the load option `families` and as its section in `INFO`.
    pub name: &'static str,
    /// Its commands.
    pub commands: &'static [&'static [Command]],
    /// Categories of ACLs that it brings, where the server lets modules add some.
    pub acl_categories: &'static [&'static CStr],
    /// Functions that register its data types.
    pub types: &'static [fn(Ctx<'_>) -> bool],
    /// Its load options.
    pub settings: &'static [&'static dyn Setting],
    /// Something happened to a key of the selected database, perhaps one of the family's. Called in
    /// the middle of that: nothing may be changed, only noted.
    pub key_changed: fn(Ctx<'_>, &ServerString<'_>, KeyChange),
    /// What a key of the selected database held went, of whatever type: the key is gone, or another value has come to
    /// it. Called as above; of keys that expire or are evicted only if some family [watches](server::hooks::deletions) all that goes.
    pub key_removed: fn(Ctx<'_>, &ServerString<'_>),
    /// Somebody is about to delete a key of some database, which need not be there; `None`: any keys. Called as above, and under the same
    /// condition.
    pub key_deleting: fn(Option<&[u8]>),
    /// Must it hear of deletions at this moment?
    pub watches_deletions: fn() -> bool,
    /// The databases were flushed, loaded or swapped. Called at once, as above.
    pub dataset_changed: fn(&ServerEvent),
    /// Must it know when this client disconnects?
    pub follows_client: fn(u64) -> bool,
    /// Deals with something that happened, when that is safe.
    pub on_event: fn(Ctx<'_>, Now, &ServerEvent),
    /// Does what is due, and says when something is next due (Unix ms). Writes may be paused; see
    /// [`Ctx::may_act`].
    pub due: fn(Ctx<'_>, Now) -> Option<u64>,
    /// Goes on with work that is done in slices, until the slice is over or nothing is left that can be done now. Returns
    /// whether something is left. Asked for with [`server::services::deferred::ask_for_slices`].
    pub go_on: fn(Ctx<'_>, &mut Slice) -> bool,
    /// Called about ten times a second.
    pub cron: fn(Ctx<'_>),
    /// What a node must learn from this one before it serves keys of a hash slot that moves there at once, if anything.
    pub slot_parcel: fn() -> Option<SlotParcel>,
    /// How its waiting clients are looked after in a cluster.
    pub waiting: Option<InSlots>,
    /// The fields of its section in `INFO`, whose names begin with the family's (of filters with `filter`): many clients
    /// put all sections into one map. `None` if they cannot be had at this moment.
    pub info: fn() -> Option<Vec<(&'static str, u64)>>,
}

impl Family {
    /// One that nothing outside of its commands is of interest to; it has no commands either, yet.
    pub const PLAIN: Self = Self {
        name: "",
        commands: &[],
        acl_categories: &[],
        types: &[],
        settings: &[],
        key_changed: |_, _, _| {},
        key_removed: |_, _| {},
        key_deleting: |_| {},
        watches_deletions: || false,
        dataset_changed: |_| {},
        follows_client: |_| false,
        on_event: |_, _, _| {},
        due: |_, _| None,
        go_on: |_, _| false,
        cron: |_| {},
        slot_parcel: || None,
        waiting: None,
        info: || None,
    };
}

/// All families.
pub static FAMILIES: &[Family] = &[
    lock::FAMILY,
    stock::FAMILY,
    bloom::FAMILY,
    cache::FAMILY,
    rate::FAMILY,
];

/// One bit for each family that is loaded.
static ENABLED: AtomicU32 = AtomicU32::new(u32::MAX);

/// The families that are loaded.
pub fn enabled_families() -> impl Iterator<Item = &'static Family> {
    let enabled = ENABLED.load(Ordering::Relaxed);
    let bits = FAMILIES.iter().enumerate();
    bits.filter_map(move |(bit, family)| (enabled & 1 << bit != 0).then_some(family))
}

/// Loads all families, but for those that are [left out](leave_family_out).
pub fn enable_all_families() {
    ENABLED.store(u32::MAX, Ordering::Relaxed);
}

/// Leaves a family out of those that are loaded.
pub fn leave_family_out(name: &str) {
    if let Some(bit) = FAMILIES.iter().position(|family| family.name == name) {
        ENABLED.fetch_and(!(1 << bit), Ordering::Relaxed);
    }
}

/// Loads only the families of a comma-separated list.
pub fn enable_families(list: &str) -> Result<(), String> {
    let mut enabled = 0;
    for name in list.split(',').map(str::trim) {
        let bit = FAMILIES
            .iter()
            .position(|family| family.name.eq_ignore_ascii_case(name));
        let known = || {
            FAMILIES
                .iter()
                .map(|family| family.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let bit = bit.ok_or_else(|| {
            format!(
                "families: {name:?} is unknown; the families are {}",
                known()
            )
        })?;
        enabled |= 1 << bit;
    }
    ENABLED.store(enabled, Ordering::Relaxed);
    Ok(())
}
