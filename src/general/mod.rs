//! The commands of no family: `SLUICE.*`, and the memory of the families in `INFO`. [`sketch`] counts the keys for which
//! clients wait or are refused.

mod commands;
pub mod memory;
mod options;
pub mod sketch;
pub mod table;

use crate::server::base::main_thread::MainThread;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::deferred::ServerEvent;
use sketch::{Sampler, SpaceSaving};
use std::sync::atomic::{AtomicU32, Ordering};

/// The keys of a family with the most waits and refusals, and the most bytes in large values. They are in memory only, and belong
/// to this server alone.
pub struct HotKeys {
    sketches: MainThread<Sketches>,
    /// The sketch looks at a refusal when this many have come.
    refusals_left: AtomicU32,
}

#[derive(Default)]
struct Sketches {
    waits: SpaceSaving,
    refusals: SpaceSaving,
    bytes: SpaceSaving,
    refusal_sampler: Sampler,
}

/// Smaller values are not counted, in bytes.
const LARGE_VALUE_BYTES: usize = 16 * 1024;

impl HotKeys {
    /// No keys.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            sketches: MainThread::new(),
            refusals_left: AtomicU32::new(1),
        }
    }

    /// Counts a client that begins to wait for a key.
    pub fn count_wait(&self, db: i32, name: &[u8]) {
        self.sketches.get().waits.add(db, name, 1);
    }

    /// Counts a refused request for a key of the selected database. Most calls count down a number and do nothing else.
    #[inline(always)]
    pub fn count_refusal(&self, ctx: Ctx<'_>, name: &ServerString<'_>) {
        let left = self.refusals_left.load(Ordering::Relaxed) - 1;
        self.refusals_left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.sample_refusal(ctx, name);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample_refusal(&self, ctx: Ctx<'_>, name: &ServerString<'_>) {
        let sketches = &mut *self.sketches.get();
        let (count, next) = sketches.refusal_sampler.choose();
        self.refusals_left.store(next, Ordering::Relaxed);
        sketches.refusals.add(ctx.db(), name.bytes(), count);
    }

    /// Counts the bytes of a value that is stored at a key of the selected database, if the value is large.
    #[inline(always)]
    pub fn count_stored_bytes(&self, ctx: Ctx<'_>, name: &ServerString<'_>, size: usize) {
        if size >= LARGE_VALUE_BYTES {
            self.add_bytes(ctx, name, size);
        }
    }

    #[cold]
    #[inline(never)]
    fn add_bytes(&self, ctx: Ctx<'_>, name: &ServerString<'_>, size: usize) {
        let db = ctx.db();
        self.sketches.get().bytes.add(db, name.bytes(), size as u64);
    }

    /// Forgets all keys.
    fn reset(&self) {
        *self.sketches.get() = Sketches::default();
        self.refusals_left.store(1, Ordering::Relaxed);
    }
}

impl Sketches {
    fn all_mut(&mut self) -> [&mut SpaceSaving; 3] {
        [&mut self.waits, &mut self.refusals, &mut self.bytes]
    }
}

/// Called about ten times a second.
pub fn cron(ctx: Ctx<'_>) {
    memory::cron(ctx);
}

/// Databases were flushed, loaded or swapped. The names of keys that a user has flushed are not shown any more.
pub fn dataset_changed(event: &ServerEvent) {
    for hot in crate::enabled_families().filter_map(|family| family.hot) {
        let sketches = &mut *hot.sketches.get();
        for sketch in sketches.all_mut() {
            match event {
                ServerEvent::Flushed(db) => sketch.clear(*db),
                ServerEvent::Loaded | ServerEvent::Replaced => sketch.clear(None),
                ServerEvent::Swapped(first, second) => sketch.swap(*first, *second),
                _ => {}
            }
        }
    }
}
