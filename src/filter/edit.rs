//! Changes one filter in the keyspace: checks the memory limits, changes the layers, and turns the changes into one commit.

use super::hash::Hash;
use super::persist;
use super::state::{Added, Filter, FilterHeader, FilterKind};
use super::{COUNTERS, HOT, MAX_BYTES};
use crate::error::Error;
use crate::server::base::random::secret;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, Replicate};
use crate::server::services::memory::check_room;
use std::ffi::CStr;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Whether the limits on memory apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimits {
    /// They apply: a client of this server asks for memory.
    Hold,
    /// They do not apply: a master or this server's own dataset has decided already.
    Waived,
}

impl MemoryLimits {
    /// Those for the running command.
    pub fn of(ctx: Ctx<'_>) -> Self {
        if ctx.is_replay() {
            MemoryLimits::Waived
        } else {
            MemoryLimits::Hold
        }
    }
}

/// Checks that a filter of `before` bytes may get `more` bytes.
fn admit(limits: MemoryLimits, before: u64, more: u64) -> Result<(), Error> {
    if limits == MemoryLimits::Waived {
        return Ok(());
    }
    if before.saturating_add(more) > MAX_BYTES.get() as u64 {
        return Err(Error::FilterTooLarge);
    }
    check_room(more as usize)
}

/// Allocates a filter.
pub fn build<K: FilterKind>(
    header: FilterHeader<K>,
    limits: MemoryLimits,
) -> Result<Filter<K>, Error> {
    let built =
        admit(limits, 0, header.size()).and_then(|()| header.build().ok_or(Error::NoMemory));
    built.inspect_err(count_refusal)
}

/// Counts a refused item or filter, for `INFO sluice`.
fn count_refusal(error: &Error) {
    match error {
        Error::OutOfMemory | Error::NoMemory | Error::FilterTooLarge => {
            COUNTERS.refused_memory.count();
        }
        _ => COUNTERS.full.count(),
    }
}

/// The number of items that are hashed and prefetched at a time: about as many as the cache lines that a processor fetches at
/// once.
const BATCH_ITEMS: usize = 32;

/// Calls `each` with every item and its hash. The cache lines of a batch are prefetched before its first call.
fn in_batches<K: FilterKind>(
    filter: &mut Filter<K>,
    items: &[&[u8]],
    mut each: impl FnMut(&mut Filter<K>, &[u8], Hash),
) {
    for batch in items.chunks(BATCH_ITEMS) {
        let mut hashes = [Hash::from_bits(0); BATCH_ITEMS];
        for (hash, item) in hashes.iter_mut().zip(batch) {
            *hash = filter.hash(item);
            K::prefetch(filter, *hash);
        }
        for (item, hash) in batch.iter().zip(hashes) {
            each(filter, item, hash);
        }
    }
}

/// Writes whether the filter contains each item, into as many `replies`. Returns the number of items that it contains.
pub fn contains_all<K: FilterKind>(
    filter: &Filter<K>,
    items: &[&[u8]],
    replies: &mut [bool],
) -> u64 {
    let mut hits = 0;
    let batches = items.chunks(BATCH_ITEMS);
    for (batch, replies) in batches.zip(replies.chunks_mut(BATCH_ITEMS)) {
        let mut hashes = [Hash::from_bits(0); BATCH_ITEMS];
        for (hash, item) in hashes.iter_mut().zip(batch) {
            *hash = filter.hash(item);
            K::prefetch(filter, *hash);
        }
        for ((reply, item), hash) in replies.iter_mut().zip(batch).zip(&hashes) {
            *reply = filter.contains(item, *hash);
            hits += u64::from(*reply);
        }
    }
    hits
}

/// The key of a filter, open for changes.
pub struct FilterEdit<'k, K: FilterKind> {
    call: &'k Call<'k>,
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    key: TypedKey<'k, Filter<K>>,
    /// The effects of all changes; `None` if replicas get the command as it came.
    effects: Option<Vec<u8>>,
    is_changed: bool,
}

impl<'k, K: FilterKind> FilterEdit<'k, K> {
    /// Opens the key that a command names first.
    #[inline(always)]
    pub fn open(call: &'k Call<'_>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        let ctx = call.ctx;
        Ok(Self {
            call,
            ctx,
            name,
            key: TypedKey::of_any(ctx.open(name), K::native(), K::foreign_types())?,
            effects: None,
            is_changed: false,
        })
    }

    /// Opens the key that a command names first to replace its value, which may be of any type.
    pub fn over(call: &'k Call<'_>, name: &'k ServerString<'k>) -> Self {
        let ctx = call.ctx;
        Self {
            call,
            ctx,
            name,
            key: TypedKey::over(ctx.open(name), K::native()),
            effects: None,
            is_changed: false,
        }
    }

