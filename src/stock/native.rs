//! The native type: how stocks are saved, copied, measured and moved.

use super::DEADLINES;
use super::persist::{self, Builder};
use super::state::Stock;
use crate::deadlines::Listed;
use crate::server::handles::context::Ctx;
use crate::server::handles::io::{AofWriter, Digest, RdbReader, RdbWriter};
use crate::server::services::native::{
    Native, NativeType, Relocate, TypeUsage, register, usage_of,
};
use std::ffi::c_int;

/// Stocks in the keyspace.
pub static STOCK: NativeType<Stock> = NativeType::new("sluice-st");

/// What registers it.
pub const TYPES: &[fn(Ctx<'_>) -> bool] = &[register::<Stocks>];

/// The memory of the values.
pub const USAGE: &[TypeUsage] = &[usage_of::<Stocks>()];

struct Stocks;

impl Native for Stocks {
    type Value = Stock;
    const ENCODING: c_int = 0;

    fn native() -> &'static NativeType<Stock> {
        &STOCK
    }

    fn save(stock: &Stock, out: &mut RdbWriter<'_>) {
        let mut header = Vec::new();
        persist::put_header(&mut header, stock);
        out.bytes(&header);
        persist::pieces(stock, &mut |piece| out.bytes(piece));
    }

    fn load(input: &mut RdbReader<'_>, _encoding: c_int) -> Option<Stock> {
        let pieces = input.bytes(persist::header)?.ok()?;
        let mut builder = Builder::default();
        for _ in 0..pieces {
            input.bytes(|piece| builder.add(piece))?.ok()?;
        }
        let mut stock = builder.finish().ok()?;
        if let Some((db, key)) = input.key() {
            let at = stock.next_due();
            DEADLINES.list_loaded(&mut stock.listed, db, key, at);
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
        let Some(store) = stock.store() else {
            return;
        };
        for order in store.iter_orders() {
            element.clear();
            persist::put_order(&mut element, &order);
            digest.element(&element);
        }
        for user in store.iter_users() {
            element.clear();
            persist::put_user(&mut element, &user.id, user.held);
            digest.element(&element);
        }
    }

    fn memory(stock: &Stock) -> usize {
        stock.memory() + stock.listed.memory()
    }

    fn free_effort(stock: &Stock) -> usize {
        stock
            .store()
            .map_or(1, |store| store.order_count() + store.user_count())
    }

    fn copy(stock: &Stock) -> Option<Stock> {
        let mut copy = stock.clone();
        copy.listed = Listed::default();
        Some(copy)
    }

    fn unlinked(stock: &Stock, _db: i32, _key: &[u8]) {
        DEADLINES.unlinked(&stock.listed);
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

/// Lists a stock by its next deadline, if it has one.
pub(super) fn list(stock: &mut Stock, db: i32, key: &[u8]) {
    let at = stock.next_due();
    DEADLINES.list(&mut stock.listed, db, key, at);
}
