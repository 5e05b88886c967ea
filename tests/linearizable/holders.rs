//! Clients of locks and semaphores: what they do, how that is said on the wire, and what follows from it.

use std::io;
use std::time::Duration;

use crate::checker::End;
use crate::faults::Fault;
use crate::holds::{Holds, Kind, Op, Owner, Reply, Shown};
use crate::run::{Aftermath, Command, Family};
use crate::support::{Random, Raw, Value};

/// A lease that no history outlives.
const LONG: u64 = 600_000;

/// How much later than its deadline a lease may be seen to end: the server counts in milliseconds, to the end of the last.
const SLACK: Duration = Duration::from_millis(3);

/// How the clients are made wrong on purpose: the checker has to find it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// A release does not ask whose lock it is.
    ReleaseIgnoresOwner,
    /// One more permit than the limit is given.
    OverLimit,
    /// The request id of a retry is ignored.
    IdIgnored,
    /// A client takes the message of its grant for the end of its wait.
    GrantIgnored,
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
    /// Whether waiting requests with an id are notified, not blocked.
    notifies: bool,
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
            notifies: false,
            mutation,
        }
    }

    /// The same clients, which let their requests wait with `NOTIFY`.
    pub fn notified(self) -> Self {
        Self {
            notifies: true,
            waits: !self.mixed,
            ..self
        }
    }

    /// Asks with `NOTIFY` on a connection that is subscribed to its channel, and waits for the message if the request waits.
    /// `None`: the outcome is unknown, and the connection must close.
    fn ask_and_listen(
        &self,
        wire: &mut Raw,
        op: &Op,
        owner: Owner,
        patience: Duration,
    ) -> io::Result<Option<Value>> {
        match wire.try_call(["HELLO", "3"], patience)? {
            Some(Value::Error(text)) => return Ok(Some(Value::Error(text))),
            Some(_) => {}
            None => return Ok(None),
        }
        let channel = format!("{}:{}", self.prefix, owner.name());
        if wire.try_call(["SUBSCRIBE", &channel], patience)?.is_none() {
            return Ok(None);
        }
        let mut command = self.command(op);
        command.extend(["NOTIFY".to_owned(), channel.clone()]);
        let Some(mut reply) = wire.try_call(command, patience)? else {
            return Ok(None);
        };
        if matches!(reply, Value::Push(_)) {
            return Ok(None); // the loss of an earlier hold of this owner
        }
        if reply.is_nil() {
            let limit = patience + Duration::from_millis(self.blocks(op));
            let Some(Value::Push(message)) = wire.try_read(limit)? else {
                return Ok(None);
            };
            let text = message.last().map_or("", Value::text);
            let words: Vec<&str> = text.split(' ').collect();
            reply = match words[..] {
                ["granted", ..] if self.mutation == Some(Mutation::GrantIgnored) => Value::Nil,
                ["granted", fence, _] => Value::Int(fence.parse().expect("a fence")),
                ["timeout", ..] => Value::Nil,
                ["deadlock", ..] => Value::Error("DEADLOCK".into()),
                _ => return Ok(None),
            };
        }
        // The loss of this hold may come before the replies.
        let mut next = wire.try_call(["UNSUBSCRIBE", &channel], patience)?;
        loop {
            match next {
                Some(Value::Push(push)) if push[0] == "unsubscribe" => break,
                Some(Value::Push(_)) => next = wire.try_read(patience)?,
                _ => return Ok(None),
            }
        }
        let back = wire.try_call(["HELLO", "2"], patience)?;
        Ok(back.map(|_| reply))
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
        let takes_two = !self.mixed && !waits && self.keys > 1;
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
            0..7 => self.acquisition(me, memory, random),
            7..15 if memory.held.is_empty() && random.below(3) > 0 => {
                self.acquisition(me, memory, random)
            }
            7..15 => self.release(me, memory, random),
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
                let limit = match self.kind {
                    Kind::Lock => None,
                    Kind::Semaphore { limit } => {
                        Some(limit + i64::from(self.mutation == Some(Mutation::OverLimit)))
                    }
                };
                match (&keys[..], limit) {
                    ([key], _) => say(&format!("{family}.ACQUIRE {}", name(key))),
                    (_, None) => say(&format!("LOCK.MACQUIRE {} {}", keys.len(), list(keys))),
                    (_, Some(limit)) => {
                        say(&format!("SEM.MACQUIRE {}", keys.len()));
                        keys.iter()
                            .for_each(|key| say(&format!("{} {limit}", name(key))));
                    }
                }
                say(&format!("{} PX {lease}", owner.name()));
                if let Some(limit) = limit {
                    if keys.len() == 1 {
                        say(&format!("LIMIT {limit}"));
                    }
                    say(&format!("PERMITS {permits}"));
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
        None // holds survive them all
    }

    fn happened() -> Reply {
        Reply::Happened
    }

    fn talk(&self, wire: &mut Raw, op: &Op, patience: Duration) -> io::Result<Option<Value>> {
        match op {
            Op::Acquire {
                owner,
                block: Some(_),
                id: Some(_),
                ..
            } if self.notifies => self.ask_and_listen(wire, op, *owner, patience),
            _ => {
                let limit = patience + Duration::from_millis(self.blocks(op));
                wire.try_call(self.command(op), limit)
            }
        }
    }

    fn blocks(&self, op: &Op) -> u64 {
        match op {
            Op::Acquire { block, .. } => block.unwrap_or(0),
            _ => 0,
        }
    }
}

impl Holders {
    fn shown(&self, info: &Value) -> Option<Shown> {
        let holders = info.field("holders").array().iter().map(|holder| {
            let owner = Owner::of(holder.field("owner").text())?;
            Some((
                owner,
                holder.field("count").int(),
                holder.field("fence").int(),
            ))
        });
        let holders: Vec<_> = holders.collect::<Option<_>>()?;
        // The sum that is told is of the holders that are told.
        let used: i64 = holders.iter().map(|(_, count, _)| count).sum();
        if !self.is_lock() && info.field("used").int() != used {
            return None;
        }
        let shared = self.is_lock() && info.field("mode") == &"shared";
        Some(Shown { shared, holders })
    }
}
