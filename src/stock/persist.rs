//! The encoding of stocks: effects for AOF and replication. RDB and `DUMP` contain a list of effects as well.
//!
//! ```text
//! effects = effect*                           to the end of the input; none: a repeated request
//! effect  = 'S' flags counts terms [entry]    the stock is new, without orders
//!         | 'A' order zigzag(delta) now event ADD
//!         | 'D' order user qty now event      DEDUCT
//!         | 'R' order user qty px now event   RESERVE
//!         | 'C' order now event               CONFIRM
//!         | 'X' order now event               CANCEL
//!         | 'E' order now event               a reservation ended
//!         | 'M' order now                     CANCEL of an unknown order
//!         | 'F' order                         a final order is forgotten
//!         | 'T' count                         the oldest `count` entries of the event stream were dropped
//!         | 'O' record                        an order, in the encoding of `order`
//!         | 'U' user held                     a user and its quantity
//! flags   = 1: the key keeps its expiry, 2: entry is present
//! counts  = available reserved sold ver
//! terms   = per_user retain 0 | per_user retain 1 stream maxlen
//! event   = 0 | 1 entry                       the id of the entry in the event stream
//! entry   = ms seq
//!
//! stock   = version(1) n, then n byte strings of effects: the first effect is 'S', all others are 'O' or 'U'
//! ```
//!
//! [`crate::codec`] defines integers and byte strings. Times are Unix milliseconds.

use super::order::{self, Order, unzigzag, zigzag};
use super::state::{Change, Counts, EventStream, Op, SaleTerms, Stock};
use super::{MAX_ID_BYTES, MAX_QTY};
use crate::codec::{Corrupt, Reader, put_bytes, put_uint, put_uints};
use crate::request::TEN_YEARS_MS;
use crate::server::services::stream::EntryId;

/// The version of the encoding.
pub const VERSION: u8 = 1;

const KEEPS_EXPIRY: u8 = 1;
const HAS_ENTRY: u8 = 2;

/// One change of a stock, as a replica or an AOF receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StockEffect<'a> {
    /// A new stock replaces the value at the key.
    Created(Box<Created>),
    /// A change, with the id of its entry in the event stream.
    Changed(Change<'a>, Option<EntryId>),
    /// The number of entries that were dropped from the beginning of the event stream.
    Trimmed(u64),
    /// An order.
    Order(Order<'a>),
    /// A user and its quantity.
    User(&'a [u8], u64),
}

/// A new stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The quantities and the version.
    pub counts: Counts,
    /// The terms of sale.
    pub terms: SaleTerms,
    /// Whether the key keeps its expiry.
    pub keeps_expiry: bool,
    /// The id of the entry in the event stream.
    pub entry: Option<EntryId>,
}

/// Appends [`StockEffect::Created`].
pub fn put_created(out: &mut Vec<u8>, created: &Created) {
    out.push(b'S');
    let flag = |is: bool, bit: u8| if is { bit } else { 0 };
    out.push(flag(created.keeps_expiry, KEEPS_EXPIRY) | flag(created.entry.is_some(), HAS_ENTRY));
    put_counts(out, &created.counts);
    put_terms(out, &created.terms);
    if let Some(entry) = created.entry {
        put_entry(out, entry);
    }
}

/// Appends [`StockEffect::Changed`].
pub fn put_changed(out: &mut Vec<u8>, change: &Change<'_>, entry: Option<EntryId>) {
    out.push(letter(change.op));
    put_bytes(out, change.order);
    match change.op {
        Op::Add => put_uint(out, zigzag(change.qty)),
        Op::Deduct | Op::Reserve => {
            put_bytes(out, change.user);
            put_uint(out, change.qty.unsigned_abs());
        }
        _ => {}
    }
    if change.op == Op::Reserve {
        put_uint(out, change.px);
    }
    match (change.op, entry) {
        (Op::Forget, _) => {}
        (Op::Mark, _) => put_uint(out, change.now),
        (_, None) => put_uints(out, [change.now, 0]),
        (_, Some(entry)) => put_uints(out, [change.now, 1, entry.ms, entry.seq]),
    }
}

/// Appends [`StockEffect::Trimmed`].
pub fn put_trimmed(out: &mut Vec<u8>, count: u64) {
    out.push(b'T');
    put_uint(out, count);
}

/// Reads the effects of one command in order.
pub fn effects(input: &[u8]) -> impl Iterator<Item = Result<StockEffect<'_>, Corrupt>> {
    let mut reader = Reader::new(input);
    std::iter::from_fn(move || (!reader.is_empty()).then(|| effect(&mut reader)))
}

