//! `LOCK.*` and `SEM.*` one after the other: holds of a lock or a semaphore, with their counts, fences and request ids.
//!
//! What a history cannot show is left out of it, so that the model may be strict. Who waits in line is invisible from
//! outside, so where some wait, the line must never be the only reason for a refusal: only exclusive holds, or permits of
//! one size, are asked for there. Where leases end, everybody waits or nobody does, for the same reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::checker::Model;

/// Whoever holds: a client, and which of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub usize, pub u32);

impl Owner {
    /// Its name on the wire.
    pub fn name(self) -> String {
        format!("c{}.{}", self.0, self.1)
    }

    /// The owner of a name.
    pub fn of(name: &str) -> Option<Self> {
        let (client, number) = name.strip_prefix('c')?.split_once('.')?;
        Some(Self(client.parse().ok()?, number.parse().ok()?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Lock,
    Semaphore { limit: i64 },
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Of one key, or of several at once.
    Acquire {
        keys: Vec<usize>,
        owner: Owner,
        shared: bool,
        permits: i64,
        lease: u64,
        block: Option<u64>,
        id: Option<u32>,
    },
    /// `permits`: `None` is all.
    Release {
        keys: Vec<usize>,
        owner: Owner,
        permits: Option<i64>,
        id: Option<u32>,
    },
    Renew {
        key: usize,
        owner: Owner,
    },
    Upgrade {
        key: usize,
        owner: Owner,
    },
    Downgrade {
        key: usize,
        owner: Owner,
    },
    Held {
        key: usize,
        owner: Owner,
    },
    Look {
        key: usize,
    },
    /// The forced release.
    Delete {
        key: usize,
    },
    /// The lease of an acquisition is over, which got these fences, if that is known.
    LeaseEnds {
        keys: Vec<usize>,
        owner: Owner,
        fences: Option<Vec<i64>>,
    },
    /// A waiter was served, and gone before it could be told.
    GivenBack {
        keys: Vec<usize>,
        owner: Owner,
        permits: i64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Of an acquisition: a fence for each key.
    Fences(Option<Vec<i64>>),
    /// Of a release: what is left, for each key.
    Left(Vec<Option<i64>>),
    /// More was to be released than there is.
    TooMany,
    Fence(Option<i64>),
    Shown(Option<Shown>),
    Deleted(bool),
    Happened,
}

/// All that is seen of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub shared: bool,
    /// Who holds, how often, with which fence.
    pub holders: Vec<(Owner, i64, i64)>,
}

/// A fence, or, if its owner was never told, one that it must be larger than.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fence {
    Seen(i64),
    Above(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    count: i64,
    fence: Fence,
    acquired: Option<u32>,
    released: Option<(u32, i64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    shared: bool,
    holds: BTreeMap<Owner, Hold>,
}

/// A few locks, or a few semaphores, and the largest fence that anybody was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holds {
    kind: Kind,
    keys: Vec<Key>,
    last: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Admission {
    Refused,
    Repeated,
    Reentered,
    Granted,
}

impl Holds {
    pub fn new(kind: Kind, keys: usize) -> Self {
        Self {
            kind,
            keys: vec![Key::default(); keys],
            last: 0,
        }
    }

    fn admits(
        &self,
        key: usize,
        owner: Owner,
        shared: bool,
        permits: i64,
        id: Option<u32>,
    ) -> Admission {
        let key = &self.keys[key];
        let hold = key.holds.get(&owner);
        if id.is_some() && hold.is_some_and(|hold| hold.acquired == id) {
            return Admission::Repeated;
        }
        let used: i64 = key.holds.values().map(|hold| hold.count).sum();
        let has_room = match (self.kind, hold) {
            (Kind::Semaphore { limit }, _) => used + permits <= limit,
            (Kind::Lock, Some(_)) => shared || !key.shared,
            (Kind::Lock, None) => key.holds.is_empty() || (shared && key.shared),
        };
        match hold {
            _ if !has_room => Admission::Refused,
            Some(_) => Admission::Reentered,
            None => Admission::Granted,
        }
    }

    /// Is this the fence of that hold?
    fn is_fence(&mut self, key: usize, owner: Owner, seen: i64) -> bool {
        let Some(hold) = self.keys[key].holds.get_mut(&owner) else {
            return false;
        };
        match hold.fence {
            Fence::Seen(fence) => fence == seen,
            Fence::Above(least) => {
                hold.fence = Fence::Seen(seen);
                self.last = self.last.max(seen);
                seen > least
            }
        }
    }

    /// Gives a new fence, if it may be this one.
    fn new_fence(&mut self, above: i64, seen: Option<i64>) -> Option<Fence> {
        let Some(seen) = seen else {
            return Some(Fence::Above(above));
        };
        self.last = self.last.max(seen);
        (seen > above).then_some(Fence::Seen(seen))
    }

    fn acquire(&mut self, op: &Op, reply: Option<&Reply>) -> bool {
        let Op::Acquire {
            keys,
            owner,
            shared,
            permits,
            id,
            ..
        } = op
        else {
            unreachable!("it is an acquisition")
        };
        let admits = |key: &usize| self.admits(*key, *owner, *shared, *permits, *id);
        let admissions: Vec<_> = keys.iter().map(admits).collect();
        let is_refused = admissions.contains(&Admission::Refused);
        let fences = match reply {
            Some(Reply::Fences(fences)) if fences.is_none() != is_refused => return false,
            Some(Reply::Fences(Some(fences))) => Some(fences),
            Some(Reply::Fences(None)) | None if is_refused => return true,
            None => None,
            _ => return false,
        };
        let above = self.last;
        let mut given = BTreeSet::new();
        for (index, (&key, admission)) in keys.iter().zip(admissions).enumerate() {
            let seen = fences.map(|fences| fences[index]);
            if admission == Admission::Granted {
                let Some(fence) = self.new_fence(above, seen) else {
                    return false;
                };
                if seen.is_some_and(|seen| !given.insert(seen)) {
                    return false; // two keys, one fence
                }
                let key = &mut self.keys[key];
                key.shared = *shared;
                let hold = Hold {
                    count: *permits,
                    fence,
                    acquired: *id,
                    released: None,
                };
                key.holds.insert(*owner, hold);
                continue;
            }
            if seen.is_some_and(|seen| !self.is_fence(key, *owner, seen)) {
                return false;
            }
            if admission == Admission::Reentered
                && let Some(hold) = self.keys[key].holds.get_mut(owner)
            {
                hold.count += permits;
                hold.acquired = *id;
            }
        }
        true
    }

    /// Releases one key: what is left, or `Err`, where nothing changes since it is too much.
    fn release(
        &mut self,
        key: usize,
        owner: Owner,
        permits: Option<i64>,
        id: Option<u32>,
    ) -> Result<Option<i64>, ()> {
        let holds = &mut self.keys[key].holds;
        let Some(hold) = holds.get_mut(&owner) else {
            return Ok(None);
        };
        if let (Some(id), Some((last, left))) = (id, hold.released)
            && id == last
        {
            return Ok(Some(left));
        }
        let left = hold.count - permits.unwrap_or(hold.count);
        if left < 0 {
            return Err(());
        }
        hold.count = left;
        hold.released = id.map(|id| (id, left));
        if left == 0 {
            holds.remove(&owner);
        }
        Ok(Some(left))
    }

    /// The owner's fence, if it holds the key, is what was replied.
    fn tells_fence(&mut self, key: usize, owner: Owner, reply: Option<&Reply>) -> bool {
        let holds = self.keys[key].holds.contains_key(&owner);
        match reply {
            None => true,
            Some(Reply::Fence(None)) => !holds,
            Some(Reply::Fence(Some(seen))) => self.is_fence(key, owner, *seen),
            _ => false,
        }
    }

    fn upgrade(&mut self, key: usize, owner: Owner, reply: Option<&Reply>) -> bool {
        let Key { shared, holds } = &self.keys[key];
        let others = holds.len() > 1;
        if !holds.contains_key(&owner) || (*shared && others) {
            return matches!(reply, None | Some(Reply::Fence(None)));
        }
        if !shared {
            return self.tells_fence(key, owner, reply);
        }
        let seen = match reply {
            None => None,
            Some(Reply::Fence(Some(seen))) => Some(*seen),
            _ => return false,
        };
        let Some(fence) = self.new_fence(self.last, seen) else {
            return false;
        };
        let key = &mut self.keys[key];
        key.shared = false;
        let hold = key.holds.get_mut(&owner).expect("it holds the key");
        hold.fence = fence;
        true
    }

    fn shows(&mut self, key: usize, reply: Option<&Reply>) -> bool {
        let shown = match reply {
            None => return true,
            Some(Reply::Shown(shown)) => shown,
            _ => return false,
        };
        let Some(Shown { shared, holders }) = shown else {
            return self.keys[key].holds.is_empty();
        };
        let Key {
            shared: is_shared,
            holds,
        } = &self.keys[key];
        if holders.len() != holds.len() || shared != is_shared {
            return false;
        }
        holders.iter().all(|(owner, count, fence)| {
            let hold = self.keys[key].holds.get(owner);
            hold.is_some_and(|hold| hold.count == *count) && self.is_fence(key, *owner, *fence)
        })
    }
}

impl Model for Holds {
    type Op = Op;
    type Reply = Reply;

    fn step(&mut self, op: &Op, reply: Option<&Reply>) -> bool {
        match op {
            Op::Acquire { .. } => self.acquire(op, reply),
            Op::Release {
                keys,
                owner,
                permits,
                id,
            } => {
                let release = |key: &usize| self.release(*key, *owner, *permits, *id);
                let left: Result<Vec<_>, ()> = keys.iter().map(release).collect();
                let expected = left.map_or(Reply::TooMany, Reply::Left);
                reply.is_none_or(|reply| *reply == expected)
            }
            Op::Renew { key, owner } | Op::Held { key, owner } => {
                self.tells_fence(*key, *owner, reply)
            }
            Op::Upgrade { key, owner } => self.upgrade(*key, *owner, reply),
            Op::Downgrade { key, owner } => {
                if self.keys[*key].holds.contains_key(owner) {
                    self.keys[*key].shared = true;
                }
                self.tells_fence(*key, *owner, reply)
            }
            Op::Look { key } => self.shows(*key, reply),
            Op::Delete { key } => {
                let was_held = !self.keys[*key].holds.is_empty();
                self.keys[*key].holds.clear();
                reply.is_none_or(|reply| *reply == Reply::Deleted(was_held))
            }
            Op::LeaseEnds {
                keys,
                owner,
                fences,
            } => {
                for (index, key) in keys.iter().enumerate() {
                    let fence = fences.as_ref().map(|fences| Fence::Seen(fences[index]));
                    let holds = &mut self.keys[*key].holds;
                    // A request that was repeated may have got another hold since.
                    let is_it = |hold: &Hold| fence.is_none_or(|fence| hold.fence == fence);
                    if holds.get(owner).is_some_and(is_it) {
                        holds.remove(owner);
                    }
                }
                true
            }
            Op::GivenBack {
                keys,
                owner,
                permits,
            } => {
                for key in keys {
                    let _ = self.release(*key, *owner, Some(*permits), None);
                }
                true
            }
        }
    }
}
