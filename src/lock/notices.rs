//! The notices of holds that are lost: an index over the holds with a [notice](super::holds::Hold::notice). A notice belongs to
//! the hold and follows its key. It is in the memory of the master alone.

use super::edit::LockKey;
use super::state::LockKind;
use super::watch::DbLabels;
use crate::server::base::clock::Now;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::services::cluster;
use crate::server::services::publish::publish;
use crate::server::services::slots::{Ranges, contains, slot_of};
use crate::waiting::Key;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What is published when a hold is lost, and where the hold is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    /// Where the hold is.
    pub(super) key: Key,
    /// Lock or semaphore.
    pub(super) kind: LockKind,
    /// Whose it is.
    pub(super) owner: Box<[u8]>,
    /// The channel of the message.
    pub(super) channel: Arc<[u8]>,
    /// The id of the request that the message names.
    pub(super) id: Box<[u8]>,
    /// The fencing token of the hold.
    pub(super) fence: u64,
}

/// A notice, and when the server looks whether the hold has ended (Unix ms).
#[derive(Debug)]
struct TimedNotice {
    notice: Notice,
    look_at: u64,
}

/// How long the server waits before it looks again at a hold that another node has for now.
const LOOK_AGAIN_MS: u64 = 1_000;

/// All notices, by numbers of their own.
#[derive(Debug, Default)]
pub(super) struct Notices {
    last: u64,
    /// Their keys have labels in place of databases, so that databases change places in one step.
    by_number: BTreeMap<u64, TimedNotice>,
    looks: BTreeSet<(u64, u64)>,
    labels: DbLabels,
    /// The holds of these have left their keys, and have not come to another key.
    adrift: BTreeSet<u64>,
    losses: VecDeque<MassLoss>,
}

/// Many holds are lost at once, without a word about each.
#[derive(Debug)]
struct MassLoss {
    of: LostKeys,
    /// The notices up to this number were looked at.
    at: u64,
    /// Later ones stay.
    last: u64,
}

#[derive(Debug)]
enum LostKeys {
    /// Those of databases with this label, or of all.
    Db(Option<i32>),
    /// Those of hash slots.
    Slots(Ranges),
}

impl Notices {
    /// Sets the notice of a hold that ends at `until` (Unix ms). `number`: that of its notice until now, or 0. Returns its
    /// number.
    pub(super) fn set(&mut self, number: u64, mut notice: Notice, until: u64) -> u64 {
        let number = match number {
            0 => {
                self.last += 1;
                self.last
            }
            number => number,
        };
        self.remove(number);
        notice.key.0 = self.labels.of(notice.key.0);
        let look_at = until.saturating_add(1);
        self.looks.insert((look_at, number));
        self.by_number
            .insert(number, TimedNotice { notice, look_at });
        number
    }

    /// Removes a notice: its hold has ended.
    pub(super) fn remove(&mut self, number: u64) -> Option<Notice> {
        let listed = self.by_number.remove(&number)?;
        self.looks.remove(&(listed.look_at, number));
        self.adrift.remove(&number);
        Some(listed.notice)
    }

    /// Whether there is no notice.
    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether the hold with this notice has left its key.
    pub(super) fn is_adrift(&self, number: u64) -> bool {
        self.adrift.contains(&number)
    }

    /// A hold has another fencing token.
    pub(super) fn set_fence(&mut self, number: u64, fence: u64) {
        if let Some(listed) = self.by_number.get_mut(&number) {
            listed.notice.fence = fence;
        }
    }

