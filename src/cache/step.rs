//! The decisions of `CACHE.FETCH` and `CACHE.SET`. They use no server, clock or randomness.

use super::lease::{Lease, LeaseOffer};
use super::state::{
    CacheEntry, EarlyRefresh, EntryKind, EntryVersion, Freshness, NewEntry, StoreRefusal,
    TokenStatus, admit, is_due_to_slide, jittered,
};

/// When a client asks again if the table of leases is full, in milliseconds.
pub const RETRY_MS: u64 = 50;

/// A request to fetch an entry.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest {
    /// The length of the lease that the client wants, in milliseconds.
    pub lease_ms: u64,
    /// When the client rebuilds a fresh entry.
    pub refresh: EarlyRefresh,
    /// A hit keeps a value fresh for this time in milliseconds; 0: it does not.
    pub slide_ms: u64,
    /// Whether a filter says that the source has no value.
    pub is_absent: bool,
    /// Whether this server is a replica, which grants no leases and slides no entries.
    pub is_replica: bool,
}

/// The state in the reply of `CACHE.FETCH`: what the client is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchState {
    /// The client uses the value.
    Hit,
    /// The client uses the negative entry.
    Null,
    /// The client rebuilds the entry.
    Lease,
    /// The client uses the stale entry. Another client rebuilds it.
    Stale,
    /// The client asks again later. Another client rebuilds the entry.
    Wait,
    /// The source has no value: a filter says so.
    Absent,
    /// The client does without the entry: its loader has failed.
    Down,
    /// The client asks the master: this server is a replica.
    Miss,
}

impl FetchState {
    /// The word of the reply.
    pub fn word(self) -> &'static str {
        match self {
            FetchState::Hit => "HIT",
            FetchState::Null => "NULL",
            FetchState::Lease => "LEASE",
            FetchState::Stale => "STALE",
            FetchState::Wait => "WAIT",
            FetchState::Absent => "ABSENT",
            FetchState::Down => "DOWN",
            FetchState::Miss => "MISS",
        }
    }
}

/// The reply of `CACHE.FETCH`, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchReply {
    /// What the client is to do.
    pub state: FetchState,
    /// Whether the reply has the value of the entry, if the entry has one.
    pub has_value: bool,
    /// A time in milliseconds, or the token of a lease.
    pub n: u64,
}

impl FetchReply {
    fn new(state: FetchState, has_value: bool, n: u64) -> Self {
        Self {
            state,
            has_value,
            n,
        }
    }

    /// The reply to a client that has to ask again.
    pub fn wait(left: u64) -> Self {
        Self::new(FetchState::Wait, false, left)
    }

    /// The reply for an entry that is fresh for this time, in milliseconds.
    pub fn fresh(kind: EntryKind, left: u64) -> Self {
        let state = match kind {
            EntryKind::Value => FetchState::Hit,
            _ => FetchState::Null,
        };
        Self::new(state, true, left)
    }

    /// Whether the cache is read: the client gets a value, or is to store one.
    pub fn is_read(&self) -> bool {
        self.has_value || self.token().is_some()
    }

    /// Whether a client that may wait waits.
    pub fn must_wait(&self) -> bool {
        self.state == FetchState::Wait
    }

    /// The token of the lease that the client is granted.
    pub fn token(&self) -> Option<u64> {
        (self.state == FetchState::Lease).then_some(self.n)
    }
}

/// The decision about a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchStep {
    /// The reply.
    pub reply: FetchReply,
    /// Whether the entry slides.
    pub slides: bool,
    /// Whether the lease is granted although the entry is fresh.
    pub is_early: bool,
}

