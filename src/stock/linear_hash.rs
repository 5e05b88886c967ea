//! A hash table without long pauses: it grows and shrinks by one bucket at a time, and its entries
//! stay where they are. A table that moves them all when it doubles would stop the server for tens of
//! milliseconds at a million entries.
//!
//! Buckets are those of linear hashing (Litwin, "Linear hashing: a new tool for file and table
//! addressing", 1980), with one entry in each on average. Entries stand in chunks and are known by
//! their place in them, a handle that stays the same as long as the entry is there.

use crate::memory::block_size;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Where an entry is.
pub type EntryHandle = u32;

/// What a table keeps.
pub trait HashEntry {
    /// The key that it is found by.
    fn key(&self) -> &[u8];

    /// The bytes that it takes from the allocator beside its own struct.
    fn heap(&self) -> usize;
}

const NONE: EntryHandle = EntryHandle::MAX;
const CHUNK: usize = 512;

/// What the set of chunks with room takes: they are few.
const OPEN: usize = 64;

/// A table of entries by their keys.
#[derive(Debug, Clone)]
pub struct LinearHash<E> {
    /// The first entry of each bucket.
    heads: Vec<EntryHandle>,
    chunks: Vec<Chunk<E>>,
    /// The chunks that have room.
    open: BTreeSet<u32>,
    len: usize,
    heap: usize,
    /// Unknown to who chooses the keys, which makes it hard to choose keys of one bucket.
    seed: u64,
}

#[derive(Debug, Clone)]
struct Chunk<E> {
    slots: Vec<ChunkSlot<E>>,
    /// The first free slot; the others follow by `next`.
    free: EntryHandle,
    used: usize,
}

#[derive(Debug, Clone)]
struct ChunkSlot<E> {
    entry: Option<E>,
    /// The next one of the same bucket, or the next free one.
    next: EntryHandle,
    /// Of the entry's key.
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
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the entry with this key is.
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

    /// The entry at a handle.
    pub fn at(&self, handle: EntryHandle) -> Option<&E> {
        let (chunk, index) = split(handle);
        self.chunks.get(chunk)?.slots.get(index)?.entry.as_ref()
    }

    /// The same, to change it; its key must stay, and the memory that it takes.
    pub fn at_mut(&mut self, handle: EntryHandle) -> Option<&mut E> {
        let (chunk, index) = split(handle);
        self.chunks
            .get_mut(chunk)?
            .slots
            .get_mut(index)?
            .entry
            .as_mut()
    }

    /// Adds an entry; `None` if its key is there already.
    pub fn insert(&mut self, entry: E) -> Option<EntryHandle> {
        let hash = self.hash(entry.key());
        match self.find_hashed(entry.key(), hash) {
            Some(_) => None,
            None => Some(self.insert_hashed(entry, hash)),
        }
    }

    /// The entry with this key, which is made if it is not there.
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
        let handle = self.place(slot);
        self.heads[bucket] = handle;
        handle
    }

    /// Puts another entry with the same key at a handle.
    pub fn replace(&mut self, handle: EntryHandle, entry: E) {
        let (chunk, index) = split(handle);
        if let Some(old) = &mut self.chunks[chunk].slots[index].entry {
            debug_assert!(old.key() == entry.key());
            self.heap = self.heap - old.heap() + entry.heap();
            *old = entry;
        }
    }

    /// Takes the entry at a handle out.
    pub fn remove(&mut self, handle: EntryHandle) -> Option<E> {
        self.at(handle)?;
        let bucket = bucket_of(self.slot(handle).hash, self.heads.len());
        self.unchain(bucket, handle);
        let entry = self.give_back(handle)?;
        self.heap -= entry.heap();
        self.len -= 1;
        // Half empty, so that an entry that comes and goes does not move others each time.
        while self.heads.len() > 2 * self.len {
            self.remove_bucket();
        }
        Some(entry)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        let slots = self.chunks.iter().flat_map(|chunk| &chunk.slots);
        slots.filter_map(|slot| slot.entry.as_ref())
    }

    /// How many chunks there are, each of at most 512 entries.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Calls `visit` with every entry of a chunk, whose key must stay, and the memory that it takes.
    pub fn visit_chunk(&mut self, chunk: usize, visit: &mut dyn FnMut(&mut E)) {
        let slots = self.chunks.get_mut(chunk).map(|chunk| &mut chunk.slots);
        let entries = slots.into_iter().flatten();
        entries
            .filter_map(|slot| slot.entry.as_mut())
            .for_each(visit);
    }

    /// The bytes that it takes from the allocator beside its own struct.
    pub fn memory(&self) -> usize {
        let slots =
            |chunk: &Chunk<E>| block_size(chunk.slots.capacity() * size_of::<ChunkSlot<E>>());
        self.heap
            + block_size(self.heads.capacity() * size_of::<EntryHandle>())
            + block_size(self.chunks.capacity() * size_of::<Chunk<E>>())
            + self.chunks.iter().map(slots).sum::<usize>()
            + if self.open.is_empty() { 0 } else { OPEN }
    }

    /// Adds a bucket, and moves to it what belongs there, out of the one bucket that has it.
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

    /// Removes the last bucket; what is in it goes back where it came from.
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

    /// Puts an entry into the chain of its bucket.
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

    /// Puts a slot where there is room, in the first such chunk, so that the last ones become empty.
    fn place(&mut self, slot: ChunkSlot<E>) -> EntryHandle {
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

    /// Takes an entry out of its slot, which others may use. An empty chunk's memory goes back.
    fn give_back(&mut self, handle: EntryHandle) -> Option<E> {
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
        while self.chunks.last().is_some_and(|chunk| chunk.used == 0) {
            self.chunks.pop();
            self.open.remove(&(self.chunks.len() as u32));
        }
        if self.chunks.capacity() > 4 * self.chunks.len() {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
        Some(entry)
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

/// Which of `buckets` buckets a key belongs to.
fn bucket_of(hash: u32, buckets: usize) -> usize {
    // The lower bits of the hash; one bit less where that bucket is still to come.
    let mask = buckets.next_power_of_two().wrapping_sub(1);
    let bucket = hash as usize & mask;
    if bucket < buckets {
        bucket
    } else {
        bucket & (mask >> 1)
    }
}

/// The bucket that has what belongs to a new one: the same number without its highest bit.
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

    /// Does the table hold exactly this, in chains that are whole?
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
        fn it_is_a_map(steps in proptest::collection::vec(any_step(), 1..4000)) {
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
    fn handles_stay_and_memory_comes_back() {
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
