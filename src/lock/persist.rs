//! Locks as bytes: in RDB and `DUMP` as a whole, in AOF and replication as effects.
//!
//! ```text
//! lock    = version(1) mode n hold*n
//! effects = effect*                           until the end of the input
//! effect  = 'H' mode hold                     this owner now holds so
//!         | 'G' owner                         this owner's hold is gone
//!         | 'X' now                           the holds that ended before now are gone
//!         | 'C' limit                         no hold lasts longer than limit
//!         | 'F' fence                         fences up to this one were given, perhaps for other locks
//! mode    = 0 (exclusive) | 1 (shared) | 2 limit (semaphore)
//! hold    = owner count fence until flags [id reply [bound]] [id reply]
//! flags   = 1: the last acquisition had a request id, 2: the last release had one,
//!           4: the renewals have a bound, which follows the reply of the acquisition; 8: the renewals have no bound
//! ```
//!
//! A `RELEASE` depends on nothing but the lock and is replicated as it came.
//!
//! Integers and byte strings are those of [`crate::codec`]; times are Unix milliseconds. A
//! connection that a hold is watched for is not part of the dataset and is not written.

use super::holds::{Hold, Receipt};
use super::state::{Lock, Mode};
use super::{MAX_OWNER_BYTES, MAX_REQUEST_ID_BYTES};
use crate::codec::{Corrupt, Reader, put_bytes, put_uint, put_uints};
use crate::request::MAX_SAFE;
use std::num::NonZeroU64;

/// The version of the encoding that this build writes.
pub const VERSION: u8 = 1;

const MAX: u64 = MAX_SAFE as u64;
const ACQUIRED: u8 = 1;
const RELEASED: u8 = 2;
const BOUNDED: u8 = 4;
const UNBOUNDED: u8 = 8;

/// One change of a lock as a replica or an AOF gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEffect<'a> {
    /// The owner's hold, and how the lock is held with it.
    Held(Mode, &'a [u8], Hold),
    /// The owner's hold is gone.
    Gone(&'a [u8]),
    /// The holds that ended before this time are gone.
    Expired(u64),
    /// No hold lasts longer than this time.
    Clamped(u64),
    /// Fences up to this one were given, perhaps for other locks.
    Fence(u64),
}

/// Appends [`LockEffect::Held`].
pub fn put_held(out: &mut Vec<u8>, mode: Mode, owner: &[u8], hold: &Hold) {
    match mode {
        Mode::Exclusive => out.extend_from_slice(&[b'H', 0]), // nearly all holds
        _ => {
            out.push(b'H');
            put_mode(out, mode);
        }
    }
    put_hold(out, owner, hold);
}

/// Appends [`LockEffect::Gone`].
pub fn put_gone(out: &mut Vec<u8>, owner: &[u8]) {
    out.push(b'G');
    put_bytes(out, owner);
}

/// Appends the removal of holds that have ended before `now` (Unix ms). `more_follow`: others have ended that are still to be removed.
pub fn put_ended(out: &mut Vec<u8>, ended: &[(Box<[u8]>, Hold)], more_follow: bool, now: u64) {
    // If the clock was set back, `now` can be earlier than the end of an ended hold. `Expired` would then not cover it.
    if more_follow || ended.iter().any(|(_, hold)| hold.until >= now) {
        for (owner, _) in ended {
            put_gone(out, owner);
        }
    } else {
        put_expired(out, now);
    }
}

/// Appends [`LockEffect::Expired`].
pub fn put_expired(out: &mut Vec<u8>, now: u64) {
    out.push(b'X');
    put_uint(out, now);
}

/// Appends [`LockEffect::Clamped`].
pub fn put_clamped(out: &mut Vec<u8>, limit: u64) {
    out.push(b'C');
    put_uint(out, limit);
}

/// Appends [`LockEffect::Fence`].
pub fn put_fence(out: &mut Vec<u8>, fence: u64) {
    out.push(b'F');
    put_uint(out, fence);
}

/// Reads all effects of one command, or none.
pub fn effects(input: &[u8]) -> Result<Vec<LockEffect<'_>>, Corrupt> {
    let mut reader = Reader::new(input);
    let mut effects = Vec::new();
    while !reader.is_empty() {
        effects.push(match reader.byte()? {
            b'H' => {
                let mode = mode(&mut reader)?;
                let (owner, hold) = hold(&mut reader)?;
                LockEffect::Held(mode, owner, hold)
            }
            b'G' => LockEffect::Gone(reader.bytes(1, MAX_OWNER_BYTES)?),
            b'X' => LockEffect::Expired(reader.uint(0, MAX)?),
            b'C' => LockEffect::Clamped(reader.uint(0, MAX)?),
            b'F' => LockEffect::Fence(reader.uint(1, MAX)?),
            _ => return Err(Corrupt),
        });
    }
    Ok(effects)
}

