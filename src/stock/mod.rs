//! `STOCK.*`: inventory that never oversells.
//!
//! A stock is a key whose value is a [`state::Stock`]: the available, reserved and sold quantities, with orders and users in an
//! [`order_store::OrderStore`]. [`commands`] reads requests. [`edit`] carries out a decided change in the keyspace and announces
//! it in the event stream. [`serve`] does the work without a command: it ends reservations and forgets old orders.
//! [`crate::deadlines`] lists the times of this work.

pub mod commands;
pub mod edit;
mod events;
pub mod native;
mod options;
pub mod order;
pub mod order_store;
pub mod persist;
pub mod serve;
mod several;
pub mod state;
pub mod table;

use self::events::EntryStrings;
use crate::Family;
use crate::deadlines::Listing;
use crate::general::HotKeys;
use crate::general::memory::FamilyMemory;
use crate::request::MAX_SAFE;
use crate::server::base::main_thread::MainThread;
use crate::server::handles::string::ServerString;
use crate::server::services::info::Counter;
use crate::server::services::stream;
use std::rc::Rc;

/// The largest quantity, and the largest number in a reply: 2^53 - 1.
pub const MAX_QTY: u64 = MAX_SAFE as u64;

/// The longest order or user id in bytes.
pub const MAX_ID_BYTES: usize = 512;

/// The default of `RETAIN`, the retention time of final orders, in milliseconds: one day.
pub const DEFAULT_RETAIN_MS: u64 = 86_400_000;

/// The default of `MAXLEN`, the approximate number of entries that an event stream keeps.
pub const DEFAULT_MAXLEN: u64 = 100_000;

/// The family's registration.
pub const FAMILY: Family = Family {
    name: "stock",
    commands: &[table::TABLE],
    types: native::TYPES,
    settings: &[],
    key_changed: serve::on_key_change,
    dataset_changed: |event| DEADLINES.moved(event),
    on_event: serve::on_server_event,
    due: serve::due,
    go_on: |ctx, slice| DEADLINES.go_on(ctx, slice),
    slot_check_command: Some(c"STOCK.CONFIRM"),
    cron: |ctx| {
        DEADLINES.cron(ctx);
        stream::free_unused();
    },
    info: serve::info,
    hot: Some(&HOT),
    memory: Some(FamilyMemory {
        keys: "memory_stock_keys",
        bytes: "memory_stock_bytes",
        types: native::USAGE,
    }),
    ..Family::PLAIN
};

/// The counters of `INFO sluice`.
struct StockCounters {
    deducted: Counter,
    reserved: Counter,
    confirmed: Counter,
    cancelled: Counter,
    expired: Counter,
    sold_out: Counter,
    user_limited: Counter,
    duplicates: Counter,
    conflicts: Counter,
}

static COUNTERS: StockCounters = StockCounters {
    deducted: Counter::new(),
    reserved: Counter::new(),
    confirmed: Counter::new(),
    cancelled: Counter::new(),
    expired: Counter::new(),
    sold_out: Counter::new(),
    user_limited: Counter::new(),
    duplicates: Counter::new(),
    conflicts: Counter::new(),
};

/// The keys with the most refusals.
static HOT: HotKeys = HotKeys::new();

/// The state of the family between two commands. The server emits events when it creates a stream, and their listeners may run
/// commands of this family: nothing changes a stream while it borrows this state.
#[derive(Default)]
struct StockState {
    /// A buffer for effects.
    effects: Vec<u8>,
    /// The name of the event stream with the last announcement.
    stream_name: Option<ServerString<'static>>,
    entry_strings: Rc<EntryStrings>,
}

static STATE: MainThread<StockState> = MainThread::new();

/// The deadlines of all stocks.
static DEADLINES: Listing = Listing::new();
