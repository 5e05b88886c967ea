//! The guard that every entry from the server passes: a panic that reached the server would end its process.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; a panic in it is logged (by the hook of [`super::log`]) and becomes `otherwise`.
pub(in crate::server) fn guard<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}
