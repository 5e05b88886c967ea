//! The options of the family's commands.

use super::queue::{Waiter, Want};
use super::state::{Acquire, Amount, Claim};
use super::{DEFAULT_LEASE, MAX_ID, MAX_OWNER, State};
use crate::error::Error;
use crate::request::{Cursor, MAX_SAFE, TEN_YEARS_MS, Word, option};
use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use std::ffi::CStr;

pub(super) const SHARED: Word = 1;
pub(super) const PX: Word = 2;
pub(super) const BLOCK: Word = 4;
pub(super) const WATCHDOG: Word = 8;
pub(super) const ID: Word = 16;
pub(super) const ALL: Word = 32;
pub(super) const PERMITS: Word = 64;
pub(super) const LIMIT: Word = 128;

const WORDS: &[(&str, Word)] = &[
    ("PX", PX),
    ("ID", ID),
    ("ALL", ALL),
    ("BLOCK", BLOCK),
    ("LIMIT", LIMIT),
    ("SHARED", SHARED),
    ("PERMITS", PERMITS),
    ("WATCHDOG", WATCHDOG),
];

/// The options that a command was given.
#[derive(Default)]
pub(super) struct LockOptions<'a> {
    given: Word,
    pub(super) px: u64,
    pub(super) block: u64,
    permits: u64,
    pub(super) limit: u64,
    id: &'a [u8],
}

impl<'a> LockOptions<'a> {
    /// Reads what is left of the arguments; other options than the allowed ones, and repeated ones,
    /// are syntax errors.
    pub(super) fn read(cursor: &mut Cursor<'a>, allowed: Word) -> Result<Self, Error> {
        let mut options = LockOptions::default();
        while let Some(word) = cursor.next() {
            let option = option(word, WORDS) & allowed & !options.given;
            options.given |= option;
            match option {
                SHARED | WATCHDOG | ALL => {}
                PX => options.px = cursor.uint("PX", 1..=TEN_YEARS_MS)?,
                BLOCK => options.block = cursor.uint("BLOCK", 0..=TEN_YEARS_MS)?,
                ID => options.id = cursor.name("ID", MAX_ID)?,
                PERMITS => options.permits = cursor.uint("PERMITS", 1..=MAX_SAFE)?,
                LIMIT => options.limit = cursor.uint("LIMIT", 1..=MAX_SAFE)?,
                _ => return Err(Error::Syntax),
            }
        }
        Ok(options)
    }

    pub(super) fn has(&self, option: Word) -> bool {
        self.given & option != 0
    }

    pub(super) fn id(&self) -> Option<&'a [u8]> {
        self.has(ID).then_some(self.id)
    }

    pub(super) fn permits(&self) -> u64 {
        if self.has(PERMITS) { self.permits } else { 1 }
    }

    pub(super) fn lease(&self) -> u64 {
        if self.has(PX) {
            self.px
        } else {
            DEFAULT_LEASE.get() as u64
        }
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
        state: &State,
        name: &ServerString<'_>,
        owner: &'r [u8],
        claim: Claim,
    ) -> Acquire<'r> {
        let queues = &state.queues;
        Acquire {
            owner,
            claim,
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
        claim: Claim,
        event: &'static CStr,
    ) -> Waiter {
        let db = ctx.db();
        Waiter {
            keys: names.iter().map(|name| (db, name.bytes().into())).collect(),
            takes_many: false,
            owner: owner.into(),
            want: Want::Claim(claim),
            lease: self.lease(),
            id: self.id().map(Into::into),
            watch: self.watcher(ctx),
            event,
            since: now.ms(),
            timeout: self.block,
        }
    }

    pub(super) fn amount(&self) -> Result<Amount, Error> {
        match (self.has(ALL), self.has(PERMITS)) {
            (true, true) => Err(Error::Syntax),
            (true, false) => Ok(Amount::All),
            (false, _) => Ok(Amount::Count(self.permits())),
        }
    }
}

/// Reads an owner: 1 to 1024 bytes.
pub(super) fn owner<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
    cursor.name("owner", MAX_OWNER)
}
