//! The five ways to sell.

/// The items for sale.
pub(crate) const ITEMS: u64 = 1000;

/// The stock: a plain counter in the first four ways, a stock of Sluice in the last.
pub(crate) const STOCK: &str = "{sku:1}:stock";

/// The sales: a hash with the items of each order in the first four ways, the event stream in the last.
pub(crate) const ORDERS: &str = "{sku:1}:orders";

/// A way to sell items; `buy.rs` has the code of each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    GetSet,
    LocalLock,
    Lock,
    Lua,
    Stock,
}

impl Way {
    pub(crate) const ALL: [Self; 5] = [
        Self::GetSet,
        Self::LocalLock,
        Self::Lock,
        Self::Lua,
        Self::Stock,
    ];

    /// Its name for readers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GetSet => "GET, then SET",
            Self::LocalLock => "local lock",
            Self::Lock => "SETNX lock",
            Self::Lua => "Lua script",
            Self::Stock => "STOCK.DEDUCT",
        }
    }

    /// Its name as an argument.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::GetSet => "get-set",
            Self::LocalLock => "local-lock",
            Self::Lock => "lock",
            Self::Lua => "lua",
            Self::Stock => "stock",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.word() == word)
    }

    /// The command that creates the stock.
    pub(crate) fn opening(self) -> String {
        match self {
            Self::Stock => format!("STOCK.SET {STOCK} {ITEMS} PERUSER 1 EVENTS {ORDERS}"),
            _ => format!("SET {STOCK} {ITEMS}"),
        }
    }
}
