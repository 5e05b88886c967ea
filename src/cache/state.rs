//! The state machine of a cached entry. It uses no server, clock or randomness.

use super::sieve::EntryPosition;
use crate::deadlines::Listed;
use crate::request::MAX_SAFE;
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};

/// The largest time (Unix ms).
const LAST_MS: u64 = MAX_SAFE as u64;

/// A cached entry, or the tombstone of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its kind, and where it is counted.
    pub tag: EntryTag,
    /// The value; empty for other kinds.
    pub bytes: Box<[u8]>,
    /// Until when it is fresh (Unix ms); 0 after an invalidation.
    pub fresh_until: u64,
    /// The version that it was stored with.
    pub version: Option<EntryVersion>,
    /// How long its last rebuild took from lease to store, in microseconds; 0: unknown.
    pub rebuild_us: u32,
    /// The effects of the last invalidation.
    pub grace: Option<Box<EntryGrace>>,
}

/// The kind of an entry, and its position in the queue of all entries. The position is no part of the dataset: entries in different
/// positions are equal, and a copy has no position.
///
/// Two bits are the kind, thirty are the position, so that an entry has 48 bytes.
pub struct EntryTag(Cell<u32>);

impl EntryTag {
    const KIND_SHIFT: u32 = 30;
    const POSITION: u32 = (1 << Self::KIND_SHIFT) - 1;

    /// The tag of an entry without a position.
    pub fn new(kind: EntryKind) -> Self {
        Self(Cell::new((kind as u32) << Self::KIND_SHIFT))
    }

    fn kind(&self) -> EntryKind {
        match self.0.get() >> Self::KIND_SHIFT {
            0 => EntryKind::Value,
            1 => EntryKind::Negative,
            _ => EntryKind::Tombstone,
        }
    }

    /// The position, if the entry is counted.
    pub fn position(&self) -> Option<EntryPosition> {
        NonZeroU32::new(self.0.get() & Self::POSITION).map(EntryPosition::numbered)
    }

    /// Sets the position.
    pub fn set_position(&self, position: Option<EntryPosition>) {
        let position = position.map_or(0, |position| position.number().get());
        self.0
            .set(self.0.get() & !Self::POSITION | position & Self::POSITION);
    }

    /// Removes the position and returns it.
    pub fn take_position(&self) -> Option<EntryPosition> {
        let position = self.position();
        self.set_position(None);
        position
    }
}

impl fmt::Debug for EntryTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl Clone for EntryTag {
    fn clone(&self) -> Self {
        Self::new(self.kind())
    }
}

impl PartialEq for EntryTag {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }
}

impl Eq for EntryTag {}

const _: () = assert!(size_of::<CacheEntry>() == 48);

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A value.
    Value,
    /// A negative entry: the source has no value.
    Negative,
    /// A tombstone, which reads as a miss.
    Tombstone,
}

/// A version. The stored number is one higher, so that an entry without a version takes no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryVersion(std::num::NonZeroU64);

impl EntryVersion {
    /// A version from 0 to 2^53 - 1.
    pub fn new(version: u64) -> Self {
        Self(std::num::NonZeroU64::MIN.saturating_add(version))
    }

    /// The number of the version.
    pub fn number(self) -> u64 {
        self.0.get() - 1
    }
}

/// The times that an invalidation sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePeriod {
    /// Until when nothing is stored with a token (Unix ms).
    pub until: u64,
    /// Until when the entry may be served stale (Unix ms). Without an invalidation, this is the expiry of the key.
    pub stale_until: u64,
}

/// The times that the last invalidation of an entry has set, and where the entry is listed by the end of its stale time. The latter
/// is no part of the dataset: entries are equal without it, and a copy is not listed.
#[derive(Debug)]
pub struct EntryGrace {
    times: GracePeriod,
    /// Where the entry is listed.
    pub listed: Listed,
}

impl From<GracePeriod> for Box<EntryGrace> {
    fn from(times: GracePeriod) -> Self {
        let listed = Listed::default();
        Self::new(EntryGrace { times, listed })
    }
}

