//! A change of one filter in the keyspace, and everything that follows from it: memory is asked for,
//! replicas and AOF, watching clients and listeners to keyspace events are told.

use super::hash::Hash;
use super::persist;
use super::state::{Added, Filter, FilterHeader, FilterKind};
use super::{COUNTERS, MAX_BYTES};
use crate::error::Error;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, Replicate};
use crate::server::services::memory::check_room;
use std::ffi::CStr;

/// Do the limits on memory hold?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimits {
    /// They do: a client of this very server wants more.
    Hold,
    /// They don't: a master or this server's own dataset has decided already.
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

/// May a filter of so many bytes get so many more?
fn admit(limits: MemoryLimits, before: u64, more: u64) -> Result<(), Error> {
    if limits == MemoryLimits::Waived {
        return Ok(());
    }
    if before.saturating_add(more) > MAX_BYTES.get() as u64 {
        return Err(Error::FilterTooLarge);
    }
    check_room(more as usize)
}

/// Gets the memory for a filter.
pub fn build<K: FilterKind>(
    header: FilterHeader<K>,
    limits: MemoryLimits,
) -> Result<Filter<K>, Error> {
    let built =
        admit(limits, 0, header.size()).and_then(|()| header.build().ok_or(Error::NoMemory));
    built.inspect_err(count_refusal)
}

/// Counts something that was refused, for `INFO sluice`.
fn count_refusal(error: &Error) {
    match error {
        Error::OutOfMemory | Error::NoMemory | Error::FilterTooLarge => {
            COUNTERS.refused_memory.count();
        }
        _ => COUNTERS.full.count(),
    }
}

/// Items are hashed, and their memory is asked for, so many at a time: about as many cache lines as
/// a processor fetches at once.
const BATCH: usize = 32;

/// Gives the hashes of items to `each`, in batches whose memory is under way when they come.
pub fn in_batches<K: FilterKind>(
    filter: &mut Filter<K>,
    items: &[&[u8]],
    mut each: impl FnMut(&mut Filter<K>, Hash),
) {
    for batch in items.chunks(BATCH) {
        let mut hashes = [Hash::from_bits(0); BATCH];
        for (hash, item) in hashes.iter_mut().zip(batch) {
            *hash = filter.hash(item);
            K::prefetch(filter, *hash);
        }
        for hash in &hashes[..batch.len()] {
            each(filter, *hash);
        }
    }
}

/// The key of a filter, open for changes.
pub struct FilterEdit<'k, K: FilterKind> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    key: TypedKey<'k, Filter<K>>,
    /// What was done, if replicas are told of each change; otherwise they get the command as it came.
    effects: Option<Vec<u8>>,
    changed: bool,
}

impl<'k, K: FilterKind> FilterEdit<'k, K> {
    /// Opens the key that a command names first.
    #[inline]
    pub fn open(call: &'k Call<'_>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        let ctx = call.ctx;
        Ok(Self {
            ctx,
            name,
            key: TypedKey::of(ctx.open(name), K::native())?,
            effects: None,
            changed: false,
        })
    }

    /// The filter, if there is one.
    #[inline]
    pub fn filter(&mut self) -> Option<&mut Filter<K>> {
        self.key.value()
    }

    /// Notes that the filter was changed in a way that the command repeats on replicas.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Puts a new filter at the key, which holds none.
    pub fn create(&mut self, header: FilterHeader<K>) -> Result<(), Error> {
        let mut effects = Vec::new();
        persist::put_header_effect(&mut effects, &header);
        self.key.create(build(header, MemoryLimits::of(self.ctx))?);
        self.effects = Some(effects);
        self.changed = true;
        Ok(())
    }

    /// Adds an item: true if it was not there.
    #[inline]
    pub fn add(&mut self, item: &[u8], unique: bool) -> Result<bool, Error> {
        if let Some(filter) = self.key.value()
            && self.effects.is_none()
        {
            let hash = filter.hash(item);
            match K::add(filter, hash, unique) {
                Added::Known => return Ok(false),
                Added::New => {
                    COUNTERS.items_added.count();
                    self.changed = true;
                    return Ok(true);
                }
                Added::Full => {}
            }
        }
        let mut answer = Err(Error::Internal);
        self.add_all(&[item], unique, |added| answer = added)?;
        answer
    }

    /// Adds items, one after the other, and gives what became of each to `report`.
    pub fn add_all(
        &mut self,
        items: &[&[u8]],
        unique: bool,
        mut report: impl FnMut(Result<bool, Error>),
    ) -> Result<(), Error> {
        let (ctx, effects) = (self.ctx, &mut self.effects);
        let Some(filter) = self.key.value() else {
            return Err(Error::Internal);
        };
        // What is new so far, in case that replicas have to be told of it after all.
        let mut new_hashes = Vec::with_capacity(items.len());
        let mut count = 0;
        // There will not be more memory for the next item than there was for this one.
        let mut refusal = None;
        in_batches(filter, items, |filter, hash| {
            let mut added = K::add(filter, hash, unique);
            let mut refused = refusal.clone().filter(|_| added == Added::Full);
            if added == Added::Full && refused.is_none() {
                let effects = effects.get_or_insert_default();
                new_hashes
                    .drain(..)
                    .for_each(|hash| persist::put_item_effect(effects, hash));
                match grow(filter, hash, MemoryLimits::of(ctx), effects) {
                    Ok(()) => added = K::add(filter, hash, unique),
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
                (Some(error), _) => Err(error).inspect_err(count_refusal),
                (None, Added::Full) => Err(Error::Internal),
                (None, added) => Ok(added == Added::New),
            });
        });
        COUNTERS.items_added.add(count);
        self.changed |= count > 0;
        Ok(())
    }

    /// Ends the edit: tells everybody, if anything changed. `event` is the keyspace event.
    #[inline]
    pub fn close(mut self, event: &'static CStr) {
        if !self.changed {
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
}

/// Is a filter that may not grow now refused for all further items of a command, too?
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory | Error::NoMemory | Error::FilterTooLarge | Error::NonscalingFull
    )
}

/// Puts another layer on a filter that has no place for an item.
fn grow<K: FilterKind>(
    filter: &mut Filter<K>,
    item: Hash,
    limits: MemoryLimits,
    effects: &mut Vec<u8>,
) -> Result<(), Error> {
    let shape = K::next_shape(filter, item)?;
    put_layer(filter, shape, limits)?;
    persist::put_layer_effect::<K>(effects, &shape);
    Ok(())
}

/// Puts a layer of this shape on top of a filter.
pub fn put_layer<K: FilterKind>(
    filter: &mut Filter<K>,
    shape: K::LayerShape,
    limits: MemoryLimits,
) -> Result<(), Error> {
    admit(limits, filter.size(), filter.layer_size(&shape))?;
    filter.grow(shape).map(|_| ()).ok_or(Error::NoMemory)
}
