//! The options of the family's commands.

use super::handover::Handover;
use super::queue::{Listener, LockWaiter, Want};
use super::state::{Acquire, Amount, RequestedMode, Watchdog};
use super::{DEFAULT_LEASE, MAX_CHANNEL_BYTES, MAX_OWNER_BYTES, MAX_REQUEST_ID_BYTES};
use crate::error::Error;
use crate::options::{OptionArgument, OptionSet, OptionTable, Options};
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::publish;
use std::ffi::CStr;

pub(super) const PX: OptionSet = 1;
pub(super) const ID: OptionSet = 2;
pub(super) const ALL: OptionSet = 4;
pub(super) const BLOCK: OptionSet = 8;
pub(super) const LIMIT: OptionSet = 16;
pub(super) const SHARED: OptionSet = 32;
pub(super) const PERMITS: OptionSet = 64;
pub(super) const WATCHDOG: OptionSet = 128;
pub(super) const MAXHOLD: OptionSet = 256;
pub(super) const LINGER: OptionSet = 512;
pub(super) const NOTIFY: OptionSet = 1024;

/// The options that say how the server renews a hold.
pub(super) const RENEWAL: OptionSet = WATCHDOG | MAXHOLD | LINGER;

/// All options of the family.
pub(super) static OPTIONS: OptionTable<11> = OptionTable::new([
    (PX, "PX", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (ID, "ID", OptionArgument::Name(MAX_REQUEST_ID_BYTES)),
    (ALL, "ALL", OptionArgument::None),
    (BLOCK, "BLOCK", OptionArgument::Integer(0, TEN_YEARS_MS)),
    (LIMIT, "LIMIT", OptionArgument::Integer(1, MAX_SAFE)),
    (SHARED, "SHARED", OptionArgument::None),
    (PERMITS, "PERMITS", OptionArgument::Integer(1, MAX_SAFE)),
    (WATCHDOG, "WATCHDOG", OptionArgument::None),
    (MAXHOLD, "MAXHOLD", OptionArgument::Integer(1, TEN_YEARS_MS)),
    (LINGER, "LINGER", OptionArgument::None),
    (NOTIFY, "NOTIFY", OptionArgument::Name(MAX_CHANNEL_BYTES)),
])
.exclusive(&[ALL | PERMITS])
.dependent(&[(MAXHOLD, WATCHDOG), (LINGER, WATCHDOG), (NOTIFY, ID)]);

/// The options of one command.
pub(super) type LockOptions<'a> = Options<'a, 11>;

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

    /// How the hold is to be renewed.
    pub(super) fn watchdog(&self, ctx: Ctx<'_>) -> Option<Watchdog> {
        self.has(WATCHDOG).then(|| Watchdog {
            client: ctx.client().unwrap_or(0),
            max_hold: self.number_or(MAXHOLD, u64::MAX),
            lingers: self.has(LINGER),
        })
    }

    /// Checks that the caller has the permission for the channel of NOTIFY.
    #[inline(always)]
    pub(super) fn check_channel(&self, ctx: Ctx<'_>) -> Result<(), Error> {
        if !self.has(NOTIFY) {
            return Ok(());
        }
        match self.bytes(NOTIFY) {
            Some(channel) if !publish::is_permitted(ctx, channel) => Err(Error::NoChannel),
            _ => Ok(()),
        }
    }

    /// Whether the request may wait.
    pub(super) fn may_wait(&self, ctx: Ctx<'_>) -> bool {
        self.has(BLOCK)
            && if self.has(NOTIFY) {
                ctx.may_queue() && ctx.client().is_some()
            } else {
                ctx.may_block()
            }
    }

    /// Who is told how the wait ended, if no client is blocked.
    fn listener(&self, ctx: Ctx<'_>) -> Option<Listener> {
        Some(Listener {
            channel: self.bytes(NOTIFY)?.into(),
            client: ctx.client()?,
        })
    }

    /// The acquisition that they ask for, of one key.
    pub(super) fn request<'r>(
        &'r self,
        ctx: Ctx<'_>,
        handover: &Handover,
        name: &ServerString<'_>,
        owner: &'r [u8],
        mode: RequestedMode,
    ) -> Acquire<'r> {
        let queues = &handover.queues;
        Acquire {
            owner,
            mode,
            kept_limit: None,
            lease: self.lease(),
            id: self.id(),
            watch: self.watchdog(ctx),
            channel: self.bytes(NOTIFY),
            queued: !queues.is_empty() && queues.waits_for(ctx.db(), name.bytes()),
        }
    }

    /// The same as one that waits.
    pub(super) fn waiter(
        &self,
        ctx: Ctx<'_>,
        now: Now,
        wanted: &[(ServerString<'_>, RequestedMode)],
        owner: &[u8],
        event: &'static CStr,
    ) -> LockWaiter {
        let db = ctx.db();
        let keys = wanted.iter().map(|(name, _)| (db, name.bytes().into()));
        let limits = wanted.iter().filter_map(|(_, mode)| match mode {
            RequestedMode::Permits { limit, .. } => Some(*limit),
            _ => None,
        });
        LockWaiter {
            keys: keys.collect(),
            limits: if wanted.len() > 1 {
                limits.collect()
            } else {
                Box::default()
            },
            takes_many: false,
            owner: owner.into(),
            want: Want::Acquire(wanted[0].1),
            lease: self.lease(),
            id: self.id().map(Into::into),
            watch: self.watchdog(ctx),
            listener: self.listener(ctx),
            event,
            since: now.ms(),
            since_us: now.micros(),
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
    cursor.name("owner", MAX_OWNER_BYTES)
}
