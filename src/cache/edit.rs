//! A change of one entry in the keyspace, and what follows from it: its expiry, replicas and AOF, `WATCH`ing and tracking
//! clients, listeners to keyspace events.

use super::native::CACHE;
use super::persist;
use super::revoke::changed;
use super::state::{Entry, Kind, Look, Remains, Terms};
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use std::ffi::CStr;

/// A buffer for effects, kept to be used again.
static EFFECT: MainThread<Vec<u8>> = MainThread::new();

/// A key that is empty or holds an entry.
pub(super) struct Edit<'k> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    slot: TypedKey<'k, Entry>,
}

impl<'k> Edit<'k> {
    /// Opens a key. Error: `WRONGTYPE`.
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        let slot = TypedKey::of(ctx.open(name), &CACHE)?;
        Ok(Self { ctx, name, slot })
    }

    /// The entry.
    pub(super) fn entry(&mut self) -> Option<&mut Entry> {
        self.slot.value()
    }

    /// How the entry looks now (Unix ms).
    pub(super) fn look(&mut self, now: u64) -> Look {
        // A fresh entry is the common case, and does not need to know when its key expires.
        match self.slot.value().map(|entry| entry.look(now, || None)) {
            None => Look::Missing,
            Some(Look::Stale(u64::MAX)) => {
                let expires = self.slot.expires();
                let entry = self.slot.value();
                entry.map_or(Look::Missing, |entry| entry.look(now, || expires))
            }
            Some(look) => look,
        }
    }

    /// Removes an entry that is over, as the server is about to: it keeps a key through the very millisecond in which it
    /// expires, and for as long as a script runs. A lease that was given then would be void as soon as the key goes. Like
    /// the server's own expiry it may come with a command that does nothing else.
    pub(super) fn remove_if_over(&mut self, now: u64) {
        let entry = self.slot.value();
        let is_free = entry.is_some_and(|entry| entry.grace_until(now).is_none());
        if is_free && self.look(now) == Look::Missing {
            let commit = Commit {
                key: KeyFate::Expire,
                replicate: Replicate::Del,
                is_modified: true,
                event: None,
            };
            self.slot.commit(self.ctx, self.name, &commit);
            changed(self.ctx.db(), self.name.bytes());
        }
    }

    /// Stores a value, or a null if there is none. `rebuild_us`: how long that took, if that is known.
    pub(super) fn store(
        &mut self,
        value: Option<&ServerString<'_>>,
        terms: Terms,
        rebuild_us: Option<u32>,
        now: u64,
        event: &'static CStr,
    ) {
        if self.slot.value().is_none() {
            self.slot.create(Entry::gone());
        }
        let Some(entry) = self.slot.value() else {
            return;
        };
        let kind = if value.is_some() {
            Kind::Value
        } else {
            Kind::Null
        };
        let expires = entry.store(kind, value.map_or(&[], ServerString::bytes), terms, now);
        entry.rebuild_us = rebuild_us.unwrap_or(entry.rebuild_us);
        self.commit(value, false, expires, true, event);
    }

    /// Invalidates the entry. Returns whether there was one to serve.
    pub(super) fn invalidate(&mut self, remains: Remains, now: u64, event: &'static CStr) -> bool {
        let expires = self.slot.expires();
        if self.slot.value().is_none() {
            if remains.grace == 0 {
                return false;
            }
            self.slot.create(Entry::gone());
        }
        let Some(entry) = self.slot.value() else {
            return false;
        };
        let tombstone = (entry.kind == Kind::Gone).then(|| entry.clone());
        let (existed, stays) = entry.invalidate(remains, now, expires);
        if tombstone.as_ref() == Some(entry) && remains.grace == 0 {
            return false; // nothing has changed
        }
        let keeps = entry.kind != Kind::Gone;
        match stays {
            Some(until) => {
                self.commit(None, keeps, until, true, event);
            }
            None => {
                let commit = Commit {
                    key: KeyFate::Delete,
                    replicate: Replicate::Del,
                    is_modified: true,
                    event: Some(event),
                };
                self.slot.commit(self.ctx, self.name, &commit);
            }
        }
        existed
    }

    /// Keeps the entry fresh for `slide` more milliseconds. Clients that track or watch the key are not told: they would
    /// read what they have.
    pub(super) fn slide(&mut self, slide: u64, now: u64, event: &'static CStr) {
        let expires = self.slot.expires();
        let Some(entry) = self.slot.value() else {
            return;
        };
        let expires = entry.slide(slide, now, expires).unwrap_or(0);
        self.commit(None, true, expires, false, event);
    }

    /// Makes the entry what an effect says.
    pub(super) fn apply(&mut self, effect: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let effect = persist::read_effect(effect).map_err(|_| Error::BadEffect)?;
        let has_value = effect.head.kind == Kind::Value;
        let has_entry = self.slot.value().is_some();
        if has_value != value.is_some() || effect.keeps && !has_entry {
            return Err(Error::BadEffect);
        }
        if !has_entry {
            self.slot.create(Entry::gone());
        }
        if let Some(entry) = self.slot.value() {
            let before = std::mem::replace(entry, effect.head);
            if effect.keeps {
                (entry.kind, entry.bytes) = (before.kind, before.bytes);
            } else {
                entry.bytes = value.unwrap_or_default().into();
            }
        }
        let commit = Commit {
            key: fate(effect.expires),
            replicate: Replicate::Verbatim,
            is_modified: true,
            event: None,
        };
        self.slot.commit(self.ctx, self.name, &commit);
        Ok(())
    }

    /// Commits a change of the entry. `keeps`: the value stays as it is; `expires`: Unix ms, or 0 to keep the key's expiry.
    fn commit(
        &mut self,
        value: Option<&ServerString<'_>>,
        keeps: bool,
        expires: u64,
        is_modified: bool,
        event: &'static CStr,
    ) {
        let Some(entry) = self.slot.value() else {
            return;
        };
        let mut effect = EFFECT.get();
        effect.clear();
        persist::put_effect(&mut effect, entry, keeps, expires);
        let commit = Commit {
            key: fate(expires),
            replicate: match value {
                Some(value) => Replicate::EffectWithValue(c"CACHE.APPLY", &effect, value),
                None => Replicate::Effect(c"CACHE.APPLY", &effect),
            },
            is_modified,
            event: Some(event),
        };
        self.slot.commit(self.ctx, self.name, &commit);
    }
}

/// `expires`: Unix ms, or 0 to keep the key's expiry.
fn fate(expires: u64) -> KeyFate {
    match expires {
        0 => KeyFate::Keep,
        at => KeyFate::ExpireAt(at),
    }
}
