//! Changes one stock in the keyspace: announces each decided change in the event stream, applies it, and turns all of them into
//! one commit.

use super::events::{SET, append, open_stream};
use super::native::STOCK;
use super::persist::{self, Created};
use super::state::{Announcement, Change, Op, Stock};
use super::{COUNTERS, DEADLINES, STATE};
use crate::error::Error;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::log;
use crate::server::handles::string::ServerString;
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::stream::{EntryId, Stream};
use crate::server::services::timer;
use std::ffi::CStr;

/// The most reservations that one slice ends, and the most orders that it forgets.
pub(super) const SLICE_ORDERS: usize = 256;

/// The shortest time between two slices that forget orders of a stock.
const FORGET_INTERVAL_MS: u64 = 50;

/// The buffer for effects is kept up to this capacity.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// Applies a decided change that depends only on the quantities of the stock, and that no event stream announces. Replicas and
/// the AOF receive the command as it came, which is shorter than an effect.
#[inline]
pub(super) fn change_plainly(
    ctx: Ctx<'_>,
    name: &ServerString<'_>,
    key: &mut TypedKey<'_, Stock>,
    change: &Change<'_>,
    event: &'static CStr,
) -> Result<(), Error> {
    let stock = key.value().ok_or(Error::Internal)?;
    stock.apply(change).map_err(|_| Error::Internal)?;
    let commit = Commit {
        replicate: Replicate::Verbatim,
        is_modified: true,
        event: Some(event),
        ..Commit::default()
    };
    key.commit(ctx, name, &commit);
    Ok(())
}

/// Passes on the empty effect of a repeated request (see [`StockEdit::replicate_repeated`]) to the replicas of this server.
pub(super) fn pass_on_repeated(ctx: Ctx<'_>, name: &ServerString<'_>) {
    let commit = Commit {
        replicate: Replicate::Verbatim,
        ..Commit::default()
    };
    commit.carry_out_without_key(ctx, name);
}

/// A stock's key, open for changes. Ends with [`StockEdit::close`].
pub(super) struct StockEdit<'k> {
    ctx: Ctx<'k>,
    name: &'k ServerString<'k>,
    /// The running command, if there is one: its arguments need not be copied for the stream.
    call: Option<&'k Call<'k>>,
    key: TypedKey<'k, Stock>,
    /// The event stream, once something was announced.
    stream: Option<Stream<'k>>,
    /// The effects of all changes, for replicas and the AOF.
    effects: Vec<u8>,
    /// Whether this server applies effects of a master or an AOF. Then its replicas receive the command as it came.
    is_following: bool,
    /// Whether the stock was changed.
    is_changed: bool,
    /// Whether the command itself changed the stock. Reservations may also end during the command.
    is_changed_by_command: bool,
}

impl<'k> StockEdit<'k> {
    /// Opens a key in the selected database.
    pub(super) fn open(ctx: Ctx<'k>, name: &'k ServerString<'k>) -> Result<Self, Error> {
        Ok(Self::of(ctx, name, TypedKey::of(ctx.open(name), &STOCK)?))
    }

    /// The same for a key that is open already.
    pub(super) fn of(ctx: Ctx<'k>, name: &'k ServerString<'k>, key: TypedKey<'k, Stock>) -> Self {
        Self {
            ctx,
            name,
            call: None,
            key,
            stream: None,
            effects: Vec::new(),
            is_following: false,
            is_changed: false,
            is_changed_by_command: false,
        }
    }

    /// The same for a command.
    pub(super) fn for_call(
        call: &'k Call<'k>,
        name: &'k ServerString<'k>,
        key: TypedKey<'k, Stock>,
    ) -> Self {
        Self {
            call: Some(call),
            ..Self::of(call.ctx, name, key)
        }
    }

