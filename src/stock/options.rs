//! The options of the family's commands.

use super::state::{EventStream, SaleTerms, StockAction, StockRequest};
use super::{DEFAULT_MAXLEN, DEFAULT_RETAIN_MS, MAX_ID_BYTES};
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::{MAX_SAFE, TEN_YEARS_MS};

pub(super) const ORDER: OptionSet = 1;
pub(super) const USER: OptionSet = 2;
pub(super) const PX: OptionSet = 4;
pub(super) const NX: OptionSet = 8;
pub(super) const XX: OptionSet = 16;
const PERUSER: OptionSet = 32;
const RETAIN: OptionSet = 64;
const EVENTS: OptionSet = 128;
const MAXLEN: OptionSet = 256;
/// The options for the terms of sale.
pub(super) const TERMS: OptionSet = PERUSER | RETAIN | EVENTS | MAXLEN;

/// All options of the family.
pub(super) static OPTIONS: OptionTable<9> = OptionTable::new([
    (ORDER, "ORDER", OptionArgument::Name(MAX_ID_BYTES)),
    (USER, "USER", OptionArgument::Name(MAX_ID_BYTES)),
    (PX, "PX", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (NX, "NX", OptionArgument::None),
    (XX, "XX", OptionArgument::None),
    (PERUSER, "PERUSER", OptionArgument::Integer(1, MAX_SAFE)),
    (RETAIN, "RETAIN", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (EVENTS, "EVENTS", OptionArgument::Bytes(1)),
    (MAXLEN, "MAXLEN", OptionArgument::Integer(1, MAX_SAFE)),
])
.exclusive(&[NX | XX])
.dependent(&[(MAXLEN, EVENTS)]);

/// The options of one command.
pub(super) type StockOptions<'a> = Options<'a, 9>;

impl<'a> StockOptions<'a> {
    /// The terms of sale.
    pub(super) fn terms(&self) -> SaleTerms {
        let events = self.bytes(EVENTS).map(|stream| EventStream {
            stream: stream.into(),
            maxlen: self.number_or(MAXLEN, DEFAULT_MAXLEN),
        });
        SaleTerms {
            per_user: self.number_or(PERUSER, 0),
            retain: self.number_or(RETAIN, DEFAULT_RETAIN_MS),
            events: events.map(Box::new),
        }
    }

    /// A request with the order and the user of the options.
    pub(super) fn request(&self, action: StockAction) -> StockRequest<'a> {
        StockRequest {
            action,
            order: self.bytes(ORDER).unwrap_or_default(),
            user: self.bytes(USER).unwrap_or_default(),
        }
    }
}