impl Deref for EntryGrace {
    type Target = GracePeriod;

    fn deref(&self) -> &GracePeriod {
        &self.times
    }
}

impl DerefMut for EntryGrace {
    fn deref_mut(&mut self) -> &mut GracePeriod {
        &mut self.times
    }
}

impl Clone for EntryGrace {
    fn clone(&self) -> Self {
        let listed = Listed::default();
        Self { listed, ..*self }
    }
}

impl PartialEq for EntryGrace {
    fn eq(&self, other: &Self) -> bool {
        self.times == other.times
    }
}

impl Eq for EntryGrace {}

/// The freshness of an entry at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It is fresh for this time in milliseconds.
    Fresh(u64),
    /// It may be served stale for this time in milliseconds (`u64::MAX`: without limit).
    Stale(u64),
    /// It may not be served, or does not exist.
    Missing,
}

/// When a client rebuilds an entry that is still fresh.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EarlyRefresh {
    /// Never.
    Off,
    /// When the remaining fresh time is less than this, in milliseconds.
    Before(u64),
    /// At random, earlier if the last rebuild took longer. The factor 1 is the optimum. XFetch: Vattani, Chierichetti and
    /// Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015.
    Beta(f64),
}

/// Why an entry is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRefusal {
    /// The token's lease is not the key's current lease.
    NotCurrent,
    /// The lease was granted in the grace period of an invalidation. Its holder may have read an older value.
    InGrace,
    /// The stored version is newer.
    Older,
}

/// An entry that is to be stored, besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry {
    /// Its kind.
    pub kind: EntryKind,
    /// How long it is fresh, in milliseconds.
    pub fresh_ms: u64,
    /// How long it is served stale after that, in milliseconds.
    pub stale_ms: u64,
    /// Its version.
    pub version: Option<EntryVersion>,
    /// How long the rebuild took, in microseconds, if that is known.
    pub rebuild_us: Option<u32>,
}

/// A request to invalidate an entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Invalidation {
    /// How long the entry is served stale, in milliseconds.
    pub stale_ms: u64,
    /// How long nothing is stored with a token, in milliseconds.
    pub grace_ms: u64,
    /// The lowest version that is stored during this time.
    pub version: Option<EntryVersion>,
}

/// How an invalidation changes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidationChange {
    /// It does not.
    Unchanged,
    /// The key is deleted.
    Delete,
    /// The entry becomes stale, or a tombstone.
    Mark(InvalidationMark),
}

/// The changes of an entry that is invalidated and stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidationMark {
    /// Whether the entry stays to be served stale. Otherwise it becomes a tombstone.
    pub keeps_value: bool,
    /// The version that is remembered.
    pub version: Option<EntryVersion>,
    /// The times of the invalidation.
    pub grace: GracePeriod,
}

impl InvalidationMark {
    /// When the key expires (Unix ms).
    pub fn expires(&self) -> u64 {
        self.grace.until.max(self.grace.stale_until)
    }
}

impl CacheEntry {
    /// A tombstone without a version and without a grace period.
    pub fn tombstone() -> Self {
        Self {
            tag: EntryTag::new(EntryKind::Tombstone),
            bytes: Box::default(),
            fresh_until: 0,
            version: None,
            rebuild_us: 0,
            grace: None,
        }
    }

    /// The kind.
    #[inline]
    pub fn kind(&self) -> EntryKind {
        self.tag.kind()
    }

    /// Changes the kind. The entry keeps its position.
    pub fn set_kind(&mut self, kind: EntryKind) {
        let position = self.tag.position();
        self.tag = EntryTag::new(kind);
        self.tag.set_position(position);
    }

