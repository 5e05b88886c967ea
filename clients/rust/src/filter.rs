//! Bloom filters and cuckoo filters: `BF.*` and `CF.*`, as RedisBloom has them.

use redis::ToRedisArgs;

use crate::request::{Repeatable, Request};

/// Marks requests to Bloom filters, which may be repeated: an item that is added twice is in the filter once.
pub enum Bloom {}

impl Repeatable for Bloom {}

/// Creates a Bloom filter for so many items at this false positive rate, from 0 to 1, both excluded.
pub fn create(key: impl ToRedisArgs, error_rate: f64, capacity: u64) -> Request<()> {
    let request = Request::new("BF.RESERVE").arg(key);
    request.arg(error_rate).arg(capacity)
}

/// Adds an item to a Bloom filter, which is created if it does not exist. The reply is false if it may have been there before.
pub fn add(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool, Bloom> {
    Request::new("BF.ADD").arg(key).arg(item)
}

/// The same for many items.
pub fn add_all<I: ToRedisArgs>(key: impl ToRedisArgs, items: &[I]) -> Request<Vec<bool>, Bloom> {
    let request = Request::new("BF.MADD").arg(key);
    items.iter().fold(request, Request::arg)
}

/// Whether a Bloom filter may contain the item. False is certain.
pub fn may_contain(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool, Bloom> {
    Request::new("BF.EXISTS").arg(key).arg(item)
}

/// The same for many items.
pub fn may_contain_all<I: ToRedisArgs>(
    key: impl ToRedisArgs,
    items: &[I],
) -> Request<Vec<bool>, Bloom> {
    let request = Request::new("BF.MEXISTS").arg(key);
    items.iter().fold(request, Request::arg)
}

/// Filters that can delete.
pub mod cuckoo {
    use super::{Request, ToRedisArgs};

    /// Creates a cuckoo filter for so many items.
    pub fn create(key: impl ToRedisArgs, capacity: u64) -> Request<()> {
        Request::new("CF.RESERVE").arg(key).arg(capacity)
    }

    /// Adds an item, once more if it is there.
    pub fn add(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool> {
        Request::new("CF.ADD").arg(key).arg(item)
    }

    /// Adds an item unless the filter may contain it. The reply is false if it may.
    pub fn add_if_missing(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool> {
        Request::new("CF.ADDNX").arg(key).arg(item)
    }

    /// Whether the filter may contain the item. False is certain.
    pub fn may_contain(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool> {
        Request::new("CF.EXISTS").arg(key).arg(item)
    }

    /// The same for many items.
    pub fn may_contain_all<I: ToRedisArgs>(
        key: impl ToRedisArgs,
        items: &[I],
    ) -> Request<Vec<bool>> {
        let request = Request::new("CF.MEXISTS").arg(key);
        items.iter().fold(request, Request::arg)
    }

    /// How often the item was added, at most.
    pub fn count(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<u64> {
        Request::new("CF.COUNT").arg(key).arg(item)
    }

    /// Removes an item once. An item that was never added must not be removed: the filter may remove another one instead.
    pub fn remove(key: impl ToRedisArgs, item: impl ToRedisArgs) -> Request<bool> {
        Request::new("CF.DEL").arg(key).arg(item)
    }
}
