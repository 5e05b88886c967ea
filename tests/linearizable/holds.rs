//! `LOCK.*` and `SEM.*` one after the other: holds of a lock or a semaphore, with their counts, fences and request ids.
//!
//! What a history cannot show is left out of it, so that the model may be strict. Who waits in line is invisible from
//! outside, so where some wait, the line must never be the only reason for a refusal: only exclusive holds, or permits of
//! one size, are asked for there. Where leases end, everybody waits or nobody does, for the same reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::checker::{End, Model};
use crate::faults::Fault;
use crate::run::{Aftermath, Command, Family};
use crate::support::{Random, Value};

/// A lease that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its deadline a lease may be seen to end: the server counts in milliseconds, to the end of the last.
const SLACK: Duration = Duration::from_millis(3);

/// Whoever holds: a client, and which of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub usize, pub u32);

impl Owner {
    fn name(self) -> String {
        format!("c{}.{}", self.0, self.1)
    }

    fn of(name: &str) -> Option<Self> {
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
    /// Is it shared, and who holds how often with which fence?
    Shown(Option<(bool, Vec<(Owner, i64, i64)>)>),
    Deleted(bool),
    Happened,
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
        let Some((shared, holders)) = shown else {
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

/// How the clients are made wrong on purpose: the checker has to find it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// A release does not ask whose lock it is.
    ReleaseIgnoresOwner,
    /// One more permit than the limit is given.
    OverLimit,
    /// The request id of a retry is ignored.
    IdIgnored,
}

/// Clients of a few locks or semaphores.
pub struct Holders {
    kind: Kind,
    prefix: String,
    keys: usize,
    /// Does anybody wait in line?
    waits: bool,
    /// Do all?
    all_wait: bool,
    /// Are locks shared, and permits of several sizes?
    mixed: bool,
    /// Do leases end?
    short: bool,
    mutation: Option<Mutation>,
}

impl Holders {
    /// Clients of keys that begin with `prefix`, which draw what they do from `random`.
    pub fn of(
        semaphores: bool,
        prefix: &str,
        random: &mut Random,
        mutation: Option<Mutation>,
    ) -> Self {
        let limit = 1 + random.below(3) as i64;
        let kind = if semaphores {
            Kind::Semaphore { limit }
        } else {
            Kind::Lock
        };
        let mixed = random.below(3) == 0;
        let short = random.below(3) == 0;
        let waits = !mixed && random.below(3) > 0;
        Self {
            kind,
            prefix: prefix.into(),
            keys: 1 + random.below(3) as usize,
            waits,
            all_wait: waits && short,
            mixed,
            short,
            mutation,
        }
    }

    fn is_lock(&self) -> bool {
        self.kind == Kind::Lock
    }

    fn key(&self, key: usize) -> String {
        format!("{{{}}}:{key}", self.prefix)
    }

    fn acquisition(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        let key = random.below(self.keys as u64) as usize;
        let waits = self.all_wait || (self.waits && random.below(2) == 0);
        let takes_two = self.is_lock() && !self.mixed && !waits && self.keys > 1;
        let keys = if takes_two && random.below(4) == 0 {
            vec![key, (key + 1) % self.keys]
        } else {
            vec![key]
        };
        // What ends by itself is held by an owner of its own: nobody re-enters it.
        let is_short = self.short && random.below(2) == 0;
        if is_short {
            memory.names += 1;
        }
        let owner = Owner(me, if is_short { memory.names } else { 0 });
        let permits = match self.kind {
            Kind::Semaphore { limit } if self.mixed => 1 + random.below(limit as u64) as i64,
            _ => 1,
        };
        memory.ids += 1;
        Op::Acquire {
            keys,
            owner,
            shared: self.is_lock() && self.mixed && random.below(2) == 0,
            permits,
            lease: if is_short { 1 + random.below(40) } else { LONG },
            block: waits.then(|| 1 + random.below(40)),
            id: (!self.mixed && random.below(2) == 0).then_some(memory.ids),
        }
    }

    fn release(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        let key = random.below(self.keys as u64) as usize;
        let (keys, owner) = match memory.held.pop() {
            // Some release what they do not hold.
            Some(held) if random.below(5) > 0 => held,
            _ => (vec![key], Owner(me, 0)),
        };
        memory.ids += 1;
        let permits = match self.kind {
            _ if random.below(4) == 0 => None,
            Kind::Semaphore { limit } if self.mixed => Some(1 + random.below(limit as u64) as i64),
            _ => Some(1),
        };
        Op::Release {
            keys,
            owner,
            permits,
            id: (random.below(3) == 0).then_some(memory.ids),
        }
    }
}

/// What a client remembers.
#[derive(Default)]
pub struct Memory {
    names: u32,
    ids: u32,
    held: Vec<(Vec<usize>, Owner)>,
    /// What it asked without hearing the answer.
    unanswered: Option<Op>,
    /// What it asked last with an id.
    repeatable: Option<Op>,
}

impl Family for Holders {
    type Model = Holds;
    type Memory = Memory;

    fn model(&self) -> Holds {
        Holds::new(self.kind, self.keys)
    }

    fn first(&self) -> Vec<Op> {
        Vec::new()
    }

    fn next(&self, me: usize, memory: &mut Memory, random: &mut Random) -> Op {
        // What has an id is asked again.
        if let Some(op) = memory.unanswered.take()
            && random.below(4) > 0
        {
            return op;
        }
        // Others ask twice though they were answered.
        if let Some(op) = memory.repeatable.take()
            && random.below(6) == 0
        {
            return op;
        }
        let key = random.below(self.keys as u64) as usize;
        let owner = Owner(me, 0);
        match random.below(20) {
            0..8 => self.acquisition(me, memory, random),
            8..15 => self.release(me, memory, random),
            15 if self.is_lock() => Op::Held { key, owner },
            15 | 16 => Op::Look { key },
            17 if self.mixed && self.is_lock() => Op::Upgrade { key, owner },
            18 if self.mixed && self.is_lock() => Op::Downgrade { key, owner },
            17 | 18 => Op::Renew { key, owner },
            _ => Op::Delete { key },
        }
    }

    fn learn(&self, memory: &mut Memory, op: &Op, end: &End<Reply>) {
        let (Op::Acquire { id, .. } | Op::Release { id, .. }) = op else {
            return;
        };
        let is_unknown = matches!(end, End::Unknown(_));
        if id.is_some() && is_unknown {
            memory.unanswered = Some(op.clone());
        } else if id.is_some() {
            memory.repeatable = Some(op.clone());
        }
        if let Op::Acquire { keys, owner, .. } = op
            && !matches!(end, End::Reply(_, Reply::Fences(None)) | End::Never(_))
        {
            memory.held.push((keys.clone(), *owner));
        }
    }

    fn last(&self) -> Vec<Op> {
        (0..self.keys).map(|key| Op::Look { key }).collect()
    }

    fn command(&self, op: &Op) -> Command {
        let family = if self.is_lock() { "LOCK" } else { "SEM" };
        let mut words = Vec::new();
        let mut say = |text: &str| words.extend(text.split(' ').map(String::from));
        let name = |key: &usize| self.key(*key);
        let list = |keys: &[usize]| {
            let names: Vec<_> = keys.iter().map(name).collect();
            names.join(" ")
        };
        let id = |id: Option<u32>| id.filter(|_| self.mutation != Some(Mutation::IdIgnored));
        match op {
            Op::Acquire {
                keys,
                owner,
                shared,
                permits,
                lease,
                block,
                id: request,
            } => {
                match keys[..] {
                    [key] => say(&format!("{family}.ACQUIRE {}", name(&key))),
                    _ => say(&format!("{family}.MACQUIRE {} {}", keys.len(), list(keys))),
                }
                say(&format!("{} PX {lease}", owner.name()));
                if let Kind::Semaphore { limit } = self.kind {
                    let more = i64::from(self.mutation == Some(Mutation::OverLimit));
                    say(&format!("LIMIT {} PERMITS {permits}", limit + more));
                }
                if *shared {
                    say("SHARED");
                }
                if let Some(ms) = block {
                    say(&format!("BLOCK {ms}"));
                }
                if let Some(id) = id(*request) {
                    say(&format!("ID a{id}"));
                }
            }
            Op::Release { keys, .. } if self.mutation == Some(Mutation::ReleaseIgnoresOwner) => {
                say(&format!("DEL {}", name(&keys[0])));
            }
            Op::Release {
                keys,
                owner,
                permits,
                id: request,
            } => {
                match keys[..] {
                    [key] => say(&format!("{family}.RELEASE {}", name(&key))),
                    _ => say(&format!("{family}.MRELEASE {} {}", keys.len(), list(keys))),
                }
                say(&owner.name());
                match permits {
                    None => say("ALL"),
                    Some(permits) if !self.is_lock() => say(&format!("PERMITS {permits}")),
                    Some(_) => {}
                }
                if let Some(id) = id(*request) {
                    say(&format!("ID r{id}"));
                }
            }
            Op::Renew { key, owner } => {
                say(&format!(
                    "{family}.RENEW {} {} PX {LONG}",
                    name(key),
                    owner.name()
                ));
            }
            Op::Upgrade { key, owner } => {
                say(&format!(
                    "LOCK.UPGRADE {} {} PX {LONG}",
                    name(key),
                    owner.name()
                ));
            }
            Op::Downgrade { key, owner } => {
                say(&format!("LOCK.DOWNGRADE {} {}", name(key), owner.name()));
            }
            Op::Held { key, owner } => say(&format!("LOCK.HELD {} {}", name(key), owner.name())),
            Op::Look { key } => say(&format!("{family}.INFO {}", name(key))),
            Op::Delete { key } => say(&format!("DEL {}", name(key))),
            Op::LeaseEnds { .. } | Op::GivenBack { .. } => unreachable!("nobody asks for that"),
        }
        words
    }

    fn reply(&self, op: &Op, value: &Value) -> Option<Reply> {
        let optional = |value: &Value| match value {
            Value::Nil => Some(None),
            Value::Int(number) => Some(Some(*number)),
            _ => None,
        };
        Some(match (op, value) {
            (_, Value::Error(text)) if text.starts_with("ERR PERMITS must be") => Reply::TooMany,
            (_, Value::Error(_)) => return None,
            (Op::Acquire { .. }, Value::Array(fences)) => {
                Reply::Fences(Some(fences.iter().map(Value::int).collect()))
            }
            (Op::Acquire { .. }, value) => Reply::Fences(optional(value)?.map(|fence| vec![fence])),
            (Op::Release { .. }, value) if self.mutation == Some(Mutation::ReleaseIgnoresOwner) => {
                Reply::Left(vec![(value.int() == 1).then_some(0)])
            }
            (Op::Release { .. }, Value::Array(left)) => {
                Reply::Left(left.iter().map(optional).collect::<Option<_>>()?)
            }
            (Op::Release { .. }, value) => Reply::Left(vec![optional(value)?]),
            (Op::Look { .. }, Value::Nil) => Reply::Shown(None),
            (Op::Look { .. }, info) => Reply::Shown(Some(self.shown(info)?)),
            (Op::Delete { .. }, value) => Reply::Deleted(value.int() == 1),
            (_, value) => Reply::Fence(optional(value)?),
        })
    }

    fn aftermath(&self, op: &Op, from: Duration, end: &End<Reply>) -> Vec<Aftermath<Op>> {
        let Op::Acquire {
            keys,
            owner,
            permits,
            lease,
            block,
            id,
            ..
        } = op
        else {
            return Vec::new();
        };
        let (until, fences) = match end {
            End::Reply(at, Reply::Fences(Some(fences))) => (Some(*at), Some(fences.clone())),
            End::Reply(..) | End::Never(_) => return Vec::new(),
            End::Unknown(_) => (None, None),
        };
        let mut follows = Vec::new();
        let (keys, owner) = (keys.clone(), *owner);
        if *lease < LONG {
            let lasts = Duration::from_millis(*lease);
            follows.push(Aftermath {
                op: Op::LeaseEnds {
                    keys: keys.clone(),
                    owner,
                    fences,
                },
                // The server counts from the beginning of a millisecond.
                from: from + lasts - Duration::from_millis(1),
                until: until.map(|at| at + lasts + SLACK),
            });
        }
        if until.is_none() && block.is_some() && id.is_none() {
            follows.push(Aftermath {
                op: Op::GivenBack {
                    keys,
                    owner,
                    permits: *permits,
                },
                from,
                until: None,
            });
        }
        follows
    }

    fn upset(&self, _fault: Fault) -> Option<Op> {
        None // holds survive everything
    }

    fn happened() -> Reply {
        Reply::Happened
    }

    fn blocks(&self, op: &Op) -> u64 {
        match op {
            Op::Acquire { block, .. } => block.unwrap_or(0),
            _ => 0,
        }
    }
}

impl Holders {
    fn shown(&self, info: &Value) -> Option<(bool, Vec<(Owner, i64, i64)>)> {
        let holders = info.field("holders").array().iter().map(|holder| {
            let owner = Owner::of(holder.field("owner").text())?;
            Some((
                owner,
                holder.field("count").int(),
                holder.field("fence").int(),
            ))
        });
        let holders: Vec<_> = holders.collect::<Option<_>>()?;
        if self.is_lock() {
            return Some((info.field("mode") == &"shared", holders));
        }
        // The sum is of the holders that are shown, and the limit is the one that was named.
        let used: i64 = holders.iter().map(|(_, count, _)| count).sum();
        let is_sum = info.field("used").int() == used;
        is_sum.then_some((false, holders))
    }
}
