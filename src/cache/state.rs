//! A cached entry: whether it is fresh, and what may take its place. It knows no server, no clock and no chance.

use crate::request::MAX_SAFE;

/// The last moment that there is (Unix ms).
const LAST: u64 = MAX_SAFE as u64;

/// An entry, or what is left of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it says.
    pub kind: Kind,
    /// The value; empty unless there is one.
    pub bytes: Box<[u8]>,
    /// Until when it is fresh (Unix ms); 0 once it was invalidated.
    pub fresh_until: u64,
    /// The version that it was stored with.
    pub version: Option<Version>,
    /// How long its last rebuild took from lease to store, in microseconds; 0: unknown.
    pub rebuild_us: u32,
    /// What an invalidation has left behind.
    pub grace: Option<Box<Grace>>,
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is a value.
    Value,
    /// There is none: a cached null.
    Null,
    /// Nothing: a tombstone, which reads as a miss.
    Gone,
}

/// A version. It is one less than what is stored, so that an entry without one costs no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(std::num::NonZeroU64);

impl Version {
    /// A version from 0 to 2^53 - 1.
    pub fn new(version: u64) -> Self {
        Self(std::num::NonZeroU64::MIN.saturating_add(version))
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0.get() - 1
    }
}

/// For a while after an invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// Until when nothing is stored with a token (Unix ms).
    pub until: u64,
    /// Until when the entry may be served stale (Unix ms); of others the key's own expiry says so.
    pub stale_until: u64,
}

/// How an entry looks at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It is fresh for so many milliseconds.
    Fresh(u64),
    /// It may be served while somebody rebuilds it, for so many milliseconds (`u64::MAX`: without limit).
    Stale(u64),
    /// There is nothing to be served.
    Missing,
}

/// When a fresh entry is rebuilt already.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refresh {
    /// Not before it is stale.
    Late,
    /// When less than so many milliseconds are left.
    Early(u64),
    /// At random, sooner the longer the last rebuild took: with this factor, of which 1 is the optimum. XFetch:
    /// Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015.
    Beta(f64),
}

/// Why something is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The token's lease is not the key's current one.
    NotCurrent,
    /// The key had been invalidated so recently when the lease was given that what its holder has read may be older.
    InGrace,
    /// There is a newer version.
    Older,
}

/// What is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// For how long it is fresh, in milliseconds.
    pub fresh: u64,
    /// For how long it is served stale after that, in milliseconds.
    pub stale: u64,
    /// Its version.
    pub version: Option<Version>,
}

/// What an invalidation leaves, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Remains {
    /// For how long the entry is served stale.
    pub stale: u64,
    /// For how long nothing is stored with a token.
    pub grace: u64,
    /// The version that nothing older than is stored, meanwhile.
    pub version: Option<Version>,
}

impl Entry {
    /// A tombstone that stands for nothing.
    pub fn gone() -> Self {
        Self {
            kind: Kind::Gone,
            bytes: Box::default(),
            fresh_until: 0,
            version: None,
            rebuild_us: 0,
            grace: None,
        }
    }

    /// How it looks now (Unix ms), at a key that expires then, if it does.
    pub fn look(&self, now: u64, expires: impl FnOnce() -> Option<u64>) -> Look {
        if self.kind == Kind::Gone {
            return Look::Missing;
        }
        if now < self.fresh_until {
            return Look::Fresh(self.fresh_until - now);
        }
        match self.stale_until(expires) {
            u64::MAX => Look::Stale(u64::MAX),
            end if now < end => Look::Stale(end - now),
            _ => Look::Missing,
        }
    }

    /// Until when it may be served (Unix ms).
    fn stale_until(&self, expires: impl FnOnce() -> Option<u64>) -> u64 {
        match &self.grace {
            Some(grace) => grace.stale_until,
            None => expires().unwrap_or(u64::MAX),
        }
    }

    /// For how long it may be served after it is fresh, in milliseconds; `u64::MAX`: without limit.
    pub fn stale_time(&self, expires: Option<u64>) -> u64 {
        match self.stale_until(|| expires) {
            u64::MAX => u64::MAX,
            end => end.saturating_sub(self.fresh_until),
        }
    }

    /// The value, if there is one to serve.
    pub fn value(&self) -> Option<&[u8]> {
        (self.kind == Kind::Value).then_some(&self.bytes)
    }

    /// Should it be rebuilt already, with `left` milliseconds of fresh time? `draw` is random in all its bits.
    pub fn wants_refresh(&self, refresh: Refresh, left: u64, draw: impl FnOnce() -> u64) -> bool {
        match refresh {
            Refresh::Late => false,
            Refresh::Early(early) => left < early,
            Refresh::Beta(beta) => {
                let scale = f64::from(self.rebuild_us) / 1000.0 * beta;
                // No draw of 53 bits makes it more than this.
                if scale * 37.0 < left as f64 {
                    return false;
                }
                let uniform = ((draw() >> 11) + 1) as f64 / (1u64 << 53) as f64; // above 0, at most 1
                scale * -uniform.ln() >= left as f64
            }
        }
    }

