//! The state machine of one lock or semaphore. It uses no server, clock or randomness:
//! the time, the next fence and what is queued come in as arguments.
//!
//! Every step expects that [`Lock::expire`] was called with the same time before.

use super::holds::{Hold, Holds, Receipt, Watch};
use crate::deadlines::Listed;
use crate::request::MAX_SAFE;
use std::num::NonZeroU64;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By one owner.
    Exclusive,
    /// By any number of owners.
    Shared,
    /// A semaphore with this limit.
    Permits {
        /// As the last acquisition named it, 1 or more.
        limit: u64,
    },
}

/// Which of the two types a key or a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// `LOCK.*`
    Lock,
    /// `SEM.*`
    Semaphore,
}

impl LockKind {
    /// The type in which locks of this mode are stored.
    pub fn of(mode: Mode) -> Self {
        match mode {
            Mode::Permits { .. } => LockKind::Semaphore,
            _ => LockKind::Lock,
        }
    }
}

/// What an acquisition asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedMode {
    /// The lock for one owner alone.
    Exclusive,
    /// The lock together with other shared holders.
    Shared,
    /// Permits of a semaphore.
    Permits {
        /// How many, 1 or more.
        count: u64,
        /// The limit, at least `count`.
        limit: u64,
    },
}

/// The WATCHDOG of an acquisition: the server renews the hold while a connection lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchdog {
    /// The client id of the connection; 0: the request came without one, and nothing is renewed.
    pub client: u64,
    /// No lease that the acquisition or a renewal sets reaches further than this, in milliseconds from the grant;
    /// `u64::MAX`: no bound.
    pub max_hold: u64,
    /// Whether the hold stays when the connection closes, and ends with its lease.
    pub lingers: bool,
}

/// An acquisition.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// The owner of the hold.
    pub owner: &'a [u8],
    /// The mode that it asks for.
    pub mode: RequestedMode,
    /// The limit that the semaphore stores when it grants the permits. `None`: the limit of `mode`. They differ if the limit in force is
    /// that of another waiting client: it must not remain if that client leaves without permits.
    pub kept_limit: Option<u64>,
    /// The lease in milliseconds.
    pub lease: u64,
    /// The id that makes its repetition safe.
    pub id: Option<&'a [u8]>,
    /// How the hold is to be renewed, if at all.
    pub watch: Option<Watchdog>,
    /// The channel on which a loss of the hold is published.
    pub channel: Option<&'a [u8]>,
    /// Whether other clients are ahead in the queue.
    pub queued: bool,
}

/// What an acquisition would meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It gets a new hold.
    Grant,
    /// The owner holds already; its count rises. The fence stays.
    Reenter,
    /// It is the repetition of the owner's last acquisition, which was answered with this.
    Repeat(u64),
    /// Others hold, or are ahead.
    Busy,
    /// It would wait for its own owner.
    Never,
}

/// What an acquisition did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// A new hold with this fence.
    Granted(u64),
    /// One more on top of a hold with this fence.
    Reentered(u64),
    /// Nothing: a repetition, which gets the first reply again.
    Repeated(u64),
    /// Nothing: it may wait.
    Busy,
    /// Nothing: waiting would be for itself.
    Never,
}

impl Acquire<'_> {
    /// When the lease ends that this acquisition sets at `now` (Unix ms).
    fn until(&self, now: u64) -> u64 {
        let longest = self.watch.map_or(u64::MAX, |watch| watch.max_hold);
        now + self.lease.min(longest)
    }

    /// The mode that the semaphore stores after it granted permits under this limit.
    fn kept_mode(&self, limit: u64) -> Mode {
        Mode::Permits {
            limit: self.kept_limit.unwrap_or(limit),
        }
    }
}

/// How much a release gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So many counts or permits, 1 or more.
    Count(u64),
    /// Everything that the owner has.
    All,
}

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// Nothing: the owner holds nothing.
    NotHeld,
    /// The owner has so many left; 0: its hold is gone.
    Left(u64),
    /// Nothing: a repetition, which gets the first reply again.
    Repeated(u64),
    /// Nothing: the owner has only so many.
    TooMany(u64),
}

/// What became of a hold whose connection has closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandoned {
    /// Nothing: there is no such hold, or it is watched for another connection.
    NotWatched,
    /// It stays until its lease ends.
    Lingers,
    /// It was released.
    Released(Hold),
}