fn effect<'a>(reader: &mut Reader<'a>) -> Result<StockEffect<'a>, Corrupt> {
    let letter = reader.byte()?;
    match letter {
        b'S' => created(reader).map(|created| StockEffect::Created(Box::new(created))),
        b'T' => Ok(StockEffect::Trimmed(reader.uint(0, MAX_QTY)?)),
        b'O' => order::read(reader).map(StockEffect::Order),
        b'U' => Ok(StockEffect::User(
            reader.bytes(1, MAX_ID_BYTES)?,
            reader.uint(1, MAX_QTY)?,
        )),
        _ => changed(letter, reader),
    }
}

fn created(reader: &mut Reader<'_>) -> Result<Created, Corrupt> {
    let flags = reader.byte()?;
    if flags & !(KEEPS_EXPIRY | HAS_ENTRY) != 0 {
        return Err(Corrupt);
    }
    Ok(Created {
        counts: counts(reader)?,
        terms: terms(reader)?,
        keeps_expiry: flags & KEEPS_EXPIRY != 0,
        entry: match flags & HAS_ENTRY {
            0 => None,
            _ => Some(entry(reader)?),
        },
    })
}

const LETTERS: [(u8, Op); 8] = [
    (b'A', Op::Add),
    (b'D', Op::Deduct),
    (b'R', Op::Reserve),
    (b'C', Op::Confirm),
    (b'X', Op::Cancel),
    (b'E', Op::Expire),
    (b'M', Op::Mark),
    (b'F', Op::Forget),
];

fn letter(op: Op) -> u8 {
    LETTERS[op as usize].0
}

fn changed<'a>(letter: u8, reader: &mut Reader<'a>) -> Result<StockEffect<'a>, Corrupt> {
    let found = LETTERS.iter().find(|(other, _)| *other == letter);
    let (_, op) = *found.ok_or(Corrupt)?;
    let needs_order = !matches!(op, Op::Add | Op::Deduct);
    let mut change = Change::of(op, reader.bytes(needs_order.into(), MAX_ID_BYTES)?, 0);
    match op {
        Op::Add => change.qty = unzigzag(reader.uint(0, 2 * MAX_QTY)?),
        Op::Deduct | Op::Reserve => {
            change.user = reader.bytes(0, MAX_ID_BYTES)?;
            change.qty = reader.uint(1, MAX_QTY)? as i64;
        }
        _ => {}
    }
    if op == Op::Reserve {
        change.px = reader.uint(1, TEN_YEARS_MS as u64)?;
    }
    if op != Op::Forget {
        change.now = reader.uint(0, MAX_QTY)?;
    }
    if change.now + change.px > MAX_QTY {
        return Err(Corrupt); // an order that could not be loaded
    }
    let announced = match op {
        Op::Mark | Op::Forget => 0,
        _ => reader.byte()?,
    };
    let entry = match announced {
        0 => None,
        1 => Some(entry(reader)?),
        _ => return Err(Corrupt),
    };
    Ok(StockEffect::Changed(change, entry))
}

fn put_counts(out: &mut Vec<u8>, counts: &Counts) {
    for number in [counts.available, counts.reserved, counts.sold, counts.ver] {
        put_uint(out, number);
    }
}

fn counts(reader: &mut Reader<'_>) -> Result<Counts, Corrupt> {
    let mut number = || reader.uint(0, MAX_QTY);
    let counts = Counts {
        available: number()?,
        reserved: number()?,
        sold: number()?,
        ver: number()?,
    };
    if counts.total() > MAX_QTY {
        return Err(Corrupt);
    }
    Ok(counts)
}

/// Appends the quantities and the terms of a stock.
pub fn put_summary(out: &mut Vec<u8>, stock: &Stock) {
    put_counts(out, &stock.counts());
    put_terms(out, stock.terms());
}

fn put_terms(out: &mut Vec<u8>, terms: &SaleTerms) {
    put_uint(out, terms.per_user);
    put_uint(out, terms.retain);
    out.push(terms.events.is_some().into());
    if let Some(events) = &terms.events {
        put_bytes(out, &events.stream);
        put_uint(out, events.maxlen);
    }
}

fn terms(reader: &mut Reader<'_>) -> Result<SaleTerms, Corrupt> {
    Ok(SaleTerms {
        per_user: reader.uint(0, MAX_QTY)?,
        retain: reader.uint(1, TEN_YEARS_MS as u64)?,
        events: match reader.byte()? {
            0 => None,
            1 => Some(Box::new(EventStream {
                stream: reader.bytes(0, usize::MAX)?.into(),
                maxlen: reader.uint(1, MAX_QTY)?,
            })),
            _ => return Err(Corrupt),
        },
    })
}

fn put_entry(out: &mut Vec<u8>, entry: EntryId) {
    put_uint(out, entry.ms);
    put_uint(out, entry.seq);
}

