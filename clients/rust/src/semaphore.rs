//! Semaphores: `SEM.*`. The options of [`acquire`] are those of [`lock::acquire`](crate::lock::acquire).

use std::time::Duration;

use redis::ToRedisArgs;

use crate::lock::Acquire;
use crate::request::{Info, Request};

/// Asks for a permit of a semaphore that has `limit` permits. The reply is the fencing token; `None` if no permit is free.
pub fn acquire(key: impl ToRedisArgs, owner: &str, limit: u64) -> Request<Option<i64>, Acquire> {
    Request::new("SEM.ACQUIRE")
        .arg(key)
        .arg(owner)
        .arg("LIMIT")
        .arg(limit)
}

/// The same for several permits.
pub fn acquire_permits(
    key: impl ToRedisArgs,
    owner: &str,
    limit: u64,
    permits: u64,
) -> Request<Option<i64>, Acquire> {
    acquire(key, owner, limit).arg("PERMITS").arg(permits)
}

/// Asks for permits of several semaphores, all or none. The items are the keys, each with the number of its permits in all. The reply
/// is their fencing tokens. In a cluster the keys are in one slot.
pub fn acquire_all<K: ToRedisArgs>(
    items: &[(K, u64)],
    owner: &str,
    permits: u64,
) -> Request<Option<Vec<i64>>, Acquire> {
    let request = Request::new("SEM.MACQUIRE").arg(items.len());
    let request = items
        .iter()
        .fold(request, |request, (key, limit)| request.arg(key).arg(limit));
    request.arg(owner).arg("PERMITS").arg(permits)
}

/// Gives permits back. The reply is the number of permits that the owner still has; `None` if it had none.
pub fn release(key: impl ToRedisArgs, owner: &str, permits: u64) -> Request<Option<i64>> {
    let request = Request::new("SEM.RELEASE").arg(key).arg(owner);
    request.arg("PERMITS").arg(permits)
}

/// Gives all permits of the owner back.
pub fn release_all(key: impl ToRedisArgs, owner: &str) -> Request<Option<i64>> {
    Request::new("SEM.RELEASE").arg(key).arg(owner).arg("ALL")
}

/// Gives all permits of the owner at several semaphores back, in one step. The reply has `Some(0)` for each semaphore at which it had
/// permits.
pub fn release_each<K: ToRedisArgs>(keys: &[K], owner: &str) -> Request<Vec<Option<i64>>> {
    let request = Request::new("SEM.MRELEASE").arg(keys.len());
    let request = keys.iter().fold(request, Request::arg);
    request.arg(owner).arg("ALL")
}

/// Removes a queued request. The reply is false if no such request is queued.
pub fn cancel(key: impl ToRedisArgs, id: impl ToRedisArgs) -> Request<bool> {
    Request::new("SEM.CANCEL").arg(key).arg(id)
}

/// Gives the owner's permits another lease. The reply is the fencing token; `None` if the owner has none.
pub fn renew(key: impl ToRedisArgs, owner: &str, lease: Duration) -> Request<Option<i64>> {
    Request::new("SEM.RENEW")
        .arg(key)
        .arg(owner)
        .time("PX", lease)
}

/// The holders and the queue of a semaphore. `None` if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("SEM.INFO").arg(key)
}