    /// The same for effects from a master or an AOF.
    pub(super) fn for_effects(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        key: TypedKey<'k, Stock>,
    ) -> Self {
        Self {
            is_following: true,
            ..Self::of(ctx, name, key)
        }
    }

    /// The stock, if there is one.
    pub(super) fn stock(&mut self) -> Option<&mut Stock> {
        self.key.value()
    }

    /// The context, and the name of the key.
    pub(super) fn ctx_and_name(&self) -> (Ctx<'k>, &'k ServerString<'k>) {
        (self.ctx, self.name)
    }

    /// The names of the stock and of its event stream, for the log: escaped and cut.
    pub(super) fn shown_names(&mut self) -> (String, String) {
        let events = self
            .key
            .value()
            .and_then(|stock| stock.terms().events.as_ref());
        let stream = events.map_or(String::new(), |events| log::quoted(&events.stream));
        (log::quoted(self.name.bytes()), stream)
    }

    /// Whether the server uses more memory than `maxmemory` allows. Always false for a replayed command.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.ctx.is_out_of_memory() && !self.ctx.is_replay()
    }

    /// Ends expired reservations: the first `most` of them, and the one that the command names.
    pub(super) fn end_overdue(&mut self, now: u64, order: &[u8], most: usize) {
        let Some(stock) = self.key.value() else {
            return;
        };
        if stock.next_end() > now || !self.ctx.may_decide() {
            return;
        }
        // A reservation whose end cannot be announced stays. A change by the command fails with the same error.
        let ended = self.end_slice(now, most);
        let is_overdue = |stock: &mut Stock| stock.is_overdue(order, now);
        if ended.is_ok() && self.stock().is_some_and(is_overdue) {
            let _ = self.end(order, now);
        }
        self.replicate();
    }

    /// Ends the first `most` expired reservations.
    pub(super) fn end_slice(&mut self, now: u64, most: usize) -> Result<(), Error> {
        let store = self.key.value().and_then(|stock| stock.store());
        let ids = store.map_or(Vec::new(), |store| store.ended(now, most));
        ids.iter().try_for_each(|id| self.end(id, now))
    }

    fn end(&mut self, order: &[u8], now: u64) -> Result<(), Error> {
        let change = Change::of(Op::Expire, order, now);
        self.change(&change)?;
        COUNTERS.expired.count();
        let commit = Commit {
            event: Some(c"stock.expire"),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
        Ok(())
    }

    /// Forgets the first `most` orders whose retention time is over.
    pub(super) fn forget_slice(&mut self, now: u64, most: usize) -> Result<(), Error> {
        let ids = self.key.value().map_or(Vec::new(), |stock| {
            let retain = stock.terms().retain;
            let store = stock.store();
            store.map_or(Vec::new(), |store| store.forgettable(now, retain, most))
        });
        let mut forget = |id| self.change(&Change::of(Op::Forget, id, now));
        ids.iter().try_for_each(|id| forget(id))
    }

    /// Announces a decided change and applies it.
    pub(super) fn change(&mut self, change: &Change<'_>) -> Result<(), Error> {
        let entry = self.announce(change, None)?;
        let applied = self.apply(change, entry);
        if let (Err(_), Some(entry)) = (&applied, entry) {
            self.retract(entry);
        }
        applied
    }

    /// The key of the stream that announces a change, if one does.
    pub(super) fn stream_of(&mut self, change: &Change<'_>) -> Option<&[u8]> {
        let stock = self.key.value().filter(|_| change.op.is_announced())?;
        let events = stock.terms().events.as_ref()?;
        Some(&events.stream)
    }

    /// Checks that a change can be announced, and that the stream has ids for `entries` entries of the command.
    pub(super) fn check_stream(&mut self, change: &Change<'_>, entries: u64) -> Result<(), Error> {
        let was_open = self.stream.is_some();
        self.open_stream_for(change)?;
        if let Some(stream) = &mut self.stream
            && !stream.has_ids_for(entries)
        {
            return Err(Error::StreamFull);
        }
        if !was_open {
            // Another edit of the command may create the stream, which this handle would not see.
            self.stream = None;
        }
        Ok(())
    }

    fn open_stream_for(&mut self, change: &Change<'_>) -> Result<(), Error> {
        if change.op.is_announced() {
            self.open_stream()?;
        }
        Ok(())
    }

    /// The event stream, if the stock has one.
    fn open_stream(&mut self) -> Result<Option<&mut Stream<'k>>, Error> {
        if self.stream.is_none()
            && let Some(stock) = self.key.value()
            && let Some(events) = &stock.terms().events
        {
            let stream = open_stream(self.ctx, self.name, &events.stream, self.is_following)?;
            self.stream = Some(stream);
        }
        Ok(self.stream.as_mut())
    }

    /// Appends a decided change to the event stream, if the stock has one, with this id or the next one. Returns the id. An error
    /// changes nothing.
    pub(super) fn announce(
        &mut self,
        change: &Change<'_>,
        id: Option<EntryId>,
    ) -> Result<Option<EntryId>, Error> {
        self.open_stream_for(change)?;
        let (Some(stream), Some(stock)) = (&mut self.stream, self.key.value()) else {
            return Ok(None);
        };
        let Some(announcement) = stock.announce(change) else {
            return Ok(None);
        };
        let op = change.op as usize;
        append(stream, self.call, self.name, op, &announcement, id).map(Some)
    }

    /// The same for a new stock, which is not at the key yet.
    pub(super) fn announce_new(&mut self, created: &Created) -> Result<Option<EntryId>, Error> {
        let Some(events) = &created.terms.events else {
            return Ok(None);
        };
        let counts = created.counts;
        let announcement = Announcement {
            order: &[],
            user: &[],
            qty: counts.total() as i64,
            available: counts.available,
            ver: counts.ver,
        };
        let stream = open_stream(self.ctx, self.name, &events.stream, self.is_following)?;
        let stream = self.stream.insert(stream);
        let entry = append(stream, None, self.name, SET, &announcement, created.entry)?;
        Ok(Some(entry))
    }

    /// Closes the event stream until its next use, because the command is about to create another key.
    pub(super) fn suspend_stream(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.suspend();
        }
    }

    /// Deletes an entry whose change will not be applied.
    pub(super) fn retract(&mut self, entry: EntryId) {
        if let Some(stream) = self.stream.take() {
            stream.retract(entry);
        }
    }

    /// Trims the event stream to its length after an announcement.
    fn trim_stream(&mut self) {
        let stock = self.key.value();
        let events = stock.and_then(|stock| stock.terms().events.as_ref());
        if let (Some(stream), Some(events)) = (&mut self.stream, events) {
            match stream.trim_to_about(events.maxlen) {
                0 => {}
                dropped => persist::put_trimmed(&mut self.effects, dropped),
            }
        }
    }

    /// Checks that the stock is still at its key. A listener to the events of an event stream that is created may delete the stock.
    pub(super) fn check_presence(&self) -> Result<(), Error> {
        match self.key.is_removed() {
            true => Err(Error::KeyRemoved),
            false => Ok(()),
        }
    }

    /// Applies a change that this entry has announced.
    pub(super) fn apply(
        &mut self,
        change: &Change<'_>,
        entry: Option<EntryId>,
    ) -> Result<(), Error> {
        self.check_presence()?;
        let Some(stock) = self.key.value() else {
            return Err(Error::Internal);
        };
        let due = stock.apply(change).map_err(|_| Error::BadEffect)?;
        if due < stock.listed.at {
            DEADLINES.list(&mut stock.listed, self.ctx.db(), self.name.bytes(), due);
            timer::arm(self.ctx, due);
        }
        self.is_changed = true;
        if self.is_following {
            return Ok(());
        }
        self.is_changed_by_command |= !matches!(change.op, Op::Expire | Op::Forget);
        if self.effects.capacity() == 0 {
            self.effects = std::mem::take(&mut STATE.get().effects);
        }
        persist::put_changed(&mut self.effects, change, entry);
        if entry.is_some() {
            self.trim_stream();
        }
        Ok(())
    }

    /// Replaces the value at the key, of whatever type, by a new stock, and announces it.
    pub(super) fn create(&mut self, mut created: Created) -> Result<(), Error> {
        created.entry = self.announce_new(&created)?;
        persist::put_created(&mut self.effects, &created);
        (self.is_changed, self.is_changed_by_command) = (true, true);
        self.replace(created);
        self.trim_stream();
        Ok(())
    }

    /// Replaces the value at the key, of whatever type, by a new stock.
    pub(super) fn replace(&mut self, created: Created) {
        self.suspend_stream();
        let expires = self.key.expires().filter(|_| created.keeps_expiry);
        self.key.replace(Stock::new(created.counts, created.terms));
        let commit = Commit {
            key: KeyFate::keep_until(expires),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Drops as many of the oldest entries of the event stream as the master dropped.
    pub(super) fn drop_oldest(&mut self, count: u64) -> Result<(), Error> {
        if let Some(stream) = self.open_stream()? {
            stream.drop_oldest(count);
        }
        Ok(())
    }

    /// Lists the next deadline of the stock: not before `earliest` (Unix ms), and a little later for orders that can be
    /// forgotten, so that they are forgotten in batches.
    pub(super) fn relist(&mut self, earliest: u64) {
        let (db, key) = (self.ctx.db(), self.name.bytes());
        if let Some(stock) = self.key.value_at_key() {
            let end = stock.next_end().max(earliest);
            let forget = stock.next_forgettable().max(earliest + FORGET_INTERVAL_MS);
            DEADLINES.list(&mut stock.listed, db, key, end.min(forget));
        }
    }

    /// Commits all changes, with `event` as the keyspace event.
    pub(super) fn close(&mut self, event: Option<&'static CStr>) {
        if !self.is_changed {
            return;
        }
        let event = event.filter(|_| self.is_changed_by_command);
        self.announce_stream();
        self.commit_effects(true, event);
    }

    /// Replicates an effect without a change. A client may send `WAIT` after the reply to a repeated request. Without an effect,
    /// `WAIT` would return at once, even if no replica has received the first request.
    pub(super) fn replicate_repeated(&mut self) {
        let commit = Commit {
            replicate: Replicate::Effect(c"STOCK.APPLY", &[]),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Whether the edit has changed nothing.
    pub(super) fn is_unchanged(&self) -> bool {
        !self.is_changed
    }

    /// Replicates the changes so far. Several stocks may share an event stream, to which replicas must append in the same order.
    fn replicate(&mut self) {
        self.commit_effects(false, None);
    }

    fn commit_effects(&mut self, is_modified: bool, event: Option<&'static CStr>) {
        let mut effects = std::mem::take(&mut self.effects);
        let commit = Commit {
            key: KeyFate::Keep,
            replicate: match effects.is_empty() {
                true => Replicate::Nothing,
                false => Replicate::Effect(c"STOCK.APPLY", &effects),
            },
            is_modified,
            event,
        };
        self.key.commit(self.ctx, self.name, &commit);
        if !effects.is_empty() && effects.capacity() <= MAX_KEPT_BYTES {
            effects.clear();
            STATE.get().effects = effects;
        }
    }

    /// Commits the changes of effects from a master or an AOF. Replicas receive the command as it came.
    pub(super) fn close_applied(&mut self) {
        self.announce_stream();
        let commit = Commit {
            replicate: Replicate::Verbatim,
            is_modified: true,
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    fn announce_stream(&mut self) {
        if let Some(stream) = self.stream.take() {
            STATE.get().stream_name = Some(stream.announce());
        }
    }
}
