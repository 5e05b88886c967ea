//! The native type: how stocks are saved, copied, measured and moved.

use super::deadlines::ANY_DB;
use super::persist::{self, Builder};
use super::state::{Listed, Stock};
use super::{DEADLINES, INCOMING};
use crate::server::context::Ctx;
use crate::server::events;
use crate::server::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::native::{Native, NativeType, Relocate, register};
use std::ffi::c_int;

/// Stocks in the keyspace.
pub static STOCK: NativeType<Stock> = NativeType::new("sluice-st");

/// What registers it.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Stocks>];

/// What the list of deadlines takes for a stock, about.
const LISTED: usize = 128;

struct Stocks;

impl Native for Stocks {
    type Value = Stock;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Stock> {
        &STOCK
    }

    fn save(stock: &Stock, out: &mut RdbWriter<'_>) {
        let mut head = Vec::new();
        persist::put_head(&mut head, stock);
        out.bytes(&head);
        persist::pieces(stock, &mut |piece| out.bytes(piece));
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Stock> {
        let pieces = input.bytes(persist::head)?.ok()?;
        let mut builder = Builder::default();
        for _ in 0..pieces {
            input.bytes(|piece| builder.add(piece))?.ok()?;
        }
        let mut stock = builder.finish().ok()?;
        if let Some((db, key)) = input.place() {
            if events::loads_beside() {
                list_incoming(&mut stock, db, key);
            } else {
                list(&mut stock, db, key);
            }
        }
        Some(stock)
    }

    fn rewrite(stock: &Stock, out: &mut AofWriter<'_>) {
        persist::pieces(stock, &mut |piece| out.command(c"STOCK.APPLY", piece));
    }

    fn digest(stock: &Stock, digest: &mut Digest<'_>) {
        let mut element = Vec::new();
        persist::put_summary(&mut element, stock);
        digest.element(&element);
        let Some(book) = stock.book() else {
            return;
        };
        for order in book.iter_orders() {
            element.clear();
            persist::put_order(&mut element, &order);
            digest.element(&element);
        }
        for user in book.iter_users() {
            element.clear();
            persist::put_user(&mut element, &user.id, user.held);
            digest.element(&element);
        }
    }

    fn memory(stock: &Stock) -> usize {
        let is_listed = stock.listed.at < u64::MAX;
        let listed = if is_listed { LISTED } else { 0 };
        stock.memory() + listed
    }

    fn free_effort(stock: &Stock) -> usize {
        stock.book().map_or(1, |book| book.orders() + book.users())
    }

    fn copy(stock: &Stock) -> Option<Stock> {
        let mut copy = stock.clone();
        copy.listed = Listed::default();
        Some(copy)
    }

    fn unlinked(stock: &Stock, _db: i32, _key: &[u8]) {
        if stock.listed.number != 0 {
            DEADLINES.get().remove(stock.listed.number);
            INCOMING.get().remove(stock.listed.number);
        }
    }

    fn defrag(stock: &mut Stock, relocate: &mut Relocate<'_>, from: usize) -> Option<usize> {
        let mut part = from;
        while stock.visit_part(part, &mut |bytes| relocate.bytes(bytes)) {
            part += 1;
            if relocate.should_stop() {
                return Some(part);
            }
        }
        None
    }
}

/// Lists a stock of the dataset that is loaded beside the old one.
fn list_incoming(stock: &mut Stock, db: i32, key: &[u8]) {
    let at = stock.next_due();
    if at < u64::MAX {
        let number = DEADLINES.get().next_number();
        stock.listed = Listed { number, at };
        // Redis 7.0 and 7.2 say 0 of every database of such a dataset.
        let db = if db == 0 { ANY_DB } else { db };
        INCOMING.get().set(number, db, key, at);
    }
}

/// Lists a stock by its next deadline, if it has one.
pub(super) fn list(stock: &mut Stock, db: i32, key: &[u8]) {
    let at = stock.next_due();
    list_at(stock, db, key, at);
}

/// Lists a stock at a time (Unix ms); at `u64::MAX` it is taken out.
pub(super) fn list_at(stock: &mut Stock, db: i32, key: &[u8], at: u64) {
    let mut deadlines = DEADLINES.get();
    stock.listed.at = at;
    if at == u64::MAX {
        return deadlines.remove(stock.listed.number);
    }
    if stock.listed.number == 0 {
        stock.listed.number = deadlines.next_number();
    }
    deadlines.set(stock.listed.number, db, key, at);
}
