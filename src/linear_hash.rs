//! A hash table without long pauses. It grows and shrinks by one bucket at a time and does not move its entries. A table that
//! moves all entries when it doubles would stop the server for tens of milliseconds at a million entries.
//!
//! The algorithm is linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980), with 0.5 to 1
//! entries per bucket. Chunks of 512 slots store the entries. The handle of an entry is the number of its slot, which does not
//! change until the entry is removed.

use crate::memory::block_size;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The number of an entry's slot.
pub type EntryHandle = u32;

/// An entry of a table.
pub trait HashEntry {
    /// The key, which is unique in the table.
    fn key(&self) -> &[u8];

    /// The bytes from the allocator, without the struct itself.
    fn heap(&self) -> usize;
}

const NONE: EntryHandle = EntryHandle::MAX;
/// The slots of a chunk.
const CHUNK: usize = 512;

/// The slots of the first chunk of a small table.
const FIRST_SLOTS: usize = 4;

/// The bytes of the set of chunks with free slots, which is small.
const OPEN: usize = 64;

/// A table of entries by their keys.
#[derive(Debug, Clone)]
pub struct LinearHash<E> {
    /// The first entry of each bucket.
    heads: Vec<EntryHandle>,
    chunks: Vec<Chunk<E>>,
    /// The chunks with free slots.
    open: BTreeSet<u32>,
    len: usize,
    heap: usize,
    /// A secret seed of the hash, so that clients cannot choose keys of one bucket.
    seed: u64,
}

#[derive(Debug, Clone)]
struct Chunk<E> {
    slots: Vec<ChunkSlot<E>>,
    /// The first free slot. `next` links the others.
    free: EntryHandle,
    used: usize,
}

#[derive(Debug, Clone)]
struct ChunkSlot<E> {
    entry: Option<E>,
    /// The next slot of the same bucket, or the next free slot.
    next: EntryHandle,
    /// The hash of the entry's key.
    hash: u32,
}

