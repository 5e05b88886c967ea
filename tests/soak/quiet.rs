//! What the server needs when nobody wants anything of it.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{Raw, Server, Value};

/// Clients that went, values that are freed in the background, and forked children are gone after this, or they stay.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server looks for what it can do without ten times a second.
const PAUSE: Duration = Duration::from_millis(150);

/// What must be 0 when there is no key and no client.
const GAUGES: &[&str] = &[
    "sluice_lock_waiting",
    "sluice_lock_watchdog_holds",
    "sluice_cache_waiters_now",
    "sluice_once_waiting",
    "sluice_cache_leases_now",
    "sluice_filter_keys",
    "sluice_filter_layers",
    "sluice_filter_bytes",
];

/// What of `used_memory` belongs to clients, files and scripts, which come and go as the server likes.
const NOT_DATA: &[&str] = &[
    "mem_clients_normal",
    "mem_clients_slaves",
    "mem_aof_buffer",
    "mem_replication_backlog",
    "used_memory_scripts",
];

/// The memory of a quiet server, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// What it has taken from its allocator for anything but clients.
    pub(crate) used: i64,
    /// What it has in RAM.
    pub(crate) resident: i64,
}

/// Empties the server, and waits until it is quiet, gives nothing back any more and uses no more than `limit`, or until it
/// has had time enough for that. Panics if a gauge does not come back to 0.
#[track_caller]
pub(crate) fn come_to_rest(server: &Server, limit: i64) -> Memory {
    let mut client = Raw::connect(server);
    assert_eq!(client.call(["FLUSHALL"]), "OK");
    assert_eq!(client.call(["SCRIPT", "FLUSH"]), "OK");
    let deadline = Instant::now() + PATIENCE;
    let mut last = i64::MAX;
    loop {
        assert_eq!(client.call(["MEMORY", "PURGE"]), "OK");
        let info = Info::read(&mut client);
        let unrest = info.unrest();
        let memory = info.memory();
        if unrest.is_none() && memory.used <= limit && memory.used >= last {
            return memory;
        }
        last = memory.used;
        if Instant::now() > deadline {
            assert!(
                unrest.is_none(),
                "the server does not come to rest: {unrest:?}"
            );
            return memory;
        }
        sleep(PAUSE);
    }
}

/// The fields of `INFO everything`.
struct Info(Value);

impl Info {
    fn read(client: &mut Raw) -> Self {
        Self(client.call(["INFO", "everything"]))
    }

    fn get(&self, field: &str) -> i64 {
        let line = self
            .0
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = line.unwrap_or_else(|| panic!("INFO has no {field}"));
        value.parse().unwrap_or_else(|_| panic!("{field}: {value}"))
    }

    /// Something that is still under way.
    fn unrest(&self) -> Option<String> {
        let one_client = [("connected_clients", 1)];
        let nothing = [
            "lazyfree_pending_objects",
            "rdb_bgsave_in_progress",
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
        ];
        let nothing = nothing.iter().chain(GAUGES).map(|field| (*field, 0));
        let mut expected = one_client.into_iter().chain(nothing);
        let (field, _) = expected.find(|(field, value)| self.get(field) != *value)?;
        Some(format!("{field} is {}", self.get(field)))
    }

    fn memory(&self) -> Memory {
        let not_data: i64 = NOT_DATA.iter().map(|field| self.get(field)).sum();
        Memory {
            used: self.get("used_memory") - not_data,
            resident: self.get("used_memory_rss"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, resident) = (self.used as f64 / 1024.0, self.resident as f64 / 1024.0);
        write!(out, "{used:>10.1}{resident:>12.0}")
    }
}