/// What an upgrade did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgraded {
    /// Nothing: the owner holds nothing.
    NotHeld,
    /// It was exclusive already; its lease may have grown.
    Already(u64),
    /// The hold is exclusive now, with a new fence.
    Upgraded(u64),
    /// Nothing: others share the lock.
    Busy,
}

/// A lock or a semaphore.
#[derive(Debug, Clone)]
pub struct Lock {
    mode: Mode,
    holds: Holds,
    /// When the key expires (Unix ms) as this module last told the server; 0: not yet.
    pub key_expires: u64,
}

impl Lock {
    /// A lock that nobody holds.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            holds: Holds::default(),
            key_expires: 0,
        }
    }

    /// How it is held. Means nothing while nobody holds it.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Who holds it.
    pub fn holds(&self) -> &Holds {
        &self.holds
    }

    /// This owner's hold at `now`.
    pub fn held_by(&self, owner: &[u8], now: u64) -> Option<&Hold> {
        self.holds.get(owner).filter(|hold| hold.until >= now)
    }

    /// Drops the holds whose lease ended before `now`, and returns them.
    pub fn expire(&mut self, now: u64) -> Vec<(Box<[u8]>, Hold)> {
        self.holds.expire(now, usize::MAX)
    }

    /// The same, but at most `most` of them are removed and returned, those that ended first. The others hold the lock no longer,
    /// and later calls return them.
    pub fn expire_some(&mut self, now: u64, most: usize) -> Vec<(Box<[u8]>, Hold)> {
        self.holds.expire(now, most)
    }

    /// Where the list of deadlines has it, if it ever had more than one hold.
    pub fn listed_mut(&mut self) -> Option<&mut Listed> {
        self.holds.listed_mut()
    }

    /// Removes the owner's hold if it has ended and is still to be returned by [`Lock::expire_some`].
    pub fn remove_ended(&mut self, owner: &[u8]) -> Option<Hold> {
        self.holds.remove_ended(owner)
    }

    /// Ends every hold at `limit` at the latest. Returns whether any was shortened.
    pub fn clamp(&mut self, limit: u64) -> bool {
        self.holds.clamp(limit)
    }

    /// Whether one other owner holds it exclusively at `now`. That the key is still there does not say so: in a script or a
    /// transaction the server's clock stands still.
    pub fn plainly_refuses(&self, owner: &[u8], now: u64) -> bool {
        self.mode == Mode::Exclusive
            && self.holds.len() == 1
            && self.holds.longest() == self.key_expires
            && self.holds.longest() >= now
            && self.holds.get(owner).is_none()
    }

    /// Returns what this acquisition would meet.
    pub fn admits(&self, request: &Acquire<'_>) -> Admission {
        let Some(hold) = self.holds.get(request.owner) else {
            return if !request.queued && self.has_room(request.mode) {
                Admission::Grant
            } else {
                Admission::Busy
            };
        };
        if let (Some(id), Some(last)) = (request.id, &hold.acquired)
            && *last.id == *id
        {
            return Admission::Repeat(last.reply);
        }
        if hold.count + counts(request.mode) > MAX_SAFE as u64 {
            return Admission::Never; // a reply must stay below 2^53
        }
        match (self.mode, request.mode) {
            (Mode::Shared, RequestedMode::Exclusive) => Admission::Never,
            (Mode::Permits { .. }, mode) if request.queued || !self.has_room(mode) => {
                Admission::Busy
            }
            _ => Admission::Reenter,
        }
    }

    /// Acquires at `now`; a new hold gets `fence`.
    pub fn acquire(&mut self, request: &Acquire<'_>, now: u64, fence: u64) -> Acquired {
        let until = request.until(now);
        match self.admits(request) {
            Admission::Busy => Acquired::Busy,
            Admission::Never => Acquired::Never,
            Admission::Repeat(reply) => {
                // A retry on a new connection: the WATCHDOG must not end with the old one.
                self.holds.change(request.owner, |hold| {
                    let bound = hold.bound();
                    watch(hold, request, now, bound);
                });
                Acquired::Repeated(reply)
            }
            Admission::Reenter => {
                self.set_limit(request);
                let fence = self.holds.change(request.owner, |hold| {
                    hold.count += counts(request.mode);
                    hold.until = hold.until.max(until);
                    let bound = hold.bound();
                    hold.acquired = receipt(request.id, hold.fence);
                    watch(hold, request, now, None);
                    keep_bound(hold, bound);
                    hold.fence
                });
                fence.map_or(Acquired::Busy, Acquired::Reentered)
            }
            Admission::Grant => {
                self.mode = match request.mode {
                    RequestedMode::Exclusive => Mode::Exclusive,
                    RequestedMode::Shared => Mode::Shared,
                    RequestedMode::Permits { limit, .. } => request.kept_mode(limit),
                };
                let mut hold = Hold {
                    count: counts(request.mode),
                    fence,
                    until,
                    acquired: receipt(request.id, fence),
                    released: None,
                    watch: None,
                    notice: 0,
                };
                watch(&mut hold, request, now, None);
                keep_bound(&mut hold, None);
                self.holds.insert(request.owner, hold);
                Acquired::Granted(fence)
            }
        }
    }

    /// Returns what a release would do.
    pub fn releases(&self, owner: &[u8], amount: Amount, id: Option<&[u8]>) -> Released {
        let Some(hold) = self.holds.get(owner) else {
            return Released::NotHeld;
        };
        if let (Some(id), Some(last)) = (id, &hold.released)
            && *last.id == *id
        {
            return Released::Repeated(last.reply);
        }
        match amount {
            Amount::All => Released::Left(0),
            Amount::Count(count) if count > hold.count => Released::TooMany(hold.count),
            Amount::Count(count) => Released::Left(hold.count - count),
        }
    }

    /// Gives back an owner's counts or permits.
    pub fn release(&mut self, owner: &[u8], amount: Amount, id: Option<&[u8]>) -> Released {
        let released = self.releases(owner, amount, id);
        match released {
            Released::Left(0) => drop(self.holds.remove_known(owner)),
            Released::Left(left) => {
                self.holds.change(owner, |hold| {
                    hold.count = left;
                    hold.released = receipt(id, left);
                });
            }
            Released::NotHeld | Released::Repeated(_) | Released::TooMany(_) => {}
        }
        released
    }

    /// Sets an owner's lease to `lease` milliseconds from `now`, shorter or longer than it was;
    /// a WATCHDOG goes on with that length. Returns the fence.
    pub fn renew(&mut self, owner: &[u8], lease: u64, now: u64) -> Option<u64> {
        self.holds.change(owner, |hold| {
            hold.until = now + lease;
            if let Some(watch) = &mut hold.watch {
                watch.lease = lease;
            }
            hold.fence
        })
    }

    /// The server's own renewal of a watched hold: never shortens it. Returns whether the hold lasts longer now; `None` if
    /// there is no such hold, or if it is not watched for that connection.
    pub fn renew_watched(&mut self, owner: &[u8], client: u64, now: u64) -> Option<bool> {
        let watch = self.watch_of(owner, client)?;
        if watch.lease == 0 {
            return Some(false); // somebody set an end to it
        }
        let until = (now + watch.lease).min(watch.bound);
        self.holds.change(owner, |hold| {
            let is_longer = hold.until < until;
            hold.until = hold.until.max(until);
            is_longer
        })
    }

    /// A connection has closed that a hold is watched for.
    pub fn abandon(&mut self, owner: &[u8], client: u64) -> Abandoned {
        match self.watch_of(owner, client) {
            None => return Abandoned::NotWatched,
            Some(watch) if watch.lingers => {}
            Some(_) => {
                let hold = self.holds.remove(owner);
                return hold.map_or(Abandoned::NotWatched, Abandoned::Released);
            }
        }
        self.holds.change(owner, |hold| {
            if let Some(watch) = &mut hold.watch {
                watch.client = 0;
            }
        });
        Abandoned::Lingers
    }

    /// Turns a shared hold into the exclusive one, if no other owner shares the lock. The lease
    /// becomes the later of the old and the new one.
    pub fn upgrade(&mut self, owner: &[u8], lease: u64, now: u64, fence: u64) -> Upgraded {
        let exclusive = self.mode == Mode::Exclusive;
        if self.holds.get(owner).is_some() && !exclusive && self.holds.len() > 1 {
            return Upgraded::Busy;
        }
        let upgraded = self.holds.change(owner, |hold| {
            hold.until = hold.until.max(now + lease);
            if exclusive {
                return Upgraded::Already(hold.fence);
            }
            hold.fence = fence;
            Upgraded::Upgraded(fence)
        });
        if upgraded.is_some() {
            self.mode = Mode::Exclusive;
        }
        upgraded.unwrap_or(Upgraded::NotHeld)
    }

    /// Turns an exclusive hold into a shared one. Returns the fence, and whether it was exclusive.
    pub fn downgrade(&mut self, owner: &[u8]) -> Option<(u64, bool)> {
        let fence = self.holds.get(owner)?.fence;
        let exclusive = self.mode == Mode::Exclusive;
        self.mode = Mode::Shared;
        Some((fence, exclusive))
    }

    /// Sets a hold to what the master decided. An exclusive one is the only one.
    pub fn put(&mut self, mode: Mode, owner: &[u8], hold: Hold) {
        if mode == Mode::Exclusive {
            self.holds.clear();
        }
        self.mode = mode;
        self.holds.insert(owner, hold);
    }

    /// Removes a hold as the master decided.
    pub fn drop_owner(&mut self, owner: &[u8]) {
        if self.holds.remove(owner).is_none() {
            self.holds.remove_ended(owner);
        }
    }

    /// The same holds for a copy of the key, with those that have ended, because a replica copies them as well. A WATCHDOG, a notice and
    /// the place in the list of deadlines stay with the original.
    pub fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.holds.visit_mut(&mut |hold| {
            hold.watch = None;
            hold.notice = 0;
        });
        if let Some(listed) = copy.listed_mut() {
            *listed = Listed::default();
        }
        copy
    }

    /// Remembers under which number the owner's hold is watched.
    pub fn set_watch_number(&mut self, owner: &[u8], number: u64) {
        self.holds.change(owner, |hold| {
            if let Some(watch) = &mut hold.watch {
                watch.number = number;
            }
        });
    }

    /// Remembers the number of the notice that is published if the owner's hold is lost.
    pub fn set_notice(&mut self, owner: &[u8], number: u64) {
        self.holds.change(owner, |hold| hold.notice = number);
    }

    /// Calls `visit` with every hold, so that its memory can be moved.
    pub fn visit_mut(&mut self, visit: &mut dyn FnMut(&mut Hold)) {
        self.holds.visit_mut(visit);
    }

    fn has_room(&self, mode: RequestedMode) -> bool {
        match mode {
            RequestedMode::Permits { count, limit } => {
                limit.checked_sub(self.holds.total()) >= Some(count)
            }
            RequestedMode::Shared => self.mode == Mode::Shared || self.holds.is_empty(),
            RequestedMode::Exclusive => self.holds.is_empty(),
        }
    }

    fn set_limit(&mut self, request: &Acquire<'_>) {
        if let RequestedMode::Permits { limit, .. } = request.mode {
            self.mode = request.kept_mode(limit);
        }
    }

    fn watch_of(&self, owner: &[u8], client: u64) -> Option<&Watch> {
        let watch = self.holds.get(owner)?.watch.as_deref()?;
        (watch.client == client).then_some(watch)
    }
}

