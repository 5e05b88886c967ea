//! The options of the family's commands.

use super::queue::{LockWaiter, Want};
use super::state::{Acquire, Amount, RequestedMode};
use super::{DEFAULT_LEASE, LockService, MAX_ID, MAX_OWNER};
use crate::error::Error;
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use std::ffi::CStr;

pub(super) const PX: OptionSet = 1;
pub(super) const ID: OptionSet = 2;
pub(super) const ALL: OptionSet = 4;
pub(super) const BLOCK: OptionSet = 8;
pub(super) const LIMIT: OptionSet = 16;
pub(super) const SHARED: OptionSet = 32;
pub(super) const PERMITS: OptionSet = 64;
pub(super) const WATCHDOG: OptionSet = 128;

/// All options of the family.
pub(super) static OPTIONS: OptionTable<8> = OptionTable::new([
    (PX, "PX", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (ID, "ID", OptionArgument::Name(MAX_ID)),
    (ALL, "ALL", OptionArgument::None),
    (BLOCK, "BLOCK", OptionArgument::Integer(0, TEN_YEARS_MS)),
    (LIMIT, "LIMIT", OptionArgument::Integer(1, MAX_SAFE)),
    (SHARED, "SHARED", OptionArgument::None),
    (PERMITS, "PERMITS", OptionArgument::Integer(1, MAX_SAFE)),
    (WATCHDOG, "WATCHDOG", OptionArgument::None),
])
.exclusive(&[ALL | PERMITS]);

/// The options of one command.
pub(super) type LockOptions<'a> = Options<'a, 8>;

impl<'a> LockOptions<'a> {
    pub(super) fn id(&self) -> Option<&'a [u8]> {
        self.bytes(ID)
    }

    pub(super) fn permits(&self) -> u64 {
        self.number_or(PERMITS, 1)
    }

    pub(super) fn lease(&self) -> u64 {
        self.number(PX)
            .unwrap_or_else(|| DEFAULT_LEASE.get() as u64)
    }

    /// The connection that the hold is to be renewed for.
    pub(super) fn watcher(&self, ctx: Ctx<'_>) -> Option<u64> {
        if self.has(WATCHDOG) {
            ctx.client()
        } else {
            None
        }
    }

    /// The acquisition that they ask for, of one key.
    pub(super) fn request<'r>(
        &'r self,
        ctx: Ctx<'_>,
        service: &LockService,
        name: &ServerString<'_>,
        owner: &'r [u8],
        mode: RequestedMode,
    ) -> Acquire<'r> {
        let queues = &service.handover.queues;
        Acquire {
            owner,
            mode,
            lease: self.lease(),
            id: self.id(),
            watch: self.watcher(ctx),
            queued: !queues.is_empty() && queues.waits_for(ctx.db(), name.bytes()),
        }
    }

    /// The same as one that waits.
    pub(super) fn waiter(
        &self,
        ctx: Ctx<'_>,
        now: Now,
        names: &[ServerString<'_>],
        owner: &[u8],
        mode: RequestedMode,
        event: &'static CStr,
    ) -> LockWaiter {
        let db = ctx.db();
        LockWaiter {
            keys: names.iter().map(|name| (db, name.bytes().into())).collect(),
            takes_many: false,
            owner: owner.into(),
            want: Want::Acquire(mode),
            lease: self.lease(),
            id: self.id().map(Into::into),
            watch: self.watcher(ctx),
            event,
            since: now.ms(),
            timeout: self.number_or(BLOCK, 0),
        }
    }

    pub(super) fn amount(&self) -> Amount {
        if self.has(ALL) {
            Amount::All
        } else {
            Amount::Count(self.permits())
        }
    }
}

/// Reads an owner: 1 to 1024 bytes.
pub(super) fn owner<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("owner", MAX_OWNER)
}