    /// Until when nothing is stored with a token (Unix ms), if that is to come.
    pub fn grace_until(&self, now: u64) -> Option<u64> {
        let until = self.grace.as_ref()?.until;
        (until > now).then_some(until)
    }

    /// Invalidates it. Returns whether there was something to serve, until now (Unix ms), and until when the key stays;
    /// `None`: no longer.
    pub fn invalidate(
        &mut self,
        remains: Remains,
        now: u64,
        expires: Option<u64>,
    ) -> (bool, Option<u64>) {
        let look = self.look(now, || expires);
        let stale_until = match look {
            Look::Missing => 0,
            Look::Fresh(_) => now + remains.stale,
            // Out of date for some time already: that is not made longer.
            Look::Stale(left) => now + remains.stale.min(left),
        };
        let until = (now + remains.grace).max(self.grace_until(now).unwrap_or(0));
        // What an earlier invalidation remembers is remembered on, and so is what is still served.
        let in_grace = self.fresh_until == 0 || self.grace_until(now).is_some();
        let keeps = in_grace || stale_until > now || remains.version.is_some();
        let remembered = self.version.filter(|_| keeps);
        self.fresh_until = 0;
        self.version = remembered.max(remains.version);
        if stale_until <= now {
            self.kind = Kind::Gone;
            self.bytes = Box::default();
        }
        self.grace = Some(Box::new(Grace { until, stale_until }));
        let stays = until.max(stale_until);
        (look != Look::Missing, (stays > now).then_some(stays))
    }

    /// Keeps it fresh for `slide` more milliseconds, and stale for as long as before. Returns when the key now expires;
    /// `None`: as it did.
    pub fn slide(&mut self, slide: u64, now: u64, expires: Option<u64>) -> Option<u64> {
        let fresh_until = now + slide;
        let later = fresh_until.saturating_sub(self.fresh_until);
        self.fresh_until = fresh_until;
        match &mut self.grace {
            Some(grace) => {
                grace.stale_until = (grace.stale_until + later).min(LAST);
                Some(grace.stale_until.max(grace.until))
            }
            // The server itself takes later ones.
            None => expires.map(|at| at.saturating_add(later).min(LAST)),
        }
    }

    /// Stores something in its place. Returns when the key now expires.
    pub fn store(&mut self, kind: Kind, bytes: &[u8], terms: Terms, now: u64) -> u64 {
        self.kind = kind;
        if self.bytes.len() == bytes.len() {
            self.bytes.copy_from_slice(bytes);
        } else {
            self.bytes = bytes.into();
        }
        self.fresh_until = now + terms.fresh;
        let stale_until = self.fresh_until + terms.stale;
        let grace = self.grace_until(now);
        let remembered = self.version.filter(|_| grace.is_some());
        self.version = remembered.max(terms.version);
        self.grace = grace.map(|until| Box::new(Grace { until, stale_until }));
        stale_until.max(grace.unwrap_or(0))
    }
}

/// By what something is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// By nothing: there is no token.
    None,
    /// By the token of the key's current lease, which was given then (Unix ms).
    Current(u64),
    /// By the token of a lease that has ended, or of none.
    Ended,
}

/// May something be stored in an entry's place?
///
/// A lease that was given in a time of grace is as good as void: its holder may have read what is older than the
/// invalidation, however late it stores that.
pub fn admit(entry: Option<&Entry>, claim: Claim, version: Option<Version>) -> Result<(), Refusal> {
    if claim == Claim::Ended {
        return Err(Refusal::NotCurrent);
    }
    let Some(entry) = entry else {
        return Ok(());
    };
    if let Claim::Current(since) = claim
        && entry.grace_until(since).is_some()
    {
        return Err(Refusal::InGrace);
    }
    if version.is_some() && entry.version > version {
        return Err(Refusal::Older);
    }
    Ok(())
}

/// A hit slides when less than 7/8 of the time (all in milliseconds) is left, so that few hits write.
pub fn is_due_to_slide(slide: u64, left: u64) -> bool {
    left < slide - slide / 8
}

/// A duration with up to so many percent (0 to 100) more or less, at least 1. `draw` is random in all its bits.
pub fn jittered(ms: u64, percent: u64, draw: u64) -> u64 {
    let most = (u128::from(ms) * u128::from(percent) / 100) as u64;
    (ms - most + draw % (2 * most + 1)).max(1)
}
