//! A step on the key of one entry, and its [`Commit`].

use super::HOT;
use super::budget;
use super::native::CACHE;
use super::persist;
use super::persist::EntryEffect;
use super::revoke::key_has_changed;
use super::stale_ends;
use super::state::{
    CacheEntry, EntryKind, Freshness, Invalidation, InvalidationChange, NewEntry,
    decide_invalidation,
};
use crate::deadlines::Listed;
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedReadKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyEdit, KeyFate, Replicate};
use std::ffi::CStr;

/// The buffer of the effect that is being replicated. It keeps its memory for the next effect.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// The bytes of an entry before a change, without its key, and how it is listed.
struct EntryBefore {
    bytes: u64,
    listed: Listed,
}

impl EntryBefore {
    fn of(entry: &CacheEntry) -> Self {
        Self {
            bytes: budget::value_bytes(entry),
            listed: stale_ends::listed(entry),
        }
    }

    /// Counts and lists the entry after the change.
    fn followed_by(self, ctx: Ctx<'_>, key: &[u8], entry: &mut CacheEntry) {
        budget::entry_has_changed(ctx.db(), key, entry, self.bytes);
        stale_ends::entry_has_changed(ctx, key, entry, self.listed);
    }
}

/// A key that is empty or holds an entry.
pub(super) type EntryEdit<'k> = KeyEdit<'k, CacheEntry>;

/// A key that is open for reading, and is empty or holds an entry.
pub(super) type EntryRead<'k> = TypedReadKey<'k, CacheEntry>;

/// An open key that is empty or holds an entry.
pub(super) trait EntryKey {
    /// The entry.
    fn entry(&mut self) -> Option<&mut CacheEntry>;

    /// When the key expires (Unix ms), if it does.
    fn expires(&self) -> Option<u64>;

    /// The freshness of the entry now (Unix ms).
    fn freshness(&mut self, now: u64) -> Freshness {
        // A fresh entry, the common case, does not need the expiry of its key.
        match self.entry().map(|entry| entry.freshness(now, || None)) {
            None => Freshness::Missing,
            Some(Freshness::Stale(u64::MAX)) => {
                let expires = self.expires();
                let entry = self.entry();
                entry.map_or(Freshness::Missing, |entry| entry.freshness(now, || expires))
            }
            Some(freshness) => freshness,
        }
    }

    /// Whether the entry has expired, and the server has not removed it yet. `now` is in Unix ms.
    fn is_expired(&mut self, now: u64) -> bool {
        let freshness = self.freshness(now);
        let entry = self.entry();
        entry.is_some_and(|entry| entry.is_expired(freshness, now))
    }
}

impl EntryKey for EntryEdit<'_> {
    fn entry(&mut self) -> Option<&mut CacheEntry> {
        self.key.value()
    }

    fn expires(&self) -> Option<u64> {
        self.key.expires()
    }
}

impl EntryKey for EntryRead<'_> {
    fn entry(&mut self) -> Option<&mut CacheEntry> {
        self.value()
    }

    fn expires(&self) -> Option<u64> {
        Self::expires(self)
    }
}