    /// The freshness now (Unix ms). `expires`: when the key expires, if it does.
    pub fn freshness(&self, now: u64, expires: impl FnOnce() -> Option<u64>) -> Freshness {
        if self.kind() == EntryKind::Tombstone {
            return Freshness::Missing;
        }
        if now < self.fresh_until {
            return Freshness::Fresh(self.fresh_until - now);
        }
        match self.stale_until(expires) {
            u64::MAX => Freshness::Stale(u64::MAX),
            end if now < end => Freshness::Stale(end - now),
            _ => Freshness::Missing,
        }
    }

    /// Until when it may be served (Unix ms).
    fn stale_until(&self, expires: impl FnOnce() -> Option<u64>) -> u64 {
        match &self.grace {
            Some(grace) => grace.stale_until,
            None => expires().unwrap_or(u64::MAX),
        }
    }

    /// How long it may be served stale after its fresh time, in milliseconds; `u64::MAX`: without limit.
    pub fn stale_time(&self, expires: Option<u64>) -> u64 {
        match self.stale_until(|| expires) {
            u64::MAX => u64::MAX,
            end => end.saturating_sub(self.fresh_until),
        }
    }

    /// The value, if the entry has one.
    pub fn value(&self) -> Option<&[u8]> {
        (self.kind() == EntryKind::Value).then_some(&self.bytes)
    }

    /// Whether a client rebuilds it although it is fresh for `left` milliseconds. All bits of `draw` are random.
    pub fn wants_refresh(
        &self,
        refresh: EarlyRefresh,
        left: u64,
        draw: impl FnOnce() -> u64,
    ) -> bool {
        match refresh {
            EarlyRefresh::Off => false,
            EarlyRefresh::Before(early) => left < early,
            EarlyRefresh::Beta(beta) => {
                let scale = f64::from(self.rebuild_us) / 1000.0 * beta;
                // No draw of 53 bits makes the time longer than this.
                if scale * 37.0 < left as f64 {
                    return false;
                }
                let uniform = ((draw() >> 11) + 1) as f64 / (1u64 << 53) as f64; // above 0, at most 1
                scale * -uniform.ln() >= left as f64
            }
        }
    }

    /// The end of the grace period (Unix ms), if it is later than `now`.
    pub fn grace_until(&self, now: u64) -> Option<u64> {
        let until = self.grace.as_ref()?.until;
        (until > now).then_some(until)
    }

    /// Whether neither the entry nor its grace period matters any more.
    pub fn is_expired(&self, freshness: Freshness, now: u64) -> bool {
        freshness == Freshness::Missing && self.grace_until(now).is_none()
    }

    /// Carries out an invalidation after which the entry stays.
    pub fn invalidate(&mut self, mark: &InvalidationMark) {
        self.fresh_until = 0;
        self.version = mark.version;
        if !mark.keeps_value {
            self.set_kind(EntryKind::Tombstone);
            self.bytes = Box::default();
        }
        self.grace = Some(mark.grace.into());
    }

    /// Keeps it fresh for `slide` milliseconds from now; its stale time stays as long as it was. Returns when the key
    /// expires; `None`: as before.
    pub fn slide(&mut self, slide: u64, now: u64, expires: Option<u64>) -> Option<u64> {
        let fresh_until = now + slide;
        let later = fresh_until.saturating_sub(self.fresh_until);
        self.fresh_until = fresh_until;
        match &mut self.grace {
            Some(grace) => {
                grace.stale_until = (grace.stale_until + later).min(LAST_MS);
                Some(grace.stale_until.max(grace.until))
            }
            // The server accepts later times.
            None => expires.map(|at| at.saturating_add(later).min(LAST_MS)),
        }
    }

    /// Replaces it by a new entry. Returns when the key expires.
    pub fn store(&mut self, new: &NewEntry, bytes: &[u8], now: u64) -> u64 {
        self.set_kind(new.kind);
        if self.bytes.len() == bytes.len() {
            self.bytes.copy_from_slice(bytes);
        } else {
            self.bytes = bytes.into();
        }
        self.fresh_until = now + new.fresh_ms;
        let stale_until = self.fresh_until + new.stale_ms;
        let grace = self.grace_until(now);
        let remembered = self.version.filter(|_| grace.is_some());
        self.version = remembered.max(new.version);
        self.rebuild_us = new.rebuild_us.unwrap_or(self.rebuild_us);
        self.grace = grace.map(|until| GracePeriod { until, stale_until }.into());
        stale_until.max(grace.unwrap_or(0))
    }
}

