//! A change of one stock in the keyspace, and everything that follows from it: the event stream,
//! replicas, AOF, watching clients, listeners to keyspace events and the list of deadlines.

use super::native::STOCK;
use super::persist::{self, Created};
use super::state::{Announcement, Change, Op, Stock};
use super::{COUNTERS, DEADLINES};
use crate::error::Error;
use crate::server::base::main_thread::MainThread;
use crate::server::entry::Call;
use crate::server::handles::context::Ctx;
use crate::server::handles::key::TypedKey;
use crate::server::handles::string::ServerString;
use crate::server::services::cluster::{is_moving, share_slot};
use crate::server::services::commit::{Commit, KeyFate, Replicate};
use crate::server::services::stream::{EntryId, Stream};
use crate::server::services::timer;
use std::ffi::CStr;

/// At most so many reservations end, and so many orders are forgotten, at a time.
pub(super) const SLICE: usize = 256;

/// A stock whose orders can be forgotten is looked at again after so many milliseconds.
const BATCH: u64 = 50;

/// A buffer for effects is kept up to this capacity in bytes.
const KEPT: usize = 64 * 1024;

/// A buffer for effects, kept to be used again.
static EFFECTS: MainThread<Vec<u8>> = MainThread::new();

/// The strings that do not change from entry to entry of an event stream.
struct EntryStrings {
    fields: [ServerString<'static>; 7],
    ops: [ServerString<'static>; 7],
    none: ServerString<'static>,
    one: ServerString<'static>,
}

impl Default for EntryStrings {
    fn default() -> Self {
        Self {
            fields: ["op", "sku", "order", "user", "qty", "available", "ver"]
                .map(|field| ServerString::new(field.as_bytes())),
            ops: [
                "add", "deduct", "reserve", "confirm", "cancel", "expire", "set",
            ]
            .map(|op| ServerString::new(op.as_bytes())),
            none: ServerString::new(b""),
            one: ServerString::new(b"1"),
        }
    }
}

static LABELS: MainThread<EntryStrings> = MainThread::new();

/// Which of [`EntryStrings::ops`] tells that a stock is new; the others are in the order of [`Op`].
const SET: usize = Op::Expire as usize + 1;

/// The name of the event stream that was last written to, kept to be used again.
static STREAM_NAME: MainThread<Option<ServerString<'static>>> = MainThread::new();

/// Opens the event stream of the stock at `sku`. Who follows a master takes it as it is.
fn open_stream<'k>(
    ctx: Ctx<'k>,
    sku: &ServerString<'_>,
    key: &[u8],
    follows: bool,
) -> Result<Stream<'k>, Error> {
    if *key == *sku.bytes() {
        return Err(Error::WrongType); // it holds the stock, or is to hold it
    }
    let last = STREAM_NAME.get().take();
    let same = last.filter(|name| name.bytes() == key);
    let name = same.unwrap_or_else(|| ServerString::new(key));
    if !follows && !share_slot(ctx, sku, &name) {
        return Err(Error::CrossSlot); // a stock that was restored to another hash slot
    }
    let stream = Stream::open(ctx, name)?;
    // A stream that is not here may be on the node that the hash slot comes from or goes to: one more of that name would keep
    // them from ever meeting. The server does not look at it, because commands do not name it.
    if !follows && stream.is_new() && is_moving(ctx, sku) {
        return Err(Error::TryAgain);
    }
    Ok(stream)
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
    /// What was done, for replicas and the AOF.
    effects: Vec<u8>,
    /// Is this server told what to do, and has nobody to tell?
    follows: bool,
    changed: bool,
    /// Did the command itself change anything, beside what had ended anyway?
    stepped: bool,
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
            follows: false,
            changed: false,
            stepped: false,
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

    /// The same for effects that a master or an AOF hands down.
    pub(super) fn for_effects(
        ctx: Ctx<'k>,
        name: &'k ServerString<'k>,
        key: TypedKey<'k, Stock>,
    ) -> Self {
        Self {
            follows: true,
            ..Self::of(ctx, name, key)
        }
    }