fn counts(mode: RequestedMode) -> u64 {
    match mode {
        RequestedMode::Permits { count, .. } => count,
        _ => 1,
    }
}

fn receipt(id: Option<&[u8]>, reply: u64) -> Option<Box<Receipt>> {
    id.map(|id| {
        Box::new(Receipt {
            id: id.into(),
            reply,
            bound: None,
        })
    })
}

/// Stores the bound of the renewals for a repetition of the acquisition. `before`: the bound before the acquisition.
fn keep_bound(hold: &mut Hold, before: Option<u64>) {
    if let Some(receipt) = &mut hold.acquired {
        let bound = hold.watch.as_ref().map(|watch| watch.bound).or(before);
        receipt.bound = bound.and_then(NonZeroU64::new);
    }
}

/// Binds the hold to the connection that asked last; without one, leaves it as it is. The renewals keep the bound `kept`, or
/// have the one that the request asks for.
fn watch(hold: &mut Hold, request: &Acquire<'_>, now: u64, kept: Option<u64>) {
    if let Some(watchdog) = request.watch.filter(|watchdog| watchdog.client != 0) {
        let number = hold.watch.as_ref().map_or(0, |watch| watch.number);
        let bound = kept.unwrap_or_else(|| now.saturating_add(watchdog.max_hold));
        hold.watch = Some(Box::new(Watch {
            client: watchdog.client,
            lease: request.lease,
            number,
            bound,
            lingers: watchdog.lingers,
        }));
    }
}
