//! Changes of one queue at its key: each change is applied, and the effects of all are sent to replicas and the AOF at once.

use super::message::PackedMessage;
use super::native::{DELAY, ListedQueue};
use super::persist::{self, DelayEffect};
use super::state::{DelayQueue, Target};
use super::{COUNTERS, DEADLINES};
use crate::error::Error;
use crate::server::base::clock::Now;
use crate::server::base::slice::Slice;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, Replicate};
use crate::server::services::deferred::ask_for_slices;
use crate::server::services::stream::{EntryId, Stream};
use crate::server::services::timer;
use std::ffi::CStr;

/// The number of messages, or of bytes of messages, that are delivered before the clock is read again.
const STEP_MESSAGES: usize = 8;
const STEP_BYTES: usize = 16 * 1024;

/// A queue's key, open for changes. Ends with [`DelayEdit::close`].
pub(super) struct DelayEdit<'k> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    key: TypedKey<'k, ListedQueue>,
    /// The stream, once a message was delivered.
    stream: Option<Stream<'k>>,
    /// The strings of the last entry, many of which the next entry has as well.
    strings: Vec<ServerString<'static>>,
    /// The effects of all changes, for replicas and the AOF.
    effects: Vec<u8>,
    is_changed: bool,
}

impl<'k> DelayEdit<'k> {
    /// Opens a key in the selected database.
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Ok(Self::of(ctx, name, TypedKey::of(ctx.open(name), &DELAY)?))
    }

    /// The same for a key that is open already.
    pub(super) fn of(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        key: TypedKey<'k, ListedQueue>,
    ) -> Self {
        Self {
            ctx,
            name,
            key,
            stream: None,
            strings: Vec::new(),
            effects: Vec::new(),
            is_changed: false,
        }
    }

    /// The queue with its place in the list of deadlines, if there is one.
    pub(super) fn value(&mut self) -> Option<&mut ListedQueue> {
        self.key.value()
    }

    /// The queue.
    pub(super) fn queue(&mut self) -> Result<&mut DelayQueue, Error> {
        let value = self.key.value().ok_or(Error::NoDelayQueue)?;
        Ok(&mut value.queue)
    }

    /// Sets the stream of the queue. Without a queue there is a new one.
    pub(super) fn set_target(&mut self, target: Target) {
        persist::put_set(&mut self.effects, &target);
        self.is_changed = true;
        match self.key.value() {
            Some(value) => value.queue.set_target(target),
            None => self.key.create(ListedQueue::new(DelayQueue::new(target))),
        }
        // The next attempt to deliver is at once.
        self.set_stuck(false);
        self.list_if_earlier();
    }

    /// Puts a message in that arrives now. Returns whether it has replaced another one.
    pub(super) fn put(&mut self, message: PackedMessage<'_>, due: u64) -> Result<bool, Error> {
        let is_replaced = self.queue()?.put(message, due);
        persist::put_added(&mut self.effects, message, due);
        self.is_changed = true;
        self.list_if_earlier();
        Ok(is_replaced)
    }

    /// Cancels a message. Returns whether there was one.
    pub(super) fn cancel(&mut self, id: &[u8]) -> bool {
        let is_canceled = self.queue().is_ok_and(|queue| queue.remove(id));
        if is_canceled {
            persist::put_canceled(&mut self.effects, id);
            self.is_changed = true;
        }
        is_canceled
    }

    /// Delivers due messages until the slice is over. An error: the stream takes no entry now.
    pub(super) fn deliver_due(&mut self, now: u64, slice: &Slice) -> Result<(), Error> {
        let (mut messages, mut bytes) = (0, 0);
        while let Some(delivered) = self.deliver_next(now)? {
            messages += 1;
            bytes += delivered;
            if messages >= STEP_MESSAGES || bytes >= STEP_BYTES {
                if slice.is_over() {
                    break;
                }
                (messages, bytes) = (0, 0);
            }
        }
        Ok(())
    }

    /// Delivers the next message, if it is due. Returns its size in bytes.
    fn deliver_next(&mut self, now: u64) -> Result<Option<usize>, Error> {
        let Some(value) = self.key.value() else {
            return Ok(None);
        };
        let Some(first) = value.queue.first().filter(|first| first.due <= now) else {
            return Ok(None);
        };
        let message = first.message();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => {
                let key = &value.queue.target().stream;
                let name = ServerString::new(key);
                empty.insert(Stream::open_of(self.ctx, self.name, name, false)?)
            }
        };
        let entry = append(stream, &mut self.strings, message, None)?;
        let bytes = message.packed().len();
        let effects_before = self.effects.len();
        persist::put_delivered(&mut self.effects, message.id(), entry);
        if self.key.is_removed() {
            // A listener to an event of the stream has deleted, renamed or moved the queue, so nothing is delivered.
            self.effects.truncate(effects_before);
            if let Some(stream) = self.stream.take() {
                stream.retract(entry);
            }
            return Ok(None);
        }
        if let Some(value) = self.key.value() {
            value.queue.deliver_first();
        }
        self.is_changed = true;
        COUNTERS.delivered.count();
        Ok(Some(bytes))
    }

    /// Carries out an effect from a master or an AOF.
    pub(super) fn apply(&mut self, effect: DelayEffect<'_>) -> Result<(), Error> {
        match effect {
            DelayEffect::Created {
                target,
                arrivals,
                delivered,
            } => {
                let queue = DelayQueue::with_counts(target, arrivals, delivered);
                self.key.replace(ListedQueue::new(queue));
            }
            DelayEffect::Set(target) => self.set_target(target),
            DelayEffect::Added(message, due) => {
                self.put(message, due)?;
            }
            DelayEffect::Canceled(id) => {
                if !self.queue()?.remove(id) {
                    return Err(Error::BadEffect);
                }
            }
            DelayEffect::Delivered(id, entry) => self.apply_delivery(id, entry)?,
            DelayEffect::Trimmed(count) => {
                if let Some(stream) = &mut self.stream {
                    stream.drop_oldest(count);
                }
            }
            DelayEffect::Waiting(message, due, arrival) => {
                let restored = self.queue()?.restore(message, due, arrival);
                restored.map_err(|_| Error::BadEffect)?;
            }
        }
        Ok(())
    }

    /// The master has delivered the message, so it is delivered here, whatever becomes of the stream.
    fn apply_delivery(&mut self, id: &[u8], entry: EntryId) -> Result<(), Error> {
        let value = self.key.value().ok_or(Error::BadEffect)?;
        let queued = value.queue.get(id).ok_or(Error::BadEffect)?;
        let appended = match &mut self.stream {
            Some(stream) => Ok(stream),
            empty => {
                let key = &value.queue.target().stream;
                let name = ServerString::new(key);
                Stream::open_of(self.ctx, self.name, name, true).map(|stream| empty.insert(stream))
            }
        }
        .and_then(|stream| append(stream, &mut self.strings, queued.message(), Some(entry)));
        if let Err(error) = appended {
            let line = format!("this server's copy of a stream lacks a delayed message: {error}");
            log::warn_in(self.ctx, &line);
        }
        value.queue.deliver(id);
        self.set_stuck(false);
        Ok(())
    }

    /// Notes whether the stream accepts no entries now.
    pub(super) fn set_stuck(&mut self, is_stuck: bool) {
        if let Some(value) = self.key.value() {
            value.measure(is_stuck);
        }
    }

    /// Lists the next delivery if the list has a later one. A queue that cannot deliver keeps the time of its next attempt.
    fn list_if_earlier(&mut self) {
        let (db, name) = (self.ctx.db(), self.name.bytes());
        let Some(value) = self.key.value_at_key() else {
            return;
        };
        let due = value.queue.next_due();
        if due < value.listed.at && !value.is_stuck() {
            DEADLINES.list(&mut value.listed, db, name, due);
            if due > Now::read().ms() {
                timer::arm(self.ctx, due);
            } else {
                ask_for_slices();
            }
        }
    }

    /// Lists the next delivery, not before `earliest` (Unix ms).
    pub(super) fn relist(&mut self, earliest: u64) {
        let (db, name) = (self.ctx.db(), self.name.bytes());
        if let Some(value) = self.key.value_at_key() {
            let at = value.queue.next_due().max(earliest);
            let at = if value.queue.is_empty() { u64::MAX } else { at };
            DEADLINES.list(&mut value.listed, db, name, at);
        }
    }

    /// Commits all changes, with `event` as the keyspace event.
    pub(super) fn close(mut self, event: &'static CStr) {
        if !self.is_changed {
            return;
        }
        self.trim_stream();
        let effects = std::mem::take(&mut self.effects);
        self.commit(&Commit {
            replicate: Replicate::Effect(c"DELAY.APPLY", &effects),
            is_modified: true,
            event: Some(event),
            ..Commit::default()
        });
    }

    /// Commits the changes of a replica or an AOF: the command is sent on as it came.
    pub(super) fn close_applied(mut self) {
        self.relist(0);
        self.commit(&Commit {
            replicate: Replicate::Verbatim,
            is_modified: true,
            ..Commit::default()
        });
    }

    fn commit(&mut self, commit: &Commit<'_>) {
        let waits_no_more =
            |value: &mut ListedQueue| value.is_stuck() && value.queue.next_due() > Now::read().ms();
        if self.key.value().is_some_and(waits_no_more) {
            // The message that the stream did not accept is gone. The next one is delivered at its time.
            self.set_stuck(false);
            self.list_if_earlier();
        } else if let Some(value) = self.key.value() {
            value.measure(value.is_stuck());
        }
        if let Some(stream) = self.stream.take() {
            stream.announce();
        }
        self.key.commit(self.ctx, self.name, commit);
    }

    /// Keeps the stream at its length.
    fn trim_stream(&mut self) {
        let value = self.key.value();
        let maxlen = value.map_or(0, |value| value.queue.target().maxlen);
        if let Some(stream) = &mut self.stream
            && maxlen > 0
        {
            match stream.trim_to_about(maxlen) {
                0 => {}
                dropped => persist::put_trimmed(&mut self.effects, dropped),
            }
        }
    }
}

/// Appends a message to a stream, with this id or the next one.
fn append(
    stream: &mut Stream<'_>,
    strings: &mut Vec<ServerString<'static>>,
    message: PackedMessage<'_>,
    id: Option<EntryId>,
) -> Result<EntryId, Error> {
    let mut count = 0;
    for value in message.values() {
        match strings.get_mut(count) {
            Some(string) if string.bytes() == value => {}
            Some(string) => *string = ServerString::new(value),
            None => strings.push(ServerString::new(value)),
        }
        count += 1;
    }
    strings.truncate(count);
    let entry: Vec<&ServerString<'_>> = strings.iter().collect();
    stream.append(&entry, id)
}