    /// The stock, if there is one.
    pub(super) fn stock(&mut self) -> Option<&mut Stock> {
        self.key.value()
    }

    /// Has the server more in memory than `maxmemory` allows? Not asked of those who only follow.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.ctx.is_out_of_memory() && !self.ctx.is_replay()
    }

    /// Ends the reservations whose time is up, as far as that was not done yet: `most` of them, and
    /// the one that a command is about.
    pub(super) fn end_overdue(&mut self, now: u64, order: &[u8], most: usize) {
        let Some(stock) = self.key.value() else {
            return;
        };
        if stock.next_end() > now || !self.ctx.may_decide() {
            return;
        }
        // What cannot be announced stays as it is; a change by the command meets the same error.
        let ended = self.end_slice(now, most);
        let is_overdue = |stock: &mut Stock| stock.is_overdue(order, now);
        if ended.is_ok() && self.stock().is_some_and(is_overdue) {
            let _ = self.end(order, now);
        }
        self.replicate();
    }

    /// Ends `most` reservations whose time is up.
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

    /// Forgets `most` orders that are final for long enough.
    pub(super) fn forget_slice(&mut self, now: u64, most: usize) -> Result<(), Error> {
        let ids = self.key.value().map_or(Vec::new(), |stock| {
            let retain = stock.terms().retain;
            let store = stock.store();
            store.map_or(Vec::new(), |store| store.forgettable(now, retain, most))
        });
        let mut forget = |id| self.change(&Change::of(Op::Forget, id, now));
        ids.iter().try_for_each(|id| forget(id))
    }

    /// Announces a decided change and carries it out.
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

    /// Can a change be announced, and `entries` in all of the same command in that stream?
    pub(super) fn check_stream(&mut self, change: &Change<'_>, entries: u64) -> Result<(), Error> {
        let was_open = self.stream.is_some();
        self.open_stream_for(change)?;
        if let Some(stream) = &mut self.stream
            && !stream.has_ids_for(entries)
        {
            return Err(Error::StreamFull);
        }
        if !was_open {
            // Another edit may create it meanwhile, of which this handle would know nothing.
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
            let stream = open_stream(self.ctx, self.name, &events.stream, self.follows)?;
            self.stream = Some(stream);
        }
        Ok(self.stream.as_mut())
    }

    /// Appends a decided change to the event stream, if the stock has one: with this id, or the
    /// next one. Nothing is changed if that fails. Returns the id.
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

    /// The same for a new stock, which is still to be put at the key.
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
        let stream = open_stream(self.ctx, self.name, &events.stream, self.follows)?;
        let stream = self.stream.insert(stream);
        let entry = append(stream, None, self.name, SET, &announcement, created.entry)?;
        Ok(Some(entry))
    }

    /// Takes an entry back whose change will not be applied.
    pub(super) fn retract(&mut self, entry: EntryId) {
        if let Some(stream) = self.stream.take() {
            stream.retract(entry);
        }
    }

    /// Keeps the event stream at its length, after a change was announced there.
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

    /// Carries a change out that was announced by this entry.
    pub(super) fn apply(
        &mut self,
        change: &Change<'_>,
        entry: Option<EntryId>,
    ) -> Result<(), Error> {
        let Some(stock) = self.key.value() else {
            return Err(Error::Internal);
        };
        let due = stock.apply(change).map_err(|_| Error::BadEffect)?;
        if due < stock.listed.at {
            DEADLINES.list(&mut stock.listed, self.ctx.db(), self.name.bytes(), due);
            timer::arm(self.ctx, due);
        }
        self.changed = true;
        if self.follows {
            return Ok(());
        }
        self.stepped |= !matches!(change.op, Op::Expire | Op::Forget);
        if self.effects.capacity() == 0 {
            self.effects = std::mem::take(&mut *EFFECTS.get());
        }
        persist::put_changed(&mut self.effects, change, entry);
        if entry.is_some() {
            self.trim_stream();
        }
        Ok(())
    }

    /// Makes the key a new stock, whatever it held, and announces it.
    pub(super) fn create(&mut self, mut created: Created) -> Result<(), Error> {
        created.entry = self.announce_new(&created)?;
        persist::put_created(&mut self.effects, &created);
        (self.changed, self.stepped) = (true, true);
        self.replace(created);
        self.trim_stream();
        Ok(())
    }

    /// Puts a new stock at the key, in place of what is there.
    pub(super) fn replace(&mut self, created: Created) {
        let expires = self.key.expires().filter(|_| created.keeps_expiry);
        self.key.replace(Stock::new(created.counts, created.terms));
        let commit = Commit {
            key: expires.map_or(KeyFate::Keep, KeyFate::ExpireAt),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Repeats what a master did to the event stream.
    pub(super) fn drop_oldest(&mut self, count: u64) -> Result<(), Error> {
        if let Some(stream) = self.open_stream()? {
            stream.drop_oldest(count);
        }
        Ok(())
    }

    /// Lists the stock anew, after it was looked at: not before `earliest` (Unix ms), and for orders
    /// that can be forgotten not before a while later, so that they come in batches.
    pub(super) fn relist(&mut self, earliest: u64) {
        let (db, key) = (self.ctx.db(), self.name.bytes());
        if let Some(stock) = self.key.value() {
            let end = stock.next_end().max(earliest);
            let forget = stock.next_forgettable().max(earliest + BATCH);
            DEADLINES.list(&mut stock.listed, db, key, end.min(forget));
        }
    }

    /// Ends the edit, and commits what was changed. `event` is the keyspace event.
    pub(super) fn close(&mut self, event: Option<&'static CStr>) {
        if !self.changed {
            return;
        }
        let event = event.filter(|_| self.stepped);
        self.announce_stream();
        self.commit_effects(true, event);
    }

    /// Sends an effect that changes nothing: the reply to a repeated request may be waited for with `WAIT`, and a server that
    /// is sent nothing waits for nothing, though it was never told of the first request.
    pub(super) fn replicate_repeated(&mut self) {
        let commit = Commit {
            replicate: Replicate::Effect(c"STOCK.APPLY", &[]),
            ..Commit::default()
        };
        self.key.commit(self.ctx, self.name, &commit);
    }

    /// Has the edit changed nothing?
    pub(super) fn is_unchanged(&self) -> bool {
        !self.changed
    }

    /// Replicates what was done so far. Where several stocks share an event stream, replicas must append to it in the same
    /// order.
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
        if !effects.is_empty() && effects.capacity() <= KEPT {
            effects.clear();
            *EFFECTS.get() = effects;
        }
    }

    /// Ends the edit of a replica or an AOF, which hands on what it was given.
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
            *STREAM_NAME.get() = Some(stream.announce());
        }
    }
}