impl<E> Default for LinearHash<E> {
    fn default() -> Self {
        Self {
            heads: Vec::new(),
            chunks: Vec::new(),
            open: BTreeSet::new(),
            len: 0,
            heap: 0,
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl<E: HashEntry> LinearHash<E> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The handle of the entry with this key.
    pub fn find(&self, key: &[u8]) -> Option<EntryHandle> {
        self.find_hashed(key, self.hash(key))
    }

    fn find_hashed(&self, key: &[u8], hash: u32) -> Option<EntryHandle> {
        let mut at = *self.heads.get(bucket_of(hash, self.heads.len()))?;
        while at != NONE {
            let slot = self.slot(at);
            let is_it = |entry: &E| entry.key() == key;
            if slot.hash == hash && slot.entry.as_ref().is_some_and(is_it) {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    fn hash(&self, key: &[u8]) -> u32 {
        xxh3_64_with_seed(key, self.seed) as u32
    }

    /// The entry with this key.
    pub fn get(&self, key: &[u8]) -> Option<&E> {
        self.at(self.find(key)?)
    }

    /// The entry with this handle.
    pub fn at(&self, handle: EntryHandle) -> Option<&E> {
        let (chunk, index) = split(handle);
        self.chunks.get(chunk)?.slots.get(index)?.entry.as_ref()
    }

    /// The same entry for a change. The caller must not change its key or [`HashEntry::heap`].
    pub fn at_mut(&mut self, handle: EntryHandle) -> Option<&mut E> {
        let (chunk, index) = split(handle);
        self.chunks
            .get_mut(chunk)?
            .slots
            .get_mut(index)?
            .entry
            .as_mut()
    }

    /// Adds an entry. `None`: the table has an entry with this key, and nothing changes.
    pub fn insert(&mut self, entry: E) -> Option<EntryHandle> {
        let hash = self.hash(entry.key());
        match self.find_hashed(entry.key(), hash) {
            Some(_) => None,
            None => Some(self.insert_hashed(entry, hash)),
        }
    }

    /// The entry with this key. If there is none, `make` creates it.
    pub fn get_or_insert(&mut self, key: &[u8], make: impl FnOnce() -> E) -> Option<&mut E> {
        let hash = self.hash(key);
        let found = self.find_hashed(key, hash);
        let handle = found.unwrap_or_else(|| self.insert_hashed(make(), hash));
        self.at_mut(handle)
    }

    fn insert_hashed(&mut self, entry: E, hash: u32) -> EntryHandle {
        if self.len == self.heads.len() {
            self.add_bucket();
        }
        let bucket = bucket_of(hash, self.heads.len());
        self.heap += entry.heap();
        self.len += 1;
        let slot = ChunkSlot {
            entry: Some(entry),
            next: self.heads[bucket],
            hash,
        };
        let handle = self.store(slot);
        self.heads[bucket] = handle;
        handle
    }

    /// Replaces the entry with this handle by one with the same key.
    pub fn replace(&mut self, handle: EntryHandle, entry: E) {
        let (chunk, index) = split(handle);
        if let Some(old) = &mut self.chunks[chunk].slots[index].entry {
            debug_assert!(old.key() == entry.key());
            self.heap = self.heap - old.heap() + entry.heap();
            *old = entry;
        }
    }

    /// Removes the entry with this handle.
    pub fn remove(&mut self, handle: EntryHandle) -> Option<E> {
        self.at(handle)?;
        let bucket = bucket_of(self.slot(handle).hash, self.heads.len());
        self.unchain(bucket, handle);
        let entry = self.release(handle)?;
        self.heap -= entry.heap();
        self.len -= 1;
        // Only at half the load of a full table, so that repeated insertion and removal of one entry does not move others.
        while self.heads.len() > 2 * self.len {
            self.remove_bucket();
        }
        Some(entry)
    }

    /// Frees the last chunk if less than three quarters of the slots of all other chunks are used: its entries move to free slots of other
    /// chunks. The only chunk becomes smaller if it has room for four times its entries. Calls `moved` with each entry that
    /// has moved and its new handle.
    pub fn compact(&mut self, moved: &mut dyn FnMut(&E, EntryHandle)) {
        let Some(last) = self.chunks.len().checked_sub(1) else {
            return;
        };
        if last == 0 {
            return self.shrink_only_chunk(moved);
        }
        if 4 * self.len >= 3 * last * CHUNK {
            return;
        }
        self.open.remove(&(last as u32)); // the other chunks have room for all
        for index in 0..self.chunks[last].slots.len() {
            let handle = (last * CHUNK + index) as u32;
            if self.at(handle).is_none() {
                continue;
            }
            let hash = self.slot(handle).hash;
            let bucket = bucket_of(hash, self.heads.len());
            self.unchain(bucket, handle);
            let entry = self.slot_mut(handle).entry.take();
            self.relocate(entry, hash, moved);
        }
        self.chunks[last].used = 0;
        self.drop_empty_chunks();
    }

    fn shrink_only_chunk(&mut self, moved: &mut dyn FnMut(&E, EntryHandle)) {
        if self.chunks[0].slots.capacity() < 4 * self.len.max(FIRST_SLOTS) {
            return;
        }
        self.heads.fill(NONE);
        self.open.clear();
        for chunk in std::mem::take(&mut self.chunks) {
            let slots = chunk.slots.into_iter();
            slots.filter(|slot| slot.entry.is_some()).for_each(|slot| {
                self.relocate(slot.entry, slot.hash, moved);
            });
        }
    }

    /// Stores an entry that is in no slot.
    fn relocate(&mut self, entry: Option<E>, hash: u32, moved: &mut dyn FnMut(&E, EntryHandle)) {
        let bucket = bucket_of(hash, self.heads.len());
        let next = self.heads[bucket];
        let handle = self.store(ChunkSlot { entry, next, hash });
        self.heads[bucket] = handle;
        if let Some(entry) = self.at(handle) {
            moved(entry, handle);
        }
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        let slots = self.chunks.iter().flat_map(|chunk| &chunk.slots);
        slots.filter_map(|slot| slot.entry.as_ref())
    }

    /// The number of chunks, each of at most 512 entries.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Calls `visit` with every entry of a chunk. It must not change a key or [`HashEntry::heap`].
    pub fn visit_chunk(&mut self, chunk: usize, visit: &mut dyn FnMut(&mut E)) {
        let slots = self.chunks.get_mut(chunk).map(|chunk| &mut chunk.slots);
        let entries = slots.into_iter().flatten();
        entries
            .filter_map(|slot| slot.entry.as_mut())
            .for_each(visit);
    }

    /// The bytes from the allocator, without the struct itself.
    pub fn memory(&self) -> usize {
        let slots =
            |chunk: &Chunk<E>| block_size(chunk.slots.capacity() * size_of::<ChunkSlot<E>>());
        self.heap
            + block_size(self.heads.capacity() * size_of::<EntryHandle>())
            + block_size(self.chunks.capacity() * size_of::<Chunk<E>>())
            + self.chunks.iter().map(slots).sum::<usize>()
            + if self.open.is_empty() { 0 } else { OPEN }
    }

    /// Adds a bucket, and links its entries to it. They are all in one other bucket until then.
    fn add_bucket(&mut self) {
        let new = self.heads.len();
        self.heads.push(NONE);
        if new == 0 {
            return;
        }
        let mut at = std::mem::replace(&mut self.heads[parent(new)], NONE);
        while at != NONE {
            let next = self.slot(at).next;
            self.chain(at);
            at = next;
        }
    }

    /// Removes the last bucket, and links its entries to the bucket that they came from.
    fn remove_bucket(&mut self) {
        let Some(mut at) = self.heads.pop() else {
            return;
        };
        while at != NONE {
            let next = self.slot(at).next;
            self.chain(at);
            at = next;
        }
        if self.heads.capacity() > 4 * self.heads.len() {
            self.heads.shrink_to(2 * self.heads.len());
        }
    }

    /// Adds an entry to the chain of its bucket.
    fn chain(&mut self, handle: EntryHandle) {
        let bucket = bucket_of(self.slot(handle).hash, self.heads.len());
        self.slot_mut(handle).next = self.heads[bucket];
        self.heads[bucket] = handle;
    }

    fn unchain(&mut self, bucket: usize, handle: EntryHandle) {
        let next = self.slot(handle).next;
        if self.heads[bucket] == handle {
            self.heads[bucket] = next;
            return;
        }
        let mut at = self.heads[bucket];
        while self.slot(at).next != handle {
            at = self.slot(at).next;
        }
        self.slot_mut(at).next = next;
    }

    /// Stores a slot in the first chunk with a free one, so that the last chunks become empty.
    fn store(&mut self, slot: ChunkSlot<E>) -> EntryHandle {
        let number = self.open.first().copied().unwrap_or_else(|| {
            self.chunks.push(Chunk {
                slots: Vec::new(),
                free: NONE,
                used: 0,
            });
            let number = self.chunks.len() as u32 - 1;
            self.open.insert(number);
            number
        });
        let chunk = &mut self.chunks[number as usize];
        let index = if chunk.free == NONE {
            if chunk.slots.len() == chunk.slots.capacity() {
                // Less than twice as much as there is: tables of a few hundred entries are common.
                let more = (chunk.slots.len() / 4).max(FIRST_SLOTS);
                chunk
                    .slots
                    .reserve_exact(more.min(CHUNK - chunk.slots.len()));
            }
            chunk.slots.push(slot);
            chunk.slots.len() - 1
        } else {
            let index = chunk.free as usize;
            chunk.free = chunk.slots[index].next;
            chunk.slots[index] = slot;
            index
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.open.remove(&number);
        }
        number * CHUNK as u32 + index as u32
    }

    /// Removes an entry from its slot, which becomes free. Returns the memory of an empty chunk to the allocator.
    fn release(&mut self, handle: EntryHandle) -> Option<E> {
        let (number, index) = split(handle);
        let chunk = &mut self.chunks[number];
        let entry = chunk.slots[index].entry.take()?;
        chunk.slots[index].next = chunk.free;
        chunk.free = index as u32;
        chunk.used -= 1;
        if chunk.used == 0 {
            chunk.slots = Vec::new();
            chunk.free = NONE;
        }
        self.open.insert(number as u32);
        self.drop_empty_chunks();
        Some(entry)
    }

    fn drop_empty_chunks(&mut self) {
        while self.chunks.last().is_some_and(|chunk| chunk.used == 0) {
            self.chunks.pop();
            self.open.remove(&(self.chunks.len() as u32));
        }
        if self.chunks.capacity() > 4 * self.chunks.len() {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    fn slot(&self, handle: EntryHandle) -> &ChunkSlot<E> {
        let (chunk, index) = split(handle);
        &self.chunks[chunk].slots[index]
    }

    fn slot_mut(&mut self, handle: EntryHandle) -> &mut ChunkSlot<E> {
        let (chunk, index) = split(handle);
        &mut self.chunks[chunk].slots[index]
    }
}

/// The bucket of a hash in a table of `buckets` buckets.
fn bucket_of(hash: u32, buckets: usize) -> usize {
    // The lower bits of the hash. If that bucket does not exist yet, one bit less.
    let mask = buckets.next_power_of_two().wrapping_sub(1);
    let bucket = hash as usize & mask;
    if bucket < buckets {
        bucket
    } else {
        bucket & (mask >> 1)
    }
}

/// The bucket that contains the entries of a new one: the same number without its highest bit.
fn parent(bucket: usize) -> usize {
    bucket & !(1 << bucket.ilog2())
}

fn split(handle: EntryHandle) -> (usize, usize) {
    (handle as usize / CHUNK, handle as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Debug, Clone, PartialEq)]
    struct Word(Vec<u8>, u32);

    impl HashEntry for Word {
        fn key(&self) -> &[u8] {
            &self.0
        }
        fn heap(&self) -> usize {
            1
        }
    }

    fn word(number: u32, value: u32) -> Word {
        Word(number.to_le_bytes().to_vec(), value)
    }

    #[derive(Debug, Clone)]
    enum TableStep {
        Put(u32, u32),
        Take(u32),
    }

    fn any_step() -> impl Strategy<Value = TableStep> {
        let key = 0..3000u32;
        prop_oneof![
            (key.clone(), any::<u32>()).prop_map(|(key, value)| TableStep::Put(key, value)),
            key.prop_map(TableStep::Take),
        ]
    }

    /// Checks that the table has exactly these entries, and that its chains are whole.
    fn check(table: &LinearHash<Word>, model: &HashMap<u32, u32>) {
        assert_eq!(table.len(), model.len());
        assert_eq!(table.iter().count(), model.len());
        assert_eq!(table.heap, model.len());
        for (key, value) in model {
            assert_eq!(table.get(&key.to_le_bytes()), Some(&word(*key, *value)));
        }
        assert!(table.heads.len() <= 2 * table.len() + 1);
        let used: usize = table.chunks.iter().map(|chunk| chunk.used).sum();
        assert_eq!(used, model.len());
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec(any_step(), 1..4000)) {
            let mut table = LinearHash::default();
            let mut model = HashMap::new();
            for step in steps {
                match step {
                    TableStep::Put(key, value) => {
                        match table.find(&key.to_le_bytes()) {
                            Some(handle) => table.replace(handle, word(key, value)),
                            None => {
                                let handle = table.insert(word(key, value)).expect("it is new");
                                prop_assert_eq!(table.at(handle), Some(&word(key, value)));
                            }
                        }
                        prop_assert_eq!(table.insert(word(key, 0)), None);
                        model.insert(key, value);
                    }
                    TableStep::Take(key) => {
                        let found = table.find(&key.to_le_bytes());
                        let taken = found.and_then(|handle| table.remove(handle));
                        prop_assert_eq!(taken.map(|word| word.1), model.remove(&key));
                    }
                }
            }
            check(&table, &model);
        }
    }

    #[test]
    fn a_compact_table_has_few_free_slots() {
        let mut table = LinearHash::default();
        for n in 0..20_000 {
            table.insert(word(n, n));
        }
        let mut model: HashMap<u32, u32> = (0..20_000).map(|n| (n, n)).collect();
        for n in (0..20_000u32).filter(|n| n % 37 != 0) {
            let handle = table.find(&n.to_le_bytes()).expect("an entry");
            table.remove(handle);
            model.remove(&n);
            let mut moves = Vec::new();
            table.compact(&mut |entry, handle| moves.push((entry.1, handle)));
            for (value, handle) in moves {
                assert_eq!(table.at(handle).map(|entry| entry.1), Some(value));
            }
        }
        check(&table, &model);
        assert!(table.chunks.len() <= 2, "{}", table.chunks.len());
        while table.len() > 1 {
            let first = table.iter().next().expect("an entry").1;
            let handle = table.find(&first.to_le_bytes()).expect("an entry");
            table.remove(handle);
            model.remove(&first);
            let mut moves = Vec::new();
            table.compact(&mut |entry, handle| moves.push((entry.1, handle)));
            for (value, handle) in moves {
                assert_eq!(table.at(handle).map(|entry| entry.1), Some(value));
            }
            check(&table, &model);
        }
        assert!(table.memory() < 1000, "{}", table.memory()); // in 15 slots of 48 bytes at most
    }

    #[test]
    fn handles_stay_the_same_and_memory_is_released() {
        let mut table = LinearHash::default();
        let empty = table.memory();
        let handles: Vec<EntryHandle> = (0..20_000)
            .filter_map(|n| table.insert(word(n, n)))
            .collect();
        for (number, handle) in handles.iter().enumerate() {
            let number = number as u32;
            assert_eq!(table.at(*handle), Some(&word(number, number)));
        }
        let full = table.memory();
        for handle in &handles[..19_000] {
            table.remove(*handle);
        }
        check(&table, &(19_000..20_000).map(|n| (n, n)).collect());
        assert!(table.memory() < full / 8, "{} of {full}", table.memory());
        for handle in &handles[19_000..] {
            table.remove(*handle);
        }
        assert_eq!((table.len(), table.at(handles[0])), (0, None));
        assert!(table.memory() < empty + 1000, "{}", table.memory());
    }
}