/// Makes a lock what the master says it is. Returns the largest fence seen.
pub fn apply(lock: &mut Lock, effects: Vec<LockEffect<'_>>) -> u64 {
    let mut fence = 0;
    for effect in effects {
        match effect {
            LockEffect::Held(mode, owner, hold) => {
                fence = fence.max(hold.fence);
                lock.put(mode, owner, hold);
            }
            LockEffect::Gone(owner) => lock.drop_owner(owner),
            LockEffect::Expired(now) => drop(lock.expire(now)),
            LockEffect::Clamped(limit) => drop(lock.clamp(limit)),
            LockEffect::Fence(given) => fence = fence.max(given),
        }
    }
    fence
}

/// Writes a whole lock.
pub fn encode(lock: &Lock, out: &mut Vec<u8>) {
    out.push(VERSION);
    put_mode(out, lock.mode());
    put_uint(out, lock.holds().len() as u64);
    for (owner, hold) in by_fence(lock) {
        put_hold(out, owner, hold);
    }
}

/// Reads a whole lock; it is held by somebody and keeps every rule of its mode.
pub fn decode(input: &[u8]) -> Result<Lock, Corrupt> {
    let mut reader = Reader::new(input);
    if reader.byte()? != VERSION {
        return Err(Corrupt);
    }
    let mode = mode(&mut reader)?;
    let mut lock = Lock::new(mode);
    let most = if mode == Mode::Exclusive { 1 } else { MAX };
    for _ in 0..reader.uint(1, most)? {
        let (owner, hold) = hold(&mut reader)?;
        if lock.holds().get(owner).is_some() {
            return Err(Corrupt);
        }
        lock.put(mode, owner, hold);
    }
    if reader.is_empty() {
        Ok(lock)
    } else {
        Err(Corrupt)
    }
}

/// The holds in an order that depends on nothing but them.
pub fn by_fence(lock: &Lock) -> Vec<(&[u8], &Hold)> {
    let mut holds: Vec<_> = lock.holds().iter().collect();
    holds.sort_unstable_by_key(|(owner, hold)| (hold.fence, *owner));
    holds
}

#[inline]
fn put_mode(out: &mut Vec<u8>, mode: Mode) {
    match mode {
        Mode::Exclusive => out.push(0),
        Mode::Shared => out.push(1),
        Mode::Permits { limit } => {
            out.push(2);
            put_uint(out, limit);
        }
    }
}

fn mode(reader: &mut Reader<'_>) -> Result<Mode, Corrupt> {
    match reader.byte()? {
        0 => Ok(Mode::Exclusive),
        1 => Ok(Mode::Shared),
        2 => reader.uint(1, MAX).map(|limit| Mode::Permits { limit }),
        _ => Err(Corrupt),
    }
}

/// Writes one hold with its owner.
#[inline]
pub fn put_hold(out: &mut Vec<u8>, owner: &[u8], hold: &Hold) {
    put_bytes(out, owner);
    let flag = |receipt: &Option<Box<Receipt>>, bit| if receipt.is_some() { bit } else { 0 };
    let renewals = match hold.acquired.as_ref().and_then(|last| last.bound) {
        None => 0,
        Some(NonZeroU64::MAX) => UNBOUNDED,
        Some(_) => BOUNDED,
    };
    let flags = flag(&hold.acquired, ACQUIRED) | flag(&hold.released, RELEASED) | renewals;
    put_uints(out, [hold.count, hold.fence, hold.until, flags.into()]);
    if flags == 0 {
        return;
    }
    for receipt in [&hold.acquired, &hold.released].into_iter().flatten() {
        put_bytes(out, &receipt.id);
        put_uint(out, receipt.reply);
        if let Some(bound) = receipt.bound.filter(|bound| *bound < NonZeroU64::MAX) {
            put_uint(out, bound.get());
        }
    }
}