fn append(
    stream: &mut Stream<'_>,
    call: Option<&Call<'_>>,
    sku: &ServerString<'_>,
    op: usize,
    announcement: &Announcement<'_>,
    id: Option<EntryId>,
) -> Result<EntryId, Error> {
    let labels = &*LABELS.get();
    let argument = |bytes: &[u8]| call.and_then(|call| call.argument(bytes));
    let make = |bytes: &[u8]| argument(bytes).unwrap_or_else(|| ServerString::new(bytes));
    let named = |bytes: &[u8]| (!bytes.is_empty()).then(|| make(bytes));
    let (order, user) = (named(announcement.order), named(announcement.user));
    let qty = (announcement.qty != 1).then(|| ServerString::number(announcement.qty));
    let available = ServerString::number(announcement.available as i64);
    let ver = ServerString::number(announcement.ver as i64);
    let values = [
        &labels.ops[op],
        sku,
        order.as_ref().unwrap_or(&labels.none),
        user.as_ref().unwrap_or(&labels.none),
        qty.as_ref().unwrap_or(&labels.one),
        &available,
        &ver,
    ];
    let mut pairs = [&labels.none; 14];
    for (index, (field, value)) in labels.fields.iter().zip(values).enumerate() {
        pairs[index * 2] = field;
        pairs[index * 2 + 1] = value;
    }
    stream.append(&pairs, id)
}
