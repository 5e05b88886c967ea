//! Sluice: locks, semaphores and more as native commands of Redis and Valkey.
//!
//! This file lists the families, each with its commands, data types and load options. Every command passes the same stages: bytes,
//! [request], a pure step of a state machine, its outcome, then [reply](mod@reply), replication and events. `docs/design.md`
//! describes them.

pub mod bloom;
pub mod cache;
pub mod codec;
pub mod cuckoo;
pub mod deadlines;
pub mod delay;
pub mod error;
pub mod fence;
pub mod filter;
pub mod general;
pub mod histogram;
pub mod key_queues;
pub mod linear_hash;
pub mod lock;
pub mod memory;
pub mod once;
pub mod options;
pub mod queue_service;
pub mod rate;
pub mod reply;
pub mod request;
pub mod server;
pub mod stock;
pub mod usage;
pub mod waiting;

use general::HotKeys;
use general::memory::FamilyMemory;
use histogram::Histogram;
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

/// A family of commands, as the server layer sees it.
pub struct Family {
    /// The name, in the load option `families` and as the section in `INFO`.
    pub name: &'static str,
    /// The commands.
    pub commands: &'static [&'static [Command]],
    /// The ACL categories to add, on servers where modules can add categories.
    pub acl_categories: &'static [&'static CStr],
    /// The functions that register the data types.
    pub types: &'static [fn(Ctx<'_>) -> bool],
    /// The load options.
    pub settings: &'static [&'static dyn Setting],
    /// A key of the selected database changed, perhaps one of the family. Called during the change: the function must not change
    /// the dataset, only note the event.
    pub key_changed: fn(Ctx<'_>, &ServerString<'_>, KeyChange),
    /// A value of any type left a key of the selected database: the key was removed, or has another value. Called as above. For
    /// keys that expire or are evicted, called only while a family [watches removals](server::hooks::deletions).
    pub key_removed: fn(Ctx<'_>, &ServerString<'_>),
    /// A command is about to delete a key of any database, which may not exist; `None`: any keys. Called as above, and only while
    /// a family watches removals.
    pub key_deleting: fn(Option<&[u8]>),
    /// Whether the family needs reports of removals now.
    pub watches_deletions: fn() -> bool,
    /// Databases were flushed, loaded or swapped, or hash slots moved. Called at once, as above.
    pub dataset_changed: fn(&ServerEvent),
    /// Whether the family needs an event when this client disconnects.
    pub follows_client: fn(u64) -> bool,
    /// Handles a deferred event. The function may change the dataset.
    pub on_event: fn(Ctx<'_>, Now, &ServerEvent),
    /// Handles deadlines that are due, and returns the next deadline (Unix ms). Writes may be paused; see [`Ctx::may_act`].
    pub due: fn(Ctx<'_>, Now) -> Option<u64>,
    /// Continues work in slices until the slice is over or no work is possible now. Returns whether work remains. Requested by
    /// [`server::services::deferred::ask_for_slices`].
    pub go_on: fn(Ctx<'_>, &mut Slice) -> bool,
    /// Called about ten times a second.
    pub cron: fn(Ctx<'_>),
    /// What a node must learn from this one before it serves keys of a hash slot that moves there at once, if anything.
    pub slot_parcel: fn() -> Option<SlotParcel>,
    /// The functions for waiting clients in a cluster, if commands of the family block.
    pub waiting: Option<InSlots>,
    /// For a family that acts on keys by itself: a command `name key argument` that writes the key. That of the cache reads the key,
    /// because its waiting clients sent a reading command. In a cluster, the module asks the server with it whether a command on a
    /// key is allowed; no `rename-command` gives it another name. With an empty argument
    /// the command must be refused before it opens the key, because Redis 7.0 cannot check a command without running it.
    pub slot_check_command: Option<&'static CStr>,
    /// The fields of the section in `INFO`. Their names begin with the name of the family (of filters with `filter`), because many
    /// clients put all sections into one map. `None`: the state of the family is in use.
    pub info: fn() -> Option<Vec<(&'static str, u64)>>,
    /// The histograms in the section `times` of `INFO`. Their names begin with `times` and the name of the family.
    pub histograms: &'static [(&'static str, &'static Histogram)],
    /// The data types of the family, if its own fields do not contain the memory of its keys.
    pub memory: Option<FamilyMemory>,
    /// The most contended keys, for `SLUICE.HOT`.
    pub hot: Option<&'static HotKeys>,
}

impl Family {
    /// A family without commands that ignores all events: the default values of the fields.
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
        slot_check_command: None,
        info: || None,
        histograms: &[],
        memory: None,
        hot: None,
    };
}

/// All families.
pub static FAMILIES: &[Family] = &[
    lock::FAMILY,
    stock::FAMILY,
    bloom::FAMILY,
    cache::FAMILY,
    rate::FAMILY,
    once::FAMILY,
    delay::FAMILY,
];

/// One bit for each family that is loaded.
static ENABLED: AtomicU32 = AtomicU32::new(u32::MAX);

/// The families that are loaded.
pub fn enabled_families() -> impl Iterator<Item = &'static Family> {
    let enabled = ENABLED.load(Ordering::Relaxed);
    let bits = FAMILIES.iter().enumerate();
    bits.filter_map(move |(bit, family)| (enabled & 1 << bit != 0).then_some(family))
}

/// Enables all families.
pub fn enable_all_families() {
    ENABLED.store(u32::MAX, Ordering::Relaxed);
}

/// Disables a family.
pub fn leave_family_out(name: &str) {
    if let Some(bit) = FAMILIES.iter().position(|family| family.name == name) {
        ENABLED.fetch_and(!(1 << bit), Ordering::Relaxed);
    }
}

/// Enables only the families of a comma-separated list. The error is a line for the log.
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

#[cfg(test)]
mod tests {
    use super::FAMILIES;

    #[test]
    fn the_server_can_be_asked_for_slots_whichever_family_has_waiting_clients() {
        for family in FAMILIES.iter().filter(|family| family.waiting.is_some()) {
            assert!(family.slot_check_command.is_some(), "{}", family.name);
        }
    }
}
