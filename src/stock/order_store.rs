//! The orders of a stock with their deadlines, and its users with their quantities.

use super::order::{Order, PackedOrder, Status};
use crate::linear_hash::{EntryHandle, HashEntry, LinearHash};
use crate::memory::block_size;
use std::collections::{BTreeSet, HashSet, VecDeque};

/// A user of a stock with a limit per user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user's id, 1 to 512 bytes.
    pub id: Box<[u8]>,
    /// The user's quantity, reserved and sold together, 1 or more.
    pub held: u64,
}

impl HashEntry for User {
    fn key(&self) -> &[u8] {
        &self.id
    }

    fn heap(&self) -> usize {
        block_size(self.id.len())
    }
}

/// The orders and users of one stock.
#[derive(Debug, Clone, Default)]
pub struct OrderStore {
    orders: LinearHash<PackedOrder>,
    users: LinearHash<User>,
    /// The live reservations by their ends (Unix ms).
    ends: BTreeSet<(u64, EntryHandle)>,
    /// The final orders, by the time when they became final. The store forgets them in this order. An order that became final
    /// twice (sold, then cancelled) has two entries, and is marked as stale until the first entry is removed.
    finals: VecDeque<EntryHandle>,
}

impl OrderStore {
    /// Whether there is no order and no user.
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.users.is_empty()
    }

    /// The number of orders.
    pub fn order_count(&self) -> usize {
        self.orders.len()
    }

    /// The number of users.
    pub fn user_count(&self) -> usize {
        self.users.len()
    }

    /// The order with this id.
    pub fn order(&self, id: &[u8]) -> Option<Order<'_>> {
        if self.orders.is_empty() {
            return None;
        }
        self.orders.get(id).map(PackedOrder::order)
    }

    /// The handle of the order with this id.
    pub fn find(&self, id: &[u8]) -> Option<EntryHandle> {
        self.orders.find(id)
    }

    /// The order with this handle.
    pub fn at(&self, handle: EntryHandle) -> Option<Order<'_>> {
        self.orders.at(handle).map(PackedOrder::order)
    }

    /// The quantity of a user.
    pub fn held(&self, user: &[u8]) -> u64 {
        self.users.get(user).map_or(0, |user| user.held)
    }

    /// Adds a new order. Returns its deadline (Unix ms). `None`: the id is known already, and nothing changes.
    pub fn open(&mut self, order: &Order<'_>, retain: u64) -> Option<u64> {
        let handle = self.orders.insert(PackedOrder::pack(order))?;
        let due = order.due(retain);
        if order.status == Status::Reserved {
            self.ends.insert((due, handle));
        } else {
            self.finals.push_back(handle);
        }
        Some(due)
    }

    /// Makes an order final, perhaps for the second time. Returns the time when it can be forgotten (Unix ms).
    pub fn finish(&mut self, handle: EntryHandle, status: Status, now: u64, retain: u64) -> u64 {
        let Some(before) = self.at(handle) else {
            return u64::MAX;
        };
        let (was_reserved, end) = (before.status == Status::Reserved, before.due(retain));
        let after = Order {
            status,
            since: now,
            ..before
        };
        let mut record = PackedOrder::pack(&after);
        let due = after.due(retain);
        if was_reserved {
            self.ends.remove(&(end, handle));
        } else {
            record.set_stale(true);
        }
        self.orders.replace(handle, record);
        self.finals.push_back(handle);
        self.skip_stale();
        due
    }

    /// Removes a final order.
    pub fn forget(&mut self, handle: EntryHandle) {
        if self.finals.front() == Some(&handle) {
            self.finals.pop_front();
        } else {
            self.finals.retain(|other| *other != handle); // rare: a master forgets the first order
        }
        self.orders.remove(handle);
        self.skip_stale();
        if self.finals.capacity() > 64 && self.finals.len() * 4 < self.finals.capacity() {
            self.finals.shrink_to(self.finals.len() * 2);
        }
    }

    /// Removes stale entries from the front of the queue.
    fn skip_stale(&mut self) {
        while let Some(record) = self
            .finals
            .front()
            .and_then(|front| self.orders.at_mut(*front))
            && record.is_stale()
        {
            record.set_stale(false);
            self.finals.pop_front();
        }
    }

    /// Adds to the quantity of a user.
    pub fn give(&mut self, user: &[u8], qty: u64) {
        let make = || User {
            id: user.into(),
            held: 0,
        };
        if let Some(user) = self.users.get_or_insert(user, make) {
            user.held += qty;
        }
    }

    /// Subtracts from the quantity of a user.
    pub fn take(&mut self, user: &[u8], qty: u64) {
        let Some(handle) = self.users.find(user) else {
            return;
        };
        if let Some(user) = self.users.at_mut(handle) {
            user.held = user.held.saturating_sub(qty);
            if user.held == 0 {
                self.users.remove(handle);
            }
        }
    }

    /// The ids of at most `most` reservations that ended by `now` (Unix ms), in the order of their ends.
    pub fn ended(&self, now: u64, most: usize) -> Vec<Box<[u8]>> {
        let ended = self.ends.iter().take_while(|(end, _)| *end <= now);
        let ids = ended.take(most).filter_map(|(_, handle)| self.at(*handle));
        ids.map(|order| order.id.into()).collect()
    }

    /// The ids of at most `most` orders that can be forgotten at `now` (Unix ms), the oldest first. There may be more such orders
    /// behind a stale entry.
    pub fn forgettable(&self, now: u64, retain: u64, most: usize) -> Vec<Box<[u8]>> {
        let records = self.finals.iter().take(most);
        let records = records.filter_map(|handle| self.orders.at(*handle));
        records
            .take_while(|record| !record.is_stale() && record.order().due(retain) <= now)
            .map(|record| record.key().into())
            .collect()
    }

    /// The end of the next reservation (Unix ms); `u64::MAX`: there is none.
    pub fn next_end(&self) -> u64 {
        self.ends.first().map_or(u64::MAX, |(end, _)| *end)
    }

    /// The time when the next order can be forgotten (Unix ms); `u64::MAX`: there is none.
    pub fn next_forgettable(&self, retain: u64) -> u64 {
        let front = self.finals.front().and_then(|handle| self.at(*handle));
        front.map_or(u64::MAX, |order| order.due(retain))
    }

    /// All orders, in a sequence that rebuilds this store when it is passed to [`OrderStore::open`].
    pub fn iter_orders(&self) -> impl Iterator<Item = Order<'_>> {
        let mut passed = HashSet::new();
        let finals = self.finals.iter().filter(move |handle| {
            let stale = self.orders.at(**handle).is_some_and(PackedOrder::is_stale);
            !stale || !passed.insert(**handle)
        });
        let live = self.ends.iter().map(|(_, handle)| handle);
        finals.chain(live).filter_map(|handle| self.at(*handle))
    }

    /// All users, in no particular order.
    pub fn iter_users(&self) -> impl Iterator<Item = &User> {
        self.users.iter()
    }

    /// Calls `relocate` with the bytes of some hundred orders or users, which it may move: those of part number `part`. False:
    /// there is no such part.
    pub fn visit_part(&mut self, part: usize, relocate: &mut dyn FnMut(&mut Box<[u8]>)) -> bool {
        let orders = self.orders.chunks();
        if part < orders {
            let visit = &mut |record: &mut PackedOrder| relocate(record.bytes_mut());
            self.orders.visit_chunk(part, visit);
        } else {
            let visit = &mut |user: &mut User| relocate(&mut user.id);
            self.users.visit_chunk(part - orders, visit);
        }
        part < orders + self.users.chunks()
    }

    /// The bytes from the allocator, without the struct itself.
    pub fn memory(&self) -> usize {
        self.orders.memory()
            + self.users.memory()
            + match self.ends.len() {
                0 => 0,
                ends => (ends * BYTES_PER_END).max(SMALLEST_TREE),
            }
            + block_size(self.finals.capacity() * size_of::<EntryHandle>())
    }
}

/// The bytes of an entry of `ends`: a node of the B-tree has space for 11 entries and contains 6 to 8 on average.
const BYTES_PER_END: usize = 38;

/// The bytes of a B-tree with one node.
const SMALLEST_TREE: usize = 192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_together_are_every_order_and_user_once() {
        let mut store = OrderStore::default();
        for number in 0..2000u32 {
            let id = number.to_be_bytes();
            let order = Order {
                id: &id,
                user: &id,
                status: Status::Deducted,
                qty: 1,
                created: 1,
                since: 1,
                reply: 0,
                px: 0,
            };
            assert_eq!(store.open(&order, 9), Some(10));
            assert_eq!(store.open(&order, 9), None);
            store.give(&id, 1);
        }
        let (mut visited, mut part) = (0, 0);
        while store.visit_part(part, &mut |bytes| {
            visited += 1;
            *bytes = bytes.clone(); // it is moved
        }) {
            part += 1;
        }
        assert_eq!((visited, part), (4000, 8));
        assert_eq!(store.iter_orders().count(), 2000);
        assert_eq!(store.held(&1999u32.to_be_bytes()), 1);
    }
}