    /// The holds with these notices left their key.
    pub(super) fn leave(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            if self.by_number.contains_key(&number) {
                self.adrift.insert(number);
            }
        }
    }

    /// A hold came to this key.
    pub(super) fn arrive(&mut self, number: u64, (db, key): Key) {
        let label = self.labels.of(db);
        if let Some(listed) = self.by_number.get_mut(&number) {
            listed.notice.key = (label, key);
            self.adrift.remove(&number);
        }
    }

    /// Two databases changed places.
    pub(super) fn swap(&mut self, first: i32, second: i32) {
        self.labels.swap(first, second);
    }

    /// The holds of a database are lost; `None`: those of all databases.
    pub(super) fn lose_db(&mut self, db: Option<i32>) {
        let label = db.map(|db| self.labels.of(db));
        self.lose(LostKeys::Db(label));
    }

    /// The holds of these hash slots are lost.
    pub(super) fn lose_slots(&mut self, slots: Ranges) {
        self.lose(LostKeys::Slots(slots));
    }

    fn lose(&mut self, of: LostKeys) {
        let (at, last) = (0, self.last);
        self.losses.push_back(MassLoss { of, at, last });
    }

    /// Forgets all notices: nobody is told.
    pub(super) fn clear(&mut self) {
        let (last, labels) = (self.last, std::mem::take(&mut self.labels));
        *self = Self {
            last,
            labels,
            ..Self::default()
        };
    }

    /// Whether holds are lost of which nobody was told yet.
    pub(super) fn has_lost(&self) -> bool {
        !self.adrift.is_empty() || !self.losses.is_empty()
    }

    /// Takes a step through the holds that are lost without a command's doing. `None`: there are no more.
    pub(super) fn next_lost(&mut self) -> Option<Option<Notice>> {
        if let Some(number) = self.adrift.pop_first() {
            return Some(self.remove(number));
        }
        let loss = self.losses.front_mut()?;
        let next = self.by_number.range(loss.at + 1..).next();
        let Some((number, listed)) = next.filter(|(number, _)| **number <= loss.last) else {
            self.losses.pop_front();
            return Some(None);
        };
        let number = *number;
        loss.at = number;
        let (label, key) = &listed.notice.key;
        let is_lost = match &loss.of {
            LostKeys::Db(lost) => lost.is_none_or(|lost| lost == *label),
            LostKeys::Slots(slots) => contains(slots, slot_of(key)),
        };
        Some(if is_lost { self.remove(number) } else { None })
    }

    /// When the next hold is looked at (Unix ms), and the number of its notice.
    pub(super) fn next_look(&self) -> Option<(u64, u64)> {
        self.looks.first().copied()
    }

    /// A notice, with the database of its key.
    pub(super) fn get(&self, number: u64) -> Option<Notice> {
        let mut notice = self.by_number.get(&number)?.notice.clone();
        notice.key.0 = self.labels.db(notice.key.0);
        Some(notice)
    }

    /// A hold now ends at `until` (Unix ms). If this is before its planned check, plans an earlier one and returns true. If it ends later,
    /// the planned check runs first and plans the next one.
    pub(super) fn look_sooner(&mut self, number: u64, until: u64) -> bool {
        let listed = self.by_number.get(&number);
        let is_sooner = listed.is_some_and(|listed| until.saturating_add(1) < listed.look_at);
        if is_sooner {
            self.look_again(number, until);
        }
        is_sooner
    }

    /// Sets when a hold is looked at again, which ends at `until` (Unix ms).
    pub(super) fn look_again(&mut self, number: u64, until: u64) {
        if let Some(listed) = self.by_number.get_mut(&number) {
            self.looks.remove(&(listed.look_at, number));
            listed.look_at = until.saturating_add(1);
            self.looks.insert((listed.look_at, number));
        }
    }
}

/// The notices of this server. The search for deadlocks borrows the other state of the family when Redis 7.0 removes an expired
/// key, which the server tells at once: so this state is apart, and borrowed for a moment only.
pub(super) static NOTICES: MainThread<Notices> = MainThread::new();

/// The hold with this notice is lost.
pub(super) fn lost(number: u64) {
    if number != 0 {
        let notice = NOTICES.get().remove(number);
        tell(notice);
    }
}

/// The hold with this notice was released.
pub(super) fn released(number: u64) {
    if number != 0 {
        NOTICES.get().remove(number);
    }
}

fn tell(notice: Option<Notice>) {
    if let Some(notice) = notice {
        publish(notice.channel, message("lost", notice.fence, &notice.id));
    }
}

/// Looks whether the hold with this notice has ended: a lease may end long before the server looks at the key.
pub(super) fn look(ctx: Ctx<'_>, now: Now, number: u64) {
    let Some(notice) = NOTICES.get().get(number) else {
        return;
    };
    let found = cluster::act_on(ctx, &notice.key, |name| {
        let until = LockKey::with(ctx, name, notice.kind, now, c"", |key, service| {
            key.end_hold(&mut service.steps, &notice.owner);
            let hold = key
                .lock()
                .and_then(|lock| lock.holds().get(&notice.owner))
                .filter(|hold| hold.notice == number);
            hold.map(|hold| hold.until)
        });
        until.ok().flatten()
    });
    let mut notices = NOTICES.get();
    match found {
        Some(Some(until)) => notices.look_again(number, until.max(now.ms())),
        // The hold was not released: for example, `FLUSHALL` removed it before the server noticed that its lease had ended.
        Some(None) if !notices.is_adrift(number) => {
            let lost = notices.remove(number);
            drop(notices);
            tell(lost);
        }
        // It is published soon, or another node has the key for now.
        _ => notices.look_again(number, now.ms() + LOOK_AGAIN_MS),
    }
}

