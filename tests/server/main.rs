//! What concerns no family alone: how Sluice is loaded and configured (`loading.rs`), the databases of a server
//! (`databases.rs`), nonsense from clients (`bad_input.rs`, `random.rs`; `forms.rs` has the forms of all commands), keys that
//! are not there (`missing.rs`), the number of keys of a command (`numkeys.rs`), commands that another module calls
//! (`callers.rs`), also from keyspace events (`listener.rs`), Valkey's import mode (`import.rs`), files of an earlier build
//! (`upgrade.rs`), a server with nothing to do (`idle.rs`), the times in `INFO` (`times.rs`), the most contended keys
//! (`hot.rs`), the memory of the families (`usage.rs`), the files for Prometheus and Grafana (`monitoring.rs`), and panics
//! (`panics.rs`).

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod beside;
mod callers;
mod databases;
mod forms;
mod hot;
mod idle;
mod import;
mod listener;
mod loading;
mod missing;
mod monitoring;
mod numkeys;
mod others;
mod panics;
mod random;
mod renamed;
mod subscribed;
mod times;
mod upgrade;
mod usage;