impl<'k> KeyEdit<'k, CacheEntry> {
    /// Opens a key. Error: `WRONGTYPE`.
    #[inline(always)]
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Self::of(ctx, name, ctx.open(name), &CACHE)
    }

    /// The same to serve a waiting client; see [`Ctx::open_to_serve`].
    pub(super) fn open_to_serve(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Self::of(ctx, name, ctx.open_to_serve(name), &CACHE)
    }

    /// Removes an expired entry that the server has not removed yet: the server keeps a key through the millisecond in which
    /// it expires, and for as long as a script runs. Otherwise a lease that is granted now would be revoked as soon as the
    /// server removes the key. Like the server's own expiry, this happens during commands that write nothing else.
    pub(super) fn remove_if_expired(&mut self, now: u64) {
        if self.is_expired(now) {
            self.entry_leaves();
            let commit = Commit {
                key: KeyFate::Expire,
                replicate: Replicate::Del,
                is_modified: true,
                event: None,
            };
            self.carry_out(&commit);
            key_has_changed(self.ctx.db(), self.name.bytes());
        }
    }

    /// Stores an entry. `value`: its value; `None` for a negative entry. `now` is in Unix ms.
    pub(super) fn store(
        &mut self,
        new: &NewEntry,
        value: Option<&ServerString<'_>>,
        now: u64,
        event: &'static CStr,
    ) {
        if self.key.value().is_none() {
            self.key.create(CacheEntry::tombstone());
        }
        let Some(entry) = self.key.value() else {
            return;
        };
        let before = EntryBefore::of(entry);
        let bytes = value.map_or(&[][..], ServerString::bytes);
        HOT.count_stored_bytes(self.ctx, self.name, bytes.len());
        let expires = entry.store(new, bytes, now);
        before.followed_by(self.ctx, self.name.bytes(), entry);
        budget::entry_is_stored(entry);
        self.commit(value, false, expires, true, Some(event));
    }

    /// Invalidates the entry. Returns whether there was an entry to serve. `now` is in Unix ms.
    pub(super) fn invalidate(
        &mut self,
        request: &Invalidation,
        now: u64,
        event: &'static CStr,
    ) -> bool {
        let expires = self.key.expires();
        let entry = self.key.value();
        let (existed, change) = decide_invalidation(entry.as_deref(), expires, request, now);
        match change {
            InvalidationChange::Unchanged => {}
            InvalidationChange::Mark(mark) => {
                if entry.is_none() {
                    self.key.create(CacheEntry::tombstone());
                }
                if let Some(entry) = self.key.value() {
                    let before = EntryBefore::of(entry);
                    entry.invalidate(&mark);
                    before.followed_by(self.ctx, self.name.bytes(), entry);
                }
                self.commit(None, mark.keeps_value, mark.expires(), true, Some(event));
            }
            InvalidationChange::Delete => {
                self.entry_leaves();
                let commit = Commit {
                    key: KeyFate::Delete,
                    replicate: Replicate::Del,
                    is_modified: true,
                    event: Some(event),
                };
                self.carry_out(&commit);
            }
        }
        existed
    }

    /// The entry is about to be deleted.
    fn entry_leaves(&mut self) {
        let db = self.ctx.db();
        if let Some(entry) = self.key.value() {
            budget::entry_leaves(db, self.name.bytes(), entry);
            stale_ends::entry_leaves(entry);
        }
    }

    /// Evicts the entry. In the grace period of an invalidation, a tombstone stays.
    pub(super) fn evict(&mut self, now: u64) {
        self.remove_value(now, KeyFate::Remove, Some(c"cache.evict"));
        key_has_changed(self.ctx.db(), self.name.bytes());
    }

    /// The stale time of an invalidated entry is over. In the grace period, a tombstone stays. The lease stays, too: nobody may
    /// store with it in any case.
    pub(super) fn end_stale_time(&mut self, now: u64) {
        if self.is_expired(now) {
            self.remove_if_expired(now);
        } else {
            self.remove_value(now, KeyFate::Expire, None);
        }
    }

    /// Makes the entry a tombstone in the grace period of an invalidation, and otherwise removes the key.
    fn remove_value(&mut self, now: u64, key: KeyFate, event: Option<&'static CStr>) {
        let expires = self.key.expires();
        let Some(entry) = self.key.value() else {
            return;
        };
        let request = Invalidation::default();
        let (_, change) = decide_invalidation(Some(entry), expires, &request, now);
        if let InvalidationChange::Mark(mark) = change {
            let before = EntryBefore::of(entry);
            entry.invalidate(&mark);
            before.followed_by(self.ctx, self.name.bytes(), entry);
            self.commit(None, false, mark.expires(), true, event);
        } else {
            self.entry_leaves();
            let commit = Commit {
                key,
                replicate: Replicate::Del,
                is_modified: true,
                event,
            };
            self.carry_out(&commit);
        }
    }

    /// Keeps the entry fresh for `slide` milliseconds from now (Unix ms). Clients that watch or track the key are not told:
    /// the value has not changed.
    pub(super) fn slide(&mut self, slide: u64, now: u64, event: &'static CStr) {
        let expires = self.key.expires();
        let Some(entry) = self.key.value() else {
            return;
        };
        let expires = entry.slide(slide, now, expires).unwrap_or(0);
        self.commit(None, true, expires, false, Some(event));
    }

    /// Makes the entry what an effect says.
    pub(super) fn apply(&mut self, effect: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let effect = persist::read_effect(effect).map_err(|_| Error::BadEffect)?;
        let EntryEffect {
            expires,
            head,
            keeps_value,
        } = effect;
        let has_value = head.kind() == EntryKind::Value;
        // An entry that slides has not changed for clients that watch or track it.
        let slides = keeps_value && head.fresh_until > 0;
        let has_entry = self.key.value().is_some();
        if has_value != value.is_some() || keeps_value && !has_entry {
            return Err(Error::BadEffect);
        }
        if !has_entry {
            self.key.create(CacheEntry::tombstone());
        }
        if let Some(entry) = self.key.value() {
            let state = EntryBefore::of(entry);
            let before = std::mem::replace(entry, head);
            entry.tag.set_position(before.tag.position());
            if keeps_value {
                entry.set_kind(before.kind());
                entry.bytes = before.bytes;
            } else {
                entry.bytes = value.unwrap_or_default().into();
            }
            state.followed_by(self.ctx, self.name.bytes(), entry);
        }
        let commit = Commit {
            key: fate(expires),
            replicate: Replicate::Verbatim,
            is_modified: !slides,
            event: None,
        };
        self.carry_out(&commit);
        Ok(())
    }

    /// Commits a change of the entry. `keeps_value`: whether kind and value stay as they are. `expires`: when the key expires
    /// (Unix ms); 0 keeps the key's expiry.
    fn commit(
        &mut self,
        value: Option<&ServerString<'_>>,
        keeps_value: bool,
        expires: u64,
        is_modified: bool,
        event: Option<&'static CStr>,
    ) {
        let Some(entry) = self.key.value() else {
            return;
        };
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_effect(&mut effect, entry, keeps_value, expires);
        let commit = Commit {
            key: fate(expires),
            replicate: match value {
                Some(value) => Replicate::EffectWithValue(c"CACHE.APPLY", &effect, value),
                None => Replicate::Effect(c"CACHE.APPLY", &effect),
            },
            is_modified,
            event,
        };
        self.carry_out(&commit);
    }
}

/// `expires`: when the key expires (Unix ms); 0 keeps the key's expiry.
fn fate(expires: u64) -> KeyFate {
    KeyFate::keep_until((expires > 0).then_some(expires))
}