    /// The filter, if there is one.
    #[inline]
    pub fn filter(&mut self) -> Option<&mut Filter<K>> {
        self.key.value()
    }

    /// The seed of a new filter.
    pub fn new_seed(&self) -> u64 {
        self.seed_for(0)
    }

    /// The seed of a filter whose content has this hash. A client's command draws it, and replicas get it as an effect. The commands of
    /// another module's master or AOF carry no seed. There it follows from the command and the content, because all servers that
    /// run the command must have the same filter, and an AOF must have the same result each time. Whoever knows both can predict
    /// such a seed.
    fn seed_for(&self, content: u64) -> u64 {
        if self.ctx.is_replay() {
            xxh3_64_with_seed(&content.to_le_bytes(), self.call.digest())
        } else {
            secret()
        }
    }

    /// Marks the filter as changed. Replicas repeat the change by the command as it came.
    pub fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Puts a new filter at the key, which holds none.
    pub fn create(&mut self, header: FilterHeader<K>) -> Result<(), Error> {
        let mut effects = Vec::new();
        persist::put_header_effect(&mut effects, &header);
        self.key.create(build(header, MemoryLimits::of(self.ctx))?);
        self.effects = Some(effects);
        self.is_changed = true;
        Ok(())
    }

    /// Puts a filter at the key, which holds none. The command alone determines the filter: replicas repeat it as it came.
    pub fn put(&mut self, filter: Filter<K>) {
        self.key.create_as(filter.native(), filter);
        self.is_changed = true;
    }

    /// The same for a key that may hold a value of any type, which the filter replaces.
    pub fn replace(&mut self, filter: Filter<K>) {
        self.key.replace_as(filter.native(), filter);
        self.is_changed = true;
    }

    /// Makes a foreign filter one of Sluice, with a new seed. Its layers stay.
    fn make_own(&mut self) {
        let filter = self.key.value();
        let first = filter.and_then(|filter| persist::used_pieces(filter).next());
        let content = first.map_or(0, |(_, piece)| xxh3_64(piece));
        let seed = self.seed_for(content);
        if let Some(filter) = self.key.value() {
            let parameters = filter.parameters.clone();
            let effects = self.effects.get_or_insert_default();
            persist::put_own_effect::<K>(effects, seed, &parameters);
            filter.become_own(seed, parameters);
            self.adopt_type();
            self.is_changed = true;
        }
    }

    /// Gives the key the type of Sluice, if the filter is no longer as another module has made it.
    pub fn adopt_type(&mut self) {
        if self.key.is_of_first_type() {
            return;
        }
        if let Some(filter) = self.key.value()
            && !filter.is_original()
        {
            let own = filter.take();
            self.key.change_type(own);
        }
    }

    /// Makes the filter one of Sluice if another module has made it, and an item will be added to it. Error: there is no memory
    /// or room for the item, and nothing changed.
    fn make_own_to_add(&mut self, items: &[&[u8]], unique: bool) -> Result<(), Error> {
        let limits = MemoryLimits::of(self.ctx);
        let Some(filter) = self.key.value().filter(|filter| filter.is_original()) else {
            return Ok(());
        };
        let mut new = items
            .iter()
            .filter(|item| !unique || !filter.foreign_holds(item));
        let Some(first) = new.next() else {
            return Ok(());
        };
        let shape = K::next_shape(filter, filter.hash(first))?;
        admit(limits, filter.size(), filter.layer_size(&shape))?;
        self.make_own();
        Ok(())
    }

    /// Adds an item. Returns true if it was not in the filter.
    #[inline]
    pub fn add(&mut self, item: &[u8], unique: bool) -> Result<bool, Error> {
        if let Some(filter) = self.key.value()
            && self.effects.is_none()
            && filter.foreign.is_none()
        {
            let hash = filter.hash(item);
            match K::add(filter, hash, unique) {
                Added::Known => return Ok(false),
                Added::New => {
                    COUNTERS.items_added.count();
                    self.is_changed = true;
                    return Ok(true);
                }
                Added::Full => {}
            }
        }
        self.add_one_of_full(item, unique)
    }

    /// Adds an item for which the filter may have to grow.
    #[inline(never)]
    fn add_one_of_full(&mut self, item: &[u8], unique: bool) -> Result<bool, Error> {
        let mut answer = Err(Error::Internal);
        self.add_all(&[item], unique, |added| answer = added)?;
        answer
    }