fn hold<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Hold), Corrupt> {
    let owner = reader.bytes(1, MAX_OWNER_BYTES)?;
    let count = reader.uint(1, MAX)?;
    let fence = reader.uint(1, MAX)?;
    let until = reader.uint(0, MAX)?;
    let flags = reader.byte()?;
    let renewals = flags & (BOUNDED | UNBOUNDED);
    let is_without_request = renewals != 0 && flags & ACQUIRED == 0;
    if flags & !(ACQUIRED | RELEASED | renewals) != 0
        || is_without_request
        || renewals == BOUNDED | UNBOUNDED
    {
        return Err(Corrupt);
    }
    let mut receipt = |bit: u8| -> Result<Option<Box<Receipt>>, Corrupt> {
        if flags & bit == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Receipt {
            id: reader.bytes(1, MAX_REQUEST_ID_BYTES)?.into(),
            reply: reader.uint(0, MAX)?,
            bound: match renewals {
                BOUNDED if bit == ACQUIRED => NonZeroU64::new(reader.uint(1, MAX)?),
                UNBOUNDED if bit == ACQUIRED => Some(NonZeroU64::MAX),
                _ => None,
            },
        })))
    };
    let hold = Hold {
        count,
        fence,
        until,
        acquired: receipt(ACQUIRED)?,
        released: receipt(RELEASED)?,
        watch: None,
        notice: 0,
    };
    Ok((owner, hold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_receipt(
        bound: impl Strategy<Value = Option<NonZeroU64>>,
    ) -> impl Strategy<Value = Option<Box<Receipt>>> {
        let id = proptest::collection::vec(any::<u8>(), 1..20);
        proptest::option::of((id, 0..=MAX, bound).prop_map(|(id, reply, bound)| {
            Box::new(Receipt {
                id: id.into(),
                reply,
                bound,
            })
        }))
    }

    fn any_hold() -> impl Strategy<Value = Hold> {
        let numbers = (1..1000u64, 1..=MAX, 0..=MAX);
        let acquired =
            any_receipt(prop_oneof![Just(0), Just(u64::MAX), 1..=MAX].prop_map(NonZeroU64::new));
        (numbers, acquired, any_receipt(Just(None))).prop_map(
            |((count, fence, until), acquired, released)| Hold {
                count,
                fence,
                until,
                acquired,
                released,
                watch: None,
                notice: 0,
            },
        )
    }

    fn any_lock() -> impl Strategy<Value = Lock> {
        let owner = proptest::collection::vec(any::<u8>(), 1..40);
        let holds = proptest::collection::btree_map(owner, any_hold(), 1..6);
        (0..3u8, 1..=MAX, holds).prop_map(|(mode, limit, holds)| {
            let mode = match mode {
                0 if holds.len() == 1 => Mode::Exclusive,
                0 | 1 => Mode::Shared,
                _ => Mode::Permits { limit },
            };
            let mut lock = Lock::new(mode);
            for (owner, hold) in holds {
                lock.put(mode, &owner, hold);
            }
            lock
        })
    }

    proptest! {
        #[test]
        fn a_lock_is_read_back_as_written(lock in any_lock()) {
            let mut bytes = Vec::new();
            encode(&lock, &mut bytes);
            let read = decode(&bytes).expect("what was written");
            prop_assert_eq!(read.mode(), lock.mode());
            prop_assert_eq!(by_fence(&read), by_fence(&lock));
            prop_assert_eq!(read.holds().longest(), lock.holds().longest());
            prop_assert_eq!(read.holds().total(), lock.holds().total());
            for cut in 0..bytes.len() {
                prop_assert!(decode(&bytes[..cut]).is_err(), "cut at {}", cut);
            }
        }

        #[test]
        fn effects_rebuild_a_lock(lock in any_lock()) {
            let mut bytes = Vec::new();
            for (owner, hold) in lock.holds().iter() {
                put_held(&mut bytes, lock.mode(), owner, hold);
            }
            let mut built = Lock::new(Mode::Exclusive);
            let fence = apply(&mut built, effects(&bytes).expect("what was written"));
            prop_assert_eq!(by_fence(&built), by_fence(&lock));
            prop_assert_eq!(built.mode(), lock.mode());
            prop_assert_eq!(Some(fence), lock.holds().iter().map(|(_, hold)| hold.fence).max());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, mut lock in any_lock(), at: prop::sample::Index, bit in 0..8u32) {
            let _ = decode(&bytes);
            let _ = effects(&bytes);
            let mut mutated = Vec::new();
            encode(&lock, &mut mutated);
            let at = at.index(mutated.len());
            mutated[at] ^= 1u8 << bit;
            let _ = decode(&mutated);
            mutated[0] = b'H';
            if let Ok(effects) = effects(&mutated) {
                apply(&mut lock, effects);
            }
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let hold = Hold {
            count: 1,
            fence: 5,
            until: 10,
            acquired: None,
            released: None,
            watch: None,
            notice: 0,
        };
        let encoded = |mode: Mode, owners: &[&[u8]], hold: &Hold| {
            let mut out = vec![VERSION];
            put_mode(&mut out, mode);
            put_uint(&mut out, owners.len() as u64);
            for owner in owners {
                put_hold(&mut out, owner, hold);
            }
            out
        };
        let decodes = |bytes: Vec<u8>| decode(&bytes).is_ok();
        assert!(decodes(encoded(Mode::Exclusive, &[b"a"], &hold)));
        assert!(decodes(encoded(Mode::Shared, &[b"a", b"b"], &hold)));
        assert!(!decodes(encoded(Mode::Exclusive, &[b"a", b"b"], &hold)));
        assert!(!decodes(encoded(Mode::Shared, &[b"a", b"a"], &hold)));
        assert!(!decodes(encoded(Mode::Shared, &[], &hold)));
        assert!(!decodes(encoded(Mode::Shared, &[b""], &hold)));
        assert!(!decodes(encoded(Mode::Shared, &[&[b'a'; 1025]], &hold)));
        assert!(!decodes(encoded(
            Mode::Permits { limit: 0 },
            &[b"a"],
            &hold
        )));
        let zero = Hold {
            count: 0,
            ..hold.clone()
        };
        assert!(!decodes(encoded(Mode::Shared, &[b"a"], &zero)));
        let huge = Hold {
            fence: MAX + 1,
            ..hold.clone()
        };
        assert!(!decodes(encoded(Mode::Shared, &[b"a"], &huge)));
        let mut future = encoded(Mode::Shared, &[b"a"], &hold);
        future[0] = VERSION + 1;
        assert!(!decodes(future));
    }
}