fn entry(reader: &mut Reader<'_>) -> Result<EntryId, Corrupt> {
    Ok(EntryId {
        ms: reader.uint(0, u64::MAX)?,
        seq: reader.uint(0, u64::MAX)?,
    })
}

/// The most orders or users in one piece of a stock.
const PER_PIECE: usize = 256;

/// Passes a whole stock to `write` as byte strings of effects. Returns their number.
pub fn pieces(stock: &Stock, write: &mut dyn FnMut(&[u8])) -> usize {
    let mut piece = Vec::new();
    put_created(
        &mut piece,
        &Created {
            counts: stock.counts(),
            terms: stock.terms().clone(),
            keeps_expiry: false,
            entry: None,
        },
    );
    let mut given = 0;
    let mut inside = 0;
    let mut next = |piece: &mut Vec<u8>| {
        inside += 1;
        if inside == PER_PIECE {
            inside = 0;
            given += 1;
            write(piece);
            piece.clear();
        }
    };
    if let Some(store) = stock.store() {
        for order in store.iter_orders() {
            put_order(&mut piece, &order);
            next(&mut piece);
        }
        for user in store.iter_users() {
            put_user(&mut piece, &user.id, user.held);
            next(&mut piece);
        }
    }
    if !piece.is_empty() {
        given += 1;
        write(&piece);
    }
    given
}

/// The number of byte strings that [`pieces`] passes.
pub fn count_pieces(stock: &Stock) -> usize {
    let store = stock.store();
    let inside = store.map_or(0, |store| store.order_count() + store.user_count());
    // The first piece always exists, because it begins with 'S'. Every full piece is passed at once.
    if inside == 0 {
        1
    } else {
        inside.div_ceil(PER_PIECE)
    }
}

/// Appends [`StockEffect::Order`].
pub fn put_order(out: &mut Vec<u8>, order: &Order<'_>) {
    out.push(b'O');
    order::put(out, order);
}

/// Appends [`StockEffect::User`].
pub fn put_user(out: &mut Vec<u8>, user: &[u8], held: u64) {
    out.push(b'U');
    put_bytes(out, user);
    put_uint(out, held);
}

/// Appends the header, which precedes the pieces of a stock.
pub fn put_header(out: &mut Vec<u8>, stock: &Stock) {
    out.push(VERSION);
    put_uint(out, count_pieces(stock) as u64);
}

/// Reads the header. Returns the number of pieces that follow.
pub fn header(input: &[u8]) -> Result<u64, Corrupt> {
    let mut reader = Reader::new(input);
    if reader.byte()? != VERSION {
        return Err(Corrupt);
    }
    let pieces = reader.uint(1, MAX_QTY)?;
    if reader.is_empty() {
        Ok(pieces)
    } else {
        Err(Corrupt)
    }
}

/// Checks the effects of a client, who is neither a master nor an AOF: its orders and users must come with a new stock that agrees
/// with them. Otherwise the server could not load the stock that it has saved.
pub fn check_whole(input: &[u8]) -> Result<(), Corrupt> {
    let mut stock: Option<Stock> = None;
    for effect in effects(input) {
        match (effect?, &mut stock) {
            (StockEffect::Created(created), _) => {
                stock = Some(Stock::new(created.counts, created.terms));
            }
            (StockEffect::Order(order), Some(stock)) => stock.put_order(&order)?,
            (StockEffect::User(user, held), Some(stock)) => stock.put_user(user, held)?,
            (StockEffect::Order(_) | StockEffect::User(..), None) => return Err(Corrupt),
            (StockEffect::Changed(..) | StockEffect::Trimmed(_), _) => {}
        }
    }
    stock
        .is_none_or(|stock| stock.is_consistent())
        .then_some(())
        .ok_or(Corrupt)
}

/// Builds a stock from its pieces.
#[derive(Debug, Default)]
pub struct Builder(Option<Stock>);

impl Builder {
    /// Adds the next piece.
    pub fn add(&mut self, piece: &[u8]) -> Result<(), Corrupt> {
        for effect in effects(piece) {
            match (effect?, &mut self.0) {
                (StockEffect::Created(created), empty @ None) if created.entry.is_none() => {
                    *empty = Some(Stock::new(created.counts, created.terms));
                }
                (StockEffect::Order(order), Some(stock)) => stock.put_order(&order)?,
                (StockEffect::User(user, held), Some(stock)) => stock.put_user(user, held)?,
                _ => return Err(Corrupt),
            }
        }
        Ok(())
    }

    /// The stock. Error: its orders and users do not agree with its quantities, or the first piece is missing.
    pub fn finish(self) -> Result<Stock, Corrupt> {
        self.0.filter(Stock::is_consistent).ok_or(Corrupt)
    }
}