/// Takes a step through the holds that are lost. Returns false if there are none.
pub(super) fn tell_next() -> bool {
    let next = NOTICES.get().next_lost();
    next.map(tell).is_some()
}

/// `<what> <fence> <request-id>`
pub(super) fn message(what: &str, fence: u64, id: &[u8]) -> Vec<u8> {
    let fence = fence.to_string();
    [what.as_bytes(), fence.as_bytes(), id].join(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(db: i32, key: &str) -> Notice {
        Notice {
            key: (db, key.as_bytes().into()),
            kind: LockKind::Lock,
            owner: (*b"me").into(),
            channel: (*b"channel").into(),
            id: key.as_bytes().into(),
            fence: 7,
        }
    }

    fn lost(notices: &mut Notices) -> Vec<String> {
        let mut lost = Vec::new();
        while let Some(next) = notices.next_lost() {
            let ids = next.map(|notice| String::from_utf8_lossy(&notice.id).into_owned());
            lost.extend(ids);
        }
        lost
    }

    #[test]
    fn a_hold_is_lost_unless_it_comes_to_another_key() {
        let mut notices = Notices::default();
        let numbers = ["a", "b", "c"].map(|key| notices.set(0, notice(0, key), 10));
        notices.leave(numbers.into_iter().chain([0, 99]));
        notices.arrive(numbers[1], (3, (*b"new").into()));
        assert_eq!(lost(&mut notices), ["a", "c"]);
        assert_eq!(notices.get(numbers[1]).unwrap().key, (3, (*b"new").into()));
        assert!(!notices.has_lost() && notices.by_number.len() == 1);
        assert!(notices.remove(numbers[1]).is_some() && notices.by_number.is_empty());
        assert_eq!(notices.next_look(), None);
    }

    #[test]
    fn the_holds_of_a_database_are_lost_wherever_databases_have_gone() {
        let mut notices = Notices::default();
        let a = notices.set(0, notice(0, "a"), 10);
        notices.set(0, notice(1, "b"), 5);
        notices.swap(0, 1);
        notices.lose_db(Some(0));
        notices.set(0, notice(0, "later"), 20);
        assert_eq!(lost(&mut notices), ["b"]);
        assert_eq!(notices.get(a).unwrap().key.0, 1);
        notices.lose_db(None);
        assert_eq!(lost(&mut notices), ["a", "later"]);
        assert!(notices.by_number.is_empty() && notices.looks.is_empty());
    }

    #[test]
    fn a_hold_is_looked_at_when_it_may_have_ended() {
        let mut notices = Notices::default();
        let (a, b) = (
            notices.set(0, notice(0, "a"), 10),
            notices.set(0, notice(0, "b"), 5),
        );
        assert_eq!(notices.next_look(), Some((6, b)));
        notices.look_again(b, 20);
        assert_eq!(notices.next_look(), Some((11, a)));
        assert_eq!(notices.set(a, notice(0, "a"), 30), a);
        assert_eq!(notices.next_look(), Some((21, b)));
    }

    #[test]
    fn a_hold_that_ends_sooner_is_looked_at_sooner() {
        let mut notices = Notices::default();
        let a = notices.set(0, notice(0, "a"), 10);
        assert!(!notices.look_sooner(a, 30) && !notices.look_sooner(a, 10));
        assert_eq!(notices.next_look(), Some((11, a)));
        assert!(notices.look_sooner(a, 5));
        assert_eq!(notices.next_look(), Some((6, a)));
        notices.remove(a);
        assert!(!notices.look_sooner(a, 1) && notices.looks.is_empty());
    }

    #[test]
    fn a_message_has_three_words() {
        assert_eq!(message("lost", 12, b"an id"), b"lost 12 an id");
    }
}