/// Decides an invalidation. Returns whether there was an entry to serve, and the change of the key. `expires`: when the key
/// expires; times are Unix ms.
pub fn decide_invalidation(
    entry: Option<&CacheEntry>,
    expires: Option<u64>,
    request: &Invalidation,
    now: u64,
) -> (bool, InvalidationChange) {
    let Some(entry) = entry else {
        if request.grace_ms == 0 {
            return (false, InvalidationChange::Unchanged);
        }
        let empty = CacheEntry::tombstone();
        return decide_invalidation(Some(&empty), expires, request, now);
    };
    let freshness = entry.freshness(now, || expires);
    let stale_until = match freshness {
        Freshness::Missing => 0,
        Freshness::Fresh(_) => now + request.stale_ms,
        // An entry that is stale already does not stay longer.
        Freshness::Stale(left) => now + request.stale_ms.min(left),
    };
    let until = (now + request.grace_ms).max(entry.grace_until(now).unwrap_or(0));
    let keeps_value = stale_until > now;
    // The version of an earlier invalidation is kept, and so is that of an entry that is still served.
    let in_grace = entry.fresh_until == 0 || entry.grace_until(now).is_some();
    let keeps_version = in_grace || keeps_value || request.version.is_some();
    let mark = InvalidationMark {
        keeps_value,
        version: entry.version.filter(|_| keeps_version).max(request.version),
        grace: GracePeriod { until, stale_until },
    };
    let change = if request.grace_ms == 0 && entry.is_marked(&mark) {
        InvalidationChange::Unchanged
    } else if mark.expires() > now {
        InvalidationChange::Mark(mark)
    } else {
        InvalidationChange::Delete
    };
    (freshness != Freshness::Missing, change)
}

impl CacheEntry {
    /// Whether it is the tombstone that this mark makes.
    fn is_marked(&self, mark: &InvalidationMark) -> bool {
        self.kind() == EntryKind::Tombstone
            && self.fresh_until == 0
            && self.version == mark.version
            && self.grace.as_ref().map(|grace| grace.times) == Some(mark.grace)
    }
}

/// The token of a request to store an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenStatus {
    /// The request has no token.
    None,
    /// It has the token of the key's current lease, granted at this time (Unix ms).
    Current(u64),
    /// It has another token.
    Ended,
}

/// Decides whether a request may store an entry.
///
/// A lease of a grace period does not count: its holder may have read a value older than the invalidation, no matter when it
/// stores that value.
pub fn admit(
    entry: Option<&CacheEntry>,
    token: TokenStatus,
    version: Option<EntryVersion>,
) -> Result<(), StoreRefusal> {
    if token == TokenStatus::Ended {
        return Err(StoreRefusal::NotCurrent);
    }
    let Some(entry) = entry else {
        return Ok(());
    };
    if let TokenStatus::Current(since) = token
        && entry.grace_until(since).is_some()
    {
        return Err(StoreRefusal::InGrace);
    }
    if version.is_some() && entry.version > version {
        return Err(StoreRefusal::Older);
    }
    Ok(())
}

/// Whether a hit slides the entry: less than 7/8 of the time (all in milliseconds) is left. So few hits write.
pub fn is_due_to_slide(slide: u64, left: u64) -> bool {
    left < slide - slide / 8
}

/// A duration with up to `percent` percent (0 to 100) more or less, at least 1. All bits of `draw` are random.
pub fn jittered(ms: u64, percent: u64, draw: u64) -> u64 {
    let most = (u128::from(ms) * u128::from(percent) / 100) as u64;
    (ms - most + draw % (2 * most + 1)).max(1)
}