    /// Adds items in order, and calls `report` with the result of each.
    pub fn add_all(
        &mut self,
        items: &[&[u8]],
        unique: bool,
        mut report: impl FnMut(Result<bool, Error>),
    ) -> Result<(), Error> {
        // There will not be more memory for the next item than there was for this one.
        let mut refusal = self.make_own_to_add(items, unique).err();
        let (ctx, name, effects) = (self.ctx, self.name, &mut self.effects);
        let Some(filter) = self.key.value() else {
            return Err(Error::Internal);
        };
        // The new items so far: if the filter grows, replicas get effects, and these items are among them.
        let mut new_hashes = Vec::with_capacity(items.len());
        let mut count = 0;
        in_batches(filter, items, |filter, item, hash| {
            let is_known = unique && filter.foreign_holds(item);
            let mut added = if is_known {
                Added::Known
            } else {
                K::add(filter, hash, unique)
            };
            let mut refused = refusal.clone().filter(|_| added == Added::Full);
            if added == Added::Full && refused.is_none() {
                let effects = effects.get_or_insert_default();
                new_hashes
                    .drain(..)
                    .for_each(|hash| persist::put_item_effect(effects, hash));
                let limits = MemoryLimits::of(ctx);
                match grow(filter, hash, limits, effects) {
                    Ok(()) => added = K::add(filter, hash, unique),
                    Err(_) if limits == MemoryLimits::Waived && K::add_beyond(filter, hash) => {
                        added = Added::New;
                    }
                    Err(error) => refused = Some(error),
                }
                refusal = refused.clone().filter(is_final);
            }
            if added == Added::New {
                count += 1;
                match effects {
                    Some(effects) => persist::put_item_effect(effects, hash),
                    None => new_hashes.push(hash),
                }
            }
            report(match (refused, added) {
                (Some(error), _) => {
                    count_refusal(&error);
                    HOT.count_refusal(ctx, name);
                    Err(error)
                }
                (None, Added::Full) => Err(Error::Internal),
                (None, added) => Ok(added == Added::New),
            });
        });
        COUNTERS.items_added.add(count);
        self.is_changed |= count > 0;
        Ok(())
    }

    /// Deletes an item from the foreign layers. Returns false if they do not contain it.
    pub fn delete_foreign(&mut self, item: &[u8]) -> bool {
        let Some(filter) = self.key.value().filter(|filter| filter.foreign_holds(item)) else {
            return false;
        };
        if filter.is_original() {
            self.make_own();
        }
        let effects = self.effects.get_or_insert_default();
        persist::put_delete_effect(effects, item);
        self.is_changed = true;
        let filter = self.key.value();
        let foreign = filter.and_then(|filter| filter.foreign.as_mut());
        foreign.is_some_and(|foreign| foreign.delete(item))
    }

    /// Commits the changes, if there are any, with `event` as the keyspace event.
    #[inline(always)]
    pub fn close(mut self, event: &'static CStr) {
        if !self.is_changed {
            return;
        }
        let commit = Commit {
            replicate: match &self.effects {
                Some(effects) => Replicate::Effect(K::APPLY, effects),
                None => Replicate::Verbatim,
            },
            is_modified: true,
            event: Some(event),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Commits effects of a master or an AOF, without a keyspace event. Replicas of this server receive the command as it came.
    pub fn close_applied(mut self) {
        let commit = Commit {
            replicate: Replicate::Verbatim,
            is_modified: true,
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }
}

/// Whether all further items of the command that need a new layer will fail in the same way.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory | Error::NoMemory | Error::FilterTooLarge | Error::NonscalingFull
    )
}

/// Adds a layer to a filter that is full for an item.
fn grow<K: FilterKind>(
    filter: &mut Filter<K>,
    item: Hash,
    limits: MemoryLimits,
    effects: &mut Vec<u8>,
) -> Result<(), Error> {
    let shape = match limits {
        MemoryLimits::Hold => K::next_shape(filter, item)?,
        // A master of Sluice sends a layer as an effect. So another module made room for the item.
        MemoryLimits::Waived => K::next_shape_elsewhere(filter, item)?,
    };
    put_layer(filter, shape, limits)?;
    persist::put_layer_effect::<K>(effects, &shape);
    Ok(())
}

/// Adds a layer of this shape.
pub fn put_layer<K: FilterKind>(
    filter: &mut Filter<K>,
    shape: K::LayerShape,
    limits: MemoryLimits,
) -> Result<(), Error> {
    admit(limits, filter.size(), filter.layer_size(&shape))?;
    filter.grow(shape).map(|_| ()).ok_or(Error::NoMemory)
}
