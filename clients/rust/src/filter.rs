//! Bloom filters and cuckoo filters: `BF.*` and `CF.*`, as RedisBloom has them.

use redis::ToRedisArgs;

use crate::request::{Info, Repeatable, Request};

/// Marks requests to Bloom filters, which may be repeated: an item that is added twice is in the filter once.
pub enum Bloom {}

impl Repeatable for Bloom {}

/// The options of [`create`].
pub enum Create {}

/// Creates a Bloom filter for so many items at this false positive rate, from 0 to 1, both excluded.
pub fn create(key: impl ToRedisArgs, error_rate: f64, capacity: u64) -> Request<(), Create> {
    let request = Request::new("BF.RESERVE").arg(key);
    request.arg(error_rate).arg(capacity)
}

impl Request<(), Create> {
    /// When the filter is full, it adds a part with `factor` times the capacity of the previous part. The default is 2.
    pub fn expansion(self, factor: u64) -> Self {
        self.arg("EXPANSION").arg(factor)
    }

    /// A full filter refuses items.
    pub fn fixed(self) -> Self {
        self.arg("NONSCALING")
    }
}

/// Creates an empty Bloom filter with the settings of another one, so that both can be merged.
pub fn create_like(key: impl ToRedisArgs, other: impl ToRedisArgs) -> Request<()> {
    Request::new("BF.RESERVE").arg(key).arg("LIKE").arg(other)
}

/// Merges Bloom filters into `destination`, which is created if it does not exist.
pub fn merge<K: ToRedisArgs>(destination: impl ToRedisArgs, sources: &[K]) -> Request<()> {
    let request = Request::new("BF.MERGE").arg(destination).arg(sources.len());
    sources.iter().fold(request, Request::arg)
}

/// The number of items that were added to a Bloom filter; 0 if the key does not exist.
pub fn count(key: impl ToRedisArgs) -> Request<u64> {
    Request::new("BF.CARD").arg(key)
}

/// The settings and the size of a Bloom filter. An error if the key does not exist.
pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
    Request::new("BF.INFO").arg(key)
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
    use super::{Info, Request, ToRedisArgs};

    /// The options of [`create`].
    pub enum Create {}

    /// Creates a cuckoo filter for so many items.
    pub fn create(key: impl ToRedisArgs, capacity: u64) -> Request<(), Create> {
        Request::new("CF.RESERVE").arg(key).arg(capacity)
    }

    impl Request<(), Create> {
        /// The bits of a fingerprint: 8, 16 or 32. More bits have fewer false positives.
        pub fn bits(self, bits: u8) -> Self {
            self.arg("BITS").arg(bits)
        }

        /// When the filter is full, it adds a part with `factor` times the capacity of the previous part. 0: a full filter refuses items.
        pub fn expansion(self, factor: u64) -> Self {
            self.arg("EXPANSION").arg(factor)
        }
    }

    /// The settings and the size of a cuckoo filter. An error if the key does not exist.
    pub fn info(key: impl ToRedisArgs) -> Request<Option<Info>> {
        Request::new("CF.INFO").arg(key)
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