/// Decides a fetch. `draw` makes a random number. `offer` asks the table for the key's lease; it is called only if the
/// client would take the lease.
#[inline]
pub fn decide_fetch(
    entry: Option<&CacheEntry>,
    freshness: Freshness,
    request: &FetchRequest,
    draw: impl FnOnce() -> u64,
    offer: impl FnOnce() -> LeaseOffer,
) -> FetchStep {
    let (mut slides, mut is_early) = (false, false);
    let reply = match (freshness, entry) {
        (Freshness::Fresh(left), Some(entry)) if request.is_replica => {
            FetchReply::fresh(entry.kind(), left)
        }
        (Freshness::Fresh(left), Some(entry)) => {
            if entry.wants_refresh(request.refresh, left, draw)
                && let LeaseOffer::Granted(token) = offer()
            {
                is_early = true;
                FetchReply::new(FetchState::Lease, true, token)
            } else if request.slide_ms > 0
                && entry.kind() == EntryKind::Value
                && is_due_to_slide(request.slide_ms, left)
            {
                slides = true;
                FetchReply::fresh(entry.kind(), request.slide_ms)
            } else {
                FetchReply::fresh(entry.kind(), left)
            }
        }
        (Freshness::Missing, _) if request.is_absent => {
            FetchReply::new(FetchState::Absent, false, 0)
        }
        _ if request.is_replica => {
            FetchReply::new(FetchState::Miss, freshness != Freshness::Missing, 0)
        }
        _ => rebuild(freshness != Freshness::Missing, offer()),
    };
    FetchStep {
        reply,
        slides,
        is_early,
    }
}

/// The reply to a client whose entry is stale, which `has_value` says, or missing.
fn rebuild(has_value: bool, offer: LeaseOffer) -> FetchReply {
    let busy = match has_value {
        true => FetchState::Stale,
        false => FetchState::Wait,
    };
    match offer {
        LeaseOffer::Granted(token) => FetchReply::new(FetchState::Lease, has_value, token),
        LeaseOffer::Leased(left) => FetchReply::new(busy, has_value, left),
        LeaseOffer::BackingOff(left) => FetchReply::new(FetchState::Down, has_value, left),
        LeaseOffer::TableFull => FetchReply::new(busy, has_value, RETRY_MS),
    }
}

/// A request to store an entry.
#[derive(Debug, Clone, Copy)]
pub struct StoreRequest {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// How long it is fresh, in milliseconds.
    pub fresh_ms: u64,
    /// How long it is served stale after that, in milliseconds.
    pub stale_ms: u64,
    /// By how many percent the fresh time varies, 0 to 100.
    pub jitter_percent: u64,
    /// The token of the lease.
    pub token: Option<u64>,
    /// The version of the entry.
    pub version: Option<EntryVersion>,
}

/// The decision about a request to store an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreStep {
    /// The new entry, or why it is not stored.
    pub admitted: Result<NewEntry, StoreRefusal>,
    /// Whether the key's lease or backoff ends.
    pub ends_lease: bool,
}

/// Decides a request to store an entry. `lease`: the key's lease or backoff. `draw` makes a random number.
pub fn decide_store(
    entry: Option<&CacheEntry>,
    lease: Option<&Lease>,
    request: &StoreRequest,
    now_us: u64,
    draw: impl FnOnce() -> u64,
) -> StoreStep {
    let lease = lease.filter(|lease| !lease.is_backoff);
    let (token, rebuild_us) = match (request.token, lease) {
        (None, _) => (TokenStatus::None, None),
        (Some(token), Some(lease)) if lease.token == token => {
            let took = now_us.saturating_sub(lease.since).max(1);
            let since = (now_us / 1000).min(lease.since / 1000);
            let took = u32::try_from(took).unwrap_or(u32::MAX);
            (TokenStatus::Current(since), Some(took))
        }
        (Some(_), _) => (TokenStatus::Ended, None),
    };
    let admitted = admit(entry, token, request.version);
    // A store ends the lease. A client with the current token has nothing more to do, even if it is refused.
    let ends_lease = match admitted {
        Ok(()) => true,
        Err(StoreRefusal::NotCurrent) => false,
        Err(_) => request.token.is_some(),
    };
    let admitted = admitted.map(|()| NewEntry {
        kind: request.kind,
        fresh_ms: match request.jitter_percent {
            0 => request.fresh_ms,
            percent => jittered(request.fresh_ms, percent, draw()),
        },
        stale_ms: request.stale_ms,
        version: request.version,
        rebuild_us,
    });
    StoreStep {
        admitted,
        ends_lease,
    }
}
